//! The whole input, set-up, the loop and the step.

pub mod input; // the whole input, as meant
pub mod keys; // the tables of its keys
pub mod compat; // layouts of former times
pub mod options; // what the command line says about a run
pub mod team; // what the ranks do together
pub mod signals; // SIGTERM and SIGINT finish the step and save
pub mod learner; // what the loop asks of whatever learns
pub mod step; // the recipe of one step
pub mod validate; // errors on the validation set
pub mod state; // a run as a checkpoint, and back
pub mod load; // from a path to a model: model file or checkpoint
pub mod resume; // what a job goes on from after its launcher has started it again
pub mod setup; // data, statistics and model before the first step
pub mod collect; // log lines of other hosts travel to rank 0
pub mod session; // launcher, log, ranks, threads
pub mod cpu; // learning on CPU threads
pub mod feed; // frames for a GPU, and which of them stay there
pub mod gpu_sum; // how gradients of GPUs become one, for both model families
pub mod cuda; // learning on a GPU
pub mod run; // the loop, the same for all model families
pub mod dp; // trains a Deep Potential

pub use dp::main;
pub use options::{RunOptions, Start};
