//! Losses and their derivatives: energy, force and virial; PiNN's potentials and dipoles.
//!
//! A loss of `dp train` is one file here and one line of [`LOSSES`]: its keys, the names of its displayed errors, its value and
//! derivatives.

pub mod value; // what every loss tells of a batch
pub mod ener;
pub mod observation; // for optimisers that look at single numbers
pub mod pinn;

pub use ener::{EnerLoss, options};
pub use value::{Cost, ErrorSums, LossValue, Term};

use crate::config::registry::{self, Entry};
use crate::config::table::{Table, Variant, Variants};
use options::EnerLossOptions;

/// Every loss that `loss.type` may name.
pub static LOSSES: &[Entry<EnerLossOptions>] = &[
    ener::ENER,
    Entry::not_yet("ener_spin"),
    Entry::not_yet("dens"),
    Entry::not_yet("dos"),
    Entry::not_yet("population"),
    Entry::not_yet("property"),
    Entry::not_yet("tensor"),
];

/// The keys of the `loss` section.
pub static LOSS: Table =
    Table { keys: &[], variants: Some(Variants { what: "loss", default: "ener", list: &TYPES }) };

static TYPES: [Variant; registry::count_types(LOSSES)] = registry::types(LOSSES);
