//! Mean absolute and root-mean-square errors, summed so that parts combine exactly.

use crate::data::Frame;
use crate::engine::Prediction;
use crate::report::number::exp;

/// What is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Quantity {
    Energy,
    EnergyPerAtom,
    Force,
    WeightedForce,
    Virial,
    VirialPerAtom,
    Stress,
    AtomEnergy,
}

/// Quantity, names of its mean absolute and root-mean-square error, unit: in the order of the report.
const REPORT: [(Quantity, &str, &str, &str); 8] = [
    (Quantity::Energy, "Energy MAE         ", "Energy RMSE        ", "eV"),
    (Quantity::EnergyPerAtom, "Energy MAE/Natoms  ", "Energy RMSE/Natoms ", "eV"),
    (Quantity::Force, "Force  MAE         ", "Force  RMSE        ", "eV/Å"),
    (Quantity::WeightedForce, "Force weighted MAE ", "Force weighted RMSE", "eV/Å"),
    (Quantity::Virial, "Virial MAE         ", "Virial RMSE        ", "eV"),
    (Quantity::VirialPerAtom, "Virial MAE/Natoms  ", "Virial RMSE/Natoms ", "eV"),
    (Quantity::Stress, "Stress MAE         ", "Stress RMSE        ", "eV/Å³"),
    (Quantity::AtomEnergy, "Atomic ener MAE    ", "Atomic ener RMSE   ", "eV"),
];

/// Weighted sums of |error| and error^2.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Sums {
    absolute: f64,
    squares: f64,
    weight: f64,
}

impl Sums {
    pub(super) fn add(&mut self, error: f64, weight: f64) {
        self.absolute += weight * error.abs();
        self.squares += weight * error * error;
        self.weight += weight;
    }

    fn add_all<'a>(&mut self, got: &[f64], want: impl IntoIterator<Item = &'a f64>, scale: f64) {
        got.iter().zip(want).for_each(|(got, want)| self.add((got - want) * scale, 1.0));
    }

    pub(super) fn merge(&mut self, other: &Sums) {
        self.absolute += other.absolute;
        self.squares += other.squares;
        self.weight += other.weight;
    }

    pub(super) fn mean_absolute(&self) -> f64 {
        if self.weight > 0.0 { self.absolute / self.weight } else { 0.0 }
    }

    pub(super) fn root_mean_square(&self) -> f64 {
        if self.weight > 0.0 { (self.squares / self.weight).sqrt() } else { 0.0 }
    }
}

/// Errors of every quantity; `None` where no frame had the label.
#[derive(Debug, Clone, Default)]
pub(super) struct Errors {
    sums: [Option<Sums>; REPORT.len()],
}

impl Errors {
    fn of(&mut self, quantity: Quantity) -> &mut Sums {
        self.sums[quantity as usize].get_or_insert_default()
    }

    /// Adds the errors of a batch.
    pub(super) fn add(&mut self, frames: &[Frame], predicted: &Prediction) {
        let mut first = 0;
        for (i, frame) in frames.iter().enumerate() {
            let atoms = first..first + frame.n_atoms();
            first = atoms.end;
            if let Some(energy) = frame.labels.energy {
                let error = predicted.energy[i] - energy;
                self.of(Quantity::Energy).add(error, 1.0);
                self.of(Quantity::EnergyPerAtom).add(error / frame.n_atoms() as f64, 1.0);
            }
            self.add_forces(frame, &predicted.force[3 * atoms.start..3 * atoms.end]);
            self.add_virial(frame, &predicted.virial[i]);
            if let Some(atom_energy) = &frame.labels.atom_energy {
                self.of(Quantity::AtomEnergy).add_all(&predicted.atom_energy[atoms], atom_energy, 1.0);
            }
        }
    }

    fn add_forces(&mut self, frame: &Frame, predicted: &[f64]) {
        let Some(force) = &frame.labels.force else { return };
        self.of(Quantity::Force).add_all(predicted, force, 1.0);
        if let Some(weights) = &frame.labels.atom_pref {
            let sums = self.of(Quantity::WeightedForce);
            for ((got, want), weight) in predicted.iter().zip(force).zip(weights) {
                sums.add(got - want, *weight);
            }
        }
    }

    /// Without a cell there is no virial to speak of.
    fn add_virial(&mut self, frame: &Frame, predicted: &[f64; 9]) {
        let (Some(virial), Some(cell)) = (&frame.labels.virial, &frame.cell) else { return };
        self.of(Quantity::Virial).add_all(predicted, virial, 1.0);
        self.of(Quantity::VirialPerAtom).add_all(predicted, virial, 1.0 / frame.n_atoms() as f64);
        self.of(Quantity::Stress).add_all(predicted, virial, 1.0 / volume(cell));
    }

    /// The errors of both together.
    pub(super) fn merge(&mut self, other: &Errors) {
        for (mine, theirs) in self.sums.iter_mut().zip(&other.sums) {
            if let Some(theirs) = theirs {
                mine.get_or_insert_default().merge(theirs);
            }
        }
    }

    /// Energies of atoms are told for each system, not on average: DeePMD-kit's custom.
    pub(super) fn forget_atom_energy(&mut self) {
        self.sums[Quantity::AtomEnergy as usize] = None;
    }

    /// One line for each error.
    pub(super) fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for (quantity, mae, rmse, unit) in REPORT {
            if let Some(sums) = &self.sums[quantity as usize] {
                lines.push(format!("{mae}: {} {unit}", exp(sums.mean_absolute(), 6)));
                lines.push(format!("{rmse}: {} {unit}", exp(sums.root_mean_square(), 6)));
            }
        }
        lines
    }
}

/// Volume of a cell, A^3.
pub(super) fn volume(h: &[f64; 9]) -> f64 {
    let det = h[0] * (h[4] * h[8] - h[5] * h[7]) - h[1] * (h[3] * h[8] - h[5] * h[6])
        + h[2] * (h[3] * h[7] - h[4] * h[6]);
    det.abs()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Labels;

    fn frame(labels: Labels) -> Frame {
        let cell = Some([2.0, 0.0, 0.0, 1.0, 2.0, 0.0, 0.0, 1.0, -2.0]);
        Frame {
            types: vec![0, 0].into(),
            coord: vec![0.0; 6],
            cell,
            fparam: vec![],
            aparam: vec![],
            sorted: false,
            labels,
        }
    }

    fn zero_prediction() -> Prediction {
        Prediction {
            energy: vec![0.0],
            atom_energy: vec![0.0; 2],
            force: vec![0.0; 6],
            virial: vec![[0.0; 9]],
            ..Prediction::default()
        }
    }

    #[test]
    fn errors_of_parts_combine_to_errors_of_the_whole() {
        let mut total = Errors::default();
        for energy in [3.0, -4.0] {
            let labels = Labels { energy: Some(energy), ..Labels::default() };
            let mut part = Errors::default();
            part.add(&[frame(labels)], &zero_prediction());
            total.merge(&part);
        }
        assert_eq!(
            total.lines(),
            [
                "Energy MAE         : 3.500000e+00 eV",
                "Energy RMSE        : 3.535534e+00 eV",
                "Energy MAE/Natoms  : 1.750000e+00 eV",
                "Energy RMSE/Natoms : 1.767767e+00 eV",
            ]
        );
    }

    #[test]
    fn weights_and_volumes_enter_where_they_should() {
        let labels = Labels {
            force: Some(vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0]),
            atom_pref: Some(vec![1.0, 1.0, 1.0, 0.0, 0.0, 0.0]),
            virial: Some([8.0; 9]),
            atom_energy: Some(vec![1.0, -3.0]),
            ..Labels::default()
        };
        let mut errors = Errors::default();
        errors.add(&[frame(labels)], &zero_prediction());
        let lines = errors.lines();
        for want in [
            "Force  MAE         : 3.500000e+00 eV/Å",
            "Force weighted MAE : 2.000000e+00 eV/Å",
            "Virial RMSE/Natoms : 4.000000e+00 eV",
            "Stress MAE         : 1.000000e+00 eV/Å³",
            "Atomic ener RMSE   : 2.236068e+00 eV",
        ] {
            assert!(lines.iter().any(|line| line == want), "{want} in {lines:#?}");
        }
        errors.forget_atom_energy();
        assert_eq!(errors.lines().len(), lines.len() - 2);
    }
}
