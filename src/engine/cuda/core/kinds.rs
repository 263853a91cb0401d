//! Kinds of batches: which memory and launches serve a batch, and how many of them are kept.

use super::super::direct::Direct;
use super::super::layout::TURN_HEADER;
use super::super::network::SeriesOnDevice;
use super::super::rows::{Arrangement, Room};
use super::super::shape::{Content, FrameShape, Shape, work_bytes};
use super::Batch;
use super::Core;
use crate::Result;
use crate::engine::cpu::chebyshev::Plan;
use crate::gpu::Buffer;
use std::sync::Arc;

/// Kinds of batches that are kept at a time.
const MOST_SHAPES: usize = 32;

impl Core {
    /// From now on batches share what is recorded: a batch may hold any frames, at most as many as `largest`. Which shape
    /// serves a batch, and so every rounding, follows from the batch alone.
    pub fn share_shapes(&mut self, largest: Room) {
        self.forget_shapes();
        self.largest = Some(largest);
    }

    /// Whether batches of so many frames share what is recorded.
    pub fn shares_shapes(&self, n_frames: usize) -> bool {
        self.largest.is_some_and(|largest| largest.frames >= n_frames)
    }

    /// Where the arrangement of a batch stands behind its slots.
    pub(super) fn tables_at(&self, largest: Room) -> usize {
        (TURN_HEADER + 4 * largest.frames).next_multiple_of(8)
    }

    /// The arrangement of a batch and where it goes among the numbers of its step; nothing where its kind has it already.
    pub fn arrangement(&self, slots: &[u32]) -> Option<(usize, Arrangement)> {
        let frames: Vec<&FrameShape> =
            slots.iter().map(|&slot| &self.store.facts(slot as usize).shape).collect();
        self.largest.map(|room| (self.tables_at(room), Arrangement::of(&self.model, &frames)))
    }

    /// The room that a batch takes where it shares it with others.
    fn room_of(&self, slots: &[u32]) -> Option<Room> {
        let frames = slots.iter().map(|&slot| &self.store.facts(slot as usize).shape);
        self.largest.map(|largest| Room::of(&self.model, frames).on_ladder(largest.frames))
    }

    /// Tells kinds of batches apart; and whether the series describes all frames of this one.
    fn kind_of(&self, slots: &[u32]) -> (u128, bool) {
        let mut hasher = xxhash_rust::xxh3::Xxh3::new();
        let room = self.room_of(slots);
        if let Some(room) = room {
            [room.rows, room.inputs, room.places, room.listed]
                .iter()
                .for_each(|n| hasher.update(&n.to_le_bytes()));
        }
        let mut by_series = self.series.is_some();
        for &slot in slots {
            let facts = self.store.facts(slot as usize);
            if room.is_none() {
                hasher.update(&facts.shape_hash.to_le_bytes());
            }
            by_series = by_series && self.series.as_ref().is_some_and(|s| facts.covered_by(&s.plan));
        }
        hasher.update(&[u8::from(by_series)]);
        (hasher.digest128(), by_series)
    }

    /// Whether a batch of this kind has come before, so that [`Core::shape`] waits for nothing.
    pub fn knows(&self, slots: &[u32]) -> bool {
        self.shapes.contains_key(&self.kind_of(slots).0)
    }

    /// Whether a shape is still kept.
    pub fn keeps(&self, id: u64) -> bool {
        self.shapes.values().any(|(shape, _)| shape.id == id)
    }

    /// The kind of batch that these slots make, after the frames that were put into them are there.
    pub fn shape(&mut self, slots: &[u32]) -> Result<Arc<Shape>> {
        self.store.publish()?;
        let (key, by_series) = self.kind_of(slots);
        self.uses += 1;
        if let Some((known, used)) = self.shapes.get_mut(&key) {
            *used = self.uses;
            return Ok(known.clone());
        }
        if !by_series {
            self.make_direct()?;
        }
        let frames: Vec<FrameShape>;
        let content = match self.room_of(slots) {
            Some(room) => Content::UpTo(room),
            None => {
                frames = slots.iter().map(|&slot| self.store.facts(slot as usize).shape.clone()).collect();
                Content::Exactly(&frames)
            }
        };
        self.make_room(by_series, content)?;
        let Some(work) = &self.work else { unreachable!("it was made above") };
        let nets = self.nets(by_series);
        // A batch without a series is one of no terms.
        let (terms, columns) = (nets.embedding.terms, nets.embedding.columns);
        let constants = Batch { terms, columns, ..self.constants };
        // Uses are counted on, so no two shapes have the same number.
        let shape = Arc::new(Shape::new(&self.network, nets, content, work, constants, self.uses)?);
        if let Some(direct) = self.direct.as_mut().filter(|_| !by_series)
            && direct.make_room(&shape.batch)?
        {
            self.forget_shapes();
        }
        self.shapes.insert(key, (shape.clone(), self.uses));
        Ok(shape)
    }

    /// Bytes that a batch takes beside its frames.
    pub fn batch_bytes(&self, room: Room) -> Result<usize> {
        let by_series = self.series.is_some();
        let work = work_bytes(&self.network, self.nets(by_series), Content::UpTo(room))?;
        let kept = self.direct.as_ref().filter(|_| !by_series).map_or(0, |direct| direct.bytes(room.rows));
        Ok(work + kept)
    }

    /// Bytes that frames of so many rows take, each with so many neighbours.
    pub fn frame_bytes(&self, rows: usize, neighbors: usize) -> usize {
        let (size, components) = (self.device.numbers.size(), self.model.descriptor().form().components());
        let columns = self.plan().map_or(0, Plan::columns);
        rows * (components * columns * size + neighbors * (3 * size + 8) + self.model.n_extra() * size)
    }

    /// Working memory for one more kind of batch, and a place for its shape: the one that was used longest ago leaves.
    fn make_room(&mut self, by_series: bool, content: Content) -> Result<()> {
        let nets = self.nets(by_series);
        let mut bytes = work_bytes(&self.network, nets, content)?;
        // Memory for the largest batch at once: every change of it makes all shapes anew.
        if let Some(largest) = self.largest.filter(|_| self.work.is_none()) {
            let whole = Content::UpTo(largest.on_ladder(largest.frames));
            bytes = bytes.max(work_bytes(&self.network, nets, whole)?);
        }
        if self.work.as_ref().is_none_or(|work| work.bytes() < bytes) {
            self.device.synchronize()?;
            self.forget_shapes();
            self.work = None;
            self.work = Some(Buffer::zeroed(&self.device, bytes, "a batch")?);
        }
        if self.shapes.len() >= MOST_SHAPES {
            // Steps under way may still read its tables.
            self.device.synchronize()?;
            let oldest = self.shapes.iter().min_by_key(|(_, (_, used))| *used).map(|(&key, _)| key);
            oldest.map(|key| self.shapes.remove(&key));
        }
        Ok(())
    }

    /// The series, or the nets as one of no terms.
    pub(super) fn nets(&self, by_series: bool) -> &SeriesOnDevice {
        let direct = self.direct.as_ref().map(|direct| &direct.nets);
        let nets = if by_series { self.series.as_ref() } else { direct };
        nets.expect("a series is chosen, or the nets are made ready, before batches come")
    }

    /// The nets themselves, where a batch is evaluated by them.
    pub(super) fn direct_of(&self, shape: &Shape) -> Option<&Direct> {
        self.direct.as_ref().filter(|_| shape.batch.terms == 0)
    }

    /// Refuses shapes whose memory may be gone, and those of others.
    pub(super) fn check(&self, shape: &Shape) {
        let is_kept = self.shapes.values().any(|(kept, _)| std::ptr::eq(&**kept, shape));
        assert!(is_kept, "a shape is used while its core keeps it");
    }
}
