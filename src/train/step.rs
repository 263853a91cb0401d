//! One training step: the recipe, for every model family and optimiser.

use super::family::{Family, Frames, Now};
use super::input::TrainingOptions;
use super::learner::{Snapshot, StepReport, Turn};
use super::sum::{GradientSum, overlap};
use super::team::Team;
use crate::checkpoint::Arrays;
use crate::comm::vectors::CommonVector;
use crate::engine::Piece;
use crate::error::ErrorKind;
use crate::loss::Cost;
use crate::loss::observation::Observed;
use crate::model::params::ParamTable;
use crate::optim::moments::copied;
use crate::optim::{Gradient, Optimizer, OptimizerChoice, Share, Target, Update};
use crate::report::profile::{Phase, Profiler};
use crate::sample::Queue;
use crate::{Result, err};
use std::ops::Range;

/// The parameters, and everything that changes them.
pub struct Stepper<F: Family> {
    family: F,
    /// One more number follows the parameters: whether some rank wants to stop.
    common: CommonVector,
    optimizer: Box<dyn Optimizer>,
    sum: GradientSum,
    options: StepperOptions,
}

/// How gradients become an update.
#[derive(Debug, Clone, Copy)]
pub struct StepperOptions {
    /// Batches of each group of ranks in a step.
    pub draws: usize,
    /// Sums of gradients have the same bits for every number of ranks.
    pub reproducible: bool,
    /// Gradients with a larger norm are scaled down to it; 0 means never.
    pub max_norm: f64,
    /// Seed of the run, and its steps: some optimisers choose at random, or change on the way.
    pub seed: u64,
    pub num_steps: u64,
}

impl StepperOptions {
    /// Those of a run of so many steps.
    pub fn of(training: &TrainingOptions, num_steps: u64) -> Self {
        StepperOptions {
            draws: training.gradient_accumulation,
            reproducible: training.reproducible,
            max_norm: training.gradient_max_norm,
            seed: training.seed,
            num_steps,
        }
    }
}

impl<F: Family> Stepper<F> {
    /// `resumed` is the state of the optimiser in a run that is continued.
    pub fn new(
        team: &mut Team,
        family: F,
        table: &ParamTable,
        mut params: Vec<f64>,
        optimizer: &OptimizerChoice,
        resumed: Option<&Arrays>,
        options: StepperOptions,
    ) -> Result<Self> {
        let (pool, single) = (family.pool(), family.is_single());
        let target = Target { table, pool, single, rank: team.rank(), size: team.size(), seed: options.seed };
        let mut optimizer = team.agree(optimizer.build(&target))?;
        let restored = resumed.map_or(Ok(()), |arrays| optimizer.restore(arrays));
        team.agree(restored.map_err(|e| match e.advice() {
            None => e.help(
                "the run was begun with another optimizer; --init-model goes on with its weights alone",
            ),
            Some(_) => e,
        }))?;
        let blocks = options.reproducible.then(|| table.views().iter().map(|v| v.range()).collect());
        let (n, draws) = (params.len(), options.draws);
        params.push(0.0);
        let (sum, common) = match optimizer.share() {
            Share::Slice => (GradientSum::in_slices(team, n, draws, blocks)?, team.common_vector(params)?),
            Share::Whole => (GradientSum::new(n, draws, blocks), CommonVector::own(params)),
        };
        Ok(Stepper { family, common, optimizer, sum, options })
    }

    /// From now on only parts of the parameters change, those that [`Stepper::take_turn`] names.
    pub fn set_parts(&mut self, parts: &[Range<usize>]) -> Result<()> {
        let Some(by_parts) = self.optimizer.by_parts() else {
            return Err(err!("optimizer.type: this optimizer cannot leave a part of the parameters alone"));
        };
        by_parts.set_parts(parts);
        Ok(())
    }

    /// Of the next step: how many updates each part has had, `None` where it gets none.
    pub fn take_turn(&mut self, done: &[Option<u64>]) {
        if let Some(by_parts) = self.optimizer.by_parts() {
            by_parts.set_turn(done);
        }
    }

    /// The network and its parameters.
    pub fn network(&mut self) -> (&mut F, &[f64]) {
        let n = self.n_params();
        (&mut self.family, &self.common[..n])
    }

    fn n_params(&self) -> usize {
        self.common.len() - 1
    }

    /// One update of the parameters from `draws` batches of every group of ranks.
    pub fn step(
        &mut self,
        turn: &Turn,
        queue: &mut Queue<F::Prepared, F::Frame>,
        team: &mut Team,
        profiler: &Profiler,
    ) -> Result<StepReport> {
        let n = self.n_params();
        if turn.reconsiders() {
            self.family.reconsider(&self.common[..n]);
        }
        let now = Now { step: turn.step, rank: team.rank(), rate: turn.rate.schedule };
        if self.optimizer.by_observations().is_some() {
            return self.step_by_observations(turn, &now, queue, team, profiler);
        }
        let mut values = Vec::with_capacity(self.options.draws);
        for draw in 0..self.options.draws {
            let batch = profiler.time(Phase::DataWait, || queue.next())?; // prepared on the queue's threads
            let span = profiler.span(Phase::Forward);
            let value = self.family.evaluate(&self.common[..n], &batch.frames, &now, team)?; // predictions, loss, its seeds
            drop(span);
            team.tell_once_in_group(check_finite(value.loss(), turn))?;
            values.push(value.into_shown());
            let span = profiler.span(Phase::Backward);
            if self.backward_and_update(&batch.frames, turn, team) {
                return Ok(StepReport { values, gradient_norm: f64::NAN, stop: turn.stop });
            }
            for k in (0..self.family.n_gradients(&batch.frames)).rev() {
                self.family.backward(self.sum.place(), &self.common[..n], &batch.frames, k, &now); // dL/dparams
                self.sum.add(draw);
            }
            drop(span);
        }
        let (gradient_norm, stop) = match self.optimizer.share() {
            Share::Slice => self.update_slice(turn, team, profiler)?, // sums over draws and ranks, the update
            Share::Whole => self.update_whole(turn, team, profiler)?,
        };
        self.family.forget_parameters();
        Ok(StepReport { values, gradient_norm, stop })
    }

    /// A step of several updates from the same batches, each by one observation, with the model evaluated again before each.
    fn step_by_observations(
        &mut self,
        turn: &Turn,
        now: &Now,
        queue: &mut Queue<F::Prepared, F::Frame>,
        team: &mut Team,
        profiler: &Profiler,
    ) -> Result<StepReport> {
        let (n, draws) = (self.n_params(), self.options.draws);
        let next = |_| profiler.time(Phase::DataWait, || queue.next());
        let batches = (0..draws).map(next).collect::<Result<Vec<_>>>()?;
        let mut report =
            StepReport { values: Vec::with_capacity(draws), gradient_norm: f64::NAN, stop: false };
        let Some(optimizer) = self.optimizer.by_observations() else { unreachable!("the caller looked") };
        for (k, observation) in optimizer.observations(turn.step, self.options.num_steps).iter().enumerate() {
            let mut seen = Vec::with_capacity(draws);
            for (draw, batch) in batches.iter().enumerate() {
                let span = profiler.span(Phase::Forward);
                let value = self.family.evaluate(&self.common[..n], &batch.frames, now, team)?;
                seen.push(self.family.observe(&batch.frames, observation));
                drop(span);
                team.tell_once_in_group(check_finite(value.loss(), turn))?;
                if k == 0 {
                    report.values.push(value.into_shown());
                }
                let span = profiler.span(Phase::Backward);
                for k in (0..self.family.n_gradients(&batch.frames)).rev() {
                    self.family.backward(self.sum.place(), &self.common[..n], &batch.frames, k, now);
                    self.sum.add(draw);
                }
                drop(span);
            }
            let span = profiler.span(Phase::Communication);
            let error = error_of_all(team, &seen)?;
            let (mean, stop) = self.sum.mean(team, turn.stop)?;
            drop(span);
            let span = profiler.span(Phase::Optimizer);
            let count = (draws * team.n_groups()) as f64;
            optimizer.assimilate(&mut self.common[..n], (mean, count), error, team.ranks())?;
            drop(span);
            self.family.forget_parameters();
            report.stop |= stop;
        }
        Ok(report)
    }

    fn told(&self, turn: &Turn) -> Update {
        let Turn { step, rate, wants_norm, .. } = *turn;
        Update { step, rate: rate.scaled, max_norm: self.options.max_norm, wants_norm }
    }

    /// The second pass and the update in one, where engine and optimiser can, and one gradient is there that nothing is done with
    /// but the update: the same numbers, but the gradient need not go to memory and back.
    fn backward_and_update(&mut self, batch: &Frames<F>, turn: &Turn, team: &Team) -> bool {
        let alone = self.options.draws == 1 && !self.options.reproducible && team.size() == 1;
        if !alone || self.options.max_norm > 0.0 || turn.wants_norm {
            return false;
        }
        let update = self.told(turn);
        let Some(optimizer) = self.optimizer.by_pieces() else { return false };
        let grad = self.sum.place();
        let (params, family) = (&mut self.common[..grad.len()], &mut self.family);
        let Some(ready) = family.backward_but_pieces(grad, params, batch) else { return false };
        let mut give = |pieces: &dyn crate::engine::Take| {
            family.hand_out(pieces);
            pieces.take(ready.start, Piece::Double(&grad[ready.clone()]));
        };
        // SAFETY: the engine gives out every piece once, and what is ready is not among them.
        unsafe { optimizer.update(params, &update, &mut give) };
        true
    }

    /// Each rank updates its slice, and all get everyone's. Returns the norm of the mean gradient, and whether someone wants to stop.
    fn update_slice(&mut self, turn: &Turn, team: &mut Team, profiler: &Profiler) -> Result<(f64, bool)> {
        profiler.time(Phase::Communication, || self.sum.give_to_owners(team, turn.stop))?;
        let (n, update) = (self.n_params(), self.told(turn));
        let (sums, count) = self.sum.sums(team);
        let slice = team.slice(n + 1);
        let span = profiler.span(Phase::Optimizer);
        if slice.contains(&n) {
            // SAFETY: the last number of the slice is no parameter, and is added up here alone.
            self.common[n] = unsafe { sums.add_up(n..n + 1) }[0];
        }
        // SAFETY: the parameters of this rank's slice, for the first time.
        let gradient = unsafe { Gradient::of_slice(sums, overlap(&slice, &(0..n)), count) };
        let norm = self.optimizer.update(&mut self.common[..n], gradient, &update, team.ranks())?;
        drop(span);
        profiler.time(Phase::Communication, || team.all_gather_slices(&mut self.common))?;
        Ok((norm, self.common[n] > 0.0))
    }

    /// Every rank updates all parameters.
    fn update_whole(&mut self, turn: &Turn, team: &mut Team, profiler: &Profiler) -> Result<(f64, bool)> {
        let (n, update) = (self.n_params(), self.told(turn));
        let (mean, stop) = profiler.time(Phase::Communication, || self.sum.mean(team, turn.stop))?;
        let span = profiler.span(Phase::Optimizer);
        let (params, gradient) = (&mut self.common[..n], Gradient::of(mean));
        let norm = self.optimizer.update(params, gradient, &update, team.ranks())?;
        drop(span);
        Ok((norm, stop))
    }

    /// What a checkpoint holds of it; `spare` is memory that may be used.
    pub fn snapshot(&mut self, spare: &mut Vec<Vec<f64>>, team: &mut Team) -> Result<Snapshot> {
        let params = copied(spare, &self.common[..self.n_params()]);
        let optimizer = self.optimizer.save(spare, team.ranks())?;
        Ok(Snapshot { params, optimizer, engine: self.family.state() })
    }
}

fn check_finite(loss: f64, turn: &Turn) -> Result<()> {
    if !loss.is_finite() {
        let step = turn.step + 1;
        return Err(err!("the loss of step {step} is {loss}: the parameters have diverged")
            .of_kind(ErrorKind::Diverged));
    }
    Ok(())
}

/// The mean error of the frames of all groups, times the root of their number. Draw k of group g was draw k * n_groups + g: always
/// the same order of addition.
pub(super) fn error_of_all(team: &mut Team, mine: &[Observed]) -> Result<f64> {
    let bytes: Vec<u8> = mine.iter().flat_map(|o| [o.error, o.frames]).flat_map(f64::to_le_bytes).collect();
    let everyones = team.gather_bytes(&bytes)?;
    let (mut error, mut frames) = (0.0, 0.0);
    for draw in 0..mine.len() {
        for theirs in everyones.iter().step_by(team.ranks_per_group()) {
            let (numbers, _) = theirs.as_chunks::<8>();
            error += f64::from_le_bytes(numbers[2 * draw]);
            frames += f64::from_le_bytes(numbers[2 * draw + 1]);
        }
    }
    Ok(error / frames.sqrt())
}
