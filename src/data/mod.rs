//! Frames and systems, and the formats they are stored in.

pub mod frame;

pub use frame::{Frame, Labels};
