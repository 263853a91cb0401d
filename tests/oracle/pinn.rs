//! One PiNN case: outputs, predictions, losses, gradients and the weights of three steps.

use crate::arrays::{read_npy, read_npz};
use crate::case::{Outcome, Worst};
use crate::pinn_options::Options;
use phalanx::engine::pinet::cpu::PinetCpu;
use phalanx::engine::pinet::cuda::{PinetCuda, program};
use phalanx::engine::pinet::reference::PinetReference;
use phalanx::engine::pinet::{PinetEngine, PinetFrame, PinetPrediction, PinetSeeds};
use phalanx::gpu::{Cuda, Device, Numbers};
use phalanx::infer::pinn::{predict_dipole, predict_potential};
use phalanx::loss::pinn::{PinnLabels, PinnLoss, PinnLossValue, PinnMetrics};
use phalanx::model::pinet::PinetModel;
use phalanx::model::pinet::options::{ModelOptions, Wiring};
use phalanx::optim::KerasAdam;
use phalanx::{Result, bail, err};
use serde_json::Value;
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

/// Largest deviations that count as agreement; metrics of PiNN are always float32.
const FLOAT64: f64 = 1e-10;
const FLOAT32: f64 = 1e-5;

/// Runs a case.
pub fn run(folder: &Path) -> Outcome {
    Outcome::of(Case::open(folder), Case::compare)
}

/// The GPU that `PHALANX_DEVICE` asks for.
fn device(float32: bool) -> Result<Option<Arc<Device>>> {
    let env = |name: &str| std::env::var(name).ok();
    if env("PHALANX_DEVICE").as_deref() != Some("cuda") {
        return Ok(None);
    }
    let numbers = if float32 { Numbers::F32 } else { Numbers::F64 };
    program::open(&Cuda::find(&env)?, 0, numbers, &env).map(Some)
}

/// Every array of a case by its path without `.npy`: from the folder, or from its `arrays.npz`.
struct Arrays(HashMap<String, Vec<f64>>);

impl Arrays {
    fn read(folder: &Path) -> Result<Arrays> {
        let mut arrays = HashMap::new();
        let packed = folder.join("arrays.npz");
        if packed.exists() {
            arrays = read_npz(&packed)?;
        }
        let mut folders = vec![(folder.to_path_buf(), String::new())];
        while let Some((folder, prefix)) = folders.pop() {
            for entry in std::fs::read_dir(&folder).map_err(|e| err!("{}: {e}", folder.display()))?.flatten()
            {
                let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
                if path.is_dir() {
                    folders.push((path, format!("{prefix}{name}/")));
                } else if let Some(stem) = name.strip_suffix(".npy") {
                    arrays.insert(format!("{prefix}{stem}"), read_npy(&path)?);
                }
            }
        }
        Ok(Arrays(arrays))
    }

    fn find(&self, name: &str) -> Option<&[f64]> {
        self.0.get(name).map(Vec::as_slice)
    }

    fn get(&self, name: &str) -> Result<&[f64]> {
        self.find(name).ok_or_else(|| err!("{name}.npy is missing"))
    }
}

struct Case {
    options: Options,
    model: Arc<PinetModel>,
    oracle: Value,
    arrays: Arrays,
    frames: Vec<PinetFrame>,
    labels: Vec<PinnLabels>,
    tolerance: f64,
}

/// The largest difference over `scale`.
fn difference(got: &[f64], want: &[f64], scale: f64) -> f64 {
    if got.len() != want.len() || got.iter().any(|x| x.is_nan()) {
        return f64::NAN;
    }
    got.iter().zip(want).fold(0.0, |a: f64, (g, w)| a.max((g - w).abs())) / scale
}

fn largest(x: &[f64]) -> f64 {
    x.iter().fold(1e-300, |a: f64, x| a.max(x.abs()))
}

impl Case {
    fn open(folder: &Path) -> Result<Case> {
        let path = folder.join("oracle.json");
        let text = std::fs::read_to_string(&path).map_err(|e| err!("{}: {e}", path.display()))?;
        let oracle: Value = serde_json::from_str(&text).map_err(|e| err!("{}: {e}", path.display()))?;
        let options = Options::read(&oracle)?;
        let model = Arc::new(PinetModel::new(options.network.clone())?);
        let arrays = Arrays::read(folder)?;
        let tolerance = if options.float32 { FLOAT32 } else { FLOAT64 };
        let mut case = Case { options, model, oracle, arrays, frames: vec![], labels: vec![], tolerance };
        case.read_batch()?;
        Ok(case)
    }

    fn read_batch(&mut self) -> Result<()> {
        let input = |name: &str| self.arrays.find(&format!("inputs/{name}"));
        let (ind, coord) = (self.arrays.get("inputs/ind_1")?, self.arrays.get("inputs/coord")?);
        let elems = self.arrays.get("inputs/elems")?;
        let n_structures = ind.last().map_or(0, |&s| s as usize + 1);
        for s in 0..n_structures {
            let atoms: Vec<usize> = (0..ind.len()).filter(|&i| ind[i] as usize == s).collect();
            let rows =
                |x: &[f64]| atoms.iter().flat_map(|&i| x[3 * i..3 * i + 3].to_vec()).collect::<Vec<f64>>();
            let nine = |x: &[f64]| std::array::from_fn(|k| x[9 * s + k]);
            let elems: Vec<i32> = atoms.iter().map(|&i| elems[i] as i32).collect();
            self.frames.push(PinetFrame::new(&self.model, &elems, &rows(coord), input("cell").map(nine))?);
            self.labels.push(PinnLabels {
                energy: input("e_data").map(|x| x[s]),
                force: input("f_data").map(rows),
                stress: input("s_data").map(nine),
                dipole: input("d_data").map(|x| x[s]),
                e_weight: input("e_weight").map(|x| x[s]),
                f_weights: input("f_weights").map(rows),
                d_weight: input("d_weight").map(|x| x[s]),
            });
        }
        Ok(())
    }

    /// The flat vector of the arrays under a folder. Where the original has no such gradient, ours must vanish.
    fn params(&self, folder: &str) -> Result<Vec<f64>> {
        let mut params = vec![0.0; self.model.n_params()];
        for view in self.model.table.views() {
            let Some(values) = self.arrays.find(&format!("{folder}/{}", view.name)) else {
                if folder.starts_with("grads") {
                    continue;
                }
                bail!("{folder}/{}.npy is missing", view.name);
            };
            if values.len() != view.len() {
                bail!("{folder}/{}.npy has {} numbers, not {}", view.name, values.len(), view.len());
            }
            params[view.range()].copy_from_slice(values);
        }
        Ok(params)
    }

    fn compare(&self, worst: &mut Worst) -> Result<()> {
        let n_arrays = self.arrays.0.keys().filter(|name| name.starts_with("weights/")).count();
        if n_arrays != self.model.table.views().len() {
            bail!("{n_arrays} weights in the case, {} in the network", self.model.table.views().len());
        }
        let model = &self.model;
        if let Some(device) = device(self.options.float32)? {
            return self
                .compare_engine(worst, &|forces| Ok(Box::new(PinetCuda::new(&device, model, forces)?)));
        }
        self.compare_engine(worst, &|forces| Ok(Box::new(PinetReference::new(model.clone(), forces))))?;
        match self.options.float32 {
            true => self.compare_engine(worst, &|forces| {
                Ok(Box::new(PinetCpu::<f32>::new(model.clone(), 2, forces)?))
            }),
            false => self.compare_engine(worst, &|forces| {
                Ok(Box::new(PinetCpu::<f64>::new(model.clone(), 2, forces)?))
            }),
        }
    }

    fn compare_engine(
        &self,
        worst: &mut Worst,
        engine: &dyn Fn(bool) -> Result<Box<dyn PinetEngine>>,
    ) -> Result<()> {
        let params = self.params("weights")?;
        self.predict(worst, &mut *engine(true)?, &params)?;
        let loss = PinnLoss::new(self.options.model.clone(), &self.model, 0);
        self.replay(worst, &mut *engine(loss.wants_forces())?, &loss, params)
    }

    fn check(&self, worst: &mut Worst, what: &'static str, got: &[f64], name: &str) -> Result<()> {
        let want = self.arrays.get(name)?;
        worst.add(what, difference(got, want, largest(want)), self.tolerance);
        Ok(())
    }

    fn predict(&self, worst: &mut Worst, engine: &mut dyn PinetEngine, params: &[f64]) -> Result<()> {
        let frames: Vec<&PinetFrame> = self.frames.iter().collect();
        let mut out = PinetPrediction::default();
        engine.evaluate(&mut out, params, &frames);
        let atomic = match self.options.network.version {
            Wiring::Master => "atomic_output".to_string(),
            Wiring::Fork => format!("out_{}", self.options.network.depth - 1),
        };
        if self.options.network.out_pool.is_none() {
            self.check(worst, "outputs", &out.atomic, &atomic)?;
        }
        if self.arrays.find("raw_forces").is_some() {
            self.check(worst, "raw", &out.energy, "raw_energy")?;
            self.check(worst, "raw", &out.force, "raw_forces")?;
        }
        match &self.options.model {
            ModelOptions::Potential(o) => {
                let found = predict_potential(o, &out, &frames);
                self.check(worst, "energy", &found.energy, "predict_energy")?;
                self.check(worst, "forces", &found.forces, "predict_forces")?;
                if o.version == Wiring::Fork {
                    // The original adds up the structures of a batch.
                    let sum: Vec<f64> = (0..9).map(|k| found.stress.iter().map(|s| s[k]).sum()).collect();
                    self.check(worst, "stress", &sum, "predict_stress")?;
                } else if !found.stress.is_empty() {
                    self.check(worst, "stress", found.stress.as_flattened(), "predict_stress")?;
                }
            }
            ModelOptions::Dipole(o) => {
                let found = predict_dipole(o, &out, &frames);
                self.check(worst, "dipole", &found.dipole, "predict_dipole")?;
                self.check(worst, "charges", &found.charges, "predict_charges")?;
            }
        }
        Ok(())
    }

    /// The loss and its gradient at some parameters.
    fn gradient(
        &self,
        engine: &mut dyn PinetEngine,
        loss: &PinnLoss,
        params: &[f64],
        step: u64,
    ) -> Result<(PinnLossValue, Vec<f64>)> {
        let frames: Vec<&PinetFrame> = self.frames.iter().collect();
        let labels: Vec<&PinnLabels> = self.labels.iter().collect();
        for (frame, labels) in frames.iter().zip(&labels) {
            loss.require(frame, labels)?;
        }
        let (mut out, mut seeds) = (PinetPrediction::default(), PinetSeeds::default());
        engine.evaluate(&mut out, params, &frames);
        let value = loss.differentiate(&mut seeds, &out, &frames, &labels, params, step, 0);
        let mut grad = vec![0.0; params.len()];
        engine.backward(&mut grad, params, &frames, &seeds);
        loss.regularise_add(&mut grad, params, step);
        Ok((value, grad))
    }

    /// Losses, metrics and gradients at the start and after each of three steps, and the weights after them.
    fn replay(
        &self,
        worst: &mut Worst,
        engine: &mut dyn PinetEngine,
        loss: &PinnLoss,
        params: Vec<f64>,
    ) -> Result<()> {
        let mut params = params;
        let variables = self.model.table.views().iter().map(|view| view.range()).collect();
        let mut adam = KerasAdam::new(self.options.adam, variables, params.len());
        for step in 0..4u64 {
            let folder =
                |what: &str| if step == 0 { what.to_string() } else { format!("{what}_after_{step}") };
            let (value, grad) = self.gradient(engine, loss, &params, step)?;
            if step == 0 {
                self.metrics(worst, &value);
            }
            if let Some(want) = self.oracle["loss_at_step"][step as usize].as_f64() {
                worst.add("loss", difference(&[value.loss], &[want], want.abs()), self.tolerance);
            }
            self.compare_views(worst, "gradients", &grad, &self.params(&folder("grads"))?, 1e-6);
            if step > 0 {
                self.compare_views(worst, "weights", &params, &self.params(&folder("weights"))?, 1e-3);
            }
            adam.step(&mut params, &grad, self.options.rate.at(step), step);
        }
        Ok(())
    }

    /// Each array relative to its largest number, or to a part of the largest of all where it is next to nothing.
    fn compare_views(&self, worst: &mut Worst, what: &'static str, got: &[f64], want: &[f64], part: f64) {
        let floor = part * largest(want);
        for view in self.model.table.views() {
            let (got, want) = (&got[view.range()], &want[view.range()]);
            worst.add(what, difference(got, want, largest(want).max(floor)), self.tolerance);
        }
    }

    fn metrics(&self, worst: &mut Worst, value: &PinnLossValue) {
        let Some(want) = self.oracle["eval_metrics"].as_object() else { return };
        let mut metrics = PinnMetrics::default();
        metrics.add(value);
        for (name, value) in metrics.report() {
            if let Some(want) = want.get(&format!("METRICS/{name}")).and_then(Value::as_f64) {
                worst.add("metrics", difference(&[value], &[want], want.abs()), FLOAT32);
            }
        }
    }
}
