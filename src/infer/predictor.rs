//! Frames in, energies, forces and virials out: in batches, on all cores, in bounded memory.
//!
//! A configuration becomes a `Geometry`, from its own neighbour list or from that of an MD program (`neighbor/domain.rs`: local atoms first,
//! then ghosts, which are neighbours and no centres); 2048 centres after another become a `CpuFrame`, and the engine, whose series and weights
//! are made once (`CpuEngine::freeze`), runs its first pass on them. The tables of a compressed model (`model/dp/table.rs`) take the place of
//! the nets on the direct path. On a GPU it is `engine/cuda/evaluate/`, where a configuration is a domain too (`neighbor/images.rs`). A frame
//! of more atoms than are evaluated at once is the sum of blocks that follow from its number of atoms alone ([`Cut::steady`]), whoever
//! evaluates them.

mod outputs; // what is not an energy

pub use outputs::OfAtoms;

use crate::data::{Frame, System, Wants};
use crate::engine::choice::{DeviceChoice, Gpu};
use crate::engine::cpu::frame::CpuFrames;
use crate::engine::cpu::real::Real;
use crate::engine::cpu::{CpuEngine, EmbeddingMode};
use crate::engine::cuda::evaluate::Evaluator;
use crate::engine::cuda::plan::evaluate::PlanEvaluator;
use crate::engine::cuda::plan::{self, PlanEngine};
use crate::engine::cuda::{CudaEngine, OnGpu, engine_on_gpu, program};
pub use crate::engine::{Derivatives, Evaluation};
use crate::engine::{Engine, Prediction, Preparer};
use crate::error::Result;
use crate::gpu::Numbers;
use crate::model::dp::Dp;
use crate::model::dp::geometry::{Geometry, extra_inputs, list_of};
use crate::model::dp::options::{DescriptorOptions, Embedding, Precision};
use crate::model::dp::spec::DpModel;
use crate::neighbor::stat::NeighborStat;
use crate::neighbor::{Cut, Domain, Images};
use crate::{bail, err};
use rayon::prelude::*;
use std::ops::Range;
use std::sync::Arc;

/// Atoms that are evaluated at once unless told otherwise: enough to feed many cores, some 100 MB at most.
const BATCH_ATOMS: usize = 8192;

/// Atoms of one large frame that are evaluated at once: enough for many cores, and a few hundred MB for a stock network.
const CENTERS: usize = 2048;

/// Evaluates frames with a model, in the model's precision.
pub struct Predictor {
    model: Arc<Dp>,
    /// One for each descriptor.
    parts: Vec<Arc<Dp>>,
    params: Vec<f64>,
    /// Shortest distance of the training data, where the model file says it.
    min_nbor_dist: Option<f64>,
    /// The series reaches down to this part of it.
    reach: f64,
    batch_atoms: usize,
    /// Reads and prepares frames.
    loaders: rayon::ThreadPool,
    n_threads: usize,
    /// Where to compute, and the choice that says what happens where this GPU cannot do what the model wants.
    gpu: Option<(Gpu, DeviceChoice)>,
    /// How the GPU computes where not as the model says.
    numbers: Option<Numbers>,
    /// Made with the first batch, whose distances it may need.
    engine: Option<PrecisionEngine>,
    /// Evaluates single configurations on the GPU, made with the first of them.
    evaluator: Option<OnDevice>,
    /// CPU threads for single configurations that the GPU leaves to them, where `engine` is on the GPU.
    beside: Option<PrecisionEngine>,
}

enum PrecisionEngine {
    Float32(CpuEngine<f32>),
    Float64(CpuEngine<f64>),
    Cuda(Box<CudaEngine>),
    Operations(Box<PlanEngine>),
}

/// Evaluates single configurations on a GPU.
enum OnDevice {
    Fused(Box<Evaluator>),
    Operations(Box<PlanEvaluator>),
}

/// Frames as an engine wants them, in their order.
fn prepare<P: Send>(prepare: Preparer<P>, loaders: &rayon::ThreadPool, frames: &[Frame]) -> Result<Vec<P>> {
    loaders.install(|| frames.par_iter().map(|frame| prepare(frame)).collect())
}

impl Predictor {
    /// A predictor with so many threads.
    pub fn new(model: DpModel, n_threads: usize) -> Result<Self> {
        let min_nbor_dist = model.min_nbor_dist.filter(|r| r.is_finite() && *r > 0.0);
        let (model, params) = Dp::from_spec(model)?;
        let model = Arc::new(model);
        Ok(Predictor {
            parts: model.parts(),
            model,
            params,
            min_nbor_dist,
            reach: 1.0,
            batch_atoms: BATCH_ATOMS,
            loaders: start_loaders(n_threads)?,
            n_threads: n_threads.max(1),
            gpu: None,
            numbers: None,
            engine: None,
            evaluator: None,
            beside: None,
        })
    }

    /// Evaluates about so many atoms at once, and at least one frame.
    pub fn with_batch_atoms(mut self, batch_atoms: usize) -> Self {
        self.batch_atoms = batch_atoms.max(1);
        self
    }

    /// As [`Predictor::new`] with another number of threads.
    pub fn with_threads(mut self, n_threads: usize) -> Result<Self> {
        self.loaders = start_loaders(n_threads)?;
        self.n_threads = n_threads.max(1);
        (self.engine, self.beside) = (None, None);
        Ok(self)
    }

    /// Makes the series for distances down to this part of the shortest one of the training data, for atoms that come closer.
    pub fn with_reach(mut self, part: f64) -> Self {
        self.reach = part;
        self
    }

    /// Evaluates on a GPU, which `choice` has found.
    pub fn on_gpu(mut self, gpu: Gpu, choice: DeviceChoice) -> Self {
        self.gpu = Some((gpu, choice));
        self
    }

    /// Evaluates on CPU threads.
    pub fn on_cpu(mut self) -> Self {
        (self.gpu, self.engine, self.evaluator) = (None, None, None);
        self
    }

    /// Computes single configurations on the GPU with these numbers, whatever the precision of the model.
    pub fn with_numbers(mut self, numbers: Numbers) -> Self {
        self.numbers = Some(numbers);
        self
    }

    /// Where single configurations are evaluated, in words.
    pub fn device(&self) -> String {
        match &self.gpu {
            Some((gpu, _)) => format!("GPU {}: {}", gpu.index, gpu.name),
            None => format!("{} CPU threads", self.n_threads),
        }
    }

    /// About so many atoms are evaluated at once.
    pub fn batch_atoms(&self) -> usize {
        self.batch_atoms
    }

    /// Frames of so many atoms that are evaluated at once.
    pub fn frames_at_once(&self, n_atoms: usize) -> usize {
        (self.batch_atoms / n_atoms.max(1)).max(1)
    }

    /// Whether frames are evaluated on a GPU, where the last bits depend on what is in a batch.
    pub fn is_on_gpu(&self) -> bool {
        self.gpu.is_some()
    }

    /// The model.
    pub fn model(&self) -> &Dp {
        &self.model
    }

    /// Names of the model's types.
    pub fn type_map(&self) -> &[String] {
        &self.model.options.type_map
    }

    /// What a prediction needs of a frame beside coordinates, cell and types: no labels.
    pub fn wants(&self) -> Wants {
        let fitting = &self.model.options.fitting;
        Wants {
            numb_fparam: fitting.numb_fparam,
            fparam_has_default: fitting.default_fparam.is_some(),
            numb_aparam: fitting.numb_aparam,
            ..Wants::default()
        }
    }

    /// Float64 where one of the nets is, else float32.
    pub fn precision(&self) -> Precision {
        self.model.options.precision()
    }

    /// Evaluates frames all at once. Types are those of [`Predictor::type_map`].
    pub fn predict(&mut self, frames: &[Frame]) -> Result<Prediction> {
        if frames.is_empty() {
            return Ok(Prediction::default());
        }
        self.settle(frames)?;
        if let [frame] = frames
            && self.n_blocks(frame.n_atoms()) > 1
        {
            let mut all = self.predict_block(frame, 0)?;
            for block in 1..self.n_blocks(frame.n_atoms()) {
                all.add(&self.predict_block(frame, block)?);
            }
            return Ok(all);
        }
        let engine = self.engine.as_mut().expect("it was made above");
        match engine {
            PrecisionEngine::Float32(engine) => evaluate(engine, &self.params, &self.loaders, frames),
            PrecisionEngine::Float64(engine) => evaluate(engine, &self.params, &self.loaders, frames),
            PrecisionEngine::Cuda(engine) => {
                let prepared = prepare(engine.preparer(), &self.loaders, frames)?;
                let mut out = Prediction::default();
                engine.try_evaluate(&mut out, &self.params, &prepared.iter().collect::<Vec<_>>())?;
                Ok(out)
            }
            PrecisionEngine::Operations(engine) => {
                let prepared = prepare(engine.preparer(), &self.loaders, frames)?;
                let mut out = Prediction::default();
                engine.try_evaluate(&mut out, &self.params, &prepared.iter().collect::<Vec<_>>())?;
                Ok(out)
            }
        }
    }

    /// Makes what evaluates, as the first of these frames need it; from then on predictions do not depend on what came before.
    pub fn settle(&mut self, frames: &[Frame]) -> Result<()> {
        if self.engine.is_none() && !frames.is_empty() {
            self.engine = Some(self.make_engine(|| self.shortest_distance(frames))?);
        }
        Ok(())
    }

    /// Blocks of a frame of so many atoms. One with more atoms than are evaluated at once is evaluated block after block on CPU
    /// threads, so that memory does not grow with it; who evaluates which block changes no bit.
    pub fn n_blocks(&self, n_atoms: usize) -> usize {
        if self.is_on_gpu() || n_atoms <= self.batch_atoms {
            return 1;
        }
        Cut { part: 0, parts: 1, steady: true }.n_blocks(n_atoms)
    }

    /// What the atoms of one of [`Predictor::n_blocks`] bring to the prediction of a frame; the sum over blocks is the whole.
    pub fn predict_block(&mut self, frame: &Frame, block: usize) -> Result<Prediction> {
        self.settle(std::slice::from_ref(frame))?;
        let cut = Cut { part: block, parts: self.n_blocks(frame.n_atoms()), steady: true };
        let engine = self.engine.as_mut().expect("it was made above");
        match engine {
            PrecisionEngine::Float32(engine) => evaluate_block(engine, &self.params, frame, cut),
            PrecisionEngine::Float64(engine) => evaluate_block(engine, &self.params, frame, cut),
            PrecisionEngine::Cuda(_) | PrecisionEngine::Operations(_) => {
                bail!("a GPU evaluates whole frames")
            }
        }
    }

    /// Lists the neighbours of a frame and evaluates it, some atoms at a time.
    pub fn evaluate(&mut self, frame: &Frame, atom_virial: bool) -> Result<Evaluation> {
        self.make_evaluator(|predictor| predictor.shortest_distance(std::slice::from_ref(frame)))?;
        if let Some(found) = self.frame_on_gpu(frame, atom_virial)? {
            return Ok(found);
        }
        let geometries = self.geometries(frame)?;
        self.evaluate_geometries(&geometries, atom_virial)
    }

    /// The neighbours of a frame, for each descriptor.
    fn geometries(&self, frame: &Frame) -> Result<Vec<Geometry>> {
        let model = &self.model;
        let list = self.loaders.install(|| list_of(model, frame))?;
        let of = |part: &Arc<Dp>| {
            let mut geometry = Geometry::default();
            geometry.fill_from(part, frame, &list).map(|()| geometry)
        };
        self.parts.iter().map(of).collect()
    }

    /// The same from a list that somebody else has made.
    fn geometries_of_domain(&self, domain: &Domain, fparam: &[f64], aparam: &[f64]) -> Result<Vec<Geometry>> {
        let of = |part: &Arc<Dp>| self.loaders.install(|| Geometry::of_domain(part, domain, fparam, aparam));
        self.parts.iter().map(of).collect()
    }

    /// Evaluates atoms whose neighbours somebody else has listed.
    ///
    /// - same    list and types are those of the last call: only positions have changed
    /// - fparam  `[numb_fparam]`
    /// - aparam  `[n_local, numb_aparam]`
    pub fn evaluate_domain(
        &mut self,
        domain: &Domain,
        same: bool,
        fparam: &[f64],
        aparam: &[f64],
        atom_virial: bool,
    ) -> Result<Evaluation> {
        domain.check(self.model.n_types())?;
        self.make_evaluator(|predictor| Ok(predictor.loaders.install(|| domain.shortest())))?;
        if let Some(found) = self.domain_on_gpu(domain, same, fparam, aparam, atom_virial)? {
            return Ok(found);
        }
        let geometries = self.geometries_of_domain(domain, fparam, aparam)?;
        self.evaluate_geometries(&geometries, atom_virial)
    }

    /// A frame is a domain whose ghosts are images of its own atoms. Its list is made here, on CPU threads. `None` where the fused
    /// engine on a GPU does not evaluate it.
    fn frame_on_gpu(&mut self, frame: &Frame, atom_virial: bool) -> Result<Option<Evaluation>> {
        if !matches!(self.evaluator, Some(OnDevice::Fused(_))) {
            return Ok(None);
        }
        let (rcut, n_types) = (self.model.listed.rcut, self.model.n_types());
        let images = self.loaders.install(|| Images::new(frame, rcut, n_types))?;
        let lists = images.lists();
        let domain = images.domain(&lists);
        let found = self.domain_on_gpu(&domain, false, &frame.fparam, &frame.aparam, atom_virial)?;
        Ok(found.map(|mut found| {
            found.atom_energy.truncate(frame.n_atoms());
            images.fold(&mut found.force, 3);
            images.fold(&mut found.atom_virial, 9);
            found
        }))
    }

    /// `None` where the fused engine on a GPU does not evaluate it.
    fn domain_on_gpu(
        &mut self,
        domain: &Domain,
        same: bool,
        fparam: &[f64],
        aparam: &[f64],
        atom_virial: bool,
    ) -> Result<Option<Evaluation>> {
        let Some(OnDevice::Fused(evaluator)) = &mut self.evaluator else { return Ok(None) };
        let (mut out, mut extra) = (Evaluation::default(), Vec::new());
        extra_inputs(&mut extra, &self.model, domain.n_local(), fparam, aparam);
        let done =
            self.loaders.install(|| evaluator.evaluate(&mut out, domain, &extra, same, atom_virial))?;
        if !done {
            log::warn!(
                "atoms are closer than the GPU's series reach: CPU threads evaluate the nets themselves"
            );
        }
        Ok(done.then_some(out))
    }

    /// Makes what evaluates single configurations on the GPU where there is one; under `auto` the GPU is given up where that fails.
    /// `shortest` is asked for a distance that few are below, where the model does not say it.
    fn make_evaluator(&mut self, shortest: impl FnOnce(&Self) -> Result<f64>) -> Result<()> {
        let Some((gpu, choice)) = self.gpu.clone().filter(|_| self.evaluator.is_none()) else {
            return Ok(());
        };
        let mode = self.mode(|| shortest(self))?;
        match choice.or_cpu(self.evaluator_on(&gpu, mode))? {
            Some(evaluator) => {
                log::info!("computing on {}", gpu.name);
                self.evaluator = Some(evaluator);
            }
            None => self.gpu = None,
        }
        Ok(())
    }

    fn evaluator_on(&self, gpu: &Gpu, mode: EmbeddingMode) -> Result<OnDevice> {
        let env = |name: &str| std::env::var(name).ok();
        let engine = self.engine_kind()?;
        if let OnGpu::Fused(form) = engine
            && let EmbeddingMode::Chebyshev { min_distance } = mode
            && Evaluator::takes(&self.model)
        {
            let device = program::open(&gpu.cuda, gpu.index, self.gpu_numbers(), form, &env)?;
            if let Some(evaluator) = Evaluator::new(&device, &self.model, &self.params, min_distance)? {
                return Ok(OnDevice::Fused(Box::new(evaluator)));
            }
        }
        let device = plan::program::open(&gpu.cuda, gpu.index, self.gpu_numbers(), &env)?;
        let evaluator = PlanEvaluator::new(&device, &self.model, &self.params)?;
        Ok(OnDevice::Operations(Box::new(evaluator)))
    }

    /// The engine that a GPU has for this model.
    fn engine_kind(&self) -> Result<OnGpu> {
        if self.model.tables.is_some() {
            return Err(err!("a compressed model is evaluated on CPU threads only")
                .help("use the model that it was made from: a series of its nets is faster than a table"));
        }
        engine_on_gpu(&self.model)
    }

    fn gpu_numbers(&self) -> Numbers {
        let own = if self.precision() == Precision::Float64 { Numbers::F64 } else { Numbers::F32 };
        self.numbers.unwrap_or(own)
    }

    fn evaluate_geometries(&mut self, geometries: &[Geometry], atom_virial: bool) -> Result<Evaluation> {
        let geometry = &geometries[0];
        if has_no_atoms(geometries) {
            return Ok(Evaluation::zeros(geometry.n_atoms(), atom_virial));
        }
        if let Some(OnDevice::Operations(evaluator)) = &mut self.evaluator {
            return self.loaders.install(|| evaluator.evaluate(geometries, atom_virial));
        }
        match self.cpu_engine(geometries)? {
            (PrecisionEngine::Float32(engine), params) => {
                some_at_a_time(engine, params, geometries, atom_virial)
            }
            (PrecisionEngine::Float64(engine), params) => {
                some_at_a_time(engine, params, geometries, atom_virial)
            }
            (PrecisionEngine::Cuda(_) | PrecisionEngine::Operations(_), _) => {
                bail!("this engine takes batches of frames")
            }
        }
    }

    /// What evaluates single configurations on CPU threads, made as the first of them needs it, and its parameters.
    fn cpu_engine(&mut self, geometries: &[Geometry]) -> Result<(&mut PrecisionEngine, &[f64])> {
        let distances = geometries.iter().flat_map(|geometry| geometry.r.iter().copied());
        let shortest = || Ok(distances.fold(f64::INFINITY, f64::min));
        let is_on_gpu = self.gpu.is_some();
        let is_there = if is_on_gpu { self.beside.is_some() } else { self.engine.is_some() };
        if !is_there {
            let made = self.make_cpu_engine(self.mode(shortest)?)?;
            *(if is_on_gpu { &mut self.beside } else { &mut self.engine }) = Some(made);
        }
        let engine = if is_on_gpu { &mut self.beside } else { &mut self.engine };
        Ok((engine.as_mut().expect("it was made above"), &self.params))
    }

    /// Reads and evaluates these frames of a system in order, batch after batch.
    ///
    /// `visit` gets each batch with its prediction; whatever it returns as an error ends the walk.
    pub fn for_each_batch(
        &mut self,
        system: &System,
        frames: &[usize],
        mut visit: impl FnMut(&[Frame], &Prediction) -> Result<()>,
    ) -> Result<()> {
        for batch in frames.chunks(self.frames_at_once(system.n_atoms)) {
            let frames = self.read(system, batch)?;
            let predicted = self.predict(&frames).map_err(|e| e.at(&system.path))?;
            visit(&frames, &predicted)?;
        }
        Ok(())
    }

    /// Reads these frames of a system.
    pub fn read(&self, system: &System, frames: &[usize]) -> Result<Vec<Frame>> {
        self.loaders.install(|| frames.par_iter().map(|&index| read(system, index)).collect())
    }

    /// Reads the frames of a system in order; `visit` gets the descriptors of each, `[n_atoms, width]`.
    pub fn for_each_descriptor(
        &mut self,
        system: &System,
        mut visit: impl FnMut(&[f64]) -> Result<()>,
    ) -> Result<()> {
        for index in 0..system.n_frames {
            let frame = read(system, index)?;
            let found = self.of_atoms(&frame, OfAtoms::Descriptor).map_err(|e| e.at(&system.path))?;
            visit(&found)?;
        }
        Ok(())
    }

    /// `shortest` is asked for a distance that few are below, where the model does not say it.
    fn make_engine(&self, shortest: impl FnOnce() -> Result<f64>) -> Result<PrecisionEngine> {
        let mode = self.mode(shortest)?;
        if let Some((gpu, choice)) = &self.gpu
            && let Some(engine) = choice.or_cpu(self.engine_on(gpu, mode))?
        {
            log::info!("computing on {}", gpu.name);
            return Ok(engine);
        }
        self.make_cpu_engine(mode)
    }

    fn make_cpu_engine(&self, mode: EmbeddingMode) -> Result<PrecisionEngine> {
        Ok(match self.precision() {
            Precision::Float32 => PrecisionEngine::Float32(self.engine_of(mode)?),
            Precision::Float64 => PrecisionEngine::Float64(self.engine_of(mode)?),
        })
    }

    fn engine_on(&self, gpu: &Gpu, mode: EmbeddingMode) -> Result<PrecisionEngine> {
        let numbers = if self.precision() == Precision::Float64 { Numbers::F64 } else { Numbers::F32 };
        let env = |name: &str| std::env::var(name).ok();
        let form = match self.engine_kind()? {
            OnGpu::Fused(form) => form,
            OnGpu::Operations => {
                let device = plan::program::open(&gpu.cuda, gpu.index, numbers, &env)?;
                return Ok(PrecisionEngine::Operations(Box::new(PlanEngine::new(&device, &self.model)?)));
            }
        };
        let device = program::open(&gpu.cuda, gpu.index, numbers, form, &env)?;
        let mut engine = match mode {
            EmbeddingMode::Chebyshev { min_distance } => CudaEngine::new(&device, &self.model, min_distance)?,
            EmbeddingMode::Direct => CudaEngine::direct(&device, &self.model)?,
        };
        engine.adapt_to(&self.params)?;
        Ok(PrecisionEngine::Cuda(Box::new(engine)))
    }

    fn engine_of<T: Real>(&self, mode: EmbeddingMode) -> Result<CpuEngine<T>> {
        let mut engine = CpuEngine::new(self.model.clone(), self.n_threads, mode)?;
        engine.freeze(&self.params);
        Ok(engine)
    }

    /// The series must reach down to the shortest distance; frames that go below are evaluated by the net itself.
    fn mode(&self, shortest: impl FnOnce() -> Result<f64>) -> Result<EmbeddingMode> {
        let is_direct = |se: &DescriptorOptions| se.embedding == Embedding::Direct;
        if self.model.tables.is_some() || self.model.options.descriptors.list.iter().all(is_direct) {
            return Ok(EmbeddingMode::Direct);
        }
        if let Some(min_distance) = self.min_nbor_dist {
            return Ok(EmbeddingMode::Chebyshev { min_distance: self.reach * min_distance });
        }
        let shortest = shortest()?;
        if !shortest.is_finite() {
            return Ok(EmbeddingMode::Direct);
        }
        // Half of what a few frames show leaves room for all the others.
        Ok(EmbeddingMode::Chebyshev { min_distance: 0.5 * shortest })
    }

    /// Shortest distance of a few frames; infinite where there are no two atoms.
    fn shortest_distance(&self, frames: &[Frame]) -> Result<f64> {
        let mut stat = NeighborStat::empty(self.model.n_types());
        for frame in frames.iter().take(4) {
            let rcut = self.model.listed.rcut;
            stat = stat.merge(&NeighborStat::of(frame, rcut, self.model.n_types())?);
        }
        Ok(stat.min_distance)
    }
}

/// Whether there are no atoms of the model that have an output.
fn has_no_atoms(geometries: &[Geometry]) -> bool {
    geometries[0].types.iter().all(|&t| t < 0)
}

fn start_loaders(n_threads: usize) -> Result<rayon::ThreadPool> {
    rayon::ThreadPoolBuilder::new()
        .num_threads(n_threads.max(1))
        .thread_name(|k| format!("load-{k}"))
        .build()
        .map_err(|e| err!("cannot start {n_threads} threads: {e}"))
}

/// Evaluates [`CENTERS`] atoms after another, so that memory does not grow with what the nets need for each atom; `visit` gets the
/// engine as it is then, the part and its centres, and what was predicted.
fn in_parts<T: Real>(
    engine: &mut CpuEngine<T>,
    params: &[f64],
    geometries: &[Geometry],
    mut visit: impl FnMut(&mut CpuEngine<T>, &CpuFrames<T>, Range<usize>, &Prediction),
) -> Result<()> {
    let (models, geometry) = (engine.models().clone(), &geometries[0]);
    // Ghosts stand behind the last centre.
    let n_centers = geometry.types.iter().rposition(|&t| t >= 0).map_or(0, |last| last + 1);
    let mut part = Prediction::default();
    for first in (0..n_centers).step_by(CENTERS) {
        let centers = first..n_centers.min(first + CENTERS);
        let frame = CpuFrames::of_centers(&models, geometries, centers.clone())?;
        engine.evaluate(&mut part, params, &[&frame]);
        visit(engine, &frame, centers, &part);
    }
    Ok(())
}

fn some_at_a_time<T: Real>(
    engine: &mut CpuEngine<T>,
    params: &[f64],
    geometries: &[Geometry],
    atom_virial: bool,
) -> Result<Evaluation> {
    let mut all = Evaluation::zeros(geometries[0].n_atoms(), atom_virial);
    let add = |sum: &mut [f64], part: &[f64]| sum.iter_mut().zip(part).for_each(|(sum, x)| *sum += x);
    in_parts(engine, params, geometries, |engine, frame, centers, part| {
        all.energy += part.energy[0];
        all.atom_energy[centers.clone()].copy_from_slice(&part.atom_energy[centers]);
        add(&mut all.force, &part.force);
        add(&mut all.virial, &part.virial[0]);
        if atom_virial {
            engine.atom_virial_add(&mut all.atom_virial, frame);
        }
    })?;
    Ok(all)
}

fn evaluate<T: Real>(
    engine: &mut CpuEngine<T>,
    params: &[f64],
    loaders: &rayon::ThreadPool,
    frames: &[Frame],
) -> Result<Prediction> {
    let prepare = engine.preparer();
    let prepared: Vec<_> =
        loaders.install(|| frames.par_iter().map(|frame| prepare(frame)).collect::<Result<_>>())?;
    let batch: Vec<_> = prepared.iter().collect();
    let mut out = Prediction::default();
    engine.evaluate(&mut out, params, &batch);
    Ok(out)
}

/// What the atoms of a block bring.
fn evaluate_block<T: Real>(
    engine: &mut CpuEngine<T>,
    params: &[f64],
    frame: &Frame,
    cut: Cut,
) -> Result<Prediction> {
    let prepared = engine.block_preparer(cut)(frame)?;
    let block = &prepared.first().ok_or_else(|| err!("a part without a block"))?.prepared;
    let mut out = Prediction::default();
    engine.evaluate(&mut out, params, &[block]);
    Ok(out)
}

/// Reads a frame; a coordinate that is not a number would spread over the whole frame without a word.
fn read(system: &System, index: usize) -> Result<Frame> {
    // Atoms stay in the order of the file, as where DeePMD-kit tests a model.
    let frame = Frame { sorted: false, ..system.read_frame(index)? };
    if let Some(k) = frame.coord.iter().position(|x| !x.is_finite()) {
        bail!(
            "{}: frame {index}: atom {}: the coordinate {} is not a number",
            system.path,
            k / 3,
            frame.coord[k]
        );
    }
    Ok(frame)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::reference::ReferenceEngine;
    use crate::engine::reference::tests::{frame, model, options};

    fn spec(min_nbor_dist: Option<f64>) -> (Arc<Dp>, Vec<f64>, DpModel) {
        let model = model(options());
        let params = model.random_params(9);
        let spec = model.to_spec(&params, min_nbor_dist);
        (model, params, spec)
    }

    #[test]
    fn predictions_agree_with_the_reference_whatever_is_known_of_distances() {
        let frames = [frame(23, 1), frame(9, 4), frame(17, 8)];
        for min_nbor_dist in [None, Some(0.4), Some(3.0), Some(f64::NAN)] {
            let (model, params, spec) = spec(min_nbor_dist);
            let mut reference = ReferenceEngine::new(model);
            let prepare = reference.preparer();
            let prepared: Vec<_> = frames.iter().map(|f| prepare(f).unwrap()).collect();
            let mut want = Prediction::default();
            reference.evaluate(&mut want, &params, &prepared.iter().collect::<Vec<_>>());
            let got = Predictor::new(spec, 2).unwrap().predict(&frames).unwrap();
            for (got, want) in got.energy.iter().zip(&want.energy).chain(got.force.iter().zip(&want.force)) {
                assert!((got - want).abs() < 1e-8 * (1.0 + want.abs()), "{got} instead of {want}");
            }
        }
    }

    #[test]
    fn no_frames_give_no_prediction() {
        let mut predictor = Predictor::new(spec(None).2, 1).unwrap();
        assert_eq!(predictor.predict(&[]).unwrap(), Prediction::default());
        assert_eq!(predictor.precision(), Precision::Float64);
    }
}
