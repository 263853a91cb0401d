//! A batch as the passes of the engine see it.
//!
//! Atoms of a batch are rows, grouped by type and, within a type, by frame: a segment is the atoms of one type in
//! one frame. A block is up to [`ATOMS`] rows of a segment, the unit of work of a thread.

use super::Seeds;
use super::chebyshev::{Plan, n_stacks};
use super::direct::Atom;
use super::fitting::fold::Fold;
use super::frame::FramesOfPart;
use super::real::Real;
use super::turned::Rows;
use crate::model::dp::Dp;
use std::ops::Range;

/// Rows of one block. Fixed, so that results do not depend on the number of threads.
pub const ATOMS: usize = 16;

/// The atoms of one type in one frame, or some of them.
#[derive(Clone, Copy, Debug)]
pub struct Segment {
    pub center: usize,
    pub frame: usize,
    /// First row in the batch and in the frame.
    pub row: usize,
    pub local: usize,
    pub n: usize,
}

/// How the rows of a batch are arranged. Its memory is used again for the next batch.
#[derive(Default)]
pub struct Layout {
    pub segments: Vec<Segment>,
    pub blocks: Vec<Segment>,
    /// Whether the series holds for each frame; where not, the net itself is used.
    pub by_series: Vec<bool>,
    /// First pair, and first atom (in file order), of each frame; and the end.
    pub first_pair: Vec<usize>,
    pub first_atom: Vec<usize>,
    /// First row of each type, and the end.
    pub type_rows: Vec<usize>,
    /// First row of each fitting net, and the end; there may be one for all types.
    pub group_rows: Vec<usize>,
    /// Atoms of each fitting net.
    pub group_sizes: Vec<usize>,
    /// Ranges of atoms, in file order, of each frame.
    pub atom_ranges: Vec<(usize, Range<usize>)>,
}

/// Overwrites `sums` with 0, the first size, the first two together, ...
fn running_sum(sums: &mut Vec<usize>, sizes: impl Iterator<Item = usize>) {
    sums.clear();
    sums.push(0);
    for n in sizes {
        sums.push(sums[sums.len() - 1] + n);
    }
}

impl Layout {
    /// Arranges a batch.
    pub fn arrange<T: Real>(&mut self, model: &Dp, frames: FramesOfPart<T>, plan: Option<&Plan>) {
        self.cut(model, frames);
        self.by_series.clear();
        self.by_series.extend(frames.iter().map(|frame| plan.is_some_and(|plan| frame.covered_by(plan))));
        running_sum(&mut self.first_pair, frames.iter().map(|f| f.j.len()));
        running_sum(&mut self.first_atom, frames.iter().map(|f| f.n_atoms));
        running_sum(&mut self.group_rows, self.group_sizes.iter().copied());
        self.atom_ranges.clear();
        for (f, frame) in frames.iter().enumerate() {
            for i in (0..frame.n_atoms).step_by(4 * ATOMS) {
                self.atom_ranges.push((f, i..(i + 4 * ATOMS).min(frame.n_atoms)));
            }
        }
    }

    /// Cuts the rows into segments, and these into blocks.
    fn cut<T: Real>(&mut self, model: &Dp, frames: FramesOfPart<T>) {
        self.segments.clear();
        self.blocks.clear();
        self.group_sizes.clear();
        self.group_sizes.resize(model.fitting.len(), 0);
        self.type_rows.clear();
        let mut row = 0;
        for center in 0..model.n_types() {
            self.type_rows.push(row);
            for (f, frame) in frames.iter().enumerate() {
                let (local, n) = (frame.block[center], frame.block[center + 1] - frame.block[center]);
                if n == 0 {
                    continue;
                }
                let segment = Segment { center, frame: f, row, local, n };
                self.segments.push(segment);
                self.blocks.extend((0..n).step_by(ATOMS).map(|k| Segment {
                    row: row + k,
                    local: local + k,
                    n: ATOMS.min(n - k),
                    ..segment
                }));
                row += n;
                self.group_sizes[model.fitting_net(center)] += n;
            }
        }
        self.type_rows.push(row);
    }
}

/// See [`Batch::sets`].
pub fn sets_of(model: &Dp) -> usize {
    match model.descriptor().attention() {
        Some(options) if options.strip && options.smooth => 2,
        _ => 1,
    }
}

/// Where the numbers of a descriptor stand among the inputs of the fitting nets.
#[derive(Debug, Clone, Copy)]
pub struct Inputs {
    /// How they are folded.
    pub fold: Fold,
    /// The first of them, and the one behind the last.
    pub first: usize,
    pub end: usize,
    /// All inputs of an atom, after the fold.
    pub width: usize,
    /// Whether frame and atomic parameters follow.
    pub is_last: bool,
    /// Where outputs may turn with the atoms: its rows of directions.
    pub directions: Rows,
}

impl Inputs {
    pub fn range(self) -> Range<usize> {
        self.first..self.end
    }
}

/// A batch with what the passes need of a descriptor of the model, and of the parameters.
pub struct Batch<'a, T> {
    /// One of [`Dp::parts`].
    pub model: &'a Dp,
    pub inputs: Inputs,
    pub params: &'a [f64],
    pub frames: FramesOfPart<'a, T>,
    pub plan: Option<&'a Plan>,
    pub layout: &'a Layout,
}

impl<T: Real> Batch<'_, T> {
    /// A number for every atom, by type; `of` is given the frame and the atom in it.
    fn for_atoms(&self, out: &mut Vec<Vec<f64>>, of: impl Fn(usize, usize) -> f64) {
        out.resize(self.model.n_types(), Vec::new());
        out.iter_mut().for_each(Vec::clear);
        for s in &self.layout.segments {
            let order = &self.frames.at(s.frame).order[s.local..s.local + s.n];
            out[s.center].extend(order.iter().map(|&atom| of(s.frame, atom as usize)));
        }
    }

    /// The derivative of the loss by the energy that the nets give every atom, by type.
    pub fn energy_seeds(&self, out: &mut Vec<Vec<f64>>, seeds: &Seeds) {
        let is_blended = self.model.options.short_range.is_some();
        self.for_atoms(out, |f, atom| {
            let first = self.layout.first_atom[f];
            let dl_e = seeds.dl_energy[f] + seeds.dl_atom_energy[first + atom];
            match is_blended {
                true => self
                    .frames
                    .blend(f)
                    .seed(atom, dl_e, |pair| seeds.direction(f, first, (atom, pair.j), pair.d)),
                false => dl_e,
            }
        });
    }

    /// The share of the nets in the energy of every atom, by type.
    pub fn shares(&self, out: &mut Vec<Vec<f64>>) {
        self.for_atoms(out, |f, atom| self.frames.blend(f).share(atom));
    }

    /// Inputs of the fitting nets beside the descriptor, by type.
    pub fn extra_inputs(&self, out: &mut Vec<Vec<f64>>) {
        let n_extra = self.model.n_extra();
        out.resize(self.model.n_types(), Vec::new());
        out.iter_mut().for_each(Vec::clear);
        for s in &self.layout.segments {
            let rows = &self.frames.at(s.frame).extra[s.local * n_extra..(s.local + s.n) * n_extra];
            out[s.center].extend(rows.iter().map(|x| x.to_f64()));
        }
    }

    /// Row `k` of a block as an atom, for the direct path.
    pub fn atom(&self, block: &Segment, k: usize) -> Atom<'_, T> {
        Atom {
            model: self.model,
            params: self.params,
            frame: self.frames.at(block.frame),
            row: block.local + k,
            center: block.center,
        }
    }

    /// The pairs of all atoms of a block, by their place in the frame.
    pub fn pairs(&self, block: &Segment) -> Range<usize> {
        let (frame, n_types) = (self.frames.at(block.frame), self.model.n_types());
        frame.pairs(block.local, 0, n_types).start
            ..frame.pairs(block.local + block.n - 1, n_types - 1, n_types).end
    }

    /// Place of a block among the rows of its fitting net.
    pub fn place(&self, block: &Segment) -> usize {
        block.row - self.layout.group_rows[self.model.fitting_net(block.center)]
    }

    /// Place of a block among the rows of its type.
    pub fn place_in_type(&self, block: &Segment) -> usize {
        block.row - self.layout.type_rows[block.center]
    }

    /// The series of a block; `None` where the net itself is used.
    pub fn plan_of(&self, block: &Segment) -> Option<&Plan> {
        self.plan.filter(|_| self.layout.by_series[block.frame])
    }

    /// Numbers of env: rows of A and of Q of an atom.
    pub fn components(&self) -> usize {
        self.model.descriptor().form().components()
    }

    /// Columns of Q, of all sets.
    pub fn columns(&self) -> usize {
        self.plan.map_or(0, Plan::columns) * self.sets()
    }

    /// Sets of features: two where the types scale the net by the switch.
    pub fn sets(&self) -> usize {
        sets_of(self.model)
    }

    /// Index of the stacked coefficients for a centre type.
    pub fn stack(&self, center: usize) -> usize {
        if n_stacks(self.model) == 1 { 0 } else { center }
    }
}
