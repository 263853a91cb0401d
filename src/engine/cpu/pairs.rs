//! The work on pairs of the Chebyshev path, where env is the row of the environment matrix; `distances.rs` has it where env is 1.
//!
//! With the terms T_k(x_j) of neighbour j, `Q[c, k] = sum_j T_k(x_j) row_j[c]` holds the geometry of an atom and no
//! parameter. Forces need `P_c(x) = sum_k dE/dQ[c, k] T_k(x)` and its derivative; the second pass needs the change
//! of Q. Rows and forces are made for a chunk of pairs at once, a neighbour in each lane; sums over pairs have a term in
//! each lane (`walk.rs`).

use super::evaluate::evaluate;
use super::real::Real;
use super::simd::multiversion;
use super::walk::Terms;

/// Pairs that are worked on at once.
pub const CHUNK: usize = 16;

/// What turns a distance vector into a row of the environment matrix, for one type of centre.
///
/// Rows are made anew in every pass: that costs a few operations for each pair, keeping them would more than double the
/// memory of a frame.
#[derive(Debug, Clone, Copy)]
pub struct Rows<T> {
    pub rcut_smth: T,
    /// 1 / (rcut - rcut_smth)
    pub inv_width: T,
    pub protection: T,
    pub davg: T,
    /// 1 / dstd of the radial and of the other components.
    pub inv_radial: T,
    pub inv_angular: T,
}

/// The change of variables from s to the argument of the polynomials: see [`super::chebyshev::Plan::argument`].
#[derive(Debug, Clone, Copy)]
pub struct Scale<T> {
    pub middle: T,
    pub inv_half: T,
    pub skew: T,
    /// `(1 - skew^2) / half`
    pub slope: T,
}

pub(super) type Lanes<T> = [T; CHUNK];

#[inline(always)]
pub(super) fn lanes<T: Real>(column: &[T], start: usize, n: usize, fill: T) -> Lanes<T> {
    let mut out = [fill; CHUNK];
    match column.get(start..start + CHUNK) {
        // Of a known length it is a few vectors and no call.
        Some(column) => {
            for l in 0..CHUNK {
                out[l] = if l < n { column[l] } else { fill };
            }
        }
        None => out[..n].copy_from_slice(&column[start..start + n]),
    }
    out
}

/// A chunk of pairs; unused lanes have rows of zeros.
pub(super) struct Chunk<T> {
    pub d: [Lanes<T>; 3],
    /// The radial component of the row, (s - davg) / dstd: also the argument of the net.
    pub s: Lanes<T>,
    /// s' / (r dstd)
    pub s_slope: Lanes<T>,
    /// q / dstd, so that the other components of the row are `q d`.
    q: Lanes<T>,
    /// q' / (r dstd)
    q_slope: Lanes<T>,
    /// The switch w, and w' / r.
    w: Lanes<T>,
    w_slope: Lanes<T>,
}

impl<T: Real> Chunk<T> {
    /// The formulas of `engine/reference/env.rs`, lane by lane.
    #[inline(always)]
    pub fn new(columns: &[Vec<T>; 3], start: usize, n: usize, rows: &Rows<T>) -> Self {
        let number = T::from_f64;
        // Unused lanes get a harmless distance, and are taken off by the mask.
        let [x, y, z] = columns;
        let d = [lanes(x, start, n, T::ONE), lanes(y, start, n, T::ONE), lanes(z, start, n, T::ONE)];
        let mut mask = [T::ZERO; CHUNK];
        for l in 0..CHUNK {
            mask[l] = if l < n { T::ONE } else { T::ZERO };
        }
        let zero = [T::ZERO; CHUNK];
        let mut out = Chunk { d, s: zero, s_slope: zero, q: zero, q_slope: zero, w: zero, w_slope: zero };
        for l in 0..CHUNK {
            let r = (d[0][l] * d[0][l] + d[1][l] * d[1][l] + d[2][l] * d[2][l]).sqrt();
            let x = (r - rows.rcut_smth) * rows.inv_width;
            let x = if x < T::ZERO { T::ZERO } else { x };
            let x = if x > T::ONE { T::ONE } else { x };
            let w = x * x * x * ((number(15.0) - number(6.0) * x) * x - number(10.0)) + T::ONE;
            let w_r = x * x * ((number(60.0) - number(30.0) * x) * x - number(30.0)) * rows.inv_width;
            let inv = T::ONE / (r + rows.protection);
            let inv_r = mask[l] / r;
            let s = w * inv;
            let q = s * inv;
            out.s[l] = mask[l] * (s - rows.davg) * rows.inv_radial;
            out.s_slope[l] = (w_r - s) * inv * inv_r * rows.inv_radial;
            out.q[l] = mask[l] * q * rows.inv_angular;
            out.q_slope[l] = (w_r * inv - (q + q)) * inv * inv_r * rows.inv_angular;
            out.w[l] = mask[l] * w;
            out.w_slope[l] = w_r * inv_r;
        }
        out
    }
}

/// The argument of the polynomials, and its slope with s.
#[inline(always)]
pub(super) fn argument<T: Real>(s: &Lanes<T>, scale: Scale<T>) -> (Lanes<T>, Lanes<T>) {
    let (mut x, mut slope) = ([T::ZERO; CHUNK], [T::ZERO; CHUNK]);
    for l in 0..CHUNK {
        let y = (s[l] - scale.middle) * scale.inv_half;
        let inv = T::ONE / (T::ONE + scale.skew * y);
        x[l] = (y + scale.skew) * inv;
        slope[l] = scale.slope * inv * inv;
    }
    (x, slope)
}

multiversion! {
    /// Q of one atom and one neighbour type.
    ///
    /// - out     overwritten  `out[c * stride + k]`
    /// - walk    working memory
    /// - pairs   `start .. start + n` of the columns of distance vectors
    /// - switched  whether rows are multiplied by the switch
    pub fn features<T: Real>(out: &mut [T], walk: &mut Terms<T, 4>, stride: usize, terms: usize, columns: &[Vec<T>; 3], rows: &Rows<T>, start: usize, n: usize, scale: Scale<T>, switched: bool) {
        (0..4).for_each(|c| out[c * stride..c * stride + terms].fill(T::ZERO));
        let mut p = start;
        while p < start + n {
            let here = CHUNK.min(start + n - p);
            let Chunk { d, s, q, w, .. } = Chunk::new(columns, p, here, rows);
            for l in 0..CHUNK {
                walk.a[l] = [s[l], q[l] * d[0][l], q[l] * d[1][l], q[l] * d[2][l]];
            }
            if switched {
                for l in 0..CHUNK {
                    walk.a[l] = walk.a[l].map(|a| w[l] * a);
                }
            }
            walk.add_to(out, stride, terms, &argument(&s, scale).0, here, false);
            p += here;
        }
    }
}

multiversion! {
    /// The change of Q of one atom and one neighbour type when the distance vectors move along `d_dot`.
    ///
    /// `d_dot[k][p - first]` belongs to pair p.
    pub fn features_tangent<T: Real>(out: &mut [T], walk: &mut Terms<T, 4>, stride: usize, terms: usize, columns: &[Vec<T>; 3], rows: &Rows<T>, d_dot: [&[T]; 3], first: usize, start: usize, n: usize, scale: Scale<T>, switched: bool) {
        (0..4).for_each(|c| out[c * stride..c * stride + terms].fill(T::ZERO));
        let mut p = start;
        while p < start + n {
            let here = CHUNK.min(start + n - p);
            let Chunk { d, s, s_slope, q, q_slope, w, w_slope } = Chunk::new(columns, p, here, rows);
            let (x, slope) = argument(&s, scale);
            let at = p - first;
            let v = [lanes(d_dot[0], at, here, T::ZERO), lanes(d_dot[1], at, here, T::ZERO), lanes(d_dot[2], at, here, T::ZERO)];
            for l in 0..CHUNK {
                // d . d_dot = r r_dot
                let rr = d[0][l] * v[0][l] + d[1][l] * v[1][l] + d[2][l] * v[2][l];
                let s_dot = s_slope[l] * rr;
                let (along, turn) = (q_slope[l] * rr, slope[l] * s_dot);
                walk.a[l] = [
                    s_dot,
                    q[l] * v[0][l] + along * d[0][l],
                    q[l] * v[1][l] + along * d[1][l],
                    q[l] * v[2][l] + along * d[2][l],
                ];
                let turn_q = turn * q[l];
                walk.b[l] = [turn * s[l], turn_q * d[0][l], turn_q * d[1][l], turn_q * d[2][l]];
                if switched {
                    let (w_dot, row) = (w_slope[l] * rr, [s[l], q[l] * d[0][l], q[l] * d[1][l], q[l] * d[2][l]]);
                    for c in 0..4 {
                        walk.a[l][c] = w[l] * walk.a[l][c] + w_dot * row[c];
                        walk.b[l][c] = w[l] * walk.b[l][c];
                    }
                }
            }
            walk.add_to(out, stride, terms, &x, here, true);
            p += here;
        }
    }
}

multiversion! {
    /// The coefficients of P_c and of their derivatives, both in T_k: `out[8 k + c]` and `out[8 k + 4 + c]`.
    ///
    /// With `P = sum_k e_k T_k`, the derivative has f_{k-1} = f_{k+1} + 2 k e_k, and half of that for k = 1.
    pub fn with_derivatives<T: Real>(out: &mut [T], de_q: &[T], stride: usize, terms: usize) {
        let e: [&[T]; 4] = std::array::from_fn(|c| &de_q[c * stride..c * stride + terms]);
        let out = &mut out[..8 * terms];
        let (mut f, mut f_next) = ([T::ZERO; 4], [T::ZERO; 4]);
        let mut twice_k = T::from_f64(2.0 * terms as f64);
        for k in (0..terms).rev() {
            let row = &mut out[8 * k..8 * k + 8];
            let half = if k == 0 { T::from_f64(0.5) } else { T::ONE };
            twice_k -= T::ONE + T::ONE;
            for c in 0..4 {
                row[c] = e[c][k];
                row[4 + c] = f[c] * half;
                // f_{k-1}, from f_{k+1}
                let before = twice_k.fma(e[c][k], f_next[c]);
                f_next[c] = f[c];
                f[c] = before;
            }
        }
    }
}

multiversion! {
    /// dE/dd of the pairs of one atom and one neighbour type.
    ///
    /// - de_d     out, overwritten for the pairs at hand
    /// - series   dE/dQ as [`with_derivatives`] arranges it, `[terms, 8]`; and where rows multiplied by the switch have another, that
    pub fn forces<T: Real>(de_d: [&mut [T]; 3], series: &[T], switched: Option<&[T]>, terms: usize, columns: &[Vec<T>; 3], rows: &Rows<T>, start: usize, n: usize, scale: Scale<T>) {
        let [de_x, de_y, de_z] = de_d;
        let series = &series[..8 * terms];
        let mut p = start;
        while p < start + n {
            let here = CHUNK.min(start + n - p);
            let Chunk { d, s, s_slope, q, q_slope, w, w_slope } = Chunk::new(columns, p, here, rows);
            let (x, x_slope) = argument(&s, scale);
            let mut sums = [[T::ZERO; CHUNK]; 8];
            evaluate(&mut sums, series, &x, here);
            // dE by the switch, times its slope.
            let mut by_switch = [T::ZERO; CHUNK];
            if let Some(switched) = switched {
                let mut more = [[T::ZERO; CHUNK]; 8];
                evaluate(&mut more, &switched[..8 * terms], &x, here);
                for l in 0..CHUNK {
                    let angular = more[1][l] * d[0][l] + more[2][l] * d[1][l] + more[3][l] * d[2][l];
                    by_switch[l] = w_slope[l] * (more[0][l] * s[l] + q[l] * angular);
                }
                for c in 0..8 {
                    for l in 0..CHUNK {
                        sums[c][l] += w[l] * more[c][l];
                    }
                }
            }
            let [value, slope]: [[Lanes<T>; 4]; 2] = [[sums[0], sums[1], sums[2], sums[3]], [sums[4], sums[5], sums[6], sums[7]]];
            let mut out = [[T::ZERO; CHUNK]; 3];
            for l in 0..CHUNK {
                let turn = slope[0][l] * s[l] + q[l] * (slope[1][l] * d[0][l] + slope[2][l] * d[1][l] + slope[3][l] * d[2][l]);
                let de_s = value[0][l] + x_slope[l] * turn;
                let along = value[1][l] * d[0][l] + value[2][l] * d[1][l] + value[3][l] * d[2][l];
                let radial = s_slope[l] * de_s + q_slope[l] * along + by_switch[l];
                for k in 0..3 {
                    out[k][l] = q[l] * value[k + 1][l] + radial * d[k][l];
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
