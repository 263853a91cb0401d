//! Sums over the pairs of an atom with one Chebyshev term in each lane.
//!
//! `sum[c, k] += a_j[c] T_k(x_j) + b_j[c] T_k'(x_j)`. The sums stay in registers while the pairs go by; a vector of
//! terms leads to the next one by `T_{k+W} = 2 T_W T_k - T_{k-W}`, where W is the width of a vector, and one of slopes by
//! the derivative of that.

use super::pairs::CHUNK;
use super::real::Real;
use super::simd::{Simd, by_instruction_set};

/// The widest vector of any instruction set.
pub const WIDEST: usize = 16;

/// A chunk of pairs, pair after pair; their env has C components, 1 or 4.
pub struct Terms<T, const C: usize> {
    /// Two vectors for each pair: T_0 .. T_{W-1}, and those before, T_{-W} .. T_{-1} = T_W .. T_1.
    t: [T; 2 * WIDEST * CHUNK],
    /// The same of the slopes T_k'.
    u: [T; 2 * WIDEST * CHUNK],
    /// Factors of T_k and of T_k', for the components of env.
    pub a: [[T; C]; CHUNK],
    pub b: [[T; C]; CHUNK],
}

impl<T: Real, const C: usize> Default for Terms<T, C> {
    fn default() -> Self {
        let none = [T::ZERO; 2 * WIDEST * CHUNK];
        Terms { t: none, u: none, a: [[T::ZERO; C]; CHUNK], b: [[T::ZERO; C]; CHUNK] }
    }
}

impl<T: Real, const C: usize> Terms<T, C> {
    /// Adds the sums of the first `n` pairs, whose arguments are `x`, to `out[c * stride + k]`.
    #[inline(always)]
    pub fn add_to(
        &mut self,
        out: &mut [T],
        stride: usize,
        terms: usize,
        x: &[T; CHUNK],
        n: usize,
        with_slopes: bool,
    ) {
        const { assert!(C == 1 || C == 4, "the kernels know env of one or of four components") };
        assert!(out.len() >= (C - 1) * stride + terms && n <= CHUNK, "room for the sums of a chunk");
        let (t, u) = (self.t.as_mut_ptr(), self.u.as_mut_ptr());
        let (a, b) = (self.a.as_ptr().cast(), self.b.as_ptr().cast());
        let (out, x, components) = (out.as_mut_ptr(), x.as_ptr(), C);
        let raw = Walk { out, stride, terms, n, x, t, u, a, b, components, with_slopes };
        // SAFETY: the bounds were checked above, and the buffers are large enough for every width.
        unsafe { T::walk_kernel(raw) }
    }
}

/// The arguments of the kernel after the bounds were checked.
#[derive(Clone, Copy)]
pub struct Walk<T> {
    out: *mut T,
    stride: usize,
    terms: usize,
    n: usize,
    x: *const T,
    t: *mut T,
    u: *mut T,
    a: *const T,
    b: *const T,
    components: usize,
    with_slopes: bool,
}

by_instruction_set! {
    /// # Safety
    /// The arguments must describe memory that [`Terms::add_to`] has checked.
    unsafe fn dispatch_f64(Walk<f64>) = run;
    /// # Safety
    /// As for [`dispatch_f64`].
    unsafe fn dispatch_f32(Walk<f32>) = run;
}

#[inline(always)]
unsafe fn run<T: Real, S: Simd<T = T>>(raw: Walk<T>) {
    unsafe {
        if raw.with_slopes {
            start::<T, S, true>(raw);
        } else {
            start::<T, S, false>(raw);
        }
        match (raw.components, raw.with_slopes) {
            (1, true) => blocks::<T, S, 1, true>(raw),
            (1, false) => blocks::<T, S, 1, false>(raw),
            (_, true) => blocks::<T, S, 4, true>(raw),
            (_, false) => blocks::<T, S, 4, false>(raw),
        }
    }
}

/// Starts the recurrences of the pairs: T_0 .. T_W with a pair in each lane, turned so that a pair has them in a row.
#[inline(always)]
unsafe fn start<T: Real, S: Simd<T = T>, const SLOPES: bool>(raw: Walk<T>) {
    unsafe {
        let (zero, one) = (S::splat(T::ZERO), S::splat(T::ONE));
        let two = S::add(one, one);
        for first in (0..raw.n).step_by(S::LANES) {
            let x = S::load(raw.x.add(first));
            let twice = S::add(x, x);
            let (mut t, mut u) = ([zero; WIDEST + 1], [zero; WIDEST + 1]);
            (t[0], t[1], u[1]) = (one, x, one);
            for k in 2..=S::LANES {
                t[k] = S::mul_sub(twice, t[k - 1], t[k - 2]);
                if SLOPES {
                    u[k] = S::mul_add(twice, u[k - 1], S::mul_sub(two, t[k - 1], u[k - 2]));
                }
            }
            deal::<T, S>(raw.t.add(first * 2 * S::LANES), &t);
            if SLOPES {
                deal::<T, S>(raw.u.add(first * 2 * S::LANES), &u);
            }
        }
    }
}

/// Gives each pair its terms: 0 .. W - 1, and then W .. 1.
#[inline(always)]
unsafe fn deal<T: Real, S: Simd<T = T>>(out: *mut T, terms: &[S::V; WIDEST + 1]) {
    let width = 2 * S::LANES;
    for first in (0..width).step_by(8) {
        let mut rows = [terms[0]; 8];
        for r in 0..8 {
            let k = first + r;
            rows[r] = terms[if k < S::LANES { k } else { width - k }];
        }
        unsafe { S::store_transposed(out.add(first), width, rows, S::LANES) };
    }
}

/// Some vectors of terms at a time, so that their sums fit into the registers: 32 of 512 bits, 16 otherwise.
#[inline(always)]
unsafe fn blocks<T: Real, S: Simd<T = T>, const C: usize, const SLOPES: bool>(raw: Walk<T>) {
    let n_blocks = raw.terms.div_ceil(S::LANES);
    let most = match (size_of::<S::V>() < 64, SLOPES) {
        (true, _) => 3,
        (false, true) => 4,
        (false, false) => 6,
    };
    let mut first = 0;
    while first < n_blocks {
        unsafe {
            match (n_blocks - first).min(most) {
                1 => pass::<T, S, 1, C, SLOPES>(raw, first),
                2 => pass::<T, S, 2, C, SLOPES>(raw, first),
                3 => pass::<T, S, 3, C, SLOPES>(raw, first),
                4 => pass::<T, S, 4, C, SLOPES>(raw, first),
                5 => pass::<T, S, 5, C, SLOPES>(raw, first),
                _ => pass::<T, S, 6, C, SLOPES>(raw, first),
            }
        }
        first += most;
    }
}

/// All pairs for `NB` vectors of terms.
#[inline(always)]
unsafe fn pass<T: Real, S: Simd<T = T>, const NB: usize, const C: usize, const SLOPES: bool>(
    raw: Walk<T>,
    first: usize,
) {
    unsafe {
        let zero = S::splat(T::ZERO);
        let width = S::LANES;
        let mut sum = [[zero; C]; NB];
        for p in 0..raw.n {
            let t = raw.t.add(p * 2 * width);
            let u = raw.u.add(p * 2 * width);
            let twice = |x: T| S::splat(x + x);
            let (turn, turn_slope) = (twice(*t.add(width)), if SLOPES { twice(*u.add(width)) } else { zero });
            let (mut now, mut old) = (S::load(t), S::load(t.add(width)));
            let (mut slope, mut slope_old) =
                if SLOPES { (S::load(u), S::load(u.add(width))) } else { (zero, zero) };
            let next_slope =
                |now, slope, slope_old| S::mul_add(turn_slope, now, S::mul_sub(turn, slope, slope_old));
            for _ in 0..first {
                if SLOPES {
                    (slope, slope_old) = (next_slope(now, slope, slope_old), slope);
                }
                (now, old) = (S::mul_sub(turn, now, old), now);
            }
            for m in 0..NB {
                for c in 0..C {
                    sum[m][c] = S::mul_add(S::splat(*raw.a.add(C * p + c)), now, sum[m][c]);
                }
                if SLOPES {
                    for c in 0..C {
                        sum[m][c] = S::mul_add(S::splat(*raw.b.add(C * p + c)), slope, sum[m][c]);
                    }
                    (slope, slope_old) = (next_slope(now, slope, slope_old), slope);
                }
                (now, old) = (S::mul_sub(turn, now, old), now);
            }
        }
        for (m, sum) in sum.iter().enumerate() {
            let k = (first + m) * width;
            let here = (raw.terms - k).min(width);
            for (c, sum) in sum.iter().enumerate() {
                let out = raw.out.add(c * raw.stride + k);
                if here == width {
                    S::store(out, S::add(S::load(out), *sum));
                } else {
                    S::store_partial(out, here, S::add(S::load_partial(out, here), *sum));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check<T: Real, const C: usize>(terms: usize, n: usize, tolerance: f64) {
        let x: [T; CHUNK] = std::array::from_fn(|l| T::from_f64((l as f64 * 0.83).sin()));
        let mut chunk = Terms::<T, C>::default();
        for l in 0..CHUNK {
            chunk.a[l] = std::array::from_fn(|c| T::from_f64(((l * 5 + c) as f64).cos()));
            chunk.b[l] = std::array::from_fn(|c| T::from_f64(((l * 3 + c) as f64).sin()));
        }
        for slopes in [false, true] {
            let mut out = vec![T::ONE; C * terms];
            chunk.add_to(&mut out, terms, terms, &x, n, slopes);
            for c in 0..C {
                for k in 0..terms {
                    let mut want = 1.0;
                    for l in 0..n {
                        let angle = x[l].to_f64().acos();
                        let (t, u) = ((k as f64 * angle).cos(), (k as f64 * angle).sin() / angle.sin());
                        want += chunk.a[l][c].to_f64() * t;
                        want += if slopes { chunk.b[l][c].to_f64() * k as f64 * u } else { 0.0 };
                    }
                    let got = out[c * terms + k].to_f64();
                    assert!(
                        (got - want).abs() < tolerance * (k * k + 1) as f64,
                        "{terms} {n} {c} {k}: {got} {want}"
                    );
                }
            }
        }
    }

    #[test]
    fn sums_agree_with_cosines_for_every_number_of_terms_and_pairs() {
        for terms in [16, 24, 40, 48, 64, 88, 112] {
            for n in [0, 1, 7, CHUNK] {
                check::<f64, 4>(terms, n, 1e-13);
                check::<f32, 4>(terms, n, 1e-5);
                check::<f64, 1>(terms, n, 1e-13);
                check::<f32, 1>(terms, n, 1e-5);
            }
        }
    }
}
