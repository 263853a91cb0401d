//! PiNet models: atoms and pairs that talk to each other.

pub mod options;
pub mod layout; // the layers of the network and where their parameters lie

pub use layout::{Block, Dense, PinetModel, Tensor};
