//! Losses and their derivatives: energy, force and virial; PiNN's potentials and dipoles.

pub mod options;
pub mod ener;
pub mod pinn;

pub use ener::{EnerLoss, LossValue};
