//! One kind of batch: how its atoms become rows, its memory, and the kernels of a step with all their arguments.

mod gradients;

use super::device::{Buffer, Device};
use super::layout::{self, Batch, Kind, Task};
use super::network::{Network, SeriesOnDevice, n_blocks, padded};
use super::products::{Operands, ProductLaunch};
use super::rows::Rows;
use super::sys::DevicePtr;
use crate::Result;
use crate::model::dp::Dp;
use crate::model::net::Shortcut;
use std::sync::Arc;

/// The atoms of one frame of a batch.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct FrameShape {
    pub n_atoms: usize,
    /// `[n_types + 1]` rows of each type.
    pub block: Vec<u32>,
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

struct GroupMemory {
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
    pub n_frames: usize,
    pub n_rows: usize,
    pub atom_stride: usize,
    pub describe: Vec<ProductLaunch>,
    pub forward: Vec<ProductLaunch>,
    pub backward: Vec<ProductLaunch>,
    pub de_q: Vec<ProductLaunch>,
    pub a_dot: Vec<ProductLaunch>,
    pub tangent: Vec<ProductLaunch>,
    pub reverse: Vec<ProductLaunch>,
    pub dl_c: Vec<ProductLaunch>,
    pub weights: Vec<ProductLaunch>,
    pub columns: Buffer,
    pub n_columns: usize,
    pub column_blocks: usize,
    pub views: Buffer,
    pub n_views: usize,
    pub view_blocks: usize,
    _tables: Vec<Buffer>,
    _counters: Buffer,
}

/// Bytes of working memory that a kind of batch needs.
pub fn work_bytes(network: &Network, series: &SeriesOnDevice, frames: &[FrameShape]) -> Result<usize> {
    let mut arena = Arena { base: 0, end: 0 };
    Builder::new(network, series, frames, &mut arena).finish(&mut arena, None)?;
    Ok(arena.end)
}

impl Shape {
    /// Lays a kind of batch out in working memory of [`work_bytes`]. `constants` has what all batches share.
    pub fn new(
        network: &Network,
        series: &SeriesOnDevice,
        frames: &[FrameShape],
        work: &Buffer,
        constants: Batch,
        id: u64,
    ) -> Result<Shape> {
        let mut arena = Arena { base: work.ptr(), end: 0 };
        let built = Builder::new(network, series, frames, &mut arena).finish(&mut arena, Some(constants))?;
        Ok(Shape { id, ..built.expect("memory was given") })
    }
}

struct Builder<'a> {
    network: &'a Network,
    series: &'a SeriesOnDevice,
    rows: Rows,
    frames: &'a [FrameShape],
    groups: Vec<GroupMemory>,
    size: usize,
    batch: Batch,
}

impl<'a> Builder<'a> {
    fn new(
        network: &'a Network,
        series: &'a SeriesOnDevice,
        frames: &'a [FrameShape],
        arena: &mut Arena,
    ) -> Self {
        let model = &network.model;
        let rows = Rows::new(model, frames, series.n_stacks);
        let size = network.device.numbers.size();
        let mut builder =
            Builder { network, series, frames, groups: Vec::new(), size, batch: Batch::default(), rows };
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

    /// Memory with one entry for each row, atom or frame.
    fn take_rows(&mut self, arena: &mut Arena) {
        let (n, n_frames, size) = (self.rows.n(), self.frames.len(), self.size);
        let (ldm, columns) = (padded(self.model().n_embed()), self.columns());
        let atoms = self.frames.iter().map(|f| f.n_atoms).max().unwrap_or(0);
        let most_rows = self.frames.iter().map(|f| f.block[f.block.len() - 1]).max().unwrap_or(0) as usize;
        let pairs = most_rows * self.model().n_sel();
        let inputs = self.rows.group[self.rows.group.len() - 1] as usize;
        let b = &mut self.batch;
        b.row_q = arena.take(16 * n);
        b.q_dot = arena.take(4 * n * columns * size);
        b.a = arena.take(4 * n * ldm * size);
        b.a_dot = arena.take(4 * n * ldm * size);
        b.da = arena.take(8 * n * ldm * size);
        b.de_q = arena.take(4 * n * columns * size);
        b.de_d = arena.take(3 * n_frames * pairs * size);
        b.force = arena.take(24 * n_frames * atoms);
        b.atom_energy = arena.take(8 * n_frames * atoms);
        b.energy = arena.take(8 * n_frames);
        b.virial = arena.take(72 * n_frames);
        b.dl_force = arena.take(24 * n_frames * atoms);
        b.dl_virial = arena.take(72 * n_frames);
        b.dl_atom_energy = arena.take(8 * n_frames * atoms);
        b.dl_energy = arena.take(8 * n_frames);
        b.dl_e = arena.take(size * inputs);
        b.row_virial = arena.take(72 * n);
        b.row_sums = arena.take(48 * n);
        b.frame_sums = arena.take(120 * n_frames);
        (b.pair_stride, b.atom_stride) = (pairs as i32, atoms as i32);
    }

    /// Memory of the fitting net of one type.
    fn group(&self, arena: &mut Arena, c: usize) -> GroupMemory {
        let (first, end) = (self.rows.group[c] as usize, self.rows.group[c + 1] as usize);
        let (n, size) = (end - first, self.size);
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
        let half = |x: DevicePtr, ld: usize| if tangent { self.at(x, group.n * ld) } else { x };
        let top = l + 1 == self.hidden();
        let w_out = self.network.weight_at(self.network.places[c][self.hidden()].w);
        Task {
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
            dz: if tangent { m.dz } else { self.at(m.dz, group.n * m.ldo) },
            w_out: if top { w_out } else { 0 },
            dl_y: m.dl_y,
            dl_e: self.at(self.batch.dl_e, group.first),
            kind: if tangent { Kind::Tangent } else { Kind::Forward } as i32,
            ..self.of_layer(c, l)
        }
    }

    /// Adjoint of the input of layer `l`: of the energy, or of the loss.
    fn backward_task(&self, c: usize, l: usize, loss: bool) -> Task {
        let (shape, place) = (&self.model().fitting[c].layers[l], &self.network.places[c][l]);
        let group = &self.groups[c];
        let m = &group.layers[l];
        let half = |dz: DevicePtr, ld: usize| if loss { dz } else { self.at(dz, group.n * ld) };
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
        Task {
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
        }
    }

    fn products(&self, operands: Operands, task: impl Fn(usize) -> Task) -> Vec<ProductLaunch> {
        let tasks: Vec<Task> = (0..self.groups.len()).map(task).filter(|t| t.m > 0).collect();
        ProductLaunch::new(self.device(), operands, &tasks)
    }

    /// A product for each stack of coefficients.
    fn stacks(&self, operands: Operands, task: impl Fn(usize, usize, usize) -> Task) -> Vec<ProductLaunch> {
        let stacks = self.rows.stacks.iter().enumerate();
        let tasks: Vec<Task> = stacks.map(|(s, &(first, n))| task(s, first, n)).filter(|t| t.m > 0).collect();
        ProductLaunch::new(self.device(), operands, &tasks)
    }

    /// A = Q C (values), or its tangent.
    fn describe(&self, tangent: bool) -> Vec<ProductLaunch> {
        let (m1, columns) = (self.model().n_embed(), self.columns());
        let ldm = padded(m1);
        let operands = if tangent { Operands::Nn } else { Operands::NnGather };
        self.stacks(operands, |s, first, n| Task {
            a: self.at(self.batch.q_dot, 4 * first * columns),
            rows: if tangent { 0 } else { self.batch.row_q + 8 * 2 * first as u64 },
            lda: columns as i32,
            b: self.at(self.series.embedding.c, s * columns * ldm),
            ldb: ldm as i32,
            c: self.at(if tangent { self.batch.a_dot } else { self.batch.a }, 4 * first * ldm),
            ldc: ldm as i32,
            m: 4 * n as i32,
            n: m1 as i32,
            k: columns as i32,
            ..Task::default()
        })
    }

    /// dE/dQ = dE/dA C^T
    fn de_q(&self) -> Vec<ProductLaunch> {
        let (m1, columns) = (self.model().n_embed(), self.columns());
        let ldm = padded(m1);
        self.stacks(Operands::Nt, |s, first, n| Task {
            a: self.at(self.batch.da, 4 * (2 * first + n) * ldm),
            lda: ldm as i32,
            b: self.at(self.series.embedding.c, s * columns * ldm),
            ldb: ldm as i32,
            c: self.at(self.batch.de_q, 4 * first * columns),
            ldc: columns as i32,
            m: 4 * n as i32,
            n: columns as i32,
            k: m1 as i32,
            ..Task::default()
        })
    }

    /// dL/dC = Q^T dL/dA + Q_dot^T dE/dA; stacks without atoms have none.
    fn dl_c(&self) -> Vec<ProductLaunch> {
        let (m1, columns) = (self.model().n_embed(), self.columns());
        let ldm = padded(m1);
        self.stacks(Operands::TnGather, |s, first, n| Task {
            rows: self.batch.row_q + 8 * 2 * first as u64,
            lda: columns as i32,
            b: self.at(self.batch.da, 8 * first * ldm),
            ldb: ldm as i32,
            c: self.at(self.series.embedding.dl_c, s * columns * ldm),
            ldc: ldm as i32,
            m: columns as i32,
            n: m1 as i32,
            k: 8 * n as i32,
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
        let counter_buffer = Buffer::zeroed(&device, 4 * counters, "counters")?;
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
            launch.place(workspace, counter_buffer.ptr() + 4 * counter as u64);
        }
        let stride = columns.first().map_or(0, |c| c.stride);
        let views = self.sources(partial, &splits, column_partial, &places, stride);
        let tables = self.tables(&device)?;
        self.constants(constants, &tables);
        Ok(Some(Shape {
            id: 0,
            n_frames: self.frames.len(),
            n_rows: self.rows.n(),
            atom_stride: self.batch.atom_stride as usize,
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

    /// The tables of rows and groups, in the order that [`Builder::constants`] expects.
    fn tables(&self, device: &Arc<Device>) -> Result<Vec<Buffer>> {
        let rows = &self.rows;
        let mut tables: Vec<Buffer> = [
            &rows.frame,
            &rows.local,
            &rows.input,
            &rows.vacuum,
            &rows.of_frame,
            &rows.dl,
            &rows.de,
            &rows.group,
        ]
        .into_iter()
        .map(|table| Buffer::of(device, table, "tables"))
        .collect::<Result<_>>()?;
        let pointers = |pick: &dyn Fn(&GroupMemory) -> DevicePtr| -> Vec<DevicePtr> {
            self.groups.iter().map(pick).collect()
        };
        let hidden = self.hidden();
        for list in [
            pointers(&|g| g.layers[0].x),
            pointers(&|g| g.de_x),
            pointers(&|g| g.dl_x),
            pointers(&|g| g.layers[hidden].x),
        ] {
            tables.push(Buffer::of(device, &list, "tables")?);
        }
        Ok(tables)
    }

    fn constants(&mut self, constants: Batch, tables: &[Buffer]) {
        let model = self.network.model.clone();
        let own = self.batch;
        let n_real = self.rows.n();
        let last = &model.fitting[0].layers[self.hidden()];
        let mut pointers = tables.iter().map(Buffer::ptr);
        let mut next = || pointers.next().expect("as many tables as fields");
        self.batch = Batch {
            row_frame: next(),
            row_local: next(),
            row_input: next(),
            row_vacuum: next(),
            frame_rows: next(),
            row_dl: next(),
            row_de: next(),
            group_row: next(),
            x: next(),
            de_x: next(),
            dl_x: next(),
            y_last: next(),
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
            n_real: n_real as f64,
            n_frames: self.frames.len() as i32,
            n_rows: n_real as i32,
            ldx: padded(model.fitting[0].layers[0].n_in) as i32,
            ld_last: padded(last.n_in) as i32,
            n_last: last.n_in as i32,
            ..constants
        };
    }
}
