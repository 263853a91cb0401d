//! The options of a Deep Potential model, as meant: nothing is optional that has a default.

use crate::model::activation::Activation;

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
    /// The section as it goes into model files, with all defaults written out.
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
