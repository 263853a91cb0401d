use super::*;
use crate::model::pinet::options::*;

pub(crate) fn model() -> PinetModel {
    PinetModel::new(PinetOptions {
        atom_types: vec![1, 8],
        depth: 1,
        ..PinetOptions::new(Wiring::Master, NetworkKind::PiNet)
    })
    .unwrap()
}

fn noise(k: usize) -> f64 {
    (k as f64 * 1.7 + 0.3).sin()
}

/// Two structures of 3 and 2 atoms with every label, and a prediction of them.
pub(crate) fn batch(model: &PinetModel) -> (Vec<PinetFrame>, Vec<PinnLabels>, PinetPrediction) {
    let cell = [6.0, 0.0, 0.0, 0.0, 7.0, 0.0, 0.0, 0.0, 8.0];
    let (mut frames, mut labels) = (vec![], vec![]);
    for (n, elems) in [(3, vec![8, 1, 1]), (2, vec![1, 1])] {
        let coord: Vec<f64> = (0..3 * n).map(|k| 2.0 * noise(k + n)).collect();
        frames.push(PinetFrame::new(model, &elems, &coord, Some(cell)).unwrap());
        labels.push(PinnLabels {
            energy: Some(2.0 + noise(n)),
            force: Some((0..3 * n).map(|k| noise(k + 20)).collect()),
            stress: Some(std::array::from_fn(|k| 0.01 * noise(k + 30))),
            dipole: Some(0.7 + 0.2 * noise(n)),
            e_weight: Some(0.5 + n as f64),
            f_weights: Some((0..3 * n).map(|k| 1.0 + 0.5 * noise(k)).collect()),
            d_weight: Some(0.3 + n as f64),
        });
    }
    let out = PinetPrediction {
        energy: vec![1.1, -0.4],
        atomic: (0..5).map(|k| noise(k + 7)).collect(),
        force: (0..15).map(|k| noise(k + 50)).collect(),
        stress: (0..2).map(|s| std::array::from_fn(|k| noise(k + 9 * s))).collect(),
    };
    (frames, labels, out)
}

fn potential(version: Wiring, change: impl Fn(&mut PotentialOptions)) -> ModelOptions {
    let mut o = PotentialOptions {
        use_force: true,
        f_loss_multiplier: 4.0,
        e_scale: 1.5,
        e_dress: [(1, 0.25)].into(),
        ..PotentialOptions::new(version)
    };
    change(&mut o);
    ModelOptions::Potential(o)
}

fn dipole_options(version: Wiring, change: impl Fn(&mut DipoleOptions)) -> ModelOptions {
    let mut o = DipoleOptions { d_scale: 1.5, d_loss_multiplier: 2.0, ..DipoleOptions::new(version) };
    change(&mut o);
    ModelOptions::Dipole(o)
}

/// Every option that changes a formula.
pub(crate) fn all() -> Vec<ModelOptions> {
    let mut all = Vec::new();
    for version in [Wiring::Master, Wiring::Fork] {
        let changes: [fn(&mut PotentialOptions); 8] = [
            |_| (),
            |o| (o.use_e_per_atom, o.use_e_per_sqrt) = (true, true),
            |o| (o.use_e_weight, o.use_f_weights) = (true, true),
            |o| (o.use_e_per_atom, o.use_e_weight) = (true, true),
            |o| (o.max_energy, o.max_force) = (Some(3.5), Some(0.9)),
            |o| o.use_stress = true,
            |o| (o.use_l2, o.l2_loss_multiplier) = (true, 0.5),
            |o| o.no_force_comp = Some(4),
        ];
        all.extend(changes.iter().map(|change| potential(version, change)));
        let changes: [fn(&mut DipoleOptions); 5] = [
            |_| (),
            |o| (o.use_d_per_atom, o.use_d_per_sqrt) = (true, true),
            |o| o.use_d_weight = true,
            |o| o.max_dipole = Some(1.2),
            |o| o.use_l2 = true,
        ];
        all.extend(changes.iter().map(|change| dipole_options(version, change)));
    }
    all
}

/// Losses of which each step keeps one term.
pub(crate) fn separate() -> Vec<ModelOptions> {
    let changes: [fn(&mut PotentialOptions); 2] = [
        |o| o.separate_errors = true,
        |o| (o.separate_errors, o.use_stress, o.use_l2, o.no_force_comp) = (true, true, true, Some(5)),
    ];
    changes.iter().map(|change| potential(Wiring::Master, change)).collect()
}

#[test]
fn what_a_device_is_told_to_leave_out_is_what_separate_errors_leaves_out() {
    let model = model();
    let (frames, labels, out) = batch(&model);
    let (frames, labels): (Vec<_>, Vec<_>) = (frames.iter().collect(), labels.iter().collect());
    let params = model.init(3);
    for options in separate() {
        let loss = PinnLoss::new(options.clone(), &model, 5);
        let mut seen = [false; 4];
        for step in 0..40 {
            let mut seeds = PinetSeeds::default();
            loss.differentiate(&mut seeds, &out, &frames, &labels, &params, step, 0);
            let mut pulled = vec![0.0; params.len()];
            loss.regularise_add(&mut pulled, &params, step);
            let kept = [&seeds.dl_energy[..], &seeds.dl_force, seeds.dl_stress.as_flattened(), &pulled]
                .map(|seeds| seeds.iter().any(|&x| x != 0.0));
            assert_eq!(kept.iter().filter(|&&kept| kept).count(), 1, "one term in step {step}");
            for (k, kept) in kept.iter().enumerate() {
                seen[k] |= kept;
                assert!(!kept || loss.dropped(step) >> k & 1 == 0, "{options:?}, step {step}, term {k}");
            }
            let there = [true, true, loss.counted().1[3], loss.pull(params.len()).is_some()];
            let left = (0..4).filter(|&k| there[k] && loss.dropped(step) >> k & 1 == 0).count();
            assert_eq!(left, 1, "{options:?}, step {step}");
        }
        assert!(seen[0] && seen[1], "both terms are drawn");
    }
}

#[test]
fn seeds_are_the_derivatives_of_the_loss() {
    let model = model();
    let (frames, labels, out) = batch(&model);
    let (frames, labels): (Vec<_>, Vec<_>) = (frames.iter().collect(), labels.iter().collect());
    let params = model.init(3);
    for options in all() {
        let loss = PinnLoss::new(options.clone(), &model, 5);
        frames.iter().zip(&labels).for_each(|(f, l)| loss.require(f, l).unwrap());
        let of = |out: &PinetPrediction, seeds: &mut PinetSeeds| {
            loss.differentiate(seeds, out, &frames, &labels, &params, 3, 0)
        };
        let mut seeds = PinetSeeds::default();
        let value = of(&out, &mut seeds);
        type Field = fn(&mut PinetPrediction) -> &mut [f64];
        let kinds: [(&str, Field, &[f64]); 4] = [
            ("energy", |out| &mut out.energy, &seeds.dl_energy),
            ("atomic", |out| &mut out.atomic, &seeds.dl_atomic),
            ("force", |out| &mut out.force, &seeds.dl_force),
            ("stress", |out| out.stress.as_flattened_mut(), seeds.dl_stress.as_flattened()),
        ];
        for (name, field, seeds) in kinds {
            for (k, got) in seeds.iter().enumerate() {
                let at = |h: f64| {
                    let mut moved = out.clone();
                    field(&mut moved)[k] += h;
                    of(&moved, &mut PinetSeeds::default()).loss
                };
                let want = (at(1e-5) - at(-1e-5)) / 2e-5;
                assert!(
                    (got - want).abs() < 1e-6 * (1.0 + value.loss),
                    "{options:?} {name} {k}: {got} {want}"
                );
            }
        }
    }
}

#[test]
fn the_regulariser_adds_its_derivative_to_the_gradient() {
    let model = model();
    let (frames, labels, out) = batch(&model);
    let (frames, labels): (Vec<_>, Vec<_>) = (frames.iter().collect(), labels.iter().collect());
    let params = model.init(3);
    for options in all() {
        let loss = PinnLoss::new(options, &model, 5);
        let mut grad = vec![0.0; params.len()];
        loss.regularise_add(&mut grad, &params, 0);
        for k in (0..params.len()).step_by(97) {
            let at = |h: f64| {
                let mut moved = params.clone();
                moved[k] += h;
                loss.differentiate(&mut PinetSeeds::default(), &out, &frames, &labels, &moved, 0, 0).loss
            };
            let want = (at(1e-4) - at(-1e-4)) / 2e-4;
            assert!((grad[k] - want).abs() < 1e-6, "{k}: {} {want}", grad[k]);
        }
    }
}

#[test]
fn a_subset_of_force_components_has_its_size_and_changes_with_the_step() {
    let model = model();
    let (frames, labels, out) = batch(&model);
    let (frames, labels): (Vec<_>, Vec<_>) = (frames.iter().collect(), labels.iter().collect());
    let loss = PinnLoss::new(potential(Wiring::Master, |o| o.no_force_comp = Some(4)), &model, 5);
    let chosen = |step, rank| {
        let mut seeds = PinetSeeds::default();
        loss.differentiate(&mut seeds, &out, &frames, &labels, &[], step, rank);
        seeds.dl_force.iter().map(|x| *x != 0.0).collect::<Vec<bool>>()
    };
    assert_eq!(chosen(0, 0).iter().filter(|&&c| c).count(), 4);
    assert_eq!(chosen(0, 0), chosen(0, 0));
    assert!((1..9).any(|step| chosen(step, 0) != chosen(0, 0)));
    assert!((1..9).any(|rank| chosen(0, rank) != chosen(0, 0)));
}

#[test]
fn separate_errors_take_one_term_a_step_and_every_term_in_the_long_run() {
    let model = model();
    let (frames, labels, out) = batch(&model);
    let (frames, labels): (Vec<_>, Vec<_>) = (frames.iter().collect(), labels.iter().collect());
    let options =
        potential(Wiring::Master, |o| (o.separate_errors, o.use_stress, o.use_l2) = (true, true, true));
    let loss = PinnLoss::new(options, &model, 5);
    let params = model.init(1);
    let mut seen = [0; 4];
    for step in 0..60 {
        let mut seeds = PinetSeeds::default();
        loss.differentiate(&mut seeds, &out, &frames, &labels, &params, step, 0);
        let mut grad = vec![0.0; params.len()];
        loss.regularise_add(&mut grad, &params, step);
        let used = [
            seeds.dl_energy.iter().any(|x| *x != 0.0),
            seeds.dl_force.iter().any(|x| *x != 0.0),
            seeds.dl_stress.as_flattened().iter().any(|x| *x != 0.0),
            grad.iter().any(|x| *x != 0.0),
        ];
        assert_eq!(used.iter().filter(|&&u| u).count(), 1, "step {step}: {used:?}");
        used.iter().enumerate().for_each(|(k, &u)| seen[k] += usize::from(u));
    }
    assert!(seen.iter().all(|&n| n > 3), "{seen:?}");
}

#[test]
fn a_missing_label_is_named() {
    let model = model();
    let (frames, mut labels, _) = batch(&model);
    let loss = PinnLoss::new(potential(Wiring::Master, |o| o.use_stress = true), &model, 0);
    assert!(loss.require(&frames[0], &labels[0]).is_ok());
    labels[0].stress = None;
    let error = loss.require(&frames[0], &labels[0]).unwrap_err();
    assert!(error.message().contains("has no s_data"), "{error}");
    labels[1].force = Some(vec![0.0; 5]);
    assert!(loss.require(&frames[1], &labels[1]).unwrap_err().message().contains("f_data has 5 numbers"));
}

/// One kind of error as a device sums it up: absolute, square, loss.
fn add_error(sums: &mut [f64], predicted: f64, label: f64, weight: f64, divisor: f64) -> f64 {
    let error = predicted - label;
    sums[0] += error.abs();
    sums[1] += error * error;
    if weight.is_nan() {
        return 0.0;
    }
    sums[2] += weight * error * error / divisor;
    2.0 * weight * error / divisor
}

#[test]
fn labels_and_weights_of_structures_give_the_same_loss_and_seeds() {
    let model = model();
    let (frames, labels, out) = batch(&model);
    let (refs, label_refs): (Vec<_>, Vec<_>) = (frames.iter().collect(), labels.iter().collect());
    let params = model.init(3);
    for options in all() {
        let loss = PinnLoss::new(options.clone(), &model, 5);
        let mut seeds = PinetSeeds::default();
        let want = loss.differentiate(&mut seeds, &out, &refs, &label_refs, &params, 0, 0);
        let all: Vec<_> = frames.iter().zip(&labels).map(|(f, l)| loss.elements(f, l)).collect();
        let mut divisor: [f64; 4] =
            std::array::from_fn(|k| all.iter().map(|e| e.counts[k]).sum::<f64>().max(1.0));
        let chosen = loss.chosen_forces(labels.iter(), 0, 0);
        if let Some(chosen) = &chosen {
            divisor[1] = chosen.iter().filter(|&&c| c).count() as f64;
        }
        let (s_weight, counted) = loss.counted();
        let mut sums = vec![0.0; 2 + 3 * 7];
        let of = |kind: usize, w: f64| if counted[kind] { w } else { f64::NAN };
        let mut first = 0;
        for (s, (frame, e)) in frames.iter().zip(&all).enumerate() {
            let n = frame.n_atoms();
            if let ModelOptions::Dipole(_) = options {
                let charges = &out.atomic[first..first + n];
                let (_, length) = dipole::dipole(charges, frame);
                add_error(&mut sums[13..], charges.iter().sum(), 0.0, 1.0, frames.len() as f64);
                for (kind, n) in [(5, 1.0), (6, n as f64)] {
                    let (label, weight) = (e.dipole.0 / n, of(kind, e.dipole.1));
                    add_error(&mut sums[1 + 3 * kind..], length / n, label, weight, divisor[3]);
                }
            } else {
                let mut seed = 0.0;
                for (kind, n) in [(0, 1.0), (1, n as f64)] {
                    let (label, weight) = (e.energy.0 / n, of(kind, e.energy.1));
                    seed +=
                        add_error(&mut sums[1 + 3 * kind..], out.energy[s] / n, label, weight, divisor[0])
                            / n;
                }
                assert!((seed - seeds.dl_energy[s]).abs() < 1e-12, "{options:?}");
                for (k, (label, weight)) in e.force.iter().zip(&e.force_weight).enumerate() {
                    let at = 3 * first + k;
                    let counts = chosen.as_ref().is_none_or(|chosen| chosen[at]);
                    let weight = if counts { *weight } else { f64::NAN };
                    let seed = add_error(&mut sums[7..], out.force[at], *label, weight, divisor[1]);
                    assert!((seed - seeds.dl_force[at]).abs() < 1e-12, "{options:?}");
                }
                if counted[3] {
                    let volume = frame.volume.unwrap();
                    for k in 0..9 {
                        add_error(
                            &mut sums[10..],
                            out.stress[s][k] / volume,
                            e.stress[k],
                            s_weight,
                            divisor[2],
                        );
                    }
                }
            }
            first += n;
        }
        if let Some(pull) = loss.pull(params.len()) {
            sums[22] = pull.iter().zip(&params).map(|(a, p)| 0.5 * a * p * p).sum();
        }
        sums[0] = (0..7).map(|k| sums[3 + 3 * k]).sum::<f64>() + sums[22];
        let got = loss.value_of(&sums, frames.len(), first);
        assert!((got.loss - want.loss).abs() < 1e-12 * (1.0 + want.loss), "{options:?}");
        assert_eq!(got.rows.len(), want.rows.len());
        for (got, want) in got.rows.iter().zip(&want.rows) {
            let flags = |row: &Row| (row.tag, row.errors.count, row.has_loss, row.logged, row.batches);
            assert_eq!(flags(got), flags(want), "{options:?}");
            for (a, b) in [
                (got.errors.absolute, want.errors.absolute),
                (got.errors.square, want.errors.square),
                (got.loss, want.loss),
            ] {
                assert!((a - b).abs() < 1e-12 * (1.0 + b.abs()), "{options:?} {}: {a} {b}", got.tag);
            }
        }
    }
}
