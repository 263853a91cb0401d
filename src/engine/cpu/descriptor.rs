//! The descriptor `D = A A[..M2]^T` of an atom, its tangent and its adjoint.
//!
//! A is stored `[4, M1]`, D flattened `[M1, M2]`.

use super::real::Real;
use super::simd::multiversion;

multiversion! {
    /// `d[m, k] = sum_c a[c, m] a[c, k]`
    pub fn forward<T: Real>(d: &mut [T], a: &[T], m1: usize, m2: usize) {
        for (m, out) in d[..m1 * m2].chunks_exact_mut(m2).enumerate() {
            let x: [T; 4] = std::array::from_fn(|c| a[c * m1 + m]);
            let y: [&[T]; 4] = std::array::from_fn(|c| &a[c * m1..c * m1 + m2]);
            for (k, out) in out.iter_mut().enumerate() {
                *out = x[0].fma(y[0][k], x[1].fma(y[1][k], x[2].fma(y[2][k], x[3] * y[3][k])));
            }
        }
    }
}

multiversion! {
    /// `d_dot[m, k] = sum_c a_dot[c, m] a[c, k] + a[c, m] a_dot[c, k]`
    pub fn tangent<T: Real>(d_dot: &mut [T], a: &[T], a_dot: &[T], m1: usize, m2: usize) {
        for (m, out) in d_dot[..m1 * m2].chunks_exact_mut(m2).enumerate() {
            let x: [T; 4] = std::array::from_fn(|c| a[c * m1 + m]);
            let x_dot: [T; 4] = std::array::from_fn(|c| a_dot[c * m1 + m]);
            let y: [&[T]; 4] = std::array::from_fn(|c| &a[c * m1..c * m1 + m2]);
            let y_dot: [&[T]; 4] = std::array::from_fn(|c| &a_dot[c * m1..c * m1 + m2]);
            for (k, out) in out.iter_mut().enumerate() {
                let mut sum = T::ZERO;
                for c in 0..4 {
                    sum = x_dot[c].fma(y[c][k], x[c].fma(y_dot[c][k], sum));
                }
                *out = sum;
            }
        }
    }
}

multiversion! {
    /// Adds the adjoint of `D = A A[..M2]^T`: `t[m] += d_d[m, k] a_t[k]`, `t[k] += d_d[m, k] a_t[m]`.
    ///
    /// `a_t` and `t` are `[M1, 4]`: with the four components side by side the sums need no shuffles.
    pub fn adjoint_add<T: Real>(t: &mut [[T; 4]], a_t: &[[T; 4]], d_d: &[T], m2: usize) {
        for (m, d_d) in d_d[..t.len() * m2].chunks_exact(m2).enumerate() {
            let a_m = a_t[m];
            let mut sum = t[m];
            for k in 0..m2 {
                let a_k = a_t[k];
                for c in 0..4 {
                    sum[c] = d_d[k].fma(a_k[c], sum[c]);
                }
            }
            t[m] = sum;
            for k in 0..m2 {
                for c in 0..4 {
                    t[k][c] = d_d[k].fma(a_m[c], t[k][c]);
                }
            }
        }
    }
}

/// `[4, M1]` to `[M1, 4]`.
pub fn gather<T: Real>(a_t: &mut [[T; 4]], a: &[T]) {
    let m1 = a_t.len();
    for (m, out) in a_t.iter_mut().enumerate() {
        *out = std::array::from_fn(|c| a[c * m1 + m]);
    }
}

/// `[M1, 4]` to `[4, M1]`.
pub fn scatter<T: Real>(a: &mut [T], a_t: &[[T; 4]]) {
    let m1 = a_t.len();
    for (m, x) in a_t.iter().enumerate() {
        for c in 0..4 {
            a[c * m1 + m] = x[c];
        }
    }
}
