//! Energy, force and virial losses and their derivatives.

pub mod options;
pub mod ener;

pub use ener::{EnerLoss, LossValue};
