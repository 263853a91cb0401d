//! LKF: an extended Kalman filter whose covariance is kept in blocks.
//!
//! From an error e and the gradient h of what was observed, with one covariance P for each block of parameters:
//! a = 1 / sum (lambda + h P h); k = P h; w += a e k; P <- (P - a k k^T) / lambda; lambda <- nu lambda + 1 - nu.
//! A batch gives one such update by its energies and four by forces of atoms chosen at random.
//!
//! Ranks share out the blocks. Errors and gradients are those of the whole batch of all ranks, so that N ranks do what one rank
//! with N times the batch does. Only one half of a covariance is kept, as it is symmetric.

use super::{
    ByObservations, Entry, Gradient, Optimizer, OptimizerChoice, OptimizerOptions, Share, Target, Update,
    restored, share_out,
};
use crate::checkpoint::{Array, Arrays, f64s_of};
use crate::comm::Communicator;
use crate::comm::vectors::gather_slices;
use crate::config::{Key, Kind, Section, Variant};
use crate::engine::cpu::pool::{Parts, Pool};
use crate::engine::cpu::real::Real;
use crate::engine::cpu::simd::multiversion;
use crate::err;
use crate::error::Result;
use crate::loss::observation::Observation;
use crate::model::params::ParamTable;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::ops::Range;

/// The filter on the list of optimisers.
pub const LKF: Entry = Entry::new(
    Variant::of(
        "LKF",
        KEYS,
        "Kalman filter by blocks of parameters. It looks at energies and forces itself: learning rate and \
         prefactors of the loss change what is displayed, not what is learned",
    ),
    |section| Ok(OptimizerChoice::new(KalmanOptions::resolve(section))),
);

const KEYS: &[Key] = &[
    Key::new("kf_blocksize", Kind::AT_LEAST_ONE).default("5120").doc(
        "Parameters that share a covariance, at most. Memory, and time, are 4 bytes times their square for each block.",
    ),
    Key::new("kf_start_pref_e", Kind::POSITIVE)
        .default("1.0")
        .doc("What errors of the energy are multiplied by at the start of the run."),
    Key::new("kf_limit_pref_e", Kind::POSITIVE).default("1.0").doc("The same at its end."),
    Key::new("kf_start_pref_f", Kind::POSITIVE)
        .default("1.0")
        .doc("What errors of forces are multiplied by at the start of the run."),
    Key::new("kf_limit_pref_f", Kind::POSITIVE).default("1.0").doc("The same at its end."),
];

/// What a [`Kalman`] does.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct KalmanOptions {
    pub block_size: usize,
    /// Prefactors of energy and force at the start and at the end.
    pub energy: [f64; 2],
    pub force: [f64; 2],
}

impl KalmanOptions {
    fn resolve(section: &Section) -> Self {
        KalmanOptions {
            block_size: section.int("kf_blocksize"),
            energy: [section.float("kf_start_pref_e"), section.float("kf_limit_pref_e")],
            force: [section.float("kf_start_pref_f"), section.float("kf_limit_pref_f")],
        }
    }
}

impl OptimizerOptions for KalmanOptions {
    fn build(&self, target: &Target) -> Result<Box<dyn Optimizer>> {
        Ok(Box::new(Kalman::new(*self, target)?))
    }
}

/// How fast the past is forgotten, and how fast that ends.
const LAMBDA: f64 = 0.98;
const NU: f64 = 0.9987;
/// Force updates of a batch, and the atoms of each.
const GROUPS: usize = 4;
pub const ATOMS: usize = 6;
/// Rows of a covariance that are one task.
const STRIP: usize = 64;

/// What its arrays are called in a checkpoint.
const COVARIANCE: &str = "kalman_covariance";
const FORGETTING: &str = "kalman_lambda";

/// Parameters that share a covariance.
#[derive(Debug, Clone, PartialEq)]
pub struct Block {
    /// Places in the order of blocks.
    pub places: Range<usize>,
    /// Where its covariance lies among all of them. Empty where nothing in it is trained.
    pub covariance: Range<usize>,
}

/// The blocks, and the parameter at each place of their order.
#[derive(Debug, Clone, PartialEq)]
pub struct Layout {
    blocks: Vec<Block>,
    pub order: Vec<usize>,
}

impl Layout {
    /// Whole tensors one after the other while they fit; a tensor that is larger than a block is cut, column after column.
    fn new(table: &ParamTable, block_size: usize) -> Self {
        let mut sizes: Vec<(usize, bool)> = Vec::new();
        let (mut gathered, mut trained) = (0, false);
        for view in table.views() {
            if gathered + view.len() > block_size && gathered > 0 {
                sizes.push((gathered, trained));
                (gathered, trained) = (0, false);
            }
            gathered += view.len();
            trained |= view.trainable;
        }
        sizes.push((gathered, trained));
        let mut blocks = Vec::new();
        let (mut place, mut covariance) = (0, 0);
        for (size, trained) in sizes {
            let end = place + size;
            while place < end {
                let n = block_size.min(end - place);
                let numbers = if trained { n * (n + 1) / 2 } else { 0 };
                blocks.push(Block { places: place..place + n, covariance: covariance..covariance + numbers });
                (place, covariance) = (place + n, covariance + numbers);
            }
        }
        Layout { blocks, order: column_by_column(table) }
    }

    pub fn n_covariance(&self) -> usize {
        self.blocks.last().map_or(0, |block| block.covariance.end)
    }
}

/// The flat index of every parameter, tensor after tensor, matrices by columns.
fn column_by_column(table: &ParamTable) -> Vec<usize> {
    let mut order = Vec::with_capacity(table.len());
    for view in table.views() {
        let cols = if view.shape.len() > 1 { view.shape[view.shape.len() - 1] } else { 1 };
        let rows = view.len() / cols.max(1);
        order.extend((0..cols).flat_map(|k| (0..rows).map(move |i| view.offset + i * cols + k)));
    }
    order
}

/// What a filter knows beside its covariances, wherever these are.
pub struct Filter {
    options: KalmanOptions,
    pub layout: Layout,
    /// The blocks of this rank.
    mine: Range<usize>,
    pub lambda: f64,
    /// One number for each block.
    sums: Vec<f64>,
    seed: u64,
    rank: usize,
    size: usize,
}

impl Filter {
    pub fn new(options: KalmanOptions, target: &Target) -> Filter {
        let layout = Layout::new(target.table, options.block_size);
        let costs: Vec<f64> = layout.blocks.iter().map(|b| b.covariance.len() as f64).collect();
        Filter {
            options,
            mine: share_out(&costs, target.size)[target.rank].clone(),
            lambda: LAMBDA,
            sums: vec![0.0; layout.blocks.len()],
            seed: target.seed,
            rank: target.rank,
            size: target.size,
            layout,
        }
    }

    fn own(&self) -> &[Block] {
        &self.layout.blocks[self.mine.clone()]
    }

    /// The blocks of this rank that have a covariance.
    pub fn trained(&self) -> impl Iterator<Item = &Block> {
        self.own().iter().filter(|block| !block.covariance.is_empty())
    }

    /// Where this rank's covariances lie among all.
    pub fn own_covariance(&self) -> Range<usize> {
        match (self.own().first(), self.own().last()) {
            (Some(first), Some(last)) => first.covariance.start..last.covariance.end,
            _ => 0..0,
        }
    }

    /// The places of this rank's blocks.
    pub fn own_places(&self) -> Range<usize> {
        match (self.own().first(), self.own().last()) {
            (Some(first), Some(last)) => first.places.start..last.places.end,
            _ => 0..0,
        }
    }

    /// Says how much memory the covariances take, before it is taken, and refuses what does not fit. `own` bytes of them are on
    /// the host.
    pub fn announce(&self, own: u64) -> Result<()> {
        let total = 8 * self.layout.n_covariance() as u64;
        log::info!(
            "LKF: {} parameters in {} blocks; covariances of {}, {} of them on this rank; a checkpoint holds them all",
            self.layout.order.len(),
            self.layout.blocks.len(),
            size(total),
            size(8 * self.own_covariance().len() as u64)
        );
        // Whoever saves has its own, all of them for the checkpoint, and those of the last one, which may still be on its way.
        let what = "the covariances of LKF and what saving them takes";
        check_fits(what, own + 2 * total, available(), "memory", self.size)
    }

    /// What is observed, one after the other, in a step of a run of `num_steps`.
    pub fn observations(&self, step: u64, num_steps: u64) -> Vec<Observation> {
        let progress = step as f64 / num_steps.max(1) as f64;
        let prefactor = |[start, limit]: [f64; 2]| start * (limit / start).powf(progress);
        // The atoms of a step follow from the seed and its number alone.
        let mut rng = ChaCha8Rng::seed_from_u64(self.seed);
        rng.set_word_pos(u128::from(step) * 2 * (GROUPS * ATOMS) as u128);
        let mut place = || (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
        let force = |_| Observation::Force {
            prefactor: prefactor(self.options.force),
            atoms: (0..ATOMS).map(|_| place()).collect(),
        };
        let energy = Observation::Energy { prefactor: prefactor(self.options.energy) };
        std::iter::once(energy).chain((0..GROUPS).map(force)).collect()
    }

    /// a of an update, from h P h of [`Filter::trained`].
    pub fn scale(&mut self, products: &[f64], ranks: &mut dyn Communicator) -> Result<f64> {
        self.sums.fill(0.0);
        let mut products = products.iter();
        for (b, block) in self.layout.blocks.iter().enumerate() {
            if block.covariance.is_empty() {
                self.sums[b] = if self.rank == 0 { self.lambda } else { 0.0 };
            } else if self.mine.contains(&b) {
                self.sums[b] = self.lambda + products.next().expect("there is one for each block");
            }
        }
        // One author for each block, the others add 0: the same bits for every number of ranks.
        ranks.all_reduce_sum_f64(&mut self.sums)?;
        Ok(1.0 / self.sums.iter().sum::<f64>())
    }

    /// What is known counts more from update to update.
    pub fn forget(&mut self) {
        self.lambda = NU * self.lambda + 1.0 - NU;
    }

    /// What a checkpoint holds, whole on every rank; `all` has this rank's covariances where they lie.
    pub fn save(&self, mut all: Vec<f64>, ranks: &mut dyn Communicator) -> Result<Arrays> {
        gather_slices(ranks, &mut all, self.own_covariance())?;
        Ok(vec![
            (COVARIANCE.to_string(), Array::F64(all)),
            (FORGETTING.to_string(), Array::F64(vec![self.lambda])),
        ])
    }

    /// Continues with what was saved; this rank's covariances.
    pub fn restore<'a>(&mut self, arrays: &'a Arrays) -> Result<&'a [f64]> {
        let all = f64s_of(arrays, COVARIANCE)?;
        if all.len() != self.layout.n_covariance() {
            let wanted = self.layout.n_covariance();
            return Err(err!("found {} numbers in {COVARIANCE}, wanted {wanted}", all.len())
                .help("the run was begun with another optimizer.kf_blocksize or another network"));
        }
        restored(arrays, FORGETTING, std::slice::from_mut(&mut self.lambda))?;
        Ok(&all[self.own_covariance()])
    }
}

/// The filter with its covariances on the CPU.
pub struct Kalman {
    filter: Filter,
    /// Those of this rank: rows of the lower half.
    covariance: Vec<f64>,
    /// In the order of blocks: the gradient, and the covariance times the gradient.
    h: Vec<f64>,
    gain: Vec<f64>,
    /// h P h of this rank's blocks.
    products: Vec<f64>,
    /// Terms of the gain, one row for each strip.
    terms: Vec<f64>,
    pool: Pool,
}

impl Kalman {
    /// A filter that knows nothing yet.
    pub fn new(options: KalmanOptions, target: &Target) -> Result<Self> {
        let filter = Filter::new(options, target);
        let own = filter.own_covariance().len();
        let largest = filter.own().iter().map(|b| b.places.len()).max().unwrap_or(0);
        filter.announce(8 * own as u64)?;
        let n = filter.layout.order.len();
        let mut kalman = Kalman {
            covariance: vec![0.0; own],
            h: vec![0.0; n],
            gain: vec![0.0; n],
            products: Vec::with_capacity(filter.own().len()),
            terms: vec![0.0; largest.div_ceil(STRIP) * largest],
            pool: target.pool.clone(),
            filter,
        };
        kalman.covariance_is_one();
        Ok(kalman)
    }

    fn covariance_is_one(&mut self) {
        let first = self.filter.own_covariance().start;
        for block in self.filter.trained() {
            let covariance = &mut self.covariance[block.covariance.start - first..];
            (0..block.places.len()).for_each(|i| covariance[i * (i + 1) / 2 + i] = 1.0);
        }
    }

    /// k = P h of this rank's blocks, and h k of each.
    fn make_gains(&mut self) {
        let first = self.filter.own_covariance().start;
        self.products.clear();
        for block in self.filter.trained() {
            let covariance = &self.covariance[block.covariance.start - first..block.covariance.end - first];
            let (h, gain) = (&self.h[block.places.clone()], &mut self.gain[block.places.clone()]);
            multiply(&self.pool, gain, covariance, h, &mut self.terms);
            self.products.push(h.iter().zip(&*gain).map(|(h, k)| h * k).sum());
        }
    }

    /// P <- (P - a k k^T) / lambda
    fn narrow(&mut self, a: f64) {
        let first = self.filter.own_covariance().start;
        let inverse = 1.0 / self.filter.lambda;
        for block in self.filter.trained() {
            let (n, gain) = (block.places.len(), &self.gain[block.places.clone()]);
            let covariance = Parts::new(
                &mut self.covariance[block.covariance.start - first..block.covariance.end - first],
            );
            self.pool.run(n.div_ceil(STRIP), |strip| {
                for i in strip * STRIP..n.min((strip + 1) * STRIP) {
                    // SAFETY: every row belongs to one strip.
                    let row = unsafe { covariance.part(i * (i + 1) / 2, i + 1) };
                    narrow_row(row, gain, a * gain[i], inverse);
                }
            });
        }
    }
}

multiversion! {
    fn narrow_row<T: Real>(row: &mut [T], gain: &[T], factor: T, inverse: T) {
        for (p, k) in row.iter_mut().zip(gain) {
            *p = inverse * (*p - factor * *k);
        }
    }
}

/// out = P h, with the lower half of P by rows.
///
/// A strip of rows makes its part of everything, since a number below the diagonal stands for one above it too; the parts are
/// added up in the order of strips, so that the result does not depend on the threads.
fn multiply(pool: &Pool, out: &mut [f64], covariance: &[f64], h: &[f64], terms: &mut [f64]) {
    let n = h.len();
    let strips = n.div_ceil(STRIP);
    let parts = Parts::new(terms);
    pool.run(strips, |strip| {
        let (first, end) = (strip * STRIP, n.min((strip + 1) * STRIP));
        // SAFETY: one row of terms for each strip.
        let terms = unsafe { parts.part(strip * n, end) };
        terms.fill(0.0);
        for i in first..end {
            let row = &covariance[i * (i + 1) / 2..][..i];
            let dot = row_and_column(&mut terms[..i], row, h, h[i]);
            terms[i] += dot + covariance[i * (i + 1) / 2 + i] * h[i];
        }
    });
    let (terms, out) = (&*terms, Parts::new(out));
    pool.run(strips, |strip| {
        let (first, end) = (strip * STRIP, n.min((strip + 1) * STRIP));
        // SAFETY: one strip for each task.
        let out = unsafe { out.part(first, end - first) };
        out.copy_from_slice(&terms[strip * n + first..strip * n + end]);
        for later in strip + 1..strips {
            out.iter_mut().zip(&terms[later * n + first..]).for_each(|(sum, x)| *sum += x);
        }
    });
}

multiversion! {
    /// Adds a row of P, as a column, times a number to `out`; returns the row times h, in interleaved sums.
    fn row_and_column<T: Real>(out: &mut [T], row: &[T], h: &[T], factor: T) -> T {
        const SUMS: usize = 16;
        let mut sums = [T::ZERO; SUMS];
        for ((out, row), h) in out.chunks_mut(SUMS).zip(row.chunks(SUMS)).zip(h.chunks(SUMS)) {
            for (((sum, out), p), h) in sums.iter_mut().zip(out).zip(row).zip(h) {
                *sum += *p * *h;
                *out += *p * factor;
            }
        }
        sums.into_iter().sum()
    }
}

/// Refuses what takes more bytes than are free in a kind of memory.
pub fn check_fits(what: &str, wanted: u64, free: Option<u64>, memory: &str, ranks: usize) -> Result<()> {
    let Some(free) = free.filter(|free| *free < wanted) else { return Ok(()) };
    let more = if ranks > 1 { "" } else { ", or more ranks on other hosts" };
    Err(err!("optimizer: {what} are {}, and {} of {memory} are free", size(wanted), size(free)).help(format!(
        "take a smaller optimizer.kf_blocksize (half of it is half of the memory), a smaller network{more}; Adam needs none of it"
    )))
}

fn size(bytes: u64) -> String {
    match bytes {
        0..1_000_000 => format!("{:.1} kB", bytes as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} MB", bytes as f64 / 1e6),
        _ => format!("{:.1} GB", bytes as f64 / 1e9),
    }
}

/// Memory that a process may take without others being swapped out; `None` where nobody says.
fn available() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kb| kb * 1024)
}

impl ByObservations for Kalman {
    fn observations(&self, step: u64, num_steps: u64) -> Vec<Observation> {
        self.filter.observations(step, num_steps)
    }

    fn assimilate(
        &mut self,
        params: &mut [f64],
        (mean, count): (&[f64], f64),
        error: f64,
        ranks: &mut dyn Communicator,
    ) -> Result<()> {
        self.h.iter_mut().zip(&self.filter.layout.order).for_each(|(h, &k)| *h = count * mean[k]);
        self.make_gains();
        let a = self.filter.scale(&self.products, ranks)?;
        gather_slices(ranks, &mut self.gain, self.filter.own_places())?;
        for (k, gain) in self.filter.layout.order.iter().zip(&self.gain) {
            params[*k] += a * error * gain;
        }
        self.narrow(a);
        self.filter.forget();
        Ok(())
    }
}

impl Optimizer for Kalman {
    /// A block goes over slices.
    fn share(&self) -> Share {
        Share::Whole
    }

    fn update(
        &mut self,
        _params: &mut [f64],
        _gradient: Gradient,
        _update: &Update,
        _ranks: &mut dyn Communicator,
    ) -> Result<f64> {
        unreachable!("who updates by observations is never given the gradient of a loss")
    }

    fn by_observations(&mut self) -> Option<&mut dyn ByObservations> {
        Some(self)
    }

    fn save(&self, spare: &mut Vec<Vec<f64>>, ranks: &mut dyn Communicator) -> Result<Arrays> {
        let mut all = spare.pop().unwrap_or_default();
        all.clear();
        all.resize(self.filter.layout.n_covariance(), 0.0);
        all[self.filter.own_covariance()].copy_from_slice(&self.covariance);
        self.filter.save(all, ranks)
    }

    fn restore(&mut self, arrays: &Arrays) -> Result<()> {
        let own = self.filter.restore(arrays)?;
        self.covariance.copy_from_slice(own);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::comm::local_group;

    fn table() -> ParamTable {
        let mut table = ParamTable::default();
        for (name, shape, trained) in [
            ("a", &[1, 5][..], true),
            ("b", &[5], true),
            ("c", &[5, 9], true),
            ("d", &[12], false),
            ("e", &[9, 1], true),
        ] {
            table.add(name.into(), shape, trained);
        }
        table
    }

    const OPTIONS: KalmanOptions = KalmanOptions { block_size: 12, energy: [1.0, 2.0], force: [1.0, 1.0] };

    #[test]
    fn tensors_are_gathered_and_large_ones_cut_by_columns() {
        let layout = Layout::new(&table(), 12);
        let sizes: Vec<(usize, usize)> =
            layout.blocks.iter().map(|b| (b.places.len(), b.covariance.len())).collect();
        assert_eq!(sizes, [(10, 55), (12, 78), (12, 78), (12, 78), (9, 45), (12, 0), (9, 45)]);
        assert_eq!(
            layout.order[10..16],
            [10, 19, 28, 37, 46, 11],
            "the second column of c follows its first"
        );
        let mut sorted = layout.order.clone();
        sorted.sort();
        assert!(sorted.into_iter().eq(0..table().len()));
    }

    /// A few updates on so many ranks; each rank's parameters, and the state.
    fn run(size: usize, threads: usize, block_size: usize) -> Vec<(Vec<f64>, Arrays)> {
        let work = |mut comm: Box<dyn Communicator>| {
            let (table, pool) = (table(), Pool::new(threads).unwrap());
            let target = Target { table: &table, pool, single: false, rank: comm.rank(), size, seed: 7 };
            let mut kalman = Kalman::new(KalmanOptions { block_size, ..OPTIONS }, &target).unwrap();
            let n = table.len();
            let mut params = vec![0.5; n];
            for step in 0..5 {
                let gradient = |k: usize| {
                    if table.trained().iter().any(|r| r.contains(&k)) {
                        ((k * (step + 2)) as f64).sin()
                    } else {
                        0.0
                    }
                };
                let h: Vec<f64> = (0..n).map(gradient).collect();
                kalman.assimilate(&mut params, (&h, 3.0), 0.7, &mut *comm).unwrap();
            }
            let state = kalman.save(&mut Vec::new(), &mut *comm).unwrap();
            comm.finish().unwrap();
            (params, state)
        };
        std::thread::scope(|scope| {
            let handles: Vec<_> = local_group(size).into_iter().map(|c| scope.spawn(|| work(c))).collect();
            handles.into_iter().map(|h| h.join().unwrap()).collect()
        })
    }

    #[test]
    fn ranks_and_threads_have_the_bits_of_one() {
        for block_size in [12, 1000] {
            let one = &run(1, 1, block_size)[0];
            for (size, threads) in [(1, 3), (2, 1), (3, 2), (9, 1)] {
                assert!(run(size, threads, block_size).iter().all(|other| other == one), "{size} ranks");
            }
        }
    }

    /// The formulas as they are written above, with whole matrices.
    #[test]
    fn updates_are_those_of_the_filter_written_out() {
        let (n, trained) = (table().len(), table().trained());
        let mut params = vec![0.5; n];
        let mut p = vec![vec![0.0; n]; n];
        (0..n).for_each(|i| p[i][i] = 1.0);
        let mut lambda = LAMBDA;
        for step in 0..5 {
            let h: Vec<f64> = (0..n)
                .map(|k| {
                    if trained.iter().any(|r| r.contains(&k)) {
                        3.0 * ((k * (step + 2)) as f64).sin()
                    } else {
                        0.0
                    }
                })
                .collect();
            let gain: Vec<f64> = p.iter().map(|row| row.iter().zip(&h).map(|(p, h)| p * h).sum()).collect();
            let a = 1.0 / (lambda + gain.iter().zip(&h).map(|(k, h)| k * h).sum::<f64>());
            for i in 0..n {
                params[i] += a * 0.7 * gain[i];
                for j in 0..n {
                    p[i][j] = (p[i][j] - a * gain[i] * gain[j]) / lambda;
                }
            }
            lambda = NU * lambda + 1.0 - NU;
        }
        let found = &run(1, 2, 1000)[0].0;
        for (k, (found, want)) in found.iter().zip(&params).enumerate() {
            assert!((found - want).abs() < 1e-13, "{k}: {found} {want}");
        }
    }

    #[test]
    fn the_atoms_of_a_step_follow_from_seed_and_step_and_prefactors_from_progress() {
        let table = table();
        let make = |seed| {
            let target =
                Target { table: &table, pool: Pool::serial(), single: false, rank: 0, size: 1, seed };
            Kalman::new(OPTIONS, &target).unwrap()
        };
        let (a, b) = (make(1), make(2));
        assert_eq!(a.observations(5, 10), make(1).observations(5, 10));
        assert_ne!(a.observations(5, 10), a.observations(6, 10));
        assert_ne!(a.observations(5, 10), b.observations(5, 10));
        let seen = a.observations(5, 10);
        assert_eq!(seen.len(), 1 + GROUPS);
        assert_eq!(seen[0], Observation::Energy { prefactor: 2f64.powf(0.5) });
    }

    #[test]
    fn what_does_not_fit_is_refused_with_what_to_change() {
        let check = |wanted, free| check_fits("covariances", wanted, free, "memory", 1);
        assert!(check(10, Some(10)).is_ok() && check(10, None).is_ok());
        let e = check(41_000_000_000, Some(8_000_000_000)).unwrap_err();
        assert!(e.message().contains("41.0 GB") && e.message().contains("8.0 GB"), "{e}");
        assert!(e.advice().unwrap().contains("kf_blocksize"), "{e}");
    }
}
