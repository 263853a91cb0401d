//! Memory of NumPy's arrays as slices. The stable interface of Python has no buffers before 3.11, so that `python/phalanx/arrays.py` hands
//! over address and length of contiguous arrays, which it holds on to during the call.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// Address and length.
pub type Array = (usize, usize);

/// Numbers of an array.
///
/// # Safety
/// There must be as many of this type for as long as the slice is used, and nobody may write to them.
pub unsafe fn slice<'a, T>((address, len): Array) -> PyResult<&'a [T]> {
    check::<T>(address, len)?;
    // SAFETY: the caller's promise.
    Ok(if len == 0 { &[] } else { unsafe { std::slice::from_raw_parts(address as *const T, len) } })
}

/// Numbers of an array that is to be filled.
///
/// # Safety
/// As [`slice`], and nobody else may read them.
pub unsafe fn slice_mut<'a, T>((address, len): Array) -> PyResult<&'a mut [T]> {
    check::<T>(address, len)?;
    // SAFETY: the caller's promise.
    Ok(if len == 0 { &mut [] } else { unsafe { std::slice::from_raw_parts_mut(address as *mut T, len) } })
}

fn check<T>(address: usize, len: usize) -> PyResult<()> {
    if len > 0 && (address == 0 || !address.is_multiple_of(align_of::<T>())) {
        return Err(PyValueError::new_err("an array begins where no number can be"));
    }
    Ok(())
}
