//! Adam and AdamW, learning-rate schedules.

pub mod options;
pub mod adam;
pub mod schedule;

pub use adam::{Adam, Descent};
