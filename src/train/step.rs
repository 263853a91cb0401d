//! One training step: the recipe.

use super::learner::{StepReport, Turn};
use super::team::Team;
use crate::engine::{Engine, Piece, Prediction, Seeds, Take};
use crate::loss::{EnerLoss, LossValue};
use crate::optim::{Adam, Descent};
use crate::report::profile::{Phase, Profiler};
use crate::sample::Queue;
use crate::{Result, bail};
use std::ops::Range;

/// The parameters, and everything that changes them.
pub struct Stepper<E: Engine> {
    pub engine: E,
    pub loss: EnerLoss,
    pub params: Vec<f64>,
    pub adam: Adam,
    /// Gradients with a larger norm are scaled down to it; 0 means never.
    pub max_norm: f64,
    sum: GradientSum,
    out: Prediction,
    seeds: Seeds,
}

impl<E: Engine> Stepper<E> {
    pub fn new(
        engine: E,
        loss: EnerLoss,
        params: Vec<f64>,
        adam: Adam,
        sum: GradientSum,
        max_norm: f64,
    ) -> Self {
        let (out, seeds) = (Prediction::default(), Seeds::default());
        Stepper { engine, loss, params, adam, max_norm, sum, out, seeds }
    }

    /// One update of the parameters from `draws` batches of every rank.
    pub fn step(
        &mut self,
        turn: &Turn,
        queue: &mut Queue<E::Prepared>,
        team: &mut Team,
        profiler: &Profiler,
    ) -> Result<StepReport> {
        let Turn { step, rate, stop, wants_values } = *turn;
        if turn.reconsiders() {
            self.engine.reconsider(&self.params);
        }
        let mut values = Vec::with_capacity(self.sum.draws);
        // One gradient that nothing is done with but the update: the update is part of the pass that makes it.
        let alone = self.sum.draws == 1 && self.sum.exact.is_none() && team.size() == 1;
        let at_once = alone && self.max_norm == 0.0 && !wants_values && self.adam.trains_all();
        for draw in 0..self.sum.draws {
            let batch = profiler.time(Phase::DataWait, || queue.next())?; // geometry was prepared on the queue's threads
            let prepared: Vec<&E::Prepared> = batch.frames.iter().map(|f| &f.prepared).collect();
            let frames: Vec<_> = batch.frames.iter().map(|f| &f.frame).collect();
            let span = profiler.span(Phase::Forward);
            self.engine.evaluate(&mut self.out, &self.params, &prepared); // E, F, virial
            let value = self.loss.differentiate(&mut self.seeds, &self.out, &frames, rate.schedule); // dL/dE, dL/dF, dL/dvirial
            drop(span);
            if !value.loss.is_finite() {
                bail!("the loss of step {} is {}: the parameters have diverged", step + 1, value.loss);
            }
            let span = profiler.span(Phase::Backward);
            if at_once && self.backward_and_descend(&prepared, rate.scaled, step) {
                values.push(value);
                return Ok(StepReport { values, gradient_norm: f64::NAN, stop });
            }
            self.engine.backward(self.sum.place(draw), &self.params, &prepared, &self.seeds); // dL/dparams
            self.sum.add(draw);
            drop(span);
            values.push(value);
        }
        let total = profiler.time(Phase::Communication, || self.sum.over_ranks(team, stop))?; // and over draws
        let span = profiler.span(Phase::Optimizer);
        let descent = Descent {
            rate: rate.scaled,
            step,
            count: total.count,
            max_norm: self.max_norm,
            wants_norm: wants_values,
        };
        let gradient_norm = self.adam.descend(&mut self.params, total.sum, &descent);
        self.engine.forget_parameters();
        let stop = total.stop;
        drop(span);
        Ok(StepReport { values, gradient_norm, stop })
    }

    /// The second pass and the update in one, where the engine can: the same numbers, but the gradient need not go to memory
    /// and back.
    fn backward_and_descend(&mut self, prepared: &[&E::Prepared], rate: f64, step: u64) -> bool {
        let grad = self.sum.place(0);
        let ready = self.engine.backward_but_pieces(grad, &self.params, prepared, &self.seeds);
        let Some(ready) = ready else { return false };
        // SAFETY: the engine gives out every piece once, and what is ready is not among them.
        let pieces = unsafe { self.adam.by_pieces(&mut self.params, rate, step) };
        self.engine.hand_out(&pieces);
        pieces.take(ready.start, Piece::Double(&grad[ready]));
        true
    }

    /// The loss of a batch, without a gradient.
    pub fn evaluate(&mut self, batch: &[&E::Prepared], frames: &[&crate::data::Frame], lr: f64) -> LossValue {
        self.engine.evaluate(&mut self.out, &self.params, batch);
        self.loss.differentiate(&mut self.seeds, &self.out, frames, lr)
    }
}

/// A sum of gradients over draws and ranks.
struct Total<'a> {
    sum: &'a mut [f64],
    /// How many were added up.
    count: f64,
    /// Some rank wants to stop.
    stop: bool,
}

/// Adds up gradients over draws and ranks.
///
/// The flat vector carries one more number, the wish to stop, so that all ranks learn of it at the same step.
pub struct GradientSum {
    /// Draws of each rank in a step.
    draws: usize,
    n_params: usize,
    /// One gradient, or one for each draw where the sum must not depend on the order.
    gradients: Vec<Vec<f64>>,
    total: Vec<f64>,
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
        let kept = if blocks.is_some() { draws } else { 1 };
        GradientSum {
            draws,
            n_params,
            gradients: vec![vec![0.0; n_params + 1]; kept],
            total: if draws > 1 && blocks.is_none() { vec![0.0; n_params + 1] } else { Vec::new() },
            exact: blocks.map(|blocks| Exact { blocks, sums: vec![0; n_params + 1] }),
        }
    }

    /// Where the gradient of a draw is written.
    pub fn place(&mut self, draw: usize) -> &mut [f64] {
        let kept = if self.exact.is_some() { draw } else { 0 };
        &mut self.gradients[kept][..self.n_params]
    }

    /// Takes the gradient of a draw into account.
    pub fn add(&mut self, draw: usize) {
        if self.draws == 1 || self.exact.is_some() {
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

    /// The sum over draws and ranks.
    fn over_ranks(&mut self, team: &mut Team, stop: bool) -> Result<Total<'_>> {
        let n = self.n_params;
        let count = (self.draws * team.size()) as f64;
        if let Some(exact) = &mut self.exact {
            let stop = exact.mean(&mut self.gradients, n, team, stop, count)?;
            return Ok(Total { sum: &mut self.gradients[0][..n], count: 1.0, stop });
        }
        let total = if self.draws > 1 { &mut self.total } else { &mut self.gradients[0] };
        total[n] = f64::from(u8::from(stop));
        team.sum(total)?;
        let stop = total[n] > 0.0;
        Ok(Total { sum: &mut total[..n], count, stop })
    }

    /// The mean over draws and ranks, and whether any rank wants to stop.
    pub fn mean(&mut self, team: &mut Team, stop: bool) -> Result<(&mut [f64], bool)> {
        let Total { sum, count, stop } = self.over_ranks(team, stop)?;
        if count > 1.0 {
            sum.iter_mut().for_each(|x| *x /= count);
        }
        Ok((sum, stop))
    }
}

impl Exact {
    /// Overwrites the first gradient with the mean of all.
    ///
    /// Each block of parameters has one scale, a power of two that leaves room for the sum of all draws of all ranks;
    /// it follows from the largest element of the block anywhere, which does not depend on the order either.
    fn mean(
        &mut self,
        gradients: &mut [Vec<f64>],
        n: usize,
        team: &mut Team,
        stop: bool,
        count: f64,
    ) -> Result<bool> {
        let largest = |block: &Range<usize>| {
            let of_draw = |g: &Vec<f64>| g[block.clone()].iter().fold(0.0f64, |a, x| a.max(x.abs()));
            gradients.iter().map(of_draw).fold(0.0f64, f64::max)
        };
        let mine: Vec<f64> = self.blocks.iter().map(largest).collect();
        let everyones = team.gather(&mine)?;
        let room = 61 - (count.log2().ceil() as i32);
        let scales: Vec<f64> = (0..self.blocks.len())
            .map(|b| {
                let most = everyones.iter().map(|m| m[b]).fold(0.0f64, f64::max);
                // 2^(room - exponent), with room to spare at either end of the range of exponents.
                let exponent = if most > 0.0 { most.log2().floor() as i32 + 1 } else { 0 };
                2f64.powi((room - exponent).clamp(-1000, 1000))
            })
            .collect();
        self.sums.fill(0);
        for gradient in gradients.iter() {
            for (block, scale) in self.blocks.iter().zip(&scales) {
                for (sum, x) in self.sums[block.clone()].iter_mut().zip(&gradient[block.clone()]) {
                    *sum += (x * scale).round_ties_even() as i64;
                }
            }
        }
        self.sums[n] = i64::from(stop);
        team.sum_exact(&mut self.sums)?;
        for (block, scale) in self.blocks.iter().zip(&scales) {
            for (x, sum) in gradients[0][block.clone()].iter_mut().zip(&self.sums[block.clone()]) {
                *x = *sum as f64 / scale / count;
            }
        }
        Ok(self.sums[n] > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The mean gradient of 12 draws, cut over `size` ranks, on every rank.
    fn mean_over(size: usize, exact: bool) -> Vec<Vec<f64>> {
        const DRAWS: usize = 12;
        let gradient =
            |draw: usize, k: usize| ((draw * 31 + k * 7) as f64 * 0.618).sin() * 10f64.powi(k as i32 - 4);
        let comms = crate::comm::local_group(size);
        std::thread::scope(|scope| {
            let run = |comm: Box<dyn crate::comm::Communicator>| {
                let rank = comm.rank();
                let mut team = Team::new(comm);
                let blocks = exact.then(|| vec![0..3, 3..8]);
                let mut sum = GradientSum::new(8, DRAWS / size, blocks);
                for k in 0..DRAWS / size {
                    let draw = k * size + rank;
                    for (p, x) in sum.place(k).iter_mut().enumerate() {
                        *x = gradient(draw, p);
                    }
                    sum.add(k);
                }
                let total = sum.over_ranks(&mut team, rank == size - 1).unwrap();
                assert!(total.stop, "one rank's wish is everyone's");
                let mean: Vec<f64> = total.sum.iter().map(|x| x / total.count).collect();
                team.part(Ok(())).unwrap();
                mean
            };
            let handles: Vec<_> = comms.into_iter().map(|comm| scope.spawn(move || run(comm))).collect();
            handles.into_iter().map(|h| h.join().unwrap()).collect()
        })
    }

    #[test]
    fn the_mean_over_ranks_is_the_mean_over_draws() {
        let one = &mean_over(1, false)[0];
        for size in [2, 3, 4] {
            for mean in mean_over(size, false) {
                for (a, b) in mean.iter().zip(one) {
                    assert!((a - b).abs() <= 1e-14 * b.abs().max(1e-4), "{size} ranks: {a} {b}");
                }
            }
        }
    }

    #[test]
    fn exact_sums_have_the_same_bits_for_every_number_of_ranks() {
        let one = &mean_over(1, true)[0];
        let plain = &mean_over(1, false)[0];
        for (a, b) in one.iter().zip(plain) {
            assert!((a - b).abs() <= 1e-12 * b.abs().max(1e-6), "{a} {b}");
        }
        for size in [2, 3, 4, 6] {
            for mean in mean_over(size, true) {
                assert_eq!(&mean, one, "{size} ranks");
            }
        }
    }
}
