//! The second CUDA engine of Deep Potentials: a model is a list of operations on matrices ([`graph`]), as in
//! `engine/reference/tape.rs`, but on all centres of a batch at once. It takes every descriptor; the fused engine is faster where it has
//! the model.
//!
//! Rows are centres, pairs, or two neighbours of a centre, as many as there are: no padding is computed. The second pass is the first one
//! once more, in numbers that carry their change along the direction (`kernels/numbers.cu`): it finds their values where the first has left
//! them. A batch whose matrices do not fit is worked on in chunks of frames, each of which goes through the first pass again before its
//! second ([`core`]). Where no energy is predicted ([`outputs`]) nothing moves:
//! the second pass is the way back from what the first has left, in plain numbers. Batches of about the same size share a
//! [`shape::Shape`], and with it one recorded step: kernels read how large the batch really is. Sums run in a fixed order and there are no
//! atomic additions: two runs give the same bits.
//!
//! # Safety of launches
//!
//! What kernels touch lies at the addresses in their arguments, and this is why it is there: parameters, moments and tables belong to
//! the [`core::PlanCore`] that has the launches; the memory of a batch is laid out by [`shape::Shape`] for as many rows of each kind as its
//! class has, and kernels look up in the head of a chunk how many there are, which [`core::PlanCore::numbers`] has counted; frames stay
//! where the store put them until its generation counts on. A core forgets its shapes before it gives their memory back, after the device
//! has done all its work. All work is on the main stream.

pub mod graph;
pub mod layout;
pub mod program;
pub mod frame;
pub mod outputs;
pub mod shape;
pub mod core;
pub mod evaluate;
#[cfg(test)]
mod tests;

use self::core::{Arranged, PlanCore, Resident};
use super::core::Terms;
use super::layout::Turn;
use crate::engine::cpu::pool::Pool;
use crate::engine::{Block, BlockPreparer, Engine, Prediction, Preparer, Seeds};
use crate::err;
use crate::error::{Error, Result};
use crate::gpu::{Device, DevicePtr, Numbers};
use crate::model::dp::Dp;
use crate::neighbor::Cut;
use frame::PlanFrame;
use std::sync::Arc;

/// Evaluates a Deep Potential on a GPU by its operations, frames given with each call: for predictions and tests.
pub struct PlanEngine {
    pub core: PlanCore,
    batch: Vec<Resident>,
    arranged: Option<Arranged>,
    /// For whoever works between its passes.
    pool: Pool,
    failure: Option<Error>,
}

impl PlanEngine {
    /// The device comes from [`program::open`].
    pub fn new(device: &Arc<Device>, model: &Arc<Dp>) -> Result<Self> {
        let core = PlanCore::new(device, model, Terms { loss: None, virial: true })?;
        Ok(PlanEngine { core, batch: Vec::new(), arranged: None, pool: Pool::serial(), failure: None })
    }

    /// With threads for whoever works between its passes.
    pub fn with_pool(self, pool: Pool) -> Self {
        PlanEngine { pool, ..self }
    }

    /// [`Engine::evaluate`] that can fail.
    pub fn try_evaluate(&mut self, out: &mut Prediction, params: &[f64], batch: &[&PlanFrame]) -> Result<()> {
        let core = &mut self.core;
        core.device.bind()?;
        core.set_params(params)?;
        core.device.synchronize()?;
        core.store.clear();
        self.batch.clear();
        for frame in batch {
            let full = || err!("the GPU has no room for a batch of {} frames", batch.len());
            self.batch.push(core.bring(frame)?.ok_or_else(full)?);
        }
        let arranged = core.arrange(&self.batch);
        let shape = core.shape(&arranged.class)?;
        let mut bytes = Vec::new();
        core.numbers(&mut bytes, &Turn { count: 1.0, ..Turn::default() }, &self.batch, &arranged);
        core.set_turn(&bytes)?;
        // SAFETY: the shape is of the class of these frames.
        unsafe { core.first_pass(&shape)? };
        self.arranged = Some(arranged);
        core.prediction(out, &shape, &self.batch)
    }

    /// [`Engine::backward`] that can fail.
    pub fn try_backward(&mut self, grad: &mut [f64], seeds: &Seeds) -> Result<()> {
        let core = &mut self.core;
        let arranged = self.arranged.as_ref().expect("a batch was evaluated before");
        let shape = core.shape(&arranged.class)?;
        if shape.outputs.width > 0 {
            core.set_output_seeds(&shape, &self.batch, seeds)?;
            // SAFETY: this batch was evaluated last.
            unsafe { core.second_pass(&shape)? };
            return core.learned.grad.read(0, grad);
        }
        let b = &shape.batch;
        let stride = self.batch.iter().map(|r| r.facts.n_atoms).max().unwrap_or(0);
        // SAFETY: the shape has room for the atoms and frames of this batch.
        let write = |to: DevicePtr, from: &[f64]| unsafe { core.device.write_at(to, from) };
        let mut first = 0;
        for (f, resident) in self.batch.iter().enumerate() {
            let (n, at) = (resident.facts.n_atoms, (f * stride) as u64);
            write(b.dl_force + 24 * at, &seeds.dl_force[3 * first..3 * (first + n)])?;
            write(b.dl_atom_energy + 8 * at, &seeds.dl_atom_energy[first..first + n])?;
            first += n;
        }
        write(b.dl_energy, &seeds.dl_energy)?;
        write(b.dl_virial, seeds.dl_virial.as_flattened())?;
        // SAFETY: this batch was evaluated last.
        unsafe {
            core.energy_seeds(&shape)?;
            core.second_pass(&shape)?;
        }
        core.learned.grad.read(0, grad)
    }
}

impl Engine for PlanEngine {
    type Prepared = PlanFrame;

    fn preparer(&self) -> Preparer<PlanFrame> {
        let common = &self.core.common;
        let (parts, lists, numbers) =
            (common.parts.clone(), common.graph.lists.clone(), self.core.device.numbers);
        Arc::new(move |frame| PlanFrame::new(&parts, &lists, frame, numbers))
    }

    /// Whole frames only.
    fn block_preparer(&self, cut: Cut) -> BlockPreparer<PlanFrame> {
        assert!(cut == Cut::WHOLE, "a GPU has no blocks of frames yet, and training on one says so");
        let prepare = self.preparer();
        Arc::new(move |frame| {
            Ok(vec![Block { prepared: prepare(frame)?, centers: frame.n_atoms(), pairs: 0 }])
        })
    }

    fn pool(&self) -> Pool {
        self.pool.clone()
    }

    fn is_single(&self) -> bool {
        self.core.device.numbers != Numbers::F64
    }

    fn failure(&mut self) -> Option<Error> {
        self.failure.take()
    }

    /// A prediction without numbers where the device has failed.
    fn evaluate(&mut self, out: &mut Prediction, params: &[f64], batch: &[&PlanFrame]) {
        if let Err(e) = self.try_evaluate(out, params, batch) {
            *out = Prediction::default();
            self.failure.get_or_insert(e);
        }
    }

    /// Nothing but NaN where the device has failed.
    fn backward(&mut self, grad: &mut [f64], _: &[f64], _: &[&PlanFrame], seeds: &Seeds) {
        if let Err(e) = self.try_backward(grad, seeds) {
            grad.fill(f64::NAN);
            self.failure.get_or_insert(e);
        }
    }
}
