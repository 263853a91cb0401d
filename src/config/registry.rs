//! Lists of what an input chooses among by name: optimisers, losses.
//!
//! Whatever is on such a list brings its name, its keys and what makes options of them; the table of the section follows from
//! the list.

use super::section::Section;
use super::table::{TAG, Table, Variant};
use crate::error::Result;

/// One line of a list.
pub struct Entry<T> {
    pub named: Named,
    /// Its options from the section with its keys, which has been checked.
    pub resolve: fn(&Section) -> Result<T>,
}

/// The name and the keys.
#[derive(Clone, Copy)]
pub enum Named {
    /// By the key `type` of the section, as `dp train` has it.
    Type(Variant),
    /// By a name elsewhere in the file, as `pinn train` has it, with a table for the object that holds the section.
    Elsewhere(&'static str, &'static Table),
}

impl<T> Entry<T> {
    /// One that DeePMD-kit has and we do not.
    pub const fn not_yet(name: &'static str) -> Entry<T> {
        Entry {
            named: Named::Type(Variant::not_yet(name)),
            resolve: |_| unreachable!("the check of the input refuses it"),
        }
    }
}

/// How many of a list are chosen by `type`.
pub const fn count_types<T>(list: &[Entry<T>]) -> usize {
    let (mut k, mut n) = (0, 0);
    while k < list.len() {
        n += matches!(list[k].named, Named::Type(_)) as usize;
        k += 1;
    }
    n
}

/// Those that are chosen by `type`, as a table of keys wants them.
pub const fn types<T, const N: usize>(list: &[Entry<T>]) -> [Variant; N] {
    let mut out = [Variant::not_yet(""); N];
    let (mut k, mut n) = (0, 0);
    while k < list.len() {
        if let Named::Type(variant) = list[k].named {
            out[n] = variant;
            n += 1;
        }
        k += 1;
    }
    out
}

/// The options of a checked section that says its `type`.
pub fn resolve<T>(list: &[Entry<T>], section: &Section) -> Result<T> {
    let name = section.text(TAG);
    let is_meant =
        |entry: &&Entry<T>| matches!(&entry.named, Named::Type(variant) if variant.is_called(name));
    let entry = list.iter().find(is_meant).expect("the check of the input knows every type");
    (entry.resolve)(section)
}

/// What is named elsewhere, in capitals or not: its table, and what makes options of its section.
pub fn find_elsewhere<'a, T>(list: &'a [Entry<T>], name: &str) -> Option<(&'static Table, &'a Entry<T>)> {
    list.iter().find_map(|entry| match entry.named {
        Named::Elsewhere(known, table) if known.eq_ignore_ascii_case(name) => Some((table, entry)),
        _ => None,
    })
}

/// The names elsewhere.
pub fn names_elsewhere<T>(list: &[Entry<T>]) -> impl Iterator<Item = &'static str> {
    list.iter().filter_map(|entry| match entry.named {
        Named::Elsewhere(name, _) => Some(name),
        Named::Type(_) => None,
    })
}
