//! Nothing lost: one owner for each folder, backups, power cuts, runs that continue by themselves. The real binaries.

mod common;

use common::{Ended, Place, pinn, small_input};
use phalanx::checkpoint;
use serde_json::json;
use std::collections::BTreeMap;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

/// Every file of a folder and below, with its content; links by their target. Locks are left out: they count time.
fn contents(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(folder).unwrap().flatten() {
        let (name, path) = (entry.file_name().into_string().unwrap(), entry.path());
        if entry.file_type().unwrap().is_dir() {
            found
                .extend(contents(&path).into_iter().map(|(inner, bytes)| (format!("{name}/{inner}"), bytes)));
        } else if !name.starts_with(".phalanx.lock") {
            found.insert(name, std::fs::read(path).unwrap_or_default());
        }
    }
    found
}

fn wait(child: Child) -> Ended {
    child.wait_with_output().unwrap().into()
}

fn signal(child: &Child, name: &str) {
    assert!(Command::new("kill").args([name, &child.id().to_string()]).status().unwrap().success());
}

/// Waits until a file is there.
#[track_caller]
fn wait_for(place: &Place, name: &str) {
    let began = Instant::now();
    while !place.path(name).exists() {
        assert!(began.elapsed() < Duration::from_secs(60), "{name} did not come");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn pinn_command(place: &Place, line: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pinn"));
    command.args(line.split_whitespace()).current_dir(place.path(".")).env("OMP_NUM_THREADS", "1");
    command
}

fn run_pinn(place: &Place, line: &str) -> Ended {
    pinn_command(place, line).output().unwrap().into()
}

const PINN: &str =
    "train params.yml -t train.xyz -e train.xyz -b 2 --ckpt-every 10 --log-every 10 --train-steps";

fn with_structures() -> Place {
    let place = Place::with_data();
    place.write("params.yml", pinn::small(1e-3));
    place.write("train.xyz", pinn::structures(6, 1));
    place
}

#[test]
fn the_second_run_in_a_folder_is_refused_before_it_touches_anything() {
    let place = Place::with_data();
    let mut input = small_input(100_000_000, 50);
    input["training"]["disp_freq"] = json!(100_000_000);
    place.input("input.json", &input);
    input["training"]["save_ckpt"] = json!("elsewhere/model.ckpt");
    place.input("other.json", &input);
    let first = place.start("train input.json -l train.log");
    wait_for(&place, "model.ckpt.phx");
    signal(&first, "-STOP");
    // Once what was under way is done, nothing but the second run changes the folder.
    let mut before = contents(&place.path("."));
    loop {
        std::thread::sleep(Duration::from_millis(300));
        let now = contents(&place.path("."));
        if now == before {
            break;
        }
        before = now;
    }
    // The same files, other checkpoints beside the same learning curve, and a restart.
    for line in ["train input.json -l train.log", "train other.json", "train input.json --restart model.ckpt"]
    {
        let ended = place.dp(line);
        let who = format!("another run writes into this folder: process {} on ", first.id());
        ended.fails(&[&who, "(", "dp train input.json -l train.log", "help: "]);
        let after = contents(&place.path("."));
        assert_eq!(after.keys().collect::<Vec<_>>(), before.keys().collect::<Vec<_>>(), "{line}");
        assert!(after == before, "{line}: a file changed");
    }
    signal(&first, "-CONT");
    signal(&first, "-TERM");
    assert_eq!(wait(first).code, Some(143));
    assert!(!place.path(".phalanx.lock").exists());
}

#[test]
fn a_killed_run_leaves_a_lock_that_the_next_one_takes_over() {
    let place = Place::with_data();
    place.input("input.json", &small_input(100_000_000, 50));
    let mut first = place.start("train input.json");
    wait_for(&place, "model.ckpt.phx");
    first.kill().unwrap();
    first.wait().unwrap();
    assert!(place.path(".phalanx.lock").exists());
    let step = checkpoint::load(&place.path("model.ckpt")).unwrap().header["step"].as_u64().unwrap();
    place.input("input.json", &small_input(step + 10, 50));
    let ended = place.dp("train input.json --restart model.ckpt").succeeds();
    assert!(ended.stderr.contains("the run that owned it is gone: process"), "{}", ended.stderr);
}

#[test]
fn a_new_run_sets_aside_what_an_earlier_one_left() {
    let place = Place::with_data();
    place.input("input.json", &small_input(20, 10));
    let ended = place.dp("train input.json").succeeds();
    assert!(!ended.stderr.contains("backup-"), "{}", ended.stderr);
    let first = (place.text("lcurve.out"), place.read("model.ckpt-20.phx"));
    place.input("input.json", &small_input(10, 10));
    let ended = place.dp("train input.json").succeeds();
    let told = "an earlier run left 2 checkpoints of steps 10 to 20 and a learning curve of 5 rows: moved to backup-1";
    assert!(ended.stderr.contains(told), "{}", ended.stderr);
    assert_eq!((place.text("backup-1/lcurve.out"), place.read("backup-1/model.ckpt-20.phx")), first);
    assert!(!place.path("model.ckpt-20.phx").exists());
    place.dp("freeze -c backup-1 -o old.dp").succeeds();
    let second = place.text("lcurve.out");
    let ended = place.dp("train input.json --no-backup").succeeds();
    assert!(ended.stderr.contains("this run will replace them, without a backup"), "{}", ended.stderr);
    assert!(!place.path("backup-2").exists());
    assert_eq!(place.text("lcurve.out"), second);
    let mut input = small_input(10, 10);
    input["training"]["backup"] = json!(false);
    place.input("input.json", &input);
    place.dp("train input.json").succeeds();
    assert!(!place.path("backup-2").exists());
}

/// The best checkpoints, those of the running mean and the log of validations are results too.
#[test]
fn a_new_run_sets_aside_all_results_and_none_before_it_can_write_its_own() {
    let place = Place::with_data();
    let mut input = small_input(20, 10);
    input["training"]["enable_ema"] = json!(true);
    input["training"]["validation_data"] = json!({"systems": ["valid"]});
    input["validating"] = json!({"full_validation": true, "validation_freq": 10, "full_val_start": 0});
    place.input("input.json", &input);
    place.dp("train input.json").succeeds();
    let results = |folder: &str| -> Vec<String> {
        let all = contents(&place.path(folder)).into_keys();
        let is_result =
            |name: &String| ["best", "model_ema", "val.log"].iter().any(|head| name.starts_with(head));
        all.filter(is_result).collect()
    };
    let first = results(".");
    assert!(first.len() >= 5, "{first:?}");
    let log = place.text("val.log");
    // A run that cannot begin changes nothing.
    input["training"]["disp_file"] = json!("train");
    place.input("broken.json", &input);
    place
        .dp("train broken.json")
        .fails(&["training.disp_file: train is a folder, wanted the name of a file"]);
    assert_eq!(results("."), first);
    let ended = place.dp("train input.json").succeeds();
    let told = "an earlier run left 2 checkpoints of steps 10 to 20 and a best checkpoint and a learning curve of 5 rows: moved \
                to backup-1";
    assert!(ended.stderr.contains(told), "{}", ended.stderr);
    assert_eq!((results("backup-1"), place.text("backup-1/val.log")), (first.clone(), log.clone()));
    // Without a mean or validations nothing of them is replaced, and nothing is moved.
    place.input("plain.json", &small_input(10, 10));
    place.dp("train plain.json").succeeds();
    assert_eq!(results("."), first);
}

#[test]
fn pinn_leaves_the_pointer_of_dp_alone_and_neither_reads_the_others_checkpoints() {
    let place = with_structures();
    place.input("input.json", &small_input(10, 10));
    place.dp("train input.json").succeeds();
    run_pinn(&place, &format!("{PINN} 10")).succeeds();
    assert_eq!(place.text("checkpoint"), "model.ckpt-10.phx");
    // PiNN finds its way by this one too.
    assert!(place.text("model/checkpoint").starts_with("model_checkpoint_path: \"model.ckpt-10\"\n"));
    place.dp("freeze -o model.dp").succeeds();
    place.dp("freeze -c model -o x.dp").fails(&["phalanx pinn state", "help: `pinn train` wrote it"]);
    place
        .dp("train input.json --restart model")
        .fails(&["phalanx pinn state", "help: `pinn train` wrote it"]);
    run_pinn(&place, &format!("{PINN} 20 -d ."))
        .fails(&["phalanx training state", "help: `dp train` wrote it"]);
}

#[test]
fn after_a_power_cut_a_restart_goes_on_with_a_note() {
    let place = Place::with_data();
    place.input("input.json", &small_input(20, 10));
    place.dp("train input.json").succeeds();
    let whole = place.read("lcurve.out");
    place.input("input.json", &small_input(30, 10));
    let checkpoints = contents(&place.path("."));
    for lost in [whole[..whole.len() - 30].to_vec(), Vec::new(), [&whole[..150], &vec![0; 400]].concat()] {
        place.write("lcurve.out", &lost);
        let ended = place.dp("train input.json --restart model.ckpt-20").succeeds();
        assert!(ended.stderr.contains("lcurve.out: the file is not what it was"), "{}", ended.stderr);
        let text = place.text("lcurve.out");
        assert!(text.contains("# rows before step 20 were lost"), "{text}");
        assert!(text.lines().last().unwrap().trim_start().starts_with("30 "), "{text}");
        // Numpy reads it: nothing but comments and whole rows.
        let columns = |line: &str| line.split_whitespace().count();
        let rows: Vec<usize> = text.lines().filter(|line| !line.starts_with('#')).map(columns).collect();
        assert!(rows.iter().all(|n| *n == rows[0]), "{text}");
        std::fs::remove_file(place.path("model.ckpt-30.phx")).unwrap();
        place.write("model.ckpt-20.phx", &checkpoints["model.ckpt-20.phx"]);
    }
}

#[test]
fn a_pointer_that_a_power_cut_emptied_is_an_error() {
    let place = Place::with_data();
    place.input("input.json", &small_input(10, 10));
    place.dp("train input.json").succeeds();
    for content in ["", ".", "..", "\0\0\0\0\0\0"] {
        place.write("checkpoint", content);
        for line in ["freeze -o x.dp", "train input.json --restart .", "test -m . -s valid"] {
            place.dp(line).fails(&["checkpoint: ", "model.ckpt-10.phx"]);
        }
    }
}

#[test]
fn pinn_refuses_a_damaged_checkpoint_and_keeps_it() {
    let place = with_structures();
    run_pinn(&place, &format!("{PINN} 10")).succeeds();
    let mut damaged = place.read("model/model.ckpt-10.phx");
    let middle = damaged.len() / 2;
    damaged[middle] ^= 1;
    place.write("model/model.ckpt-10.phx", &damaged);
    run_pinn(&place, &format!("{PINN} 20")).fails(&[
        "model/model.ckpt-10.phx: the checkpoint is damaged: checksum mismatch",
        "help: no other complete checkpoint is there",
    ]);
    assert_eq!(place.read("model/model.ckpt-10.phx"), damaged);
}

#[test]
fn resume_auto_begins_continues_and_has_nothing_to_do() {
    let (whole, parts) = (Place::with_data(), Place::with_data());
    whole.input("input.json", &small_input(30, 10));
    whole.dp("train input.json").succeeds();
    let mut input = small_input(10, 10);
    parts.input("input.json", &input);
    let ended = parts.dp("train input.json --resume auto").succeeds();
    assert!(ended.stderr.contains("no checkpoint of model.ckpt yet: the run begins"), "{}", ended.stderr);
    parts.input("input.json", &small_input(20, 10));
    let ended = parts.dp("train input.json --resume auto").succeeds();
    assert!(ended.stderr.contains("continuing from model.ckpt-10.phx (step 10)"), "{}", ended.stderr);
    // In the input, and past a damaged one.
    input["training"]["resume"] = json!("auto");
    input["training"]["numb_steps"] = json!(30);
    parts.input("input.json", &input);
    parts.write("model.ckpt-20.phx", "power went away");
    let ended = parts.dp("train input.json").succeeds();
    assert!(ended.stderr.contains("passed over: model.ckpt-20.phx"), "{}", ended.stderr);
    assert!(ended.stderr.contains("continuing from model.ckpt-10.phx (step 10)"), "{}", ended.stderr);
    assert_eq!(parts.text("lcurve.out"), whole.text("lcurve.out"));
    assert_eq!(
        checkpoint::load(&parts.path("model.ckpt")).unwrap().arrays,
        checkpoint::load(&whole.path("model.ckpt")).unwrap().arrays
    );
    let ended = parts.dp("train input.json").succeeds();
    assert!(ended.stderr.contains("30 steps are done already"), "{}", ended.stderr);
    let ended = parts.dp("train input.json --resume never").succeeds();
    assert!(ended.stderr.contains("moved to backup-1"), "{}", ended.stderr);
    assert_eq!(parts.dp("train input.json --resume auto --restart model.ckpt").code, Some(2));
}

#[test]
fn a_signal_saves_and_the_status_tells_which_it_was() {
    for (name, status) in [("-HUP", 129), ("-INT", 130), ("-TERM", 143)] {
        let place = Place::with_data();
        place.input("in put.json", &small_input(100_000_000, 100_000_000));
        let mut command = place.command("train");
        command.arg("in put.json").stderr(std::process::Stdio::piped());
        // Whoever runs the tests may have started them with SIGHUP ignored, as nohup does.
        let heed = || {
            // SAFETY: dp does not run yet.
            unsafe { libc::signal(libc::SIGHUP, libc::SIG_DFL) };
            Ok(())
        };
        // SAFETY: between fork and exec only `signal` is called, which may be.
        unsafe { command.pre_exec(heed) };
        let child = command.spawn().unwrap();
        wait_for(&place, "lcurve.out");
        signal(&child, name);
        let ended = wait(child);
        assert_eq!(ended.code, Some(status), "{}", ended.stderr);
        let told =
            format!("Stopped by SIG{}. To continue: dp train --restart model.ckpt 'in put.json'", &name[1..]);
        assert!(ended.stderr.contains(&told), "{}", ended.stderr);
        checkpoint::load(&place.path("model.ckpt")).unwrap();
    }
    let place = Place::with_data();
    place.input("input.json", &small_input(100_000_000, 100_000_000));
    let child = place.start("train input.json --zero-on-stop");
    wait_for(&place, "lcurve.out");
    signal(&child, "-TERM");
    wait(child).succeeds();
    // What nohup ignores stays ignored.
    let place = Place::with_data();
    place.input("input.json", &small_input(100_000_000, 50));
    let dp = env!("CARGO_BIN_EXE_dp");
    let mut command = Command::new("sh");
    command.args(["-c", "trap '' HUP; exec \"$0\" train input.json", dp]).current_dir(place.path("."));
    command.env("OMP_NUM_THREADS", "1").stderr(std::process::Stdio::piped());
    let child = command.spawn().unwrap();
    wait_for(&place, "model.ckpt.phx");
    signal(&child, "-HUP");
    std::thread::sleep(Duration::from_millis(300));
    signal(&child, "-TERM");
    assert_eq!(wait(child).code, Some(143));
}

#[test]
fn another_number_of_batches_a_step_is_told_or_kept() {
    let place = Place::with_data();
    let input = |steps, accumulation: u64, keep: bool| {
        let mut input = small_input(steps, 10);
        input["training"]["gradient_accumulation"] = json!(accumulation);
        input["training"]["keep_global_batch"] = json!(keep);
        place.input("input.json", &input);
    };
    input(10, 4, false);
    place.dp("train input.json").succeeds();
    input(20, 2, false);
    let ended = place.dp("train input.json --restart model.ckpt-10").succeeds();
    let told =
        "saved with 4 batches a step and goes on with 2: the learning rate is scaled by 2 instead of 4";
    assert!(ended.stderr.contains(told), "{}", ended.stderr);
    input(20, 2, true);
    let ended = place.dp("train input.json --restart model.ckpt-10").succeeds();
    let told = "training.gradient_accumulation is set to 4 for 1 ranks: a step keeps its 4 batches";
    assert!(ended.stderr.contains(told) && !ended.stderr.contains("goes on with"), "{}", ended.stderr);
}

#[test]
fn what_is_hardly_meant_is_told_at_the_start() {
    let place = Place::with_data();
    let mut input = small_input(10, 10);
    input["training"]["training_data"]["systems"] = json!(["train", "./train"]);
    input["training"]["validation_data"] = json!({"systems": ["train"]});
    place.input("input.json", &input);
    let ended = place.dp("train input.json").succeeds();
    for told in ["training.training_data: 1 system listed more than once", "also in training_data (frame "] {
        assert!(ended.stderr.contains(told), "{told}: {}", ended.stderr);
    }
    std::fs::remove_file(place.path("train/set.000/force.npy")).unwrap();
    let mut input = small_input(1001, 1001);
    input["training"]["disp_freq"] = json!(500);
    input["learning_rate"] = json!({"type": "exp", "start_lr": 1e-3, "stop_lr": 1e-3, "decay_steps": 100});
    place.input("input.json", &input);
    let ended = place.dp("train input.json").succeeds();
    let told = "loss.start_pref_f is not zero, but no system of training.training_data has force.npy";
    assert!(ended.stderr.contains(told), "{}", ended.stderr);
    assert!(ended.stderr.contains("learning_rate: it starts at 1e-3 and is still 1e-3"), "{}", ended.stderr);
}
