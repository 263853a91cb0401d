//! The validation set on a GPU: its frames stay there as far as they fit.

use super::super::gpu_learner::{GpuFamily, Steps};
use super::super::setup::Setup;
use super::super::team::Team;
use super::super::validate::{self, FrameErrors};
use super::DeepPotentialOnGpu;
use crate::Result;
use crate::engine::Prediction;
use crate::engine::cuda::frame::HostFrame;
use crate::loss::LossValue;
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

/// How an engine takes frames of the validation set; the rest is the same for all of them.
pub(super) trait OnValidation: GpuFamily<Value = LossValue> {
    fn setup(&self) -> &Arc<Setup>;

    /// What batches are drawn from, where there is a validation set.
    fn pool(&self) -> Option<Arc<Pool>>;

    /// A batch of these frames, brought to the device where they are not there.
    fn bring(&mut self, ids: &[FrameId], team: &mut Team) -> Result<Self::Batch>;

    /// Atoms of a batch.
    fn n_atoms(&self, batch: &Self::Batch) -> usize;

    /// What was predicted of the batch that was evaluated last.
    fn predicted(&mut self, out: &mut Prediction, batch: &Self::Batch) -> Result<()>;
}

/// Mean errors of the validation batches of a display.
pub(super) fn errors<F: OnValidation>(
    family: &mut F,
    steps: &mut Steps,
    team: &mut Team,
    display: u64,
    rate: f64,
) -> Result<Vec<f64>> {
    let Some(pool) = family.pool() else { return Ok(Vec::new()) };
    let local = own_batches(family, pool, steps, team, display, rate);
    let local = Ok(team.agree_on_work(local)?);
    validate::mean_over_ranks(team, local)
}

/// Errors of the validation batches of this rank: number, atoms, values.
fn own_batches<F: OnValidation>(
    family: &mut F,
    pool: Arc<Pool>,
    steps: &mut Steps,
    team: &mut Team,
    display: u64,
    rate: f64,
) -> Result<Vec<(u64, f64, Vec<f64>)>> {
    let training = &family.setup().input.training;
    let (batches, seed) = (training.numb_btch as u64, training.seed);
    let mut sampler = Sampler::at(pool, seed, Purpose::Validation, display * batches);
    let mut out = Vec::new();
    for batch in 0..batches {
        let draw = sampler.draw();
        if batch as usize % team.n_groups() != team.group() {
            continue;
        }
        let frames = family.bring(&draw.frames, team)?;
        let value = steps.errors(family, &frames, rate, team)?;
        if team.speaks_for_group() {
            out.push((batch, family.n_atoms(&frames) as f64, validate::shown(&value)));
        }
    }
    Ok(out)
}

/// Errors of this rank's frames of the whole validation set, with the loss at this learning rate.
pub(super) fn own_frames<F: OnValidation>(
    family: &mut F,
    steps: &mut Steps,
    team: &mut Team,
    rate: f64,
) -> Result<Vec<FrameErrors>> {
    let Some(data) = family.setup().data.validation.clone() else { return Ok(Vec::new()) };
    let (frames, own) = validate::shared_frames(&data, team);
    let (mut found, mut out) = (Vec::new(), Prediction::default());
    for k in own {
        let id = frames[k % frames.len()];
        let batch = family.bring(&[id], team)?;
        steps.errors(family, &batch, rate, team)?;
        family.predicted(&mut out, &batch)?;
        if k < frames.len() && team.speaks_for_group() {
            let frame = data.systems[id.system].read_frame(id.frame)?;
            found.push((k, validate::errors_of(&frame, &out)));
        }
    }
    Ok(found)
}

impl OnValidation for DeepPotentialOnGpu {
    fn setup(&self) -> &Arc<Setup> {
        &self.setup
    }

    fn pool(&self) -> Option<Arc<Pool>> {
        self.validation.as_ref().map(|validation| validation.pool.clone())
    }

    fn bring(&mut self, ids: &[FrameId], team: &mut Team) -> Result<Vec<u32>> {
        self.validation_slots(ids, team)
    }

    fn n_atoms(&self, slots: &Vec<u32>) -> usize {
        slots.iter().map(|&s| self.core.store.facts(s as usize).shape.n_atoms).sum()
    }

    fn predicted(&mut self, out: &mut Prediction, slots: &Vec<u32>) -> Result<()> {
        let shape = self.core.shape(slots)?;
        self.core.prediction(out, &shape, slots)
    }
}

impl DeepPotentialOnGpu {
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
                    self.core.cover(&frame.facts, |core| core.network.learned.read())?;
                    self.core.put(slot as usize, &frame)?;
                    slot
                }
            };
            slots.push(slot);
        }
        Ok(slots)
    }
}
