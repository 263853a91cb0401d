//! Frames that several ranks work on together. Each has the centres of its blocks; one sum over the group gives every rank of it
//! energies, forces and virials, all come to the same loss and seeds, and the second pass is over own centres again.
//!
//! The ranks of a group take the same draw (`training.ranks_per_frame`). The preparer lists the neighbours of the rank's own blocks only
//! ([`crate::neighbor::part`], `Engine::block_preparer`), and the gradient is that which own centres bring, so that the mean divides by the
//! number of groups. Runs that are `reproducible` cut frames into blocks that do not depend on the number of ranks
//! ([`Cut::steady`]); each block has a first and a second pass of its own there.

use super::team::Team;
use crate::data::Frame;
use crate::engine::{Block, Engine, Prediction};
use crate::neighbor::Cut;
use crate::sample::{Loaded, Prepared};
use crate::{Result, err};
use std::sync::Arc;

/// What an engine made of somebody's blocks of a frame, at least one.
pub struct OwnBlocks<P>(pub Vec<Block<P>>);

impl<P: Prepared> Prepared for OwnBlocks<P> {
    fn bytes(&self) -> usize {
        self.0.iter().map(|block| block.prepared.bytes()).sum()
    }
}

/// The frames of a batch, which are of one system and have as many atoms.
type Batch<P> = [Arc<Loaded<OwnBlocks<P>, Frame>>];

/// Predicts batches that the ranks of a group share.
pub struct Shared {
    cut: Cut,
    /// Energies or outputs of atoms are wanted too.
    of_atoms: bool,
    /// What each block brings, or all of them together where each rank has one.
    slots: Vec<f64>,
    part: Prediction,
    /// The own block that the engine has seen last.
    seen: usize,
    is_told: bool,
}

impl Shared {
    pub fn new(cut: Cut, of_atoms: bool) -> Self {
        Shared { cut, of_atoms, slots: Vec::new(), part: Prediction::default(), seen: 0, is_told: false }
    }

    pub fn cut(&self) -> Cut {
        self.cut
    }

    /// How many blocks of a batch are this rank's.
    pub fn n_own<P>(&self, batch: &Batch<P>) -> usize {
        self.cut.own(n_atoms(batch)).len()
    }

    /// First pass over the own blocks, and the sum over all: overwrites `out`, with the same bits on all ranks of the group.
    pub fn evaluate<E: Engine>(
        &mut self,
        out: &mut Prediction,
        engine: &mut E,
        params: &[f64],
        batch: &Batch<E::Prepared>,
        team: &mut Team,
    ) -> Result<()> {
        let (n_blocks, own) = (self.cut.n_blocks(n_atoms(batch)), self.cut.own(n_atoms(batch)));
        if n_blocks == 1 && self.cut.parts == 1 {
            engine.evaluate(out, params, &block(batch, 0));
            self.seen = 0;
            return Ok(());
        }
        self.tell_shares(batch, team)?;
        let n_slots = if self.cut.steady { n_blocks } else { 1 };
        let mut size = 0;
        // Who has no block looks at one without atoms: engines adapt to the parameters, and must do so on all ranks.
        for k in 0..batch[0].prepared.0.len() {
            engine.evaluate(&mut self.part, params, &block(batch, k));
            self.seen = k;
            if k == 0 {
                size = batch.len() + self.summed().map(<[f64]>::len).sum::<usize>();
                self.slots.clear();
                self.slots.resize(n_slots * size, 0.0);
            }
            if k < own.len() {
                let slot = if self.cut.steady { own.start + k } else { 0 };
                self.put(slot * size, batch, k);
            }
        }
        team.sum_in_group(&mut self.slots)?;
        team.tell_once_in_group(self.take(out, size, batch))
    }

    /// Makes the `k`-th own block the one that the engine has seen last, for the second pass.
    pub fn recall<E: Engine>(
        &mut self,
        engine: &mut E,
        params: &[f64],
        batch: &Batch<E::Prepared>,
        k: usize,
    ) {
        if self.seen != k {
            engine.evaluate(&mut self.part, params, &block(batch, k));
            self.seen = k;
        }
    }

    /// What is added up of the last prediction.
    fn summed(&self) -> impl Iterator<Item = &[f64]> {
        let lists = self.part.lists().into_iter().zip(Prediction::OF_ATOMS);
        lists.filter(|(_, of_atoms)| self.of_atoms || !of_atoms).map(|(list, _)| list)
    }

    /// Writes down what the `k`-th own block brings: the centres of each frame, and what is predicted.
    fn put<P>(&mut self, start: usize, batch: &Batch<P>, k: usize) {
        let mut slot = std::mem::take(&mut self.slots);
        let (centers, mut rest) = slot[start..].split_at_mut(batch.len());
        for (to, frame) in centers.iter_mut().zip(batch) {
            *to = frame.prepared.0[k].centers as f64;
        }
        for list in self.summed() {
            let (to, others) = rest.split_at_mut(list.len());
            to.copy_from_slice(list);
            rest = others;
        }
        self.slots = slot;
    }

    /// Adds up what all blocks bring, in their order.
    fn take<P>(&mut self, out: &mut Prediction, size: usize, batch: &Batch<P>) -> Result<()> {
        let (total, others) = self.slots.split_at_mut(size);
        for slot in others.chunks_exact(size) {
            total.iter_mut().zip(slot).for_each(|(sum, x)| *sum += x);
        }
        let (centers, mut rest) = total.split_at(batch.len());
        for (&centers, loaded) in centers.iter().zip(batch) {
            let real = loaded.frame.types.iter().filter(|&&t| t >= 0).count();
            check_centers(centers, real)?;
        }
        out.clone_from(&self.part); // for its shape
        for (list, of_atoms) in out.lists_mut().into_iter().zip(Prediction::OF_ATOMS) {
            if of_atoms && !self.of_atoms {
                list.fill(0.0);
                continue;
            }
            let (sums, others) = rest.split_at(list.len());
            list.copy_from_slice(sums);
            rest = others;
        }
        Ok(())
    }

    /// Says once how evenly the first batch is shared.
    fn tell_shares<P>(&mut self, batch: &Batch<P>, team: &mut Team) -> Result<()> {
        if std::mem::replace(&mut self.is_told, true) || self.cut.parts == 1 {
            return Ok(());
        }
        let mut sizes = vec![0.0; 2 * self.cut.parts];
        for block in batch.iter().flat_map(|f| &f.prepared.0) {
            sizes[2 * self.cut.part] += block.centers as f64;
            sizes[2 * self.cut.part + 1] += block.pairs as f64;
        }
        team.sum_in_group(&mut sizes)?;
        let all = |k: usize| sizes.iter().copied().skip(k).step_by(2).collect();
        tell_balance(all(0), all(1));
        Ok(())
    }
}

/// Whether the blocks of a frame have all of its real atoms.
pub fn check_centers(centers: f64, real: usize) -> Result<()> {
    if centers == real as f64 {
        return Ok(());
    }
    Err(err!(
        "the blocks of a frame of {real} atoms have {centers} together: the ranks of a group have not cut it alike"
    )
    .help("let ranks that share frames run on processors of one kind"))
}

/// Says how evenly the first batch is shared, given the atoms and neighbours of each block.
pub fn tell_balance(atoms: Vec<f64>, neighbors: Vec<f64>) {
    let told = |sizes: &[f64]| {
        let (most, sum) = (sizes.iter().copied().fold(0.0, f64::max), sizes.iter().sum::<f64>());
        format!("{most} of {sum} ({:.2} of the mean)", most / (sum / sizes.len() as f64).max(1.0))
    };
    log::info!(
        "the first batch in {} blocks: the largest has {} atoms and {} neighbours",
        atoms.len(),
        told(&atoms),
        told(&neighbors)
    );
}

/// Atoms of each frame of a batch.
fn n_atoms<P>(batch: &Batch<P>) -> usize {
    batch.first().map_or(0, |first| first.frame.n_atoms())
}

/// The `k`-th own block of each frame of a batch.
pub fn block<P>(batch: &Batch<P>, k: usize) -> Vec<&P> {
    batch.iter().map(|f| &f.prepared.0[k].prepared).collect()
}
