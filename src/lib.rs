//! Phalanx trains neural-network interatomic potentials.
//!
//! [`Potential`] is a trained model: [`Potential::load`], then [`Potential::evaluate`] for atoms in a cell or in open space, or
//! [`Potential::evaluate_with_neighbors`] for those of an MD program that has a neighbour list; [`OutputModel`] is one that predicts something
//! other than an energy. [`Training`] trains one from an input. Nothing else is meant for other programs.

// The modules stand in layer order: each uses only what stands above it. ARCHITECTURE.md walks one training step through them.
// Programs, tests, benches and the other crates of this workspace use them all; what is hidden changes without notice.

#[doc(hidden)]
pub mod error; // the one error type
#[doc(hidden)]
pub mod memory; // an allocator for programs: large buffers on huge pages
#[doc(hidden)]
pub mod units; // every physical constant, with its source
#[doc(hidden)]
pub mod config; // reads JSON and YAML against tables of keys; knows no key itself
#[doc(hidden)]
pub mod launch; // who am I among the processes
#[doc(hidden)]
pub mod comm; // the communicator: sums, broadcasts and barriers over ranks
#[doc(hidden)]
pub mod gpu; // one GPU: driver, memory, streams, kernels; knows no model
#[doc(hidden)]
pub mod checkpoint; // complete or absent
#[doc(hidden)]
pub mod data; // frames, systems and the formats they are stored in
#[doc(hidden)]
pub mod sample; // which frames next; the queue that prepares them ahead of the step
#[doc(hidden)]
pub mod neighbor; // cell lists, neighbour lists, neighbour statistics
#[doc(hidden)]
pub mod model; // what a model is: options, parameters, statistics, networks
#[doc(hidden)]
pub mod engine; // evaluates a batch and differentiates a loss: reference, cpu, cuda
#[doc(hidden)]
pub mod loss; // energy, force and virial losses and their derivatives
#[doc(hidden)]
pub mod optim; // optimisers, learning-rate schedules
#[doc(hidden)]
pub mod export; // .dp and .yaml model files, DeePMD-kit's own formats
#[doc(hidden)]
pub mod report; // log lines, progress, lcurve.out, TensorBoard
#[doc(hidden)]
pub mod plot; // figures of runs: learning curves, predictions beside labels, time
#[doc(hidden)]
pub mod infer; // evaluates frames with a model file or a checkpoint
pub mod potential; // the library's face: load a model, evaluate atoms with it
#[doc(hidden)]
pub mod train; // the whole input, set-up, the loop and the step
pub mod training; // the library's face: train a model from an input
#[doc(hidden)]
pub mod pinn; // the PiNN family: data, params.yml, subsets
#[doc(hidden)]
pub mod cli; // one file for each subcommand

#[cfg(test)]
#[path = "../tests/common/skip.rs"]
mod skip; // tests that cannot run here

pub use error::{Error, ErrorKind, Result};
pub use potential::{OutputModel, Potential};
pub use training::Training;

/// The allocator belongs to whoever builds a program; these are the unit tests, one of which is about it.
#[cfg(test)]
#[global_allocator]
static ALLOCATOR: memory::Huge = memory::Huge;
