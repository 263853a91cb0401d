//! The validation set on a GPU: its frames stay there as far as they fit.

use super::super::setup::Setup;
use super::super::team::Team;
use super::super::validate::{self, FrameErrors};
use super::{DeepPotentialOnGpu, Steps};
use crate::Result;
use crate::engine::Prediction;
use crate::engine::cuda::frame::HostFrame;
use crate::sample::{FrameId, Pool, Purpose, Sampler};
use std::collections::HashMap;
use std::sync::Arc;

/// Frames of the validation set that stay on the device.
const VALIDATION_SLOTS: usize = 4096;

/// The validation set, as far as it is on the device.
pub(super) struct ValidationFrames {
    pool: Arc<Pool>,
    first_slot: usize,
    slots: HashMap<FrameId, u32>,
    most: usize,
}

impl ValidationFrames {
    /// No frame is on the device yet; they go to the slots from `first_slot` on.
    pub(super) fn new(setup: &Setup, first_slot: usize) -> Option<Self> {
        let data = setup.data.validation.as_ref()?;
        Some(ValidationFrames {
            pool: Arc::new(Pool::from_dataset(data)),
            first_slot,
            slots: HashMap::new(),
            most: validation_slots(setup),
        })
    }
}

/// Slots for frames of the validation set.
pub(super) fn validation_slots(setup: &Setup) -> usize {
    let Some(data) = &setup.data.validation else { return 0 };
    let largest = data.batch_sizes.iter().copied().max().unwrap_or(1);
    data.systems.iter().map(|s| s.n_frames).sum::<usize>().min(VALIDATION_SLOTS.max(largest))
}

impl DeepPotentialOnGpu {
    /// Errors of the validation batches of this rank: number, atoms, values.
    pub(super) fn own_batches(
        &mut self,
        steps: &mut Steps,
        team: &mut Team,
        display: u64,
        rate: f64,
    ) -> Result<Vec<(u64, f64, Vec<f64>)>> {
        let Some(validation) = &self.validation else { return Ok(Vec::new()) };
        let batches = self.setup.input.training.numb_btch as u64;
        let (pool, seed) = (validation.pool.clone(), self.setup.input.training.seed);
        let mut sampler = Sampler::at(pool, seed, Purpose::Validation, display * batches);
        let mut out = Vec::new();
        for batch in 0..batches {
            let draw = sampler.draw();
            if batch as usize % team.n_groups() != team.group() {
                continue;
            }
            let slots = self.validation_slots(&draw.frames, team)?;
            let value = steps.errors(self, &slots, rate, team)?;
            let atoms = slots.iter().map(|&s| self.core.store.facts(s as usize).shape.n_atoms).sum::<usize>();
            if team.speaks_for_group() {
                out.push((batch, atoms as f64, validate::shown(&value)));
            }
        }
        Ok(out)
    }

    /// Errors of this rank's frames of the whole validation set.
    pub(super) fn own_frames(&mut self, steps: &mut Steps, team: &mut Team) -> Result<Vec<FrameErrors>> {
        let Some(data) = self.setup.data.validation.clone() else { return Ok(Vec::new()) };
        let (frames, own) = validate::shared_frames(&data, team);
        let (mut found, mut out) = (Vec::new(), Prediction::default());
        for k in own {
            let id = frames[k % frames.len()];
            let slots = self.validation_slots(&[id], team)?;
            steps.errors(self, &slots, self.start_lr, team)?;
            let shape = self.core.shape(&slots)?;
            self.core.prediction(&mut out, &shape, &slots)?;
            if k < frames.len() && team.speaks_for_group() {
                let frame = data.systems[id.system].read_frame(id.frame)?;
                found.push((k, validate::errors_of(&frame, &out)));
            }
        }
        Ok(found)
    }

    /// Where frames of the validation set are, after those that are absent were brought.
    fn validation_slots(&mut self, ids: &[FrameId], team: &mut Team) -> Result<Vec<u32>> {
        let Some(data) = self.setup.data.validation.clone() else { return Ok(Vec::new()) };
        let mut slots = Vec::with_capacity(ids.len());
        for id in ids {
            let Some(frames) = &mut self.validation else { break };
            if !frames.slots.contains_key(id) && frames.slots.len() == frames.most {
                // Others of this batch are brought again; this happens once in thousands of frames.
                let all: Vec<u32> = frames.slots.drain().map(|(_, slot)| slot).collect();
                for slot in all {
                    self.core.store.remove(slot as usize)?;
                }
                return self.validation_slots(ids, team);
            }
            let slot = match frames.slots.get(id) {
                Some(&slot) => slot,
                None => {
                    let slot = (frames.first_slot + frames.slots.len()) as u32;
                    frames.slots.insert(*id, slot);
                    let frame = data.systems[id.system].read_frame(id.frame)?;
                    let (cut, numbers) = (self.blocks.cut(), self.core.device.numbers);
                    let mut frame = HostFrame::of_part(&self.setup.model, &frame, numbers, cut)?;
                    self.blocks.meet(vec![&mut frame], team)?;
                    self.core.cover(&frame.facts, |core| core.params())?;
                    self.core.put(slot as usize, &frame)?;
                    slot
                }
            };
            slots.push(slot);
        }
        Ok(slots)
    }
}
