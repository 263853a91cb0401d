//! Outputs that turn with the atoms: from the numbers x of a net and the rows of directions r of A, those of all descriptors one after
//! another.
//!
//! The vector `sum_m x_m r_m`, or the tensor `sum_mn S_mn r_m (x) r_n`: S is the symmetric part of x, or has x on its diagonal. x is
//! multiplied by the scale of the type before. Sums are in float64: they are short beside the nets.

use super::batch::{Batch, Segment};
use super::fitting::Fitting;
use super::pool::{Parts, Pool};
use super::real::Real;
use crate::model::dp::options::Made;

/// Outputs that turn, and what they are made from.
#[derive(Default)]
pub struct Turned {
    /// `[n_atoms, rows]` rows of directions, and dL/ddirection.
    directions: Vec<[f64; 3]>,
    dl_directions: Vec<[f64; 3]>,
    /// `[n_atoms, width]`
    pub outputs: Vec<f64>,
    pub dl_outputs: Vec<f64>,
}

impl Turned {
    /// Makes room for the atoms of a batch, where its outputs turn.
    pub fn resize<T: Real>(&mut self, batch: &Batch<T>) {
        let (n_atoms, output) = (batch.frames.iter().map(|f| f.n_rows()).sum::<usize>(), &batch.model.output);
        if !output.made.is_turned() {
            return;
        }
        for buffer in [&mut self.directions, &mut self.dl_directions] {
            buffer.resize(n_atoms * batch.inputs.directions.all, [0.0; 3]);
        }
        for buffer in [&mut self.outputs, &mut self.dl_outputs] {
            buffer.resize(n_atoms * output.width, 0.0);
        }
    }

    /// Takes the directions of one descriptor from its A `[n_atoms, C, M1]`.
    pub fn take<T: Real>(&mut self, batch: &Batch<T>, a: &[T]) {
        let (m1, rows) = (batch.model.n_embed(), batch.inputs.directions);
        for (a, all) in
            a.chunks_exact(batch.components() * m1).zip(self.directions.chunks_exact_mut(rows.all))
        {
            for (m, r) in all[rows.first..rows.first + m1].iter_mut().enumerate() {
                *r = [1, 2, 3].map(|c| a[c * m1 + m].to_f64());
            }
        }
    }

    /// Adds dL/dA of an atom by way of the directions of one descriptor.
    pub fn adjoint_add<T: Real>(&self, dl_a: &mut [T], batch: &Batch<T>, atom: usize) {
        let (m1, rows) = (batch.model.n_embed(), batch.inputs.directions);
        let own = &self.dl_directions[atom * rows.all + rows.first..][..m1];
        for (m, dl_r) in own.iter().enumerate() {
            for c in 0..3 {
                dl_a[(1 + c) * m1 + m] += T::from_f64(dl_r[c]);
            }
        }
    }
}

/// Where the rows of directions of a descriptor stand among those of all.
#[derive(Debug, Clone, Copy)]
pub struct Rows {
    pub first: usize,
    pub all: usize,
}

/// How the outputs of atoms of one type are made.
#[derive(Clone, Copy)]
struct Turn {
    made: Made,
    scale: f64,
    rows: usize,
}

impl Turn {
    fn of<T: Real>(batch: &Batch<T>, center: usize) -> Turn {
        let (model, rows) = (batch.model, batch.inputs.directions.all);
        Turn { made: model.output.made, scale: model.options.fitting.net_scale(center), rows }
    }

    /// Numbers of the net.
    fn net_width(self) -> usize {
        if self.made == Made::Matrix { self.rows * self.rows } else { self.rows }
    }

    /// `sum_n S_mn v_n` for each component of v, which `of` gives.
    fn row<T: Real>(self, x: &[T], m: usize, of: impl Fn(usize) -> [f64; 3]) -> [f64; 3] {
        if self.made != Made::Matrix {
            return of(m).map(|v| self.scale * x[m].to_f64() * v);
        }
        let mut sum = [0.0; 3];
        for n in 0..self.rows {
            let (s, v) = (0.5 * (x[m * self.rows + n] + x[n * self.rows + m]).to_f64(), of(n));
            (0..3).for_each(|c| sum[c] += s * v[c]);
        }
        sum.map(|x| self.scale * x)
    }

    /// The outputs of an atom.
    fn forward<T: Real>(self, out: &mut [f64], directions: &[[f64; 3]], x: &[T]) {
        out.fill(0.0);
        for (m, r) in directions.iter().enumerate() {
            if self.made == Made::Vector {
                let x = self.scale * x[m].to_f64();
                (0..3).for_each(|c| out[c] += x * r[c]);
                continue;
            }
            let row = self.row(x, m, |n| directions[n]);
            (0..9).for_each(|c| out[c] += r[c / 3] * row[c % 3]);
        }
    }

    /// dL/dx.
    fn adjoint<T: Real>(self, dl_x: &mut [T], directions: &[[f64; 3]], dl_out: &[f64]) {
        let dot = |x: [f64; 3], y: [f64; 3]| x[0] * y[0] + x[1] * y[1] + x[2] * y[2];
        for (m, &r) in directions.iter().enumerate() {
            match self.made {
                Made::Vector => {
                    dl_x[m] = T::from_f64(self.scale * dot(r, [dl_out[0], dl_out[1], dl_out[2]]));
                }
                Made::Matrix => {
                    let turned = symmetric_times(dl_out, r);
                    for (dl_x, &r) in dl_x[m * self.rows..(m + 1) * self.rows].iter_mut().zip(directions) {
                        *dl_x = T::from_f64(self.scale * dot(r, turned));
                    }
                }
                _ => dl_x[m] = T::from_f64(self.scale * dot(r, symmetric_times(dl_out, r))),
            }
        }
    }

    /// dL/ddirection.
    fn directions<T: Real>(self, dl_r: &mut [[f64; 3]], directions: &[[f64; 3]], x: &[T], dl_out: &[f64]) {
        for (m, dl_r) in dl_r.iter_mut().enumerate() {
            *dl_r = match self.made {
                Made::Vector => [0, 1, 2].map(|c| self.scale * x[m].to_f64() * dl_out[c]),
                _ => self.row(x, m, |n| symmetric_times(dl_out, directions[n])).map(|x| 2.0 * x),
            };
        }
    }
}

/// The symmetric part of a tensor times a vector.
fn symmetric_times(tensor: &[f64], v: [f64; 3]) -> [f64; 3] {
    [0, 1, 2].map(|i| (0..3).map(|j| 0.5 * (tensor[3 * i + j] + tensor[3 * j + i]) * v[j]).sum())
}

/// Makes the outputs of all atoms after the nets. `batch` is that of the first descriptor.
pub fn forward<T: Real>(pool: &Pool, batch: &Batch<T>, turned: &mut Turned, fitting: &Fitting<T>) {
    let (width, rows) = (batch.model.output.width, batch.inputs.directions.all);
    let (directions, outputs) = (&turned.directions, Parts::new(&mut turned.outputs));
    each_atom(pool, &batch.layout.blocks, |block, k| {
        let net = batch.model.fitting_net(block.center);
        let (atom, x) = (block.row + k, fitting.outputs_of(net, batch.place(block) + k));
        // SAFETY: every atom has its own row.
        let out = unsafe { outputs.part(atom * width, width) };
        Turn::of(batch, block.center).forward(out, &directions[atom * rows..(atom + 1) * rows], x);
    });
}

/// dL/dx of the nets and dL/ddirection from dL/doutput of all atoms. `batch` is that of the first descriptor.
pub fn adjoint<T: Real>(pool: &Pool, batch: &Batch<T>, turned: &mut Turned, fitting: &mut Fitting<T>) {
    let (width, rows) = (batch.model.output.width, batch.inputs.directions.all);
    let Turned { directions, dl_directions, dl_outputs, .. } = turned;
    let own = |atom: usize| {
        (&directions[atom * rows..(atom + 1) * rows], &dl_outputs[atom * width..(atom + 1) * width])
    };
    let dl_r = Parts::new(dl_directions);
    each_atom(pool, &batch.layout.blocks, |block, k| {
        let (atom, net) = (block.row + k, batch.model.fitting_net(block.center));
        let x = fitting.outputs_of(net, batch.place(block) + k);
        let (directions, dl_out) = own(atom);
        // SAFETY: every atom has its own row.
        let dl_r = unsafe { dl_r.part(atom * rows, rows) };
        Turn::of(batch, block.center).directions(dl_r, directions, x, dl_out);
    });
    let dl_x: Vec<Parts<T>> =
        (0..batch.model.fitting.len()).map(|net| Parts::new(fitting.dl_outputs(net))).collect();
    each_atom(pool, &batch.layout.blocks, |block, k| {
        let (turn, atom) = (Turn::of(batch, block.center), block.row + k);
        let (directions, dl_out) = own(atom);
        let at = (batch.place(block) + k) * turn.net_width();
        // SAFETY: every atom has its own row.
        let dl_x = unsafe { dl_x[batch.model.fitting_net(block.center)].part(at, turn.net_width()) };
        turn.adjoint(dl_x, directions, dl_out);
    });
}

fn each_atom(pool: &Pool, blocks: &[Segment], run: impl Fn(&Segment, usize) + Sync) {
    pool.run(blocks.len(), |b| (0..blocks[b].n).for_each(|k| run(&blocks[b], k)));
}
