//! One kind of batch: how its atoms become rows, its memory, and the kernels of a step with all their arguments.

mod gradients;

use super::layout::{self, Batch, Columns, Kind, Task, View};
use super::network::{Network, SeriesOnDevice, n_blocks, padded};
use super::products::{Operands, ProductLaunch};
use super::rows::{Arrangement, Room, Rows};
use crate::Result;
use crate::gpu::{Buffer, Device, DevicePtr};
use crate::model::dp::Dp;
use crate::model::net::Shortcut;
use std::sync::Arc;

/// The atoms of one frame of a batch.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct FrameShape {
    pub n_atoms: usize,
    /// `[n_types + 1]` rows of each type.
    pub block: Vec<u32>,
    /// Atoms that are not virtual.
    pub n_real: u32,
    /// Where the rows are those of one block: `[n_types]` the most that any block of this frame has. Who shares a frame
    /// finds the same, and so comes to the same kinds of batches.
    pub most: Option<Vec<u32>>,
}

impl FrameShape {
    /// Rows of a type.
    pub fn rows_of(&self, t: usize) -> u32 {
        self.block[t + 1] - self.block[t]
    }

    /// Rows of all types.
    pub fn n_rows(&self) -> u32 {
        self.block[self.block.len() - 1]
    }

    /// Rows of a type for which there must be room.
    pub fn room_of(&self, t: usize) -> u32 {
        self.most.as_ref().map_or_else(|| self.rows_of(t), |most| most[t])
    }
}

/// Atoms of a chunk and numbers of its sums: `kernels/blocks.cu`.
pub const CHUNK: usize = 256;
const CHUNK_SUMS: usize = 10;
/// Blocks for frames on each multiprocessor where the number of frames is not known.
const FRAME_BLOCKS: usize = 2;

/// Chunks of the frames of a batch at most, in whatever way its atoms are shared out over them.
fn chunks_of(room: &Room) -> usize {
    room.places.div_ceil(CHUNK) + room.frames
}

/// What batches of one kind hold.
#[derive(Clone, Copy)]
pub enum Content<'a> {
    /// These very frames, as far as numbers of atoms go.
    Exactly(&'a [FrameShape]),
    /// Any frames that there is room for: an [`Arrangement`] comes with every step.
    UpTo(Room),
}

/// Hands out memory from a start on; with a start of zero it only counts.
struct Arena {
    base: DevicePtr,
    end: usize,
}

impl Arena {
    fn take(&mut self, bytes: usize) -> DevicePtr {
        let at = self.base + self.end as u64;
        self.end += bytes.next_multiple_of(256);
        at
    }
}

/// The memory of one layer for one group of atoms; see `engine/cpu/fitting.rs`.
#[derive(Clone, Copy)]
struct LayerMemory {
    x: DevicePtr,
    ldx: usize,
    f: DevicePtr,
    d: DevicePtr,
    dd: DevicePtr,
    z_dot: DevicePtr,
    de_y: DevicePtr,
    ld_de_y: usize,
    dl_y: DevicePtr,
    dz: DevicePtr,
    ldo: usize,
}

/// The memory of one group; where batches differ all groups share it, each with as many rows as it has in a step.
struct GroupMemory {
    /// Its inputs, or as many as are likely.
    n: usize,
    first: usize,
    layers: Vec<LayerMemory>,
    de_x: DevicePtr,
    dl_x: DevicePtr,
}

/// One kind of batch.
pub struct Shape {
    pub batch: Batch,
    /// Tells kinds of batches apart.
    pub id: u64,
    /// Blocks that share the frames.
    pub frame_blocks: usize,
    /// Rows that there is room for.
    pub n_rows: usize,
    /// 1 where all centre types share their coefficients.
    pub n_stacks: usize,
    /// Where ranks share the frames: how many numbers they add up, from [`Batch::energy`] on.
    pub shared: Option<usize>,
    /// Blocks of 256 threads that have the chunks of all frames.
    pub chunks: usize,
    /// Frames times atoms that there is room for.
    pub places: usize,
    pub describe: Vec<ProductLaunch>,
    pub forward: Vec<ProductLaunch>,
    pub backward: Vec<ProductLaunch>,
    pub de_q: Vec<ProductLaunch>,
    pub a_dot: Vec<ProductLaunch>,
    pub tangent: Vec<ProductLaunch>,
    pub reverse: Vec<ProductLaunch>,
    pub dl_c: Vec<ProductLaunch>,
    pub weights: Vec<ProductLaunch>,
    pub columns: Buffer<Columns>,
    pub n_columns: usize,
    pub column_blocks: usize,
    pub views: Buffer<View>,
    pub n_views: usize,
    pub view_blocks: usize,
    _tables: Tables,
    _counters: Buffer<u32>,
}

/// Tables that are owned where the addresses are.
#[derive(Default)]
struct Tables {
    _of_groups: Vec<Buffer<DevicePtr>>,
    _of_rows: Vec<Buffer<u32>>,
}

/// Bytes of working memory that a kind of batch needs.
pub fn work_bytes(network: &Network, series: &SeriesOnDevice, content: Content) -> Result<usize> {
    let mut arena = Arena { base: 0, end: 0 };
    Builder::new(network, series, content, &mut arena).finish(&mut arena, None)?;
    Ok(arena.end)
}

impl Shape {
    /// Lays a kind of batch out in working memory of [`work_bytes`]. `constants` has what all batches share.
    pub fn new(
        network: &Network,
        series: &SeriesOnDevice,
        content: Content,
        work: &Buffer<u8>,
        constants: Batch,
        id: u64,
    ) -> Result<Shape> {
        let mut arena = Arena { base: work.address(), end: 0 };
        let built = Builder::new(network, series, content, &mut arena).finish(&mut arena, Some(constants))?;
        Ok(Shape { id, ..built.expect("memory was given") })
    }
}

/// Where the rows of a product stand when those of its group begin at `first` and are `n`: see `Task` in `product.cu`.
#[derive(Clone, Copy, Default)]
struct Moves {
    times: i32,
    a_first: i32,
    a_n: i32,
    b_first: i32,
    c_first: i32,
    dz_n: i32,
}

struct Builder<'a> {
    network: &'a Network,
    series: &'a SeriesOnDevice,
    /// Absent where batches differ.
    rows: Option<Rows>,
    room: Room,
    groups: Vec<GroupMemory>,
    size: usize,
    batch: Batch,
}

impl<'a> Builder<'a> {
    fn new(network: &'a Network, series: &'a SeriesOnDevice, content: Content, arena: &mut Arena) -> Self {
        let model = &network.model;
        let mut batch = Batch::default();
        let (rows, room) = match content {
            Content::UpTo(room) => (None, room),
            Content::Exactly(frames) => {
                let room = Room::of(model, frames);
                assert!(!room.is_shared, "blocks differ from frame to frame: their shapes have room for all");
                let most_rows = frames.iter().map(FrameShape::n_rows).max().unwrap_or(0) as usize;
                batch.pair_stride = (most_rows * model.n_sel()) as i32;
                batch.atom_stride = (room.places / room.frames.max(1)) as i32;
                batch.n_real = room.rows as f64;
                (Some(Rows::new(model, frames, series.n_stacks)), room)
            }
        };
        let size = network.device.numbers.size();
        let mut builder = Builder { network, series, room, groups: Vec::new(), size, batch, rows };
        builder.take_rows(arena);
        for c in 0..model.n_types() {
            let group = builder.group(arena, c);
            builder.groups.push(group);
        }
        builder
    }

    fn device(&self) -> &Arc<Device> {
        &self.network.device
    }

    fn model(&self) -> &Dp {
        &self.network.model
    }

    /// `place` moved on by some numbers.
    fn at(&self, place: DevicePtr, numbers: usize) -> DevicePtr {
        place + (numbers * self.size) as u64
    }

    fn columns(&self) -> usize {
        self.series.plan.columns()
    }

    /// Numbers of env: rows of A and Q of an atom.
    fn n_env(&self) -> usize {
        self.model().descriptor().form().components()
    }

    /// Memory with one entry for each row, atom or frame.
    fn take_rows(&mut self, arena: &mut Arena) {
        let Room { rows: n, inputs, places, listed, frames: n_frames, is_shared } = self.room;
        let chunks = chunks_of(&self.room);
        let (ldm, columns, size) = (padded(self.model().n_embed()), self.columns(), self.size);
        let n_env = self.n_env();
        let (n_types, n_sel, differ) = (self.model().n_types(), self.model().n_sel(), self.rows.is_none());
        let b = &mut self.batch;
        if differ {
            b.now = arena.take(4 * Arrangement::words_of(n_types, n_frames));
            b.group_row = b.now + 4 * Arrangement::parts(n_types)[1] as u64;
            b.frame_rows = b.now + 4 * Arrangement::parts(n_types)[2] as u64;
            let tables = [
                &mut b.row_frame,
                &mut b.row_local,
                &mut b.row_input,
                &mut b.row_vacuum,
                &mut b.row_dl,
                &mut b.row_de,
            ];
            tables.into_iter().for_each(|table| *table = arena.take(4 * n));
        }
        b.row_q = arena.take(16 * n);
        b.q_dot = arena.take(n_env * n * columns * size);
        b.a = arena.take(n_env * n * ldm * size);
        b.a_dot = arena.take(n_env * n * ldm * size);
        b.da = arena.take(2 * n_env * n * ldm * size);
        b.de_q = arena.take(n_env * n * columns * size);
        b.de_d = arena.take(3 * listed * n_sel * size);
        if is_shared {
            // One after the other: they are added up in one go.
            b.energy = arena.take(8 * (10 * n_frames + 4 * places));
            b.virial = b.energy + 8 * n_frames as u64;
            b.force = b.virial + 72 * n_frames as u64;
            b.atom_energy = b.force + 24 * places as u64;
        } else {
            b.force = arena.take(24 * places);
            b.atom_energy = arena.take(8 * places);
            b.energy = arena.take(8 * n_frames);
            b.virial = arena.take(72 * n_frames);
        }
        b.dl_force = arena.take(24 * places);
        b.dl_virial = arena.take(72 * n_frames);
        b.dl_atom_energy = arena.take(8 * places);
        b.dl_energy = arena.take(8 * n_frames);
        b.dl_e = arena.take(size * inputs);
        b.row_virial = arena.take(72 * n);
        b.row_sums = arena.take(if is_shared { 8 * CHUNK_SUMS * chunks } else { 48 * n });
        b.frame_sums = arena.take(120 * n_frames);
    }

    /// Memory of the fitting net of one type.
    fn group(&self, arena: &mut Arena, c: usize) -> GroupMemory {
        let Some(rows) = &self.rows else { return self.shared_group(arena, c) };
        let first = rows.group[c] as usize;
        self.group_of(arena, c, rows.group[c + 1] as usize - first, first)
    }

    /// As [`Builder::group`], in memory that the inputs of all types share. Their nets have the same widths.
    fn shared_group(&self, arena: &mut Arena, c: usize) -> GroupMemory {
        let n = self.room.inputs.div_ceil(self.model().n_types());
        let Some(known) = self.groups.first() else {
            return GroupMemory { n, ..self.group_of(arena, c, self.room.inputs, 0) };
        };
        let mut layers = known.layers.clone();
        let (hidden, place) = (self.hidden(), &self.network.places[c]);
        layers[hidden - 1].de_y = self.network.weight_at(place[hidden].w);
        GroupMemory { n, first: 0, layers, de_x: known.de_x, dl_x: known.dl_x }
    }

    /// What stands behind `n` rows of values: the tangents. Where batches differ, products find them themselves.
    fn behind(&self, values: DevicePtr, n: usize, ld: usize) -> DevicePtr {
        if self.rows.is_none() { values } else { self.at(values, n * ld) }
    }

    /// Where the first input of a type stands in memory that tells it for every step; nowhere if it is always the same.
    fn extent_of_group(&self, c: usize) -> DevicePtr {
        if self.rows.is_none() { self.batch.group_row + 4 * c as u64 } else { 0 }
    }

    /// Lets a product find its rows in every step.
    fn moving(&self, task: Task, extent: DevicePtr, moves: Moves) -> Task {
        if self.rows.is_some() {
            return task;
        }
        let Moves { times, a_first, a_n, b_first, c_first, dz_n } = moves;
        Task { extent, times, a_first, a_n, b_first, c_first, dz_n, ..task }
    }

    /// [`Builder::moving`] for a product of a fitting net. `second`: A has the second half of an array of values and
    /// tangents; `dz_second`: dz has.
    fn moving_fitting(&self, c: usize, task: Task, second: bool, dz_second: bool) -> Task {
        let (a_n, dz_n) = (i32::from(second), i32::from(dz_second));
        let moves = Moves { times: 1, a_first: 2, a_n, c_first: 1, dz_n, ..Moves::default() };
        self.moving(task, self.extent_of_group(c), moves)
    }

    /// Memory of the fitting net of a type for `n` inputs.
    fn group_of(&self, arena: &mut Arena, c: usize, n: usize, first: usize) -> GroupMemory {
        let size = self.size;
        let net = &self.model().fitting[c];
        let last = net.layers.len() - 1;
        let mut layers = Vec::new();
        for (l, shape) in net.layers.iter().enumerate() {
            let (ldx, ldo) = (padded(shape.n_in), padded(shape.n_out));
            let x = arena.take(2 * n * ldx * size);
            if l == last {
                let none = LayerMemory {
                    x,
                    ldx,
                    f: 0,
                    d: 0,
                    dd: 0,
                    z_dot: 0,
                    de_y: 0,
                    ld_de_y: 0,
                    dl_y: 0,
                    dz: 0,
                    ldo,
                };
                layers.push(none);
                break;
            }
            let kept = layout::activation(shape.activation).0 != 0;
            let mut take = |wanted: bool| if wanted { arena.take(n * ldo * size) } else { 0 };
            // dE/dy of the last hidden layer is the row of output weights, the same for every atom.
            let is_top = l + 1 == last;
            let place = &self.network.places[c];
            let (f, d, dd, z_dot) = (take(true), take(kept), take(kept), take(true));
            let de_y = if is_top { self.network.weight_at(place[last].w) } else { take(true) };
            let dl_y = take(true);
            layers.push(LayerMemory {
                x,
                ldx,
                f,
                d,
                dd,
                z_dot,
                de_y,
                ld_de_y: if is_top { 0 } else { ldo },
                dl_y,
                dz: arena.take(2 * n * ldo * size),
                ldo,
            });
        }
        let inputs = n * padded(net.layers[0].n_in) * size;
        GroupMemory { n, first, layers, de_x: arena.take(inputs), dl_x: arena.take(inputs) }
    }

    fn hidden(&self) -> usize {
        self.model().fitting[0].layers.len() - 1
    }

    /// What the epilogue of a product needs to know of layer `l` of group `c`.
    fn of_layer(&self, c: usize, l: usize) -> Task {
        let (shape, place) = (&self.model().fitting[c].layers[l], &self.network.places[c][l]);
        let m = &self.groups[c].layers[l];
        let (activation, threshold) = layout::activation(shape.activation);
        Task {
            idt: place.idt.map_or(0, |p| self.network.weight_at(p)),
            f: m.f,
            d: m.d,
            dd: m.dd,
            z_dot: m.z_dot,
            activation,
            threshold,
            ldc: m.ldo as i32,
            ..Task::default()
        }
    }

    /// Value (`tangent` false) or tangent of layer `l`.
    fn forward_task(&self, c: usize, l: usize, tangent: bool) -> Task {
        let (shape, place) = (&self.model().fitting[c].layers[l], &self.network.places[c][l]);
        let group = &self.groups[c];
        let (m, next) = (&group.layers[l], &group.layers[l + 1]);
        let half = |x: DevicePtr, ld: usize| if tangent { self.behind(x, group.n, ld) } else { x };
        let top = l + 1 == self.hidden();
        let w_out = self.network.weight_at(self.network.places[c][self.hidden()].w);
        let task = Task {
            a: half(m.x, m.ldx),
            lda: m.ldx as i32,
            b: self.network.weight_at(place.w),
            ldb: place.ldw as i32,
            m: group.n as i32,
            n: shape.n_out as i32,
            k: shape.n_in as i32,
            bias: if tangent { 0 } else { place.b.map_or(0, |p| self.network.weight_at(p)) },
            shortcut: half(m.x, m.ldx),
            ld_shortcut: m.ldx as i32,
            folds: i32::from(shape.shortcut != Shortcut::None),
            fold: shape.n_in as i32,
            y: half(next.x, next.ldx),
            ldy: next.ldx as i32,
            // The first pass leaves dE/dz, the second dL/dz.
            dz: if tangent { m.dz } else { self.behind(m.dz, group.n, m.ldo) },
            w_out: if top { w_out } else { 0 },
            dl_y: m.dl_y,
            dl_e: self.at(self.batch.dl_e, group.first),
            kind: if tangent { Kind::Tangent } else { Kind::Forward } as i32,
            ..self.of_layer(c, l)
        };
        self.moving_fitting(c, task, tangent, !tangent)
    }

    /// Adjoint of the input of layer `l`: of the energy, or of the loss.
    fn backward_task(&self, c: usize, l: usize, loss: bool) -> Task {
        let (shape, place) = (&self.model().fitting[c].layers[l], &self.network.places[c][l]);
        let group = &self.groups[c];
        let m = &group.layers[l];
        let half = |dz: DevicePtr, ld: usize| if loss { dz } else { self.behind(dz, group.n, ld) };
        let mut task = if l > 0 { self.of_layer(c, l - 1) } else { Task::default() };
        if l > 0 {
            let below = &group.layers[l - 1];
            task.c = if loss { below.dl_y } else { below.de_y };
            task.dz = half(below.dz, below.ldo);
            (task.de_y, task.ld_de_y) = (below.de_y, below.ld_de_y as i32);
        } else {
            task.c = if loss { group.dl_x } else { group.de_x };
            task.ldc = m.ldx as i32;
        }
        let has_shortcut = shape.shortcut != Shortcut::None;
        let (shortcut, ld) = if loss { (m.dl_y, m.ldo) } else { (m.de_y, m.ld_de_y) };
        let task = Task {
            a: half(m.dz, m.ldo),
            lda: m.ldo as i32,
            b: self.network.weight_at(place.w),
            ldb: place.ldw as i32,
            m: group.n as i32,
            n: shape.n_in as i32,
            k: shape.n_out as i32,
            shortcut,
            ld_shortcut: ld as i32,
            folds: if has_shortcut { (shape.n_out / shape.n_in) as i32 } else { 0 },
            fold: shape.n_in as i32,
            kind: if loss { Kind::BackwardL } else { Kind::BackwardE } as i32,
            ..task
        };
        self.moving_fitting(c, task, !loss, !loss)
    }

    fn products(&self, operands: Operands, task: impl Fn(usize) -> Task) -> Vec<ProductLaunch> {
        let tasks: Vec<Task> = (0..self.groups.len()).map(task).filter(|t| t.m > 0).collect();
        ProductLaunch::new(self.device(), operands, &tasks, self.shared_rows(self.room.inputs))
    }

    /// The rows that groups share where batches differ.
    fn shared_rows(&self, rows: usize) -> Option<usize> {
        self.rows.is_none().then_some(rows)
    }

    /// A product for each stack of coefficients, from its number, first row and rows.
    fn stacks(
        &self,
        operands: Operands,
        moves: Moves,
        task: impl Fn(usize, usize, usize) -> Task,
    ) -> Vec<ProductLaunch> {
        let n_stacks = self.series.n_stacks;
        let even = || vec![(0, self.room.rows.div_ceil(n_stacks)); n_stacks];
        let stacks = self.rows.as_ref().map_or_else(even, |rows| rows.stacks.clone());
        // All rows stand between the first two numbers of the counts.
        let starts = if n_stacks > 1 { 4 * Arrangement::parts(self.model().n_types())[0] as u64 } else { 0 };
        let extent = |s: usize| self.batch.now + starts + 4 * s as u64;
        let tasks = stacks.into_iter().enumerate().map(|(s, (first, n))| (s, task(s, first, n)));
        let tasks: Vec<Task> =
            tasks.filter(|(_, t)| t.m > 0).map(|(s, t)| self.moving(t, extent(s), moves)).collect();
        let most = match operands {
            Operands::Tn | Operands::TnGather => None,
            _ => self.shared_rows(self.n_env() * self.room.rows),
        };
        ProductLaunch::new(self.device(), operands, &tasks, most)
    }

    /// A = Q C (values), or its tangent.
    fn describe(&self, tangent: bool) -> Vec<ProductLaunch> {
        let (m1, columns, n_env) = (self.model().n_embed(), self.columns(), self.n_env());
        let ldm = padded(m1);
        let operands = if tangent { Operands::Nn } else { Operands::NnGather };
        let times = n_env as i32;
        // The table has two rows for every atom: Q and its tangent.
        let a_first = if tangent { times } else { 2 };
        let moves = Moves { times, a_first, c_first: times, ..Moves::default() };
        self.stacks(operands, moves, |s, first, n| Task {
            a: self.at(self.batch.q_dot, n_env * first * columns),
            rows: if tangent { 0 } else { self.batch.row_q + 8 * 2 * first as u64 },
            lda: columns as i32,
            b: self.at(self.series.embedding.c, s * columns * ldm),
            ldb: ldm as i32,
            c: self.at(if tangent { self.batch.a_dot } else { self.batch.a }, n_env * first * ldm),
            ldc: ldm as i32,
            m: (n_env * n) as i32,
            n: m1 as i32,
            k: columns as i32,
            ..Task::default()
        })
    }

    /// dE/dQ = dE/dA C^T
    fn de_q(&self) -> Vec<ProductLaunch> {
        let (m1, columns, n_env) = (self.model().n_embed(), self.columns(), self.n_env());
        let (ldm, times) = (padded(m1), n_env as i32);
        let moves = Moves { times, a_first: 2 * times, a_n: times, c_first: times, ..Moves::default() };
        self.stacks(Operands::Nt, moves, |s, first, n| Task {
            a: self.behind(self.at(self.batch.da, 2 * n_env * first * ldm), n_env * n, ldm),
            lda: ldm as i32,
            b: self.at(self.series.embedding.c, s * columns * ldm),
            ldb: ldm as i32,
            c: self.at(self.batch.de_q, n_env * first * columns),
            ldc: columns as i32,
            m: (n_env * n) as i32,
            n: columns as i32,
            k: m1 as i32,
            ..Task::default()
        })
    }

    /// dL/dC = Q^T dL/dA + Q_dot^T dE/dA; stacks without atoms have none.
    fn dl_c(&self) -> Vec<ProductLaunch> {
        let (m1, columns, n_env) = (self.model().n_embed(), self.columns(), self.n_env());
        let (ldm, times) = (padded(m1), 2 * n_env as i32);
        let moves = Moves { times, a_first: 2, b_first: times, ..Moves::default() };
        self.stacks(Operands::TnGather, moves, |s, first, n| Task {
            rows: self.batch.row_q + 8 * 2 * first as u64,
            lda: columns as i32,
            b: self.at(self.batch.da, 2 * n_env * first * ldm),
            ldb: ldm as i32,
            c: self.at(self.series.embedding.dl_c, s * columns * ldm),
            ldc: ldm as i32,
            m: columns as i32,
            n: m1 as i32,
            k: (2 * n_env * n) as i32,
            ..Task::default()
        })
    }

    /// All launches. Without `constants` only memory is counted.
    fn finish(mut self, arena: &mut Arena, constants: Option<Batch>) -> Result<Option<Shape>> {
        let hidden = self.hidden();
        let mut describe = self.describe(false);
        let mut forward = Vec::new();
        let mut tangent = Vec::new();
        for l in 0..hidden {
            forward.extend(self.products(Operands::Nn, |c| self.forward_task(c, l, false)));
            tangent.extend(self.products(Operands::Nn, |c| self.forward_task(c, l, true)));
        }
        let (mut backward, mut reverse) = (Vec::new(), Vec::new());
        for l in (0..hidden).rev() {
            backward.extend(self.products(Operands::Nt, |c| self.backward_task(c, l, false)));
            reverse.extend(self.products(Operands::Nt, |c| self.backward_task(c, l, true)));
        }
        let (mut de_q, mut a_dot, mut dl_c) = (self.de_q(), self.describe(true), self.dl_c());
        let splits: Vec<usize> = self.weight_gradients(0).iter().flat_map(|w| w.splits.clone()).collect();
        let pieces = splits.iter().copied().max().unwrap_or(1);
        let partial = arena.take(pieces * self.network.n_weights * self.size);
        let mut weights = self.weight_gradients(partial);
        let (_, _, column_blocks, column_numbers) = self.column_tasks(0);
        let column_partial = arena.take(8 * column_numbers);
        let (columns, places, ..) = self.column_tasks(column_partial);
        let mut counters = 0;
        let launches = [
            &mut describe,
            &mut forward,
            &mut backward,
            &mut de_q,
            &mut a_dot,
            &mut tangent,
            &mut reverse,
            &mut dl_c,
            &mut weights,
        ];
        let mut spots = Vec::new();
        for launch in launches.into_iter().flatten() {
            spots.push((arena.take(launch.workspace * self.size), counters));
            counters += launch.tiles();
        }
        let Some(constants) = constants else { return Ok(None) };
        let device = self.device().clone();
        let counter_buffer = Buffer::zeroed(&device, counters, "counters")?;
        let launches = [
            &mut describe,
            &mut forward,
            &mut backward,
            &mut de_q,
            &mut a_dot,
            &mut tangent,
            &mut reverse,
            &mut dl_c,
            &mut weights,
        ];
        for (launch, (workspace, counter)) in launches.into_iter().flatten().zip(spots) {
            launch.place(workspace, counter_buffer.address() + 4 * counter as u64);
        }
        let stride = columns.first().map_or(0, |c| c.stride);
        let views = self.sources(partial, &splits, column_partial, &places, stride);
        let tables = self.tables(&device)?;
        self.constants(constants);
        Ok(Some(Shape {
            id: 0,
            frame_blocks: match &self.rows {
                Some(_) => self.room.frames,
                None => self.room.frames.min(FRAME_BLOCKS * device.multiprocessors),
            },
            n_rows: self.room.rows,
            n_stacks: self.series.n_stacks,
            shared: self.room.is_shared.then_some(10 * self.room.frames + 4 * self.room.places),
            chunks: chunks_of(&self.room),
            places: self.room.places,
            batch: self.batch,
            describe,
            forward,
            backward,
            de_q,
            a_dot,
            tangent,
            reverse,
            dl_c,
            weights,
            n_columns: columns.len(),
            columns: Buffer::of(&device, &columns, "tables")?,
            column_blocks,
            n_views: views.len(),
            view_blocks: n_blocks(&views),
            views: Buffer::of(&device, &views, "tables")?,
            _tables: tables,
            _counters: counter_buffer,
        }))
    }

    /// The tables of rows and groups; those of rows only where they do not come with every step.
    fn tables(&mut self, device: &Arc<Device>) -> Result<Tables> {
        let pointers = |pick: &dyn Fn(&GroupMemory) -> DevicePtr| -> Vec<DevicePtr> {
            self.groups.iter().map(pick).collect()
        };
        let hidden = self.hidden();
        let lists = [
            pointers(&|g| g.layers[0].x),
            pointers(&|g| g.de_x),
            pointers(&|g| g.dl_x),
            pointers(&|g| g.layers[hidden].x),
        ];
        let (b, mut tables) = (&mut self.batch, Tables::default());
        for (to, list) in [&mut b.x, &mut b.de_x, &mut b.dl_x, &mut b.y_last].into_iter().zip(lists) {
            let table = Buffer::of(device, &list, "tables")?;
            *to = table.address();
            tables._of_groups.push(table);
        }
        let Some(rows) = &self.rows else { return Ok(tables) };
        for (to, list) in [
            (&mut b.row_frame, &rows.frame),
            (&mut b.row_local, &rows.local),
            (&mut b.row_input, &rows.input),
            (&mut b.row_vacuum, &rows.vacuum),
            (&mut b.frame_rows, &rows.of_frame),
            (&mut b.row_dl, &rows.dl),
            (&mut b.row_de, &rows.de),
            (&mut b.group_row, &rows.group),
        ] {
            let table = Buffer::of(device, list, "tables")?;
            *to = table.address();
            tables._of_rows.push(table);
        }
        Ok(tables)
    }

    /// Adds the numbers that all batches share to the memory and tables of this kind.
    fn constants(&mut self, constants: Batch) {
        let model = self.network.model.clone();
        let own = self.batch;
        let last = &model.fitting[0].layers[self.hidden()];
        self.batch = Batch {
            now: own.now,
            row_frame: own.row_frame,
            row_local: own.row_local,
            row_input: own.row_input,
            row_vacuum: own.row_vacuum,
            frame_rows: own.frame_rows,
            row_dl: own.row_dl,
            row_de: own.row_de,
            group_row: own.group_row,
            x: own.x,
            de_x: own.de_x,
            dl_x: own.dl_x,
            y_last: own.y_last,
            row_q: own.row_q,
            q_dot: own.q_dot,
            a: own.a,
            a_dot: own.a_dot,
            da: own.da,
            de_q: own.de_q,
            de_d: own.de_d,
            force: own.force,
            atom_energy: own.atom_energy,
            energy: own.energy,
            virial: own.virial,
            dl_force: own.dl_force,
            dl_virial: own.dl_virial,
            dl_atom_energy: own.dl_atom_energy,
            dl_energy: own.dl_energy,
            dl_e: own.dl_e,
            row_virial: own.row_virial,
            row_sums: own.row_sums,
            frame_sums: own.frame_sums,
            pair_stride: own.pair_stride,
            atom_stride: own.atom_stride,
            n_real: own.n_real,
            n_frames: self.room.frames as i32,
            n_rows: self.room.rows as i32,
            ldx: padded(model.fitting[0].layers[0].n_in) as i32,
            ld_last: padded(last.n_in) as i32,
            n_last: last.n_in as i32,
            ..constants
        };
    }
}
