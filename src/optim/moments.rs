//! First and second moments of the gradient: the state of every Adam.

use crate::checkpoint::{Array, Arrays, f64s_of};
use crate::comm::Communicator;
use crate::comm::vectors::gather_slices;
use crate::engine::cpu::pool::Parts;
use crate::{Result, err};
use std::ops::Range;

/// What they are called in a checkpoint.
const NAMES: [&str; 2] = ["first_moment", "second_moment"];

/// The moments of all parameters. Where ranks own slices, each keeps those of its slice up to date.
#[derive(Debug, Clone)]
pub enum Moments {
    Double([Vec<f64>; 2]),
    Single([Vec<f32>; 2]),
}

/// The same while they are updated.
pub enum MomentParts {
    Double([Parts<f64>; 2]),
    Single([Parts<f32>; 2]),
}

impl Moments {
    /// Those of an optimiser that has seen no gradient yet.
    ///
    /// Where gradients have the precision of float32, so have their moments: half the memory goes through the caches in an
    /// update. The parameters stay float64.
    pub fn zeros(n: usize, single: bool) -> Self {
        match single {
            true => Moments::Single([vec![0.0; n], vec![0.0; n]]),
            false => Moments::Double([vec![0.0; n], vec![0.0; n]]),
        }
    }

    pub fn len(&self) -> usize {
        match self {
            Moments::Double([first, _]) => first.len(),
            Moments::Single([first, _]) => first.len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn parts(&mut self) -> MomentParts {
        match self {
            Moments::Double(moments) => MomentParts::Double(moments.each_mut().map(|x| Parts::new(x))),
            Moments::Single(moments) => MomentParts::Single(moments.each_mut().map(|x| Parts::new(x))),
        }
    }

    /// For a checkpoint; `spare` is memory that may be used for it.
    pub fn save(&self, spare: &mut Vec<Vec<f64>>) -> [Vec<f64>; 2] {
        [0, 1].map(|k| match self {
            Moments::Double(moments) => copied(spare, &moments[k]),
            Moments::Single(moments) => {
                let mut out = copied(spare, &[]);
                out.extend(moments[k].iter().map(|&x| f64::from(x)));
                out
            }
        })
    }

    /// As [`Moments::save`], where each rank has kept those of its slice.
    pub fn save_slices(
        &self,
        spare: &mut Vec<Vec<f64>>,
        ranks: &mut dyn Communicator,
    ) -> Result<[Vec<f64>; 2]> {
        let n = self.len();
        // One number follows the parameters in an update: see `train::step`.
        let slice = ranks.slice(n + 1);
        let mut saved = self.save(spare);
        for moment in &mut saved {
            gather_slices(ranks, moment, slice.start.min(n)..slice.end.min(n))?;
        }
        Ok(saved)
    }

    /// Continues with moments that were saved.
    pub fn restore(&mut self, arrays: &Arrays) -> Result<()> {
        let saved = find(arrays, self.len())?;
        match self {
            Moments::Double(moments) => (0..2).for_each(|k| moments[k].copy_from_slice(saved[k])),
            Moments::Single(moments) => {
                for (out, from) in moments.iter_mut().zip(saved) {
                    out.iter_mut().zip(from).for_each(|(out, &x)| *out = x as f32);
                }
            }
        }
        Ok(())
    }
}

/// Part of a state for a checkpoint; `spare` is memory that may be used for it.
pub fn copied(spare: &mut Vec<Vec<f64>>, x: &[f64]) -> Vec<f64> {
    let mut out = spare.pop().unwrap_or_default();
    out.clear();
    out.extend_from_slice(x);
    out
}

/// Adam for some parameters of a vector, as optimisers of matrices have it for everything else.
pub struct VectorRule {
    pub betas: [f64; 2],
    pub epsilon: f64,
    /// The learning rate over 1 - beta1^t.
    pub rate: f64,
    /// 1 / (1 - beta2^t)
    pub correction: f64,
}

impl VectorRule {
    /// One update, by gradients that are `factor` times those.
    pub fn update(
        &self,
        params: &mut [f64],
        grad: &[f64],
        factor: f64,
        [first, second]: [&mut [f64]; 2],
        ranges: &[Range<usize>],
    ) {
        let [beta1, beta2] = self.betas;
        for k in ranges.iter().flat_map(|range| range.clone()) {
            let g = factor * grad[k];
            first[k] += (1.0 - beta1) * (g - first[k]);
            second[k] += (1.0 - beta2) * (g * g - second[k]);
            params[k] -= self.rate * first[k] / ((second[k] * self.correction).sqrt() + self.epsilon);
        }
    }
}

/// Moments under their names, wherever they were kept.
pub fn named(moments: [Vec<f64>; 2]) -> Arrays {
    NAMES.into_iter().zip(moments).map(|(name, x)| (name.to_string(), Array::F64(x))).collect()
}

/// The moments of `n_params` parameters among the arrays of a checkpoint.
pub fn find(arrays: &Arrays, n_params: usize) -> Result<[&[f64]; 2]> {
    let moment = |name: &str| match f64s_of(arrays, name)? {
        x if x.len() == n_params => Ok(x),
        x => Err(err!("found {} numbers in {name} for {n_params} parameters", x.len())
            .help("the checkpoint is of another network")),
    };
    Ok([moment(NAMES[0])?, moment(NAMES[1])?])
}
