//! The checked input, by key.

use crate::config::check::{join, whole_number};
use crate::error::Error;
use serde_json::Value;

/// An object of the checked input with its path.
///
/// [`crate::config::check::check`] has seen to it that keys are there and have their types, so what does not fit
/// is a mistake of ours: the getters panic with the path of the key.
#[derive(Debug, Clone)]
pub struct Section<'a> {
    value: &'a Value,
    path: String,
}

impl<'a> Section<'a> {
    /// The whole input.
    pub fn root(value: &'a Value) -> Self {
        Section { value, path: String::new() }
    }

    /// An object inside this one.
    pub fn section(&self, key: &str) -> Section<'a> {
        self.optional_section(key).unwrap_or_else(|| self.wrong(key, "an object"))
    }

    /// An object inside this one, or `None` where it is null or absent.
    pub fn optional_section(&self, key: &str) -> Option<Section<'a>> {
        let value = self.get(key).filter(|v| v.is_object())?;
        Some(Section { value, path: join(&self.path, key) })
    }

    /// The objects of a list.
    pub fn sections(&self, key: &str) -> Vec<Section<'a>> {
        let path = |i: usize| format!("{}[{i}]", join(&self.path, key));
        self.list(key).iter().enumerate().map(|(i, value)| Section { value, path: path(i) }).collect()
    }

    /// The value of a key; `None` where it is absent or null.
    pub fn get(&self, key: &str) -> Option<&'a Value> {
        self.value.get(key).filter(|v| !v.is_null())
    }

    /// True or false.
    pub fn bool(&self, key: &str) -> bool {
        self.get(key).and_then(Value::as_bool).unwrap_or_else(|| self.wrong(key, "a bool"))
    }

    /// A number.
    pub fn float(&self, key: &str) -> f64 {
        self.optional_float(key).unwrap_or_else(|| self.wrong(key, "a number"))
    }

    /// A number, where it is given.
    pub fn optional_float(&self, key: &str) -> Option<f64> {
        self.get(key).and_then(Value::as_f64)
    }

    /// An integer that fits `T`.
    pub fn int<T: TryFrom<i128>>(&self, key: &str) -> T {
        self.optional_int(key).unwrap_or_else(|| self.wrong(key, "an integer of that size"))
    }

    /// An integer, where it is given.
    pub fn optional_int<T: TryFrom<i128>>(&self, key: &str) -> Option<T> {
        self.get(key).and_then(whole_number).and_then(|n| T::try_from(n).ok())
    }

    /// A string.
    pub fn text(&self, key: &str) -> &'a str {
        self.optional_text(key).unwrap_or_else(|| self.wrong(key, "a string"))
    }

    /// A string, where it is given.
    pub fn optional_text(&self, key: &str) -> Option<&'a str> {
        self.get(key).and_then(Value::as_str)
    }

    /// The items of a list; `None` where the key is absent, null or no list.
    pub fn optional_list(&self, key: &str) -> Option<&'a [Value]> {
        self.get(key).and_then(Value::as_array).map(Vec::as_slice)
    }

    /// The items of a list.
    pub fn list(&self, key: &str) -> &'a [Value] {
        self.optional_list(key).unwrap_or_else(|| self.wrong(key, "a list"))
    }

    /// A list of integers that fit `T`.
    pub fn ints<T: TryFrom<i128>>(&self, key: &str) -> Vec<T> {
        let item = |v| whole_number(v).and_then(|n| T::try_from(n).ok());
        self.list(key).iter().map(item).collect::<Option<_>>().unwrap_or_else(|| self.wrong(key, "integers"))
    }

    /// A list of strings.
    pub fn texts(&self, key: &str) -> Vec<String> {
        let item = |v: &Value| v.as_str().map(String::from);
        self.list(key).iter().map(item).collect::<Option<_>>().unwrap_or_else(|| self.wrong(key, "strings"))
    }

    /// The object itself.
    pub fn value(&self) -> &'a Value {
        self.value
    }

    /// An error about a key of this object, with its path in front.
    pub fn error(&self, key: &str, error: Error) -> Error {
        error.at(join(&self.path, key))
    }

    /// The path of a key of this object, for notes in the log.
    pub fn path_of(&self, key: &str) -> String {
        join(&self.path, key)
    }

    fn wrong(&self, key: &str, wanted: &str) -> ! {
        panic!("the table of keys lets through a {} that is not {wanted}", join(&self.path, key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::err;
    use serde_json::json;

    #[test]
    fn values_come_by_key_and_errors_carry_the_path() {
        let value = json!({"a": {"n": 1e3, "x": 2, "t": "s", "l": [1, 2], "none": null}});
        let section = Section::root(&value).section("a");
        assert_eq!(section.int::<usize>("n"), 1000);
        assert_eq!(section.float("x"), 2.0);
        assert_eq!(section.text("t"), "s");
        assert_eq!(section.ints::<u8>("l"), [1, 2]);
        assert!(section.get("none").is_none() && section.optional_float("absent").is_none());
        assert_eq!(section.error("n", err!("too many")).message(), "a.n: too many");
    }

    #[test]
    #[should_panic(expected = "lets through a a.t that is not a number")]
    fn a_hole_in_the_table_is_our_own_mistake() {
        Section::root(&json!({"a": {"t": "s"}})).section("a").float("t");
    }
}
