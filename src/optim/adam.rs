//! Adam and AdamW on the flat vector of parameters.

use super::gradient::by_cell;
use super::moments::{self, MomentParts, Moments};
use super::{
    ByParts, ByPieces, Entry, Gradient, Optimizer, OptimizerChoice, OptimizerOptions, Share, Target, Update,
};
use crate::checkpoint::Arrays;
use crate::comm::Communicator;
use crate::config::{Key, Kind, Section, Variant};
use crate::engine::cpu::pool::{Parts, Pool};
use crate::engine::cpu::real::Real;
use crate::engine::cpu::simd::{multiversion, prefetch_to_write};
use crate::engine::{Piece, Take};
use crate::error::Result;
use std::marker::PhantomData;
use std::ops::Range;

/// Adam and AdamW on the list of optimisers.
pub const ADAM: Entry =
    Entry::new(Variant::of("Adam", KEYS, "Adam; weight decay is added to the gradient"), |section| {
        Ok(OptimizerChoice::new(AdamOptions::resolve(section, false)))
    });
pub const ADAM_W: Entry =
    Entry::new(Variant::of("AdamW", KEYS, "Adam with weight decay apart from the gradient"), |section| {
        Ok(OptimizerChoice::new(AdamOptions::resolve(section, true)))
    });

const KEYS: &[Key] = &[
    Key::new("adam_beta1", Kind::float(0.0, true, 1.0, false))
        .default("0.9")
        .doc("Decay of the running mean of the gradient."),
    Key::new("adam_beta2", Kind::float(0.0, true, 1.0, false))
        .default("0.999")
        .doc("Decay of the running mean of the squared gradient."),
    Key::new("weight_decay", Kind::NOT_NEGATIVE)
        .default("0.0")
        .doc("How strongly parameters are drawn to zero."),
];

/// What an [`Adam`] does.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamOptions {
    pub beta1: f64,
    pub beta2: f64,
    pub weight_decay: f64,
    /// AdamW: the decay is taken off the parameters themselves, instead of being added to the gradient.
    pub decoupled: bool,
}

impl AdamOptions {
    fn resolve(section: &Section, decoupled: bool) -> Self {
        AdamOptions {
            beta1: section.float("adam_beta1"),
            beta2: section.float("adam_beta2"),
            weight_decay: section.float("weight_decay"),
            decoupled,
        }
    }
}

impl OptimizerOptions for AdamOptions {
    fn build(&self, target: &Target) -> Result<Box<dyn Optimizer>> {
        let trained = target.table.trained();
        let adam = Adam::new(*self, trained, target.table.len()).on(target.pool.clone());
        Ok(Box::new(adam.in_single(target.single)))
    }
}

/// Guards the division by the root of the second moment.
const EPSILON: f64 = 1e-8;
/// Parameters between two requests for memory.
const BLOCK: usize = 128;

/// The optimiser with its moments.
#[derive(Clone)]
pub struct Adam {
    options: AdamOptions,
    /// Ranges of the flat vector that are trained, by the cell that they lie in.
    cells: Vec<Vec<(usize, Range<usize>)>>,
    trained: Vec<Range<usize>>,
    /// Where steps leave parts of the parameters alone.
    turns: Option<Turns>,
    moments: Moments,
    pool: Pool,
    /// Sum of squares of the gradient in each cell, so that small elements are not lost beside a large running sum. 0 in cells of
    /// others: added up over ranks they have the same bits for every number of ranks, because all but one of the terms are 0.
    squares: Vec<f64>,
}

/// Parts of the parameters with steps of their own.
#[derive(Clone, Default)]
struct Turns {
    /// The part of each trained range.
    part_of: Vec<usize>,
    /// Updates of each part so far; `None`: it is left alone.
    done: Vec<Option<u64>>,
}

/// The rule of each trained range.
enum Rules<'a> {
    Alike(Rule),
    /// By part; ranges of a part without one are left alone.
    OfParts {
        part_of: &'a [usize],
        rules: Vec<Option<Rule>>,
    },
}

impl Rules<'_> {
    fn of(&self, range: usize) -> Option<Rule> {
        match self {
            Rules::Alike(rule) => Some(*rule),
            Rules::OfParts { part_of, rules } => rules[part_of[range]],
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

impl Adam {
    /// An optimiser that has seen no gradient yet.
    pub fn new(options: AdamOptions, trained: Vec<Range<usize>>, n_params: usize) -> Self {
        let cells = by_cell(&trained, n_params);
        Adam {
            options,
            squares: vec![0.0; cells.len()],
            cells,
            trained,
            turns: None,
            moments: Moments::zeros(n_params, false),
            pool: Pool::serial(),
        }
    }

    /// The same with moments in float32: see [`Moments::zeros`]. Forgets what it has seen.
    pub fn in_single(mut self, yes: bool) -> Self {
        self.moments = Moments::zeros(self.moments.len(), yes);
        self
    }

    /// The same on these threads. The numbers do not depend on how many there are.
    pub fn on(mut self, pool: Pool) -> Self {
        self.pool = pool;
        self
    }

    /// One update of all parameters with a gradient as it is; `step` counts from 0.
    pub fn step(&mut self, params: &mut [f64], grad: &[f64], lr: f64, step: u64) {
        self.descend(params, Gradient::of(grad), Rule::new(&self.options, lr, step), false);
    }

    /// One update, by sums of gradients times the factor of the rule. Where `measures`, the squares of the sums are kept.
    fn descend(&mut self, params: &mut [f64], mut gradient: Gradient, rule: Rule, measures: bool) {
        if measures {
            self.squares.fill(0.0);
        }
        let rules = match &self.turns {
            None => Rules::Alike(rule),
            Some(Turns { part_of, done }) => {
                let of_part = |step: &Option<u64>| step.map(|step| rule.at(&self.options, step));
                Rules::OfParts { part_of, rules: done.iter().map(of_part).collect() }
            }
        };
        let (params, moments, squares) =
            (Parts::new(params), self.moments.parts(), Parts::new(&mut self.squares));
        let trained = &self.cells;
        gradient.for_each_cell(&self.pool, |k, cell, sum| {
            if measures {
                // SAFETY: one element for each task.
                unsafe { squares.part(k, 1)[0] = square_sum(sum) };
            }
            for (number, Range { start, end }) in &trained[k] {
                let Some(rule) = rules.of(*number) else { continue };
                let sum = &sum[start - cell.start..end - cell.start];
                // SAFETY: cells are disjoint.
                unsafe { moments.update(params.part(*start, end - start), *start, sum, rule) };
            }
        });
    }

    /// Keeps the squares of the sums, cell by cell.
    fn measure(&mut self, gradient: &mut Gradient) {
        self.squares.fill(0.0);
        let squares = Parts::new(&mut self.squares);
        gradient.for_each_cell(&self.pool, |k, _, sum| {
            // SAFETY: one element for each task.
            unsafe { squares.part(k, 1)[0] = square_sum(sum) };
        });
    }

    /// The norm of the sum of gradients, from the squares of all ranks.
    fn norm(&mut self, ranks: &mut dyn Communicator) -> Result<f64> {
        ranks.all_reduce_sum_f64(&mut self.squares)?;
        Ok(self.squares.iter().sum::<f64>().sqrt())
    }

    /// Whether every parameter is trained.
    fn trains_all(&self) -> bool {
        self.cells.iter().flatten().map(|(_, range)| range.len()).sum::<usize>() == self.moments.len()
    }

    /// The update with a single gradient as it is, piece by piece.
    ///
    /// # Safety
    /// No two pieces that are taken may overlap.
    pub unsafe fn pieces<'a>(&'a mut self, params: &'a mut [f64], rate: f64, step: u64) -> Pieces<'a> {
        assert_eq!(params.len(), self.moments.len(), "moments for every parameter");
        let rule = Rule::new(&self.options, rate, step);
        let (params, moments) = (Parts::new(params), self.moments.parts());
        Pieces { rule, params, moments, borrowed: PhantomData }
    }
}

impl Optimizer for Adam {
    /// It goes element by element: each rank has its slice.
    fn share(&self) -> Share {
        Share::Slice
    }

    fn update(
        &mut self,
        params: &mut [f64],
        mut gradient: Gradient,
        update: &Update,
        ranks: &mut dyn Communicator,
    ) -> Result<f64> {
        let count = gradient.count();
        let mut rule = Rule { factor: 1.0 / count, ..Rule::new(&self.options, update.rate, update.step) };
        if update.max_norm > 0.0 {
            self.measure(&mut gradient);
            let norm = rule.factor * self.norm(ranks)?;
            // 1e-6 as in PyTorch, so that runs with clipping agree too.
            rule.factor *= (update.max_norm / (norm + 1e-6)).min(1.0);
            self.descend(params, gradient, rule, false);
            return Ok(norm);
        }
        self.descend(params, gradient, rule, update.wants_norm);
        Ok(if update.wants_norm { rule.factor * self.norm(ranks)? } else { f64::NAN })
    }

    fn by_parts(&mut self) -> Option<&mut dyn ByParts> {
        Some(self)
    }

    fn by_pieces(&mut self) -> Option<&mut dyn ByPieces> {
        if self.trains_all() { Some(self) } else { None }
    }

    fn save(&self, spare: &mut Vec<Vec<f64>>, ranks: &mut dyn Communicator) -> Result<Arrays> {
        Ok(moments::named(self.moments.save_slices(spare, ranks)?))
    }

    fn restore(&mut self, arrays: &Arrays) -> Result<()> {
        self.moments.restore(arrays)
    }
}

impl ByPieces for Adam {
    unsafe fn update(&mut self, params: &mut [f64], update: &Update, give: &mut dyn FnMut(&dyn Take)) {
        // SAFETY: the caller's promise.
        give(&unsafe { self.pieces(params, update.rate, update.step) });
    }
}

/// An update that is done piece by piece: see [`Adam::pieces`].
pub struct Pieces<'a> {
    rule: Rule,
    params: Parts<f64>,
    moments: MomentParts,
    borrowed: PhantomData<&'a mut f64>,
}

impl Take for Pieces<'_> {
    fn take(&self, first: usize, piece: Piece) {
        // SAFETY: pieces are disjoint by the promise to `pieces`.
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

impl ByParts for Adam {
    fn set_parts(&mut self, parts: &[Range<usize>]) {
        let part = |range: &Range<usize>| {
            let part = parts.iter().position(|part| part.contains(&range.start) && range.end <= part.end);
            part.expect("all parameters lie in one part")
        };
        let part_of = self.trained.iter().map(part).collect();
        self.turns = Some(Turns { part_of, done: vec![None; parts.len()] });
    }

    fn set_turn(&mut self, done: &[Option<u64>]) {
        let turns = self.turns.as_mut().expect("the parts were set before their turns");
        turns.done.copy_from_slice(done);
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
    /// The learning rate itself.
    lr: f64,
}

impl Rule {
    /// The update of a step, which counts from 0, by the gradient as it is.
    pub fn new(options: &AdamOptions, lr: f64, step: u64) -> Self {
        let AdamOptions { beta1, beta2, weight_decay, decoupled } = *options;
        let t = (step + 1) as f64;
        Rule {
            factor: 1.0,
            beta1,
            beta2,
            rate: lr / (1.0 - beta1.powf(t)),
            correction: 1.0 / (1.0 - beta2.powf(t)).sqrt(),
            shrink: if decoupled { lr * weight_decay } else { 0.0 },
            pull: if decoupled { 0.0 } else { weight_decay },
            lr,
        }
    }

    /// The same after another number of steps.
    fn at(&self, options: &AdamOptions, step: u64) -> Self {
        Rule { factor: self.factor, ..Rule::new(options, self.lr, step) }
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
                prefetch_to_write(copy.as_ptr().wrapping_add(end + k));
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
    use crate::comm::vectors::{CELL, Sums};
    use crate::comm::{Communicator, local_group};

    fn options(weight_decay: f64) -> AdamOptions {
        AdamOptions { beta1: 0.9, beta2: 0.999, weight_decay, decoupled: false }
    }

    fn alone() -> Box<dyn Communicator> {
        local_group(1).remove(0)
    }

    #[test]
    fn the_first_step_moves_every_trained_parameter_by_the_learning_rate() {
        let mut adam = Adam::new(options(0.0), vec![0..2, 3..4], 4);
        let mut params = vec![1.0; 4];
        adam.step(&mut params, &[3.0, -0.2, 5.0, 1e-3], 0.1, 0);
        for (p, want) in params.iter().zip([0.9, 1.1, 1.0, 0.9]) {
            assert!((p - want).abs() < 1e-4, "{p} {want}");
        }
    }

    #[test]
    fn slices_are_updated_to_the_bit_as_the_whole_and_so_are_their_squares() {
        let n = 3 * CELL + 17;
        let run = |slices: &[Range<usize>], threads: usize, measures_first: bool| {
            let mut adam =
                Adam::new(options(0.01), vec![0..CELL + 5, CELL + 9..n], n).on(Pool::new(threads).unwrap());
            let mut params: Vec<f64> = (0..n).map(|k| (k as f64 * 0.3).cos()).collect();
            let sum: Vec<f64> = (0..n).map(|k| 4.0 * (k as f64 * 0.7).sin()).collect();
            let mut squares = vec![0.0; n.div_ceil(CELL)];
            for slice in slices {
                // SAFETY: the slices do not overlap.
                let mut gradient = unsafe { Gradient::of_slice(Sums::of(&sum), slice.clone(), 4.0) };
                let rule = Rule { factor: 1.0 / gradient.count(), ..Rule::new(&adam.options, 1e-2, 0) };
                if measures_first {
                    adam.measure(&mut gradient);
                }
                adam.descend(&mut params, gradient, rule, !measures_first);
                squares.iter_mut().zip(&adam.squares).for_each(|(sum, x)| *sum += *x);
            }
            (params, squares)
        };
        let whole = run(&[0..n, n..n], 1, false);
        let want: f64 = (0..n).map(|k| 16.0 * (k as f64 * 0.7).sin().powi(2)).sum();
        assert!((whole.1.iter().sum::<f64>() - want).abs() < 1e-10 * want);
        for slices in [vec![0..CELL, CELL..n], vec![0..0, 0..2 * CELL, 2 * CELL..3 * CELL, 3 * CELL..n, n..n]]
        {
            for (threads, measures_first) in [(1, false), (2, true)] {
                assert!(run(&slices, threads, measures_first) == whole, "{slices:?}");
            }
        }
    }

    #[test]
    fn a_gradient_is_scaled_down_to_the_largest_norm() {
        let n = 3 * CELL + 17;
        let plain = AdamOptions { beta1: 0.0, beta2: 0.0, ..options(0.0) };
        let grad: Vec<f64> = (0..n).map(|k| (k as f64 * 0.7).sin()).collect();
        let norm = grad.iter().map(|x| x * x).sum::<f64>().sqrt();
        let first_moment = |max_norm: f64| {
            let mut adam = Adam::new(plain, std::iter::once(0..n).collect(), n);
            let update = Update { step: 0, rate: 1e-3, max_norm, wants_norm: true };
            let params = &mut vec![0.0; n];
            let found =
                Optimizer::update(&mut adam, params, Gradient::of(&grad), &update, &mut *alone()).unwrap();
            assert!((found / norm - 1.0).abs() < 1e-12, "the norm before it is scaled down");
            adam.moments.save(&mut Vec::new())[0].clone()
        };
        let (free, bound) = (first_moment(0.0), first_moment(norm / 2.0));
        assert_eq!(free, first_moment(2.0 * norm), "a norm below the limit changes nothing");
        for (k, (a, b)) in free.iter().zip(&bound).enumerate() {
            assert!((a - grad[k]).abs() < 1e-15 && (b - a / 2.0).abs() < 1e-7, "{k}: {a} {b}");
        }
    }

    #[test]
    fn decoupled_decay_shrinks_parameters_without_a_gradient() {
        let options = AdamOptions { decoupled: true, ..options(0.5) };
        let mut adam = Adam::new(options, std::iter::once(0..1).collect(), 1);
        let mut params = vec![2.0];
        adam.step(&mut params, &[0.0], 0.1, 0);
        assert!((params[0] - 1.9).abs() < 1e-15);
    }

    /// Updates 1000 parameters twice, by pieces or at once.
    fn updated(single: bool, by_pieces: bool) -> (Vec<f64>, Arrays) {
        let n = 1000;
        let mut adam = Adam::new(options(0.01), std::iter::once(0..n).collect(), n).in_single(single);
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
            let pieces = unsafe { adam.pieces(&mut params, 1e-2, step) };
            for first in (0..n).step_by(150) {
                let piece = first..n.min(first + 150);
                pieces.take(first, Piece::Single { grad: &grad[piece.clone()], copy: &mut copy[piece] });
            }
        }
        if by_pieces {
            assert!(params.iter().zip(&copy).all(|(p, copy)| *p as f32 == *copy), "the copy follows");
        }
        (params, adam.save(&mut Vec::new(), &mut *alone()).unwrap())
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
    fn a_state_that_is_restored_is_the_one_that_was_saved() {
        for single in [false, true] {
            let (params, saved) = updated(single, false);
            let n = params.len();
            let new =
                |n: usize| Adam::new(options(0.0), std::iter::once(0..n).collect(), n).in_single(single);
            let mut adam = new(n);
            adam.restore(&saved).unwrap();
            let again = adam.save(&mut Vec::new(), &mut *alone()).unwrap();
            assert!(again == saved && again != new(n).save(&mut Vec::new(), &mut *alone()).unwrap());
            let e = new(n + 1).restore(&saved).unwrap_err();
            assert!(e.message().contains("found 1000 numbers in first_moment for 1001 parameters"), "{e}");
            assert!(new(n).restore(&Arrays::new()).unwrap_err().message().contains("no array"));
        }
    }
}
