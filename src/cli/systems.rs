//! From what a user types to a list of systems.

use crate::config::value;
use crate::data::expand::expand_systems;
use crate::data::options::{BatchSize, DataOptions, SystemWeights};
use crate::err;
use crate::error::{IoContext, Result};
use crate::train::compat::modernise;
use serde_json::Value;
use std::path::Path;

/// Every system in or below folders, or in HDF5 files.
pub fn search(entries: &[String]) -> Result<Vec<String>> {
    expand_systems(&options(entries.to_vec(), None))
}

/// The systems that a text file names, one on each line.
pub fn listed(file: &Path) -> Result<Vec<String>> {
    let text = std::fs::read_to_string(file).io("read", file)?;
    let systems: Vec<String> =
        text.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned).collect();
    if systems.is_empty() {
        return Err(
            err!("{}: found no system in this list", file.display()).help("write one system on each line")
        );
    }
    Ok(systems)
}

/// The systems of `training_data` or `validation_data` of a training input. Paths start at the input's folder.
pub fn of_input(file: &Path, section: &str) -> Result<Vec<String>> {
    let mut input = value::read(file)?;
    modernise(&mut input).map_err(|e| e.at(file.display()))?;
    let data = &input["training"][section];
    let entries = texts(&data["systems"]);
    if entries.is_empty() {
        return Err(err!("{}: training.{section}.systems: not found", file.display())
            .help("it names the folders of the data"));
    }
    let folder = file.parent().unwrap_or(Path::new(""));
    let entries = entries.iter().map(|entry| folder.join(entry).to_string_lossy().into_owned()).collect();
    let patterns = Some(texts(&data["rglob_patterns"])).filter(|patterns| !patterns.is_empty());
    expand_systems(&options(entries, patterns))
}

fn texts(value: &Value) -> Vec<String> {
    match value {
        Value::String(text) => vec![text.clone()],
        Value::Array(items) => items.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
        _ => Vec::new(),
    }
}

fn options(systems: Vec<String>, patterns: Option<Vec<String>>) -> DataOptions {
    DataOptions {
        min_pair_dist: 0.0,
        systems,
        search: true,
        patterns,
        batch_size: BatchSize::Fixed(1),
        weights: SystemWeights::Uniform,
    }
}
