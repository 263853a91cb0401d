use super::*;
use crate::data::{System, Wants};

use std::path::PathBuf;

/// Made by tests/golden/lmdb/make.py, and read by DeePMD-kit.
fn golden() -> String {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/lmdb/frames.lmdb");
    folder.to_string_lossy().into_owned()
}

fn names(list: &[&str]) -> Vec<String> {
    list.iter().map(|name| name.to_string()).collect()
}

fn wants() -> Wants {
    Wants { energy: true, force: true, virial: true, ..Wants::default() }
}

fn open(group: &str) -> System {
    System::open(&format!("{}#{group}", golden()), &names(&["O", "H"]), &wants()).unwrap()
}

#[test]
fn frames_with_as_many_atoms_and_the_same_labels_are_a_system() {
    let found = systems_in_folder(&golden()).unwrap();
    let groups: Vec<&str> = found.iter().map(|path| path.rsplit_once('#').unwrap().1).collect();
    assert_eq!(groups, ["2", "3", "40.0", "40.1"]);
    assert_eq!(["2", "3", "40.0", "40.1"].map(|group| open(group).n_frames), [5, 2, 3, 2]);
    assert!(open("2").pbc && !open("3").pbc, "frames without a cell have open boundaries");
    assert!(open("2").mixed);
}

#[test]
fn numbers_of_every_type_and_frames_of_every_length_are_read() {
    for (group, frames, n) in [
        ("2", vec![0, 1, 5, 10, 11], 2),
        ("3", vec![2, 7], 3),
        ("40.0", vec![3, 6, 8], 40),
        ("40.1", vec![4, 9], 40),
    ] {
        let system = open(group);
        for (at, k) in frames.into_iter().enumerate() {
            let frame = system.read_frame(at).unwrap();
            let coord = |i: usize| k as f64 + 0.25 * (i / 3) as f64 + 0.125 * (i % 3) as f64;
            assert_eq!(frame.coord, (0..3 * n).map(coord).collect::<Vec<_>>());
            assert_eq!(frame.labels.force.unwrap(), (0..3 * n).map(|i| coord(i) - 7.0).collect::<Vec<_>>());
            assert_eq!(frame.labels.energy, Some(-1.5 * k as f64));
            // Types are H, O there and O, H in the model.
            assert_eq!(frame.types.to_vec(), (0..n).map(|i| 1 - (i as i32 + k) % 2).collect::<Vec<_>>());
            assert_eq!(frame.cell.is_some(), n != 3);
            assert_eq!(frame.labels.virial.is_some(), group == "40.1");
        }
    }
}

#[test]
fn a_damaged_database_is_an_error_whatever_is_damaged() {
    let bytes = std::fs::read(Path::new(&golden()).join(FILE)).unwrap();
    let files = tempfile::tempdir().unwrap();
    let folder = files.path().join("bad.lmdb");
    std::fs::create_dir_all(&folder).unwrap();
    let try_all = |bytes: &[u8]| -> Result<()> {
        std::fs::write(folder.join(FILE), bytes).unwrap();
        let data = Database::open(&folder.to_string_lossy())?;
        for k in 0..data.frames.len() {
            data.outline(k)?;
        }
        Ok(())
    };
    assert!(try_all(&bytes).is_ok());
    // None of these may panic; most are errors.
    let mut errors = 0;
    for k in 0..1500 {
        let mut damaged = bytes.clone();
        let at = (k * 7919) % damaged.len();
        damaged[at] ^= 1 << (k % 8);
        errors += usize::from(try_all(&damaged).is_err());
    }
    assert!(errors > 0);
    for end in [0, 10, 100, 4096, 5000, bytes.len() / 2, bytes.len() - 1] {
        let e = try_all(&bytes[..end]).unwrap_err();
        assert!(!e.message().is_empty());
    }
}

#[test]
fn a_database_of_something_else_and_frames_that_are_not_there_are_refused() {
    let e = System::open(&format!("{}#7", golden()), &names(&["O", "H"]), &wants()).err().unwrap();
    assert!(e.message().contains("found no such frames"), "{}", e.message());
    let e = System::open(&format!("{}#2", golden()), &names(&["O"]), &wants())
        .unwrap()
        .read_frame(0)
        .unwrap_err();
    assert!(e.message().contains("which the model does not know"), "{}", e.message());
}
