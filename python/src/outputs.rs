//! A model that predicts no energy.

use crate::arrays::{Array, slice_mut};
use crate::frames::{Arrays, Configuration, Frames, Parameters, check_size, each_frame};
use crate::function;
use crate::of_atoms::{Ask, add_functions};
use crate::shared::Shared;
use phalanx::OutputModel;
use phalanx::potential::Derivatives;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Loads a model: a path, and the number of threads or None. Returns a dict: what the model says about itself, and `evaluate`.
pub fn load(args: &Bound<'_, PyTuple>) -> PyResult<Py<PyAny>> {
    let py = args.py();
    let (path, threads): (PathBuf, Option<usize>) = args.extract()?;
    let model = Arc::new(Shared::load(py, read, path, threads)?);
    let dict = PyDict::new(py);
    let (facts, parameters, width) = model.with(py, |model| {
        let parameters = Parameters { numb_fparam: model.numb_fparam(), numb_aparam: model.numb_aparam() };
        let names = (model.kind(), model.name().to_string(), model.is_intensive());
        let widths = [model.n_descriptor(), model.n_hidden()];
        let of_types = (model.type_map().to_vec(), model.selected_types(), model.rcut());
        Ok(((names, of_types, widths), parameters, model.width()))
    })?;
    let ((kind, name, is_intensive), (type_map, selected_types, rcut), widths) = facts;
    dict.set_item("kind", kind)?;
    dict.set_item("name", name)?;
    dict.set_item("is_intensive", is_intensive)?;
    dict.set_item("width", width)?;
    dict.set_item("type_map", type_map)?;
    dict.set_item("selected_types", selected_types)?;
    dict.set_item("rcut", rcut)?;
    dict.set_item("numb_fparam", parameters.numb_fparam)?;
    dict.set_item("numb_aparam", parameters.numb_aparam)?;
    let asks: [Ask<OutputModel>; 2] = [
        |model, x| model.descriptors(x.coord, x.cell, x.types, x.fparam, x.aparam),
        |model, x| model.last_hidden(x.coord, x.cell, x.types, x.fparam, x.aparam),
    ];
    add_functions(&dict, &model, asks, widths, parameters)?;
    let evaluate = move |args: &Bound<'_, PyTuple>| evaluate(&model, args, parameters, width);
    dict.set_item("evaluate", function(py, c"evaluate", evaluate)?)?;
    Ok(dict.into_any().unbind())
}

fn read(path: &Path, threads: Option<usize>) -> phalanx::Result<OutputModel> {
    let model = OutputModel::load(path)?;
    match threads {
        Some(threads) => model.with_threads(threads),
        None => Ok(model),
    }
}

/// Evaluates frames: their number, the number of atoms, arrays to read ([`Arrays`]), arrays to fill: output `[n_frames, width]`, that of
/// atoms `[n_frames, n_atoms, width]`, and, or None, force `[n_frames, width, n_atoms, 3]` and virial `[n_frames, width, 9]`, and virials
/// of atoms `[n_frames, width, n_atoms, 9]`.
fn evaluate(
    model: &Shared<OutputModel>,
    args: &Bound<'_, PyTuple>,
    parameters: Parameters,
    width: usize,
) -> PyResult<Py<PyAny>> {
    type Filled = (Array, Array, Option<Array>, Option<Array>, Option<Array>);
    let (n_frames, n, read, filled): (usize, usize, Arrays, Filled) = args.extract()?;
    let wanted = match (filled.2.or(filled.3), filled.4) {
        (None, None) => Derivatives::None,
        (Some(_), None) => Derivatives::OfFrame,
        (_, Some(_)) => Derivatives::OfAtoms,
    };
    let given = [Some(filled.0), Some(filled.1), filled.2, filled.3, filled.4];
    let sizes = [width, n * width, 3 * n * width, 9 * width, 9 * n * width];
    let mut out = Vec::new();
    for (array, size) in given.into_iter().zip(sizes) {
        // SAFETY: the promise of `python/phalanx/arrays.py`; what is filled was made for this call.
        let array = array.map(|array| unsafe { slice_mut::<f64>(array) }).transpose()?;
        if let Some(array) = &array {
            check_size("an array to fill", array.len(), n_frames, size)?;
        }
        out.push((array, size));
    }
    // SAFETY: as above.
    let frames = unsafe { Frames::new(n_frames, n, read, parameters)? };
    model.with(args.py(), |model| {
        each_frame(n_frames, |k| {
            let Configuration { coord, cell, types, fparam, aparam } = frames.of(k);
            let found = model.evaluate(coord, cell, types, fparam, aparam, wanted)?;
            let lists = [&found.output, &found.atom_output, &found.force, &found.virial, &found.atom_virial];
            for ((array, size), list) in out.iter_mut().zip(lists) {
                if let Some(array) = array {
                    array[k * *size..(k + 1) * *size].copy_from_slice(list);
                }
            }
            Ok(())
        })
    })?;
    Ok(args.py().None())
}
