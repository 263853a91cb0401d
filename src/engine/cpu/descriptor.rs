//! From A of an atom to its descriptor D, with tangent and adjoint, by the descriptor's [`Form`].
//!
//! With directions `D = A A[..M2]^T`; A is stored `[4, M1]`, D flattened `[M1, M2]`. Its first `square` rows (M2 or none) are a symmetric square of which only the
//! lower triangle is kept (`fitting/fold.rs`). Without, D is A times a number.

use super::dense::{Accumulate, Strided, product, product_transposed_into};
use super::elementwise::add;
use super::fitting::fold::{Fold, mirror};
use super::real::Real;
use super::scratch::scratch;
use super::simd::multiversion;
use crate::model::dp::Dp;
use crate::model::dp::options::Form;

/// The way from A to D for one model.
#[derive(Debug, Clone, Copy)]
pub struct Map {
    form: Form,
    m1: usize,
    /// Rows of the square of which only the triangle is kept.
    square: usize,
}

impl Map {
    pub fn new(model: &Dp, fold: Fold) -> Map {
        Map { form: model.descriptor().form(), m1: model.n_embed(), square: fold.square() }
    }

    /// As it is given to users: whole, nothing folded.
    pub fn whole(model: &Dp) -> Map {
        Map { form: model.descriptor().form(), m1: model.n_embed(), square: 0 }
    }

    /// Numbers of A of an atom.
    pub fn stride(self) -> usize {
        self.form.components() * self.m1
    }

    /// D from A.
    pub fn forward<T: Real>(self, d: &mut [T], a: &[T]) {
        match self.form {
            Form::Directions { axis } | Form::Attention { axis, .. } => {
                forward(d, a, self.m1, axis, self.square)
            }
            form => scaled(&mut d[..self.m1], T::from_f64(form.scale()), a),
        }
    }

    /// The change of D.
    pub fn tangent<T: Real>(self, d_dot: &mut [T], a: &[T], a_dot: &[T]) {
        match self.form {
            Form::Directions { axis } | Form::Attention { axis, .. } => {
                tangent(d_dot, a, a_dot, self.m1, axis, self.square)
            }
            form => scaled(&mut d_dot[..self.m1], T::from_f64(form.scale()), a_dot),
        }
    }

    /// The adjoint of A from that of D, overwritten.
    pub fn adjoint<T: Real>(self, t: &mut [T], a: &[T], d_d: &[T]) {
        match self.form {
            Form::Directions { axis } | Form::Attention { axis, .. } => {
                t.fill(T::ZERO);
                adjoint_add(t, a, d_d, self.m1, axis, self.square);
            }
            form => scaled(&mut t[..self.m1], T::from_f64(form.scale()), d_d),
        }
    }

    /// Adds the adjoint of A by way of the change of D, given that of the latter: nothing where D is linear in A.
    pub fn tangent_adjoint_add<T: Real>(self, t: &mut [T], a_dot: &[T], d_d_dot: &[T]) {
        if let Form::Directions { axis } | Form::Attention { axis, .. } = self.form {
            adjoint_add(t, a_dot, d_d_dot, self.m1, axis, self.square);
        }
    }
}

/// `out = scale x`
fn scaled<T: Real>(out: &mut [T], scale: T, x: &[T]) {
    out.iter_mut().zip(x).for_each(|(out, &x)| *out = scale * x);
}

/// Numbers of row `m` that are kept, and where they start.
#[inline(always)]
fn kept(m: usize, m2: usize, square: usize) -> (usize, usize) {
    match m < square {
        true => (m * (m + 1) / 2, m + 1),
        false => (square * (square + 1) / 2 + (m - square) * m2, m2),
    }
}

multiversion! {
    /// `d[m, k] = sum_c a[c, m] a[c, k]`
    fn forward<T: Real>(d: &mut [T], a: &[T], m1: usize, m2: usize, square: usize) {
        match m2 {
            8 => forward_by::<T, 8>(d, a, m1, square),
            16 => forward_by::<T, 16>(d, a, m1, square),
            _ => forward_any(d, a, m1, m2, square),
        }
    }
}

multiversion! {
    /// `d_dot[m, k] = sum_c a_dot[c, m] a[c, k] + a[c, m] a_dot[c, k]`
    fn tangent<T: Real>(d_dot: &mut [T], a: &[T], a_dot: &[T], m1: usize, m2: usize, square: usize) {
        match m2 {
            8 => tangent_by::<T, 8>(d_dot, a, a_dot, m1, square),
            16 => tangent_by::<T, 16>(d_dot, a, a_dot, m1, square),
            _ => tangent_any(d_dot, a, a_dot, m1, m2, square),
        }
    }
}

/// Column `m` of A.
#[inline(always)]
fn column<T: Real>(a: &[T], m1: usize, m: usize) -> [T; 4] {
    [a[m], a[m1 + m], a[2 * m1 + m], a[3 * m1 + m]]
}

/// The first `M2` columns of A.
#[inline(always)]
fn head<T: Real, const M2: usize>(a: &[T], m1: usize) -> [[T; M2]; 4] {
    let mut head = [[T::ZERO; M2]; 4];
    for c in 0..4 {
        head[c].copy_from_slice(&a[c * m1..c * m1 + M2]);
    }
    head
}

#[inline(always)]
fn product_of_columns<T: Real>(x: [T; 4], y: [T; 4]) -> T {
    x[0].fma(y[0], x[1].fma(y[1], x[2].fma(y[2], x[3] * y[3])))
}

/// [`forward`] where a row has a length that the compiler knows, and stays in registers.
///
/// Rows of the triangle are written whole too: the row after overwrites what was too long, and the last is a whole one.
#[inline(always)]
fn forward_by<T: Real, const M2: usize>(d: &mut [T], a: &[T], m1: usize, square: usize) {
    let y: [[T; M2]; 4] = head(a, m1);
    for m in 0..m1 {
        let (start, _) = kept(m, M2, square);
        let (x, out) = (column(a, m1, m), &mut d[start..start + M2]);
        for k in 0..M2 {
            out[k] = product_of_columns(x, [y[0][k], y[1][k], y[2][k], y[3][k]]);
        }
    }
}

/// [`forward`] for rows of any length.
#[inline(always)]
fn forward_any<T: Real>(d: &mut [T], a: &[T], m1: usize, m2: usize, square: usize) {
    for m in 0..m1 {
        let (start, n) = kept(m, m2, square);
        let (x, out) = (column(a, m1, m), &mut d[start..start + n]);
        for k in 0..n {
            out[k] = product_of_columns(x, column(a, m1, k));
        }
    }
}

/// [`tangent`] where a row has a length that the compiler knows: see [`forward_by`].
#[inline(always)]
fn tangent_by<T: Real, const M2: usize>(d_dot: &mut [T], a: &[T], a_dot: &[T], m1: usize, square: usize) {
    let (y, y_dot): ([[T; M2]; 4], [[T; M2]; 4]) = (head(a, m1), head(a_dot, m1));
    for m in 0..m1 {
        let (start, _) = kept(m, M2, square);
        let (x, x_dot) = (column(a, m1, m), column(a_dot, m1, m));
        let mut sum = [T::ZERO; M2];
        for c in 0..4 {
            for k in 0..M2 {
                sum[k] = x_dot[c].fma(y[c][k], x[c].fma(y_dot[c][k], sum[k]));
            }
        }
        d_dot[start..start + M2].copy_from_slice(&sum);
    }
}

/// [`tangent`] for rows of any length.
#[inline(always)]
fn tangent_any<T: Real>(d_dot: &mut [T], a: &[T], a_dot: &[T], m1: usize, m2: usize, square: usize) {
    for m in 0..m1 {
        let (start, n) = kept(m, m2, square);
        let (x, x_dot) = (column(a, m1, m), column(a_dot, m1, m));
        let out = &mut d_dot[start..start + n];
        for k in 0..n {
            let (y, y_dot) = (column(a, m1, k), column(a_dot, m1, k));
            let mut sum = T::ZERO;
            for c in 0..4 {
                sum = x_dot[c].fma(y[c], x[c].fma(y_dot[c], sum));
            }
            out[k] = sum;
        }
    }
}

/// Adds the adjoint of `D = A A[..M2]^T`: `t[c, m] += d_d[m, k] a[c, k]`, `t[c, k] += d_d[m, k] a[c, m]`.
fn adjoint_add<T: Real>(t: &mut [T], a: &[T], d_d: &[T], m1: usize, m2: usize, square: usize) {
    assert!(t.len() >= 4 * m1, "room for the adjoint of A");
    let (triangle, d_d) = d_d.split_at(square * (square + 1) / 2);
    let rest = m1 - square;
    scratch(4 * (m1 + m2) + square * square, |buffer: &mut [T]| {
        let (product_t, buffer) = buffer.split_at_mut(4 * m1);
        let (a_t, mirrored) = buffer.split_at_mut(4 * m2);
        for (k, out) in a_t.chunks_exact_mut(4).enumerate() {
            out.copy_from_slice(&[0, 1, 2, 3].map(|c| a[c * m1 + k]));
        }
        let d = Strided { data: d_d, row: m2, col: 1 };
        // SAFETY: the buffer holds 4 rows of m1 numbers.
        unsafe { product_transposed_into(product_t.as_mut_ptr(), rest, d, a_t, 4, rest, 4, m2) };
        for c in 0..4 {
            add(&mut t[c * m1 + square..(c + 1) * m1], &product_t[c * rest..(c + 1) * rest]);
        }
        if square > 0 {
            mirror(mirrored, triangle, square);
            let a = Strided { data: a, row: m1, col: 1 };
            product(t, m1, Accumulate::Add, a, mirrored, square, 4, square, square);
        }
    });
    if rest > 0 {
        let a = Strided { data: &a[square..], row: m1, col: 1 };
        product(t, m1, Accumulate::Add, a, d_d, m2, 4, m2, rest);
    }
}
