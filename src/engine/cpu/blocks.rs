//! The passes over blocks of atoms between the pairs and the fitting nets.

use super::batch::{Batch, Segment};
use super::chebyshev::{Plan, Series};
use super::dense::{Accumulate, Strided, product};
use super::fitting::Fitting;
use super::frame::{CpuFrame, rows_of};
use super::pairs;
use super::pool::{Parts, Pool};
use super::real::Real;
use super::scratch::scratch;
use super::vacuum::Vacuum;
use super::walk::Terms;
use super::{Prediction, Seeds, descriptor};
use crate::model::dp::Dp;
use crate::model::net::NetShape;
use std::ops::Range;

/// Rows of the coefficients' gradient that one task computes.
const GRAD_TERMS: usize = 16;

/// What lives from one pass to the next.
#[derive(Default)]
pub struct Buffers<T> {
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
    /// `[n_types]` inputs of the fitting nets while they are written.
    inputs: Vec<Parts<T>>,
    /// `[n_stacks, n_types K, M1]` dL/dC.
    dl_c: Vec<T>,
}

fn room<T: Real>(buffer: &mut Vec<T>, len: usize) {
    if buffer.len() < len {
        buffer.resize(len, T::ZERO);
    }
}

impl<T: Real> Buffers<T> {
    /// Makes room for a batch.
    pub fn resize(&mut self, model: &Dp, frames: &[&CpuFrame<T>], plan: Option<&Plan>) {
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
                let net = series.coefficients(model.embedding_net(center, t));
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
    buffers.inputs.clear();
    buffers.inputs.extend((0..model.n_types()).map(|c| Parts::new(fitting.input(c))));
    let inputs = &buffers.inputs;
    let (a, q, c) = (Parts::new(&mut buffers.a), Parts::new(&mut buffers.q), &buffers.c);
    let blocks = &batch.layout.blocks;
    pool.run(blocks.len(), |b| {
        let block = &blocks[b];
        // SAFETY: each block has its own rows.
        let a = unsafe { a.part(block.row * stride, block.n * stride) };
        match batch.plan_of(block) {
            Some(plan) => {
                let tk = batch.n_terms();
                // SAFETY: as above.
                let q = unsafe { q.part(block.row * 4 * tk, block.n * 4 * tk) };
                features(q, batch, block, plan);
                let q = Strided { data: q, row: tk, col: 1 };
                let c = &c[batch.stack(block.center)];
                product(a, m1, Accumulate::Overwrite, q, c, m1, 4 * block.n, m1, tk);
            }
            None => a.chunks_exact_mut(stride).enumerate().for_each(|(k, a)| batch.atom(block, k).forward(a)),
        }
        // SAFETY: as above.
        let x = unsafe { inputs[block.center].part(batch.place(block) * width, block.n * width) };
        let extra = &batch.frames[block.frame].extra[block.local * n_extra..];
        for k in 0..block.n {
            let x = &mut x[k * width..(k + 1) * width];
            descriptor::forward(x, &a[k * stride..(k + 1) * stride], m1, m2, fold.square());
            x[n_d..].copy_from_slice(&extra[k * n_extra..(k + 1) * n_extra]);
        }
    });
}

/// Q of the rows of a block: `[n, 4, n_types * K]`.
fn features<T: Real>(q: &mut [T], batch: &Batch<T>, block: &Segment, plan: &Plan) {
    let (model, n_types) = (batch.model, batch.model.n_types());
    let rows = rows_of(model, block.center);
    let mut walk = Terms::default();
    scratch(plan.terms, |empty: &mut [T]| {
        plan.empty_slot(empty, model, block.center);
        for (k, q) in q.chunks_exact_mut(4 * n_types * plan.terms).enumerate() {
            batch.frames[block.frame].features(q, &mut walk, plan, n_types, &rows, block.local + k, empty);
        }
    });
}

/// dE/dA and dE/dd of every pair, from dE/dinput of the fitting nets.
pub fn differentiate<T: Real>(pool: &Pool, batch: &Batch<T>, buffers: &mut Buffers<T>, fitting: &Fitting<T>) {
    let model = batch.model;
    let (m1, m2, n_types) = (model.n_embed(), model.descriptor().axis_neuron, model.n_types());
    let fold = fitting.fold();
    let (stride, width) = (4 * m1, fold.width(model.n_descriptor()) + model.n_extra());
    let blocks = &batch.layout.blocks;
    buffers.virial.clear();
    buffers.virial.resize(blocks.len(), [0.0; 9]);
    let virial = Parts::new(&mut buffers.virial);
    let de_d = buffers.de_d.each_mut().map(|x| Parts::new(x));
    let (a, de_a, c_t) = (&buffers.a, Parts::new(&mut buffers.de_a), &buffers.c_t);
    pool.run(blocks.len(), |b| {
        let block = &blocks[b];
        let frame = batch.frames[block.frame];
        // SAFETY: each block has its own rows.
        let de_a = unsafe { de_a.part(block.row * stride, block.n * stride) };
        let de_x = &fitting.de_input(block.center)[batch.place(block) * width..];
        for k in 0..block.n {
            let row = block.row + k;
            let a = &a[row * stride..(row + 1) * stride];
            let de_a = &mut de_a[k * stride..(k + 1) * stride];
            de_a.fill(T::ZERO);
            descriptor::adjoint_add(de_a, a, &de_x[k * width..(k + 1) * width], m1, m2, fold.square());
        }
        let offset = batch.layout.first_pair[block.frame];
        let pairs = batch.pairs(block);
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
    block: &Segment,
    de_a: &[T],
    c_t: &[T],
) {
    let (m1, n_types, tk) = (batch.model.n_embed(), batch.model.n_types(), batch.n_terms());
    let Some(plan) = batch.plan else { return };
    let frame = batch.frames[block.frame];
    let a = Strided { data: de_a, row: m1, col: 1 };
    scratch(block.n * 4 * tk + 8 * plan.terms, |buffers: &mut [T]| {
        let (de_q, series) = buffers.split_at_mut(block.n * 4 * tk);
        product(de_q, tk, Accumulate::Overwrite, a, c_t, tk, 4 * block.n, tk, m1);
        let first = batch.pairs(block).start;
        let rows = rows_of(batch.model, block.center);
        for k in 0..block.n {
            for t in 0..n_types {
                let pairs = frame.pairs(block.local + k, t, n_types);
                let own = pairs.start - first..pairs.end - first;
                let part = de_d.each_mut().map(|x| &mut x[own.clone()]);
                pairs::with_derivatives(series, &de_q[k * 4 * tk + t * plan.terms..], tk, plan.terms);
                let (start, n) = (pairs.start, pairs.len());
                pairs::forces(part, series, plan.terms, &frame.d, &rows, start, n, plan.scale());
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
    let layout = batch.layout;
    let n_atoms = layout.first_atom[batch.frames.len()];
    out.energy.clear();
    out.energy.resize(batch.frames.len(), 0.0);
    out.virial.clear();
    out.virial.resize(batch.frames.len(), [0.0; 9]);
    out.atom_energy.clear();
    out.atom_energy.resize(n_atoms, 0.0);
    out.force.resize(3 * n_atoms, 0.0);
    for s in &layout.segments {
        let energy = &fitting.energy(s.center)[batch.place(s)..];
        for (k, e) in energy[..s.n].iter().enumerate() {
            let vacuum = vacuum.energy(s.center, batch.place(s) + k);
            let e = e.to_f64() - vacuum + batch.model.stats.bias[s.center];
            let atom = batch.frames[s.frame].order[s.local + k] as usize;
            out.atom_energy[layout.first_atom[s.frame] + atom] = e;
            out.energy[s.frame] += e;
        }
    }
    for (block, virial) in layout.blocks.iter().zip(&buffers.virial) {
        for (sum, x) in out.virial[block.frame].iter_mut().zip(virial) {
            *sum += x;
        }
    }
    let force = Parts::new(&mut out.force);
    pool.run(layout.atom_ranges.len(), |j| {
        let (f, atoms) = layout.atom_ranges[j].clone();
        let frame = batch.frames[f];
        let de_d = buffers.de_d.each_ref().map(|x| &x[layout.first_pair[f]..layout.first_pair[f + 1]]);
        // SAFETY: these are disjoint ranges of atoms.
        let force = unsafe { force.part(3 * (layout.first_atom[f] + atoms.start), 3 * atoms.len()) };
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
    pool.run(layout.blocks.len(), |b| {
        let block = &layout.blocks[b];
        let frame = batch.frames[block.frame];
        let offset = layout.first_pair[block.frame];
        for r in block.local..block.local + block.n {
            let atom = layout.first_atom[block.frame] + frame.order[r] as usize;
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
    buffers.inputs.clear();
    buffers.inputs.extend((0..n_types).map(|c| Parts::new(fitting.input_dot(c))));
    let inputs = &buffers.inputs;
    let (a, c) = (&buffers.a, &buffers.c);
    let (a_dot, q_dot) = (Parts::new(&mut buffers.a_dot), Parts::new(&mut buffers.q_dot));
    let d_dot = buffers.d_dot.each_mut().map(|x| Parts::new(x));
    let blocks = &batch.layout.blocks;
    pool.run(blocks.len(), |b| {
        let block = &blocks[b];
        let pairs = batch.pairs(block);
        let offset = batch.layout.first_pair[block.frame];
        // SAFETY: each block has its own rows and pairs.
        let a_dot = unsafe { a_dot.part(block.row * stride, block.n * stride) };
        // SAFETY: as above; reads go to the block's own pairs.
        let mut d_dot = d_dot.each_ref().map(|x| unsafe { x.part(offset + pairs.start, pairs.len()) });
        direction(&mut d_dot, batch, block, seeds);
        let columns = d_dot.map(|x| &*x);
        match batch.plan_of(block) {
            Some(plan) => {
                // SAFETY: as above.
                let q_dot = unsafe { q_dot.part(block.row * 4 * tk, block.n * 4 * tk) };
                features_tangent(q_dot, batch, block, plan, columns);
                let q = Strided { data: q_dot, row: tk, col: 1 };
                let c = &c[batch.stack(block.center)];
                product(a_dot, m1, Accumulate::Overwrite, q, c, m1, 4 * block.n, m1, tk);
            }
            None => {
                for (k, a_dot) in a_dot.chunks_exact_mut(stride).enumerate() {
                    batch.atom(block, k).tangent(a_dot, columns, pairs.start);
                }
            }
        }
        // SAFETY: as above.
        let x_dot = unsafe { inputs[block.center].part(batch.place(block) * width, block.n * width) };
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

/// The change of Q of the rows of a block along `d_dot` of its pairs.
fn features_tangent<T: Real>(
    q_dot: &mut [T],
    batch: &Batch<T>,
    block: &Segment,
    plan: &Plan,
    d_dot: [&[T]; 3],
) {
    let (n_types, frame) = (batch.model.n_types(), batch.frames[block.frame]);
    let stride = n_types * plan.terms;
    let rows = rows_of(batch.model, block.center);
    let first = batch.pairs(block).start;
    let mut walk = Terms::default();
    for k in 0..block.n {
        for t in 0..n_types {
            let pairs = frame.pairs(block.local + k, t, n_types);
            let out = &mut q_dot[k * 4 * stride + t * plan.terms..];
            pairs::features_tangent(
                out,
                &mut walk,
                stride,
                plan.terms,
                &frame.d,
                &rows,
                d_dot,
                first,
                pairs.start,
                pairs.len(),
                plan.scale(),
            );
        }
    }
}

/// `d_dot = u_j - u_i - dL/dvirial^T d` with `u = -dL/dF`, for the pairs of a block.
fn direction<T: Real>(d_dot: &mut [&mut [T]; 3], batch: &Batch<T>, block: &Segment, seeds: &Seeds) {
    let frame = batch.frames[block.frame];
    let n_types = batch.model.n_types();
    let first = batch.layout.first_atom[block.frame];
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
    let (a, a_dot, dl_a) = (&buffers.a, &buffers.a_dot, Parts::new(&mut buffers.dl_a));
    let blocks = &batch.layout.blocks;
    pool.run(blocks.len(), |b| {
        let block = &blocks[b];
        // SAFETY: each block has its own rows.
        let dl_a = unsafe { dl_a.part(block.row * stride, block.n * stride) };
        let at = batch.place(block) * width;
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
        grad[params_of(net)].fill(0.0);
    }
    direct_gradient(pool, grad, batch, buffers);
    series_gradient(pool, grad, batch, buffers, series);
}

/// The parameters of a net in the flat vector.
fn params_of(net: &NetShape) -> Range<usize> {
    let last = &net.layers[net.layers.len() - 1];
    net.layers[0].w..last.idt_range().or(last.b_range()).unwrap_or(last.w_range()).end
}

/// dL/dC = Q^T dL/dA + Q_dot^T dE/dA, then through the nets at the nodes.
fn series_gradient<T: Real>(
    pool: &Pool,
    grad: &mut [f64],
    batch: &Batch<T>,
    buffers: &mut Buffers<T>,
    series: &Series,
) {
    let Some(plan) = batch.plan else { return };
    let model = batch.model;
    let (m1, tk, n_types) = (model.n_embed(), batch.n_terms(), model.n_types());
    let n_stacks = if model.descriptor().type_one_side { 1 } else { n_types };
    let Buffers { q, q_dot, de_a, dl_a, dl_c, .. } = buffers;
    dl_c.clear();
    dl_c.resize(n_stacks * tk * m1, T::ZERO);
    let parts = Parts::new(dl_c);
    let per_stack = tk.div_ceil(GRAD_TERMS);
    pool.run(n_stacks * per_stack, |job| {
        let (stack, term) = (job / per_stack, job % per_stack * GRAD_TERMS);
        let rows = GRAD_TERMS.min(tk - term);
        // SAFETY: each job has its own rows of its own stack.
        let out = unsafe { parts.part((stack * tk + term) * m1, rows * m1) };
        for s in batch.layout.segments.iter().filter(|s| batch.stack(s.center) == stack) {
            if !batch.layout.by_series[s.frame] {
                continue;
            }
            let n = 4 * s.n;
            let rows_of_s = 4 * s.row * m1..(4 * s.row + n) * m1;
            for (q, adjoint) in [(&*q, &*dl_a), (&*q_dot, &*de_a)] {
                let q = Strided { data: &q[4 * s.row * tk + term..], row: 1, col: tk };
                product(out, m1, Accumulate::Add, q, &adjoint[rows_of_s.clone()], m1, rows, m1, n);
            }
        }
    });
    let scale = 1.0 / model.n_sel() as f64;
    let grad = Parts::new(grad);
    pool.run(n_stacks * n_types, |job| {
        let net = model.embedding_net(job / n_types, job % n_types);
        let params = params_of(&model.embedding[net]);
        // SAFETY: each centre (or all of them) and neighbour type has a net of its own.
        let grad = unsafe { grad.part(params.start, params.len()) };
        scratch(plan.terms * m1, |dl: &mut [f64]| {
            let own = &dl_c[job * plan.terms * m1..];
            dl.iter_mut().zip(own).for_each(|(dl, x)| *dl = x.to_f64() * scale);
            series.backward_add(grad, params.start, plan, model, batch.params, net, dl);
        });
    });
}

/// The gradient of the nets for frames that do without the series, block by block, summed in a fixed order.
fn direct_gradient<T: Real>(pool: &Pool, grad: &mut [f64], batch: &Batch<T>, buffers: &Buffers<T>) {
    let layout = batch.layout;
    let blocks: Vec<&Segment> = layout.blocks.iter().filter(|b| !layout.by_series[b.frame]).collect();
    if blocks.is_empty() {
        return;
    }
    let model = batch.model;
    let stride = 4 * model.n_embed();
    let n_params = model.fitting_params().start;
    let mut partial = vec![Vec::new(); blocks.len()];
    let parts = Parts::new(&mut partial);
    pool.run(blocks.len(), |b| {
        let block = blocks[b];
        let mut sum = vec![0.0; n_params];
        let offset = layout.first_pair[block.frame];
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
