//! Learning on CPU threads: an engine, the queue in front of it, the validation set beside it.

use super::learner::{Learner, Snapshot, StepReport, Turn};
use super::setup::Setup;
use super::step::{GradientSum, Stepper};
use super::team::Team;
use super::validate::Validation;
use crate::Result;
use crate::engine::Engine;
use crate::launch::threads::Threads;
use crate::loss::EnerLoss;
use crate::optim::Adam;
use crate::report::profile::Profiler;
use crate::sample::{Pool, Purpose, Queue, QueueOptions, Sampler};
use std::sync::Arc;

/// Batches that are prepared ahead of the step.
const QUEUE_DEPTH: usize = 16;

/// Trains a Deep Potential with an [`Engine`].
pub struct CpuLearner<E: Engine> {
    stepper: Stepper<E>,
    queue: Queue<E::Prepared>,
    validation: Option<Validation<E>>,
    /// Memory of an earlier snapshot.
    spare: Vec<Vec<f64>>,
}

impl<E: Engine> CpuLearner<E> {
    pub fn new(
        team: &mut Team,
        threads: Threads,
        setup: &Setup,
        mut engine: E,
        loss: EnerLoss,
    ) -> Result<Self> {
        let training = &setup.input.training;
        engine.adapt(&setup.params);
        let adam = Adam::new(setup.input.optimizer.clone(), setup.model.trainable(), setup.params.len());
        let mut adam = adam.on(engine.pool()).in_single(engine.is_single());
        if let Some(state) = &setup.resumed {
            adam.restore_moments(&state.first_moment, &state.second_moment);
        }
        let blocks =
            training.reproducible.then(|| setup.model.table.views().iter().map(|v| v.range()).collect());
        let queue = team.agree(start_queue(team, threads, setup, &engine))?;
        let validation = setup.data.validation.clone().map(|data| {
            let cache = training.geometry_cache_bytes as usize / 8;
            Validation::new(data, training.seed, training.numb_btch, cache)
        });
        let params = setup.params.clone();
        let sum = GradientSum::in_slices(team, params.len(), training.gradient_accumulation, blocks)?;
        let stepper = Stepper::new(team, engine, loss, params, adam, sum, training.gradient_max_norm)?;
        Ok(CpuLearner { stepper, queue, validation, spare: Vec::new() })
    }
}

impl<E: Engine> Learner for CpuLearner<E> {
    fn step(&mut self, turn: &Turn, team: &mut Team, profiler: &Profiler) -> Result<StepReport> {
        self.stepper.step(turn, &mut self.queue, team, profiler)
    }

    fn validate(&mut self, team: &mut Team, display: u64, lr: f64) -> Result<Vec<f64>> {
        match &mut self.validation {
            Some(validation) => validation.errors(&mut self.stepper, team, display, lr),
            None => Ok(Vec::new()),
        }
    }

    fn snapshot(&mut self, team: &mut Team) -> Result<Snapshot> {
        let [mut params, mut first, mut second] = [0; 3].map(|_| self.spare.pop().unwrap_or_default());
        params.clear();
        params.extend_from_slice(self.stepper.params());
        self.stepper.adam.save_moments(&mut first, &mut second);
        // Each rank has kept those of its slice.
        let n = params.len();
        let slice = team.slice(n + 1);
        for moment in [&mut first, &mut second] {
            team.gather_slices(moment, slice.start.min(n)..slice.end.min(n))?;
        }
        let engine = self.stepper.engine.state();
        Ok(Snapshot { params, first_moment: first, second_moment: second, engine })
    }

    fn recycle(&mut self, spare: Vec<Vec<f64>>) {
        self.spare = spare;
    }
}

/// The pipeline in front of the model: sampler, loader threads, prepared batches.
fn start_queue<E: Engine>(
    team: &Team,
    threads: Threads,
    setup: &Setup,
    engine: &E,
) -> Result<Queue<E::Prepared>> {
    let first_draw = setup.resumed.as_ref().map_or(0, |state| state.draws);
    let pool = Arc::new(Pool::from_dataset(&setup.data.training));
    let sampler = Sampler::at(pool, setup.input.training.seed, Purpose::Training, first_draw);
    let options = QueueOptions {
        threads: threads.loaders,
        depth: QUEUE_DEPTH,
        in_bursts: threads.crowded,
        cache_bytes: setup.input.training.geometry_cache_bytes as usize,
        rank: team.rank(),
        size: team.size(),
    };
    let data = setup.data.training.clone();
    let prepare = engine.preparer();
    Queue::start(
        sampler,
        options,
        move |id| data.systems[id.system].read_frame(id.frame),
        move |frame| prepare(frame),
    )
}
