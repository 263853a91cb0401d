//! A model with its frames on a device, and the passes of a step over them.

use super::frame::{Facts, PlanFrame};
use super::layout::Entry;
use super::program::*;
use super::shape::{Call, ChunkOnDevice, Class, Common, Shape, Tables, When, Work};
use crate::Result;
use crate::engine::Prediction;
use crate::engine::cuda::core::{LossTerms, PLACES, Terms, read_predicted, set_loss};
use crate::engine::cuda::layout::{self, Batch, Counts, Embedding, TURN_HEADER, Turn, View};
use crate::engine::cuda::learned::{Learned, Moved};
use crate::engine::cuda::network::{PER_BLOCK, n_blocks};
use crate::engine::cuda::program as fused;
use crate::engine::cuda::rows::rung;
use crate::engine::pinet::cuda::store::Store;
use crate::gpu::launch::Parameters;
use crate::gpu::{Buffer, Device, DevicePtr, Kernel, Launch, Ptr};
use crate::model::dp::Dp;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use zerocopy::IntoBytes;

/// Classes that are kept; with more of them, all are built anew.
const MOST_SHAPES: usize = 64;
/// Share of the free memory that frames may take.
const STORE_SHARE: f64 = 0.3;
/// Memory that the matrices of a chunk may take: the next power of two below this share of what is free, or so many bytes. A number of
/// few bits, so that the same GPU cuts batches in the same way.
const CHUNK_SHARE: f64 = 0.3;
const MOST_CHUNK: usize = 32 << 30;

/// A frame on the device.
#[derive(Debug, Clone)]
pub struct Resident {
    pub at: DevicePtr,
    pub facts: Arc<Facts>,
}

/// A model on a GPU.
pub struct PlanCore {
    pub device: Arc<Device>,
    pub model: Arc<Dp>,
    pub common: Common,
    pub store: Store,
    pub learned: Learned,
    /// `[PLACES, 16]` losses.
    pub values: Buffer<f64>,
    _bias: Buffer<f64>,
    views: Buffer<View>,
    n_views: usize,
    view_blocks: usize,
    constants: Batch,
    loss: Option<LossTerms>,
    /// A [`Turn`] with its slots and what follows them: [`Tables`].
    turn: Buffer<u8>,
    memory: Buffer<u8>,
    /// Bytes that the matrices of a chunk may take.
    pub chunk_bytes: usize,
    shapes: HashMap<Class, Arc<Shape>>,
    /// How many there have been.
    made: u64,
    /// Grows when memory moves: what was recorded before is worth nothing.
    pub generation: u64,
}

/// A batch that is cut into chunks.
pub struct Arranged {
    pub class: Class,
    /// The frames of each chunk.
    chunks: Vec<Range<usize>>,
}

impl PlanCore {
    pub fn new(device: &Arc<Device>, model: &Arc<Dp>, terms: Terms) -> Result<PlanCore> {
        device.bind()?;
        let common = Common::new(device, model)?;
        let views = views(&common);
        let bias = Buffer::of(device, &model.stats.bias, "tables")?;
        let values = Buffer::zeroed(device, 16 * PLACES, "losses")?;
        let (free, _) = device.memory()?;
        let learned = Learned::new(device, model.table.len())?;
        let mut constants = Batch {
            status: learned.status.address(),
            values: values.address(),
            bias: bias.address(),
            relative_f: f64::NAN,
            // Rows of all types stand together.
            n_types: 1,
            wants_virial: i32::from(terms.virial),
            ..Batch::default()
        };
        if let Some(loss) = &terms.loss {
            set_loss(&mut constants, loss);
        }
        let chunk = ((free as f64 * CHUNK_SHARE) as usize).clamp(1 << 20, MOST_CHUNK);
        Ok(PlanCore {
            store: Store::new(device, (free as f64 * STORE_SHARE) as usize),
            learned,
            n_views: views.len(),
            view_blocks: n_blocks(&views),
            views: Buffer::of(device, &views, "tables")?,
            turn: Buffer::zeroed(device, 1 << 16, "a step's numbers")?,
            memory: Buffer::zeroed(device, 16, "a batch")?,
            chunk_bytes: 1 << chunk.ilog2(),
            shapes: HashMap::new(),
            made: 0,
            generation: 0,
            loss: terms.loss,
            values,
            _bias: bias,
            constants,
            common,
            device: device.clone(),
            model: model.clone(),
        })
    }

    /// Brings a frame to the device; `None` where there is no room left before the store is cleared.
    pub fn bring(&mut self, frame: &PlanFrame) -> Result<Option<Resident>> {
        let at = self.store.put(&frame.blob)?;
        Ok(at.map(|at| Resident { at, facts: frame.facts.clone() }))
    }

    /// Cuts a batch into chunks of whole frames, and finds its class.
    pub fn arrange(&self, batch: &[Resident]) -> Arranged {
        let common = &self.common;
        let rows_of = |facts: &Facts| -> Vec<usize> {
            let mut lists = facts.rows.iter().map(|&n| n as usize);
            common.kinds.iter().map(|&(_, groups)| lists.by_ref().take(groups).sum()).collect()
        };
        let bytes_of = |rows: &[usize]| -> usize {
            rows.iter().zip(&common.row_bytes).map(|(n, bytes)| n * bytes).sum()
        };
        let n_kinds = common.kinds.len();
        let (mut chunks, mut first, mut filled) = (Vec::new(), 0, 0);
        let (mut rows, mut most, mut most_frames) = (vec![0; n_kinds], vec![0; n_kinds], 0);
        for (k, resident) in batch.iter().enumerate() {
            let own = rows_of(&resident.facts);
            let bytes = bytes_of(&own);
            if k > first && filled + bytes > self.chunk_bytes {
                chunks.push(first..k);
                (first, filled, rows) = (k, 0, vec![0; n_kinds]);
            }
            filled += bytes;
            for (kind, n) in own.into_iter().enumerate() {
                rows[kind] += n;
                most[kind] = rows[kind].max(most[kind]);
            }
            most_frames = most_frames.max(k + 1 - first);
        }
        chunks.push(first..batch.len());
        let sum = |n: fn(&Facts) -> usize| batch.iter().map(|r| n(&r.facts)).sum::<usize>();
        let most_atoms = batch.iter().map(|r| r.facts.n_atoms).max().unwrap_or(0);
        Arranged {
            class: Class {
                frames: batch.len().next_multiple_of(4),
                places: rung(batch.len() * most_atoms),
                centers: rung(sum(|f| f.n_centers)),
                pairs: rung(sum(|f| f.n_pairs)),
                chunks: chunks.len(),
                chunk_frames: most_frames.next_multiple_of(4),
                rows: most.into_iter().map(rung).collect(),
            },
            chunks,
        }
    }

    /// Whether a batch of this class has come before, so that [`PlanCore::shape`] waits for nothing.
    pub fn knows(&self, class: &Class) -> bool {
        self.shapes.contains_key(class)
    }

    /// Whether a shape is still kept.
    pub fn keeps(&self, id: u64) -> bool {
        self.shapes.values().any(|shape| shape.id == id)
    }

    /// The shape of a class, with room for it.
    pub fn shape(&mut self, class: &Class) -> Result<Arc<Shape>> {
        if let Some(known) = self.shapes.get(class) {
            return Ok(known.clone());
        }
        let bytes = Tables::new(&self.common, class).bytes;
        if self.turn.bytes() < bytes {
            self.forget()?;
            self.turn = Buffer::zeroed(&self.device, 2 * bytes, "a step's numbers")?;
        }
        let bytes = self.lay_out(class, 0).bytes;
        if self.memory.bytes() < bytes {
            self.forget()?;
            self.memory = Buffer::zeroed(&self.device, 16, "a batch")?;
            self.memory = Buffer::zeroed(&self.device, bytes, "a batch")?;
        }
        if self.shapes.len() >= MOST_SHAPES {
            self.forget()?;
        }
        self.made += 1;
        let shape = self.lay_out(class, self.memory.address());
        let shape = Arc::new(Shape { id: self.made, ..shape });
        self.shapes.insert(class.clone(), shape.clone());
        Ok(shape)
    }

    fn lay_out(&self, class: &Class, start: DevicePtr) -> Shape {
        Shape::new(&self.common, class, start, self.turn.address(), &self.constants)
    }

    /// Forgets all shapes, after the device has done what it was told.
    fn forget(&mut self) -> Result<()> {
        self.device.synchronize()?;
        self.shapes.clear();
        self.generation += 1;
        Ok(())
    }

    /// Where the numbers of the next batch go, and how many bytes there are.
    pub fn turn_address(&self) -> (DevicePtr, usize) {
        (self.turn.address(), self.turn.bytes())
    }

    /// Brings the numbers of the next batch from ordinary memory.
    pub fn set_turn(&self, bytes: &[u8]) -> Result<()> {
        self.turn.write(0, bytes)
    }

    /// The numbers of a batch, as the kernels read them.
    pub fn numbers(&self, bytes: &mut Vec<u8>, turn: &Turn, batch: &[Resident], arranged: &Arranged) {
        let (common, tables) = (&self.common, Tables::new(&self.common, &arranged.class));
        bytes.clear();
        bytes.resize(tables.bytes, 0);
        let mut put = |at: usize, from: &[u8]| bytes[at..at + from.len()].copy_from_slice(from);
        put(0, &turn.as_bytes()[..TURN_HEADER]);
        let slots: Vec<u32> = (0..batch.len() as u32).collect();
        put(TURN_HEADER, slots.as_bytes());
        let frames: Vec<layout::Frame> = batch.iter().map(|r| r.facts.entry(r.at)).collect();
        put(tables.frames, frames.as_bytes());
        let stride = batch.iter().map(|r| r.facts.n_atoms).max().unwrap_or(0) as u32;
        let (mut rows, mut pairs) = (0, 0);
        let (mut frame_rows, mut entries) = (Vec::new(), Vec::new());
        for (f, resident) in batch.iter().enumerate() {
            let n = resident.facts.n_centers as u32;
            frame_rows.extend([rows, n]);
            let (at, place) = (resident.at, f as u32 * stride);
            entries.push(Entry { at, place, pair: pairs, row: rows, unused: 0 });
            (rows, pairs) = (rows + n, pairs + resident.facts.n_pairs as u32);
        }
        let counts = Counts {
            n_rows: rows as i32,
            n_frames: batch.len() as i32,
            atom_stride: stride as i32,
            n_real: f64::from(rows),
            ..Counts::default()
        };
        put(tables.counts, counts.as_bytes());
        put(tables.frame_rows, frame_rows.as_bytes());
        put(tables.entries, entries.as_bytes());
        let (heads, firsts) = heads(common, batch, &arranged.chunks);
        put(tables.heads, heads.as_bytes());
        put(tables.firsts, firsts.as_bytes());
    }

    /// Starts a kernel.
    ///
    /// # Safety
    ///
    /// See the module of this engine.
    pub(super) unsafe fn start<P: Parameters>(
        &self,
        kernel: Kernel<P>,
        launch: Launch,
        arguments: P,
    ) -> Result<()> {
        // SAFETY: the caller's word.
        unsafe { kernel.launch(&self.device, self.device.stream(), launch, arguments) }
    }

    /// Refuses shapes whose memory may be gone, and those of others.
    fn check(&self, shape: &Shape) {
        let known = self.shapes.get(&shape.class).is_some_and(|known| std::ptr::eq(&**known, shape));
        assert!(known, "a shape is used while its core keeps it");
    }

    /// Some kernels of a chunk in one of the passes, which make the last of so many planes.
    fn calls(
        &self,
        shape: &Shape,
        c: &ChunkOnDevice,
        calls: &[Call],
        planes: i32,
        wanted: When,
    ) -> Result<()> {
        let (b, chunk) = (shape.batch, c.chunk);
        for Call { work, launch, when } in calls {
            if *when != When::Always && *when != wanted {
                continue;
            }
            let launch = *launch;
            // SAFETY: see the module of this engine; the shape is kept.
            unsafe {
                match *work {
                    Work::Op(kernel, op) => self.start(kernel, launch, (op, planes))?,
                    Work::OfOnePlane(kernel, op) => self.start(kernel, launch, (op,))?,
                    Work::OfKind(kernel, op, kind) => self.start(kernel, launch, (op, planes, kind))?,
                    Work::Reduce(op, n_rows) => {
                        self.start(REDUCE, launch, (op, self.learned.grad.ptr(), n_rows))?
                    }
                    Work::OnChunk(kernel, op) => self.start(kernel, launch, (chunk, op, planes))?,
                    Work::OnPart(kernel, k, op) => self.start(kernel, launch, (c.parts[k], op, planes))?,
                    Work::OnBoth(kernel, k, op) => {
                        self.start(kernel, launch, (chunk, c.parts[k], op, planes))?
                    }
                    Work::Rows(k, op) => self.start(ROWS, launch, (b, chunk, c.parts[k], op, planes))?,
                    Work::RowsBack(k, op) => self.start(ROWS_BACK, launch, (b, c.parts[k], op))?,
                    Work::Clear(at, bytes) => self.device.clear_at(at, bytes)?,
                }
            }
        }
        Ok(())
    }

    /// Brings the frames of a chunk together.
    fn take(&self, c: &ChunkOnDevice) -> Result<()> {
        // SAFETY: see the module of this engine; the chunk is of a shape that is kept.
        unsafe {
            self.start(TAKE_ATOMS, c.take, (c.chunk,))?;
            for part in &c.parts {
                self.start(TAKE_PAIRS, c.take, (c.chunk, *part))?;
                if part.couple != 0 {
                    self.start(TAKE_COUPLES, c.couples, (c.chunk, *part))?;
                }
            }
        }
        Ok(())
    }

    /// The way there and back through the operations of a chunk, for one plane: the first, or the second where the first is there.
    fn there_and_back(&self, shape: &Shape, c: &ChunkOnDevice, planes: i32) -> Result<()> {
        let wanted = if planes == 1 { When::First } else { When::Second };
        self.calls(shape, c, &c.forward, planes, wanted)?;
        let (at, bytes) = shape.adjoints[planes as usize - 1];
        // SAFETY: see the module of this engine; the adjoints are inside the memory of the shape.
        unsafe {
            if planes == 1 {
                self.start(ENERGIES, c.atoms, (shape.batch, c.chunk, c.ends))?;
            }
            self.device.clear_at(at, bytes)?;
            self.start(SEEDS, c.atoms, (shape.batch, c.chunk, c.ends, planes))?;
            if let Some(part) = self.table() {
                if planes == 1 {
                    self.start(BLEND, c.take, (shape.batch, c.chunk, part))?;
                }
                self.start(BLEND_SEEDS, c.take, (shape.batch, c.chunk, c.ends, planes, part))?;
            }
        }
        self.calls(shape, c, &c.backward, planes, wanted)
    }

    /// As which part a table of pair energies stands behind the descriptors, where the model has one.
    fn table(&self) -> Option<i32> {
        self.model.options.short_range.as_ref().map(|_| self.common.parts.len() as i32)
    }

    /// Descriptors, and a table of pair energies where there is one.
    pub(super) fn n_parts(&self) -> i32 {
        self.table().map_or(self.common.parts.len() as i32, |table| table + 1)
    }

    /// The way there alone, where no energy is predicted.
    fn there(&self, shape: &Shape, c: &ChunkOnDevice) -> Result<()> {
        self.calls(shape, c, &c.forward, 1, When::First)?;
        // SAFETY: see the module of this engine; the chunk is of a shape that is kept.
        unsafe { self.start(OUTPUTS, c.atoms, (shape.batch, c.chunk, shape.outputs, c.ends)) }
    }

    /// The way back from dL of what it has found, which nothing moves.
    fn back(&self, shape: &Shape, c: &ChunkOnDevice) -> Result<()> {
        let (at, bytes) = shape.adjoints[0];
        // SAFETY: see the module of this engine; the adjoints are inside the memory of the shape.
        unsafe {
            self.device.clear_at(at, bytes)?;
            self.start(OUTPUT_SEEDS, c.atoms, (c.chunk, shape.outputs, c.ends))?;
        }
        self.calls(shape, c, &c.backward, 1, When::Second)
    }

    /// Energies, forces, virials, or other outputs; with a loss also its value and seeds.
    ///
    /// # Safety
    ///
    /// The numbers that were brought last are those of a batch of this shape's class.
    pub unsafe fn first_pass(&self, shape: &Shape) -> Result<()> {
        self.check(shape);
        for c in &shape.chunks {
            self.take(c)?;
            match shape.outputs.width {
                0 => self.there_and_back(shape, c, 1)?,
                _ => self.there(shape, c)?,
            }
        }
        if shape.outputs.width > 0 {
            // SAFETY: the caller's word.
            return unsafe { self.frame_outputs(shape) };
        }
        let (b, class) = (shape.batch, &shape.class);
        let entries = Ptr::at(shape.chunks[0].chunk.entries);
        let n_parts = self.n_parts();
        let n_types = self.model.n_types() as i32;
        let warps = Launch::new(class.places.div_ceil(8), 256);
        // SAFETY: see the module of this engine; the shape is kept.
        unsafe {
            self.start(COLLECT, warps, (b, entries, n_parts, n_types))?;
            self.start(fused::SUM_FRAMES, Launch::new(class.frames, 256), (b,))?;
            if self.loss.is_some() {
                self.start(fused::SUM_BATCH, Launch::new(1, 256), (b, Embedding::default()))?;
            }
        }
        Ok(())
    }

    /// dL/denergy of every row from seeds that were copied to the device.
    ///
    /// # Safety
    ///
    /// The first pass of this shape was the last one.
    pub unsafe fn energy_seeds(&self, shape: &Shape) -> Result<()> {
        self.check(shape);
        let launch = Launch::new(shape.class.centers.div_ceil(128), 128);
        // SAFETY: see the module of this engine; the shape is kept.
        unsafe { self.start(fused::ENERGY_SEEDS, launch, (shape.batch,)) }
    }

    /// The gradient of the loss from its seeds.
    ///
    /// # Safety
    ///
    /// The first pass of this shape was the last one.
    pub unsafe fn second_pass(&self, shape: &Shape) -> Result<()> {
        self.check(shape);
        let launch = Launch::new((self.learned.n_params + 1).div_ceil(256), 256);
        let arguments = (self.learned.grad.ptr(), self.learned.n_params as u64, Ptr::at(self.turn.address()));
        // SAFETY: see the module of this engine; the gradient has one more number.
        unsafe { self.start(BEGIN, launch, arguments)? };
        for c in &shape.chunks {
            // Of several chunks another one has been here since.
            let many = shape.chunks.len() > 1;
            if many {
                self.take(c)?;
            }
            if shape.outputs.width == 0 {
                if many {
                    self.there_and_back(shape, c, 1)?;
                }
                self.there_and_back(shape, c, 2)?;
                continue;
            }
            if many {
                self.calls(shape, c, &c.forward, 1, When::First)?;
            }
            self.back(shape, c)?;
        }
        Ok(())
    }

    /// One step of the optimiser with the gradient on the device, or only the copies that the nets read.
    pub fn update(&self, moves: bool, wants_norm: bool) -> Result<()> {
        let turn = Ptr::at(self.turn.address());
        let launch = (self.device.stream(), Launch::new(self.view_blocks, 256));
        let (views, blocks, from) = (self.views.ptr(), 0..self.view_blocks, i32::from(moves));
        let moved = Moved { views, n_views: self.n_views, blocks, from };
        // SAFETY: see the module of this engine; views are parts of the parameters.
        unsafe {
            let n_squares = if wants_norm { self.learned.square(turn)? } else { 0 };
            self.learned.adam(launch, moved, n_squares, turn)
        }
    }

    /// Copies parameters to the device and to where the nets read them.
    pub fn set_params(&self, params: &[f64]) -> Result<()> {
        self.learned.params.write(0, params)?;
        self.update(false, false)
    }

    /// What the first pass has found of a batch that was evaluated last.
    pub fn prediction(&self, out: &mut Prediction, shape: &Shape, batch: &[Resident]) -> Result<()> {
        if shape.outputs.width > 0 {
            return self.outputs(out, shape, batch);
        }
        let stride = batch.iter().map(|r| r.facts.n_atoms).max().unwrap_or(0);
        let n = batch.len();
        // SAFETY: the shape has room for the atoms and frames of this batch.
        let [energy, force] = unsafe { read_predicted(&self.device, out, &shape.batch, n, stride)? };
        for (f, resident) in batch.iter().enumerate() {
            let at = f * stride;
            let of_atom = |(atom, is_center)| if is_center { energy[at + atom] } else { 0.0 };
            out.atom_energy.extend(resident.facts.centers().into_iter().enumerate().map(of_atom));
            out.force.extend_from_slice(&force[3 * at..3 * (at + resident.facts.n_atoms)]);
        }
        Ok(())
    }
}

/// The heads of all chunks, and for every frame its first row of each list.
fn heads(common: &Common, batch: &[Resident], chunks: &[Range<usize>]) -> (Vec<u32>, Vec<u32>) {
    let n_lists = common.graph.lists.len;
    let (mut heads, mut firsts) = (Vec::new(), vec![0u32; batch.len() * n_lists]);
    for chunk in chunks {
        heads.extend([chunk.len() as u32, chunk.start as u32]);
        let mut list = 0;
        for &(_, groups) in &common.kinds {
            let mut row = 0;
            for _ in 0..groups {
                heads.push(row);
                for f in chunk.clone() {
                    firsts[f * n_lists + list] = row;
                    row += batch[f].facts.rows[list];
                }
                list += 1;
            }
            heads.push(row);
        }
    }
    (heads, firsts)
}

/// The views of the flat vector: the nets read all of it as it stands.
fn views(common: &Common) -> Vec<View> {
    let size = common.device.numbers.size();
    let mut block = 0;
    let view = |view: &crate::model::params::ParamView| {
        let n = view.len() as i32;
        let first_block = block;
        block += view.len().div_ceil(PER_BLOCK) as i32;
        View {
            flat: view.offset as u64,
            copy: common.weights.address() + (view.offset * size) as u64,
            rows: 1,
            cols: n,
            ld: n,
            copy_ld: n,
            trainable: i32::from(view.trainable),
            first_block,
            ..View::default()
        }
    };
    common.model.table.views().iter().filter(|view| !view.is_empty()).map(view).collect()
}
