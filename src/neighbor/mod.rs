//! Neighbour lists by cells: linear in the number of atoms, any cell shape, as many periodic images as needed.

mod cells;
pub mod list;
pub mod stat;

pub use list::{NeighborList, Neighbors};
