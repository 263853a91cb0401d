//! Damaged files give errors: never a panic, never memory that the file does not fill.
