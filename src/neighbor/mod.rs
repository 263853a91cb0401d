//! Neighbour lists by cells: linear in the number of atoms, any cell shape, as many periodic images as needed.

mod cells;
mod search;
pub mod list;
pub mod pairs;
pub mod stat;

pub use list::{NeighborList, Neighbors};
pub use pairs::{Pair, pairs};
