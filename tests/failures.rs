//! The real `dp train` as ranks that cannot be joined, make mistakes, die, stop or are asked to end.
//!
//! Everything here takes turns, so that never more than four ranks share the machine.

mod common;

use common::place::{LONG, Place, errors, my_turn, said, succeed};
use common::{Job, free_port, gone, skip};
use serde_json::json;
use std::time::{Duration, Instant};

// ----------------------------------------------------------------------------------------------- refusals, mistakes

/// All ranks end with an error, one of them says why, and nothing is written.
#[track_caller]
fn check_refused(place: &Place, mut jobs: Vec<Job>, texts: &[&str]) {
    let began = Instant::now();
    for job in &mut jobs {
        assert!(!job.end(LONG), "a rank ended well:\n{}", said(job));
    }
    let all = jobs.iter().map(said).collect::<Vec<_>>().join("\n");
    assert!(began.elapsed() < Duration::from_secs(15), "it took {:?}:\n{all}", began.elapsed());
    for text in texts {
        assert!(all.contains(text), "{text:?} in\n{all}");
    }
    assert_eq!(errors(&jobs), 1, "one message, not one for each rank:\n{all}");
    assert_eq!(place.written(), [""; 0], "{all}");
    assert!(place.ranks().is_empty(), "a rank is still there");
}

#[test]
fn ranks_that_cannot_be_joined_refuse_to_train() {
    let _turn = my_turn();
    let place = Place::new(&[]);
    let train = "train input.json";
    // SAFETY: only asks whether the loader finds it.
    if unsafe { libloading::Library::new("libmpich.so.12") }.is_ok() {
        let env = [("PHALANX_MPI_LIBRARY", "libmpich.so.12")];
        if let Some(job) = place.launched("mpirun.openmpi -np 3", train, &env) {
            check_refused(
                &place,
                vec![job],
                &["launched 3 ranks, but they cannot be joined", "sees rank 0 of 1"],
            );
        }
    } else {
        skip("libmpich.so.12 is not installed");
    }
    if let Some(job) = place.launched("mpirun.openmpi -np 2", train, &[("PHALANX_MPI_LIBRARY", "libno.so")]) {
        check_refused(&place, vec![job], &["PHALANX_MPI_LIBRARY"]);
    }
    let jobs = place.by_hand(3, train, &[("PHALANX_COMM", "nccl")]);
    check_refused(&place, jobs, &["no engine of that name"]);
    // The variables speak of torchrun's store, and nobody serves it.
    let env = [
        ("TORCHELASTIC_RUN_ID", "none"),
        ("TORCHELASTIC_USE_AGENT_STORE", "True"),
        ("PHALANX_COMM_LIMIT", "2"),
    ];
    let jobs = place.by_hand(2, train, &env);
    check_refused(&place, jobs, &["torchrun launched 2 ranks, but they cannot be joined", "127.0.0.1"]);
}

#[test]
fn a_rank_that_never_comes_is_named() {
    let _turn = my_turn();
    let place = Place::new(&[]);
    for absent in [0, 2] {
        let port = free_port().to_string();
        let rank = |rank: usize| {
            let rank = rank.to_string();
            let env = [
                ("RANK", rank.as_str()),
                ("WORLD_SIZE", "3"),
                ("LOCAL_RANK", &rank),
                ("LOCAL_WORLD_SIZE", "3"),
                ("MASTER_ADDR", "127.0.0.1"),
                ("MASTER_PORT", &port),
                ("PHALANX_COMM_LIMIT", "2"),
            ];
            place.alone("train input.json", &env)
        };
        let mut jobs: Vec<Job> = (0..3).filter(|&r| r != absent).map(rank).collect();
        for job in &mut jobs {
            assert!(!job.end(LONG));
        }
        let all = jobs.iter().map(said).collect::<Vec<_>>().join("\n");
        assert!(all.contains(&format!("rank {absent}")), "{absent} in {all}");
        assert!(errors(&jobs) >= 1, "{all}");
        assert_eq!(place.written(), [""; 0], "{all}");
    }
}

#[test]
fn a_mistake_of_the_user_is_told_once_and_nothing_is_overwritten() {
    let _turn = my_turn();
    // JSON pointer and value in the input, flags, environment, what the message must name
    type Mistake<'a> = (&'a str, serde_json::Value, &'a str, &'a [(&'a str, &'a str)], &'a str);
    let cases: [Mistake; 5] = [
        ("/training/training_data/systems", json!(["a", "no_such_system"]), "", &[], "no_such_system"),
        ("/training/numb_stepz", json!(5), "", &[], "numb_stepz"),
        ("/model/descriptor/sel", json!("auto"), "--skip-neighbor-stat", &[], "sel is \"auto\""),
        ("/training/seed", json!(1), "", &[("OMP_NUM_THREADS", "many")], "OMP_NUM_THREADS"),
        ("/training/seed", json!(1), "-l a/set.000", &[], "a/set.000"),
    ];
    for (pointer, value, flags, env, text) in cases {
        let place = Place::new(&[]);
        let kept = ["lcurve.out", "out.json", "model.ckpt.phx", "checkpoint"];
        place.input(&[(pointer, value)]);
        for name in kept {
            std::fs::write(place.path(name), "of an earlier run").unwrap();
        }
        let args = format!("train input.json {flags}");
        let line = "mpirun.openmpi -np 3";
        let mut jobs = match place.launched(line, &args, env) {
            Some(job) => vec![job],
            None => place.by_hand(3, &args, env),
        };
        let began = Instant::now();
        for job in &mut jobs {
            assert!(!job.end(LONG), "{}", said(job));
        }
        let all = jobs.iter().map(said).collect::<Vec<_>>().join("\n");
        assert!(began.elapsed() < Duration::from_secs(10), "{all}");
        assert!(all.contains(text), "{text:?} in\n{all}");
        assert_eq!(errors(&jobs), 1, "{all}");
        assert_eq!(place.written().len(), kept.len(), "{:?}", place.written());
        assert!(kept.iter().all(|name| place.read(name) == "of an earlier run"));
    }
}

// ------------------------------------------------------------------------------------------------------- failure

/// A run that does not end by itself, and saves all the time.
fn endless() -> Place {
    Place::new(&[
        ("/training/numb_steps", json!(100_000_000)),
        ("/training/disp_freq", json!(1000)),
        ("/training/save_freq", json!(50)),
        ("/training/stall_timeout", json!(3)),
    ])
}

/// Waits until `n` ranks train and have saved at least once; their processes.
fn wait_for_training(place: &Place, n: usize, job: &mut Job) -> Vec<(usize, i32)> {
    let deadline = Instant::now() + LONG;
    while !(place.path("model.ckpt.phx").exists() && place.ranks().len() == n) {
        assert!(Instant::now() < deadline, "no checkpoint: {}", said(job));
        job.listen(Duration::from_millis(20), |_| false);
    }
    place.ranks()
}

fn strike(pid: i32, signal: i32) {
    // SAFETY: a signal to a process that this test started.
    assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
}

fn gone_already(pid: i32) -> bool {
    // SAFETY: signal 0 only asks.
    unsafe { libc::kill(pid, 0) != 0 }
}

const FAILING: [&str; 4] = [
    "mpirun.openmpi -np 3",
    "mpirun.mpich -launcher=fork -hosts=localhost -np 3",
    "torchrun --nproc_per_node=3 --master_port={port} --no-python",
    "horovodrun -np 3 --gloo",
];

#[test]
fn a_rank_that_dies_ends_the_job_and_leaves_a_checkpoint() {
    let _turn = my_turn();
    for line in FAILING {
        let place = endless();
        let Some(mut job) = place.launched(line, "train input.json -m workers", &[]) else { continue };
        let ranks = wait_for_training(&place, 3, &mut job);
        strike(ranks[1].1, libc::SIGKILL);
        let began = Instant::now();
        assert!(!job.end(LONG), "{line}: the job ended well");
        let named = job.lines_with("rank 1 died").count();
        println!("{line}: kill -9 of rank 1: ended after {:.1?}, {named} lines name it", began.elapsed());
        for (rank, pid) in ranks {
            assert!(gone(pid), "{line}: rank {rank} is still there");
        }
        assert!(place.checkpoint("model.ckpt").header["step"].as_u64().unwrap() >= 50);
    }
}

/// By hand there is no launcher that ends the others: they have to notice, and say so.
#[test]
fn a_rank_that_dies_or_stops_is_named_by_the_others_within_the_limit() {
    let _turn = my_turn();
    for (engine, signal, verdict) in [
        ("shm", libc::SIGKILL, "rank 1 died"),
        ("tcp", libc::SIGKILL, "rank 1"),
        ("shm", libc::SIGSTOP, "rank 1 gave no sign of life"),
        ("tcp", libc::SIGSTOP, "rank 1 gave no sign of life"),
    ] {
        let place = endless();
        let mut jobs = place.by_hand(3, "train input.json", &[("PHALANX_COMM", engine)]);
        let ranks = wait_for_training(&place, 3, &mut jobs[0]);
        strike(ranks[1].1, signal);
        let began = Instant::now();
        for k in [0, 2] {
            assert!(!jobs[k].end(LONG), "{engine}: {}", said(&jobs[k]));
            assert!(jobs[k].lines_with(verdict).count() > 0, "{engine}: {verdict}: {}", said(&jobs[k]));
        }
        let took = began.elapsed();
        println!("{engine}: signal {signal} to rank 1: the others ended after {took:.1?}");
        assert!(took < Duration::from_secs(8), "{engine}: {took:?}");
        if signal == libc::SIGSTOP {
            let warned = jobs[0].lines_with("WARNING").any(|line| line.contains("rank 1"));
            assert!(warned, "a stall is warned about first: {}", said(&jobs[0]));
            strike(ranks[1].1, libc::SIGCONT);
        }
        assert!(!jobs[1].end(LONG), "the struck rank must not end well");
        assert!(place.checkpoint("model.ckpt").header["step"].as_u64().unwrap() >= 50);
        assert!(place.ranks().is_empty());
    }
}

#[test]
fn a_rank_that_dies_at_the_start_or_in_a_save_ends_the_others() {
    let _turn = my_turn();
    let changes = [
        ("/training/numb_steps", json!(100_000_000)),
        ("/training/disp_freq", json!(1000)),
        ("/training/save_freq", json!(1)),
        ("/training/stall_timeout", json!(3)),
    ];
    for pause_ms in [0, 10, 20, 40] {
        let place = Place::new(&changes);
        let mut jobs = place.by_hand(3, "train input.json", &[]);
        std::thread::sleep(Duration::from_millis(pause_ms));
        jobs[1].child.kill().unwrap();
        let began = Instant::now();
        for job in &mut jobs {
            assert!(!job.end(LONG), "{}", said(job));
        }
        assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
        let all = jobs.iter().map(said).collect::<Vec<_>>().join("\n");
        assert!(all.contains("rank 1"), "after {pause_ms} ms: {all}");
    }
    // Rank 0 writes a checkpoint after every step: whenever it dies, it dies beside or in a save.
    for _ in 0..3 {
        let place = Place::new(&changes);
        let mut jobs = place.by_hand(3, "train input.json", &[]);
        wait_for_training(&place, 3, &mut jobs[0]);
        jobs[0].child.kill().unwrap();
        for job in &mut jobs {
            assert!(!job.end(LONG), "{}", said(job));
        }
        assert!(jobs[2].lines_with("rank 0").count() > 0, "{}", said(&jobs[2]));
        let newest = phalanx::checkpoint::newest_complete(&place.path("model.ckpt")).unwrap().unwrap();
        // The link moves after the file is complete.
        let linked = place.checkpoint("model.ckpt").header["step"].as_u64().unwrap();
        assert!(linked == newest.1 || linked + 1 == newest.1, "{linked} and {}", newest.1);
    }
}

#[test]
fn a_rank_that_stops_under_a_launcher_ends_the_job() {
    let _turn = my_turn();
    for line in FAILING {
        let place = endless();
        let Some(mut job) = place.launched(line, "train input.json -m workers", &[]) else { continue };
        let ranks = wait_for_training(&place, 3, &mut job);
        strike(ranks[2].1, libc::SIGSTOP);
        let began = Instant::now();
        let named = job.listen(Duration::from_secs(10), |said| {
            said.iter().any(|line| line.contains("rank 2 gave no sign of life"))
        });
        assert!(named, "{line}: {}", said(&job));
        println!("{line}: SIGSTOP of rank 2: named after {:.1?}", began.elapsed());
        for (rank, pid) in &ranks[..2] {
            assert!(gone(*pid), "{line}: rank {rank} is still there");
        }
        println!("{line}: SIGSTOP of rank 2: the others ended after {:.1?}", began.elapsed());
        // Open MPI and Hydra kill a stopped rank at once, horovodrun after 10 s, torchrun after 30 s: cut that short.
        job.listen(Duration::from_millis(500), |_| false);
        if !gone_already(ranks[2].1) {
            strike(ranks[2].1, libc::SIGCONT);
        }
        assert!(!job.end(LONG), "{line}: the job ended well");
        for (rank, pid) in ranks {
            assert!(gone(pid), "{line}: rank {rank} is still there");
        }
        place.checkpoint("model.ckpt");
    }
}

/// What each launcher passes on differs; the ranks agree on one step, save it and end in every case.
#[test]
fn sigterm_to_the_launcher_saves_one_step_of_all_ranks() {
    let _turn = my_turn();
    for line in FAILING {
        let place = endless();
        place.input(&[
            ("/training/numb_steps", json!(100_000_000)),
            ("/training/save_freq", json!(1_000_000)),
            ("/training/disp_freq", json!(1000)),
        ]);
        let Some(mut job) = place.launched(line, "train input.json -m workers", &[]) else { continue };
        let trains =
            |said: &[String]| said.iter().filter(|line| line.contains("Batch       1: tr")).count() >= 3;
        assert!(job.listen(LONG, trains), "{}", said(&job));
        let ranks = place.ranks();
        strike(job.child.id() as i32, libc::SIGTERM);
        let began = Instant::now();
        let good = job.end(LONG);
        println!("{line}: SIGTERM: ended after {:.1?}, launcher's status {good}", began.elapsed());
        for (rank, pid) in ranks {
            assert!(gone(pid), "{line}: rank {rank} is still there");
        }
        let step = place.checkpoint("model.ckpt").header["step"].as_u64().unwrap();
        let steps: Vec<&String> = job.lines_with("asked to stop: finished step").collect();
        assert!(!steps.is_empty(), "{line}: {}", said(&job));
        let same = |line: &&String| line.contains(&format!("finished step {step}, saving"));
        assert!(steps.iter().all(same), "{line}: {steps:?}");
    }
}

/// Without a launcher in between: a signal to one rank is a request to all, and all end alike.
#[test]
fn sigterm_to_one_rank_ends_all_ranks_at_the_same_step() {
    let _turn = my_turn();
    let place = endless();
    let mut jobs = place.by_hand(3, "train input.json -m workers", &[]);
    let ranks = wait_for_training(&place, 3, &mut jobs[0]);
    strike(ranks[2].1, libc::SIGTERM);
    for job in &mut jobs {
        assert!(!job.end(LONG), "`&&` goes on:\n{}", said(job));
        assert_eq!(job.child.wait().unwrap().code(), Some(143), "{}", said(job));
    }
    let step = &place.checkpoint("model.ckpt").header["step"];
    for job in &jobs {
        let want = format!("asked to stop: finished step {step}, saving");
        assert_eq!(job.lines_with(&want).count(), 1, "{want}: {}", said(job));
    }
}

#[test]
fn torchrun_restarts_a_job_from_its_newest_checkpoint() {
    let _turn = my_turn();
    let place = endless();
    let steps = ("/training/numb_steps", json!(2000));
    place.input(&[steps.clone(), ("/training/disp_freq", json!(100)), ("/training/save_freq", json!(100))]);
    // What an earlier job left under the same name is not to be continued.
    succeed(&mut place.alone("train input.json", &[]));
    let stale = std::fs::metadata(place.path("model.ckpt-2000.phx")).unwrap().modified().unwrap();
    place.input(&[
        ("/training/numb_steps", json!(100_000_000)),
        ("/training/disp_freq", json!(100)),
        ("/training/save_freq", json!(100)),
        ("/training/max_ckpt_keep", json!(3)),
    ]);
    let line = "torchrun --nproc_per_node=2 --max-restarts=1 --monitor-interval=0.1 --master_port={port} --no-python";
    let Some(mut job) = place.launched(line, "--pt train input.json", &[]) else { return };
    let saved_anew = || {
        let modified = std::fs::metadata(place.path("model.ckpt.phx")).and_then(|m| m.modified());
        modified.is_ok_and(|time| time > stale) && place.ranks().len() == 2
    };
    let deadline = Instant::now() + LONG;
    while !saved_anew() {
        assert!(Instant::now() < deadline, "{}", said(&job));
        job.listen(Duration::from_millis(20), |_| false);
    }
    strike(place.ranks()[1].1, libc::SIGKILL);
    let resumed = |said: &[String]| said.iter().any(|line| line.contains("continuing after step"));
    assert!(job.listen(LONG, resumed), "{}", said(&job));
    let line = job.lines_with("has started this job again (1 so far)").next().cloned().unwrap_or_default();
    assert!(line.contains("continuing from its newest complete checkpoint, model.ckpt-"), "{}", said(&job));
    let number = |line: &str, after: &str| -> u64 {
        let rest = line.split(after).nth(1).unwrap();
        rest.chars().take_while(char::is_ascii_digit).collect::<String>().parse().unwrap()
    };
    let step = number(&line, "(step ");
    let continued = job.lines_with("continuing after step").next().unwrap();
    assert_eq!(number(continued, "continuing after step "), step);
    let further =
        |said: &[String]| said.iter().any(|line| line.contains(&format!("Batch {:7}: trn", step + 100)));
    assert!(job.listen(LONG, further), "{}", said(&job));
    strike(job.child.id() as i32, libc::SIGTERM);
    job.end(LONG);
    // The learning curve goes on without a gap or a repetition.
    let steps: Vec<u64> = place.curve().iter().map(|row| row.0).collect();
    let want: Vec<u64> = std::iter::once(1).chain((1..steps.len() as u64).map(|k| 100 * k)).collect();
    assert_eq!(steps, want);
}

/// Two agents of torchrun, which are two hosts to it: the second joins the job, and then goes.
#[test]
fn torchrun_goes_on_with_as_many_batches_when_a_host_joins_or_goes() {
    let _turn = my_turn();
    let place = Place::new(&[
        ("/training/numb_steps", json!(100_000_000)),
        ("/training/disp_freq", json!(100)),
        ("/training/save_freq", json!(100)),
        ("/training/max_ckpt_keep", json!(3)),
        ("/training/gradient_accumulation", json!(2)),
        ("/training/keep_global_batch", json!(true)),
    ]);
    let port = free_port();
    // Agents that share one store lose each other when one joins later.
    let env = [("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")];
    let agent = |is_host: bool| {
        let line = format!(
            "torchrun --nnodes=1:2 --nproc_per_node=1 --max-restarts=3 --monitor-interval=0.1 --rdzv_backend=c10d \
             --rdzv_id=changing --rdzv_endpoint=127.0.0.1:{port} \
             --rdzv_conf=last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=3,is_host={is_host} --no-python"
        );
        place.launched(&line, "--pt train input.json", &env)
    };
    let Some(mut first) = agent(true) else { return };
    wait_for_training(&place, 1, &mut first);
    let mut second = agent(false).expect("torchrun was found before");
    // Whichever has rank 0 tells.
    let mut listen = |first: &mut Job, what: &str| {
        let deadline = Instant::now() + LONG;
        let found = |job: &Job| job.lines_with(what).next().cloned();
        loop {
            first.listen(Duration::from_millis(50), |_| false);
            second.listen(Duration::from_millis(50), |_| false);
            if let Some(line) = found(first).or_else(|| found(&second)) {
                return line;
            }
            assert!(Instant::now() < deadline, "{what}\n{}\n{}", said(first), said(&second));
        }
    };
    let line = listen(&mut first, "has started this job again, on another number of ranks");
    assert!(line.contains("continuing from its newest complete checkpoint, model.ckpt-"), "{line}");
    listen(&mut first, "training.gradient_accumulation is set to 1 for 2 ranks: a step keeps its 2 batches");
    let deadline = Instant::now() + LONG;
    while place.ranks().len() < 2 {
        assert!(Instant::now() < deadline, "{}", said(&first));
        std::thread::sleep(Duration::from_millis(20));
    }
    let parent = format!("PPid:\t{}\n", second.child.id());
    let is_its =
        |pid: i32| std::fs::read_to_string(format!("/proc/{pid}/status")).is_ok_and(|s| s.contains(&parent));
    let its_rank = place.ranks().into_iter().find(|(_, pid)| is_its(*pid)).expect("each agent has a rank").1;
    strike(second.child.id() as i32, libc::SIGKILL);
    strike(its_rank, libc::SIGKILL);
    let resumed = |said: &[String]| {
        said.iter().any(|line| {
            line.contains(
                "training.gradient_accumulation is set to 2 for 1 ranks: a step keeps its 2 batches",
            )
        })
    };
    assert!(first.listen(LONG, resumed), "{}", said(&first));
    wait_for_training(&place, 1, &mut first);
    strike(first.child.id() as i32, libc::SIGTERM);
    first.end(LONG);
    // One curve, without a gap or a repetition, and nothing was moved away.
    let steps: Vec<u64> = place.curve().iter().map(|row| row.0).collect();
    assert!(steps.is_sorted_by(|a, b| a < b) && steps.len() > 3, "{steps:?}");
    assert!(!place.path("backup-1").exists());
}
