//! The passes of a step over a batch, kernel by kernel.

use super::super::frame::Facts;
use super::super::layout::Batch;
use super::super::products::ProductLaunch;
use super::super::program::*;
use super::super::shape::{CHUNK, Shape};
use super::super::share::Share;
use super::{Core, Events, Gradient};
use crate::Result;
use crate::engine::Prediction;
use crate::gpu::{Buffer, Device, DevicePtr, Event, Kernel, Launch, Ptr, Stream};

impl Core {
    fn products(&self, launches: &[ProductLaunch], stream: Stream) -> Result<()> {
        // SAFETY: those of a shape that is kept, and so is their memory.
        launches.iter().try_for_each(|launch| unsafe { launch.launch(&self.device, stream) })
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
        let net = &self.network.learned;
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

    /// What the first pass has found of a batch that was evaluated last.
    pub fn prediction(&self, out: &mut Prediction, shape: &Shape, slots: &[u32]) -> Result<()> {
        let facts: Vec<&Facts> = slots.iter().map(|&slot| &**self.store.facts(slot as usize)).collect();
        let n_atoms = |facts: &&Facts| facts.shape.n_atoms;
        let (n, stride) = (facts.len(), facts.iter().map(n_atoms).max().unwrap_or(0));
        // SAFETY: the shape has room for the atoms and frames of this batch.
        let [energy, force] = unsafe { read_predicted(&self.device, out, &shape.batch, n, stride)? };
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
}

/// Energies and virials of `n` frames; returns energies and forces of atoms, `stride` of them for each frame, and makes room for those
/// that count.
///
/// # Safety
///
/// The batch has the memory of so many frames and atoms.
pub unsafe fn read_predicted(
    device: &Device,
    out: &mut Prediction,
    batch: &Batch,
    n: usize,
    stride: usize,
) -> Result<[Vec<f64>; 2]> {
    let (mut energy, mut force) = (vec![0.0; n * stride], vec![0.0; 3 * n * stride]);
    // SAFETY: the caller's word.
    let read = |from: DevicePtr, to: &mut [f64]| unsafe { device.read_at(from, to) };
    out.energy = vec![0.0; n];
    let mut virial = vec![0.0; 9 * n];
    read(batch.energy, &mut out.energy)?;
    read(batch.virial, &mut virial)?;
    read(batch.atom_energy, &mut energy)?;
    read(batch.force, &mut force)?;
    out.virial = virial.as_chunks::<9>().0.to_vec();
    (out.atom_energy, out.force) = (Vec::new(), Vec::new());
    Ok([energy, force])
}
