//! The work on neighbours two by two of the Chebyshev path: `Q[k] = sum w x T_k(x)` over pairs of neighbours ([`super::angles`]).
//!
//! Pairs are collected for each panel until they fill a chunk; sums over them have a term in each lane (`walk.rs`).

use super::angles::Neighbors;
use super::chebyshev::{Plan, groups};
use super::direct::Atom;
use super::distances::derivative;
use super::evaluate::evaluate;
use super::pairs::{CHUNK, Lanes, Scale, argument};
use super::real::Real;
use super::walk::Terms;
use crate::model::dp::Dp;
use std::ops::Range;

/// Cells that tell the panel of a number, or nearly.
const CELLS: usize = 256;

/// Pairs of neighbours in one panel.
#[derive(Clone)]
struct Chunk<T> {
    n: usize,
    x: Lanes<T>,
    weight: Lanes<T>,
    j: [u32; CHUNK],
    k: [u32; CHUNK],
}

/// The panels of a group of nets.
struct Group<T> {
    panels: Range<usize>,
    /// Lower ends of the panels, falling.
    low: Vec<T>,
    start: T,
    inverse: T,
    /// The first panel that any number of a cell lies in.
    cells: Vec<u32>,
}

impl<T: Real> Group<T> {
    fn new(plan: &Plan, group: usize) -> Self {
        let own = plan.panels_of(group);
        let panels = &plan.panels()[own.clone()];
        let low: Vec<f64> = panels.iter().map(|panel| panel.low).collect();
        let (start, end) = (low[low.len() - 1], panels[0].high);
        let size = (end - start) / CELLS as f64;
        // The end of a cell and a little more: rounding may bring a number of the next one here.
        let first = |cell: usize| {
            let above = start + size * (cell as f64 + 1.001);
            low.iter().position(|&low| above >= low).unwrap_or(low.len() - 1) as u32
        };
        Group {
            panels: own,
            cells: (0..CELLS).map(first).collect(),
            low: low.iter().map(|&x| T::from_f64(x)).collect(),
            start: T::from_f64(start),
            inverse: T::from_f64(1.0 / size),
        }
    }

    /// The panel that holds `x`.
    fn panel(&self, x: T) -> usize {
        let cell = ((x - self.start) * self.inverse).to_f64() as usize;
        let mut panel = self.cells[cell.min(CELLS - 1)] as usize;
        while panel + 1 < self.low.len() && x < self.low[panel] {
            panel += 1;
        }
        self.panels.start + panel
    }
}

/// What the atoms of a block share.
pub struct Angles<'a, T> {
    model: &'a Dp,
    plan: &'a Plan,
    scales: &'a [Scale<T>],
    groups: Vec<Group<T>>,
    /// `[n_panels]`
    chunks: Vec<Chunk<T>>,
}

fn product3<T: Real>(a: [T; 3], b: [T; 3]) -> T {
    a[0].fma(b[0], a[1].fma(b[1], a[2] * b[2]))
}

fn cast<T: Real>(vectors: &[[f64; 3]]) -> Vec<[T; 3]> {
    vectors.iter().map(|v| v.map(T::from_f64)).collect()
}

impl<'a, T: Real> Angles<'a, T> {
    pub fn new(model: &'a Dp, plan: &'a Plan, scales: &'a [Scale<T>]) -> Self {
        let zero = [T::ZERO; CHUNK];
        let none = Chunk { n: 0, x: zero, weight: zero, j: [0; CHUNK], k: [0; CHUNK] };
        let groups = (0..groups(model).len()).map(|group| Group::new(plan, group)).collect();
        Angles { model, plan, scales, groups, chunks: vec![none; plan.panels().len()] }
    }

    /// All pairs of neighbours with directions `u`, chunk after chunk with their panel.
    fn each_chunk(&mut self, u: &[[T; 3]], first: &[usize], mut visit: impl FnMut(usize, &Chunk<T>)) {
        let sel = self.model.sel();
        for (group, (a, b)) in self.groups.iter().zip(groups(self.model)) {
            let once = T::from_f64(1.0 / (sel[a] as f64 * sel[b] as f64));
            for j in first[a]..first[a + 1] {
                let others = if a == b { j } else { first[b] };
                for k in others..first[b + 1] {
                    let x = product3(u[j], u[k]);
                    let panel = group.panel(x);
                    let chunk = &mut self.chunks[panel];
                    chunk.x[chunk.n] = x;
                    chunk.weight[chunk.n] = if a == b && k > j { once + once } else { once };
                    (chunk.j[chunk.n], chunk.k[chunk.n]) = (j as u32, k as u32);
                    chunk.n += 1;
                    if chunk.n == CHUNK {
                        visit(panel, chunk);
                        chunk.n = 0;
                    }
                }
            }
            for panel in group.panels.clone() {
                let chunk = &mut self.chunks[panel];
                if chunk.n > 0 {
                    visit(panel, chunk);
                    chunk.n = 0;
                }
            }
        }
    }

    /// Adds Q of an atom to `q`, in which `place` says where the terms of a panel begin.
    pub fn features_add(&mut self, q: &mut [T], place: impl Fn(usize) -> usize, atom: &Atom<T>) {
        let (neighbors, terms, scales) = (Neighbors::new(atom), self.plan.terms, self.scales);
        let mut walk = Terms::<T, 1>::default();
        self.each_chunk(&cast(&neighbors.u), &neighbors.first, |panel, chunk| {
            for l in 0..chunk.n {
                walk.a[l] = [chunk.weight[l] * chunk.x[l]];
            }
            let x = argument(&chunk.x, scales[panel]).0;
            walk.add_to(&mut q[place(panel)..], terms, terms, &x, chunk.n, false);
        });
    }

    /// Adds the change of Q; `d_dot[k][p - first]` belongs to pair p of the frame.
    pub fn features_tangent_add(
        &mut self,
        q_dot: &mut [T],
        place: impl Fn(usize) -> usize,
        atom: &Atom<T>,
        (d_dot, first): ([&[T]; 3], usize),
    ) {
        let (neighbors, terms, scales) = (Neighbors::new(atom), self.plan.terms, self.scales);
        let u: Vec<[T; 3]> = cast(&neighbors.u);
        let u_dot: Vec<[T; 3]> = cast(&neighbors.directions_dot(atom, d_dot, first));
        let mut walk = Terms::<T, 1>::default();
        self.each_chunk(&u, &neighbors.first, |panel, chunk| {
            let (x, slope) = argument(&chunk.x, scales[panel]);
            for l in 0..chunk.n {
                let (j, k) = (chunk.j[l] as usize, chunk.k[l] as usize);
                let x_dot = chunk.weight[l] * (product3(u_dot[j], u[k]) + product3(u[j], u_dot[k]));
                walk.a[l] = [x_dot];
                walk.b[l] = [x_dot * chunk.x[l] * slope[l]];
            }
            walk.add_to(&mut q_dot[place(panel)..], terms, terms, &x, chunk.n, true);
        });
    }

    /// dE/dd of an atom's pairs from dE/dQ, in which `place` says where the terms of a panel begin.
    pub fn forces(
        &mut self,
        de_d: [&mut [T]; 3],
        de_q: &[T],
        place: impl Fn(usize) -> usize,
        atom: &Atom<T>,
    ) {
        let (neighbors, terms, scales) = (Neighbors::new(atom), self.plan.terms, self.scales);
        let u: Vec<[T; 3]> = cast(&neighbors.u);
        let mut slopes = vec![T::ZERO; self.plan.columns()];
        for (panel, slopes) in slopes.chunks_exact_mut(terms).enumerate() {
            derivative(slopes, &de_q[place(panel)..], terms);
        }
        let mut de_u = vec![[T::ZERO; 3]; u.len()];
        self.each_chunk(&u, &neighbors.first, |panel, chunk| {
            let (x, x_slope) = argument(&chunk.x, scales[panel]);
            let (mut value, mut slope) = ([[T::ZERO; CHUNK]; 1], [[T::ZERO; CHUNK]; 1]);
            evaluate(&mut value, &de_q[place(panel)..][..terms], &x, chunk.n);
            evaluate(&mut slope, &slopes[panel * terms..][..terms], &x, chunk.n);
            for l in 0..chunk.n {
                let (j, k) = (chunk.j[l] as usize, chunk.k[l] as usize);
                let de_x = chunk.weight[l] * (value[0][l] + chunk.x[l] * x_slope[l] * slope[0][l]);
                for c in 0..3 {
                    de_u[j][c] = de_x.fma(u[k][c], de_u[j][c]);
                    de_u[k][c] = de_x.fma(u[j][c], de_u[k][c]);
                }
            }
        });
        neighbors.forces(atom, de_d, |n| de_u[n].map(Real::to_f64));
    }
}
