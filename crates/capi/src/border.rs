//! Every entry of the library goes through here, so that no panic reaches the caller.

use crate::arrays::text_for_c;
use crate::registry::{self, Object, lock};
use crate::{Handle, list::List};
use phalanx::{Potential, Result};
use std::ffi::c_char;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs what an entry does; a panic becomes a text.
fn caught<R>(body: impl FnOnce() -> R) -> Result<R, String> {
    catch_unwind(AssertUnwindSafe(body)).map_err(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no more is known");
        format!("this is a mistake in Phalanx: {text}")
    })
}

/// An entry without an object.
pub fn enter<R>(fallback: R, body: impl FnOnce() -> R) -> R {
    caught(body).unwrap_or(fallback)
}

/// An entry that makes an object.
pub fn make(body: impl FnOnce() -> Result<Object>) -> Handle {
    let made = caught(body).and_then(|made| made.map_err(|e| e.to_string()));
    enter(std::ptr::null_mut(), || registry::add(made))
}

/// An entry that works with an object. What it fails with is kept for [`check`].
pub fn on<R>(handle: Handle, fallback: R, body: impl FnOnce(&mut Object) -> Result<R>) -> R {
    let done = caught(|| {
        let entry = registry::find(handle)?;
        let mut entry = lock(&entry);
        if let Object::Broken = entry.object {
            return None;
        }
        match caught(|| body(&mut entry.object)) {
            Ok(Ok(answer)) => return Some(answer),
            Ok(Err(e)) => entry.error = e.to_string(),
            Err(panic) => {
                // What it left behind may not be whole.
                entry.object = Object::Broken;
                entry.error = panic;
            }
        }
        None
    });
    done.ok().flatten().unwrap_or(fallback)
}

/// An entry that works with models; earlier errors are forgotten.
pub fn on_models<R>(handle: Handle, fallback: R, body: impl FnOnce(&mut [Potential]) -> Result<R>) -> R {
    forget_error(handle);
    on(handle, fallback, |object| match object {
        Object::Models(models) => body(models),
        _ => Err(phalanx::err!("the handle is that of another object, wanted that of a model")),
    })
}

/// What went wrong before does not matter any more.
pub fn forget_error(handle: Handle) {
    enter((), || {
        if let Some(entry) = registry::find(handle) {
            let mut entry = lock(&entry);
            if !matches!(entry.object, Object::Broken) {
                entry.error.clear();
            }
        }
    });
}

/// What the neighbour list of a handle points to. To be asked before a model is locked: the handle may be that of the model.
pub fn list_of(handle: Handle) -> Result<List> {
    let found = registry::find(handle).and_then(|entry| match &lock(&entry).object {
        Object::List(list) => Some(*list),
        _ => None,
    });
    found.ok_or_else(|| phalanx::err!("the handle of the neighbour list is none, or was deleted"))
}

/// What is wrong with an object: a text for C, empty where nothing is.
pub fn check(handle: Handle) -> *const c_char {
    enter(std::ptr::null(), || match registry::find(handle) {
        Some(entry) => text_for_c(&lock(&entry).error),
        None => text_for_c("this is no handle of libdeepmd_c, or it was deleted"),
    })
}

/// Forgets an object.
pub fn delete(handle: Handle) {
    enter((), || registry::remove(handle));
}
