//! The energy of one atom and its derivatives.
//!
//! `A = sum_j G(s_j) (x) env_j / n_sel` with `s_j = row_j[0]`, D from A, `e = fitting(D, extra)`. What env is, and how D comes
//! from A, is the descriptor's [`Form`]; what is not there has zeros: `env = (1, 0, 0, 0)` without directions.

use super::layer::{self, Trace};
use crate::model::dp::Dp;
use crate::model::dp::options::Form;

/// One neighbour, or all slots of a type that look the same because nobody is seen in them, of an atom.
#[derive(Debug, Clone)]
pub struct Entry {
    /// Index of the embedding net.
    pub net: usize,
    pub row: [f64; 4],
    /// How many slots look like this: 1, or the number of those in which nobody is seen.
    pub weight: f64,
    /// Index of the pair; `None` where nobody is seen: that does not move.
    pub pair: Option<usize>,
}

impl Entry {
    fn env(&self, model: &Dp) -> [f64; 4] {
        match model.descriptor().form() {
            Form::Directions { .. } => self.row,
            Form::Distances { .. } => [1.0, 0.0, 0.0, 0.0],
        }
    }
}

/// The change of env with that of the row; also dE/drow by way of env from dE/denv.
fn env_dot(model: &Dp, row_dot: &[f64; 4]) -> [f64; 4] {
    match model.descriptor().form() {
        Form::Directions { .. } => *row_dot,
        Form::Distances { .. } => [0.0; 4],
    }
}

/// Everything that the energy of one atom depends on.
#[derive(Debug, Clone)]
pub struct AtomView {
    pub center: usize,
    pub entries: Vec<Entry>,
    /// Inputs of the fitting net beside the descriptor.
    pub extra: Vec<f64>,
}

/// What the first pass gives.
pub struct FirstPass {
    /// Without the bias of the type.
    pub energy: f64,
    /// `[n_entries]` dE/drow
    pub de_row: Vec<[f64; 4]>,
}

/// `A[m][c]`, one row for each embedding channel.
type Matrix = Vec<[f64; 4]>;

struct Forward {
    g: Vec<Vec<f64>>,
    embedding: Vec<Vec<Trace>>,
    a: Matrix,
    fitting: Vec<Trace>,
    energy: f64,
    /// The fitting net at a descriptor of zero, where it is taken off.
    vacuum: Option<Vec<Trace>>,
}

fn forward(model: &Dp, params: &[f64], view: &AtomView) -> Forward {
    let mut a = vec![[0.0; 4]; model.n_embed()];
    let (mut g, mut embedding) = (Vec::new(), Vec::new());
    for entry in &view.entries {
        let (value, traces) = layer::net_forward(&model.embedding[entry.net], params, &entry.row[..1]);
        outer_add(&mut a, &value, &entry.env(model), entry.weight / model.n_sel() as f64);
        g.push(value);
        embedding.push(traces);
    }
    let mut x = descriptor(model, &a);
    x.extend(&view.extra);
    let (e, fitting) = layer::net_forward(&model.fitting[view.center], params, &x);
    let vacuum = model.removes_vacuum(view.center).then(|| vacuum(model, params, view));
    let energy = e[0] - vacuum.as_ref().map_or(0.0, |(e, _)| *e);
    Forward { g, embedding, a, fitting, energy, vacuum: vacuum.map(|(_, traces)| traces) }
}

/// The energy of an atom whose descriptor is zero, which some types have taken off.
fn vacuum(model: &Dp, params: &[f64], view: &AtomView) -> (f64, Vec<Trace>) {
    let mut x = vec![0.0; model.n_descriptor()];
    x.extend(&view.extra);
    let (e, mut traces) = layer::net_forward(&model.fitting[view.center], params, &x);
    layer::net_tangent(&model.fitting[view.center], params, &mut traces, &vec![0.0; x.len()]);
    (e[0], traces)
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
        Form::Distances { scale } => a.iter().map(|a| scale * a[0]).collect(),
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
        Form::Distances { scale } => d_a.iter_mut().zip(d_d).for_each(|(d_a, d_d)| d_a[0] += scale * d_d),
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

/// dE/dA from the fitting net.
fn de_a(model: &Dp, params: &[f64], view: &AtomView, f: &Forward) -> (Vec<f64>, Matrix) {
    let de_x = layer::net_backward_input(&model.fitting[view.center], params, &f.fitting, &[1.0]);
    let mut de_a = vec![[0.0; 4]; model.n_embed()];
    descriptor_backward_add(&mut de_a, model, &f.a, &de_x[..model.n_descriptor()]);
    (de_x, de_a)
}

/// `sum_c env[c] m[.][c]` for each channel.
fn contract(matrix: &Matrix, env: &[f64; 4], scale: f64) -> Vec<f64> {
    matrix.iter().map(|m| scale * (0..4).map(|c| env[c] * m[c]).sum::<f64>()).collect()
}

/// The energy of an atom and its gradient by the rows of the environment matrix.
pub fn first_pass(model: &Dp, params: &[f64], view: &AtomView) -> FirstPass {
    let f = forward(model, params, view);
    let (_, de_a) = de_a(model, params, view, &f);
    let mut de_row = Vec::with_capacity(view.entries.len());
    for (n, entry) in view.entries.iter().enumerate() {
        let scale = entry.weight / model.n_sel() as f64;
        let de_env =
            [0, 1, 2, 3].map(|c| scale * (0..de_a.len()).map(|m| f.g[n][m] * de_a[m][c]).sum::<f64>());
        let mut de = env_dot(model, &de_env);
        let de_g = contract(&de_a, &entry.env(model), scale);
        de[0] += layer::net_backward_input(&model.embedding[entry.net], params, &f.embedding[n], &de_g)[0];
        de_row.push(de);
    }
    FirstPass { energy: f.energy, de_row }
}

/// Adds the gradient of `dl_e * e + (de/drow) . row_dot` by the parameters.
pub fn second_pass(
    grad: &mut [f64],
    model: &Dp,
    params: &[f64],
    view: &AtomView,
    row_dot: &[[f64; 4]],
    dl_e: f64,
) {
    let mut f = forward(model, params, view);
    let (_, de_a) = de_a(model, params, view, &f);

    // Tangent: rows -> A -> D -> fitting net.
    let mut a_dot = vec![[0.0; 4]; model.n_embed()];
    for (n, entry) in view.entries.iter().enumerate() {
        let scale = entry.weight / model.n_sel() as f64;
        let net = &model.embedding[entry.net];
        let g_dot = layer::net_tangent(net, params, &mut f.embedding[n], &row_dot[n][..1]);
        outer_add(&mut a_dot, &g_dot, &entry.env(model), scale);
        outer_add(&mut a_dot, &f.g[n], &env_dot(model, &row_dot[n]), scale);
    }
    let mut x_dot = descriptor_tangent(model, &f.a, &a_dot);
    x_dot.extend(vec![0.0; view.extra.len()]);
    let fitting = &model.fitting[view.center];
    layer::net_tangent(fitting, params, &mut f.fitting, &x_dot);

    // Reverse over (value, tangent): the tangent's adjoints are the energy's gradients of the first pass.
    let dl_x = layer::net_backward(grad, fitting, params, &f.fitting, &[dl_e], &[1.0]);
    if let Some(traces) = &f.vacuum {
        layer::net_backward(grad, fitting, params, traces, &[-dl_e], &[0.0]);
    }
    let de_x = layer::net_backward_input(fitting, params, &f.fitting, &[1.0]);
    let mut dl_a = vec![[0.0; 4]; model.n_embed()];
    descriptor_backward_add(&mut dl_a, model, &f.a, &dl_x[..model.n_descriptor()]);
    tangent_backward_add(&mut dl_a, model, &a_dot, &de_x[..model.n_descriptor()]);
    for (n, entry) in view.entries.iter().enumerate() {
        let scale = entry.weight / model.n_sel() as f64;
        let mut dl_g = contract(&dl_a, &entry.env(model), scale);
        for (l, e) in dl_g.iter_mut().zip(contract(&de_a, &env_dot(model, &row_dot[n]), scale)) {
            *l += e;
        }
        let de_g = contract(&de_a, &entry.env(model), scale);
        layer::net_backward(grad, &model.embedding[entry.net], params, &f.embedding[n], &dl_g, &de_g);
    }
}
