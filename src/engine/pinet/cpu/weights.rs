//! Parameters as the kernels want them, and gradients back to where they belong.

use super::plan::{Layer, Op, Plan, Segment};
use crate::engine::cpu::dense::transpose;
use crate::engine::cpu::real::Real;

impl Segment {
    /// The layers of the segment.
    pub fn layers(&self) -> impl Iterator<Item = &Layer> {
        self.ops.iter().filter_map(|op| match op {
            Op::Dense { layer, .. } | Op::Radial { layer, .. } => Some(layer),
            _ => None,
        })
    }
}

/// Where column `k` of the packed layer stands in the network's: radial functions are slowest here, fastest there.
pub fn column(layer: &Layer, k: usize) -> usize {
    let channels = layer.n_out / layer.radial;
    k % channels * layer.radial + k / channels
}

/// Casts, reorders and transposes the parameters of all layers.
pub fn pack<T: Real>(packed: &mut Vec<T>, plan: &Plan, params: &[f64]) {
    packed.resize(plan.packed, T::ZERO);
    for layer in plan.segments.iter().flat_map(|segment| segment.layers()) {
        let (n_in, n_out) = (layer.n_in, layer.n_out);
        let (w, rest) = packed[layer.packed[0]..].split_at_mut(n_in * n_out);
        let (w_transposed, b) = rest.split_at_mut(n_in * n_out);
        let given = &params[layer.w..layer.w + n_in * n_out];
        for (row, given) in w.chunks_exact_mut(n_out).zip(given.chunks_exact(n_out)) {
            for (k, x) in row.iter_mut().enumerate() {
                *x = T::from_f64(given[column(layer, k)]);
            }
        }
        transpose(w_transposed, w, n_in, n_out);
        if let Some(from) = layer.b {
            for (k, x) in b[..n_out].iter_mut().enumerate() {
                *x = T::from_f64(params[from + column(layer, k)]);
            }
        }
    }
}

/// Adds a layer's gradient to the flat vector.
pub fn deliver_add(grad: &mut [f64], layer: &Layer, slot: &[f64]) {
    let (n_in, n_out) = (layer.n_in, layer.n_out);
    let add = |grad: &mut [f64], row: &[f64]| match layer.radial {
        1 => grad.iter_mut().zip(row).for_each(|(grad, x)| *grad += x),
        _ => row.iter().enumerate().for_each(|(k, x)| grad[column(layer, k)] += x),
    };
    let rows = slot[layer.slot[0]..][..n_in * n_out].chunks_exact(n_out);
    grad[layer.w..][..n_in * n_out].chunks_exact_mut(n_out).zip(rows).for_each(|(grad, row)| add(grad, row));
    if let Some(b) = layer.b {
        add(&mut grad[b..b + n_out], &slot[layer.slot[1]..][..n_out]);
    }
}
