//! Labels and weights of one structure as plain numbers, for a device that computes the loss itself.

/// Kinds of errors: E, E_PER_ATOM, F, S, Q, D, D_PER_ATOM.
pub const KINDS: usize = 7;

/// Labels in training space and weights of the squared errors; a weight that is NaN: masked out.
#[derive(Debug, Clone, PartialEq)]
pub struct Elements {
    /// Label and weight; also for energies per atom, where those count.
    pub energy: (f64, f64),
    pub dipole: (f64, f64),
    pub stress: [f64; 9],
    /// `[n_atoms, 3]`; empty where no force counts
    pub force: Vec<f64>,
    pub force_weight: Vec<f64>,
    /// What it adds to the divisors of the means: energy, force, stress, dipole.
    pub counts: [f64; 4],
}

impl Elements {
    /// Of a structure that nothing is learnt from.
    pub fn none() -> Self {
        Elements {
            energy: (f64::NAN, f64::NAN),
            dipole: (f64::NAN, f64::NAN),
            stress: [f64::NAN; 9],
            force: vec![],
            force_weight: vec![],
            counts: [0.0; 4],
        }
    }
}
