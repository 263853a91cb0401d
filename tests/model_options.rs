//! Descriptors with attention and a table of pair energies, from outside: training, restart, fine-tuning, model files.

mod common;

use common::{Ended, Place, npy, skip, small_input, table_of_pairs};
use phalanx::export::read_model;
use serde_json::{Value, json};
use std::process::Command;

/// Keys of descriptors in place of those of the small input.
fn descriptors() -> Vec<(&'static str, Value)> {
    let own = |keys: Value| {
        let mut all = json!({"type": "se_atten", "sel": 60, "rcut": 4.0, "rcut_smth": 1.0, "neuron": [3, 6], "axis_neuron": 2,
            "attn": 4, "tebd_dim": 3, "seed": 1});
        all.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
        all
    };
    let beside = json!({"type": "se_e2_a", "sel": [24, 40], "rcut": 3.5, "rcut_smth": 1.0, "neuron": [3, 6], "axis_neuron": 2, "seed": 2});
    vec![
        ("se_atten", own(json!({}))),
        ("strip", own(json!({"tebd_input_mode": "strip", "smooth_type_embedding": true, "attn_layer": 1}))),
        ("se_atten_v2", own(json!({"type": "se_atten_v2", "attn_layer": 0}))),
        ("hybrid", json!({"type": "hybrid", "list": [own(json!({})), beside]})),
    ]
}

fn input_with(descriptor: &Value, steps: u64) -> Value {
    let mut input = small_input(steps, 10);
    input["model"]["descriptor"] = descriptor.clone();
    input
}

/// With a table of pair energies between O and H, which `place` gets.
fn input_with_table(place: &Place, steps: u64) -> Value {
    place.write("table.txt", table_of_pairs());
    let mut input = input_with(&descriptors()[2].1, steps);
    let table = json!({"use_srtab": "table.txt", "smin_alpha": 0.2, "sw_rmin": 1.5, "sw_rmax": 3.0});
    input["model"].as_object_mut().unwrap().extend(table.as_object().unwrap().clone());
    input
}

/// Energies of data and predictions of the system `train`, eV.
fn energies(place: &Place, model: &str) -> Vec<(f64, f64)> {
    place.dp(&format!("test -m {model} -s train -d detail")).succeeds();
    let text = place.text("detail.e.out");
    let rows = text.lines().filter(|line| !line.starts_with('#'));
    let numbers = |line: &str| line.split_whitespace().map(|x| x.parse().unwrap()).collect::<Vec<f64>>();
    rows.map(numbers).map(|row| (row[0], row[1])).collect()
}

/// A model file may have another series than a checkpoint: the same to rounding.
fn assert_same(found: &[(f64, f64)], want: &[(f64, f64)], about: &str) {
    assert_eq!(found.len(), want.len(), "{about}");
    for (k, (a, b)) in found.iter().zip(want).enumerate() {
        assert!(a.0 == b.0 && (a.1 - b.1).abs() <= 1e-11 * b.1.abs(), "{about}: frame {k}: {a:?} and {b:?}");
    }
}

fn mean_error(place: &Place, model: &str) -> f64 {
    let pairs = energies(place, model);
    pairs.iter().map(|(data, predicted)| predicted - data).sum::<f64>() / pairs.len() as f64
}

/// Labels of another method: a constant on each frame, which fine-tuning and `change-bias` take up.
fn check_new_bias(place: &Place, mut input: Value, name: &str) {
    place.input("input.json", &input);
    place.dp("train input.json").succeeds();
    place.dp("freeze -o model.dp").succeeds();
    let labels: Vec<f64> = (0..12).map(|k| 70.0 + 0.01 * k as f64).collect();
    place.write("train/set.000/energy.npy", npy(&[12, 1], &labels));
    assert!(mean_error(place, "model.dp").abs() > 50.0, "{name}");
    for from in ["model.dp", "model.ckpt"] {
        place.dp(&format!("change-bias {from} -s train -o shifted.dp")).succeeds();
        let left = mean_error(place, "shifted.dp");
        assert!(left.abs() < 1e-6, "{name}: change-bias {from}: {left}");
    }
    input["learning_rate"] = json!({"type": "exp", "start_lr": 1e-30, "stop_lr": 1e-31, "decay_steps": 1});
    input["training"]["numb_steps"] = json!(1);
    input["training"]["save_ckpt"] = json!("tuned");
    input["model"]["data_stat_nbatch"] = json!(100);
    place.input("tune.json", &input);
    place.dp("train tune.json --finetune model.dp").succeeds();
    let left = mean_error(place, "tuned");
    assert!(left.abs() < 1e-6, "{name}: --finetune: {left}");
}

#[test]
fn models_with_attention_take_up_the_bias_of_other_data() {
    for (name, descriptor) in descriptors() {
        check_new_bias(&Place::with_data(), input_with(&descriptor, 10), name);
    }
}

#[test]
fn a_model_with_a_table_takes_up_the_bias_of_other_data() {
    let place = Place::with_data();
    let input = input_with_table(&place, 10);
    check_new_bias(&place, input, "use_srtab");
}

#[test]
fn a_run_with_a_table_goes_on_to_the_bit_without_the_file_and_its_model_predicts_what_its_checkpoint_does() {
    let (whole, parts) = (Place::with_data(), Place::with_data());
    whole.input("input.json", &input_with_table(&whole, 20));
    whole.dp("train input.json").succeeds();
    parts.input("input.json", &input_with_table(&parts, 10));
    parts.dp("train input.json").succeeds();
    parts.input("input.json", &input_with_table(&parts, 20));
    std::fs::remove_file(parts.path("table.txt")).unwrap();
    parts.dp("train input.json --restart model.ckpt").succeeds();
    assert_eq!(parts.text("lcurve.out"), whole.text("lcurve.out"));
    for file in ["model.dp", "model.yaml"] {
        parts.dp(&format!("freeze -o {file}")).succeeds();
        assert_same(&energies(&parts, file), &energies(&whole, "model.ckpt"), file);
    }
    parts.dp("convert-backend model.dp again.yaml").succeeds();
    assert_eq!(read_model(&parts.path("again.yaml")).unwrap(), read_model(&parts.path("model.dp")).unwrap());
    parts.dp("train input.json --init-model model.dp").succeeds();
}

#[test]
fn a_table_without_the_bias_has_a_model_file_of_its_own() {
    let place = Place::with_data();
    let mut input = input_with_table(&place, 10);
    input["model"]["srtab_add_bias"] = json!(false);
    place.input("input.json", &input);
    place.dp("train input.json").succeeds();
    place.dp("freeze -o model.dp").succeeds();
    let model = read_model(&place.path("model.dp")).unwrap();
    assert!(!model.options.short_range.as_ref().unwrap().add_bias);
    assert_same(&energies(&place, "model.dp"), &energies(&place, "model.ckpt"), "model.dp");
    let mut with_bias = model.clone();
    with_bias.options.short_range.as_mut().unwrap().add_bias = true;
    phalanx::export::write_model(&place.path("biased.dp"), &with_bias).unwrap();
    assert_ne!(energies(&place, "biased.dp"), energies(&place, "model.dp"));
}

#[test]
fn a_table_that_is_none_is_refused_before_the_first_step() {
    let place = Place::with_data();
    place.input("input.json", &input_with_table(&place, 10));
    for (table, error) in [
        ("0.1 1 2\n0.2 1 2\n", "model.use_srtab: table.txt: 3 columns, wanted 4"),
        ("0.1 1 2 3\n0.2 1 x 3\n", "table.txt: line 2: 'x' is not a number"),
        ("0.1 1 2 3\n0.2 1 2 3\n0.5 1 2 3\n", "table.txt: row 3: the distance is 0.5 A, wanted about 0.3"),
        ("2.6 1 2 3\n2.7 1 2 3\n", "A apart, and the table of pair energies begins at 2.6 A"),
    ] {
        place.write("table.txt", table);
        place.dp("train input.json").fails(&[error]);
    }
    std::fs::remove_file(place.path("table.txt")).unwrap();
    place.dp("train input.json").fails(&["model.use_srtab", "table.txt"]);
    assert!(!place.path("model.ckpt").exists(), "a refused run saved something");
}

/// DeePMD-kit itself with our model files: energies after training with a table, and the bias that it fits.
#[test]
fn deepmd_kit_agrees_on_our_models() {
    let python = std::env::var("PYTHON").unwrap_or_else(|_| "python3".into());
    if !Command::new(&python).args(["-c", "import deepmd"]).output().is_ok_and(|out| out.status.success()) {
        return skip("PYTHON has no DeePMD-kit");
    }
    let kit = |place: &Place, line: &str| {
        let mut command = Command::new(&python);
        command.args(["-m", "deepmd"]).args(line.split_whitespace()).current_dir(place.path("."));
        Ended::from(command.env("CUDA_VISIBLE_DEVICES", "").output().unwrap()).succeeds();
    };
    let place = Place::with_data();
    place.input("input.json", &input_with_table(&place, 10));
    place.dp("train input.json").succeeds();
    place.dp("freeze -o model.dp").succeeds();
    kit(&place, "convert-backend model.dp model.pth");
    kit(&place, "--pt test -m model.pth -s train -d theirs");
    place.dp("test -m model.dp -s train -d ours").succeeds();
    for kind in ["e", "f", "v"] {
        let numbers = |name: &str| -> Vec<f64> {
            let text = place.text(&format!("{name}.{kind}.out"));
            let rows = text.lines().filter(|line| !line.starts_with('#'));
            rows.flat_map(|line| line.split_whitespace().map(|x| x.parse().unwrap())).collect()
        };
        let (ours, theirs) = (numbers("ours"), numbers("theirs"));
        assert_eq!(ours.len(), theirs.len());
        let scale = theirs.iter().fold(1.0f64, |a, x| a.max(x.abs()));
        let worst = ours.iter().zip(&theirs).fold(0.0f64, |a, (x, y)| a.max((x - y).abs() / scale));
        assert!(worst < 1e-10, "{kind}: {worst:e}");
    }
    for (name, input) in descriptors().iter().take(2).map(|(name, own)| (*name, input_with(own, 10))) {
        let place = Place::with_data();
        place.input("input.json", &input);
        place.dp("train input.json").succeeds();
        place.dp("freeze -o model.dp").succeeds();
        place.write("train/set.000/energy.npy", npy(&[12, 1], &[70.0; 12]));
        kit(&place, "convert-backend model.dp model.pth");
        kit(&place, "--pt change-bias model.pth -s train -o theirs.pth");
        kit(&place, "convert-backend theirs.pth theirs.dp");
        place.dp("change-bias model.dp -s train -o ours.dp").succeeds();
        let [ours, theirs] =
            ["ours", "theirs"].map(|f| read_model(&place.path(&format!("{f}.dp"))).unwrap().stats);
        for (a, b) in ours.bias.iter().zip(&theirs.bias) {
            assert!((a - b).abs() < 1e-8 * (1.0 + b.abs()), "{name}: {ours:?} {theirs:?}");
        }
    }
}
