//! A frame as the CPU engine wants it: for each descriptor atoms sorted by type, pairs as columns.
//!
//! The features Q of the series are made anew in every step: that takes two hundredths of it, and keeping them would double
//! the memory of a frame.

use super::chebyshev::Plan;
use super::pairs::{Rows, Scale};
use super::real::Real;
use crate::Result;
use crate::data::Frame;
use crate::engine::blend::Blend;
use crate::engine::reference::env;
use crate::model::dp::Dp;
use crate::model::dp::geometry::{Geometry, list_of};
use crate::model::dp::options::Form;
use crate::neighbor::NeighborList;
use crate::sample::Prepared;
use std::cell::Cell;
use std::ops::Range;
use std::sync::Arc;

/// A prepared frame: one for each of [`Dp::parts`].
pub struct CpuFrames<T> {
    pub parts: Vec<CpuFrame<T>>,
    /// The part of a table of pair energies.
    pub blend: Blend,
}

/// The frames of a batch as one descriptor sees them.
pub struct FramesOfPart<'a, T> {
    batch: &'a [&'a CpuFrames<T>],
    part: usize,
}

impl<T> Clone for FramesOfPart<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for FramesOfPart<'_, T> {}

impl<'a, T> FramesOfPart<'a, T> {
    pub fn new(batch: &'a [&'a CpuFrames<T>], part: usize) -> Self {
        FramesOfPart { batch, part }
    }

    pub fn n_frames(&self) -> usize {
        self.batch.len()
    }

    /// What the table of pair energies brings to a frame.
    pub fn blend(&self, frame: usize) -> &'a Blend {
        &self.batch[frame].blend
    }

    pub fn at(&self, frame: usize) -> &'a CpuFrame<T> {
        &self.batch[frame].parts[self.part]
    }

    pub fn iter(&self) -> impl ExactSizeIterator<Item = &'a CpuFrame<T>> + use<'a, T> {
        let part = self.part;
        self.batch.iter().map(move |frame| &frame.parts[part])
    }
}

/// A frame as one descriptor sees it. Row `r` is the r-th real atom when atoms are sorted by type.
pub struct CpuFrame<T> {
    /// Atoms of the frame, virtual ones included.
    pub n_atoms: usize,
    /// Atoms of the whole frame that have an output of their own; rows are some of them.
    pub n_counted: usize,
    /// `[n_rows]` index in the file.
    pub order: Vec<u32>,
    /// `[n_types + 1]` rows of each type.
    pub block: Vec<usize>,
    /// `[n_rows * n_types + 1]`
    pub pair_start: Vec<u32>,
    /// `[n_pairs]` index of the neighbour in the file.
    pub j: Vec<u32>,
    /// `[n_pairs]` x_j - x_i by component, A.
    pub d: [Vec<T>; 3],
    /// `[n_rows * n_types]` empty slots.
    pub padding: Vec<u32>,
    /// `[n_rows * n_types]` slots of excluded neighbours where they count, else nothing: their argument is 0.
    pub left_out: Vec<u32>,
    /// Pairs in which an atom is the neighbour: `reverse[reverse_start[j] ..]`.
    pub reverse_start: Vec<u32>,
    pub reverse: Vec<u32>,
    /// `[n_rows, n_extra]`
    pub extra: Vec<T>,
    /// The type that empty slots have where it matters.
    pub empty_type: usize,
    /// Smallest and largest argument of the nets.
    pub s_range: (f64, f64),
}

/// A geometry of more bytes is not kept for the next frame.
const KEPT_BYTES: usize = 16 << 20;

thread_local! {
    static SPARE: Cell<Option<Geometry>> = const { Cell::new(None) };
}

impl<T: Real> CpuFrames<T> {
    /// Prepares a frame.
    pub fn prepare(parts: &[Arc<Dp>], frame: &Frame) -> Result<Self> {
        Self::of_list(parts, frame, &list_of(&parts[0], frame)?)
    }

    /// Prepares the centres of a list. What lies between is written where this thread has written it before.
    pub fn of_list(parts: &[Arc<Dp>], frame: &Frame, list: &NeighborList) -> Result<Self> {
        let mut geometry = SPARE.take().unwrap_or_default();
        let mut blend = Blend::default();
        let mut prepare = |part: &Arc<Dp>| -> Result<CpuFrame<T>> {
            geometry.fill_from(part, frame, list)?;
            if part.options.short_range.is_some() {
                blend = Blend::new(part, &geometry, 0..geometry.n_atoms())?;
            }
            Ok(CpuFrame::new(part, &geometry))
        };
        let prepared = parts.iter().map(&mut prepare).collect::<Result<_>>()?;
        if geometry.bytes() < KEPT_BYTES {
            SPARE.set(Some(geometry));
        }
        Ok(CpuFrames { parts: prepared, blend })
    }

    /// The rows of some atoms, given the geometry for each of [`Dp::parts`]; the others are neighbours.
    pub fn of_centers(parts: &[Arc<Dp>], geometries: &[Geometry], centers: Range<usize>) -> Result<Self> {
        let of =
            |(part, geometry): (&Arc<Dp>, &Geometry)| CpuFrame::of_centers(part, geometry, centers.clone());
        let blend = Blend::new(&parts[0], &geometries[0], centers.clone())?;
        Ok(CpuFrames { parts: parts.iter().zip(geometries).map(of).collect(), blend })
    }
}

impl<T: Real> Prepared for CpuFrames<T> {
    fn bytes(&self) -> usize {
        self.parts.iter().map(CpuFrame::bytes).sum::<usize>() + self.blend.bytes()
    }
}

impl<T: Real> CpuFrame<T> {
    /// Sorts and normalises the geometry of a frame.
    pub fn new(model: &Dp, geometry: &Geometry) -> Self {
        Self::of_centers(model, geometry, 0..geometry.n_atoms())
    }

    /// As [`CpuFrame::new`] with the rows of some atoms only; the others are neighbours.
    pub fn of_centers(model: &Dp, geometry: &Geometry, centers: Range<usize>) -> Self {
        let n_types = model.n_types();
        let n_atoms = geometry.n_atoms();
        let n_pairs =
            (geometry.start[centers.end * n_types] - geometry.start[centers.start * n_types]) as usize;
        let centers = centers.start as u32..centers.end as u32;
        let mut order: Vec<u32> = centers.filter(|&i| geometry.types[i as usize] >= 0).collect();
        order.sort_by_key(|&i| geometry.types[i as usize]);
        let type_of = |i: u32| geometry.types[i as usize] as usize;
        let block = (0..=n_types).map(|t| order.partition_point(|&i| type_of(i) < t)).collect();
        let mut frame = CpuFrame {
            n_atoms,
            n_counted: geometry.n_counted,
            pair_start: vec![0],
            j: Vec::with_capacity(n_pairs),
            d: [0, 1, 2].map(|_| Vec::with_capacity(n_pairs)),
            padding: Vec::with_capacity(order.len() * n_types),
            left_out: Vec::new(),
            reverse_start: Vec::new(),
            reverse: Vec::new(),
            extra: Vec::with_capacity(order.len() * model.n_extra()),
            s_range: (f64::INFINITY, f64::NEG_INFINITY),
            empty_type: geometry.empty_type,
            order,
            block,
        };
        frame.fill(model, geometry);
        frame.reverse_pairs();
        frame
    }

    fn fill(&mut self, model: &Dp, geometry: &Geometry) {
        let n_extra = model.n_extra();
        for r in 0..self.order.len() {
            let i = self.order[r] as usize;
            let center = geometry.types[i] as usize;
            for t in 0..model.n_types() {
                let pairs = geometry.pairs(i, t, model.n_types());
                // s falls with r, and the nearest come first.
                for r in [geometry.r[pairs.clone()].first(), geometry.r[pairs.clone()].last()] {
                    r.iter().for_each(|&&r| self.extend_by_distance(model, center, r));
                }
                self.j.extend_from_slice(&geometry.j[pairs.clone()]);
                for (k, column) in self.d.iter_mut().enumerate() {
                    column.extend(geometry.d[pairs.clone()].iter().map(|d| T::from_f64(d[k])));
                }
                self.pair_start.push(self.j.len() as u32);
                let padding = geometry.padding[i * model.n_types() + t];
                self.padding.push(padding);
                if padding > 0 && model.descriptor().form() != Form::Angles {
                    self.extend_range(empty_slot(model, center));
                }
                if let Some(&left_out) = geometry.left_out.get(i * model.n_types() + t) {
                    self.left_out.push(left_out);
                    if left_out > 0 {
                        self.extend_range(0.0);
                    }
                }
            }
            let extra = &geometry.extra[i * n_extra..(i + 1) * n_extra];
            self.extra.extend(extra.iter().map(|&x| T::from_f64(x)));
        }
    }

    fn extend_by_distance(&mut self, model: &Dp, center: usize, r: f64) {
        if model.descriptor().form() == Form::Angles {
            let x = largest_product(model, center, r);
            [x, -x].into_iter().for_each(|x| self.extend_range(x));
        } else {
            self.extend_range(argument(model, center, r));
        }
    }

    fn extend_range(&mut self, s: f64) {
        self.s_range = (self.s_range.0.min(s), self.s_range.1.max(s));
    }

    fn reverse_pairs(&mut self) {
        self.reverse_start = vec![0; self.n_atoms + 1];
        for &j in &self.j {
            self.reverse_start[j as usize + 1] += 1;
        }
        for k in 0..self.n_atoms {
            self.reverse_start[k + 1] += self.reverse_start[k];
        }
        let mut next = self.reverse_start.clone();
        self.reverse = vec![0; self.j.len()];
        for (p, &j) in self.j.iter().enumerate() {
            self.reverse[next[j as usize] as usize] = p as u32;
            next[j as usize] += 1;
        }
    }

    fn bytes(&self) -> usize {
        let pairs = self.j.len() * (3 * size_of::<T>() + 8);
        pairs + self.order.len() * 64 + 512
    }

    pub fn n_rows(&self) -> usize {
        self.order.len()
    }

    /// Pairs of row `r` with neighbours of type `t`.
    pub fn pairs(&self, r: usize, t: usize, n_types: usize) -> Range<usize> {
        self.pair_start[r * n_types + t] as usize..self.pair_start[r * n_types + t + 1] as usize
    }

    /// All pairs of row `r`.
    pub fn pairs_of(&self, r: usize, n_types: usize) -> Range<usize> {
        self.pairs(r, 0, n_types).start..self.pairs(r, n_types - 1, n_types).end
    }

    /// True where the series of `plan` may be used for this frame.
    pub fn covered_by(&self, plan: &Plan) -> bool {
        self.n_rows() == 0 || plan.covers(self.s_range.0, self.s_range.1)
    }

    /// Cuts the pairs of row `r` into those of each panel: `ends[p]` is where the pairs of panel p end, and the next begin.
    pub fn cut(&self, ends: &mut [u32], plan: &Plan, cuts: &[T], r: usize, n_types: usize) {
        let [x, y, z] = &self.d;
        for t in 0..n_types {
            let mut pairs = self.pairs(r, t, n_types);
            for panel in plan.panels_of(t) {
                let far = |&p: &usize| x[p] * x[p] + y[p] * y[p] + z[p] * z[p] > cuts[panel];
                pairs.start = pairs.clone().find(far).unwrap_or(pairs.end);
                ends[panel] = pairs.start as u32;
            }
        }
    }

    /// The pairs of row `r` in one panel, given what [`CpuFrame::cut`] found.
    pub fn pairs_in(
        &self,
        ends: &[u32],
        plan: &Plan,
        panel: usize,
        r: usize,
        n_types: usize,
    ) -> Range<usize> {
        let neighbor = plan.panels()[panel].neighbor;
        let start = match panel == plan.panels_of(neighbor).start {
            true => self.pair_start[r * n_types + neighbor],
            false => ends[panel - 1],
        };
        start as usize..ends[panel] as usize
    }
}

/// The rows of a centre type for the kernels.
pub fn rows_of<T: Real>(model: &Dp, center: usize) -> Rows<T> {
    let (options, stats) = (model.descriptor(), &model.stats);
    Rows {
        rcut_smth: T::from_f64(options.rcut_smth),
        inv_width: T::from_f64(1.0 / (options.rcut - options.rcut_smth)),
        protection: T::from_f64(options.env_protection),
        davg: T::from_f64(stats.davg[center][0]),
        inv_radial: T::from_f64(1.0 / stats.dstd[center][0]),
        inv_angular: T::from_f64(1.0 / stats.dstd[center][1]),
    }
}

/// The argument of the net for a neighbour at distance `r`.
fn argument(model: &Dp, center: usize, r: f64) -> f64 {
    let [s, ..] = env::radial(model.descriptor(), r);
    (s - model.stats.davg[center][0]) / model.stats.dstd[center][0]
}

/// The largest product of the directions of two neighbours that are no nearer than `r`.
pub fn largest_product(model: &Dp, center: usize, r: f64) -> f64 {
    let [s, ..] = env::radial(model.descriptor(), r);
    (s / model.stats.dstd[center][1]).powi(2)
}

/// The row of an empty slot has only a radial component: -davg / dstd.
pub fn empty_slot(model: &Dp, center: usize) -> f64 {
    -model.stats.davg[center][0] / model.stats.dstd[center][0]
}

impl Plan {
    /// The change of variables of a panel for the kernels.
    pub fn scale<T: Real>(&self, panel: usize) -> Scale<T> {
        let panel = &self.panels()[panel];
        Scale {
            middle: T::from_f64(panel.middle()),
            inv_half: T::from_f64(1.0 / panel.half()),
            skew: T::from_f64(self.skew),
            slope: T::from_f64((1.0 - self.skew * self.skew) / panel.half()),
        }
    }

    /// The part of Q that is not zero for one slot in which nobody is seen, whose argument `s` lies in this panel: the first
    /// component of env times T_k(s) `[K]`.
    pub fn still_slot<T: Real>(&self, out: &mut [T], model: &Dp, panel: usize, s: f64) {
        let (x, env) = (self.argument(panel, s), model.descriptor().form().first(s));
        let (mut t, mut t_old) = (1.0, x);
        for out in out {
            *out = T::from_f64(env * t);
            (t, t_old) = (2.0 * x * t - t_old, t);
        }
    }
}
