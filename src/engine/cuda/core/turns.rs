//! The numbers of a step on their way to the device.

use super::super::layout::{TURN_HEADER, Turn};
use super::super::rows::Arrangement;
use super::super::shape::Shape;
use super::{Core, MAX_FRAMES};
use crate::Result;
use crate::gpu::{Buffer, Event, Pinned, Ptr};
use zerocopy::IntoBytes;

impl Core {
    /// Bytes of a step's numbers, of `n_frames` at most.
    pub fn turn_bytes(&self, n_frames: usize) -> usize {
        let arranged = Arrangement::words_of(self.model.n_types(), n_frames);
        let tables = self.largest.map_or(0, |room| self.tables_at(room) + 4 * arranged);
        tables.max(TURN_HEADER + 4 * n_frames).next_multiple_of(64)
    }

    pub(super) fn turn_ptr(&self) -> Ptr<Turn> {
        Ptr::at(self.turn.address())
    }

    /// From now on a first pass takes the numbers of its step, and its slots, from the next of `places` pieces that
    /// [`Core::send_turn`] fills, `bytes` each.
    pub fn make_ring(&mut self, bytes: usize, places: usize) -> Result<()> {
        let ring = Buffer::zeroed(&self.device, bytes * places, "the numbers of steps")?;
        self.device.synchronize()?;
        self.ring = Some((ring, bytes as u32, places as u32));
        Ok(())
    }

    /// Copies what the step after the next ones needs, beside the steps that run; `done` is when it is there.
    ///
    /// # Safety
    ///
    /// What stood at the same place of the ring was taken, and `from` stays as it is until `done`.
    pub unsafe fn send_turn(&self, from: &Pinned, place: usize, bytes: usize, done: &Event) -> Result<()> {
        let (ring, each, _) = self.ring.as_ref().expect("a ring is made before turns are sent");
        let (at, stream) = (place * *each as usize, self.device.copy_stream());
        assert!(bytes <= *each as usize, "a turn must stay inside its place");
        // SAFETY: inside the ring; the rest is the caller's word.
        unsafe { from.copy_to(stream, ring.address() + at as u64, 0, bytes)? };
        done.record(stream)?;
        done.holds(self.device.stream())
    }

    /// Copies the numbers of a step of this shape and its slots, from ordinary memory.
    pub fn set_turn(&self, shape: &Shape, turn: &Turn, slots: &[u32]) -> Result<()> {
        assert!(slots.len() <= MAX_FRAMES, "{} frames in a batch, {MAX_FRAMES} are possible", slots.len());
        self.check(shape);
        self.turn.write(0, turn.as_bytes())?;
        self.turn.write(TURN_HEADER, slots.as_bytes())?;
        let Some((_, arranged)) = self.arrangement(slots) else { return Ok(()) };
        let Some(work) = &self.work else { return Ok(()) };
        work.write((shape.batch.now - work.address()) as usize, arranged.words.as_bytes())
    }
}
