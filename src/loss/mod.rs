//! Losses and their derivatives: energy, force and virial; other outputs of a fitting net; PiNN's potentials and dipoles.
//!
//! A loss of `dp train` is one file here and one line of [`LOSSES`]: its keys, the names of its displayed errors, its value and
//! derivatives.

pub mod value; // what every loss tells of a batch
pub mod ener;
pub mod dos;
pub mod property;
pub mod tensor;
mod squares; // mean squares of errors of outputs
pub mod observation; // for optimisers that look at single numbers
pub mod pinn;
#[cfg(test)]
mod output_tests;

pub use ener::{EnerLoss, options};
pub use value::{Cost, ErrorSums, LossValue, Term};

use crate::config::registry::{self, Resolve};
use crate::config::table::{Table, Variant, Variants};
use crate::data::Frame;
use crate::data::field::{Field, Wants};
use crate::engine::cuda::plan::outputs::DeviceLoss;
use crate::engine::{Prediction, Seeds};
use crate::err;
use crate::error::Result;
use crate::model::dp::Dp;
use crate::model::dp::options::FittingOptions;
use options::Prefactor;
use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;

/// A line of [`LOSSES`].
type Entry = registry::Entry<Resolve<LossChoice>>;

/// Every loss that `loss.type` may name.
pub static LOSSES: &[Entry] = &[
    ener::ENER,
    Entry::not_yet(Variant::not_yet("ener_spin")),
    Entry::not_yet(Variant::not_yet("dens")),
    dos::DOS,
    Entry::not_yet(Variant::not_yet("population")),
    property::PROPERTY,
    tensor::TENSOR,
];

/// The keys of the `loss` section.
pub static LOSS: Table =
    Table { keys: &[], variants: Some(Variants { what: "loss", default: "ener", list: &TYPES }) };

static TYPES: [Variant; registry::count_types(LOSSES)] = registry::types(LOSSES);

/// A loss of `dp train`.
pub trait Loss: Send {
    /// The loss of a batch at a learning rate, and its derivatives by everything predicted.
    fn differentiate(&self, seeds: &mut Seeds, out: &Prediction, frames: &[&Frame], lr: f64) -> LossValue;

    /// Whether energies or outputs of single atoms count.
    fn wants_atoms(&self) -> bool {
        false
    }
}

/// The options of a loss, resolved.
pub trait LossOptions: Any + Debug + Send + Sync {
    /// The types of the fitting nets whose outputs it compares with labels.
    fn fitting(&self) -> &'static [&'static str];

    /// Says which labels it compares with.
    fn want(&self, wants: &mut Wants, fitting: &FittingOptions);

    /// The labels of its terms that may be missing, and the key that asks for each.
    fn terms(&self) -> Vec<(Field, &'static str)>;

    /// Names of the errors that it shows, in their order.
    fn names(&self, fitting: &FittingOptions) -> Vec<String>;

    /// What the root of the loss is called in the learning curve, where it stands there.
    fn root(&self) -> Option<&'static str> {
        None
    }

    /// What it compares, where that is no energy and a device computes it by itself.
    fn on_device(&self, _model: &Dp) -> Option<OutputTerms> {
        None
    }

    /// The loss of a run; `start_lr` is the learning rate at which prefactors start.
    fn build(&self, start_lr: f64, model: &Dp) -> Box<dyn Loss>;
}

/// A loss of outputs that are no energies.
#[derive(Debug, Clone, PartialEq)]
pub enum OutputLoss {
    /// Mean squares of the errors of atoms, of their running sums, of the errors of frames, and of theirs; `None`: not used.
    Squares([Option<Prefactor>; 4]),
    /// Of properties of frames, with the deviation of each.
    Property { function: property::Measure, beta: f64, deviation: Vec<f64> },
}

impl OutputLoss {
    /// The loss as the kernels know it.
    pub fn for_kernels(&self) -> DeviceLoss {
        match self {
            OutputLoss::Squares(_) => DeviceLoss::Squares,
            OutputLoss::Property { function, beta, deviation } => {
                let (function, beta, deviation) = (function.place(), *beta, deviation.clone());
                DeviceLoss::Property { function, beta, deviation }
            }
        }
    }
}

/// Such a loss, and the errors that are shown of it: names, and places in the order of the squares or of the measures.
#[derive(Debug, Clone, PartialEq)]
pub struct OutputTerms {
    pub loss: OutputLoss,
    pub shown: Vec<(&'static str, usize)>,
}

/// The loss that an input asks for.
#[derive(Debug, Clone)]
pub struct LossChoice(Arc<dyn LossOptions>);

impl LossChoice {
    pub fn new(options: impl LossOptions) -> Self {
        LossChoice(Arc::new(options))
    }

    /// The options, where it is that loss.
    pub fn options<T: LossOptions>(&self) -> Option<&T> {
        (&*self.0 as &dyn Any).downcast_ref()
    }

    /// Refuses a loss that does not compare what the fitting net predicts.
    pub fn check(&self, fitting: &FittingOptions) -> Result<()> {
        let (wanted, found) = (self.0.fitting(), fitting.type_name());
        if wanted.contains(&found) {
            return Ok(());
        }
        let (wanted, own) =
            (wanted.join("\" or \""), if fitting.output().made.is_turned() { "tensor" } else { found });
        Err(err!("loss.type: this loss is for a fitting net of type \"{wanted}\", and model.fitting_net is \"{found}\"")
            .help(format!("set loss.type to \"{own}\"")))
    }

    /// Labels that it compares with, and the parameters that the model takes.
    pub fn wants(&self, fitting: &FittingOptions) -> Wants {
        let mut wants = Wants {
            numb_fparam: fitting.numb_fparam,
            fparam_has_default: fitting.default_fparam.is_some(),
            numb_aparam: fitting.numb_aparam,
            ..Wants::default()
        };
        self.0.want(&mut wants, fitting);
        wants
    }

    /// The labels of its terms that may be missing, and the key that asks for each.
    pub fn terms(&self) -> Vec<(Field, &'static str)> {
        self.0.terms()
    }

    /// What is shown of a batch, in this order: the root of the loss, which has a name only where it is a column of the learning
    /// curve, and the errors.
    pub fn shown(&self, fitting: &FittingOptions) -> Vec<Option<String>> {
        let names = self.0.names(fitting).into_iter().map(Some);
        std::iter::once(self.0.root().map(String::from)).chain(names).collect()
    }

    /// The columns of the learning curve.
    pub fn columns(&self, fitting: &FittingOptions) -> Vec<String> {
        self.shown(fitting).into_iter().flatten().collect()
    }

    /// See [`LossOptions::on_device`].
    pub fn on_device(&self, model: &Dp) -> Option<OutputTerms> {
        self.0.on_device(model)
    }

    /// The loss of a run.
    pub fn build(&self, start_lr: f64, model: &Dp) -> Box<dyn Loss> {
        self.0.build(start_lr, model)
    }
}
