//! Learning on CPU threads, for every model family: the recipe, the queue in front of it, the validation set beside it.

use super::average::Average;
use super::family::{Family, Validation};
use super::full_validation::ErrorTable;
use super::learner::{Learner, Snapshot, StepReport, Turn};
use super::step::Stepper;
use super::team::Team;
use crate::Result;
use crate::report::profile::Profiler;
use crate::sample::Queue;

/// Batches that are prepared ahead of the step.
pub const QUEUE_DEPTH: usize = 16;

/// Trains what a family brings.
pub struct CpuLearner<F: Family> {
    stepper: Stepper<F>,
    queue: Queue<F::Prepared, F::Frame>,
    validation: Option<Box<dyn Validation<F>>>,
    average: Option<Average>,
    /// Memory of an earlier snapshot.
    spare: Vec<Vec<f64>>,
}

impl<F: Family> CpuLearner<F> {
    pub fn new(
        stepper: Stepper<F>,
        queue: Queue<F::Prepared, F::Frame>,
        validation: Option<Box<dyn Validation<F>>>,
    ) -> Self {
        CpuLearner { stepper, queue, validation, average: None, spare: Vec::new() }
    }

    /// The same with a running mean of the parameters.
    pub fn with_average(mut self, average: Option<Average>) -> Self {
        self.average = average;
        self
    }
}

impl<F: Family> Learner for CpuLearner<F> {
    fn step(&mut self, turn: &Turn, team: &mut Team, profiler: &Profiler) -> Result<StepReport> {
        let report = self.stepper.step(turn, &mut self.queue, team, profiler)?;
        if let Some(average) = &mut self.average {
            average.follow(self.stepper.network().1);
        }
        Ok(report)
    }

    fn validate(&mut self, team: &mut Team, display: u64, lr: f64) -> Result<Vec<f64>> {
        let Some(validation) = &mut self.validation else { return Ok(Vec::new()) };
        let (family, params) = self.stepper.network();
        validation.errors(family, params, team, display, lr)
    }

    fn validate_all(&mut self, team: &mut Team, average: bool) -> Result<ErrorTable> {
        let Some(validation) = &mut self.validation else { unreachable!("the input has validation data") };
        let (family, params) = self.stepper.network();
        let Some(mean) = self.average.as_ref().filter(|_| average) else {
            return validation.all_errors(family, params, team);
        };
        // The engine may hold a copy of the parameters.
        family.forget_parameters();
        let errors = validation.all_errors(family, mean.params(), team);
        family.forget_parameters();
        errors
    }

    fn snapshot(&mut self, team: &mut Team) -> Result<Snapshot> {
        let mut snapshot = self.stepper.snapshot(&mut self.spare, team)?;
        snapshot.optimizer.extend(self.average.as_ref().map(|average| average.save(&mut self.spare)));
        Ok(snapshot)
    }

    fn recycle(&mut self, spare: Vec<Vec<f64>>) {
        self.spare = spare;
    }
}
