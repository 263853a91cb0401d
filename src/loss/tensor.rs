//! The loss of dipoles and polarizabilities, of frames and of atoms.

use super::options::Prefactor;
use super::squares::Squares;
use super::{Entry, Loss, LossChoice, LossOptions, LossValue, OutputLoss, OutputTerms, Term};
use crate::config::table::{Key, Kind};
use crate::config::{Section, Variant};
use crate::data::Frame;
use crate::data::field::{Field, Need, OutputLabel, Wants};
use crate::engine::{Prediction, Seeds};
use crate::err;
use crate::error::Result;
use crate::model::dp::Dp;
use crate::model::dp::options::{FittingKind, FittingOptions};

/// The `tensor` loss on the list of losses.
pub const TENSOR: Entry =
    Entry::new(Variant::of("tensor", KEYS, "Errors of dipoles or polarizabilities"), |section| {
        TensorLossOptions::resolve(section).map(LossChoice::new)
    });

const KEYS: &[Key] = &[
    Key::new("pref", Kind::NOT_NEGATIVE)
        .doc("Prefactor of the term of frames (dipole.npy, polarizability.npy)."),
    Key::new("pref_atomic", Kind::NOT_NEGATIVE)
        .doc("Prefactor of the term of atoms (atomic_dipole.npy, atomic_polarizability.npy)."),
    Key::new("enable_atomic_weight", Kind::Bool)
        .default("false")
        .not_yet("")
        .doc("Whether atoms have weights (atomic_weight.npy)."),
];

/// `loss` of type `tensor`: mean squares of the errors of each term times its prefactor.
#[derive(Debug, Clone, PartialEq)]
pub struct TensorLossOptions {
    /// Of frames, and of atoms.
    pref: f64,
    pref_atomic: f64,
}

impl TensorLossOptions {
    fn resolve(section: &Section) -> Result<Self> {
        let options =
            TensorLossOptions { pref: section.float("pref"), pref_atomic: section.float("pref_atomic") };
        match options.pref == 0.0 && options.pref_atomic == 0.0 {
            true => Err(err!("both terms have a prefactor of zero, so nothing is trained")
                .help("set pref or pref_atomic above zero")
                .at("loss")),
            false => Ok(options),
        }
    }

    /// The names of the errors: those of atoms come first.
    fn shown(&self, fitting: &FittingOptions) -> Vec<&'static str> {
        let names = match fitting.kind {
            FittingKind::Polar(_) => ["rmse_local_polar", "rmse_global_polar"],
            _ => ["rmse_local_dipole", "rmse_global_dipole"],
        };
        let used = [self.pref_atomic, self.pref];
        names.into_iter().zip(used).filter(|(_, pref)| *pref > 0.0).map(|(name, _)| name).collect()
    }
}

impl LossOptions for TensorLossOptions {
    fn fitting(&self) -> &'static [&'static str] {
        &["dipole", "polar"]
    }

    fn want(&self, wants: &mut Wants, fitting: &FittingOptions) {
        let output = fitting.output();
        let need = |pref: f64| if pref > 0.0 { Need::Optional } else { Need::No };
        let (of_frames, of_atoms) = (need(self.pref), need(self.pref_atomic));
        let selected = fitting.sel_type.clone();
        wants.output =
            Some(OutputLabel { name: output.name, width: output.width, of_frames, of_atoms, selected });
    }

    fn terms(&self) -> Vec<(Field, &'static str)> {
        let all = [(self.pref_atomic, Field::AtomOutput, "pref_atomic"), (self.pref, Field::Output, "pref")];
        all.into_iter().filter(|term| term.0 > 0.0).map(|(_, field, key)| (field, key)).collect()
    }

    fn names(&self, fitting: &FittingOptions) -> Vec<String> {
        self.shown(fitting).into_iter().map(String::from).collect()
    }

    fn on_device(&self, model: &Dp) -> Option<OutputTerms> {
        let constant = |pref: f64| (pref > 0.0).then_some(Prefactor { start: pref, limit: pref });
        let used = [constant(self.pref_atomic), None, constant(self.pref), None];
        let places = (0..used.len()).filter(|&k| used[k].is_some());
        let shown = self.shown(&model.options.fitting).into_iter().zip(places).collect();
        Some(OutputTerms { loss: OutputLoss::Squares(used), shown })
    }

    fn build(&self, _start_lr: f64, model: &Dp) -> Box<dyn Loss> {
        let (options, names) = (self.clone(), self.shown(&model.options.fitting));
        Box::new(TensorLoss { options, names, squares: Squares::of(model) })
    }
}

/// The `tensor` loss of a run.
struct TensorLoss {
    options: TensorLossOptions,
    names: Vec<&'static str>,
    squares: Squares,
}

impl Loss for TensorLoss {
    fn wants_atoms(&self) -> bool {
        self.options.pref_atomic > 0.0
    }

    fn differentiate(&self, seeds: &mut Seeds, out: &Prediction, frames: &[&Frame], _lr: f64) -> LossValue {
        seeds.reset(out);
        let (of_frames, of_atoms) = (self.options.pref, self.options.pref_atomic);
        let mut shown = Vec::with_capacity(2);
        let mut value = LossValue::default();
        if of_atoms > 0.0 {
            let (mean, root) = self.squares.of_atoms(seeds, out, frames, false, of_atoms);
            value.loss += of_atoms * mean;
            shown.push(root);
        }
        if of_frames > 0.0 {
            let (mean, root) = self.squares.of_frames(seeds, out, frames, false, of_frames);
            value.loss += of_frames * mean;
            shown.push(root);
        }
        let terms = self.names.iter().zip(shown);
        value.terms.extend(terms.map(|(&name, value)| Term { name: name.into(), value }));
        value
    }
}
