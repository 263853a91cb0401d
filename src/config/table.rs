//! What a table of keys is: names, types, defaults, units and a sentence for each.
//!
//! Tables are plain constants beside the code that owns the options, so that they can be read like a page.

use crate::error::Result;
use serde_json::Value;
use std::fmt;

/// The keys of one object, and the variants that its `type` key selects among.
#[derive(Debug, Clone, Copy)]
pub struct Table {
    /// Keys that are there for every variant.
    pub keys: &'static [Key],
    /// `None` where the object has no `type` key.
    pub variants: Option<Variants>,
}

/// The variants of an object and the key that names one of them.
#[derive(Debug, Clone, Copy)]
pub struct Variants {
    /// What a variant is called in messages: "descriptor".
    pub what: &'static str,
    /// The variant that is meant where `type` is absent; empty where `type` must be written.
    pub default: &'static str,
    pub list: &'static [Variant],
}

/// One variant of an object.
#[derive(Debug, Clone, Copy)]
pub struct Variant {
    pub name: &'static str,
    pub aliases: &'static [&'static str],
    /// False where DeePMD-kit has it and we do not.
    pub supported: bool,
    pub keys: &'static [Key],
    pub doc: &'static str,
}

/// The name of the key that selects a variant.
pub const TAG: &str = "type";

impl Table {
    /// An object without variants.
    pub const fn of(keys: &'static [Key]) -> Table {
        Table { keys, variants: None }
    }
}

impl Variant {
    /// A variant that works.
    pub const fn of(name: &'static str, keys: &'static [Key], doc: &'static str) -> Variant {
        Variant { name, aliases: &[], supported: true, keys, doc }
    }

    /// A variant that DeePMD-kit has and we do not.
    pub const fn not_yet(name: &'static str) -> Variant {
        Variant { name, aliases: &[], supported: false, keys: &[], doc: "" }
    }

    /// Other names for it.
    pub const fn aliases(mut self, aliases: &'static [&'static str]) -> Variant {
        self.aliases = aliases;
        self
    }

    /// True for the name and for every alias.
    pub fn is_called(&self, name: &str) -> bool {
        self.name == name || self.aliases.contains(&name)
    }
}

/// One key of an object.
#[derive(Debug, Clone, Copy)]
pub struct Key {
    pub name: &'static str,
    pub aliases: &'static [&'static str],
    pub kind: Kind,
    pub default: Default,
    /// Empty for pure numbers and for what is not a number.
    pub unit: &'static str,
    pub doc: &'static str,
    pub status: Status,
}

/// What holds where a key is absent.
#[derive(Debug, Clone, Copy)]
pub enum Default {
    /// The key must be written.
    Required,
    /// The key stays absent, which has a meaning of its own.
    Absent,
    /// This JSON text.
    Json(&'static str),
    /// An object whose own keys have their defaults.
    Section,
}

/// Whether a key does anything here.
#[derive(Debug, Clone, Copy)]
pub enum Status {
    Supported,
    /// DeePMD-kit knows the key and we do not: an error, with this advice, unless the value changes nothing.
    NotYet(&'static str),
    /// Accepted without effect. The note, where there is one, goes to the log when the value is not the default.
    Ignored(&'static str),
}

impl Key {
    /// A supported key that must be written.
    pub const fn new(name: &'static str, kind: Kind) -> Key {
        let (default, status) = (Default::Required, Status::Supported);
        Key { name, aliases: &[], kind, default, unit: "", doc: "", status }
    }

    /// Other names for it.
    pub const fn aliases(mut self, aliases: &'static [&'static str]) -> Key {
        self.aliases = aliases;
        self
    }

    /// The default, as JSON text.
    pub const fn default(mut self, json: &'static str) -> Key {
        self.default = Default::Json(json);
        self
    }

    /// The key may be absent and then stays so.
    pub const fn optional(mut self) -> Key {
        self.default = Default::Absent;
        self
    }

    /// The key is an object that may be absent and then consists of defaults.
    pub const fn defaults_inside(mut self) -> Key {
        self.default = Default::Section;
        self
    }

    /// The unit of the number.
    pub const fn unit(mut self, unit: &'static str) -> Key {
        self.unit = unit;
        self
    }

    /// One or two sentences.
    pub const fn doc(mut self, doc: &'static str) -> Key {
        self.doc = doc;
        self
    }

    /// DeePMD-kit has it, we do not; `advice` may be empty.
    pub const fn not_yet(mut self, advice: &'static str) -> Key {
        self.status = Status::NotYet(advice);
        self
    }

    /// Accepted without effect; `note` may be empty.
    pub const fn ignored(mut self, note: &'static str) -> Key {
        self.status = Status::Ignored(note);
        self
    }

    /// True for the name and for every alias.
    pub fn is_called(&self, name: &str) -> bool {
        self.name == name || self.aliases.contains(&name)
    }

    /// The default as a value, where it is one.
    pub fn default_value(&self) -> Option<Value> {
        let Default::Json(text) = self.default else { return None };
        match serde_json::from_str(text) {
            Ok(value) => Some(value),
            Err(e) => panic!("the default of the key {} is not JSON: {e}", self.name),
        }
    }
}

/// The type of a value.
#[derive(Debug, Clone, Copy)]
pub enum Kind {
    Null,
    Bool,
    /// Smallest and largest allowed integer.
    Int(i128, i128),
    Float(Range),
    Text,
    /// One of these strings.
    Choice(Choice),
    /// A string with a grammar of its own.
    Pattern(Pattern),
    List(&'static Kind),
    Object(&'static Table),
    /// The first that fits.
    OneOf(&'static [Kind]),
    /// Anything at all.
    Any,
}

/// Some strings, and those that only DeePMD-kit understands.
#[derive(Debug, Clone, Copy)]
pub struct Choice {
    pub known: &'static [&'static str],
    pub not_yet: &'static [&'static str],
}

/// A string with a grammar of its own.
#[derive(Clone, Copy)]
pub struct Pattern {
    /// The grammar in words, for messages: `"auto" or "auto:RATIO"`.
    pub wanted: &'static str,
    /// Says what is wrong with a string. The place is put in front by the caller.
    pub check: fn(&str) -> Result<()>,
}

impl fmt::Debug for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pattern({})", self.wanted)
    }
}

/// An interval of numbers.
#[derive(Debug, Clone, Copy)]
pub struct Range {
    pub min: f64,
    /// False where `min` itself is not allowed.
    pub min_allowed: bool,
    pub max: f64,
    /// False where `max` itself is not allowed.
    pub max_allowed: bool,
}

impl Range {
    /// True for a number inside.
    pub fn contains(&self, x: f64) -> bool {
        (x > self.min || (self.min_allowed && x == self.min))
            && (x < self.max || (self.max_allowed && x == self.max))
    }
}

impl Kind {
    /// Any number.
    pub const NUMBER: Kind = Kind::float(f64::NEG_INFINITY, true, f64::INFINITY, true);
    /// A number above zero.
    pub const POSITIVE: Kind = Kind::float(0.0, false, f64::INFINITY, true);
    /// A number of zero or more.
    pub const NOT_NEGATIVE: Kind = Kind::float(0.0, true, f64::INFINITY, true);
    /// An integer of zero or more.
    pub const COUNT: Kind = Kind::Int(0, i64::MAX as i128);
    /// An integer of one or more.
    pub const AT_LEAST_ONE: Kind = Kind::Int(1, i64::MAX as i128);
    /// A seed, or null for none.
    pub const SEED: Kind = Kind::OneOf(&[Kind::Int(0, u64::MAX as i128), Kind::Null]);

    /// A number between two ends, each of which may be allowed or not.
    pub const fn float(min: f64, min_allowed: bool, max: f64, max_allowed: bool) -> Kind {
        Kind::Float(Range { min, min_allowed, max, max_allowed })
    }

    /// One of these strings.
    pub const fn choice(known: &'static [&'static str]) -> Kind {
        Kind::Choice(Choice { known, not_yet: &[] })
    }

    /// What is wanted, in words: "an integer of at least 1".
    pub fn wanted(&self) -> String {
        match self {
            Kind::Null => "null".into(),
            Kind::Bool => "true or false".into(),
            Kind::Int(min, max) => format!("an integer{}", int_range(*min, *max)),
            Kind::Float(range) => format!("a number{range}"),
            Kind::Text => "a string".into(),
            Kind::Choice(choice) => one_of(choice.known),
            Kind::Pattern(pattern) => pattern.wanted.into(),
            Kind::List(item) => format!("a list of {}", item.wanted_many()),
            Kind::Object(_) => "an object".into(),
            Kind::OneOf(kinds) => or_list(&kinds.iter().map(Kind::wanted).collect::<Vec<_>>()),
            Kind::Any => "anything".into(),
        }
    }

    fn wanted_many(&self) -> String {
        match self {
            Kind::Int(min, max) => format!("integers{}", int_range(*min, *max)),
            Kind::Float(range) => format!("numbers{range}"),
            Kind::Text => "strings".into(),
            Kind::Bool => "true and false".into(),
            Kind::List(item) => format!("lists of {}", item.wanted_many()),
            Kind::Object(_) => "objects".into(),
            Kind::OneOf(kinds) => or_list(&kinds.iter().map(Kind::wanted_many).collect::<Vec<_>>()),
            Kind::Any => "anything".into(),
            other => other.wanted(),
        }
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let low = if self.min_allowed { "of at least" } else { "above" };
        let high = if self.max_allowed { "at most" } else { "below" };
        match (self.min.is_finite(), self.max.is_finite()) {
            (false, false) => Ok(()),
            (true, false) => write!(f, " {low} {}", self.min),
            (false, true) => write!(f, " {high} {}", self.max),
            (true, true) => write!(f, " {low} {} and {high} {}", self.min, self.max),
        }
    }
}

fn int_range(min: i128, max: i128) -> String {
    match (min > i64::MIN as i128, max < i64::MAX as i128) {
        (false, false) => String::new(),
        (true, false) => format!(" of at least {min}"),
        (false, true) => format!(" of at most {max}"),
        (true, true) => format!(" from {min} to {max}"),
    }
}

/// `one of "a", "b", "c"`.
pub fn one_of(names: &[&str]) -> String {
    let quoted: Vec<String> = names.iter().map(|n| format!("\"{n}\"")).collect();
    if quoted.len() == 1 { quoted[0].clone() } else { format!("one of {}", quoted.join(", ")) }
}

/// `a, b or c`.
fn or_list(items: &[String]) -> String {
    match items {
        [] => String::new(),
        [one] => one.clone(),
        [head @ .., last] => format!("{} or {last}", head.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_described_in_words() {
        assert_eq!(Kind::POSITIVE.wanted(), "a number above 0");
        assert_eq!(Kind::List(&Kind::AT_LEAST_ONE).wanted(), "a list of integers of at least 1");
        assert_eq!(Kind::SEED.wanted(), "an integer of at least 0 or null");
        assert_eq!(Kind::float(0.0, false, 1.0, true).wanted(), "a number above 0 and at most 1");
        assert_eq!(Kind::choice(&["a", "b"]).wanted(), "one of \"a\", \"b\"");
        assert_eq!(
            Kind::List(&Kind::List(&Kind::COUNT)).wanted(),
            "a list of lists of integers of at least 0"
        );
    }

    #[test]
    fn a_range_knows_whether_its_ends_belong_to_it() {
        let Kind::Float(range) = Kind::float(0.0, false, 1.0, true) else { panic!("a float has a range") };
        assert!(
            !range.contains(0.0) && range.contains(1e-300) && range.contains(1.0) && !range.contains(1.1)
        );
    }
}
