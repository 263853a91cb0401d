//! A PiNet on a GPU, as the learner there sees it.

use super::learner::{Evaluation, metrics_over_ranks};
use super::structures::{Nothing, Structure, Structures};
use crate::checkpoint::Arrays;
use crate::comm::Communicator;
use crate::engine::choice::Gpu;
use crate::engine::pinet::cuda::core::{Core, LossTerms, Resident, turn_of};
use crate::engine::pinet::cuda::layout::{Clipping, Status, Turn as Numbers};
use crate::engine::pinet::cuda::shape::{Class, Shape, supports};
use crate::engine::pinet::cuda::{bring, program};
use crate::gpu::{Device, Numbers as Kind, Pinned};
use crate::loss::pinn::{PinnLoss, PinnLossValue, PinnMetrics};
use crate::model::dp::options::Precision;
use crate::model::pinet::PinetModel;
use crate::model::pinet::options::ModelOptions;
use crate::optim::keras_adam::{Clip, KerasAdamOptions, KerasRules};
use crate::optim::{OptimizerChoice, moments};
use crate::sample::{Batch, Queue};
use crate::train::family::Now;
use crate::train::gpu_learner::{self, Asked, GpuFamily, GpuLearner, GpuLearnerOptions, OnDevice, Steps};
use crate::train::gpu_sum::Sum;
use crate::train::team::Team;
use crate::{Result, bail, err};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// Recorded steps that are kept; batches of more classes than these are started kernel by kernel.
const MOST_GRAPHS: usize = 64;

/// What is kept of a structure's place: of the training set, or of the evaluation set.
type Key = (bool, usize, usize);

/// A PiNet on a GPU, with the queue in front of it and the evaluation set beside it.
pub struct PinetOnGpu {
    core: Core,
    loss: Arc<PinnLoss>,
    /// The one optimiser that the kernels have; its moments are on the device.
    adam: KerasRules,
    queue: Queue<Nothing, Structures>,
    evaluation: Option<Evaluation>,
    residents: HashMap<Key, Resident>,
    /// The generation of the store that `residents` are of.
    held: u64,
}

/// Structures on the device.
pub struct Places {
    structures: Vec<Resident>,
    /// The force components that count; `None`: all.
    chosen: Option<Vec<bool>>,
}

impl Places {
    fn class(&self) -> Class {
        let sum = |n: fn(&Resident) -> u32| self.structures.iter().map(|s| n(s) as usize).sum();
        Class::of(self.structures.len(), sum(|s| s.n_atoms), sum(|s| s.n_pairs))
    }
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

impl OnGpu {
    /// The learner with what was brought to the GPU.
    pub fn learner(
        self,
        team: &mut Team,
        loss: Arc<PinnLoss>,
        stall_timeout: Duration,
        queue: Queue<Nothing, Structures>,
        evaluation: Option<Evaluation>,
    ) -> Result<GpuLearner<PinetOnGpu>> {
        let OnGpu { core, sum, adam } = self;
        let options = GpuLearnerOptions {
            draws: 1,
            wants_norm: true, // it is made to cut gradients down
            step_bytes: core.turn_address().1,
            most_recordings: MOST_GRAPHS,
            under_way: None,
            stall_timeout,
        };
        let network = PinetOnGpu {
            held: core.store.generation,
            core,
            loss,
            adam: KerasRules::new(adam),
            queue,
            evaluation,
            residents: HashMap::new(),
        };
        GpuLearner::new(team, network, sum, options)
    }
}

impl PinetOnGpu {
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

    /// The errors of this rank's share of the evaluation set.
    fn own_errors(&mut self, steps: &mut Steps, team: &mut Team) -> Result<PinnMetrics> {
        let mut metrics = PinnMetrics::default();
        let Some(evaluation) = &self.evaluation else { return Ok(metrics) };
        let (batches, count) = (evaluation.batches.clone(), evaluation.count);
        for k in (team.rank()..count).step_by(team.size()) {
            let batch = batches.batch(k)?;
            let keyed: Vec<_> = batch.iter().enumerate().map(|(n, s)| ((true, k, n), s)).collect();
            let chosen = self.loss.chosen_forces(batch.iter().map(|s| &s.labels), 0, 0);
            let places = Places { structures: self.places(&keyed)?, chosen };
            metrics.add(&steps.errors(self, &places, 0.0, team)?);
        }
        Ok(metrics)
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

impl GpuFamily for PinetOnGpu {
    type Drawn = Batch<Nothing, Structures>;
    type Batch = Places;
    type Shape = Shape;
    type Kind = Class;
    type Status = Status;
    type Value = PinnLossValue;

    fn on_device(&self) -> OnDevice<'_, Status> {
        OnDevice {
            device: &self.core.device,
            params: &self.core.params,
            grad: &self.core.grad,
            status: &self.core.status,
            n_params: self.core.n_params(),
            generation: self.core.generation,
        }
    }

    fn optimizer_state(&mut self, _ranks: &mut dyn Communicator) -> Result<Arrays> {
        let mut saved = [0; 2].map(|_| vec![0.0; self.core.n_params()]);
        self.core.moments.iter().zip(&mut saved).try_for_each(|(buffer, x)| buffer.read(0, x))?;
        Ok(moments::named(saved))
    }

    fn draw(&mut self) -> Result<Self::Drawn> {
        self.queue.next()
    }

    fn place(
        &mut self,
        batch: Self::Drawn,
        now: &Now,
        _wait: &mut dyn FnMut() -> Result<()>,
    ) -> Result<Places> {
        let keyed: Vec<_> = (batch.frames.iter())
            .flat_map(|f| (f.frame.0.iter().enumerate()).map(move |(n, s)| ((false, f.id.frame, n), s)))
            .collect();
        let labels = keyed.iter().map(|(_, structure)| &structure.labels);
        let chosen = self.loss.chosen_forces(labels, now.step, now.rank as u64);
        Ok(Places { structures: self.places(&keyed)?, chosen })
    }

    fn knows(&self, batch: &Places) -> bool {
        self.core.knows(&batch.class())
    }

    fn shape(&mut self, batch: &Places) -> Result<Arc<Shape>> {
        self.core.shape(batch.class())
    }

    fn kind(&self, shape: &Shape) -> Class {
        shape.class
    }

    fn numbers(&mut self, bytes: &mut Vec<u8>, batch: &Places, asked: &Asked) {
        let numbers = match asked {
            Asked::Step { turn, count, .. } => {
                let rule = self.adam.at(turn.step, turn.rate.scaled);
                Numbers {
                    rate: rule.rate,
                    epsilon: rule.epsilon,
                    gain: rule.gain,
                    step: turn.step as u32,
                    count: *count,
                    stop: f64::from(u8::from(turn.stop)),
                    dropped: self.loss.dropped(turn.step),
                    ..Numbers::default()
                }
            }
            Asked::Errors { .. } => Numbers::default(),
        };
        turn_of(numbers, &batch.structures, batch.chosen.as_deref(), bytes);
    }

    unsafe fn send(&self, from: &Pinned, _place: usize, bytes: usize) -> Result<()> {
        let (to, room) = self.core.turn_address();
        assert!(bytes <= room, "room was made for the turn of this shape");
        // SAFETY: inside the turn, which steps before this one in the stream have read by then; the rest is the caller's word.
        unsafe { from.copy_to(self.core.device.stream(), to, 0, bytes) }
    }

    unsafe fn first_pass(&self, shape: &Shape) -> Result<()> {
        // SAFETY: the caller's word.
        unsafe {
            self.core.first_pass(shape)?;
            self.core.loss(shape)
        }
    }

    unsafe fn gradient(&self, shape: &Shape) -> Result<()> {
        // SAFETY: the caller's word.
        unsafe {
            self.first_pass(shape)?;
            self.core.second_pass(shape)
        }
    }

    fn after_sum(&self) -> Result<()> {
        self.core.mean()
    }

    fn update(&self, _wants_norm: bool) -> Result<()> {
        self.core.update(clipping(self.adam.options.clip))
    }

    fn value(&self, batch: &Places, _asked: &Asked) -> Result<PinnLossValue> {
        let atoms = batch.structures.iter().map(|s| s.n_atoms as usize).sum();
        Ok(self.loss.value_of(&self.core.values()?, batch.structures.len(), atoms))
    }

    fn validate(
        &mut self,
        steps: &mut Steps,
        team: &mut Team,
        _display: u64,
        _rate: f64,
    ) -> Result<Vec<f64>> {
        let Some(names) = self.evaluation.as_ref().map(|e| e.names.clone()) else { return Ok(Vec::new()) };
        let local = self.own_errors(steps, team);
        let metrics = team.agree(local)?;
        metrics_over_ranks(team, metrics, &names)
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
