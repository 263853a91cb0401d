//! The loss of one structure as plain numbers: labels and weights, for a device that computes the loss itself.

use super::potential::{self, dress};
use super::{PinnLabels, PinnLoss, PinnLossValue, Row, rounded};
use crate::engine::pinet::PinetFrame;
use crate::engine::pinet::elements::{Elements, KINDS};
use crate::loss::ErrorSums;
use crate::model::pinet::options::{ModelOptions, Wiring};

/// Names of the kinds of errors.
const TAGS: [&str; KINDS] = ["E", "E_PER_ATOM", "F", "S", "Q", "D", "D_PER_ATOM"];

/// `x` where an error counts, NaN where it is masked out; adds to the divisor.
fn masked(x: f64, used: bool, all: bool, count: &mut f64) -> f64 {
    *count += f64::from(u8::from(used || all));
    if used { x } else { f64::NAN }
}

impl PinnLoss {
    /// The force components of a batch that `no_force_comp` chooses in a step, as [`PinnLoss::differentiate`] does;
    /// `None` where it does not choose.
    pub fn chosen_forces<'a>(
        &self,
        labels: impl Iterator<Item = &'a PinnLabels>,
        step: u64,
        rank: u64,
    ) -> Option<Vec<bool>> {
        let ModelOptions::Potential(o) = self.options() else { return None };
        if !o.use_force || o.no_force_comp.is_none() || o.version == Wiring::Fork {
            return None;
        }
        let label: Vec<f64> = labels.flat_map(|l| l.force.iter().flatten()).map(|f| f * o.e_scale).collect();
        potential::chosen_forces(o, label.into_iter(), self.key(step, rank))
    }

    /// The terms that `separate_errors` leaves out of a step: 1 energy, 2 force, 4 stress, 8 regulariser.
    pub fn dropped(&self, step: u64) -> u32 {
        let (ModelOptions::Potential(o), Some(kept)) = (self.options(), self.kept(step)) else { return 0 };
        let terms = [(true, 1), (o.use_force, 2), (o.use_stress, 4), (self.regulariser.is_some(), 8)];
        let there = terms.iter().filter(|(there, _)| *there).map(|(_, bit)| *bit);
        there.enumerate().filter(|(k, _)| *k != kept).map(|(_, bit)| bit).sum()
    }

    /// The labels and weights of a structure. They must have passed [`PinnLoss::require`].
    pub fn elements(&self, frame: &PinetFrame, labels: &PinnLabels) -> Elements {
        let mut out = Elements::none();
        let n = frame.n_atoms() as f64;
        match self.options() {
            ModelOptions::Potential(o) => {
                let fork = o.version == Wiring::Fork;
                let label = (labels.energy.unwrap_or(f64::NAN) - dress(o, frame)) * o.e_scale;
                let given = labels.e_weight.unwrap_or(1.0);
                let root = if fork && o.use_e_per_atom && o.use_e_per_sqrt { n } else { 1.0 };
                let weight = root
                    * match (fork, o.use_e_weight) {
                        (false, true) => o.e_loss_multiplier * given,
                        (false, false) => rounded(o.e_loss_multiplier),
                        (true, true) => o.e_loss_multiplier * given * given,
                        (true, false) => o.e_loss_multiplier,
                    };
                let used = o.max_energy.is_none_or(|max| label.abs() <= max);
                out.energy = (label, masked(weight, used, fork, &mut out.counts[0]));
                if o.use_force {
                    let label = labels.force.iter().flatten().map(|f| f * o.e_scale);
                    out.force = label.collect();
                    let given = labels.f_weights.as_deref().filter(|_| o.use_f_weights);
                    for (k, f) in out.force.iter().enumerate() {
                        let weight = match (fork, given) {
                            (false, Some(w)) => o.f_loss_multiplier * w[k],
                            (false, None) => rounded(o.f_loss_multiplier),
                            (true, w) => o.f_loss_multiplier * w.map_or(1.0, |w| w[k] * w[k]),
                        };
                        let used = o.max_force.is_none_or(|max| f.abs() <= max);
                        out.force_weight.push(masked(weight, used, fork, &mut out.counts[1]));
                    }
                }
                if o.use_stress {
                    out.stress = labels.stress.unwrap_or([f64::NAN; 9]).map(|s| s * o.e_scale);
                    out.counts[2] = 9.0;
                }
            }
            ModelOptions::Dipole(o) => {
                let fork = o.version == Wiring::Fork;
                let label = labels.dipole.unwrap_or(f64::NAN) * o.d_scale;
                let given = labels.d_weight.unwrap_or(1.0);
                let root = if fork && o.use_d_per_atom && o.use_d_per_sqrt { n } else { 1.0 };
                let weight = root
                    * match (fork, o.use_d_weight) {
                        (false, true) => o.d_loss_multiplier * given,
                        (false, false) => rounded(o.d_loss_multiplier),
                        (true, true) => o.d_loss_multiplier * given * given,
                        (true, false) => o.d_loss_multiplier,
                    };
                let used = o.max_dipole.is_none_or(|max| label.abs() <= max);
                out.dipole = (label, masked(weight, used, fork, &mut out.counts[3]));
            }
        }
        out
    }

    /// The weight of stress, and which kinds of errors are part of the loss.
    pub fn counted(&self) -> (f64, [bool; KINDS]) {
        match self.options() {
            ModelOptions::Potential(o) => {
                let per_atom = o.use_e_per_atom;
                let counted = [!per_atom, per_atom, o.use_force, o.use_stress, false, false, false];
                (rounded(o.s_loss_multiplier), counted)
            }
            ModelOptions::Dipole(o) => {
                let per_atom = o.use_d_per_atom;
                (0.0, [false, false, false, false, true, !per_atom, per_atom])
            }
        }
    }

    /// For each parameter the derivative of the regulariser over the parameter; `None` without one.
    pub fn pull(&self, n_params: usize) -> Option<Vec<f64>> {
        let l2 = self.regulariser.as_ref()?;
        let mut pull = vec![0.0; n_params];
        l2.kernels.iter().for_each(|range| pull[range.clone()].fill(2.0 * l2.factor));
        Some(pull)
    }

    /// The value of a batch from its sums.
    ///
    /// - sums  the loss, then absolute, square and loss of every kind, then the regulariser
    pub fn value_of(&self, sums: &[f64], n_structures: usize, n_atoms: usize) -> PinnLossValue {
        let (_, counted) = self.counted();
        let shown = match self.options() {
            ModelOptions::Potential(o) => {
                let per_atom = o.use_e_per_atom || o.log_e_per_atom;
                [true, per_atom, o.use_force, o.use_stress, false, false, false]
            }
            ModelOptions::Dipole(o) => {
                [false, false, false, false, true, true, o.use_d_per_atom || o.log_d_per_atom]
            }
        };
        let row = |kind: usize| Row {
            tag: TAGS[kind],
            errors: ErrorSums {
                absolute: sums[1 + 3 * kind],
                square: sums[2 + 3 * kind],
                count: match kind {
                    2 => 3.0 * n_atoms as f64,
                    3 => 9.0 * n_structures as f64,
                    _ => n_structures as f64,
                },
            },
            loss: sums[3 + 3 * kind],
            batches: 1.0,
            has_loss: counted[kind],
            logged: true,
        };
        let mut rows: Vec<Row> = (0..KINDS).filter(|&kind| shown[kind]).map(row).collect();
        if self.regulariser.is_some() {
            let loss = sums[1 + 3 * KINDS];
            rows.push(Row { tag: "L2", loss, batches: 1.0, has_loss: true, ..Row::default() });
        }
        PinnLossValue { loss: sums[0], rows }
    }
}
