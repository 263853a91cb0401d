//! Ranks that come late, pause while they connect, or are not of the job.

use crate::common::place::{LONG, Place, errors, my_turn, said, succeed};
use crate::common::{Job, free_port, gone};
use serde_json::json;
use std::time::{Duration, Instant};

/// One rank by hand, in its own folder.
fn rank(place: &Place, rank: usize, size: usize, port: u16, more: &[(&str, &str)]) -> Job {
    let (rank, size, port) = (rank.to_string(), size.to_string(), port.to_string());
    let mut env = vec![
        ("RANK", rank.as_str()),
        ("LOCAL_RANK", &rank),
        ("WORLD_SIZE", &size),
        ("LOCAL_WORLD_SIZE", &size),
        ("MASTER_ADDR", "127.0.0.1"),
        ("MASTER_PORT", &port),
    ];
    env.extend(more);
    place.alone("train input.json", &env)
}

/// All end badly; what they said.
#[track_caller]
fn all_fail(jobs: &mut [Job]) -> String {
    for job in &mut *jobs {
        assert!(!job.end(LONG), "a rank ended well:\n{}", said(job));
    }
    let all = jobs.iter().map(said).collect::<Vec<_>>().join("\n");
    assert!(!all.contains("panicked"), "{all}");
    assert!(errors(jobs) >= 1, "{all}");
    all
}

#[test]
fn a_rank_may_be_late_by_less_than_the_limit_and_pause_while_it_connects() {
    let _turn = my_turn();
    let place = Place::new(&[]);
    let (port, limit) = (free_port(), ("PHALANX_COMM_LIMIT", "20"));
    let tcp = [limit, ("PHALANX_COMM", "tcp")];
    let mut jobs: Vec<Job> = (0..2).map(|r| rank(&place, r, 3, port, &tcp)).collect();
    std::thread::sleep(Duration::from_millis(1500));
    jobs.push(rank(&place, 2, 3, port, &tcp));
    // Rank 0 pauses for longer than a dialler waits for one address, wherever it is just now.
    std::thread::sleep(Duration::from_millis(30));
    let pid = jobs[0].child.id() as i32;
    // SAFETY: signals to a process that this test started.
    unsafe { libc::kill(pid, libc::SIGSTOP) };
    std::thread::sleep(Duration::from_millis(3500));
    // SAFETY: as above.
    unsafe { libc::kill(pid, libc::SIGCONT) };
    jobs.iter_mut().for_each(succeed);
    assert_eq!(place.curve().len(), 5);
}

#[test]
fn a_rank_that_comes_after_the_limit_and_those_that_waited_all_say_why() {
    let _turn = my_turn();
    let place = Place::new(&[]);
    let (port, limit) = (free_port(), [("PHALANX_COMM_LIMIT", "3")]);
    let began = Instant::now();
    let mut early: Vec<Job> = (0..2).map(|r| rank(&place, r, 3, port, &limit)).collect();
    let all = all_fail(&mut early);
    assert!(all.contains("rank 2 did not come to the meeting place"), "{all}");
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
    let limit = [("PHALANX_COMM_LIMIT", "1")];
    let late = all_fail(&mut [rank(&place, 2, 3, port, &limit)]);
    assert!(late.contains("cannot reach rank 0 at MASTER_PORT"), "{late}");
    assert_eq!(place.written(), [""; 0]);
}

/// Two jobs on one port: each of them trains what it was asked to, or says that it cannot.
#[test]
fn two_jobs_at_one_port_are_told_apart() {
    let _turn = my_turn();
    let (one, other) = (Place::new(&[]), Place::new(&[("/training/seed", json!(7))]));
    let (port, limit) = (free_port(), [("PHALANX_COMM_LIMIT", "20")]);
    let mut first = vec![rank(&one, 0, 2, port, &limit)];
    std::thread::sleep(Duration::from_millis(300));
    let mut second: Vec<Job> = (0..2).map(|r| rank(&other, r, 2, port, &limit)).collect();
    let refused = all_fail(&mut second);
    assert!(refused.contains("rank 1 is not of the job of rank 0: its input is"), "{refused}");
    assert!(refused.contains(&format!("MASTER_PORT={port}")), "{refused}");
    first.push(rank(&one, 1, 2, port, &limit));
    first.iter_mut().for_each(succeed);
    assert_eq!(one.curve().len(), 5);
    assert_eq!(other.written(), [""; 0]);
}

#[test]
fn ranks_with_other_data_or_another_task_are_refused_by_name() {
    let _turn = my_turn();
    for (engine, fault) in [("shm", "data"), ("tcp", "numbers"), ("shm", "task")] {
        let (one, other) = (Place::new(&[]), Place::new(&[]));
        let set = |name: &str| other.path("a/set.000").join(name);
        let (flags, wanted) = match fault {
            "data" => {
                std::fs::remove_dir_all(other.path("a")).unwrap();
                std::fs::rename(other.path("b"), other.path("a")).unwrap();
                std::fs::create_dir_all(other.path("b")).unwrap();
                crate::common::copy(&one.path("b"), &other.path("b"));
                (
                    "",
                    "training.training_data: rank 1 sees other data than rank 0: system 0 has 3 frames of 12 atoms",
                )
            }
            "numbers" => {
                let mut bytes = std::fs::read(set("energy.npy")).unwrap();
                let last = bytes.len() - 3;
                bytes[last] ^= 1;
                std::fs::write(set("energy.npy"), bytes).unwrap();
                (
                    "",
                    "training.training_data: rank 1 sees other data than rank 0: system 0 has 5 frames of 12 atoms",
                )
            }
            _ => (
                " --skip-neighbor-stat",
                "rank 1 is not of the job of rank 0: its task is dp train, from the start --skip",
            ),
        };
        let port = free_port().to_string();
        let start = |place: &Place, rank: &str, flags: &str| {
            let env = [
                ("RANK", rank),
                ("LOCAL_RANK", rank),
                ("WORLD_SIZE", "2"),
                ("LOCAL_WORLD_SIZE", "2"),
                ("MASTER_ADDR", "localhost"),
                ("MASTER_PORT", &port),
                ("PHALANX_COMM", engine),
                ("PHALANX_COMM_LIMIT", "2"),
            ];
            place.alone(&format!("train input.json{flags}"), &env)
        };
        let mut jobs = [start(&one, "0", ""), start(&other, "1", flags)];
        let all = all_fail(&mut jobs);
        assert!(all.contains(wanted), "{fault}: {wanted:?} in\n{all}");
        assert_eq!(one.written(), [""; 0], "{fault}");
    }
}

/// A rank that is stopped before MPI has started keeps all others inside MPI_Init.
#[test]
fn a_rank_that_is_stopped_inside_mpi_init_is_named() {
    let _turn = my_turn();
    for line in ["mpirun.openmpi -np 3", "mpirun.mpich -launcher=fork -hosts=localhost -np 3"] {
        let place = Place::new(&[]);
        let env = [("PHALANX_COMM_LIMIT", "3")];
        let Some(mut job) = place.launched(line, "train input.json", &env) else { continue };
        let deadline = Instant::now() + LONG;
        let victim = loop {
            if let Some((_, pid)) = place.ranks().into_iter().find(|(rank, _)| *rank == 1) {
                break pid;
            }
            assert!(Instant::now() < deadline, "no rank 1: {}", said(&job));
            std::thread::sleep(Duration::from_millis(1));
        };
        // SAFETY: signals to a process that this test started.
        unsafe { libc::kill(victim, libc::SIGSTOP) };
        let named = job.listen(Duration::from_secs(15), |said| {
            said.iter().any(|line| line.contains("MPI did not start within 3 s: rank 1 is stopped (process"))
        });
        assert!(named, "{line}: {}", said(&job));
        // SAFETY: as above.
        unsafe { libc::kill(victim, libc::SIGKILL) };
        assert!(!job.end(LONG));
        assert!(gone(victim));
        assert_eq!(errors(&[job]), 1, "one of them tells");
    }
}

/// Launchers end all ranks as soon as one has died, and it can be told which one: a rank names it before, the launcher does, or the
/// launcher gives the process, and the log says whose it is.
#[test]
fn a_rank_that_dies_under_a_launcher_can_be_told() {
    let _turn = my_turn();
    for line in ["mpirun.mpich -launcher=fork -hosts=localhost -np 3", "mpirun.openmpi -np 3"] {
        let place =
            Place::new(&[("/training/numb_steps", json!(100_000_000)), ("/training/save_freq", json!(50))]);
        let Some(mut job) = place.launched(line, "train input.json", &[]) else { continue };
        let deadline = Instant::now() + LONG;
        while !(place.path("model.ckpt.phx").exists() && place.ranks().len() == 3) {
            assert!(Instant::now() < deadline, "{}", said(&job));
            job.listen(Duration::from_millis(20), |_| false);
        }
        let ranks = place.ranks();
        // SAFETY: a signal to a process that this test started.
        unsafe { libc::kill(ranks[1].1, libc::SIGKILL) };
        assert!(!job.end(LONG));
        let pids = ranks.iter().map(|(_, pid)| pid.to_string()).collect::<Vec<_>>().join(", ");
        // Hydra tells a process, and may tell one that it has killed itself when it saw the first one die.
        let by_process = job.lines_with(&format!("processes of ranks 0 to 2: {pids}")).count() == 1
            && ranks.iter().any(|(_, pid)| job.lines_with(&format!("PID {pid} ")).count() > 0);
        let named = ["rank 1 has died", "rank 1 died", "process rank 1"];
        let by_name = named.iter().any(|text| job.lines_with(text).count() > 0);
        println!("{line}: by process {by_process}, by name {by_name}");
        assert!(by_process || by_name, "{line}: {}", said(&job));
    }
}
