//! Sums of gradients over draws and ranks.
//!
//! Ranks of a group have parts of one gradient each: their sum counts as one.

use super::team::Team;
use crate::Result;
use crate::comm::vectors::{RankVector, Sums};
use std::ops::Range;

/// What two ranges have in common.
pub fn overlap(a: &Range<usize>, b: &Range<usize>) -> Range<usize> {
    let start = a.start.max(b.start);
    start..a.end.min(b.end).max(start)
}

/// Adds up gradients over draws and ranks.
///
/// The flat vector carries one more number, the wish to stop, so that all ranks learn of it at the same step.
pub struct GradientSum {
    /// Draws of each rank in a step.
    draws: usize,
    n_params: usize,
    /// The sum over this rank's draws; one draw is its own sum. Not used where the sum is exact.
    total: RankVector,
    /// The gradient of the present draw where there are several, or of every draw where the sum is exact; there a draw may have
    /// brought several.
    gradients: Vec<Vec<f64>>,
    /// How many of these were written, where the sum is exact.
    written: usize,
    exact: Option<Exact>,
}

/// Sums in whole numbers: the same bits for every number of ranks, engine and order.
struct Exact {
    /// Blocks of parameters that share a scale.
    blocks: Vec<Range<usize>>,
    sums: Vec<i64>,
}

impl GradientSum {
    /// `blocks` are given where the sum must be the same bits for every number of ranks.
    pub fn new(n_params: usize, draws: usize, blocks: Option<Vec<Range<usize>>>) -> Self {
        let total = RankVector::own(if blocks.is_some() { 0 } else { n_params + 1 });
        Self::with(total, n_params, draws, blocks)
    }

    /// The same where each rank needs the sums of its own slice only.
    pub fn in_slices(
        team: &mut Team,
        n_params: usize,
        draws: usize,
        blocks: Option<Vec<Range<usize>>>,
    ) -> Result<Self> {
        match blocks {
            Some(_) => Ok(Self::new(n_params, draws, blocks)),
            None => Ok(Self::with(team.rank_vector(n_params + 1)?, n_params, draws, blocks)),
        }
    }

    fn with(total: RankVector, n_params: usize, draws: usize, blocks: Option<Vec<Range<usize>>>) -> Self {
        let kept = match &blocks {
            Some(_) => draws,
            None => usize::from(draws > 1),
        };
        GradientSum {
            draws,
            n_params,
            total,
            gradients: vec![vec![0.0; n_params + 1]; kept],
            written: 0,
            exact: blocks.map(|blocks| Exact { blocks, sums: vec![0; n_params + 1] }),
        }
    }

    /// Where the next gradient is written.
    pub fn place(&mut self) -> &mut [f64] {
        let n = self.n_params;
        if self.exact.is_some() && self.written == self.gradients.len() {
            self.gradients.push(vec![0.0; n + 1]);
        }
        match self.gradients.len() {
            0 => &mut self.total[..n],
            _ => &mut self.gradients[self.written][..n],
        }
    }

    /// Takes the gradient of a draw into account.
    pub fn add(&mut self, draw: usize) {
        if self.exact.is_some() {
            self.written += 1;
            return;
        }
        if self.draws == 1 {
            return;
        }
        if draw == 0 {
            self.total.copy_from_slice(&self.gradients[0]);
        } else {
            for (total, x) in self.total.iter_mut().zip(&self.gradients[0]) {
                *total += x;
            }
        }
    }

    /// Hands this rank's sum to the owners of its slices; each then finds the sums of its own slice in [`GradientSum::sums`].
    pub fn give_to_owners(&mut self, team: &mut Team, stop: bool) -> Result<()> {
        let n = self.n_params;
        if let Some(exact) = &mut self.exact {
            let count = (self.draws * team.n_groups()) as f64;
            let (slice, written) = (team.slice(n + 1), std::mem::take(&mut self.written));
            return exact.mean(&mut self.gradients, written, team, stop, count, slice);
        }
        self.total[n] = f64::from(u8::from(stop));
        team.reduce_scatter(&mut self.total)
    }

    /// The sums over draws and ranks of this rank's slice, and how many gradients were added up.
    pub fn sums(&mut self, team: &Team) -> (Sums<'_>, f64) {
        match self.exact {
            Some(_) => (Sums::of(&self.gradients[0]), 1.0), // the mean already
            None => (self.total.sums(), (self.draws * team.n_groups()) as f64),
        }
    }

    /// The mean over draws and ranks, whole on every rank, and whether any rank wants to stop.
    pub fn mean(&mut self, team: &mut Team, stop: bool) -> Result<(&mut [f64], bool)> {
        let n = self.n_params;
        let count = (self.draws * team.n_groups()) as f64;
        let mean = if let Some(exact) = &mut self.exact {
            let written = std::mem::take(&mut self.written);
            exact.mean(&mut self.gradients, written, team, stop, count, 0..n + 1)?;
            &mut self.gradients[0][..]
        } else {
            self.total[n] = f64::from(u8::from(stop));
            team.sum(&mut self.total)?;
            if count > 1.0 {
                self.total[..n].iter_mut().for_each(|x| *x /= count);
            }
            &mut self.total[..]
        };
        let stop = mean[n] > 0.0;
        Ok((&mut mean[..n], stop))
    }
}

impl Exact {
    /// Overwrites a slice of the first gradient with the mean of `count` draws, to which the first `written` gradients of each
    /// rank add up; the number that follows becomes that of wishes to stop.
    ///
    /// Each block of parameters has one scale, a power of two that leaves room for the sum of all gradients of all ranks;
    /// it follows from the largest element of the block anywhere, which does not depend on the order either.
    fn mean(
        &mut self,
        gradients: &mut [Vec<f64>],
        written: usize,
        team: &mut Team,
        stop: bool,
        count: f64,
        slice: Range<usize>,
    ) -> Result<()> {
        let largest = |block: &Range<usize>| {
            let of_draw = |g: &Vec<f64>| g[block.clone()].iter().fold(0.0f64, |a, x| a.max(x.abs()));
            gradients[..written].iter().map(of_draw).fold(0.0f64, f64::max)
        };
        let mine: (usize, Vec<f64>) = (written, self.blocks.iter().map(largest).collect());
        let everyones = team.gather(&mine)?;
        let n_terms = everyones.iter().map(|(written, _)| *written).sum::<usize>().max(1) as f64;
        let room = 61 - (n_terms.log2().ceil() as i32);
        let scales: Vec<f64> = (0..self.blocks.len())
            .map(|b| {
                let most = everyones.iter().map(|(_, m)| m[b]).fold(0.0f64, f64::max);
                // 2^(room - exponent), with room to spare at either end of the range of exponents.
                let exponent = if most > 0.0 { most.log2().floor() as i32 + 1 } else { 0 };
                2f64.powi((room - exponent).clamp(-1000, 1000))
            })
            .collect();
        let n = self.sums.len() - 1;
        self.sums.fill(0);
        for gradient in &gradients[..written] {
            for (block, scale) in self.blocks.iter().zip(&scales) {
                for (sum, x) in self.sums[block.clone()].iter_mut().zip(&gradient[block.clone()]) {
                    *sum += (x * scale).round_ties_even() as i64;
                }
            }
        }
        self.sums[n] = i64::from(stop);
        team.sum_exact(&mut self.sums)?;
        for (block, scale) in self.blocks.iter().zip(&scales) {
            let block = overlap(block, &slice);
            for (x, sum) in gradients[0][block.clone()].iter_mut().zip(&self.sums[block]) {
                *x = *sum as f64 / scale / count;
            }
        }
        gradients[0][n] = self.sums[n] as f64;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The mean gradient of 12 draws, cut over `size` ranks, on every rank: summed for all, or in slices that are put together.
    fn mean_over(size: usize, exact: bool, in_slices: bool) -> Vec<Vec<f64>> {
        const DRAWS: usize = 12;
        let gradient =
            |draw: usize, k: usize| ((draw * 31 + k * 7) as f64 * 0.618).sin() * 10f64.powi(k as i32 - 4);
        let comms = crate::comm::local_group(size);
        std::thread::scope(|scope| {
            let run = |comm: Box<dyn crate::comm::Communicator>| {
                let rank = comm.rank();
                let mut team = Team::new(comm);
                let blocks = exact.then(|| vec![0..3, 3..8]);
                let mut sum = match in_slices {
                    true => GradientSum::in_slices(&mut team, 8, DRAWS / size, blocks).unwrap(),
                    false => GradientSum::new(8, DRAWS / size, blocks),
                };
                for k in 0..DRAWS / size {
                    let draw = k * size + rank;
                    for (p, x) in sum.place().iter_mut().enumerate() {
                        *x = gradient(draw, p);
                    }
                    sum.add(k);
                }
                let mean = match in_slices {
                    true => mean_of_slices(&mut team, &mut sum, rank == size - 1),
                    false => {
                        let (mean, stop) = sum.mean(&mut team, rank == size - 1).unwrap();
                        assert!(stop, "one rank's wish is everyone's");
                        mean.to_vec()
                    }
                };
                team.part(Ok(())).unwrap();
                mean
            };
            let handles: Vec<_> = comms.into_iter().map(|comm| scope.spawn(move || run(comm))).collect();
            handles.into_iter().map(|h| h.join().unwrap()).collect()
        })
    }

    fn mean_of_slices(team: &mut Team, sum: &mut GradientSum, stop: bool) -> Vec<f64> {
        let mut common = team.common_vector(vec![0.0; 9]).unwrap();
        sum.give_to_owners(team, stop).unwrap();
        let (sums, count) = sum.sums(team);
        let slice = team.slice(9);
        // SAFETY: the slice of this rank, once.
        let mine = unsafe { sums.add_up(slice.clone()) };
        common[slice].iter_mut().zip(mine).for_each(|(mean, x)| *mean = x / count);
        team.all_gather_slices(&mut common).unwrap();
        assert!(common[8] > 0.0, "one rank's wish is everyone's");
        common[..8].to_vec()
    }

    #[test]
    fn the_mean_over_ranks_is_the_mean_over_draws() {
        let one = &mean_over(1, false, false)[0];
        for (size, in_slices) in [(1, true), (2, false), (2, true), (3, false), (3, true), (4, true)] {
            for mean in mean_over(size, false, in_slices) {
                for (a, b) in mean.iter().zip(one) {
                    assert!((a - b).abs() <= 1e-14 * b.abs().max(1e-4), "{size} ranks: {a} {b}");
                }
            }
        }
    }

    #[test]
    fn exact_sums_have_the_same_bits_for_every_number_of_ranks() {
        let one = &mean_over(1, true, false)[0];
        let plain = &mean_over(1, false, false)[0];
        for (a, b) in one.iter().zip(plain) {
            assert!((a - b).abs() <= 1e-12 * b.abs().max(1e-6), "{a} {b}");
        }
        for size in [2, 3, 4, 6] {
            for in_slices in [false, true] {
                for mean in mean_over(size, true, in_slices) {
                    assert_eq!(&mean, one, "{size} ranks");
                }
            }
        }
    }
}
