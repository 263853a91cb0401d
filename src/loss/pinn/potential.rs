//! Energies, forces and stress.

use super::keys::*;
use super::totals::Totals;
use super::{Entry, Errors, Loss, PinnLabels, PinnLossValue, Regulariser, Term, View, Want, rounded};
use crate::config::check::found;
use crate::config::{Key, Kind, Section, Table};
use crate::engine::pinet::{PinetFrame, PinetSeeds};
use crate::model::pinet::PinetModel;
use crate::model::pinet::options::{ModelOptions, PotentialOptions, Wiring};
use crate::{Error, Result, bail, err};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::Value;
use std::collections::BTreeMap;

/// The line of the list.
pub(super) static ENTRY: Entry = Entry {
    name: "potential_model",
    keys: TABLES,
    resolve: |section, version| resolve(section, version).map(ModelOptions::Potential),
};

const E_DRESS: Key = Key::new("e_dress", Kind::Any).default("{}").doc("Energy of an atom by atomic number.");
const E_SCALE: Key = Key::new("e_scale", Kind::POSITIVE).default("1.0");
const E_UNIT: Key = Key::new("e_unit", Kind::POSITIVE).default("1.0");
const MAX_ENERGY: Key = Key::new("max_energy", LIMIT).default("false");
const USE_E_PER_ATOM: Key = Key::new("use_e_per_atom", Kind::Bool).default("false");
const LOG_E_PER_ATOM: Key = Key::new("log_e_per_atom", Kind::Bool).default("false");
const USE_E_WEIGHT: Key = Key::new("use_e_weight", Kind::Bool).default("false");
const USE_FORCE: Key = Key::new("use_force", Kind::Bool).default("false");
const USE_F_WEIGHTS: Key = Key::new("use_f_weights", Kind::Bool).default("false");
const E_LOSS: Key = Key::new("e_loss_multiplier", Kind::NOT_NEGATIVE).default("1.0");
const F_LOSS: Key = Key::new("f_loss_multiplier", Kind::NOT_NEGATIVE).default("1.0");

const TABLES: [&Table; 2] = tables! {
    newer: [
        E_DRESS,
        E_SCALE,
        E_UNIT,
        MAX_ENERGY,
        USE_E_PER_ATOM,
        LOG_E_PER_ATOM,
        USE_E_WEIGHT,
        USE_FORCE,
        Key::new("max_force_comp", LIMIT).default("false"),
        Key::new("no_force_comp", Kind::OneOf(&[Kind::Bool, Kind::Int(1, i64::MAX as i128)])).default("false"),
        USE_F_WEIGHTS,
        Key::new("use_stress", Kind::Bool).default("false"),
        USE_L2,
        E_LOSS,
        F_LOSS,
        Key::new("s_loss_multiplier", Kind::NOT_NEGATIVE).default("1.0"),
        L2_LOSS,
        Key::new("separate_errors", Kind::Bool).default("false"),
    ],
    fork: [
        E_DRESS,
        E_SCALE,
        E_UNIT,
        MAX_ENERGY,
        USE_E_PER_ATOM,
        Key::new("use_e_per_sqrt", Kind::Bool).default("false"),
        LOG_E_PER_ATOM,
        USE_E_WEIGHT,
        USE_FORCE,
        Key::new("max_force", LIMIT).default("false"),
        USE_F_WEIGHTS,
        USE_L2,
        E_LOSS,
        F_LOSS,
        L2_LOSS,
    ],
};

fn resolve(section: &Section, version: Wiring) -> Result<PotentialOptions> {
    let mut options = PotentialOptions::new(version);
    options.e_dress = e_dress(section)?;
    options.e_scale = section.float("e_scale");
    options.e_unit = section.float("e_unit");
    options.max_energy = limit(section, "max_energy")?;
    options.use_e_per_atom = section.bool("use_e_per_atom");
    options.log_e_per_atom = section.bool("log_e_per_atom");
    options.use_e_weight = section.bool("use_e_weight");
    options.use_force = section.bool("use_force");
    options.use_f_weights = section.bool("use_f_weights");
    options.use_l2 = section.bool("use_l2");
    options.e_loss_multiplier = section.float("e_loss_multiplier");
    options.f_loss_multiplier = section.float("f_loss_multiplier");
    options.l2_loss_multiplier = section.float("l2_loss_multiplier");
    match version {
        Wiring::Fork => {
            options.use_e_per_sqrt = section.bool("use_e_per_sqrt");
            options.max_force = limit(section, "max_force")?;
        }
        Wiring::Master => {
            options.max_force = limit(section, "max_force_comp")?;
            options.no_force_comp = limit(section, "no_force_comp")?.map(|n| n as usize);
            options.use_stress = section.bool("use_stress");
            options.s_loss_multiplier = section.float("s_loss_multiplier");
            options.separate_errors = section.bool("separate_errors");
        }
    }
    Ok(options)
}

/// Energies of atoms by atomic number.
fn e_dress(section: &Section) -> Result<BTreeMap<i32, f64>> {
    let error = |e: Error| section.error("e_dress", e);
    let mut dress = BTreeMap::new();
    match section.get("e_dress") {
        None => {}
        Some(Value::Object(map)) => {
            for (key, value) in map {
                let z = key.parse::<i32>().ok().filter(|z| (1..=118).contains(z));
                let z = z.ok_or_else(|| error(err!("found \"{key}\", wanted atomic numbers")))?;
                let energy = value.as_f64();
                let energy =
                    energy.ok_or_else(|| error(err!("{key}: found {}, wanted a number", found(value))))?;
                dress.insert(z, energy);
            }
        }
        Some(other) => {
            bail!("{}: found {}, wanted energies by atomic number", section.path_of("e_dress"), found(other))
        }
    }
    Ok(dress)
}

impl Loss for PotentialOptions {
    fn regulariser(&self, model: &PinetModel) -> Option<Regulariser> {
        if !self.use_l2 {
            return None;
        }
        Some(match self.version {
            Wiring::Master => {
                // The mean over all kernel elements.
                let kernels = model.kernels(true);
                let n: usize = kernels.iter().map(|range| range.len()).sum();
                Regulariser { kernels, factor: rounded(self.l2_loss_multiplier) / n as f64 }
            }
            Wiring::Fork => {
                Regulariser { kernels: model.kernels(false), factor: 0.5 * self.l2_loss_multiplier }
            }
        })
    }

    fn wants_forces(&self) -> bool {
        self.use_force || self.use_stress
    }

    fn wants(&self, frame: &PinetFrame, labels: &PinnLabels) -> Vec<Want> {
        vec![
            ("e_data", true, labels.energy.is_some()),
            ("e_weight", self.use_e_weight, labels.e_weight.is_some()),
            ("f_data", self.use_force, labels.force.is_some()),
            ("f_weights", self.use_force && self.use_f_weights, labels.f_weights.is_some()),
            ("s_data", self.use_stress, labels.stress.is_some()),
            ("cell", self.use_stress, frame.volume.is_some()),
        ]
    }

    fn n_terms(&self) -> usize {
        1 + usize::from(self.use_force) + usize::from(self.use_stress)
    }

    fn separates_errors(&self) -> bool {
        self.separate_errors
    }

    fn differentiate(&self, seeds: &mut PinetSeeds, view: View, kept: Option<usize>) -> PinnLossValue {
        differentiate(self, seeds, view, kept)
    }
}

/// The energy of the dress of a structure, in the unit of the data.
pub fn dress(o: &PotentialOptions, frame: &PinetFrame) -> f64 {
    frame.elems.iter().filter_map(|z| o.e_dress.get(z)).map(|&e| rounded(e)).sum()
}

/// `kept`: the only term that counts, where there is one.
fn differentiate(
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
    let weights = view.labels.iter().map(|l| l.e_weight.unwrap_or(1.0)).collect();
    Totals {
        tags: ["E", "E_PER_ATOM"],
        label,
        predicted: &view.out.energy,
        largest: o.max_energy,
        multiplier: o.e_loss_multiplier,
        weights: o.use_e_weight.then_some(weights),
        per_atom: o.use_e_per_atom,
        per_sqrt: o.use_e_per_sqrt,
        log_per_atom: o.log_e_per_atom,
        is_fork: o.version == Wiring::Fork,
    }
    .terms(view)
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
