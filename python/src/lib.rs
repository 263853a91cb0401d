//! The extension module of the Python package `phalanx`. What Python users see is in `python/phalanx`; here arrays become slices,
//! errors exceptions, and Python runs on while Rust computes.
//!
//! PyO3's macros are left out (Cargo.toml says why): functions are closures over a tuple of arguments, and a model is a dict of
//! what it says about itself and a function that evaluates. They are for `python/phalanx` alone.

mod arrays; // memory of NumPy's arrays as slices
mod commands; // dp and pinn
mod errors; // errors and panics as exceptions
mod frames; // what is to be evaluated
mod of_atoms; // descriptors of atoms, last hidden layers
mod outputs; // a model that predicts no energy
mod pinet; // a PiNet
mod potential; // a Deep Potential
mod shared; // a loaded model that threads of Python share
mod train; // a training run

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyCFunction, PyDict, PyTuple};
use std::cell::UnsafeCell;
use std::ffi::CStr;
use std::ptr::null_mut;

/// For what is allocated in here; Python keeps its own. Large buffers come from the system's allocator all the same, on huge pages.
#[global_allocator]
static ALLOCATOR: phalanx::memory::Huge = phalanx::memory::Huge;

/// A function that Python calls by position.
pub fn function<'py>(
    py: Python<'py>,
    name: &'static CStr,
    body: impl Fn(&Bound<'_, PyTuple>) -> PyResult<Py<PyAny>> + Send + Sync + 'static,
) -> PyResult<Bound<'py, PyCFunction>> {
    PyCFunction::new_closure(
        py,
        Some(name),
        None,
        move |args: &Bound<'_, PyTuple>, _: Option<&Bound<'_, PyDict>>| body(args),
    )
}

fn fill(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    module.add("VERSION", env!("CARGO_PKG_VERSION"))?;
    module.add("load", function(py, c"load", potential::load)?)?;
    module.add("load_outputs", function(py, c"load_outputs", outputs::load)?)?;
    module.add("load_pinet", function(py, c"load_pinet", pinet::load)?)?;
    module.add("train", function(py, c"train", train::train)?)?;
    module.add("dp", function(py, c"dp", commands::dp)?)?;
    module.add("pinn", function(py, c"pinn", commands::pinn)?)
}

/// What Python says of a module before it is there.
struct Definition(UnsafeCell<ffi::PyModuleDef>);

// SAFETY: Python alone changes it, while it imports modules, which is one thread at a time.
unsafe impl Sync for Definition {}

static DEFINITION: Definition = Definition(UnsafeCell::new(ffi::PyModuleDef {
    m_base: ffi::PyModuleDef_HEAD_INIT,
    m_name: c"_phalanx".as_ptr(),
    m_doc: c"What the package phalanx is built on.".as_ptr(),
    m_size: -1, // not for subinterpreters
    m_methods: null_mut(),
    m_slots: null_mut(),
    m_traverse: None,
    m_clear: None,
    m_free: None,
}));

/// Python calls this when the module is imported.
///
/// # Safety
/// For Python alone, which holds its lock.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn PyInit__phalanx() -> *mut ffi::PyObject {
    Python::attach(|py| {
        // SAFETY: the definition is static and whole; Python writes to its head, which nobody else reads.
        let made = unsafe { Bound::from_owned_ptr_or_err(py, ffi::PyModule_Create(DEFINITION.0.get())) };
        let filled = made.and_then(|made| {
            let module = made.cast_into::<PyModule>()?;
            fill(&module)?;
            Ok(module)
        });
        match filled {
            Ok(module) => module.into_ptr(),
            Err(e) => {
                e.restore(py);
                null_mut()
            }
        }
    })
}
