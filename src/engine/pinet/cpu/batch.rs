//! A batch: structures joined to one list of atoms and one of pairs, cut into blocks.

use crate::engine::cpu::real::Real;
use crate::engine::pinet::PinetFrame;
use crate::engine::pinet::geometry::{tensor, tensor_backward, tensor_tangent, unit, unit_tangent};
use std::ops::Range;

/// Pairs that a block has at least, unless atoms run out: their widest matrix fits the first cache of a core.
const PAIRS: usize = 64;
/// Atoms that a block has at most.
const ATOMS: usize = 64;
/// Atoms of a block of a segment without pairs.
const ATOMS_ALONE: usize = 16;
/// Groups of blocks at most; each sums its own part of a gradient.
const GROUPS: usize = 16;

/// Whole atoms with all their pairs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    pub atoms: Range<usize>,
    pub pairs: Range<usize>,
}

/// Structures joined.
#[derive(Default)]
pub struct Batch<T> {
    /// First atom of each structure, and the number of all.
    pub first_atom: Vec<usize>,
    /// `[n_atoms]` column of the one-hot row
    pub columns: Vec<Option<u32>>,
    /// `[n_atoms + 1]`
    pub start: Vec<u32>,
    /// `[n_pairs]`
    pub i: Vec<u32>,
    pub j: Vec<u32>,
    pub start_j: Vec<u32>,
    pub by_j: Vec<u32>,
    /// `[n_pairs, n_basis]` radial functions, their slopes and changes, and dE by them
    pub e: Vec<T>,
    pub slope: Vec<T>,
    pub e_dot: Vec<T>,
    pub de_e: Vec<T>,
    /// For each size of tensors (3, then 5) `[n_pairs, size]`: directions, their changes, and dE by them
    pub directions: Vec<Direction<T>>,
    /// `[n_pairs]` x_j - x_i, A
    pub d: Vec<[f64; 3]>,
    pub r: Vec<f64>,
    /// `[n_pairs]` dE/dd
    pub de_d: Vec<[f64; 3]>,
    pub blocks: Vec<Block>,
    /// Blocks of segments that are about atoms alone; their pairs are none.
    pub atom_blocks: Vec<Block>,
}

/// Unit vectors or tensors of pairs.
#[derive(Default)]
pub struct Direction<T> {
    pub size: usize,
    pub value: Vec<T>,
    pub dot: Vec<T>,
    pub de: Vec<T>,
}

/// Part `g` of `n` about equal parts.
fn part_of(blocks: &[Block], g: usize, n: usize) -> &[Block] {
    &blocks[g * blocks.len() / n..(g + 1) * blocks.len() / n]
}

impl<T: Real> Batch<T> {
    pub fn n_atoms(&self) -> usize {
        self.columns.len()
    }

    pub fn n_pairs(&self) -> usize {
        self.j.len()
    }

    pub fn n_structures(&self) -> usize {
        self.first_atom.len() - 1
    }

    pub fn pairs_of(&self, i: usize) -> Range<usize> {
        self.start[i] as usize..self.start[i + 1] as usize
    }

    pub fn pairs_to(&self, j: usize) -> &[u32] {
        &self.by_j[self.start_j[j] as usize..self.start_j[j + 1] as usize]
    }

    /// Atoms or pairs of the largest block.
    pub fn most_rows(&self) -> usize {
        let all = self.blocks.iter().chain(&self.atom_blocks);
        all.map(|b| b.atoms.len().max(b.pairs.len())).max().unwrap_or(0)
    }

    /// Groups of blocks: one task each. They depend on the batch alone, never on the number of threads.
    pub fn n_groups(&self) -> usize {
        (self.blocks.len() / 4).clamp(1, GROUPS)
    }

    /// The blocks of a group.
    pub fn group(&self, g: usize) -> &[Block] {
        part_of(&self.blocks, g, self.n_groups())
    }

    /// The blocks of atoms alone of a group.
    pub fn atom_group(&self, g: usize) -> &[Block] {
        part_of(&self.atom_blocks, g, self.n_groups())
    }

    /// Joins structures. `sizes`: of the tensors that the network has; `forces`: whether derivatives follow.
    pub fn fill(&mut self, frames: &[&PinetFrame], sizes: &[usize], forces: bool) {
        self.first_atom.clear();
        self.first_atom.push(0);
        self.columns.clear();
        self.i.clear();
        self.j.clear();
        self.by_j.clear();
        self.e.clear();
        self.slope.clear();
        self.d.clear();
        self.r.clear();
        for start in [&mut self.start, &mut self.start_j] {
            start.clear();
            start.push(0);
        }
        for frame in frames {
            let (first, pairs) = (self.columns.len() as u32, self.j.len() as u32);
            self.columns.extend(&frame.columns);
            self.start.extend(frame.start[1..].iter().map(|s| s + pairs));
            self.start_j.extend(frame.start_j[1..].iter().map(|s| s + pairs));
            self.by_j.extend(frame.by_j.iter().map(|p| p + pairs));
            self.j.extend(frame.j.iter().map(|j| j + first));
            for i in 0..frame.n_atoms() {
                self.i.extend(frame.pairs_of(i).map(|_| first + i as u32));
            }
            self.e.extend(frame.basis.iter().map(|&x| T::from_f64(x)));
            self.slope.extend(frame.slope.iter().map(|&x| T::from_f64(x)));
            self.d.extend(&frame.d);
            self.r.extend(&frame.r);
            self.first_atom.push(self.columns.len());
        }
        self.fill_directions(sizes);
        let zero = |x: &mut Vec<T>, n: usize| {
            x.clear();
            x.resize(n, T::ZERO);
        };
        zero(&mut self.de_e, if forces { self.e.len() } else { 0 });
        zero(&mut self.e_dot, if forces { self.e.len() } else { 0 });
        self.de_d.resize(if forces { self.d.len() } else { 0 }, [0.0; 3]);
        self.cut();
    }

    fn fill_directions(&mut self, sizes: &[usize]) {
        self.directions.resize_with(sizes.len(), Direction::default);
        for (direction, &size) in self.directions.iter_mut().zip(sizes) {
            direction.size = size;
            direction.value.clear();
            for d in &self.d {
                let n = unit(d);
                match size {
                    3 => direction.value.extend(n.map(T::from_f64)),
                    _ => direction.value.extend(tensor(&n).map(T::from_f64)),
                }
            }
            for x in [&mut direction.dot, &mut direction.de] {
                x.clear();
                x.resize(direction.value.len(), T::ZERO);
            }
        }
    }

    /// Cuts atoms into blocks.
    fn cut(&mut self) {
        self.blocks.clear();
        self.atom_blocks.clear();
        for first in (0..self.n_atoms()).step_by(ATOMS_ALONE) {
            let atoms = first..self.n_atoms().min(first + ATOMS_ALONE);
            self.atom_blocks.push(Block { atoms, pairs: 0..0 });
        }
        let mut first = 0;
        for i in 0..self.n_atoms() {
            let pairs = (self.start[i + 1] - self.start[first]) as usize;
            if pairs >= PAIRS || i + 1 - first == ATOMS || i + 1 == self.n_atoms() {
                let pairs = self.start[first] as usize..self.start[i + 1] as usize;
                self.blocks.push(Block { atoms: first..i + 1, pairs });
                first = i + 1;
            }
        }
    }

    /// dE/dd of pair `p` from what the reverse pass left.
    pub fn pair_gradient(&self, p: usize, n_basis: usize) -> [f64; 3] {
        let n = unit(&self.d[p]);
        let range = p * n_basis..(p + 1) * n_basis;
        let de_r: f64 = self.de_e[range.clone()]
            .iter()
            .zip(&self.slope[range])
            .map(|(a, b)| a.to_f64() * b.to_f64())
            .sum();
        let mut de_d = n.map(|x| x * de_r);
        for direction in &self.directions {
            let de = &direction.de[p * direction.size..(p + 1) * direction.size];
            let de = |k: usize| de[k].to_f64();
            let de_n = match direction.size {
                3 => [de(0), de(1), de(2)],
                _ => tensor_backward(&n, &[de(0), de(1), de(2), de(3), de(4)]),
            };
            let de = unit_tangent(&n, self.r[p], &de_n);
            (0..3).for_each(|k| de_d[k] += de[k]);
        }
        de_d
    }

    /// Sets the changes of everything geometric when each pair moves along `d_dot`.
    ///
    /// - d  `[n_pairs]`  A
    pub fn set_tangents(&mut self, n_basis: usize, d: &[[f64; 3]], d_dot: impl Fn(usize) -> [f64; 3]) {
        for p in 0..d.len() {
            let (n, d_dot) = (unit(&d[p]), d_dot(p));
            let r_dot = T::from_f64(n[0] * d_dot[0] + n[1] * d_dot[1] + n[2] * d_dot[2]);
            for k in p * n_basis..(p + 1) * n_basis {
                self.e_dot[k] = self.slope[k] * r_dot;
            }
            if self.directions.is_empty() {
                continue;
            }
            let n_dot = unit_tangent(&n, self.r[p], &d_dot);
            for direction in &mut self.directions {
                let dot = &mut direction.dot[p * direction.size..(p + 1) * direction.size];
                match dot.len() {
                    3 => dot.iter_mut().zip(n_dot).for_each(|(x, y)| *x = T::from_f64(y)),
                    _ => {
                        dot.iter_mut().zip(tensor_tangent(&n, &n_dot)).for_each(|(x, y)| *x = T::from_f64(y))
                    }
                }
            }
        }
    }
}
