//! The commands `dp` and `pinn`, as the programs of the same names.

use crate::errors::guarded;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use std::ffi::OsString;
use std::io::Write;

/// Runs `dp` with a list of arguments and returns its exit code.
pub fn dp(args: &Bound<'_, PyTuple>) -> PyResult<Py<PyAny>> {
    run(args, phalanx::cli::run)
}

/// Runs `pinn` with a list of arguments and returns its exit code.
pub fn pinn(args: &Bound<'_, PyTuple>) -> PyResult<Py<PyAny>> {
    run(args, phalanx::cli::pinn::run)
}

fn run(args: &Bound<'_, PyTuple>, command: fn(Vec<OsString>) -> u8) -> PyResult<Py<PyAny>> {
    let py = args.py();
    let (args,): (Vec<OsString>,) = args.extract()?;
    let code = py.detach(|| {
        let code = guarded(|| command(args));
        // A program of Rust does this when it ends. A closed pipe has nobody behind it who could be told.
        let _ = std::io::stdout().flush();
        code
    })?;
    Ok(code.into_pyobject(py)?.into_any().unbind())
}
