//! Some series at a chunk of arguments, with an argument in each lane.

use super::pairs::CHUNK;
use super::real::Real;
use super::simd::{Simd, by_instruction_set};

/// `out[c][l] = sum_k series[N k + c] T_k(x[l])` for the first `n` arguments; what follows in `out` may be written too. N is 1
/// or 8.
#[inline(always)]
pub fn evaluate<T: Real, const N: usize>(out: &mut [[T; CHUNK]; N], series: &[T], x: &[T; CHUNK], n: usize) {
    const { assert!(N == 1 || N == 8, "the kernels know one series or eight") };
    assert!(n <= CHUNK, "the arguments of a chunk");
    let (out, terms) = (out.as_mut_ptr().cast(), series.len() / N);
    let raw = Evaluate { out, series: series.as_ptr(), n_series: N, terms, x: x.as_ptr(), n };
    // SAFETY: the arrays have these sizes, and a chunk is a whole number of vectors of every width.
    unsafe { T::evaluate_kernel(raw) }
}

/// The arguments of the kernel.
#[derive(Clone, Copy)]
pub struct Evaluate<T> {
    out: *mut T,
    series: *const T,
    n_series: usize,
    terms: usize,
    x: *const T,
    n: usize,
}

by_instruction_set! {
    /// # Safety
    /// The arguments must come from [`evaluate`].
    unsafe fn dispatch_f64(Evaluate<f64>) = run;
    /// # Safety
    /// As for [`dispatch_f64`].
    unsafe fn dispatch_f32(Evaluate<f32>) = run;
}

#[inline(always)]
unsafe fn run<T: Real, S: Simd<T = T>>(raw: Evaluate<T>) {
    unsafe {
        match raw.n_series {
            1 => run_series::<T, S, 1>(raw),
            _ => run_series::<T, S, 8>(raw),
        }
    }
}

/// Two vectors at a time where the sums of both fit into the registers.
#[inline(always)]
unsafe fn run_series<T: Real, S: Simd<T = T>, const N: usize>(raw: Evaluate<T>) {
    let fit = size_of::<S::V>() == 64 && CHUNK.is_multiple_of(2 * S::LANES);
    let mut at = 0;
    while at < raw.n {
        let two = fit && raw.n - at > S::LANES;
        unsafe {
            if two {
                pass::<T, S, 2, N>(raw, at);
            } else {
                pass::<T, S, 1, N>(raw, at);
            }
        }
        at += if two { 2 * S::LANES } else { S::LANES };
    }
}

/// `NV` vectors of arguments from `at` on.
#[inline(always)]
unsafe fn pass<T: Real, S: Simd<T = T>, const NV: usize, const N: usize>(raw: Evaluate<T>, at: usize) {
    unsafe {
        let zero = S::splat(T::ZERO);
        let mut sums = [[zero; NV]; N];
        let (mut now, mut old, mut twice) = ([S::splat(T::ONE); NV], [zero; NV], [zero; NV]);
        for v in 0..NV {
            old[v] = S::load(raw.x.add(at + v * S::LANES));
            twice[v] = S::add(old[v], old[v]);
        }
        for k in 0..raw.terms {
            for c in 0..N {
                let e = S::splat(*raw.series.add(N * k + c));
                for v in 0..NV {
                    sums[c][v] = S::mul_add(e, now[v], sums[c][v]);
                }
            }
            for v in 0..NV {
                (now[v], old[v]) = (S::mul_sub(twice[v], now[v], old[v]), now[v]);
            }
        }
        for (c, sums) in sums.iter().enumerate() {
            for (v, sum) in sums.iter().enumerate() {
                S::store(raw.out.add(c * CHUNK + at + v * S::LANES), *sum);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check<T: Real, const N: usize>(terms: usize, n: usize, tolerance: f64) {
        let x: [T; CHUNK] = std::array::from_fn(|l| T::from_f64((l as f64 * 0.83).sin()));
        let series: Vec<T> = (0..N * terms).map(|k| T::from_f64((k as f64 * 1.7).cos())).collect();
        let mut out = [[T::ZERO; CHUNK]; N];
        evaluate(&mut out, &series, &x, n);
        for c in 0..N {
            for l in 0..n {
                let angle = x[l].to_f64().acos();
                let want: f64 =
                    (0..terms).map(|k| series[N * k + c].to_f64() * (k as f64 * angle).cos()).sum();
                let got = out[c][l].to_f64();
                assert!((got - want).abs() < tolerance * terms as f64, "{terms} {n} {c} {l}: {got} {want}");
            }
        }
    }

    #[test]
    fn values_agree_with_cosines_for_every_number_of_terms() {
        for terms in [1, 2, 16, 24, 88, 192] {
            for n in [1, 5, 8, 11, CHUNK] {
                check::<f64, 8>(terms, n, 1e-13);
                check::<f32, 8>(terms, n, 2e-5);
                check::<f64, 1>(terms, n, 1e-13);
                check::<f32, 1>(terms, n, 2e-5);
            }
        }
    }
}
