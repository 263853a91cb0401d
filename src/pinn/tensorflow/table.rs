//! A sorted table of keys and values in one file, as LevelDB lays it out and TensorFlow keeps the index of a checkpoint in it.
//!
//! ```text
//! block      entries, then the offset of every restart (u32) and their number (u32)
//! entry      shared, unshared, length of the value (varints), the unshared end of the key, the value
//! trailer    of each block: its compression (one byte, 0: none), masked CRC-32C of block and that byte
//! index      a block: the last key of each block of entries, with offset and length of the block (varints)
//! footer     48 bytes: offset and length of an empty block and of the index (varints), zeros, the magic number
//! ```

use crate::error::Result;
use crate::report::record::{masked_crc, put_varint};
use crate::{bail, err};

const MAGIC: u64 = 0xdb47_7524_8b80_fb57;
const FOOTER_BYTES: usize = 48;
const TRAILER_BYTES: usize = 5;
/// A key is written whole after so many entries.
const RESTART: usize = 16;
/// A block ends once it is as long as this.
const BLOCK_BYTES: usize = 4096;

/// The bytes of a table of sorted keys.
pub fn to_bytes(entries: &[(Vec<u8>, Vec<u8>)]) -> Vec<u8> {
    assert!(entries.is_sorted_by(|a, b| a.0 < b.0), "keys of a table are sorted");
    let mut file = Vec::new();
    let mut index = Block::new(1);
    let mut block = Block::new(RESTART);
    for (k, (key, value)) in entries.iter().enumerate() {
        block.add(key, value);
        if block.bytes.len() >= BLOCK_BYTES || k + 1 == entries.len() {
            index.add(key, &handle(std::mem::replace(&mut block, Block::new(RESTART)).append(&mut file)));
        }
    }
    let empty = handle(Block::new(1).append(&mut file));
    let index = handle(index.append(&mut file));
    let mut footer = [empty, index].concat();
    footer.resize(FOOTER_BYTES - 8, 0);
    file.extend(footer);
    file.extend(MAGIC.to_le_bytes());
    file
}

/// Where a block lies: offset and length.
type Place = (u64, u64);

fn handle((offset, length): Place) -> Vec<u8> {
    let mut bytes = Vec::new();
    put_varint(&mut bytes, offset);
    put_varint(&mut bytes, length);
    bytes
}

/// A block while it is filled.
struct Block {
    bytes: Vec<u8>,
    restarts: Vec<u32>,
    last: Vec<u8>,
    n: usize,
    /// Entries between two keys that are written whole.
    every: usize,
}

impl Block {
    fn new(every: usize) -> Self {
        Block { bytes: vec![], restarts: vec![0], last: vec![], n: 0, every }
    }

    fn add(&mut self, key: &[u8], value: &[u8]) {
        let whole = self.n.is_multiple_of(self.every);
        if whole && self.n > 0 {
            self.restarts.push(self.bytes.len() as u32);
        }
        let shared = if whole { 0 } else { self.last.iter().zip(key).take_while(|(a, b)| a == b).count() };
        for length in [shared, key.len() - shared, value.len()] {
            put_varint(&mut self.bytes, length as u64);
        }
        self.bytes.extend_from_slice(&key[shared..]);
        self.bytes.extend_from_slice(value);
        self.last = key.to_vec();
        self.n += 1;
    }

    /// Ends the block at the end of a file, and says where it lies.
    fn append(mut self, file: &mut Vec<u8>) -> Place {
        for restart in &self.restarts {
            self.bytes.extend(restart.to_le_bytes());
        }
        self.bytes.extend((self.restarts.len() as u32).to_le_bytes());
        let place = (file.len() as u64, self.bytes.len() as u64);
        self.bytes.push(0); // not compressed
        let crc = masked_crc(&self.bytes);
        file.extend(self.bytes);
        file.extend(crc.to_le_bytes());
        place
    }
}

/// The entries of a table, in its order.
pub fn parse(file: &[u8]) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let footer = file.len().checked_sub(FOOTER_BYTES).map(|start| &file[start..]);
    let Some(footer) = footer.filter(|footer| footer[FOOTER_BYTES - 8..] == MAGIC.to_le_bytes()) else {
        return Err(err!("this is no index of a TensorFlow checkpoint, or its end is missing")
            .help("the file model.ckpt-STEP.index is written by PiNN and by `pinn train`"));
    };
    let mut rest = footer;
    block(file, place(&mut rest)?)?; // holds nothing, but the file is whole only with it
    let index = place(&mut rest)?;
    let mut entries = Vec::new();
    for (_, handle) in block_entries(block(file, index)?)? {
        entries.extend(block_entries(block(file, place(&mut &handle[..])?)?)?);
    }
    Ok(entries)
}

fn varint(rest: &mut &[u8]) -> Result<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let Some((&byte, after)) = rest.split_first() else { bail!("a number ends early") };
        *rest = after;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Ok(value);
        }
    }
    bail!("a number of more than ten bytes")
}

fn place(rest: &mut &[u8]) -> Result<Place> {
    Ok((varint(rest)?, varint(rest)?))
}

/// The bytes of a block, which its checksum vouches for.
fn block(file: &[u8], (offset, length): Place) -> Result<&[u8]> {
    let end = offset.checked_add(length).and_then(|end| end.checked_add(TRAILER_BYTES as u64));
    let Some(end) = end.filter(|end| *end <= file.len() as u64) else {
        bail!("a block of {length} bytes at byte {offset}, but the file has {}", file.len());
    };
    let (checked, crc) = file[offset as usize..end as usize].split_at(length as usize + 1);
    let stored = u32::from_le_bytes(*crc.first_chunk().expect("the trailer has four bytes more"));
    if stored != masked_crc(checked) {
        return Err(err!("the checksum of the block at byte {offset} is wrong").help("the file is damaged"));
    }
    match checked.split_last() {
        Some((0, block)) => Ok(block),
        _ => bail!("the block at byte {offset} is compressed, which PiNN's checkpoints are not"),
    }
}

fn block_entries(block: &[u8]) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let restarts = block.last_chunk::<4>().map_or(0, |n| u32::from_le_bytes(*n) as usize);
    let tail = restarts.checked_mul(4).and_then(|n| n.checked_add(4));
    let Some(end) = tail.and_then(|tail| block.len().checked_sub(tail)) else {
        bail!("a block of {} bytes with {restarts} restarts", block.len());
    };
    let mut rest = &block[..end];
    let mut key: Vec<u8> = Vec::new();
    let mut entries = Vec::new();
    while !rest.is_empty() {
        let [shared, unshared, length] = [varint(&mut rest)?, varint(&mut rest)?, varint(&mut rest)?];
        let fits = unshared.checked_add(length).is_some_and(|n| n <= rest.len() as u64);
        if shared > key.len() as u64 || !fits {
            bail!("an entry of {unshared} and {length} bytes, but the block has {} left", rest.len());
        }
        key.truncate(shared as usize);
        let (end_of_key, after) = rest.split_at(unshared as usize);
        let (value, after) = after.split_at(length as usize);
        key.extend_from_slice(end_of_key);
        entries.push((key.clone(), value.to_vec()));
        rest = after;
    }
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn many() -> Vec<(Vec<u8>, Vec<u8>)> {
        (0..500).map(|k| (format!("net/layer_{k:04}/kernel").into_bytes(), vec![k as u8; k % 40])).collect()
    }

    #[test]
    fn a_table_is_read_again_whatever_its_length() {
        for n in [0, 1, 2, 16, 17, 500] {
            let entries = many()[..n].to_vec();
            assert_eq!(parse(&to_bytes(&entries)).unwrap(), entries, "{n} entries");
        }
    }

    #[test]
    fn no_damage_goes_unnoticed() {
        let bytes = to_bytes(&many());
        for at in (0..bytes.len() - FOOTER_BYTES).step_by(7) {
            let mut bytes = bytes.clone();
            bytes[at] ^= 1;
            assert!(parse(&bytes).is_err(), "byte {at}");
        }
        // The footer has no checksum: other places are no blocks, or those of no table.
        for at in bytes.len() - FOOTER_BYTES..bytes.len() {
            for bit in 0..8 {
                let mut bytes = bytes.clone();
                bytes[at] ^= 1 << bit;
                let _ = parse(&bytes);
            }
        }
        for length in [0, 10, FOOTER_BYTES, bytes.len() - 1] {
            assert!(parse(&bytes[..length]).is_err(), "{length} bytes");
        }
    }
}
