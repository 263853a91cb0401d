//! Outputs that turn with the atoms: from the numbers x of a net and the rows of directions r of A, `[M1, 3]`.
//!
//! The vector `sum_m x_m r_m`, or the tensor `sum_mn S_mn r_m (x) r_n`: S is the symmetric part of x, or has x on its diagonal. x is
//! multiplied by the scale of the type before. Sums are in float64: they are short beside the nets.

use super::batch::{Batch, Segment};
use super::blocks::Buffers;
use super::fitting::Fitting;
use super::pool::{Parts, Pool};
use super::real::Real;
use crate::model::dp::options::Made;

/// How the outputs of atoms of one type are made.
#[derive(Clone, Copy)]
pub struct Turn {
    made: Made,
    scale: f64,
    m1: usize,
}

impl Turn {
    /// `None` where outputs are the numbers of the net.
    pub fn of<T: Real>(batch: &Batch<T>, center: usize) -> Option<Turn> {
        let (model, made) = (batch.model, batch.model.output.made);
        let scale = model.options.fitting.net_scale(center);
        made.is_turned().then(|| Turn { made, scale, m1: model.n_embed() })
    }

    /// Numbers of the net.
    fn net_width(self) -> usize {
        if self.made == Made::Matrix { self.m1 * self.m1 } else { self.m1 }
    }

    fn direction<T: Real>(self, a: &[T], m: usize) -> [f64; 3] {
        [1, 2, 3].map(|c| a[c * self.m1 + m].to_f64())
    }

    /// `sum_n S_mn v_n` for each component of v, which `of` gives.
    fn row<T: Real>(self, x: &[T], m: usize, of: impl Fn(usize) -> [f64; 3]) -> [f64; 3] {
        if self.made != Made::Matrix {
            return of(m).map(|v| self.scale * x[m].to_f64() * v);
        }
        let mut sum = [0.0; 3];
        for n in 0..self.m1 {
            let (s, v) = (0.5 * (x[m * self.m1 + n] + x[n * self.m1 + m]).to_f64(), of(n));
            (0..3).for_each(|c| sum[c] += s * v[c]);
        }
        sum.map(|x| self.scale * x)
    }

    /// The outputs of an atom.
    fn forward<T: Real>(self, out: &mut [f64], a: &[T], x: &[T]) {
        out.fill(0.0);
        for m in 0..self.m1 {
            let r = self.direction(a, m);
            if self.made == Made::Vector {
                let x = self.scale * x[m].to_f64();
                (0..3).for_each(|c| out[c] += x * r[c]);
                continue;
            }
            let row = self.row(x, m, |n| self.direction(a, n));
            (0..9).for_each(|c| out[c] += r[c / 3] * row[c % 3]);
        }
    }

    /// dL/dx.
    fn adjoint<T: Real>(self, dl_x: &mut [T], a: &[T], dl_out: &[f64]) {
        let dot = |x: [f64; 3], y: [f64; 3]| x[0] * y[0] + x[1] * y[1] + x[2] * y[2];
        for m in 0..self.m1 {
            let r = self.direction(a, m);
            match self.made {
                Made::Vector => {
                    dl_x[m] = T::from_f64(self.scale * dot(r, [dl_out[0], dl_out[1], dl_out[2]]));
                }
                Made::Matrix => {
                    let turned = symmetric_times(dl_out, r);
                    for (n, dl_x) in dl_x[m * self.m1..(m + 1) * self.m1].iter_mut().enumerate() {
                        *dl_x = T::from_f64(self.scale * dot(self.direction(a, n), turned));
                    }
                }
                _ => dl_x[m] = T::from_f64(self.scale * dot(r, symmetric_times(dl_out, r))),
            }
        }
    }

    /// Adds dL/dA by way of the directions.
    pub fn directions_add<T: Real>(self, dl_a: &mut [T], a: &[T], x: &[T], dl_out: &[f64]) {
        for m in 0..self.m1 {
            let dl_r = match self.made {
                Made::Vector => [0, 1, 2].map(|c| self.scale * x[m].to_f64() * dl_out[c]),
                _ => self.row(x, m, |n| symmetric_times(dl_out, self.direction(a, n))).map(|x| 2.0 * x),
            };
            for c in 0..3 {
                let dl_a = &mut dl_a[(1 + c) * self.m1 + m];
                *dl_a += T::from_f64(dl_r[c]);
            }
        }
    }
}

/// The symmetric part of a tensor times a vector.
fn symmetric_times(tensor: &[f64], v: [f64; 3]) -> [f64; 3] {
    [0, 1, 2].map(|i| (0..3).map(|j| 0.5 * (tensor[3 * i + j] + tensor[3 * j + i]) * v[j]).sum())
}

/// Makes the outputs of all atoms after the nets, where they turn.
pub fn forward<T: Real>(pool: &Pool, batch: &Batch<T>, buffers: &mut Buffers<T>, fitting: &Fitting<T>) {
    let (layout, width) = (batch.layout, batch.model.output.width);
    let (stride, a) = (batch.components() * batch.model.n_embed(), &buffers.a);
    let turned = Parts::new(&mut buffers.turned);
    each_atom(pool, &layout.blocks, |block, k| {
        let Some(turn) = Turn::of(batch, block.center) else { return };
        let net = batch.model.fitting_net(block.center);
        let (row, x) = (block.row + k, fitting.outputs_of(net, batch.place(block) + k));
        // SAFETY: every atom has its own row.
        let out = unsafe { turned.part(row * width, width) };
        turn.forward(out, &a[row * stride..(row + 1) * stride], x);
    });
}

/// dL/dx of the nets from dL/doutput of all atoms, where they turn.
pub fn adjoint<T: Real>(pool: &Pool, batch: &Batch<T>, buffers: &mut Buffers<T>, fitting: &mut Fitting<T>) {
    let (layout, width) = (batch.layout, batch.model.output.width);
    let stride = batch.components() * batch.model.n_embed();
    buffers.inputs.clear();
    buffers.inputs.extend((0..batch.model.fitting.len()).map(|net| Parts::new(fitting.dl_outputs(net))));
    let Buffers { a, dl_turned, inputs: dl_x, .. } = &*buffers;
    each_atom(pool, &layout.blocks, |block, k| {
        let Some(turn) = Turn::of(batch, block.center) else { return };
        let (row, at) = (block.row + k, (batch.place(block) + k) * turn.net_width());
        // SAFETY: every atom has its own row.
        let dl_x = unsafe { dl_x[batch.model.fitting_net(block.center)].part(at, turn.net_width()) };
        turn.adjoint(dl_x, &a[row * stride..(row + 1) * stride], &dl_turned[row * width..(row + 1) * width]);
    });
}

fn each_atom(pool: &Pool, blocks: &[Segment], run: impl Fn(&Segment, usize) + Sync) {
    pool.run(blocks.len(), |b| (0..blocks[b].n).for_each(|k| run(&blocks[b], k)));
}
