//! What a test skips is noted for the list at the end (`common/skip.rs`).

mod common;

use common::{skip, take_skipped};
use std::process::Command;

/// Set where this program is started by its own test, so that its notes are not those of the real run.
const CHILD: &str = "PHALANX_TEST_SKIPS";

#[test]
fn what_is_skipped_is_listed_once_with_its_reason_and_notes_of_earlier_runs_are_not() {
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_entry", "--nocapture"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    assert!(child.status.success(), "{child:?}");
}

/// Does something in the child alone.
#[test]
fn child_entry() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    let folder = std::env::current_exe().unwrap().ancestors().nth(3).unwrap().join("tmp/skipped");
    std::fs::create_dir_all(&folder).unwrap();
    // No process of these numbers ever began at that time.
    let old = folder.join("1-0");
    std::fs::write(&old, "gpu\tan_old_test\tan old reason\n").unwrap();
    skip("no such\nlauncher");
    let listed = take_skipped();
    assert_eq!(listed.len(), 1, "{listed:?}");
    let [program, test, reason] = &listed[0];
    assert!(program == "skips" && reason == "no such launcher", "{listed:?}");
    assert!(test == "child_entry" || test.starts_with("tests/skips.rs:"), "{test}");
    assert!(!old.exists());
    assert_eq!(take_skipped(), Vec::<[String; 3]>::new());
}
