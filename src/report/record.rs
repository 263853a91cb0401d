//! Records with checksums, and the wire format of the messages inside.
//!
//! A record is its length (u64), the masked CRC-32C of the length, the payload, and the payload's masked CRC-32C, all
//! little-endian. TensorBoard's event files and TFRecord files are rows of records. A payload is a message of numbered
//! fields.

use crate::error::Result;
use crate::{bail, err};

/// Bytes of a record before its payload.
pub const HEAD_BYTES: usize = 12;
/// Bytes of a record after its payload.
pub const TAIL_BYTES: usize = 4;

/// The CRC of a record: rotated and shifted, because CRCs of data that holds CRCs are weak.
pub fn masked_crc(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

/// Adds one record.
pub fn put_record(out: &mut Vec<u8>, payload: &[u8]) {
    let length = (payload.len() as u64).to_le_bytes();
    out.extend_from_slice(&length);
    out.extend_from_slice(&masked_crc(&length).to_le_bytes());
    out.extend_from_slice(payload);
    out.extend_from_slice(&masked_crc(payload).to_le_bytes());
}

/// The length of the payload that a head announces.
///
/// - head  the first [`HEAD_BYTES`] of a record
pub fn payload_length(head: &[u8]) -> Result<u64> {
    let length = head.first_chunk::<8>().ok_or_else(|| err!("the record ends within its length"))?;
    check(length, head.get(8..HEAD_BYTES), "the length")?;
    Ok(u64::from_le_bytes(*length))
}

/// The payload of a record whose bytes after the head are `rest`.
pub fn payload(rest: &[u8]) -> Result<&[u8]> {
    let Some(end) = rest.len().checked_sub(TAIL_BYTES) else { bail!("the record ends within its data") };
    check(&rest[..end], rest.get(end..), "the data")?;
    Ok(&rest[..end])
}

fn check(bytes: &[u8], crc: Option<&[u8]>, what: &str) -> Result<()> {
    let Some(stored) = crc.and_then(|crc| crc.first_chunk::<4>()) else {
        bail!("the record ends within the checksum of {what}")
    };
    let (stored, found) = (u32::from_le_bytes(*stored), masked_crc(bytes));
    if stored != found {
        return Err(err!("the checksum of {what} is {stored:08x}, its bytes have {found:08x}")
            .help("the file was damaged, or is of another kind"));
    }
    Ok(())
}

/// Writes a number of one to ten bytes.
pub fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Writes a whole number as a field.
pub fn put_varint_field(out: &mut Vec<u8>, field: u64, value: u64) {
    put_varint(out, field << 3);
    put_varint(out, value);
}

/// Writes a float64 as a field.
pub fn put_double(out: &mut Vec<u8>, field: u64, value: f64) {
    put_varint(out, field << 3 | 1);
    out.extend_from_slice(&value.to_le_bytes());
}

/// Writes bytes, a string or a message as a field.
pub fn put_bytes(out: &mut Vec<u8>, field: u64, bytes: &[u8]) {
    put_varint(out, field << 3 | 2);
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Writes a float32 as a field.
pub fn put_float(out: &mut Vec<u8>, field: u64, value: f32) {
    put_varint(out, field << 3 | 5);
    out.extend_from_slice(&value.to_le_bytes());
}

/// The content of one field.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Wire<'a> {
    Varint(u64),
    Fixed64([u8; 8]),
    Bytes(&'a [u8]),
    Fixed32([u8; 4]),
}

/// The fields of a message, in the order in which they are stored. Ends after the first error.
#[derive(Debug, Clone)]
pub struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    /// The fields of these bytes.
    pub fn of(message: &'a [u8]) -> Self {
        Fields { rest: message }
    }

    fn take(&mut self, n: u64) -> Result<&'a [u8]> {
        match usize::try_from(n).ok().filter(|n| *n <= self.rest.len()) {
            Some(n) => {
                let (head, rest) = self.rest.split_at(n);
                self.rest = rest;
                Ok(head)
            }
            None => bail!("a field of {n} bytes, but the message has {} left", self.rest.len()),
        }
    }

    fn fixed<const N: usize>(&mut self) -> Result<[u8; N]> {
        let bytes = self.take(N as u64)?;
        Ok(*bytes.first_chunk::<N>().expect("as many bytes were taken"))
    }

    fn varint(&mut self) -> Result<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let [byte] = self.fixed::<1>()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        bail!("a whole number of more than ten bytes")
    }

    fn field(&mut self) -> Result<(u64, Wire<'a>)> {
        let key = self.varint()?;
        let wire = match key & 7 {
            0 => Wire::Varint(self.varint()?),
            1 => Wire::Fixed64(self.fixed()?),
            2 => {
                let length = self.varint()?;
                Wire::Bytes(self.take(length)?)
            }
            5 => Wire::Fixed32(self.fixed()?),
            other => bail!("wire type {other}, which no message has"),
        };
        Ok((key >> 3, wire))
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u64, Wire<'a>)>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_err() {
            self.rest = &[];
        }
        Some(field)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mask_is_that_of_the_format() {
        // CRC-32C of "123456789" is the check value 0xe3069283.
        assert_eq!(masked_crc(b"123456789"), 0xe306_9283u32.rotate_right(15).wrapping_add(0xa282_ead8));
        assert_eq!(crc32c::crc32c(b"123456789"), 0xe306_9283);
    }

    #[test]
    fn a_record_is_read_back_and_a_flipped_bit_is_found() {
        let mut bytes = Vec::new();
        put_record(&mut bytes, b"payload");
        assert_eq!(payload_length(&bytes[..HEAD_BYTES]).unwrap(), 7);
        assert_eq!(payload(&bytes[HEAD_BYTES..]).unwrap(), b"payload");
        for bit in 0..8 * bytes.len() {
            let mut bad = bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(payload_length(&bad[..HEAD_BYTES]).is_err() || payload(&bad[HEAD_BYTES..]).is_err());
        }
    }

    #[test]
    fn fields_of_every_kind_are_read_back() {
        let mut bytes = Vec::new();
        put_varint_field(&mut bytes, 1, u64::MAX);
        put_double(&mut bytes, 2, 1.5);
        put_bytes(&mut bytes, 3, b"abc");
        put_float(&mut bytes, 400, 2.5);
        let fields: Vec<_> = Fields::of(&bytes).map(|f| f.unwrap()).collect();
        let want = [
            (1, Wire::Varint(u64::MAX)),
            (2, Wire::Fixed64(1.5f64.to_le_bytes())),
            (3, Wire::Bytes(b"abc")),
            (400, Wire::Fixed32(2.5f32.to_le_bytes())),
        ];
        assert_eq!(fields, want);
    }

    #[test]
    fn a_message_that_ends_early_is_an_error() {
        let mut bytes = Vec::new();
        put_bytes(&mut bytes, 1, b"abcdef");
        for end in 1..bytes.len() {
            assert!(Fields::of(&bytes[..end]).any(|f| f.is_err()), "{end}");
        }
        assert!(Fields::of(&[0xff; 20]).next().unwrap().is_err());
        assert!(Fields::of(&[0x0f, 1]).next().unwrap().is_err());
    }
}
