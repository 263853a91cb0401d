//! The operations of the networks on matrices, each with its value, tangent and adjoint, and the list of them that
//! a network makes.
//!
//! Every matrix carries four things: its value, its change `dot` along a direction of the geometry, `de` = dE/dvalue,
//! and `dl` = dL/dvalue. The adjoint of the tangent is `de` itself, so one reverse pass over (value, dot) pairs
//! needs no fifth.

use crate::engine::pinet::activation::jet;
use crate::model::pinet::Dense;
use std::rc::Rc;

/// A matrix on the tape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Id(usize);

/// What a matrix is made of.
#[derive(Debug, Clone)]
enum Op {
    /// Given: one-hot rows, radial functions, directions.
    Input,
    /// act(x W + b)
    Dense { x: Id, layer: Dense },
    /// Row r is row `index[r]` of x.
    Gather { x: Id, index: Rc<[usize]> },
    /// Row `index[r]` gathers the sum of all such rows r of x.
    Sum { x: Id, index: Rc<[usize]> },
    /// Side by side.
    Concat { parts: Vec<Id> },
    /// Columns `start ..` of x.
    Columns { x: Id, start: usize },
    /// y_c = sum_b w_(c b) e_b, with b fastest in w.
    Contract { w: Id, e: Id },
    /// a + b; a single column is added to every column.
    Add { a: Id, b: Id },
    /// a b, element by element; a single column multiplies every column.
    Multiply { a: Id, b: Id },
}

/// A matrix with its derivatives.
#[derive(Debug, Clone)]
pub struct Node {
    op: Op,
    pub rows: usize,
    pub width: usize,
    pub value: Vec<f64>,
    pub dot: Vec<f64>,
    pub de: Vec<f64>,
    pub dl: Vec<f64>,
}

/// Which adjoint a linear operation passes on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Adjoint {
    De,
    Dl,
}

impl Node {
    fn adjoint(&self, which: Adjoint) -> &[f64] {
        if which == Adjoint::De { &self.de } else { &self.dl }
    }

    fn adjoint_mut(&mut self, which: Adjoint) -> &mut [f64] {
        if which == Adjoint::De { &mut self.de } else { &mut self.dl }
    }

    /// Where element (r, c) of a result finds this operand: a single column serves all.
    fn at(&self, r: usize, c: usize) -> usize {
        r * self.width + if self.width == 1 { 0 } else { c }
    }
}

/// Matrices in the order in which they were made.
#[derive(Debug, Clone, Default)]
pub struct Tape {
    nodes: Vec<Node>,
}

impl Tape {
    pub fn node(&self, id: Id) -> &Node {
        &self.nodes[id.0]
    }

    pub fn node_mut(&mut self, id: Id) -> &mut Node {
        &mut self.nodes[id.0]
    }

    fn push(&mut self, op: Op, rows: usize, width: usize, value: Vec<f64>) -> Id {
        assert_eq!(value.len(), rows * width, "a matrix is full");
        let zero = vec![0.0; value.len()];
        self.nodes.push(Node { op, rows, width, value, dot: zero.clone(), de: zero.clone(), dl: zero });
        Id(self.nodes.len() - 1)
    }

    fn shape(&self, id: Id) -> (usize, usize) {
        (self.node(id).rows, self.node(id).width)
    }

    /// A given matrix.
    pub fn input(&mut self, rows: usize, width: usize, value: Vec<f64>) -> Id {
        self.push(Op::Input, rows, width, value)
    }

    /// act(x W + b)
    pub fn dense(&mut self, params: &[f64], x: Id, layer: &Dense) -> Id {
        let (rows, n_in) = self.shape(x);
        assert_eq!(n_in, layer.n_in, "the layer fits its input");
        let z = pre_activation(params, &self.node(x).value, layer, true);
        let value = z.iter().map(|&z| jet(layer.act, z)[0]).collect();
        self.push(Op::Dense { x, layer: layer.clone() }, rows, layer.n_out, value)
    }

    /// A chain of layers.
    pub fn chain(&mut self, params: &[f64], x: Id, layers: &[Dense]) -> Id {
        layers.iter().fold(x, |x, layer| self.dense(params, x, layer))
    }

    pub fn gather(&mut self, x: Id, index: &Rc<[usize]>) -> Id {
        let width = self.node(x).width;
        let value =
            index.iter().flat_map(|&k| self.node(x).value[k * width..(k + 1) * width].to_vec()).collect();
        self.push(Op::Gather { x, index: index.clone() }, index.len(), width, value)
    }

    /// Sums the rows of x into `rows` rows.
    pub fn sum(&mut self, x: Id, index: &Rc<[usize]>, rows: usize) -> Id {
        let width = self.node(x).width;
        assert_eq!(self.node(x).rows, index.len(), "every row goes somewhere");
        let value = summed(&self.node(x).value, index, rows, width);
        self.push(Op::Sum { x, index: index.clone() }, rows, width, value)
    }

    pub fn concat(&mut self, parts: &[Id]) -> Id {
        let rows = self.node(parts[0]).rows;
        let width = parts.iter().map(|&p| self.node(p).width).sum();
        let value = self.side_by_side(parts, rows, |node| &node.value);
        self.push(Op::Concat { parts: parts.to_vec() }, rows, width, value)
    }

    pub fn columns(&mut self, x: Id, start: usize, width: usize) -> Id {
        let (rows, n) = self.shape(x);
        let value =
            self.node(x).value.chunks_exact(n).flat_map(|row| row[start..start + width].to_vec()).collect();
        self.push(Op::Columns { x, start }, rows, width, value)
    }

    pub fn contract(&mut self, w: Id, e: Id) -> Id {
        let (rows, n) = self.shape(e);
        let width = self.node(w).width / n;
        let value = contracted(&self.node(w).value, &self.node(e).value, rows, width, n);
        self.push(Op::Contract { w, e }, rows, width, value)
    }

    pub fn add(&mut self, a: Id, b: Id) -> Id {
        self.binary(Op::Add { a, b }, a, b, |a, b| a + b)
    }

    pub fn multiply(&mut self, a: Id, b: Id) -> Id {
        self.binary(Op::Multiply { a, b }, a, b, |a, b| a * b)
    }

    fn binary(&mut self, op: Op, a: Id, b: Id, f: impl Fn(f64, f64) -> f64) -> Id {
        let ((rows, wa), (rows_b, wb)) = (self.shape(a), self.shape(b));
        assert!(rows == rows_b && (wa == wb || wa == 1 || wb == 1), "operands fit");
        let width = wa.max(wb);
        let (a, b) = (self.node(a), self.node(b));
        let value = elements(rows, width).map(|(r, c)| f(a.value[a.at(r, c)], b.value[b.at(r, c)])).collect();
        self.push(op, rows, width, value)
    }

    fn side_by_side<'a>(&'a self, parts: &[Id], rows: usize, of: impl Fn(&'a Node) -> &'a [f64]) -> Vec<f64> {
        let mut all = Vec::new();
        for r in 0..rows {
            for &p in parts {
                let node = self.node(p);
                all.extend_from_slice(&of(node)[r * node.width..(r + 1) * node.width]);
            }
        }
        all
    }

    /// Fills `dot` of everything from the `dot` of the inputs.
    pub fn tangent(&mut self, params: &[f64]) {
        for k in 0..self.nodes.len() {
            if let Some(dot) = self.dot_of(params, k) {
                self.nodes[k].dot = dot;
            }
        }
    }

    fn dot_of(&self, params: &[f64], k: usize) -> Option<Vec<f64>> {
        let y = &self.nodes[k];
        Some(match &y.op {
            Op::Input => return None,
            Op::Dense { x, layer } => {
                let x = self.node(*x);
                let z = pre_activation(params, &x.value, layer, true);
                let z_dot = pre_activation(params, &x.dot, layer, false);
                z.iter().zip(&z_dot).map(|(&z, z_dot)| jet(layer.act, z)[1] * z_dot).collect()
            }
            Op::Gather { x, index } => {
                let x = self.node(*x);
                index.iter().flat_map(|&k| x.dot[k * x.width..(k + 1) * x.width].to_vec()).collect()
            }
            Op::Sum { x, index } => summed(&self.node(*x).dot, index, y.rows, y.width),
            Op::Concat { parts } => self.side_by_side(parts, y.rows, |node| &node.dot),
            Op::Columns { x, start } => {
                let x = self.node(*x);
                x.dot.chunks_exact(x.width).flat_map(|row| row[*start..start + y.width].to_vec()).collect()
            }
            Op::Contract { w, e } => {
                let (w, e) = (self.node(*w), self.node(*e));
                let moved = contracted(&w.dot, &e.value, y.rows, y.width, e.width);
                let turned = contracted(&w.value, &e.dot, y.rows, y.width, e.width);
                moved.iter().zip(&turned).map(|(a, b)| a + b).collect()
            }
            Op::Add { a, b } => {
                let (a, b) = (self.node(*a), self.node(*b));
                elements(y.rows, y.width).map(|(r, c)| a.dot[a.at(r, c)] + b.dot[b.at(r, c)]).collect()
            }
            Op::Multiply { a, b } => {
                let (a, b) = (self.node(*a), self.node(*b));
                elements(y.rows, y.width)
                    .map(|(r, c)| {
                        let (ka, kb) = (a.at(r, c), b.at(r, c));
                        a.dot[ka] * b.value[kb] + a.value[ka] * b.dot[kb]
                    })
                    .collect()
            }
        })
    }

    /// Passes dE back from where it was set to everything before.
    pub fn backward_energy(&mut self, params: &[f64]) {
        for k in (0..self.nodes.len()).rev() {
            let y = self.nodes[k].clone();
            match &y.op {
                Op::Dense { x, layer } => {
                    let z = pre_activation(params, &self.node(*x).value, layer, true);
                    let de_z: Vec<f64> =
                        z.iter().zip(&y.de).map(|(&z, de)| jet(layer.act, z)[1] * de).collect();
                    times_transposed_add(&mut self.node_mut(*x).de, params, layer, &de_z);
                }
                Op::Contract { w, e } => self.contract_back(&y, *w, *e, &y.de, None, Adjoint::De),
                Op::Multiply { a, b } => {
                    self.multiply_back(&y, *a, *b, &y.de, None, Adjoint::De);
                    self.multiply_back(&y, *b, *a, &y.de, None, Adjoint::De);
                }
                _ => self.linear_back(&y, Adjoint::De),
            }
        }
    }

    /// The reverse of (value, dot): passes dL back and adds dL/dparams to `grad`. `de` and `dot` must be there.
    pub fn backward_loss(&mut self, grad: &mut [f64], params: &[f64]) {
        for k in (0..self.nodes.len()).rev() {
            let y = self.nodes[k].clone();
            match &y.op {
                Op::Dense { x, layer } => self.dense_back(grad, params, &y, *x, layer),
                Op::Contract { w, e } => self.contract_back(&y, *w, *e, &y.dl, Some(&y.de), Adjoint::Dl),
                Op::Multiply { a, b } => {
                    self.multiply_back(&y, *a, *b, &y.dl, Some(&y.de), Adjoint::Dl);
                    self.multiply_back(&y, *b, *a, &y.dl, Some(&y.de), Adjoint::Dl);
                }
                _ => self.linear_back(&y, Adjoint::Dl),
            }
        }
    }

    fn dense_back(&mut self, grad: &mut [f64], params: &[f64], y: &Node, x: Id, layer: &Dense) {
        let x = &mut self.nodes[x.0];
        let z = pre_activation(params, &x.value, layer, true);
        let z_dot = pre_activation(params, &x.dot, layer, false);
        let n = layer.n_out;
        let mut dl_z = vec![0.0; z.len()];
        for (k, &z) in z.iter().enumerate() {
            let [_, d, dd] = jet(layer.act, z);
            dl_z[k] = d * y.dl[k] + dd * z_dot[k] * y.de[k];
            let (r, o) = (k / n, k % n);
            if let Some(b) = layer.b {
                grad[b + o] += dl_z[k];
            }
            for i in 0..layer.n_in {
                let (value, dot) = (x.value[r * layer.n_in + i], x.dot[r * layer.n_in + i]);
                grad[layer.w + i * n + o] += value * dl_z[k] + dot * d * y.de[k];
            }
        }
        times_transposed_add(&mut x.dl, params, layer, &dl_z);
    }

    /// The adjoint of operations that are linear in everything.
    fn linear_back(&mut self, y: &Node, which: Adjoint) {
        let dy = y.adjoint(which);
        match &y.op {
            Op::Gather { x, index } => {
                let dx = self.node_mut(*x).adjoint_mut(which);
                for (r, &k) in index.iter().enumerate() {
                    (0..y.width).for_each(|c| dx[k * y.width + c] += dy[r * y.width + c]);
                }
            }
            Op::Sum { x, index } => {
                let dx = self.node_mut(*x).adjoint_mut(which);
                for (r, &k) in index.iter().enumerate() {
                    (0..y.width).for_each(|c| dx[r * y.width + c] += dy[k * y.width + c]);
                }
            }
            Op::Concat { parts } => {
                let mut start = 0;
                for &part in parts {
                    let width = self.node(part).width;
                    let dx = self.node_mut(part).adjoint_mut(which);
                    elements(y.rows, width)
                        .for_each(|(r, c)| dx[r * width + c] += dy[r * y.width + start + c]);
                    start += width;
                }
            }
            Op::Columns { x, start } => {
                let width = self.node(*x).width;
                let dx = self.node_mut(*x).adjoint_mut(which);
                elements(y.rows, y.width).for_each(|(r, c)| dx[r * width + start + c] += dy[r * y.width + c]);
            }
            Op::Add { a, b } => {
                for operand in [*a, *b] {
                    for (r, c) in elements(y.rows, y.width) {
                        let k = self.node(operand).at(r, c);
                        self.node_mut(operand).adjoint_mut(which)[k] += dy[r * y.width + c];
                    }
                }
            }
            _ => {}
        }
    }

    /// Adds to the adjoint of `a` in y = a b: dy b, and where `dy_dot` is the adjoint of y_dot also dy_dot b_dot.
    fn multiply_back(&mut self, y: &Node, a: Id, b: Id, dy: &[f64], dy_dot: Option<&[f64]>, which: Adjoint) {
        let b = self.node(b).clone();
        for (r, c) in elements(y.rows, y.width) {
            let (k, ky, kb) = (self.node(a).at(r, c), r * y.width + c, b.at(r, c));
            let turned = dy_dot.map_or(0.0, |dy_dot| dy_dot[ky] * b.dot[kb]);
            self.node_mut(a).adjoint_mut(which)[k] += dy[ky] * b.value[kb] + turned;
        }
    }

    fn contract_back(&mut self, y: &Node, w: Id, e: Id, dy: &[f64], dy_dot: Option<&[f64]>, which: Adjoint) {
        let n = self.node(e).width;
        for (r, c) in elements(y.rows, y.width) {
            let ky = r * y.width + c;
            let dy_dot = dy_dot.map_or(0.0, |dy_dot| dy_dot[ky]);
            for b in 0..n {
                let (kw, ke) = (ky * n + b, r * n + b);
                let dw = dy[ky] * self.node(e).value[ke] + dy_dot * self.node(e).dot[ke];
                let de = dy[ky] * self.node(w).value[kw] + dy_dot * self.node(w).dot[kw];
                self.node_mut(w).adjoint_mut(which)[kw] += dw;
                self.node_mut(e).adjoint_mut(which)[ke] += de;
            }
        }
    }
}

/// All (row, column).
fn elements(rows: usize, width: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..rows).flat_map(move |r| (0..width).map(move |c| (r, c)))
}

/// x W (+ b)
fn pre_activation(params: &[f64], x: &[f64], layer: &Dense, bias: bool) -> Vec<f64> {
    let w = &params[layer.w_range()];
    let b = layer.b_range().filter(|_| bias).map(|range| &params[range]);
    x.chunks_exact(layer.n_in)
        .flat_map(|row| {
            (0..layer.n_out).map(move |o| {
                let sum: f64 = row.iter().enumerate().map(|(i, x)| x * w[i * layer.n_out + o]).sum();
                sum + b.map_or(0.0, |b| b[o])
            })
        })
        .collect()
}

/// dx += dz W^T
fn times_transposed_add(dx: &mut [f64], params: &[f64], layer: &Dense, dz: &[f64]) {
    let w = &params[layer.w_range()];
    for (dx, dz) in dx.chunks_exact_mut(layer.n_in).zip(dz.chunks_exact(layer.n_out)) {
        for (i, dx) in dx.iter_mut().enumerate() {
            *dx += dz.iter().enumerate().map(|(o, dz)| dz * w[i * layer.n_out + o]).sum::<f64>();
        }
    }
}

fn summed(x: &[f64], index: &[usize], rows: usize, width: usize) -> Vec<f64> {
    let mut y = vec![0.0; rows * width];
    for (row, &k) in x.chunks_exact(width).zip(index) {
        row.iter().enumerate().for_each(|(c, x)| y[k * width + c] += x);
    }
    y
}

fn contracted(w: &[f64], e: &[f64], rows: usize, width: usize, n: usize) -> Vec<f64> {
    elements(rows, width)
        .map(|(r, c)| (0..n).map(|b| w[(r * width + c) * n + b] * e[r * n + b]).sum())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::pinet::options::Act;

    fn noise(n: usize, salt: f64) -> Vec<f64> {
        (0..n).map(|k| ((k as f64 + salt) * 12.9898).sin()).collect()
    }

    fn dot(a: &[f64], b: &[f64]) -> f64 {
        a.iter().zip(b).map(|(a, b)| a * b).sum()
    }

    type Build = fn(&mut Tape, &[f64], Id, Id) -> Id;

    /// Every operation on two inputs of three rows, 4 and 2 columns.
    const OPS: &[(&str, Build)] = &[
        ("dense", |t, p, x, _| {
            t.dense(p, x, &Dense { n_in: 4, n_out: 3, act: Act::Swish, w: 0, b: Some(12) })
        }),
        ("linear", |t, p, x, _| t.dense(p, x, &Dense { n_in: 4, n_out: 3, act: Act::Linear, w: 0, b: None })),
        ("gather", |t, _, x, _| t.gather(x, &[2, 0, 2, 1].into())),
        ("sum", |t, _, x, _| t.sum(x, &[1, 0, 1].into(), 2)),
        ("concat", |t, _, x, e| t.concat(&[e, x, e])),
        ("columns", |t, _, x, _| t.columns(x, 1, 2)),
        ("contract", |t, _, x, e| t.contract(x, e)),
        ("add", |t, _, x, e| {
            let one = t.columns(e, 0, 1);
            t.add(one, x)
        }),
        ("multiply", |t, _, x, e| {
            let one = t.columns(e, 1, 1);
            t.multiply(x, one)
        }),
        ("square", |t, _, x, _| t.multiply(x, x)),
    ];

    /// The tape of one operation; inputs stand at `s` on the line through `x` and `e` along their directions.
    fn tape(build: Build, params: &[f64], x: &[f64], e: &[f64], s: f64) -> (Tape, Id) {
        let (vx, ve) = (noise(12, 0.5), noise(6, 0.9));
        let mut tape = Tape::default();
        let at = |a: &[f64], v: &[f64]| a.iter().zip(v).map(|(a, v)| a + s * v).collect::<Vec<f64>>();
        let xi = tape.input(3, 4, at(x, &vx));
        let ei = tape.input(3, 2, at(e, &ve));
        tape.node_mut(xi).dot = vx;
        tape.node_mut(ei).dot = ve;
        let y = build(&mut tape, params, xi, ei);
        (tape, y)
    }

    #[test]
    fn tangents_agree_with_central_differences() {
        let (params, x, e) = (noise(15, 0.1), noise(12, 0.2), noise(6, 0.3));
        for (name, build) in OPS {
            let (mut t, y) = tape(*build, &params, &x, &e, 0.0);
            t.tangent(&params);
            let at = |s: f64| {
                let (t, y) = tape(*build, &params, &x, &e, s);
                t.node(y).value.clone()
            };
            let (low, high) = (at(-1e-5), at(1e-5));
            for (k, got) in t.node(y).dot.iter().enumerate() {
                let want = (high[k] - low[k]) / 2e-5;
                assert!((got - want).abs() < 1e-9, "{name} {k}: {got} {want}");
            }
        }
    }

    #[test]
    fn the_energy_pass_is_the_adjoint_of_the_tangent() {
        let (params, x, e) = (noise(15, 0.1), noise(12, 0.2), noise(6, 0.3));
        for (name, build) in OPS {
            let (mut t, y) = tape(*build, &params, &x, &e, 0.0);
            t.tangent(&params);
            let w = noise(t.node(y).value.len(), 0.7);
            t.node_mut(y).de = w.clone();
            t.backward_energy(&params);
            let inputs = [Id(0), Id(1)];
            let back: f64 = inputs.iter().map(|&k| dot(&t.node(k).de, &t.node(k).dot)).sum();
            let forward = dot(&w, &t.node(y).dot);
            assert!((forward - back).abs() < 1e-12, "{name}: <w, J v> = {forward}, <J^T w, v> = {back}");
        }
    }

    #[test]
    fn the_loss_pass_differentiates_value_and_tangent_by_parameters_and_inputs() {
        for (name, build) in OPS {
            let (params, x, e) = (noise(15, 0.1), noise(12, 0.2), noise(6, 0.3));
            // a . y + b . y_dot with directions held fixed.
            let phi = |params: &[f64], x: &[f64], e: &[f64]| {
                let (mut t, y) = tape(*build, params, x, e, 0.0);
                t.tangent(params);
                let n = t.node(y).value.len();
                dot(&noise(n, 0.7), &t.node(y).value) + dot(&noise(n, 0.8), &t.node(y).dot)
            };
            let (mut t, y) = tape(*build, &params, &x, &e, 0.0);
            t.tangent(&params);
            let n = t.node(y).value.len();
            t.node_mut(y).de = noise(n, 0.8);
            t.backward_energy(&params);
            t.node_mut(y).dl = noise(n, 0.7);
            let mut grad = vec![0.0; params.len()];
            t.backward_loss(&mut grad, &params);
            let slope = |change: &dyn Fn(f64) -> f64| (change(1e-5) - change(-1e-5)) / 2e-5;
            let moved = |v: &[f64], k: usize, h: f64| {
                let mut v = v.to_vec();
                v[k] += h;
                v
            };
            let check = |what: &str, k: usize, got: f64, want: f64| {
                assert!((got - want).abs() < 1e-8, "{name} {what} {k}: {got} {want}");
            };
            for k in 0..params.len() {
                check("parameter", k, grad[k], slope(&|h| phi(&moved(&params, k, h), &x, &e)));
            }
            for k in 0..x.len() {
                check("x", k, t.node(Id(0)).dl[k], slope(&|h| phi(&params, &moved(&x, k, h), &e)));
            }
            for k in 0..e.len() {
                check("e", k, t.node(Id(1)).dl[k], slope(&|h| phi(&params, &x, &moved(&e, k, h))));
            }
        }
    }
}
