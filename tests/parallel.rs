//! The real `dp train` as ranks: under every launcher that is installed, and with its variables set by hand. What goes
//! wrong is in `failures.rs`.
//!
//! Everything here takes turns, so that never more than four ranks share the machine.

mod common;

use common::place::{Place, my_turn, said, succeed};
use common::{Job, free_port};
use serde_json::{Value, json};
use std::time::Instant;

// ------------------------------------------------------------------------------------------------- command lines

/// What a job of `n` ranks and 40 steps must leave behind.
struct Wanted<'a> {
    n: usize,
    mode: &'a str,
    /// As the Summary names it.
    launcher: &'a str,
    engine: &'a str,
    /// Factor of the learning rate.
    scale: f64,
}

/// What the newest checkpoint is called too where a framework is named (`--tf`, `--pt`).
const OTHER_NAMES: [&str; 4] =
    ["model.ckpt.data-00000-of-00001", "model.ckpt.index", "model.ckpt.meta", "model.ckpt.pt"];

fn check_one_job(place: &Place, job: &Job, want: &Wanted) {
    let text = said(job);
    let steps: Vec<u64> = place.curve().iter().map(|row| row.0).collect();
    assert_eq!(steps, [1, 10, 20, 30, 40], "{text}");
    assert_eq!(place.curve()[0].1, 0.001 * want.scale, "{text}");
    let header = place.checkpoint("model.ckpt").header;
    assert_eq!((&header["step"], &header["draws"]), (&json!(40), &json!(40 * want.n)), "{text}");
    let mut files =
        vec!["checkpoint", "lcurve.out", "model.ckpt-20.phx", "model.ckpt-40.phx", "model.ckpt.phx"];
    files.push("out.json");
    let logs: Vec<String> = match want.mode {
        "workers" if want.n > 1 => (0..want.n).map(|rank| format!("train_{rank}.log")).collect(),
        _ => vec!["train.log".into()],
    };
    files.extend(logs.iter().map(String::as_str));
    let written: Vec<String> =
        place.written().into_iter().filter(|name| !OTHER_NAMES.contains(&name.as_str())).collect();
    assert_eq!(written, files, "only rank 0 writes, and once");
    for fact in [("launcher:", want.launcher), ("engine:", want.engine)] {
        let has = |line: &&String| line.contains(fact.0) && line.contains(fact.1);
        assert!(job.said.iter().any(|line| has(&line)), "{fact:?} in\n{text}");
    }
    check_console(job, want);
    check_logs(place, want);
}

/// How many lines of each rank there are; panics at a line that is not whole.
fn lines_by_rank<'a>(lines: impl Iterator<Item = &'a str>, n: usize) -> Vec<usize> {
    let mut counts = vec![0; n];
    for line in lines.filter(|line| line.contains("DEEPMD")) {
        assert_eq!(line.matches("DEEPMD").count(), 1, "two lines in one: {line}");
        let rank = line.split("DEEPMD rank:").nth(1).map(|rest| rest.split_whitespace().next().unwrap());
        counts[rank.map_or(0, |rank| rank.parse::<usize>().unwrap())] += 1;
        let words = line.split("DEEPMD").nth(1).unwrap();
        assert!(["INFO", "WARNING", "DEBUG"].iter().any(|level| words.contains(level)), "cut: {line}");
    }
    counts
}

fn check_console(job: &Job, want: &Wanted) {
    let text = said(job);
    let counts = lines_by_rank(job.said.iter().map(String::as_str), want.n);
    let speaking = if want.mode == "master" { 1 } else { want.n };
    assert!(counts[..speaking].iter().all(|&count| count > 20), "{counts:?} in\n{text}");
    assert!(counts[speaking..].iter().all(|&count| count == 0), "{counts:?} in\n{text}");
    assert_eq!(text.contains("DEEPMD rank:"), want.mode != "master" && want.n > 1, "{text}");
    let kind = if want.n > 1 { "distributed" } else { "serial" };
    assert_eq!(job.lines_with(kind).count(), speaking, "{text}");
    if want.n > 1 {
        assert_eq!(job.lines_with("world size:").count(), speaking, "{text}");
        // Each rank's own times at each of the five displays.
        assert_eq!(job.lines_with("training time =").count(), 5 * speaking, "{text}");
    }
}

fn check_logs(place: &Place, want: &Wanted) {
    if want.mode == "workers" && want.n > 1 {
        for rank in 0..want.n {
            let text = place.read(&format!("train_{rank}.log"));
            assert!(!text.contains("DEEPMD rank:"), "one rank has one file: {text}");
            let my_rank = text.lines().find(|line| line.contains("my rank:")).unwrap_or_default();
            assert!(my_rank.ends_with(&format!(" {rank}")), "{text}");
            assert_eq!(text.matches("training time =").count(), 5, "{text}");
        }
        return;
    }
    let text = place.read("train.log");
    assert!(text.lines().all(|line| line.starts_with("[20")), "a line was cut: {text}");
    let counts = lines_by_rank(text.lines(), want.n);
    let speaking = if want.mode == "collect" { want.n } else { 1 };
    assert!(counts[..speaking].iter().all(|&count| count > 20), "{counts:?} in {text}");
    assert!(counts[speaking..].iter().all(|&count| count == 0), "{counts:?} in {text}");
}

#[test]
fn every_launcher_trains_one_job() {
    let _turn = my_turn();
    // launcher line, dp's arguments, ranks, log mode, launcher and engine in the Summary, factor of the learning rate
    let cases = [
        ("mpirun.openmpi -np 3", "train", 3, "workers", "mpirun (Open MPI)", "mpi (Open MPI", 3.0),
        (
            "mpirun.mpich -l -launcher=fork -hosts=localhost -np 3",
            "--tf train",
            3,
            "collect",
            "mpirun (Hydra)",
            "mpi (",
            3.0,
        ),
        ("horovodrun -np 3 --gloo", "train", 3, "workers", "horovodrun", "shared memory", 3.0),
        ("horovodrun -np 2 --mpi", "train", 2, "master", "mpirun (Open MPI)", "mpi (Open MPI", 2.0),
        (
            "torchrun --nproc_per_node=3 --master_port={port} --no-python",
            "--pt train",
            3,
            "collect",
            "torchrun",
            "shared memory",
            1.0,
        ),
        (
            "torchrun --master_port={port} --no-python",
            "-b pytorch train",
            1,
            "master",
            "torchrun",
            "solo",
            1.0,
        ),
        ("srun -n 2 --overcommit --mpi=none", "train", 2, "master", "srun", "shared memory", 2.0),
        ("srun -n 2 --overcommit --mpi=pmi2", "train", 2, "collect", "srun", "mpi (MPICH", 2.0),
    ];
    for (line, train, n, mode, launcher, engine, scale) in cases {
        let place = Place::new(&[]);
        let args = format!("{train} --mpi-log={mode} -l train.log input.json");
        let Some(mut job) = place.launched(line, &args, &[]) else { continue };
        let began = Instant::now();
        succeed(&mut job);
        println!("{line} dp {args}: {:.1?}", began.elapsed());
        check_one_job(&place, &job, &Wanted { n, mode, launcher, engine, scale });
        let has_other_names = OTHER_NAMES.iter().any(|name| place.path(name).exists());
        assert_eq!(has_other_names, train.starts_with('-'), "{line}");
    }
}

/// Two agents, as on two hosts; here both are on this one.
#[test]
fn torchrun_on_two_nodes_trains_one_job() {
    let _turn = my_turn();
    let place = Place::new(&[]);
    let port = free_port();
    let agent = |node: usize| {
        let line = format!(
            "torchrun --rdzv_endpoint=127.0.0.1:{port} --nnodes=2 --nproc_per_node=1 --node_rank={node} --no-python"
        );
        place.launched(&line, "--pt train -m collect -l train.log input.json", &[])
    };
    let (Some(mut first), Some(mut second)) = (agent(0), agent(1)) else { return };
    succeed(&mut first);
    succeed(&mut second);
    first.said.append(&mut second.said);
    let want = Wanted { n: 2, mode: "collect", launcher: "torchrun", engine: "", scale: 1.0 };
    check_one_job(&place, &first, &want);
}

#[test]
fn variables_set_by_hand_make_a_job_too() {
    let _turn = my_turn();
    let place = Place::new(&[]);
    let mut jobs = place.by_hand(4, "train -m collect -l train.log input.json", &[]);
    jobs.iter_mut().for_each(succeed);
    let mut all = jobs.remove(0);
    jobs.iter_mut().for_each(|job| all.said.append(&mut job.said));
    let want = Wanted { n: 4, mode: "collect", launcher: "torchrun", engine: "shared memory", scale: 4.0 };
    check_one_job(&place, &all, &want);
}

// ------------------------------------------------------------------------------------------------------ numbers

/// Parameters and the state of the optimiser.
fn arrays(place: &Place) -> Vec<f64> {
    place.checkpoint("model.ckpt").into_numbers().concat()
}

/// A net so wide that each of four ranks owns a slice of its parameters.
fn slices_for_all() -> (&'static str, serde_json::Value) {
    ("/model/fitting_net/neuron", json!([60, 60, 60]))
}

/// Runs 12 draws a step on `n` ranks, by hand (`shm`, `tcp`) or under an mpirun; None where that is missing.
fn twelve_draws(n: usize, by: &str, threads: &str, reproducible: bool) -> Option<Place> {
    run_on(
        n,
        by,
        threads,
        &[
            ("/training/gradient_accumulation", json!(12 / n)),
            ("/training/reproducible", json!(reproducible)),
            ("/training/numb_steps", json!(6)),
            ("/training/disp_freq", json!(2)),
            ("/training/gradient_max_norm", json!(1.0)),
            slices_for_all(),
        ],
    )
}

/// Runs a changed input on `n` ranks, by hand (`shm`, `tcp`) or under an mpirun; None where that is missing.
fn run_on(n: usize, by: &str, threads: &str, changes: &[(&str, Value)]) -> Option<Place> {
    let place = Place::new(changes);
    let env =
        [("OMP_NUM_THREADS", threads), ("PHALANX_COMM", if by.starts_with("mpirun") { "mpi" } else { by })];
    let jobs = match by {
        "shm" | "tcp" | "gloo" => place.by_hand(n, "train input.json", &env),
        mpirun => vec![place.launched(&format!("{mpirun} -n {n}"), "train input.json", &env)?],
    };
    for mut job in jobs {
        succeed(&mut job);
    }
    Some(place)
}

#[test]
fn reproducible_runs_have_the_same_bits_for_every_number_of_ranks_engine_and_threads() {
    let _turn = my_turn();
    let one = twelve_draws(1, "shm", "1", true).unwrap();
    let (want, curve) = (arrays(&one), one.read("lcurve.out"));
    assert!(want.iter().any(|x| *x != 0.0));
    let cases = [
        (1, "shm", "2"),
        (2, "shm", "1"),
        (2, "tcp", "2"),
        (2, "mpirun.openmpi", "1"),
        (3, "shm", "2"),
        (3, "tcp", "1"),
        (3, "mpirun.mpich", "2"),
        (4, "shm", "1"),
        (4, "tcp", "2"),
        (4, "mpirun.openmpi", "1"),
        #[cfg(feature = "gloo")]
        (3, "gloo", "1"),
    ];
    for (n, by, threads) in cases {
        let Some(place) = twelve_draws(n, by, threads, true) else { continue };
        let found = arrays(&place);
        let differing = found.iter().zip(&want).filter(|(a, b)| a.to_bits() != b.to_bits()).count();
        assert_eq!((found.len(), differing), (want.len(), 0), "{n} ranks over {by} with {threads} threads");
        assert_eq!(place.read("lcurve.out"), curve, "{n} ranks over {by} with {threads} threads");
    }
}

#[test]
fn every_optimiser_has_the_same_bits_for_every_number_of_ranks() {
    let _turn = my_turn();
    for optimizer in [
        json!({"type": "HybridMuon"}),
        json!({"type": "AdaMuon"}),
        json!({"type": "SOAP", "precondition_frequency": 2}),
        json!({"type": "LKF", "kf_blocksize": 700}),
    ] {
        let run = |n: usize, by: &str| {
            run_on(
                n,
                by,
                "1",
                &[
                    ("/training/gradient_accumulation", json!(6 / n)),
                    ("/training/reproducible", json!(true)),
                    ("/training/numb_steps", json!(3)),
                    ("/training/disp_freq", json!(1)),
                    ("/optimizer", optimizer.clone()),
                    ("/model/fitting_net/neuron", json!([30, 30])),
                ],
            )
        };
        let one = run(1, "shm").unwrap();
        let (want, curve) = (arrays(&one), one.read("lcurve.out"));
        for (n, by) in [(2, "shm"), (3, "tcp"), (2, "mpirun.openmpi"), (3, "mpirun.mpich")] {
            let Some(place) = run(n, by) else { continue };
            assert!(arrays(&place) == want, "{optimizer}: {n} ranks over {by} have other bits");
            assert_eq!(place.read("lcurve.out"), curve, "{optimizer}: {n} ranks over {by}");
        }
    }
}

#[test]
fn ranks_stop_at_the_same_step_when_validations_have_stopped_to_improve() {
    let _turn = my_turn();
    let run = |n: usize, by: &str| {
        run_on(
            n,
            by,
            "1",
            &[
                // Nothing is learned, so that the first validation stays the best.
                (
                    "/learning_rate",
                    json!({"type": "exp", "start_lr": 1e-30, "stop_lr": 1e-31, "decay_steps": 10}),
                ),
                ("/training/early_stopping", json!({"patience": 2})),
                ("/training/enable_ema", json!(true)),
                (
                    "/validating",
                    json!({"full_validation": true, "validation_freq": 5, "full_val_start": 0, "validation_metric": "F:MAE"}),
                ),
            ],
        )
    };
    let one = run(1, "shm").unwrap();
    assert_eq!(one.checkpoint("model.ckpt").header["step"], json!(15));
    let log = one.read("val.log");
    assert!(one.written().contains(&"best.ckpt-5.t-1.phx".to_string()), "{:?}", one.written());
    for (n, by) in [(2, "shm"), (3, "tcp"), (2, "mpirun.openmpi"), (3, "mpirun.mpich")] {
        let Some(place) = run(n, by) else { continue };
        assert_eq!(place.checkpoint("model.ckpt").header["step"], json!(15), "{n} ranks over {by}");
        assert_eq!(place.read("val.log"), log, "{n} ranks over {by}");
    }
}

/// Nets that become steep fast, so that their series are cut into other panels several times.
#[test]
fn reproducible_runs_have_the_same_bits_across_changes_of_panels() {
    let _turn = my_turn();
    let steep = |n: usize, by: &str, threads: &str| {
        run_on(n, by, threads, &[
            ("/training/gradient_accumulation", json!(2 / n)),
            ("/training/reproducible", json!(true)),
            ("/training/numb_steps", json!(200)),
            ("/training/disp_freq", json!(100)),
            ("/learning_rate", json!({"type": "exp", "start_lr": 0.1, "stop_lr": 0.1, "decay_steps": 100, "scale_by_worker": "none"})),
        ])
        .expect("it needs no launcher")
    };
    let one = steep(1, "shm", "2");
    let engine = &one.checkpoint("model.ckpt").header["engine"];
    let n_panels: usize =
        engine["edges"].as_array().unwrap().iter().map(|e| e.as_array().unwrap().len() - 1).sum();
    assert!(n_panels > 3, "{engine}");
    let two = steep(2, "shm", "1");
    assert_eq!(&two.checkpoint("model.ckpt").header["engine"], engine);
    assert_eq!(arrays(&two), arrays(&one));
}

/// The sum of two numbers has no order, so that two ranks give the same bits over every engine.
#[test]
fn two_ranks_have_the_same_bits_over_every_engine() {
    let _turn = my_turn();
    let run = |by: &str| {
        let place = Place::new(&[("/training/numb_steps", json!(20)), ("/training/disp_freq", json!(10))]);
        let env = [("OMP_NUM_THREADS", "1"), ("PHALANX_COMM", by)];
        place.by_hand(2, "train input.json", &env).iter_mut().for_each(succeed);
        arrays(&place)
    };
    let want = run("shm");
    assert!(want.iter().any(|x| *x != 0.0));
    for by in if cfg!(feature = "gloo") { &["tcp", "gloo"][..] } else { &["tcp"] } {
        assert!(run(by).iter().zip(&want).all(|(a, b)| a.to_bits() == b.to_bits()), "{by}: other bits");
    }
}

#[test]
fn ranks_equal_accumulated_draws_to_rounding() {
    let _turn = my_turn();
    let want = arrays(&twelve_draws(1, "shm", "1", false).unwrap());
    for (n, by) in [(2, "shm"), (3, "tcp"), (4, "mpirun.openmpi")] {
        let Some(place) = twelve_draws(n, by, "1", false) else { continue };
        for (k, (a, b)) in arrays(&place).iter().zip(&want).enumerate() {
            assert!((a - b).abs() <= 1e-10 * b.abs().max(1e-3), "{n} ranks, number {k}: {a} and {b}");
        }
    }
}

#[test]
fn the_learning_rate_is_scaled_as_the_input_and_the_command_line_say() {
    let _turn = my_turn();
    for (train, rule, scale) in [
        ("train", None, 3.0),
        ("--pt train", None, 1.0),
        ("train", Some("sqrt"), 3f64.sqrt()),
        ("train", Some("none"), 1.0),
        ("--pt train", Some("linear"), 3.0),
    ] {
        let mut changes = vec![("/training/numb_steps", json!(3)), ("/training/disp_freq", json!(1))];
        changes.extend(rule.map(|rule| ("/learning_rate/scale_by_worker", json!(rule))));
        let place = Place::new(&changes);
        let mut jobs = place.by_hand(3, &format!("{train} input.json"), &[]);
        jobs.iter_mut().for_each(succeed);
        let rate = place.curve()[0].1;
        // The learning curve shows two digits.
        assert!((rate - 0.001 * scale).abs() < 0.03 * rate, "{train} {rule:?}: {rate}");
        let line = jobs[0].lines_with("learning rate is scaled by").next();
        assert_eq!(line.is_some(), scale != 1.0, "{train} {rule:?}: {}", said(&jobs[0]));
        if let Some(line) = line {
            assert!(line.contains(&format!("scaled by {scale} for 3 batches a step")), "{line}");
        }
    }
}

/// With four ranks a factor of a quarter starts at the rate of one rank and ends at that of four.
#[test]
fn the_rate_of_ranks_warms_up() {
    let _turn = my_turn();
    let place = Place::new(&[
        ("/training/numb_steps", json!(8)),
        ("/training/disp_freq", json!(1)),
        ("/learning_rate/warmup_steps", json!(4)),
        ("/learning_rate/warmup_start_factor", json!(0.25)),
    ]);
    place.by_hand(4, "train input.json", &[]).iter_mut().for_each(succeed);
    let rates: Vec<f64> = place.curve().iter().map(|row| row.1).collect();
    for (step, rate) in rates.iter().enumerate().take(4) {
        let want = 0.004 * (0.25 + 0.75 * step as f64 / 4.0);
        assert!((rate - want).abs() < 0.05 * want, "step {step}: {rate}, not {want}: {rates:?}");
    }
    assert!((rates[4] - 0.004).abs() < 0.0002, "{rates:?}");
}

#[test]
fn a_restart_with_another_number_of_ranks_continues_the_same_draws() {
    let _turn = my_turn();
    let changes = |n: usize| {
        [
            ("/training/gradient_accumulation", json!(12 / n)),
            ("/training/reproducible", json!(true)),
            ("/training/numb_steps", json!(8)),
            ("/training/disp_freq", json!(2)),
            ("/training/save_freq", json!(4)),
            slices_for_all(),
        ]
    };
    let straight = Place::new(&changes(1));
    succeed(&mut straight.alone("train input.json", &[]));
    let place = Place::new(&changes(3));
    place.by_hand(3, "train input.json", &[]).iter_mut().for_each(succeed);
    place.input(&changes(2));
    let mut jobs = place.by_hand(2, "train input.json --restart model.ckpt-4.phx", &[]);
    jobs.iter_mut().for_each(succeed);
    assert_eq!(jobs[0].lines_with("continuing after step 4").count(), 1, "{}", said(&jobs[0]));
    assert_eq!(arrays(&place), arrays(&straight));
    assert_eq!(place.read("lcurve.out"), straight.read("lcurve.out"));
    // With another number of draws a step the sequence goes on where it stood: 4 steps of 12 draws, then 4 of 3.
    place.input(&[("/training/numb_steps", json!(8)), slices_for_all()]);
    place.by_hand(3, "train input.json --restart model.ckpt-4.phx", &[]).iter_mut().for_each(succeed);
    assert_eq!(place.checkpoint("model.ckpt").header["draws"], json!(4 * 12 + 4 * 3));
}

// ------------------------------------------------------------------------------------------------ where the time goes

#[test]
fn the_profile_has_a_row_and_a_timeline_for_each_rank() {
    let _turn = my_turn();
    for (flag, key, env) in [
        ("--profile", false, &[][..]),
        ("", true, &[]),
        ("", false, &[("TORCH_DISTRIBUTED_DEBUG", "DETAIL")]),
    ] {
        let place =
            Place::new(&[("/training/profiling", json!(key)), ("/training/tensorboard", json!(true))]);
        let mut jobs = place.by_hand(3, &format!("train input.json {flag}"), env);
        jobs.iter_mut().for_each(succeed);
        let head = jobs[0].said.iter().position(|line| line.contains("Where the time went"));
        let head = head.unwrap_or_else(|| panic!("{}", said(&jobs[0])));
        assert!(jobs[0].said[head + 1].contains("communication"), "{}", said(&jobs[0]));
        // A checkpoint may be there at any time.
        let rows: Vec<_> = jobs[0].said[head + 2..].iter().filter(|line| !line.contains("Saved")).collect();
        for rank in 0..3 {
            let row = rows[rank].split("INFO").nth(1).unwrap().split_whitespace().next();
            assert_eq!(row, Some(rank.to_string().as_str()));
        }
        let timeline: serde_json::Value = serde_json::from_str(&place.read("timeline.json")).unwrap();
        let events = timeline["traceEvents"].as_array().unwrap();
        for rank in 0..3 {
            // Gradients go to their owners before the update, parameters to all after it.
            let phases =
                [("data wait", 1), ("forward", 1), ("backward", 1), ("communication", 2), ("optimizer", 1)];
            for (phase, times) in phases {
                let is = |e: &&serde_json::Value| e["pid"] == rank && e["name"] == phase && e["ph"] == "X";
                assert_eq!(events.iter().filter(is).count(), 40 * times, "{phase} of rank {rank}");
            }
        }
        assert_eq!(std::fs::read_dir(place.path("log")).unwrap().count(), 1, "one rank writes the events");
    }
}

#[test]
fn labels_that_validation_data_lack_are_shown_as_nan() {
    let _turn = my_turn();
    let place = Place::new(&[]);
    std::fs::remove_file(place.path("v/set.000/force.npy")).unwrap();
    let check = || {
        let text = place.read("lcurve.out");
        let mut lines = text.lines();
        let names: Vec<&str> = lines.next().unwrap().trim_start_matches('#').split_whitespace().collect();
        let at = names.iter().position(|name| *name == "rmse_f_val").unwrap();
        let last: Vec<&str> = lines.next_back().unwrap().split_whitespace().collect();
        assert_eq!((last[0], last[at].to_lowercase().as_str()), ("40", "nan"), "{text}");
        assert!(last[at + 1].parse::<f64>().unwrap().is_finite(), "{text}");
    };
    succeed(&mut place.alone("train input.json", &[]));
    check();
    place.by_hand(2, "train input.json", &[]).iter_mut().for_each(succeed);
    check();
}
