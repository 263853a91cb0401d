//! Reads JSON and YAML against tables of keys.
//!
//! This module knows no key itself. The owner of an option writes a [`table::Table`] beside the code that uses it;
//! [`check::check`] holds an input against it and fills in the defaults, [`section::Section`] hands the result to
//! the owner, and [`doc::reference`] prints the same table for people.

pub mod value; // a file becomes one value that keeps the order of its keys
pub mod table; // what a table of keys is
pub mod check; // unknown keys, wrong types, defaults
pub mod section; // the checked input, by key
pub mod registry; // what a section chooses among by name
pub mod doc; // the reference for people
pub mod schema; // prints a table for programs: JSON Schema

pub use section::Section;
pub use table::{Key, Kind, Pattern, Status, Table, Variant, Variants};
