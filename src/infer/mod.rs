//! Evaluates frames with a model: what `dp test` and other users of a trained model build on.

pub mod checkpoint; // the model of a run's checkpoint
pub mod branches; // those of a multi-task training
pub mod load; // from a path to a model: model file or checkpoint
pub mod predictor; // frames in, energies, forces and virials out
pub mod pinn; // PiNN's models: energies, forces, stress, dipoles and charges in the units asked for

pub use predictor::{Derivatives, Evaluation, OfAtoms, Predictor};
