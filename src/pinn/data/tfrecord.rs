//! PiNN's own format: `x.yml` says what is there, `x.tfr` is a row of records with one structure, or one batch, each.

use super::file::{ByteFile, Handle};
use super::sample::{Dipole, Keys, Sample};
use super::source::Source;
use super::tensor::{Dtype, Tensor};
use crate::config::check::whole_number;
use crate::config::value;
use crate::error::{Error, IoContext, Result};
use crate::export::atomic;
use crate::report::record::{
    Fields, HEAD_BYTES, TAIL_BYTES, Wire, payload, payload_length, put_bytes, put_record,
};
use crate::{bail, err};
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::Write;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// A data set of records.
pub struct Tfrecord {
    file: ByteFile,
    format: BTreeMap<String, Spec>,
    /// Offset and size of the data of each record.
    records: Vec<(u64, u64)>,
    /// The structures of each record, where a record is a batch.
    batches: Option<Vec<Range<usize>>>,
    keys: Keys,
}

/// Type and shape of one key; `None` is a dimension that varies.
#[derive(Debug, Clone, PartialEq)]
struct Spec {
    dtype: Dtype,
    shape: Vec<Option<usize>>,
}

/// The tensors of one record by key.
type Tensors = BTreeMap<String, Tensor>;

/// Keys that a sample is made of. Others, such as stored neighbour lists, are skipped.
const KNOWN: [&str; 13] = [
    "elems",
    "coord",
    "cell",
    "e_data",
    "f_data",
    "s_data",
    "q_data",
    "d_data",
    "e_weight",
    "f_weights",
    "d_weight",
    "oxidation",
    "ind_1",
];

impl Tfrecord {
    /// Opens `x.yml` and indexes `x.tfr` beside it.
    pub fn open(yml: &Path) -> Result<Tfrecord> {
        let (format, n_sample) = read_yml(yml)?;
        let file = ByteFile::new(&yml.with_extension("tfr"))?;
        let records = index(&file)?;
        if let Some(n) = n_sample.filter(|n| *n != records.len()) {
            return Err(err!(
                "{}: {} records, but {} says {n}",
                file.path().display(),
                records.len(),
                yml.display()
            )
            .help("the two files belong to different data sets, or one of them is cut off"));
        }
        let batched = format.contains_key("ind_1");
        let mut set = Tfrecord { file, format, records, batches: None, keys: Keys::default() };
        if set.records.is_empty() {
            bail!("{}: found no records", set.file.path().display());
        }
        set.keys = set.first_sample(batched)?.keys();
        if batched {
            set.batches = Some(set.count_structures()?);
        }
        Ok(set)
    }

    fn first_sample(&self, batched: bool) -> Result<Sample> {
        let samples = self.structures(0, batched)?;
        samples.into_iter().next().ok_or_else(|| self.at(0, err!("a batch of no structures")))
    }

    /// Reads every record once to see how many structures it holds.
    fn count_structures(&self) -> Result<Vec<Range<usize>>> {
        let mut ranges = Vec::new();
        let mut first = 0;
        for record in 0..self.records.len() {
            let tensors = self.tensors(record)?;
            let n = n_structures(&tensors).map_err(|e| self.at(record, e))?;
            ranges.push(first..first + n);
            first += n;
        }
        Ok(ranges)
    }

    /// Reads the structures of one record: one, or those of a batch.
    pub fn read_record(&self, record: usize) -> Result<Vec<Sample>> {
        let samples = self.structures(record, self.batches.is_some())?;
        samples.into_iter().map(|s| s.restricted(self.keys).map_err(|e| self.at(record, e))).collect()
    }

    fn structures(&self, record: usize, batched: bool) -> Result<Vec<Sample>> {
        let tensors = self.tensors(record)?;
        let samples =
            if batched { batch_of(&tensors) } else { sample_of(&tensors).map(|sample| vec![sample]) };
        let samples = samples.map_err(|e| self.at(record, e))?;
        for (i, sample) in samples.iter().enumerate() {
            sample
                .check()
                .map_err(|e| if batched { e.at(format_args!("structure {i}")) } else { e })
                .map_err(|e| self.at(record, e))?;
        }
        Ok(samples)
    }

    fn tensors(&self, record: usize) -> Result<Tensors> {
        let (offset, length) = self.records[record];
        let bytes = self.file.read(offset, length + TAIL_BYTES as u64)?;
        let tensors = payload(&bytes).and_then(|example| self.parse_example(example));
        tensors.map_err(|e| self.at(record, e))
    }

    /// Reads an `Example` message: a map from keys to lists of one serialised tensor.
    fn parse_example(&self, example: &[u8]) -> Result<Tensors> {
        let mut tensors = Tensors::new();
        for features in only_bytes(example, 1) {
            for entry in only_bytes(features?, 1) {
                let (key, bytes) = parse_entry(entry?)?;
                if !KNOWN.contains(&key) {
                    continue;
                }
                let tensor = Tensor::parse(bytes).map_err(|e| e.at(key))?;
                self.check_tensor(key, &tensor)?;
                tensors.insert(key.to_owned(), tensor);
            }
        }
        match self.format.keys().find(|key| KNOWN.contains(&key.as_str()) && !tensors.contains_key(*key)) {
            Some(missing) => bail!("{missing} is missing, but the .yml file announces it"),
            None => Ok(tensors),
        }
    }

    fn check_tensor(&self, key: &str, tensor: &Tensor) -> Result<()> {
        let Some(spec) = self.format.get(key) else { return Ok(()) };
        let fits = tensor.shape.len() == spec.shape.len()
            && tensor.shape.iter().zip(&spec.shape).all(|(found, wanted)| wanted.is_none_or(|w| w == *found));
        if !fits || tensor.dtype != spec.dtype {
            bail!(
                "{key}: found {} of shape {:?}, but the .yml file says {} of shape [{}]",
                tensor.dtype.name(),
                tensor.shape,
                spec.dtype.name(),
                spec.shape
                    .iter()
                    .map(|d| d.map_or("null".into(), |d| d.to_string()))
                    .collect::<Vec<_>>()
                    .join(", ")
            );
        }
        Ok(())
    }

    fn at(&self, record: usize, e: Error) -> Error {
        let start = self.records[record].0 - HEAD_BYTES as u64;
        e.at(format_args!("{}: record {record} at byte {start}", self.file.path().display()))
    }
}

impl Source for Tfrecord {
    fn len(&self) -> usize {
        match &self.batches {
            Some(batches) => batches.last().map_or(0, |last| last.end),
            None => self.records.len(),
        }
    }

    fn read(&self, index: usize) -> Result<Sample> {
        assert!(index < self.len(), "structure {index} of {}", self.len());
        let (record, within) = match &self.batches {
            None => (index, 0),
            Some(batches) => {
                let record = batches.partition_point(|batch| batch.end <= index);
                (record, index - batches[record].start)
            }
        };
        let mut samples = self.read_record(record)?;
        if within >= samples.len() {
            bail!("{}: the file has changed since it was opened", self.place());
        }
        Ok(samples.swap_remove(within))
    }

    fn keys(&self) -> Keys {
        self.keys
    }

    fn place(&self) -> String {
        self.file.path().display().to_string()
    }

    fn batches(&self) -> Option<&[Range<usize>]> {
        self.batches.as_deref()
    }

    fn read_batch(&self, batch: usize) -> Result<Vec<Sample>> {
        assert!(self.batches.is_some(), "only stored batches are read as such");
        self.read_record(batch)
    }
}

/// The format and, where it is written, the number of records.
fn read_yml(path: &Path) -> Result<(BTreeMap<String, Spec>, Option<usize>)> {
    let file = value::read(path)?;
    let at = |e: Error| e.at(path.display());
    let format = file.get("format").and_then(Value::as_object);
    let format = format.ok_or_else(|| {
        at(err!("found no `format`, wanted the number type and shape of each key"))
            .help("the .yml file of a data set is written by `pinn convert`")
    })?;
    let mut specs = BTreeMap::new();
    for (key, value) in format {
        let spec = parse_spec(value).map_err(|e| at(e.at(format_args!("format.{key}"))));
        // What is not read may have any type.
        if let Some(spec) = if KNOWN.contains(&key.as_str()) { Some(spec?) } else { None } {
            specs.insert(key.clone(), spec);
        }
    }
    for key in ["elems", "coord"] {
        if !specs.contains_key(key) {
            return Err(at(err!("format.{key}: missing")));
        }
    }
    let n_sample = match file.get("info").and_then(|info| info.get("n_sample")) {
        None => None,
        Some(n) => {
            let n = whole_number(n).and_then(|n| usize::try_from(n).ok());
            Some(n.ok_or_else(|| at(err!("info.n_sample: wanted the number of records")))?)
        }
    };
    Ok((specs, n_sample))
}

fn parse_spec(value: &Value) -> Result<Spec> {
    let dtype = value.get("dtype").and_then(Value::as_str).ok_or_else(|| err!("dtype: missing"))?;
    let shape = value.get("shape").and_then(Value::as_array).ok_or_else(|| err!("shape: wanted a list"))?;
    let dimension = |d: &Value| match d {
        Value::Null => Ok(None),
        _ => match whole_number(d).and_then(|n| usize::try_from(n).ok()) {
            Some(n) => Ok(Some(n)),
            None => Err(err!("shape: found {d}, wanted a size or null")),
        },
    };
    Ok(Spec { dtype: Dtype::parse(dtype)?, shape: shape.iter().map(dimension).collect::<Result<_>>()? })
}

/// Walks over the heads of all records. Offset and size are those of the data.
fn index(file: &ByteFile) -> Result<Vec<(u64, u64)>> {
    let handle = file.open()?;
    let mut records = Vec::new();
    let mut offset = 0;
    while offset < file.len() {
        let length = record_length(&handle, file, offset);
        let length = length.map_err(|e| {
            e.at(format_args!("{}: record {} at byte {offset}", file.path().display(), records.len()))
        })?;
        records.push((offset + HEAD_BYTES as u64, length));
        offset += HEAD_BYTES as u64 + length + TAIL_BYTES as u64;
    }
    Ok(records)
}

fn record_length(handle: &Handle, file: &ByteFile, offset: u64) -> Result<u64> {
    let left = file.len() - offset;
    let length = payload_length(&handle.read(offset, left.min(HEAD_BYTES as u64))?)?;
    let end = length.checked_add((HEAD_BYTES + TAIL_BYTES) as u64);
    if end.is_none_or(|end| end > left) {
        return Err(err!("the record has {length} bytes of data, but the file has only {left} left")
            .help("the file is cut off, or is still being written"));
    }
    Ok(length)
}

/// The contents of all fields of this number that are bytes.
fn only_bytes(message: &[u8], number: u64) -> impl Iterator<Item = Result<&[u8]>> {
    Fields::of(message).filter_map(move |field| match field {
        Ok((n, Wire::Bytes(bytes))) if n == number => Some(Ok(bytes)),
        Ok(_) => None,
        Err(e) => Some(Err(e)),
    })
}

/// Key and serialised tensor of one entry of the map.
fn parse_entry(entry: &[u8]) -> Result<(&str, &[u8])> {
    let key = only_bytes(entry, 1).next().transpose()?.unwrap_or_default();
    let key = std::str::from_utf8(key).map_err(|_| err!("a key that is not text"))?;
    let feature = only_bytes(entry, 2).next().transpose()?.unwrap_or_default();
    let list = only_bytes(feature, 1).next().transpose()?.unwrap_or_default();
    let mut items = only_bytes(list, 1);
    match (items.next().transpose()?, items.next()) {
        (Some(bytes), None) => Ok((key, bytes)),
        _ => bail!("{key}: wanted a list of one serialised tensor"),
    }
}

fn number_of(tensors: &Tensors, key: &str) -> Result<Option<f64>> {
    let Some(tensor) = tensors.get(key) else { return Ok(None) };
    match tensor.numbers[..] {
        [x] => Ok(Some(x)),
        _ => bail!("{key}: shape {:?}, wanted one number", tensor.shape),
    }
}

fn rows(tensors: &Tensors, key: &str) -> Result<Option<Vec<[f64; 3]>>> {
    let Some(tensor) = tensors.get(key) else { return Ok(None) };
    if tensor.shape.len() != 2 || tensor.shape[1] != 3 {
        bail!("{key}: shape {:?}, wanted [atoms, 3]", tensor.shape);
    }
    Ok(Some(tensor.numbers.as_chunks::<3>().0.to_vec()))
}

fn column(tensors: &Tensors, key: &str) -> Result<Option<Vec<f64>>> {
    let Some(tensor) = tensors.get(key) else { return Ok(None) };
    match tensor.shape[..] {
        [_] | [_, 1] => Ok(Some(tensor.numbers.clone())),
        _ => bail!("{key}: shape {:?}, wanted [atoms]", tensor.shape),
    }
}

fn matrix(tensors: &Tensors, key: &str) -> Result<Option<[[f64; 3]; 3]>> {
    let Some(tensor) = tensors.get(key) else { return Ok(None) };
    let found =
        <[f64; 9]>::try_from(tensor.numbers.as_slice()).ok().filter(|_| tensor.shape.ends_with(&[3, 3]));
    match found {
        Some([a, b, c, d, e, f, g, h, i]) => Ok(Some([[a, b, c], [d, e, f], [g, h, i]])),
        None => bail!("{key}: shape {:?}, wanted [3, 3]", tensor.shape),
    }
}

fn dipole(tensors: &Tensors) -> Result<Option<Dipole>> {
    let Some(tensor) = tensors.get("d_data") else { return Ok(None) };
    match tensor.numbers[..] {
        [d] => Ok(Some(Dipole::Scalar(d))),
        [x, y, z] => Ok(Some(Dipole::Vector([x, y, z]))),
        _ => bail!("d_data: shape {:?}, wanted [] or [3]", tensor.shape),
    }
}

/// The structure of a record. Atoms with the atomic number 0 are padding and vanish.
fn sample_of(tensors: &Tensors) -> Result<Sample> {
    let elems = column(tensors, "elems")?.unwrap_or_default();
    let sample = Sample {
        elems: elems.iter().map(|z| *z as i32).collect(),
        coord: rows(tensors, "coord")?.unwrap_or_default(),
        cell: matrix(tensors, "cell")?,
        e_data: number_of(tensors, "e_data")?,
        f_data: rows(tensors, "f_data")?,
        s_data: matrix(tensors, "s_data")?,
        q_data: column(tensors, "q_data")?,
        d_data: dipole(tensors)?,
        e_weight: number_of(tensors, "e_weight")?,
        f_weights: rows(tensors, "f_weights")?,
        d_weight: number_of(tensors, "d_weight")?,
        oxidation: column(tensors, "oxidation")?,
    };
    Ok(if sample.elems.contains(&0) { without_padding(sample) } else { sample })
}

fn without_padding(mut sample: Sample) -> Sample {
    fn keep<T>(list: &mut Vec<T>, elems: &[i32]) {
        let mut i = 0;
        list.retain(|_| {
            i += 1;
            elems.get(i - 1) != Some(&0)
        });
    }
    let elems = std::mem::take(&mut sample.elems);
    keep(&mut sample.coord, &elems);
    sample.f_data.iter_mut().for_each(|list| keep(list, &elems));
    sample.f_weights.iter_mut().for_each(|list| keep(list, &elems));
    sample.q_data.iter_mut().for_each(|list| keep(list, &elems));
    sample.oxidation.iter_mut().for_each(|list| keep(list, &elems));
    sample.elems = elems.into_iter().filter(|z| *z != 0).collect();
    sample
}

/// Keys with one row for each atom.
const ATOMIC: [&str; 6] = ["elems", "coord", "f_data", "f_weights", "q_data", "oxidation"];

/// The number of structures of a batch.
fn n_structures(tensors: &Tensors) -> Result<usize> {
    let largest = tensors.get("ind_1").and_then(|t| t.numbers.iter().copied().reduce(f64::max));
    let n_atoms = tensors.get("elems").map_or(0, |t| t.numbers.len());
    match largest {
        Some(largest) if largest >= 0.0 && largest < n_atoms as f64 => Ok(largest as usize + 1),
        _ => bail!("ind_1: the largest index is {largest:?} for {n_atoms} atoms"),
    }
}

/// The structures of a batch.
fn batch_of(tensors: &Tensors) -> Result<Vec<Sample>> {
    let n = n_structures(tensors)?;
    let ind_1 = &tensors["ind_1"].numbers;
    let mut atoms = vec![Vec::new(); n];
    for (atom, &structure) in ind_1.iter().enumerate() {
        if structure < 0.0 {
            bail!("ind_1: found {structure} for atom {atom}");
        }
        atoms[structure as usize].push(atom);
    }
    let structure = |(i, atoms): (usize, &Vec<usize>)| {
        let mut own = Tensors::new();
        for (key, tensor) in tensors.iter().filter(|(key, _)| *key != "ind_1") {
            let atomic = ATOMIC.contains(&key.as_str());
            let (rows, wanted) = if atomic { (atoms.as_slice(), ind_1.len()) } else { (&[i][..], n) };
            own.insert(key.clone(), take(tensor, rows, wanted, !atomic).map_err(|e| e.at(key))?);
        }
        sample_of(&own).map_err(|e| e.at(format_args!("structure {i}")))
    };
    atoms.iter().enumerate().map(structure).collect()
}

/// Some rows of a tensor that has `wanted` rows; `single` drops the first dimension.
fn take(tensor: &Tensor, rows: &[usize], wanted: usize, single: bool) -> Result<Tensor> {
    if tensor.shape.first() != Some(&wanted) {
        bail!("shape {:?}, wanted {wanted} rows", tensor.shape);
    }
    let width: usize = tensor.shape[1..].iter().product();
    let numbers = rows.iter().flat_map(|&row| tensor.numbers[row * width..(row + 1) * width].iter().copied());
    let mut shape = tensor.shape.clone();
    if single {
        shape.remove(0);
    } else {
        shape[0] = rows.len();
    }
    Ok(Tensor { dtype: tensor.dtype, shape, numbers: numbers.collect() })
}

/// Writes `x.yml` and `x.tfr`; gives the number of structures. Both files are complete or absent.
///
/// - yml      name of the .yml file
/// - keys     the labels that every structure has
/// - samples  what is written, as float32
pub fn write(yml: &Path, keys: Keys, samples: impl IntoIterator<Item = Result<Sample>>) -> Result<usize> {
    let tfr = tfr_beside(yml)?;
    let mut n = 0;
    atomic::write(&tfr, |out| {
        let mut record = Vec::new();
        for sample in samples {
            let sample = sample?.restricted(keys).map_err(|e| e.at(format_args!("structure {n}")))?;
            let example = example_of(&sample).map_err(|e| e.at(format_args!("structure {n}")))?;
            record.clear();
            put_record(&mut record, &example);
            out.write_all(&record).io("write", &tfr)?;
            n += 1;
        }
        Ok(())
    })?;
    atomic::write(yml, |out| out.write_all(yml_text(keys, n).as_bytes()).io("write", yml))?;
    Ok(n)
}

fn tfr_beside(yml: &Path) -> Result<PathBuf> {
    if yml.extension().is_none_or(|e| e != "yml" && e != "yaml") {
        bail!("{}: wanted a name that ends in .yml", yml.display());
    }
    Ok(yml.with_extension("tfr"))
}

/// Key, type and shape of everything that a sample has, sorted by key. Atoms vary from one to the next.
fn columns(keys: Keys) -> Vec<(&'static str, Dtype, Vec<Option<usize>>)> {
    let mut columns: Vec<_> =
        keys.names().into_iter().map(|name| (name, Dtype::Float32, shape_of(name, keys))).collect();
    columns.push(("coord", Dtype::Float32, vec![None, Some(3)]));
    columns.push(("elems", Dtype::Int32, vec![None]));
    columns.sort_by_key(|(name, ..)| *name);
    columns
}

fn shape_of(name: &str, keys: Keys) -> Vec<Option<usize>> {
    match name {
        "cell" | "s_data" => vec![Some(3), Some(3)],
        "f_data" | "f_weights" => vec![None, Some(3)],
        "q_data" | "oxidation" => vec![None],
        "d_data" if keys.d_data == 3 => vec![Some(3)],
        _ => vec![],
    }
}

/// The .yml file, with sorted keys.
fn yml_text(keys: Keys, n_sample: usize) -> String {
    let mut text = String::from("format:\n");
    for (name, dtype, shape) in columns(keys) {
        text += &format!("  {name}:\n    dtype: {}\n", dtype.name());
        text += if shape.is_empty() { "    shape: []\n" } else { "    shape:\n" };
        for d in shape {
            text += &format!("    - {}\n", d.map_or("null".into(), |d| d.to_string()));
        }
    }
    text + &format!("info:\n  n_sample: {n_sample}\n")
}

/// A structure as an `Example` message.
fn example_of(sample: &Sample) -> Result<Vec<u8>> {
    let mut features = Vec::new();
    for (name, dtype, shape) in columns(sample.keys()) {
        let numbers = numbers_of(sample, name);
        let shape: Vec<usize> = shape.iter().map(|d| d.unwrap_or(sample.n_atoms())).collect();
        let tensor = Tensor::serialise(dtype, &shape, &numbers).map_err(|e| e.at(name))?;
        let (mut list, mut feature, mut entry) = (Vec::new(), Vec::new(), Vec::new());
        put_bytes(&mut list, 1, &tensor);
        put_bytes(&mut feature, 1, &list);
        put_bytes(&mut entry, 1, name.as_bytes());
        put_bytes(&mut entry, 2, &feature);
        put_bytes(&mut features, 1, &entry);
    }
    let mut example = Vec::new();
    put_bytes(&mut example, 1, &features);
    Ok(example)
}

fn numbers_of(sample: &Sample, name: &str) -> Vec<f64> {
    let flat = |rows: &Option<Vec<[f64; 3]>>| rows.as_ref().map(|rows| rows.as_flattened().to_vec());
    let nine = |rows: &Option<[[f64; 3]; 3]>| rows.as_ref().map(|rows| rows.as_flattened().to_vec());
    let one = |x: Option<f64>| x.map(|x| vec![x]);
    let numbers = match name {
        "elems" => Some(sample.elems.iter().map(|&z| z.into()).collect()),
        "coord" => Some(sample.coord.as_flattened().to_vec()),
        "cell" => nine(&sample.cell),
        "e_data" => one(sample.e_data),
        "f_data" => flat(&sample.f_data),
        "s_data" => nine(&sample.s_data),
        "q_data" => sample.q_data.clone(),
        "d_data" => sample.d_data.map(|d| match d {
            Dipole::Scalar(d) => vec![d],
            Dipole::Vector(d) => d.to_vec(),
        }),
        "e_weight" => one(sample.e_weight),
        "f_weights" => flat(&sample.f_weights),
        "d_weight" => one(sample.d_weight),
        "oxidation" => sample.oxidation.clone(),
        other => unreachable!("{other} is not a key of a sample"),
    };
    numbers.expect("only keys that the sample has are written")
}

#[cfg(test)]
#[path = "tfrecord_tests.rs"]
mod tests;
