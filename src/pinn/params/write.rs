//! params.yml in the folder of the model, so that the model can be opened again.

use crate::config::value;
use crate::error::{IoContext, Result};
use crate::export::atomic;
use serde_json::{Map, Number, Value};
use std::io::Write;
use std::path::{Path, PathBuf};

/// Writes `params.yml` into a model's folder, with sorted keys. One that is there and says something else is renamed
/// to `params.yml.YYMMDDHHMM` first; the new name is given back.
pub fn write_params(folder: &Path, params: &Value) -> Result<Option<PathBuf>> {
    std::fs::create_dir_all(folder).io("create", folder)?;
    let path = folder.join("params.yml");
    let mut renamed = None;
    if path.exists() {
        if value::read(&path).is_ok_and(|old| old == *params) {
            return Ok(None);
        }
        let time = jiff::Zoned::now().strftime("%y%m%d%H%M").to_string();
        let old = free_name(&folder.join(format!("params.yml.{time}")));
        std::fs::rename(&path, &old).io("rename", &path)?;
        renamed = Some(old);
    }
    let text = to_yaml(params);
    atomic::write(&path, |out| out.write_all(text.as_bytes()).io("write", &path))?;
    Ok(renamed)
}

/// A second change within a minute must not overwrite what the first one kept.
fn free_name(path: &Path) -> PathBuf {
    let names = (1..).map(|n| PathBuf::from(format!("{}.{n}", path.display())));
    let mut names = std::iter::once(path.to_owned()).chain(names);
    names.find(|name| !name.exists()).expect("a free number is found before the integers end")
}

/// A value as YAML in block style with sorted keys, which PyYAML reads as the same value.
pub fn to_yaml(value: &Value) -> String {
    let mut text = String::new();
    put(&mut text, value, 0);
    text
}

fn put(out: &mut String, value: &Value, indent: usize) {
    match value {
        Value::Object(map) if !map.is_empty() => {
            for (key, value) in sorted(map) {
                *out += &format!("{:indent$}{}:", "", scalar_text(key, true));
                put_below(out, value, indent, indent);
            }
        }
        Value::Array(list) if !list.is_empty() => {
            for item in list {
                *out += &format!("{:indent$}-", "");
                put_below(out, item, indent, indent + 2);
            }
        }
        _ => *out += &format!("{:indent$}{}\n", "", scalar(value)),
    }
}

/// What follows a key or a dash: a scalar on the same line, or a block below.
fn put_below(out: &mut String, value: &Value, indent: usize, list_indent: usize) {
    match value {
        Value::Object(map) if !map.is_empty() => {
            out.push('\n');
            put(out, value, indent + 2);
        }
        Value::Array(list) if !list.is_empty() => {
            out.push('\n');
            put(out, value, list_indent);
        }
        _ => *out += &format!(" {}\n", scalar(value)),
    }
}

/// Keys in order; whole numbers by their value.
fn sorted(map: &Map<String, Value>) -> Vec<(&String, &Value)> {
    let mut entries: Vec<_> = map.iter().collect();
    entries.sort_by(|(a, _), (b, _)| (a.parse::<i64>().ok(), a).cmp(&(b.parse::<i64>().ok(), b)));
    entries
}

fn scalar(value: &Value) -> String {
    match value {
        Value::Null => "null".into(),
        Value::Bool(b) => b.to_string(),
        Value::Number(number) => number_text(number),
        Value::String(text) => scalar_text(text, false),
        Value::Array(_) => "[]".into(),
        Value::Object(_) => "{}".into(),
    }
}

/// PyYAML reads `1e-5` as text: floats need a point, and a sign in the exponent.
fn number_text(number: &Number) -> String {
    let Some(x) = number.as_f64().filter(|_| number.is_f64()) else { return number.to_string() };
    if x == 0.0 || (1e-4..1e16).contains(&x.abs()) {
        // Debug would write 1e-5 and below with an exponent; this range is above.
        return format!("{x:?}");
    }
    let text = format!("{x:e}");
    let (mantissa, exponent) = text.split_once('e').expect("the format has an exponent");
    let mantissa = if mantissa.contains('.') { mantissa.to_owned() } else { format!("{mantissa}.0") };
    let (sign, digits) = match exponent.strip_prefix('-') {
        Some(digits) => ('-', digits),
        None => ('+', exponent),
    };
    format!("{mantissa}e{sign}{digits:0>2}")
}

/// Text without quotes where YAML cannot take it for something else. Keys may be whole numbers.
fn scalar_text(text: &str, key: bool) -> String {
    const RESERVED: [&str; 10] = ["true", "false", "yes", "no", "on", "off", "null", "y", "n", "~"];
    let plain = |c: char| c.is_ascii_alphanumeric() || "_./-".contains(c);
    let starts = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_' || c == '/');
    let word = starts && text.chars().all(plain) && !RESERVED.contains(&text.to_ascii_lowercase().as_str());
    if word || (key && text.parse::<i64>().is_ok()) {
        return text.to_owned();
    }
    if text.chars().any(char::is_control) {
        return Value::from(text).to_string(); // JSON's double quotes are YAML too
    }
    format!("'{}'", text.replace('\'', "''"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn yaml_has_sorted_keys_and_numbers_that_pyyaml_reads() {
        let value = json!({
            "network": {"params": {"rc": 4.5, "atom_types": [8, 1], "k": []}, "name": "PiNet"},
            "model_dir": "a b", "model": {"e_dress": {"8": -430.5, "1": 2}, "lr": 1e-5, "on": "no", "x": true},
            "list": [[1, 2], {"a": 1}],
        });
        let want = "list:\n-\n  - 1\n  - 2\n-\n  a: 1\nmodel:\n  e_dress:\n    1: 2\n    8: -430.5\n  lr: 1.0e-05\n  \
                    'on': 'no'\n  x: true\nmodel_dir: 'a b'\nnetwork:\n  name: PiNet\n  params:\n    atom_types:\n    \
                    - 8\n    - 1\n    k: []\n    rc: 4.5\n";
        assert_eq!(to_yaml(&value), want);
        let mut sorted = value.clone();
        sorted.sort_all_objects();
        let mut again = value::parse(want, "yml").unwrap();
        again.sort_all_objects();
        assert_eq!(again, sorted);
    }

    #[test]
    fn a_different_file_is_kept_under_another_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model");
        let read = || std::fs::read_to_string(path.join("params.yml")).unwrap();
        assert_eq!(write_params(&path, &json!({"b": 1, "a": 2})).unwrap(), None);
        assert_eq!(read(), "a: 2\nb: 1\n");
        assert_eq!(write_params(&path, &json!({"a": 2, "b": 1})).unwrap(), None);
        let first = write_params(&path, &json!({"a": 3})).unwrap().unwrap();
        let name = first.file_name().unwrap().to_str().unwrap();
        assert!(name.len() == "params.yml.2601311259".len() && name.starts_with("params.yml."), "{name}");
        assert_eq!(std::fs::read_to_string(&first).unwrap(), "a: 2\nb: 1\n");
        let second = write_params(&path, &json!({"a": 4})).unwrap().unwrap();
        assert_ne!(first, second);
        assert_eq!(read(), "a: 4\n");
    }
}
