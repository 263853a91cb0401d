//! Mean squares of the errors of outputs, of frames and of atoms.

use crate::data::Frame;
use crate::engine::{Prediction, Seeds};
use crate::model::dp::Dp;

/// What they need of a model.
pub struct Squares {
    /// Types whose atoms do not count.
    left_out: Vec<usize>,
    /// Numbers of a frame, and of an atom.
    width: usize,
}

impl Squares {
    pub fn of(model: &Dp) -> Self {
        Squares { left_out: model.options.atom_exclude_types.clone(), width: model.output.width }
    }

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

    /// The mean square over frames and numbers, or over their running sums, and its root for each atom, as it is shown. Adds
    /// `weight` times the derivatives. Zero and NaN where a label is missing.
    pub fn of_frames(
        &self,
        seeds: &mut Seeds,
        out: &Prediction,
        frames: &[&Frame],
        summed: bool,
        weight: f64,
    ) -> (f64, f64) {
        let count = (frames.len() * self.width) as f64;
        let labels: Option<Vec<&[f64]>> = frames.iter().map(|f| f.labels.output.as_deref()).collect();
        let Some(labels) = labels else { return (0.0, f64::NAN) };
        let mut sum = 0.0;
        for (f, label) in labels.into_iter().enumerate() {
            let at = f * self.width..(f + 1) * self.width;
            sum +=
                add_squares(&mut seeds.dl_output[at.clone()], &out.output[at], label, summed, weight / count);
        }
        let mean = sum / count;
        (mean, mean.sqrt() / self.mean_atoms(frames))
    }

    /// The same over atoms and their numbers.
    pub fn of_atoms(
        &self,
        seeds: &mut Seeds,
        out: &Prediction,
        frames: &[&Frame],
        summed: bool,
        weight: f64,
    ) -> (f64, f64) {
        let n_atoms: usize = frames.iter().map(|frame| self.real_atoms(frame).count()).sum();
        let count = (n_atoms.max(1) * self.width) as f64;
        let (mut sum, mut first) = (0.0, 0);
        let labels: Option<Vec<&[f64]>> = frames.iter().map(|f| f.labels.atom_output.as_deref()).collect();
        let Some(labels) = labels else { return (0.0, f64::NAN) };
        for (frame, label) in frames.iter().zip(labels) {
            for i in self.real_atoms(frame) {
                let at = (first + i) * self.width..(first + i + 1) * self.width;
                let label = &label[i * self.width..(i + 1) * self.width];
                let dl = &mut seeds.dl_atom_output[at.clone()];
                sum += add_squares(dl, &out.atom_output[at], label, summed, weight / count);
            }
            first += frame.n_atoms();
        }
        let mean = sum / count;
        (mean, mean.sqrt())
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
