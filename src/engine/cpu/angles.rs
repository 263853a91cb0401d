//! Descriptors from neighbours two by two ([`Form::Angles`](crate::model::dp::options::Form::Angles)), atom by atom.
//!
//! `A = sum w x G(x)` over pairs of neighbours, `x = u_j . u_k` with the directions u of their rows. G depends on x alone, so that a
//! pair needs G and G'. With `A_dot = sum w x_dot (G + x G')` the second pass differentiates both by the parameters. Two
//! neighbours of one type are met once, and count twice. Empty slots bring nothing. This is the net itself; `angle_series.rs` has the
//! series.

use super::direct::{Atom, Pair};
use super::elementwise::{axpy, dot};
use super::jets::JetNet;
use super::net::{self, NetTrace};
use super::real::Real;

/// Pairs of neighbours that go through a net together.
const ROWS: usize = 256;

/// The neighbours of an atom.
pub(super) struct Neighbors {
    /// Distance vectors and functions of their lengths, type after type.
    pairs: Vec<Pair>,
    /// Directions.
    pub u: Vec<[f64; 3]>,
    /// The first of each type, and the end.
    pub first: Vec<usize>,
}

/// Pairs of neighbours with the same net.
#[derive(Default)]
struct Chunk {
    net: usize,
    j: Vec<usize>,
    k: Vec<usize>,
    x: Vec<f64>,
    weight: Vec<f64>,
}

fn product3(a: [f64; 3], b: [f64; 3]) -> f64 {
    a[0] * b[0] + a[1] * b[1] + a[2] * b[2]
}

impl Neighbors {
    pub fn new<T: Real>(atom: &Atom<T>) -> Self {
        let (frame, n_types) = (atom.frame, atom.model.n_types());
        let own = |t: usize| frame.pairs(atom.row, t, n_types);
        let all = own(0).start..own(n_types - 1).end;
        let pairs: Vec<Pair> = all.map(|p| Pair::new(atom.model, frame, atom.center, p)).collect();
        let u = pairs.iter().map(|pair| pair.env(atom.form())).map(|env| [env[1], env[2], env[3]]).collect();
        let mut first: Vec<usize> = (0..n_types).map(|t| own(t).start - own(0).start).collect();
        first.push(pairs.len());
        Neighbors { pairs, u, first }
    }

    /// How the directions move; `d_dot[k][p - first]` belongs to pair p of the frame.
    pub fn directions_dot<T: Real>(&self, atom: &Atom<T>, d_dot: [&[T]; 3], first: usize) -> Vec<[f64; 3]> {
        let start = atom.frame.pairs(atom.row, 0, atom.model.n_types()).start - first;
        let turn = |(n, pair): (usize, &Pair)| {
            let v = [0, 1, 2].map(|k| d_dot[k][start + n].to_f64());
            let env = pair.dot(atom.form(), v).env;
            [env[1], env[2], env[3]]
        };
        self.pairs.iter().enumerate().map(turn).collect()
    }

    /// dE/dd of the atom's pairs from dE/du.
    pub fn forces<T: Real>(&self, atom: &Atom<T>, mut de_d: [&mut [T]; 3], de_u: impl Fn(usize) -> [f64; 3]) {
        for (n, pair) in self.pairs.iter().enumerate() {
            let [x, y, z] = de_u(n);
            for (de_d, de) in de_d.iter_mut().zip(pair.force(atom.form(), 0.0, [0.0, x, y, z])) {
                de_d[n] = T::from_f64(de);
            }
        }
    }

    /// All pairs of neighbours, chunk after chunk.
    fn each_chunk<T>(&self, atom: &Atom<T>, mut visit: impl FnMut(&Chunk)) {
        let (model, mut chunk) = (atom.model, Chunk::default());
        for b in 0..model.n_types() {
            for a in 0..=b {
                chunk.net = model.embedding_net(a, b);
                let weight = 1.0 / (model.sel()[a] as f64 * model.sel()[b] as f64);
                for j in self.first[a]..self.first[a + 1] {
                    let others = if a == b { j } else { self.first[b] };
                    for k in others..self.first[b + 1] {
                        let times = if a == b && k > j { 2.0 } else { 1.0 };
                        chunk.j.push(j);
                        chunk.k.push(k);
                        chunk.x.push(product3(self.u[j], self.u[k]));
                        chunk.weight.push(times * weight);
                        if chunk.x.len() == ROWS {
                            chunk.give_to(&mut visit);
                        }
                    }
                }
                chunk.give_to(&mut visit);
            }
        }
    }
}

impl Chunk {
    fn give_to(&mut self, visit: &mut impl FnMut(&Chunk)) {
        if !self.x.is_empty() {
            visit(self);
        }
        self.j.clear();
        self.k.clear();
        self.x.clear();
        self.weight.clear();
    }
}

fn write<T: Real>(out: &mut [T], sum: &[f64]) {
    out.iter_mut().zip(sum).for_each(|(out, &x)| *out = T::from_f64(x));
}

/// A of an atom, overwritten.
pub fn forward<T: Real>(atom: &Atom<T>, a: &mut [T]) {
    let m1 = atom.model.n_embed();
    let (mut sum, mut trace) = (vec![0.0; m1], NetTrace::default());
    Neighbors::new(atom).each_chunk(atom, |chunk| {
        let g = net::forward(&mut trace, &atom.model.embedding[chunk.net], atom.params, &chunk.x);
        for (n, g) in g.chunks_exact(m1).enumerate() {
            axpy(&mut sum, chunk.weight[n] * chunk.x[n], g);
        }
    });
    write(a, &sum);
}

/// The change of A, overwritten.
pub fn tangent<T: Real>(atom: &Atom<T>, a_dot: &mut [T], d_dot: [&[T]; 3], first: usize) {
    let m1 = atom.model.n_embed();
    let neighbors = Neighbors::new(atom);
    let u_dot = neighbors.directions_dot(atom, d_dot, first);
    let (mut sum, mut jets) = (vec![0.0; m1], JetNet::default());
    neighbors.each_chunk(atom, |chunk| {
        jets.forward(&atom.model.embedding[chunk.net], atom.params, &chunk.x);
        let (g, g1) = jets.output();
        for n in 0..chunk.x.len() {
            let scale = chunk.weight[n] * chunk.x_dot(n, &neighbors, &u_dot);
            axpy(&mut sum, scale, &g[n * m1..(n + 1) * m1]);
            axpy(&mut sum, scale * chunk.x[n], &g1[n * m1..(n + 1) * m1]);
        }
    });
    write(a_dot, &sum);
}

impl Chunk {
    /// The change of the product of pair `n`.
    fn x_dot(&self, n: usize, neighbors: &Neighbors, u_dot: &[[f64; 3]]) -> f64 {
        let (j, k) = (self.j[n], self.k[n]);
        product3(u_dot[j], neighbors.u[k]) + product3(neighbors.u[j], u_dot[k])
    }
}

/// dE/dd of the atom's pairs from dE/dA.
pub fn forces<T: Real>(atom: &Atom<T>, de_d: [&mut [T]; 3], de_a: &[T]) {
    let m1 = atom.model.n_embed();
    let de_a: Vec<f64> = de_a.iter().map(|x| x.to_f64()).collect();
    let neighbors = Neighbors::new(atom);
    let (mut de_u, mut jets) = (vec![[0.0; 3]; neighbors.u.len()], JetNet::default());
    neighbors.each_chunk(atom, |chunk| {
        jets.forward(&atom.model.embedding[chunk.net], atom.params, &chunk.x);
        let (g, g1) = jets.output();
        for n in 0..chunk.x.len() {
            let at = n * m1..(n + 1) * m1;
            let de_x = chunk.weight[n] * (dot(&g[at.clone()], &de_a) + chunk.x[n] * dot(&g1[at], &de_a));
            let (j, k) = (chunk.j[n], chunk.k[n]);
            for c in 0..3 {
                de_u[j][c] += de_x * neighbors.u[k][c];
                de_u[k][c] += de_x * neighbors.u[j][c];
            }
        }
    });
    neighbors.forces(atom, de_d, |n| de_u[n]);
}

/// Adds dL/dparams of the nets from the adjoints of A and of its tangent.
pub fn backward_add<T: Real>(
    atom: &Atom<T>,
    grad: &mut [f64],
    d_dot: [&[T]; 3],
    first: usize,
    dl_a: &[T],
    de_a: &[T],
) {
    let m1 = atom.model.n_embed();
    let cast = |x: &[T]| x.iter().map(|x| x.to_f64()).collect::<Vec<f64>>();
    let (dl_a, de_a) = (cast(dl_a), cast(de_a));
    let neighbors = Neighbors::new(atom);
    let u_dot = neighbors.directions_dot(atom, d_dot, first);
    let mut jets = JetNet::default();
    neighbors.each_chunk(atom, |chunk| {
        let net = &atom.model.embedding[chunk.net];
        jets.forward(net, atom.params, &chunk.x);
        let (mut g, mut g1) = (vec![0.0; chunk.x.len() * m1], vec![0.0; chunk.x.len() * m1]);
        for n in 0..chunk.x.len() {
            let (x, at) = (chunk.x[n], n * m1..(n + 1) * m1);
            let x_dot = chunk.weight[n] * chunk.x_dot(n, &neighbors, &u_dot);
            axpy(&mut g[at.clone()], chunk.weight[n] * x, &dl_a);
            axpy(&mut g[at.clone()], x_dot, &de_a);
            axpy(&mut g1[at], x_dot * x, &de_a);
        }
        jets.backward_add(grad, 0, net, atom.params, g, g1);
    });
}
