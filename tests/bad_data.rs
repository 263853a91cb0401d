//! Broken data sets: `dp train` ends with 1, says which file and frame, and has overwritten nothing.

mod common;

use common::{ATOMS, Place, npy, npy_of, skip, small_input};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// What is broken, and the message that it must give.
struct Broken {
    name: &'static str,
    breaks: fn(&Place, &mut Value),
    says: &'static str,
}

const FRAMES: usize = 12;

/// Reads the numbers of an array of the training system, changes them, writes them back.
fn change(place: &Place, name: &str, change: impl FnOnce(&mut Vec<f64>)) {
    let file = format!("train/set.000/{name}.npy");
    let bytes = place.read(&file);
    let npy_file = npyz::NpyFile::new(&bytes[..]).unwrap();
    let shape: Vec<usize> = npy_file.shape().iter().map(|&n| n as usize).collect();
    let mut values: Vec<f64> = npy_file.into_vec().unwrap();
    change(&mut values);
    place.write(&file, npy(&shape, &values));
}

fn remove(place: &Place, name: &str) {
    std::fs::remove_file(place.path(name)).unwrap();
}

/// Writes an array of zeros in another shape.
fn reshape(place: &Place, name: &str, shape: &[usize]) {
    place.write(&format!("train/set.000/{name}.npy"), npy(shape, &vec![0.5; shape.iter().product()]));
}

fn mixed(place: &Place, types: &[i32]) {
    let all: Vec<u8> = (0..FRAMES).flat_map(|_| types.iter().flat_map(|t| t.to_le_bytes())).collect();
    place.write("train/set.000/real_atom_types.npy", npy_of("<i4", &[FRAMES, ATOMS], &all));
}

/// The system as text files.
fn raw(place: &Place) {
    for name in ["coord", "box", "energy", "force", "virial"] {
        let bytes = place.read(&format!("train/set.000/{name}.npy"));
        let values: Vec<f64> = npyz::NpyFile::new(&bytes[..]).unwrap().into_vec().unwrap();
        let row = |row: &[f64]| row.iter().map(f64::to_string).collect::<Vec<_>>().join(" ") + "\n";
        let text: String = values.chunks(values.len() / FRAMES).map(row).collect();
        place.write(&format!("train/{name}.raw"), text);
    }
    std::fs::remove_dir_all(place.path("train/set.000")).unwrap();
}

const CASES: &[Broken] = &[
    Broken {
        name: "coord missing",
        breaks: |p, _| remove(p, "train/set.000/coord.npy"),
        says: "error: train/set.000/coord.npy: not found\n  help: every set needs it: [frames, 3 x atoms]",
    },
    Broken {
        name: "coord of other atoms",
        breaks: |p, _| reshape(p, "coord", &[FRAMES, 21]),
        says: "error: train/set.000/coord.npy: shape [12, 21]: 21 numbers for each frame found, 24 wanted for the 8 atoms of train/type.raw\n  help: wanted [frames, 3 x atoms]",
    },
    Broken {
        name: "force of other atoms",
        breaks: |p, _| reshape(p, "force", &[FRAMES, 21]),
        says: "error: train/set.000/force.npy: shape [12, 21]: 21 numbers for each frame found, 24 wanted for the 8 atoms of train/type.raw\n  help: wanted [frames, 3 x atoms]",
    },
    Broken {
        name: "fewer energies",
        breaks: |p, _| reshape(p, "energy", &[FRAMES - 1, 1]),
        says: "error: train/set.000/energy.npy: shape [11, 1]: 11 frames, but coord holds 12\n  help: wanted [frames] or [frames, 1]",
    },
    Broken {
        name: "more forces",
        breaks: |p, _| reshape(p, "force", &[FRAMES + 1, 3 * ATOMS]),
        says: "error: train/set.000/force.npy: shape [13, 24]: 13 frames, but coord holds 12\n  help: wanted [frames, 3 x atoms]",
    },
    Broken {
        name: "virial of six",
        breaks: |p, _| reshape(p, "virial", &[FRAMES, 6]),
        says: "error: train/set.000/virial.npy: shape [12, 6]: 6 numbers for each frame found, 9 wanted for the 8 atoms of train/type.raw\n  help: wanted [frames, 9]",
    },
    Broken {
        name: "NaN in coord",
        breaks: |p, _| change(p, "coord", |x| x[24 * 5 + 7] = f64::NAN),
        says: "error: train/set.000/coord.npy: frame 5: found NaN at number 8 of 24",
    },
    Broken {
        name: "infinite force",
        breaks: |p, _| change(p, "force", |x| x[24 * 2] = f64::INFINITY),
        says: "error: train/set.000/force.npy: frame 2: found inf at number 1 of 24",
    },
    Broken {
        name: "NaN in energy",
        breaks: |p, _| change(p, "energy", |x| x[11] = f64::NAN),
        says: "error: train/set.000/energy.npy: frame 11: found NaN at number 1 of 1",
    },
    Broken {
        name: "NaN in box",
        breaks: |p, _| change(p, "box", |x| x[9 * 3 + 4] = f64::NAN),
        says: "error: train/set.000/box.npy: frame 3: found NaN at number 5 of 9",
    },
    Broken {
        name: "flat box",
        breaks: |p, _| change(p, "box", |x| x[9..18].copy_from_slice(&[5., 0., 0., 0., 5., 0., 5., 5., 0.])),
        says: "error: train/set.000/box.npy: frame 1: the cell [5.0, 0.0, 0.0, 0.0, 5.0, 0.0, 5.0, 5.0, 0.0] has no volume\n  help: rows are the lattice vectors in A; an empty file named nopbc next to type.raw says that boundaries are open",
    },
    Broken {
        name: "box of zeros",
        breaks: |p, _| change(p, "box", |x| x.fill(0.0)),
        says: "error: train/set.000/box.npy: frame 0: the cell [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0] has no volume\n  help: rows are the lattice vectors in A; an empty file named nopbc next to type.raw says that boundaries are open",
    },
    Broken {
        name: "box missing",
        breaks: |p, _| remove(p, "train/set.000/box.npy"),
        says: "error: train/set.000/box.npy: not found\n  help: a periodic system needs its cells; an empty file named nopbc next to type.raw says that boundaries are open",
    },
    Broken {
        name: "type outside type_map.raw",
        breaks: |p, _| p.write("train/type.raw", "0 1 1 0 1 2 0 1"),
        says: "error: train/type.raw: line 1: type 2 is outside train/type_map.raw, which names 2 types\n  help: types are counted from 0",
    },
    Broken {
        name: "negative type",
        breaks: |p, _| p.write("train/type.raw", "0 1 1 0 1 -1 0 1"),
        says: "error: train/type.raw: line 1: type -1 is outside train/type_map.raw, which names 2 types\n  help: types are counted from 0",
    },
    Broken {
        name: "type outside the model",
        breaks: |p, _| {
            remove(p, "train/type_map.raw");
            p.write("train/type.raw", "0 1 1 0 1 2 0 1");
        },
        says: "error: train/type.raw: line 1: type 2 is outside the model's type_map, which names 2 types\n  help: types are counted from 0; model.type_map is: O H",
    },
    Broken {
        name: "unknown element",
        breaks: |p, _| p.write("train/type_map.raw", "O\nC\n"),
        says: "error: train/type.raw: line 2: type 1 is C (train/type_map.raw), which the model does not know\n  help: model.type_map is: O H",
    },
    Broken {
        name: "names as types",
        breaks: |p, _| p.write("train/type.raw", "O H H O H H O H"),
        says: "error: train/type.raw: line 1: 'O' is not a type index\n  help: type.raw holds one whole number for each atom, counted from 0",
    },
    Broken {
        name: "no atoms",
        breaks: |p, _| p.write("train/type.raw", ""),
        says: "error: train/type.raw: found no atoms",
    },
    Broken {
        name: "no frames",
        breaks: |p, _| {
            for (name, width) in [("coord", 24), ("force", 24), ("energy", 1), ("box", 9), ("virial", 9)] {
                reshape(p, name, &[0, width]);
            }
        },
        says: "error: train: found no frames",
    },
    Broken {
        name: "no set",
        breaks: |p, _| std::fs::remove_dir_all(p.path("train/set.000")).unwrap(),
        says: "error: train: found neither a set.* folder nor coord.raw next to type.raw\n  help: frames are stored in set.000/coord.npy, set.000/box.npy, ..., or in coord.raw, box.raw, ...",
    },
    Broken {
        name: "truncated",
        breaks: |p, _| {
            let b = p.read("train/set.000/force.npy");
            p.write("train/set.000/force.npy", &b[..b.len() - 100]);
        },
        says: "error: train/set.000/force.npy: the file ends early: 2332 bytes found, 2432 wanted for shape [12, 24]\n  help: the file was not written to its end; make it again",
    },
    Broken {
        name: "cut in the header",
        breaks: |p, _| {
            let b = p.read("train/set.000/force.npy");
            p.write("train/set.000/force.npy", &b[..20]);
        },
        says: "error: train/set.000/force.npy: not a readable npy file: failed to fill whole buffer\n  help: write it with numpy.save",
    },
    Broken {
        name: "empty file",
        breaks: |p, _| p.write("train/set.000/energy.npy", ""),
        says: "error: train/set.000/energy.npy: not a readable npy file: magic not found for NPY file\n  help: write it with numpy.save",
    },
    Broken {
        name: "text as npy",
        breaks: |p, _| p.write("train/set.000/coord.npy", "0.1 0.2 0.3\n0.4 0.5 0.6\n"),
        says: "error: train/set.000/coord.npy: not a readable npy file: magic not found for NPY file\n  help: write it with numpy.save",
    },
    Broken {
        name: "whole numbers",
        breaks: |p, _| {
            p.write("train/set.000/coord.npy", npy_of("<i8", &[FRAMES, 24], &[0; FRAMES * 24 * 8]))
        },
        says: "error: train/set.000/coord.npy: found whole numbers, wanted float64 or float32\n  help: convert it with numpy: array.astype(numpy.float64)",
    },
    Broken {
        name: "complex numbers",
        breaks: |p, _| p.write("train/set.000/energy.npy", npy_of("<c16", &[FRAMES, 1], &[0; FRAMES * 16])),
        says: "error: train/set.000/energy.npy: found elements of type <c16, wanted numbers\n  help: numbers are stored as float64 or float32; convert with numpy: array.astype(numpy.float64)",
    },
    Broken {
        name: "fparam missing",
        breaks: |_, i| i["model"]["fitting_net"]["numb_fparam"] = json!(1),
        says: "error: train/set.000/fparam.npy: not found\n  help: the model has numb_fparam = 1, so every set needs it",
    },
    Broken {
        name: "aparam too narrow",
        breaks: |p, i| {
            i["model"]["fitting_net"]["numb_aparam"] = json!(2);
            reshape(p, "aparam", &[FRAMES, ATOMS]);
        },
        says: "error: train/set.000/aparam.npy: shape [12, 8]: 8 numbers for each frame found, 16 wanted for the 8 atoms of train/type.raw\n  help: wanted [frames, atoms x numb_aparam]",
    },
    Broken {
        name: "short raw line",
        breaks: |p, _| {
            raw(p);
            let text = p.text("train/force.raw");
            let mut lines: Vec<&str> = text.lines().collect();
            lines[6] = "1 2 3";
            p.write("train/force.raw", lines.join("\n"));
        },
        says: "error: train/force.raw: line 7: 3 numbers found, 24 wanted\n  help: each line holds one frame",
    },
    Broken {
        name: "word in raw",
        breaks: |p, _| {
            raw(p);
            let t = p.text("train/box.raw");
            p.write("train/box.raw", t.replacen("5.1", "five", 1));
        },
        says: "error: train/box.raw: line 1: 'five' is not a number",
    },
    Broken {
        name: "hdf5 without group",
        breaks: |p, i| {
            std::fs::copy(
                concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/systems.hdf5"),
                p.path("all.hdf5"),
            )
            .unwrap();
            i["training"]["training_data"]["systems"] = json!(["all.hdf5#/nowhere"]);
        },
        says: "error: all.hdf5#/nowhere: cannot read HDF5: group not found: nowhere",
    },
    Broken {
        name: "hdf5 of rubbish",
        breaks: |p, i| {
            p.write("all.hdf5", "rubbish");
            i["training"]["training_data"]["systems"] = json!(["all.hdf5#/a"]);
        },
        says: "error: all.hdf5: cannot read as HDF5: invalid HDF5 magic bytes\n  help: a system is a folder with type.raw, or file.hdf5#/group",
    },
    Broken {
        name: "system absent",
        breaks: |_, i| i["training"]["training_data"]["systems"] = json!(["trian"]),
        says: "error: trian: no such system\n  help: did you mean `train`? relative paths start at the folder that dp was started in",
    },
    Broken {
        name: "second system absent",
        breaks: |_, i| i["training"]["training_data"]["systems"] = json!(["train", "data/*"]),
        says: "error: data/*: no such system\n  help: systems are not patterns; name the folder above them and put patterns into rglob_patterns",
    },
    Broken {
        name: "no systems",
        breaks: |_, i| i["training"]["training_data"]["systems"] = json!([]),
        says: "error: input.json: training.training_data.systems: found an empty list, wanted folders with data",
    },
    Broken {
        name: "batch sizes for other systems",
        breaks: |_, i| i["training"]["training_data"]["batch_size"] = json!([1, 2]),
        says: "error: batch_size: 2 numbers found, 1 systems\n  help: a list needs one number for each system, in the order of the systems",
    },
    Broken {
        name: "weights for other systems",
        breaks: |_, i| i["training"]["training_data"]["sys_probs"] = json!([0.5, 0.5]),
        says: "error: sys_probs: 2 numbers found, 1 systems\n  help: one probability for each system, 1 in all; a negative one means: a share of the rest by the size of the system",
    },
    Broken {
        name: "real types out of range",
        breaks: |p, _| mixed(p, &[0, 1, 1, 0, 1, 1, 5, -1]),
        says: "error: train/set.000/real_atom_types.npy: frame 0: atom 6: type 5 is outside train/type_map.raw, which names 2 types\n  help: types are counted from 0",
    },
    Broken {
        name: "real types below -1",
        breaks: |p, _| mixed(p, &[0, 1, 1, 0, 1, 1, 0, -2]),
        says: "error: train/set.000/real_atom_types.npy: frame 0: atom 7: type -2 is outside train/type_map.raw, which names 2 types\n  help: types are counted from 0",
    },
    Broken {
        name: "only virtual atoms",
        breaks: |p, _| mixed(p, &[-1; ATOMS]),
        says: "error: train/set.000/real_atom_types.npy: frame 0: every atom is virtual (-1): there is nothing to train on",
    },
    Broken {
        name: "atoms on top of each other",
        breaks: |p, _| {
            change(p, "coord", |x| {
                for k in 0..3 {
                    x[24 * 4 + k] = x[24 * 4 + 9 + k];
                }
            })
        },
        says: "error: train: frame 4: atoms 0 and 3 are at the same place\n  help: remove one of them, or the frame",
    },
    Broken {
        name: "atoms on top of each other across the cell",
        breaks: |p, _| {
            change(p, "coord", |x| {
                for k in 0..3 {
                    x[24 * 4 + k] = x[24 * 4 + 9 + k] + [5.0, 0.0, 0.0][k];
                }
            })
        },
        says: "error: train: frame 4: atoms 0 and 3 are at the same place\n  help: remove one of them, or the frame",
    },
    Broken {
        name: "absurd coordinates",
        breaks: |p, _| change(p, "coord", |x| x[0] = 1e300),
        says: "error: train/set.000/coord.npy: frame 0: found 1e300 A at number 1 of 24, wanted at most 1e9 A",
    },
    Broken {
        name: "absurd box",
        breaks: |p, _| change(p, "box", |x| x[..9].iter_mut().for_each(|v| *v *= 1e-6)),
        says: "error: train: frame 0: the cell is only 0.000004995007915634797 A wide, rcut = 4 A needs too many periodic images",
    },
    Broken {
        name: "no labels at all",
        breaks: |p, _| {
            for n in ["energy", "force", "virial"] {
                remove(p, &format!("train/set.000/{n}.npy"));
            }
        },
        says: "error: training.training_data: no system has any of energy.npy, force.npy, virial.npy\n  help: a label that is missing is left out of the loss; here nothing is left",
    },
    Broken {
        name: "NaN in validation data",
        breaks: |p, i| {
            i["training"]["validation_data"] = json!({"systems": ["valid"]});
            p.write("valid/set.000/energy.npy", npy(&[4, 1], &[0.0, 0.0, f64::NAN, 0.0]));
        },
        says: "error: valid/set.000/energy.npy: frame 2: found NaN at number 1 of 1",
    },
];

/// What a run that came before has left.
const KEPT: [&str; 4] = ["out.json", "lcurve.out", "model.ckpt-7.phx", "checkpoint"];

/// Runs a case and says what is not as it should be.
fn run(case: &Broken) -> Option<String> {
    let place = Place::with_data();
    let mut input = small_input(10, 10);
    (case.breaks)(&place, &mut input);
    place.input("input.json", &input);
    for name in KEPT {
        place.write(name, "kept");
    }
    let began = Instant::now();
    let ended = place.dp("train input.json");
    let message = ended.stderr.find("error: ").map_or("no error at all", |at| ended.stderr[at..].trim_end());
    let mut wrong = Vec::new();
    if ended.code != Some(1) {
        wrong.push(format!("exit code {:?}", ended.code));
    }
    if message != case.says {
        wrong.push(format!("said {message:?}"));
    }
    if began.elapsed() > Duration::from_secs(10) {
        wrong.push(format!("took {:?}", began.elapsed()));
    }
    if let Some(name) = KEPT.iter().find(|name| place.read(name) != b"kept") {
        wrong.push(format!("overwrote {name}"));
    }
    (!wrong.is_empty()).then(|| format!("{}: {}", case.name, wrong.join(", ")))
}

#[test]
fn every_broken_data_set_is_refused_by_name_before_training_starts() {
    let wrong: Vec<String> = CASES.iter().filter_map(run).collect();
    assert!(wrong.is_empty(), "{} of {} cases:\n{}", wrong.len(), CASES.len(), wrong.join("\n"));
}

#[test]
fn a_file_that_may_not_be_read_is_named() {
    use std::os::unix::fs::PermissionsExt;
    let place = Place::with_data();
    let file = place.path("train/set.000/force.npy");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o000)).unwrap();
    if std::fs::read(&file).is_ok() {
        return skip("this user may read everything");
    }
    place.input("input.json", &small_input(10, 10));
    place.dp("train input.json").fails(&["train/set.000/force.npy", "denied"]);
}
