//! The optimisers that the kernels have; their state is on the device.

use crate::Result;
use crate::checkpoint::{Array, Arrays};
use crate::engine::cuda::core::Core;
use crate::engine::cuda::muon::MuonPlan;
use crate::optim::adam::AdamOptions;
use crate::optim::kalman::KalmanOptions;
use crate::optim::muon::{self, MuonOptions};
use crate::optim::{moments, restored};
use crate::train::setup::Setup;

pub enum DeviceOptimizer {
    Adam(AdamOptions),
    /// HybridMuon or AdaMuon, and Adam for what is no matrix.
    Muon {
        plan: MuonPlan,
        adam: AdamOptions,
    },
    /// LKF, which is told no rate: the numbers of its steps have those of an Adam that nobody asks for.
    Kalman {
        options: KalmanOptions,
        adam: AdamOptions,
    },
}

impl DeviceOptimizer {
    /// That of the input; `None`: the kernels do not have it.
    pub fn find(setup: &Setup) -> Option<DeviceOptimizer> {
        if let Some(&adam) = setup.input.optimizer.options::<AdamOptions>() {
            return Some(DeviceOptimizer::Adam(adam));
        }
        if let Some(&options) = setup.input.optimizer.options::<KalmanOptions>() {
            let adam = AdamOptions { beta1: 0.9, beta2: 0.999, weight_decay: 0.0, decoupled: false };
            return Some(DeviceOptimizer::Kalman { options, adam });
        }
        let muon = setup.input.optimizer.options::<MuonOptions>()?;
        let plan = muon.on_device(&setup.model.table);
        let [beta1, beta2] = muon.adam_betas;
        let adam = AdamOptions { beta1, beta2, weight_decay: 0.0, decoupled: false };
        Some(DeviceOptimizer::Muon { plan, adam })
    }

    /// What is no matrix moves by it.
    pub fn adam(&self) -> &AdamOptions {
        match self {
            DeviceOptimizer::Adam(adam)
            | DeviceOptimizer::Muon { adam, .. }
            | DeviceOptimizer::Kalman { adam, .. } => adam,
        }
    }

    /// Whether an update may be made of pieces of the gradient, beside the rest of the step.
    pub fn takes_pieces(&self) -> bool {
        matches!(self, DeviceOptimizer::Adam(_))
    }

    /// Makes room on the device.
    pub fn prepare(&self, core: &mut Core) -> Result<()> {
        match self {
            DeviceOptimizer::Adam(_) | DeviceOptimizer::Kalman { .. } => Ok(()),
            DeviceOptimizer::Muon { plan, .. } => core.use_muon(plan),
        }
    }

    /// The options of the filter, where it is one: its state is beside the network.
    pub fn kalman(&self) -> Option<KalmanOptions> {
        match self {
            DeviceOptimizer::Kalman { options, .. } => Some(*options),
            _ => None,
        }
    }

    /// Continues with what was saved, as far as it belongs to the network.
    pub fn restore(&self, core: &Core, saved: &Arrays) -> Result<()> {
        if self.kalman().is_some() {
            return Ok(());
        }
        let learned = &core.network.learned;
        let (n, means) = (learned.n_params, &learned.moments);
        let (DeviceOptimizer::Muon { plan, .. }, Some(alignment)) = (self, core.alignment()) else {
            return learned.set_moments(moments::find(saved, n)?);
        };
        let buffers = [(&means[0], n), (&means[1], n), (alignment, plan.matrices.len())];
        for (name, (buffer, n)) in muon::NAMES.into_iter().zip(buffers) {
            let mut numbers = vec![0.0; n];
            restored(saved, name, &mut numbers)?;
            buffer.write(0, &numbers)?;
        }
        Ok(())
    }

    pub fn save(&self, core: &Core) -> Result<Arrays> {
        let saved = core.network.learned.read_moments()?;
        let (DeviceOptimizer::Muon { plan, .. }, Some(alignment)) = (self, core.alignment()) else {
            return Ok(moments::named(saved));
        };
        let mut agreed = vec![0.0; plan.matrices.len()];
        alignment.read(0, &mut agreed)?;
        let [first, second] = saved;
        let arrays = muon::NAMES.into_iter().zip([first, second, agreed]);
        Ok(arrays.map(|(name, x)| (name.to_string(), Array::F64(x))).collect())
    }
}
