//! Deep Potential models: descriptor and fitting net.

mod keys; // kinds of keys that several sections share
pub mod descriptor;
pub mod fitting;
pub mod options;
pub mod short_range; // a table of pair energies beside the network
pub mod spec;
pub mod table; // what compression puts in place of embedding nets
pub mod model;
pub mod type_embedding; // embedded types as inputs of all nets
mod attention; // the nets of attention by name
pub mod branches; // of a multi-task model
pub mod geometry;
pub mod radial; // the switch and what stands in a row for a distance
pub mod statistics;
mod init; // the parameters before the first step

pub use attention::{AttentionLayer, AttentionNets};
pub use model::Dp;
