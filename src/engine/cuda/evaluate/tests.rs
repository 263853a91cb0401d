//! Evaluation on a GPU against the CPU engine; skipped by name where there is no GPU.

use super::super::program;
use super::*;
use crate::data::Frame;
use crate::engine::cpu::{CpuEngine, EmbeddingMode};
use crate::engine::reference::tests::{deviation, frame, model, model_with, options, steep_params};
use crate::engine::{Engine, Prediction};
use crate::gpu::{Cuda, Numbers};
use crate::model::dp::descriptor::SeE2R;
use crate::model::dp::geometry::Geometry;
use crate::model::dp::options::{DescriptorKind, DescriptorOptions, Form, SeE2A};
use crate::neighbor::Images;

/// A list holds what is farther than the cutoff by so much, as those of MD programs do.
const SKIN: f64 = 0.7;

fn device(numbers: Numbers, form: Form) -> Option<Arc<Device>> {
    let env = |name: &str| std::env::var(name).ok();
    match Cuda::find(&env) {
        Ok(cuda) => Some(program::open(&cuda, 0, numbers, form, &env).unwrap()),
        Err(e) => {
            crate::skip::skip(e.message());
            None
        }
    }
}

/// What the CPU engine says of a frame.
fn on_cpu(model: &Arc<Dp>, params: &[f64], frame: &Frame) -> Evaluation {
    let mut engine = CpuEngine::<f64>::new(model.clone(), 1, EmbeddingMode::Direct).unwrap();
    let prepared = engine.preparer()(frame).unwrap();
    let mut found = Prediction::default();
    engine.evaluate(&mut found, params, &[&prepared]);
    let mut out = Evaluation {
        energy: found.energy[0],
        atom_energy: found.atom_energy,
        force: found.force,
        virial: found.virial[0],
        atom_virial: vec![0.0; 9 * frame.n_atoms()],
    };
    engine.atom_virial_add(&mut out.atom_virial, &prepared);
    out
}

fn compare(got: &Evaluation, want: &Evaluation, tolerance: f64) {
    for (name, got, want) in [
        ("energy", &[got.energy][..], &[want.energy][..]),
        ("atom energy", &got.atom_energy, &want.atom_energy),
        ("force", &got.force, &want.force),
        ("virial", &got.virial, &want.virial),
        ("atom virial", &got.atom_virial, &want.atom_virial),
    ] {
        assert_eq!(got.len(), want.len(), "{name}");
        let worst = deviation(got, want);
        println!("{name}: {worst:.1e}");
        assert!(worst < tolerance, "{name}: worst relative deviation {worst:e}");
    }
}

/// An evaluator with the images of a frame.
struct Case {
    model: Arc<Dp>,
    params: Vec<f64>,
    evaluator: Evaluator,
}

impl Case {
    fn new(numbers: Numbers, model: Arc<Dp>, params: Vec<f64>, min_distance: f64) -> Option<Case> {
        let device = device(numbers, model.descriptor().form())?;
        let evaluator = Evaluator::new(&device, &model, &params, min_distance).unwrap().expect("a series");
        Some(Case { model, params, evaluator })
    }

    /// Evaluates images of a frame; `None` where no series describes the nets.
    fn run(&mut self, frame: &Frame, images: &Images, same: bool) -> Option<Evaluation> {
        let lists = images.lists();
        let geometry = Geometry::new(&self.model, frame).unwrap();
        let mut out = Evaluation::default();
        let domain = images.domain(&lists);
        if !self.evaluator.evaluate(&mut out, &domain, &geometry.extra, same, true).unwrap() {
            return None;
        }
        out.atom_energy.truncate(frame.n_atoms());
        images.fold(&mut out.force, 3);
        images.fold(&mut out.atom_virial, 9);
        Some(out)
    }

    /// Compares a frame, run by run up to the recorded ones, then with moved atoms and the same list.
    fn compare(&mut self, frame: &Frame, tolerance: f64) {
        let rcut = self.model.descriptor().rcut;
        let mut images = Images::new(frame, rcut + SKIN, self.model.n_types()).unwrap();
        let want = on_cpu(&self.model, &self.params, frame);
        let first = self.run(frame, &images, false).expect("a series");
        compare(&first, &want, tolerance);
        for _ in 0..2 {
            assert_eq!(
                self.run(frame, &images, true).expect("a series"),
                first,
                "every run has the same bits"
            );
        }
        let by = |i: usize| [0.1 * (i as f64).sin(), -0.08 * (3.0 * i as f64).cos(), 0.05];
        images.displace(by);
        let mut moved = frame.clone();
        moved.coord.chunks_exact_mut(3).enumerate().for_each(|(i, x)| (0..3).for_each(|k| x[k] += by(i)[k]));
        let want = on_cpu(&self.model, &self.params, &moved);
        compare(&self.run(&moved, &images, true).expect("a series"), &want, tolerance);
    }
}

fn compare_model(numbers: Numbers, model: Arc<Dp>, tolerance: f64, chunk_rows: usize) {
    let params = model.random_params(9);
    let Some(mut case) = Case::new(numbers, model, params, 0.3) else { return };
    case.evaluator.chunk_rows = chunk_rows;
    for frame in [frame(23, 1), frame(9, 4)] {
        case.compare(&frame, tolerance);
    }
}

#[test]
fn float64_agrees_with_the_cpu_in_one_chunk_and_in_several() {
    compare_model(Numbers::F64, model(options()), 1e-10, CHUNK_ROWS);
    compare_model(Numbers::F64, model(options()), 1e-10, 8);
}

#[test]
fn single_precision_agrees_with_the_cpu_to_its_precision() {
    compare_model(Numbers::F32, model(options()), 3e-4, CHUNK_ROWS);
    compare_model(Numbers::Tf32, model(options()), 3e-2, CHUNK_ROWS);
}

#[test]
fn one_sided_nets_excluded_pairs_and_isolated_atoms_agree_with_the_cpu() {
    let descriptor = DescriptorOptions {
        type_one_side: true,
        exclude_types: vec![(0, 1)],
        kind: DescriptorKind::SeE2A(SeE2A { axis_neuron: 4, linear_end: false }),
        ..options()
    };
    let model = model_with(descriptor, |fitting| {
        (fitting.numb_fparam, fitting.numb_aparam) = (0, 0);
        fitting.atom_ener = vec![None, Some(-3.0)];
    });
    compare_model(Numbers::F64, model, 1e-10, CHUNK_ROWS);
}

#[test]
fn distances_alone_with_excluded_pairs_agree_with_the_cpu() {
    for exclude_types in [vec![], vec![(0, 1)]] {
        let descriptor = DescriptorOptions { exclude_types, kind: DescriptorKind::SeE2R(SeE2R), ..options() };
        // Forces of this model are small beside the unit in which they are added up.
        compare_model(Numbers::F64, model(descriptor), 1e-9, CHUNK_ROWS);
    }
}

#[test]
fn steep_nets_on_panels_agree_with_the_cpu_and_the_series_reaches_where_atoms_come_close() {
    let model = model(options());
    let params = steep_params(&model);
    // Frames have shorter distances than this, so the series must become longer.
    let Some(mut case) = Case::new(Numbers::F64, model, params, 2.5) else { return };
    let before = case.evaluator.plan().cloned();
    case.compare(&frame(17, 8), 1e-10);
    assert_ne!(case.evaluator.plan().cloned(), before);
    assert!(case.evaluator.plan().is_some_and(|plan| plan.panels().len() > 4));
}

#[test]
fn atoms_at_the_same_place_are_left_to_the_cpu_and_bad_numbers_refused() {
    let descriptor = DescriptorOptions { env_protection: 0.0, ..options() };
    let model = model(descriptor);
    let params = model.random_params(9);
    let Some(mut case) = Case::new(Numbers::F64, model, params, 0.3) else { return };
    let frame = frame(9, 4);
    let mut images = Images::new(&frame, 4.0, 2).unwrap();
    assert!(case.run(&frame, &images, false).is_some());
    images.displace(|i| {
        if i == 1 {
            std::array::from_fn(|k| images_of(&frame, 2)[k] - images_of(&frame, 1)[k])
        } else {
            [0.0; 3]
        }
    });
    let lists = images.lists();
    let mut out = Evaluation::default();
    let extra = Geometry::new(&case.model, &frame).unwrap().extra;
    let close = case.evaluator.evaluate(&mut out, &images.domain(&lists), &extra, true, false).unwrap();
    assert!(!close, "no series reaches a distance of nothing");
    let mut coord = images.coord.clone();
    coord[4] = f64::NAN;
    let domain = Domain { coord: &coord, ..images.domain(&lists) };
    let error = case.evaluator.evaluate(&mut out, &domain, &extra, true, false).unwrap_err();
    assert_eq!(error.message(), "atom 1: the coordinate NaN is not a number");
}

/// Where an atom of a frame is in the home cell.
fn images_of(frame: &Frame, i: usize) -> [f64; 3] {
    let images = Images::new(frame, 1.0, 2).unwrap();
    std::array::from_fn(|k| images.coord[3 * i + k])
}

#[test]
fn a_domain_without_atoms_of_the_model_has_no_energy() {
    let model = model(options());
    let params = model.random_params(9);
    let Some(mut case) = Case::new(Numbers::F64, model, params, 0.3) else { return };
    let domain = Domain { coord: &[0.0, 0.0, 0.0], types: &[-1], lists: &[&[]], mask: -1 };
    let mut out = Evaluation::default();
    assert!(case.evaluator.evaluate(&mut out, &domain, &[0.0, 0.0], false, false).unwrap());
    assert_eq!((out.energy, &out.force[..]), (0.0, &[0.0; 3][..]));
}
