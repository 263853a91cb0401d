//! HybridMuon and AdaMuon: matrices move along an orthogonal matrix near their mean gradient, everything else by Adam.
//!
//! With m = beta m + (1 - beta) g and u = beta m + (1 - beta) g, HybridMuon takes the orthogonal matrix near u, AdaMuon that near
//! the signs of u, each element divided by the root of the running mean of its squares. DeePMD-kit makes that matrix in bfloat16
//! or float16 and keeps its Adam in float32; here all of it is float64.
//!
//! The orthogonal matrices are what takes time: ranks share them out. The rest is done by all of them alike.

use super::moments::{VectorRule, copied};
use super::newton_schulz::{Orthogonalizer, Recipe};
use super::{
    Entry, Gradient, Optimizer, OptimizerChoice, OptimizerOptions, Share, Target, Update, norm, restored,
    share_out,
};
use crate::checkpoint::{Array, Arrays};
use crate::comm::Communicator;
use crate::comm::vectors::gather_slices;
use crate::config::{Key, Kind, Section, Variant};
use crate::engine::cpu::pool::{Parts, Pool};
use crate::engine::cuda::muon::{MatrixPlan, MuonPlan};
use crate::error::Result;
use crate::model::params::{ParamTable, ParamView};
use std::ops::Range;

/// Both on the list of optimisers.
pub const HYBRID_MUON: Entry =
    Entry::new(Variant::of("HybridMuon", HYBRID_KEYS, "Muon for matrices, Adam for vectors"), |section| {
        Ok(OptimizerChoice::new(MuonOptions::hybrid(section)))
    });
pub const ADA_MUON: Entry = Entry::new(
    Variant::of("AdaMuon", ADA_KEYS, "Muon with steps of one size for matrices, Adam for vectors"),
    |section| Ok(OptimizerChoice::new(MuonOptions::ada(section))),
);

const MOMENTUM: Key = Key::new("momentum", Kind::float(0.0, true, 1.0, false))
    .aliases(&["muon_momentum"])
    .default("0.95")
    .doc("Decay of the running mean of the gradient of a matrix.");
const BETA1: Key = Key::new("adam_beta1", Kind::float(0.0, true, 1.0, false))
    .default("0.9")
    .doc("For vectors: decay of the running mean of the gradient.");
const BETA2: Key = Key::new("adam_beta2", Kind::float(0.0, true, 1.0, false))
    .default("0.95")
    .doc("For vectors: decay of the running mean of the squared gradient.");
const WEIGHT_DECAY: Key = Key::new("weight_decay", Kind::NOT_NEGATIVE)
    .default("0.001")
    .doc("How strongly matrices are drawn to zero.");
const LR_ADJUST: Key = Key::new("lr_adjust", Kind::NUMBER).doc(
    "Not above 0: a matrix moves by the learning rate times lr_adjust_coeff times the root of its longer side. Above 0: times the \
     root of rows over columns where that is above 1, and vectors move by the learning rate over lr_adjust.",
);
const LR_ADJUST_COEFF: Key =
    Key::new("lr_adjust_coeff", Kind::NUMBER).doc("Only used where lr_adjust is not above 0.");

const HYBRID_KEYS: &[Key] = &[
    MOMENTUM,
    BETA1,
    BETA2,
    WEIGHT_DECAY,
    LR_ADJUST.default("0.0"),
    LR_ADJUST_COEFF.default("0.18"),
    Key::new("muon_mode", Kind::choice(&["slice", "2d", "flat"]))
        .default("\"slice\"")
        .doc("What counts as a matrix among arrays of three dimensions and more, which these networks do not have."),
    Key::new("enable_gram", Kind::Bool).default("true").doc(
        "Whether the orthogonal matrix of one that is not square is made by five steps on a small square one, in place of ten on \
         the matrix itself.",
    ),
    Key::new("flash_muon", Kind::Bool).default("true").ignored("").doc("A choice inside PyTorch."),
    Key::new("magma_muon", Kind::Bool)
        .default("true")
        .doc("Whether a matrix moves less, down to a tenth, where its gradient does not point along the mean."),
];

const ADA_KEYS: &[Key] =
    &[MOMENTUM, BETA1, BETA2, WEIGHT_DECAY, LR_ADJUST.default("10.0"), LR_ADJUST_COEFF.default("0.2")];

/// What a [`Muon`] does.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MuonOptions {
    pub momentum: f64,
    pub adam_betas: [f64; 2],
    pub weight_decay: f64,
    pub lr_adjust: f64,
    pub lr_adjust_coeff: f64,
    pub flavor: Flavor,
}

/// Which of the two.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Flavor {
    Hybrid {
        /// Matrices that are not square by way of their small square one.
        gram: bool,
        /// Steps are shorter where gradient and mean disagree.
        damped: bool,
    },
    Ada,
}

impl MuonOptions {
    fn resolve(section: &Section, flavor: Flavor) -> Self {
        MuonOptions {
            momentum: section.float("momentum"),
            adam_betas: [section.float("adam_beta1"), section.float("adam_beta2")],
            weight_decay: section.float("weight_decay"),
            lr_adjust: section.float("lr_adjust"),
            lr_adjust_coeff: section.float("lr_adjust_coeff"),
            flavor,
        }
    }

    fn hybrid(section: &Section) -> Self {
        let flavor = Flavor::Hybrid { gram: section.bool("enable_gram"), damped: section.bool("magma_muon") };
        Self::resolve(section, flavor)
    }

    fn ada(section: &Section) -> Self {
        Self::resolve(section, Flavor::Ada)
    }

    /// What is added to the root of the second moment of a vector.
    fn adam_epsilon(&self) -> f64 {
        match self.flavor {
            Flavor::Hybrid { .. } => 1e-20,
            Flavor::Ada => ADA_EPSILON,
        }
    }

    /// The learning rate of a vector, from that of the run.
    fn vector_rate(&self, rate: f64) -> f64 {
        if self.lr_adjust <= 0.0 { rate } else { rate / self.lr_adjust }
    }

    fn recipe(&self, [rows, cols]: [usize; 2]) -> Recipe {
        match self.flavor {
            Flavor::Ada => Recipe::Steps { fast: 5, polish: 0, least: 1e-8 },
            Flavor::Hybrid { gram: true, .. } if rows != cols => Recipe::Gram { least: 1e-7 },
            Flavor::Hybrid { .. } => Recipe::Steps { fast: 8, polish: 2, least: 1e-7 },
        }
    }

    /// What the learning rate of a matrix is multiplied by.
    fn scale(&self, [rows, cols]: [usize; 2]) -> f64 {
        match self.lr_adjust <= 0.0 {
            true => self.lr_adjust_coeff * (rows.max(cols) as f64).sqrt(),
            false => (rows as f64 / cols as f64).max(1.0).sqrt(),
        }
    }

    /// What a device must know to make the same updates.
    pub fn on_device(&self, table: &ParamTable) -> MuonPlan {
        let (matrices, vectors) = self.divide(table);
        let matrices = matrices.into_iter().map(|m| {
            let recipe = self.recipe(m.shape);
            let (least, adds_least) = recipe.least();
            let (polynomials, scale) = (recipe.polynomials(), self.scale(m.shape));
            MatrixPlan { range: m.range, shape: m.shape, polynomials, scale, least, adds_least }
        });
        MuonPlan {
            matrices: matrices.collect(),
            vectors,
            momentum: self.momentum,
            weight_decay: self.weight_decay,
            is_damped: matches!(self.flavor, Flavor::Hybrid { damped: true, .. }),
            is_even: self.flavor == Flavor::Ada,
            vector_rate: self.vector_rate(1.0),
            vector_epsilon: self.adam_epsilon(),
        }
    }

    /// The trained parameters: what is orthogonalised, and what is not.
    fn divide(&self, table: &ParamTable) -> (Vec<Matrix>, Vec<Range<usize>>) {
        let (mut matrices, mut vectors) = (Vec::new(), Vec::new());
        for view in table.views().iter().filter(|view| view.trainable) {
            match self.matrix(view) {
                Some(matrix) => matrices.push(matrix),
                None => vectors.push(view.range()),
            }
        }
        (matrices, vectors)
    }

    /// Whether, and as which matrix, a block of parameters is orthogonalised. HybridMuon takes a single row or column for a
    /// vector.
    fn matrix(&self, view: &ParamView) -> Option<Matrix> {
        let long: Vec<usize> = view.shape.iter().copied().filter(|&n| n != 1).collect();
        let shape = match self.flavor {
            Flavor::Hybrid { .. } if is_bias(&view.name) => return None,
            Flavor::Hybrid { .. } => <[usize; 2]>::try_from(long).ok()?,
            Flavor::Ada => <[usize; 2]>::try_from(view.shape.clone()).ok()?,
        };
        Some(Matrix { range: view.range(), shape })
    }
}

/// Whether the last part of a name, trailing numbers aside, says so.
fn is_bias(name: &str) -> bool {
    let leaf = name.rsplit('.').find(|part| part.parse::<usize>().is_err()).unwrap_or(name).to_lowercase();
    leaf == "b" || leaf.contains("bias")
}

impl OptimizerOptions for MuonOptions {
    fn build(&self, target: &Target) -> Result<Box<dyn Optimizer>> {
        Ok(Box::new(Muon::new(*self, target)))
    }
}

/// AdaMuon: guards its divisions.
const ADA_EPSILON: f64 = 1e-8;
/// AdaMuon: the size of a step before the learning rate, for each element.
const ADA_SIZE: f64 = 0.2;
/// HybridMuon's damping: how steep the score is, how long it is remembered, the shortest step.
const SCORE_WIDTH: f64 = 2.0;
const SCORE_DECAY: f64 = 0.9;
const SHORTEST: f64 = 0.1;

/// What its arrays are called in a checkpoint.
pub const NAMES: [&str; 3] = ["muon_first_moment", "muon_second_moment", "muon_alignment"];

/// A block of parameters that is a matrix.
#[derive(Debug, Clone)]
struct Matrix {
    range: Range<usize>,
    shape: [usize; 2],
}

/// The optimiser with its state.
pub struct Muon {
    options: MuonOptions,
    matrices: Vec<Matrix>,
    vectors: Vec<Range<usize>>,
    /// The matrices that this rank orthogonalises.
    mine: Range<usize>,
    /// Running means of the gradient, of all parameters.
    first: Vec<f64>,
    /// Those of its square: of vectors, and with AdaMuon of the orthogonal matrices.
    second: Vec<f64>,
    /// How far gradient and mean have agreed so far, for each matrix.
    alignment: Vec<f64>,
    /// Where the matrices will move.
    direction: Vec<f64>,
    orthogonalizer: Orthogonalizer,
    pool: Pool,
}

impl Muon {
    /// An optimiser that has seen no gradient yet.
    pub fn new(options: MuonOptions, target: &Target) -> Self {
        let (matrices, vectors) = options.divide(target.table);
        let cost = |m: &Matrix| (m.range.len() * m.shape[0].min(m.shape[1])) as f64;
        let costs: Vec<f64> = matrices.iter().map(cost).collect();
        let n = target.table.len();
        Muon {
            options,
            mine: share_out(&costs, target.size)[target.rank].clone(),
            first: vec![0.0; n],
            second: vec![0.0; n],
            alignment: vec![0.5; matrices.len()],
            direction: vec![0.0; n],
            orthogonalizer: Orthogonalizer::new(matrices.iter().map(|m| m.shape), target.pool.clone()),
            pool: target.pool.clone(),
            matrices,
            vectors,
        }
    }

    /// Running means of matrices, where they point, and how well they agree with the gradient.
    fn prepare(&mut self, grad: &[f64], factor: f64) {
        let (beta, flavor) = (self.options.momentum, self.options.flavor);
        let parts =
            (Parts::new(&mut self.first), Parts::new(&mut self.direction), Parts::new(&mut self.alignment));
        let matrices = &self.matrices;
        self.pool.run(matrices.len(), |k| {
            let Range { start, end } = matrices[k].range;
            // SAFETY: matrices are disjoint.
            let (m, u) = unsafe { (parts.0.part(start, end - start), parts.1.part(start, end - start)) };
            let mut sums = [0.0; 3];
            for ((m, u), g) in m.iter_mut().zip(u).zip(&grad[start..end]) {
                let g = factor * g;
                *m += (1.0 - beta) * (g - *m);
                *u = g + beta * (*m - g);
                if flavor == Flavor::Ada {
                    *u = if *u == 0.0 { 0.0 } else { u.signum() };
                }
                [*m * g, *m * *m, g * g].into_iter().zip(&mut sums).for_each(|(x, sum)| *sum += x);
            }
            let [dot, mm, gg] = sums;
            let cosine = (dot / (mm.sqrt() * gg.sqrt()).max(1e-12)).clamp(-1.0, 1.0);
            // SAFETY: one for each matrix.
            let seen = &mut unsafe { parts.2.part(k, 1) }[0];
            *seen = SCORE_DECAY * *seen + (1.0 - SCORE_DECAY) * score(cosine);
        });
    }

    /// Directions become orthogonal, each on one rank, and are given to all.
    fn orthogonalize(&mut self, ranks: &mut dyn Communicator) -> Result<()> {
        for matrix in &self.matrices[self.mine.clone()] {
            let direction = &mut self.direction[matrix.range.clone()];
            self.orthogonalizer.run(direction, matrix.shape, self.options.recipe(matrix.shape));
        }
        let own = &self.matrices[self.mine.clone()];
        let slice = match (own.first(), own.last()) {
            (Some(first), Some(last)) => first.range.start..last.range.end,
            _ => 0..0,
        };
        gather_slices(ranks, &mut self.direction, slice)
    }

    fn move_matrices(&mut self, params: &mut [f64], rate: f64) {
        let options = self.options;
        let parts = (Parts::new(params), Parts::new(&mut self.direction), Parts::new(&mut self.second));
        let (matrices, alignment) = (&self.matrices, &self.alignment);
        self.pool.run(matrices.len(), |k| {
            let (first, n) = (matrices[k].range.start, matrices[k].range.len());
            // SAFETY: matrices are disjoint.
            let (p, d, v) =
                unsafe { (parts.0.part(first, n), parts.1.part(first, n), parts.2.part(first, n)) };
            let damping = match options.flavor {
                Flavor::Hybrid { damped: true, .. } => SHORTEST + (1.0 - SHORTEST) * alignment[k],
                Flavor::Hybrid { .. } => 1.0,
                Flavor::Ada => even_out(d, v, options.momentum),
            };
            let length = rate * options.scale(matrices[k].shape) * damping;
            let keep = 1.0 - rate * options.weight_decay;
            p.iter_mut().zip(d).for_each(|(p, d)| *p = keep * *p - length * *d);
        });
    }

    /// Adam for everything that is no matrix.
    fn move_vectors(&mut self, params: &mut [f64], grad: &[f64], factor: f64, rate: f64, step: u64) {
        let (betas, t) = (self.options.adam_betas, (step + 1) as f64);
        let rate = self.options.vector_rate(rate) / (1.0 - betas[0].powf(t));
        let (epsilon, correction) = (self.options.adam_epsilon(), 1.0 / (1.0 - betas[1].powf(t)));
        let rule = VectorRule { betas, epsilon, rate, correction };
        rule.update(params, grad, factor, [&mut self.first, &mut self.second], &self.vectors);
    }
}

/// 0 where gradient and mean are opposite, 1 where they agree, steepest in between.
fn score(cosine: f64) -> f64 {
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x / SCORE_WIDTH).exp());
    ((sigmoid(cosine) - sigmoid(-1.0)) / (sigmoid(1.0) - sigmoid(-1.0))).clamp(0.0, 1.0)
}

/// AdaMuon: divides each element by the root of the running mean of its squares. Returns what brings all to one size.
fn even_out(direction: &mut [f64], second: &mut [f64], momentum: f64) -> f64 {
    for (d, v) in direction.iter_mut().zip(second) {
        *v = momentum * *v + (1.0 - momentum) * *d * *d;
        *d /= v.sqrt() + ADA_EPSILON;
    }
    ADA_SIZE * (direction.len() as f64).sqrt() / (norm(direction) + ADA_EPSILON)
}

impl Optimizer for Muon {
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
        self.prepare(grad, factor);
        self.orthogonalize(ranks)?;
        self.move_matrices(params, update.rate);
        self.move_vectors(params, grad, factor, update.rate, update.step);
        Ok(norm)
    }

    fn save(&self, spare: &mut Vec<Vec<f64>>, _ranks: &mut dyn Communicator) -> Result<Arrays> {
        let state = [&self.first, &self.second, &self.alignment].map(|x| Array::F64(copied(spare, x)));
        Ok(NAMES.into_iter().map(String::from).zip(state).collect())
    }

    fn restore(&mut self, arrays: &Arrays) -> Result<()> {
        let state = [&mut self.first, &mut self.second, &mut self.alignment];
        NAMES.into_iter().zip(state).try_for_each(|(name, x)| restored(arrays, name, x))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::comm::local_group;
    use crate::model::params::ParamTable;

    fn table() -> ParamTable {
        let mut table = ParamTable::default();
        for (name, shape) in [
            ("a.matrix", &[1, 5][..]),
            ("a.bias", &[5]),
            ("b.matrix", &[5, 7]),
            ("b.bias.0", &[7, 2]),
            ("fixed", &[4, 4]),
            ("c.matrix", &[6, 6]),
            ("c.last", &[6, 1]),
        ] {
            table.add(name.into(), shape, name != "fixed");
        }
        table
    }

    fn options(flavor: Flavor) -> MuonOptions {
        MuonOptions {
            momentum: 0.95,
            adam_betas: [0.9, 0.95],
            weight_decay: 0.001,
            lr_adjust: 0.0,
            lr_adjust_coeff: 0.18,
            flavor,
        }
    }

    const HYBRID: Flavor = Flavor::Hybrid { gram: true, damped: true };

    #[test]
    fn matrices_are_told_from_vectors_by_shape_and_name() {
        let table = table();
        let shapes = |flavor| -> Vec<_> {
            table.views().iter().filter_map(|v| options(flavor).matrix(v)).map(|m| m.shape).collect()
        };
        assert_eq!(shapes(HYBRID), [[5, 7], [4, 4], [6, 6]]);
        assert_eq!(shapes(Flavor::Ada), [[1, 5], [5, 7], [7, 2], [4, 4], [6, 6], [6, 1]]);
    }

    /// Parameters and state after a few steps on so many ranks.
    fn run(flavor: Flavor, size: usize) -> Vec<(Vec<f64>, Arrays)> {
        let work = |mut comm: Box<dyn Communicator>| {
            let (table, pool) = (table(), Pool::serial());
            let target = Target { table: &table, pool, single: false, rank: comm.rank(), size, seed: 0 };
            let mut muon = Muon::new(options(flavor), &target);
            let n = table.len();
            let mut params: Vec<f64> = (0..n).map(|k| (k as f64 * 0.3).cos()).collect();
            for step in 0..4 {
                let grad: Vec<f64> = (0..n).map(|k| ((k * (step + 2)) as f64 * 0.7).sin()).collect();
                let update = Update { step: step as u64, rate: 0.01, max_norm: 2.0, wants_norm: true };
                let norm = muon.update(&mut params, Gradient::of(&grad), &update, &mut *comm).unwrap();
                assert!(norm > 2.0);
            }
            let state = muon.save(&mut Vec::new(), &mut *comm).unwrap();
            comm.finish().unwrap();
            (params, state)
        };
        std::thread::scope(|scope| {
            let handles: Vec<_> = local_group(size).into_iter().map(|c| scope.spawn(|| work(c))).collect();
            handles.into_iter().map(|h| h.join().unwrap()).collect()
        })
    }

    #[test]
    fn ranks_that_share_out_the_matrices_have_the_bits_of_one() {
        for flavor in [HYBRID, Flavor::Ada] {
            let one = &run(flavor, 1)[0];
            assert!(one.0.iter().all(|p| p.is_finite()));
            for size in [2, 3, 5] {
                assert!(run(flavor, size).iter().all(|other| other == one), "{flavor:?}, {size} ranks");
            }
        }
    }

    #[test]
    fn what_is_not_trained_stays_as_it_is() {
        let fixed = table().views()[4].range();
        let (params, _) = &run(HYBRID, 1)[0];
        assert!(fixed.clone().all(|k| params[k] == (k as f64 * 0.3).cos()), "{:?}", &params[fixed]);
    }
}
