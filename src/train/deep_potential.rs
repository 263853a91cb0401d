//! A Deep Potential as the recipe of a step sees it, and its learner on CPU threads.

use super::average::Average;
use super::blocks::{OwnBlocks, Shared, block};
use super::cpu::{CpuLearner, QUEUE_DEPTH};
use super::family::{Family, Frames, Now, Validation};
use super::setup::Setup;
use super::step::{Stepper, StepperOptions};
use super::team::Team;
use super::validate::DrawnBatches;
use crate::Result;
use crate::data::Frame;
use crate::engine::cpu::pool::Pool as Threadpool;
use crate::engine::type_embedding::{PlainParams, plain};
use crate::engine::{BlockPreparer, Engine, Prediction, Seeds, Take};
use crate::launch::threads::Threads;
use crate::loss::observation::{self, Observation, Observed};
use crate::loss::{Loss, LossValue};
use crate::model::dp::Dp;
use crate::neighbor::Cut;
use crate::sample::{Pool, Prepared, Purpose, Queue, QueueOptions, Sampler};
use serde_json::Value;
use std::ops::Range;
use std::sync::Arc;

/// A Deep Potential on an [`Engine`].
pub struct DeepPotential<E: Engine> {
    pub engine: E,
    pub shared: Shared,
    loss: Box<dyn Loss>,
    out: Prediction,
    seeds: Seeds,
    /// Where types are embedded: the parameters that the engine takes for those that are trained.
    plain: Option<PlainParams>,
}

impl<E: Engine> DeepPotential<E> {
    /// With frames that are cut so.
    pub fn new(engine: E, loss: Box<dyn Loss>, cut: Cut) -> Self {
        let shared = Shared::new(cut, loss.wants_atoms());
        let (out, seeds) = (Prediction::default(), Seeds::default());
        DeepPotential { engine, shared, loss, out, seeds, plain: None }
    }

    /// The same of a model that may have embedded types.
    pub fn with_types(self, model: &Dp) -> Self {
        DeepPotential { plain: PlainParams::of(model), ..self }
    }

    /// Energies, forces and virials of a batch, the same on all ranks that share it.
    pub fn predict(&mut self, params: &[f64], batch: &Frames<Self>, team: &mut Team) -> Result<&Prediction> {
        let DeepPotential { engine, shared, out, plain, .. } = self;
        let params = engine_params(plain, engine, params);
        shared.evaluate(out, engine, params, batch, team)?;
        match engine.failure() {
            Some(failure) => Err(failure),
            None => Ok(out),
        }
    }
}

/// The parameters that an engine takes for those that are trained.
fn engine_params<'a, E: Engine>(
    plain: &'a mut Option<PlainParams>,
    engine: &E,
    params: &'a [f64],
) -> &'a [f64] {
    match plain {
        Some(plain) => plain.gather(&engine.pool(), params),
        None => params,
    }
}

impl<E: Engine> Family for DeepPotential<E> {
    type Frame = Frame;
    type Prepared = OwnBlocks<E::Prepared>;
    type Value = LossValue;

    fn evaluate(
        &mut self,
        params: &[f64],
        batch: &Frames<Self>,
        now: &Now,
        team: &mut Team,
    ) -> Result<LossValue> {
        let frames: Vec<&Frame> = batch.iter().map(|f| &f.frame).collect();
        self.predict(params, batch, team)?; // E, F, virial
        Ok(self.loss.differentiate(&mut self.seeds, &self.out, &frames, now.rate)) // dL/dE, dL/dF, dL/dvirial
    }

    fn n_gradients(&self, batch: &Frames<Self>) -> usize {
        self.shared.n_own(batch)
    }

    fn backward(&mut self, grad: &mut [f64], params: &[f64], batch: &Frames<Self>, k: usize, _now: &Now) {
        let DeepPotential { engine, shared, seeds, plain, .. } = self;
        let Some(plain) = plain else {
            shared.recall(engine, params, batch, k);
            return engine.backward(grad, params, &block(batch, k), seeds);
        };
        let (own, own_grad) = plain.params_and_grad(); // of the same parameters: `evaluate` has made them
        shared.recall(engine, own, batch, k);
        engine.backward(own_grad, own, &block(batch, k), seeds);
        plain.scatter(&engine.pool(), grad, params);
    }

    fn observe(&mut self, batch: &Frames<Self>, observation: &Observation) -> Observed {
        let frames: Vec<&Frame> = batch.iter().map(|f| &f.frame).collect();
        observation::observe(&mut self.seeds, &self.out, &frames, observation)
    }

    fn backward_but_pieces(
        &mut self,
        grad: &mut [f64],
        params: &[f64],
        batch: &Frames<Self>,
    ) -> Option<Range<usize>> {
        if self.plain.is_some() {
            return None;
        }
        self.engine.backward_but_pieces(grad, params, &block(batch, 0), &self.seeds)
    }

    fn hand_out(&mut self, to: &dyn Take) {
        self.engine.hand_out(to);
    }

    fn forget_parameters(&mut self) {
        self.engine.forget_parameters();
    }

    fn reconsider(&mut self, params: &[f64]) {
        let DeepPotential { engine, plain, .. } = self;
        let params = engine_params(plain, engine, params);
        engine.reconsider(params);
    }

    fn state(&self) -> Value {
        self.engine.state()
    }

    fn pool(&self) -> Threadpool {
        self.engine.pool()
    }

    fn is_single(&self) -> bool {
        self.engine.is_single()
    }
}

/// A learner on this rank's CPU threads.
pub fn learner<E: Engine + 'static>(
    team: &mut Team,
    threads: Threads,
    setup: &Setup,
    mut engine: E,
    loss: Box<dyn Loss>,
) -> Result<CpuLearner<DeepPotential<E>>> {
    let training = &setup.input.training;
    engine.adapt(&plain(&setup.model, &setup.params));
    let cut =
        Cut { part: team.rank_in_group(), parts: team.ranks_per_group(), steady: training.reproducible };
    let first_draw = setup.resumed.as_ref().map_or(0, |state| state.draws);
    let queue = team.agree(start_queue(team, threads, setup, first_draw, engine.block_preparer(cut)))?;
    let validation = setup.data.validation.clone().map(|data| {
        let cache = training.geometry_cache_bytes as usize / 8;
        let batches = DrawnBatches::new(data, training.seed, training.numb_btch, cache);
        Box::new(batches) as Box<dyn Validation<DeepPotential<E>>>
    });
    let options = StepperOptions::of(training, setup.num_steps);
    let resumed = setup.resumed.as_ref().map(|state| &state.optimizer);
    let family = DeepPotential::new(engine, loss, cut).with_types(&setup.model);
    let table = setup.model.trained_table();
    let params = setup.params.clone();
    let stepper = Stepper::new(team, family, table, params, &setup.input.optimizer, resumed, options)?;
    let average = training.ema.map(|ema| Average::new(ema.decay, &setup.params, resumed)).transpose();
    Ok(CpuLearner::new(stepper, queue, validation).with_average(team.agree(average)?))
}

/// The pipeline in front of the model: sampler, loader threads, prepared batches, from a draw on.
pub fn start_queue<P: Prepared>(
    team: &Team,
    threads: Threads,
    setup: &Setup,
    first_draw: u64,
    prepare: BlockPreparer<P>,
) -> Result<Queue<OwnBlocks<P>>> {
    let pool = Arc::new(Pool::from_dataset(&setup.data.training));
    let sampler = Sampler::at(pool, setup.input.training.seed, Purpose::Training, first_draw);
    let options = QueueOptions {
        threads: threads.loaders,
        depth: QUEUE_DEPTH,
        in_bursts: threads.crowded,
        cache_bytes: setup.input.training.geometry_cache_bytes as usize,
        rank: team.group(),
        size: team.n_groups(),
    };
    let data = setup.data.training.clone();
    Queue::start(
        sampler,
        options,
        move |id| data.systems[id.system].read_frame(id.frame),
        move |frame| prepare(frame).map(OwnBlocks),
    )
}
