//! Dense products where there are sixteen vector registers (AVX2).
//!
//! A tile of C, four rows of three vectors, leaves one register for A and three for B. The compiler does not keep to that: it
//! spills, so the innermost loop is written in assembly. B is packed panel by panel, in blocks of the inner dimension that stay
//! in the first cache: the first tile packs what it reads, the others find it there. The sums of a tile wait in memory from one
//! block to the next, so that each is made in the same order as in [`super::dense`], with the same bits.

use super::dense::{LINE, Meanwhile, Raw};
use super::simd::{Avx2, Simd, prefetch_to_write};
use std::arch::asm;
use std::mem::MaybeUninit;

/// Rows of a tile.
const MR: usize = 4;
/// The most vectors in a row of a tile.
const NV: usize = 3;
/// Bytes of a vector.
const VECTOR: usize = 32;
/// The most steps of the inner dimension in a block.
const DEPTH: usize = 192;
/// The most rows and panels of C whose sums wait together.
const ROWS: usize = 64;
const PANELS: usize = 2;
/// Rows of B that are asked for ahead of their use.
const AHEAD: usize = 12;

/// What a tile reads and writes in one block of the inner dimension; strides in bytes.
#[derive(Clone, Copy)]
pub struct Block {
    a: *const u8,
    a_row: usize,
    a_col: usize,
    /// B as it lies (to be packed), or packed.
    b: *const u8,
    ldb: usize,
    packed: *mut u8,
    /// `[MR, vectors]`
    sums: *mut u8,
    /// Whether the sums begin with 0.
    fresh: bool,
    steps: usize,
    /// Lines that are fetched meanwhile, two in each eight steps, and from one to the next.
    fetch: *const u8,
    fetch_step: usize,
}

/// The innermost loops.
///
/// # Safety
/// The machine must have AVX2 and FMA, and a [`Block`] must describe valid memory.
#[allow(clippy::missing_safety_doc)]
pub unsafe trait Kernel: Simd {
    /// Adds to the sums; B is packed.
    unsafe fn packed<const VECTORS: usize>(block: Block);
    /// Adds to the sums, and packs B.
    unsafe fn packing<const VECTORS: usize>(block: Block);
}

/// One step of three vectors (or two): the vectors of B are in ymm0 to ymm2, a number of A in ymm3, the sums in ymm4 to ymm15.
macro_rules! step {
    (3, $broadcast:literal, $fma:literal) => {
        concat!(
            step!(@row3 $broadcast, $fma, "{a}", 4, 5, 6),
            step!(@row3 $broadcast, $fma, "{a} + {a_row}", 7, 8, 9),
            step!(@row3 $broadcast, $fma, "{a} + 2 * {a_row}", 10, 11, 12),
            step!(@row3 $broadcast, $fma, "{a} + {a_row3}", 13, 14, 15),
            "add {a}, {a_col}\n",
        )
    };
    (2, $broadcast:literal, $fma:literal) => {
        concat!(
            step!(@row2 $broadcast, $fma, "{a}", 4, 5),
            step!(@row2 $broadcast, $fma, "{a} + {a_row}", 7, 8),
            step!(@row2 $broadcast, $fma, "{a} + 2 * {a_row}", 10, 11),
            step!(@row2 $broadcast, $fma, "{a} + {a_row3}", 13, 14),
            "add {a}, {a_col}\n",
        )
    };
    (@row3 $broadcast:literal, $fma:literal, $a:literal, $x:literal, $y:literal, $z:literal) => {
        concat!(
            step!(@row2 $broadcast, $fma, $a, $x, $y),
            $fma, " ymm", $z, ", ymm3, ymm2\n",
        )
    };
    (@row2 $broadcast:literal, $fma:literal, $a:literal, $x:literal, $y:literal) => {
        concat!(
            $broadcast, " ymm3, [", $a, "]\n",
            $fma, " ymm", $x, ", ymm3, ymm0\n",
            $fma, " ymm", $y, ", ymm3, ymm1\n",
        )
    };
}

/// Moves between the sums in memory and in registers.
macro_rules! sums {
    (load 3) => {
        concat!(
            sums!(@load 4, 0), sums!(@load 5, 32), sums!(@load 6, 64), sums!(@load 7, 96),
            sums!(@load 8, 128), sums!(@load 9, 160), sums!(@load 10, 192), sums!(@load 11, 224),
            sums!(@load 12, 256), sums!(@load 13, 288), sums!(@load 14, 320), sums!(@load 15, 352),
        )
    };
    (store 3) => {
        concat!(
            sums!(@store 4, 0), sums!(@store 5, 32), sums!(@store 6, 64), sums!(@store 7, 96),
            sums!(@store 8, 128), sums!(@store 9, 160), sums!(@store 10, 192), sums!(@store 11, 224),
            sums!(@store 12, 256), sums!(@store 13, 288), sums!(@store 14, 320), sums!(@store 15, 352),
        )
    };
    (load 2) => {
        concat!(
            sums!(@load 4, 0), sums!(@load 5, 32), sums!(@load 7, 64), sums!(@load 8, 96),
            sums!(@load 10, 128), sums!(@load 11, 160), sums!(@load 13, 192), sums!(@load 14, 224),
        )
    };
    (store 2) => {
        concat!(
            sums!(@store 4, 0), sums!(@store 5, 32), sums!(@store 7, 64), sums!(@store 8, 96),
            sums!(@store 10, 128), sums!(@store 11, 160), sums!(@store 13, 192), sums!(@store 14, 224),
        )
    };
    (clear) => {
        concat!(
            sums!(@clear 4), sums!(@clear 5), sums!(@clear 6), sums!(@clear 7), sums!(@clear 8), sums!(@clear 9),
            sums!(@clear 10), sums!(@clear 11), sums!(@clear 12), sums!(@clear 13), sums!(@clear 14), sums!(@clear 15),
        )
    };
    (@load $r:literal, $at:literal) => { concat!("vmovups ymm", $r, ", [{sums} + ", $at, "]\n") };
    (@store $r:literal, $at:literal) => { concat!("vmovups [{sums} + ", $at, "], ymm", $r, "\n") };
    (@clear $r:literal) => { concat!("vxorps xmm", $r, ", xmm", $r, ", xmm", $r, "\n") };
}

/// The vectors of B for the next step.
macro_rules! row_of_b {
    (packed 3) => { "vmovaps ymm0, [{b}]\nvmovaps ymm1, [{b} + 32]\nvmovaps ymm2, [{b} + 64]\nadd {b}, 96\n" };
    (packed 2) => { "vmovaps ymm0, [{b}]\nvmovaps ymm1, [{b} + 32]\nadd {b}, 64\n" };
    (packing 3) => {
        concat!(
            "vmovups ymm0, [{b}]\nvmovups ymm1, [{b} + 32]\nvmovups ymm2, [{b} + 64]\n",
            "prefetcht0 [{b} + {ahead}]\nprefetcht0 [{b} + {ahead} + 64]\nprefetcht0 [{b} + {ahead} + 95]\nadd {b}, {ldb}\n",
            "vmovaps [{packed}], ymm0\nvmovaps [{packed} + 32], ymm1\nvmovaps [{packed} + 64], ymm2\nadd {packed}, 96\n",
        )
    };
    (packing 2) => {
        concat!(
            "vmovups ymm0, [{b}]\nvmovups ymm1, [{b} + 32]\n",
            "prefetcht0 [{b} + {ahead}]\nprefetcht0 [{b} + {ahead} + 63]\nadd {b}, {ldb}\n",
            "vmovaps [{packed}], ymm0\nvmovaps [{packed} + 32], ymm1\nadd {packed}, 64\n",
        )
    };
}

macro_rules! kernel {
    ($t:ty, $broadcast:literal, $fma:literal) => {
        // SAFETY: the trait's contract.
        unsafe impl Kernel for Avx2<$t> {
            #[inline(always)]
            unsafe fn packed<const VECTORS: usize>(block: Block) {
                unsafe {
                    match VECTORS {
                        2 => kernel!(@packed 2, $broadcast, $fma, block),
                        _ => kernel!(@packed 3, $broadcast, $fma, block),
                    }
                }
            }
            #[inline(always)]
            unsafe fn packing<const VECTORS: usize>(block: Block) {
                unsafe {
                    match VECTORS {
                        2 => kernel!(@packing 2, $broadcast, $fma, block),
                        _ => kernel!(@packing 3, $broadcast, $fma, block),
                    }
                }
            }
        }
    };
    (@packed $nv:tt, $broadcast:literal, $fma:literal, $block:ident) => {
        asm!(
            "test {fresh:e}, {fresh:e}",
            "jnz 2f",
            sums!(load $nv),
            "jmp 3f",
            "2:",
            sums!(clear),
            "3:",
            "sub {n}, 8",
            "jb 5f",
            "4:",
            // The rows of A for the next tile, and what is fetched meanwhile.
            "prefetcht0 [{next}]",
            "prefetcht0 [{next} + {a_row}]",
            row_of_b!(packed $nv), step!($nv, $broadcast, $fma),
            row_of_b!(packed $nv), step!($nv, $broadcast, $fma),
            "prefetcht0 [{next} + 2 * {a_row}]",
            "prefetcht0 [{next} + {a_row3}]",
            "lea {next}, [{next} + 8 * {a_col}]",
            row_of_b!(packed $nv), step!($nv, $broadcast, $fma),
            row_of_b!(packed $nv), step!($nv, $broadcast, $fma),
            "prefetcht1 [{fetch}]",
            "add {fetch}, {fetch_step}",
            row_of_b!(packed $nv), step!($nv, $broadcast, $fma),
            row_of_b!(packed $nv), step!($nv, $broadcast, $fma),
            "prefetcht1 [{fetch}]",
            "add {fetch}, {fetch_step}",
            row_of_b!(packed $nv), step!($nv, $broadcast, $fma),
            row_of_b!(packed $nv), step!($nv, $broadcast, $fma),
            "sub {n}, 8",
            "jae 4b",
            "5:",
            "add {n}, 8",
            "jz 7f",
            "6:",
            row_of_b!(packed $nv), step!($nv, $broadcast, $fma),
            "dec {n}",
            "jnz 6b",
            "7:",
            sums!(store $nv),
            a = inout(reg) $block.a => _,
            a_row = in(reg) $block.a_row,
            a_row3 = in(reg) 3 * $block.a_row,
            a_col = in(reg) $block.a_col,
            next = inout(reg) $block.a.wrapping_add(MR * $block.a_row) => _,
            b = inout(reg) $block.packed => _,
            n = inout(reg) $block.steps => _,
            sums = in(reg) $block.sums,
            fresh = in(reg) u32::from($block.fresh),
            fetch = inout(reg) $block.fetch => _,
            fetch_step = in(reg) $block.fetch_step,
            out("ymm0") _, out("ymm1") _, out("ymm2") _, out("ymm3") _, out("ymm4") _, out("ymm5") _,
            out("ymm6") _, out("ymm7") _, out("ymm8") _, out("ymm9") _, out("ymm10") _, out("ymm11") _,
            out("ymm12") _, out("ymm13") _, out("ymm14") _, out("ymm15") _,
            options(nostack),
        )
    };
    (@packing $nv:tt, $broadcast:literal, $fma:literal, $block:ident) => {
        asm!(
            "test {fresh:e}, {fresh:e}",
            "jnz 2f",
            sums!(load $nv),
            "jmp 3f",
            "2:",
            sums!(clear),
            "3:",
            "test {n}, {n}",
            "jz 5f",
            "4:",
            row_of_b!(packing $nv), step!($nv, $broadcast, $fma),
            "dec {n}",
            "jnz 4b",
            "5:",
            sums!(store $nv),
            a = inout(reg) $block.a => _,
            a_row = in(reg) $block.a_row,
            a_row3 = in(reg) 3 * $block.a_row,
            a_col = in(reg) $block.a_col,
            b = inout(reg) $block.b => _,
            ldb = in(reg) $block.ldb,
            ahead = in(reg) AHEAD * $block.ldb,
            packed = inout(reg) $block.packed => _,
            n = inout(reg) $block.steps => _,
            sums = in(reg) $block.sums,
            fresh = in(reg) u32::from($block.fresh),
            out("ymm0") _, out("ymm1") _, out("ymm2") _, out("ymm3") _, out("ymm4") _, out("ymm5") _,
            out("ymm6") _, out("ymm7") _, out("ymm8") _, out("ymm9") _, out("ymm10") _, out("ymm11") _,
            out("ymm12") _, out("ymm13") _, out("ymm14") _, out("ymm15") _,
            options(nostack),
        )
    };
}
kernel!(f64, "vbroadcastsd", "vfmadd231pd");
kernel!(f32, "vbroadcastss", "vfmadd231ps");

/// Whether a product is large enough; panels have two vectors at least.
pub fn is_worth<T>(raw: &Raw<T>) -> bool {
    raw.m >= 2 * MR && raw.n * size_of::<T>() > VECTOR && raw.k >= 8
}

/// Sums that wait, and a packed block of B.
#[repr(align(64))]
struct Memory {
    sums: MaybeUninit<[u8; ROWS * PANELS * NV * VECTOR]>,
    packed: MaybeUninit<[u8; DEPTH * NV * VECTOR]>,
}

/// A panel of columns.
#[derive(Clone, Copy)]
struct Panel {
    start: usize,
    vectors: usize,
    /// Numbers in the last vector.
    last: usize,
}

impl Panel {
    /// The panel from column `start` on: three vectors, but not three and one of the last four, as a single one would not keep the
    /// arithmetic busy.
    fn at(start: usize, n: usize, lanes: usize) -> Panel {
        let left = n - start;
        let vectors = match left.div_ceil(lanes) {
            4 => 2,
            n => n.min(NV),
        };
        Panel { start, vectors, last: lanes.min(left - (vectors - 1) * lanes) }
    }

    fn end(&self, lanes: usize) -> usize {
        self.start + (self.vectors - 1) * lanes + self.last
    }
}

/// The product but for its last `m % 4` rows. Returns how many rows are done.
///
/// # Safety
/// As for the kernels of [`super::dense`]; the machine must have AVX2 and FMA.
#[target_feature(enable = "avx2,fma")]
#[inline(never)] // its memory is not for products that do without
pub unsafe fn run<S: Kernel>(raw: &Raw<S::T>) -> usize {
    let mut memory = Memory { sums: MaybeUninit::uninit(), packed: MaybeUninit::uninit() };
    let (sums, packed) = (memory.sums.as_mut_ptr().cast::<u8>(), memory.packed.as_mut_ptr().cast::<u8>());
    let whole = raw.m / MR * MR;
    // The first tile of each panel packs and does not fetch.
    let tiles = (whole / MR - 1) * raw.n.div_ceil(NV * S::LANES) * raw.k.div_ceil(DEPTH);
    let mut fetch = Fetch::new(raw.meanwhile, tiles);
    for first in (0..whole).step_by(ROWS) {
        let rows = first..whole.min(first + ROWS);
        let mut j = 0;
        while j < raw.n {
            let mut panels = [Panel::at(j, raw.n, S::LANES); PANELS];
            let mut n_panels = 0;
            while n_panels < PANELS && j < raw.n {
                panels[n_panels] = Panel::at(j, raw.n, S::LANES);
                j = panels[n_panels].end(S::LANES);
                n_panels += 1;
            }
            unsafe { group::<S>(raw, rows.clone(), &panels[..n_panels], sums, packed, &mut fetch) };
        }
    }
    whole
}

/// Some rows of some panels, block after block of the inner dimension.
#[inline(always)]
unsafe fn group<S: Kernel>(
    raw: &Raw<S::T>,
    rows: std::ops::Range<usize>,
    panels: &[Panel],
    sums: *mut u8,
    packed: *mut u8,
    fetch: &mut Fetch,
) {
    let blocks = raw.k.div_ceil(DEPTH);
    let depth = raw.k.div_ceil(blocks);
    let size = size_of::<S::T>();
    for from in (0..raw.k).step_by(depth) {
        let to = raw.k.min(from + depth);
        for (p, &panel) in panels.iter().enumerate() {
            let mut is_packed = false;
            unsafe {
                if panel.last < S::LANES {
                    pack_ragged::<S>(raw, panel, from, to, packed.cast());
                    is_packed = true;
                }
                for i in rows.clone().step_by(MR) {
                    let sums = sums.add((p * ROWS + i - rows.start) * NV * VECTOR);
                    let line = if is_packed { fetch.next(to - from) } else { None };
                    let block = Block {
                        a: raw.a.add(i * raw.a_row + from * raw.a_col).cast(),
                        a_row: raw.a_row * size,
                        a_col: raw.a_col * size,
                        b: raw.b.add(from * raw.ldb + panel.start).cast(),
                        ldb: raw.ldb * size,
                        packed,
                        sums,
                        fresh: from == 0,
                        steps: to - from,
                        // Where there is nothing to fetch, the same line again, which is there.
                        fetch: line.unwrap_or(sums),
                        fetch_step: if line.is_some() { LINE } else { 0 },
                    };
                    if to == raw.k {
                        ask_for_c::<S>(raw, panel, i);
                    }
                    multiply::<S>(block, panel.vectors, is_packed);
                    is_packed = true;
                    if to == raw.k {
                        write::<S>(raw, panel, i, sums.cast());
                    }
                }
            }
        }
    }
}

#[inline(always)]
unsafe fn multiply<S: Kernel>(block: Block, vectors: usize, is_packed: bool) {
    unsafe {
        match (vectors, is_packed) {
            (3, true) => S::packed::<3>(block),
            (3, false) => S::packing::<3>(block),
            (_, true) => S::packed::<2>(block),
            (_, false) => S::packing::<2>(block),
        }
    }
}

/// Packs a block of a panel whose last vector is not whole, with zeros behind it.
#[inline(always)]
unsafe fn pack_ragged<S: Kernel>(raw: &Raw<S::T>, panel: Panel, from: usize, to: usize, packed: *mut S::T) {
    let vectors = panel.vectors;
    unsafe {
        for k in from..to {
            let row = raw.b.add(k * raw.ldb + panel.start);
            let out = packed.add((k - from) * vectors * S::LANES);
            S::prefetch(row.wrapping_add(AHEAD * raw.ldb));
            for v in 0..panel.vectors {
                let is_whole = v + 1 < panel.vectors || panel.last == S::LANES;
                let p = row.add(v * S::LANES);
                let x = if is_whole { S::load(p) } else { S::load_partial(p, panel.last) };
                S::store(out.add(v * S::LANES), x);
            }
        }
    }
}

/// C is written at the end; asked for at the beginning, it is there by then.
#[inline(always)]
unsafe fn ask_for_c<S: Kernel>(raw: &Raw<S::T>, panel: Panel, i: usize) {
    let end = panel.end(S::LANES);
    unsafe {
        if raw.transposed {
            for l in panel.start..end {
                prefetch_to_write(raw.c.add(l * raw.ldc + i));
            }
        } else {
            for r in i..i + MR {
                prefetch_to_write(raw.c.add(r * raw.ldc + panel.start));
                prefetch_to_write(raw.c.add(r * raw.ldc + end - 1));
            }
        }
    }
}

/// Writes the sums of a tile into C.
#[inline(always)]
unsafe fn write<S: Kernel>(raw: &Raw<S::T>, panel: Panel, i: usize, sums: *const S::T) {
    let vectors = panel.vectors;
    unsafe {
        for v in 0..panel.vectors {
            let n = if v + 1 < panel.vectors { S::LANES } else { panel.last };
            let column = panel.start + v * S::LANES;
            let mut rows = [S::load(sums.add(v * S::LANES)); MR];
            for r in 1..MR {
                rows[r] = S::load(sums.add((r * vectors + v) * S::LANES));
            }
            if raw.transposed {
                S::store_four_transposed(raw.c.add(column * raw.ldc + i), raw.ldc, rows, n);
                continue;
            }
            for r in 0..MR {
                let p = raw.c.add((i + r) * raw.ldc + column);
                match (raw.add, n == S::LANES) {
                    (false, true) => S::store(p, rows[r]),
                    (true, true) => S::store(p, S::add(S::load(p), rows[r])),
                    (false, false) => S::store_partial(p, n, rows[r]),
                    (true, false) => S::store_partial(p, n, S::add(S::load_partial(p, n), rows[r])),
                }
            }
        }
    }
}

/// Spreads what is to be fetched over the tiles.
struct Fetch {
    /// What is left of each place: from where on, and how many lines.
    places: [(*const u8, usize); 4],
    /// Lines of all places, and how many of them were asked for.
    lines: usize,
    asked: usize,
    /// Tiles that can ask, and those that could.
    tiles: usize,
    tile: usize,
}

impl Fetch {
    fn new(meanwhile: Meanwhile, tiles: usize) -> Self {
        let places = meanwhile.places;
        Fetch { places, lines: places.iter().map(|(_, lines)| lines).sum(), asked: 0, tiles, tile: 0 }
    }

    /// Where the next tile begins to fetch, if it does.
    #[inline(always)]
    fn next(&mut self, steps: usize) -> Option<*const u8> {
        self.tile += 1;
        // As many as this part of the tiles should have asked for?
        if self.asked * self.tiles >= self.lines * self.tile {
            return None;
        }
        let (place, left) = self.places.iter_mut().find(|(_, left)| *left > 0)?;
        let (start, asked) = (*place, (steps / 8 * 2).min(*left).max(1));
        (*place, *left) = (start.wrapping_add(asked * LINE), *left - asked);
        self.asked += asked;
        Some(start)
    }
}
