//! Pointers of C as slices, texts for C.

use phalanx::{Result, bail, err};
use std::ffi::{CStr, c_char, c_int};
use std::path::PathBuf;

/// A size that C gives as an int.
pub fn size(name: &str, n: c_int) -> Result<usize> {
    usize::try_from(n).map_err(|_| err!("{name} is {n}, wanted 0 or more"))
}

/// An array that C gives by its address.
///
/// # Safety
/// Where `data` is not null it must point to `len` numbers that nobody writes while the slice is used.
pub unsafe fn array<'a, T>(name: &str, data: *const T, len: usize) -> Result<&'a [T]> {
    match len {
        0 => Ok(&[]),
        _ if data.is_null() => bail!("{name} is NULL, wanted {len} numbers"),
        // SAFETY: the caller's promise.
        _ => Ok(unsafe { std::slice::from_raw_parts(data, len) }),
    }
}

/// Copies numbers to where C wants them; NULL means that it does not.
///
/// # Safety
/// Where `out` is not null there must be room for them, from element `first` on.
pub unsafe fn put(out: *mut f64, first: usize, values: &[f64]) {
    if !out.is_null() {
        // SAFETY: the caller's promise; the values are ours.
        unsafe { std::ptr::copy_nonoverlapping(values.as_ptr(), out.add(first), values.len()) };
    }
}

/// A text of C as a path.
///
/// # Safety
/// Where it is not null it must end with a zero.
pub unsafe fn path(text: *const c_char) -> Result<PathBuf> {
    use std::os::unix::ffi::OsStrExt;
    if text.is_null() {
        bail!("the name of the file is NULL");
    }
    // SAFETY: the caller's promise.
    let bytes = unsafe { CStr::from_ptr(text) }.to_bytes();
    Ok(std::ffi::OsStr::from_bytes(bytes).into())
}

/// A text that C frees by `DP_DeleteChar`.
pub fn text_for_c(text: &str) -> *const c_char {
    bytes_for_c(text.as_bytes())
}

/// As [`text_for_c`] for any bytes, with a zero behind them.
pub fn bytes_for_c(bytes: &[u8]) -> *const c_char {
    // SAFETY: there is room for the bytes and the zero, if for anything.
    unsafe {
        let out: *mut u8 = libc::malloc(bytes.len() + 1).cast();
        if !out.is_null() {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), out, bytes.len());
            *out.add(bytes.len()) = 0;
        }
        out.cast()
    }
}
