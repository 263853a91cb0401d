//! A Deep Potential. Shapes are checked in `python/phalanx/deep_pot.py`; here everything is a slice.

use crate::arrays::{Array, slice, slice_mut};
use crate::function;
use crate::shared::Shared;
use phalanx::Potential;
use phalanx::potential::Evaluation;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use std::path::{Path, PathBuf};

/// Loads a model: a path, and the number of threads or None. Returns a dict: what the model says about itself, and `evaluate`.
pub fn load(args: &Bound<'_, PyTuple>) -> PyResult<Py<PyAny>> {
    let py = args.py();
    let (path, threads): (PathBuf, Option<usize>) = args.extract()?;
    let model = Shared::load(py, read, path, threads)?;
    let (type_map, rcut, numb_fparam, numb_aparam) = model.with(py, |model| {
        Ok((model.type_map().to_vec(), model.rcut(), model.numb_fparam(), model.numb_aparam()))
    })?;
    let dict = PyDict::new(py);
    dict.set_item("type_map", type_map)?;
    dict.set_item("rcut", rcut)?;
    dict.set_item("numb_fparam", numb_fparam)?;
    dict.set_item("numb_aparam", numb_aparam)?;
    let evaluate = move |args: &Bound<'_, PyTuple>| evaluate(&model, args, numb_fparam, numb_aparam);
    dict.set_item("evaluate", function(py, c"evaluate", evaluate)?)?;
    Ok(dict.into_any().unbind())
}

fn read(path: &Path, threads: Option<usize>) -> phalanx::Result<Potential> {
    let model = Potential::load(path)?;
    match threads {
        Some(threads) => model.with_threads(threads),
        None => Ok(model),
    }
}

/// The arrays of an evaluation as Python hands them over.
type Arrays = (Array, Option<Array>, Array, Array, Array);

/// Evaluates frames: their number, the number of atoms, arrays to read, arrays to fill.
///
/// - to read  coord `[n_frames, n_atoms, 3]`, cell `[n_frames, 9]` or None, types `[n_atoms]` or `[n_frames, n_atoms]` (int32),
///   fparam `[n_frames, numb_fparam]`, aparam `[n_frames, n_atoms, numb_aparam]`
/// - to fill  energy `[n_frames]`, force `[n_frames, n_atoms, 3]`, virial `[n_frames, 9]`, and of atoms energy `[n_frames, n_atoms]` and
///   virial `[n_frames, n_atoms, 9]`, or None and None
fn evaluate(
    model: &Shared<Potential>,
    args: &Bound<'_, PyTuple>,
    numb_fparam: usize,
    numb_aparam: usize,
) -> PyResult<Py<PyAny>> {
    type Filled = (Array, Array, Array, Option<Array>, Option<Array>);
    let (n_frames, n_atoms, read, filled): (usize, usize, Arrays, Filled) = args.extract()?;
    // SAFETY: the promise of `python/phalanx/arrays.py`, which holds on to all arrays until this returns. Those to be filled were made
    // for this call.
    let (frames, mut results) = unsafe {
        let frames = Frames {
            n_atoms,
            coord: slice(read.0)?,
            cell: read.1.map(|cell| slice(cell)).transpose()?,
            types: slice(read.2)?,
            fparam: slice(read.3)?,
            aparam: slice(read.4)?,
        };
        let results = Results {
            energy: slice_mut(filled.0)?,
            force: slice_mut(filled.1)?,
            virial: slice_mut(filled.2)?,
            atom_energy: filled.3.map(|x| slice_mut(x)).transpose()?,
            atom_virial: filled.4.map(|x| slice_mut(x)).transpose()?,
        };
        (frames, results)
    };
    frames.check(n_frames, numb_fparam, numb_aparam)?;
    results.check(n_frames, n_atoms)?;
    model.with(args.py(), |model| {
        (0..n_frames).try_for_each(|k| {
            let found = frames.evaluate(model, k);
            let found = found.map_err(|e| if n_frames > 1 { e.at(format_args!("frame {k}")) } else { e })?;
            results.put(k, n_atoms, &found);
            Ok(())
        })
    })?;
    Ok(args.py().None())
}

/// What is to be evaluated, frame after frame.
struct Frames<'a> {
    n_atoms: usize,
    coord: &'a [f64],
    cell: Option<&'a [f64]>,
    /// Of all frames, or of one that stands for all.
    types: &'a [i32],
    fparam: &'a [f64],
    aparam: &'a [f64],
}

impl Frames<'_> {
    fn check(&self, n_frames: usize, numb_fparam: usize, numb_aparam: usize) -> PyResult<()> {
        let n = self.n_atoms;
        check_size("coord", self.coord.len(), n_frames, 3 * n)?;
        check_size("cell", self.cell.map_or(9 * n_frames, <[f64]>::len), n_frames, 9)?;
        check_size("fparam", self.fparam.len(), n_frames, numb_fparam)?;
        check_size("aparam", self.aparam.len(), n_frames, n * numb_aparam)?;
        check_size("types", self.types.len(), if self.types.len() == n { 1 } else { n_frames }, n)
    }

    fn evaluate(&self, model: &mut Potential, k: usize) -> phalanx::Result<Evaluation> {
        fn of_frame<T>(x: &[T], k: usize, n: usize) -> &[T] {
            &x[k * n..(k + 1) * n]
        }
        let n = self.n_atoms;
        let types = if self.types.len() == n { self.types } else { of_frame(self.types, k, n) };
        let (n_fparam, n_aparam) = (model.numb_fparam(), n * model.numb_aparam());
        model.evaluate(
            of_frame(self.coord, k, 3 * n),
            self.cell.map(|cell| std::array::from_fn(|c| cell[9 * k + c])),
            types,
            of_frame(self.fparam, k, n_fparam),
            of_frame(self.aparam, k, n_aparam),
        )
    }
}

/// Where the results of all frames go.
struct Results<'a> {
    energy: &'a mut [f64],
    force: &'a mut [f64],
    virial: &'a mut [f64],
    atom_energy: Option<&'a mut [f64]>,
    atom_virial: Option<&'a mut [f64]>,
}

impl Results<'_> {
    fn check(&self, n_frames: usize, n: usize) -> PyResult<()> {
        check_size("energy", self.energy.len(), n_frames, 1)?;
        check_size("force", self.force.len(), n_frames, 3 * n)?;
        check_size("virial", self.virial.len(), n_frames, 9)?;
        check_size("atom_energy", self.atom_energy.as_ref().map_or(n_frames * n, |x| x.len()), n_frames, n)?;
        check_size(
            "atom_virial",
            self.atom_virial.as_ref().map_or(9 * n_frames * n, |x| x.len()),
            n_frames,
            9 * n,
        )
    }

    fn put(&mut self, k: usize, n: usize, found: &Evaluation) {
        let place = |x: &mut [f64], values: &[f64], n: usize| x[k * n..(k + 1) * n].copy_from_slice(values);
        self.energy[k] = found.energy;
        place(self.force, &found.force, 3 * n);
        place(self.virial, &found.virial, 9);
        if let Some(x) = &mut self.atom_energy {
            place(x, &found.atom_energy, n);
        }
        if let Some(x) = &mut self.atom_virial {
            place(x, &found.atom_virial, 9 * n);
        }
    }
}

/// Sizes must fit, so that no frame is cut short.
fn check_size(name: &str, found: usize, n_frames: usize, wanted: usize) -> PyResult<()> {
    if Some(found) == n_frames.checked_mul(wanted) {
        return Ok(());
    }
    Err(PyValueError::new_err(format!(
        "{name}: found {found} numbers, wanted {wanted} for each of {n_frames} frames"
    )))
}
