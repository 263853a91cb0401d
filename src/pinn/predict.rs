//! A trained PiNet in use: energies, forces and stress, or charges and dipoles, of structures.

use super::data::Sample;
use super::params::Params;
use super::train::state::{self, PinnRun, PinnState};
use crate::checkpoint::{self, Checkpoint, SUFFIX};
use crate::engine::pinet::cpu::PinetCpu;
use crate::engine::pinet::{PinetEngine, PinetFrame, PinetPrediction};
use crate::error::{Error, ErrorKind, Result};
use crate::infer::pinn::{predict_dipole, predict_potential};
use crate::launch::Launch;
use crate::launch::threads::{Threads, available_cores};
use crate::model::dp::options::Precision;
use crate::model::pinet::PinetModel;
use crate::model::pinet::options::ModelOptions;
use crate::pinn::data::element::symbol;
use crate::{bail, err};
use std::path::Path;
use std::sync::Arc;

/// A trained PiNet or PiNet2 on CPU threads. Lengths in A; the unit of energies is that of the training data times `e_unit`.
///
/// ```no_run
/// use phalanx::pinn::predict::PinetPotential;
///
/// let mut water = PinetPotential::load("model".as_ref())?;
/// let coord = [0.0, 0.0, 0.0, 0.96, 0.0, 0.0, -0.24, 0.93, 0.0];
/// let found = water.evaluate(&[8, 1, 1], &coord, None)?;
/// println!("{:?} {:?}", found.energy, found.forces);
/// # Ok::<(), phalanx::Error>(())
/// ```
pub struct PinetPotential {
    model: Arc<PinetModel>,
    means: ModelOptions,
    weights: Vec<f64>,
    step: u64,
    threads: usize,
    precision: Precision,
    engine: Box<dyn PinetEngine>,
}

/// What a model says about one structure. What it does not say is `None` or empty.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PinetEvaluation {
    pub energy: Option<f64>,
    /// `[n_atoms, 3]` energy/A
    pub forces: Vec<f64>,
    /// Row by row, dE/dstrain over the volume: positive under tension. Only with a cell.
    pub stress: Option<[f64; 9]>,
    /// `[n_atoms]` in the unit `d_unit`
    pub charges: Vec<f64>,
    /// The sum of charge times position, as it is given: in a cell it depends on the images that were chosen.
    pub dipole: Option<[f64; 3]>,
}

impl PinetPotential {
    /// Loads the newest checkpoint of a model's folder, or one checkpoint (`model/model.ckpt-1000.phx`).
    ///
    /// It uses as many threads as `OMP_NUM_THREADS` or `DP_INTRA_OP_PARALLELISM_THREADS` say; else the ranks that a launcher such as
    /// `mpirun` has started on this host share its cores.
    pub fn load(path: &Path) -> Result<Self> {
        let (params, state) = if path.is_dir() { load_folder(path)? } else { load_file(path)? };
        let local_size = Launch::of_this_process().map_or(1, |launch| launch.local_size);
        let threads = Threads::new(&|name| std::env::var(name).ok(), available_cores(), local_size)?.compute;
        let model = Arc::new(PinetModel::new(params.network)?);
        let Params { model: means, precision, .. } = params;
        let engine = engine(&model, &means, precision, threads)?;
        Ok(PinetPotential {
            model,
            means,
            weights: state.params,
            step: state.step,
            threads,
            precision,
            engine,
        })
    }

    /// Computes with so many threads.
    pub fn with_threads(mut self, n: usize) -> Result<Self> {
        self.threads = n.max(1);
        self.engine = engine(&self.model, &self.means, self.precision, self.threads)?;
        Ok(self)
    }

    /// Computes with other numbers than the network was trained with.
    pub fn with_precision(mut self, precision: Precision) -> Result<Self> {
        self.precision = precision;
        self.engine = engine(&self.model, &self.means, precision, self.threads)?;
        Ok(self)
    }

    /// The network.
    pub fn model(&self) -> &PinetModel {
        &self.model
    }

    /// Atomic numbers that it knows.
    pub fn atom_types(&self) -> &[i32] {
        &self.model.options.atom_types
    }

    /// Atoms farther apart than this are no pair, A. What an atom feels comes from `depth` times as far.
    pub fn rc(&self) -> f64 {
        self.model.options.rc
    }

    /// True where it gives charges and dipoles instead of energies and forces.
    pub fn is_dipole(&self) -> bool {
        matches!(self.means, ModelOptions::Dipole(_))
    }

    /// Steps that it was trained.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// Evaluates one structure.
    ///
    /// - elems  `[n_atoms]` atomic numbers
    /// - coord  `[n_atoms, 3]`
    /// - cell   rows are the lattice vectors; `None` for open boundaries
    pub fn evaluate(
        &mut self,
        elems: &[i32],
        coord: &[f64],
        cell: Option<[f64; 9]>,
    ) -> Result<PinetEvaluation> {
        let (coord, rest) = coord.as_chunks::<3>();
        if coord.len() != elems.len() || !rest.is_empty() {
            bail!(
                "found {} coordinates of {} atoms, wanted three for each",
                3 * coord.len() + rest.len(),
                elems.len()
            );
        }
        let cell = cell.map(|c| [[c[0], c[1], c[2]], [c[3], c[4], c[5]], [c[6], c[7], c[8]]]);
        let sample = Sample { elems: elems.to_vec(), coord: coord.to_vec(), cell, ..Sample::default() };
        let mut found = self.evaluate_all(std::slice::from_ref(&sample)).map_err(|(_, error)| error)?;
        Ok(found.pop().expect("one structure, one result"))
    }

    /// Evaluates structures all at once; their labels do not matter. An error comes with the place of the structure in the list.
    pub fn evaluate_all(&mut self, samples: &[Sample]) -> Result<Vec<PinetEvaluation>, (usize, Error)> {
        let prepare = |(k, sample): (usize, &Sample)| self.prepare(sample).map_err(|e| (k, e));
        let frames = samples.iter().enumerate().map(prepare).collect::<Result<Vec<_>, _>>()?;
        if frames.is_empty() {
            return Ok(Vec::new());
        }
        let frames: Vec<&PinetFrame> = frames.iter().collect();
        let mut out = PinetPrediction::default();
        self.engine.evaluate(&mut out, &self.weights, &frames);
        let found = match &self.means {
            ModelOptions::Potential(_) => self.potential(&out, &frames),
            ModelOptions::Dipole(_) => self.dipoles(&out, &frames),
        };
        found.iter().enumerate().try_for_each(|(k, found)| found.check().map_err(|e| (k, e)))?;
        Ok(found)
    }

    fn prepare(&self, sample: &Sample) -> Result<PinetFrame> {
        sample.check()?;
        if let Some((i, &z)) = sample.elems.iter().enumerate().find(|(_, z)| self.model.column(**z).is_none())
        {
            let known: Vec<&str> = self.atom_types().iter().map(|&z| symbol(z)).collect();
            return Err(err!("atom {i} is {}, which the network does not know", symbol(z))
                .help(format!("atom_types of params.yml has {}", known.join(", "))));
        }
        let cell = sample.cell.map(|rows| std::array::from_fn(|k| rows[k / 3][k % 3]));
        PinetFrame::new(&self.model, &sample.elems, sample.coord.as_flattened(), cell)
    }

    fn potential(&self, out: &PinetPrediction, frames: &[&PinetFrame]) -> Vec<PinetEvaluation> {
        let ModelOptions::Potential(options) = &self.means else { unreachable!("asked for a potential") };
        let all = predict_potential(options, out, frames);
        let unit = options.e_unit / options.e_scale;
        let mut first = 0;
        let one = |(s, frame): (usize, &&PinetFrame)| {
            let atoms = 3 * first..3 * (first + frame.n_atoms());
            first += frame.n_atoms();
            PinetEvaluation {
                energy: Some(all.energy[s]),
                forces: all.forces[atoms].to_vec(),
                // Over the volume itself: PiNN divides by the determinant, which is negative for a left-handed cell.
                stress: frame.volume.map(|volume| out.stress[s].map(|x| x * unit / volume.abs())),
                ..PinetEvaluation::default()
            }
        };
        frames.iter().enumerate().map(one).collect()
    }

    fn dipoles(&self, out: &PinetPrediction, frames: &[&PinetFrame]) -> Vec<PinetEvaluation> {
        let ModelOptions::Dipole(options) = &self.means else { unreachable!("asked for dipoles") };
        let charges = predict_dipole(options, out, frames).charges;
        let mut first = 0;
        let one = |frame: &&PinetFrame| {
            let charges = charges[first..first + frame.n_atoms()].to_vec();
            first += frame.n_atoms();
            let dipole = crate::loss::pinn::dipole::dipole(&charges, frame).0;
            PinetEvaluation { charges, dipole: Some(dipole), ..PinetEvaluation::default() }
        };
        frames.iter().map(one).collect()
    }
}

impl PinetEvaluation {
    fn check(&self) -> Result<()> {
        let numbers =
            self.energy.iter().chain(&self.forces).chain(self.stress.iter().flatten()).chain(&self.charges);
        match numbers.clone().find(|x| !x.is_finite()) {
            Some(x) => Err(err!("the network gives {x}, not a number")
                .help("atoms may be too close to each other, or the training went wrong")),
            None => Ok(()),
        }
    }
}

fn engine(
    model: &Arc<PinetModel>,
    means: &ModelOptions,
    precision: Precision,
    threads: usize,
) -> Result<Box<dyn PinetEngine>> {
    let forces = matches!(means, ModelOptions::Potential(_));
    Ok(match precision {
        Precision::Float64 => Box::new(PinetCpu::<f64>::new(model.clone(), threads, forces)?),
        Precision::Float32 => Box::new(PinetCpu::<f32>::new(model.clone(), threads, forces)?),
    })
}

/// `params.yml` and the newest complete checkpoint of a folder.
fn load_folder(folder: &Path) -> Result<(Params, PinnState)> {
    if !folder.join("params.yml").is_file() {
        return Err(err!("{}: this folder has no params.yml", folder.display())
            .help("name the model_dir of a `pinn train` run"));
    }
    let params = Params::read(folder)?;
    let model = PinetModel::new(params.network.clone())?;
    match state::newest(folder, &model, &params)? {
        Some(state) => Ok((params, state)),
        None => Err(err!("{}: no complete checkpoint is in this folder", folder.display())
            .help("`pinn train` writes model.ckpt-STEP.phx there, PiNN model.ckpt-STEP.index")),
    }
}

/// One checkpoint, which has its `params.yml` in it.
fn load_file(file: &Path) -> Result<(Params, PinnState)> {
    if !file.exists() {
        return Err(err!("{}: no such folder or checkpoint", file.display())
            .of_kind(ErrorKind::Io(std::io::ErrorKind::NotFound))
            .help(
                "name the model_dir of a `pinn train` run, or one of its checkpoints (model.ckpt-1000.phx)",
            ));
    }
    if !file.to_string_lossy().ends_with(SUFFIX) {
        return Err(err!("{}: this is no checkpoint", file.display())
            .help("name the folder of the model, or one of its checkpoints (model.ckpt-1000.phx)"));
    }
    let read = |saved: Checkpoint| -> Result<(Params, PinnState)> {
        let PinnRun(written) = PinnState::from_checkpoint(saved.clone())?.about;
        let params = Params::from_value(written, "params.yml of the checkpoint")?;
        let n_params = PinetModel::new(params.network.clone())?.n_params();
        Ok((params, state::read(saved, n_params)?))
    };
    read(checkpoint::load(file)?).map_err(|e| e.at(file.display()))
}
