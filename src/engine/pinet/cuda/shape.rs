//! The plan of a network for one size class of batches: where its matrices lie, and which kernels do its passes.

use super::layout::{self, Batch, MOST_OUTPUTS, Mat, Ptr, Source, TURN_HEADER, Turn};
use super::program::*;
use crate::engine::pinet::cpu::memory::{self, Buf, Plane, Rows};
use crate::engine::pinet::cpu::plan::{Layer, Op, Plan, View};
use crate::engine::pinet::cpu::weights::column;
use crate::gpu::{self, Kernel, Launch};

/// Threads of kernels that work tile by tile.
const THREADS: usize = 128;
/// Blocks of a kernel at most, for each multiprocessor.
const BLOCKS: usize = 16;
/// Blocks that share a layer's gradient at most, for each multiprocessor.
const GRADIENT_BLOCKS: usize = 4;

/// How many structures, atoms and pairs a batch may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Class {
    pub structures: usize,
    pub atoms: usize,
    pub pairs: usize,
}

impl Class {
    /// The class of a batch: numbers are rounded up by at most an eighth, so that classes are few.
    pub fn of(structures: usize, atoms: usize, pairs: usize) -> Self {
        Class { structures: round(structures, 16), atoms: round(atoms, 64), pairs: round(pairs, 256) }
    }
}

/// The next number that has four leading bits, and at least `least`.
fn round(n: usize, least: usize) -> usize {
    let n = n.max(least);
    let step = 1 << (usize::BITS - n.leading_zeros()).saturating_sub(4);
    n.next_multiple_of(step)
}

/// One kernel of a pass.
#[derive(Debug, Clone, Copy)]
pub struct Call {
    pub op: layout::Op,
    pub launch: Launch,
    pub reads: Reads,
    /// Whose rows it works on, where it looks at no others: such calls can be joined.
    rows: Option<Rows>,
}

/// A kernel by what it is given.
#[derive(Debug, Clone, Copy)]
pub enum Reads {
    /// The operation.
    Op(Kernel<(layout::Op,)>),
    /// The batch and the operation.
    BatchAndOp(OnBatch),
    /// The batch and some of [`Shape::ops`]: the first, and how many.
    Chain(Kernel<(Batch, gpu::Ptr<layout::Op>, i32)>, usize, usize),
}

type OnBatch = Kernel<(Batch, layout::Op)>;

const DENSE: i32 = 0;
const INPUT: i32 = 1;
const CONTRACT: i32 = 2;
const ADD: i32 = 3;
const SUM: i32 = 4;

/// Buffers that all classes share.
#[derive(Debug, Clone, Copy)]
pub struct Common {
    pub turn: Ptr,
    pub status: Ptr,
    pub values: Ptr,
    pub packed: Ptr,
    pub multiprocessors: usize,
    /// Bytes of a number.
    pub real: usize,
    pub forces: bool,
}

/// Everything that is known of a class.
pub struct Shape {
    pub class: Class,
    pub batch: Batch,
    /// Forward, reverse, tangent, adjoint.
    pub passes: [Vec<Call>; 4],
    /// Where adjoints of atoms lie, which are summed up and start at zero: first byte and number of bytes. Those of
    /// the loss are the last part of them.
    pub sums: (Ptr, usize),
    pub dl_sums: (Ptr, usize),
    /// The operations of chains.
    pub ops: Vec<layout::Op>,
    /// `[n_params]`
    pub sources: Vec<Source>,
    /// Bytes of all of it.
    pub bytes: usize,
}

/// Hands out memory from a start on.
struct Place {
    start: Ptr,
    end: usize,
}

impl Place {
    fn take(&mut self, bytes: usize) -> Ptr {
        let at = self.start + self.end as u64;
        self.end += bytes.next_multiple_of(256);
        at
    }
}

/// Whether the kernels have room for a network; the reason where not.
///
/// - shared  bytes of shared memory that a kernel may have
pub fn supports(plan: &Plan, real: usize, shared: usize) -> Result<(), String> {
    if plan.outputs.len() > MOST_OUTPUTS {
        return Err(format!("depth is {}, the kernels can do {MOST_OUTPUTS}", plan.outputs.len()));
    }
    for layer in plan.segments.iter().flat_map(|segment| segment.layers()) {
        if adjoint_shared(layer, real, true).max(dense_shared(layer, real)) > shared {
            return Err(format!(
                "a layer from {} to {} numbers is too wide for the kernels",
                layer.n_in, layer.n_out
            ));
        }
    }
    Ok(())
}

/// Rows of a tile, and the stride of its columns.
fn tile(real: usize) -> (usize, usize) {
    let rows = if real == 4 { 64 } else { 32 };
    (rows, rows + 4)
}

fn dense_shared(layer: &Layer, real: usize) -> usize {
    let (_, ld) = tile(real);
    ((layer.n_in * layer.n_out).next_multiple_of(4) + layer.n_in.max(layer.n_out) * ld) * real
}

fn adjoint_shared(layer: &Layer, real: usize, forces: bool) -> usize {
    let (_, ld) = tile(real);
    let n_in = layer.n_in + usize::from(layer.b.is_some());
    let columns = n_in.next_multiple_of(4) + layer.n_out.next_multiple_of(4);
    let planes = if forces { 2 } else { 1 };
    ((layer.n_in * layer.n_out).next_multiple_of(4) + planes * columns * ld) * real
}

impl Shape {
    /// Lays out a class from `start` on. `n_params`: of the network; `pool`: how outputs become energies.
    pub fn new(plan: &Plan, class: Class, start: Ptr, common: Common, n_params: usize, pool: i32) -> Shape {
        let mut place = Place { start, end: 0 };
        let mats = matrices(&mut place, plan, class, &common);
        let batch = batch(&mut place, plan, class, &common, &mats.0, pool);
        let mut shape = Shape {
            class,
            batch,
            passes: Default::default(),
            sums: (mats.1[0], (mats.1[2] - mats.1[0]) as usize),
            dl_sums: (mats.1[1], (mats.1[2] - mats.1[1]) as usize),
            ops: Vec::new(),
            sources: vec![Source::default(); n_params],
            bytes: 0,
        };
        let mut builder = Builder { shape: &mut shape, mats: &mats.0, plan, common, place: &mut place };
        builder.passes();
        builder.join();
        shape.bytes = place.end;
        shape
    }
}

/// The planes of all matrices; where De of atoms starts, where Dl of atoms starts, and where it ends.
fn matrices(place: &mut Place, plan: &Plan, class: Class, common: &Common) -> (Vec<Mat>, [Ptr; 3]) {
    let of =
        |shape: &memory::Shape| Mat { width: shape.width as i32, ld: shape.width as i32, ..Mat::default() };
    let mut mats: Vec<Mat> = plan.shapes.iter().map(of).collect();
    let wants = |plane: Plane, jets: bool| match plane {
        Plane::Value | Plane::Dl => true,
        Plane::Dot | Plane::De => common.forces,
        // act'' is written with act', also where nobody reads it.
        Plane::Slope | Plane::Curve => jets,
        Plane::Bend => jets && common.forces,
    };
    let is_sum = |plane: Plane, rows: Rows| rows == Rows::Atom && matches!(plane, Plane::De | Plane::Dl);
    let mut put = |planes: &[Plane], sums: bool| {
        let start = place.start + place.end as u64;
        for (mat, shape) in mats.iter_mut().zip(&plan.shapes) {
            let rows = if shape.rows == Rows::Atom { class.atoms } else { class.pairs };
            for &plane in planes {
                if wants(plane, shape.jets) && is_sum(plane, shape.rows) == sums {
                    *mat.planes_mut()[plane as usize] = place.take(rows * shape.width * common.real);
                }
            }
        }
        start
    };
    use Plane::*;
    let starts = [put(&[De], true), put(&[Dl], true), put(&[Value, Dot, De, Dl, Slope, Curve, Bend], false)];
    (mats, starts)
}

/// The arrays of a batch.
fn batch(place: &mut Place, plan: &Plan, c: Class, common: &Common, mats: &[Mat], pool: i32) -> Batch {
    let mut take = |n: usize, bytes: usize| place.take(n * bytes);
    let (real, radial) = (common.real, plan.n_basis);
    let (pairs, atoms, all) = (c.pairs, c.atoms, c.structures);
    let mut batch = Batch {
        turn: common.turn,
        status: common.status,
        values: common.values,
        i: take(pairs, 4),
        j: take(pairs, 4),
        by_j: take(pairs, 4),
        start: take(atoms + 1, 4),
        start_j: take(atoms + 1, 4),
        structure: take(atoms, 4),
        d: take(3 * pairs, 8),
        e: take(pairs * radial, real),
        slope: take(pairs * radial, real),
        e_dot: take(pairs * radial, real),
        de_e: take(pairs * radial, real),
        de_d: take(3 * pairs, 8),
        atomic: take(atoms, 8),
        share: take(atoms, 8),
        energy: take(all, 8),
        dl_energy: take(all, 8),
        dl_atomic: take(atoms, 8),
        force: take(3 * atoms, 8),
        dl_force: take(3 * atoms, 8),
        stress: take(9 * all, 8),
        dl_stress: take(9 * all, 8),
        sums: take(layout::VALUES * all, 8),
        input: mats[plan.input.0].value,
        n_outputs: plan.outputs.len() as i32,
        n_types: plan.shapes[plan.input.0].width as i32,
        n_basis: radial as i32,
        n_sizes: plan.sizes.len() as i32,
        pool,
        forces: i32::from(common.forces),
        ..Batch::default()
    };
    let dot = mats[plan.input.0].dot;
    // Where there are no changes, the zeros of the input's go where nobody reads them.
    batch.input_dot = if dot == 0 { take(atoms * plan.shapes[plan.input.0].width, real) } else { dot };
    for (k, size) in plan.sizes.iter().enumerate() {
        batch.direction[k] = take(size * pairs, real);
        batch.direction_dot[k] = take(size * pairs, real);
        batch.direction_de[k] = take(size * pairs, real);
    }
    for (k, output) in plan.outputs.iter().enumerate() {
        let mat = &mats[output.0];
        (batch.out_value[k], batch.out_de[k], batch.out_dl[k]) = (mat.value, mat.de, mat.dl);
    }
    batch
}

struct Builder<'a> {
    shape: &'a mut Shape,
    mats: &'a [Mat],
    plan: &'a Plan,
    common: Common,
    place: &'a mut Place,
}

const FORWARD: usize = 0;
const REVERSE: usize = 1;
const TANGENT: usize = 2;
const ADJOINT: usize = 3;

impl Builder<'_> {
    fn passes(&mut self) {
        let plan = self.plan;
        for segment in &plan.segments {
            for op in &segment.ops {
                self.push(op, FORWARD);
                self.push(op, TANGENT);
            }
        }
        for segment in plan.segments.iter().rev() {
            for op in segment.ops.iter().rev() {
                self.push(op, REVERSE);
                self.push(op, ADJOINT);
            }
        }
    }

    fn whole(&self, buf: Buf) -> Mat {
        self.mats[buf.0]
    }

    /// Some columns of a matrix.
    fn view(&self, view: View) -> Mat {
        let mut mat = self.mats[view.buf.0];
        let skip = (view.col * self.common.real) as u64;
        mat.planes_mut().into_iter().filter(|plane| **plane != 0).for_each(|plane| *plane += skip);
        mat.width = view.width as i32;
        mat
    }

    fn count(&self, rows: Rows) -> (Ptr, usize) {
        let header = match rows {
            Rows::Atom => std::mem::offset_of!(Turn, n_atoms),
            Rows::Pair => std::mem::offset_of!(Turn, n_pairs),
        };
        let most = if rows == Rows::Atom { self.shape.class.atoms } else { self.shape.class.pairs };
        (self.common.turn + header as u64, most)
    }

    /// A kernel with one thread for each of `n` numbers of every row.
    fn elements(&mut self, pass: usize, kernel: OnBatch, op: layout::Op, rows: Rows, n: i32) {
        let (_, most) = self.count(rows);
        let grid = (most * n as usize).div_ceil(256).min(BLOCKS * self.common.multiprocessors);
        let op = layout::Op { forces: i32::from(self.common.forces), ..op };
        let call = Call { op, launch: Launch::new(grid, 256), reads: Reads::BatchAndOp(kernel), rows: None };
        self.shape.passes[pass].push(call);
    }

    /// The same for a kernel that looks at no rows but its own, tile by tile.
    fn rows(&mut self, pass: usize, kernel: OnBatch, op: layout::Op, rows: Rows, kind: i32) {
        let (_, most) = self.count(rows);
        let op = layout::Op { forces: i32::from(self.common.forces), kind, ..op };
        let grid = most.div_ceil(tile(self.common.real).0).min(BLOCKS * self.common.multiprocessors);
        let (launch, reads) = (Launch::new(grid, 256), Reads::BatchAndOp(kernel));
        let call = Call { op, launch, reads, rows: Some(rows) };
        self.shape.passes[pass].push(call);
    }

    /// Joins calls that follow each other on the same rows.
    fn join(&mut self) {
        for pass in 0..4 {
            let calls = std::mem::take(&mut self.shape.passes[pass]);
            let mut joined = Vec::new();
            for group in calls.chunk_by(|a, b| a.rows.is_some() && a.rows == b.rows) {
                let [first, _, ..] = group else {
                    joined.extend_from_slice(group);
                    continue;
                };
                let kernel = [CHAIN_FORWARD, CHAIN_REVERSE, CHAIN_TANGENT, CHAIN_ADJOINT][pass];
                let reads = Reads::Chain(kernel, self.shape.ops.len(), group.len());
                self.shape.ops.extend(group.iter().map(|call| call.op));
                // Layers cut their gradients into as many pieces as there are blocks.
                let grid = group.iter().map(|call| call.launch.blocks).min().unwrap_or(1);
                let shared = group.iter().map(|call| call.launch.shared).max().unwrap_or(0);
                let launch = Launch::new(grid, THREADS).shared(shared);
                joined.push(Call { launch, reads, ..*first });
            }
            self.shape.passes[pass] = joined;
        }
    }

    fn push(&mut self, op: &Op, pass: usize) {
        // Without forces nothing but values and dL is wanted.
        if !self.common.forces && (pass == REVERSE || pass == TANGENT) {
            return;
        }
        let of = |kernels: [OnBatch; 4]| kernels[pass];
        let back = |reverse: OnBatch, adjoint: OnBatch| if pass == REVERSE { reverse } else { adjoint };
        let none = layout::Op::default();
        match *op {
            Op::Dense { x, y, layer, parts, constant } => self.dense(pass, x, y, &layer, parts, constant),
            Op::PairInput { u, v, y, z, act, .. } => {
                let [u, v, y, x] = [u, v, y, z].map(|buf| self.whole(buf));
                let op = layout::Op { x, y, u, v, act: layout::act_number(act), ..none };
                let kernel = of([INPUT_FORWARD, INPUT_REVERSE, INPUT_TANGENT, INPUT_ADJOINT]);
                self.rows(pass, kernel, op, Rows::Pair, INPUT);
                if pass == REVERSE || pass == ADJOINT {
                    let kernel = back(SPREAD_REVERSE, SPREAD_ADJOINT);
                    self.elements(pass, kernel, op, Rows::Atom, y.width);
                }
            }
            Op::Contract { w, y, n_basis } => {
                let (x, y) = (self.whole(w), self.whole(y));
                let op = layout::Op { x, y, n_basis: n_basis as i32, ..none };
                let kernel = of([CONTRACT_FORWARD, CONTRACT_REVERSE, CONTRACT_TANGENT, CONTRACT_ADJOINT]);
                self.rows(pass, kernel, op, Rows::Pair, CONTRACT);
            }
            Op::Radial { .. } | Op::Kinds { .. } => unreachable!("a plain plan joins no operations"),
            Op::Sum { x, y } => {
                let op = layout::Op { x: self.whole(x), y: self.whole(y), ..none };
                let kernel = of([SUM_FORWARD, SUM_REVERSE, SUM_TANGENT, SUM_ADJOINT]);
                match pass {
                    REVERSE | ADJOINT => self.rows(pass, kernel, op, Rows::Pair, SUM),
                    _ => self.elements(pass, kernel, op, Rows::Atom, op.y.width),
                }
            }
            Op::Add { a, b, y } => {
                let op = layout::Op { u: self.view(a), v: self.view(b), y: self.view(y), ..none };
                let kernel = of([ADD_FORWARD, ADD_REVERSE, ADD_TANGENT, ADD_ADJOINT]);
                self.rows(pass, kernel, op, Rows::Atom, ADD);
            }
            Op::Dot { a, b, y, size } => {
                let (u, v) = (self.whole(a), self.whole(b));
                let op = layout::Op { u, v, y: self.view(y), size: size as i32, ..none };
                let kernel = of([DOT_FORWARD, DOT_REVERSE, DOT_TANGENT, DOT_ADJOINT]);
                let is_back = pass == REVERSE || pass == ADJOINT;
                self.elements(pass, kernel, op, Rows::Atom, if is_back { u.width } else { op.y.width });
            }
            Op::Scale { q, u, y, size } => {
                let (q, y) = (self.whole(q), self.whole(y));
                let op = layout::Op { u: q, v: self.view(u), y, size: size as i32, ..none };
                let kernel = of([SCALE_FORWARD, SCALE_REVERSE, SCALE_TANGENT, SCALE_ADJOINT]);
                self.elements(pass, kernel, op, Rows::Atom, y.width);
            }
            Op::Turn { p, a, direction, s, y } => {
                let mat = |buf: Option<Buf>| buf.map(|buf| self.whole(buf)).unwrap_or_default();
                let (u, v, size) = (mat(a), mat(p), self.plan.sizes[direction] as i32);
                let direction = direction as i32;
                let op = layout::Op { x: self.view(s), y: self.whole(y), u, v, size, direction, ..none };
                let kernel = of([TURN_FORWARD, TURN_REVERSE, TURN_TANGENT, TURN_ADJOINT]);
                if pass == FORWARD || pass == TANGENT {
                    return self.elements(pass, kernel, op, Rows::Atom, op.y.width);
                }
                self.elements(pass, kernel, op, Rows::Pair, op.x.width);
                if a.is_some() {
                    self.elements(pass, back(FIRST_REVERSE, FIRST_ADJOINT), op, Rows::Atom, op.y.width);
                }
                if pass == REVERSE {
                    self.elements(pass, TURN_DIRECTIONS, op, Rows::Pair, size);
                }
            }
            Op::SpreadTurn { p, s, y, size } if pass == REVERSE || pass == ADJOINT => {
                let op = layout::Op {
                    x: self.view(s),
                    y: self.whole(y),
                    v: self.whole(p),
                    size: size as i32,
                    ..none
                };
                self.elements(pass, back(SECOND_REVERSE, SECOND_ADJOINT), op, Rows::Atom, op.y.width);
            }
            // The pairs' own operation serves both of their atoms.
            Op::SpreadInput { .. } | Op::SpreadTurn { .. } => {}
        }
    }

    fn dense(&mut self, pass: usize, x: View, y: View, layer: &Layer, parts: usize, constant: bool) {
        if pass == REVERSE && constant {
            return;
        }
        let rows = self.plan.shapes[x.buf.0].rows;
        let (count, most) = self.count(rows);
        let (real, tiles) = (self.common.real, (most * parts).div_ceil(tile(self.common.real).0));
        let packed = |k: usize| self.common.packed + (layer.packed[k] * real) as u64;
        let bias = layer.b.is_some();
        let cut = |view: View| {
            let mut mat = self.view(view);
            if parts > 1 {
                (mat.ld, mat.width) = (mat.width / parts as i32, mat.width / parts as i32);
            }
            mat
        };
        let mut op = layout::Op {
            x: cut(x),
            y: cut(y),
            w: packed(0),
            wt: packed(1),
            b: if bias { packed(2) } else { 0 },
            count,
            n_in: layer.n_in as i32,
            n_out: layer.n_out as i32,
            act: layout::act_number(layer.act),
            parts: parts as i32,
            constant: i32::from(constant),
            // Adjoints of atoms are sums over their users; a matrix of pairs has one user.
            overwrite: i32::from(rows == Rows::Pair),
            forces: i32::from(self.common.forces),
            kind: DENSE,
            ..layout::Op::default()
        };
        let mut grid = tiles.min(BLOCKS * self.common.multiprocessors);
        let mut shared = dense_shared(layer, real);
        if pass == ADJOINT {
            let tiles = tiles.min(GRADIENT_BLOCKS * self.common.multiprocessors).max(1);
            let n_in = layer.n_in + usize::from(bias);
            let micro = n_in.div_ceil(4) * layer.n_out.div_ceil(4);
            let (chunks, slices) = (micro.div_ceil(THREADS), (THREADS / micro).max(1));
            // Slices share the vectors of a tile.
            let slices = slices.min(tile(real).0 * real / 16);
            let stride = n_in * layer.n_out;
            op.pieces = self.place.take(tiles * slices * stride * real);
            (op.tiles, op.slices, op.chunks) = (tiles as i32, slices as i32, chunks as i32);
            self.sources(layer, op.pieces, stride, tiles * slices);
            (grid, shared) = (tiles * chunks, adjoint_shared(layer, real, self.common.forces));
        }
        let kernel = [DENSE_FORWARD, DENSE_REVERSE, DENSE_TANGENT, DENSE_ADJOINT][pass];
        // Rows of tensors, and gradients that several blocks share, are cut otherwise than those of other operations.
        let own = (parts == 1 && op.chunks <= 1).then_some(rows);
        let launch = Launch::new(grid, THREADS).shared(shared);
        let call = Call { op, launch, reads: Reads::Op(kernel), rows: own };
        self.shape.passes[pass].push(call);
    }

    /// Where the gradient of a layer's parameters will be.
    fn sources(&mut self, layer: &Layer, pieces: Ptr, stride: usize, count: usize) {
        let source = |element: usize| Source {
            at: pieces + (element * self.common.real) as u64,
            stride: stride as u32,
            count: count as u32,
        };
        for k in 0..layer.n_in {
            for o in 0..layer.n_out {
                let param = layer.w + k * layer.n_out + column(layer, o);
                self.shape.sources[param] = source(k * layer.n_out + o);
            }
        }
        if let Some(b) = layer.b {
            for o in 0..layer.n_out {
                self.shape.sources[b + column(layer, o)] = source(layer.n_in * layer.n_out + o);
            }
        }
    }
}

/// Bytes of a turn with so many structures and atoms.
pub fn turn_bytes(structures: usize, atoms: usize) -> usize {
    TURN_HEADER + structures * size_of::<layout::Entry>() + (3 * atoms).div_ceil(32) * 4
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_at_most_an_eighth_larger_than_a_batch() {
        for n in 1..5000 {
            let rounded = round(n, 1);
            assert!(rounded >= n && rounded <= n + n / 8, "{n}: {rounded}");
        }
        assert_eq!(Class::of(100, 2400, 1), Class { structures: 104, atoms: 2560, pairs: 256 });
    }

    #[test]
    fn every_parameter_that_a_layer_uses_has_a_source() {
        for (name, model) in crate::engine::pinet::reference::tests::networks() {
            let plan = Plan::plain(&model);
            let common = Common {
                turn: 64,
                status: 64,
                values: 64,
                packed: 64,
                multiprocessors: 4,
                real: 8,
                forces: true,
            };
            let class = Class::of(3, 50, 900);
            let shape = Shape::new(&plan, class, 256, common, model.n_params(), 0);
            let used: usize = (plan.segments.iter().flat_map(|s| s.layers()))
                .map(|l| l.n_in * l.n_out + l.b.map_or(0, |_| l.n_out))
                .sum();
            let found = shape.sources.iter().filter(|s| s.at != 0 && s.count > 0).count();
            assert_eq!(found, used, "{name}");
            assert!(supports(&plan, 8, 96 << 10).is_ok() && supports(&plan, 8, 1 << 10).is_err());
        }
    }
}
