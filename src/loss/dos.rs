//! The loss of a density of states on a grid, of frames and of atoms, and of its running sums.

use super::options::{Prefactor, prefactor};
use super::{Loss, LossChoice, LossOptions, LossValue, Term};
use crate::config::registry::{Entry, Named};
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
pub const DOS: Entry<LossChoice> = Entry {
    named: Named::Type(Variant::of("dos", KEYS, "Errors of a density of states and of its running sums")),
    resolve: |section| DosLossOptions::resolve(section).map(LossChoice::new),
};

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
    fn fitting(&self) -> &'static str {
        "dos"
    }

    fn want(&self, wants: &mut Wants, fitting: &FittingOptions) {
        let output = fitting.output();
        let need = |of_atoms: bool| match self.used().any(|(term, _)| term.of_atoms == of_atoms) {
            true => Need::Optional,
            false => Need::No,
        };
        let (of_frames, of_atoms) = (need(false), need(true));
        wants.output = Some(OutputLabel { name: output.name, width: output.width, of_frames, of_atoms });
    }

    fn terms(&self) -> Vec<(Field, &'static str)> {
        let field = |of_atoms: bool| if of_atoms { Field::AtomOutput } else { Field::Output };
        self.used().map(|(term, _)| (field(term.of_atoms), term.key)).collect()
    }

    fn names(&self) -> Vec<String> {
        self.used().map(|(term, _)| term.shown.to_string()).collect()
    }

    fn build(&self, start_lr: f64, model: &Dp) -> Box<dyn Loss> {
        let left_out = model.options.atom_exclude_types.clone();
        Box::new(DosLoss { options: self.clone(), start_lr, left_out, width: model.output.width })
    }
}

/// The `dos` loss of a run.
struct DosLoss {
    options: DosLossOptions,
    start_lr: f64,
    /// Types whose atoms do not count.
    left_out: Vec<usize>,
    /// Points of the grid.
    width: usize,
}

impl Loss for DosLoss {
    fn differentiate(&self, seeds: &mut Seeds, out: &Prediction, frames: &[&Frame], lr: f64) -> LossValue {
        seeds.reset(out);
        let mut value = LossValue::default();
        for (term, prefactor) in self.options.used() {
            let weight = prefactor.at(lr / self.start_lr);
            let mean = match term.of_atoms {
                true => self.of_atoms(seeds, out, frames, term.summed, weight),
                false => self.of_frames(seeds, out, frames, term.summed, weight),
            };
            value.loss += weight * mean.unwrap_or(0.0);
            // Of frames the error of an atom is shown.
            let per_atom = if term.of_atoms { 1.0 } else { self.mean_atoms(frames) };
            let shown = mean.map_or(f64::NAN, |mean| mean.sqrt() / per_atom);
            value.terms.push(Term { name: term.shown.into(), value: shown });
        }
        value
    }
}

impl DosLoss {
    /// Atoms that count.
    fn real_atoms<'a>(&'a self, frame: &'a Frame) -> impl Iterator<Item = usize> {
        let counts = |t: i32| usize::try_from(t).is_ok_and(|t| !self.left_out.contains(&t));
        (0..frame.n_atoms()).filter(move |&i| counts(frame.types[i]))
    }

    /// Atoms of a frame that count, in float32 as DeePMD-kit has it: so the digits agree.
    fn mean_atoms(&self, frames: &[&Frame]) -> f64 {
        let sum: f32 = frames.iter().map(|frame| self.real_atoms(frame).count() as f32).sum();
        f64::from(sum / frames.len() as f32)
    }

    /// The mean square over frames and grid; `None` where a label is missing.
    fn of_frames(
        &self,
        seeds: &mut Seeds,
        out: &Prediction,
        frames: &[&Frame],
        summed: bool,
        weight: f64,
    ) -> Option<f64> {
        let count = (frames.len() * self.width) as f64;
        let mut sum = 0.0;
        let labels: Vec<&[f64]> = frames.iter().map(|f| f.labels.output.as_deref()).collect::<Option<_>>()?;
        for (f, label) in labels.into_iter().enumerate() {
            let at = f * self.width..(f + 1) * self.width;
            sum +=
                add_squares(&mut seeds.dl_output[at.clone()], &out.output[at], label, summed, weight / count);
        }
        Some(sum / count)
    }

    /// The mean square over atoms and grid; `None` where a label is missing.
    fn of_atoms(
        &self,
        seeds: &mut Seeds,
        out: &Prediction,
        frames: &[&Frame],
        summed: bool,
        weight: f64,
    ) -> Option<f64> {
        let n_atoms: usize = frames.iter().map(|frame| self.real_atoms(frame).count()).sum();
        let count = (n_atoms.max(1) * self.width) as f64;
        let (mut sum, mut first) = (0.0, 0);
        if frames.iter().any(|frame| frame.labels.atom_output.is_none()) {
            return None;
        }
        for frame in frames {
            let label = frame.labels.atom_output.as_deref()?;
            for i in self.real_atoms(frame) {
                let at = (first + i) * self.width..(first + i + 1) * self.width;
                let label = &label[i * self.width..(i + 1) * self.width];
                let dl = &mut seeds.dl_atom_output[at.clone()];
                sum += add_squares(dl, &out.atom_output[at], label, summed, weight / count);
            }
            first += frame.n_atoms();
        }
        Some(sum / count)
    }
}

/// The sum of the squares of the errors, or of their running sums; adds `weight` times its derivatives.
fn add_squares(dl: &mut [f64], got: &[f64], want: &[f64], summed: bool, weight: f64) -> f64 {
    if !summed {
        let mut sum = 0.0;
        for ((dl, got), want) in dl.iter_mut().zip(got).zip(want) {
            let error = got - want;
            sum += error * error;
            *dl += weight * 2.0 * error;
        }
        return sum;
    }
    let (mut sum, mut running_got, mut running_want) = (0.0, 0.0, 0.0);
    let mut errors = Vec::with_capacity(got.len());
    for (got, want) in got.iter().zip(want) {
        running_got += got;
        running_want += want;
        let error: f64 = running_got - running_want;
        sum += error * error;
        errors.push(error);
    }
    // A number enters its own running sum and all that follow.
    let mut following = 0.0;
    for (dl, error) in dl.iter_mut().zip(&errors).rev() {
        following += error;
        *dl += weight * 2.0 * following;
    }
    sum
}
