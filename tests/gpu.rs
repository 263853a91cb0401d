//! What the host does around a GPU, seen from outside: errors, memory, frames that stream, a device that is lost.
//!
//! A driver without a GPU (`fake/cuda.c`) stands in for the real one, so that this runs everywhere; its kernels do nothing, or run
//! on the CPU (`fake/emulate.h`). Results on a real GPU are checked by `tools/gpu_check.sh`.

mod common;

use common::place::{LONG, Place as JobPlace, my_turn, said, succeed};
use common::{
    ATOMS, Ended, Place, can_run_kernels, npy_of, run_with, skip, small_input, stand_ins, table_of_pairs,
    write_outputs,
};
use phalanx::checkpoint;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// A folder with stand-in libraries, or why there is none.
fn fake(place: &Place, files: &[&str]) -> Option<PathBuf> {
    stand_ins(place.path("lib"), files)
}

const BOTH: [&str; 2] = ["libcuda.so.1", "libnvrtc.so.13"];

/// Runs `dp` with the stand-in libraries before all others, and an empty cache of kernels.
fn dp(place: &Place, folder: &Path, line: &str, environment: &[(&str, &str)]) -> Ended {
    run_with(place.command(line), place, folder, environment)
}

fn prepared(change: impl Fn(&mut Value)) -> Place {
    let place = Place::with_data();
    let mut input = small_input(60, 10);
    change(&mut input);
    place.input("input.json", &input);
    place
}

fn has_a_driver() -> bool {
    let env = |name: &str| std::env::var(name).ok();
    phalanx::gpu::Cuda::find(&env).is_ok()
}

#[test]
fn a_driver_that_is_too_old_or_shows_no_gpu_is_told_by_its_versions() {
    let place = prepared(|_| ());
    let Some(folder) = fake(&place, &BOTH) else { return };
    dp(&place, &folder, "train input.json --device cuda", &[("FAKE_CUDA_VERSION", "11040")])
        .fails(&["the CUDA driver is too old: it knows CUDA 11.4, wanted 12.0", "update NVIDIA's driver"]);
    dp(&place, &folder, "train input.json --device cuda", &[("FAKE_CUDA_DEVICES", "0")])
        .fails(&["the CUDA driver shows no GPU", "CUDA_VISIBLE_DEVICES"]);
    dp(&place, &folder, "train input.json --device cuda:3", &[])
        .fails(&["there is no GPU 3: 1 are visible", "counted from 0"]);
    // With `auto` both are no error.
    dp(&place, &folder, "train input.json", &[("FAKE_CUDA_VERSION", "11040")]).succeeds();
}

#[test]
fn an_absent_nvrtc_or_nccl_is_named_with_what_was_tried() {
    let place = prepared(|_| ());
    let Some(folder) = fake(&place, &["libcuda.so.1"]) else { return };
    if has_a_driver() {
        return skip("a machine with a GPU may have NVRTC in the usual folders");
    }
    dp(&place, &folder, "train input.json --device cuda", &[]).fails(&[
        "GPU 0: cannot load NVRTC, which compiles kernels: tried libnvrtc.so.13, libnvrtc.so.12, libnvrtc.so",
        "pip install nvidia-cuda-nvrtc",
    ]);
    let ended = dp(&place, &folder, "train input.json --device auto", &[]).succeeds();
    assert!(ended.stderr.contains("computing on the CPU: GPU 0: cannot load NVRTC"), "{}", ended.stderr);
    let Some(folder) = fake(&place, &BOTH) else { return };
    dp(&place, &folder, "train input.json --device cuda", &[("PHALANX_NCCL", "1")])
        .fails(&["cannot load NCCL, which joins GPUs: tried libnccl.so.2, libnccl.so", "PHALANX_NCCL=0"]);
}

#[test]
fn a_loss_that_no_kernel_knows_is_refused_by_its_key() {
    let place = prepared(|input| {
        for key in ["start_pref_gf", "limit_pref_gf", "numb_generalized_coord"] {
            input["loss"][key] = json!(1);
        }
    });
    let Some(folder) = fake(&place, &BOTH) else { return };
    let why = "the GPU does not know generalised forces (loss.start_pref_gf)";
    dp(&place, &folder, "train input.json --device cuda", &[]).fails(&[why, "help: use --device cpu"]);
    let ended = dp(&place, &folder, "train input.json --device auto", &[]).succeeds();
    assert!(ended.stderr.contains(&format!("computing on the CPU: {why}")), "{}", ended.stderr);
}

#[test]
fn memory_that_does_not_suffice_is_an_error_that_says_how_much_and_for_what() {
    let place = prepared(|_| ());
    let Some(folder) = fake(&place, &BOTH) else { return };
    let train =
        |memory: &str| dp(&place, &folder, "train input.json --device cuda", &[("FAKE_CUDA_MEMORY", memory)]);
    train("100000").fails(&["Fake GPU: cannot get", "MB for", "MB are free", "training.batch_size"]);
    // What comes last is the memory of a batch: some amount suffices for all but that.
    let enough = |memory: &usize| {
        let ended = train(&memory.to_string());
        ended.code == Some(0) || ended.stderr.contains("for a batch")
    };
    let scarce = (0..60).map(|k| 400_000 + 25_000 * k).find(enough).expect("less than 2 MB").to_string();
    train(&scarce).fails(&["Fake GPU: cannot get", "for a batch", "help: lower training.batch_size"]);
    train("50000000").succeeds();
    // A restart that has too little leaves the checkpoint as it was.
    let before = place.read("model.ckpt-60.phx");
    place.input("input.json", &small_input(80, 10));
    dp(
        &place,
        &folder,
        "train input.json --device cuda --restart model.ckpt",
        &[("FAKE_CUDA_MEMORY", scarce.as_str())],
    )
    .fails(&["for a batch"]);
    assert_eq!(before, place.read("model.ckpt-60.phx"));
    dp(&place, &folder, "train input.json --device cuda --restart model.ckpt", &[]).succeeds();
    assert_eq!(checkpoint::load(&place.path("model.ckpt-80.phx")).unwrap().header["step"], 80);
}

#[test]
fn a_frame_that_is_too_large_says_how_many_ranks_it_needs_and_they_train_it() {
    let _turn = my_turn();
    // 7,200 atoms: 100 MB for one GPU, less for each of several.
    let place =
        JobPlace::new(&[("/training/numb_steps", json!(3)), ("/training/validation_data", json!(null))]);
    place.pile_up(600);
    let Some(folder) = stand_ins(place.path("lib"), &[BOTH[0], BOTH[1], "libnccl.so.2"]) else { return };
    let cache = place.path("cache");
    let environment = [
        ("LD_LIBRARY_PATH", folder.to_str().unwrap()),
        ("XDG_CACHE_HOME", cache.to_str().unwrap()),
        ("FAKE_CUDA_DEVICES", "16"),
        ("FAKE_CUDA_MEMORY", "24000000"),
    ];
    let line = "train input.json --skip-neighbor-stat --device cuda";
    let mut alone = place.alone(line, &environment);
    assert!(!alone.end(LONG), "{}", said(&alone));
    let text = said(&alone);
    assert!(text.contains("MB for a batch of 1 frame of 7200 atoms ("), "{text}");
    let ranks =
        text.split("let ").find_map(|rest| rest.split_once(" ranks with such a GPU each share a batch"));
    let ranks: usize = ranks.expect(&text).0.parse().unwrap();
    assert!((2..=16).contains(&ranks), "{text}");
    place.input(&[
        ("/training/numb_steps", json!(3)),
        ("/training/validation_data", json!(null)),
        ("/training/ranks_per_frame", json!("all")),
    ]);
    for job in &mut place.by_hand(ranks, line, &environment) {
        assert!(job.end(LONG), "{ranks} ranks: {}", said(job));
    }
    assert!(place.path("model.ckpt-3.phx").exists(), "{ranks} ranks");
}

#[test]
fn a_gpu_that_is_lost_ends_the_run_and_the_last_checkpoint_continues() {
    let place = prepared(|_| ());
    let Some(folder) = fake(&place, &BOTH) else { return };
    let ended = dp(&place, &folder, "train input.json --device cuda", &[("FAKE_CUDA_LOST", "37")]).fails(&[
        "cannot start a step: unspecified launch failure (CUDA_ERROR_LAUNCH_FAILED, code 719)",
        "the GPU is lost to this process; restart from the last checkpoint",
    ]);
    let told =
        ended.stderr.lines().find(|line| line.contains("is complete. To continue: dp train --restart"));
    assert!(told.is_some_and(|line| line.contains("model.ckpt-30.phx")), "{}", ended.stderr);
    assert_eq!(checkpoint::load(&place.path("model.ckpt-30.phx")).unwrap().header["step"], 30);
    let ended = dp(&place, &folder, "train input.json --device cuda --restart model.ckpt", &[]).succeeds();
    assert!(ended.stderr.contains("continuing after step 30"), "{}", ended.stderr);
    assert!(place.path("model.ckpt-60.phx").exists());
}

#[test]
fn frames_beyond_the_budget_stream_through_page_locked_memory() {
    let counts = |gpu_memory: f64| -> Option<(usize, usize)> {
        let place = prepared(|input| input["training"]["gpu_memory"] = json!(gpu_memory));
        let folder = fake(&place, &BOTH)?;
        let file = place.path("counts");
        dp(&place, &folder, "train input.json --device cuda", &[("FAKE_CUDA_COUNTS", file.to_str()?)])
            .succeeds();
        let text = place.text("counts");
        let mut numbers = text.split_whitespace().map(|x| x.parse().unwrap());
        Some((numbers.next()?, numbers.next()?))
    };
    let (Some(resident), Some(streamed)) = (counts(0.6), counts(1e-5)) else { return };
    assert_eq!(resident.1, 0, "frames that stay come once, from ordinary memory");
    // 60 steps of two frames; two to four frames stay. The loader is ahead, so that some were prepared for no step.
    assert!(streamed.1 > 80 && streamed.1 <= 120, "{} copies from page-locked memory", streamed.1);
    assert!(streamed.0 > resident.0 && streamed.0 < 120 * 65536 + resident.0, "{} bytes locked", streamed.0);
}

#[test]
fn nets_that_no_series_describes_are_trained_on_the_gpu_and_stay_without_one_after_a_restart() {
    let says = "the embedding net is not smooth enough for a series: evaluating the net itself";
    for (key, value, warns) in [("activation_function", "relu", true), ("embedding", "direct", false)] {
        let place = prepared(|input| input["model"]["descriptor"][key] = json!(value));
        let Some(folder) = fake(&place, &BOTH) else { return };
        let ended = dp(&place, &folder, "train input.json --device cuda", &[]).succeeds();
        assert_eq!(ended.stderr.contains(says), warns, "{}", ended.stderr);
        let header = checkpoint::load(&place.path("model.ckpt-60.phx")).unwrap().header;
        assert_eq!((&header["engine"]["terms"], &header["engine"]["direct"]), (&Value::Null, &json!(true)));
        let mut longer = small_input(80, 10);
        longer["model"]["descriptor"][key] = json!(value);
        place.input("input.json", &longer);
        let ended =
            dp(&place, &folder, "train input.json --device cuda --restart model.ckpt", &[]).succeeds();
        assert!(!ended.stderr.contains(says), "it was found out before: {}", ended.stderr);
        let header = checkpoint::load(&place.path("model.ckpt-80.phx")).unwrap().header;
        assert_eq!(header["engine"]["direct"], true);
    }
}

#[test]
fn kernels_that_run_on_the_cpu_train_as_the_cpu_engine_does() {
    if !can_run_kernels() {
        return;
    }
    // Steps are recorded from the second on, and replayed after that.
    let place = Place::with_data();
    place.input("input.json", &small_input(5, 1));
    let Some(folder) = fake(&place, &BOTH) else { return };
    let path = std::env::var("PATH").unwrap_or_default();
    let on_gpu = [("FAKE_CUDA_RUNS", "1"), ("PATH", path.as_str())];
    let ended = dp(&place, &folder, "train input.json --device cuda", &on_gpu).succeeds();
    assert!(ended.stderr.contains("Fake GPU"), "{}", ended.stderr);
    same_as_on_the_cpu(&place, &folder);
}

/// Parameters and the state of the optimiser of runs on either device, to within `tolerance`; also after a restart, and from one device
/// to the other.
fn trains_as_on_the_cpu(optimizer: Value, tolerance: f64, change: impl Fn(&mut Value)) {
    if !can_run_kernels() {
        return;
    }
    let place = Place::with_data();
    write_outputs(&place.path("train"), 12);
    place.write("table.txt", table_of_pairs());
    let Some(folder) = fake(&place, &BOTH) else { return };
    let path = std::env::var("PATH").unwrap_or_default();
    let on_gpu = [("FAKE_CUDA_RUNS", "1"), ("PATH", path.as_str())];
    let train = |steps: u64, line: &str| {
        let mut input = small_input(steps, 1);
        input["optimizer"] = optimizer.clone();
        change(&mut input);
        place.input("input.json", &input);
        dp(&place, &folder, &format!("train input.json --no-backup {line}"), &on_gpu).succeeds();
        checkpoint::load(&place.path(&format!("model.ckpt-{steps}.phx"))).unwrap().into_numbers()
    };
    let cpu = train(5, "--device cpu");
    let near = |found: &[Vec<f64>]| {
        assert_eq!(found.len(), cpu.len());
        let both = || found.iter().flatten().zip(cpu.iter().flatten());
        let worst = both().map(|(a, b)| (a - b).abs() / (1.0 + b.abs())).fold(0.0, f64::max);
        println!("{optimizer}: {worst:.1e}");
        for (a, b) in both() {
            assert!((a - b).abs() <= tolerance * (1.0 + b.abs()), "{a} on the GPU, {b} on the CPU");
        }
    };
    let gpu = train(5, "--device cuda");
    near(&gpu);
    train(3, "--device cuda");
    assert_eq!(train(5, "--device cuda --restart model.ckpt"), gpu, "a restart has the same bits");
    train(3, "--device cpu");
    near(&train(5, "--device cuda --restart model.ckpt"));
}

/// Batches of frames of eight and of five atoms; the shorter ones come more than once in a batch.
fn mixed_batches(input: &mut Value, batch_size: &str) {
    let few = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/se_e2_a/data/few");
    for (data, own) in [("training_data", "train"), ("validation_data", "valid")] {
        input["training"][data] =
            json!({"systems": [own, few], "batch_size": batch_size, "sys_probs": [0.4, 0.6]});
    }
}

#[test]
fn batches_of_several_systems_train_as_on_the_cpu() {
    for batch_size in ["mixed:6", "mix:29"] {
        trains_as_on_the_cpu(json!({"type": "Adam"}), 1e-9, |input| mixed_batches(input, batch_size));
    }
    trains_as_on_the_cpu(json!({"type": "Adam"}), 1e-6, |input| {
        mixed_batches(input, "mixed:6");
        input["model"]["descriptor"] = by_operations().remove(1);
    });
}

fn clipped(input: &mut Value) {
    input["training"]["gradient_max_norm"] = json!(0.5);
}

#[test]
fn hybrid_muon_moves_parameters_as_on_the_cpu_and_goes_on_after_a_restart() {
    trains_as_on_the_cpu(json!({"type": "HybridMuon"}), 1e-9, clipped);
}

#[test]
fn ada_muon_moves_parameters_as_on_the_cpu_and_goes_on_after_a_restart() {
    trains_as_on_the_cpu(json!({"type": "AdaMuon"}), 1e-9, clipped);
}

#[test]
fn muon_moves_parameters_of_float32_networks_as_on_the_cpu() {
    for optimizer in ["HybridMuon", "AdaMuon"] {
        trains_as_on_the_cpu(json!({"type": optimizer, "lr_adjust": 2.0}), 1e-3, |input| {
            input["model"]["descriptor"]["precision"] = json!("float32");
            input["model"]["fitting_net"]["precision"] = json!("float32");
        });
    }
}

#[test]
fn a_kalman_filter_moves_parameters_as_on_the_cpu_and_goes_on_after_a_restart() {
    for block_size in [40, 150] {
        trains_as_on_the_cpu(json!({"type": "LKF", "kf_blocksize": block_size}), 1e-9, |_| ());
    }
}

/// Descriptors that go to a GPU operation by operation.
fn by_operations() -> Vec<Value> {
    let common = json!({"rcut": 4.0, "rcut_smth": 1.0, "neuron": [3, 6], "seed": 1});
    let with = |own: Value| {
        let mut all = common.clone();
        all.as_object_mut().unwrap().extend(own.as_object().unwrap().clone());
        all
    };
    let attention =
        json!({"type": "se_atten", "sel": 24, "axis_neuron": 2, "attn": 4, "attn_layer": 2, "tebd_dim": 3});
    let strip = json!({"type": "se_atten_v2", "sel": 24, "axis_neuron": 2, "attn_layer": 0, "tebd_dim": 3});
    let pairs = with(json!({"type": "se_e2_a", "sel": [24, 40], "axis_neuron": 2, "type_one_side": true}));
    let angles = with(json!({"type": "se_e3", "sel": [12, 12]}));
    vec![with(attention), with(strip), angles.clone(), json!({"type": "hybrid", "list": [pairs, angles]})]
}

#[test]
fn models_that_go_operation_by_operation_train_as_on_the_cpu_and_go_on_after_a_restart() {
    for (k, descriptor) in by_operations().into_iter().enumerate() {
        trains_as_on_the_cpu(json!({"type": "Adam"}), 1e-6, |input| {
            input["model"]["descriptor"] = descriptor.clone();
            input["training"]["validation_data"] = json!({"systems": ["train"], "batch_size": 1});
            if k == 0 {
                input["training"]["enable_ema"] = json!(true);
                input["training"]["gradient_accumulation"] = json!(2);
                clipped(input);
            }
        });
    }
}

/// Fitting nets that predict no energy, and a loss for each.
fn other_outputs() -> Vec<(Value, Value)> {
    let net = |own: Value| {
        let mut all = json!({"neuron": [6, 6], "seed": 1});
        all.as_object_mut().unwrap().extend(own.as_object().unwrap().clone());
        all
    };
    let squares = json!({"type": "dos", "start_pref_dos": 1, "limit_pref_dos": 2, "start_pref_cdf": 0.5, "limit_pref_cdf": 0.1,
        "start_pref_acdf": 0.2, "limit_pref_acdf": 1});
    let gap = json!({"type": "property", "property_name": "gap", "task_dim": 2, "intensive": true});
    let measures = json!({"type": "property", "loss_func": "rmse", "metric": ["mae", "rmse", "mape"]});
    let tensor = json!({"type": "tensor", "pref": 1, "pref_atomic": 0.5});
    vec![
        (net(json!({"type": "dos", "numb_dos": 3})), squares),
        (net(gap), measures),
        (net(json!({"type": "dipole"})), tensor.clone()),
        (net(json!({"type": "polar", "fit_diag": false, "scale": [1.5, 0.5]})), tensor),
    ]
}

#[test]
fn models_of_other_outputs_train_as_on_the_cpu_and_go_on_after_a_restart() {
    for (k, (fitting, loss)) in other_outputs().into_iter().enumerate() {
        trains_as_on_the_cpu(json!({"type": "Adam"}), 1e-6, |input| {
            (input["model"]["fitting_net"], input["loss"]) = (fitting.clone(), loss.clone());
            input["training"]["validation_data"] = json!({"systems": ["train"], "batch_size": 1});
            if k % 2 == 1 {
                input["model"]["descriptor"] = by_operations().remove(0);
            }
            if k == 0 {
                input["training"]["enable_ema"] = json!(true);
                input["training"]["gradient_accumulation"] = json!(2);
                clipped(input);
            }
        });
    }
}

#[test]
fn models_with_a_table_of_pair_energies_train_as_on_the_cpu_and_go_on_after_a_restart() {
    trains_as_on_the_cpu(json!({"type": "Adam"}), 1e-6, |input| {
        input["model"]["descriptor"] = by_operations().remove(0);
        let table = json!({"use_srtab": "table.txt", "smin_alpha": 0.2, "sw_rmin": 1.5, "sw_rmax": 3.0});
        input["model"].as_object_mut().unwrap().extend(table.as_object().unwrap().clone());
        input["training"]["validation_data"] = json!({"systems": ["train"], "batch_size": 1});
    });
}

#[test]
fn what_is_shown_of_other_outputs_is_what_the_cpu_shows() {
    if !can_run_kernels() {
        return;
    }
    for (fitting, loss) in other_outputs() {
        let place = prepared(|input| {
            *input = small_input(4, 4);
            (input["model"]["fitting_net"], input["loss"]) = (fitting.clone(), loss.clone());
            input["training"]["disp_freq"] = json!(1);
            input["training"]["validation_data"] = json!({"systems": ["valid"], "batch_size": 3});
        });
        write_outputs(&place.path("train"), 12);
        write_outputs(&place.path("valid"), 4);
        let Some(folder) = fake(&place, &BOTH) else { return };
        let path = std::env::var("PATH").unwrap_or_default();
        let on_gpu = [("FAKE_CUDA_RUNS", "1"), ("PATH", path.as_str())];
        // Nobody has to ask for the GPU.
        let ended = dp(&place, &folder, "train input.json", &on_gpu).succeeds();
        assert!(ended.stderr.contains("Fake GPU"), "{}", ended.stderr);
        same_as_on_the_cpu(&place, &folder);
        let test = |device: &str| {
            let line = format!("test -m model.ckpt -s valid -n 2 -d {device} --device {device}");
            dp(&place, &folder, &line, &on_gpu).succeeds();
        };
        test("auto");
        test("cpu");
        let files = std::fs::read_dir(place.path("")).unwrap();
        let names: Vec<String> = files.map(|f| f.unwrap().file_name().into_string().unwrap()).collect();
        let details: Vec<&str> = names.iter().filter_map(|name| name.strip_prefix("cpu.")).collect();
        assert!(!details.is_empty(), "{names:?}");
        for name in details {
            let [gpu, cpu] = ["auto", "cpu"].map(|device| {
                let text = place.text(&format!("{device}.{name}"));
                let rows = text.lines().filter(|line| !line.starts_with('#'));
                let numbers = rows.flat_map(str::split_whitespace).map(|x| x.parse::<f64>().unwrap());
                numbers.collect::<Vec<_>>()
            });
            assert!(!cpu.is_empty() && gpu.len() == cpu.len(), "{name}");
            for (a, b) in gpu.iter().zip(&cpu) {
                assert!((a - b).abs() <= 1e-9 * (1.0 + b.abs()), "{name}: {a} on the GPU, {b} on the CPU");
            }
        }
    }
}

#[test]
fn ranks_that_learn_other_outputs_train_as_one() {
    if !can_run_kernels() {
        return;
    }
    let _turn = my_turn();
    let (fitting, loss) = other_outputs().remove(1);
    let place = |draws: u32| {
        let place = JobPlace::new(&[
            ("/model/fitting_net", fitting.clone()),
            ("/loss", loss.clone()),
            ("/training/numb_steps", json!(4)),
            ("/training/disp_freq", json!(2)),
            ("/training/gradient_accumulation", json!(draws)),
        ]);
        for (name, frames) in [("a", 5), ("b", 3), ("v", 3)] {
            write_outputs(&place.path(name), frames);
        }
        place
    };
    let one = place(2);
    let Some(_) = on_gpus(&one, 1, true, "") else { return };
    for one_gpu in [true, false] {
        let two = place(1);
        on_gpus(&two, 2, one_gpu, "").unwrap();
        same_to_rounding(&two, &one, &format!("two ranks, one GPU for both: {one_gpu}"));
    }
}

#[test]
fn ranks_that_go_operation_by_operation_train_as_one() {
    if !can_run_kernels() {
        return;
    }
    let _turn = my_turn();
    let attention = json!({"type": "se_atten", "sel": 24, "rcut": 3.0, "rcut_smth": 0.5, "neuron": [4, 8], "axis_neuron": 2,
        "attn": 4, "attn_layer": 1, "seed": 1});
    let changes = |draws: u32| {
        [
            ("/model/descriptor", attention.clone()),
            ("/training/numb_steps", json!(4)),
            ("/training/disp_freq", json!(2)),
            ("/training/gradient_accumulation", json!(draws)),
        ]
    };
    let one = JobPlace::new(&changes(2));
    let Some(_) = on_gpus(&one, 1, true, "") else { return };
    for one_gpu in [true, false] {
        let two = JobPlace::new(&changes(1));
        on_gpus(&two, 2, one_gpu, "").unwrap();
        same_to_rounding(&two, &one, &format!("two ranks, one GPU for both: {one_gpu}"));
    }
    let shared = JobPlace::new(&changes(1));
    shared.input(&[("/model/descriptor", attention), ("/training/ranks_per_frame", json!("all"))]);
    let Some(mut jobs) = two_gpus(&shared, &[]) else { return };
    for job in &mut jobs {
        assert!(!job.end(LONG), "{}", said(job));
    }
    let message = "training.ranks_per_frame: on GPUs ranks cannot share frames of this model";
    assert!(said(&jobs[0]).contains(message), "{}", said(&jobs[0]));
}

#[test]
fn dp_test_goes_operation_by_operation_as_on_the_cpu() {
    let place = prepared(|input| input["model"]["descriptor"] = by_operations().remove(2));
    let Some(folder) = fake(&place, &BOTH) else { return };
    dp(&place, &folder, "train input.json --device cpu", &[]).succeeds();
    if !can_run_kernels() {
        return;
    }
    let path = std::env::var("PATH").unwrap_or_default();
    let on_gpu = [("FAKE_CUDA_RUNS", "1"), ("PATH", path.as_str())];
    let test = |device: &str, detail: &str| {
        dp(
            &place,
            &folder,
            &format!("test -m model.ckpt -s train -n 2 -d {detail} --device {device}"),
            &on_gpu,
        )
        .succeeds();
        let numbers =
            |line: &str| line.split_whitespace().map(|x| x.parse::<f64>().unwrap()).collect::<Vec<_>>();
        let text = place.text(&format!("{detail}.f.out"));
        text.lines().filter(|line| !line.starts_with('#')).flat_map(numbers).collect::<Vec<_>>()
    };
    // Nobody has to ask for the GPU.
    let (gpu, cpu) = (test("auto", "gpu"), test("cpu", "cpu"));
    assert!(!cpu.is_empty() && gpu.len() == cpu.len());
    for (a, b) in gpu.iter().zip(&cpu) {
        assert!((a - b).abs() <= 1e-9 * (1.0 + b.abs()), "{a} on the GPU, {b} on the CPU");
    }
}

/// The learning curve.
fn curve(place: &Place) -> Vec<Vec<f64>> {
    let numbers = |line: &str| line.split_whitespace().map(|x| x.parse::<f64>().unwrap()).collect::<Vec<_>>();
    place.text("lcurve.out").lines().filter(|line| !line.starts_with('#')).map(numbers).collect()
}

/// Compares the learning curve of a run with that of the CPU, in as many digits as it has.
fn same_as_on_the_cpu(place: &Place, folder: &Path) {
    let emulated = curve(place);
    dp(place, folder, "train input.json --device cpu", &[]).succeeds();
    let cpu = curve(place);
    assert!(emulated.len() >= 2 && emulated.len() == cpu.len(), "{emulated:?} {cpu:?}");
    for (a, b) in emulated.iter().flatten().zip(cpu.iter().flatten()) {
        assert!((a - b).abs() <= 0.011 * b.abs(), "{emulated:?} {cpu:?}");
    }
}

#[test]
fn batches_of_which_no_two_are_alike_are_trained_by_one_recorded_step() {
    if !can_run_kernels() {
        return;
    }
    // Every frame has other types, some a virtual atom; the last batch of an epoch is smaller.
    let place = Place::with_data();
    let kind = |frame: usize, atom: usize| match (frame * 7 + atom * 3) % 11 {
        0 if atom > 0 => -1i32,
        k => i32::from(k > frame % 9),
    };
    let types: Vec<u8> =
        (0..12).flat_map(|f| (0..ATOMS).map(move |a| kind(f, a))).flat_map(i32::to_le_bytes).collect();
    place.write("train/set.000/real_atom_types.npy", npy_of("<i4", &[12, ATOMS], &types));
    let mut input = small_input(8, 4);
    input["training"]["training_data"]["batch_size"] = json!(5);
    input["training"]["disp_freq"] = json!(2);
    place.input("input.json", &input);
    let Some(folder) = fake(&place, &BOTH) else { return };
    let path = std::env::var("PATH").unwrap_or_default();
    let on_gpu = [("FAKE_CUDA_RUNS", "1"), ("PATH", path.as_str())];
    let parameters = || checkpoint::load(&place.path("model.ckpt-8.phx")).unwrap().into_numbers();
    dp(&place, &folder, "train input.json --device cuda", &on_gpu).succeeds();
    let (first, shown) = (parameters(), curve(&place));
    dp(&place, &folder, "train input.json --device cuda --restart model.ckpt-4", &on_gpu).succeeds();
    assert_eq!(parameters(), first, "from the middle");
    let one_by_one = [on_gpu[0], on_gpu[1], ("PHALANX_GRAPHS", "0")];
    dp(&place, &folder, "train input.json --device cuda", &one_by_one).succeeds();
    assert_eq!((parameters(), curve(&place)), (first, shown), "kernel by kernel");
    same_as_on_the_cpu(&place, &folder);
}

/// Two ranks on two stand-in GPUs, joined by a stand-in NCCL.
fn two_gpus(place: &JobPlace, more: &[(&str, &str)]) -> Option<Vec<common::Job>> {
    let folder = stand_ins(place.path("lib"), &[BOTH[0], BOTH[1], "libnccl.so.2"])?;
    let (cache, folder) = (place.path("cache"), folder.to_str().unwrap());
    let common = [
        ("LD_LIBRARY_PATH", folder),
        ("XDG_CACHE_HOME", cache.to_str().unwrap()),
        ("FAKE_CUDA_DEVICES", "2"),
    ];
    let environment: Vec<_> = common.iter().chain(more).copied().collect();
    Some(place.by_hand(2, "train input.json --device cuda", &environment))
}

#[test]
fn two_gpus_joined_by_nccl_train_as_one_with_twice_the_draws() {
    if !can_run_kernels() {
        return;
    }
    let _turn = my_turn();
    let steps = [("/training/numb_steps", json!(6)), ("/training/disp_freq", json!(2))];
    let parameters = |place: &JobPlace| place.checkpoint("model.ckpt").into_numbers();
    let place = JobPlace::new(&steps);
    let Some(mut jobs) = two_gpus(&place, &[("FAKE_CUDA_RUNS", "1")]) else { return };
    jobs.iter_mut().for_each(succeed);
    assert!(said(&jobs[0]).contains("gradients are added up by NCCL"), "{}", said(&jobs[0]));
    let (curve, joined) = (place.read("lcurve.out"), parameters(&place));
    // One GPU; it needs no NCCL.
    place.input(&[steps[0].clone(), steps[1].clone(), ("/training/gradient_accumulation", json!(2))]);
    let (lib, cache) = (place.path("lib"), place.path("cache"));
    let environment = [
        ("LD_LIBRARY_PATH", lib.to_str().unwrap()),
        ("XDG_CACHE_HOME", cache.to_str().unwrap()),
        ("FAKE_CUDA_RUNS", "1"),
    ];
    succeed(&mut place.alone("train input.json --device cuda", &environment));
    assert_eq!(place.read("lcurve.out"), curve);
    assert_eq!(parameters(&place), joined, "two numbers have the same sum in any order");
}

#[test]
fn two_gpus_share_out_the_blocks_of_a_kalman_filter_as_two_ranks_on_cpus_do() {
    if !can_run_kernels() {
        return;
    }
    let _turn = my_turn();
    let place = JobPlace::new(&[
        ("/training/numb_steps", json!(3)),
        ("/training/disp_freq", json!(1)),
        ("/optimizer", json!({"type": "LKF", "kf_blocksize": 100})),
    ]);
    let parameters = || place.checkpoint("model.ckpt").into_numbers();
    let Some(mut jobs) = two_gpus(&place, &[("FAKE_CUDA_RUNS", "1")]) else { return };
    jobs.iter_mut().for_each(succeed);
    let on_gpus = parameters();
    place.by_hand(2, "train input.json --device cpu", &[]).iter_mut().for_each(succeed);
    let on_cpus = parameters();
    assert_eq!(on_gpus.len(), on_cpus.len());
    for (a, b) in on_gpus.iter().flatten().zip(on_cpus.iter().flatten()) {
        assert!((a - b).abs() <= 1e-9 * (1.0 + b.abs()), "{a} on GPUs, {b} on CPUs");
    }
}

#[test]
fn what_a_kalman_filter_cannot_have_on_a_gpu_is_refused_before_training() {
    let place = prepared(|input| input["optimizer"] = json!({"type": "LKF"}));
    let Some(folder) = fake(&place, &BOTH) else { return };
    let train =
        |memory: &str| dp(&place, &folder, "train input.json --device cuda", &[("FAKE_CUDA_MEMORY", memory)]);
    train("600000").fails(&[
        "optimizer: the covariances of LKF are",
        "of GPU memory are free",
        "optimizer.kf_blocksize",
    ]);
    let mut input = small_input(60, 10);
    input["optimizer"] = json!({"type": "LKF"});
    input["training"]["gradient_accumulation"] = json!(2);
    place.input("input.json", &input);
    train("50000000").fails(&[
        "training.gradient_accumulation: on a GPU LKF takes one batch a step",
        "training.batch_size",
    ]);
}

/// What `n` ranks train on stand-in GPUs whose kernels run: one for each, or one for all.
fn on_gpus(place: &JobPlace, n: usize, one_gpu: bool, args: &str) -> Option<Vec<common::Job>> {
    let folder = stand_ins(place.path("lib"), &[BOTH[0], BOTH[1], "libnccl.so.2"])?;
    let (cache, devices) = (place.path("cache"), n.to_string());
    let environment = [
        ("LD_LIBRARY_PATH", folder.to_str().unwrap()),
        ("XDG_CACHE_HOME", cache.to_str().unwrap()),
        ("FAKE_CUDA_RUNS", "1"),
        ("FAKE_CUDA_DEVICES", if one_gpu { "1" } else { &devices }),
        ("PHALANX_SHARE_GPU", if one_gpu { "1" } else { "0" }),
    ];
    let mut jobs = place.by_hand(n, &format!("train input.json --device cuda {args}"), &environment);
    jobs.iter_mut().for_each(succeed);
    Some(jobs)
}

/// The numbers of a checkpoint and of the learning curve are those of another run, to rounding.
fn same_to_rounding(found: &JobPlace, want: &JobPlace, about: &str) {
    let numbers = [found, want].map(|place| place.checkpoint("model.ckpt").into_numbers().concat());
    for (k, (a, b)) in numbers[0].iter().zip(&numbers[1]).enumerate() {
        assert!(
            (a - b).abs() <= 1e-9 * b.abs().max(1e-3),
            "{about}: number {k} of the checkpoint: {a} and {b}"
        );
    }
    let curves = [found, want].map(|place| {
        let text = place.read("lcurve.out");
        let rows = text.lines().filter(|line| !line.starts_with('#'));
        rows.flat_map(str::split_whitespace).map(|x| x.parse::<f64>().unwrap()).collect::<Vec<_>>()
    });
    assert_eq!(curves[0].len(), curves[1].len(), "{about}");
    for (a, b) in curves[0].iter().zip(&curves[1]) {
        // A column without labels holds no numbers.
        let is_same = (a - b).abs() <= 0.011 * b.abs() || a.is_nan() && b.is_nan();
        assert!(is_same, "{about}: {a} and {b} in the learning curve");
    }
}

/// A short run with all that a frame can have: batches of two, virials, energies of atoms, validation.
fn shared(ranks_per_frame: Value, more: &[(&'static str, Value)]) -> Vec<(&'static str, Value)> {
    let mut changes = vec![
        ("/training/ranks_per_frame", ranks_per_frame),
        ("/training/numb_steps", json!(5)),
        ("/training/disp_freq", json!(2)),
        ("/training/save_freq", json!(3)),
        ("/training/training_data/batch_size", json!(2)),
        ("/loss/start_pref_v", json!(0.1)),
        ("/loss/limit_pref_v", json!(0.1)),
        ("/validating", json!({"full_validation": true, "validation_freq": 2, "full_val_start": 0})),
    ];
    changes.extend_from_slice(more);
    changes
}

#[test]
fn gpus_that_share_a_frame_train_as_one() {
    if !can_run_kernels() {
        return;
    }
    let _turn = my_turn();
    let one = JobPlace::new(&shared(json!(1), &[]));
    let Some(_) = on_gpus(&one, 1, true, "") else { return };
    for (n, one_gpu) in [(2, false), (3, true), (4, false)] {
        let found = JobPlace::new(&shared(json!("all"), &[]));
        let Some(jobs) = on_gpus(&found, n, one_gpu, "") else { return };
        let about = format!("{n} ranks, one GPU for all: {one_gpu}");
        assert_eq!(said(&jobs[0]).contains("gradients are added up by NCCL"), !one_gpu, "{about}");
        let line = format!("the first batch in {n} blocks: the largest has");
        assert_eq!(jobs[0].lines_with(&line).count(), 1, "{}", said(&jobs[0]));
        same_to_rounding(&found, &one, &about);
        assert_eq!(found.read("val.log").lines().count(), one.read("val.log").lines().count(), "{about}");
    }
}

#[test]
fn groups_of_gpus_have_a_batch_each_and_a_run_goes_on_with_others() {
    if !can_run_kernels() {
        return;
    }
    let _turn = my_turn();
    let one = JobPlace::new(&shared(json!(1), &[("/training/gradient_accumulation", json!(2))]));
    let Some(_) = on_gpus(&one, 1, true, "") else { return };
    let found = JobPlace::new(&shared(json!(2), &[]));
    on_gpus(&found, 4, false, "").unwrap();
    same_to_rounding(&found, &one, "two groups of two");
    let bits = found.checkpoint("model.ckpt").into_numbers();
    on_gpus(&found, 4, false, "--restart model.ckpt-3").unwrap();
    assert!(found.checkpoint("model.ckpt").into_numbers() == bits, "a restart has the same bits");
    found.input(&shared(json!(3), &[("/training/gradient_accumulation", json!(2))]));
    on_gpus(&found, 3, true, "--restart model.ckpt-3").unwrap();
    same_to_rounding(&found, &one, "three ranks for a frame from step 3");
}

/// The device of a rank that is left waits for ever; the host must not.
#[test]
fn a_rank_that_dies_while_gpus_wait_for_each_other_is_named_by_the_others() {
    let _turn = my_turn();
    // Where all steps are saved the others wait in a save, else for the device to catch up.
    for (signal, save_freq, ranks_per_frame) in [
        (libc::SIGKILL, 50, 1),
        (libc::SIGSTOP, 50, 1),
        (libc::SIGKILL, 1, 1),
        (libc::SIGKILL, 50, 2),
        (libc::SIGSTOP, 50, 2),
    ] {
        let place = JobPlace::new(&[
            ("/training/numb_steps", json!(100_000_000)),
            ("/training/disp_freq", json!(10_000_000)),
            ("/training/save_freq", json!(save_freq)),
            ("/training/stall_timeout", json!(3)),
            ("/training/ranks_per_frame", json!(ranks_per_frame)),
        ]);
        let Some(mut jobs) = two_gpus(&place, &[("FAKE_NCCL_PATIENCE", "1")]) else { return };
        let deadline = std::time::Instant::now() + LONG;
        while !place.path("model.ckpt.phx").exists() {
            assert!(std::time::Instant::now() < deadline, "no checkpoint: {}", said(&jobs[0]));
            jobs[0].listen(std::time::Duration::from_millis(20), |_| false);
        }
        let pid = jobs[1].child.id() as i32;
        // SAFETY: a signal to a process that this test started.
        assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
        assert!(!jobs[0].end(LONG), "rank 0 ended well");
        assert!(said(&jobs[0]).contains("rank 1"), "{}", said(&jobs[0]));
        let _ = jobs[1].child.kill();
        let _ = jobs[1].child.wait();
        assert!(place.checkpoint("model.ckpt").header["step"].as_u64().unwrap() >= save_freq);
    }
}
