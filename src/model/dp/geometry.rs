//! What a Deep Potential needs of a frame: neighbours in their slots and the inputs of the fitting net.

use super::model::Dp;
use crate::Result;
use crate::data::Frame;
use crate::neighbor::NeighborList;
use crate::sample::Prepared;
use std::sync::Arc;

/// The geometry of a frame, in file order of its atoms.
#[derive(Debug, Clone, Default)]
pub struct Geometry {
    /// `[n_atoms]`, -1 for virtual atoms.
    pub types: Arc<[i32]>,
    /// `[n_atoms * n_types + 1]` start of the pairs of (centre, neighbour type).
    pub start: Vec<u32>,
    /// `[n_pairs]` the neighbour.
    pub j: Vec<u32>,
    /// `[n_pairs]` x_j - x_i, A.
    pub d: Vec<[f64; 3]>,
    /// `[n_pairs]` |d|, A.
    pub r: Vec<f64>,
    /// `[n_atoms * n_types]` empty slots, each of which contributes the row -davg / dstd.
    pub padding: Vec<u32>,
    /// `[n_atoms, n_extra]` normalised frame and atomic parameters.
    pub extra: Vec<f64>,
}

impl Geometry {
    /// Lists the neighbours of a frame for a model.
    pub fn new(model: &Dp, frame: &Frame) -> Result<Self> {
        let mut geometry = Geometry::default();
        geometry.fill(model, frame)?;
        Ok(geometry)
    }

    /// As [`Geometry::new`], in the memory of an earlier frame.
    pub fn fill(&mut self, model: &Dp, frame: &Frame) -> Result<()> {
        let n_types = model.n_types();
        let list = NeighborList::new(frame, model.descriptor().rcut, n_types, Some(model.sel()))?;
        if model.descriptor().env_protection == 0.0 {
            list.refuse_overlap()?;
        }
        let excluded = |a: usize, b: usize| {
            model.descriptor().exclude_types.iter().any(|&(x, y)| (x, y) == (a, b) || (y, x) == (a, b))
        };
        self.clear(list.n_pairs(), frame.n_atoms() * n_types);
        self.types = frame.types.clone();
        extra_inputs(&mut self.extra, model, frame);
        for i in 0..frame.n_atoms() {
            for t in 0..n_types {
                let center = frame.types[i];
                // An excluded neighbour keeps its slot and contributes nothing, not even the row of an empty slot.
                self.padding.push((model.sel()[t] - list.count(i, t)) as u32);
                if center >= 0 && !excluded(center as usize, t) {
                    list.columns(i, t, &mut self.j, &mut self.d, &mut self.r);
                }
                self.start.push(self.j.len() as u32);
            }
        }
        Ok(())
    }

    /// Empties everything and makes room for so many pairs and (centre, type)s.
    fn clear(&mut self, n_pairs: usize, n_groups: usize) {
        self.j.clear();
        self.d.clear();
        self.r.clear();
        self.padding.clear();
        self.start.clear();
        self.j.reserve(n_pairs);
        self.d.reserve(n_pairs);
        self.r.reserve(n_pairs);
        self.padding.reserve(n_groups);
        self.start.reserve(n_groups + 1);
        self.start.push(0);
    }

    pub fn n_atoms(&self) -> usize {
        self.types.len()
    }

    pub fn n_pairs(&self) -> usize {
        self.j.len()
    }

    /// Indices of the pairs of centre `i` and neighbour type `t`.
    pub fn pairs(&self, i: usize, t: usize, n_types: usize) -> std::ops::Range<usize> {
        self.start[i * n_types + t] as usize..self.start[i * n_types + t + 1] as usize
    }
}

impl Prepared for Geometry {
    fn bytes(&self) -> usize {
        self.j.len() * (4 + 24 + 8) + self.start.len() * 8 + self.extra.len() * 8 + size_of::<Self>()
    }
}

/// `[n_atoms, numb_fparam + numb_aparam]`, shifted and scaled by the statistics.
fn extra_inputs(extra: &mut Vec<f64>, model: &Dp, frame: &Frame) {
    let fit = &model.options.fitting;
    let stats = &model.stats;
    extra.clear();
    for i in 0..frame.n_atoms() {
        for k in 0..fit.numb_fparam {
            extra.push((frame.fparam[k] - stats.fparam_avg[k]) * stats.fparam_inv_std[k]);
        }
        for k in 0..fit.numb_aparam {
            let x = frame.aparam[i * fit.numb_aparam + k];
            extra.push((x - stats.aparam_avg[k]) * stats.aparam_inv_std[k]);
        }
    }
}
