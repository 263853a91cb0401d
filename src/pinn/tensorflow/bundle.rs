//! Named tensors in two files: `x.index`, a table of types, shapes and places, and `x.data-00000-of-00001`, the numbers.

use super::table;
use crate::error::{IoContext, Result};
use crate::export::atomic;
use crate::report::record::{Fields, Wire, masked_crc, put_bytes, put_varint_field};
use crate::{bail, err};
use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};

/// TensorFlow's numbers of the types that occur.
const FLOAT32: u64 = 1;
const FLOAT64: u64 = 2;
const INT32: u64 = 3;
const INT64: u64 = 9;

/// The file of the numbers is no larger than this; a PiNet has some thousand.
const MOST_BYTES: u64 = 1 << 32;

/// One tensor. Numbers are held as float64, which holds every float32 and every step that a run reaches.
#[derive(Debug, Clone, PartialEq)]
pub struct Tensor {
    pub shape: Vec<usize>,
    pub numbers: Vec<f64>,
    pub kind: Kind,
}

/// What numbers are stored as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Float32,
    Float64,
    Int32,
    Int64,
}

impl Kind {
    const ALL: [(Kind, u64, usize); 4] = [
        (Kind::Float32, FLOAT32, 4),
        (Kind::Float64, FLOAT64, 8),
        (Kind::Int32, INT32, 4),
        (Kind::Int64, INT64, 8),
    ];

    fn number(self) -> u64 {
        Kind::ALL.iter().find(|(kind, ..)| *kind == self).expect("every kind is listed").1
    }

    fn bytes(self) -> usize {
        Kind::ALL.iter().find(|(kind, ..)| *kind == self).expect("every kind is listed").2
    }
}

impl Tensor {
    fn to_bytes(&self) -> Vec<u8> {
        let numbers = self.numbers.iter();
        match self.kind {
            Kind::Float32 => numbers.flat_map(|&x| (x as f32).to_le_bytes()).collect(),
            Kind::Float64 => numbers.flat_map(|&x| x.to_le_bytes()).collect(),
            Kind::Int32 => numbers.flat_map(|&x| (x as i32).to_le_bytes()).collect(),
            Kind::Int64 => numbers.flat_map(|&x| (x as i64).to_le_bytes()).collect(),
        }
    }

    fn of_bytes(kind: Kind, shape: Vec<usize>, bytes: &[u8]) -> Self {
        fn all<const N: usize>(bytes: &[u8], number: impl Fn([u8; N]) -> f64) -> Vec<f64> {
            bytes.as_chunks::<N>().0.iter().map(|&chunk| number(chunk)).collect()
        }
        let numbers = match kind {
            Kind::Float32 => all(bytes, |x| f64::from(f32::from_le_bytes(x))),
            Kind::Float64 => all(bytes, f64::from_le_bytes),
            Kind::Int32 => all(bytes, |x| f64::from(i32::from_le_bytes(x))),
            Kind::Int64 => all(bytes, |x| i64::from_le_bytes(x) as f64),
        };
        Tensor { shape, numbers, kind }
    }
}

/// Tensors by name.
pub type Tensors = BTreeMap<String, Tensor>;

/// `model.ckpt-1000.index` of `model.ckpt-1000`.
pub fn index_of(prefix: &Path) -> PathBuf {
    with(prefix, ".index")
}

/// `model.ckpt-1000.data-00000-of-00001` of `model.ckpt-1000`.
pub fn data_of(prefix: &Path) -> PathBuf {
    with(prefix, ".data-00000-of-00001")
}

fn with(prefix: &Path, ending: &str) -> PathBuf {
    let mut name = prefix.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

/// Writes tensors. The index comes last: where it is there, both files are whole.
pub fn write(prefix: &Path, tensors: &Tensors) -> Result<()> {
    // One shard, little-endian, version 1.
    let header = vec![0x08, 1, 0x1a, 2, 0x08, 1];
    let mut entries = vec![(Vec::new(), header)];
    let mut data = Vec::new();
    for (name, tensor) in tensors {
        let bytes = tensor.to_bytes();
        entries.push((name.as_bytes().to_vec(), entry(tensor, data.len(), &bytes)));
        data.extend(bytes);
    }
    let (index, file) = (index_of(prefix), data_of(prefix));
    if index.exists() {
        std::fs::remove_file(&index).io("replace", &index)?;
    }
    atomic::write(&file, |out| out.write_all(&data).io("write", &file))?;
    atomic::write(&index, |out| out.write_all(&table::to_bytes(&entries)).io("write", &index))
}

/// What the index says about a tensor.
fn entry(tensor: &Tensor, offset: usize, bytes: &[u8]) -> Vec<u8> {
    let mut shape = Vec::new();
    for &n in &tensor.shape {
        let mut size = Vec::new();
        put_varint_field(&mut size, 1, n as u64);
        put_bytes(&mut shape, 2, &size);
    }
    let mut out = Vec::new();
    put_varint_field(&mut out, 1, tensor.kind.number());
    put_bytes(&mut out, 2, &shape);
    if offset > 0 {
        put_varint_field(&mut out, 4, offset as u64);
    }
    put_varint_field(&mut out, 5, bytes.len() as u64);
    out.push(6 << 3 | 5);
    out.extend(masked_crc(bytes).to_le_bytes());
    out
}

/// Where a tensor is.
struct Entry {
    kind: Kind,
    shape: Vec<usize>,
    offset: u64,
    size: u64,
    crc: u32,
}

/// Reads all tensors of numbers; those of other types, such as texts, are left out.
pub fn read(prefix: &Path) -> Result<Tensors> {
    let (index, file) = (index_of(prefix), data_of(prefix));
    let entries = std::fs::read(&index)
        .io("read", &index)
        .and_then(|bytes| table::parse(&bytes).map_err(|e| e.at(index.display())))?;
    let size = std::fs::metadata(&file).io("read", &file)?.len();
    if size > MOST_BYTES {
        bail!("{}: {size} bytes are too much for the weights of a network", file.display());
    }
    let data = std::fs::read(&file).io("read", &file)?;
    let mut tensors = Tensors::new();
    for (name, message) in entries {
        let name = String::from_utf8_lossy(&name).into_owned();
        if name.is_empty() {
            check_header(&message).map_err(|e| e.at(index.display()))?;
            continue;
        }
        let entry = parse_entry(&message).map_err(|e| e.at(format!("{}: {name}", index.display())))?;
        let Some(entry) = entry else { continue };
        let tensor = take(&entry, &data).map_err(|e| e.at(format!("{}: {name}", file.display())))?;
        tensors.insert(name, tensor);
    }
    Ok(tensors)
}

fn check_header(message: &[u8]) -> Result<()> {
    for field in Fields::of(message) {
        match field? {
            (1, Wire::Varint(n)) if n != 1 => {
                return Err(err!("the numbers are in {n} files").help("PiNN writes one file of numbers"));
            }
            (2, Wire::Varint(n)) if n != 0 => bail!("numbers are big-endian"),
            _ => {}
        }
    }
    Ok(())
}

/// `None` for what is not numbers.
fn parse_entry(message: &[u8]) -> Result<Option<Entry>> {
    let (mut number, mut shape, mut offset, mut size, mut crc) = (0, Vec::new(), 0, 0, 0);
    for field in Fields::of(message) {
        match field? {
            (1, Wire::Varint(n)) => number = n,
            (2, Wire::Bytes(bytes)) => shape = parse_shape(bytes)?,
            (4, Wire::Varint(n)) => offset = n,
            (5, Wire::Varint(n)) => size = n,
            (6, Wire::Fixed32(bytes)) => crc = u32::from_le_bytes(bytes),
            (7, _) => bail!("it is stored in slices, which PiNN does not do"),
            _ => {}
        }
    }
    let kind = Kind::ALL.iter().find(|(_, known, _)| *known == number);
    Ok(kind.map(|&(kind, ..)| Entry { kind, shape, offset, size, crc }))
}

fn parse_shape(message: &[u8]) -> Result<Vec<usize>> {
    let mut shape = Vec::new();
    for field in Fields::of(message) {
        let (2, Wire::Bytes(dim)) = field? else { continue };
        let mut size = 0;
        for field in Fields::of(dim) {
            if let (1, Wire::Varint(n)) = field? {
                size = n;
            }
        }
        shape.push(
            usize::try_from(size)
                .ok()
                .filter(|n| *n as u64 <= MOST_BYTES)
                .ok_or_else(|| err!("a dimension of {size}"))?,
        );
    }
    Ok(shape)
}

fn take(entry: &Entry, data: &[u8]) -> Result<Tensor> {
    let n = entry.shape.iter().try_fold(entry.kind.bytes(), |n, d| n.checked_mul(*d));
    if n.map(|n| n as u64) != Some(entry.size) {
        bail!("{} bytes for the shape {:?}", entry.size, entry.shape);
    }
    let end = entry.offset.checked_add(entry.size).filter(|end| *end <= data.len() as u64);
    let Some(end) = end else {
        bail!("{} bytes at byte {}, but the file has {}", entry.size, entry.offset, data.len());
    };
    let bytes = &data[entry.offset as usize..end as usize];
    if masked_crc(bytes) != entry.crc {
        return Err(err!("the checksum is wrong").help("the file is damaged, or of another checkpoint"));
    }
    Ok(Tensor::of_bytes(entry.kind, entry.shape.clone(), bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some() -> Tensors {
        let tensor = |shape: &[usize], kind| {
            let n = shape.iter().product();
            let numbers = (0..n)
                .map(|k: usize| k as f64 * 0.5 - 3.0)
                .map(|x| if kind == Kind::Int64 { x.floor() } else { x });
            Tensor { shape: shape.to_vec(), numbers: numbers.collect(), kind }
        };
        Tensors::from([
            ("net/dense/kernel".into(), tensor(&[3, 5], Kind::Float32)),
            ("net/dense/bias".into(), tensor(&[5], Kind::Float64)),
            ("global_step".into(), tensor(&[], Kind::Int64)),
            ("none".into(), tensor(&[0, 4], Kind::Float32)),
        ])
    }

    #[test]
    fn tensors_are_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let prefix = folder.path().join("model.ckpt-7");
        write(&prefix, &some()).unwrap();
        assert_eq!(read(&prefix).unwrap(), some());
        write(&prefix, &some()).unwrap();
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2, "no other file is left");
    }

    #[test]
    fn damaged_numbers_are_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let prefix = folder.path().join("model.ckpt-7");
        write(&prefix, &some()).unwrap();
        let mut data = std::fs::read(data_of(&prefix)).unwrap();
        *data.last_mut().unwrap() ^= 1;
        std::fs::write(data_of(&prefix), &data).unwrap();
        let error = read(&prefix).unwrap_err().to_string();
        assert!(error.contains("net/dense/kernel: the checksum is wrong"), "{error}");
        data.truncate(9);
        std::fs::write(data_of(&prefix), &data).unwrap();
        assert!(read(&prefix).unwrap_err().message().contains("but the file has 9"));
        std::fs::remove_file(data_of(&prefix)).unwrap();
        assert!(read(&prefix).is_err());
    }
}
