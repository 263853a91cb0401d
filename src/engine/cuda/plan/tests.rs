//! The operations on a GPU against the reference; skipped by name where there is no GPU.

use super::evaluate::PlanEvaluator;
use super::*;
use crate::config::check::check;
use crate::config::{Section, registry};
use crate::data::{Frame, Labels};
use crate::engine::Evaluation;
use crate::engine::cpu::frame::CpuFrames;
use crate::engine::cpu::{CpuEngine, EmbeddingMode};
use crate::engine::reference::ReferenceEngine;
use crate::engine::reference::tests::{
    angles, attention, blended, compare_results, deviation, distances, frame, hybrid, model, model_with,
    options, other_outputs, run, turned_outputs,
};
use crate::gpu::{Cuda, Numbers};
use crate::loss::{LOSS, LOSSES, LossChoice, OutputLoss};
use crate::model::activation::Activation;
use crate::model::dp::geometry::{Geometry, list_of};
use crate::model::dp::options::{DescriptorOptions, Descriptors, FittingKind};
use crate::neighbor::Images;
use serde_json::{Value, json};

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
fn a_table_of_pair_energies_agrees_with_the_reference() {
    for model in blended() {
        compare(&model);
        compare(&without_type(&model));
        compare_cut(Numbers::F64, &model, &frames(), 1e-10, Some(1));
        compare_cut(Numbers::F32, &model, &frames(), 1e-3, None);
    }
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

/// A model with a descriptor of each form for each of these fitting nets.
fn with_fitting(descriptors: &[Descriptors], kinds: &[FittingKind]) -> Vec<Arc<Dp>> {
    let of = |kind: &FittingKind| {
        let with =
            |descriptor: &Descriptors| model_with(descriptor.clone(), |fitting| fitting.kind = kind.clone());
        descriptors.iter().map(with).collect::<Vec<_>>()
    };
    kinds.iter().flat_map(of).collect()
}

/// The same without atoms of a type.
fn without_type(model: &Dp) -> Arc<Dp> {
    let mut options = model.options.clone();
    options.atom_exclude_types = vec![1];
    Arc::new(Dp::new(options, model.stats.clone()))
}

#[test]
fn outputs_that_are_no_energies_agree_with_the_reference() {
    let three = Descriptors { list: vec![options(), attention().remove(0), angles()], is_hybrid: true };
    let all: Vec<Descriptors> = [options(), distances(), angles(), attention().remove(1)]
        .into_iter()
        .map(Descriptors::from)
        .chain([hybrid(), three])
        .collect();
    with_fitting(&all, &other_outputs()).iter().for_each(compare);
    // More numbers than a warp has lanes.
    let wide = [FittingKind::Dos(crate::model::dp::fitting::Dos { numb_dos: 37 })];
    compare(&without_type(&with_fitting(&all[..1], &wide)[0]));
}

#[test]
fn outputs_that_turn_with_the_atoms_agree_with_the_reference() {
    let all: Vec<Descriptors> = [options(), attention().remove(0), attention().remove(1)]
        .into_iter()
        .map(Descriptors::from)
        .collect();
    let models = with_fitting(&all, &turned_outputs());
    models.iter().for_each(compare);
    models.iter().step_by(3).for_each(|model| compare(&without_type(model)));
}

#[test]
fn outputs_in_chunks_and_in_float32_agree_with_the_reference() {
    let all = [attention().remove(0).into()];
    for kinds in [other_outputs(), turned_outputs()] {
        for model in with_fitting(&all, &kinds) {
            compare_cut(Numbers::F64, &model, &frames(), 1e-10, Some(1));
            compare_cut(Numbers::F32, &model, &frames(), 1e-3, None);
        }
    }
}

fn numbers(n: usize, salt: f64) -> Vec<f64> {
    (0..n).map(|k| ((k as f64 + 1.0) * salt).sin() * 2.0).collect()
}

fn loss_of(section: &Value) -> LossChoice {
    let checked = check(&LOSS, section, "test").unwrap().value;
    registry::resolve(LOSSES, &Section::root(&checked)).unwrap()
}

/// A loss of a batch on the device, what is shown of it, and its gradient, against `src/loss` and the reference.
fn compare_loss(section: &Value, model: &Arc<Dp>, is_missing: bool) {
    let Some(device) = device(Numbers::F64) else { return };
    let (choice, width) = (loss_of(section), model.output.width);
    let terms = choice.on_device(model).unwrap();
    let mut frames = frames();
    for (k, frame) in frames.iter_mut().enumerate() {
        let label = |n: usize, salt: f64| Some(numbers(n * width, salt + k as f64));
        let (output, atom_output) = (label(1, 0.7), label(frame.n_atoms(), 1.7));
        frame.labels = Labels { output, atom_output, ..Labels::default() };
    }
    if is_missing {
        frames[1].labels.atom_output = None;
    }
    let (params, ratio) = (model.random_params(9), 0.3);

    let mut reference = ReferenceEngine::new(model.clone());
    let prepared: Vec<_> = frames.iter().map(|frame| reference.preparer()(frame).unwrap()).collect();
    let batch: Vec<_> = prepared.iter().collect();
    let (mut out, mut seeds) = (Prediction::default(), Seeds::default());
    reference.evaluate(&mut out, &params, &batch);
    let list: Vec<&Frame> = frames.iter().collect();
    let want = choice.build(1.0, model).differentiate(&mut seeds, &out, &list, ratio);
    let mut want_grad = vec![0.0; params.len()];
    reference.backward(&mut want_grad, &params, &batch, &seeds);

    let mut core = PlanCore::new(&device, model, Terms { loss: None, virial: false }).unwrap();
    core.common.outputs.as_mut().unwrap().use_loss(&device, &terms.loss.for_kernels()).unwrap();
    core.set_params(&params).unwrap();
    let (parts, lists) = (&core.common.parts, &core.common.graph.lists);
    let prepare = |frame: &Frame| PlanFrame::new(parts, lists, frame, Numbers::F64).unwrap();
    let prepared: Vec<PlanFrame> = frames.iter().map(prepare).collect();
    let batch: Vec<Resident> = prepared.iter().map(|frame| core.bring(frame).unwrap().unwrap()).collect();
    let arranged = core.arrange(&batch);
    let shape = core.shape(&arranged.class).unwrap();
    let mut turn = Turn { count: 1.0, ..Turn::default() };
    if let OutputLoss::Squares(used) = &terms.loss {
        let there = |k: usize| used[k].is_some() && !(is_missing && k < 2);
        turn.terms = (0..4).filter(|&k| there(k)).map(|k| 1 << k).sum();
        turn.weight = std::array::from_fn(|k| used.get(k).and_then(|p| *p).map_or(0.0, |p| p.at(ratio)));
    }
    let mut bytes = Vec::new();
    core.numbers(&mut bytes, &turn, &batch, &arranged);
    core.set_turn(&bytes).unwrap();
    // SAFETY: the shape is of the class of these frames.
    unsafe {
        core.first_pass(&shape).unwrap();
        core.second_pass(&shape).unwrap();
    }
    let (mut values, mut grad) = ([0.0; 16], vec![0.0; params.len()]);
    core.values.read(0, &mut values).unwrap();
    core.learned.grad.read(0, &mut grad).unwrap();
    let near =
        |got: f64, want: f64| (got - want).abs() <= 1e-10 * want.abs() || got.is_nan() && want.is_nan();
    assert!(near(values[0], want.loss), "{section}: {} {}", values[0], want.loss);
    assert_eq!(terms.shown.len(), want.terms.len(), "{section}");
    for (&(name, k), want) in terms.shown.iter().zip(&want.terms) {
        assert_eq!(name, want.name, "{section}");
        assert!(near(values[1 + k], want.value), "{section}: {name} {} {}", values[1 + k], want.value);
    }
    let worst = deviation(&grad, &want_grad);
    assert!(worst < 1e-10, "{section}: gradient {worst:e}");
}

#[test]
fn losses_of_densities_of_states_are_those_of_the_host() {
    let section = |pref: [f64; 4]| {
        let mut section = json!({"type": "dos"});
        for (key, pref) in ["ados", "acdf", "dos", "cdf"].iter().zip(pref) {
            (section[format!("start_pref_{key}")], section[format!("limit_pref_{key}")]) =
                (json!(pref), json!(0.5 * pref));
        }
        section
    };
    for numb_dos in [5, 37] {
        let kind = FittingKind::Dos(crate::model::dp::fitting::Dos { numb_dos });
        let model = model_with(options(), |fitting| fitting.kind = kind);
        for pref in [[1.0, 0.0, 0.0, 0.0], [0.0, 0.7, 0.0, 0.0], [0.0, 0.0, 1.1, 0.3], [1.0, 0.2, 0.3, 0.4]] {
            compare_loss(&section(pref), &model, false);
        }
        compare_loss(&section([1.0, 0.2, 0.3, 0.4]), &model, true);
        compare_loss(&section([1.0, 0.2, 0.3, 0.4]), &without_type(&model), false);
    }
}

#[test]
fn losses_of_tensors_are_those_of_the_host() {
    for kind in turned_outputs() {
        let model = model_with(options(), |fitting| fitting.kind = kind);
        for (pref, pref_atomic) in [(0.7, 0.0), (0.0, 2.0), (0.3, 0.4)] {
            let section = json!({"type": "tensor", "pref": pref, "pref_atomic": pref_atomic});
            compare_loss(&section, &model, false);
        }
    }
}

#[test]
fn losses_of_properties_are_those_of_the_host() {
    for kind in other_outputs().into_iter().skip(1) {
        let model = model_with(options(), |fitting| fitting.kind = kind);
        for function in ["smooth_mae", "mae", "mse", "rmse", "mape"] {
            let metric = json!(["mape", "mae", "rmse", "mse", "smooth_mae"]);
            let section = json!({"type": "property", "loss_func": function, "beta": 0.4, "metric": metric});
            compare_loss(&section, &model, false);
            compare_loss(&section, &without_type(&model), false);
        }
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
fn single_configurations_with_a_table_of_pair_energies_agree_with_the_cpu() {
    for model in blended() {
        compare_single(Numbers::F64, &model, 2048, 1e-12);
        compare_single(Numbers::F64, &model, 5, 1e-12);
    }
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
