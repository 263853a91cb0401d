//! Errors on the validation set.

use super::step::Stepper;
use super::team::Team;
use crate::Result;
use crate::data::Dataset;
use crate::engine::Engine;
use crate::loss::LossValue;
use crate::sample::cache::Lru;
use crate::sample::{FrameId, Loaded, Pool, Purpose, Sampler};
use std::sync::Arc;

/// The validation set; its batches are a function of the seed and the display step alone.
pub struct Validation<E: Engine> {
    data: Arc<Dataset>,
    pool: Arc<Pool>,
    seed: u64,
    /// Batches at each display step.
    batches: u64,
    cache: Lru<FrameId, Arc<Loaded<E::Prepared>>>,
}

impl<E: Engine> Validation<E> {
    pub fn new(data: Arc<Dataset>, seed: u64, batches: usize, cache_bytes: usize) -> Self {
        let pool = Arc::new(Pool::from_dataset(&data));
        Validation { data, pool, seed, batches: batches as u64, cache: Lru::new(cache_bytes) }
    }

    /// Mean errors over the batches of the `display`-th display step, shared over ranks: `[rmse, terms...]`.
    pub fn errors(
        &mut self,
        stepper: &mut Stepper<E>,
        team: &mut Team,
        display: u64,
        lr: f64,
    ) -> Result<Vec<f64>> {
        let local = self.own_batches(stepper, team, display, lr);
        mean_over_ranks(team, local)
    }

    /// The batches of this rank: number, atoms, errors.
    fn own_batches(
        &mut self,
        stepper: &mut Stepper<E>,
        team: &Team,
        display: u64,
        lr: f64,
    ) -> Result<Vec<(u64, f64, Vec<f64>)>> {
        let mut sampler =
            Sampler::at(self.pool.clone(), self.seed, Purpose::Validation, display * self.batches);
        let prepare = stepper.engine.preparer();
        let mut out = Vec::new();
        for batch in 0..self.batches {
            let draw = sampler.draw();
            if batch as usize % team.size() != team.rank() {
                continue;
            }
            let mut loaded = Vec::with_capacity(draw.frames.len());
            for frame in draw.frames {
                loaded.push(self.load(FrameId { system: draw.system, frame }, &*prepare)?);
            }
            let prepared: Vec<_> = loaded.iter().map(|f| &f.prepared).collect();
            let frames: Vec<_> = loaded.iter().map(|f| &f.frame).collect();
            let value = stepper.evaluate(&prepared, &frames, lr);
            let atoms = frames.iter().map(|f| f.n_atoms()).sum::<usize>() as f64;
            out.push((batch, atoms, shown(&value)));
        }
        Ok(out)
    }

    fn load(
        &mut self,
        id: FrameId,
        prepare: &dyn Fn(&crate::data::Frame) -> Result<E::Prepared>,
    ) -> Result<Arc<Loaded<E::Prepared>>> {
        if let Some(known) = self.cache.get(&id) {
            return Ok(known);
        }
        let frame = self.data.systems[id.system].read_frame(id.frame)?;
        let prepared = prepare(&frame)?;
        let bytes = frame.bytes() + crate::sample::Prepared::bytes(&prepared);
        let loaded = Arc::new(Loaded { id, frame, prepared });
        self.cache.insert(id, loaded.clone(), bytes);
        Ok(loaded)
    }
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
