//! Between the tree of a model file and a model: DeePMD-kit's words on one side, ours on the other.
//!
//! What the tree means, as DeePMD-kit 3.2 reads and writes it:
//! - `model.descriptor.embeddings` holds one net for each neighbour type (`ndim` 1), or one for each pair
//!   (`ndim` 2) with the centre type running fastest: index = centre + neighbour * ntypes.
//! - `davg` and `dstd` have the shape [ntypes, slots, 4], or 1 without directions, but are the same for all slots of a centre type.
//! - The energy of an atom gets `out_bias` of the model plus `bias_atom_e` of the fitting net. The PyTorch side
//!   of DeePMD-kit keeps the bias in the first and leaves zeros in the second; others do it the other way round.
//!   We read the sum and write the first.
//! - `out_std` is kept but does not enter energies; outputs of `property` are multiplied by it.
//! - Networks, `davg`, `dstd` and the statistics of fparam and aparam are stored in the precision of their
//!   part; biases always in float64.
//! - Where `atom_ener` gives an energy for a type, the fitting net's value at a zero descriptor is taken off, so
//!   that an isolated atom has just that energy.
//! - A table of pair energies beside the network makes a model `zbl`: `models` has the network, then the table. The bias is that of
//!   the whole, or where the table goes without it, that of the network.
//! - `trained_types` beside `model` is ours: a model with embedded types as it is trained, where `model` is the plain one that predicts the
//!   same.
//! - `trainable` of the descriptor and of the fitting net may be lost on the way; each layer keeps its own flag.

mod attention;
mod read;
mod short_range;
mod write;

#[cfg(test)]
pub(crate) mod tests;

pub use read::from_tree;
pub use write::{stamp, to_tree};

/// The key of what training goes on with where types are embedded.
const TRAINED_TYPES: &str = "trained_types";

/// Versions that parts of the tree carry: what we write, and the newest that we read.
mod version {
    /// Of a list of descriptors.
    pub const HYBRID: i64 = 1;
    pub const MODEL: i64 = 2;
    pub const PAIR_TABLE: i64 = 1;
    pub const DESCRIPTOR: i64 = 2;
    pub const DESCRIPTOR_NEWEST: i64 = 3;
    pub const COLLECTION: i64 = 1;
    pub const EMBEDDING_NET: i64 = 2;
    pub const FITTING_NET: i64 = 1;
    pub const LAYER: i64 = 2;
    pub const TYPE_EMBEDDING: i64 = 2;
}
