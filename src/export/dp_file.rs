//! `.dp` files: HDF5 with one dataset for each array, and the tree as JSON in the root attribute `json`.
//!
//! In the JSON an array is replaced by the path of its dataset: "/variable_0000", "/variable_0001", ... in the
//! order of the tree. The attribute is a string of variable length, so the text lies in a heap of the file
//! and may be longer than the 64 KB that HDF5 allows inside an object header.

use crate::error::{Error, Result};
use crate::export::atomic;
use crate::export::tree::{Array, ArrayData, Map, Node, VARIABLES};
use crate::{bail, err};
use hdf5_reader::{Dataset, Datatype, Hdf5File, OpenOptions};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

const SIGNATURE: &[u8] = b"\x89HDF\r\n\x1a\n";

/// The arrays of a file may take this many times its size: room for compressed files, none for a bomb.
const LARGEST_RATIO: usize = 64;

/// The JSON says how the arrays make a model; that of the largest models has some megabytes.
const LONGEST_JSON: usize = 32 << 20;

/// Writes a tree as a `.dp` file: complete or absent.
pub fn write(path: &Path, tree: &Node) -> Result<()> {
    let builder = build(tree).map_err(|e| e.at(path.display()))?;
    atomic::write(path, |out| builder.finish_to(out).map_err(|e| err!("cannot write: {e}")))
}

/// Whether this is the content of an HDF5 file.
pub fn is_hdf5(bytes: &[u8]) -> bool {
    bytes.starts_with(SIGNATURE)
}

/// The tree of a `.dp` file, from its content.
pub fn parse(bytes: Vec<u8>) -> Result<Node> {
    if !is_hdf5(&bytes) {
        return Err(err!("not an HDF5 file").help("a .dp model is HDF5; a text model must be named .yaml"));
    }
    // The reader checks what it reads; should it still meet a case that it does not foresee, the user gets an
    // error as for any other damaged file.
    match catch_unwind(AssertUnwindSafe(|| parse_hdf5(bytes))) {
        Ok(result) => result,
        Err(_) => Err(damaged("the HDF5 structure contradicts itself")),
    }
}

fn parse_hdf5(bytes: Vec<u8>) -> Result<Node> {
    let budget = bytes.len().saturating_mul(LARGEST_RATIO);
    let options = OpenOptions::default().with_chunk_cache_bytes(0).with_max_read_bytes(budget);
    let file = Hdf5File::from_vec_with_options(bytes, options).map_err(damaged)?;
    let root = file.root_group().map_err(damaged)?;
    let attribute = root.attribute("json").map_err(|e| {
        err!("HDF5, but without a root attribute \"json\" that can be read ({e})")
            .help("this is no DeePMD-kit model, or it is damaged")
    })?;
    let text = attribute.read_string().map_err(damaged)?;
    if text.len() > LONGEST_JSON {
        bail!(
            "attribute \"json\": {} MB, wanted at most {} MB: this is no model",
            text.len() >> 20,
            LONGEST_JSON >> 20
        );
    }
    let json: serde_json::Value =
        serde_json::from_str(&text).map_err(|e| damaged(format!("attribute \"json\": {e}")))?;
    Loader { file: &file, budget }.load(&json, false)
}

fn damaged(cause: impl std::fmt::Display) -> Error {
    err!("damaged or incomplete: {cause}").help("copy or write the file again")
}

/// Puts the arrays of a file into the tree of its JSON.
struct Loader<'a> {
    file: &'a Hdf5File,
    /// Bytes of arrays that may still be read.
    budget: usize,
}

impl Loader<'_> {
    fn load(&mut self, json: &serde_json::Value, in_variables: bool) -> Result<Node> {
        use serde_json::Value;
        Ok(match json {
            Value::Array(items) => {
                Node::List(items.iter().map(|v| self.load(v, in_variables)).collect::<Result<_>>()?)
            }
            Value::Object(map) => {
                let pairs = map.iter().map(|(key, value)| {
                    let value = self.load(value, in_variables || key == VARIABLES);
                    value.map(|value| (key.clone(), value)).map_err(|e| e.at(key))
                });
                Node::Map(pairs.collect::<Result<Map>>()?)
            }
            Value::String(path) if in_variables => Node::Array(self.array(path)?),
            other => Node::from_json(other),
        })
    }

    fn array(&mut self, path: &str) -> Result<Array> {
        let dataset = self.file.dataset(path).map_err(|e| damaged(format!("dataset \"{path}\": {e}")))?;
        let shape = dataset.shape().iter().map(|&n| usize::try_from(n)).collect::<Result<Vec<_>, _>>();
        let shape = shape.map_err(|_| damaged(format!("dataset \"{path}\" is too large")))?;
        let elements = shape.iter().try_fold(1usize, |len, &n| len.checked_mul(n));
        let bytes = elements.and_then(|n| n.checked_mul(8)).filter(|&n| n <= self.budget);
        let Some(bytes) = bytes else {
            return Err(damaged(format!(
                "dataset \"{path}\" of shape {shape:?} is larger than the file allows"
            )));
        };
        self.budget -= bytes;
        let data = read_data(&dataset).map_err(|e| e.at(format!("dataset \"{path}\"")))?;
        if elements != Some(data.len()) {
            return Err(damaged(format!(
                "dataset \"{path}\" of shape {shape:?} holds {} numbers",
                data.len()
            )));
        }
        Ok(Array { shape, data })
    }
}

fn read_data(dataset: &Dataset) -> Result<ArrayData> {
    fn values<T: hdf5_reader::H5Type>(dataset: &Dataset) -> Result<Vec<T>> {
        let array = dataset.read_array::<T>().map_err(damaged)?;
        let (values, _) = array.into_raw_vec_and_offset();
        Ok(values)
    }
    Ok(match dataset.dtype() {
        Datatype::FloatingPoint { size: 4, .. } => ArrayData::F32(values(dataset)?),
        Datatype::FloatingPoint { size: 8, .. } => ArrayData::F64(values(dataset)?),
        Datatype::FixedPoint { size: 4, signed: true, .. } => ArrayData::I32(values(dataset)?),
        Datatype::FixedPoint { size: 8, signed: true, .. } => ArrayData::I64(values(dataset)?),
        other => bail!("found numbers of type {other:?}, wanted float32, float64, int32 or int64"),
    })
}

fn build(tree: &Node) -> Result<hdf5_pure::FileBuilder> {
    let mut builder = hdf5_pure::FileBuilder::new();
    let mut count = 0;
    let json = store(tree, false, &mut builder, &mut count).to_json()?;
    builder.set_attr("json", hdf5_pure::AttrValue::VarLenString(json.to_string()));
    Ok(builder)
}

/// Moves the arrays of a tree into datasets and leaves their paths behind.
fn store(node: &Node, in_variables: bool, file: &mut hdf5_pure::FileBuilder, count: &mut usize) -> Node {
    match node {
        Node::List(items) => {
            Node::List(items.iter().map(|item| store(item, in_variables, file, count)).collect())
        }
        Node::Map(map) => {
            let pairs = map.iter().map(|(key, value)| {
                (key.to_string(), store(value, in_variables || key == VARIABLES, file, count))
            });
            Node::Map(pairs.collect())
        }
        Node::Array(array) => {
            assert!(in_variables, "arrays of a model tree stand below \"{VARIABLES}\"");
            store_array(array, file, count)
        }
        // A bare number among the variables would be taken for a path.
        Node::Float(x) if in_variables => {
            store_array(&Array::new(vec![], ArrayData::F64(vec![*x])), file, count)
        }
        Node::Int(i) if in_variables => {
            store_array(&Array::new(vec![], ArrayData::I64(vec![*i])), file, count)
        }
        other => other.clone(),
    }
}

fn store_array(array: &Array, file: &mut hdf5_pure::FileBuilder, count: &mut usize) -> Node {
    let name = format!("variable_{:04}", *count);
    *count += 1;
    let shape: Vec<u64> = array.shape.iter().map(|&n| n as u64).collect();
    let dataset = file.create_dataset(&name);
    match &array.data {
        ArrayData::F32(values) => dataset.with_f32_data(values),
        ArrayData::F64(values) => dataset.with_f64_data(values),
        ArrayData::I32(values) => dataset.with_i32_data(values),
        ArrayData::I64(values) => dataset.with_i64_data(values),
    };
    dataset.with_shape(&shape);
    Node::Str(format!("/{name}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::deepmd::{tests::sample, to_tree};
    use crate::model::dp::options::Precision;

    fn bytes_of(tree: &Node) -> Vec<u8> {
        let mut bytes = Vec::new();
        build(tree).unwrap().finish_to(&mut bytes).unwrap();
        bytes
    }

    #[test]
    fn a_tree_comes_back_bit_for_bit() {
        let variables = Map::new()
            .with("f32", Array::new(vec![2, 2], ArrayData::F32(vec![1.5, -0.0, f32::MIN_POSITIVE, f32::MAX])))
            .with("f64", Array::new(vec![1, 3], ArrayData::F64(vec![0.1, 5e-324, f64::INFINITY])))
            .with("i32", Array::new(vec![2], ArrayData::I32(vec![i32::MIN, 7])))
            .with("i64", Array::new(vec![], ArrayData::I64(vec![i64::MAX])))
            .with("nothing", Node::Null)
            .with(
                "many",
                Node::List(vec![Array::new(vec![1], ArrayData::F64(vec![2.0])).into(), Node::Null]),
            );
        let tree: Node = Map::new()
            .with("text", "quotes \" and \u{e5}\u{1F600}\n")
            .with(
                "numbers",
                Node::List(vec![Node::Int(-3), Node::Float(0.1), Node::Float(3.0), Node::Bool(true)]),
            )
            .with(VARIABLES, variables)
            .with("empty", Map::new())
            .into();
        assert_eq!(parse(bytes_of(&tree)).unwrap(), tree);
    }

    #[test]
    fn a_tree_of_a_megabyte_with_thousands_of_arrays_comes_back() {
        let item = |i: usize| {
            let array = Array::new(vec![1, 2], ArrayData::F64(vec![i as f64, 0.5]));
            Map::new().with("note", "x".repeat(200)).with(VARIABLES, Map::new().with("w", array))
        };
        let tree: Node = Map::new().with("nets", (0..5000).map(item).collect::<Vec<_>>()).into();
        assert_eq!(parse(bytes_of(&tree)).unwrap(), tree);
    }

    #[test]
    fn a_bare_number_among_the_variables_becomes_a_scalar_array() {
        let tree: Node = Map::new().with(VARIABLES, Map::new().with("min_nbor_dist", 0.875)).into();
        let scalar = Array::new(vec![], ArrayData::F64(vec![0.875]));
        let wanted: Node = Map::new().with(VARIABLES, Map::new().with("min_nbor_dist", scalar)).into();
        assert_eq!(parse(bytes_of(&tree)).unwrap(), wanted);
    }

    #[test]
    fn files_that_are_no_models_are_refused_in_words() {
        assert_eq!(parse(b"model: {}".to_vec()).unwrap_err().message(), "not an HDF5 file");
        assert_eq!(parse(Vec::new()).unwrap_err().message(), "not an HDF5 file");
        let mut other = hdf5_pure::FileBuilder::new();
        other.create_dataset("x").with_f64_data(&[1.0]);
        let error = parse(other.finish().unwrap()).unwrap_err();
        assert!(error.message().starts_with("HDF5, but without a root attribute \"json\""), "{error}");
        for (json, wanted) in [
            ("{\"model\": ", "damaged or incomplete: attribute \"json\": EOF"),
            (
                "{\"@variables\":{\"w\":\"/nowhere\"}}",
                "@variables: w: damaged or incomplete: dataset \"/nowhere\"",
            ),
        ] {
            let mut file = hdf5_pure::FileBuilder::new();
            file.set_attr("json", hdf5_pure::AttrValue::VarLenString(json.to_string()));
            let error = parse(file.finish().unwrap()).unwrap_err();
            assert!(error.message().starts_with(wanted), "{error}");
        }
    }

    #[test]
    fn damaged_files_never_panic_and_never_take_endless_memory() {
        let bytes = bytes_of(&to_tree(&sample(true, Precision::Float64)));
        // Without the guard of `parse`, so that a panic of the reader fails the test.
        let mut random = crate::export::deepmd::tests::Random(1);
        for _ in 0..1500 {
            let cut = random.below(bytes.len());
            assert!(parse_hdf5(bytes[..cut].to_vec()).is_err(), "a file cut at {cut} was read");
        }
        for _ in 0..4000 {
            let mut bytes = bytes.clone();
            for _ in 0..=random.below(4) {
                let at = random.below(bytes.len());
                bytes[at] ^= 1 << random.below(8);
            }
            // A flipped bit may well hit the numbers: then the file reads.
            let _ = parse_hdf5(bytes);
        }
    }
}
