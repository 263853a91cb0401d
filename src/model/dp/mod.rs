//! Deep Potential models: descriptor and fitting net.

pub mod options;
pub mod spec;
