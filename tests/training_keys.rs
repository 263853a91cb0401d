//! Keys of the `training` section, seen from outside: what the real binary writes.

mod common;

use common::{Ended, Place, small_input};
use phalanx::checkpoint;
use serde_json::{Value, json};

/// A finished run of the small input with some changes.
fn run(steps: u64, change: impl FnOnce(&mut Value)) -> (Place, Ended) {
    let place = Place::with_data();
    let mut input = small_input(steps, steps);
    change(&mut input["training"]);
    place.input("input.json", &input);
    let ended = place.dp("train input.json").succeeds();
    (place, ended)
}

/// Rows of a learning curve.
fn rows(place: &Place) -> Vec<Vec<f64>> {
    let text = place.text("lcurve.out");
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| line.split_whitespace().map(|x| x.parse().unwrap()).collect()).collect()
}

#[test]
fn save_dir_is_the_folder_of_checkpoints_and_they_are_found_from_here() {
    let (place, _) = run(4, |training| training["save_dir"] = json!("results/of this"));
    assert!(place.path("results/of this/model.ckpt-4.phx").exists());
    assert!(!place.path("model.ckpt-4.phx").exists());
    assert_eq!(place.text("checkpoint"), "results/of this/model.ckpt-4.phx");
    place.dp("freeze -o model.dp").succeeds();
    let mut input = small_input(6, 6);
    (input["training"]["save_dir"], input["training"]["resume"]) = (json!("results/of this"), json!("auto"));
    place.input("input.json", &input);
    place.dp("train input.json").succeeds();
    assert_eq!(rows(&place).last().unwrap()[0], 5.0);
    assert!(place.path("results/of this/model.ckpt-6.phx").exists());
    input["training"]["save_dir"] = json!("");
    place.input("input.json", &input);
    place.dp("train input.json").fails(&["training.save_dir: found \"\", wanted the name of a file"]);
}

#[test]
fn disp_avg_shows_means_over_the_steps_between() {
    let (every, _) = run(10, |training| training["disp_freq"] = json!(1));
    let (means, _) = run(10, |training| training["disp_avg"] = json!(true));
    let (every, means) = (rows(&every), rows(&means));
    assert_eq!(means.iter().map(|row| row[0]).collect::<Vec<_>>(), [1.0, 5.0, 10.0]);
    for (row, steps) in means.iter().zip([0..1, 1..5, 5..10]) {
        for column in 1..row.len() - 1 {
            let mean = every[steps.clone()].iter().map(|row| row[column]).sum::<f64>() / steps.len() as f64;
            assert!((row[column] - mean).abs() < 0.006 * mean, "{row:?}: column {column}, mean {mean}");
        }
        assert_eq!(row.last(), every[steps.end - 1].last(), "the learning rate is that of the step");
    }
}

#[test]
fn the_bias_is_shifted_after_the_last_step_as_change_bias_would() {
    let of = |place: &Place, name: &str| {
        let header = checkpoint::load(&place.path(name)).unwrap().header;
        serde_json::from_value::<Vec<f64>>(header["statistics"]["bias"].clone()).unwrap()
    };
    let (plain, _) = run(6, |_| ());
    let (shifted, ended) = run(6, |training| training["change_bias_after_training"] = json!(true));
    assert!(ended.stderr.contains("is shifted by"), "{}", ended.stderr);
    let arrays = |place: &Place| checkpoint::load(&place.path("model.ckpt-6.phx")).unwrap().arrays;
    assert_eq!(arrays(&plain), arrays(&shifted), "parameters are those of the last step");
    // Statistics look at all of these frames.
    plain.dp("change-bias model.ckpt-6.phx -s train -o other.phx").succeeds();
    let (want, got) = (of(&plain, "other.phx"), of(&shifted, "model.ckpt-6.phx"));
    assert_ne!(got, of(&plain, "model.ckpt-6.phx"));
    for (got, want) in got.iter().zip(&want) {
        assert!((got - want).abs() < 1e-8 * want.abs().max(1.0), "{got} {want}");
    }
}

#[test]
fn frames_with_close_atoms_are_left_out() {
    let place = Place::with_data();
    let mut input = small_input(4, 4);
    input["training"]["training_data"]["min_pair_dist"] = json!(0.05);
    place.input("input.json", &input);
    // The third frame gets two atoms at the same place, which is refused otherwise.
    let name = "train/set.000/coord.npy";
    let mut bytes = place.read(name);
    let n_atoms = place.text("train/type.raw").split_whitespace().count();
    let data = bytes.len() - 12 * 3 * n_atoms * 8;
    let frame = data + 2 * 3 * n_atoms * 8;
    bytes.copy_within(frame..frame + 24, frame + 24);
    place.write(name, &bytes);
    let ended = place.dp("train input.json").succeeds();
    assert!(ended.stderr.contains("1 of 12 frames have atoms closer than 0.05 A"), "{}", ended.stderr);
    input["training"]["training_data"]["min_pair_dist"] = json!(0.0);
    place.input("input.json", &input);
    place.dp("train input.json").fails(&["frame 2"]);
    input["training"]["training_data"]["min_pair_dist"] = json!(5.0);
    place.input("input.json", &input);
    place.dp("train input.json").fails(&["train: every frame has atoms closer than min_pair_dist, 5 A"]);
}

#[test]
fn mixed_precision_is_for_float32_networks_and_says_so() {
    let place = Place::with_data();
    let mut input = small_input(4, 4);
    input["training"]["mixed_precision"] = json!({"output_prec": "float32", "compute_prec": "bfloat16"});
    place.input("input.json", &input);
    place
        .dp("train input.json")
        .fails(&["training.mixed_precision: the networks have float64", "\"precision\": \"float32\""]);
    for net in ["descriptor", "fitting_net"] {
        input["model"][net]["precision"] = json!("float32");
    }
    place.input("input.json", &input);
    place.dp("train input.json").succeeds();
    input["training"]["gpu_products"] = json!("tf32");
    place.input("input.json", &input);
    place.dp("train input.json").fails(&["gpu_products asks for tf32, and this for bfloat16"]);
    input["training"]["mixed_precision"]["compute_prec"] = json!("float16");
    place.input("input.json", &input);
    place.dp("train input.json").fails(&["training.mixed_precision.compute_prec"]);
}
