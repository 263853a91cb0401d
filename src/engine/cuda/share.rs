//! How the kernels of pairs and descriptors share rows out: `Share` of `kernels/common.cu`.

use crate::gpu::{Device, Launch};

/// Warps of a block, and its threads.
const WARPS: usize = 8;
const THREADS: usize = 32 * WARPS;
/// Pairs of a warp in shared memory: numbers of each, and how far apart they stand. As in `kernels/pairs.cu`.
const FEATURE_ROWS: usize = 26;
const FORCE_ROWS: usize = 10;
const PAIR_LD: usize = 36;
const MOST_TERMS: usize = 96;

/// Threads of a block that works on one row after the other (`kernels/evaluate.cu`), and blocks of each multiprocessor.
const ROW_THREADS: usize = 128;
const ROW_BLOCKS: usize = 16;

/// Blocks for so many rows, which keep numbers and the starts of panels in shared memory.
pub fn rows_in_turn(device: &Device, n_rows: usize, numbers: usize, n_panels: usize) -> Launch {
    let shared = numbers * device.numbers.size() + 4 * (n_panels + 1);
    Launch::new(n_rows.min(ROW_BLOCKS * device.multiprocessors), ROW_THREADS).shared(shared)
}

/// Numbers of a block that makes features of rows: functions of its pairs, and terms of their series.
pub fn numbers_of_features(terms: usize, components: usize) -> usize {
    ROW_THREADS * components + terms * (ROW_THREADS + 1)
}

/// Rows of a batch, shared out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    /// Rows of a block: 1, 2, 4 or 8. The other warps of the block help with them.
    pub each: i32,
    pub blocks: usize,
    /// Bytes of shared memory.
    pub shared: usize,
}

impl Share {
    /// Rows that take so many numbers of shared memory each, beside those of the block: a warp for each row where there are
    /// rows enough to keep the GPU busy, else more.
    fn new(device: &Device, n_rows: usize, of_row: usize, of_block: impl Fn(usize) -> usize) -> Share {
        Self::fit(
            device.multiprocessors,
            device.max_shared() / device.numbers.size(),
            n_rows,
            of_row,
            of_block,
        )
        .scaled(device.numbers.size())
    }

    fn fit(
        multiprocessors: usize,
        room: usize,
        n_rows: usize,
        of_row: usize,
        of_block: impl Fn(usize) -> usize,
    ) -> Share {
        let numbers = |each: usize| each * of_row + of_block(each);
        let is_good = |each: usize| 4 * each * multiprocessors <= 3 * n_rows && 2 * numbers(each) <= room;
        let each = [8, 4, 2].into_iter().find(|&each| is_good(each)).unwrap_or(1);
        Share { each: each as i32, blocks: n_rows.div_ceil(each), shared: numbers(each) }
    }

    fn scaled(self, size: usize) -> Share {
        Share { shared: self.shared * size, ..self }
    }

    /// How a kernel is started on them.
    pub fn launch(&self) -> Launch {
        Launch::new(self.blocks, THREADS).shared(self.shared)
    }

    /// For kernels that keep a few numbers of each row.
    pub fn of_rows(device: &Device, n_rows: usize, numbers: usize) -> Share {
        Self::new(device, n_rows, numbers, |_| 0)
    }

    /// For the adjoint of the descriptor: all warps leave their sums over rows of D.
    pub fn of_adjoint(device: &Device, n_rows: usize, ldm: usize, m2: usize) -> Share {
        Self::new(device, n_rows, 8 * ldm, |_| 4 * WARPS * m2)
    }

    /// For features and their tangent.
    pub fn of_features(device: &Device, n_rows: usize) -> Share {
        let pieces = |each: usize| if each < WARPS { 4 * WARPS * MOST_TERMS } else { 0 };
        Self::new(device, n_rows, 0, |each| WARPS * FEATURE_ROWS * PAIR_LD + pieces(each))
    }

    /// How far apart the components of dE/dQ stand: `force_ld` in `kernels/pairs.cu`.
    pub fn force_ld(columns: usize) -> usize {
        columns.next_multiple_of(32) + 4
    }

    /// For the forces of pairs, and whether dE/dQ of a row, 4 times `columns` numbers, is brought to shared memory.
    pub fn of_forces(device: &Device, n_rows: usize, columns: usize) -> (Share, bool) {
        let of_row = 4 * Self::force_ld(columns);
        let of_block = WARPS * FORCE_ROWS * PAIR_LD;
        let is_near = (of_row + of_block) * device.numbers.size() <= device.max_shared();
        (Self::new(device, n_rows, if is_near { of_row } else { 0 }, |_| of_block), is_near)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_rows_get_a_block_each_and_many_a_warp_each() {
        let of = |n_rows: usize| Share::fit(132, 28_000, n_rows, 800, |_| 512);
        assert_eq!(of(192), Share { each: 1, blocks: 192, shared: 1312 });
        assert_eq!((of(768).each, of(3072).each), (4, 8));
        assert_eq!(of(49_153), Share { each: 8, blocks: 6145, shared: 6912 });
    }

    #[test]
    fn rows_that_need_much_memory_get_more_warps() {
        let of = |numbers: usize| Share::fit(132, 28_000, 49_152, numbers, |_| 0).each;
        assert_eq!((of(1750), of(1751), of(7001), of(20_000)), (8, 4, 1, 1));
    }
}
