//! Frames that several ranks of the real `dp train` work on together: `training.ranks_per_frame`.

mod common;

use common::place::{LONG, Place, errors, my_turn, said, succeed};
use common::{Job, write_outputs};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// Parameters and the state of the optimiser.
fn arrays(place: &Place, checkpoint: &str) -> Vec<f64> {
    place.checkpoint(checkpoint).into_numbers().concat()
}

/// `dp train` on `n` ranks, by hand (`shm`, `tcp`) or under an mpirun; None where that is missing.
fn train(place: &Place, n: usize, by: &str, args: &str) -> Option<Vec<Job>> {
    let args = format!("train input.json {args}");
    let env = [("PHALANX_COMM", if by.starts_with("mpirun") { "mpi" } else { by })];
    Some(match by {
        "shm" | "tcp" => place.by_hand(n, &args, &env),
        mpirun => vec![place.launched(&format!("{mpirun} -n {n}"), &args, &env)?],
    })
}

/// Runs a changed input to its end in groups of ranks.
fn run(n: usize, ranks_per_frame: Value, by: &str, changes: &[(&str, Value)]) -> Option<Place> {
    let mut changes = changes.to_vec();
    changes.push(("/training/ranks_per_frame", ranks_per_frame));
    let place = Place::new(&changes);
    train(&place, n, by, "")?.iter_mut().for_each(succeed);
    Some(place)
}

/// Every number of the learning curve.
fn curve(place: &Place) -> Vec<f64> {
    let text = place.read("lcurve.out");
    let rows = text.lines().filter(|line| !line.starts_with('#'));
    rows.flat_map(str::split_whitespace).map(|word| word.parse().unwrap()).collect()
}

fn same(found: &Place, want: &Place, tolerance: f64, about: &str) {
    let headers = [found, want].map(|place| place.checkpoint("model.ckpt").header);
    for key in ["step", "draws", "draws_per_step"] {
        assert_eq!(headers[0][key], headers[1][key], "{about}: {key}");
    }
    let close = |a: &f64, b: &f64, scale: f64| (a - b).abs() <= tolerance * b.abs().max(scale);
    for (k, (a, b)) in arrays(found, "model.ckpt").iter().zip(&arrays(want, "model.ckpt")).enumerate() {
        assert!(close(a, b, 1e-3), "{about}: number {k} of the checkpoint: {a} and {b}");
    }
    let curves = [found, want].map(curve);
    assert_eq!(curves[0].len(), curves[1].len(), "{about}");
    for (k, (a, b)) in curves[0].iter().zip(&curves[1]).enumerate() {
        // The curve shows three digits.
        assert!((a - b).abs() <= 0.011 * b.abs(), "{about}: number {k} of the learning curve: {a} and {b}");
    }
}

#[test]
fn ranks_that_share_a_frame_train_as_one() {
    let _turn = my_turn();
    let full = [
        ("/training/validation_data/numb_btch", json!(3)),
        ("/training/training_data/batch_size", json!(2)),
        ("/validating", json!({"full_validation": true, "validation_freq": 20, "full_val_start": 0})),
    ];
    let want = run(1, json!(1), "shm", &full).unwrap();
    let log = want.read("val.log");
    for (n, by) in [
        (2, "shm"),
        (3, "shm"),
        (4, "tcp"),
        (2, "mpirun.openmpi"),
        (3, "mpirun.openmpi"),
        (3, "mpirun.mpich"),
    ] {
        let Some(found) = run(n, json!("all"), by, &full) else { continue };
        same(&found, &want, 1e-9, &format!("{n} ranks over {by}"));
        assert_eq!(found.read("val.log").lines().count(), log.lines().count(), "{n} ranks over {by}");
    }
}

#[test]
fn groups_of_ranks_have_a_draw_each() {
    let _turn = my_turn();
    let want = run(1, json!(1), "shm", &[("/training/gradient_accumulation", json!(2))]).unwrap();
    for (by, changes) in [
        ("shm", &[][..]),
        ("tcp", &[]),
        ("mpirun.openmpi", &[]),
        // Six draws of one rank that are epochs of the data are as many steps of two groups.
        ("shm", &[("/training/max_ckpt_keep", json!(3))]),
    ] {
        let Some(found) = run(4, json!(2), by, changes) else { continue };
        same(&found, &want, 1e-9, &format!("two groups over {by}"));
    }
    let place = Place::new(&[("/training/ranks_per_frame", json!(2)), ("/training/numb_steps", json!(2))]);
    let mut jobs = train(&place, 4, "shm", "").unwrap();
    jobs.iter_mut().for_each(succeed);
    for line in [
        "ranks per frame:      2",
        "batches a step:       2 (2 groups of ranks)",
        "learning rate is scaled by 2 for 2 batches a step",
        "the first batch in 2 blocks: the largest has",
    ] {
        assert_eq!(jobs[0].lines_with(line).count(), 1, "{line}: {}", said(&jobs[0]));
    }
}

/// A change of the input to a model of another output, and the loss for it.
fn predicting(fitting: Value, loss: Value) -> Vec<(&'static str, Value)> {
    let mut net = json!({"neuron": [8, 8], "seed": 1});
    net.as_object_mut().unwrap().extend(fitting.as_object().unwrap().clone());
    vec![
        ("/model/fitting_net", net),
        ("/loss", loss),
        ("/training/training_data/batch_size", json!(2)),
        ("/training/gradient_accumulation", json!(1)),
        ("/learning_rate/scale_by_worker", json!("none")),
    ]
}

#[test]
fn models_of_other_outputs_take_frames_in_blocks() {
    let _turn = my_turn();
    let dos = json!({"type": "dos", "numb_dos": 3});
    let gap = json!({"type": "property", "property_name": "gap", "task_dim": 2, "intensive": true});
    let kinds = [
        (dos.clone(), json!({"type": "dos", "start_pref_dos": 1, "limit_pref_dos": 1})),
        (gap, json!({"type": "property"})),
        (json!({"type": "dipole"}), json!({"type": "tensor", "pref": 1, "pref_atomic": 0})),
        (json!({"type": "polar"}), json!({"type": "tensor", "pref": 1, "pref_atomic": 1})),
    ];
    for (fitting, loss) in kinds {
        let about = fitting["type"].to_string();
        let run = |n: usize, more: &[(&'static str, Value)], boxes: usize| {
            let mut changes = predicting(fitting.clone(), loss.clone());
            changes.push(("/training/ranks_per_frame", json!("all")));
            changes.extend_from_slice(more);
            let place = Place::new(&changes);
            if boxes > 1 {
                place.pile_up(boxes);
            }
            for (name, frames) in [("a", 5), ("b", 3), ("v", 3)] {
                write_outputs(&place.path(name), frames);
            }
            train(&place, n, "shm", "").unwrap().iter_mut().for_each(succeed);
            place
        };
        let want = run(1, &[], 1);
        for n in [2, 3] {
            same(&run(n, &[], 1), &want, 1e-8, &format!("{about}, {n} ranks"));
        }
        // Frames of 1560 atoms are cut alike for every number of ranks.
        let exact = [("/training/reproducible", json!(true)), ("/training/numb_steps", json!(2))];
        let want = arrays(&run(1, &exact, 130), "model.ckpt");
        assert!(arrays(&run(2, &exact, 130), "model.ckpt") == want, "{about}: two ranks have other bits");
    }
}

#[test]
fn the_bias_of_large_frames_is_shifted_by_all_ranks_alike() {
    let _turn = my_turn();
    let changes = [
        ("/training/numb_steps", json!(2)),
        ("/training/change_bias_after_training", json!(true)),
        ("/training/reproducible", json!(true)),
        ("/training/ranks_per_frame", json!("all")),
    ];
    let said_of = |n: usize| {
        let place = Place::new(&changes);
        place.pile_up(130);
        let mut jobs = train(&place, n, "shm", "").unwrap();
        jobs.iter_mut().for_each(succeed);
        let line = jobs[0].lines_with("energy bias").next().cloned();
        line.expect("a line on the bias").split_once("energy bias").unwrap().1.to_string()
    };
    let want = said_of(1);
    for n in [2, 3] {
        assert_eq!(said_of(n), want, "{n} ranks");
    }
}

#[test]
fn every_optimiser_takes_frames_in_blocks() {
    let _turn = my_turn();
    for optimizer in [json!({"type": "HybridMuon"}), json!({"type": "LKF", "kf_blocksize": 700})] {
        let changes = [("/optimizer", optimizer.clone()), ("/training/numb_steps", json!(4))];
        let want = run(1, json!(1), "shm", &changes).unwrap();
        same(&run(3, json!(3), "shm", &changes).unwrap(), &want, 1e-7, &optimizer.to_string());
    }
}

#[test]
fn a_run_continues_with_another_number_of_ranks_for_a_frame() {
    let _turn = my_turn();
    let want = run(1, json!(1), "shm", &[]).unwrap();
    let found = run(2, json!("all"), "shm", &[]).unwrap();
    for (n, ranks_per_frame) in [(3, json!(3)), (1, json!(1)), (4, json!(4))] {
        found.input(&[("/training/ranks_per_frame", ranks_per_frame)]);
        let mut jobs = train(&found, n, "shm", "--restart model.ckpt-20").unwrap();
        jobs.iter_mut().for_each(succeed);
        assert_eq!(jobs[0].lines_with("continuing after step 20").count(), 1, "{}", said(&jobs[0]));
        same(&found, &want, 1e-9, &format!("{n} ranks from step 20"));
    }
}

/// With more than 1024 atoms, so that frames are cut.
#[test]
fn reproducible_runs_have_the_same_bits_for_every_number_of_ranks_per_frame() {
    let _turn = my_turn();
    let changes = |ranks_per_frame: Value| {
        [
            ("/training/reproducible", json!(true)),
            ("/training/ranks_per_frame", ranks_per_frame),
            ("/training/numb_steps", json!(6)),
            ("/training/disp_freq", json!(1)),
            ("/training/save_freq", json!(3)),
            ("/training/gradient_accumulation", json!(1)),
            ("/learning_rate/scale_by_worker", json!("none")),
        ]
    };
    let place = |ranks_per_frame: Value| {
        let place = Place::new(&changes(ranks_per_frame));
        place.pile_up(130);
        place
    };
    let one = place(json!(1));
    train(&one, 1, "shm", "").unwrap().iter_mut().for_each(succeed);
    let (want, curve) = (arrays(&one, "model.ckpt"), one.read("lcurve.out"));
    assert!(want.iter().all(|x| x.is_finite()) && want.iter().any(|x| *x != 0.0));
    for (n, by) in [(2, "shm"), (3, "tcp"), (4, "shm"), (2, "mpirun.openmpi")] {
        let found = place(json!("all"));
        let Some(mut jobs) = train(&found, n, by, "") else { continue };
        jobs.iter_mut().for_each(succeed);
        assert!(arrays(&found, "model.ckpt") == want, "{n} ranks over {by} have other bits");
        assert_eq!(found.read("lcurve.out"), curve, "{n} ranks over {by}");
        // And from the middle with another number.
        found.input(&changes(json!(1)));
        train(&found, 1, "shm", "--restart model.ckpt-3").unwrap().iter_mut().for_each(succeed);
        assert!(arrays(&found, "model.ckpt") == want, "{n} ranks over {by}, then one");
    }
}

#[test]
fn numbers_of_ranks_that_make_no_groups_are_refused_by_one_message() {
    let _turn = my_turn();
    for (n, ranks_per_frame, message) in [
        (3, json!(2), "training.ranks_per_frame: 3 ranks cannot form groups of 2"),
        (2, json!(4), "training.ranks_per_frame: 2 ranks cannot form groups of 4"),
        (1, json!(2), "training.ranks_per_frame: 1 rank cannot form groups of 2"),
        (2, json!(0), "training.ranks_per_frame"),
        (2, json!("half"), "training.ranks_per_frame"),
    ] {
        let place = Place::new(&[("/training/ranks_per_frame", ranks_per_frame)]);
        let mut jobs = train(&place, n, "shm", "").unwrap();
        for job in &mut jobs {
            assert!(!job.end(LONG), "{message}: {}", said(job));
        }
        let all = jobs.iter().map(said).collect::<Vec<_>>().join("\n");
        assert_eq!(errors(&jobs), 1, "{all}");
        assert!(all.contains(message), "{message} in {all}");
        assert!(place.written().is_empty(), "{:?}", place.written());
    }
}

#[test]
fn a_rank_that_dies_is_named_to_its_group_and_to_the_others() {
    let _turn = my_turn();
    for by in ["shm", "tcp"] {
        let place = Place::new(&[
            ("/training/ranks_per_frame", json!(2)),
            ("/training/numb_steps", json!(100_000_000)),
            ("/training/save_freq", json!(50)),
            ("/training/stall_timeout", json!(5)),
        ]);
        let mut jobs = train(&place, 4, by, "").unwrap();
        let began = Instant::now();
        while !place.path("model.ckpt-50.phx").exists() {
            assert!(began.elapsed() < LONG, "{by}: no checkpoint");
            std::thread::sleep(Duration::from_millis(20));
        }
        jobs[3].child.kill().unwrap();
        let began = Instant::now();
        for job in &mut jobs {
            assert!(!job.end(LONG), "{by}: {}", said(job));
        }
        assert!(began.elapsed() < Duration::from_secs(10), "{by}: {:?}", began.elapsed());
        for job in &jobs[..3] {
            assert!(job.lines_with("rank 3").count() > 0, "{by}: {}", said(job));
        }
    }
}
