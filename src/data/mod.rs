//! Frames and systems, and the formats they are stored in.

pub mod frame; // one configuration of atoms with its labels
pub mod options; // where the data is and how it is drawn, as meant
pub mod field; // the table of arrays that a system may hold
pub mod npy; // the header of npy files
pub mod format; // npy, raw, HDF5: how a system is stored
pub mod system; // frames of the same atoms, opened but not read
pub mod check; // NaN, impossible cells and wrong types, found before training starts
pub mod expand; // the list of systems behind what the input says
pub mod type_names; // what types are called where the input does not say
pub mod dataset; // all systems with their batch sizes and weights

#[cfg(test)]
pub(crate) mod testing; // tiny systems on disk
#[cfg(test)]
mod dataset_tests;
#[cfg(test)]
mod system_tests;

pub use dataset::Dataset;
pub use field::Wants;
pub use frame::{Frame, Labels};
pub use system::System;
