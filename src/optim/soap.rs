//! SOAP: Adam in the directions in which the gradients of a matrix point (Vyas and others, 2024).
//!
//! Of each matrix W `[m, n]` with gradient G there are running means L of G G^T and R of G^T G, and orthogonal matrices Q, S whose
//! columns come close to their eigenvectors: every few steps Q becomes the orthogonal factor of L Q, and S that of R S. Adam runs on
//! Q^T G S: M and V are the running means of G and of the squares of Q^T G S, and W moves along Q (Q^T M S / root of V) S^T. A side
//! that is too long keeps its own directions. What is no matrix moves by Adam alone.
//!
//! The first gradient only gives the directions: in those of its own, nearly all of its elements are rounding errors.
//!
//! Ranks share out the matrices, and give each other the ways that these move.

use super::moments::{VectorRule, copied};
use super::newton_schulz::{product_by_strips, turn};
use super::{
    Entry, Gradient, Optimizer, OptimizerChoice, OptimizerOptions, Share, Target, Update, restored, share_out,
};
use crate::checkpoint::{Array, Arrays};
use crate::comm::Communicator;
use crate::comm::vectors::gather_slices;
use crate::config::{Key, Kind, Section, Variant};
use crate::engine::cpu::dense::Strided;
use crate::engine::cpu::pool::{Parts, Pool};
use crate::error::Result;
use crate::model::params::ParamTable;
use std::ops::Range;

/// SOAP on the list of optimisers.
pub const SOAP: Entry = Entry::new(
    Variant::of(
        "SOAP",
        KEYS,
        "Adam in the directions in which the gradients of each matrix point, on the CPU only; not in DeePMD-kit",
    ),
    |section| Ok(OptimizerChoice::new(SoapOptions::resolve(section))),
);

const DECAY: Kind = Kind::float(0.0, true, 1.0, false);

const KEYS: &[Key] = &[
    Key::new("adam_beta1", DECAY).default("0.95").doc("Decay of the running mean of the gradient."),
    Key::new("adam_beta2", DECAY).default("0.95").doc("Decay of the running mean of the squared gradient."),
    Key::new("shampoo_beta", DECAY).default("0.95").doc("Decay of the running means that give the directions."),
    Key::new("weight_decay", Kind::NOT_NEGATIVE).default("0.0").doc("How strongly matrices are drawn to zero."),
    Key::new("precondition_frequency", Kind::AT_LEAST_ONE)
        .default("10")
        .unit("steps")
        .doc("The directions follow the gradients once in this number of steps."),
    Key::new("max_precond_dim", Kind::AT_LEAST_ONE).default("512").doc(
        "A matrix keeps its own directions along a side that is longer. Memory and time of a side grow with its square and its cube.",
    ),
];

/// What a [`Soap`] does.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SoapOptions {
    pub betas: [f64; 2],
    /// Decay of the running means that give the directions.
    pub shampoo_beta: f64,
    pub weight_decay: f64,
    pub frequency: u64,
    pub longest_side: usize,
}

impl SoapOptions {
    fn resolve(section: &Section) -> Self {
        SoapOptions {
            betas: [section.float("adam_beta1"), section.float("adam_beta2")],
            shampoo_beta: section.float("shampoo_beta"),
            weight_decay: section.float("weight_decay"),
            frequency: section.int("precondition_frequency"),
            longest_side: section.int("max_precond_dim"),
        }
    }
}

impl OptimizerOptions for SoapOptions {
    fn build(&self, target: &Target) -> Result<Box<dyn Optimizer>> {
        Ok(Box::new(Soap::new(*self, target)))
    }
}

/// Guards the division by the root of the second moment.
const EPSILON: f64 = 1e-8;
/// Rounds in which the first directions are found.
const FIRST_ROUNDS: usize = 8;

/// What its arrays are called in a checkpoint.
const NAMES: [&str; 5] =
    ["soap_first_moment", "soap_second_moment", "soap_means", "soap_directions", "soap_age"];

/// A matrix of the parameters.
#[derive(Debug, Clone)]
struct Matrix {
    range: Range<usize>,
    shape: [usize; 2],
    /// Where the square matrices of its sides stand among all; empty: the side keeps its own directions.
    sides: [Range<usize>; 2],
}

/// The trained parameters: matrices, and what is none.
fn divide(table: &ParamTable, longest: usize) -> (Vec<Matrix>, Vec<Range<usize>>) {
    let (mut matrices, mut vectors, mut end) = (Vec::new(), Vec::new(), 0);
    for view in table.views().iter().filter(|view| view.trainable) {
        match <[usize; 2]>::try_from(view.shape.clone()) {
            Ok(shape) if shape.iter().all(|&n| n > 1) => {
                let sides = shape.map(|n| {
                    let first = end;
                    end += if n <= longest { n * n } else { 0 };
                    first..end
                });
                matrices.push(Matrix { range: view.range(), shape, sides });
            }
            _ => vectors.push(view.range()),
        }
    }
    (matrices, vectors)
}

/// The optimiser with its state.
pub struct Soap {
    options: SoapOptions,
    matrices: Vec<Matrix>,
    vectors: Vec<Range<usize>>,
    /// The matrices of this rank.
    mine: Range<usize>,
    /// Of all parameters: the mean of the gradient, and of its squares (of matrices, in their directions). Those of matrices are kept
    /// up to date on the rank that has them, and so are the square matrices.
    first: Vec<f64>,
    second: Vec<f64>,
    /// L and R, Q and S of all matrices.
    means: Vec<f64>,
    directions: Vec<f64>,
    /// Gradients seen so far.
    age: u64,
    /// Where matrices move.
    way: Vec<f64>,
    /// Memory for one matrix, and for one square matrix.
    spare: [Vec<f64>; 3],
    pool: Pool,
}

impl Soap {
    /// An optimiser that has seen no gradient yet.
    pub fn new(options: SoapOptions, target: &Target) -> Self {
        let (matrices, vectors) = divide(target.table, options.longest_side);
        let cost = |m: &Matrix| {
            let n = m.sides.iter().map(|side| (side.len() as f64).sqrt());
            n.map(|n| 6.0 * m.range.len() as f64 * n + n * n * n).sum::<f64>() + m.range.len() as f64
        };
        let costs: Vec<f64> = matrices.iter().map(cost).collect();
        let (n, squares) = (target.table.len(), matrices.last().map_or(0, |m| m.sides[1].end));
        let most = |of: fn(&Matrix) -> usize| matrices.iter().map(of).max().unwrap_or(0);
        let (large, square) =
            (most(|m| m.range.len()), most(|m| m.sides.iter().map(Range::len).max().unwrap_or(0)));
        Soap {
            options,
            mine: share_out(&costs, target.size)[target.rank].clone(),
            first: vec![0.0; n],
            second: vec![0.0; n],
            means: vec![0.0; squares],
            directions: vec![0.0; squares],
            age: 0,
            way: vec![0.0; n],
            spare: [large.max(square), large, large].map(|n| vec![0.0; n]),
            pool: target.pool.clone(),
            matrices,
            vectors,
        }
    }

    /// What stands at the places of this rank's matrices among all parameters, and among the square matrices.
    fn own(&self) -> [Range<usize>; 2] {
        let own = &self.matrices[self.mine.clone()];
        match (own.first(), own.last()) {
            (Some(first), Some(last)) => {
                [first.range.start..last.range.end, first.sides[0].start..last.sides[1].end]
            }
            _ => [0..0, 0..0],
        }
    }

    /// The ways of this rank's matrices, by gradients that are `factor` times those.
    fn find_ways(&mut self, grad: &[f64], factor: f64) {
        let [beta1, beta2] = self.options.betas;
        // The first gradient is in no mean.
        let [correct1, correct2] = [beta1, beta2].map(|beta| 1.0 / (1.0 - beta.powf(self.age as f64)));
        for matrix in &self.matrices[self.mine.clone()] {
            let (range, n) = (matrix.range.clone(), matrix.range.len());
            let [spare, g, m] = &mut self.spare;
            let (g, m) = (&mut g[..n], &mut m[..n]);
            let turn = Turn { matrix, directions: &self.directions, pool: &self.pool };
            let first = &mut self.first[range.clone()];
            first
                .iter_mut()
                .zip(&grad[range.clone()])
                .for_each(|(m, g)| *m += (1.0 - beta1) * (factor * g - *m));
            g.iter_mut().zip(&grad[range.clone()]).for_each(|(to, g)| *to = factor * g);
            m.copy_from_slice(first);
            turn.there(g, spare);
            turn.there(m, spare);
            let second = &mut self.second[range.clone()];
            for ((m, g), v) in m.iter_mut().zip(&*g).zip(second) {
                *v += (1.0 - beta2) * (*g * *g - *v);
                *m = *m * correct1 / ((*v * correct2).sqrt() + EPSILON);
            }
            turn.back(m, spare);
            self.way[range].copy_from_slice(m);
        }
    }

    /// L and R take up a gradient; now and then the directions follow them.
    fn follow(&mut self, grad: &[f64], factor: f64) {
        let rounds = match self.age {
            0 => FIRST_ROUNDS,
            age => usize::from(age % self.options.frequency == 0),
        };
        let part = (1.0 - self.options.shampoo_beta) * factor * factor;
        for matrix in &self.matrices[self.mine.clone()] {
            let (g, [rows, cols]) = (&grad[matrix.range.clone()], matrix.shape);
            let [now, turned, _] = &mut self.spare;
            turn(&mut turned[..g.len()], g, rows, cols);
            let turned = &turned[..g.len()];
            for (side, (a, b, n, k)) in
                [(g, turned, rows, cols), (turned, g, cols, rows)].into_iter().enumerate()
            {
                let place = matrix.sides[side].clone();
                if place.is_empty() {
                    continue;
                }
                let now = &mut now[..n * n];
                product_by_strips(&self.pool, now, Strided { data: a, row: k, col: 1 }, b, [n, n, k]);
                let means = &mut self.means[place];
                means
                    .iter_mut()
                    .zip(&*now)
                    .for_each(|(mean, now)| *mean = self.options.shampoo_beta * *mean + part * now);
            }
        }
        if rounds > 0 {
            self.turn_directions(rounds);
        }
    }

    /// Q becomes the orthogonal factor of L Q, so many times; a task for each side of each matrix.
    fn turn_directions(&mut self, rounds: usize) {
        let is_first = self.age == 0;
        let sides: Vec<Range<usize>> = self.matrices[self.mine.clone()]
            .iter()
            .flat_map(|m| m.sides.clone())
            .filter(|side| !side.is_empty())
            .collect();
        let (means, directions) = (&self.means, Parts::new(&mut self.directions));
        self.pool.run(sides.len(), |k| {
            let Range { start, end } = sides[k];
            // SAFETY: sides have places of their own.
            let q = unsafe { directions.part(start, end - start) };
            let n = (end - start).isqrt();
            if is_first {
                q.fill(0.0);
                q.iter_mut().step_by(n + 1).for_each(|x| *x = 1.0);
            }
            let mut product = vec![0.0; n * n];
            for _ in 0..rounds {
                let mean = Strided { data: &means[start..end], row: n, col: 1 };
                product_by_strips(&Pool::serial(), &mut product, mean, q, [n, n, n]);
                orthogonal_factor(q, &mut product, n);
            }
        });
    }

    /// Adam for everything that is no matrix.
    fn move_vectors(&mut self, params: &mut [f64], grad: &[f64], factor: f64, rate: f64) {
        let (betas, t) = (self.options.betas, (self.age + 1) as f64);
        let [correct, correction] = betas.map(|beta| 1.0 / (1.0 - beta.powf(t)));
        let rule = VectorRule { betas, epsilon: EPSILON, rate: rate * correct, correction };
        rule.update(params, grad, factor, [&mut self.first, &mut self.second], &self.vectors);
    }
}

/// A matrix and its directions.
struct Turn<'a> {
    matrix: &'a Matrix,
    directions: &'a [f64],
    pool: &'a Pool,
}

impl Turn<'_> {
    /// X becomes Q^T X S.
    fn there(&self, x: &mut [f64], spare: &mut [f64]) {
        let ([m, n], spare) = (self.matrix.shape, &mut spare[..x.len()]);
        if let Some(q) = self.side(0) {
            product_by_strips(self.pool, spare, Strided { data: q, row: 1, col: m }, x, [m, n, m]);
            x.copy_from_slice(spare);
        }
        if let Some(s) = self.side(1) {
            product_by_strips(self.pool, spare, Strided { data: x, row: n, col: 1 }, s, [m, n, n]);
            x.copy_from_slice(spare);
        }
    }

    /// X becomes Q X S^T.
    fn back(&self, x: &mut [f64], spare: &mut [f64]) {
        let [m, n] = self.matrix.shape;
        if let Some(q) = self.side(0) {
            let spare = &mut spare[..x.len()];
            product_by_strips(self.pool, spare, Strided { data: q, row: m, col: 1 }, x, [m, n, m]);
            x.copy_from_slice(spare);
        }
        if let Some(s) = self.side(1) {
            // X S^T = (S X^T)^T
            let mut turned = vec![0.0; x.len()];
            let spare = &mut spare[..x.len()];
            turn(spare, x, m, n);
            product_by_strips(self.pool, &mut turned, Strided { data: s, row: n, col: 1 }, spare, [n, m, n]);
            turn(x, &turned, n, m);
        }
    }

    fn side(&self, k: usize) -> Option<&[f64]> {
        let place = self.matrix.sides[k].clone();
        (!place.is_empty()).then(|| &self.directions[place])
    }
}

/// The orthogonal factor Q of A = Q T, with T upper triangular, by reflections; A `[n, n]` is used up. Columns that depend on those
/// before them give some directions that are orthogonal to all others.
fn orthogonal_factor(q: &mut [f64], a: &mut [f64], n: usize) {
    // Each reflection turns what is left of a column onto its first element; its direction is kept.
    let mut normals = vec![0.0; n * n];
    let mut sums = vec![0.0; n];
    for k in 0..n {
        let normal = &mut normals[k * n..(k + 1) * n];
        (k..n).for_each(|i| normal[i] = a[i * n + k]);
        let length = normal[k..].iter().map(|x| x * x).sum::<f64>().sqrt();
        normal[k] += if normal[k] < 0.0 { -length } else { length };
        let length = normal[k..].iter().map(|x| x * x).sum::<f64>().sqrt();
        if length > 0.0 {
            normal[k..].iter_mut().for_each(|x| *x /= length);
            reflect(a, normal, &mut sums, k, n);
        }
    }
    q.fill(0.0);
    q.iter_mut().step_by(n + 1).for_each(|x| *x = 1.0);
    for k in (0..n).rev() {
        reflect(q, &normals[k * n..(k + 1) * n], &mut sums, k, n);
    }
}

/// A - 2 v (v^T A), where v and what is changed of A begin at `first`.
fn reflect(a: &mut [f64], normal: &[f64], sums: &mut [f64], first: usize, n: usize) {
    let sums = &mut sums[first..];
    sums.fill(0.0);
    for i in first..n {
        sums.iter_mut().zip(&a[i * n + first..(i + 1) * n]).for_each(|(sum, x)| *sum += normal[i] * x);
    }
    for i in first..n {
        let factor = 2.0 * normal[i];
        a[i * n + first..(i + 1) * n].iter_mut().zip(&*sums).for_each(|(x, sum)| *x -= factor * sum);
    }
}

impl Optimizer for Soap {
    /// Matrices go over slices.
    fn share(&self) -> Share {
        Share::Whole
    }

    fn update(
        &mut self,
        params: &mut [f64],
        gradient: Gradient,
        update: &Update,
        ranks: &mut dyn Communicator,
    ) -> Result<f64> {
        let grad = gradient.whole();
        let (norm, factor) = update.clip(grad);
        if self.age > 0 {
            self.find_ways(grad, factor);
            let [own, _] = self.own();
            gather_slices(ranks, &mut self.way, own)?;
            let keep = 1.0 - update.rate * self.options.weight_decay;
            for matrix in &self.matrices {
                let range = matrix.range.clone();
                let both = params[range.clone()].iter_mut().zip(&self.way[range]);
                both.for_each(|(p, way)| *p = keep * *p - update.rate * way);
            }
        }
        self.follow(grad, factor);
        self.move_vectors(params, grad, factor, update.rate);
        self.age += 1;
        Ok(norm)
    }

    fn save(&self, spare: &mut Vec<Vec<f64>>, ranks: &mut dyn Communicator) -> Result<Arrays> {
        let [own, squares] = self.own();
        let state = [
            (&self.first, own.clone()),
            (&self.second, own),
            (&self.means, squares.clone()),
            (&self.directions, squares),
        ];
        let mut arrays = Arrays::new();
        for (name, (x, own)) in NAMES.into_iter().zip(state) {
            let mut out = copied(spare, x);
            gather_slices(ranks, &mut out, own)?;
            arrays.push((name.to_string(), Array::F64(out)));
        }
        arrays.push((NAMES[4].to_string(), Array::F64(vec![self.age as f64])));
        Ok(arrays)
    }

    fn restore(&mut self, arrays: &Arrays) -> Result<()> {
        let state = [&mut self.first, &mut self.second, &mut self.means, &mut self.directions];
        NAMES.into_iter().zip(state).try_for_each(|(name, x)| restored(arrays, name, x))?;
        let mut age = [0.0];
        restored(arrays, NAMES[4], &mut age)?;
        self.age = age[0] as u64;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::comm::local_group;

    const OPTIONS: SoapOptions = SoapOptions {
        betas: [0.9, 0.8],
        shampoo_beta: 0.7,
        weight_decay: 0.01,
        frequency: 2,
        longest_side: 8,
    };

    fn table() -> ParamTable {
        let mut table = ParamTable::default();
        for (name, shape) in [
            ("a", &[5, 7][..]),
            ("b", &[7]),
            ("fixed", &[4, 4]),
            ("c", &[9, 3]),
            ("d", &[1, 6]),
            ("e", &[6, 6]),
        ] {
            table.add(name.into(), shape, name != "fixed");
        }
        table
    }

    fn gradient(n: usize, step: usize) -> Vec<f64> {
        (0..n).map(|k| ((k * k + 3 * k * (step + 2)) as f64 * 0.7).sin()).collect()
    }

    fn begin(n: usize) -> Vec<f64> {
        (0..n).map(|k| (k as f64 * 0.3).cos()).collect()
    }

    fn make(table: &ParamTable, rank: usize, size: usize, threads: usize) -> Soap {
        let pool = Pool::new(threads).unwrap();
        Soap::new(OPTIONS, &Target { table, pool, single: false, rank, size, seed: 0 })
    }

    fn told(step: u64) -> Update {
        Update { step, rate: 0.01, max_norm: 2.0, wants_norm: true }
    }

    /// Parameters and state after a few steps on so many ranks; with a new optimiser that goes on after step 2 where `restarts`.
    fn run(size: usize, threads: usize, restarts: bool) -> Vec<(Vec<f64>, Arrays)> {
        let work = |mut comm: Box<dyn Communicator>| {
            let table = table();
            let mut soap = make(&table, comm.rank(), size, threads);
            let mut params = begin(table.len());
            for step in 0..5 {
                let grad = gradient(table.len(), step);
                soap.update(&mut params, Gradient::of(&grad), &told(step as u64), &mut *comm).unwrap();
                if step == 2 && restarts {
                    let state = soap.save(&mut Vec::new(), &mut *comm).unwrap();
                    soap = make(&table, comm.rank(), size, threads);
                    soap.restore(&state).unwrap();
                }
            }
            let state = soap.save(&mut Vec::new(), &mut *comm).unwrap();
            comm.finish().unwrap();
            (params, state)
        };
        std::thread::scope(|scope| {
            let handles: Vec<_> = local_group(size).into_iter().map(|c| scope.spawn(|| work(c))).collect();
            handles.into_iter().map(|h| h.join().unwrap()).collect()
        })
    }

    #[test]
    fn ranks_threads_and_restarts_have_the_bits_of_one() {
        let one = &run(1, 1, false)[0];
        assert!(one.0.iter().all(|p| p.is_finite()));
        for (size, threads, restarts) in
            [(1, 3, false), (1, 1, true), (2, 1, false), (3, 2, true), (5, 1, false)]
        {
            assert!(run(size, threads, restarts).iter().all(|other| other == one), "{size} ranks");
        }
    }

    type Rows = Vec<Vec<f64>>;

    fn rows(x: &[f64], cols: usize) -> Rows {
        x.chunks(cols).map(<[f64]>::to_vec).collect()
    }

    fn times(a: &Rows, b: &Rows) -> Rows {
        a.iter()
            .map(|row| (0..b[0].len()).map(|j| row.iter().zip(b).map(|(x, b)| x * b[j]).sum()).collect())
            .collect()
    }

    fn turned(a: &Rows) -> Rows {
        (0..a[0].len()).map(|j| a.iter().map(|row| row[j]).collect()).collect()
    }

    fn one(n: usize) -> Rows {
        (0..n).map(|i| (0..n).map(|j| f64::from(u8::from(i == j))).collect()).collect()
    }

    fn near(a: &Rows, b: &Rows, what: &str) {
        for (a, b) in a.iter().flatten().zip(b.iter().flatten()) {
            assert!((a - b).abs() < 1e-11, "{what}: {a} {b}");
        }
    }

    /// The formulas as they are written above, with plain loops, given the directions; and what makes these what they are.
    #[test]
    fn updates_are_those_of_the_formulas_written_out() {
        let (table, mut ranks) = (table(), local_group(1).remove(0));
        let mut soap = make(&table, 0, 1, 1);
        let mut params = begin(table.len());
        let matrices = soap.matrices.clone();
        let square = |x: &[f64], m: &Matrix, side: usize| match m.sides[side].is_empty() {
            true => one(m.shape[side]),
            false => rows(&x[m.sides[side].clone()], m.shape[side]),
        };
        let mut means: Vec<[Rows; 2]> =
            matrices.iter().map(|m| m.shape.map(|n| vec![vec![0.0; n]; n])).collect();
        let mut moments: Vec<[Rows; 2]> =
            matrices.iter().map(|m| [(), ()].map(|()| vec![vec![0.0; m.shape[1]]; m.shape[0]])).collect();
        for step in 0..6 {
            let grad = gradient(table.len(), step);
            let factor = told(0).clip(&grad).1;
            let (before, old) = (params.clone(), soap.directions.clone());
            soap.update(&mut params, Gradient::of(&grad), &told(step as u64), &mut *ranks).unwrap();
            for (k, m) in matrices.iter().enumerate() {
                let mut g = rows(&grad[m.range.clone()], m.shape[1]);
                g.iter_mut().flatten().for_each(|x| *x *= factor);
                let [q, s] = [0, 1].map(|side| square(&old, m, side));
                let mut want = rows(&before[m.range.clone()], m.shape[1]);
                if step > 0 {
                    let there = |x: &Rows| times(&times(&turned(&q), x), &s);
                    let [first, second] = &mut moments[k];
                    let turned_g = there(&g);
                    for i in 0..m.shape[0] {
                        for j in 0..m.shape[1] {
                            first[i][j] = 0.9 * first[i][j] + 0.1 * g[i][j];
                            second[i][j] = 0.8 * second[i][j] + 0.2 * turned_g[i][j] * turned_g[i][j];
                        }
                    }
                    let mut way = there(first);
                    let (c1, c2) = (1.0 - 0.9f64.powi(step as i32), 1.0 - 0.8f64.powi(step as i32));
                    for i in 0..m.shape[0] {
                        for j in 0..m.shape[1] {
                            way[i][j] = way[i][j] / c1 / ((second[i][j] / c2).sqrt() + 1e-8);
                        }
                    }
                    let way = times(&times(&q, &way), &turned(&s));
                    for (w, way) in want.iter_mut().flatten().zip(way.iter().flatten()) {
                        *w = (1.0 - 0.01 * 0.01) * *w - 0.01 * way;
                    }
                }
                near(&rows(&params[m.range.clone()], m.shape[1]), &want, "parameters");
                let now = [times(&g, &turned(&g)), times(&turned(&g), &g)];
                for side in 0..2 {
                    if m.sides[side].is_empty() {
                        assert_eq!(m.shape[side], 9, "only that side is too long");
                        continue;
                    }
                    let mean = &mut means[k][side];
                    for (mean, now) in mean.iter_mut().flatten().zip(now[side].iter().flatten()) {
                        *mean = 0.7 * *mean + 0.3 * now;
                    }
                    near(&square(&soap.means, m, side), mean, "means");
                    let q = square(&soap.directions, m, side);
                    near(&times(&turned(&q), &q), &one(q.len()), "directions are orthogonal");
                    if step == 0 {
                        continue;
                    }
                    let old = square(&old, m, side);
                    if step % 2 == 1 {
                        near(&q, &old, "directions stay");
                        continue;
                    }
                    // Q^T L Q_old is upper triangular.
                    let triangle = times(&turned(&q), &times(mean, &old));
                    for (i, row) in triangle.iter().enumerate() {
                        assert!(row[..i].iter().all(|x| x.abs() < 1e-11), "{triangle:?}");
                    }
                }
            }
        }
        let fixed = table.views()[2].range();
        assert_eq!(params[fixed.clone()], begin(table.len())[fixed]);
    }

    #[test]
    fn columns_that_depend_on_each_other_still_give_orthogonal_directions() {
        let n = 6;
        for rank in [0, 1, 3] {
            let mut a: Vec<f64> =
                (0..n * n).map(|k| if k % n < rank { (k as f64 * 0.9).sin() } else { 0.0 }).collect();
            let mut q = vec![0.0; n * n];
            orthogonal_factor(&mut q, &mut a, n);
            let q = rows(&q, n);
            near(&times(&turned(&q), &q), &one(n), "directions");
        }
    }
}
