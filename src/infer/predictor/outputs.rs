//! What is not an energy: other outputs of a configuration with their derivatives, descriptors of atoms, the last hidden layer.

use super::{PrecisionEngine, Predictor, has_no_atoms, in_parts};
use crate::data::Frame;
use crate::engine::cpu::CpuEngine;
use crate::engine::cpu::real::Real;
use crate::engine::{Derivatives, Outputs};
use crate::model::dp::geometry::Geometry;
use crate::neighbor::Domain;
use crate::{Result, bail};

/// Numbers of each atom that a model computes on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OfAtoms {
    Descriptor,
    /// The input of the last layer of the fitting net.
    LastHidden,
}

impl Predictor {
    /// As [`Predictor::evaluate`] for a model that predicts no energy, on CPU threads.
    pub fn evaluate_outputs(&mut self, frame: &Frame, wanted: Derivatives) -> Result<Outputs> {
        let geometries = self.geometries(frame)?;
        self.outputs_of(&geometries, wanted)
    }

    /// As [`Predictor::evaluate_domain`] for a model that predicts no energy, on CPU threads.
    pub fn evaluate_outputs_of_domain(
        &mut self,
        domain: &Domain,
        fparam: &[f64],
        aparam: &[f64],
        wanted: Derivatives,
    ) -> Result<Outputs> {
        let geometries = self.geometries_of_domain(domain, fparam, aparam)?;
        self.outputs_of(&geometries, wanted)
    }

    /// Numbers of each atom of a frame, `[n_atoms, width]`; zeros for what is no atom of the model. On CPU threads.
    pub fn of_atoms(&mut self, frame: &Frame, what: OfAtoms) -> Result<Vec<f64>> {
        let width = self.width_of_atoms(what);
        let geometries = self.geometries(frame)?;
        let mut all = vec![0.0; frame.n_atoms() * width];
        if has_no_atoms(&geometries) {
            return Ok(all);
        }
        match self.cpu_engine(&geometries)? {
            (PrecisionEngine::Float32(engine), params) => {
                of_atoms(&mut all, engine, params, &geometries, what)?
            }
            (PrecisionEngine::Float64(engine), params) => {
                of_atoms(&mut all, engine, params, &geometries, what)?
            }
            _ => bail!("this engine takes batches of frames"),
        }
        Ok(all)
    }

    /// Numbers of each atom.
    pub fn width_of_atoms(&self, what: OfAtoms) -> usize {
        match what {
            OfAtoms::Descriptor => self.model.n_descriptor(),
            OfAtoms::LastHidden => self.model.options.fitting.neuron.last().copied().unwrap_or(0),
        }
    }

    fn outputs_of(&mut self, geometries: &[Geometry], wanted: Derivatives) -> Result<Outputs> {
        let width = self.model.output.width;
        let mut all = Outputs::zeros(geometries[0].n_atoms(), width, wanted);
        if has_no_atoms(geometries) {
            return Ok(all);
        }
        match self.cpu_engine(geometries)? {
            (PrecisionEngine::Float32(engine), params) => {
                outputs(&mut all, engine, params, geometries, width)?
            }
            (PrecisionEngine::Float64(engine), params) => {
                outputs(&mut all, engine, params, geometries, width)?
            }
            _ => bail!("this engine takes batches of frames"),
        }
        Ok(all)
    }
}

fn outputs<T: Real>(
    all: &mut Outputs,
    engine: &mut CpuEngine<T>,
    params: &[f64],
    geometries: &[Geometry],
    width: usize,
) -> Result<()> {
    let n = geometries[0].n_atoms();
    in_parts(engine, params, geometries, |engine, frame, centers, part| {
        all.output.iter_mut().zip(&part.output).for_each(|(sum, x)| *sum += x);
        let own = centers.start * width..centers.end * width;
        all.atom_output[own.clone()].copy_from_slice(&part.atom_output[own]);
        for c in 0..all.force.len() / (3 * n) {
            let of_atoms = if all.atom_virial.is_empty() { 0..0 } else { 9 * n * c..9 * n * (c + 1) };
            let virial = all.virial[9 * c..].first_chunk_mut().expect("nine numbers of each component");
            let to = (&mut all.force[3 * n * c..3 * n * (c + 1)], virial, &mut all.atom_virial[of_atoms]);
            engine.component_add(to, params, frame, c);
        }
    })
}

fn of_atoms<T: Real>(
    all: &mut [f64],
    engine: &mut CpuEngine<T>,
    params: &[f64],
    geometries: &[Geometry],
    what: OfAtoms,
) -> Result<()> {
    let mut part = vec![0.0; all.len()];
    let width = all.len() / geometries[0].n_atoms().max(1);
    in_parts(engine, params, geometries, |engine, frame, centers, _| {
        match what {
            OfAtoms::Descriptor => engine.descriptors(&mut part, frame),
            OfAtoms::LastHidden => engine.last_hidden(&mut part, frame),
        }
        let own = centers.start * width..centers.end * width;
        all[own.clone()].copy_from_slice(&part[own]);
    })
}
