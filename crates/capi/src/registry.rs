//! What the handles stand for.
//!
//! A handle is a number that is never given twice, so that one which was deleted, or which is the address of something else, is
//! found out and not followed.

use crate::Handle;
use crate::list::List;
use crate::tensor::Tensor;
use phalanx::Potential;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

/// An object, and what went wrong with it.
pub struct Entry {
    pub object: Object,
    /// Empty where all is well.
    pub error: String,
}

pub enum Object {
    /// One model, or several that are compared.
    Models(Vec<Potential>),
    List(List),
    /// A model of dipoles or polarizabilities.
    Tensor(Box<Tensor>),
    /// It could not be made, or panicked; the entry's text says why.
    Broken,
}

static OBJECTS: LazyLock<Mutex<HashMap<usize, Arc<Mutex<Entry>>>>> = LazyLock::new(Default::default);

/// Looks like an address, for callers that print it, and is none.
static NEXT: AtomicUsize = AtomicUsize::new(0x1000);

/// Panics are caught while a lock is held, so what it guards is whole.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps an object, or why there is none.
pub fn add(object: Result<Object, String>) -> Handle {
    let entry = match object {
        Ok(object) => Entry { object, error: String::new() },
        Err(error) => Entry { object: Object::Broken, error },
    };
    let number = NEXT.fetch_add(16, Ordering::Relaxed);
    lock(&OBJECTS).insert(number, Arc::new(Mutex::new(entry)));
    std::ptr::without_provenance_mut(number)
}

/// The object of a handle; `None` for whatever is no handle, or not any more.
pub fn find(handle: Handle) -> Option<Arc<Mutex<Entry>>> {
    lock(&OBJECTS).get(&handle.addr()).cloned()
}

/// Forgets an object. Whatever is no handle is left alone: CP2K gives the address of its handle here.
pub fn remove(handle: Handle) {
    let entry = lock(&OBJECTS).remove(&handle.addr());
    drop(entry); // the registry is free again while threads of an engine end
}
