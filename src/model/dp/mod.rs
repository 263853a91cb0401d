//! Deep Potential models: descriptor and fitting net.

pub mod options;
pub mod spec;
pub mod model;
pub mod geometry;
pub mod statistics;
mod init; // the parameters before the first step

pub use model::Dp;
