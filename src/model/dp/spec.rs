//! A Deep Potential model as plain data: what a model file holds, and all that a prediction needs.

use crate::model::activation::Activation;
use crate::model::dp::options::{DescriptorOptions, ModelOptions, SeE2AOptions, Sel};

/// A Deep Potential model with everything that predicts: no training state.
#[derive(Debug, Clone, PartialEq)]
pub struct DpModel {
    /// `sel` is [`Sel::Fixed`] here: a model file has no room for "auto".
    pub options: ModelOptions,
    pub stats: DpStatistics,
    /// Embedding nets, from s(r) to the last entry of `neuron`. With `type_one_side` net j serves neighbours of
    /// type j. Without, net i + j * n_types serves centres of type i with neighbours of type j: the centre runs
    /// fastest. See [`DpModel::descriptor_net`].
    pub descriptor_nets: Vec<Net>,
    /// Fitting net t serves atoms of type t. Inputs: descriptor, then fparam, then aparam, both normalised.
    pub fitting_nets: Vec<Net>,
    /// Smallest distance between two atoms of the training data, A. Compression of models asks for it.
    pub min_nbor_dist: Option<f64>,
}

/// The numbers that come from statistics of the data rather than from training.
#[derive(Debug, Clone, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct DpStatistics {
    /// Mean of the environment rows (s, s x/r, s y/r, s z/r) for each centre type, taken off each row.
    pub davg: Vec<[f64; 4]>,
    /// Standard deviation of the same; each row is divided by it.
    pub dstd: Vec<[f64; 4]>,
    /// Energy added to each atom of a type, eV.
    pub bias: Vec<f64>,
    /// Spread of the energy for each type, eV. It is kept in files; predictions do not use it.
    pub out_std: Vec<f64>,
    /// Mean of each frame parameter. [numb_fparam]
    pub fparam_avg: Vec<f64>,
    /// One over the standard deviation of each frame parameter. [numb_fparam]
    pub fparam_inv_std: Vec<f64>,
    /// Mean of each atom parameter. [numb_aparam]
    pub aparam_avg: Vec<f64>,
    /// One over the standard deviation of each atom parameter. [numb_aparam]
    pub aparam_inv_std: Vec<f64>,
}

/// A multilayer perceptron.
#[derive(Debug, Clone, PartialEq)]
pub struct Net {
    pub layers: Vec<Layer>,
}

/// y = idt * activation(x w + b), plus x where `resnet` holds and n_out = n_in, plus (x, x) where n_out = 2 n_in.
#[derive(Debug, Clone, PartialEq)]
pub struct Layer {
    pub n_in: usize,
    pub n_out: usize,
    /// [n_in, n_out], row by row.
    pub w: Vec<f64>,
    /// [n_out], or empty where the layer has no bias.
    pub b: Vec<f64>,
    /// Step of the residual branch. [n_out]
    pub idt: Option<Vec<f64>>,
    /// Asks for the skip connection; other shapes than the two above go without one.
    pub resnet: bool,
    pub activation: Activation,
}

impl DpModel {
    pub fn n_types(&self) -> usize {
        self.options.type_map.len()
    }

    /// The embedding net of a centre type and a neighbour type.
    pub fn descriptor_net(&self, centre: usize, neighbour: usize) -> &Net {
        let DescriptorOptions::SeE2A(descriptor) = &self.options.descriptor;
        &self.descriptor_nets
            [descriptor_net_index(descriptor.type_one_side, self.n_types(), centre, neighbour)]
    }
}

/// Where the embedding net of a pair of types stands among `DpModel::descriptor_nets`.
pub fn descriptor_net_index(type_one_side: bool, n_types: usize, centre: usize, neighbour: usize) -> usize {
    if type_one_side { neighbour } else { centre + neighbour * n_types }
}

impl SeE2AOptions {
    /// The slots of each neighbour type. Only after neighbour statistics have replaced "auto".
    pub fn fixed_sel(&self) -> &[usize] {
        match &self.sel {
            Sel::Fixed(sel) => sel,
            Sel::Auto(_) => panic!("sel = \"auto\" must be replaced by numbers before a model is made"),
        }
    }

    /// How many embedding nets a model with so many types has.
    pub fn n_nets(&self, n_types: usize) -> usize {
        if self.type_one_side { n_types } else { n_types * n_types }
    }

    /// Length of the descriptor of one atom.
    pub fn descriptor_len(&self) -> usize {
        self.neuron.last().map_or(0, |last| last * self.axis_neuron)
    }
}
