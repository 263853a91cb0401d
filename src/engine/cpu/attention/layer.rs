//! One layer of attention between the neighbours of an atom: value, tangent and adjoints.
//!
//! With rows X of G: queries, keys and values are `X W + b`, each of length 1 where that is wanted; w = q k^T. In the smooth form
//! `z = (w + 20) S - 20` with S the product of two switches, else z = w. `P = softmax(z)`, `Q = P F` with the factors F of the geometry,
//! `O = Q v`, and the new X is `normal(X + O W' + b')` scaled and shifted. Rows behind the neighbours are not attended to: O is 0 there.
//!
//! A layer keeps what products and exponentials gave; what follows from that element by element is computed again ([`Spare`]).

use super::factors::{Factors, times_add};
use super::geometry::zeros;
use super::rows::{self, Kind};
use super::step::{LayerWeights, Step};
use crate::engine::cpu::dense::{Accumulate, Strided, product, transpose_into};
use crate::engine::cpu::elementwise::{add, axpy, dot, multiply};
use crate::engine::cpu::real::Real;
use crate::engine::cpu::simd::multiversion;

/// What weights are shifted by before they are switched off.
pub const SHIFT: f64 = 20.0;

/// What the passes remember of a layer.
#[derive(Default)]
pub struct Layer<T> {
    n: usize,
    rows: usize,
    /// `[rows, M]` the rows that it is given, and their changes and derivatives.
    pub x: Vec<T>,
    pub x_dot: Vec<T>,
    pub de_x: Vec<T>,
    /// `[n, 3 H]` queries, keys and values after they were brought to length 1, and `[n, 3]` by what.
    y: Vec<T>,
    inverse: Vec<T>,
    /// The change of them before that, and dE by them after it.
    z_dot: Vec<T>,
    de_y: Vec<T>,
    /// `[n, n]` w where it is not z, probabilities, the change of z, and dE by Q.
    w: Vec<T>,
    p: Vec<T>,
    w_dot: Vec<T>,
    de_q: Vec<T>,
    /// `[n, H]`
    o: Vec<T>,
    o_dot: Vec<T>,
    de_o: Vec<T>,
    /// `[rows, M]` the change of X + O W' + b' and dE by it; what it is after the normalisation, and by what it was multiplied.
    r_dot: Vec<T>,
    de_r: Vec<T>,
    u: Vec<T>,
    scale: Vec<T>,
}

/// Memory that layers share while one pass goes through one of them.
#[derive(Default)]
pub struct Spare<T> {
    /// `[H, n]` keys or values, turned.
    turn: Vec<T>,
    /// `[n, n]` Q and its change, the change of P, and dE by P, z and w.
    q: Vec<T>,
    q_dot: Vec<T>,
    p_dot: Vec<T>,
    de_p: Vec<T>,
    de_z: Vec<T>,
    de_w: Vec<T>,
    /// dL by Q, P and w.
    dl_q: Vec<T>,
    dl_p: Vec<T>,
    dl_w: Vec<T>,
    /// `[n, 3 H]` the change of y, and dL by y.
    y_dot: Vec<T>,
    dl_y: Vec<T>,
    /// `[n, 3 H]` dE by y before it was brought to length 1.
    de_y: Vec<T>,
    /// `[n, H]`
    dl_o: Vec<T>,
    /// `[M]`, `[H]` or `[n]`
    row: [Vec<T>; 4],
}

/// Numbers of an atom's layer that its passes keep, with so many rows.
pub const fn numbers(width: usize, attn: usize, rows: usize) -> usize {
    // x, x_dot, de_x, r_dot, de_r, u; y, z_dot, de_y and o, o_dot, de_o; w, p, w_dot, de_q; inverse and scale.
    rows * (6 * width + 12 * attn + 4 * rows + 4)
}

fn strided<T>(data: &[T], row: usize) -> Strided<'_, T> {
    Strided { data, row, col: 1 }
}

fn turned<T>(data: &[T], row: usize) -> Strided<'_, T> {
    Strided { data, row: 1, col: row }
}

multiversion! {
    /// out += (a + shift) b
    fn shifted_times_add<T: Real>(out: &mut [T], a: &[T], b: &[T], shift: T) {
        for ((out, a), b) in out.iter_mut().zip(a).zip(b) {
            *out += (*a + shift) * *b;
        }
    }
}

multiversion! {
    /// `out[k] = (w[k] + shift) s[k] - shift`
    fn switch_off<T: Real>(out: &mut [T], w: &[T], s: &[T], shift: T) {
        for ((out, w), s) in out.iter_mut().zip(w).zip(s) {
            *out = (*w + shift) * *s - shift;
        }
    }
}

multiversion! {
    /// out = scale out
    fn scale_all<T: Real>(out: &mut [T], scale: T) {
        for out in out {
            *out = scale * *out;
        }
    }
}

/// Overwrites `out` with a, or with a b where there is a b.
fn times_or_copy<T: Real>(out: &mut Vec<T>, a: &[T], b: &[T]) {
    zeros(out, a.len());
    match b.is_empty() {
        true => out.copy_from_slice(a),
        false => multiply(out, a, b),
    }
}

/// `out = A B`, whatever it was, with A `[m, k]` and B `[k, n]` in rows of `ldb`.
fn overwrite<T: Real>(out: &mut [T], ldc: usize, a: Strided<T>, b: &[T], ldb: usize, size: [usize; 3]) {
    let [m, n, k] = size;
    product(out, ldc, Accumulate::Overwrite, a, b, ldb, m, n, k);
}

/// `out += A B`
fn add_product<T: Real>(out: &mut [T], ldc: usize, a: Strided<T>, b: &[T], ldb: usize, size: [usize; 3]) {
    let [m, n, k] = size;
    product(out, ldc, Accumulate::Add, a, b, ldb, m, n, k);
}

impl<T: Real> Layer<T> {
    /// The rows after the layer, overwritten, from `self.x` of `rows` rows of which the first `n` are neighbours.
    pub fn forward(
        &mut self,
        out: &mut Vec<T>,
        spare: &mut Spare<T>,
        step: &Step<T>,
        layer: &LayerWeights<T>,
        factors: &Factors<T>,
        (n, rows, others): (usize, usize, T),
    ) {
        let (m, h) = (step.width, step.attn);
        (self.n, self.rows) = (n, rows);
        step.biased(&mut self.y, layer.inward_bias(step), n);
        add_product(&mut self.y, 3 * h, strided(&self.x, m), layer.inward(step), 3 * h, [n, 3 * h, m]);
        zeros(&mut self.inverse, if step.normalize { 3 * n } else { 0 });
        for (inverse, row) in self.inverse.iter_mut().zip(self.y.chunks_exact_mut(h)) {
            *inverse = rows::scale_row(row, Kind::Unit);
        }
        self.probabilities(spare, step, factors, others);
        times_or_copy(&mut spare.q, &self.p, &factors.factor);
        zeros(&mut self.o, n * h);
        if n > 0 {
            overwrite(&mut self.o, h, strided(&spare.q, n), &self.y[2 * h..], 3 * h, [n, h, n]);
        }
        // X + O W' + b', normalised.
        step.biased(&mut self.u, layer.outward_bias(step), rows);
        add(&mut self.u, &self.x[..rows * m]);
        add_product(&mut self.u, m, strided(&self.o, h), layer.outward(step), m, [n, m, h]);
        let kind = step.normal();
        zeros(&mut self.scale, rows);
        for (scale, row) in self.scale.iter_mut().zip(self.u.chunks_exact_mut(m)) {
            *scale = rows::scale_row(row, kind);
        }
        zeros(out, rows * m);
        let (scale, shift) = layer.norm(step);
        for (out, u) in out.chunks_exact_mut(m).zip(self.u.chunks_exact(m)) {
            multiply(out, u, scale);
            add(out, shift);
        }
    }

    /// `w = scaling q k^T` and the probabilities.
    fn probabilities(&mut self, spare: &mut Spare<T>, step: &Step<T>, factors: &Factors<T>, others: T) {
        let (h, n) = (step.attn, self.n);
        zeros(&mut self.p, n * n);
        turn_columns(&mut spare.turn, &self.y, n, 3 * h, h, h);
        overwrite(&mut self.p, n, strided(&self.y, 3 * h), &spare.turn, n, [n, n, h]);
        scale_all(&mut self.p, step.scaling);
        if step.smooth {
            std::mem::swap(&mut self.w, &mut self.p);
            zeros(&mut self.p, n * n);
            switch_off(&mut self.p, &self.w, &factors.smooth, T::from_f64(SHIFT));
        }
        let rest = step.smooth.then(|| (others, T::from_f64(-SHIFT)));
        self.p.chunks_exact_mut(n.max(1)).for_each(|row| rows::softmax(row, rest));
    }

    /// How the queries, keys and values change, from before they were brought to length 1.
    fn fill_y_dot(&self, y_dot: &mut Vec<T>, h: usize) {
        zeros(y_dot, self.z_dot.len());
        y_dot.copy_from_slice(&self.z_dot);
        for (k, &inverse) in self.inverse.iter().enumerate() {
            let own = k * h..(k + 1) * h;
            let (v, y) = (&self.z_dot[own.clone()], &self.y[own.clone()]);
            rows::scale_row_tangent(&mut y_dot[own], v, y, inverse, Kind::Unit);
        }
    }

    /// `Q_dot = P_dot F + P F_dot`
    fn fill_q_dot(&self, spare: &mut Spare<T>, factors: &Factors<T>) {
        let n = self.n;
        zeros(&mut spare.p_dot, n * n);
        for r in 0..n {
            let own = r * n..(r + 1) * n;
            rows::softmax_tangent(&mut spare.p_dot[own.clone()], &self.w_dot[own.clone()], &self.p[own]);
        }
        times_or_copy(&mut spare.q_dot, &spare.p_dot, &factors.factor);
        if !factors.factor.is_empty() {
            times_add(&mut spare.q_dot, &self.p, &factors.factor_dot);
        }
    }

    /// The change of the rows after the layer, overwritten, from `self.x_dot`.
    pub fn tangent(
        &mut self,
        out: &mut Vec<T>,
        spare: &mut Spare<T>,
        step: &Step<T>,
        layer: &LayerWeights<T>,
        factors: &Factors<T>,
    ) {
        let (m, h, n, rows) = (step.width, step.attn, self.n, self.rows);
        zeros(&mut self.z_dot, n * 3 * h);
        let inward = layer.inward(step);
        overwrite(&mut self.z_dot, 3 * h, strided(&self.x_dot, m), inward, 3 * h, [n, 3 * h, m]);
        self.fill_y_dot(&mut spare.y_dot, h);
        self.weights_dot(spare, step, factors);
        self.fill_q_dot(spare, factors);
        zeros(&mut self.o_dot, n * h);
        if n > 0 {
            times_or_copy(&mut spare.q, &self.p, &factors.factor);
            let (v, v_dot) = (&self.y[2 * h..], &spare.y_dot[2 * h..]);
            overwrite(&mut self.o_dot, h, strided(&spare.q_dot, n), v, 3 * h, [n, h, n]);
            add_product(&mut self.o_dot, h, strided(&spare.q, n), v_dot, 3 * h, [n, h, n]);
        }
        zeros(&mut self.r_dot, rows * m);
        self.r_dot.copy_from_slice(&self.x_dot[..rows * m]);
        add_product(&mut self.r_dot, m, strided(&self.o_dot, h), layer.outward(step), m, [n, m, h]);
        zeros(out, rows * m);
        let (scale, _) = layer.norm(step);
        let u_dot = &mut spare.row[0];
        zeros(u_dot, m);
        for r in 0..rows {
            let own = r * m..(r + 1) * m;
            let (v, u) = (&self.r_dot[own.clone()], &self.u[own.clone()]);
            rows::scale_row_tangent(u_dot, v, u, self.scale[r], step.normal());
            multiply(&mut out[own], u_dot, scale);
        }
    }

    /// The change of z: `(q_dot k^T + q k_dot^T) S + (w + 20) S_dot`, into `w_dot`.
    fn weights_dot(&mut self, spare: &mut Spare<T>, step: &Step<T>, factors: &Factors<T>) {
        let (h, n) = (step.attn, self.n);
        zeros(&mut self.w_dot, n * n);
        turn_columns(&mut spare.turn, &self.y, n, 3 * h, h, h);
        overwrite(&mut self.w_dot, n, strided(&spare.y_dot, 3 * h), &spare.turn, n, [n, n, h]);
        turn_columns(&mut spare.turn, &spare.y_dot, n, 3 * h, h, h);
        add_product(&mut self.w_dot, n, strided(&self.y, 3 * h), &spare.turn, n, [n, n, h]);
        scale_all(&mut self.w_dot, step.scaling);
        if step.smooth {
            let moved = &mut spare.p_dot;
            moved.clone_from(&self.w_dot);
            multiply(&mut self.w_dot, moved, &factors.smooth);
            shifted_times_add(&mut self.w_dot, &self.w, &factors.smooth_dot, T::from_f64(SHIFT));
        }
    }

    /// dE by the rows that the layer is given, into `self.de_x`, from dE by those that it gives. Adds to dE by the factors.
    pub fn energy(
        &mut self,
        de_out: &[T],
        spare: &mut Spare<T>,
        step: &Step<T>,
        layer: &LayerWeights<T>,
        factors: &mut Factors<T>,
    ) {
        let (m, h, n, rows) = (step.width, step.attn, self.n, self.rows);
        let (scale, _) = layer.norm(step);
        zeros(&mut self.de_r, rows * m);
        let de_u = &mut spare.row[0];
        zeros(de_u, m);
        for r in 0..rows {
            let own = r * m..(r + 1) * m;
            multiply(de_u, &de_out[own.clone()], scale);
            let (de_r, u) = (&mut self.de_r[own.clone()], &self.u[own]);
            rows::scale_row_tangent(de_r, de_u, u, self.scale[r], step.normal());
        }
        zeros(&mut self.de_o, n * h);
        overwrite(&mut self.de_o, h, strided(&self.de_r, m), &layer.outward_turned, h, [n, h, m]);
        // O = Q v
        turn_columns(&mut spare.turn, &self.y, n, 3 * h, 2 * h, h);
        zeros(&mut self.de_q, n * n);
        overwrite(&mut self.de_q, n, strided(&self.de_o, h), &spare.turn, n, [n, n, h]);
        zeros(&mut self.de_y, n * 3 * h);
        if n > 0 {
            times_or_copy(&mut spare.q, &self.p, &factors.factor);
            overwrite(&mut self.de_y[2 * h..], 3 * h, turned(&spare.q, n), &self.de_o, h, [n, h, n]);
        }
        if !factors.factor.is_empty() {
            times_add(&mut factors.de_factor, &self.de_q, &self.p);
        }
        self.fill_de_w(spare, step, factors);
        if step.smooth {
            shifted_times_add(&mut factors.de_smooth, &self.w, &spare.de_z, T::from_f64(SHIFT));
        }
        // w = scaling q k^T
        if n > 0 {
            let (y, de_y, de_w) = (&self.y, &mut self.de_y, &spare.de_w);
            overwrite(de_y, 3 * h, strided(de_w, n), &y[h..], 3 * h, [n, h, n]);
            overwrite(&mut de_y[h..], 3 * h, turned(de_w, n), y, 3 * h, [n, h, n]);
        }
        self.fill_de_y(&mut spare.de_y, h);
        zeros(&mut self.de_x, rows * m);
        self.de_x.copy_from_slice(&self.de_r);
        add_product(&mut self.de_x, m, strided(&spare.de_y, 3 * h), &layer.inward_turned, m, [n, m, 3 * h]);
    }

    /// dE by P, z and `q k^T`, from dE by Q.
    fn fill_de_w(&self, spare: &mut Spare<T>, step: &Step<T>, factors: &Factors<T>) {
        let n = self.n;
        times_or_copy(&mut spare.de_p, &self.de_q, &factors.factor);
        zeros(&mut spare.de_z, n * n);
        for r in 0..n {
            let own = r * n..(r + 1) * n;
            rows::softmax_tangent(&mut spare.de_z[own.clone()], &spare.de_p[own.clone()], &self.p[own]);
        }
        times_or_copy(&mut spare.de_w, &spare.de_z, &factors.smooth);
        scale_all(&mut spare.de_w, step.scaling);
    }

    /// dE by queries, keys and values before they were brought to length 1.
    fn fill_de_y(&self, before: &mut Vec<T>, h: usize) {
        zeros(before, self.de_y.len());
        before.copy_from_slice(&self.de_y);
        for (k, &inverse) in self.inverse.iter().enumerate() {
            let own = k * h..(k + 1) * h;
            let (v, y) = (&self.de_y[own.clone()], &self.y[own.clone()]);
            rows::scale_row_tangent(&mut before[own], v, y, inverse, Kind::Unit);
        }
    }

    /// Nothing moves, and no energy is differentiated: zeros instead of [`Layer::energy`] and [`Layer::tangent`].
    pub fn rest(&mut self, step: &Step<T>) {
        let (m, h, n, rows) = (step.width, step.attn, self.n, self.rows);
        for buffer in [&mut self.x_dot, &mut self.de_x, &mut self.r_dot, &mut self.de_r] {
            zeros(buffer, rows * m);
        }
        [&mut self.z_dot, &mut self.de_y].into_iter().for_each(|buffer| zeros(buffer, 3 * n * h));
        [&mut self.w_dot, &mut self.de_q].into_iter().for_each(|buffer| zeros(buffer, n * n));
        [&mut self.o_dot, &mut self.de_o].into_iter().for_each(|buffer| zeros(buffer, n * h));
    }

    /// dL by the rows that the layer is given, overwritten, from the adjoints of those that it gives and of their change; adds to the
    /// gradient. [`Layer::tangent`] and [`Layer::energy`] come before.
    #[allow(clippy::too_many_arguments)]
    pub fn loss(
        &self,
        dl_x: &mut Vec<T>,
        grad: &mut [T],
        dl_out: &[T],
        de_out: &[T],
        spare: &mut Spare<T>,
        step: &Step<T>,
        layer: &LayerWeights<T>,
        factors: &Factors<T>,
    ) {
        let (m, h, n, rows) = (step.width, step.attn, self.n, self.rows);
        self.through_norm(dl_x, grad, dl_out, de_out, spare, step, layer);
        let dl_r = &*dl_x;
        // R = X + O W' + b'
        layer.bias_gradient_add(grad, &layer.shape.outward, &dl_r[..rows * m]);
        let dw = layer.matrix_gradient(grad, &layer.shape.outward);
        add_product(dw, m, turned(&self.o, h), dl_r, m, [h, m, n]);
        add_product(dw, m, turned(&self.o_dot, h), &self.de_r, m, [h, m, n]);
        zeros(&mut spare.dl_o, n * h);
        overwrite(&mut spare.dl_o, h, strided(dl_r, m), &layer.outward_turned, h, [n, h, m]);
        self.through_attention(spare, step, factors);
        // The rows before they were brought to length 1.
        let [row, own_dl, ..] = &mut spare.row;
        zeros(row, h);
        zeros(own_dl, h);
        for (k, &inverse) in self.inverse.iter().enumerate() {
            let own = k * h..(k + 1) * h;
            let (dl, de, y) = (&spare.dl_y[own.clone()], &self.de_y[own.clone()], &self.y[own.clone()]);
            let v = &self.z_dot[own.clone()];
            rows::scale_row_adjoint(own_dl, row, dl, de, y, v, inverse, Kind::Unit);
            spare.dl_y[own].copy_from_slice(own_dl);
        }
        self.fill_de_y(&mut spare.de_y, h);
        layer.bias_gradient_add(grad, &layer.shape.inward, &spare.dl_y);
        let dw = layer.matrix_gradient(grad, &layer.shape.inward);
        add_product(dw, 3 * h, turned(&self.x, m), &spare.dl_y, 3 * h, [m, 3 * h, n]);
        add_product(dw, 3 * h, turned(&self.x_dot, m), &spare.de_y, 3 * h, [m, 3 * h, n]);
        add_product(dl_x, m, strided(&spare.dl_y, 3 * h), &layer.inward_turned, m, [n, m, 3 * h]);
    }

    /// dL by the rows before the normalisation, with the gradient of scale and shift.
    #[allow(clippy::too_many_arguments)]
    fn through_norm(
        &self,
        dl_r: &mut Vec<T>,
        grad: &mut [T],
        dl_out: &[T],
        de_out: &[T],
        spare: &mut Spare<T>,
        step: &Step<T>,
        layer: &LayerWeights<T>,
    ) {
        let (m, rows) = (step.width, self.rows);
        let (scale, _) = layer.norm(step);
        zeros(dl_r, rows * m);
        spare.row.iter_mut().for_each(|row| zeros(row, m));
        let [dl_u, de_u, u_dot, row] = &mut spare.row;
        for r in 0..rows {
            let own = r * m..(r + 1) * m;
            let (u, v) = (&self.u[own.clone()], &self.r_dot[own.clone()]);
            rows::scale_row_tangent(u_dot, v, u, self.scale[r], step.normal());
            let sum = layer.matrix_gradient(grad, &layer.shape.norm);
            times_add(sum, &dl_out[own.clone()], u);
            times_add(sum, &de_out[own.clone()], u_dot);
            multiply(dl_u, &dl_out[own.clone()], scale);
            multiply(de_u, &de_out[own.clone()], scale);
            let kind = step.normal();
            rows::scale_row_adjoint(&mut dl_r[own], row, dl_u, de_u, u, v, self.scale[r], kind);
        }
        layer.bias_gradient_add(grad, &layer.shape.norm, dl_out);
    }

    /// dL by queries, keys and values, from dL/dO.
    fn through_attention(&self, spare: &mut Spare<T>, step: &Step<T>, factors: &Factors<T>) {
        let (h, n) = (step.attn, self.n);
        zeros(&mut spare.dl_y, n * 3 * h);
        if n == 0 {
            return;
        }
        self.fill_y_dot(&mut spare.y_dot, h);
        times_or_copy(&mut spare.q, &self.p, &factors.factor);
        self.fill_q_dot(spare, factors);
        self.fill_de_w(spare, step, factors);
        // O = Q v: dL/dQ = dL/dO v^T + dE/dO v_dot^T, dL/dv = Q^T dL/dO + Q_dot^T dE/dO
        zeros(&mut spare.dl_q, n * n);
        turn_columns(&mut spare.turn, &self.y, n, 3 * h, 2 * h, h);
        overwrite(&mut spare.dl_q, n, strided(&spare.dl_o, h), &spare.turn, n, [n, n, h]);
        turn_columns(&mut spare.turn, &spare.y_dot, n, 3 * h, 2 * h, h);
        add_product(&mut spare.dl_q, n, strided(&self.de_o, h), &spare.turn, n, [n, n, h]);
        let values = &mut spare.dl_y[2 * h..];
        overwrite(values, 3 * h, turned(&spare.q, n), &spare.dl_o, h, [n, h, n]);
        add_product(values, 3 * h, turned(&spare.q_dot, n), &self.de_o, h, [n, h, n]);
        // Q = P F: dL/dP = dL/dQ F + dE/dQ F_dot
        times_or_copy(&mut spare.dl_p, &spare.dl_q, &factors.factor);
        if !factors.factor.is_empty() {
            times_add(&mut spare.dl_p, &self.de_q, &factors.factor_dot);
        }
        self.through_softmax(spare, step, factors);
        // w = scaling q k^T: dL/dq = dL/dw k + dE/dw k_dot, dL/dk = dL/dw^T q + dE/dw^T q_dot
        let Spare { dl_y, dl_w, de_w, y_dot, .. } = spare;
        let y = &self.y;
        overwrite(dl_y, 3 * h, strided(dl_w, n), &y[h..], 3 * h, [n, h, n]);
        add_product(dl_y, 3 * h, strided(de_w, n), &y_dot[h..], 3 * h, [n, h, n]);
        let keys = &mut dl_y[h..];
        overwrite(keys, 3 * h, turned(dl_w, n), y, 3 * h, [n, h, n]);
        add_product(keys, 3 * h, turned(de_w, n), y_dot, 3 * h, [n, h, n]);
    }

    /// dL by `q k^T`, from dL by P.
    fn through_softmax(&self, spare: &mut Spare<T>, step: &Step<T>, factors: &Factors<T>) {
        let n = self.n;
        let Spare { dl_p, dl_w, de_p, de_z, row: [row, ..], .. } = spare;
        zeros(dl_w, n * n);
        zeros(row, n);
        for r in 0..n {
            let own = r * n..(r + 1) * n;
            let (dl, de, p) = (&dl_p[own.clone()], &de_p[own.clone()], &self.p[own.clone()]);
            rows::softmax_adjoint(&mut dl_w[own.clone()], row, dl, de, p, &self.w_dot[own]);
        }
        if step.smooth {
            // z = (w + 20) S - 20: dL/dw = dL/dz S + dE/dz S_dot
            multiply(dl_p, dl_w, &factors.smooth);
            times_add(dl_p, de_z, &factors.smooth_dot);
            std::mem::swap(dl_p, dl_w);
        }
        scale_all(dl_w, step.scaling);
    }
}

/// `out[c, r] = a[r, first + c]` for `count` columns of a matrix whose rows have `ld` numbers.
fn turn_columns<T: Real>(out: &mut Vec<T>, a: &[T], rows: usize, ld: usize, first: usize, count: usize) {
    assert!(first + count <= ld && a.len() >= rows * ld, "the matrix has these columns");
    zeros(out, rows * count);
    if rows > 0 {
        // SAFETY: `out` holds the block, and `a` has these rows and columns.
        unsafe { transpose_into(out.as_mut_ptr(), rows, a[first..].as_ptr(), ld, rows, count) }
    }
}

/// `out[c] += sum_r env[r, c] g[r, ..]`, for the four components of a row of the environment matrix.
pub fn outer_add<T: Real>(a: &mut [T], g: &[T], env: &[T], m: usize) {
    for (g, env) in g.chunks_exact(m).zip(env.chunks_exact(4)) {
        for (c, a) in a.chunks_exact_mut(m).enumerate() {
            axpy(a, env[c], g);
        }
    }
}

/// Overwrites `out[r, ..]` with `sum_c env[r, c] a[c, ..]`, or adds to it.
pub fn contract_add<T: Real>(out: &mut [T], a: &[T], env: &[T], m: usize) {
    for (out, env) in out.chunks_exact_mut(m).zip(env.chunks_exact(4)) {
        for (c, a) in a.chunks_exact(m).enumerate() {
            axpy(out, env[c], a);
        }
    }
}

/// `out[r, c] = g[r, ..] . a[c, ..]`
pub fn products<T: Real>(out: &mut Vec<T>, g: &[T], a: &[T], m: usize) {
    out.clear();
    for g in g.chunks_exact(m) {
        out.extend(a.chunks_exact(m).map(|a| dot(g, a)));
    }
}
