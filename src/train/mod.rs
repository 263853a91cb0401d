//! The whole input, set-up, the loop and the step.

pub mod input;
pub mod signals; // SIGTERM and SIGINT finish the step and save
