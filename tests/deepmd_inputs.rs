//! What inputs and data of DeePMD-kit's users may look like beside the usual: batches of several systems, no names of types, labels of
//! some atoms alone, generalised forces, names of layers. Seen from outside: the real binary and its files.

mod common;

use common::place::{Place as JobPlace, my_turn, succeed};
use common::{ATOMS, Ended, Noise, Place, npy, small_input, small_system};
use phalanx::checkpoint;
use serde_json::{Value, json};

/// Frames of the training system.
const FRAMES: usize = 12;

/// The training system has 12 frames of O H H O H H O H.
const OXYGEN: [usize; 3] = [0, 3, 6];

fn input(place: &Place, steps: u64, change: impl FnOnce(&mut Value)) {
    let mut input = small_input(steps, 10);
    change(&mut input);
    place.input("input.json", &input);
}

/// A finished run of the small input with some changes, also to the data.
fn run(prepare: impl FnOnce(&Place), change: impl FnOnce(&mut Value)) -> (Place, Ended) {
    let place = Place::with_data();
    prepare(&place);
    input(&place, 20, change);
    let ended = place.dp("train input.json").succeeds();
    (place, ended)
}

fn arrays(place: &Place) -> Vec<f64> {
    checkpoint::load(&place.path("model.ckpt")).unwrap().into_numbers().concat()
}

fn write(place: &Place, system: &str, name: &str, shape: &[usize], values: &[f64]) {
    place.write(&format!("{system}/set.000/{name}.npy"), npy(shape, values));
}

// ------------------------------------------------------------------------------------------ batches of several systems

#[test]
fn mixed_batches_of_one_system_are_its_batches() {
    let of = |batch_size: Value| {
        arrays(&run(|_| (), |input| input["training"]["training_data"]["batch_size"] = batch_size).0)
    };
    let want = of(json!(3));
    assert!(of(json!("mixed:3")) == want, "three frames of the only system");
    assert!(of(json!("mix:30")) == want, "three frames of eight atoms are all that 30 atoms have room for");
    assert!(of(json!("mixed:2")) != want);
}

/// Systems of twelve and of eight atoms, and a run of six draws a step on `n` ranks, of which some share their frames.
fn six_draws(batch_size: &str, n: usize, per_frame: usize) -> JobPlace {
    let changes = |place: Option<&JobPlace>| {
        let changes = [
            ("/training/training_data/systems", json!(["a", "c"])),
            ("/training/training_data/batch_size", json!(batch_size)),
            ("/training/validation_data/batch_size", json!("mixed:2")),
            ("/training/gradient_accumulation", json!(6 * per_frame / n)),
            ("/training/ranks_per_frame", json!(per_frame)),
            ("/training/reproducible", json!(per_frame == 1)),
            ("/training/numb_steps", json!(8)),
            ("/training/disp_freq", json!(2)),
        ];
        if let Some(place) = place {
            place.input(&changes);
        }
    };
    let place = JobPlace::new(&[]);
    small_system(&place.path("c"), 7, 3);
    changes(Some(&place));
    for mut job in place.by_hand(n, "train input.json", &[]) {
        succeed(&mut job);
    }
    place
}

#[test]
fn mixed_batches_are_the_same_on_every_number_of_ranks() {
    let _turn = my_turn();
    let arrays = |place: &JobPlace| place.checkpoint("model.ckpt").into_numbers().concat();
    for batch_size in ["mixed:3", "mix:30"] {
        let one = six_draws(batch_size, 1, 1);
        let (want, curve) = (arrays(&one), one.read("lcurve.out"));
        for n in [2, 3] {
            let place = six_draws(batch_size, n, 1);
            assert!(arrays(&place) == want, "{batch_size} on {n} ranks");
            assert_eq!(place.read("lcurve.out"), curve, "{batch_size} on {n} ranks");
        }
        let shared = arrays(&six_draws(batch_size, 2, 2));
        let far = shared.iter().zip(&want).map(|(a, b)| (a - b).abs() / b.abs().max(1e-3));
        assert!(far.fold(0.0, f64::max) < 1e-6, "{batch_size}, two ranks that share frames");
    }
}

#[test]
fn frames_without_labels_that_others_have_are_not_mixed_with_them() {
    let place = Place::with_data();
    std::fs::remove_file(place.path("valid/set.000/virial.npy")).unwrap();
    input(&place, 4, |input| {
        let data = &mut input["training"]["training_data"];
        (data["systems"], data["batch_size"]) = (json!(["train", "valid"]), json!("mixed:2"));
    });
    place.dp("train input.json").fails(&[
        "batches mix the frames of all systems, and valid has no such labels as train/set.000/virial.npy",
        "set the prefactors of these labels to zero",
    ]);
    input(&place, 4, |input| {
        let data = &mut input["training"]["training_data"];
        (data["systems"], data["batch_size"]) = (json!(["train", "valid"]), json!("mixed:2"));
        (input["loss"]["start_pref_v"], input["loss"]["limit_pref_v"]) = (json!(0), json!(0));
    });
    place.dp("train input.json").succeeds();
}

// ------------------------------------------------------------------------------------------ no names of types

#[test]
fn types_are_named_as_the_data_names_them_or_by_their_numbers() {
    let want = arrays(&run(|_| (), |_| ()).0);
    let unnamed = |input: &mut Value| drop(input["model"].as_object_mut().unwrap().shift_remove("type_map"));
    let (named, ended) = run(|_| (), unnamed);
    assert!(arrays(&named) == want, "names do not matter");
    assert!(ended.stderr.contains("model.type_map: O H, as the training data has it"), "{}", ended.stderr);
    let full: Value = serde_json::from_str(&named.text("out.json")).unwrap();
    assert_eq!(full["model"]["type_map"], json!(["O", "H"]));
    named.dp("freeze -o model.dp").succeeds();
    named.dp("test -m model.dp -s valid").succeeds();
    let forget = |place: &Place| {
        for system in ["train", "valid"] {
            std::fs::remove_file(place.path(&format!("{system}/type_map.raw"))).unwrap();
        }
    };
    let (numbered, _) = run(forget, unnamed);
    assert!(arrays(&numbered) == want);
    numbered.dp("freeze -o model.dp").succeeds();
    let shown = numbered.dp("show model.dp type-map").succeeds();
    assert!(shown.stderr.contains("['Type_0', 'Type_1']"), "{}", shown.stderr);
    // Systems that tell different names.
    named.write("valid/type_map.raw", "H\nO\n");
    input(&named, 4, |input| {
        unnamed(input);
        input["training"]["training_data"]["systems"] = json!(["train", "valid"]);
    });
    named.dp("train input.json").fails(&[
        "valid/type_map.raw: type 0 is H, and in train/type_map.raw it is O",
        "write the names of all types into model.type_map",
    ]);
}

// ------------------------------------------------------------------------------------------ labels of some atoms

/// A model of dipoles of atoms.
fn dipoles(input: &mut Value) {
    input["model"]["fitting_net"] = json!({"type": "dipole", "neuron": [6, 6], "seed": 1});
    input["loss"] = json!({"type": "tensor", "pref": 0.0, "pref_atomic": 1.0});
    input["training"]["validation_data"] = json!({"systems": ["valid"], "batch_size": 1});
}

fn selected(input: &mut Value) {
    dipoles(input);
    input["model"]["fitting_net"]["dipole_type"] = json!([0]);
}

/// Labels of dipoles for the oxygen atoms alone, or among others for all.
fn label(place: &Place, only_oxygen: bool) {
    for (system, n) in [("train", FRAMES), ("valid", 4)] {
        let mut noise = Noise(5);
        let mut all = Vec::new();
        for _ in 0..n {
            let of_oxygen: [Vec<f64>; 3] = std::array::from_fn(|_| noise.fill(3, 0.5));
            for atom in 0..ATOMS {
                match OXYGEN.iter().position(|&o| o == atom) {
                    Some(k) => all.extend(&of_oxygen[k]),
                    None if only_oxygen => {}
                    None => all.extend([7.0, -7.0, 7.0]),
                }
            }
        }
        write(place, system, "atomic_dipole", &[n, all.len() / n], &all);
    }
}

#[test]
fn labels_of_selected_atoms_train_the_same_model_as_those_of_all_without_the_others() {
    let (of_all, _) = run(
        |place| label(place, false),
        |input| {
            dipoles(input);
            input["model"]["atom_exclude_types"] = json!([1]);
        },
    );
    let (of_oxygen, ended) = run(|place| label(place, true), selected);
    assert!(
        ended.stderr.contains("atoms of H have no output: train has labels of the others alone"),
        "{}",
        ended.stderr
    );
    assert!(arrays(&of_oxygen) == arrays(&of_all));
    assert_eq!(of_oxygen.text("lcurve.out"), of_all.text("lcurve.out"));
    let full: Value = serde_json::from_str(&of_oxygen.text("out.json")).unwrap();
    assert_eq!(full["model"]["atom_exclude_types"], json!([1]));
    // It goes on to the bit, and a test takes files of either shape.
    let (whole, parts) = (Place::with_data(), of_oxygen);
    label(&whole, true);
    input(&whole, 40, selected);
    whole.dp("train input.json").succeeds();
    input(&parts, 40, selected);
    parts.dp("train input.json --restart model.ckpt").succeeds();
    assert!(arrays(&parts) == arrays(&whole));
    parts.dp("freeze -o model.dp").succeeds();
    let test = || parts.dp("test -m model.dp -s valid --atomic -d detail").succeeds();
    test();
    let short = parts.text("detail.out");
    label(&parts, false);
    test();
    assert_eq!(short, parts.text("detail.out"));
    assert_eq!(short.lines().nth(1).unwrap().split_whitespace().count(), 2 * 3 * OXYGEN.len());
}

#[test]
fn labels_that_fit_neither_all_nor_the_selected_atoms_are_refused() {
    let place = Place::with_data();
    label(&place, true);
    let dp = |change: fn(&mut Value)| {
        input(&place, 4, change);
        place.dp("train input.json")
    };
    let shape = "train/set.000/atomic_dipole.npy: shape [12, 9]: 9 numbers for each frame found, 24";
    dp(dipoles).fails(&[&format!("{shape} wanted for the 8 atoms of train/type.raw")]);
    dp(|input| {
        dipoles(input);
        input["model"]["fitting_net"]["sel_type"] = json!(1);
    })
    .fails(&[&format!("{shape} or 15 wanted for the 8 atoms of train/type.raw")]);
    dp(|input| {
        dipoles(input);
        input["model"]["fitting_net"]["sel_type"] = json!([0, 2]);
    })
    .fails(&["model.fitting_net.sel_type: there is no type 2: type_map has the types 0 to 1"]);
    dp(|input| {
        dipoles(input);
        input["model"]["fitting_net"]["sel_type"] = json!([]);
    })
    .fails(&["model.fitting_net.sel_type: found an empty list, wanted the types of atoms that have labels"]);
}

// ------------------------------------------------------------------------------------------ generalised forces

fn generalized(input: &mut Value) {
    for (key, value) in
        [("start_pref_gf", json!(5)), ("limit_pref_gf", json!(2)), ("numb_generalized_coord", json!(2))]
    {
        input["loss"][key] = value;
    }
    input["training"]["validation_data"] = json!({"systems": ["valid"], "batch_size": 2});
}

#[test]
fn generalised_forces_are_a_term_of_the_loss_with_columns_of_their_own() {
    let derivatives = |place: &Place| {
        for (system, n) in [("train", FRAMES), ("valid", 4)] {
            let width = 3 * ATOMS * 2;
            write(place, system, "drdq", &[n, width], &Noise(9).fill(n * width, 0.4));
        }
    };
    let (place, _) = run(derivatives, generalized);
    let curve = place.text("lcurve.out");
    let header: Vec<&str> = curve.lines().next().unwrap().split_whitespace().collect();
    assert!(header.contains(&"rmse_gf_val") && header.contains(&"rmse_gf_trn"), "{header:?}");
    assert!(curve.lines().filter(|line| !line.starts_with('#')).all(|row| !row.contains("nan")), "{curve}");
    assert!(arrays(&place) != arrays(&run(|_| (), |_| ()).0), "it changes what is learned");
    // Restarts are exact.
    let whole = Place::with_data();
    derivatives(&whole);
    input(&whole, 40, generalized);
    whole.dp("train input.json").succeeds();
    input(&place, 40, generalized);
    place.dp("train input.json --restart model.ckpt").succeeds();
    assert!(arrays(&place) == arrays(&whole));
    // A file of one coordinate, and none.
    write(&place, "train", "drdq", &[FRAMES, 3 * ATOMS], &[0.5; FRAMES * 3 * ATOMS]);
    place.dp("train input.json").fails(&[
        "train/set.000/drdq.npy: shape [12, 24]: 24 numbers for each frame found, 48 wanted for the 8 atoms of train/type.raw",
        "wanted [frames, 3 x atoms x numb_generalized_coord]",
    ]);
    std::fs::remove_file(place.path("train/set.000/drdq.npy")).unwrap();
    let ended = place.dp("train input.json").succeeds();
    assert!(
        ended.stderr.contains("drdq.npy") && ended.stderr.contains("loss.start_pref_gf"),
        "{}",
        ended.stderr
    );
}

// ------------------------------------------------------------------------------------------ names of layers

#[test]
fn names_of_layers_do_nothing_where_each_stands_once() {
    let named = |names: Value| move |input: &mut Value| input["model"]["fitting_net"]["layer_name"] = names;
    let want = arrays(&run(|_| (), |_| ()).0);
    assert!(arrays(&run(|_| (), named(json!(["first", null, "last"]))).0) == want);
    let place = Place::with_data();
    let dp = |names: Value| {
        input(&place, 4, named(names));
        place.dp("train input.json")
    };
    dp(json!(["first", "second"])).fails(&["model.fitting_net.layer_name: 2 names for 3 layers"]);
    dp(json!(["same", "same", null])).fails(&[
        "model.fitting_net.layer_name: layers 0 and 1 are both \"same\"; layers of one net cannot share parameters here",
    ]);
    dp(json!("all")).fails(&["model.fitting_net.layer_name"]);
}
