//! Errors of the library as exceptions of Python, with the library's text. No panic gets past here.

use phalanx::{Error, ErrorKind, Result};
use pyo3::PyErr;
use pyo3::exceptions::{PyFileNotFoundError, PyOSError, PyPermissionError, PyRuntimeError, PyValueError};
use std::any::Any;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The exception for an error: of a file `OSError` or one of its kinds, of an input `ValueError`, else `RuntimeError`.
pub fn exception(error: Error) -> PyErr {
    let text = error.to_string();
    match error.kind() {
        ErrorKind::Io(io::ErrorKind::NotFound) => PyFileNotFoundError::new_err(text),
        ErrorKind::Io(io::ErrorKind::PermissionDenied) => PyPermissionError::new_err(text),
        ErrorKind::Io(_) => PyOSError::new_err(text),
        ErrorKind::Input => PyValueError::new_err(text),
        ErrorKind::Diverged | ErrorKind::Other => PyRuntimeError::new_err(text),
    }
}

/// As [`exception`] where whatever goes wrong is due to the arguments.
pub fn bad_argument(error: Error) -> PyErr {
    exception(if error.kind() == ErrorKind::Other { error.of_kind(ErrorKind::Input) } else { error })
}

/// The exception for a panic: it is our mistake.
pub fn panic_exception(panic: &(dyn Any + Send)) -> PyErr {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no more is known");
    PyRuntimeError::new_err(format!("this is a mistake in Phalanx: {text}"))
}

/// Does `work`; a panic in it becomes an exception.
pub fn guarded<R>(work: impl FnOnce() -> R) -> Result<R, PyErr> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| panic_exception(&*panic))
}
