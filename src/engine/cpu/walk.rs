//! Sums over the pairs of an atom with one Chebyshev term in each lane.
//!
//! `sum[c, k] += a_j[c] T_k(x_j) + b_j[c] T_k'(x_j)`. The sums stay in registers while the pairs go by; a vector of
//! terms leads to the next one by `T_{k+W} = 2 T_W T_k - T_{k-W}`, where W is the width of a vector. The same rule holds
//! for U, and T_k' = k U_{k-1}.

use super::pairs::CHUNK;
use super::real::Real;
#[cfg(target_arch = "x86_64")]
use super::simd::{Avx2, Avx512};
use super::simd::{Isa, Portable, Simd, isa};

/// The widest vector of any instruction set.
pub const WIDEST: usize = 16;

/// A chunk of pairs, pair after pair.
pub struct Terms<T> {
    /// Two vectors for each pair: T_0 .. T_{W-1}, and those before, T_{-W} .. T_{-1} = T_W .. T_1.
    t: [T; 2 * WIDEST * CHUNK],
    /// The same of U_{k-1}: U_{-1} = 0 .. U_{W-2}, and -U_{W-1} .. -U_0.
    u: [T; 2 * WIDEST * CHUNK],
    /// Factors of T_k and of T_k', for the four components of a row.
    pub a: [[T; 4]; CHUNK],
    pub b: [[T; 4]; CHUNK],
}

impl<T: Real> Default for Terms<T> {
    fn default() -> Self {
        let none = [T::ZERO; 2 * WIDEST * CHUNK];
        Terms { t: none, u: none, a: [[T::ZERO; 4]; CHUNK], b: [[T::ZERO; 4]; CHUNK] }
    }
}

impl<T: Real> Terms<T> {
    /// Starts the recurrences at these arguments.
    #[inline(always)]
    pub fn start(&mut self, x: &[T; CHUNK], width: usize, with_slopes: bool) {
        let (mut now, mut old) = ([T::ONE; CHUNK], *x);
        for k in 0..=width {
            for l in 0..CHUNK {
                let pair = &mut self.t[l * 2 * width..(l + 1) * 2 * width];
                if k < width {
                    pair[k] = now[l];
                }
                if k > 0 {
                    pair[2 * width - k] = now[l];
                }
            }
            step(&mut now, &mut old, x);
        }
        if !with_slopes {
            return;
        }
        // U_{-1} and U_{-2}
        let (mut now, mut old) = ([T::ZERO; CHUNK], [-T::ONE; CHUNK]);
        for k in 0..=width {
            for l in 0..CHUNK {
                let pair = &mut self.u[l * 2 * width..(l + 1) * 2 * width];
                if k < width {
                    pair[k] = now[l];
                }
                if k > 0 {
                    pair[2 * width - k] = -now[l];
                }
            }
            step(&mut now, &mut old, x);
        }
    }

    /// Adds the sums of the first `n` pairs to `out[c * stride + k]`.
    #[inline(always)]
    pub fn add_to(&self, out: &mut [T], stride: usize, terms: usize, n: usize, with_slopes: bool) {
        assert!(out.len() >= 3 * stride + terms && n <= CHUNK, "room for the sums of a chunk");
        let (t, u) = (self.t.as_ptr(), self.u.as_ptr());
        let (a, b) = (self.a.as_ptr().cast(), self.b.as_ptr().cast());
        let raw = Walk { out: out.as_mut_ptr(), stride, terms, n, t, u, a, b, with_slopes };
        // SAFETY: the bounds were checked above, and the buffers are large enough for every width.
        unsafe { T::walk_kernel(raw) }
    }
}

/// The next term of a recurrence.
#[inline(always)]
fn step<T: Real>(now: &mut [T; CHUNK], old: &mut [T; CHUNK], x: &[T; CHUNK]) {
    for l in 0..CHUNK {
        let next = (x[l] + x[l]).fma(now[l], -old[l]);
        old[l] = now[l];
        now[l] = next;
    }
}

/// The arguments of the kernel after the bounds were checked.
#[derive(Clone, Copy)]
pub struct Walk<T> {
    out: *mut T,
    stride: usize,
    terms: usize,
    n: usize,
    t: *const T,
    u: *const T,
    a: *const T,
    b: *const T,
    with_slopes: bool,
}

macro_rules! dispatch {
    ($t:ty, $lanes:ident, $dispatch:ident) => {
        /// Numbers in one vector of the instruction set in use.
        pub(super) fn $lanes() -> usize {
            match isa() {
                #[cfg(target_arch = "x86_64")]
                Isa::Avx512 => Avx512::<$t>::LANES,
                #[cfg(target_arch = "x86_64")]
                Isa::Avx2 => Avx2::<$t>::LANES,
                _ => Portable::<$t>::LANES,
            }
        }

        /// Calls the kernel of the best instruction set.
        ///
        /// # Safety
        /// `raw` must describe memory that [`Terms::add_to`] has checked.
        pub(super) unsafe fn $dispatch(raw: Walk<$t>) {
            match isa() {
                #[cfg(target_arch = "x86_64")]
                Isa::Avx512 => unsafe { run_avx512::<$t, Avx512<$t>>(raw) },
                #[cfg(target_arch = "x86_64")]
                Isa::Avx2 => unsafe { run_avx2::<$t, Avx2<$t>>(raw) },
                _ => unsafe { run::<$t, Portable<$t>>(raw) },
            }
        }
    };
}
dispatch!(f64, lanes_f64, dispatch_f64);
dispatch!(f32, lanes_f32, dispatch_f32);

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512dq,avx512vl,avx512bw,avx2,fma")]
unsafe fn run_avx512<T: Real, S: Simd<T = T>>(raw: Walk<T>) {
    unsafe { run::<T, S>(raw) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn run_avx2<T: Real, S: Simd<T = T>>(raw: Walk<T>) {
    unsafe { run::<T, S>(raw) }
}

#[inline(always)]
unsafe fn run<T: Real, S: Simd<T = T>>(raw: Walk<T>) {
    unsafe { if raw.with_slopes { blocks::<T, S, true>(raw) } else { blocks::<T, S, false>(raw) } }
}

/// Some vectors of terms at a time, so that their sums fit into the registers.
#[inline(always)]
unsafe fn blocks<T: Real, S: Simd<T = T>, const SLOPES: bool>(raw: Walk<T>) {
    let n_blocks = raw.terms.div_ceil(S::LANES);
    let mut first = 0;
    while first < n_blocks {
        unsafe {
            match n_blocks - first {
                1 => pass::<T, S, 1, SLOPES>(raw, first),
                2 => pass::<T, S, 2, SLOPES>(raw, first),
                _ => pass::<T, S, 3, SLOPES>(raw, first),
            }
        }
        first += 3;
    }
}

/// All pairs for `NB` vectors of terms.
#[inline(always)]
unsafe fn pass<T: Real, S: Simd<T = T>, const NB: usize, const SLOPES: bool>(raw: Walk<T>, first: usize) {
    unsafe {
        let zero = S::splat(T::ZERO);
        let width = S::LANES;
        let mut sum = [[zero; 4]; NB];
        // The order of every vector: k, k + 1, ...
        let mut order = [zero; NB];
        if SLOPES {
            for (m, order) in order.iter_mut().enumerate() {
                let mut k = [T::ZERO; WIDEST];
                for (l, k) in k.iter_mut().enumerate() {
                    *k = T::from_f64(((first + m) * width + l) as f64);
                }
                *order = S::load(k.as_ptr());
            }
        }
        for p in 0..raw.n {
            let t = raw.t.add(p * 2 * width);
            let u = raw.u.add(p * 2 * width);
            let turn = *t.add(width);
            let turn = S::splat(turn + turn);
            let (mut now, mut old) = (S::load(t), S::load(t.add(width)));
            let (mut slope, mut slope_old) =
                if SLOPES { (S::load(u), S::load(u.add(width))) } else { (zero, zero) };
            for _ in 0..first {
                (now, old) = (S::mul_sub(turn, now, old), now);
                if SLOPES {
                    (slope, slope_old) = (S::mul_sub(turn, slope, slope_old), slope);
                }
            }
            for m in 0..NB {
                for c in 0..4 {
                    sum[m][c] = S::mul_add(S::splat(*raw.a.add(4 * p + c)), now, sum[m][c]);
                }
                (now, old) = (S::mul_sub(turn, now, old), now);
                if SLOPES {
                    let scaled = S::mul_add(order[m], slope, zero);
                    for c in 0..4 {
                        sum[m][c] = S::mul_add(S::splat(*raw.b.add(4 * p + c)), scaled, sum[m][c]);
                    }
                    (slope, slope_old) = (S::mul_sub(turn, slope, slope_old), slope);
                }
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

    fn check<T: Real>(terms: usize, n: usize, tolerance: f64) {
        let x: [T; CHUNK] = std::array::from_fn(|l| T::from_f64((l as f64 * 0.83).sin()));
        let mut chunk = Terms::<T>::default();
        for l in 0..CHUNK {
            chunk.a[l] = std::array::from_fn(|c| T::from_f64(((l * 5 + c) as f64).cos()));
            chunk.b[l] = std::array::from_fn(|c| T::from_f64(((l * 3 + c) as f64).sin()));
        }
        for slopes in [false, true] {
            chunk.start(&x, T::lanes(), slopes);
            let mut out = vec![T::ONE; 4 * terms];
            chunk.add_to(&mut out, terms, terms, n, slopes);
            for c in 0..4 {
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
        for terms in [16, 24, 40, 48, 64] {
            for n in [0, 1, 7, CHUNK] {
                check::<f64>(terms, n, 1e-13);
                check::<f32>(terms, n, 1e-5);
            }
        }
    }
}
