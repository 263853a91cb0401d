//! `model.type_embedding`: types as numbers t that a net of their own makes, and that all other nets are given, as in DeePMD-kit's
//! TensorFlow.
//!
//! An embedding net of `se_e2_a` takes s, t of the neighbour and, unless `type_one_side`, t of the centre; the one fitting net takes
//! the descriptor and t of the centre. For given types these are functions of s alone and of the descriptor alone: what t is
//! multiplied by is part of the bias of the first layer. So there is a plain model with a net for each type, or pair, that predicts
//! the same. Engines, model files and all who predict know that one; training alone knows the few parameters from which those of
//! the plain model follow ([`EmbeddedTypes`]).
//!
//! In `se_a_ebd_v2` a net n of t scales the numbers that the net of s gives, `g (1 + n)`: with the types known that is one more layer,
//! which is linear, has a shortcut and n as the diagonal of its weights.
//!
//! A `se_atten` is given t in place of the type embedding of its own. It is the last descriptor, and t stands at its end already.

use super::descriptor::nets::{NetKind, NetPlan};
use super::descriptor::{DescriptorKind, Descriptors, Nets, SeAEbdV2, SeE2A};
use super::fitting::FittingOptions;
use super::keys::{self, ACTIVATION, WIDTH, activation, neuron, precision};
use super::model::Dp;
use super::options::{ModelOptions, Precision};
use super::spec::descriptor_net_index;
use crate::config::Section;
use crate::config::table::{Key, Kind, Table};
use crate::err;
use crate::error::{Error, Result};
use crate::model::activation::Activation;
use crate::model::electrons::{SPIN_ORBITALS, check_elements, type_inputs};
use crate::model::net::{HiddenSpec, LayerShape, NetShape, Shortcut};
use crate::model::params::ParamTable;
use serde_json::Value;
use std::ops::Range;

/// The `type_embedding` section.
#[derive(Debug, Clone, PartialEq)]
pub struct TypeEmbedding {
    pub neuron: Vec<usize>,
    pub activation: Activation,
    pub resnet_dt: bool,
    /// Of the initial parameters: the net is evaluated in float64, whatever the others are.
    pub precision: Precision,
    pub trainable: bool,
    pub seed: Option<u64>,
    /// Types are given to the net as electron configurations, else by number.
    pub use_econf_tebd: bool,
    pub use_tebd_bias: bool,
}

/// The keys of the section.
pub static TYPE_EMBEDDING: Table = Table::of(&[
    Key::new("neuron", Kind::List(&WIDTH)).default("[8]").doc(
        "Widths of the layers of the net that embeds types; the last one is how many numbers a type becomes. A layer of the same or \
         twice the width of its input gets a shortcut.",
    ),
    Key::new("activation_function", ACTIVATION).default("\"tanh\"").doc("Activation of all its layers."),
    Key::new("resnet_dt", Kind::Bool)
        .default("false")
        .doc("Whether layers with a shortcut scale their output by a trained vector."),
    Key::new("precision", keys::PRECISION)
        .default("\"default\"")
        .doc("Number type of its initial parameters; it is evaluated in float64."),
    Key::new("trainable", Kind::Bool).default("true").doc("Whether it is trained."),
    Key::new("seed", Kind::SEED)
        .optional()
        .doc("Seed of the initial parameters; absent: taken from training.seed."),
    Key::new("use_econf_tebd", Kind::Bool)
        .default("false")
        .doc("Whether types are embedded by the electron configurations of their elements instead of their numbers."),
    Key::new("use_tebd_bias", Kind::Bool).default("false").doc("Whether its layers have a bias."),
]);

impl TypeEmbedding {
    /// Resolves the checked section.
    pub fn resolve(section: &Section, type_map: &[String]) -> Result<TypeEmbedding> {
        let own = TypeEmbedding {
            neuron: neuron(section)?,
            activation: activation(section)?,
            resnet_dt: section.bool("resnet_dt"),
            precision: precision(section),
            trainable: section.bool("trainable"),
            seed: section.optional_int("seed"),
            use_econf_tebd: section.bool("use_econf_tebd"),
            use_tebd_bias: section.bool("use_tebd_bias"),
        };
        if own.use_econf_tebd {
            check_elements(type_map).map_err(|e| section.error("use_econf_tebd", e))?;
        }
        Ok(own)
    }

    /// Numbers that a type becomes.
    pub fn width(&self) -> usize {
        self.neuron[self.neuron.len() - 1]
    }

    /// Gives t to the descriptors that have an embedding of types of their own.
    pub fn replace_own(&self, descriptors: &mut Descriptors) -> Result<()> {
        let last = descriptors.list.len() - 1;
        let place = |k: usize| match descriptors.is_hybrid {
            true => format!("model.descriptor.list[{k}]"),
            false => "model.descriptor".to_string(),
        };
        if descriptors.is_mixed() && !descriptors.list[last].is_mixed() {
            let what = descriptors.list[last].kind.name();
            return Err(err!("found {what} behind se_atten, with model.type_embedding")
                .at(place(last))
                .help("let se_atten be the last descriptor of the list: embedded types follow it"));
        }
        for k in 0..=last {
            let at = place(k);
            let Some(own) = descriptors.list[k].attention_mut() else { continue };
            if !own.concat_output_tebd {
                return Err(err!("found false beside model.type_embedding")
                    .at(format!("{at}.concat_output_tebd"))
                    .help("the fitting net is given embedded types: leave the key out"));
            }
            own.tebd_dim = self.width();
            (own.use_econf_tebd, own.use_tebd_bias) = (false, false);
            own.concat_output_tebd = k == last;
        }
        Ok(())
    }

    /// Refuses first layers with a shortcut to embedded types, or to an input that is alone in the plain model.
    pub fn check_shortcuts(&self, descriptors: &Descriptors, fitting: &FittingOptions) -> Result<()> {
        let refuse = |path: String, width: usize, inputs: [usize; 2]| -> Result<()> {
            if inputs.iter().all(|&n_in| Shortcut::between(n_in, width) == Shortcut::None) {
                return Ok(());
            }
            let error: Error = err!(
                "the first layer of {width} has a shortcut to its {} or {} inputs",
                inputs[0],
                inputs[1]
            );
            Err(error
                .at(path)
                .help("with model.type_embedding, give it another width, or model.type_embedding.neuron another last one"))
        };
        for (k, se) in descriptors.list.iter().enumerate() {
            if se.kind.about().nets == Nets::ByKey && !se.is_scaled_by_types() {
                let key = if descriptors.is_hybrid { format!("list[{k}].neuron") } else { "neuron".into() };
                refuse(
                    format!("model.descriptor.{key}"),
                    se.neuron[0],
                    [1, 1 + self.inputs(se.type_one_side)],
                )?;
            }
        }
        if descriptors.is_mixed() {
            return Ok(());
        }
        let n_in = descriptors.width() + fitting.n_extra();
        refuse("model.fitting_net.neuron".into(), fitting.neuron[0], [n_in, n_in + self.width()])
    }

    /// Inputs of an embedding net beside s.
    fn inputs(&self, one_side: bool) -> usize {
        self.width() * if one_side { 1 } else { 2 }
    }

    /// Its net.
    fn plan(&self, n_types: usize) -> NetPlan {
        NetPlan {
            name: "type_embedding.embedding_net".to_string(),
            kind: NetKind::Chain,
            n_in: if self.use_econf_tebd { SPIN_ORBITALS } else { n_types },
            neuron: self.neuron.clone(),
            activation: self.activation,
            resnet_dt: self.resnet_dt,
            bias: self.use_tebd_bias,
            linear_end: false,
            trainable: self.trainable,
            seeds: vec![2],
            place: 0,
        }
    }

    /// How many parameters the net has.
    pub fn n_params(&self, n_types: usize) -> u128 {
        self.plan(n_types).n_params()
    }
}

impl ModelOptions {
    /// The options of the plain model that predicts the same; those of a model without embedded types are theirs already.
    pub fn plain(&self) -> ModelOptions {
        let Some(own) = &self.type_embedding else { return self.clone() };
        let mut plain = ModelOptions { type_embedding: None, ..self.clone() };
        let given = &mut plain.fitting.atom_ener;
        if given.iter().any(Option::is_some) && !self.descriptors.is_mixed() {
            // One net serves all types, so all have their vacuum taken off. What the energies are the statistics say.
            given.resize(self.type_map.len(), None);
            given.iter_mut().for_each(|energy| *energy = energy.or(Some(0.0)));
            if let Some(Value::Object(fitting)) = plain.script.get_mut("fitting_net") {
                fitting.insert("atom_ener".into(), serde_json::json!(given));
            }
        }
        if let Value::Object(script) = &mut plain.script {
            script.shift_remove("type_embedding");
        }
        for (k, se) in self.descriptors.list.iter().enumerate() {
            let same = &mut plain.descriptors.list[k];
            if let DescriptorKind::SeAEbdV2(SeAEbdV2(own)) = &se.kind {
                same.kind = DescriptorKind::SeE2A(SeE2A { linear_end: true, ..own.clone() });
                same.neuron.extend(se.neuron.last());
                if let Some(section) = self.descriptors.section_of(&mut plain.script, k) {
                    section["type"] = "se_e2_a".into();
                    section["neuron"] = serde_json::json!(same.neuron);
                }
            }
            let Some(attention) = se.attention() else { continue };
            if let Some(section) = self.descriptors.section_of(&mut plain.script, k) {
                section["tebd_dim"] = own.width().into();
                section["use_econf_tebd"] = false.into();
                section["use_tebd_bias"] = false.into();
                section["concat_output_tebd"] = attention.concat_output_tebd.into();
            }
        }
        plain
    }
}

/// How the parameters of a plain model follow from those that are trained.
#[derive(Debug, Clone)]
pub struct EmbeddedTypes {
    /// As they are trained.
    pub options: ModelOptions,
    /// What is trained: the nets of the descriptors, the net that embeds types, the fitting net.
    pub table: ParamTable,
    /// The nets of each descriptor, with their shapes there.
    pub descriptors: Vec<Vec<(NetPlan, NetShape)>>,
    /// The net that embeds types.
    pub types: (NetPlan, NetShape),
    pub fitting: NetShape,
    /// `[n_types, n_in]` what it is given.
    pub inputs: Vec<f64>,
    /// Trained parameters that the plain model has in one place or more, in order.
    pub blocks: Vec<Block>,
    /// The trained parameters beside those.
    pub others: Vec<Range<usize>>,
    pub biases: Vec<Bias>,
    pub scales: Vec<Scales>,
    /// Where the plain model has t itself, `[n_types, width]`.
    pub tables: Vec<usize>,
    /// Parameters of the plain model.
    pub n_plain: usize,
}

/// Trained parameters that the plain model has too.
#[derive(Debug, Clone)]
pub struct Block {
    pub trained: Range<usize>,
    /// Where they begin there.
    pub places: Vec<usize>,
}

/// A bias of the plain model with what embedded types bring to it.
#[derive(Debug, Clone)]
pub struct Bias {
    pub plain: Range<usize>,
    /// Where the rows of trained weights begin that t of a type is multiplied by, and the type.
    pub rows: Vec<(usize, usize)>,
}

/// Layers of the plain model that scale the numbers of an embedding net by those of a net of embedded types.
#[derive(Debug, Clone)]
pub struct Scales {
    /// The trained net.
    pub net: NetShape,
    /// The types that it is given for each layer, and the layer.
    pub layers: Vec<(Vec<usize>, LayerShape)>,
}

/// Blocks are cut into pieces of so many numbers, which threads share.
const PIECE: usize = 1 << 15;

impl EmbeddedTypes {
    /// Lays out what is trained of these options; `plain` is the plain model.
    pub fn new(options: ModelOptions, plain: &Dp) -> Self {
        let own = options.type_embedding.clone().expect("types are embedded");
        let n_types = options.type_map.len();
        let mut table = ParamTable::default();
        let mut all = Copies::default();
        let (mut descriptors, mut first_net, mut tables) = (Vec::new(), 0, Vec::new());
        let mut scales = Vec::new();
        for (k, se) in options.descriptors.list.iter().enumerate() {
            let prefix = options.descriptors.prefix(k);
            let shapes = &plain.embedding[first_net..first_net + se.n_nets(n_types)];
            first_net += shapes.len();
            let lay_out = |table: &mut ParamTable, plan: NetPlan| {
                let shape = plan.lay_out(table);
                (plan, shape)
            };
            let nets = if se.kind.about().nets == Nets::ByKey {
                let chain = |net: &str, n_in: usize, seeds: Vec<u64>| NetPlan {
                    name: format!("{prefix}.{net}.networks.0"),
                    kind: NetKind::Chain,
                    n_in,
                    neuron: se.neuron.clone(),
                    activation: se.activation,
                    resnet_dt: se.resnet_dt,
                    bias: true,
                    linear_end: false,
                    trainable: se.trainable,
                    place: seeds.len(),
                    seeds,
                };
                let inputs = own.inputs(se.type_one_side);
                let of_s = if se.is_scaled_by_types() { 1 } else { 1 + inputs };
                let mut nets = vec![lay_out(&mut table, chain("filter_layers", of_s, vec![0]))];
                if se.is_scaled_by_types() {
                    nets.push(lay_out(&mut table, chain("filter_layers_strip", inputs, vec![0, 1])));
                }
                let mut layers = Vec::new();
                for center in 0..if se.type_one_side { 1 } else { n_types } {
                    for neighbor in 0..n_types {
                        let shape =
                            &shapes[descriptor_net_index(se.type_one_side, n_types, center, neighbor)];
                        let types = [neighbor, center];
                        let types = &types[..if se.type_one_side { 1 } else { 2 }];
                        match shape.layers.split_last().filter(|_| se.is_scaled_by_types()) {
                            None => all.net(&nets[0].1, shape, 1, (types, own.width())),
                            Some((scale, others)) => {
                                all.layers(&nets[0].1.layers, others);
                                layers.push((types.to_vec(), scale.clone()));
                            }
                        }
                    }
                }
                if let Some((_, net)) = nets.get(1) {
                    scales.push(Scales { net: net.clone(), layers });
                }
                nets
            } else {
                let mut plans = se.nets(&prefix, n_types);
                if se.is_mixed() {
                    plans.pop(); // the embedding of its own
                    tables.push(shapes[plans.len()].layers[0].w);
                }
                let nets: Vec<_> = plans.into_iter().map(|plan| lay_out(&mut table, plan)).collect();
                nets.iter().zip(shapes).for_each(|((_, net), shape)| all.whole_net(net, shape));
                nets
            };
            descriptors.push(nets);
        }
        let plan = own.plan(n_types);
        let types = (plan.clone(), plan.lay_out(&mut table));
        let fitting = Self::fitting(&mut table, &options, plain, own.width());
        let n_descriptor = plain.n_descriptor();
        match plain.fitting.len() {
            1 if options.descriptors.is_mixed() => all.whole_net(&fitting, &plain.fitting[0]),
            _ => {
                for (t, shape) in plain.fitting.iter().enumerate() {
                    all.net(&fitting, shape, n_descriptor, (&[t], own.width()));
                }
            }
        }
        let (blocks, others) = all.blocks(table.len());
        EmbeddedTypes {
            inputs: type_inputs(&options.type_map, own.use_econf_tebd),
            options,
            descriptors,
            types,
            fitting,
            blocks,
            others,
            biases: all.biases,
            scales,
            tables,
            n_plain: plain.table.len(),
            table,
        }
    }

    /// The one fitting net.
    fn fitting(table: &mut ParamTable, options: &ModelOptions, plain: &Dp, width: usize) -> NetShape {
        let (fit, prefix) = (&options.fitting, "fitting_net.filter_layers.networks.0");
        let behind = if options.descriptors.is_mixed() { 0 } else { width };
        let spec = HiddenSpec {
            n_in: plain.fitting[0].layers[0].n_in + behind,
            neuron: &fit.neuron,
            activation: fit.activation,
            resnet_dt: fit.resnet_dt,
            bias: true,
            trainable: &fit.trainable,
        };
        let n_out = plain.fitting[0].n_out();
        NetShape::hidden(table, prefix, spec).with_output(
            table,
            prefix,
            n_out,
            fit.trainable[fit.neuron.len()],
        )
    }

    /// Numbers that a type becomes.
    pub fn width(&self) -> usize {
        self.types.1.n_out()
    }
}

/// What of the trained parameters stands where in the plain model.
#[derive(Default)]
struct Copies {
    list: Vec<Block>,
    biases: Vec<Bias>,
}

impl Copies {
    fn copy(&mut self, trained: Range<usize>, place: usize) {
        if trained.is_empty() {
            return;
        }
        match self.list.iter_mut().find(|block| block.trained == trained) {
            Some(block) => block.places.push(place),
            None => self.list.push(Block { trained, places: vec![place] }),
        }
    }

    fn layer(&mut self, trained: &LayerShape, plain: &LayerShape) {
        self.copy(trained.w_range(), plain.w);
        self.vectors(trained, plain);
    }

    fn vectors(&mut self, trained: &LayerShape, plain: &LayerShape) {
        for (trained, plain) in [(trained.b_range(), plain.b), (trained.idt_range(), plain.idt)] {
            if let (Some(trained), Some(plain)) = (trained, plain) {
                self.copy(trained, plain);
            }
        }
    }

    fn whole_net(&mut self, trained: &NetShape, plain: &NetShape) {
        self.layers(&trained.layers, &plain.layers);
    }

    fn layers(&mut self, trained: &[LayerShape], plain: &[LayerShape]) {
        trained.iter().zip(plain).for_each(|(trained, plain)| self.layer(trained, plain));
    }

    /// A net of which the trained one is given embedded types of so many numbers behind its first `n_first` inputs, the plain one not.
    fn net(
        &mut self,
        trained: &NetShape,
        plain: &NetShape,
        n_first: usize,
        (types, width): (&[usize], usize),
    ) {
        let (first, own) = (&trained.layers[0], &plain.layers[0]);
        let (n, behind) = (first.n_out, n_first + types.len() * width);
        assert_eq!(first.n_in - types.len() * width, own.n_in, "the other inputs are the same");
        assert_eq!((first.shortcut, own.shortcut), (Shortcut::None, Shortcut::None), "the input was checked");
        self.copy(first.w..first.w + n_first * n, own.w);
        self.copy(first.w + behind * n..first.w_range().end, own.w + n_first * n);
        self.vectors(first, own);
        let rows = types.iter().enumerate().map(|(k, &t)| (first.w + (n_first + k * width) * n, t)).collect();
        self.biases.push(Bias { plain: own.b_range().expect("a hidden layer has a bias"), rows });
        self.layers(&trained.layers[1..], &plain.layers[1..]);
    }

    /// The blocks in order and in pieces, and what lies between them among `n` trained parameters.
    fn blocks(&mut self, n: usize) -> (Vec<Block>, Vec<Range<usize>>) {
        self.list.sort_by_key(|block| block.trained.start);
        let (mut pieces, mut others, mut end) = (Vec::new(), Vec::new(), 0);
        for Block { trained, places } in &self.list {
            if end < trained.start {
                others.push(end..trained.start);
            }
            end = trained.end;
            for first in (0..trained.len()).step_by(PIECE) {
                let piece = trained.start + first..trained.end.min(trained.start + first + PIECE);
                let places = places.iter().map(|place| place + first).collect();
                pieces.push(Block { trained: piece, places });
            }
        }
        if end < n {
            others.push(end..n);
        }
        (pieces, others)
    }
}
