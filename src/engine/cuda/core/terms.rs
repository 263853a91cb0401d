//! What a step computes beside energies and forces.

use super::Batch;

/// What a step computes beside energies and forces.
#[derive(Debug, Clone, Default)]
pub struct Terms {
    /// The loss, where there is one.
    pub loss: Option<LossTerms>,
    /// Virials are wanted.
    pub virial: bool,
}

/// The loss that the device computes itself.
#[derive(Debug, Clone)]
pub struct LossTerms {
    /// How an error enters it.
    pub function: LossKind,
    /// Force errors of an atom are divided by |F| + relative_f of its label, where given.
    pub relative_f: Option<f64>,
    /// Force errors enter by their norm for each atom.
    pub f_use_norm: bool,
    /// The energies of atoms have coefficients.
    pub use_coeff: bool,
    /// Forces of frames without weights have the weight 1.
    pub default_pf: bool,
    /// Squared errors of energy and virial are divided by N^2 instead of N.
    pub intensive: bool,
    /// The learning rate at which prefactors start.
    pub start_lr: f64,
}

/// Squares, absolute values, or squares up to a limit (of energy, force, virial) and absolute values beyond.
#[derive(Debug, Clone, Copy)]
pub enum LossKind {
    Mse,
    Mae,
    Huber([f64; 3]),
}

/// Tells the kernels what the loss is.
pub fn set_loss(c: &mut Batch, loss: &LossTerms) {
    (c.function, c.delta) = match loss.function {
        LossKind::Mse => (0, [0.0; 3]),
        LossKind::Mae => (1, [0.0; 3]),
        LossKind::Huber(deltas) => (2, deltas),
    };
    c.relative_f = loss.relative_f.unwrap_or(f64::NAN);
    c.f_use_norm = i32::from(loss.f_use_norm);
    c.use_coeff = i32::from(loss.use_coeff);
    c.default_pf = i32::from(loss.default_pf);
    c.intensive = i32::from(loss.intensive);
    c.start_lr = loss.start_lr;
    c.used = 1;
}
