//! The passes over blocks of atoms between the pairs and the fitting nets.
//!
//! Atoms of a batch are rows, grouped by type and, within a type, by frame: a segment is the atoms of one type in
//! one frame. A block is up to [`ATOMS`] rows of a segment, the unit of work of a thread.

use super::chebyshev::{Plan, Series};
use super::dense::{Accumulate, Strided, product};
use super::direct::Atom;
use super::fitting::Fitting;
use super::frame::{CpuFrame, rows_of};
use super::pairs;
use super::pool::{Parts, Pool};
use super::real::Real;
use super::scratch::scratch;
use super::vacuum::Vacuum;
use super::{Prediction, Seeds, descriptor};
use crate::model::dp::Dp;
use std::sync::Arc;

/// Rows of one block. Fixed, so that results do not depend on the number of threads.
const ATOMS: usize = 16;
/// Rows of the coefficients' gradient that one task computes.
const GRAD_TERMS: usize = 16;

/// The atoms of one type in one frame.
#[derive(Clone, Copy, Debug)]
pub struct Segment {
    center: usize,
    frame: usize,
    /// First row in the batch and in the frame.
    row: usize,
    local: usize,
    n: usize,
}

/// Part of a segment.
#[derive(Clone, Copy)]
struct Block {
    center: usize,
    frame: usize,
    row: usize,
    local: usize,
    n: usize,
}

/// A batch as the passes see it.
pub struct Batch<'a, T> {
    model: &'a Dp,
    params: &'a [f64],
    frames: &'a [&'a CpuFrame<T>],
    plan: Option<Arc<Plan>>,
    /// Whether the series holds for each frame; where not, the net itself is used.
    by_series: Vec<bool>,
    segments: Vec<Segment>,
    blocks: Vec<Block>,
    /// First pair, and first atom (in file order), of each frame.
    first_pair: Vec<usize>,
    first_atom: Vec<usize>,
}

fn segments<T: Real>(model: &Dp, frames: &[&CpuFrame<T>]) -> Vec<Segment> {
    let mut row = 0;
    let mut out = Vec::new();
    for center in 0..model.n_types() {
        for (f, frame) in frames.iter().enumerate() {
            let (local, end) = (frame.block[center], frame.block[center + 1]);
            if end > local {
                out.push(Segment { center, frame: f, row, local, n: end - local });
                row += end - local;
            }
        }
    }
    out
}

fn running_sum(sizes: impl Iterator<Item = usize>) -> Vec<usize> {
    let mut sums = vec![0];
    for n in sizes {
        sums.push(sums[sums.len() - 1] + n);
    }
    sums
}

impl<'a, T: Real> Batch<'a, T> {
    pub fn new(
        model: &'a Dp,
        params: &'a [f64],
        frames: &'a [&'a CpuFrame<T>],
        plan: Option<&Arc<Plan>>,
        segments: &[Segment],
    ) -> Self {
        let mut blocks = Vec::new();
        for s in segments {
            for k in (0..s.n).step_by(ATOMS) {
                let n = ATOMS.min(s.n - k);
                blocks.push(Block {
                    center: s.center,
                    frame: s.frame,
                    row: s.row + k,
                    local: s.local + k,
                    n,
                });
            }
        }
        let by_series = |frame: &&CpuFrame<T>| plan.is_some_and(|plan| frame.covered_by(plan));
        Batch {
            model,
            params,
            frames,
            plan: plan.cloned(),
            by_series: frames.iter().map(by_series).collect(),
            segments: segments.to_vec(),
            blocks,
            first_pair: running_sum(frames.iter().map(|f| f.j.len())),
            first_atom: running_sum(frames.iter().map(|f| f.n_atoms)),
        }
    }

    /// Atoms of each type.
    pub fn group_sizes(&self) -> Vec<usize> {
        let mut sizes = vec![0; self.model.n_types()];
        for s in &self.segments {
            sizes[s.center] += s.n;
        }
        sizes
    }

    /// dL/denergy of every atom, by type.
    pub fn energy_seeds(&self, seeds: &Seeds) -> Vec<Vec<f64>> {
        let mut out = vec![Vec::new(); self.model.n_types()];
        for s in &self.segments {
            for r in s.local..s.local + s.n {
                let atom = self.first_atom[s.frame] + self.frames[s.frame].order[r] as usize;
                out[s.center].push(seeds.dl_energy[s.frame] + seeds.dl_atom_energy[atom]);
            }
        }
        out
    }

    /// Inputs of the fitting nets beside the descriptor, by type.
    pub fn extra_inputs(&self) -> Vec<Vec<f64>> {
        let n_extra = self.model.n_extra();
        let mut out = vec![Vec::new(); self.model.n_types()];
        for s in &self.segments {
            let rows = &self.frames[s.frame].extra[s.local * n_extra..(s.local + s.n) * n_extra];
            out[s.center].extend(rows.iter().map(|x| x.to_f64()));
        }
        out
    }

    /// First row of each type.
    fn group_rows(&self) -> Vec<usize> {
        running_sum(self.group_sizes().into_iter())
    }

    fn atom(&self, block: &Block, k: usize) -> Atom<'_, T> {
        Atom {
            model: self.model,
            params: self.params,
            frame: self.frames[block.frame],
            row: block.local + k,
            center: block.center,
        }
    }

    /// The series of a block; `None` where the net itself is used.
    fn plan_of(&self, block: &Block) -> Option<&Plan> {
        self.plan.as_deref().filter(|_| self.by_series[block.frame])
    }

    /// Columns of Q: neighbour types times terms.
    fn n_terms(&self) -> usize {
        self.plan.as_ref().map_or(0, |plan| plan.terms * self.model.n_types())
    }

    /// Index of the stacked coefficients for a centre type.
    fn stack(&self, center: usize) -> usize {
        if self.model.descriptor().type_one_side { 0 } else { center }
    }
}

/// What lives from one pass to the next.
#[derive(Default)]
pub struct Buffers<T> {
    pub segments: Vec<Segment>,
    /// `[rows, 4, M1]` A, its tangent, dE/dA, dL/dA.
    a: Vec<T>,
    a_dot: Vec<T>,
    de_a: Vec<T>,
    dl_a: Vec<T>,
    /// `[rows, 4, n_types K]` Q and its tangent.
    q: Vec<T>,
    q_dot: Vec<T>,
    /// `[n_pairs]` dE/dd and d_dot, by component.
    de_d: [Vec<T>; 3],
    d_dot: [Vec<T>; 3],
    /// For each centre type (or one for all): `[n_types K, M1]` scaled by 1/n_sel, and its transpose.
    c: Vec<Vec<T>>,
    c_t: Vec<Vec<T>>,
    /// `[n_blocks]` virial of each block.
    virial: Vec<[f64; 9]>,
}

fn room<T: Real>(buffer: &mut Vec<T>, len: usize) {
    if buffer.len() < len {
        buffer.resize(len, T::ZERO);
    }
}

impl<T: Real> Buffers<T> {
    /// Makes room for a batch.
    pub fn resize(&mut self, model: &Dp, frames: &[&CpuFrame<T>], plan: Option<&Arc<Plan>>) {
        self.segments = segments(model, frames);
        let rows: usize = frames.iter().map(|f| f.n_rows()).sum();
        let pairs: usize = frames.iter().map(|f| f.j.len()).sum();
        for buffer in [&mut self.a, &mut self.a_dot, &mut self.de_a, &mut self.dl_a] {
            room(buffer, rows * 4 * model.n_embed());
        }
        for buffer in [&mut self.q, &mut self.q_dot] {
            room(buffer, rows * 4 * model.n_types() * plan.map_or(0, |plan| plan.terms));
        }
        for buffer in self.de_d.iter_mut().chain(&mut self.d_dot) {
            room(buffer, pairs);
        }
    }

    /// Puts the coefficients of all neighbour types below each other.
    pub fn stack_coefficients(&mut self, model: &Dp, plan: &Plan, series: &Series) {
        let n_stacks = if model.descriptor().type_one_side { 1 } else { model.n_types() };
        let (m1, rows) = (model.n_embed(), plan.terms * model.n_types());
        let scale = 1.0 / model.n_sel() as f64;
        self.c.resize(n_stacks, Vec::new());
        self.c_t.resize(n_stacks, Vec::new());
        for center in 0..n_stacks {
            let c = &mut self.c[center];
            c.clear();
            for t in 0..model.n_types() {
                let net = &series.coefficients[model.embedding_net(center, t)];
                c.extend(net.iter().map(|&x| T::from_f64(x * scale)));
            }
            self.c_t[center].resize(rows * m1, T::ZERO);
            super::dense::transpose(&mut self.c_t[center], c, rows, m1);
        }
    }
}

/// A and the descriptor of every atom, into the fitting nets.
pub fn describe<T: Real>(pool: &Pool, batch: &Batch<T>, buffers: &mut Buffers<T>, fitting: &mut Fitting<T>) {
    let model = batch.model;
    let (m1, m2, n_extra, fold) =
        (model.n_embed(), model.descriptor().axis_neuron, model.n_extra(), fitting.fold());
    let n_d = fold.width(model.n_descriptor());
    let (stride, width) = (4 * m1, n_d + n_extra);
    let first = batch.group_rows();
    let inputs: Vec<_> = (0..model.n_types()).map(|c| Parts::new(fitting.input(c))).collect();
    let (a, q, c) = (Parts::new(&mut buffers.a), Parts::new(&mut buffers.q), &buffers.c);
    pool.run(batch.blocks.len(), |b| {
        let block = &batch.blocks[b];
        // SAFETY: each block has its own rows.
        let a = unsafe { a.part(block.row * stride, block.n * stride) };
        match batch.plan_of(block) {
            Some(plan) => {
                let tk = batch.n_terms();
                // SAFETY: as above.
                let q = unsafe { q.part(block.row * 4 * tk, block.n * 4 * tk) };
                let rows = rows_of(model, block.center);
                for (k, q) in q.chunks_exact_mut(4 * tk).enumerate() {
                    batch.frames[block.frame].features(q, plan, model, &rows, block.local + k, block.center);
                }
                let q = Strided { data: q, row: tk, col: 1 };
                let c = &c[batch.stack(block.center)];
                product(a, m1, Accumulate::Overwrite, q, c, m1, 4 * block.n, m1, tk);
            }
            None => a.chunks_exact_mut(stride).enumerate().for_each(|(k, a)| batch.atom(block, k).forward(a)),
        }
        let start = (block.row - first[block.center]) * width;
        // SAFETY: as above.
        let x = unsafe { inputs[block.center].part(start, block.n * width) };
        let extra = &batch.frames[block.frame].extra[block.local * n_extra..];
        for k in 0..block.n {
            let x = &mut x[k * width..(k + 1) * width];
            descriptor::forward(x, &a[k * stride..(k + 1) * stride], m1, m2, fold.square());
            x[n_d..].copy_from_slice(&extra[k * n_extra..(k + 1) * n_extra]);
        }
    });
}

/// dE/dA and dE/dd of every pair, from dE/dinput of the fitting nets.
pub fn differentiate<T: Real>(pool: &Pool, batch: &Batch<T>, buffers: &mut Buffers<T>, fitting: &Fitting<T>) {
    let model = batch.model;
    let (m1, m2, n_types) = (model.n_embed(), model.descriptor().axis_neuron, model.n_types());
    let fold = fitting.fold();
    let (stride, width) = (4 * m1, fold.width(model.n_descriptor()) + model.n_extra());
    let first = batch.group_rows();
    buffers.virial.clear();
    buffers.virial.resize(batch.blocks.len(), [0.0; 9]);
    let virial = Parts::new(&mut buffers.virial);
    let de_d = buffers.de_d.each_mut().map(|x| Parts::new(x));
    let (a, de_a, c_t) = (&buffers.a, Parts::new(&mut buffers.de_a), &buffers.c_t);
    pool.run(batch.blocks.len(), |b| {
        let block = &batch.blocks[b];
        let frame = batch.frames[block.frame];
        // SAFETY: each block has its own rows.
        let de_a = unsafe { de_a.part(block.row * stride, block.n * stride) };
        let de_x = &fitting.de_input(block.center)[(block.row - first[block.center]) * width..];
        for k in 0..block.n {
            let row = block.row + k;
            let a = &a[row * stride..(row + 1) * stride];
            let de_a = &mut de_a[k * stride..(k + 1) * stride];
            de_a.fill(T::ZERO);
            descriptor::adjoint_add(de_a, a, &de_x[k * width..(k + 1) * width], m1, m2, fold.square());
        }
        let offset = batch.first_pair[block.frame];
        let pairs = frame.pairs(block.local, 0, n_types).start
            ..frame.pairs(block.local + block.n - 1, n_types - 1, n_types).end;
        // SAFETY: the pairs of different atoms are different.
        let mut de_d = de_d.each_ref().map(|x| unsafe { x.part(offset + pairs.start, pairs.len()) });
        match batch.plan_of(block) {
            Some(_) => forces_by_series(&mut de_d, batch, block, de_a, &c_t[batch.stack(block.center)]),
            None => {
                for k in 0..block.n {
                    let atom = batch.atom(block, k);
                    let own = frame.pairs(atom.row, 0, n_types).start
                        ..frame.pairs(atom.row, n_types - 1, n_types).end;
                    let own = own.start - pairs.start..own.end - pairs.start;
                    let part = de_d.each_mut().map(|x| &mut x[own.clone()]);
                    atom.forces(part, &de_a[k * stride..(k + 1) * stride]);
                }
            }
        }
        // SAFETY: one element for each block.
        let virial = unsafe { &mut virial.part(b, 1)[0] };
        for (n, p) in pairs.enumerate() {
            for k in 0..3 {
                let d = frame.d[k][p].to_f64();
                for l in 0..3 {
                    virial[3 * k + l] -= d * de_d[l][n].to_f64();
                }
            }
        }
    });
}

/// dE/dd of the pairs of a block: dE/dQ = dE/dA C^T, then one walk over the pairs.
fn forces_by_series<T: Real>(
    de_d: &mut [&mut [T]; 3],
    batch: &Batch<T>,
    block: &Block,
    de_a: &[T],
    c_t: &[T],
) {
    let (m1, n_types, tk) = (batch.model.n_embed(), batch.model.n_types(), batch.n_terms());
    let Some(plan) = &batch.plan else { return };
    let frame = batch.frames[block.frame];
    let a = Strided { data: de_a, row: m1, col: 1 };
    scratch(block.n * 4 * tk, |de_q: &mut [T]| {
        product(de_q, tk, Accumulate::Overwrite, a, c_t, tk, 4 * block.n, tk, m1);
        let first = frame.pairs(block.local, 0, n_types).start;
        let rows = rows_of(batch.model, block.center);
        for k in 0..block.n {
            for t in 0..n_types {
                let pairs = frame.pairs(block.local + k, t, n_types);
                let own = pairs.start - first..pairs.end - first;
                let part = de_d.each_mut().map(|x| &mut x[own.clone()]);
                let de_q = &de_q[k * 4 * tk + t * plan.terms..];
                pairs::forces(
                    part,
                    de_q,
                    tk,
                    plan.terms,
                    &frame.d,
                    &rows,
                    pairs.start,
                    pairs.len(),
                    plan.scale(),
                );
            }
        }
    });
}

/// Sums up energies, forces and virials, always in the same order.
pub fn collect<T: Real>(
    pool: &Pool,
    out: &mut Prediction,
    batch: &Batch<T>,
    buffers: &Buffers<T>,
    fitting: &Fitting<T>,
    vacuum: &Vacuum,
) {
    let n_types = batch.model.n_types();
    let n_atoms = batch.first_atom[batch.frames.len()];
    out.energy.clear();
    out.energy.resize(batch.frames.len(), 0.0);
    out.virial.clear();
    out.virial.resize(batch.frames.len(), [0.0; 9]);
    out.atom_energy.clear();
    out.atom_energy.resize(n_atoms, 0.0);
    out.force.resize(3 * n_atoms, 0.0);
    let first = batch.group_rows();
    for s in &batch.segments {
        let energy = &fitting.energy(s.center)[s.row - first[s.center]..];
        for (k, e) in energy[..s.n].iter().enumerate() {
            let vacuum = vacuum.energy(s.center, s.row - first[s.center] + k);
            let e = e.to_f64() - vacuum + batch.model.stats.bias[s.center];
            let atom = batch.frames[s.frame].order[s.local + k] as usize;
            out.atom_energy[batch.first_atom[s.frame] + atom] = e;
            out.energy[s.frame] += e;
        }
    }
    for (block, virial) in batch.blocks.iter().zip(&buffers.virial) {
        for (sum, x) in out.virial[block.frame].iter_mut().zip(virial) {
            *sum += x;
        }
    }
    let force = Parts::new(&mut out.force);
    let jobs = force_jobs(batch);
    pool.run(jobs.len(), |j| {
        let (f, atoms) = jobs[j].clone();
        let frame = batch.frames[f];
        let de_d = buffers.de_d.each_ref().map(|x| &x[batch.first_pair[f]..batch.first_pair[f + 1]]);
        // SAFETY: jobs are disjoint ranges of atoms.
        let force = unsafe { force.part(3 * (batch.first_atom[f] + atoms.start), 3 * atoms.len()) };
        force.fill(0.0);
        for (i, force) in atoms.clone().zip(force.chunks_exact_mut(3)) {
            let reverse = frame.reverse_start[i] as usize..frame.reverse_start[i + 1] as usize;
            for &p in &frame.reverse[reverse] {
                for k in 0..3 {
                    force[k] -= de_d[k][p as usize].to_f64();
                }
            }
        }
    });
    // The pairs of an atom as a centre, row by row.
    let jobs: Vec<_> = batch.blocks.iter().collect();
    pool.run(jobs.len(), |j| {
        let block = jobs[j];
        let frame = batch.frames[block.frame];
        let offset = batch.first_pair[block.frame];
        for r in block.local..block.local + block.n {
            let atom = batch.first_atom[block.frame] + frame.order[r] as usize;
            // SAFETY: every atom is the centre of one row only.
            let force = unsafe { force.part(3 * atom, 3) };
            for p in frame.pairs(r, 0, n_types).start..frame.pairs(r, n_types - 1, n_types).end {
                for k in 0..3 {
                    force[k] += buffers.de_d[k][offset + p].to_f64();
                }
            }
        }
    });
}

/// Ranges of atoms, in file order, of each frame.
fn force_jobs<T: Real>(batch: &Batch<T>) -> Vec<(usize, std::ops::Range<usize>)> {
    let mut jobs = Vec::new();
    for (f, frame) in batch.frames.iter().enumerate() {
        for i in (0..frame.n_atoms).step_by(4 * ATOMS) {
            jobs.push((f, i..(i + 4 * ATOMS).min(frame.n_atoms)));
        }
    }
    jobs
}

/// The direction x_dot = -dL/dF (and the strain of dL/dvirial), pushed through pairs, A and descriptor.
pub fn tangent<T: Real>(
    pool: &Pool,
    batch: &Batch<T>,
    buffers: &mut Buffers<T>,
    fitting: &mut Fitting<T>,
    seeds: &Seeds,
) {
    let model = batch.model;
    let (m1, m2, n_types, fold) =
        (model.n_embed(), model.descriptor().axis_neuron, model.n_types(), fitting.fold());
    let n_d = fold.width(model.n_descriptor());
    let (stride, width, tk) = (4 * m1, n_d + model.n_extra(), batch.n_terms());
    let first = batch.group_rows();
    let inputs: Vec<_> = (0..n_types).map(|c| Parts::new(fitting.input_dot(c))).collect();
    let (a, c) = (&buffers.a, &buffers.c);
    let (a_dot, q_dot) = (Parts::new(&mut buffers.a_dot), Parts::new(&mut buffers.q_dot));
    let d_dot = buffers.d_dot.each_mut().map(|x| Parts::new(x));
    pool.run(batch.blocks.len(), |b| {
        let block = &batch.blocks[b];
        let frame = batch.frames[block.frame];
        // SAFETY: each block has its own rows and pairs.
        let a_dot = unsafe { a_dot.part(block.row * stride, block.n * stride) };
        // SAFETY: as above; reads go to the block's own pairs.
        let mut d_dot = d_dot.each_ref().map(|x| unsafe {
            let start = frame.pairs(block.local, 0, n_types).start;
            let end = frame.pairs(block.local + block.n - 1, n_types - 1, n_types).end;
            x.part(batch.first_pair[block.frame] + start, end - start)
        });
        direction(&mut d_dot, batch, block, seeds);
        let first_pair = frame.pairs(block.local, 0, n_types).start;
        let columns = d_dot.map(|x| &*x);
        match batch.plan_of(block) {
            Some(plan) => {
                // SAFETY: as above.
                let q_dot = unsafe { q_dot.part(block.row * 4 * tk, block.n * 4 * tk) };
                let rows = rows_of(model, block.center);
                for k in 0..block.n {
                    for t in 0..n_types {
                        let pairs = frame.pairs(block.local + k, t, n_types);
                        let out = &mut q_dot[k * 4 * tk + t * plan.terms..];
                        let scale = plan.scale();
                        let at = first_pair;
                        pairs::features_tangent(
                            out,
                            tk,
                            plan.terms,
                            &frame.d,
                            &rows,
                            columns,
                            at,
                            pairs.start,
                            pairs.len(),
                            scale,
                        );
                    }
                }
                let q = Strided { data: q_dot, row: tk, col: 1 };
                let c = &c[batch.stack(block.center)];
                product(a_dot, m1, Accumulate::Overwrite, q, c, m1, 4 * block.n, m1, tk);
            }
            None => {
                for (k, a_dot) in a_dot.chunks_exact_mut(stride).enumerate() {
                    batch.atom(block, k).tangent(a_dot, columns, first_pair);
                }
            }
        }
        // SAFETY: as above.
        let x_dot =
            unsafe { inputs[block.center].part((block.row - first[block.center]) * width, block.n * width) };
        for k in 0..block.n {
            let row = block.row + k;
            let x_dot = &mut x_dot[k * width..(k + 1) * width];
            descriptor::tangent(
                x_dot,
                &a[row * stride..(row + 1) * stride],
                &a_dot[k * stride..(k + 1) * stride],
                m1,
                m2,
                fold.square(),
            );
            x_dot[n_d..].fill(T::ZERO);
        }
    });
}

/// `d_dot = u_j - u_i - dL/dvirial^T d` with `u = -dL/dF`, for the pairs of a block.
fn direction<T: Real>(d_dot: &mut [&mut [T]; 3], batch: &Batch<T>, block: &Block, seeds: &Seeds) {
    let frame = batch.frames[block.frame];
    let n_types = batch.model.n_types();
    let first = batch.first_atom[block.frame];
    let dl_force = &seeds.dl_force[3 * first..];
    let strain = seeds.dl_virial[block.frame].map(T::from_f64);
    let mut at = 0;
    for r in block.local..block.local + block.n {
        let i = frame.order[r] as usize;
        let own = [0, 1, 2].map(|k| dl_force[3 * i + k]);
        for p in frame.pairs(r, 0, n_types).start..frame.pairs(r, n_types - 1, n_types).end {
            let j = frame.j[p] as usize;
            let d = [0, 1, 2].map(|k| frame.d[k][p]);
            for k in 0..3 {
                let bend = strain[k] * d[0] + strain[3 + k] * d[1] + strain[6 + k] * d[2];
                d_dot[k][at] = T::from_f64(own[k] - dl_force[3 * j + k]) - bend;
            }
            at += 1;
        }
    }
}

/// dL/dA of every atom, from dL/dinput and dE/dinput of the fitting nets.
pub fn adjoint<T: Real>(pool: &Pool, batch: &Batch<T>, buffers: &mut Buffers<T>, fitting: &Fitting<T>) {
    let model = batch.model;
    let (m1, m2) = (model.n_embed(), model.descriptor().axis_neuron);
    let fold = fitting.fold();
    let (stride, width) = (4 * m1, fold.width(model.n_descriptor()) + model.n_extra());
    let first = batch.group_rows();
    let (a, a_dot, dl_a) = (&buffers.a, &buffers.a_dot, Parts::new(&mut buffers.dl_a));
    pool.run(batch.blocks.len(), |b| {
        let block = &batch.blocks[b];
        // SAFETY: each block has its own rows.
        let dl_a = unsafe { dl_a.part(block.row * stride, block.n * stride) };
        let at = (block.row - first[block.center]) * width;
        let dl_x = &fitting.dl_input(block.center)[at..];
        let de_x = &fitting.de_input(block.center)[at..];
        for k in 0..block.n {
            let row = (block.row + k) * stride..(block.row + k + 1) * stride;
            let x = k * width..(k + 1) * width;
            let dl_a = &mut dl_a[k * stride..(k + 1) * stride];
            dl_a.fill(T::ZERO);
            descriptor::adjoint_add(dl_a, &a[row.clone()], &dl_x[x.clone()], m1, m2, fold.square());
            descriptor::adjoint_add(dl_a, &a_dot[row], &de_x[x], m1, m2, fold.square());
        }
    });
}

/// Overwrites the embedding part of `grad`.
pub fn embedding_gradient<T: Real>(
    pool: &Pool,
    grad: &mut [f64],
    batch: &Batch<T>,
    buffers: &mut Buffers<T>,
    series: &Series,
) {
    for net in &batch.model.embedding {
        let first = net.layers[0].w;
        let last = &net.layers[net.layers.len() - 1];
        let end = last.idt_range().or(last.b_range()).unwrap_or(last.w_range()).end;
        grad[first..end].fill(0.0);
    }
    direct_gradient(pool, grad, batch, buffers);
    series_gradient(pool, grad, batch, buffers, series);
}

/// dL/dC = Q^T dL/dA + Q_dot^T dE/dA, then through the nets at the nodes.
fn series_gradient<T: Real>(
    pool: &Pool,
    grad: &mut [f64],
    batch: &Batch<T>,
    buffers: &Buffers<T>,
    series: &Series,
) {
    let Some(plan) = &batch.plan else { return };
    let model = batch.model;
    let (m1, tk, n_types) = (model.n_embed(), batch.n_terms(), model.n_types());
    let n_stacks = if model.descriptor().type_one_side { 1 } else { n_types };
    let mut dl_c = vec![T::ZERO; n_stacks * tk * m1];
    let parts = Parts::new(&mut dl_c);
    let per_stack = tk.div_ceil(GRAD_TERMS);
    pool.run(n_stacks * per_stack, |job| {
        let (stack, term) = (job / per_stack, job % per_stack * GRAD_TERMS);
        let rows = GRAD_TERMS.min(tk - term);
        // SAFETY: each job has its own rows of its own stack.
        let out = unsafe { parts.part((stack * tk + term) * m1, rows * m1) };
        for s in batch.segments.iter().filter(|s| batch.stack(s.center) == stack) {
            if !batch.by_series[s.frame] {
                continue;
            }
            let n = 4 * s.n;
            let adjoints = |x: &'_ [T]| -> std::ops::Range<usize> {
                debug_assert!(x.len() >= (4 * s.row + n) * m1);
                4 * s.row * m1..(4 * s.row + n) * m1
            };
            let q = Strided { data: &buffers.q[4 * s.row * tk + term..], row: 1, col: tk };
            product(out, m1, Accumulate::Add, q, &buffers.dl_a[adjoints(&buffers.dl_a)], m1, rows, m1, n);
            let q_dot = Strided { data: &buffers.q_dot[4 * s.row * tk + term..], row: 1, col: tk };
            product(out, m1, Accumulate::Add, q_dot, &buffers.de_a[adjoints(&buffers.de_a)], m1, rows, m1, n);
        }
    });
    let scale = 1.0 / model.n_sel() as f64;
    for center in 0..n_stacks {
        for t in 0..n_types {
            let start = (center * tk + t * plan.terms) * m1;
            let dl: Vec<f64> =
                dl_c[start..start + plan.terms * m1].iter().map(|x| x.to_f64() * scale).collect();
            series.backward_add(grad, plan, model, batch.params, model.embedding_net(center, t), &dl);
        }
    }
}

/// The gradient of the nets for frames that do without the series, block by block, summed in a fixed order.
fn direct_gradient<T: Real>(pool: &Pool, grad: &mut [f64], batch: &Batch<T>, buffers: &Buffers<T>) {
    let blocks: Vec<&Block> = batch.blocks.iter().filter(|b| !batch.by_series[b.frame]).collect();
    if blocks.is_empty() {
        return;
    }
    let model = batch.model;
    let stride = 4 * model.n_embed();
    // Embedding parameters come first in the flat vector.
    let n_params = model.fitting[0].layers[0].w;
    let mut partial = vec![Vec::new(); blocks.len()];
    let parts = Parts::new(&mut partial);
    pool.run(blocks.len(), |b| {
        let block = blocks[b];
        let mut sum = vec![0.0; n_params];
        let offset = batch.first_pair[block.frame];
        let d_dot = buffers.d_dot.each_ref().map(|x| &x[offset..]);
        for k in 0..block.n {
            let row = (block.row + k) * stride..(block.row + k + 1) * stride;
            let atom = batch.atom(block, k);
            atom.backward_add(&mut sum, d_dot, 0, &buffers.dl_a[row.clone()], &buffers.de_a[row]);
        }
        // SAFETY: one element for each block.
        unsafe { parts.part(b, 1)[0] = sum };
    });
    for sum in partial {
        for (grad, x) in grad.iter_mut().zip(sum) {
            *grad += x;
        }
    }
}
