use super::served::{Member, Served};
use super::*;
use crate::comm::about::About;
#[cfg(feature = "gloo")]
use crate::comm::gloo;
use crate::comm::secret::Key;
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
        let limit = Duration::from_secs(10);
        let me = Member { rank, size: n, about: &options.about, limit };
        let store = Served::among_siblings(&me, &name, limit).unwrap();
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

/// Rank 0 gives rank 1 up in the memory of their host, and ends as runs do, with a barrier. Rank 1 comes yet, passes that memory,
/// and must not take what the barrier would send for a term of its sum.
#[test]
fn a_rank_that_gave_up_on_its_host_sends_nothing_more_between_hosts() {
    let short = Duration::from_millis(300);
    let options = CommOptions { late_limit: short, warn_after: short, ..CommOptions::default() };
    // Few numbers: a gather of them is a barrier in the memory of each host, and nothing between hosts.
    let with_vector = |mut comm: Box<dyn Communicator>| {
        let common = comm.common_vector(vec![0.0; 100]).unwrap();
        (comm, common)
    };
    let mut members: Vec<_> = std::thread::scope(|scope| {
        let group = group(4, "late", &options, on_two_hosts);
        let threads: Vec<_> = group.into_iter().map(|comm| scope.spawn(move || with_vector(comm))).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    let (mut late, mut its_common) = members.remove(1);
    std::thread::scope(|scope| {
        for (comm, common) in &mut members {
            scope.spawn(move || match comm.rank() {
                0 => {
                    comm.all_gather_slices(common).unwrap_err();
                    comm.barrier().unwrap_err();
                }
                _ => {
                    comm.all_gather_slices(common).unwrap();
                    comm.all_reduce_sum_i64(&mut [1]).unwrap_err();
                }
            });
        }
    });
    late.all_gather_slices(&mut its_common).unwrap();
    let error = late.all_reduce_sum_i64(&mut [1]).unwrap_err();
    assert!(error.message().contains("rank 1"), "{error}");
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
    let me = Member { rank: 0, size: 3, about: &options.about, limit: options.limit };
    let store = Served::among_siblings(&me, &name, Duration::ZERO).unwrap();
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

/// A store over TCP, as rank 0 serves it to other hosts; here all are on this one.
fn served_by_tcp(rank: usize, port: u16, key: &Key, about: &About) -> crate::error::Result<Served> {
    let me = Member { rank, size: 3, about, limit: Duration::from_secs(5) };
    Served::over_tcp(&me, "127.0.0.1", port, key.clone())
}

fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

#[test]
fn a_store_over_tcp_serves_ranks_of_its_job_and_nobody_else() {
    use std::io::{Read, Write};
    let (key, port, about) = (Key::fresh(), free_port(), About::default().with("input", Some("x".into())));
    let mut zero = served_by_tcp(0, port, &key, &about).unwrap();
    zero.set("answer", b"42").unwrap();
    // A request of before there was a secret, and a length that would take 256 MB.
    for words in [&b"\x02\x06\x00\x00\x00answer\x01\x00\x00\x000"[..], b"\x01\xff\xff\xff\x0f"] {
        let mut stranger = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
        stranger.write_all(words).unwrap();
        stranger.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        let mut heard = Vec::new();
        let _ = stranger.read_to_end(&mut heard);
        assert_eq!(heard, b"", "a stranger hears nothing");
    }
    let other = served_by_tcp(1, port, &Key::fresh(), &about).err().unwrap();
    assert!(other.message().contains("does not have this job's secret"), "{other}");
    let foreign = About::default().with("input", Some("y".into()));
    let other = served_by_tcp(1, port, &key, &foreign).err().unwrap();
    let want = "rank 1 is not of the job of rank 0: its input is y, that of rank 0 is x";
    assert_eq!(other.message(), want);
    let mut one = served_by_tcp(1, port, &key, &about).unwrap();
    let soon = || Instant::now() + Duration::from_secs(5);
    assert_eq!(one.get("answer", soon()).unwrap(), Some(b"42".to_vec()));
    let twice = served_by_tcp(1, port, &key, &about).err().unwrap();
    assert!(twice.message().contains("came twice"), "{twice}");
    drop(zero);
    let closed = || std::net::TcpStream::connect(("127.0.0.1", port)).is_err();
    let deadline = soon();
    while !closed() {
        assert!(Instant::now() < deadline, "the port is still open");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A store that anybody can write to, as torchrun's.
struct Common(std::sync::Arc<std::sync::Mutex<std::collections::HashMap<String, Vec<u8>>>>);

impl Store for Common {
    fn set(&mut self, key: &str, value: &[u8]) -> crate::error::Result<()> {
        self.0.lock().unwrap().insert(key.to_string(), value.to_vec());
        Ok(())
    }
    fn get(&mut self, key: &str, deadline: Instant) -> crate::error::Result<Option<Vec<u8>>> {
        loop {
            if let Some(value) = self.0.lock().unwrap().get(key) {
                return Ok(Some(value.clone()));
            }
            if Instant::now() >= deadline {
                return Ok(None);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    fn local_address(&self) -> Option<IpAddr> {
        None
    }
}

#[test]
fn what_a_stranger_writes_into_the_launchers_store_is_not_believed() {
    let shared = std::sync::Arc::default();
    let options = CommOptions {
        limit: Duration::from_secs(2),
        secret: crate::comm::secret::Secret::Words("ours".into()),
        ..CommOptions::default()
    };
    let launch = |rank| Launch { rank, size: 2, local_rank: rank, local_size: 2, ..solo() };
    let exchange = |rank: usize, shared: &std::sync::Arc<_>| {
        let launch = launch(rank);
        let store = Box::new(Common(std::sync::Arc::clone(shared)));
        Meeting::at(&launch, &options, store).exchange("round", &[rank as u8])
    };
    std::thread::scope(|scope| {
        let one = scope.spawn(|| exchange(1, &shared));
        assert_eq!(exchange(0, &shared).unwrap(), [[0], [1]]);
        assert_eq!(one.join().unwrap().unwrap(), [[0], [1]]);
    });
    shared.lock().unwrap().clear();
    Common(shared.clone()).set("test/round/1", &[7; 40]).unwrap();
    let error = exchange(0, &shared).unwrap_err();
    assert_eq!(
        error.message(),
        "what stands at the meeting place for rank 1 does not carry this job's secret"
    );
}

#[test]
fn a_job_that_comes_again_on_more_ranks_meets_under_one_name() {
    let shared = std::sync::Arc::default();
    let visit = |rank, size| {
        let launch = Launch { rank, size, job: "changing".into(), ..solo() };
        let store = Common(std::sync::Arc::clone(&shared));
        Meeting::new(&launch, &CommOptions::default()).visit(Box::new(store)).unwrap()
    };
    let alone = visit(0, 1);
    let two = [visit(0, 2), visit(1, 2)];
    assert_eq!(two[0], two[1], "the second has not been here before");
    let again = [visit(0, 2), visit(1, 2)];
    assert!(again[0] == again[1] && again[0] != two[0] && two[0] != alone, "{alone} {two:?} {again:?}");
}
