//! Neighbour statistics: the shortest distance and the largest number of neighbours of each type.

use super::cells::Cells;
use super::list::{NeighborList, OVERLAP, in_chunks};
use super::part::{Blocks, Cut};
use super::search::{Around, Piece};
use crate::Result;
use crate::data::Frame;

/// What the neighbour lists of a data set look like.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct NeighborStat {
    /// Shortest distance between two atoms, A; infinite where no atom has a neighbour.
    pub min_distance: f64,
    /// `[n_types]` the most neighbours of each type that one atom has.
    pub max_neighbors: Vec<usize>,
    /// The most neighbours of all types together.
    pub max_together: usize,
}

impl NeighborStat {
    /// The statistics of no frame at all.
    pub fn empty(n_types: usize) -> Self {
        NeighborStat { min_distance: f64::INFINITY, max_neighbors: vec![0; n_types], max_together: 0 }
    }

    /// The statistics of one frame.
    pub fn of(frame: &Frame, rcut: f64, n_types: usize) -> Result<Self> {
        let stat = Self::even_where_atoms_overlap(frame, rcut, n_types)?;
        if stat.min_distance < OVERLAP {
            // The list knows which atoms they are.
            NeighborList::new(frame, rcut, n_types, None)?.refuse_overlap()?;
        }
        Ok(stat)
    }

    /// The same for frames that may have atoms at the same place.
    pub fn even_where_atoms_overlap(frame: &Frame, rcut: f64, n_types: usize) -> Result<Self> {
        let cells = Cells::new(frame, rcut)?;
        Self::of_pieces(frame, &cells, &cells.pieces(), rcut, n_types)
    }

    /// The statistics of somebody's blocks of a frame.
    pub fn of_blocks(frame: &Frame, rcut: f64, n_types: usize, cut: Cut) -> Result<Self> {
        let (n, own) = (cut.n_blocks(frame.n_atoms()), cut.own(frame.n_atoms()));
        if n == 1 && own.len() == 1 {
            return Self::of(frame, rcut, n_types);
        }
        let blocks = Blocks::new(frame, rcut, n, 0.0)?;
        own.map(|block| Self::of_pieces(frame, blocks.cells(), blocks.pieces(block), rcut, n_types))
            .try_fold(Self::empty(n_types), |all, block| Ok(all.merge(&block?)))
    }

    fn of_pieces(frame: &Frame, cells: &Cells, pieces: &[Piece], rcut: f64, n_types: usize) -> Result<Self> {
        let stats = in_chunks(pieces, |pieces, search| {
            let (mut stat, mut counts) = (Self::empty(n_types), vec![0; n_types]);
            search.visit(cells, pieces, rcut, |around| stat.count(&around, &frame.types, &mut counts));
            stat
        });
        Ok(stats.iter().fold(Self::empty(n_types), Self::merge))
    }

    /// Takes the neighbours of one atom into account: neither their order nor their directions matter.
    fn count(&mut self, around: &Around, types: &[i32], counts: &mut [usize]) {
        counts.fill(0);
        let mut nearest = f64::INFINITY;
        for (j, r2) in around.unsorted() {
            if let Some(count) = counts.get_mut(types[j as usize] as usize) {
                *count += 1;
                nearest = nearest.min(r2);
            }
        }
        self.min_distance = self.min_distance.min(nearest.sqrt());
        for (most, &n) in self.max_neighbors.iter_mut().zip(counts.iter()) {
            *most = n.max(*most);
        }
        self.max_together = self.max_together.max(counts.iter().sum());
    }

    /// The statistics of both.
    pub fn merge(mut self, other: &Self) -> Self {
        self.min_distance = self.min_distance.min(other.min_distance);
        for (a, b) in self.max_neighbors.iter_mut().zip(&other.max_neighbors) {
            *a = (*a).max(*b);
        }
        self.max_together = self.max_together.max(other.max_together);
        self
    }
}
