//! What is to be evaluated, as Python hands it over. Shapes are checked in `python/phalanx/deep_eval.py`; here everything is a slice.

use crate::arrays::{Array, slice};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// The arrays to read, as Python hands them over: coord `[n_frames, n_atoms, 3]`, cell `[n_frames, 9]` or None, types `[n_atoms]` or
/// `[n_frames, n_atoms]` (int32), fparam `[n_frames, numb_fparam]`, aparam `[n_frames, n_atoms, numb_aparam]`.
pub type Arrays = (Array, Option<Array>, Array, Array, Array);

/// Frame and atom parameters that a model wants.
#[derive(Clone, Copy)]
pub struct Parameters {
    pub numb_fparam: usize,
    pub numb_aparam: usize,
}

/// What is to be evaluated, frame after frame.
pub struct Frames<'a> {
    n_atoms: usize,
    parameters: Parameters,
    coord: &'a [f64],
    cell: Option<&'a [f64]>,
    /// Of all frames, or of one that stands for all.
    types: &'a [i32],
    fparam: &'a [f64],
    aparam: &'a [f64],
}

/// One of them.
pub struct Configuration<'a> {
    pub coord: &'a [f64],
    pub cell: Option<[f64; 9]>,
    pub types: &'a [i32],
    pub fparam: &'a [f64],
    pub aparam: &'a [f64],
}

impl<'a> Frames<'a> {
    /// # Safety
    /// The promise of `python/phalanx/arrays.py`: all arrays stay where they are, and as they are, while this is used.
    pub unsafe fn new(
        n_frames: usize,
        n_atoms: usize,
        arrays: Arrays,
        parameters: Parameters,
    ) -> PyResult<Self> {
        // SAFETY: the caller's promise.
        let frames = unsafe {
            Frames {
                n_atoms,
                parameters,
                coord: slice(arrays.0)?,
                cell: arrays.1.map(|cell| slice(cell)).transpose()?,
                types: slice(arrays.2)?,
                fparam: slice(arrays.3)?,
                aparam: slice(arrays.4)?,
            }
        };
        frames.check(n_frames)?;
        Ok(frames)
    }

    fn check(&self, n_frames: usize) -> PyResult<()> {
        let n = self.n_atoms;
        check_size("coord", self.coord.len(), n_frames, 3 * n)?;
        check_size("cell", self.cell.map_or(9 * n_frames, <[f64]>::len), n_frames, 9)?;
        check_size("fparam", self.fparam.len(), n_frames, self.parameters.numb_fparam)?;
        check_size("aparam", self.aparam.len(), n_frames, n * self.parameters.numb_aparam)?;
        check_size("types", self.types.len(), if self.types.len() == n { 1 } else { n_frames }, n)
    }

    /// Frame `k`.
    pub fn of(&self, k: usize) -> Configuration<'a> {
        fn of_frame<T>(x: &[T], k: usize, n: usize) -> &[T] {
            &x[k * n..(k + 1) * n]
        }
        let n = self.n_atoms;
        Configuration {
            coord: of_frame(self.coord, k, 3 * n),
            cell: self.cell.map(|cell| std::array::from_fn(|c| cell[9 * k + c])),
            types: if self.types.len() == n { self.types } else { of_frame(self.types, k, n) },
            fparam: of_frame(self.fparam, k, self.parameters.numb_fparam),
            aparam: of_frame(self.aparam, k, n * self.parameters.numb_aparam),
        }
    }
}

/// Works through all frames in turn; an error says which.
pub fn each_frame(
    n_frames: usize,
    mut work: impl FnMut(usize) -> phalanx::Result<()>,
) -> phalanx::Result<()> {
    let told = |k: usize, e: phalanx::Error| if n_frames > 1 { e.at(format_args!("frame {k}")) } else { e };
    (0..n_frames).try_for_each(|k| work(k).map_err(|e| told(k, e)))
}

/// Sizes must fit, so that no frame is cut short.
pub fn check_size(name: &str, found: usize, n_frames: usize, wanted: usize) -> PyResult<()> {
    if Some(found) == n_frames.checked_mul(wanted) {
        return Ok(());
    }
    Err(PyValueError::new_err(format!(
        "{name}: found {found} numbers, wanted {wanted} for each of {n_frames} frames"
    )))
}
