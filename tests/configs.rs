//! Whole input files: good ones are read as meant, broken ones give exactly the message beside them.

use phalanx::data::field::Need;
use phalanx::data::options::{BatchSize, SystemWeights};
use phalanx::loss::options::{EnerLossOptions, HuberDeltas, LossFunction};
use phalanx::model::activation::Activation;
use phalanx::model::dp::fitting::{Dipole, Dos, Polar, Property};
use phalanx::model::dp::options::{DescriptorOptions, Embedding, FittingKind, Form, Precision, Sel};
use phalanx::optim::AdamOptions;
use phalanx::optim::options::{ScaleByWorker, Schedule, Shape, Warmup, WsdDecay};
use phalanx::train::input::{Input, Length, doc_train_input};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/configs").join(name)
}

/// The inputs of a folder, in the order of their names.
fn inputs(name: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder(name)).expect("the folder of inputs is part of the project");
    let mut paths: Vec<PathBuf> = entries.map(|e| e.expect("a folder can be listed").path()).collect();
    paths.retain(|p| p.extension().is_some_and(|e| e != "expect"));
    paths.sort();
    paths
}

fn good(name: &str) -> (Input, Value) {
    Input::read(&folder("good").join(name)).unwrap_or_else(|e| panic!("{name} is a good input: {e}"))
}

fn se_e2_a(input: &Input) -> &DescriptorOptions {
    &input.model.descriptors.list[0]
}

#[test]
fn broken_inputs_give_exactly_the_message_beside_them() {
    let paths = inputs("bad");
    assert!(paths.len() >= 40, "only {} broken inputs were found", paths.len());
    let mut failures = Vec::new();
    for path in &paths {
        let place = format!("{}/", path.parent().expect("a file has a folder").display());
        let found = match Input::read(path) {
            Ok(_) => "no error at all".to_string(),
            Err(e) => e.to_string().replace(&place, ""),
        };
        let wanted = std::fs::read_to_string(path.with_extension("expect")).unwrap_or_default();
        if found.trim_end() != wanted.trim_end() {
            failures.push(format!("{}\n--- found\n{found}\n--- wanted\n{wanted}", path.display()));
        }
    }
    assert!(failures.is_empty(), "{} of {}:\n{}", failures.len(), paths.len(), failures.join("\n\n"));
}

#[test]
fn good_inputs_are_read_and_their_out_json_reads_the_same_again() {
    let paths = inputs("good");
    assert!(paths.len() >= 8, "only {} good inputs were found", paths.len());
    for path in paths {
        let (input, full) = Input::read(&path).unwrap_or_else(|e| panic!("{e}"));
        let no_seed = || panic!("the seed is part of out.json");
        let (again, full_again) =
            Input::from_value(full.clone(), "out.json", no_seed).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(full, full_again, "{}", path.display());
        assert_eq!(input.learning_rate, again.learning_rate, "{}", path.display());
        assert_eq!(input.model, again.model, "{}", path.display());
        assert_eq!(format!("{:?}", input.loss), format!("{:?}", again.loss), "{}", path.display());
        assert_eq!(input.training.seed, again.training.seed, "{}", path.display());
        assert_eq!(input.training.training_data, again.training.training_data, "{}", path.display());
    }
}

fn energy_loss(input: &Input) -> &EnerLossOptions {
    input.loss.options().expect("the loss of energies")
}

#[test]
fn the_stock_water_input_is_read_as_meant() {
    let (input, _) = good("water.json");
    let descriptor = se_e2_a(&input);
    assert_eq!(descriptor.sel, Sel::Fixed(vec![46, 92]));
    assert_eq!((descriptor.rcut, descriptor.rcut_smth), (6.0, 0.5));
    assert_eq!(descriptor.neuron, [25, 50, 100]);
    assert_eq!(descriptor.form(), Form::Directions { axis: 16 });
    assert!(descriptor.type_one_side && !descriptor.resnet_dt && descriptor.trainable);
    assert_eq!((descriptor.precision, descriptor.seed), (Precision::Float64, Some(1)));
    assert_eq!((descriptor.activation, descriptor.embedding), (Activation::Tanh, Embedding::Chebyshev));
    assert_eq!(input.model.fitting.neuron, [240, 240, 240]);
    assert_eq!(input.model.fitting.trainable, [true; 4]);
    let loss = energy_loss(&input);
    assert_eq!((loss.force.start, loss.force.limit), (1000.0, 1.0));
    assert!(loss.energy.is_used() && !loss.virial.is_used());
    assert_eq!(loss.function, LossFunction::Mse);
    let adam = AdamOptions { beta1: 0.9, beta2: 0.999, weight_decay: 0.0, decoupled: false };
    assert_eq!(input.optimizer.options(), Some(&adam));
    let training = &input.training;
    assert_eq!(training.length, Length::Steps(1_000_000));
    assert_eq!(training.training_data.systems.len(), 3);
    assert_eq!(training.training_data.batch_size, BatchSize::Auto(32));
    assert_eq!(training.training_data.weights, SystemWeights::BySize);
    assert_eq!(training.validation_data.as_ref().map(|d| &d.batch_size), Some(&BatchSize::Fixed(1)));
    assert_eq!((training.numb_btch, training.seed, training.disp_freq), (3, 10, 100));
    assert_eq!((training.gradient_accumulation, training.reproducible), (1, false));
    assert_eq!(training.geometry_cache_bytes, 160_000_000);
}

#[test]
fn the_exponential_schedule_follows_the_number_of_steps() {
    let (input, _) = good("water.json");
    let lr = input.learning_rate.for_steps(1_000_000).unwrap();
    assert_eq!((lr.start_lr, lr.warmup_steps, lr.scale_by_worker), (0.001, 0, None));
    let Schedule::Exp { decay_steps, decay_rate, smooth, min_lr } = lr.schedule else { panic!("it is exp") };
    assert_eq!((decay_steps, smooth, min_lr), (5000, false, 3.51e-8));
    assert!((decay_rate - (3.51e-8f64 / 1e-3).powf(1.0 / 200.0)).abs() < 1e-12, "{decay_rate}");
}

#[test]
fn json_and_yaml_of_the_same_input_are_the_same() {
    assert_eq!(good("water.json").1, good("water.yaml").1);
}

#[test]
fn old_layouts_and_aliases_arrive_where_the_new_ones_do() {
    let (old, full) = good("version_1.json");
    assert_eq!(old.training.training_data.systems, ["data"]);
    assert_eq!(old.training.training_data.batch_size, BatchSize::Fixed(4));
    assert_eq!(old.training.length, Length::Steps(1_000_000));
    assert_eq!(full["model"]["descriptor"]["type"], "se_e2_a");
    assert!((old.learning_rate.stop_lr - 0.005 * 0.95f64.powf(200.0)).abs() < 1e-15);
    let (aliases, full) = good("aliases.json");
    assert_eq!(se_e2_a(&aliases).form(), Form::Directions { axis: 8 });
    assert_eq!(aliases.model.fitting.neuron, [60, 60]);
    assert_eq!(aliases.training.length, Length::Epochs(2.5));
    assert_eq!(aliases.training.numb_btch, 7);
    assert_eq!(aliases.training.training_data.weights, SystemWeights::Explicit(vec![0.75, 0.25]));
    let adam_w = AdamOptions { beta1: 0.95, beta2: 0.999, weight_decay: 0.01, decoupled: true };
    assert_eq!(aliases.optimizer.options(), Some(&adam_w));
    assert_eq!(aliases.learning_rate.warmup, Warmup::Steps(100));
    assert_eq!(full["training"]["numb_epoch"], 2.5);
}

#[test]
fn other_outputs_than_energies_are_read_as_meant() {
    let (dos, full) = good("dos.json");
    assert_eq!(dos.model.fitting.kind, FittingKind::Dos(Dos { numb_dos: 250 }));
    assert_eq!(dos.loss.columns(&dos.model.fitting), ["rmse_global_dos", "rmse_global_cdf"]);
    assert_eq!(full["model"]["fitting_net"]["precision"], "float64");
    let wants = dos.loss.wants(&dos.model.fitting).output.unwrap();
    assert_eq!((wants.name.as_str(), wants.width), ("dos", 250));
    assert_eq!((wants.of_frames, wants.of_atoms), (Need::Optional, Need::No));
    let (property, full) = good("property.json");
    let own = Property { name: "band_gap".into(), task_dim: 1, is_intensive: true, distinguish_types: true };
    assert_eq!(property.model.fitting.kind, FittingKind::Property(own));
    assert_eq!(property.loss.columns(&property.model.fitting), ["mae", "rmse"]);
    assert_eq!(full["loss"]["beta"], 1.0);
    assert_eq!(property.loss.wants(&property.model.fitting).output.unwrap().of_frames, Need::Must);
    let (dipole, _) = good("dipole.json");
    assert_eq!(dipole.model.fitting.kind, FittingKind::Dipole(Dipole));
    assert_eq!(dipole.loss.columns(&dipole.model.fitting), ["rmse_local_dipole"]);
    let (polar, full) = good("polar.json");
    let own = Polar { fit_diag: false, scale: vec![1.0, 0.5], shift_diag: true };
    assert_eq!(polar.model.fitting.kind, FittingKind::Polar(own));
    assert_eq!(full["model"]["fitting_net"]["sel_type"], 0);
    assert_eq!(polar.loss.columns(&polar.model.fitting), ["rmse_local_polar", "rmse_global_polar"]);
    let wants = polar.loss.wants(&polar.model.fitting).output.unwrap();
    assert_eq!((wants.name.as_str(), wants.width), ("polarizability", 9));
}

#[test]
fn every_kind_of_loss_schedule_and_batch_is_read() {
    let (huber, _) = good("huber.yaml");
    let deltas = HuberDeltas { energy: 0.01, force: 0.02, virial: 0.03 };
    assert_eq!(energy_loss(&huber).function, LossFunction::Huber(deltas));
    assert!(energy_loss(&huber).f_use_norm && energy_loss(&huber).intensive_ener_virial);
    assert_eq!(huber.learning_rate.shape, Shape::Wsd { decay_phase_ratio: 0.2, decay: WsdDecay::Cosine });
    assert_eq!(huber.learning_rate.warmup, Warmup::Ratio(0.05));
    assert_eq!(huber.learning_rate.scale_by_worker, Some(ScaleByWorker::Sqrt));
    assert_eq!(huber.learning_rate.stop_lr, 1e-3 * 1e-3);
    assert_eq!(huber.training.training_data.batch_size, BatchSize::Filter(512));
    let blocks = SystemWeights::Blocks(vec![(0, 2, 0.7), (2, 4, 0.3)]);
    assert_eq!(huber.training.training_data.weights, blocks);
    assert_eq!(
        huber.training.validation_data.as_ref().map(|d| &d.batch_size),
        Some(&BatchSize::List(vec![2, 3]))
    );
    let (par, _) = good("parameters.json");
    assert_eq!((par.model.fitting.numb_fparam, par.model.fitting.numb_aparam), (2, 1));
    assert_eq!(par.model.fitting.atom_ener, [Some(-1.5), None, Some(0.0)]);
    assert_eq!(par.model.fitting.trainable, [true, false, true]);
    assert_eq!(se_e2_a(&par).exclude_types, [(0, 1), (2, 2)]);
    assert_eq!(se_e2_a(&par).activation, Activation::Silut { threshold: 10.0 });
    assert_eq!(energy_loss(&par).relative_f, Some(1.0));
    assert!(par.training.training_data.search);
}

#[test]
fn our_own_keys_stay_out_of_model_files() {
    let (input, full) = good("own_keys.json");
    assert_eq!(se_e2_a(&input).embedding, Embedding::Direct);
    assert_eq!(full["model"]["descriptor"]["embedding"], "direct");
    assert!(input.model.script["descriptor"].get("embedding").is_none());
    assert_eq!(input.model.script["fitting_net"], full["model"]["fitting_net"]);
    assert_eq!((input.training.gradient_accumulation, input.training.reproducible), (4, true));
    assert_eq!(input.training.geometry_cache_bytes, 512_000_000);
    assert_eq!(input.training.stall_timeout.as_secs_f64(), 7.5);
}

#[test]
fn without_a_seed_a_random_one_is_written_down() {
    let (input, full) = good("minimal.json");
    assert_eq!(full["training"]["seed"], json!(input.training.seed));
    assert_eq!(input.learning_rate.stop_lr, 5e-8);
    assert_eq!(full["learning_rate"]["stop_lr"], json!(5e-8));
    assert_eq!(se_e2_a(&input).sel, Sel::Auto(1.1));
}

#[test]
fn out_json_has_deepmd_kits_keys_and_defaults() {
    let (_, full) = good("minimal.json");
    let descriptor = json!({
        "type": "se_e2_a", "sel": "auto", "rcut": 6.0, "rcut_smth": 0.5, "neuron": [10, 20, 40], "axis_neuron": 4,
        "activation_function": "tanh", "resnet_dt": false, "type_one_side": false, "precision": "default",
        "trainable": true, "exclude_types": [], "env_protection": 0.0, "set_davg_zero": false,
        "embedding": "chebyshev"
    });
    assert_eq!(full["model"]["descriptor"], descriptor);
    let fitting = json!({
        "type": "ener", "numb_fparam": 0, "numb_aparam": 0, "default_fparam": null, "dim_case_embd": 0,
        "neuron": [120, 120, 120], "activation_function": "tanh", "precision": "default", "resnet_dt": true,
        "trainable": true, "rcond": null, "atom_ener": [], "use_aparam_as_mask": false
    });
    assert_eq!(full["model"]["fitting_net"], fitting);
    let adam = json!({"type": "Adam", "adam_beta1": 0.9, "adam_beta2": 0.999, "weight_decay": 0.0});
    assert_eq!(full["optimizer"], adam);
    assert_eq!(full["validating"]["full_validation"], json!(false));
    assert!(full["learning_rate"].get("scale_by_worker").is_none(), "the command line decides");
}

#[test]
fn the_reference_names_every_section_and_what_is_not_supported() {
    let reference = doc_train_input();
    let text = reference.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in ["## model", "## learning_rate", "## loss", "## optimizer", "## training", "**rcut_smth**"] {
        assert!(text.contains(part), "{part}");
    }
    assert!(text.contains("**gradient_accumulation** (an integer of at least 1; default 1): Phalanx only."));
    assert!(text.contains("also stop_batch, num_step, num_steps, numb_step"));
    assert!(text.contains("Not supported yet: se_e3_tebd"));
    assert!(reference.lines().all(|line| line.chars().count() <= 110), "lines fit on a terminal");
}

/// The places of all values inside a value, as JSON pointers.
fn places(value: &Value, here: String, all: &mut Vec<String>) {
    match value {
        Value::Object(map) => map.iter().for_each(|(k, v)| places(v, format!("{here}/{k}"), all)),
        Value::Array(list) => {
            list.iter().enumerate().for_each(|(i, v)| places(v, format!("{here}/{i}"), all))
        }
        _ => {}
    }
    all.push(here);
}

#[test]
fn any_value_at_any_place_is_read_or_refused_but_never_a_crash() {
    let strange = [
        json!(null),
        json!(true),
        json!(-1),
        json!(0),
        json!(1),
        json!(2.5),
        json!(1e300),
        json!(u64::MAX),
        json!(i64::MIN),
        json!(""),
        json!("auto"),
        json!("auto:1e400"),
        json!("prob_sys_size;;"),
        json!("\u{1F4A7}:"),
        json!([]),
        json!([null]),
        json!([1, "a"]),
        json!([[]]),
        json!([[0, 0], [1]]),
        json!({}),
        json!({"type": 1}),
    ];
    let (mut read, mut refused) = (0, 0);
    for name in ["water.json", "huber.yaml", "parameters.json", "version_1.json"] {
        let (_, full) = good(name);
        let mut all = Vec::new();
        places(&full, String::new(), &mut all);
        for (place, value) in all.iter().flat_map(|place| strange.iter().map(move |value| (place, value))) {
            let mut input = full.clone();
            *input.pointer_mut(place).expect("the place was found in it") = value.clone();
            match Input::from_value(input, "input.json", || 1) {
                Ok(_) => read += 1,
                Err(e) => {
                    refused += 1;
                    assert!(e.message().starts_with("input.json: "), "{place} = {value}: {e}");
                }
            }
        }
    }
    assert!(read > 500 && refused > 5000, "{read} read, {refused} refused");
}

#[test]
fn an_input_that_is_not_there_is_named() {
    let e = Input::read(&folder("good").join("absent.json")).unwrap_err();
    assert!(e.message().contains("absent.json: cannot read: "), "{e}");
}
