//! The embedding nets as functions of one number, whatever else they are given.

use super::chebyshev::net_of;
use super::jets::JetNet;
use super::net::{self, NetTrace};
use crate::model::dp::Dp;

/// The embedding nets of a model with these parameters.
pub struct Nets<'a> {
    pub model: &'a Dp,
    pub params: &'a [f64],
    /// `[n_types, tebd]` where nets are given embedded types; else nothing.
    types: Vec<f64>,
}

/// What the way back through a net needs.
#[derive(Default)]
pub struct Trace {
    net: NetTrace,
    rows: JetNet<f64>,
}

impl<'a> Nets<'a> {
    pub fn new(model: &'a Dp, params: &'a [f64]) -> Self {
        let mut types = Vec::new();
        if model.descriptor().attention().is_some() && model.attention().strip.is_none() {
            let (inputs, mut net) = (model.type_inputs(), JetNet::default());
            net.forward_rows(model.attention().types, params, &inputs, |x1| x1.resize(inputs.len(), 0.0));
            types.extend_from_slice(net.output().0);
        }
        Nets { model, params, types }
    }

    /// `[n, M1]` the net of a stack and a neighbour type at each `s`.
    pub fn values<'t>(&self, trace: &'t mut Trace, stack: usize, neighbor: usize, s: &[f64]) -> &'t [f64] {
        let (model, params) = (self.model, self.params);
        if model.descriptor().attention().is_none() {
            return net::forward(&mut trace.net, &model.embedding[net_of(model, stack, neighbor)], params, s);
        }
        let filter = model.attention().filter;
        let given = self.given(stack, neighbor);
        let rows: Vec<f64> =
            s.iter().flat_map(|&s| std::iter::once(s).chain(given.iter().copied())).collect();
        trace.rows.forward_rows(filter, params, &rows, |x1| x1.resize(rows.len(), 0.0));
        trace.rows.output().0
    }

    /// What a net is given beside s.
    fn given(&self, stack: usize, neighbor: usize) -> Vec<f64> {
        let width = self.types.len() / self.model.n_types();
        let row = |t: usize| &self.types[t * width..(t + 1) * width];
        match self.model.descriptor().type_one_side {
            true => row(neighbor).to_vec(),
            false => [row(neighbor), row(stack)].concat(),
        }
    }
}

impl Trace {
    /// Adds the gradient by the parameters of a net of one number, which is `own` with parameter `first` in front.
    pub fn backward_add(&self, grad: &mut [f64], first: usize, nets: &Nets, net: usize, dl_values: &[f64]) {
        net::backward_add(grad, first, &self.net, &nets.model.embedding[net], nets.params, dl_values);
    }

    /// Adds the gradient of a net that may be given embedded types; returns dL by what it is given, row by row.
    pub fn backward_rows_add(&self, grad: &mut [f64], nets: &Nets, dl_values: Vec<f64>) -> Vec<f64> {
        let still = vec![0.0; dl_values.len()];
        self.rows.backward_add(grad, 0, nets.model.attention().filter, nets.params, dl_values, still)
    }
}
