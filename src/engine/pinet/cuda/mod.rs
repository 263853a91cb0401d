//! The CUDA engine of PiNet and PiNet2: the same list of operations as the CPU engine's. Operations that follow
//! each other on the same rows are one kernel.
//!
//! Structures stay on the device ([`store`]); a batch is joined there from a list of them. Batches of about the same
//! size share a [`shape::Shape`], and with it one recorded step: kernels read how large the batch really is. Sums run in
//! a fixed order and there are no atomic additions: two runs give the same bits.

pub mod layout;
pub mod program;
pub mod shape;
pub mod store;
pub mod core;
#[cfg(test)]
mod tests;

use super::elements::Elements;
use super::{PinetEngine, PinetFrame, PinetPrediction, PinetSeeds};
use crate::engine::cuda::Device;
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
        core.turn.write(0, &bytes)?;
        core.first_pass(&shape)?;
        let atoms = batch.iter().map(|f| f.n_atoms()).sum::<usize>();
        let b = &shape.batch;
        out.energy = read(core, b.energy, batch.len())?;
        out.atomic = read(core, b.atomic, atoms)?;
        (out.force, out.stress) = (Vec::new(), Vec::new());
        if self.forces {
            out.force = read(core, b.force, 3 * atoms)?;
            out.stress = read(core, b.stress, 9 * batch.len())?.as_chunks::<9>().0.to_vec();
        }
        self.shape = Some(shape);
        Ok(())
    }

    /// [`PinetEngine::backward`] that can fail.
    pub fn try_backward(&mut self, grad: &mut [f64], seeds: &PinetSeeds) -> Result<()> {
        let core = &self.core;
        let shape = self.shape.as_ref().expect("a batch was evaluated before");
        let b = &shape.batch;
        write(core, b.dl_energy, &seeds.dl_energy)?;
        write(core, b.dl_atomic, &seeds.dl_atomic)?;
        if self.forces {
            write(core, b.dl_force, &seeds.dl_force)?;
            write(core, b.dl_stress, seeds.dl_stress.as_flattened())?;
        }
        // dL of an earlier call may be there.
        // SAFETY: inside the memory of the shape.
        let code = unsafe {
            let driver = core.device.driver();
            (driver.memset_d8_async)(shape.dl_sums.0, 0, shape.dl_sums.1, core.device.stream().handle())
        };
        core.device.check(code, "clear memory")?;
        core.second_pass(shape)?;
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

fn read(core: &Core, from: u64, n: usize) -> Result<Vec<f64>> {
    let mut to = vec![0.0; n];
    // SAFETY: both sides hold that many numbers, and the copy is waited for.
    let code = unsafe {
        let driver = core.device.driver();
        (driver.memcpy_dtoh_async)(
            to.as_mut_ptr().cast(),
            from,
            size_of_val(&to[..]),
            core.device.stream().handle(),
        )
    };
    core.device.check(code, "copy from the GPU")?;
    core.device.synchronize()?;
    Ok(to)
}

fn write(core: &Core, to: u64, from: &[f64]) -> Result<()> {
    // SAFETY: the source is ordinary memory, which the driver has read when the call returns.
    let code = unsafe {
        let driver = core.device.driver();
        (driver.memcpy_htod_async)(to, from.as_ptr().cast(), size_of_val(from), core.device.stream().handle())
    };
    core.device.check(code, "copy to the GPU")
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
