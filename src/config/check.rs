//! Holds an input against its table: unknown keys, wrong types, defaults.

use crate::config::table::{Choice, Default, Key, Kind, Status, TAG, Table, Variant, Variants, one_of};
use crate::err;
use crate::error::{Error, Result};
use serde_json::{Map, Value};
use std::path::Path;

/// More errors than these are not shown at once.
const MOST_ERRORS: usize = 8;

/// An input that fits its table.
#[derive(Debug)]
pub struct Checked {
    /// Names instead of aliases, no comments, all defaults: the keys as written first, then the others.
    pub value: Value,
    /// What the user should know about keys that have no effect here.
    pub notes: Vec<String>,
}

/// Checks a whole input. All mistakes that were found come in one error, each with `file` in front.
pub fn check(root: &'static Table, value: &Value, file: &str) -> Result<Checked> {
    let Value::Object(map) = value else {
        let known = key_names(root.keys);
        return Err(err!("found {}, wanted an object with the keys {known}", found(value)).at(file));
    };
    let mut checker = Checker { root, errors: Vec::new(), notes: Vec::new() };
    let map = checker.table("", root, map);
    if checker.errors.is_empty() {
        return Ok(Checked { value: Value::Object(map), notes: checker.notes });
    }
    Err(join_errors(checker.errors.into_iter().map(|e| e.at(file)).collect()))
}

/// Several errors as one: all but the last go into the message with their advice.
fn join_errors(mut errors: Vec<Error>) -> Error {
    let left_out = errors.len().saturating_sub(MOST_ERRORS);
    errors.truncate(MOST_ERRORS);
    let mut last = errors.pop().expect("there is at least one error to report");
    if left_out > 0 {
        errors.push(last);
        last = err!("and {left_out} more");
    }
    let before: String = errors.iter().map(|e| format!("{e}\n")).collect();
    let all = Error::new(format!("{before}{}", last.message()));
    match last.advice() {
        Some(advice) => all.help(advice),
        None => all,
    }
}

/// The key that selects a variant, so that it is among the known names.
static TAG_KEY: Key = Key::new(TAG, Kind::Text);

struct Checker {
    root: &'static Table,
    errors: Vec<Error>,
    notes: Vec<String>,
}

impl Checker {
    fn fail(&mut self, path: &str, error: Error) {
        self.errors.push(error.at(path));
    }

    /// Checks one object and fills in its defaults.
    fn table(&mut self, path: &str, table: &'static Table, map: &Map<String, Value>) -> Map<String, Value> {
        let mut out = Map::new();
        let variant = match &table.variants {
            None => None,
            Some(variants) => match self.variant(path, variants, map) {
                Some(variant) => Some(variant),
                None => return out, // its keys are unknown, so there is nothing more to say
            },
        };
        let own = variant.map_or(&[][..], |v| v.keys);
        let tag = variant.map(|_| &TAG_KEY);
        let keys: Vec<&'static Key> = tag.into_iter().chain(table.keys).chain(own).collect();
        for (name, value) in map.iter().filter(|(name, _)| !name.starts_with('_')) {
            if let (TAG, Some(variant)) = (name.as_str(), variant) {
                out.insert(TAG.into(), variant.name.into());
                continue;
            }
            self.entry(path, &keys, name, value, &mut out);
        }
        self.defaults(path, table.keys, &mut out);
        if let Some(variant) = variant {
            out.entry(TAG).or_insert_with(|| variant.name.into());
        }
        self.defaults(path, own, &mut out);
        out
    }

    /// Which variant an object is.
    fn variant(
        &mut self,
        path: &str,
        variants: &Variants,
        map: &Map<String, Value>,
    ) -> Option<&'static Variant> {
        let tag = join(path, TAG);
        let supported: Vec<&str> = variants.list.iter().filter(|v| v.supported).map(|v| v.name).collect();
        let name = match map.get(TAG) {
            None if variants.default.is_empty() => {
                let error = err!("missing; it says which {} is meant", variants.what);
                self.fail(&tag, error.help(format!("write {}", one_of(&supported))));
                return None;
            }
            None => variants.default,
            Some(Value::String(name)) => name,
            Some(other) => {
                let error =
                    err!("found {}, wanted the name of {}", found(other), with_article(variants.what));
                self.fail(&tag, error);
                return None;
            }
        };
        match variants.list.iter().find(|v| v.is_called(name)) {
            Some(variant) if variant.supported => Some(variant),
            Some(_) => {
                let what = variants.what;
                let error = err!("DeePMD-kit knows the {what} \"{name}\", Phalanx does not support it yet");
                self.fail(&tag, error.help(format!("supported: {}", supported.join(", "))));
                None
            }
            None => {
                let error = err!("\"{name}\" is not {}", with_article(variants.what));
                let names = variants.list.iter().flat_map(|v| v.aliases.iter().chain([&v.name]));
                let help = did_you_mean(name, names.copied());
                self.fail(&tag, error.help(format!("{help}supported: {}", supported.join(", "))));
                None
            }
        }
    }

    /// Checks one key of an object and puts it into `out` under its proper name.
    fn entry(&mut self, path: &str, keys: &[&Key], name: &str, value: &Value, out: &mut Map<String, Value>) {
        let full = join(path, name);
        let Some(key) = keys.iter().find(|k| k.is_called(name)) else {
            let help = self.help_for_unknown(path, keys, name);
            return self.fail(&full, err!("unknown key").help(help));
        };
        if out.contains_key(key.name) {
            let error = err!("the key `{}` is written twice, under two of its names", key.name);
            return self.fail(&full, error.help(format!("keep one of: {}", all_names(key))));
        }
        match key.status {
            Status::NotYet(advice) if !changes_nothing(key, value) => {
                let error = err!("DeePMD-kit knows this key, Phalanx does not support it yet");
                return self.fail(&full, not_yet_help(error, key, advice));
            }
            Status::Ignored(note) if !note.is_empty() && !changes_nothing(key, value) => {
                self.notes.push(format!("{full}: {note}"));
            }
            _ => {}
        }
        if let Some(value) = self.value(&full, &key.kind, key.unit, value) {
            out.insert(key.name.into(), value);
        }
    }

    fn defaults(&mut self, path: &str, keys: &'static [Key], out: &mut Map<String, Value>) {
        for key in keys {
            if out.contains_key(key.name) {
                continue;
            }
            let full = join(path, key.name);
            match (key.default, key.kind) {
                (Default::Absent, _) => continue,
                (Default::Json(_), _) => {
                    out.extend(key.default_value().map(|value| (key.name.to_string(), value)));
                }
                (Default::Section, Kind::Object(table)) => {
                    let inside = self.table(&full, table, &Map::new());
                    out.insert(key.name.into(), Value::Object(inside));
                }
                (Default::Section, _) => panic!("{full} is no object, so it cannot have defaults inside"),
                // A key that is there with a wrong value has been reported already.
                (Default::Required, _) if self.reported(&full, path, key) => continue,
                (Default::Required, _) => {
                    let error = err!("missing; wanted {}", with_unit(&key.kind, key.unit));
                    self.fail(&full, error.help(key.doc));
                }
            }
        }
    }

    fn reported(&self, full: &str, path: &str, key: &Key) -> bool {
        let names = key.aliases.iter().map(|alias| join(path, alias)).chain([full.to_string()]);
        names.into_iter().any(|name| {
            self.errors.iter().any(|e| {
                e.message().strip_prefix(&name).is_some_and(|rest| rest.starts_with([':', '.', '[']))
            })
        })
    }

    /// Checks a value; `None` where it is wrong.
    fn value(&mut self, path: &str, kind: &Kind, unit: &str, value: &Value) -> Option<Value> {
        match (kind, value) {
            (Kind::Any, _) | (Kind::Null, Value::Null) | (Kind::Bool, Value::Bool(_)) => Some(value.clone()),
            (Kind::Bool, Value::String(word)) if spelled_bool(word).is_some() => {
                spelled_bool(word).map(Value::Bool)
            }
            (Kind::Text, Value::String(_)) => Some(value.clone()),
            (Kind::Int(..), Value::Number(_)) => self.int(path, kind, unit, value),
            (Kind::Float(range), Value::Number(n)) => match n.as_f64() {
                Some(x) if x.is_finite() && range.contains(x) => Some(value.clone()),
                _ => self.wrong(path, kind, unit, value),
            },
            (Kind::Choice(choice), Value::String(text)) => self.choice(path, choice, text),
            (Kind::Pattern(pattern), Value::String(text)) => match (pattern.check)(text) {
                Ok(()) => Some(value.clone()),
                Err(error) => {
                    self.fail(path, error);
                    None
                }
            },
            (Kind::List(item), Value::Array(list)) => {
                let items: Vec<Option<Value>> = list
                    .iter()
                    .enumerate()
                    .map(|(i, v)| self.value(&format!("{path}[{i}]"), item, unit, v))
                    .collect();
                items.into_iter().collect::<Option<Vec<Value>>>().map(Value::Array)
            }
            (Kind::Object(table), Value::Object(map)) => Some(Value::Object(self.table(path, table, map))),
            (Kind::OneOf(kinds), _) => match kinds.iter().find(|kind| has_shape(kind, value)) {
                Some(kind) => self.value(path, kind, unit, value),
                None => self.wrong(path, kind, unit, value),
            },
            _ => self.wrong(path, kind, unit, value),
        }
    }

    /// Integers may be written as 1e6 or 1000.0, as long as they are whole.
    fn int(&mut self, path: &str, kind: &Kind, unit: &str, value: &Value) -> Option<Value> {
        let Kind::Int(min, max) = *kind else { panic!("{path} is checked as an integer without being one") };
        match whole_number(value) {
            Some(n) if (min..=max).contains(&n) => Some(match i64::try_from(n) {
                Ok(n) => Value::from(n),
                Err(_) => Value::from(n as u64), // the ranges of tables end at u64::MAX
            }),
            _ => self.wrong(path, kind, unit, value),
        }
    }

    fn choice(&mut self, path: &str, choice: &Choice, text: &str) -> Option<Value> {
        if choice.known.contains(&text) {
            return Some(text.into());
        }
        let known = choice.known.join(", ");
        if choice.not_yet.contains(&text) {
            let error = err!("DeePMD-kit knows \"{text}\", Phalanx does not support it yet");
            self.fail(path, error.help(format!("supported: {known}")));
        } else {
            let help = did_you_mean(text, choice.known.iter().copied());
            let error = err!("found \"{text}\", wanted {}", one_of(choice.known));
            self.errors.push(if help.is_empty() { error } else { error.help(help.trim_end()) }.at(path));
        }
        None
    }

    fn wrong(&mut self, path: &str, kind: &Kind, unit: &str, value: &Value) -> Option<Value> {
        let error = err!("found {}, wanted {}", found(value), with_unit(kind, unit));
        let error = match value {
            Value::String(text) if text.parse::<f64>().is_ok() || text == "true" || text == "false" => {
                error.help("write it without quotes")
            }
            _ => error,
        };
        self.fail(path, error);
        None
    }

    /// The nearest known name, where the key would be right, and what is known here.
    fn help_for_unknown(&self, path: &str, keys: &[&Key], name: &str) -> String {
        let names = keys.iter().flat_map(|k| k.aliases.iter().chain([&k.name])).copied();
        let near = did_you_mean(name, names);
        let mut elsewhere = Vec::new();
        if near.is_empty() {
            places_of(name, "", self.root, &mut elsewhere);
        }
        let place = match elsewhere.first() {
            Some(place) => format!("`{name}` is a key of {place}; "),
            None => String::new(),
        };
        let here = if path.is_empty() { String::from("known keys") } else { format!("known keys of {path}") };
        let known: Vec<&str> = keys.iter().filter(|k| is_usable(k)).map(|k| k.name).collect();
        format!("{near}{place}{here}: {}", known.join(", "))
    }
}

fn is_usable(key: &Key) -> bool {
    matches!(key.status, Status::Supported)
}

fn not_yet_help(error: Error, key: &Key, advice: &str) -> Error {
    let default = key.default_value().filter(|v| !v.is_null());
    match (advice.is_empty(), default) {
        (false, _) => error.help(advice),
        (true, Some(default)) => error.help(format!("leave it out, or write its default {default}")),
        (true, None) => error.help("leave it out"),
    }
}

/// True where an unsupported key has a value that asks for nothing.
fn changes_nothing(key: &Key, value: &Value) -> bool {
    let empty = match value {
        Value::Null => true,
        Value::Bool(on) => !on && key.default_value().is_none(),
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => false,
    };
    empty || key.default_value().is_some_and(|default| same(&default, value))
}

/// Equal, where 0 and 0.0 are the same and words may differ in case.
fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a.as_f64() == b.as_f64(),
        (Value::String(a), Value::String(b)) => a.eq_ignore_ascii_case(b),
        _ => a == b,
    }
}

/// True where a value is of the JSON type that a kind wants, be it right or wrong otherwise.
fn has_shape(kind: &Kind, value: &Value) -> bool {
    match kind {
        Kind::Any => true,
        Kind::Null => value.is_null(),
        Kind::Bool => value.is_boolean() || value.as_str().is_some_and(|word| spelled_bool(word).is_some()),
        Kind::Int(..) => whole_number(value).is_some(),
        Kind::Float(_) => value.is_number(),
        Kind::Text | Kind::Choice(_) | Kind::Pattern(_) => value.is_string(),
        Kind::List(_) => value.is_array(),
        Kind::Object(_) => value.is_object(),
        Kind::OneOf(kinds) => kinds.iter().any(|kind| has_shape(kind, value)),
    }
}

/// The integer that a number is, also where it is written as 1e6.
pub fn whole_number(value: &Value) -> Option<i128> {
    let number = value.as_number()?;
    if let Some(n) = number.as_i64() {
        return Some(n.into());
    }
    if let Some(n) = number.as_u64() {
        return Some(n.into());
    }
    let x = number.as_f64()?;
    (x.fract() == 0.0 && x.abs() < 9e15).then_some(x as i128)
}

/// What was found, in words.
pub fn found(value: &Value) -> String {
    match value {
        Value::Null => "null".into(),
        Value::Bool(_) | Value::Number(_) => value.to_string(),
        Value::String(text) if text.chars().count() > 60 => {
            format!("\"{}...\"", text.chars().take(57).collect::<String>())
        }
        Value::String(text) => format!("\"{text}\""),
        Value::Array(list) if list.is_empty() => "an empty list".into(),
        Value::Array(list) => format!("a list of {}", list.len()),
        Value::Object(_) => "an object".into(),
    }
}

fn with_unit(kind: &Kind, unit: &str) -> String {
    if unit.is_empty() { kind.wanted() } else { format!("{} ({unit})", kind.wanted()) }
}

fn all_names(key: &Key) -> String {
    let names: Vec<&str> = [key.name].into_iter().chain(key.aliases.iter().copied()).collect();
    names.join(", ")
}

fn key_names(keys: &[Key]) -> String {
    keys.iter().filter(|k| is_usable(k)).map(|k| k.name).collect::<Vec<_>>().join(", ")
}

fn with_article(noun: &str) -> String {
    format!("{} {noun}", if noun.starts_with(['a', 'e', 'i', 'o', 'u']) { "an" } else { "a" })
}

/// "1 number", "2 numbers".
pub fn count(n: usize, noun: &str) -> String {
    format!("{n} {noun}{}", if n == 1 { "" } else { "s" })
}

/// `parent.key`, or `key` at the top.
pub fn join(path: &str, key: &str) -> String {
    if path.is_empty() { key.into() } else { format!("{path}.{key}") }
}

/// "did you mean `x`? " for the nearest name, or nothing where none is near.
pub fn did_you_mean<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> String {
    let lower = name.to_lowercase();
    let nearest = known
        .map(|k| (strsim::damerau_levenshtein(&lower, &k.to_lowercase()), k))
        .min_by_key(|(distance, k)| (*distance, k.len()));
    match nearest {
        Some((distance, k)) if distance <= k.chars().count().min(name.chars().count()).div_ceil(3) => {
            format!("did you mean `{k}`? ")
        }
        _ => String::new(),
    }
}

/// `yes`, `no`, `on` and `off`, which YAML files are full of. Names of elements stay names: only who wants a yes or no asks.
fn spelled_bool(word: &str) -> Option<bool> {
    match word {
        "yes" | "Yes" | "YES" | "on" | "On" | "ON" => Some(true),
        "no" | "No" | "NO" | "off" | "Off" | "OFF" => Some(false),
        _ => None,
    }
}

/// Names beside a path that is not there which it may have meant; empty where there are none.
pub fn did_you_mean_path(path: &Path) -> String {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let Some(name) = path.file_name().and_then(|name| name.to_str()) else { return String::new() };
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    match names.iter().find(|known| known.starts_with(name)) {
        Some(longer) => format!("did you mean `{longer}`? "),
        None => did_you_mean(name, names.iter().map(String::as_str)),
    }
}

/// The objects in which a key of this name would be right, in words.
fn places_of(name: &str, path: &str, table: &'static Table, places: &mut Vec<String>) {
    let variants = table.variants.map_or(&[][..], |v| v.list).iter().filter(|v| v.supported);
    let own = variants
        .flat_map(|v| v.keys.iter().map(move |key| (key, format!("`{path}` of type \"{}\"", v.name))));
    for (key, place) in table.keys.iter().map(|key| (key, format!("`{path}`"))).chain(own) {
        if key.is_called(name) && is_usable(key) && !path.is_empty() {
            places.push(place);
        }
        let inside = match key.kind {
            Kind::OneOf(kinds) => kinds.iter().copied().find(|k| matches!(k, Kind::Object(_))),
            other => Some(other),
        };
        if let Some(Kind::Object(table)) = inside {
            places_of(name, &join(path, key.name), table, places);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::table::Pattern;
    use serde_json::json;

    fn even(text: &str) -> Result<()> {
        if text.len().is_multiple_of(2) { Ok(()) } else { Err(err!("\"{text}\" is odd")) }
    }

    static INNER: Table = Table {
        keys: &[Key::new("width", Kind::POSITIVE).unit("A").default("2.5").doc("How wide.")],
        variants: Some(Variants {
            what: "shape",
            default: "round",
            list: &[
                Variant::of("round", &[Key::new("radius", Kind::NUMBER).doc("How round.")], "A ball."),
                Variant::of("flat", &[], "A plate.").aliases(&["plate"]),
                Variant::not_yet("knotted"),
            ],
        }),
    };

    static TABLE: Table = Table::of(&[
        Key::new("shape", Kind::Object(&INNER)).doc("The shape."),
        Key::new("steps", Kind::AT_LEAST_ONE).aliases(&["numb_steps"]).default("10"),
        Key::new("names", Kind::OneOf(&[Kind::Text, Kind::List(&Kind::Text)])).optional(),
        Key::new("mode", Kind::choice(&["fast", "exact"])).default("\"fast\""),
        Key::new("word", Kind::Pattern(Pattern { wanted: "an even word", check: even })).optional(),
        Key::new("later", Kind::Bool).default("false").not_yet(""),
        Key::new("old", Kind::Any).optional().ignored("has no effect"),
        Key::new("seed", Kind::SEED).default("null"),
    ]);

    fn message(value: Value) -> String {
        check(&TABLE, &value, "f").unwrap_err().to_string().replace("f: ", "")
    }

    #[test]
    fn defaults_come_after_what_was_written_and_comments_vanish() {
        let input = json!({"numb_steps": 5, "_note": 1, "shape": {"_c": 0, "radius": 1, "type": "round"}});
        let checked = check(&TABLE, &input, "f").unwrap();
        let want = r#"{"steps":5,"shape":{"radius":1,"type":"round","width":2.5},"mode":"fast","later":false,"seed":null}"#;
        assert_eq!(checked.value.to_string(), want);
        assert!(checked.notes.is_empty());
    }

    #[test]
    fn an_unknown_key_gives_its_path_and_the_nearest_name() {
        let m = message(json!({"shape": {"radiuss": 1, "radius": 1}}));
        assert_eq!(
            m,
            "shape.radiuss: unknown key\n  help: did you mean `radius`? known keys of shape: type, width, radius"
        );
        let m = message(json!({"shape": {"radius": 1}, "width": 1}));
        assert!(m.contains("`width` is a key of `shape`"), "{m}");
    }

    #[test]
    fn several_mistakes_come_in_one_error() {
        let m = message(json!({"shape": {"radius": "1.5", "width": 0}, "steps": 0}));
        let lines: Vec<&str> = m.lines().collect();
        assert_eq!(lines[0], "shape.radius: found \"1.5\", wanted a number");
        assert_eq!(lines[1], "  help: write it without quotes");
        assert_eq!(lines[2], "shape.width: found 0, wanted a number above 0 (A)");
        assert_eq!(lines[3], "steps: found 0, wanted an integer of at least 1");
        assert_eq!(lines.len(), 4);
    }

    #[test]
    fn whole_numbers_may_be_written_as_floats() {
        let value = |text: &str| serde_json::from_str::<Value>(text).unwrap();
        assert_eq!(whole_number(&value("1e6")), Some(1_000_000));
        assert_eq!(whole_number(&value("1000.0")), Some(1000));
        assert_eq!(whole_number(&value("1.5")), None);
        assert_eq!(whole_number(&value("18446744073709551615")), Some(u64::MAX.into()));
        let checked = check(&TABLE, &json!({"shape": {"radius": 1}, "steps": 1e6}), "f").unwrap();
        assert_eq!(checked.value["steps"].to_string(), "1000000");
    }

    #[test]
    fn a_missing_key_says_what_it_is_for() {
        assert_eq!(message(json!({})), "shape: missing; wanted an object\n  help: The shape.");
        let m = message(json!({"shape": {}}));
        assert_eq!(m, "shape.radius: missing; wanted a number\n  help: How round.");
    }

    #[test]
    fn what_only_deepmd_kit_knows_is_refused_unless_it_changes_nothing() {
        let ok = |later: Value| check(&TABLE, &json!({"shape": {"radius": 1}, "later": later}), "f");
        assert!(ok(json!(false)).is_ok());
        let m = ok(json!(true)).unwrap_err().to_string();
        assert!(m.starts_with("f: later: DeePMD-kit knows this key, Phalanx does not support it yet"), "{m}");
        let m = message(json!({"shape": {"type": "knotted", "anything": 1}}));
        assert!(m.starts_with("shape.type: DeePMD-kit knows the shape \"knotted\""), "{m}");
        let m = message(json!({"shape": {"type": "flatt"}}));
        assert!(m.contains("did you mean `flat`? supported: round, flat"), "{m}");
    }

    #[test]
    fn ignored_keys_leave_a_note() {
        let checked = check(&TABLE, &json!({"shape": {"type": "plate"}, "old": 3}), "f").unwrap();
        assert_eq!(checked.notes, ["old: has no effect"]);
        assert_eq!(checked.value["shape"]["type"], "flat");
    }

    #[test]
    fn an_alias_beside_its_name_is_an_error() {
        let m = message(json!({"shape": {"radius": 1}, "steps": 1, "numb_steps": 2}));
        assert!(m.starts_with("numb_steps: the key `steps` is written twice"), "{m}");
    }

    #[test]
    fn unions_report_the_alternative_that_was_meant() {
        let m = message(json!({"shape": {"radius": 1}, "names": ["a", 3]}));
        assert_eq!(m, "names[1]: found 3, wanted a string");
        let m = message(json!({"shape": {"radius": 1}, "names": 3}));
        assert_eq!(m, "names: found 3, wanted a string or a list of strings");
        let m = message(json!({"shape": {"radius": 1}, "word": "odd"}));
        assert_eq!(m, "word: \"odd\" is odd");
    }

    #[test]
    fn an_input_that_is_no_object_is_an_error() {
        assert!(message(json!([1])).starts_with("found a list of 1, wanted an object"));
    }
}
