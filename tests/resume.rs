//! Restart, stop and crash, seen from outside: the real binary, its files, its exit codes.

mod common;

use common::{Noise, Place, small_input};
use phalanx::checkpoint;
use serde_json::{Value, json};
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

/// The arrays of a checkpoint, and the header without what tells of the run's input.
#[track_caller]
fn same_state(a: &Path, b: &Path) {
    let (a, b) = (checkpoint::load(a).unwrap(), checkpoint::load(b).unwrap());
    for key in ["step", "draws", "statistics", "min_distance", "engine", "lcurve_bytes"] {
        assert_eq!(a.header[key], b.header[key], "{key}");
    }
    assert_eq!(a.arrays, b.arrays);
}

fn wait(child: Child) -> common::Ended {
    child.wait_with_output().unwrap().into()
}

fn signal(child: &Child, name: &str) {
    assert!(Command::new("kill").args([name, &child.id().to_string()]).status().unwrap().success());
}

/// Waits until a file of the run says that training goes on.
fn wait_for(place: &Place, name: &str, holds: impl Fn(&str) -> bool) {
    let began = Instant::now();
    while !std::fs::read_to_string(place.path(name)).is_ok_and(|text| holds(&text)) {
        assert!(began.elapsed() < Duration::from_secs(30), "{name} did not come");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// What differs from the small input.
type Change = fn(&mut Value);

/// The inputs that must all continue exactly.
fn variants() -> Vec<(&'static str, Change)> {
    vec![
        ("plain", |_| ()),
        ("validation", |input| {
            input["training"]["validation_data"] =
                json!({"systems": ["valid"], "batch_size": 1, "numb_btch": 3});
        }),
        ("accumulation", |input| input["training"]["gradient_accumulation"] = json!(3)),
        ("float32", |input| {
            input["model"]["descriptor"]["precision"] = json!("float32");
            input["model"]["fitting_net"]["precision"] = json!("float32");
        }),
        ("tensorboard", |input| {
            input["training"]["tensorboard"] = json!(true);
            input["training"]["tensorboard_freq"] = json!(1);
        }),
        ("direct_adamw", |input| {
            input["model"]["descriptor"]["embedding"] = json!("direct");
            input["optimizer"] = json!({"type": "AdamW", "weight_decay": 0.01});
            input["training"]["gradient_max_norm"] = json!(1.0);
        }),
        ("hybrid_muon", |input| {
            input["optimizer"] = json!({"type": "HybridMuon"});
            input["training"]["gradient_max_norm"] = json!(1.0);
        }),
        ("ada_muon", |input| input["optimizer"] = json!({"type": "AdaMuon"})),
        ("soap", |input| input["optimizer"] = json!({"type": "SOAP", "precondition_frequency": 3})),
        ("mixed_batches", |input| {
            let data = &mut input["training"]["training_data"];
            (data["systems"], data["batch_size"]) = (json!(["train", "valid"]), json!("mixed:3"));
        }),
        ("mixed_atoms", |input| {
            let data = &mut input["training"]["training_data"];
            (data["systems"], data["batch_size"]) = (json!(["train", "valid"]), json!("mix:20"));
        }),
        ("lkf", |input| input["optimizer"] = json!({"type": "LKF", "kf_blocksize": 100})),
        ("property", |input| {
            let property =
                json!({"type": "property", "property_name": "energy", "neuron": [6, 6], "seed": 1});
            input["model"]["fitting_net"] = property;
            input["loss"] = json!({"type": "property", "metric": ["mae", "rmse"]});
            input["training"]["validation_data"] = json!({"systems": ["valid"], "batch_size": 1});
        }),
        ("relu_auto_sel", |input| {
            input["model"]["descriptor"]["activation_function"] = json!("relu");
            input["model"]["descriptor"]["sel"] = json!("auto");
        }),
    ]
}

#[test]
fn n_steps_and_n_more_are_2n_steps_to_the_bit() {
    for (name, change) in variants() {
        let (whole, parts) = (Place::with_data(), Place::with_data());
        let input = |steps| {
            let mut input = small_input(steps, 10);
            change(&mut input);
            input
        };
        whole.input("input.json", &input(40));
        whole.dp("train input.json").succeeds();
        parts.input("input.json", &input(20));
        parts.dp("train input.json").succeeds();
        parts.input("input.json", &input(40));
        parts.dp("train input.json --restart model.ckpt").succeeds();
        assert_eq!(parts.text("lcurve.out"), whole.text("lcurve.out"), "{name}");
        same_state(&parts.path("model.ckpt"), &whole.path("model.ckpt"));
        assert_eq!(parts.text("checkpoint").trim(), "model.ckpt-40.phx", "{name}");
    }
}

/// Nets that become steep fast: the learning rate is high and stays so. Their series are cut into other panels again and again.
#[test]
fn a_run_goes_on_to_the_bit_across_changes_of_panels() {
    for precision in ["float64", "float32"] {
        let mut input = small_input(400, 50);
        input["model"]["descriptor"]["neuron"] = json!([6, 12]);
        for section in ["descriptor", "fitting_net"] {
            input["model"][section]["precision"] = json!(precision);
        }
        input["learning_rate"] = json!({"type": "exp", "start_lr": 0.1, "stop_lr": 0.1, "decay_steps": 100});
        input["training"]["max_ckpt_keep"] = json!(10);
        let whole = Place::with_data();
        whole.input("input.json", &input);
        let ended = whole.dp("train input.json -v DEBUG").succeeds();
        let layouts = ended.stderr.matches("embedding series: ").count();
        assert!(layouts > 4, "{precision}: {layouts} layouts");
        assert!(!ended.stderr.contains("evaluating the net itself"), "{}", ended.stderr);
        for from in [50, 200, 350] {
            let parts = Place::with_data();
            parts.input("input.json", &input);
            for name in ["lcurve.out".to_string(), format!("model.ckpt-{from}.phx")] {
                parts.write(&name, whole.read(&name));
            }
            parts.dp(&format!("train input.json --restart model.ckpt-{from}")).succeeds();
            assert_eq!(parts.text("lcurve.out"), whole.text("lcurve.out"), "{precision}, from step {from}");
            same_state(&parts.path("model.ckpt"), &whole.path("model.ckpt"));
        }
    }
}

#[test]
fn a_run_that_was_asked_to_stop_continues_to_the_bit() {
    for (name, change) in variants().into_iter().take(3) {
        let (whole, parts) = (Place::with_data(), Place::with_data());
        let mut input = small_input(3000, 100_000);
        input["training"]["disp_freq"] = json!(50);
        change(&mut input);
        for place in [&whole, &parts] {
            place.input("input.json", &input);
        }
        let child = parts.start("train input.json");
        wait_for(&parts, "lcurve.out", |text| text.lines().count() > 3);
        signal(&child, "-TERM");
        let ended = wait(child);
        assert_eq!(ended.code, Some(143), "{}", ended.stderr);
        assert!(
            ended
                .stderr
                .contains("Stopped by SIGTERM. To continue: dp train --restart model.ckpt input.json"),
            "{}",
            ended.stderr
        );
        let stopped = checkpoint::load(&parts.path("model.ckpt")).unwrap().header["step"].as_u64().unwrap();
        assert!(stopped > 50 && stopped < 3000, "{name}: stopped at {stopped}");
        if let Some((before, _)) = ended.stderr.split_once(" batches excluded") {
            let excluded: u64 = before.rsplit('(').next().unwrap().parse().unwrap();
            assert!(excluded < stopped, "{name}: {excluded} of {stopped} batches excluded");
        }
        parts.dp("train input.json --restart model.ckpt").succeeds();
        whole.dp("train input.json").succeeds();
        assert_eq!(parts.text("lcurve.out"), whole.text("lcurve.out"), "{name}, stopped at {stopped}");
        same_state(&parts.path("model.ckpt"), &whole.path("model.ckpt"));
    }
}

#[test]
fn a_second_sigint_ends_at_once() {
    let place = Place::with_data();
    let mut input = small_input(1_000_000, 1_000_000);
    // One step of so many draws takes longer than this test has patience.
    input["training"]["gradient_accumulation"] = json!(1_000_000);
    place.input("input.json", &input);
    let mut child = place.start("train input.json");
    std::thread::sleep(Duration::from_millis(1500));
    signal(&child, "-INT");
    std::thread::sleep(Duration::from_millis(400));
    assert!(child.try_wait().unwrap().is_none(), "the step cannot be done yet");
    signal(&child, "-INT");
    let began = Instant::now();
    assert_eq!(wait(child).code, Some(130));
    assert!(began.elapsed() < Duration::from_secs(2));
}

#[test]
fn a_run_that_is_complete_has_nothing_to_continue() {
    let place = Place::with_data();
    place.input("input.json", &small_input(20, 10));
    place.dp("train input.json").succeeds();
    let before = (place.text("lcurve.out"), place.read("model.ckpt-20.phx"));
    let ended = place.dp("train input.json --restart model.ckpt").succeeds();
    assert!(ended.stderr.contains("20 steps are done already"), "{}", ended.stderr);
    assert_eq!(before, (place.text("lcurve.out"), place.read("model.ckpt-20.phx")));
}

#[test]
fn a_checkpoint_is_named_by_prefix_step_file_or_folder() {
    let whole = Place::with_data();
    whole.input("input.json", &small_input(100, 50));
    whole.dp("train input.json").succeeds();
    for name in ["model.ckpt", "model.ckpt-50", "model.ckpt-50.phx", "run", "run/model.ckpt-50"] {
        let place = Place::with_data();
        let mut input = small_input(50, 50);
        if name.starts_with("run") {
            input["training"]["save_ckpt"] = json!("run/model.ckpt");
        }
        place.input("input.json", &input);
        place.dp("train input.json").succeeds();
        input["training"]["numb_steps"] = json!(100);
        place.input("input.json", &input);
        place.dp(&format!("train input.json --restart {name}")).succeeds();
        let folder = if name.starts_with("run") { "run/model.ckpt" } else { "model.ckpt" };
        same_state(&place.path(folder), &whole.path("model.ckpt"));
        assert_eq!(place.text("lcurve.out"), whole.text("lcurve.out"), "{name}");
    }
}

#[test]
fn a_restart_from_an_earlier_checkpoint_cuts_the_learning_curve() {
    let place = Place::with_data();
    place.input("input.json", &small_input(40, 10));
    place.dp("train input.json").succeeds();
    let before = (place.text("lcurve.out"), checkpoint::load(&place.path("model.ckpt-40")).unwrap());
    place.dp("train input.json --restart model.ckpt-10").succeeds();
    assert_eq!(before.0, place.text("lcurve.out"));
    assert_eq!(before.1.arrays, checkpoint::load(&place.path("model.ckpt-40")).unwrap().arrays);
}

/// Parameters of the newest checkpoint.
fn params(place: &Place) -> Vec<f64> {
    checkpoint::load(&place.path("model.ckpt")).unwrap().f64s("params").unwrap().to_vec()
}

#[test]
fn weights_come_from_a_checkpoint_or_a_model_file_and_steps_start_anew() {
    let source = Place::with_data();
    source.input("input.json", &small_input(30, 30));
    source.dp("train input.json").succeeds();
    let frozen = source.dp("freeze -o model.dp").succeeds();
    assert!(frozen.stderr.contains("dp convert-backend model.dp model.pth"), "{}", frozen.stderr);
    let mut results = Vec::new();
    for flags in ["--init-model old.ckpt", "--init-model model.dp", "--init-frz-model model.dp"] {
        let place = Place::with_data();
        place.write("model.dp", source.read("model.dp"));
        place.write("old.ckpt-30.phx", source.read("model.ckpt-30.phx"));
        let mut input = small_input(1, 1);
        input["learning_rate"] =
            json!({"type": "exp", "start_lr": 1e-30, "stop_lr": 1e-31, "decay_steps": 1});
        place.input("input.json", &input);
        place.dp(&format!("train input.json {flags}")).succeeds();
        assert_eq!(place.text("checkpoint").trim(), "model.ckpt-1.phx");
        assert_eq!(params(&place), params(&source), "{flags}: a step of length zero leaves the weights");
        results.push(place.text("lcurve.out"));
    }
    assert!(results.iter().all(|text| *text == results[0]), "{results:?}");
}

/// The root-mean-square energy error that `dp test` reports, eV.
fn energy_mean_error(place: &Place, model: &str) -> f64 {
    place.dp(&format!("test -m {model} -s train -d detail")).succeeds();
    let text = place.text("detail.e.out");
    let pairs: Vec<(f64, f64)> = text
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| {
            let numbers: Vec<f64> = line.split_whitespace().map(|x| x.parse().unwrap()).collect();
            (numbers[0], numbers[1])
        })
        .collect();
    pairs.iter().map(|(data, predicted)| predicted - data).sum::<f64>() / pairs.len() as f64
}

#[test]
fn finetuning_shifts_the_bias_so_that_the_mean_energy_error_vanishes() {
    let place = Place::with_data();
    place.input("input.json", &small_input(30, 30));
    place.dp("train input.json").succeeds();
    place.dp("freeze -o model.dp").succeeds();
    // Energies of another method: a constant on each frame.
    let energies: Vec<f64> = (0..12).map(|k| 70.0 + 0.01 * k as f64).collect();
    place.write("train/set.000/energy.npy", common::npy(&[12, 1], &energies));
    assert!(energy_mean_error(&place, "model.dp").abs() > 50.0);
    let mut input = small_input(1, 1);
    input["learning_rate"] = json!({"type": "exp", "start_lr": 1e-30, "stop_lr": 1e-31, "decay_steps": 1});
    input["training"]["save_ckpt"] = json!("tuned");
    input["model"]["data_stat_nbatch"] = json!(100);
    // The shape is taken from the model, whatever the input says.
    input["model"]["fitting_net"]["neuron"] = json!([99]);
    place.input("tune.json", &input);
    place
        .dp("train tune.json --finetune model.dp")
        .fails(&["the model section differs from the one that was saved"]);
    place.dp("train tune.json --finetune model.dp --use-pretrain-script").succeeds();
    let left = energy_mean_error(&place, "tuned");
    assert!(left.abs() < 1e-6, "mean energy error {left}");
}

#[test]
fn another_model_section_is_refused_and_nothing_is_overwritten() {
    let place = Place::with_data();
    place.input("input.json", &small_input(20, 10));
    place.dp("train input.json").succeeds();
    let before = (place.text("lcurve.out"), place.text("out.json"), place.read("model.ckpt-20.phx"));
    let mut input = small_input(40, 10);
    input["model"]["descriptor"]["rcut"] = json!(4.5);
    place.input("other.json", &input);
    for flag in ["--restart", "--init-model"] {
        place.dp(&format!("train other.json {flag} model.ckpt")).fails(&[
            "the model section differs from the one that was saved: model.descriptor.rcut: 4.0 (saved) / 4.5 (input)",
        ]);
    }
    let mut input = small_input(40, 10);
    input["optimizer"] = json!({"type": "HybridMuon"});
    place.input("other.json", &input);
    place
        .dp("train other.json --restart model.ckpt")
        .fails(&["optimizer.type: Adam (saved) / HybridMuon (input)", "--init-model"]);
    let after = (place.text("lcurve.out"), place.text("out.json"), place.read("model.ckpt-20.phx"));
    assert!(before == after, "a refused run wrote something");
}

/// Full validations of the parameters and of their running mean, every six steps.
fn with_validations(steps: u64) -> Value {
    let mut input = small_input(steps, 10);
    let training = &mut input["training"];
    training["validation_data"] = json!({"systems": ["valid"], "batch_size": 1});
    (training["enable_ema"], training["ema_decay"]) = (json!(true), json!(0.8));
    input["validating"] = json!({
        "full_validation": true, "ema_full_validation": true, "validation_freq": 6, "full_val_start": 0,
        "validation_metric": "f:rmse", "max_best_ckpt": 2, "save_best_dir": "best"
    });
    input
}

#[test]
fn full_validations_and_the_running_mean_continue_to_the_bit() {
    let (whole, parts) = (Place::with_data(), Place::with_data());
    whole.input("input.json", &with_validations(40));
    whole.dp("train input.json").succeeds();
    parts.input("input.json", &with_validations(20));
    parts.dp("train input.json").succeeds();
    parts.input("input.json", &with_validations(40));
    parts.dp("train input.json --restart model.ckpt").succeeds();
    let best = |place: &Place| {
        let entries = std::fs::read_dir(place.path("best")).unwrap();
        let mut names: Vec<String> = entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    };
    assert_eq!(best(&parts), best(&whole));
    assert_eq!(best(&whole).len(), 4, "{:?}", best(&whole));
    for log in ["val.log", "val_ema.log"] {
        assert_eq!(parts.text(log), whole.text(log));
        let rows: Vec<Vec<f64>> = whole
            .text(log)
            .lines()
            .filter(|line| !line.starts_with('#'))
            .map(|line| line.split_whitespace().map(|x| x.parse().unwrap_or(f64::NAN)).collect())
            .collect();
        assert_eq!(rows.iter().map(|row| row[0]).collect::<Vec<_>>(), [6.0, 12.0, 18.0, 24.0, 30.0, 36.0]);
        let least = rows.iter().min_by(|a, b| a[4].total_cmp(&b[4])).unwrap()[0];
        let prefix = if log == "val.log" { "best.ckpt" } else { "best_ema.ckpt" };
        assert!(best(&whole).contains(&format!("{prefix}-{least}.t-1.phx")), "{:?}", best(&whole));
    }
    for name in ["model.ckpt", "model_ema.ckpt"] {
        same_state(&parts.path(name), &whole.path(name));
    }
    let header =
        |place: &Place| checkpoint::load(&place.path("model.ckpt")).unwrap().header["validation"].clone();
    assert_eq!(header(&parts), header(&whole));
    assert_eq!(
        whole.text("checkpoint").trim(),
        "model.ckpt-40.phx",
        "a run goes on from there, not from the mean"
    );
    let mean = |name: &str| checkpoint::load(&whole.path(name)).unwrap().f64s("params").unwrap().to_vec();
    assert_ne!(mean("model_ema.ckpt"), mean("model.ckpt"));
    whole.dp("freeze -c model_ema.ckpt-40.phx -o mean.dp").succeeds();
    whole.dp("test -m mean.dp -s valid").succeeds();
    // What the log says of all frames, in meV, is what `dp test` says.
    for (model, log) in [("model.ckpt-30.phx", "val.log"), ("model_ema.ckpt-30.phx", "val_ema.log")] {
        let tested = whole.dp(&format!("test -m {model} -s valid -n 1000")).succeeds();
        let text = whole.text(log);
        let row: Vec<&str> =
            text.lines().find(|line| line.trim().starts_with("30 ")).unwrap().split_whitespace().collect();
        for (label, column) in
            [("Energy MAE/Natoms", 1), ("Energy RMSE/Natoms", 2), ("Force  MAE ", 3), ("Force  RMSE ", 4)]
        {
            let line = tested
                .stderr
                .lines()
                .find(|line| line.contains(label))
                .unwrap_or_else(|| panic!("{}", tested.stderr));
            let number = line.rsplit(": ").next().unwrap().split_whitespace().next().unwrap();
            let (want, found) =
                (1000.0 * number.parse::<f64>().unwrap(), row[column].parse::<f64>().unwrap());
            assert!((want - found).abs() <= 1e-4 * want, "{model}: {label} {want}, {log} {found}");
        }
    }
}

#[test]
fn a_part_of_all_checkpoints_is_kept() {
    let place = Place::with_data();
    let mut input = small_input(40, 5);
    input["training"]["ckpt_keep_ratio"] = json!(0.3);
    place.input("input.json", &input);
    place.dp("train input.json").succeeds();
    let kept: Vec<bool> =
        [25, 30, 35, 40].map(|step| place.path(&format!("model.ckpt-{step}.phx")).exists()).to_vec();
    assert_eq!(kept, [false, true, true, true], "three of eight");
}

#[test]
fn a_checkpoint_of_another_optimiser_is_refused_and_nothing_is_overwritten() {
    let place = Place::with_data();
    let mut input = small_input(20, 10);
    place.input("input.json", &input);
    place.dp("train input.json").succeeds();
    let before = place.read("model.ckpt-20.phx");
    input["training"]["numb_steps"] = json!(40);
    for optimizer in [json!({"type": "HybridMuon"}), json!({"type": "LKF", "kf_blocksize": 100})] {
        input["optimizer"] = optimizer;
        place.input("input.json", &input);
        let ended = place.dp("train input.json --restart model.ckpt");
        assert_eq!(ended.code, Some(1), "{}", ended.stderr);
        assert!(ended.stderr.contains("begun with another optimizer"), "{}", ended.stderr);
        assert_eq!(place.read("model.ckpt-20.phx"), before);
    }
    place.dp("train input.json --init-model model.ckpt").succeeds();
}

#[test]
fn covariances_that_do_not_fit_into_memory_are_refused_before_they_are_made() {
    let place = Place::with_data();
    let mut input = small_input(20, 10);
    input["model"]["fitting_net"]["neuron"] = json!([1500, 1500]);
    input["optimizer"] = json!({"type": "LKF", "kf_blocksize": 1_000_000_000});
    place.input("input.json", &input);
    let ended = place.dp("train input.json --skip-neighbor-stat");
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
    assert!(
        ended.stderr.contains("covariances of LKF") && ended.stderr.contains("kf_blocksize"),
        "{}",
        ended.stderr
    );
    assert!(!place.path("lcurve.out").exists() && !place.path("model.ckpt.phx").exists());
}

#[test]
fn a_damaged_checkpoint_is_refused_by_name_and_the_previous_one_offered() {
    let place = Place::with_data();
    place.input("input.json", &small_input(30, 10));
    place.dp("train input.json").succeeds();
    let whole = place.read("model.ckpt-30.phx");
    let mut flipped = whole.clone();
    let middle = flipped.len() / 2;
    flipped[middle] ^= 1;
    let cut = whole[..whole.len() - 7].to_vec();
    place.input("input.json", &small_input(40, 10));
    for damaged in [flipped, cut, Vec::new(), b"rubbish".to_vec()] {
        place.write("model.ckpt-30.phx", damaged);
        for line in
            ["train input.json --restart model.ckpt", "freeze -c . -o x.dp", "test -m model.ckpt -s valid"]
        {
            place
                .dp(line)
                .fails(&["model.ckpt-30.phx: ", "model.ckpt-20.phx is complete, continue from that one"]);
        }
    }
    place.dp("train input.json --restart model.ckpt-20").succeeds();
    assert_eq!(place.text("lcurve.out").lines().last().unwrap().split_whitespace().next(), Some("40"));
}

/// Every line has a step above the last one's and as many columns as the header.
#[track_caller]
fn is_whole(lcurve: &str, last: u64) {
    let columns = lcurve.lines().next().unwrap().split_whitespace().count() - 1;
    let rows: Vec<Vec<f64>> = lcurve
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| line.split_whitespace().map(|x| x.parse().unwrap()).collect())
        .collect();
    assert!(rows.iter().all(|row| row.len() == columns), "a broken line in {lcurve}");
    assert!(rows.windows(2).all(|w| w[0][0] < w[1][0]), "a doubled line in {lcurve}");
    assert_eq!(rows.last().unwrap()[0], last as f64);
}

#[test]
fn killed_at_any_moment_the_run_has_a_checkpoint_and_goes_on() {
    const STEPS: u64 = 20_000;
    let (place, whole) = (Place::with_data(), Place::with_data());
    let mut input = small_input(STEPS, 3);
    input["training"]["max_ckpt_keep"] = json!(2);
    for p in [&place, &whole] {
        p.input("input.json", &input);
    }
    let mut noise = Noise(17);
    let mut kills = 0;
    let mut reached = 0;
    for round in 0..24 {
        let line = if reached > 0 { "train input.json --restart model.ckpt" } else { "train input.json" };
        let mut child = place.start(line);
        let moment = Duration::from_secs_f64(0.05 + 0.15 * noise.next().abs());
        std::thread::sleep(moment);
        if child.try_wait().unwrap().is_none() {
            child.kill().unwrap();
            kills += 1;
        }
        child.wait().unwrap();
        if let Ok(state) = checkpoint::load(&place.path("model.ckpt")) {
            let step = state.header["step"].as_u64().unwrap();
            assert!(step >= reached, "round {round}: the run went back from {reached} to {step}");
            reached = step;
        } else {
            assert_eq!(reached, 0, "round {round}: the checkpoints are gone");
        }
        if reached > 0 && round % 6 == 5 {
            place.dp("freeze -o model.dp").succeeds();
            place.dp("test -m model.dp -s valid").succeeds();
        }
    }
    assert!(kills >= 20, "only {kills} runs were killed: they end too early");
    assert!(reached > 0 && reached < STEPS, "reached {reached}");
    place.dp("train input.json --restart model.ckpt").succeeds();
    whole.dp("train input.json").succeeds();
    is_whole(&place.text("lcurve.out"), STEPS);
    assert_eq!(place.text("lcurve.out"), whole.text("lcurve.out"));
    same_state(&place.path("model.ckpt"), &whole.path("model.ckpt"));
}

// --------------------------------------------------------------------------------------- checkpoints of earlier days

/// Runs a program where `examples` is a folder, with arithmetic that is the same on every machine.
fn portable(program: &str, folder: &Path, args: &str) {
    std::os::unix::fs::symlink(
        Path::new(env!("CARGO_MANIFEST_DIR")).join("examples"),
        folder.join("examples"),
    )
    .unwrap();
    let mut command = Command::new(program);
    command.args(args.split_whitespace()).current_dir(folder);
    command.env("PHALANX_ISA", "portable").env("OMP_NUM_THREADS", "1");
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn checkpoints_of_earlier_days_continue_to_the_same_bits() {
    let golden =
        |name: &str| Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/checkpoints").join(name);
    let arrays = |path: &Path| checkpoint::load(path).unwrap_or_else(|e| panic!("{e}")).arrays;

    let folder = tempfile::tempdir().unwrap();
    let args =
        format!("train --restart {} {}", golden("dp-10.phx").display(), golden("input.json").display());
    portable(env!("CARGO_BIN_EXE_dp"), folder.path(), &args);
    let end = arrays(&folder.path().join("model.ckpt-20.phx"));
    assert_eq!(end, arrays(&golden("dp-20.phx")));
    assert_ne!(end, arrays(&golden("dp-10.phx")));

    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("model")).unwrap();
    std::fs::copy(golden("pinn-10.phx"), folder.path().join("model/model.ckpt-10.phx")).unwrap();
    let args = format!(
        "train {} -t examples/pinn/train.yml -e examples/pinn/eval.yml -b 2 --train-steps 20 --ckpt-every 10",
        golden("params.yml").display()
    );
    portable(env!("CARGO_BIN_EXE_pinn"), folder.path(), &args);
    let end = arrays(&folder.path().join("model/model.ckpt-20.phx"));
    assert_eq!(end, arrays(&golden("pinn-20.phx")));
    assert_ne!(end, arrays(&golden("pinn-10.phx")));
}
