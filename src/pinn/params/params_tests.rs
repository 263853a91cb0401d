//! Both styles of params.yml.

use super::*;
use crate::model::pinet::options::{DipoleOptions, PotentialOptions};
use crate::optim::keras_adam::{Clip, KerasAdamOptions};
use crate::optim::keras_rate::Rate;
use std::collections::BTreeMap;

fn read(text: &str) -> Result<Params> {
    Params::from_value(value::parse(text, "yml").unwrap(), "params.yml")
}

const MASTER: &str = "
model_dir: runs/m
network: {name: PiNet, params: {atom_types: [1, 8], rc: 5.0, basis_type: gaussian, n_basis: 3, gamma: [1, 2, 3]}}
model: {name: potential_model, params: {use_force: true, e_dress: {1: -0.5, 8: -74.25}, max_energy: 10}}
optimizer:
  class_name: Adam
  config:
    global_clipnorm: 0.01
    learning_rate:
      class_name: ExponentialDecay
      config: {initial_learning_rate: 5.0e-5, decay_steps: 100000, decay_rate: 0.994}
";

const FORK: &str = "
model_dir: out
network: pinet
network_params: {atom_types: [1, 8], depth: 3, en_nodes: [8]}
model_params: {learning_rate: 1e-4, decay_step: 10, decay_rate: 0.70, use_e_per_sqrt: true, max_force: 5.0}
parallel: true
";

fn adam(params: &Params) -> &KerasAdamOptions {
    params.optimizer.options().expect("Keras' Adam")
}

#[test]
fn the_newer_style_is_read_with_its_defaults() {
    let params = read(MASTER).unwrap();
    assert_eq!((params.style, params.parallel), (Wiring::Master, false));
    assert_eq!(params.model_dir, Path::new("runs/m"));
    let network = &params.network;
    assert_eq!((network.rc, network.depth, network.act), (5.0, 4, Act::Tanh));
    assert_eq!((&network.n_basis, &network.gamma), (&Basis::Count(3), &Gamma::Each(vec![1.0, 2.0, 3.0])));
    let ModelOptions::Potential(model) = &params.model else { panic!("a potential") };
    assert!(model.use_force && !model.use_stress);
    assert_eq!(model.e_dress, BTreeMap::from([(1, -0.5), (8, -74.25)]));
    assert_eq!((model.max_energy, model.max_force), (Some(10.0), None));
    assert_eq!(adam(&params).clip, Clip::Global(0.01));
    assert_eq!(adam(&params).epsilon, 1e-7);
    assert!((params.rate.at(50_000) - 5e-5 * 0.994f64.sqrt()).abs() < 1e-10);
}

#[test]
fn a_file_of_names_alone_has_every_default() {
    let params = read("network: {name: PiNet}\nmodel: {name: potential_model}\n").unwrap();
    assert_eq!(params.network, PinetOptions::new(Wiring::Master, NetworkKind::PiNet));
    assert_eq!(params.model, ModelOptions::Potential(PotentialOptions::new(Wiring::Master)));
    assert_eq!(params.model_dir, Path::new("model"));
    assert_eq!((params.precision, params.atom_types_given), (Precision::Float32, false));
    assert_eq!(adam(&params).clip, Clip::Variable(0.01));
    assert!((params.rate.at(5_000) - 3e-4 * 0.994f64.sqrt()).abs() < 1e-10);
    let params = read("network: {name: PiNet2}\nmodel: {name: dipole_model}\n").unwrap();
    assert_eq!(params.network, PinetOptions::new(Wiring::Master, NetworkKind::PiNet2));
    assert_eq!(params.model, ModelOptions::Dipole(DipoleOptions::new(Wiring::Master)));
}

#[test]
fn the_style_of_the_fork_is_read_with_its_defaults() {
    let params = read(FORK).unwrap();
    assert_eq!((params.style, params.parallel, params.atom_types_given), (Wiring::Fork, true, true));
    assert_eq!((params.network.out_nodes.as_slice(), params.network.depth), (&[8][..], 3));
    let ModelOptions::Potential(model) = &params.model else { panic!("a potential") };
    assert!(model.use_e_per_sqrt);
    assert_eq!(model.max_force, Some(5.0));
    assert_eq!((adam(&params).epsilon, adam(&params).clip), (1e-8, Clip::Global(0.01)));
    assert!((params.rate.at(9) - 1e-4).abs() < 1e-10);
    assert!((params.rate.at(20) - 1e-4 * 0.49).abs() < 1e-10, "in stairs");
    let params = read("network: pinet\n").unwrap();
    assert_eq!(params.network, PinetOptions::new(Wiring::Fork, NetworkKind::PiNet));
    assert_eq!(params.model, ModelOptions::Potential(PotentialOptions::new(Wiring::Fork)));
    let params =
        read("network: pinet\nmodel: dipole_model\nmodel_params: {use_decay: false, use_norm_clip: false}\n");
    let params = params.unwrap();
    assert_eq!(params.model, ModelOptions::Dipole(DipoleOptions::new(Wiring::Fork)));
    assert_eq!(params.rate, Rate::Constant(3e-4));
    assert_eq!(adam(&params).clip, Clip::None);
    assert!((params.rate.scaled(4.0).at(100) - 1.2e-3).abs() < 1e-9);
}

#[test]
fn truth_values_may_be_written_as_python_writes_them() {
    for (text, want) in
        [("True", true), ("TRUE", true), ("yes", true), ("on", true), ("False", false), ("no", false)]
    {
        let params = read(&MASTER.replace("use_force: true", &format!("use_force: {text}"))).unwrap();
        let ModelOptions::Potential(model) = &params.model else { panic!("a potential") };
        assert_eq!(model.use_force, want, "{text}");
    }
    assert!(read(&FORK.replace("parallel: true", "parallel: True")).unwrap().parallel);
}

#[test]
fn inputs_that_come_with_pinn_are_read() {
    // The input for MD17 of PiNN 2, with the numbers of its file.
    let text = "
model:
  name: potential_model
  params: {use_force: true, f_loss_multiplier: 10.0, e_scale: 1.0, use_e_per_atom: false, log_e_per_atom: true}
network:
  name: PiNet2
  params:
    depth: 5
    rc: 4.5
    n_basis: 10
    basis_type: gaussian
    pi_nodes: [64]
    pp_nodes: [64,64,64,64]
    ii_nodes: [64,64,64,64]
    out_nodes: [64]
    weighted: False
    rank: 3
optimizer:
  class_name: Adam
  config:
    global_clipnorm: 0.01
    learning_rate:
      class_name: ExponentialDecay
      config: {decay_rate: 0.994, decay_steps: 10000, initial_learning_rate: 0.0001}
";
    let params = read(text).unwrap();
    assert_eq!(
        (params.network.kind, params.network.pp_nodes.len(), params.network.weighted),
        (NetworkKind::PiNet2, 4, false)
    );
    assert_eq!(adam(&params).clip, Clip::Global(0.01));
    let bundled = Params::read(Path::new("examples/pinn/params.yml")).unwrap();
    assert_eq!(bundled.network.atom_types, [1, 8]);
}

#[test]
fn keras_optimisers_are_read_by_name_or_with_constant_rates() {
    let base = "network: {name: PiNet}\nmodel: {name: potential_model}\noptimizer: ";
    let optimizer = |text: &str| read(&format!("{base}{text}\n")).map(|p| (p.rate, *adam(&p)));
    let (rate, plain) = optimizer("Adam").unwrap();
    assert_eq!((rate, plain.clip), (Rate::Constant(1e-3), Clip::None));
    let (rate, some) =
        optimizer("{class_name: adam, config: {learning_rate: 0.01, clipvalue: 2, beta_1: 0.5}}").unwrap();
    assert_eq!((rate, some.clip, some.beta1), (Rate::Constant(0.01), Clip::Value(2.0), 0.5));
    assert!(optimizer("EKF").unwrap_err().message().contains("\"EKF\" is not supported"));
    let error = optimizer("{class_name: Adam, config: {lerning_rate: 1}}").unwrap_err().to_string();
    assert!(error.contains("optimizer.config.lerning_rate: unknown key"), "{error}");
    assert!(error.contains("did you mean `learning_rate`?"), "{error}");
    let error = optimizer("{class_name: Adam, config: {clipnorm: 1, clipvalue: 1}}").unwrap_err().to_string();
    assert!(error.contains("optimizer.config.clipvalue: clipnorm is given too"), "{error}");
    assert!(optimizer("{class_name: Adam, config: {amsgrad: true}}").is_err());
}

#[test]
fn unknown_keys_are_named_with_their_path_and_the_nearest_name() {
    let error = |text: &str| read(text).unwrap_err().to_string();
    let e = error(&MASTER.replace("use_force", "use_forces"));
    assert!(e.contains("params.yml: model.params.use_forces: unknown key"), "{e}");
    assert!(e.contains("did you mean `use_force`?"), "{e}");
    let e = error(&MASTER.replace("rc: 5.0", "rcut: 5.0"));
    assert!(e.contains("network.params.rcut: unknown key"), "{e}");
    let e = error(&FORK.replace("en_nodes", "out_nodes"));
    assert!(e.contains("network_params.out_nodes: unknown key"), "{e}");
    let e = error(&FORK.replace("decay_step", "decay_steps"));
    assert!(
        e.contains("model_params.decay_steps: unknown key") && e.contains("did you mean `decay_step`?"),
        "{e}"
    );
    let e = error(&format!("{FORK}\nparalel: true\n"));
    assert!(e.contains("paralel: unknown key"), "{e}");
    let e = error(&format!("{FORK}\nranks_per_frame: 2\n"));
    assert!(e.contains("ranks_per_frame: found 2, wanted"), "{e}");
}

#[test]
fn values_that_make_no_sense_are_refused() {
    let error = |from: &str, to: &str| read(&MASTER.replace(from, to)).unwrap_err().to_string();
    assert!(error("PiNet,", "PiNett,").contains("did you mean `PiNet`?"));
    assert!(error("PiNet,", "BPNN,").contains("PiNN knows BPNN"));
    assert!(error("potential_model", "AC_dipole_model").contains("PiNN knows AC_dipole_model"));
    assert!(error("n_basis: 3", "n_basis: 4").contains("network.params.gamma: 3 numbers, but n_basis is 4"));
    assert!(error("n_basis: 3", "n_basis: [1, 2, 3]").contains("only a polynomial basis takes a list"));
    assert!(error("[1, 8]", "[1, 1]").contains("different atomic numbers"));
    assert!(error("max_energy: 10", "max_energy: true").contains("wanted a number, or false for none"));
    assert!(error("{1: -0.5", "{H: -0.5").contains("model.params.e_dress: found \"H\""));
    assert!(error("rc: 5.0", "act: tahn").contains("did you mean `tanh`?"));
    let pooled = "network: {name: PiNet, params: {out_pool: sum}}\nmodel: {name: dipole_model}\n";
    let e = read(pooled).unwrap_err().to_string();
    assert!(e.contains("network.params.out_pool: dipole_model needs the charge of every atom"), "{e}");
    assert!(read(&pooled.replace("dipole_model", "potential_model")).is_ok());
    assert!(read("model: {name: potential_model}").unwrap_err().message().contains("network: missing"));
    assert!(read("[1]").unwrap_err().message().contains("wanted keys and values"));
    let two = "network: {name: PiNet2, params: {rank: 2}}\nmodel: {name: potential_model}\n";
    assert!(read(two).unwrap_err().message().contains("network.params.rank: found 2, wanted 1, 3 or 5"));
    assert!(read(&two.replace("rank: 2", "out_extra: {p7: 1}")).unwrap_err().message().contains("p7"));
    assert!(
        read(&two.replace("rank: 2", "pp_nodes: [8]"))
            .unwrap_err()
            .message()
            .contains("the last width differs")
    );
}

#[test]
fn a_folder_stands_for_its_params_file_and_is_the_model_dir() {
    let folder = tempfile::tempdir().unwrap();
    write_params(folder.path(), &read(MASTER).unwrap().written).unwrap();
    let params = Params::read(folder.path()).unwrap();
    assert_eq!(params.model_dir, folder.path());
    let again = Params { model_dir: "runs/m".into(), written: read(MASTER).unwrap().written, ..params };
    let (again, first) = (format!("{again:#?}"), format!("{:#?}", read(MASTER).unwrap()));
    assert_eq!(again, first, "written and read again it is the same");
}
