//! The memory of a class of batches, and the kernels that work on one chunk of them.

use super::graph::{Graph, Id, Index, Lists, Rows, Step, View, is_plain, still_arguments};
use super::layout::{Chunk, Entry, Mat, Op, Outputs, Part};
use super::outputs::OutputTables;
use super::program::*;
use crate::Result;
use crate::engine::cuda::layout::{self, Batch, Counts, TURN_HEADER};
use crate::gpu::{Buffer, Device, DevicePtr, Kernel, Launch, Real};
use crate::model::dp::Dp;
use crate::model::net::{LayerShape, Shortcut};
use std::sync::Arc;

/// Blocks of a kernel at most, for each multiprocessor.
const BLOCKS: usize = 16;
/// Rows of a piece of a gradient, and pieces of a group at most: of matrices, and of what is so small that pieces are many.
const PIECE_ROWS: usize = 512;
const MOST_PIECES: usize = 64;
const SMALL_PIECE_ROWS: usize = 128;
const MOST_SMALL_PIECES: usize = 1024;
/// Numbers of all pieces of an operation at most, as long as one piece is smaller.
const PIECES: usize = 1 << 24;
/// Blocks that help with a frame when its rows are brought together.
const HELPERS: usize = 16;
/// Tiles of products, and threads that make one, as in `kernels/numbers.cu`.
const TILE: usize = 64;
const MAKERS: usize = 128;
/// Inputs of a narrow layer at most; its weights and biases have one thread each.
const NARROW: usize = 8;

/// What a batch needs room for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Class {
    pub frames: usize,
    /// Frames times the atoms of the largest.
    pub places: usize,
    pub centers: usize,
    pub pairs: usize,
    pub chunks: usize,
    /// Of one chunk: frames, and rows of each kind in the order of [`kinds`].
    pub chunk_frames: usize,
    pub rows: Vec<usize>,
}

/// The kinds of rows that depend on the batch, with the groups of each.
pub fn kinds(lists: &Lists, n_types: usize) -> Vec<(Rows, usize)> {
    let mut kinds = vec![(Rows::Atoms, lists.atom_groups)];
    for (k, part) in lists.parts.iter().enumerate() {
        kinds.push((Rows::Pairs(k), part.groups));
        kinds.extend(part.couples.map(|_| (Rows::Couples(k), n_types * n_types)));
        kinds.extend(part.square.map(|_| (Rows::Squares(k), 1)));
    }
    kinds
}

/// The model as all classes see it.
pub struct Common {
    pub device: Arc<Device>,
    pub model: Arc<Dp>,
    pub parts: Vec<Arc<Dp>>,
    pub graph: Graph,
    pub kinds: Vec<(Rows, usize)>,
    /// What it says where that is no energy.
    pub outputs: Option<OutputTables>,
    /// Planes of a matrix at most: values, and their changes where forces are learnt.
    planes: usize,
    /// Bytes of a chunk for each row of each kind.
    pub row_bytes: Vec<usize>,
    /// `[n_params]` as the nets read them.
    pub weights: Buffer<Real>,
    /// Numbers that never change: given matrices, and what parts have.
    given: Vec<Option<Buffer<Real>>>,
    still_s: Vec<Buffer<Real>>,
    radial: Vec<Buffer<Real>>,
    couple_weights: Vec<Buffer<Real>>,
    /// First rows of the groups of kinds that do not depend on the batch, by matrix.
    starts: Vec<(Rows, usize, Buffer<u32>)>,
    /// Of the gathers, by step.
    indices: Vec<Option<Buffer<u32>>>,
    removes_vacuum: Buffer<u32>,
}

impl Common {
    pub fn new(device: &Arc<Device>, model: &Arc<Dp>) -> Result<Common> {
        let (graph, parts, n_types) = (Graph::new(model), model.parts(), model.n_types());
        let reals = |values: &[f64]| Buffer::reals(device, values, "tables");
        let given = |matrix: &super::graph::Matrix| -> Result<Option<Buffer<Real>>> {
            let values = matrix.given.as_ref();
            // No change follows the values.
            values.map(|values| reals(&[&values[..], &vec![0.0; values.len()]].concat())).transpose()
        };
        let radial = |part: &Arc<Dp>| {
            let of = |c: usize| {
                let (davg, dstd) = (&part.stats.davg[c], &part.stats.dstd[c]);
                [davg[0], 1.0 / dstd[0], 1.0 / dstd[1]]
            };
            reals(&(0..n_types).flat_map(of).collect::<Vec<f64>>())
        };
        let couple_weights = |part: &Arc<Dp>| {
            let slots = |t: usize| part.sel().get(t).map_or(1.0, |&n| n.max(1) as f64);
            let of = |g: usize| 1.0 / (slots(g / n_types) * slots(g % n_types));
            reals(&(0..n_types * n_types).map(of).collect::<Vec<f64>>())
        };
        let starts = |rows: Rows, n: usize, groups: usize| -> Result<_> {
            let starts: Vec<u32> = (0..=groups).map(|g| (g * n / groups) as u32).collect();
            Ok((rows, groups, Buffer::of(device, &starts, "tables")?))
        };
        let mut fixed =
            vec![starts(Rows::Types, n_types, 1)?, starts(Rows::TypePairs, n_types * n_types, 1)?];
        for (k, part) in graph.lists.parts.iter().enumerate() {
            fixed.push(starts(Rows::Still(k), 2 * n_types * n_types, part.groups)?);
        }
        let index = |step: &Step| -> Result<Option<Buffer<u32>>> {
            let Step::Gather { index: Index::Given(rows), .. } = step else { return Ok(None) };
            Buffer::of(device, rows, "tables").map(Some)
        };
        let removes: Vec<u32> = (0..n_types).map(|t| u32::from(model.removes_vacuum(t))).collect();
        let kinds = kinds(&graph.lists, n_types);
        let (size, planes) = (device.numbers.size(), if model.is_energy() { 2 } else { 1 });
        let row_bytes = |&(rows, _): &(Rows, usize)| {
            let of = graph.matrices.iter().filter(|m| m.rows == rows);
            let matrices: usize =
                of.map(|m| m.width * size * planes * if m.only_adjoint { 1 } else { 2 }).sum();
            matrices + 64
        };
        Ok(Common {
            row_bytes: kinds.iter().map(row_bytes).collect(),
            given: graph.matrices.iter().map(given).collect::<Result<_>>()?,
            still_s: parts.iter().map(|part| reals(&still_arguments(part))).collect::<Result<_>>()?,
            radial: parts.iter().map(radial).collect::<Result<_>>()?,
            couple_weights: parts.iter().map(couple_weights).collect::<Result<_>>()?,
            starts: fixed,
            indices: graph.steps.iter().map(index).collect::<Result<_>>()?,
            removes_vacuum: Buffer::of(device, &removes, "tables")?,
            outputs: OutputTables::new(device, model)?,
            planes,
            weights: Buffer::zeroed_reals(device, model.table.len(), "the weights")?,
            device: device.clone(),
            model: model.clone(),
            kinds,
            parts,
            graph,
        })
    }

    /// Words of a chunk's head before the first rows of a kind, and of all of it.
    fn head_at(&self, kind: usize) -> usize {
        2 + self.kinds[..kind].iter().map(|(_, groups)| groups + 1).sum::<usize>()
    }

    pub fn head_words(&self) -> usize {
        self.head_at(self.kinds.len())
    }
}

/// Where the numbers of a batch stand, in bytes from the beginning of a turn: they follow its slots.
#[derive(Debug, Clone, Copy)]
pub struct Tables {
    pub frames: usize,
    pub counts: usize,
    pub frame_rows: usize,
    pub heads: usize,
    pub entries: usize,
    pub firsts: usize,
    pub bytes: usize,
}

impl Tables {
    pub fn new(common: &Common, class: &Class) -> Tables {
        let mut end = TURN_HEADER;
        let mut take = |bytes: usize| {
            let at = end;
            end = (end + bytes).next_multiple_of(16);
            at
        };
        take(4 * class.frames);
        Tables {
            frames: take(class.frames * size_of::<layout::Frame>()),
            counts: take(size_of::<Counts>()),
            frame_rows: take(8 * class.frames),
            heads: take(4 * class.chunks * common.head_words()),
            entries: take(class.frames * size_of::<Entry>()),
            firsts: take(4 * class.frames * common.graph.lists.len),
            bytes: end,
        }
    }
}

/// When a kernel is started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    Always,
    First,
    Second,
}

/// A kernel with what it is given beside the number of planes.
#[derive(Debug, Clone, Copy)]
pub enum Work {
    Op(Kernel<(Op, i32)>, Op),
    OfOnePlane(Kernel<(Op,)>, Op),
    OfKind(Kernel<(Op, i32, i32)>, Op, i32),
    Reduce(Op, i32),
    OnChunk(Kernel<(Chunk, Op, i32)>, Op),
    OnPart(Kernel<(Part, Op, i32)>, usize, Op),
    OnBoth(Kernel<(Chunk, Part, Op, i32)>, usize, Op),
    Rows(usize, Op),
    RowsBack(usize, Op),
    /// Sets some bytes to zero.
    Clear(DevicePtr, usize),
}

/// A kernel of a chunk.
#[derive(Debug, Clone, Copy)]
pub struct Call {
    pub work: Work,
    pub launch: Launch,
    pub when: When,
}

/// One chunk of a batch.
pub struct ChunkOnDevice {
    pub chunk: Chunk,
    pub parts: Vec<Part>,
    pub forward: Vec<Call>,
    pub backward: Vec<Call>,
    /// What energies and seeds are given.
    pub ends: Op,
    /// Blocks that bring frames together, and those of atoms.
    pub take: Launch,
    pub atoms: Launch,
    pub couples: Launch,
}

/// Everything that is known of a class.
pub struct Shape {
    pub class: Class,
    /// Tells classes apart.
    pub id: u64,
    pub tables: Tables,
    pub batch: Batch,
    pub outputs: Outputs,
    pub chunks: Vec<ChunkOnDevice>,
    /// Where the adjoints of each plane lie, which start at zero: first byte and number of bytes.
    pub adjoints: [(DevicePtr, usize); 2],
    pub bytes: usize,
}

/// Hands out memory from a start on.
pub struct Place {
    start: DevicePtr,
    end: usize,
}

impl Place {
    pub fn take(&mut self, bytes: usize) -> DevicePtr {
        let at = self.start + self.end as u64;
        self.end += bytes.next_multiple_of(256);
        at
    }
}

impl Shape {
    /// Lays a class out from `start` on; `turn` is where the numbers of a step are.
    pub fn new(
        common: &Common,
        class: &Class,
        start: DevicePtr,
        turn: DevicePtr,
        constants: &Batch,
    ) -> Shape {
        let mut place = Place { start, end: 0 };
        let tables = Tables::new(common, class);
        let batch = batch(&mut place, class, tables, turn, constants, common.device.numbers.size());
        let outputs = common.outputs.as_ref().map(|tables| tables.lay_out(&mut place, class));
        let (mats, adjoints) = matrices(&mut place, common, class);
        let chunk = chunk(&mut place, common, class);
        let parts: Vec<Part> = (0..common.parts.len()).map(|k| part(&mut place, common, class, k)).collect();
        let mut builder = Builder { common, class, mats, chunk, parts, pieces_at: 0, pieces: 0, head: 0 };
        builder.backward(); // to know how large pieces are
        builder.pieces_at = place.take(builder.pieces * common.device.numbers.size());
        let mut chunks = Vec::new();
        for k in 0..class.chunks {
            let head = turn + (tables.heads + 4 * k * common.head_words()) as u64;
            builder.head = head;
            let rows = |kind: Rows| builder.rows(kind).0;
            let list_of = |part: &Part| Part { rows: rows(Rows::Pairs(part.number as usize)), ..*part };
            chunks.push(ChunkOnDevice {
                chunk: Chunk {
                    head,
                    entries: turn + tables.entries as u64,
                    firsts: turn + tables.firsts as u64,
                    rows: rows(Rows::Atoms),
                    ..builder.chunk
                },
                parts: builder.parts.iter().map(list_of).collect(),
                ends: builder.ends(),
                take: Launch::new(class.chunk_frames * HELPERS, 256),
                atoms: builder.elements(class.rows[0] * outputs.map_or(1, |o| o.width.max(32) as usize)),
                couples: builder.blocks(class.rows[0]),
                forward: builder.forward(),
                backward: builder.backward(),
            });
        }
        let outputs = outputs.unwrap_or_default();
        Shape { class: class.clone(), id: 0, tables, batch, outputs, chunks, adjoints, bytes: place.end }
    }
}

/// What the kernels of the loss read and write.
fn batch(
    place: &mut Place,
    class: &Class,
    tables: Tables,
    turn: DevicePtr,
    constants: &Batch,
    size: usize,
) -> Batch {
    let Class { frames, places, centers, pairs, .. } = *class;
    let mut take = |bytes: usize| place.take(bytes);
    Batch {
        frames: turn + tables.frames as u64,
        turn,
        now: turn + tables.counts as u64,
        frame_rows: turn + tables.frame_rows as u64,
        row_frame: take(4 * centers),
        row_local: take(4 * centers),
        row_input: take(4 * centers),
        row_vacuum: take(4 * centers),
        de_d: take(3 * pairs * size),
        force: take(24 * places),
        atom_energy: take(8 * places),
        energy: take(8 * frames),
        virial: take(72 * frames),
        dl_force: take(24 * places),
        dl_virial: take(72 * frames),
        dl_atom_energy: take(8 * places),
        dl_energy: take(8 * frames),
        dl_e: take(size * centers),
        row_virial: take(72 * centers),
        row_sums: take(48 * centers),
        frame_sums: take(120 * frames),
        n_frames: frames as i32,
        n_rows: centers as i32,
        ..*constants
    }
}

/// Planes, in each of which values stand before adjoints.
fn matrices(place: &mut Place, common: &Common, class: &Class) -> (Vec<Mat>, [(DevicePtr, usize); 2]) {
    let size = common.device.numbers.size();
    let matrices = &common.graph.matrices;
    let numbers = |k: usize| most_rows(common, class, matrices[k].rows) * matrices[k].width;
    let mut plane = Place { start: 0, end: 0 };
    let mut take = |k: usize| plane.take(numbers(k) * size);
    let has_values = |k: &usize| !matrices[*k].only_adjoint && common.given[*k].is_none();
    let values: Vec<_> = (0..matrices.len()).map(|k| has_values(&k).then(|| take(k))).collect();
    let adjoints: Vec<_> = (0..matrices.len()).map(|k| common.given[k].is_none().then(|| take(k))).collect();
    let first_adjoint = adjoints.iter().flatten().next().copied().unwrap_or(0);
    let start = place.take(common.planes * plane.end);
    let mat = |k: usize| {
        let width = matrices[k].width as i32;
        let at = |offset: Option<u64>| offset.map_or(0, |offset| start + offset);
        let (v, g, stride) = match &common.given[k] {
            // Nobody asks for the adjoints of what is given, but kernels make them.
            Some(buffer) => (buffer.address(), place.take(common.planes * numbers(k) * size), numbers(k)),
            None => (at(values[k]), at(adjoints[k]), plane.end / size),
        };
        Mat { v, g, plane: stride as u64, width, ld: width }
    };
    let mats = (0..matrices.len()).map(mat).collect();
    let of_plane =
        |k: u64| (start + k * plane.end as u64 + first_adjoint, plane.end - first_adjoint as usize);
    (mats, [0, 1].map(of_plane))
}

/// Rows that there is room for.
fn most_rows(common: &Common, class: &Class, rows: Rows) -> usize {
    let n_types = common.model.n_types();
    match rows {
        Rows::Types => n_types,
        Rows::TypePairs => n_types * n_types,
        Rows::Still(_) => 2 * n_types * n_types,
        _ => class.rows[kind_of(common, rows)],
    }
}

fn kind_of(common: &Common, rows: Rows) -> usize {
    common.kinds.iter().position(|&(known, _)| known == rows).expect("rows of a kind that the model has")
}

fn chunk(place: &mut Place, common: &Common, class: &Class) -> Chunk {
    let (n, n_extra) = (class.rows[0], common.model.n_extra());
    Chunk {
        types: place.take(4 * n),
        frame: place.take(4 * n),
        row: place.take(4 * n),
        place: place.take(4 * n),
        extra: place.take(n * n_extra * common.device.numbers.size()),
        groups: common.graph.lists.atom_groups as i32,
        n_lists: common.graph.lists.len as i32,
        n_extra: n_extra as i32,
        most_frames: class.chunk_frames as i32,
        ..Chunk::default()
    }
}

fn part(place: &mut Place, common: &Common, class: &Class, k: usize) -> Part {
    let (model, lists, size) = (&common.parts[k], &common.graph.lists.parts[k], common.device.numbers.size());
    let (n_types, options) = (model.n_types(), model.descriptor());
    let n = class.rows[0];
    let room = |rows: Rows| most_rows(common, class, rows);
    let pairs = room(Rows::Pairs(k));
    let mut take = |bytes: usize| place.take(bytes);
    let mut part = Part {
        d: take(3 * pairs * size),
        types: take(4 * pairs),
        atom: take(4 * pairs),
        neighbor: take(4 * pairs),
        place: take(4 * pairs),
        first: take(4 * n_types * n),
        count: take(4 * n_types * n),
        total: take(4 * n),
        still: take(2 * n_types * n * size),
        still_s: common.still_s[k].address(),
        radial: common.radial[k].address(),
        weights: common.couple_weights[k].address(),
        rcut: options.rcut,
        rcut_smth: options.rcut_smth,
        inv_width: 1.0 / (options.rcut - options.rcut_smth),
        protection: options.env_protection,
        groups: lists.groups as i32,
        n_types: n_types as i32,
        n_sel: model.n_sel() as i32,
        most_atoms: n as i32,
        number: k as i32,
        list: lists.first as i32,
        ..Part::default()
    };
    if let Some(list) = lists.couples {
        let couples = room(Rows::Couples(k));
        part.couple_list = list as i32;
        part.couple = take(4 * n_types * n_types * n);
        (part.left, part.right, part.couple_atom) = (take(4 * couples), take(4 * couples), take(4 * couples));
    }
    if let Some(list) = lists.square {
        (part.square_list, part.square) = (list as i32, take(4 * n));
    }
    part
}

struct Builder<'a> {
    common: &'a Common,
    class: &'a Class,
    mats: Vec<Mat>,
    chunk: Chunk,
    parts: Vec<Part>,
    pieces_at: DevicePtr,
    /// Numbers of the largest pieces so far.
    pieces: usize,
    head: DevicePtr,
}

impl Builder<'_> {
    /// First rows of the groups of a kind, and how many groups there are.
    fn rows(&self, rows: Rows) -> (DevicePtr, usize) {
        if let Some((_, groups, starts)) = self.common.starts.iter().find(|(known, ..)| *known == rows) {
            return (starts.address(), *groups);
        }
        let kind = kind_of(self.common, rows);
        (self.head + 4 * self.common.head_at(kind) as u64, self.common.kinds[kind].1)
    }

    fn most(&self, rows: Rows) -> usize {
        most_rows(self.common, self.class, rows)
    }

    fn rows_of(&self, id: Id) -> Rows {
        self.common.graph.matrices[id].rows
    }

    fn whole(&self, id: Id) -> Mat {
        self.mats[id]
    }

    fn view(&self, view: View) -> Mat {
        self.mats[view.id].columns(view.first, view.width, self.common.device.numbers.size())
    }

    fn limited(&self, blocks: usize) -> usize {
        blocks.clamp(1, BLOCKS * self.common.device.multiprocessors)
    }

    /// A thread for each of so many elements.
    fn elements(&self, n: usize) -> Launch {
        Launch::new(self.limited(n.div_ceil(256)), 256)
    }

    /// A warp for each of so many rows.
    fn warps(&self, n: usize) -> Launch {
        Launch::new(self.limited(n.div_ceil(8)), 256)
    }

    fn blocks(&self, n: usize) -> Launch {
        Launch::new(self.limited(n), 256)
    }

    /// A block for each of so many tiles of products.
    fn products(&self, n: usize) -> Launch {
        Launch::new(self.limited(n), MAKERS)
    }

    /// An operation on rows of a kind.
    fn op(&self, rows: Rows) -> Op {
        let (at, groups) = self.rows(rows);
        Op { rows: at, groups: groups as i32, ..Op::default() }
    }

    /// Pieces of a sum over rows, `each` numbers: how many.
    fn splits(&mut self, rows: usize, groups: usize, each: usize) -> usize {
        self.splits_of(rows, groups, each, PIECE_ROWS, MOST_PIECES)
    }

    fn small_splits(&mut self, rows: usize, groups: usize, each: usize) -> usize {
        self.splits_of(rows, groups, each, SMALL_PIECE_ROWS, MOST_SMALL_PIECES)
    }

    fn splits_of(&mut self, rows: usize, groups: usize, each: usize, least: usize, most: usize) -> usize {
        let splits = rows.div_ceil(groups * least).clamp(1, most);
        let splits = splits.min(PIECES.div_ceil(groups * each)).max(1);
        self.pieces = self.pieces.max(splits * groups * each);
        splits
    }

    /// What energies and their seeds are given.
    fn ends(&self) -> Op {
        Op {
            x: self.whole(self.common.graph.out),
            u: self.common.graph.vacuum.map_or(Mat::default(), |id| self.whole(id)),
            index: self.common.removes_vacuum.address(),
            ..self.op(Rows::Atoms)
        }
    }

    fn forward(&mut self) -> Vec<Call> {
        let mut calls = Vec::new();
        let graph = &self.common.graph;
        for (k, step) in graph.steps.iter().enumerate() {
            self.push_forward(&mut calls, k, step);
        }
        calls
    }

    fn backward(&mut self) -> Vec<Call> {
        let mut calls = Vec::new();
        let graph = &self.common.graph;
        for (k, step) in graph.steps.iter().enumerate().rev() {
            self.push_backward(&mut calls, k, step);
        }
        calls
    }

    /// The layer of a step.
    fn dense(&self, x: View, z: Id, y: Id, layer: &LayerShape, stride: usize) -> Op {
        let weight =
            |at: usize| self.common.weights.address() + (at * self.common.device.numbers.size()) as u64;
        let (activation, threshold) = layout::activation(layer.activation);
        Op {
            x: self.view(x),
            z: self.whole(z),
            y: self.whole(y),
            w: weight(layer.w),
            b: layer.b.map_or(0, weight),
            idt: layer.idt.map_or(0, weight),
            stride: stride as u64,
            w_flat: layer.w as u64,
            b_flat: layer.b.unwrap_or(0) as u64,
            activation,
            threshold,
            shortcut: i32::from(layer.shortcut != Shortcut::None),
            n_in: layer.n_in as i32,
            n_out: layer.n_out as i32,
            ..self.op(self.rows_of(z))
        }
    }

    /// Blocks for the tiles of a product of all rows of a kind with so many columns.
    fn tiles(&self, rows: Rows, columns: usize) -> Launch {
        let (_, groups) = self.rows(rows);
        self.products((self.most(rows).div_ceil(TILE) + groups) * columns.div_ceil(TILE))
    }

    fn normalize(&self, x: View, u: View, z: Id, y: Id, layer: &LayerShape, eps: f64) -> Op {
        Op { x: self.view(x), u: self.view(u), scale: eps, ..self.dense(x, z, y, layer, 0) }
    }

    fn gather(&self, step: usize, x: View, y: View, index: &Index) -> Op {
        let given = || self.common.indices[step].as_ref().map_or(0, Buffer::address);
        Op {
            x: self.view(x),
            y: self.view(y),
            index: match index {
                Index::Same => 0,
                Index::Given(_) => given(),
                Index::TypesOfPairs(part) => self.parts[*part].types,
                Index::TypeOfAtom => self.chunk.types,
            },
            n_in: self.most(self.rows_of(x.id)) as i32,
            n_out: x.width as i32,
            ..self.op(self.rows_of(y.id))
        }
    }

    fn softmax(&self, ids: (Id, Id, Option<Id>, Id, [Id; 2]), smooth: bool) -> Op {
        let (x, switch, directions, y, [s, t]) = ids;
        Op {
            x: self.whole(x),
            y: self.whole(y),
            z: self.whole(switch),
            u: directions.map_or(Mat::default(), |id| self.whole(id)),
            s: self.whole(s),
            t: self.whole(t),
            kind: i32::from(smooth),
            ..Op::default()
        }
    }

    /// A product for each atom; sizes of 0 are the number of its neighbours.
    fn segments(&self, part: usize, factors: [Mat; 3], kind: i32, sizes: [usize; 3], scale: f64) -> Call {
        let [x, u, y] = factors;
        let [n_in, n_out, size] = sizes.map(|n| n as i32);
        let op = Op { x, u, y, kind, n_in, n_out, size, scale, ..Op::default() };
        let n_sel = self.common.parts[part].n_sel();
        let tiles = |n: usize| (if n == 0 { n_sel } else { n }).div_ceil(TILE);
        let launch = self.products(self.class.rows[0] * tiles(sizes[0]) * tiles(sizes[1]));
        Call { work: Work::OnBoth(SEGMENTS, part, op), launch, when: When::Always }
    }

    fn outer(&self, g: View, row: Id, still: Option<View>, y: Id, n_env: usize, scale: f64) -> Op {
        Op {
            x: self.view(g),
            u: self.whole(row),
            z: still.map_or(Mat::default(), |view| self.view(view)),
            y: self.whole(y),
            n_in: n_env as i32,
            n_out: g.width as i32,
            scale,
            ..Op::default()
        }
    }

    fn push_forward(&mut self, calls: &mut Vec<Call>, k: usize, step: &Step) {
        let mut push = |work: Work, launch: Launch| calls.push(Call { work, launch, when: When::Always });
        let n_atoms = self.class.rows[0];
        match step {
            Step::Rows { part, row, switch } => {
                let z = switch.map_or(Mat::default(), |id| self.whole(id));
                let op = Op { y: self.whole(*row), z, ..Op::default() };
                push(Work::Rows(*part, op), self.elements(self.most(Rows::Pairs(*part))));
            }
            Step::Dense { x, z, y, layer, stride } => {
                let (op, rows) = (self.dense(*x, *z, *y, layer, *stride), self.rows_of(*z));
                match is_narrow(&op) {
                    true => push(Work::Op(NARROW_DENSE, op), self.elements(self.most(rows) * layer.n_out)),
                    false => push(Work::Op(DENSE, op), self.tiles(rows, layer.n_out)),
                }
                if !is_plain(layer) {
                    push(Work::Op(ACTIVATE, op), self.elements(self.most(rows) * layer.n_out));
                }
            }
            Step::Normalize { x, u, z, y, layer, eps } => {
                let op = self.normalize(*x, *u, *z, *y, layer, *eps);
                push(Work::Op(NORMALIZE, op), self.warps(self.most(self.rows_of(*z))));
            }
            Step::Unit { x, y, width } => {
                let rows = self.rows_of(*y);
                let op = Op {
                    x: self.view(*x),
                    y: self.whole(*y),
                    n_in: *width as i32,
                    n_out: x.width as i32,
                    ..self.op(rows)
                };
                push(Work::Op(UNIT, op), self.warps(self.most(rows) * x.width / width));
            }
            Step::Gather { x, y, index } => {
                let op = self.gather(k, *x, *y, index);
                push(Work::Op(GATHER, op), self.elements(self.most(self.rows_of(y.id)) * x.width));
            }
            Step::Zero { y } => {
                let (mat, size) = (self.whole(*y), self.common.device.numbers.size());
                let bytes = self.most(self.rows_of(*y)) * mat.width as usize * size;
                for (plane, when) in [(0, When::First), (mat.plane, When::Second)] {
                    let work = Work::Clear(mat.v + plane * size as u64, bytes);
                    calls.push(Call { work, launch: Launch::new(1, 1), when });
                }
            }
            Step::Combine { x, u, switch, y } => {
                let op = self.combine(*x, *u, *switch, *y);
                push(Work::Op(COMBINE, op), self.elements(self.most(self.rows_of(*y)) * x.width));
            }
            Step::Scores { part, q, k, y, scale } => {
                let factors = [self.view(*q), self.view(*k), self.whole(*y)];
                calls.push(self.segments(*part, factors, 8 + 16, [0, 0, q.width], *scale));
            }
            Step::Softmax { part, x, switch, directions, y, shared, smooth } => {
                let op = self.softmax((*x, *switch, *directions, *y, *shared), *smooth);
                push(Work::OnPart(SOFTMAX, *part, op), self.warps(self.most(Rows::Pairs(*part))));
            }
            Step::Weighted { part, weights, v, y } => {
                let factors = [self.whole(*weights), self.view(*v), self.whole(*y)];
                calls.push(self.segments(*part, factors, 1, [0, v.width, 0], 1.0));
            }
            Step::Outer { part, g, row, still, y, n_env, scale } => {
                let op = self.outer(*g, *row, *still, *y, *n_env, *scale);
                push(Work::OnBoth(OUTER, *part, op), self.elements(n_atoms * g.width));
            }
            Step::Square { a, y, axis, scale } => {
                let op = self.square(*a, *y, *axis, *scale);
                push(Work::Op(SQUARE, op), self.elements(n_atoms * y.width));
            }
            Step::Extra { y } => {
                let op = Op { y: self.view(*y), ..Op::default() };
                push(Work::OnChunk(EXTRA, op), self.elements(n_atoms * y.width));
            }
            Step::Couples { part, row, y } => {
                let rows = Rows::Couples(*part);
                let op = Op { x: self.whole(*row), y: self.whole(*y), ..self.op(rows) };
                push(Work::OnPart(COUPLES, *part, op), self.elements(self.most(rows)));
            }
            Step::CoupleSum { part, g, x, y } => {
                let op = self.couple_sum(*part, *g, *x, *y);
                push(Work::OnBoth(COUPLE_SUM, *part, op), self.blocks(n_atoms * g.width.div_ceil(32)));
            }
            Step::Turned { a, x, y, kind } => {
                push(Work::OfOnePlane(TURNED, self.turned(*a, *x, *y, *kind)), self.warps(n_atoms));
            }
        }
    }

    fn combine(&self, x: View, u: View, switch: Option<Id>, y: Id) -> Op {
        Op {
            x: self.view(x),
            u: self.view(u),
            z: switch.map_or(Mat::default(), |id| self.whole(id)),
            y: self.whole(y),
            n_out: x.width as i32,
            ..self.op(self.rows_of(y))
        }
    }

    fn square(&self, a: Id, y: View, axis: usize, scale: f64) -> Op {
        let n_env = if axis > 0 { 4 } else { 1 };
        let n_in = self.whole(a).width / n_env;
        let (x, y) = (self.whole(a), self.view(y));
        Op { x, y, n_in, n_out: axis as i32, scale, ..self.op(Rows::Atoms) }
    }

    fn turned(&self, a: Id, x: Id, y: Id, kind: i32) -> Op {
        let (a, outputs) = (self.whole(a), self.common.outputs.as_ref());
        Op {
            x: self.whole(x),
            u: a,
            y: self.whole(y),
            w: outputs.map_or(0, |outputs| outputs.net_scale.address()),
            index: self.chunk.types,
            n_out: a.width / 4,
            kind,
            ..self.op(Rows::Atoms)
        }
    }

    fn couple_sum(&self, part: usize, g: View, x: Id, y: View) -> Op {
        let (n_out, rows) = (g.width as i32, Rows::Couples(part));
        Op { x: self.view(g), u: self.whole(x), y: self.view(y), n_out, ..self.op(rows) }
    }

    fn push_backward(&mut self, calls: &mut Vec<Call>, k: usize, step: &Step) {
        let push = |calls: &mut Vec<Call>, work: Work, launch: Launch| {
            calls.push(Call { work, launch, when: When::Always });
        };
        let n_atoms = self.class.rows[0];
        match step {
            Step::Rows { part, row, switch } => {
                let z = switch.map_or(Mat::default(), |id| self.whole(id));
                let work = Work::RowsBack(*part, Op { y: self.whole(*row), z, ..Op::default() });
                let launch = self.elements(self.most(Rows::Pairs(*part)));
                calls.push(Call { work, launch, when: When::First });
            }
            Step::Dense { x, z, y, layer, stride } => {
                let (op, rows) = (self.dense(*x, *z, *y, layer, *stride), self.rows_of(*z));
                if layer.idt.is_some() {
                    self.vectors(calls, Op { w_flat: layer.idt.unwrap_or(0) as u64, ..op }, rows, 0);
                }
                if !is_plain(layer) {
                    let n = self.most(rows) * layer.n_out;
                    push(calls, Work::Op(ACTIVATE_BACK, op), self.elements(n));
                }
                self.weights(calls, op, rows);
                match is_narrow(&op) {
                    true => {
                        push(calls, Work::Op(NARROW_BACK, op), self.elements(self.most(rows) * layer.n_in))
                    }
                    false => push(calls, Work::Op(DENSE_BACK, op), self.tiles(rows, layer.n_in)),
                }
            }
            Step::Normalize { x, u, z, y, layer, eps } => {
                let (op, rows) = (self.normalize(*x, *u, *z, *y, layer, *eps), self.rows_of(*z));
                self.vectors(calls, op, rows, 1);
                push(calls, Work::Op(NORMALIZE_BACK, op), self.warps(self.most(rows)));
            }
            Step::Unit { x, y, width } => {
                let rows = self.rows_of(*y);
                let op = Op {
                    x: self.view(*x),
                    y: self.whole(*y),
                    n_in: *width as i32,
                    n_out: x.width as i32,
                    ..self.op(rows)
                };
                push(calls, Work::Op(UNIT_BACK, op), self.warps(self.most(rows) * x.width / width));
            }
            Step::Gather { x, y, index } => {
                let (op, rows) = (self.gather(k, *x, *y, index), self.rows_of(y.id));
                if matches!(index, Index::Same) {
                    return push(calls, Work::Op(COPY_BACK, op), self.elements(self.most(rows) * x.width));
                }
                let each = op.n_in as usize * x.width;
                let splits = self.small_splits(self.most(rows), 1, each);
                let op = Op { pieces: self.pieces_at, splits: splits as i32, ..op };
                push(calls, Work::Op(GATHER_BACK, op), self.blocks(splits * x.width.div_ceil(32)));
                push(calls, Work::Op(GATHER_REDUCE, op), self.elements(each));
            }
            Step::Zero { .. } | Step::Extra { .. } => {}
            Step::Combine { x, u, switch, y } => {
                let op = self.combine(*x, *u, *switch, *y);
                push(calls, Work::Op(COMBINE_BACK, op), self.warps(self.most(self.rows_of(*y))));
            }
            Step::Scores { part, q, k, y, scale } => {
                let (dy, q, k) = (self.whole(*y).adjoint(), self.view(*q), self.view(*k));
                let sizes = [0, q.width as usize, 0];
                calls.push(self.segments(*part, [dy, k, q.adjoint()], 1 + 32, sizes, *scale));
                calls.push(self.segments(*part, [dy, q, k.adjoint()], 1 + 2 + 32, sizes, *scale));
            }
            Step::Softmax { part, x, switch, directions, y, shared, smooth } => {
                let op = self.softmax((*x, *switch, *directions, *y, *shared), *smooth);
                let launch = self.warps(self.most(Rows::Pairs(*part)));
                push(calls, Work::OnPart(SOFTMAX_BACK, *part, op), launch);
                if *smooth || directions.is_some() {
                    push(calls, Work::OnPart(SHARED_BACK, *part, op), launch);
                }
            }
            Step::Weighted { part, weights, v, y } => {
                let (w, v, dy) = (self.whole(*weights), self.view(*v), self.whole(*y).adjoint());
                let width = v.width as usize;
                calls.push(self.segments(*part, [dy, v, w.adjoint()], 8 + 16 + 32, [0, 0, width], 1.0));
                calls.push(self.segments(*part, [w, dy, v.adjoint()], 1 + 2 + 32, [0, width, 0], 1.0));
            }
            Step::Outer { part, g, row, still, y, n_env, scale } => {
                let op = self.outer(*g, *row, *still, *y, *n_env, *scale);
                let launch = self.warps(self.most(Rows::Pairs(*part)));
                push(calls, Work::OnPart(OUTER_BACK, *part, op), launch);
                if still.is_some() {
                    let n = self.most(Rows::Still(*part)) * g.width.div_ceil(32);
                    push(calls, Work::OnBoth(STILL_BACK, *part, op), self.blocks(n));
                }
            }
            Step::Square { a, y, axis, scale } => {
                let op = self.square(*a, *y, *axis, *scale);
                let n = n_atoms * self.whole(*a).width as usize;
                push(calls, Work::Op(SQUARE_BACK, op), self.elements(n));
            }
            Step::Couples { part, row, y } => {
                let op = Op { x: self.whole(*row), y: self.whole(*y), ..self.op(Rows::Couples(*part)) };
                let launch = self.warps(self.most(Rows::Pairs(*part)));
                push(calls, Work::OnPart(COUPLES_BACK, *part, op), launch);
            }
            Step::CoupleSum { part, g, x, y } => {
                let op = self.couple_sum(*part, *g, *x, *y);
                let launch = self.elements(self.most(Rows::Couples(*part)));
                push(calls, Work::OnPart(COUPLE_SUM_BACK, *part, op), launch);
            }
            Step::Turned { a, x, y, kind } => {
                let work = Work::OfOnePlane(TURNED_BACK, self.turned(*a, *x, *y, *kind));
                push(calls, work, self.warps(n_atoms));
            }
        }
    }

    /// The gradient of the matrix and the bias of a layer.
    fn weights(&mut self, calls: &mut Vec<Call>, op: Op, rows: Rows) {
        let n_rows = op.n_in as usize + usize::from(op.b != 0);
        let n_out = op.n_out as usize;
        let (most, groups) = (self.most(rows), op.groups as usize);
        let (kernel, splits, launch) = if is_narrow(&op) {
            let splits = self.small_splits(most, groups, n_rows * n_out);
            (NARROW_WEIGHTS, splits, self.blocks(splits * groups))
        } else {
            let splits = self.splits(most, groups, n_rows * n_out);
            let tiles = splits * groups * (op.n_in as usize).div_ceil(TILE) * n_out.div_ceil(TILE);
            (WEIGHTS, splits, self.products(tiles))
        };
        let op = Op { pieces: self.pieces_at, splits: splits as i32, ..op };
        let when = When::Second;
        calls.push(Call { work: Work::Op(kernel, op), launch, when });
        let launch = self.elements(groups * n_rows * n_out);
        calls.push(Call { work: Work::Reduce(op, n_rows as i32), launch, when });
    }

    /// The gradient of vectors that rows are multiplied by.
    fn vectors(&mut self, calls: &mut Vec<Call>, op: Op, rows: Rows, kind: i32) {
        let (most, groups, n_out) = (self.most(rows), op.groups as usize, op.n_out as usize);
        let n_rows = 1 + kind as usize;
        let splits = self.small_splits(most, groups, n_rows * n_out);
        let op = Op { pieces: self.pieces_at, splits: splits as i32, n_in: 1, ..op };
        let launch = self.elements(splits * groups * n_out);
        calls.push(Call { work: Work::OfKind(VECTORS, op, kind), launch, when: When::Second });
        let launch = self.elements(groups * n_rows * n_out);
        calls.push(Call { work: Work::Reduce(op, n_rows as i32), launch, when: When::Second });
    }
}

/// Whether a layer is so narrow that tiles of products would be nearly empty.
fn is_narrow(op: &Op) -> bool {
    let n_rows = op.n_in as usize + usize::from(op.b != 0);
    op.n_in as usize <= NARROW && n_rows * op.n_out as usize <= 256
}
