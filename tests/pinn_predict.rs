//! `pinn predict` and what stands behind it, and PiNN's own checkpoints in both directions.
//!
//! `golden/pinn_tf` was made by real PiNN 2.0.0 (c1cfd5c) with tensorflow-cpu 2.15.1: `tools/check_pinn.py PINN_SOURCE golden FOLDER`;
//! `tools/check_pinn.py PINN_SOURCE check PINN` does with PiNN itself what these tests do with its files.

mod common;

use common::pinn::{small, structures};
use phalanx::model::dp::options::Precision;
use phalanx::pinn::predict::PinetPotential;
use phalanx::pinn::tensorflow::bundle;
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};

const CASES: [&str; 4] = ["pinet", "pinet2", "pinet2_weighted", "dipole"];
/// float32, and sums in another order, over three steps.
const TOLERANCE: f64 = 2e-5;

fn pinn(folder: &Path, args: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pinn"));
    command.args(args.split_whitespace()).current_dir(folder).env("OMP_NUM_THREADS", "1");
    command.output().unwrap()
}

fn well(folder: &Path, args: &str) -> String {
    let done = pinn(folder, args);
    assert!(done.status.success(), "pinn {args}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8_lossy(&done.stdout).into_owned()
}

fn badly(folder: &Path, args: &str) -> String {
    let done = pinn(folder, args);
    assert_eq!(done.status.code(), Some(1), "pinn {args}");
    String::from_utf8_lossy(&done.stderr).into_owned()
}

/// A copy of a golden case as the folder `model`.
fn golden(case: &str) -> tempfile::TempDir {
    let place = tempfile::tempdir().unwrap();
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/pinn_tf").join(case);
    std::fs::create_dir(place.path().join("model")).unwrap();
    for entry in std::fs::read_dir(&from).unwrap().flatten() {
        std::fs::copy(entry.path(), place.path().join("model").join(entry.file_name())).unwrap();
    }
    place
}

fn near(got: &[f64], want: &[f64], what: &str) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (k, (got, want)) in got.iter().zip(want).enumerate() {
        assert!((got - want).abs() < TOLERANCE * (1.0 + want.abs()), "{what}: number {k}: {got} and {want}");
    }
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().into_iter().flatten().map(|x| x.as_f64().unwrap()).collect()
}

/// Compares a folder's predictions with those of PiNN at a step.
fn compare(place: &Path, step: &str, case: &str) {
    let text = std::fs::read_to_string(place.join("model/predicted.json")).unwrap();
    let want = &serde_json::from_str::<Value>(&text).unwrap()[step];
    let source =
        phalanx::pinn::data::detect::open(place.join("model/frame.xyz").to_str().unwrap(), "auto").unwrap();
    let sample = source.read_as_stored(0).unwrap();
    let mut potential = PinetPotential::load(&place.join("model")).unwrap();
    let found = potential.evaluate_all(&[sample]).map_err(|(_, e)| e).unwrap().remove(0);
    near(found.energy.as_slice(), &numbers(&want["energy"]), &format!("{case}: energy"));
    near(&found.forces, &numbers(&want["forces"]), &format!("{case}: forces"));
    near(found.stress.as_ref().map_or(&[], |s| s), &numbers(&want["stress"]), &format!("{case}: stress"));
    near(&found.charges, &numbers(&want["charges"]), &format!("{case}: charges"));
}

#[test]
fn what_pinn_trained_predicts_the_same_here_and_is_continued_to_the_same_weights() {
    for case in CASES {
        let place = golden(case);
        compare(place.path(), "3", case);
        let model = place.path().join("model");
        let want = bundle::read(&model.join("model.ckpt-6")).unwrap();
        std::fs::remove_file(bundle::index_of(&model.join("model.ckpt-6"))).unwrap();
        well(
            place.path(),
            "train model -t model/frame.xyz -e model/frame.xyz -b 1 --train-steps 6 --device cpu",
        );
        compare(place.path(), "6", case);
        // The checkpoint of PiNN that was written has PiNN's names, moments and numbers.
        let found = bundle::read(&model.join("model.ckpt-6")).unwrap();
        assert_eq!(found.keys().collect::<Vec<_>>(), want.keys().collect::<Vec<_>>(), "{case}");
        for (name, want) in &want {
            assert_eq!((&found[name].shape, found[name].kind), (&want.shape, want.kind), "{case}: {name}");
            near(&found[name].numbers, &want.numbers, &format!("{case}: {name}"));
        }
        let state = std::fs::read_to_string(model.join("checkpoint")).unwrap();
        assert!(state.starts_with("model_checkpoint_path: \"model.ckpt-6\"\n"), "{state}");
    }
}

#[test]
fn a_checkpoint_of_another_network_or_a_damaged_one_is_refused() {
    let place = golden("pinet");
    let params = place.path().join("model/params.yml");
    let text = std::fs::read_to_string(&params).unwrap();
    std::fs::write(&params, text.replace("depth: 2", "depth: 3")).unwrap();
    let said = badly(place.path(), "predict model model/frame.xyz");
    assert!(said.contains("there is no pi_net/") && said.contains("describes another network"), "{said}");
    std::fs::write(&params, text).unwrap();
    let data = bundle::data_of(&place.path().join("model/model.ckpt-3"));
    let mut bytes = std::fs::read(&data).unwrap();
    bytes[40] ^= 4;
    std::fs::write(&data, bytes).unwrap();
    let said = badly(place.path(), "predict model model/frame.xyz");
    assert!(said.contains("model.ckpt-3") && said.contains("checksum"), "{said}");
}

/// A folder with a network that was trained a little, and `a.xyz`.
fn trained(params: &str) -> tempfile::TempDir {
    let place = tempfile::tempdir().unwrap();
    std::fs::write(place.path().join("a.xyz"), structures(4, 1)).unwrap();
    std::fs::write(place.path().join("params.yml"), params).unwrap();
    well(
        place.path(),
        "train params.yml -t a.xyz -e a.xyz -b 2 --train-steps 8 --ckpt-every 4 --max-ckpts 1 --device cpu",
    );
    place
}

#[test]
fn forces_and_stress_are_slopes_of_the_energy() {
    let dressed = small(1e-2)
        .replace("use_force: true", "use_force: true, e_scale: 2.0, e_unit: 3.5, e_dress: {1: 0.5, 8: -2.0}");
    for params in [dressed.clone(), dressed.replace("name: PiNet", "name: PiNet2")] {
        let place = trained(&params);
        let mut potential = PinetPotential::load(&place.path().join("model")).unwrap();
        potential = potential.with_precision(Precision::Float64).unwrap();
        let elems = [8, 1, 1, 8, 1, 1];
        let coord: Vec<f64> = (0..18).map(|k| 2.4 * (k as f64 * 1.7).sin() + 0.3 * k as f64).collect();
        // Left-handed, so that the sign of the volume matters.
        let cell = [0.3, 5.2, 0.0, 5.0, 0.0, 0.4, 0.0, -0.6, 5.6];
        let found = potential.evaluate(&elems, &coord, Some(cell)).unwrap();
        let volume = 5.2 * (5.0 * 5.6) - 0.3 * (0.4 * 0.6);
        let step = 1e-4;
        let mut slope = |change: &dyn Fn(f64) -> (Vec<f64>, [f64; 9])| {
            let mut at = |h: f64| {
                let (coord, cell) = change(h);
                potential.evaluate(&elems, &coord, Some(cell)).unwrap().energy.unwrap()
            };
            (at(step) - at(-step)) / (2.0 * step)
        };
        for k in 0..18 {
            let moved = |h: f64| {
                let mut coord = coord.clone();
                coord[k] += h;
                (coord, cell)
            };
            let want = -slope(&moved);
            assert!((found.forces[k] - want).abs() < 1e-6, "force {k}: {} and {want}", found.forces[k]);
        }
        let stress = found.stress.unwrap();
        for k in 0..9 {
            let strained = |h: f64| {
                let turn = |x: &[f64]| -> Vec<f64> {
                    x.chunks(3)
                        .flat_map(|x| {
                            (0..3)
                                .map(|b| x[b] + if b == k % 3 { h * x[k / 3] } else { 0.0 })
                                .collect::<Vec<_>>()
                        })
                        .collect()
                };
                (turn(&coord), turn(&cell).try_into().unwrap())
            };
            let want = slope(&strained) / volume;
            assert!((stress[k] - want).abs() < 1e-7, "stress {k}: {} and {want}", stress[k]);
        }
    }
}

#[test]
fn predictions_are_extended_xyz_and_old_checkpoints_take_their_copies_with_them() {
    let place = trained(&small(1e-2));
    let said = well(place.path(), "predict model a.xyz");
    well(place.path(), "predict model/model.ckpt-8.phx a.xyz -o out.xyz");
    assert_eq!(std::fs::read_to_string(place.path().join("out.xyz")).unwrap(), said);
    let again =
        phalanx::pinn::data::detect::open(place.path().join("out.xyz").to_str().unwrap(), "auto").unwrap();
    assert_eq!(again.len(), 4);
    let mut potential = PinetPotential::load(&place.path().join("model")).unwrap();
    for k in 0..4 {
        let sample = again.read_as_stored(k).unwrap();
        let cell = sample.cell.map(|rows| rows.as_flattened().try_into().unwrap());
        let found = potential.evaluate(&sample.elems, sample.coord.as_flattened(), cell).unwrap();
        assert!((found.energy.unwrap() - sample.e_data.unwrap()).abs() < 1e-8);
        let forces = sample.f_data.unwrap();
        assert!(forces.as_flattened().iter().zip(&found.forces).all(|(a, b)| (a - b).abs() < 1e-8));
        assert!(sample.s_data.is_some());
    }
    let mut names: Vec<String> = std::fs::read_dir(place.path().join("model"))
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .filter(|n| n.contains("ckpt"))
        .collect();
    names.sort();
    let want =
        ["model.ckpt-8.data-00000-of-00001", "model.ckpt-8.index", "model.ckpt-8.phx", "model.ckpt.phx"];
    assert_eq!(names, want);
}

#[test]
fn structures_and_models_that_cannot_be_evaluated_are_named() {
    let place = trained(&small(1e-2));
    let said = |text: &str| {
        std::fs::write(place.path().join("x.xyz"), text).unwrap();
        badly(place.path(), "predict model x.xyz -o out.xyz")
    };
    let carbon = said("1\n\nO 0 0 0\n2\n\nO 0 0 0\nC 1 0 0\n");
    assert!(carbon.contains("x.xyz: structure 1: atom 1 is C") && carbon.contains("H, O"), "{carbon}");
    assert!(said("1\n\nO 0 nan 0\n").contains("position"));
    assert!(said("2\nLattice=\"1 0 0 2 0 0 3 0 0\"\nO 0 0 0\nH 1 0 0\n").contains("no volume"));
    assert!(!place.path().join("out.xyz").exists(), "nothing half is left");
    assert!(badly(place.path(), "predict nowhere a.xyz").contains("nowhere: no such folder"));
    assert!(badly(place.path(), "predict a.xyz a.xyz").contains("this is no checkpoint"));
    std::fs::create_dir(place.path().join("empty")).unwrap();
    assert!(badly(place.path(), "predict empty a.xyz").contains("no params.yml"));
    std::fs::copy(place.path().join("params.yml"), place.path().join("empty/params.yml")).unwrap();
    assert!(badly(place.path(), "predict empty a.xyz").contains("no complete checkpoint"));
}
