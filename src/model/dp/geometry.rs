//! What a Deep Potential needs of a frame: neighbours in their slots and the inputs of the fitting net.

use super::model::Dp;
use super::options::Form;
use crate::Result;
use crate::data::Frame;
use crate::neighbor::{Blocks, Cut, Domain, NeighborList};
use crate::sample::Prepared;
use rayon::prelude::*;
use std::ops::Range;
use std::sync::Arc;

/// Local atoms whose neighbours one task sorts.
const CENTERS: usize = 64;

/// The geometry of a frame, in file order of its atoms.
#[derive(Debug, Clone, Default)]
pub struct Geometry {
    /// `[n_atoms]`, -1 for virtual atoms and for those that are no centres.
    pub types: Arc<[i32]>,
    /// Atoms of the whole frame that have an output of their own; centres are some of them.
    pub n_counted: usize,
    /// `[n_atoms * n_types + 1]` start of the pairs of (centre, neighbour type).
    pub start: Vec<u32>,
    /// `[n_pairs]` the neighbour.
    pub j: Vec<u32>,
    /// `[n_pairs]` x_j - x_i, A.
    pub d: Vec<[f64; 3]>,
    /// `[n_pairs]` |d|, A.
    pub r: Vec<f64>,
    /// `[n_atoms * n_types]` empty slots, each of which contributes the row -davg / dstd. Where types have slots together, all of
    /// them stand with type 0.
    pub padding: Vec<u32>,
    /// `[n_atoms * n_types]` slots of neighbours that are excluded, where they count ([`Form`]); else nothing.
    pub left_out: Vec<u32>,
    /// `[n_atoms, n_extra]` normalised frame and atomic parameters.
    pub extra: Vec<f64>,
    /// The type that empty slots have where it matters ([`Form::Attention`]): that of the first atom, as in DeePMD-kit.
    pub empty_type: usize,
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
        self.fill_from(model, frame, &list_of(model, frame)?)
    }

    /// As [`Geometry::fill`], from neighbours that were listed already: see [`list_of`].
    pub fn fill_from(&mut self, model: &Dp, frame: &Frame, list: &NeighborList) -> Result<()> {
        let n_types = model.n_types();
        if model.descriptor().env_protection == 0.0 {
            list.refuse_overlap()?;
        }
        self.clear(list.n_pairs(), frame.n_atoms() * n_types);
        self.types = centers_of(model, &frame.types);
        self.n_counted = self.types.iter().filter(|&&t| t >= 0).count();
        if !list.is_whole() {
            let own = |(i, &t): (usize, &i32)| if list.is_center(i) { t } else { -1 };
            self.types = self.types.iter().enumerate().map(own).collect();
        }
        extra_inputs(&mut self.extra, model, frame.n_atoms(), &frame.fparam, &frame.aparam);
        self.empty_type = empty_type(&frame.types, frame.sorted);
        let counts_left_out = counts_left_out(model);
        for i in 0..frame.n_atoms() {
            let mut shared = Shared::new(model, |t| list.of(i, t).map(|near| near.r).collect());
            for t in 0..n_types {
                let (center, slots) = (frame.types[i], shared.slots(model, t));
                if is_hidden(model, center, t) {
                    self.push_empty(shared.empty(slots, 0), counts_left_out);
                    continue;
                }
                let is_seen = center >= 0 && !model.descriptor().excludes(center as usize, t);
                let taken = if is_seen {
                    let first = self.j.len();
                    list.columns(i, t, &mut self.j, &mut self.d, &mut self.r);
                    self.keep_near(first, slots, model.descriptor().rcut)
                } else {
                    // An excluded neighbour keeps its slot, which is no empty one.
                    slots.min(list.count(i, t))
                };
                self.padding.push(shared.empty(slots, taken));
                if counts_left_out {
                    self.left_out.push(if is_seen { 0 } else { taken as u32 });
                }
                self.start.push(self.j.len() as u32);
            }
            shared.give_empty(&mut self.padding, n_types);
        }
        Ok(())
    }

    /// Adds a group of which all slots are empty.
    fn push_empty(&mut self, slots: u32, counts_left_out: bool) {
        self.padding.push(slots);
        if counts_left_out {
            self.left_out.push(0);
        }
        self.start.push(self.j.len() as u32);
    }

    /// Of the pairs from `first` on, which come nearest first, keeps those that have a slot and are within the cutoff. A hybrid lists
    /// more than some of its descriptors see; there the row of a neighbour beyond the cutoff is that of an empty slot.
    fn keep_near(&mut self, first: usize, slots: usize, rcut: f64) -> usize {
        let listed = &self.r[first..];
        let near = listed[..slots.min(listed.len())].partition_point(|&r| r <= rcut);
        self.j.truncate(first + near);
        self.d.truncate(first + near);
        self.r.truncate(first + near);
        near
    }

    /// The neighbours that an MD program has listed. Ghosts are neighbours and no centres: their type is -1 here.
    ///
    /// - fparam  `[numb_fparam]`
    /// - aparam  `[n_local, numb_aparam]`
    ///
    /// Takes all threads of the rayon pool that this is called from.
    pub fn of_domain(model: &Dp, domain: &Domain, fparam: &[f64], aparam: &[f64]) -> Result<Self> {
        domain.check(model.n_types())?;
        let (n_local, n_atoms) = (domain.n_local(), domain.n_atoms());
        let parts: Vec<Geometry> = (0..n_local.div_ceil(CENTERS))
            .into_par_iter()
            .map(|k| Self::of_centers(model, domain, k * CENTERS..n_local.min((k + 1) * CENTERS)))
            .collect::<Result<_>>()?;
        let mut all = Geometry {
            types: (0..n_atoms)
                .map(|i| match i < n_local && model.options.has_energy(domain.types[i]) {
                    true => domain.types[i],
                    false => -1,
                })
                .collect(),
            empty_type: empty_type(domain.types, false),
            ..Default::default()
        };
        all.clear(parts.iter().map(Geometry::n_pairs).sum(), n_atoms * model.n_types());
        for part in &parts {
            let first = all.j.len() as u32;
            all.start.extend(part.start[1..].iter().map(|start| first + start));
            all.j.extend_from_slice(&part.j);
            all.d.extend_from_slice(&part.d);
            all.r.extend_from_slice(&part.r);
            all.padding.extend_from_slice(&part.padding);
            all.left_out.extend_from_slice(&part.left_out);
        }
        all.start.resize(n_atoms * model.n_types() + 1, all.j.len() as u32);
        all.padding.resize(n_atoms * model.n_types(), 0);
        if counts_left_out(model) {
            all.left_out.resize(n_atoms * model.n_types(), 0);
        }
        all.n_counted = all.types.iter().filter(|&&t| t >= 0).count();
        extra_inputs(&mut all.extra, model, n_local, fparam, aparam);
        Ok(all)
    }

    /// The pairs of some local atoms of a domain; everything begins with the first of them.
    fn of_centers(model: &Dp, domain: &Domain, centers: Range<usize>) -> Result<Self> {
        let n_types = model.n_types();
        let mut part = Geometry::default();
        part.clear(0, centers.len() * n_types);
        let mut found = Vec::new();
        let counts_left_out = counts_left_out(model);
        for i in centers {
            found.clear();
            if domain.types[i] >= 0 {
                domain.nearest(&mut found, i, model.listed.rcut, &model.listed.sel)?;
            }
            if model.descriptor().env_protection == 0.0 {
                Domain::refuse_overlap(&found, i)?;
            }
            let of_type = |t: usize| found.iter().filter(move |near| near.neighbor as usize == t);
            let mut shared = Shared::new(model, |t| of_type(t).map(|near| near.r2).collect());
            let mut rest = &found[..];
            for t in 0..n_types {
                let (own, others) = rest.split_at(rest.partition_point(|near| near.neighbor as usize == t));
                rest = others;
                let slots = shared.slots(model, t);
                if is_hidden(model, domain.types[i], t) {
                    part.push_empty(shared.empty(slots, 0), counts_left_out);
                    continue;
                }
                let is_seen =
                    domain.types[i] >= 0 && !model.descriptor().excludes(domain.types[i] as usize, t);
                let mut taken = slots.min(own.len());
                if is_seen {
                    let first = part.j.len();
                    part.j.extend(own.iter().map(|near| near.j));
                    part.d.extend(own.iter().map(|near| near.d));
                    part.r.extend(own.iter().map(|near| near.r2.sqrt()));
                    taken = part.keep_near(first, slots, model.descriptor().rcut);
                }
                part.padding.push(shared.empty(slots, taken));
                if counts_left_out {
                    part.left_out.push(if is_seen { 0 } else { taken as u32 });
                }
                part.start.push(part.j.len() as u32);
            }
            shared.give_empty(&mut part.padding, n_types);
        }
        Ok(part)
    }

    /// Empties everything and makes room for so many pairs and (centre, type)s.
    fn clear(&mut self, n_pairs: usize, n_groups: usize) {
        self.j.clear();
        self.d.clear();
        self.r.clear();
        self.padding.clear();
        self.left_out.clear();
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
    pub fn pairs(&self, i: usize, t: usize, n_types: usize) -> Range<usize> {
        self.start[i * n_types + t] as usize..self.start[i * n_types + t + 1] as usize
    }
}

impl Prepared for Geometry {
    fn bytes(&self) -> usize {
        self.j.len() * (4 + 24 + 8) + self.start.len() * 8 + self.extra.len() * 8 + size_of::<Self>()
    }
}

/// The slots of one atom where types have them together; where each type has its own, nothing.
struct Shared {
    /// How many of the neighbours that are listed of each type are among the nearest.
    taken: Option<Vec<usize>>,
    empty: usize,
}

impl Shared {
    /// `distances` gives those of the neighbours of a type, or their squares, nearest first.
    fn new(model: &Dp, distances: impl Fn(usize) -> Vec<f64>) -> Self {
        if !model.descriptor().is_mixed() {
            return Shared { taken: None, empty: 0 };
        }
        let lists: Vec<Vec<f64>> = (0..model.n_types()).map(distances).collect();
        let mut all: Vec<(f64, usize)> = Vec::new();
        for (t, list) in lists.iter().enumerate() {
            all.extend(list.iter().map(|&r| (r, t)));
        }
        let mut taken = vec![0; model.n_types()];
        all.sort_by(|a, b| a.0.total_cmp(&b.0));
        all.iter().take(model.n_sel()).for_each(|&(_, t)| taken[t] += 1);
        Shared { taken: Some(taken), empty: model.n_sel() }
    }

    /// Slots for neighbours of type `t`.
    fn slots(&self, model: &Dp, t: usize) -> usize {
        match &self.taken {
            Some(taken) => taken[t],
            None => model.sel()[t],
        }
    }

    /// The empty slots of a type of which some are taken; those that types have together are known at the end.
    fn empty(&mut self, slots: usize, taken: usize) -> u32 {
        match self.taken {
            Some(_) => {
                self.empty -= taken;
                0
            }
            None => (slots - taken) as u32,
        }
    }

    /// Puts the empty slots of all types of the last atom with its first type.
    fn give_empty(self, padding: &mut [u32], n_types: usize) {
        if self.taken.is_some() {
            let first = padding.len() - n_types;
            padding[first] = self.empty as u32;
        }
    }
}

/// The type of the first atom, before or after they are sorted by type; that of a virtual one is 0 there.
fn empty_type(types: &[i32], sorted: bool) -> usize {
    let first = if sorted { types.iter().min() } else { types.first() };
    first.map_or(0, |&t| t.max(0) as usize)
}

/// The neighbours of a frame, for every descriptor of a model.
pub fn list_of(model: &Dp, frame: &Frame) -> Result<NeighborList> {
    NeighborList::new(frame, model.listed.rcut, model.n_types(), Some(&model.listed.sel))
}

/// The same for each of somebody's blocks. There is always one: who has none gets one without atoms.
pub fn lists_of(model: &Dp, frame: &Frame, cut: Cut) -> Result<Vec<NeighborList>> {
    let (n, own) = (cut.n_blocks(frame.n_atoms()), cut.own(frame.n_atoms()));
    if n == 1 && own.len() == 1 {
        return Ok(vec![list_of(model, frame)?]);
    }
    let blocks = blocks_of(model, frame, n)?;
    let own = if own.is_empty() { n..n + 1 } else { own };
    Ok(own.map(|block| list_of_block(model, frame, &blocks, block)).collect())
}

/// A frame in blocks of equal work.
pub fn blocks_of(model: &Dp, frame: &Frame, n: usize) -> Result<Blocks> {
    Blocks::new(frame, model.listed.rcut, n, model.atom_cost())
}

/// The neighbours of the atoms of one block.
pub fn list_of_block(model: &Dp, frame: &Frame, blocks: &Blocks, block: usize) -> NeighborList {
    NeighborList::of_block(frame, blocks, block, model.n_types(), Some(&model.listed.sel[..]))
}

/// Whether slots of excluded neighbours must be counted: they contribute where there are no directions.
fn counts_left_out(model: &Dp) -> bool {
    let descriptor = model.descriptor();
    matches!(descriptor.form(), Form::Distances { .. }) && !descriptor.exclude_types.is_empty()
}

/// Whether atoms of type `t` are no neighbours of this centre.
fn is_hidden(model: &Dp, center: i32, t: usize) -> bool {
    usize::try_from(center).is_ok_and(|center| model.options.hides(center, t))
}

/// Types of atoms, -1 for those that have no energy of their own.
fn centers_of(model: &Dp, types: &Arc<[i32]>) -> Arc<[i32]> {
    if model.options.atom_exclude_types.is_empty() {
        return types.clone();
    }
    types.iter().map(|&t| if model.options.has_energy(t) { t } else { -1 }).collect()
}

/// `[n_atoms, n_extra]` frame and atomic parameters, shifted and scaled by the statistics.
pub(crate) fn extra_inputs(extra: &mut Vec<f64>, model: &Dp, n_atoms: usize, fparam: &[f64], aparam: &[f64]) {
    let fit = &model.options.fitting;
    let stats = &model.stats;
    extra.clear();
    let fparam = fit.fparam_or_default(fparam);
    let numb_aparam = fit.n_extra() - fit.numb_fparam;
    for i in 0..n_atoms {
        for k in 0..fit.numb_fparam {
            extra.push((fparam[k] - stats.fparam_avg[k]) * stats.fparam_inv_std[k]);
        }
        for k in 0..numb_aparam {
            let x = aparam[i * numb_aparam + k];
            extra.push((x - stats.aparam_avg[k]) * stats.aparam_inv_std[k]);
        }
    }
}
