//! The small text files of a system: type.raw, type_map.raw.

use crate::err;
use crate::error::{IoContext, Result};
use std::path::Path;

/// Numbers separated by white space, over any number of lines; `#` starts a comment.
pub fn read_types(path: &Path) -> Result<Vec<i64>> {
    let text = std::fs::read_to_string(path).io("read", path)?;
    let mut types = Vec::new();
    for (line_no, word) in words(&text) {
        types.push(parse_type(word).ok_or_else(|| {
            err!("{}: line {line_no}: '{word}' is not a type index", path.display())
                .help("type.raw holds one whole number for each atom, counted from 0")
        })?);
    }
    Ok(types)
}

/// The line that holds the type of one atom, for messages.
pub fn type_place(path: &Path, atom: usize) -> String {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    match words(&text).nth(atom) {
        Some((line_no, _)) => format!("{}: line {line_no}", path.display()),
        None => path.display().to_string(),
    }
}

/// Names separated by white space, over any number of lines.
pub fn read_names(path: &Path) -> Result<Vec<String>> {
    let text = std::fs::read_to_string(path).io("read", path)?;
    Ok(words(&text).map(|(_, word)| word.to_owned()).collect())
}

/// The words of a text with their line numbers, counted from 1.
pub fn words(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines().enumerate().flat_map(|(i, line)| {
        let line = line.split('#').next().unwrap_or("");
        line.split_whitespace().map(move |word| (i + 1, word))
    })
}

/// NumPy writes whole numbers as `1.000000000000000000e+00` too.
fn parse_type(word: &str) -> Option<i64> {
    if let Ok(n) = word.parse::<i64>() {
        return Some(n);
    }
    let x = word.parse::<f64>().ok()?;
    (x.fract() == 0.0 && x.abs() < 1e9).then_some(x as i64)
}
