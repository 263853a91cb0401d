//! The embedding by the nets themselves, pair by pair: where no series describes them, or none is wanted.
//!
//! See `kernels/direct.cu` and `engine/cpu/direct.rs`. Value and derivative of the nets are kept for every pair of a batch
//! from the first kernel to the last: 1.6 KB a pair for 100 outputs in float64.

use super::layout::{self, Batch, Embedding};
use super::network::{Network, SeriesOnDevice};
use super::program::*;
use crate::Result;
use crate::engine::cpu::chebyshev::Plan;
use crate::gpu::{Buffer, Device, Kernel, Launch, Ptr, Real};
use crate::model::net::LayerShape;
use std::sync::Arc;

/// Places of a tile and threads of the kernels: the numbers of `direct.cu`.
const TILE_PLACES: usize = 32;
const NETS_THREADS: usize = 256;
const ADJOINT_THREADS: usize = 512;
const ATOM_THREADS: usize = 512;
/// Parameters that one block of `direct_weights` works on.
const SUMMED: usize = 32;
/// Bytes of shared memory that a block of the kernels on tiles takes beside what is asked for: declared in the kernel, and
/// the system's own.
const DECLARED: usize = 2600;
const SYSTEM: usize = 1024;

/// The embedding nets on a device, to be evaluated for every pair.
pub struct Direct {
    /// The nets as a series of no terms: their layers, and the place of their gradients.
    pub nets: SeriesOnDevice,
    device: Arc<Device>,
    n_types: usize,
    n_sel: usize,
    /// Numbers of env.
    n_env: usize,
    forward: Tiles,
    adjoint: Tiles,
    /// What is kept for the places of the largest batch so far.
    kept: Option<Kept>,
    tables: layout::Direct,
    _buffers: (Buffer<u32>, Buffer<u32>, Buffer<f64>),
}

/// Units of work that a block should have at least, so that it matters little that some have one more than others.
const MANY_UNITS: usize = 4;

/// How a kernel goes through the tiles.
struct Tiles {
    kernel: OnPairs,
    threads: usize,
    /// Blocks at most.
    blocks: usize,
    /// Places at once.
    rows: usize,
    /// Shared memory of a block, bytes.
    shared: usize,
    /// Where the shared memory does not suffice: memory of all blocks, and numbers of each.
    scratch: Option<(Buffer<Real>, usize)>,
}

/// Memory for so many places and atoms.
struct Kept {
    places: usize,
    rows: usize,
    /// `kept`, `s`, `seeds` of the kernels.
    numbers: [Buffer<Real>; 3],
    /// `row`, `start`.
    words: [Buffer<u32>; 2],
}

impl Direct {
    pub fn new(network: &Network) -> Result<Direct> {
        let (device, model) = (&network.device, &network.model);
        let nets = SeriesOnDevice::new(network, &Arc::new(Plan::none(model)))?;
        let n_types = model.n_types();
        let pairs = (0..n_types).flat_map(|c| (0..n_types).map(move |t| (c, t)));
        let net: Vec<u32> = pairs.map(|(c, t)| model.embedding_net(c, t) as u32).collect();
        let net = Buffer::of(device, &net, "tables")?;
        let n_groups = nets.n_stacks * n_types;
        let groups = Buffer::zeroed(device, 2 * (n_groups + 1), "tables")?;
        let layers = &model.embedding[0].layers;
        let has_idt = layers.iter().any(|layer| layer.idt.is_some());
        let size = |adjoint: bool| move |rows: usize| memory(layers, rows, adjoint, has_idt);
        let forward = Tiles::new(device, [DIRECT_NETS, DIRECT_NETS_BESIDE], NETS_THREADS, 2, &size(false))?;
        let adjoint =
            Tiles::new(device, [DIRECT_ADJOINT, DIRECT_ADJOINT_BESIDE], ADJOINT_THREADS, 1, &size(true))?;
        let n_pieces = (adjoint.blocks + n_groups) * network.embedding_size();
        let pieces = Buffer::zeroed(device, n_pieces, "gradients of the embedding nets")?;
        for kernel in KERNELS.into_iter().chain([forward.kernel.name(), adjoint.kernel.name()]) {
            device.foresee(kernel);
        }
        Ok(Direct {
            tables: layout::Direct {
                groups: groups.address(),
                pieces: pieces.address(),
                net: net.address(),
                n_stacks: nets.n_stacks as i32,
                ld_kept: model.n_embed().next_multiple_of(4) as i32,
                has_idt: i32::from(has_idt),
                ..layout::Direct::default()
            },
            nets,
            device: device.clone(),
            n_types,
            n_sel: model.n_sel(),
            n_env: model.descriptor().form().components(),
            forward,
            adjoint,
            kept: None,
            _buffers: (net, groups, pieces),
        })
    }

    /// Places that a batch may need: its pairs, one more for the empty slots of every atom and type, whole tiles.
    fn places(&self, b: &Batch) -> usize {
        self.places_of(b.n_rows as usize)
    }

    fn places_of(&self, rows: usize) -> usize {
        let tiles = self.nets.n_stacks * self.n_types * TILE_PLACES;
        (rows * (self.n_sel + self.n_types) + tiles).next_multiple_of(TILE_PLACES)
    }

    /// Bytes that are kept for a batch of so many atoms.
    pub fn bytes(&self, rows: usize) -> usize {
        let numbers = 2 * self.tables.ld_kept as usize + 9;
        self.places_of(rows) * (numbers * self.device.numbers.size() + 4) + 4 * rows * self.n_types
    }

    /// Makes room for a batch. True where memory moved, so that nothing that was recorded holds any more.
    pub fn make_room(&mut self, b: &Batch) -> Result<bool> {
        let (places, rows) = (self.places(b), b.n_rows as usize);
        let is_enough = |kept: &Kept| kept.places >= places && kept.rows >= rows;
        if self.kept.as_ref().is_some_and(is_enough) {
            return Ok(false);
        }
        self.device.synchronize()?;
        self.kept = None;
        let what = "the embedding nets of all pairs";
        let reals = |n: usize| Buffer::zeroed_reals(&self.device, n, what);
        let words = |n: usize| Buffer::zeroed(&self.device, n, what);
        let numbers = [reals(places * 2 * self.tables.ld_kept as usize)?, reals(places)?, reals(places * 8)?];
        let words = [words(places)?, words(rows * self.n_types)?];
        self.kept = Some(Kept { places, rows, numbers, words });
        Ok(true)
    }

    /// What a kernel takes.
    fn table(&self, tiles: &Tiles) -> layout::Direct {
        let number = |k: usize| self.kept.as_ref().map_or(0, |kept| kept.numbers[k].address());
        let word = |k: usize| self.kept.as_ref().map_or(0, |kept| kept.words[k].address());
        let (scratch, room) =
            tiles.scratch.as_ref().map_or((0, 0), |(buffer, room)| (buffer.address(), *room));
        layout::Direct {
            kept: number(0),
            s: number(1),
            seeds: number(2),
            row: word(0),
            start: word(1),
            scratch,
            room: room as u64,
            rows: tiles.rows as i32,
            ..self.tables
        }
    }

    /// Blocks of a kernel on tiles: no more than there can be work for.
    fn grid(&self, tiles: &Tiles, b: &Batch) -> usize {
        tiles.blocks.min(self.places(b) / tiles.rows)
    }

    unsafe fn on_tiles(&self, tiles: &Tiles, rows: usize, b: &Batch) -> Result<()> {
        let launch = Launch::new(self.grid(tiles, b), tiles.threads).shared(tiles.shared);
        let table = layout::Direct { rows: rows as i32, ..self.table(tiles) };
        // SAFETY: the caller's word.
        unsafe { self.on_pairs(tiles.kernel, launch, b, table) }
    }

    unsafe fn on_atoms(&self, kernel: OnPairs, b: &Batch, shared: usize) -> Result<()> {
        let launch = Launch::new(b.n_rows as usize, ATOM_THREADS).shared(shared);
        // SAFETY: the caller's word.
        unsafe { self.on_pairs(kernel, launch, b, self.table(&self.forward)) }
    }

    unsafe fn on_pairs(
        &self,
        kernel: OnPairs,
        launch: Launch,
        b: &Batch,
        table: layout::Direct,
    ) -> Result<()> {
        let (device, arguments) = (&self.device, (*b, self.nets.embedding, table));
        // SAFETY: the caller's word.
        unsafe { kernel.launch(device, device.stream(), launch, arguments) }
    }

    /// The nets at all pairs, and A of every row.
    ///
    /// # Safety
    ///
    /// The batch is that of a shape whose memory is there, and [`Direct::make_room`] was called for it.
    pub unsafe fn describe(&self, b: &Batch) -> Result<()> {
        let segments = self.n_types * b.n_rows as usize;
        let table = self.table(&self.forward);
        let (device, main) = (&self.device, self.device.stream());
        // Places do not know of each other here: there may be less of them at once than there is room for.
        let few = self.places(b) / self.forward.rows < MANY_UNITS * self.forward.blocks;
        let rows = if few { TILE_PLACES / 2 } else { self.forward.rows };
        // SAFETY: the caller's word.
        unsafe {
            DIRECT_PLAN.launch(device, main, Launch::new(1, 1024), (*b, table))?;
            DIRECT_PLACES.launch(device, main, Launch::new(segments.div_ceil(8), 256), (*b, table))?;
            self.on_tiles(&self.forward, rows, b)?;
            self.on_atoms(DIRECT_DESCRIBE, b, 0)
        }
    }

    /// dE/dd of every pair from dE/dA.
    ///
    /// # Safety
    ///
    /// As for [`Direct::describe`].
    pub unsafe fn forces(&self, b: &Batch) -> Result<()> {
        // SAFETY: the caller's word.
        unsafe { self.on_atoms(DIRECT_FORCES, b, self.n_env * b.ldm as usize * self.device.numbers.size()) }
    }

    /// The change of A along the direction of the second pass.
    ///
    /// # Safety
    ///
    /// As for [`Direct::describe`].
    pub unsafe fn tangent(&self, b: &Batch) -> Result<()> {
        // SAFETY: the caller's word.
        unsafe { self.on_atoms(DIRECT_TANGENT, b, 0) }
    }

    /// Pieces of the gradient of the nets from the adjoints of A and of its change.
    ///
    /// # Safety
    ///
    /// As for [`Direct::describe`].
    pub unsafe fn adjoint(&self, b: &Batch) -> Result<()> {
        // SAFETY: the caller's word.
        unsafe { self.on_tiles(&self.adjoint, self.adjoint.rows, b) }
    }

    /// Adds up the pieces: into the place of the gradient, or for an update of `moved`, which has the parameters and both
    /// moments. `trained`: which nets learn.
    ///
    /// # Safety
    ///
    /// As for [`Direct::describe`].
    pub unsafe fn weights(&self, b: &Batch, moved: [Ptr<f64>; 3], trained: Ptr<u32>) -> Result<()> {
        let e = &self.nets.embedding;
        let blocks = e.n_nets as usize * (e.net_size as usize).div_ceil(SUMMED);
        let [params, first, second] = moved;
        let pieces = self.grid(&self.adjoint, b) as i32;
        let table = self.table(&self.adjoint);
        let (turn, status) = (Ptr::at(b.turn), Ptr::at(b.status));
        let arguments = (*b, *e, table, pieces, params, first, second, trained, turn, status);
        let (device, launch) = (&self.device, Launch::new(blocks, 256));
        // SAFETY: the caller's word; `moved` holds the parameters of all nets.
        unsafe { DIRECT_WEIGHTS.launch(device, device.stream(), launch, arguments) }
    }
}

/// A kernel that goes through pairs.
type OnPairs = Kernel<(Batch, Embedding, layout::Direct)>;

/// Those of every model.
const KERNELS: [&str; 6] = [
    DIRECT_PLAN.name(),
    DIRECT_PLACES.name(),
    DIRECT_DESCRIBE.name(),
    DIRECT_FORCES.name(),
    DIRECT_TANGENT.name(),
    DIRECT_WEIGHTS.name(),
];

impl Tiles {
    /// As many places at once as fit where so many blocks share a multiprocessor, else where one has it alone; if none do,
    /// layers and weights stand in device memory. `size`: the numbers that a block keeps for so many places.
    fn new(
        device: &Arc<Device>,
        [inside, beside]: [OnPairs; 2],
        threads: usize,
        together: usize,
        size: &dyn Fn(usize) -> usize,
    ) -> Result<Tiles> {
        let bytes = |rows: usize| size(rows) * device.numbers.size();
        // What is left beside a largest block counts too.
        let all = device.max_shared() + 2048 + SYSTEM;
        let choices = [together, 1].into_iter().flat_map(|n| [(n, TILE_PLACES), (n, TILE_PLACES / 2)]);
        let fits = |&(n, rows): &(usize, usize)| n * (bytes(rows) + DECLARED + SYSTEM) <= all;
        if let Some((n, rows)) = choices.into_iter().find(fits) {
            let (blocks, shared) = (n * device.multiprocessors, bytes(rows));
            return Ok(Tiles { kernel: inside, threads, blocks, rows, shared, scratch: None });
        }
        let (blocks, room) = (together * device.multiprocessors, size(TILE_PLACES));
        let scratch = Buffer::zeroed_reals(device, blocks * size(TILE_PLACES), "the embedding nets")?;
        Ok(Tiles {
            kernel: beside,
            threads,
            blocks,
            rows: TILE_PLACES,
            shared: 0,
            scratch: Some((scratch, room)),
        })
    }
}

/// Numbers of a row of a layer that is filled up with zeros, and from one row to the next, as in `direct.cu`.
fn whole_width(n: usize) -> usize {
    n.next_multiple_of(8)
}
fn pitch(n: usize) -> usize {
    whole_width(n) + 4
}

/// Numbers that a block keeps for so many places: `lay_out` of `direct.cu`.
fn memory(layers: &[LayerShape], rows: usize, adjoint: bool, has_idt: bool) -> usize {
    let last = layers.len() - 1;
    let weights: usize = layers[1..].iter().map(|l| whole_width(l.n_in) * pitch(l.n_out)).sum();
    let fits_below = last > 1 && pitch(layers[0].n_out) <= pitch(layers[last].n_out);
    let twos = |l: usize| {
        let output = l < last || adjoint && l == 0;
        let adjoints = if l > 0 { l < last } else { last > 0 && !fits_below };
        usize::from(output)
            + usize::from(adjoint)
                * (usize::from(l > 0) + usize::from(adjoints) + usize::from(l > 0 && has_idt))
    };
    weights
        + layers.iter().enumerate().map(|(l, shape)| twos(l) * 2 * rows * pitch(shape.n_out)).sum::<usize>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_a_layer_hold_it_and_start_on_different_banks() {
        for n in 1..300 {
            assert!(pitch(n) >= n + 4 && pitch(n) < n + 12 && pitch(n) % 8 == 4, "{n}");
        }
    }

    #[test]
    fn the_kernels_have_the_same_numbers() {
        let program = include_str!("kernels/direct.cu");
        for (name, value) in [
            ("TILE_PLACES", TILE_PLACES),
            ("NETS_THREADS", NETS_THREADS),
            ("ADJOINT_THREADS", ADJOINT_THREADS),
            ("ATOM_THREADS", ATOM_THREADS),
            ("SUMMED", SUMMED),
        ] {
            assert!(program.contains(&format!("#define {name} {value}\n")), "{name}");
        }
        assert!(program.contains("{ return (n + 7) / 8 * 8; }") && program.contains("whole_width(n) + 4; }"));
    }
}
