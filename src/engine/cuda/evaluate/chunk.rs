//! Some rows of an evaluation: their memory, and the kernels with all their arguments.
//!
//! Rows are atoms sorted by type, so those of a type stand together; all chunks use the same memory, one after the other.

use super::super::layout::{self, Batch, Frame, Kind, Listed, TURN_HEADER, Task};
use super::super::network::{Network, SeriesOnDevice, padded};
use super::super::products::{Operands, ProductLaunch};
use super::super::program::{
    ADJOINT_LISTED, DESCRIPTOR, DESCRIPTOR_ADJOINT, DESCRIPTOR_LISTED, FEATURES_LISTED, FORCES_LISTED,
    FORCES_LISTED_FAR, SELECT_NEIGHBORS,
};
use super::super::share::{Share, numbers_of_features, rows_in_turn};
use super::WARP_ROWS;
use super::fold::Fold;
use super::listing::Listing;
use crate::Result;
use crate::gpu::memory::in_the_type_of_kernels;
use crate::gpu::{Buffer, Device, DevicePtr, Launch};
use crate::model::dp::Dp;
use crate::model::net::Shortcut;
use std::ops::Range;
use std::sync::Arc;

/// Components of virial and energy that blocks leave.
const PARTS: usize = 10;

/// A model on the device, ready for use.
#[derive(Clone, Copy)]
pub struct Net<'a> {
    pub network: &'a Network,
    pub series: &'a SeriesOnDevice,
    pub fold: &'a Fold,
}

impl Net<'_> {
    fn model(&self) -> &Dp {
        &self.network.model
    }

    fn device(&self) -> &Arc<Device> {
        &self.network.device
    }

    fn columns(&self) -> usize {
        self.series.plan.columns()
    }

    /// Inputs of a layer of the fitting net of type `c`.
    fn n_in(&self, c: usize, l: usize) -> usize {
        if l == 0 { self.fold.n_in } else { self.model().fitting[c].layers[l].n_in }
    }
}

/// Memory of one hidden layer of the fitting nets; see `engine/cpu/fitting`.
#[derive(Clone, Copy, Default)]
struct LayerMemory {
    y: DevicePtr,
    f: DevicePtr,
    d: DevicePtr,
    dd: DevicePtr,
    dz: DevicePtr,
    de_y: DevicePtr,
}

/// Where the parts of the working memory begin. What is not needed any more makes room for what comes later.
#[derive(Clone, Default)]
struct Parts {
    /// Features, then dE/dQ.
    q: DevicePtr,
    a: DevicePtr,
    da: DevicePtr,
    /// Inputs of the fitting nets, then dE/dinput.
    x: DevicePtr,
    layers: Vec<LayerMemory>,
    d: DevicePtr,
    j: DevicePtr,
    panel_start: DevicePtr,
    padding: DevicePtr,
    end: u64,
}

impl Parts {
    fn new(of: &Net, base: DevicePtr, rows: usize) -> Parts {
        let (model, size) = (of.model(), of.device().numbers.size());
        let (columns, ldm, n_sel) = (of.columns(), padded(model.n_embed()), model.n_sel());
        let mut end = base;
        let mut take = |bytes: usize| {
            let at = end;
            end += (rows * bytes).next_multiple_of(256) as u64;
            at
        };
        let net = &model.fitting[0].layers;
        let hidden = net.len() - 1;
        let layers = (0..hidden)
            .map(|l| {
                let row = size * padded(net[l].n_out);
                let kept = layout::activation(net[l].activation).0 != 0;
                LayerMemory {
                    y: take(row),
                    f: take(row),
                    d: if kept { take(row) } else { 0 },
                    dd: if kept { take(row) } else { 0 },
                    dz: take(row),
                    de_y: if l + 1 < hidden { take(row) } else { 0 },
                }
            })
            .collect();
        let rows = model.descriptor().form().components() * size;
        let (q, a, da) = (take(rows * columns), take(rows * ldm), take(rows * ldm));
        let (x, d, j) = (take(padded(of.n_in(0, 0)) * size), take(3 * n_sel * size), take(4 * n_sel));
        let panel_start = take(4 * (of.series.plan.panels().len() + 1));
        let padding = take(2 * 4 * model.n_types());
        Parts { q, a, da, x, layers, d, j, panel_start, padding, end }
    }
}

/// Bytes of working memory for one row.
pub fn row_bytes(of: &Net) -> usize {
    const MANY: usize = 1024;
    (Parts::new(of, 0, MANY).end as usize).div_ceil(MANY)
}

/// Working memory, and the tables that all chunks share.
#[derive(Default)]
pub struct Work {
    memory: Option<Buffer<u8>>,
    /// Rows that there is room for.
    rows: usize,
    parts: Parts,
    /// 0, 1, 2 .. , zeros, and `u32::MAX`s, for the tables of rows of [`Batch`].
    identity: Option<Buffer<u32>>,
    zeros: Option<Buffer<u32>>,
    none: Option<Buffer<u32>>,
    /// A frame that says where extra inputs are, for each chunk.
    frames: Option<Buffer<Frame>>,
    extra: Option<Buffer<u8>>,
    turn: Option<Buffer<u8>>,
    sums: Option<Buffer<f64>>,
    n_parts: usize,
    workspace: Option<Buffer<u8>>,
    counters: Option<Buffer<u32>>,
    /// What was uploaded last, so that it is not uploaded again.
    extra_there: Vec<f64>,
    order_there: Vec<u32>,
}

impl Work {
    pub fn bytes(&self) -> usize {
        self.memory.as_ref().map_or(0, Buffer::bytes)
    }

    /// Room for chunks of so many rows, of so many in all.
    pub fn make_room(&mut self, of: &Net, rows: usize, n_rows: usize, n_extra: usize) -> Result<()> {
        let device = of.device();
        let bytes = Parts::new(of, 0, rows).end as usize;
        if self.memory.as_ref().is_none_or(|memory| memory.bytes() < bytes) {
            self.memory = None;
            self.memory = Some(Buffer::zeroed(device, bytes, "an evaluation")?);
        }
        let base = self.memory.as_ref().map_or(0, Buffer::address);
        self.parts = Parts::new(of, base, rows);
        if self.rows < rows || self.identity.is_none() {
            let identity: Vec<u32> = (0..rows as u32).collect();
            self.identity = Some(Buffer::of(device, &identity, "tables")?);
            self.zeros = Some(Buffer::zeroed(device, rows, "tables")?);
            self.none = Some(Buffer::of(device, &vec![u32::MAX; rows], "tables")?);
            self.turn = Some(Buffer::zeroed(device, TURN_HEADER + 16, "tables")?);
            self.rows = rows;
        }
        // A block of the kernel of forces leaves one part, and has at least one row; chunks may end with a block that is not full.
        let n_chunks = n_rows.div_ceil(rows).max(1);
        if self.n_parts < n_rows + n_chunks {
            self.n_parts = n_rows + n_rows / 8 + n_chunks;
            self.sums = Some(Buffer::zeroed(device, PARTS * self.n_parts, "energies and virials")?);
        }
        let extra_bytes = n_extra * device.numbers.size();
        if self.extra.as_ref().is_none_or(|extra| extra.bytes() < extra_bytes) {
            self.extra = Some(Buffer::zeroed(device, extra_bytes + extra_bytes / 8, "atom parameters")?);
            self.order_there.clear();
        }
        if self.frames.as_ref().is_none_or(|frames| frames.bytes() < n_chunks * size_of::<Frame>()) {
            self.frames = Some(Buffer::zeroed(device, n_chunks, "tables")?);
        }
        Ok(())
    }

    /// Copies extra inputs of all rows, where they are others than before.
    pub fn upload_extra(
        &mut self,
        device: &Device,
        listing: &Listing,
        extra: &[f64],
        n_extra: usize,
    ) -> Result<()> {
        if n_extra == 0 || (self.extra_there == extra && self.order_there == listing.order()) {
            return Ok(());
        }
        let rows = listing.order().iter().map(|&i| i as usize * n_extra);
        let sorted: Vec<f64> = rows.flat_map(|at| extra[at..at + n_extra].iter().copied()).collect();
        let bytes = in_the_type_of_kernels(&sorted, device.numbers);
        self.extra.as_ref().map_or(Ok(()), |buffer| buffer.write_bytes(0, &bytes))?;
        self.extra_there = extra.to_vec();
        self.order_there = listing.order().to_vec();
        Ok(())
    }

    /// Takes new chunks, after the evaluations of the old ones: gives them their tables and what products need beside.
    pub fn place(&mut self, network: &Network, chunks: Vec<Chunk>, to: &mut Vec<Chunk>) -> Result<()> {
        let device = &network.device;
        device.synchronize()?;
        let size = device.numbers.size();
        let products = || chunks.iter().flat_map(Chunk::products);
        let workspace = size * products().map(|launch| launch.workspace).max().unwrap_or(0);
        let tiles = products().map(ProductLaunch::tiles).max().unwrap_or(0);
        if self.workspace.as_ref().is_none_or(|memory| memory.bytes() < workspace) {
            self.workspace = Some(Buffer::zeroed(device, workspace, "products")?);
        }
        if self.counters.as_ref().is_none_or(|memory| memory.bytes() < 4 * tiles) {
            self.counters = Some(Buffer::zeroed(device, tiles, "counters")?);
        }
        let [workspace, counters] = [
            self.workspace.as_ref().map_or(0, Buffer::address),
            self.counters.as_ref().map_or(0, Buffer::address),
        ];
        let frames: Vec<Frame> = chunks.iter().map(|chunk| chunk.frame).collect();
        self.frames.as_ref().map_or(Ok(()), |table| table.write(0, &frames))?;
        *to = chunks;
        for chunk in to.iter_mut() {
            chunk.make_tables(device)?;
            // Kernels follow each other, so all products share what they need beside.
            chunk.products_mut().for_each(|launch| launch.place(workspace, counters));
        }
        Ok(())
    }
}

/// Some rows.
pub struct Chunk {
    pub batch: Batch,
    pub listed: Listed,
    frame: Frame,
    /// `[n_types + 1]`, and the memory of each group.
    group_row: Vec<u32>,
    groups: [Vec<DevicePtr>; 3],
    describe: Vec<ProductLaunch>,
    forward: Vec<ProductLaunch>,
    backward: Vec<ProductLaunch>,
    de_q: Vec<ProductLaunch>,
    kept_bytes: usize,
    n_rows: usize,
    /// Rows of A and Q for each atom.
    components: usize,
    is_folded: bool,
    _tables: Vec<Buffer<u32>>,
    _pointers: Vec<Buffer<DevicePtr>>,
}

/// Whether the launches of two arrangements are the same.
pub fn same(old: &[Chunk], new: &[Chunk]) -> bool {
    let equal = |(a, b): (&Chunk, &Chunk)| {
        // Tables of groups are made when a chunk is placed.
        let b_batch = Batch {
            group_row: a.batch.group_row,
            x: a.batch.x,
            de_x: a.batch.de_x,
            y_last: a.batch.y_last,
            ..b.batch
        };
        // Where no reference force was given, the constants say NaN.
        let [a_batch, b_batch] = [a.batch, b_batch].map(|batch| Batch { relative_f: 0.0, ..batch });
        a_batch == b_batch && a.listed == b.listed && a.group_row == b.group_row && a.groups == b.groups
    };
    old.len() == new.len() && old.iter().zip(new).all(equal)
}

/// Cuts the rows of a listing into chunks.
pub fn arrange(
    net: &Net,
    work: &Work,
    listing: &Listing,
    constants: Batch,
    base: Listed,
    rows: usize,
) -> Vec<Chunk> {
    let n_rows = listing.n_rows();
    // Chunks of the same size, up to a few rows.
    let n_chunks = n_rows.div_ceil(rows).max(1);
    let each = n_rows.div_ceil(n_chunks).next_multiple_of(WARP_ROWS).min(rows.max(1));
    let mut chunks = Vec::new();
    let mut first_part = 0;
    for first in (0..n_rows).step_by(each.max(1)) {
        let builder = Builder::new(*net, work, listing, first..n_rows.min(first + each));
        let mut chunk = builder.chunk(constants, base, chunks.len());
        chunk.listed.first_part = first_part as i32;
        first_part += chunk.of_forces(net.device()).0.blocks;
        chunks.push(chunk);
    }
    for chunk in &mut chunks {
        chunk.listed.n_parts = first_part as i32;
    }
    chunks
}

struct Builder<'a> {
    net: Net<'a>,
    work: &'a Work,
    rows: Range<usize>,
    /// `[n_types + 1]` rows of each type in this chunk.
    block: Vec<usize>,
    size: usize,
}

impl<'a> Builder<'a> {
    fn new(net: Net<'a>, work: &'a Work, listing: &Listing, rows: Range<usize>) -> Self {
        let block = listing.block().iter().map(|&at| at.clamp(rows.start, rows.end) - rows.start).collect();
        Builder { size: net.device().numbers.size(), net, work, rows, block }
    }

    /// `place` moved on by some numbers.
    fn at(&self, place: DevicePtr, numbers: usize) -> DevicePtr {
        place + (numbers * self.size) as u64
    }

    fn weight(&self, place: Option<usize>) -> DevicePtr {
        place.map_or(0, |place| self.net.network.weight_at(place))
    }

    fn chunk(self, constants: Batch, base: Listed, index: usize) -> Chunk {
        let (model, parts, work) = (self.net.model(), &self.work.parts, self.work);
        let last = &model.fitting[0].layers[self.hidden()];
        let n = self.rows.len();
        let table = |buffer: &Option<Buffer<u32>>| buffer.as_ref().map_or(0, Buffer::address);
        let frames = work.frames.as_ref().map_or(0, Buffer::address);
        let batch = Batch {
            frames: frames + (index * size_of::<Frame>()) as u64,
            turn: work.turn.as_ref().map_or(0, Buffer::address),
            row_frame: table(&work.zeros),
            row_local: table(&work.identity),
            row_input: table(&work.identity),
            row_de: table(&work.identity),
            row_vacuum: table(&work.none),
            a: parts.a,
            da: parts.da,
            de_q: parts.q,
            n_rows: n as i32,
            n_frames: 1,
            ldx: padded(self.net.n_in(0, 0)) as i32,
            ld_last: padded(last.n_in) as i32,
            n_last: last.n_in as i32,
            ..constants
        };
        let per_pair = 3 * self.size + 8;
        let counters = 4 * (2 * constants.n_panels as usize + model.n_types());
        let kept_bytes = (model.n_sel() * per_pair + counters).next_multiple_of(16);
        let extra = work.extra.as_ref().map_or(0, Buffer::address);
        let extra = self.at(extra, self.rows.start * model.n_extra());
        let listed = Listed {
            x: parts.x,
            extra,
            order: base.order + 4 * self.rows.start as u64,
            q: parts.q,
            d: parts.d,
            j: parts.j,
            panel_start: parts.panel_start,
            padding: parts.padding,
            parts: work.sums.as_ref().map_or(0, Buffer::address),
            kept_bytes: kept_bytes as i32,
            ..base
        };
        let (ldx, hidden) = (batch.ldx as usize, self.hidden());
        let of_groups = |base: DevicePtr, ld: usize| -> Vec<DevicePtr> {
            (0..model.n_types()).map(|t| self.at(base, self.block[t] * ld)).collect()
        };
        let y_last = parts.layers.last().map_or(0, |layer| layer.y);
        let forward = (0..hidden).flat_map(|l| self.products(Operands::Nn, |c| self.forward_task(c, l)));
        let backward =
            (0..hidden).rev().flat_map(|l| self.products(Operands::Nt, |c| self.backward_task(c, l)));
        Chunk {
            frame: Frame { extra, ..Frame::default() },
            is_folded: self.net.fold.is_folded(),
            group_row: self.block.iter().map(|&at| at as u32).collect(),
            groups: [
                of_groups(parts.x, ldx),
                of_groups(parts.x, ldx),
                of_groups(y_last, batch.ld_last as usize),
            ],
            describe: self.stacks(Operands::Nn, false),
            de_q: self.stacks(Operands::Nt, true),
            forward: forward.collect(),
            backward: backward.collect(),
            batch,
            listed,
            kept_bytes,
            n_rows: n,
            components: self.components(),
            _tables: Vec::new(),
            _pointers: Vec::new(),
        }
    }

    fn components(&self) -> usize {
        self.net.model().descriptor().form().components()
    }

    fn hidden(&self) -> usize {
        self.net.model().fitting[0].layers.len() - 1
    }

    /// The weights of layer `l` of the net of type `c`.
    fn weights(&self, c: usize, l: usize) -> DevicePtr {
        let folded = self.net.fold.weights(c).filter(|_| l == 0);
        folded.unwrap_or_else(|| self.weight(Some(self.net.network.places[c][l].w)))
    }

    /// What the end of a product knows of layer `l` of the net of type `c`.
    fn of_layer(&self, c: usize, l: usize) -> Task {
        let (shape, place) = (&self.net.model().fitting[c].layers[l], &self.net.network.places[c][l]);
        let (activation, threshold) = layout::activation(shape.activation);
        let (m, ldo) = (&self.work.parts.layers[l], padded(shape.n_out));
        let own = |base: DevicePtr| if base == 0 { 0 } else { self.at(base, self.block[c] * ldo) };
        Task {
            idt: self.weight(place.idt),
            f: own(m.f),
            d: own(m.d),
            dd: own(m.dd),
            dz: own(m.dz),
            activation,
            threshold,
            ldc: ldo as i32,
            ..Task::default()
        }
    }

    /// The input of layer `l` for the rows of type `c`, and its leading dimension.
    fn input(&self, c: usize, l: usize) -> (DevicePtr, usize) {
        let ld = padded(self.net.n_in(c, l));
        let base = if l == 0 { self.work.parts.x } else { self.work.parts.layers[l - 1].y };
        (self.at(base, self.block[c] * ld), ld)
    }

    /// dE/dy of layer `l`: for the last one the row of output weights, the same for every atom.
    fn de_y(&self, c: usize, l: usize) -> (DevicePtr, usize) {
        if l + 1 == self.hidden() {
            return (self.weight(Some(self.net.network.places[c][l + 1].w)), 0);
        }
        let ld = padded(self.net.model().fitting[c].layers[l].n_out);
        (self.at(self.work.parts.layers[l].de_y, self.block[c] * ld), ld)
    }

    fn forward_task(&self, c: usize, l: usize) -> Task {
        let (shape, place) = (&self.net.model().fitting[c].layers[l], &self.net.network.places[c][l]);
        let ((a, lda), ldy) = (self.input(c, l), padded(shape.n_out));
        let is_top = l + 1 == self.hidden();
        Task {
            a,
            lda: lda as i32,
            b: self.weights(c, l),
            ldb: place.ldw as i32,
            m: self.rows_of(c) as i32,
            n: shape.n_out as i32,
            k: self.net.n_in(c, l) as i32,
            bias: self.weight(place.b),
            shortcut: a,
            ld_shortcut: lda as i32,
            folds: i32::from(shape.shortcut != Shortcut::None),
            fold: shape.n_in as i32,
            y: self.at(self.work.parts.layers[l].y, self.block[c] * ldy),
            ldy: ldy as i32,
            w_out: if is_top { self.weight(Some(self.net.network.places[c][l + 1].w)) } else { 0 },
            kind: Kind::Forward as i32,
            ..self.of_layer(c, l)
        }
    }

    /// dE/dinput of layer `l`, and with it dE/dz of the one below.
    fn backward_task(&self, c: usize, l: usize) -> Task {
        let (shape, place) = (&self.net.model().fitting[c].layers[l], &self.net.network.places[c][l]);
        let task = match l {
            0 => {
                let (c, ld) = self.input(c, 0);
                Task { c, ldc: ld as i32, ..Task::default() }
            }
            _ => Task { c: self.de_y(c, l - 1).0, ..self.of_layer(c, l - 1) },
        };
        let (shortcut, ld_shortcut) = self.de_y(c, l);
        let has_shortcut = shape.shortcut != Shortcut::None;
        Task {
            a: self.of_layer(c, l).dz,
            lda: padded(shape.n_out) as i32,
            b: self.weights(c, l),
            ldb: place.ldw as i32,
            m: self.rows_of(c) as i32,
            n: self.net.n_in(c, l) as i32,
            k: shape.n_out as i32,
            shortcut,
            ld_shortcut: ld_shortcut as i32,
            folds: if has_shortcut { (shape.n_out / shape.n_in) as i32 } else { 0 },
            fold: shape.n_in as i32,
            kind: Kind::BackwardE as i32,
            ..task
        }
    }

    fn rows_of(&self, c: usize) -> usize {
        self.block[c + 1] - self.block[c]
    }

    fn products(&self, operands: Operands, task: impl Fn(usize) -> Task) -> Vec<ProductLaunch> {
        let types = 0..self.net.model().n_types();
        let tasks: Vec<Task> = types.map(task).filter(|task| task.m > 0).collect();
        ProductLaunch::new(self.net.device(), operands, &tasks, None)
    }

    /// A = Q C, or dE/dQ = dE/dA C^T, for each stack of coefficients.
    fn stacks(&self, operands: Operands, back: bool) -> Vec<ProductLaunch> {
        let parts = &self.work.parts;
        let (m1, columns, components) = (self.net.model().n_embed(), self.net.columns(), self.components());
        let (ldm, n_stacks) = (padded(m1), self.net.series.n_stacks);
        let stack =
            |s: usize| if n_stacks == 1 { 0..self.rows.len() } else { self.block[s]..self.block[s + 1] };
        let of = |rows: Range<usize>, s: usize| {
            let first = components * rows.start;
            let features = (self.at(parts.q, first * columns), columns as i32);
            let ((a, lda), (c, ldc)) = match back {
                false => (features, (self.at(parts.a, first * ldm), ldm as i32)),
                true => ((self.at(parts.da, first * ldm), ldm as i32), features),
            };
            Task {
                a,
                lda,
                b: self.at(self.net.series.embedding.c, s * columns * ldm),
                ldb: ldm as i32,
                c,
                ldc,
                m: (components * rows.len()) as i32,
                n: if back { columns } else { m1 } as i32,
                k: if back { m1 } else { columns } as i32,
                ..Task::default()
            }
        };
        let tasks: Vec<Task> = (0..n_stacks).map(|s| of(stack(s), s)).filter(|task| task.m > 0).collect();
        ProductLaunch::new(self.net.device(), operands, &tasks, None)
    }
}

impl Chunk {
    fn products(&self) -> impl Iterator<Item = &ProductLaunch> {
        [&self.describe, &self.forward, &self.backward, &self.de_q].into_iter().flatten()
    }

    fn products_mut(&mut self) -> impl Iterator<Item = &mut ProductLaunch> {
        [&mut self.describe, &mut self.forward, &mut self.backward, &mut self.de_q].into_iter().flatten()
    }

    fn make_tables(&mut self, device: &Arc<Device>) -> Result<()> {
        let group_row = Buffer::of(device, &self.group_row, "tables")?;
        self.batch.group_row = group_row.address();
        self._tables = vec![group_row];
        let b = &mut self.batch;
        for (to, list) in [&mut b.x, &mut b.de_x, &mut b.y_last].into_iter().zip(&self.groups) {
            let table = Buffer::of(device, list, "tables")?;
            *to = table.address();
            self._pointers.push(table);
        }
        Ok(())
    }

    /// How the kernel of forces is started, and whether dE/dQ of a row is brought to shared memory.
    fn of_forces(&self, device: &Device) -> (Launch, bool) {
        let of = |numbers: usize| rows_in_turn(device, self.n_rows, numbers, self.batch.n_panels as usize);
        let near = of(self.components * self.batch.columns as usize);
        let is_near = near.shared <= device.max_shared();
        (if is_near { near } else { of(0) }, is_near)
    }

    /// Starts all kernels of these rows. Forces have units of 1 / `scale`.
    ///
    /// # Safety
    ///
    /// What the chunk was arranged for is as it was, and positions were copied.
    pub unsafe fn start(&self, device: &Device, scale: f64) -> Result<()> {
        let (b, main, n) = (self.batch, device.stream(), self.n_rows);
        let e = Listed { scale, ..self.listed };
        let (ldm, m2) = (b.ldm as usize, b.m2 as usize);
        let select = Launch::new(n.div_ceil(WARP_ROWS), 32 * WARP_ROWS).shared(WARP_ROWS * self.kept_bytes);
        let features = numbers_of_features(b.terms as usize, self.components);
        let features = rows_in_turn(device, n, features, b.n_panels as usize);
        let rows = Share::of_rows(device, n, 4 * ldm);
        let adjoint = Share::of_adjoint(device, n, ldm, m2);
        let (forces, is_near) = self.of_forces(device);
        let products = |launches: &[ProductLaunch]| {
            // SAFETY: their memory is that of this chunk.
            launches.iter().try_for_each(|launch| unsafe { launch.launch(device, main) })
        };
        // SAFETY: grids cover the rows of this chunk, for which there is memory; see also the module of the engine.
        unsafe {
            SELECT_NEIGHBORS.launch(device, main, select, (b, e))?;
            FEATURES_LISTED.launch(device, main, features, (b, e))?;
            products(&self.describe)?;
            match self.is_folded {
                true => DESCRIPTOR_LISTED.launch(device, main, rows.launch(), (b, e, rows.each))?,
                false => DESCRIPTOR.launch(device, main, rows.launch(), (b, rows.each))?,
            }
            products(&self.forward)?;
            products(&self.backward)?;
            match self.is_folded {
                true => ADJOINT_LISTED.launch(device, main, adjoint.launch(), (b, e, adjoint.each))?,
                false => DESCRIPTOR_ADJOINT.launch(device, main, adjoint.launch(), (b, 0, adjoint.each))?,
            }
            products(&self.de_q)?;
            match is_near {
                true => FORCES_LISTED.launch(device, main, forces, (b, e)),
                false => FORCES_LISTED_FAR.launch(device, main, forces, (b, e)),
            }
        }
    }
}
