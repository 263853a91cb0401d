use super::*;
use crate::model::pinet::options::*;

fn model() -> PinetModel {
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
fn batch(model: &PinetModel) -> (Vec<PinetFrame>, Vec<PinnLabels>, PinetPrediction) {
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
fn all() -> Vec<ModelOptions> {
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
