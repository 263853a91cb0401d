//! Frames that live on the device.

use super::device::{Buffer, Device, arguments};
use super::frame::{Facts, HostFrame};
use super::layout::{self, Batch};
use super::network::SeriesOnDevice;
use super::sys::DevicePtr;
use crate::Result;
use std::sync::Arc;

/// A frame on the device.
struct Resident {
    facts: Arc<Facts>,
    blob: DevicePtr,
    q: DevicePtr,
}

/// Frames by slot.
pub struct Store {
    device: Arc<Device>,
    /// What the kernels read: `[capacity]` [`layout::Frame`].
    table: Buffer,
    frames: Vec<Option<Resident>>,
}

impl Store {
    pub fn new(device: &Arc<Device>, capacity: usize) -> Result<Store> {
        let table = Buffer::zeroed(device, capacity * size_of::<layout::Frame>(), "the table of frames")?;
        Ok(Store { device: device.clone(), table, frames: (0..capacity).map(|_| None).collect() })
    }

    pub fn table(&self) -> DevicePtr {
        self.table.ptr()
    }

    pub fn capacity(&self) -> usize {
        self.frames.len()
    }

    /// What is known of the frame in a slot.
    pub fn facts(&self, slot: usize) -> &Arc<Facts> {
        &self.frames[slot].as_ref().expect("a slot is filled before it is used").facts
    }

    pub fn holds(&self, slot: usize) -> bool {
        self.frames[slot].is_some()
    }

    /// Puts a frame into a slot and computes its features. `constants` has the numbers of model and series.
    pub fn put(
        &mut self,
        slot: usize,
        frame: &HostFrame,
        series: &SeriesOnDevice,
        constants: &Batch,
    ) -> Result<()> {
        self.remove(slot)?;
        let blob = self.alloc(frame.blob.len())?;
        // SAFETY: the block is ordinary memory, which the driver has read when the call returns.
        let code = unsafe {
            (self.device.driver().memcpy_htod_async)(
                blob,
                frame.blob.as_ptr().cast(),
                frame.blob.len(),
                self.device.stream().handle(),
            )
        };
        self.device.check(code, "copy a frame to the GPU")?;
        self.frames[slot] = Some(Resident { facts: frame.facts.clone(), blob, q: 0 });
        self.fill(slot, series, constants)
    }

    /// Frees a slot, in the order of the stream.
    pub fn remove(&mut self, slot: usize) -> Result<()> {
        if let Some(old) = self.frames[slot].take() {
            self.free(old.blob)?;
            self.free(old.q)?;
        }
        Ok(())
    }

    /// Computes the features of all frames anew, for another series.
    pub fn refill(&mut self, series: &SeriesOnDevice, constants: &Batch) -> Result<()> {
        for slot in 0..self.frames.len() {
            if let Some(frame) = &mut self.frames[slot] {
                let old = std::mem::take(&mut frame.q);
                self.free(old)?;
                self.fill(slot, series, constants)?;
            }
        }
        Ok(())
    }

    fn fill(&mut self, slot: usize, series: &SeriesOnDevice, constants: &Batch) -> Result<()> {
        let n_types = constants.n_types as usize;
        let terms = series.plan.terms;
        let facts = self.facts(slot).clone();
        let q = self.alloc(facts.feature_bytes(n_types, terms, self.device.numbers).max(16))?;
        let Some(frame) = &mut self.frames[slot] else { return Ok(()) };
        frame.q = q;
        let blob = frame.blob;
        self.table.write(slot * size_of::<layout::Frame>(), &[facts.entry(blob, q)])?;
        let entry = self.table.ptr() + (slot * size_of::<layout::Frame>()) as u64;
        let block = facts.block_at(blob);
        let (threads, shared) = feature_launch(terms, self.device.numbers.size());
        self.device.launch("features", facts.n_rows(), threads, shared, arguments![*constants, entry, block])
    }

    fn alloc(&self, bytes: usize) -> Result<DevicePtr> {
        let mut ptr = 0;
        // SAFETY: `ptr` is valid for writing.
        let code =
            unsafe { (self.device.driver().mem_alloc_async)(&mut ptr, bytes, self.device.stream().handle()) };
        self.device.check(code, &format!("get {bytes} bytes of GPU memory for a frame"))?;
        Ok(ptr)
    }

    fn free(&self, ptr: DevicePtr) -> Result<()> {
        if ptr == 0 {
            return Ok(());
        }
        // SAFETY: freed once, after all work of the stream that uses it.
        let code = unsafe { (self.device.driver().mem_free_async)(ptr, self.device.stream().handle()) };
        self.device.check(code, "free the memory of a frame")
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        let _ = self.device.bind();
        for slot in 0..self.frames.len() {
            // Nothing can be done about a failure here.
            let _ = self.remove(slot);
        }
    }
}

/// Threads and shared memory of the kernels that walk over the pairs of a row: the numbers of `pairs.cu`.
pub fn feature_launch(terms: usize, size: usize) -> (usize, usize) {
    const GROUP: usize = 8;
    const CHUNK: usize = 160;
    const SHARES: usize = 16;
    let groups = terms / GROUP;
    ((groups * SHARES).next_multiple_of(32), (8 + 4 * groups) * (CHUNK + 2) * size)
}
