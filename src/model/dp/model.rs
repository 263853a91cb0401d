//! A Deep Potential model: shapes, statistics and the table of its parameters. The parameters themselves are a flat vector.

use super::options::{DescriptorOptions, ModelOptions, SeE2AOptions, Sel};
use super::spec::DpStatistics;
use crate::model::net::{HiddenSpec, NetShape};
use crate::model::params::ParamTable;
use crate::model::random::Normal;

/// Everything about a model but the values of its parameters.
#[derive(Debug, Clone)]
pub struct Dp {
    pub options: ModelOptions,
    pub stats: DpStatistics,
    pub table: ParamTable,
    /// The descriptor's nets: one for each neighbour type, or one for each pair, see [`Dp::embedding_net`].
    pub embedding: Vec<NetShape>,
    /// One fitting net for each centre type.
    pub fitting: Vec<NetShape>,
    sel: Vec<usize>,
}

impl Dp {
    /// Lays out the parameters of a model. `options.descriptor.sel` must be resolved.
    pub fn new(options: ModelOptions, stats: DpStatistics) -> Self {
        let DescriptorOptions::SeE2A(se) = &options.descriptor;
        let Sel::Fixed(sel) = se.sel.clone() else {
            panic!("sel is resolved from the neighbour statistics before the model is laid out")
        };
        let n_types = options.type_map.len();
        let mut table = ParamTable::default();
        let n_embedding = if se.type_one_side { n_types } else { n_types * n_types };
        let embedding = (0..n_embedding)
            .map(|k| {
                let spec = HiddenSpec {
                    n_in: 1,
                    neuron: &se.neuron,
                    activation: se.activation,
                    resnet_dt: se.resnet_dt,
                    trainable: &vec![se.trainable; se.neuron.len()],
                };
                NetShape::hidden(&mut table, &format!("descriptor.sea.filter_layers.networks.{k}"), spec)
            })
            .collect();
        let fit = &options.fitting;
        let n_in = se.neuron[se.neuron.len() - 1] * se.axis_neuron + fit.numb_fparam + fit.numb_aparam;
        let fitting = (0..n_types)
            .map(|k| {
                let prefix = format!("fitting_net.filter_layers.networks.{k}");
                let spec = HiddenSpec {
                    n_in,
                    neuron: &fit.neuron,
                    activation: fit.activation,
                    resnet_dt: fit.resnet_dt,
                    trainable: &fit.trainable,
                };
                NetShape::hidden(&mut table, &prefix, spec).with_output(
                    &mut table,
                    &prefix,
                    1,
                    fit.trainable[fit.neuron.len()],
                )
            })
            .collect();
        Dp { options, stats, table, embedding, fitting, sel }
    }

    /// The descriptor's options.
    pub fn descriptor(&self) -> &SeE2AOptions {
        let DescriptorOptions::SeE2A(se) = &self.options.descriptor;
        se
    }

    pub fn n_types(&self) -> usize {
        self.options.type_map.len()
    }

    /// Neighbour slots of each type.
    pub fn sel(&self) -> &[usize] {
        &self.sel
    }

    /// All neighbour slots of an atom.
    pub fn n_sel(&self) -> usize {
        self.sel.iter().sum()
    }

    /// Width of the embedding, M1.
    pub fn n_embed(&self) -> usize {
        self.embedding[0].n_out()
    }

    /// Width of the descriptor, M1 * M2.
    pub fn n_descriptor(&self) -> usize {
        self.n_embed() * self.descriptor().axis_neuron
    }

    /// Inputs of the fitting net beside the descriptor.
    pub fn n_extra(&self) -> usize {
        self.options.fitting.numb_fparam + self.options.fitting.numb_aparam
    }

    /// Index of the embedding net for neighbours of type `neighbor` around a centre of type `center`.
    pub fn embedding_net(&self, center: usize, neighbor: usize) -> usize {
        if self.descriptor().type_one_side { neighbor } else { neighbor * self.n_types() + center }
    }

    /// Random parameters as DeePMD-kit draws them: weights N(0, 1/(n_in + n_out)), biases N(0, 1), time steps N(0.1, 0.001).
    pub fn random_params(&self, training_seed: u64) -> Vec<f64> {
        let mut params = vec![0.0; self.table.len()];
        let descriptor_seed = self.descriptor().seed.unwrap_or(training_seed);
        let fitting_seed = self.options.fitting.seed.unwrap_or(training_seed);
        for (place, view) in self.table.views().iter().enumerate() {
            let seed = if view.name.starts_with("descriptor") { descriptor_seed } else { fitting_seed };
            let (mean, deviation) = match view.name.rsplit('.').next() {
                Some("matrix") => (0.0, 1.0 / ((view.shape[0] + view.shape[1]) as f64).sqrt()),
                Some("idt") => (0.1, 0.001),
                _ => (0.0, 1.0),
            };
            let mut normal = Normal::new(seed, place as u64);
            params[view.range()].fill_with(|| mean + deviation * normal.next());
        }
        params
    }
}
