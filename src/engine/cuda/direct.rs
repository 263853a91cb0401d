//! The embedding by the nets themselves, pair by pair: where no series describes them, or none is wanted.
//!
//! See `kernels/direct.cu` and `engine/cpu/direct.rs`. Memory does not depend on the batch: every block of the kernels
//! computes the nets for a few neighbours at a time.

use super::device::{Buffer, Device, arguments};
use super::layout::{self, Batch};
use super::network::{Network, SeriesOnDevice, padded};
use crate::Result;
use crate::engine::cpu::chebyshev::Plan;
use std::sync::Arc;

/// Neighbours that a block works on at once, and what is kept of each layer for them: the numbers of `direct.cu`.
const ROWS: usize = 32;
const VALUES: usize = 1;
const JETS: usize = 2;
const ALL: usize = 8;
/// Parameters that one block of `direct_weights` works on.
const SUMMED: usize = 32;
/// Blocks that share a multiprocessor, and shared memory that each of them leaves for what it declares itself.
const BLOCKS: usize = 2;
const DECLARED: usize = 8192;

/// The embedding nets on a device, to be evaluated for every pair.
pub struct Direct {
    /// The nets as a series of no terms: their layers, and the place of their gradients.
    pub nets: SeriesOnDevice,
    device: Arc<Device>,
    /// Blocks of the kernels at most.
    blocks: usize,
    values: Memory,
    jets: Memory,
    all: Memory,
    _tables: [Buffer; 2],
}

/// What a kernel gets to keep layers in.
struct Memory {
    direct: layout::Direct,
    shared: usize,
    _scratch: Option<Buffer>,
}

impl Direct {
    pub fn new(network: &Network) -> Result<Direct> {
        let (device, model) = (&network.device, &network.model);
        let nets = SeriesOnDevice::new(network, &Arc::new(Plan::none(model)))?;
        let (n_types, blocks) = (model.n_types(), BLOCKS * device.multiprocessors);
        let pairs = (0..n_types).flat_map(|c| (0..n_types).map(move |t| (c, t)));
        let net: Vec<u32> = pairs.map(|(c, t)| model.embedding_net(c, t) as u32).collect();
        let net = Buffer::of(device, &net, "tables")?;
        let n_pieces = (blocks + nets.n_stacks) * n_types * network.embedding_size();
        let pieces = Buffer::zeroed(device, 8 * n_pieces, "gradients of the embedding nets")?;
        let common = layout::Direct {
            pieces: pieces.ptr(),
            net: net.ptr(),
            n_stacks: nets.n_stacks as i32,
            ..layout::Direct::default()
        };
        let memory = |parts: usize, rows_of_a: usize| Memory::new(network, common, blocks, parts, rows_of_a);
        Ok(Direct {
            values: memory(VALUES, 4)?,
            jets: memory(JETS, 4)?,
            all: memory(ALL, 8)?,
            nets,
            device: device.clone(),
            blocks,
            _tables: [net, pieces],
        })
    }

    fn launch(&self, name: &'static str, memory: &Memory, b: &Batch) -> Result<()> {
        let arguments = arguments![*b, self.nets.embedding, memory.direct];
        self.device.launch(name, self.grid(b), 256, memory.shared, arguments)
    }

    fn grid(&self, b: &Batch) -> usize {
        self.blocks.min(b.n_rows as usize)
    }

    /// A of every row.
    pub fn describe(&self, b: &Batch) -> Result<()> {
        self.launch("direct_describe", &self.values, b)
    }

    /// dE/dd of every pair from dE/dA.
    pub fn forces(&self, b: &Batch) -> Result<()> {
        self.launch("direct_forces", &self.jets, b)
    }

    /// The change of A along the direction of the second pass.
    pub fn tangent(&self, b: &Batch) -> Result<()> {
        self.launch("direct_tangent", &self.jets, b)
    }

    /// Pieces of the gradient of the nets from the adjoints of A and of its change.
    pub fn adjoint(&self, b: &Batch) -> Result<()> {
        self.launch("direct_adjoint", &self.all, b)
    }

    /// Adds up the pieces: into the place of the gradient, or for an update of `moved`, which has the parameters and both
    /// moments. `trained`: which nets learn.
    pub fn weights(&self, b: &Batch, moved: [u64; 3], trained: u64) -> Result<()> {
        let e = &self.nets.embedding;
        let blocks = e.n_nets as usize * (e.net_size as usize).div_ceil(SUMMED);
        let [params, first, second] = moved;
        let pieces = self.grid(b) as i32;
        let arguments =
            arguments![*b, *e, self.all.direct, pieces, params, first, second, trained, b.turn, b.status];
        self.device.launch("direct_weights", blocks, 256, 0, arguments)
    }
}

impl Memory {
    /// Room for `parts` arrays of each layer, beside `rows_of_a` rows of A: in shared memory where `BLOCKS` of them fit.
    fn new(
        network: &Network,
        common: layout::Direct,
        blocks: usize,
        parts: usize,
        rows_of_a: usize,
    ) -> Result<Self> {
        let (device, size) = (&network.device, network.device.numbers.size());
        let widths = network.model.embedding[0].layers.iter().map(|l| pitch(l.n_out));
        let room = parts * ROWS * widths.sum::<usize>();
        let shared = rows_of_a * padded(network.model.n_embed()) * size;
        if shared + room * size <= (device.max_shared() / BLOCKS).saturating_sub(DECLARED) {
            return Ok(Memory { direct: common, shared: shared + room * size, _scratch: None });
        }
        let scratch = Buffer::zeroed(device, blocks * room * size, "the embedding nets")?;
        let direct = layout::Direct { scratch: scratch.ptr(), room: room as u64, ..common };
        Ok(Memory { direct, shared, _scratch: Some(scratch) })
    }
}

/// From one row of a layer to the next, as in `direct.cu`.
fn pitch(n: usize) -> usize {
    (n + 3) / 8 * 8 + 4
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_a_layer_hold_it_and_start_on_different_banks() {
        for n in 1..300 {
            assert!(pitch(n) >= n && pitch(n) < n + 8 && pitch(n) % 8 == 4, "{n}");
        }
    }

    #[test]
    fn the_kernels_have_the_same_numbers() {
        let program = include_str!("kernels/direct.cu");
        assert!(program.contains(&format!("#define ROWS {ROWS}\n")));
        assert!(program.contains(&format!("#define SUMMED {SUMMED}\n")));
        assert!(program.contains(&format!("enum {{ VALUES = {VALUES}, JETS = {JETS}, ALL = {ALL} }};")));
        assert!(program.contains("{ return (n + 3) / 8 * 8 + 4; }"));
    }
}
