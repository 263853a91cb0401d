//! The networks, written down as their formulas.

use super::tape::{Id, Tape};
use crate::engine::pinet::PinetFrame;
use crate::engine::pinet::geometry::{tensor, unit};
use crate::model::pinet::options::{NetworkKind, Wiring};
use crate::model::pinet::{Block, PinetModel};
use std::rc::Rc;

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
    i: Rc<[usize]>,
    j: Rc<[usize]>,
    n_atoms: usize,
}

impl Pairs {
    fn new(frame: &PinetFrame) -> Self {
        let i = (0..frame.n_atoms()).flat_map(|i| frame.pairs_of(i).map(move |_| i)).collect();
        Pairs { i, j: frame.j.iter().map(|&j| j as usize).collect(), n_atoms: frame.n_atoms() }
    }
}

/// Row `index[p]` of things of `size` rows each, component by component.
fn components(index: &[usize], size: usize) -> Rc<[usize]> {
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

/// II(PI(p)): the interactions of pairs.
fn interactions(tape: &mut Tape, block: &Block, params: &[f64], pairs: &Pairs, p: Id, basis: Id) -> Id {
    let (p_i, p_j) = (tape.gather(p, &pairs.i), tape.gather(p, &pairs.j));
    let both = tape.concat(&[p_i, p_j]);
    let w = tape.chain(params, both, &block.pi);
    let i = tape.contract(w, basis);
    tape.chain(params, i, &block.ii)
}

/// old + new, the old one brought to the width of the new one.
fn residual(
    tape: &mut Tape,
    layer: &Option<crate::model::pinet::Dense>,
    params: &[f64],
    old: Id,
    new: Id,
) -> Id {
    let old = layer.as_ref().map_or(old, |layer| tape.dense(params, old, layer));
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
        let q = tape.chain(params, p, &block.pp);
        let i = interactions(tape, block, params, pairs, q, basis);
        let n = tape.sum(i, &pairs.i, pairs.n_atoms);
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
        let new = tape.chain(params, seen, &block.out);
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
        let sum = tape.sum(i, &pairs.i, pairs.n_atoms);
        let mut invariants = vec![tape.chain(params, sum, &block.invar_pp)];
        let mut q = Vec::new();
        for (k, t) in block.tensors.iter().enumerate() {
            // (p_j + d) times part k + 1 of the interactions, summed over neighbours.
            let (ci, cj) = (components(&pairs.i, t.size), components(&pairs.j, t.size));
            let p_pair = match &t.pair {
                None => tape.gather(tensors[k], &cj),
                Some([wi, wj]) => {
                    let (a, b) = (tape.dense(params, tensors[k], wi), tape.dense(params, tensors[k], wj));
                    let (a, b) = (tape.gather(a, &ci), tape.gather(b, &cj));
                    tape.add(a, b)
                }
            };
            let turned = tape.add(p_pair, directions[k]);
            let part = tape.columns(i, (k + 1) * width, width);
            let repeat: Rc<[usize]> = (0..pairs.i.len() * t.size).map(|r| r / t.size).collect();
            let part = tape.gather(part, &repeat);
            let ix = tape.multiply(turned, part);
            let sum = tape.sum(ix, &ci, pairs.n_atoms * t.size);
            let qx = tape.dense(params, sum, &t.pp);
            invariants.push(norm(tape, t, params, qx, pairs.n_atoms));
            q.push(qx);
        }
        let all = tape.concat(&invariants);
        let u = tape.chain(params, all, &block.pp);
        let n = tape.columns(u, 0, width);
        for (k, t) in block.tensors.iter().enumerate() {
            let factor = tape.columns(u, (k + 1) * width, width);
            let repeat: Rc<[usize]> = (0..pairs.n_atoms * t.size).map(|r| r / t.size).collect();
            let factor = tape.gather(factor, &repeat);
            let new = tape.multiply(q[k], factor);
            tensors[k] = residual(tape, &t.res, params, tensors[k], new);
        }
        let new = tape.chain(params, n, &block.out);
        out = accumulate(tape, out, new);
        p = residual(tape, &block.res, params, p, n);
    }
    out.expect("a network has at least one block")
}

/// sum over components of q q, or of (q A) (q B).
fn norm(tape: &mut Tape, t: &crate::model::pinet::Tensor, params: &[f64], q: Id, n_atoms: usize) -> Id {
    let [a, b] = match &t.dot {
        None => [q, q],
        Some(layers) => [&layers[0], &layers[1]].map(|layer| tape.dense(params, q, layer)),
    };
    let square = tape.multiply(a, b);
    let fold: Rc<[usize]> = (0..n_atoms * t.size).map(|r| r / t.size).collect();
    tape.sum(square, &fold, n_atoms)
}
