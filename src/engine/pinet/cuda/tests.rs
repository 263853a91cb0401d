//! The CUDA engine against the reference; skipped by name where there is no GPU.

use super::*;
use crate::engine::pinet::reference::PinetReference;
use crate::engine::pinet::reference::tests::{deviation, frame, networks, params, seeds};
use crate::gpu::{Cuda, Numbers};

fn device(numbers: Numbers) -> Option<Arc<Device>> {
    let env = |name: &str| std::env::var(name).ok();
    match Cuda::find(&env) {
        Ok(cuda) => Some(program::open(&cuda, 0, numbers, &env).unwrap()),
        Err(e) => {
            crate::skip::skip(e.message());
            None
        }
    }
}

/// Batches of every kind: cells, clusters, one atom, no pairs, many atoms.
fn batches(model: &PinetModel) -> Vec<Vec<PinetFrame>> {
    let far = PinetFrame::new(model, &[1, 8], &[0.0, 0.0, 0.0, 50.0, 0.0, 0.0], None).unwrap();
    vec![
        vec![frame(model, 9, 1, true)],
        vec![frame(model, 7, 2, false), frame(model, 1, 3, false), frame(model, 8, 4, true)],
        vec![frame(model, 1, 5, false), far],
        vec![frame(model, 1, 6, true)],
        vec![frame(model, 40, 7, true), frame(model, 6, 8, false)],
        (0..30).map(|k| frame(model, 20 + k % 3, 10 + k as u64, true)).collect(),
    ]
}

fn results(
    engine: &mut dyn PinetEngine,
    params: &[f64],
    batch: &[&PinetFrame],
) -> (PinetPrediction, Vec<f64>) {
    let mut out = PinetPrediction::default();
    engine.evaluate(&mut out, params, batch);
    let mut grad = vec![1.0; params.len()];
    engine.backward(&mut grad, params, batch, &seeds(&out));
    (out, grad)
}

fn compare(numbers: Numbers, tolerance: f64) {
    let Some(device) = device(numbers) else { return };
    let mut failures = Vec::new();
    for (name, model) in networks() {
        let params = params(&model);
        for forces in [true, false] {
            // One engine for all batches: what one leaves behind must not show in the next.
            let mut engine = PinetCuda::new(&device, &model, forces).unwrap();
            let mut reference = PinetReference::new(model.clone(), forces);
            for (k, frames) in batches(&model).iter().enumerate() {
                let batch: Vec<&PinetFrame> = frames.iter().collect();
                let (want, want_grad) = results(&mut reference, &params, &batch);
                let (got, grad) = results(&mut engine, &params, &batch);
                let all = [
                    ("energy", deviation(&got.energy, &want.energy)),
                    ("outputs", deviation(&got.atomic, &want.atomic)),
                    ("force", deviation(&got.force, &want.force)),
                    ("stress", deviation(got.stress.as_flattened(), want.stress.as_flattened())),
                    ("gradient", deviation(&grad, &want_grad)),
                ];
                for (what, deviation) in all {
                    if deviation.is_nan() || deviation > tolerance {
                        failures
                            .push(format!("{name}, batch {k}, forces {forces}: {what} off by {deviation:e}"));
                    }
                }
                assert_eq!(results(&mut engine, &params, &batch), (got, grad), "two runs, the same bits");
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn float64_agrees_with_the_reference() {
    compare(Numbers::F64, 1e-11);
}

#[test]
fn float32_agrees_with_the_reference_to_its_own_precision() {
    compare(Numbers::F32, 2e-4);
}

#[test]
fn structures_lie_on_the_device_as_kernels_read_them() {
    for (name, model) in networks() {
        let sizes: Vec<usize> = model.blocks[0].tensors.iter().map(|t| t.size).collect();
        let frame = frame(&model, 7, 1, true);
        let (n, p, b) = (7, frame.n_pairs(), model.n_basis());
        for (numbers, real) in [(Numbers::F64, 8), (Numbers::F32, 4)] {
            let blob = layout::blob(&frame, &Elements::none(), numbers, &sizes);
            let reals = 2 * b * p + sizes.iter().sum::<usize>() * p;
            assert_eq!(
                blob.len(),
                8 * (16 + 9 * n + 3 * p) + real * reals + 4 * (n + 2 * (n + 1) + 3 * p),
                "{name}"
            );
        }
    }
}
