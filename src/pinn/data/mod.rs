//! Structures with labels, and the formats they are stored in. A new format is one file here and one line in
//! [`detect::FORMATS`].

pub mod sample; // one structure with its labels
pub mod source; // a data set that is read one structure at a time
pub mod detect; // which format a file has
pub mod tfrecord; // PiNN's own: x.yml + x.tfr
pub mod mimic; // MiMiC: topology, trajectory and energies of a QM/MM run
pub mod mpt; // MiMiCPy topology
pub mod trr; // GROMACS trajectory
pub mod energies; // CPMD's ENERGIES
pub mod runner; // RuNNer's input.data
pub mod qm9; // QM9's files
pub mod extxyz; // xyz and extended xyz
pub mod extxyz_write; // predictions as extended xyz
pub mod deepmd; // system folders of DeePMD-kit
pub mod element; // symbols and atomic numbers
mod text; // text files of structures one after the other
mod file; // bytes and lines at an offset
mod tensor; // tensors in TFRecords
mod xdr; // big-endian numbers and strings of GROMACS and MiMiCPy

#[cfg(test)]
mod fuzz; // damaged files give errors

pub use sample::{Dipole, Sample};
pub use source::{Source, Subset};
