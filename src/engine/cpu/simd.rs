//! Vector instructions, chosen at run time: AVX-512, AVX2 with FMA, or portable code.
//!
//! Two ways to use them. [`multiversion!`] compiles a plain loop once for each instruction set and leaves the
//! vectors to the compiler. [`Simd`] names the few operations of the matrix kernels, where registers matter.

use std::sync::OnceLock;

/// The instruction sets that the kernels are compiled for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Isa {
    Avx512,
    Avx2,
    Portable,
}

/// The best instruction set of this machine, or the one that `PHALANX_ISA` (avx512, avx2, portable) names.
pub fn isa() -> Isa {
    static ISA: OnceLock<Isa> = OnceLock::new();
    *ISA.get_or_init(|| {
        let best = detect();
        match std::env::var("PHALANX_ISA").as_deref() {
            Ok("portable") => Isa::Portable,
            Ok("avx2") if best != Isa::Portable => Isa::Avx2,
            _ => best,
        }
    })
}

#[cfg(target_arch = "x86_64")]
fn detect() -> Isa {
    let fma = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
    let avx512 = ["avx512f", "avx512dq", "avx512vl", "avx512bw"];
    let has = [
        is_x86_feature_detected!("avx512f"),
        is_x86_feature_detected!("avx512dq"),
        is_x86_feature_detected!("avx512vl"),
        is_x86_feature_detected!("avx512bw"),
    ];
    debug_assert_eq!(avx512.len(), has.len());
    match (fma, has.iter().all(|&x| x)) {
        (true, true) => Isa::Avx512,
        (true, false) => Isa::Avx2,
        _ => Isa::Portable,
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn detect() -> Isa {
    Isa::Portable
}

/// Compiles a function once for each instruction set and calls the one that [`isa`] names.
#[macro_export]
#[doc(hidden)]
macro_rules! multiversion {
    ($(#[$meta:meta])* $vis:vis fn $name:ident<$t:ident: $bound:path>($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? $body:block) => {
        $(#[$meta])*
        #[allow(clippy::too_many_arguments)]
        $vis fn $name<$t: $bound>($($arg: $ty),*) $(-> $ret)? {
            #[inline(always)]
            #[allow(clippy::too_many_arguments)]
            fn body<$t: $bound>($($arg: $ty),*) $(-> $ret)? $body

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512dq,avx512vl,avx512bw,avx2,fma")]
            #[allow(clippy::too_many_arguments)]
            unsafe fn avx512<$t: $bound>($($arg: $ty),*) $(-> $ret)? { body($($arg),*) }

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma")]
            #[allow(clippy::too_many_arguments)]
            unsafe fn avx2<$t: $bound>($($arg: $ty),*) $(-> $ret)? { body($($arg),*) }

            match $crate::engine::cpu::simd::isa() {
                // SAFETY: `isa` names an instruction set only where the machine has it.
                #[cfg(target_arch = "x86_64")]
                $crate::engine::cpu::simd::Isa::Avx512 => unsafe { avx512($($arg),*) },
                // SAFETY: as above.
                #[cfg(target_arch = "x86_64")]
                $crate::engine::cpu::simd::Isa::Avx2 => unsafe { avx2($($arg),*) },
                _ => body($($arg),*),
            }
        }
    };
}
pub(crate) use multiversion;

/// Declares functions that call a kernel over [`Simd`] by the best instruction set, one for each type of numbers.
macro_rules! by_instruction_set {
    ($(#[$meta:meta])* unsafe fn $name:ident($arguments:ident<$t:ty>) = $kernel:ident; $($others:tt)*) => {
        $(#[$meta])*
        pub(super) unsafe fn $name(arguments: $arguments<$t>) {
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512dq,avx512vl,avx512bw,avx2,fma")]
            unsafe fn avx512(arguments: $arguments<$t>) {
                unsafe { $kernel::<$t, $crate::engine::cpu::simd::Avx512<$t>>(arguments) }
            }

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma")]
            unsafe fn avx2(arguments: $arguments<$t>) {
                unsafe { $kernel::<$t, $crate::engine::cpu::simd::Avx2<$t>>(arguments) }
            }

            // SAFETY: the caller's word; `isa` names an instruction set only where the machine has it.
            match $crate::engine::cpu::simd::isa() {
                #[cfg(target_arch = "x86_64")]
                $crate::engine::cpu::simd::Isa::Avx512 => unsafe { avx512(arguments) },
                #[cfg(target_arch = "x86_64")]
                $crate::engine::cpu::simd::Isa::Avx2 => unsafe { avx2(arguments) },
                _ => unsafe { $kernel::<$t, $crate::engine::cpu::simd::Portable<$t>>(arguments) },
            }
        }
        $crate::engine::cpu::simd::by_instruction_set! { $($others)* }
    };
    () => {};
}
pub(crate) use by_instruction_set;

/// Asks for the cache line at `p`, which may lie anywhere, to come into the first cache.
#[inline(always)]
pub fn prefetch<T>(p: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch never faults.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(p.cast())
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = p;
}

/// As [`prefetch`], for a line that is written and not read: writes wait for it one after the other.
#[inline(always)]
pub fn prefetch_to_write<T>(p: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: it never faults, and is no operation where the processor does not know it.
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) p, options(nostack, preserves_flags, readonly))
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = p;
}

/// As [`prefetch`], into the second cache: for what is used later, and is too much for the first.
#[inline(always)]
pub fn prefetch_early<T>(p: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: as above.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T1 }>(p.cast())
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = p;
}

/// The operations of the matrix kernels.
///
/// # Safety
/// Implementations use vector instructions: callers must know that the machine has them. Pointers must be valid
/// for `LANES` numbers (`n` for the partial versions).
#[allow(clippy::missing_safety_doc)] // one contract for all of them stands above
pub unsafe trait Simd: Copy {
    type T: Copy;
    type V: Copy;
    const LANES: usize;
    unsafe fn splat(x: Self::T) -> Self::V;
    unsafe fn load(p: *const Self::T) -> Self::V;
    unsafe fn load_partial(p: *const Self::T, n: usize) -> Self::V;
    unsafe fn store(p: *mut Self::T, v: Self::V);
    unsafe fn store_partial(p: *mut Self::T, n: usize, v: Self::V);
    /// a * b + c
    unsafe fn mul_add(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// a * b - c
    unsafe fn mul_sub(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V;
    /// Asks for the cache line at `p`, which may lie anywhere.
    fn prefetch(p: *const Self::T);
    /// As [`Simd::store_transposed`], of four rows.
    #[inline(always)]
    unsafe fn store_four_transposed(p: *mut Self::T, ld: usize, rows: [Self::V; 4], n: usize) {
        let rows = rows.as_ptr().cast::<Self::T>();
        for l in 0..n {
            for r in 0..4 {
                unsafe { *p.add(l * ld + r) = *rows.add(r * Self::LANES + l) };
            }
        }
    }
    /// Writes eight rows transposed: number `l < n` of row r goes to `p[l * ld + r]`.
    #[inline(always)]
    unsafe fn store_transposed(p: *mut Self::T, ld: usize, rows: [Self::V; 8], n: usize) {
        let rows = rows.as_ptr().cast::<Self::T>();
        for l in 0..n {
            for r in 0..8 {
                unsafe { *p.add(l * ld + r) = *rows.add(r * Self::LANES + l) };
            }
        }
    }
}

/// Plain arrays; the compiler makes of them what the target has.
#[derive(Clone, Copy)]
pub struct Portable<T>(std::marker::PhantomData<T>);

macro_rules! portable {
    ($t:ty) => {
        // SAFETY: no special instructions; pointers are used within the stated bounds.
        unsafe impl Simd for Portable<$t> {
            type T = $t;
            type V = [$t; 4];
            const LANES: usize = 4;
            #[inline(always)]
            unsafe fn splat(x: $t) -> [$t; 4] {
                [x; 4]
            }
            #[inline(always)]
            unsafe fn load(p: *const $t) -> [$t; 4] {
                unsafe { p.cast::<[$t; 4]>().read_unaligned() }
            }
            #[inline(always)]
            unsafe fn load_partial(p: *const $t, n: usize) -> [$t; 4] {
                std::array::from_fn(|k| if k < n { unsafe { *p.add(k) } } else { 0.0 })
            }
            #[inline(always)]
            unsafe fn store(p: *mut $t, v: [$t; 4]) {
                unsafe { p.cast::<[$t; 4]>().write_unaligned(v) }
            }
            #[inline(always)]
            unsafe fn store_partial(p: *mut $t, n: usize, v: [$t; 4]) {
                for (k, x) in v.iter().enumerate().take(n) {
                    unsafe { *p.add(k) = *x }
                }
            }
            #[inline(always)]
            unsafe fn mul_add(a: [$t; 4], b: [$t; 4], c: [$t; 4]) -> [$t; 4] {
                // Without FMA instructions a fused multiply-add would be a slow library call.
                std::array::from_fn(|k| a[k] * b[k] + c[k])
            }
            #[inline(always)]
            unsafe fn mul_sub(a: [$t; 4], b: [$t; 4], c: [$t; 4]) -> [$t; 4] {
                std::array::from_fn(|k| a[k] * b[k] - c[k])
            }
            #[inline(always)]
            unsafe fn add(a: [$t; 4], b: [$t; 4]) -> [$t; 4] {
                std::array::from_fn(|k| a[k] + b[k])
            }
            #[inline(always)]
            fn prefetch(_: *const $t) {}
        }
    };
}
portable!(f32);
portable!(f64);

#[cfg(target_arch = "x86_64")]
pub use x86::{Avx2, Avx512};

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::Simd;
    use std::arch::x86_64::*;
    use std::marker::PhantomData;

    /// 512-bit vectors.
    #[derive(Clone, Copy)]
    pub struct Avx512<T>(PhantomData<T>);
    /// 256-bit vectors.
    #[derive(Clone, Copy)]
    pub struct Avx2<T>(PhantomData<T>);

    macro_rules! avx512 {
        ($t:ty, $v:ty, $lanes:literal, $mask:ty, $set1:ident, $load:ident, $mload:ident, $store:ident, $mstore:ident, $fma:ident, $fms:ident, $add:ident, $turn:ident) => {
            // SAFETY: the trait's contract: AVX-512 is there and pointers are valid.
            unsafe impl Simd for Avx512<$t> {
                type T = $t;
                type V = $v;
                const LANES: usize = $lanes;
                #[inline(always)]
                unsafe fn splat(x: $t) -> $v {
                    unsafe { $set1(x) }
                }
                #[inline(always)]
                unsafe fn load(p: *const $t) -> $v {
                    unsafe { $load(p) }
                }
                #[inline(always)]
                unsafe fn load_partial(p: *const $t, n: usize) -> $v {
                    unsafe { $mload(((1u32 << n) - 1) as $mask, p) }
                }
                #[inline(always)]
                unsafe fn store(p: *mut $t, v: $v) {
                    unsafe { $store(p, v) }
                }
                #[inline(always)]
                unsafe fn store_partial(p: *mut $t, n: usize, v: $v) {
                    unsafe { $mstore(p, ((1u32 << n) - 1) as $mask, v) }
                }
                #[inline(always)]
                unsafe fn mul_add(a: $v, b: $v, c: $v) -> $v {
                    unsafe { $fma(a, b, c) }
                }
                #[inline(always)]
                unsafe fn mul_sub(a: $v, b: $v, c: $v) -> $v {
                    unsafe { $fms(a, b, c) }
                }
                #[inline(always)]
                unsafe fn add(a: $v, b: $v) -> $v {
                    unsafe { $add(a, b) }
                }
                #[inline(always)]
                fn prefetch(p: *const $t) {
                    // SAFETY: a prefetch never faults.
                    unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
                }
                #[inline(always)]
                unsafe fn store_transposed(p: *mut $t, ld: usize, rows: [$v; 8], n: usize) {
                    unsafe { $turn(p, ld, rows, n) }
                }
            }
        };
    }

    /// Eight rows of eight numbers: first pairs of rows, then pairs of pairs.
    #[inline(always)]
    unsafe fn transpose_f64(p: *mut f64, ld: usize, rows: [__m512d; 8], n: usize) {
        unsafe {
            let [a, b, c, d, e, f, g, h] = rows;
            // Columns 0 2 4 6 (and 1 3 5 7) of two rows each.
            let even = [(a, b), (c, d), (e, f), (g, h)].map(|(x, y)| _mm512_unpacklo_pd(x, y));
            let odd = [(a, b), (c, d), (e, f), (g, h)].map(|(x, y)| _mm512_unpackhi_pd(x, y));
            for (start, half) in [(0, even), (1, odd)] {
                let [ab, cd, ef, gh] = half;
                // Columns 0, 4 and 2, 6 (for the odd half 1, 5 and 3, 7) of four rows each.
                let low = [(ab, cd), (ef, gh)].map(|(x, y)| _mm512_shuffle_f64x2::<0b10_00_10_00>(x, y));
                let high = [(ab, cd), (ef, gh)].map(|(x, y)| _mm512_shuffle_f64x2::<0b11_01_11_01>(x, y));
                let columns = [
                    (start, _mm512_shuffle_f64x2::<0b10_00_10_00>(low[0], low[1])),
                    (start + 4, _mm512_shuffle_f64x2::<0b11_01_11_01>(low[0], low[1])),
                    (start + 2, _mm512_shuffle_f64x2::<0b10_00_10_00>(high[0], high[1])),
                    (start + 6, _mm512_shuffle_f64x2::<0b11_01_11_01>(high[0], high[1])),
                ];
                for (l, column) in columns {
                    if l < n {
                        _mm512_storeu_pd(p.add(l * ld), column);
                    }
                }
            }
        }
    }

    /// Eight rows of sixteen numbers: squares of four by four, each column of which is then written in two halves.
    #[inline(always)]
    unsafe fn transpose_f32(p: *mut f32, ld: usize, rows: [__m512; 8], n: usize) {
        unsafe {
            for (first, [a, b, c, d]) in
                [(0, [rows[0], rows[1], rows[2], rows[3]]), (4, [rows[4], rows[5], rows[6], rows[7]])]
            {
                let pairs = [
                    _mm512_unpacklo_ps(a, b),
                    _mm512_unpackhi_ps(a, b),
                    _mm512_unpacklo_ps(c, d),
                    _mm512_unpackhi_ps(c, d),
                ]
                .map(|x| _mm512_castps_pd(x));
                let columns = [
                    _mm512_unpacklo_pd(pairs[0], pairs[2]),
                    _mm512_unpackhi_pd(pairs[0], pairs[2]),
                    _mm512_unpacklo_pd(pairs[1], pairs[3]),
                    _mm512_unpackhi_pd(pairs[1], pairs[3]),
                ];
                for (l, column) in columns.into_iter().enumerate() {
                    let column = _mm512_castpd_ps(column);
                    let quarters = [
                        _mm512_extractf32x4_ps::<0>(column),
                        _mm512_extractf32x4_ps::<1>(column),
                        _mm512_extractf32x4_ps::<2>(column),
                        _mm512_extractf32x4_ps::<3>(column),
                    ];
                    for (q, quarter) in quarters.into_iter().enumerate() {
                        if 4 * q + l < n {
                            _mm_storeu_ps(p.add((4 * q + l) * ld + first), quarter);
                        }
                    }
                }
            }
        }
    }
    avx512!(
        f64,
        __m512d,
        8,
        u8,
        _mm512_set1_pd,
        _mm512_loadu_pd,
        _mm512_maskz_loadu_pd,
        _mm512_storeu_pd,
        _mm512_mask_storeu_pd,
        _mm512_fmadd_pd,
        _mm512_fmsub_pd,
        _mm512_add_pd,
        transpose_f64
    );
    avx512!(
        f32,
        __m512,
        16,
        u16,
        _mm512_set1_ps,
        _mm512_loadu_ps,
        _mm512_maskz_loadu_ps,
        _mm512_storeu_ps,
        _mm512_mask_storeu_ps,
        _mm512_fmadd_ps,
        _mm512_fmsub_ps,
        _mm512_add_ps,
        transpose_f32
    );

    /// Four rows of four numbers.
    #[inline(always)]
    unsafe fn transpose_four_f64(p: *mut f64, ld: usize, rows: [__m256d; 4], n: usize) {
        unsafe {
            let [a, b, c, d] = rows;
            // Columns 0 2 (and 1 3) of two rows each.
            let even = [_mm256_unpacklo_pd(a, b), _mm256_unpacklo_pd(c, d)];
            let odd = [_mm256_unpackhi_pd(a, b), _mm256_unpackhi_pd(c, d)];
            let columns = [
                _mm256_permute2f128_pd::<0x20>(even[0], even[1]),
                _mm256_permute2f128_pd::<0x20>(odd[0], odd[1]),
                _mm256_permute2f128_pd::<0x31>(even[0], even[1]),
                _mm256_permute2f128_pd::<0x31>(odd[0], odd[1]),
            ];
            for l in 0..4 {
                if l < n {
                    _mm256_storeu_pd(p.add(l * ld), columns[l]);
                }
            }
        }
    }

    /// Four rows of eight numbers: two squares of four by four.
    #[inline(always)]
    unsafe fn transpose_four_f32(p: *mut f32, ld: usize, rows: [__m256; 4], n: usize) {
        unsafe {
            let [a, b, c, d] = rows;
            let pairs = [
                _mm256_castps_pd(_mm256_unpacklo_ps(a, b)),
                _mm256_castps_pd(_mm256_unpackhi_ps(a, b)),
                _mm256_castps_pd(_mm256_unpacklo_ps(c, d)),
                _mm256_castps_pd(_mm256_unpackhi_ps(c, d)),
            ];
            let columns = [
                _mm256_castpd_ps(_mm256_unpacklo_pd(pairs[0], pairs[2])),
                _mm256_castpd_ps(_mm256_unpackhi_pd(pairs[0], pairs[2])),
                _mm256_castpd_ps(_mm256_unpacklo_pd(pairs[1], pairs[3])),
                _mm256_castpd_ps(_mm256_unpackhi_pd(pairs[1], pairs[3])),
            ];
            for l in 0..4 {
                if l < n {
                    _mm_storeu_ps(p.add(l * ld), _mm256_castps256_ps128(columns[l]));
                }
                if l + 4 < n {
                    _mm_storeu_ps(p.add((l + 4) * ld), _mm256_extractf128_ps::<1>(columns[l]));
                }
            }
        }
    }

    macro_rules! avx2 {
        ($t:ty, $v:ty, $lanes:literal, $int:ty, $set1:ident, $load:ident, $mload:ident, $store:ident, $mstore:ident, $fma:ident, $fms:ident, $add:ident, $turn:ident) => {
            // SAFETY: the trait's contract: AVX2 and FMA are there and pointers are valid.
            unsafe impl Simd for Avx2<$t> {
                type T = $t;
                type V = $v;
                const LANES: usize = $lanes;
                #[inline(always)]
                unsafe fn splat(x: $t) -> $v {
                    unsafe { $set1(x) }
                }
                #[inline(always)]
                unsafe fn load(p: *const $t) -> $v {
                    unsafe { $load(p) }
                }
                #[inline(always)]
                unsafe fn load_partial(p: *const $t, n: usize) -> $v {
                    let mask: [$int; $lanes] = std::array::from_fn(|k| if k < n { -1 } else { 0 });
                    unsafe { $mload(p, _mm256_loadu_si256(mask.as_ptr().cast())) }
                }
                #[inline(always)]
                unsafe fn store(p: *mut $t, v: $v) {
                    unsafe { $store(p, v) }
                }
                #[inline(always)]
                unsafe fn store_partial(p: *mut $t, n: usize, v: $v) {
                    let mask: [$int; $lanes] = std::array::from_fn(|k| if k < n { -1 } else { 0 });
                    unsafe { $mstore(p, _mm256_loadu_si256(mask.as_ptr().cast()), v) }
                }
                #[inline(always)]
                unsafe fn mul_add(a: $v, b: $v, c: $v) -> $v {
                    unsafe { $fma(a, b, c) }
                }
                #[inline(always)]
                unsafe fn mul_sub(a: $v, b: $v, c: $v) -> $v {
                    unsafe { $fms(a, b, c) }
                }
                #[inline(always)]
                unsafe fn add(a: $v, b: $v) -> $v {
                    unsafe { $add(a, b) }
                }
                #[inline(always)]
                fn prefetch(p: *const $t) {
                    // SAFETY: a prefetch never faults.
                    unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
                }
                #[inline(always)]
                unsafe fn store_four_transposed(p: *mut $t, ld: usize, rows: [$v; 4], n: usize) {
                    unsafe { $turn(p, ld, rows, n) }
                }
                #[inline(always)]
                unsafe fn store_transposed(p: *mut $t, ld: usize, rows: [$v; 8], n: usize) {
                    let [a, b, c, d, e, f, g, h] = rows;
                    unsafe {
                        $turn(p, ld, [a, b, c, d], n);
                        $turn(p.add(4), ld, [e, f, g, h], n);
                    }
                }
            }
        };
    }
    avx2!(
        f64,
        __m256d,
        4,
        i64,
        _mm256_set1_pd,
        _mm256_loadu_pd,
        _mm256_maskload_pd,
        _mm256_storeu_pd,
        _mm256_maskstore_pd,
        _mm256_fmadd_pd,
        _mm256_fmsub_pd,
        _mm256_add_pd,
        transpose_four_f64
    );
    avx2!(
        f32,
        __m256,
        8,
        i32,
        _mm256_set1_ps,
        _mm256_loadu_ps,
        _mm256_maskload_ps,
        _mm256_storeu_ps,
        _mm256_maskstore_ps,
        _mm256_fmadd_ps,
        _mm256_fmsub_ps,
        _mm256_add_ps,
        transpose_four_f32
    );
}
