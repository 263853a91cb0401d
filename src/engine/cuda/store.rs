//! Frames that live on the device.
//!
//! They come on a stream of their own, ahead of the steps that use them: their bytes are copied and their features computed
//! while earlier steps run. [`Store::publish`] makes the main stream wait for what has come, enters it into the table that
//! the kernels read, and frees what was given up; in the order of the main stream, so that steps under way keep what they
//! use.

use super::device::{Buffer, Device, Event, Stream, arguments};
use super::frame::{Facts, HostFrame};
use super::layout::{self, Batch};
use super::network::SeriesOnDevice;
use super::share::{self, Share};
use super::sys::DevicePtr;
use crate::Result;
use std::collections::VecDeque;
use std::sync::Arc;

/// A frame on the device.
struct Resident {
    facts: Arc<Facts>,
    /// Its arrays, and behind them its entry for the table.
    blob: DevicePtr,
    /// Its features, so many bytes, and behind them how its pairs are cut into panels.
    q: DevicePtr,
    q_bytes: usize,
}

impl Resident {
    /// What the kernels read.
    fn entry(&self) -> layout::Frame {
        self.facts.entry(self.blob, self.q, self.q_bytes)
    }
}

/// Frames by slot.
pub struct Store {
    device: Arc<Device>,
    /// What the kernels read: `[capacity]` [`layout::Frame`].
    table: Buffer,
    frames: Vec<Option<Resident>>,
    /// Slots that were filled since the last [`Store::publish`].
    fresh: Vec<usize>,
    /// Memory that was given up since then.
    given_up: Vec<DevicePtr>,
    /// Frames whose page-locked bytes are being copied, and when that is done.
    staged: Vec<HostFrame>,
    under_way: VecDeque<(Event, Vec<HostFrame>)>,
}

const ENTRY: usize = size_of::<layout::Frame>();

impl Store {
    pub fn new(device: &Arc<Device>, capacity: usize) -> Result<Store> {
        let table = Buffer::zeroed(device, capacity * ENTRY, "the table of frames")?;
        Ok(Store {
            device: device.clone(),
            table,
            frames: (0..capacity).map(|_| None).collect(),
            fresh: Vec::new(),
            given_up: Vec::new(),
            staged: Vec::new(),
            under_way: VecDeque::new(),
        })
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

    /// Puts a frame into a slot and computes its features. `constants` has the numbers of model and series. Bytes that are
    /// page-locked must stay as they are until the copy is done: see [`Store::keep`].
    pub fn put(
        &mut self,
        slot: usize,
        frame: &HostFrame,
        series: &SeriesOnDevice,
        constants: &Batch,
    ) -> Result<()> {
        self.remove(slot)?;
        let (stream, bytes) = (self.device.copy_stream(), frame.bytes());
        let entry_at = bytes.len().next_multiple_of(16);
        let blob = self.alloc(stream, entry_at + ENTRY, "a frame")?;
        self.copy(stream, blob, bytes)?;
        let facts = frame.facts.clone();
        let (q, q_bytes) = self.alloc_features(stream, &facts, series)?;
        let entry = blob + entry_at as u64;
        let resident = Resident { facts: facts.clone(), blob, q, q_bytes };
        let numbers = resident.entry();
        // SAFETY: a plain structure of numbers, read as bytes.
        let numbers = unsafe { std::slice::from_raw_parts((&raw const numbers).cast::<u8>(), ENTRY) };
        self.copy(stream, entry, numbers)?;
        self.features(stream, &facts, entry, facts.block_at(blob), constants)?;
        self.frames[slot] = Some(resident);
        self.fresh.push(slot);
        Ok(())
    }

    /// Takes a frame that was [`Store::put`] and keeps its bytes until they are copied.
    pub fn keep(&mut self, frame: HostFrame) {
        if frame.is_staged() {
            self.staged.push(frame);
        }
    }

    /// Lets the main stream see what has come, and frees what was given up.
    pub fn publish(&mut self) -> Result<()> {
        let main = self.device.stream();
        if !self.fresh.is_empty() {
            let mut known = None;
            while let Some((event, _)) = self.under_way.front()
                && event.passed()?
            {
                known = self.under_way.pop_front();
            }
            let event = known.map_or_else(|| Event::new(&self.device), |(event, _)| Ok(event))?;
            event.record(self.device.copy_stream())?;
            event.holds(main)?;
            self.under_way.push_back((event, std::mem::take(&mut self.staged)));
        }
        for slot in std::mem::take(&mut self.fresh) {
            let Some(frame) = &self.frames[slot] else { continue };
            self.enter(slot, frame.entry())?;
        }
        for memory in std::mem::take(&mut self.given_up) {
            self.free(memory)?;
        }
        Ok(())
    }

    /// Writes the entry of a slot, after the steps that use what stands there.
    fn enter(&self, slot: usize, entry: layout::Frame) -> Result<()> {
        self.table.write(slot * ENTRY, &[entry])
    }

    /// Gives up a slot; its memory is freed when all steps so far are done.
    pub fn remove(&mut self, slot: usize) -> Result<()> {
        if self.fresh.contains(&slot) {
            self.publish()?;
        }
        if let Some(old) = self.frames[slot].take() {
            self.given_up.extend([old.blob, old.q]);
        }
        Ok(())
    }

    /// Computes the features of all frames anew, for another series.
    pub fn refill(&mut self, series: &SeriesOnDevice, constants: &Batch) -> Result<()> {
        self.publish()?;
        let main = self.device.stream();
        for slot in 0..self.frames.len() {
            let Some(frame) = &mut self.frames[slot] else { continue };
            let (facts, blob, old) = (frame.facts.clone(), frame.blob, std::mem::take(&mut frame.q));
            self.free(old)?;
            let (q, q_bytes) = self.alloc_features(main, &facts, series)?;
            if let Some(frame) = &mut self.frames[slot] {
                (frame.q, frame.q_bytes) = (q, q_bytes);
            }
            self.enter(slot, facts.entry(blob, q, q_bytes))?;
            let entry = self.table.ptr() + (slot * ENTRY) as u64;
            self.features(main, &facts, entry, facts.block_at(blob), constants)?;
        }
        Ok(())
    }

    /// Memory for the features of a frame, and the bytes of it before how its pairs are cut.
    fn alloc_features(
        &self,
        stream: Stream,
        facts: &Facts,
        series: &SeriesOnDevice,
    ) -> Result<(DevicePtr, usize)> {
        let [features, cuts] = facts.feature_bytes(&series.plan, self.device.numbers);
        Ok((self.alloc(stream, features + cuts, "the features of a frame")?, features))
    }

    fn features(
        &self,
        stream: Stream,
        facts: &Facts,
        entry: DevicePtr,
        block: DevicePtr,
        constants: &Batch,
    ) -> Result<()> {
        if constants.terms == 0 {
            return Ok(()); // the nets themselves are used
        }
        let threads = facts.n_rows() * constants.n_panels as usize;
        let cut = arguments![*constants, entry, block];
        self.device.launch_on(stream, "cut_pairs", threads.div_ceil(256).max(1), 256, 0, cut)?;
        let share = Share::of_features(&self.device, facts.n_rows());
        let arguments = arguments![*constants, entry, block, share.each];
        self.device.launch_on(stream, "features", share.blocks, share::THREADS, share.shared, arguments)
    }

    fn copy(&self, stream: Stream, to: DevicePtr, bytes: &[u8]) -> Result<()> {
        // SAFETY: `to` holds as many bytes. Ordinary memory was read when the call returns; page-locked memory is kept
        // until the stream has passed this point.
        let code = unsafe {
            (self.device.driver().memcpy_htod_async)(to, bytes.as_ptr().cast(), bytes.len(), stream.handle())
        };
        self.device.check(code, "copy a frame to the GPU")
    }

    fn alloc(&self, stream: Stream, bytes: usize, what: &str) -> Result<DevicePtr> {
        let mut ptr = 0;
        // SAFETY: `ptr` is valid for writing.
        let code = unsafe { (self.device.driver().mem_alloc_async)(&mut ptr, bytes, stream.handle()) };
        self.device.check_memory(code, bytes, what)?;
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
        let _ = self.publish();
        for (event, _) in &self.under_way {
            let _ = event.wait();
        }
    }
}
