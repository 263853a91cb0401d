//! A batch: structures joined to one list of atoms and one of pairs, cut into blocks.

use crate::engine::cpu::pool::{Parts, Pool};
use crate::engine::cpu::real::Real;
use crate::engine::pinet::PinetFrame;
use crate::engine::pinet::geometry::{tensor, tensor_backward, tensor_tangent, unit_tangent};
use std::ops::Range;

/// Pairs that a block has at least, unless atoms run out: their widest matrix fits the first cache of a core.
const PAIRS: usize = 64;
/// Atoms that a block has at most.
const ATOMS: usize = 64;
/// Atoms of a block of a segment without pairs.
const ATOMS_ALONE: usize = 32;
/// Groups of blocks at most; each sums its own part of a gradient.
const GROUPS: usize = 16;
/// From this many structures on a group is made of whole ones: then nobody waits for another group.
const CLOSED: usize = 8;

/// Whole atoms with all their pairs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    pub atoms: Range<usize>,
    pub pairs: Range<usize>,
}

/// What one task has of a batch. Groups depend on the batch alone, never on the number of threads.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Group {
    pub structures: Range<usize>,
    blocks: Range<usize>,
    atom_blocks: Range<usize>,
}

/// Structures joined.
#[derive(Default)]
pub struct Batch<T> {
    /// First atom and first pair of each structure, and the number of all.
    pub first_atom: Vec<usize>,
    pub first_pair: Vec<usize>,
    /// `[n_atoms]` column of the one-hot row
    pub columns: Vec<Option<u32>>,
    /// `[n_atoms + 1]`
    pub start: Vec<u32>,
    /// `[n_pairs]`
    pub i: Vec<u32>,
    pub j: Vec<u32>,
    /// `[n_pairs]` which two elements: the column of i times (columns + 1), plus that of j; unknown ones come last
    pub kind: Vec<u32>,
    pub start_j: Vec<u32>,
    pub by_j: Vec<u32>,
    /// `[n_pairs, n_basis]` radial functions, their slopes and changes, and dE by them
    pub e: Vec<T>,
    pub slope: Vec<T>,
    pub e_dot: Vec<T>,
    pub de_e: Vec<T>,
    /// For each size of tensors (3, then 5) `[n_pairs, size]`: directions, their changes, and dE by them
    pub directions: Vec<Direction<T>>,
    /// `[n_pairs]` x_j - x_i, A, and its unit vector
    pub d: Vec<[f64; 3]>,
    pub unit: Vec<[f64; 3]>,
    pub r: Vec<f64>,
    /// `[n_pairs]` dE/dd
    pub de_d: Vec<[f64; 3]>,
    pub blocks: Vec<Block>,
    /// Blocks of segments that are about atoms alone; their pairs are none.
    pub atom_blocks: Vec<Block>,
    pub groups: Vec<Group>,
    /// Whether groups are made of whole structures.
    pub closed: bool,
}

/// Unit vectors or tensors of pairs.
#[derive(Default)]
pub struct Direction<T> {
    pub size: usize,
    pub value: Vec<T>,
    pub dot: Vec<T>,
    pub de: Vec<T>,
}

/// Part `g` of `n` about equal parts of `0..len`.
fn part_of(len: usize, g: usize, n: usize) -> Range<usize> {
    g * len / n..(g + 1) * len / n
}

/// Directions while they are written: their size, their values, and dE by them.
type Written<T> = (usize, Parts<T>, Parts<T>);

/// The arrays of a batch while structures are written into them.
struct Join<'a, T> {
    first_atom: &'a [usize],
    first_pair: &'a [usize],
    columns: Parts<Option<u32>>,
    start: Parts<u32>,
    start_j: Parts<u32>,
    i: Parts<u32>,
    j: Parts<u32>,
    kind: Parts<u32>,
    by_j: Parts<u32>,
    e: Parts<T>,
    slope: Parts<T>,
    de_e: Parts<T>,
    d: Parts<[f64; 3]>,
    unit: Parts<[f64; 3]>,
    r: Parts<f64>,
    directions: [Option<Written<T>>; 2],
    /// Kinds of elements, the unknown one among them.
    n_kinds: u32,
    n_basis: usize,
}

impl<T: Real> Join<'_, T> {
    /// Writes structure `s`.
    fn structure(&self, s: usize, frame: &PinetFrame) {
        let (first, atoms) = (self.first_atom[s], frame.n_atoms());
        let (pairs, n) = (self.first_pair[s], frame.n_pairs());
        let b = self.n_basis;
        // SAFETY: every array is cut into the atoms or pairs of structures, and each structure is one task's.
        unsafe {
            self.columns.part(first, atoms).copy_from_slice(&frame.columns);
            for (to, from) in [(&self.start, &frame.start), (&self.start_j, &frame.start_j)] {
                let to = to.part(first + 1, atoms).iter_mut().zip(&from[1..]);
                to.for_each(|(to, from)| *to = from + pairs as u32);
            }
            let index = self.by_j.part(pairs, n).iter_mut().zip(&frame.by_j);
            index.for_each(|(to, p)| *to = p + pairs as u32);
            let index = self.j.part(pairs, n).iter_mut().zip(&frame.j);
            index.for_each(|(to, j)| *to = j + first as u32);
            let (i, kind) = (self.i.part(pairs, n), self.kind.part(pairs, n));
            let column = |a: usize| frame.columns[a].unwrap_or(self.n_kinds - 1);
            for a in 0..atoms {
                let row = column(a) * self.n_kinds;
                for p in frame.pairs_of(a) {
                    i[p] = (first + a) as u32;
                    kind[p] = row + column(frame.j[p] as usize);
                }
            }
            for (to, from) in [(&self.e, &frame.basis), (&self.slope, &frame.slope)] {
                let to = to.part(pairs * b, n * b).iter_mut().zip(from);
                to.for_each(|(to, from)| *to = T::from_f64(*from));
            }
            if !self.de_e.is_empty() {
                self.de_e.part(pairs * b, n * b).fill(T::ZERO);
            }
            self.d.part(pairs, n).copy_from_slice(&frame.d);
            self.r.part(pairs, n).copy_from_slice(&frame.r);
            let units = self.unit.part(pairs, n);
            for (unit, (d, r)) in units.iter_mut().zip(frame.d.iter().zip(&frame.r)) {
                let scale = 1.0 / r;
                *unit = d.map(|x| x * scale);
            }
            for (size, value, de) in self.directions.iter().flatten() {
                de.part(pairs * size, n * size).fill(T::ZERO);
                let values = value.part(pairs * size, n * size).chunks_exact_mut(*size);
                for (value, n) in values.zip(units.iter()) {
                    match size {
                        3 => value.iter_mut().zip(n).for_each(|(x, n)| *x = T::from_f64(*n)),
                        _ => value.iter_mut().zip(tensor(n)).for_each(|(x, t)| *x = T::from_f64(t)),
                    }
                }
            }
        }
    }
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

    /// Pairs that a region for changes must have room for: of the largest group where groups are whole structures, else all.
    pub fn region_pairs(&self) -> usize {
        let of =
            |group: &Group| self.first_pair[group.structures.end] - self.first_pair[group.structures.start];
        let most = if self.closed { self.groups.iter().map(of).max() } else { Some(self.n_pairs()) };
        most.unwrap_or(0).next_multiple_of(16)
    }

    /// Groups of blocks: one task each.
    pub fn n_groups(&self) -> usize {
        self.groups.len()
    }

    /// The blocks of a group.
    pub fn group(&self, g: usize) -> &[Block] {
        &self.blocks[self.groups[g].blocks.clone()]
    }

    /// The blocks of atoms alone of a group.
    pub fn atom_group(&self, g: usize) -> &[Block] {
        &self.atom_blocks[self.groups[g].atom_blocks.clone()]
    }

    /// The structures of a group.
    pub fn structures(&self, g: usize) -> Range<usize> {
        self.groups[g].structures.clone()
    }

    /// Atoms of a structure.
    pub fn atoms_of(&self, s: usize) -> Range<usize> {
        self.first_atom[s]..self.first_atom[s + 1]
    }

    /// Joins structures. `sizes`: of the tensors that the network has; `n_types`: its elements; `forces`: whether
    /// derivatives follow.
    pub fn fill(
        &mut self,
        frames: &[&PinetFrame],
        sizes: &[usize],
        (n_types, n_basis): (usize, usize),
        forces: bool,
        pool: &Pool,
    ) {
        self.first_atom.clear();
        self.first_pair.clear();
        let (mut atoms, mut pairs) = (0, 0);
        self.first_atom.push(0);
        self.first_pair.push(0);
        for frame in frames {
            atoms += frame.n_atoms();
            pairs += frame.n_pairs();
            self.first_atom.push(atoms);
            self.first_pair.push(pairs);
        }
        self.resize(atoms, pairs, sizes, n_basis, forces);
        let mut directions = self.directions.iter_mut();
        let mut direction =
            || directions.next().map(|d| (d.size, Parts::new(&mut d.value), Parts::new(&mut d.de)));
        let join = Join {
            first_atom: &self.first_atom,
            first_pair: &self.first_pair,
            columns: Parts::new(&mut self.columns),
            start: Parts::new(&mut self.start),
            start_j: Parts::new(&mut self.start_j),
            i: Parts::new(&mut self.i),
            j: Parts::new(&mut self.j),
            kind: Parts::new(&mut self.kind),
            by_j: Parts::new(&mut self.by_j),
            e: Parts::new(&mut self.e),
            slope: Parts::new(&mut self.slope),
            de_e: Parts::new(&mut self.de_e),
            d: Parts::new(&mut self.d),
            unit: Parts::new(&mut self.unit),
            r: Parts::new(&mut self.r),
            directions: [direction(), direction()],
            n_kinds: n_types as u32 + 1,
            n_basis,
        };
        pool.run(frames.len(), |s| join.structure(s, frames[s]));
        self.cut();
    }

    /// Room for so many atoms and pairs.
    fn resize(&mut self, atoms: usize, pairs: usize, sizes: &[usize], n_basis: usize, forces: bool) {
        self.columns.resize(atoms, None);
        for start in [&mut self.start, &mut self.start_j] {
            start.resize(atoms + 1, 0);
            start[0] = 0;
        }
        for index in [&mut self.i, &mut self.j, &mut self.kind, &mut self.by_j] {
            index.resize(pairs, 0);
        }
        for radial in [&mut self.e, &mut self.slope] {
            radial.resize(pairs * n_basis, T::ZERO);
        }
        for derivative in [&mut self.e_dot, &mut self.de_e] {
            derivative.resize(if forces { pairs * n_basis } else { 0 }, T::ZERO);
        }
        for vectors in [&mut self.d, &mut self.unit] {
            vectors.resize(pairs, [0.0; 3]);
        }
        self.r.resize(pairs, 0.0);
        self.de_d.resize(if forces { pairs } else { 0 }, [0.0; 3]);
        self.directions.resize_with(sizes.len(), Direction::default);
        for (direction, &size) in self.directions.iter_mut().zip(sizes) {
            direction.size = size;
            for x in [&mut direction.value, &mut direction.dot, &mut direction.de] {
                x.resize(pairs * size, T::ZERO);
            }
        }
    }

    /// Cuts atoms into blocks, and blocks into groups.
    fn cut(&mut self) {
        self.blocks.clear();
        self.atom_blocks.clear();
        self.groups.clear();
        let structures = self.n_structures();
        self.closed = structures >= CLOSED;
        if self.closed {
            let n = structures.min(GROUPS);
            for g in 0..n {
                let structures = part_of(structures, g, n);
                let (blocks, atom_blocks) = (self.blocks.len(), self.atom_blocks.len());
                self.cut_atoms(self.first_atom[structures.start]..self.first_atom[structures.end]);
                let (blocks, atom_blocks) = (blocks..self.blocks.len(), atom_blocks..self.atom_blocks.len());
                self.groups.push(Group { structures, blocks, atom_blocks });
            }
            return;
        }
        self.cut_atoms(0..self.n_atoms());
        let n = (self.blocks.len() / 4).clamp(1, GROUPS);
        for g in 0..n {
            self.groups.push(Group {
                structures: part_of(structures, g, n),
                blocks: part_of(self.blocks.len(), g, n),
                atom_blocks: part_of(self.atom_blocks.len(), g, n),
            });
        }
    }

    fn cut_atoms(&mut self, atoms: Range<usize>) {
        for first in atoms.clone().step_by(ATOMS_ALONE) {
            let atoms = first..atoms.end.min(first + ATOMS_ALONE);
            self.atom_blocks.push(Block { atoms, pairs: 0..0 });
        }
        let mut first = atoms.start;
        for i in atoms.clone() {
            let pairs = (self.start[i + 1] - self.start[first]) as usize;
            if pairs >= PAIRS || i + 1 - first == ATOMS || i + 1 == atoms.end {
                let pairs = self.start[first] as usize..self.start[i + 1] as usize;
                self.blocks.push(Block { atoms: first..i + 1, pairs });
                first = i + 1;
            }
        }
    }

    /// dE/dd of pair `p` from dE by its radial functions and directions.
    pub fn pair_gradient(&self, p: usize, de_e: &[T], de_directions: [&[T]; 2]) -> [f64; 3] {
        let n = self.unit[p];
        let slope = &self.slope[p * de_e.len()..(p + 1) * de_e.len()];
        let de_r: f64 = de_e.iter().zip(slope).map(|(a, b)| a.to_f64() * b.to_f64()).sum();
        let mut de_d = n.map(|x| x * de_r);
        for de in de_directions.into_iter().filter(|de| !de.is_empty()) {
            let at = |k: usize| de[k].to_f64();
            let de_n = match de.len() {
                3 => [at(0), at(1), at(2)],
                _ => tensor_backward(&n, &[at(0), at(1), at(2), at(3), at(4)]),
            };
            let de = unit_tangent(&n, self.r[p], &de_n);
            (0..3).for_each(|k| de_d[k] += de[k]);
        }
        de_d
    }

    /// Sets the changes of everything geometric when each pair moves along `d_dot(structure, i, j, d)`.
    pub fn set_tangents(
        &mut self,
        n_basis: usize,
        pool: &Pool,
        d_dot: impl Fn(usize, usize, usize, &[f64; 3]) -> [f64; 3] + Sync,
    ) {
        let structures = self.n_structures();
        let e_dot = Parts::new(&mut self.e_dot);
        let mut dots = self.directions.iter_mut();
        let mut dot = || dots.next().map(|d| (d.size, Parts::new(&mut d.dot)));
        let directions = [dot(), dot()];
        pool.run(structures, |s| {
            for p in self.first_pair[s]..self.first_pair[s + 1] {
                let n = &self.unit[p];
                let moved = d_dot(s, self.i[p] as usize, self.j[p] as usize, &self.d[p]);
                let r_dot = T::from_f64(n[0] * moved[0] + n[1] * moved[1] + n[2] * moved[2]);
                // SAFETY: pairs of this structure, which one task has.
                let e_dot = unsafe { e_dot.part(p * n_basis, n_basis) };
                let slope = &self.slope[p * n_basis..(p + 1) * n_basis];
                e_dot.iter_mut().zip(slope).for_each(|(e_dot, slope)| *e_dot = *slope * r_dot);
                if directions[0].is_none() {
                    continue;
                }
                let n_dot = unit_tangent(n, self.r[p], &moved);
                for (size, dot) in directions.iter().flatten() {
                    // SAFETY: as above.
                    let dot = unsafe { dot.part(p * size, *size) }.iter_mut();
                    match size {
                        3 => dot.zip(n_dot).for_each(|(x, y)| *x = T::from_f64(y)),
                        _ => dot.zip(tensor_tangent(n, &n_dot)).for_each(|(x, y)| *x = T::from_f64(y)),
                    }
                }
            }
        });
    }
}
