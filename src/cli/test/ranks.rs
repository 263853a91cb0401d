//! The frames of a system over ranks. Each evaluates a share of them, and of frames with very many atoms some blocks; rank 0 gets what
//! one rank alone would compute, in the same order and with the same bits.

use crate::comm::element::share;
use crate::data::{Frame, System};
use crate::engine::Prediction;
use crate::error::Result;
use crate::infer::Predictor;
use crate::train::same::check_facts;
use crate::train::team::Team;
use crate::{bail, err};
use std::ops::Range;

/// Blocks for each rank at least, where there are so many frames: ranks have a block more or less than others.
const BLOCKS_EACH: usize = 4;

/// Frames that are looked at before the first is evaluated: see [`Predictor::settle`].
const FIRST_FRAMES: usize = 4;

/// Refuses ranks that see another system than rank 0. Every rank must call it.
pub(super) fn check_same(team: &mut Team, path: &str, system: &System) -> Result<()> {
    let types = system.types.iter().flat_map(|t| t.to_le_bytes()).collect::<Vec<_>>();
    let hash = xxhash_rust::xxh3::xxh3_64(&types);
    let (frames, atoms) = (system.n_frames, system.n_atoms);
    check_facts(team, path, || Ok(vec![format!("{frames} frames of {atoms} atoms, hash {hash:016x}")]))
}

/// Evaluates these frames of a system. On rank 0 `visit` gets them in order, batch after batch; its failure is everyone's.
pub(super) fn for_each_batch(
    team: &mut Team,
    predictor: &mut Predictor,
    system: &System,
    frames: &[usize],
    mut visit: impl FnMut(&[Frame], &Prediction) -> Result<()>,
) -> Result<()> {
    if team.size() == 1 {
        return predictor.for_each_batch(system, frames, visit);
    }
    let at_once = predictor.frames_at_once(system.n_atoms);
    let first = &frames[..frames.len().min(at_once).min(FIRST_FRAMES)];
    let settled = predictor.read(system, first).and_then(|first| predictor.settle(&first));
    team.agree(settled.map_err(|e| e.at(&system.path)))?;
    let plan = Plan {
        n_ranks: team.size(),
        at_once,
        n_blocks: predictor.n_blocks(system.n_atoms),
        whole_batches: predictor.is_on_gpu(),
    };
    for round in frames.chunks(plan.frames_of_round()) {
        let mine = Share::read(team, predictor, system, round, plan)
            .and_then(|share| Ok((share.evaluate(predictor).map_err(|e| e.at(&system.path))?, share)));
        let (predictions, share) = team.agree(mine)?;
        let all = team.gather_bytes(&encode(&predictions))?;
        drop(predictions);
        team.from_root(|| share.visit(&all, &mut visit))?;
    }
    Ok(())
}

/// How work is shared: in rounds of so many frames that every rank has a batch, or some blocks.
#[derive(Clone, Copy)]
struct Plan {
    n_ranks: usize,
    /// Frames of a batch.
    at_once: usize,
    n_blocks: usize,
    /// Batches are those of one rank alone.
    whole_batches: bool,
}

impl Plan {
    fn frames_of_round(&self) -> usize {
        match self.n_blocks {
            1 => self.n_ranks * self.at_once,
            n => (BLOCKS_EACH * self.n_ranks).div_ceil(n),
        }
    }

    /// What a rank does of a round, in blocks of frames: block k of frame f has number `f * n_blocks + k`.
    fn share_of(&self, rank: usize, n_frames: usize) -> Range<usize> {
        let n = n_frames * self.n_blocks;
        if self.whole_batches {
            return (rank * self.at_once).min(n)..((rank + 1) * self.at_once).min(n);
        }
        share(n, self.n_ranks, rank)
    }
}

/// A round as one rank has it.
struct Share {
    plan: Plan,
    rank: usize,
    n_frames: usize,
    /// From this one on those that the rank needs; rank 0 needs all, to compare.
    first: usize,
    frames: Vec<Frame>,
}

impl Share {
    fn read(
        team: &Team,
        predictor: &Predictor,
        system: &System,
        round: &[usize],
        plan: Plan,
    ) -> Result<Share> {
        let own = plan.share_of(team.rank(), round.len());
        let needed = match team.is_root() {
            true => 0..round.len(),
            false => own.start / plan.n_blocks..own.end.div_ceil(plan.n_blocks),
        };
        let frames = predictor.read(system, &round[needed.clone()])?;
        Ok(Share { plan, rank: team.rank(), n_frames: round.len(), first: needed.start, frames })
    }

    /// One prediction for whole frames together, or one for each block.
    fn evaluate(&self, predictor: &mut Predictor) -> Result<Vec<Prediction>> {
        let own = self.plan.share_of(self.rank, self.n_frames);
        match self.plan.n_blocks {
            1 => Ok(vec![predictor.predict(&self.frames[own.start - self.first..own.end - self.first])?]),
            n => own.map(|k| predictor.predict_block(&self.frames[k / n - self.first], k % n)).collect(),
        }
    }

    /// On rank 0: what all ranks have found, in the order of frames.
    fn visit(
        &self,
        all: &[Vec<u8>],
        visit: &mut impl FnMut(&[Frame], &Prediction) -> Result<()>,
    ) -> Result<()> {
        if self.plan.n_blocks == 1 {
            for (rank, bytes) in all.iter().enumerate() {
                let frames = &self.frames[self.plan.share_of(rank, self.n_frames)];
                if let ([_, ..], Some(predicted)) = (frames, Predictions(bytes).next()) {
                    visit(frames, &predicted?)?;
                }
            }
            return Ok(());
        }
        let mut blocks = all.iter().flat_map(|bytes| Predictions(bytes));
        let mut next = || blocks.next().unwrap_or_else(|| bail!("a block of a frame is missing"));
        for frame in &self.frames {
            let mut sum = next()?;
            for _ in 1..self.plan.n_blocks {
                sum.add(&next()?);
            }
            visit(std::slice::from_ref(frame), &sum)?;
        }
        Ok(())
    }
}

/// Predictions as bytes: of each list its length, how many numbers follow, and these with their places. Most forces that a block brings
/// are zeros.
fn encode(predictions: &[Prediction]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for list in predictions.iter().flat_map(Prediction::lists) {
        // By bits: a negative zero is not left out.
        let is_there = |(_, x): &(usize, &f64)| x.to_bits() != 0;
        let n = list.iter().enumerate().filter(is_there).count();
        bytes.extend([list.len() as u64, n as u64].iter().flat_map(|n| n.to_le_bytes()));
        for (place, x) in list.iter().enumerate().filter(is_there) {
            bytes.extend((place as u32).to_le_bytes());
            bytes.extend(x.to_le_bytes());
        }
    }
    bytes
}

/// The predictions that [`encode`] wrote.
struct Predictions<'a>(&'a [u8]);

impl Predictions<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N]> {
        let (head, rest) =
            self.0.split_first_chunk().ok_or_else(|| err!("another rank sent half a prediction"))?;
        self.0 = rest;
        Ok(*head)
    }

    fn list(&mut self) -> Result<Vec<f64>> {
        let (length, n) = (u64::from_le_bytes(self.take()?), u64::from_le_bytes(self.take()?));
        let mut list = vec![0.0; length as usize];
        for _ in 0..n {
            let (place, x) = (u32::from_le_bytes(self.take()?), f64::from_le_bytes(self.take()?));
            match list.get_mut(place as usize) {
                Some(number) => *number = x,
                None => bail!("another rank sent number {place} of a list of {length}"),
            }
        }
        Ok(list)
    }

    fn prediction(&mut self) -> Result<Prediction> {
        Ok(Prediction {
            energy: self.list()?,
            atom_energy: self.list()?,
            force: self.list()?,
            virial: self.list()?.as_chunks::<9>().0.to_vec(),
            output: self.list()?,
            atom_output: self.list()?,
        })
    }
}

impl Iterator for Predictions<'_> {
    type Item = Result<Prediction>;

    fn next(&mut self) -> Option<Self::Item> {
        (!self.0.is_empty()).then(|| self.prediction())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn predictions_keep_every_bit() {
        let energies = Prediction {
            energy: vec![-3.25, f64::NAN],
            atom_energy: vec![0.1, -0.0, 0.0],
            force: vec![0.0, 1e-300, -0.0, 0.0, 0.0, 7.0, 0.0, 0.0, 0.0],
            virial: vec![[0.0, 1.0, 2.0, 0.0, -4.0, 5.0, 6.0, 7.0, 8.0]],
            ..Prediction::default()
        };
        let outputs =
            Prediction { output: vec![1.0; 4], atom_output: vec![0.5; 12], ..Prediction::default() };
        let bits =
            |p: &Prediction| p.lists().map(|list| list.iter().map(|x| x.to_bits()).collect::<Vec<_>>());
        let all = [energies, outputs, Prediction::default()];
        let found: Vec<_> = Predictions(&encode(&all)).map(Result::unwrap).collect();
        assert_eq!(found.iter().map(bits).collect::<Vec<_>>(), all.iter().map(bits).collect::<Vec<_>>());
        assert!(encode(&[]).is_empty());
        assert!(Predictions(&encode(&all)[..50]).next().unwrap().is_err());
    }

    #[test]
    fn ranks_share_all_frames_and_blocks_in_order() {
        for n_ranks in 2..7 {
            for (n_blocks, whole_batches, n_frames) in
                [(1, false, 1), (1, false, 17), (1, true, 17), (1, true, 2), (3, false, 1), (24, false, 2)]
            {
                let plan = Plan { n_ranks, at_once: 4, n_blocks, whole_batches };
                let n_frames = n_frames.min(plan.frames_of_round());
                let all: Vec<usize> = (0..n_ranks).flat_map(|rank| plan.share_of(rank, n_frames)).collect();
                assert!(all.into_iter().eq(0..n_frames * n_blocks), "{n_ranks} ranks, {n_blocks} blocks");
            }
        }
        let many = Plan { n_ranks: 16, at_once: 1, n_blocks: 24, whole_batches: false };
        assert_eq!(many.frames_of_round(), 3, "each rank has four or five of 72 blocks");
    }
}
