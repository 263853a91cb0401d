//! The parameters of the plain model that predicts what a model with embedded types does, and the gradient the way back.
//!
//! Weights are the same in both. A bias of the first layer is `b + W^T t` there, with the rows of W that t, the embedded type, is
//! multiplied by; so `dL/dW = t (x) dL/db` and `dL/dt = sum W dL/db`, which goes on into the net that embeds types. Where types scale the
//! numbers of a net, what a net of types gives is the diagonal of a layer there.

use super::cpu::elementwise::{add, axpy, dot};
use super::cpu::jets::JetNet;
use super::cpu::net::{self, NetTrace};
use super::cpu::pool::{Parts, Pool};
use crate::model::dp::Dp;
use crate::model::dp::type_embedding::{EmbeddedTypes, Scales};
use crate::model::net::LayerShape;
use std::borrow::Cow;
use std::sync::Arc;

/// The plain parameters for the trained ones of the moment.
pub struct PlainParams {
    own: Arc<EmbeddedTypes>,
    trace: NetTrace,
    /// `[n_types, width]`
    embedded: Vec<f64>,
    /// The nets of [`EmbeddedTypes::scales`].
    scales: Vec<JetNet<f64>>,
    params: Vec<f64>,
    grad: Vec<f64>,
}

/// What engines take for these trained parameters of a model.
pub fn plain<'a>(model: &Dp, trained: &'a [f64]) -> Cow<'a, [f64]> {
    match PlainParams::of(model) {
        None => Cow::Borrowed(trained),
        Some(mut plain) => {
            plain.gather(&Pool::serial(), trained);
            Cow::Owned(plain.params)
        }
    }
}

impl PlainParams {
    /// Of a model with embedded types; `None` of any other.
    pub fn of(model: &Dp) -> Option<PlainParams> {
        let own = model.embedded.clone()?;
        let (params, grad) = (vec![0.0; own.n_plain], Vec::new());
        let scales = own.scales.iter().map(|_| JetNet::default()).collect();
        Some(PlainParams { own, trace: NetTrace::default(), embedded: Vec::new(), scales, params, grad })
    }

    /// The plain parameters as [`PlainParams::gather`] left them.
    pub fn params(&self) -> &[f64] {
        &self.params
    }

    /// The plain parameters, and room for the gradient by them.
    pub fn params_and_grad(&mut self) -> (&[f64], &mut [f64]) {
        self.grad.resize(self.params.len(), 0.0);
        (&self.params, &mut self.grad)
    }

    /// The plain parameters for these.
    pub fn gather(&mut self, pool: &Pool, trained: &[f64]) -> &[f64] {
        let own = &*self.own;
        assert_eq!(trained.len(), own.table.len(), "the parameters that are trained");
        self.embedded.clear();
        let embedded = net::forward(&mut self.trace, &own.types.1, trained, &own.inputs);
        self.embedded.extend_from_slice(embedded);
        let params = Parts::new(&mut self.params);
        pool.run(own.blocks.len(), |k| {
            let block = &own.blocks[k];
            for &place in &block.places {
                // SAFETY: the blocks of a plain model do not overlap.
                unsafe { params.part(place, block.trained.len()) }
                    .copy_from_slice(&trained[block.trained.clone()]);
            }
        });
        let width = own.width();
        for bias in &own.biases {
            let bias_now = &mut self.params[bias.plain.clone()];
            let n = bias_now.len();
            for &(first, t) in &bias.rows {
                let rows = trained[first..first + width * n].chunks_exact(n);
                for (row, t) in rows.zip(&self.embedded[t * width..]) {
                    axpy(bias_now, *t, row);
                }
            }
        }
        for (Scales { net, layers }, values) in own.scales.iter().zip(&mut self.scales) {
            let of = |t: usize| &self.embedded[t * width..(t + 1) * width];
            let rows: Vec<f64> =
                layers.iter().flat_map(|(types, _)| types.iter().flat_map(|&t| of(t))).copied().collect();
            values.forward_rows(net, trained, &rows, |change| change.resize(rows.len(), 0.0));
            for ((_, layer), values) in layers.iter().zip(values.output().0.chunks_exact(net.n_out())) {
                for (k, value) in values.iter().enumerate() {
                    self.params[layer.w + k * (layer.n_out + 1)] = *value;
                }
                if let Some(steps) = layer.idt_range() {
                    self.params[steps].fill(1.0);
                }
            }
        }
        for &table in &own.tables {
            self.params[table..table + self.embedded.len()].copy_from_slice(&self.embedded);
        }
        &self.params
    }

    /// Overwrites `grad` with the gradient by the trained parameters, given that by the plain ones
    /// ([`PlainParams::params_and_grad`]). Must follow [`PlainParams::gather`] of the same parameters.
    pub fn scatter(&self, pool: &Pool, grad: &mut [f64], trained: &[f64]) {
        let (own, plain) = (&*self.own, &self.grad[..]);
        own.others.iter().for_each(|range| grad[range.clone()].fill(0.0));
        let parts = Parts::new(grad);
        pool.run(own.blocks.len(), |k| {
            let block = &own.blocks[k];
            // SAFETY: the blocks of the trained parameters do not overlap.
            let sum = unsafe { parts.part(block.trained.start, block.trained.len()) };
            for (k, &place) in block.places.iter().enumerate() {
                let from = &plain[place..place + sum.len()];
                if k == 0 { sum.copy_from_slice(from) } else { add(sum, from) }
            }
        });
        let width = own.width();
        let mut dl_t = vec![0.0; self.embedded.len()];
        for bias in &own.biases {
            let dl_b = &plain[bias.plain.clone()];
            let n = dl_b.len();
            for &(first, t) in &bias.rows {
                for k in 0..width {
                    let row = first + k * n..first + (k + 1) * n;
                    axpy(&mut grad[row.clone()], self.embedded[t * width + k], dl_b);
                    dl_t[t * width + k] += dot(&trained[row], dl_b);
                }
            }
        }
        for (Scales { net, layers }, values) in own.scales.iter().zip(&self.scales) {
            let diagonal = |layer: &LayerShape| {
                let (first, step) = (layer.w, layer.n_out + 1);
                (0..layer.n_out).map(move |k| plain[first + k * step])
            };
            let dl: Vec<f64> = layers.iter().flat_map(|(_, layer)| diagonal(layer)).collect();
            let still = vec![0.0; dl.len()];
            let dl_rows = values.backward_add(grad, 0, net, trained, dl, still);
            let types = layers.iter().flat_map(|(types, _)| types);
            for (&t, dl) in types.zip(dl_rows.chunks_exact(width)) {
                add(&mut dl_t[t * width..(t + 1) * width], dl);
            }
        }
        for &table in &own.tables {
            add(&mut dl_t, &plain[table..table + self.embedded.len()]);
        }
        net::backward_add(grad, 0, &self.trace, &own.types.1, trained, &dl_t);
    }
}
