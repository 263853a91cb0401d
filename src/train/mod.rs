//! The whole input, set-up, the loop and the step.

pub mod input; // the whole input, as meant
pub mod keys; // the tables of its keys
pub mod compat; // layouts of former times
pub mod options; // what the command line says about a run
pub mod team; // what the ranks do together
pub mod signals; // SIGTERM, SIGINT and SIGHUP finish the step and save
pub mod caller; // a program that trains in its own process
pub mod average; // a running mean of the parameters
pub mod full_validation; // errors over the whole validation set, and the best checkpoints
pub mod learner; // what the loop asks of whatever learns
pub mod family; // what a model family brings to a step
pub mod sum; // sums of gradients over draws and ranks
pub mod step; // the recipe of one step
pub mod validate; // errors on the validation set
pub mod state; // a run as a checkpoint, and back, for all model families
pub mod dp_state; // what a checkpoint of `dp train` says
pub mod resume; // what a job goes on from that was started again
pub mod same; // whether ranks are one job, with the same data
pub mod warnings; // what is allowed, and hardly meant
pub mod setup; // data, statistics and model before the first step
pub mod collect; // log lines of other hosts travel to rank 0
pub mod session; // launcher, log, ranks, threads
pub mod cpu; // learning on CPU threads, for all model families
pub mod blocks; // frames that several ranks work on together
pub mod deep_potential; // a Deep Potential there
pub mod feed; // frames for a GPU, and which of them stay there
pub mod gpu_sum; // how gradients of GPUs become one, for all model families
pub mod replay; // steps of GPUs that are recorded and replayed, for all model families
pub mod gpu_learner; // learning on a GPU, for all model families
pub mod cuda; // a Deep Potential there
pub mod find_rate; // which learning rate to start with
pub mod run; // the loop, the same for all model families
pub mod multi; // trains several with common parameters
pub mod dp; // trains a Deep Potential

pub use dp::main;
pub use options::{InputSource, RunOptions, Start};
