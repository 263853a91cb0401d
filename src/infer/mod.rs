//! Evaluates frames with a model: what `dp test` and other users of a trained model build on.

pub mod load; // from what a user types to a model
pub mod predictor; // frames in, energies, forces and virials out
pub mod threads; // how many threads to compute with

pub use load::load_model;
pub use predictor::Predictor;
