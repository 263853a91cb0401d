//! Lists of what an input chooses among by name: descriptors, fitting nets, optimisers, losses.
//!
//! Whatever is on such a list brings its name, its keys and what else is known of it without its options, first of all what makes
//! options of a section; the table of the section follows from the list.

use super::section::Section;
use super::table::{TAG, Table, Variant};
use crate::error::Result;

/// One line of a list.
pub struct Entry<T> {
    named: Named,
    /// Nothing of what DeePMD-kit has and we do not.
    about: Option<T>,
}

/// What makes options of the section with its keys, which has been checked.
pub type Resolve<T> = fn(&Section) -> Result<T>;

/// The name and the keys.
#[derive(Clone, Copy)]
enum Named {
    /// By the key `type` of the section, as `dp train` has it.
    Type(Variant),
    /// By a name elsewhere in the file, as `pinn train` has it, with a table for the object that holds the section.
    Elsewhere(&'static str, &'static Table),
}

impl<T> Entry<T> {
    /// One that is chosen by `type`.
    pub const fn new(variant: Variant, about: T) -> Entry<T> {
        Entry { named: Named::Type(variant), about: Some(about) }
    }

    /// One that is named elsewhere.
    pub const fn elsewhere(name: &'static str, table: &'static Table, about: T) -> Entry<T> {
        Entry { named: Named::Elsewhere(name, table), about: Some(about) }
    }

    /// One that DeePMD-kit has and we do not.
    pub const fn not_yet(variant: Variant) -> Entry<T> {
        Entry { named: Named::Type(variant), about: None }
    }

    /// Its first name.
    pub const fn name(&self) -> &'static str {
        match &self.named {
            Named::Type(variant) => variant.name,
            Named::Elsewhere(name, _) => name,
        }
    }

    /// What is known of it.
    pub const fn about(&self) -> &T {
        self.about.as_ref().expect("the check of the input refuses what is not supported")
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

/// What is known of the one of this `type`, which may be an alias, where we have it.
pub fn find<'a, T>(list: &'a [Entry<T>], name: &str) -> Option<&'a T> {
    let is_meant =
        |entry: &&Entry<T>| matches!(&entry.named, Named::Type(variant) if variant.is_called(name));
    list.iter().find(is_meant)?.about.as_ref()
}

/// What is known of the one that a checked section chooses by its `type`.
pub fn chosen<'a, T>(list: &'a [Entry<T>], section: &Section) -> &'a T {
    find(list, section.text(TAG)).expect("the check of the input knows every type")
}

/// The options of a checked section that says its `type`.
pub fn resolve<T>(list: &[Entry<Resolve<T>>], section: &Section) -> Result<T> {
    chosen(list, section)(section)
}

/// What is named elsewhere, in capitals or not: its table, and what is known of it.
pub fn find_elsewhere<'a, T>(list: &'a [Entry<T>], name: &str) -> Option<(&'static Table, &'a T)> {
    list.iter().find_map(|entry| match entry.named {
        Named::Elsewhere(known, table) if known.eq_ignore_ascii_case(name) => Some((table, entry.about())),
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

/// Declares a list of modules, with an enum of their options: for choices whose options others look into.
///
/// `Name in module` is a module with an `ENTRY` and a type `Name` of its own options. The options as a whole have the enum as their `kind`.
macro_rules! listed {
    (
        $(#[$of_kind:meta])* enum $kind:ident of $options:ty;
        $(#[$of_list:meta])* list $list:ident of $about:ty { $($name:ident in $module:ident,)* }
        not yet { $($not_yet:expr,)* }
    ) => {
        $(mod $module;
        pub use $module::$name;

        impl $name {
            /// Its own options among these, which are known to be of it.
            pub fn of(options: &$options) -> &$name {
                match &options.kind {
                    $kind::$name(own) => own,
                    _ => unreachable!("an entry is asked about its own options"),
                }
            }
        })*

        $(#[$of_kind])*
        #[derive(Debug, Clone, PartialEq)]
        pub enum $kind {
            $($name($name),)*
        }

        impl $kind {
            /// Its line of the list.
            fn entry(&self) -> &'static $crate::config::registry::Entry<$about> {
                match self {
                    $($kind::$name(_) => &$module::ENTRY,)*
                }
            }

            /// What is known of it.
            pub fn about(&self) -> &'static $about {
                self.entry().about()
            }

            /// What an input calls it.
            pub fn name(&self) -> &'static str {
                self.entry().name()
            }
        }

        $(#[$of_list])*
        pub static $list: &[$crate::config::registry::Entry<$about>] =
            &[$($module::ENTRY,)* $($crate::config::registry::Entry::not_yet($not_yet),)*];
    };
}
pub(crate) use listed;
