//! The networks, written down as their formulas.

use crate::engine::pinet::PinetFrame;
use crate::engine::pinet::activation::jet;
use crate::engine::pinet::geometry::{tensor, unit};
use crate::engine::reference::tape::{Id, Tape};
use crate::model::pinet::options::{NetworkKind, Wiring};
use crate::model::pinet::{Block, Dense, PinetModel, Tensor};

/// The tape of one structure and where its inputs and its output lie.
pub struct Network {
    pub tape: Tape,
    /// `[n_pairs, n_basis]`
    pub basis: Id,
    /// PiNet2: `[n_pairs * size, 1]`, unit vectors and tensors of pairs.
    pub directions: Vec<Id>,
    /// `[n_atoms, 1]`
    pub out: Id,
}

/// Indices of pairs.
struct Pairs {
    i: Vec<usize>,
    j: Vec<usize>,
    n_atoms: usize,
}

impl Pairs {
    fn new(frame: &PinetFrame) -> Self {
        let i = (0..frame.n_atoms()).flat_map(|i| frame.pairs_of(i).map(move |_| i)).collect();
        Pairs { i, j: frame.j.iter().map(|&j| j as usize).collect(), n_atoms: frame.n_atoms() }
    }
}

/// Row `index[p]` of things of `size` rows each, component by component.
fn components(index: &[usize], size: usize) -> Vec<usize> {
    index.iter().flat_map(|&k| (0..size).map(move |x| k * size + x)).collect()
}

/// Evaluates a structure.
pub fn network(model: &PinetModel, params: &[f64], frame: &PinetFrame) -> Network {
    let mut tape = Tape::default();
    let n_types = model.options.atom_types.len();
    let mut one_hot = vec![0.0; frame.n_atoms() * n_types];
    for (i, column) in frame.columns.iter().enumerate() {
        if let Some(c) = column {
            one_hot[i * n_types + *c as usize] = 1.0;
        }
    }
    let p = tape.input(frame.n_atoms(), n_types, one_hot);
    let basis = tape.input(frame.n_pairs(), model.n_basis(), frame.basis.clone());
    let pairs = Pairs::new(frame);
    let mut directions = Vec::new();
    let out = match model.options.kind {
        NetworkKind::PiNet => pinet(&mut tape, model, params, &pairs, p, basis),
        NetworkKind::PiNet2 => {
            for t in &model.blocks[0].tensors {
                let value: Vec<f64> = match t.size {
                    3 => frame.d.iter().flat_map(unit).collect(),
                    _ => frame.d.iter().flat_map(|d| tensor(&unit(d))).collect(),
                };
                directions.push(tape.input(frame.n_pairs() * t.size, 1, value));
            }
            pinet2(&mut tape, model, params, &pairs, p, basis, &directions)
        }
    };
    Network { tape, basis, directions, out }
}

/// act(x W + b)
fn dense(tape: &mut Tape, params: &[f64], x: Id, layer: &Dense) -> Id {
    let w = tape.param(params, layer.w, layer.n_in, layer.n_out);
    let mut y = tape.product(x, w);
    if let Some(b) = layer.b {
        let b = tape.param(params, b, 1, layer.n_out);
        y = tape.add(y, b);
    }
    let act = layer.act;
    tape.map(y, move |z| jet(act, z))
}

/// A chain of layers.
fn chain(tape: &mut Tape, params: &[f64], x: Id, layers: &[Dense]) -> Id {
    layers.iter().fold(x, |x, layer| dense(tape, params, x, layer))
}

/// y_c = sum_b w_(c b) e_b, with b fastest in w.
fn contract(tape: &mut Tape, w: Id, e: Id) -> Id {
    let (rows, n) = (tape.node(e).rows, tape.node(e).width);
    let width = tape.node(w).width / n;
    let w = tape.reshape(w, rows * width, n);
    let row_of: Vec<usize> = (0..rows * width).map(|k| k / width).collect();
    let e = tape.gather(e, row_of);
    let terms = tape.multiply(w, e);
    let sums = tape.sum_columns(terms);
    tape.reshape(sums, rows, width)
}

/// II(PI(p)): the interactions of pairs.
fn interactions(tape: &mut Tape, block: &Block, params: &[f64], pairs: &Pairs, p: Id, basis: Id) -> Id {
    let (p_i, p_j) = (tape.gather(p, pairs.i.clone()), tape.gather(p, pairs.j.clone()));
    let both = tape.concat(&[p_i, p_j]);
    let w = chain(tape, params, both, &block.pi);
    let i = contract(tape, w, basis);
    chain(tape, params, i, &block.ii)
}

/// old + new, the old one brought to the width of the new one.
fn residual(tape: &mut Tape, layer: &Option<Dense>, params: &[f64], old: Id, new: Id) -> Id {
    let old = layer.as_ref().map_or(old, |layer| dense(tape, params, old, layer));
    tape.add(old, new)
}

/// Adds the output of a block to those before.
fn accumulate(tape: &mut Tape, out: Option<Id>, new: Id) -> Option<Id> {
    Some(out.map_or(new, |out| tape.add(out, new)))
}

fn pinet(tape: &mut Tape, model: &PinetModel, params: &[f64], pairs: &Pairs, p: Id, basis: Id) -> Id {
    let mut p = p;
    let mut out = None;
    for block in &model.blocks {
        let q = chain(tape, params, p, &block.pp);
        let i = interactions(tape, block, params, pairs, q, basis);
        let n = tape.scatter(i, pairs.i.clone(), pairs.n_atoms);
        let seen = match model.options.version {
            // The output sees the sum over neighbours; the residual starts before PP.
            Wiring::Master => {
                p = residual(tape, &block.res, params, p, n);
                n
            }
            // The residual starts after PP; the output sees what comes out of it.
            Wiring::Fork => {
                p = residual(tape, &block.res, params, q, n);
                p
            }
        };
        let new = chain(tape, params, seen, &block.out);
        out = accumulate(tape, out, new);
    }
    out.expect("a network has at least one block")
}

fn pinet2(
    tape: &mut Tape,
    model: &PinetModel,
    params: &[f64],
    pairs: &Pairs,
    p: Id,
    basis: Id,
    directions: &[Id],
) -> Id {
    let mut p = p;
    let mut tensors: Vec<Id> = (model.blocks[0].tensors.iter())
        .map(|t| tape.input(pairs.n_atoms * t.size, 1, vec![0.0; pairs.n_atoms * t.size]))
        .collect();
    let mut out = None;
    for block in &model.blocks {
        let i = interactions(tape, block, params, pairs, p, basis);
        let width = tape.node(i).width / (block.tensors.len() + 1);
        let sum = tape.scatter(i, pairs.i.clone(), pairs.n_atoms);
        let mut invariants = vec![chain(tape, params, sum, &block.invar_pp)];
        let mut q = Vec::new();
        for (k, t) in block.tensors.iter().enumerate() {
            // (p_j + d) times part k + 1 of the interactions, summed over neighbours.
            let (ci, cj) = (components(&pairs.i, t.size), components(&pairs.j, t.size));
            let p_pair = match &t.pair {
                None => tape.gather(tensors[k], cj),
                Some([wi, wj]) => {
                    let (a, b) = (dense(tape, params, tensors[k], wi), dense(tape, params, tensors[k], wj));
                    let (a, b) = (tape.gather(a, ci.clone()), tape.gather(b, cj));
                    tape.add(a, b)
                }
            };
            let turned = tape.add(p_pair, directions[k]);
            let part = tape.columns(i, (k + 1) * width, width);
            let repeat: Vec<usize> = (0..pairs.i.len() * t.size).map(|r| r / t.size).collect();
            let part = tape.gather(part, repeat);
            let ix = tape.multiply(turned, part);
            let sum = tape.scatter(ix, ci, pairs.n_atoms * t.size);
            let qx = dense(tape, params, sum, &t.pp);
            invariants.push(norm(tape, t, params, qx, pairs.n_atoms));
            q.push(qx);
        }
        let all = tape.concat(&invariants);
        let u = chain(tape, params, all, &block.pp);
        let n = tape.columns(u, 0, width);
        for (k, t) in block.tensors.iter().enumerate() {
            let factor = tape.columns(u, (k + 1) * width, width);
            let repeat: Vec<usize> = (0..pairs.n_atoms * t.size).map(|r| r / t.size).collect();
            let factor = tape.gather(factor, repeat);
            let new = tape.multiply(q[k], factor);
            tensors[k] = residual(tape, &t.res, params, tensors[k], new);
        }
        let new = chain(tape, params, n, &block.out);
        out = accumulate(tape, out, new);
        p = residual(tape, &block.res, params, p, n);
    }
    out.expect("a network has at least one block")
}

/// sum over components of q q, or of (q A) (q B).
fn norm(tape: &mut Tape, t: &Tensor, params: &[f64], q: Id, n_atoms: usize) -> Id {
    let [a, b] = match &t.dot {
        None => [q, q],
        Some(layers) => [&layers[0], &layers[1]].map(|layer| dense(tape, params, q, layer)),
    };
    let square = tape.multiply(a, b);
    let fold: Vec<usize> = (0..n_atoms * t.size).map(|r| r / t.size).collect();
    tape.scatter(square, fold, n_atoms)
}
