//! The dipole that atomic charges make, and their sum, which is to vanish.

use super::keys::*;
use super::totals::Totals;
use super::{Entry, Errors, Loss, PinnLabels, PinnLossValue, Regulariser, View, Want};
use crate::Result;
use crate::config::{Key, Kind, Section, Table};
use crate::engine::pinet::{PinetFrame, PinetSeeds};
use crate::model::pinet::PinetModel;
use crate::model::pinet::options::{DipoleOptions, ModelOptions, Wiring};

/// The line of the list.
pub(super) static ENTRY: Entry = Entry {
    name: "dipole_model",
    keys: TABLES,
    resolve: |section, version| resolve(section, version).map(ModelOptions::Dipole),
};

const D_SCALE: Key = Key::new("d_scale", Kind::POSITIVE).default("1.0");
const D_UNIT: Key = Key::new("d_unit", Kind::POSITIVE).default("1.0");
const MAX_DIPOLE: Key = Key::new("max_dipole", LIMIT).default("false");
const USE_D_PER_ATOM: Key = Key::new("use_d_per_atom", Kind::Bool).default("false");
const LOG_D_PER_ATOM: Key = Key::new("log_d_per_atom", Kind::Bool).default("false");
const USE_D_WEIGHT: Key = Key::new("use_d_weight", Kind::Bool).default("false");
const D_LOSS: Key = Key::new("d_loss_multiplier", Kind::NOT_NEGATIVE).default("1.0");

const TABLES: [&Table; 2] = tables! {
    newer: [
        D_SCALE,
        D_UNIT,
        MAX_DIPOLE,
        USE_D_PER_ATOM,
        LOG_D_PER_ATOM,
        USE_D_WEIGHT,
        USE_L2,
        D_LOSS,
        L2_LOSS,
    ],
    fork: [
        D_SCALE,
        D_UNIT,
        MAX_DIPOLE,
        USE_D_PER_ATOM,
        Key::new("use_d_per_sqrt", Kind::Bool).default("false"),
        LOG_D_PER_ATOM,
        USE_D_WEIGHT,
        USE_L2,
        D_LOSS,
        L2_LOSS,
    ],
};

fn resolve(section: &Section, version: Wiring) -> Result<DipoleOptions> {
    let mut options = DipoleOptions::new(version);
    options.d_scale = section.float("d_scale");
    options.d_unit = section.float("d_unit");
    options.max_dipole = limit(section, "max_dipole")?;
    options.use_d_per_atom = section.bool("use_d_per_atom");
    options.log_d_per_atom = section.bool("log_d_per_atom");
    options.use_d_weight = section.bool("use_d_weight");
    options.use_l2 = section.bool("use_l2");
    options.d_loss_multiplier = section.float("d_loss_multiplier");
    options.l2_loss_multiplier = section.float("l2_loss_multiplier");
    if version == Wiring::Fork {
        options.use_d_per_sqrt = section.bool("use_d_per_sqrt");
    }
    Ok(options)
}

impl Loss for DipoleOptions {
    fn regulariser(&self, model: &PinetModel) -> Option<Regulariser> {
        let factor = 0.5 * self.l2_loss_multiplier;
        self.use_l2.then(|| Regulariser { kernels: model.kernels(true), factor })
    }

    fn wants(&self, _: &PinetFrame, labels: &PinnLabels) -> Vec<Want> {
        vec![
            ("d_data", true, labels.dipole.is_some()),
            ("d_weight", self.use_d_weight, labels.d_weight.is_some()),
        ]
    }

    fn n_terms(&self) -> usize {
        2
    }

    fn differentiate(&self, seeds: &mut PinetSeeds, view: View, _: Option<usize>) -> PinnLossValue {
        differentiate(self, seeds, view)
    }
}

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

fn differentiate(o: &DipoleOptions, seeds: &mut PinetSeeds, view: View) -> PinnLossValue {
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
    let weights = view.labels.iter().map(|l| l.d_weight.unwrap_or(1.0)).collect();
    Totals {
        tags: ["D", "D_PER_ATOM"],
        label,
        predicted: length,
        largest: o.max_dipole,
        multiplier: o.d_loss_multiplier,
        weights: o.use_d_weight.then_some(weights),
        per_atom: o.use_d_per_atom,
        per_sqrt: o.use_d_per_sqrt,
        log_per_atom: o.log_d_per_atom,
        is_fork: o.version == Wiring::Fork,
    }
    .terms(view)
}
