//! System folders of DeePMD-kit, in eV and Å.

use super::element::atomic_number;
use super::sample::{Keys, Sample, volume};
use super::source::{Joined, Source};
use crate::data::expand::expand_systems;
use crate::data::field::Field;
use crate::data::options::{BatchSize, DataOptions, SystemWeights};
use crate::data::{System, Wants, format};
use crate::err;
use crate::error::Result;

/// One system.
pub struct DeepmdSystem {
    system: System,
    /// Atomic number of each type.
    elems: Vec<i32>,
    keys: Keys,
}

impl DeepmdSystem {
    /// Opens a system. Its type_map.raw names elements.
    pub fn open(path: &str) -> Result<DeepmdSystem> {
        let (names, place) = {
            let source = format::open(path)?;
            (source.type_map()?, source.type_map_place())
        };
        let names = names.ok_or_else(|| {
            err!("{place}: not found")
                .help("it names the element of each type, one on a line; PiNN needs elements")
        })?;
        let number = |name: &String| atomic_number(name).map_err(|e| e.at(&place));
        let elems = names.iter().map(number).collect::<Result<_>>()?;
        let wants = Wants { energy: true, force: true, virial: true, ..Wants::default() };
        let system = System::open(path, &names, &wants)?;
        let keys = Keys {
            cell: system.pbc,
            e_data: system.has(Field::Energy),
            f_data: system.has(Field::Force),
            s_data: system.pbc && system.has(Field::Virial),
            ..Keys::default()
        };
        Ok(DeepmdSystem { system, elems, keys })
    }
}

impl Source for DeepmdSystem {
    fn len(&self) -> usize {
        self.system.n_frames
    }

    fn read(&self, index: usize) -> Result<Sample> {
        let frame = self.system.read_frame(index)?;
        // A type of -1 marks an atom that interacts with nothing.
        let real: Vec<usize> = (0..frame.n_atoms()).filter(|&i| frame.types[i] >= 0).collect();
        let rows = |values: &[f64]| {
            real.iter().map(|&i| [values[3 * i], values[3 * i + 1], values[3 * i + 2]]).collect()
        };
        let cell = frame.cell.map(|c| [[c[0], c[1], c[2]], [c[3], c[4], c[5]], [c[6], c[7], c[8]]]);
        let stress = match (&cell, frame.labels.virial) {
            (Some(cell), Some(v)) => {
                let scale = -1.0 / volume(cell).abs();
                Some(
                    [[v[0], v[1], v[2]], [v[3], v[4], v[5]], [v[6], v[7], v[8]]]
                        .map(|row| row.map(|x| x * scale)),
                )
            }
            _ => None,
        };
        let sample = Sample {
            elems: real.iter().map(|&i| self.elems[frame.types[i] as usize]).collect(),
            coord: rows(&frame.coord),
            cell,
            e_data: frame.labels.energy,
            f_data: frame.labels.force.as_deref().map(rows),
            s_data: stress,
            ..Sample::default()
        };
        let sample = sample.restricted(self.keys).and_then(|s| s.check().map(|()| s));
        sample.map_err(|e| e.at(format_args!("{}: frame {index}", self.system.path)))
    }

    fn keys(&self) -> Keys {
        self.keys
    }

    fn place(&self) -> String {
        self.system.path.clone()
    }
}

/// Every system in and below a folder, or in an HDF5 file.
pub fn open(path: &str) -> Result<Joined> {
    let options = DataOptions {
        min_pair_dist: 0.0,
        systems: vec![path.to_owned()],
        search: true,
        patterns: None,
        batch_size: BatchSize::Fixed(1),
        weights: SystemWeights::Uniform,
    };
    let open = |path: &String| Ok(Box::new(DeepmdSystem::open(path)?) as Box<dyn Source>);
    Joined::new(expand_systems(&options)?.iter().map(open).collect::<Result<_>>()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bundled_system_has_elements_and_labels() {
        let set = open("examples/water/data_0").unwrap();
        let sample = set.read(set.len() - 1).unwrap();
        assert!(sample.elems.iter().all(|z| [1, 8].contains(z)));
        assert_eq!(sample.elems.iter().filter(|z| **z == 1).count(), 2 * sample.n_atoms() / 3);
        assert!(sample.keys().e_data && sample.keys().f_data && sample.keys().cell);
        let total = sample.f_data.unwrap().iter().fold(0.0, |sum, f| sum + f[0]);
        assert!(total.abs() < 1e-3, "forces of a periodic box add up to nothing: {total}");
    }

    #[test]
    fn a_folder_without_systems_is_an_error() {
        assert!(open("src").map(|_| ()).unwrap_err().message().contains("found no system"));
    }
}
