//! The embedding by the net itself, pair by pair: where the series does not hold, or is not wanted.
//!
//! G depends on s alone, so a pair needs G(s), G'(s) and what G is multiplied by in A: its env ([`Form`]). The second pass differentiates both by the parameters.
//! Everything is float64: this path is for correctness, the series for speed.

use super::angles;
use super::frame::{CpuFrame, empty_slot};
use super::jets::JetNet;
use super::real::Real;
use crate::engine::reference::env;
use crate::model::dp::Dp;
use crate::model::dp::options::Form;
use crate::model::net::NetShape;

/// The neighbours of one atom of one type, with the slots in which nobody is seen as last rows.
#[derive(Default)]
struct Rows {
    /// `[n]` the components that there are, then zeros.
    env: Vec<[f64; 4]>,
    s: Vec<f64>,
    weight: Vec<f64>,
}

impl Rows {
    /// Adds slots in which nobody is seen.
    fn push_still(&mut self, model: &Dp, s: f64, count: u32) {
        if count > 0 {
            self.env.push([model.descriptor().form().first(s), 0.0, 0.0, 0.0]);
            self.s.push(s);
            self.weight.push(f64::from(count));
        }
    }
}

/// How s and env of a neighbour change.
#[derive(Clone, Copy, Default)]
pub(super) struct Dot {
    pub s: f64,
    pub env: [f64; 4],
}

/// A distance vector and the normalised functions of its length, as `pairs.rs` has them.
pub(super) struct Pair {
    d: [f64; 3],
    s: f64,
    s_slope: f64,
    q: f64,
    q_slope: f64,
}

impl Pair {
    pub fn new<T: Real>(model: &Dp, frame: &CpuFrame<T>, center: usize, p: usize) -> Self {
        let d = [0, 1, 2].map(|k| frame.d[k][p].to_f64());
        let r = (d[0] * d[0] + d[1] * d[1] + d[2] * d[2]).sqrt();
        let (davg, dstd) = (&model.stats.davg[center], &model.stats.dstd[center]);
        let [s, s_r, q, q_r] = env::radial(model.descriptor(), r);
        Pair {
            d,
            s: (s - davg[0]) / dstd[0],
            s_slope: s_r / (r * dstd[0]),
            q: q / dstd[1],
            q_slope: q_r / (r * dstd[1]),
        }
    }

    /// x_j - x_i, A.
    pub fn vector(&self) -> [f64; 3] {
        self.d
    }

    pub fn env(&self, form: Form) -> [f64; 4] {
        match form {
            Form::Distances { .. } => [1.0, 0.0, 0.0, 0.0],
            _ => [self.s, self.q * self.d[0], self.q * self.d[1], self.q * self.d[2]],
        }
    }

    /// The change of s and env along `v`.
    pub fn dot(&self, form: Form, v: [f64; 3]) -> Dot {
        let Pair { d, s_slope, q, q_slope, .. } = self;
        let rr = d[0] * v[0] + d[1] * v[1] + d[2] * v[2];
        let s = s_slope * rr;
        let turn = q_slope * rr;
        let env = match form {
            Form::Distances { .. } => [0.0; 4],
            _ => [s, q * v[0] + turn * d[0], q * v[1] + turn * d[1], q * v[2] + turn * d[2]],
        };
        Dot { s, env }
    }

    /// dE/dd from dE/ds, in which that by way of the first component is where it is s, and dE/denv.
    pub fn force(&self, form: Form, de_s: f64, de_env: [f64; 4]) -> [f64; 3] {
        let Pair { d, s_slope, q, q_slope, .. } = self;
        match form {
            Form::Distances { .. } => [0, 1, 2].map(|k| s_slope * de_s * d[k]),
            _ => {
                let along = de_env[1] * d[0] + de_env[2] * d[1] + de_env[3] * d[2];
                let radial = s_slope * de_s + q_slope * along;
                [0, 1, 2].map(|k| q * de_env[k + 1] + radial * d[k])
            }
        }
    }
}

fn rows<T: Real>(model: &Dp, frame: &CpuFrame<T>, r: usize, center: usize, t: usize) -> Rows {
    let mut out = Rows::default();
    let form = model.descriptor().form();
    for p in frame.pairs(r, t, model.n_types()) {
        let pair = Pair::new(model, frame, center, p);
        out.env.push(pair.env(form));
        out.s.push(pair.s);
        out.weight.push(1.0);
    }
    let at = r * model.n_types() + t;
    out.push_still(model, empty_slot(model, center), frame.padding[at]);
    out.push_still(model, 0.0, frame.left_out.get(at).copied().unwrap_or(0));
    out
}

/// One atom of a frame, as the functions of this file see it.
#[derive(Clone, Copy)]
pub struct Atom<'a, T> {
    pub model: &'a Dp,
    pub params: &'a [f64],
    pub frame: &'a CpuFrame<T>,
    /// Row within the frame.
    pub row: usize,
    pub center: usize,
}

impl<T: Real> Atom<'_, T> {
    pub fn n_neighbors(&self) -> usize {
        self.frame.pairs_of(self.row, self.model.n_types()).len()
    }

    fn each_type(&self, mut visit: impl FnMut(usize, &NetShape, Rows, &JetNet<f64>)) {
        let mut jets = JetNet::default();
        for t in 0..self.model.n_types() {
            let rows = rows(self.model, self.frame, self.row, self.center, t);
            if rows.s.is_empty() {
                continue;
            }
            let index = self.model.embedding_net(self.center, t);
            let net = &self.model.embedding[index];
            match &self.model.tables {
                Some(tables) => jets.look_up(&tables[index], net.n_out(), &rows.s),
                None => jets.forward(net, self.params, &rows.s),
            }
            visit(t, net, rows, &jets);
        }
    }

    pub(super) fn form(&self) -> Form {
        self.model.descriptor().form()
    }

    /// How the rows of one type move along `d_dot`, where `d_dot[k][p - first]` belongs to pair p; empty slots do not.
    fn rows_dot(&self, t: usize, d_dot: [&[T]; 3], first: usize) -> Vec<Dot> {
        let pairs = self.frame.pairs(self.row, t, self.model.n_types());
        pairs
            .map(|p| {
                let v = [0, 1, 2].map(|k| d_dot[k][p - first].to_f64());
                Pair::new(self.model, self.frame, self.center, p).dot(self.form(), v)
            })
            .collect()
    }

    /// `A[c, m]` of this atom, overwritten.
    pub fn forward(&self, a: &mut [T]) {
        if self.form() == Form::Angles {
            return angles::forward(self, a);
        }
        let (m1, n_env) = (self.model.n_embed(), self.form().components());
        let mut sum = vec![0.0; n_env * m1];
        self.each_type(|_, _, rows, jets| {
            let (g, _) = jets.output();
            for (n, env) in rows.env.iter().enumerate() {
                for c in 0..n_env {
                    let scale = rows.weight[n] * env[c];
                    add_scaled(&mut sum[c * m1..(c + 1) * m1], scale, &g[n * m1..(n + 1) * m1]);
                }
            }
        });
        self.write(a, &sum);
    }

    /// The change of A, overwritten.
    pub fn tangent(&self, a_dot: &mut [T], d_dot: [&[T]; 3], first: usize) {
        if self.form() == Form::Angles {
            return angles::tangent(self, a_dot, d_dot, first);
        }
        let (m1, n_env) = (self.model.n_embed(), self.form().components());
        let mut sum = vec![0.0; n_env * m1];
        self.each_type(|t, _, rows, jets| {
            let (g, g1) = jets.output();
            for (n, dot) in self.rows_dot(t, d_dot, first).iter().enumerate() {
                for c in 0..n_env {
                    let sum = &mut sum[c * m1..(c + 1) * m1];
                    add_scaled(sum, dot.env[c], &g[n * m1..(n + 1) * m1]);
                    add_scaled(sum, dot.s * rows.env[n][c], &g1[n * m1..(n + 1) * m1]);
                }
            }
        });
        self.write(a_dot, &sum);
    }

    fn write(&self, a: &mut [T], sum: &[f64]) {
        let scale = 1.0 / self.model.n_sel() as f64;
        for (a, sum) in a.iter_mut().zip(sum) {
            *a = T::from_f64(sum * scale);
        }
    }

    /// dE/dd of this atom's pairs from dE/dA, `de_d[k][p - first]`.
    pub fn forces(&self, mut de_d: [&mut [T]; 3], de_a: &[T]) {
        if self.form() == Form::Angles {
            return angles::forces(self, de_d, de_a);
        }
        let (m1, form) = (self.model.n_embed(), self.form());
        let scale = 1.0 / self.model.n_sel() as f64;
        let de_a: Vec<f64> = de_a.iter().map(|x| x.to_f64() * scale).collect();
        let first = self.frame.pairs(self.row, 0, self.model.n_types()).start;
        self.each_type(|t, _, rows, jets| {
            let (g, g1) = jets.output();
            for (n, p) in self.frame.pairs(self.row, t, self.model.n_types()).enumerate() {
                let at = n * m1..(n + 1) * m1;
                let mut de_env = [0.0; 4];
                for (de_env, de_a) in de_env.iter_mut().zip(de_a.chunks_exact(m1)) {
                    *de_env = dot(&g[at.clone()], de_a);
                }
                // Where env has directions, s is its first component.
                let mut de_s = if form.components() == 4 { de_env[0] } else { 0.0 };
                for (env, de_a) in rows.env[n].iter().zip(de_a.chunks_exact(m1)) {
                    de_s += env * dot(&g1[at.clone()], de_a);
                }
                let pair = Pair::new(self.model, self.frame, self.center, p);
                for (de_d, de) in de_d.iter_mut().zip(pair.force(form, de_s, de_env)) {
                    de_d[p - first] = T::from_f64(de);
                }
            }
        });
    }

    /// Adds dL/dparams of the embedding nets from the adjoints of A and of its tangent.
    pub fn backward_add(&self, grad: &mut [f64], d_dot: [&[T]; 3], first: usize, dl_a: &[T], de_a: &[T]) {
        if self.form() == Form::Angles {
            return angles::backward_add(self, grad, d_dot, first, dl_a, de_a);
        }
        let (m1, n_env) = (self.model.n_embed(), self.form().components());
        let scale = 1.0 / self.model.n_sel() as f64;
        let cast = |x: &[T]| x.iter().map(|x| x.to_f64() * scale).collect::<Vec<f64>>();
        let (dl_a, de_a) = (cast(dl_a), cast(de_a));
        self.each_type(|t, net, rows, jets| {
            let mut rows_dot = self.rows_dot(t, d_dot, first);
            rows_dot.resize(rows.s.len(), Dot::default());
            let (mut g, mut g1) = (vec![0.0; rows.s.len() * m1], vec![0.0; rows.s.len() * m1]);
            for (n, (env, dot)) in rows.env.iter().zip(&rows_dot).enumerate() {
                let at = n * m1..(n + 1) * m1;
                for c in 0..n_env {
                    let (dl, de) = (&dl_a[c * m1..(c + 1) * m1], &de_a[c * m1..(c + 1) * m1]);
                    add_scaled(&mut g[at.clone()], rows.weight[n] * env[c], dl);
                    add_scaled(&mut g[at.clone()], dot.env[c], de);
                    add_scaled(&mut g1[at.clone()], dot.s * env[c], de);
                }
            }
            jets.backward_add(grad, 0, net, self.params, g, g1);
        });
    }
}

fn add_scaled(out: &mut [f64], scale: f64, a: &[f64]) {
    super::elementwise::axpy(out, scale, a);
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    super::elementwise::dot(a, b)
}
