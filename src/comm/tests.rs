//! One test body for every engine.

use super::element::bytes_of;
use super::vectors::CELL;
use super::{CommOptions, Communicator};

/// The numbers of ranks that every engine is tried with.
pub const RANKS: &[usize] = &[1, 2, 3, 4, 5, 7, 8];
/// Lengths of vectors: nothing, one, fewer than ranks, uneven blocks, the stock network.
const LENGTHS: &[usize] = &[0, 1, 7, 1000, 70_001, 1_000_000];

/// Every collective, with answers that one rank can work out alone. Big lengths only for few ranks.
pub fn exercise(comm: &mut dyn Communicator) {
    let (rank, size) = (comm.rank(), comm.size());
    for &n in LENGTHS.iter().filter(|&&n| n < 100_000 || size <= 4) {
        sums(comm, n);
        update(comm, n);
    }
    for each in (1..=size).filter(|each| size.is_multiple_of(*each)) {
        groups(comm, each);
    }
    for root in [0, size - 1] {
        for n in [0, 1, 5_000, 2_500_000] {
            let mut bytes = if rank == root { pattern(root, n) } else { vec![9; 3] };
            comm.broadcast(root, &mut bytes).unwrap();
            assert!(bytes == pattern(root, n), "broadcast of {n} bytes from {root} to {rank}");
        }
    }
    for unit in [0, 1, 1_000, 400_000] {
        let all = comm.all_gather(&pattern(rank, rank * unit)).unwrap();
        assert_eq!(all.len(), size);
        for (r, bytes) in all.iter().enumerate() {
            assert!(*bytes == pattern(r, r * unit), "gather of {} bytes from {r}", r * unit);
        }
    }
    for _ in 0..20 {
        comm.barrier().unwrap();
    }
}

/// Sums of `n` numbers of every kind, right and the same bits everywhere.
pub fn sums(comm: &mut dyn Communicator, n: usize) {
    let (rank, size) = (comm.rank(), comm.size());
    // Not representable exactly, so that another order of summation would show in the last bits.
    let term = |r: usize, i: usize| ((i * 7 + r * 13 + 1) as f64).sqrt() * 0.1;
    let mut x: Vec<f64> = (0..n).map(|i| term(rank, i)).collect();
    comm.all_reduce_sum_f64(&mut x).unwrap();
    for (i, &found) in x.iter().enumerate() {
        let want: f64 = (0..size).map(|r| term(r, i)).sum();
        assert!(
            (found - want).abs() <= 1e-14 * want.abs() * size as f64,
            "element {i} of {n}: {found} not {want}"
        );
    }
    same_bits_everywhere(comm, bytes_of(&x));
    let mut again: Vec<f64> = (0..n).map(|i| term(rank, i)).collect();
    comm.all_reduce_sum_f64(&mut again).unwrap();
    assert!(bytes_of(&x) == bytes_of(&again), "the same sum twice has the same bits");

    let mut y: Vec<f32> = (0..n).map(|i| term(rank, i) as f32).collect();
    comm.all_reduce_sum_f32(&mut y).unwrap();
    for (i, &found) in y.iter().enumerate() {
        let want: f64 = (0..size).map(|r| term(r, i)).sum();
        assert!((f64::from(found) - want).abs() <= 1e-6 * want * size as f64, "f32 element {i}");
    }
    same_bits_everywhere(comm, bytes_of(&y));

    let big = |r: usize, i: usize| (i as i64).wrapping_mul(0x1234_5678_9abc_def1).wrapping_add(r as i64);
    let mut z: Vec<i64> = (0..n).map(|i| big(rank, i)).collect();
    comm.all_reduce_sum_i64(&mut z).unwrap();
    for (i, &found) in z.iter().enumerate() {
        let want = (0..size).fold(0i64, |sum, r| sum.wrapping_add(big(r, i)));
        assert_eq!(found, want, "i64 element {i}");
    }
}

/// Sums within groups: right, the same bits within a group, and no group waits for another.
pub fn groups(comm: &mut dyn Communicator, each: usize) {
    let rank = comm.rank();
    comm.form_groups(each).unwrap();
    let first = rank - rank % each;
    let term = |r: usize, i: usize| ((i * 5 + r * 11 + 1) as f64).sqrt() * 0.1;
    // The groups differ in what they sum up, and how often.
    for n in [0, 1, 586, 40_000].into_iter().cycle().take(1 + 4 * (1 + rank / each % 2)) {
        let n = n + rank / each;
        let mut x: Vec<f64> = (0..n).map(|i| term(rank, i)).collect();
        comm.all_reduce_group_f64(&mut x).unwrap();
        for (i, &found) in x.iter().enumerate() {
            let want: f64 = (first..first + each).map(|r| term(r, i)).sum();
            assert!(
                (found - want).abs() <= 1e-14 * want * each as f64,
                "element {i} of {n}: {found} not {want}"
            );
        }
    }
    let mut x: Vec<f64> = (0..10_000).map(|i| term(rank, i)).collect();
    comm.all_reduce_group_f64(&mut x).unwrap();
    let hashes = comm.all_gather(&xxhash_rust::xxh3::xxh3_64(bytes_of(&x)).to_le_bytes()).unwrap();
    assert!(
        hashes[first..first + each].iter().all(|h| *h == hashes[first]),
        "a group differs in the bits of a sum"
    );
    comm.barrier().unwrap();
}

/// Three updates of a vector of `n` numbers by slices: what the plain sum would make of it, and the same bits everywhere.
pub fn update(comm: &mut dyn Communicator, n: usize) {
    let (rank, size) = (comm.rank(), comm.size());
    let term = |r: usize, i: usize, step: usize| ((i * 7 + r * 13 + step + 1) as f64).sqrt() * 0.1;
    let mut mine = comm.rank_vector(n).unwrap();
    let mut common = comm.common_vector((0..n).map(|i| i as f64).collect()).unwrap();
    let mut want: Vec<f64> = common.to_vec();
    for step in 0..3 {
        mine.iter_mut().enumerate().for_each(|(i, x)| *x = term(rank, i, step));
        comm.reduce_scatter(&mut mine).unwrap();
        let (slice, sums) = (comm.slice(n), mine.sums());
        // In two parts, as several threads would.
        let middle = (slice.start + CELL).min(slice.end);
        for part in [slice.start..middle, middle..slice.end] {
            // SAFETY: parts of the slice of this rank, each once.
            let sums = unsafe { sums.add_up(part.clone()) };
            common[part].iter_mut().zip(sums).for_each(|(x, sum)| *x -= 0.1 * sum);
        }
        comm.all_gather_slices(&mut common).unwrap();
        for (i, want) in want.iter_mut().enumerate() {
            *want -= 0.1 * (0..size).map(|r| term(r, i, step)).sum::<f64>();
        }
    }
    for (i, (found, want)) in common.iter().zip(&want).enumerate() {
        let limit = 1e-14 * size as f64 * (i as f64 + want.abs());
        assert!((found - want).abs() <= limit, "element {i} of {n} on {rank} of {size}: {found} not {want}");
    }
    same_bits_everywhere(comm, bytes_of(&common));
}

fn same_bits_everywhere(comm: &mut dyn Communicator, bytes: &[u8]) {
    let hash = xxhash_rust::xxh3::xxh3_64(bytes).to_le_bytes();
    let hashes = comm.all_gather(&hash).unwrap();
    assert!(hashes.iter().all(|h| h[..] == hash), "ranks differ in the bits of a sum");
}

fn pattern(seed: usize, n: usize) -> Vec<u8> {
    (0..n).map(|i| (i.wrapping_mul(31) + seed * 7 + (i >> 9)) as u8).collect()
}

/// Runs `body` on one thread for each communicator; a panic of any is a panic here.
pub fn on_threads(comms: Vec<Box<dyn Communicator>>, body: impl Fn(&mut dyn Communicator) + Sync) {
    std::thread::scope(|scope| {
        for mut comm in comms {
            let body = &body;
            scope.spawn(move || {
                body(comm.as_mut());
                comm.finish().unwrap();
            });
        }
    });
}

#[test]
fn shared_memory_passes_for_every_number_of_ranks() {
    for &n in RANKS {
        on_threads(super::local_group(n), exercise);
    }
}

#[test]
fn updates_by_slices_are_right_for_any_number_of_ranks_and_cells() {
    for ranks in 1..=34 {
        on_threads(super::local_group(ranks), |comm| {
            for n in [1, (ranks - 1) * CELL + 1, (ranks + 2) * CELL] {
                update(comm, n);
            }
        });
    }
}

#[test]
fn slices_are_whole_cells_and_every_number_has_an_owner() {
    for ranks in [1, 2, 5, 16, 34] {
        for n in [0, 1, CELL, CELL + 1, 10 * CELL - 1, 1_000_001] {
            let slices: Vec<_> = (0..ranks).map(|rank| super::vectors::slice_of(n, ranks, rank)).collect();
            assert_eq!((slices[0].start, slices[ranks - 1].end), (0, n));
            assert!(slices.windows(2).all(|two| two[0].end == two[1].start));
            assert!(slices.iter().all(|s| s.start % CELL == 0 || s.start == n));
        }
    }
}

#[test]
fn a_rank_that_ends_in_the_middle_of_an_update_is_named() {
    let options = CommOptions { limit: std::time::Duration::from_secs(2), ..CommOptions::default() };
    std::thread::scope(|scope| {
        for mut comm in super::local_group_with(4, &options) {
            scope.spawn(move || {
                let mut mine = comm.rank_vector(100_000).unwrap();
                let mut common = comm.common_vector(vec![0.0; 100_000]).unwrap();
                comm.reduce_scatter(&mut mine).unwrap();
                if comm.rank() == 2 {
                    return; // its slice never comes
                }
                let error = comm.all_gather_slices(&mut common).unwrap_err();
                assert_eq!(error.message(), "rank 2 died");
                // Who asks again gets the same answer, and is not counted twice.
                let error = comm.all_gather(b"hello").unwrap_err();
                assert_eq!(error.message(), "rank 2 died");
            });
        }
    });
}

#[test]
fn a_rank_that_stops_with_an_error_is_named_with_its_reason() {
    let group = super::local_group(3);
    std::thread::scope(|scope| {
        for mut comm in group {
            scope.spawn(move || {
                if comm.rank() == 1 {
                    comm.abort("disk full");
                    return;
                }
                let error = comm.all_reduce_sum_f64(&mut [1.0]).unwrap_err();
                assert_eq!(error.message(), "rank 1 stopped: disk full");
            });
        }
    });
}

#[test]
fn a_rank_that_stops_is_named_to_its_group_and_to_the_others() {
    std::thread::scope(|scope| {
        for mut comm in super::local_group(4) {
            scope.spawn(move || {
                comm.form_groups(2).unwrap();
                let error = match comm.rank() {
                    3 => return comm.abort("disk full"),
                    2 => comm.all_reduce_group_f64(&mut [1.0]).unwrap_err(),
                    _ => {
                        comm.all_reduce_group_f64(&mut [1.0]).unwrap(); // the other group is whole
                        comm.barrier().unwrap_err()
                    }
                };
                assert_eq!(error.message(), "rank 3 stopped: disk full");
                assert_eq!(comm.all_reduce_group_f64(&mut [1.0]).unwrap_err().message(), error.message());
            });
        }
    });
}

#[test]
fn what_the_others_say_after_they_gave_a_late_rank_up_is_not_what_it_came_for() {
    let short = std::time::Duration::from_millis(100);
    let options = CommOptions { late_limit: short, warn_after: short, ..CommOptions::default() };
    let mut group = super::local_group_with(2, &options);
    let (mut one, mut zero) = (group.pop().unwrap(), group.pop().unwrap());
    let error = zero.all_gather(b"state").unwrap_err();
    assert!(error.message().contains("rank 1"), "{error}");
    for _ in 0..3 {
        assert_eq!(zero.all_gather(error.message().as_bytes()).unwrap_err().message(), error.message());
    }
    assert_eq!(one.all_gather(b"mine").unwrap(), [b"state".as_slice(), b"mine"]);
    one.barrier().unwrap_err();
}

#[test]
fn a_rank_that_leaves_early_is_named() {
    let options = CommOptions { limit: std::time::Duration::from_secs(2), ..CommOptions::default() };
    let mut group = super::local_group_with(2, &options);
    drop(group.pop());
    let error = group[0].barrier().unwrap_err();
    assert_eq!(error.message(), "rank 1 died");
}

#[test]
fn a_rank_that_finishes_while_others_want_more_is_named() {
    let mut group = super::local_group(2);
    let (one, mut zero) = (group.pop().unwrap(), group.pop().unwrap());
    std::thread::scope(|scope| {
        scope.spawn(move || one.finish());
        zero.barrier().unwrap(); // meets the barrier of `finish`
        let error = zero.barrier().unwrap_err();
        assert_eq!(error.message(), "rank 1 finished, but the others still want barrier");
    });
}

#[test]
fn ranks_that_cannot_be_joined_are_refused_with_everything_that_was_tried() {
    let launch = |vars: &'static [(&str, &str)]| {
        let env = |name: &str| vars.iter().find(|(n, _)| *n == name).map(|(_, v)| v.to_string());
        crate::launch::Launch::detect(&env, "here").unwrap()
    };
    // srun over two hosts without MPI: no meeting place, so nothing is touched.
    let srun = launch(&[
        ("SLURM_STEP_ID", "0"),
        ("SLURM_PROCID", "1"),
        ("SLURM_NTASKS", "4"),
        ("SLURM_LOCALID", "1"),
        ("SLURM_NODEID", "0"),
        ("SLURM_TASKS_PER_NODE", "2(x2)"),
    ]);
    let error = super::connect(&srun, &CommOptions::default()).err().expect("there is no way to join these");
    let message = error.message();
    assert!(message.starts_with("srun launched 4 ranks, but they cannot be joined"), "{message}");
    for engine in
        ["mpi: srun does not start MPI programs", "shm: srun offers no meeting place", "tcp: srun offers"]
    {
        assert!(message.contains(engine), "{engine:?} is not in {message}");
    }
    assert!(error.advice().is_some());

    let asking_for = |name: &str| {
        let options = CommOptions { engine: Some(name.into()), ..CommOptions::default() };
        super::connect(&srun, &options).err().expect("these cannot be joined")
    };
    let error = asking_for("pigeon");
    assert!(error.message().contains("no engine of that name (there are solo, mpi, shm, tcp"), "{error}");
    let error = asking_for("gloo");
    if cfg!(feature = "gloo") {
        assert!(error.message().contains("gloo: srun offers no meeting place"), "{error}");
    } else {
        assert!(error.message().contains("no engine of that name"), "{error}");
        assert!(error.advice().is_some_and(|advice| advice.contains("--features gloo")), "{error}");
    }
}

#[test]
fn one_rank_is_solo_whatever_engine_is_asked_for() {
    let launch = crate::launch::Launch::detect(&|_| None, "here").unwrap();
    let options = CommOptions { engine: Some("mpi".into()), ..CommOptions::default() };
    let mut comm = super::connect(&launch, &options).unwrap();
    assert_eq!((comm.name(), comm.size()), ("solo", 1));
    exercise(comm.as_mut());
}
