//! The energy, force and virial loss, its displayed errors and its derivatives.

pub mod options; // the keys of the section

use super::{Entry, ErrorSums, Loss, LossChoice, LossOptions, LossValue, Term};
use crate::config::Variant;
use crate::data::Frame;
use crate::data::field::{Field, Wants};
use crate::engine::{Prediction, Seeds};
use crate::model::dp::Dp;
use crate::model::dp::options::FittingOptions;
use options::{EnerLossOptions, KEYS, LossFunction};

/// The `ener` loss on the list of losses.
pub const ENER: Entry = Entry::new(
    Variant::of("ener", KEYS, "Errors of energy, force and virial").aliases(&["ener_hess"]),
    |section| EnerLossOptions::resolve(section).map(LossChoice::new),
);

impl LossOptions for EnerLossOptions {
    fn fitting(&self) -> &'static [&'static str] {
        &["ener"]
    }

    fn want(&self, wants: &mut Wants, _fitting: &FittingOptions) {
        wants.energy = true; // the bias is fitted to energies whatever the loss wants
        wants.force = [self.force, self.atom_pref_force, self.generalized_force].iter().any(|p| p.is_used());
        wants.virial = self.virial.is_used();
        wants.atom_energy = self.atom_energy.is_used();
        wants.atom_pref = self.atom_pref_force.is_used();
        wants.atom_ener_coeff = self.enable_atom_ener_coeff;
        wants.numb_generalized_coord =
            if self.generalized_force.is_used() { self.numb_generalized_coord } else { 0 };
    }

    fn terms(&self) -> Vec<(Field, &'static str)> {
        let fields = [
            (Field::Energy, "start_pref_e"),
            (Field::Force, "start_pref_f"),
            (Field::Virial, "start_pref_v"),
            (Field::AtomEnergy, "start_pref_ae"),
            (Field::AtomPref, "start_pref_pf"),
            (Field::Drdq, "start_pref_gf"),
        ];
        fields.into_iter().zip(self.prefactors()).filter(|(_, p)| p.is_used()).map(|(term, _)| term).collect()
    }

    fn names(&self, _fitting: &FittingOptions) -> Vec<String> {
        EnerLossOptions::names(self).into_iter().map(String::from).collect()
    }

    fn root(&self) -> Option<&'static str> {
        Some("rmse")
    }

    fn build(&self, start_lr: f64, model: &Dp) -> Box<dyn Loss> {
        Box::new(EnerLoss::new(self.clone(), start_lr).without(&model.options.atom_exclude_types))
    }
}

impl Loss for EnerLoss {
    fn wants_atoms(&self) -> bool {
        self.options.atom_energy.is_used() || self.options.enable_atom_ener_coeff
    }

    fn differentiate(&self, seeds: &mut Seeds, out: &Prediction, frames: &[&Frame], lr: f64) -> LossValue {
        EnerLoss::differentiate(self, seeds, out, frames, lr)
    }
}

/// The `ener` loss of a run.
#[derive(Debug, Clone)]
pub struct EnerLoss {
    options: EnerLossOptions,
    start_lr: f64,
    /// Types whose atoms do not count.
    left_out: Vec<usize>,
}

/// One function of an error: its value and slope.
fn penalty(function: LossFunction, delta: f64, x: f64) -> (f64, f64) {
    match function {
        LossFunction::Mse => (x * x, 2.0 * x),
        LossFunction::Mae => (x.abs(), if x == 0.0 { 0.0 } else { x.signum() }),
        LossFunction::Huber(_) if x.abs() <= delta => (0.5 * x * x, x),
        LossFunction::Huber(_) => (delta * (x.abs() - 0.5 * delta), delta * x.signum()),
    }
}

/// Sums of one term over the batch: the penalty, and what is displayed.
struct Sum {
    penalty: f64,
    errors: ErrorSums,
}

impl Sum {
    /// Of so many errors.
    fn of(count: f64) -> Self {
        Sum { penalty: 0.0, errors: ErrorSums { count, ..ErrorSums::default() } }
    }
}

impl EnerLoss {
    /// `start_lr` is the learning rate at which the prefactors start.
    pub fn new(options: EnerLossOptions, start_lr: f64) -> Self {
        EnerLoss { options, start_lr, left_out: Vec::new() }
    }

    /// The same without atoms of these types, as DeePMD-kit takes those that have no energy of their own.
    pub fn without(mut self, types: &[usize]) -> Self {
        self.left_out = types.to_vec();
        self
    }

    /// Names of the displayed errors, in the order of the terms.
    pub fn names(&self) -> Vec<&'static str> {
        self.options.names()
    }

    /// The loss of a batch at a learning rate, and its derivatives by everything predicted.
    pub fn differentiate(
        &self,
        seeds: &mut Seeds,
        out: &Prediction,
        frames: &[&Frame],
        lr: f64,
    ) -> LossValue {
        seeds.reset(out);
        let ratio = lr / self.start_lr;
        let mut first = Vec::with_capacity(frames.len());
        let mut n_atoms = 0;
        for frame in frames {
            first.push(n_atoms);
            n_atoms += frame.n_atoms();
        }
        let mut value = LossValue::default();
        for (k, prefactor) in self.options.prefactors().into_iter().enumerate().filter(|(_, p)| p.is_used()) {
            let weight = prefactor.at(ratio);
            let view = View { options: &self.options, out, frames, first: &first, left_out: &self.left_out };
            let sum = match k {
                0 => view.energy(seeds, weight),
                1 => view.force(seeds, weight),
                2 => view.virial(seeds, weight),
                3 => view.atom_energy(seeds, weight),
                4 => view.atom_pref_force(seeds, weight),
                _ => view.generalized_force(seeds, weight),
            };
            let is_mae = self.options.name(k).starts_with("mae");
            let shown = match &sum {
                None => f64::NAN,
                Some(sum) => {
                    value.loss += weight * sum.penalty;
                    if is_mae { sum.errors.mae() } else { sum.errors.rmse() }
                }
            };
            value.terms.push(Term { name: self.options.name(k).into(), value: shown });
        }
        value
    }
}

/// A batch with its labels.
struct View<'a> {
    options: &'a EnerLossOptions,
    out: &'a Prediction,
    frames: &'a [&'a Frame],
    first: &'a [usize],
    left_out: &'a [usize],
}

impl<'a> View<'a> {
    /// One over the number of atoms that count, in float32 as DeePMD-kit's PyTorch backend has it: so the digits agree.
    fn per_atom(&self, frame: &Frame) -> f64 {
        f64::from(1.0 / self.real_atoms(frame).count() as f32)
    }

    /// Atoms that count.
    fn real_atoms<'f>(&self, frame: &'f Frame) -> impl Iterator<Item = usize> + use<'f, 'a> {
        let left_out = self.left_out;
        let counts = move |t: i32| usize::try_from(t).is_ok_and(|t| !left_out.contains(&t));
        (0..frame.n_atoms()).filter(move |&i| counts(frame.types[i]))
    }

    fn delta(&self, pick: impl Fn(&options::HuberDeltas) -> f64) -> f64 {
        match &self.options.function {
            LossFunction::Huber(deltas) => pick(deltas),
            _ => 0.0,
        }
    }

    /// An extensive error, divided by the number of atoms as the options say: penalty and slope.
    fn extensive(&self, error: f64, per_atom: f64, delta: f64) -> (f64, f64) {
        match self.options.function {
            LossFunction::Mse => {
                let norm = if self.options.intensive_ener_virial { per_atom * per_atom } else { per_atom };
                (error * error * norm, 2.0 * error * norm)
            }
            function => {
                let (p, slope) = penalty(function, delta, error * per_atom);
                (p, slope * per_atom)
            }
        }
    }

    /// What the energies of atoms are multiplied by before they are added up, where that is not 1.
    fn coefficients<'f>(&self, frame: &'f Frame) -> Option<&'f [f64]> {
        if self.options.enable_atom_ener_coeff { frame.labels.atom_ener_coeff.as_deref() } else { None }
    }

    fn energy(&self, seeds: &mut Seeds, weight: f64) -> Option<Sum> {
        let mut sum = Sum::of(self.frames.len() as f64);
        let delta = self.delta(|d| d.energy);
        for (f, frame) in self.frames.iter().enumerate() {
            let per_atom = self.per_atom(frame);
            let coefficients = self.coefficients(frame);
            let predicted = match coefficients {
                None => self.out.energy[f],
                Some(c) => {
                    self.real_atoms(frame).map(|i| c[i] * self.out.atom_energy[self.first[f] + i]).sum()
                }
            };
            let error = predicted - frame.labels.energy?;
            let (p, slope) = self.extensive(error, per_atom, delta);
            sum.penalty += p / sum.errors.count;
            sum.errors.square += (error * per_atom).powi(2);
            sum.errors.absolute += (error * per_atom).abs();
            let seed = weight * slope / sum.errors.count;
            match coefficients {
                None => seeds.dl_energy[f] += seed,
                Some(c) => {
                    for i in self.real_atoms(frame) {
                        seeds.dl_atom_energy[self.first[f] + i] += c[i] * seed;
                    }
                }
            }
        }
        Some(sum)
    }

    fn virial(&self, seeds: &mut Seeds, weight: f64) -> Option<Sum> {
        let mut sum = Sum::of(9.0 * self.frames.len() as f64);
        let delta = self.delta(|d| d.virial);
        for (f, frame) in self.frames.iter().enumerate() {
            let per_atom = self.per_atom(frame);
            let label = frame.labels.virial?;
            for k in 0..9 {
                let error = self.out.virial[f][k] - label[k];
                let (p, slope) = self.extensive(error, per_atom, delta);
                sum.penalty += p / sum.errors.count;
                sum.errors.square += (error * per_atom).powi(2);
                sum.errors.absolute += (error * per_atom).abs();
                seeds.dl_virial[f][k] += weight * slope / sum.errors.count;
            }
        }
        Some(sum)
    }

    fn n_real(&self) -> f64 {
        self.frames.iter().map(|frame| self.real_atoms(frame).count()).sum::<usize>() as f64
    }

    /// The force error of an atom and what it was divided by.
    fn force_error(&self, f: usize, i: usize, label: &[f64]) -> ([f64; 3], f64) {
        let label = [0, 1, 2].map(|k| label[3 * i + k]);
        let norm = match self.options.relative_f {
            Some(shift) => label.iter().map(|x| x * x).sum::<f64>().sqrt() + shift,
            None => 1.0,
        };
        let at = 3 * (self.first[f] + i);
        ([0, 1, 2].map(|k| (self.out.force[at + k] - label[k]) / norm), norm)
    }

    fn force(&self, seeds: &mut Seeds, weight: f64) -> Option<Sum> {
        let by_norm = self.options.f_use_norm;
        let mae_of_norms = by_norm && self.options.function == LossFunction::Mae;
        let n = self.n_real();
        let penalties = if by_norm { n } else { 3.0 * n };
        let mut sum = Sum::of(if mae_of_norms { n } else { 3.0 * n });
        let delta = self.delta(|d| d.force);
        for (f, frame) in self.frames.iter().enumerate() {
            let label = frame.labels.force.as_ref()?;
            for i in self.real_atoms(frame) {
                let (error, norm) = self.force_error(f, i, label);
                let length = error.iter().map(|x| x * x).sum::<f64>().sqrt();
                sum.errors.square += length * length;
                sum.errors.absolute +=
                    if mae_of_norms { length } else { error.iter().map(|x| x.abs()).sum() };
                for k in 0..3 {
                    // The slope by one component; a norm of zero has none.
                    let (p, slope) = match by_norm {
                        false => penalty(self.options.function, delta, error[k]),
                        true => {
                            let (p, slope) = penalty(self.options.function, delta, length);
                            (p / 3.0, if length == 0.0 { 0.0 } else { slope * error[k] / length })
                        }
                    };
                    sum.penalty += p / penalties;
                    seeds.dl_force[3 * (self.first[f] + i) + k] += weight * slope / (norm * penalties);
                }
            }
        }
        Some(sum)
    }

    fn atom_pref_force(&self, seeds: &mut Seeds, weight: f64) -> Option<Sum> {
        let mut sum = Sum::of(3.0 * self.n_real());
        for (f, frame) in self.frames.iter().enumerate() {
            let label = frame.labels.force.as_ref()?;
            let pref = match &frame.labels.atom_pref {
                Some(pref) => Some(pref),
                None if self.options.use_default_pf => None,
                None => return None,
            };
            for i in self.real_atoms(frame) {
                let (error, norm) = self.force_error(f, i, label);
                for k in 0..3 {
                    let pref = pref.map_or(1.0, |pref| pref[3 * i + k]);
                    let (p, slope) = penalty(self.options.function, 0.0, error[k]);
                    sum.penalty += pref * p / sum.errors.count;
                    sum.errors.square += pref * error[k] * error[k];
                    sum.errors.absolute += pref * error[k].abs();
                    seeds.dl_force[3 * (self.first[f] + i) + k] +=
                        weight * pref * slope / (norm * sum.errors.count);
                }
            }
        }
        Some(sum)
    }

    fn generalized_force(&self, seeds: &mut Seeds, weight: f64) -> Option<Sum> {
        let n = self.options.numb_generalized_coord;
        let labels: Option<Vec<_>> = self
            .frames
            .iter()
            .map(|frame| Some((frame.labels.force.as_deref()?, frame.labels.drdq.as_deref()?)))
            .collect();
        let mut sum = Sum::of((n * self.frames.len()) as f64);
        for (f, (force, drdq)) in labels?.into_iter().enumerate() {
            let components = || self.real_atoms(self.frames[f]).flat_map(|i| 3 * i..3 * i + 3);
            let first = 3 * self.first[f];
            for q in 0..n {
                let error: f64 =
                    components().map(|k| drdq[k * n + q] * (self.out.force[first + k] - force[k])).sum();
                sum.penalty += error * error / sum.errors.count;
                sum.errors.square += error * error;
                sum.errors.absolute += error.abs();
                let seed = weight * 2.0 * error / sum.errors.count;
                components().for_each(|k| seeds.dl_force[first + k] += seed * drdq[k * n + q]);
            }
        }
        Some(sum)
    }

    fn atom_energy(&self, seeds: &mut Seeds, weight: f64) -> Option<Sum> {
        let mut sum = Sum::of(self.n_real());
        let delta = self.delta(|d| d.energy);
        for (f, frame) in self.frames.iter().enumerate() {
            let label = frame.labels.atom_energy.as_ref()?;
            for i in self.real_atoms(frame) {
                let error = self.out.atom_energy[self.first[f] + i] - label[i];
                let (p, slope) = penalty(self.options.function, delta, error);
                sum.penalty += p / sum.errors.count;
                sum.errors.square += error * error;
                sum.errors.absolute += error.abs();
                seeds.dl_atom_energy[self.first[f] + i] += weight * slope / sum.errors.count;
            }
        }
        Some(sum)
    }
}

#[cfg(test)]
mod tests;
