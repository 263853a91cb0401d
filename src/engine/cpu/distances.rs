//! The work on pairs of the Chebyshev path where env is the number 1: `Q[k] = sum_j T_k(x_j)`.
//!
//! As `pairs.rs` with one component, and nothing but the slopes of the series in forces.

use super::evaluate::evaluate;
use super::pairs::{CHUNK, Chunk, Rows, Scale, argument, lanes};
use super::real::Real;
use super::simd::multiversion;
use super::walk::Terms;

multiversion! {
    /// Q of one atom and one neighbour type: see [`super::pairs::features`].
    pub fn features<T: Real>(out: &mut [T], walk: &mut Terms<T, 1>, terms: usize, columns: &[Vec<T>; 3], rows: &Rows<T>, start: usize, n: usize, scale: Scale<T>) {
        out[..terms].fill(T::ZERO);
        walk.a = [[T::ONE]; CHUNK];
        let mut p = start;
        while p < start + n {
            let here = CHUNK.min(start + n - p);
            let s = Chunk::new(columns, p, here, rows).s;
            walk.add_to(out, terms, terms, &argument(&s, scale).0, here, false);
            p += here;
        }
    }
}

multiversion! {
    /// The change of Q when the distance vectors move along `d_dot`: see [`super::pairs::features_tangent`].
    pub fn features_tangent<T: Real>(out: &mut [T], walk: &mut Terms<T, 1>, terms: usize, columns: &[Vec<T>; 3], rows: &Rows<T>, d_dot: [&[T]; 3], first: usize, start: usize, n: usize, scale: Scale<T>) {
        out[..terms].fill(T::ZERO);
        walk.a = [[T::ZERO]; CHUNK];
        let mut p = start;
        while p < start + n {
            let here = CHUNK.min(start + n - p);
            let Chunk { d, s, s_slope, .. } = Chunk::new(columns, p, here, rows);
            let (x, slope) = argument(&s, scale);
            let at = p - first;
            let v = [lanes(d_dot[0], at, here, T::ZERO), lanes(d_dot[1], at, here, T::ZERO), lanes(d_dot[2], at, here, T::ZERO)];
            for l in 0..CHUNK {
                // d . d_dot = r r_dot
                let rr = d[0][l] * v[0][l] + d[1][l] * v[1][l] + d[2][l] * v[2][l];
                walk.b[l] = [slope[l] * (s_slope[l] * rr)];
            }
            walk.add_to(out, terms, terms, &x, here, true);
            p += here;
        }
    }
}

/// The coefficients of the derivative of `P = sum_k de_q[k] T_k`, in T_k: f_{k-1} = f_{k+1} + 2 k e_k, and half of that for k = 1.
pub fn derivative<T: Real>(out: &mut [T], de_q: &[T], terms: usize) {
    let (mut f, mut f_next) = (T::ZERO, T::ZERO);
    for k in (0..terms).rev() {
        out[k] = if k == 0 { T::from_f64(0.5) * f } else { f };
        (f, f_next) = (T::from_f64(2.0 * k as f64).fma(de_q[k], f_next), f);
    }
}

multiversion! {
    /// dE/dd of the pairs of one atom and one neighbour type: see [`super::pairs::forces`]. `series` comes from [`derivative`].
    pub fn forces<T: Real>(de_d: [&mut [T]; 3], series: &[T], columns: &[Vec<T>; 3], rows: &Rows<T>, start: usize, n: usize, scale: Scale<T>) {
        let [de_x, de_y, de_z] = de_d;
        let mut p = start;
        while p < start + n {
            let here = CHUNK.min(start + n - p);
            let Chunk { d, s, s_slope, .. } = Chunk::new(columns, p, here, rows);
            let (x, x_slope) = argument(&s, scale);
            let mut slope = [[T::ZERO; CHUNK]; 1];
            evaluate(&mut slope, series, &x, here);
            let mut out = [[T::ZERO; CHUNK]; 3];
            for l in 0..CHUNK {
                let radial = s_slope[l] * (x_slope[l] * slope[0][l]);
                for k in 0..3 {
                    out[k][l] = radial * d[k][l];
                }
            }
            let at = p - start;
            de_x[at..at + here].copy_from_slice(&out[0][..here]);
            de_y[at..at + here].copy_from_slice(&out[1][..here]);
            de_z[at..at + here].copy_from_slice(&out[2][..here]);
            p += here;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_derivative_of_a_series_agrees_with_central_differences() {
        let e: Vec<f64> = (0..24).map(|k| (k as f64 * 1.3).cos()).collect();
        let mut f = vec![0.0; 24];
        derivative(&mut f, &e, 24);
        let at = |c: &[f64], x: f64| -> f64 {
            c.iter().enumerate().map(|(k, c)| c * (k as f64 * x.acos()).cos()).sum()
        };
        for x in [-0.9, -0.3, 0.0, 0.4, 0.95] {
            let want = (at(&e, x + 1e-6) - at(&e, x - 1e-6)) / 2e-6;
            assert!((at(&f, x) - want).abs() < 1e-6 * (1.0 + want.abs()), "{x}: {} {want}", at(&f, x));
        }
    }
}
