//! The CUDA engine of PiNet and PiNet2: the same list of operations as the CPU engine's. Operations that follow
//! each other on the same rows are one kernel.
//!
//! Structures stay on the device ([`store`]); a batch is joined there from a list of them. Batches of about the same
//! size share a [`shape::Shape`], and with it one recorded step: kernels read how large the batch really is. Sums run in
//! a fixed order and there are no atomic additions: two runs give the same bits.
//!
//! # Safety of launches
//!
//! What kernels touch lies at the addresses in their arguments, and this is why it is there: parameters, moments and tables
//! belong to the [`core::Core`] that has the launches; the memory of a batch is laid out by [`shape::Shape`] for as many
//! structures, atoms and pairs as its class has, and kernels look up in [`layout::Turn`] how many there are, which
//! [`core::turn_of`] has counted; structures stay where [`store::Store`] put them until its generation counts on. A core forgets
//! its shapes before it gives their memory back, after the device has done all its work. All work is on the main stream.

pub mod layout;
pub mod program;
pub mod shape;
pub mod store;
pub mod core;
#[cfg(test)]
mod tests;

use super::elements::Elements;
use super::{PinetEngine, PinetFrame, PinetPrediction, PinetSeeds};
use crate::gpu::{Device, DevicePtr};
use crate::model::pinet::PinetModel;
use crate::{Result, err};
use core::{Core, Resident, turn_of};
use layout::Turn;
use shape::Shape;
use std::sync::Arc;

/// Evaluates a network on a GPU, structures given with each call: for predictions and tests.
pub struct PinetCuda {
    core: Core,
    forces: bool,
    shape: Option<Arc<Shape>>,
}

impl PinetCuda {
    /// `forces`: whether forces and stress are wanted. The device comes from [`program::open`].
    pub fn new(device: &Arc<Device>, model: &PinetModel, forces: bool) -> Result<Self> {
        Ok(PinetCuda { core: Core::new(device, model, forces, None)?, forces, shape: None })
    }

    /// [`PinetEngine::evaluate`] that can fail.
    pub fn try_evaluate(
        &mut self,
        out: &mut PinetPrediction,
        params: &[f64],
        batch: &[&PinetFrame],
    ) -> Result<()> {
        let core = &mut self.core;
        core.device.bind()?;
        core.set_params(params)?;
        core.store.clear();
        let mut residents = Vec::with_capacity(batch.len());
        for frame in batch {
            residents.push(
                bring(core, frame, &Elements::none())?
                    .ok_or_else(|| err!("the GPU has no room for a batch of {} structures", batch.len()))?,
            );
        }
        let mut bytes = Vec::new();
        let class = turn_of(Turn::default(), &residents, None, &mut bytes);
        let shape = core.shape(class)?;
        core.set_turn(&bytes)?;
        // SAFETY: the shape is of the class of these structures.
        unsafe { core.first_pass(&shape)? };
        let atoms = batch.iter().map(|f| f.n_atoms()).sum::<usize>();
        let b = &shape.batch;
        let read = |from: DevicePtr, n: usize| -> Result<Vec<f64>> {
            let mut to = vec![0.0; n];
            // SAFETY: the shape has room for the atoms and structures of this batch.
            unsafe { core.device.read_at(from, &mut to)? };
            Ok(to)
        };
        out.energy = read(b.energy, batch.len())?;
        out.atomic = read(b.atomic, atoms)?;
        (out.force, out.stress) = (Vec::new(), Vec::new());
        if self.forces {
            out.force = read(b.force, 3 * atoms)?;
            out.stress = read(b.stress, 9 * batch.len())?.as_chunks::<9>().0.to_vec();
        }
        self.shape = Some(shape);
        Ok(())
    }

    /// [`PinetEngine::backward`] that can fail.
    pub fn try_backward(&mut self, grad: &mut [f64], seeds: &PinetSeeds) -> Result<()> {
        let core = &self.core;
        let shape = self.shape.as_ref().expect("a batch was evaluated before");
        let (b, class) = (&shape.batch, shape.class);
        let write = |to: DevicePtr, from: &[f64], room: usize| {
            assert!(from.len() <= room, "seeds of the batch that was evaluated");
            // SAFETY: the shape has that room.
            unsafe { core.device.write_at(to, from) }
        };
        write(b.dl_energy, &seeds.dl_energy, class.structures)?;
        write(b.dl_atomic, &seeds.dl_atomic, class.atoms)?;
        if self.forces {
            write(b.dl_force, &seeds.dl_force, 3 * class.atoms)?;
            write(b.dl_stress, seeds.dl_stress.as_flattened(), 9 * class.structures)?;
        }
        // dL of an earlier call may be there.
        // SAFETY: inside the memory of the shape.
        unsafe { core.device.clear_at(shape.dl_sums.0, shape.dl_sums.1)? };
        // SAFETY: this batch was evaluated last.
        unsafe { core.second_pass(shape)? };
        core.grad.read(0, grad)
    }
}

/// Brings a structure to the device; `None` where there is no room left.
pub fn bring(core: &mut Core, frame: &PinetFrame, elements: &Elements) -> Result<Option<Resident>> {
    let blob = layout::blob(frame, elements, core.device.numbers, &core.plan.sizes);
    let at = core.store.put(&blob)?;
    Ok(at.map(|at| Resident {
        at,
        n_atoms: frame.n_atoms() as u32,
        n_pairs: frame.n_pairs() as u32,
        counts: elements.counts,
    }))
}

impl PinetEngine for PinetCuda {
    /// A device that fails here leaves nothing to go on with.
    fn evaluate(&mut self, out: &mut PinetPrediction, params: &[f64], batch: &[&PinetFrame]) {
        self.try_evaluate(out, params, batch).unwrap_or_else(|e| panic!("{e}"));
    }

    fn backward(&mut self, grad: &mut [f64], _: &[f64], _: &[&PinetFrame], seeds: &PinetSeeds) {
        self.try_backward(grad, seeds).unwrap_or_else(|e| panic!("{e}"));
    }
}
