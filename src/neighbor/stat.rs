//! Neighbour statistics: the shortest distance and the largest number of neighbours of each type.

use super::list::NeighborList;
use crate::Result;
use crate::data::Frame;

/// What the neighbour lists of a data set look like.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct NeighborStat {
    /// Shortest distance between two atoms, A; infinite where no atom has a neighbour.
    pub min_distance: f64,
    /// `[n_types]` the most neighbours of each type that one atom has.
    pub max_neighbors: Vec<usize>,
}

impl NeighborStat {
    /// The statistics of no frame at all.
    pub fn empty(n_types: usize) -> Self {
        NeighborStat { min_distance: f64::INFINITY, max_neighbors: vec![0; n_types] }
    }

    /// The statistics of one frame.
    pub fn of(frame: &Frame, rcut: f64, n_types: usize) -> Result<Self> {
        let list = NeighborList::new(frame, rcut, n_types, None)?;
        list.refuse_overlap()?;
        let mut stat = Self::empty(n_types);
        for i in 0..frame.n_atoms() {
            for t in 0..n_types {
                let found = list.of(i, t);
                stat.max_neighbors[t] = stat.max_neighbors[t].max(found.len());
                if let Some(nearest) = found.first() {
                    stat.min_distance = stat.min_distance.min(nearest.r);
                }
            }
        }
        Ok(stat)
    }

    /// The statistics of both.
    pub fn merge(mut self, other: &Self) -> Self {
        self.min_distance = self.min_distance.min(other.min_distance);
        for (a, b) in self.max_neighbors.iter_mut().zip(&other.max_neighbors) {
            *a = (*a).max(*b);
        }
        self
    }
}
