//! Fitting nets: what a descriptor is turned into. Each is a file of this folder and a line of [`VARIANTS`].

mod ener;

use crate::config::table::{Table, Variant, Variants};
pub use ener::FittingOptions;

/// How they stand in an input, with those that only DeePMD-kit has.
const VARIANTS: &[Variant] = &[
    ener::VARIANT,
    Variant::not_yet("dpa4_ener").aliases(&["sezm_ener"]),
    Variant::not_yet("dos"),
    Variant::not_yet("population"),
    Variant::not_yet("property"),
    Variant::not_yet("polar"),
    Variant::not_yet("dipole"),
];

/// The keys of the `fitting_net` section.
pub static FITTING: Table =
    Table { keys: &[], variants: Some(Variants { what: "fitting net", default: "ener", list: VARIANTS }) };
