//! Reads JSON and YAML against tables of keys.
