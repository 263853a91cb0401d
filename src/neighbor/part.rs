//! A frame cut into blocks of space, for ranks that work on it together.
//!
//! The bins of the neighbour search are walked along a Morton curve, so that atoms which follow each other are near each other, and
//! the walk is cut where the work is shared equally. Every rank finds the same blocks by itself. Each needs the positions of all
//! atoms, and lists the neighbours of its own.

use super::cells::Cells;
use super::search::Piece;
use crate::Result;
use crate::comm::element::share;
use crate::data::Frame;
use std::ops::Range;

/// Atoms of a block at least, and the most blocks, where blocks do not follow the number of parts.
const STEADY_ATOMS: usize = 512;
const STEADY_BLOCKS: usize = 32;

/// Which blocks of its frames somebody works on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cut {
    /// One of so many who share a frame.
    pub part: usize,
    pub parts: usize,
    /// Blocks follow from the number of atoms alone, so that results do not depend on the number of parts, but for who has which
    /// block. Otherwise each part has one block.
    pub steady: bool,
}

impl Cut {
    /// Frames as they are.
    pub const WHOLE: Cut = Cut { part: 0, parts: 1, steady: false };

    /// Blocks of a frame of so many atoms.
    pub fn n_blocks(&self, n_atoms: usize) -> usize {
        if self.steady { (n_atoms / STEADY_ATOMS).clamp(1, STEADY_BLOCKS) } else { self.parts }
    }

    /// Atoms of a block of so many, as far as memory is made for them at once: blocks are of equal work.
    pub fn most_of_block(n_atoms: usize, parts: usize) -> usize {
        if parts == 1 { n_atoms } else { (n_atoms.div_ceil(parts) * 9).div_ceil(8) }
    }

    /// Those of this part.
    pub fn own(&self, n_atoms: usize) -> Range<usize> {
        share(self.n_blocks(n_atoms), self.parts, self.part)
    }
}

/// The real atoms of a frame in blocks, each atom in one of them.
pub struct Blocks {
    cells: Cells,
    rcut: f64,
    /// `[n_blocks]` where its atoms are.
    pieces: Vec<Vec<Piece>>,
}

impl Blocks {
    /// Cuts a frame into `n` blocks of equal work. An atom costs as much as its neighbours within `rcut`, and `per_atom` more of
    /// them. Where atoms are few some blocks are empty.
    pub fn new(frame: &Frame, rcut: f64, n: usize, per_atom: f64) -> Result<Self> {
        let cells = Cells::new(frame, rcut)?;
        let mut walk = cells.pieces();
        walk.sort_by_key(|piece| morton(cells.place_of(piece.bin)));
        // An atom without neighbours is some work too.
        let costs: Vec<f64> =
            walk.iter().map(|piece| cells.estimate(piece.bin, rcut) + per_atom.max(1.0)).collect();
        let total: f64 = walk.iter().zip(&costs).map(|(piece, cost)| piece.members.len() as f64 * cost).sum();
        let mut pieces = vec![Vec::<Piece>::new(); n];
        let mut before = 0.0;
        for (Piece { bin, members }, cost) in walk.into_iter().zip(costs) {
            for member in members {
                let block = (((before + 0.5 * cost) / total * n as f64) as usize).min(n - 1);
                before += cost;
                match pieces[block].last_mut().filter(|last| last.bin == bin) {
                    Some(last) => last.members.end = member + 1,
                    None => pieces[block].push(Piece { bin, members: member..member + 1 }),
                }
            }
        }
        Ok(Blocks { cells, rcut, pieces })
    }

    pub fn n_blocks(&self) -> usize {
        self.pieces.len()
    }

    /// Index in the frame of the atoms of a block, along the walk. Blocks beyond the last are empty.
    pub fn atoms(&self, block: usize) -> impl Iterator<Item = usize> + '_ {
        let atoms = |piece: &Piece| self.cells.members()[piece.members.clone()].iter();
        self.pieces(block).iter().flat_map(atoms).map(|&i| i as usize)
    }

    pub(super) fn cells(&self) -> &Cells {
        &self.cells
    }

    pub(super) fn pieces(&self, block: usize) -> &[Piece] {
        self.pieces.get(block).map_or(&[], Vec::as_slice)
    }

    pub(super) fn rcut(&self) -> f64 {
        self.rcut
    }
}

/// The place along the Morton curve: the bits of the three numbers in turn.
fn morton(place: [u32; 3]) -> u64 {
    let mut code = 0;
    for bit in 0..21 {
        for (k, x) in place.iter().enumerate() {
            code |= u64::from(x >> bit & 1) << (3 * bit + 2 - k);
        }
    }
    code
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Labels;
    use crate::neighbor::NeighborList;
    use crate::neighbor::stat::NeighborStat;

    const RCUT: f64 = 4.0;

    fn frame(n: usize, cell: Option<[f64; 9]>, size: f64, types: impl Fn(usize) -> i32) -> Frame {
        let coord = (0..3 * n).map(|k| ((k as f64 * 12.9898).sin() * 43758.5453).fract() * size).collect();
        let types = (0..n).map(types).collect::<Vec<_>>().into();
        Frame { types, sorted: false, coord, cell, fparam: vec![], aparam: vec![], labels: Labels::default() }
    }

    /// A dense cube and a sparse one, in a triclinic cell and open; a cell smaller than the cutoff; one atom; none that is real.
    fn frames() -> Vec<Frame> {
        let tilted = [15.0, 0.3, -0.4, 3.1, 16.5, 0.2, -2.7, 0.9, 14.0];
        vec![
            frame(900, Some(tilted), 40.0, |i| (i % 3 == 0).into()),
            frame(900, None, 16.0, |i| (i % 3 == 0).into()),
            frame(7, Some([3.0, 0.0, 0.0, 0.2, 2.8, 0.0, 0.1, -0.3, 3.3]), 9.0, |i| (i % 2) as i32),
            frame(40, Some(tilted), 15.0, |i| if i % 5 == 0 { -1 } else { 1 }),
            frame(1, None, 1.0, |_| 0),
            frame(3, Some(tilted), 1.0, |_| -1),
        ]
    }

    #[test]
    fn every_real_atom_is_in_one_block() {
        for (k, frame) in frames().iter().enumerate() {
            for n in [1, 2, 3, 4, 8, 17] {
                let blocks = Blocks::new(frame, RCUT, n, 20.0).unwrap();
                let mut all: Vec<usize> = (0..n).flat_map(|block| blocks.atoms(block)).collect();
                all.sort_unstable();
                let real = (0..frame.n_atoms()).filter(|&i| frame.types[i] >= 0);
                assert!(all.into_iter().eq(real), "frame {k} in {n} blocks");
            }
        }
    }

    #[test]
    fn the_lists_of_blocks_are_the_list_of_the_frame() {
        for frame in &frames() {
            let whole = NeighborList::new(frame, RCUT, 2, Some(&[20, 30])).unwrap();
            let blocks = Blocks::new(frame, RCUT, 5, 20.0).unwrap();
            let mut n_pairs = 0;
            for block in 0..5 {
                let list = NeighborList::of_block(frame, &blocks, block, 2, Some(&[20, 30]));
                n_pairs += list.n_pairs();
                for i in blocks.atoms(block) {
                    for t in 0..2 {
                        assert!(list.of(i, t).eq(whole.of(i, t)), "atom {i} in block {block}");
                    }
                }
                assert_eq!(
                    (0..frame.n_atoms()).filter(|&i| list.is_center(i)).count(),
                    blocks.atoms(block).count()
                );
            }
            assert_eq!(n_pairs, whole.n_pairs(), "memory is shared");
        }
    }

    #[test]
    fn the_statistics_of_blocks_are_those_of_the_frame() {
        let cell = [30.0, 0.0, 0.0, 1.0, 30.0, 0.0, 0.0, -2.0, 30.0];
        let large = frame(3000, Some(cell), 90.0, |i| (i % 3 == 0).into());
        let whole = NeighborStat::of(&large, RCUT, 2).unwrap();
        for parts in [1, 2, 3, 7] {
            let of =
                |part| NeighborStat::of_blocks(&large, RCUT, 2, Cut { part, parts, steady: true }).unwrap();
            let all = (0..parts).map(of).fold(NeighborStat::empty(2), |a, b| a.merge(&b));
            assert_eq!(all, whole, "{parts} parts");
        }
    }

    /// Most over mean number of neighbours of a block.
    fn imbalance(frame: &Frame, n: usize, per_atom: f64) -> f64 {
        let blocks = Blocks::new(frame, RCUT, n, per_atom).unwrap();
        let pairs = |block| NeighborList::of_block(frame, &blocks, block, 2, None).n_pairs() as f64;
        let pairs: Vec<f64> = (0..n).map(pairs).collect();
        pairs.iter().copied().fold(0.0, f64::max) / (pairs.iter().sum::<f64>() / n as f64)
    }

    #[test]
    fn blocks_have_equal_numbers_of_neighbours() {
        // Half of the atoms are in an eighth of the space.
        let mut uneven = frame(4000, Some([24.0, 0.0, 0.0, 0.0, 24.0, 0.0, 0.0, 0.0, 24.0]), 24.0, |_| 0);
        uneven.coord[..6000].iter_mut().for_each(|x| *x = x.rem_euclid(12.0));
        for n in [2, 3, 4, 8] {
            let found = imbalance(&uneven, n, 0.0);
            assert!(found < 1.1, "{n} blocks: {found}");
            let even = imbalance(&frame(4000, uneven.cell, 24.0, |_| 0), n, 100.0);
            assert!(even < 1.1, "{n} blocks of an even frame: {even}");
        }
        // By number of atoms alone the dense corner would have all the work.
        assert!(imbalance(&uneven, 4, 1e9) > 1.3);
    }

    #[test]
    fn blocks_are_compact() {
        // Sixteen bins along each direction: the curve takes one eighth of the cell after the other.
        let cell = [32.0, 0.0, 0.0, 0.0, 32.0, 0.0, 0.0, 0.0, 32.0];
        let mut even = frame(4000, Some(cell), 32.0, |_| 0);
        even.coord.iter_mut().for_each(|x| *x = x.rem_euclid(32.0));
        let blocks = Blocks::new(&even, RCUT, 8, 50.0).unwrap();
        for block in 0..8 {
            let half = [block >> 2, block >> 1, block].map(|bits| usize::from(bits & 1 == 1));
            let is_inside = |i: usize| (0..3).all(|k| usize::from(even.coord[3 * i + k] >= 16.0) == half[k]);
            let (n, inside) =
                (blocks.atoms(block).count(), blocks.atoms(block).filter(|&i| is_inside(i)).count());
            assert!(
                n - inside < n / 8,
                "{inside} of {n} atoms of block {block} are in its eighth of the cell"
            );
        }
    }

    #[test]
    fn parts_share_blocks() {
        for (n_atoms, n_blocks) in [(1, 1), (1023, 1), (1024, 2), (12_288, 24), (100_000, 32)] {
            for parts in 1..40 {
                let cut = |part, steady| Cut { part, parts, steady };
                let own: Vec<usize> = (0..parts).flat_map(|part| cut(part, true).own(n_atoms)).collect();
                assert!(own.into_iter().eq(0..n_blocks), "{n_atoms} atoms, {parts} parts");
                assert!((0..parts).all(|part| cut(part, false).own(n_atoms) == (part..part + 1)));
            }
        }
    }

    #[test]
    fn the_curve_takes_near_places_first() {
        let codes = [[0, 0, 0], [0, 0, 1], [0, 1, 0], [0, 1, 1], [1, 0, 0], [1, 1, 1], [0, 0, 2]].map(morton);
        assert_eq!(codes, [0, 1, 2, 3, 4, 7, 8]);
        assert_eq!(morton([1 << 20, 0, 0]), 1 << 62);
    }
}
