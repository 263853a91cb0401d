//! Models that predict no energy: dipoles, polarizabilities, densities of states, properties.

use super::{
    Configuration, Derivatives, Domain, Outputs, asked_device, check_parameters, configuration, embedded,
    of_atoms,
};
use crate::engine::choice::DeviceChoice;
use crate::infer::load::{load_model, load_model_bytes};
use crate::infer::{OfAtoms, Predictor};
use crate::model::dp::spec::DpModel;
use crate::{Result, err};
use std::path::Path;

/// A trained model whose fitting net is of type `dipole`, `polar`, `dos` or `property`, on CPU threads. Lengths in A.
///
/// `PHALANX_DEVICE=cuda` is an error, as GPUs predict energies alone.
pub struct OutputModel {
    predictor: Predictor,
}

impl OutputModel {
    /// Loads a model as [`Potential::load`](super::Potential::load) does.
    pub fn load(path: &Path) -> Result<Self> {
        Self::new(load_model(path)?)
    }

    /// As [`OutputModel::load`] from the content of a file; its name says the format.
    pub fn from_bytes(name: &Path, bytes: Vec<u8>) -> Result<Self> {
        Self::new(load_model_bytes(name, bytes)?)
    }

    fn new(model: DpModel) -> Result<Self> {
        if model.options.fitting.is_energy() {
            return Err(err!("the model predicts an energy: its fitting net is of type \"ener\"")
                .help("load it as a potential (DeepPot)"));
        }
        if let DeviceChoice::Cuda(_) = asked_device()? {
            return Err(err!(
                "the GPU predicts energies alone, and this model predicts something else (model.fitting_net: {})",
                model.options.fitting.type_name()
            )
            .help("set PHALANX_DEVICE=cpu"));
        }
        Ok(OutputModel { predictor: embedded(model)?.0 })
    }

    /// Computes with so many threads.
    pub fn with_threads(self, n: usize) -> Result<Self> {
        Ok(OutputModel { predictor: self.predictor.with_threads(n)? })
    }

    /// The type of the fitting net: `dipole`, `polar`, `dos`, `property`.
    pub fn kind(&self) -> &'static str {
        self.predictor.model().options.fitting.type_name()
    }

    /// DeePMD-kit's name of what is predicted.
    pub fn name(&self) -> &str {
        &self.predictor.model().output.name
    }

    /// Numbers of the output.
    pub fn width(&self) -> usize {
        self.predictor.model().output.width
    }

    /// Whether that of a configuration is the mean over its atoms, not the sum.
    pub fn is_intensive(&self) -> bool {
        self.predictor.model().output.is_intensive
    }

    /// Names of the types; a type is given as an index into them.
    pub fn type_map(&self) -> &[String] {
        self.predictor.type_map()
    }

    /// The types whose atoms have an output.
    pub fn selected_types(&self) -> Vec<usize> {
        let options = &self.predictor.model().options;
        (0..self.type_map().len()).filter(|&t| options.has_energy(t as i32)).collect()
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

    /// Evaluates one configuration; arguments are those of [`Potential::evaluate`](super::Potential::evaluate).
    pub fn evaluate(
        &mut self,
        coord: &[f64],
        cell: Option<[f64; 9]>,
        types: &[i32],
        fparam: &[f64],
        aparam: &[f64],
        wanted: Derivatives,
    ) -> Result<Outputs> {
        match configuration(&self.predictor, coord, cell, types, fparam, aparam)? {
            Some(frame) => self.predictor.evaluate_outputs(&frame, wanted),
            None => Ok(Outputs::zeros(0, self.width(), wanted)),
        }
    }

    /// Evaluates the atoms of a domain whose neighbours an MD program has listed; see
    /// [`Potential::evaluate_with_neighbors`](super::Potential::evaluate_with_neighbors).
    pub fn evaluate_with_neighbors(
        &mut self,
        domain: &Domain,
        fparam: &[f64],
        aparam: &[f64],
        wanted: Derivatives,
    ) -> Result<Outputs> {
        check_parameters(&self.predictor, fparam, aparam, domain.n_local())?;
        self.predictor.evaluate_outputs_of_domain(domain, fparam, aparam, wanted)
    }

    /// Numbers of a descriptor.
    pub fn n_descriptor(&self) -> usize {
        self.predictor.width_of_atoms(OfAtoms::Descriptor)
    }

    /// See [`Potential::descriptors`](super::Potential::descriptors).
    pub fn descriptors(
        &mut self,
        coord: &[f64],
        cell: Option<[f64; 9]>,
        types: &[i32],
        fparam: &[f64],
        aparam: &[f64],
    ) -> Result<Vec<f64>> {
        let given: Configuration = (coord, cell, types, fparam, aparam);
        of_atoms(&mut self.predictor, OfAtoms::Descriptor, given)
    }

    /// Numbers of the last hidden layer of the fitting nets.
    pub fn n_hidden(&self) -> usize {
        self.predictor.width_of_atoms(OfAtoms::LastHidden)
    }

    /// See [`Potential::last_hidden`](super::Potential::last_hidden).
    pub fn last_hidden(
        &mut self,
        coord: &[f64],
        cell: Option<[f64; 9]>,
        types: &[i32],
        fparam: &[f64],
        aparam: &[f64],
    ) -> Result<Vec<f64>> {
        let given: Configuration = (coord, cell, types, fparam, aparam);
        of_atoms(&mut self.predictor, OfAtoms::LastHidden, given)
    }
}
