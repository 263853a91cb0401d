//! The library's face: load a trained model, evaluate atoms with it.

mod outputs; // models that predict no energy

pub use crate::engine::Outputs;
pub use crate::engine::choice::DeviceChoice;
pub use crate::infer::{Derivatives, Evaluation};
pub use crate::neighbor::Domain;
pub use outputs::OutputModel;

use crate::data::{Frame, Labels};
use crate::gpu::Numbers;
use crate::infer::load::{load_model, load_model_bytes};
use crate::infer::{OfAtoms, Predictor};
use crate::launch::Launch;
use crate::launch::threads::{Threads, available_cores};
use crate::model::dp::spec::DpModel;
use crate::neighbor::domain::check_atoms;
use crate::{Error, Result, bail};
use std::path::Path;

/// In a simulation atoms come closer than in the training data. Down to this part of the shortest distance there the embedding nets
/// are evaluated as fast as elsewhere; below that the nets themselves are used, which is slower and just as right.
const REACH: f64 = 0.7;

/// Where to compute: `auto`, `cpu`, `cuda` or `cuda:INDEX`, as `--device` of the commands.
const DEVICE: &str = "PHALANX_DEVICE";
/// How a GPU computes: `model` (its own precision), `float32`, or `tf32` (float32 with factors of ten bits in products).
const NUMBERS: &str = "PHALANX_GPU_NUMBERS";

/// A trained model that gives energies, forces and virials, on CPU threads or a GPU. Lengths in A, energies in eV.
///
/// `PHALANX_DEVICE` says where to compute (`cpu`, which is the default, `auto`, `cuda`, `cuda:INDEX`): `cuda` is an error where no GPU can
/// be had or it cannot compute this model, `auto` is the CPU then. Ranks of a host take its GPUs in turn. `PHALANX_GPU_NUMBERS` is `model` (the model's
/// own precision), `float32` or `tf32`.
///
/// ```
/// use phalanx::Potential;
///
/// let mut water = Potential::load("tests/golden/dp_test/one_side.dp".as_ref())?.with_threads(1)?;
/// assert_eq!(water.type_map(), ["O", "H"]);
/// let coord = [0.0, 0.0, 0.0, 0.96, 0.0, 0.0, -0.24, 0.93, 0.0];
/// let molecule = water.evaluate(&coord, None, &[0, 1, 1], &[], &[])?;
///
/// // The force is minus the slope of the energy.
/// let energy_at = |x: f64, water: &mut Potential| -> phalanx::Result<f64> {
///     let mut coord = coord;
///     coord[3] += x;
///     Ok(water.evaluate(&coord, None, &[0, 1, 1], &[], &[])?.energy)
/// };
/// let slope = (energy_at(1e-4, &mut water)? - energy_at(-1e-4, &mut water)?) / 2e-4;
/// assert!((molecule.force[3] + slope).abs() < 1e-6);
/// # Ok::<(), phalanx::Error>(())
/// ```
pub struct Potential {
    predictor: Predictor,
}

impl Potential {
    /// Loads a model file (`model.dp`, `model.yaml`) or a checkpoint (`model.ckpt`, its folder).
    ///
    /// It uses as many threads as `OMP_NUM_THREADS` or `DP_INTRA_OP_PARALLELISM_THREADS` say; else the ranks that a launcher such as
    /// `mpirun` has started on this host share its cores.
    pub fn load(path: &Path) -> Result<Self> {
        Self::new(load_model(path)?)
    }

    /// As [`Potential::load`] from the content of a file; its name says the format.
    pub fn from_bytes(name: &Path, bytes: Vec<u8>) -> Result<Self> {
        Self::new(load_model_bytes(name, bytes)?)
    }

    fn new(model: DpModel) -> Result<Self> {
        model.options.fitting.check_energy()?;
        let (mut predictor, local_rank) = embedded(model)?;
        match variable(NUMBERS).as_deref() {
            None | Some("model") => {}
            Some("float32") => predictor = predictor.with_numbers(Numbers::F32),
            Some("tf32") => predictor = predictor.with_numbers(Numbers::Tf32),
            Some(other) => bail!("{NUMBERS}: found \"{other}\", wanted model, float32 or tf32"),
        }
        Potential { predictor }.of_local_rank(local_rank)
    }

    /// The rank with this number on its host takes its own of several GPUs, where it computes on one.
    pub fn of_local_rank(self, local_rank: usize) -> Result<Self> {
        let choice = asked_device()?;
        self.on_device(choice, local_rank)
    }

    /// Computes where `choice` says; of several GPUs the rank with this number on its host takes its own.
    pub fn on_device(self, choice: DeviceChoice, local_rank: usize) -> Result<Self> {
        let gpu = choice.find(local_rank, &|name| std::env::var(name).ok())?;
        let predictor = match gpu {
            Some(gpu) => self.predictor.on_gpu(gpu, choice),
            None => self.predictor.on_cpu(),
        };
        Ok(Potential { predictor })
    }

    /// Where it computes, in words.
    pub fn device(&self) -> String {
        self.predictor.device()
    }

    /// Computes with so many threads.
    pub fn with_threads(self, n: usize) -> Result<Self> {
        Ok(Potential { predictor: self.predictor.with_threads(n)? })
    }

    /// Names of the types; a type is given as an index into them.
    pub fn type_map(&self) -> &[String] {
        self.predictor.type_map()
    }

    /// Atoms farther apart than this do not see each other, A.
    pub fn rcut(&self) -> f64 {
        self.predictor.model().listed.rcut
    }

    /// Numbers that describe a whole configuration, such as a temperature.
    pub fn numb_fparam(&self) -> usize {
        self.predictor.model().options.fitting.numb_fparam
    }

    /// Numbers that describe each atom.
    pub fn numb_aparam(&self) -> usize {
        self.predictor.model().options.fitting.numb_aparam
    }

    /// Evaluates one configuration, with the virials of its atoms.
    ///
    /// - coord   `[n_atoms, 3]`
    /// - cell    rows are the lattice vectors; `None` for open boundaries
    /// - types   `[n_atoms]`, negative for what is no atom of the model
    /// - fparam  `[numb_fparam]`
    /// - aparam  `[n_atoms, numb_aparam]`
    pub fn evaluate(
        &mut self,
        coord: &[f64],
        cell: Option<[f64; 9]>,
        types: &[i32],
        fparam: &[f64],
        aparam: &[f64],
    ) -> Result<Evaluation> {
        match configuration(&self.predictor, coord, cell, types, fparam, aparam)? {
            Some(frame) => self.predictor.evaluate(&frame, true),
            None => Ok(Evaluation::default()),
        }
    }

    /// Numbers of a descriptor.
    pub fn n_descriptor(&self) -> usize {
        self.predictor.width_of_atoms(OfAtoms::Descriptor)
    }

    /// The descriptors of the atoms of a configuration `[n_atoms, n_descriptor]`, on CPU threads; arguments are those of
    /// [`Potential::evaluate`].
    pub fn descriptors(
        &mut self,
        coord: &[f64],
        cell: Option<[f64; 9]>,
        types: &[i32],
        fparam: &[f64],
        aparam: &[f64],
    ) -> Result<Vec<f64>> {
        of_atoms(&mut self.predictor, OfAtoms::Descriptor, (coord, cell, types, fparam, aparam))
    }

    /// Numbers of the last hidden layer of the fitting nets.
    pub fn n_hidden(&self) -> usize {
        self.predictor.width_of_atoms(OfAtoms::LastHidden)
    }

    /// The last hidden layer of the fitting net of each atom `[n_atoms, n_hidden]`, as [`Potential::descriptors`].
    pub fn last_hidden(
        &mut self,
        coord: &[f64],
        cell: Option<[f64; 9]>,
        types: &[i32],
        fparam: &[f64],
        aparam: &[f64],
    ) -> Result<Vec<f64>> {
        of_atoms(&mut self.predictor, OfAtoms::LastHidden, (coord, cell, types, fparam, aparam))
    }

    /// Evaluates the atoms of a domain whose neighbours an MD program has listed.
    ///
    /// Forces and virials are given for ghosts too: the program adds them to the atoms that they are images of.
    ///
    /// - fparam       `[numb_fparam]`
    /// - aparam       `[n_local, numb_aparam]`
    /// - atom_virial  whether the virials of atoms are wanted
    ///
    /// ```
    /// use phalanx::Potential;
    /// use phalanx::potential::Domain;
    ///
    /// let mut water = Potential::load("tests/golden/dp_test/one_side.dp".as_ref())?;
    /// // Two atoms, and a ghost that is an image of the second.
    /// let coord = [0.0, 0.0, 0.0, 2.9, 0.0, 0.0, -1.1, 0.0, 0.0];
    /// let lists: [&[i32]; 2] = [&[1, 2], &[0]];
    /// let domain = Domain { coord: &coord, types: &[0, 1, 1], lists: &lists, mask: -1 };
    /// let out = water.evaluate_with_neighbors(&domain, &[], &[], false)?;
    /// assert_eq!((out.force.len(), out.atom_energy[2]), (9, 0.0));
    /// let sum: f64 = out.force.iter().sum();
    /// assert!(sum.abs() < 1e-12, "forces add up to nothing");
    /// # Ok::<(), phalanx::Error>(())
    /// ```
    pub fn evaluate_with_neighbors(
        &mut self,
        domain: &Domain,
        fparam: &[f64],
        aparam: &[f64],
        atom_virial: bool,
    ) -> Result<Evaluation> {
        check_parameters(&self.predictor, fparam, aparam, domain.n_local())?;
        self.predictor.evaluate_domain(domain, false, fparam, aparam, atom_virial)
    }

    /// [`Potential::evaluate_with_neighbors`] where only positions have changed since the last call: lists and types are the same.
    /// On a GPU the lists are there already then.
    pub fn evaluate_with_same_neighbors(
        &mut self,
        domain: &Domain,
        fparam: &[f64],
        aparam: &[f64],
        atom_virial: bool,
    ) -> Result<Evaluation> {
        check_parameters(&self.predictor, fparam, aparam, domain.n_local())?;
        self.predictor.evaluate_domain(domain, true, fparam, aparam, atom_virial)
    }
}

/// A variable of the environment that is not empty.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|text| !text.is_empty())
}

/// The device that the environment asks for.
fn asked_device() -> Result<DeviceChoice> {
    match variable(DEVICE) {
        Some(text) => text.parse().map_err(|e: Error| e.at(DEVICE)),
        // The GPU may be that of another program: whoever wants it says so.
        None => Ok(DeviceChoice::Cpu),
    }
}

/// What evaluates a model inside another program, and the number of this rank on its host.
fn embedded(model: DpModel) -> Result<(Predictor, usize)> {
    // Whoever embeds this library may have variables that no launcher would set; they are no reason to fail.
    let (local_size, local_rank) =
        Launch::of_this_process().map_or((1, 0), |launch| (launch.local_size, launch.local_rank));
    let threads = Threads::new(&|name| std::env::var(name).ok(), available_cores(), local_size)?;
    Ok((Predictor::new(model, threads.compute)?.with_reach(REACH), local_rank))
}

/// A configuration as a frame, after all checks; `None` where it has no atoms.
fn configuration(
    predictor: &Predictor,
    coord: &[f64],
    cell: Option<[f64; 9]>,
    types: &[i32],
    fparam: &[f64],
    aparam: &[f64],
) -> Result<Option<Frame>> {
    if coord.len() != 3 * types.len() {
        bail!("found {} coordinates of {} atoms, wanted three for each", coord.len(), types.len());
    }
    check_atoms(coord, types, predictor.type_map().len())?;
    check_parameters(predictor, fparam, aparam, types.len())?;
    Ok((!types.is_empty()).then(|| Frame {
        types: types.into(),
        coord: coord.to_vec(),
        cell,
        fparam: fparam.to_vec(),
        aparam: aparam.to_vec(),
        sorted: false,
        labels: Labels::default(),
    }))
}

/// Coordinates, cell, types, frame and atom parameters.
type Configuration<'a> = (&'a [f64], Option<[f64; 9]>, &'a [i32], &'a [f64], &'a [f64]);

fn of_atoms(
    predictor: &mut Predictor,
    what: OfAtoms,
    (coord, cell, types, fparam, aparam): Configuration,
) -> Result<Vec<f64>> {
    match configuration(predictor, coord, cell, types, fparam, aparam)? {
        Some(frame) => predictor.of_atoms(&frame, what),
        None => Ok(Vec::new()),
    }
}

fn check_parameters(predictor: &Predictor, fparam: &[f64], aparam: &[f64], n_atoms: usize) -> Result<()> {
    let fitting = &predictor.model().options.fitting;
    let fparam = fitting.fparam_or_default(fparam);
    let wanted = (fitting.numb_fparam, fitting.numb_aparam * n_atoms);
    if (fparam.len(), aparam.len()) != wanted {
        bail!(
            "found {} frame parameters and {} parameters of atoms, the model wants {} and {} for {n_atoms} atoms",
            fparam.len(),
            aparam.len(),
            wanted.0,
            wanted.1
        );
    }
    match fparam.iter().chain(aparam).find(|x| !x.is_finite()) {
        Some(x) => bail!("the frame or atom parameter {x} is not a number"),
        None => Ok(()),
    }
}
