//! The whole input, set-up, the loop and the step.

pub mod input;
