//! Page-locked memory of the host in which bytes wait for their copy.

use super::device::Device;
use super::memory::Pinned;
use crate::Result;
use std::sync::{Arc, Mutex, PoisonError};

/// Sizes are rounded up to this, so that memory fits what comes next too.
const STEP: usize = 1 << 16;

/// Page-locked memory that is used again and again: locking pages takes longer than copying them.
pub struct Staging {
    device: Arc<Device>,
    free: Mutex<Vec<Pinned>>,
}

/// A piece of it; goes back when it is dropped, and may be filled anew then.
pub struct Staged {
    home: Arc<Staging>,
    /// `None` only while it is dropped.
    memory: Option<Pinned>,
    bytes: usize,
}

impl Staging {
    pub fn new(device: &Arc<Device>) -> Arc<Staging> {
        Arc::new(Staging { device: device.clone(), free: Mutex::default() })
    }

    /// A copy of these bytes; may be called from every thread.
    pub fn stage(self: &Arc<Self>, bytes: &[u8]) -> Result<Staged> {
        let mut memory = match self.take(bytes.len()) {
            Some(memory) => memory,
            None => {
                self.device.bind()?;
                Pinned::new(&self.device, bytes.len().next_multiple_of(STEP))?
            }
        };
        // SAFETY: it is new, or came back when its copies had ended.
        unsafe { memory.bytes_mut()[..bytes.len()].copy_from_slice(bytes) };
        Ok(Staged { home: self.clone(), memory: Some(memory), bytes: bytes.len() })
    }

    fn take(&self, bytes: usize) -> Option<Pinned> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let fits = free.iter().position(|memory| memory.size() >= bytes)?;
        Some(free.swap_remove(fits))
    }
}

impl Staged {
    /// Bytes that are there.
    pub fn size(&self) -> usize {
        self.bytes
    }

    /// What is there.
    ///
    /// # Safety
    ///
    /// A copy of it to the device must have ended before this piece is dropped.
    pub unsafe fn bytes(&self) -> &[u8] {
        // SAFETY: nothing is copied to it; from it as the caller says.
        self.memory.as_ref().map_or(&[], |memory| unsafe { &memory.bytes()[..self.bytes] })
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        self.home.free.lock().unwrap_or_else(PoisonError::into_inner).extend(self.memory.take());
    }
}
