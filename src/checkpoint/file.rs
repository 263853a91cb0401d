//! One checkpoint as bytes.
//!
//! ```text
//! 0   magic "PHALANX\n"
//! 8   version          u32
//! 12  zero             u32
//! 16  file length      u64
//! 24  JSON length      u64
//! 32  JSON: {"header": what the caller gave, "arrays": [{"name", "dtype", "offset", "bytes"}]}
//!     arrays, each at a multiple of 64, zeros between
//! end-16  XXH3-128 of everything before
//! ```
//! All numbers are little-endian.

use crate::error::{Error, IoContext, Result};
use crate::{bail, err};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use xxhash_rust::xxh3::{Xxh3, xxh3_128};

const MAGIC: &[u8; 8] = b"PHALANX\n";
const VERSION: u32 = 1;
/// What model files (.dp) begin with.
const HDF5_MAGIC: &[u8] = b"\x89HDF\r\n\x1a\n";
const HEAD_BYTES: usize = 32;
const DIGEST_BYTES: usize = 16;
const ALIGN: usize = 64;

/// Numbers of one kind.
#[derive(Debug, Clone, PartialEq)]
pub enum Array {
    F64(Vec<f64>),
    F32(Vec<f32>),
    U8(Vec<u8>),
}

impl Array {
    fn dtype(&self) -> &'static str {
        match self {
            Array::F64(_) => "f64",
            Array::F32(_) => "f32",
            Array::U8(_) => "u8",
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Array::F64(values) => 8 * values.len(),
            Array::F32(values) => 4 * values.len(),
            Array::U8(values) => values.len(),
        }
    }

    /// Hands the little-endian bytes to `sink` in pieces that fit a cache.
    fn pieces(&self, mut sink: impl FnMut(&[u8]) -> std::io::Result<()>) -> std::io::Result<()> {
        const PIECE: usize = 8192;
        let mut bytes = vec![0; 8 * PIECE];
        match self {
            Array::F64(values) => values.chunks(PIECE).try_for_each(|piece| {
                let bytes = &mut bytes[..8 * piece.len()];
                bytes
                    .chunks_exact_mut(8)
                    .zip(piece)
                    .for_each(|(out, v)| out.copy_from_slice(&v.to_le_bytes()));
                sink(bytes)
            }),
            Array::F32(values) => values.chunks(PIECE).try_for_each(|piece| {
                let bytes = &mut bytes[..4 * piece.len()];
                bytes
                    .chunks_exact_mut(4)
                    .zip(piece)
                    .for_each(|(out, v)| out.copy_from_slice(&v.to_le_bytes()));
                sink(bytes)
            }),
            Array::U8(values) => sink(values),
        }
    }

    fn from_bytes(dtype: &str, bytes: &[u8]) -> Result<Self> {
        let whole = |rest: &[u8]| match rest {
            [] => Ok(()),
            _ => Err(err!("{} bytes are no whole number of {dtype}", bytes.len())),
        };
        match dtype {
            "f64" => {
                let (chunks, rest) = bytes.as_chunks::<8>();
                whole(rest)?;
                Ok(Array::F64(chunks.iter().map(|chunk| f64::from_le_bytes(*chunk)).collect()))
            }
            "f32" => {
                let (chunks, rest) = bytes.as_chunks::<4>();
                whole(rest)?;
                Ok(Array::F32(chunks.iter().map(|chunk| f32::from_le_bytes(*chunk)).collect()))
            }
            "u8" => Ok(Array::U8(bytes.to_vec())),
            other => Err(err!("{other:?} is not a kind of number")),
        }
    }
}

/// Everything that a run needs to continue.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Checkpoint {
    /// Step, options, sampler position: whatever the caller wants, as JSON.
    pub header: Value,
    /// Parameters, arrays of the optimiser; names are unique.
    pub arrays: Arrays,
}

/// Arrays by name.
pub type Arrays = Vec<(String, Array)>;

/// The arrays of float64, without their names: memory that may be used again.
pub fn into_numbers(arrays: Arrays) -> Vec<Vec<f64>> {
    let numbers = arrays.into_iter().filter_map(|(_, array)| match array {
        Array::F64(x) => Some(x),
        _ => None,
    });
    numbers.collect()
}

/// The array of that name, or an error that lists the names there are.
fn array_of<'a>(arrays: &'a Arrays, name: &str) -> Result<&'a Array> {
    let found = arrays.iter().find(|(n, _)| n == name).map(|(_, array)| array);
    found.ok_or_else(|| {
        let names: Vec<&str> = arrays.iter().map(|(n, _)| n.as_str()).collect();
        err!("the checkpoint has no array {name:?}; it has {}", names.join(", "))
    })
}

/// The f64 array of that name.
pub fn f64s_of<'a>(arrays: &'a Arrays, name: &str) -> Result<&'a [f64]> {
    match array_of(arrays, name)? {
        Array::F64(values) => Ok(values),
        other => Err(err!("the checkpoint's array {name:?} holds {}, not f64", other.dtype())),
    }
}

impl Checkpoint {
    /// The arrays of float64, without their names: memory that may be used again.
    pub fn into_numbers(self) -> Vec<Vec<f64>> {
        into_numbers(self.arrays)
    }
}

#[derive(Serialize, Deserialize)]
struct Index {
    header: Value,
    arrays: Vec<Entry>,
}

#[derive(Serialize, Deserialize)]
struct Entry {
    name: String,
    dtype: String,
    /// From the end of the JSON, rounded up to 64.
    offset: usize,
    bytes: usize,
}

impl Checkpoint {
    /// The array of that name, or an error that lists the names there are.
    pub fn array(&self, name: &str) -> Result<&Array> {
        array_of(&self.arrays, name)
    }

    /// The f64 array of that name.
    pub fn f64s(&self, name: &str) -> Result<&[f64]> {
        f64s_of(&self.arrays, name)
    }

    /// The content of a file, e.g. for ranks that do not see the file.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.write(&mut bytes).expect("writing to memory does not fail");
        bytes
    }

    /// Writes head, JSON, arrays and digest.
    pub(super) fn write(&self, out: &mut impl Write) -> std::io::Result<()> {
        let (json, length) = self.index();
        let mut out = Hashing { out, hash: Xxh3::new(), written: 0 };
        out.put(MAGIC)?;
        out.put(&VERSION.to_le_bytes())?;
        out.put(&0u32.to_le_bytes())?;
        out.put(&(length as u64).to_le_bytes())?;
        out.put(&(json.len() as u64).to_le_bytes())?;
        out.put(&json)?;
        for (_, array) in &self.arrays {
            out.align()?;
            array.pieces(|piece| out.put(piece))?;
        }
        let digest = out.hash.digest128().to_le_bytes();
        out.put(&digest)?;
        assert_eq!(out.written, length, "the length in the head of a checkpoint is that of the file");
        Ok(())
    }

    /// The JSON and the length of the file.
    fn index(&self) -> (Vec<u8>, usize) {
        let mut offset = 0;
        let mut arrays = Vec::with_capacity(self.arrays.len());
        for (name, array) in &self.arrays {
            offset = align(offset);
            let entry =
                Entry { name: name.clone(), dtype: array.dtype().into(), offset, bytes: array.bytes() };
            offset += entry.bytes;
            arrays.push(entry);
        }
        let index = Index { header: self.header.clone(), arrays };
        let json = serde_json::to_vec(&index).expect("JSON values always serialise");
        let end = HEAD_BYTES + json.len();
        let end = if self.arrays.is_empty() { end } else { align(end) + offset };
        (json, end + DIGEST_BYTES)
    }

    /// Reads a file that must be complete; the error names it and says what is wrong.
    pub(super) fn read(path: &Path) -> Result<Self> {
        let bytes = std::fs::read(path).io("read the checkpoint", path)?;
        Self::parse(&bytes).map_err(|error| error.at(path.display()))
    }

    /// Whether a file begins as a checkpoint of this program does.
    pub fn is_begun_by(path: &Path) -> bool {
        let mut start = [0; MAGIC.len()];
        let read = File::open(path).and_then(|mut file| std::io::Read::read_exact(&mut file, &mut start));
        read.is_ok() && Self::is_one(&start)
    }

    /// Whether a file with this beginning is a checkpoint of this program.
    pub fn is_one(bytes: &[u8]) -> bool {
        bytes.starts_with(MAGIC)
    }

    /// Reads the content of a file, which must be complete.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let json_length = verify(bytes)?;
        let damaged = |what: String| Error::new(format!("the checkpoint's index is damaged: {what}"));
        let data_end = bytes.len() - DIGEST_BYTES;
        let json_end = HEAD_BYTES
            .checked_add(json_length)
            .filter(|&end| end <= data_end)
            .ok_or_else(|| damaged(format!("{json_length} bytes of JSON")))?;
        let index: Index =
            serde_json::from_slice(&bytes[HEAD_BYTES..json_end]).map_err(|e| damaged(e.to_string()))?;
        let data = bytes.get(align(json_end)..data_end).unwrap_or_default();
        let mut arrays = Vec::with_capacity(index.arrays.len());
        for entry in index.arrays {
            let end = entry.offset.checked_add(entry.bytes);
            let blob = end.and_then(|end| data.get(entry.offset..end));
            let blob =
                blob.ok_or_else(|| damaged(format!("array {:?} lies outside the file", entry.name)))?;
            let array =
                Array::from_bytes(&entry.dtype, blob).map_err(|e| e.at(format!("array {:?}", entry.name)))?;
            arrays.push((entry.name, array));
        }
        Ok(Checkpoint { header: index.header, arrays })
    }
}

/// Checks magic, version, length and digest. Returns the length of the JSON.
fn verify(bytes: &[u8]) -> Result<usize> {
    if bytes.len() >= 8 && &bytes[..8] != MAGIC {
        let error = err!("not a checkpoint of this program: it begins with {:02x?}", &bytes[..8]);
        return Err(match bytes.starts_with(HDF5_MAGIC) {
            true => {
                error.help("it may be a model file: dp train --init-frz-model starts with the weights of one")
            }
            false => error,
        });
    }
    if bytes.len() < HEAD_BYTES + DIGEST_BYTES {
        bail!("the checkpoint is damaged: truncated at byte {}, in its head", bytes.len());
    }
    let number = |at: usize| u64::from_le_bytes(std::array::from_fn(|k| bytes[at + k]));
    let version = number(8) as u32;
    if version != VERSION {
        return Err(err!(
            "the checkpoint has format version {version}, this program reads version {VERSION}"
        )
        .help("it was written by a newer program, or its head is damaged"));
    }
    let length = number(16);
    if length > bytes.len() as u64 {
        bail!("the checkpoint is damaged: truncated at byte {} of {length}", bytes.len());
    }
    let (body, digest) = bytes.split_at(bytes.len() - DIGEST_BYTES);
    if xxh3_128(body).to_le_bytes() != digest {
        bail!("the checkpoint is damaged: checksum mismatch");
    }
    usize::try_from(number(24))
        .map_err(|_| err!("the checkpoint is damaged: its JSON does not fit in memory"))
}

fn align(offset: usize) -> usize {
    offset.next_multiple_of(ALIGN)
}

/// Hashes what it writes.
struct Hashing<'a, W> {
    out: &'a mut W,
    hash: Xxh3,
    written: usize,
}

impl<W: Write> Hashing<'_, W> {
    fn put(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.out.write_all(bytes)?;
        self.hash.update(bytes);
        self.written += bytes.len();
        Ok(())
    }

    fn align(&mut self) -> std::io::Result<()> {
        let zeros = [0; ALIGN];
        self.put(&zeros[..align(self.written) - self.written])
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use serde_json::json;

    /// Three arrays of different kinds, with the step in the header.
    pub fn sample(step: u64) -> Checkpoint {
        let params = (0..1000).map(|k| (k as f64 + step as f64).sin()).collect();
        Checkpoint {
            header: json!({"step": step, "lr": 0.1 + 0.2, "type_map": ["O", "H"]}),
            arrays: vec![
                ("params".into(), Array::F64(params)),
                ("seed".into(), Array::U8(vec![1, 2, 3])),
                ("empty".into(), Array::F64(vec![])),
                ("m".into(), Array::F32(vec![1.5, f32::MIN_POSITIVE, -0.0])),
            ],
        }
    }

    fn bytes_of(checkpoint: &Checkpoint) -> Vec<u8> {
        let mut bytes = Vec::new();
        checkpoint.write(&mut bytes).unwrap();
        bytes
    }

    #[test]
    fn every_bit_comes_back() {
        let mut checkpoint = sample(7);
        assert_eq!(Checkpoint::parse(&bytes_of(&checkpoint)).unwrap(), checkpoint);
        checkpoint.arrays.clear();
        assert_eq!(Checkpoint::parse(&bytes_of(&checkpoint)).unwrap(), checkpoint);
        let odd = Checkpoint {
            header: Value::Null,
            arrays: vec![("nan".into(), Array::F64(vec![f64::from_bits(0x7ff8_0000_dead_beef), -0.0]))],
        };
        let back = Checkpoint::parse(&bytes_of(&odd)).unwrap();
        let bits: Vec<u64> = back.f64s("nan").unwrap().iter().map(|v| v.to_bits()).collect();
        assert_eq!(bits, [0x7ff8_0000_dead_beef, (-0.0f64).to_bits()]);
        assert!(back.array("mean").unwrap_err().message().contains("nan"));
    }

    #[test]
    fn arrays_lie_at_multiples_of_64() {
        let bytes = bytes_of(&sample(0));
        let first = 0.0f64.to_le_bytes();
        let second = 1.0f64.sin().to_le_bytes();
        let at = bytes.windows(16).position(|w| w[..8] == first && w[8..] == second).unwrap();
        assert_eq!(at % 64, 0);
    }

    #[test]
    fn a_truncated_file_is_refused_wherever_it_ends() {
        let bytes = bytes_of(&sample(3));
        for end in (0..bytes.len()).step_by(97).chain([bytes.len() - 1]) {
            let error = Checkpoint::parse(&bytes[..end]).unwrap_err();
            assert!(error.message().contains(&format!("truncated at byte {end}")), "{end}: {error}");
        }
    }

    #[test]
    fn a_flipped_bit_is_refused_wherever_it_is() {
        let bytes = bytes_of(&sample(3));
        for at in (0..bytes.len()).step_by(13).chain(0..HEAD_BYTES).chain(bytes.len() - 20..bytes.len()) {
            for bit in [0, 7] {
                let mut wrong = bytes.clone();
                wrong[at] ^= 1 << bit;
                assert!(Checkpoint::parse(&wrong).is_err(), "bit {bit} of byte {at}");
            }
        }
        let longer = [bytes.as_slice(), &[0]].concat();
        assert!(Checkpoint::parse(&longer).is_err());
    }

    #[test]
    fn a_file_of_another_program_is_named_as_such() {
        let error = Checkpoint::parse(b"PK\x03\x04 a zip file of the peer's").unwrap_err();
        assert!(error.message().contains("not a checkpoint of this program"), "{error}");
    }
}
