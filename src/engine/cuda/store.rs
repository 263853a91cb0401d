//! Frames that live on the device.
//!
//! They come on a stream of their own, ahead of the steps that use them: their bytes are copied and their features computed
//! while earlier steps run. [`Store::publish`] makes the main stream wait for what has come, enters it into the table that
//! the kernels read, and frees what was given up; in the order of the main stream, so that steps under way keep what they
//! use.

use super::frame::{Facts, HostFrame};
use super::layout::{self, Batch};
use super::network::SeriesOnDevice;
use super::program::{CUT_PAIRS, FEATURES};
use super::share::Share;
use crate::Result;
use crate::gpu::{Buffer, Device, DevicePtr, Event, Launch, Ptr, Stream};
use std::collections::VecDeque;
use std::sync::Arc;
use zerocopy::IntoBytes;

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
    /// What the kernels read, `[capacity]`.
    table: Buffer<layout::Frame>,
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
        let table = Buffer::zeroed(device, capacity, "the table of frames")?;
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
        self.table.address()
    }

    pub fn capacity(&self) -> usize {
        self.frames.len()
    }

    /// What is known of the frame in a slot.
    pub fn facts(&self, slot: usize) -> &Arc<Facts> {
        &self.frames[slot].as_ref().expect("a slot is filled before it is used").facts
    }

    /// Puts a frame into a slot and computes its features. `constants` has the numbers of model and series.
    ///
    /// # Safety
    ///
    /// A frame in page-locked memory must be kept until the copy is done, by [`Store::keep`]. The addresses of `constants` and
    /// the series are those of the core that this store belongs to.
    pub unsafe fn put(
        &mut self,
        slot: usize,
        frame: &HostFrame,
        series: &SeriesOnDevice,
        constants: &Batch,
    ) -> Result<()> {
        self.remove(slot)?;
        let stream = self.device.copy_stream();
        let entry_at = frame.size().next_multiple_of(16);
        let blob = self.device.alloc_on(stream, entry_at + ENTRY, "a frame")?;
        // SAFETY: it was made for these bytes; the rest is the caller's word.
        unsafe { frame.copy_to(&self.device, stream, blob)? };
        let facts = frame.facts.clone();
        let (q, q_bytes) = self.alloc_features(stream, &facts, series)?;
        let entry = blob + entry_at as u64;
        let resident = Resident { facts: facts.clone(), blob, q, q_bytes };
        // SAFETY: the entry has its place behind the arrays, and is of ordinary memory; the features have theirs.
        unsafe {
            self.device.copy_to(stream, entry, resident.entry().as_bytes(), "copy a frame to the GPU")?;
            self.features(stream, &facts, Ptr::at(entry), facts.block_at(blob), constants)?;
        }
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
        self.table.write(slot, &[entry])
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
    ///
    /// # Safety
    ///
    /// As for [`Store::put`].
    pub unsafe fn refill(&mut self, series: &SeriesOnDevice, constants: &Batch) -> Result<()> {
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
            let entry = Ptr::at(self.table.address() + (slot * ENTRY) as u64);
            // SAFETY: the entry was written, and the features have their place.
            unsafe { self.features(main, &facts, entry, facts.block_at(blob), constants)? };
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
        Ok((self.device.alloc_on(stream, features + cuts, "the features of a frame")?, features))
    }

    /// Computes the features of a frame.
    ///
    /// # Safety
    ///
    /// The entry tells where its arrays are, and the block of `block` stands there.
    unsafe fn features(
        &self,
        stream: Stream,
        facts: &Facts,
        entry: Ptr<layout::Frame>,
        block: DevicePtr,
        constants: &Batch,
    ) -> Result<()> {
        if constants.terms == 0 {
            return Ok(()); // the nets themselves are used
        }
        let threads = facts.n_rows() * constants.n_panels as usize;
        let (device, b, block) = (&self.device, *constants, Ptr::at(block));
        let cut = Launch::new(threads.div_ceil(256).max(1), 256);
        let share = Share::of_features(device, facts.n_rows());
        // SAFETY: see the module of this engine, and the caller's word.
        unsafe {
            CUT_PAIRS.launch(device, stream, cut, (b, entry, block))?;
            if facts.n_rows() == 0 {
                return Ok(()); // a block without atoms
            }
            FEATURES.launch(device, stream, share.launch(), (b, entry, block, share.each))
        }
    }

    fn free(&self, address: DevicePtr) -> Result<()> {
        if address == 0 {
            return Ok(());
        }
        // SAFETY: freed once, after all work of the stream that uses it.
        unsafe { self.device.free_on(self.device.stream(), address, "free the memory of a frame") }
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
