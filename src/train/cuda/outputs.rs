//! The loss of a run on a GPU, as the engine there is told of it: that of energies, or of other outputs.

use super::{energy_loss, loss_terms, turn_of, turn_with, values_at, wants_virial};
use crate::engine::cuda::core::Terms;
use crate::engine::cuda::frame::{LABEL_ATOM_OUTPUT, LABEL_OUTPUT};
use crate::engine::cuda::layout::Turn;
use crate::engine::cuda::plan::core::PlanCore;
use crate::error::Result;
use crate::gpu::{Buffer, Device};
use crate::loss::{EnerLoss, LossValue, OutputLoss, OutputTerms, Term};
use crate::optim::adam::AdamOptions;
use crate::train::gpu_learner::Asked;
use crate::train::setup::Setup;
use std::sync::Arc;

/// The loss of a run, which has begun at this learning rate.
pub struct LossOnGpu {
    start_lr: f64,
    of: Compared,
}

enum Compared {
    Energies(EnerLoss),
    Outputs(OutputTerms),
}

impl LossOnGpu {
    pub fn new(setup: &Setup, start_lr: f64) -> Self {
        let energies = || Compared::Energies(EnerLoss::new(energy_loss(setup).clone(), start_lr));
        let outputs = setup.input.loss.on_device(&setup.model);
        LossOnGpu { start_lr, of: outputs.map_or_else(energies, Compared::Outputs) }
    }

    /// The model of a run on a device, with this loss.
    pub fn core(&self, device: &Arc<Device>, setup: &Setup) -> Result<PlanCore> {
        match &self.of {
            Compared::Energies(_) => {
                let loss = Some(loss_terms(energy_loss(setup), self.start_lr));
                PlanCore::new(device, &setup.model, Terms { loss, virial: wants_virial(setup) })
            }
            Compared::Outputs(terms) => {
                let mut core = PlanCore::new(device, &setup.model, Terms { loss: None, virial: false })?;
                let outputs = core.common.outputs.as_mut();
                outputs
                    .expect("this loss is for such a model")
                    .use_loss(device, &terms.loss.for_kernels())?;
                Ok(core)
            }
        }
    }

    /// The numbers of a step. `all`: the labels that every frame of the batch has.
    pub fn turn(&self, setup: &Setup, adam: &AdamOptions, asked: &Asked, all: u32) -> Turn {
        match &self.of {
            Compared::Energies(_) => turn_of(setup, adam, self.start_lr, asked, all),
            Compared::Outputs(terms) => {
                let terms = &terms.loss;
                turn_with(setup, adam, self.start_lr, asked, with_labels(terms, all), |ratio| {
                    weights(terms, ratio)
                })
            }
        }
    }

    /// The values of the loss that stand at a place.
    pub fn value_at(&self, values: &Buffer<f64>, setup: &Setup, place: usize) -> Result<LossValue> {
        let terms = match &self.of {
            Compared::Energies(loss) => return values_at(values, setup, loss, place),
            Compared::Outputs(terms) => terms,
        };
        let mut numbers = [0.0f64; 16];
        values.read(16 * place, &mut numbers)?;
        let shown = |&(name, k): &(&'static str, usize)| Term { name: name.into(), value: numbers[1 + k] };
        Ok(LossValue { loss: numbers[0], terms: terms.shown.iter().map(shown).collect() })
    }
}

/// Bits of the squares for which frames have labels, given those that all of them have.
fn with_labels(loss: &OutputLoss, all: u32) -> u32 {
    let OutputLoss::Squares(used) = loss else { return 0 };
    let label = |k: usize| if k < 2 { LABEL_ATOM_OUTPUT } else { LABEL_OUTPUT };
    (0..used.len()).filter(|&k| used[k].is_some() && all & label(k) != 0).map(|k| 1 << k).sum()
}

/// The prefactors of the squares at this ratio of the learning rate to that at the start.
fn weights(loss: &OutputLoss, ratio: f64) -> [f64; 5] {
    let OutputLoss::Squares(used) = loss else { return [0.0; 5] };
    std::array::from_fn(|k| used.get(k).copied().flatten().map_or(0.0, |prefactor| prefactor.at(ratio)))
}
