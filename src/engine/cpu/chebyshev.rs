//! The embedding net as Chebyshev series on panels.
//!
//! The net G of a neighbour type depends on one number s. The range of s that the data holds is cut into panels, and on each
//! the net is expanded as `G(s) = sum_k T_k(x) C_k`; the K rows of C come from the net at the K nodes
//! `x_n = cos(pi (n + 1/2) / K)`. A young net is smooth enough for one panel; training makes nets steeper, and then short
//! series on several panels are cheaper than a long one ([`super::panels`] chooses). In float64 the series are the network
//! itself to rounding: the last rows of every panel measure the error at every step, and another plan is chosen when they are
//! too large.
//!
//! A pair touches only the terms of the panel that its s lies in. Panels of a type stand in the order of rising distance, so
//! that the sorted neighbours of an atom are cut into consecutive runs.

use super::attention::Step;
use super::dense::{Accumulate, Strided, product};
use super::frame::empty_slot;
use super::nets::{Nets, Trace};
use super::pool::{Parts, Pool};
use super::scratch::scratch;
use crate::engine::reference::env;
use crate::model::dp::Dp;
use crate::model::dp::options::Form;
use serde_json::{Value, json};
use std::ops::Range;

/// An interval of s with a series of its own, for the neighbours of one type ([`groups`]).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Panel {
    pub neighbor: usize,
    pub low: f64,
    pub high: f64,
}

impl Panel {
    pub fn middle(&self) -> f64 {
        (self.low + self.high) / 2.0
    }

    pub fn half(&self) -> f64 {
        ((self.high - self.low) / 2.0).max(1e-6)
    }
}

/// The panels of all neighbour types, the number of terms and the transform of their series.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// Number of terms on each panel, K.
    pub terms: usize,
    /// How much steeper the argument of the polynomials is at the lower end of a panel: see [`Plan::argument`].
    pub skew: f64,
    /// Type after type; those of a type by rising distance, which is falling s.
    panels: Vec<Panel>,
    /// `[n_types + 1]` panels of each neighbour type.
    first_panel: Vec<usize>,
    /// `[n_types, n_panels]` for each centre type: neighbours within the square of this distance (A^2) belong to the panel or
    /// to one before it. Nothing where panels are not cut by distance.
    cuts: Vec<f64>,
    /// `[n_types, n_types]` for each centre and neighbour type: the panel of an empty slot.
    empty: Vec<usize>,
    /// `[K, K]`: coefficients = transform * values at the nodes.
    transform: Vec<f64>,
    /// `[n_panels, K]` the nodes as values of s.
    nodes: Vec<f64>,
}

/// The skew of a series over the whole range. From s to the argument leads a hyperbola that is steeper for small s, where most
/// neighbours are and a net changes most: the stock network as `dp train` draws it needs 88 terms in float64 with 0, 64 to 72
/// with 0.4 to 0.6; after some thousand steps 0.3 and 0.4 are the best. Several panels adapt to the net themselves.
const SKEW: f64 = 0.4;

impl Plan {
    /// One series of `terms` over `[low, high]` of the normalised s for each neighbour type.
    pub fn whole(model: &Dp, terms: usize, (low, high): (f64, f64)) -> Self {
        Self::new(model, terms, &vec![vec![low, high]; groups(model).len()])
    }

    /// A series of `terms` between any two neighbours among the rising `edges` of a neighbour type.
    pub fn new(model: &Dp, terms: usize, edges: &[Vec<f64>]) -> Self {
        let mut panels = Vec::new();
        let mut first_panel = vec![0];
        for (neighbor, edges) in edges.iter().enumerate() {
            let falling = edges.windows(2).rev();
            panels.extend(falling.map(|edge| Panel { neighbor, low: edge[0], high: edge[1] }));
            first_panel.push(panels.len());
        }
        let skew = if panels.len() > edges.len() { 0.0 } else { SKEW };
        let k = terms as f64;
        let angle = |n: usize| std::f64::consts::PI * (n as f64 + 0.5) / k;
        // The inverse of `argument`.
        let straight = |x: f64| (x - skew) / (1.0 - skew * x);
        let node = |panel: &Panel, n: usize| panel.middle() + panel.half() * straight(angle(n).cos());
        let nodes = panels.iter().flat_map(|panel| (0..terms).map(|n| node(panel, n))).collect();
        let transform = (0..terms * terms)
            .map(|p| {
                let (j, n) = (p / terms, p % terms);
                let norm = if j == 0 { 1.0 } else { 2.0 } / k;
                norm * (j as f64 * angle(n)).cos()
            })
            .collect();
        let mut plan =
            Plan { terms, skew, panels, first_panel, cuts: Vec::new(), empty: Vec::new(), transform, nodes };
        // Products of directions are not cut by distance, and no slot stands for an empty one.
        let is_cut = model.descriptor().form() != Form::Angles;
        for center in (0..model.n_types()).filter(|_| is_cut) {
            for (p, panel) in plan.panels.iter().enumerate() {
                let is_last = p + 1 == plan.first_panel[panel.neighbor + 1];
                let r = if is_last { f64::INFINITY } else { distance_at(model, center, panel.low) };
                plan.cuts.push(r * r);
            }
            let s = empty_slot(model, center);
            let empty: Vec<usize> = (0..edges.len()).map(|t| plan.panel_of(t, s)).collect();
            plan.empty.extend(empty);
        }
        plan
    }

    /// No series at all: the nets themselves are used.
    pub fn none(model: &Dp) -> Self {
        Self::new(model, 0, &vec![Vec::new(); groups(model).len()])
    }

    /// The panel of a neighbour type that holds `s`, or the one that is nearest to it.
    fn panel_of(&self, neighbor: usize, s: f64) -> usize {
        let panels = self.panels_of(neighbor);
        let first = panels.clone().find(|&p| s >= self.panels[p].low);
        first.unwrap_or(panels.end.saturating_sub(1))
    }

    pub fn panels(&self) -> &[Panel] {
        &self.panels
    }

    /// Panels of the neighbours of one type.
    pub fn panels_of(&self, neighbor: usize) -> Range<usize> {
        self.first_panel[neighbor]..self.first_panel[neighbor + 1]
    }

    /// Columns of the features Q: all terms of all panels.
    pub fn columns(&self) -> usize {
        self.panels.len() * self.terms
    }

    /// Columns of Q that belong to one panel.
    pub fn columns_of(&self, panel: usize) -> Range<usize> {
        panel * self.terms..(panel + 1) * self.terms
    }

    /// `[n_panels]` for a centre type: see [`Plan::cuts`].
    pub fn cuts(&self, center: usize) -> &[f64] {
        let n = self.panels.len();
        self.cuts.get(center * n..(center + 1) * n).unwrap_or_default()
    }

    /// The panel of an empty slot.
    pub fn empty_panel(&self, center: usize, neighbor: usize) -> usize {
        self.empty[center * (self.first_panel.len() - 1) + neighbor]
    }

    /// The panel of the slots of excluded neighbours, whose argument is 0.
    pub fn zero_panel(&self, neighbor: usize) -> usize {
        self.panel_of(neighbor, 0.0)
    }

    /// The argument of the polynomials of a panel at `s`: `(y + skew) / (1 + skew y)` with y = (s - middle) / half.
    pub fn argument(&self, panel: usize, s: f64) -> f64 {
        let panel = &self.panels[panel];
        let y = (s - panel.middle()) / panel.half();
        (y + self.skew) / (1.0 + self.skew * y)
    }

    /// `[n_panels, K]` the nodes as values of s.
    pub fn nodes(&self) -> &[f64] {
        &self.nodes
    }

    fn nodes_of(&self, panel: usize) -> &[f64] {
        &self.nodes[self.columns_of(panel)]
    }

    /// `[K, K]`: coefficients = transform * values at the nodes.
    pub fn transform(&self) -> &[f64] {
        &self.transform
    }

    /// True where the series hold from `low` to `high`. All neighbour types have the same range.
    pub fn covers(&self, low: f64, high: f64) -> bool {
        let own = self.panels_of(0);
        let (lowest, highest) = (self.panels[own.end - 1].low, self.panels[own.start].high);
        let slack = 1e-9 * (highest - lowest);
        low >= lowest - slack && high <= highest + slack
    }

    /// For checkpoints: what [`Plan::from_state`] needs.
    pub fn state(&self) -> Value {
        let edges = |t: usize| {
            let own = &self.panels[self.panels_of(t)];
            own.iter().rev().map(|p| p.low).chain(own.first().map(|p| p.high)).collect::<Vec<f64>>()
        };
        let n_types = self.first_panel.len() - 1;
        json!({ "terms": self.terms, "edges": (0..n_types).map(edges).collect::<Vec<_>>() })
    }

    /// The plan of a checkpoint; those before there were panels have a number of terms only.
    pub fn from_state(model: &Dp, state: &Value, range: (f64, f64)) -> Option<Self> {
        let terms = state["terms"].as_u64().filter(|terms| (1..=MOST_TERMS).contains(terms))? as usize;
        let Some(edges) = state["edges"].as_array() else { return Some(Self::whole(model, terms, range)) };
        let edges: Option<Vec<Vec<f64>>> =
            edges.iter().map(|edges| edges.as_array()?.iter().map(Value::as_f64).collect()).collect();
        let rises = |edges: &Vec<f64>| edges.len() > 1 && edges.windows(2).all(|e| e[0] < e[1]);
        let edges = edges.filter(|edges| edges.len() == groups(model).len() && edges.iter().all(rises))?;
        Some(Self::new(model, terms, &edges))
    }
}

impl std::fmt::Display for Plan {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        write!(f, "{} panels of {} terms", self.panels.len(), self.terms)
    }
}

/// More terms than any plan has.
const MOST_TERMS: u64 = 4096;

/// The distance, A, at which the normalised s of a centre type has fallen to `s`; infinite where it never does.
fn distance_at(model: &Dp, center: usize, s: f64) -> f64 {
    let (davg, dstd) = (model.stats.davg[center][0], model.stats.dstd[center][0]);
    let at = |r: f64| (env::radial(model.descriptor(), r)[0] - davg) / dstd;
    let (mut near, mut far) = (1e-6, model.descriptor().rcut);
    if at(far) >= s {
        return f64::INFINITY;
    }
    // Halved until the two are neighbouring numbers.
    for _ in 0..64 {
        let r = 0.5 * (near + far);
        *(if at(r) >= s { &mut near } else { &mut far }) = r;
    }
    near
}

/// The coefficients of all nets of a model for one set of parameters.
#[derive(Default)]
pub struct Series {
    /// `[n_stacks, n_panels]`: nets for each centre type, or one for all of them.
    pieces: Vec<Piece>,
    /// The largest of the last coefficients of any panel over the largest coefficient of the same net.
    pub tail: f64,
}

/// One net on one panel.
#[derive(Default)]
struct Piece {
    /// `[K, M1]`
    coefficients: Vec<f64>,
    trace: Trace,
    /// The gradient of the net's parameters by way of this panel.
    gradient: Vec<f64>,
    /// The largest of the last coefficients, and of all.
    last: f64,
    largest: f64,
}

/// The last coefficients that measure the error of a series.
pub const LAST: usize = 3;

impl Piece {
    fn expand(&mut self, nets: &Nets, stack: usize, plan: &Plan, panel: usize) {
        let (k, m) = (plan.terms, nets.model.n_embed());
        let neighbor = plan.panels[panel].neighbor;
        let values = nets.values(&mut self.trace, stack, neighbor, plan.nodes_of(panel));
        let c = &mut self.coefficients;
        c.resize(k * m, 0.0);
        let transform = Strided { data: &plan.transform, row: k, col: 1 };
        product(c, m, Accumulate::Overwrite, transform, values, m, k, m, k);
        let largest = |x: &[f64]| x.iter().fold(0.0f64, |a, b| a.max(b.abs()));
        (self.last, self.largest) = (largest(&c[(k - LAST) * m..]), largest(c));
    }

    /// Writes the gradient of a net with types, of embedded types and of the table into `self.gradient`, from dL by the coefficients of all
    /// sets `[sets, K, M1]`.
    fn with_types<T: super::real::Real>(
        &mut self,
        nets: &Nets,
        step: &Step<T>,
        (stack, neighbor): (usize, usize),
        plan: &Plan,
        dl_c: &[f64],
    ) {
        let (k, m) = (plan.terms, nets.model.n_embed());
        let (first, second) = dl_c.split_at(k * m);
        let mut dl = first.to_vec();
        self.gradient.clear();
        self.gradient.resize(step.gradient_len(), 0.0);
        if let Some((row, of_types)) = step.exact_of_types(stack, neighbor) {
            // What t multiplies: the coefficients of the second set, or of the only one.
            let part = if second.is_empty() { first } else { second };
            let sum = &mut self.gradient[step.place_of_table().start + row * m..][..m];
            let rows =
                dl.chunks_exact_mut(m).zip(part.chunks_exact(m)).zip(self.coefficients.chunks_exact(m));
            for ((dl, part), c) in rows {
                for o in 0..m {
                    dl[o] += part[o] * of_types[o];
                    sum[o] += part[o] * c[o];
                }
            }
        }
        let mut dl_values = vec![0.0; k * m];
        let transform = Strided { data: &plan.transform, row: 1, col: k };
        product(&mut dl_values, m, Accumulate::Overwrite, transform, &dl, m, k, m, k);
        let dl_x = self.trace.backward_rows_add(&mut self.gradient, nets, dl_values);
        for dl_x in dl_x.chunks_exact(dl_x.len() / k) {
            step.inputs_gradient_add(&mut self.gradient, dl_x, stack, neighbor);
        }
    }
}

/// Groups of nets that share a stack of coefficients: centre types, or all of them.
pub fn n_stacks(model: &Dp) -> usize {
    let is_one = model.descriptor().type_one_side || model.descriptor().form() == Form::Angles;
    if is_one { 1 } else { model.n_types() }
}

/// Whose nets have panels of their own: types of neighbours, or where neighbours are taken two by two, their two types. Both are twice the
/// same in the first case.
pub fn groups(model: &Dp) -> Vec<(usize, usize)> {
    match model.descriptor().form() {
        Form::Angles => (0..model.n_types()).flat_map(|b| (0..=b).map(move |a| (a, b))).collect(),
        _ => (0..model.n_types()).map(|t| (t, t)).collect(),
    }
}

/// The net of a stack and a group.
pub fn net_of(model: &Dp, stack: usize, group: usize) -> usize {
    match model.descriptor().form() {
        Form::Angles => {
            let (a, b) = groups(model)[group];
            model.embedding_net(a, b)
        }
        _ => model.embedding_net(stack, group),
    }
}

/// What features are summed up with.
pub fn scale(model: &Dp) -> f64 {
    match model.descriptor().form() {
        Form::Angles => 1.0,
        _ => 1.0 / model.n_sel() as f64,
    }
}

impl Series {
    /// `[K, M1]` the coefficients of a stack's net on a panel.
    pub fn coefficients(&self, plan: &Plan, stack: usize, panel: usize) -> &[f64] {
        &self.pieces[stack * plan.panels.len() + panel].coefficients
    }

    /// Expands every embedding net on every panel, beside each other.
    pub fn expand(&mut self, pool: &Pool, plan: &Plan, model: &Dp, params: &[f64]) {
        let n_panels = plan.panels.len();
        self.pieces.resize_with(n_stacks(model) * n_panels, Piece::default);
        let nets = Nets::new(model, params);
        let pieces = Parts::new(&mut self.pieces);
        pool.run(n_stacks(model) * n_panels, |job| {
            let (stack, panel) = (job / n_panels, job % n_panels);
            // SAFETY: one task for each piece.
            unsafe { &mut pieces.part(job, 1)[0] }.expand(&nets, stack, plan, panel);
        });
        self.tail = 0.0;
        for stack in self.pieces.chunks(n_panels) {
            for t in 0..plan.first_panel.len() - 1 {
                let net = &stack[plan.panels_of(t)];
                let largest = net.iter().map(|piece| piece.largest).fold(1e-300, f64::max);
                let last = net.iter().map(|piece| piece.last).fold(0.0, f64::max);
                self.tail = self.tail.max(last / largest);
            }
        }
    }

    /// Adds the gradient of all nets to `grad`, given dL/dC `[n_stacks, n_panels, K, M1]` times `1 / scale`.
    #[allow(clippy::too_many_arguments)]
    pub fn backward_add<T: super::real::Real>(
        &mut self,
        pool: &Pool,
        grad: &mut [f64],
        plan: &Plan,
        model: &Dp,
        params: &[f64],
        dl_c: &[T],
        scale: f64,
    ) {
        let (k, m, n_panels) = (plan.terms, model.n_embed(), plan.panels.len());
        let net_of = |job: usize| net_of(model, job / n_panels, plan.panels[job % n_panels].neighbor);
        let (n_pieces, nets) = (self.pieces.len(), Nets::new(model, params));
        let pieces = Parts::new(&mut self.pieces);
        pool.run(n_pieces, |job| {
            // SAFETY: one task for each piece.
            let Piece { trace, gradient, .. } = unsafe { &mut pieces.part(job, 1)[0] };
            let own = model.embedding[net_of(job)].params();
            gradient.clear();
            gradient.resize(own.len(), 0.0);
            scratch(2 * k * m, |buffers: &mut [f64]| {
                let (dl, dl_values) = buffers.split_at_mut(k * m);
                let from = &dl_c[job * k * m..];
                dl.iter_mut().zip(from).for_each(|(dl, x)| *dl = x.to_f64() * scale);
                let transform = Strided { data: &plan.transform, row: 1, col: k };
                product(dl_values, m, Accumulate::Overwrite, transform, dl, m, k, m, k);
                trace.backward_add(gradient, own.start, &nets, net_of(job), dl_values);
            });
        });
        for (job, piece) in self.pieces.iter().enumerate() {
            let own = model.embedding[net_of(job)].params();
            grad[own].iter_mut().zip(&piece.gradient).for_each(|(grad, x)| *grad += x);
        }
    }

    /// Adds the gradient of a descriptor with types to `sums`, as [`Step::deliver_add`] takes them, given dL/dC
    /// `[n_stacks, n_panels, sets, K, M1]` times `1 / scale`.
    #[allow(clippy::too_many_arguments)]
    pub fn backward_types_add<T: super::real::Real>(
        &mut self,
        pool: &Pool,
        sums: &mut [f64],
        plan: &Plan,
        (model, params): (&Dp, &[f64]),
        step: &Step<T>,
        dl_c: &[T],
        scale: f64,
    ) {
        let (n_panels, n_pieces, nets) = (plan.panels.len(), self.pieces.len(), Nets::new(model, params));
        let size = dl_c.len() / n_pieces;
        let pieces = Parts::new(&mut self.pieces);
        pool.run(n_pieces, |job| {
            // SAFETY: one task for each piece.
            let piece = unsafe { &mut pieces.part(job, 1)[0] };
            let dl: Vec<f64> =
                dl_c[job * size..(job + 1) * size].iter().map(|x| x.to_f64() * scale).collect();
            piece.with_types(&nets, step, (job / n_panels, plan.panels[job % n_panels].neighbor), plan, &dl);
        });
        for piece in &self.pieces {
            sums.iter_mut().zip(&piece.gradient).for_each(|(sum, x)| *sum += x);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::reference::tests::{model, options};

    #[test]
    fn the_argument_of_a_node_is_a_cosine_on_every_panel() {
        let model = model(options());
        for edges in [vec![-0.4, 9.2], vec![-0.4, 0.3, 2.0, 9.2]] {
            let plan = Plan::new(&model, 24, &vec![edges.clone(); model.n_types()]);
            for (p, panel) in plan.panels().iter().enumerate() {
                for (n, &s) in plan.nodes_of(p).iter().enumerate() {
                    let want = (std::f64::consts::PI * (n as f64 + 0.5) / 24.0).cos();
                    assert!((plan.argument(p, s) - want).abs() < 1e-13, "node {n} of panel {p}");
                    assert!(s > panel.low && s < panel.high, "node {n} lies within panel {p}");
                }
                assert!((plan.argument(p, panel.low) + 1.0).abs() < 1e-14);
                assert!((plan.argument(p, panel.high) - 1.0).abs() < 1e-14);
            }
            assert!(plan.covers(-0.4, 9.2) && !plan.covers(-0.41, 9.0) && !plan.covers(0.0, 9.3));
        }
    }

    #[test]
    fn cuts_are_the_distances_at_which_panels_end() {
        let model = model(options());
        let rcut = model.descriptor().rcut;
        for center in 0..model.n_types() {
            let s_at = |r: f64| {
                let (davg, dstd) = (model.stats.davg[center][0], model.stats.dstd[center][0]);
                (env::radial(model.descriptor(), r)[0] - davg) / dstd
            };
            let edges = vec![s_at(rcut) - 1.0, s_at(0.8 * rcut), s_at(0.5 * rcut), s_at(0.2 * rcut)];
            let plan = Plan::new(&model, 16, &vec![edges; model.n_types()]);
            let got: Vec<f64> = plan.cuts(center)[..3].iter().map(|r2| r2.sqrt()).collect();
            assert!((got[0] - 0.5 * rcut).abs() < 1e-9 && (got[1] - 0.8 * rcut).abs() < 1e-9, "{got:?}");
            assert_eq!(got[2], f64::INFINITY);
        }
    }

    #[test]
    fn a_plan_comes_back_from_its_state_to_the_bit() {
        let model = model(options());
        let edges = vec![vec![-0.1, 1.0 / 3.0, std::f64::consts::E], vec![-0.1, std::f64::consts::E]];
        let plan = Plan::new(&model, 32, &edges);
        let text = plan.state().to_string();
        let back = Plan::from_state(&model, &serde_json::from_str(&text).unwrap(), (0.0, 1.0));
        assert_eq!(back, Some(plan));
        let old = Plan::from_state(&model, &json!({ "terms": 64 }), (-0.4, 9.2));
        assert_eq!(old, Some(Plan::whole(&model, 64, (-0.4, 9.2))));
        for broken in [
            json!({}),
            json!({"terms": 0}),
            json!({"terms": 32, "edges": [[0.0, 1.0]]}),
            json!({"terms": 32, "edges": [[0.0, 1.0], [1.0, 0.5]]}),
        ] {
            assert_eq!(Plan::from_state(&model, &broken, (0.0, 1.0)), None, "{broken}");
        }
    }
}
