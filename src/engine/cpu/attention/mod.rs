//! Descriptors with attention between the neighbours ([`Form::Attention`](crate::model::dp::options::Form::Attention)), atom by atom.
//!
//! `A = sum_j row_j (x) G_j / n_sel`. G comes from the distance and the type of a neighbour ([`step`]) and goes through layers of attention
//! ([`layer`]), which see the neighbours that there are and no empty slots. What the passes of an atom compute in the layers is kept for the
//! passes after them, as long as there is room ([`KEPT_BYTES`]): a megabyte or two for each atom and layer. A pass of one of the other atoms
//! repeats what came before it. The numbers are the same.

mod factors;
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
use factors::Factors;
use geometry::{Forces, Neighbors, zeros};
use layer::{Layer, Spare, contract_add, outer_add, products};
use std::sync::{Mutex, MutexGuard};
pub use step::Step;

/// What an engine keeps from pass to pass, at most: enough for a stock water frame with two layers.
const KEPT_BYTES: usize = 1 << 30;

/// What the passes of one atom keep for those after them.
#[derive(Default)]
struct Kept<T> {
    /// Rows that there was ever room for.
    room: usize,
    /// Which passes went through the layers since the batch came.
    passed: Passed,
    /// `[rows, M]` G after all layers, and its change.
    g: Vec<T>,
    g_dot: Vec<T>,
    layers: Vec<Layer<T>>,
}

#[derive(Default)]
struct Passed {
    forward: bool,
    energy: bool,
    tangent: bool,
}

/// What a thread works with.
#[derive(Default)]
struct Work<T> {
    neighbors: Neighbors<T>,
    factors: Factors<T>,
    /// The net of distances.
    jets: JetNet<T>,
    inputs: Vec<T>,
    spare: Spare<T>,
    /// `[rows, M]` dE/dG and dL/dG, and dL/dG below a layer.
    de_g: Vec<T>,
    dl_g: Vec<T>,
    dl_below: Vec<T>,
    de: Forces<T>,
    a: Vec<T>,
}

/// An atom in a pass.
struct State<'a, T> {
    work: &'a mut Work<T>,
    kept: &'a mut Kept<T>,
}

/// What a descriptor with attention keeps from one pass to the next.
#[derive(Default)]
pub struct Attention<T> {
    pub step: Step<T>,
    /// Of threads that are not at work; with what an atom that has no place of its own keeps within a pass.
    free: Mutex<Vec<(Work<T>, Kept<T>)>>,
    /// Of the first rows of the batch, one after another, and what they may take.
    kept: Vec<Mutex<Kept<T>>>,
    pub kept_bytes: usize,
    /// dL/dparams of each block.
    partial: Vec<Vec<T>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

impl<T: Real> Attention<T> {
    pub fn new() -> Self {
        Attention { kept_bytes: KEPT_BYTES, ..Attention::default() }
    }

    /// Gives the first atoms of a batch a place of their own, as many as there is room for, and forgets what was there.
    pub fn make_room(&mut self, batch: &Batch<T>) {
        let n_layers = batch.model.attention().layers().count();
        if n_layers == 0 {
            return;
        }
        let options = batch.model.attention().options;
        let (width, attn) = (batch.model.n_embed(), options.attn);
        let (mut left, mut n_kept) = (self.kept_bytes / size_of::<T>(), 0);
        for block in &batch.layout.blocks {
            for k in 0..block.n {
                if self.kept.len() == n_kept {
                    self.kept.push(Mutex::default());
                }
                let kept = self.kept[n_kept].get_mut().unwrap_or_else(|e| e.into_inner());
                kept.passed = Passed::default();
                // One more for the empty slots.
                kept.room = kept.room.max(batch.atom(block, k).n_neighbors() + 1);
                let numbers = n_layers * layer::numbers(width, attn, kept.room) + 2 * width * kept.room;
                if numbers > left {
                    self.kept.truncate(n_kept);
                    return;
                }
                left -= numbers;
                n_kept += 1;
            }
        }
        self.kept.truncate(n_kept);
    }

    /// What comes next has other derivatives by A than what was kept.
    pub fn forget_energies(&mut self) {
        for kept in &mut self.kept {
            kept.get_mut().unwrap_or_else(|e| e.into_inner()).passed.energy = false;
        }
    }

    /// An atom that is row `row` of the batch.
    fn with_state<R>(&self, row: usize, work: impl FnOnce(&mut State<T>) -> R) -> R {
        let taken = locked(&self.free).pop();
        let (mut own, mut spare) = taken.unwrap_or_default();
        let result = match self.kept.get(row) {
            Some(kept) => work(&mut State { work: &mut own, kept: &mut locked(kept) }),
            None => {
                spare.passed = Passed::default();
                work(&mut State { work: &mut own, kept: &mut spare })
            }
        };
        locked(&self.free).push((own, spare));
        result
    }

    /// Writes the embedding of the centre's type behind the rest of a descriptor, where it belongs there.
    pub fn write_tail(&self, d: &mut [T], model: &Dp, center: usize) {
        let (tail, first) = (model.n_tail(), d.len() - model.n_tail());
        d[first..].copy_from_slice(&self.step.embedded[center * tail..(center + 1) * tail]);
    }

    /// `A[c, m]` of an atom, overwritten.
    pub fn forward(&self, row: usize, atom: &Atom<T>, a: &mut [T]) {
        self.with_state(row, |state| {
            state.forward(&self.step, atom);
            state.contracted(a, &self.step, atom);
        });
    }

    /// dE/dd of an atom's pairs from dE/dA.
    pub fn forces(&self, row: usize, atom: &Atom<T>, de_d: [&mut [T]; 3], de_a: &[T]) {
        self.with_state(row, |state| {
            state.forward(&self.step, atom);
            state.energy(&self.step, atom, de_a);
            state.forces(&self.step, atom);
            state.work.neighbors.forces(atom, de_d, &state.work.de);
        });
    }

    /// The change of A, overwritten.
    pub fn tangent(&self, row: usize, atom: &Atom<T>, a_dot: &mut [T], d_dot: [&[T]; 3], first: usize) {
        self.with_state(row, |state| {
            state.forward(&self.step, atom);
            state.tangent(&self.step, atom, d_dot, first);
            state.contracted_dot(a_dot, &self.step, atom);
        });
    }

    /// The gradient by way of the frames that do without a series, as [`Step::deliver_add`] takes it. `adjoints` gives d_dot of the pairs of an
    /// atom of a block, and the adjoints of A and of its change.
    pub fn gradient<'a>(
        &mut self,
        pool: &Pool,
        batch: &Batch<T>,
        adjoints: impl Fn(&Segment, usize) -> ([&'a [T]; 3], &'a [T], &'a [T]) + Sync,
    ) -> Vec<f64> {
        let layout = batch.layout;
        let blocks: Vec<&Segment> =
            layout.blocks.iter().filter(|block| batch.plan_of(block).is_none()).collect();
        let mut partial = std::mem::take(&mut self.partial);
        partial.resize_with(blocks.len(), Vec::new);
        let parts = Parts::new(&mut partial);
        let len = self.step.gradient_len();
        pool.run(blocks.len(), |b| {
            // SAFETY: one element for each block.
            let sum = unsafe { &mut parts.part(b, 1)[0] };
            zeros(sum, len);
            for k in 0..blocks[b].n {
                let (d_dot, dl_a, de_a) = adjoints(blocks[b], k);
                let atom = batch.atom(blocks[b], k);
                self.with_state(blocks[b].row + k, |state| {
                    state.forward(&self.step, &atom);
                    if batch.model.is_energy() {
                        state.energy(&self.step, &atom, de_a);
                        state.tangent(&self.step, &atom, d_dot, 0);
                        state.loss(sum, &self.step, &atom, dl_a, de_a);
                    } else {
                        state.rest(&self.step);
                        state.loss(sum, &self.step, &atom, dl_a, &[]);
                    }
                });
            }
        });
        let mut sums = vec![0.0; len];
        for partial in &partial[..blocks.len()] {
            sums.iter_mut().zip(partial).for_each(|(sum, x)| *sum += x.to_f64());
        }
        self.partial = partial;
        sums
    }
}

impl<T: Real> State<'_, T> {
    /// G of every row.
    fn forward(&mut self, step: &Step<T>, atom: &Atom<T>) {
        let Work { neighbors, factors, jets, inputs, spare, .. } = &mut *self.work;
        neighbors.fill(atom);
        if !step.layers.is_empty() {
            factors.fill(step, &neighbors.switch[..neighbors.n], &neighbors.unit);
        }
        inputs.clear();
        for (&s, &t) in neighbors.s.iter().zip(&neighbors.types) {
            step.inputs(inputs, s, atom.center, t);
        }
        jets.forward_rows(atom.model.attention().filter, &step.weights, inputs, |x1| {
            x1.resize(neighbors.rows * step.n_in, T::ZERO);
            x1.iter_mut().step_by(step.n_in).for_each(|x1| *x1 = T::ONE);
        });
        let Kept { passed, g, layers, .. } = &mut *self.kept;
        if std::mem::replace(&mut passed.forward, true) {
            return;
        }
        zeros(g, neighbors.rows * step.width);
        g.copy_from_slice(jets.output().0);
        for (r, row) in g.chunks_exact_mut(step.width).enumerate() {
            if let Some(of_types) = step.of_types(atom.center, neighbors.types[r]) {
                let scale = neighbors.scale(step, r);
                row.iter_mut().zip(of_types).for_each(|(g, &t)| *g += *g * scale * t);
            }
        }
        layers.resize_with(step.layers.len(), Layer::default);
        let sizes = (neighbors.n, neighbors.rows, neighbors.others);
        for (layer, weights) in layers.iter_mut().zip(&step.layers) {
            std::mem::swap(&mut layer.x, g);
            layer.forward(g, spare, step, weights, factors, sizes);
        }
    }

    /// `A = sum env (x) G / n_sel`
    fn contracted(&self, a: &mut [T], step: &Step<T>, atom: &Atom<T>) {
        a.fill(T::ZERO);
        outer_add(a, &self.kept.g, &self.work.neighbors.env, step.width);
        divide(a, atom);
    }

    /// `A_dot = sum (env_dot (x) G + env (x) G_dot) / n_sel`
    fn contracted_dot(&self, a_dot: &mut [T], step: &Step<T>, atom: &Atom<T>) {
        a_dot.fill(T::ZERO);
        outer_add(a_dot, &self.kept.g, &self.work.neighbors.env_dot, step.width);
        outer_add(a_dot, &self.kept.g_dot, &self.work.neighbors.env, step.width);
        divide(a_dot, atom);
    }

    /// dE by the rows of all layers, from dE/dA; and by the factors where the layers were not passed yet.
    fn energy(&mut self, step: &Step<T>, atom: &Atom<T>, de_a: &[T]) {
        let Work { neighbors, factors, spare, de_g, de, a, .. } = &mut *self.work;
        let m = step.width;
        a.clear();
        a.extend_from_slice(de_a);
        divide(a, atom);
        zeros(de_g, neighbors.rows * m);
        contract_add(de_g, a, &neighbors.env, m);
        let Kept { passed, g, layers, .. } = &mut *self.kept;
        if std::mem::replace(&mut passed.energy, true) {
            return;
        }
        products(&mut de.de_env, g, a, m);
        factors.start_energy();
        let mut de = &*de_g;
        for (layer, weights) in layers.iter_mut().zip(&step.layers).rev() {
            layer.energy(de, spare, step, weights, factors);
            de = &layer.de_x;
        }
    }

    /// dE by all else that moves, right after [`State::energy`] went through the layers.
    fn forces(&mut self, step: &Step<T>, atom: &Atom<T>) {
        let m = step.width;
        let Work { neighbors, factors, jets, de_g, de: out, .. } = &mut *self.work;
        let de = self.kept.layers.first().map_or(&*de_g, |layer| &layer.de_x);
        zeros(&mut out.de_s, neighbors.rows);
        zeros(&mut out.de_switch, neighbors.rows);
        out.de_unit.iter_mut().for_each(|de_unit| zeros(de_unit, neighbors.n));
        let (g, g1) = jets.output();
        for r in 0..neighbors.rows {
            let own = r * m..(r + 1) * m;
            let (de, g, g1) = (&de[own.clone()], &g[own.clone()], &g1[own]);
            out.de_s[r] = dot(de, g1);
            if let Some(of_types) = step.of_types(atom.center, neighbors.types[r]) {
                let scale = neighbors.scale(step, r);
                let three =
                    |x: &[T]| de.iter().zip(x).zip(of_types).map(|((&de, &x), &t)| de * x * t).sum::<T>();
                out.de_s[r] += scale * three(g1);
                if step.smooth {
                    out.de_switch[r] = three(g);
                }
            }
        }
        if !step.layers.is_empty() {
            let (switch, unit) = (&neighbors.switch[..neighbors.n], &neighbors.unit);
            factors.energy_add(&mut out.de_switch, &mut out.de_unit, step, switch, unit);
        }
    }

    /// How G changes.
    fn tangent(&mut self, step: &Step<T>, atom: &Atom<T>, d_dot: [&[T]; 3], first: usize) {
        let Work { neighbors, factors, jets, spare, .. } = &mut *self.work;
        neighbors.fill_tangent(atom, d_dot, first);
        let (m, n) = (step.width, neighbors.n);
        if !step.layers.is_empty() {
            let switches = (&neighbors.switch[..n], &neighbors.switch_dot[..n]);
            factors.fill_tangent(step, switches, (&neighbors.unit, &neighbors.unit_dot));
        }
        let Kept { passed, g_dot, layers, .. } = &mut *self.kept;
        if std::mem::replace(&mut passed.tangent, true) {
            return;
        }
        zeros(g_dot, neighbors.rows * m);
        let (g, g1) = jets.output();
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
        for (layer, weights) in layers.iter_mut().zip(&step.layers) {
            std::mem::swap(&mut layer.x_dot, g_dot);
            layer.tangent(g_dot, spare, step, weights, factors);
        }
    }

    /// Nothing moves, and no energy is differentiated: zeros instead of [`State::energy`] and [`State::tangent`].
    fn rest(&mut self, step: &Step<T>) {
        let Work { neighbors, factors, de_g, .. } = &mut *self.work;
        neighbors.stay();
        factors.stay();
        zeros(de_g, neighbors.rows * step.width);
        self.kept.layers.iter_mut().for_each(|layer| layer.rest(step));
    }

    /// Adds to the gradient, after all other passes of the atom.
    fn loss(&mut self, grad: &mut [T], step: &Step<T>, atom: &Atom<T>, dl_a: &[T], de_a: &[T]) {
        let Work { neighbors, factors, jets, spare, de_g, dl_g: dl, dl_below, a, .. } = &mut *self.work;
        let m = step.width;
        zeros(dl, neighbors.rows * m);
        for (adjoint, env) in [(dl_a, &neighbors.env), (de_a, &neighbors.env_dot)] {
            a.clear();
            a.extend_from_slice(adjoint);
            divide(a, atom);
            contract_add(dl, a, env, m);
        }
        let mut de = &*de_g;
        for (layer, weights) in self.kept.layers.iter().zip(&step.layers).rev() {
            layer.loss(dl_below, grad, dl, de, spare, step, weights, factors);
            std::mem::swap(dl, dl_below);
            de = &layer.de_x;
        }
        let (mut dl_net, mut dl_slope) = (dl.clone(), vec![T::ZERO; dl.len()]);
        let (g, g1) = jets.output();
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
        let net = atom.model.attention().filter;
        let dl_x = jets.backward_add(grad, 0, net, &step.weights, dl_net, dl_slope);
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
