//! Descriptors with attention between the neighbours ([`Form::Attention`](crate::model::dp::options::Form::Attention)), atom by atom.
//!
//! `A = sum_j row_j (x) G_j / n_sel`. G comes from the distance and the type of a neighbour ([`step`]) and goes through layers of attention
//! ([`layer`]), which see the neighbours that there are and no empty slots. A pass of an atom repeats what the passes before it computed:
//! keeping it would take a megabyte for each atom and layer.

mod geometry;
mod layer;
mod rows;
mod step;

use super::batch::{Batch, Segment};
use super::direct::Atom;
use super::elementwise::{axpy, dot};
use super::jets::JetNet;
use super::pool::{Parts, Pool};
use super::real::Real;
use crate::model::dp::Dp;
use geometry::{Forces, Neighbors, zeros};
use layer::{Factors, Layer, contract_add, outer_add, products};
use std::sync::Mutex;
pub use step::Step;

/// What the passes of one atom write.
#[derive(Default)]
struct State<T> {
    neighbors: Neighbors<T>,
    factors: Factors<T>,
    /// The net of distances.
    jets: JetNet<T>,
    inputs: Vec<T>,
    layers: Vec<Layer<T>>,
    /// `[rows, M]` G after all layers, its change, dE/dG and dL/dG.
    g: Vec<T>,
    g_dot: Vec<T>,
    de_g: Vec<T>,
    dl_g: Vec<T>,
    de: Forces<T>,
    a: Vec<T>,
}

/// What a descriptor with attention keeps from one pass to the next.
#[derive(Default)]
pub struct Attention<T> {
    pub step: Step<T>,
    /// Of threads that are not at work.
    free: Mutex<Vec<State<T>>>,
    /// dL/dparams of each block.
    partial: Vec<Vec<T>>,
}

impl<T: Real> Attention<T> {
    fn with_state<R>(&self, work: impl FnOnce(&mut State<T>) -> R) -> R {
        let taken = self.free.lock().unwrap_or_else(|e| e.into_inner()).pop();
        let mut state = taken.unwrap_or_default();
        let result = work(&mut state);
        self.free.lock().unwrap_or_else(|e| e.into_inner()).push(state);
        result
    }

    /// Writes the embedding of the centre's type behind the rest of a descriptor, where it belongs there.
    pub fn write_tail(&self, d: &mut [T], model: &Dp, center: usize) {
        let (tail, first) = (model.n_tail(), d.len() - model.n_tail());
        d[first..].copy_from_slice(&self.step.embedded[center * tail..(center + 1) * tail]);
    }

    /// `A[c, m]` of an atom, overwritten.
    pub fn forward(&self, atom: &Atom<T>, a: &mut [T]) {
        self.with_state(|state| {
            state.forward(&self.step, atom);
            state.contracted(a, &self.step, atom);
        });
    }

    /// dE/dd of an atom's pairs from dE/dA.
    pub fn forces(&self, atom: &Atom<T>, de_d: [&mut [T]; 3], de_a: &[T]) {
        self.with_state(|state| {
            state.forward(&self.step, atom);
            state.energy(&self.step, atom, de_a);
            state.neighbors.forces(atom, de_d, &state.de);
        });
    }

    /// The change of A, overwritten.
    pub fn tangent(&self, atom: &Atom<T>, a_dot: &mut [T], d_dot: [&[T]; 3], first: usize) {
        self.with_state(|state| {
            state.forward(&self.step, atom);
            state.tangent(&self.step, atom, d_dot, first);
            state.contracted_dot(a_dot, &self.step, atom);
        });
    }

    /// Overwrites the gradient of the descriptor's parameters. `adjoints` gives d_dot of the pairs of an atom of a block, from `first` on, and the
    /// adjoints of A and of its change; `tails` is dL by the tails of the descriptors, `[n_types, tail]`.
    pub fn gradient<'a>(
        &mut self,
        pool: &Pool,
        grad: &mut [f64],
        batch: &Batch<T>,
        adjoints: impl Fn(&Segment, usize) -> ([&'a [T]; 3], &'a [T], &'a [T]) + Sync,
        tails: &[f64],
    ) {
        let blocks = &batch.layout.blocks;
        let mut partial = std::mem::take(&mut self.partial);
        partial.resize_with(blocks.len(), Vec::new);
        let parts = Parts::new(&mut partial);
        let len = self.step.gradient_len();
        pool.run(blocks.len(), |b| {
            // SAFETY: one element for each block.
            let sum = unsafe { &mut parts.part(b, 1)[0] };
            zeros(sum, len);
            for k in 0..blocks[b].n {
                let (d_dot, dl_a, de_a) = adjoints(&blocks[b], k);
                let atom = batch.atom(&blocks[b], k);
                self.with_state(|state| {
                    state.forward(&self.step, &atom);
                    state.energy(&self.step, &atom, de_a);
                    state.tangent(&self.step, &atom, d_dot, 0);
                    state.loss(sum, &self.step, &atom, dl_a, de_a);
                });
            }
        });
        let mut sums = vec![0.0; len];
        for partial in &partial[..blocks.len()] {
            sums.iter_mut().zip(partial).for_each(|(sum, x)| *sum += x.to_f64());
        }
        self.partial = partial;
        self.step.deliver_add(grad, batch.model, batch.params, &sums, tails);
    }
}

impl<T: Real> State<T> {
    /// G of every row.
    fn forward(&mut self, step: &Step<T>, atom: &Atom<T>) {
        self.neighbors.fill(atom);
        let neighbors = &self.neighbors;
        self.factors.fill(step, &neighbors.switch[..neighbors.n], &neighbors.unit);
        self.inputs.clear();
        for (&s, &t) in neighbors.s.iter().zip(&neighbors.types) {
            step.inputs(&mut self.inputs, s, atom.center, t);
        }
        self.jets.forward_rows(atom.model.attention().filter, &step.weights, &self.inputs, |x1| {
            x1.resize(neighbors.rows * step.n_in, T::ZERO);
            x1.iter_mut().step_by(step.n_in).for_each(|x1| *x1 = T::ONE);
        });
        let mut g = std::mem::take(&mut self.g);
        g.clear();
        g.extend_from_slice(self.jets.output().0);
        for (r, row) in g.chunks_exact_mut(step.width).enumerate() {
            if let Some(of_types) = step.of_types(atom.center, neighbors.types[r]) {
                let scale = neighbors.scale(step, r);
                row.iter_mut().zip(of_types).for_each(|(g, &t)| *g += *g * scale * t);
            }
        }
        self.layers.resize_with(step.layers.len(), Layer::default);
        let sizes = (neighbors.n, neighbors.rows, neighbors.others);
        for (layer, weights) in self.layers.iter_mut().zip(&step.layers) {
            std::mem::swap(&mut layer.x, &mut g);
            layer.forward(&mut g, step, weights, &self.factors, sizes);
        }
        self.g = g;
    }

    /// `A = sum env (x) G / n_sel`
    fn contracted(&self, a: &mut [T], step: &Step<T>, atom: &Atom<T>) {
        a.fill(T::ZERO);
        outer_add(a, &self.g, &self.neighbors.env, step.width);
        divide(a, atom);
    }

    /// `A_dot = sum (env_dot (x) G + env (x) G_dot) / n_sel`
    fn contracted_dot(&self, a_dot: &mut [T], step: &Step<T>, atom: &Atom<T>) {
        a_dot.fill(T::ZERO);
        outer_add(a_dot, &self.g, &self.neighbors.env_dot, step.width);
        outer_add(a_dot, &self.g_dot, &self.neighbors.env, step.width);
        divide(a_dot, atom);
    }

    /// dE by all that moves, from dE/dA.
    fn energy(&mut self, step: &Step<T>, atom: &Atom<T>, de_a: &[T]) {
        let (m, neighbors) = (step.width, &self.neighbors);
        self.a.clear();
        self.a.extend_from_slice(de_a);
        divide(&mut self.a, atom);
        zeros(&mut self.de_g, neighbors.rows * m);
        contract_add(&mut self.de_g, &self.a, &neighbors.env, m);
        products(&mut self.de.de_env, &self.g, &self.a, m);
        let mut de = &self.de_g;
        for (layer, weights) in self.layers.iter_mut().zip(&step.layers).rev() {
            layer.energy(de, step, weights, &mut self.factors);
            de = &layer.de_x;
        }
        zeros(&mut self.de.de_s, neighbors.rows);
        zeros(&mut self.de.de_switch, neighbors.rows);
        zeros(&mut self.de.de_unit, 3 * neighbors.n);
        let (g, g1) = self.jets.output();
        for r in 0..neighbors.rows {
            let own = r * m..(r + 1) * m;
            let (de, g, g1) = (&de[own.clone()], &g[own.clone()], &g1[own]);
            self.de.de_s[r] = dot(de, g1);
            if let Some(of_types) = step.of_types(atom.center, neighbors.types[r]) {
                let scale = neighbors.scale(step, r);
                let three =
                    |x: &[T]| de.iter().zip(x).zip(of_types).map(|((&de, &x), &t)| de * x * t).sum::<T>();
                self.de.de_s[r] += scale * three(g1);
                if step.smooth {
                    self.de.de_switch[r] = three(g);
                }
            }
        }
        let (switch, unit) = (&neighbors.switch[..neighbors.n], &neighbors.unit);
        self.factors.energy_add(&mut self.de.de_switch, &mut self.de.de_unit, step, switch, unit);
    }

    /// How G changes.
    fn tangent(&mut self, step: &Step<T>, atom: &Atom<T>, d_dot: [&[T]; 3], first: usize) {
        self.neighbors.fill_tangent(atom, d_dot, first);
        let (m, neighbors) = (step.width, &self.neighbors);
        let n = neighbors.n;
        let switches = (&neighbors.switch[..n], &neighbors.switch_dot[..n]);
        self.factors.fill_tangent(step, switches, (&neighbors.unit, &neighbors.unit_dot));
        let mut g_dot = std::mem::take(&mut self.g_dot);
        zeros(&mut g_dot, neighbors.rows * m);
        let (g, g1) = self.jets.output();
        for r in 0..neighbors.rows {
            let own = r * m..(r + 1) * m;
            let (out, g, g1) = (&mut g_dot[own.clone()], &g[own.clone()], &g1[own]);
            axpy(out, neighbors.s_dot[r], g1);
            if let Some(of_types) = step.of_types(atom.center, neighbors.types[r]) {
                let (scale, scale_dot) = (neighbors.scale(step, r), neighbors.scale_dot(step, r));
                for o in 0..m {
                    out[o] += (scale * neighbors.s_dot[r] * g1[o] + scale_dot * g[o]) * of_types[o];
                }
            }
        }
        for (layer, weights) in self.layers.iter_mut().zip(&step.layers) {
            std::mem::swap(&mut layer.x_dot, &mut g_dot);
            layer.tangent(&mut g_dot, step, weights, &self.factors);
        }
        self.g_dot = g_dot;
    }

    /// Adds to the gradient, after all other passes of the atom.
    fn loss(&mut self, grad: &mut [T], step: &Step<T>, atom: &Atom<T>, dl_a: &[T], de_a: &[T]) {
        let (m, neighbors) = (step.width, &self.neighbors);
        let mut dl = std::mem::take(&mut self.dl_g);
        zeros(&mut dl, neighbors.rows * m);
        for (adjoint, env) in [(dl_a, &neighbors.env), (de_a, &neighbors.env_dot)] {
            self.a.clear();
            self.a.extend_from_slice(adjoint);
            divide(&mut self.a, atom);
            contract_add(&mut dl, &self.a, env, m);
        }
        let mut de = &self.de_g;
        for (layer, weights) in self.layers.iter().zip(&step.layers).rev() {
            let mut below = Vec::new();
            layer.loss(&mut below, grad, &dl, de, step, weights, &self.factors);
            (dl, de) = (below, &layer.de_x);
        }
        let (mut dl_net, mut dl_slope) = (dl.clone(), vec![T::ZERO; dl.len()]);
        let (g, g1) = self.jets.output();
        for r in 0..neighbors.rows {
            let own = r * m..(r + 1) * m;
            let (dl, de) = (&dl[own.clone()], &de[own.clone()]);
            let (g, g1, s_dot) = (&g[own.clone()], &g1[own.clone()], neighbors.s_dot[r]);
            let (dl_net, dl_slope) = (&mut dl_net[own.clone()], &mut dl_slope[own]);
            axpy(dl_slope, s_dot, de);
            let Some(of_types) = step.of_types(atom.center, neighbors.types[r]) else { continue };
            let (scale, scale_dot) = (neighbors.scale(step, r), neighbors.scale_dot(step, r));
            let sum = step.table_gradient(grad, atom.center, neighbors.types[r]);
            for o in 0..m {
                dl_net[o] += (dl[o] * scale + de[o] * scale_dot) * of_types[o];
                dl_slope[o] += de[o] * scale * s_dot * of_types[o];
                sum[o] += dl[o] * g[o] * scale + de[o] * (g1[o] * s_dot * scale + g[o] * scale_dot);
            }
        }
        self.dl_g = dl;
        let net = atom.model.attention().filter;
        let dl_x = self.jets.backward_add(grad, 0, net, &step.weights, dl_net, dl_slope);
        for (dl_x, &t) in dl_x.chunks_exact(step.n_in).zip(&neighbors.types) {
            step.inputs_gradient_add(grad, dl_x, atom.center, t);
        }
    }
}

impl<T: Real> Neighbors<T> {
    /// What the part of the types is multiplied by in row `r`: the switch in the smooth form, else 1.
    fn scale(&self, step: &Step<T>, r: usize) -> T {
        if step.smooth { self.switch[r] } else { T::ONE }
    }

    fn scale_dot(&self, step: &Step<T>, r: usize) -> T {
        if step.smooth { self.switch_dot[r] } else { T::ZERO }
    }
}

/// Divides by the number of slots.
fn divide<T: Real>(a: &mut [T], atom: &Atom<T>) {
    let scale = T::from_f64(1.0 / atom.model.n_sel() as f64);
    a.iter_mut().for_each(|a| *a = scale * *a);
}
