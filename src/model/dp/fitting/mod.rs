//! Fitting nets: what a descriptor is turned into.
//!
//! A fitting net is a file of this folder, with an `ENTRY`, and a line of the list below. What all of them have, the keys that
//! several share, and how they are read is in this file.

use super::descriptor::Descriptors;
use super::keys::{self, ACTIVATION, SIZE, WIDTH, activation, neuron, precision};
use super::options::Precision;
use crate::config::check::count;
use crate::config::table::{Key, Kind, Table, Variant, Variants};
use crate::config::{Section, registry};
use crate::err;
use crate::error::Result;
use crate::model::activation::Activation;
use serde_json::Value;

registry::listed! {
    /// A fitting net with the options that are its own.
    enum FittingKind of FittingOptions;
    /// Every fitting net, with those that only DeePMD-kit has.
    list FITTING_NETS of FittingNet {
        Ener in ener,
        Dos in dos,
        Property in property,
        Dipole in dipole,
        Polar in polar,
    }
    not yet {
        Variant::not_yet("dpa4_ener").aliases(&["sezm_ener"]),
        Variant::not_yet("population"),
    }
}

/// A line of the list.
type Entry = registry::Entry<FittingNet>;

/// What is known of a fitting net without its options.
pub struct FittingNet {
    /// The options that are its own, from a checked section with so many types; some stand among those of all.
    pub resolve: fn(&Section, &mut FittingOptions, usize) -> Result<FittingKind>,
    /// What it predicts.
    pub output: fn(&FittingOptions) -> Output,
    /// The newest version of it in model files that is known, which is written.
    pub version: i64,
    /// The keys of a model file that are its own.
    pub write: fn(&FittingOptions) -> Vec<(&'static str, Value)>,
    /// The keys of an input that are its own.
    pub section: fn(&FittingOptions) -> Vec<(&'static str, Value)>,
    /// What [`FittingNet::write`] wrote, read: `get` gives the value of a key, null where it is not there.
    pub read: fn(Get) -> Result<FittingKind>,
}

/// Gives the value of a key of a model file.
pub type Get<'a> = &'a dyn Fn(&str) -> Result<Value>;

/// What a fitting net predicts.
#[derive(Debug, Clone, PartialEq)]
pub struct Output {
    /// DeePMD-kit's name of it, which labels and statistics have too.
    pub name: String,
    /// Numbers of an atom, and of a frame.
    pub width: usize,
    /// How they are made from the numbers of the last layer of the net.
    pub made: Made,
    /// That of a frame is the mean over its atoms, not the sum.
    pub is_intensive: bool,
    /// How the statistics enter.
    pub applied: Applied,
}

/// How the output of an atom is made from the numbers x of its net. Row m of A of all descriptors, its three directions alone, is r_m.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Made {
    /// It is x.
    Itself,
    /// The vector `sum_m x_m r_m`.
    Vector,
    /// The tensor `sum_m x_m r_m (x) r_m`.
    Diagonal,
    /// The tensor `sum_mn (x_mn + x_nm) / 2 r_m (x) r_n`.
    Matrix,
}

impl Made {
    /// Whether it turns with the atoms.
    pub fn is_turned(self) -> bool {
        self != Made::Itself
    }
}

impl Output {
    /// Numbers of the last layer of the net.
    pub fn net_width(&self, descriptors: &Descriptors) -> usize {
        let rows = descriptors.n_directions();
        match self.made {
            Made::Itself => self.width,
            Made::Vector | Made::Diagonal => rows,
            Made::Matrix => rows * rows,
        }
    }
}

/// How the statistics of labels enter an output of the net.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Applied {
    /// The bias of the type is added.
    Bias,
    /// It is multiplied by the deviation of the type, then the bias is added.
    Normalised,
    /// The same with one deviation and one bias for all types.
    NormalisedAlike,
    /// They do not.
    Nothing,
    /// To the diagonal of the tensor the mean diagonal of the type's bias is added, times the scale of the type.
    Diagonal,
}

impl Applied {
    /// Whether the deviation matters.
    pub fn takes_deviation(self) -> bool {
        matches!(self, Applied::Normalised | Applied::NormalisedAlike)
    }
}

/// The `fitting_net` section.
#[derive(Debug, Clone, PartialEq)]
pub struct FittingOptions {
    /// Which one, with the options that are its own.
    pub kind: FittingKind,
    pub neuron: Vec<usize>,
    pub activation: Activation,
    pub resnet_dt: bool,
    pub precision: Precision,
    /// One flag for each hidden layer and one for the output layer.
    pub trainable: Vec<bool>,
    pub seed: Option<u64>,
    pub numb_fparam: usize,
    pub numb_aparam: usize,
    /// Inputs of the net that say of which branch of a multi-task model an atom is: 1 for its own, 0 for all others. Engines know
    /// nothing of them: see [`Common`](super::branches::Common).
    pub dim_case_embd: usize,
    /// What frames without frame parameters have.
    pub default_fparam: Option<Vec<f64>>,
    /// Parameters of atoms are read and not given to the net.
    pub use_aparam_as_mask: bool,
    /// Singular values below this ratio are dropped when the bias is fitted.
    pub rcond: Option<f64>,
    /// Energy of the isolated atom for each type, where it is given; empty for other nets than `ener`.
    pub atom_ener: Vec<Option<f64>>,
    /// Types whose atoms alone may have labels; empty: all have. It says how data is read; what the model leaves out is
    /// `atom_exclude_types`.
    pub sel_type: Vec<usize>,
}

/// The keys of the `fitting_net` section.
pub static FITTING: Table =
    Table { keys: &[], variants: Some(Variants { what: "fitting net", default: "ener", list: &TYPES }) };

static TYPES: [Variant; registry::count_types(FITTING_NETS)] = registry::types(FITTING_NETS);

// ---- Keys that fitting nets share.

const NUMB_FPARAM: Key =
    Key::new("numb_fparam", SIZE).default("0").doc("Parameters of a frame (fparam.npy) that the net gets.");
const NUMB_APARAM: Key =
    Key::new("numb_aparam", SIZE).default("0").doc("Parameters of an atom (aparam.npy) that the net gets.");
const DEFAULT_FPARAM: Key = Key::new("default_fparam", Kind::OneOf(&[Kind::Null, Kind::List(&Kind::NUMBER)]))
    .default("null")
    .doc("Parameters of a frame for systems that have none.");
const DIM_CASE_EMBD: Key = Key::new("dim_case_embd", Kind::COUNT)
    .default("0")
    .doc("Numbers that tell a shared net of which branch of a multi-task model an atom is: as many as there are branches, or more.");
const NEURON: Key = Key::new("neuron", Kind::List(&WIDTH))
    .default("[120,120,120]")
    .doc("Widths of the hidden layers. A layer of the same width as the one before gets a shortcut.");
const ACTIVATION_FUNCTION: Key =
    Key::new("activation_function", ACTIVATION).default("\"tanh\"").doc("Activation of the hidden layers.");
const PRECISION: Key = Key::new("precision", keys::PRECISION)
    .default("\"default\"")
    .doc("Number type of the network; default is float64.");
const RESNET_DT: Key = Key::new("resnet_dt", Kind::Bool)
    .default("true")
    .doc("Whether layers scale their output by a trained vector.");
const TRAINABLE: Key = Key::new("trainable", Kind::OneOf(&[Kind::Bool, Kind::List(&Kind::Bool)]))
    .default("true")
    .doc("Whether the net is trained; as a list, one flag for each hidden layer and one for the output.");
const RCOND: Key = Key::new("rcond", Kind::OneOf(&[Kind::NOT_NEGATIVE, Kind::Null]))
    .default("null")
    .doc("Singular values below this ratio of the largest are dropped when the bias is fitted.");
const SEED: Key = Key::new("seed", Kind::SEED)
    .optional()
    .doc("Seed of the initial parameters; absent: taken from training.seed.");

const SEL_TYPE: Key =
    Key::new("sel_type", Kind::OneOf(&[Kind::List(&Kind::COUNT), Kind::COUNT, Kind::Null])).optional().doc(
        "The types of atoms that have labels, where files of labels of atoms hold numbers for these alone: atoms of other types then have \
         no output, as with model.atom_exclude_types. Files with numbers for all atoms are taken whole, as DeePMD-kit's PyTorch does.",
    );

impl FittingOptions {
    /// Refuses descriptors without what the output is made from.
    pub fn check_descriptors(&self, descriptors: &Descriptors) -> Result<()> {
        let without = descriptors.list.iter().find(|one| one.form().components() != 4);
        let Some(without) = without.filter(|_| self.output().made.is_turned()) else { return Ok(()) };
        Err(err!(
            "a fitting net of type \"{}\" needs descriptors that tell directions, and \"{}\" tells none",
            self.type_name(),
            without.kind.name()
        )
        .help("use se_e2_a or se_atten, or a hybrid of such"))
    }

    /// What the numbers of the net are multiplied by for a type.
    pub fn net_scale(&self, center: usize) -> f64 {
        match &self.kind {
            FittingKind::Polar(own) => own.scale[center],
            _ => 1.0,
        }
    }

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

    /// What it predicts.
    pub fn output(&self) -> Output {
        (self.kind.about().output)(self)
    }

    /// Whether it predicts an energy, which has forces and virials.
    pub fn is_energy(&self) -> bool {
        matches!(self.kind, FittingKind::Ener(_))
    }

    /// Refuses what predicts no energy, for whoever needs one.
    pub fn check_energy(&self) -> Result<()> {
        if self.is_energy() {
            return Ok(());
        }
        Err(err!("the model predicts no energy: its fitting net is of type \"{}\"", self.type_name())
            .help("dp test evaluates it"))
    }

    /// The name of its type.
    pub fn type_name(&self) -> &'static str {
        self.kind.name()
    }

    /// Resolves the checked `fitting_net` section.
    pub fn resolve(section: &Section, n_types: usize) -> Result<FittingOptions> {
        let neuron = neuron(section)?;
        let n_layers = neuron.len() + 1;
        let trainable = match section.optional_list("trainable") {
            // Some have no such key: DeePMD-kit trains them always.
            None => vec![section.get("trainable").is_none_or(|flag| flag != false); n_layers],
            Some(flags) => flags.iter().filter_map(Value::as_bool).collect(),
        };
        if trainable.len() != n_layers {
            let error = err!("{} for {n_layers} layers", count(trainable.len(), "flag"));
            return Err(section
                .error("trainable", error)
                .help("one for each layer of neuron and one for the output"));
        }
        let numb_fparam: usize = section.int("numb_fparam");
        let numbers = |list: &[Value]| list.iter().filter_map(Value::as_f64).collect::<Vec<f64>>();
        let default_fparam = section.optional_list("default_fparam").map(numbers);
        if let Some(wrong) = default_fparam.as_ref().filter(|list| list.len() != numb_fparam) {
            let error = err!("{} for numb_fparam = {numb_fparam}", count(wrong.len(), "number"));
            return Err(section.error("default_fparam", error).help("one for each parameter of a frame"));
        }
        let mut options = FittingOptions {
            kind: FittingKind::Ener(Ener),
            neuron,
            activation: activation(section)?,
            resnet_dt: section.bool("resnet_dt"),
            precision: precision(section),
            trainable,
            seed: section.optional_int("seed"),
            numb_fparam,
            dim_case_embd: section.optional_int("dim_case_embd").unwrap_or(0),
            default_fparam,
            use_aparam_as_mask: false,
            numb_aparam: section.int("numb_aparam"),
            rcond: None,
            atom_ener: Vec::new(),
            sel_type: Vec::new(),
        };
        let about = registry::chosen(FITTING_NETS, section);
        options.kind = (about.resolve)(section, &mut options, n_types)?;
        Ok(options)
    }
}

/// The types of `sel_type`: one, or a list without any twice.
fn sel_type(section: &Section, n_types: usize) -> Result<Vec<usize>> {
    let key = "sel_type";
    let types: Vec<usize> = match section.optional_list(key) {
        None => section.optional_int(key).into_iter().collect(),
        Some([]) => {
            let error = err!("found an empty list, wanted the types of atoms that have labels");
            return Err(section.error(key, error).help("leave the key out where all atoms have"));
        }
        Some(_) => section.ints(key),
    };
    match types.iter().find(|&&t| t >= n_types) {
        Some(t) => {
            Err(section.error(key, err!("there is no type {t}: type_map has the types 0 to {}", n_types - 1)))
        }
        None => Ok(types),
    }
}

/// A number of outputs in a model file.
fn read_width(get: Get, key: &str) -> Result<usize> {
    let found = get(key)?;
    match found.as_u64() {
        Some(n) if (1..=1 << 20).contains(&n) => Ok(n as usize),
        _ => Err(err!("{key}: found {found}, wanted a number of outputs")),
    }
}
