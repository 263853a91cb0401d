//! Numbers of each atom that a model computes on its way: descriptors, and the last hidden layer of the fitting net.

use crate::arrays::{Array, slice_mut};
use crate::frames::{Arrays, Configuration, Frames, Parameters, check_size, each_frame};
use crate::function;
use crate::shared::Shared;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use std::sync::Arc;

/// Asks a model for numbers of the atoms of a configuration, `[n_atoms, width]`.
pub type Ask<M> = fn(&mut M, Configuration) -> phalanx::Result<Vec<f64>>;

/// Adds `descriptors` and `last_hidden` to what is known of a model, with the width of each. They take the number of frames, that of atoms,
/// the arrays to read, and one to fill: `[n_frames, n_atoms, width]`.
pub fn add_functions<M: Send + 'static>(
    dict: &Bound<'_, PyDict>,
    model: &Arc<Shared<M>>,
    asks: [Ask<M>; 2],
    widths: [usize; 2],
    parameters: Parameters,
) -> PyResult<()> {
    let names = [(c"descriptors", "n_descriptor"), (c"last_hidden", "n_hidden")];
    for (((name, width_name), ask), width) in names.into_iter().zip(asks).zip(widths) {
        dict.set_item(width_name, width)?;
        let model = model.clone();
        let body = move |args: &Bound<'_, PyTuple>| fill(&model, args, (ask, width), parameters);
        dict.set_item(name.to_string_lossy(), function(dict.py(), name, body)?)?;
    }
    Ok(())
}

fn fill<M: Send>(
    model: &Shared<M>,
    args: &Bound<'_, PyTuple>,
    (ask, width): (Ask<M>, usize),
    parameters: Parameters,
) -> PyResult<Py<PyAny>> {
    let (n_frames, n_atoms, read, filled): (usize, usize, Arrays, Array) = args.extract()?;
    // SAFETY: the promise of `python/phalanx/arrays.py`; what is filled was made for this call.
    let (frames, out) =
        unsafe { (Frames::new(n_frames, n_atoms, read, parameters)?, slice_mut::<f64>(filled)?) };
    let each = n_atoms * width;
    check_size("the array to fill", out.len(), n_frames, each)?;
    model.with(args.py(), |model| {
        each_frame(n_frames, |k| {
            out[k * each..(k + 1) * each].copy_from_slice(&ask(model, frames.of(k))?);
            Ok(())
        })
    })?;
    Ok(args.py().None())
}
