//! Models of energies: errors of energies, forces and virials.

use super::Tester;
use super::detail::Details;
use super::errors::Errors;
use crate::data::field::Field;
use crate::data::{Frame, System, Wants};
use crate::engine::Prediction;
use crate::err;
use crate::error::Result;
use std::path::Path;

pub(super) struct EnergyTester {
    atomic: bool,
    details: Option<Details>,
    errors: Errors,
    total: Errors,
}

impl EnergyTester {
    pub(super) fn new(atomic: bool, details: Option<&Path>) -> Result<Self> {
        let details = details.map(Details::new).transpose()?;
        Ok(EnergyTester { atomic, details, errors: Errors::default(), total: Errors::default() })
    }
}

impl Tester for EnergyTester {
    fn wants(&self, wants: Wants) -> Wants {
        Wants { energy: true, force: true, virial: true, atom_pref: true, atom_energy: self.atomic, ..wants }
    }

    fn check(&self, system: &System) -> Result<()> {
        if self.atomic && !system.has(Field::AtomEnergy) {
            let path = &system.path;
            return Err(err!("{path}: found no atom_ener.npy in every set").help("--atomic compares with it"));
        }
        Ok(())
    }

    fn add(&mut self, system: &str, _number: usize, frames: &[Frame], predicted: &Prediction) -> Result<()> {
        self.errors.add(frames, predicted);
        self.details.as_mut().map_or(Ok(()), |details| details.write(system, frames, predicted))
    }

    fn end_system(&mut self) -> Vec<String> {
        let errors = std::mem::take(&mut self.errors);
        self.total.merge(&errors);
        errors.lines()
    }

    fn end(mut self: Box<Self>) -> Result<Vec<String>> {
        self.details.take().map_or(Ok(()), Details::finish)?;
        self.total.forget_atom_energy();
        Ok(self.total.lines())
    }
}
