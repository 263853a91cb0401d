//! The real `pinn train`: alone, continued, as ranks, and with mistakes.

mod common;

use common::pinn::{small, structures};
use common::{Job, can_run_kernels, find, for_open_mpi, free_port, place, skip, stand_ins};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

const LONG: Duration = Duration::from_secs(60);

/// A fresh folder with `a.xyz`, `b.xyz`, `c.xyz` (8 structures each) and a small network in `params.yml`.
struct Place(tempfile::TempDir);

impl Place {
    fn new(params: &str) -> Place {
        let place = Place(tempfile::tempdir().unwrap());
        for (k, name) in ["a.xyz", "b.xyz", "c.xyz"].into_iter().enumerate() {
            std::fs::write(place.path(name), structures(8, k)).unwrap();
        }
        std::fs::write(place.path("params.yml"), params).unwrap();
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn command(&self, program: &Path, before: &str, args: &str) -> Command {
        let mut command = Command::new(program);
        command.args(before.split_whitespace());
        if !before.is_empty() {
            command.arg(env!("CARGO_BIN_EXE_pinn"));
        }
        command.args(args.split_whitespace()).current_dir(self.0.path());
        for_open_mpi(&mut command);
        command.env("OMP_NUM_THREADS", "1");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn alone(&self, args: &str) -> Job {
        ended(Job::start(self.command(Path::new(env!("CARGO_BIN_EXE_pinn")), "", args)))
    }

    /// Ranks whose variables are set by hand.
    fn by_hand(&self, n: usize, args: &str) -> Vec<Job> {
        self.by_hand_with(n, args, &[])
    }

    fn by_hand_with(&self, n: usize, args: &str, env: &[(&str, &str)]) -> Vec<Job> {
        let pinn = || self.command(Path::new(env!("CARGO_BIN_EXE_pinn")), "", args);
        let jobs = place::by_hand(n, env, pinn);
        jobs.into_iter().map(ended).collect()
    }

    /// Parameters and the state of the optimiser of a model's newest checkpoint.
    fn arrays(&self, model: &str) -> Vec<f64> {
        let saved = phalanx::checkpoint::load(&self.path(model)).unwrap_or_else(|e| panic!("{e}"));
        saved.into_numbers().concat()
    }
}

/// Waits, and keeps how it ended in the last line.
fn ended(mut job: Job) -> Job {
    let good = job.end(LONG);
    job.said.push(format!("ended {}", if good { "well" } else { "badly" }));
    job
}

#[track_caller]
fn good(job: &Job) {
    assert_eq!(job.said.last().map(String::as_str), Some("ended well"), "{}", job.said.join("\n"));
}

#[track_caller]
fn bad(job: &Job, texts: &[&str]) {
    let said = job.said.join("\n");
    assert!(said.ends_with("ended badly"), "{said}");
    for text in texts {
        assert!(said.contains(text), "{text:?} in: {said}");
    }
    assert!(!said.contains("panicked"), "{said}");
}

/// The rows of `eval.log`: step and values.
fn evaluations(place: &Place, model: &str) -> Vec<Vec<f64>> {
    let text = std::fs::read_to_string(place.path(model).join("eval.log")).unwrap();
    let row = |line: &str| line.split_whitespace().map(|x| x.parse().unwrap()).collect();
    text.lines().filter(|line| !line.starts_with('#')).map(row).collect()
}

#[test]
fn a_network_learns_and_leaves_what_pinns_users_expect() {
    let place = Place::new(&small(3e-3));
    good(&place.alone("train params.yml -t a.xyz,b.xyz -e c.xyz -b 4 --train-steps 1 --ckpt-every 1"));
    let before = evaluations(&place, "model");
    let job = place.alone(
        "train params.yml -t a.xyz,b.xyz -e c.xyz -b 4 --train-steps 400 --ckpt-every 400 --log-every 100",
    );
    good(&job);
    assert_eq!(job.lines_with("continuing after step 1").count(), 1, "{}", job.said.join("\n"));
    let rows = evaluations(&place, "model");
    assert_eq!((rows[0].len(), rows[1][0]), (3, 400.0), "step, E_RMSE, F_RMSE");
    assert!(rows[1][2] < 0.8 * before[0][2], "the force error fell: {before:?} {rows:?}");
    let header = std::fs::read_to_string(place.path("model/eval.log")).unwrap();
    assert!(header.starts_with("# Step  E_RMSE  F_RMSE\n"), "{header}");
    for name in ["params.yml", "checkpoint", "model.ckpt-400.phx"] {
        assert!(place.path("model").join(name).exists(), "{name}");
    }
    for folder in ["model", "model/eval"] {
        let files = std::fs::read_dir(place.path(folder)).unwrap();
        let names: Vec<String> = files.map(|f| f.unwrap().file_name().into_string().unwrap()).collect();
        assert!(names.iter().any(|name| name.starts_with("events.out.tfevents")), "{folder}: {names:?}");
    }
    let log = place.alone("log model/eval");
    good(&log);
    assert!(log.said.iter().any(|line| line.starts_with("400 ")), "{}", log.said.join("\n"));
}

#[test]
fn n_steps_and_n_more_are_2n_steps_to_the_bit() {
    let place = Place::new(&small(1e-3));
    let line = "train params.yml -t a.xyz -e b.xyz -b 3 --ckpt-every 5 --log-every 5";
    good(&place.alone(&format!("{line} --train-steps 10 -d straight")));
    good(&place.alone(&format!("{line} --train-steps 5 -d halves")));
    good(&place.alone(&format!("{line} --train-steps 10 -d halves")));
    assert_eq!(place.arrays("halves"), place.arrays("straight"));
}

/// Two ranks of one structure at half the rate are one rank of two structures: gradients are really averaged.
#[test]
fn ranks_average_their_gradients_and_scale_the_rate() {
    let one = Place::new(&small(2e-3));
    good(&one.alone("train params.yml -t a.xyz -b 2 --train-steps 6 --ckpt-every 6"));
    let two = Place::new(&small(1e-3));
    let jobs = two.by_hand(2, "train params.yml -t a.xyz -b 1 --train-steps 6 --ckpt-every 6");
    jobs.iter().for_each(good);
    assert_eq!(jobs[0].lines_with("learning rate is scaled by 2 for 2 ranks").count(), 1);
    for (a, b) in one.arrays("model").iter().zip(two.arrays("model")) {
        assert!((a - b).abs() < 1e-9 * a.abs().max(1e-3), "{a} {b}");
    }
    // Only rank 0 writes.
    assert_eq!(jobs[1].lines_with("step ").count(), 0, "{}", jobs[1].said.join("\n"));
}

/// Kernels run on the CPU; GPUs and NCCL are stand-ins.
#[test]
fn gpus_joined_by_nccl_train_as_ranks_without_gpus_do() {
    if !can_run_kernels() {
        return;
    }
    let place = Place::new(&small(0.001));
    let Some(lib) = stand_ins(place.path("lib"), &["libcuda.so.1", "libnvrtc.so.13", "libnccl.so.2"]) else {
        return;
    };
    let cache = place.path("cache");
    let env = [
        ("LD_LIBRARY_PATH", lib.to_str().unwrap()),
        ("XDG_CACHE_HOME", cache.to_str().unwrap()),
        ("FAKE_CUDA_DEVICES", "2"),
        ("FAKE_CUDA_RUNS", "1"),
    ];
    // Steps are recorded from the second on, and replayed after that.
    let train = "train params.yml -t a.xyz -e b.xyz -b 2 --train-steps 6 --log-every 2 --ckpt-every 3";
    let jobs = place.by_hand_with(2, &format!("{train} -d on_gpus --device cuda"), &env);
    jobs.iter().for_each(good);
    assert_eq!(jobs[0].lines_with("gradients are added up by NCCL").count(), 1, "{:?}", jobs[0].said);
    place.by_hand(2, &format!("{train} -d on_cpus --device cpu")).iter().for_each(good);
    let (gpus, cpus) = (evaluations(&place, "on_gpus"), evaluations(&place, "on_cpus"));
    assert!(gpus.len() >= 2 && gpus.len() == cpus.len(), "{gpus:?} {cpus:?}");
    for (a, b) in gpus.iter().flatten().zip(cpus.iter().flatten()) {
        assert!((a - b).abs() <= 1e-5 * b.abs(), "{gpus:?} {cpus:?}");
    }
}

#[test]
fn files_are_distributed_over_ranks_and_too_few_are_refused() {
    let place = Place::new(&small(1e-3));
    let line = "train params.yml -b 2 --train-steps 4 --ckpt-every 4";
    let jobs = place.by_hand(3, &format!("{line} -t a.xyz,b.xyz,c.xyz -e c.xyz"));
    jobs.iter().for_each(good);
    assert_eq!(
        jobs[0].lines_with("training set: 8 structures from a.xyz (its own files)").count(),
        1,
        "{}",
        jobs[0].said.join("\n")
    );
    let jobs = place.by_hand(3, &format!("{line} -t a.xyz,b.xyz -d other"));
    bad(&jobs[0], &["cannot be"]);
    jobs.iter().for_each(|job| bad(job, &[]));
    assert!(!place.path("other").exists(), "nothing was written");
}

#[test]
fn launchers_start_one_job() {
    for (program, before) in [
        ("mpirun.openmpi", "-np 2"),
        ("mpirun.mpich", "-n 2"),
        ("torchrun", "--nproc_per_node=2 --master_port={port} --no-python"),
    ] {
        let Some(found) = find(program) else {
            skip(format!("{program} is not installed"));
            continue;
        };
        let place = Place::new(&small(1e-3));
        let before = before.replace("{port}", &free_port().to_string());
        let args = "train params.yml -t a.xyz -e b.xyz -b 2 --train-steps 4 --ckpt-every 4";
        let job = ended(Job::start(place.command(&found, &before, args)));
        good(&job);
        assert_eq!(job.lines_with("world size:").count(), 1, "{program}: {}", job.said.join("\n"));
        assert_eq!(evaluations(&place, "model").len(), 1, "{program}: rank 0 alone writes");
    }
}

#[test]
fn mistakes_are_told_and_nothing_is_overwritten() {
    let place = Place::new(&small(1e-3));
    bad(&place.alone("train params.yml -t a.xyz --train-steps 2"), &["no batch size was given", "-b"]);
    bad(&place.alone("train params.yml -t nowhere.xyz -b 2 --train-steps 2"), &["nowhere.xyz"]);
    bad(&place.alone("train nowhere.yml -t a.xyz -b 2"), &["nowhere.yml"]);
    let dipole = small(1e-3).replace("potential_model", "dipole_model").replace("use_force: true, ", "");
    std::fs::write(place.path("dipole.yml"), dipole).unwrap();
    bad(&place.alone("train dipole.yml -t a.xyz -b 2 --train-steps 2"), &["structure", "has no d_data"]);
    let stop = "train params.yml -t a.xyz -e b.xyz -b 2 --train-steps 2 -d stop --early-stop X_RMSE:5";
    bad(&place.alone(stop), &["there is no metric \"X_RMSE\"", "E_RMSE"]);
    assert!(!place.path("model/model.ckpt-2.phx").exists());
}

/// Also where the data are those of evaluations, of which the first may be hours away.
#[test]
fn a_label_that_the_loss_needs_and_the_data_lack_is_told_before_training() {
    let place = Place::new(&small(1e-3));
    let row = |line: &str| line.split(' ').take(4).collect::<Vec<_>>().join(" ");
    let bare: Vec<String> = structures(8, 2)
        .lines()
        .map(|line| match line.starts_with("Lattice") {
            true => line.replace(":forces:R:3", ""),
            false => row(line),
        })
        .collect();
    std::fs::write(place.path("c.xyz"), bare.join("\n") + "\n").unwrap();
    for data in ["-t a.xyz -e c.xyz", "-t c.xyz -e a.xyz"] {
        let job = place.alone(&format!("train params.yml {data} -b 4 --train-steps 4"));
        bad(&job, &["c.xyz: structure 0: a structure of 6 atoms has no f_data, which the loss needs"]);
        assert_eq!(job.lines_with("Start to train").count(), 0);
    }
}
