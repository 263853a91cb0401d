//! The models that must obey physics, and the engines that compute them.
//!
//! A new model is one row of [`ROWS`].

use super::common::skip_part;
use phalanx::Result;
use phalanx::data::Frame;
use phalanx::engine::cpu::real::Real;
use phalanx::engine::cpu::{CpuEngine, EmbeddingMode};
use phalanx::engine::cuda::plan::{self, PlanEngine};
use phalanx::engine::cuda::{CudaEngine, OnGpu, engine_on_gpu};
use phalanx::engine::pinet::cpu::PinetCpu;
use phalanx::engine::pinet::cuda::{PinetCuda, program};
use phalanx::engine::pinet::reference::PinetReference;
use phalanx::engine::pinet::{PinetEngine, PinetFrame, PinetPrediction};
use phalanx::engine::reference::ReferenceEngine;
use phalanx::engine::type_embedding::plain;
use phalanx::engine::{Engine, Prediction};
use phalanx::export::read_model;
use phalanx::gpu::{Cuda, Numbers};
use phalanx::infer::pinn::predict_dipole;
use phalanx::model::dp::Dp;
use phalanx::model::dp::options::Output;
use phalanx::model::dp::spec::DpStatistics;
use phalanx::model::pinet::PinetModel;
use phalanx::model::pinet::options::ModelOptions;
use phalanx::pinn::params::Params;
use phalanx::train::input::Input;
use std::path::Path;
use std::sync::Arc;

/// A model. Types 0 and 1 are O and H; the cutoff is [`RCUT`](super::RCUT).
pub struct Row {
    pub name: &'static str,
    make: Make,
}

/// How it is made, with the seed of weights that are random.
#[derive(Clone, Copy)]
enum Make {
    /// A Deep Potential of a golden folder, its embedding as a series.
    Series(&'static str, Numbers),
    /// The same with the nets themselves.
    Direct(&'static str, Numbers),
    /// PiNet or PiNet2: name of the model, name and keys of the network.
    Pinet(&'static str, &'static str, &'static str, Numbers),
}

use Make::*;
use Numbers::{F32, F64};

const NODES: &str = "pp_nodes: [6, 6], pi_nodes: [6, 6], ii_nodes: [6, 6], out_nodes: [6]";
const TENSORS: &str = "pp_nodes: [6, 6], pi_nodes: [6, 6], ii_nodes: [6, 6], out_nodes: [6], rank: 3";

pub const ROWS: &[Row] = &[
    Row { name: "se_e2_a, one side", make: Series("one_side_virial", F64) },
    Row { name: "se_e2_a, one side, direct", make: Direct("one_side_virial", F64) },
    Row { name: "se_e2_a, one side, float32", make: Series("one_side_virial", F32) },
    Row { name: "se_e2_a, one side, direct, float32", make: Direct("one_side_virial", F32) },
    Row { name: "se_e2_a, two sides", make: Series("two_side_gelu", F64) },
    Row { name: "se_e2_a, two sides, direct", make: Direct("two_side_gelu", F64) },
    Row { name: "se_e2_a, two sides, float32", make: Series("two_side_gelu", F32) },
    Row { name: "se_e2_a, pairs left out", make: Series("exclude_two_side", F64) },
    Row { name: "se_e2_a, pairs left out, direct", make: Direct("exclude_two_side", F64) },
    Row { name: "se_e2_a, protected", make: Series("env_protection", F64) },
    Row { name: "se_e2_a, protected, direct", make: Direct("env_protection", F64) },
    Row { name: "se_e2_r", make: Series("se_e2_r", F64) },
    Row { name: "se_e2_r, direct", make: Direct("se_e2_r", F64) },
    Row { name: "se_e2_r, float32", make: Series("se_e2_r_float32", F32) },
    Row { name: "se_e3", make: Direct("se_e3", F64) },
    Row { name: "se_e3, pairs left out", make: Direct("se_e3_exclude", F64) },
    Row { name: "se_e3, float32", make: Direct("se_e3_float32", F32) },
    // Not without smooth_type_embedding, which jumps at the cutoff, nor with a mean that is not zero, where the first atom matters.
    Row { name: "se_atten, smooth", make: Direct("se_atten_float32", F64) },
    Row { name: "se_atten, smooth, float32", make: Direct("se_atten_float32", F32) },
    Row { name: "se_atten_v2, pairs left out", make: Direct("se_atten_v2_zero", F64) },
    Row { name: "a table beside se_atten_v2", make: Direct("srtab_float32", F64) },
    Row { name: "a table beside se_atten_v2, float32", make: Direct("srtab_float32", F32) },
    Row { name: "hybrid with se_e3", make: Series("hybrid_e3", F64) },
    Row { name: "hybrid", make: Series("hybrid", F64) },
    Row { name: "hybrid, direct", make: Direct("hybrid", F64) },
    Row { name: "hybrid, float32", make: Series("hybrid_float32", F32) },
    Row { name: "dos", make: Series("dos", F64) },
    Row { name: "dos, direct", make: Direct("dos", F64) },
    Row { name: "dos, float32", make: Series("dos_float32", F32) },
    Row { name: "dos, hybrid", make: Series("dos_hybrid", F64) },
    Row { name: "property", make: Series("property", F64) },
    Row { name: "property, intensive", make: Series("property_intensive", F64) },
    Row { name: "property, intensive, direct", make: Direct("property_intensive", F64) },
    Row { name: "dipole", make: Series("dipole", F64) },
    Row { name: "dipole, direct", make: Direct("dipole", F64) },
    Row { name: "dipole, float32", make: Series("dipole_float32", F32) },
    Row { name: "dipole, hybrid", make: Series("dipole_hybrid", F64) },
    Row { name: "polar", make: Series("polar", F64) },
    Row { name: "polar, hybrid", make: Series("polar_hybrid", F64) },
    Row { name: "polar, direct", make: Direct("polar", F64) },
    Row { name: "polar, whole", make: Series("polar_whole", F64) },
    Row { name: "polar, whole, direct", make: Direct("polar_whole", F64) },
    Row { name: "polar, float32", make: Series("polar_float32", F32) },
    Row { name: "embedded types", make: Series("../type_embedding/fixed", F64) },
    Row { name: "embedded types, direct", make: Direct("../type_embedding/fixed", F64) },
    Row { name: "embedded types, one side, float32", make: Series("../type_embedding/float32", F32) },
    Row { name: "embedded types in a list", make: Series("../type_embedding/hybrid", F64) },
    Row { name: "se_a_ebd_v2", make: Series("../type_embedding/scaled", F64) },
    Row { name: "se_a_ebd_v2, direct", make: Direct("../type_embedding/scaled", F64) },
    // Not se_e2_r with pairs left out: it jumps at the cutoff, there as in DeePMD-kit (`model/dp/descriptor/se_e2_r.rs`).
    Row { name: "PiNet", make: Pinet("potential_model", "PiNet", NODES, F64) },
    Row { name: "PiNet, float32", make: Pinet("potential_model", "PiNet", NODES, F32) },
    Row { name: "PiNet2", make: Pinet("potential_model", "PiNet2", TENSORS, F64) },
    Row { name: "PiNet2, float32", make: Pinet("potential_model", "PiNet2", TENSORS, F32) },
    Row { name: "PiNet, dipole", make: Pinet("dipole_model", "PiNet", NODES, F64) },
    Row { name: "PiNet2, dipole", make: Pinet("dipole_model", "PiNet2", TENSORS, F64) },
];

/// What a model says about a batch; atoms are concatenated over frames.
#[derive(Default)]
pub struct Outcome {
    /// Energies, or other outputs of frames.
    pub energy: Vec<f64>,
    /// Energies of atoms, charges, or other outputs.
    pub atomic: Vec<f64>,
    /// Empty for whatever is no energy.
    pub force: Vec<f64>,
    pub virial: Vec<[f64; 9]>,
    /// The length of the dipole of each frame; empty for a potential.
    pub dipole: Vec<f64>,
}

/// A model on an engine.
pub struct Potential {
    pub name: String,
    pub is_single: bool,
    pub has_forces: bool,
    /// Numbers of a frame, and of an atom.
    pub width: usize,
    /// The output of a frame is the mean over atoms.
    pub is_mean: bool,
    /// Outputs turn with the atoms, as vectors or tensors.
    pub is_turned: bool,
    /// Atoms of type -1 are no atoms.
    pub knows_virtual_atoms: bool,
    /// Near the cutoff energies go like this power of the distance to it: PiNet's cutoff is a cosine.
    pub cutoff_power: u32,
    evaluate: Evaluate,
}

impl Potential {
    pub fn batch(&mut self, frames: &[Frame]) -> Outcome {
        let out = (self.evaluate)(frames);
        let all = out.energy.iter().chain(&out.atomic).chain(&out.force).chain(&out.dipole);
        assert!(all.chain(out.virial.as_flattened()).all(|x| x.is_finite()), "{}", self.name);
        assert_eq!(out.force.is_empty(), !self.has_forces, "{}", self.name);
        out
    }
}

/// Every row on every engine. What cannot run here is skipped by name.
pub fn all() -> Vec<Potential> {
    ROWS.iter().flat_map(|row| row.on_all_engines()).collect()
}

impl Row {
    fn on_all_engines(&self) -> Vec<Potential> {
        let (numbers, is_pinet) = match self.make {
            Series(_, numbers) | Direct(_, numbers) => (numbers, false),
            Pinet(_, _, _, numbers) => (numbers, true),
        };
        let mut engines = self.on_cpu();
        match self.on_cuda(numbers) {
            Ok(evaluate) => engines.push(("CUDA", evaluate)),
            Err(e) => skip_part(&format!("{} on CUDA", self.name), e.message()),
        }
        let potential = |(engine, evaluate)| Potential {
            name: format!("{} on {engine}", self.name),
            is_single: numbers == F32,
            has_forces: match self.make {
                Pinet(model, ..) => model != "dipole_model",
                Series(folder, _) | Direct(folder, _) => dp(folder).0.is_energy(),
            },
            width: self.output().map_or(1, |output| output.width),
            is_mean: self.output().is_some_and(|output| output.is_intensive),
            is_turned: self.output().is_some_and(|output| output.made.is_turned()),
            knows_virtual_atoms: !is_pinet,
            cutoff_power: if is_pinet { 2 } else { 3 },
            evaluate,
        };
        engines.into_iter().map(potential).collect()
    }

    /// What it predicts; `None` for a PiNet.
    fn output(&self) -> Option<Output> {
        let (Series(folder, _) | Direct(folder, _)) = self.make else { return None };
        Some(dp(folder).0.output.clone())
    }

    /// The reference, which knows float64 and no series, and the CPU engine.
    fn on_cpu(&self) -> Vec<(&'static str, Evaluate)> {
        let reference = |folder| {
            let (model, params) = dp(folder);
            ("the reference", of_engine(ReferenceEngine::new(model), params))
        };
        match self.make {
            Series(folder, F64) => vec![("CPU threads", cpu::<f64>(folder, SERIES))],
            Series(folder, _) => vec![("CPU threads", cpu::<f32>(folder, SERIES))],
            Direct(folder, F64) => {
                vec![reference(folder), ("CPU threads", cpu::<f64>(folder, EmbeddingMode::Direct))]
            }
            Direct(folder, _) => vec![("CPU threads", cpu::<f32>(folder, EmbeddingMode::Direct))],
            Pinet(model, network, keys, numbers) => {
                let net = Net::new(model, network, keys);
                let forces = net.forces();
                if numbers == F32 {
                    let engine = PinetCpu::<f32>::new(net.model.clone(), 2, forces).unwrap();
                    return vec![("CPU threads", net.evaluate_with(engine))];
                }
                let engine = PinetCpu::<f64>::new(net.model.clone(), 2, forces).unwrap();
                let reference = PinetReference::new(net.model.clone(), forces);
                vec![
                    ("the reference", net.clone().evaluate_with(reference)),
                    ("CPU threads", net.evaluate_with(engine)),
                ]
            }
        }
    }

    fn on_cuda(&self, numbers: Numbers) -> Result<Evaluate> {
        let env = |name: &str| std::env::var(name).ok();
        let cuda = Cuda::find(&env)?;
        if let Pinet(model, network, keys, _) = self.make {
            let net = Net::new(model, network, keys);
            let device = program::open(&cuda, 0, numbers, &env)?;
            let engine = PinetCuda::new(&device, &net.model, net.forces())?;
            return Ok(net.evaluate_with(engine));
        }
        let (Series(folder, _) | Direct(folder, _)) = self.make else { unreachable!("PiNet was above") };
        let (model, params) = dp(folder);
        let form = match engine_on_gpu(&model)? {
            OnGpu::Fused(form) => form,
            OnGpu::Operations => {
                let device = plan::program::open(&cuda, 0, numbers, &env)?;
                return Ok(of_engine(PlanEngine::new(&device, &model)?, params));
            }
        };
        let device = phalanx::engine::cuda::program::open(&cuda, 0, numbers, form, &env)?;
        let mut engine = match self.make {
            Series(..) => CudaEngine::new(&device, &model, MIN_DISTANCE)?,
            _ => CudaEngine::direct(&device, &model)?,
        };
        engine.adapt_to(&params)?;
        Ok(of_engine(engine, params))
    }
}

type Evaluate = Box<dyn FnMut(&[Frame]) -> Outcome>;

/// No pair of the frames is closer.
const MIN_DISTANCE: f64 = 1.0;
const SERIES: EmbeddingMode = EmbeddingMode::Chebyshev { min_distance: MIN_DISTANCE };

/// A model of a golden folder and its parameters; where types are embedded, with random ones.
fn dp(folder: &str) -> (Arc<Dp>, Vec<f64>) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/se_e2_a").join(folder);
    let file = folder.join("initial.dp");
    if !file.exists() {
        return embedded(&folder.join("input.json"));
    }
    let (model, params) = Dp::from_spec(read_model(&file).unwrap()).unwrap();
    (Arc::new(model), params)
}

/// The plain model of one with embedded types.
fn embedded(input: &Path) -> (Arc<Dp>, Vec<f64>) {
    let options = Input::read(input).unwrap_or_else(|e| panic!("{e}")).0.model;
    let n = options.descriptors.list.len();
    let stats = DpStatistics {
        davg: [[0.11, 0.0, 0.0, 0.0], [0.17, 0.0, 0.0, 0.0]].repeat(n),
        dstd: [[0.2, 0.13, 0.13, 0.13], [0.21, 0.12, 0.12, 0.12]].repeat(n),
        bias: vec![-1.5, 0.7],
        out_std: vec![1.0; 2],
        ..DpStatistics::default()
    };
    let model = Dp::new(options, stats);
    assert!(model.embedded.is_some(), "{}", input.display());
    let params = plain(&model, &model.random_params(5)).into_owned();
    (Arc::new(Dp { embedded: None, ..model }), params)
}

fn cpu<T: Real>(folder: &str, mode: EmbeddingMode) -> Evaluate {
    let (model, params) = dp(folder);
    let mut engine = CpuEngine::<T>::new(model, 2, mode).unwrap();
    engine.adapt(&params);
    of_engine(engine, params)
}

fn of_engine<E: Engine + 'static>(mut engine: E, params: Vec<f64>) -> Evaluate {
    Box::new(move |frames| {
        let prepare = engine.preparer();
        let prepared: Vec<_> = frames.iter().map(|frame| prepare(frame).unwrap()).collect();
        let mut out = Prediction::default();
        engine.evaluate(&mut out, &params, &prepared.iter().collect::<Vec<_>>());
        let Prediction { energy, atom_energy, force, virial, output, atom_output } = out;
        match energy.is_empty() {
            true => Outcome { energy: output, atomic: atom_output, ..Outcome::default() },
            false => Outcome { energy, atomic: atom_energy, force, virial, dipole: vec![] },
        }
    })
}

/// A PiNet with parameters.
#[derive(Clone)]
struct Net {
    model: Arc<PinetModel>,
    options: ModelOptions,
    params: Vec<f64>,
}

impl Net {
    fn new(model: &str, network: &str, keys: &str) -> Net {
        let text = format!(
            "model_dir: model\nmodel: {{name: {model}, params: {{}}}}\n\
             network: {{name: {network}, params: {{atom_types: [1, 8], depth: 2, rc: {}, {keys}}}}}\n\
             optimizer: {{class_name: Adam, config: {{learning_rate: 0.001}}}}\n",
            super::RCUT
        );
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("params.yml");
        std::fs::write(&file, text).unwrap();
        let read = Params::read(&file).unwrap_or_else(|e| panic!("{e}"));
        let model = PinetModel::new(read.network).unwrap();
        let params = model.init(7);
        Net { model: Arc::new(model), options: read.model, params }
    }

    fn forces(&self) -> bool {
        matches!(self.options, ModelOptions::Potential(_))
    }

    fn evaluate_with<E: PinetEngine + 'static>(self, mut engine: E) -> Evaluate {
        Box::new(move |frames| {
            let elements =
                |frame: &Frame| frame.types.iter().map(|&t| [8, 1][t as usize]).collect::<Vec<i32>>();
            let prepared: Vec<PinetFrame> = frames
                .iter()
                .map(|f| PinetFrame::new(&self.model, &elements(f), &f.coord, f.cell).unwrap())
                .collect();
            let prepared: Vec<&PinetFrame> = prepared.iter().collect();
            let mut out = PinetPrediction::default();
            engine.evaluate(&mut out, &self.params, &prepared);
            let dipole = match &self.options {
                ModelOptions::Dipole(options) => predict_dipole(options, &out, &prepared).dipole,
                ModelOptions::Potential(_) => vec![],
            };
            // The stress is dE/dstrain.
            let virial = out.stress.iter().map(|stress| stress.map(|x| -x)).collect();
            Outcome { energy: out.energy, atomic: out.atomic, force: out.force, virial, dipole }
        })
    }
}
