//! A net on many rows in float64, value and gradient: for the few hundred nodes of the series.

use super::dense::{Accumulate, Strided, product};
use super::elementwise::{activate, add, multiply};
use super::scratch::scratch;
use crate::model::net::{LayerShape, NetShape, Shortcut};

/// What the forward pass remembers.
#[derive(Default)]
pub struct NetTrace {
    rows: usize,
    layers: Vec<LayerTrace>,
}

#[derive(Default)]
struct LayerTrace {
    /// `[rows, n_in]`
    x: Vec<f64>,
    /// `[rows, n_out]` act, act', act'' of the pre-activation.
    f: Vec<f64>,
    d: Vec<f64>,
    dd: Vec<f64>,
    y: Vec<f64>,
}

/// The net's value at each row of `x` `[rows, n_in]`.
pub fn forward<'a>(trace: &'a mut NetTrace, net: &NetShape, params: &[f64], x: &[f64]) -> &'a [f64] {
    trace.rows = x.len() / net.layers[0].n_in;
    trace.layers.resize_with(net.layers.len(), LayerTrace::default);
    for (k, shape) in net.layers.iter().enumerate() {
        let (before, rest) = trace.layers.split_at_mut(k);
        let layer = &mut rest[0];
        layer.x.clear();
        layer.x.extend_from_slice(if k == 0 { x } else { &before[k - 1].y });
        layer_forward(layer, shape, params, trace.rows);
    }
    &trace.layers[net.layers.len() - 1].y
}

fn layer_forward(layer: &mut LayerTrace, shape: &LayerShape, params: &[f64], rows: usize) {
    let n = shape.n_out;
    layer.f.clear();
    match shape.b_range() {
        Some(range) => (0..rows).for_each(|_| layer.f.extend_from_slice(&params[range.clone()])),
        None => layer.f.resize(rows * n, 0.0),
    }
    let a = Strided { data: &layer.x, row: shape.n_in, col: 1 };
    product(&mut layer.f, n, Accumulate::Add, a, &params[shape.w_range()], n, rows, n, shape.n_in);
    for buffer in [&mut layer.d, &mut layer.dd, &mut layer.y] {
        buffer.resize(rows * n, 0.0);
    }
    activate(&mut layer.f, &mut layer.d, &mut layer.dd, shape.activation);
    for r in 0..rows {
        let (y, f) = (&mut layer.y[r * n..(r + 1) * n], &layer.f[r * n..(r + 1) * n]);
        match shape.idt {
            Some(t) => multiply(y, &params[t..t + n], f),
            None => y.copy_from_slice(f),
        }
        if shape.shortcut != Shortcut::None {
            let x = &layer.x[r * shape.n_in..(r + 1) * shape.n_in];
            y.chunks_mut(shape.n_in).for_each(|y| add(y, x));
        }
    }
}

/// Adds dL/dparams given dL/dy `[rows, n_out]`.
///
/// `grad` begins with parameter `first` of the flat vector.
pub fn backward_add(
    grad: &mut [f64],
    first: usize,
    trace: &NetTrace,
    net: &NetShape,
    params: &[f64],
    dl_y: &[f64],
) {
    let widest = net.layers.iter().map(|shape| shape.n_in.max(shape.n_out)).max().unwrap_or(0);
    let n = trace.rows * widest;
    scratch(2 * n, |buffers: &mut [f64]| {
        let (mut dl_y_now, mut dl_x) = buffers.split_at_mut(n);
        dl_y_now[..dl_y.len()].copy_from_slice(dl_y);
        for (layer, shape) in trace.layers.iter().zip(&net.layers).rev() {
            let (n_in, n_out) = (trace.rows * shape.n_in, trace.rows * shape.n_out);
            layer_backward(
                &mut dl_x[..n_in],
                grad,
                first,
                layer,
                shape,
                params,
                trace.rows,
                &dl_y_now[..n_out],
            );
            std::mem::swap(&mut dl_y_now, &mut dl_x);
        }
    });
}

/// - dl_x  out, overwritten  `[rows, n_in]`
#[allow(clippy::too_many_arguments)]
fn layer_backward(
    dl_x: &mut [f64],
    grad: &mut [f64],
    first: usize,
    layer: &LayerTrace,
    shape: &LayerShape,
    params: &[f64],
    rows: usize,
    dl_y: &[f64],
) {
    let (n_in, n) = (shape.n_in, shape.n_out);
    scratch(rows * n + n_in * n, |buffers: &mut [f64]| {
        let (dl_z, w_t) = buffers.split_at_mut(rows * n);
        for r in 0..rows {
            for o in 0..n {
                let p = r * n + o;
                let scale = shape.idt.map_or(1.0, |t| params[t + o]);
                dl_z[p] = dl_y[p] * scale * layer.d[p];
                if let Some(t) = shape.idt {
                    grad[t + o - first] += dl_y[p] * layer.f[p];
                }
                if let Some(b) = shape.b {
                    grad[b + o - first] += dl_z[p];
                }
            }
        }
        let x_t = Strided { data: &layer.x, row: 1, col: n_in };
        let w = shape.w_range();
        let grad_w = &mut grad[w.start - first..w.end - first];
        product(grad_w, n, Accumulate::Add, x_t, dl_z, n, n_in, n, rows);
        super::dense::transpose(w_t, &params[w], n_in, n);
        let a = Strided { data: dl_z, row: n, col: 1 };
        product(dl_x, n_in, Accumulate::Overwrite, a, w_t, n_in, rows, n_in, n);
    });
    if shape.shortcut != Shortcut::None {
        for (dl_x, dl_y) in dl_x.chunks_exact_mut(n_in).zip(dl_y.chunks_exact(n)) {
            dl_y.chunks(n_in).for_each(|dl_y| add(dl_x, dl_y));
        }
    }
}
