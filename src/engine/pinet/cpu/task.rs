//! What a task has in hand while it takes a block through a segment.

use super::batch::{Batch, Block};
use super::memory::{Buf, Plane, Rows, Shared};
use super::plan::{Layer, View};
use crate::engine::cpu::pool::Parts;
use crate::engine::cpu::real::Real;
use std::ops::Range;

/// Memory for the changes of some pairs, plane after plane.
pub struct Region<'a, T> {
    pub data: &'a Parts<T>,
    pub start: usize,
    /// The pair that the rows start with, and how many there may be.
    pub first_pair: usize,
    pub pairs: usize,
}

/// One block in one segment.
pub struct Task<'a, T> {
    pub mem: &'a Shared<'a, T>,
    pub weights: &'a [T],
    /// Pair layers of the first block for every kind of pair ([`super::kinds`]).
    pub kinds: &'a [T],
    pub batch: &'a Batch<T>,
    pub block: &'a Block,
    /// dE by the radial functions, and by the directions of each size: pairs of this block are the task's own.
    pub de_e: &'a Parts<T>,
    pub de_directions: &'a [Parts<T>],
    /// Memory of all threads, and where that of this one starts.
    pub local: &'a Parts<T>,
    pub local_start: usize,
    pub region: Region<'a, T>,
    pub scratch: &'a mut [T],
    /// The group's part of the segment's gradient, and of that by kinds.
    pub slot: &'a mut [T],
    pub kind_slot: &'a mut [T],
    /// Whether tangents and dE are there.
    pub forces: bool,
    /// Whether those dE of pairs that are not kept are computed a second time: what they add to atoms is there already.
    pub again: bool,
}

impl<'a, T: Real> Task<'a, T> {
    /// The rows of a matrix that belong to the block.
    pub fn span(&self, buf: Buf) -> Range<usize> {
        match self.mem.shape(buf).rows {
            Rows::Atom => self.block.atoms.clone(),
            Rows::Pair => self.block.pairs.clone(),
        }
    }

    /// Where the block's own rows lie in the region, if they do.
    fn in_region(&self, buf: Buf, plane: Plane) -> Option<(usize, usize)> {
        let (before, width) = self.mem.passing(buf, plane)?;
        let (region, pairs) = (&self.region, &self.block.pairs);
        let row = pairs.start - region.first_pair;
        Some((region.start + before * region.pairs + row * width, pairs.len() * width))
    }

    /// The block's own rows.
    pub fn own(&self, buf: Buf, plane: Plane) -> &'a [T] {
        if let Some((start, len)) = self.in_region(buf, plane) {
            // SAFETY: rows of this block; nobody writes them while they are read.
            return unsafe { self.region.data.part(start, len) };
        }
        if let Some((start, len)) = self.mem.local(buf, plane, self.block.pairs.len()) {
            // SAFETY: memory of this thread; nobody writes these rows while they are read.
            return unsafe { self.local.part(self.local_start + start, len) };
        }
        self.mem.rows(buf, plane, self.span(buf))
    }

    /// The block's own rows to write.
    #[allow(clippy::mut_from_ref)]
    pub fn own_mut(&self, buf: Buf, plane: Plane) -> &'a mut [T] {
        if let Some((start, len)) = self.in_region(buf, plane) {
            // SAFETY: rows of this block, which one task at a time has; no operation asks for the same matrix and plane
            // twice at once.
            return unsafe { self.region.data.part(start, len) };
        }
        if let Some((start, len)) = self.mem.local(buf, plane, self.block.pairs.len()) {
            // SAFETY: memory of this thread; no operation asks for the same matrix and plane twice at once.
            return unsafe { self.local.part(self.local_start + start, len) };
        }
        // SAFETY: the rows belong to this block, which one task at a time has, and no operation asks for the same
        // matrix and plane twice at once.
        unsafe { self.mem.rows_mut(buf, plane, self.span(buf)) }
    }

    /// All rows of a matrix of atoms or pairs that an earlier segment finished.
    pub fn whole(&self, buf: Buf, plane: Plane) -> &'a [T] {
        let n = match self.mem.shape(buf).rows {
            Rows::Atom => self.batch.n_atoms(),
            Rows::Pair => self.batch.n_pairs(),
        };
        self.mem.rows(buf, plane, 0..n)
    }

    pub fn w(&self, layer: &Layer) -> &'a [T] {
        &self.weights[layer.packed[0]..][..layer.n_in * layer.n_out]
    }

    pub fn w_transposed(&self, layer: &Layer) -> &'a [T] {
        &self.weights[layer.packed[1]..][..layer.n_in * layer.n_out]
    }

    pub fn b(&self, layer: &Layer) -> Option<&'a [T]> {
        layer.b.map(|_| &self.weights[layer.packed[2]..][..layer.n_out])
    }

    /// First and second atom of the block's pairs.
    pub fn ends(&self) -> (&'a [u32], &'a [u32]) {
        let pairs = self.block.pairs.clone();
        (&self.batch.i[pairs.clone()], &self.batch.j[pairs])
    }

    /// Radial functions of the block's pairs among those of all.
    pub fn radial<'b>(&self, all: &'b [T], n_basis: usize) -> &'b [T] {
        &all[self.block.pairs.start * n_basis..self.block.pairs.end * n_basis]
    }
}

/// How the rows of a view lie: `rows` rows of `n` numbers, `ld` apart, from `col` on.
#[derive(Debug, Clone, Copy)]
pub struct Grid {
    pub rows: usize,
    pub n: usize,
    pub ld: usize,
    pub col: usize,
}

impl Grid {
    /// `parts` rows for each row of the matrix.
    pub fn new<T: Real>(task: &Task<T>, view: View, parts: usize) -> Self {
        let rows = task.span(view.buf).len() * parts;
        let ld = if parts > 1 { view.width / parts } else { task.mem.width(view.buf) };
        Grid { rows, n: view.width / parts, ld, col: view.col }
    }

    /// Stretches of contiguous numbers: in the matrix, and in a copy without gaps.
    pub fn stretches(self) -> impl Iterator<Item = (Range<usize>, Range<usize>)> {
        let whole = self.ld == self.n;
        let (count, len) = if whole { (1, self.rows * self.n) } else { (self.rows, self.n) };
        (0..count).map(move |r| {
            let start = r * self.ld + self.col;
            (start..start + len, r * self.n..r * self.n + len)
        })
    }
}
