//! Structures that stay on the device: they are brought once and named by where they lie.

use super::layout::Ptr;
use crate::gpu::{Buffer, Device};
use crate::{Result, bail};
use std::sync::Arc;

/// Memory is taken in pieces of so many bytes, or larger ones for larger structures.
const PIECE: usize = 64 << 20;

/// Where structures lie. When it is full, everything is given up at once and the order of the stream keeps those that
/// are still read.
pub struct Store {
    device: Arc<Device>,
    pieces: Vec<Buffer<u8>>,
    /// The piece that is being filled, and how far.
    piece: usize,
    filled: usize,
    /// Bytes that it may take.
    limit: usize,
    taken: usize,
    /// Grows when everything is given up.
    pub generation: u64,
}

impl Store {
    pub fn new(device: &Arc<Device>, limit: usize) -> Self {
        Store {
            device: device.clone(),
            pieces: Vec::new(),
            piece: 0,
            filled: 0,
            limit,
            taken: 0,
            generation: 0,
        }
    }

    /// Gives everything up.
    pub fn clear(&mut self) {
        (self.piece, self.filled) = (0, 0);
        self.generation += 1;
    }

    /// Brings a structure; `None` where there is no room left before [`Store::clear`].
    pub fn put(&mut self, blob: &[u8]) -> Result<Option<Ptr>> {
        let bytes = blob.len().next_multiple_of(256);
        while let Some(piece) = self.pieces.get(self.piece) {
            if self.filled + bytes <= piece.bytes() {
                piece.write(self.filled, blob)?;
                let at = piece.address() + self.filled as u64;
                self.filled += bytes;
                return Ok(Some(at));
            }
            (self.piece, self.filled) = (self.piece + 1, 0);
        }
        let size = PIECE.max(bytes);
        if self.taken + size > self.limit {
            if self.pieces.is_empty() {
                bail!("a structure takes {} MB, and {} MB are free on the GPU", size >> 20, self.limit >> 20);
            }
            return Ok(None);
        }
        self.pieces.push(Buffer::zeroed(&self.device, size, "structures")?);
        self.taken += size;
        (self.piece, self.filled) = (self.pieces.len() - 1, 0);
        self.put(blob)
    }
}
