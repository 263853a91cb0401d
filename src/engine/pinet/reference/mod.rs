//! The reference engine of PiNet: slow, obviously right, float64, one structure at a time.
//!
//! It has no `unsafe`, no SIMD and no threads, and is never improved for speed.

pub mod network;
#[cfg(test)]
pub(crate) mod tests;

use super::geometry::{tensor_backward, tensor_tangent, unit, unit_tangent};
use super::pool::pool;
use super::{PinetEngine, PinetFrame, PinetPrediction, PinetSeeds};
use crate::model::pinet::PinetModel;
use network::{Network, network};
use std::sync::Arc;

/// Evaluates a PiNet structure by structure.
pub struct PinetReference {
    model: Arc<PinetModel>,
    forces: bool,
}

impl PinetReference {
    /// `forces`: whether forces and stress are wanted.
    pub fn new(model: Arc<PinetModel>, forces: bool) -> Self {
        PinetReference { model, forces }
    }

    /// The tape of a structure with dE of everything, the shares of its atoms, and the energy.
    fn first_pass(&self, params: &[f64], frame: &PinetFrame) -> (Network, Vec<f64>, f64) {
        let mut net = network(&self.model, params, frame);
        let out = &net.tape.node(net.out).value;
        let mut share = vec![0.0; out.len()];
        let energy = pool(&mut share, out, self.model.options.out_pool);
        if self.forces {
            net.tape.backward_energy(net.out, &share);
        }
        (net, share, energy)
    }
}

/// dE/dd of pair `p`.
fn de_d(net: &Network, frame: &PinetFrame, p: usize) -> [f64; 3] {
    let n = unit(&frame.d[p]);
    let de_basis = &net.tape.node(net.basis).de;
    let n_basis = net.tape.node(net.basis).width;
    let de_r: f64 = (p * n_basis..(p + 1) * n_basis).map(|k| de_basis[k] * frame.slope[k]).sum();
    let mut de_d = n.map(|x| x * de_r);
    for &id in &net.directions {
        let node = net.tape.node(id);
        let size = node.rows / frame.n_pairs();
        let de = &node.de[p * size..(p + 1) * size];
        let de_n = match size {
            3 => [de[0], de[1], de[2]],
            _ => tensor_backward(&n, &[de[0], de[1], de[2], de[3], de[4]]),
        };
        let de = unit_tangent(&n, frame.r[p], &de_n);
        (0..3).for_each(|k| de_d[k] += de[k]);
    }
    de_d
}

/// Sets the tangents of the inputs when pair `p` moves along `d_dot`.
fn set_tangent(net: &mut Network, frame: &PinetFrame, p: usize, d_dot: &[f64; 3]) {
    let n = unit(&frame.d[p]);
    let r_dot: f64 = (0..3).map(|k| n[k] * d_dot[k]).sum();
    let n_basis = net.tape.node(net.basis).width;
    let basis = net.tape.node_mut(net.basis);
    (p * n_basis..(p + 1) * n_basis).for_each(|k| basis.dot[k] = frame.slope[k] * r_dot);
    let n_dot = unit_tangent(&n, frame.r[p], d_dot);
    for &id in &net.directions {
        let node = net.tape.node_mut(id);
        match node.rows / frame.n_pairs() {
            3 => node.dot[3 * p..3 * p + 3].copy_from_slice(&n_dot),
            _ => node.dot[5 * p..5 * p + 5].copy_from_slice(&tensor_tangent(&n, &n_dot)),
        }
    }
}

impl PinetEngine for PinetReference {
    fn evaluate(&mut self, out: &mut PinetPrediction, params: &[f64], batch: &[&PinetFrame]) {
        *out = PinetPrediction::default();
        for frame in batch {
            let (net, _, energy) = self.first_pass(params, frame);
            out.energy.push(energy);
            out.atomic.extend(&net.tape.node(net.out).value);
            if !self.forces {
                continue;
            }
            let mut force = vec![0.0; 3 * frame.n_atoms()];
            let mut stress = [0.0; 9];
            for i in 0..frame.n_atoms() {
                for p in frame.pairs_of(i) {
                    let (de_d, j) = (de_d(&net, frame, p), frame.j[p] as usize);
                    for k in 0..3 {
                        force[3 * i + k] += de_d[k];
                        force[3 * j + k] -= de_d[k];
                        (0..3).for_each(|a| stress[3 * a + k] += frame.d[p][a] * de_d[k]);
                    }
                }
            }
            out.force.extend(force);
            out.stress.push(stress);
        }
    }

    fn backward(&mut self, grad: &mut [f64], params: &[f64], batch: &[&PinetFrame], seeds: &PinetSeeds) {
        grad.fill(0.0);
        let mut first = 0;
        for (s, frame) in batch.iter().enumerate() {
            let (mut net, share, _) = self.first_pass(params, frame);
            if self.forces {
                let u = |i: usize, k: usize| -seeds.dl_force[3 * (first + i) + k];
                for i in 0..frame.n_atoms() {
                    for p in frame.pairs_of(i) {
                        let j = frame.j[p] as usize;
                        let strain = |k: usize| {
                            (0..3).map(|a| seeds.dl_stress[s][3 * a + k] * frame.d[p][a]).sum::<f64>()
                        };
                        let d_dot = [0, 1, 2].map(|k| u(j, k) - u(i, k) + strain(k));
                        set_tangent(&mut net, frame, p, &d_dot);
                    }
                }
                net.tape.tangent();
            }
            let dl_out: Vec<f64> = (0..frame.n_atoms())
                .map(|i| seeds.dl_energy[s] * share[i] + seeds.dl_atomic[first + i])
                .collect();
            net.tape.backward_loss(grad, net.out, &dl_out, None);
            first += frame.n_atoms();
        }
    }
}
