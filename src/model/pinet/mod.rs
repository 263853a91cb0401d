//! PiNet models: atoms and pairs that talk to each other.

pub mod options;
