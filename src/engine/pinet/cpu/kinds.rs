//! The pair layers of the first block. There properties of atoms are elements, so that what the layers give depends on
//! the two elements of a pair alone: it is computed once for every kind of pair, and gradients are added up by kind
//! before they go back through the layers.

use super::kernels::{CHUNK, sum_of};
use super::memory::Buf;
use super::memory::Plane::*;
use super::task::Task;
use crate::engine::cpu::real::Real;
use crate::engine::cpu::simd::multiversion;
use crate::engine::pinet::activation::jet;
use crate::model::pinet::Dense;

/// The layers for every kind of pair, in float64.
#[derive(Debug, Default)]
pub struct Kinds {
    /// For each layer `[n_kinds^2, n_out]`: values and slopes.
    values: Vec<Vec<f64>>,
    slopes: Vec<Vec<f64>>,
    /// dL/dvalue while it goes back
    dl: Vec<f64>,
    dl_before: Vec<f64>,
}

impl Kinds {
    /// Computes what the pair layers give, columns in the order of the kernels: radial functions slowest.
    ///
    /// - table  out  `[n_kinds^2, n_basis, channels]`
    /// - pi     the layers; the first one sees the one-hot rows of both atoms
    pub fn evaluate<T: Real>(
        &mut self,
        table: &mut Vec<T>,
        params: &[f64],
        pi: &[Dense],
        n_kinds: usize,
        n_basis: usize,
    ) {
        let rows = n_kinds * n_kinds;
        self.values.resize_with(pi.len(), Vec::new);
        self.slopes.resize_with(pi.len(), Vec::new);
        for (l, layer) in pi.iter().enumerate() {
            let mut z = std::mem::take(&mut self.values[l]);
            z.clear();
            for row in 0..rows {
                let start = z.len();
                match layer.b_range() {
                    Some(b) => z.extend_from_slice(&params[b]),
                    None => z.resize(start + layer.n_out, 0.0),
                }
                let mut add = |factor: f64, k: usize| {
                    let w = &params[layer.w + k * layer.n_out..][..layer.n_out];
                    z[start..].iter_mut().zip(w).for_each(|(z, w)| *z += factor * w);
                };
                match l {
                    0 => inputs(row, n_kinds).for_each(|k| add(1.0, k)),
                    _ => {
                        let x = &self.values[l - 1][row * layer.n_in..(row + 1) * layer.n_in];
                        x.iter().enumerate().for_each(|(k, x)| add(*x, k));
                    }
                }
            }
            let slopes = &mut self.slopes[l];
            slopes.clear();
            for z in &mut z {
                let [f, d, _] = jet(layer.act, *z);
                *z = f;
                slopes.push(d);
            }
            self.values[l] = z;
        }
        let (Some(last), Some(layer)) = (self.values.last(), pi.last()) else { return };
        table.resize(rows * layer.n_out, T::ZERO);
        for (to, from) in table.chunks_exact_mut(layer.n_out).zip(last.chunks_exact(layer.n_out)) {
            let channels = layer.n_out / n_basis;
            for (k, x) in to.iter_mut().enumerate() {
                *x = T::from_f64(from[k % channels * n_basis + k / channels]);
            }
        }
    }

    /// Adds the gradient of the pair layers.
    ///
    /// - dl  dL/dtable, in its order
    pub fn deliver_add(
        &mut self,
        grad: &mut [f64],
        params: &[f64],
        pi: &[Dense],
        dl: &[f64],
        n_kinds: usize,
        n_basis: usize,
    ) {
        let Some(last) = pi.last() else { return };
        self.dl.clear();
        let channels = last.n_out / n_basis;
        for row in dl.chunks_exact(last.n_out) {
            self.dl.extend((0..last.n_out).map(|k| row[k % n_basis * channels + k / n_basis]));
        }
        for (l, layer) in pi.iter().enumerate().rev() {
            self.dl.iter_mut().zip(&self.slopes[l]).for_each(|(dl, slope)| *dl *= slope);
            self.dl_before.clear();
            self.dl_before.resize(n_kinds * n_kinds * layer.n_in, 0.0);
            for (row, dl) in self.dl.chunks_exact(layer.n_out).enumerate() {
                if dl.iter().all(|&dl| dl == 0.0) {
                    continue;
                }
                if let Some(b) = layer.b_range() {
                    grad[b].iter_mut().zip(dl).for_each(|(grad, dl)| *grad += dl);
                }
                let weights = |k: usize| layer.w + k * layer.n_out..layer.w + (k + 1) * layer.n_out;
                if l == 0 {
                    for k in inputs(row, n_kinds) {
                        grad[weights(k)].iter_mut().zip(dl).for_each(|(grad, dl)| *grad += dl);
                    }
                    continue;
                }
                let x = &self.values[l - 1][row * layer.n_in..(row + 1) * layer.n_in];
                let before = &mut self.dl_before[row * layer.n_in..(row + 1) * layer.n_in];
                for (k, (x, before)) in x.iter().zip(before).enumerate() {
                    let to = grad[weights(k)].iter_mut().zip(dl);
                    to.for_each(|(grad, dl)| *grad += x * dl);
                    *before = params[weights(k)].iter().zip(dl).map(|(w, dl)| w * dl).sum();
                }
            }
            std::mem::swap(&mut self.dl, &mut self.dl_before);
        }
    }
}

/// Rows of the first layer's weights that a kind of pair takes: one for each known element.
fn inputs(row: usize, n_kinds: usize) -> impl Iterator<Item = usize> {
    let known = n_kinds - 1;
    let (i, j) = (row / n_kinds, row % n_kinds);
    [(i, i), (j, known + j)].into_iter().filter(move |(element, _)| *element < known).map(|(_, k)| k)
}

/// y_c = sum_b w_(b c) e_b
pub fn forward<T: Real>(t: &Task<T>, y: Buf, b: usize) {
    contract_kinds(t.own_mut(y, Value), t.kinds, own_kinds(t), t.radial(&t.batch.e, b), t.mem.width(y), b);
}

pub fn tangent<T: Real>(t: &Task<T>, y: Buf, b: usize) {
    contract_kinds(t.own_mut(y, Dot), t.kinds, own_kinds(t), t.radial(&t.batch.e_dot, b), t.mem.width(y), b);
}

/// dE by the radial functions; nothing else moves.
pub fn reverse<T: Real>(t: &Task<T>, y: Buf, b: usize) {
    let pairs = &t.block.pairs;
    // SAFETY: radial functions of the block's own pairs.
    let de = unsafe { t.de_e.part(pairs.start * b, pairs.len() * b) };
    kinds_back_add(de, t.own(y, De), t.kinds, own_kinds(t), t.mem.width(y), b);
}

/// dL by the table into the slot.
pub fn adjoint<T: Real>(t: &mut Task<T>, y: Buf, b: usize) {
    let slot = std::mem::take(&mut t.kind_slot);
    let (dl, e, c) = (t.own(y, Dl), t.radial(&t.batch.e, b), t.mem.width(y));
    match t.forces {
        true => {
            let (de, e_dot) = (t.own(y, De), t.radial(&t.batch.e_dot, b));
            kinds_adjoint_add(slot, dl, e, c, b, own_kinds(t));
            kinds_adjoint_add(slot, de, e_dot, c, b, own_kinds(t));
        }
        false => kinds_adjoint_add(slot, dl, e, c, b, own_kinds(t)),
    }
    t.kind_slot = slot;
}

fn own_kinds<'a, T: Real>(t: &Task<'a, T>) -> &'a [u32] {
    &t.batch.kind[t.block.pairs.clone()]
}

multiversion! {
    /// y_c = sum_b table_(kind b c) e_b for each row: `c` channels, `b` radial functions.
    fn contract_kinds<T: Real>(y: &mut [T], table: &[T], kinds: &[u32], e: &[T], c: usize, b: usize) {
        for ((y, kind), e) in y.chunks_exact_mut(c).zip(kinds).zip(e.chunks_exact(b)) {
            let w = &table[*kind as usize * b * c..][..b * c];
            let mut first = 0;
            while first + CHUNK <= c {
                let mut sum = [T::ZERO; CHUNK];
                for (e, w) in e.iter().zip(w.chunks_exact(c)) {
                    let w = &w[first..first + CHUNK];
                    for l in 0..CHUNK {
                        sum[l] = e.fma(w[l], sum[l]);
                    }
                }
                y[first..first + CHUNK].copy_from_slice(&sum);
                first += CHUNK;
            }
            for k in first..c {
                y[k] = e.iter().enumerate().map(|(b, e)| *e * w[b * c + k]).sum();
            }
        }
    }
}

multiversion! {
    /// de_b += sum_c dy_c table_(kind b c)
    fn kinds_back_add<T: Real>(de: &mut [T], dy: &[T], table: &[T], kinds: &[u32], c: usize, b: usize) {
        for ((dy, kind), de) in dy.chunks_exact(c).zip(kinds).zip(de.chunks_exact_mut(b)) {
            let w = &table[*kind as usize * b * c..][..b * c];
            for (de, w) in de.iter_mut().zip(w.chunks_exact(c)) {
                let mut sums = [T::ZERO; CHUNK];
                let chunks = dy.chunks_exact(CHUNK).zip(w.chunks_exact(CHUNK));
                for (dy, w) in chunks {
                    for l in 0..CHUNK {
                        sums[l] = dy[l].fma(w[l], sums[l]);
                    }
                }
                let rest = c / CHUNK * CHUNK;
                let tail: T = dy[rest..].iter().zip(&w[rest..]).map(|(a, b)| *a * *b).sum();
                *de += sum_of(sums) + tail;
            }
        }
    }
}

multiversion! {
    /// slot_(kind b c) += dy_c e_b
    fn kinds_adjoint_add<T: Real>(slot: &mut [T], dy: &[T], e: &[T], c: usize, b: usize, kinds: &[u32]) {
        for ((dy, kind), e) in dy.chunks_exact(c).zip(kinds).zip(e.chunks_exact(b)) {
            let slot = &mut slot[*kind as usize * b * c..][..b * c];
            for (slot, e) in slot.chunks_exact_mut(c).zip(e) {
                let rest = c / CHUNK * CHUNK;
                for (slot, dy) in slot.chunks_exact_mut(CHUNK).zip(dy.chunks_exact(CHUNK)) {
                    for l in 0..CHUNK {
                        slot[l] = e.fma(dy[l], slot[l]);
                    }
                }
                for (slot, dy) in slot[rest..].iter_mut().zip(&dy[rest..]) {
                    *slot = e.fma(*dy, *slot);
                }
            }
        }
    }
}
