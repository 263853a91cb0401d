//! The CPU engine of PiNet: threads over blocks of atoms with their pairs, float64 or float32.
//!
//! A network becomes a list of operations once ([`plan`]); a step takes every block of the batch ([`batch`]) through
//! that list forwards and backwards, twice ([`stage`]). Results do not depend on the number of threads.

pub mod plan;
pub mod memory;
pub mod batch;
mod stage;
mod task;
mod kinds;
mod product;
mod kernels;
mod layers;
mod pairs;
mod atoms;
mod ops;
pub(super) mod weights;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod physics;

use super::{PinetEngine, PinetFrame, PinetPrediction, PinetSeeds};
use crate::Result;
use crate::engine::cpu::pool::{Parts, Pool};
use crate::engine::cpu::real::Real;
use crate::model::pinet::PinetModel;
use batch::Batch;
use kinds::Kinds;
use memory::Memory;
use plan::Plan;
use stage::{Results, Stage, Work};
use std::sync::Arc;

/// Evaluates a PiNet on CPU threads in float32 or float64.
pub struct PinetCpu<T> {
    model: Arc<PinetModel>,
    plan: Plan,
    pool: Arc<Pool>,
    forces: bool,
    batch: Batch<T>,
    memory: Memory<T>,
    weights: Vec<T>,
    kinds: Kinds,
    /// The pair layers of the first block for every kind of pair.
    table: Vec<T>,
    /// For each group of blocks: its part of the gradient; and the sum of them.
    slots: Vec<T>,
    sum: Vec<f64>,
    /// For each thread: room within an operation, and adjoints of the pairs of one block.
    scratch: Vec<T>,
    local: Vec<T>,
    /// Changes of pairs, in regions ([`memory`]).
    passing: Vec<T>,
    /// `[n_atoms]` dE/dout
    share: Vec<f64>,
    /// Stages of the first and the second pass.
    passes: [Vec<Stage>; 2],
}

/// Numbers of the gradient that one task adds up.
const SUM_CHUNK: usize = 2048;

impl<T: Real> PinetCpu<T> {
    /// `forces`: whether forces and stress are wanted.
    pub fn new(model: Arc<PinetModel>, threads: usize, forces: bool) -> Result<Self> {
        let plan = Plan::new(&model);
        Ok(PinetCpu {
            passes: stage::passes(plan.segments.len(), forces),
            plan,
            model,
            pool: Arc::new(Pool::new(threads)?),
            forces,
            batch: Batch::default(),
            memory: Memory::default(),
            weights: Vec::new(),
            kinds: Kinds::default(),
            table: Vec::new(),
            slots: Vec::new(),
            sum: Vec::new(),
            scratch: Vec::new(),
            local: Vec::new(),
            passing: Vec::new(),
            share: Vec::new(),
        })
    }

    pub fn n_threads(&self) -> usize {
        self.pool.n_threads()
    }

    /// Takes all groups through a pass: each on its own where groups are whole structures, else stage by stage.
    fn run(&mut self, pass: usize, out: &mut PinetPrediction, seeds: Option<&PinetSeeds>) {
        let (groups, threads) = (self.batch.n_groups(), self.pool.n_threads());
        let scratch_len = self.batch.most_rows() * self.plan.scratch;
        self.scratch.resize(self.scratch.len().max(threads * scratch_len), T::ZERO);
        let local_len = self.memory.local_len();
        self.local.resize(self.local.len().max(threads * local_len), T::ZERO);
        let region_pairs = self.batch.region_pairs();
        let region_len = if self.forces { region_pairs * self.memory.passing_width() } else { 0 };
        let regions = if self.batch.closed { threads } else { 1 };
        self.passing.resize(self.passing.len().max(regions * region_len), T::ZERO);
        self.slots.resize(groups * self.plan.slots, T::ZERO);
        let de_d = Parts::new(&mut self.batch.de_d);
        let de_e = Parts::new(&mut self.batch.de_e);
        let mut directions = self.batch.directions.iter_mut();
        let mut direction = || Parts::new(directions.next().map_or(&mut [], |d| &mut d.de[..]));
        let work = Work {
            de_d,
            de_e,
            de_directions: [direction(), direction()],
            plan: &self.plan,
            batch: &self.batch,
            mem: self.memory.share(&self.plan.shapes),
            weights: &self.weights,
            kinds: &self.table,
            local: Parts::new(&mut self.local),
            local_len,
            passing: Parts::new(&mut self.passing),
            region_pairs,
            region_len,
            scratch: Parts::new(&mut self.scratch),
            scratch_len,
            slots: Parts::new(&mut self.slots),
            forces: self.forces,
            pool: self.model.options.out_pool,
            seeds,
            out: Results::new(out, &mut self.share),
        };
        let stages = &self.passes[pass];
        if self.batch.closed {
            self.pool.run_on_threads(groups, |thread, g| {
                stages.iter().for_each(|&stage| work.run(stage, thread, g));
            });
        } else {
            for &stage in stages {
                self.pool.run_on_threads(groups, |thread, g| work.run(stage, thread, g));
            }
        }
    }

    fn first_pass(&mut self, out: &mut PinetPrediction, params: &[f64], frames: &[&PinetFrame]) {
        assert_eq!(params.len(), self.model.n_params(), "parameters of this network");
        let (plan, n_types) = (&self.plan, self.model.options.atom_types.len());
        self.batch.fill(frames, &plan.sizes, (n_types, plan.n_basis), self.forces, &self.pool);
        let most = self.batch.most_rows();
        let (atoms, structures) = (self.batch.n_atoms(), frames.len());
        self.memory.resize(&plan.shapes, atoms, self.batch.n_pairs(), most);
        weights::pack(&mut self.weights, plan, params, &self.pool);
        if plan.n_kinds > 0 {
            let pi = &self.model.blocks[0].pi;
            self.kinds.evaluate(&mut self.table, params, pi, plan.n_kinds, plan.n_basis);
        }
        out.atomic.resize(atoms, 0.0);
        out.energy.resize(structures, 0.0);
        self.share.resize(atoms, 0.0);
        out.force.resize(if self.forces { 3 * atoms } else { 0 }, 0.0);
        out.stress.resize(if self.forces { structures } else { 0 }, [0.0; 9]);
        self.run(0, out, None);
    }

    fn second_pass(&mut self, grad: &mut [f64], params: &[f64], frames: &[&PinetFrame], seeds: &PinetSeeds) {
        assert_eq!(grad.len(), params.len(), "a gradient for every parameter");
        assert_eq!(frames.len(), self.batch.n_structures(), "the batch that was evaluated");
        if self.forces {
            // The direction in which forces and stress are wanted: u = -dL/dF, and the strain of dL/dstress.
            self.batch.set_tangents(self.plan.n_basis, &self.pool, |s, i, j, d| {
                let strain = &seeds.dl_stress[s];
                [0, 1, 2].map(|k| {
                    let turned = strain[k] * d[0] + strain[3 + k] * d[1] + strain[6 + k] * d[2];
                    seeds.dl_force[3 * i + k] - seeds.dl_force[3 * j + k] + turned
                })
            });
        }
        self.run(1, &mut PinetPrediction::default(), Some(seeds));
        self.deliver(grad, params);
    }

    /// Adds the groups' parts of the gradient.
    fn deliver(&mut self, grad: &mut [f64], params: &[f64]) {
        let n = self.plan.slots;
        self.sum.resize(n, 0.0);
        let (sum, slots) = (Parts::new(&mut self.sum), &self.slots);
        self.pool.run(n.div_ceil(SUM_CHUNK), |k| {
            let range = k * SUM_CHUNK..n.min((k + 1) * SUM_CHUNK);
            // SAFETY: tasks are disjoint ranges.
            let sum = unsafe { sum.part(range.start, range.len()) };
            sum.fill(0.0);
            for slot in slots.chunks_exact(n) {
                sum.iter_mut().zip(&slot[range.clone()]).for_each(|(sum, x)| *sum += x.to_f64());
            }
        });
        grad.fill(0.0);
        for segment in &self.plan.segments {
            let sum = &self.sum[segment.first_slot..][..segment.slot];
            segment.layers().for_each(|layer| weights::deliver_add(grad, layer, sum));
        }
        if self.plan.n_kinds > 0 {
            let (pi, plan) = (&self.model.blocks[0].pi, &self.plan);
            let rows = plan.n_kinds * plan.n_kinds * pi.last().map_or(0, |layer| layer.n_out);
            let dl = &self.sum[n - rows..];
            self.kinds.deliver_add(grad, params, pi, dl, plan.n_kinds, plan.n_basis);
        }
    }
}

impl<T: Real> PinetEngine for PinetCpu<T> {
    fn pool(&self) -> Pool {
        Pool::clone(&self.pool)
    }

    fn evaluate(&mut self, out: &mut PinetPrediction, params: &[f64], batch: &[&PinetFrame]) {
        self.first_pass(out, params, batch);
    }

    fn backward(&mut self, grad: &mut [f64], params: &[f64], batch: &[&PinetFrame], seeds: &PinetSeeds) {
        self.second_pass(grad, params, batch, seeds);
    }
}
