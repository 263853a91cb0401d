//! A frame as the CPU engine wants it: atoms sorted by type, pairs as columns.
//!
//! The features Q of the series are made anew in every step: that takes two hundredths of it, and keeping them would double
//! the memory of a frame.

use super::chebyshev::Plan;
use super::pairs::{self, Rows, Scale};
use super::real::Real;
use crate::engine::reference::env;
use crate::model::dp::Dp;
use crate::model::dp::geometry::Geometry;
use crate::sample::Prepared;

/// A prepared frame. Row `r` is the r-th real atom when atoms are sorted by type.
pub struct CpuFrame<T> {
    /// Atoms of the frame, virtual ones included.
    pub n_atoms: usize,
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
    /// Pairs in which an atom is the neighbour: `reverse[reverse_start[j] ..]`.
    pub reverse_start: Vec<u32>,
    pub reverse: Vec<u32>,
    /// `[n_rows, n_extra]`
    pub extra: Vec<T>,
    /// Smallest and largest argument of the nets.
    pub s_range: (f64, f64),
}

impl<T: Real> CpuFrame<T> {
    /// Sorts and normalises the geometry of a frame.
    pub fn new(model: &Dp, geometry: &Geometry) -> Self {
        let n_types = model.n_types();
        let n_atoms = geometry.n_atoms();
        let mut order: Vec<u32> = (0..n_atoms as u32).filter(|&i| geometry.types[i as usize] >= 0).collect();
        order.sort_by_key(|&i| geometry.types[i as usize]);
        let type_of = |i: u32| geometry.types[i as usize] as usize;
        let block = (0..=n_types).map(|t| order.partition_point(|&i| type_of(i) < t)).collect();
        let mut frame = CpuFrame {
            n_atoms,
            pair_start: vec![0],
            j: Vec::with_capacity(geometry.n_pairs()),
            d: [0, 1, 2].map(|_| Vec::with_capacity(geometry.n_pairs())),
            padding: Vec::with_capacity(order.len() * n_types),
            reverse_start: Vec::new(),
            reverse: Vec::new(),
            extra: Vec::with_capacity(order.len() * model.n_extra()),
            s_range: (f64::INFINITY, f64::NEG_INFINITY),
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
                for p in geometry.pairs(i, t, model.n_types()) {
                    self.j.push(geometry.j[p]);
                    self.push_pair(model, center, geometry.d[p], geometry.r[p]);
                }
                self.pair_start.push(self.j.len() as u32);
                let padding = geometry.padding[i * model.n_types() + t];
                self.padding.push(padding);
                if padding > 0 {
                    self.extend_range(empty_slot(model, center));
                }
            }
            let extra = &geometry.extra[i * n_extra..(i + 1) * n_extra];
            self.extra.extend(extra.iter().map(|&x| T::from_f64(x)));
        }
    }

    fn push_pair(&mut self, model: &Dp, center: usize, d: [f64; 3], r: f64) {
        let [s, ..] = env::radial(model.descriptor(), r);
        self.extend_range((s - model.stats.davg[center][0]) / model.stats.dstd[center][0]);
        for (column, d) in self.d.iter_mut().zip(d) {
            column.push(T::from_f64(d));
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

    pub fn n_rows(&self) -> usize {
        self.order.len()
    }

    /// Pairs of row `r` with neighbours of type `t`.
    pub fn pairs(&self, r: usize, t: usize, n_types: usize) -> std::ops::Range<usize> {
        self.pair_start[r * n_types + t] as usize..self.pair_start[r * n_types + t + 1] as usize
    }

    /// True where the series of `plan` may be used for this frame.
    pub fn covered_by(&self, plan: &Plan) -> bool {
        self.n_rows() == 0 || plan.covers(self.s_range.0, self.s_range.1)
    }

    /// Q of row `r`, whose centre has type `center`: `[4, n_types * K]`.
    pub fn features(&self, q: &mut [T], plan: &Plan, model: &Dp, rows: &Rows<T>, r: usize, center: usize) {
        let (n_types, terms) = (model.n_types(), plan.terms);
        let stride = n_types * terms;
        for t in 0..n_types {
            let pairs = self.pairs(r, t, n_types);
            let out = &mut q[t * terms..];
            pairs::features(out, stride, terms, &self.d, rows, pairs.start, pairs.len(), plan.scale());
            let padding = f64::from(self.padding[r * n_types + t]);
            if padding > 0.0 {
                let s = empty_slot(model, center);
                for (out, t_k) in out.iter_mut().zip(plan.polynomials(s)) {
                    *out += T::from_f64(padding * s * t_k);
                }
            }
        }
    }
}

impl<T: Real> Prepared for CpuFrame<T> {
    fn bytes(&self) -> usize {
        let pairs = self.j.len() * (3 * size_of::<T>() + 8);
        pairs + self.order.len() * 64 + 512
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

/// The row of an empty slot has only a radial component: -davg / dstd.
pub fn empty_slot(model: &Dp, center: usize) -> f64 {
    -model.stats.davg[center][0] / model.stats.dstd[center][0]
}

impl Plan {
    /// The change of variables for the kernels.
    pub fn scale<T: Real>(&self) -> Scale<T> {
        Scale { middle: T::from_f64(self.middle), inv_half: T::from_f64(1.0 / self.half) }
    }

    /// T_0, T_1, ... at `s`.
    fn polynomials(&self, s: f64) -> impl Iterator<Item = f64> {
        let x = (s - self.middle) / self.half;
        let (mut t, mut t_old) = (1.0, x);
        (0..self.terms).map(move |_| {
            let now = t;
            t = 2.0 * x * now - t_old;
            t_old = now;
            now
        })
    }
}
