//! The CUDA engine against the reference; skipped by name where there is no GPU.

use super::*;
use crate::engine::pinet::reference::tests::{compare_all, frame, networks, results};
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

fn compare(numbers: Numbers, tolerance: f64) {
    let Some(device) = device(numbers) else { return };
    let make = |model: &Arc<PinetModel>, forces| PinetCuda::new(&device, model, forces).unwrap();
    compare_all(tolerance, make, |engine, params, batch, got| {
        assert_eq!(results(engine, params, batch), got, "two runs, the same bits");
    });
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
