//! Files that say what cannot be: sizes that no memory holds, checkpoints whose checksum fits and whose numbers do not, limits
//! of the system, names that would forge a log. Each is an error in words, before memory is taken or a step is made.

mod common;

use common::{Ended, Place, npy_of, small_input};
use phalanx::checkpoint::{self, Array, Checkpoint};
use serde_json::{Value, json};
use std::process::Command;

/// `dp` with little memory to take: whoever asks for more is not killed, but ends with another status.
fn in_small_memory(place: &Place, line: &str) -> Ended {
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -v 6000000; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_dp")]);
    command.args(line.split_whitespace()).current_dir(place.path(".")).env("OMP_NUM_THREADS", "1");
    command.output().unwrap().into()
}

#[test]
fn sizes_that_no_memory_holds_are_refused_by_key() {
    let widths = json!([100_000, 100_000, 100_000]);
    let cases: [(&str, Value, &[&str]); 3] = [
        ("/model/fitting_net/neuron", widths.clone(), &["model.fitting_net.neuron", "GB of memory"]),
        ("/model/descriptor/neuron", widths, &["model.descriptor.neuron", "GB of memory"]),
        (
            "/training/gradient_accumulation",
            json!(1_000_000_000_000u64),
            &["training.gradient_accumulation: 1000000000000 batches", "GB of memory"],
        ),
    ];
    for (pointer, value, texts) in cases {
        let place = Place::with_data();
        let mut input = small_input(10, 10);
        let (section, key) = pointer.rsplit_once('/').unwrap();
        input.pointer_mut(section).unwrap()[key] = value;
        place.input("input.json", &input);
        in_small_memory(&place, "train input.json").fails(texts);
    }
    let place = Place::with_data();
    let mut input = small_input(10, 10);
    input["_comment"] = json!("x".repeat(20 << 20));
    place.input("input.json", &input);
    in_small_memory(&place, "train input.json").fails(&["input.json: 20 MB are too much for an input file"]);
}

#[test]
fn headers_that_promise_too_much_are_refused() {
    let place = Place::with_data();
    place.input("input.json", &small_input(10, 10));
    // Version 2 has four bytes for the length of the header; the file is as long as it says, and empty.
    let mut header = b"\x93NUMPY\x02\x00".to_vec();
    header.extend(3_900_000_000u32.to_le_bytes());
    place.write("train/set.000/coord.npy", header);
    let file = std::fs::File::options().write(true).open(place.path("train/set.000/coord.npy")).unwrap();
    file.set_len(4_000_000_000).unwrap();
    in_small_memory(&place, "train input.json").fails(&["coord.npy", "a header of 3900000000 bytes"]);
    drop(file);
    for shape in [vec![1 << 40, 24], vec![usize::MAX / 2, 24], vec![1 << 62, 1 << 62]] {
        place.write("train/set.000/coord.npy", npy_of("<f8", &shape, &[0; 64]));
        in_small_memory(&place, "train input.json").fails(&["coord.npy"]);
    }
}

/// `many_atoms.hdf5` was written with h5py 3.14.0: `create_dataset("type.raw", shape=(1 << 40,), dtype="i4", chunks=(1024,))`, of
/// which no chunk is there, and a `set.000/coord.npy` of one frame.
#[test]
fn dimensions_of_hdf5_are_looked_at_before_memory_is_taken() {
    let place = Place::with_data();
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/many_atoms.hdf5");
    std::fs::copy(file, place.path("data.hdf5")).unwrap();
    let mut input = small_input(10, 10);
    input["training"]["training_data"]["systems"] = json!(["data.hdf5"]);
    place.input("input.json", &input);
    in_small_memory(&place, "train input.json").fails(&[
        "data.hdf5#/type.raw",
        "atoms would need",
        "GB of memory",
    ]);
}

/// Changes to a checkpoint that leave it whole, with a checksum that fits.
type Change = (&'static str, fn(&mut Checkpoint));

fn array<'a>(checkpoint: &'a mut Checkpoint, name: &str) -> &'a mut Vec<f64> {
    let found = checkpoint.arrays.iter_mut().find(|(n, _)| n == name).map(|(_, array)| array);
    match found {
        Some(Array::F64(x)) => x,
        _ => panic!("no array {name}"),
    }
}

const CHANGES: &[Change] = &[
    ("no davg", |c| c.header["statistics"]["davg"] = json!([])),
    ("a short dstd", |c| drop(c.header["statistics"]["dstd"].as_array_mut().unwrap().pop())),
    ("a long bias", |c| c.header["statistics"]["bias"] = json!([1.0, 2.0, 3.0])),
    ("dstd of zero", |c| c.header["statistics"]["dstd"][0][0] = json!(0.0)),
    ("statistics of another model", |c| c.header["statistics"]["fparam_avg"] = json!([1.0])),
    ("no statistics", |c| c.header["statistics"] = json!(7)),
    ("no distance", |c| c.header["min_distance"] = json!(-1.0)),
    ("sel auto", |c| c.header["input"]["model"]["descriptor"]["sel"] = json!("auto")),
    ("more types", |c| c.header["input"]["model"]["type_map"] = json!(["O", "H", "Na"])),
    ("fewer params", |c| array(c, "params").truncate(3)),
    ("params of nan", |c| array(c, "params")[3] = f64::NAN),
    ("a wider net", |c| c.header["input"]["model"]["fitting_net"]["neuron"] = json!([6, 60])),
    ("an absurd net", |c| {
        c.header["input"]["model"]["fitting_net"]["neuron"] = json!([100_000, 100_000, 100_000, 100_000]);
    }),
];

/// Only a restart looks at these.
const OF_TRAINING: &[Change] = &[
    ("fewer moments", |c| array(c, "first_moment").truncate(3)),
    ("moments as bytes", |c| c.arrays[1].1 = Array::U8(vec![1, 2, 3])),
    ("no moments", |c| c.arrays.truncate(1)),
    ("no draws", |c| c.header["draws"] = json!("many")),
];

#[test]
fn a_checkpoint_whose_checksum_fits_and_whose_numbers_do_not_is_refused() {
    let place = Place::with_data();
    place.input("input.json", &small_input(10, 10));
    place.dp("train input.json").succeeds();
    let good = checkpoint::load(&place.path("model.ckpt")).unwrap();
    place.input("input.json", &small_input(20, 10));
    let restart = "train input.json --restart bad.ckpt-10.phx";
    let all: &[&str] = &[restart, "freeze -c bad.ckpt-10.phx -o x.dp", "test -m bad.ckpt-10.phx -s valid"];
    for (changes, lines) in [(CHANGES, all), (OF_TRAINING, &all[..1])] {
        for (name, change) in changes {
            let mut bad = good.clone();
            change(&mut bad);
            checkpoint::save(&place.path("bad.ckpt"), 10, &bad, 0).unwrap();
            for line in lines {
                let ended = in_small_memory(&place, line);
                assert_eq!(ended.code, Some(1), "{name}: {line}: {}", ended.stderr);
                assert!(!ended.stderr.contains("panicked"), "{name}: {line}: {}", ended.stderr);
                assert!(ended.stderr.contains("error: "), "{name}: {line}: {}", ended.stderr);
            }
        }
    }
    // An engine's state that does not fit is chosen anew.
    for engine in [json!(7), json!({"terms": [1]}), json!({"panels": "none"})] {
        let mut odd = good.clone();
        odd.header["engine"] = engine;
        checkpoint::save(&place.path("bad.ckpt"), 10, &odd, 0).unwrap();
        let ended = in_small_memory(&place, restart);
        assert!(!ended.stderr.contains("panicked"), "{}", ended.stderr);
        assert!(ended.code == Some(0) || ended.code == Some(1), "{}", ended.stderr);
    }
}

#[test]
fn a_limit_on_the_size_of_files_is_an_error_with_the_name_of_the_file() {
    let place = Place::with_data();
    place.input("input.json", &small_input(10, 10));
    let mut command = Command::new("bash");
    command.args(["-c", "ulimit -f 2; exec \"$0\" train input.json", env!("CARGO_BIN_EXE_dp")]);
    command.current_dir(place.path(".")).env("OMP_NUM_THREADS", "1");
    let ended: Ended = command.output().unwrap().into();
    ended.fails(&["cannot write", "File too large"]);
    let left = std::fs::read_dir(place.path(".")).unwrap().flatten();
    let left: Vec<String> = left.map(|entry| entry.file_name().into_string().unwrap()).collect();
    assert!(!left.iter().any(|name| name.ends_with(".tmp") || name.ends_with(".lock")), "{left:?}");
}

#[test]
fn a_folder_that_cannot_be_written_into_is_noticed_before_training() {
    let place = Place::with_data();
    for (key, value) in
        [("save_ckpt", "train/type.raw/model.ckpt"), ("disp_file", "train/type.raw/lcurve.out")]
    {
        let mut input = small_input(10, 10);
        input["training"][key] = json!(value);
        place.input("input.json", &input);
        let ended = place.dp("train input.json").fails(&["train/type.raw: cannot create the folder"]);
        assert!(!ended.stderr.contains("Start to train"), "{}", ended.stderr);
    }
}

#[test]
fn names_from_outside_cannot_forge_the_log() {
    let place = Place::with_data();
    let name = "train\u{1b}[2K\r[2026-01-01 00:00:00,000] DEEPMD INFO    all is well";
    std::fs::rename(place.path("train"), place.path(name)).unwrap();
    let mut input = small_input(10, 10);
    input["training"]["training_data"]["systems"] = json!([name]);
    place.input("input.json", &input);
    let ended = place.dp("train input.json -l train.log").succeeds();
    let log = place.text("train.log");
    for text in [&ended.stderr, &log] {
        assert!(!text.contains('\u{1b}') && !text.contains('\r'), "{text}");
        assert!(text.contains("\\x1b[2K\\x0d"), "{text}");
    }
    input["training"]["training_data"]["systems"] = json!(["absent\u{1b}[2J"]);
    place.input("input.json", &input);
    let ended =
        place.dp("train input.json -l train.log").fails(&["error: ", "absent\\x1b[2J: no such system"]);
    assert!(!ended.stderr.contains('\u{1b}'));
    // The log holds the error too.
    assert!(place.text("train.log").contains("ERROR"), "{}", place.text("train.log"));
    assert!(place.text("train.log").contains("absent\\x1b[2J: no such system"));
}
