//! The CUDA engine: everything of a step on a GPU.
//!
//! Kernels are CUDA C++ in `kernels/`, each beside the CPU file whose formulas it has; [`program`] hands them to the GPU
//! ([`crate::gpu`]), with the structures of [`layout`]. Atoms become rows, grouped by type ([`shape`]); frames stay on the
//! device with their features ([`store`]); a step is the list of kernels in [`core`], by the series or by the embedding nets
//! themselves ([`direct`]). Sums have one order and there are no floating-point atomics: two runs give the same bits.
//!
//! # Safety of launches
//!
//! What kernels touch lies at the addresses in their arguments, and this is why it is there: parameters, moments and tables
//! belong to a [`learned::Learned`], a [`network::Network`], a [`core::Core`] or a [`store::Store`], which have the launches themselves; working memory
//! is laid out by [`shape::Shape`] for as many rows, inputs, places and frames as its grids cover, and kernels look up in
//! [`layout::Counts`] how many there are; a core forgets its shapes, and counts its generation on, before it gives the memory
//! of any of them back, after the device has done all its work. Streams order what depends on each other ([`core::Core`]).

pub mod layout;
pub mod program;
pub mod network;
pub mod learned;
pub mod products;
pub mod rows;
pub mod shape;
mod share;
pub mod frame;
pub mod store;
pub mod direct;
pub mod muon;
pub mod kalman;
pub mod core;
pub mod evaluate;
pub mod plan;
#[cfg(test)]
mod tests;

use self::core::{Core, Terms};
use super::{Block, BlockPreparer, Engine, Prediction, Preparer, Seeds};
use crate::engine::cpu::chebyshev::Plan;
use crate::gpu::{Device, DevicePtr};
use crate::model::dp::Dp;
use crate::model::dp::options::{DescriptorOptions, Form};
use crate::neighbor::Cut;
use crate::{Result, err};
use frame::HostFrame;
use rows::Room;
use std::sync::Arc;

/// Which of the engines on GPUs has a model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum OnGpu {
    /// The fused one, for one descriptor of this form.
    Fused(Form),
    /// Operation by operation: [`plan`].
    Operations,
}

/// The engine that trains this model.
pub fn engine_on_gpu(model: &Dp) -> Result<OnGpu> {
    refuse_linear_ends(model)?;
    if model.output.made.is_turned() && model.options.descriptors.list.len() > 1 {
        return Err(err!(
            "the GPU makes a {} from the directions of one descriptor, and this model has several (model.descriptor: hybrid)",
            model.options.fitting.type_name()
        )
        .help("use --device cpu"));
    }
    if model.embedded.is_some() {
        return Err(err!("the GPU does not train a model with embedded types (model.type_embedding)")
            .help("use --device cpu"));
    }
    Ok(form_on_gpu(model).map_or(OnGpu::Operations, OnGpu::Fused))
}

/// Refuses embedding nets whose last layer is of another kind than the others.
fn refuse_linear_ends(model: &Dp) -> Result<()> {
    match model.options.descriptors.list.iter().any(DescriptorOptions::ends_linearly) {
        true => {
            Err(err!("the GPU does not know embedding nets that types scale (model.descriptor: se_a_ebd_v2)")
                .help("use --device cpu"))
        }
        false => Ok(()),
    }
}

/// What the kernels of the fused engine compute for this model; an error where they cannot.
pub fn form_on_gpu(model: &Dp) -> Result<Form> {
    refuse_linear_ends(model)?;
    if !model.is_energy() {
        return Err(err!(
            "the GPU predicts energies alone, and this model predicts something else (model.fitting_net: {})",
            model.options.fitting.type_name()
        )
        .help("use --device cpu"));
    }
    if model.options.short_range.is_some() {
        return Err(err!("the GPU does not know a table of pair energies beside the nets (model.use_srtab)")
            .help("use --device cpu"));
    }
    if !model.options.atom_exclude_types.is_empty() {
        return Err(err!(
            "the GPU does not know atoms without an energy of their own (model.atom_exclude_types)"
        )
        .help("use --device cpu"));
    }
    match model.options.descriptors.list.len() {
        1 if model.descriptor().form().has_series() => Ok(model.descriptor().form()),
        1 => Err(err!(
            "the GPU does not know this descriptor yet (model.descriptor: {})",
            model.descriptor().kind.name()
        )
        .help("use --device cpu")),
        n => Err(err!(
            "the GPU has one descriptor for a model, and this one has {n} (model.descriptor: hybrid)"
        )
        .help("use --device cpu")),
    }
}

/// Evaluates a Deep Potential on a GPU, frames given with each call: for predictions and tests.
pub struct CudaEngine {
    core: Core,
    slots: Vec<u32>,
}

/// Frames that one call may hold.
const MOST_FRAMES: usize = 4096;

impl CudaEngine {
    /// An engine for a model whose series reaches down to `min_distance`, A.
    pub fn new(device: &Arc<Device>, model: &Arc<Dp>, min_distance: f64) -> Result<Self> {
        let terms = Terms { loss: None, virial: true };
        Ok(CudaEngine {
            core: Core::new(device, model, min_distance, MOST_FRAMES, terms)?,
            slots: Vec::new(),
        })
    }

    /// An engine that evaluates the embedding nets themselves for every pair.
    pub fn direct(device: &Arc<Device>, model: &Arc<Dp>) -> Result<Self> {
        let mut engine = Self::new(device, model, model.descriptor().rcut)?;
        engine.core.use_direct()?;
        Ok(engine)
    }

    /// The plan of the series in force; `None` where the nets themselves are used.
    pub fn plan(&self) -> Option<&Plan> {
        self.core.plan()
    }

    /// Chooses the series for these parameters, or the nets themselves where none describes them.
    pub fn adapt_to(&mut self, params: &[f64]) -> Result<()> {
        self.core.device.bind()?;
        self.core.adapt_if_needed(params)
    }

    /// [`Engine::evaluate`] that can fail.
    pub fn try_evaluate(&mut self, out: &mut Prediction, params: &[f64], batch: &[&HostFrame]) -> Result<()> {
        self.core.device.bind()?;
        self.core.set_params(params)?;
        self.core.adapt_if_needed(params)?;
        if batch.iter().any(|frame| frame.facts.shape.most.is_some()) && !self.core.shares_shapes(batch.len())
        {
            let shapes = batch.iter().map(|frame| &frame.facts.shape);
            self.core.share_shapes(Room::of(&self.core.model, shapes));
        }
        self.slots = (0..batch.len() as u32).collect();
        for frame in batch {
            self.core.cover(&frame.facts, |_| Ok(params.to_vec()))?;
        }
        for (slot, frame) in batch.iter().enumerate() {
            self.core.put(slot, frame)?;
        }
        let shape = self.core.shape(&self.slots)?;
        self.core.set_turn(&shape, &layout::Turn { count: 1.0, ..Default::default() }, &self.slots)?;
        // SAFETY: both are of these slots.
        unsafe { self.core.first_pass(&shape)? };
        self.core.prediction(out, &shape, &self.slots)
    }

    /// [`Engine::backward`] that can fail.
    pub fn try_backward(&mut self, grad: &mut [f64], batch: &[&HostFrame], seeds: &Seeds) -> Result<()> {
        self.core.device.bind()?;
        let shape = self.core.shape(&self.slots)?;
        let (b, stride) = (&shape.batch, atom_stride(batch));
        let mut first = 0;
        // SAFETY: the shape has room for the atoms and frames of this batch.
        let write = |to: DevicePtr, from: &[f64]| unsafe { self.core.device.write_at(to, from) };
        for (f, frame) in batch.iter().enumerate() {
            let n = frame.facts.shape.n_atoms;
            let at = (f * stride) as u64;
            write(b.dl_force + 24 * at, &seeds.dl_force[3 * first..3 * (first + n)])?;
            write(b.dl_atom_energy + 8 * at, &seeds.dl_atom_energy[first..first + n])?;
            first += n;
        }
        write(b.dl_energy, &seeds.dl_energy)?;
        write(b.dl_virial, seeds.dl_virial.as_flattened())?;
        // SAFETY: this batch was evaluated last.
        unsafe {
            self.core.energy_seeds(&shape)?;
            self.core.second_pass(&shape)?;
        }
        self.core.reduce(&shape)?;
        self.core.network.learned.grad.read(0, grad)
    }
}

/// Places of a frame's atoms in a batch.
fn atom_stride(batch: &[&HostFrame]) -> usize {
    batch.iter().map(|frame| frame.facts.shape.n_atoms).max().unwrap_or(0)
}

impl Engine for CudaEngine {
    type Prepared = HostFrame;

    fn preparer(&self) -> Preparer<HostFrame> {
        let (model, numbers) = (self.core.model.clone(), self.core.device.numbers);
        Arc::new(move |frame| HostFrame::new(&model, frame, numbers))
    }

    /// One block for each part: work on a GPU is not cut for the sake of its bits.
    fn block_preparer(&self, cut: Cut) -> BlockPreparer<HostFrame> {
        let (model, numbers) = (self.core.model.clone(), self.core.device.numbers);
        Arc::new(move |frame| {
            let prepared = HostFrame::of_part(&model, frame, numbers, cut)?;
            let (centers, pairs) = (prepared.facts.n_rows(), prepared.facts.n_pairs());
            Ok(vec![Block { prepared, centers, pairs }])
        })
    }

    /// A device that fails here leaves nothing to go on with.
    fn evaluate(&mut self, out: &mut Prediction, params: &[f64], batch: &[&HostFrame]) {
        self.try_evaluate(out, params, batch).unwrap_or_else(|e| panic!("{e}"));
    }

    fn backward(&mut self, grad: &mut [f64], _: &[f64], batch: &[&HostFrame], seeds: &Seeds) {
        self.try_backward(grad, batch, seeds).unwrap_or_else(|e| panic!("{e}"));
    }
}
