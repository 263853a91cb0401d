//! Errors on the validation set.

use super::blocks::OwnBlocks;
use super::deep_potential::DeepPotential;
use super::family::{Family, Now, Validation};
use super::full_validation::{ErrorTable, Quantity};
use super::team::Team;
use crate::Result;
use crate::data::{Dataset, Frame};
use crate::engine::{BlockPreparer, Engine, Prediction};
use crate::loss::LossValue;
use crate::sample::cache::Lru;
use crate::sample::{FrameId, Loaded, Pool, Purpose, Sampler};
use std::sync::Arc;

/// The validation set of a Deep Potential; its batches are a function of the seed and the display step alone.
pub struct DrawnBatches<E: Engine> {
    data: Arc<Dataset>,
    pool: Arc<Pool>,
    seed: u64,
    purpose: Purpose,
    /// Batches at each display step.
    batches: u64,
    cache: Lru<FrameId, Arc<Loaded<OwnBlocks<E::Prepared>>>>,
}

impl<E: Engine> Validation<DeepPotential<E>> for DrawnBatches<E> {
    /// `[rmse, terms...]`
    fn errors(
        &mut self,
        family: &mut DeepPotential<E>,
        params: &[f64],
        team: &mut Team,
        display: u64,
        rate: f64,
    ) -> Result<Vec<f64>> {
        let local = self.own_batches(family, params, team, display, rate);
        let local = Ok(team.agree_on_work(local)?);
        mean_over_ranks(team, local)
    }

    /// Added up in the order of the frames, whatever the number of ranks is.
    fn all_errors(
        &mut self,
        family: &mut DeepPotential<E>,
        params: &[f64],
        team: &mut Team,
    ) -> Result<ErrorTable> {
        let local = self.own_frames(family, params, team);
        table_of_ranks(team, local)
    }
}

/// The number of a frame, and the bits of its errors' sums.
pub type FrameErrors = (usize, Vec<u64>);

/// Errors over the frames of all ranks, always added up in the order of the frames.
pub fn table_of_ranks(team: &mut Team, local: Result<Vec<FrameErrors>>) -> Result<ErrorTable> {
    let mine = team.agree_on_work(local)?;
    let mut all: Vec<FrameErrors> = team.gather(&mine)?.into_iter().flatten().collect();
    all.sort_by_key(|(frame, _)| *frame);
    let mut table = ErrorTable::default();
    for (_, bits) in all {
        for (sums, bits) in table.iter_mut().zip(bits.chunks(3)) {
            sums.absolute += f64::from_bits(bits[0]);
            sums.square += f64::from_bits(bits[1]);
            sums.count += f64::from_bits(bits[2]);
        }
    }
    Ok(table)
}

/// What each group of ranks looks at of a data set: all frames, and the numbers of its own. Every rank has one at least: engines that adapt to the
/// parameters must do so on all of them.
pub fn shared_frames(data: &Dataset, team: &Team) -> (Vec<FrameId>, impl Iterator<Item = usize> + use<>) {
    let systems = data.systems.iter().enumerate();
    let frames: Vec<FrameId> =
        systems.flat_map(|(system, s)| (0..s.n_frames).map(move |frame| FrameId { system, frame })).collect();
    let own = (team.group()..frames.len().max(team.group() + 1)).step_by(team.n_groups());
    (frames, own)
}

impl<E: Engine> DrawnBatches<E> {
    pub fn new(data: Arc<Dataset>, seed: u64, batches: usize, cache_bytes: usize) -> Self {
        let pool = Arc::new(Pool::from_dataset(&data));
        let (purpose, batches) = (Purpose::Validation, batches as u64);
        DrawnBatches { data, pool, seed, purpose, batches, cache: Lru::new(cache_bytes) }
    }

    /// The same with other batches.
    pub fn for_purpose(self, purpose: Purpose) -> Self {
        DrawnBatches { purpose, ..self }
    }

    /// The batches that this rank tells of: number, atoms, errors.
    fn own_batches(
        &mut self,
        family: &mut DeepPotential<E>,
        params: &[f64],
        team: &mut Team,
        display: u64,
        rate: f64,
    ) -> Result<Vec<(u64, f64, Vec<f64>)>> {
        let mut sampler = Sampler::at(self.pool.clone(), self.seed, self.purpose, display * self.batches);
        let prepare = family.engine.block_preparer(family.shared.cut());
        let now = Now { step: 0, rank: team.rank(), rate };
        let mut out = Vec::new();
        for batch in 0..self.batches {
            let draw = sampler.draw();
            if batch as usize % team.n_groups() != team.group() {
                continue;
            }
            let mut loaded = Vec::with_capacity(draw.frames.len());
            for id in draw.frames {
                loaded.push(self.load(id, &prepare)?);
            }
            let value = family.evaluate(params, &loaded, &now, team)?;
            let atoms = loaded.iter().map(|f| f.frame.n_atoms()).sum::<usize>() as f64;
            if team.speaks_for_group() {
                out.push((batch, atoms, shown(&value)));
            }
        }
        Ok(out)
    }

    /// The frames that this rank tells of: number, and the bits of the errors' sums.
    fn own_frames(
        &mut self,
        family: &mut DeepPotential<E>,
        params: &[f64],
        team: &mut Team,
    ) -> Result<Vec<FrameErrors>> {
        let (frames, own) = shared_frames(&self.data, team);
        let prepare = family.engine.block_preparer(family.shared.cut());
        let mut found = Vec::new();
        for k in own {
            let loaded = self.load(frames[k % frames.len()], &prepare)?;
            let out = family.predict(params, std::slice::from_ref(&loaded), team)?;
            if k < frames.len() && team.speaks_for_group() {
                found.push((k, errors_of(&loaded.frame, out)));
            }
        }
        Ok(found)
    }

    fn load(
        &mut self,
        id: FrameId,
        prepare: &BlockPreparer<E::Prepared>,
    ) -> Result<Arc<Loaded<OwnBlocks<E::Prepared>>>> {
        if let Some(known) = self.cache.get(&id) {
            return Ok(known);
        }
        let frame = self.data.systems[id.system].read_frame(id.frame)?;
        let prepared = OwnBlocks(prepare(&frame)?);
        let bytes = frame.bytes() + crate::sample::Prepared::bytes(&prepared);
        let loaded = Arc::new(Loaded { id, frame, prepared });
        self.cache.insert(id, loaded.clone(), bytes);
        Ok(loaded)
    }
}

/// Bits of the sums of errors of one frame; nothing where it has no label. Stress and virial are those of periodic frames.
pub fn errors_of(frame: &Frame, out: &Prediction) -> Vec<u64> {
    let n = frame.types.iter().filter(|&&t| t >= 0).count() as f64;
    let mut table = ErrorTable::default();
    let mut add = |quantity: Quantity, error: f64| {
        let sums = &mut table[quantity as usize];
        sums.absolute += error.abs();
        sums.square += error * error;
        sums.count += 1.0;
    };
    if let Some(label) = frame.labels.energy {
        add(Quantity::Energy, (out.energy[0] - label) / n);
    }
    if let Some(label) = &frame.labels.force {
        for (k, label) in label.iter().enumerate().filter(|(k, _)| frame.types[k / 3] >= 0) {
            add(Quantity::Force, out.force[k] - label);
        }
    }
    if let (Some(label), Some(cell)) = (&frame.labels.virial, &frame.cell) {
        let cross = |a: &[f64], b: &[f64], k: usize| {
            a[(k + 1) % 3] * b[(k + 2) % 3] - a[(k + 2) % 3] * b[(k + 1) % 3]
        };
        let volume = (0..3).map(|k| cell[k] * cross(&cell[3..6], &cell[6..], k)).sum::<f64>().abs();
        for (virial, label) in out.virial[0].iter().zip(label) {
            add(Quantity::Stress, (virial - label) / volume);
            add(Quantity::Virial, (virial - label) / n);
        }
    }
    table.iter().flat_map(|s| [s.absolute, s.square, s.count]).map(f64::to_bits).collect()
}

/// Means over the batches of all ranks, weighted by atoms, always in the order of the batches.
///
/// `local` has number, atoms and errors of this rank's batches.
pub fn mean_over_ranks(team: &mut Team, local: Result<Vec<(u64, f64, Vec<f64>)>>) -> Result<Vec<f64>> {
    // As bits: NaN, for a label that is missing, has no place in JSON.
    let bits =
        |(batch, n, values): (u64, f64, Vec<f64>)| (batch, n, values.into_iter().map(f64::to_bits).collect());
    let mine: Vec<(u64, f64, Vec<u64>)> = team.agree(local)?.into_iter().map(bits).collect();
    let mut all: Vec<(u64, f64, Vec<u64>)> = team.gather(&mine)?.into_iter().flatten().collect();
    all.sort_by_key(|(batch, ..)| *batch);
    let atoms: f64 = all.iter().map(|(_, n, _)| n).sum();
    let mut mean = vec![0.0; all.first().map_or(0, |(_, _, v)| v.len())];
    for (_, n, values) in &all {
        for (mean, x) in mean.iter_mut().zip(values) {
            *mean += n * f64::from_bits(*x) / atoms;
        }
    }
    Ok(mean)
}

/// What is displayed of a loss: its root, then its terms.
pub fn shown(value: &LossValue) -> Vec<f64> {
    std::iter::once(value.loss.sqrt()).chain(value.terms.iter().map(|t| t.value)).collect()
}
