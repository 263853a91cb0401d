//! The `loss` section, as meant.

/// How an error enters the loss.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum LossFunction {
    Mse,
    Mae,
    /// Quadratic below `delta`, linear above.
    Huber {
        delta: f64,
    },
}

/// A prefactor that goes from `start` to `limit` as the learning rate decays.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Prefactor {
    pub start: f64,
    pub limit: f64,
}

/// `loss` of type `ener`.
#[derive(Debug, Clone, PartialEq)]
pub struct EnerLossOptions {
    pub energy: Prefactor,
    pub force: Prefactor,
    pub virial: Prefactor,
    pub atom_energy: Prefactor,
    pub atom_pref_force: Prefactor,
    /// Forces are weighted by 1 / (|F| + relative_f) where given.
    pub relative_f: Option<f64>,
    pub function: LossFunction,
}
