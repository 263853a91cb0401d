//! The first layer of the fitting nets with the mirrored part of the descriptor only once: see `engine/cpu/fitting/fold.rs`.
//!
//! D begins with a symmetric square `[M2, M2]`. Its inputs are rows M2 .. M1 of D, then the lower half of the square, then what comes
//! beside the descriptor; the weights of mirrored inputs are added up, once.

use super::super::network::{Network, padded};
use crate::Result;
use crate::gpu::{Buffer, DevicePtr, Real};
use crate::model::dp::Dp;
use crate::model::net::Shortcut;

/// Inputs of the first layer, and its weights.
pub struct Fold {
    /// Inputs of a row.
    pub n_in: usize,
    /// `[n_types][n_in, padded(n_out)]`; `None` where inputs are as they are, and so are weights.
    weights: Option<Vec<Buffer<Real>>>,
}

impl Fold {
    pub fn new(network: &Network, params: &[f64]) -> Result<Fold> {
        let model = &network.model;
        let first = |t: usize| &model.fitting[t].layers[0];
        // A shortcut brings the inputs themselves to the next layer; without directions there is no square.
        let has_square = model.descriptor().form().square() > 0;
        if !has_square || (0..model.n_types()).any(|t| first(t).shortcut != Shortcut::None) {
            return Ok(Fold { n_in: first(0).n_in, weights: None });
        }
        let rows = folded_rows(model);
        let weights = (0..model.n_types()).map(|t| {
            let (own, n_out) = (&params[first(t).w_range()], first(t).n_out);
            let ld = padded(n_out);
            let mut folded = vec![0.0; rows.len() * ld];
            for (to, from) in folded.chunks_exact_mut(ld).zip(&rows) {
                for row in from.iter().flatten() {
                    to.iter_mut().zip(&own[row * n_out..(row + 1) * n_out]).for_each(|(to, w)| *to += w);
                }
            }
            Buffer::reals(&network.device, &folded, "the weights")
        });
        Ok(Fold { n_in: rows.len(), weights: Some(weights.collect::<Result<_>>()?) })
    }

    pub fn is_folded(&self) -> bool {
        self.weights.is_some()
    }

    /// Weights of the first layer of a type, where they are others than those of the network.
    pub fn weights(&self, t: usize) -> Option<DevicePtr> {
        self.weights.as_ref().map(|weights| weights[t].address())
    }
}

/// The rows of the weights that each input stands for.
fn folded_rows(model: &Dp) -> Vec<[Option<usize>; 2]> {
    let (m1, m2) = (model.n_embed(), model.descriptor().form().square());
    let below = (m2 * m2..m1 * m2).map(|row| [Some(row), None]);
    let square = (0..m2).flat_map(|m| (0..=m).map(move |k| (m, k)));
    let square = square.map(|(m, k)| [Some(m * m2 + k), (m != k).then_some(k * m2 + m)]);
    let extra = (0..model.n_extra()).map(|k| [Some(m1 * m2 + k), None]);
    below.chain(square).chain(extra).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::reference::tests::{model, options};

    #[test]
    fn every_weight_is_used_once() {
        let model = model(options());
        let rows = folded_rows(&model);
        let n_in = model.fitting[0].layers[0].n_in;
        let mut seen: Vec<usize> = rows.iter().flatten().flatten().copied().collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..n_in).collect::<Vec<_>>());
        assert_eq!(rows.len(), n_in - 3, "a square of three has three mirrored numbers");
    }
}
