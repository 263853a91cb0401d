//! Which system and which of its frames: draw d is a function of the seed and d alone.
//!
//! A draw picks a system by its weight, then takes the next batch of that system's current epoch. Where batches mix systems,
//! each of its frames is picked so: a system by its weight, then the next frame of that system's epoch. The number of
//! earlier picks of the system is all the state there is, and it follows from the draws before. So every rank steps
//! through all draws (a few nanoseconds a pick) and works on its own; a restart steps to where it was.

use super::permute::{self, Permutation};
use crate::data::Dataset;
use crate::data::options::Mix;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::sync::Arc;

/// What the draws are for. Each purpose has a sequence of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    Training = 1,
    Validation = 2,
    /// Which branch of a multi-task model learns.
    Branch = 3,
    /// Errors of the branches that do not.
    Display = 4,
}

/// One frame of one system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FrameId {
    pub system: usize,
    pub frame: usize,
}

/// One batch to work on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Draw {
    /// Number of this draw, counted from 0 over all ranks.
    pub number: u64,
    /// Frames of one system: `batch_size` of them, fewer at the end of an epoch. Or, where batches mix systems, so many of any.
    pub frames: Vec<FrameId>,
}

/// What is drawn from: sizes and weights of the systems.
#[derive(Debug)]
pub struct Pool {
    n_frames: Vec<usize>,
    batch_sizes: Vec<usize>,
    picks: Picks,
    table: AliasTable,
}

/// Systems that are picked for a draw, each of which gives the next batch of its epoch.
#[derive(Debug)]
enum Picks {
    One,
    Frames(usize),
    /// As many as have so many atoms together; `[n_systems]` atoms of a frame of each.
    Atoms(usize, Vec<usize>),
}

impl Pool {
    /// - n_frames, batch_sizes, weights  `[n_systems]`; weights need not add up to 1
    pub fn new(n_frames: Vec<usize>, batch_sizes: Vec<usize>, weights: &[f64]) -> Pool {
        assert!(!n_frames.is_empty(), "there must be a system to draw from");
        assert!(
            n_frames.len() == batch_sizes.len() && n_frames.len() == weights.len(),
            "one of each for a system"
        );
        assert!(n_frames.iter().all(|&n| n > 0), "every system holds a frame");
        assert!(batch_sizes.iter().all(|&n| n > 0), "every batch holds a frame");
        Pool { table: AliasTable::new(weights), n_frames, batch_sizes, picks: Picks::One }
    }

    /// Draws of frames, each of a system of its own.
    ///
    /// - n_frames, n_atoms, weights  `[n_systems]`
    pub fn mixing(n_frames: Vec<usize>, n_atoms: Vec<usize>, mix: Mix, weights: &[f64]) -> Pool {
        let singly = vec![1; n_frames.len()];
        let picks = match mix {
            Mix::Frames(frames) => Picks::Frames(frames),
            Mix::Atoms(atoms) => Picks::Atoms(atoms, n_atoms),
        };
        Pool { picks, ..Self::new(n_frames, singly, weights) }
    }

    /// Draws from the systems of a data set.
    pub fn from_dataset(dataset: &Dataset) -> Pool {
        let n_frames = dataset.systems.iter().map(|system| system.n_frames).collect();
        let n_atoms = || dataset.systems.iter().map(|system| system.n_atoms).collect();
        match dataset.mixes {
            Some(mix) => Self::mixing(n_frames, n_atoms(), mix, &dataset.weights),
            None => Self::new(n_frames, dataset.batch_sizes.clone(), &dataset.weights),
        }
    }

    fn n_batches(&self, system: usize) -> u64 {
        self.n_frames[system].div_ceil(self.batch_sizes[system]) as u64
    }
}

/// Steps through the draws.
#[derive(Clone)]
pub struct Sampler {
    pool: Arc<Pool>,
    /// Gives the choice of system: two words for each pick.
    choices: ChaCha8Rng,
    /// Gives the order of an epoch: stream = system, place = epoch.
    orders: ChaCha8Rng,
    next: u64,
    /// `[n_systems]` earlier picks of each system.
    drawn: Vec<u64>,
    /// The system that was picked for the draw before and had too many atoms for it.
    left: Option<usize>,
}

impl Sampler {
    /// Stands at draw 0.
    pub fn new(pool: Arc<Pool>, seed: u64, purpose: Purpose) -> Sampler {
        let drawn = vec![0; pool.n_frames.len()];
        Sampler {
            choices: generator(seed, purpose, 1),
            orders: generator(seed, purpose, 2),
            pool,
            next: 0,
            drawn,
            left: None,
        }
    }

    /// Stands at draw `number`, as if all draws before had been taken.
    pub fn at(pool: Arc<Pool>, seed: u64, purpose: Purpose, number: u64) -> Sampler {
        let mut sampler = Self::new(pool, seed, purpose);
        sampler.skip(number);
        sampler
    }

    /// Number of the next draw.
    pub fn position(&self) -> u64 {
        self.next
    }

    /// Steps over draws without working out their frames: a few nanoseconds each.
    pub fn skip(&mut self, count: u64) {
        let pool = self.pool.clone();
        for _ in 0..count {
            self.pick(&pool, |_, _, _| ());
        }
        self.next += count;
    }

    /// Picks the systems of the next draw: each is `taken` with the number of its earlier picks.
    #[inline]
    fn pick(&mut self, pool: &Pool, mut taken: impl FnMut(&mut Self, usize, u64)) {
        let mut take = |sampler: &mut Self, system: usize| {
            let earlier = sampler.drawn[system];
            sampler.drawn[system] += 1;
            taken(sampler, system, earlier);
        };
        match &pool.picks {
            Picks::One => {
                let system = pool.table.pick(self.choices.next_u64());
                take(self, system);
            }
            Picks::Frames(frames) => {
                for _ in 0..*frames {
                    let system = pool.table.pick(self.choices.next_u64());
                    take(self, system);
                }
            }
            Picks::Atoms(most, n_atoms) => {
                let mut atoms = 0;
                loop {
                    let left = self.left.take();
                    let system = left.unwrap_or_else(|| pool.table.pick(self.choices.next_u64()));
                    if atoms > 0 && atoms + n_atoms[system] > *most {
                        self.left = Some(system);
                        return;
                    }
                    atoms += n_atoms[system];
                    take(self, system);
                }
            }
        }
    }

    /// The next draw.
    pub fn draw(&mut self) -> Draw {
        let number = self.next;
        self.next += 1;
        let mut frames = Vec::new();
        self.pick(&self.pool.clone(), |sampler, system, earlier| {
            sampler.add_frames(&mut frames, system, earlier)
        });
        Draw { number, frames }
    }

    /// The next draw of a rank; those of the others among `size` ranks follow before its own next one.
    pub fn draw_of(&mut self, size: u64) -> Draw {
        let draw = self.draw();
        self.skip(size - 1);
        draw
    }

    /// Adds the frames of the `n`-th pick of a system.
    fn add_frames(&mut self, frames: &mut Vec<FrameId>, system: usize, n: u64) {
        let n_batches = self.pool.n_batches(system);
        let (epoch, batch) = (n / n_batches, (n % n_batches) as usize);
        let (n_frames, size) = (self.pool.n_frames[system], self.pool.batch_sizes[system]);
        self.orders.set_stream(system as u64);
        self.orders.set_word_pos(u128::from(epoch) * permute::WORDS);
        let order = Permutation::new(&mut self.orders, n_frames);
        let first = batch * size;
        let positions = first..n_frames.min(first.saturating_add(size));
        frames.extend(positions.map(|position| FrameId { system, frame: order.frame(position) }));
    }
}

/// Which branch of a multi-task model learns in a step: a function of the seed and the step alone.
#[derive(Debug)]
pub struct BranchDraw {
    seed: u64,
    table: AliasTable,
}

impl BranchDraw {
    /// - weights  `[n_branches]`; they need not add up to 1
    pub fn new(seed: u64, weights: &[f64]) -> BranchDraw {
        BranchDraw { seed, table: AliasTable::new(weights) }
    }

    /// The branch of a step, which counts from 0.
    pub fn at(&self, step: u64) -> usize {
        let mut generator = generator(self.seed, Purpose::Branch, 1);
        generator.set_word_pos(2 * u128::from(step));
        self.table.pick(generator.next_u64())
    }
}

/// A counter-based generator for one use: no two uses share numbers.
fn generator(seed: u64, purpose: Purpose, role: u64) -> ChaCha8Rng {
    let mut key = [0; 32];
    key[..8].copy_from_slice(&seed.to_le_bytes());
    key[8..16].copy_from_slice(&(purpose as u64).to_le_bytes());
    key[16..24].copy_from_slice(&role.to_le_bytes());
    ChaCha8Rng::from_seed(key)
}

/// Picks an index by weight in constant time (Walker's alias method, built as Vose does).
#[derive(Debug)]
struct AliasTable {
    /// For each slot: below this the slot itself, from it on the alias.
    slots: Vec<(u64, u32)>,
}

impl AliasTable {
    fn new(weights: &[f64]) -> AliasTable {
        let n = weights.len();
        let sum: f64 = weights.iter().sum();
        assert!(
            sum > 0.0 && sum.is_finite() && weights.iter().all(|&w| w >= 0.0),
            "weights of systems: {sum}"
        );
        let mut share: Vec<f64> = weights.iter().map(|w| w / sum * n as f64).collect();
        let mut slots: Vec<(u64, u32)> = (0..n).map(|i| (u64::MAX, i as u32)).collect();
        let (mut small, mut large): (Vec<usize>, Vec<usize>) = (0..n).partition(|&i| share[i] < 1.0);
        while let (Some(&little), Some(&much)) = (small.last(), large.last()) {
            small.pop();
            slots[little] = ((share[little] * 2f64.powi(64)) as u64, much as u32);
            share[much] -= 1.0 - share[little];
            if share[much] < 1.0 {
                large.pop();
                small.push(much);
            }
        }
        // Rounding may leave a slot without a partner. It keeps itself, unless its weight is zero.
        if let Some(heaviest) = (0..n).max_by(|&a, &b| weights[a].total_cmp(&weights[b])) {
            for i in small.into_iter().filter(|&i| weights[i] == 0.0) {
                slots[i] = (0, heaviest as u32);
            }
        }
        AliasTable { slots }
    }

    /// `random` is uniform over 64 bits: its high part chooses the slot, what remains chooses within it.
    fn pick(&self, random: u64) -> usize {
        let product = u128::from(random) * self.slots.len() as u128;
        let (slot, within) = ((product >> 64) as usize, product as u64);
        let (threshold, alias) = self.slots[slot];
        if within < threshold { slot } else { alias as usize }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(systems: &[(usize, usize, f64)]) -> Arc<Pool> {
        let weights: Vec<f64> = systems.iter().map(|s| s.2).collect();
        let pick = |f: fn(&(usize, usize, f64)) -> usize| systems.iter().map(f).collect();
        Arc::new(Pool::new(pick(|s| s.0), pick(|s| s.1), &weights))
    }

    fn three() -> Arc<Pool> {
        pool(&[(5, 2, 3.0), (1, 4, 1.0), (700, 3, 6.0)])
    }

    fn take(sampler: &mut Sampler, n: usize) -> Vec<Draw> {
        (0..n).map(|_| sampler.draw()).collect()
    }

    #[test]
    fn n_ranks_consume_exactly_the_draws_of_one() {
        let steps = 60;
        for size in 1..=8 {
            let one = take(&mut Sampler::new(three(), 7, Purpose::Training), steps * size);
            let mut all = Vec::new();
            for rank in 0..size {
                let mut sampler = Sampler::at(three(), 7, Purpose::Training, rank as u64);
                for _ in 0..steps {
                    all.push(sampler.draw());
                    sampler.skip(size as u64 - 1);
                }
            }
            all.sort_by_key(|draw| draw.number);
            assert_eq!(all, one, "{size} ranks");
        }
    }

    #[test]
    fn every_frame_comes_once_in_each_epoch_of_its_system() {
        let mut sampler = Sampler::new(three(), 1, Purpose::Training);
        let mut seen: [Vec<usize>; 3] = Default::default();
        for draw in take(&mut sampler, 5000) {
            let system = draw.frames[0].system;
            assert!((1..=[2, 4, 3][system]).contains(&draw.frames.len()));
            assert!(draw.frames.iter().all(|id| id.system == system), "a draw is of one system");
            seen[system].extend(draw.frames.iter().map(|id| id.frame));
        }
        for (frames, n) in seen.iter().zip([5, 1, 700]) {
            assert!(frames.len() > 3 * n, "the test looks at several epochs");
            for epoch in frames.chunks_exact(n) {
                let mut epoch = epoch.to_vec();
                epoch.sort_unstable();
                assert!(epoch.into_iter().eq(0..n));
            }
        }
    }

    #[test]
    fn the_last_batch_of_an_epoch_is_short() {
        let mut sampler = Sampler::new(pool(&[(7, 3, 1.0)]), 3, Purpose::Training);
        let sizes: Vec<usize> = take(&mut sampler, 6).iter().map(|draw| draw.frames.len()).collect();
        assert_eq!(sizes, [3, 3, 1, 3, 3, 1]);
        let mut sampler = Sampler::new(pool(&[(2, usize::MAX, 1.0)]), 3, Purpose::Training);
        assert_eq!(sampler.draw().frames.len(), 2);
    }

    #[test]
    fn fewer_frames_than_ranks_still_gives_every_frame_once() {
        let mut sampler = Sampler::new(pool(&[(3, 1, 1.0)]), 5, Purpose::Training);
        for _ in 0..20 {
            let mut epoch: Vec<usize> =
                take(&mut sampler, 3).into_iter().flat_map(|draw| draw.frames).map(|id| id.frame).collect();
            epoch.sort_unstable();
            assert_eq!(epoch, [0, 1, 2]);
        }
    }

    #[test]
    fn fast_forward_equals_stepping() {
        let mut stepped = Sampler::new(three(), 9, Purpose::Training);
        for number in 0..500 {
            let mut jumped = Sampler::at(three(), 9, Purpose::Training, number);
            assert_eq!(jumped.position(), number);
            assert_eq!(jumped.draw(), stepped.draw());
        }
    }

    #[test]
    fn seed_and_purpose_change_the_order() {
        let first = |seed, purpose| take(&mut Sampler::new(three(), seed, purpose), 50);
        assert_eq!(first(1, Purpose::Training), first(1, Purpose::Training));
        assert_ne!(first(1, Purpose::Training), first(2, Purpose::Training));
        assert_ne!(first(1, Purpose::Training), first(1, Purpose::Validation));
    }

    #[test]
    fn epochs_differ_in_order() {
        let mut sampler = Sampler::new(pool(&[(50, 50, 1.0), (50, 50, 1.0)]), 1, Purpose::Training);
        let draws = take(&mut sampler, 40);
        let order = |draw: &Draw| draw.frames.iter().map(|id| id.frame).collect::<Vec<_>>();
        for (i, a) in draws.iter().enumerate() {
            assert!(draws[..i].iter().all(|b| order(a) != order(b)), "two epochs have the same order");
        }
    }

    #[test]
    fn draws_that_mix_systems_take_every_frame_once_an_epoch_and_systems_by_weight() {
        let (n_frames, weights, size, n_draws) = ([5, 1, 700], [3.0, 1.0, 6.0], 4, 5000);
        let pool = || Arc::new(Pool::mixing(n_frames.to_vec(), vec![9; 3], Mix::Frames(size), &weights));
        let all = take(&mut Sampler::new(pool(), 3, Purpose::Training), n_draws);
        assert!(all.iter().all(|draw| draw.frames.len() == size), "small systems do not make batches small");
        assert!(
            all.iter().filter(|draw| draw.frames.iter().any(|id| id.system != draw.frames[0].system)).count()
                > n_draws / 2
        );
        for (system, (&n, weight)) in n_frames.iter().zip(weights).enumerate() {
            let ids = all.iter().flat_map(|draw| &draw.frames).filter(|id| id.system == system);
            let seen: Vec<usize> = ids.map(|id| id.frame).collect();
            let want = weight / 10.0 * (size * n_draws) as f64;
            assert!((seen.len() as f64 - want).abs() <= 5.0 * want.sqrt(), "{} of about {want}", seen.len());
            for epoch in seen.chunks_exact(n) {
                let mut epoch = epoch.to_vec();
                epoch.sort_unstable();
                assert!(epoch.into_iter().eq(0..n));
            }
        }
        // Ranks share them, and a restart finds its place.
        for number in [1, 2, 77, 4999] {
            assert_eq!(Sampler::at(pool(), 3, Purpose::Training, number).draw(), all[number as usize]);
        }
    }

    #[test]
    fn draws_of_so_many_atoms_leave_no_frame_out() {
        let (n_frames, n_atoms, weights, most) = ([5, 90, 40], [30, 7, 64], [1.0, 18.0, 8.0], 50);
        let pool = || Arc::new(Pool::mixing(n_frames.to_vec(), n_atoms.to_vec(), Mix::Atoms(most), &weights));
        let all = take(&mut Sampler::new(pool(), 3, Purpose::Training), 3000);
        let atoms = |draw: &Draw| draw.frames.iter().map(|id| n_atoms[id.system]).sum::<usize>();
        assert!(all.iter().all(|draw| atoms(draw) <= most || draw.frames.len() == 1));
        for pair in all.windows(2) {
            assert!(
                atoms(&pair[0]) + n_atoms[pair[1].frames[0].system] > most,
                "a draw is as full as can be"
            );
        }
        let frames: Vec<FrameId> = all.iter().flat_map(|draw| draw.frames.clone()).collect();
        let mut singly =
            Sampler::new(Arc::new(Pool::new(n_frames.to_vec(), vec![1; 3], &weights)), 3, Purpose::Training);
        assert!(
            frames.iter().all(|id| *id == singly.draw().frames[0]),
            "the frames are those of single draws"
        );
        for number in [1, 2, 77, 2999] {
            assert_eq!(Sampler::at(pool(), 3, Purpose::Training, number).draw(), all[number as usize]);
        }
    }

    #[test]
    fn systems_are_drawn_by_weight_and_never_with_weight_zero() {
        let weights = [0.0, 1.0, 0.25, 10.0, 0.0, 3.7, 1e-3, 0.0];
        let systems: Vec<_> = weights.iter().map(|&w| (4, 1, w)).collect();
        let mut sampler = Sampler::new(pool(&systems), 11, Purpose::Training);
        let n = 1_000_000;
        sampler.skip(n);
        let sum: f64 = weights.iter().sum();
        for (&found, weight) in sampler.drawn.iter().zip(weights) {
            let want = weight / sum * n as f64;
            assert!((found as f64 - want).abs() <= 5.0 * want.sqrt(), "{found} draws, wanted about {want}");
        }
    }

    #[test]
    fn branches_are_drawn_by_weight_and_as_a_function_of_the_step() {
        let weights = [1.0, 0.0, 3.0];
        let branches = |seed: u64| -> Vec<usize> {
            let draw = BranchDraw::new(seed, &weights);
            (0..20_000).map(|step| draw.at(step)).collect()
        };
        let drawn = branches(5);
        let draw = BranchDraw::new(5, &weights);
        assert!(
            [19_999, 3, 700].into_iter().all(|step| draw.at(step) == drawn[step as usize]),
            "in any order"
        );
        for (branch, want) in [(0, 5_000.0f64), (1, 0.0), (2, 15_000.0)] {
            let found = drawn.iter().filter(|&&b| b == branch).count() as f64;
            assert!((found - want).abs() <= 5.0 * want.sqrt(), "{found} draws, wanted about {want}");
        }
        assert_ne!(drawn, branches(6));
    }

    #[test]
    #[ignore = "a measurement: cargo test --release -- --ignored --nocapture fast_forward_of"]
    fn fast_forward_of_a_hundred_million_draws_takes_seconds() {
        let systems: Vec<_> = (0..20_000).map(|i| (10 + i % 90, 1 + i % 3, 1.0 + i as f64)).collect();
        let start = std::time::Instant::now();
        let mut sampler = Sampler::at(pool(&systems), 1, Purpose::Training, 100_000_000);
        let skip_s = start.elapsed().as_secs_f64();
        let start = std::time::Instant::now();
        let frames: usize = (0..1_000_000).map(|_| sampler.draw().frames.len()).sum();
        let draw_ns = start.elapsed().as_secs_f64() * 1e3;
        println!("1e8 draws skipped in {skip_s:.2} s; {draw_ns:.0} ns a draw ({frames} frames)");
        assert!(skip_s < 20.0);
    }
}
