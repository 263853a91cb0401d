//! `ener`: the energy of an atom.

use crate::config::Section;
use crate::config::check::count;
use crate::config::table::{Key, Kind, Variant};
use crate::err;
use crate::error::Result;
use crate::model::activation::Activation;
use crate::model::dp::keys::{ACTIVATION, PRECISION, SIZE, WIDTH, activation, neuron, precision};
use crate::model::dp::options::Precision;
use serde_json::Value;

pub const VARIANT: Variant = Variant::of("ener", KEYS, "The energy of an atom");

/// `fitting_net` of type `ener`.
#[derive(Debug, Clone, PartialEq)]
pub struct FittingOptions {
    pub neuron: Vec<usize>,
    pub activation: Activation,
    pub resnet_dt: bool,
    pub precision: Precision,
    /// One flag for each hidden layer and one for the output layer.
    pub trainable: Vec<bool>,
    pub seed: Option<u64>,
    pub numb_fparam: usize,
    pub numb_aparam: usize,
    /// What frames without frame parameters have.
    pub default_fparam: Option<Vec<f64>>,
    /// Parameters of atoms are read and not given to the net.
    pub use_aparam_as_mask: bool,
    /// Singular values below this ratio are dropped when the energy bias is fitted.
    pub rcond: Option<f64>,
    /// Energy of the isolated atom for each type, where it is given.
    pub atom_ener: Vec<Option<f64>>,
}

const KEYS: &[Key] = &[
    Key::new("numb_fparam", SIZE).default("0").doc("Parameters of a frame (fparam.npy) that the net gets."),
    Key::new("numb_aparam", SIZE).default("0").doc("Parameters of an atom (aparam.npy) that the net gets."),
    Key::new("default_fparam", Kind::OneOf(&[Kind::Null, Kind::List(&Kind::NUMBER)]))
        .default("null")
        .doc("Parameters of a frame for systems that have none."),
    Key::new("dim_case_embd", Kind::COUNT)
        .default("0")
        .not_yet("")
        .doc("Size of the embedding of multi-task branches."),
    Key::new("neuron", Kind::List(&WIDTH))
        .aliases(&["n_neuron"])
        .default("[120,120,120]")
        .doc("Widths of the hidden layers. A layer of the same width as the one before gets a shortcut."),
    Key::new("activation_function", ACTIVATION).default("\"tanh\"").doc("Activation of the hidden layers."),
    Key::new("precision", PRECISION)
        .default("\"default\"")
        .doc("Number type of the network; default is float64."),
    Key::new("resnet_dt", Kind::Bool)
        .default("true")
        .doc("Whether layers scale their output by a trained vector."),
    Key::new("trainable", Kind::OneOf(&[Kind::Bool, Kind::List(&Kind::Bool)]))
        .default("true")
        .doc("Whether the net is trained; as a list, one flag for each hidden layer and one for the output."),
    Key::new("rcond", Kind::OneOf(&[Kind::NOT_NEGATIVE, Kind::Null]))
        .default("null")
        .doc("Singular values below this ratio of the largest are dropped when the energy bias is fitted."),
    Key::new("seed", Kind::SEED)
        .optional()
        .doc("Seed of the initial parameters; absent: taken from training.seed."),
    Key::new("atom_ener", Kind::List(&Kind::OneOf(&[Kind::NUMBER, Kind::Null])))
        .default("[]")
        .unit("eV")
        .doc("Energy of an isolated atom of each type, or null; the net then vanishes without neighbours."),
    Key::new("layer_name", Kind::Any)
        .optional()
        .not_yet("")
        .doc("Names of layers; equal names share parameters."),
    Key::new("use_aparam_as_mask", Kind::Bool)
        .default("false")
        .doc("Whether parameters of atoms are kept from the net: DeePMD-kit's PyTorch reads them and does no more."),
];

impl FittingOptions {
    /// Inputs of the net beside the descriptor.
    pub fn n_extra(&self) -> usize {
        self.numb_fparam + if self.use_aparam_as_mask { 0 } else { self.numb_aparam }
    }

    /// The parameters of a frame that brought these.
    pub fn fparam_or_default<'a>(&'a self, own: &'a [f64]) -> &'a [f64] {
        match &self.default_fparam {
            Some(default) if own.is_empty() => default,
            _ => own,
        }
    }

    pub fn resolve(section: &Section, n_types: usize) -> Result<FittingOptions> {
        let neuron = neuron(section)?;
        let n_layers = neuron.len() + 1;
        let trainable = match section.optional_list("trainable") {
            None => vec![section.bool("trainable"); n_layers],
            Some(flags) => flags.iter().filter_map(Value::as_bool).collect(),
        };
        if trainable.len() != n_layers {
            let error = err!("{} for {n_layers} layers", count(trainable.len(), "flag"));
            return Err(section
                .error("trainable", error)
                .help("one for each layer of neuron and one for the output"));
        }
        let atom_ener: Vec<Option<f64>> = section.list("atom_ener").iter().map(Value::as_f64).collect();
        if !atom_ener.is_empty() && atom_ener.len() != n_types {
            let error =
                err!("{} for the {} of type_map", count(atom_ener.len(), "number"), count(n_types, "type"));
            return Err(section
                .error("atom_ener", error)
                .help("write null for a type whose energy is not given"));
        }
        let numb_fparam: usize = section.int("numb_fparam");
        let numbers = |list: &[Value]| list.iter().filter_map(Value::as_f64).collect::<Vec<f64>>();
        let default_fparam = section.optional_list("default_fparam").map(numbers);
        if let Some(wrong) = default_fparam.as_ref().filter(|list| list.len() != numb_fparam) {
            let error = err!("{} for numb_fparam = {numb_fparam}", count(wrong.len(), "number"));
            return Err(section.error("default_fparam", error).help("one for each parameter of a frame"));
        }
        Ok(FittingOptions {
            neuron,
            activation: activation(section)?,
            resnet_dt: section.bool("resnet_dt"),
            precision: precision(section),
            trainable,
            seed: section.optional_int("seed"),
            numb_fparam,
            default_fparam,
            use_aparam_as_mask: section.bool("use_aparam_as_mask"),
            numb_aparam: section.int("numb_aparam"),
            rcond: section.optional_float("rcond"),
            atom_ener,
        })
    }
}
