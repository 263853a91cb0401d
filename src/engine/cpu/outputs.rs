//! Between the fitting nets of a model that predicts no energy and its outputs: the statistics of types, sums and means over atoms.
//!
//! There are no forces: the first pass ends here, and the second is a reverse pass without tangents (`fitting/outputs.rs`). Vectors and
//! tensors are made from the numbers of the net and the directions of A, between the two (`turned.rs`).

use super::batch::{Batch, Segment};
use super::fitting::Fitting;
use super::real::Real;
use super::{Prediction, Seeds};

/// One over the atoms of each frame that have an output, where the output of a frame is their mean.
fn shares<T: Real>(batch: &Batch<T>) -> Vec<f64> {
    let n = |f: usize| batch.frames.at(f).n_counted as f64;
    let is_mean = batch.model.output.is_intensive;
    (0..batch.frames.n_frames()).map(|f| if is_mean { 1.0 / n(f) } else { 1.0 }).collect()
}

/// Number of an atom in the batch, in file order, by its place in a segment.
fn atom_of<T: Real>(batch: &Batch<T>, s: &Segment, k: usize) -> usize {
    batch.layout.first_atom[s.frame] + batch.frames.at(s.frame).order[s.local + k] as usize
}

/// The outputs of atoms and of frames, always summed in the same order.
///
/// - turned  those that turn with the atoms, `[n_atoms, width]`
pub fn collect<T: Real>(out: &mut Prediction, batch: &Batch<T>, turned: &[f64], fitting: &Fitting<T>) {
    let (layout, width) = (batch.layout, batch.model.output.width);
    let shares = shares(batch);
    for (list, n) in [
        (&mut out.output, batch.frames.n_frames()),
        (&mut out.atom_output, layout.first_atom[batch.frames.n_frames()]),
    ] {
        list.clear();
        list.resize(n * width, 0.0);
    }
    for s in &layout.segments {
        let (model, scale) = (batch.model, batch.model.scale(s.center));
        let net = model.fitting_net(s.center);
        let of_frame = &mut out.output[s.frame * width..(s.frame + 1) * width];
        for k in 0..s.n {
            let output = |c: usize| match model.output.made.is_turned() {
                true => turned[(s.row + k) * width + c],
                false => fitting.outputs_of(net, batch.place(s) + k)[c].to_f64(),
            };
            let atom = atom_of(batch, s, k);
            let of_atom = &mut out.atom_output[atom * width..(atom + 1) * width];
            for c in 0..width {
                let x = output(c) * scale.map_or(1.0, |scale| scale[c]) + model.shift(s.center, c);
                of_atom[c] = x;
                of_frame[c] += x * shares[s.frame];
            }
        }
    }
}

/// dL/doutput of the fitting nets, or of what is made from it, from the derivatives by the outputs of atoms and of frames.
pub fn put_seeds<T: Real>(fitting: &mut Fitting<T>, batch: &Batch<T>, dl_turned: &mut [f64], seeds: &Seeds) {
    let width = batch.model.output.width;
    let shares = shares(batch);
    for s in &batch.layout.segments {
        let scale = batch.model.scale(s.center);
        let of_frame = &seeds.dl_output[s.frame * width..(s.frame + 1) * width];
        let dl = |k: usize, c: usize| {
            let of_atom = seeds.dl_atom_output[atom_of(batch, s, k) * width + c];
            (of_frame[c] * shares[s.frame] + of_atom) * scale.map_or(1.0, |scale| scale[c])
        };
        if batch.model.output.made.is_turned() {
            let rows = &mut dl_turned[s.row * width..(s.row + s.n) * width];
            rows.iter_mut().enumerate().for_each(|(n, x)| *x = dl(n / width, n % width));
        } else {
            let first = batch.place(s) * width;
            let rows = &mut fitting.dl_outputs(batch.model.fitting_net(s.center))[first..first + s.n * width];
            rows.iter_mut().enumerate().for_each(|(n, x)| *x = T::from_f64(dl(n / width, n % width)));
        }
    }
}
