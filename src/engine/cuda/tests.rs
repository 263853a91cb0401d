//! The CUDA engine against the reference; skipped by name where there is no GPU.

use super::*;
use crate::engine::reference::ReferenceEngine;
use crate::engine::reference::tests::{deviation, frame, model, model_with, options, run};
use crate::model::activation::Activation;
use crate::model::dp::options::SeE2AOptions;

fn device(numbers: Numbers) -> Option<Arc<Device>> {
    let env = |name: &str| std::env::var(name).ok();
    match Cuda::find(&env) {
        Ok(cuda) => Some(Device::open(&cuda, 0, numbers, &env).unwrap()),
        Err(e) => {
            println!("{}: skipped, {}", std::thread::current().name().unwrap_or("a test"), e.message());
            None
        }
    }
}

fn compare(numbers: Numbers, model: Arc<Dp>, tolerance: f64) {
    let Some(device) = device(numbers) else { return };
    let params = model.random_params(9);
    let frames = [frame(23, 1), frame(9, 4), frame(17, 8)];
    let want = run(&mut ReferenceEngine::new(model.clone()), &params, &frames);
    let mut engine = CudaEngine::new(&device, &model, 0.3).unwrap();
    // Another batch first: what it leaves behind must not matter.
    run(&mut engine, &params, &frames[..1]);
    let got = run(&mut engine, &params, &frames);
    let again = run(&mut engine, &params, &frames);
    assert_eq!(got, again, "two runs give the same bits");
    let pairs = [
        ("energy", &got.0.energy, &want.0.energy),
        ("atom energy", &got.0.atom_energy, &want.0.atom_energy),
        ("force", &got.0.force, &want.0.force),
        ("virial", &got.0.virial.as_flattened().to_vec(), &want.0.virial.as_flattened().to_vec()),
        ("gradient", &got.1, &want.1),
    ];
    for (name, got, want) in pairs {
        let worst = deviation(got, want);
        println!("{numbers:?} {name}: {worst:.1e}");
        assert!(worst < tolerance, "{name}: worst relative deviation {worst:e}");
    }
}

#[test]
fn float64_agrees_with_the_reference() {
    compare(Numbers::F64, model(options()), 1e-9);
}

#[test]
fn float32_agrees_with_the_reference_to_its_precision() {
    compare(Numbers::F32, model(options()), 3e-4);
}

#[test]
fn products_in_tf32_agree_with_the_reference_to_their_precision() {
    compare(Numbers::Tf32, model(options()), 3e-2);
}

#[test]
fn products_in_bf16_agree_with_the_reference_to_their_precision() {
    compare(Numbers::Bf16, model(options()), 5e-2);
}

#[test]
fn one_sided_nets_and_excluded_pairs_agree_with_the_reference() {
    let descriptor = SeE2AOptions { type_one_side: true, exclude_types: vec![(0, 1)], ..options() };
    compare(Numbers::F64, model(descriptor), 1e-9);
}

#[test]
fn other_activations_agree_with_the_reference() {
    for activation in [Activation::Gelu, Activation::Softplus, Activation::Silu] {
        compare(Numbers::F64, model(SeE2AOptions { activation, ..options() }), 1e-9);
    }
}

#[test]
fn energies_of_isolated_atoms_are_taken_off_as_the_reference_does() {
    let with_inputs = model_with(options(), |fitting| fitting.atom_ener = vec![None, Some(-3.0)]);
    compare(Numbers::F64, with_inputs, 1e-9);
}

/// Run alone, by name: afterwards no other test of the process can use the GPU.
#[test]
#[ignore = "takes the GPU away from its process"]
fn a_gpu_that_is_lost_says_so_in_every_call_and_how_to_go_on() {
    let env = |name: &str| std::env::var(name).ok();
    let Some(whole) = device(Numbers::F64) else { return };
    let source = "extern \"C\" __global__ void fall() { __trap(); }";
    let flags = |(major, minor): (i32, i32)| vec![format!("--gpu-architecture=sm_{major}{minor}")];
    let trap = Device::open_with(&Cuda::find(&env).unwrap(), 0, Numbers::F64, |capability| {
        compile::program(source, &flags(capability), &env)
    })
    .unwrap();
    let held = device::Buffer::of(&whole, &[1.0f64; 8], "a test").unwrap();
    whole.synchronize().unwrap();
    trap.launch("fall", 1, 1, 0, device::arguments![]).unwrap();
    let said = [
        trap.synchronize(),
        whole.synchronize(),
        held.read(0, &mut [0.0f64; 8]),
        device::Buffer::zeroed(&whole, 64, "a test").map(|_| ()),
        CudaEngine::new(&whole, &model(options()), 0.3).map(|_| ()),
    ];
    for (k, outcome) in said.into_iter().enumerate() {
        let error = outcome.expect_err("the context is gone");
        println!("{error}");
        assert!(
            error.advice().is_some_and(|a| a.contains("restart from the last checkpoint")),
            "{k}: {error}"
        );
    }
}
