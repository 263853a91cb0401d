//! What every potential must obey, checked for every network.

use super::*;
use crate::engine::pinet::activation::jet;
use crate::engine::pinet::reference::tests::{networks, params, structure};

type Structure = (Vec<i32>, Vec<f64>, Option<[f64; 9]>);

fn predict(model: &Arc<PinetModel>, structures: &[Structure]) -> PinetPrediction {
    let frames: Vec<PinetFrame> = structures
        .iter()
        .map(|(elems, coord, cell)| PinetFrame::new(model, elems, coord, *cell).unwrap())
        .collect();
    let mut out = PinetPrediction::default();
    let mut engine = PinetCpu::<f64>::new(model.clone(), 1, true).unwrap();
    engine.evaluate(&mut out, &params(model), &frames.iter().collect::<Vec<_>>());
    out
}

fn close(what: &str, a: &[f64], b: &[f64]) {
    assert_eq!(a.len(), b.len(), "{what}");
    for (k, (a, b)) in a.iter().zip(b).enumerate() {
        assert!((a - b).abs() < 1e-10 * (1.0 + b.abs()), "{what} {k}: {a} {b}");
    }
}

/// Turns every row of three numbers.
fn turn(x: &[f64]) -> Vec<f64> {
    let (c, s) = (0.6, 0.8);
    // About z, then about x.
    x.chunks_exact(3)
        .flat_map(|v| {
            let (a, b) = (c * v[0] - s * v[1], s * v[0] + c * v[1]);
            [a, c * b - s * v[2], s * b + c * v[2]]
        })
        .collect()
}

#[test]
fn a_turned_structure_has_the_same_energy_and_turned_forces() {
    // PiNN sums the squares of five components that are no orthonormal basis: its rank 5 is not invariant, nor is ours.
    let invariant = |model: &PinetModel| model.blocks[0].tensors.iter().all(|t| t.size == 3);
    for (name, model) in networks().into_iter().filter(|(_, model)| invariant(model)) {
        let (elems, coord, cell) = structure(10, 3, true);
        let cell = cell.unwrap();
        let turned_cell = turn(&cell).try_into().unwrap();
        let turned = predict(&model, &[(elems.clone(), turn(&coord), Some(turned_cell))]);
        let out = predict(&model, &[(elems, coord, Some(cell))]);
        close(name, &turned.energy, &out.energy);
        close(name, &turned.force, &turn(&out.force));
    }
}

#[test]
fn a_moved_structure_is_the_same_and_so_are_images_of_atoms() {
    for (name, model) in networks() {
        let (elems, coord, cell) = structure(10, 3, true);
        let v = cell.unwrap();
        let moved = coord.iter().enumerate().map(|(k, x)| {
            // Everything moves, and atom 4 by lattice vectors besides.
            let image = if k / 3 == 4 { 2.0 * v[k % 3] - v[3 + k % 3] } else { 0.0 };
            x + 0.37 * (k % 3) as f64 + image
        });
        let moved = predict(&model, &[(elems.clone(), moved.collect(), cell)]);
        let out = predict(&model, &[(elems, coord, cell)]);
        close(name, &moved.energy, &out.energy);
        close(name, &moved.force, &out.force);
        close(name, moved.stress.as_flattened(), out.stress.as_flattened());
    }
}

#[test]
fn atoms_in_another_order_have_their_own_outputs_and_forces() {
    for (name, model) in networks() {
        let (elems, coord, cell) = structure(10, 3, true);
        let order: Vec<usize> = (0..10).map(|k| (7 * k + 3) % 10).collect();
        let rows = |x: &[f64]| order.iter().flat_map(|&i| x[3 * i..3 * i + 3].to_vec()).collect::<Vec<f64>>();
        let shuffled = (order.iter().map(|&i| elems[i]).collect(), rows(&coord), cell);
        let shuffled = predict(&model, &[shuffled]);
        let out = predict(&model, &[(elems, coord, cell)]);
        close(name, &shuffled.energy, &out.energy);
        close(name, &shuffled.force, &rows(&out.force));
        close(name, &shuffled.atomic, &order.iter().map(|&i| out.atomic[i]).collect::<Vec<f64>>());
    }
}

#[test]
fn a_structure_in_a_batch_is_what_it_is_alone() {
    for (name, model) in networks() {
        let all = [structure(9, 1, true), structure(1, 2, false), structure(12, 3, false)];
        let together = predict(&model, &all);
        let alone: Vec<PinetPrediction> =
            all.iter().map(|s| predict(&model, std::slice::from_ref(s))).collect();
        close(name, &together.energy, &alone.iter().flat_map(|out| out.energy.clone()).collect::<Vec<f64>>());
        close(name, &together.force, &alone.iter().flat_map(|out| out.force.clone()).collect::<Vec<f64>>());
    }
}

#[test]
fn forces_add_up_to_nothing_and_vanish_on_an_atom_alone() {
    for (name, model) in networks() {
        let out = predict(&model, &[structure(10, 3, true)]);
        for k in 0..3 {
            let sum: f64 = out.force.iter().skip(k).step_by(3).sum();
            assert!(sum.abs() < 1e-10, "{name}: {sum}");
        }
        assert_eq!(predict(&model, &[structure(1, 2, false)]).force, [0.0; 3], "{name}");
    }
}

#[test]
fn energy_and_force_are_smooth_where_a_pair_passes_the_cutoff() {
    // An activation that is not zero at zero gives every pair something, however far apart it is.
    let vanishes = |model: &PinetModel| jet(model.options.act, 0.0)[0] == 0.0;
    for (name, model) in networks().into_iter().filter(|(_, model)| vanishes(model)) {
        let at = |r: f64| {
            predict(&model, &[(vec![8, 1, 1], vec![0.0, 0.0, 0.0, 1.1, 0.0, 0.0, r, 0.0, 0.0], None)])
        };
        let rc = model.options.rc;
        // The pair 0-2 passes the cutoff; 1-2 stays within it.
        let (inside, outside) = (at(rc - 1e-6), at(rc + 1e-6));
        assert!((inside.energy[0] - outside.energy[0]).abs() < 1e-4, "{name}: energy");
        for (a, b) in inside.force.iter().zip(&outside.force) {
            assert!((a - b).abs() < 1e-4 * (1.0 + b.abs()), "{name}: force {a} {b}");
        }
    }
}
