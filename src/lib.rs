//! Phalanx trains neural-network interatomic potentials.
//!
//! The modules stand in layer order: each uses only what stands above it. ARCHITECTURE.md walks one
//! training step through them.

pub mod error; // the one error type
pub mod memory; // an allocator for programs: large buffers on huge pages
pub mod units; // every physical constant, with its source
pub mod config; // reads JSON and YAML against tables of keys; knows no key itself
pub mod launch; // who am I among the processes
pub mod comm; // the communicator: sums, broadcasts and barriers over ranks
pub mod gpu; // one GPU: driver, memory, streams, kernels; knows no model
pub mod checkpoint; // complete or absent
pub mod data; // frames, systems and the formats they are stored in
pub mod sample; // which frames next; the queue that prepares them ahead of the step
pub mod neighbor; // cell lists, neighbour lists, neighbour statistics
pub mod model; // what a model is: options, parameters, statistics, networks
pub mod engine; // evaluates a batch and differentiates a loss: reference, cpu, cuda
pub mod loss; // energy, force and virial losses and their derivatives
pub mod optim; // optimisers, learning-rate schedules
pub mod export; // .dp and .yaml model files, DeePMD-kit's own formats
pub mod report; // log lines, progress, lcurve.out, TensorBoard
pub mod plot; // figures of runs: learning curves, predictions beside labels, time
pub mod infer; // evaluates frames with a model file or a checkpoint
pub mod potential; // the library's face: load a model, evaluate atoms with it
pub mod train; // the whole input, set-up, the loop and the step
pub mod training; // the library's face: train a model from an input
pub mod pinn; // the PiNN family: data, params.yml, subsets
pub mod cli; // one file for each subcommand

#[cfg(test)]
#[path = "../tests/common/skip.rs"]
mod skip; // tests that cannot run here

pub use error::{Error, ErrorKind, Result};
pub use potential::Potential;
pub use training::Training;

/// The allocator belongs to whoever builds a program; these are the unit tests, one of which is about it.
#[cfg(test)]
#[global_allocator]
static ALLOCATOR: memory::Huge = memory::Huge;
