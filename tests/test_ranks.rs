//! `dp test` over ranks of the real program: what one rank prints and writes, to the byte.

mod common;

use common::place::{LONG, Place, errors, my_turn, said, succeed};
use common::{Job, npy};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// A model or system that DeePMD-kit was compared with.
fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/dp_test").join(name)
}

/// `dp test` on `n` ranks, by hand (`shm`, `tcp`) or under a launcher; None where that is missing.
fn start(place: &Place, n: usize, by: &str, args: &str, env: &[(&str, &str)]) -> Option<Vec<Job>> {
    let args = format!("test --device cpu {args}");
    let mut env = env.to_vec();
    match by {
        _ if n == 1 => Some(vec![place.alone(&args, &env)]),
        "shm" | "tcp" => {
            env.push(("PHALANX_COMM", by));
            Some(place.by_hand(n, &args, &env))
        }
        "torchrun" => {
            let line = format!("torchrun --nproc_per_node={n} --master_port={{port}} --no-python");
            Some(vec![place.launched(&line, &args, &env)?])
        }
        mpirun => Some(vec![place.launched(&format!("{mpirun} -n {n}"), &args, &env)?]),
    }
}

/// All lines of the log without their times, and all files that were written.
fn outcome(place: &Place, jobs: &mut [Job]) -> (Vec<String>, BTreeMap<String, Vec<u8>>) {
    jobs.iter_mut().for_each(succeed);
    let lines = jobs.iter().flat_map(|job| &job.said);
    // Some ways to join ranks say where they are, for whoever has to find one that hangs.
    let is_of_all = |text: &&str| !text.contains("processes of ranks");
    let text = |line: &String| {
        line.split_once("DEEPMD ").map(|(_, text)| text).filter(is_of_all).map(str::to_string)
    };
    let files = place.written().into_iter().map(|name| {
        let bytes = std::fs::read(place.path(&name)).unwrap();
        (name, bytes)
    });
    (lines.filter_map(text).collect(), files.collect())
}

/// Numbers of ranks, and what joins them.
const WAYS: [(usize, &str); 3] = [(2, "shm"), (3, "tcp"), (7, "shm")];
const LAUNCHERS: [(usize, &str); 3] = [(2, "mpirun.openmpi"), (3, "mpirun.mpich"), (2, "torchrun")];

/// Compares ranks with one rank in fresh folders.
fn compare(
    ways: &[(usize, &str)],
    prepare: impl Fn(&Place),
    args: &str,
    env: &[(&str, &str)],
) -> BTreeMap<String, Vec<u8>> {
    let run = |n: usize, by: &str| {
        let place = Place::new(&[]);
        prepare(&place);
        start(&place, n, by, args, env).map(|mut jobs| outcome(&place, &mut jobs))
    };
    let (lines, files) = run(1, "").unwrap();
    assert!(!lines.is_empty() && !files.is_empty(), "{lines:?}");
    for &(n, by) in ways {
        let Some(found) = run(n, by) else { continue };
        assert_eq!(found.0, lines, "{args}: {n} ranks, {by}");
        assert!(found.1.keys().eq(files.keys()), "{args}: {n} ranks, {by}: {:?}", found.1.keys());
        for (name, bytes) in &files {
            assert!(found.1[name] == *bytes, "{args}: {n} ranks, {by}: {name} differs");
        }
    }
    files
}

#[test]
fn ranks_print_and_write_what_one_rank_does() {
    let _turn = my_turn();
    let of = |model: &str, systems: &[&str], more: &str| {
        let systems: Vec<String> = systems.iter().map(|name| golden(name).display().to_string()).collect();
        format!("-m {} -s {} -d detail {more}", golden(model).display(), systems.join(" "))
    };
    let two = ["bulk", "cluster"];
    for args in [
        of("one_side.dp", &two, ""),
        of("one_side.dp", &two, "--shuffle-test -r 3 -n 2"),
        of("two_side.dp", &["bulk"], ""), // float32, parameters of frames, no shortest distance
        of("dos.dp", &two, "--atomic"),
        of("property.dp", &two, "--atomic"),
    ] {
        let files = compare(&WAYS, |_| (), &args, &[("DP_INFER_BATCH_SIZE", "20")]);
        assert!(files.keys().all(|name| name.starts_with("detail.")), "{:?}", files.keys());
    }
}

#[test]
fn launchers_make_ranks_of_a_test() {
    let _turn = my_turn();
    let args = format!("-m {} -s {} -d detail", golden("one_side.dp").display(), golden("bulk").display());
    compare(&LAUNCHERS, |_| (), &args, &[]);
}

/// Two frames of 1560 atoms, which are three blocks.
fn write_large(place: &Place) {
    place.pile_up(130);
    let set = place.path("a/set.000");
    for (name, width) in [("dos", 3), ("gap", 2)] {
        let values: Vec<f64> = (0..5 * width).map(|k| k as f64).collect();
        std::fs::write(set.join(format!("{name}.npy")), npy(&[5, width], &values)).unwrap();
    }
}

/// Every number of a file of details.
fn numbers(bytes: &[u8]) -> Vec<f64> {
    let text = std::str::from_utf8(bytes).unwrap();
    let rows = text.lines().filter(|line| !line.starts_with('#'));
    rows.flat_map(str::split_whitespace).map(|word| word.parse().unwrap()).collect()
}

#[test]
fn ranks_share_the_blocks_of_large_frames() {
    let _turn = my_turn();
    for model in ["one_side.dp", "dos.dp", "property.dp"] {
        let args = format!("-m {} -s a -n 2 -d detail", golden(model).display());
        let in_blocks = compare(&WAYS, write_large, &args, &[("DP_INFER_BATCH_SIZE", "1000")]);
        let place = Place::new(&[]);
        write_large(&place);
        let mut alone = [place.alone(&format!("test --device cpu {args}"), &[])];
        let (_, whole) = outcome(&place, &mut alone);
        assert!(in_blocks.keys().eq(whole.keys()));
        let mut largest: f64 = 0.0;
        for (name, bytes) in &whole {
            let (found, want) = (numbers(&in_blocks[name]), numbers(bytes));
            assert_eq!(found.len(), want.len());
            for (found, want) in found.iter().zip(&want) {
                assert!((found - want).abs() <= 1e-9 * want.abs().max(1.0), "{name}: {found} and {want}");
                largest = largest.max(want.abs());
            }
        }
        assert!(largest > 1.0, "{model} predicts something");
    }
}

#[test]
fn one_message_says_why_no_rank_tests() {
    let _turn = my_turn();
    let model = golden("one_side.dp").display().to_string();
    let place = Place::new(&[]);
    // The last of five frames, which is not rank 0's.
    let coord: Vec<f64> = (0..5 * 36).map(|k| if k == 4 * 36 + 5 { f64::NAN } else { k as f64 }).collect();
    std::fs::write(place.path("a/set.000/coord.npy"), npy(&[5, 36], &coord)).unwrap();
    for (args, message) in [
        (format!("-m {model} -s a"), "frame 4: atom 1: the coordinate NaN is not a number"),
        ("-m none.dp -s b".to_string(), "none.dp"),
        (format!("-m {model} -s nowhere"), "nowhere"),
        (format!("-m {model} -s b -d .."), "--detail-file: .. is not the beginning of a file name"),
        (format!("-m {model} -s b -d no/folder"), "no/folder.e.out"),
        (format!("-m {model} -s b --atomic"), "atom_ener.npy"),
        (format!("-m {model} -s b --head one"), "there is no branch one: the model has one task"),
    ] {
        let mut jobs = start(&place, 3, "shm", &args, &[]).unwrap();
        for job in &mut jobs {
            assert!(!job.end(LONG), "{args}: {}", said(job));
        }
        let all = jobs.iter().map(said).collect::<Vec<_>>().join("\n");
        assert_eq!(errors(&jobs), 1, "{args}: {all}");
        assert!(all.contains(message), "{message} in {all}");
    }
}

#[test]
fn ranks_that_cannot_be_joined_do_not_test_alone() {
    let _turn = my_turn();
    let place = Place::new(&[]);
    let args = format!("test --device cpu -m {} -s b -d detail", golden("one_side.dp").display());
    let port = common::free_port().to_string();
    let mut env = vec![("RANK", "0"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "0"), ("LOCAL_WORLD_SIZE", "2")];
    env.extend([("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", &*port), ("PHALANX_COMM_LIMIT", "2")]);
    let mut job = place.alone(&args, &env);
    assert!(!job.end(LONG), "{}", said(&job));
    assert!(job.lines_with("launched 2 ranks").count() > 0, "{}", said(&job));
    assert!(place.written().is_empty(), "{:?}", place.written());
}
