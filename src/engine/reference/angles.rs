//! The descriptor of one atom from its neighbours two by two: [`Form::Angles`](crate::model::dp::options::Form::Angles).

use super::atom::{Described, Entry};
use super::env::Row;
use super::tape::{Id, Tape};
use crate::model::dp::Dp;

/// D as a tape, with what moves.
pub struct OnTape {
    pub tape: Tape,
    /// `[n_entries, 5]` the rows with the switch.
    pub rows: Id,
    /// `[1, width]` the descriptor.
    pub d: Id,
    /// `[M1, 4]` A, where D comes from one.
    pub a: Option<Matrix>,
}

/// A as the outputs that turn with the atoms see it.
pub struct Matrix {
    id: Id,
    value: Vec<[f64; 4]>,
    /// What is added to dL/dA.
    dl: Vec<[f64; 4]>,
}

impl Matrix {
    pub fn new(tape: &Tape, id: Id) -> Self {
        Matrix { id, value: tape.node(id).value.as_chunks::<4>().0.to_vec(), dl: Vec::new() }
    }
}

/// D of an atom.
pub fn forward(model: &Dp, params: &[f64], entries: &[Entry]) -> OnTape {
    let mut tape = Tape::default();
    let rows = tape.input(entries.len(), 5, entries.iter().flat_map(|entry| entry.row).collect());
    let directions = tape.columns(rows, 1, 3);
    let (n_types, sel) = (model.n_types(), model.sel());
    let mut d = tape.input(1, model.n_embed(), vec![0.0; model.n_embed()]);
    for b in 0..n_types {
        for a in 0..=b {
            let of = |t: usize| (0..entries.len()).filter(move |&k| entries[k].neighbor == t);
            let pairs: Vec<(usize, usize)> =
                of(a).flat_map(|j| of(b).map(move |k| (j, k)).collect::<Vec<_>>()).collect();
            let left = tape.gather(directions, pairs.iter().map(|pair| pair.0).collect());
            let right = tape.gather(directions, pairs.iter().map(|pair| pair.1).collect());
            let both = tape.multiply(left, right);
            let x = tape.sum_columns(both);
            let g = tape.net(params, x, &model.embedding[model.embedding_net(a, b)]);
            let weighted = tape.multiply(g, x);
            let sum = tape.sum_rows(weighted);
            let mean = tape.scaled(sum, 1.0 / (sel[a] as f64 * sel[b] as f64));
            d = tape.add(d, mean);
        }
    }
    OnTape { tape, rows, d, a: None }
}

impl Described for OnTape {
    fn value(&self) -> &[f64] {
        &self.tape.node(self.d).value
    }

    fn backward(&mut self, de_d: &[f64]) -> Vec<Row> {
        self.tape.backward_energy(self.d, de_d);
        self.tape.node(self.rows).de.as_chunks::<5>().0.to_vec()
    }

    fn tangent(&mut self, row_dot: &[Row]) -> Vec<f64> {
        self.tape.node_mut(self.rows).dot = row_dot.as_flattened().to_vec();
        self.tape.tangent();
        self.tape.node(self.d).dot.clone()
    }

    fn gradient_add(&mut self, grad: &mut [f64], dl_d: &[f64], de_d: &[f64]) {
        self.tape.backward_energy(self.d, de_d);
        let of_matrix = self.a.as_ref().map(|a| (a.id, a.dl.as_flattened()));
        self.tape.backward_loss(grad, self.d, dl_d, of_matrix.filter(|(_, dl)| !dl.is_empty()));
    }

    fn matrix(&self) -> &[[f64; 4]] {
        &self.a.as_ref().expect("outputs that turn with the atoms come from descriptors that have it").value
    }

    fn add_to_matrix(&mut self, dl_a: Vec<[f64; 4]>) {
        self.a.as_mut().expect("outputs that turn with the atoms come from descriptors that have it").dl =
            dl_a;
    }
}
