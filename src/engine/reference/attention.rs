//! The descriptor of one atom with attention between its neighbours:
//! [`Form::Attention`](crate::model::dp::options::Form::Attention).
//!
//! G of a neighbour comes from its distance and its type, then goes through layers of attention. Empty slots, and those of excluded
//! neighbours, have no part in that, but for the weight e^-20 that each has beside the others in the smooth form. The row of an empty
//! slot is not zero where davg is not; it has a G too, which attention leaves alone.

use super::angles::{Matrix, OnTape};
use super::atom::Entry;
use super::tape::{Id, Tape};
use crate::model::dp::{AttentionLayer, AttentionNets, Dp};

/// What weights are shifted by before they are switched off towards the cutoff.
const SHIFT: f64 = 20.0;

/// The neighbours of an atom on the tape.
struct Neighbors {
    /// `[n, 1]` the switch, `[n, 3]` unit vectors.
    switch: Id,
    directions: Id,
    /// Slots in which nobody is seen.
    others: f64,
}

/// D of an atom of type `center`.
pub fn forward(model: &Dp, params: &[f64], center: usize, entries: &[Entry]) -> OnTape {
    let nets = model.attention();
    let mut tape = Tape::default();
    let rows = tape.input(entries.len(), 5, entries.iter().flat_map(|entry| entry.row).collect());
    let given = tape.input(model.n_types(), nets.types.layers[0].n_in, model.type_inputs());
    let types = tape.net(params, given, nets.types);

    let (seen, still): (Vec<usize>, Vec<usize>) =
        (0..entries.len()).partition(|&k| entries[k].pair.is_some());
    let own = tape.gather(rows, seen.clone());
    let vectors = tape.columns(own, 1, 3);
    let neighbors = Neighbors {
        switch: tape.columns(own, 4, 1),
        directions: unit_rows(&mut tape, vectors),
        others: (model.n_sel() - seen.len()) as f64,
    };
    let mut a = Vec::new();
    for (is_seen, chosen) in [(true, &seen), (false, &still)] {
        let own = tape.gather(rows, chosen.clone());
        let neighbor = chosen.iter().map(|&k| entries[k].neighbor).collect();
        let mut g = embedding(&mut tape, params, model, own, (types, center, neighbor));
        for layer in nets.layers() {
            let n = chosen.len();
            let seen = match is_seen {
                true => attend(&mut tape, params, &nets, layer, g, &neighbors),
                false => tape.input(n, nets.options.attn, vec![0.0; n * nets.options.attn]),
            };
            let change = tape.layer(params, seen, layer.outward);
            let sum = tape.add(g, change);
            g = normalized(&mut tape, params, &nets, layer, sum);
        }
        let weights = tape.input(chosen.len(), 1, chosen.iter().map(|&k| entries[k].weight).collect());
        let env = tape.columns(own, 0, 4);
        let weighted = tape.multiply(env, weights);
        let turned = tape.turn(g);
        a.push(tape.product(turned, weighted));
    }
    let sum = tape.add(a[0], a[1]);
    let a = tape.scaled(sum, 1.0 / model.n_sel() as f64);
    let first = tape.gather(a, (0..nets.options.axis_neuron).collect());
    let square = tape.product_turned(a, first);
    let mut d = tape.flatten(square);
    if nets.options.concat_output_tebd {
        let own = tape.gather(types, vec![center]);
        d = tape.concat(&[d, own]);
    }
    let a = Some(Matrix::new(&tape, a));
    OnTape { tape, rows, d, a }
}

/// G of each row before any attention.
fn embedding(
    tape: &mut Tape,
    params: &[f64],
    model: &Dp,
    rows: Id,
    (types, center, neighbor): (Id, usize, Vec<usize>),
) -> Id {
    let nets = model.attention();
    let s = tape.columns(rows, 0, 1);
    let centers = tape.gather(types, vec![center; neighbor.len()]);
    let neighbors = tape.gather(types, neighbor);
    let both = if model.descriptor().type_one_side { vec![neighbors] } else { vec![neighbors, centers] };
    let Some(strip) = nets.strip else {
        let x = tape.concat(&[&[s], &both[..]].concat());
        return tape.net(params, x, nets.filter);
    };
    let g = tape.net(params, s, nets.filter);
    let pair = tape.concat(&both);
    let mut of_types = tape.net(params, pair, strip);
    if nets.options.smooth {
        let switch = tape.columns(rows, 4, 1);
        of_types = tape.multiply(of_types, switch);
    }
    let scaled = tape.multiply(g, of_types);
    tape.add(g, scaled)
}

/// What attention makes of the values of all neighbours, for each of them.
fn attend(
    tape: &mut Tape,
    params: &[f64],
    nets: &AttentionNets,
    layer: AttentionLayer,
    g: Id,
    neighbors: &Neighbors,
) -> Id {
    let (options, width) = (nets.options, nets.options.attn);
    let all = tape.layer(params, g, layer.inward);
    let [query, key, value] = [0, 1, 2].map(|k| {
        let x = tape.columns(all, k * width, width);
        if options.normalize { unit_rows(tape, x) } else { x }
    });
    let query = tape.scaled(query, options.scaling());
    let mut weights = tape.product_turned(query, key);
    let switches = tape.product_turned(neighbors.switch, neighbors.switch);
    if options.smooth {
        let shifted = tape.map(weights, |w| [w + SHIFT, 1.0, 0.0]);
        let switched = tape.multiply(shifted, switches);
        weights = tape.map(switched, |w| [w - SHIFT, 1.0, 0.0]);
    }
    // Any number may be taken off all weights of a row; the largest keeps the exponentials from overflow.
    let node = tape.node(weights);
    let (n, largest) = (
        node.rows,
        node.value.chunks(node.width.max(1)).map(|row| {
            row.iter().fold(if options.smooth { -SHIFT } else { f64::NEG_INFINITY }, |a, &b| a.max(b))
        }),
    );
    let largest: Vec<f64> = largest.collect();
    let others = if options.smooth { neighbors.others } else { 0.0 };
    let rest: Vec<f64> = largest.iter().map(|largest| others * (-SHIFT - largest).exp()).collect();
    let largest = tape.input(n, 1, largest.iter().map(|x| -x).collect());
    let shifted = tape.add(weights, largest);
    let powers = tape.map(shifted, |x| [x.exp(), x.exp(), x.exp()]);
    let sum = tape.sum_columns(powers);
    let rest = tape.input(n, 1, rest);
    let sum = tape.add(sum, rest);
    let inverse = tape.map(sum, |x| [1.0 / x, -1.0 / (x * x), 2.0 / (x * x * x)]);
    let mut weights = tape.multiply(powers, inverse);
    if options.smooth {
        weights = tape.multiply(weights, switches);
    }
    if options.attn_dotr {
        let angles = tape.product_turned(neighbors.directions, neighbors.directions);
        weights = tape.multiply(weights, angles);
    }
    tape.product(weights, value)
}

/// Rows of length 1.
fn unit_rows(tape: &mut Tape, x: Id) -> Id {
    let squares = tape.multiply(x, x);
    let square = tape.sum_columns(squares);
    let inverse = tape.map(square, |x| power(x, -0.5));
    tape.multiply(x, inverse)
}

/// x^p
fn power(x: f64, p: f64) -> [f64; 3] {
    let y = x.powf(p);
    [y, p * y / x, p * (p - 1.0) * y / (x * x)]
}

/// Every row with mean 0 and variance 1, then scaled and shifted.
fn normalized(tape: &mut Tape, params: &[f64], nets: &AttentionNets, layer: AttentionLayer, x: Id) -> Id {
    let (width, eps) = (layer.norm.n_out, nets.options.ln_eps);
    let sum = tape.sum_columns(x);
    let mean = tape.scaled(sum, -1.0 / width as f64);
    let centred = tape.add(x, mean);
    let squares = tape.multiply(centred, centred);
    let sum = tape.sum_columns(squares);
    let inverse = tape.map(sum, move |x| {
        let scale = 1.0 / width as f64;
        let [y, d, dd] = power(scale * x + eps, -0.5);
        [y, scale * d, scale * scale * dd]
    });
    let unit = tape.multiply(centred, inverse);
    let scale = tape.param(params, layer.norm.w, 1, width);
    let scaled = tape.multiply(unit, scale);
    let shift = tape.param(params, layer.norm.b.expect("a normalisation has a shift"), 1, width);
    tape.add(scaled, shift)
}
