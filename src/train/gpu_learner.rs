//! Learning on a GPU, for every model family: parameters, frames and the whole step live there. The host sends the numbers of a step
//! ahead of it, replays recorded steps, and looks now and then at what the device found out.

use super::family::Now;
use super::full_validation::ErrorTable;
use super::gpu_sum::Sum;
use super::learner::{Learner, Snapshot, StepReport, Turn};
use super::replay::Recordings;
use super::step::error_of_all;
use super::team::Team;
use crate::checkpoint::Arrays;
use crate::comm::Communicator;
use crate::error::ErrorKind;
use crate::gpu::memory::Plain;
use crate::gpu::{Buffer, Device, Event, Pinned, Ptr};
use crate::loss::Cost;
use crate::loss::observation::{Observation, Observed};
use crate::report::profile::{Phase, Profiler};
use crate::{Result, err};
use serde_json::Value;
use std::hash::Hash;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

/// Steps that the host may be ahead of the device.
pub const AHEAD: usize = 16;
/// Steps between looks at the device's status, and how many steps later its answer is waited for: fixed numbers, so that
/// every run does at the same step what follows from it.
const LOOK_EVERY: u64 = 16;
const LOOK_AFTER: u64 = 8;

/// A network with its loss on a GPU. The recipe that calls it is that of [`GpuLearner`].
pub trait GpuFamily {
    /// A batch as it is drawn, and the same when all its frames are on the device.
    type Drawn;
    type Batch;
    /// Memory and launches for one kind of batch.
    type Shape;
    /// Tells recorded steps apart.
    type Kind: Copy + Eq + Hash;
    /// What the device writes down for the host.
    type Status: Status;
    /// What a batch cost.
    type Value: Cost;

    /// What every network has on a GPU.
    fn on_device(&self) -> OnDevice<'_, Self::Status>;

    /// The next batch of this rank; waits where it is not ready.
    fn draw(&mut self) -> Result<Self::Drawn>;

    /// Agrees with the ranks that share the frames of a batch on what all of them must do alike with it. They do this together.
    fn meet(&mut self, _drawn: &mut Self::Drawn, _team: &mut Team) -> Result<()> {
        Ok(())
    }

    /// Brings what a batch needs to the device. `wait` waits for all steps so far.
    fn place(
        &mut self,
        drawn: Self::Drawn,
        now: &Now,
        wait: &mut dyn FnMut() -> Result<()>,
    ) -> Result<Self::Batch>;

    /// Whether a batch of this kind has come before, so that [`GpuFamily::shape`] needs no memory that steps under way use.
    fn knows(&self, batch: &Self::Batch) -> bool;

    fn shape(&mut self, batch: &Self::Batch) -> Result<Arc<Self::Shape>>;

    fn kind(&self, shape: &Self::Shape) -> Self::Kind;

    /// Whether shapes of a kind are still kept; steps that were recorded for others are forgotten.
    fn keeps(&self, _kind: Self::Kind) -> bool {
        true
    }

    /// The numbers of a batch, as the kernels read them.
    fn numbers(&mut self, bytes: &mut Vec<u8>, batch: &Self::Batch, asked: &Asked);

    /// Starts the copy of these numbers from page-locked memory, such that the next first pass takes them.
    ///
    /// # Safety
    ///
    /// The pass that took what stood at the same of [`AHEAD`] places is over. `from` stays as it is until the next pass is.
    unsafe fn send(&self, from: &Pinned, place: usize, bytes: usize) -> Result<()>;

    /// What ranks that share frames add up between [`GpuFamily::own_part`] and the passes below, and how many numbers that is; nothing
    /// where each rank has frames of its own.
    fn shared_sums(&self, _shape: &Self::Shape) -> Option<(Ptr<f64>, usize)> {
        None
    }

    /// What this rank's part of shared frames brings to predictions.
    ///
    /// # Safety
    ///
    /// As for [`GpuFamily::first_pass`].
    unsafe fn own_part(&self, _shape: &Self::Shape) -> Result<()> {
        unreachable!("this family shares no frames")
    }

    /// Predictions and the loss; the loss alone where [`GpuFamily::shared_sums`] are there.
    ///
    /// # Safety
    ///
    /// The numbers of a batch of this shape were sent.
    unsafe fn first_pass(&self, shape: &Self::Shape) -> Result<()>;

    /// [`GpuFamily::first_pass`] and the gradient.
    ///
    /// # Safety
    ///
    /// As for [`GpuFamily::first_pass`].
    unsafe fn gradient(&self, shape: &Self::Shape) -> Result<()>;

    /// Makes what [`GpuFamily::update`] takes of a gradient that was added up over ranks on the devices.
    fn after_sum(&self) -> Result<()> {
        Ok(())
    }

    /// A step with the gradient on the device; writes down its norm where that is wanted.
    fn update(&self, wants_norm: bool) -> Result<()>;

    /// Gradient and update where nothing is between them, and nobody wants to see the gradient.
    ///
    /// # Safety
    ///
    /// As for [`GpuFamily::first_pass`].
    unsafe fn whole_step(&self, shape: &Self::Shape) -> Result<()> {
        // SAFETY: the caller's word.
        unsafe { self.gradient(shape)? };
        self.update(false)
    }

    /// What a step observes in place of the loss, one after the other, each for an update of its own; nothing where updates go by
    /// the gradient of the loss.
    fn observations(&self, _step: u64) -> Vec<Observation> {
        Vec::new()
    }

    /// Tells the device what is observed next, and of which batch.
    fn set_observation(&mut self, _batch: &Self::Batch, _observation: &Observation) -> Result<()> {
        unreachable!("this family observes nothing")
    }

    /// First pass, and the gradient of what is observed.
    ///
    /// # Safety
    ///
    /// As for [`GpuFamily::first_pass`].
    unsafe fn observe(&self, _shape: &Self::Shape) -> Result<()> {
        unreachable!("this family observes nothing")
    }

    /// What a batch has said, when its pass is over.
    fn observed(&self, _batch: &Self::Batch) -> Result<Observed> {
        unreachable!("this family observes nothing")
    }

    /// One update by `count` times the gradient on the device, and the error of what was observed, both over the batches of all
    /// ranks.
    fn assimilate(&mut self, _count: f64, _error: f64, _ranks: &mut dyn Communicator) -> Result<()> {
        unreachable!("this family observes nothing")
    }

    /// What follows all updates of a step.
    fn end_observations(&self) -> Result<()> {
        Ok(())
    }

    /// What a batch cost, when its pass is over.
    fn value(&self, batch: &Self::Batch, asked: &Asked) -> Result<Self::Value>;

    /// Gives up what became more costly than the parameters need. No step is under way.
    fn reconsider(&mut self) -> Result<()> {
        Ok(())
    }

    /// Does what follows from a look at the status. `wait` waits for all steps so far.
    fn adapt(&mut self, _status: &Self::Status, _wait: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        Ok(())
    }

    /// What a restart needs to give the same bits; `under_way` is the answer to a look that nobody has seen yet.
    fn state(&self, _now: &Self::Status, _under_way: Option<Self::Status>) -> Value {
        Value::Null
    }

    /// What a checkpoint holds of the optimiser, whole on every rank. No step is under way.
    fn optimizer_state(&mut self, ranks: &mut dyn Communicator) -> Result<Arrays>;

    /// Mean errors on the validation set: see [`Learner::validate`].
    fn validate(&mut self, steps: &mut Steps, team: &mut Team, display: u64, rate: f64) -> Result<Vec<f64>>;

    /// Errors over the whole validation set: see [`Learner::validate_all`].
    fn validate_all(&mut self, _steps: &mut Steps, _team: &mut Team, _average: bool) -> Result<ErrorTable> {
        unreachable!("no input of this family asks for it")
    }
}

/// What every network has on a GPU.
pub struct OnDevice<'a, S> {
    pub device: &'a Arc<Device>,
    pub params: &'a Buffer<f64>,
    /// One more number follows it: the ranks that wish to stop.
    pub grad: &'a Buffer<f64>,
    pub status: &'a Buffer<S>,
    pub n_params: usize,
    /// Grows when memory moves that recorded steps use.
    pub generation: u64,
}

impl<S: Status> OnDevice<'_, S> {
    /// The status when all steps so far are done, unless the parameters have diverged.
    fn status(&self) -> Result<S> {
        let mut status = [S::default()];
        self.status.read(0, &mut status)?;
        judge(&status[0])?;
        Ok(status[0])
    }

    /// One number for each parameter.
    fn read(&self, buffer: &Buffer<f64>) -> Result<Vec<f64>> {
        let mut values = vec![0.0; self.n_params];
        buffer.read(0, &mut values)?;
        Ok(values)
    }
}

/// What a device writes down for the host.
pub trait Status: Plain + Default {
    /// 1 + the first step whose loss was not finite, 0: none.
    fn bad_step(&self) -> u32;

    /// Of the last mean gradient.
    fn norm(&self) -> f64;

    /// How many ranks wish to stop.
    fn stop(&self) -> f64;
}

fn judge(status: &impl Status) -> Result<()> {
    match status.bad_step() {
        0 => Ok(()),
        step => Err(err!("the loss of step {step} is not a number: the parameters have diverged")
            .of_kind(ErrorKind::Diverged)),
    }
}

/// What the numbers of a batch are for.
#[derive(Debug, Clone, Copy)]
pub enum Asked {
    /// A draw of a step.
    Step {
        turn: Turn,
        /// Draws of this rank before this one, over all steps.
        place: u64,
        /// The gradient is divided by it in the update.
        count: f64,
        /// The gradient is added to that of the draw before.
        add: bool,
    },
    /// Errors on the validation set, at a learning rate.
    Errors { rate: f64 },
}

/// The numbers of steps that the device has still to do, and what it takes to wait for them.
pub struct Steps {
    sum: Sum,
    stall_timeout: Duration,
    /// Page-locked memory for the numbers of a step, and when it may be written again.
    ring: Vec<(Pinned, Event)>,
    next: usize,
    bytes: Vec<u8>,
    /// What ranks that share frames add up.
    shared: Vec<f64>,
}

impl Steps {
    /// With room for so many bytes a step; it grows where a step has more.
    fn new(device: &Arc<Device>, sum: Sum, bytes: usize, stall_timeout: Duration) -> Result<Steps> {
        let piece = |_| Ok((Pinned::new(device, bytes)?, Event::new(device)?));
        let ring = (0..AHEAD).map(piece).collect::<Result<_>>()?;
        Ok(Steps { sum, stall_timeout, ring, next: 0, bytes: Vec::new(), shared: Vec::new() })
    }

    /// Waits for all steps. Where ranks wait for each other on their GPUs, one that is gone is found out and named.
    fn wait(&mut self, device: &Arc<Device>, team: &mut Team) -> Result<()> {
        self.sum.wait(device, team, self.stall_timeout)
    }

    /// The shape of a batch, with room for it.
    fn shape<F: GpuFamily>(
        &mut self,
        family: &mut F,
        batch: &F::Batch,
        team: &mut Team,
    ) -> Result<Arc<F::Shape>> {
        // A new kind of batch may need memory that steps under way still use.
        if !family.knows(batch) {
            self.wait(family.on_device().device, team)?;
        }
        family.shape(batch)
    }

    /// Sends the numbers of a batch ahead of it, beside the steps that run, without waiting for the device unless it is far
    /// behind. [`Steps::started`] follows when the pass that takes them is started.
    fn send<F: GpuFamily>(
        &mut self,
        family: &mut F,
        batch: &F::Batch,
        asked: &Asked,
        team: &mut Team,
    ) -> Result<()> {
        family.numbers(&mut self.bytes, batch, asked);
        let (at, size) = (self.next % AHEAD, self.bytes.len());
        let (piece, taken) = &mut self.ring[at];
        if self.next >= AHEAD {
            self.sum.wait_for(taken, team, self.stall_timeout)?;
        }
        if piece.size() < size {
            *piece = Pinned::new(family.on_device().device, 2 * size)?;
        }
        // SAFETY: the pass that took what stood at this place is over, and so is its copy. This one is before the place is
        // written again.
        unsafe {
            piece.bytes_mut()[..size].copy_from_slice(&self.bytes);
            family.send(piece, at, size)
        }
    }

    /// Adds up over the ranks that share frames what [`GpuFamily::own_part`] has found, where the devices do not.
    fn sum_on_host<F: GpuFamily>(&mut self, family: &F, shape: &F::Shape, team: &mut Team) -> Result<()> {
        let Some((sums, n)) = family.shared_sums(shape) else { return Ok(()) };
        let device = family.on_device().device;
        self.shared.resize(n, 0.0);
        // SAFETY: so many numbers are there, on the main stream.
        unsafe {
            device.read_at(sums.address(), &mut self.shared)?;
            team.sum_in_group(&mut self.shared)?;
            device.write_at(sums.address(), &self.shared)
        }
    }

    /// A pass that takes what was sent is started.
    fn started(&mut self, device: &Device) -> Result<()> {
        self.ring[self.next % AHEAD].1.record(device.stream())?;
        self.next += 1;
        Ok(())
    }

    /// What a batch of the validation set costs.
    pub fn errors<F: GpuFamily>(
        &mut self,
        family: &mut F,
        batch: &F::Batch,
        rate: f64,
        team: &mut Team,
    ) -> Result<F::Value> {
        let asked = Asked::Errors { rate };
        let shape = self.shape(family, batch, team)?;
        self.send(family, batch, &asked, team)?;
        // SAFETY: the numbers of this batch were sent.
        unsafe {
            if family.shared_sums(&shape).is_some() && !own_part_and_sum(family, &shape, &self.sum)? {
                family.own_part(&shape)?;
                self.sum_on_host(family, &shape, team)?;
            }
            family.first_pass(&shape)?;
        }
        self.started(family.on_device().device)?;
        self.wait(family.on_device().device, team)?;
        family.value(batch, &asked)
    }
}

/// Copies of the device's status that the host looks at some steps later.
struct Looks<S> {
    memory: Pinned,
    copied: Event,
    /// A copy was asked for that nobody has looked at.
    under_way: bool,
    of: PhantomData<S>,
}

impl<S: Status> Looks<S> {
    /// `under_way` is a copy that an earlier run had asked for.
    fn new(device: &Arc<Device>, under_way: Option<S>) -> Result<Self> {
        let mut memory = Pinned::new(device, size_of::<S>())?;
        if let Some(status) = &under_way {
            // SAFETY: nothing is copied to it yet.
            unsafe { memory.bytes_mut()[..size_of::<S>()].copy_from_slice(status.as_bytes()) };
        }
        Ok(Looks { memory, copied: Event::new(device)?, under_way: under_way.is_some(), of: PhantomData })
    }

    /// Asks for a copy after the steps so far.
    fn ask(&mut self, from: &OnDevice<'_, S>) -> Result<()> {
        let stream = from.device.stream();
        // SAFETY: nobody looks at it before the event below.
        unsafe { self.memory.copy_from(stream, from.status.address(), size_of::<S>())? };
        self.under_way = true;
        self.copied.record(stream)
    }

    /// The last copy, for whom has waited for it.
    fn seen(&self) -> S {
        // SAFETY: who asks has waited for the copy.
        let bytes = unsafe { &self.memory.bytes()[..size_of::<S>()] };
        S::read_from_bytes(bytes).expect("as many bytes as a status has")
    }
}

/// What is recorded of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Part<K> {
    /// Gradient and update, with the sum over ranks between them where the devices make it.
    Whole(K),
    /// What the own part of shared frames brings, where the host adds it up.
    Own(K),
    /// The gradient of one draw.
    Gradient(K),
    /// The gradient of what is observed of one.
    Observation(K),
    /// Sum over ranks and update.
    Update,
}

/// How a learner on a GPU goes about its steps.
pub struct GpuLearnerOptions<S> {
    /// Batches of each rank in a step.
    pub draws: usize,
    /// The norm of every gradient is wanted, or costs nothing.
    pub wants_norm: bool,
    /// Bytes of the numbers of a step that room is made for at once.
    pub step_bytes: usize,
    /// Steps that are kept as recorded; batches of more kinds than these are started kernel by kernel.
    pub most_recordings: usize,
    /// A look that an earlier run had asked for.
    pub under_way: Option<S>,
    pub stall_timeout: Duration,
}

/// The batches of a step.
type Draws<F> = Vec<(<F as GpuFamily>::Batch, Asked)>;

/// Trains what a family brings.
pub struct GpuLearner<F: GpuFamily> {
    family: F,
    steps: Steps,
    looks: Looks<F::Status>,
    recordings: Recordings<Part<F::Kind>>,
    draws: usize,
    count: f64,
    wants_norm: bool,
}

impl<F: GpuFamily> GpuLearner<F> {
    /// `sum`: how the gradients of all ranks become one.
    pub fn new(
        team: &mut Team,
        family: F,
        sum: Sum,
        options: GpuLearnerOptions<F::Status>,
    ) -> Result<GpuLearner<F>> {
        let GpuLearnerOptions { draws, wants_norm, step_bytes, stall_timeout, .. } = options;
        let count = match &sum {
            Sum::Host(_) => 1.0, // the host makes the mean
            _ => (draws * team.n_groups()) as f64,
        };
        let device = family.on_device().device;
        let made = Steps::new(device, sum, step_bytes, stall_timeout)
            .and_then(|steps| Ok((steps, Looks::new(device, options.under_way)?)));
        let (steps, looks) = team.agree(made)?;
        let recordings = Recordings::new(options.most_recordings, &|name| std::env::var(name).ok());
        Ok(GpuLearner { family, steps, looks, recordings, draws, count, wants_norm })
    }

    fn wait(&mut self, team: &mut Team) -> Result<()> {
        self.steps.wait(self.family.on_device().device, team)
    }

    /// Does recorded work, or records it when it is done for the second time.
    fn replay(&mut self, part: Part<F::Kind>, shape: &F::Shape) -> Result<()> {
        let Self { family, steps, recordings, wants_norm, .. } = self;
        recordings.retain_for(part, |part| match *part {
            Part::Whole(kind) | Part::Gradient(kind) | Part::Own(kind) | Part::Observation(kind) => {
                family.keeps(kind)
            }
            Part::Update => true,
        });
        let OnDevice { device, generation, .. } = family.on_device();
        let work = || start(family, part, shape, &steps.sum, *wants_norm);
        // SAFETY: memory that moves counts the generation on; the numbers of this batch were sent.
        unsafe { recordings.replay(device, part, generation, work) }
    }

    /// The gradients of all draws, and the update. Returns the batches, and whether to stop.
    fn draws(&mut self, turn: &Turn, team: &mut Team, profiler: &Profiler) -> Result<(Draws<F>, bool)> {
        let on_host = matches!(self.steps.sum, Sum::Host(_));
        let in_parts = self.draws > 1 || on_host;
        let now = Now { step: turn.step, rank: team.rank(), rate: turn.rate.schedule };
        let mut batches = Vec::with_capacity(self.draws);
        for draw in 0..self.draws {
            let mut drawn = profiler.time(Phase::DataWait, || self.family.draw())?;
            profiler.time(Phase::Communication, || self.family.meet(&mut drawn, team))?;
            let span = profiler.span(Phase::Forward);
            let Self { family, steps, .. } = self;
            let device = family.on_device().device.clone();
            let batch = family.place(drawn, &now, &mut || steps.wait(&device, team))?;
            let shape = steps.shape(family, &batch, team)?;
            let asked = Asked::Step {
                turn: *turn,
                place: turn.step * self.draws as u64 + draw as u64,
                count: self.count,
                add: draw > 0 && !on_host,
            };
            steps.send(family, &batch, &asked, team)?;
            let kind = family.kind(&shape);
            if on_host && family.shared_sums(&shape).is_some() {
                self.replay(Part::Own(kind), &shape)?;
                profiler.time(Phase::Communication, || self.steps.sum_on_host(&self.family, &shape, team))?;
            }
            self.replay(if in_parts { Part::Gradient(kind) } else { Part::Whole(kind) }, &shape)?;
            self.steps.started(&device)?;
            drop(span);
            if let Sum::Host(sum) = &mut self.steps.sum {
                let span = profiler.span(Phase::Communication);
                self.family.on_device().grad.read(0, sum.place())?;
                sum.add(draw);
                drop(span);
            }
            batches.push((batch, asked));
            if in_parts && draw + 1 == self.draws {
                let stop = self.mean(turn.stop, team, profiler)?;
                self.replay(Part::Update, &shape)?;
                return Ok((batches, stop));
            }
        }
        Ok((batches, turn.stop))
    }

    /// Several updates from one batch, each by one observation, with the model evaluated again before each.
    fn observe(
        &mut self,
        observations: &[Observation],
        turn: &Turn,
        team: &mut Team,
        profiler: &Profiler,
    ) -> Result<StepReport> {
        let now = Now { step: turn.step, rank: team.rank(), rate: turn.rate.schedule };
        let drawn = profiler.time(Phase::DataWait, || self.family.draw())?;
        let Self { family, steps, .. } = self;
        let device = family.on_device().device.clone();
        let batch = family.place(drawn, &now, &mut || steps.wait(&device, team))?;
        let shape = steps.shape(family, &batch, team)?;
        let kind = family.kind(&shape);
        let asked = Asked::Step { turn: *turn, place: turn.step, count: 1.0, add: false };
        let mut report = StepReport { values: Vec::new(), gradient_norm: f64::NAN, stop: false };
        for (k, observation) in observations.iter().enumerate() {
            let span = profiler.span(Phase::Forward);
            self.family.set_observation(&batch, observation)?;
            self.steps.send(&mut self.family, &batch, &asked, team)?;
            self.replay(Part::Observation(kind), &shape)?;
            self.steps.started(&device)?;
            let seen = self.family.on_device().status().and_then(|_| self.family.observed(&batch));
            let seen = team.agree(seen)?;
            drop(span);
            if k == 0 && turn.wants_values {
                report.values.push(self.family.value(&batch, &asked)?.into_shown());
            }
            if let Sum::Host(sum) = &mut self.steps.sum {
                let _span = profiler.span(Phase::Communication);
                self.family.on_device().grad.read(0, sum.place())?;
                sum.add(0);
            }
            let error = profiler.time(Phase::Communication, || error_of_all(team, &[seen]))?;
            report.stop |= self.mean(turn.stop, team, profiler)?;
            let _span = profiler.span(Phase::Optimizer);
            self.family.assimilate(team.n_groups() as f64, error, team.ranks())?;
        }
        self.family.end_observations()?;
        self.look(turn.step, team)?;
        Ok(report)
    }

    /// The mean over draws and ranks, where the host makes it; whether to stop.
    fn mean(&mut self, stop: bool, team: &mut Team, profiler: &Profiler) -> Result<bool> {
        let Sum::Host(sum) = &mut self.steps.sum else { return Ok(stop) };
        let (grad, stop) = profiler.time(Phase::Communication, || sum.mean(team, stop))?;
        self.family.on_device().grad.write(0, grad)?;
        Ok(stop)
    }

    /// Looks at what the device found out some steps ago: diverged losses, wishes to stop, and what the family makes of it.
    fn look(&mut self, step: u64, team: &mut Team) -> Result<Option<F::Status>> {
        if step % LOOK_EVERY == LOOK_EVERY - 1 {
            self.looks.ask(&self.family.on_device())?;
        }
        if step % LOOK_EVERY != LOOK_AFTER - 1 || !std::mem::take(&mut self.looks.under_way) {
            return Ok(None);
        }
        if self.steps.sum.is_joined(team) && !self.looks.copied.passed()? {
            self.wait(team)?;
        }
        self.looks.copied.wait()?;
        let status = self.looks.seen();
        judge(&status)?;
        let Self { family, steps, .. } = self;
        let device = family.on_device().device.clone();
        family.adapt(&status, &mut || steps.wait(&device, team))?;
        Ok(Some(status))
    }
}

/// Starts the work of a part of a step.
fn start<F: GpuFamily>(
    family: &F,
    part: Part<F::Kind>,
    shape: &F::Shape,
    sum: &Sum,
    wants_norm: bool,
) -> Result<()> {
    // SAFETY: the numbers of a batch of this shape were sent.
    unsafe {
        match part {
            Part::Whole(_) if matches!(sum, Sum::Alone) && !wants_norm => return family.whole_step(shape),
            Part::Own(_) => return family.own_part(shape),
            Part::Observation(_) => return family.observe(shape),
            Part::Gradient(_) | Part::Whole(_) => {
                own_part_and_sum(family, shape, sum)?;
                family.gradient(shape)?;
            }
            Part::Update => {}
        }
    }
    if matches!(part, Part::Gradient(_)) {
        return Ok(());
    }
    if let Sum::Nccl(joined) = sum {
        let OnDevice { grad, n_params, .. } = family.on_device();
        joined.sum(grad, n_params + 1)?;
        family.after_sum()?;
    }
    family.update(wants_norm)
}

/// What the own part of shared frames brings, and the sum over the ranks that share them, where their devices make it; false
/// where there is nothing to do, or the host makes it.
///
/// # Safety
///
/// As for [`GpuFamily::first_pass`].
unsafe fn own_part_and_sum<F: GpuFamily>(family: &F, shape: &F::Shape, sum: &Sum) -> Result<bool> {
    let (Some((sums, n)), Sum::Nccl(joined)) = (family.shared_sums(shape), sum) else { return Ok(false) };
    // SAFETY: the caller's word, and the family's.
    unsafe {
        family.own_part(shape)?;
        joined.sum_in_group(sums, n)?;
    }
    Ok(true)
}

impl<F: GpuFamily> Learner for GpuLearner<F> {
    fn step(&mut self, turn: &Turn, team: &mut Team, profiler: &Profiler) -> Result<StepReport> {
        if turn.reconsiders() {
            self.wait(team)?;
            self.family.reconsider()?;
        }
        let observations = self.family.observations(turn.step);
        if !observations.is_empty() {
            return self.observe(&observations, turn, team, profiler);
        }
        let (batches, mut stop) = self.draws(turn, team, profiler)?;
        let _span = profiler.span(Phase::Optimizer);
        let status = self.look(turn.step, team)?;
        if self.steps.sum.is_joined(team) {
            // All ranks read the same sum at the same step.
            stop = status.is_some_and(|status| status.stop() > 0.0);
        }
        let mut report = StepReport { values: Vec::new(), gradient_norm: f64::NAN, stop };
        if turn.wants_values {
            self.wait(team)?;
            let status = self.family.on_device().status()?;
            if self.wants_norm {
                report.gradient_norm = status.norm();
            }
            for (batch, asked) in &batches {
                report.values.push(self.family.value(batch, asked)?.into_shown());
            }
        }
        Ok(report)
    }

    fn validate(&mut self, team: &mut Team, display: u64, lr: f64) -> Result<Vec<f64>> {
        self.family.validate(&mut self.steps, team, display, lr)
    }

    fn validate_all(&mut self, team: &mut Team, average: bool) -> Result<ErrorTable> {
        self.wait(team)?;
        self.family.validate_all(&mut self.steps, team, average)
    }

    fn snapshot(&mut self, team: &mut Team) -> Result<Snapshot> {
        self.wait(team)?;
        let optimizer = self.family.optimizer_state(team.ranks())?;
        let on_device = self.family.on_device();
        let status = on_device.status()?;
        let under_way = self.looks.under_way.then(|| self.looks.seen());
        Ok(Snapshot {
            params: on_device.read(on_device.params)?,
            optimizer,
            engine: self.family.state(&status, under_way),
        })
    }
}
