//! What several test files need.
#![allow(dead_code, unused_imports)] // each test file uses a part of it

pub mod place; // a folder of a job of several ranks
pub mod pinn; // small data and a small network of PiNN
mod binary; // the real binary in a fresh folder, with small data and a small net
mod launchers; // launchers that are installed here
mod skip; // what cannot run here
mod stand_ins; // libraries of a GPU that is not there

pub use binary::*;
pub use launchers::*;
pub use skip::*;
pub use stand_ins::*;
