//! The whole input, set-up, the loop and the step.

pub mod input; // the whole input, as meant
pub mod keys; // the tables of its keys
pub mod compat; // layouts of former times
pub mod signals; // SIGTERM and SIGINT finish the step and save
