//! The descriptor of one atom from its neighbours one by one, and its derivatives.
//!
//! `A = sum_j G(s_j) (x) env_j / n_sel` with `s_j = row_j[0]`, D from A. What env is, and how D comes from A, is the descriptor's
//! [`Form`]; what is not there has zeros: `env = (1, 0, 0, 0)` without directions.

use super::atom::{self, Entry};
use super::env::Row;
use super::layer::{self, Trace};
use crate::model::dp::Dp;
use crate::model::dp::options::Form;

impl Entry {
    fn env(&self, model: &Dp) -> [f64; 4] {
        match model.descriptor().form() {
            Form::Distances { .. } => [1.0, 0.0, 0.0, 0.0],
            _ => four(&self.row),
        }
    }
}

/// A row without the switch.
fn four(row: &Row) -> [f64; 4] {
    [0, 1, 2, 3].map(|c| row[c])
}

/// The change of env with that of the row; also dE/drow by way of env from dE/denv.
fn env_dot(model: &Dp, row_dot: &[f64; 4]) -> [f64; 4] {
    match model.descriptor().form() {
        Form::Distances { .. } => [0.0; 4],
        _ => *row_dot,
    }
}

/// `A[m][c]`, one row for each embedding channel.
type Matrix = Vec<[f64; 4]>;

/// D with what its derivatives need.
pub struct Described<'a> {
    model: &'a Dp,
    params: &'a [f64],
    entries: &'a [Entry],
    /// How the rows change, after the tangent.
    row_dot: Vec<[f64; 4]>,
    g: Vec<Vec<f64>>,
    embedding: Vec<Vec<Trace>>,
    a: Matrix,
    a_dot: Matrix,
    /// What is added to dL/dA where more than D comes from A; empty where nothing does.
    dl_a: Matrix,
    /// The descriptor, flattened.
    d: Vec<f64>,
}

/// D of an atom.
pub fn forward<'a>(model: &'a Dp, params: &'a [f64], entries: &'a [Entry]) -> Described<'a> {
    let mut a = vec![[0.0; 4]; model.n_embed()];
    let (mut g, mut embedding) = (Vec::new(), Vec::new());
    for entry in entries {
        let (value, traces) = layer::net_forward(&model.embedding[entry.net], params, &entry.row[..1]);
        outer_add(&mut a, &value, &entry.env(model), entry.weight / model.n_sel() as f64);
        g.push(value);
        embedding.push(traces);
    }
    let d = descriptor(model, &a);
    let (a_dot, dl_a) = (Vec::new(), Vec::new());
    Described { model, params, entries, row_dot: Vec::new(), d, g, embedding, a_dot, dl_a, a }
}

impl Described<'_> {
    fn de_a(&self, model: &Dp, de_d: &[f64]) -> Matrix {
        let mut de_a = vec![[0.0; 4]; model.n_embed()];
        descriptor_backward_add(&mut de_a, model, &self.a, de_d);
        de_a
    }
}

impl atom::Described for Described<'_> {
    fn matrix(&self) -> &[[f64; 4]] {
        &self.a
    }

    fn add_to_matrix(&mut self, dl_a: Matrix) {
        self.dl_a = dl_a;
    }

    fn value(&self) -> &[f64] {
        &self.d
    }

    fn backward(&mut self, de_d: &[f64]) -> Vec<Row> {
        let (model, params, entries) = (self.model, self.params, self.entries);
        let de_a = self.de_a(model, de_d);
        let mut de_row = Vec::with_capacity(entries.len());
        for (n, entry) in entries.iter().enumerate() {
            let scale = entry.weight / model.n_sel() as f64;
            let de_env =
                [0, 1, 2, 3].map(|c| scale * (0..de_a.len()).map(|m| self.g[n][m] * de_a[m][c]).sum::<f64>());
            let mut de = env_dot(model, &de_env);
            let de_g = contract(&de_a, &entry.env(model), scale);
            let net = &model.embedding[entry.net];
            de[0] += layer::net_backward_input(net, params, &self.embedding[n], &de_g)[0];
            de_row.push([de[0], de[1], de[2], de[3], 0.0]);
        }
        de_row
    }

    fn tangent(&mut self, row_dot: &[Row]) -> Vec<f64> {
        let (model, params, entries) = (self.model, self.params, self.entries);
        self.row_dot = row_dot.iter().map(four).collect();
        let row_dot = &self.row_dot;
        let mut a_dot = vec![[0.0; 4]; model.n_embed()];
        for (n, entry) in entries.iter().enumerate() {
            let scale = entry.weight / model.n_sel() as f64;
            let net = &model.embedding[entry.net];
            let g_dot = layer::net_tangent(net, params, &mut self.embedding[n], &row_dot[n][..1]);
            outer_add(&mut a_dot, &g_dot, &entry.env(model), scale);
            outer_add(&mut a_dot, &self.g[n], &env_dot(model, &row_dot[n]), scale);
        }
        let d_dot = descriptor_tangent(model, &self.a, &a_dot);
        self.a_dot = a_dot;
        d_dot
    }

    fn gradient_add(&mut self, grad: &mut [f64], dl_d: &[f64], de_d: &[f64]) {
        let (model, params, entries, row_dot) = (self.model, self.params, self.entries, &self.row_dot);
        let de_a = self.de_a(model, de_d);
        let mut dl_a = vec![[0.0; 4]; model.n_embed()];
        descriptor_backward_add(&mut dl_a, model, &self.a, dl_d);
        tangent_backward_add(&mut dl_a, model, &self.a_dot, de_d);
        for (sum, more) in dl_a.iter_mut().zip(&self.dl_a) {
            (0..4).for_each(|c| sum[c] += more[c]);
        }
        for (n, entry) in entries.iter().enumerate() {
            let scale = entry.weight / model.n_sel() as f64;
            let mut dl_g = contract(&dl_a, &entry.env(model), scale);
            for (l, e) in dl_g.iter_mut().zip(contract(&de_a, &env_dot(model, &row_dot[n]), scale)) {
                *l += e;
            }
            let de_g = contract(&de_a, &entry.env(model), scale);
            layer::net_backward(grad, &model.embedding[entry.net], params, &self.embedding[n], &dl_g, &de_g);
        }
    }
}

/// `a[m][c] += scale g[m] env[c]`
fn outer_add(a: &mut Matrix, g: &[f64], env: &[f64; 4], scale: f64) {
    for (a, g) in a.iter_mut().zip(g) {
        for c in 0..4 {
            a[c] += scale * g * env[c];
        }
    }
}

/// D, flattened.
fn descriptor(model: &Dp, a: &Matrix) -> Vec<f64> {
    match model.descriptor().form() {
        Form::Directions { axis } => product(axis, a, a),
        form => a.iter().map(|a| form.scale() * a[0]).collect(),
    }
}

/// The change of D.
fn descriptor_tangent(model: &Dp, a: &Matrix, a_dot: &Matrix) -> Vec<f64> {
    let Form::Directions { axis } = model.descriptor().form() else { return descriptor(model, a_dot) };
    let mut d_dot = product(axis, a_dot, a);
    for (x, y) in d_dot.iter_mut().zip(product(axis, a, a_dot)) {
        *x += y;
    }
    d_dot
}

/// Adds dE/dA, given dE/dD.
fn descriptor_backward_add(d_a: &mut Matrix, model: &Dp, a: &Matrix, d_d: &[f64]) {
    match model.descriptor().form() {
        Form::Directions { axis } => product_backward_add(d_a, axis, a, d_d),
        form => d_a.iter_mut().zip(d_d).for_each(|(d_a, d_d)| d_a[0] += form.scale() * d_d),
    }
}

/// Adds the adjoint of A by way of the change of D, given that of the latter: nothing where D is linear in A.
fn tangent_backward_add(d_a: &mut Matrix, model: &Dp, a_dot: &Matrix, d_d_dot: &[f64]) {
    if let Form::Directions { axis } = model.descriptor().form() {
        product_backward_add(d_a, axis, a_dot, d_d_dot);
    }
}

/// `D[m, k] = a[m] . b[k]` for k below M2, flattened.
fn product(m2: usize, a: &Matrix, b: &Matrix) -> Vec<f64> {
    let dot = |x: &[f64; 4], y: &[f64; 4]| (0..4).map(|c| x[c] * y[c]).sum::<f64>();
    a.iter().flat_map(|am| b[..m2].iter().map(|bk| dot(am, bk)).collect::<Vec<_>>()).collect()
}

/// Adds the adjoint of `D = A A[..M2]^T` to dA, where the other factor is `a`.
fn product_backward_add(d_a: &mut Matrix, m2: usize, a: &Matrix, d_d: &[f64]) {
    for m in 0..a.len() {
        for k in 0..m2 {
            for c in 0..4 {
                d_a[m][c] += d_d[m * m2 + k] * a[k][c];
                d_a[k][c] += d_d[m * m2 + k] * a[m][c];
            }
        }
    }
}

/// `sum_c env[c] m[.][c]` for each channel.
fn contract(matrix: &Matrix, env: &[f64; 4], scale: f64) -> Vec<f64> {
    matrix.iter().map(|m| scale * (0..4).map(|c| env[c] * m[c]).sum::<f64>()).collect()
}
