//! A list of operations on matrices, each with its value, tangent and adjoint: for PiNet, and for descriptors that are more than a
//! sum over neighbours.
//!
//! Every matrix carries four things: its value, its change `dot` along a direction of the geometry, `de` = dE/dvalue, and `dl` =
//! dL/dvalue. The adjoint of the change is `de` itself, so one reverse pass over (value, dot) pairs needs no fifth. There are three
//! kinds of operations: linear ones, products of two matrices, and functions of one number.

use crate::engine::activation::jet;
use crate::model::net::{LayerShape, NetShape, Shortcut};
use std::rc::Rc;

/// A matrix on the tape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Id(usize);

/// A function of one number: its value and its first two derivatives.
pub type Function = Rc<dyn Fn(f64) -> [f64; 3]>;

#[derive(Clone)]
enum Op {
    /// Given; it may move.
    Input,
    /// The parameters from `offset` on.
    Param { offset: usize },
    /// f of every element of x.
    Map { x: Id, f: Function },
    /// a b, or a b^T.
    Product { a: Id, b: Id, turned: bool },
    /// a b, element by element; one row or one column serves all.
    Multiply { a: Id, b: Id },
    /// a + b, likewise.
    Add { a: Id, b: Id },
    /// Row r is row `index[r]` of x.
    Gather { x: Id, index: Vec<usize> },
    /// Row k is the sum of all rows r of x with `index[r]` = k.
    Scatter { x: Id, index: Vec<usize> },
    /// Side by side.
    Concat { parts: Vec<Id> },
    /// Columns `start ..` of x.
    Columns { x: Id, start: usize },
    /// Rows as columns.
    Turn { x: Id },
    /// The same numbers in other rows.
    Reshape { x: Id },
    /// One column: the sum of every row.
    SumColumns { x: Id },
    /// One row: the sum of every column.
    SumRows { x: Id },
}

/// A matrix with its derivatives.
#[derive(Clone)]
pub struct Node {
    op: Op,
    pub rows: usize,
    pub width: usize,
    pub value: Vec<f64>,
    pub dot: Vec<f64>,
    pub de: Vec<f64>,
    pub dl: Vec<f64>,
}

/// One of the four things that a matrix carries.
type Part = fn(&Node) -> &[f64];
const VALUE: Part = |node| &node.value;
const DOT: Part = |node| &node.dot;

impl Node {
    /// Where element (r, c) of a result finds this operand.
    fn at(&self, r: usize, c: usize) -> usize {
        (if self.rows == 1 { 0 } else { r }) * self.width + if self.width == 1 { 0 } else { c }
    }
}

/// Which adjoint is passed on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Adjoint {
    De,
    Dl,
}

/// Matrices in the order in which they were made.
#[derive(Clone, Default)]
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

    fn push(&mut self, op: Op, rows: usize, width: usize) -> Id {
        let zero = vec![0.0; rows * width];
        let node =
            Node { op, rows, width, value: zero.clone(), dot: zero.clone(), de: zero.clone(), dl: zero };
        self.nodes.push(node);
        let id = Id(self.nodes.len() - 1);
        if let Some(value) = self.linear(id, VALUE) {
            self.nodes[id.0].value = value;
        }
        id
    }

    /// A given matrix.
    pub fn input(&mut self, rows: usize, width: usize, value: Vec<f64>) -> Id {
        assert_eq!(value.len(), rows * width, "a matrix is full");
        let id = self.push(Op::Input, rows, width);
        self.nodes[id.0].value = value;
        id
    }

    /// Parameters as a matrix.
    pub fn param(&mut self, params: &[f64], offset: usize, rows: usize, width: usize) -> Id {
        let id = self.push(Op::Param { offset }, rows, width);
        self.nodes[id.0].value.copy_from_slice(&params[offset..offset + rows * width]);
        id
    }

    pub fn map(&mut self, x: Id, f: impl Fn(f64) -> [f64; 3] + 'static) -> Id {
        let (rows, width) = (self.node(x).rows, self.node(x).width);
        let id = self.push(Op::Map { x, f: Rc::new(f) }, rows, width);
        let Op::Map { f, .. } = self.node(id).op.clone() else { unreachable!("it was made above") };
        self.nodes[id.0].value = self.node(x).value.iter().map(|&x| f(x)[0]).collect();
        id
    }

    pub fn scaled(&mut self, x: Id, scale: f64) -> Id {
        self.map(x, move |x| [scale * x, scale, 0.0])
    }

    /// a b
    pub fn product(&mut self, a: Id, b: Id) -> Id {
        self.matrix_product(a, b, false)
    }

    /// a b^T
    pub fn product_turned(&mut self, a: Id, b: Id) -> Id {
        self.matrix_product(a, b, true)
    }

    fn matrix_product(&mut self, a: Id, b: Id, turned: bool) -> Id {
        let (x, y) = (self.node(a), self.node(b));
        let (inner, width) = if turned { (y.width, y.rows) } else { (y.rows, y.width) };
        assert_eq!(x.width, inner, "factors fit");
        let rows = x.rows;
        let id = self.push(Op::Product { a, b, turned }, rows, width);
        self.nodes[id.0].value = self.product_of(id, VALUE, VALUE);
        id
    }

    /// a b, element by element.
    pub fn multiply(&mut self, a: Id, b: Id) -> Id {
        let (rows, width) = self.common(a, b);
        let id = self.push(Op::Multiply { a, b }, rows, width);
        self.nodes[id.0].value = self.product_of(id, VALUE, VALUE);
        id
    }

    pub fn add(&mut self, a: Id, b: Id) -> Id {
        let (rows, width) = self.common(a, b);
        self.push(Op::Add { a, b }, rows, width)
    }

    fn common(&self, a: Id, b: Id) -> (usize, usize) {
        let (a, b) = (self.node(a), self.node(b));
        let fit = |x: usize, y: usize| x == y || x == 1 || y == 1;
        assert!(fit(a.rows, b.rows) && fit(a.width, b.width), "operands fit");
        let size = |x: usize, y: usize| if x == 1 { y } else { x };
        (size(a.rows, b.rows), size(a.width, b.width))
    }

    pub fn gather(&mut self, x: Id, index: Vec<usize>) -> Id {
        let (rows, width) = (index.len(), self.node(x).width);
        self.push(Op::Gather { x, index }, rows, width)
    }

    /// Adds row r of x to row `index[r]` of `rows` rows.
    pub fn scatter(&mut self, x: Id, index: Vec<usize>, rows: usize) -> Id {
        assert_eq!(self.node(x).rows, index.len(), "every row goes somewhere");
        let width = self.node(x).width;
        self.push(Op::Scatter { x, index }, rows, width)
    }

    pub fn concat(&mut self, parts: &[Id]) -> Id {
        let width = parts.iter().map(|&part| self.node(part).width).sum();
        let rows = self.node(parts[0]).rows;
        self.push(Op::Concat { parts: parts.to_vec() }, rows, width)
    }

    pub fn columns(&mut self, x: Id, start: usize, width: usize) -> Id {
        let rows = self.node(x).rows;
        self.push(Op::Columns { x, start }, rows, width)
    }

    pub fn turn(&mut self, x: Id) -> Id {
        let (rows, width) = (self.node(x).width, self.node(x).rows);
        self.push(Op::Turn { x }, rows, width)
    }

    pub fn reshape(&mut self, x: Id, rows: usize, width: usize) -> Id {
        assert_eq!(self.node(x).value.len(), rows * width, "no number is lost");
        self.push(Op::Reshape { x }, rows, width)
    }

    /// All numbers in one row.
    pub fn flatten(&mut self, x: Id) -> Id {
        self.reshape(x, 1, self.node(x).value.len())
    }

    pub fn sum_columns(&mut self, x: Id) -> Id {
        let rows = self.node(x).rows;
        self.push(Op::SumColumns { x }, rows, 1)
    }

    pub fn sum_rows(&mut self, x: Id) -> Id {
        let width = self.node(x).width;
        self.push(Op::SumRows { x }, 1, width)
    }

    /// `idt act(x W + b) + shortcut(x)`
    pub fn layer(&mut self, params: &[f64], x: Id, shape: &LayerShape) -> Id {
        let w = self.param(params, shape.w, shape.n_in, shape.n_out);
        let mut y = self.product(x, w);
        if let Some(b) = shape.b {
            let b = self.param(params, b, 1, shape.n_out);
            y = self.add(y, b);
        }
        let activation = shape.activation;
        y = self.map(y, move |z| jet(activation, z));
        if let Some(idt) = shape.idt {
            let idt = self.param(params, idt, 1, shape.n_out);
            y = self.multiply(y, idt);
        }
        match shape.shortcut {
            Shortcut::None => y,
            Shortcut::Same => self.add(y, x),
            Shortcut::Double => {
                let twice = self.concat(&[x, x]);
                self.add(y, twice)
            }
        }
    }

    /// A chain of layers.
    pub fn net(&mut self, params: &[f64], x: Id, net: &NetShape) -> Id {
        net.layers.iter().fold(x, |x, layer| self.layer(params, x, layer))
    }

    /// What a linear operation makes of one part of its operands; `None` for others.
    fn linear(&self, y: Id, of: Part) -> Option<Vec<f64>> {
        let y = self.node(y);
        let get = |id: &Id| (self.node(*id), of(self.node(*id)));
        let all = |f: &dyn Fn(usize, usize) -> f64| elements(y).map(|(r, c)| f(r, c)).collect::<Vec<f64>>();
        Some(match &y.op {
            Op::Add { a, b } => {
                let ((na, a), (nb, b)) = (get(a), get(b));
                all(&|r, c| a[na.at(r, c)] + b[nb.at(r, c)])
            }
            Op::Gather { x, index } => {
                let x = get(x).1;
                all(&|r, c| x[index[r] * y.width + c])
            }
            Op::Scatter { x, index } => {
                let (nx, x) = get(x);
                let mut sums = vec![0.0; y.rows * y.width];
                elements(nx).for_each(|(r, c)| sums[index[r] * y.width + c] += x[r * y.width + c]);
                sums
            }
            Op::Columns { x, start } => {
                let (nx, x) = get(x);
                all(&|r, c| x[r * nx.width + start + c])
            }
            Op::Concat { parts } => {
                let row = |r: usize| {
                    parts.iter().flat_map(move |part| {
                        let (node, x) = (self.node(*part), of(self.node(*part)));
                        x[r * node.width..(r + 1) * node.width].iter().copied()
                    })
                };
                (0..y.rows).flat_map(row).collect()
            }
            Op::Turn { x } => {
                let x = get(x).1;
                all(&|r, c| x[c * y.rows + r])
            }
            Op::Reshape { x } => get(x).1.to_vec(),
            Op::SumColumns { x } => {
                let (nx, x) = get(x);
                all(&|r, _| x[r * nx.width..(r + 1) * nx.width].iter().sum())
            }
            Op::SumRows { x } => {
                let (nx, x) = get(x);
                all(&|_, c| (0..nx.rows).map(|r| x[r * nx.width + c]).sum())
            }
            _ => return None,
        })
    }

    /// The product of one part of the first factor with one of the second.
    fn product_of(&self, y: Id, first: Part, second: Part) -> Vec<f64> {
        let y = self.node(y);
        match &y.op {
            Op::Product { a, b, turned } => {
                let (na, nb) = (self.node(*a), self.node(*b));
                let (a, b) = (first(na), second(nb));
                let at = |k: usize, c: usize| if *turned { c * nb.width + k } else { k * nb.width + c };
                elements(y)
                    .map(|(r, c)| (0..na.width).map(|k| a[r * na.width + k] * b[at(k, c)]).sum())
                    .collect()
            }
            Op::Multiply { a, b } => {
                let (na, nb) = (self.node(*a), self.node(*b));
                let (a, b) = (first(na), second(nb));
                elements(y).map(|(r, c)| a[na.at(r, c)] * b[nb.at(r, c)]).collect()
            }
            _ => unreachable!("only products are asked"),
        }
    }

    /// Fills `dot` of everything from the `dot` of the inputs.
    pub fn tangent(&mut self) {
        for k in 0..self.nodes.len() {
            let dot = match &self.nodes[k].op {
                Op::Input | Op::Param { .. } => continue,
                Op::Map { x, f } => {
                    let x = self.node(*x);
                    x.value.iter().zip(&x.dot).map(|(&x, x_dot)| f(x)[1] * x_dot).collect()
                }
                Op::Product { .. } | Op::Multiply { .. } => {
                    let (moved, turned) =
                        (self.product_of(Id(k), DOT, VALUE), self.product_of(Id(k), VALUE, DOT));
                    moved.iter().zip(&turned).map(|(a, b)| a + b).collect()
                }
                _ => self.linear(Id(k), DOT).expect("all others are linear"),
            };
            self.nodes[k].dot = dot;
        }
    }

    /// Overwrites dE of everything before `y`, given that of `y`.
    pub fn backward_energy(&mut self, y: Id, de_y: &[f64]) {
        self.nodes.iter_mut().for_each(|node| node.de.fill(0.0));
        self.node_mut(y).de.copy_from_slice(de_y);
        for k in (0..self.nodes.len()).rev() {
            let y = self.nodes[k].clone();
            match &y.op {
                Op::Map { x, f } => {
                    let x = self.node_mut(*x);
                    for (k, de) in y.de.iter().enumerate() {
                        x.de[k] += f(x.value[k])[1] * de;
                    }
                }
                Op::Product { .. } | Op::Multiply { .. } => self.product_back(&y, Adjoint::De, &y.de, VALUE),
                _ => self.linear_back(&y, Adjoint::De),
            }
        }
    }

    /// The reverse of (value, dot): given dL/dy, adds dL/dparams to `grad`. [`Tape::tangent`] and [`Tape::backward_energy`] come
    /// before. `also` is what dL of a second node begins with.
    pub fn backward_loss(&mut self, grad: &mut [f64], y: Id, dl_y: &[f64], also: Option<(Id, &[f64])>) {
        self.nodes.iter_mut().for_each(|node| node.dl.fill(0.0));
        self.node_mut(y).dl.copy_from_slice(dl_y);
        if let Some((id, dl)) = also {
            self.node_mut(id).dl.copy_from_slice(dl);
        }
        for k in (0..self.nodes.len()).rev() {
            let y = self.nodes[k].clone();
            match &y.op {
                Op::Param { offset } => {
                    y.dl.iter().zip(&mut grad[*offset..]).for_each(|(dl, grad)| *grad += dl);
                }
                Op::Map { x, f } => {
                    let x = self.node_mut(*x);
                    for k in 0..y.dl.len() {
                        let [_, d, dd] = f(x.value[k]);
                        x.dl[k] += d * y.dl[k] + dd * x.dot[k] * y.de[k];
                    }
                }
                Op::Product { .. } | Op::Multiply { .. } => {
                    self.product_back(&y, Adjoint::Dl, &y.dl, VALUE);
                    self.product_back(&y, Adjoint::Dl, &y.de, DOT);
                }
                _ => self.linear_back(&y, Adjoint::Dl),
            }
        }
    }

    fn adjoint_mut(&mut self, id: Id, which: Adjoint) -> &mut [f64] {
        let node = self.node_mut(id);
        if which == Adjoint::De { &mut node.de } else { &mut node.dl }
    }

    /// Adds `dy b` to the adjoint of a and `a dy` to that of b, with one part of the other factor.
    fn product_back(&mut self, y: &Node, which: Adjoint, dy: &[f64], of: Part) {
        match y.op {
            Op::Product { a, b, turned } => {
                let (na, nb) = (self.node(a).clone(), self.node(b).clone());
                let at = |k: usize, c: usize| if turned { c * nb.width + k } else { k * nb.width + c };
                for (r, c) in elements(y) {
                    let dy = dy[r * y.width + c];
                    for k in 0..na.width {
                        self.adjoint_mut(a, which)[r * na.width + k] += dy * of(&nb)[at(k, c)];
                        self.adjoint_mut(b, which)[at(k, c)] += dy * of(&na)[r * na.width + k];
                    }
                }
            }
            Op::Multiply { a, b } => {
                let (na, nb) = (self.node(a).clone(), self.node(b).clone());
                for (r, c) in elements(y) {
                    let (dy, ka, kb) = (dy[r * y.width + c], na.at(r, c), nb.at(r, c));
                    self.adjoint_mut(a, which)[ka] += dy * of(&nb)[kb];
                    self.adjoint_mut(b, which)[kb] += dy * of(&na)[ka];
                }
            }
            _ => unreachable!("only products are asked"),
        }
    }

    /// The adjoint of operations that are linear in everything.
    fn linear_back(&mut self, y: &Node, which: Adjoint) {
        let dy = if which == Adjoint::De { &y.de } else { &y.dl };
        let element = |(r, c): (usize, usize)| dy[r * y.width + c];
        match &y.op {
            Op::Add { a, b } => {
                for operand in [*a, *b] {
                    for (r, c) in elements(y) {
                        let k = self.node(operand).at(r, c);
                        self.adjoint_mut(operand, which)[k] += element((r, c));
                    }
                }
            }
            Op::Gather { x, index } => {
                let dx = self.adjoint_mut(*x, which);
                elements(y).for_each(|(r, c)| dx[index[r] * y.width + c] += element((r, c)));
            }
            Op::Scatter { x, index } => {
                let dx = self.adjoint_mut(*x, which);
                dx.iter_mut()
                    .enumerate()
                    .for_each(|(k, dx)| *dx += element((index[k / y.width], k % y.width)));
            }
            Op::Columns { x, start } => {
                let width = self.node(*x).width;
                let dx = self.adjoint_mut(*x, which);
                elements(y).for_each(|(r, c)| dx[r * width + start + c] += element((r, c)));
            }
            Op::Concat { parts } => {
                let mut start = 0;
                for &part in parts {
                    let width = self.node(part).width;
                    let dx = self.adjoint_mut(part, which);
                    for (r, c) in (0..y.rows).flat_map(|r| (0..width).map(move |c| (r, c))) {
                        dx[r * width + c] += element((r, start + c));
                    }
                    start += width;
                }
            }
            Op::Turn { x } => {
                let dx = self.adjoint_mut(*x, which);
                elements(y).for_each(|(r, c)| dx[c * y.rows + r] += element((r, c)));
            }
            Op::Reshape { x } => {
                let dx = self.adjoint_mut(*x, which);
                dx.iter_mut().zip(dy).for_each(|(dx, dy)| *dx += dy);
            }
            Op::SumColumns { x } => {
                let width = self.node(*x).width;
                let dx = self.adjoint_mut(*x, which);
                dx.iter_mut().enumerate().for_each(|(k, dx)| *dx += dy[k / width]);
            }
            Op::SumRows { x } => {
                let dx = self.adjoint_mut(*x, which);
                dx.iter_mut().enumerate().for_each(|(k, dx)| *dx += dy[k % y.width]);
            }
            _ => {}
        }
    }
}

/// All (row, column).
fn elements(y: &Node) -> impl Iterator<Item = (usize, usize)> + use<> {
    let width = y.width;
    (0..y.rows).flat_map(move |r| (0..width).map(move |c| (r, c)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(n: usize, salt: f64) -> Vec<f64> {
        (0..n).map(|k| ((k as f64 + salt) * 12.9898).sin()).collect()
    }

    fn dot(a: &[f64], b: &[f64]) -> f64 {
        a.iter().zip(b).map(|(a, b)| a * b).sum()
    }

    type Build = fn(&mut Tape, &[f64], Id, Id) -> Id;

    /// Every operation on an input of three rows and four columns, and one of three and two.
    const OPS: &[(&str, Build)] = &[
        ("param", |t, p, x, _| {
            let w = t.param(p, 2, 4, 3);
            t.product(x, w)
        }),
        ("turned", |t, p, x, _| {
            let w = t.param(p, 1, 3, 4);
            t.product_turned(x, w)
        }),
        ("square", |t, _, x, _| t.product_turned(x, x)),
        ("map", |t, _, x, _| t.map(x, |x| [x.exp(), x.exp(), x.exp()])),
        ("scaled", |t, _, x, _| t.scaled(x, -2.5)),
        ("multiply", |t, _, x, _| t.multiply(x, x)),
        ("multiply, a column", |t, _, x, e| {
            let column = t.columns(e, 1, 1);
            t.multiply(x, column)
        }),
        ("multiply, a row", |t, p, x, _| {
            let row = t.param(p, 3, 1, 4);
            t.multiply(row, x)
        }),
        ("add, a row", |t, p, x, _| {
            let row = t.param(p, 3, 1, 4);
            t.add(x, row)
        }),
        ("gather", |t, _, x, _| t.gather(x, vec![2, 0, 2, 1])),
        ("scatter", |t, _, x, _| t.scatter(x, vec![1, 0, 1], 2)),
        ("concat", |t, _, x, e| t.concat(&[e, x, e])),
        ("turn", |t, _, x, e| {
            let turned = t.turn(x);
            t.product(turned, e)
        }),
        ("reshape", |t, _, x, e| {
            let (tall, e) = (t.reshape(x, 6, 2), t.gather(e, vec![0, 0, 1, 1, 2, 2]));
            t.multiply(tall, e)
        }),
        ("flatten", |t, _, x, _| t.flatten(x)),
        ("sum of columns", |t, _, x, _| t.sum_columns(x)),
        ("sum of rows", |t, _, x, _| t.sum_rows(x)),
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
            t.tangent();
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
            t.tangent();
            let w = noise(t.node(y).value.len(), 0.7);
            t.backward_energy(y, &w);
            let back: f64 = [Id(0), Id(1)].iter().map(|&k| dot(&t.node(k).de, &t.node(k).dot)).sum();
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
                t.tangent();
                let n = t.node(y).value.len();
                dot(&noise(n, 0.7), &t.node(y).value) + dot(&noise(n, 0.8), &t.node(y).dot)
            };
            let (mut t, y) = tape(*build, &params, &x, &e, 0.0);
            t.tangent();
            let n = t.node(y).value.len();
            t.backward_energy(y, &noise(n, 0.8));
            let mut grad = vec![0.0; params.len()];
            t.backward_loss(&mut grad, y, &noise(n, 0.7), None);
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
