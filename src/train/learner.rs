//! What the loop asks of whatever learns: a model family on a kind of device.

use super::full_validation::ErrorTable;
use super::team::Team;
use crate::Result;
use crate::checkpoint::{Arrays, into_numbers};
use crate::loss::LossValue;
use crate::report::profile::Profiler;
use serde_json::Value;

/// Holds the parameters and everything that changes them.
///
/// All ranks call the same functions in the same order; each may hold collectives.
pub trait Learner {
    /// One update of the parameters from the batches of every rank.
    fn step(&mut self, turn: &Turn, team: &mut Team, profiler: &Profiler) -> Result<StepReport>;

    /// Mean errors on the validation set at the `display`-th display: the loss's root, then its terms. Empty where
    /// there is no validation set.
    fn validate(&mut self, team: &mut Team, display: u64, lr: f64) -> Result<Vec<f64>>;

    /// The training errors of a display, given those of its step: a learner of several branches adds those of the others.
    fn training_errors(
        &mut self,
        _team: &mut Team,
        _display: u64,
        _lr: f64,
        own: Vec<f64>,
    ) -> Result<Vec<f64>> {
        Ok(own)
    }

    /// Errors over the whole validation set, of the parameters or of their running mean. Only asked where the learner was made for it.
    fn validate_all(&mut self, _team: &mut Team, _average: bool) -> Result<ErrorTable> {
        unreachable!("this learner is not made for inputs that want it")
    }

    /// What a checkpoint holds of it. Waits for all steps so far.
    fn snapshot(&mut self, team: &mut Team) -> Result<Snapshot>;

    /// Takes back the memory of an earlier snapshot: filling new memory takes longer than the copy itself.
    fn recycle(&mut self, _spare: Vec<Vec<f64>>) {}
}

/// Steps after which a learner looks whether its engine could do with less. Embedding nets become steeper while the learning
/// rate is high, and may become smoother again.
pub const RECONSIDER_EVERY: u64 = 20_000;

/// One turn of the loop.
#[derive(Debug, Clone, Copy)]
pub struct Turn {
    /// Steps done before this one.
    pub step: u64,
    pub rate: StepRate,
    /// The values of the loss will be looked at; where not, they may be left out of the report.
    pub wants_values: bool,
    /// The norm of the gradient will be looked at on some rank; the same on all.
    pub wants_norm: bool,
    /// This rank was asked to stop.
    pub stop: bool,
}

impl Turn {
    /// Whether it is time to look for what could be cheaper.
    pub fn reconsiders(&self) -> bool {
        self.step > 0 && self.step.is_multiple_of(RECONSIDER_EVERY)
    }
}

/// The learning rates of a step.
#[derive(Debug, Clone, Copy)]
pub struct StepRate {
    /// As the schedule says: the prefactors of the loss follow it.
    pub schedule: f64,
    /// Scaled by the number of ranks: the optimiser uses it.
    pub scaled: f64,
}

/// What a step tells.
#[derive(Debug, Clone)]
pub struct StepReport {
    /// The loss of each draw of this rank; may be empty where nobody wanted to know.
    pub values: Vec<LossValue>,
    /// Norm of the mean gradient, before it was scaled down; NaN where nobody wanted to know.
    pub gradient_norm: f64,
    /// Some rank was asked to stop after this step.
    pub stop: bool,
}

/// A learner's state on the host.
#[derive(Debug, Clone)]
pub struct Snapshot {
    pub params: Vec<f64>,
    /// The optimiser's state.
    pub optimizer: Arrays,
    /// What else a restart needs to give the same bits.
    pub engine: Value,
}

impl Snapshot {
    /// Its memory, for the next one.
    pub fn into_spare(self) -> Vec<Vec<f64>> {
        let mut spare = into_numbers(self.optimizer);
        spare.push(self.params);
        spare
    }
}
