//! The operations on a GPU against the reference; skipped by name where there is no GPU.

use super::evaluate::PlanEvaluator;
use super::*;
use crate::data::Frame;
use crate::engine::Evaluation;
use crate::engine::cpu::frame::CpuFrames;
use crate::engine::cpu::{CpuEngine, EmbeddingMode};
use crate::engine::reference::ReferenceEngine;
use crate::engine::reference::tests::{
    angles, attention, compare_results, deviation, distances, frame, hybrid, model, model_with, options, run,
};
use crate::gpu::{Cuda, Numbers};
use crate::model::activation::Activation;
use crate::model::dp::geometry::{Geometry, list_of};
use crate::model::dp::options::{DescriptorOptions, Descriptors};
use crate::neighbor::Images;

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

/// What the CPU engine says of a configuration.
fn on_cpu(model: &Arc<Dp>, params: &[f64], geometries: &[Geometry]) -> Evaluation {
    let mut engine = CpuEngine::<f64>::new(model.clone(), 1, EmbeddingMode::Direct).unwrap();
    let (models, n) = (engine.models().clone(), geometries[0].n_atoms());
    let prepared = CpuFrames::of_centers(&models, geometries, 0..n).unwrap();
    let mut found = Prediction::default();
    engine.evaluate(&mut found, params, &[&prepared]);
    let mut atom_virial = vec![0.0; 9 * n];
    engine.atom_virial_add(&mut atom_virial, &prepared);
    let (energy, virial) = (found.energy[0], found.virial[0]);
    Evaluation { energy, virial, atom_energy: found.atom_energy, force: found.force, atom_virial }
}

/// Compares single configurations: a frame with its own list, and as a domain with ghosts; `centers` at a time.
fn compare_single(numbers: Numbers, model: &Arc<Dp>, centers: usize, tolerance: f64) {
    let Some(device) = device(numbers) else { return };
    let (params, parts) = (model.random_params(9), model.parts());
    let mut evaluator = PlanEvaluator::new(&device, model, &params).unwrap().with_centers(centers);
    for frame in [frame(23, 1), frame(9, 4)] {
        let list = list_of(model, &frame).unwrap();
        let own = |part: &Arc<Dp>| {
            let mut geometry = Geometry::default();
            geometry.fill_from(part, &frame, &list).unwrap();
            geometry
        };
        let images = Images::new(&frame, model.listed.rcut + 0.7, model.n_types()).unwrap();
        let lists = images.lists();
        let domain = images.domain(&lists);
        let listed =
            |part: &Arc<Dp>| Geometry::of_domain(part, &domain, &frame.fparam, &frame.aparam).unwrap();
        let own: Vec<Geometry> = parts.iter().map(own).collect();
        let listed: Vec<Geometry> = parts.iter().map(listed).collect();
        for geometries in [&own, &listed] {
            let want = on_cpu(model, &params, geometries);
            let got = evaluator.evaluate(geometries, true).unwrap();
            for (name, got, want) in [
                ("energy", &[got.energy][..], &[want.energy][..]),
                ("atom energy", &got.atom_energy, &want.atom_energy),
                ("force", &got.force, &want.force),
                ("virial", &got.virial, &want.virial),
                ("atom virial", &got.atom_virial, &want.atom_virial),
            ] {
                assert_eq!(got.len(), want.len(), "{name}");
                let worst = deviation(got, want);
                assert!(worst < tolerance, "{name}: worst relative deviation {worst:e}");
            }
            for run in 0..2 {
                assert_eq!(evaluator.evaluate(geometries, true).unwrap(), got, "run {run} has the same bits");
            }
            let fewer = evaluator.evaluate(geometries, false).unwrap();
            assert_eq!(fewer, Evaluation { atom_virial: vec![], ..got }, "without virials of atoms");
        }
    }
}

#[test]
fn single_configurations_agree_with_the_cpu_in_one_piece_and_in_several() {
    let mut models: Vec<_> = attention().into_iter().map(model).collect();
    models.extend([model(angles()), model(hybrid()), model(options())]);
    for model in models {
        compare_single(Numbers::F64, &model, 2048, 1e-12);
        compare_single(Numbers::F64, &model, 5, 1e-12);
    }
    compare_single(Numbers::F32, &model(attention().remove(0)), 2048, 3e-4);
}

#[test]
fn single_configurations_with_atoms_and_pairs_that_are_left_out_agree_with_the_cpu() {
    for descriptor in [attention().remove(0), angles(), distances()] {
        let whole = model_with(descriptor, |fitting| fitting.atom_ener = vec![None, Some(-3.0)]);
        let mut options = whole.options.clone();
        options.atom_exclude_types = vec![1];
        options.pair_exclude_types = vec![(0, 1)];
        compare_single(Numbers::F64, &Arc::new(Dp::new(options, whole.stats.clone())), 7, 1e-12);
    }
}

#[test]
fn what_has_no_centres_has_no_energy() {
    let Some(device) = device(Numbers::F64) else { return };
    let model = model(angles());
    let mut evaluator = PlanEvaluator::new(&device, &model, &model.random_params(9)).unwrap();
    let virtual_atoms = Frame { types: vec![-1; 11].into(), ..frame(11, 1) };
    let geometry = Geometry::new(&model, &virtual_atoms).unwrap();
    assert_eq!(evaluator.evaluate(&[geometry], true).unwrap(), Evaluation::zeros(11, true));
}
