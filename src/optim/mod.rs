//! Adam and AdamW, learning-rate schedules.

pub mod options;
