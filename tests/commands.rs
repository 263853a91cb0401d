//! Commands that use trained models, against golden files of a real DeePMD-kit and, where `PYTHON` names one, against it itself.

mod common;

use common::{Place, copy, skip, small_system};
use phalanx::Potential;
use phalanx::export::{read_model, read_model_tree};
use phalanx::model::dp::spec::DpModel;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

fn golden_json(name: &str) -> Value {
    serde_json::from_str(&std::fs::read_to_string(golden(name)).unwrap()).unwrap()
}

/// With the models and systems that the golden files were made of.
fn place() -> Place {
    let place = Place::new();
    for (from, to) in [
        ("dp_test/one_side.dp", "one_side.dp"),
        ("dp_test/two_side.dp", "two_side.dp"),
        ("commands/other.dp", "other.dp"),
        ("commands/other_f32.dp", "other_f32.dp"),
        ("commands/small_table.dp", "small_table.dp"),
        ("commands/small_table_f32.dp", "small_table_f32.dp"),
    ] {
        std::fs::copy(golden(from), place.path(to)).unwrap();
    }
    for (from, to) in
        [("bulk", "bulk"), ("cluster", "cluster"), ("bulk", "all/bulk"), ("cluster", "all/cluster")]
    {
        copy(&golden("dp_test").join(from), &place.path(to));
    }
    place
}

/// A command in an environment without any DeePMD-kit.
fn alone(place: &Place, line: &str) -> common::Ended {
    let mut command = place.command(line);
    command.env("PATH", place.path("no_programs_here")).env_remove("PHALANX_DEEPMD").env_remove("DP_BACKEND");
    command.output().unwrap().into()
}

/// Numbers and shape of an npy file of float64 or float32.
fn npy(path: &Path) -> (String, Vec<f64>) {
    let bytes = std::fs::read(path).unwrap();
    let n = 10 + u16::from_le_bytes([bytes[8], bytes[9]]) as usize;
    let header = String::from_utf8_lossy(&bytes[10..n]).trim().replace(", )", ")");
    let numbers = if header.contains("<f4") {
        bytes[n..].chunks_exact(4).map(|b| f64::from(f32::from_le_bytes(b.try_into().unwrap()))).collect()
    } else {
        bytes[n..].chunks_exact(8).map(|b| f64::from_le_bytes(b.try_into().unwrap())).collect()
    };
    (header, numbers)
}

#[track_caller]
fn close(got: &[f64], want: &[f64], tolerance: f64, what: &str) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (k, (g, w)) in got.iter().zip(want).enumerate() {
        assert!((g - w).abs() <= tolerance * (1.0 + w.abs()), "{what}: number {k} is {g} instead of {w}");
    }
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect()
}

/// The first frame of bulk alone.
fn make_single(place: &Place) {
    copy(&place.path("bulk"), &place.path("single"));
    for name in ["coord", "box", "energy", "force", "virial", "fparam", "aparam"] {
        let file = place.path(&format!("single/set.000/{name}.npy"));
        let (header, numbers) = npy(&file);
        let frame = numbers.len() / 3;
        let shape: Vec<usize> = if header.contains("(3,)") { vec![1] } else { vec![1, frame] };
        std::fs::write(&file, common::npy(&shape, &numbers[..frame])).unwrap();
    }
}

#[test]
fn model_devi_writes_the_file_of_deepmd_kit() {
    let place = place();
    make_single(&place);
    for (name, line) in [
        ("devi", "-s all"),
        ("devi_atomic", "-s bulk --atomic -f 10"),
        ("devi_relative", "-s bulk --relative 0.5"),
        ("devi_real", "-s bulk --real_error"),
        ("devi_relative_v", "-s single --relative 0.5 --relative_v 0.25"),
        ("devi_real_relative", "-s single --real_error --relative 0.5 --relative_v 0.25 --atomic"),
    ] {
        place.dp(&format!("model-devi -m one_side.dp other.dp -o {name}.out --device cpu {line}")).succeeds();
        let want = std::fs::read_to_string(golden(&format!("commands/{name}.out"))).unwrap();
        assert_eq!(place.text(&format!("{name}.out")), want, "{name}");
    }
    // A second run adds its lines to those of the first.
    let once = place.text("devi.out");
    place.dp("model-devi -m one_side.dp other.dp -o devi.out -s all").succeeds();
    assert_eq!(place.text("devi.out"), once.repeat(2));
}

#[test]
fn model_devi_refuses_what_it_cannot_compare() {
    let place = place();
    place.dp("model-devi -m one_side.dp two_side.dp -s bulk").fails(&["different frame or atom parameters"]);
    place.dp("model-devi -m one_side.dp absent.dp -s bulk").fails(&["error: absent.dp: "]);
    place.dp("model-devi -s bulk").fails(&["error: graph.000: no such"]);
    place.dp("model-devi -m one_side.dp -s nowhere").fails(&["nowhere"]);
    place.dp("model-devi -m two_side.dp two_side.dp -s cluster").fails(&["fparam"]);
    let line = "model-devi -m one_side.dp other.dp -s bulk --real_error";
    std::fs::remove_file(place.path("bulk/set.000/virial.npy")).unwrap();
    assert!(place.dp(line).succeeds().stderr.contains("found no virial"), "a virial may be missing");
    assert!(place.text("model_devi.out").contains("                nan                nan"));
    std::fs::remove_file(place.path("model_devi.out")).unwrap();
    std::fs::remove_file(place.path("bulk/set.000/force.npy")).unwrap();
    place.dp(line).fails(&["bulk: found no force in every set", "--real_error"]);
    place
        .dp("model-devi -m one_side.dp other.dp -s bulk -o nowhere/devi.out")
        .fails(&["there is no folder nowhere"]);
    assert!(!place.path("model_devi.out").exists());
    let other_types =
        place.text_model("other.dp", |model| model.options.type_map = vec!["O".into(), "X".into()]);
    place
        .dp(&format!("model-devi -m one_side.dp {other_types} -s bulk"))
        .fails(&["must have the same type map"]);
}

trait Changed {
    fn text_model(&self, name: &str, change: impl FnOnce(&mut DpModel)) -> String;
}

impl Changed for Place {
    /// A copy of a model with something changed; its name.
    fn text_model(&self, name: &str, change: impl FnOnce(&mut DpModel)) -> String {
        let mut model = read_model(&self.path(name)).unwrap();
        change(&mut model);
        phalanx::export::write_model(&self.path("changed.yaml"), &model).unwrap();
        "changed.yaml".into()
    }
}

#[test]
fn eval_desc_writes_the_descriptors_of_deepmd_kit() {
    let place = place();
    place.dp("eval-desc -m one_side.dp -s all").succeeds();
    let (header, got) = npy(&place.path("desc/bulk.npy"));
    let (wanted_header, want) = npy(&golden("commands/bulk.npy"));
    assert_eq!(header, wanted_header);
    close(&got, &want, 1e-12, "bulk");
    place.dp("eval-desc -m other_f32.dp -s cluster -o deep/er").succeeds();
    let (header, got) = npy(&place.path("deep/er/cluster.npy"));
    let (wanted_header, want) = npy(&golden("commands/cluster_f32.npy"));
    assert_eq!(header, wanted_header);
    close(&got, &want, 1e-6, "cluster in float32");
    place.write("list.txt", "cluster\nbulk\n");
    place.dp("eval-desc -m one_side.dp -f list.txt -o single --dtype fp32").succeeds();
    let (header, got) = npy(&place.path("single/bulk.npy"));
    assert!(header.contains("'<f4'") && header.contains("(3, 12, 16)"), "{header}");
    close(&got, &npy(&place.path("desc/bulk.npy")).1, 1e-7, "as float32");
}

#[test]
fn eval_desc_leaves_no_half_file() {
    let place = place();
    place.dp("eval-desc -m one_side.dp -s bulk --head a").fails(&["no branch a: the model has one task"]);
    place
        .dp("eval-desc -m one_side.dp -s bulk -o one_side.dp")
        .fails(&["one_side.dp: cannot create the folder"]);
    place.dp("eval-desc -m absent -s bulk").fails(&["absent: no such model file"]);
    copy(&place.path("bulk"), &place.path("all/more/bulk"));
    place.dp("eval-desc -m one_side.dp -s all").fails(&["would both be written to bulk.npy"]);
    assert!(!place.path("desc").exists());
    // A frame that cannot be evaluated, behind others that can.
    let file = place.path("bulk/set.000/coord.npy");
    let (_, mut coord) = npy(&file);
    *coord.last_mut().unwrap() = f64::NAN;
    std::fs::write(&file, common::npy(&[3, 36], &coord)).unwrap();
    place.dp("eval-desc -m one_side.dp -s bulk").fails(&["frame 2: atom 11: the coordinate NaN"]);
    assert_eq!(std::fs::read_dir(place.path("desc")).unwrap().count(), 0);
}

#[test]
fn change_bias_gives_the_bias_of_deepmd_kit() {
    let place = place();
    let want = golden_json("commands/bias.json");
    for model in ["one_side", "two_side"] {
        for (case, line) in
            [("change", "-s bulk"), ("set", "-s bulk -m set"), ("value", "-b -1.5 -2.25"), ("both", "-s all")]
        {
            let Some(want) = want.get(format!("{model} {case}")) else { continue };
            place.dp(&format!("change-bias {model}.dp {line} -o {case}.dp")).succeeds();
            let got = read_model(&place.path(&format!("{case}.dp"))).unwrap();
            // Energies of a float32 model are what they are.
            let tolerance = if model == "one_side" { 1e-9 } else { 1e-5 };
            close(&got.stats.bias, &numbers(&want["bias"]), tolerance, &format!("{model} {case}: bias"));
            close(&got.stats.out_std, &numbers(&want["out_std"]), tolerance, "spread");
            if want.get("fparam_avg").is_some() {
                for (key, got) in [
                    ("fparam_avg", &got.stats.fparam_avg),
                    ("fparam_inv_std", &got.stats.fparam_inv_std),
                    ("aparam_avg", &got.stats.aparam_avg),
                    ("aparam_inv_std", &got.stats.aparam_inv_std),
                ] {
                    close(got, &numbers(&want[key]), 1e-6, &format!("{model} {case}: {key}"));
                }
            }
            // Nothing else changes.
            let mut back = got;
            back.stats = read_model(&place.path(&format!("{model}.dp"))).unwrap().stats;
            assert_eq!(back, read_model(&place.path(&format!("{model}.dp"))).unwrap());
        }
    }
}

#[test]
fn change_bias_of_a_checkpoint_can_be_trained_on() {
    let place = Place::with_data();
    place.input("input.json", &common::small_input(10, 10));
    place.dp("train input.json --skip-neighbor-stat").succeeds();
    place.dp("change-bias model.ckpt -s valid").succeeds();
    let changed = place.path("model.ckpt-10_updated.phx");
    let [before, after] =
        [place.path("model.ckpt-10.phx"), changed].map(|file| phalanx::checkpoint::load(&file).unwrap());
    assert_eq!(before.arrays, after.arrays);
    assert_ne!(before.header["statistics"]["bias"], after.header["statistics"]["bias"]);
    assert_eq!(before.header["statistics"]["davg"], after.header["statistics"]["davg"]);
    place.dp("change-bias model.ckpt -s valid -o changed.dp").succeeds();
    let model = read_model(&place.path("changed.dp")).unwrap();
    assert_eq!(serde_json::json!(model.stats.bias), after.header["statistics"]["bias"]);
    place.dp("test -m model.ckpt-10_updated.phx -s valid").succeeds();
    place.dp("train input.json --skip-neighbor-stat --init-model model.ckpt-10_updated.phx").succeeds();
}

#[test]
fn change_bias_refuses_what_makes_no_sense() {
    let place = place();
    place.dp("change-bias one_side.dp -b 1 2 3").fails(&["found 3 numbers, wanted one for each of"]);
    place.dp("change-bias one_side.dp -b nan 2").fails(&["NaN is not a bias"]);
    place.dp("change-bias one_side.dp -s bulk -o new.pth").fails(&["new.pth: "]);
    place.dp("change-bias one_side.dp -s bulk -o new.phx").fails(&["cannot become a checkpoint"]);
    place.dp("change-bias one_side.dp --model-branch a").fails(&["no branch a: the model has one task"]);
    place.dp("change-bias absent.dp -s bulk").fails(&["absent.dp"]);
    std::fs::remove_file(place.path("bulk/set.000/energy.npy")).unwrap();
    place.dp("change-bias one_side.dp -s bulk").fails(&["bulk: found no energy in every set"]);
    assert!(!place.path("one_side_updated.dp").exists());
}

#[test]
fn convert_backend_goes_between_portable_formats() {
    let place = place();
    for model in ["one_side.dp", "two_side.dp", "small_table.dp", "small_table_f32.dp"] {
        place.dp(&format!("convert-backend {model} there.yaml")).succeeds();
        place.dp("convert-backend there.yaml back.dp").succeeds();
        let tree = read_model_tree(&place.path(model)).unwrap();
        assert_eq!(read_model_tree(&place.path("there.yaml")).unwrap(), tree, "{model}");
        assert_eq!(read_model_tree(&place.path("back.dp")).unwrap(), tree, "{model}");
    }
    place.dp("convert-backend one_side.dp model.onnx").fails(&["extension .onnx"]);
    place.dp("convert-backend absent.dp model.yaml").fails(&["absent.dp: cannot read"]);
    place.dp("convert-backend absent.pth model.dp").fails(&["absent.pth: no such model file"]);
    place.dp("convert-backend one_side.dp nowhere/model.yaml").fails(&["there is no folder nowhere"]);
    place.write("broken.dp", &place.read("one_side.dp")[..9000]);
    place.dp("convert-backend broken.dp model.yaml").fails(&["broken.dp: "]);
    assert!(!place.path("model.yaml").exists() && !place.path("model.dp").exists());
}

#[test]
fn files_of_a_framework_need_deepmd_kit_and_without_it_the_line_is_said() {
    let place = place();
    alone(&place, "convert-backend one_side.dp model.pth").fails(&[
        "this needs an installed DeePMD-kit",
        "dp convert-backend one_side.dp model.pth",
        "PHALANX_DEEPMD",
    ]);
    place.write("graph.pb", "a graph of TensorFlow");
    alone(&place, "convert-backend graph.pb model.dp").fails(&["dp convert-backend graph.pb model.dp"]);
    alone(&place, "freeze -c one_side.dp -o model.pth --convert")
        .fails(&["dp convert-backend model.dp model.pth"]);
    // A program that says that all is well and writes nothing.
    place.script("python3", "exit 0");
    let mut command = place.command("convert-backend one_side.dp model.pth");
    command.env("PHALANX_DEEPMD", place.path("python3"));
    common::Ended::from(command.output().unwrap()).fails(&["did not write model.pth"]);
    // One that fails.
    place.script("python3", "case $* in *-m*) echo no torch >&2; exit 3;; esac");
    let mut command = place.command("convert-backend one_side.dp model.pth");
    command.env("PHALANX_DEEPMD", place.path("python3"));
    common::Ended::from(command.output().unwrap()).fails(&["no torch", "convert-backend", "failed"]);
    let mut command = place.command("convert-backend one_side.dp model.pth");
    command.env("PHALANX_DEEPMD", env!("CARGO_BIN_EXE_dp"));
    common::Ended::from(command.output().unwrap()).fails(&["no DeePMD-kit answers there"]);
    for name in ["model.pth", "model.dp"] {
        assert!(!place.path(name).exists(), "{name}");
    }
    assert!(
        std::fs::read_dir(place.path("."))
            .unwrap()
            .all(|entry| { !entry.unwrap().file_name().to_string_lossy().starts_with(".model-") })
    );
}

trait Script {
    fn script(&self, name: &str, text: &str);
}

impl Script for Place {
    fn script(&self, name: &str, text: &str) {
        use std::os::unix::fs::PermissionsExt;
        self.write(name, format!("#!/bin/sh\n{text}\n"));
        std::fs::set_permissions(self.path(name), std::fs::Permissions::from_mode(0o755)).unwrap();
    }
}

#[test]
fn freeze_and_compress_give_workflows_the_names_that_they_want() {
    let place = place();
    let want = read_model(&place.path("one_side.dp")).unwrap();
    for (backend, ending) in [("--tf", "pb"), ("--pt", "pth")] {
        let frozen = alone(&place, &format!("{backend} freeze -c one_side.dp")).succeeds();
        let name = format!("frozen_model.{ending}");
        assert!(
            frozen.stderr.contains(&format!("{name} is a .dp (HDF5) under another name")),
            "{}",
            frozen.stderr
        );
        assert_eq!(read_model(&place.path(&name)).unwrap(), want);
        let compressed = alone(&place, &format!("{backend} compress")).succeeds();
        assert!(compressed.stderr.contains("without tables"), "{}", compressed.stderr);
        let name = format!("frozen_model_compressed.{ending}");
        assert_eq!(read_model(&place.path(&name)).unwrap(), want);
        // What is in it is what counts, for all commands and for the library, which may get it as bytes.
        alone(&place, &format!("test -m {name} -s bulk")).succeeds();
        Potential::load(&place.path(&name)).unwrap();
        Potential::from_bytes(Path::new(&name), place.read(&name)).unwrap();
        for name in ["frozen_model", "frozen_model_compressed"] {
            std::fs::remove_file(place.path(&format!("{name}.{ending}"))).unwrap();
        }
    }
    alone(&place, "compress -i one_side.dp -o small.dp")
        .fails(&["dp --dp compress -i one_side.dp -o small.dp"]);
    alone(&place, "compress -i absent.pb -o small.pb").fails(&["absent.pb"]);
    place.write("graph.pb", "a graph of TensorFlow");
    alone(&place, "compress -i graph.pb -o small.pb")
        .fails(&["graph.pb: a .pb file is bound to one framework"]);
    alone(&place, "compress -i one_side.dp -o nowhere/small.pb").fails(&["there is no folder nowhere"]);
    assert!(!place.path("small.pb").exists() && !place.path("small.dp").exists());
}

/// Coordinates, cell, types, parameters of the frame and of its atoms.
type Configuration = (Vec<f64>, [f64; 9], Vec<i32>, Vec<f64>, Vec<f64>);

/// Bulk with the numbering of the models, frame by frame.
fn bulk() -> Vec<Configuration> {
    let folder = golden("dp_test/bulk/set.000");
    let load = |name: &str| npy(&folder.join(format!("{name}.npy"))).1;
    let (coord, cell, fparam, aparam) = (load("coord"), load("box"), load("fparam"), load("aparam"));
    let types: Vec<i32> = std::fs::read_to_string(golden("dp_test/bulk/type.raw"))
        .unwrap()
        .split_whitespace()
        .map(|t| 1 - t.parse::<i32>().unwrap()) // O and H there, H and O here
        .collect();
    let n = types.len();
    (0..3)
        .map(|k| {
            let part = |x: &[f64], width: usize| x[k * width..(k + 1) * width].to_vec();
            let cell: [f64; 9] = part(&cell, 9).try_into().unwrap();
            (part(&coord, 3 * n), cell, types.clone(), part(&fparam, 2), part(&aparam, n))
        })
        .collect()
}

#[test]
fn a_compressed_model_is_evaluated_from_its_tables() {
    let want = golden_json("commands/tables.json");
    for (name, tolerance, least) in [("small_table", 1e-12, 1e-9), ("small_table_f32", 2e-6, 1e-3)] {
        let mut model = Potential::load(&golden(&format!("commands/{name}.dp"))).unwrap();
        assert_eq!(model.type_map(), ["O", "H"]);
        let takes_parameters = model.numb_fparam() > 0;
        for (k, (coord, cell, types, fparam, aparam)) in bulk().into_iter().enumerate() {
            let (fparam, aparam) = if takes_parameters { (fparam, aparam) } else { (vec![], vec![]) };
            let out = model.evaluate(&coord, Some(cell), &types, &fparam, &aparam).unwrap();
            let energies = numbers(&want[name]["atom_energy"][k]);
            close(&out.atom_energy, &energies, tolerance, name);
            let nets = numbers(&want[&format!("{name} nets")]["atom_energy"][k]);
            let apart = |got: &[f64]| got.iter().zip(&nets).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
            assert!(apart(&out.atom_energy) > least, "the tables, not the nets");
            if k == 0 {
                // Beyond the end of the tables.
                let mut near = coord.clone();
                for (c, shift) in [0.3, 0.2, 0.1].into_iter().enumerate() {
                    near[3 + c] = near[c] + shift;
                }
                let out = model.evaluate(&near, Some(cell), &types, &fparam, &aparam).unwrap();
                close(&out.atom_energy, &numbers(&want[name]["close"]), tolerance, "close atoms");
            }
        }
    }
}

#[test]
fn forces_of_a_compressed_model_are_the_slope_of_its_energy() {
    let mut model = Potential::load(&golden("commands/small_table.dp")).unwrap();
    let (coord, cell, types, ..) = bulk().swap_remove(0);
    let out = model.evaluate(&coord, Some(cell), &types, &[], &[]).unwrap();
    for x in [0, 4, 17, 35] {
        let mut at = |shift: f64| {
            let mut coord = coord.clone();
            coord[x] += shift;
            model.evaluate(&coord, Some(cell), &types, &[], &[]).unwrap().energy
        };
        let slope = (at(1e-5) - at(-1e-5)) / 2e-5;
        assert!((out.force[x] + slope).abs() < 1e-8, "{} and {slope}", out.force[x]);
    }
}

#[test]
fn damaged_tables_are_refused() {
    let place = place();
    place.dp("convert-backend small_table.dp table.yaml").succeeds();
    let text = place.text("table.yaml");
    assert!(text.contains("compress_info"));
    place.write("lost.yaml", text.replace("compress_info", "compress_lost"));
    place
        .dp("test -m lost.yaml -s bulk")
        .fails(&["model.descriptor.compress.@variables: \"compress_info\" is missing"]);
    place.dp("test -m small_table.dp -s bulk --device cpu").succeeds();
    // The tables are no part of what is trained, so a start from a compressed model takes its nets.
    place.dp("freeze -c small_table.dp -o again.dp").succeeds();
    assert_eq!(
        read_model(&place.path("again.dp")).unwrap(),
        read_model(&place.path("small_table.dp")).unwrap()
    );
}

#[test]
fn commands_that_are_not_here_say_what_to_do_for_each_of_them() {
    let place = Place::new();
    for (line, advice) in [
        ("embed -m model.dp", "dp eval-desc"),
        ("convert-from 1.0 -i a.pb -o b.pb", "dp convert-backend model.pb model.dp"),
        ("transfer -r a.pb", "--init-frz-model"),
        ("train-nvnmd input.json", "DeePMD-kit's `dp train-nvnmd`"),
        ("gui", "dp doc-train-input"),
        ("pretrained download x", "DeePMD-kit's `dp pretrained`"),
    ] {
        place.dp(line).fails(&["is not part of Phalanx yet", advice]);
    }
}

/// What DeePMD-kit itself does with models and systems that no golden file knows.
#[test]
fn the_commands_do_what_an_installed_deepmd_kit_does() {
    let Some(python) = std::env::var_os("PYTHON") else {
        return skip("PYTHON is not set (the python of an installed DeePMD-kit)");
    };
    let kit = |place: &Place, line: &str| {
        let output = Command::new(&python)
            .args(["-m", "deepmd"])
            .args(line.split_whitespace())
            .current_dir(place.path("."))
            .env("OMP_NUM_THREADS", "1")
            .output()
            .unwrap();
        assert!(output.status.success(), "dp {line}: {}", String::from_utf8_lossy(&output.stderr));
    };
    let place = place();
    if !Command::new(&python).args(["-c", "import deepmd"]).output().is_ok_and(|out| out.status.success()) {
        return skip("PYTHON has no DeePMD-kit");
    }
    small_system(&place.path("new"), 2, 5);
    for model in ["one_side", "other"] {
        let mut command = place.command(&format!("convert-backend {model}.dp {model}.pth"));
        common::Ended::from(command.env("PHALANX_DEEPMD", &python).output().unwrap()).succeeds();
    }
    kit(&place, "model-devi -m one_side.pth other.pth -s new -o theirs.out --atomic --relative 1");
    place.dp("model-devi -m one_side.dp other.dp -s new -o ours.out --atomic --relative 1").succeeds();
    assert_eq!(place.text("ours.out"), place.text("theirs.out"));
    kit(&place, "eval-desc -m other.pth -s new -o theirs");
    place.dp("eval-desc -m other.dp -s new -o ours").succeeds();
    let [(ours, got), (theirs, want)] = ["ours", "theirs"].map(|f| npy(&place.path(&format!("{f}/new.npy"))));
    assert_eq!(ours, theirs);
    close(&got, &want, 1e-11, "eval-desc");
    kit(&place, "--pt change-bias other.pth -s new -o theirs.pth");
    kit(&place, "convert-backend theirs.pth theirs.dp");
    place.dp("change-bias other.dp -s new -o ours.dp").succeeds();
    let [ours, theirs] =
        ["ours", "theirs"].map(|f| read_model(&place.path(&format!("{f}.dp"))).unwrap().stats.bias);
    close(&ours, &theirs, 1e-9, "change-bias");
    // A model that we wrote with tables in it still has them there.
    place.dp("convert-backend small_table.dp table.yaml").succeeds();
    place.dp("convert-backend table.yaml table.dp").succeeds();
    let loaded = "from deepmd.dpmodel.utils.serialization import load_dp_model as load; \
                  from deepmd.dpmodel.model.base_model import BaseModel; \
                  assert BaseModel.deserialize(load('table.dp')['model']).atomic_model.descriptor.compress";
    let output = Command::new(&python).args(["-c", loaded]).current_dir(place.path(".")).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn find_lr_proposes_a_rate_and_leaves_nothing_but_its_curve() {
    let place = Place::with_data();
    place.input("input.json", &common::small_input(60, 10));
    let files = || -> Vec<String> {
        let found = std::fs::read_dir(place.path("")).unwrap().flatten();
        found.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    };
    let before = files();
    let ended = place.dp("train input.json --find-lr --device cpu").succeeds();
    assert!(
        ended.stderr.contains("looking for start_lr: 1e-5 to 1e0 in at most 400 steps"),
        "{}",
        ended.stderr
    );
    assert!(ended.stderr.contains("is proposed (the curve is in find_lr.out)"), "{}", ended.stderr);
    let curve = place.text("find_lr.out");
    let rates: Vec<f64> =
        curve.lines().skip(1).map(|line| line.split_whitespace().next().unwrap().parse().unwrap()).collect();
    assert!(rates.len() > 100 && rates.windows(2).all(|two| two[0] < two[1]), "{curve}");
    let new: Vec<_> = files().into_iter().filter(|name| !before.contains(name)).collect();
    assert_eq!(new, ["find_lr.out"]);
}

/// Names that are nearly right, folders in place of files, files in place of others: what was meant is said.
#[test]
fn a_name_that_is_not_there_is_answered_with_what_may_be_meant() {
    let place = Place::with_data();
    place.input("input.json", &common::small_input(10, 10));
    std::fs::create_dir(place.path("examples")).unwrap();
    for (line, texts) in [
        ("train mine.json", ["mine.json: cannot read", "there are input.json"]),
        ("train imput.json", ["imput.json: cannot read", "did you mean `input.json`?"]),
        ("train .", [".: found a folder, wanted an input file", "there are input.json"]),
    ] {
        place.dp(line).fails(&texts);
    }
    let mut input = common::small_input(10, 10);
    input["training"]["training_data"]["systems"] = serde_json::json!(["examples/water/train"]);
    place.input("of_another_folder.json", &input);
    place
        .dp("train of_another_folder.json")
        .fails(&["examples/water/train: no such system", "did you mean `train`?"]);
    place.dp("train input.json").succeeds();
    let mut freeze = place.command("freeze -o");
    let ended: common::Ended = freeze.arg("my model.dp").output().unwrap().into();
    let told = "dp convert-backend 'my model.dp' 'my model.pth'";
    assert!(ended.succeeds().stderr.contains(told));
    std::fs::rename(place.path("my model.dp"), place.path("model.dp")).unwrap();
    for (line, texts) in [
        ("freeze -c modle.ckpt -o x.dp", ["modle.ckpt: no such checkpoint", "did you mean `model.ckpt`?"]),
        (
            "train input.json --restart model.dp",
            ["model.dp: not a checkpoint", "it may be a model file: dp train --init-frz-model"],
        ),
        ("freeze -o nowhere/x.dp", ["nowhere/x.dp: cannot write", "there is no folder nowhere"]),
        ("plot lcuve.out", ["lcuve.out: there is no such file", "did you mean `lcurve.out`?"]),
    ] {
        place.dp(line).fails(&texts);
    }
}
