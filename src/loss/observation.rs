//! What a filter looks at in place of a loss: one number of a batch, its error, and the way to its gradient.

use crate::data::Frame;
use crate::engine::{Prediction, Seeds};

/// One number that is predicted, and known from the labels.
#[derive(Debug, Clone, PartialEq)]
pub enum Observation {
    /// The energy of each atom, on average.
    Energy { prefactor: f64 },
    /// All force components of some atoms, on average. An atom is named by its place among the real ones of its frame, from 0 up to
    /// 1; it may come twice.
    Force { prefactor: f64, atoms: Vec<f64> },
}

impl Observation {
    /// Which of `n` real atoms stands at a place.
    pub fn nth(place: f64, n: usize) -> usize {
        ((place * n as f64) as usize).min(n - 1)
    }
}

/// What a batch says to an observation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Observed {
    /// The sum of the errors of frames, none of them negative.
    pub error: f64,
    pub frames: f64,
}

/// Writes the derivatives of the sum, over frames, of what is observed, with the signs that make all errors positive. A frame
/// without the label says nothing.
pub fn observe(
    seeds: &mut Seeds,
    out: &Prediction,
    frames: &[&Frame],
    observation: &Observation,
) -> Observed {
    seeds.reset(out);
    let mut error = 0.0;
    let mut first = 0;
    for (f, frame) in frames.iter().enumerate() {
        let real: Vec<usize> = (0..frame.n_atoms()).filter(|&i| frame.types[i] >= 0).collect();
        let n = real.len() as f64;
        match (observation, frame.labels.energy, &frame.labels.force) {
            (Observation::Energy { prefactor }, Some(label), _) => {
                let (size, sign) = with_sign(prefactor * (label - out.energy[f]));
                error += size / n;
                seeds.dl_energy[f] += sign * prefactor / n;
            }
            (Observation::Force { prefactor, atoms }, _, Some(label)) if n > 0.0 => {
                let count = n * 3.0 * atoms.len() as f64;
                for place in atoms {
                    let i = real[Observation::nth(*place, real.len())];
                    for k in 0..3 {
                        let at = 3 * (first + i) + k;
                        let (size, sign) = with_sign(prefactor * (label[3 * i + k] - out.force[at]));
                        error += size / count;
                        seeds.dl_force[at] += sign * prefactor / count;
                    }
                }
            }
            _ => {}
        }
        first += frame.n_atoms();
    }
    Observed { error, frames: frames.len() as f64 }
}

fn with_sign(x: f64) -> (f64, f64) {
    (x.abs(), if x < 0.0 { -1.0 } else { 1.0 })
}
