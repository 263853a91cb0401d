//! The neighbours of one atom as attention sees them: rows of the environment matrix, switch, unit vectors, and how they move.

use crate::engine::cpu::direct::{Atom, Pair};
use crate::engine::cpu::frame::empty_slot;
use crate::engine::cpu::real::Real;
use crate::model::dp::radial::switch;

/// The neighbours of an atom, and as one more row its empty slots where they count.
#[derive(Default)]
pub struct Neighbors<T> {
    /// Neighbours, and rows.
    pub n: usize,
    pub rows: usize,
    /// `[n]` distance vectors and functions of their lengths; the switch by the distance; 1 / r.
    pairs: Vec<Pair>,
    slopes: Vec<f64>,
    inverse: Vec<f64>,
    /// `[rows]` types.
    pub types: Vec<usize>,
    /// `[rows, 4]` rows of the environment matrix, times the number of slots that look so; and their change.
    pub env: Vec<T>,
    pub env_dot: Vec<T>,
    /// `[rows]` the argument of the embedding net, and its change.
    pub s: Vec<T>,
    pub s_dot: Vec<T>,
    /// `[rows]` the switch, and its change.
    pub switch: Vec<T>,
    pub switch_dot: Vec<T>,
    /// `[n]` each component of the unit vectors, and of their change.
    pub unit: [Vec<T>; 3],
    pub unit_dot: [Vec<T>; 3],
    /// Slots in which nobody is seen.
    pub others: T,
}

/// dE by what moves.
#[derive(Default)]
pub struct Forces<T> {
    /// `[rows, 4]`
    pub de_env: Vec<T>,
    /// `[rows]`
    pub de_s: Vec<T>,
    pub de_switch: Vec<T>,
    /// `[n]` by component.
    pub de_unit: [Vec<T>; 3],
}

/// Overwrites a buffer with zeros. What it had room for is given back where that is too little, so that it takes no more than was asked for.
pub fn zeros<T: Real>(buffer: &mut Vec<T>, len: usize) {
    buffer.clear();
    buffer.reserve_exact(len);
    buffer.resize(len, T::ZERO);
}

impl<T: Real> Neighbors<T> {
    pub fn fill(&mut self, atom: &Atom<T>) {
        let (model, frame) = (atom.model, atom.frame);
        let (n_types, options) = (model.n_types(), model.descriptor());
        self.pairs.clear();
        self.slopes.clear();
        self.inverse.clear();
        self.types.clear();
        for buffer in [&mut self.env, &mut self.s, &mut self.switch].into_iter().chain(&mut self.unit) {
            buffer.clear();
        }
        for t in 0..n_types {
            for p in frame.pairs(atom.row, t, n_types) {
                let pair = Pair::new(model, frame, atom.center, p);
                let d = pair.vector();
                let r = (d[0] * d[0] + d[1] * d[1] + d[2] * d[2]).sqrt();
                let (w, w_r) = switch(options, r);
                let env = pair.env(atom.form());
                self.env.extend(env.map(T::from_f64));
                self.s.push(T::from_f64(env[0]));
                self.switch.push(T::from_f64(w));
                self.unit.iter_mut().zip(d).for_each(|(unit, x)| unit.push(T::from_f64(x / r)));
                self.slopes.push(w_r);
                self.inverse.push(1.0 / r);
                self.types.push(t);
                self.pairs.push(pair);
            }
        }
        self.n = self.pairs.len();
        self.others = T::from_f64((model.n_sel() - self.n) as f64);
        // Where davg is zero an empty slot has a row of zeros, and no part in anything.
        let (padding, s) = (frame.padding[atom.row * n_types], empty_slot(model, atom.center));
        if padding > 0 && s != 0.0 {
            self.types.push(frame.empty_type);
            self.env.extend([s * f64::from(padding), 0.0, 0.0, 0.0].map(T::from_f64));
            self.s.push(T::from_f64(s));
            self.switch.push(T::ZERO);
        }
        self.rows = self.types.len();
    }

    /// How everything moves; `d_dot[k][p - first]` belongs to pair p of the frame.
    pub fn fill_tangent(&mut self, atom: &Atom<T>, d_dot: [&[T]; 3], first: usize) {
        let start = atom.frame.pairs(atom.row, 0, atom.model.n_types()).start - first;
        self.stay();
        for (k, pair) in self.pairs.iter().enumerate() {
            let v = [0, 1, 2].map(|c| d_dot[c][start + k].to_f64());
            let dot = pair.dot(atom.form(), v);
            self.env_dot[4 * k..4 * k + 4].copy_from_slice(&dot.env.map(T::from_f64));
            self.s_dot[k] = T::from_f64(dot.s);
            let u = [0, 1, 2].map(|c| pair.vector()[c] * self.inverse[k]);
            let r_dot = u[0] * v[0] + u[1] * v[1] + u[2] * v[2];
            self.switch_dot[k] = T::from_f64(self.slopes[k] * r_dot);
            for c in 0..3 {
                self.unit_dot[c][k] = T::from_f64((v[c] - u[c] * r_dot) * self.inverse[k]);
            }
        }
    }

    /// Nothing moves.
    pub fn stay(&mut self) {
        zeros(&mut self.env_dot, 4 * self.rows);
        zeros(&mut self.s_dot, self.rows);
        zeros(&mut self.switch_dot, self.rows);
        self.unit_dot.iter_mut().for_each(|unit| zeros(unit, self.n));
    }

    /// dE/dd of the pairs, from dE by all that moves.
    pub fn forces(&self, atom: &Atom<T>, de_d: [&mut [T]; 3], de: &Forces<T>) {
        for (k, pair) in self.pairs.iter().enumerate() {
            let de_env = [0, 1, 2, 3].map(|c| de.de_env[4 * k + c].to_f64());
            let own = pair.force(atom.form(), de.de_s[k].to_f64() + de_env[0], de_env);
            let u = [0, 1, 2].map(|c| pair.vector()[c] * self.inverse[k]);
            let de_u = [0, 1, 2].map(|c| de.de_unit[c][k].to_f64());
            let along = u[0] * de_u[0] + u[1] * de_u[1] + u[2] * de_u[2];
            let radial = self.slopes[k] * de.de_switch[k].to_f64();
            for c in 0..3 {
                let turned = (de_u[c] - u[c] * along) * self.inverse[k];
                de_d[c][k] = T::from_f64(own[c] + turned + radial * u[c]);
            }
        }
    }
}
