//! A model with its frames on a device.

mod kinds; // which memory and launches serve a batch
mod passes; // the passes of a step over a batch
mod series; // which series describe the embedding nets
mod terms; // what is computed beside energies and forces
mod turns; // the numbers of a step on their way to the device
mod updates; // gradient, optimiser and what follows the parameters

pub use passes::read_predicted;
pub use terms::{LossKind, LossTerms, Terms, set_loss};
pub use updates::Gradient;

use super::direct::Direct;
use super::frame::HostFrame;
use super::layout::{Batch, TURN_HEADER, View};
use super::muon::Muon;
use super::network::{Network, SeriesOnDevice};
use super::rows::Room;
use super::shape::Shape;
use super::store::Store;
use crate::Result;
use crate::engine::cpu::argument_range;
use crate::engine::cpu::pool::Pool;
use crate::gpu::launch::Parameters;
use crate::gpu::{Buffer, Device, Event, Kernel, Launch};
use crate::model::dp::Dp;
use std::collections::HashMap;
use std::sync::Arc;

/// Frames of the largest batch.
const MAX_FRAMES: usize = 1 << 16;
/// Values of losses that are kept on the device.
pub const PLACES: usize = 1024;
/// Threads of the host beside the one that feeds the device.
const MOST_THREADS: usize = 8;

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
    /// A [`Turn`](super::layout::Turn) with its slots.
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
            status: net.learned.status.address(),
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

    /// Starts a kernel on the main stream.
    ///
    /// # Safety
    ///
    /// See the module of this engine.
    unsafe fn start<P: Parameters>(&self, kernel: Kernel<P>, launch: Launch, arguments: P) -> Result<()> {
        // SAFETY: the caller's word.
        unsafe { kernel.launch(&self.device, self.device.stream(), launch, arguments) }
    }
}
