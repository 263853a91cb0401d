//! Seeds against central differences of the loss, displayed errors against their formulas.

use super::*;
use crate::data::Labels;
use options::{HuberDeltas, NAMES, Prefactor};

/// Numbers in [-1, 1) that stay the same for ever.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    }

    fn list(&mut self, n: usize) -> Vec<f64> {
        (0..n).map(|_| self.next()).collect()
    }
}

/// Generalised coordinates.
const COORDINATES: usize = 2;

/// Two frames, of 4 real atoms and of 2 with a virtual one in between.
fn batch() -> (Vec<Frame>, Prediction) {
    let mut numbers = Numbers(7);
    let frames: Vec<Frame> = [vec![0, 1, 1, 0], vec![1, -1, 0]]
        .into_iter()
        .map(|types| {
            let n = types.len();
            let labels = Labels {
                energy: Some(numbers.next()),
                force: Some(numbers.list(3 * n)),
                virial: Some(std::array::from_fn(|_| numbers.next())),
                atom_energy: Some(numbers.list(n)),
                atom_pref: Some(numbers.list(3 * n).iter().map(|x| x.abs()).collect()),
                atom_ener_coeff: Some(numbers.list(n)),
                drdq: Some(numbers.list(3 * n * COORDINATES)),
                ..Labels::default()
            };
            let (coord, fparam, aparam) = (vec![0.0; 3 * n], Vec::new(), Vec::new());
            Frame { types: types.into(), coord, cell: None, fparam, aparam, sorted: false, labels }
        })
        .collect();
    let out = Prediction {
        energy: numbers.list(2),
        atom_energy: numbers.list(7),
        force: numbers.list(21),
        virial: (0..2).map(|_| std::array::from_fn(|_| numbers.next())).collect(),
        ..Prediction::default()
    };
    (frames, out)
}

/// Everything predicted, as one list.
fn flat(energy: &[f64], atom_energy: &[f64], force: &[f64], virial: &[[f64; 9]]) -> Vec<f64> {
    [energy, atom_energy, force, virial.as_flattened()].concat()
}

fn number(out: &mut Prediction, mut k: usize) -> &mut f64 {
    for list in [&mut out.energy, &mut out.atom_energy, &mut out.force] {
        if k < list.len() {
            return &mut list[k];
        }
        k -= list.len();
    }
    &mut out.virial.as_flattened_mut()[k]
}

const LR: f64 = 0.3;

fn value(loss: &EnerLoss, out: &Prediction, frames: &[&Frame]) -> (LossValue, Seeds) {
    let mut seeds = Seeds::default();
    let value = loss.differentiate(&mut seeds, out, frames, LR);
    (value, seeds)
}

/// Only the terms named by letters, with prefactors that depend on the learning rate.
fn options(terms: &str, function: LossFunction) -> EnerLossOptions {
    let term = |name: char, start: f64| {
        if terms.contains(name) {
            Prefactor { start, limit: 1.5 }
        } else {
            Prefactor { start: 0.0, limit: 0.0 }
        }
    };
    EnerLossOptions {
        energy: term('e', 0.2),
        force: term('f', 3.0),
        virial: term('v', 0.7),
        atom_energy: term('a', 0.4),
        atom_pref_force: term('p', 2.0),
        generalized_force: term('g', 0.6),
        numb_generalized_coord: COORDINATES,
        relative_f: None,
        function,
        f_use_norm: false,
        enable_atom_ener_coeff: false,
        use_default_pf: false,
        intensive_ener_virial: false,
    }
}

/// Errors of this batch lie on both sides of each.
const HUBER: LossFunction = LossFunction::Huber(HuberDeltas { energy: 0.3, force: 0.6, virial: 0.2 });

/// Every way to compute the loss that the options allow.
fn all_options() -> Vec<EnerLossOptions> {
    let mut all = Vec::new();
    for function in [LossFunction::Mse, LossFunction::Mae, HUBER] {
        let terms: &[&str] = if function == HUBER {
            &["e", "f", "v", "a", "efva"]
        } else {
            &["e", "f", "v", "a", "p", "g", "efvapg"]
        };
        for terms in terms {
            let plain = options(terms, function);
            all.push(EnerLossOptions { intensive_ener_virial: true, ..plain.clone() });
            all.push(EnerLossOptions { enable_atom_ener_coeff: true, ..plain.clone() });
            if function != LossFunction::Mse {
                all.push(EnerLossOptions { f_use_norm: true, ..plain.clone() });
            }
            if function != HUBER {
                all.push(EnerLossOptions { relative_f: Some(0.5), ..plain.clone() });
            }
            all.push(plain);
        }
    }
    all
}

#[test]
fn seeds_are_the_derivatives_of_the_loss_by_each_predicted_number() {
    let (frames, out) = batch();
    let frames: Vec<&Frame> = frames.iter().collect();
    for options in all_options() {
        let loss = EnerLoss::new(options.clone(), 1.0);
        let (_, seeds) = value(&loss, &out, &frames);
        let seeds = flat(&seeds.dl_energy, &seeds.dl_atom_energy, &seeds.dl_force, &seeds.dl_virial);
        assert!(seeds.iter().any(|&x| x != 0.0), "no seed at all: {options:?}");
        for (k, seed) in seeds.iter().enumerate() {
            let h = 1e-6;
            let at = |shift: f64| {
                let mut out = out.clone();
                *number(&mut out, k) += shift;
                value(&loss, &out, &frames).0.loss
            };
            let slope = (at(h) - at(-h)) / (2.0 * h);
            assert!((seed - slope).abs() < 1e-8 + 1e-7 * slope.abs(), "{k}: {seed} {slope}: {options:?}");
        }
    }
}

#[test]
fn the_prefactor_follows_the_learning_rate() {
    let (frames, out) = batch();
    let frames: Vec<&Frame> = frames.iter().collect();
    let mut seeds = Seeds::default();
    let loss = EnerLoss::new(options("f", LossFunction::Mse), 0.5);
    let mut at = |lr: f64| loss.differentiate(&mut seeds, &out, &frames, lr).loss;
    assert!((at(0.5) / at(0.0) - 3.0 / 1.5).abs() < 1e-14);
    assert!((at(0.25) / at(0.0) - 2.25 / 1.5).abs() < 1e-14);
}

/// The mean of a power of some errors, and its root.
fn mean(errors: impl Iterator<Item = f64>, power: i32) -> f64 {
    let errors: Vec<f64> = errors.map(|x| x.abs().powi(power)).collect();
    (errors.iter().sum::<f64>() / errors.len() as f64).powf(1.0 / f64::from(power))
}

/// (frame, atom, place in the batch) of the six real atoms.
const ATOMS: [(usize, usize, usize); 6] = [(0, 0, 0), (0, 1, 1), (0, 2, 2), (0, 3, 3), (1, 0, 4), (1, 2, 6)];

/// Errors of force components of real atoms, with the weight of each.
fn force_errors(frames: &[&Frame], out: &Prediction) -> Vec<(f64, f64)> {
    let of = |&(f, i, at): &(usize, usize, usize)| {
        let labels = &frames[f].labels;
        let (force, pref) = (labels.force.clone().unwrap(), labels.atom_pref.clone().unwrap());
        [0, 1, 2].map(|k| (out.force[3 * at + k] - force[3 * i + k], pref[3 * i + k]))
    };
    ATOMS.iter().flat_map(of).collect()
}

/// Errors of generalised forces of both frames.
fn generalized_errors(frames: &[&Frame], out: &Prediction) -> [f64; 2 * COORDINATES] {
    let mut errors = [0.0; 2 * COORDINATES];
    for &(f, i, at) in &ATOMS {
        let (force, drdq) =
            (frames[f].labels.force.as_ref().unwrap(), frames[f].labels.drdq.as_ref().unwrap());
        for (k, q) in (0..3).flat_map(|k| (0..COORDINATES).map(move |q| (k, q))) {
            let derivative = drdq[(3 * i + k) * COORDINATES + q];
            errors[f * COORDINATES + q] += derivative * (out.force[3 * at + k] - force[3 * i + k]);
        }
    }
    errors
}

#[test]
fn displayed_errors_are_those_of_their_names() {
    let (frames, out) = batch();
    let frames: Vec<&Frame> = frames.iter().collect();
    let n_real = [4.0, 2.0];
    for (function, power) in [(LossFunction::Mse, 2), (LossFunction::Mae, 1)] {
        let energy = (0..2).map(|f| (out.energy[f] - frames[f].labels.energy.unwrap()) / n_real[f]);
        let forces = force_errors(&frames, &out);
        let virial = (0..18).map(|k| {
            (out.virial[k / 9][k % 9] - frames[k / 9].labels.virial.unwrap()[k % 9]) / n_real[k / 9]
        });
        let atoms = ATOMS
            .iter()
            .map(|&(f, i, at)| out.atom_energy[at] - frames[f].labels.atom_energy.as_ref().unwrap()[i]);
        let weighted = forces.iter().map(|&(x, p)| p.powf(1.0 / f64::from(power)) * x);
        let want = [
            mean(energy, power),
            mean(forces.iter().map(|&(x, _)| x), power),
            mean(virial, power),
            mean(atoms, power),
            mean(weighted, power),
            // Squares whatever the others are.
            mean(generalized_errors(&frames, &out).into_iter(), 2),
        ];
        let loss = EnerLoss::new(options("efvapg", function), 1.0);
        let (value, _) = value(&loss, &out, &frames);
        assert_eq!(value.terms.iter().map(|t| &*t.name).collect::<Vec<_>>(), loss.names());
        for ((term, want), names) in value.terms.iter().zip(want).zip(NAMES) {
            assert_eq!(term.name, names[2 - power as usize]);
            assert!((term.value - want).abs() < 1e-12, "{}: {} {want}", term.name, term.value);
        }
    }
}

#[test]
fn the_loss_is_the_sum_of_its_penalties_in_words_of_the_options() {
    let (frames, out) = batch();
    let frames: Vec<&Frame> = frames.iter().collect();
    let weight = |start: f64| 1.5 + (start - 1.5) * LR;
    let [a, b] = [0, 1].map(|f| out.energy[f] - frames[f].labels.energy.unwrap());
    let close = |options: EnerLossOptions, want: f64| {
        let got = value(&EnerLoss::new(options.clone(), 1.0), &out, &frames).0.loss;
        assert!((got - want).abs() < 1e-12, "{got} {want}: {options:?}");
    };
    // N is 4 and 2.
    let energy = options("e", LossFunction::Mse);
    close(energy.clone(), weight(0.2) * (a * a / 4.0 + b * b / 2.0) / 2.0);
    let intensive = EnerLossOptions { intensive_ener_virial: true, ..energy };
    close(intensive, weight(0.2) * (a * a / 16.0 + b * b / 4.0) / 2.0);
    close(options("e", LossFunction::Mae), weight(0.2) * (a.abs() / 4.0 + b.abs() / 2.0) / 2.0);
    let huber = |x: f64| if x.abs() <= 0.3 { x * x / 2.0 } else { 0.3 * (x.abs() - 0.15) };
    close(options("e", HUBER), weight(0.2) * (huber(a / 4.0) + huber(b / 2.0)) / 2.0);
    let squares: f64 = generalized_errors(&frames, &out).iter().map(|x| x * x).sum();
    close(options("g", LossFunction::Mse), weight(0.6) * squares / 4.0);
    close(options("g", LossFunction::Mae), weight(0.6) * squares / 4.0);
    let norms = force_errors(&frames, &out);
    let norms = norms.chunks(3).map(|f| f.iter().map(|(x, _)| x * x).sum::<f64>().sqrt());
    let by_norm = EnerLossOptions { f_use_norm: true, ..options("f", LossFunction::Mae) };
    close(by_norm, weight(3.0) * mean(norms, 1));
}

#[test]
fn coefficients_of_atom_energies_make_the_energy_of_a_reaction() {
    let (mut frames, mut out) = batch();
    frames.truncate(1);
    out.atom_energy = vec![2.0, 3.0, 5.0, 7.0];
    out.energy = vec![17.0];
    frames[0].labels.energy = Some(1.0);
    frames[0].labels.atom_ener_coeff = Some(vec![1.0, 1.0, -1.0, 0.5]);
    let options = EnerLossOptions { enable_atom_ener_coeff: true, ..options("e", LossFunction::Mse) };
    let with = EnerLoss::new(options, 1.0);
    // 2 + 3 - 5 + 3.5 - 1 over four atoms.
    let (value_of, seeds) = value(&with, &out, &[&frames[0]]);
    assert!((value_of.terms[0].value - 2.5 / 4.0).abs() < 1e-14);
    assert_eq!(seeds.dl_energy, [0.0]);
    // Without the file every coefficient is 1, which is the energy itself.
    frames[0].labels.atom_ener_coeff = None;
    let (value_of, seeds) = value(&with, &out, &[&frames[0]]);
    assert!((value_of.terms[0].value - 16.0 / 4.0).abs() < 1e-14);
    assert_eq!(seeds.dl_atom_energy, [0.0; 4]);
}

#[test]
fn a_missing_label_leaves_its_term_out_and_shows_no_number() {
    let (mut frames, out) = batch();
    frames[1].labels.virial = None;
    frames[0].labels.atom_pref = None;
    frames[1].labels.drdq = None;
    let frames: Vec<&Frame> = frames.iter().collect();
    let plain = options("evpg", LossFunction::Mse);
    let (value_of, seeds) = value(&EnerLoss::new(plain.clone(), 1.0), &out, &frames);
    assert!(value_of.terms[1..].iter().all(|term| term.value.is_nan()));
    assert_eq!(
        value_of.loss,
        value(&EnerLoss::new(options("e", LossFunction::Mse), 1.0), &out, &frames).0.loss
    );
    assert!(seeds.dl_force.iter().all(|&x| x == 0.0));
    let with_default = EnerLossOptions { use_default_pf: true, ..plain };
    assert!(value(&EnerLoss::new(with_default, 1.0), &out, &frames).0.terms[2].value.is_finite());
}
