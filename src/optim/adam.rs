//! Adam and AdamW on the flat vector of parameters.

use super::options::OptimizerOptions;
use crate::comm::vectors::{CELL, Sums};
use crate::engine::cpu::pool::{Parts, Pool};
use crate::engine::cpu::real::Real;
use crate::engine::cpu::simd::{ask_to_write, multiversion};
use crate::engine::{Piece, Take};
use std::ops::Range;

/// Guards the division by the root of the second moment.
const EPSILON: f64 = 1e-8;
/// Parameters between two requests for memory.
const BLOCK: usize = 128;

/// The optimiser with its moments.
#[derive(Clone)]
pub struct Adam {
    options: OptimizerOptions,
    /// Ranges of the flat vector that are trained, by the cell that they lie in. A cell is one task: large enough to outweigh
    /// handing it out, small enough to stay in cache.
    cells: Vec<Vec<Range<usize>>>,
    moments: Moments,
    pool: Pool,
    /// Sum of squares of the gradient in each cell, so that small elements are not lost beside a large running sum.
    squares: Vec<f64>,
}

/// First and second moments of the gradient.
#[derive(Clone)]
enum Moments {
    Double([Vec<f64>; 2]),
    Single([Vec<f32>; 2]),
}

/// The same while they are updated.
enum MomentParts {
    Double([Parts<f64>; 2]),
    Single([Parts<f32>; 2]),
}

impl Moments {
    fn len(&self) -> usize {
        match self {
            Moments::Double([first, _]) => first.len(),
            Moments::Single([first, _]) => first.len(),
        }
    }

    fn parts(&mut self) -> MomentParts {
        match self {
            Moments::Double(moments) => MomentParts::Double(moments.each_mut().map(|x| Parts::new(x))),
            Moments::Single(moments) => MomentParts::Single(moments.each_mut().map(|x| Parts::new(x))),
        }
    }
}

impl MomentParts {
    /// Updates parameters from `first` on.
    ///
    /// # Safety
    /// Nobody else may use these moments meanwhile.
    unsafe fn update<G: Real>(&self, params: &mut [f64], first: usize, grad: &[G], rule: Rule) {
        let n = grad.len();
        // SAFETY: the caller's promise.
        unsafe {
            match self {
                MomentParts::Double([m, v]) => update(params, grad, m.part(first, n), v.part(first, n), rule),
                MomentParts::Single([m, v]) => {
                    update_single(params, grad, m.part(first, n), v.part(first, n), rule)
                }
            }
        }
    }
}

/// What one update is told beside the gradient.
#[derive(Debug, Clone, Copy)]
pub struct Descent {
    /// Learning rate.
    pub rate: f64,
    /// Steps done before this one.
    pub step: u64,
    /// What the gradient is multiplied by: one over the number of gradients that it is the sum of, less where it is too long.
    pub factor: f64,
    /// Whether the sums over ranks are still to be made, and whether their squares are wanted.
    pub adds_up: bool,
    pub squares: bool,
}

impl Descent {
    /// Scales the gradient down to `max_norm`, where it is longer, given the norm of the sum of gradients. Returns that of their
    /// mean.
    pub fn clip(&mut self, norm: f64, max_norm: f64) -> f64 {
        let norm = self.factor * norm;
        // 1e-6 as in PyTorch, so that runs with clipping agree too.
        self.factor *= (max_norm / (norm + 1e-6)).min(1.0);
        norm
    }
}

impl Adam {
    /// An optimiser that has seen no gradient yet.
    pub fn new(options: OptimizerOptions, trainable: Vec<Range<usize>>, n_params: usize) -> Self {
        let n_cells = n_params.div_ceil(CELL);
        let mut cells = vec![Vec::new(); n_cells];
        for range in trainable {
            for k in range.start / CELL..range.end.div_ceil(CELL) {
                cells[k].push(range.start.max(k * CELL)..range.end.min((k + 1) * CELL));
            }
        }
        Adam {
            options,
            squares: vec![0.0; n_cells],
            cells,
            moments: Moments::Double([vec![0.0; n_params], vec![0.0; n_params]]),
            pool: Pool::serial(),
        }
    }

    /// Where gradients have the precision of float32, so have their moments: half the memory goes through the caches in an
    /// update. The parameters stay float64. Forgets what it has seen.
    pub fn in_single(mut self, yes: bool) -> Self {
        let n = self.moments.len();
        self.moments = match yes {
            true => Moments::Single([vec![0.0; n], vec![0.0; n]]),
            false => Moments::Double([vec![0.0; n], vec![0.0; n]]),
        };
        self
    }

    /// Overwrites `first` and `second` with the moments.
    pub fn save_moments(&self, first: &mut Vec<f64>, second: &mut Vec<f64>) {
        for (k, out) in [first, second].into_iter().enumerate() {
            out.clear();
            match &self.moments {
                Moments::Double(moments) => out.extend_from_slice(&moments[k]),
                Moments::Single(moments) => out.extend(moments[k].iter().map(|&x| f64::from(x))),
            }
        }
    }

    /// Continues with moments that were saved.
    pub fn restore_moments(&mut self, first: &[f64], second: &[f64]) {
        for (k, from) in [first, second].into_iter().enumerate() {
            assert_eq!(from.len(), self.moments.len(), "moments for every parameter");
            match &mut self.moments {
                Moments::Double(moments) => moments[k].copy_from_slice(from),
                Moments::Single(moments) => {
                    moments[k].iter_mut().zip(from).for_each(|(out, &x)| *out = x as f32);
                }
            }
        }
    }

    /// The same on these threads. The numbers do not depend on how many there are.
    pub fn on(mut self, pool: Pool) -> Self {
        self.pool = pool;
        self
    }

    /// One update of all parameters with a gradient as it is; `step` counts from 0.
    pub fn step(&mut self, params: &mut [f64], grad: &[f64], lr: f64, step: u64) {
        self.clipped_step(params, grad, lr, step, 0.0);
    }

    /// The same with a gradient that is scaled down to `max_norm`, where it is longer; 0 means never.
    pub fn clipped_step(&mut self, params: &mut [f64], grad: &[f64], lr: f64, step: u64, max_norm: f64) {
        let (sums, all) = (Sums::of(grad), 0..params.len());
        let mut descent = Descent { rate: lr, step, factor: 1.0, adds_up: false, squares: false };
        // SAFETY: nobody else has these sums, and they are complete.
        unsafe {
            if max_norm > 0.0 {
                self.add_up(&sums, all.clone());
                descent.clip(self.norm(), max_norm);
            }
            self.descend(params, &sums, all, &descent);
        }
    }

    /// One update of a slice of the parameters, which ends where cells do, from sums of gradients.
    ///
    /// # Safety
    /// The caller owns this slice of the sums, and has added it up or not as `descent` says.
    pub unsafe fn descend(
        &mut self,
        params: &mut [f64],
        sums: &Sums,
        slice: Range<usize>,
        descent: &Descent,
    ) {
        let rule = Rule { factor: descent.factor, ..Rule::new(&self.options, descent.rate, descent.step) };
        let (params, moments) = (Parts::new(params), self.moments.parts());
        let (n, first, trained) = (params.len(), slice.start / CELL, &self.cells);
        if descent.squares {
            self.squares.fill(0.0);
        }
        let squares = Parts::new(&mut self.squares);
        self.pool.run(cells_of(&slice), |k| {
            let cell = cell(first + k, n);
            // SAFETY: one cell for each task; the rest is the caller's promise.
            let sum =
                if descent.adds_up { unsafe { sums.add_up(cell.clone()) } } else { sums.part(cell.clone()) };
            if descent.squares {
                // SAFETY: one element for each task.
                unsafe { squares.part(first + k, 1)[0] = square_sum(sum) };
            }
            for &Range { start, end } in &trained[first + k] {
                let sum = &sum[start - cell.start..end - cell.start];
                // SAFETY: cells are disjoint.
                unsafe { moments.update(params.part(start, end - start), start, sum, rule) };
            }
        });
    }

    /// Adds up a slice of the sums. Afterwards [`Adam::squares`] has those of the slice.
    ///
    /// # Safety
    /// The caller owns this slice of the sums, and has not added it up yet.
    pub unsafe fn add_up(&mut self, sums: &Sums, slice: Range<usize>) {
        let (n, first) = (self.moments.len(), slice.start / CELL);
        self.squares.fill(0.0);
        let squares = Parts::new(&mut self.squares);
        self.pool.run(cells_of(&slice), |k| {
            // SAFETY: one cell and one element for each task.
            unsafe { squares.part(first + k, 1)[0] = square_sum(sums.add_up(cell(first + k, n))) };
        });
    }

    /// The sums of squares of the last gradient, cell by cell; 0 in cells of others. Added up over ranks they have the same bits
    /// for every number of ranks, because all but one of the terms are 0.
    pub fn squares(&mut self) -> &mut [f64] {
        &mut self.squares
    }

    /// The norm of the sum of gradients, once all have the squares of all.
    pub fn norm(&self) -> f64 {
        self.squares.iter().sum::<f64>().sqrt()
    }

    /// Whether every parameter is trained.
    pub fn trains_all(&self) -> bool {
        self.cells.iter().flatten().map(Range::len).sum::<usize>() == self.moments.len()
    }

    /// The update with a single gradient as it is, piece by piece, each while it is still in the cache of a thread.
    ///
    /// # Safety
    /// No two pieces that are taken may overlap.
    pub unsafe fn by_pieces<'a>(&'a mut self, params: &'a mut [f64], rate: f64, step: u64) -> Pieces<'a> {
        assert_eq!(params.len(), self.moments.len(), "moments for every parameter");
        let rule = Rule::new(&self.options, rate, step);
        let (params, moments) = (Parts::new(params), self.moments.parts());
        Pieces { rule, params, moments, borrowed: std::marker::PhantomData }
    }
}

/// The `k`-th cell of a vector of `n` numbers.
fn cell(k: usize, n: usize) -> Range<usize> {
    k * CELL..n.min((k + 1) * CELL)
}

/// How many cells a slice has. An empty one may begin anywhere.
fn cells_of(slice: &Range<usize>) -> usize {
    slice.end.div_ceil(CELL) - slice.start.div_ceil(CELL)
}

/// An update that is done piece by piece: see [`Adam::by_pieces`].
pub struct Pieces<'a> {
    rule: Rule,
    params: Parts<f64>,
    moments: MomentParts,
    borrowed: std::marker::PhantomData<&'a mut f64>,
}

impl Take for Pieces<'_> {
    fn take(&self, first: usize, piece: Piece) {
        // SAFETY: pieces are disjoint by the promise to `by_pieces`.
        unsafe {
            match (piece, &self.moments) {
                (Piece::Double(grad), moments) => {
                    moments.update(self.params.part(first, grad.len()), first, grad, self.rule);
                }
                (Piece::Single { grad, copy }, MomentParts::Single(moments)) => {
                    let (n, p) = (grad.len(), self.params.part(first, grad.len()));
                    let [m, v] = moments.each_ref().map(|x| x.part(first, n));
                    update_copied(p, copy, grad, m, v, self.rule);
                }
                (Piece::Single { grad, copy }, moments) => {
                    let p = self.params.part(first, grad.len());
                    moments.update(p, first, grad, self.rule);
                    copy.iter_mut().zip(p).for_each(|(copy, p)| *copy = *p as f32);
                }
            }
        }
    }

    fn needs(&self, first: usize) -> [(*const u8, usize); 3] {
        fn place<T>(x: &Parts<T>, first: usize) -> (*const u8, usize) {
            (x.at(first).cast_const().cast(), size_of::<T>())
        }
        let [m, v] = match &self.moments {
            MomentParts::Double(moments) => moments.each_ref().map(|x| place(x, first)),
            MomentParts::Single(moments) => moments.each_ref().map(|x| place(x, first)),
        };
        [place(&self.params, first), m, v]
    }
}

/// The numbers of one update.
#[derive(Clone, Copy)]
pub struct Rule {
    /// What the gradient is multiplied by.
    pub factor: f64,
    pub beta1: f64,
    pub beta2: f64,
    /// The learning rate over what the first moment has seen so far.
    pub rate: f64,
    pub correction: f64,
    /// Decoupled decay (AdamW): taken off the parameter itself.
    pub shrink: f64,
    /// Decay of plain Adam: added to the gradient.
    pub pull: f64,
}

impl Rule {
    /// The update of a step, which counts from 0, by the gradient as it is.
    pub fn new(options: &OptimizerOptions, lr: f64, step: u64) -> Self {
        let (beta1, beta2, weight_decay, decoupled) = match *options {
            OptimizerOptions::Adam { beta1, beta2, weight_decay } => (beta1, beta2, weight_decay, false),
            OptimizerOptions::AdamW { beta1, beta2, weight_decay } => (beta1, beta2, weight_decay, true),
        };
        let t = (step + 1) as f64;
        Rule {
            factor: 1.0,
            beta1,
            beta2,
            rate: lr / (1.0 - beta1.powf(t)),
            correction: 1.0 / (1.0 - beta2.powf(t)).sqrt(),
            shrink: if decoupled { lr * weight_decay } else { 0.0 },
            pull: if decoupled { 0.0 } else { weight_decay },
        }
    }

    /// Updates one parameter and its moments.
    #[inline(always)]
    fn apply(&self, p: &mut f64, g: f64, m: &mut f64, v: &mut f64) {
        *p -= self.shrink * *p;
        let g = self.factor * g + self.pull * *p;
        *m += (1.0 - self.beta1) * (g - *m);
        *v = self.beta2 * *v + (1.0 - self.beta2) * g * g;
        *p -= self.rate * *m / (v.sqrt() * self.correction + EPSILON);
    }

    /// As [`Rule::apply`], with all but the parameter in float32.
    #[inline(always)]
    fn apply_single(&self, p: &mut f64, g: f64, m: &mut f32, v: &mut f32) {
        let [gain1, gain2] = [self.beta1, self.beta2].map(|beta| (1.0 - beta) as f32);
        *p -= self.shrink * *p;
        let g = (self.factor * g + self.pull * *p) as f32;
        *m += gain1 * (g - *m);
        *v = self.beta2 as f32 * *v + gain2 * g * g;
        let root = v.sqrt() * self.correction as f32 + EPSILON as f32;
        *p -= f64::from(self.rate as f32 * *m / root);
    }
}

multiversion! {
    /// One chunk of an update, element by element.
    fn update<G: Real>(params: &mut [f64], grad: &[G], first: &mut [f64], second: &mut [f64], rule: Rule) {
        for ((p, g), (m, v)) in params.iter_mut().zip(grad).zip(first.iter_mut().zip(second)) {
            rule.apply(p, g.to_f64(), m, v);
        }
    }
}

multiversion! {
    /// As [`update`], with moments in float32.
    fn update_single<G: Real>(params: &mut [f64], grad: &[G], first: &mut [f32], second: &mut [f32], rule: Rule) {
        for ((p, g), (m, v)) in params.iter_mut().zip(grad).zip(first.iter_mut().zip(second)) {
            rule.apply_single(p, g.to_f64(), m, v);
        }
    }
}

multiversion! {
    /// As [`update_single`], with a copy of the parameters in the precision of the gradient.
    fn update_copied<G: Real>(params: &mut [f64], copy: &mut [G], grad: &[G], first: &mut [f32], second: &mut [f32], rule: Rule) {
        let n = params.len();
        for start in (0..n).step_by(BLOCK) {
            let end = n.min(start + BLOCK);
            // The copy is only written, which the hardware does not look ahead for.
            for k in (0..BLOCK).step_by(64 / size_of::<G>()) {
                ask_to_write(copy.as_ptr().wrapping_add(end + k));
            }
            let (params, copy, grad) = (&mut params[start..end], &mut copy[start..end], &grad[start..end]);
            let (first, second) = (&mut first[start..end], &mut second[start..end]);
            for k in 0..end - start {
                rule.apply_single(&mut params[k], grad[k].to_f64(), &mut first[k], &mut second[k]);
                copy[k] = G::from_f64(params[k]);
            }
        }
    }
}

multiversion! {
    /// The sum of squares in interleaved sums.
    fn square_sum<T: Real>(x: &[T]) -> f64 {
        const SUMS: usize = 32;
        let mut sums = [0.0; SUMS];
        for x in x.chunks(SUMS) {
            for (sum, x) in sums.iter_mut().zip(x) {
                *sum += x.to_f64() * x.to_f64();
            }
        }
        sums.iter().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_step_moves_every_trained_parameter_by_the_learning_rate() {
        let options = OptimizerOptions::Adam { beta1: 0.9, beta2: 0.999, weight_decay: 0.0 };
        let mut adam = Adam::new(options, vec![0..2, 3..4], 4);
        let mut params = vec![1.0; 4];
        adam.step(&mut params, &[3.0, -0.2, 5.0, 1e-3], 0.1, 0);
        for (p, want) in params.iter().zip([0.9, 1.1, 1.0, 0.9]) {
            assert!((p - want).abs() < 1e-4, "{p} {want}");
        }
    }

    #[test]
    fn slices_are_updated_to_the_bit_as_the_whole_and_so_are_their_squares() {
        let n = 3 * CELL + 17;
        let options = OptimizerOptions::Adam { beta1: 0.9, beta2: 0.999, weight_decay: 0.01 };
        let run = |slices: &[Range<usize>], threads: usize, first_adds_up: bool| {
            let mut adam =
                Adam::new(options.clone(), vec![0..CELL + 5, CELL + 9..n], n).on(Pool::new(threads).unwrap());
            let mut params: Vec<f64> = (0..n).map(|k| (k as f64 * 0.3).cos()).collect();
            let sum: Vec<f64> = (0..n).map(|k| 4.0 * (k as f64 * 0.7).sin()).collect();
            let mut squares = vec![0.0; n.div_ceil(CELL)];
            for slice in slices {
                let sums = Sums::of(&sum);
                let descent = Descent {
                    rate: 1e-2,
                    step: 0,
                    factor: 0.25,
                    adds_up: !first_adds_up,
                    squares: !first_adds_up,
                };
                // SAFETY: the slices do not overlap.
                unsafe {
                    if first_adds_up {
                        adam.add_up(&sums, slice.clone());
                    }
                    adam.descend(&mut params, &sums, slice.clone(), &descent);
                }
                squares.iter_mut().zip(adam.squares()).for_each(|(sum, x)| *sum += *x);
            }
            (params, squares)
        };
        let whole = run(&[0..n, n..n], 1, false);
        let want: f64 = (0..n).map(|k| 16.0 * (k as f64 * 0.7).sin().powi(2)).sum();
        assert!((whole.1.iter().sum::<f64>() - want).abs() < 1e-10 * want);
        for slices in [vec![0..CELL, CELL..n], vec![0..0, 0..2 * CELL, 2 * CELL..3 * CELL, 3 * CELL..n, n..n]]
        {
            for (threads, first_adds_up) in [(1, false), (2, true)] {
                assert!(run(&slices, threads, first_adds_up) == whole, "{slices:?}");
            }
        }
    }

    #[test]
    fn a_gradient_is_scaled_down_to_the_largest_norm() {
        let n = 3 * CELL + 17;
        let options = OptimizerOptions::Adam { beta1: 0.0, beta2: 0.0, weight_decay: 0.0 };
        let grad: Vec<f64> = (0..n).map(|k| (k as f64 * 0.7).sin()).collect();
        let norm = grad.iter().map(|x| x * x).sum::<f64>().sqrt();
        let first_moment = |max_norm: f64| {
            let mut adam = Adam::new(options.clone(), std::iter::once(0..n).collect(), n);
            adam.clipped_step(&mut vec![0.0; n], &grad, 1e-3, 0, max_norm);
            let mut first = Vec::new();
            adam.save_moments(&mut first, &mut Vec::new());
            first
        };
        let (free, bound) = (first_moment(0.0), first_moment(norm / 2.0));
        assert_eq!(free, first_moment(2.0 * norm), "a norm below the limit changes nothing");
        for (k, (a, b)) in free.iter().zip(&bound).enumerate() {
            assert!((a - grad[k]).abs() < 1e-15 && (b - a / 2.0).abs() < 1e-7, "{k}: {a} {b}");
        }
    }

    #[test]
    fn decoupled_decay_shrinks_parameters_without_a_gradient() {
        let options = OptimizerOptions::AdamW { beta1: 0.9, beta2: 0.999, weight_decay: 0.5 };
        let mut adam = Adam::new(options, std::iter::once(0..1).collect(), 1);
        let mut params = vec![2.0];
        adam.step(&mut params, &[0.0], 0.1, 0);
        assert!((params[0] - 1.9).abs() < 1e-15);
    }

    /// Updates 1000 parameters twice, by pieces or at once.
    fn updated(single: bool, by_pieces: bool) -> (Vec<f64>, Vec<f64>, Vec<f64>) {
        let n = 1000;
        let options = OptimizerOptions::Adam { beta1: 0.9, beta2: 0.999, weight_decay: 0.01 };
        let mut adam = Adam::new(options, std::iter::once(0..n).collect(), n).in_single(single);
        let mut params: Vec<f64> = (0..n).map(|k| (k as f64 * 0.3).cos()).collect();
        let grad: Vec<f32> = (0..n).map(|k| (k as f32 * 0.7).sin()).collect();
        let wide: Vec<f64> = grad.iter().map(|&x| f64::from(x)).collect();
        let mut copy = vec![0.0; n];
        for step in 0..2 {
            if !by_pieces {
                adam.step(&mut params, &wide, 1e-2, step);
                continue;
            }
            // SAFETY: the pieces do not overlap.
            let pieces = unsafe { adam.by_pieces(&mut params, 1e-2, step) };
            for first in (0..n).step_by(150) {
                let piece = first..n.min(first + 150);
                pieces.take(first, Piece::Single { grad: &grad[piece.clone()], copy: &mut copy[piece] });
            }
        }
        if by_pieces {
            assert!(params.iter().zip(&copy).all(|(p, copy)| *p as f32 == *copy), "the copy follows");
        }
        let (mut first, mut second) = (Vec::new(), Vec::new());
        adam.save_moments(&mut first, &mut second);
        (params, first, second)
    }

    #[test]
    fn pieces_are_updated_to_the_bit_as_the_whole_in_both_precisions() {
        for single in [false, true] {
            assert!(updated(single, true) == updated(single, false), "single: {single}");
        }
    }

    #[test]
    fn moments_in_single_change_a_parameter_by_no_more_than_float32_rounds_a_step() {
        let (double, single) = (updated(false, false), updated(true, false));
        for (k, (a, b)) in double.0.iter().zip(&single.0).enumerate() {
            assert!((a - b).abs() < 1e-2 * 4.0 * f64::from(f32::EPSILON), "{k}: {a} {b}");
        }
    }

    #[test]
    fn restored_moments_are_those_saved() {
        for single in [false, true] {
            let (_, first, second) = updated(single, false);
            let options = OptimizerOptions::Adam { beta1: 0.9, beta2: 0.999, weight_decay: 0.0 };
            let n = first.len();
            let mut adam = Adam::new(options, std::iter::once(0..n).collect(), n).in_single(single);
            adam.restore_moments(&first, &second);
            let (mut a, mut b) = (Vec::new(), Vec::new());
            adam.save_moments(&mut a, &mut b);
            assert!(a == first && b == second && first.iter().any(|&x| x != 0.0), "single: {single}");
        }
    }
}
