//! Deep Potential models: descriptor and fitting net.

pub mod options;
pub mod spec;
pub mod model;
pub mod geometry;
pub mod statistics;
pub mod draws;

pub use model::Dp;
