//! Lists of systems, batch sizes, weights and the summary; HDF5 files; data that others made.

use super::dataset::Dataset;
use super::expand::expand_systems;
use super::field::Wants;
use super::options::{BatchSize, DataOptions, Mix, SystemWeights};
use super::system::System;
use super::testing::{TestSystem, WANTS, message, names, ramp};
use std::path::{Path, PathBuf};

fn options(systems: &[String]) -> DataOptions {
    DataOptions {
        min_pair_dist: 0.0,
        systems: systems.to_vec(),
        search: false,
        patterns: None,
        batch_size: BatchSize::Fixed(1),
        weights: SystemWeights::BySize,
    }
}

/// Systems `a` (2 atoms, 3 frames), `b/c` (4 atoms, 8 frames) and `b/d` (9 atoms, 5 frames) below one folder.
fn tree() -> TestSystem {
    let files = TestSystem::empty();
    for (name, atoms, frames) in [("b/d", 9, 5), ("a", 2, 3), ("b/c", 4, 8)] {
        files.text(&format!("{name}/type.raw"), &"0\n".repeat(atoms)).text(&format!("{name}/nopbc"), "");
        files.npy(&format!("{name}/set.0/coord.npy"), &[frames, 3 * atoms], &ramp(frames, 3 * atoms, 0.0));
    }
    files
}

fn expanded(files: &TestSystem, options: &DataOptions) -> Vec<String> {
    let strip = |path: String| path.replace(&format!("{}/", files.path()), "");
    expand_systems(options).unwrap().into_iter().map(strip).collect()
}

fn dataset(
    files: &TestSystem,
    batch_size: BatchSize,
    weights: SystemWeights,
) -> crate::error::Result<Dataset> {
    let options = DataOptions { batch_size, weights, ..options(&[files.path()]) };
    Dataset::open(&options, &names(&["H"]), &WANTS)
}

#[test]
fn a_folder_stands_for_every_system_below_it() {
    let files = tree();
    assert_eq!(expanded(&files, &options(&[files.path()])), ["a", "b/c", "b/d"]);
    let list = ["b", "a", "b/d"].map(|name| format!("{}/{name}", files.path()));
    assert_eq!(expanded(&files, &options(&list)), ["b/c", "b/d", "a", "b/d"]);
}

#[test]
fn a_system_that_holds_systems_comes_before_them() {
    let files = tree();
    files.text("b/type.raw", "0\n");
    let list = [format!("{}/b", files.path())];
    assert_eq!(expanded(&files, &options(&list)), ["b", "b/c", "b/d"]);
}

#[cfg(unix)]
#[test]
fn a_link_to_a_system_counts_and_a_link_to_a_folder_of_systems_is_not_entered() {
    let (files, others) = (TestSystem::empty(), tree());
    std::os::unix::fs::symlink(others.file("a"), files.file("one")).unwrap();
    std::os::unix::fs::symlink(others.file("b"), files.file("many")).unwrap();
    assert_eq!(expanded(&files, &options(&[files.path()])), ["one"]);
}

#[test]
fn patterns_choose_among_the_systems_below() {
    let files = tree();
    let with =
        |patterns: &[&str]| DataOptions { patterns: Some(names(patterns)), ..options(&[files.path()]) };
    assert_eq!(expanded(&files, &with(&["*"])), ["a", "b/c", "b/d"]);
    assert_eq!(expanded(&files, &with(&["[ad]"])), ["a", "b/d"]);
    assert_eq!(expanded(&files, &with(&["b/*", "c"])), ["b/c", "b/d"]);
    let found = message(expand_systems(&with(&["nothing*"])), &files);
    assert!(found.contains("no system below this folder that matches"), "{found}");
    let found = message(expand_systems(&with(&["a[b"])), &files);
    assert!(found.contains("'a[b' is not a pattern"), "{found}");
}

#[test]
fn lists_that_name_no_system_are_refused() {
    let files = TestSystem::empty();
    let refused = |list: &[String], wanted: &str| {
        let found = message(expand_systems(&options(list)), &files);
        assert!(found.contains(wanted), "{found}");
    };
    refused(&[], "systems: the list is empty");
    refused(&[files.path()], ".: found no system in or below this folder");
    refused(&["nowhere".into()], "nowhere: no such system");
    refused(&["data_*".into()], "put patterns into rglob_patterns");
    files.text("file", "hello");
    refused(&[format!("{}/file", files.path())], "file: cannot read as HDF5");
}

#[test]
fn batch_sizes_follow_the_rule() {
    let files = tree();
    let sizes = |rule| dataset(&files, rule, SystemWeights::Uniform).unwrap().batch_sizes;
    assert_eq!(sizes(BatchSize::Fixed(3)), [3, 3, 3]);
    assert_eq!(sizes(BatchSize::List(vec![1, 2, 3])), [1, 2, 3]);
    assert_eq!(sizes(BatchSize::Auto(32)), [16, 8, 4]);
    assert_eq!(sizes(BatchSize::Max(32)), [16, 8, 3]);
    assert_eq!(sizes(BatchSize::Max(3)), [1, 1, 1]);
    let filtered = dataset(&files, BatchSize::Filter(8), SystemWeights::Uniform).unwrap();
    assert_eq!((filtered.systems.len(), filtered.batch_sizes), (2, vec![4, 2]));
    let refused = |rule, wanted: &str| {
        let found = message(dataset(&files, rule, SystemWeights::Uniform), &files);
        assert!(found.contains(wanted), "{found}");
    };
    refused(BatchSize::List(vec![1, 2]), "batch_size: 2 numbers found, 3 systems");
    refused(BatchSize::Fixed(0), "batch_size: 0 found");
    refused(BatchSize::Filter(1), "all 3 systems have more than 1 atoms");
}

#[track_caller]
fn close(found: &[f64], want: &[f64]) {
    assert_eq!(found.len(), want.len());
    assert!(found.iter().zip(want).all(|(a, b)| (a - b).abs() < 1e-12), "{found:?}, wanted {want:?}");
}

/// The numbers of batches are 2, 4 and 3. Blocks and lists: what DeePMD-kit 3.2 gives for the same.
#[test]
fn weights_follow_the_rule() {
    let files = tree();
    let weights = |rule| dataset(&files, BatchSize::Fixed(2), rule).unwrap().weights;
    close(&weights(SystemWeights::Uniform), &[1.0 / 3.0; 3]);
    close(&weights(SystemWeights::BySize), &[2.0 / 9.0, 4.0 / 9.0, 3.0 / 9.0]);
    let blocks = vec![(0, 1, 1.0), (1, 3, 3.0)];
    close(&weights(SystemWeights::Blocks(blocks)), &[0.25, 0.75 * 4.0 / 7.0, 0.75 * 3.0 / 7.0]);
    close(&weights(SystemWeights::Blocks(vec![(1, 9, 2.0)])), &[0.0, 4.0 / 7.0, 3.0 / 7.0]);
    close(&weights(SystemWeights::Explicit(vec![0.5, 0.5, 0.0])), &[0.5, 0.5, 0.0]);
    close(&weights(SystemWeights::Explicit(vec![-1.0, 0.4, -1.0])), &[0.24, 0.4, 0.36]);
    let refused = |rule, wanted: &str| {
        let found = message(dataset(&files, BatchSize::Fixed(2), rule), &files);
        assert!(found.contains(wanted), "{found}");
    };
    refused(SystemWeights::Explicit(vec![0.5, 0.5]), "sys_probs: 2 numbers found, 3 systems");
    refused(SystemWeights::Explicit(vec![0.5, 0.4, 0.0]), "sys_probs: the numbers add up to 0.9, wanted 1");
    refused(SystemWeights::Explicit(vec![0.5, 0.4, 0.2]), "wanted at most 1");
    refused(SystemWeights::Explicit(vec![0.5, 0.5, -1.0]), "leave nothing for the negative ones");
    refused(SystemWeights::Explicit(vec![f64::NAN, 0.5, 0.5]), "sys_probs: found NaN");
    refused(
        SystemWeights::Blocks(vec![(3, 4, 1.0)]),
        "auto_prob: block 3:4:1: this holds none of the 3 systems",
    );
    refused(SystemWeights::Blocks(vec![(0, 3, -1.0)]), "must not be negative");
    refused(SystemWeights::Blocks(vec![(0, 3, 0.0)]), "add up to 0");
}

#[test]
fn an_epoch_lasts_until_every_system_was_seen_whole() {
    let files = tree();
    let draws = |rule| dataset(&files, BatchSize::Fixed(2), rule).unwrap().draws_per_epoch();
    assert_eq!(draws(SystemWeights::BySize), 9);
    assert_eq!(draws(SystemWeights::Explicit(vec![0.5, 0.5, 0.0])), 8);
    assert_eq!(draws(SystemWeights::Explicit(vec![0.1, 0.8, 0.1])), 30);
}

/// Systems of 2, 4 and 9 atoms and of 3, 8 and 5 frames.
#[test]
fn batches_that_mix_systems_follow_the_rule() {
    let files = tree();
    let mixing = |mix| dataset(&files, BatchSize::Mixed(mix), SystemWeights::BySize).unwrap();
    let frames = mixing(Mix::Frames(4));
    assert_eq!((&frames.batch_sizes[..], frames.mixes), (&[4, 4, 4][..], Some(Mix::Frames(4))));
    close(&frames.weights, &[1.0 / 5.0, 2.0 / 5.0, 2.0 / 5.0]);
    assert_eq!([0, 1, 2].map(|system| frames.largest_batch(system)), [(4, 8), (4, 16), (4, 36)]);
    assert_eq!(frames.draws_per_epoch(), 5, "8 frames of a system that is every 2.5th one, 4 a draw");
    let atoms = mixing(Mix::Atoms(20));
    assert_eq!(atoms.batch_sizes, [10, 5, 2]);
    close(&atoms.weights, &[3.0 / 16.0, 8.0 / 16.0, 5.0 / 16.0]);
    assert_eq!([0, 1, 2].map(|system| atoms.largest_batch(system)), [(10, 20), (9, 20), (6, 20)]);
    assert_eq!(atoms.draws_per_epoch(), 5, "16 frames of 5.1875 atoms");
    let all = [mixing(Mix::Frames(1 << 40)).mixes, mixing(Mix::Atoms(1 << 40)).mixes];
    assert_eq!(all, [Some(Mix::Frames(16)), Some(Mix::Atoms(83))], "no more than there is");
    assert_eq!(mixing(Mix::Atoms(5)).largest_batch(2), (1, 9), "a frame that is too large comes alone");
}

#[test]
fn labels_that_some_systems_lack_cannot_be_mixed() {
    let files = tree();
    files.npy("b/c/set.0/energy.npy", &[8], &[1.0; 8]).npy("b/d/set.0/energy.npy", &[5], &[1.0; 5]);
    let opened = dataset(&files, BatchSize::Mixed(Mix::Frames(2)), SystemWeights::BySize);
    let found = message(opened, &files);
    let wanted = "batches mix the frames of all systems, and a has no such labels as b/c/set.0/energy.npy";
    assert!(found.contains(wanted), "{found}");
    files.npy("a/set.0/energy.npy", &[3], &[1.0; 3]);
    assert!(dataset(&files, BatchSize::Mixed(Mix::Frames(2)), SystemWeights::BySize).is_ok());
}

#[test]
fn the_summary_has_one_row_for_each_system_and_stops_at_its_limit() {
    let files = tree();
    let dataset = dataset(&files, BatchSize::Fixed(2), SystemWeights::BySize).unwrap();
    let lines = dataset.summary("training", 10);
    assert!(lines[0].starts_with("---Summary of DataSystem: training") && lines[0].len() == 86);
    assert_eq!(lines[1], "Found 3 system(s), 16 frames:");
    assert_eq!(
        lines[2].split_whitespace().collect::<Vec<_>>(),
        ["system", "natoms", "bch_sz", "n_bch", "prob", "pbc"]
    );
    assert!(lines[4].ends_with("b/c       4       2       4  4.444e-01    F"), "{}", lines[4]);
    assert!(lines[2..6].iter().all(|line| line.len() == lines[2].len()), "columns are aligned");
    assert_eq!(lines.len(), 7);
    let short = dataset.summary("training", 2);
    assert_eq!((short.len(), short[4].trim()), (6, "... and 2 more"));
}

#[test]
fn small_nan_is_found_in_any_of_many_systems() {
    let files = tree();
    files.npy("b/d/set.0/coord.npy", &[1, 27], &[f64::INFINITY; 27]);
    let dataset = dataset(&files, BatchSize::Fixed(2), SystemWeights::BySize).unwrap();
    let found = message(dataset.check_finite(&|_| ()), &files);
    assert!(found.starts_with("b/d/set.0/coord.npy: frame 0: found inf"), "{found}");
}

fn golden() -> String {
    format!("{}/tests/data/systems.hdf5", env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn an_hdf5_file_stands_for_every_system_in_it() {
    let file = golden();
    let all = expand_systems(&options(std::slice::from_ref(&file))).unwrap();
    assert_eq!(all, ["deep", "deep/mixed", "water"].map(|group| format!("{file}#/{group}")));
    let below = expand_systems(&options(&[format!("{file}#/deep/mixed")])).unwrap();
    assert_eq!(below, [format!("{file}#/deep/mixed")]);
}

#[test]
fn hdf5_frames_are_those_that_were_written() {
    let system = System::open(&format!("{}#/water", golden()), &names(&["H", "O"]), &WANTS).unwrap();
    assert_eq!((system.n_frames, system.pbc, &*system.types), (5, true, &[1, 0, 0][..]));
    for (index, first, row) in [(0, 0.0, 0), (1, 0.0, 1), (2, 0.0, 2), (3, 20.0, 0), (4, 20.0, 1)] {
        let frame = system.read_frame(index).unwrap();
        assert_eq!(frame.coord, ramp(3, 9, first)[9 * row..9 * row + 9], "frame {index}");
        assert_eq!(frame.labels.energy, Some(ramp(3, 1, first - 100.0)[row]));
        assert_eq!(frame.labels.force.unwrap(), ramp(3, 9, first + 0.5)[9 * row..9 * row + 9]);
        assert_eq!(frame.cell, Some([9.0, 0.0, 0.0, 1.0, 9.0, 0.0, 0.0, 0.0, 9.0]));
    }
    system.check_finite(&|_| ()).unwrap();
}

#[test]
fn hdf5_holds_mixed_types_and_open_boundaries() {
    let system = System::open(&format!("{}#/deep/mixed", golden()), &names(&["O", "H"]), &WANTS).unwrap();
    assert!(system.mixed && !system.pbc);
    assert_eq!(*system.read_frame(0).unwrap().types, [0, 1, -1]);
    assert_eq!(*system.read_frame(1).unwrap().types, [1, 1, 0]);
    assert_eq!(system.read_frame(1).unwrap().cell, None);
}

#[test]
fn hdf5_places_are_named_in_errors() {
    let refused = |path: String, wants: &Wants, wanted: &str| {
        let found = System::open(&path, &names(&["O", "H"]), wants).err().unwrap().to_string();
        assert!(found.contains(wanted), "{found}");
    };
    refused(format!("{}#/air", golden()), &WANTS, "systems.hdf5#/air: cannot read HDF5");
    refused(golden(), &WANTS, "systems.hdf5: found no dataset type.raw in this group");
    let wants = Wants { numb_fparam: 1, ..WANTS };
    refused(format!("{}#/water", golden()), &wants, "systems.hdf5#/water/set.000/fparam.npy: not found");
}

/// `$PHALANX_DATA`, or the data beside the project; `None` where it is not there.
fn shared_data() -> Option<PathBuf> {
    let default = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/data");
    let folder = std::env::var_os("PHALANX_DATA").map_or_else(default, PathBuf::from);
    if !folder.join("water").is_dir() {
        crate::skip::skip(format!("no data in {}", folder.display()));
        return None;
    }
    Some(folder)
}

#[test]
fn data_that_deepmd_kit_users_share_opens_and_is_sound() {
    let Some(folder) = shared_data() else { return };
    for (part, map, systems) in
        [("tiny", vec!["A", "B", "C", "H", "O", "N"], 4), ("water", vec!["O", "H"], 4)]
    {
        let mut type_map = names(&map);
        let path = folder.join(part).to_str().unwrap().to_owned();
        // The tiny systems name types of their own.
        for system in expand_systems(&options(std::slice::from_ref(&path))).unwrap() {
            let text = std::fs::read_to_string(format!("{system}/type_map.raw")).unwrap_or_default();
            type_map.extend(text.split_whitespace().map(str::to_owned));
        }
        let dataset = Dataset::open(&options(&[path]), &type_map, &WANTS).unwrap();
        assert_eq!(dataset.systems.len(), systems);
        dataset.check_finite(&|_| ()).unwrap();
        for system in &dataset.systems {
            let frame = system.read_frame(system.n_frames - 1).unwrap();
            assert_eq!(frame.coord.len(), 3 * system.n_atoms);
            assert!(frame.labels.energy.is_some() && frame.cell.is_some() == system.pbc);
        }
    }
}

#[test]
#[ignore = "a measurement: cargo test --release -- --ignored --nocapture twenty_thousand"]
fn twenty_thousand_small_systems_open_in_seconds() {
    let files = TestSystem::empty();
    for i in 0..20_000 {
        let name = format!("{:03}/{i:05}", i / 100);
        files.text(&format!("{name}/type.raw"), "0\n1\n1\n").text(&format!("{name}/type_map.raw"), "O\nH\n");
        files.set(&format!("{name}/set.000"), 2, i as f64);
    }
    let resident_mb = || {
        let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
        text.split_whitespace().nth(1).and_then(|n| n.parse::<f64>().ok()).unwrap_or(0.0) * 4096e-6
    };
    let (before_mb, start) = (resident_mb(), std::time::Instant::now());
    let dataset = Dataset::open(&options(&[files.path()]), &names(&["O", "H"]), &WANTS).unwrap();
    let (open_s, grown_mb) = (start.elapsed().as_secs_f64(), resident_mb() - before_mb);
    let start = std::time::Instant::now();
    dataset.check_finite(&|_| ()).unwrap();
    println!(
        "20,000 systems: open {open_s:.2} s, {grown_mb:.0} MB; scan {:.2} s",
        start.elapsed().as_secs_f64()
    );
    assert_eq!(dataset.systems.len(), 20_000);
    assert!(open_s < 20.0);
}
