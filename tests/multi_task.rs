//! Multi-task training, seen from outside: the real binary, its files, and what DeePMD-kit makes of the same input.

mod common;

use common::place::{by_hand, succeed};
use common::{
    Ended, Place, can_run_kernels, copy, prepare_with, run_with, small_input, small_system, stand_ins,
    write_outputs,
};
use phalanx::Potential;
use phalanx::checkpoint;
use phalanx::data::System;
use phalanx::data::field::Wants;
use phalanx::export::read_model;
use phalanx::sample::BranchDraw;
use phalanx::train::multi::MultiInput;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Stdio;

fn here(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// Two branches with data of their own that share a descriptor.
fn two_branches(steps: u64, save_freq: u64) -> Value {
    let mut input = small_input(steps, save_freq);
    let (model, loss) = (input["model"].take(), input["loss"].take());
    let branch = |neuron: Value| json!({"type_map": "types", "descriptor": "local", "fitting_net": {"neuron": neuron, "seed": 1}});
    input["model"] = json!({
        "shared_dict": {"types": model["type_map"], "local": model["descriptor"]},
        "model_dict": {"wet": branch(json!([6, 6])), "dry": branch(json!([5, 7]))}
    });
    input["model"]["model_dict"]["wet"]["model_branch_alias"] = json!(["Default", "Water"]);
    input["model"]["model_dict"]["dry"]["info"] = json!({"source": "made up"});
    let other = json!({"start_pref_e": 1, "limit_pref_e": 1, "start_pref_f": 10, "limit_pref_f": 1});
    let training = input["training"].as_object_mut().unwrap();
    let data = training.remove("training_data").unwrap();
    training.insert("model_prob".into(), json!({"wet": 0.5, "dry": 1.0}));
    let valid = json!({"systems": ["valid"], "batch_size": 1, "numb_btch": 2});
    training.insert(
        "data_dict".into(),
        json!({"wet": {"training_data": data.clone(), "validation_data": valid},
               "dry": {"training_data": {"systems": ["other"], "batch_size": 3}}}),
    );
    let input = input.as_object_mut().unwrap();
    input.remove("loss");
    input.insert("loss_dict".into(), json!({"wet": loss, "dry": other}));
    json!(input)
}

fn place_with_branches() -> Place {
    let place = Place::with_data();
    small_system(&place.path("other"), 7, 5);
    place
}

/// The arrays of a checkpoint, and the header without what tells of the run's input.
#[track_caller]
fn same_state(a: &Path, b: &Path) {
    let (a, b) = (checkpoint::load(a).unwrap(), checkpoint::load(b).unwrap());
    for key in ["step", "draws", "branches", "engine", "lcurve_bytes"] {
        assert_eq!(a.header[key], b.header[key], "{key}");
    }
    assert_eq!(a.arrays, b.arrays);
}

/// The numbers of a list.
fn numbers(list: &Value) -> Vec<f64> {
    list.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect()
}

/// A GPU whose kernels run on the CPU, for `dp` in a place; nothing where none can be made.
struct StandIn {
    folder: PathBuf,
    path: String,
}

impl StandIn {
    #[track_caller]
    fn new(place: &Place) -> Option<StandIn> {
        let folder = match can_run_kernels() {
            true => stand_ins(place.path("lib"), &["libcuda.so.1", "libnvrtc.so.13"])?,
            false => return None,
        };
        Some(StandIn { folder, path: std::env::var("PATH").unwrap_or_default() })
    }

    fn dp(&self, place: &Place, line: &str, more: &[(&str, &str)]) -> Ended {
        let environment = [&[("FAKE_CUDA_RUNS", "1"), ("PATH", &*self.path)], more].concat();
        run_with(place.command(&format!("{line} --device cuda")), place, &self.folder, &environment)
    }
}

/// Trains a case of `tests/golden/multi_task` and compares what both branches predict afterwards.
#[track_caller]
fn agrees(name: &str, on_gpu: bool) {
    let case: Value = serde_json::from_slice(
        &std::fs::read(here(&format!("tests/golden/multi_task/{name}.json"))).unwrap(),
    )
    .unwrap();
    let place = Place::new();
    for system in ["mix", "mixed"] {
        copy(&here(&format!("tests/golden/se_e2_a/data/{system}")), &place.path(system));
    }
    let branches: Vec<u64> =
        case["branches"].as_array().unwrap().iter().map(|b| b.as_u64().unwrap()).collect();
    let draw = BranchDraw::new(10, &[1.0, 2.0]);
    let own: Vec<u64> = (0..branches.len() as u64).map(|step| draw.at(step) as u64).collect();
    assert_eq!(own, branches, "DeePMD-kit was told to take the branches that are drawn here");
    place.input("input.json", &case["input"]);
    let line = "--pt train --skip-neighbor-stat input.json";
    match on_gpu {
        false => place.dp(line).succeeds(),
        true => {
            let Some(gpu) = StandIn::new(&place) else { return };
            gpu.dp(&place, line, &[]).succeeds()
        }
    };
    for (branch, system) in [("first", "mix"), ("second", "mixed")] {
        place.dp(&format!("freeze --head {branch} -o {branch}.dp")).succeeds();
        let mut model = Potential::load(&place.path(&format!("{branch}.dp"))).unwrap();
        let data =
            System::open(&place.path(system).to_string_lossy(), model.type_map(), &Wants::default()).unwrap();
        let predicted = &case["predicted"][branch];
        let (energies, forces) = (numbers(&predicted["energy"]), predicted["force"].as_array().unwrap());
        let scale = forces.iter().flat_map(numbers).fold(0.0f64, |most, x| most.max(x.abs()));
        for k in 0..data.n_frames {
            let frame = data.read_frame(k).unwrap();
            let out = model.evaluate(&frame.coord, frame.cell, &frame.types, &[], &[]).unwrap();
            let off = (out.energy - energies[k]).abs();
            assert!(
                off < 1e-8 * energies[k].abs().max(1.0),
                "{name}, {branch}, frame {k}: energy {} is off by {off}",
                out.energy
            );
            for (i, (found, want)) in out.force.iter().zip(numbers(&forces[k])).enumerate() {
                let off = (found - want).abs();
                assert!(
                    off < 1e-7 * scale,
                    "{name}, {branch}, frame {k}: force {i} is {found}, wanted {want}"
                );
            }
        }
    }
}

#[test]
fn a_shared_descriptor_is_trained_as_by_deepmd_kit() {
    agrees("shared_descriptor", false);
}

#[test]
fn a_shared_fitting_net_that_is_told_its_branch_is_trained_as_by_deepmd_kit() {
    agrees("shared_fitting", false);
}

#[test]
fn a_shared_type_embedding_is_trained_as_by_deepmd_kit() {
    agrees("shared_types", false);
}

#[test]
fn branches_are_trained_on_a_gpu_as_by_deepmd_kit() {
    for name in ["shared_descriptor", "shared_fitting", "shared_types"] {
        agrees(name, true);
    }
}

/// Two branches, one of them a density of states.
fn of_two_kinds(steps: u64, save_freq: u64) -> Value {
    let mut input = two_branches(steps, save_freq);
    input["model"]["model_dict"]["wet"]["fitting_net"] =
        json!({"type": "dos", "numb_dos": 3, "neuron": [6, 6], "seed": 1});
    input["loss_dict"]["wet"] = json!({"type": "dos", "start_pref_dos": 1, "limit_pref_dos": 1});
    input["training"]["enable_ema"] = json!(true);
    input
}

fn place_of_two_kinds() -> Place {
    let place = place_with_branches();
    write_outputs(&place.path("train"), 12);
    write_outputs(&place.path("valid"), 4);
    place
}

#[test]
fn branches_are_trained_on_a_gpu_as_on_the_cpu_and_go_on_after_a_restart() {
    let place = place_of_two_kinds();
    let Some(gpu) = StandIn::new(&place) else { return };
    let state = |steps: u64| checkpoint::load(&place.path(&format!("model.ckpt-{steps}.phx"))).unwrap();
    let curve = || {
        let text = place.text("lcurve.out");
        let rows = text.lines().filter(|line| !line.starts_with('#'));
        rows.flat_map(str::split_whitespace).map(|x| x.parse().unwrap()).collect::<Vec<f64>>()
    };
    let near = |found: &[Vec<f64>], want: &[Vec<f64>]| {
        assert_eq!(found.len(), want.len());
        for (a, b) in found.iter().flatten().zip(want.iter().flatten()) {
            assert!((a - b).abs() <= 1e-6 * (1.0 + b.abs()), "{a} and {b}");
        }
    };
    place.input("input.json", &of_two_kinds(12, 6));
    place.dp("train input.json --device cpu").succeeds();
    let (cpu, cpu_curve) = (state(12).into_numbers(), curve());
    gpu.dp(&place, "train input.json", &[]).succeeds();
    let whole = state(12);
    let (bits, gpu_curve) = (whole.into_numbers(), curve());
    near(&bits, &cpu);
    assert!(gpu_curve.len() == cpu_curve.len() && !cpu_curve.is_empty());
    for (a, b) in gpu_curve.iter().zip(&cpu_curve) {
        assert!((a - b).abs() <= 0.011 * b.abs() || a.is_nan() && b.is_nan(), "{gpu_curve:?} {cpu_curve:?}");
    }
    gpu.dp(&place, "train input.json --restart model.ckpt-6", &[]).succeeds();
    assert_eq!(state(12).into_numbers(), bits, "a restart has the same bits");

    // Two ranks are one with two draws.
    let mut ranks = of_two_kinds(6, 6);
    ranks["learning_rate"]["scale_by_worker"] = json!("none");
    place.input("input.json", &ranks);
    let environment =
        [("FAKE_CUDA_RUNS", "1"), ("PATH", &*gpu.path), ("PHALANX_SHARE_GPU", "1"), ("PHALANX_NCCL", "0")];
    let mut jobs = by_hand(2, &environment, || {
        let mut command = place.command("train input.json --device cuda");
        prepare_with(&mut command, &place.path("cache"), &gpu.folder);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    });
    jobs.iter_mut().for_each(succeed);
    let two = state(6).into_numbers();
    ranks["training"]["gradient_accumulation"] = json!(2);
    place.input("input.json", &ranks);
    gpu.dp(&place, "train input.json", &[]).succeeds();
    near(&two, &state(6).into_numbers());
}

#[test]
fn a_gpu_that_is_lost_while_branches_are_trained_ends_the_run() {
    let place = place_with_branches();
    let Some(gpu) = StandIn::new(&place) else { return };
    place.input("input.json", &two_branches(20, 2));
    gpu.dp(&place, "train input.json", &[("FAKE_CUDA_LOST_AT", "900")])
        .fails(&["CUDA_ERROR_LAUNCH_FAILED", "is complete. To continue: dp train --restart"]);
}

#[test]
fn branches_go_to_a_gpu_with_auto() {
    let place = place_with_branches();
    let Some(folder) = stand_ins(place.path("lib"), &["libcuda.so.1", "libnvrtc.so.13"]) else { return };
    place.input("input.json", &two_branches(2, 2));
    let ended = run_with(place.command("train input.json --device auto"), &place, &folder, &[]).succeeds();
    assert!(!ended.stderr.contains("computing on the CPU"), "{}", ended.stderr);
}

#[test]
fn a_run_in_two_parts_is_a_run_in_one() {
    let whole = place_with_branches();
    whole.input("input.json", &two_branches(20, 10));
    whole.dp("train --skip-neighbor-stat input.json").succeeds();
    let parts = place_with_branches();
    parts.input("input.json", &two_branches(10, 10));
    parts.dp("train --skip-neighbor-stat input.json").succeeds();
    parts.input("input.json", &two_branches(20, 10));
    parts.dp("train --skip-neighbor-stat --restart model.ckpt input.json").succeeds();
    same_state(&whole.path("model.ckpt-20.phx"), &parts.path("model.ckpt-20.phx"));
    assert_eq!(whole.text("lcurve.out"), parts.text("lcurve.out"));
}

#[test]
fn the_learning_curve_and_the_log_name_the_branches() {
    let place = place_with_branches();
    place.input("input.json", &two_branches(10, 10));
    let log = place.dp("train --skip-neighbor-stat input.json").succeeds().stderr;
    let curve = place.text("lcurve.out");
    let header: Vec<&str> = curve.lines().next().unwrap().split_whitespace().skip(2).collect();
    // As DeePMD-kit: one branch after the other, in the order of the input; training alone where there is no validation data.
    let wet =
        ["rmse", "rmse_e", "rmse_f", "rmse_v"].map(|n| [format!("{n}_val_wet"), format!("{n}_trn_wet")]);
    let dry = ["rmse", "rmse_e", "rmse_f"].map(|n| format!("{n}_trn_dry"));
    let want: Vec<String> = wet.into_iter().flatten().chain(dry).chain(["lr".to_string()]).collect();
    assert_eq!(header, want);
    for row in curve.lines().filter(|line| !line.starts_with('#')) {
        assert_eq!(row.split_whitespace().count(), want.len() + 1, "{row}");
        assert!(!row.contains("nan"), "{row}");
    }
    for text in [
        "Batch      10: wet_trn: rmse = ",
        "Batch      10: wet_val: rmse = ",
        "Batch      10: dry_trn: rmse = ",
    ] {
        assert!(log.contains(text), "{text:?} in {log}");
    }
    assert!(!log.contains("dry_val"), "{log}");
}

#[test]
fn out_json_is_an_input_of_the_same_run() {
    let place = place_with_branches();
    let mut input = two_branches(10, 10);
    input["model"]["shared_dict"]["local"]["sel"] = json!("auto");
    place.input("input.json", &input);
    place.dp("train input.json").succeeds();
    std::fs::rename(place.path("model.ckpt-10.phx"), place.path("first.phx")).unwrap();
    place.dp("train out.json -o again.json").succeeds();
    assert_eq!(place.text("out.json"), place.text("again.json"));
    same_state(&place.path("first.phx"), &place.path("model.ckpt-10.phx"));
}

#[test]
fn commands_take_a_branch_by_its_name_or_alias() {
    let place = place_with_branches();
    place.input("input.json", &two_branches(10, 10));
    place.dp("train --skip-neighbor-stat input.json").succeeds();
    place.dp("freeze --model-branch Water -o wet.dp").succeeds();
    place.dp("freeze --head dry -o dry.dp").succeeds();
    place.dp("freeze -o default.dp").succeeds(); // "wet" is called "Default" too
    let model = |name: &str| read_model(&place.path(name)).unwrap(); // the file also says when it was written
    assert_eq!(model("default.dp"), model("wet.dp"));
    assert_ne!(model("dry.dp"), model("wet.dp"));
    let energies = |line: &str| {
        let log = place.dp(line).succeeds().stderr;
        log.lines()
            .filter(|l| l.contains("Energy RMSE"))
            .map(|l| l.split("Energy").nth(1).unwrap().to_string())
            .collect::<Vec<_>>()
    };
    assert_eq!(
        energies("test -m model.ckpt --head dry -s other -n 0"),
        energies("test -m dry.dp -s other -n 0")
    );
    place.dp("test -m dry.dp --head dry -s other").fails(&["no branch dry: the model has one task"]);
    place.dp("freeze --head ice -o x.dp").fails(&["the model has no branch ice", "wet, Default, Water, dry"]);
    let shown = place.dp("show model.ckpt model-branch type-map size").succeeds().stderr;
    for text in [
        "multitask model",
        "['wet', 'dry', 'RANDOM']",
        "Default, Water",
        "made up",
        "The type_map of branch dry is ['O', 'H']",
    ] {
        assert!(shown.contains(text), "{text:?} in {shown}");
    }
    place.dp("eval-desc -m model.ckpt --head dry -s other -o desc").succeeds();
    place.dp("change-bias model.ckpt --model-branch dry -b -1 -2 -o new.phx").succeeds();
    let (old, new) = (
        checkpoint::load(&place.path("model.ckpt")).unwrap(),
        checkpoint::load(&place.path("new.phx")).unwrap(),
    );
    assert_eq!(new.header["branches"][1]["statistics"]["bias"], json!([-1.0, -2.0]));
    assert_eq!(old.header["branches"][0], new.header["branches"][0]);
}

#[test]
fn fine_tuning_takes_a_branch_or_its_descriptor_alone() {
    let place = place_with_branches();
    place.input("input.json", &two_branches(10, 10));
    place.dp("train --skip-neighbor-stat input.json").succeeds();
    place.dp("freeze --head wet -o wet.dp").succeeds();
    let params = |name: &str| checkpoint::load(&place.path(name)).unwrap().f64s("params").unwrap().to_vec();
    let multi = params("model.ckpt");
    let n = 2 * (3 + 3 + 3 * 6 + 6); // of the descriptor, which stands in front
    let mut single = small_input(1, 1);
    single["learning_rate"] = json!({"type": "exp", "start_lr": 1e-12, "stop_lr": 1e-13, "decay_steps": 5}); // the step is hardly one
    single["training"]["save_ckpt"] = json!("tuned");
    place.input("single.json", &single);
    let is_near =
        |a: &[f64], b: &[f64]| a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-9);
    place.dp("train single.json -t model.ckpt --model-branch Water").succeeds();
    let branch = params("tuned");
    assert!(is_near(&branch, &multi[..branch.len()]), "descriptor and fitting net of the first branch");
    place.dp("train single.json -t wet.dp").succeeds();
    assert!(is_near(&params("tuned"), &branch), "as from its model file");
    place.dp("train single.json -t model.ckpt --model-branch RANDOM").succeeds();
    let random = params("tuned");
    assert!(is_near(&random[..n], &multi[..n]) && !is_near(&random[n..], &branch[n..]));
    // Several branches from several: one goes on, one is adapted, one begins anew.
    let mut input = two_branches(1, 1);
    input["learning_rate"] = json!({"type": "exp", "start_lr": 1e-12, "stop_lr": 1e-13, "decay_steps": 5});
    input["training"]["save_ckpt"] = json!("several");
    let dict = input["model"]["model_dict"].as_object_mut().unwrap();
    let mut adapted = dict["wet"].clone();
    adapted.as_object_mut().unwrap().remove("model_branch_alias");
    adapted["finetune_head"] = json!("wet");
    dict.insert("adapted".into(), adapted.clone());
    adapted["finetune_head"] = json!("RANDOM");
    dict.insert("anew".into(), adapted);
    for name in ["adapted", "anew"] {
        let (data, loss) = (input["training"]["data_dict"]["dry"].clone(), input["loss_dict"]["wet"].clone());
        input["training"]["data_dict"][name] = data;
        input["loss_dict"][name] = loss;
        input["training"]["model_prob"][name] = json!(1.0);
    }
    place.input("several.json", &input);
    place.dp("train several.json -t model.ckpt --model-branch wet").fails(&["finetune_head"]);
    place.dp("train several.json -t model.ckpt").succeeds();
    let several = params("several");
    assert!(is_near(&several[..multi.len()], &multi), "those of the same name go on");
    let fitting = multi.len() - (multi.len() - branch.len()) - n;
    let tail = &several[multi.len()..];
    assert!(is_near(&tail[..fitting], &branch[n..]), "the third has the fitting net of the first");
    assert!(!is_near(&tail[fitting..], &branch[n..]), "the fourth has one of its own");
    let header = checkpoint::load(&place.path("several")).unwrap().header;
    let bias = |b: usize| header["branches"][b]["statistics"]["bias"].clone();
    let before =
        checkpoint::load(&place.path("model.ckpt")).unwrap().header["branches"][0]["statistics"]["bias"]
            .clone();
    assert_eq!(bias(0), before);
    assert_ne!(bias(2), before);
}

#[test]
fn two_ranks_take_turns_together_and_go_on_as_one_where_sums_are_exact() {
    let run = |ranks: usize| {
        let place = place_with_branches();
        let mut input = two_branches(10, 5);
        input["training"]["reproducible"] = json!(true);
        input["training"]["gradient_accumulation"] = json!(2 / ranks);
        place.input("input.json", &input);
        let port = common::free_port().to_string();
        let start = |rank: usize| {
            let mut command = place.command("--pt train --skip-neighbor-stat input.json");
            if ranks > 1 {
                let env = [
                    ("RANK", rank.to_string()),
                    ("WORLD_SIZE", ranks.to_string()),
                    ("LOCAL_RANK", rank.to_string()),
                    ("LOCAL_WORLD_SIZE", ranks.to_string()),
                    ("MASTER_ADDR", "127.0.0.1".into()),
                    ("MASTER_PORT", port.clone()),
                ];
                command.envs(env);
            }
            command.stderr(std::process::Stdio::piped()).spawn().unwrap()
        };
        let children: Vec<_> = (0..ranks).map(start).collect();
        for child in children {
            common::Ended::from(child.wait_with_output().unwrap()).succeeds();
        }
        (checkpoint::load(&place.path("model.ckpt")).unwrap().arrays, place.text("lcurve.out"))
    };
    let (one, two) = (run(1), run(2));
    assert!(one.0 == two.0, "parameters and moments have the same bits");
    assert_eq!(one.1, two.1);
}

#[test]
fn broken_inputs_give_exactly_the_message_beside_them() {
    let folder = here("tests/configs/bad_multi_task");
    let base: Value = two_branches(10, 10);
    let cases: Value = serde_json::from_slice(&std::fs::read(folder.join("cases.json")).unwrap()).unwrap();
    let mut failures = Vec::new();
    for (name, case) in cases.as_object().unwrap() {
        let mut input = base.clone();
        for (pointer, value) in case["set"].as_object().unwrap() {
            let (parent, key) = pointer.rsplit_once('/').unwrap();
            let parent = input.pointer_mut(parent).unwrap().as_object_mut().unwrap();
            match value {
                Value::String(text) if text == "(absent)" => drop(parent.remove(key)),
                value => drop(parent.insert(key.into(), value.clone())),
            }
        }
        let found = match MultiInput::from_value(input, "input.json", || 1) {
            Ok(_) => "no error at all".to_string(),
            Err(e) => e.to_string(),
        };
        let want: Vec<&str> = case["says"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
        if found != want.join("\n") {
            failures.push(format!("{name}\n--- found\n{found}\n--- wanted\n{}", want.join("\n")));
        }
    }
    assert!(cases.as_object().unwrap().len() >= 20);
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}
