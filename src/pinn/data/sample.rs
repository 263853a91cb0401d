//! One structure with its labels.

use crate::error::Result;
use crate::{bail, err};

/// One structure. Lengths in Å; energies and forces in the unit of the data set, which a model never asks for.
///
/// Numbers are float64 in memory. PiNN's own formats hold float32, and its readers of text round to float32:
/// so do ours, by [`Sample::rounded`].
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Sample {
    /// `[n]` atomic numbers.
    pub elems: Vec<i32>,
    /// `[n]` positions.
    pub coord: Vec<[f64; 3]>,
    /// Rows are the lattice vectors; `None` means open boundaries.
    pub cell: Option<[[f64; 3]; 3]>,
    /// Total energy.
    pub e_data: Option<f64>,
    /// `[n]` forces.
    pub f_data: Option<Vec<[f64; 3]>>,
    /// Stress: derivative of the energy by strain over the volume, positive under tension.
    pub s_data: Option<[[f64; 3]; 3]>,
    /// `[n]` charges.
    pub q_data: Option<Vec<f64>>,
    pub d_data: Option<Dipole>,
    /// Weight of the energy.
    pub e_weight: Option<f64>,
    /// `[n]` weight of each force component.
    pub f_weights: Option<Vec<[f64; 3]>>,
    /// Weight of the dipole.
    pub d_weight: Option<f64>,
    /// `[n]` oxidation numbers.
    pub oxidation: Option<Vec<f64>>,
}

/// A dipole label: its length, or the vector.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Dipole {
    Scalar(f64),
    Vector([f64; 3]),
}

impl Dipole {
    /// The length of the dipole.
    pub fn length(self) -> f64 {
        match self {
            Dipole::Scalar(d) => d,
            Dipole::Vector(d) => d.iter().map(|x| x * x).sum::<f64>().sqrt(),
        }
    }

    fn numbers(&self) -> &[f64] {
        match self {
            Dipole::Scalar(d) => std::slice::from_ref(d),
            Dipole::Vector(d) => d,
        }
    }

    fn numbers_mut(&mut self) -> &mut [f64] {
        match self {
            Dipole::Scalar(d) => std::slice::from_mut(d),
            Dipole::Vector(d) => d,
        }
    }
}

/// Which labels a sample has. Every sample of a data set has the same.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Keys {
    pub cell: bool,
    pub e_data: bool,
    pub f_data: bool,
    pub s_data: bool,
    pub q_data: bool,
    /// 0: none, 1: the length, 3: the vector.
    pub d_data: usize,
    pub e_weight: bool,
    pub f_weights: bool,
    pub d_weight: bool,
    pub oxidation: bool,
}

impl Keys {
    /// The names of the labels that are there, sorted.
    pub fn names(&self) -> Vec<&'static str> {
        let all = [
            ("cell", self.cell),
            ("d_data", self.d_data > 0),
            ("d_weight", self.d_weight),
            ("e_data", self.e_data),
            ("e_weight", self.e_weight),
            ("f_data", self.f_data),
            ("f_weights", self.f_weights),
            ("oxidation", self.oxidation),
            ("q_data", self.q_data),
            ("s_data", self.s_data),
        ];
        all.into_iter().filter(|(_, there)| *there).map(|(name, _)| name).collect()
    }
}

/// Coordinates beyond this have no digits left for distances, Å.
const FARTHEST: f64 = 1e9;

impl Sample {
    /// The number of atoms.
    pub fn n_atoms(&self) -> usize {
        self.elems.len()
    }

    /// Which labels are there.
    pub fn keys(&self) -> Keys {
        Keys {
            cell: self.cell.is_some(),
            e_data: self.e_data.is_some(),
            f_data: self.f_data.is_some(),
            s_data: self.s_data.is_some(),
            q_data: self.q_data.is_some(),
            d_data: self.d_data.map_or(0, |d| d.numbers().len()),
            e_weight: self.e_weight.is_some(),
            f_weights: self.f_weights.is_some(),
            d_weight: self.d_weight.is_some(),
            oxidation: self.oxidation.is_some(),
        }
    }

    /// Removes labels that are not among `keys`. A label that is wanted and missing is an error.
    pub fn restricted(mut self, keys: Keys) -> Result<Sample> {
        fn keep<T>(value: &mut Option<T>, wanted: bool, name: &str) -> Result<()> {
            if wanted && value.is_none() {
                return Err(err!("{name} is missing here, but the first structure has it")
                    .help("every structure of a data set must have the same labels"));
            }
            if !wanted {
                *value = None;
            }
            Ok(())
        }
        keep(&mut self.cell, keys.cell, "the cell")?;
        keep(&mut self.e_data, keys.e_data, "e_data (the energy)")?;
        keep(&mut self.f_data, keys.f_data, "f_data (the forces)")?;
        keep(&mut self.s_data, keys.s_data, "s_data (the stress)")?;
        keep(&mut self.q_data, keys.q_data, "q_data (the charges)")?;
        keep(&mut self.d_data, keys.d_data > 0, "d_data (the dipole)")?;
        keep(&mut self.e_weight, keys.e_weight, "e_weight")?;
        keep(&mut self.f_weights, keys.f_weights, "f_weights")?;
        keep(&mut self.d_weight, keys.d_weight, "d_weight")?;
        keep(&mut self.oxidation, keys.oxidation, "oxidation")?;
        Ok(self)
    }

    /// Every number as float32 holds it.
    pub fn rounded(mut self) -> Sample {
        let round = |x: &mut f64| *x = f64::from(*x as f32);
        self.coord.as_flattened_mut().iter_mut().for_each(round);
        self.labels_mut().into_iter().flat_map(|(_, numbers)| numbers).for_each(round);
        self
    }

    /// Checks that sizes agree, numbers are finite and the cell encloses something.
    pub fn check(&self) -> Result<()> {
        let n = self.elems.len();
        if n == 0 {
            bail!("found no atoms");
        }
        if let Some(i) = self.elems.iter().position(|z| !(1..=118).contains(z)) {
            bail!("atom {i}: {} is not an atomic number", self.elems[i]);
        }
        if self.coord.len() != n {
            bail!("{n} elements, but {} positions", self.coord.len());
        }
        self.check_coord()?;
        for (name, len) in self.atomic_labels() {
            if len != n {
                bail!("{name} of {len} atoms, but there are {n} elements");
            }
        }
        for (name, numbers) in self.labels() {
            if let Some(i) = numbers.iter().position(|x| !x.is_finite()) {
                bail!("{name}: found {} at number {i}", numbers[i]);
            }
        }
        self.cell.as_ref().map_or(Ok(()), check_volume)
    }

    fn check_coord(&self) -> Result<()> {
        let bad = |x: &f64| x.is_nan() || x.abs() > FARTHEST;
        match self.coord.iter().position(|r| r.iter().any(bad)) {
            Some(i) => bail!(
                "coord: found {:?} for atom {i}, wanted finite numbers below {FARTHEST:e}",
                self.coord[i]
            ),
            None => Ok(()),
        }
    }

    fn atomic_labels(&self) -> Vec<(&'static str, usize)> {
        let mut found = Vec::new();
        let mut add = |name, len: Option<usize>| found.extend(len.map(|len| (name, len)));
        add("f_data", self.f_data.as_ref().map(Vec::len));
        add("f_weights", self.f_weights.as_ref().map(Vec::len));
        add("q_data", self.q_data.as_ref().map(Vec::len));
        add("oxidation", self.oxidation.as_ref().map(Vec::len));
        found
    }

    /// Every label that is there, as plain numbers.
    fn labels(&self) -> Vec<(&'static str, &[f64])> {
        let mut found: Vec<(&'static str, &[f64])> = Vec::new();
        let mut add = |name, numbers: Option<_>| found.extend(numbers.map(|numbers| (name, numbers)));
        add("cell", self.cell.as_ref().map(|x| x.as_flattened()));
        add("e_data", self.e_data.as_ref().map(std::slice::from_ref));
        add("f_data", self.f_data.as_ref().map(|x| x.as_flattened()));
        add("s_data", self.s_data.as_ref().map(|x| x.as_flattened()));
        add("q_data", self.q_data.as_deref());
        add("d_data", self.d_data.as_ref().map(|x| x.numbers()));
        add("e_weight", self.e_weight.as_ref().map(std::slice::from_ref));
        add("f_weights", self.f_weights.as_ref().map(|x| x.as_flattened()));
        add("d_weight", self.d_weight.as_ref().map(std::slice::from_ref));
        add("oxidation", self.oxidation.as_deref());
        found
    }

    /// The same, to be changed.
    fn labels_mut(&mut self) -> Vec<(&'static str, &mut [f64])> {
        let mut found: Vec<(&'static str, &mut [f64])> = Vec::new();
        let mut add = |name, numbers: Option<_>| found.extend(numbers.map(|numbers| (name, numbers)));
        add("cell", self.cell.as_mut().map(|x| x.as_flattened_mut()));
        add("e_data", self.e_data.as_mut().map(std::slice::from_mut));
        add("f_data", self.f_data.as_mut().map(|x| x.as_flattened_mut()));
        add("s_data", self.s_data.as_mut().map(|x| x.as_flattened_mut()));
        add("q_data", self.q_data.as_deref_mut());
        add("d_data", self.d_data.as_mut().map(|x| x.numbers_mut()));
        add("e_weight", self.e_weight.as_mut().map(std::slice::from_mut));
        add("f_weights", self.f_weights.as_mut().map(|x| x.as_flattened_mut()));
        add("d_weight", self.d_weight.as_mut().map(std::slice::from_mut));
        add("oxidation", self.oxidation.as_deref_mut());
        found
    }
}

/// The volume of a cell; negative where it is left-handed.
pub fn volume(cell: &[[f64; 3]; 3]) -> f64 {
    let [a, b, c] = cell;
    a[0] * (b[1] * c[2] - b[2] * c[1]) - a[1] * (b[0] * c[2] - b[2] * c[0])
        + a[2] * (b[0] * c[1] - b[1] * c[0])
}

fn check_volume(cell: &[[f64; 3]; 3]) -> Result<()> {
    let length = |row: &[f64; 3]| row.iter().map(|x| x * x).sum::<f64>().sqrt();
    let scale: f64 = cell.iter().map(length).product();
    // A cell of three parallel vectors has a volume of rounding errors. float32 leaves seven digits.
    if !scale.is_finite() || volume(cell).abs() <= 1e-6 * scale {
        return Err(err!("the cell {cell:?} has no volume")
            .help("rows are the lattice vectors; a structure with open boundaries has no cell"));
    }
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A water molecule in a box with every label.
    pub(crate) fn water() -> Sample {
        Sample {
            elems: vec![8, 1, 1],
            coord: vec![[0.0, 0.1, 0.2], [0.96, 0.0, 0.0], [-0.24, 0.93, 0.0]],
            cell: Some([[5.0, 0.0, 0.0], [0.5, 5.0, 0.0], [0.0, 0.25, 6.0]]),
            e_data: Some(-76.5),
            f_data: Some(vec![[0.5, -0.5, 0.25], [0.0, 0.25, -0.25], [-0.5, 0.25, 0.0]]),
            s_data: Some([[1.0, 0.5, 0.0], [0.5, 2.0, 0.0], [0.0, 0.0, 3.0]]),
            q_data: Some(vec![-0.75, 0.5, 0.25]),
            d_data: Some(Dipole::Vector([0.5, 0.25, 0.125])),
            e_weight: Some(2.0),
            f_weights: Some(vec![[1.0; 3]; 3]),
            d_weight: Some(0.5),
            oxidation: Some(vec![-2.0, 1.0, 1.0]),
        }
    }

    #[test]
    fn a_sound_sample_passes_and_each_fault_is_named() {
        water().check().unwrap();
        let fault = |change: fn(&mut Sample)| {
            let mut sample = water();
            change(&mut sample);
            sample.check().unwrap_err().message().to_string()
        };
        assert!(fault(|s| s.elems.clear()).contains("found no atoms"));
        assert!(fault(|s| s.elems[1] = 0).contains("atom 1: 0 is not an atomic number"));
        assert!(fault(|s| s.coord[2][1] = f64::NAN).contains("for atom 2"));
        assert!(fault(|s| s.f_data.as_mut().unwrap().truncate(2)).contains("f_data of 2 atoms"));
        assert!(fault(|s| s.e_data = Some(f64::INFINITY)).contains("e_data: found inf"));
        assert!(fault(|s| s.cell = Some([[1.0; 3]; 3])).contains("has no volume"));
    }

    #[test]
    fn rounding_gives_what_float32_holds() {
        let mut sample = water();
        sample.e_data = Some(0.1);
        let sample = sample.rounded();
        assert_eq!(sample.e_data, Some(f64::from(0.1f32)));
        assert_eq!(sample.coord[1][0], f64::from(0.96f32));
    }

    #[test]
    fn labels_are_restricted_to_those_of_the_first_structure() {
        let keys = Sample { q_data: None, ..water() }.keys();
        assert_eq!(water().restricted(keys).unwrap().q_data, None);
        let error = Sample { f_data: None, ..water() }.restricted(keys).unwrap_err();
        assert!(error.message().contains("f_data"), "{error}");
    }
}
