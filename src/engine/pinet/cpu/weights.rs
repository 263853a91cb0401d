//! Parameters as the kernels want them, and gradients back to where they belong.

use super::plan::{Layer, Op, Plan, Segment};
use crate::engine::cpu::dense::transpose;
use crate::engine::cpu::pool::{Parts, Pool};
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
pub fn pack<T: Real>(packed: &mut Vec<T>, plan: &Plan, params: &[f64], pool: &Pool) {
    packed.resize(plan.packed, T::ZERO);
    let parts = Parts::new(packed);
    pool.run(plan.segments.len(), |s| {
        for layer in plan.segments[s].layers() {
            // SAFETY: layers have places of their own.
            let packed = unsafe { parts.part(layer.packed[0], 2 * layer.n_in * layer.n_out + layer.n_out) };
            pack_layer(packed, layer, params);
        }
    });
}

fn pack_layer<T: Real>(packed: &mut [T], layer: &Layer, params: &[f64]) {
    let (n_in, n_out) = (layer.n_in, layer.n_out);
    let (w, rest) = packed.split_at_mut(n_in * n_out);
    let (w_transposed, b) = rest.split_at_mut(n_in * n_out);
    let copy = |to: &mut [T], from: &[f64]| match layer.radial {
        1 => to.iter_mut().zip(from).for_each(|(x, y)| *x = T::from_f64(*y)),
        _ => to.iter_mut().enumerate().for_each(|(k, x)| *x = T::from_f64(from[column(layer, k)])),
    };
    let given = params[layer.w..layer.w + n_in * n_out].chunks_exact(n_out);
    w.chunks_exact_mut(n_out).zip(given).for_each(|(row, given)| copy(row, given));
    transpose(w_transposed, w, n_in, n_out);
    if let Some(from) = layer.b {
        copy(b, &params[from..from + n_out]);
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
