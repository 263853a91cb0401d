//! Descriptors: what the surroundings of an atom are turned into.
//!
//! A descriptor is a file of this folder, with an `ENTRY`, and a line of the list below. What all of them have, the keys
//! that several share, and how they are read is in this file.

use super::keys::{self, ACTIVATION, SIZE, WIDTH, activation, neuron, precision};
use super::options::Precision;
use crate::config::check::count;
use crate::config::table::{Key, Kind, Pattern, Table, Variant, Variants};
use crate::config::{Section, registry};
use crate::err;
use crate::error::Result;
use crate::model::activation::Activation;
pub use form::Form;
use serde_json::Value;

mod form;
mod hybrid;
pub mod nets;

registry::listed! {
    /// A descriptor with the options that are its own.
    enum DescriptorKind of DescriptorOptions;
    /// Every descriptor, with those that only DeePMD-kit has.
    list DESCRIPTORS of Descriptor {
        SeE2A in se_e2_a,
        SeE2R in se_e2_r,
        SeE3 in se_e3,
        SeAtten in se_atten,
        SeAttenV2 in se_atten_v2,
        SeAEbdV2 in se_a_ebd_v2,
    }
    not yet {
        Variant::not_yet("se_e3_tebd"),
        Variant::not_yet("dpa2"),
        Variant::not_yet("dpa3"),
        Variant::not_yet("dpa4").aliases(&["DPA4", "SeZM", "sezm"]),
        Variant::not_yet("dpa4c").aliases(&["DPA4C"]),
        Variant::not_yet("loc_frame"),
        Variant::not_yet("se_a_tpe").aliases(&["se_a_ebd"]),
        Variant::not_yet("se_a_mask"),
    }
}

/// A line of the list.
type Entry = registry::Entry<Descriptor>;

/// What is known of a descriptor without its options.
pub struct Descriptor {
    /// The options that are its own, from a checked section and what all descriptors have.
    pub resolve: fn(&Section, &Shared) -> Result<DescriptorKind>,
    /// What engines compute of it.
    pub form: fn(&DescriptorOptions) -> Form,
    /// What DeePMD-kit calls it in model files.
    pub in_files: &'static str,
    /// What DeePMD-kit calls its networks: the front of the names of their parameters.
    pub networks: &'static str,
    /// What DeePMD-kit calls its statistics.
    pub statistics: &'static str,
    /// How its nets differ.
    pub nets: Nets,
    /// The keys of a model file that are its own.
    pub write: fn(&DescriptorOptions) -> Vec<(&'static str, Value)>,
    /// The same, read: `get` gives the value of a key. The shapes of the nets are known already.
    pub read: fn(Get, &Shared) -> Result<DescriptorKind>,
}

/// How the embedding nets of a descriptor differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Nets {
    /// By the types of centre and neighbour, or by that of the neighbour alone where `type_one_side` says so.
    ByKey,
    /// By the type of the neighbour, whatever `type_one_side` says.
    ByNeighbor,
    /// By the types of two neighbours. DeePMD-kit has a net for either order and uses the one whose first type is not the larger.
    ByNeighbors,
    /// They do not: types enter by an embedding of their own.
    Attention,
}

/// Gives the value of a key of a model file.
pub type Get<'a> = &'a dyn Fn(&str) -> Result<Value>;

/// What is known of a descriptor before the options that are its own.
pub struct Shared<'a> {
    pub neuron: &'a [usize],
    pub type_map: &'a [String],
}

/// How descriptors stand in an input.
static PARTS: [Variant; registry::count_types(DESCRIPTORS)] = registry::types(DESCRIPTORS);

/// A descriptor, or a list of them.
static VARIANTS: [Variant; PARTS.len() + 1] = {
    let mut all = [hybrid::VARIANT; PARTS.len() + 1];
    let mut k = 0;
    while k < PARTS.len() {
        all[k] = PARTS[k];
        k += 1;
    }
    all
};

/// The keys of the `descriptor` section.
pub static DESCRIPTOR: Table =
    Table { keys: &[], variants: Some(Variants { what: "descriptor", default: "", list: &VARIANTS }) };

/// The descriptors of a model, in the order of their numbers among the inputs of the fitting net.
#[derive(Debug, Clone, PartialEq)]
pub struct Descriptors {
    /// At least one.
    pub list: Vec<DescriptorOptions>,
    /// Whether it is written as a list, which one descriptor may be too. Files and names of parameters differ then.
    pub is_hybrid: bool,
}

impl From<DescriptorOptions> for Descriptors {
    fn from(one: DescriptorOptions) -> Self {
        Descriptors { list: vec![one], is_hybrid: false }
    }
}

impl Descriptors {
    /// Resolves the checked `descriptor` section.
    pub fn resolve(section: &Section, type_map: &[String]) -> Result<Self> {
        match section.text("type") {
            hybrid::NAME => Ok(Descriptors { list: hybrid::resolve(section, type_map)?, is_hybrid: true }),
            _ => Ok(DescriptorOptions::resolve(section, type_map)?.into()),
        }
    }

    /// Length of all of them for one atom.
    pub fn width(&self) -> usize {
        self.list.iter().map(DescriptorOptions::width).sum()
    }

    /// Nobody sees farther.
    pub fn rcut(&self) -> f64 {
        self.list.iter().map(|part| part.rcut).fold(0.0, f64::max)
    }

    /// Whether types share a fitting net, and one number of slots counts for all of them together: see [`DescriptorOptions::is_mixed`].
    pub fn is_mixed(&self) -> bool {
        self.list.iter().any(DescriptorOptions::is_mixed)
    }

    /// The largest number of slots of each type, or of all types together, where all are known.
    pub fn largest_sel(&self) -> Vec<usize> {
        if self.is_mixed() {
            return vec![self.list.iter().map(|part| part.fixed_sel().iter().sum()).max().unwrap_or(0)];
        }
        let mut largest = Vec::new();
        for part in &self.list {
            largest.resize(part.fixed_sel().len(), 0);
            largest.iter_mut().zip(part.fixed_sel()).for_each(|(most, &n)| *most = n.max(*most));
        }
        largest
    }

    /// Rows of directions that all of them tell of an atom.
    pub fn n_directions(&self) -> usize {
        self.list.iter().map(|part| part.neuron.last().copied().unwrap_or(0)).sum()
    }

    /// Embedding nets of all of them.
    pub fn n_nets(&self, n_types: usize) -> usize {
        self.list.iter().map(|part| part.n_nets(n_types)).sum()
    }

    /// Whether the number of slots is known for all.
    pub fn is_fixed(&self) -> bool {
        self.list.iter().all(|part| matches!(part.sel, Sel::Fixed(_)))
    }

    /// What is written of number `k` in a `model` section.
    pub fn section_of<'a>(&self, model: &'a mut Value, k: usize) -> Option<&'a mut Value> {
        let section = model.get_mut("descriptor")?;
        if self.is_hybrid { section.get_mut("list")?.get_mut(k) } else { Some(section) }
    }

    /// What DeePMD-kit calls number `k`: the front of the names of its parameters.
    pub fn prefix(&self, k: usize) -> String {
        let networks = self.list[k].kind.about().networks;
        match self.is_hybrid {
            true => networks.replacen("descriptor", &format!("descriptor.descrpt_list.{k}"), 1),
            false => networks.to_string(),
        }
    }
}

/// The `descriptor` section.
#[derive(Debug, Clone, PartialEq)]
pub struct DescriptorOptions {
    /// Which one, with the options that are its own.
    pub kind: DescriptorKind,
    pub sel: Sel,
    pub rcut: f64,
    pub rcut_smth: f64,
    pub neuron: Vec<usize>,
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

impl DescriptorOptions {
    /// The options of `se_atten` in either version.
    pub fn attention(&self) -> Option<&SeAtten> {
        match &self.kind {
            DescriptorKind::SeAtten(own) | DescriptorKind::SeAttenV2(SeAttenV2(own)) => Some(own),
            _ => None,
        }
    }

    /// The same, to be changed.
    pub fn attention_mut(&mut self) -> Option<&mut SeAtten> {
        match &mut self.kind {
            DescriptorKind::SeAtten(own) | DescriptorKind::SeAttenV2(SeAttenV2(own)) => Some(own),
            _ => None,
        }
    }

    /// Whether embedded types enter by a net of their own.
    pub fn is_scaled_by_types(&self) -> bool {
        matches!(self.kind, DescriptorKind::SeAEbdV2(_))
    }

    /// Whether the last layer of its embedding nets is linear: [`SeE2A`].
    pub fn ends_linearly(&self) -> bool {
        matches!(self.kind, DescriptorKind::SeE2A(SeE2A { linear_end: true, .. }))
    }

    /// Whether neighbours of all types have slots together: `sel` is one number.
    pub fn is_mixed(&self) -> bool {
        self.attention().is_some()
    }

    /// These slots as they stand in an input.
    pub fn sel_in_input(&self, sel: &[usize]) -> Value {
        if self.is_mixed() { sel[0].into() } else { sel.into() }
    }
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
    /// For each type, or one for all types together ([`DescriptorOptions::is_mixed`]).
    Fixed(Vec<usize>),
    /// The largest number found in the data times this ratio, rounded up to a multiple of 4.
    Auto(f64),
}

// ---- Keys that descriptors share.

const AUTO_SEL: Kind = Kind::Pattern(Pattern {
    wanted: "\"auto\" or \"auto:RATIO\"",
    check: |text| parse_auto_sel(text).map(|_| ()),
});
pub const SEL: Key = Key::new("sel", Kind::OneOf(&[Kind::List(&SIZE), AUTO_SEL])).default("\"auto\"").doc(
    "Neighbours of each type that an atom can have, nearest first; more are left out. With auto, the largest \
         number in the data times the ratio (1.1), rounded up to a multiple of 4.",
);
pub const RCUT: Key = Key::new("rcut", Kind::POSITIVE)
    .default("6.0")
    .unit("A")
    .doc("Neighbours beyond this distance are not seen.");
pub const RCUT_SMTH: Key = Key::new("rcut_smth", Kind::NOT_NEGATIVE)
    .default("0.5")
    .unit("A")
    .doc("From here on the weight 1/r of a neighbour is switched off, smoothly, until it vanishes at rcut.");
pub const NEURON: Key = Key::new("neuron", Kind::List(&WIDTH)).default("[10,20,40]").doc(
    "Widths of the layers of the embedding net. A layer of the same or twice the width gets a shortcut.",
);
pub const AXIS_NEURON: Key = Key::new("axis_neuron", WIDTH)
    .aliases(&["n_axis_neuron"])
    .default("4")
    .doc("Columns of the embedding that the descriptor is projected on.");
pub const ACTIVATION_FUNCTION: Key =
    Key::new("activation_function", ACTIVATION).default("\"tanh\"").doc("Activation of the embedding net.");
pub const RESNET_DT: Key = Key::new("resnet_dt", Kind::Bool)
    .default("false")
    .doc("Whether layers scale their output by a trained vector.");
pub const TYPE_ONE_SIDE: Key = Key::new("type_one_side", Kind::Bool)
    .default("false")
    .doc("Whether embedding nets differ by the type of the neighbour only, not by that of the centre too.");
pub const PRECISION: Key = Key::new("precision", keys::PRECISION)
    .default("\"default\"")
    .doc("Number type of the network; default is float64.");
pub const TRAINABLE: Key =
    Key::new("trainable", Kind::Bool).default("true").doc("Whether the embedding nets are trained.");
pub const SEED: Key = Key::new("seed", Kind::SEED)
    .optional()
    .doc("Seed of the initial parameters; absent: taken from training.seed.");
pub const EXCLUDE_TYPES: Key = Key::new("exclude_types", Kind::List(&Kind::List(&Kind::COUNT)))
    .default("[]")
    .doc("Pairs of type indices that do not see each other, such as [[0, 1]].");
pub const ENV_PROTECTION: Key = Key::new("env_protection", Kind::NUMBER)
    .default("0.0")
    .unit("A")
    .doc("Added to distances where they are divided by.");
pub const SET_DAVG_ZERO: Key = Key::new("set_davg_zero", Kind::Bool)
    .default("false")
    .doc("Whether the mean of the environment is taken as zero instead of measured.");
pub const EMBEDDING: Key =
    Key::new("embedding", Kind::choice(&["chebyshev", "direct"])).default("\"chebyshev\"").doc(
        "Phalanx only. How the embedding net is evaluated: by its Chebyshev expansion, which equals it up to \
         rounding and is much faster, or layer by layer for every neighbour.",
    );

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

impl DescriptorOptions {
    /// Resolves the checked `descriptor` section.
    pub fn resolve(section: &Section, type_map: &[String]) -> Result<DescriptorOptions> {
        let (rcut, rcut_smth) = (section.float("rcut"), section.float("rcut_smth"));
        if rcut_smth >= rcut {
            return Err(section
                .error("rcut_smth", err!("{rcut_smth} A is not below rcut = {rcut} A"))
                .help("the switch starts at rcut_smth and reaches zero at rcut"));
        }
        let neuron = neuron(section)?;
        let about = registry::chosen(DESCRIPTORS, section);
        Ok(DescriptorOptions {
            kind: (about.resolve)(section, &Shared { neuron: &neuron, type_map })?,
            sel: Self::resolve_sel(section, type_map, about.nets == Nets::Attention)?,
            rcut,
            rcut_smth,
            neuron,
            activation: activation(section)?,
            resnet_dt: section.bool("resnet_dt"),
            type_one_side: match about.nets {
                Nets::ByKey | Nets::Attention => section.bool("type_one_side"),
                Nets::ByNeighbor => true,
                Nets::ByNeighbors => false,
            },
            precision: precision(section),
            trainable: section.bool("trainable"),
            seed: section.optional_int("seed"),
            exclude_types: resolve_type_pairs(section, "exclude_types", type_map.len())?,
            set_davg_zero: section.bool("set_davg_zero"),
            env_protection: section.float("env_protection"),
            embedding: match section.optional_text("embedding") {
                Some("chebyshev") => Embedding::Chebyshev,
                _ => Embedding::Direct,
            },
        })
    }

    fn resolve_sel(section: &Section, type_map: &[String], is_mixed: bool) -> Result<Sel> {
        if let Some(text) = section.optional_text("sel") {
            return parse_auto_sel(text).map(Sel::Auto).map_err(|e| section.error("sel", e));
        }
        let sel: Vec<usize> = match section.optional_int("sel") {
            Some(together) => vec![together],
            None if is_mixed => vec![section.ints::<usize>("sel").iter().sum()],
            None => section.ints("sel"),
        };
        if sel.len() != type_map.len() && !is_mixed {
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
}

/// Pairs of type indices.
pub(super) fn resolve_type_pairs(
    section: &Section,
    key: &str,
    n_types: usize,
) -> Result<Vec<(usize, usize)>> {
    let mut pairs = Vec::new();
    for (i, item) in section.list(key).iter().enumerate() {
        let key = format!("{key}[{i}]");
        let types: Vec<u64> = item.as_array().into_iter().flatten().filter_map(Value::as_u64).collect();
        let [a, b] = types[..] else {
            return Err(
                section.error(&key, err!("found {}, wanted a pair of two", count(types.len(), "type")))
            );
        };
        let pair = [a, b].map(|t| check_type(section, &key, t, n_types));
        let [a, b] = pair;
        pairs.push((a?, b?));
    }
    Ok(pairs)
}

/// The index of a type that there is.
pub(super) fn check_type(section: &Section, key: &str, t: u64, n_types: usize) -> Result<usize> {
    if t < n_types as u64 {
        return Ok(t as usize);
    }
    let error = err!("there is no type {t}: type_map has the types 0 to {}", n_types - 1);
    Err(section.error(key, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auto_sel_has_a_ratio_of_at_least_one() {
        assert_eq!(parse_auto_sel("auto").unwrap(), 1.1);
        assert_eq!(parse_auto_sel("auto:1.5").unwrap(), 1.5);
        for wrong in ["auto:0.5", "auto:", "automatic", "auto:nan", "46"] {
            assert!(parse_auto_sel(wrong).is_err(), "{wrong}");
        }
    }
}
