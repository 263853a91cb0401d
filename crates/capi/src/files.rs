//! What needs no model: files as bytes, texts, a summary, selections of atoms.

use crate::arrays::{array, bytes_for_c, path, size, text_for_c};
use crate::border;
use phalanx::error::IoContext;
use phalanx::{Result, bail};
use std::ffi::{CStr, c_char, c_int, c_void};

/// The content of a file; where it cannot be read the text of the error, and the negative of its length as the size.
///
/// # Safety
/// `name` must be null or end with a zero; `bytes` be null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn DP_ReadFileToChar2(name: *const c_char, bytes: *mut c_int) -> *const c_char {
    let read = || -> Result<Vec<u8>> {
        // SAFETY: the caller's promise.
        let name = unsafe { path(name)? };
        let content = std::fs::read(&name).io("read", &name)?;
        if content.len() > c_int::MAX as usize {
            bail!("{}: larger than the 2 GiB that this interface can hold", name.display());
        }
        Ok(content)
    };
    border::enter(std::ptr::null(), || {
        let (text, n) = match read() {
            Ok(content) => (bytes_for_c(&content), content.len() as c_int),
            Err(e) => {
                let text = e.to_string();
                (text_for_c(&text), -(text.len() as c_int))
            }
        };
        if !bytes.is_null() {
            // SAFETY: the caller's promise.
            unsafe { *bytes = n };
        }
        text
    })
}

/// # Safety
/// The text must be one that this library gave, or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn DP_DeleteChar(text: *const c_char) {
    // SAFETY: texts are made with malloc.
    unsafe { libc::free(text.cast_mut().cast::<c_void>()) };
}

/// # Safety
/// `before` must be null or end with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn DP_PrintSummary(before: *const c_char) {
    border::enter((), || {
        // SAFETY: the caller's promise.
        let before = if before.is_null() { c"" } else { unsafe { CStr::from_ptr(before) } }.to_string_lossy();
        println!("{before}Phalanx {}: Deep Potential models on CPU threads", env!("CARGO_PKG_VERSION"));
        println!("{before}models: .dp, .yaml, checkpoints of dp train");
    });
}

/// Numbers the atoms of some types, those of ghosts last.
///
/// # Safety
/// Arrays must have the sizes that `c_api.h` says; outputs may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn DP_SelectByType(
    n_atoms: c_int,
    types: *const c_int,
    n_ghosts: c_int,
    n_selected_types: c_int,
    selected_types: *const c_int,
    forward: *mut c_int,
    n_selected: *mut c_int,
    backward: *mut c_int,
    n_selected_ghosts: *mut c_int,
) {
    let select = || -> Result<()> {
        let (n, n_selected_types) = (size("natoms", n_atoms)?, size("nsel_type", n_selected_types)?);
        // SAFETY: the caller's promise, also below.
        let (types, wanted) =
            unsafe { (array("atype", types, n)?, array("sel_type", selected_types, n_selected_types)?) };
        let (mut selected, mut ghosts) = (0, 0);
        for (i, kind) in types.iter().enumerate() {
            let is_wanted = wanted.contains(kind);
            unsafe {
                put_int(forward, i, if is_wanted { selected } else { -1 });
                if is_wanted {
                    put_int(backward, selected as usize, i as c_int);
                }
            }
            selected += c_int::from(is_wanted);
            ghosts += c_int::from(is_wanted && i as c_int >= n_atoms - n_ghosts);
        }
        unsafe {
            put_int(n_selected, 0, selected);
            put_int(n_selected_ghosts, 0, ghosts);
        }
        Ok(())
    };
    border::enter((), || select().unwrap_or_else(|e| eprintln!("libdeepmd_c: {e}")));
}

/// Gathers rows of `stride` numbers by the numbers that [`DP_SelectByType`] gave.
///
/// # Safety
/// Arrays must have the sizes that `c_api.h` says; the output may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn DP_SelectMapInt(
    values: *const c_int,
    forward: *const c_int,
    stride: c_int,
    n_values: c_int,
    n_out: c_int,
    out: *mut c_int,
) {
    let gather = || -> Result<()> {
        let (stride, n) = (size("stride", stride)?, size("nall1", n_values)?);
        // SAFETY: the caller's promise, also below.
        let (values, forward) = unsafe { (array("in", values, stride * n)?, array("fwd_map", forward, n)?) };
        for (i, &to) in forward.iter().enumerate().filter(|&(_, &to)| to >= 0) {
            if to >= n_out {
                bail!("fwd_map leads from {i} to {to}, and there is room for {n_out}");
            }
            for k in 0..stride {
                unsafe { put_int(out, to as usize * stride + k, values[i * stride + k]) };
            }
        }
        Ok(())
    };
    border::enter((), || gather().unwrap_or_else(|e| eprintln!("libdeepmd_c: {e}")));
}

/// # Safety
/// Where `out` is not null it must have room for element `at`.
unsafe fn put_int(out: *mut c_int, at: usize, value: c_int) {
    if !out.is_null() {
        // SAFETY: the caller's promise.
        unsafe { *out.add(at) = value };
    }
}
