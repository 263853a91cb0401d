//! Products of the small matrices of a PiNet: rows of some dozen numbers, all in the first cache.
//!
//! On AVX-512 a tile has as many columns as a layer is wide, up to four vectors, and nothing is asked for ahead; where C is
//! overwritten the last tile of rows overlaps the one before, so that no row is computed alone. Elsewhere it is
//! [`crate::engine::cpu::dense`], whose tiles are for long sums over weights from far: here they are a seventh slower. Every
//! number is one sum over k in order, whatever tile it falls into.

use crate::engine::cpu::dense::{self, Accumulate, Strided};
use crate::engine::cpu::real::Real;
#[cfg(target_arch = "x86_64")]
use crate::engine::cpu::simd::{Avx512, Isa, Simd, isa};

/// `C[m, n] (+)= A[m, k] B[k, n]`; C has rows of `ldc`, B rows of `ldb` numbers.
#[allow(clippy::too_many_arguments)]
pub fn product<T: Real>(
    c: &mut [T],
    ldc: usize,
    accumulate: Accumulate,
    a: Strided<T>,
    b: &[T],
    ldb: usize,
    m: usize,
    n: usize,
    k: usize,
) {
    #[cfg(target_arch = "x86_64")]
    if isa() == Isa::Avx512 && m > 0 && n > 0 && k > 0 {
        assert!(c.len() >= (m - 1) * ldc + n, "C has room for the product");
        assert!(a.data.len() > (m - 1) * a.row + (k - 1) * a.col, "A covers m x k");
        assert!(b.len() >= (k - 1) * ldb + n, "B covers k x n");
        let add = accumulate == Accumulate::Add;
        let (a_row, a_col) = (a.row, a.col);
        // SAFETY: the bounds were checked; `isa` says that the instructions are there; `Real` is float32 or float64, told
        // apart by their size.
        unsafe {
            let (c, a, b) = (c.as_mut_ptr(), a.data.as_ptr(), b.as_ptr());
            return match size_of::<T>() {
                4 => {
                    let (c, a, b) = (c.cast::<f32>(), a.cast::<f32>(), b.cast::<f32>());
                    run::<Avx512<f32>>(Raw { c, ldc, add, a, a_row, a_col, b, ldb, m, n, k })
                }
                _ => {
                    let (c, a, b) = (c.cast::<f64>(), a.cast::<f64>(), b.cast::<f64>());
                    run::<Avx512<f64>>(Raw { c, ldc, add, a, a_row, a_col, b, ldb, m, n, k })
                }
            };
        }
    }
    dense::product(c, ldc, accumulate, a, b, ldb, m, n, k);
}

/// The arguments after the bounds were checked.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
struct Raw<T> {
    c: *mut T,
    ldc: usize,
    add: bool,
    a: *const T,
    a_row: usize,
    a_col: usize,
    b: *const T,
    ldb: usize,
    m: usize,
    n: usize,
    k: usize,
}

/// Panels of columns.
///
/// # Safety
/// AVX-512 is there, and the memory was checked.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512dq,avx512vl,avx512bw,avx2,fma")]
unsafe fn run<S: Simd<T: Real>>(raw: Raw<S::T>) {
    let mut j = 0;
    while j < raw.n {
        let left = raw.n - j;
        // At most 24 sums, the vectors of B and one of A: within 32 registers.
        let columns = unsafe {
            match left.div_ceil(S::LANES) {
                1 => rows::<S, 16, 1>(raw, j, left),
                2 => rows::<S, 8, 2>(raw, j, left),
                3 => rows::<S, 8, 3>(raw, j, left),
                _ if raw.add => rows::<S, 8, 2>(raw, j, left),
                _ => rows::<S, 6, 4>(raw, j, left),
            }
        };
        j += columns;
    }
}

/// All rows of a panel of `NV` vectors; returns its columns.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn rows<S: Simd<T: Real>, const MR: usize, const NV: usize>(
    raw: Raw<S::T>,
    j: usize,
    left: usize,
) -> usize {
    let columns = left.min(NV * S::LANES);
    let last = columns - (NV - 1) * S::LANES;
    let mut i = 0;
    unsafe {
        while i + MR <= raw.m {
            tile::<S, MR, NV>(raw, i, j, last);
            i += MR;
        }
        if i < raw.m && raw.m >= MR && !raw.add {
            tile::<S, MR, NV>(raw, raw.m - MR, j, last);
            return columns;
        }
        while i + 4 <= raw.m {
            tile::<S, 4, NV>(raw, i, j, last);
            i += 4;
        }
        while i < raw.m {
            tile::<S, 1, NV>(raw, i, j, last);
            i += 1;
        }
    }
    columns
}

/// One tile of C: `MR` rows of `NV` vectors, the last of which holds `last` numbers.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn tile<S: Simd<T: Real>, const MR: usize, const NV: usize>(
    raw: Raw<S::T>,
    i: usize,
    j: usize,
    last: usize,
) {
    unsafe {
        let full = last == S::LANES;
        let load = |p: *const S::T, v: usize| {
            if v + 1 < NV || full { S::load(p) } else { S::load_partial(p, last) }
        };
        let (a, b) = (raw.a.add(i * raw.a_row), raw.b.add(j));
        let zero = S::splat(<S::T as Real>::ZERO);
        let mut sum = [[zero; NV]; MR];
        for k in 0..raw.k {
            let (row, column) = (b.add(k * raw.ldb), a.add(k * raw.a_col));
            let bv: [S::V; NV] = std::array::from_fn(|v| load(row.add(v * S::LANES), v));
            for r in 0..MR {
                let x = S::splat(*column.add(r * raw.a_row));
                for v in 0..NV {
                    sum[r][v] = S::mul_add(x, bv[v], sum[r][v]);
                }
            }
        }
        for r in 0..MR {
            let row = raw.c.add((i + r) * raw.ldc + j);
            for v in 0..NV {
                let p = row.add(v * S::LANES);
                let value = if raw.add { S::add(load(p, v), sum[r][v]) } else { sum[r][v] };
                if v + 1 < NV || full { S::store(p, value) } else { S::store_partial(p, last, value) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check<T: Real>(
        m: usize,
        n: usize,
        k: usize,
        transposed: bool,
        accumulate: Accumulate,
        tolerance: f64,
    ) {
        let noise = |n: usize, salt: f64| -> Vec<T> {
            (0..n).map(|k| T::from_f64(((k as f64 + salt) * 12.9898).sin())).collect()
        };
        let (a, b, mut c) = (noise(m * k, 0.3), noise(k * n, 0.7), noise(m * n, 0.9));
        let (before, (row, col)) = (c.clone(), if transposed { (1, m) } else { (k, 1) });
        product(&mut c, n, accumulate, Strided { data: &a, row, col }, &b, n, m, n, k);
        for i in 0..m {
            for j in 0..n {
                let mut want: f64 =
                    (0..k).map(|l| a[i * row + l * col].to_f64() * b[l * n + j].to_f64()).sum();
                if accumulate == Accumulate::Add {
                    want += before[i * n + j].to_f64();
                }
                let got = c[i * n + j].to_f64();
                assert!(
                    (got - want).abs() < tolerance * (1.0 + want.abs()),
                    "{m}x{n}x{k} ({i},{j}): {got} {want}"
                );
            }
        }
    }

    #[test]
    fn products_of_every_awkward_size_agree_with_plain_sums() {
        let sizes = [1, 3, 6, 7, 16, 17, 31, 64, 81];
        for (s, m) in sizes.into_iter().enumerate() {
            for n in [1, 5, 8, 16, 24, 33, 64, 80] {
                let k = [1, 2, 16, 64, 81, 5, 0, 9, 33][s];
                for transposed in [false, true] {
                    for accumulate in [Accumulate::Overwrite, Accumulate::Add] {
                        check::<f64>(m, n, k, transposed, accumulate, 1e-13);
                        check::<f32>(m, n, k, transposed, accumulate, 1e-4);
                    }
                }
            }
        }
    }
}
