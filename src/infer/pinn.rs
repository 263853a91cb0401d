//! What PiNN's models predict, in the units that the model's options ask for.

use crate::engine::pinet::{PinetFrame, PinetPrediction};
use crate::loss::pinn::dipole::dipole;
use crate::loss::pinn::potential::dress;
use crate::model::pinet::options::{DipoleOptions, PotentialOptions, Wiring};

/// What a potential model says about a batch.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PotentialPrediction {
    /// `[n_structures]`
    pub energy: Vec<f64>,
    /// `[n_atoms, 3]`; empty where the engine gave none
    pub forces: Vec<f64>,
    /// One for each structure with a cell. PiNN divides by the volume; the fork does not.
    pub stress: Vec<[f64; 9]>,
}

/// Energies with their dress, forces and stress in the unit `e_unit`.
pub fn predict_potential(
    o: &PotentialOptions,
    out: &PinetPrediction,
    frames: &[&PinetFrame],
) -> PotentialPrediction {
    let unit = o.e_unit / o.e_scale;
    let mut found = PotentialPrediction {
        energy: out
            .energy
            .iter()
            .zip(frames)
            .map(|(e, f)| (e / o.e_scale + dress(o, f)) * o.e_unit)
            .collect(),
        forces: out.force.iter().map(|f| f * unit).collect(),
        stress: vec![],
    };
    for (stress, frame) in out.stress.iter().zip(frames) {
        let Some(volume) = frame.volume else { continue };
        let divisor = if o.version == Wiring::Master { volume } else { 1.0 };
        found.stress.push(stress.map(|s| s * unit / divisor));
    }
    found
}

/// What a dipole model says about a batch.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DipolePrediction {
    /// `[n_structures]` the length of the dipole in training space, as PiNN gives it
    pub dipole: Vec<f64>,
    /// `[n_atoms]` in the unit `d_unit`
    pub charges: Vec<f64>,
}

/// Dipoles and charges.
pub fn predict_dipole(o: &DipoleOptions, out: &PinetPrediction, frames: &[&PinetFrame]) -> DipolePrediction {
    let mut found = DipolePrediction {
        charges: out.atomic.iter().map(|q| q / o.d_scale * o.d_unit).collect(),
        ..Default::default()
    };
    let mut first = 0;
    for frame in frames {
        let charges = &out.atomic[first..first + frame.n_atoms()];
        found.dipole.push(dipole(charges, frame).1);
        first += frame.n_atoms();
    }
    found
}
