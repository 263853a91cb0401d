//! A model with its frames on a device, and the passes of a step over them.

mod series;

use super::direct::Direct;
use super::frame::{Facts, HostFrame};
use super::layout::{Batch, TURN_HEADER, Turn, View};
use super::muon::{Muon, MuonPlan};
use super::network::{Network, PER_BLOCK, SeriesOnDevice};
use super::products::ProductLaunch;
use super::program::*;
use super::rows::{Arrangement, Room};
use super::shape::{CHUNK, Content, FrameShape, Shape, work_bytes};
use super::share::Share;
use super::store::Store;
use crate::Result;
use crate::engine::Prediction;
use crate::engine::cpu::argument_range;
use crate::engine::cpu::chebyshev::Plan;
use crate::engine::cpu::pool::Pool;
use crate::gpu::launch::Parameters;
use crate::gpu::{Buffer, Device, DevicePtr, Event, Kernel, Launch, Pinned, Ptr, Stream};
use crate::model::dp::Dp;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use zerocopy::IntoBytes;

/// Frames of the largest batch.
const MAX_FRAMES: usize = 1 << 16;
/// Values of losses that are kept on the device.
pub const PLACES: usize = 1024;
/// Blocks of an update on each multiprocessor, where other kernels run beside it.
const BLOCKS_BESIDE: usize = 2;
/// Threads of the host beside the one that feeds the device.
const MOST_THREADS: usize = 8;
/// Kinds of batches that are kept at a time.
const MOST_SHAPES: usize = 32;

/// What a step computes beside energies and forces.
#[derive(Debug, Clone, Default)]
pub struct Terms {
    /// The loss, where there is one.
    pub loss: Option<LossTerms>,
    /// Virials are wanted.
    pub virial: bool,
}

/// The loss that the device computes itself.
#[derive(Debug, Clone)]
pub struct LossTerms {
    /// How an error enters it.
    pub function: LossKind,
    /// Force errors of an atom are divided by |F| + relative_f of its label, where given.
    pub relative_f: Option<f64>,
    /// Force errors enter by their norm for each atom.
    pub f_use_norm: bool,
    /// The energies of atoms have coefficients.
    pub use_coeff: bool,
    /// Forces of frames without weights have the weight 1.
    pub default_pf: bool,
    /// Squared errors of energy and virial are divided by N^2 instead of N.
    pub intensive: bool,
    /// The learning rate at which prefactors start.
    pub start_lr: f64,
}

/// Squares, absolute values, or squares up to a limit (of energy, force, virial) and absolute values beyond.
#[derive(Debug, Clone, Copy)]
pub enum LossKind {
    Mse,
    Mae,
    Huber([f64; 3]),
}

/// Tells the kernels what the loss is.
pub fn set_loss(c: &mut Batch, loss: &LossTerms) {
    (c.function, c.delta) = match loss.function {
        LossKind::Mse => (0, [0.0; 3]),
        LossKind::Mae => (1, [0.0; 3]),
        LossKind::Huber(deltas) => (2, deltas),
    };
    c.relative_f = loss.relative_f.unwrap_or(f64::NAN);
    c.f_use_norm = i32::from(loss.f_use_norm);
    c.use_coeff = i32::from(loss.use_coeff);
    c.default_pf = i32::from(loss.default_pf);
    c.intensive = i32::from(loss.intensive);
    c.start_lr = loss.start_lr;
    c.used = 1;
}

/// Where an update finds the gradient.
pub enum Gradient<'a> {
    /// Nowhere: only the copies are made that the nets read.
    None,
    /// In the flat vector.
    Flat,
    /// In the pieces that a batch of this kind left.
    Pieces(&'a Shape),
}

/// A model and its frames on one device.
pub struct Core {
    pub device: Arc<Device>,
    pub model: Arc<Dp>,
    pub network: Network,
    pub store: Store,
    /// `None` until [`Core::adapt`] has found one, and where the nets themselves are used.
    series: Option<SeriesOnDevice>,
    /// The nets themselves: for all batches where there is no series, else for those with a frame that it does not cover.
    direct: Option<Direct>,
    range: (f64, f64),
    /// Arguments beyond which no series was found.
    refused: (f64, f64),
    /// Threads of the host that look for series.
    pool: Pool,
    terms: Terms,
    constants: Batch,
    /// A [`Turn`] with its slots.
    turn: Buffer<u8>,
    /// The numbers of the next steps, copied ahead: bytes of each and how many. Absent: each step's are copied before it.
    ring: Option<(Buffer<u8>, u32, u32)>,
    /// Steps taken from the ring.
    counter: Buffer<u32>,
    /// `[PLACES, 16]`
    pub values: Buffer<f64>,
    views: Buffer<View>,
    n_views: usize,
    view_blocks: usize,
    /// Those of the embedding nets, which come first.
    embedding_blocks: usize,
    /// Which embedding nets learn.
    trained: Buffer<u32>,
    /// The optimiser, where it is not Adam.
    muon: Option<Muon>,
    /// A running mean of the parameters, and the part of the way that it goes in a step.
    average: Option<(Buffer<f64>, f64)>,
    work: Option<Buffer<u8>>,
    /// By kind, with when they were used last.
    shapes: HashMap<u128, (Arc<Shape>, u64)>,
    uses: u64,
    /// Batches of a data set in which hardly two are alike, and what the largest needs: they share shapes with room enough.
    largest: Option<Room>,
    /// Changes whenever shapes or series do, so that what was recorded with them is not used any more.
    pub generation: u64,
    events: Events,
}

/// Points where work forks and joins.
struct Events {
    /// Forces are there.
    first: Event,
    /// dL/denergy and dL/dvirial are there.
    seeds: Event,
    /// dL/dz of all layers are there.
    adjoints: Event,
    /// dL/dinput is there.
    inputs: Event,
    /// The branch of the fitting nets has ended.
    fitting: Event,
    /// Sums over rows are there.
    columns: Event,
}

impl Core {
    /// `capacity` frames fit into the store; the series reaches down to `min_distance`, A.
    pub fn new(
        device: &Arc<Device>,
        model: &Arc<Dp>,
        min_distance: f64,
        capacity: usize,
        terms: Terms,
    ) -> Result<Core> {
        device.bind()?;
        let network = Network::new(device, model)?;
        let views = network.views();
        let trained: Vec<u32> =
            views[..model.embedding.len()].iter().map(|view| view.trainable as u32).collect();
        let mut core = Core {
            store: Store::new(device, capacity)?,
            series: None,
            direct: None,
            range: argument_range(model, min_distance),
            refused: (f64::NEG_INFINITY, f64::INFINITY),
            pool: Pool::new(std::thread::available_parallelism().map_or(1, |n| n.get().min(MOST_THREADS)))?,
            constants: Batch::default(),
            turn: Buffer::zeroed(device, TURN_HEADER + 4 * MAX_FRAMES, "a step's numbers")?,
            ring: None,
            counter: Buffer::zeroed(device, 2, "a step's numbers")?,
            values: Buffer::zeroed(device, 16 * PLACES, "losses")?,
            n_views: views.len(),
            view_blocks: super::network::n_blocks(&views),
            embedding_blocks: views[model.embedding.len()].first_block as usize,
            trained: Buffer::of(device, &trained, "tables")?,
            views: Buffer::of(device, &views, "tables")?,
            muon: None,
            average: None,
            work: None,
            shapes: HashMap::new(),
            uses: 0,
            largest: None,
            generation: 0,
            events: Events {
                first: Event::new(device)?,
                seeds: Event::new(device)?,
                adjoints: Event::new(device)?,
                inputs: Event::new(device)?,
                fitting: Event::new(device)?,
                columns: Event::new(device)?,
            },
            terms,
            network,
            device: device.clone(),
            model: model.clone(),
        };
        core.set_constants();
        Ok(core)
    }

    /// The numbers of model, loss and series that all batches share.
    fn set_constants(&mut self) {
        let (model, net) = (&self.model, &self.network);
        let d = model.descriptor();
        let mut c = Batch {
            frames: self.store.table(),
            turn: self.turn.address(),
            status: net.status.address(),
            w_out: net.w_out.address(),
            b_out: net.b_out.address(),
            radial: net.radial.address(),
            bias: net.bias.address(),
            values: self.values.address(),
            rcut_smth: d.rcut_smth,
            inv_width: 1.0 / (d.rcut - d.rcut_smth),
            protection: d.env_protection,
            relative_f: f64::NAN,
            n_types: model.n_types() as i32,
            m1: model.n_embed() as i32,
            m2: (d.width() / model.n_embed()) as i32,
            ldm: super::network::padded(model.n_embed()) as i32,
            n_extra: model.n_extra() as i32,
            wants_virial: i32::from(self.terms.virial),
            ..Batch::default()
        };
        if let Some(series) = &self.series {
            (c.panels, c.cuts, c.empty_panel) = (series.embedding.panels, series.cuts, series.empty_panel);
            c.skew = series.plan.skew;
            c.terms = series.plan.terms as i32;
            (c.n_panels, c.columns) = (series.embedding.n_panels, series.embedding.columns);
        }
        if let Some(loss) = &self.terms.loss {
            set_loss(&mut c, loss);
        }
        self.constants = c;
    }

    /// What all batches share; for [`Store::put`].
    pub fn constants(&self) -> &Batch {
        &self.constants
    }

    fn forget_shapes(&mut self) {
        self.shapes.clear();
        self.generation += 1;
    }

    /// Puts a frame into a slot.
    ///
    /// # Safety
    ///
    /// A frame in page-locked memory must be kept until the copy is done: see [`Core::put_and_keep`].
    unsafe fn put_kept(&mut self, slot: usize, frame: &HostFrame) -> Result<()> {
        let nets = self.series.as_ref().or(self.direct.as_ref().map(|direct| &direct.nets));
        let nets = nets.expect("a series is chosen before frames come");
        // SAFETY: the constants are of this core; the rest is the caller's word.
        unsafe { self.store.put(slot, frame, nets, &self.constants) }
    }

    /// Puts a frame of ordinary memory into a slot.
    pub fn put(&mut self, slot: usize, frame: &HostFrame) -> Result<()> {
        assert!(!frame.is_staged(), "a frame in page-locked memory is kept until it is copied");
        // SAFETY: it was read when this returns.
        unsafe { self.put_kept(slot, frame) }
    }

    /// Puts a frame into a slot and keeps it until it is copied.
    pub fn put_and_keep(&mut self, slot: usize, frame: HostFrame) -> Result<()> {
        // SAFETY: it is kept, also where this fails half-way.
        let put = unsafe { self.put_kept(slot, &frame) };
        self.store.keep(frame);
        put
    }

    /// From now on batches share what is recorded: a batch may hold any frames, at most as many as `largest`. Which shape
    /// serves a batch, and so every rounding, follows from the batch alone.
    pub fn share_shapes(&mut self, largest: Room) {
        self.forget_shapes();
        self.largest = Some(largest);
    }

    /// Whether batches of so many frames share what is recorded.
    pub fn shares_shapes(&self, n_frames: usize) -> bool {
        self.largest.is_some_and(|largest| largest.frames >= n_frames)
    }

    /// Bytes of a step's numbers, of `n_frames` at most.
    pub fn turn_bytes(&self, n_frames: usize) -> usize {
        let arranged = Arrangement::words_of(self.model.n_types(), n_frames);
        let tables = self.largest.map_or(0, |room| self.tables_at(room) + 4 * arranged);
        tables.max(TURN_HEADER + 4 * n_frames).next_multiple_of(64)
    }

    /// Where the arrangement of a batch stands behind its slots.
    fn tables_at(&self, largest: Room) -> usize {
        (TURN_HEADER + 4 * largest.frames).next_multiple_of(8)
    }

    /// The arrangement of a batch and where it goes among the numbers of its step; nothing where its kind has it already.
    pub fn arrangement(&self, slots: &[u32]) -> Option<(usize, Arrangement)> {
        let frames: Vec<&FrameShape> =
            slots.iter().map(|&slot| &self.store.facts(slot as usize).shape).collect();
        self.largest.map(|room| (self.tables_at(room), Arrangement::of(&self.model, &frames)))
    }

    /// The room that a batch takes where it shares it with others.
    fn room_of(&self, slots: &[u32]) -> Option<Room> {
        let frames = slots.iter().map(|&slot| &self.store.facts(slot as usize).shape);
        self.largest.map(|largest| Room::of(&self.model, frames).on_ladder(largest.frames))
    }

    /// Tells kinds of batches apart; and whether the series describes all frames of this one.
    fn kind_of(&self, slots: &[u32]) -> (u128, bool) {
        let mut hasher = xxhash_rust::xxh3::Xxh3::new();
        let room = self.room_of(slots);
        if let Some(room) = room {
            [room.rows, room.inputs, room.places, room.listed]
                .iter()
                .for_each(|n| hasher.update(&n.to_le_bytes()));
        }
        let mut by_series = self.series.is_some();
        for &slot in slots {
            let facts = self.store.facts(slot as usize);
            if room.is_none() {
                hasher.update(&facts.shape_hash.to_le_bytes());
            }
            by_series = by_series && self.series.as_ref().is_some_and(|s| facts.covered_by(&s.plan));
        }
        hasher.update(&[u8::from(by_series)]);
        (hasher.digest128(), by_series)
    }

    /// Whether a batch of this kind has come before, so that [`Core::shape`] waits for nothing.
    pub fn knows(&self, slots: &[u32]) -> bool {
        self.shapes.contains_key(&self.kind_of(slots).0)
    }

    /// Whether a shape is still kept.
    pub fn keeps(&self, id: u64) -> bool {
        self.shapes.values().any(|(shape, _)| shape.id == id)
    }

    /// The kind of batch that these slots make, after the frames that were put into them are there.
    pub fn shape(&mut self, slots: &[u32]) -> Result<Arc<Shape>> {
        self.store.publish()?;
        let (key, by_series) = self.kind_of(slots);
        self.uses += 1;
        if let Some((known, used)) = self.shapes.get_mut(&key) {
            *used = self.uses;
            return Ok(known.clone());
        }
        if !by_series {
            self.make_direct()?;
        }
        let frames: Vec<FrameShape>;
        let content = match self.room_of(slots) {
            Some(room) => Content::UpTo(room),
            None => {
                frames = slots.iter().map(|&slot| self.store.facts(slot as usize).shape.clone()).collect();
                Content::Exactly(&frames)
            }
        };
        self.make_room(by_series, content)?;
        let Some(work) = &self.work else { unreachable!("it was made above") };
        let nets = self.nets(by_series);
        // A batch without a series is one of no terms.
        let (terms, columns) = (nets.embedding.terms, nets.embedding.columns);
        let constants = Batch { terms, columns, ..self.constants };
        // Uses are counted on, so no two shapes have the same number.
        let shape = Arc::new(Shape::new(&self.network, nets, content, work, constants, self.uses)?);
        if let Some(direct) = self.direct.as_mut().filter(|_| !by_series)
            && direct.make_room(&shape.batch)?
        {
            self.forget_shapes();
        }
        self.shapes.insert(key, (shape.clone(), self.uses));
        Ok(shape)
    }

    /// Bytes that a batch takes beside its frames.
    pub fn batch_bytes(&self, room: Room) -> Result<usize> {
        let by_series = self.series.is_some();
        let work = work_bytes(&self.network, self.nets(by_series), Content::UpTo(room))?;
        let kept = self.direct.as_ref().filter(|_| !by_series).map_or(0, |direct| direct.bytes(room.rows));
        Ok(work + kept)
    }

    /// Bytes that frames of so many rows take, each with so many neighbours.
    pub fn frame_bytes(&self, rows: usize, neighbors: usize) -> usize {
        let (size, components) = (self.device.numbers.size(), self.model.descriptor().form().components());
        let columns = self.plan().map_or(0, Plan::columns);
        rows * (components * columns * size + neighbors * (3 * size + 8) + self.model.n_extra() * size)
    }

    /// Working memory for one more kind of batch, and a place for its shape: the one that was used longest ago leaves.
    fn make_room(&mut self, by_series: bool, content: Content) -> Result<()> {
        let nets = self.nets(by_series);
        let mut bytes = work_bytes(&self.network, nets, content)?;
        // Memory for the largest batch at once: every change of it makes all shapes anew.
        if let Some(largest) = self.largest.filter(|_| self.work.is_none()) {
            let whole = Content::UpTo(largest.on_ladder(largest.frames));
            bytes = bytes.max(work_bytes(&self.network, nets, whole)?);
        }
        if self.work.as_ref().is_none_or(|work| work.bytes() < bytes) {
            self.device.synchronize()?;
            self.forget_shapes();
            self.work = None;
            self.work = Some(Buffer::zeroed(&self.device, bytes, "a batch")?);
        }
        if self.shapes.len() >= MOST_SHAPES {
            // Steps under way may still read its tables.
            self.device.synchronize()?;
            let oldest = self.shapes.iter().min_by_key(|(_, (_, used))| *used).map(|(&key, _)| key);
            oldest.map(|key| self.shapes.remove(&key));
        }
        Ok(())
    }

    /// The series, or the nets as one of no terms.
    fn nets(&self, by_series: bool) -> &SeriesOnDevice {
        let direct = self.direct.as_ref().map(|direct| &direct.nets);
        let nets = if by_series { self.series.as_ref() } else { direct };
        nets.expect("a series is chosen, or the nets are made ready, before batches come")
    }

    /// The nets themselves, where a batch is evaluated by them.
    fn direct_of(&self, shape: &Shape) -> Option<&Direct> {
        self.direct.as_ref().filter(|_| shape.batch.terms == 0)
    }

    /// Starts a kernel on the main stream.
    ///
    /// # Safety
    ///
    /// See the module of this engine.
    unsafe fn start<P: Parameters>(&self, kernel: Kernel<P>, launch: Launch, arguments: P) -> Result<()> {
        // SAFETY: the caller's word.
        unsafe { kernel.launch(&self.device, self.device.stream(), launch, arguments) }
    }

    /// Refuses shapes whose memory may be gone, and those of others.
    fn check(&self, shape: &Shape) {
        let is_kept = self.shapes.values().any(|(kept, _)| std::ptr::eq(&**kept, shape));
        assert!(is_kept, "a shape is used while its core keeps it");
    }

    fn products(&self, launches: &[ProductLaunch], stream: Stream) -> Result<()> {
        // SAFETY: those of a shape that is kept, and so is their memory.
        launches.iter().try_for_each(|launch| unsafe { launch.launch(&self.device, stream) })
    }

    fn turn_ptr(&self) -> Ptr<Turn> {
        Ptr::at(self.turn.address())
    }

    /// The coefficients of the series for the parameters on the device. They are made with every change of either, so that
    /// a step finds them; where there is no series yet, nothing is done.
    fn embed(&self) -> Result<()> {
        let Some(series) = &self.series else { return Ok(()) };
        let (e, (shared, _)) = (series.embedding, series.shared);
        // SAFETY: see the module of this engine; the series has the memory of its nodes.
        unsafe {
            let forward = Launch::new(series.blocks(), 256).shared(shared);
            self.start(EMBED_FORWARD, forward, (e, series.room))?;
            self.start(EMBED_TRANSFORM, Launch::new(series.transform_blocks(), 256), (e,))
        }
    }

    /// First pass: energies, forces, virials; with a loss also its value and seeds.
    ///
    /// # Safety
    ///
    /// The numbers of the step that the device takes next ([`Core::set_turn`], [`Core::send_turn`]) are those of a batch for
    /// which [`Core::shape`] gives this shape.
    pub unsafe fn first_pass(&self, shape: &Shape) -> Result<()> {
        self.check(shape);
        self.forces(shape)?;
        self.sums(shape, self.device.stream())
    }

    /// Forces and energies of atoms.
    fn forces(&self, shape: &Shape) -> Result<()> {
        let (b, n, main) = (shape.batch, shape.n_rows, self.device.stream());
        let (ring, stride, places) =
            self.ring.as_ref().map_or((Ptr::NULL, 0, 1), |(ring, s, n)| (ring.ptr(), *s, *n));
        let counter = self.counter.ptr();
        let (tables_at, n_stacks) =
            (self.largest.map_or(0, |room| self.tables_at(room)) as u32, shape.n_stacks as i32);
        let arguments = (b, ring, stride, places, counter, tables_at, n_stacks);
        // SAFETY: see the module of this engine; the shape is kept.
        unsafe { self.start(BEGIN, Launch::new(n.div_ceil(128), 128), arguments)? };
        match self.direct_of(shape) {
            // SAFETY: room was made for its shapes.
            Some(direct) => unsafe { direct.describe(&b)? },
            None => self.products(&shape.describe, main)?,
        }
        self.describe(shape, DESCRIPTOR, 4 * b.ldm as usize)?;
        self.products(&shape.forward, main)?;
        self.products(&shape.backward, main)?;
        self.adjoint(shape, 0)?;
        if let Some(direct) = self.direct_of(shape) {
            // SAFETY: as above.
            unsafe { direct.forces(&b)? };
        } else {
            self.products(&shape.de_q, main)?;
            let (share, is_near) = Share::of_forces(&self.device, n, b.columns as usize);
            let kernel = if is_near { PAIR_FORCES } else { PAIR_FORCES_FAR };
            // SAFETY: as above.
            unsafe { self.start(kernel, share.launch(), (b, share.each))? };
        }
        if shape.shared.is_some() {
            return self.collect_block(shape);
        }
        // SAFETY: as above.
        unsafe { self.start(COLLECT, Launch::new(n.div_ceil(4), 128), (b,)) }
    }

    /// What the rows of a block bring to forces, energies and virials.
    fn collect_block(&self, shape: &Shape) -> Result<()> {
        let (b, n) = (shape.batch, shape.n_rows);
        // SAFETY: see the module of this engine; the shape is kept.
        unsafe {
            self.start(COLLECT_NEIGHBORS, Launch::new(shape.places.div_ceil(4), 128), (b,))?;
            self.start(COLLECT_CENTERS, Launch::new(n.div_ceil(4), 128), (b,))?;
            self.start(SUM_CENTERS, Launch::new(shape.frame_blocks, 256), (b,))
        }
    }

    /// The first pass of blocks as far as own rows go; the ranks that share the frames add up [`Core::shared_sums`] after it.
    ///
    /// # Safety
    ///
    /// As for [`Core::first_pass`].
    pub unsafe fn own_part(&self, shape: &Shape) -> Result<()> {
        self.check(shape);
        self.forces(shape)
    }

    /// Energies, virials and forces of a batch whose frames are shared, with or without energies of atoms, and how many numbers
    /// they are.
    pub fn shared_sums(&self, shape: &Shape, atom_energy: bool) -> Option<(Ptr<f64>, usize)> {
        let n = shape.shared?;
        Some((Ptr::at(shape.batch.energy), if atom_energy { n } else { n - shape.places }))
    }

    /// The loss and its seeds of a batch whose frames are shared, from the sums over all ranks.
    ///
    /// # Safety
    ///
    /// [`Core::own_part`] of this shape was the last pass.
    pub unsafe fn shared_loss(&self, shape: &Shape) -> Result<()> {
        self.check(shape);
        self.sums(shape, self.device.stream())
    }

    /// Energies and virials of frames, and the loss.
    fn sums(&self, shape: &Shape, stream: Stream) -> Result<()> {
        let (device, b, e) = (&self.device, shape.batch, self.nets(self.series.is_some()).embedding);
        // SAFETY: see the module of this engine; the shape is kept.
        unsafe {
            match (shape.shared, &self.terms.loss) {
                (None, _) => {
                    SUM_FRAMES.launch(device, stream, Launch::new(shape.frame_blocks, 256), (b,))?;
                }
                (Some(_), Some(_)) => {
                    let rows = Launch::new(shape.n_rows.div_ceil(128), 128);
                    SEED_FORCES.launch(device, stream, Launch::new(shape.chunks, CHUNK), (b,))?;
                    SEED_FRAMES.launch(device, stream, Launch::new(shape.frame_blocks, CHUNK), (b,))?;
                    SEED_CENTERS.launch(device, stream, rows, (b,))?;
                }
                (Some(_), None) => {} // there is nothing but what the rows bring
            }
            if self.terms.loss.is_some() {
                SUM_BATCH.launch(device, stream, Launch::new(1, 256), (b, e))?;
            }
        }
        Ok(())
    }

    /// The descriptor or its tangent; a row takes so many numbers of shared memory.
    fn describe(&self, shape: &Shape, kernel: Kernel<(Batch, i32)>, numbers: usize) -> Result<()> {
        let share = Share::of_rows(&self.device, shape.n_rows, numbers);
        // SAFETY: see the module of this engine; the shape is kept.
        unsafe { self.start(kernel, share.launch(), (shape.batch, share.each)) }
    }

    /// dE/dA, or dL/dA (`second` 1).
    fn adjoint(&self, shape: &Shape, second: i32) -> Result<()> {
        let b = shape.batch;
        let share = Share::of_adjoint(&self.device, shape.n_rows, b.ldm as usize, b.m2 as usize);
        // SAFETY: see the module of this engine; the shape is kept.
        unsafe { self.start(DESCRIPTOR_ADJOINT, share.launch(), (b, second, share.each)) }
    }

    /// dL/denergy of every row from seeds that were copied to the device.
    ///
    /// # Safety
    ///
    /// The first pass of this shape was the last one.
    pub unsafe fn energy_seeds(&self, shape: &Shape) -> Result<()> {
        self.check(shape);
        let launch = Launch::new(shape.n_rows.div_ceil(128), 128);
        // SAFETY: see the module of this engine; the shape is kept.
        unsafe { self.start(ENERGY_SEEDS, launch, (shape.batch,)) }
    }

    /// Both passes of a batch: the pieces of its gradient.
    ///
    /// # Safety
    ///
    /// As for [`Core::first_pass`].
    pub unsafe fn gradient(&self, shape: &Shape) -> Result<()> {
        self.passes(shape)?;
        self.adjoints(shape, false)
    }

    /// The first pass of a batch and the tangents of the second. What does not depend on each other runs side by side.
    fn passes(&self, shape: &Shape) -> Result<()> {
        self.check(shape);
        let (main, side) = (self.device.stream(), self.device.side_stream());
        self.forces(shape)?;
        let Events { first: fork, seeds: join, .. } = &self.events;
        fork.record(main)?;
        fork.holds(side)?;
        self.sums(shape, side)?;
        join.record(side)?;
        // The direction of the second pass holds dL/dvirial; dL/denergy is needed in its last layer only.
        if self.terms.virial {
            join.holds(main)?;
        }
        self.tangents(shape, Some(join))
    }

    /// A step of one draw whose gradient nobody else needs. Embedding nets and fitting nets are updated as soon as
    /// their own gradients are there, and the series is made for the next step.
    ///
    /// # Safety
    ///
    /// As for [`Core::first_pass`].
    pub unsafe fn whole_step(&self, shape: &Shape) -> Result<()> {
        self.passes(shape)?;
        self.adjoints(shape, true)
    }

    /// The loss of [`Core::shared_loss`] and the second pass over own rows: the pieces of the gradient that they bring.
    ///
    /// # Safety
    ///
    /// As for [`Core::shared_loss`].
    pub unsafe fn shared_gradient(&self, shape: &Shape) -> Result<()> {
        // SAFETY: the caller's word.
        unsafe {
            self.shared_loss(shape)?;
            self.second_pass(shape)
        }
    }

    /// Second pass of a batch whose seeds are there: the pieces of its gradient.
    ///
    /// # Safety
    ///
    /// The first pass of this shape was the last one.
    pub unsafe fn second_pass(&self, shape: &Shape) -> Result<()> {
        self.check(shape);
        self.tangents(shape, None)?;
        self.adjoints(shape, false)
    }

    /// The direction, pushed through pairs, A, descriptor and fitting nets. dL/denergy is there after `seeds`.
    fn tangents(&self, shape: &Shape, seeds: Option<&Event>) -> Result<()> {
        let (b, main) = (shape.batch, self.device.stream());
        if let Some(direct) = self.direct_of(shape) {
            // SAFETY: room was made for its shapes.
            unsafe { direct.tangent(&b)? };
        } else {
            let share = Share::of_features(&self.device, shape.n_rows);
            // SAFETY: see the module of this engine; the shape is kept.
            unsafe { self.start(FEATURES_TANGENT, share.launch(), (b, share.each))? };
            self.products(&shape.a_dot, main)?;
        }
        self.describe(shape, DESCRIPTOR_TANGENT, 8 * b.ldm as usize)?;
        let last = shape.tangent.len() - self.launches_of_a_layer(&shape.tangent);
        self.products(&shape.tangent[..last], main)?;
        if let Some(seeds) = seeds {
            seeds.holds(main)?;
        }
        self.products(&shape.tangent[last..], main)
    }

    /// The reverse pass over values and tangents, with the update where `updates`. What leads to the embedding nets and to
    /// the next step's series is the longer way; the gradients of the fitting nets are made beside it, as soon as all dL/dz
    /// are there: before the adjoint of the inputs.
    fn adjoints(&self, shape: &Shape, updates: bool) -> Result<()> {
        let device = &self.device;
        let (main, side, third) = (device.stream(), device.side_stream(), device.third_stream());
        let Events { adjoints: fork, inputs, fitting: join, columns: sums, .. } = &self.events;
        let last = shape.reverse.len() - self.launches_of_a_layer(&shape.reverse);
        self.products(&shape.reverse[..last], main)?;
        fork.record(main)?;
        fork.holds(side)?;
        fork.holds(third)?;
        let columns = (shape.columns.ptr(), shape.n_columns as i32);
        // SAFETY: see the module of this engine; the shape is kept.
        unsafe { SUM_COLUMNS.launch(device, third, Launch::new(shape.column_blocks, 256), columns)? };
        sums.record(third)?;
        self.products(&shape.weights, side)?;
        sums.holds(side)?;
        self.products(&shape.reverse[last..], main)?;
        let nets = self.embedding_blocks;
        if updates {
            // The products above are the last to read the weights.
            inputs.record(main)?;
            inputs.holds(side)?;
            self.adam(side, &Gradient::Pieces(shape), 0, nets..self.view_blocks)?;
        }
        join.record(side)?;
        self.adjoint(shape, 1)?;
        self.embedding_gradient(shape, updates)?;
        if updates {
            self.embed()?;
        }
        join.holds(main)
    }

    /// The gradient of the embedding nets from dL/dA, or their update.
    fn embedding_gradient(&self, shape: &Shape, updates: bool) -> Result<()> {
        let net = &self.network;
        let or_none = |buffer: &Buffer<f64>| if updates { buffer.ptr() } else { Ptr::NULL };
        let moved = [&net.params, &net.moments[0], &net.moments[1]].map(or_none);
        let trained = self.trained.ptr();
        if let Some(direct) = self.direct_of(shape) {
            // SAFETY: room was made for its shapes; the moments are as long as the parameters.
            return unsafe {
                direct.adjoint(&shape.batch)?;
                direct.weights(&shape.batch, moved, trained)
            };
        }
        self.products(&shape.dl_c, self.device.stream())?;
        let series = self.nets(true);
        let (e, (_, shared)) = (series.embedding, series.shared);
        let ([params, first, second], turn, status) = (moved, self.turn_ptr(), net.status.ptr());
        let arguments = (e, params, first, second, trained, turn, status);
        // SAFETY: see the module of this engine; the series has the memory of its nodes.
        unsafe {
            let backward = Launch::new(series.blocks(), 256).shared(shared);
            self.start(EMBED_BACKWARD, backward, (e, series.room))?;
            self.start(EMBED_WEIGHTS, Launch::new(series.weight_blocks(), 256), arguments)
        }
    }

    /// Launches that the products of one layer take.
    fn launches_of_a_layer(&self, launches: &[ProductLaunch]) -> usize {
        launches.len() / self.model.fitting[0].layers.len().saturating_sub(1).max(1)
    }

    /// Adds up the pieces of a gradient, into the flat vector.
    pub fn reduce(&self, shape: &Shape) -> Result<()> {
        self.check(shape);
        let (grad, views, n_views) = (self.network.grad.ptr(), shape.views.ptr(), shape.n_views as i32);
        let arguments = (grad, views, n_views, self.network.n_params as u64, self.turn_ptr());
        // SAFETY: see the module of this engine; the shape is kept.
        unsafe { self.start(REDUCE, Launch::new(shape.view_blocks, 256), arguments) }
    }

    /// One step of the optimiser, and the series for the parameters after it.
    pub fn update(&self, from: Gradient, wants_norm: bool) -> Result<()> {
        let (net, main) = (&self.network, self.device.stream());
        let blocks = net.n_params.div_ceil(PER_BLOCK);
        if wants_norm {
            let arguments = (net.squares.ptr(), net.grad.ptr(), net.n_params as u64, self.turn_ptr());
            // SAFETY: see the module of this engine; there is a square for every block.
            unsafe { self.start(GRADIENT_NORM, Launch::new(blocks, 256), arguments)? };
        }
        let n_squares = if wants_norm { blocks } else { 0 };
        let from = match (&self.muon, from) {
            (Some(muon), Gradient::Flat) => {
                // SAFETY: it was made for this network; the numbers of the step were sent.
                unsafe { muon.update(&self.device, self.turn.address(), n_squares)? };
                Gradient::None
            }
            (_, from) => from,
        };
        self.adam(main, &from, n_squares, 0..self.view_blocks)?;
        self.embed()
    }

    /// From now on updates are those of HybridMuon or AdaMuon.
    pub fn use_muon(&mut self, plan: &MuonPlan) -> Result<()> {
        self.muon = Some(Muon::new(&self.network, plan)?);
        Ok(())
    }

    /// How far gradient and mean of each matrix have agreed, where the optimiser is one of these.
    pub fn alignment(&self) -> Option<&Buffer<f64>> {
        self.muon.as_ref().map(|muon| &muon.alignment)
    }

    /// From now on there is a running mean of the parameters, which begins so.
    pub fn use_average(&mut self, decay: f64, mean: &[f64]) -> Result<()> {
        self.average = Some((Buffer::of(&self.device, mean, "the mean of the parameters")?, 1.0 - decay));
        Ok(())
    }

    /// The running mean of the parameters.
    pub fn average(&self) -> Option<&Buffer<f64>> {
        self.average.as_ref().map(|(mean, _)| mean)
    }

    /// The mean follows the parameters of this step, where there is one.
    pub fn follow(&self) -> Result<()> {
        let Some((mean, part)) = &self.average else { return Ok(()) };
        let n = self.network.n_params;
        let arguments = (self.network.params.ptr(), mean.ptr(), n as u64, *part);
        // SAFETY: see the module of this engine; the mean is as long as the parameters.
        unsafe { self.start(FOLLOW, Launch::new(n.div_ceil(256), 256), arguments) }
    }

    /// What the first pass has found of a batch that was evaluated last.
    pub fn prediction(&self, out: &mut Prediction, shape: &Shape, slots: &[u32]) -> Result<()> {
        let facts: Vec<&Facts> = slots.iter().map(|&slot| &**self.store.facts(slot as usize)).collect();
        let n_atoms = |facts: &&Facts| facts.shape.n_atoms;
        let (n, stride) = (facts.len(), facts.iter().map(n_atoms).max().unwrap_or(0));
        let (mut energy, mut force) = (vec![0.0; n * stride], vec![0.0; 3 * n * stride]);
        // SAFETY: the shape has room for the atoms and frames of this batch.
        let read = |from: DevicePtr, to: &mut [f64]| unsafe { self.device.read_at(from, to) };
        out.energy = vec![0.0; n];
        let mut virial = vec![0.0; 9 * n];
        read(shape.batch.energy, &mut out.energy)?;
        read(shape.batch.virial, &mut virial)?;
        read(shape.batch.atom_energy, &mut energy)?;
        read(shape.batch.force, &mut force)?;
        out.virial = virial.as_chunks::<9>().0.to_vec();
        (out.atom_energy, out.force) = (Vec::new(), Vec::new());
        for (f, facts) in facts.iter().enumerate() {
            // Virtual atoms have no row: what stands in their place is of another batch.
            for (atom, &real) in facts.real_atoms().iter().enumerate() {
                let at = f * stride + atom;
                out.atom_energy.push(if real { energy[at] } else { 0.0 });
                out.force.extend((0..3).map(|k| if real { force[3 * at + k] } else { 0.0 }));
            }
        }
        Ok(())
    }

    /// The optimiser on some blocks of views.
    fn adam(&self, stream: Stream, from: &Gradient, n_squares: usize, blocks: Range<usize>) -> Result<()> {
        let net = &self.network;
        if let Gradient::Pieces(shape) = from {
            self.check(shape);
        }
        let (grad, squares, turn) = (net.grad.ptr(), net.squares.ptr(), self.turn_ptr());
        let (params, first, second) = (net.params.ptr(), net.moments[0].ptr(), net.moments[1].ptr());
        let (moves, views) = match from {
            Gradient::None => (0, self.views.ptr()),
            Gradient::Flat => (1, self.views.ptr()),
            Gradient::Pieces(shape) => (2, shape.views.ptr()),
        };
        let (n_views, status, n_params) = (self.n_views as i32, net.status.ptr(), net.n_params as u64);
        let (n_squares, first_block, end_block) = (n_squares as i32, blocks.start as i32, blocks.end as i32);
        let arguments = (
            params,
            first,
            second,
            grad,
            squares,
            n_squares,
            views,
            n_views,
            n_params,
            turn,
            status,
            moves,
            first_block,
            end_block,
        );
        // Beside other work not more than stay together on the GPU, so that the others find room.
        let beside = matches!(from, Gradient::Pieces(_));
        let most = if beside { BLOCKS_BESIDE * self.device.multiprocessors } else { blocks.len() };
        let launch = Launch::new(blocks.len().min(most), 256);
        // SAFETY: see the module of this engine; views lie in vectors of all parameters.
        unsafe { ADAM.launch(&self.device, stream, launch, arguments) }
    }

    /// Copies parameters to the device and to where the nets read them.
    pub fn set_params(&self, params: &[f64]) -> Result<()> {
        self.network.params.write(0, params)?;
        self.update(Gradient::None, false)
    }

    /// The parameters, when all steps so far are done.
    pub fn params(&self) -> Result<Vec<f64>> {
        let mut params = vec![0.0; self.network.n_params];
        self.network.params.read(0, &mut params)?;
        Ok(params)
    }

    /// From now on a first pass takes the numbers of its step, and its slots, from the next of `places` pieces that
    /// [`Core::send_turn`] fills, `bytes` each.
    pub fn make_ring(&mut self, bytes: usize, places: usize) -> Result<()> {
        let ring = Buffer::zeroed(&self.device, bytes * places, "the numbers of steps")?;
        self.device.synchronize()?;
        self.ring = Some((ring, bytes as u32, places as u32));
        Ok(())
    }

    /// Copies what the step after the next ones needs, beside the steps that run; `done` is when it is there.
    ///
    /// # Safety
    ///
    /// What stood at the same place of the ring was taken, and `from` stays as it is until `done`.
    pub unsafe fn send_turn(&self, from: &Pinned, place: usize, bytes: usize, done: &Event) -> Result<()> {
        let (ring, each, _) = self.ring.as_ref().expect("a ring is made before turns are sent");
        let (at, stream) = (place * *each as usize, self.device.copy_stream());
        assert!(bytes <= *each as usize, "a turn must stay inside its place");
        // SAFETY: inside the ring; the rest is the caller's word.
        unsafe { from.copy_to(stream, ring.address() + at as u64, 0, bytes)? };
        done.record(stream)?;
        done.holds(self.device.stream())
    }

    /// Copies the numbers of a step of this shape and its slots, from ordinary memory.
    pub fn set_turn(&self, shape: &Shape, turn: &Turn, slots: &[u32]) -> Result<()> {
        assert!(slots.len() <= MAX_FRAMES, "{} frames in a batch, {MAX_FRAMES} are possible", slots.len());
        self.check(shape);
        self.turn.write(0, turn.as_bytes())?;
        self.turn.write(TURN_HEADER, slots.as_bytes())?;
        let Some((_, arranged)) = self.arrangement(slots) else { return Ok(()) };
        let Some(work) = &self.work else { return Ok(()) };
        work.write((shape.batch.now - work.address()) as usize, arranged.words.as_bytes())
    }
}
