//! A layer on the rows of a block, `y = act(x W + b)`, in all four passes.

use super::kernels::*;
use super::memory::Plane::*;
use super::memory::{Buf, Plane, Rows};
use super::plan::{Layer, View};
use super::product::product;
use super::task::{Grid, Task};
use crate::engine::cpu::dense::{Accumulate, Strided};
use crate::engine::cpu::real::Real;
use crate::model::pinet::options::Act;

/// y = act(x W + b)
pub fn forward<T: Real>(t: &Task<T>, x: View, y: View, layer: &Layer, parts: usize) {
    let (gx, gy) = (Grid::new(t, x, parts), Grid::new(t, y, parts));
    if gx.rows == 0 {
        return;
    }
    let out = t.own_mut(y.buf, Value);
    let mut accumulate = Accumulate::Overwrite;
    let bias = t.b(layer);
    if let Some(b) = bias.filter(|_| layer.act != Act::Tanh) {
        gy.stretches().for_each(|(s, _)| fill_rows(&mut out[s], b));
        accumulate = Accumulate::Add;
    }
    multiply_by(out, gy, accumulate, t.own(x.buf, Value), gx, t.w(layer));
    match layer.act {
        Act::Linear => {}
        Act::Tanh => gy.stretches().for_each(|(s, _)| match bias {
            Some(b) => tanh_rows(&mut out[s], b),
            None => tanh_all(&mut out[s]),
        }),
        act => {
            let (d, dd) = (t.own_mut(y.buf, Slope), t.own_mut(y.buf, Curve));
            gy.stretches().for_each(|(s, _)| jets(&mut out[s.clone()], &mut d[s.clone()], &mut dd[s], act));
        }
    }
}

/// C (+)= A B with the rows of two grids.
fn multiply_by<T: Real>(c: &mut [T], gc: Grid, accumulate: Accumulate, a: &[T], ga: Grid, b: &[T]) {
    let a = Strided { data: &a[ga.col..], row: ga.ld, col: 1 };
    product(&mut c[gc.col..], gc.ld, accumulate, a, b, gc.n, gc.rows, gc.n, ga.n);
}

/// Adjoints of atoms are sums over their users; a matrix of pairs has one user that overwrites.
fn accumulate<T: Real>(t: &Task<T>, view: View) -> Accumulate {
    match t.mem.shape(view.buf).rows {
        Rows::Atom => Accumulate::Add,
        Rows::Pair => Accumulate::Overwrite,
    }
}

/// An adjoint before the activation, in the scratch: `plane` of y times act'.
fn before_activation<'s, T: Real>(
    t: &Task<T>,
    scratch: &'s mut [T],
    y: View,
    gy: Grid,
    act: Act,
    plane: Plane,
) -> &'s [T] {
    let z = &mut scratch[..gy.rows * gy.n];
    let dy = t.own(y.buf, plane);
    for (s, d) in gy.stretches() {
        match act {
            Act::Linear => z[d].copy_from_slice(&dy[s]),
            Act::Tanh => through_tanh(&mut z[d], &dy[s.clone()], &t.own(y.buf, Value)[s]),
            _ => multiply(&mut z[d], &dy[s.clone()], &t.own(y.buf, Slope)[s]),
        }
    }
    z
}

/// dE/dx (+)= (dE/dy act') W^T
pub fn reverse<T: Real>(t: &mut Task<T>, x: View, y: View, layer: &Layer, parts: usize) {
    pass_back(t, x, y, layer, parts, De);
}

fn pass_back<T: Real>(t: &mut Task<T>, x: View, y: View, layer: &Layer, parts: usize, plane: Plane) {
    let (gx, gy) = (Grid::new(t, x, parts), Grid::new(t, y, parts));
    if gx.rows == 0 {
        return;
    }
    let scratch = std::mem::take(&mut t.scratch);
    let z = before_activation(t, scratch, y, gy, layer.act, plane);
    let gz = Grid { ld: gy.n, col: 0, ..gy };
    multiply_by(t.own_mut(x.buf, plane), gx, accumulate(t, x), z, gz, t.w_transposed(layer));
    t.scratch = scratch;
}

/// y_dot = act' (x_dot W)
pub fn tangent<T: Real>(t: &Task<T>, x: View, y: View, layer: &Layer, parts: usize) {
    let (gx, gy) = (Grid::new(t, x, parts), Grid::new(t, y, parts));
    if gx.rows == 0 {
        return;
    }
    let dot = t.own_mut(y.buf, Dot);
    multiply_by(dot, gy, Accumulate::Overwrite, t.own(x.buf, Dot), gx, t.w(layer));
    for (s, _) in gy.stretches() {
        activation_tangent(t, &mut dot[s.clone()], y, layer.act, s);
    }
}

/// Takes the change of a pre-activation, numbers `s` of y, to that of y.
pub fn activation_tangent<T: Real>(t: &Task<T>, dot: &mut [T], y: View, act: Act, s: std::ops::Range<usize>) {
    match act {
        Act::Linear => {}
        Act::Tanh => scale_by_tanh_slope(dot, &t.own(y.buf, Value)[s]),
        _ => {
            let bent = &mut t.own_mut(y.buf, Bend)[s.clone()];
            bend(dot, bent, &t.own(y.buf, Slope)[s.clone()], &t.own(y.buf, Curve)[s]);
        }
    }
}

/// The reverse of (value, tangent): dL/dx, and dL/dW, dL/db into the slot.
pub fn adjoint<T: Real>(t: &mut Task<T>, x: View, y: View, layer: &Layer, parts: usize, constant: bool) {
    let (gx, gy) = (Grid::new(t, x, parts), Grid::new(t, y, parts));
    if gx.rows == 0 {
        return;
    }
    let scratch = std::mem::take(&mut t.scratch);
    let n = gy.rows * gy.n;
    let (first, second) = scratch.split_at_mut(n);
    let (dl_z, de_z): (&[T], &[T]) = match t.forces {
        false => (before_activation(t, first, y, gy, layer.act, Dl), &[]),
        true => {
            both_before_activation(t, first, &mut second[..n], y, gy, layer.act);
            (first, &second[..n])
        }
    };
    deliver(t, x, gx, layer, dl_z, de_z, constant);
    t.scratch = scratch;
}

/// dL/dW, dL/db and dL/dx from both adjoints of the pre-activations, rows without gaps. `de_z` is empty where x does
/// not move.
fn deliver<T: Real>(
    t: &mut Task<T>,
    x: View,
    gx: Grid,
    layer: &Layer,
    dl_z: &[T],
    de_z: &[T],
    constant: bool,
) {
    let slot = std::mem::take(&mut t.slot);
    let (m, n, k) = (layer.n_in, layer.n_out, gx.rows);
    let gradient = &mut slot[layer.slot[0]..][..m * n];
    let mut outer = |x: &[T], z: &[T]| {
        let a = Strided { data: &x[gx.col..], row: 1, col: gx.ld };
        product(gradient, n, Accumulate::Add, a, z, n, m, n, k);
    };
    outer(t.own(x.buf, Value), dl_z);
    if t.forces && !de_z.is_empty() {
        outer(t.own(x.buf, Dot), de_z);
    }
    if layer.b.is_some() {
        sum_rows(&mut slot[layer.slot[1]..], dl_z, n, true);
    }
    if !constant {
        let gz = Grid { rows: k, n, ld: n, col: 0 };
        multiply_by(t.own_mut(x.buf, Dl), gx, accumulate(t, x), dl_z, gz, t.w_transposed(layer));
    }
    t.slot = slot;
}

/// The last layer before a contraction, both at once: its adjoints never stand in memory before the activation.
#[derive(Clone, Copy)]
pub struct Radial<'a> {
    pub x: View,
    pub w: Buf,
    pub y: Buf,
    pub layer: &'a Layer,
    pub n_basis: usize,
}

impl Radial<'_> {
    fn all(&self) -> View {
        View { buf: self.w, col: 0, width: self.layer.n_out }
    }

    pub fn forward<T: Real>(&self, t: &Task<T>) {
        let (gx, gw, b) = (Grid::new(t, self.x, 1), Grid::new(t, self.all(), 1), self.n_basis);
        if gx.rows == 0 {
            return;
        }
        let w = t.own_mut(self.w, Value);
        multiply_by(w, gw, Accumulate::Overwrite, t.own(self.x.buf, Value), gx, t.w(self.layer));
        let bias = t.b(self.layer).expect("pair layers have a bias");
        tanh_contract(t.own_mut(self.y, Value), w, bias, t.radial(&t.batch.e, b), t.mem.width(self.y), b);
    }

    pub fn tangent<T: Real>(&self, t: &Task<T>) {
        let (gx, gw, b) = (Grid::new(t, self.x, 1), Grid::new(t, self.all(), 1), self.n_basis);
        if gx.rows == 0 {
            return;
        }
        let dot = t.own_mut(self.w, Dot);
        multiply_by(dot, gw, Accumulate::Overwrite, t.own(self.x.buf, Dot), gx, t.w(self.layer));
        let (e, e_dot) = (t.radial(&t.batch.e, b), t.radial(&t.batch.e_dot, b));
        let (y, c) = (t.own_mut(self.y, Dot), t.mem.width(self.y));
        tanh_contract_tangent(y, dot, t.own(self.w, Value), e, e_dot, c, b);
    }

    pub fn reverse<T: Real>(&self, t: &mut Task<T>) {
        let (gx, c, b) = (Grid::new(t, self.x, 1), t.mem.width(self.y), self.n_basis);
        let scratch = std::mem::take(&mut t.scratch);
        let z = &mut scratch[..gx.rows * self.layer.n_out];
        let (dy, w, e) = (t.own(self.y, De), t.own(self.w, Value), t.radial(&t.batch.e, b));
        let pairs = &t.block.pairs;
        // SAFETY: radial functions of the block's own pairs.
        let de = unsafe { t.de_e.part(pairs.start * b, pairs.len() * b) };
        radial_back_both(z, de, dy, w, e, c, b);
        let gz = Grid { rows: gx.rows, n: self.layer.n_out, ld: self.layer.n_out, col: 0 };
        if gx.rows > 0 {
            let to = t.own_mut(self.x.buf, De);
            multiply_by(to, gx, Accumulate::Overwrite, z, gz, t.w_transposed(self.layer));
        }
        t.scratch = scratch;
    }

    pub fn adjoint<T: Real>(&self, t: &mut Task<T>) {
        let (gx, c, b) = (Grid::new(t, self.x, 1), t.mem.width(self.y), self.n_basis);
        if gx.rows == 0 {
            return;
        }
        let scratch = std::mem::take(&mut t.scratch);
        let (dl_z, de_z) = scratch[..2 * gx.rows * self.layer.n_out].split_at_mut(gx.rows * self.layer.n_out);
        let (dl, w, e) = (t.own(self.y, Dl), t.own(self.w, Value), t.radial(&t.batch.e, b));
        match t.forces {
            true => {
                let (de, w_dot, e_dot) = (t.own(self.y, De), t.own(self.w, Dot), t.radial(&t.batch.e_dot, b));
                radial_adjoint(dl_z, de_z, RadialAdjoint { dl, de, w, w_dot, e, e_dot }, c, b);
            }
            false => radial_back(dl_z, dl, w, e, c, b),
        }
        let de_z: &[T] = if t.forces { de_z } else { &[] };
        deliver(t, self.x, gx, self.layer, dl_z, de_z, false);
        t.scratch = scratch;
    }
}

/// Both adjoints of y before the activation.
pub fn both_before_activation<T: Real>(
    t: &Task<T>,
    dl_z: &mut [T],
    de_z: &mut [T],
    y: View,
    gy: Grid,
    act: Act,
) {
    let (dl, de) = (t.own(y.buf, Dl), t.own(y.buf, De));
    for (s, d) in gy.stretches() {
        let (dl_z, de_z) = (&mut dl_z[d.clone()], &mut de_z[d]);
        let (dl, de) = (&dl[s.clone()], &de[s.clone()]);
        match act {
            Act::Linear => {
                dl_z.copy_from_slice(dl);
                de_z.copy_from_slice(de);
            }
            Act::Tanh => {
                both_through_tanh(dl_z, de_z, dl, de, &t.own(y.buf, Value)[s.clone()], &t.own(y.buf, Dot)[s]);
            }
            _ => both_through(dl_z, de_z, dl, de, &t.own(y.buf, Slope)[s.clone()], &t.own(y.buf, Bend)[s]),
        }
    }
}
