//! `.yaml` files: the tree as text, each array as a map with its type and its numbers in nested lists.
//!
//! Numbers keep every bit: they are written with as many digits as it takes to read the same number back, and
//! float32 numbers as the float64 numbers that they are.

use crate::error::{Error, IoContext, Result};
use crate::export::atomic;
use crate::export::tree::{Array, ArrayData, Map, Node};
use crate::{bail, err};
use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use std::io::Write;
use std::path::Path;

/// Writes a tree as a `.yaml` file: complete or absent.
pub fn write(path: &Path, tree: &Node) -> Result<()> {
    atomic::write(path, |out| {
        let mut text = String::new();
        write_node(&mut text, tree, 0);
        out.write_all(text.as_bytes()).io("write", path)
    })
}

/// The tree of a `.yaml` file, from its content.
pub fn parse(bytes: &[u8]) -> Result<Node> {
    let text = std::str::from_utf8(bytes).map_err(|e| {
        err!("not a text file ({e})").help("an HDF5 model must be named .dp; a .yaml model is text in UTF-8")
    })?;
    let parsed =
        std::panic::catch_unwind(|| serde_saphyr::from_str_with_options::<Node>(text, options(text)));
    let tree = match parsed {
        Ok(result) => result.map_err(|e| err!("not a YAML model: {e}")),
        Err(_) => Err(err!("not a YAML model: the parser gave up")),
    };
    let tree = tree.map_err(|e| e.help("the file is damaged, incomplete, or not a model"))?;
    if !matches!(tree, Node::Map(_)) {
        bail!("not a YAML model: found no map at the top level");
    }
    restore_arrays(tree)
}

/// Limits of the parser: no value takes less than a byte of text, so a model never reaches them.
fn options(text: &str) -> serde_saphyr::Options {
    let many = text.len().saturating_mul(2).max(1_000_000);
    serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_events: many,
            max_nodes: many,
            max_total_scalar_bytes: many,
        },
        with_snippet: false,
        strict_booleans: true,
        non_finite_float_policy: serde_saphyr::NonFiniteFloatPolicy::PassThrough,
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NodeVisitor)
    }
}

struct NodeVisitor;

impl<'de> Visitor<'de> for NodeVisitor {
    type Value = Node;

    fn expecting(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str("a value of a model file")
    }

    fn visit_unit<E>(self) -> Result<Node, E> {
        Ok(Node::Null)
    }

    fn visit_none<E>(self) -> Result<Node, E> {
        Ok(Node::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Node, D::Error> {
        Node::deserialize(deserializer)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Node, E> {
        Ok(Node::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Node, E> {
        Ok(Node::Int(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Node, E> {
        Ok(i64::try_from(value).map_or(Node::Float(value as f64), Node::Int))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Node, E> {
        Ok(Node::Float(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Node, E> {
        Ok(Node::Str(value.to_string()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Node, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element()? {
            items.push(item);
        }
        Ok(Node::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Node, A::Error> {
        let mut pairs = Vec::new();
        while let Some(pair) = map.next_entry::<String, Node>()? {
            pairs.push(pair);
        }
        Ok(Node::Map(pairs.into_iter().collect()))
    }
}

/// Turns the maps that stand for arrays into arrays.
fn restore_arrays(node: Node) -> Result<Node> {
    Ok(match node {
        Node::List(items) => Node::List(items.into_iter().map(restore_arrays).collect::<Result<_>>()?),
        Node::Map(map) if map.get("@is_variable") == Some(&Node::Bool(true)) => Node::Array(to_array(&map)?),
        Node::Map(map) => {
            let pairs = map.into_iter().map(|(key, value)| match restore_arrays(value) {
                Ok(value) => Ok((key, value)),
                Err(e) => Err(e.at(key)),
            });
            Node::Map(pairs.collect::<Result<Map>>()?)
        }
        other => other,
    })
}

fn to_array(map: &Map) -> Result<Array> {
    let dtype = match map.get("dtype") {
        Some(Node::Str(dtype)) => dtype.as_str(),
        _ => bail!("an array without \"dtype\""),
    };
    let Some(value) = map.get("value") else { bail!("an array without \"value\"") };
    let shape = shape_of(value);
    let data = match dtype {
        // Through float64: float32 numbers are written with the digits of float64.
        "float32" => ArrayData::F32(flatten(value, &shape, |n| number(n).map(|x| x as f32))?),
        "float64" => ArrayData::F64(flatten(value, &shape, number)?),
        "int32" => ArrayData::I32(flatten(value, &shape, |n| integer(n).and_then(|i| i.try_into().ok()))?),
        "int64" => ArrayData::I64(flatten(value, &shape, integer)?),
        other => bail!("found an array of type {other}, wanted float32, float64, int32 or int64"),
    };
    Ok(Array { shape, data })
}

/// The shape of nested lists, judged by their first entries.
fn shape_of(mut node: &Node) -> Vec<usize> {
    let mut shape = Vec::new();
    while let Node::List(items) = node {
        shape.push(items.len());
        match items.first() {
            Some(first) => node = first,
            None => break,
        }
    }
    shape
}

fn flatten<T>(value: &Node, shape: &[usize], read: impl Fn(&Node) -> Option<T> + Copy) -> Result<Vec<T>> {
    fn walk<T>(
        out: &mut Vec<T>,
        node: &Node,
        shape: &[usize],
        read: impl Fn(&Node) -> Option<T> + Copy,
    ) -> Option<()> {
        match (shape.split_first(), node) {
            (None, leaf) => out.push(read(leaf)?),
            (Some((&n, rest)), Node::List(items)) if items.len() == n => {
                for item in items {
                    walk(out, item, rest, read)?;
                }
            }
            _ => return None,
        }
        Some(())
    }
    let mut out = Vec::new();
    match walk(&mut out, value, shape, read) {
        Some(()) => Ok(out),
        None => Err(uneven(shape)),
    }
}

fn uneven(shape: &[usize]) -> Error {
    err!(
        "an array that starts with the shape {shape:?} has a row of another length or an entry of another type"
    )
}

fn number(node: &Node) -> Option<f64> {
    match node {
        Node::Float(x) => Some(*x),
        Node::Int(i) => Some(*i as f64),
        _ => None,
    }
}

fn integer(node: &Node) -> Option<i64> {
    match node {
        Node::Int(i) => Some(*i),
        _ => None,
    }
}

/// Writes a node after its key. Maps and lists of maps go on lines of their own, all else stays on the line.
fn write_node(out: &mut String, node: &Node, indent: usize) {
    match node {
        Node::Map(map) if !map.is_empty() => {
            for (key, value) in map.iter() {
                write_entry(out, &format!("{}:", quote(key)), value, indent);
            }
        }
        Node::Array(array) => {
            let pad = " ".repeat(indent);
            let dtype = array.data.dtype();
            out.push_str(&format!("{pad}\"@class\": \"np.ndarray\"\n{pad}\"@is_variable\": true\n"));
            out.push_str(&format!("{pad}\"@version\": 1\n{pad}\"dtype\": \"{dtype}\"\n{pad}\"value\": "));
            write_rows(out, array, &array.shape, 0);
            out.push('\n');
        }
        Node::List(items) if items.iter().any(is_block) => {
            for item in items {
                write_entry(out, "-", item, indent);
            }
        }
        flow => {
            write_flow(out, flow);
            out.push('\n');
        }
    }
}

fn write_entry(out: &mut String, lead: &str, value: &Node, indent: usize) {
    out.push_str(&" ".repeat(indent));
    out.push_str(lead);
    if is_block(value) {
        out.push('\n');
        write_node(out, value, indent + 2);
    } else {
        out.push(' ');
        write_flow(out, value);
        out.push('\n');
    }
}

/// Whether a node takes lines of its own.
fn is_block(node: &Node) -> bool {
    match node {
        Node::Map(map) => !map.is_empty(),
        Node::Array(_) => true,
        Node::List(items) => items.iter().any(is_block),
        _ => false,
    }
}

fn write_flow(out: &mut String, node: &Node) {
    match node {
        Node::Null => out.push_str("null"),
        Node::Bool(b) => out.push_str(if *b { "true" } else { "false" }),
        Node::Int(i) => out.push_str(&i.to_string()),
        Node::Float(x) => out.push_str(&float(*x)),
        Node::Str(s) => out.push_str(&quote(s)),
        Node::List(items) => {
            out.push('[');
            for (i, item) in items.iter().enumerate() {
                out.push_str(if i > 0 { ", " } else { "" });
                write_flow(out, item);
            }
            out.push(']');
        }
        Node::Map(_) => out.push_str("{}"),
        Node::Array(_) => unreachable!("arrays take lines of their own"),
    }
}

/// Writes the numbers of an array from `start` on as nested lists; gives the index after the last one.
fn write_rows(out: &mut String, array: &Array, shape: &[usize], start: usize) -> usize {
    let Some((&n, rest)) = shape.split_first() else {
        match &array.data {
            ArrayData::F32(values) => out.push_str(&float(f64::from(values[start]))),
            ArrayData::F64(values) => out.push_str(&float(values[start])),
            ArrayData::I32(values) => out.push_str(&values[start].to_string()),
            ArrayData::I64(values) => out.push_str(&values[start].to_string()),
        }
        return start + 1;
    };
    let mut next = start;
    out.push('[');
    for i in 0..n {
        out.push_str(if i > 0 { ", " } else { "" });
        next = write_rows(out, array, rest, next);
    }
    out.push(']');
    next
}

/// A number that YAML 1.1 and 1.2 both read as a float: a point in the mantissa, a sign in the exponent.
fn float(x: f64) -> String {
    if x.is_nan() {
        return ".nan".to_string();
    }
    if x.is_infinite() {
        return if x > 0.0 { ".inf" } else { "-.inf" }.to_string();
    }
    let text = format!("{x:?}");
    let Some((mantissa, exponent)) = text.split_once('e') else { return text };
    let point = if mantissa.contains('.') { "" } else { ".0" };
    let sign = if exponent.starts_with('-') { "" } else { "+" };
    format!("{mantissa}{point}e{sign}{exponent}")
}

/// A string in double quotes, escaped as in JSON, which YAML reads.
fn quote(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::deepmd::{tests::Random, tests::sample, to_tree};
    use crate::export::tree::VARIABLES;
    use crate::model::dp::options::Precision;

    fn text_of(tree: &Node) -> String {
        let mut text = String::new();
        write_node(&mut text, tree, 0);
        text
    }

    #[test]
    fn a_tree_comes_back_bit_for_bit() {
        let variables = Map::new()
            .with("f32", Array::new(vec![2, 2], ArrayData::F32(vec![0.1, -0.0, f32::MIN_POSITIVE, f32::MAX])))
            .with("f64", Array::new(vec![1, 3], ArrayData::F64(vec![0.1, 5e-324, f64::MAX])))
            .with("inf", Array::new(vec![2], ArrayData::F64(vec![f64::INFINITY, f64::NEG_INFINITY])))
            .with("i32", Array::new(vec![2], ArrayData::I32(vec![i32::MIN, 7])))
            .with("i64", Array::new(vec![], ArrayData::I64(vec![i64::MAX])))
            .with("nothing", Node::Null)
            .with(
                "many",
                Node::List(vec![Array::new(vec![1], ArrayData::F64(vec![2.0])).into(), Node::Null]),
            );
        let words =
            ["NO", "null", "1", "1.5", "true", "~", "", " x ", "a: b", "quotes \" and \u{e5}\u{1F600}\n"];
        let tree: Node = Map::new()
            .with("words", words.to_vec())
            .with(
                "numbers",
                Node::List(vec![Node::Int(-3), Node::Float(1e-7), Node::Float(3.0), Node::Float(1e25)]),
            )
            .with("nested", Node::List(vec![vec![0usize, 1].into(), Node::List(vec![])]))
            .with(
                "maps",
                Node::List(vec![Map::new().with("a", 1usize).into(), Map::new().into(), Node::Null]),
            )
            .with(VARIABLES, variables)
            .with("empty", Map::new())
            .into();
        assert_eq!(parse(text_of(&tree).as_bytes()).unwrap(), tree);
    }

    #[test]
    fn floats_have_a_point_and_a_signed_exponent() {
        for (x, text) in
            [(1e-5, "1.0e-5"), (1e20, "1.0e+20"), (-2.5e-9, "-2.5e-9"), (3.0, "3.0"), (-0.0, "-0.0")]
        {
            assert_eq!(float(x), text);
        }
    }

    #[test]
    fn anchors_and_block_lists_are_read() {
        let text = "a: &id001\n- O\n- H\nb: *id001\n'@variables':\n  w:\n    '@class': np.ndarray\n    '@is_variable': \
                    true\n    dtype: float32\n    value:\n    - - 0.5\n      - 1.0e-05\n";
        let Node::Map(tree) = parse(text.as_bytes()).unwrap() else { panic!("wanted a map") };
        assert_eq!(tree.get("a"), tree.get("b"));
        let array = Array::new(vec![1, 2], ArrayData::F32(vec![0.5, 1e-5]));
        assert_eq!(tree.get(VARIABLES), Some(&Map::new().with("w", array).into()));
    }

    #[test]
    fn files_that_are_no_models_are_refused_in_words() {
        let message = |bytes: &[u8]| parse(bytes).unwrap_err().message().to_string();
        assert!(message(b"\x89HDF\r\n\x1a\n").starts_with("not a text file"));
        assert!(message(b"a: [1, 2").starts_with("not a YAML model: "));
        assert_eq!(message(b"- 1\n"), "not a YAML model: found no map at the top level");
        assert_eq!(message(b""), "not a YAML model: found no map at the top level");
        assert_eq!(
            message(b"x: {'@is_variable': true, dtype: float16, value: [1.0]}"),
            "x: found an array of type float16, wanted float32, float64, int32 or int64"
        );
        assert!(
            message(b"x: {'@is_variable': true, dtype: int32, value: [[1, 2], [3]]}")
                .contains("another length")
        );
        assert!(
            message(b"x: {'@is_variable': true, dtype: int32, value: [1, 9999999999]}")
                .contains("another type")
        );
    }

    #[test]
    fn an_alias_bomb_is_refused() {
        let mut text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_string();
        for i in 1..12 {
            let row = vec![format!("*a{}", i - 1); 10].join(", ");
            text.push_str(&format!("a{i}: &a{i} [{row}]\n"));
        }
        assert!(parse(text.as_bytes()).is_err());
        assert!(parse("[".repeat(100_000).as_bytes()).is_err());
    }

    #[test]
    fn damaged_files_never_panic() {
        let text = text_of(&to_tree(&sample(true, Precision::Float64))).into_bytes();
        let mut random = Random(1);
        for _ in 0..60 {
            let cut = random.below(text.len());
            let _ = parse(&text[..cut]);
            let mut bytes = text.clone();
            let at = random.below(bytes.len());
            bytes[at] ^= 1 << random.below(7);
            let _ = parse(&bytes);
        }
    }
}
