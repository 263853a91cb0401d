//! A Deep Potential model: shapes, statistics and the table of its parameters. The parameters themselves are a flat vector.

use super::descriptor::nets::NetKind;
use super::options::{Applied, DescriptorOptions, Descriptors, Form, ModelOptions, Output};
use super::spec::{DpModel, DpStatistics, Layer, Net, descriptor_net_index};
use super::table::EmbeddingTable;
use super::type_embedding::EmbeddedTypes;
use crate::model::net::{HiddenSpec, LayerShape, NetShape, Shortcut};
use crate::model::params::ParamTable;
use crate::{Result, bail};
use std::sync::Arc;

/// Everything about a model but the values of its parameters.
#[derive(Debug, Clone)]
pub struct Dp {
    pub options: ModelOptions,
    pub stats: DpStatistics,
    pub table: ParamTable,
    /// The nets of all descriptors. Of each one for each neighbour type, or one for each pair, see [`Dp::embedding_net`]; or what
    /// attention needs, see [`Dp::attention`].
    pub embedding: Vec<NetShape>,
    /// One fitting net for each centre type, or one for all: [`Dp::fitting_net`].
    pub fitting: Vec<NetShape>,
    /// One for each embedding net where the model is compressed: evaluation takes these. Nothing is trained then.
    pub tables: Option<Vec<EmbeddingTable>>,
    /// How the neighbours are listed from which descriptors take theirs.
    pub listed: Listed,
    /// What the fitting nets predict.
    pub output: Output,
    /// Where this is the plain model of one with embedded types: what is trained in place of its own parameters.
    pub embedded: Option<Arc<EmbeddedTypes>>,
}

/// A neighbour list: DeePMD-kit makes one for all descriptors of a hybrid, which is cut for each of them afterwards. Who is in it
/// depends on the whole where slots are few, and an excluded neighbour takes a slot wherever it is listed.
#[derive(Debug, Clone, PartialEq)]
pub struct Listed {
    pub rcut: f64,
    /// Slots of each type.
    pub sel: Vec<usize>,
}

impl Dp {
    /// Lays out the parameters of a model; of one with embedded types, those of the plain model. `options.descriptor.sel` must be
    /// resolved.
    pub fn new(options: ModelOptions, stats: DpStatistics) -> Self {
        if options.type_embedding.is_none() {
            return Self::with_inputs(options, stats, 0);
        }
        let mut plain = Self::with_inputs(options.plain(), stats, 0);
        plain.embedded = Some(Arc::new(EmbeddedTypes::new(options, &plain)));
        plain
    }

    /// The same with so many inputs of the fitting nets behind all others.
    pub fn with_inputs(options: ModelOptions, stats: DpStatistics, more: usize) -> Self {
        let n_types = options.type_map.len();
        let mut table = ParamTable::default();
        let mut embedding = Vec::with_capacity(options.descriptors.n_nets(n_types));
        for (part, se) in options.descriptors.list.iter().enumerate() {
            let plans = se.nets(&options.descriptors.prefix(part), n_types);
            embedding.extend(plans.iter().map(|plan| plan.lay_out(&mut table)));
        }
        let fit = &options.fitting;
        let (n_in, output) = (options.descriptors.width() + fit.n_extra() + more, fit.output());
        let n_fitting = if options.descriptors.is_mixed() { 1 } else { n_types };
        let fitting = (0..n_fitting)
            .map(|k| {
                let prefix = format!("fitting_net.filter_layers.networks.{k}");
                let spec = HiddenSpec {
                    n_in,
                    neuron: &fit.neuron,
                    activation: fit.activation,
                    resnet_dt: fit.resnet_dt,
                    bias: true,
                    trainable: &fit.trainable,
                };
                NetShape::hidden(&mut table, &prefix, spec).with_output(
                    &mut table,
                    &prefix,
                    output.net_width(&options.descriptors),
                    fit.trainable[fit.neuron.len()],
                )
            })
            .collect();
        let listed = Listed { rcut: options.descriptors.rcut(), sel: options.descriptors.largest_sel() };
        Dp { options, stats, table, embedding, fitting, tables: None, listed, output, embedded: None }
    }

    /// One model for each descriptor: what the whole has of it, with the parameters where they are. The inputs of its fitting
    /// nets are those of the whole.
    pub fn parts(self: &Arc<Self>) -> Vec<Arc<Dp>> {
        if !self.options.descriptors.is_hybrid {
            return vec![self.clone()];
        }
        let n_types = self.n_types();
        let (mut first_net, mut parts) = (0, Vec::new());
        for (k, se) in self.options.descriptors.list.iter().enumerate() {
            let nets = first_net..first_net + se.n_nets(n_types);
            let types = k * n_types..(k + 1) * n_types;
            let mut part = Dp::clone(self);
            part.options.descriptors = Descriptors::from(se.clone());
            part.stats.davg = self.stats.davg[types.clone()].to_vec();
            part.stats.dstd = self.stats.dstd[types].to_vec();
            part.embedding = self.embedding[nets.clone()].to_vec();
            part.tables = self.tables.as_ref().map(|tables| tables[nets.clone()].to_vec());
            parts.push(Arc::new(part));
            first_net = nets.end;
        }
        parts
    }

    /// The descriptor's options, of a model with one of them: see [`Dp::parts`].
    pub fn descriptor(&self) -> &DescriptorOptions {
        let [one] = &self.options.descriptors.list[..] else {
            panic!("a hybrid was asked for its descriptor, of which it has several");
        };
        one
    }

    pub fn n_types(&self) -> usize {
        self.options.type_map.len()
    }

    /// Neighbour slots of each type.
    pub fn sel(&self) -> &[usize] {
        self.descriptor().fixed_sel()
    }

    /// All neighbour slots of an atom.
    pub fn n_sel(&self) -> usize {
        self.sel().iter().sum()
    }

    /// Width of the embedding, M1.
    pub fn n_embed(&self) -> usize {
        self.descriptor().neuron.last().copied().unwrap_or(0)
    }

    /// Width of the descriptor.
    pub fn n_descriptor(&self) -> usize {
        self.options.descriptors.width()
    }

    /// Numbers of the centre's type at the end of the descriptor.
    pub fn n_tail(&self) -> usize {
        match self.descriptor().form() {
            Form::Attention { tail, .. } => tail,
            _ => 0,
        }
    }

    /// Inputs of the fitting net beside the descriptor.
    pub fn n_extra(&self) -> usize {
        self.options.fitting.n_extra()
    }

    /// Index of the embedding net for neighbours of type `neighbor` around a centre of type `center`.
    pub fn embedding_net(&self, center: usize, neighbor: usize) -> usize {
        descriptor_net_index(self.descriptor().type_one_side, self.n_types(), center, neighbor)
    }

    /// Index of the fitting net of a centre type.
    pub fn fitting_net(&self, center: usize) -> usize {
        if self.fitting.len() == 1 { 0 } else { center }
    }

    /// Atoms of these types have the energy of a net minus that of the same net with no neighbours at all.
    ///
    /// As in DeePMD-kit: those with an `atom_ener`, and those beyond the end of a list that gives any; all of them where one net
    /// serves all.
    pub fn removes_vacuum(&self, center: usize) -> bool {
        let given = &self.options.fitting.atom_ener;
        let is_given = self.options.descriptors.is_mixed() || given.get(center).is_none_or(Option::is_some);
        given.iter().any(Option::is_some) && is_given
    }

    /// Whether it predicts energies, with forces and virials; other models predict [`Dp::output`] alone.
    pub fn is_energy(&self) -> bool {
        self.options.fitting.is_energy()
    }

    /// What the outputs of an atom of this type are multiplied by, `[width]` or nothing.
    pub fn scale(&self, center: usize) -> Option<&[f64]> {
        let width = self.output.width;
        let of = |t: usize| &self.stats.out_std[t * width..(t + 1) * width];
        match self.output.applied {
            Applied::Bias | Applied::Nothing | Applied::Diagonal => None,
            Applied::Normalised => Some(of(center)),
            Applied::NormalisedAlike => Some(of(0)),
        }
    }

    /// What is added to output `k` of an atom of this type afterwards.
    pub fn shift(&self, center: usize, k: usize) -> f64 {
        let width = self.output.width;
        let bias = |t: usize| &self.stats.bias[t * width..(t + 1) * width];
        match self.output.applied {
            Applied::Bias | Applied::Normalised => bias(center)[k],
            Applied::NormalisedAlike => bias(0)[k],
            Applied::Nothing => 0.0,
            Applied::Diagonal if k.is_multiple_of(4) => {
                let bias = bias(center);
                (bias[0] + bias[4] + bias[8]) / 3.0 * self.options.fitting.net_scale(center)
            }
            Applied::Diagonal => 0.0,
        }
    }

    /// The parameters of the fitting nets, which follow those of the embedding nets.
    pub fn fitting_params(&self) -> std::ops::Range<usize> {
        self.fitting[0].layers[0].w..self.table.len()
    }

    /// What an atom costs beside its neighbours, in neighbours: its fitting net, six products of which a weight takes part in, where a
    /// neighbour takes some ten thousand operations in all passes.
    pub fn atom_cost(&self) -> f64 {
        1e-3 * self.fitting_params().len() as f64 / self.fitting.len() as f64
    }

    /// The parameters that are trained: of a model with embedded types those that its own follow from.
    pub fn trained_table(&self) -> &ParamTable {
        self.embedded.as_ref().map_or(&self.table, |own| &own.table)
    }

    /// Ranges of the flat vector that the optimiser trains.
    pub fn trainable(&self) -> Vec<std::ops::Range<usize>> {
        self.table.trained()
    }

    /// A model and its parameters from plain data.
    pub fn from_spec(spec: DpModel) -> Result<(Self, Vec<f64>)> {
        for (center, (davg, dstd)) in spec.stats.davg.iter().zip(&spec.stats.dstd).enumerate() {
            let center = center % spec.options.type_map.len();
            let isotropic = davg[1..].iter().all(|&x| x == 0.0) && dstd[1..].iter().all(|&x| x == dstd[1]);
            if !isotropic {
                bail!(
                    "davg and dstd of type {center} treat x, y and z differently: {davg:?}, {dstd:?}; such a model \
                     is not invariant under rotation"
                );
            }
        }
        let mut model = Dp::new(spec.options, spec.stats);
        model.tables = spec.tables;
        let mut params = vec![0.0; model.table.len()];
        let kinds = [
            ("embedding", &model.embedding, &spec.descriptor_nets),
            ("fitting", &model.fitting, &spec.fitting_nets),
        ];
        for (kind, shapes, nets) in kinds {
            if shapes.len() != nets.len() {
                bail!("found {} {kind} nets, wanted {}", nets.len(), shapes.len());
            }
            for (n, (shape, net)) in shapes.iter().zip(nets).enumerate() {
                copy_net(&mut params, shape, net).map_err(|e| e.at(format!("{kind} net {n}")))?;
            }
        }
        Ok((model, params))
    }

    /// The model as plain data. `min_nbor_dist` is the shortest distance of the training data, where it is known.
    pub fn to_spec(&self, params: &[f64], min_nbor_dist: Option<f64>) -> DpModel {
        DpModel {
            options: self.options.clone(),
            stats: self.stats.clone(),
            descriptor_nets: self
                .embedding
                .iter()
                .zip(self.net_kinds())
                .map(|(net, kind)| {
                    plain_net(params, net, if kind == NetKind::Chain { net.layers.len() } else { 0 })
                })
                .collect(),
            tables: self.tables.clone(),
            fitting_nets: self
                .fitting
                .iter()
                .map(|net| plain_net(params, net, net.layers.len() - 1))
                .collect(),
            min_nbor_dist,
            embedded: None,
        }
    }
}

impl Dp {
    /// What each of the embedding nets is.
    fn net_kinds(&self) -> impl Iterator<Item = NetKind> + '_ {
        let n_types = self.n_types();
        self.options.descriptors.list.iter().flat_map(move |se| match se.attention() {
            Some(_) => se.nets("", n_types).iter().map(|plan| plan.kind).collect(),
            None => vec![NetKind::Chain; se.n_nets(n_types)],
        })
    }
}

fn copy_net(params: &mut [f64], shape: &NetShape, net: &Net) -> Result<()> {
    if shape.layers.len() != net.layers.len() {
        bail!("found {} layers, wanted {}", net.layers.len(), shape.layers.len());
    }
    for (k, (shape, layer)) in shape.layers.iter().zip(&net.layers).enumerate() {
        let sizes = (layer.n_in, layer.n_out, layer.b.len(), layer.idt.is_some());
        let wanted = (shape.n_in, shape.n_out, shape.b.map_or(0, |_| shape.n_out), shape.idt.is_some());
        let shortcut = layer.resnet && (layer.n_out == layer.n_in || layer.n_out == 2 * layer.n_in);
        if sizes != wanted
            || layer.activation.function() != shape.activation.function()
            || shortcut != (shape.shortcut != Shortcut::None)
        {
            bail!(
                "layer {k} is {} x {} with bias {}, time step {}, activation {}, shortcut {shortcut}; the options \
                 want {} x {} with bias {}, time step {}, activation {}, shortcut {:?}",
                sizes.0,
                sizes.1,
                sizes.2,
                sizes.3,
                layer.activation,
                wanted.0,
                wanted.1,
                wanted.2,
                wanted.3,
                shape.activation,
                shape.shortcut
            );
        }
        params[shape.w_range()].copy_from_slice(&layer.w);
        if let Some(range) = shape.b_range() {
            params[range].copy_from_slice(&layer.b);
        }
        if let (Some(range), Some(idt)) = (shape.idt_range(), &layer.idt) {
            params[range].copy_from_slice(idt);
        }
    }
    Ok(())
}

/// `hidden` layers of the net are marked as residual: DeePMD-kit marks them all, also where the widths forbid it.
fn plain_net(params: &[f64], net: &NetShape, hidden: usize) -> Net {
    let layer = |(k, shape): (usize, &LayerShape)| Layer {
        n_in: shape.n_in,
        n_out: shape.n_out,
        w: params[shape.w_range()].to_vec(),
        b: shape.b_range().map_or(Vec::new(), |range| params[range].to_vec()),
        idt: shape.idt_range().map(|range| params[range].to_vec()),
        resnet: k < hidden,
        activation: shape.activation,
    };
    Net { layers: net.layers.iter().enumerate().map(layer).collect() }
}
