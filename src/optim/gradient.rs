//! The gradient of a step, as an optimiser is given it.

use crate::comm::vectors::{CELL, Sums};
use crate::engine::cpu::pool::Pool;
use std::ops::Range;

/// The sum of the gradients of a step, as much of it as this rank is given.
///
/// It is walked cell by cell: a cell is one task, large enough to outweigh handing it out, small enough to stay in cache. Where
/// ranks share memory the sums over ranks are made on the first walk, so that each cell is used while it is there.
pub struct Gradient<'a> {
    sums: Sums<'a>,
    slice: Range<usize>,
    count: f64,
    added_up: bool,
}

impl<'a> Gradient<'a> {
    /// All of a gradient that is complete.
    pub fn of(grad: &'a [f64]) -> Self {
        Gradient { sums: Sums::of(grad), slice: 0..grad.len(), count: 1.0, added_up: true }
    }

    /// A slice of sums of `count` gradients, which ends where cells do.
    ///
    /// # Safety
    /// The caller owns this slice of the sums, and has not added it up yet.
    pub unsafe fn of_slice(sums: Sums<'a>, slice: Range<usize>, count: f64) -> Self {
        Gradient { sums, slice, count, added_up: false }
    }

    /// How many gradients it is the sum of.
    pub fn count(&self) -> f64 {
        self.count
    }

    /// The parameters that this rank has the gradient of, and changes.
    pub fn slice(&self) -> Range<usize> {
        self.slice.clone()
    }

    /// Calls `work` with the number, the range and the sums of every cell of the slice, on all threads.
    pub fn for_each_cell(&mut self, pool: &Pool, work: impl Fn(usize, Range<usize>, &[f64]) + Sync) {
        let (sums, slice, added_up) = (&self.sums, &self.slice, self.added_up);
        let first = slice.start / CELL;
        // An empty slice may begin anywhere.
        let cells = slice.end.div_ceil(CELL) - slice.start.div_ceil(CELL);
        pool.run(cells, |k| {
            let cell = (first + k) * CELL..slice.end.min((first + k + 1) * CELL);
            let sum = match added_up {
                true => sums.part(cell.clone()),
                // SAFETY: one cell for each task, on the first walk, of a slice that this rank owns.
                false => unsafe { sums.add_up(cell.clone()) },
            };
            work(first + k, cell, sum);
        });
        self.added_up = true;
    }

    /// The gradient of a rank that is given all of it.
    pub fn whole(&self) -> &[f64] {
        assert!(self.added_up && self.slice.start == 0, "this rank has the whole gradient");
        self.sums.part(self.slice.clone())
    }
}

/// Ranges of the flat vector, by the cell that they lie in, each with its number.
pub fn by_cell(ranges: &[Range<usize>], n_params: usize) -> Vec<Vec<(usize, Range<usize>)>> {
    let mut cells = vec![Vec::new(); n_params.div_ceil(CELL)];
    for (number, range) in ranges.iter().enumerate() {
        for k in range.start / CELL..range.end.div_ceil(CELL) {
            cells[k].push((number, range.start.max(k * CELL)..range.end.min((k + 1) * CELL)));
        }
    }
    cells
}
