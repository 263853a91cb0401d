//! LKF on the device: covariances, what is observed, and the kernels of an update with all their arguments.
//!
//! See `kernels/kalman.cu` for what they do and `optim/kalman.rs` for the filter itself. A covariance is kept as tiles of its lower
//! half; hosts know it by the rows of that.

use super::core::Core;
use super::layout::{Covariance, Kalman as Arguments, Observing};
use super::program::{
    KALMAN_BEGIN, KALMAN_GAIN, KALMAN_GATHER, KALMAN_MOVE, KALMAN_OBSERVE, KALMAN_PASS, KALMAN_SUMS,
};
use super::shape::Shape;
use crate::Result;
use crate::gpu::{Buffer, Device, Launch};
use std::ops::Range;
use std::sync::Arc;

/// Rows and columns of a tile.
const TILE: usize = 64;
/// Numbers of a tile, and what it brings to its rows and columns.
const NUMBERS: usize = TILE * TILE;
const PARTS: usize = 2 * TILE;

/// Covariances of blocks of parameters, and where these stand.
pub struct Kalman {
    device: Arc<Device>,
    blocks: Vec<Covariance>,
    arguments: Arguments,
    n_params: usize,
    tiles: Buffer<f64>,
    /// k of this update and of the one before, by turns.
    gains: [Buffer<f64>; 2],
    now: usize,
    /// The update that the covariances do not have yet: its a, and 1 / lambda.
    waiting: Option<(f64, f64)>,
    sums: Buffer<f64>,
    /// What else the kernels read and write; owned here.
    _memory: Box<dyn Send + Sync>,
}

fn n_tiles(n: usize) -> usize {
    let strips = n.div_ceil(TILE);
    strips * (strips + 1) / 2
}

impl Kalman {
    /// Bytes of GPU memory for covariances of so many parameters each.
    pub fn bytes(sizes: impl Iterator<Item = usize>) -> u64 {
        sizes.map(|n| 8 * (n_tiles(n) * (NUMBERS + PARTS)) as u64).sum()
    }

    /// Covariances 1 of `blocks`, which are ranges of places in `order`; that says which parameter stands where. Parameters and their
    /// gradient stay where they are while this is used.
    pub fn new(
        device: &Arc<Device>,
        params: &Buffer<f64>,
        grad: &Buffer<f64>,
        order: &[usize],
        blocks: &[Range<usize>],
    ) -> Result<Kalman> {
        let mut table = Vec::with_capacity(blocks.len());
        let (mut tiles_end, mut strips_end) = (0, 0);
        for block in blocks {
            let strips = block.len().div_ceil(TILE);
            table.push(Covariance {
                first: block.start as u64,
                first_tile: tiles_end as u64,
                first_strip: strips_end as u64,
                n: block.len() as i32,
                strips: strips as i32,
            });
            (tiles_end, strips_end) = (tiles_end + n_tiles(block.len()), strips_end + strips);
        }
        let zeros = |n: usize| Buffer::<f64>::zeroed(device, n.max(1), "the covariances");
        let tiles = zeros(tiles_end * NUMBERS)?;
        let parts = zeros(tiles_end * PARTS)?;
        let (h, gains) = (zeros(order.len())?, [zeros(order.len())?, zeros(order.len())?]);
        let (dots, sums) = (zeros(strips_end)?, zeros(blocks.len())?);
        let order: Vec<u32> = order.iter().map(|&k| k as u32).collect();
        let (order, of_blocks) =
            (Buffer::of(device, &order, "the covariances")?, Buffer::of(device, &table, "the covariances")?);
        let n_params = order.bytes() / size_of::<u32>();
        let arguments = Arguments {
            params: params.address(),
            grad: grad.address(),
            tiles: tiles.address(),
            parts: parts.address(),
            h: h.address(),
            dots: dots.address(),
            sums: sums.address(),
            blocks: of_blocks.address(),
            order: order.address(),
            n_params: n_params as u64,
            n_blocks: blocks.len() as i32,
            ..Arguments::default()
        };
        let kalman = Kalman {
            device: device.clone(),
            blocks: table,
            arguments,
            n_params,
            tiles,
            gains,
            now: 0,
            waiting: None,
            sums,
            _memory: Box::new((parts, h, dots, order, of_blocks)),
        };
        // SAFETY: see `Kalman::arguments`.
        unsafe { KALMAN_BEGIN.launch(device, device.stream(), kalman.strips(), (kalman.arguments(),))? };
        Ok(kalman)
    }

    /// Whatever they touch is owned here, or stays where it is by the word of [`Kalman::new`]; grids cover the tables.
    fn arguments(&self) -> Arguments {
        let [gain, last] = [&self.gains[self.now], &self.gains[1 - self.now]].map(Buffer::address);
        Arguments { gain, last, ..self.arguments }
    }

    fn strips(&self) -> Launch {
        let end = self.blocks.last().map_or(0, |block| block.first_strip + block.strips as u64);
        Launch::new(end as usize, 256)
    }

    fn of_params(&self) -> Launch {
        Launch::new(self.n_params.div_ceil(256), 256)
    }

    /// Makes the update that waits, and P h where it is wanted.
    fn pass(&mut self, multiplies: bool) -> Result<()> {
        let n = self.blocks.last().map_or(0, |b| b.first_tile as usize + n_tiles(b.n as usize));
        let waiting = self.waiting.take();
        let (a, inverse) = waiting.unwrap_or((0.0, 1.0));
        let arguments = (self.arguments(), a, inverse, i32::from(waiting.is_some()), i32::from(multiplies));
        // SAFETY: see `Kalman::arguments`.
        unsafe { KALMAN_PASS.launch(&self.device, self.device.stream(), Launch::new(n, 256), arguments) }
    }

    /// k = P h of all blocks, where h is `count` times the gradient; h k of each.
    pub fn make_gains(&mut self, count: f64) -> Result<Vec<f64>> {
        self.now = 1 - self.now;
        let (device, n_blocks) = (self.device.clone(), self.blocks.len());
        let main = device.stream();
        // SAFETY: see `Kalman::arguments`.
        unsafe { KALMAN_GATHER.launch(&device, main, self.of_params(), (self.arguments(), count))? };
        self.pass(true)?;
        // SAFETY: as above.
        unsafe {
            KALMAN_GAIN.launch(&device, main, self.strips(), (self.arguments(),))?;
            KALMAN_SUMS.launch(&device, main, Launch::new(n_blocks, 256), (self.arguments(),))?;
        }
        let mut sums = vec![0.0; n_blocks];
        self.sums.read(0, &mut sums)?;
        Ok(sums)
    }

    /// k of all parameters, in the order of places: what stands at places of other ranks is of no use.
    pub fn read_gain(&self, gain: &mut [f64]) -> Result<()> {
        self.gains[self.now].read(0, gain)
    }

    pub fn write_gain(&self, gain: &[f64]) -> Result<()> {
        self.gains[self.now].write(0, gain)
    }

    /// w += a e k; P <- (P - a k k^T) / lambda, which is done when P is next looked at.
    pub fn update(&mut self, a: f64, error: f64, lambda: f64) -> Result<()> {
        self.waiting = Some((a, 1.0 / lambda));
        let arguments = (self.arguments(), a * error);
        // SAFETY: see `Kalman::arguments`.
        unsafe { KALMAN_MOVE.launch(&self.device, self.device.stream(), self.of_params(), arguments) }
    }

    /// The lower halves of all covariances, row after row.
    pub fn read(&mut self, out: &mut [f64]) -> Result<()> {
        if self.waiting.is_some() {
            // Its gain is read as that of the update before.
            self.now = 1 - self.now;
            self.pass(false)?;
            self.now = 1 - self.now;
        }
        let (mut tiles, mut first) = (Vec::new(), 0);
        for block in &self.blocks {
            tiles.resize(n_tiles(block.n as usize) * NUMBERS, 0.0);
            self.tiles.read(block.first_tile as usize * NUMBERS, &mut tiles)?;
            first += each_piece(block.n as usize, |row, tile, n| {
                out[first + row..][..n].copy_from_slice(&tiles[tile..][..n]);
            });
        }
        Ok(())
    }

    /// Continues with covariances as [`Kalman::read`] has given them.
    pub fn write(&mut self, rows: &[f64]) -> Result<()> {
        self.waiting = None;
        let (mut tiles, mut first) = (Vec::new(), 0);
        for block in &self.blocks {
            tiles.clear();
            tiles.resize(n_tiles(block.n as usize) * NUMBERS, 0.0);
            first += each_piece(block.n as usize, |row, tile, n| {
                tiles[tile..][..n].copy_from_slice(&rows[first + row..][..n]);
            });
            self.tiles.write(block.first_tile as usize * NUMBERS, &tiles)?;
        }
        Ok(())
    }
}

/// Calls `copy` with where each piece of a row of a lower half of `n` rows stands among the rows and in the tiles, and how long it is.
/// Returns how many numbers there are.
fn each_piece(n: usize, mut copy: impl FnMut(usize, usize, usize)) -> usize {
    for i in 0..n {
        let (strip, first) = (i / TILE, i * (i + 1) / 2);
        for col in 0..=strip {
            let tile = (strip * (strip + 1) / 2 + col) * NUMBERS + i % TILE * TILE;
            copy(first + col * TILE, tile, TILE.min(i + 1 - col * TILE));
        }
    }
    n * (n + 1) / 2
}

/// What is observed of a batch in place of its loss.
pub struct Observer {
    what: Buffer<Observing>,
    /// `[frames, places]`
    atoms: Buffer<u32>,
    /// `[frames]`
    errors: Buffer<f64>,
}

impl Observer {
    /// For batches of so many frames, and so many places of atoms in each.
    pub fn new(device: &Arc<Device>, frames: usize, places: usize) -> Result<Observer> {
        Ok(Observer {
            what: Buffer::zeroed(device, 1, "what is observed")?,
            atoms: Buffer::zeroed(device, frames * places, "what is observed")?,
            errors: Buffer::zeroed(device, frames, "what is observed")?,
        })
    }

    /// What is observed next: the forces of so many atoms of each frame, by their number in the file, or of none, the energy.
    pub fn set(&self, prefactor: f64, n_places: usize, atoms: &[u32]) -> Result<()> {
        if !atoms.is_empty() {
            self.atoms.write(0, atoms)?;
        }
        self.what.write(0, &[Observing { prefactor, n_places: n_places as u32, unused: 0 }])
    }

    /// Predictions of a batch, and the gradient of what is observed of them, in the flat vector.
    ///
    /// # Safety
    ///
    /// As for [`Core::first_pass`]; what is observed was set for this batch.
    pub unsafe fn observe(&self, core: &Core, shape: &Shape) -> Result<()> {
        let main = core.device.stream();
        let arguments = (shape.batch, self.what.ptr(), self.atoms.ptr(), self.errors.ptr());
        // SAFETY: the caller's word; seeds have the memory of the shape.
        unsafe {
            core.first_pass(shape)?;
            KALMAN_OBSERVE.launch(&core.device, main, Launch::new(shape.frame_blocks, 256), arguments)?;
            core.energy_seeds(shape)?;
            core.second_pass(shape)?;
        }
        core.reduce(shape)
    }

    /// The sum of the errors of so many frames.
    pub fn error(&self, frames: usize) -> Result<f64> {
        let mut errors = vec![0.0; frames];
        self.errors.read(0, &mut errors)?;
        Ok(errors.into_iter().sum())
    }
}
