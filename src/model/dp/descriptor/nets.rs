//! The nets of a descriptor: their shapes, their names, and the seeds of their initial parameters.

use super::{DescriptorOptions, Nets};
use crate::model::activation::Activation;
use crate::model::dp::spec::descriptor_net_index;
use crate::model::net::{HiddenSpec, NetShape};
use crate::model::params::ParamTable;

/// One of the nets of a descriptor.
#[derive(Debug, Clone)]
pub struct NetPlan {
    /// The front of the names of its parameters.
    pub name: String,
    pub kind: NetKind,
    pub n_in: usize,
    pub neuron: Vec<usize>,
    pub activation: Activation,
    pub resnet_dt: bool,
    pub bias: bool,
    /// The last layer of a chain is linear.
    pub linear_end: bool,
    pub trainable: bool,
    /// What the seed of the descriptor is mixed with for it, from the inside out.
    pub seeds: Vec<u64>,
    /// When DeePMD-kit makes it, among the nets of its descriptor.
    pub place: usize,
}

/// What a net is in DeePMD-kit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NetKind {
    /// A chain of layers with shortcuts.
    Chain,
    /// A single layer without activation.
    Layer,
    /// Scale and shift of a normalised row, as a layer of one input: W and b.
    Norm,
}

impl NetPlan {
    /// Appends its parameters to the table.
    pub fn lay_out(&self, table: &mut ParamTable) -> NetShape {
        match self.kind {
            NetKind::Chain => {
                let spec = HiddenSpec {
                    n_in: self.n_in,
                    neuron: &self.neuron,
                    activation: self.activation,
                    resnet_dt: self.resnet_dt,
                    bias: self.bias,
                    trainable: &vec![self.trainable; self.neuron.len()],
                };
                let mut net = NetShape::hidden(table, &self.name, spec);
                if let Some(last) = net.layers.last_mut().filter(|_| self.linear_end) {
                    last.activation = Activation::Linear;
                }
                net
            }
            NetKind::Layer => {
                let shape = [self.n_in, self.neuron[0]];
                NetShape::single(table, &self.name, &shape, self.neuron[0], self.trainable)
            }
            NetKind::Norm => {
                NetShape::single(table, &self.name, &self.neuron, self.neuron[0], self.trainable)
            }
        }
    }

    /// How many parameters it has.
    pub fn n_params(&self) -> u128 {
        let inputs = std::iter::once(self.n_in).chain(self.neuron.iter().copied());
        let vectors = u128::from(self.bias) + u128::from(self.resnet_dt);
        inputs.zip(&self.neuron).map(|(n_in, &n_out)| n_out as u128 * (n_in as u128 + vectors)).sum()
    }
}

impl DescriptorOptions {
    /// Its nets in the order of the flat vector, given the front of all names.
    pub fn nets(&self, prefix: &str, n_types: usize) -> Vec<NetPlan> {
        match self.attention() {
            Some(own) => own.nets(self, prefix, n_types),
            None => (0..self.n_nets(n_types)).map(|k| self.embedding_net(prefix, k, n_types)).collect(),
        }
    }

    /// One of those that differ by types.
    fn embedding_net(&self, prefix: &str, k: usize, n_types: usize) -> NetPlan {
        // DeePMD-kit makes them with neighbours running fastest, and counts them with centres running fastest.
        let place = if self.type_one_side { k } else { k % n_types * n_types + k / n_types };
        debug_assert!(
            self.type_one_side || k == descriptor_net_index(false, n_types, k % n_types, k / n_types),
            "nets are counted with centres running fastest"
        );
        NetPlan {
            name: format!("{prefix}.filter_layers.networks.{k}"),
            kind: NetKind::Chain,
            n_in: 1,
            neuron: self.neuron.clone(),
            activation: self.activation,
            resnet_dt: self.resnet_dt,
            bias: true,
            linear_end: self.ends_linearly(),
            trainable: self.trainable && self.uses_net(k, n_types),
            seeds: vec![place as u64],
            place,
        }
    }

    /// How many nets a model with so many types has for it.
    pub fn n_nets(&self, n_types: usize) -> usize {
        match self.attention() {
            Some(own) => own.n_nets(),
            None if self.type_one_side => n_types,
            None => n_types * n_types,
        }
    }

    /// Whether any atom can have to do with net `k`.
    pub fn uses_net(&self, k: usize, n_types: usize) -> bool {
        self.kind.about().nets != Nets::ByNeighbors || k % n_types <= k / n_types
    }
}
