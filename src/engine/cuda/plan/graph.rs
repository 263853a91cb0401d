//! A model as a list of operations on matrices: the order in which its kernels work.

use super::outputs::kind_of;
use crate::model::dp::Dp;
use crate::model::dp::options::Form;
use crate::model::dp::{AttentionLayer, AttentionNets};
use crate::model::net::{LayerShape, NetShape};
use std::sync::Arc;

/// What the rows of a matrix are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rows {
    /// Centres, grouped by their fitting nets.
    Atoms,
    /// Pairs of a descriptor, grouped by their embedding nets.
    Pairs(usize),
    /// Two neighbours of a centre, grouped by the nets of their types.
    Couples(usize),
    /// Two neighbours of a centre, all with all.
    Squares(usize),
    /// Slots in which nobody is seen, of neighbour's type, centre's type and kind, grouped by their embedding nets.
    Still(usize),
    /// Types of neighbour and centre.
    TypePairs,
    Types,
}

/// A matrix by its number.
pub type Id = usize;

/// Some columns of a matrix.
#[derive(Debug, Clone, Copy)]
pub struct View {
    pub id: Id,
    pub first: usize,
    pub width: usize,
}

/// A matrix of the list.
#[derive(Debug, Clone)]
pub struct Matrix {
    pub rows: Rows,
    pub width: usize,
    /// It is given: these numbers never change.
    pub given: Option<Vec<f64>>,
    /// It has adjoints only.
    pub only_adjoint: bool,
}

/// Where a gather finds which rows it takes.
#[derive(Debug, Clone)]
pub enum Index {
    /// The types of a pair, as a row of [`Rows::TypePairs`].
    TypesOfPairs(usize),
    /// The type of a centre.
    TypeOfAtom,
    Given(Vec<u32>),
    /// Row by row.
    Same,
}

/// One operation; formulas are in `kernels/`.
#[derive(Debug, Clone)]
pub enum Step {
    /// Rows of the environment matrix, and the switch.
    Rows {
        part: usize,
        row: Id,
        switch: Option<Id>,
    },
    /// A layer; `stride` is from the parameters of one group to those of the next. z is y where nothing follows the product.
    Dense {
        x: View,
        z: Id,
        y: Id,
        layer: LayerShape,
        stride: usize,
    },
    Normalize {
        x: View,
        u: View,
        z: Id,
        y: Id,
        layer: LayerShape,
        eps: f64,
    },
    Unit {
        x: View,
        y: Id,
        width: usize,
    },
    Gather {
        x: View,
        y: View,
        index: Index,
    },
    Zero {
        y: Id,
    },
    Combine {
        x: View,
        u: View,
        switch: Option<Id>,
        y: Id,
    },
    /// y = scale q k^T over the couples of an atom.
    Scores {
        part: usize,
        q: View,
        k: View,
        y: Id,
        scale: f64,
    },
    Softmax {
        part: usize,
        x: Id,
        switch: Id,
        directions: Option<Id>,
        y: Id,
        shared: [Id; 2],
        smooth: bool,
    },
    /// y = weights v
    Weighted {
        part: usize,
        weights: Id,
        v: View,
        y: Id,
    },
    Outer {
        part: usize,
        g: View,
        row: Id,
        still: Option<View>,
        y: Id,
        n_env: usize,
        scale: f64,
    },
    /// y = A A[..axis]^T, or scale A where axis is 0.
    Square {
        a: Id,
        y: View,
        axis: usize,
        scale: f64,
    },
    Extra {
        y: View,
    },
    Couples {
        part: usize,
        row: Id,
        y: Id,
    },
    CoupleSum {
        part: usize,
        g: View,
        x: Id,
        y: View,
    },
    /// y: outputs of kind [`super::outputs::kind_of`] from the numbers of the net and the directions of A
    Turned {
        a: Id,
        x: Id,
        y: Id,
        kind: i32,
    },
}

/// Where the groups of rows of a descriptor stand among all lists.
#[derive(Debug, Clone)]
pub struct PartLists {
    pub first: usize,
    pub groups: usize,
    pub couples: Option<usize>,
    pub square: Option<usize>,
}

/// Kinds of rows that every frame has some of, and their groups, one after another.
#[derive(Debug, Clone)]
pub struct Lists {
    pub atom_groups: usize,
    pub parts: Vec<PartLists>,
    pub len: usize,
}

impl Lists {
    fn new(model: &Dp, parts: &[Arc<Dp>]) -> Self {
        let (atom_groups, n_types) = (model.fitting.len(), model.n_types());
        let mut len = atom_groups;
        let mut take = |n: usize| {
            len += n;
            len - n
        };
        let of = |part: &Arc<Dp>| {
            let form = part.descriptor().form();
            let groups = if form.has_series() { part.embedding.len() } else { 1 };
            PartLists {
                first: take(groups),
                groups,
                couples: (form == Form::Angles).then(|| take(n_types * n_types)),
                square: matches!(form, Form::Attention { .. }).then(|| take(1)),
            }
        };
        let parts = parts.iter().map(of).collect();
        Lists { atom_groups, parts, len }
    }
}

/// The operations of a model.
pub struct Graph {
    pub lists: Lists,
    pub matrices: Vec<Matrix>,
    pub steps: Vec<Step>,
    /// Outputs of the fitting nets, or what is made from them, and of the same without neighbours where any type has those taken off.
    pub out: Id,
    pub vacuum: Option<Id>,
    /// A of the last descriptor that has one.
    a: Id,
}

/// `[2 n_types^2]` arguments of the slots in which nobody is seen, by neighbour, centre and kind: empty, left out.
pub fn still_arguments(part: &Dp) -> Vec<f64> {
    let n_types = part.n_types();
    let empty = |k: usize| crate::engine::cpu::frame::empty_slot(part, k % n_types);
    (0..n_types * n_types).flat_map(|k| [empty(k), 0.0]).collect()
}

impl Graph {
    pub fn new(model: &Arc<Dp>) -> Self {
        let parts = model.parts();
        let lists = Lists::new(model, &parts);
        let mut graph = Graph { lists, matrices: Vec::new(), steps: Vec::new(), out: 0, vacuum: None, a: 0 };
        let x = graph.matrix(Rows::Atoms, model.fitting[0].layers[0].n_in);
        let mut first = 0;
        for (k, part) in parts.iter().enumerate() {
            let width = part.descriptor().width();
            graph.describe(k, part, View { id: x, first, width });
            first += width;
        }
        let extra = View { id: x, first, width: model.n_extra() };
        if extra.width > 0 {
            graph.steps.push(Step::Extra { y: extra });
        }
        graph.out = graph.nets(x, &model.fitting);
        if let Some(kind) = kind_of(model.output.made) {
            let (a, x) = (graph.a, graph.out);
            graph.out = graph.matrix(Rows::Atoms, model.output.width);
            graph.steps.push(Step::Turned { a, x, y: graph.out, kind });
        }
        if (0..model.n_types()).any(|t| model.removes_vacuum(t)) {
            let x = graph.matrix(Rows::Atoms, model.fitting[0].layers[0].n_in);
            graph.steps.push(Step::Zero { y: x });
            if extra.width > 0 {
                graph.steps.push(Step::Extra { y: View { id: x, ..extra } });
            }
            graph.vacuum = Some(graph.nets(x, &model.fitting));
        }
        graph
    }

    fn push(&mut self, matrix: Matrix) -> Id {
        self.matrices.push(matrix);
        self.matrices.len() - 1
    }

    fn matrix(&mut self, rows: Rows, width: usize) -> Id {
        self.push(Matrix { rows, width, given: None, only_adjoint: false })
    }

    fn given(&mut self, rows: Rows, width: usize, values: Vec<f64>) -> Id {
        self.push(Matrix { rows, width, given: Some(values), only_adjoint: false })
    }

    fn whole(&self, id: Id) -> View {
        View { id, first: 0, width: self.matrices[id].width }
    }

    fn layer(&mut self, x: View, layer: &LayerShape, stride: usize) -> Id {
        let rows = self.matrices[x.id].rows;
        let z = self.matrix(rows, layer.n_out);
        let y = if is_plain(layer) { z } else { self.matrix(rows, layer.n_out) };
        self.steps.push(Step::Dense { x, z, y, layer: layer.clone(), stride });
        y
    }

    /// Nets of the same widths, one for each group of rows.
    fn nets(&mut self, x: Id, nets: &[NetShape]) -> Id {
        let x = self.whole(x);
        self.nets_of(x, nets)
    }

    fn nets_of(&mut self, mut x: View, nets: &[NetShape]) -> Id {
        let start = |net: &NetShape| net.layers[0].w;
        let stride = nets.get(1).map_or(0, |second| start(second) - start(&nets[0]));
        for layer in &nets[0].layers {
            let y = self.layer(x, layer, stride);
            x = self.whole(y);
        }
        x.id
    }

    /// The descriptor of a part, into some inputs of the fitting nets.
    fn describe(&mut self, k: usize, part: &Dp, y: View) {
        let row = self.matrix(Rows::Pairs(k), 4);
        match part.descriptor().form() {
            Form::Attention { axis, tail } => self.attention(k, part, row, axis, y, tail),
            Form::Angles => {
                self.steps.push(Step::Rows { part: k, row, switch: None });
                let x = self.matrix(Rows::Couples(k), 1);
                self.steps.push(Step::Couples { part: k, row, y: x });
                let g = self.nets(x, &part.embedding);
                self.steps.push(Step::CoupleSum { part: k, g: self.whole(g), x, y });
            }
            form => {
                self.steps.push(Step::Rows { part: k, row, switch: None });
                let g = self.nets_of(View { id: row, first: 0, width: 1 }, &part.embedding);
                let (n_env, axis) = match form {
                    Form::Directions { axis } => (4, axis),
                    _ => (1, 0),
                };
                let still = self.still(k, part, n_env).map(|s| self.nets(s, &part.embedding));
                let a = self.outer(k, part, (g, row), still, n_env);
                self.steps.push(Step::Square { a, y, axis, scale: form.scale() });
            }
        }
    }

    /// Arguments of the slots in which nobody is seen, where these count.
    fn still(&mut self, k: usize, part: &Dp, n_env: usize) -> Option<Id> {
        let s = still_arguments(part);
        let counts = n_env == 1 || s.iter().any(|&s| s != 0.0);
        counts.then(|| self.given(Rows::Still(k), 1, s))
    }

    fn outer(&mut self, part: usize, of: &Dp, (g, row): (Id, Id), still: Option<Id>, n_env: usize) -> Id {
        let y = self.matrix(Rows::Atoms, n_env * of.n_embed());
        self.a = y;
        let scale = 1.0 / of.n_sel() as f64;
        let (g, still) = (self.whole(g), still.map(|id| self.whole(id)));
        self.steps.push(Step::Outer { part, g, row, still, y, n_env, scale });
        y
    }

    fn gather(&mut self, x: Id, rows: Rows, index: Index) -> Id {
        let y = self.matrix(rows, self.matrices[x].width);
        self.steps.push(Step::Gather { x: self.whole(x), y: self.whole(y), index });
        y
    }

    fn attention(&mut self, k: usize, part: &Dp, row: Id, axis: usize, y: View, tail: usize) {
        let (nets, n_types) = (part.attention(), part.n_types());
        let switch = self.matrix(Rows::Pairs(k), 1);
        self.steps.push(Step::Rows { part: k, row, switch: Some(switch) });
        let given = self.given(Rows::Types, nets.types.layers[0].n_in, part.type_inputs());
        let types = self.nets(given, std::slice::from_ref(nets.types));
        let both = self.types_of_pairs(types, n_types, part.descriptor().type_one_side);
        let of_types = nets.strip.map(|strip| self.nets(both, std::slice::from_ref(strip)));

        let pairs = (Rows::Pairs(k), Index::TypesOfPairs(k));
        let s = View { id: row, first: 0, width: 1 };
        let mut g = self.embedding(&nets, s, (both, of_types), pairs, Some(switch));
        let still = self.still(k, part, 4);
        let mut still = still.map(|s| {
            let index = (0..2 * n_types * n_types).map(|row| row as u32 / 2).collect();
            let rows = (Rows::Still(k), Index::Given(index));
            let zeros = self.given(Rows::Still(k), 1, vec![0.0; 2 * n_types * n_types]);
            let s = self.whole(s);
            self.embedding(&nets, s, (both, of_types), rows, Some(zeros))
        });
        let directions = nets.options.attn_dotr.then(|| {
            let y = self.matrix(Rows::Pairs(k), 3);
            self.steps.push(Step::Unit { x: View { id: row, first: 1, width: 3 }, y, width: 3 });
            y
        });
        for layer in nets.layers() {
            let seen = self.attend(k, &nets, layer, g, (switch, directions));
            g = self.change(&nets, layer, g, seen);
            still = still.map(|g| {
                let none = vec![0.0; 2 * n_types * n_types * nets.options.attn];
                let unseen = self.given(Rows::Still(k), nets.options.attn, none);
                self.change(&nets, layer, g, unseen)
            });
        }
        let a = self.outer(k, part, (g, row), still, 4);
        let square = View { width: y.width - tail, ..y };
        self.steps.push(Step::Square { a, y: square, axis, scale: 1.0 });
        if tail > 0 {
            let y = View { first: y.first + square.width, width: tail, ..y };
            let x = self.whole(types);
            self.steps.push(Step::Gather { x, y, index: Index::TypeOfAtom });
        }
    }

    /// What the nets are told of the types of a neighbour and, perhaps, its centre.
    fn types_of_pairs(&mut self, types: Id, n_types: usize, one_side: bool) -> Id {
        let width = self.matrices[types].width;
        let sides = if one_side { 1 } else { 2 };
        let y = self.matrix(Rows::TypePairs, sides * width);
        for side in 0..sides {
            let of = |pair: usize| if side == 0 { pair / n_types } else { pair % n_types };
            let index = Index::Given((0..n_types * n_types).map(|pair| of(pair) as u32).collect());
            let y = View { id: y, first: side * width, width };
            let x = self.whole(types);
            self.steps.push(Step::Gather { x, y, index });
        }
        y
    }

    /// G before any attention.
    fn embedding(
        &mut self,
        nets: &AttentionNets,
        s: View,
        (both, of_types): (Id, Option<Id>),
        (rows, index): (Rows, Index),
        switch: Option<Id>,
    ) -> Id {
        let Some(of_types) = of_types else {
            let width = self.matrices[both].width;
            let x = self.matrix(rows, 1 + width);
            let columns = |first: usize, width: usize| View { id: x, first, width };
            self.steps.push(Step::Gather { x: s, y: columns(0, 1), index: Index::Same });
            let types = self.whole(both);
            self.steps.push(Step::Gather { x: types, y: columns(1, width), index });
            return self.nets(x, std::slice::from_ref(nets.filter));
        };
        let g = self.nets_of(s, std::slice::from_ref(nets.filter));
        let u = self.gather(of_types, rows, index);
        let y = self.matrix(rows, self.matrices[g].width);
        let switch = switch.filter(|_| nets.options.smooth);
        self.steps.push(Step::Combine { x: self.whole(g), u: self.whole(u), switch, y });
        y
    }

    /// What attention makes of the values of all neighbours, for each of them.
    fn attend(
        &mut self,
        part: usize,
        nets: &AttentionNets,
        layer: AttentionLayer,
        g: Id,
        (switch, directions): (Id, Option<Id>),
    ) -> Id {
        let (options, width) = (nets.options, nets.options.attn);
        let x = self.whole(g);
        let mut all = self.layer(x, layer.inward, 0);
        if options.normalize {
            let y = self.matrix(Rows::Pairs(part), 3 * width);
            self.steps.push(Step::Unit { x: self.whole(all), y, width });
            all = y;
        }
        let [q, k, v] = [0, 1, 2].map(|which| View { id: all, first: which * width, width });
        let squares = Rows::Squares(part);
        let (scores, weights) = (self.matrix(squares, 1), self.matrix(squares, 1));
        let shared =
            [0; 2].map(|_| self.push(Matrix { rows: squares, width: 1, given: None, only_adjoint: true }));
        self.steps.push(Step::Scores { part, q, k, y: scores, scale: options.scaling() });
        self.steps.push(Step::Softmax {
            part,
            x: scores,
            switch,
            directions,
            y: weights,
            shared,
            smooth: options.smooth,
        });
        let y = self.matrix(Rows::Pairs(part), width);
        self.steps.push(Step::Weighted { part, weights, v, y });
        y
    }

    /// G after a layer, from what attention has made of it.
    fn change(&mut self, nets: &AttentionNets, layer: AttentionLayer, g: Id, seen: Id) -> Id {
        let seen = self.whole(seen);
        let change = self.layer(seen, layer.outward, 0);
        let (rows, width) = (self.matrices[g].rows, self.matrices[g].width);
        let (z, y) = (self.matrix(rows, width + 1), self.matrix(rows, width));
        let (x, u) = (self.whole(g), self.whole(change));
        let (layer, eps) = (layer.norm.clone(), nets.options.ln_eps);
        self.steps.push(Step::Normalize { x, u, z, y, layer, eps });
        y
    }
}

/// Whether a layer is its product and its bias, and nothing follows.
pub fn is_plain(layer: &LayerShape) -> bool {
    use crate::model::activation::Activation;
    use crate::model::net::Shortcut;
    layer.shortcut == Shortcut::None
        && layer.idt.is_none()
        && matches!(layer.activation.function(), Activation::Linear)
}
