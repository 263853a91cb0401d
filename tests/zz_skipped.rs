//! The last test program: shows what was skipped in this run of `cargo test`, and why.
//!
//! Cargo runs test programs in the order of their names; hence this one's. It has no harness, which would hide what it prints.

#[path = "common/skip.rs"]
mod skip;

use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;

fn main() -> ExitCode {
    // Tools that ask for a list of tests find none here.
    if std::env::args().any(|argument| argument == "--list") {
        return ExitCode::SUCCESS;
    }
    println!("\n{}", shown(&skip::take_skipped()));
    if let Some(later) = runs_later() {
        println!(
            "error: tests/{later} runs after this program, so what it skips is not shown: give it another name"
        );
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

/// The list, by reason.
fn shown(skipped: &[[String; 3]]) -> String {
    let mut by_reason: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for [program, test, reason] in skipped {
        by_reason.entry(reason).or_default().insert(format!("{program}: {test}"));
    }
    let tests: BTreeSet<_> = skipped.iter().map(|[program, test, _]| (program, test)).collect();
    let mut text = format!("skipped, as a whole or in part: {} tests\n", tests.len());
    for (reason, tests) in by_reason {
        text += &format!("  {reason}\n");
        tests.iter().for_each(|test| text += &format!("    {test}\n"));
    }
    text
}

/// A test program that comes after this one.
fn runs_later() -> Option<String> {
    let entries = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/tests")).ok()?;
    let names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.as_str() > "zz_skipped.rs").max()
}
