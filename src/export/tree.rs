//! The tree inside a model file: JSON values plus arrays.

use crate::error::Result;
use crate::{bail, err};
use std::fmt;

/// One value of a model file.
#[derive(Debug, Clone, PartialEq)]
pub enum Node {
    Null,
    Bool(bool),
    Int(i64),
    Float(f64),
    Str(String),
    List(Vec<Node>),
    Map(Map),
    /// Arrays stand only below a key [`VARIABLES`].
    Array(Array),
}

/// Keys and values in the order in which they were written.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Map(Vec<(String, Node)>);

/// A dense array, row by row.
#[derive(Debug, Clone, PartialEq)]
pub struct Array {
    /// Empty for a scalar.
    pub shape: Vec<usize>,
    pub data: ArrayData,
}

/// The numbers of an [`Array`] in the type that the file stores.
#[derive(Debug, Clone, PartialEq)]
pub enum ArrayData {
    F32(Vec<f32>),
    F64(Vec<f64>),
    I32(Vec<i32>),
    I64(Vec<i64>),
}

/// The key below which a tree holds arrays.
pub const VARIABLES: &str = "@variables";

impl Map {
    pub fn new() -> Self {
        Map(Vec::new())
    }

    /// Appends a key; the tree is written in this order.
    pub fn with(mut self, key: &str, value: impl Into<Node>) -> Self {
        self.push(key.to_string(), value.into());
        self
    }

    /// Appends a key, or replaces the value of one that is there.
    pub fn push(&mut self, key: String, value: Node) {
        match self.0.iter_mut().find(|(known, _)| *known == key) {
            Some((_, old)) => *old = value,
            None => self.0.push((key, value)),
        }
    }

    pub fn get(&self, key: &str) -> Option<&Node> {
        self.0.iter().find(|(known, _)| known == key).map(|(_, value)| value)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &Node)> {
        self.0.iter().map(|(key, value)| (key.as_str(), value))
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl FromIterator<(String, Node)> for Map {
    fn from_iter<T: IntoIterator<Item = (String, Node)>>(pairs: T) -> Self {
        Map(pairs.into_iter().collect())
    }
}

impl IntoIterator for Map {
    type Item = (String, Node);
    type IntoIter = std::vec::IntoIter<(String, Node)>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl Array {
    /// The product of `shape` must be the length of `data`.
    pub fn new(shape: Vec<usize>, data: ArrayData) -> Self {
        let len: usize = shape.iter().product();
        assert_eq!(len, data.len(), "an array of shape {shape:?} cannot hold {} numbers", data.len());
        Array { shape, data }
    }

    /// The numbers as float64; exact for every type but large int64.
    pub fn to_f64(&self) -> Vec<f64> {
        match &self.data {
            ArrayData::F32(values) => values.iter().map(|&v| f64::from(v)).collect(),
            ArrayData::F64(values) => values.clone(),
            ArrayData::I32(values) => values.iter().map(|&v| f64::from(v)).collect(),
            ArrayData::I64(values) => values.iter().map(|&v| v as f64).collect(),
        }
    }
}

impl ArrayData {
    pub fn len(&self) -> usize {
        match self {
            ArrayData::F32(values) => values.len(),
            ArrayData::F64(values) => values.len(),
            ArrayData::I32(values) => values.len(),
            ArrayData::I64(values) => values.len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// NumPy's name of the type.
    pub fn dtype(&self) -> &'static str {
        match self {
            ArrayData::F32(_) => "float32",
            ArrayData::F64(_) => "float64",
            ArrayData::I32(_) => "int32",
            ArrayData::I64(_) => "int64",
        }
    }
}

impl Node {
    /// A value of JSON. Integers beyond 64 bits become floats, as there is nothing wider.
    pub fn from_json(value: &serde_json::Value) -> Node {
        use serde_json::Value;
        match value {
            Value::Null => Node::Null,
            Value::Bool(b) => Node::Bool(*b),
            Value::Number(n) => match n.as_i64() {
                Some(i) => Node::Int(i),
                None => Node::Float(n.as_f64().unwrap_or(f64::NAN)),
            },
            Value::String(s) => Node::Str(s.clone()),
            Value::Array(items) => Node::List(items.iter().map(Node::from_json).collect()),
            Value::Object(map) => {
                Node::Map(map.iter().map(|(key, value)| (key.clone(), Node::from_json(value))).collect())
            }
        }
    }

    /// The tree as JSON. Fails on an array and on a number that JSON cannot write.
    pub fn to_json(&self) -> Result<serde_json::Value> {
        use serde_json::Value;
        Ok(match self {
            Node::Null => Value::Null,
            Node::Bool(b) => Value::Bool(*b),
            Node::Int(i) => Value::from(*i),
            Node::Float(x) => match serde_json::Number::from_f64(*x) {
                Some(number) => Value::Number(number),
                None => bail!("{x} cannot be written as JSON"),
            },
            Node::Str(s) => Value::String(s.clone()),
            Node::List(items) => Value::Array(items.iter().map(Node::to_json).collect::<Result<_>>()?),
            Node::Map(map) => {
                let pairs = map.iter().map(|(key, value)| {
                    value.to_json().map(|value| (key.to_string(), value)).map_err(|e| e.at(key))
                });
                Value::Object(pairs.collect::<Result<_>>()?)
            }
            Node::Array(_) => bail!("an array stands outside \"{VARIABLES}\""),
        })
    }

    /// What stands here, in a few words for an error message.
    fn describe(&self) -> String {
        match self {
            Node::Null => "null".to_string(),
            Node::Bool(b) => format!("{b}"),
            Node::Int(i) => format!("number {i}"),
            Node::Float(x) => format!("number {x}"),
            Node::Str(s) if s.len() > 40 => "a long string".to_string(),
            Node::Str(s) => format!("string {s:?}"),
            Node::List(items) => format!("a list of {}", items.len()),
            Node::Map(_) => "a map".to_string(),
            Node::Array(array) => format!("a {} array of shape {:?}", array.data.dtype(), array.shape),
        }
    }
}

impl From<bool> for Node {
    fn from(value: bool) -> Self {
        Node::Bool(value)
    }
}

impl From<f64> for Node {
    fn from(value: f64) -> Self {
        Node::Float(value)
    }
}

impl From<i64> for Node {
    fn from(value: i64) -> Self {
        Node::Int(value)
    }
}

impl From<usize> for Node {
    fn from(value: usize) -> Self {
        Node::Int(i64::try_from(value).expect("a count fits into 63 bits"))
    }
}

impl From<&str> for Node {
    fn from(value: &str) -> Self {
        Node::Str(value.to_string())
    }
}

impl From<String> for Node {
    fn from(value: String) -> Self {
        Node::Str(value)
    }
}

impl From<Map> for Node {
    fn from(value: Map) -> Self {
        Node::Map(value)
    }
}

impl From<Array> for Node {
    fn from(value: Array) -> Self {
        Node::Array(value)
    }
}

impl<T: Into<Node>> From<Vec<T>> for Node {
    fn from(values: Vec<T>) -> Self {
        Node::List(values.into_iter().map(Into::into).collect())
    }
}

impl<T: Into<Node>> From<Option<T>> for Node {
    fn from(value: Option<T>) -> Self {
        value.map_or(Node::Null, Into::into)
    }
}

/// A node together with the way to it, so that errors can say where they are.
#[derive(Debug, Clone)]
pub struct Place<'a> {
    pub node: &'a Node,
    path: String,
}

impl<'a> Place<'a> {
    pub fn root(node: &'a Node) -> Self {
        Place { node, path: String::new() }
    }

    /// The value of a key that must be there.
    pub fn get(&self, key: &str) -> Result<Place<'a>> {
        match self.find(key)? {
            Some(place) => Ok(place),
            None => Err(err!("{self}: \"{key}\" is missing")),
        }
    }

    /// The value of a key, if it is there and not null.
    pub fn find(&self, key: &str) -> Result<Option<Place<'a>>> {
        let Node::Map(map) = self.node else { return Err(self.wanted("a map")) };
        let found = map.get(key).filter(|node| **node != Node::Null);
        Ok(found.map(|node| Place { node, path: join(&self.path, key) }))
    }

    /// The entries of a list.
    pub fn items(&self) -> Result<Vec<Place<'a>>> {
        let Node::List(items) = self.node else { return Err(self.wanted("a list")) };
        let place = |(i, node)| Place { node, path: format!("{}[{i}]", self.path) };
        Ok(items.iter().enumerate().map(place).collect())
    }

    pub fn bool(&self) -> Result<bool> {
        match self.node {
            Node::Bool(b) => Ok(*b),
            _ => Err(self.wanted("true or false")),
        }
    }

    /// An integer or a float.
    pub fn f64(&self) -> Result<f64> {
        match self.node {
            Node::Int(i) => Ok(*i as f64),
            Node::Float(x) => Ok(*x),
            Node::Array(array) if array.data.len() == 1 => Ok(array.to_f64()[0]),
            _ => Err(self.wanted("a number")),
        }
    }

    pub fn usize(&self) -> Result<usize> {
        match self.node {
            Node::Int(i) => usize::try_from(*i).map_err(|_| self.wanted("a number that is not negative")),
            _ => Err(self.wanted("an integer")),
        }
    }

    pub fn str(&self) -> Result<&'a str> {
        match self.node {
            Node::Str(s) => Ok(s),
            _ => Err(self.wanted("a string")),
        }
    }

    pub fn array(&self) -> Result<&'a Array> {
        match self.node {
            Node::Array(array) => Ok(array),
            _ => Err(self.wanted("an array")),
        }
    }

    /// Reads each entry of a list.
    pub fn list<T>(&self, read: impl Fn(&Place<'a>) -> Result<T>) -> Result<Vec<T>> {
        self.items()?.iter().map(read).collect()
    }

    /// The error that this place holds something else than `what`.
    pub fn wanted(&self, what: &str) -> crate::error::Error {
        err!("{self}: found {}, wanted {what}", self.node.describe())
    }
}

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.path.is_empty() { "top level" } else { &self.path })
    }
}

fn join(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_string() } else { format!("{path}.{key}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_say_the_path_what_was_found_and_what_was_wanted() {
        let tree: Node = Map::new()
            .with(
                "model",
                Map::new().with("rcut", "6").with("sel", vec![46usize, 92]).with("spin", Node::Null),
            )
            .into();
        let model = Place::root(&tree).get("model").unwrap();
        let message = |e: crate::error::Error| e.message().to_string();
        assert_eq!(
            message(model.get("rcut").unwrap().f64().unwrap_err()),
            "model.rcut: found string \"6\", wanted a number"
        );
        assert_eq!(message(model.get("neuron").unwrap_err()), "model: \"neuron\" is missing");
        assert_eq!(message(model.get("spin").unwrap_err()), "model: \"spin\" is missing");
        let sel = model.get("sel").unwrap();
        assert_eq!(
            message(sel.items().unwrap()[1].str().unwrap_err()),
            "model.sel[1]: found number 92, wanted a string"
        );
        assert_eq!(sel.list(Place::usize).unwrap(), [46, 92]);
        assert_eq!(message(sel.get("x").unwrap_err()), "model.sel: found a list of 2, wanted a map");
    }

    #[test]
    fn json_and_back_is_the_same_tree() {
        let text = r#"{"b":[1,-2.5,null,true,"x"],"a":{"z":1e-300,"y":[]}}"#;
        let value: serde_json::Value = serde_json::from_str(text).unwrap();
        let tree = Node::from_json(&value);
        assert_eq!(tree.to_json().unwrap(), value);
        assert_eq!(serde_json::to_string(&tree.to_json().unwrap()).unwrap(), text);
    }

    #[test]
    fn json_refuses_numbers_that_it_cannot_write() {
        let tree: Node = Map::new().with("rcut", f64::NAN).into();
        assert_eq!(tree.to_json().unwrap_err().message(), "rcut: NaN cannot be written as JSON");
    }
}
