use super::served::Served;
use super::*;
#[cfg(feature = "gloo")]
use crate::comm::gloo;
use crate::comm::tests::{RANKS, exercise, on_threads, sums};
use crate::comm::{Communicator, pulse};
use crate::launch::Launch;
use std::time::Duration;

/// How an engine joins ranks.
type Connect = fn(&mut Meeting, &CommOptions) -> Attempt;

/// Runs `connect` on `n` threads that meet at a store of their own.
fn group(n: usize, name: &str, options: &CommOptions, connect: Connect) -> Vec<Box<dyn Communicator>> {
    let name = format!("phalanx-test-{}-{name}-{n}", std::process::id());
    let one = |rank: usize| {
        let launch = Launch { rank, size: n, local_rank: rank, local_size: n, ..solo() };
        let store =
            Served::among_siblings(rank == 0, &name, Instant::now() + Duration::from_secs(10)).unwrap();
        match connect(&mut Meeting::at(&launch, options, Box::new(store)), options) {
            Attempt::Connected(comm) => comm,
            Attempt::NotForUs(why) => panic!("{why}"),
            Attempt::Failed(e) => panic!("{e}"),
        }
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..n).map(|rank| scope.spawn(move || one(rank))).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

fn solo() -> Launch {
    Launch::detect(&|_| None, "here").unwrap()
}

#[test]
fn shared_memory_found_through_a_store_passes() {
    on_threads(group(3, "shm", &CommOptions::default(), connect_shm), exercise);
}

/// Ranks that believe to be on two hosts, one after the other, or on three, in turns.
fn on_two_hosts(meeting: &mut Meeting, options: &CommOptions) -> Attempt {
    let host = (2 * meeting.rank() / meeting.size()).to_string();
    Attempt::Connected(hosts::arrange_by(try_tcp(meeting, options).unwrap(), options, &host).unwrap())
}

fn on_three_hosts(meeting: &mut Meeting, options: &CommOptions) -> Attempt {
    let host = (meeting.rank() % 3).to_string();
    Attempt::Connected(hosts::arrange_by(try_tcp(meeting, options).unwrap(), options, &host).unwrap())
}

#[test]
fn memory_of_each_host_and_tcp_between_hosts_pass() {
    for (n, connect) in
        [(4, on_two_hosts as Connect), (6, on_two_hosts), (6, on_three_hosts), (16, on_two_hosts)]
    {
        let group = group(n, "hosts", &CommOptions::default(), connect);
        assert_eq!(group[0].name(), "TCP, shared memory on each host");
        on_threads(group, exercise);
    }
}

#[test]
fn a_rank_that_dies_on_another_host_is_named_on_all() {
    let options = CommOptions { limit: Duration::from_secs(3), ..CommOptions::default() };
    std::thread::scope(|scope| {
        for mut comm in group(6, "dies", &options, on_three_hosts) {
            scope.spawn(move || {
                let mut mine = comm.rank_vector(100_000).unwrap();
                let mut common = comm.common_vector(vec![0.0; 100_000]).unwrap();
                comm.reduce_scatter(&mut mine).unwrap();
                if comm.rank() == 4 {
                    comm.abort("disk full");
                    return;
                }
                let mut go_on = || -> crate::error::Result<()> {
                    comm.all_gather_slices(&mut common)?;
                    comm.reduce_scatter(&mut mine)?;
                    comm.all_gather_slices(&mut common)
                };
                assert_eq!(go_on().unwrap_err().message(), "rank 4 stopped: disk full");
            });
        }
    });
}

#[test]
fn tcp_passes_for_every_number_of_ranks() {
    for &n in RANKS.iter().filter(|&&n| n > 1) {
        on_threads(group(n, "tcp", &CommOptions::default(), connect_tcp), exercise);
    }
}

#[cfg(feature = "gloo")]
#[test]
fn gloo_passes_for_every_number_of_ranks() {
    for &n in RANKS.iter().filter(|&&n| n > 1) {
        on_threads(group(n, "gloo", &CommOptions::default(), gloo::connect), exercise);
    }
}

/// The engines between hosts.
const BETWEEN_HOSTS: &[(&str, Connect)] = &[
    ("tcp", connect_tcp),
    #[cfg(feature = "gloo")]
    ("gloo", gloo::connect),
];

#[test]
fn many_ranks_exchange_halves_whether_or_not_they_are_a_power_of_two() {
    for n in [16, 34] {
        on_threads(group(n, "halves", &CommOptions::default(), connect_tcp), |comm| {
            [2_100, 70_001].into_iter().for_each(|length| sums(comm, length));
        });
    }
}

#[test]
fn between_hosts_a_rank_that_stops_with_an_error_is_named_with_its_reason() {
    for (culprit, (name, connect)) in (0..2).flat_map(|c| BETWEEN_HOSTS.iter().map(move |e| (c, *e))) {
        let group = group(3, &format!("abort-{name}-{culprit}"), &CommOptions::default(), connect);
        on_each(group, |comm| {
            if comm.rank() == culprit {
                return comm.abort("disk full");
            }
            let error = comm.all_reduce_sum_f64(&mut vec![1.0; 10_000]).unwrap_err();
            assert_eq!(error.message(), format!("rank {culprit} stopped: disk full"));
        });
    }
}

#[test]
fn between_hosts_a_rank_that_goes_without_a_word_is_named() {
    for (name, connect) in BETWEEN_HOSTS {
        let group = group(4, &format!("leave-{name}"), &CommOptions::default(), *connect);
        on_each(group, |comm| {
            if comm.rank() != 2 {
                assert_eq!(comm.barrier().unwrap_err().message(), "rank 2 died", "{name}");
            }
        });
    }
}

#[test]
fn between_hosts_the_same_sum_has_the_same_bits_whatever_carries_it() {
    let sum = |name: &str, connect: Connect| {
        let bits = std::sync::Mutex::new(Vec::new());
        on_threads(group(3, &format!("bits-{name}"), &CommOptions::default(), connect), |comm| {
            let mut x: Vec<f64> = (0..50_000).map(|i| ((i * 3 + comm.rank()) as f64).sqrt()).collect();
            comm.all_reduce_sum_f64(&mut x).unwrap();
            bits.lock().unwrap().push(x.iter().map(|x| x.to_bits()).collect::<Vec<_>>());
        });
        let bits = bits.into_inner().unwrap();
        assert!(bits.iter().all(|other| *other == bits[0]), "{name}: ranks differ");
        bits[0].clone()
    };
    let first = sum("tcp", connect_tcp);
    for (name, connect) in &BETWEEN_HOSTS[1..] {
        assert!(sum(name, *connect) == first, "{name} gives other bits than TCP");
    }
}

#[test]
fn a_rank_that_does_not_come_to_the_meeting_place_is_named() {
    let options = CommOptions { limit: Duration::from_millis(300), ..CommOptions::default() };
    let launch = Launch { size: 3, local_size: 3, ..solo() };
    let name = format!("phalanx-test-{}-absent", std::process::id());
    let store = Served::among_siblings(true, &name, Instant::now()).unwrap();
    let found = connect_shm(&mut Meeting::at(&launch, &options, Box::new(store)), &options);
    let Attempt::Failed(error) = found else { panic!("two ranks are missing") };
    assert_eq!(error.message(), format!("{} did not come to the meeting place", pulse::name_ranks(&[1, 2])));
}

fn on_each(group: Vec<Box<dyn Communicator>>, body: impl Fn(&mut dyn Communicator) + Sync) {
    std::thread::scope(|scope| {
        for mut comm in group {
            let body = &body;
            scope.spawn(move || body(comm.as_mut()));
        }
    });
}
