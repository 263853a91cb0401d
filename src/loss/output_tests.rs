//! Losses of outputs that are no energies: seeds against central differences of the loss.

use super::*;
use crate::config::check::check;
use crate::config::{Section, registry};
use crate::data::Labels;
use crate::engine::reference::tests::{model_with, options};
use crate::model::dp::fitting::{Dipole, Dos, Property};
use crate::model::dp::options::FittingKind;
use serde_json::{Value, json};

const WIDTH: usize = 3;
const LR: f64 = 0.3;

fn numbers(n: usize, salt: f64) -> Vec<f64> {
    (0..n).map(|k| ((k as f64 + 1.0) * salt).sin() * 2.0).collect()
}

/// Two frames, of 4 atoms and of 2 with a virtual one in between; type 1 is left out.
fn frames() -> Vec<Frame> {
    let frame = |(k, types): (usize, Vec<i32>)| {
        let n = types.len();
        let labels = Labels {
            output: Some(numbers(WIDTH, 0.7 + k as f64)),
            atom_output: Some(numbers(n * WIDTH, 1.7 + k as f64)),
            ..Labels::default()
        };
        let (coord, fparam, aparam) = (vec![0.0; 3 * n], Vec::new(), Vec::new());
        Frame { types: types.into(), sorted: false, coord, cell: None, fparam, aparam, labels }
    };
    [vec![0, 1, 0, 0], vec![0, -1, 0]].into_iter().enumerate().map(frame).collect()
}

/// The loss of a section, for a model with this fitting net.
fn loss(section: Value, kind: FittingKind) -> Box<dyn Loss> {
    let checked = check(&LOSS, &section, "test").unwrap().value;
    let choice = registry::resolve(LOSSES, &Section::root(&checked)).unwrap();
    let mut model = (*model_with(options(), |fitting| fitting.kind = kind)).clone();
    model.options.atom_exclude_types = vec![1];
    choice.build(1.0, &model)
}

#[track_caller]
fn check_seeds(loss: &dyn Loss) {
    let frames = frames();
    let frames: Vec<&Frame> = frames.iter().collect();
    let mut out = Prediction {
        output: numbers(2 * WIDTH, 0.37),
        atom_output: numbers(7 * WIDTH, 0.53),
        ..Prediction::default()
    };
    let (mut seeds, mut unused) = (Seeds::default(), Seeds::default());
    let value = loss.differentiate(&mut seeds, &out, &frames, LR);
    assert!(value.loss.is_finite() && value.loss > 0.0);
    let got = [seeds.dl_output.clone(), seeds.dl_atom_output.clone()].concat();
    for k in 0..got.len() {
        let mut at = |h: f64| {
            let n = out.output.len();
            let x = if k < n { &mut out.output[k] } else { &mut out.atom_output[k - n] };
            let before = *x;
            *x += h;
            let loss = loss.differentiate(&mut unused, &out, &frames, LR).loss;
            let n = out.output.len();
            *if k < n { &mut out.output[k] } else { &mut out.atom_output[k - n] } = before;
            loss
        };
        let want = (at(1e-6) - at(-1e-6)) / 2e-6;
        assert!((got[k] - want).abs() < 1e-7 * (1.0 + want.abs()), "{k}: {} {want}", got[k]);
    }
}

#[test]
fn seeds_of_a_density_of_states_agree_with_central_differences() {
    for term in ["dos", "cdf", "ados", "acdf"] {
        let mut section = json!({"type": "dos", "start_pref_ados": 0, "limit_pref_ados": 0});
        section[format!("start_pref_{term}")] = json!(2.0);
        section[format!("limit_pref_{term}")] = json!(0.5);
        check_seeds(&*loss(section, FittingKind::Dos(Dos { numb_dos: WIDTH })));
    }
}

#[test]
fn seeds_of_a_dipole_agree_with_central_differences() {
    for (pref, pref_atomic) in [(0.7, 0.0), (0.0, 2.0), (0.3, 0.4)] {
        let section = json!({"type": "tensor", "pref": pref, "pref_atomic": pref_atomic});
        check_seeds(&*loss(section, FittingKind::Dipole(Dipole)));
    }
}

#[test]
fn seeds_of_a_property_agree_with_central_differences() {
    for function in ["smooth_mae", "mae", "mse", "rmse", "mape"] {
        for is_intensive in [false, true] {
            let section = json!({"type": "property", "loss_func": function, "beta": 0.4});
            let own = Property { name: "gap".into(), task_dim: WIDTH, is_intensive, distinguish_types: true };
            check_seeds(&*loss(section, FittingKind::Property(own)));
        }
    }
}

#[test]
fn a_missing_label_leaves_its_term_out() {
    let section = json!({"type": "dos", "start_pref_dos": 1, "limit_pref_dos": 1});
    let loss = loss(section, FittingKind::Dos(Dos { numb_dos: WIDTH }));
    let mut frames = frames();
    frames[1].labels.atom_output = None;
    let out = Prediction {
        output: numbers(2 * WIDTH, 0.37),
        atom_output: numbers(7 * WIDTH, 0.53),
        ..Prediction::default()
    };
    let mut seeds = Seeds::default();
    let value = loss.differentiate(&mut seeds, &out, &frames.iter().collect::<Vec<_>>(), LR);
    assert!(value.terms[0].value.is_nan() && value.terms[1].value > 0.0, "{value:?}");
    assert!(seeds.dl_atom_output.iter().all(|&x| x == 0.0) && seeds.dl_output.iter().all(|&x| x != 0.0));
}
