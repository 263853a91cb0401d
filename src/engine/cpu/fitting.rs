//! The fitting nets on all atoms of a batch, both passes.
//!
//! Atoms are grouped by type; each group runs through its own net. Values and tangents are stacked in one buffer,
//! `[x; x_dot]`, as are their adjoints, `[dl_z; de_z]`, so that a weight gradient is a single product.

use super::dense::{Accumulate, Strided, product, product_into, product_turned_into};
use super::elementwise::{activate, add, axpy, dot, multiply, scaled_product};
use super::pool::{Parts, Pool};
use super::real::Real;
use super::scratch::scratch;
use super::simd::multiversion;
use crate::model::net::{LayerShape, NetShape, Shortcut};

/// Rows and columns of C that one task computes. Fixed, so that results do not depend on the number of threads.
const ROWS: usize = 64;
const COLS: usize = 48;
/// Rows of W that one task multiplies by, and the most atoms that it does so for.
const BACK_ROWS: usize = 32;
const BACK_ATOMS: usize = 192;
/// Rows of a weight gradient that one task computes, and how much of the sum it does at once.
const GRAD_ROWS: usize = 32;
const GRAD_DEPTH: usize = 256;

/// The state of one layer for one group of atoms.
#[derive(Default)]
struct Layer<T> {
    /// `[2 n, n_in]`: values, then tangents.
    x: Vec<T>,
    /// `[n, n_out]` act, act', act'' of the pre-activation.
    f: Vec<T>,
    d: Vec<T>,
    dd: Vec<T>,
    /// `[n, n_out]` tangent of the pre-activation.
    z_dot: Vec<T>,
    /// `[n, n_out]` dE/dy, then dL/dy.
    de_y: Vec<T>,
    dl_y: Vec<T>,
    /// `[2 n, n_out]`: dL/dz, then dE/dz.
    dz: Vec<T>,
    /// `[n_out, n]` the part of `dz` that goes through the weights next, turned.
    dz_t: Vec<T>,
}

/// All fitting nets with their state.
pub struct Fitting<T> {
    nets: Vec<NetShape>,
    groups: Vec<Group<T>>,
}

/// One type's atoms.
#[derive(Default)]
struct Group<T> {
    n: usize,
    layers: Vec<Layer<T>>,
    energy: Vec<T>,
    /// dE/dx and dL/dx of the first layer `[n, n_in]`.
    de_x: Vec<T>,
    dl_x: Vec<T>,
}

/// One block of a product: which group, which rows and columns.
#[derive(Clone, Copy)]
struct Task {
    group: usize,
    row: usize,
    rows: usize,
    col: usize,
    cols: usize,
}

impl<T: Real> Fitting<T> {
    pub fn new(nets: Vec<NetShape>) -> Self {
        let groups = nets.iter().map(|_| Group::default()).collect();
        Fitting { nets, groups }
    }

    /// Makes room for `n[c]` atoms of each type.
    pub fn resize(&mut self, n: &[usize]) {
        for ((group, net), &n) in self.groups.iter_mut().zip(&self.nets).zip(n) {
            group.n = n;
            group.layers.resize_with(net.layers.len(), Layer::default);
            for (layer, shape) in group.layers.iter_mut().zip(&net.layers) {
                layer.x.resize(2 * n * shape.n_in, T::ZERO);
                for buffer in [
                    &mut layer.f,
                    &mut layer.d,
                    &mut layer.dd,
                    &mut layer.z_dot,
                    &mut layer.de_y,
                    &mut layer.dl_y,
                ] {
                    buffer.resize(n * shape.n_out, T::ZERO);
                }
                layer.dz.resize(2 * n * shape.n_out, T::ZERO);
                layer.dz_t.resize(n * shape.n_out, T::ZERO);
            }
            group.energy.resize(n, T::ZERO);
            let n_in = net.layers[0].n_in;
            group.de_x.resize(n * n_in, T::ZERO);
            group.dl_x.resize(n * n_in, T::ZERO);
        }
    }

    /// The inputs of group `c`, `[n, n_in]`, to be filled in.
    pub fn input(&mut self, c: usize) -> &mut [T] {
        let n_in = self.nets[c].layers[0].n_in;
        let n = self.groups[c].n;
        &mut self.groups[c].layers[0].x[..n * n_in]
    }

    /// The tangents of the inputs of group `c`, to be filled in.
    pub fn input_dot(&mut self, c: usize) -> &mut [T] {
        let n_in = self.nets[c].layers[0].n_in;
        let n = self.groups[c].n;
        &mut self.groups[c].layers[0].x[n * n_in..2 * n * n_in]
    }

    /// Energies of group `c` after [`Fitting::forward`].
    pub fn energy(&self, c: usize) -> &[T] {
        &self.groups[c].energy
    }

    /// dE/dinput of group `c` after [`Fitting::backward_input`].
    pub fn de_input(&self, c: usize) -> &[T] {
        &self.groups[c].de_x
    }

    /// dL/dinput of group `c` after [`Fitting::backward`].
    pub fn dl_input(&self, c: usize) -> &[T] {
        &self.groups[c].dl_x
    }

    fn n_hidden(&self) -> usize {
        self.nets[0].layers.len() - 1
    }

    /// Blocks of `[n, width(layer)]` over all groups.
    fn tasks(&self, width: impl Fn(&NetShape) -> usize, cols: usize) -> Vec<Task> {
        let mut tasks = Vec::new();
        for (group, (net, state)) in self.nets.iter().zip(&self.groups).enumerate() {
            let width = width(net);
            for row in (0..state.n).step_by(ROWS) {
                for col in (0..width).step_by(cols) {
                    let (rows, cols) = (ROWS.min(state.n - row), cols.min(width - col));
                    tasks.push(Task { group, row, rows, col, cols });
                }
            }
        }
        tasks
    }

    /// First pass, forward: the energy of every atom, without the bias of its type.
    pub fn forward(&mut self, pool: &Pool, params: &[T]) {
        for l in 0..self.n_hidden() {
            let tasks = self.tasks(|net| net.layers[l].n_out, COLS);
            let outputs: Vec<_> = self
                .groups
                .iter_mut()
                .map(|g| {
                    let (now, next) = g.layers.split_at_mut(l + 1);
                    let layer = &mut now[l];
                    let y = Parts::new(&mut next[0].x);
                    (
                        &layer.x[..],
                        Parts::new(&mut layer.f),
                        Parts::new(&mut layer.d),
                        Parts::new(&mut layer.dd),
                        y,
                    )
                })
                .collect();
            let nets = &self.nets;
            pool.run(tasks.len(), |t| {
                let task = tasks[t];
                let shape = &nets[task.group].layers[l];
                let (x, f, d, dd, y) = &outputs[task.group];
                forward_task(task, shape, params, x, [f, d, dd, y]);
            });
        }
        self.output(params);
    }

    /// The linear output layer, one number for each atom.
    fn output(&mut self, params: &[T]) {
        for (group, net) in self.groups.iter_mut().zip(&self.nets) {
            let shape = &net.layers[net.layers.len() - 1];
            let layer = &mut group.layers[net.layers.len() - 1];
            let w = &params[shape.w_range()];
            let bias = shape.b.map_or(T::ZERO, |b| params[b]);
            for (r, e) in group.energy.iter_mut().enumerate() {
                *e = dot(&layer.x[r * shape.n_in..(r + 1) * shape.n_in], w) + bias;
            }
        }
    }

    /// First pass, backward: dE/dinput.
    pub fn backward_input(&mut self, pool: &Pool, params: &[T]) {
        let last = self.n_hidden();
        for (group, net) in self.groups.iter_mut().zip(&self.nets) {
            let w = &params[net.layers[last].w_range()];
            let target = if last == 0 { &mut group.de_x } else { &mut group.layers[last - 1].de_y };
            for row in target.chunks_exact_mut(w.len()) {
                row.copy_from_slice(w);
            }
        }
        for l in (0..last).rev() {
            let tasks = self.tasks(|net| net.layers[l].n_out, COLS);
            let io: Vec<_> = self
                .groups
                .iter_mut()
                .map(|g| {
                    let layer = &mut g.layers[l];
                    let turned = Parts::new(&mut layer.dz_t);
                    (&layer.de_y[..], &layer.d[..], Parts::new(&mut layer.dz), turned, g.n)
                })
                .collect();
            let nets = &self.nets;
            pool.run(tasks.len(), |t| {
                let Task { group, row, rows, col, cols } = tasks[t];
                let shape = &nets[group].layers[l];
                let width = shape.n_out;
                let (de_y, d, dz, turned, n) = &io[group];
                let scale = idt(shape, params).map(|idt| &idt[col..col + cols]);
                for r in row..row + rows {
                    let at = r * width + col..r * width + col + cols;
                    // SAFETY: tasks are disjoint blocks.
                    let de_z = unsafe { dz.part((n + r) * width + col, cols) };
                    scaled_product(de_z, &de_y[at.clone()], &d[at], scale);
                }
                // SAFETY: as above.
                unsafe {
                    turn_block(turned.at(0), dz.at(n * width), *n, width, row..row + rows, col..col + cols)
                };
            });
            self.times_weights_transposed(pool, params, l, Adjoint::Energy);
        }
    }

    /// dx = dz W^T + shortcut^T(dy) of layer `l`, into the layer below. As the product W dz^T it reads W once, in order.
    fn times_weights_transposed(&mut self, pool: &Pool, params: &[T], l: usize, adjoint: Adjoint) {
        let mut tasks = Vec::new();
        for (group, (net, state)) in self.nets.iter().zip(&self.groups).enumerate() {
            let n_in = net.layers[l].n_in;
            for row in (0..state.n).step_by(BACK_ATOMS) {
                let rows = BACK_ATOMS.min(state.n - row);
                let blocks = (0..n_in).step_by(BACK_ROWS);
                tasks.extend(blocks.map(|col| Task {
                    group,
                    row,
                    rows,
                    col,
                    cols: BACK_ROWS.min(n_in - col),
                }));
            }
        }
        let io: Vec<_> = self
            .groups
            .iter_mut()
            .map(|g| {
                let (below, now) = g.layers.split_at_mut(l);
                let layer = &now[0];
                let (dy, dx) = match adjoint {
                    Adjoint::Energy => {
                        (&layer.de_y, if l == 0 { &mut g.de_x } else { &mut below[l - 1].de_y })
                    }
                    Adjoint::Loss => (&layer.dl_y, if l == 0 { &mut g.dl_x } else { &mut below[l - 1].dl_y }),
                };
                (&layer.dz_t[..], &dy[..], Parts::new(dx), g.n)
            })
            .collect();
        let nets = &self.nets;
        pool.run(tasks.len(), |t| {
            let task = tasks[t];
            let shape = &nets[task.group].layers[l];
            let (dz_t, dy, dx, n) = &io[task.group];
            let (n_in, n_out) = (shape.n_in, shape.n_out);
            let w = &params[shape.w_range()][task.col * n_out..];
            let a = Strided { data: w, row: n_out, col: 1 };
            let start = task.row * n_in + task.col;
            // SAFETY: tasks are disjoint blocks of dx.
            unsafe {
                product_turned_into(dx.at(start), n_in, a, &dz_t[task.row..], *n, task.cols, task.rows, n_out)
            };
            if shape.shortcut != Shortcut::None {
                for r in 0..task.rows {
                    let dy = &dy[(task.row + r) * n_out..(task.row + r + 1) * n_out];
                    // SAFETY: a row of the task's own block.
                    let out = unsafe { dx.part(start + r * n_in, task.cols) };
                    for fold in (0..n_out).step_by(n_in) {
                        add(out, &dy[fold + task.col..fold + task.col + task.cols]);
                    }
                }
            }
        });
    }

    /// Second pass, forward: the tangents of every layer, after the tangents of the inputs were filled in.
    pub fn tangent(&mut self, pool: &Pool, params: &[T]) {
        for l in 0..self.n_hidden() {
            let tasks = self.tasks(|net| net.layers[l].n_out, COLS);
            let io: Vec<_> = self
                .groups
                .iter_mut()
                .map(|g| {
                    let (now, next) = g.layers.split_at_mut(l + 1);
                    let layer = &mut now[l];
                    (
                        &layer.x[..],
                        &layer.d[..],
                        Parts::new(&mut layer.z_dot),
                        Parts::new(&mut next[0].x),
                        g.n,
                    )
                })
                .collect();
            let nets = &self.nets;
            pool.run(tasks.len(), |t| {
                let task = tasks[t];
                let shape = &nets[task.group].layers[l];
                let (x, d, z_dot, y, n) = &io[task.group];
                tangent_task(task, shape, params, &x[n * shape.n_in..], d, z_dot, y, *n);
            });
        }
    }

    /// Second pass, reverse over (value, tangent): overwrites the fitting part of `grad` and gives dL/dinput.
    ///
    /// `dl_e[c]` is dL/denergy of each atom of group c.
    pub fn backward(&mut self, pool: &Pool, grad: &mut [T], params: &[T], dl_e: &[Vec<f64>]) {
        self.output_backward(grad, params, dl_e);
        for l in (0..self.n_hidden()).rev() {
            self.layer_adjoints(pool, grad, params, l);
            self.times_weights_transposed(pool, params, l, Adjoint::Loss);
        }
        self.weight_gradients(pool, grad);
    }

    /// dL/dz of a layer and the gradients of its bias and time step; dE/dz is there from the first pass.
    fn layer_adjoints(&mut self, pool: &Pool, grad: &mut [T], params: &[T], l: usize) {
        // All rows of some columns: the sums over rows then belong to one task.
        let mut jobs = Vec::new();
        for (group, net) in self.nets.iter().enumerate() {
            let width = net.layers[l].n_out;
            jobs.extend((0..width).step_by(COLS).map(|col| (group, col, COLS.min(width - col))));
        }
        let grad = Parts::new(grad);
        let io: Vec<_> = self
            .groups
            .iter_mut()
            .map(|g| {
                let Layer { f, d, dd, z_dot, de_y, dl_y, dz, dz_t, .. } = &mut g.layers[l];
                ([&*f, &*d, &*dd, &*z_dot, &*de_y, &*dl_y], Parts::new(dz), Parts::new(dz_t), g.n)
            })
            .collect();
        let nets = &self.nets;
        pool.run(jobs.len(), |j| {
            let (group, col, cols) = jobs[j];
            let shape = &nets[group].layers[l];
            let (inputs, dz, turned, n) = &io[group];
            let mut sums = [[T::ZERO; COLS]; 2];
            let [d_idt, d_bias] = sums.each_mut().map(|sum| &mut sum[..cols]);
            let ones = [T::ONE; COLS];
            let scale = idt(shape, params).map_or(&ones[..cols], |idt| &idt[col..col + cols]);
            for r in 0..*n {
                let at = r * shape.n_out + col;
                // SAFETY: jobs have different columns.
                let dl_z = unsafe { dz.part(at, cols) };
                let [f, d, dd, z_dot, de_y, dl_y] = inputs.map(|x| &x[at..at + cols]);
                adjoint_row(dl_z, d_idt, d_bias, dl_y, de_y, [f, d, dd], z_dot, scale);
            }
            // SAFETY: as above.
            unsafe { turn_block(turned.at(0), dz.at(0), *n, shape.n_out, 0..*n, col..col + cols) };
            for (place, sum) in [(shape.idt, &sums[0]), (shape.b, &sums[1])] {
                if let Some(place) = place {
                    // SAFETY: as above.
                    unsafe { grad.part(place + col, cols) }.copy_from_slice(&sum[..cols]);
                }
            }
        });
    }

    fn output_backward(&mut self, grad: &mut [T], params: &[T], dl_e: &[Vec<f64>]) {
        let last = self.n_hidden();
        for ((group, net), dl_e) in self.groups.iter_mut().zip(&self.nets).zip(dl_e) {
            let shape = &net.layers[last];
            let (n, n_in) = (group.n, shape.n_in);
            let w = &params[shape.w_range()];
            let (hidden, output) = group.layers.split_at_mut(last);
            let x = &output[0].x;
            let dl_x = if last == 0 { &mut group.dl_x } else { &mut hidden[last - 1].dl_y };
            let dw = &mut grad[shape.w_range()];
            dw.fill(T::ZERO);
            let mut db = T::ZERO;
            for (r, &dl) in dl_e.iter().enumerate() {
                let dl = T::from_f64(dl);
                // e = x w + b has the adjoint dl, e_dot = x_dot w the adjoint 1.
                axpy(dw, dl, &x[r * n_in..(r + 1) * n_in]);
                add(dw, &x[(n + r) * n_in..(n + r + 1) * n_in]);
                for (out, &w) in dl_x[r * n_in..(r + 1) * n_in].iter_mut().zip(w) {
                    *out = dl * w;
                }
                db += dl;
            }
            if let Some(b) = shape.b {
                grad[b] = db;
            }
        }
    }

    /// dW = [x; x_dot]^T [dl_z; de_z] of every hidden layer.
    fn weight_gradients(&mut self, pool: &Pool, grad: &mut [T]) {
        let mut jobs = Vec::new();
        for (c, net) in self.nets.iter().enumerate() {
            for (l, shape) in net.layers[..self.n_hidden()].iter().enumerate() {
                for row in (0..shape.n_in).step_by(GRAD_ROWS) {
                    jobs.push((c, l, row, GRAD_ROWS.min(shape.n_in - row)));
                }
            }
        }
        let parts = Parts::new(grad);
        let (nets, groups) = (&self.nets, &self.groups);
        pool.run(jobs.len(), |j| {
            let (c, l, row, rows) = jobs[j];
            let (shape, layer, n) = (&nets[c].layers[l], &groups[c].layers[l], groups[c].n);
            let (n_in, n_out) = (shape.n_in, shape.n_out);
            // SAFETY: each job writes its own rows of its own matrix.
            let out = unsafe { parts.part(shape.w + row * n_out, rows * n_out) };
            let depth = 2 * n;
            if depth == 0 {
                out.fill(T::ZERO);
            }
            scratch(GRAD_DEPTH * GRAD_ROWS, |packed: &mut [T]| {
                for first in (0..depth).step_by(GRAD_DEPTH) {
                    let here = GRAD_DEPTH.min(depth - first);
                    // The columns of x that this job needs, packed: with the stride of x every number is on a page of its own.
                    for (r, out) in packed.chunks_exact_mut(rows).take(here).enumerate() {
                        let at = (first + r) * n_in + row;
                        out.copy_from_slice(&layer.x[at..at + rows]);
                    }
                    let accumulate = if first == 0 { Accumulate::Overwrite } else { Accumulate::Add };
                    let a = Strided { data: &packed[..here * rows], row: 1, col: rows };
                    product(out, n_out, accumulate, a, &layer.dz[first * n_out..], n_out, rows, n_out, here);
                }
            });
        });
    }
}

/// Which derivative flows through a backward pass.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Adjoint {
    Energy,
    Loss,
}

fn idt<'a, T>(shape: &LayerShape, params: &'a [T]) -> Option<&'a [T]> {
    shape.idt_range().map(|range| &params[range])
}

/// z = x W + b, its activation, and the layer's value, for one block.
fn forward_task<T: Real>(task: Task, shape: &LayerShape, params: &[T], x: &[T], out: [&Parts<T>; 4]) {
    let (n_in, n_out) = (shape.n_in, shape.n_out);
    let start = task.row * n_out + task.col;
    let w = &params[shape.w_range()];
    let a = Strided { data: &x[task.row * n_in..], row: n_in, col: 1 };
    let (m, n) = (task.rows, task.cols);
    // SAFETY: tasks are disjoint blocks.
    unsafe {
        product_into(out[0].at(start), n_out, Accumulate::Overwrite, a, &w[task.col..], n_out, m, n, n_in)
    };
    let here = task.col..task.col + task.cols;
    let bias = shape.b_range().map(|range| &params[range][here.clone()]);
    let idt = idt(shape, params).map(|idt| &idt[here.clone()]);
    for r in 0..task.rows {
        // SAFETY: a row of the task's own block.
        let [f, d, dd, y] = out.map(|part| unsafe { part.part(start + r * n_out, task.cols) });
        if let Some(bias) = bias {
            add(f, bias);
        }
        activate(f, d, dd, shape.activation);
        match idt {
            Some(idt) => multiply(y, f, idt),
            None => y.copy_from_slice(f),
        }
        if shape.shortcut != Shortcut::None {
            add_folded(y, &x[(task.row + r) * n_in..(task.row + r + 1) * n_in], task.col);
        }
    }
}

/// z_dot = x_dot W and the tangent of the layer's value, for one block.
#[allow(clippy::too_many_arguments)]
fn tangent_task<T: Real>(
    task: Task,
    shape: &LayerShape,
    params: &[T],
    x_dot: &[T],
    d: &[T],
    z_dot: &Parts<T>,
    y: &Parts<T>,
    n: usize,
) {
    let (n_in, n_out) = (shape.n_in, shape.n_out);
    let start = task.row * n_out + task.col;
    let w = &params[shape.w_range()];
    let a = Strided { data: &x_dot[task.row * n_in..], row: n_in, col: 1 };
    let (rows, cols) = (task.rows, task.cols);
    // SAFETY: tasks are disjoint blocks.
    unsafe {
        product_into(
            z_dot.at(start),
            n_out,
            Accumulate::Overwrite,
            a,
            &w[task.col..],
            n_out,
            rows,
            cols,
            n_in,
        )
    };
    let idt = idt(shape, params).map(|idt| &idt[task.col..task.col + task.cols]);
    for r in 0..task.rows {
        // SAFETY: rows of the task's own blocks.
        let (z_dot, y_dot) =
            unsafe { (z_dot.part(start + r * n_out, cols), y.part(n * n_out + start + r * n_out, cols)) };
        let d = &d[start + r * n_out..start + r * n_out + task.cols];
        scaled_product(y_dot, z_dot, d, idt);
        if shape.shortcut != Shortcut::None {
            add_folded(y_dot, &x_dot[(task.row + r) * n_in..(task.row + r + 1) * n_in], task.col);
        }
    }
}

multiversion! {
    /// Part of one row of [`Fitting::layer_adjoints`].
    fn adjoint_row<T: Real>(dl_z: &mut [T], d_idt: &mut [T], d_bias: &mut [T], dl_y: &[T], de_y: &[T], jets: [&[T]; 3], z_dot: &[T], scale: &[T]) {
        let n = dl_z.len();
        let [f, d, dd] = jets.map(|x| &x[..n]);
        let (d_idt, d_bias) = (&mut d_idt[..n], &mut d_bias[..n]);
        let (dl_y, de_y, z_dot, scale) = (&dl_y[..n], &de_y[..n], &z_dot[..n], &scale[..n]);
        for o in 0..n {
            d_idt[o] += dl_y[o] * f[o] + de_y[o] * d[o] * z_dot[o];
            dl_z[o] = scale[o] * (dl_y[o] * d[o] + de_y[o] * dd[o] * z_dot[o]);
            d_bias[o] += dl_z[o];
        }
    }
}

/// `out[k] += x[(col + k) mod len(x)]`: the shortcut (x) or (x, x).
fn add_folded<T: Real>(out: &mut [T], x: &[T], col: usize) {
    let mut done = 0;
    while done < out.len() {
        let from = (col + done) % x.len();
        let here = (x.len() - from).min(out.len() - done);
        add(&mut out[done..done + here], &x[from..from + here]);
        done += here;
    }
}

/// Turns a block of `a` `[n, width]` into `out` `[width, n]`.
///
/// # Safety
/// Both must hold n x width numbers, and nobody else may touch the block meanwhile.
unsafe fn turn_block<T: Real>(
    out: *mut T,
    a: *const T,
    n: usize,
    width: usize,
    rows: std::ops::Range<usize>,
    cols: std::ops::Range<usize>,
) {
    const BLOCK: usize = 8;
    for r0 in rows.clone().step_by(BLOCK) {
        for c in cols.clone() {
            for r in r0..(r0 + BLOCK).min(rows.end) {
                // SAFETY: within the block.
                unsafe { *out.add(c * n + r) = *a.add(r * width + c) };
            }
        }
    }
}
