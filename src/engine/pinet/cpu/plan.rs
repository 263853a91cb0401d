//! A network as a list of operations on matrices.
//!
//! Operations are gathered in segments. Within a segment a block of atoms, or of pairs, goes through all operations
//! without looking at rows of other blocks, so that its rows stay in cache; between segments all blocks wait for each
//! other. The first layer on (P_i, P_j) is two products for each atom, `U = P W_i + b` and `V = P W_j`, which pairs
//! only have to add. The last layer before the contraction has its columns reordered, radial functions slowest, so
//! that the contraction runs along vectors.

use super::memory::{Buf, Rows, Shape};
use crate::model::pinet::options::{Act, NetworkKind, Wiring};
use crate::model::pinet::{Block, Dense, PinetModel};

/// Some columns of a matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct View {
    pub buf: Buf,
    pub col: usize,
    pub width: usize,
}

/// A layer of the network as the engine uses it: all of its rows of W, or some.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Layer {
    pub n_in: usize,
    pub n_out: usize,
    pub act: Act,
    /// Offsets in the flat vector of parameters.
    pub w: usize,
    pub b: Option<usize>,
    /// Radial functions, where columns (channel, radial) are reordered to (radial, channel); otherwise 1.
    pub radial: usize,
    /// Where W, its transpose and b lie among the packed weights.
    pub packed: [usize; 3],
    /// Where its gradient lies in the slot of its segment: W, b.
    pub slot: [usize; 2],
}

/// One operation. Adjoints of atoms are added up; those of pairs are overwritten.
#[derive(Debug, Clone, PartialEq)]
pub enum Op {
    /// y = act(x W + b) on `parts` rows for each atom or pair. `constant`: nothing is passed back to x.
    Dense { x: View, y: View, layer: Layer, parts: usize, constant: bool },
    /// y = act(u_i + v_j); `z` keeps dE and dL before the activation.
    PairInput { u: Buf, v: Buf, y: Buf, z: Buf, act: Act },
    /// y_c = sum_b w_(b c) e_b
    Contract { w: Buf, y: Buf, n_basis: usize },
    /// Both at once, with the tanh between them: w = tanh(x W + b), y_c = sum_b w_(b c) e_b
    Radial { x: View, w: Buf, y: Buf, layer: Layer, n_basis: usize },
    /// The first block, where w depends on the elements of a pair alone: y_c = sum_b w_(kind b c) e_b ([`super::kinds`])
    Kinds { y: Buf, n_basis: usize },
    /// y_i = sum of the pairs of i
    Sum { x: Buf, y: Buf },
    /// y_i = sum over pairs of (p_j + a_i + d) s, with directions d of one size
    Turn { p: Option<Buf>, a: Option<Buf>, direction: usize, s: View, y: Buf },
    /// y = a + b
    Add { a: View, b: View, y: View },
    /// y = sum over components of a b
    Dot { a: Buf, b: Buf, y: View, size: usize },
    /// y = q u, one u for all components
    Scale { q: Buf, u: View, y: Buf, size: usize },
    /// Brings adjoints of pairs back to their second atom: v of [`Op::PairInput`].
    SpreadInput { v: Buf, z: Buf },
    /// The same for p of [`Op::Turn`].
    SpreadTurn { p: Buf, s: View, y: Buf, size: usize },
}

/// Operations that a block goes through at one go.
#[derive(Debug, Clone, PartialEq)]
pub struct Segment {
    pub rows: Rows,
    pub ops: Vec<Op>,
    /// Its part of the gradient: where it starts, and its length.
    pub first_slot: usize,
    pub slot: usize,
}

/// The whole network.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    pub shapes: Vec<Shape>,
    pub segments: Vec<Segment>,
    /// The one-hot rows.
    pub input: Buf,
    /// The outputs of the blocks, which are to be added up.
    pub outputs: Vec<Buf>,
    /// Sizes of the tensors: none, 3, or 3 and 5.
    pub sizes: Vec<usize>,
    pub n_basis: usize,
    /// Length of the packed weights.
    pub packed: usize,
    /// The widest scratch that an operation needs, in numbers for each row.
    pub scratch: usize,
    /// Kinds of elements where [`Op::Kinds`] is used, the unknown one among them; their part of the gradient is the
    /// last one.
    pub n_kinds: usize,
    /// Length of the gradient in pieces, that of kinds included.
    pub slots: usize,
}

/// Pairs of kinds that are worth a table.
const MOST_KINDS: usize = 300;

impl Plan {
    pub fn new(model: &PinetModel) -> Self {
        Self::build(model, true)
    }

    /// The same without [`Op::Radial`] and [`Op::Kinds`].
    pub fn plain(model: &PinetModel) -> Self {
        Self::build(model, false)
    }

    fn build(model: &PinetModel, fuses: bool) -> Self {
        let mut builder = Builder { n_basis: model.n_basis(), fuses, ..Builder::default() };
        let input = builder.buffer(Rows::Atom, model.options.atom_types.len(), false);
        match model.options.kind {
            NetworkKind::PiNet => builder.pinet(model, input),
            NetworkKind::PiNet2 => builder.pinet2(model, input),
        }
        builder.finish(model, input)
    }
}

#[derive(Default)]
struct Builder {
    shapes: Vec<Shape>,
    segments: Vec<Segment>,
    atoms: Vec<Op>,
    pairs: Vec<Op>,
    /// Operations that end the segment of atoms in hand: they must come first on the way back.
    spread: Vec<Op>,
    outputs: Vec<Buf>,
    n_basis: usize,
    /// Whether there may be [`Op::Radial`] and [`Op::Kinds`].
    fuses: bool,
    n_kinds: usize,
    first_slot: usize,
    packed: usize,
    slot: usize,
    scratch: usize,
}

/// The derivatives of tanh follow from its value, and a linear layer has none worth keeping.
fn needs_jets(act: Act) -> bool {
    !matches!(act, Act::Tanh | Act::Linear)
}

impl Builder {
    fn buffer(&mut self, rows: Rows, width: usize, jets: bool) -> Buf {
        self.shapes.push(Shape { rows, width, jets, shared: false, keeps_de: true });
        Buf(self.shapes.len() - 1)
    }

    fn all(&self, buf: Buf) -> View {
        View { buf, col: 0, width: self.shapes[buf.0].width }
    }

    /// A layer with rows `first ..` of W.
    fn layer(&mut self, dense: &Dense, first: usize, n_in: usize, bias: bool, radial: usize) -> Layer {
        let n = n_in * dense.n_out;
        let packed = [self.packed, self.packed + n, self.packed + 2 * n];
        self.packed += 2 * n + dense.n_out;
        let slot = [self.slot, self.slot + n];
        self.slot += n + dense.n_out;
        self.scratch = self.scratch.max(2 * dense.n_out);
        Layer {
            n_in,
            n_out: dense.n_out,
            act: dense.act,
            w: dense.w + first * dense.n_out,
            b: dense.b.filter(|_| bias),
            radial,
            packed,
            slot,
        }
    }

    fn push(&mut self, rows: Rows, op: Op) {
        if rows == Rows::Atom { self.atoms.push(op) } else { self.pairs.push(op) }
    }

    /// A whole layer into a matrix of its own.
    fn dense(&mut self, x: View, dense: &Dense, radial: usize) -> View {
        let rows = self.shapes[x.buf.0].rows;
        let y = self.buffer(rows, dense.n_out, needs_jets(dense.act));
        let y = self.all(y);
        self.dense_into(x, dense, radial, y, 1);
        y
    }

    fn dense_into(&mut self, x: View, dense: &Dense, radial: usize, y: View, parts: usize) {
        let rows = self.shapes[x.buf.0].rows;
        let layer = self.layer(dense, 0, dense.n_in, true, radial);
        self.scratch = self.scratch.max(2 * dense.n_out * parts);
        self.push(rows, Op::Dense { x, y, layer, parts, constant: x.buf.0 == 0 });
    }

    fn chain(&mut self, x: View, layers: &[Dense]) -> View {
        layers.iter().fold(x, |x, layer| self.dense(x, layer, 1))
    }

    /// A chain whose last layer writes to some columns.
    fn chain_into(&mut self, x: View, layers: &[Dense], y: View) {
        let Some((last, before)) = layers.split_last() else {
            unreachable!("pp_nodes of PiNet2 is not empty")
        };
        let x = self.chain(x, before);
        self.dense_into(x, last, 1, y, 1);
    }

    /// Ends the segments of atoms and of pairs in hand.
    fn end_atoms(&mut self) {
        self.atoms.append(&mut self.spread);
        let ops = std::mem::take(&mut self.atoms);
        self.end(Rows::Atom, ops);
    }

    fn end(&mut self, rows: Rows, ops: Vec<Op>) {
        self.segments.push(Segment { rows, ops, first_slot: self.first_slot, slot: self.slot });
        self.first_slot += self.slot;
        self.slot = 0;
    }

    fn end_pairs(&mut self) {
        let ops = std::mem::take(&mut self.pairs);
        self.end(Rows::Pair, ops);
    }

    /// II(PI(q)) of pairs; ends the segment of atoms that gives U and V.
    fn interactions(&mut self, block: &Block, q: View) -> View {
        let kinds = self.shapes[0].width + 1;
        if self.fuses && q.buf.0 == 0 && kinds * kinds <= MOST_KINDS {
            self.n_kinds = kinds;
            self.end_atoms();
            let n_out = block.pi.last().expect("pi_nodes is not empty").n_out;
            let y = self.buffer(Rows::Pair, n_out / self.n_basis, false);
            self.push(Rows::Pair, Op::Kinds { y, n_basis: self.n_basis });
            let y = self.all(y);
            return self.chain(y, &block.ii);
        }
        let (first, rest) = block.pi.split_first().expect("pi_nodes is not empty");
        let radial = if rest.is_empty() { self.n_basis } else { 1 };
        let [u, v, z] =
            [Rows::Atom, Rows::Atom, Rows::Pair].map(|rows| self.buffer(rows, first.n_out, false));
        for (k, to) in [u, v].into_iter().enumerate() {
            let mut layer = self.layer(first, k * q.width, q.width, k == 0, radial);
            layer.act = Act::Linear;
            let y = self.all(to);
            self.push(Rows::Atom, Op::Dense { x: q, y, layer, parts: 1, constant: q.buf.0 == 0 });
        }
        self.shapes[z.0].shared = true;
        self.spread.push(Op::SpreadInput { v, z });
        self.end_atoms();
        let y = self.buffer(Rows::Pair, first.n_out, needs_jets(first.act));
        self.push(Rows::Pair, Op::PairInput { u, v, y, z, act: first.act });
        let mut w = self.all(y);
        let (last, hidden) = match rest.split_last() {
            Some((last, hidden)) => (Some(last), hidden),
            None => (None, rest),
        };
        w = self.chain(w, hidden);
        let channels = |width: usize, n_basis: usize| width / n_basis;
        let i = match last {
            Some(dense) if self.fuses && dense.act == Act::Tanh => {
                let i = self.buffer(Rows::Pair, channels(dense.n_out, self.n_basis), false);
                let (x, to) = (w, self.buffer(Rows::Pair, dense.n_out, false));
                let layer = self.layer(dense, 0, dense.n_in, true, self.n_basis);
                self.shapes[to.0].keeps_de = false;
                self.push(Rows::Pair, Op::Radial { x, w: to, y: i, layer, n_basis: self.n_basis });
                i
            }
            _ => {
                if let Some(dense) = last {
                    w = self.dense(w, dense, self.n_basis);
                }
                let i = self.buffer(Rows::Pair, channels(w.width, self.n_basis), false);
                self.shapes[w.buf.0].keeps_de = false;
                self.push(Rows::Pair, Op::Contract { w: w.buf, y: i, n_basis: self.n_basis });
                i
            }
        };
        let i = self.all(i);
        self.chain(i, &block.ii)
    }

    /// Sums interactions over neighbours and ends the segment of pairs.
    fn sum(&mut self, i: View) -> View {
        let n = self.buffer(Rows::Atom, i.width, false);
        self.shapes[i.buf.0].keeps_de = false;
        self.push(Rows::Pair, Op::Sum { x: i.buf, y: n });
        self.end_pairs();
        self.all(n)
    }

    fn residual(&mut self, res: &Option<Dense>, old: View, new: View) -> View {
        let old = res.as_ref().map_or(old, |dense| self.dense(old, dense, 1));
        let y = self.buffer(Rows::Atom, new.width, false);
        let y = self.all(y);
        self.push(Rows::Atom, Op::Add { a: old, b: new, y });
        y
    }

    fn output(&mut self, seen: View, block: &Block) {
        let out = self.chain(seen, &block.out);
        self.outputs.push(out.buf);
    }

    fn pinet(&mut self, model: &PinetModel, input: Buf) {
        let mut p = self.all(input);
        for (t, block) in model.blocks.iter().enumerate() {
            let q = self.chain(p, &block.pp);
            let i = self.interactions(block, q);
            let n = self.sum(i);
            let is_last = t + 1 == model.blocks.len();
            match model.options.version {
                Wiring::Master => {
                    self.output(n, block);
                    // Nobody sees the last residual.
                    if !is_last {
                        p = self.residual(&block.res, p, n);
                    }
                }
                Wiring::Fork => {
                    p = self.residual(&block.res, q, n);
                    self.output(p, block);
                }
            }
        }
    }

    fn pinet2(&mut self, model: &PinetModel, input: Buf) {
        let mut p = self.all(input);
        // Tensors are zero before the first block, which is then only about directions.
        let mut tensors: Vec<Option<Buf>> = vec![None; model.blocks[0].tensors.len()];
        for (t, block) in model.blocks.iter().enumerate() {
            let mixed = self.mixed(block, &tensors);
            let i = self.interactions(block, p);
            let width = i.width / (block.tensors.len() + 1);
            let part = |k: usize| View { buf: i.buf, col: (k + 1) * width, width };
            let mut sums = Vec::new();
            for (k, tensor) in block.tensors.iter().enumerate() {
                let y = self.buffer(Rows::Atom, tensor.size * width, false);
                let [a, p] = mixed[k];
                self.push(Rows::Pair, Op::Turn { p, a, direction: k, s: part(k), y });
                self.scratch = self.scratch.max(2 * width);
                sums.push(y);
            }
            let n = self.sum(i);
            // Spread of the tensors belongs to the segment before the pairs, which is ended: it is put there.
            self.spread_turns(block, &mixed, part, &sums);
            let u = self.invariants(block, n, &sums, &mut tensors, t + 1 == model.blocks.len(), width);
            self.output(u, block);
            if t + 1 < model.blocks.len() {
                p = self.residual(&block.res, p, u);
            }
        }
    }

    /// What the tensors of the two atoms of a pair are for it: of the first, and of the second.
    fn mixed(&mut self, block: &Block, tensors: &[Option<Buf>]) -> Vec<[Option<Buf>; 2]> {
        let mut mixed = Vec::new();
        for (tensor, old) in block.tensors.iter().zip(tensors) {
            mixed.push(match (&tensor.pair, *old) {
                (_, None) => [None, None],
                (None, old) => [None, old],
                (Some(pair), Some(old)) => [&pair[0], &pair[1]].map(|dense| {
                    let y = self.buffer(Rows::Atom, self.shapes[old.0].width, false);
                    let (x, view) = (self.all(old), self.all(y));
                    self.dense_into(x, dense, 1, view, tensor.size);
                    Some(y)
                }),
            });
        }
        mixed
    }

    fn spread_turns(
        &mut self,
        block: &Block,
        mixed: &[[Option<Buf>; 2]],
        part: impl Fn(usize) -> View,
        sums: &[Buf],
    ) {
        let before = self.segments.len() - 2;
        for (k, tensor) in block.tensors.iter().enumerate() {
            if let [_, Some(p)] = mixed[k] {
                self.shapes[part(k).buf.0].shared = true;
                self.segments[before].ops.push(Op::SpreadTurn {
                    p,
                    s: part(k),
                    y: sums[k],
                    size: tensor.size,
                });
            }
        }
    }

    /// From sums over neighbours to the new properties; returns the invariant ones and replaces the tensors.
    fn invariants(
        &mut self,
        block: &Block,
        n: View,
        sums: &[Buf],
        tensors: &mut [Option<Buf>],
        is_last: bool,
        width: usize,
    ) -> View {
        let c = block.invar_pp.last().map_or(0, |dense| dense.n_out);
        let jets = block.invar_pp.last().is_some_and(|dense| needs_jets(dense.act));
        let cat = self.buffer(Rows::Atom, c * (block.tensors.len() + 1), jets);
        self.chain_into(n, &block.invar_pp, View { buf: cat, col: 0, width: c });
        let mut q = Vec::new();
        for (k, tensor) in block.tensors.iter().enumerate() {
            let [qk, a, b] = {
                let qk = self.tensor_dense(sums[k], &tensor.pp, tensor.size);
                match &tensor.dot {
                    None => [qk; 3],
                    Some(pair) => {
                        let [a, b] =
                            [&pair[0], &pair[1]].map(|dense| self.tensor_dense(qk, dense, tensor.size));
                        [qk, a, b]
                    }
                }
            };
            let y = View { buf: cat, col: (k + 1) * c, width: c };
            self.push(Rows::Atom, Op::Dot { a, b, y, size: tensor.size });
            q.push(qk);
        }
        let cat = self.all(cat);
        let u = self.chain(cat, &block.pp);
        for (k, tensor) in block.tensors.iter().enumerate().filter(|_| !is_last) {
            let new = self.buffer(Rows::Atom, tensor.size * width, false);
            let factor = View { buf: u.buf, col: (k + 1) * width, width };
            self.push(Rows::Atom, Op::Scale { q: q[k], u: factor, y: new, size: tensor.size });
            tensors[k] = Some(match tensors[k] {
                None => new,
                Some(old) => {
                    // Both have the width of a later block.
                    let y = self.buffer(Rows::Atom, tensor.size * width, false);
                    let [a, b, y] = [old, new, y].map(|buf| self.all(buf));
                    self.push(Rows::Atom, Op::Add { a, b, y });
                    y.buf
                }
            });
        }
        View { buf: u.buf, col: 0, width }
    }

    /// A layer on every component of a tensor.
    fn tensor_dense(&mut self, x: Buf, dense: &Dense, size: usize) -> Buf {
        let y = self.buffer(Rows::Atom, size * dense.n_out, false);
        let (x, view) = (self.all(x), self.all(y));
        self.dense_into(x, dense, 1, view, size);
        y
    }

    fn finish(mut self, model: &PinetModel, input: Buf) -> Plan {
        self.end_atoms();
        Plan {
            shapes: self.shapes,
            segments: self.segments,
            input,
            outputs: self.outputs,
            sizes: model.blocks[0].tensors.iter().map(|tensor| tensor.size).collect(),
            n_basis: self.n_basis,
            packed: self.packed,
            scratch: self.scratch,
            n_kinds: self.n_kinds,
            slots: self.first_slot
                + self.n_kinds * self.n_kinds * model.blocks[0].pi.last().map_or(0, |l| l.n_out),
        }
    }
}
