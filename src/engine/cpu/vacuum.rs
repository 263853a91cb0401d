//! The energy of atoms with no neighbours at all, which types with an `atom_ener` have taken off.
//!
//! It depends on the parameters and on the frame and atomic parameters only, so it has no part in forces.

use super::net::{self, NetTrace};
use crate::model::dp::Dp;

/// The fitting nets at a descriptor of zero.
#[derive(Default)]
pub struct Vacuum {
    traces: Vec<NetTrace>,
    /// `[n_types][n]` energies; one for all atoms where the net has no other inputs.
    energies: Vec<Vec<f64>>,
}

impl Vacuum {
    /// Evaluates the nets. `extra[c]` holds the other inputs of the atoms of type c, row by row.
    pub fn forward(&mut self, model: &Dp, params: &[f64], extra: &[Vec<f64>]) {
        self.traces.resize_with(model.n_types(), NetTrace::default);
        self.energies.resize(model.n_types(), Vec::new());
        let (n_d, n_extra) = (model.n_descriptor(), model.n_extra());
        for center in (0..model.n_types()).filter(|&c| model.removes_vacuum(c)) {
            let rows: Vec<&[f64]> = match n_extra {
                0 => vec![&[]],
                n => extra[center].chunks_exact(n).collect(),
            };
            let x: Vec<f64> = rows.iter().flat_map(|row| [&vec![0.0; n_d][..], row].concat()).collect();
            self.energies[center].clear();
            if !rows.is_empty() {
                let e = net::forward(
                    &mut self.traces[center],
                    &model.fitting[model.fitting_net(center)],
                    params,
                    &x,
                );
                self.energies[center].extend_from_slice(e);
            }
        }
    }

    /// What is taken off the energy of atom `k` of a type.
    pub fn energy(&self, center: usize, k: usize) -> f64 {
        let energies = &self.energies[center];
        match energies.len() {
            0 => 0.0,
            1 => energies[0],
            _ => energies[k],
        }
    }

    /// Adds dL/dparams; `dl_e[c]` is dL/denergy of each atom of type c.
    pub fn backward_add(&self, grad: &mut [f64], model: &Dp, params: &[f64], dl_e: &[Vec<f64>]) {
        for center in (0..model.n_types()).filter(|&c| model.removes_vacuum(c) && !dl_e[c].is_empty()) {
            let dl_y: Vec<f64> = match model.n_extra() {
                0 => vec![-dl_e[center].iter().sum::<f64>()],
                _ => dl_e[center].iter().map(|x| -x).collect(),
            };
            net::backward_add(
                grad,
                0,
                &self.traces[center],
                &model.fitting[model.fitting_net(center)],
                params,
                &dl_y,
            );
        }
    }
}
