//! Neighbour lists by cells: linear in the number of atoms, any cell shape, as many periodic images as needed.

mod cells;
mod search;
pub mod part;
pub mod list;
pub mod pairs;
pub mod stat;
pub mod domain;
pub mod images;

pub use domain::Domain;
pub use images::Images;
pub use list::{NeighborList, Neighbors, slots_of};
pub use pairs::{Pair, pairs};
pub use part::{Blocks, Cut};
