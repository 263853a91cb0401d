//! Chooses tiles for dense products and cuts long ones into pieces.

use super::layout::{Kind, MAX_TASKS, ProductList as ListArguments, Products, Task};
use crate::Result;
use crate::gpu::launch::Signature;
use crate::gpu::{Buffer, Device, DevicePtr, Kernel, Launch, Numbers, Stream};
use std::sync::Arc;

/// Which operands are transposed in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operands {
    /// A `[m, k]`, B `[k, n]`
    Nn,
    /// A `[m, k]`, B `[n, k]`
    Nt,
    /// A `[k, m]`, B `[k, n]`
    Tn,
    /// As `Nn`, the rows of A of every atom found in a table.
    NnGather,
    /// As `Tn`, the rows of A of every atom found in a table.
    TnGather,
}

/// The tiles of one kernel, by rising size.
struct Tiles {
    /// For each kind of operands; empty where there is none.
    names: [Names; 5],
    m: usize,
    n: usize,
    k: usize,
    /// Warps along m, n and k.
    warps: [usize; 3],
    stages: usize,
    /// Blocks that share a multiprocessor.
    blocks: usize,
    /// Products of two numbers that a multiprocessor makes in a cycle, as measured; those of PANEL are a guess for doubles, and
    /// keep it from being chosen for floats.
    rate: f64,
}

const SIZES: [&str; 7] = ["TINY", "SMALL", "MEDIUM", "WIDE", "LARGE", "HUGE", "PANEL"];

/// A kernel for sizes that stay, and one for sizes that come with the batch of a step.
type Names = [&'static str; 2];

macro_rules! both {
    ($name:literal) => {
        [$name, concat!($name, "_varied")]
    };
}

const NONE: Names = ["", ""];

/// The kernels of each size for each kind of operands; nothing where other sizes were always faster.
const NAMES: [[Names; 5]; 7] = [
    [
        both!("product_tiny_nn"),
        both!("product_tiny_nt"),
        NONE,
        both!("product_tiny_nn_gather"),
        both!("product_tiny_tn_gather"),
    ],
    [both!("product_small_nn"), both!("product_small_nt"), NONE, NONE, both!("product_small_tn_gather")],
    [
        both!("product_medium_nn"),
        both!("product_medium_nt"),
        both!("product_medium_tn"),
        both!("product_medium_nn_gather"),
        NONE,
    ],
    [
        both!("product_wide_nn"),
        both!("product_wide_nt"),
        both!("product_wide_tn"),
        both!("product_wide_nn_gather"),
        NONE,
    ],
    [NONE, both!("product_large_nt"), both!("product_large_tn"), NONE, NONE],
    [both!("product_huge_nn"), both!("product_huge_nt"), both!("product_huge_tn"), NONE, NONE],
    [
        both!("product_panel_nn"),
        NONE,
        NONE,
        both!("product_panel_nn_gather"),
        both!("product_panel_tn_gather"),
    ],
];

/// m, n, k of a tile, its warps along them, stages, blocks on a multiprocessor.
type Sizes = ([usize; 3], [usize; 3], usize, usize);

const DOUBLE: [Sizes; 7] = [
    ([32, 24, 64], [2, 1, 4], 3, 2),
    ([64, 40, 32], [4, 1, 2], 3, 2),
    ([64, 40, 16], [4, 1, 1], 3, 4),
    ([64, 80, 16], [2, 2, 1], 3, 3),
    ([128, 80, 16], [4, 2, 1], 3, 2),
    ([128, 120, 16], [4, 3, 1], 5, 1),
    ([64, 104, 16], [4, 1, 1], 3, 3),
];
const SINGLE: [Sizes; 7] = [
    ([16, 24, 64], [1, 1, 8], 4, 2),
    ([64, 40, 32], [4, 1, 2], 3, 2),
    ([64, 80, 32], [2, 2, 1], 3, 3),
    ([128, 80, 16], [2, 2, 1], 4, 3),
    ([128, 160, 16], [2, 2, 1], 4, 2),
    ([128, 240, 16], [2, 6, 1], 5, 1),
    ([64, 104, 16], [4, 1, 1], 3, 3),
];

/// As `SINGLE`, for products that take sixteen along k at once.
const HALF: [Sizes; 7] = [
    ([16, 24, 128], [1, 1, 8], 4, 2),
    ([64, 40, 32], [4, 1, 2], 3, 2),
    ([64, 80, 32], [2, 2, 1], 3, 3),
    ([128, 80, 16], [2, 2, 1], 4, 3),
    ([128, 160, 16], [2, 2, 1], 4, 2),
    ([128, 240, 32], [2, 6, 1], 4, 1),
    ([64, 104, 16], [4, 1, 1], 3, 3),
];

/// Blocks of a team that every GPU with clusters can bring in together.
const LARGEST_TEAM: usize = 8;

/// Products with a shorter inner dimension are not made by teams.
const LEAST_OF_TEAM: usize = 512;

/// Tiles whose pieces along k are made by the blocks of a team.
fn team_tiles() -> Tiles {
    let names = [both!("product_long_nn_team"), NONE, NONE, NONE, NONE];
    Tiles { names, m: 64, n: 48, k: 32, warps: [4, 1, 2], stages: 6, blocks: 1, rate: 0.0 }
}

/// Every size of tiles for one kind of number.
fn tiles(numbers: Numbers) -> [Tiles; 7] {
    let (sizes, rates) = match numbers {
        Numbers::F64 => (&DOUBLE, [61.0, 102.0, 108.0, 117.5, 126.0, 120.0, 115.0]),
        Numbers::F32 => (&SINGLE, [29.0, 118.0, 146.0, 158.0, 179.0, 155.0, 1.0]),
        Numbers::Tf32 => (&SINGLE, [41.0, 196.0, 240.0, 229.0, 374.0, 362.0, 1.0]),
        Numbers::Bf16 => (&HALF, [50.0, 240.0, 290.0, 290.0, 460.0, 460.0, 1.0]),
    };
    std::array::from_fn(|i| {
        let ([m, n, k], warps, stages, blocks) = sizes[i];
        Tiles { names: NAMES[i], m, n, k, warps, stages, blocks, rate: rates[i] }
    })
}

/// What the kernels call the way of multiplying: the bits of a number that a product reads.
pub fn bits(numbers: Numbers) -> usize {
    match numbers {
        Numbers::F64 => 64,
        Numbers::F32 => 32,
        Numbers::Tf32 => 19,
        Numbers::Bf16 => 16,
    }
}

/// What every kernel for products takes.
pub fn signatures() -> Vec<Signature> {
    let names = NAMES.into_iter().flatten().chain(team_tiles().names).flatten();
    let of_lists = LISTS.map(|(_, name)| list_kernel(name).signature());
    names.filter(|name| !name.is_empty()).map(|name| kernel(name).signature()).chain(of_lists).collect()
}

fn kernel(name: &'static str) -> Kernel<(Products,)> {
    Kernel::named(name)
}

/// The kernels that take products from a list, by those that have the same tiles.
const LISTS: [(&str, &str); 4] = [
    ("product_medium_tn", "product_medium_tn_list"),
    ("product_wide_tn", "product_wide_tn_list"),
    ("product_large_tn", "product_large_tn_list"),
    ("product_huge_tn", "product_huge_tn_list"),
];

fn list_kernel(name: &'static str) -> Kernel<(ListArguments,)> {
    Kernel::named(name)
}

/// The tiles as options of the compiler.
pub fn defines(numbers: Numbers) -> Vec<String> {
    let define = |(name, t): (&&str, &Tiles)| {
        let [wm, wn, wk] = t.warps;
        let tile = format!("-DTILE_{name}={},{},{},{wm},{wn},{wk},{}", t.m, t.n, t.k, t.stages);
        [tile, format!("-DBLOCKS_{name}={}", t.blocks)]
    };
    SIZES.iter().zip(&tiles(numbers)).chain([(&"LONG", &team_tiles())]).flat_map(define).collect()
}

impl Tiles {
    fn count(&self, task: &Task) -> usize {
        (task.m as usize).div_ceil(self.m) * (task.n as usize).div_ceil(self.n)
    }

    fn threads(&self) -> usize {
        32 * self.warps.iter().product::<usize>()
    }

    /// Pieces of a product when the longest one of its launch is cut into so many: all blocks work about as long.
    fn pieces(&self, task: &Task, pieces: usize, longest: usize) -> usize {
        let most = (task.k as usize).div_ceil(2 * self.k).max(1);
        (pieces * task.k as usize).div_ceil(longest).clamp(1, most)
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
        let left = self.n + if self.n % 16 == 8 { 0 } else { 8 };
        size * (self.stages * (a + b)).max(self.warps[2] * self.m * left)
    }
}

/// Products that are started together.
pub struct ProductLaunch {
    kernel: Kernel<(Products,)>,
    launch: Launch,
    products: Products,
    /// Numbers of workspace that it needs.
    pub workspace: usize,
    /// Pieces of each task.
    pub splits: Vec<usize>,
}

impl ProductLaunch {
    /// Cuts products into tiles. Tasks with another kind than [`Kind::Partial`] add up their own pieces.
    ///
    /// `most`: rows of A that the tasks share in every step anew ([`Task::extent`]); their sizes are only those that tiles
    /// are chosen for. Absent: every task has its rows.
    pub fn new(
        device: &Device,
        operands: Operands,
        tasks: &[Task],
        most: Option<usize>,
    ) -> Vec<ProductLaunch> {
        tasks.chunks(MAX_TASKS).map(|tasks| Self::of(device, operands, tasks, most)).collect()
    }

    fn of(device: &Device, operands: Operands, tasks: &[Task], most: Option<usize>) -> ProductLaunch {
        let gpu = Gpu::of(device);
        let team = team(&gpu, operands, tasks);
        let is_team = team.is_some();
        let (tiles, pieces) = team.unwrap_or_else(|| choose(&gpu, operands, tasks));
        let mut products = Products { n_tasks: tasks.len() as i32, ..Products::default() };
        let (mut first, mut splits) = (0, Vec::new());
        let longest = longest(tasks);
        for (slot, task) in products.tasks.iter_mut().zip(tasks) {
            let n = if is_team { pieces } else { tiles.pieces(task, pieces, longest) };
            *slot = Task {
                tiles_n: (task.n as usize).div_ceil(tiles.n) as i32,
                first_tile: first,
                splits: n as i32,
                ..*task
            };
            first += (tiles.count(task) * n) as i32;
            splits.push(n);
        }
        if let Some(rows) = most {
            first = most_tiles(&tiles, &products.tasks[..tasks.len()], rows);
        }
        products.n_tiles = first;
        let adds = tasks.iter().any(|t| t.kind != Kind::Partial as i32) && splits.iter().any(|&n| n > 1);
        let varies = tasks.iter().any(|task| task.extent != 0);
        let name = tiles.names[operands as usize][usize::from(varies)];
        device.foresee(name);
        ProductLaunch {
            kernel: kernel(name),
            launch: Launch {
                blocks: first as usize,
                threads: tiles.threads(),
                shared: tiles.shared(operands, device.numbers.size()),
                cluster: if is_team { pieces } else { 1 },
            },
            workspace: if adds && !is_team { first as usize * tiles.m * tiles.n } else { 0 },
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

    /// Starts the products.
    ///
    /// # Safety
    ///
    /// The tasks, the workspace and the counters lie in memory that is there until the stream has passed this point.
    pub unsafe fn launch(&self, device: &Device, stream: Stream) -> Result<()> {
        // SAFETY: the grid covers the tiles of the tasks; the rest is the caller's word.
        unsafe { self.kernel.launch(device, stream, self.launch, (self.products,)) }
    }
}

/// Products that are started together however many they are: they stand in memory of the device. A is transposed there.
pub struct ProductList {
    kernel: Kernel<(ListArguments,)>,
    launch: Launch,
    arguments: ListArguments,
    /// Numbers of workspace that it needs.
    pub workspace: usize,
    _tasks: Buffer<Task>,
}

impl ProductList {
    /// Cuts products into tiles; they are stored as they come.
    pub fn new(device: &Arc<Device>, tasks: &[Task]) -> Result<ProductList> {
        let (tiles, pieces) = choose(&Gpu::of(device), Operands::Tn, tasks);
        let (mut first, longest) = (0, longest(tasks));
        let cut = |task: &Task| {
            let splits = tiles.pieces(task, pieces, longest);
            let tiles_n = (task.n as usize).div_ceil(tiles.n) as i32;
            let cut = Task { tiles_n, first_tile: first, splits: splits as i32, ..*task };
            first += (tiles.count(task) * splits) as i32;
            cut
        };
        let tasks: Vec<Task> = tasks.iter().map(cut).collect();
        let adds = tasks.iter().any(|task| task.splits > 1);
        let same = tiles.names[Operands::Tn as usize][0];
        let (_, name) = LISTS.into_iter().find(|(plain, _)| *plain == same).expect("all of these have one");
        device.foresee(name);
        let of_device = Buffer::of(device, &tasks, "products")?;
        Ok(ProductList {
            kernel: list_kernel(name),
            launch: Launch::new(first as usize, tiles.threads())
                .shared(tiles.shared(Operands::Tn, device.numbers.size())),
            arguments: ListArguments {
                tasks: of_device.address(),
                n_tasks: tasks.len() as i32,
                n_tiles: first,
                ..ListArguments::default()
            },
            workspace: if adds { first as usize * tiles.m * tiles.n } else { 0 },
            _tasks: of_device,
        })
    }

    /// Tiles of all products; each needs a counter.
    pub fn tiles(&self) -> usize {
        self.arguments.n_tiles as usize
    }

    /// Tells where pieces and counters are.
    pub fn place(&mut self, workspace: DevicePtr, counters: DevicePtr) {
        (self.arguments.workspace, self.arguments.counters) = (workspace, counters);
    }

    /// Starts the products.
    ///
    /// # Safety
    ///
    /// As for [`ProductLaunch::launch`].
    pub unsafe fn launch(&self, device: &Device, stream: Stream) -> Result<()> {
        // SAFETY: the grid covers the tiles of the tasks, which are kept here; the rest is the caller's word.
        unsafe { self.kernel.launch(device, stream, self.launch, (self.arguments,)) }
    }
}

/// Tiles of products that share so many rows in any way.
fn most_tiles(tiles: &Tiles, tasks: &[Task], rows: usize) -> i32 {
    let of_rows = (rows + tasks.len() * (tiles.m - 1)) / tiles.m;
    let of_each = tasks.iter().map(|t| t.tiles_n * t.splits).max().unwrap_or(0);
    of_rows as i32 * of_each
}

fn longest(tasks: &[Task]) -> usize {
    tasks.iter().map(|t| t.k).max().unwrap_or(1).max(1) as usize
}

/// What the parts of a product take, in cycles of a multiprocessor: fitted to times of every size of tiles on an H200,
/// for the products of the stock network with 1 to 256 frames.
struct Costs {
    /// An element of the result with what follows from it, and one that is stored only.
    end: [f64; 2],
    /// Share of a multiprocessor's work that one block does alone where 1, 2, 3, 4 fit: the time of a last block.
    alone: [f64; 4],
    /// A step of the pipeline.
    step: f64,
    /// Adding up pieces, and every byte of them.
    add: [f64; 2],
}

fn costs(numbers: Numbers) -> Costs {
    match numbers {
        Numbers::F64 => {
            Costs { end: [2.1, 0.57], alone: [1.0, 1.1, 2.1, 1.8], step: 396.0, add: [2780.0, 0.05] }
        }
        Numbers::F32 => {
            Costs { end: [1.37, 0.15], alone: [1.0, 1.0, 1.22, 1.5], step: 1616.0, add: [2700.0, 0.0156] }
        }
        Numbers::Tf32 | Numbers::Bf16 => {
            Costs { end: [0.8, 0.29], alone: [1.0, 1.31, 1.24, 1.5], step: 862.0, add: [4390.0, 0.0484] }
        }
    }
}

/// Bytes of device memory that move in a cycle of all multiprocessors.
const BYTES_PER_CYCLE: f64 = 2300.0;

/// What a choice of tiles depends on.
struct Gpu {
    numbers: Numbers,
    multiprocessors: usize,
    max_shared: usize,
    /// Blocks may make a tile together.
    teams: bool,
}

impl Gpu {
    fn of(device: &Device) -> Gpu {
        Gpu {
            numbers: device.numbers,
            multiprocessors: device.multiprocessors,
            max_shared: device.max_shared(),
            // With floats they were no faster.
            teams: device.clusters && device.numbers == Numbers::F64,
        }
    }
}

/// The tiles and pieces of products that a team of blocks makes each tile of: few rows with a long inner dimension.
fn team(gpu: &Gpu, operands: Operands, tasks: &[Task]) -> Option<(Tiles, usize)> {
    let tiles = team_tiles();
    let ends = |t: &Task| t.kind == Kind::Forward as i32 || t.kind == Kind::Tangent as i32;
    let k = longest(tasks);
    let is_long = k >= LEAST_OF_TEAM && tasks.iter().all(|t| ends(t) && t.k as usize == k);
    let fits = tiles.shared(operands, gpu.numbers.size()) <= gpu.max_shared;
    if !gpu.teams || operands != Operands::Nn || !is_long || !fits {
        return None;
    }
    let count: usize = tasks.iter().map(|t| tiles.count(t)).sum();
    let pieces = (gpu.multiprocessors / count).min(LARGEST_TEAM);
    // Every thread ends one pack of a tile.
    let packs = tiles.m * tiles.n * gpu.numbers.size() / 16;
    (packs <= pieces * tiles.threads()).then_some((tiles, pieces))
}

/// The tiles, and the pieces of the longest product, that take the shortest time by an estimate.
fn choose(gpu: &Gpu, operands: Operands, tasks: &[Task]) -> (Tiles, usize) {
    let fits = |t: &Tiles| {
        !t.names[operands as usize][0].is_empty() && t.shared(operands, gpu.numbers.size()) <= gpu.max_shared
    };
    let mut best: Option<(f64, Tiles, usize)> = None;
    for tiles in tiles(gpu.numbers).into_iter().filter(fits) {
        let cuts = [1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 32, 44, 66];
        let most = longest(tasks).div_ceil(2 * tiles.k).max(1);
        let times = cuts.into_iter().filter(|&n| n <= most).map(|n| (estimate(&tiles, n, tasks, gpu), n));
        let Some((time, pieces)) = times.min_by(|a, b| a.0.total_cmp(&b.0)) else { continue };
        if best.as_ref().is_none_or(|b| time < b.0) {
            best = Some((time, tiles, pieces));
        }
    }
    let (_, tiles, pieces) =
        best.expect("the smallest tiles fit every GPU of compute capability 8.0 or newer");
    (tiles, pieces)
}

/// Cycles that products take: whole rounds of blocks, then the blocks that are left.
fn estimate(tiles: &Tiles, pieces: usize, tasks: &[Task], gpu: &Gpu) -> f64 {
    let (costs, size, longest) = (costs(gpu.numbers), gpu.numbers.size(), longest(tasks));
    let partial = tasks.iter().all(|t| t.kind == Kind::Partial as i32);
    let stored = tasks.iter().all(|t| t.kind == Kind::Store as i32) || partial;
    let n_blocks: usize = tasks.iter().map(|t| tiles.count(t) * tiles.pieces(t, pieces, longest)).sum();
    let k = longest.div_ceil(pieces).next_multiple_of(tiles.k) as f64;
    let area = (tiles.m * tiles.n) as f64;
    // Blocks that share a multiprocessor hide each other's ends.
    let seen = if tiles.blocks < 3 && size == 8 { 1.1 } else { 1.0 };
    let block = area * k / tiles.rate + area * seen * costs.end[usize::from(stored)];
    let round = gpu.multiprocessors * tiles.blocks;
    let left = n_blocks % round;
    let tail = match left {
        0 => 0.0,
        _ => (left.div_ceil(gpu.multiprocessors) as f64).max(costs.alone[tiles.blocks - 1]),
    };
    let busy = ((n_blocks / round * tiles.blocks) as f64 + tail) * block;
    // Many small tiles read the same numbers from the cache again and again; products of doubles take longer than that.
    let read = (n_blocks * (tiles.m + tiles.n) * size) as f64 * k / BYTES_PER_CYCLE;
    let busy = if size == 4 && !partial && n_blocks > 8 * round { busy.max(read) } else { busy };
    let steps = k / tiles.k as f64 / (tiles.stages - 1) as f64 * costs.step;
    let bytes = |n: f64| n * (pieces * size) as f64;
    let add = match (pieces, partial) {
        (_, true) => bytes(tasks.iter().map(|t| t.m as f64 * t.n as f64).sum()) / BYTES_PER_CYCLE,
        (1, false) => 0.0,
        (_, false) => costs.add[0] + bytes(area) * costs.add[1],
    };
    busy + steps + add
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Numbers; 4] = [Numbers::F64, Numbers::F32, Numbers::Tf32, Numbers::Bf16];
    const OPERANDS: [Operands; 5] =
        [Operands::Nn, Operands::Nt, Operands::Tn, Operands::NnGather, Operands::TnGather];

    fn h200(numbers: Numbers) -> Gpu {
        Gpu { numbers, multiprocessors: 132, max_shared: 230_000, teams: true }
    }

    fn task(m: i32, n: i32, k: i32, kind: Kind) -> Task {
        Task { m, n, k, kind: kind as i32, ..Task::default() }
    }

    #[test]
    fn every_size_of_tiles_fits_as_many_times_as_it_says() {
        for numbers in ALL {
            for t in tiles(numbers) {
                let size = numbers.size();
                for operands in OPERANDS.into_iter().filter(|&o| !t.names[o as usize][0].is_empty()) {
                    let bytes = (t.shared(operands, size) + 2048) * t.blocks;
                    assert!(bytes <= 233_472, "{} {operands:?}: {bytes} bytes", t.names[0][0]);
                }
                assert!(t.threads() * t.blocks <= 2048);
                // Threads share rows of a tile evenly, whichever way it lies; warps share it in whole products.
                assert_eq!(t.threads() % (t.k * size / 16), 0);
                assert_eq!(t.threads() % t.k, 0);
                let depth = if numbers == Numbers::Bf16 { 16 } else { 8 };
                assert_eq!(
                    (t.m % (16 * t.warps[0]), t.n % (8 * t.warps[1]), t.k % (depth * t.warps[2])),
                    (0, 0, 0)
                );
            }
        }
    }

    #[test]
    fn every_kernel_that_may_be_chosen_is_in_the_program() {
        let program = include_str!("kernels/product.cu");
        let kinds = ["nn", "nt", "tn", "nn_gather", "tn_gather"];
        for (names, size) in NAMES.iter().zip(SIZES) {
            for (name, kind) in names.iter().zip(kinds) {
                let line = format!("\nINSTANCE(product_{}, {kind}, {size}, ", size.to_lowercase());
                assert_eq!(program.contains(&line), !name[0].is_empty(), "{line}");
                assert!(name[0].is_empty() || *name[0] == format!("product_{size}_{kind}").to_lowercase());
            }
        }
    }

    #[test]
    fn few_rows_take_small_tiles_and_many_rows_large_ones() {
        for numbers in ALL {
            let area = |rows: i32| {
                let tasks = [task(rows, 240, 1600, Kind::Forward), task(2 * rows, 240, 1600, Kind::Forward)];
                let (t, _) = choose(&h200(numbers), Operands::Nn, &tasks);
                t.m * t.n
            };
            assert!(area(64) < 64 * 80 && area(64 * 256) >= 64 * 80, "{} {}", area(64), area(64 * 256));
        }
    }

    #[test]
    fn products_that_share_rows_find_tiles_enough_however_they_share_them() {
        let t = &tiles(Numbers::F64)[0];
        let of =
            |rows: &[i32]| -> usize { rows.iter().map(|&m| t.count(&task(m, 240, 64, Kind::Forward))).sum() };
        let tasks = [Task { tiles_n: 10, splits: 1, ..Task::default() }; 3];
        let most = most_tiles(t, &tasks, 256) as usize;
        for rows in [[256, 0, 0], [1, 1, 254], [86, 85, 85], [0, 33, 223], [65, 33, 158]] {
            assert!(of(&rows) <= most, "{rows:?}: {} of {most}", of(&rows));
        }
    }

    #[test]
    fn a_team_makes_long_products_of_few_rows_and_no_others() {
        let pieces = |rows: i32, k: i32| {
            let tasks = [task(rows, 240, k, Kind::Forward), task(2 * rows, 240, k, Kind::Forward)];
            team(&h200(Numbers::F64), Operands::Nn, &tasks).map(|(_, pieces)| pieces)
        };
        assert_eq!((pieces(64, 1600), pieces(64, 240), pieces(256, 1600)), (Some(8), None, None));
        // Fewer rows than a team's smallest share: every thread still ends one pack at most.
        assert_eq!(pieces(1, 1600), Some(8));
        let tasks = [task(64, 240, 1600, Kind::Store)];
        assert!(team(&h200(Numbers::F64), Operands::Nn, &tasks).is_none());
        let smaller = Gpu { max_shared: 100_000, ..h200(Numbers::F64) };
        assert!(team(&smaller, Operands::Nn, &[task(64, 240, 1600, Kind::Forward)]).is_none());
    }

    #[test]
    fn a_product_with_few_tiles_and_many_rows_is_cut_and_no_piece_is_empty() {
        for numbers in ALL {
            let tasks = [task(128, 100, 393_216, Kind::Store), task(128, 100, 40, Kind::Store)];
            let (t, pieces) = choose(&h200(numbers), Operands::TnGather, &tasks);
            assert!(pieces > 8, "{pieces} pieces");
            for task in &tasks {
                let (n, k) = (t.pieces(task, pieces, 393_216), task.k as usize);
                let chunk = k.div_ceil(n).next_multiple_of(t.k);
                assert!((n - 1) * chunk < k, "{n} pieces of {chunk} for {k}");
            }
        }
    }

    #[test]
    fn tiles_that_a_gpu_has_no_room_for_are_not_chosen() {
        let tasks = [task(49_152, 240, 1600, Kind::Forward)];
        for numbers in ALL {
            for operands in OPERANDS {
                let gpu = Gpu { max_shared: 99 * 1024 - 2048, ..h200(numbers) };
                let (t, _) = choose(&gpu, operands, &tasks);
                assert!(t.shared(operands, numbers.size()) <= gpu.max_shared);
            }
        }
    }
}
