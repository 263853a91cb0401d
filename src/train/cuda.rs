//! Learning on a GPU: parameters, frames and the whole step live there; the host replays recorded steps.

mod kinds;
mod validation;

use super::feed::{Feed, FeedOptions, Placed, frame_bytes};
use super::gpu_sum::Sum;
use super::learner::{Learner, Snapshot, StepReport, Turn};
use super::replay::Recordings;
use super::session::Session;
use super::setup::Setup;
use super::team::Team;
use super::validate;
use crate::checkpoint::{Array, Arrays};
use crate::engine::choice::Gpu;
use crate::engine::cpu::chebyshev::Plan;
use crate::engine::cuda::core::{Core, Gradient, LossKind, LossTerms, PLACES, Terms};
use crate::engine::cuda::frame::{
    HostFrame, LABEL_ATOM_ENERGY, LABEL_ATOM_PREF, LABEL_ENERGY, LABEL_FORCE, LABEL_VIRIAL,
};
use crate::engine::cuda::layout::{self, Status, TURN_HEADER};
use crate::engine::cuda::muon::MuonPlan;
use crate::engine::cuda::shape::Shape;
use crate::engine::cuda::{form_on_gpu, program};
use crate::error::ErrorKind;
use crate::gpu::staging::Staging;
use crate::gpu::{Device, Event, Numbers, Pinned};
use crate::loss::options::{EnerLossOptions, LossFunction};
use crate::loss::{EnerLoss, ErrorSums, LossValue, Term};
use crate::optim::adam::{AdamOptions, Rule};
use crate::optim::muon::{self, MuonOptions};
use crate::optim::{moments, restored};
use crate::report::profile::{Phase, Profiler};
use crate::sample::cache::Lru;
use crate::sample::{FrameId, Pool, Purpose, Sampler};
use crate::{Result, bail, err};
use serde_json::json;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use validation::{ValidationFrames, validation_slots};
use zerocopy::{FromBytes, IntoBytes};

/// Steps that the host may be ahead of the device.
const AHEAD: usize = 16;
/// Batches that are drawn, and loaded where they must be, ahead of the step.
const DEPTH: usize = 32;
/// Fewer batches where they are large: so many frames wait at most, but always some batches.
const WAITING_FRAMES: usize = 1024;
const LEAST_DEPTH: usize = 3;
/// Steps between looks at the device's status, and how many steps later its answer is waited for: fixed numbers, so that
/// every run changes its series at the same step.
const LOOK_EVERY: u64 = 16;
const LOOK_AFTER: u64 = 8;
/// Columns of the features for each neighbour type that the memory of frames is counted with: what trained nets need.
const COUNTED_COLUMNS: usize = 384;

/// What a recorded step does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Recorded {
    /// Gradient and update.
    Whole,
    /// The gradient of one draw.
    Gradient,
    /// Sum over ranks and update.
    Update,
}

/// Trains a Deep Potential on a GPU.
pub struct CudaLearner {
    core: Core,
    setup: Arc<Setup>,
    loss: EnerLoss,
    optimizer: OnDevice,
    start_lr: f64,
    feed: Feed,
    sum: Sum,
    draws: usize,
    count: f64,
    wants_norm: bool,
    /// Numbers of the next steps, one piece for each.
    ring: Pinned,
    /// When a piece is on the device, and when it may be written again.
    copied: Vec<Event>,
    taken: Vec<Event>,
    next: usize,
    looked: (Pinned, Event, bool),
    recordings: Recordings<(u64, Recorded)>,
    validation: Option<ValidationFrames>,
    stall_timeout: Duration,
}

impl CudaLearner {
    /// A learner on this rank's GPU; `shared`: another rank has the same one.
    pub fn new(
        team: &mut Team,
        session: &Session,
        setup: &Arc<Setup>,
        gpu: &Gpu,
        shared: bool,
        numbers: Numbers,
        start_lr: f64,
    ) -> Result<Self> {
        let env = |name: &str| std::env::var(name).ok();
        let training = &setup.input.training;
        let validating = &setup.input.validating;
        if setup.input.training.ema.is_some() || validating.live || validating.average {
            bail!(
                "the GPU has no running mean of the parameters (training.enable_ema) and no full validation (validating)"
            );
        }
        let Some(optimizer) = OnDevice::find(setup) else {
            bail!("the GPU has no optimizer but Adam, AdamW and HybridMuon");
        };
        let form = form_on_gpu(&setup.model)?;
        let device = program::open(&gpu.cuda, gpu.index, numbers, form, &env);
        let device = team.agree(device)?;
        let built = Self::build(&device, setup, &optimizer, start_lr);
        let mut core = team.agree(built)?;
        let first_slot = core.store.capacity() - validation_slots(setup);
        let (free, _) = team.agree(device.memory())?;
        let bytes = (free as f64 * training.gpu_memory) as usize;
        let feed = start_feed(team, session, setup, &device, first_slot, bytes);
        let feed = team.agree(feed)?;
        let (draws, n_params) = (training.gradient_accumulation, setup.params.len());
        let blocks =
            training.reproducible.then(|| setup.model.table.views().iter().map(|v| v.range()).collect());
        let sum = Sum::choose(team, &device, shared, n_params, draws, blocks, &env)?;
        let most = setup
            .data
            .training
            .batch_sizes
            .iter()
            .chain(setup.data.validation.iter().flat_map(|data| &data.batch_sizes));
        let turn_bytes = core.turn_bytes(most.copied().max().unwrap_or(1));
        let ring = Pinned::new(&device, AHEAD * turn_bytes);
        let ring = team.agree(ring)?;
        team.agree(core.make_ring(turn_bytes, AHEAD))?;
        let events = || (0..AHEAD).map(|_| Event::new(&device)).collect::<Result<Vec<_>>>();
        let (copied, taken) = team.agree(events().and_then(|copied| Ok((copied, events()?))))?;
        let looked =
            Pinned::new(&device, size_of::<Status>()).and_then(|p| Ok((p, Event::new(&device)?, false)));
        let count = match &sum {
            Sum::Host(_) => 1.0,
            _ => (draws * team.size()) as f64,
        };
        core.device.synchronize()?;
        let mut learner = CudaLearner {
            loss: EnerLoss::new(setup.input.loss.clone(), start_lr),
            optimizer,
            start_lr,
            feed,
            sum,
            draws,
            count,
            wants_norm: training.gradient_max_norm > 0.0 || training.tensorboard,
            ring,
            copied,
            taken,
            next: 0,
            looked: team.agree(looked)?,
            recordings: Recordings::new(usize::MAX, &env),
            validation: ValidationFrames::new(setup, first_slot),
            stall_timeout: training.stall_timeout,
            core,
            setup: setup.clone(),
        };
        learner.continue_looks()?;
        Ok(learner)
    }

    /// Model, parameters and series on the device.
    fn build(device: &Arc<Device>, setup: &Arc<Setup>, optimizer: &OnDevice, start_lr: f64) -> Result<Core> {
        let loss = &setup.input.loss;
        let frames: usize = setup.data.training.systems.iter().map(|s| s.n_frames).sum();
        let terms = Terms { loss: Some(loss_terms(loss, start_lr)), virial: loss.virial.is_used() };
        let capacity = frames + validation_slots(setup);
        let mut core = Core::new(device, &setup.model, setup.min_distance, capacity, terms)?;
        if let Some(largest) = kinds::largest_of_many(setup) {
            log::debug!("batches of many kinds: recorded steps have room for {} rows at most", largest.rows);
            core.share_shapes(largest);
        }
        core.set_params(&setup.params)?;
        if let OnDevice::Muon { plan, .. } = optimizer {
            core.use_muon(plan)?;
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

    /// Brings what a batch needs to the device.
    fn place(&mut self, batch: Placed, team: &mut Team) -> Result<Vec<u32>> {
        for slot in batch.leaving {
            self.core.store.remove(slot as usize)?;
        }
        for (slot, frame) in batch.coming {
            let (sum, stall_timeout) = (&mut self.sum, self.stall_timeout);
            self.core.cover(&frame.facts, |core| {
                sum.wait(&core.device, team, stall_timeout)?;
                core.params()
            })?;
            self.core.put_and_keep(slot as usize, frame)?;
        }
        Ok(batch.slots)
    }

    /// Bits of the terms of the loss for which all frames have labels.
    fn terms_of(&self, slots: &[u32]) -> u32 {
        let loss = &self.setup.input.loss;
        let all = slots.iter().fold(u32::MAX, |all, &slot| all & self.core.store.facts(slot as usize).labels);
        let has = |bits: u32| all & bits == bits;
        let pref = has(LABEL_FORCE) && (has(LABEL_ATOM_PREF) || loss.use_default_pf);
        let there = [has(LABEL_ENERGY), has(LABEL_FORCE), has(LABEL_VIRIAL), has(LABEL_ATOM_ENERGY), pref];
        let used = loss.prefactors().map(|p| p.is_used());
        (0..5).filter(|&k| used[k] && there[k]).map(|k| 1 << k).sum()
    }

    /// The numbers of a batch for the kernels.
    fn turn(&self, step: u64, schedule: f64, scaled: f64, slots: &[u32], place: usize) -> layout::Turn {
        let ratio = schedule / self.start_lr;
        let rule = Rule::new(self.optimizer.adam(), scaled, step);
        layout::Turn {
            weight: self.setup.input.loss.prefactors().map(|p| p.limit + (p.start - p.limit) * ratio),
            rate: rule.rate,
            correction: rule.correction,
            shrink: rule.shrink,
            pull: rule.pull,
            beta1: rule.beta1,
            beta2: rule.beta2,
            plain_rate: scaled,
            max_norm: self.setup.input.training.gradient_max_norm,
            count: self.count,
            stop: 0.0,
            step: step as u32,
            terms: self.terms_of(slots),
            add: 0,
            place: place as u32,
            slots: [0; 2],
        }
    }

    /// Sends the numbers of a batch ahead of it, beside the steps that run, without waiting for the device unless it is far
    /// behind. [`CudaLearner::sent`] follows when the pass that takes them is started.
    fn send(&mut self, turn: &layout::Turn, slots: &[u32], team: &mut Team) -> Result<()> {
        let at = self.next % AHEAD;
        if self.next >= AHEAD {
            self.sum.wait_for(&self.taken[at], team, self.stall_timeout)?;
        }
        let each = self.ring.size() / AHEAD;
        // SAFETY: other pieces are read while they are copied, this one is not any more.
        let memory = unsafe { &mut self.ring.bytes_mut()[at * each..(at + 1) * each] };
        let mut bytes = TURN_HEADER + 4 * slots.len();
        assert!(bytes <= each, "room was made for the largest batch");
        memory[..TURN_HEADER].copy_from_slice(&turn.as_bytes()[..TURN_HEADER]);
        memory[TURN_HEADER..bytes].copy_from_slice(slots.as_bytes());
        if let Some((place, arranged)) = self.core.arrangement(slots) {
            let words = arranged.words.as_bytes();
            bytes = place + words.len();
            memory[place..bytes].copy_from_slice(words);
        }
        // SAFETY: the pass that took what stood at this place is over, and so is its copy; that of this piece is before the piece
        // is written again.
        unsafe { self.core.send_turn(&self.ring, at, bytes, &self.copied[at]) }
    }

    /// A pass that takes what was sent is started.
    fn sent(&mut self) -> Result<()> {
        self.taken[self.next % AHEAD].record(self.core.device.stream())?;
        self.next += 1;
        Ok(())
    }

    /// Does recorded work, or records it when it is done for the second time.
    fn replay(&mut self, shape: &Shape, what: Recorded) -> Result<()> {
        let key = (if what == Recorded::Update { 0 } else { shape.id }, what);
        let mut recordings = std::mem::take(&mut self.recordings);
        recordings.retain_for(key, |(id, what)| *what == Recorded::Update || self.core.keeps(*id));
        let (device, generation) = (&self.core.device, self.core.generation);
        // SAFETY: memory that moves counts the generation on; the numbers of this batch were sent.
        let done = unsafe { recordings.replay(device, key, generation, || self.work(shape, what)) };
        self.recordings = recordings;
        done
    }

    fn work(&self, shape: &Shape, what: Recorded) -> Result<()> {
        if what == Recorded::Whole
            && matches!(self.sum, Sum::Alone)
            && !self.wants_norm
            && self.optimizer.is_fused()
        {
            // SAFETY: the numbers of a batch of this shape were sent.
            return unsafe { self.core.whole_step(shape) };
        }
        if what != Recorded::Update {
            // SAFETY: as above.
            unsafe { self.core.gradient(shape)? };
            self.core.reduce(shape)?;
        }
        if what == Recorded::Gradient {
            return Ok(());
        }
        if let Sum::Nccl(comm) = &self.sum {
            comm.sum(&self.core.network.grad, self.core.network.n_params + 1)?;
        }
        self.core.update(Gradient::Flat, self.wants_norm)
    }

    /// The gradients of all draws, and the update.
    fn draws(&mut self, turn: &Turn, team: &mut Team, profiler: &Profiler) -> Result<(usize, bool)> {
        let first_place = turn.step as usize * self.draws;
        let mut stop = turn.stop;
        let mut last = None;
        for draw in 0..self.draws {
            let batch = profiler.time(Phase::DataWait, || self.feed.next())?;
            let span = profiler.span(Phase::Forward);
            let slots = self.place(batch, team)?;
            // A new kind of batch may need memory that steps under way still use.
            if !self.core.knows(&slots) {
                self.wait(team)?;
            }
            let shape = self.core.shape(&slots)?;
            let place = (first_place + draw) % (PLACES - 1); // the last is for validation
            let mut numbers = self.turn(turn.step, turn.rate.schedule, turn.rate.scaled, &slots, place);
            numbers.stop = f64::from(u8::from(turn.stop));
            let on_host = matches!(self.sum, Sum::Host(_));
            numbers.add = u32::from(draw > 0 && !on_host);
            self.send(&numbers, &slots, team)?;
            let whole = self.draws == 1 && !on_host;
            self.replay(&shape, if whole { Recorded::Whole } else { Recorded::Gradient })?;
            self.sent()?;
            drop(span);
            if let Sum::Host(sum) = &mut self.sum {
                let span = profiler.span(Phase::Communication);
                self.core.network.grad.read(0, sum.place(draw))?;
                sum.add(draw);
                drop(span);
            }
            last = Some(shape);
        }
        let Some(shape) = last else { return Ok((first_place, stop)) };
        if let Sum::Host(sum) = &mut self.sum {
            self.core.device.synchronize()?;
            let (grad, anyone) = profiler.time(Phase::Communication, || sum.mean(team, turn.stop))?;
            self.core.network.grad.write(0, grad)?;
            stop = anyone;
        }
        if self.draws > 1 || matches!(self.sum, Sum::Host(_)) {
            self.replay(&shape, Recorded::Update)?;
        }
        Ok((first_place, stop))
    }

    /// Waits for all steps. Where ranks wait for each other on their GPUs, one that is gone is found out and named.
    fn wait(&mut self, team: &mut Team) -> Result<()> {
        self.sum.wait(&self.core.device, team, self.stall_timeout)
    }

    /// Looks at what the device found out some steps ago: diverged losses, series that are too short, wishes to stop.
    fn look(&mut self, step: u64, team: &mut Team) -> Result<Option<Status>> {
        if step % LOOK_EVERY == LOOK_EVERY - 1 {
            let (from, stream) = (self.core.network.status.address(), self.core.device.stream());
            // SAFETY: nobody looks at it before the event below.
            unsafe { self.looked.0.copy_from(stream, from, size_of::<Status>())? };
            self.looked.1.record(stream)?;
            self.looked.2 = true;
        }
        if step % LOOK_EVERY != LOOK_AFTER - 1 || !std::mem::take(&mut self.looked.2) {
            return Ok(None);
        }
        if self.sum.is_joined(team) && !self.looked.1.passed()? {
            self.wait(team)?;
        }
        self.looked.1.wait()?;
        let status = self.looked_at();
        self.judge(&status)?;
        if status.tail >= self.core.tolerance() {
            self.wait(team)?;
            let params = self.core.params()?;
            self.core.adapt(&params)?;
            self.set_tail(0.0)?;
        }
        Ok(Some(status))
    }

    /// Tails of the series for a checkpoint, as bits: the largest on the device, and the one on its way to the host.
    fn tails(&self, now: &Status) -> serde_json::Value {
        let under_way = self.looked.2.then(|| self.looked_at().tail.to_bits());
        json!([now.tail.to_bits(), under_way])
    }

    /// What [`CudaLearner::tails`] has kept of an earlier run: its series grows at the step at which that one's would have.
    fn continue_looks(&mut self) -> Result<()> {
        let Some(state) = &self.setup.resumed else { return Ok(()) };
        let tail = |k: usize| state.engine["tails"][k].as_u64().map(f64::from_bits);
        if let Some(tail) = tail(0) {
            self.set_tail(tail)?;
        }
        if let Some(tail) = tail(1) {
            let status = Status { tail, ..Status::default() };
            // SAFETY: nothing is copied to it yet.
            unsafe { self.looked.0.bytes_mut()[..size_of::<Status>()].copy_from_slice(status.as_bytes()) };
            self.looked.2 = true;
        }
        Ok(())
    }

    /// The largest tail of the series so far, on the device.
    fn set_tail(&self, tail: f64) -> Result<()> {
        self.core.network.status.write_bytes(std::mem::offset_of!(Status, tail), tail.as_bytes())
    }

    /// The status that was copied to the host last.
    fn looked_at(&self) -> Status {
        // SAFETY: who asks has waited for the copy.
        let bytes = unsafe { &self.looked.0.bytes()[..size_of::<Status>()] };
        Status::read_from_bytes(bytes).expect("as many bytes as a status has")
    }

    fn judge(&self, status: &Status) -> Result<()> {
        if status.bad_step > 0 {
            let step = status.bad_step;
            return Err(err!("the loss of step {step} is not a number: the parameters have diverged")
                .of_kind(ErrorKind::Diverged));
        }
        Ok(())
    }

    /// The values of the loss that stand at a place.
    fn values_at(&self, place: usize) -> Result<LossValue> {
        let mut numbers = [0.0f64; 16];
        self.core.values.read(16 * place, &mut numbers)?;
        let loss = &self.setup.input.loss;
        let used = loss.prefactors().map(|p| p.is_used());
        let shown = |k: usize| {
            let [square, absolute, count] = [1, 2, 3].map(|i| numbers[3 * k + i]);
            let errors = ErrorSums { absolute, square, count };
            if loss.function == LossFunction::Mae { errors.mae() } else { errors.rmse() }
        };
        let names = self.loss.names().into_iter();
        let terms = names
            .zip((0..5).filter(|&k| used[k]))
            .map(|(name, k)| Term { name: name.into(), value: shown(k) });
        Ok(LossValue { loss: numbers[0], terms: terms.collect() })
    }
}

impl Learner for CudaLearner {
    fn step(&mut self, turn: &Turn, team: &mut Team, profiler: &Profiler) -> Result<StepReport> {
        if turn.reconsiders() {
            self.wait(team)?;
            let params = self.core.params()?;
            self.core.reconsider(&params)?;
        }
        let (first_place, mut stop) = self.draws(turn, team, profiler)?;
        let span = profiler.span(Phase::Optimizer);
        let status = self.look(turn.step, team)?;
        if self.sum.is_joined(team) {
            // All ranks read the same sum at the same step.
            stop = status.is_some_and(|status| status.stop > 0.0);
        }
        let mut report = StepReport { values: Vec::new(), gradient_norm: f64::NAN, stop };
        if turn.wants_values {
            self.wait(team)?;
            let status = self.core.status()?;
            self.judge(&status)?;
            report.gradient_norm = if self.wants_norm { status.norm } else { f64::NAN };
            for draw in 0..self.draws {
                report.values.push(self.values_at((first_place + draw) % (PLACES - 1))?);
            }
        }
        drop(span);
        Ok(report)
    }

    fn validate(&mut self, team: &mut Team, display: u64, lr: f64) -> Result<Vec<f64>> {
        if self.validation.is_none() {
            return Ok(Vec::new());
        }
        let local = self.own_batches(team, display, lr);
        validate::mean_over_ranks(team, local)
    }

    fn snapshot(&mut self, team: &mut Team) -> Result<Snapshot> {
        self.wait(team)?;
        let status = self.core.status()?;
        self.judge(&status)?;
        let optimizer = self.optimizer.save(&self.core)?;
        let (range, refused) = (self.core.range(), self.core.refused());
        let plan = self.core.plan().map(Plan::state).unwrap_or_default();
        Ok(Snapshot {
            params: self.core.params()?,
            optimizer,
            // Infinite bounds are written as null.
            engine: json!({
                "terms": plan["terms"],
                "edges": plan["edges"],
                "range": [range.0, range.1],
                "refused": [refused.0, refused.1],
                "direct": self.core.is_direct(),
                "tails": self.tails(&status),
            }),
        })
    }
}

/// The optimisers that the kernels have; their state is on the device.
enum OnDevice {
    Adam(AdamOptions),
    /// HybridMuon, and Adam for what is no matrix.
    Muon {
        plan: MuonPlan,
        adam: AdamOptions,
    },
}

impl OnDevice {
    fn find(setup: &Setup) -> Option<OnDevice> {
        if let Some(&adam) = setup.input.optimizer.options::<AdamOptions>() {
            return Some(OnDevice::Adam(adam));
        }
        let muon = setup.input.optimizer.options::<MuonOptions>()?;
        let plan = muon.on_device(&setup.model.table)?;
        let [beta1, beta2] = muon.adam_betas;
        Some(OnDevice::Muon { plan, adam: AdamOptions { beta1, beta2, weight_decay: 0.0, decoupled: false } })
    }

    fn adam(&self) -> &AdamOptions {
        match self {
            OnDevice::Adam(adam) | OnDevice::Muon { adam, .. } => adam,
        }
    }

    /// Whether an update may be made of pieces of the gradient, beside the rest of the step.
    fn is_fused(&self) -> bool {
        matches!(self, OnDevice::Adam(_))
    }

    fn restore(&self, core: &Core, saved: &Arrays) -> Result<()> {
        let (n, moments_of) = (core.network.n_params, &core.network.moments);
        match (self, core.alignment()) {
            (OnDevice::Muon { plan, .. }, Some(alignment)) => {
                let sizes = [n, n, plan.matrices.len()];
                let buffers = [&moments_of[0], &moments_of[1], alignment];
                for ((name, n), buffer) in muon::NAMES.into_iter().zip(sizes).zip(buffers) {
                    let mut numbers = vec![0.0; n];
                    restored(saved, name, &mut numbers)?;
                    buffer.write(0, &numbers)?;
                }
                Ok(())
            }
            _ => {
                let found = moments::find(saved, n)?;
                moments_of.iter().zip(found).try_for_each(|(buffer, x)| buffer.write(0, x))
            }
        }
    }

    fn save(&self, core: &Core) -> Result<Arrays> {
        let mut saved = [0; 2].map(|_| vec![0.0; core.network.n_params]);
        core.network.moments.iter().zip(&mut saved).try_for_each(|(buffer, x)| buffer.read(0, x))?;
        let (OnDevice::Muon { plan, .. }, Some(alignment)) = (self, core.alignment()) else {
            return Ok(moments::named(saved));
        };
        let mut agreed = vec![0.0; plan.matrices.len()];
        alignment.read(0, &mut agreed)?;
        let [first, second] = saved;
        let arrays = muon::NAMES.into_iter().zip([first, second, agreed]);
        Ok(arrays.map(|(name, x)| (name.to_string(), Array::F64(x))).collect())
    }
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
    let each = frame_bytes(&data, model.n_sel(), model.n_types(), COUNTED_COLUMNS, numbers.size());
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
        rank: team.rank(),
        size: team.size(),
        slots,
        bytes,
        frame_bytes: each,
    };
    let prepare = move |id: FrameId| {
        let frame = data.systems[id.system].read_frame(id.frame)?;
        HostFrame::new(&model, &frame, numbers)
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
