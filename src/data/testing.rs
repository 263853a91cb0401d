//! Tiny systems on disk, for tests.

use super::field::Wants;
use npyz::WriterBuilder;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// What a usual loss asks for.
pub const WANTS: Wants = Wants {
    energy: true,
    force: true,
    virial: true,
    atom_energy: false,
    atom_pref: false,
    atom_ener_coeff: false,
    numb_generalized_coord: 0,
    numb_fparam: 0,
    fparam_has_default: false,
    numb_aparam: 0,
    output: None,
};

/// A system in a temporary folder.
pub struct TestSystem {
    folder: TempDir,
}

/// Numbers that tell frames and columns apart.
pub fn ramp(frames: usize, width: usize, first: f64) -> Vec<f64> {
    (0..frames * width).map(|i| first + i as f64 * 0.25).collect()
}

impl TestSystem {
    /// Water-like: O H H, `frames` frames in set.000, periodic, with energy and force.
    pub fn water(frames: usize) -> TestSystem {
        let system = TestSystem::empty();
        system.text("type.raw", "0\n1\n1\n").text("type_map.raw", "O\nH\n");
        system.set("set.000", frames, 0.0);
        system
    }

    pub fn empty() -> TestSystem {
        TestSystem { folder: TempDir::new().unwrap() }
    }

    pub fn set(&self, set: &str, frames: usize, first: f64) -> &Self {
        let cells: Vec<f64> =
            (0..frames).flat_map(|_| [9.0, 0.0, 0.0, 1.0, 9.0, 0.0, 0.0, 0.0, 9.0]).collect();
        self.npy(&format!("{set}/coord.npy"), &[frames, 9], &ramp(frames, 9, first));
        self.npy(&format!("{set}/box.npy"), &[frames, 9], &cells);
        self.npy(&format!("{set}/energy.npy"), &[frames], &ramp(frames, 1, first - 100.0));
        self.npy(&format!("{set}/force.npy"), &[frames, 9], &ramp(frames, 9, first + 0.5))
    }

    pub fn root(&self) -> &Path {
        self.folder.path()
    }

    pub fn file(&self, name: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        path
    }

    pub fn text(&self, name: &str, content: &str) -> &Self {
        std::fs::write(self.file(name), content).unwrap();
        self
    }

    pub fn npy(&self, name: &str, shape: &[usize], values: &[f64]) -> &Self {
        self.typed(name, shape, values, "<f8", npyz::Order::C)
    }

    /// An npy file with any element type and order. `values` are in the order of the file.
    pub fn typed<T: npyz::Serialize + Copy>(
        &self,
        name: &str,
        shape: &[usize],
        values: &[T],
        dtype: &str,
        order: npyz::Order,
    ) -> &Self {
        assert_eq!(shape.iter().product::<usize>(), values.len());
        let shape: Vec<u64> = shape.iter().map(|&n| n as u64).collect();
        let file = std::fs::File::create(self.file(name)).unwrap();
        let mut writer = npyz::WriteOptions::new()
            .dtype(npyz::DType::Plain(dtype.parse().unwrap()))
            .order(order)
            .shape(&shape)
            .writer(std::io::BufWriter::new(file))
            .begin_nd()
            .unwrap();
        writer.extend(values.iter().copied()).unwrap();
        writer.finish().unwrap();
        self
    }

    pub fn remove(&self, name: &str) -> &Self {
        std::fs::remove_file(self.file(name)).unwrap();
        self
    }

    pub fn path(&self) -> String {
        self.folder.path().to_str().unwrap().to_owned()
    }
}

pub fn names(list: &[&str]) -> Vec<String> {
    list.iter().map(|name| (*name).to_owned()).collect()
}

/// The whole text of an error with the temporary folder left out.
pub fn message<T>(result: crate::error::Result<T>, system: &TestSystem) -> String {
    match result {
        Ok(_) => panic!("this should have been refused"),
        Err(e) => e.to_string().replace(&format!("{}/", system.path()), "").replace(&system.path(), "."),
    }
}
