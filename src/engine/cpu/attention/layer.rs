//! One layer of attention between the neighbours of an atom: value, tangent and adjoints.
//!
//! With rows X of G: queries, keys and values are `X W + b`, each of length 1 where that is wanted; w = q k^T. In the smooth form
//! `z = (w + 20) S - 20` with S the product of two switches, else z = w. `P = softmax(z)`, `Q = P F` with the factors F of the geometry,
//! `O = Q v`, and the new X is `normal(X + O W' + b')` scaled and shifted. Rows behind the neighbours are not attended to: O is 0 there.

use super::geometry::zeros;
use super::rows::{self, Kind};
use super::step::{LayerWeights, Step};
use crate::engine::cpu::dense::{Accumulate, Strided, product, transpose};
use crate::engine::cpu::elementwise::{add, axpy, dot};
use crate::engine::cpu::real::Real;
use crate::engine::cpu::simd::multiversion;

/// What weights are shifted by before they are switched off.
pub const SHIFT: f64 = 20.0;

/// Factors of pairs of neighbours, `[n, n]`, and their changes.
#[derive(Default)]
pub struct Factors<T> {
    /// The product of two switches; empty where weights are not switched off.
    pub smooth: Vec<T>,
    pub smooth_dot: Vec<T>,
    /// What probabilities are multiplied by; empty where that is 1.
    pub factor: Vec<T>,
    pub factor_dot: Vec<T>,
    /// dE by both.
    pub de_smooth: Vec<T>,
    pub de_factor: Vec<T>,
}

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
    /// The change of them, before and after that; dE by them, after and before.
    z_dot: Vec<T>,
    y_dot: Vec<T>,
    de_y: Vec<T>,
    de_z: Vec<T>,
    /// `[n, n]` w, probabilities, and the change of z.
    w: Vec<T>,
    p: Vec<T>,
    w_dot: Vec<T>,
    /// `[n, n]` probabilities times factors, their change, and dE by them and by z.
    q: Vec<T>,
    q_dot: Vec<T>,
    de_q: Vec<T>,
    de_w: Vec<T>,
    /// `[n, H]`
    o: Vec<T>,
    o_dot: Vec<T>,
    de_o: Vec<T>,
    /// `[rows, M]` X + O W' + b', its change and dE by it; what it is after the normalisation, and by what it was multiplied.
    r_dot: Vec<T>,
    de_r: Vec<T>,
    u: Vec<T>,
    scale: Vec<T>,
}

fn strided<T>(data: &[T], row: usize) -> Strided<'_, T> {
    Strided { data, row, col: 1 }
}

fn turned<T>(data: &[T], row: usize) -> Strided<'_, T> {
    Strided { data, row: 1, col: row }
}

multiversion! {
    /// out = a b
    fn times<T: Real>(out: &mut [T], a: &[T], b: &[T]) {
        for ((out, a), b) in out.iter_mut().zip(a).zip(b) {
            *out = *a * *b;
        }
    }
}

multiversion! {
    /// out += a b
    fn times_add<T: Real>(out: &mut [T], a: &[T], b: &[T]) {
        for ((out, a), b) in out.iter_mut().zip(a).zip(b) {
            *out = a.fma(*b, *out);
        }
    }
}

multiversion! {
    /// out += (a + shift) b
    fn shifted_times_add<T: Real>(out: &mut [T], a: &[T], b: &[T], shift: T) {
        for ((out, a), b) in out.iter_mut().zip(a).zip(b) {
            *out += (*a + shift) * *b;
        }
    }
}

/// Overwrites `out` with a, or with a b where there is a b.
fn times_or_copy<T: Real>(out: &mut Vec<T>, a: &[T], b: &[T]) {
    out.clear();
    out.extend_from_slice(a);
    if !b.is_empty() {
        times(out, a, b);
    }
}

impl<T: Real> Layer<T> {
    /// The rows after the layer, overwritten, from `self.x` of `rows` rows of which the first `n` are neighbours.
    pub fn forward(
        &mut self,
        out: &mut Vec<T>,
        step: &Step<T>,
        layer: &LayerWeights<T>,
        factors: &Factors<T>,
        (n, rows, others): (usize, usize, T),
    ) {
        let (m, h) = (step.width, step.attn);
        (self.n, self.rows) = (n, rows);
        step.biased(&mut self.y, layer.inward_bias(step), n);
        product(
            &mut self.y,
            3 * h,
            Accumulate::Add,
            strided(&self.x, m),
            layer.inward(step),
            3 * h,
            n,
            3 * h,
            m,
        );
        self.inverse.clear();
        if step.normalize {
            self.inverse.extend(self.y.chunks_exact_mut(h).map(|row| rows::scale_row(row, Kind::Unit)));
        }
        self.weights(step, n);
        let rest = step.smooth.then(|| (others, T::from_f64(-SHIFT)));
        self.p.clone_from(&self.w);
        if step.smooth {
            let shift = T::from_f64(SHIFT);
            for (p, s) in self.p.iter_mut().zip(&factors.smooth) {
                *p = (*p + shift) * *s - shift;
            }
        }
        self.p.chunks_exact_mut(n.max(1)).for_each(|row| rows::softmax(row, rest));
        times_or_copy(&mut self.q, &self.p, &factors.factor);
        zeros(&mut self.o, n * h);
        self.times_values(step, n);
        // X + O W' + b', normalised.
        step.biased(&mut self.u, layer.outward_bias(step), rows);
        add(&mut self.u, &self.x[..rows * m]);
        product(&mut self.u, m, Accumulate::Add, strided(&self.o, h), layer.outward(step), m, n, m, h);
        let kind = step.normal();
        self.scale.clear();
        self.scale.extend(self.u.chunks_exact_mut(m).map(|row| rows::scale_row(row, kind)));
        out.clear();
        out.resize(rows * m, T::ZERO);
        let (scale, shift) = layer.norm(step);
        for (out, u) in out.chunks_exact_mut(m).zip(self.u.chunks_exact(m)) {
            times(out, u, scale);
            add(out, shift);
        }
    }

    /// `w = scaling q k^T`
    fn weights(&mut self, step: &Step<T>, n: usize) {
        let h = step.attn;
        zeros(&mut self.w, n * n);
        let mut k_t = vec![T::ZERO; n * h];
        turn_columns(&mut k_t, &self.y, n, 3 * h, h, h);
        product(&mut self.w, n, Accumulate::Overwrite, strided(&self.y, 3 * h), &k_t, n, n, n, h);
        let scaling = step.scaling;
        self.w.iter_mut().for_each(|w| *w = scaling * *w);
    }

    /// `O = Q v`
    fn times_values(&mut self, step: &Step<T>, n: usize) {
        let h = step.attn;
        if n > 0 {
            product(
                &mut self.o,
                h,
                Accumulate::Overwrite,
                strided(&self.q, n),
                &self.y[2 * h..],
                3 * h,
                n,
                h,
                n,
            );
        }
    }

    /// The change of the rows after the layer, overwritten, from `self.x_dot`.
    pub fn tangent(
        &mut self,
        out: &mut Vec<T>,
        step: &Step<T>,
        layer: &LayerWeights<T>,
        factors: &Factors<T>,
    ) {
        let (m, h, n, rows) = (step.width, step.attn, self.n, self.rows);
        zeros(&mut self.z_dot, n * 3 * h);
        product(
            &mut self.z_dot,
            3 * h,
            Accumulate::Overwrite,
            strided(&self.x_dot, m),
            layer.inward(step),
            3 * h,
            n,
            3 * h,
            m,
        );
        self.y_dot.clone_from(&self.z_dot);
        for (k, &inverse) in self.inverse.iter().enumerate() {
            let own = k * h..(k + 1) * h;
            let (v, y) = (&self.z_dot[own.clone()], &self.y[own.clone()]);
            rows::scale_row_tangent(&mut self.y_dot[own], v, y, inverse, Kind::Unit);
        }
        self.weights_dot(step, factors);
        // Q_dot = P_dot F + P F_dot
        let mut p_dot = vec![T::ZERO; n * n];
        for r in 0..n {
            let own = r * n..(r + 1) * n;
            rows::softmax_tangent(&mut p_dot[own.clone()], &self.w_dot[own.clone()], &self.p[own]);
        }
        times_or_copy(&mut self.q_dot, &p_dot, &factors.factor);
        if !factors.factor.is_empty() {
            times_add(&mut self.q_dot, &self.p, &factors.factor_dot);
        }
        zeros(&mut self.o_dot, n * h);
        if n > 0 {
            let (v, v_dot) = (&self.y[2 * h..], &self.y_dot[2 * h..]);
            product(&mut self.o_dot, h, Accumulate::Overwrite, strided(&self.q_dot, n), v, 3 * h, n, h, n);
            product(&mut self.o_dot, h, Accumulate::Add, strided(&self.q, n), v_dot, 3 * h, n, h, n);
        }
        self.r_dot.clear();
        self.r_dot.extend_from_slice(&self.x_dot[..rows * m]);
        product(
            &mut self.r_dot,
            m,
            Accumulate::Add,
            strided(&self.o_dot, h),
            layer.outward(step),
            m,
            n,
            m,
            h,
        );
        zeros(out, rows * m);
        let (scale, _) = layer.norm(step);
        let mut u_dot = vec![T::ZERO; m];
        for r in 0..rows {
            let own = r * m..(r + 1) * m;
            let (v, u) = (&self.r_dot[own.clone()], &self.u[own.clone()]);
            rows::scale_row_tangent(&mut u_dot, v, u, self.scale[r], step.normal());
            times(&mut out[own], &u_dot, scale);
        }
    }

    /// The change of z: `(q_dot k^T + q k_dot^T) S + (w + 20) S_dot`, into `w_dot`.
    fn weights_dot(&mut self, step: &Step<T>, factors: &Factors<T>) {
        let (h, n) = (step.attn, self.n);
        zeros(&mut self.w_dot, n * n);
        let mut k_t = vec![T::ZERO; n * h];
        turn_columns(&mut k_t, &self.y, n, 3 * h, h, h);
        product(&mut self.w_dot, n, Accumulate::Overwrite, strided(&self.y_dot, 3 * h), &k_t, n, n, n, h);
        turn_columns(&mut k_t, &self.y_dot, n, 3 * h, h, h);
        product(&mut self.w_dot, n, Accumulate::Add, strided(&self.y, 3 * h), &k_t, n, n, n, h);
        let scaling = step.scaling;
        self.w_dot.iter_mut().for_each(|w| *w = scaling * *w);
        if step.smooth {
            let moved = self.w_dot.clone();
            times(&mut self.w_dot, &moved, &factors.smooth);
            shifted_times_add(&mut self.w_dot, &self.w, &factors.smooth_dot, T::from_f64(SHIFT));
        }
    }

    /// dE by the rows that the layer is given, into `self.de_x`, from dE by those that it gives. Adds to dE by the factors.
    pub fn energy(
        &mut self,
        de_out: &[T],
        step: &Step<T>,
        layer: &LayerWeights<T>,
        factors: &mut Factors<T>,
    ) {
        let (m, h, n, rows) = (step.width, step.attn, self.n, self.rows);
        let (scale, _) = layer.norm(step);
        zeros(&mut self.de_r, rows * m);
        let mut de_u = vec![T::ZERO; m];
        for r in 0..rows {
            let own = r * m..(r + 1) * m;
            times(&mut de_u, &de_out[own.clone()], scale);
            rows::scale_row_tangent(
                &mut self.de_r[own.clone()],
                &de_u,
                &self.u[own],
                self.scale[r],
                step.normal(),
            );
        }
        zeros(&mut self.de_o, n * h);
        product(
            &mut self.de_o,
            h,
            Accumulate::Overwrite,
            strided(&self.de_r, m),
            &layer.outward_turned,
            h,
            n,
            h,
            m,
        );
        // O = Q v
        let mut v_t = vec![T::ZERO; n * h];
        turn_columns(&mut v_t, &self.y, n, 3 * h, 2 * h, h);
        zeros(&mut self.de_q, n * n);
        product(&mut self.de_q, n, Accumulate::Overwrite, strided(&self.de_o, h), &v_t, n, n, n, h);
        zeros(&mut self.de_y, n * 3 * h);
        if n > 0 {
            product(
                &mut self.de_y[2 * h..],
                3 * h,
                Accumulate::Overwrite,
                turned(&self.q, n),
                &self.de_o,
                h,
                n,
                h,
                n,
            );
        }
        // Q = P F, P = softmax(z)
        let mut de_p = Vec::new();
        times_or_copy(&mut de_p, &self.de_q, &factors.factor);
        if !factors.factor.is_empty() {
            times_add(&mut factors.de_factor, &self.de_q, &self.p);
        }
        zeros(&mut self.de_w, n * n);
        for r in 0..n {
            let own = r * n..(r + 1) * n;
            rows::softmax_tangent(&mut self.de_w[own.clone()], &de_p[own.clone()], &self.p[own]);
        }
        let de_z = self.de_w.clone();
        self.switched(&de_z, step, factors);
        self.through_weights_energy(step);
        zeros(&mut self.de_z, n * 3 * h);
        self.de_z.copy_from_slice(&self.de_y);
        for (k, &inverse) in self.inverse.iter().enumerate() {
            let own = k * h..(k + 1) * h;
            let (v, y) = (&self.de_y[own.clone()], &self.y[own.clone()]);
            rows::scale_row_tangent(&mut self.de_z[own], v, y, inverse, Kind::Unit);
        }
        self.de_x.clone_from(&self.de_r);
        product(
            &mut self.de_x,
            m,
            Accumulate::Add,
            strided(&self.de_z, 3 * h),
            &layer.inward_turned,
            m,
            n,
            m,
            3 * h,
        );
    }

    /// dE/dw from dE/dz, into `de_w`; adds to dE by the product of switches.
    fn switched(&mut self, de_z: &[T], step: &Step<T>, factors: &mut Factors<T>) {
        if step.smooth {
            times(&mut self.de_w, de_z, &factors.smooth);
            shifted_times_add(&mut factors.de_smooth, &self.w, de_z, T::from_f64(SHIFT));
        }
    }

    /// dE by queries and keys from dE/dw.
    fn through_weights_energy(&mut self, step: &Step<T>) {
        let (h, n, scaling) = (step.attn, self.n, step.scaling);
        if n == 0 {
            return;
        }
        let scaled: Vec<T> = self.de_w.iter().map(|&x| scaling * x).collect();
        let (y, de_y) = (&self.y, &mut self.de_y);
        product(de_y, 3 * h, Accumulate::Overwrite, strided(&scaled, n), &y[h..], 3 * h, n, h, n);
        product(&mut de_y[h..], 3 * h, Accumulate::Overwrite, turned(&scaled, n), y, 3 * h, n, h, n);
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
        step: &Step<T>,
        layer: &LayerWeights<T>,
        factors: &Factors<T>,
    ) {
        let (m, h, n, rows) = (step.width, step.attn, self.n, self.rows);
        self.through_norm(dl_x, grad, dl_out, de_out, step, layer);
        let dl_r = &*dl_x;
        // R = X + O W' + b'
        layer.bias_gradient_add(grad, &layer.shape.outward, &dl_r[..rows * m]);
        let dw = layer.matrix_gradient(grad, &layer.shape.outward);
        product(dw, m, Accumulate::Add, turned(&self.o, h), dl_r, m, h, m, n);
        product(dw, m, Accumulate::Add, turned(&self.o_dot, h), &self.de_r, m, h, m, n);
        let mut dl_o = vec![T::ZERO; n * h];
        product(&mut dl_o, h, Accumulate::Overwrite, strided(dl_r, m), &layer.outward_turned, h, n, h, m);
        let mut dl_z = self.through_attention(&dl_o, step, factors);
        // The rows before they were brought to length 1.
        let (mut spare, mut own_dl) = (vec![T::ZERO; h], vec![T::ZERO; h]);
        for (k, &inverse) in self.inverse.iter().enumerate() {
            let own = k * h..(k + 1) * h;
            let (dl, de, y) = (&dl_z[own.clone()], &self.de_y[own.clone()], &self.y[own.clone()]);
            let v = &self.z_dot[own.clone()];
            rows::scale_row_adjoint(&mut own_dl, &mut spare, dl, de, y, v, inverse, Kind::Unit);
            dl_z[own].copy_from_slice(&own_dl);
        }
        layer.bias_gradient_add(grad, &layer.shape.inward, &dl_z);
        let dw = layer.matrix_gradient(grad, &layer.shape.inward);
        product(dw, 3 * h, Accumulate::Add, turned(&self.x, m), &dl_z, 3 * h, m, 3 * h, n);
        product(dw, 3 * h, Accumulate::Add, turned(&self.x_dot, m), &self.de_z, 3 * h, m, 3 * h, n);
        product(dl_x, m, Accumulate::Add, strided(&dl_z, 3 * h), &layer.inward_turned, m, n, m, 3 * h);
    }

    /// dL by the rows before the normalisation, with the gradient of scale and shift.
    fn through_norm(
        &self,
        dl_r: &mut Vec<T>,
        grad: &mut [T],
        dl_out: &[T],
        de_out: &[T],
        step: &Step<T>,
        layer: &LayerWeights<T>,
    ) {
        let (m, rows) = (step.width, self.rows);
        let (scale, _) = layer.norm(step);
        zeros(dl_r, rows * m);
        let [mut dl_u, mut de_u, mut u_dot, mut spare] = std::array::from_fn(|_| vec![T::ZERO; m]);
        for r in 0..rows {
            let own = r * m..(r + 1) * m;
            let (u, v) = (&self.u[own.clone()], &self.r_dot[own.clone()]);
            rows::scale_row_tangent(&mut u_dot, v, u, self.scale[r], step.normal());
            let sum = layer.matrix_gradient(grad, &layer.shape.norm);
            times_add(sum, &dl_out[own.clone()], u);
            times_add(sum, &de_out[own.clone()], &u_dot);
            times(&mut dl_u, &dl_out[own.clone()], scale);
            times(&mut de_u, &de_out[own.clone()], scale);
            let kind = step.normal();
            rows::scale_row_adjoint(&mut dl_r[own], &mut spare, &dl_u, &de_u, u, v, self.scale[r], kind);
        }
        layer.bias_gradient_add(grad, &layer.shape.norm, dl_out);
    }

    /// dL by queries, keys and values, from dL/dO.
    fn through_attention(&self, dl_o: &[T], step: &Step<T>, factors: &Factors<T>) -> Vec<T> {
        let (h, n) = (step.attn, self.n);
        let mut dl_y = vec![T::ZERO; n * 3 * h];
        if n == 0 {
            return dl_y;
        }
        // O = Q v: dL/dQ = dL/dO v^T + dE/dO v_dot^T, dL/dv = Q^T dL/dO + Q_dot^T dE/dO
        let (mut dl_q, mut turn) = (vec![T::ZERO; n * n], vec![T::ZERO; n * h]);
        turn_columns(&mut turn, &self.y, n, 3 * h, 2 * h, h);
        product(&mut dl_q, n, Accumulate::Overwrite, strided(dl_o, h), &turn, n, n, n, h);
        turn_columns(&mut turn, &self.y_dot, n, 3 * h, 2 * h, h);
        product(&mut dl_q, n, Accumulate::Add, strided(&self.de_o, h), &turn, n, n, n, h);
        let values = &mut dl_y[2 * h..];
        product(values, 3 * h, Accumulate::Overwrite, turned(&self.q, n), dl_o, h, n, h, n);
        product(values, 3 * h, Accumulate::Add, turned(&self.q_dot, n), &self.de_o, h, n, h, n);
        // Q = P F: dL/dP = dL/dQ F + dE/dQ F_dot
        let (mut dl_p, mut de_p) = (Vec::new(), Vec::new());
        times_or_copy(&mut dl_p, &dl_q, &factors.factor);
        times_or_copy(&mut de_p, &self.de_q, &factors.factor);
        if !factors.factor.is_empty() {
            times_add(&mut dl_p, &self.de_q, &factors.factor_dot);
        }
        let (mut dl_w, mut spare) = (vec![T::ZERO; n * n], vec![T::ZERO; n]);
        for r in 0..n {
            let own = r * n..(r + 1) * n;
            let (dl, de, p) = (&dl_p[own.clone()], &de_p[own.clone()], &self.p[own.clone()]);
            rows::softmax_adjoint(&mut dl_w[own.clone()], &mut spare, dl, de, p, &self.w_dot[own.clone()]);
            if step.smooth {
                // z = (w + 20) S - 20: dL/dw = dL/dz S + dE/dz S_dot
                let mut de_z = std::mem::take(&mut dl_q);
                let (de_row, dl_row) = (&mut de_z[own.clone()], &mut dl_w[own.clone()]);
                rows::softmax_tangent(de_row, de, p);
                for (k, dl) in dl_row.iter_mut().enumerate() {
                    *dl = *dl * factors.smooth[r * n + k] + de_row[k] * factors.smooth_dot[r * n + k];
                }
                dl_q = de_z;
            }
        }
        // w = scaling q k^T: dL/dq = dL/dw k + dE/dw k_dot, dL/dk = dL/dw^T q + dE/dw^T q_dot
        let scaling = step.scaling;
        dl_w.iter_mut().for_each(|x| *x = scaling * *x);
        let de_w: Vec<T> = self.de_w.iter().map(|&x| scaling * x).collect();
        let (y, y_dot) = (&self.y, &self.y_dot);
        product(&mut dl_y, 3 * h, Accumulate::Overwrite, strided(&dl_w, n), &y[h..], 3 * h, n, h, n);
        product(&mut dl_y, 3 * h, Accumulate::Add, strided(&de_w, n), &y_dot[h..], 3 * h, n, h, n);
        let keys = &mut dl_y[h..];
        product(keys, 3 * h, Accumulate::Overwrite, turned(&dl_w, n), y, 3 * h, n, h, n);
        product(keys, 3 * h, Accumulate::Add, turned(&de_w, n), y_dot, 3 * h, n, h, n);
        dl_y
    }
}

/// `out[c, r] = a[r, first + c]` for `count` columns of a matrix whose rows have `ld` numbers.
fn turn_columns<T: Real>(out: &mut [T], a: &[T], rows: usize, ld: usize, first: usize, count: usize) {
    if rows == 0 {
        return;
    }
    let columns: Vec<T> =
        a.chunks_exact(ld).flat_map(|row| row[first..first + count].iter().copied()).collect();
    transpose(out, &columns, rows, count);
}

impl<T: Real> Factors<T> {
    /// The factors of neighbours with these switches `[n]` and unit vectors `[n, 3]`.
    pub fn fill(&mut self, step: &Step<T>, switch: &[T], unit: &[T]) {
        let n = unit.len() / 3;
        self.smooth.clear();
        self.factor.clear();
        for j in 0..n {
            for k in 0..n {
                let smooth = switch[j] * switch[k];
                let angle = dot3(&unit[3 * j..], &unit[3 * k..]);
                if step.smooth {
                    self.smooth.push(smooth);
                }
                match (step.smooth, step.dotr) {
                    (true, true) => self.factor.push(smooth * angle),
                    (true, false) => self.factor.push(smooth),
                    (false, true) => self.factor.push(angle),
                    (false, false) => {}
                }
            }
        }
        zeros(&mut self.de_smooth, self.smooth.len());
        zeros(&mut self.de_factor, self.factor.len());
    }

    /// How they change.
    pub fn fill_tangent(&mut self, step: &Step<T>, (s, s_dot): (&[T], &[T]), (u, u_dot): (&[T], &[T])) {
        let n = u.len() / 3;
        self.smooth_dot.clear();
        self.factor_dot.clear();
        for j in 0..n {
            for k in 0..n {
                let (smooth, moved) = (s[j] * s[k], s_dot[j] * s[k] + s[j] * s_dot[k]);
                let angle = dot3(&u[3 * j..], &u[3 * k..]);
                let turned = dot3(&u_dot[3 * j..], &u[3 * k..]) + dot3(&u[3 * j..], &u_dot[3 * k..]);
                if step.smooth {
                    self.smooth_dot.push(moved);
                }
                match (step.smooth, step.dotr) {
                    (true, true) => self.factor_dot.push(moved * angle + smooth * turned),
                    (true, false) => self.factor_dot.push(moved),
                    (false, true) => self.factor_dot.push(turned),
                    (false, false) => {}
                }
            }
        }
    }

    /// Adds dE by switches and unit vectors.
    pub fn energy_add(&self, de_switch: &mut [T], de_unit: &mut [T], step: &Step<T>, s: &[T], u: &[T]) {
        let n = u.len() / 3;
        for j in 0..n {
            for k in 0..n {
                let p = j * n + k;
                let mut de_smooth = if step.smooth { self.de_smooth[p] } else { T::ZERO };
                let de_factor = if self.factor.is_empty() { T::ZERO } else { self.de_factor[p] };
                if step.smooth {
                    let angle = if step.dotr { dot3(&u[3 * j..], &u[3 * k..]) } else { T::ONE };
                    de_smooth += de_factor * angle;
                    de_switch[j] += de_smooth * s[k];
                    de_switch[k] += de_smooth * s[j];
                }
                if step.dotr {
                    let de_angle = if step.smooth { de_factor * s[j] * s[k] } else { de_factor };
                    for c in 0..3 {
                        de_unit[3 * j + c] += de_angle * u[3 * k + c];
                        de_unit[3 * k + c] += de_angle * u[3 * j + c];
                    }
                }
            }
        }
    }
}

fn dot3<T: Real>(a: &[T], b: &[T]) -> T {
    a[0] * b[0] + a[1] * b[1] + a[2] * b[2]
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
