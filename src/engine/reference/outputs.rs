//! What a fitting net other than `ener` says: numbers of each atom, and their sum or mean for each frame.
//!
//! `out_i = scale e_i + shift` with the statistics of the type, e the outputs of the net, or what is made from them (`turned.rs`).

use super::env::Row;
use super::{AtomView, Geometries, ReferenceEngine, atom};
use crate::engine::{Prediction, Seeds};

impl ReferenceEngine {
    /// The atoms of a frame that have an output.
    fn views(&self, geometries: &Geometries) -> Vec<(usize, AtomView)> {
        let n = geometries.0[0].n_atoms();
        (0..n).filter_map(|i| Some((i, self.neighborhood(geometries, i)?))).collect()
    }

    /// What the output of an atom is divided by in that of its frame.
    fn share(&self, geometries: &Geometries) -> f64 {
        if self.model.output.is_intensive { geometries.0[0].n_counted as f64 } else { 1.0 }
    }

    pub(super) fn outputs(&self, out: &mut Prediction, params: &[f64], batch: &[&Geometries]) {
        let width = self.model.output.width;
        for geometry in batch {
            let views = self.views(geometry);
            let mut of_frame = vec![0.0; width];
            let mut of_atoms = vec![0.0; geometry.0[0].n_atoms() * width];
            for (i, view) in &views {
                let scale = self.model.scale(view.center);
                let outputs = atom::outputs(&self.parts, params, view);
                for k in 0..width {
                    let x =
                        scale.map_or(1.0, |scale| scale[k]) * outputs[k] + self.model.shift(view.center, k);
                    of_atoms[i * width + k] = x;
                    of_frame[k] += x / self.share(geometry);
                }
            }
            out.output.extend(of_frame);
            out.atom_output.extend(of_atoms);
        }
    }

    /// Adds dL/dparams.
    pub(super) fn outputs_backward(
        &self,
        grad: &mut [f64],
        params: &[f64],
        batch: &[&Geometries],
        seeds: &Seeds,
    ) {
        let width = self.model.output.width;
        let mut first_atom = 0;
        for (f, geometry) in batch.iter().enumerate() {
            let views = self.views(geometry);
            for (i, view) in &views {
                let scale = self.model.scale(view.center);
                let dl_e = |k: usize| {
                    let of_frame = seeds.dl_output[f * width + k] / self.share(geometry);
                    let of_atom = seeds.dl_atom_output[(first_atom + i) * width + k];
                    scale.map_or(1.0, |scale| scale[k]) * (of_frame + of_atom)
                };
                let dl_e: Vec<f64> = (0..width).map(dl_e).collect();
                // Nothing moves.
                let row_dot: Vec<_> =
                    view.entries.iter().map(|entries| vec![Row::default(); entries.len()]).collect();
                let de_e = vec![0.0; self.model.fitting[self.model.fitting_net(view.center)].n_out()];
                atom::second_pass(grad, &self.parts, params, view, &row_dot, (&dl_e, &de_e));
            }
            first_atom += geometry.0[0].n_atoms();
        }
    }
}
