//! Chooses tiles for dense products and cuts long ones into pieces.

use super::compile::Numbers;
use super::device::{Device, Stream, arguments};
use super::layout::{Kind, MAX_TASKS, Products, Task};
use super::sys::DevicePtr;
use crate::Result;

/// Which operands are transposed in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operands {
    /// A `[m, k]`, B `[k, n]`
    Nn,
    /// A `[m, k]`, B `[n, k]`
    Nt,
    /// A `[k, m]`, B `[k, n]`
    Tn,
    /// As `Nn`, every four rows of A found in a table.
    NnGather,
    /// As `Tn`, every four rows of A found in a table.
    TnGather,
}

/// The tiles of one kernel: the numbers of `kernels/product.cu`.
struct Tiles {
    names: [&'static str; 5],
    m: usize,
    n: usize,
    k: usize,
    /// Warps that share the inner dimension.
    warps_k: usize,
    threads: usize,
    stages: usize,
    /// Share of the peak that its products reach.
    share: f64,
}

const SMALL: Tiles = Tiles {
    names: [
        "product_small_nn",
        "product_small_nt",
        "product_small_tn",
        "product_small_nn_gather",
        "product_small_tn_gather",
    ],
    m: 16,
    n: 24,
    k: 64,
    warps_k: 8,
    threads: 256,
    stages: 5,
    share: 0.5,
};
const MEDIUM: Tiles = Tiles {
    names: [
        "product_medium_nn",
        "product_medium_nt",
        "product_medium_tn",
        "product_medium_nn_gather",
        "product_medium_tn_gather",
    ],
    m: 64,
    n: 40,
    k: 32,
    warps_k: 2,
    threads: 256,
    stages: 3,
    share: 0.65,
};
const WIDE: Tiles = Tiles {
    names: [
        "product_wide_nn",
        "product_wide_nt",
        "product_wide_tn",
        "product_wide_nn_gather",
        "product_wide_tn_gather",
    ],
    m: 64,
    n: 80,
    k: 16,
    warps_k: 1,
    threads: 128,
    stages: 3,
    share: 0.8,
};
const LARGE: Tiles = Tiles {
    names: [
        "product_large_nn",
        "product_large_nt",
        "product_large_tn",
        "product_large_nn_gather",
        "product_large_tn_gather",
    ],
    m: 128,
    n: 80,
    k: 32,
    warps_k: 1,
    threads: 256,
    stages: 3,
    share: 0.9,
};

impl Tiles {
    fn count(&self, tasks: &[Task]) -> usize {
        tasks.iter().map(|t| (t.m as usize).div_ceil(self.m) * (t.n as usize).div_ceil(self.n)).sum()
    }

    /// Bytes of shared memory, as `Tile` has them.
    fn shared(&self, operands: Operands, size: usize) -> usize {
        let padded = |inner: usize, along_k: bool| match (size, along_k, inner % 32) {
            (8, ..) | (_, true, _) => inner + 4,
            (_, _, 8 | 24) => inner,
            _ => inner + 8,
        };
        let a = match operands {
            Operands::Tn | Operands::TnGather => self.k * padded(self.m, false),
            _ => self.m * padded(self.k, true),
        };
        let b = match operands {
            Operands::Nt => self.n * padded(self.k, true),
            _ => self.k * padded(self.n, false),
        };
        size * (self.stages * (a + b)).max(self.warps_k * self.m * (self.n + 2))
    }
}

/// Products that are started together.
pub struct ProductLaunch {
    name: &'static str,
    threads: usize,
    products: Products,
    shared: usize,
    /// Numbers of workspace that it needs.
    pub workspace: usize,
    /// Pieces of each task.
    pub splits: Vec<usize>,
}

impl ProductLaunch {
    /// Cuts products into tiles. Tasks with another kind than [`Kind::Partial`] add up their own pieces.
    pub fn new(device: &Device, operands: Operands, tasks: &[Task]) -> Vec<ProductLaunch> {
        tasks.chunks(MAX_TASKS).map(|tasks| Self::of(device, operands, tasks)).collect()
    }

    fn of(device: &Device, operands: Operands, tasks: &[Task]) -> ProductLaunch {
        let (tiles, pieces) = choose(device, tasks);
        let mut products = Products { n_tasks: tasks.len() as i32, ..Products::default() };
        let (mut first, mut splits) = (0, Vec::new());
        for (slot, task) in products.tasks.iter_mut().zip(tasks) {
            let n_tiles = tiles.count(std::slice::from_ref(task));
            let most = (task.k as usize).div_ceil(4 * tiles.k).max(1);
            // Longer products of a launch get more pieces, so that all blocks work about as long.
            let longest = tasks.iter().map(|t| t.k).max().unwrap_or(1).max(1) as usize;
            let n = (pieces * task.k as usize).div_ceil(longest).clamp(1, most);
            *slot = Task {
                tiles_n: (task.n as usize).div_ceil(tiles.n) as i32,
                first_tile: first,
                splits: n as i32,
                ..*task
            };
            first += (n_tiles * n) as i32;
            splits.push(n);
        }
        products.n_tiles = first;
        let adds = tasks.iter().any(|t| t.kind != Kind::Partial as i32) && splits.iter().any(|&n| n > 1);
        ProductLaunch {
            name: tiles.names[operands as usize],
            threads: tiles.threads,
            shared: tiles.shared(operands, device.numbers.size()),
            workspace: if adds { first as usize * tiles.m * tiles.n } else { 0 },
            products,
            splits,
        }
    }

    /// Tiles of all products; each needs a counter.
    pub fn tiles(&self) -> usize {
        self.products.n_tiles as usize
    }

    /// Tells where pieces and counters are.
    pub fn place(&mut self, workspace: DevicePtr, counters: DevicePtr) {
        self.products.workspace = workspace;
        self.products.counters = counters;
    }

    pub fn launch(&self, device: &Device) -> Result<()> {
        self.launch_on(device, device.stream())
    }

    pub fn launch_on(&self, device: &Device, stream: Stream) -> Result<()> {
        device.launch_on(
            stream,
            self.name,
            self.tiles(),
            self.threads,
            self.shared,
            arguments![self.products],
        )
    }
}

/// The tiles, and the pieces of the longest product, that take the shortest time by a simple estimate: a multiprocessor
/// multiplies and loads so many numbers in a cycle, a step of the pipeline and an added piece take some time each.
fn choose(device: &Device, tasks: &[Task]) -> (&'static Tiles, usize) {
    let longest = tasks.iter().map(|t| t.k as usize).max().unwrap_or(0);
    let (per_cycle, size) = match device.numbers {
        Numbers::F64 => (110.0, 8.0),
        Numbers::F32 => (250.0, 4.0),
        Numbers::Tf32 => (500.0, 4.0),
    };
    let adds = tasks.iter().any(|t| t.kind != Kind::Partial as i32);
    let cost = |tiles: &Tiles, pieces: usize| {
        let k = longest.div_ceil(pieces).next_multiple_of(tiles.k) as f64;
        let rounds = (tiles.count(tasks) * pieces).div_ceil(device.multiprocessors) as f64;
        let (m, n) = (tiles.m as f64, tiles.n as f64);
        let multiply = m * n * k / (per_cycle * tiles.share);
        let load = (m + n) * k * size / 45.0;
        let end = m * n / tiles.threads as f64 * if adds { 60.0 } else { 25.0 } + 1500.0;
        let steps = k / tiles.k as f64 * 700.0 / (tiles.stages as f64 - 1.0);
        let add = match (pieces, adds) {
            (1, _) => 0.0,
            (_, true) => 2500.0 + pieces as f64 * (500.0 + m * n / 256.0 * 8.0),
            (_, false) => pieces as f64 * 600.0,
        };
        // Blocks that share a multiprocessor hide each other's ends and waits; large ones of doubles have it alone.
        let alone = tiles.n * tiles.m >= LARGE.n * LARGE.m && size == 8.0;
        let busy = rounds * (multiply.max(load) + if alone { end } else { 0.4 * end });
        busy.max(steps + end) + add
    };
    let mut best = (f64::INFINITY, &SMALL, 1);
    for tiles in [&SMALL, &MEDIUM, &WIDE, &LARGE] {
        for pieces in [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64] {
            if pieces > 1 && longest / pieces < 4 * tiles.k.max(32) {
                continue;
            }
            let time = cost(tiles, pieces);
            if time < best.0 {
                best = (time, tiles, pieces);
            }
        }
    }
    (best.1, best.2)
}
