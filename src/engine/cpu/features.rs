//! The features Q of a block of atoms, cut into the panels of a plan.
//!
//! Q of a block stands panel after panel, `[n_panels, sets, n, C, K]` with the components of env, so that what belongs to a panel lies together. A
//! second set has rows of env times the switch, where types scale the net by that ([`Batch::sets`]). Most atoms have no
//! neighbour in some panels, and atoms of one type miss about the same ones: what no atom of a block has is left out of the
//! products.

use super::angle_series::Angles;
use super::batch::{Batch, Segment};
use super::chebyshev::Plan;
use super::dense::{Accumulate, Strided, product};
use super::distances;
use super::frame::{CpuFrame, empty_slot, rows_of};
use super::pairs::{self, Scale};
use super::pool::Parts;
use super::real::Real;
use super::scratch::scratch;
use super::walk::Terms;
use crate::model::dp::Dp;
use crate::model::dp::options::Form;
use std::ops::Range;

/// A plan as the kernels read it, and how it cuts the pairs of a batch.
#[derive(Default)]
pub struct Cut<T> {
    /// `[n_panels]`
    scales: Vec<Scale<T>>,
    /// `[n_types, n_panels]` squares of distances for each centre type.
    cuts: Vec<T>,
    /// `[rows, n_panels]` where the pairs of a panel end.
    ends: Vec<u32>,
    /// `[n_blocks, n_panels]` whether any atom of a block has a neighbour, or an empty slot, in a panel.
    active: Vec<bool>,
}

impl<T: Real> Cut<T> {
    /// Makes room for a batch.
    pub fn resize(&mut self, batch: &Batch<T>) {
        let Some(plan) = batch.plan else { return };
        let n_panels = plan.panels().len();
        self.scales.clear();
        self.scales.extend((0..n_panels).map(|p| plan.scale(p)));
        self.cuts.clear();
        for center in 0..batch.model.n_types() {
            self.cuts.extend(plan.cuts(center).iter().map(|&r2| T::from_f64(r2)));
        }
        let rows = batch.layout.group_rows[batch.layout.group_rows.len() - 1];
        self.ends.resize(rows * n_panels, 0);
        self.active.resize(batch.layout.blocks.len() * n_panels, false);
    }

    /// The parts of it that tasks write.
    pub fn parts(&mut self) -> CutParts<'_, T> {
        let Cut { scales, cuts, ends, active } = self;
        CutParts { scales, cuts, ends: Parts::new(ends), active: Parts::new(active) }
    }

    /// Block number `b` of the batch after it was cut.
    pub fn block<'a>(&'a self, batch: &'a Batch<'a, T>, b: usize, plan: &'a Plan) -> CutBlock<'a, T> {
        let (block, n) = (&batch.layout.blocks[b], plan.panels().len());
        let ends = &self.ends[block.row * n..(block.row + block.n) * n];
        CutBlock { batch, block, plan, scales: &self.scales, ends, active: self.active(b, n) }
    }

    /// Which panels the atoms of a block have.
    pub fn active(&self, b: usize, n_panels: usize) -> &[bool] {
        &self.active[b * n_panels..(b + 1) * n_panels]
    }
}

/// The type that the empty slots among those of type `t` have.
fn still_type<T>(model: &Dp, frame: &CpuFrame<T>, t: usize) -> usize {
    match model.descriptor().form() {
        Form::Attention { .. } => frame.empty_type,
        _ => t,
    }
}

/// See [`Cut::parts`].
pub struct CutParts<'a, T> {
    scales: &'a [Scale<T>],
    cuts: &'a [T],
    ends: Parts<u32>,
    active: Parts<bool>,
}

impl<T: Real> CutParts<'_, T> {
    /// Cuts the pairs of a block.
    ///
    /// # Safety
    /// No two calls for one block at the same time.
    pub unsafe fn cut<'a>(&'a self, batch: &'a Batch<'a, T>, b: usize, plan: &'a Plan) -> CutBlock<'a, T> {
        let (block, n, n_types) = (&batch.layout.blocks[b], plan.panels().len(), batch.model.n_types());
        // SAFETY: a block has rows of its own; the caller's promise.
        let (ends, active) =
            unsafe { (self.ends.part(block.row * n, block.n * n), self.active.part(b * n, n)) };
        if batch.model.descriptor().form() == Form::Angles {
            active.fill(true);
            return CutBlock { batch, block, plan, scales: self.scales, ends, active };
        }
        active.fill(false);
        let frame = batch.frames.at(block.frame);
        let cuts = &self.cuts[block.center * n..(block.center + 1) * n];
        for (k, ends) in ends.chunks_exact_mut(n).enumerate() {
            let r = block.local + k;
            frame.cut(ends, plan, cuts, r, n_types);
            for (panel, active) in active.iter_mut().enumerate() {
                *active |= !frame.pairs_in(ends, plan, panel, r, n_types).is_empty();
            }
            for t in 0..n_types {
                if frame.padding[r * n_types + t] > 0 {
                    active[plan.empty_panel(block.center, still_type(batch.model, frame, t))] = true;
                }
            }
            let is_left_out = |t: usize| frame.left_out.get(r * n_types + t).is_some_and(|&n| n > 0);
            for t in (0..n_types).filter(|&t| is_left_out(t)) {
                active[plan.zero_panel(t)] = true;
            }
        }
        CutBlock { batch, block, plan, scales: self.scales, ends, active }
    }
}

/// A block of atoms whose pairs are cut into panels.
pub struct CutBlock<'a, T> {
    batch: &'a Batch<'a, T>,
    block: &'a Segment,
    plan: &'a Plan,
    scales: &'a [Scale<T>],
    /// `[n, n_panels]`
    ends: &'a [u32],
    /// `[n_panels]`
    active: &'a [bool],
}

impl<T: Real> CutBlock<'_, T> {
    /// Panels that any atom of the block has.
    fn panels(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.active.len()).filter(|&p| self.active[p])
    }

    /// The sets of these panels.
    fn sets(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        self.panels().flat_map(|panel| (0..self.batch.sets()).map(move |set| (panel, set)))
    }

    /// Numbers of env.
    fn components(&self) -> usize {
        self.batch.components()
    }

    /// What Q of the block has of one set of a panel: `[n, C, K]`.
    fn place(&self, panel: usize, set: usize) -> Range<usize> {
        let size = self.components() * self.block.n * self.plan.terms;
        let at = panel * self.batch.sets() + set;
        at * size..(at + 1) * size
    }

    /// Calls `work` with each row, panel and its pairs, for the panels that any atom of the block has.
    fn each_panel(&self, mut work: impl FnMut(usize, usize, Range<usize>)) {
        let (frame, n_types) = (self.batch.frames.at(self.block.frame), self.batch.model.n_types());
        for (k, ends) in self.ends.chunks_exact(self.active.len()).enumerate() {
            for panel in self.panels() {
                work(k, panel, frame.pairs_in(ends, self.plan, panel, self.block.local + k, n_types));
            }
        }
    }

    /// Q of the rows of the block.
    pub fn features(&self, q: &mut [T]) {
        let (model, terms) = (self.batch.model, self.plan.terms);
        let (frame, rows) = (self.batch.frames.at(self.block.frame), rows_of(model, self.block.center));
        match model.descriptor().form() {
            Form::Directions { .. } | Form::Attention { .. } => {
                let mut walk = Terms::default();
                self.each_panel(|k, panel, pairs| {
                    for set in 0..self.batch.sets() {
                        let out = &mut q[self.place(panel, set).start + 4 * k * terms..];
                        let (start, n) = (pairs.start, pairs.len());
                        let (scale, switched) = (self.scales[panel], set == 1);
                        pairs::features(
                            out, &mut walk, terms, terms, &frame.d, &rows, start, n, scale, switched,
                        );
                    }
                });
            }
            Form::Distances { .. } => {
                let mut walk = Terms::default();
                self.each_panel(|k, panel, pairs| {
                    let out = &mut q[self.place(panel, 0).start + k * terms..];
                    let (start, n, scale) = (pairs.start, pairs.len(), self.scales[panel]);
                    distances::features(out, &mut walk, terms, &frame.d, &rows, start, n, scale);
                });
            }
            Form::Angles => {
                q.fill(T::ZERO);
                let mut angles = Angles::new(model, self.plan, self.scales);
                for k in 0..self.block.n {
                    let place = |panel| self.place(panel, 0).start + k * terms;
                    angles.features_add(q, place, &self.batch.atom(self.block, k));
                }
                return;
            }
        }
        let center = self.block.center;
        self.still_slots_add(q, &frame.padding, |t| {
            (self.plan.empty_panel(center, still_type(model, frame, t)), empty_slot(model, center))
        });
        if !frame.left_out.is_empty() {
            self.still_slots_add(q, &frame.left_out, |t| (self.plan.zero_panel(t), 0.0));
        }
    }

    /// Adds the slots in which nobody is seen, `counts[row, type]` of them; `at` has panel and argument of those of a type.
    fn still_slots_add(&self, q: &mut [T], counts: &[u32], at: impl Fn(usize) -> (usize, f64)) {
        let (model, terms) = (self.batch.model, self.plan.terms);
        let (n_types, components) = (model.n_types(), self.components());
        scratch(terms, |one: &mut [T]| {
            for t in 0..n_types {
                let (panel, s) = at(t);
                // Nothing in the set that is switched off.
                let place = self.place(panel, 0).start;
                self.plan.still_slot(one, model, panel, s);
                for k in 0..self.block.n {
                    let count = counts[(self.block.local + k) * n_types + t];
                    if count > 0 {
                        let count = T::from_f64(f64::from(count));
                        let out = &mut q[place + components * k * terms..];
                        out.iter_mut().zip(&*one).for_each(|(out, &x)| *out += count * x);
                    }
                }
            }
        });
    }

    /// The change of Q along `d_dot` of the block's pairs.
    pub fn features_tangent(&self, q_dot: &mut [T], d_dot: [&[T]; 3]) {
        let terms = self.plan.terms;
        let frame = self.batch.frames.at(self.block.frame);
        let rows = rows_of(self.batch.model, self.block.center);
        let first = self.batch.pairs(self.block).start;
        match self.batch.model.descriptor().form() {
            Form::Directions { .. } | Form::Attention { .. } => {
                let mut walk = Terms::default();
                self.each_panel(|k, panel, pairs| {
                    for set in 0..self.batch.sets() {
                        pairs::features_tangent(
                            &mut q_dot[self.place(panel, set).start + 4 * k * terms..],
                            &mut walk,
                            terms,
                            terms,
                            &frame.d,
                            &rows,
                            d_dot,
                            first,
                            pairs.start,
                            pairs.len(),
                            self.scales[panel],
                            set == 1,
                        );
                    }
                });
            }
            Form::Distances { .. } => {
                let mut walk = Terms::default();
                self.each_panel(|k, panel, pairs| {
                    distances::features_tangent(
                        &mut q_dot[self.place(panel, 0).start + k * terms..],
                        &mut walk,
                        terms,
                        &frame.d,
                        &rows,
                        d_dot,
                        first,
                        pairs.start,
                        pairs.len(),
                        self.scales[panel],
                    );
                });
            }
            Form::Angles => {
                q_dot.fill(T::ZERO);
                let mut angles = Angles::new(self.batch.model, self.plan, self.scales);
                for k in 0..self.block.n {
                    let place = |panel| self.place(panel, 0).start + k * terms;
                    let atom = self.batch.atom(self.block, k);
                    angles.features_tangent_add(q_dot, place, &atom, (d_dot, first));
                }
            }
        }
    }

    /// `A = Q C`, overwritten; also of their tangents.
    pub fn contract(&self, a: &mut [T], q: &[T], c: &[T]) {
        let (m1, terms) = (self.batch.model.n_embed(), self.plan.terms);
        let mut accumulate = Accumulate::Overwrite;
        for (panel, set) in self.sets() {
            let q = Strided { data: &q[self.place(panel, set)], row: terms, col: 1 };
            let c = &c[(panel * self.batch.sets() + set) * terms * m1..];
            product(a, m1, accumulate, q, c, m1, self.components() * self.block.n, m1, terms);
            accumulate = Accumulate::Add;
        }
        if accumulate == Accumulate::Overwrite {
            a.fill(T::ZERO);
        }
    }

    /// Adds to `[terms, M1]` of the dL/dC of a panel's set, from `term` on, what the block brings: `Q^T` times an adjoint of A.
    pub fn gradient_add(
        &self,
        dl_c: &mut [T],
        q: &[T],
        adjoint: &[T],
        (panel, set): (usize, usize),
        term: usize,
    ) {
        let m1 = self.batch.model.n_embed();
        let q = Strided { data: &q[self.place(panel, set)][term..], row: 1, col: self.plan.terms };
        let depth = self.components() * self.block.n;
        product(dl_c, m1, Accumulate::Add, q, adjoint, m1, dl_c.len() / m1, m1, depth);
    }

    /// dE/dd of the pairs of the block: dE/dQ = dE/dA C^T, then one walk over the pairs. `c_t` has C^T of each panel.
    pub fn forces(&self, de_d: &mut [&mut [T]; 3], de_a: &[T], c_t: &[T]) {
        let (m1, terms) = (self.batch.model.n_embed(), self.plan.terms);
        let (n, components) = (self.block.n, self.components());
        let form = self.batch.model.descriptor().form();
        let frame = self.batch.frames.at(self.block.frame);
        let rows = rows_of(self.batch.model, self.block.center);
        let first = self.batch.pairs(self.block).start;
        let a = Strided { data: de_a, row: m1, col: 1 };
        let sets = self.batch.sets();
        let size = n * components * self.plan.columns() * sets;
        scratch(size + 2 * components * terms * sets, |buffers: &mut [T]| {
            let (de_q, series) = buffers.split_at_mut(size);
            for (panel, set) in self.sets() {
                let out = &mut de_q[self.place(panel, set)];
                let c_t = &c_t[(panel * sets + set) * terms * m1..];
                product(out, terms, Accumulate::Overwrite, a, c_t, terms, components * n, terms, m1);
            }
            if form == Form::Angles {
                let mut angles = Angles::new(self.batch.model, self.plan, self.scales);
                for k in 0..n {
                    let atom = self.batch.atom(self.block, k);
                    let own = frame.pairs_of(atom.row, self.batch.model.n_types());
                    let part = de_d.each_mut().map(|x| &mut x[own.start - first..own.end - first]);
                    let place = |panel| self.place(panel, 0).start + k * terms;
                    angles.forces(part, de_q, place, &atom);
                }
                return;
            }
            self.each_panel(|k, panel, pairs| {
                if pairs.is_empty() {
                    return;
                }
                let own = pairs.start - first..pairs.end - first;
                let part = de_d.each_mut().map(|x| &mut x[own.clone()]);
                let of_set = |set: usize| &de_q[self.place(panel, set).start + components * k * terms..];
                let (start, n, scale) = (pairs.start, pairs.len(), self.scales[panel]);
                match form {
                    Form::Directions { .. } | Form::Attention { .. } => {
                        let (first, second) = series.split_at_mut(8 * terms);
                        pairs::with_derivatives(first, of_set(0), terms, terms);
                        let switched = (sets == 2).then(|| {
                            pairs::with_derivatives(second, of_set(1), terms, terms);
                            &*second
                        });
                        pairs::forces(part, first, switched, terms, &frame.d, &rows, start, n, scale);
                    }
                    Form::Distances { .. } => {
                        let slopes = &mut series[..terms];
                        distances::derivative(slopes, of_set(0), terms);
                        distances::forces(part, slopes, &frame.d, &rows, start, n, scale);
                    }
                    Form::Angles => unreachable!("pairs of neighbours are not cut like neighbours"),
                }
            });
        });
    }
}
