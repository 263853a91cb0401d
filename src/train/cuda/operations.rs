//! A Deep Potential on a GPU by its operations (`engine/cuda/plan`), as the learner there sees it.

use super::super::average;
use super::super::family::Now;
use super::super::full_validation::ErrorTable;
use super::super::gpu_learner::{Asked, GpuFamily, GpuLearner, GpuLearnerOptions, OnDevice, Steps};
use super::super::gpu_sum::Sum;
use super::super::session::Session;
use super::super::setup::Setup;
use super::super::team::Team;
use super::super::validate::{self, FrameErrors};
use super::{energy_loss, loss_terms, place_of, turn_of, values_at, wants_virial};
use crate::checkpoint::Arrays;
use crate::comm::Communicator;
use crate::data::{Dataset, Frame};
use crate::engine::Prediction;
use crate::engine::choice::Gpu;
use crate::engine::cuda::core::Terms;
use crate::engine::cuda::layout::Status;
use crate::engine::cuda::plan::core::{Arranged, PlanCore, Resident};
use crate::engine::cuda::plan::frame::PlanFrame;
use crate::engine::cuda::plan::program;
use crate::engine::cuda::plan::shape::Shape;
use crate::error::Result;
use crate::gpu::{Device, Numbers, Pinned};
use crate::loss::{EnerLoss, LossValue};
use crate::optim::adam::AdamOptions;
use crate::optim::moments;
use crate::sample::{Batch, FrameId, Pool, Purpose, Queue, QueueOptions, Sampler};
use crate::{bail, err};
use std::collections::HashMap;
use std::sync::Arc;

/// Recorded steps that are kept; batches of more classes than these are started kernel by kernel.
const MOST_GRAPHS: usize = 64;
/// Batches that are loaded ahead of the step.
const QUEUE_DEPTH: usize = 4;

/// A frame's place: of the validation set, or of the training set.
type Key = (bool, FrameId);

/// A Deep Potential on a GPU, with the queue in front of it and the validation set beside it.
pub struct OperationsOnGpu {
    core: PlanCore,
    setup: Arc<Setup>,
    loss: EnerLoss,
    adam: AdamOptions,
    start_lr: f64,
    queue: Queue<PlanFrame>,
    validation: Option<Arc<Pool>>,
    residents: HashMap<Key, Resident>,
    /// The generation of the store that `residents` are of.
    held: u64,
}

/// Frames on the device.
pub struct Places {
    frames: Vec<Resident>,
    arranged: Arranged,
}

/// A learner on this rank's GPU; `shared`: another rank has the same one.
pub fn learner(
    team: &mut Team,
    session: &Session,
    setup: &Arc<Setup>,
    gpu: &Gpu,
    shared: bool,
    numbers: Numbers,
    start_lr: f64,
) -> Result<GpuLearner<OperationsOnGpu>> {
    let env = |name: &str| std::env::var(name).ok();
    let training = &setup.input.training;
    let Some(&adam) = setup.input.optimizer.options::<AdamOptions>() else {
        return Err(err!("for this descriptor the GPU has no optimizer but Adam and AdamW (optimizer.type)")
            .help("use --device cpu"));
    };
    if team.ranks_per_group() > 1 {
        return Err(err!(
            "training.ranks_per_frame: on GPUs ranks cannot share frames of a model with this descriptor"
        )
        .help("leave the key out, or use --device cpu"));
    }
    // There is one way of making products.
    let numbers = if numbers == Numbers::F64 { Numbers::F64 } else { Numbers::F32 };
    let device = team.agree(program::open(&gpu.cuda, gpu.index, numbers, &env))?;
    let core = team.agree(build(&device, setup, start_lr))?;
    let queue = team.agree(start_queue(team, session, setup, &core))?;
    let (draws, n_params) = (training.gradient_accumulation, setup.params.len());
    let blocks = training.reproducible.then(|| setup.model.table.views().iter().map(|v| v.range()).collect());
    let sum = Sum::choose(team, &device, shared, n_params, draws, blocks, &env)?;
    let options = GpuLearnerOptions {
        draws,
        wants_norm: training.gradient_max_norm > 0.0 || training.tensorboard,
        step_bytes: core.turn_address().1,
        most_recordings: MOST_GRAPHS,
        under_way: None,
        stall_timeout: training.stall_timeout,
    };
    let family = OperationsOnGpu {
        loss: EnerLoss::new(energy_loss(setup).clone(), start_lr),
        adam,
        start_lr,
        queue,
        validation: setup.data.validation.as_ref().map(|data| Arc::new(Pool::from_dataset(data))),
        residents: HashMap::new(),
        held: core.store.generation,
        core,
        setup: setup.clone(),
    };
    device.synchronize()?;
    GpuLearner::new(team, family, sum, options)
}

/// Model and parameters on the device.
fn build(device: &Arc<Device>, setup: &Setup, start_lr: f64) -> Result<PlanCore> {
    let loss = Some(loss_terms(energy_loss(setup), start_lr));
    let mut core = PlanCore::new(device, &setup.model, Terms { loss, virial: wants_virial(setup) })?;
    core.set_params(&setup.params)?;
    let saved = setup.resumed.as_ref().map(|state| &state.optimizer);
    if let Some(ema) = &setup.input.training.ema {
        core.use_average(ema.decay, &average::begin(&setup.params, saved)?)?;
    }
    if let Some(arrays) = saved {
        let found = moments::find(arrays, core.n_params)?;
        core.moments.iter().zip(found).try_for_each(|(buffer, x)| buffer.write(0, x))?;
    }
    Ok(core)
}

/// Lists and packs a frame.
fn preparer(core: &PlanCore) -> impl Fn(&Frame) -> Result<PlanFrame> + Send + Sync + use<> {
    let common = &core.common;
    let (parts, lists, numbers) = (common.parts.clone(), common.graph.lists.clone(), core.device.numbers);
    move |frame| PlanFrame::new(&parts, &lists, frame, numbers)
}

fn start_queue(team: &Team, session: &Session, setup: &Setup, core: &PlanCore) -> Result<Queue<PlanFrame>> {
    let first_draw = setup.resumed.as_ref().map_or(0, |state| state.draws);
    let pool = Arc::new(Pool::from_dataset(&setup.data.training));
    let sampler = Sampler::at(pool, setup.input.training.seed, Purpose::Training, first_draw);
    let options = QueueOptions {
        threads: session.threads.loaders.max(1),
        depth: QUEUE_DEPTH,
        in_bursts: false,
        cache_bytes: setup.input.training.geometry_cache_bytes as usize,
        rank: team.group(),
        size: team.n_groups(),
    };
    let data = setup.data.training.clone();
    Queue::start(sampler, options, move |id| data.systems[id.system].read_frame(id.frame), preparer(core))
}

impl OperationsOnGpu {
    /// Where the frames of a batch lie, after those that are absent were brought; `bring` brings one of them, where there is room.
    fn places(
        &mut self,
        keys: &[Key],
        wait: &mut dyn FnMut() -> Result<()>,
        bring: &mut dyn FnMut(&mut PlanCore, usize) -> Result<Option<Resident>>,
    ) -> Result<Places> {
        for is_empty in [false, true] {
            if self.held != self.core.store.generation {
                self.residents.clear();
                self.held = self.core.store.generation;
            }
            let mut frames = Vec::with_capacity(keys.len());
            for (k, key) in keys.iter().enumerate() {
                let place = match self.residents.get(key) {
                    Some(place) => Some(place.clone()),
                    None => bring(&mut self.core, k)?,
                };
                let Some(place) = place else { break };
                self.residents.insert(*key, place.clone());
                frames.push(place);
            }
            if frames.len() == keys.len() {
                let arranged = self.core.arrange(&frames);
                return Ok(Places { frames, arranged });
            }
            if !is_empty {
                // All are given up; those of this batch are brought again.
                wait()?;
                self.core.store.clear();
            }
        }
        bail!("the GPU has no room for a batch of {} frames", keys.len());
    }

    /// Frames of the validation set.
    fn validation_places(&mut self, data: &Arc<Dataset>, ids: &[FrameId]) -> Result<Places> {
        let keys: Vec<Key> = ids.iter().map(|&id| (true, id)).collect();
        let device = self.core.device.clone();
        self.places(&keys, &mut || device.synchronize(), &mut |core, k| {
            let frame = data.systems[ids[k].system].read_frame(ids[k].frame)?;
            let frame = preparer(core)(&frame)?;
            core.bring(&frame)
        })
    }

    /// Errors of the validation batches of this rank: number, atoms, values.
    fn own_batches(
        &mut self,
        steps: &mut Steps,
        team: &mut Team,
        display: u64,
        rate: f64,
    ) -> Result<Vec<(u64, f64, Vec<f64>)>> {
        let (Some(pool), Some(data)) = (self.validation.clone(), self.setup.data.validation.clone()) else {
            return Ok(Vec::new());
        };
        let batches = self.setup.input.training.numb_btch as u64;
        let seed = self.setup.input.training.seed;
        let mut sampler = Sampler::at(pool, seed, Purpose::Validation, display * batches);
        let mut out = Vec::new();
        for batch in 0..batches {
            let draw = sampler.draw();
            if batch as usize % team.size() != team.rank() {
                continue;
            }
            let places = self.validation_places(&data, &draw.frames)?;
            let value = steps.errors(self, &places, rate, team)?;
            let atoms = places.frames.iter().map(|r| r.facts.n_atoms).sum::<usize>();
            out.push((batch, atoms as f64, validate::shown(&value)));
        }
        Ok(out)
    }

    /// Errors of this rank's frames of the whole validation set.
    fn own_frames(&mut self, steps: &mut Steps, team: &mut Team) -> Result<Vec<FrameErrors>> {
        let Some(data) = self.setup.data.validation.clone() else { return Ok(Vec::new()) };
        let (frames, own) = validate::shared_frames(&data, team);
        let (mut found, mut out) = (Vec::new(), Prediction::default());
        for k in own.filter(|&k| k < frames.len()) {
            let places = self.validation_places(&data, &[frames[k]])?;
            steps.errors(self, &places, self.start_lr, team)?;
            let shape = self.core.shape(&places.arranged.class)?;
            self.core.prediction(&mut out, &shape, &places.frames)?;
            let frame = data.systems[frames[k].system].read_frame(frames[k].frame)?;
            found.push((k, validate::errors_of(&frame, &out)));
        }
        Ok(found)
    }
}

impl GpuFamily for OperationsOnGpu {
    type Drawn = Batch<PlanFrame>;
    type Batch = Places;
    type Shape = Shape;
    type Kind = u64;
    type Status = Status;
    type Value = LossValue;

    fn on_device(&self) -> OnDevice<'_, Status> {
        OnDevice {
            device: &self.core.device,
            params: &self.core.params,
            grad: &self.core.grad,
            status: &self.core.status,
            n_params: self.core.n_params,
            generation: self.core.generation,
        }
    }

    fn draw(&mut self) -> Result<Self::Drawn> {
        self.queue.next()
    }

    fn place(
        &mut self,
        batch: Self::Drawn,
        _now: &Now,
        wait: &mut dyn FnMut() -> Result<()>,
    ) -> Result<Places> {
        let keys: Vec<Key> = batch.frames.iter().map(|f| (false, f.id)).collect();
        self.places(&keys, wait, &mut |core, k| core.bring(&batch.frames[k].prepared))
    }

    fn knows(&self, batch: &Places) -> bool {
        self.core.knows(&batch.arranged.class)
    }

    fn shape(&mut self, batch: &Places) -> Result<Arc<Shape>> {
        self.core.shape(&batch.arranged.class)
    }

    fn kind(&self, shape: &Shape) -> u64 {
        shape.id
    }

    fn keeps(&self, id: u64) -> bool {
        self.core.keeps(id)
    }

    fn numbers(&mut self, bytes: &mut Vec<u8>, batch: &Places, asked: &Asked) {
        let all = batch.frames.iter().fold(u32::MAX, |all, r| all & r.facts.labels);
        let turn = turn_of(&self.setup, &self.adam, self.start_lr, asked, all);
        self.core.numbers(bytes, &turn, &batch.frames, &batch.arranged);
    }

    unsafe fn send(&self, from: &Pinned, _place: usize, bytes: usize) -> Result<()> {
        let (to, room) = self.core.turn_address();
        assert!(bytes <= room, "room was made for the numbers of this shape");
        // SAFETY: inside the turn, which steps before this one in the stream have read by then; the rest is the caller's word.
        unsafe { from.copy_to(self.core.device.stream(), to, 0, bytes) }
    }

    unsafe fn first_pass(&self, shape: &Shape) -> Result<()> {
        // SAFETY: the caller's word.
        unsafe { self.core.first_pass(shape) }
    }

    unsafe fn gradient(&self, shape: &Shape) -> Result<()> {
        // SAFETY: the caller's word.
        unsafe {
            self.core.first_pass(shape)?;
            self.core.second_pass(shape)
        }
    }

    fn update(&self, wants_norm: bool) -> Result<()> {
        self.core.update(true, wants_norm)?;
        self.core.follow()
    }

    fn optimizer_state(&mut self, _ranks: &mut dyn Communicator) -> Result<Arrays> {
        let mut saved = [0; 2].map(|_| vec![0.0; self.core.n_params]);
        self.core.moments.iter().zip(&mut saved).try_for_each(|(buffer, x)| buffer.read(0, x))?;
        let mut arrays = moments::named(saved);
        arrays.extend(self.core.average()?.map(average::named));
        Ok(arrays)
    }

    fn value(&self, _batch: &Places, asked: &Asked) -> Result<LossValue> {
        values_at(&self.core.values, &self.setup, &self.loss, place_of(asked))
    }

    fn validate(&mut self, steps: &mut Steps, team: &mut Team, display: u64, rate: f64) -> Result<Vec<f64>> {
        if self.validation.is_none() {
            return Ok(Vec::new());
        }
        let local = self.own_batches(steps, team, display, rate);
        validate::mean_over_ranks(team, local)
    }

    fn validate_all(&mut self, steps: &mut Steps, team: &mut Team, average: bool) -> Result<ErrorTable> {
        let Some(mean) = self.core.average()?.filter(|_| average) else {
            let local = self.own_frames(steps, team);
            return validate::table_of_ranks(team, local);
        };
        let params = self.core.read_params()?;
        self.core.set_params(&mean)?;
        let local = self.own_frames(steps, team);
        self.core.set_params(&params)?;
        validate::table_of_ranks(team, local)
    }
}
