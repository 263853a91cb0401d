//! Energies, forces and stress.

use super::{Errors, PinnLossValue, Term, View, rounded};
use crate::engine::pinet::{PinetFrame, PinetSeeds};
use crate::model::pinet::options::{PotentialOptions, Wiring};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// The energy of the dress of a structure, in the unit of the data.
pub fn dress(o: &PotentialOptions, frame: &PinetFrame) -> f64 {
    frame.elems.iter().filter_map(|z| o.e_dress.get(z)).map(|&e| rounded(e)).sum()
}

/// `kept`: the only term that counts, where there is one.
pub(super) fn differentiate(
    o: &PotentialOptions,
    seeds: &mut PinetSeeds,
    view: View,
    kept: Option<usize>,
) -> PinnLossValue {
    let mut value = PinnLossValue::default();
    let mut n_counted = 0;
    // Takes a term into the loss; false where only another one counts now.
    let mut take = |term: &Term| {
        value.rows.push(term.row.clone());
        if !term.counts {
            return false;
        }
        value.loss += term.row.loss;
        n_counted += 1;
        kept.is_none_or(|kept| kept + 1 == n_counted)
    };
    for (term, per_atom) in energy_terms(o, view) {
        if take(&term) {
            for (s, slope) in term.slopes.iter().enumerate() {
                let n = if per_atom { view.frames[s].n_atoms() as f64 } else { 1.0 };
                seeds.dl_energy[s] += slope / n;
            }
        }
    }
    if o.use_force {
        let term = force_term(o, view);
        if take(&term) {
            seeds.dl_force.iter_mut().zip(&term.slopes).for_each(|(seed, slope)| *seed += slope);
        }
    }
    if o.use_stress {
        let term = stress_term(o, view);
        if take(&term) {
            for (k, slope) in term.slopes.iter().enumerate() {
                seeds.dl_stress[k / 9][k % 9] += slope / volume(view.frames[k / 9]);
            }
        }
    }
    value
}

/// The total energies, and the energies per atom: with each whether it is per atom. One of them counts.
fn energy_terms(o: &PotentialOptions, view: View) -> Vec<(Term, bool)> {
    let label: Vec<f64> = (view.frames.iter().zip(view.labels))
        .map(|(frame, labels)| (labels.energy.unwrap_or(f64::NAN) - dress(o, frame)) * o.e_scale)
        .collect();
    let mask = o.max_energy.map(|max| label.iter().map(|e| e.abs() <= max).collect::<Vec<bool>>());
    let atoms = |s: usize| view.frames[s].n_atoms() as f64;
    let is_fork = o.version == Wiring::Fork;
    let weight = move |s: usize| {
        let given = view.labels[s].e_weight.unwrap_or(1.0);
        match (is_fork, o.use_e_weight) {
            (false, true) => o.e_loss_multiplier * given,
            (false, false) => rounded(o.e_loss_multiplier),
            (true, true) => o.e_loss_multiplier * given * given,
            (true, false) => o.e_loss_multiplier,
        }
    };
    let errors = |tag, per_atom: bool, counts, logged| {
        // The fork's errors per root of the number of atoms are errors per atom with another weight.
        let root = move |s: usize| if is_fork && o.use_e_per_sqrt { atoms(s) } else { 1.0 };
        let divided = |x: &[f64]| -> Vec<f64> {
            x.iter().enumerate().map(|(s, x)| if per_atom { x / atoms(s) } else { *x }).collect()
        };
        Errors {
            tag,
            label: divided(&label),
            predicted: divided(&view.out.energy),
            weight: Box::new(move |s| if per_atom { weight(s) * root(s) } else { weight(s) }),
            mask: mask.clone(),
            divide_by_all: is_fork,
            counts,
            logged,
        }
        .term()
    };
    let mut terms = vec![(errors("E", false, !o.use_e_per_atom, true), false)];
    if o.use_e_per_atom || o.log_e_per_atom {
        terms.push((errors("E_PER_ATOM", true, o.use_e_per_atom, true), true));
    }
    terms
}

fn force_term(o: &PotentialOptions, view: View) -> Term {
    let label: Vec<f64> = (view.labels.iter())
        .flat_map(|labels| labels.force.iter().flatten())
        .map(|f| f * o.e_scale)
        .collect();
    assert_eq!(label.len(), view.out.force.len(), "a label for every force component");
    let mask = chosen_forces(o, label.iter().copied(), view.key);
    let weights: Vec<f64> = match o.use_f_weights {
        true => view.labels.iter().flat_map(|labels| labels.f_weights.iter().flatten().copied()).collect(),
        false => vec![],
    };
    let is_fork = o.version == Wiring::Fork;
    let weight = move |k: usize| match (is_fork, weights.get(k)) {
        (false, Some(w)) => o.f_loss_multiplier * w,
        (false, None) => rounded(o.f_loss_multiplier),
        (true, w) => o.f_loss_multiplier * w.map_or(1.0, |w| w * w),
    };
    let predicted = view.out.force.clone();
    let (weight, divide_by_all) = (Box::new(weight), is_fork);
    Errors { tag: "F", label, predicted, weight, mask, divide_by_all, counts: true, logged: true }.term()
}

/// Which force components count: those within `max_force`, and of these a random subset where one is asked for.
/// `None`: all.
///
/// - label  in training space
pub(super) fn chosen_forces(
    o: &PotentialOptions,
    label: impl ExactSizeIterator<Item = f64>,
    key: [u64; 2],
) -> Option<Vec<bool>> {
    let n = label.len();
    let mask = o.max_force.map(|max| label.map(|f| f.abs() <= max).collect::<Vec<bool>>());
    // The fork knows no such option.
    match o.no_force_comp.filter(|_| o.version == Wiring::Master) {
        None => mask,
        Some(most) => Some(some_of(mask.unwrap_or_else(|| vec![true; n]), most, key)),
    }
}

/// Keeps at most `most` of the elements that a mask has, by chance.
fn some_of(mask: Vec<bool>, most: usize, key: [u64; 2]) -> Vec<bool> {
    let mut left: Vec<usize> = (0..mask.len()).filter(|&k| mask[k]).collect();
    let mut rng = ChaCha8Rng::seed_from_u64(key[0]);
    rng.set_stream(key[1] << 1);
    let mut chosen = vec![false; mask.len()];
    for n in 0..most.min(left.len()) {
        let k = n + ((u128::from(rng.next_u64()) * (left.len() - n) as u128) >> 64) as usize;
        left.swap(n, k);
        chosen[left[n]] = true;
    }
    chosen
}

fn stress_term(o: &PotentialOptions, view: View) -> Term {
    let label =
        view.labels.iter().flat_map(|l| l.stress.unwrap_or([f64::NAN; 9]).map(|s| s * o.e_scale)).collect();
    let predicted = (view.frames.iter().zip(&view.out.stress))
        .flat_map(|(frame, stress)| stress.map(|s| s / volume(frame)))
        .collect();
    let weight = rounded(o.s_loss_multiplier);
    let (mask, divide_by_all) = (None, true);
    let weight = Box::new(move |_| weight);
    Errors { tag: "S", label, predicted, weight, mask, divide_by_all, counts: true, logged: true }.term()
}

fn volume(frame: &PinetFrame) -> f64 {
    frame.volume.unwrap_or(f64::NAN)
}
