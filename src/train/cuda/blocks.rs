//! Frames that several ranks share: each has the rows of its own block on its device, one block of each frame (`HostFrame::of_part`).
//!
//! `Core::own_part` is the first pass up to what own rows bring to all atoms, `Joined::sum_in_group` (`train/gpu_sum.rs`) or the host adds it
//! up, and `Core::shared_gradient` is the loss and the second pass; their kernels are in `blocks.cu`. Blocks differ from frame to frame, so
//! their batches share shapes (`engine/cuda/rows.rs`).

use super::super::blocks::{check_centers, tell_balance};
use super::super::team::Team;
use crate::Result;
use crate::engine::cuda::frame::HostFrame;
use crate::neighbor::Cut;

/// What a rank tells the others of its block of a frame: smallest and largest argument of the nets, rows, pairs.
const TOLD: usize = 4;

/// The part of frames that this rank has.
pub(super) struct Blocks {
    cut: Cut,
    is_told: bool,
}

/// A block for each rank of a group.
pub(super) fn cut_of(team: &Team) -> Cut {
    Cut { part: team.rank_in_group(), parts: team.ranks_per_group(), steady: false }
}

impl Blocks {
    pub(super) fn new(cut: Cut) -> Self {
        Blocks { cut, is_told: false }
    }

    pub(super) fn cut(&self) -> Cut {
        self.cut
    }

    /// Agrees with the other ranks of the group on new frames: how far the arguments of the nets reach in them, so that all use the
    /// same series, and that nobody has left an atom out. All ranks of a group have the same frames.
    pub(super) fn meet(&mut self, frames: Vec<&mut HostFrame>, team: &mut Team) -> Result<()> {
        let Cut { part, parts, .. } = self.cut;
        if parts == 1 || frames.is_empty() {
            return Ok(());
        }
        // Everyone writes to a place of their own: the sum is what all have told.
        let mut told = vec![0.0; TOLD * parts * frames.len()];
        for (frame, told) in frames.iter().zip(told.chunks_exact_mut(TOLD * parts)) {
            let (facts, (low, high)) = (&frame.facts, frame.facts.s_range);
            let mine = [low, high, facts.n_rows() as f64, facts.n_pairs() as f64];
            told[TOLD * part..][..TOLD].copy_from_slice(&mine);
        }
        team.sum_in_group(&mut told)?;
        let of_frames = || told.chunks_exact(TOLD * parts);
        if !std::mem::replace(&mut self.is_told, true) {
            let all = |k: usize| (0..parts).map(move |p| of_frames().map(|told| told[TOLD * p + k]).sum());
            tell_balance(all(2).collect(), all(3).collect());
        }
        for (frame, told) in frames.into_iter().zip(of_frames()) {
            let of = |k: usize| told.iter().copied().skip(k).step_by(TOLD);
            team.tell_once_in_group(check_centers(of(2).sum(), frame.facts.shape.n_real as usize))?;
            frame.reach((of(0).fold(f64::INFINITY, f64::min), of(1).fold(f64::NEG_INFINITY, f64::max)));
        }
        Ok(())
    }
}
