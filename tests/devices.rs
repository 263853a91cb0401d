//! One policy for every command that takes `--device`: `cuda` is an error where a GPU cannot be had or cannot compute the
//! model; `auto` is the CPU then, told in one line.

mod common;

use common::pinn::{params, structures};
use common::{Ended, Place, run_with, skip, small_input, stand_ins, table_of_pairs, write_outputs};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A command, and one with a model that no kernel can compute.
struct Case {
    program: &'static str,
    line: &'static str,
    refused: &'static str,
    /// Why it is refused.
    why: &'static str,
}

const CASES: [Case; 3] = [
    Case {
        program: env!("CARGO_BIN_EXE_dp"),
        line: "train input.json",
        refused: "train deep.json",
        why: "the embedding net has 9 layers; the GPU takes at most 8",
    },
    Case {
        program: env!("CARGO_BIN_EXE_dp"),
        line: "test -m model.dp -s valid",
        refused: "test -m deep.dp -s valid",
        why: "the embedding net has 9 layers; the GPU takes at most 8",
    },
    Case {
        program: env!("CARGO_BIN_EXE_pinn"),
        line: "train params.yml -t a.xyz -b 2 --train-steps 2 -d model",
        refused: "train wide.yml -t a.xyz -b 2 --train-steps 2 -d wide",
        why: "Fake GPU cannot compute this network: a layer from",
    },
];

/// The beginning of the line that tells of the CPU.
const ON_THE_CPU: &str = "computing on the CPU: ";

/// A folder with what all cases need.
fn prepared() -> Place {
    let place = Place::with_data();
    let input = small_input(2, 2);
    let mut deep = input.clone();
    deep["model"]["descriptor"]["neuron"] = json!(vec![2; 9]);
    for (name, input) in [("input", &input), ("deep", &deep)] {
        place.input(&format!("{name}.json"), input);
        place.dp(&format!("train {name}.json --device cpu")).succeeds();
        let model = if name == "input" { "model" } else { name };
        place.dp(&format!("freeze -c . -o {model}.dp")).succeeds();
    }
    let nodes = |n: usize| {
        format!("pp_nodes: [{n}, {n}], pi_nodes: [{n}, {n}], ii_nodes: [{n}, {n}], out_nodes: [{n}]")
    };
    place.write("params.yml", params(&nodes(6), "", 1e-3, ""));
    place.write("wide.yml", params(&nodes(160), "", 1e-3, ""));
    place.write("a.xyz", structures(4, 1));
    place
}

/// Runs a command with these libraries before all others, and an empty cache of kernels.
fn run(place: &Place, program: &str, line: &str, libraries: &Path, environment: &[(&str, &str)]) -> Ended {
    let mut command = Command::new(program);
    command.args(line.split_whitespace()).current_dir(place.path("")).env("OMP_NUM_THREADS", "1");
    run_with(command, place, libraries, environment)
}

/// `cuda` is an error with these words; `auto` computes and tells of the CPU in one line, with the first of them.
fn check(place: &Place, case: &Case, line: &str, libraries: &Path, env: &[(&str, &str)], words: &[&str]) {
    run(place, case.program, &format!("{line} --device cuda"), libraries, env).fails(words);
    let ended = run(place, case.program, &format!("{line} --device auto"), libraries, env).succeeds();
    told_once(&ended, line, words[0]);
}

#[track_caller]
fn told_once(ended: &Ended, line: &str, word: &str) {
    let told: Vec<&str> = ended.stderr.lines().filter(|said| said.contains(ON_THE_CPU)).collect();
    assert_eq!(told.len(), 1, "{line}: {}", ended.stderr);
    assert!(told[0].contains(word), "{line}: {}", told[0]);
}

fn no_libraries(place: &Place) -> PathBuf {
    let folder = place.path("nothing");
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

fn has_a_driver() -> bool {
    phalanx::gpu::Cuda::find(&|name| std::env::var(name).ok()).is_ok()
}

#[test]
fn without_a_driver_cuda_is_an_error_and_auto_is_the_cpu() {
    if has_a_driver() {
        return skip("there is a driver");
    }
    let place = prepared();
    let folder = no_libraries(&place);
    for case in &CASES {
        run(&place, case.program, &format!("{} --device cuda", case.line), &folder, &[]).fails(&[
            "cannot load the CUDA driver",
            "libcuda.so.1",
            "help: install NVIDIA's driver",
            "--device cpu",
        ]);
        let ended =
            run(&place, case.program, &format!("{} --device auto", case.line), &folder, &[]).succeeds();
        told_once(&ended, case.line, "no CUDA driver was found");
        // What was tried is of no interest to who has no GPU.
        assert!(!ended.stderr.contains("libcuda"), "{}", ended.stderr);
        let ended =
            run(&place, case.program, &format!("{} --device cpu", case.line), &folder, &[]).succeeds();
        assert!(!ended.stderr.contains(ON_THE_CPU), "{}", ended.stderr);
    }
}

#[test]
fn without_nvrtc_cuda_is_an_error_and_auto_is_the_cpu() {
    if has_a_driver() {
        return skip("a machine with a GPU may have NVRTC in the usual folders");
    }
    let place = prepared();
    let Some(folder) = stand_ins(place.path("lib"), &["libcuda.so.1"]) else { return };
    for case in &CASES {
        check(
            &place,
            case,
            case.line,
            &folder,
            &[],
            &["GPU 0: cannot load NVRTC", "pip install nvidia-cuda-nvrtc"],
        );
    }
}

#[test]
fn a_driver_that_is_too_old_or_shows_no_gpu_is_told_of() {
    let place = prepared();
    let Some(folder) = stand_ins(place.path("lib"), &["libcuda.so.1", "libnvrtc.so.13"]) else { return };
    for case in &CASES {
        let old = ["the CUDA driver is too old: it knows CUDA 11.4, wanted 12.0", "update NVIDIA's driver"];
        check(&place, case, case.line, &folder, &[("FAKE_CUDA_VERSION", "11040")], &old);
        let none = ["the CUDA driver shows no GPU", "CUDA_VISIBLE_DEVICES"];
        check(&place, case, case.line, &folder, &[("FAKE_CUDA_DEVICES", "0")], &none);
    }
}

#[test]
fn a_model_that_no_kernel_can_compute_is_an_error_with_cuda_and_goes_to_the_cpu_with_auto() {
    let place = prepared();
    let Some(folder) = stand_ins(place.path("lib"), &["libcuda.so.1", "libnvrtc.so.13"]) else { return };
    for case in &CASES {
        check(&place, case, case.refused, &folder, &[], &[case.why]);
    }
}

/// Descriptors, fitting nets and losses, and keys of the model, that a GPU takes without being asked to.
fn taken() -> Vec<Value> {
    let attention = json!({"type": "se_atten", "sel": 40, "rcut": 4.0, "rcut_smth": 1.0, "neuron": [3, 6], "axis_neuron": 2,
        "attn": 4, "attn_layer": 1, "seed": 1});
    let angles =
        json!({"type": "se_e3", "sel": [24, 40], "rcut": 4.0, "rcut_smth": 1.0, "neuron": [3, 6], "seed": 1});
    let squares = json!({"type": "dos", "start_pref_dos": 1, "limit_pref_dos": 1});
    let tensor = json!({"type": "tensor", "pref": 1, "pref_atomic": 1});
    let with = |pointers: &[(&str, Value)]| {
        let mut input = small_input(2, 2);
        for (pointer, value) in pointers {
            let (section, key) = pointer.rsplit_once('/').unwrap();
            input.pointer_mut(section).unwrap()[key] = value.clone();
        }
        input
    };
    let net = |own: Value| {
        let mut net = json!({"neuron": [6, 6], "seed": 1});
        net.as_object_mut().unwrap().extend(own.as_object().unwrap().clone());
        ("/model/fitting_net", net)
    };
    let dos = net(json!({"type": "dos", "numb_dos": 3}));
    let gap = net(json!({"type": "property", "property_name": "gap", "task_dim": 2}));
    vec![
        with(&[("/model/descriptor", attention.clone())]),
        with(&[dos.clone(), ("/loss", squares.clone())]),
        with(&[("/model/descriptor", angles), dos, ("/loss", squares)]),
        with(&[gap, ("/loss", json!({"type": "property"}))]),
        with(&[net(json!({"type": "dipole"})), ("/loss", tensor.clone())]),
        with(&[("/model/descriptor", attention.clone()), net(json!({"type": "polar"})), ("/loss", tensor)]),
        with(&[
            ("/model/descriptor", attention),
            ("/model/use_srtab", json!("table.txt")),
            ("/model/smin_alpha", json!(0.2)),
            ("/model/sw_rmin", json!(1.5)),
            ("/model/sw_rmax", json!(3.0)),
        ]),
    ]
}

#[test]
fn what_a_gpu_computes_goes_there_with_auto() {
    let place = Place::with_data();
    write_outputs(&place.path("train"), 12);
    place.write("table.txt", table_of_pairs());
    let Some(folder) = stand_ins(place.path("lib"), &["libcuda.so.1", "libnvrtc.so.13"]) else { return };
    for input in taken() {
        place.input("input.json", &input);
        for line in ["train input.json", "test -m model.ckpt -s train -n 2"] {
            let ended =
                run(&place, CASES[0].program, &format!("{line} --device auto"), &folder, &[]).succeeds();
            assert!(!ended.stderr.contains(ON_THE_CPU), "{line}: {}", ended.stderr);
            // Where it is asked for it would be an error that the GPU is not used.
            run(&place, CASES[0].program, &format!("{line} --device cuda"), &folder, &[]).succeeds();
        }
    }
}

#[test]
fn memory_that_does_not_suffice_is_an_error_with_cuda_and_the_cpu_with_auto() {
    let place = prepared();
    let Some(folder) = stand_ins(place.path("lib"), &["libcuda.so.1", "libnvrtc.so.13"]) else { return };
    for case in &CASES {
        check(
            &place,
            case,
            case.line,
            &folder,
            &[("FAKE_CUDA_MEMORY", "3000")],
            &["cannot get", "MB are free"],
        );
    }
}
