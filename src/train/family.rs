//! What a model family brings to a training step on the CPU: its network, its loss, its frames.

use super::full_validation::ErrorTable;
use super::team::Team;
use crate::Result;
use crate::engine::Take;
use crate::engine::cpu::pool::Pool;
use crate::loss::Cost;
use crate::loss::observation::{Observation, Observed};
use crate::sample::{Loaded, Prepared};
use serde_json::Value;
use std::ops::Range;
use std::sync::Arc;

/// The frames of a batch, as the queue delivers them.
pub type Frames<F> = [Arc<Loaded<<F as Family>::Prepared, <F as Family>::Frame>>];

/// A network with its loss. The recipe that calls it is [`Stepper::step`](super::step::Stepper::step).
pub trait Family: Send {
    /// A frame with its labels, and what the engine makes of it on the loader threads.
    type Frame: Prepared;
    type Prepared: Prepared;
    /// What a batch cost.
    type Value: Cost;

    /// First pass, the loss, and its derivatives by everything predicted, which stay for [`Family::backward`]. Ranks that share the
    /// batch come to the same value.
    fn evaluate(
        &mut self,
        params: &[f64],
        batch: &Frames<Self>,
        now: &Now,
        team: &mut Team,
    ) -> Result<Self::Value>;

    /// How many gradients add up to that of this rank's part of a batch.
    fn n_gradients(&self, _batch: &Frames<Self>) -> usize {
        1
    }

    /// Second pass: overwrites `grad` with dL/dparams, or with the `k`-th of the gradients that add up to it. Must follow `evaluate`
    /// of the same batch and parameters.
    fn backward(&mut self, grad: &mut [f64], params: &[f64], batch: &Frames<Self>, k: usize, now: &Now);

    /// Derivatives of what is observed in place of those of the loss, for the [`Family::backward`] that follows. Must follow
    /// `evaluate` of the same batch.
    fn observe(&mut self, _batch: &Frames<Self>, _observation: &Observation) -> Observed {
        unreachable!("no optimiser of this family asks for observations")
    }

    /// As [`Family::backward`] where the engine can give out the gradient piece by piece: see
    /// [`Engine::backward_but_pieces`](crate::engine::Engine::backward_but_pieces). `None`: it cannot, and did nothing.
    fn backward_but_pieces(
        &mut self,
        _grad: &mut [f64],
        _params: &[f64],
        _batch: &Frames<Self>,
    ) -> Option<Range<usize>> {
        None
    }

    /// Gives out those pieces.
    fn hand_out(&mut self, _to: &dyn Take) {}

    /// The parameters of the last pass were changed by anyone but the taker of [`Family::hand_out`].
    fn forget_parameters(&mut self) {}

    /// Gives up what became more costly than these parameters need. It takes longer than a step.
    fn reconsider(&mut self, _params: &[f64]) {}

    /// What the engine must be given back for a restart to give the same bits.
    fn state(&self) -> Value {
        Value::Null
    }

    /// The threads that it computes on, for whoever works between its passes.
    fn pool(&self) -> Pool {
        Pool::serial()
    }

    /// Whether gradients have the precision of float32.
    fn is_single(&self) -> bool {
        false
    }
}

/// When and where a batch is looked at: some losses depend on it.
#[derive(Debug, Clone, Copy)]
pub struct Now {
    /// Steps done before this one.
    pub step: u64,
    pub rank: usize,
    /// The learning rate, as the schedule says.
    pub rate: f64,
}

/// The validation set of a family.
pub trait Validation<F: Family> {
    /// Mean errors over the batches of the `display`-th display, shared over ranks.
    fn errors(
        &mut self,
        family: &mut F,
        params: &[f64],
        team: &mut Team,
        display: u64,
        rate: f64,
    ) -> Result<Vec<f64>>;

    /// Errors over all frames, shared over ranks.
    fn all_errors(&mut self, _family: &mut F, _params: &[f64], _team: &mut Team) -> Result<ErrorTable> {
        unreachable!("no input of this family asks for it")
    }
}
