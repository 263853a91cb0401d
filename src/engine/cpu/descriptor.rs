//! The descriptor `D = A A[..M2]^T` of an atom, its tangent and its adjoint.
//!
//! A is stored `[4, M1]`, D flattened `[M1, M2]`. Its first `square` rows (M2 or none) are a symmetric square of which only the
//! lower triangle is kept (`fitting/fold.rs`).

use super::dense::{Accumulate, Strided, product, product_turned_into};
use super::elementwise::add;
use super::fitting::fold::mirror;
use super::real::Real;
use super::scratch::scratch;
use super::simd::multiversion;

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
    pub fn forward<T: Real>(d: &mut [T], a: &[T], m1: usize, m2: usize, square: usize) {
        let y: [&[T]; 4] = std::array::from_fn(|c| &a[c * m1..c * m1 + m2]);
        for m in 0..m1 {
            let (start, n) = kept(m, m2, square);
            let x: [T; 4] = std::array::from_fn(|c| a[c * m1 + m]);
            for (k, out) in d[start..start + n].iter_mut().enumerate() {
                *out = x[0].fma(y[0][k], x[1].fma(y[1][k], x[2].fma(y[2][k], x[3] * y[3][k])));
            }
        }
    }
}

multiversion! {
    /// `d_dot[m, k] = sum_c a_dot[c, m] a[c, k] + a[c, m] a_dot[c, k]`
    pub fn tangent<T: Real>(d_dot: &mut [T], a: &[T], a_dot: &[T], m1: usize, m2: usize, square: usize) {
        let y: [&[T]; 4] = std::array::from_fn(|c| &a[c * m1..c * m1 + m2]);
        let y_dot: [&[T]; 4] = std::array::from_fn(|c| &a_dot[c * m1..c * m1 + m2]);
        for m in 0..m1 {
            let (start, n) = kept(m, m2, square);
            let x: [T; 4] = std::array::from_fn(|c| a[c * m1 + m]);
            let x_dot: [T; 4] = std::array::from_fn(|c| a_dot[c * m1 + m]);
            for (k, out) in d_dot[start..start + n].iter_mut().enumerate() {
                let mut sum = T::ZERO;
                for c in 0..4 {
                    sum = x_dot[c].fma(y[c][k], x[c].fma(y_dot[c][k], sum));
                }
                *out = sum;
            }
        }
    }
}

/// Adds the adjoint of `D = A A[..M2]^T`: `t[c, m] += d_d[m, k] a[c, k]`, `t[c, k] += d_d[m, k] a[c, m]`.
pub fn adjoint_add<T: Real>(t: &mut [T], a: &[T], d_d: &[T], m1: usize, m2: usize, square: usize) {
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
        unsafe { product_turned_into(product_t.as_mut_ptr(), rest, d, a_t, 4, rest, 4, m2) };
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
