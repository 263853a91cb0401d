//! Training a PiNet on a GPU: parameters, structures and the whole step live there; the host replays recorded steps.

use super::learner::{Evaluation, metrics_over_ranks};
use super::structures::{Nothing, Structure, Structures};
use crate::checkpoint::Arrays;
use crate::engine::choice::Gpu;
use crate::engine::pinet::cuda::core::{Core, LossTerms, Resident, turn_of};
use crate::engine::pinet::cuda::layout::{Clipping, Status, Turn as Numbers};
use crate::engine::pinet::cuda::shape::{Class, Shape, supports};
use crate::engine::pinet::cuda::{bring, program};
use crate::error::ErrorKind;
use crate::gpu::{Buffer, Device, Event, Numbers as Kind, Pinned};
use crate::loss::Cost;
use crate::loss::pinn::{PinnLoss, PinnLossValue, PinnMetrics};
use crate::model::dp::options::Precision;
use crate::model::pinet::PinetModel;
use crate::model::pinet::options::ModelOptions;
use crate::optim::keras_adam::{Clip, KerasAdamOptions, KerasRules};
use crate::optim::{OptimizerChoice, moments};
use crate::report::profile::{Phase, Profiler};
use crate::sample::Queue;
use crate::train::gpu_sum::Sum;
use crate::train::learner::{Learner, Snapshot, StepReport, Turn};
use crate::train::replay::Recordings;
use crate::train::team::Team;
use crate::{Result, bail, err};
use serde_json::Value;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// Steps that the host may be ahead of the device.
const AHEAD: usize = 16;
/// Steps between looks at the device's status.
const LOOK_EVERY: u64 = 128;
/// Recorded steps that are kept; batches of more classes than these are started kernel by kernel.
const MOST_GRAPHS: usize = 64;

/// What is kept of a structure's place: of the training set, or of the evaluation set.
type Key = (bool, usize, usize);

/// Trains a PiNet on a GPU.
pub struct PinnCudaLearner {
    core: Core,
    loss: Arc<PinnLoss>,
    /// The one optimiser that the kernels have; its moments are on the device.
    adam: KerasRules,
    sum: Sum,
    stall_timeout: Duration,
    queue: Queue<Nothing, Structures>,
    evaluation: Option<Evaluation>,
    residents: HashMap<Key, Resident>,
    /// The generation of the store that `residents` are of.
    held: u64,
    ring: Vec<(Pinned, Event)>,
    next: usize,
    bytes: Vec<u8>,
    recordings: Recordings<Class>,
}

/// What is on the GPU before the first step, and how the gradients of all GPUs are added up.
pub struct OnGpu {
    core: Core,
    sum: Sum,
    adam: KerasAdamOptions,
}

impl OnGpu {
    /// The model, its parameters and Adam's moments on this rank's GPU. All ranks come to the same answer: where one of them
    /// cannot, none does.
    #[allow(clippy::too_many_arguments)] // each is a thing of its own
    pub fn new(
        team: &mut Team,
        (gpu, shared): &(Gpu, bool),
        precision: Precision,
        model: &Arc<PinetModel>,
        loss: &PinnLoss,
        params: &[f64],
        (optimizer, resumed): (&OptimizerChoice, Option<&Arrays>),
        blocks: Option<Vec<Range<usize>>>,
    ) -> Result<Self> {
        let Some(&adam) = optimizer.options::<KerasAdamOptions>() else {
            bail!("the GPU has no optimizer but Adam");
        };
        let env = |name: &str| std::env::var(name).ok();
        let numbers = match precision {
            Precision::Float64 => Kind::F64,
            Precision::Float32 => Kind::F32,
        };
        let device = team.agree(program::open(&gpu.cuda, gpu.index, numbers, &env))?;
        let core = check(&device, model).and_then(|()| Self::fill(&device, model, loss, params, resumed));
        let core = team.agree(core)?;
        let sum = Sum::choose(team, &device, *shared, params.len(), 1, blocks, &env)?;
        Ok(OnGpu { core, sum, adam })
    }

    fn fill(
        device: &Arc<Device>,
        model: &Arc<PinetModel>,
        loss: &PinnLoss,
        params: &[f64],
        resumed: Option<&Arrays>,
    ) -> Result<Core> {
        let (s_weight, counted) = loss.counted();
        let terms = LossTerms {
            is_dipole: matches!(loss.options(), ModelOptions::Dipole(_)),
            counted,
            s_weight,
            pull: loss.pull(params.len()),
        };
        let core = Core::new(device, model, loss.wants_forces(), Some(terms))?;
        core.set_params(params)?;
        if let Some(arrays) = resumed {
            let saved = moments::find(arrays, params.len())?;
            core.moments.iter().zip(saved).try_for_each(|(buffer, x)| buffer.write(0, x))?;
        }
        Ok(core)
    }
}

/// What is cut down, as the kernels know it, and to what.
fn clipping(clip: Clip) -> (Clipping, f64) {
    match clip {
        Clip::None => (Clipping::None, 0.0),
        Clip::Variable(most) => (Clipping::Variable, most),
        Clip::Global(most) => (Clipping::Global, most),
        Clip::Value(most) => (Clipping::Value, most),
    }
}

/// Refuses networks that the kernels cannot compute.
fn check(device: &Device, model: &PinetModel) -> Result<()> {
    let plan = crate::engine::pinet::cpu::plan::Plan::plain(model);
    supports(&plan, device.numbers.size(), device.max_shared()).map_err(|why| {
        err!("{} cannot compute this network: {why}", device.name).help("use --device cpu or --device auto")
    })
}

impl PinnCudaLearner {
    pub fn new(
        on_gpu: OnGpu,
        loss: Arc<PinnLoss>,
        stall_timeout: Duration,
        queue: Queue<Nothing, Structures>,
        evaluation: Option<Evaluation>,
    ) -> Self {
        let OnGpu { core, sum, adam } = on_gpu;
        let held = core.store.generation;
        PinnCudaLearner {
            core,
            loss,
            adam: KerasRules::new(adam),
            sum,
            stall_timeout,
            queue,
            evaluation,
            residents: HashMap::new(),
            held,
            ring: Vec::new(),
            next: 0,
            bytes: Vec::new(),
            recordings: Recordings::new(MOST_GRAPHS, &|name| std::env::var(name).ok()),
        }
    }

    /// Where the structures of a batch lie, after those that are absent were brought.
    fn places(&mut self, batch: &[(Key, &Structure)]) -> Result<Vec<Resident>> {
        let mut places = Vec::with_capacity(batch.len());
        let mut full = false;
        for (key, structure) in batch {
            if self.held != self.core.store.generation {
                self.residents.clear();
                self.held = self.core.store.generation;
            }
            let place = match self.residents.get(key) {
                Some(place) => Some(*place),
                None => {
                    let elements = self.loss.elements(&structure.frame, &structure.labels);
                    bring(&mut self.core, &structure.frame, &elements)?
                }
            };
            let Some(place) = place else {
                full = true;
                break;
            };
            self.residents.insert(*key, place);
            places.push(place);
        }
        if !full {
            return Ok(places);
        }
        if self.residents.len() <= places.len() {
            bail!("the GPU has no room for a batch of {} structures", batch.len());
        }
        // All are given up; those of this batch are brought again.
        self.core.store.clear();
        self.places(batch)
    }

    /// Sends the numbers of a batch ahead of it, without waiting for the device unless it is far behind.
    fn send(
        &mut self,
        numbers: Numbers,
        batch: &[Resident],
        chosen: Option<&[bool]>,
        team: &mut Team,
    ) -> Result<Arc<Shape>> {
        let class = turn_of(numbers, batch, chosen, &mut self.bytes);
        // A new kind of batch may need memory that steps under way still use.
        if !self.core.knows(&class) {
            self.wait(team)?;
        }
        let shape = self.core.shape(class)?;
        let device = self.core.device.clone();
        let at = self.next % AHEAD;
        if self.ring.len() <= at {
            self.ring.push((Pinned::new(&device, 2 * self.bytes.len())?, Event::new(&device)?));
        } else {
            self.sum.wait_for(&self.ring[at].1, team, self.stall_timeout)?;
            if self.ring[at].0.size() < self.bytes.len() {
                self.ring[at].0 = Pinned::new(&device, 2 * self.bytes.len())?;
            }
        }
        let (pinned, event) = &mut self.ring[at];
        let (to, room) = self.core.turn_address();
        assert!(self.bytes.len() <= room, "room was made for the turn of this shape");
        // SAFETY: the last copy from this piece is over; it is written again after the event below.
        unsafe {
            pinned.bytes_mut()[..self.bytes.len()].copy_from_slice(&self.bytes);
            pinned.copy_to(device.stream(), to, 0, self.bytes.len())?;
        }
        event.record(device.stream())?;
        self.next += 1;
        Ok(shape)
    }

    /// The gradient of a batch, and the update unless the host adds gradients up.
    fn work(&self, shape: &Shape) -> Result<()> {
        // SAFETY: the turn of a batch of this shape was sent.
        unsafe {
            self.core.first_pass(shape)?;
            self.core.loss(shape)?;
            self.core.second_pass(shape)?;
        }
        match &self.sum {
            Sum::Host(_) => return Ok(()),
            Sum::Alone => {}
            Sum::Nccl(comm) => {
                comm.sum(&self.core.grad, self.core.n_params() + 1)?;
                self.core.mean()?;
            }
        }
        self.core.update(clipping(self.adam.options.clip))
    }

    /// Does recorded work, or records it when it is done for the second time.
    fn replay(&mut self, shape: &Shape) -> Result<()> {
        let mut recordings = std::mem::take(&mut self.recordings);
        let (device, generation) = (&self.core.device, self.core.generation);
        // SAFETY: memory that moves counts the generation on; the turn of this batch was sent.
        let done = unsafe { recordings.replay(device, shape.class, generation, || self.work(shape)) };
        self.recordings = recordings;
        done
    }

    /// The mean over ranks, through the host, and the update with it.
    fn mean(&mut self, team: &mut Team, stop: bool) -> Result<bool> {
        let Sum::Host(sum) = &mut self.sum else { return Ok(stop) };
        let read = self.core.grad.read(0, sum.place(0));
        team.agree(read)?;
        sum.add(0);
        let (grad, stop) = sum.mean(team, stop)?;
        self.core.grad.write(0, grad)?;
        self.core.update(clipping(self.adam.options.clip))?;
        Ok(stop)
    }

    /// Waits for all steps.
    fn wait(&mut self, team: &mut Team) -> Result<()> {
        self.sum.wait(&self.core.device, team, self.stall_timeout)
    }

    /// What the device found out: the norm of the gradient, and whether a rank wishes to stop.
    fn judge(&self) -> Result<Status> {
        let status = self.core.status()?;
        if status.bad_step > 0 {
            let step = status.bad_step;
            return Err(err!("the loss of step {step} is not a number: the parameters have diverged")
                .of_kind(ErrorKind::Diverged));
        }
        Ok(status)
    }

    /// The loss of the last batch.
    fn value(&self, batch: &[Resident]) -> Result<PinnLossValue> {
        let atoms = batch.iter().map(|s| s.n_atoms as usize).sum();
        Ok(self.loss.value_of(&self.core.values()?, batch.len(), atoms))
    }

    /// The errors of this rank's share of the evaluation set.
    fn own_errors(&mut self, team: &mut Team) -> Result<PinnMetrics> {
        let mut metrics = PinnMetrics::default();
        let Some(evaluation) = &self.evaluation else { return Ok(metrics) };
        let (batches, count) = (evaluation.batches.clone(), evaluation.count);
        for k in (team.rank()..count).step_by(team.size()) {
            let batch = batches.batch(k)?;
            let keyed: Vec<_> = batch.iter().enumerate().map(|(n, s)| ((true, k, n), s)).collect();
            let places = self.places(&keyed)?;
            let chosen = self.loss.chosen_forces(batch.iter().map(|s| &s.labels), 0, 0);
            let shape = self.send(Numbers::default(), &places, chosen.as_deref(), team)?;
            // SAFETY: the turn of this batch was sent.
            unsafe {
                self.core.first_pass(&shape)?;
                self.core.loss(&shape)?;
            }
            metrics.add(&self.value(&places)?);
        }
        Ok(metrics)
    }
}

impl Learner for PinnCudaLearner {
    fn step(&mut self, turn: &Turn, team: &mut Team, profiler: &Profiler) -> Result<StepReport> {
        let batch = profiler.time(Phase::DataWait, || self.queue.next())?;
        let span = profiler.span(Phase::Forward);
        let keyed: Vec<_> = (batch.frames.iter())
            .flat_map(|f| (f.frame.0.iter().enumerate()).map(move |(n, s)| ((false, f.id.frame, n), s)))
            .collect();
        let places = self.places(&keyed)?;
        let rule = self.adam.at(turn.step, turn.rate.scaled);
        let numbers = Numbers {
            rate: rule.rate,
            epsilon: rule.epsilon,
            gain: rule.gain,
            step: turn.step as u32,
            count: team.size() as f64,
            stop: f64::from(u8::from(turn.stop)),
            dropped: self.loss.dropped(turn.step),
            ..Numbers::default()
        };
        let labels = keyed.iter().map(|(_, structure)| &structure.labels);
        let chosen = self.loss.chosen_forces(labels, turn.step, team.rank() as u64);
        let shape = self.send(numbers, &places, chosen.as_deref(), team)?;
        self.replay(&shape)?;
        drop(span);
        let mut stop = profiler.time(Phase::Communication, || self.mean(team, turn.stop))?;
        let span = profiler.span(Phase::Optimizer);
        let mut report = StepReport { values: Vec::new(), gradient_norm: f64::NAN, stop: false };
        let mut wish = 0.0;
        if turn.wants_values || turn.step % LOOK_EVERY == LOOK_EVERY - 1 {
            self.wait(team)?;
            let status = self.judge()?;
            wish = status.stop;
            if turn.wants_values {
                report.gradient_norm = status.norm;
                report.values.push(self.value(&places)?.into_shown());
            }
        }
        if self.sum.is_joined(team) {
            // All ranks read the same sum at the same step.
            stop = wish > 0.0;
        }
        drop(span);
        report.stop = stop;
        Ok(report)
    }

    fn validate(&mut self, team: &mut Team, _display: u64, _lr: f64) -> Result<Vec<f64>> {
        let Some(names) = self.evaluation.as_ref().map(|e| e.names.clone()) else { return Ok(Vec::new()) };
        self.wait(team)?;
        let local = self.own_errors(team);
        let metrics = team.agree(local)?;
        metrics_over_ranks(team, metrics, &names)
    }

    fn snapshot(&mut self, team: &mut Team) -> Result<Snapshot> {
        self.wait(team)?;
        self.judge()?;
        let read = |buffer: &Buffer<f64>| -> Result<Vec<f64>> {
            let mut values = vec![0.0; self.core.n_params()];
            buffer.read(0, &mut values)?;
            Ok(values)
        };
        let [first, second] = &self.core.moments;
        Ok(Snapshot {
            params: read(&self.core.params)?,
            optimizer: moments::named([read(first)?, read(second)?]),
            engine: Value::Null,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::pinet::reference::PinetReference;
    use crate::engine::pinet::{PinetEngine, PinetPrediction, PinetSeeds};
    use crate::gpu::Cuda;
    use crate::loss::pinn::tests::{all, batch, model, separate};
    use crate::optim::keras_adam::KerasAdam;
    use crate::optim::keras_rate::Rate;

    /// Three steps on the device give the losses and parameters of the reference, for every option of the loss.
    #[test]
    fn whole_steps_agree_with_the_reference_for_every_loss() {
        let env = |name: &str| std::env::var(name).ok();
        let device = match Cuda::find(&env) {
            Ok(cuda) => program::open(&cuda, 0, Kind::F64, &env).unwrap(),
            Err(e) => return crate::skip::skip(e.message()),
        };
        let model = Arc::new(model());
        let (frames, labels, _) = batch(&model);
        let (refs, label_refs): (Vec<_>, Vec<_>) = (frames.iter().collect(), labels.iter().collect());
        let variables: Vec<_> = model.table.views().iter().map(|view| view.range()).collect();
        let clips = [Clip::None, Clip::Variable(0.01), Clip::Global(0.01), Clip::Value(1e-3)];
        let bases = [KerasAdamOptions::master(), KerasAdamOptions::fork()];
        for (k, options) in all().into_iter().chain(separate()).enumerate() {
            let loss = Arc::new(PinnLoss::new(options.clone(), &model, 5));
            let adam = KerasAdamOptions { clip: clips[k % 4], ..bases[k % 2] };
            let mut params = model.init(3);
            let (s_weight, counted) = loss.counted();
            let is_dipole = matches!(options, ModelOptions::Dipole(_));
            let terms = LossTerms { is_dipole, counted, s_weight, pull: loss.pull(params.len()) };
            let mut core = Core::new(&device, &model, loss.wants_forces(), Some(terms)).unwrap();
            core.set_params(&params).unwrap();
            let places: Vec<Resident> = (frames.iter().zip(&labels))
                .map(|(f, l)| bring(&mut core, f, &loss.elements(f, l)).unwrap().unwrap())
                .collect();
            let mut cpu = KerasAdam::new(adam, variables.clone(), params.len());
            let mut rules = KerasRules::new(adam);
            let rate = [Rate::master(), Rate::fork()][k % 2];
            let mut engine = PinetReference::new(model.clone(), loss.wants_forces());
            // Four terms are to be drawn where one at a time counts.
            for step in 0..if loss.dropped(0) > 0 { 8 } else { 3 } {
                let rule = rules.at(step, rate.at(step));
                let numbers = Numbers {
                    rate: rule.rate,
                    epsilon: rule.epsilon,
                    gain: rule.gain,
                    dropped: loss.dropped(step),
                    ..Numbers::default()
                };
                let mut bytes = Vec::new();
                let chosen = loss.chosen_forces(labels.iter(), step, 0);
                let shape = core.shape(turn_of(numbers, &places, chosen.as_deref(), &mut bytes)).unwrap();
                core.set_turn(&bytes).unwrap();
                // SAFETY: the shape is of the class of these structures.
                unsafe {
                    core.first_pass(&shape).unwrap();
                    core.loss(&shape).unwrap();
                    core.second_pass(&shape).unwrap();
                }
                core.update(clipping(adam.clip)).unwrap();
                let (mut out, mut seeds) = (PinetPrediction::default(), PinetSeeds::default());
                engine.evaluate(&mut out, &params, &refs);
                let want = loss.differentiate(&mut seeds, &out, &refs, &label_refs, &params, step, 0);
                let mut grad = vec![0.0; params.len()];
                engine.backward(&mut grad, &params, &refs, &seeds);
                loss.regularise_add(&mut grad, &params, step);
                cpu.step(&mut params, &grad, rate.at(step), step);
                let got = loss.value_of(&core.values().unwrap(), 2, 5);
                let off = (got.loss - want.loss).abs() / want.loss.abs();
                assert!(off < 1e-10, "{options:?} step {step}: loss {} {}", got.loss, want.loss);
                let mut after = vec![0.0; params.len()];
                core.params.read(0, &mut after).unwrap();
                let off = after.iter().zip(&params).fold(0.0f64, |a, (x, y)| a.max((x - y).abs()));
                assert!(off < 1e-8, "{options:?} step {step}: parameters off by {off:e}");
            }
        }
    }
}
