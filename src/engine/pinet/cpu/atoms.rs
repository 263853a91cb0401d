//! Operations on properties of atoms beside layers, in all four passes. They are few and small.

use super::memory::Plane::*;
use super::memory::{Buf, Plane};
use super::plan::View;
use super::task::Task;
use crate::engine::cpu::real::Real;

/// A row of a view among the rows of a block.
fn row<T>(data: &[T], view: View, ld: usize, r: usize) -> &[T] {
    &data[r * ld + view.col..][..view.width]
}

/// out_row += f(k) for every element of a view.
fn add_to<T: Real>(t: &Task<T>, out: View, plane: Plane, f: impl Fn(usize, usize) -> T) {
    let ld = t.mem.width(out.buf);
    let data = t.own_mut(out.buf, plane);
    for r in 0..t.block.atoms.len() {
        for (k, x) in data[r * ld + out.col..][..out.width].iter_mut().enumerate() {
            *x += f(r, k);
        }
    }
}

/// y = a + b; the same for changes.
pub fn add_forward<T: Real>(t: &Task<T>, a: View, b: View, y: View, plane: Plane) {
    let (la, lb, ly) = (t.mem.width(a.buf), t.mem.width(b.buf), t.mem.width(y.buf));
    let (da, db, dy) = (t.own(a.buf, plane), t.own(b.buf, plane), t.own_mut(y.buf, plane));
    for r in 0..t.block.atoms.len() {
        let (a, b) = (row(da, a, la, r), row(db, b, lb, r));
        for (k, y) in dy[r * ly + y.col..][..y.width].iter_mut().enumerate() {
            *y = a[k] + b[k];
        }
    }
}

/// Both operands get the adjoint of the sum.
pub fn add_back<T: Real>(t: &Task<T>, a: View, b: View, y: View, plane: Plane) {
    let ld = t.mem.width(y.buf);
    let dy = t.own(y.buf, plane);
    for operand in [a, b] {
        add_to(t, operand, plane, |r, k| dy[r * ld + y.col + k]);
    }
}

/// Components of two tensors and one invariant of an atom: their places for channel k of component x.
fn places<T: Real>(
    t: &Task<T>,
    q: Buf,
    s: View,
    size: usize,
) -> impl Fn(usize, usize) -> (usize, usize) + use<T> {
    let (n, ld) = (t.mem.width(q), t.mem.width(s.buf));
    let c = n / size;
    assert_eq!(c, s.width, "as many channels as invariants");
    move |r, k| (r * n + k, r * ld + s.col + k % c)
}

/// s = sum over components of a b, into a view of s; `dot`: its change.
pub fn dot_forward<T: Real>(t: &Task<T>, a: Buf, b: Buf, s: View, size: usize, dot: bool) {
    let at = places(t, a, s, size);
    let out = t.own_mut(s.buf, if dot { Dot } else { Value });
    let ld = t.mem.width(s.buf);
    let (va, vb) = (t.own(a, Value), t.own(b, Value));
    let (da, db) = (t.own(a, Dot), t.own(b, Dot));
    for r in 0..t.block.atoms.len() {
        out[r * ld + s.col..][..s.width].fill(T::ZERO);
        for k in 0..t.mem.width(a) {
            let (q, o) = at(r, k);
            out[o] += if dot { da[q] * vb[q] + va[q] * db[q] } else { va[q] * vb[q] };
        }
    }
}

/// Adds ds b to the adjoint of a, and ds a to that of b; with `second` the terms of the tangent.
pub fn dot_back<T: Real>(t: &Task<T>, a: Buf, b: Buf, s: View, size: usize, second: bool) {
    let at = places(t, a, s, size);
    let plane = if second { Dl } else { De };
    for (to, other) in [(a, b), (b, a)] {
        let view = View { buf: to, col: 0, width: t.mem.width(to) };
        let (ds, value) = (t.own(s.buf, plane), t.own(other, Value));
        let (de, dot) = (t.own(s.buf, De), t.own(other, Dot));
        let turned = second && t.forces;
        add_to(t, view, plane, |r, k| {
            let (q, o) = at(r, k);
            ds[o] * value[q] + if turned { de[o] * dot[q] } else { T::ZERO }
        });
    }
}

/// y = q u; `dot`: its change.
pub fn scale_forward<T: Real>(t: &Task<T>, q: Buf, u: View, y: Buf, size: usize, dot: bool) {
    let at = places(t, q, u, size);
    let out = t.own_mut(y, if dot { Dot } else { Value });
    let (vq, vu, dq, du) = (t.own(q, Value), t.own(u.buf, Value), t.own(q, Dot), t.own(u.buf, Dot));
    for r in 0..t.block.atoms.len() {
        for k in 0..t.mem.width(q) {
            let (a, b) = at(r, k);
            out[a] = if dot { dq[a] * vu[b] + vq[a] * du[b] } else { vq[a] * vu[b] };
        }
    }
}

/// Adds dy u to the adjoint of q, and the sum of dy q to that of u; with `second` the terms of the tangent.
pub fn scale_back<T: Real>(t: &Task<T>, q: Buf, u: View, y: Buf, size: usize, second: bool) {
    let at = places(t, q, u, size);
    let plane = if second { Dl } else { De };
    let turned = second && t.forces;
    let (dy, de) = (t.own(y, plane), t.own(y, De));
    let (vq, vu, q_dot, u_dot) = (t.own(q, Value), t.own(u.buf, Value), t.own(q, Dot), t.own(u.buf, Dot));
    let dq = t.own_mut(q, plane);
    let du = t.own_mut(u.buf, plane);
    for r in 0..t.block.atoms.len() {
        for k in 0..t.mem.width(q) {
            let (a, b) = at(r, k);
            dq[a] += dy[a] * vu[b];
            du[b] += dy[a] * vq[a];
            if turned {
                dq[a] += de[a] * u_dot[b];
                du[b] += de[a] * q_dot[a];
            }
        }
    }
}
