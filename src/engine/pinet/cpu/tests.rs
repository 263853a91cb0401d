//! The CPU engine against the reference.

use super::*;
use crate::engine::pinet::reference::tests::{Results, compare_all, frame, networks, params, results, seeds};

fn compare<T: Real>(tolerance: f64) {
    let make = |model: &Arc<PinetModel>, forces| PinetCpu::<T>::new(model.clone(), 2, forces).unwrap();
    compare_all(tolerance, make, |_, _, _, _| {});
}

#[test]
fn float64_agrees_with_the_reference() {
    compare::<f64>(1e-11);
}

#[test]
fn float32_agrees_with_the_reference_to_its_own_precision() {
    compare::<f32>(2e-4);
}

#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    for (name, model) in networks() {
        let params = params(&model);
        // Few structures, whose groups wait for each other, and many, whose groups do not.
        for n in [3, 11] {
            let frames: Vec<PinetFrame> = (0..n).map(|k| frame(&model, 20 + k as usize, k, true)).collect();
            let batch: Vec<&PinetFrame> = frames.iter().collect();
            let of = |threads| {
                results(&mut PinetCpu::<f32>::new(model.clone(), threads, true).unwrap(), &params, &batch)
            };
            let (one, three) = (of(1), of(3));
            assert_eq!(one.out, three.out, "{name}");
            assert_eq!(one.grad, three.grad, "{name}");
        }
    }
}

/// Threads that shared memory by mistake would show here: more of them than cores, many short steps, batches that
/// change from step to step.
#[test]
fn many_threads_give_the_same_bits_step_after_step() {
    for (name, model) in networks() {
        let params = params(&model);
        let batches: Vec<Vec<PinetFrame>> = [2, 9, 1, 17]
            .iter()
            .map(|&n| (0..n).map(|k| frame(&model, 6 + k as usize % 9, k, k % 2 > 0)).collect())
            .collect();
        let batches: Vec<Vec<&PinetFrame>> = batches.iter().map(|b| b.iter().collect()).collect();
        let mut alone = PinetCpu::<f32>::new(model.clone(), 1, true).unwrap();
        let want: Vec<Results> = batches.iter().map(|b| results(&mut alone, &params, b)).collect();
        for threads in [1, 2, 5, 8] {
            let mut engine = PinetCpu::<f32>::new(model.clone(), threads, true).unwrap();
            for turn in 0..24 {
                let k = turn % batches.len();
                let got = results(&mut engine, &params, &batches[k]);
                assert!(got.out == want[k].out, "{name}, {threads} threads, turn {turn}: predictions");
                assert!(got.grad == want[k].grad, "{name}, {threads} threads, turn {turn}: gradient");
            }
        }
    }
}

#[test]
fn a_second_backward_gives_the_same_gradient() {
    for (name, model) in networks() {
        let params = params(&model);
        let frames = [frame(&model, 12, 1, true), frame(&model, 9, 2, false)];
        let batch: Vec<&PinetFrame> = frames.iter().collect();
        let mut engine = PinetCpu::<f64>::new(model.clone(), 2, true).unwrap();
        let first = results(&mut engine, &params, &batch);
        let mut grad = vec![0.0; params.len()];
        engine.backward(&mut grad, &params, &batch, &seeds(&first.out));
        assert_eq!(grad, first.grad, "{name}");
    }
}

#[test]
fn the_short_tanh_of_float32_is_right_to_the_last_bits() {
    for k in -4000..4000 {
        let x = (k as f64 * 0.0061 + 1e-4) as f32;
        let (got, want) = (f64::from(kernels::tanh(x)), f64::from(x).tanh());
        assert!(
            (got - want).abs() <= 4.0 * f64::from(f32::EPSILON) * want.abs(),
            "tanh({x}) = {got}, not {want}"
        );
    }
    assert_eq!(
        [kernels::tanh(0f32), kernels::tanh(f32::INFINITY), kernels::tanh(-1e30f32)],
        [0.0, 1.0, -1.0]
    );
    assert!(kernels::tanh(f32::NAN).is_nan());
}
