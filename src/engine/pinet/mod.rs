//! PiNet: atomic outputs, energies, forces and stress of a batch, and the gradient of a loss.
//!
//! Two passes, as for every model: the first gives what is predicted and dE/d everything; the second pushes the
//! direction -dL/dF (and the strain of dL/dstress) forward and runs one reverse pass over (value, tangent) pairs.

pub mod activation;
pub mod radial; // cutoff and radial functions
pub mod geometry; // directions of pairs
pub mod pool; // from atoms to structures
pub mod elements; // labels and weights of a structure
pub mod frame; // a structure with its pairs, prepared once
pub mod reference;
pub mod cpu;
pub mod cuda;

pub use frame::PinetFrame;

use crate::engine::cpu::pool::Pool;

/// What a network says about a batch. Atoms are concatenated over structures.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PinetPrediction {
    /// `[n_structures]` the pooled outputs: energies in training space
    pub energy: Vec<f64>,
    /// `[n_atoms]` the output of each atom: energies, or charges
    pub atomic: Vec<f64>,
    /// `[n_atoms, 3]` -dE/dx; empty where the engine was built without forces
    pub force: Vec<f64>,
    /// `[n_structures]` row-major, sum over pairs of d_a dE/dd_b, not divided by the volume; empty without forces
    pub stress: Vec<[f64; 9]>,
}

/// Derivatives of the loss by what was predicted; same shapes as [`PinetPrediction`].
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PinetSeeds {
    pub dl_energy: Vec<f64>,
    pub dl_atomic: Vec<f64>,
    pub dl_force: Vec<f64>,
    pub dl_stress: Vec<[f64; 9]>,
}

impl PinetSeeds {
    /// Zeros in the shape of a prediction.
    pub fn reset(&mut self, out: &PinetPrediction) {
        for (seeds, n) in [
            (&mut self.dl_energy, out.energy.len()),
            (&mut self.dl_atomic, out.atomic.len()),
            (&mut self.dl_force, out.force.len()),
        ] {
            seeds.clear();
            seeds.resize(n, 0.0);
        }
        self.dl_stress.clear();
        self.dl_stress.resize(out.stress.len(), [0.0; 9]);
    }
}

/// Evaluates a network on structures and differentiates a loss.
pub trait PinetEngine: Send {
    /// The threads that it computes on, for whoever works between its passes.
    fn pool(&self) -> Pool {
        Pool::serial()
    }

    /// First pass: outputs and energies, and where the engine was built with forces also forces and stress.
    fn evaluate(&mut self, out: &mut PinetPrediction, params: &[f64], batch: &[&PinetFrame]);

    /// Second pass: overwrites `grad` with dL/dparams. Must follow `evaluate` of the same batch and parameters.
    fn backward(&mut self, grad: &mut [f64], params: &[f64], batch: &[&PinetFrame], seeds: &PinetSeeds);
}
