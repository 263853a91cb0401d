//! Numbers and strings as XDR stores them: big-endian, in units of four bytes.

use crate::bail;
use crate::error::Result;

/// Reads bytes from the front. Knows where it is, for messages.
pub struct Xdr<'a> {
    bytes: &'a [u8],
    at: usize,
    /// True where the bytes of every number are the other way round.
    pub swapped: bool,
}

impl<'a> Xdr<'a> {
    /// Starts at the front of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Xdr { bytes, at: 0, swapped: false }
    }

    /// Bytes that were read so far.
    pub fn at(&self) -> usize {
        self.at
    }

    /// True behind the last byte.
    pub fn is_at_end(&self) -> bool {
        self.at >= self.bytes.len()
    }

    /// The next `n` bytes as they are.
    pub fn bytes(&mut self, n: usize) -> Result<&'a [u8]> {
        let left = self.bytes.len() - self.at;
        if n > left {
            bail!("byte {}: {n} bytes wanted, {left} are left", self.at);
        }
        let part = &self.bytes[self.at..self.at + n];
        self.at += n;
        Ok(part)
    }

    fn chunk<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut chunk = *self.bytes(N)?.first_chunk::<N>().expect("as many bytes were read");
        if self.swapped {
            chunk.reverse();
        }
        Ok(chunk)
    }

    /// A u32.
    pub fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_be_bytes(self.chunk()?))
    }

    /// An i32.
    pub fn i32(&mut self) -> Result<i32> {
        Ok(i32::from_be_bytes(self.chunk()?))
    }

    /// A float32.
    pub fn f32(&mut self) -> Result<f32> {
        Ok(f32::from_be_bytes(self.chunk()?))
    }

    /// A float64.
    pub fn f64(&mut self) -> Result<f64> {
        Ok(f64::from_be_bytes(self.chunk()?))
    }

    /// A string: length, bytes, zeros up to a multiple of four.
    pub fn string(&mut self) -> Result<&'a str> {
        let at = self.at;
        let length = self.u32()? as usize;
        let bytes = self.bytes(length)?;
        self.bytes(length.next_multiple_of(4) - length)?;
        match std::str::from_utf8(bytes) {
            Ok(text) => Ok(text),
            Err(_) => bail!("byte {at}: a string of {length} bytes that is not text"),
        }
    }
}
