//! The CPU engine against the reference.

use super::*;
use crate::engine::reference::ReferenceEngine;
use crate::engine::reference::tests::{deviation, frame, model, model_with, options, run, seeds};
use crate::model::activation::Activation;
use crate::model::dp::options::SeE2AOptions;

fn compare<T: Real>(descriptor: SeE2AOptions, mode: EmbeddingMode, threads: usize, tolerance: f64) {
    compare_models::<T>(model(descriptor), mode, threads, tolerance);
}

fn compare_models<T: Real>(model: Arc<Dp>, mode: EmbeddingMode, threads: usize, tolerance: f64) {
    let params = model.random_params(9);
    let frames = [frame(23, 1), frame(9, 4), frame(17, 8)];
    let want = run(&mut ReferenceEngine::new(model.clone()), &params, &frames);
    let got = run(&mut CpuEngine::<T>::new(model, threads, mode, None).unwrap(), &params, &frames);
    let pairs = [
        ("energy", &got.0.energy, &want.0.energy),
        ("atom energy", &got.0.atom_energy, &want.0.atom_energy),
        ("force", &got.0.force, &want.0.force),
        ("virial", &got.0.virial.as_flattened().to_vec(), &want.0.virial.as_flattened().to_vec()),
        ("gradient", &got.1, &want.1),
    ];
    for (name, got, want) in pairs {
        let worst = deviation(got, want);
        assert!(worst < tolerance, "{name}: worst relative deviation {worst:e}");
    }
}

const SERIES: EmbeddingMode = EmbeddingMode::Chebyshev { min_distance: 0.3 };

#[test]
fn the_series_in_float64_agrees_with_the_reference() {
    compare::<f64>(options(), SERIES, 2, 1e-9);
}

#[test]
fn the_net_itself_in_float64_agrees_with_the_reference() {
    compare::<f64>(options(), EmbeddingMode::Direct, 2, 1e-12);
}

#[test]
fn frames_below_the_shortest_distance_take_the_direct_path() {
    compare::<f64>(options(), EmbeddingMode::Chebyshev { min_distance: 2.5 }, 1, 1e-11);
}

#[test]
fn float32_agrees_with_the_reference_to_its_precision() {
    compare::<f32>(options(), SERIES, 2, 3e-4);
}

#[test]
fn one_sided_nets_and_excluded_pairs_agree_with_the_reference() {
    let descriptor = SeE2AOptions { type_one_side: true, exclude_types: vec![(0, 1)], ..options() };
    compare::<f64>(descriptor.clone(), SERIES, 2, 1e-9);
    compare::<f64>(descriptor, EmbeddingMode::Direct, 2, 1e-12);
}

#[test]
fn other_activations_agree_with_the_reference() {
    for activation in [Activation::Gelu, Activation::Relu, Activation::Softplus] {
        compare::<f64>(SeE2AOptions { activation, ..options() }, SERIES, 2, 1e-9);
    }
}

#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    let model = model(options());
    let params = model.random_params(9);
    let frames = [frame(23, 1), frame(17, 8)];
    let one = run(&mut CpuEngine::<f64>::new(model.clone(), 1, SERIES, None).unwrap(), &params, &frames);
    let three = run(&mut CpuEngine::<f64>::new(model, 3, SERIES, None).unwrap(), &params, &frames);
    assert_eq!(one, three);
}

#[test]
fn energies_of_isolated_atoms_are_taken_off_as_the_reference_does() {
    let with_inputs = model_with(options(), |fitting| fitting.atom_ener = vec![None, Some(-3.0)]);
    compare_models::<f64>(with_inputs, SERIES, 2, 1e-9);
}

/// The gradient by [`Engine::backward`], and by pieces.
fn gradients_both_ways<T: Real>(model: &Arc<Dp>, threads: usize) -> (Vec<f64>, Vec<f64>) {
    let params = model.random_params(9);
    let frames = [frame(23, 1), frame(17, 8)];
    let mut engine = CpuEngine::<T>::new(model.clone(), threads, SERIES, None).unwrap();
    let whole = run(&mut engine, &params, &frames).1;
    let prepare = engine.preparer();
    let prepared: Vec<_> = frames.iter().map(|f| prepare(f).unwrap()).collect();
    let batch: Vec<_> = prepared.iter().collect();
    let mut out = Prediction::default();
    engine.evaluate(&mut out, &params, &batch);
    let seeds = seeds(&out);
    let mut grad = vec![f64::NAN; params.len()];
    let ready = engine.backward_but_pieces(&mut grad, &params, &batch, &seeds).expect("it has pieces");
    grad[ready.end..].fill(f64::NAN);
    let pieces = pool::Parts::new(&mut grad);
    // SAFETY: pieces are disjoint, which the test would show.
    engine.hand_out(&|first, piece| unsafe { pieces.part(first, piece.len()) }.copy_from_slice(piece));
    (whole, grad)
}

#[test]
fn pieces_of_a_gradient_are_the_gradient_to_the_bit() {
    for threads in [1, 3] {
        let (whole, pieces) = gradients_both_ways::<f64>(&model(options()), threads);
        assert_eq!(whole, pieces);
        let (whole, pieces) = gradients_both_ways::<f32>(&model(options()), threads);
        assert_eq!(whole, pieces);
    }
}

/// Threads that shared memory by mistake would show here: more of them than cores, many short steps, batches that
/// change from step to step.
#[test]
fn many_threads_give_the_same_bits_step_after_step() {
    let model = model(options());
    let params = model.random_params(9);
    let batches = [vec![frame(23, 1)], vec![frame(9, 4), frame(17, 8), frame(12, 2)], vec![frame(5, 3)]];
    for mode in [SERIES, EmbeddingMode::Direct] {
        let mut alone = CpuEngine::<f64>::new(model.clone(), 1, mode, None).unwrap();
        let want: Vec<_> = batches.iter().map(|frames| run(&mut alone, &params, frames)).collect();
        for threads in [1, 2, 5, 8] {
            let mut engine = CpuEngine::<f64>::new(model.clone(), threads, mode, None).unwrap();
            for turn in 0..30 {
                let k = turn % batches.len();
                assert!(run(&mut engine, &params, &batches[k]) == want[k], "{threads} threads, turn {turn}");
            }
        }
    }
}
