//! Adam, AdamW and PiNN's Adam, learning-rate schedules.

pub mod options;
pub mod adam;
pub mod keras_adam;
pub mod schedule;

pub use adam::{Adam, Descent};
pub use keras_adam::{KerasAdam, KerasAdamOptions};
