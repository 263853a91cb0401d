//! A PiNet or PiNet2. Shapes are checked in `python/phalanx/ase.py`; here everything is a slice.

use crate::arrays::{Array, slice, slice_mut};
use crate::function;
use crate::shared::Shared;
use phalanx::pinn::predict::{PinetEvaluation, PinetPotential};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use std::path::{Path, PathBuf};

/// Loads a model: its folder or a checkpoint, and the number of threads or None. Returns a dict: what the model says about itself,
/// and `evaluate`.
pub fn load(args: &Bound<'_, PyTuple>) -> PyResult<Py<PyAny>> {
    let py = args.py();
    let (path, threads): (PathBuf, Option<usize>) = args.extract()?;
    let model = Shared::load(py, read, path, threads)?;
    let (elements, rc, is_dipole) =
        model.with(py, |model| Ok((model.atom_types().to_vec(), model.rc(), model.is_dipole())))?;
    let dict = PyDict::new(py);
    dict.set_item("elements", elements)?;
    dict.set_item("rc", rc)?;
    dict.set_item("is_dipole", is_dipole)?;
    dict.set_item("evaluate", function(py, c"evaluate", move |args| evaluate(&model, args))?)?;
    Ok(dict.into_any().unbind())
}

fn read(path: &Path, threads: Option<usize>) -> phalanx::Result<PinetPotential> {
    let model = PinetPotential::load(path)?;
    match threads {
        Some(threads) => model.with_threads(threads),
        None => Ok(model),
    }
}

/// Evaluates one structure: arrays to read, arrays to fill.
///
/// - to read  elements `[n_atoms]` (int32), coord `[n_atoms, 3]`, cell `[9]` or None
/// - to fill  energy `[1]`, forces `[n_atoms, 3]` and stress `[9]`, or charges `[n_atoms]` and dipole `[3]`; what the model does not say is
///   left as it is
fn evaluate(model: &Shared<PinetPotential>, args: &Bound<'_, PyTuple>) -> PyResult<Py<PyAny>> {
    type Read = (Array, Array, Option<Array>);
    type Filled = (Array, Array, Array, Array, Array);
    let (read, filled): (Read, Filled) = args.extract()?;
    // SAFETY: the promise of `python/phalanx/arrays.py`, which holds on to all arrays until this returns. Those to be filled were made
    // for this call.
    let (elements, coord, cell, mut results) = unsafe {
        let cell: Option<&[f64]> = read.2.map(|cell| slice(cell)).transpose()?;
        let results: [&mut [f64]; 5] = [
            slice_mut(filled.0)?,
            slice_mut(filled.1)?,
            slice_mut(filled.2)?,
            slice_mut(filled.3)?,
            slice_mut(filled.4)?,
        ];
        (slice::<i32>(read.0)?, slice::<f64>(read.1)?, cell, results)
    };
    let n = elements.len();
    let sizes = [1, 3 * n, 9, n, 3];
    let cell: Option<[f64; 9]> = match cell {
        None => None,
        Some(cell) => Some(cell.try_into().map_err(|_| PyValueError::new_err("cell: wanted nine numbers"))?),
    };
    if results.iter().zip(sizes).any(|(x, n)| x.len() != n) || coord.len() != 3 * n {
        return Err(PyValueError::new_err("arrays do not fit the number of atoms"));
    }
    model.with(args.py(), |model| {
        put(&mut results, &model.evaluate(elements, coord, cell)?);
        Ok(())
    })?;
    Ok(args.py().None())
}

fn put([energy, forces, stress, charges, dipole]: &mut [&mut [f64]; 5], found: &PinetEvaluation) {
    let fill = |to: &mut [f64], from: &[f64]| {
        if !from.is_empty() {
            to.copy_from_slice(from);
        }
    };
    fill(energy, found.energy.as_slice());
    fill(forces, &found.forces);
    fill(stress, found.stress.as_ref().map_or(&[], |x| &x[..]));
    fill(charges, &found.charges);
    fill(dipole, found.dipole.as_ref().map_or(&[], |x| &x[..]));
}
