//! Checkpoints: complete or absent.
//!
//! `model.ckpt-1000.phx` is written under another name, synced, and renamed; then the link `model.ckpt.phx` and the
//! file `checkpoint` move to it; then old ones go. Whenever the process is killed, the newest complete one loads.

mod file; // one checkpoint as bytes
mod store; // the files of a run: names, links, which to keep
mod find; // from what a user types to a file
pub mod writer; // writes while training goes on

pub use file::{Array, Checkpoint};
pub use find::{load, locate, newest_complete};
pub use store::{Store, save};

/// Ending of a checkpoint's name.
pub const SUFFIX: &str = ".phx";
