//! The options of a Deep Potential model: the table of keys, and the options as meant.

use crate::config::Section;
use crate::config::check::{count, did_you_mean};
use crate::config::table::{Choice, Key, Kind, Pattern, Table, Variant, Variants};
use crate::err;
use crate::error::Result;
use crate::model::activation::Activation;
use serde_json::Value;

/// Number type of a network's parameters and arithmetic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Precision {
    Float32,
    Float64,
}

/// The `model` section.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelOptions {
    pub type_map: Vec<String>,
    pub descriptor: DescriptorOptions,
    pub fitting: FittingOptions,
    /// Batches of each system that the statistics look at.
    pub data_stat_nbatch: usize,
    /// Smallest standard deviation that the statistics may give.
    pub data_stat_protect: f64,
    /// The section as it goes into model files, with all defaults written out and without our own keys.
    pub script: serde_json::Value,
}

/// One of the descriptors of [`crate::model::dp`].
#[derive(Debug, Clone, PartialEq)]
pub enum DescriptorOptions {
    SeE2A(SeE2AOptions),
}

/// `descriptor` of type `se_e2_a`.
#[derive(Debug, Clone, PartialEq)]
pub struct SeE2AOptions {
    pub sel: Sel,
    pub rcut: f64,
    pub rcut_smth: f64,
    pub neuron: Vec<usize>,
    pub axis_neuron: usize,
    pub activation: Activation,
    pub resnet_dt: bool,
    pub type_one_side: bool,
    pub precision: Precision,
    pub trainable: bool,
    pub seed: Option<u64>,
    /// Pairs of type indices that do not see each other.
    pub exclude_types: Vec<(usize, usize)>,
    pub set_davg_zero: bool,
    pub env_protection: f64,
    pub embedding: Embedding,
}

/// How the embedding net is evaluated (ours).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Embedding {
    /// By its Chebyshev expansion, equal to the net up to rounding.
    Chebyshev,
    /// Layer by layer for every neighbour.
    Direct,
}

/// The number of neighbour slots for each type.
#[derive(Debug, Clone, PartialEq)]
pub enum Sel {
    Fixed(Vec<usize>),
    /// The largest number found in the data times this ratio, rounded up to a multiple of 4.
    Auto(f64),
}

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
    /// Singular values below this ratio are dropped when the energy bias is fitted.
    pub rcond: Option<f64>,
    /// Energy of the isolated atom for each type, where it is given.
    pub atom_ener: Vec<Option<f64>>,
}

/// The keys of the `model` section.
pub static MODEL: Table = Table {
    keys: &[
        Key::new("type_map", Kind::List(&Kind::Text))
            .doc("The names of the atom types, in the order of their indices."),
        Key::new("data_stat_nbatch", Kind::AT_LEAST_ONE)
            .default("10")
            .doc("Batches of each system that the statistics of the data look at."),
        Key::new("data_stat_protect", Kind::POSITIVE)
            .default("0.01")
            .doc("Smallest standard deviation of frame and atomic parameters that the statistics may give."),
        Key::new("data_bias_nsample", Kind::AT_LEAST_ONE)
            .default("10")
            .ignored("")
            .doc("Samples of each system that a change of the energy bias looks at."),
        Key::new("use_srtab", Kind::Text)
            .optional()
            .not_yet("")
            .doc("File with a table of short-range pair energies."),
        Key::new("smin_alpha", Kind::NUMBER).optional().ignored("").doc("Only used together with use_srtab."),
        Key::new("sw_rmin", Kind::NUMBER).optional().ignored("").doc("Only used together with use_srtab."),
        Key::new("sw_rmax", Kind::NUMBER).optional().ignored("").doc("Only used together with use_srtab."),
        Key::new("pair_exclude_types", Kind::Any)
            .default("[]")
            .not_yet("for se_e2_a, model.descriptor.exclude_types does the same")
            .doc("Pairs of types that are not neighbours of each other."),
        Key::new("atom_exclude_types", Kind::Any)
            .default("[]")
            .not_yet("")
            .doc("Types whose atoms have no energy of their own."),
        Key::new("preset_out_bias", Kind::Any)
            .default("null")
            .not_yet("for energies, model.fitting_net.atom_ener sets the bias of a type")
            .doc("Given values for the bias of the output."),
        Key::new("srtab_add_bias", Kind::Bool)
            .default("true")
            .ignored("")
            .doc("Only used together with use_srtab."),
        Key::new("type_embedding", Kind::Any)
            .optional()
            .not_yet("")
            .doc("A network that embeds the atom types."),
        Key::new("modifier", Kind::Any)
            .optional()
            .not_yet("")
            .doc("A correction to the output of the model."),
        Key::new("compress", Kind::Any).optional().not_yet("").doc("A compressed model."),
        Key::new("spin", Kind::Any).optional().not_yet("").doc("Systems with spin."),
        Key::new("finetune_head", Kind::Text)
            .optional()
            .not_yet("")
            .doc("The fitting net of a multi-task model that fine-tuning starts from."),
        Key::new("model_dict", Kind::Any).optional().not_yet("").doc("The models of a multi-task training."),
        Key::new("shared_dict", Kind::Any)
            .optional()
            .not_yet("")
            .doc("Parts that models of a multi-task training share."),
        Key::new("lora", Kind::Any).optional().not_yet("").doc("Low-rank adapters for fine-tuning."),
    ],
    variants: Some(Variants {
        what: "model",
        default: "standard",
        list: &[
            Variant::of("standard", STANDARD, "A descriptor and a fitting net"),
            Variant::not_yet("dpa4").aliases(&["DPA4", "SeZM", "sezm"]),
            Variant::not_yet("frozen"),
            Variant::not_yet("pairtab"),
            Variant::not_yet("pairwise_dprc"),
            Variant::not_yet("linear_ener"),
            Variant::not_yet("inner_potential"),
        ],
    }),
};

const STANDARD: &[Key] = &[
    Key::new("descriptor", Kind::Object(&DESCRIPTOR))
        .doc("What the surroundings of an atom are turned into."),
    Key::new("fitting_net", Kind::Object(&FITTING))
        .doc("The network that turns a descriptor into an energy."),
    Key::new("model_branch_alias", Kind::List(&Kind::Text))
        .default("[]")
        .ignored("")
        .doc("Other names of a branch of a multi-task model."),
    Key::new("info", Kind::Any).default("{}").ignored("").doc("Anything that should be kept with the model."),
    Key::new("bridging_method", Kind::Text)
        .default("\"None\"")
        .not_yet("")
        .doc("An analytic potential that takes over at short range."),
    Key::new("bridging_r_inner", Kind::NUMBER)
        .default("0.5")
        .unit("A")
        .ignored("")
        .doc("Only used together with bridging_method."),
    Key::new("bridging_r_outer", Kind::NUMBER)
        .default("0.8")
        .unit("A")
        .ignored("")
        .doc("Only used together with bridging_method."),
];

static DESCRIPTOR: Table = Table {
    keys: &[],
    variants: Some(Variants {
        what: "descriptor",
        default: "",
        list: &[
            Variant::of(
                "se_e2_a",
                SE_E2_A,
                "Distances and directions of the neighbours, by an embedding net",
            )
            .aliases(&["se_a"]),
            Variant::not_yet("se_e2_r").aliases(&["se_r"]),
            Variant::not_yet("se_e3").aliases(&["se_at", "se_a_3be", "se_t"]),
            Variant::not_yet("se_e3_tebd"),
            Variant::not_yet("se_atten").aliases(&["dpa1"]),
            Variant::not_yet("se_atten_v2"),
            Variant::not_yet("dpa2"),
            Variant::not_yet("dpa3"),
            Variant::not_yet("dpa4").aliases(&["DPA4", "SeZM", "sezm"]),
            Variant::not_yet("dpa4c").aliases(&["DPA4C"]),
            Variant::not_yet("hybrid"),
            Variant::not_yet("loc_frame"),
            Variant::not_yet("se_a_tpe").aliases(&["se_a_ebd"]),
            Variant::not_yet("se_a_ebd_v2").aliases(&["se_a_tpe_v2"]),
            Variant::not_yet("se_a_mask"),
        ],
    }),
};

/// The width of a layer. The limit is far beyond use; it turns a slip of the keyboard into an error.
const WIDTH: Kind = Kind::Int(1, 100_000);
/// A size that may be zero, with the same limit.
const SIZE: Kind = Kind::Int(0, 100_000);

const ACTIVATION: Kind = Kind::Pattern(Pattern {
    wanted: "the name of an activation function (tanh, relu, relu6, softplus, sigmoid, gelu, gelu_tf, silu, silut, \
             silut:THRESHOLD, linear, none)",
    check: |text| parse_activation(text).map(|_| ()),
});

const PRECISION: Kind =
    Kind::Choice(Choice { known: &["default", "float64", "float32"], not_yet: &["float16", "bfloat16"] });

const SE_E2_A: &[Key] = &[
    Key::new(
        "sel",
        Kind::OneOf(&[
            Kind::List(&SIZE),
            Kind::Pattern(Pattern {
                wanted: "\"auto\" or \"auto:RATIO\"",
                check: |text| parse_auto_sel(text).map(|_| ()),
            }),
        ]),
    )
    .default("\"auto\"")
    .doc(
        "Neighbours of each type that an atom can have, nearest first; more are left out. With auto, the largest \
         number in the data times the ratio (1.1), rounded up to a multiple of 4.",
    ),
    Key::new("rcut", Kind::POSITIVE).default("6.0").unit("A").doc("Neighbours beyond this distance are not seen."),
    Key::new("rcut_smth", Kind::NOT_NEGATIVE)
        .default("0.5")
        .unit("A")
        .doc("From here on the weight 1/r of a neighbour is switched off, smoothly, until it vanishes at rcut."),
    Key::new("neuron", Kind::List(&WIDTH))
        .default("[10,20,40]")
        .doc("Widths of the layers of the embedding net. A layer of the same or twice the width gets a shortcut."),
    Key::new("axis_neuron", WIDTH)
        .aliases(&["n_axis_neuron"])
        .default("4")
        .doc("Columns of the embedding that the descriptor is projected on."),
    Key::new("activation_function", ACTIVATION).default("\"tanh\"").doc("Activation of the embedding net."),
    Key::new("resnet_dt", Kind::Bool).default("false").doc("Whether layers scale their output by a trained vector."),
    Key::new("type_one_side", Kind::Bool)
        .default("false")
        .doc("Whether embedding nets differ by the type of the neighbour only, not by that of the centre too."),
    Key::new("precision", PRECISION).default("\"default\"").doc("Number type of the network; default is float64."),
    Key::new("trainable", Kind::Bool).default("true").doc("Whether the embedding nets are trained."),
    Key::new("seed", Kind::SEED).optional().doc("Seed of the initial parameters; absent: taken from training.seed."),
    Key::new("exclude_types", Kind::List(&Kind::List(&Kind::COUNT)))
        .default("[]")
        .doc("Pairs of type indices that do not see each other, such as [[0, 1]]."),
    Key::new("env_protection", Kind::NUMBER)
        .default("0.0")
        .unit("A")
        .doc("Added to distances where they are divided by."),
    Key::new("set_davg_zero", Kind::Bool)
        .default("false")
        .doc("Whether the mean of the environment is taken as zero instead of measured."),
    Key::new("embedding", Kind::choice(&["chebyshev", "direct"])).default("\"chebyshev\"").doc(
        "Phalanx only. How the embedding net is evaluated: by its Chebyshev expansion, which equals it up to \
         rounding and is much faster, or layer by layer for every neighbour.",
    ),
];

static FITTING: Table = Table {
    keys: &[],
    variants: Some(Variants {
        what: "fitting net",
        default: "ener",
        list: &[
            Variant::of("ener", ENER, "The energy of an atom"),
            Variant::not_yet("dpa4_ener").aliases(&["sezm_ener"]),
            Variant::not_yet("dos"),
            Variant::not_yet("population"),
            Variant::not_yet("property"),
            Variant::not_yet("polar"),
            Variant::not_yet("dipole"),
        ],
    }),
};

const ENER: &[Key] = &[
    Key::new("numb_fparam", SIZE).default("0").doc("Parameters of a frame (fparam.npy) that the net gets."),
    Key::new("numb_aparam", SIZE).default("0").doc("Parameters of an atom (aparam.npy) that the net gets."),
    Key::new("default_fparam", Kind::Any)
        .default("null")
        .not_yet("write fparam.npy into every system")
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
        .not_yet("")
        .doc("Whether aparam says which atoms are real."),
];

/// `"auto"` or `"auto:1.2"` as a ratio.
fn parse_auto_sel(text: &str) -> Result<f64> {
    let wanted = || err!("found \"{text}\", wanted a list of integers, \"auto\" or \"auto:RATIO\"");
    let ratio = match text.split_once(':') {
        None if text == "auto" => return Ok(1.1),
        Some(("auto", ratio)) => ratio.trim().parse::<f64>().map_err(|_| wanted())?,
        _ => return Err(wanted()),
    };
    if !(ratio.is_finite() && ratio >= 1.0) {
        return Err(err!("the ratio {ratio} of \"{text}\" is not at least 1")
            .help("neighbours would be left out: the ratio multiplies the largest number in the data"));
    }
    Ok(ratio)
}

/// An activation function by DeePMD-kit's name for it, in any case.
pub fn parse_activation(text: &str) -> Result<Activation> {
    const NAMES: [&str; 11] = [
        "tanh", "relu", "relu6", "softplus", "sigmoid", "gelu", "gelu_tf", "silu", "silut", "linear", "none",
    ];
    let lower = text.to_lowercase();
    let (name, argument) = match lower.split_once(':') {
        Some((name, argument)) => (name, Some(argument)),
        None => (lower.as_str(), None),
    };
    let activation = match (name, argument) {
        ("silut" | "custom_silu", None) => Activation::Silut { threshold: 3.0 },
        ("silut" | "custom_silu", Some(text)) => match text.trim().parse::<f64>() {
            Ok(threshold) if threshold.is_finite() => Activation::Silut { threshold },
            _ => return Err(err!("the threshold \"{text}\" of silut is not a number")),
        },
        ("tanh", None) => Activation::Tanh,
        ("relu", None) => Activation::Relu,
        ("relu6", None) => Activation::Relu6,
        ("softplus", None) => Activation::Softplus,
        ("sigmoid", None) => Activation::Sigmoid,
        ("gelu" | "gelu_tf", None) => Activation::Gelu,
        ("silu", None) => Activation::Silu,
        ("linear" | "none", None) => Activation::Linear,
        _ => {
            let near = did_you_mean(&lower, NAMES.iter().copied());
            return Err(err!("\"{text}\" is not an activation function")
                .help(format!("{near}known: {}", NAMES.join(", "))));
        }
    };
    Ok(activation)
}

fn precision(section: &Section) -> Precision {
    if section.text("precision") == "float32" { Precision::Float32 } else { Precision::Float64 }
}

fn activation(section: &Section) -> Result<Activation> {
    let key = "activation_function";
    parse_activation(section.text(key)).map_err(|e| section.error(key, e))
}

fn neuron(section: &Section) -> Result<Vec<usize>> {
    let neuron: Vec<usize> = section.ints("neuron");
    if neuron.is_empty() {
        return Err(
            section.error("neuron", err!("found an empty list, wanted the width of at least one layer"))
        );
    }
    Ok(neuron)
}

impl ModelOptions {
    /// Resolves the checked `model` section.
    pub fn resolve(section: &Section) -> Result<ModelOptions> {
        let type_map = section.texts("type_map");
        if type_map.is_empty() {
            return Err(
                section.error("type_map", err!("found an empty list, wanted the names of the atom types"))
            );
        }
        if let Some(name) =
            type_map.iter().enumerate().find(|(i, n)| type_map[..*i].contains(n)).map(|(_, n)| n)
        {
            return Err(section.error("type_map", err!("the type \"{name}\" stands there twice")));
        }
        let descriptor = SeE2AOptions::resolve(&section.section("descriptor"), &type_map)?;
        let fitting = FittingOptions::resolve(&section.section("fitting_net"), type_map.len())?;
        let mut script = section.value().clone();
        if let Some(Value::Object(descriptor)) = script.get_mut("descriptor") {
            descriptor.shift_remove("embedding"); // DeePMD-kit would refuse it
        }
        Ok(ModelOptions {
            type_map,
            descriptor: DescriptorOptions::SeE2A(descriptor),
            fitting,
            data_stat_nbatch: section.int("data_stat_nbatch"),
            data_stat_protect: section.float("data_stat_protect"),
            script,
        })
    }
}

impl SeE2AOptions {
    fn resolve(section: &Section, type_map: &[String]) -> Result<SeE2AOptions> {
        let (rcut, rcut_smth) = (section.float("rcut"), section.float("rcut_smth"));
        if rcut_smth >= rcut {
            return Err(section
                .error("rcut_smth", err!("{rcut_smth} A is not below rcut = {rcut} A"))
                .help("the switch starts at rcut_smth and reaches zero at rcut"));
        }
        let neuron = neuron(section)?;
        let axis_neuron: usize = section.int("axis_neuron");
        if axis_neuron > neuron[neuron.len() - 1] {
            let error =
                err!("{axis_neuron} is more than the last width {} of neuron", neuron[neuron.len() - 1]);
            return Err(section.error("axis_neuron", error).help("it selects columns of the last layer"));
        }
        Ok(SeE2AOptions {
            sel: Self::resolve_sel(section, type_map)?,
            rcut,
            rcut_smth,
            neuron,
            axis_neuron,
            activation: activation(section)?,
            resnet_dt: section.bool("resnet_dt"),
            type_one_side: section.bool("type_one_side"),
            precision: precision(section),
            trainable: section.bool("trainable"),
            seed: section.optional_int("seed"),
            exclude_types: Self::resolve_exclude_types(section, type_map)?,
            set_davg_zero: section.bool("set_davg_zero"),
            env_protection: section.float("env_protection"),
            embedding: match section.text("embedding") {
                "direct" => Embedding::Direct,
                _ => Embedding::Chebyshev,
            },
        })
    }

    fn resolve_sel(section: &Section, type_map: &[String]) -> Result<Sel> {
        if let Some(text) = section.optional_text("sel") {
            return parse_auto_sel(text).map(Sel::Auto).map_err(|e| section.error("sel", e));
        }
        let sel: Vec<usize> = section.ints("sel");
        if sel.len() != type_map.len() {
            let error =
                err!("{} for the {} of type_map", count(sel.len(), "number"), count(type_map.len(), "type"));
            return Err(section
                .error("sel", error)
                .help(format!("one number for each of {}, or \"auto\"", type_map.join(", "))));
        }
        if sel.iter().all(|n| *n == 0) {
            return Err(section.error("sel", err!("all numbers are zero, so that no atom has a neighbour")));
        }
        Ok(Sel::Fixed(sel))
    }

    fn resolve_exclude_types(section: &Section, type_map: &[String]) -> Result<Vec<(usize, usize)>> {
        let n = type_map.len() as u64;
        let mut pairs = Vec::new();
        for (i, item) in section.list("exclude_types").iter().enumerate() {
            let key = format!("exclude_types[{i}]");
            let types: Vec<u64> = item.as_array().into_iter().flatten().filter_map(Value::as_u64).collect();
            let [a, b] = types[..] else {
                return Err(
                    section.error(&key, err!("found {}, wanted a pair of two", count(types.len(), "type")))
                );
            };
            if let Some(outside) = [a, b].into_iter().find(|t| *t >= n) {
                return Err(section
                    .error(&key, err!("there is no type {outside}: type_map has the types 0 to {}", n - 1)));
            }
            pairs.push((a as usize, b as usize));
        }
        Ok(pairs)
    }
}

impl FittingOptions {
    fn resolve(section: &Section, n_types: usize) -> Result<FittingOptions> {
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
        Ok(FittingOptions {
            neuron,
            activation: activation(section)?,
            resnet_dt: section.bool("resnet_dt"),
            precision: precision(section),
            trainable,
            seed: section.optional_int("seed"),
            numb_fparam: section.int("numb_fparam"),
            numb_aparam: section.int("numb_aparam"),
            rcond: section.optional_float("rcond"),
            atom_ener,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn activations_have_deepmd_kits_names() {
        assert_eq!(parse_activation("Tanh").unwrap(), Activation::Tanh);
        assert_eq!(parse_activation("none").unwrap(), Activation::Linear);
        assert_eq!(parse_activation("silut:10.0").unwrap(), Activation::Silut { threshold: 10.0 });
        assert_eq!(parse_activation("silut").unwrap(), Activation::Silut { threshold: 3.0 });
        assert!(parse_activation("silut:x").is_err() && parse_activation("tanh:1").is_err());
        assert!(parse_activation("gelo").unwrap_err().advice().unwrap().starts_with("did you mean `gelu`?"));
    }

    #[test]
    fn auto_sel_has_a_ratio_of_at_least_one() {
        assert_eq!(parse_auto_sel("auto").unwrap(), 1.1);
        assert_eq!(parse_auto_sel("auto:1.5").unwrap(), 1.5);
        for wrong in ["auto:0.5", "auto:", "automatic", "auto:nan", "46"] {
            assert!(parse_auto_sel(wrong).is_err(), "{wrong}");
        }
    }
}
