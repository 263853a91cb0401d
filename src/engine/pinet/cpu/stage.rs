//! The stages of a step, and what a group of blocks does in each.
//!
//! Within a group nothing depends on other groups where groups are whole structures: then a group goes through all
//! stages of a pass at one go. Otherwise all groups finish a stage before any begins the next.

use super::batch::Batch;
use super::memory::{Plane, Rows, Shared};
use super::ops;
use super::plan::{Plan, Segment};
use super::task::{Region, Task};
use crate::engine::cpu::pool::Parts;
use crate::engine::cpu::real::Real;
use crate::engine::pinet::pool::pool;
use crate::engine::pinet::{PinetPrediction, PinetSeeds};
use crate::model::pinet::options::Pool;
use std::ops::Range;

/// One stage; numbers are those of segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// One-hot rows.
    Input,
    Forward(usize),
    /// Energies of structures, and what the reverse pass starts from.
    Outputs,
    Reverse(usize),
    /// dE/dd of pairs.
    PairGradients,
    /// Forces and stress.
    Forces,
    Tangent(usize),
    /// What the last pass starts from.
    Seeds,
    Adjoint(usize),
}

/// The stages of the first and of the second pass.
pub fn passes(n_segments: usize, forces: bool) -> [Vec<Stage>; 2] {
    let (up, down) = (|| 0..n_segments, || (0..n_segments).rev());
    let mut first = vec![Stage::Input];
    first.extend(up().map(Stage::Forward));
    first.push(Stage::Outputs);
    let mut second = Vec::new();
    if forces {
        first.extend(down().map(Stage::Reverse));
        first.extend([Stage::PairGradients, Stage::Forces]);
        second.extend(up().map(Stage::Tangent));
    }
    second.push(Stage::Seeds);
    second.extend(down().map(Stage::Adjoint));
    [first, second]
}

/// Where predictions go.
pub struct Results {
    atomic: Parts<f64>,
    energy: Parts<f64>,
    share: Parts<f64>,
    force: Parts<f64>,
    stress: Parts<[f64; 9]>,
}

impl Results {
    pub fn new(out: &mut PinetPrediction, share: &mut [f64]) -> Self {
        Results {
            atomic: Parts::new(&mut out.atomic),
            energy: Parts::new(&mut out.energy),
            share: Parts::new(share),
            force: Parts::new(&mut out.force),
            stress: Parts::new(&mut out.stress),
        }
    }
}

/// What all tasks of a pass share.
pub struct Work<'a, T> {
    pub plan: &'a Plan,
    pub batch: &'a Batch<T>,
    pub mem: Shared<'a, T>,
    pub weights: &'a [T],
    pub kinds: &'a [T],
    pub de_d: Parts<[f64; 3]>,
    pub de_e: Parts<T>,
    pub de_directions: [Parts<T>; 2],
    pub local: Parts<T>,
    pub local_len: usize,
    /// Regions for changes of pairs: one for each thread, or one for all where groups are not whole structures.
    pub passing: Parts<T>,
    pub region_pairs: usize,
    pub region_len: usize,
    pub scratch: Parts<T>,
    pub scratch_len: usize,
    pub slots: Parts<T>,
    pub forces: bool,
    pub pool: Option<Pool>,
    pub seeds: Option<&'a PinetSeeds>,
    pub out: Results,
}

impl<T: Real> Work<'_, T> {
    /// Takes group `g` through a stage.
    pub fn run(&self, stage: Stage, thread: usize, g: usize) {
        match stage {
            Stage::Input => self.input(g),
            Stage::Outputs => self.batch.structures(g).for_each(|s| self.outputs(s)),
            Stage::PairGradients => self.pair_gradients(g),
            Stage::Forces => self.forces(g),
            Stage::Seeds => self.start_adjoints(g),
            Stage::Forward(s) => self.segment(s, thread, g, |segment, task| {
                segment.ops.iter().for_each(|op| ops::forward(op, task));
            }),
            Stage::Reverse(s) => self.segment(s, thread, g, |segment, task| {
                segment.ops.iter().rev().for_each(|op| ops::reverse(op, task));
            }),
            Stage::Tangent(s) => self.segment(s, thread, g, |segment, task| {
                segment.ops.iter().for_each(|op| ops::tangent(op, task));
            }),
            Stage::Adjoint(s) => self.segment(s, thread, g, |segment, task| {
                if task.forces && segment.rows == Rows::Pair {
                    // Those dE that are not kept.
                    task.again = true;
                    segment.ops.iter().rev().for_each(|op| ops::reverse(op, task));
                    task.again = false;
                }
                segment.ops.iter().rev().for_each(|op| ops::adjoint(op, task));
            }),
        }
    }

    /// Takes the blocks of a group through a segment.
    fn segment(&self, s: usize, thread: usize, g: usize, run: impl Fn(&Segment, &mut Task<T>)) {
        let segment = &self.plan.segments[s];
        let is_pairs = segment.rows == Rows::Pair;
        let blocks = if is_pairs { self.batch.group(g) } else { self.batch.atom_group(g) };
        let slots = self.plan.slots;
        let kinds = self.kinds.len();
        for block in blocks {
            // SAFETY: every group has its own part of the slots, every thread its own scratch, and one task at a time.
            let (slot, kind_slot, scratch) = unsafe {
                (
                    self.slots.part(g * slots + segment.first_slot, segment.slot),
                    self.slots.part((g + 1) * slots - kinds, kinds),
                    self.scratch.part(thread * self.scratch_len, self.scratch_len),
                )
            };
            let mut task = Task {
                mem: &self.mem,
                weights: self.weights,
                kinds: self.kinds,
                batch: self.batch,
                block,
                de_e: &self.de_e,
                de_directions: &self.de_directions,
                local: &self.local,
                local_start: thread * self.local_len,
                region: self.region(thread, g),
                scratch,
                slot,
                kind_slot,
                forces: self.forces,
                again: false,
            };
            run(segment, &mut task);
        }
    }

    fn region(&self, thread: usize, g: usize) -> Region<'_, T> {
        let (start, first_pair) = match self.batch.closed {
            true => (thread * self.region_len, self.batch.first_pair[self.batch.structures(g).start]),
            false => (0, 0),
        };
        Region { data: &self.passing, start, first_pair, pairs: self.region_pairs }
    }

    /// The atoms of a group's blocks without pairs: every atom is in one of them.
    fn atoms(&self, g: usize) -> Range<usize> {
        let blocks = self.batch.atom_group(g);
        match (blocks.first(), blocks.last()) {
            (Some(first), Some(last)) => first.atoms.start..last.atoms.end,
            _ => 0..0,
        }
    }

    /// One-hot rows, which do not move.
    fn input(&self, g: usize) {
        let (input, width) = (self.plan.input, self.plan.shapes[self.plan.input.0].width);
        let atoms = self.atoms(g);
        // SAFETY: atoms of the group's own blocks.
        let (value, dot) = unsafe {
            (
                self.mem.rows_mut(input, Plane::Value, atoms.clone()),
                self.mem.rows_mut(input, Plane::Dot, atoms.clone()),
            )
        };
        value.fill(T::ZERO);
        dot.fill(T::ZERO);
        for (row, column) in value.chunks_exact_mut(width).zip(&self.batch.columns[atoms]) {
            if let Some(c) = column {
                row[*c as usize] = T::ONE;
            }
        }
    }

    /// Adds up the outputs of the blocks of the network; the energy of a structure; dE/dout.
    fn outputs(&self, s: usize) {
        let atoms = self.batch.atoms_of(s);
        // SAFETY: the structure is this task's own.
        let (atomic, share, energy) = unsafe {
            (
                self.out.atomic.part(atoms.start, atoms.len()),
                self.out.share.part(atoms.start, atoms.len()),
                self.out.energy.part(s, 1),
            )
        };
        atomic.fill(0.0);
        for &output in &self.plan.outputs {
            let values = self.mem.rows(output, Plane::Value, atoms.clone());
            atomic.iter_mut().zip(values).for_each(|(sum, x)| *sum += x.to_f64());
        }
        energy[0] = pool(share, atomic, self.pool);
        if !self.forces {
            return;
        }
        // SAFETY: as above.
        unsafe { self.mem.clear(Plane::De, atoms.clone()) };
        for &output in &self.plan.outputs {
            // SAFETY: as above.
            let de = unsafe { self.mem.rows_mut(output, Plane::De, atoms.clone()) };
            de.iter_mut().zip(share.iter()).for_each(|(de, share)| *de = T::from_f64(*share));
        }
    }

    fn pair_gradients(&self, g: usize) {
        let blocks = self.batch.group(g);
        let (Some(first), Some(last)) = (blocks.first(), blocks.last()) else { return };
        let pairs = first.pairs.start..last.pairs.end;
        let n_basis = self.plan.n_basis;
        // SAFETY: pairs of the group's own blocks.
        let (de_d, de_e) = unsafe {
            (
                self.de_d.part(pairs.start, pairs.len()),
                &*self.de_e.part(pairs.start * n_basis, pairs.len() * n_basis),
            )
        };
        let mut directions: [&[T]; 2] = [&[], &[]];
        for (k, size) in self.plan.sizes.iter().enumerate() {
            // SAFETY: as above.
            directions[k] = unsafe { &*self.de_directions[k].part(pairs.start * size, pairs.len() * size) };
        }
        for (p, de_d) in de_d.iter_mut().enumerate() {
            let mut de = [&[][..]; 2];
            for (k, size) in self.plan.sizes.iter().enumerate() {
                de[k] = &directions[k][p * size..(p + 1) * size];
            }
            let de_e = &de_e[p * n_basis..(p + 1) * n_basis];
            *de_d = self.batch.pair_gradient(pairs.start + p, de_e, de);
        }
    }

    fn forces(&self, g: usize) {
        let de_d = |p: usize| {
            // SAFETY: the stage before has written it; nobody writes it now.
            unsafe { &self.de_d.part(p, 1)[0] }
        };
        for s in self.batch.structures(g) {
            for i in self.batch.atoms_of(s) {
                // SAFETY: atoms of this task's own structure.
                let force = unsafe { self.out.force.part(3 * i, 3) };
                force.fill(0.0);
                self.batch.pairs_of(i).for_each(|p| (0..3).for_each(|k| force[k] += de_d(p)[k]));
                let to = self.batch.pairs_to(i).iter();
                to.for_each(|&p| (0..3).for_each(|k| force[k] -= de_d(p as usize)[k]));
            }
            // SAFETY: as above.
            let stress = unsafe { &mut self.out.stress.part(s, 1)[0] };
            *stress = [0.0; 9];
            for p in self.batch.first_pair[s]..self.batch.first_pair[s + 1] {
                let (d, de) = (&self.batch.d[p], de_d(p));
                (0..9).for_each(|k| stress[k] += d[k / 3] * de[k % 3]);
            }
        }
    }

    /// Zero for all sums of the last pass, and dL/dout.
    fn start_adjoints(&self, g: usize) {
        // SAFETY: the group's own part.
        unsafe { self.slots.part(g * self.plan.slots, self.plan.slots) }.fill(T::ZERO);
        let Some(seeds) = self.seeds else { return };
        for s in self.batch.structures(g) {
            let atoms = self.batch.atoms_of(s);
            // SAFETY: the structure is this task's own.
            let share = unsafe { &*self.out.share.part(atoms.start, atoms.len()) };
            // SAFETY: as above.
            unsafe { self.mem.clear(Plane::Dl, atoms.clone()) };
            for &output in &self.plan.outputs {
                // SAFETY: as above.
                let dl = unsafe { self.mem.rows_mut(output, Plane::Dl, atoms.clone()) };
                for ((dl, seed), share) in dl.iter_mut().zip(&seeds.dl_atomic[atoms.clone()]).zip(share) {
                    *dl = T::from_f64(seed + seeds.dl_energy[s] * share);
                }
            }
        }
    }
}
