//! One case: everything that can be compared.

use crate::arrays::read_npz;
use phalanx::comm::local_group;
use phalanx::data::field::Wants;
use phalanx::data::options::DataOptions;
use phalanx::data::{Dataset, Frame, System};
use phalanx::engine::blocks::InBlocks;
use phalanx::engine::cpu::pool::Pool;
use phalanx::engine::cpu::real::Real;
use phalanx::engine::cpu::{CpuEngine, EmbeddingMode};
use phalanx::engine::cuda::plan::{self, PlanEngine};
use phalanx::engine::cuda::{CudaEngine, OnGpu, engine_on_gpu, program};
use phalanx::engine::reference::ReferenceEngine;
use phalanx::engine::{Engine, Prediction, Seeds};
use phalanx::export::read_model;
use phalanx::gpu::{Cuda, Numbers};
use phalanx::loss::Loss;
use phalanx::loss::observation::{self, Observation};
use phalanx::model::dp::Dp;
use phalanx::model::dp::options::{ModelOptions, Precision, Sel};
use phalanx::model::dp::statistics::Sums;
use phalanx::optim::options::LearningRateOptions;
use phalanx::optim::{Gradient, Optimizer, Target, Update};
use phalanx::sample::{frames_for_statistics, global_generator};
use phalanx::train::input::{Input, Length};
use phalanx::{Result, bail, err};
use serde_json::Value;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Largest deviations that count as agreement, relative to the largest value of an array.
struct Tolerances {
    initial: f64,
    statistics: f64,
    prediction: f64,
    gradient: f64,
    trace: f64,
}

const FLOAT64: Tolerances =
    Tolerances { initial: 1e-13, statistics: 1e-10, prediction: 1e-10, gradient: 1e-8, trace: 1e-7 };
/// Both programs round each product to seven digits, in another order.
const FLOAT32: Tolerances =
    Tolerances { initial: 1e-6, statistics: 1e-6, prediction: 1e-5, gradient: 1e-4, trace: 1e-3 };

/// What became of a case.
pub enum Outcome {
    Passed(String),
    Failed(String),
    Unsupported(String),
}

impl Outcome {
    /// What comparing a case leads to, where it could be opened.
    pub fn of<C>(case: Result<C>, compare: impl FnOnce(&C, &mut Worst) -> Result<()>) -> Outcome {
        let case = match case {
            Ok(case) => case,
            Err(e) if e.message().contains("not support") || e.message().contains("unsupported") => {
                return Outcome::Unsupported(e.message().to_string());
            }
            Err(e) => return Outcome::Failed(e.to_string()),
        };
        let mut worst = Worst::default();
        match compare(&case, &mut worst) {
            Err(e) => Outcome::Failed(e.to_string()),
            Ok(()) if worst.holds() => Outcome::Passed(worst.line()),
            Ok(()) => Outcome::Failed(worst.line()),
        }
    }
}

/// Whether the CUDA engine is asked for, in place of the others.
fn on_gpu() -> bool {
    std::env::var("PHALANX_DEVICE").is_ok_and(|device| device.starts_with("cuda"))
}

/// A case with everything loaded.
pub struct Case {
    model: Arc<Dp>,
    params: Vec<f64>,
    input: Input,
    folder: PathBuf,
    training: Dataset,
    /// Systems of the validation data, where there is any.
    n_validation: Option<usize>,
    systems: HashMap<String, Source>,
    /// The system whose frames were predicted; the case does not say which it was.
    predicted: Option<Source>,
    min_distance: f64,
    /// The embedding nets' parameters are those of the seed times this.
    steepness: f64,
}

/// A system, and the boundary that the reference values were made with.
struct Source {
    system: System,
    /// The cells of box.npy, where the values were made with them although the system says `nopbc`.
    cells: Option<Vec<[f64; 9]>>,
}

impl Source {
    fn read(&self, k: usize) -> Result<Frame> {
        let mut frame = self.system.read_frame(k)?;
        if let Some(cells) = &self.cells {
            frame.cell = Some(cells[k]);
        }
        Ok(frame)
    }

    /// Opens a system. The reference values were made with the cells of box.npy also where the system says `nopbc`.
    fn open(path: &Path, type_map: &[String], wants: &Wants) -> Result<Source> {
        let system = System::open(&path.to_string_lossy(), type_map, wants)?;
        let file = path.join("set.000/box.npy");
        let problem = |e: std::io::Error| err!("{}: {e}", file.display());
        let cells = match system.pbc || !file.exists() {
            true => None,
            false => {
                let bytes = std::fs::read(&file).map_err(problem)?;
                let numbers: Vec<f64> =
                    npyz::NpyFile::new(&bytes[..]).and_then(|npy| npy.into_vec()).map_err(problem)?;
                Some(numbers.as_chunks::<9>().0.to_vec())
            }
        };
        Ok(Source { system, cells })
    }
}

/// The worst deviation of each kind.
#[derive(Default)]
pub struct Worst(Vec<(&'static str, f64, f64)>);

impl Worst {
    pub fn add(&mut self, what: &'static str, deviation: f64, tolerance: f64) {
        match self.0.iter_mut().find(|(name, ..)| *name == what) {
            // NaN must win, whenever it comes: it is never an agreement.
            Some((_, worst, _)) if deviation.is_nan() || deviation > *worst => *worst = deviation,
            Some(_) => {}
            None => self.0.push((what, deviation, tolerance)),
        }
    }

    pub fn line(&self) -> String {
        self.0.iter().map(|(name, worst, _)| format!("{name} {worst:.1e}")).collect::<Vec<_>>().join("  ")
    }

    pub fn holds(&self) -> bool {
        self.0.iter().all(|(_, worst, tolerance)| worst < tolerance)
    }
}

/// The largest difference over the largest wanted value.
fn deviation(got: &[f64], want: &[f64]) -> f64 {
    if got.len() != want.len() || got.iter().any(|x| x.is_nan()) {
        return f64::NAN;
    }
    let scale = want.iter().fold(1e-300f64, |a, b| a.max(b.abs()));
    got.iter().zip(want).fold(0.0, |a: f64, (g, w)| a.max((g - w).abs())) / scale
}

/// A file of a case, or of the case that it says it is like.
fn file_of(folder: &Path, name: &str) -> PathBuf {
    match std::fs::read_to_string(folder.join("like")) {
        Ok(other) if !folder.join(name).exists() => folder.with_file_name(other.trim()).join(name),
        _ => folder.join(name),
    }
}

impl Case {
    /// Runs a case.
    pub fn run(folder: &Path, data: &Path) -> Outcome {
        let case = Case::open(folder, data);
        match case.as_ref().map(|case| engine_on_gpu(&case.model)) {
            Ok(Err(e)) if on_gpu() => Outcome::Unsupported(e.message().to_string()),
            _ => Outcome::of(case, Case::compare),
        }
    }

    fn open(folder: &Path, data: &Path) -> Result<Case> {
        let (input, _) = Input::read(&folder.join("input.json"))?;
        let (model, params) = Dp::from_spec(read_model(&file_of(folder, "initial.dp"))?)?;
        let mut wants = input.loss.wants(&input.model.fitting);
        wants.force |= wants.energy;
        let names = input.training.training_data.systems.clone();
        let open = |options: &DataOptions| {
            let inside = |name: &String| data.join(name).to_string_lossy().into_owned();
            let options =
                DataOptions { systems: options.systems.iter().map(inside).collect(), ..options.clone() };
            Dataset::open(&options, &model.options.type_map, &wants)
        };
        let training = open(&input.training.training_data)?;
        let validation = input.training.validation_data.as_ref().map(open).transpose()?;
        let mut case = Case {
            model: Arc::new(model),
            params,
            input,
            folder: folder.to_path_buf(),
            training,
            n_validation: validation.map(|v| v.systems.len()),
            systems: HashMap::new(),
            predicted: None,
            min_distance: 0.0,
            steepness: match std::fs::read_to_string(folder.join("steepness")) {
                Ok(text) => text.trim().parse().map_err(|e| err!("steepness: {e}"))?,
                Err(_) => 1.0,
            },
        };
        case.find_predicted(&names, data, &wants)?;
        for name in names {
            let source = Source::open(&data.join(&name), &case.model.options.type_map, &wants)?;
            case.systems.insert(name, source);
        }
        case.min_distance = case.shortest_distance()?;
        Ok(case)
    }

    /// Looks for the system whose frames were predicted among the training systems and their neighbours on disk.
    fn find_predicted(&mut self, names: &[String], data: &Path, wants: &Wants) -> Result<()> {
        let mut folders: Vec<PathBuf> = names.iter().map(|name| data.join(name)).collect();
        for parent in folders.clone().iter().filter_map(|f| f.parent()) {
            let siblings = std::fs::read_dir(parent).into_iter().flatten().flatten().map(|e| e.path());
            folders.extend(siblings.filter(|p| p.join("type.raw").exists()));
        }
        let mut best = f64::INFINITY;
        for folder in folders {
            let wants = Wants { virial: false, ..wants.clone() };
            // A neighbour may lack what this model needs; it is not the one then.
            let Ok(source) = Source::open(&folder, &self.model.options.type_map, &wants) else { continue };
            let mut engine = self.cpu::<f64>(EmbeddingMode::Direct)?;
            let Ok(found) = self.predict(&mut engine, &source, &self.params, "predict.npz") else { continue };
            if found < best {
                best = found;
                self.predicted = Some(source);
            }
        }
        Ok(())
    }

    fn shortest_distance(&self) -> Result<f64> {
        let mut shortest = f64::INFINITY;
        for source in self.systems.values() {
            let n = source.system.n_frames;
            for k in (0..n).step_by(1.max(n / 20)) {
                let frame = source.read(k)?;
                let stat = phalanx::neighbor::stat::NeighborStat::of(
                    &frame,
                    self.model.listed.rcut,
                    self.model.n_types(),
                )?;
                shortest = shortest.min(stat.min_distance);
            }
        }
        Ok(shortest)
    }

    fn cpu<T: Real>(&self, mode: EmbeddingMode) -> Result<CpuEngine<T>> {
        CpuEngine::new(self.model.clone(), 2, mode)
    }

    fn is_float32(&self) -> bool {
        self.model.options.precision() == Precision::Float32
    }

    fn tolerances(&self) -> &'static Tolerances {
        if self.is_float32() { &FLOAT32 } else { &FLOAT64 }
    }

    fn compare(&self, worst: &mut Worst) -> Result<()> {
        if on_gpu() {
            return self.compare_cuda(worst);
        }
        self.initial(worst)?;
        self.predict_and_differentiate(&mut ReferenceEngine::new(self.model.clone()), worst)?;
        if self.is_float32() { self.compare_cpu::<f32>(worst) } else { self.compare_cpu::<f64>(worst) }
    }

    fn compare_cuda(&self, worst: &mut Worst) -> Result<()> {
        let env = |name: &str| std::env::var(name).ok();
        let numbers = if self.is_float32() { Numbers::F32 } else { Numbers::F64 };
        let cuda = Cuda::find(&env)?;
        let form = match engine_on_gpu(&self.model)? {
            OnGpu::Fused(form) => form,
            OnGpu::Operations => {
                let device = plan::program::open(&cuda, 0, numbers, &env)?;
                let mut engine = PlanEngine::new(&device, &self.model)?;
                self.predict_and_differentiate(&mut engine, worst)?;
                return self.replay(&mut engine, worst);
            }
        };
        let device = program::open(&cuda, 0, numbers, form, &env)?;
        let series = || CudaEngine::new(&device, &self.model, self.min_distance);
        let direct = || CudaEngine::direct(&device, &self.model);
        for engine in [&series as &dyn Fn() -> Result<CudaEngine>, &direct] {
            self.predict_and_differentiate(&mut engine()?, worst)?;
            self.replay(&mut engine()?, worst)?;
        }
        Ok(())
    }

    fn compare_cpu<T: Real>(&self, worst: &mut Worst) -> Result<()> {
        let series = EmbeddingMode::Chebyshev { min_distance: self.min_distance };
        for mode in [series, EmbeddingMode::Direct] {
            self.predict_and_differentiate(&mut self.cpu::<T>(mode)?, worst)?;
            self.replay(&mut self.cpu::<T>(mode)?, worst)?;
        }
        // Frames in blocks, as ranks share them where energies are predicted.
        if !self.model.is_energy() {
            return Ok(());
        }
        for n in [2, 3, 8] {
            let mut engine = InBlocks::new(n, || CpuEngine::<T>::new(self.model.clone(), 1, series))?;
            self.predict_and_differentiate(&mut engine, worst)?;
        }
        self.replay(&mut InBlocks::new(4, || CpuEngine::<T>::new(self.model.clone(), 1, series))?, worst)
    }

    /// The options of the input with what follows from the data: the number of neighbours, and types without labels of their own.
    fn options(&self) -> ModelOptions {
        let mut options = self.input.model.clone();
        for (part, se) in self.model.parts().iter().zip(&mut options.descriptors.list) {
            se.sel = Sel::Fixed(part.sel().to_vec());
        }
        if self.training.systems.iter().any(|system| system.has_selected_labels()) {
            options.atom_exclude_types.clone_from(&self.model.options.atom_exclude_types);
        }
        options
    }

    /// The model before training: parameters from the seeds, and statistics from the frames that DeePMD-kit chose. A
    /// system that says `nopbc` is open here.
    fn initial(&self, worst: &mut Worst) -> Result<()> {
        let options = self.options();
        let systems = &self.training.systems;
        let n_loaders = self.n_validation.unwrap_or(systems.len());
        let mut generator = global_generator(self.input.training.seed, n_loaders);
        let params = Dp::new(options.clone(), Default::default()).initial_params(&mut generator);
        let mut params = params;
        let nets = self.model.fitting_params().start;
        params[..nets].iter_mut().for_each(|p| *p *= self.steepness);
        for view in self.model.table.views() {
            let (got, want) = (&params[view.range()], &self.params[view.range()]);
            worst.add("initial", deviation(got, want), self.tolerances().initial);
        }
        let n_frames: Vec<usize> = systems.iter().map(|system| system.n_frames).collect();
        let (sizes, n_batches) = (&self.training.batch_sizes, options.data_stat_nbatch);
        let chosen = frames_for_statistics(&mut generator, &n_frames, sizes, n_batches);
        let mut all: Option<Sums> = None;
        for (system, frames) in systems.iter().zip(chosen) {
            for k in frames {
                let sums = Sums::of(&options, &system.read_frame(k)?)?;
                all = Some(match all {
                    Some(before) => before.merge(sums),
                    None => sums,
                });
            }
        }
        let got = all.ok_or_else(|| err!("no frame was chosen for the statistics"))?.finish(&options)?;
        let want = &self.model.stats;
        let pairs = [
            (got.davg.as_flattened(), want.davg.as_flattened()),
            (got.dstd.as_flattened(), want.dstd.as_flattened()),
            (&got.bias, &want.bias),
            (&got.out_std, &want.out_std),
            (&got.fparam_avg, &want.fparam_avg),
            (&got.fparam_inv_std, &want.fparam_inv_std),
            (&got.aparam_avg, &want.aparam_avg),
            (&got.aparam_inv_std, &want.aparam_inv_std),
        ];
        for (got, want) in pairs {
            worst.add("statistics", deviation(got, want), self.tolerances().statistics);
        }
        Ok(())
    }

    fn predict<E: Engine>(&self, engine: &mut E, source: &Source, params: &[f64], file: &str) -> Result<f64> {
        let want = read_npz(&file_of(&self.folder, file))?;
        let (of_atoms, width) = match self.model.is_energy() {
            true => (&want["force"], 3),
            false => (&want["atom_output"], self.model.output.width),
        };
        if of_atoms.len() != want["frames"].len() * source.system.n_atoms * width {
            return Err(err!("{file} is about another system"));
        }
        let prepare = engine.preparer();
        let mut frames = Vec::new();
        for &k in &want["frames"] {
            frames.push(prepare(&source.read(k as usize)?)?);
        }
        let mut out = Prediction::default();
        engine.evaluate(&mut out, params, &frames.iter().collect::<Vec<_>>());
        let of_energy = [
            ("energy", &out.energy[..]),
            ("force", &out.force),
            ("virial", out.virial.as_flattened()),
            ("atom_energy", &out.atom_energy),
        ];
        let of_output = [("output", &out.output[..]), ("atom_output", &out.atom_output)];
        let got = if self.model.is_energy() { &of_energy[..] } else { &of_output };
        Ok(got.iter().fold(0.0, |a, (name, got)| {
            let d = deviation(got, &want[*name]);
            if d.is_nan() { d } else { f64::max(a, d) }
        }))
    }

    fn predict_and_differentiate<E: Engine>(&self, engine: &mut E, worst: &mut Worst) -> Result<()> {
        worst.add(
            "prediction",
            self.predict(engine, self.predicted()?, &self.params, "predict.npz")?,
            self.tolerances().prediction,
        );
        let trace = self.trace()?;
        let (_, grad) =
            self.gradient(engine, &self.params, &trace[0], self.rates()?.0.at(0, self.rates()?.1))?;
        let want = read_npz(&self.folder.join("grad0.npz"))?;
        let trained = self.model.trainable();
        for view in self.model.table.views() {
            let name = format!("model.Default.atomic_model.{}", view.name);
            let Some(want) = want.get(&name) else {
                // DeePMD-kit has no gradient of what is not trained.
                if trained.iter().any(|range| range.contains(&view.range().start)) {
                    bail!("grad0.npz: {name} is missing");
                }
                continue;
            };
            worst.add("gradient", deviation(&grad[view.range()], want), self.tolerances().gradient);
        }
        Ok(())
    }

    fn predicted(&self) -> Result<&Source> {
        self.predicted.as_ref().ok_or_else(|| err!("no system fits the shape of predict.npz"))
    }

    fn trace(&self) -> Result<Vec<Value>> {
        let path = self.folder.join("trace.json");
        let text = std::fs::read_to_string(&path).map_err(|e| err!("{}: {e}", path.display()))?;
        serde_json::from_str(&text).map_err(|e| err!("{}: {e}", path.display()))
    }

    fn loss(&self) -> Box<dyn Loss> {
        self.input.loss.build(self.input.learning_rate.start_lr, &self.model)
    }

    /// The learning rates, and the number of steps.
    fn rates(&self) -> Result<(LearningRateOptions, u64)> {
        let Length::Steps(num_steps) = self.input.training.length else {
            bail!("the case says no number of steps");
        };
        Ok((self.input.learning_rate.for_steps(num_steps)?, num_steps))
    }

    fn gradient<E: Engine>(
        &self,
        engine: &mut E,
        params: &[f64],
        step: &Value,
        lr: f64,
    ) -> Result<(phalanx::loss::LossValue, Vec<f64>)> {
        self.differentiate(engine, params, step, |seeds, out, frames| {
            self.loss().differentiate(seeds, out, frames, lr)
        })
    }

    /// The five updates of a step of LKF.
    fn filter<E: Engine>(
        &self,
        engine: &mut E,
        optimizer: &mut dyn Optimizer,
        params: &mut [f64],
        number: u64,
        step: &Value,
    ) -> Result<()> {
        let filter = optimizer.by_observations().ok_or_else(|| err!("trace.json has atoms"))?;
        let mut alone = local_group(1).remove(0);
        let atoms: Vec<Vec<f64>> = serde_json::from_value(step["atoms"].clone()).unwrap_or_default();
        let mut groups = atoms.iter();
        for mut observation in filter.observations(number, self.rates()?.1) {
            if let Observation::Force { atoms, .. } = &mut observation {
                // The atoms that DeePMD-kit chose, of systems of eight.
                *atoms = groups.next().into_iter().flatten().map(|i| (i + 0.5) / 8.0).collect();
            }
            let observe = |seeds: &mut Seeds, out: &Prediction, frames: &[&Frame]| {
                observation::observe(seeds, out, frames, &observation)
            };
            let (seen, grad) = self.differentiate(engine, params, step, observe)?;
            let error = seen.error / seen.frames.sqrt();
            filter.assimilate(params, (&grad, 1.0), error, &mut *alone)?;
        }
        Ok(())
    }

    /// What `look` says of the batch of a step, and the gradient of that.
    fn differentiate<E: Engine, T>(
        &self,
        engine: &mut E,
        params: &[f64],
        step: &Value,
        look: impl Fn(&mut Seeds, &Prediction, &[&Frame]) -> T,
    ) -> Result<(T, Vec<f64>)> {
        let indices = step["frames"].as_array().cloned().unwrap_or_default();
        let read = |(f, k): (usize, &Value)| {
            // All frames are of one system, unless batches mix them.
            let system = step["systems"].get(f).unwrap_or(&step["system"]);
            let system = &self.systems[system.as_str().unwrap_or_default()];
            system.read(k.as_u64().unwrap_or_default() as usize)
        };
        let frames: Vec<Frame> = indices.iter().enumerate().map(read).collect::<Result<_>>()?;
        let prepare = engine.preparer();
        let prepared = frames.iter().map(|f| prepare(f)).collect::<Result<Vec<_>>>()?;
        let batch: Vec<_> = prepared.iter().collect();
        let (mut out, mut seeds) = (Prediction::default(), Seeds::default());
        engine.evaluate(&mut out, params, &batch);
        let value = look(&mut seeds, &out, &frames.iter().collect::<Vec<_>>());
        let mut grad = vec![0.0; params.len()];
        engine.backward(&mut grad, params, &batch, &seeds);
        Ok((value, grad))
    }

    /// The whole training trace, and the predictions after it.
    fn replay<E: Engine>(&self, engine: &mut E, worst: &mut Worst) -> Result<()> {
        let (lr_of, num_steps) = self.rates()?;
        let mut params = self.params.clone();
        let (table, pool) = (&self.model.table, Pool::serial());
        let target = Target { table, pool, single: false, rank: 0, size: 1, seed: 0 };
        let mut optimizer = self.input.optimizer.build(&target)?;
        let mut alone = local_group(1).remove(0);
        for (k, step) in self.trace()?.iter().enumerate() {
            let lr = lr_of.at(k as u64, num_steps);
            let (value, grad) = self.gradient(engine, &params, step, lr)?;
            let mut check = |got: f64, name: &str| {
                if let Some(want) = step[name].as_f64() {
                    worst.add("trace", deviation(&[got], &[want]), self.tolerances().trace);
                }
            };
            check(lr, "lr");
            check(value.loss, "loss");
            for term in &value.terms {
                check(term.value, &term.name);
            }
            if step["atoms"].is_array() {
                self.filter(engine, &mut *optimizer, &mut params, k as u64, step)?;
                continue;
            }
            let max_norm = self.input.training.gradient_max_norm;
            let update = Update { step: k as u64, rate: lr, max_norm, wants_norm: false };
            optimizer.update(&mut params, Gradient::of(&grad), &update, &mut *alone)?;
        }
        worst.add(
            "after",
            self.predict(engine, self.predicted()?, &params, "final_predict.npz")?,
            self.tolerances().trace,
        );
        Ok(())
    }
}
