//! How the work of the fitting nets is cut into tasks.
//!
//! Fixed sizes, so that results do not depend on the number of threads; small ones, so that threads end together. Made once
//! for each shape of batch.

use super::fold::Fold;
use super::rows::COLS;
use crate::engine::cpu::real::Real;
use crate::model::net::NetShape;
use std::ops::Range;

/// Inputs (rows of W) that one backward task computes, and the most atoms that it does so for.
const BACK_COLS: usize = 32;
const BACK_ROWS: usize = 192;
/// Rows of a weight gradient that one job computes, and how much of the sum it does at once.
pub const GRAD_ROWS: usize = 32;
pub const GRAD_DEPTH: usize = 256;
/// Rows of the folded weights that one task adds up.
const FOLD_ROWS: usize = 34;

/// One block of a matrix `[atoms, units]` of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Task {
    pub group: usize,
    pub row: usize,
    pub rows: usize,
    pub col: usize,
    pub cols: usize,
}

/// A part of the gradient.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Job {
    /// Some rows of a weight matrix, by their number after the fold.
    Weights { group: usize, layer: usize, row: usize, rows: usize },
    /// Biases, time steps and the output layer, unless its weights are jobs of their own.
    Rest { group: usize },
}

/// The tasks of every stage.
#[derive(Default)]
pub struct Schedule {
    sizes: Vec<usize>,
    /// Rows of the folded weights of each group.
    pub folds: Vec<(usize, Range<usize>)>,
    /// For each hidden layer, blocks of its outputs.
    pub forward: Vec<Vec<Task>>,
    /// For each hidden layer, blocks of its inputs.
    pub backward: Vec<Vec<Task>>,
    pub gradient: Vec<Job>,
}

/// Rows and columns of a forward task: one panel of the matrix kernel wide, deep enough to use it several times.
const fn forward_block<T>() -> (usize, usize) {
    (8 * size_of::<T>(), 192 / size_of::<T>())
}

/// Atoms whose sums are kept apart in hidden layer `l` of `n_hidden`: those of one task.
pub fn row_chunk<T>(l: usize, n_hidden: usize) -> usize {
    if l + 1 == n_hidden { forward_block::<T>().0 } else { BACK_ROWS }
}

/// Cuts a range into pieces of at most `size`.
fn pieces(range: Range<usize>, size: usize) -> impl Iterator<Item = Range<usize>> {
    let end = range.end;
    range.step_by(size).map(move |start| start..end.min(start + size))
}

impl Schedule {
    /// Whether this is the schedule for `n[c]` atoms of each type.
    pub fn is_for(&self, n: &[usize]) -> bool {
        self.sizes == n
    }

    /// With the weights of the output layer among the jobs of the gradient, or without.
    pub fn new<T: Real>(nets: &[NetShape], fold: Fold, n: &[usize], with_output: bool) -> Self {
        let n_hidden = nets[0].layers.len() - 1;
        let mut schedule = Schedule { sizes: n.to_vec(), ..Schedule::default() };
        for group in 0..nets.len() {
            schedule.folds.extend(pieces(0..fold.triangle(), FOLD_ROWS).map(|rows| (group, rows)));
            schedule.gradient.push(Job::Rest { group });
        }
        for l in 0..n_hidden {
            let (mut forward, mut backward) = (Vec::new(), Vec::new());
            for group in 0..nets.len() {
                let shape = &nets[group].layers[l];
                let block = forward_block::<T>();
                forward.extend(blocks(group, n[group], block.0, pieces(0..shape.n_out, block.1)));
                // Folded weights lie elsewhere: no task reads both.
                let triangle = if l == 0 { fold.triangle() } else { 0 };
                let width = if l == 0 { fold.width(shape.n_in) } else { shape.n_in };
                let columns = || pieces(0..triangle, BACK_COLS).chain(pieces(triangle..width, BACK_COLS));
                backward.extend(blocks(group, n[group], BACK_ROWS, columns()));
                let rows = pieces(0..triangle, GRAD_ROWS).chain(pieces(triangle..width, GRAD_ROWS));
                let job = |r: Range<usize>| Job::Weights { group, layer: l, row: r.start, rows: r.len() };
                schedule.gradient.extend(rows.map(job));
            }
            schedule.forward.push(forward);
            schedule.backward.push(backward);
        }
        for group in (0..nets.len()).filter(|_| with_output) {
            let rows = pieces(0..nets[group].layers[n_hidden].n_in, GRAD_ROWS);
            let job = |r: Range<usize>| Job::Weights { group, layer: n_hidden, row: r.start, rows: r.len() };
            schedule.gradient.extend(rows.map(job));
        }
        debug_assert!(forward_block::<T>().1 <= COLS && BACK_COLS <= COLS);
        schedule
    }
}

/// Blocks of at most `rows` atoms by the given columns.
fn blocks(group: usize, n: usize, rows: usize, columns: impl Iterator<Item = Range<usize>>) -> Vec<Task> {
    let columns: Vec<_> = columns.collect();
    let mut out = Vec::new();
    for row in pieces(0..n, rows) {
        out.extend(columns.iter().map(|col| Task {
            group,
            row: row.start,
            rows: row.len(),
            col: col.start,
            cols: col.len(),
        }));
    }
    out
}
