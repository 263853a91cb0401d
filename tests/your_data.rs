//! docs/your-data.md, as a new user follows it: calculations to data, training, errors.

mod common;

use common::{Place, skip};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A Python with dpdata: that of the variable PYTHON, else the one on the PATH.
fn python() -> Option<PathBuf> {
    let python = std::env::var_os("PYTHON").map_or_else(|| "python3".into(), PathBuf::from);
    let has_it = Command::new(&python).args(["-c", "import dpdata"]).output();
    has_it.is_ok_and(|output| output.status.success()).then_some(python)
}

#[test]
fn outputs_of_vasp_and_cp2k_become_a_model() {
    let Some(python) = python() else {
        return skip("docs/your-data.md: there is no Python with dpdata (see PYTHON)");
    };
    let place = Place::new();
    common::copy(&Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/your_data"), &place.path(""));
    for (args, said) in [
        ("convert.py OUTCAR vasp/outcar data", "21 frames of 32 atoms for training, 3 for validation"),
        ("convert.py cp2k.out cp2k/output more", "1 frames of 32 atoms for training, 0 for validation"),
    ] {
        let output =
            Command::new(&python).args(args.split(' ')).current_dir(place.path("")).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.contains(said), "{text}{}", String::from_utf8_lossy(&output.stderr));
    }
    place.dp("train input.json").succeeds();
    place.dp("plot lcurve.out").succeeds();
    let tested = place.dp("test -m model.ckpt -s data/validation -d detail").succeeds();
    // The forces are 0.055 eV/A on average: a fifth of that is learnt in these few steps.
    let line = tested
        .stderr
        .lines()
        .find(|line| line.contains("Force  RMSE"))
        .unwrap_or_else(|| panic!("{}", tested.stderr));
    let rmse: f64 = line.split(':').next_back().unwrap().split_whitespace().next().unwrap().parse().unwrap();
    assert!(rmse < 0.02, "{line}");
    place.dp("plot detail -o parity.svg").succeeds();
    place.dp("freeze -o model.dp").succeeds();
    // The one frame of CP2K is of the same crystal.
    place.dp("test -m model.dp -s more/training").succeeds();
}
