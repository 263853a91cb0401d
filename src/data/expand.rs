//! The list of systems behind what the input says.

use super::format::{FORMATS, is_lmdb, systems_in_file, systems_in_folder};
use super::options::DataOptions;
use crate::config::check::did_you_mean_path;
use crate::error::{IoContext, Result};
use crate::{bail, err};
use glob::{MatchOptions, Pattern};
use std::path::{Path, PathBuf};

/// Every system that `options.systems` stands for, in a fixed order.
///
/// Each entry is searched: the folder itself and everything below that has a type.raw, or every such group of an
/// HDF5 file. Entries keep the order of the input, what is found below one is sorted by path.
pub fn expand_systems(options: &DataOptions) -> Result<Vec<String>> {
    if options.systems.is_empty() {
        return Err(err!("systems: the list is empty").help("name at least one folder with type.raw"));
    }
    let mut systems = Vec::new();
    for entry in &options.systems {
        let found = match &options.patterns {
            Some(patterns) => matching_below(entry, patterns)?,
            None => found_below(entry)?,
        };
        systems.extend(found);
    }
    Ok(systems)
}

fn found_below(entry: &str) -> Result<Vec<String>> {
    let folder = Path::new(entry);
    if is_lmdb(entry) {
        return systems_in_folder(entry);
    }
    if entry.rsplit_once('#').is_some_and(|(folder, _)| is_lmdb(folder)) {
        return Ok(vec![entry.to_owned()]);
    }
    if !folder.is_dir() {
        return in_file(entry);
    }
    let mut found = Vec::new();
    if folder.join("type.raw").is_file() {
        found.push(entry.to_owned());
    }
    let mut below = Vec::new();
    walk(folder, &mut below)?;
    below.sort();
    found.extend(below.iter().map(|path| path.to_string_lossy().into_owned()));
    if found.is_empty() {
        return Err(err!("{entry}: found no system in or below this folder")
            .help("a system is a folder with type.raw, or file.hdf5#/group"));
    }
    Ok(found)
}

fn in_file(entry: &str) -> Result<Vec<String>> {
    if !FORMATS.iter().any(|format| format.recognises(entry)) {
        let help = if entry.contains(['*', '?', '[']) {
            "systems are not patterns; name the folder above them and put patterns into rglob_patterns"
                .to_string()
        } else {
            let near = did_you_mean_path(Path::new(entry.split('#').next().unwrap_or(entry)));
            let near = if near.is_empty() { elsewhere(entry) } else { near };
            format!("{near}relative paths start at the folder that dp was started in")
        };
        return Err(err!("{entry}: no such system").help(help));
    }
    let found = systems_in_file(entry)?;
    if found.is_empty() {
        bail!("{entry}: found no group with type.raw in this file");
    }
    Ok(found)
}

/// The end of a path which would lead to something from here: an input that was made for another folder.
fn elsewhere(entry: &str) -> String {
    let parts: Vec<_> = Path::new(entry.split('#').next().unwrap_or(entry)).components().collect();
    let ends = (1..parts.len()).map(|first| parts[first..].iter().collect::<std::path::PathBuf>());
    match ends.into_iter().find(|end| end.exists()) {
        Some(end) => format!("did you mean `{}`? ", end.display()),
        None => String::new(),
    }
}

/// Systems below a folder whose path, from some folder of it on, matches one of the patterns.
fn matching_below(entry: &str, patterns: &[String]) -> Result<Vec<String>> {
    let folder = Path::new(entry);
    if !folder.is_dir() {
        return Err(err!("{entry}: no such folder").help("rglob_patterns are searched for below a folder"));
    }
    let compile = |text: &String| {
        Pattern::new(&format!("**/{text}"))
            .map_err(|e| err!("rglob_patterns: '{text}' is not a pattern: {e}"))
    };
    let patterns = patterns.iter().map(compile).collect::<Result<Vec<Pattern>>>()?;
    let options = MatchOptions {
        case_sensitive: true,
        require_literal_separator: true,
        require_literal_leading_dot: false,
    };
    let mut below = Vec::new();
    walk(folder, &mut below)?;
    below.sort();
    let relative = |path: &PathBuf| path.strip_prefix(folder).map(Path::to_path_buf).unwrap_or_default();
    below.retain(|path| patterns.iter().any(|p| p.matches_path_with(&relative(path), options)));
    if below.is_empty() {
        bail!("{entry}: found no system below this folder that matches rglob_patterns");
    }
    Ok(below.iter().map(|path| path.to_string_lossy().into_owned()).collect())
}

/// Folders strictly below `folder` that hold type.raw. A link to a folder is looked at, not descended into.
fn walk(folder: &Path, found: &mut Vec<PathBuf>) -> Result<()> {
    for entry in std::fs::read_dir(folder).io("list", folder)? {
        let entry = entry.io("list", folder)?;
        let kind = entry.file_type().io("list", folder)?;
        let path = entry.path();
        if !(kind.is_dir() || kind.is_symlink() && path.is_dir()) {
            continue;
        }
        if path.join("type.raw").is_file() {
            found.push(path.clone());
        }
        let is_set = entry.file_name().to_string_lossy().starts_with("set.");
        if kind.is_dir() && !is_set {
            walk(&path, found)?;
        }
    }
    Ok(())
}
