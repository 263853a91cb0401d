//! The operations on a GPU against the reference; skipped by name where there is no GPU.

use super::*;
use crate::data::Frame;
use crate::engine::reference::ReferenceEngine;
use crate::engine::reference::tests::{
    angles, attention, compare_results, distances, frame, hybrid, model, model_with, options, run,
};
use crate::gpu::{Cuda, Numbers};
use crate::model::activation::Activation;
use crate::model::dp::options::{DescriptorOptions, Descriptors};

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

/// Compares a model on some frames; `chunk`: bytes that the matrices of a chunk may take.
fn compare_cut(numbers: Numbers, model: &Arc<Dp>, frames: &[Frame], tolerance: f64, chunk: Option<usize>) {
    let Some(device) = device(numbers) else { return };
    let mut engine = PlanEngine::new(&device, model).unwrap();
    if let Some(bytes) = chunk {
        engine.core.chunk_bytes = bytes;
    }
    let params = model.random_params(9);
    // Another batch first: what it leaves behind must not matter.
    run(&mut engine, &params, &frames[..1]);
    let want = run(&mut ReferenceEngine::new(model.clone()), &params, frames);
    let got = run(&mut engine, &params, frames);
    let again = run(&mut engine, &params, frames);
    assert_eq!(got, again, "two runs give the same bits");
    compare_results(&got, &want, tolerance, |name, worst| println!("{numbers:?} {name}: {worst:.1e}"));
}

fn frames() -> [Frame; 2] {
    [frame(11, 1), frame(7, 4)]
}

fn compare(model: &Arc<Dp>) {
    compare_cut(Numbers::F64, model, &frames(), 1e-10, None);
}

#[test]
fn attention_in_every_form_agrees_with_the_reference() {
    attention().into_iter().for_each(|descriptor| compare(&model(descriptor)));
}

#[test]
fn attention_with_arguments_that_are_shifted_agrees_with_the_reference() {
    for mut descriptor in attention() {
        descriptor.activation = Activation::Gelu;
        compare(&model_with(descriptor, |fitting| fitting.atom_ener = vec![None, Some(-3.0)]));
    }
}

#[test]
fn neighbours_two_by_two_agree_with_the_reference() {
    compare(&model(angles()));
}

#[test]
fn descriptors_one_by_one_agree_with_the_reference() {
    let one_sided = DescriptorOptions { type_one_side: true, exclude_types: vec![(0, 1)], ..options() };
    for descriptor in [options(), one_sided, distances()] {
        compare(&model(descriptor));
    }
}

#[test]
fn a_hybrid_of_anything_agrees_with_the_reference() {
    compare(&model(hybrid()));
    let list = vec![options(), attention().remove(0), angles(), distances()];
    compare(&model(Descriptors { list, is_hybrid: true }));
}

#[test]
fn atoms_without_an_energy_of_their_own_agree_with_the_reference() {
    for descriptor in [attention().remove(0), angles(), options()] {
        let whole = model(descriptor);
        let mut options = whole.options.clone();
        options.atom_exclude_types = vec![1];
        compare(&Arc::new(Dp::new(options, whole.stats.clone())));
    }
}

#[test]
fn energies_of_isolated_atoms_are_taken_off_as_the_reference_does() {
    compare(&model_with(options(), |fitting| fitting.atom_ener = vec![None, Some(-3.0)]));
}

#[test]
fn a_batch_in_chunks_agrees_with_the_reference() {
    for descriptor in [attention().remove(0), angles()] {
        compare_cut(Numbers::F64, &model(descriptor), &frames(), 1e-10, Some(1));
    }
}

#[test]
fn float32_agrees_with_the_reference_to_its_precision() {
    for descriptor in [attention().remove(0), angles()] {
        compare_cut(Numbers::F32, &model(descriptor), &frames(), 1e-3, None);
    }
}
