//! Learning of several branches: in each step one of them, which is drawn.

use super::family::{Branches, Done};
use super::setup::MultiSetup;
use crate::Result;
use crate::engine::Engine;
use crate::engine::cpu::real::Real;
use crate::engine::cpu::{CpuEngine, EmbeddingMode};
use crate::launch::threads::Threads;
use crate::neighbor::Cut;
use crate::report::profile::Profiler;
use crate::sample::{BranchDraw, Purpose, Queue};
use crate::train::average::Average;
use crate::train::blocks::OwnBlocks;
use crate::train::deep_potential::{DeepPotential, start_queue};
use crate::train::family::Validation;
use crate::train::learner::{Learner, Snapshot, StepReport, Turn};
use crate::train::setup::Setup;
use crate::train::step::{Stepper, StepperOptions};
use crate::train::team::Team;
use crate::train::validate::DrawnBatches;
use serde_json::Value;

/// Trains the branches of a multi-task model.
pub struct MultiLearner<E: Engine> {
    stepper: Stepper<Branches<E>>,
    branches: Vec<BranchData<E>>,
    turns: BranchDraw,
    /// Draws of all ranks in a step.
    draws_per_step: u64,
    average: Option<Average>,
    /// Memory of an earlier snapshot.
    spare: Vec<Vec<f64>>,
}

/// Where the batches of a branch come from.
struct BranchData<E: Engine> {
    queue: Queue<OwnBlocks<E::Prepared>>,
    validation: Option<DrawnBatches<E>>,
    /// Batches of its training data for displays at which another branch learns.
    display: DrawnBatches<E>,
}

/// A learner on this rank's CPU threads; `start_lr` is the learning rate at which prefactors start.
pub fn on_cpu<T: Real>(
    team: &mut Team,
    threads: Threads,
    setup: &MultiSetup,
    start_lr: f64,
) -> Result<MultiLearner<CpuEngine<T>>> {
    learner(team, threads, setup, start_lr, false, |own, state| {
        let mode = EmbeddingMode::Chebyshev { min_distance: own.min_distance };
        let mut engine = CpuEngine::<T>::new(own.model.clone(), threads.compute, mode)?;
        if let Some(state) = state {
            engine.resume(state);
        }
        engine.adapt(&own.params);
        Ok(engine)
    })
}

/// A learner with an engine for each branch, which is made from its set-up and from the state in which an earlier run has left it. `whole`:
/// frames are never cut.
pub fn learner<E: Engine>(
    team: &mut Team,
    threads: Threads,
    setup: &MultiSetup,
    start_lr: f64,
    whole: bool,
    make: impl Fn(&Setup, Option<&Value>) -> Result<E>,
) -> Result<MultiLearner<E>> {
    let common = setup.input.common();
    let training = &common.training;
    let n = setup.branches.len();
    let state = setup.resumed.as_ref().map(|state| &state.engine).cloned().unwrap_or_default();
    let done = Done::list(&state, n);
    let (mut families, mut branches) = (Vec::with_capacity(n), Vec::with_capacity(n));
    for (k, own) in setup.branches.iter().enumerate() {
        let state = setup.resumed.as_ref().map(|_| &done[k].engine);
        let engine = team.agree(make(own, state))?;
        let steady = training.reproducible && own.model.is_energy() && !whole;
        let cut = Cut { part: team.rank_in_group(), parts: team.ranks_per_group(), steady };
        let queue = start_queue(team, threads, own, done[k].draws, engine.block_preparer(cut));
        let cache = own.input.training.geometry_cache_bytes as usize / 8;
        let drawn = |data, batches| DrawnBatches::new(data, training.seed, batches, cache);
        branches.push(BranchData {
            queue: team.agree(queue)?,
            validation: own.data.validation.clone().map(|data| drawn(data, own.input.training.numb_btch)),
            display: drawn(own.data.training.clone(), 1).for_purpose(Purpose::Display),
        });
        let loss = own.input.loss.build(start_lr, &own.model);
        families.push(DeepPotential::new(engine, loss, cut));
    }
    let resumed = setup.resumed.as_ref().map(|state| &state.optimizer);
    let average = training.ema.map(|ema| Average::new(ema.decay, &setup.params, resumed)).transpose();
    let average = team.agree(average)?;
    let family = Branches::new(setup.common.clone(), families, &done);
    let (table, params) = (&setup.common.table, setup.params.clone());
    let options = StepperOptions::of(training, setup.num_steps);
    let mut stepper = Stepper::new(team, family, table, params, &common.optimizer, resumed, options)?;
    let parts: Vec<_> = setup.common.parts.iter().map(|(range, _)| range.clone()).collect();
    team.agree(stepper.set_parts(&parts))?;
    Ok(MultiLearner {
        stepper,
        branches,
        turns: BranchDraw::new(training.seed, &setup.weights),
        draws_per_step: (training.gradient_accumulation * team.n_groups()) as u64,
        average,
        spare: Vec::new(),
    })
}

impl<E: Engine> Learner for MultiLearner<E> {
    fn step(&mut self, turn: &Turn, team: &mut Team, profiler: &Profiler) -> Result<StepReport> {
        let branch = self.turns.at(turn.step);
        let done = self.stepper.network().0.give_turn(branch);
        self.stepper.take_turn(&done);
        let report = self.stepper.step(turn, &mut self.branches[branch].queue, team, profiler)?;
        if let Some(failure) = self.stepper.network().0.failure() {
            return Err(failure);
        }
        self.stepper.network().0.end_turn(self.draws_per_step);
        if let Some(average) = &mut self.average {
            average.follow(self.stepper.network().1);
        }
        Ok(report)
    }

    /// Of one branch after the other, of those that have validation data.
    fn validate(&mut self, team: &mut Team, display: u64, lr: f64) -> Result<Vec<f64>> {
        let mut all = Vec::new();
        for (k, branch) in self.branches.iter_mut().enumerate() {
            let Some(validation) = &mut branch.validation else { continue };
            let (family, common) = self.stepper.network();
            let (family, params) = family.branch(k, common);
            all.extend(validation.errors(family, params, team, display, lr)?);
        }
        Ok(all)
    }

    /// Of one branch after the other.
    fn training_errors(&mut self, team: &mut Team, display: u64, lr: f64, own: Vec<f64>) -> Result<Vec<f64>> {
        let now = self.stepper.network().0.now();
        let mut all = Vec::new();
        for (k, branch) in self.branches.iter_mut().enumerate() {
            if k == now {
                all.extend_from_slice(&own);
                continue;
            }
            let (family, common) = self.stepper.network();
            let (family, params) = family.branch(k, common);
            all.extend(branch.display.errors(family, params, team, display, lr)?);
        }
        Ok(all)
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
