//! The loss of a density of states on a grid, of frames and of atoms, and of its running sums.

use super::options::{Prefactor, prefactor};
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
use crate::model::dp::options::FittingOptions;

/// The `dos` loss on the list of losses.
pub const DOS: Entry = Entry::new(
    Variant::of("dos", KEYS, "Errors of a density of states and of its running sums"),
    |section| DosLossOptions::resolve(section).map(LossChoice::new),
);

const fn pref(name: &'static str, default: &'static str, doc: &'static str) -> Key {
    Key::new(name, Kind::NOT_NEGATIVE).default(default).doc(doc)
}

const KEYS: &[Key] = &[
    pref(
        "start_pref_dos",
        "0.0",
        "Prefactor at the start of the density of states of frames (dos.npy). It goes to limit_pref_dos as the learning rate goes to \
         zero. A term with a zero at either end is left out.",
    ),
    pref("limit_pref_dos", "0.0", "Prefactor of that term in the limit."),
    pref("start_pref_cdf", "0.0", "Prefactor at the start of the running sums over the grid, of frames."),
    pref("limit_pref_cdf", "0.0", "Prefactor of that term in the limit."),
    pref(
        "start_pref_ados",
        "1.0",
        "Prefactor at the start of the density of states of atoms (atom_dos.npy).",
    ),
    pref("limit_pref_ados", "1.0", "Prefactor of that term in the limit."),
    pref("start_pref_acdf", "0.0", "Prefactor at the start of the running sums over the grid, of atoms."),
    pref("limit_pref_acdf", "0.0", "Prefactor of that term in the limit."),
];

/// `loss` of type `dos`: mean squares of the errors of each term times its prefactor.
#[derive(Debug, Clone, PartialEq)]
pub struct DosLossOptions {
    /// In the order of [`TERMS`].
    prefactors: [Prefactor; 4],
}

/// A term: of atoms or of frames, of running sums or not.
struct DosTerm {
    /// The end of the names of its prefactors.
    key: &'static str,
    shown: &'static str,
    of_atoms: bool,
    summed: bool,
}

const TERMS: [DosTerm; 4] = [
    DosTerm { key: "start_pref_ados", shown: "rmse_local_dos", of_atoms: true, summed: false },
    DosTerm { key: "start_pref_acdf", shown: "rmse_local_cdf", of_atoms: true, summed: true },
    DosTerm { key: "start_pref_dos", shown: "rmse_global_dos", of_atoms: false, summed: false },
    DosTerm { key: "start_pref_cdf", shown: "rmse_global_cdf", of_atoms: false, summed: true },
];

impl DosLossOptions {
    fn resolve(section: &Section) -> Result<Self> {
        let options = DosLossOptions {
            prefactors: TERMS.map(|term| prefactor(section, &term.key["start_pref_".len()..])),
        };
        if options.used().next().is_none() {
            return Err(err!(
                "every term has a prefactor of zero at the start or in the limit, so nothing is trained"
            )
            .help("give one of dos, cdf, ados, acdf a start_pref and a limit_pref above zero")
            .at("loss"));
        }
        Ok(options)
    }

    fn used(&self) -> impl Iterator<Item = (&'static DosTerm, &Prefactor)> {
        static OF: [DosTerm; 4] = TERMS;
        OF.iter().zip(&self.prefactors).filter(|(_, prefactor)| prefactor.is_used())
    }
}

impl LossOptions for DosLossOptions {
    fn fitting(&self) -> &'static [&'static str] {
        &["dos"]
    }

    fn want(&self, wants: &mut Wants, fitting: &FittingOptions) {
        let output = fitting.output();
        let need = |of_atoms: bool| match self.used().any(|(term, _)| term.of_atoms == of_atoms) {
            true => Need::Optional,
            false => Need::No,
        };
        let (of_frames, of_atoms) = (need(false), need(true));
        let selected = Vec::new();
        wants.output =
            Some(OutputLabel { name: output.name, width: output.width, of_frames, of_atoms, selected });
    }

    fn terms(&self) -> Vec<(Field, &'static str)> {
        let field = |of_atoms: bool| if of_atoms { Field::AtomOutput } else { Field::Output };
        self.used().map(|(term, _)| (field(term.of_atoms), term.key)).collect()
    }

    fn names(&self, _fitting: &FittingOptions) -> Vec<String> {
        self.used().map(|(term, _)| term.shown.to_string()).collect()
    }

    fn on_device(&self, _model: &Dp) -> Option<OutputTerms> {
        let used = self.prefactors.map(|prefactor| Some(prefactor).filter(Prefactor::is_used));
        let shown = TERMS.iter().enumerate().filter(|(k, _)| used[*k].is_some());
        let shown = shown.map(|(k, term)| (term.shown, k)).collect();
        Some(OutputTerms { loss: OutputLoss::Squares(used), shown })
    }

    fn build(&self, start_lr: f64, model: &Dp) -> Box<dyn Loss> {
        Box::new(DosLoss { options: self.clone(), start_lr, squares: Squares::of(model) })
    }
}

/// The `dos` loss of a run.
struct DosLoss {
    options: DosLossOptions,
    start_lr: f64,
    squares: Squares,
}

impl Loss for DosLoss {
    fn wants_atoms(&self) -> bool {
        self.options.used().any(|(term, _)| term.of_atoms)
    }

    fn differentiate(&self, seeds: &mut Seeds, out: &Prediction, frames: &[&Frame], lr: f64) -> LossValue {
        seeds.reset(out);
        let mut value = LossValue::default();
        for (term, prefactor) in self.options.used() {
            let (weight, summed) = (prefactor.at(lr / self.start_lr), term.summed);
            let (mean, shown) = match term.of_atoms {
                true => self.squares.of_atoms(seeds, out, frames, summed, weight),
                false => self.squares.of_frames(seeds, out, frames, summed, weight),
            };
            value.loss += weight * mean;
            value.terms.push(Term { name: term.shown.into(), value: shown });
        }
        value
    }
}
