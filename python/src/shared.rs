//! A loaded model that threads of Python share.

use crate::errors::{bad_argument, exception, guarded};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// One thread at a time evaluates; the others wait without holding Python back.
pub struct Shared<M> {
    held: Mutex<Option<Held<M>>>,
    load: fn(&Path, Option<usize>) -> phalanx::Result<M>,
    path: PathBuf,
    threads: Option<usize>,
}

struct Held<M> {
    model: M,
    /// A child made by fork has none of the model's threads.
    process: u32,
}

impl<M: Send> Shared<M> {
    /// Loads a model, which computes with so many threads.
    pub fn load(
        py: Python<'_>,
        load: fn(&Path, Option<usize>) -> phalanx::Result<M>,
        path: PathBuf,
        threads: Option<usize>,
    ) -> PyResult<Self> {
        if threads == Some(0) {
            return Err(PyValueError::new_err("threads: 0 threads compute nothing"));
        }
        let model = py.detach(|| guarded(|| load(&path, threads)))?.map_err(exception)?;
        let held = Mutex::new(Some(Held { model, process: std::process::id() }));
        Ok(Shared { held, load, path, threads })
    }

    /// Works with the model while Python runs on. What goes wrong is due to the arguments.
    pub fn with<R: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut M) -> phalanx::Result<R> + Send,
    ) -> PyResult<R> {
        py.detach(|| {
            let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
            // What a panic leaves behind may not be whole: the model is out of its place until all went well.
            let mut model = self.here(held.take())?;
            let found = guarded(|| work(&mut model))?;
            *held = Some(Held { model, process: std::process::id() });
            found.map_err(bad_argument)
        })
    }

    /// The model in this process.
    fn here(&self, held: Option<Held<M>>) -> PyResult<M> {
        match held {
            Some(held) if held.process == std::process::id() => Ok(held.model),
            Some(of_parent) => {
                // Its threads stayed with the parent, and to drop it would be to wait for them.
                std::mem::forget(of_parent);
                guarded(|| (self.load)(&self.path, self.threads))?.map_err(exception)
            }
            None => Err(PyRuntimeError::new_err(format!(
                "{}: an earlier evaluation failed; load the model again",
                self.path.display()
            ))),
        }
    }
}
