//! The work on pairs of the Chebyshev path.
//!
//! With the terms T_k(x_j) of neighbour j, `Q[c, k] = sum_j T_k(x_j) row_j[c]` holds the geometry of an atom and no
//! parameter. Forces need `P_c(x) = sum_k dE/dQ[c, k] T_k(x)` and its derivative; the second pass needs the change
//! of Q. Lanes are neighbours: each kernel walks the recurrences of T_k and U_k for a chunk of pairs at once.

use super::real::Real;
use super::simd::multiversion;

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

/// The change of variables from s to the argument of the polynomials.
#[derive(Debug, Clone, Copy)]
pub struct Scale<T> {
    pub middle: T,
    pub inv_half: T,
}

type Lanes<T> = [T; CHUNK];

#[inline(always)]
fn lanes<T: Real>(column: &[T], start: usize, n: usize, fill: T) -> Lanes<T> {
    let mut out = [fill; CHUNK];
    if n == CHUNK {
        out.copy_from_slice(&column[start..start + CHUNK]);
    } else {
        out[..n].copy_from_slice(&column[start..start + n]);
    }
    out
}

/// A chunk of pairs; unused lanes have rows of zeros.
struct Chunk<T> {
    d: [Lanes<T>; 3],
    /// The radial component of the row, (s - davg) / dstd: also the argument of the net.
    s: Lanes<T>,
    /// s' / (r dstd)
    s_slope: Lanes<T>,
    /// q / dstd, so that the other components of the row are `q d`.
    q: Lanes<T>,
    /// q' / (r dstd)
    q_slope: Lanes<T>,
}

impl<T: Real> Chunk<T> {
    /// The formulas of `engine/reference/env.rs`, lane by lane.
    #[inline(always)]
    fn new(columns: &[Vec<T>; 3], start: usize, n: usize, rows: &Rows<T>) -> Self {
        let number = T::from_f64;
        // Unused lanes get a harmless distance, and are taken off by the mask.
        let d = [0, 1, 2].map(|k| lanes(&columns[k], start, n, T::ONE));
        let mask: Lanes<T> = std::array::from_fn(|l| if l < n { T::ONE } else { T::ZERO });
        let zero = [T::ZERO; CHUNK];
        let mut out = Chunk { d, s: zero, s_slope: zero, q: zero, q_slope: zero };
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
        }
        out
    }
}

#[inline(always)]
fn argument<T: Real>(s: &Lanes<T>, scale: Scale<T>) -> Lanes<T> {
    std::array::from_fn(|l| (s[l] - scale.middle) * scale.inv_half)
}

/// Adds `a T_k + b T_k'` for every k to `sums[k]`, lane by lane; a and b are given for each component of the row.
#[inline(always)]
fn accumulate<T: Real>(
    sums: &mut [[Lanes<T>; 4]],
    x: &Lanes<T>,
    a: &[Lanes<T>; 4],
    b: Option<&[Lanes<T>; 4]>,
) {
    let two_x: Lanes<T> = std::array::from_fn(|l| x[l] + x[l]);
    // T_k and T_{k-1}; U_{k-1} and U_{k-2}, with T_k' = k U_{k-1}.
    let (mut t, mut t_old) = ([T::ONE; CHUNK], *x);
    let (mut u, mut u_old) = ([T::ZERO; CHUNK], [-T::ONE; CHUNK]);
    let mut k_number = T::ZERO;
    for sum in sums.iter_mut() {
        for c in 0..4 {
            for l in 0..CHUNK {
                sum[c][l] = t[l].fma(a[c][l], sum[c][l]);
            }
        }
        if let Some(b) = b {
            for c in 0..4 {
                for l in 0..CHUNK {
                    sum[c][l] = (k_number * u[l]).fma(b[c][l], sum[c][l]);
                }
            }
        }
        for l in 0..CHUNK {
            let next = two_x[l].fma(t[l], -t_old[l]);
            t_old[l] = t[l];
            t[l] = next;
            let next = two_x[l].fma(u[l], -u_old[l]);
            u_old[l] = u[l];
            u[l] = next;
        }
        k_number += T::ONE;
    }
}

/// Writes the lane sums of `sums[k][c]` to `out[c * stride + k]`.
#[inline(always)]
fn reduce<T: Real>(out: &mut [T], stride: usize, sums: &[[Lanes<T>; 4]]) {
    for (k, sum) in sums.iter().enumerate() {
        for c in 0..4 {
            let mut v = sum[c];
            let mut width = CHUNK / 2;
            while width > 0 {
                for l in 0..width {
                    v[l] += v[l + width];
                }
                width /= 2;
            }
            out[c * stride + k] = v[0];
        }
    }
}

multiversion! {
    /// Q of one atom and one neighbour type.
    ///
    /// - out     overwritten  `out[c * stride + k]`
    /// - sums    scratch      `[K]`
    /// - pairs   `start .. start + n` of the columns of distance vectors
    pub fn features<T: Real>(out: &mut [T], stride: usize, sums: &mut [[[T; CHUNK]; 4]], columns: &[Vec<T>; 3], rows: &Rows<T>, start: usize, n: usize, scale: Scale<T>) {
        sums.fill([[T::ZERO; CHUNK]; 4]);
        let mut p = start;
        while p < start + n {
            let here = CHUNK.min(start + n - p);
            let Chunk { d, s, q, .. } = Chunk::new(columns, p, here, rows);
            let row: [[T; CHUNK]; 4] =
                std::array::from_fn(|c| if c == 0 { s } else { std::array::from_fn(|l| q[l] * d[c - 1][l]) });
            accumulate(sums, &argument(&s, scale), &row, None);
            p += here;
        }
        reduce(out, stride, sums);
    }
}

multiversion! {
    /// The change of Q of one atom and one neighbour type when the distance vectors move along `d_dot`.
    ///
    /// `d_dot[k][p - first]` belongs to pair p.
    pub fn features_tangent<T: Real>(out: &mut [T], stride: usize, sums: &mut [[[T; CHUNK]; 4]], columns: &[Vec<T>; 3], rows: &Rows<T>, d_dot: [&[T]; 3], first: usize, start: usize, n: usize, scale: Scale<T>) {
        sums.fill([[T::ZERO; CHUNK]; 4]);
        let mut p = start;
        while p < start + n {
            let here = CHUNK.min(start + n - p);
            let Chunk { d, s, s_slope, q, q_slope } = Chunk::new(columns, p, here, rows);
            let v = [0, 1, 2].map(|k| lanes(d_dot[k], p - first, here, T::ZERO));
            // d . d_dot = r r_dot
            let rr: [T; CHUNK] = std::array::from_fn(|l| d[0][l] * v[0][l] + d[1][l] * v[1][l] + d[2][l] * v[2][l]);
            let s_dot: [T; CHUNK] = std::array::from_fn(|l| s_slope[l] * rr[l]);
            let row_dot: [[T; CHUNK]; 4] = std::array::from_fn(|c| {
                if c == 0 {
                    s_dot
                } else {
                    std::array::from_fn(|l| q[l] * v[c - 1][l] + q_slope[l] * rr[l] * d[c - 1][l])
                }
            });
            let turn: [[T; CHUNK]; 4] = std::array::from_fn(|c| {
                std::array::from_fn(|l| {
                    scale.inv_half * s_dot[l] * if c == 0 { s[l] } else { q[l] * d[c - 1][l] }
                })
            });
            accumulate(sums, &argument(&s, scale), &row_dot, Some(&turn));
            p += here;
        }
        reduce(out, stride, sums);
    }
}

multiversion! {
    /// dE/dd of the pairs of one atom and one neighbour type.
    ///
    /// - de_d   out, overwritten for the pairs at hand
    /// - de_q   `de_q[c * stride + k]` = dE/dQ[c, k]
    pub fn forces<T: Real>(de_d: [&mut [T]; 3], de_q: &[T], stride: usize, terms: usize, columns: &[Vec<T>; 3], rows: &Rows<T>, start: usize, n: usize, scale: Scale<T>) {
        let [de_x, de_y, de_z] = de_d;
        let de_q: [&[T]; 4] = std::array::from_fn(|c| &de_q[c * stride..c * stride + terms]);
        let mut p = start;
        while p < start + n {
            let here = CHUNK.min(start + n - p);
            let Chunk { d, s, s_slope, q, q_slope } = Chunk::new(columns, p, here, rows);
            let x = argument(&s, scale);
            let mut value = [[T::ZERO; CHUNK]; 4];
            let mut slope = [[T::ZERO; CHUNK]; 4];
            let (mut t, mut t_old) = ([T::ONE; CHUNK], x);
            let (mut u, mut u_old) = ([T::ZERO; CHUNK], [-T::ONE; CHUNK]);
            let mut k_number = T::ZERO;
            for k in 0..terms {
                for c in 0..4 {
                    let (e, ke) = (de_q[c][k], k_number * de_q[c][k]);
                    for l in 0..CHUNK {
                        value[c][l] = t[l].fma(e, value[c][l]);
                        slope[c][l] = u[l].fma(ke, slope[c][l]);
                    }
                }
                for l in 0..CHUNK {
                    let two_x = x[l] + x[l];
                    let next = two_x.fma(t[l], -t_old[l]);
                    t_old[l] = t[l];
                    t[l] = next;
                    let next = two_x.fma(u[l], -u_old[l]);
                    u_old[l] = u[l];
                    u[l] = next;
                }
                k_number += T::ONE;
            }
            let mut out = [[T::ZERO; CHUNK]; 3];
            for l in 0..CHUNK {
                let turn = slope[0][l] * s[l] + q[l] * (slope[1][l] * d[0][l] + slope[2][l] * d[1][l] + slope[3][l] * d[2][l]);
                let de_s = value[0][l] + scale.inv_half * turn;
                let along = value[1][l] * d[0][l] + value[2][l] * d[1][l] + value[3][l] * d[2][l];
                let radial = s_slope[l] * de_s + q_slope[l] * along;
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
