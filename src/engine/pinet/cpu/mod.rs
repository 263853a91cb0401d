//! The CPU engine of PiNet: threads over blocks of atoms with their pairs, float64 or float32.
//!
//! A network becomes a list of operations once ([`plan`]); a step takes every block of the batch ([`batch`]) through
//! that list forwards and backwards, twice. Results do not depend on the number of threads.

pub mod plan;
pub mod memory;
pub mod batch;
mod task;
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

use super::pool::pool;
use super::{PinetEngine, PinetFrame, PinetPrediction, PinetSeeds};
use crate::Result;
use crate::engine::cpu::pool::{Parts, Pool};
use crate::engine::cpu::real::Real;
use crate::model::pinet::PinetModel;
use batch::Batch;
use memory::{Buf, Memory, Plane, Rows};
use plan::{Plan, Segment};
use std::sync::Arc;
use task::Task;

/// Evaluates a PiNet on CPU threads in float32 or float64.
pub struct PinetCpu<T> {
    model: Arc<PinetModel>,
    plan: Plan,
    pool: Arc<Pool>,
    forces: bool,
    batch: Batch<T>,
    memory: Memory<T>,
    weights: Vec<T>,
    /// For each group of blocks: its part of a segment's gradient.
    slots: Vec<T>,
    /// For each thread: room within an operation, and changes and adjoints of the pairs of one block.
    scratch: Vec<T>,
    local: Vec<T>,
    /// `[n_atoms]` dE/dout
    share: Vec<f64>,
}

/// The four passes of a step.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pass {
    Forward,
    Reverse,
    Tangent,
    Adjoint,
}

impl Pass {
    /// Takes a block through a segment.
    fn run<T: Real>(self, segment: &Segment, task: &mut Task<T>) {
        let ops = segment.ops.iter();
        match self {
            Pass::Forward => ops.for_each(|op| ops::forward(op, task)),
            Pass::Reverse => ops.rev().for_each(|op| ops::reverse(op, task)),
            Pass::Tangent => ops.for_each(|op| ops::tangent(op, task)),
            Pass::Adjoint => {
                if task.forces && segment.rows == Rows::Pair {
                    task.again = true;
                    ops.clone().for_each(|op| ops::tangent(op, task));
                    ops.clone().rev().for_each(|op| ops::reverse(op, task));
                    task.again = false;
                }
                ops.rev().for_each(|op| ops::adjoint(op, task));
            }
        }
    }
}

impl<T: Real> PinetCpu<T> {
    /// `forces`: whether forces and stress are wanted.
    pub fn new(model: Arc<PinetModel>, threads: usize, forces: bool) -> Result<Self> {
        Ok(PinetCpu {
            plan: Plan::new(&model),
            model,
            pool: Arc::new(Pool::new(threads)?),
            forces,
            batch: Batch::default(),
            memory: Memory::default(),
            weights: Vec::new(),
            slots: Vec::new(),
            scratch: Vec::new(),
            local: Vec::new(),
            share: Vec::new(),
        })
    }

    pub fn n_threads(&self) -> usize {
        self.pool.n_threads()
    }

    /// Takes all blocks through a segment.
    fn run(&mut self, s: usize, pass: Pass) {
        let segment = &self.plan.segments[s];
        let (groups, threads) = (self.batch.n_groups(), self.pool.n_threads());
        let scratch_len = self.batch.most_rows() * self.plan.scratch;
        self.scratch.resize(self.scratch.len().max(threads * scratch_len), T::ZERO);
        let local_len = self.memory.local_len();
        self.local.resize(self.local.len().max(threads * local_len), T::ZERO);
        let slot_len = if pass == Pass::Adjoint { segment.slot } else { 0 };
        self.slots.clear();
        self.slots.resize(groups * slot_len, T::ZERO);
        let mut de_e = std::mem::take(&mut self.batch.de_e);
        let mut de_directions: Vec<Vec<T>> =
            self.batch.directions.iter_mut().map(|d| std::mem::take(&mut d.de)).collect();
        {
            let parts = Parts::new(&mut de_e);
            let direction_parts: Vec<Parts<T>> = de_directions.iter_mut().map(|d| Parts::new(d)).collect();
            let (scratch, slots) = (Parts::new(&mut self.scratch), Parts::new(&mut self.slots));
            let local = Parts::new(&mut self.local);
            let mem = self.memory.share(&self.plan.shapes);
            let (batch, weights, forces) = (&self.batch, &self.weights[..], self.forces);
            self.pool.run_on_threads(groups, |thread, g| {
                let blocks = if segment.rows == Rows::Pair { batch.group(g) } else { batch.atom_group(g) };
                for block in blocks {
                    let mut task = Task {
                        mem: &mem,
                        weights,
                        batch,
                        block,
                        de_e: &parts,
                        de_directions: &direction_parts,
                        local: &local,
                        local_start: thread * local_len,
                        // SAFETY: every thread has its own part and runs one task at a time.
                        scratch: unsafe { scratch.part(thread * scratch_len, scratch_len) },
                        // SAFETY: every group has its own part, and one task.
                        slot: unsafe { slots.part(g * slot_len, slot_len) },
                        forces,
                        again: false,
                    };
                    pass.run(segment, &mut task);
                }
            });
        }
        self.batch.de_e = de_e;
        for (direction, de) in self.batch.directions.iter_mut().zip(de_directions) {
            direction.de = de;
        }
    }

    /// Writes a matrix of atoms from the calling thread.
    fn set(&mut self, buf: Buf, plane: Plane, value: impl Fn(usize) -> T) {
        let n = self.batch.n_atoms() * self.plan.shapes[buf.0].width;
        let mem = self.memory.share(&self.plan.shapes);
        // SAFETY: no task runs.
        let data = unsafe { mem.rows_mut(buf, plane, 0..self.batch.n_atoms()) };
        (0..n).for_each(|k| data[k] = value(k));
    }

    /// The one-hot rows, which never change.
    fn set_input(&mut self) {
        let (input, width) = (self.plan.input, self.plan.shapes[self.plan.input.0].width);
        let columns = std::mem::take(&mut self.batch.columns);
        let n = columns.len();
        let mem = self.memory.share(&self.plan.shapes);
        // SAFETY: no task runs.
        let (value, dot) =
            unsafe { (mem.rows_mut(input, Plane::Value, 0..n), mem.rows_mut(input, Plane::Dot, 0..n)) };
        value.fill(T::ZERO);
        dot.fill(T::ZERO);
        for (i, column) in columns.iter().enumerate() {
            if let Some(c) = column {
                value[i * width + *c as usize] = T::ONE;
            }
        }
        self.batch.columns = columns;
    }

    /// Adds up the outputs of the blocks, and the energies of structures.
    fn collect_outputs(&mut self, out: &mut PinetPrediction) {
        let n = self.batch.n_atoms();
        out.atomic.clear();
        out.atomic.resize(n, 0.0);
        let mem = self.memory.share(&self.plan.shapes);
        for &output in &self.plan.outputs {
            let values = mem.rows(output, Plane::Value, 0..n);
            out.atomic.iter_mut().zip(values).for_each(|(sum, x)| *sum += x.to_f64());
        }
        out.energy.clear();
        self.share.clear();
        for s in 0..self.batch.n_structures() {
            let atoms = self.batch.first_atom[s]..self.batch.first_atom[s + 1];
            out.energy.push(pool(&mut self.share, &out.atomic[atoms], self.model.options.out_pool));
        }
    }

    /// Forces and stress from what the reverse pass left.
    fn collect_forces(&mut self, out: &mut PinetPrediction) {
        let n_basis = self.plan.n_basis;
        let mut de_d = std::mem::take(&mut self.batch.de_d);
        let (parts, batch) = (Parts::new(&mut de_d), &self.batch);
        self.pool.run(batch.n_groups(), |g| {
            for block in batch.group(g) {
                // SAFETY: pairs of the group's own blocks.
                let de_d = unsafe { parts.part(block.pairs.start, block.pairs.len()) };
                de_d.iter_mut()
                    .zip(block.pairs.clone())
                    .for_each(|(de, p)| *de = batch.pair_gradient(p, n_basis));
            }
        });
        out.force.clear();
        out.force.resize(3 * batch.n_atoms(), 0.0);
        let forces = Parts::new(&mut out.force);
        let de_d_ref = &de_d;
        self.pool.run(batch.n_groups(), |g| {
            for i in batch.group(g).iter().flat_map(|block| block.atoms.clone()) {
                // SAFETY: atoms of the group's own blocks.
                let force = unsafe { forces.part(3 * i, 3) };
                batch.pairs_of(i).for_each(|p| (0..3).for_each(|k| force[k] += de_d_ref[p][k]));
                let to = batch.pairs_to(i).iter();
                to.for_each(|&p| (0..3).for_each(|k| force[k] -= de_d_ref[p as usize][k]));
            }
        });
        out.stress.clear();
        for s in 0..batch.n_structures() {
            let pairs =
                batch.start[batch.first_atom[s]] as usize..batch.start[batch.first_atom[s + 1]] as usize;
            let mut stress = [0.0; 9];
            for p in pairs {
                let (d, de) = (&batch.d[p], &de_d[p]);
                (0..9).for_each(|k| stress[k] += d[k / 3] * de[k % 3]);
            }
            out.stress.push(stress);
        }
        self.batch.de_d = de_d;
    }

    /// The direction in which forces and stress are wanted: u = -dL/dF, and the strain of dL/dstress.
    fn set_tangents(&mut self, seeds: &PinetSeeds) {
        let n_basis = self.plan.n_basis;
        let mut structure = vec![0u32; self.batch.n_atoms()];
        for s in 0..self.batch.n_structures() {
            structure[self.batch.first_atom[s]..self.batch.first_atom[s + 1]].fill(s as u32);
        }
        let (i, j, d) = (
            std::mem::take(&mut self.batch.i),
            std::mem::take(&mut self.batch.j),
            std::mem::take(&mut self.batch.d),
        );
        self.batch.set_tangents(n_basis, &d, |p| {
            let (i, j) = (i[p] as usize, j[p] as usize);
            let strain = &seeds.dl_stress[structure[i] as usize];
            [0, 1, 2].map(|k| {
                let turned = strain[k] * d[p][0] + strain[3 + k] * d[p][1] + strain[6 + k] * d[p][2];
                seeds.dl_force[3 * i + k] - seeds.dl_force[3 * j + k] + turned
            })
        });
        (self.batch.i, self.batch.j, self.batch.d) = (i, j, d);
    }

    /// Adds the groups' parts of a segment's gradient.
    fn deliver(&self, grad: &mut [f64], segment: &Segment) {
        if segment.slot == 0 {
            return;
        }
        let mut sum = vec![0.0; segment.slot];
        for slot in self.slots.chunks_exact(segment.slot) {
            sum.iter_mut().zip(slot).for_each(|(sum, x)| *sum += x.to_f64());
        }
        segment.layers().for_each(|layer| weights::deliver_add(grad, layer, &sum));
    }
}

impl<T: Real> PinetCpu<T> {
    fn first_pass(&mut self, out: &mut PinetPrediction, params: &[f64], batch: &[&PinetFrame]) {
        assert_eq!(params.len(), self.model.n_params(), "parameters of this network");
        self.batch.fill(batch, &self.plan.sizes, self.forces);
        let most = self.batch.most_rows();
        self.memory.resize(&self.plan.shapes, self.batch.n_atoms(), self.batch.n_pairs(), most);
        weights::pack(&mut self.weights, &self.plan, params);
        self.set_input();
        for s in 0..self.plan.segments.len() {
            self.run(s, Pass::Forward);
        }
        self.collect_outputs(out);
        out.force.clear();
        out.stress.clear();
        if self.forces {
            self.memory.clear_de();
            let share = std::mem::take(&mut self.share);
            for k in 0..self.plan.outputs.len() {
                self.set(self.plan.outputs[k], Plane::De, |i| T::from_f64(share[i]));
            }
            self.share = share;
            for s in (0..self.plan.segments.len()).rev() {
                self.run(s, Pass::Reverse);
            }
            self.collect_forces(out);
        }
    }

    fn second_pass(&mut self, grad: &mut [f64], params: &[f64], batch: &[&PinetFrame], seeds: &PinetSeeds) {
        assert_eq!(grad.len(), params.len(), "a gradient for every parameter");
        assert_eq!(batch.len(), self.batch.n_structures(), "the batch that was evaluated");
        grad.fill(0.0);
        if self.forces {
            self.set_tangents(seeds);
            for s in 0..self.plan.segments.len() {
                self.run(s, Pass::Tangent);
            }
        }
        self.memory.clear_dl();
        let mut dl = seeds.dl_atomic.clone();
        for s in 0..self.batch.n_structures() {
            for i in self.batch.first_atom[s]..self.batch.first_atom[s + 1] {
                dl[i] += seeds.dl_energy[s] * self.share[i];
            }
        }
        for k in 0..self.plan.outputs.len() {
            self.set(self.plan.outputs[k], Plane::Dl, |i| T::from_f64(dl[i]));
        }
        for s in (0..self.plan.segments.len()).rev() {
            self.run(s, Pass::Adjoint);
            self.deliver(grad, &self.plan.segments[s]);
        }
    }
}

impl<T: Real> PinetEngine for PinetCpu<T> {
    fn evaluate(&mut self, out: &mut PinetPrediction, params: &[f64], batch: &[&PinetFrame]) {
        self.first_pass(out, params, batch);
    }

    fn backward(&mut self, grad: &mut [f64], params: &[f64], batch: &[&PinetFrame], seeds: &PinetSeeds) {
        self.second_pass(grad, params, batch, seeds);
    }
}
