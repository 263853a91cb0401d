//! The dipole that atomic charges make, and their sum, which is to vanish.

use super::{Errors, PinnLossValue, View, rounded};
use crate::engine::pinet::{PinetFrame, PinetSeeds};
use crate::model::pinet::options::{DipoleOptions, Wiring};

/// Keeps the length of a dipole of zero differentiable.
const SMOOTH: f64 = 1e-6;

/// The dipole vector and its smoothed length, sqrt(|mu|^2 + 1e-6), from charges and raw coordinates.
pub fn dipole(charges: &[f64], frame: &PinetFrame) -> ([f64; 3], f64) {
    let mut mu = [0.0; 3];
    for (q, x) in charges.iter().zip(frame.coord.chunks_exact(3)) {
        (0..3).for_each(|k| mu[k] += q * x[k]);
    }
    (mu, (mu.iter().map(|x| x * x).sum::<f64>() + SMOOTH).sqrt())
}

pub(super) fn differentiate(o: &DipoleOptions, seeds: &mut PinetSeeds, view: View) -> PinnLossValue {
    let atoms: Vec<std::ops::Range<usize>> = (view.frames.iter())
        .scan(0, |first, frame| {
            *first += frame.n_atoms();
            Some(*first - frame.n_atoms()..*first)
        })
        .collect();
    let charges = |s: usize| &view.out.atomic[atoms[s].clone()];
    let total: Vec<f64> = (0..atoms.len()).map(|s| charges(s).iter().sum()).collect();
    let (vector, length): (Vec<[f64; 3]>, Vec<f64>) =
        (0..atoms.len()).map(|s| dipole(charges(s), view.frames[s])).unzip();
    let charge_term = Errors {
        tag: "Q",
        label: vec![0.0; atoms.len()],
        predicted: total,
        weight: Box::new(|_| 1.0),
        mask: None,
        divide_by_all: true,
        counts: true,
        logged: true,
    }
    .term();
    let mut value = PinnLossValue { loss: charge_term.row.loss, rows: vec![charge_term.row.clone()] };
    for (s, range) in atoms.iter().enumerate() {
        seeds.dl_atomic[range.clone()].iter_mut().for_each(|seed| *seed += charge_term.slopes[s]);
    }
    for (term, per_atom) in dipole_terms(o, view, &length) {
        value.rows.push(term.row.clone());
        if !term.counts {
            continue;
        }
        value.loss += term.row.loss;
        for (s, range) in atoms.iter().enumerate() {
            let n = if per_atom { range.len() as f64 } else { 1.0 };
            let direction = vector[s].map(|mu| mu / length[s] * term.slopes[s] / n);
            for (seed, x) in
                seeds.dl_atomic[range.clone()].iter_mut().zip(view.frames[s].coord.chunks_exact(3))
            {
                *seed += direction[0] * x[0] + direction[1] * x[1] + direction[2] * x[2];
            }
        }
    }
    value
}

/// The dipoles, and the dipoles per atom: with each whether it is per atom. One of them counts.
fn dipole_terms(o: &DipoleOptions, view: View, length: &[f64]) -> Vec<(super::Term, bool)> {
    let label: Vec<f64> = view.labels.iter().map(|l| l.dipole.unwrap_or(f64::NAN) * o.d_scale).collect();
    let mask = o.max_dipole.map(|max| label.iter().map(|d| d.abs() <= max).collect::<Vec<bool>>());
    let atoms = |s: usize| view.frames[s].n_atoms() as f64;
    let is_fork = o.version == Wiring::Fork;
    let weight = move |s: usize| {
        let given = view.labels[s].d_weight.unwrap_or(1.0);
        match (is_fork, o.use_d_weight) {
            (false, true) => o.d_loss_multiplier * given,
            (false, false) => rounded(o.d_loss_multiplier),
            (true, true) => o.d_loss_multiplier * given * given,
            (true, false) => o.d_loss_multiplier,
        }
    };
    let errors = |tag, per_atom: bool, counts| {
        let root = move |s: usize| if is_fork && o.use_d_per_sqrt { atoms(s) } else { 1.0 };
        let divided = |x: &[f64]| -> Vec<f64> {
            x.iter().enumerate().map(|(s, x)| if per_atom { x / atoms(s) } else { *x }).collect()
        };
        Errors {
            tag,
            label: divided(&label),
            predicted: divided(length),
            weight: Box::new(move |s| if per_atom { weight(s) * root(s) } else { weight(s) }),
            mask: mask.clone(),
            divide_by_all: is_fork,
            counts,
            logged: true,
        }
        .term()
    };
    let mut terms = vec![(errors("D", false, !o.use_d_per_atom), false)];
    if o.use_d_per_atom || o.log_d_per_atom {
        terms.push((errors("D_PER_ATOM", true, o.use_d_per_atom), true));
    }
    terms
}
