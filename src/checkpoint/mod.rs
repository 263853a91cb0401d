//! Checkpoints: complete or absent.
//!
//! `model.ckpt-1000.phx` is written under another name, synced, and renamed; then the link `model.ckpt.phx` and the
//! file `checkpoint` move to it; then old ones go. Whenever the process is killed, the newest complete one loads.

mod file; // one checkpoint as bytes
mod store; // the files of a run: names, links, which to keep
mod find; // from what a user types to a file
pub mod owner; // a folder has one owner
pub mod backup; // results of an earlier run
pub mod writer; // writes while training goes on

pub use file::{Array, Arrays, Checkpoint, f64s_of, into_numbers};
pub use find::{load, locate, named_by_tensorflow, newest_complete};
pub use store::{Companion, Store, folder_of, remove_strays, save, write_complete as write_as};

/// Ending of a checkpoint's name.
pub const SUFFIX: &str = ".phx";
