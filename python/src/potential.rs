//! A Deep Potential. Shapes are checked in `python/phalanx`; here everything is a slice.

use crate::arrays::{Array, slice_mut};
use crate::frames::{Arrays, Configuration, Frames, Parameters, check_size, each_frame};
use crate::function;
use crate::of_atoms::{Ask, add_functions};
use crate::shared::Shared;
use phalanx::Potential;
use phalanx::potential::Evaluation;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Loads a model: a path, and the number of threads or None. Returns a dict: what the model says about itself, and `evaluate`.
pub fn load(args: &Bound<'_, PyTuple>) -> PyResult<Py<PyAny>> {
    let py = args.py();
    let (path, threads): (PathBuf, Option<usize>) = args.extract()?;
    let model = Arc::new(Shared::load(py, read, path, threads)?);
    let (type_map, rcut, parameters, widths) = model.with(py, |model| {
        let parameters = Parameters { numb_fparam: model.numb_fparam(), numb_aparam: model.numb_aparam() };
        let widths = [model.n_descriptor(), model.n_hidden()];
        Ok((model.type_map().to_vec(), model.rcut(), parameters, widths))
    })?;
    let dict = PyDict::new(py);
    dict.set_item("selected_types", (0..type_map.len()).collect::<Vec<_>>())?;
    dict.set_item("type_map", type_map)?;
    dict.set_item("rcut", rcut)?;
    dict.set_item("numb_fparam", parameters.numb_fparam)?;
    dict.set_item("numb_aparam", parameters.numb_aparam)?;
    let asks: [Ask<Potential>; 2] = [
        |model, x| model.descriptors(x.coord, x.cell, x.types, x.fparam, x.aparam),
        |model, x| model.last_hidden(x.coord, x.cell, x.types, x.fparam, x.aparam),
    ];
    add_functions(&dict, &model, asks, widths, parameters)?;
    let evaluate = move |args: &Bound<'_, PyTuple>| evaluate(&model, args, parameters);
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

/// Evaluates frames: their number, the number of atoms, arrays to read ([`Arrays`]), arrays to fill: energy `[n_frames]`, force
/// `[n_frames, n_atoms, 3]`, virial `[n_frames, 9]`, and of atoms energy `[n_frames, n_atoms]` and virial `[n_frames, n_atoms, 9]`, or
/// None and None.
fn evaluate(
    model: &Shared<Potential>,
    args: &Bound<'_, PyTuple>,
    parameters: Parameters,
) -> PyResult<Py<PyAny>> {
    type Filled = (Array, Array, Array, Option<Array>, Option<Array>);
    let (n_frames, n_atoms, read, filled): (usize, usize, Arrays, Filled) = args.extract()?;
    // SAFETY: the promise of `python/phalanx/arrays.py`, which holds on to all arrays until this returns. Those to be filled were made
    // for this call.
    let (frames, mut results) = unsafe {
        let results = Results {
            energy: slice_mut(filled.0)?,
            force: slice_mut(filled.1)?,
            virial: slice_mut(filled.2)?,
            atom_energy: filled.3.map(|x| slice_mut(x)).transpose()?,
            atom_virial: filled.4.map(|x| slice_mut(x)).transpose()?,
        };
        (Frames::new(n_frames, n_atoms, read, parameters)?, results)
    };
    results.check(n_frames, n_atoms)?;
    model.with(args.py(), |model| {
        each_frame(n_frames, |k| {
            let Configuration { coord, cell, types, fparam, aparam } = frames.of(k);
            results.put(k, n_atoms, &model.evaluate(coord, cell, types, fparam, aparam)?);
            Ok(())
        })
    })?;
    Ok(args.py().None())
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
