//! A Deep Potential on a GPU, as the learner there sees it.

mod blocks;
mod kalman;
mod kinds;
mod memory;
pub mod operations;
mod optimizer;
mod outputs;
mod validation;

use super::average;
use super::family::Now;
use super::feed::{Feed, FeedOptions, Placed, frame_bytes};
use super::full_validation::ErrorTable;
use super::gpu_learner::{self, AHEAD, Asked, GpuFamily, GpuLearner, GpuLearnerOptions, OnDevice, Steps};
use super::gpu_sum::Sum;
use super::learner::Learner;
use super::session::Session;
use super::setup::Setup;
use super::team::Team;
use super::validate;
use crate::checkpoint::Arrays;
use crate::comm::Communicator;
use crate::data::field::Field;
use crate::engine::choice::Gpu;
use crate::engine::cpu::chebyshev::Plan;
use crate::engine::cuda::core::{Core, Gradient, LossKind, LossTerms, PLACES, Terms};
use crate::engine::cuda::frame::{
    HostFrame, LABEL_ATOM_ENERGY, LABEL_ATOM_PREF, LABEL_ENERGY, LABEL_FORCE, LABEL_VIRIAL,
};
use crate::engine::cuda::kalman::Observer;
use crate::engine::cuda::layout::{self, Status, TURN_HEADER};
use crate::engine::cuda::shape::Shape;
use crate::engine::cuda::{OnGpu, engine_on_gpu, program};
use crate::gpu::staging::Staging;
use crate::gpu::{Buffer, Device, Event, Numbers, Pinned, Ptr};
use crate::loss::observation::{Observation, Observed};
use crate::loss::options::{EnerLossOptions, LossFunction, Prefactor};
use crate::loss::{EnerLoss, ErrorSums, LossValue, Term};
use crate::model::dp::options::Form;
use crate::neighbor::Cut;
use crate::optim::Target;
use crate::optim::adam::{AdamOptions, Rule};
use crate::sample::cache::Lru;
use crate::sample::{FrameId, Pool, Purpose, Sampler};
use crate::{Result, err};
use blocks::Blocks;
use kalman::FilterOnGpu;
use optimizer::DeviceOptimizer;
use serde_json::{Value, json};
use std::sync::{Arc, Mutex, PoisonError};
use validation::{ValidationFrames, validation_slots};
use zerocopy::IntoBytes;

/// Batches that are drawn, and loaded where they must be, ahead of the step.
const DEPTH: usize = 32;
/// Fewer batches where they are large: so many frames wait at most, but always some batches.
const WAITING_FRAMES: usize = 1024;
const LEAST_DEPTH: usize = 3;
/// Columns of the features for each neighbour type that the memory of frames is counted with: what trained nets need.
const COUNTED_COLUMNS: usize = 384;

/// A Deep Potential on a GPU.
pub struct DeepPotentialOnGpu {
    core: Core,
    setup: Arc<Setup>,
    loss: EnerLoss,
    optimizer: DeviceOptimizer,
    /// LKF, and what it observes.
    filter: Option<(FilterOnGpu, Observer)>,
    start_lr: f64,
    feed: Feed,
    /// When the numbers of a step are on the device.
    copied: Vec<Event>,
    validation: Option<ValidationFrames>,
    blocks: Blocks,
}

/// A learner on this rank's GPU; `shared`: another rank has the same one.
pub fn learner(
    team: &mut Team,
    session: &Session,
    setup: &Arc<Setup>,
    (gpu, shared): (&Gpu, bool),
    numbers: Numbers,
    start_lr: f64,
) -> Result<Box<dyn Learner>> {
    let loss = setup.input.loss.options::<EnerLossOptions>();
    if loss.is_some_and(|loss| loss.generalized_force.is_used()) {
        return Err(
            err!("the GPU does not know generalised forces (loss.start_pref_gf)").help("use --device cpu")
        );
    }
    Ok(match engine_on_gpu(&setup.model)? {
        OnGpu::Fused(form) => Box::new(fused(team, session, setup, gpu, shared, (numbers, form), start_lr)?),
        OnGpu::Operations => {
            Box::new(operations::learner(team, session, setup, gpu, shared, numbers, start_lr)?)
        }
    })
}

/// The same by the fused engine.
fn fused(
    team: &mut Team,
    session: &Session,
    setup: &Arc<Setup>,
    gpu: &Gpu,
    shared: bool,
    (numbers, form): (Numbers, Form),
    start_lr: f64,
) -> Result<GpuLearner<DeepPotentialOnGpu>> {
    let env = |name: &str| std::env::var(name).ok();
    let training = &setup.input.training;
    let Some(optimizer) = DeviceOptimizer::find(setup) else {
        return Err(err!("optimizer: the GPU has Adam, AdamW, HybridMuon, AdaMuon and LKF alone")
            .help("use --device cpu"));
    };
    if team.ranks_per_group() > 1 && optimizer.kalman().is_some() {
        return Err(err!(
            "training.ranks_per_frame: on GPUs ranks cannot share frames where LKF observes them"
        )
        .help("leave the key out, choose another optimizer, or use --device cpu"));
    }
    let loss = energy_loss(setup);
    let device = program::open(&gpu.cuda, gpu.index, numbers, form, &env);
    let device = team.agree(device)?;
    let cut = blocks::cut_of(team);
    let built = DeepPotentialOnGpu::build(&device, setup, &optimizer, start_lr, cut);
    let mut core = team.agree(built)?;
    let target = Target {
        table: &setup.model.table,
        pool: crate::engine::cpu::pool::Pool::serial(),
        single: numbers != Numbers::F64,
        rank: team.rank(),
        size: team.size(),
        seed: training.seed,
    };
    let filter = filter(&core, setup, &optimizer, &target);
    let filter = team.agree(filter)?;
    let first_slot = core.store.capacity() - validation_slots(setup);
    let left = team.agree(memory::check(&core, setup, cut))?;
    let (free, _) = team.agree(device.memory())?;
    let bytes = ((free as f64 * training.gpu_memory) as usize).min(left);
    // Ranks that share frames keep the same ones.
    let bytes = if cut.parts > 1 { team.gather(&bytes)?.into_iter().min().unwrap_or(bytes) } else { bytes };
    let feed = start_feed(team, session, setup, &device, first_slot, bytes);
    let feed = team.agree(feed)?;
    let (draws, n_params) = (training.gradient_accumulation, setup.params.len());
    let blocks = training.reproducible.then(|| setup.model.table.views().iter().map(|v| v.range()).collect());
    // A filter goes by way of the host after each update.
    let sum = Sum::choose(team, &device, shared || filter.is_some(), n_params, draws, blocks, &env)?;
    let validated = setup.data.validation.iter().flat_map(|data| &data.batch_sizes);
    let largest = setup.data.training.batch_sizes.iter().chain(validated).max();
    let step_bytes = core.turn_bytes(largest.copied().unwrap_or(1));
    team.agree(core.make_ring(step_bytes, AHEAD))?;
    let copied = team.agree((0..AHEAD).map(|_| Event::new(&device)).collect())?;
    let network = DeepPotentialOnGpu {
        loss: EnerLoss::new(loss.clone(), start_lr),
        optimizer,
        filter,
        start_lr,
        feed,
        copied,
        validation: ValidationFrames::new(setup, first_slot),
        blocks: Blocks::new(cut),
        core,
        setup: setup.clone(),
    };
    let options = GpuLearnerOptions {
        draws,
        wants_norm: training.gradient_max_norm > 0.0 || training.tensorboard,
        step_bytes,
        most_recordings: usize::MAX,
        under_way: team.agree(network.continue_looks())?,
        stall_timeout: training.stall_timeout,
    };
    device.synchronize()?;
    GpuLearner::new(team, network, sum, options)
}

/// LKF with what it observes, where the input asks for it; with the state of the run that is continued.
fn filter(
    core: &Core,
    setup: &Setup,
    optimizer: &DeviceOptimizer,
    target: &Target,
) -> Result<Option<(FilterOnGpu, Observer)>> {
    let Some(options) = optimizer.kalman() else { return Ok(None) };
    if setup.input.training.gradient_accumulation > 1 {
        return Err(err!("training.gradient_accumulation: on a GPU LKF takes one batch a step").help(
            "raise training.batch_size instead: a step with a batch of so many frames is the same one",
        ));
    }
    let learned = &core.network.learned;
    let mut filter = FilterOnGpu::new(&core.device, &learned.params, &learned.grad, options, target)?;
    if let Some(state) = &setup.resumed {
        filter.restore(&state.optimizer)?;
    }
    let largest = setup.data.training.batch_sizes.iter().copied().max().unwrap_or(1);
    Ok(Some((filter, kalman::observer(&core.device, largest.max(1))?)))
}

impl DeepPotentialOnGpu {
    /// Model, parameters and series on the device.
    fn build(
        device: &Arc<Device>,
        setup: &Arc<Setup>,
        optimizer: &DeviceOptimizer,
        start_lr: f64,
        cut: Cut,
    ) -> Result<Core> {
        let loss = energy_loss(setup);
        let frames: usize = setup.data.training.systems.iter().map(|s| s.n_frames).sum();
        let virial = wants_virial(setup);
        let terms = Terms { loss: Some(loss_terms(loss, start_lr)), virial };
        let capacity = frames + validation_slots(setup);
        let mut core = Core::new(device, &setup.model, setup.min_distance, capacity, terms)?;
        if let Some(largest) = kinds::largest_of_many(setup, cut) {
            log::debug!("batches of many kinds: recorded steps have room for {} rows at most", largest.rows);
            core.share_shapes(largest);
        }
        core.set_params(&setup.params)?;
        optimizer.prepare(&mut core)?;
        if let Some(ema) = &setup.input.training.ema {
            let saved = setup.resumed.as_ref().map(|state| &state.optimizer);
            core.network.learned.use_average(ema.decay, &average::begin(&setup.params, saved)?)?;
        }
        let Some(state) = &setup.resumed else {
            core.adapt_if_needed(&setup.params)?;
            return Ok(core);
        };
        optimizer.restore(&core, &state.optimizer)?;
        let number = |key: &str, k: usize| state.engine[key][k].as_f64();
        if let (Some(low), Some(high)) = (number("range", 0), number("range", 1)) {
            let refused = [number("refused", 0), number("refused", 1)];
            core.set_range(
                (low, high),
                (refused[0].unwrap_or(-f64::INFINITY), refused[1].unwrap_or(f64::INFINITY)),
            );
        }
        // A run that went over to the nets themselves stays with them.
        if state.engine["direct"] == true {
            core.use_direct()?;
        } else if !core.use_state(&state.engine)? {
            core.adapt_if_needed(&setup.params)?;
        }
        Ok(core)
    }

    fn observer(&self) -> &Observer {
        let Some((_, observer)) = &self.filter else { unreachable!("only a filter observes") };
        observer
    }

    /// What [`GpuFamily::state`] has kept of an earlier run: its series grows at the step at which that one's would have. Returns
    /// the look that it had asked for.
    fn continue_looks(&self) -> Result<Option<Status>> {
        let Some(state) = &self.setup.resumed else { return Ok(None) };
        let tail = |k: usize| state.engine["tails"][k].as_u64().map(f64::from_bits);
        if let Some(tail) = tail(0) {
            self.set_tail(tail)?;
        }
        Ok(tail(1).map(|tail| Status { tail, ..Status::default() }))
    }

    /// The largest tail of the series so far, on the device.
    fn set_tail(&self, tail: f64) -> Result<()> {
        self.core.network.learned.status.write_bytes(std::mem::offset_of!(Status, tail), tail.as_bytes())
    }
}

impl gpu_learner::Status for Status {
    fn bad_step(&self) -> u32 {
        self.bad_step
    }

    fn norm(&self) -> f64 {
        self.norm
    }

    fn stop(&self) -> f64 {
        self.stop
    }
}

/// Where the values of the loss go.
fn place_of(asked: &Asked) -> usize {
    match asked {
        Asked::Step { place, .. } => (place % (PLACES as u64 - 1)) as usize,
        Asked::Errors { .. } => PLACES - 1,
    }
}

impl GpuFamily for DeepPotentialOnGpu {
    type Drawn = Placed;
    /// Slots of the frames.
    type Batch = Vec<u32>;
    type Shape = Shape;
    type Kind = u64;
    type Status = Status;
    type Value = LossValue;

    fn on_device(&self) -> OnDevice<'_, Status> {
        let learned = &self.core.network.learned;
        OnDevice {
            device: &self.core.device,
            params: &learned.params,
            grad: &learned.grad,
            status: &learned.status,
            n_params: learned.n_params,
            generation: self.core.generation,
        }
    }

    fn draw(&mut self) -> Result<Placed> {
        self.feed.next()
    }

    fn meet(&mut self, drawn: &mut Placed, team: &mut Team) -> Result<()> {
        self.blocks.meet(drawn.coming.iter_mut().map(|(_, frame)| frame).collect(), team)
    }

    fn place(&mut self, batch: Placed, _now: &Now, wait: &mut dyn FnMut() -> Result<()>) -> Result<Vec<u32>> {
        for slot in batch.leaving {
            self.core.store.remove(slot as usize)?;
        }
        for (slot, frame) in batch.coming {
            self.core.cover(&frame.facts, |core| {
                wait()?;
                core.network.learned.read()
            })?;
            self.core.put_and_keep(slot as usize, frame)?;
        }
        Ok(batch.slots)
    }

    fn knows(&self, slots: &Vec<u32>) -> bool {
        self.core.knows(slots)
    }

    fn shape(&mut self, slots: &Vec<u32>) -> Result<Arc<Shape>> {
        self.core.shape(slots)
    }

    fn kind(&self, shape: &Shape) -> u64 {
        shape.id
    }

    fn keeps(&self, id: u64) -> bool {
        self.core.keeps(id)
    }

    fn numbers(&mut self, bytes: &mut Vec<u8>, slots: &Vec<u32>, asked: &Asked) {
        let all = slots.iter().fold(u32::MAX, |all, &slot| all & self.core.store.facts(slot as usize).labels);
        let turn = turn_of(&self.setup, self.optimizer.adam(), self.start_lr, asked, all);
        bytes.clear();
        bytes.extend(&turn.as_bytes()[..TURN_HEADER]);
        bytes.extend(slots.as_bytes());
        if let Some((place, arranged)) = self.core.arrangement(slots) {
            bytes.resize(place, 0);
            bytes.extend(arranged.words.as_bytes());
        }
    }

    unsafe fn send(&self, from: &Pinned, place: usize, bytes: usize) -> Result<()> {
        // SAFETY: the caller's word.
        unsafe { self.core.send_turn(from, place, bytes, &self.copied[place]) }
    }

    fn shared_sums(&self, shape: &Shape) -> Option<(Ptr<f64>, usize)> {
        let loss = energy_loss(&self.setup);
        self.core.shared_sums(shape, loss.atom_energy.is_used() || loss.enable_atom_ener_coeff)
    }

    unsafe fn own_part(&self, shape: &Shape) -> Result<()> {
        // SAFETY: the caller's word.
        unsafe { self.core.own_part(shape) }
    }

    unsafe fn first_pass(&self, shape: &Shape) -> Result<()> {
        // SAFETY: the caller's word.
        unsafe {
            if shape.shared.is_some() { self.core.shared_loss(shape) } else { self.core.first_pass(shape) }
        }
    }

    unsafe fn gradient(&self, shape: &Shape) -> Result<()> {
        // SAFETY: the caller's word.
        unsafe {
            match shape.shared {
                Some(_) => self.core.shared_gradient(shape)?,
                None => self.core.gradient(shape)?,
            }
        }
        self.core.reduce(shape)
    }

    fn update(&self, wants_norm: bool) -> Result<()> {
        self.core.update(Gradient::Flat, wants_norm)?;
        self.core.network.learned.follow()
    }

    unsafe fn whole_step(&self, shape: &Shape) -> Result<()> {
        if self.optimizer.takes_pieces() {
            // SAFETY: the caller's word.
            unsafe { self.core.whole_step(shape)? };
            return self.core.network.learned.follow();
        }
        // SAFETY: as above.
        unsafe { self.gradient(shape)? };
        self.update(false)
    }

    fn observations(&self, step: u64) -> Vec<Observation> {
        self.filter.as_ref().map_or(Vec::new(), |(filter, _)| filter.observations(step, self.setup.num_steps))
    }

    fn set_observation(&mut self, slots: &Vec<u32>, observation: &Observation) -> Result<()> {
        let facts = |&slot: &u32| self.core.store.facts(slot as usize).real_atoms().to_vec();
        let real: Vec<Vec<bool>> = slots.iter().map(facts).collect();
        kalman::set_observation(self.observer(), observation, &real)
    }

    unsafe fn observe(&self, shape: &Shape) -> Result<()> {
        // SAFETY: the caller's word.
        unsafe { self.observer().observe(&self.core, shape) }
    }

    fn observed(&self, slots: &Vec<u32>) -> Result<Observed> {
        kalman::observed(self.observer(), slots.len())
    }

    fn assimilate(&mut self, count: f64, error: f64, ranks: &mut dyn Communicator) -> Result<()> {
        let Some((filter, _)) = &mut self.filter else { unreachable!("who observes has a filter") };
        filter.assimilate(count, error, ranks)?;
        self.core.update(Gradient::None, false)
    }

    fn end_observations(&self) -> Result<()> {
        self.core.network.learned.follow()
    }

    fn optimizer_state(&mut self, ranks: &mut dyn Communicator) -> Result<Arrays> {
        let mut saved = match &mut self.filter {
            Some((filter, _)) => filter.save(ranks)?,
            None => self.optimizer.save(&self.core)?,
        };
        saved.extend(self.core.network.learned.average()?.map(average::named));
        Ok(saved)
    }

    fn value(&self, _slots: &Vec<u32>, asked: &Asked) -> Result<LossValue> {
        values_at(&self.core.values, &self.setup, &self.loss, place_of(asked))
    }

    fn reconsider(&mut self) -> Result<()> {
        let params = self.core.network.learned.read()?;
        self.core.reconsider(&params)
    }

    fn adapt(&mut self, status: &Status, wait: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        if status.tail < self.core.tolerance() {
            return Ok(());
        }
        wait()?;
        let params = self.core.network.learned.read()?;
        self.core.adapt(&params)?;
        self.set_tail(0.0)
    }

    fn state(&self, now: &Status, under_way: Option<Status>) -> Value {
        let (range, refused) = (self.core.range(), self.core.refused());
        let plan = self.core.plan().map(Plan::state).unwrap_or_default();
        // Infinite bounds are written as null. Tails of the series, as bits: the largest on the device, and the one on its way to
        // the host.
        json!({
            "terms": plan["terms"],
            "edges": plan["edges"],
            "range": [range.0, range.1],
            "refused": [refused.0, refused.1],
            "direct": self.core.is_direct(),
            "tails": [now.tail.to_bits(), under_way.map(|status| status.tail.to_bits())],
        })
    }

    fn validate(&mut self, steps: &mut Steps, team: &mut Team, display: u64, rate: f64) -> Result<Vec<f64>> {
        validation::errors(self, steps, team, display, rate)
    }

    fn validate_all(&mut self, steps: &mut Steps, team: &mut Team, average: bool) -> Result<ErrorTable> {
        let Some(mean) = self.core.network.learned.average()?.filter(|_| average) else {
            let local = validation::own_frames(self, steps, team, self.start_lr);
            return validate::table_of_ranks(team, local);
        };
        let params = self.core.network.learned.read()?;
        self.core.set_params(&mean)?;
        self.core.adapt_if_needed(&mean)?;
        let local = validation::own_frames(self, steps, team, self.start_lr);
        self.core.set_params(&params)?;
        validate::table_of_ranks(team, local)
    }
}

/// Bits of the terms of the loss for which frames have labels, given those that all of them have.
fn terms_of(loss: &EnerLossOptions, all: u32) -> u32 {
    let has = |bits: u32| all & bits == bits;
    let pref = has(LABEL_FORCE) && (has(LABEL_ATOM_PREF) || loss.use_default_pf);
    let there = [has(LABEL_ENERGY), has(LABEL_FORCE), has(LABEL_VIRIAL), has(LABEL_ATOM_ENERGY), pref];
    let used = terms_on_gpu(loss).map(|p| p.is_used());
    (0..5).filter(|&k| used[k] && there[k]).map(|k| 1 << k).sum()
}

/// The numbers of a step. `all`: the labels that every frame of the batch has.
fn turn_of(setup: &Setup, adam: &AdamOptions, start_lr: f64, asked: &Asked, all: u32) -> layout::Turn {
    let loss = energy_loss(setup);
    turn_with(setup, adam, start_lr, asked, terms_of(loss, all), |ratio| {
        terms_on_gpu(loss).map(|p| p.at(ratio))
    })
}

/// The same for the terms of any loss, with what they are weighted by at a ratio of the learning rate to that at the start.
fn turn_with(
    setup: &Setup,
    adam: &AdamOptions,
    start_lr: f64,
    asked: &Asked,
    terms: u32,
    weigh: impl Fn(f64) -> [f64; 5],
) -> layout::Turn {
    let (step, schedule, scaled) = match asked {
        Asked::Step { turn, .. } => (turn.step, turn.rate.schedule, turn.rate.scaled),
        Asked::Errors { rate } => (0, *rate, 0.0),
    };
    let (count, stop, add) = match asked {
        Asked::Step { turn, count, add, .. } => (*count, turn.stop, *add),
        Asked::Errors { .. } => (0.0, false, false), // nothing is learnt here
    };
    let ratio = schedule / start_lr;
    let rule = Rule::new(adam, scaled, step);
    layout::Turn {
        weight: weigh(ratio),
        rate: rule.rate,
        correction: rule.correction,
        shrink: rule.shrink,
        pull: rule.pull,
        beta1: rule.beta1,
        beta2: rule.beta2,
        plain_rate: scaled,
        max_norm: setup.input.training.gradient_max_norm,
        count,
        stop: f64::from(u8::from(stop)),
        step: step as u32,
        terms,
        add: u32::from(add),
        place: place_of(asked) as u32,
        slots: [0; 2],
    }
}

/// The values of the loss that stand at a place.
fn values_at(values: &Buffer<f64>, setup: &Setup, loss: &EnerLoss, place: usize) -> Result<LossValue> {
    let mut numbers = [0.0f64; 16];
    values.read(16 * place, &mut numbers)?;
    let options = energy_loss(setup);
    let used = terms_on_gpu(options).map(|p| p.is_used());
    let shown = |k: usize| {
        let [square, absolute, count] = [1, 2, 3].map(|i| numbers[3 * k + i]);
        let errors = ErrorSums { absolute, square, count };
        if options.function == LossFunction::Mae { errors.mae() } else { errors.rmse() }
    };
    let names = loss.names().into_iter();
    let terms =
        names.zip((0..5).filter(|&k| used[k])).map(|(name, k)| Term { name: name.into(), value: shown(k) });
    Ok(LossValue { loss: numbers[0], terms: terms.collect() })
}

/// The prefactors of the terms that the kernels know: all but the last, which was refused.
fn terms_on_gpu(loss: &EnerLossOptions) -> [Prefactor; 5] {
    let [energy, force, virial, atom_energy, atom_pref_force, _] = loss.prefactors();
    [energy, force, virial, atom_energy, atom_pref_force]
}

/// The loss of a run that trains energies.
fn energy_loss(setup: &Setup) -> &EnerLossOptions {
    setup.input.loss.options().expect("other outputs have a loss of their own")
}

/// Whether virials are part of the loss, or of what is told of the validation set.
fn wants_virial(setup: &Setup) -> bool {
    let validating = &setup.input.validating;
    let validates = (validating.live || validating.average)
        && setup.data.validation.iter().any(|data| data.systems.iter().any(|s| s.has(Field::Virial)));
    energy_loss(setup).virial.is_used() || validates
}

/// The loss as the kernels know it.
fn loss_terms(loss: &EnerLossOptions, start_lr: f64) -> LossTerms {
    LossTerms {
        function: match &loss.function {
            LossFunction::Mse => LossKind::Mse,
            LossFunction::Mae => LossKind::Mae,
            LossFunction::Huber(h) => LossKind::Huber([h.energy, h.force, h.virial]),
        },
        relative_f: loss.relative_f,
        f_use_norm: loss.f_use_norm,
        use_coeff: loss.enable_atom_ener_coeff,
        default_pf: loss.use_default_pf,
        intensive: loss.intensive_ener_virial,
        start_lr,
    }
}

fn start_feed(
    team: &Team,
    session: &Session,
    setup: &Setup,
    device: &Arc<Device>,
    slots: usize,
    bytes: usize,
) -> Result<Feed> {
    let first_draw = setup.resumed.as_ref().map_or(0, |state| state.draws);
    let pool = Arc::new(Pool::from_dataset(&setup.data.training));
    let sampler = Sampler::at(pool, setup.input.training.seed, Purpose::Training, first_draw);
    let data = setup.data.training.clone();
    let (model, numbers) = (setup.model.clone(), device.numbers);
    let cut = blocks::cut_of(team);
    let each = frame_bytes(&data, model.n_sel(), model.n_types(), COUNTED_COLUMNS, numbers.size(), cut.parts);
    let total: usize = data.systems.iter().zip(&each).map(|(s, b)| s.n_frames * b).sum();
    let streams = total > bytes;
    if streams {
        log::info!(
            "the training set would take {:.1} GB on the GPU, frames may take {:.1} GB: those beyond it are copied as they \
             are needed",
            total as f64 / 1e9,
            bytes as f64 / 1e9
        );
    }
    let largest = data.batch_sizes.iter().copied().max().unwrap_or(1).max(1);
    let options = FeedOptions {
        threads: session.threads.loaders,
        depth: (WAITING_FRAMES / largest).clamp(LEAST_DEPTH, DEPTH),
        rank: team.group(),
        size: team.n_groups(),
        slots,
        bytes,
        frame_bytes: each,
    };
    let prepare = move |id: FrameId| {
        let frame = data.systems[id.system].read_frame(id.frame)?;
        HostFrame::of_part(&model, &frame, numbers, cut)
            .map_err(|e| e.at(format!("{}: frame {}", data.systems[id.system].path, id.frame)))
    };
    // Frames that come once are not worth pages that are locked for them.
    if !streams {
        return Feed::start(sampler, options, prepare);
    }
    let (staging, cache) = (Staging::new(device), setup.input.training.geometry_cache_bytes as usize);
    let cache: Mutex<Lru<FrameId, Arc<HostFrame>>> = Mutex::new(Lru::new(cache));
    Feed::start(sampler, options, move |id| {
        let cache = || cache.lock().unwrap_or_else(PoisonError::into_inner);
        let known = cache().get(&id);
        let frame = match known {
            Some(frame) => frame,
            None => {
                let frame = Arc::new(prepare(id)?);
                cache().insert(id, frame.clone(), frame.size());
                frame
            }
        };
        frame.staged(&staging)
    })
}
