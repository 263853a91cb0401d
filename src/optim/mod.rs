//! Optimisers and learning-rate schedules.
//!
//! An optimiser is one file here and one line of [`OPTIMIZERS`]: its keys, its state, one update.

pub mod options; // the sections of an input
pub mod schedule; // learning rates
pub mod keras_rate; // those of Keras
pub mod gradient; // what an optimiser is given
pub mod moments; // the state that every Adam has, and Adam for vectors beside matrices
pub mod adam;
pub mod keras_adam;
pub mod newton_schulz; // orthogonal matrices
pub mod muon;
pub mod kalman;
pub mod soap;

pub use adam::{Adam, AdamOptions};
pub use gradient::Gradient;
pub use keras_adam::{KerasAdam, KerasAdamOptions};

use crate::checkpoint::{Arrays, f64s_of};
use crate::comm::Communicator;
use crate::config::registry::{self, Resolve};
use crate::engine::Take;
use crate::engine::cpu::pool::Pool;
use crate::err;
use crate::error::Result;
use crate::loss::observation::Observation;
use crate::model::params::ParamTable;
use std::any::Any;
use std::fmt::Debug;
use std::ops::Range;
use std::sync::Arc;

/// A line of [`OPTIMIZERS`].
type Entry = registry::Entry<Resolve<OptimizerChoice>>;

/// Every optimiser that an input may name, in the order in which `dp doc-train-input` shows them.
pub static OPTIMIZERS: &[Entry] =
    &[adam::ADAM, adam::ADAM_W, keras_adam::ADAM, kalman::LKF, muon::ADA_MUON, muon::HYBRID_MUON, soap::SOAP];

/// Changes parameters by gradients.
///
/// Every rank has one, and calls the same functions in the same order; each may hold collectives.
pub trait Optimizer: Send {
    /// How much of the gradient a rank is given.
    fn share(&self) -> Share;

    /// One update of the parameters that `gradient` covers. Returns the norm of the mean gradient before it was cut down, NaN
    /// where nobody wants to know.
    fn update(
        &mut self,
        params: &mut [f64],
        gradient: Gradient,
        update: &Update,
        ranks: &mut dyn Communicator,
    ) -> Result<f64>;

    /// The update by pieces of a gradient, where it can be made like that.
    fn by_pieces(&mut self) -> Option<&mut dyn ByPieces> {
        None
    }

    /// The update by observations, where it is made like that in place of [`Optimizer::update`].
    fn by_observations(&mut self) -> Option<&mut dyn ByObservations> {
        None
    }

    /// Updates that leave parts of the parameters alone, where it can make them.
    fn by_parts(&mut self) -> Option<&mut dyn ByParts> {
        None
    }

    /// Its state for a checkpoint, whole on every rank: arrays of any size, by names that no other array of the checkpoint has.
    /// `spare` is memory that may be used for them.
    fn save(&self, spare: &mut Vec<Vec<f64>>, ranks: &mut dyn Communicator) -> Result<Arrays>;

    /// Continues with a state that was saved.
    fn restore(&mut self, arrays: &Arrays) -> Result<()>;
}

/// How much of the gradient a rank is given, and changes the parameters of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Share {
    /// A slice in whole cells, as sums of gradients; afterwards all get each other's slices.
    Slice,
    /// All of the mean gradient: every rank makes the same update of all parameters.
    Whole,
}

/// What an update is told beside the gradient.
#[derive(Debug, Clone, Copy)]
pub struct Update {
    /// Steps done before this one.
    pub step: u64,
    /// Learning rate.
    pub rate: f64,
    /// Gradients with a larger norm are scaled down to it; 0 means never.
    pub max_norm: f64,
    /// Somebody wants to know the norm of the gradient.
    pub wants_norm: bool,
}

impl Update {
    /// The norm of a whole gradient, and what it is multiplied by so that it is not too long.
    pub fn clip(&self, grad: &[f64]) -> (f64, f64) {
        if self.max_norm == 0.0 && !self.wants_norm {
            return (f64::NAN, 1.0);
        }
        let norm = norm(grad);
        // 1e-6 as in PyTorch, so that runs with clipping agree too.
        let factor = if self.max_norm > 0.0 { (self.max_norm / (norm + 1e-6)).min(1.0) } else { 1.0 };
        (norm, factor)
    }
}

/// The root of the sum of squares.
fn norm(x: &[f64]) -> f64 {
    x.iter().map(|x| x * x).sum::<f64>().sqrt()
}

/// Cuts work of these costs into one part for each of `size` ranks, in order, about as much for each.
fn share_out(costs: &[f64], size: usize) -> Vec<Range<usize>> {
    let total: f64 = costs.iter().sum();
    let mut ends = vec![0; size + 1];
    let mut before = 0.0;
    for (k, cost) in costs.iter().enumerate() {
        let rank = ((before + 0.5 * cost) / total * size as f64) as usize;
        before += cost;
        ends[rank.min(size - 1) + 1] = k + 1;
    }
    (0..size).for_each(|rank| ends[rank + 1] = ends[rank + 1].max(ends[rank]));
    (0..size).map(|rank| ends[rank]..ends[rank + 1]).collect()
}

/// Overwrites part of a state with what a checkpoint has under this name.
pub fn restored(arrays: &Arrays, name: &str, out: &mut [f64]) -> Result<()> {
    let found = f64s_of(arrays, name)?;
    if found.len() != out.len() {
        return Err(err!("found {} numbers in {name}, wanted {}", found.len(), out.len())
            .help("the checkpoint is of another network"));
    }
    out.copy_from_slice(found);
    Ok(())
}

/// An update that is made piece by piece from a single gradient, each while it is still in the cache of a thread. The same numbers
/// as [`Optimizer::update`] without a largest norm.
pub trait ByPieces {
    /// Calls `give` with what takes the pieces.
    ///
    /// # Safety
    /// `give` may give no parameter twice.
    unsafe fn update(&mut self, params: &mut [f64], update: &Update, give: &mut dyn FnMut(&dyn Take));
}

/// Updates that leave parts of the parameters alone, each part as if there had been no steps but its own.
pub trait ByParts {
    /// Ranges of the flat vector that are changed, or not, as a whole. All parameters lie in one of them.
    fn set_parts(&mut self, parts: &[Range<usize>]);

    /// Of the next updates: how many each part has had before, `None` for a part that is left alone.
    fn set_turn(&mut self, done: &[Option<u64>]);
}

/// Updates by observations: several for each batch, and the model is evaluated again before each.
pub trait ByObservations {
    /// What is observed, one after the other, in a step of a run of `num_steps`.
    fn observations(&self, step: u64, num_steps: u64) -> Vec<Observation>;

    /// One update, by the mean of so many gradients of what was observed, and its error, both over the batches of all ranks.
    fn assimilate(
        &mut self,
        params: &mut [f64],
        gradient: (&[f64], f64),
        error: f64,
        ranks: &mut dyn Communicator,
    ) -> Result<()>;
}

/// What an optimiser is made for.
pub struct Target<'a> {
    /// Names, shapes and places of all parameters, and which of them are trained.
    pub table: &'a ParamTable,
    /// Threads that it may use.
    pub pool: Pool,
    /// Whether gradients have the precision of float32.
    pub single: bool,
    /// This rank, and how many there are: for state that is shared out over ranks.
    pub rank: usize,
    pub size: usize,
    /// Seed of the run: for those that choose at random.
    pub seed: u64,
}

/// The options of an optimiser, resolved.
pub trait OptimizerOptions: Any + Debug + Send + Sync {
    /// An optimiser that has seen no gradient yet. Fails where its state does not fit into memory.
    fn build(&self, target: &Target) -> Result<Box<dyn Optimizer>>;
}

/// The optimiser that an input asks for.
#[derive(Debug, Clone)]
pub struct OptimizerChoice(Arc<dyn OptimizerOptions>);

impl OptimizerChoice {
    pub fn new(options: impl OptimizerOptions) -> Self {
        OptimizerChoice(Arc::new(options))
    }

    /// An optimiser that has seen no gradient yet.
    pub fn build(&self, target: &Target) -> Result<Box<dyn Optimizer>> {
        self.0.build(target)
    }

    /// The options, where it is that optimiser.
    pub fn options<T: OptimizerOptions>(&self) -> Option<&T> {
        (&*self.0 as &dyn Any).downcast_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::share_out;

    #[test]
    fn work_is_shared_out_in_order_and_whole() {
        assert_eq!(share_out(&[5.0, 1.0, 1.0, 1.0, 5.0, 5.0], 3), [0..2, 2..5, 5..6]);
        assert_eq!(share_out(&[1.0, 1.0], 4).iter().map(|r| r.len()).sum::<usize>(), 2);
        assert_eq!(share_out(&[], 2), [0..0, 0..0]);
        assert_eq!(share_out(&[3.0; 7], 1)[0], 0..7);
    }
}
