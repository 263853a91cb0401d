//! Training a PiNet on a GPU: parameters, structures and the whole step live there; the host replays recorded steps.

use super::learner::{Evaluation, metrics_over_ranks, shown};
use super::structures::{Nothing, Structure, Structures};
use crate::engine::cuda::Device;
use crate::engine::cuda::device::{Event, Graph, Pinned};
use crate::engine::pinet::cuda::core::{Core, LossTerms, Resident, turn_of};
use crate::engine::pinet::cuda::layout::{Status, Turn as Numbers};
use crate::engine::pinet::cuda::shape::{Class, Shape, supports};
use crate::engine::pinet::cuda::{bring, program};
use crate::loss::pinn::{PinnLoss, PinnLossValue, PinnMetrics};
use crate::model::pinet::PinetModel;
use crate::model::pinet::options::ModelOptions;
use crate::optim::keras_adam::KerasAdam;
use crate::report::profile::{Phase, Profiler};
use crate::sample::Queue;
use crate::train::gpu_sum::Sum;
use crate::train::learner::{Learner, Snapshot, StepReport, Turn};
use crate::train::team::Team;
use crate::{Result, bail};
use serde_json::Value;
use std::collections::HashMap;
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
    /// Options and rates; moments are on the device.
    adam: KerasAdam,
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
    graphs: HashMap<Class, Option<Graph>>,
    generation: u64,
    records: bool,
}

/// What a learner starts from.
pub struct Start {
    pub device: Arc<Device>,
    pub model: Arc<PinetModel>,
    pub loss: Arc<PinnLoss>,
    pub params: Vec<f64>,
    /// With moments, which go to the device.
    pub adam: KerasAdam,
    pub sum: Sum,
    pub stall_timeout: Duration,
    pub queue: Queue<Nothing, Structures>,
    pub evaluation: Option<Evaluation>,
}

/// Why a run cannot be on the GPU, if so.
pub fn refuses(device: &Device, model: &PinetModel) -> Option<String> {
    let plan = crate::engine::pinet::cpu::plan::Plan::plain(model);
    supports(&plan, device.numbers.size(), device.max_shared()).err()
}

/// Opens the GPU with PiNet's kernels.
pub fn open(gpu: &crate::engine::choice::Gpu, numbers: crate::engine::cuda::Numbers) -> Result<Arc<Device>> {
    program::open(&gpu.cuda, gpu.index, numbers, &|name| std::env::var(name).ok())
}

impl PinnCudaLearner {
    pub fn new(start: Start) -> Result<Self> {
        let Start { device, model, loss, params, mut adam, sum, stall_timeout, queue, evaluation } = start;
        let (s_weight, counted) = loss.counted();
        let terms = LossTerms {
            is_dipole: matches!(loss.options(), ModelOptions::Dipole(_)),
            counted,
            s_weight,
            pull: loss.pull(params.len()),
        };
        let core = Core::new(&device, &model, loss.wants_forces(), Some(terms))?;
        core.set_params(&params)?;
        core.first_moment.write(0, &adam.first_moment)?;
        core.second_moment.write(0, &adam.second_moment)?;
        (adam.first_moment, adam.second_moment) = (vec![], vec![]);
        let records = std::env::var("PHALANX_GRAPHS").map_or(true, |value| value != "0");
        let (held, generation) = (core.store.generation, core.generation);
        Ok(PinnCudaLearner {
            core,
            loss,
            adam,
            sum,
            stall_timeout,
            queue,
            evaluation,
            residents: HashMap::new(),
            held,
            ring: Vec::new(),
            next: 0,
            bytes: Vec::new(),
            graphs: HashMap::new(),
            generation,
            records,
        })
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
            if self.ring[at].0.bytes().len() < self.bytes.len() {
                self.ring[at].0 = Pinned::new(&device, 2 * self.bytes.len())?;
            }
        }
        let (pinned, event) = &mut self.ring[at];
        pinned.bytes_mut()[..self.bytes.len()].copy_from_slice(&self.bytes);
        pinned.copy_to(device.stream(), self.core.turn.ptr(), 0, self.bytes.len())?;
        event.record(device.stream())?;
        self.next += 1;
        Ok(shape)
    }

    /// The gradient of a batch, and the update unless the host adds gradients up.
    fn work(&self, shape: &Shape) -> Result<()> {
        self.core.first_pass(shape)?;
        self.core.loss(shape)?;
        self.core.second_pass(shape)?;
        match &self.sum {
            Sum::Host(_) => return Ok(()),
            Sum::Alone => {}
            Sum::Nccl(comm) => {
                comm.sum(self.core.grad.ptr(), self.core.n_params() + 1)?;
                self.core.mean()?;
            }
        }
        self.core.update(self.adam.options.clip)
    }

    /// Does recorded work, or records it when it is done for the second time.
    fn replay(&mut self, shape: &Arc<Shape>) -> Result<()> {
        if !self.records {
            return self.work(shape);
        }
        if self.generation != self.core.generation {
            self.graphs.clear();
            self.generation = self.core.generation;
        }
        match self.graphs.get(&shape.class) {
            Some(Some(graph)) => return graph.launch(),
            // The first time loads kernels, which cannot be recorded.
            None => {
                if self.graphs.len() < MOST_GRAPHS {
                    self.graphs.insert(shape.class, None);
                }
                return self.work(shape);
            }
            Some(None) => {}
        }
        let device = self.core.device.clone();
        let graph = Graph::record(&device, || self.work(shape))?;
        graph.launch()?;
        self.graphs.insert(shape.class, Some(graph));
        Ok(())
    }

    /// The mean over ranks, through the host, and the update with it.
    fn mean(&mut self, team: &mut Team, stop: bool) -> Result<bool> {
        let Sum::Host(sum) = &mut self.sum else { return Ok(stop) };
        let read = self.core.grad.read(0, sum.place(0));
        team.agree(read)?;
        sum.add(0);
        let (grad, stop) = sum.mean(team, stop)?;
        self.core.grad.write(0, grad)?;
        self.core.update(self.adam.options.clip)?;
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
            bail!("the loss of step {} is not a number: the parameters have diverged", status.bad_step);
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
            self.core.first_pass(&shape)?;
            self.core.loss(&shape)?;
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
        let rule = self.adam.rule(turn.step);
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
                report.values.push(shown(&self.value(&places)?));
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
        let read = |buffer: &crate::engine::cuda::device::Buffer| -> Result<Vec<f64>> {
            let mut values = vec![0.0; self.core.n_params()];
            buffer.read(0, &mut values)?;
            Ok(values)
        };
        Ok(Snapshot {
            params: read(&self.core.params)?,
            first_moment: read(&self.core.first_moment)?,
            second_moment: read(&self.core.second_moment)?,
            engine: Value::Null,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::cuda::{Cuda, Numbers as Kind};
    use crate::engine::pinet::reference::PinetReference;
    use crate::engine::pinet::{PinetEngine, PinetPrediction, PinetSeeds};
    use crate::loss::pinn::tests::{all, batch, model, separate};
    use crate::optim::keras_adam::{Clip, KerasAdamOptions};

    /// Three steps on the device give the losses and parameters of the reference, for every option of the loss.
    #[test]
    fn whole_steps_agree_with_the_reference_for_every_loss() {
        let env = |name: &str| std::env::var(name).ok();
        let device = match Cuda::find(&env) {
            Ok(cuda) => program::open(&cuda, 0, Kind::F64, &env).unwrap(),
            Err(e) => return println!("whole_steps_agree: skipped, {}", e.message()),
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
            let mut rules = KerasAdam::new(adam, vec![], 0);
            let mut engine = PinetReference::new(model.clone(), loss.wants_forces());
            // Four terms are to be drawn where one at a time counts.
            for step in 0..if loss.dropped(0) > 0 { 8 } else { 3 } {
                let rule = rules.rule(step);
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
                core.turn.write(0, &bytes).unwrap();
                core.first_pass(&shape).unwrap();
                core.loss(&shape).unwrap();
                core.second_pass(&shape).unwrap();
                core.update(adam.clip).unwrap();
                let (mut out, mut seeds) = (PinetPrediction::default(), PinetSeeds::default());
                engine.evaluate(&mut out, &params, &refs);
                let want = loss.differentiate(&mut seeds, &out, &refs, &label_refs, &params, step, 0);
                let mut grad = vec![0.0; params.len()];
                engine.backward(&mut grad, &params, &refs, &seeds);
                loss.regularise_add(&mut grad, &params, step);
                cpu.step(&mut params, &mut grad, step);
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
