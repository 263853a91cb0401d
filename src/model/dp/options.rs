//! The options of a Deep Potential model: the table of keys, and the options as meant.

use super::descriptor::DESCRIPTOR;
pub use super::descriptor::{DescriptorKind, DescriptorOptions, Descriptors, Embedding, Form, SeE2A, Sel};
use super::fitting::FITTING;
pub use super::fitting::FittingOptions;
pub use super::keys::parse_activation;
use crate::config::Section;
use crate::config::table::{Key, Kind, Table, Variant, Variants};
use crate::err;
use crate::error::Result;
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
    pub descriptors: Descriptors,
    pub fitting: FittingOptions,
    /// Batches of each system that the statistics look at.
    pub data_stat_nbatch: usize,
    /// Smallest standard deviation that the statistics may give.
    pub data_stat_protect: f64,
    /// The section as it goes into model files, with all defaults written out and without our own keys.
    pub script: serde_json::Value,
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
        let descriptors = Descriptors::resolve(&section.section("descriptor"), &type_map)?;
        let fitting = FittingOptions::resolve(&section.section("fitting_net"), type_map.len())?;
        let mut script = section.value().clone();
        for k in 0..descriptors.list.len() {
            if let Some(Value::Object(descriptor)) = descriptors.section_of(&mut script, k) {
                descriptor.shift_remove("embedding"); // DeePMD-kit would refuse it
            }
        }
        Ok(ModelOptions {
            type_map,
            descriptors,
            fitting,
            data_stat_nbatch: section.int("data_stat_nbatch"),
            data_stat_protect: section.float("data_stat_protect"),
            script,
        })
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
        let inputs = self.descriptors.width() + fit.numb_fparam + fit.numb_aparam;
        let output = fit.neuron.last().map_or(0, |&last| last as u128 + 1);
        [
            self.descriptors
                .list
                .iter()
                .map(|se| se.n_nets(n_types) as u128 * net(1, &se.neuron, se.resnet_dt))
                .sum(),
            n_types as u128 * (net(inputs, &fit.neuron, fit.resnet_dt) + output),
        ]
    }
}
