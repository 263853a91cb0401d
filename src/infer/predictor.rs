//! Frames in, energies, forces and virials out: in batches, on all cores, in bounded memory.

use crate::data::{Frame, System, Wants};
use crate::engine::choice::Gpu;
use crate::engine::cpu::real::Real;
use crate::engine::cpu::{CpuEngine, EmbeddingMode};
use crate::engine::cuda::{CudaEngine, Device, Numbers};
use crate::engine::{Engine, Prediction};
use crate::error::Result;
use crate::model::dp::Dp;
use crate::model::dp::options::{Embedding, Precision};
use crate::model::dp::spec::DpModel;
use crate::neighbor::stat::NeighborStat;
use crate::{bail, err};
use rayon::prelude::*;
use std::sync::Arc;

/// Atoms that are evaluated at once unless told otherwise: enough to feed many cores, some 100 MB at most.
const BATCH_ATOMS: usize = 8192;

/// Evaluates frames with a model, in the model's precision.
pub struct Predictor {
    model: Arc<Dp>,
    params: Vec<f64>,
    /// Shortest distance of the training data, where the model file says it.
    min_nbor_dist: Option<f64>,
    batch_atoms: usize,
    /// Reads and prepares frames.
    loaders: rayon::ThreadPool,
    n_threads: usize,
    /// Where to compute, unless the GPU cannot do what the model wants.
    gpu: Option<Gpu>,
    /// Made with the first batch, whose distances it may need.
    engine: Option<PrecisionEngine>,
}

enum PrecisionEngine {
    Float32(CpuEngine<f32>),
    Float64(CpuEngine<f64>),
    Cuda(Box<CudaEngine>),
}

impl Predictor {
    /// A predictor with so many threads.
    pub fn new(model: DpModel, n_threads: usize) -> Result<Self> {
        let min_nbor_dist = model.min_nbor_dist.filter(|r| r.is_finite() && *r > 0.0);
        let (model, params) = Dp::from_spec(model)?;
        let loaders = rayon::ThreadPoolBuilder::new()
            .num_threads(n_threads.max(1))
            .thread_name(|k| format!("load-{k}"))
            .build()
            .map_err(|e| err!("cannot start {n_threads} threads: {e}"))?;
        Ok(Predictor {
            model: Arc::new(model),
            params,
            min_nbor_dist,
            batch_atoms: BATCH_ATOMS,
            loaders,
            n_threads: n_threads.max(1),
            gpu: None,
            engine: None,
        })
    }

    /// Evaluates about so many atoms at once, and at least one frame.
    pub fn with_batch_atoms(mut self, batch_atoms: usize) -> Self {
        self.batch_atoms = batch_atoms.max(1);
        self
    }

    /// Evaluates on a GPU.
    pub fn on_gpu(mut self, gpu: Gpu) -> Self {
        self.gpu = Some(gpu);
        self
    }

    /// Names of the model's types.
    pub fn type_map(&self) -> &[String] {
        &self.model.options.type_map
    }

    /// What a prediction needs of a frame beside coordinates, cell and types: no labels.
    pub fn wants(&self) -> Wants {
        let fitting = &self.model.options.fitting;
        Wants { numb_fparam: fitting.numb_fparam, numb_aparam: fitting.numb_aparam, ..Wants::default() }
    }

    /// Float64 where one of the nets is, else float32.
    pub fn precision(&self) -> Precision {
        let nets = [self.model.descriptor().precision, self.model.options.fitting.precision];
        if nets.contains(&Precision::Float64) { Precision::Float64 } else { Precision::Float32 }
    }

    /// Evaluates frames all at once. Types are those of [`Predictor::type_map`].
    pub fn predict(&mut self, frames: &[Frame]) -> Result<Prediction> {
        if frames.is_empty() {
            return Ok(Prediction::default());
        }
        if self.engine.is_none() {
            self.engine = Some(self.make_engine(frames)?);
        }
        let engine = self.engine.as_mut().expect("it was made above");
        match engine {
            PrecisionEngine::Float32(engine) => evaluate(engine, &self.params, &self.loaders, frames),
            PrecisionEngine::Float64(engine) => evaluate(engine, &self.params, &self.loaders, frames),
            PrecisionEngine::Cuda(engine) => {
                let prepare = engine.preparer();
                let prepared: Vec<_> = self
                    .loaders
                    .install(|| frames.par_iter().map(|frame| prepare(frame)).collect::<Result<_>>())?;
                let mut out = Prediction::default();
                engine.try_evaluate(&mut out, &self.params, &prepared.iter().collect::<Vec<_>>())?;
                Ok(out)
            }
        }
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
        let size = (self.batch_atoms / system.n_atoms.max(1)).max(1);
        for batch in frames.chunks(size) {
            let frames: Vec<Frame> = self
                .loaders
                .install(|| batch.par_iter().map(|&index| read(system, index)).collect::<Result<_>>())?;
            let predicted = self.predict(&frames).map_err(|e| e.at(&system.path))?;
            visit(&frames, &predicted)?;
        }
        Ok(())
    }

    fn make_engine(&self, frames: &[Frame]) -> Result<PrecisionEngine> {
        let mode = self.mode(frames)?;
        if let Some(gpu) = &self.gpu {
            match self.engine_on(gpu, mode) {
                Ok(engine) => return Ok(PrecisionEngine::Cuda(Box::new(engine))),
                Err(e) => log::warn!("evaluating on the CPU: {e}"),
            }
        }
        Ok(match self.precision() {
            Precision::Float32 => PrecisionEngine::Float32(self.engine_of(mode)?),
            Precision::Float64 => PrecisionEngine::Float64(self.engine_of(mode)?),
        })
    }

    fn engine_on(&self, gpu: &Gpu, mode: EmbeddingMode) -> Result<CudaEngine> {
        let numbers = if self.precision() == Precision::Float64 { Numbers::F64 } else { Numbers::F32 };
        let device = Device::open(&gpu.cuda, gpu.index, numbers, &|name| std::env::var(name).ok())?;
        let mut engine = match mode {
            EmbeddingMode::Chebyshev { min_distance } => CudaEngine::new(&device, &self.model, min_distance)?,
            EmbeddingMode::Direct => CudaEngine::direct(&device, &self.model)?,
        };
        engine.adapt_to(&self.params)?;
        Ok(engine)
    }

    fn engine_of<T: Real>(&self, mode: EmbeddingMode) -> Result<CpuEngine<T>> {
        let mut engine = CpuEngine::new(self.model.clone(), self.n_threads, mode)?;
        engine.adapt(&self.params);
        Ok(engine)
    }

    /// The series must reach down to the shortest distance; frames that go below are evaluated by the net itself.
    fn mode(&self, frames: &[Frame]) -> Result<EmbeddingMode> {
        let descriptor = self.model.descriptor();
        if descriptor.embedding == Embedding::Direct {
            return Ok(EmbeddingMode::Direct);
        }
        if let Some(min_distance) = self.min_nbor_dist {
            return Ok(EmbeddingMode::Chebyshev { min_distance });
        }
        let mut stat = NeighborStat::empty(self.model.n_types());
        for frame in frames.iter().take(4) {
            stat = stat.merge(&NeighborStat::of(frame, descriptor.rcut, self.model.n_types())?);
        }
        if !stat.min_distance.is_finite() {
            return Ok(EmbeddingMode::Direct);
        }
        // Half of what a few frames show leaves room for all the others.
        Ok(EmbeddingMode::Chebyshev { min_distance: 0.5 * stat.min_distance })
    }
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

/// Reads a frame; a coordinate that is not a number would spread over the whole frame without a word.
fn read(system: &System, index: usize) -> Result<Frame> {
    let frame = system.read_frame(index)?;
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
