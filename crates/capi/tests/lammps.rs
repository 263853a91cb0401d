//! Unmodified LAMMPS with DeePMD-kit's plugin and our library, by `examples/lammps/run.sh`. Where there is no LAMMPS the tests say so
//! and do nothing; `PYTHON`, `LMP` and `PLUGIN` tell where it is.

#[path = "../../../tests/common/skip.rs"]
mod skip;

use phalanx::potential::Derivatives;
use phalanx::{OutputModel, Potential};
use skip::skip_part;
use std::path::{Path, PathBuf};
use std::process::Command;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
/// Nets as they are before training: atoms soon run into each other, and forces are still minus the slope of the energy.
const MODELS: [&str; 2] =
    ["tests/golden/se_e2_a/one_side_virial/initial.dp", "tests/golden/se_e2_a/steep_one_side/initial.dp"];

/// The library that was built with this test.
fn library() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.parent().unwrap().join("libdeepmd_c.so")
}

/// Runs water; `None` where something that it needs is not installed.
fn run(test: &str, out: &Path, models: &[&str]) -> Option<String> {
    run_input(test, out, models, "in.water")
}

/// The same with another input of the folder.
fn run_input(test: &str, out: &Path, models: &[&str], input: &str) -> Option<String> {
    let models: Vec<String> = models.iter().map(|model| format!("{ROOT}/{model}")).collect();
    let done = Command::new(format!("{ROOT}/examples/lammps/run.sh"))
        .env("MODEL", models.join(" "))
        .env("LIBDEEPMD", library())
        .env("INPUT", format!("{ROOT}/examples/lammps/{input}"))
        .env("STEPS", "20")
        .env("OUT", out)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    if said.contains("no LAMMPS") || said.contains("set PLUGIN") {
        skip_part(test, said.trim());
        return None;
    }
    assert!(done.status.success(), "{said}");
    Some(String::from_utf8_lossy(&done.stdout).into_owned())
}

/// Rows of numbers of a dump or a table.
fn rows(file: &Path, columns: usize) -> Vec<Vec<f64>> {
    let text = std::fs::read_to_string(file).unwrap();
    let row = |line: &str| line.split_whitespace().map(|x| x.parse().ok()).collect::<Option<Vec<f64>>>();
    text.lines().filter_map(row).filter(|row| row.len() == columns).collect()
}

/// Total energies of the last run in a log.
fn energies(folder: &Path) -> Vec<f64> {
    let table = rows(&folder.join("log.lammps"), 6);
    let last = table.iter().rposition(|row| row[0] == 0.0).unwrap();
    table[last..].iter().map(|row| row[4]).collect()
}

#[test]
fn forces_under_lammps_are_those_of_the_library_and_energy_is_conserved() {
    let out = tempfile::tempdir().unwrap();
    let Some(said) =
        run("forces_under_lammps_are_those_of_the_library_and_energy_is_conserved", out.path(), &MODELS[..1])
    else {
        return;
    };
    let atoms = rows(&out.path().join("serial/forces.0"), 8);
    assert_eq!(atoms.len(), 192);
    let mut potential = Potential::load(format!("{ROOT}/{}", MODELS[0]).as_ref()).unwrap();
    let coord: Vec<f64> = atoms.iter().flat_map(|row| row[2..5].to_vec()).collect();
    let types: Vec<i32> = atoms.iter().map(|row| row[1] as i32 - 1).collect();
    let length = 12.41712666;
    let cell = [length, 0.0, 0.0, 0.0, length, 0.0, 0.0, 0.0, length];
    let want = potential.evaluate(&coord, Some(cell), &types, &[], &[]).unwrap();
    for (i, row) in atoms.iter().enumerate() {
        for k in 0..3 {
            let (got, want) = (row[5 + k], want.force[3 * i + k]);
            assert!((got - want).abs() < 1e-9, "atom {i}: {got} instead of {want}");
        }
    }
    let conserved = |folder: &str| {
        let energies = energies(&out.path().join(folder));
        let worst = energies.iter().map(|e| (e - energies[0]).abs()).fold(0.0, f64::max);
        assert!(energies.len() == 3 && worst < 1e-2, "{folder}: {energies:?}");
        energies
    };
    let serial = conserved("serial");
    if said.contains("not run") {
        skip_part("LAMMPS on two ranks", said.lines().find(|line| line.contains("not run")).unwrap());
        return;
    }
    let ranks = conserved("ranks");
    assert!((serial[0] - ranks[0]).abs() < 1e-9 && (serial[2] - ranks[2]).abs() < 1e-6);
    for (a, b) in atoms.iter().zip(rows(&out.path().join("ranks/forces.0"), 8)) {
        assert!((5..8).all(|k| (a[k] - b[k]).abs() < 1e-9), "{a:?} and {b:?}");
    }
}

#[test]
fn tensors_under_lammps_are_those_of_the_library() {
    let test = "tensors_under_lammps_are_those_of_the_library";
    for (name, width) in [("dipole", 3), ("polar", 9)] {
        let out = tempfile::tempdir().unwrap();
        let model = format!("tests/golden/se_e2_a/{name}/initial.dp");
        let Some(said) = run_input(test, out.path(), &[&model], "in.tensors") else { return };
        let mut library = OutputModel::load(format!("{ROOT}/{model}").as_ref()).unwrap();
        let length = 12.41712666;
        let cell = [length, 0.0, 0.0, 0.0, length, 0.0, 0.0, 0.0, length];
        for step in [0, 10, 20] {
            let atoms = rows(&out.path().join(format!("serial/tensors.{step}")), 5 + width);
            assert_eq!(atoms.len(), 192);
            let coord: Vec<f64> = atoms.iter().flat_map(|row| row[2..5].to_vec()).collect();
            let types: Vec<i32> = atoms.iter().map(|row| row[1] as i32 - 1).collect();
            let want = library.evaluate(&coord, Some(cell), &types, &[], &[], Derivatives::None).unwrap();
            for (i, row) in atoms.iter().enumerate() {
                for (got, want) in row[5..].iter().zip(&want.atom_output[i * width..]) {
                    assert!((got - want).abs() < 1e-9, "{name}, step {step}, atom {i}: {got}, not {want}");
                }
            }
            if said.contains("not run") {
                let why = said.lines().find(|line| line.contains("not run"));
                skip_part("tensors of LAMMPS on two ranks", why.unwrap());
                continue;
            }
            for (a, b) in atoms.iter().zip(rows(&out.path().join(format!("ranks/tensors.{step}")), 5 + width))
            {
                assert!(a[5..].iter().zip(&b[5..]).all(|(a, b)| (a - b).abs() < 1e-8), "{a:?} and {b:?}");
            }
        }
    }
}

#[test]
fn several_models_write_how_far_they_deviate() {
    let out = tempfile::tempdir().unwrap();
    if run("several_models_write_how_far_they_deviate", out.path(), &MODELS).is_none() {
        return;
    }
    let deviations = rows(&out.path().join("serial/model_devi.out"), 7);
    assert!(deviations.len() >= 3, "a row every ten steps");
    assert!(
        deviations.iter().all(|row| row[4] > 0.0 && row[4] >= row[6] && row[6] >= row[5]),
        "{deviations:?}"
    );
}

#[test]
fn four_models_deviate_as_they_do_with_deepmd_kit_to_the_last_digit_that_is_written() {
    let models = ["one_side_virial", "steep_one_side", "steep_two_side", "two_side_gelu"]
        .map(|case| format!("tests/golden/se_e2_a/{case}/initial.dp"));
    let models: Vec<&str> = models.iter().map(String::as_str).collect();
    let out = tempfile::tempdir().unwrap();
    let test = "four_models_deviate_as_they_do_with_deepmd_kit_to_the_last_digit_that_is_written";
    if run(test, out.path(), &models).is_none() {
        return;
    }
    let read = |path: &Path| std::fs::read_to_string(path).unwrap();
    let want = read(format!("{ROOT}/tests/golden/model_devi/four.out").as_ref());
    assert_eq!(read(&out.path().join("serial/model_devi.out")), want);
}

#[test]
fn a_model_that_cannot_be_read_ends_lammps_with_a_reason() {
    let out = tempfile::tempdir().unwrap();
    let broken = out.path().join("broken.dp");
    std::fs::write(&broken, "rubbish").unwrap();
    let done = Command::new(format!("{ROOT}/examples/lammps/run.sh"))
        .env("MODEL", &broken)
        .env("LIBDEEPMD", library())
        .env("OUT", out.path().join("out"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    if said.contains("no LAMMPS") || said.contains("set PLUGIN") {
        skip_part("a_model_that_cannot_be_read_ends_lammps_with_a_reason", said.trim());
        return;
    }
    assert!(!done.status.success() && said.contains("not an HDF5 file"), "{said}");
}
