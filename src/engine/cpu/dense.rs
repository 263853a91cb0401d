//! Dense products `C = A B` and `C += A B`, without packing where vectors are wide; larger ones with AVX2 pack B ([`super::packed`]).
//!
//! A is read one number at a time (any strides), B and C by rows of vectors. A tile of C stays in registers over
//! the whole inner dimension, so that each element is one sum in one fixed order: the result does not depend on
//! how the work is split over threads.

#[cfg(target_arch = "x86_64")]
use super::packed;
use super::real::Real;
#[cfg(target_arch = "x86_64")]
use super::simd::{Avx2, Avx512};
use super::simd::{Isa, Portable, Simd, by_instruction_set, isa, prefetch_early, prefetch_to_write};

/// Rows of B that are asked for ahead of their use.
const AHEAD: usize = 12;
/// Bytes of a cache line.
pub(super) const LINE: usize = 64;
/// Lines of other memory that are fetched for each row of B: see [`Meanwhile`].
const LINES: usize = 2;

/// A matrix in memory: element (i, k) is `data[i * row + k * col]`.
#[derive(Clone, Copy)]
pub struct Strided<'a, T> {
    pub data: &'a [T],
    pub row: usize,
    pub col: usize,
}

/// What is left of C before the product is added.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Accumulate {
    Overwrite,
    Add,
}

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
    let c = with_room(c, ldc, m, n);
    // SAFETY: C is ours alone and has room.
    unsafe { product_into(c, ldc, accumulate, a, b, ldb, m, n, k) }
}

/// Where C `[m, n]` starts, which fits into the memory given.
fn with_room<T>(c: &mut [T], ldc: usize, m: usize, n: usize) -> *mut T {
    if m > 0 && n > 0 {
        assert!(c.len() >= (m - 1) * ldc + n, "C has room for the product");
    }
    c.as_mut_ptr()
}

/// Memory that is fetched into the second cache while a product is computed.
#[derive(Clone, Copy)]
pub struct Meanwhile {
    /// From where on, and how many lines.
    pub(super) places: [(*const u8, usize); 4],
}

impl Meanwhile {
    pub const NOTHING: Meanwhile = Meanwhile { places: [(std::ptr::null(), 0); 4] };

    /// So many bytes from each place on; a null pointer stands for nothing.
    pub fn new(places: [(*const u8, usize); 4]) -> Self {
        let lines = |p: *const u8, bytes: usize| if p.is_null() { 0 } else { bytes.div_ceil(LINE) };
        Meanwhile { places: places.map(|(p, bytes)| (p, lines(p, bytes))) }
    }

    fn is_nothing(&self) -> bool {
        self.places[0].1 == 0
    }

    /// What tile number `tile` fetches, [`LINES`] in each of its `turns`: the places take turns.
    #[inline(always)]
    fn of_tile(&self, tile: usize, turns: usize) -> *const u8 {
        let (place, lines) = self.places[tile % 4];
        let first = tile / 4 * turns * LINES;
        // When all is fetched, the last lines again, which are there.
        place.wrapping_add(first.min(lines.saturating_sub(turns * LINES)) * LINE)
    }
}

/// As [`product`] with [`Accumulate::Overwrite`]; memory that is needed afterwards is fetched on the way.
#[allow(clippy::too_many_arguments)]
pub fn product_meanwhile<T: Real>(
    c: &mut [T],
    ldc: usize,
    a: Strided<T>,
    b: &[T],
    ldb: usize,
    m: usize,
    n: usize,
    k: usize,
    meanwhile: Meanwhile,
) {
    let c = with_room(c, ldc, m, n);
    // SAFETY: C is ours alone and has room.
    unsafe { checked(c, ldc, false, false, a, b, ldb, m, n, k, meanwhile) }
}

/// As [`product`], for a block of a matrix whose other columns are written by other threads.
///
/// # Safety
/// `c` must be valid for `m` rows of `n` numbers, `ldc` apart, which nobody else touches meanwhile.
#[allow(clippy::too_many_arguments)]
pub unsafe fn product_into<T: Real>(
    c: *mut T,
    ldc: usize,
    accumulate: Accumulate,
    a: Strided<T>,
    b: &[T],
    ldb: usize,
    m: usize,
    n: usize,
    k: usize,
) {
    let add = accumulate == Accumulate::Add;
    // SAFETY: the caller's promise.
    unsafe { checked(c, ldc, false, add, a, b, ldb, m, n, k, Meanwhile::NOTHING) }
}

/// Writes the product transposed: element (i, j) of `A[m, k] B[k, n]` goes to `c[j * ldc + i]`.
///
/// So a product with a transposed matrix reads that matrix as it is, row by row, as A.
///
/// # Safety
/// `c` must be valid for `n` rows of `m` numbers, `ldc` apart, which nobody else touches meanwhile.
#[allow(clippy::too_many_arguments)]
pub unsafe fn product_transposed_into<T: Real>(
    c: *mut T,
    ldc: usize,
    a: Strided<T>,
    b: &[T],
    ldb: usize,
    m: usize,
    n: usize,
    k: usize,
) {
    // SAFETY: the caller's promise.
    unsafe { checked(c, ldc, true, false, a, b, ldb, m, n, k, Meanwhile::NOTHING) }
}

/// Checks what A and B cover, and runs the kernel.
///
/// # Safety
/// As for [`product_into`], or where `transposed` for [`product_transposed_into`].
#[allow(clippy::too_many_arguments)]
unsafe fn checked<T: Real>(
    c: *mut T,
    ldc: usize,
    transposed: bool,
    add: bool,
    a: Strided<T>,
    b: &[T],
    ldb: usize,
    m: usize,
    n: usize,
    k: usize,
    meanwhile: Meanwhile,
) {
    if m == 0 || n == 0 {
        return;
    }
    if k > 0 {
        assert!(a.data.len() > (m - 1) * a.row + (k - 1) * a.col, "A covers m x k");
        assert!(b.len() >= (k - 1) * ldb + n, "B covers k x n");
    }
    let (a, a_row, a_col) = (a.data.as_ptr(), a.row, a.col);
    let raw = Raw { c, ldc, transposed, add, a, a_row, a_col, b: b.as_ptr(), ldb, m, n, k, meanwhile };
    // SAFETY: the bounds were checked above, and `isa` names only what the machine has.
    unsafe { T::product_kernel(raw) }
}

/// The arguments of a product after the bounds were checked.
#[derive(Clone, Copy)]
pub struct Raw<T> {
    pub(super) c: *mut T,
    pub(super) ldc: usize,
    pub(super) transposed: bool,
    pub(super) add: bool,
    pub(super) a: *const T,
    pub(super) a_row: usize,
    pub(super) a_col: usize,
    pub(super) b: *const T,
    pub(super) ldb: usize,
    pub(super) m: usize,
    pub(super) n: usize,
    pub(super) k: usize,
    pub(super) meanwhile: Meanwhile,
}

impl<T> Raw<T> {
    /// What is left when the first rows are done.
    fn without_rows(self, done: usize) -> Self {
        let place = if self.transposed { done } else { done * self.ldc };
        Raw {
            a: self.a.wrapping_add(done * self.a_row),
            c: self.c.wrapping_add(place),
            m: self.m - done,
            ..self
        }
    }
}

/// Calls the kernel of the best instruction set.
///
/// # Safety
/// `raw` must describe memory that [`product`] has checked.
pub(super) unsafe fn dispatch_f64(raw: Raw<f64>) {
    match isa() {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => unsafe { run_avx512::<f64, Avx512<f64>>(raw) },
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => unsafe { run_avx2::<f64, Avx2<f64>>(raw) },
        _ => unsafe { panels::<f64, Portable<f64>, 4>(raw) },
    }
}

/// As [`dispatch_f64`].
///
/// # Safety
/// As there.
pub(super) unsafe fn dispatch_f32(raw: Raw<f32>) {
    match isa() {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => unsafe { run_avx512::<f32, Avx512<f32>>(raw) },
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => unsafe { run_avx2::<f32, Avx2<f32>>(raw) },
        _ => unsafe { panels::<f32, Portable<f32>, 4>(raw) },
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512dq,avx512vl,avx512bw,avx2,fma")]
unsafe fn run_avx512<T: Real, S: Simd<T = T>>(raw: Raw<T>) {
    // 8 x 3 accumulators, 3 vectors of B and one of A: 28 of 32 registers.
    unsafe { panels::<T, S, 8>(raw) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn run_avx2<T: Real, S: packed::Kernel<T = T>>(raw: Raw<T>) {
    // 4 x 3 accumulators, 3 vectors of B and one of A: all 16 registers.
    unsafe {
        let done = if packed::is_worth(&raw) { packed::run::<S>(&raw) } else { 0 };
        if done < raw.m {
            panels::<T, S, 4>(raw.without_rows(done));
        }
    }
}

/// The product, with or without fetching other memory meanwhile.
#[inline(always)]
unsafe fn panels<T: Real, S: Simd<T = T>, const MR: usize>(raw: Raw<T>) {
    unsafe {
        if raw.meanwhile.is_nothing() {
            panels_of::<T, S, MR, false>(raw);
        } else {
            panels_of::<T, S, MR, true>(raw);
        }
    }
}

/// Column panels of three vectors, and what is left of the columns.
#[inline(always)]
unsafe fn panels_of<T: Real, S: Simd<T = T>, const MR: usize, const FETCH: bool>(raw: Raw<T>) {
    let mut j = 0;
    while j < raw.n {
        let left = raw.n - j;
        // Not three and one of the last four vectors: a single one would not keep the arithmetic busy.
        let vectors = match left.div_ceil(S::LANES) {
            4 => 2,
            n => n.min(3),
        };
        let cols = left.min(vectors * S::LANES);
        unsafe {
            match vectors {
                1 => rows::<T, S, MR, 1, FETCH>(raw, j, cols),
                2 => rows::<T, S, MR, 2, FETCH>(raw, j, cols),
                _ => rows::<T, S, MR, 3, FETCH>(raw, j, cols),
            }
        }
        j += cols;
    }
}

/// All rows of one column panel of `cols` numbers in `NV` vectors.
#[inline(always)]
unsafe fn rows<T: Real, S: Simd<T = T>, const MR: usize, const NV: usize, const FETCH: bool>(
    raw: Raw<T>,
    j: usize,
    cols: usize,
) {
    let last = cols - (NV - 1) * S::LANES;
    let mut i = 0;
    unsafe {
        // Whole vectors need no mask, for which sixteen registers have no room.
        while last == S::LANES && i + MR <= raw.m {
            tile::<T, S, MR, NV, FETCH, true>(raw, i, j, S::LANES);
            i += MR;
        }
        while i + MR <= raw.m {
            tile::<T, S, MR, NV, FETCH, false>(raw, i, j, last);
            i += MR;
        }
        while i + 4 <= raw.m {
            tile::<T, S, 4, NV, FETCH, false>(raw, i, j, last);
            i += 4;
        }
        while i < raw.m {
            tile::<T, S, 1, NV, FETCH, false>(raw, i, j, last);
            i += 1;
        }
    }
}

/// One tile of C: `MR` rows of `NV` vectors, the last of which holds `last` numbers, or as many as the others (`FULL`).
#[inline(always)]
unsafe fn tile<
    T: Real,
    S: Simd<T = T>,
    const MR: usize,
    const NV: usize,
    const FETCH: bool,
    const FULL: bool,
>(
    raw: Raw<T>,
    i: usize,
    j: usize,
    last: usize,
) {
    unsafe {
        let zero = S::splat(T::ZERO);
        let mut sum = [[zero; NV]; MR];
        let a = raw.a.add(i * raw.a_row);
        let b = raw.b.add(j);
        let full = FULL || last == S::LANES;
        // The rows of A for the next tile: a line of one of them is asked for at each turn.
        let next = a.wrapping_add(MR * raw.a_row);
        let next_row = if raw.a_col == 1 { raw.a_row } else { 0 };
        // C is written at the end; asked for now, it is there by then.
        if raw.transposed {
            for l in 0..(NV - 1) * S::LANES + last {
                prefetch_to_write(raw.c.add((j + l) * raw.ldc + i));
            }
        } else {
            for r in 0..MR {
                for v in 0..NV {
                    prefetch_to_write(raw.c.add((i + r) * raw.ldc + j + v * S::LANES));
                }
            }
        }
        let meanwhile = if FETCH {
            raw.meanwhile.of_tile(j / (3 * S::LANES) * raw.m.div_ceil(MR) + i / MR, raw.k)
        } else {
            std::ptr::null()
        };
        for k in 0..raw.k {
            let row = b.add(k * raw.ldb);
            if FETCH {
                for line in 0..LINES {
                    prefetch_early(meanwhile.wrapping_add((LINES * k + line) * LINE));
                }
            } else {
                S::prefetch(next.wrapping_add(k % 8 * next_row + k / 8 * 8));
            }
            // Rows of B are far apart, often on different pages, where the hardware does not look ahead.
            let ahead = row.wrapping_add(AHEAD * raw.ldb);
            for v in (0..NV).step_by(LINE / size_of::<S::V>()) {
                S::prefetch(ahead.wrapping_add(v * S::LANES));
            }
            // Unless the row starts with a line, it ends in one more.
            S::prefetch(ahead.wrapping_add((NV - 1) * S::LANES + last - 1));
            let mut bv = [zero; NV];
            for v in 0..NV {
                let p = row.add(v * S::LANES);
                bv[v] = if v + 1 < NV || full { S::load(p) } else { S::load_partial(p, last) };
            }
            let column = a.add(k * raw.a_col);
            for r in 0..MR {
                let x = S::splat(*column.add(r * raw.a_row));
                for v in 0..NV {
                    sum[r][v] = S::mul_add(x, bv[v], sum[r][v]);
                }
            }
        }
        if raw.transposed {
            for v in 0..NV {
                let n = if v + 1 < NV { S::LANES } else { last };
                let c = raw.c.add((j + v * S::LANES) * raw.ldc + i);
                if MR == 8 {
                    let mut rows = [zero; 8];
                    for r in 0..MR {
                        rows[r] = sum[r][v];
                    }
                    S::store_transposed(c, raw.ldc, rows, n);
                    continue;
                }
                for l in 0..n {
                    for r in 0..MR {
                        *c.add(l * raw.ldc + r) = *(&raw const sum[r][v]).cast::<T>().add(l);
                    }
                }
            }
            return;
        }
        for r in 0..MR {
            let row = raw.c.add((i + r) * raw.ldc + j);
            for v in 0..NV {
                let p = row.add(v * S::LANES);
                let whole = v + 1 < NV || full;
                let old = match (raw.add, whole) {
                    (false, _) => zero,
                    (true, true) => S::load(p),
                    (true, false) => S::load_partial(p, last),
                };
                let value = S::add(old, sum[r][v]);
                if whole { S::store(p, value) } else { S::store_partial(p, last, value) }
            }
        }
    }
}

/// `out[c, r] = a[r, c]` for a row-major `[rows, cols]`.
pub fn transpose<T: Real>(out: &mut [T], a: &[T], rows: usize, cols: usize) {
    assert!(out.len() >= rows * cols && a.len() >= rows * cols, "both hold rows x cols");
    // SAFETY: as just checked.
    unsafe { transpose_into(out.as_mut_ptr(), rows, a.as_ptr(), cols, rows, cols) }
}

/// `out[c * ld_out + r] = a[r * ld_a + c]` for a block of a matrix.
///
/// # Safety
/// Both blocks must be valid, and nobody else may touch that of `out` meanwhile.
pub unsafe fn transpose_into<T: Real>(
    out: *mut T,
    ld_out: usize,
    a: *const T,
    ld_a: usize,
    rows: usize,
    cols: usize,
) {
    // SAFETY: the caller's promise.
    unsafe { T::transpose_kernel(Transpose { out, ld_out, a, ld_a, rows, cols }) }
}

/// The arguments of [`transpose_into`].
#[derive(Clone, Copy)]
pub struct Transpose<T> {
    out: *mut T,
    ld_out: usize,
    a: *const T,
    ld_a: usize,
    rows: usize,
    cols: usize,
}

by_instruction_set! {
    /// Transposes a block.
    ///
    /// # Safety
    /// As for [`transpose_into`].
    unsafe fn transpose_f64(Transpose<f64>) = transpose_by;
    /// As [`transpose_f64`].
    ///
    /// # Safety
    /// As there.
    unsafe fn transpose_f32(Transpose<f32>) = transpose_by;
}

/// Eight rows at a time by vectors, what is left number by number.
#[inline(always)]
unsafe fn transpose_by<T: Real, S: Simd<T = T>>(transpose: Transpose<T>) {
    let Transpose { out, ld_out, a, ld_a, rows, cols } = transpose;
    let whole = rows / 8 * 8;
    unsafe {
        for r in (0..whole).step_by(8) {
            for c in (0..cols).step_by(S::LANES) {
                let n = S::LANES.min(cols - c);
                let from = a.add(r * ld_a + c);
                let mut block = [S::splat(T::ZERO); 8];
                for k in 0..8 {
                    block[k] = match n == S::LANES {
                        true => S::load(from.add(k * ld_a)),
                        false => S::load_partial(from.add(k * ld_a), n),
                    };
                }
                S::store_transposed(out.add(c * ld_out + r), ld_out, block, n);
            }
        }
        for r in whole..rows {
            for c in 0..cols {
                *out.add(c * ld_out + r) = *a.add(r * ld_a + c);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(n: usize, salt: f64) -> Vec<f64> {
        (0..n).map(|k| ((k as f64 + salt) * 12.9898).sin()).collect()
    }

    fn check<T: Real>(
        m: usize,
        n: usize,
        k: usize,
        transposed: bool,
        accumulate: Accumulate,
        tolerance: f64,
    ) {
        let a = noise(m * k, 0.3);
        let b = noise(k * n, 0.7);
        let c0 = noise(m * n, 0.9);
        let cast = |x: &[f64]| x.iter().map(|&x| T::from_f64(x)).collect::<Vec<T>>();
        let (at, bt, mut ct) = (cast(&a), cast(&b), cast(&c0));
        let (row, col) = if transposed { (1, m) } else { (k, 1) };
        product(&mut ct, n, accumulate, Strided { data: &at, row, col }, &bt, n, m, n, k);
        for i in 0..m {
            for j in 0..n {
                let mut want: f64 = (0..k).map(|l| a[i * row + l * col] * b[l * n + j]).sum();
                if accumulate == Accumulate::Add {
                    want += c0[i * n + j];
                }
                let got = ct[i * n + j].to_f64();
                assert!(
                    (got - want).abs() < tolerance * (1.0 + want.abs()),
                    "{m}x{n}x{k} ({i},{j}): {got} {want}"
                );
            }
        }
    }

    #[test]
    fn products_of_every_awkward_size_agree_with_plain_sums() {
        for (m, n, k) in [
            (1, 1, 1),
            (8, 24, 5),
            (9, 25, 16),
            (7, 47, 3),
            (16, 48, 33),
            (13, 100, 64),
            (3, 7, 0),
            (21, 17, 9),
            // More than a block of the inner dimension, and of rows.
            (70, 37, 450),
        ] {
            for transposed in [false, true] {
                for accumulate in [Accumulate::Overwrite, Accumulate::Add] {
                    check::<f64>(m, n, k, transposed, accumulate, 1e-13);
                    check::<f32>(m, n, k, transposed, accumulate, 1e-4);
                }
            }
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma")]
    unsafe fn plain<T: Real, S: Simd<T = T>>(raw: Raw<T>) {
        unsafe { panels::<T, S, 4>(raw) }
    }

    #[cfg(target_arch = "x86_64")]
    fn check_bits<T: Real, S: packed::Kernel<T = T>>(
        m: usize,
        n: usize,
        k: usize,
        transposed: bool,
        add: bool,
    ) {
        let cast = |x: Vec<f64>| x.into_iter().map(T::from_f64).collect::<Vec<T>>();
        let (a, b, old) = (cast(noise(m * k, 0.3)), cast(noise(k * n, 0.7)), cast(noise(m * n, 0.9)));
        let (mut want, mut got) = (old.clone(), old);
        let far: Vec<u8> = vec![0; 5000];
        let places =
            [(far.as_ptr(), far.len()), (far.as_ptr(), 70), (std::ptr::null(), 9), (far.as_ptr(), 1)];
        let raw = |c: &mut Vec<T>, meanwhile| Raw {
            c: c.as_mut_ptr(),
            ldc: if transposed { m } else { n },
            transposed,
            add,
            a: a.as_ptr(),
            a_row: k,
            a_col: 1,
            b: b.as_ptr(),
            ldb: n,
            m,
            n,
            k,
            meanwhile,
        };
        // SAFETY: the matrices have these sizes, and the machine has AVX2.
        unsafe {
            plain::<T, S>(raw(&mut want, Meanwhile::NOTHING));
            run_avx2::<T, S>(raw(&mut got, Meanwhile::new(places)));
        }
        let differ = (0..m * n).find(|&i| want[i].to_f64().to_bits() != got[i].to_f64().to_bits());
        assert_eq!(differ, None, "{m}x{n}x{k}, transposed {transposed}, add {add}");
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn packed_products_have_the_bits_of_plain_ones() {
        if isa() == Isa::Portable {
            return eprintln!("skipped: no AVX2");
        }
        for (m, n, k) in [(8, 24, 8), (9, 25, 16), (64, 24, 500), (16, 128, 240), (75, 53, 193), (32, 8, 21)]
        {
            for (transposed, add) in [(false, false), (false, true), (true, false)] {
                check_bits::<f64, Avx2<f64>>(m, n, k, transposed, add);
                check_bits::<f32, Avx2<f32>>(m, n, k, transposed, add);
            }
        }
    }

    fn check_turn<T: Real>(rows: usize, cols: usize) {
        let a: Vec<T> = noise(rows * cols, 0.0).into_iter().map(T::from_f64).collect();
        let mut b = vec![T::ZERO; a.len()];
        transpose(&mut b, &a, rows, cols);
        for r in 0..rows {
            for c in 0..cols {
                assert_eq!(b[c * rows + r], a[r * cols + c], "{rows} x {cols} ({r}, {c})");
            }
        }
    }

    #[test]
    fn transpose_turns_rows_into_columns() {
        for (rows, cols) in [(37, 21), (8, 8), (16, 16), (24, 48), (1, 5), (9, 17), (15, 1)] {
            check_turn::<f64>(rows, cols);
            check_turn::<f32>(rows, cols);
        }
    }

    fn check_turned_product<T: Real>(m: usize, n: usize, k: usize) {
        let cast = |x: Vec<f64>| x.into_iter().map(T::from_f64).collect::<Vec<T>>();
        let (a, b) = (cast(noise(m * k, 0.3)), cast(noise(k * n, 0.7)));
        let a = Strided { data: &a, row: k, col: 1 };
        let (mut plain, mut transposed) = (vec![T::ZERO; m * n], vec![T::ZERO; m * n]);
        product(&mut plain, n, Accumulate::Overwrite, a, &b, n, m, n, k);
        // SAFETY: the buffer holds n rows of m numbers.
        unsafe { product_transposed_into(transposed.as_mut_ptr(), m, a, &b, n, m, n, k) };
        for i in 0..m {
            for j in 0..n {
                assert_eq!(transposed[j * m + i], plain[i * n + j], "{m}x{n}x{k} ({i},{j})");
            }
        }
    }

    #[test]
    fn a_turned_product_is_the_product_turned() {
        for (m, n, k) in [(8, 24, 5), (9, 25, 16), (7, 47, 3), (16, 48, 33), (13, 100, 64), (21, 17, 9)] {
            check_turned_product::<f64>(m, n, k);
            check_turned_product::<f32>(m, n, k);
        }
    }
}
