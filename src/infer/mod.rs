//! Evaluates frames with a model: what `dp test` and other users of a trained model build on.

pub mod predictor; // frames in, energies, forces and virials out

pub use predictor::Predictor;
