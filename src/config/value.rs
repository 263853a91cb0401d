//! A JSON or YAML file becomes one value that keeps the order of its keys.

use super::check::did_you_mean_path;
use crate::error::{Error, IoContext, Result};
use crate::{bail, err};
use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use std::fmt;
use std::path::Path;

/// An input file is written by hand, or lists some ten thousand systems. What is larger than this is something else, and
/// would take many times its size in memory.
const LARGEST_FILE_BYTES: u64 = 16 << 20;

/// Deeper nesting is refused before it can exhaust the stack.
const DEEPEST_NESTING: usize = 100;

/// Reads a `.json`, `.yaml` or `.yml` file; any other name is tried as JSON, then as YAML.
///
/// A key that stands twice in one object is an error, and so is a number that is not finite.
pub fn read(path: &Path) -> Result<Value> {
    let about = std::fs::metadata(path).io("read", path).map_err(|e| match did_you_mean_path(path) {
        hint if hint.is_empty() => with_inputs(e, path.parent()),
        hint => e.help(hint.trim_end()),
    })?;
    if about.is_dir() {
        return Err(with_inputs(
            err!("{}: found a folder, wanted an input file", path.display()),
            Some(path),
        ));
    }
    let size = about.len();
    if size > LARGEST_FILE_BYTES {
        bail!(
            "{}: {} MB are too much for an input file; at most {} MB are read",
            path.display(),
            size >> 20,
            LARGEST_FILE_BYTES >> 20
        );
    }
    let bytes = std::fs::read(path).io("read", path)?;
    let text = std::str::from_utf8(&bytes)
        .map_err(|e| err!("not UTF-8 text: byte {} cannot be read", e.valid_up_to()))
        .map_err(|e| e.at(path.display()))?;
    let extension = path.extension().and_then(|e| e.to_str()).unwrap_or("").to_ascii_lowercase();
    parse(text, &extension).map_err(|e| e.at(path.display()))
}

/// Names input files of a folder, where there are any.
fn with_inputs(error: Error, folder: Option<&Path>) -> Error {
    let folder = folder.filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let is_input = |name: &str| [".json", ".yaml", ".yml"].iter().any(|ending| name.ends_with(ending));
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| is_input(name))
        .collect();
    names.sort();
    names.truncate(5);
    match names.is_empty() {
        true => error,
        false => error.help(format!("there are {}", names.join(", "))),
    }
}

/// Parses the text of a file with this extension.
pub fn parse(text: &str, extension: &str) -> Result<Value> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    if text.trim().is_empty() {
        bail!("the file is empty");
    }
    match extension {
        "json" => parse_json(text),
        "yaml" | "yml" => parse_yaml(text),
        _ => parse_json(text).or_else(|json| parse_either(text, json)),
    }
}

/// YAML where JSON failed. A text that starts like JSON was meant as JSON.
fn parse_either(text: &str, json: Error) -> Result<Value> {
    match parse_yaml(text) {
        Ok(value) => Ok(value),
        Err(yaml) => Err(if text.trim_start().starts_with(['{', '[']) { json } else { yaml }),
    }
}

fn parse_json(text: &str) -> Result<Value> {
    serde_json::from_str::<Node>(text).map(|node| node.0).map_err(|e| {
        let full = e.to_string();
        let place = format!(" at line {} column {}", e.line(), e.column());
        let what = full.strip_suffix(&place).unwrap_or(&full);
        let error = err!("line {}, column {}: {}", e.line(), e.column(), what);
        match what {
            "trailing comma" => error.help("JSON allows no comma before a closing brace or bracket"),
            "key must be a string" => error.help("write keys in double quotes; JSON has no comments"),
            "expected value" => {
                error.help("JSON has no NaN, Infinity, None, True or False; strings need double quotes")
            }
            _ => error,
        }
    })
}

fn parse_yaml(text: &str) -> Result<Value> {
    // Only true and false are truth values: N, NO and Y are atoms and molecules.
    let options = serde_saphyr::options! { strict_booleans: true };
    serde_saphyr::from_str_with_options::<Node>(text, options).map(|node| node.0).map_err(|e| {
        let full = e.without_snippet().to_string();
        let Some(at) = e.location() else { return err!("{full}") };
        let what = full.split(&format!(" at line {}", at.line())).next().unwrap_or(&full).trim();
        err!("line {}, column {}: {}", at.line(), at.column(), yaml_message(what))
    })
}

/// The parser advises programmers on its settings; our reader wants to know about the file.
fn yaml_message(what: &str) -> String {
    if let Some(rest) = what.strip_prefix("duplicate mapping key: ") {
        let key = rest.split(", set ").next().unwrap_or(rest);
        return format!("the key `{key}` stands twice in one object");
    }
    if let Some(number) = what.strip_prefix("non-finite float ").and_then(|rest| rest.split('`').nth(1)) {
        return format!("{number} is not a finite number");
    }
    what.to_string()
}

/// A value that was read strictly: no key twice, no number that is not finite, no bottomless nesting.
struct Node(Value);

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Strict { depth: 0 }.deserialize(deserializer).map(Node)
    }
}

struct Strict {
    depth: usize,
}

impl Strict {
    fn deeper<E: serde::de::Error>(&self) -> Result<Strict, E> {
        if self.depth >= DEEPEST_NESTING {
            return Err(E::custom(format!("nested deeper than {DEEPEST_NESTING} levels")));
        }
        Ok(Strict { depth: self.depth + 1 })
    }
}

impl<'de> DeserializeSeed<'de> for Strict {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strict {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a value")
    }

    fn visit_bool<E>(self, v: bool) -> Result<Value, E> {
        Ok(Value::Bool(v))
    }

    fn visit_i64<E>(self, v: i64) -> Result<Value, E> {
        Ok(Value::from(v))
    }

    fn visit_u64<E>(self, v: u64) -> Result<Value, E> {
        Ok(Value::from(v))
    }

    fn visit_f64<E: serde::de::Error>(self, v: f64) -> Result<Value, E> {
        Number::from_f64(v).map(Value::Number).ok_or_else(|| E::custom(format!("{v} is not a finite number")))
    }

    fn visit_str<E>(self, v: &str) -> Result<Value, E> {
        Ok(Value::from(v))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = seq.next_element_seed(self.deeper()?)? {
            list.push(item);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(key) = access.next_key::<String>()? {
            if map.contains_key(&key) {
                return Err(A::Error::custom(format!("the key `{key}` stands twice in one object")));
            }
            let value = access.next_value_seed(self.deeper()?)?;
            map.insert(key, value);
        }
        Ok(Value::Object(map))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_keeps_the_order_of_keys() {
        let value = parse(r#"{"z": 1, "a": [1.5, null, true, "x"]}"#, "json").unwrap();
        assert_eq!(value.to_string(), r#"{"z":1,"a":[1.5,null,true,"x"]}"#);
    }

    #[test]
    fn yaml_and_json_give_the_same_value() {
        let yaml = "a:\n  b: [1, 2.5, text]\n  c: true\n  d: null\n  e: 1e-3\ntypes: [NO, N, Y]\n";
        let json =
            r#"{"a": {"b": [1, 2.5, "text"], "c": true, "d": null, "e": 0.001}, "types": ["NO", "N", "Y"]}"#;
        assert_eq!(parse(yaml, "yaml").unwrap(), parse(json, "json").unwrap());
        assert_eq!(parse(yaml, "in").unwrap(), parse(json, "in").unwrap());
    }

    #[test]
    fn a_key_that_stands_twice_is_an_error_with_its_line() {
        let e = parse("{\n \"a\": 1,\n \"a\": 2\n}", "json").unwrap_err();
        assert!(e.message().starts_with("line 3, column 4: the key `a` stands twice"), "{e}");
        let e = parse("a: 1\nb: 2\na: 3\n", "yaml").unwrap_err();
        assert!(e.message().starts_with("line 3, column 1: "), "{e}");
    }

    #[test]
    fn syntax_errors_name_line_and_column() {
        let e = parse("{\n \"a\": [1, 2,]\n}", "json").unwrap_err();
        assert_eq!(e.message(), "line 2, column 13: trailing comma");
        assert!(e.advice().is_some());
        let e = parse("a: [1, 2\nb: 3\n", "yaml").unwrap_err();
        assert!(e.message().starts_with("line "), "{e}");
    }

    #[test]
    fn numbers_that_are_not_finite_are_refused() {
        assert!(parse("{\"a\": 1e999}", "json").is_err());
        assert!(parse("{\"a\": NaN}", "json").is_err());
        assert!(parse("a: .nan\n", "yaml").is_err());
        assert!(parse("a: -.inf\n", "yaml").is_err());
    }

    #[test]
    fn bottomless_nesting_is_an_error_and_not_a_crash() {
        for n in [101, 100_000] {
            assert!(parse(&"[".repeat(n), "json").is_err());
            assert!(parse(&format!("{}1{}", "[".repeat(n), "]".repeat(n)), "json").is_err());
            assert!(parse(&format!("{}1{}", "[".repeat(n), "]".repeat(n)), "yaml").is_err());
            assert!(parse(&format!("{}1{}", "{a: ".repeat(n), "}".repeat(n)), "yaml").is_err());
        }
    }

    #[test]
    fn a_yaml_bomb_of_aliases_is_an_error() {
        let mut text = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
        for i in 1..12 {
            let refs = vec![format!("*a{}", i - 1); 10].join(", ");
            text += &format!("a{i}: &a{i} [{refs}]\n");
        }
        assert!(parse(&text, "yaml").is_err());
    }

    #[test]
    fn an_empty_file_says_so() {
        assert_eq!(parse(" \n", "json").unwrap_err().message(), "the file is empty");
        assert!(parse("{}", "json").is_ok());
    }
}
