//! Operations between atoms and pairs, in all four passes.
//!
//! Pairs are sorted by their first atom, so a sum over the pairs of an atom runs over neighbouring rows of its own
//! block. Sums over the pairs that lead to an atom are made by the block of that atom, from the list of them.

use super::kernels::*;
use super::layers::{activation_tangent, both_before_activation};
use super::memory::Plane::*;
use super::memory::{Buf, Plane};
use super::plan::View;
use super::task::{Grid, Task};
use crate::engine::cpu::real::Real;
use crate::model::pinet::options::Act;

/// The whole of a matrix as a view.
fn whole<T: Real>(t: &Task<T>, buf: Buf) -> View {
    View { buf, col: 0, width: t.mem.width(buf) }
}

/// Rows of u_i + v_j in a plane, into the same plane of y.
fn gather<T: Real>(t: &Task<T>, u: Buf, v: Buf, y: Buf, plane: Plane) {
    let (i, j) = t.ends();
    add_gathered(t.own_mut(y, plane), t.whole(u, plane), t.whole(v, plane), i, j, t.mem.width(y));
}

/// y = act(u_i + v_j)
pub fn input_forward<T: Real>(t: &Task<T>, u: Buf, v: Buf, y: Buf, act: Act) {
    let out = t.own_mut(y, Value);
    if act == Act::Tanh {
        let (i, j) = t.ends();
        return tanh_gathered(out, t.whole(u, Value), t.whole(v, Value), i, j, t.mem.width(y));
    }
    gather(t, u, v, y, Value);
    match act {
        Act::Linear => {}
        act => jets(out, t.own_mut(y, Slope), t.own_mut(y, Curve), act),
    }
}

pub fn input_tangent<T: Real>(t: &Task<T>, u: Buf, v: Buf, y: Buf, act: Act) {
    let dot = t.own_mut(y, Dot);
    if act == Act::Tanh {
        let (i, j) = t.ends();
        let (u, v) = (t.whole(u, Dot), t.whole(v, Dot));
        return tanh_slope_gathered(dot, t.own(y, Value), u, v, i, j, t.mem.width(y));
    }
    gather(t, u, v, y, Dot);
    let n = dot.len();
    activation_tangent(t, dot, whole(t, y), act, 0..n);
}

/// Adds up an adjoint of the pairs of each atom.
fn to_first<T: Real>(t: &Task<T>, z: Buf, u: Buf, plane: Plane) {
    let n = t.mem.width(z);
    let (rows, sums) = (t.own(z, plane), t.own_mut(u, plane));
    for (sum, i) in sums.chunks_exact_mut(n).zip(t.block.atoms.clone()) {
        let pairs = t.batch.pairs_of(i);
        let first = t.block.pairs.start;
        sum_rows(sum, &rows[(pairs.start - first) * n..(pairs.end - first) * n], n, true);
    }
}

/// dE/dz = dE/dy act', and its sum for u. v gets its own by [`spread_input`].
pub fn input_reverse<T: Real>(t: &Task<T>, u: Buf, y: Buf, z: Buf, act: Act) {
    let (dz, dy) = (t.own_mut(z, De), t.own(y, De));
    match act {
        Act::Linear => dz.copy_from_slice(dy),
        Act::Tanh => through_tanh(dz, dy, t.own(y, Value)),
        _ => multiply(dz, dy, t.own(y, Slope)),
    }
    to_first(t, z, u, De);
}

pub fn input_adjoint<T: Real>(t: &mut Task<T>, u: Buf, y: Buf, z: Buf, act: Act) {
    let dl_z = t.own_mut(z, Dl);
    if t.forces {
        let scratch = std::mem::take(&mut t.scratch);
        let view = whole(t, y);
        both_before_activation(t, dl_z, &mut scratch[..], view, Grid::new(t, view, 1), act);
        t.scratch = scratch;
    } else {
        let dy = t.own(y, Dl);
        match act {
            Act::Linear => dl_z.copy_from_slice(dy),
            Act::Tanh => through_tanh(dl_z, dy, t.own(y, Value)),
            _ => multiply(dl_z, dy, t.own(y, Slope)),
        }
    }
    to_first(t, z, u, Dl);
}

/// Adds up an adjoint of the pairs that lead to each atom.
pub fn spread_input<T: Real>(t: &Task<T>, v: Buf, z: Buf, plane: Plane) {
    let n = t.mem.width(v);
    let (rows, sums) = (t.whole(z, plane), t.own_mut(v, plane));
    for (sum, j) in sums.chunks_exact_mut(n).zip(t.block.atoms.clone()) {
        sum_gathered_add(sum, rows, t.batch.pairs_to(j), n);
    }
}

/// y_c = sum_b w_(b c) e_b
pub fn contract_forward<T: Real>(t: &Task<T>, w: Buf, y: Buf, b: usize) {
    contract(t.own_mut(y, Value), t.own(w, Value), t.radial(&t.batch.e, b), t.mem.width(y), b);
}

pub fn contract_tangent<T: Real>(t: &Task<T>, w: Buf, y: Buf, b: usize) {
    let (e, e_dot) = (t.radial(&t.batch.e, b), t.radial(&t.batch.e_dot, b));
    contract_two(t.own_mut(y, Dot), t.own(w, Dot), e, t.own(w, Value), e_dot, t.mem.width(y), b);
}

pub fn contract_reverse<T: Real>(t: &Task<T>, w: Buf, y: Buf, b: usize) {
    if t.again {
        let e = t.radial(&t.batch.e, b);
        return contract_outer(t.own_mut(w, De), t.own(y, De), e, t.mem.width(y), b);
    }
    let pairs = &t.block.pairs;
    // SAFETY: radial functions of the block's own pairs.
    let de = unsafe { t.de_e.part(pairs.start * b, pairs.len() * b) };
    let e = t.radial(&t.batch.e, b);
    contract_back(t.own_mut(w, De), de, t.own(y, De), t.own(w, Value), e, t.mem.width(y), b);
}

pub fn contract_adjoint<T: Real>(t: &Task<T>, w: Buf, y: Buf, b: usize) {
    let (e, c) = (t.radial(&t.batch.e, b), t.mem.width(y));
    match t.forces {
        true => {
            let e_dot = t.radial(&t.batch.e_dot, b);
            contract_both_back(t.own_mut(w, Dl), t.own(y, Dl), e, t.own(y, De), e_dot, c, b);
        }
        false => contract_outer(t.own_mut(w, Dl), t.own(y, Dl), e, c, b),
    }
}

/// y_i = sum of the pairs of i; the same for changes.
pub fn sum_forward<T: Real>(t: &Task<T>, x: Buf, y: Buf, plane: Plane) {
    let n = t.mem.width(x);
    let (rows, sums) = (t.own(x, plane), t.own_mut(y, plane));
    let first = t.block.pairs.start;
    for (sum, i) in sums.chunks_exact_mut(n).zip(t.block.atoms.clone()) {
        let pairs = t.batch.pairs_of(i);
        sum_rows(sum, &rows[(pairs.start - first) * n..(pairs.end - first) * n], n, false);
    }
}

/// Every pair gets the adjoint of its first atom.
pub fn sum_back<T: Real>(t: &Task<T>, x: Buf, y: Buf, plane: Plane) {
    let n = t.mem.width(x);
    let (rows, sums) = (t.own_mut(x, plane), t.own(y, plane));
    let first = t.block.pairs.start;
    for (sum, i) in sums.chunks_exact(n).zip(t.block.atoms.clone()) {
        let pairs = t.batch.pairs_of(i);
        fill_rows(&mut rows[(pairs.start - first) * n..(pairs.end - first) * n], sum);
    }
}

/// The operands of a turn.
#[derive(Clone, Copy)]
pub struct Turn {
    pub p: Option<Buf>,
    pub a: Option<Buf>,
    pub direction: usize,
    pub s: View,
    pub y: Buf,
}

impl Turn {
    /// Calls `f(atom within the block, pair within the block, s's row, turned)` for every pair, with everything of
    /// one plane.
    fn each<T: Real>(&self, t: &Task<T>, plane: Plane, mut f: impl FnMut(usize, usize, Turned<T>)) {
        let direction = &t.batch.directions[self.direction];
        let n = self.s.width * direction.size;
        let d = if plane == Value { &direction.value } else { &direction.dot };
        let p = self.p.map(|p| t.whole(p, plane));
        let a = self.a.map(|a| t.own(a, plane));
        for (k, i) in t.block.atoms.clone().enumerate() {
            for pair in t.batch.pairs_of(i) {
                let j = t.batch.j[pair] as usize;
                let turned = Turned {
                    p: p.map(|p| &p[j * n..(j + 1) * n]),
                    a: a.map(|a| &a[k * n..(k + 1) * n]),
                    d: &d[pair * direction.size..(pair + 1) * direction.size],
                };
                f(k, pair - t.block.pairs.start, turned);
            }
        }
    }

    /// Row of s.
    fn row<'b, T: Real>(&self, t: &Task<T>, s: &'b [T], pair: usize) -> &'b [T] {
        let ld = t.mem.width(self.s.buf);
        &s[pair * ld + self.s.col..][..self.s.width]
    }

    fn size<T: Real>(&self, t: &Task<T>) -> usize {
        t.batch.directions[self.direction].size * self.s.width
    }

    pub fn forward<T: Real>(&self, t: &Task<T>) {
        let (y, s, n) = (t.own_mut(self.y, Value), t.own(self.s.buf, Value), self.size(t));
        y.fill(T::ZERO);
        self.each(t, Value, |k, pair, turned| {
            turn_add(&mut y[k * n..(k + 1) * n], turned, self.row(t, s, pair))
        });
    }

    pub fn tangent<T: Real>(&self, t: &Task<T>) {
        let (y, n) = (t.own_mut(self.y, Dot), self.size(t));
        let (s, s_dot) = (t.own(self.s.buf, Value), t.own(self.s.buf, Dot));
        y.fill(T::ZERO);
        self.each(t, Value, |k, pair, turned| {
            turn_add(&mut y[k * n..(k + 1) * n], turned, self.row(t, s_dot, pair))
        });
        self.each(t, Dot, |k, pair, turned| {
            turn_add(&mut y[k * n..(k + 1) * n], turned, self.row(t, s, pair))
        });
    }

    /// Adds turned times dy to an adjoint of s.
    fn add_to_s<T: Real>(&self, t: &Task<T>, ds: Plane, values: Plane, dy: Plane) {
        let (ds, dy, n) = (t.own_mut(self.s.buf, ds), t.own(self.y, dy), self.size(t));
        let ld = t.mem.width(self.s.buf);
        self.each(t, values, |k, pair, turned| {
            let ds = &mut ds[pair * ld + self.s.col..][..self.s.width];
            turn_back_add(ds, turned, &dy[k * n..(k + 1) * n]);
        });
    }

    /// Adds s times dy to an adjoint of a.
    fn add_to_first<T: Real>(&self, t: &Task<T>, da: Plane, s: Plane, dy: Plane) {
        let Some(a) = self.a else { return };
        let (da, s, dy, n) = (t.own_mut(a, da), t.own(self.s.buf, s), t.own(self.y, dy), self.size(t));
        self.each(t, Value, |k, pair, _| {
            spread_add(&mut da[k * n..(k + 1) * n], self.row(t, s, pair), &dy[k * n..(k + 1) * n]);
        });
    }

    pub fn reverse<T: Real>(&self, t: &Task<T>) {
        self.add_to_s(t, De, Value, De);
        if t.again {
            return;
        }
        self.add_to_first(t, De, Value, De);
        let size = t.batch.directions[self.direction].size;
        let pairs = &t.block.pairs;
        // SAFETY: directions of the block's own pairs.
        let de_d = unsafe { t.de_directions[self.direction].part(pairs.start * size, pairs.len() * size) };
        let (dy, s, n, width) = (t.own(self.y, De), t.own(self.s.buf, Value), self.size(t), self.s.width);
        self.each(t, Value, |k, pair, _| {
            let s = self.row(t, s, pair);
            for (x, dy) in dy[k * n..(k + 1) * n].chunks_exact(width).enumerate() {
                de_d[pair * size + x] += s.iter().zip(dy).map(|(s, dy)| *s * *dy).sum::<T>();
            }
        });
    }

    pub fn adjoint<T: Real>(&self, t: &Task<T>) {
        self.add_to_s(t, Dl, Value, Dl);
        self.add_to_first(t, Dl, Value, Dl);
        if t.forces {
            self.add_to_s(t, Dl, Dot, De);
            self.add_to_first(t, Dl, Dot, De);
        }
    }
}

/// Adds s dy of the pairs that lead to each atom: for p of a turn.
pub fn spread_turn<T: Real>(t: &Task<T>, p: Buf, s: View, y: Buf, dp: Plane, s_plane: Plane, dy: Plane) {
    let n = t.mem.width(p);
    let (sums, all_s, all_dy) = (t.own_mut(p, dp), t.whole(s.buf, s_plane), t.whole(y, dy));
    let ld = t.mem.width(s.buf);
    for (sum, j) in sums.chunks_exact_mut(n).zip(t.block.atoms.clone()) {
        for &pair in t.batch.pairs_to(j) {
            let (pair, i) = (pair as usize, t.batch.i[pair as usize] as usize);
            spread_add(sum, &all_s[pair * ld + s.col..][..s.width], &all_dy[i * n..(i + 1) * n]);
        }
    }
}
