//! Real launchers start this very test program as their ranks: see `child_entry`.
//!
//! A launcher that is not installed is skipped by name. `PHALANX_TEST_LAUNCHERS` may list folders (separated by `:`)
//! to look in before the usual ones, such as the `bin` of a Python environment with other versions.

mod common;

use common::{Job, answers, find, for_open_mpi, free_port, gone, skip};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use phalanx::Result;
use phalanx::comm::vectors::{CommonVector, RankVector};
use phalanx::comm::{self, CommOptions, Communicator};
use phalanx::launch::Launch;

/// Says to `child_entry` that it is a rank, and what to do.
const TASK: &str = "PHALANX_TEST_TASK";

// ---------------------------------------------------------------------------------------------------- the ranks

/// Not a test by itself: what each rank runs.
#[test]
fn child_entry() {
    let Ok(task) = std::env::var(TASK) else { return };
    let launch = Launch::of_this_process().unwrap_or_else(|e| fail(&e));
    let options = CommOptions::from_env(&|name| std::env::var(name).ok()).unwrap_or_else(|e| fail(&e));
    let mut comm = comm::connect(&launch, &options).unwrap_or_else(|e| fail(&e));
    let (rank, size) = (comm.rank(), comm.size());
    match task.as_str() {
        "sum" => sum(comm.as_mut()),
        "time" => time(comm.as_mut()),
        "forever" => forever(comm.as_mut()),
        other => panic!("unknown task {other}"),
    }
    say(&format!("OK rank {rank} of {size}: {} over {}", launch.launcher, comm.name()));
    comm.finish().unwrap_or_else(|e| fail(&e));
}

/// One write for one line, so that lines of ranks do not mix.
fn say(line: &str) {
    use std::io::Write;
    let _ = std::io::stdout().write_all(format!("\n{line}\n").as_bytes());
}

fn fail(error: &phalanx::error::Error) -> ! {
    say(&format!("ERROR {error}"));
    std::process::exit(3)
}

fn sum(comm: &mut dyn Communicator) {
    let (rank, size) = (comm.rank(), comm.size());
    for n in [0, 1, 7, 5_000, 300_001] {
        let term = |r: usize, i: usize| ((i * 7 + r * 13 + 1) as f64).sqrt() * 0.1;
        let mut x: Vec<f64> = (0..n).map(|i| term(rank, i)).collect();
        comm.all_reduce_sum_f64(&mut x).unwrap();
        for (i, found) in x.iter().enumerate() {
            let want: f64 = (0..size).map(|r| term(r, i)).sum();
            assert!((found - want).abs() <= 1e-13 * want, "element {i} of {n}: {found}, not {want}");
        }
        let bits: Vec<u8> = x.iter().flat_map(|v| v.to_bits().to_le_bytes()).collect();
        let all = comm.all_gather(&bits).unwrap();
        assert!(all.iter().all(|other| *other == bits), "ranks differ in the bits of a sum");
    }
    let mut exact = [i64::MAX - 5, rank as i64];
    comm.all_reduce_sum_i64(&mut exact).unwrap();
    assert_eq!(exact[1], (size * (size - 1) / 2) as i64);
    let mut single = [0.5f32; 3];
    comm.all_reduce_sum_f32(&mut single).unwrap();
    assert_eq!(single, [0.5 * size as f32; 3]);
    let mut bytes = vec![rank as u8; 10 * rank];
    comm.broadcast(size - 1, &mut bytes).unwrap();
    assert_eq!(bytes, vec![size as u8 - 1; 10 * (size - 1)]);
    let all = comm.all_gather(&vec![rank as u8; rank]).unwrap();
    assert!(all.iter().enumerate().all(|(r, bytes)| *bytes == vec![r as u8; r]));
    comm.barrier().unwrap();
    for n in [0, 1, 5_000, 300_001] {
        let (mut mine, mut common) =
            (comm.rank_vector(n).unwrap(), comm.common_vector(vec![1.0; n]).unwrap());
        for step in 0..3 {
            update(comm, &mut mine, &mut common, step as f64).unwrap();
        }
        let want = 1.0 + (3 * size + 3 * size * (size - 1) / 2) as f64;
        assert!(common.iter().all(|&x| x == want), "{n} numbers, not all of them {want}");
    }
}

/// One update of `n` numbers, of which each rank changes its slice: adds the sum over ranks of `x + rank`.
fn update(
    comm: &mut dyn Communicator,
    mine: &mut RankVector,
    common: &mut CommonVector,
    x: f64,
) -> Result<()> {
    let rank = comm.rank() as f64;
    mine.iter_mut().for_each(|term| *term = x + rank);
    comm.reduce_scatter(mine)?;
    let slice = comm.slice(mine.len());
    let sums = mine.sums();
    // SAFETY: the slice of this rank, once.
    let sums = unsafe { sums.add_up(slice.clone()) };
    common[slice].iter_mut().zip(sums).for_each(|(x, sum)| *x += sum);
    comm.all_gather_slices(common)
}

/// All-reduce of the stock network's gradient, and the exchanges of an update with it.
fn time(comm: &mut dyn Communicator) {
    let mut x = vec![1e-9; 1_000_000];
    let mut times: Vec<f64> = (0..60)
        .map(|_| {
            comm.barrier().unwrap();
            let start = Instant::now();
            comm.all_reduce_sum_f64(&mut x).unwrap();
            start.elapsed().as_secs_f64() * 1e3
        })
        .collect();
    times.sort_by(f64::total_cmp);
    let mut short: Vec<f64> = (0..300)
        .map(|_| {
            let start = Instant::now();
            comm.all_reduce_sum_f64(&mut x[..8]).unwrap();
            start.elapsed().as_secs_f64() * 1e6
        })
        .collect();
    short.sort_by(f64::total_cmp);
    let n = x.len();
    let (mut mine, mut common) = (comm.rank_vector(n).unwrap(), comm.common_vector(x).unwrap());
    let mut updates: Vec<f64> = (0..60)
        .map(|_| {
            comm.barrier().unwrap();
            let start = Instant::now();
            comm.reduce_scatter(&mut mine).unwrap();
            let (slice, sums) = (comm.slice(n), mine.sums());
            // SAFETY: the slice of this rank, once.
            common[slice.clone()].copy_from_slice(unsafe { sums.add_up(slice) });
            comm.all_gather_slices(&mut common).unwrap();
            start.elapsed().as_secs_f64() * 1e3
        })
        .collect();
    updates.sort_by(f64::total_cmp);
    say(&format!(
        "TIME {}: 1.0 M f64: all-reduce median {:.2} ms, best {:.2} ms; update median {:.2} ms, best {:.2} ms; \
         8 f64: median {:.1} us",
        comm.name(),
        times[30],
        times[0],
        updates[30],
        updates[0],
        short[150]
    ));
}

/// Updates and sums until something happens; says the process of each rank, so that the test can strike one.
fn forever(comm: &mut dyn Communicator) {
    let mut x = vec![1.0; 50_000];
    let (mut mine, mut common) = (comm.rank_vector(50_000).unwrap(), comm.common_vector(x.clone()).unwrap());
    say(&format!("PID {} {}", comm.rank(), std::process::id()));
    loop {
        std::thread::sleep(Duration::from_millis(1));
        let done = update(comm, &mut mine, &mut common, 1.0).and_then(|()| comm.all_reduce_sum_f64(&mut x));
        if let Err(error) = done {
            comm.abort(error.message());
            fail(&error);
        }
        x.fill(1.0);
    }
}

// ------------------------------------------------------------------------------------------------- the launchers

/// One way to start ranks.
struct Case {
    name: &'static str,
    /// Program names, best first.
    programs: &'static [&'static str],
    /// Arguments before the program; `{n}` is the number of ranks.
    args: &'static str,
    env: &'static [(&'static str, &'static str)],
    /// What the ranks must say of how they are joined.
    engine: &'static str,
}

const CASES: &[Case] = &[
    Case {
        name: "Open MPI's mpirun",
        programs: &["mpirun.openmpi", "orterun"],
        args: "-np {n}",
        env: &[],
        engine: ", shared memory",
    },
    Case {
        name: "Open MPI's messages",
        programs: &["mpirun.openmpi", "orterun"],
        args: "-np {n}",
        env: &[("PHALANX_COMM", "mpi")],
        engine: "mpi (Open MPI",
    },
    Case {
        name: "MPICH's mpirun",
        programs: &["mpirun.mpich", "mpiexec.hydra"],
        args: "-l -launcher=fork -hosts=localhost -n {n}",
        env: &[],
        engine: ", shared memory",
    },
    Case {
        name: "MPICH's messages",
        programs: &["mpirun.mpich", "mpiexec.hydra"],
        args: "-l -launcher=fork -hosts=localhost -n {n}",
        env: &[("PHALANX_COMM", "mpi")],
        engine: "mpi (",
    },
    Case {
        name: "torchrun on one host",
        programs: &["torchrun"],
        args: "--nproc_per_node={n} --master_port={port} --no-python",
        env: &[],
        engine: "shared memory",
    },
    Case {
        name: "torchrun over TCP",
        programs: &["torchrun"],
        args: "--nproc_per_node={n} --rdzv_backend=c10d --rdzv_endpoint=localhost:{port} --no-python",
        env: &[("PHALANX_COMM", "tcp")],
        engine: "TCP",
    },
    #[cfg(feature = "gloo")]
    Case {
        name: "torchrun over Gloo",
        programs: &["torchrun"],
        args: "--nproc_per_node={n} --rdzv_backend=c10d --rdzv_endpoint=localhost:{port} --no-python",
        env: &[("PHALANX_COMM", "gloo")],
        engine: "Gloo",
    },
    #[cfg(feature = "gloo")]
    Case {
        name: "horovodrun over Gloo",
        programs: &["horovodrun"],
        args: "-np {n} --gloo",
        env: &[("PHALANX_COMM", "gloo")],
        engine: "Gloo",
    },
    Case {
        name: "horovodrun",
        programs: &["horovodrun"],
        args: "-np {n} --gloo",
        env: &[],
        engine: "shared memory",
    },
    Case {
        name: "srun without MPI",
        programs: &["srun"],
        args: "-n {n} --overcommit --mpi=none",
        env: &[],
        engine: "shared memory",
    },
    Case {
        name: "srun with pmi2",
        programs: &["srun"],
        args: "-n {n} --overcommit --mpi=pmi2",
        env: &[],
        engine: "mpi (MPICH",
    },
    Case {
        name: "mpirun without an MPI library",
        programs: &["mpirun.openmpi", "orterun", "mpirun.mpich"],
        args: "-np {n}",
        env: &[("PHALANX_COMM", "shm")],
        engine: "shared memory",
    },
];

impl Case {
    /// The command for `n` ranks, or `None`, skipped by name, if the launcher is not installed.
    fn command(&self, n: usize, task: &str) -> Option<Command> {
        let Some(program) = self.programs.iter().find_map(|name| find(name)) else {
            skip(format!("{} is not installed ({})", self.name, self.programs.join(", ")));
            return None;
        };
        if program.ends_with("srun") && !answers(&program) {
            skip(format!("{}: no Slurm controller answers", self.name));
            return None;
        }
        let mut command = Command::new(program);
        let args = self.args.replace("{n}", &n.to_string()).replace("{port}", &free_port().to_string());
        command.args(args.split_whitespace());
        command.arg(std::env::current_exe().unwrap()).args(["--exact", "child_entry", "--nocapture"]);
        command.env(TASK, task).env("PHALANX_COMM_LIMIT", "3").env("PHALANX_COMM_WARN", "1");
        command.env("XDG_CONFIG_HOME", concat!(env!("CARGO_TARGET_TMPDIR"), "/settings"));
        for_open_mpi(&mut command);
        command.envs(self.env.iter().copied());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Some(command)
    }
}

// ----------------------------------------------------------------------------------------------------- the tests

#[test]
fn every_launcher_joins_its_ranks() {
    for case in CASES {
        for n in [2, 3] {
            let Some(command) = case.command(n, "sum") else { break };
            let mut job = Job::start(command);
            let good = job.end(Duration::from_secs(40));
            let said = job.said.join("\n");
            assert!(good, "{} with {n} ranks failed:\n{said}", case.name);
            for rank in 0..n {
                let want = format!("OK rank {rank} of {n}: ");
                let line = job.lines_with(&want).next();
                let line = line.unwrap_or_else(|| panic!("{}: no line {want:?} in\n{said}", case.name));
                assert!(line.contains(case.engine), "{}: {line}", case.name);
            }
        }
    }
}

/// Engines for ranks whose variables are set by hand, as `PHALANX_COMM` knows them and as the ranks name them.
const BY_HAND: &[(&str, &str)] = &[
    ("shm", "shared memory"),
    ("tcp", "TCP"),
    #[cfg(feature = "gloo")]
    ("gloo", "Gloo"),
];

fn start_by_hand(rank: usize, size: usize, port: u16, engine: &str, task: &str) -> Job {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "child_entry", "--nocapture"]).env(TASK, task).env("PHALANX_COMM", engine);
    command.env("RANK", rank.to_string()).env("WORLD_SIZE", size.to_string());
    command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", port.to_string());
    command.env("PHALANX_COMM_LIMIT", "3").env("PHALANX_COMM_WARN", "1");
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    Job::start(command)
}

#[test]
fn variables_set_by_hand_join_ranks_through_rank_zero() {
    for (engine, name) in BY_HAND {
        for size in [2, 5] {
            let port = free_port();
            let jobs: Vec<Job> = (0..size).map(|r| start_by_hand(r, size, port, engine, "sum")).collect();
            for mut job in jobs {
                assert!(job.end(Duration::from_secs(20)), "{engine}: {}", job.said.join("\n"));
                assert_eq!(job.lines_with(&format!("of {size}: torchrun over {name}")).count(), 1);
            }
        }
    }
}

/// No launcher in between that would end the others: each of them must notice by itself.
#[test]
fn ranks_by_hand_name_the_one_that_dies_or_stops() {
    for (engine, _) in BY_HAND {
        for (signal, verdict) in
            [(libc::SIGKILL, "rank 1 died"), (libc::SIGSTOP, "rank 1 gave no sign of life")]
        {
            let port = free_port();
            let mut jobs: Vec<Job> = (0..3).map(|r| start_by_hand(r, 3, port, engine, "forever")).collect();
            for job in &mut jobs {
                assert!(job.listen(Duration::from_secs(20), |said| said.iter().any(|l| l.contains("PID "))));
            }
            let victim = jobs[1].child.id() as i32;
            // SAFETY: a signal to a process of ours.
            unsafe { libc::kill(victim, signal) };
            for rank in [0, 2] {
                assert!(!jobs[rank].end(Duration::from_secs(10)), "{engine}: rank {rank} ended well");
                let said = jobs[rank].said.join("\n");
                assert!(said.contains(verdict), "{engine}: rank {rank}: {verdict:?} is not in\n{said}");
            }
            // SAFETY: as above; it may be stopped still.
            unsafe { libc::kill(victim, libc::SIGKILL) };
            jobs[1].end(Duration::from_secs(10));
        }
    }
}

/// kill -9 and SIGSTOP of one rank in a loop of sums: the others name it and end, and nobody stays behind.
#[test]
fn a_rank_that_dies_or_stops_ends_the_job_and_is_named() {
    // The launcher itself ends the job after a kill, often before a rank can speak; a stop it does not notice.
    for case in CASES {
        for (signal, verdict) in
            [(libc::SIGKILL, "rank 1 died"), (libc::SIGSTOP, "rank 1 gave no sign of life")]
        {
            let Some(command) = case.command(3, "forever") else { break };
            let mut job = Job::start(command);
            let pids = |said: &[String]| -> Vec<(usize, i32)> {
                let pid = |line: &String| {
                    let mut words = line.split("PID ").nth(1)?.split_whitespace();
                    Some((words.next()?.parse().ok()?, words.next()?.parse().ok()?))
                };
                said.iter().filter_map(pid).collect()
            };
            assert!(job.listen(Duration::from_secs(30), |said| pids(said).len() == 3), "{:?}", job.said);
            let pids = pids(&job.said);
            let victim = pids.iter().find(|(rank, _)| *rank == 1).unwrap().1;
            // SAFETY: a signal to a process of ours.
            unsafe { libc::kill(victim, signal) };
            let struck = Instant::now();
            let named = job.listen(Duration::from_secs(8), |said| {
                said.iter().any(|line| line.contains("ERROR") && line.contains(verdict))
            });
            let took = struck.elapsed();
            if signal == libc::SIGSTOP {
                // Launchers wait for a stopped process after their polite signal.
                std::thread::sleep(Duration::from_millis(200));
                // SAFETY: as above.
                unsafe { libc::kill(victim, libc::SIGCONT) };
            }
            assert!(!job.end(Duration::from_secs(40)), "{}: the job succeeded", case.name);
            println!("{}: signal {signal}: named {named} after {took:.1?}", case.name);
            assert!(
                named || signal == libc::SIGKILL,
                "{}: {verdict:?} is not in\n{}",
                case.name,
                job.said.join("\n")
            );
            for (rank, pid) in pids {
                assert!(gone(pid), "{}: rank {rank} is still there", case.name);
            }
        }
    }
}

/// The library of the other mpirun would see a world of one: N silent copies. It must be refused.
#[test]
fn the_wrong_mpi_library_is_refused() {
    let case = &CASES[0];
    let library = "libmpich.so.12";
    // SAFETY: only asks whether the loader finds it.
    if unsafe { libloading::Library::new(library) }.is_err() {
        skip(format!("{library} is not installed"));
        return;
    }
    let Some(mut command) = case.command(2, "sum") else { return };
    command.env("PHALANX_MPI_LIBRARY", library);
    let mut job = Job::start(command);
    assert!(!job.end(Duration::from_secs(30)));
    let said = job.said.join("\n");
    assert!(said.contains("mpirun (Open MPI) launched 2 ranks, but they cannot be joined"), "{said}");
    assert!(said.contains("sees rank 0 of 1"), "{said}");
    assert!(!said.contains("OK rank"), "{said}");
}

/// Not a test of correctness: prints what an all-reduce costs. `cargo test --release --test launchers -- --ignored --nocapture`
#[test]
#[ignore = "prints timings"]
fn timings() {
    for (engine, _) in BY_HAND {
        let port = free_port();
        let jobs: Vec<Job> = (0..2).map(|r| start_by_hand(r, 2, port, engine, "time")).collect();
        for (rank, mut job) in jobs.into_iter().enumerate() {
            job.end(Duration::from_secs(60));
            job.lines_with("TIME").take(1 - rank).for_each(|line| println!("by hand, {engine}: {line}"));
        }
    }
    for case in CASES {
        let Some(command) = case.command(2, "time") else { continue };
        let mut job = Job::start(command);
        job.end(Duration::from_secs(60));
        job.lines_with("TIME").take(1).for_each(|line| println!("{}: {line}", case.name));
    }
}
