//! The fitting nets on all atoms of a batch, both passes.
//!
//! Atoms are grouped by type; each group runs through its own net. Values and tangents are stacked in one buffer,
//! `[x; x_dot]`, as are their adjoints, `[dl_z; de_z]`, so that a weight gradient is a single product. What follows a
//! product is done by the task that made the block, while it is in cache ([`rows`]).

mod columns;
pub mod fold;
mod outputs;
mod rows;
mod schedule;

use super::dense::{
    Accumulate, Meanwhile, Strided, product, product_into, product_meanwhile, product_transposed_into,
    transpose_into,
};
use super::elementwise::{add, axpy, dot};
use super::pool::{Field, Parts, Pool};
use super::real::Real;
use super::scratch::scratch;
use super::simd::{multiversion, prefetch};
use crate::engine::Take;
use crate::model::activation::Activation;
use crate::model::net::{LayerShape, NetShape};
use columns::{Columns, add_shortcuts, adjoint_shortcuts, shortcut_pieces};
use fold::Fold;
use rows::{Added, Extent, Jets, Reverse, Shortcuts, Sums};
use schedule::{GRAD_DEPTH, GRAD_ROWS, Job, Schedule, Task, row_chunk};
use std::ops::Range;

/// The state of one layer for one group of atoms.
#[derive(Default)]
struct Layer<T> {
    /// `[2 n, width]`: values, then tangents.
    x: Field<T>,
    /// `[n, n_out]` act of the pre-activation; act' and act'' unless they follow from it.
    f: Field<T>,
    d: Field<T>,
    dd: Field<T>,
    /// `[n, n_out]` tangent of the pre-activation.
    z_dot: Field<T>,
    /// `[n, n_out]` dE/dy, then dL/dy.
    de_y: Field<T>,
    dl_y: Field<T>,
    /// `[2 n, n_out]`: dL/dz, then dE/dz.
    dz: Field<T>,
    /// `[n_out, n]` the part of `dz` that goes through the weights next, turned.
    dz_t: Field<T>,
    /// `[chunks, 2, n_out]` gradients of time step and bias, from each chunk of atoms.
    sums: Field<T>,
}

/// All fitting nets with their state.
pub struct Fitting<T> {
    nets: Vec<NetShape>,
    fold: Fold,
    groups: Vec<Group<T>>,
    schedule: Schedule,
    /// The output is an energy: both passes know tangents. Otherwise see [`outputs`].
    is_energy: bool,
}

/// One type's atoms.
#[derive(Default)]
struct Group<T> {
    n: usize,
    layers: Vec<Layer<T>>,
    /// `[triangle, n_out]` rows of the first layer's W, added up in pairs.
    folded: Field<T>,
    /// `[n, outputs]`
    outputs: Field<T>,
    /// `[outputs, n_in]` the weights of the output layer, turned; only where the output is no energy.
    output_t: Field<T>,
    /// dL/denergy of each atom.
    dl_e: Vec<T>,
    /// What dE/denergy of each atom is; empty where it is 1.
    shares: Vec<T>,
    /// dE/dx and dL/dx of the first layer `[n, width]`.
    de_x: Field<T>,
    dl_x: Field<T>,
}

impl<T: Real> Fitting<T> {
    /// Nets whose inputs begin with a symmetric square of `square` rows, or with none: 0. Their output may be an energy or not.
    pub fn new(nets: Vec<NetShape>, square: usize, is_energy: bool) -> Self {
        let groups = nets.iter().map(|_| Group::default()).collect();
        Fitting { fold: Fold::new(&nets, square), nets, groups, schedule: Schedule::default(), is_energy }
    }

    /// How the inputs are folded.
    pub fn fold(&self) -> Fold {
        self.fold
    }

    /// Inputs of a layer, after the fold.
    fn width(&self, shape: &LayerShape, l: usize) -> usize {
        if l == 0 { self.fold.width(shape.n_in) } else { shape.n_in }
    }

    /// Makes room for `n[c]` atoms of each type.
    pub fn resize(&mut self, n: &[usize]) {
        if self.schedule.is_for(n) {
            return;
        }
        for ((group, net), &n) in self.groups.iter_mut().zip(&self.nets).zip(n) {
            group.n = n;
            group.layers.resize_with(net.layers.len(), Layer::default);
            for (l, (layer, shape)) in group.layers.iter_mut().zip(&net.layers).enumerate() {
                let width = if l == 0 { self.fold.width(shape.n_in) } else { shape.n_in };
                layer.x.resize(2 * n * width);
                for buffer in [&mut layer.f, &mut layer.z_dot, &mut layer.de_y, &mut layer.dl_y] {
                    buffer.resize(n * shape.n_out);
                }
                if shape.activation != Activation::Tanh {
                    layer.d.resize(n * shape.n_out);
                    layer.dd.resize(n * shape.n_out);
                }
                layer.dz.resize(2 * n * shape.n_out);
                layer.dz_t.resize(n * shape.n_out);
                let chunk = row_chunk::<T>(l, net.layers.len() - 1);
                layer.sums.resize(n.div_ceil(chunk) * 2 * shape.n_out);
            }
            group.outputs.resize(n * net.n_out());
            let shape = &net.layers[0];
            group.folded.resize(self.fold.triangle() * shape.n_out);
            group.de_x.resize(n * self.fold.width(shape.n_in));
            group.dl_x.resize(n * self.fold.width(shape.n_in));
        }
        self.schedule = Schedule::new::<T>(&self.nets, self.fold, n, !self.is_energy);
    }

    /// Before [`Fitting::forward`]: what part of the energy of each atom goes on into forces and the loss, by net.
    pub fn put_shares(&mut self, shares: &[Vec<f64>]) {
        for (group, shares) in self.groups.iter_mut().zip(shares) {
            group.shares.clear();
            group.shares.extend(shares.iter().map(|&x| T::from_f64(x)));
        }
    }

    /// The inputs of group `c`, `[n, width]`, to be filled in.
    pub fn input(&mut self, c: usize) -> &mut [T] {
        let group = &mut self.groups[c];
        let width = self.fold.width(self.nets[c].layers[0].n_in);
        &mut group.layers[0].x.all()[..group.n * width]
    }

    /// The tangents of the inputs of group `c`, to be filled in.
    pub fn input_dot(&mut self, c: usize) -> &mut [T] {
        let group = &mut self.groups[c];
        let width = self.fold.width(self.nets[c].layers[0].n_in);
        &mut group.layers[0].x.all()[group.n * width..]
    }

    /// Energies of group `c` after [`Fitting::forward`].
    pub fn energy(&self, c: usize) -> &[T] {
        // SAFETY: written by `&mut self` alone.
        unsafe { self.groups[c].outputs.read(0, self.groups[c].n) }
    }

    /// The last hidden layer of some atoms of group `c` after [`Fitting::forward`], `[n, width]`.
    pub fn last_hidden(&self, c: usize, first: usize, n: usize) -> &[T] {
        let last = self.n_hidden();
        let width = self.width(&self.nets[c].layers[last], last);
        // SAFETY: as above.
        unsafe { self.groups[c].layers[last].x.read(first * width, n * width) }
    }

    /// dE/dinput of group `c` after [`Fitting::backward_input`].
    pub fn de_input(&self, c: usize) -> &[T] {
        // SAFETY: as above.
        unsafe { self.groups[c].de_x.read(0, self.groups[c].de_x.len()) }
    }

    /// dL/dinput of group `c` after [`Fitting::backward`].
    pub fn dl_input(&self, c: usize) -> &[T] {
        // SAFETY: as above.
        unsafe { self.groups[c].dl_x.read(0, self.groups[c].dl_x.len()) }
    }

    fn n_hidden(&self) -> usize {
        self.nets[0].layers.len() - 1
    }

    /// First pass, forward: the energy of every atom, without the bias of its type.
    pub fn forward(&mut self, pool: &Pool, params: &[T]) {
        let this = &*self;
        pool.run(this.schedule.folds.len(), |t| {
            let (group, Range { start, end }) = this.schedule.folds[t].clone();
            let shape = &this.nets[group].layers[0];
            // SAFETY: tasks are disjoint rows.
            let out =
                unsafe { this.groups[group].folded.part(start * shape.n_out, (end - start) * shape.n_out) };
            this.fold.weights(out, start, &params[shape.w_range()], shape.n_out);
        });
        for l in 0..this.n_hidden() {
            let tasks = &this.schedule.forward[l];
            pool.run(tasks.len(), |t| this.forward_task(tasks[t], l, params));
        }
        match self.is_energy {
            true => self.energies(params),
            false => self.make_outputs(pool, params),
        }
    }

    /// The linear output layer, one number for each atom.
    fn energies(&mut self, params: &[T]) {
        let last = self.n_hidden();
        for (group, net) in self.groups.iter_mut().zip(&self.nets) {
            let shape = &net.layers[last];
            let w = &params[shape.w_range()];
            let bias = shape.b.map_or(T::ZERO, |b| params[b]);
            let x = group.layers[last].x.all();
            for (e, x) in group.outputs.all().iter_mut().zip(x.chunks_exact(shape.n_in)) {
                *e = dot(x, w) + bias;
            }
        }
    }

    /// `c = x W` for a block of layer `l`; `first` is the row of `x` that the block starts with.
    ///
    /// # Safety
    /// The block at `c` must be the task's own.
    unsafe fn times_weights(&self, c: *mut T, task: Task, l: usize, params: &[T], first: usize) {
        let Task { group, rows, col, cols, .. } = task;
        let shape = &self.nets[group].layers[l];
        let (width, n_out) = (self.width(shape, l), shape.n_out);
        let w = &params[shape.w_range()];
        let folded = if l == 0 { self.fold.triangle() } else { 0 };
        // SAFETY: the stage before wrote it; C is the task's own by the caller's promise.
        unsafe {
            let x = self.groups[group].layers[l].x.read(first * width, rows * width);
            let mut accumulate = Accumulate::Overwrite;
            if folded > 0 {
                let w = self.groups[group].folded.read(0, folded * n_out);
                let a = Strided { data: x, row: width, col: 1 };
                product_into(c, n_out, accumulate, a, &w[col..], n_out, rows, cols, folded);
                accumulate = Accumulate::Add;
            }
            if width > folded {
                let w = &w[if l == 0 { self.fold.unfolded(folded) } else { 0 } * n_out + col..];
                let a = Strided { data: &x[folded..], row: width, col: 1 };
                product_into(c, n_out, accumulate, a, w, n_out, rows, cols, width - folded);
            }
        }
    }

    /// z = x W + b, its activation, and the layer's value, for one block; at the end of the net also dE/dz.
    fn forward_task(&self, task: Task, l: usize, params: &[T]) {
        let Task { group, row, rows, col, cols } = task;
        let (net, state) = (&self.nets[group], &self.groups[group]);
        let (shape, layer) = (&net.layers[l], &state.layers[l]);
        let (n, n_out, width) = (state.n, shape.n_out, self.width(shape, l));
        let start = row * n_out + col;
        let columns = Columns::new(shape, params, col, cols);
        // SAFETY: tasks are disjoint blocks.
        unsafe { self.times_weights(layer.f.at(start), task, l, params, row) };
        for (piece, from) in shortcut_pieces(shape, col, cols) {
            let (at, here) = (start + piece.start, piece.clone());
            let extent = Extent { rows, cols: piece.len(), ld: n_out };
            let shortcut =
                from.map(|from| Added { from: layer.x.at(row * width + from).cast_const(), ld: width });
            let y = state.layers[l + 1].x.at(at);
            let (bias, scale) = (&columns.bias[here.clone()], &columns.scale[here]);
            // SAFETY: as above.
            unsafe { rows::forward(extent, shape.activation, layer.jets(at), y, bias, scale, shortcut) };
        }
        if self.is_energy && l + 1 == self.n_hidden() {
            let extent = Extent { rows, cols, ld: n_out };
            let w = &params[net.layers[l + 1].w_range()][col..col + cols];
            let de_z = layer.dz.at(n * n_out + start);
            rows::energy_seeds(extent, layer.jets(start), layer.de_y.at(start), de_z, w, &columns.scale);
            if let Some(shares) = state.shares.get(row..row + rows) {
                rows::times_shares(extent, layer.de_y.at(start), shares);
                rows::times_shares(extent, de_z, shares);
            }
            // SAFETY: as above.
            unsafe { transpose_into(layer.dz_t.at(col * n + row), n, de_z, n_out, rows, cols) };
        }
    }

    /// First pass, backward: dE/dinput.
    pub fn backward_input(&mut self, pool: &Pool, params: &[T]) {
        if self.n_hidden() == 0 {
            for (group, net) in self.groups.iter_mut().zip(&self.nets) {
                let w = &params[net.layers[0].w_range()];
                group.de_x.all().chunks_exact_mut(w.len()).for_each(|row| row.copy_from_slice(w));
                for (row, &share) in group.de_x.all().chunks_exact_mut(w.len()).zip(&group.shares) {
                    row.iter_mut().for_each(|x| *x = *x * share);
                }
            }
        }
        let this = &*self;
        for l in (0..this.n_hidden()).rev() {
            let tasks = &this.schedule.backward[l];
            pool.run(tasks.len(), |t| this.energy_task(tasks[t], l, params));
        }
    }

    /// `dx = dz W^T` for a block of the inputs of layer `l`. As the product W dz^T it reads W once, in order.
    ///
    /// # Safety
    /// The block of `dx` must be the task's own.
    unsafe fn times_weights_transposed(&self, dx: *mut T, task: Task, l: usize, params: &[T]) {
        let Task { group, row, rows, col, cols } = task;
        let (shape, state) = (&self.nets[group].layers[l], &self.groups[group]);
        let (n_out, width) = (shape.n_out, self.width(shape, l));
        // SAFETY: earlier stages wrote what is read; dx is the task's own by the caller's promise.
        unsafe {
            let w = match l == 0 {
                true if col < self.fold.triangle() => state.folded.read(col * n_out, cols * n_out),
                true => &params[shape.w_range()][self.fold.unfolded(col) * n_out..],
                false => &params[shape.w_range()][col * n_out..],
            };
            let a = Strided { data: w, row: n_out, col: 1 };
            let dz_t = state.layers[l].dz_t.read(row, n_out * state.n - row);
            product_transposed_into(dx, width, a, dz_t, state.n, cols, rows, n_out);
        }
    }

    /// `dx = dz W^T` for a block of the inputs of layer `l`, and the shortcuts that are still to be added: with the layer below,
    /// whose adjoint follows. `None` at the bottom of the net, where the block is complete.
    fn input_adjoint(
        &self,
        task: Task,
        l: usize,
        params: &[T],
        dx: &Field<T>,
        dy: &Field<T>,
    ) -> Option<(usize, Extent, Shortcuts<T>)> {
        let Task { group, row, rows, col, cols } = task;
        let shape = &self.nets[group].layers[l];
        let width = self.width(shape, l);
        let (start, extent) = (row * width + col, Extent { rows, cols, ld: width });
        // SAFETY: tasks are disjoint blocks of dx.
        unsafe { self.times_weights_transposed(dx.at(start), task, l, params) };
        let shortcuts = adjoint_shortcuts(shape, dy, row, col);
        if l == 0 {
            add_shortcuts(dx.at(start), extent, shortcuts);
            return None;
        }
        Some((start, extent, shortcuts))
    }

    /// dE/dx of a block of the inputs of layer `l`, and dE/dz of the layer below.
    fn energy_task(&self, task: Task, l: usize, params: &[T]) {
        let Task { group, row, rows, col, cols } = task;
        let (state, n) = (&self.groups[group], self.groups[group].n);
        let dx = if l == 0 { &state.de_x } else { &state.layers[l - 1].de_y };
        let Some((start, extent, shortcuts)) = self.input_adjoint(task, l, params, dx, &state.layers[l].de_y)
        else {
            return;
        };
        let (below, width) = (&state.layers[l - 1], extent.ld);
        let columns = Columns::new(&self.nets[group].layers[l - 1], params, col, cols);
        let de_z = below.dz.at(n * width + start);
        rows::energy_adjoint(extent, below.jets(start), dx.at(start), de_z, &columns.scale, shortcuts);
        // SAFETY: as above.
        unsafe { transpose_into(below.dz_t.at(col * n + row), n, de_z, width, rows, cols) };
    }

    /// Second pass, forward: the tangents of every layer, after the tangents of the inputs were filled in.
    ///
    /// `dl_e[c]` is dL/denergy of each atom of group c.
    pub fn tangent(&mut self, pool: &Pool, params: &[T], dl_e: &[Vec<f64>]) {
        for (group, dl_e) in self.groups.iter_mut().zip(dl_e) {
            group.dl_e.clear();
            group.dl_e.extend(dl_e.iter().map(|&x| T::from_f64(x)));
        }
        let this = &*self;
        for l in 0..this.n_hidden() {
            let tasks = &this.schedule.forward[l];
            pool.run(tasks.len(), |t| this.tangent_task(tasks[t], l, params));
        }
    }

    /// z_dot = x_dot W and the tangent of the layer's value, for one block; at the end of the net also dL/dz.
    fn tangent_task(&self, task: Task, l: usize, params: &[T]) {
        let Task { group, row, rows, col, cols } = task;
        let (net, state) = (&self.nets[group], &self.groups[group]);
        let (shape, layer) = (&net.layers[l], &state.layers[l]);
        let (n, n_out, width) = (state.n, shape.n_out, self.width(shape, l));
        let start = row * n_out + col;
        let columns = Columns::new(shape, params, col, cols);
        // SAFETY: tasks are disjoint blocks.
        unsafe { self.times_weights(layer.z_dot.at(start), task, l, params, n + row) };
        for (piece, from) in shortcut_pieces(shape, col, cols) {
            let at = start + piece.start;
            let extent = Extent { rows, cols: piece.len(), ld: n_out };
            let shortcut =
                from.map(|from| Added { from: layer.x.at((n + row) * width + from).cast_const(), ld: width });
            let y_dot = state.layers[l + 1].x.at(n * n_out + at);
            let scale = &columns.scale[piece];
            rows::tangent(extent, layer.jets(at), layer.z_dot.at(at), y_dot, scale, shortcut);
        }
        if l + 1 == self.n_hidden() {
            let extent = Extent { rows, cols, ld: n_out };
            let w = &params[net.layers[l + 1].w_range()][col..col + cols];
            let mut sums = Sums::default();
            let dl_e = &state.dl_e[row..row + rows];
            rows::loss_seeds(extent, layer.reverse(start), dl_e, w, &columns.scale, &mut sums);
            let chunk = row / row_chunk::<T>(l, self.n_hidden());
            // SAFETY: as above.
            unsafe {
                transpose_into(layer.dz_t.at(col * n + row), n, layer.dz.at(start), n_out, rows, cols);
                layer.keep_sums(&sums, chunk, n_out, col, cols);
            }
        }
    }

    /// Second pass, reverse over (value, tangent): dL/dinput, and all that the gradient is made of.
    pub fn backward(&mut self, pool: &Pool, params: &[T]) {
        if self.n_hidden() == 0 {
            for (group, net) in self.groups.iter_mut().zip(&self.nets) {
                let w = &params[net.layers[0].w_range()];
                for (row, &dl) in group.dl_x.all().chunks_exact_mut(w.len()).zip(&group.dl_e) {
                    row.iter_mut().zip(w).for_each(|(out, &w)| *out = dl * w);
                }
            }
        }
        let this = &*self;
        for l in (0..this.n_hidden()).rev() {
            let tasks = &this.schedule.backward[l];
            pool.run(tasks.len(), |t| this.loss_task(tasks[t], l, params));
        }
    }

    /// After [`Fitting::backward`]: overwrites the fitting part of `grad`.
    pub fn gradient(&mut self, pool: &Pool, grad: &mut [T]) {
        let (this, grad) = (&*self, Parts::new(grad));
        // SAFETY: every piece is given out once.
        let take = |first: usize, piece: &[T]| {
            unsafe { grad.part(first, piece.len()) }.copy_from_slice(piece);
        };
        pool.run(this.schedule.gradient.len(), |j| match this.schedule.gradient[j] {
            Job::Weights { group, layer, row, rows } if row >= this.triangle(layer) => {
                let shape = &this.nets[group].layers[layer];
                let first = shape.w + this.unfolded(layer, row) * shape.n_out;
                // SAFETY: each job writes its own rows of its own matrix.
                let out = unsafe { grad.part(first, rows * shape.n_out) };
                this.weight_gradient(out, group, layer, row, Meanwhile::NOTHING);
            }
            job => this.piece(job, &take, &|_, _| Meanwhile::NOTHING),
        });
    }

    /// After [`Fitting::backward`]: gives out pieces of the gradient, with the engine's copy of the parameters.
    pub fn hand_out(&mut self, pool: &Pool, weights: &mut [T], to: &dyn Take) {
        let (this, weights) = (&*self, Parts::new(weights));
        // SAFETY: every piece is given out once.
        let take = |first: usize, piece: &[T]| to.take(first, unsafe { T::piece(piece, &weights, first) });
        // The three of the taker, and our copy of the parameters.
        let needs = |first: usize, n: usize| {
            let [p, q, r] = to.needs(first).map(|(p, bytes)| (p, n * bytes));
            let copied = if weights.is_empty() { 0 } else { n * size_of::<T>() };
            let copy = weights.at(first.min(weights.len())).cast_const().cast();
            Meanwhile::new([p, q, r, (copy, copied)])
        };
        pool.run(this.schedule.gradient.len(), |j| this.piece(this.schedule.gradient[j], &take, &needs));
    }

    /// The inputs of a layer that are folded.
    fn triangle(&self, layer: usize) -> usize {
        if layer == 0 { self.fold.triangle() } else { 0 }
    }

    /// The row of W of a folded input.
    fn unfolded(&self, layer: usize, row: usize) -> usize {
        if layer == 0 { self.fold.unfolded(row) } else { row }
    }

    /// Gives out what one job computes. What `needs` names is fetched meanwhile.
    fn piece(&self, job: Job, take: &impl Fn(usize, &[T]), needs: &impl Fn(usize, usize) -> Meanwhile) {
        let (group, layer, row, rows) = match job {
            Job::Weights { group, layer, row, rows } => (group, layer, row, rows),
            Job::Rest { group } => return self.other_gradients(group, take),
        };
        let shape = &self.nets[group].layers[layer];
        let n_out = shape.n_out;
        let whole = row >= self.triangle(layer);
        let first = shape.w + if whole { self.unfolded(layer, row) } else { 0 } * n_out;
        let meanwhile = if whole { needs(first, rows * n_out) } else { Meanwhile::NOTHING };
        scratch(rows * n_out, |sum: &mut [T]| {
            self.weight_gradient(sum, group, layer, row, meanwhile);
            if whole {
                return take(first, sum);
            }
            for (sum, (target, mirror)) in sum.chunks_exact(n_out).zip(self.fold.targets(row)) {
                for target in std::iter::once(target).chain(mirror) {
                    take(shape.w + target * n_out, sum);
                }
            }
        });
    }

    /// dL/dx of a block of the inputs of layer `l`, dL/dz of the layer below and its sums over atoms.
    fn loss_task(&self, task: Task, l: usize, params: &[T]) {
        let Task { group, row, rows, col, cols } = task;
        let (state, n) = (&self.groups[group], self.groups[group].n);
        let dx = if l == 0 { &state.dl_x } else { &state.layers[l - 1].dl_y };
        let Some((start, extent, shortcuts)) = self.input_adjoint(task, l, params, dx, &state.layers[l].dl_y)
        else {
            return;
        };
        let (below, width) = (&state.layers[l - 1], extent.ld);
        let columns = Columns::new(&self.nets[group].layers[l - 1], params, col, cols);
        let mut sums = Sums::default();
        rows::loss_adjoint(extent, below.reverse(start), &columns.scale, shortcuts, &mut sums);
        let chunk = row / row_chunk::<T>(l - 1, self.n_hidden());
        // SAFETY: as above.
        unsafe {
            transpose_into(below.dz_t.at(col * n + row), n, below.dz.at(start), width, rows, cols);
            below.keep_sums(&sums, chunk, width, col, cols);
        }
    }

    /// dW = [x; x_dot]^T [dl_z; de_z] of some rows of a hidden layer, counted after the fold.
    fn weight_gradient(&self, out: &mut [T], group: usize, l: usize, row: usize, meanwhile: Meanwhile) {
        let (shape, state) = (&self.nets[group].layers[l], &self.groups[group]);
        let (layer, n_out, width) = (&state.layers[l], shape.n_out, self.width(shape, l));
        // Without tangents the first half is all.
        let (rows, depth) = (out.len() / n_out, if self.is_energy { 2 } else { 1 } * state.n);
        if depth == 0 {
            out.fill(T::ZERO);
        }
        // SAFETY: earlier stages wrote them.
        let (x, dz) = unsafe { (layer.x.read(0, depth * width), layer.dz.read(0, depth * n_out)) };
        scratch(GRAD_DEPTH * GRAD_ROWS, |packed: &mut [T]| {
            for first in (0..depth).step_by(GRAD_DEPTH) {
                let here = GRAD_DEPTH.min(depth - first);
                // The columns of x that this job needs, packed: with the stride of x every number is on a page of its own.
                pack(&mut packed[..here * rows], &x[first * width + row..], width, rows);
                let a = Strided { data: &packed[..here * rows], row: 1, col: rows };
                let b = &dz[first * n_out..];
                if first == 0 {
                    product_meanwhile(out, n_out, a, b, n_out, rows, n_out, here, meanwhile);
                } else {
                    product(out, n_out, Accumulate::Add, a, b, n_out, rows, n_out, here);
                }
            }
        });
    }

    /// Gradients of biases, time steps and the output layer of a group.
    fn other_gradients(&self, group: usize, take: &impl Fn(usize, &[T])) {
        let (net, state) = (&self.nets[group], &self.groups[group]);
        let last = self.n_hidden();
        for (shape, layer) in net.layers[..last].iter().zip(&state.layers) {
            // SAFETY: earlier stages wrote them.
            let sums = unsafe { layer.sums.read(0, layer.sums.len()) };
            for (place, which) in [(shape.idt, 0), (shape.b, 1)] {
                let Some(place) = place else { continue };
                scratch(shape.n_out, |total: &mut [T]| {
                    total.fill(T::ZERO);
                    for chunk in sums.chunks_exact(2 * shape.n_out) {
                        add(total, &chunk[which * shape.n_out..(which + 1) * shape.n_out]);
                    }
                    take(place, total);
                });
            }
        }
        if !self.is_energy {
            return self.output_bias_gradient(group, take);
        }
        let shape = &net.layers[last];
        let (n, n_in) = (state.n, shape.n_in);
        // SAFETY: as above.
        let x = unsafe { state.layers[last].x.read(0, 2 * n * n_in) };
        scratch(n_in, |dw: &mut [T]| {
            dw.fill(T::ZERO);
            for (r, &dl) in state.dl_e.iter().enumerate() {
                // e = x w + b has the adjoint dl, e_dot = x_dot w the adjoint 1, or the share of the nets.
                axpy(dw, dl, &x[r * n_in..(r + 1) * n_in]);
                let x_dot = &x[(n + r) * n_in..(n + r + 1) * n_in];
                match state.shares.get(r) {
                    Some(&share) => axpy(dw, share, x_dot),
                    None => add(dw, x_dot),
                }
            }
            take(shape.w, dw);
        });
        if let Some(b) = shape.b {
            let sum: T = state.dl_e.iter().copied().sum();
            take(b, &[sum]);
        }
    }
}

multiversion! {
    /// `out[r, ..rows] = x[r, ..rows]` of a matrix with rows of `width` numbers.
    fn pack<T: Real>(out: &mut [T], x: &[T], width: usize, rows: usize) {
        /// Rows that are asked for ahead: they are too far apart for the hardware to look ahead.
        const AHEAD: usize = 12;
        for (r, out) in out.chunks_exact_mut(rows).enumerate() {
            let ahead = x.as_ptr().wrapping_add((r + AHEAD) * width);
            for line in (0..rows).step_by(64 / size_of::<T>()) {
                prefetch(ahead.wrapping_add(line));
            }
            prefetch(ahead.wrapping_add(rows - 1));
            let from = &x[r * width..r * width + rows];
            // Of a known length it is a few vectors and no call.
            match (<&mut [T; GRAD_ROWS]>::try_from(&mut *out), <&[T; GRAD_ROWS]>::try_from(from)) {
                (Ok(out), Ok(from)) => *out = *from,
                _ => out.copy_from_slice(from),
            }
        }
    }
}

impl<T: Real> Layer<T> {
    /// The jets from an element on.
    fn jets(&self, at: usize) -> Jets<T> {
        let kept = |field: &Field<T>| if field.is_empty() { std::ptr::null_mut() } else { field.at(at) };
        Jets { f: self.f.at(at), d: kept(&self.d), dd: kept(&self.dd) }
    }

    /// What the reverse pass needs from an element on.
    fn reverse(&self, at: usize) -> Reverse<T> {
        Reverse {
            jets: self.jets(at),
            z_dot: self.z_dot.at(at),
            de_y: self.de_y.at(at),
            dl_y: self.dl_y.at(at),
            dl_z: self.dz.at(at),
        }
    }

    /// Keeps the sums over a chunk of atoms for some columns.
    ///
    /// # Safety
    /// No other task may have the same chunk and columns.
    unsafe fn keep_sums(&self, sums: &Sums<T>, chunk: usize, n_out: usize, col: usize, cols: usize) {
        for (which, sum) in [&sums.idt, &sums.bias].into_iter().enumerate() {
            // SAFETY: the caller's promise.
            unsafe { self.sums.part((2 * chunk + which) * n_out + col, cols) }.copy_from_slice(&sum[..cols]);
        }
    }
}
