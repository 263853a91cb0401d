//! The losses of PiNN's potential and dipole models, their metrics and derivatives. A loss of `pinn train` is one file here and one
//! line of [`LOSSES`]: the name of its model and its keys in params.yml, its value and derivatives.
//!
//! Both styles are here: PiNN's own (`Wiring::Master`), where a weight multiplies a squared error, and its
//! data-parallel fork's (`Wiring::Fork`), where it multiplies the error itself.

mod keys;
mod totals; // energies and dipoles, and the same per atom
pub mod potential;
pub mod dipole;
pub mod metrics;
pub mod elements;
#[cfg(test)]
pub(crate) mod tests;

use crate::config::{Section, Table};
use crate::engine::pinet::{PinetFrame, PinetPrediction, PinetSeeds};
use crate::model::pinet::PinetModel;
use crate::model::pinet::options::{ModelOptions, Wiring};
use crate::{Result, err};
pub use metrics::{PinnMetrics, Row};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::ops::Range;

/// Every model that `model` of params.yml may name.
pub static LOSSES: &[&Entry] = &[&potential::ENTRY, &dipole::ENTRY];

/// What is known of a model without its options.
pub struct Entry {
    /// Its name in params.yml.
    pub name: &'static str,
    /// Its keys, in the objects that lead to them: of the newer style, and of the fork's.
    pub keys: [&'static Table; 2],
    /// Its options from the checked section with its keys.
    pub resolve: fn(&Section, Wiring) -> Result<ModelOptions>,
}

/// What the losses differ in.
trait Loss {
    /// What is added for large parameters.
    fn regulariser(&self, model: &PinetModel) -> Option<Regulariser>;

    /// Whether the engine has to give forces and stress.
    fn wants_forces(&self) -> bool {
        false
    }

    /// What a structure needs.
    fn wants(&self, frame: &PinetFrame, labels: &PinnLabels) -> Vec<Want>;

    /// Terms that contribute to the loss, without the regulariser.
    fn n_terms(&self) -> usize;

    /// Whether each step is about one term alone.
    fn separates_errors(&self) -> bool {
        false
    }

    /// The loss of a batch, and its derivatives in `seeds`. `kept`: the only term that counts, where there is one.
    fn differentiate(&self, seeds: &mut PinetSeeds, view: View, kept: Option<usize>) -> PinnLossValue;
}

/// A label or another thing that a loss may need: its name, whether it is wanted, and whether it is there.
type Want = (&'static str, bool, bool);

/// The labels of a structure, in the units of the data.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PinnLabels {
    pub energy: Option<f64>,
    /// `[n_atoms, 3]`
    pub force: Option<Vec<f64>>,
    /// Row-major; dE/dstrain over the volume.
    pub stress: Option<[f64; 9]>,
    /// The length of the dipole.
    pub dipole: Option<f64>,
    pub e_weight: Option<f64>,
    /// `[n_atoms, 3]`
    pub f_weights: Option<Vec<f64>>,
    pub d_weight: Option<f64>,
}

/// What a batch cost: the loss, and one row for each kind of error.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PinnLossValue {
    pub loss: f64,
    pub rows: Vec<Row>,
}

/// The loss of a run.
#[derive(Debug, Clone)]
pub struct PinnLoss {
    options: ModelOptions,
    regulariser: Option<Regulariser>,
    seed: u64,
}

/// `factor` times the sum of squared kernels.
#[derive(Debug, Clone)]
struct Regulariser {
    kernels: Vec<Range<usize>>,
    factor: f64,
}

/// A batch and what was predicted of it.
#[derive(Clone, Copy)]
struct View<'a> {
    out: &'a PinetPrediction,
    frames: &'a [&'a PinetFrame],
    labels: &'a [&'a PinnLabels],
    /// What random choices depend on.
    key: [u64; 2],
}

/// One term of the loss before it is differentiated.
#[derive(Debug, Clone, Default)]
struct Term {
    row: Row,
    /// d(term)/d(prediction), element by element.
    slopes: Vec<f64>,
    /// False for errors that are only logged.
    counts: bool,
}

/// PiNN passes single numbers through float32, also where it computes in float64.
fn rounded(x: f64) -> f64 {
    f64::from(x as f32)
}

impl PinnLoss {
    /// `seed` decides what `no_force_comp` and `separate_errors` draw.
    pub fn new(options: ModelOptions, model: &PinetModel, seed: u64) -> Self {
        let regulariser = loss_of(&options).regulariser(model);
        PinnLoss { options, regulariser, seed }
    }

    pub fn options(&self) -> &ModelOptions {
        &self.options
    }

    /// Whether the engine has to give forces and stress.
    pub fn wants_forces(&self) -> bool {
        loss_of(&self.options).wants_forces()
    }

    /// Refuses a structure without a label that the loss needs.
    pub fn require(&self, frame: &PinetFrame, labels: &PinnLabels) -> Result<()> {
        let wants = loss_of(&self.options).wants(frame, labels);
        if let Some((name, ..)) = wants.iter().find(|(_, wanted, there)| *wanted && !there) {
            return Err(err!("a structure of {} atoms has no {name}, which the loss needs", frame.n_atoms())
                .help("add it to the data, or leave out the option of the model that asks for it"));
        }
        for (name, list) in [("f_data", &labels.force), ("f_weights", &labels.f_weights)] {
            if let Some(list) = list.as_ref().filter(|list| list.len() != 3 * frame.n_atoms()) {
                return Err(err!("{name} has {} numbers for {} atoms", list.len(), frame.n_atoms()));
            }
        }
        Ok(())
    }

    /// The loss of a batch and its derivatives by everything predicted.
    ///
    /// Labels must have passed [`PinnLoss::require`]. `step` decides which term `separate_errors` keeps, the same on
    /// all ranks; `step` and `rank` decide which force components `no_force_comp` keeps.
    #[allow(clippy::too_many_arguments)]
    pub fn differentiate(
        &self,
        seeds: &mut PinetSeeds,
        out: &PinetPrediction,
        frames: &[&PinetFrame],
        labels: &[&PinnLabels],
        params: &[f64],
        step: u64,
        rank: u64,
    ) -> PinnLossValue {
        assert!(
            frames.len() == labels.len() && frames.len() == out.energy.len(),
            "one label for each structure"
        );
        seeds.reset(out);
        let view = View { out, frames, labels, key: self.key(step, rank) };
        let kept = self.kept(step);
        let mut value = loss_of(&self.options).differentiate(seeds, view, kept);
        if let Some(l2) = &self.regulariser {
            let loss = l2.value(params);
            value.loss += loss;
            value.rows.push(Row { tag: "L2", loss, batches: 1.0, has_loss: true, ..Row::default() });
        }
        value
    }

    /// What random choices of a step depend on.
    fn key(&self, step: u64, rank: u64) -> [u64; 2] {
        [self.seed, (step << 20) ^ rank]
    }

    /// Adds the derivative of the regulariser to a gradient; `step` as in [`PinnLoss::differentiate`].
    pub fn regularise_add(&self, grad: &mut [f64], params: &[f64], step: u64) {
        let Some(l2) = &self.regulariser else { return };
        if self.kept(step).is_some_and(|kept| kept + 1 != self.n_terms()) {
            return;
        }
        for range in &l2.kernels {
            for k in range.clone() {
                grad[k] += 2.0 * l2.factor * params[k];
            }
        }
    }

    /// Terms that contribute to the loss.
    fn n_terms(&self) -> usize {
        loss_of(&self.options).n_terms() + usize::from(self.regulariser.is_some())
    }

    /// The one term that this step is about, where `separate_errors` says so.
    fn kept(&self, step: u64) -> Option<usize> {
        if !loss_of(&self.options).separates_errors() {
            return None;
        }
        let mut rng = ChaCha8Rng::seed_from_u64(self.seed);
        rng.set_stream(1 + 2 * step);
        Some(((u128::from(rng.next_u64()) * self.n_terms() as u128) >> 64) as usize)
    }
}

/// The loss of a model.
fn loss_of(options: &ModelOptions) -> &dyn Loss {
    match options {
        ModelOptions::Potential(own) => own,
        ModelOptions::Dipole(own) => own,
    }
}

impl Regulariser {
    fn value(&self, params: &[f64]) -> f64 {
        let squares = |range: &Range<usize>| params[range.clone()].iter().map(|x| x * x).sum::<f64>();
        self.factor * self.kernels.iter().map(squares).sum::<f64>()
    }
}

/// The numbers of one kind of error: `label` and `predicted` element by element.
struct Errors<'a> {
    tag: &'static str,
    label: Vec<f64>,
    predicted: Vec<f64>,
    /// Weight of each squared error.
    weight: Box<dyn Fn(usize) -> f64 + 'a>,
    /// Which elements count in the mean; `None`: all.
    mask: Option<Vec<bool>>,
    /// Whether masked elements still count in the number that the sum is divided by.
    divide_by_all: bool,
    /// Whether it is part of the loss, and whether the errors are logged.
    counts: bool,
    logged: bool,
}

impl Errors<'_> {
    /// mean(weight (label - predicted)^2) and its slopes; errors are logged without mask and weight.
    fn term(self) -> Term {
        let n = self.label.len();
        let used = |k: usize| self.mask.as_ref().is_none_or(|mask| mask[k]);
        let n_used = if self.divide_by_all { n } else { (0..n).filter(|&k| used(k)).count() };
        let divisor = (n_used as f64).max(1.0);
        let mut term = Term { counts: self.counts, slopes: vec![0.0; n], ..Term::default() };
        term.row =
            Row { tag: self.tag, logged: self.logged, has_loss: self.counts, batches: 1.0, ..Row::default() };
        for k in 0..n {
            let error = self.predicted[k] - self.label[k];
            term.row.errors.absolute += error.abs();
            term.row.errors.square += error * error;
            term.row.errors.count += 1.0;
            if self.counts && used(k) {
                let weight = (self.weight)(k);
                term.row.loss += weight * error * error / divisor;
                term.slopes[k] = 2.0 * weight * error / divisor;
            }
        }
        term
    }
}
