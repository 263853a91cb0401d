//! The options of a Deep Potential model: the table of keys, and the options as meant.

use super::descriptor::nets::NetPlan;
use super::descriptor::{DESCRIPTOR, check_type, resolve_type_pairs};
pub use super::descriptor::{DescriptorKind, DescriptorOptions, Descriptors, Embedding, Form, SeE2A, Sel};
use super::fitting::FITTING;
pub use super::fitting::{Applied, FittingKind, FittingOptions, Made, Output};
pub use super::keys::parse_activation;
use super::short_range::ShortRange;
use super::type_embedding::{TYPE_EMBEDDING, TypeEmbedding};
use crate::config::Section;
use crate::config::check::{check, count};
use crate::config::table::{Key, Kind, Table, Variant, Variants};
use crate::err;
use crate::error::Result;
use serde_json::{Value, json};

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
    pub descriptors: Descriptors,
    pub fitting: FittingOptions,
    /// Pairs of types that are not neighbours of each other: their slots are empty. A descriptor's own `exclude_types` are other
    /// slots ([`Form`]).
    pub pair_exclude_types: Vec<(usize, usize)>,
    /// Types whose atoms have no energy of their own.
    pub atom_exclude_types: Vec<usize>,
    /// The bias of each type, a number for each output, where it is given; empty where none is.
    pub preset_out_bias: Vec<Option<Vec<f64>>>,
    /// A table of pair energies that takes over at short range.
    pub short_range: Option<ShortRange>,
    /// Types as inputs of all nets.
    pub type_embedding: Option<TypeEmbedding>,
    /// Batches of each system that the statistics look at.
    pub data_stat_nbatch: usize,
    /// Smallest standard deviation that the statistics may give.
    pub data_stat_protect: f64,
    /// The section as it goes into model files, with all defaults written out and without our own keys.
    pub script: serde_json::Value,
}

/// All that a model needs of the input that a run was started with.
static INPUT: Table = Table::of(&[Key::new("model", Kind::Object(&MODEL))]);

/// The keys of the `model` section.
pub static MODEL: Table = Table {
    keys: &[
        Key::new("type_map", Kind::List(&Kind::Text)).optional().doc(
            "The names of the atom types, in the order of their indices. Without it: those of type_map.raw of the training systems, or \
             Type_0, Type_1, ... where they have none.",
        ),
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
        Key::new("use_srtab", Kind::Text).optional().doc(
            "File with a table of pair energies (eV) that takes over at short range: the distance (A), then a column for each pair \
             of types, 0-0, 0-1, ..., 1-1, ....",
        ),
        Key::new("smin_alpha", Kind::POSITIVE)
            .optional()
            .unit("A")
            .doc("With use_srtab: decay of the weights that soften the distance to the nearest neighbour; 0.1 where not given."),
        Key::new("sw_rmin", Kind::NUMBER)
            .optional()
            .unit("A")
            .doc("With use_srtab: softened distance up to which the table alone counts."),
        Key::new("sw_rmax", Kind::NUMBER)
            .optional()
            .unit("A")
            .doc("With use_srtab: softened distance from which on the network alone counts."),
        Key::new("pair_exclude_types", Kind::List(&Kind::List(&Kind::COUNT)))
            .default("[]")
            .doc("Pairs of type indices that are not neighbours of each other, such as [[0, 1]]: their slots stay empty."),
        Key::new("atom_exclude_types", Kind::List(&Kind::COUNT)).default("[]").doc(
            "Indices of types whose atoms have no energy of their own, only a part in that of others. The loss leaves them out.",
        ),
        Key::new("preset_out_bias", Kind::Any).default("null").unit("eV").doc(
            "Given values for the bias of types, such as {\"energy\": [null, -13.6]}; null: fitted to the data. The key is the name of \
             the output; one with several numbers has lists of them.",
        ),
        Key::new("srtab_add_bias", Kind::Bool)
            .default("true")
            .doc("With use_srtab: whether the bias of a type is added to the energy of the table too."),
        Key::new("type_embedding", Kind::OneOf(&[Kind::Object(&TYPE_EMBEDDING), Kind::Null])).optional().doc(
            "A net that embeds types, as in DeePMD-kit's TensorFlow: embedded types are inputs of one embedding net of se_e2_a and \
             of one fitting net, in place of nets for each type, and take the place of the type embedding of se_atten.",
        ),
        Key::new("modifier", Kind::Any)
            .optional()
            .not_yet("")
            .doc("A correction to the output of the model."),
        Key::new("compress", Kind::Any).optional().not_yet("").doc("A compressed model."),
        Key::new("spin", Kind::Any).optional().not_yet("").doc("Systems with spin."),
        Key::new("finetune_head", Kind::Text)
            .optional()
            .doc(
                "In a model of model_dict: the branch of the model given with --finetune that it starts from; absent or RANDOM: its \
                 descriptor alone.",
            ),
        Key::new("model_dict", Kind::Any)
            .optional()
            .doc("The models of a multi-task training by the names of its branches; all else is given for each branch then."),
        Key::new("shared_dict", Kind::Any).optional().doc(
            "Parts that branches share, by names that stand in their models in place of type_map, descriptor and fitting_net: NAME, \
             or NAME:1 for the type embedding of a descriptor alone.",
        ),
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
        .doc("The network that turns a descriptor into an energy, or another output."),
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

/// `{"energy": [...]}` with a number, a list of one for each output, or null for each type.
fn resolve_preset(section: &Section, n_types: usize, output: &Output) -> Result<Vec<Option<Vec<f64>>>> {
    let (key, name) = ("preset_out_bias", output.name.as_str());
    let Some(given) = section.get(key) else { return Ok(Vec::new()) };
    let own = given.as_object().filter(|map| map.len() == 1).and_then(|map| map.get(name));
    let Some(list) = own.and_then(Value::as_array) else {
        return Err(section
            .error(key, err!("found {given}, wanted an object with the key \"{name}\" alone"))
            .help(format!("such as {{\"{name}\": [null, -13.6]}}")));
    };
    if list.len() != n_types {
        let error = err!("{} for the {} of type_map", count(list.len(), "number"), count(n_types, "type"));
        return Err(section.error(key, error).help("write null for a type whose bias is fitted"));
    }
    let numbers = |item: &Value| {
        let items = item.as_array().map(Vec::as_slice).unwrap_or(std::slice::from_ref(item));
        match items.iter().map(Value::as_f64).collect::<Option<Vec<f64>>>() {
            Some(numbers) if numbers.len() == output.width => Ok(Some(numbers)),
            None if matches!(items, [Value::Null]) => Ok(None),
            _ => {
                let wanted =
                    if output.width == 1 { "a number".into() } else { format!("{} numbers", output.width) };
                Err(section.error(key, err!("found {item}, wanted {wanted} or null")))
            }
        }
    };
    list.iter().map(numbers).collect()
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
        let mut descriptors = Descriptors::resolve(&section.section("descriptor"), &type_map)?;
        let type_embedding = section.optional_section("type_embedding");
        let type_embedding = type_embedding.map(|own| TypeEmbedding::resolve(&own, &type_map)).transpose()?;
        if let Some(own) = &type_embedding {
            own.replace_own(&mut descriptors)?;
        } else if descriptors.list.iter().any(DescriptorOptions::is_scaled_by_types) {
            let error = err!("missing; wanted a section for the embedded types of se_a_ebd_v2");
            return Err(section
                .error("type_embedding", error)
                .help("\"type_embedding\": {} has all defaults"));
        }
        let fitting = FittingOptions::resolve(&section.section("fitting_net"), type_map.len())?;
        fitting.check_descriptors(&descriptors).map_err(|e| e.at("model.fitting_net"))?;
        if let Some(own) = &type_embedding {
            own.check_shortcuts(&descriptors, &fitting)?;
        }
        let n_types = type_map.len();
        let atoms = section.ints("atom_exclude_types").into_iter();
        let atoms = atoms.map(|t| check_type(section, "atom_exclude_types", t, n_types));
        let mut script = section.value().clone();
        for k in 0..descriptors.list.len() {
            if let Some(Value::Object(descriptor)) = descriptors.section_of(&mut script, k) {
                descriptor.shift_remove("embedding"); // DeePMD-kit would refuse it
            }
        }
        let short_range = ShortRange::resolve(section, &descriptors, &fitting)?;
        Ok(ModelOptions {
            type_map,
            short_range,
            type_embedding,
            descriptors,
            pair_exclude_types: resolve_type_pairs(section, "pair_exclude_types", n_types)?,
            atom_exclude_types: atoms.collect::<Result<_>>()?,
            preset_out_bias: resolve_preset(section, n_types, &fitting.output())?,
            data_stat_nbatch: section.int("data_stat_nbatch"),
            data_stat_protect: section.float("data_stat_protect"),
            fitting,
            script,
        })
    }

    /// A `model` section with all defaults and `sel` as numbers, as `what` keeps it.
    pub fn of_section(model: &Value, what: &str) -> Result<ModelOptions> {
        let checked = check(&INPUT, &json!({ "model": model }), what)?;
        for note in &checked.notes {
            log::warn!("{what}: {note}");
        }
        Self::resolve(&Section::root(&checked.value).section("model")).map_err(|e| e.at(what))
    }

    /// Whether atoms of these types are no neighbours of each other.
    pub fn hides(&self, a: usize, b: usize) -> bool {
        self.pair_exclude_types.iter().any(|&(x, y)| (x, y) == (a, b) || (y, x) == (a, b))
    }

    /// Whether an atom of this type, -1 for one that is none, has an energy of its own.
    pub fn has_energy(&self, center: i32) -> bool {
        usize::try_from(center).is_ok_and(|center| !self.atom_exclude_types.contains(&center))
    }

    /// The types whose atoms have an output of their own.
    pub fn types_with_output(&self) -> Vec<usize> {
        (0..self.type_map.len()).filter(|t| !self.atom_exclude_types.contains(t)).collect()
    }

    /// The number type of all arithmetic: float32 where every net has it, else float64.
    pub fn precision(&self) -> Precision {
        let nets = self.descriptors.list.iter().map(|se| se.precision);
        match nets.chain([self.fitting.precision]).all(|precision| precision == Precision::Float32) {
            true => Precision::Float32,
            false => Precision::Float64,
        }
    }

    /// How many parameters the embedding nets and the fitting nets have, before any of them takes memory.
    pub fn n_params(&self) -> [u128; 2] {
        let net = |n_in: usize, neuron: &[usize], has_dt: bool| -> u128 {
            let inputs = std::iter::once(n_in).chain(neuron.iter().copied());
            let layer =
                |(n_in, &n_out): (usize, &usize)| n_out as u128 * (n_in as u128 + 1 + u128::from(has_dt));
            inputs.zip(neuron).map(layer).sum()
        };
        let (fit, n_types) = (&self.fitting, self.type_map.len());
        let inputs = self.descriptors.width() + fit.n_extra();
        let n_out = fit.output().net_width(&self.descriptors) as u128;
        let output = fit.neuron.last().map_or(0, |&last| n_out * (last as u128 + 1));
        let n_fitting = if self.descriptors.is_mixed() { 1 } else { n_types as u128 };
        let of_descriptor = |se: &DescriptorOptions| match se.attention() {
            Some(own) => own.nets(se, "", n_types).iter().map(NetPlan::n_params).sum(),
            None => se.n_nets(n_types) as u128 * net(1, &se.neuron, se.resnet_dt),
        };
        let types = self.type_embedding.as_ref().map_or(0, |own| own.n_params(n_types));
        [
            types + self.descriptors.list.iter().map(of_descriptor).sum::<u128>(),
            n_fitting * (net(inputs, &fit.neuron, fit.resnet_dt) + output),
        ]
    }
}
