//! The passes over blocks of atoms between the pairs and the fitting nets.

use super::attention::Attention;
use super::batch::{ATOMS, Batch, Layout, Segment, sets_of};
use super::chebyshev::{self, Plan, Series, n_stacks};
use super::descriptor::Map;
use super::features::Cut;
use super::fitting::Fitting;
use super::frame::CpuFrame;
use super::pool::{Parts, Pool};
use super::real::Real;
use super::turned::Turned;
use super::vacuum::Vacuum;
use super::{Prediction, Seeds};
use crate::model::dp::Dp;

/// Rows of the coefficients' gradient that one task computes.
const GRAD_TERMS: usize = 16;

/// What lives from one pass to the next.
#[derive(Default)]
pub struct Buffers<T> {
    /// `[rows, C, M1]` A with the components of env, its tangent, dE/dA, dL/dA.
    pub(super) a: Vec<T>,
    a_dot: Vec<T>,
    de_a: Vec<T>,
    dl_a: Vec<T>,
    /// `[rows, C, columns]` Q and its tangent, block by block: see [`super::features`].
    q: Vec<T>,
    q_dot: Vec<T>,
    /// The pairs of the batch, cut into panels.
    cut: Cut<T>,
    /// `[n_pairs]` dE/dd and d_dot, by component.
    de_d: [Vec<T>; 3],
    d_dot: [Vec<T>; 3],
    /// For each centre type (or one for all): `[columns, M1]` scaled by 1/n_sel, and the transpose of each panel.
    c: Vec<Vec<T>>,
    c_t: Vec<Vec<T>>,
    /// `[n_blocks]` virial of each block.
    virial: Vec<[f64; 9]>,
    /// `[n_types]` inputs of the fitting nets, or their derivatives, while they are written.
    inputs: Vec<Parts<T>>,
    /// `[n_stacks, columns, M1]` dL/dC.
    dl_c: Vec<T>,
    /// Of a descriptor with attention.
    pub attention: Option<Attention<T>>,
}

fn room<T: Real>(buffer: &mut Vec<T>, len: usize) {
    if buffer.len() < len {
        buffer.resize(len, T::ZERO);
    }
}

impl<T: Real> Buffers<T> {
    pub fn new(model: &Dp) -> Self {
        let attention = model.descriptor().attention();
        let attention = attention.map(|_| Attention::new());
        Buffers { attention, ..Buffers::default() }
    }

    /// Makes room for a batch.
    pub fn resize(&mut self, batch: &Batch<T>) {
        let model = batch.model;
        let rows: usize = batch.frames.iter().map(|f| f.n_rows()).sum();
        let pairs: usize = batch.frames.iter().map(|f| f.j.len()).sum();
        for buffer in [&mut self.a, &mut self.a_dot, &mut self.de_a, &mut self.dl_a] {
            room(buffer, rows * batch.components() * model.n_embed());
        }
        for buffer in [&mut self.q, &mut self.q_dot] {
            room(buffer, rows * batch.components() * batch.columns());
        }
        self.cut.resize(batch);
        if let Some(attention) = &mut self.attention {
            attention.make_room(batch);
        }
        for buffer in self.de_d.iter_mut().chain(&mut self.d_dot) {
            room(buffer, pairs);
        }
    }

    /// Puts the coefficients of all panels below each other.
    pub fn stack_coefficients(&mut self, model: &Dp, plan: &Plan, series: &Series) {
        let (m1, n_stacks) = (model.n_embed(), n_stacks(model));
        let rows = plan.columns() * sets_of(model);
        let scale = chebyshev::scale(model);
        self.c.resize(n_stacks, Vec::new());
        self.c_t.resize(n_stacks, Vec::new());
        for stack in 0..n_stacks {
            let c = &mut self.c[stack];
            c.clear();
            for panel in 0..plan.panels().len() {
                let own = series.coefficients(plan, stack, panel);
                let attention = self.attention.as_ref().map(|attention| &attention.step);
                let neighbor = plan.panels()[panel].neighbor;
                let Some((_, of_types)) = attention.and_then(|step| step.exact_of_types(stack, neighbor))
                else {
                    c.extend(own.iter().map(|&x| T::from_f64(x * scale)));
                    continue;
                };
                let scaled = own.iter().zip(of_types.iter().cycle());
                if sets_of(model) == 2 {
                    c.extend(own.iter().map(|&x| T::from_f64(x * scale)));
                    c.extend(scaled.map(|(x, t)| T::from_f64(x * t * scale)));
                } else {
                    c.extend(scaled.map(|(x, t)| T::from_f64(x * (1.0 + t) * scale)));
                }
            }
            let c_t = &mut self.c_t[stack];
            c_t.resize(rows * m1, T::ZERO);
            let size = plan.terms * m1;
            for (c_t, c) in c_t.chunks_exact_mut(size).zip(c.chunks_exact(size)) {
                super::dense::transpose(c_t, c, plan.terms, m1);
            }
        }
    }
}

/// A and the descriptor of every atom, into the fitting nets.
pub fn describe<T: Real>(pool: &Pool, batch: &Batch<T>, buffers: &mut Buffers<T>, fitting: &mut Fitting<T>) {
    let model = batch.model;
    let (n_extra, map) = (model.n_extra(), Map::new(model, batch.inputs.fold));
    let (stride, width, n_env) = (map.stride(), batch.inputs.width, batch.components());
    buffers.inputs.clear();
    buffers.inputs.extend((0..model.fitting.len()).map(|net| Parts::new(fitting.input(net))));
    let (inputs, attention) = (&buffers.inputs, &buffers.attention);
    let (a, q, c) = (Parts::new(&mut buffers.a), Parts::new(&mut buffers.q), &buffers.c);
    let cut = buffers.cut.parts();
    let blocks = &batch.layout.blocks;
    pool.run(blocks.len(), |b| {
        let block = &blocks[b];
        // SAFETY: each block has its own rows.
        let a = unsafe { a.part(block.row * stride, block.n * stride) };
        match batch.plan_of(block) {
            Some(plan) => {
                let columns = batch.columns();
                // SAFETY: as above.
                let (q, cut) = unsafe {
                    (q.part(block.row * n_env * columns, block.n * n_env * columns), cut.cut(batch, b, plan))
                };
                cut.features(q);
                cut.contract(a, q, &c[batch.stack(block.center)]);
            }
            None => a.chunks_exact_mut(stride).enumerate().for_each(|(k, a)| match attention {
                Some(attention) => attention.forward(block.row + k, &batch.atom(block, k), a),
                None => batch.atom(block, k).forward(a),
            }),
        }
        let net = model.fitting_net(block.center);
        // SAFETY: as above.
        let x = unsafe { inputs[net].part(batch.place(block) * width, block.n * width) };
        let extra = &batch.frames.at(block.frame).extra[block.local * n_extra..];
        for k in 0..block.n {
            let x = &mut x[k * width..(k + 1) * width];
            map.forward(&mut x[batch.inputs.range()], &a[k * stride..(k + 1) * stride]);
            if let Some(attention) = attention {
                attention.write_tail(&mut x[batch.inputs.range()], model, block.center);
            }
            if batch.inputs.is_last {
                x[batch.inputs.end..].copy_from_slice(&extra[k * n_extra..(k + 1) * n_extra]);
            }
        }
    });
}

/// dE/dA and dE/dd of every pair, from dE/dinput of the fitting nets.
pub fn differentiate<T: Real>(pool: &Pool, batch: &Batch<T>, buffers: &mut Buffers<T>, fitting: &Fitting<T>) {
    let model = batch.model;
    let map = Map::new(model, batch.inputs.fold);
    let (stride, width) = (map.stride(), batch.inputs.width);
    let mut de_a = std::mem::take(&mut buffers.de_a);
    let parts = Parts::new(&mut de_a);
    differentiate_pairs(pool, batch, buffers, |buffers, block| {
        // SAFETY: each block has its own rows.
        let de_a = unsafe { parts.part(block.row * stride, block.n * stride) };
        let de_x = &fitting.de_input(model.fitting_net(block.center))[batch.place(block) * width..];
        for k in 0..block.n {
            let row = block.row + k;
            let a = &buffers.a[row * stride..(row + 1) * stride];
            let de_a = &mut de_a[k * stride..(k + 1) * stride];
            map.adjoint(de_a, a, &de_x[k * width..(k + 1) * width][batch.inputs.range()]);
        }
        de_a
    });
    buffers.de_a = de_a;
}

/// Derivatives by dd of every pair from those by A that [`adjoint`] has found, for a model that predicts no energy.
pub fn differentiate_output<T: Real>(pool: &Pool, batch: &Batch<T>, buffers: &mut Buffers<T>) {
    if let Some(attention) = &mut buffers.attention {
        attention.forget_energies();
    }
    let stride = batch.components() * batch.model.n_embed();
    let dl_a = std::mem::take(&mut buffers.dl_a);
    differentiate_pairs(pool, batch, buffers, |_, block| {
        &dl_a[block.row * stride..(block.row + block.n) * stride]
    });
    buffers.dl_a = dl_a;
}

/// dE/dd of every pair and the virial of every block, from dE/dA `[n, C, M1]` of the atoms of a block, which `de_a` gives.
fn differentiate_pairs<'a, T: Real>(
    pool: &Pool,
    batch: &Batch<T>,
    buffers: &mut Buffers<T>,
    de_a: impl Fn(&Buffers<T>, &Segment) -> &'a [T] + Sync,
) {
    let n_types = batch.model.n_types();
    let stride = batch.components() * batch.model.n_embed();
    let blocks = &batch.layout.blocks;
    let (mut virials, mut de_d) = (std::mem::take(&mut buffers.virial), std::mem::take(&mut buffers.de_d));
    virials.clear();
    virials.resize(blocks.len(), [0.0; 9]);
    let virial = Parts::new(&mut virials);
    let parts = de_d.each_mut().map(|x| Parts::new(x));
    let here = &*buffers;
    let (c_t, cut, attention) = (&here.c_t, &here.cut, &here.attention);
    pool.run(blocks.len(), |b| {
        let block = &blocks[b];
        let frame = batch.frames.at(block.frame);
        let de_a = de_a(here, block);
        let offset = batch.layout.first_pair[block.frame];
        let pairs = batch.pairs(block);
        // SAFETY: the pairs of different atoms are different.
        let mut de_d = parts.each_ref().map(|x| unsafe { x.part(offset + pairs.start, pairs.len()) });
        match batch.plan_of(block) {
            Some(plan) => cut.block(batch, b, plan).forces(&mut de_d, de_a, &c_t[batch.stack(block.center)]),
            None => {
                for k in 0..block.n {
                    let atom = batch.atom(block, k);
                    let own = frame.pairs(atom.row, 0, n_types).start
                        ..frame.pairs(atom.row, n_types - 1, n_types).end;
                    let own = own.start - pairs.start..own.end - pairs.start;
                    let part = de_d.each_mut().map(|x| &mut x[own.clone()]);
                    let de_a = &de_a[k * stride..(k + 1) * stride];
                    match attention {
                        Some(attention) => attention.forces(block.row + k, &atom, part, de_a),
                        None => atom.forces(part, de_a),
                    }
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
    (buffers.virial, buffers.de_d) = (virials, de_d);
}

/// Sums up energies, always in the same order; forces and virials become zero.
pub fn energies<T: Real>(out: &mut Prediction, batch: &Batch<T>, fitting: &Fitting<T>, vacuum: &Vacuum) {
    let layout = batch.layout;
    let n_atoms = layout.first_atom[batch.frames.n_frames()];
    out.energy.clear();
    out.energy.resize(batch.frames.n_frames(), 0.0);
    out.virial.clear();
    out.virial.resize(batch.frames.n_frames(), [0.0; 9]);
    out.atom_energy.clear();
    out.atom_energy.resize(n_atoms, 0.0);
    out.force.clear();
    out.force.resize(3 * n_atoms, 0.0);
    for s in &layout.segments {
        let energy = &fitting.energy(batch.model.fitting_net(s.center))[batch.place(s)..];
        for (k, e) in energy[..s.n].iter().enumerate() {
            let vacuum = vacuum.energy(s.center, batch.place_in_type(s) + k);
            let e = e.to_f64() - vacuum + batch.model.stats.bias[s.center];
            let atom = batch.frames.at(s.frame).order[s.local + k] as usize;
            out.atom_energy[layout.first_atom[s.frame] + atom] = e;
            out.energy[s.frame] += e;
        }
    }
}

/// Adds forces and virials by way of one descriptor, always in the same order.
pub fn forces_add<T: Real>(pool: &Pool, out: &mut Prediction, batch: &Batch<T>, buffers: &Buffers<T>) {
    let (n_types, layout) = (batch.model.n_types(), batch.layout);
    for (block, virial) in layout.blocks.iter().zip(&buffers.virial) {
        for (sum, x) in out.virial[block.frame].iter_mut().zip(virial) {
            *sum += x;
        }
    }
    let force = Parts::new(&mut out.force);
    pool.run(layout.atom_ranges.len(), |j| {
        let (f, atoms) = layout.atom_ranges[j].clone();
        let frame = batch.frames.at(f);
        let de_d = buffers.de_d.each_ref().map(|x| &x[layout.first_pair[f]..layout.first_pair[f + 1]]);
        // SAFETY: these are disjoint ranges of atoms.
        let force = unsafe { force.part(3 * (layout.first_atom[f] + atoms.start), 3 * atoms.len()) };
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
        let frame = batch.frames.at(block.frame);
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

/// Adds -dE/dd (x) d of every pair to its neighbour `[n_atoms, 9]`, for a batch of one frame.
pub fn atom_virial_add<T: Real>(pool: &Pool, out: &mut [f64], frame: &CpuFrame<T>, buffers: &Buffers<T>) {
    assert_eq!(out.len(), 9 * frame.n_atoms, "nine numbers for each atom");
    let out = Parts::new(out);
    let atoms = 4 * ATOMS;
    pool.run(frame.n_atoms.div_ceil(atoms), |k| {
        for j in k * atoms..frame.n_atoms.min((k + 1) * atoms) {
            // SAFETY: each atom is looked at by one task.
            let out = unsafe { out.part(9 * j, 9) };
            for &p in &frame.reverse[frame.reverse_start[j] as usize..frame.reverse_start[j + 1] as usize] {
                let p = p as usize;
                for k in 0..3 {
                    for l in 0..3 {
                        out[3 * k + l] -= buffers.de_d[k][p].to_f64() * frame.d[l][p].to_f64();
                    }
                }
            }
        }
    });
}

/// The descriptor of each atom of the frame that was evaluated last, alone, into rows of `width` numbers, from number `first` on.
pub fn descriptors<T: Real>(
    out: &mut [f64],
    (first, width): (usize, usize),
    model: &Dp,
    frame: &CpuFrame<T>,
    layout: &Layout,
    buffers: &Buffers<T>,
) {
    let map = Map::whole(model);
    assert_eq!(out.len(), width * frame.n_atoms, "a descriptor for each atom");
    let mut d = vec![T::ZERO; model.n_descriptor()];
    for s in &layout.segments {
        for k in 0..s.n {
            let at = (s.row + k) * map.stride();
            map.forward(&mut d, &buffers.a[at..at + map.stride()]);
            if let Some(attention) = &buffers.attention {
                attention.write_tail(&mut d, model, s.center);
            }
            let atom = frame.order[s.local + k] as usize;
            for (out, d) in out[atom * width + first..].iter_mut().zip(&d) {
                *out = d.to_f64();
            }
        }
    }
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
    let (map, n_env) = (Map::new(model, batch.inputs.fold), batch.components());
    let (stride, width, columns) = (map.stride(), batch.inputs.width, batch.columns());
    buffers.inputs.clear();
    buffers.inputs.extend((0..model.fitting.len()).map(|net| Parts::new(fitting.input_dot(net))));
    let (inputs, attention) = (&buffers.inputs, &buffers.attention);
    let (a, c, cut) = (&buffers.a, &buffers.c, &buffers.cut);
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
        let d_dot = d_dot.map(|x| &*x);
        match batch.plan_of(block) {
            Some(plan) => {
                // SAFETY: as above.
                let q_dot = unsafe { q_dot.part(block.row * n_env * columns, block.n * n_env * columns) };
                let cut = cut.block(batch, b, plan);
                cut.features_tangent(q_dot, d_dot);
                cut.contract(a_dot, q_dot, &c[batch.stack(block.center)]);
            }
            None => {
                for (k, a_dot) in a_dot.chunks_exact_mut(stride).enumerate() {
                    match attention {
                        Some(attention) => {
                            let atom = batch.atom(block, k);
                            attention.tangent(block.row + k, &atom, a_dot, d_dot, pairs.start);
                        }
                        None => batch.atom(block, k).tangent(a_dot, d_dot, pairs.start),
                    }
                }
            }
        }
        // SAFETY: as above.
        let x_dot = unsafe {
            inputs[model.fitting_net(block.center)].part(batch.place(block) * width, block.n * width)
        };
        for k in 0..block.n {
            let row = block.row + k;
            let x_dot = &mut x_dot[k * width..(k + 1) * width];
            let (a, a_dot) = (&a[row * stride..(row + 1) * stride], &a_dot[k * stride..(k + 1) * stride]);
            map.tangent(&mut x_dot[batch.inputs.range()], a, a_dot);
            x_dot[batch.inputs.end - model.n_tail()..batch.inputs.end].fill(T::ZERO);
            if batch.inputs.is_last {
                x_dot[batch.inputs.end..].fill(T::ZERO);
            }
        }
    });
}

/// `d_dot = u_j - u_i - dL/dvirial^T d` with `u = -dL/dF`, for the pairs of a block.
fn direction<T: Real>(d_dot: &mut [&mut [T]; 3], batch: &Batch<T>, block: &Segment, seeds: &Seeds) {
    let frame = batch.frames.at(block.frame);
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
pub fn adjoint<T: Real>(
    pool: &Pool,
    batch: &Batch<T>,
    buffers: &mut Buffers<T>,
    fitting: &Fitting<T>,
    turned: &Turned,
) {
    let (model, is_turned) = (batch.model, batch.model.output.made.is_turned());
    let map = Map::new(model, batch.inputs.fold);
    let (stride, width) = (map.stride(), batch.inputs.width);
    let (a, a_dot, dl_a) = (&buffers.a, &buffers.a_dot, Parts::new(&mut buffers.dl_a));
    let blocks = &batch.layout.blocks;
    pool.run(blocks.len(), |b| {
        let block = &blocks[b];
        // SAFETY: each block has its own rows.
        let dl_a = unsafe { dl_a.part(block.row * stride, block.n * stride) };
        let at = batch.place(block) * width;
        let net = model.fitting_net(block.center);
        let dl_x = &fitting.dl_input(net)[at..];
        let de_x = &fitting.de_input(net)[at..];
        for k in 0..block.n {
            let row = (block.row + k) * stride..(block.row + k + 1) * stride;
            let x = k * width + batch.inputs.first..k * width + batch.inputs.end;
            let dl_a = &mut dl_a[k * stride..(k + 1) * stride];
            map.adjoint(dl_a, &a[row.clone()], &dl_x[x.clone()]);
            if is_turned {
                turned.adjoint_add(dl_a, batch, block.row + k);
            }
            if model.is_energy() {
                map.tangent_adjoint_add(dl_a, &a_dot[row], &de_x[x]);
            }
        }
    });
}

/// Overwrites the embedding part of `grad`.
pub fn embedding_gradient<T: Real>(
    pool: &Pool,
    grad: &mut [f64],
    batch: &Batch<T>,
    buffers: &mut Buffers<T>,
    series: &mut Series,
    fitting: &Fitting<T>,
) {
    for net in &batch.model.embedding {
        grad[net.params()].fill(0.0);
    }
    if let Some(mut attention) = buffers.attention.take() {
        if let Some(plan) = batch.plan {
            coefficient_gradient(pool, batch, buffers, plan);
        }
        attention_gradient(pool, grad, batch, buffers, (&mut attention, series), fitting);
        buffers.attention = Some(attention);
        return;
    }
    direct_gradient(pool, grad, batch, buffers);
    let Some(plan) = batch.plan else { return };
    coefficient_gradient(pool, batch, buffers, plan);
    let scale = chebyshev::scale(batch.model);
    series.backward_add(pool, grad, plan, batch.model, batch.params, &buffers.dl_c, scale);
}

/// The gradient of a descriptor with attention.
fn attention_gradient<T: Real>(
    pool: &Pool,
    grad: &mut [f64],
    batch: &Batch<T>,
    buffers: &Buffers<T>,
    (attention, series): (&mut Attention<T>, &mut Series),
    fitting: &Fitting<T>,
) {
    let (model, layout) = (batch.model, batch.layout);
    let (stride, tail) = (batch.components() * model.n_embed(), model.n_tail());
    let mut tails = vec![0.0; model.n_types() * tail];
    for block in &layout.blocks {
        let dl_x =
            &fitting.dl_input(model.fitting_net(block.center))[batch.place(block) * batch.inputs.width..];
        for row in dl_x.chunks(batch.inputs.width).take(block.n) {
            let own = &mut tails[block.center * tail..(block.center + 1) * tail];
            let dl = &row[batch.inputs.end - tail..batch.inputs.end];
            own.iter_mut().zip(dl).for_each(|(sum, x)| *sum += x.to_f64());
        }
    }
    let adjoints = |block: &Segment, k: usize| {
        let offset = layout.first_pair[block.frame];
        let row = (block.row + k) * stride..(block.row + k + 1) * stride;
        let d_dot = buffers.d_dot.each_ref().map(|x| &x[offset..]);
        (d_dot, &buffers.dl_a[row.clone()], &buffers.de_a[row])
    };
    let mut sums = attention.gradient(pool, batch, adjoints);
    if let Some(plan) = batch.plan {
        let scale = chebyshev::scale(model);
        let nets = (model, batch.params);
        series.backward_types_add(pool, &mut sums, plan, nets, &attention.step, &buffers.dl_c, scale);
    }
    attention.step.deliver_add(grad, model, batch.params, &sums, &tails);
}

/// dL/dC = Q^T dL/dA + Q_dot^T dE/dA, the second only where there are tangents.
fn coefficient_gradient<T: Real>(pool: &Pool, batch: &Batch<T>, buffers: &mut Buffers<T>, plan: &Plan) {
    let (m1, columns, n_panels) = (batch.model.n_embed(), batch.columns(), plan.panels().len());
    let sets = batch.sets();
    let n_env = batch.components();
    let Buffers { q, q_dot, de_a, dl_a, dl_c, cut, .. } = buffers;
    dl_c.clear();
    dl_c.resize(n_stacks(batch.model) * columns * m1, T::ZERO);
    let parts = Parts::new(dl_c);
    let per_panel = plan.terms.div_ceil(GRAD_TERMS);
    let layout = batch.layout;
    pool.run(n_stacks(batch.model) * n_panels * sets * per_panel, |job| {
        let (piece, term) = (job / per_panel, job % per_panel * GRAD_TERMS);
        let (stack, panel, set) = (piece / sets / n_panels, piece / sets % n_panels, piece % sets);
        let rows = GRAD_TERMS.min(plan.terms - term);
        // SAFETY: each job has its own rows of its own stack.
        let out = unsafe { parts.part((piece * plan.terms + term) * m1, rows * m1) };
        for (b, block) in layout.blocks.iter().enumerate() {
            let is_own = batch.stack(block.center) == stack && layout.by_series[block.frame];
            if !is_own || !cut.active(b, n_panels)[panel] {
                continue;
            }
            let cut = cut.block(batch, b, plan);
            let (from, to) = (n_env * block.row, n_env * (block.row + block.n));
            let products = [(&*q, &*dl_a), (&*q_dot, &*de_a)];
            for (q, adjoint) in &products[..if batch.model.is_energy() { 2 } else { 1 }] {
                let (q, adjoint) = (&q[from * columns..to * columns], &adjoint[from * m1..to * m1]);
                cut.gradient_add(out, q, adjoint, (panel, set), term);
            }
        }
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
    let stride = batch.components() * model.n_embed();
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
