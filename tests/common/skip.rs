//! What cannot run here is skipped by name, with the reason: one way for all tests, those in `src` too.
//!
//! Cargo hides what a test that passes prints. So each skip is noted in a file of this run of cargo, under the target
//! folder, and the last test program, `zz_skipped`, shows the list.

#![allow(dead_code)] // each test program uses its own part of this

use std::fmt::Display;
use std::io::Write;
use std::panic::Location;
use std::path::{Path, PathBuf};

/// Notes that the test of this thread, or a part of it, cannot run.
#[track_caller]
pub fn skip(reason: impl Display) {
    let here = Location::caller();
    // With --test-threads=1 tests run on the main thread, which has no name of a test.
    match std::thread::current().name() {
        Some(test) if test != "main" => skip_part(test, reason),
        _ => skip_part(&format!("{}:{}", here.file(), here.line()), reason),
    }
}

/// Notes that something of this name cannot run.
pub fn skip_part(name: &str, reason: impl Display) {
    let reason = reason.to_string().replace(['\n', '\t'], " ");
    println!("{name}: skipped, {reason}");
    let line = format!("{}\t{name}\t{reason}\n", program());
    let file = Run::this().file();
    // One write for each line, as programs and threads write side by side.
    let noted = std::fs::create_dir_all(folder())
        .and_then(|()| std::fs::OpenOptions::new().create(true).append(true).open(&file))
        .and_then(|mut file| file.write_all(line.as_bytes()));
    if let Err(e) = noted {
        eprintln!("{}: {e}", file.display());
    }
}

/// The name of this test program, without the hash that cargo gives it.
fn program() -> String {
    let exe = std::env::current_exe().unwrap_or_default();
    let stem = exe.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    stem.rsplit_once('-').map_or(stem.clone(), |(name, _)| name.to_string())
}

/// Beside `release` and `debug`, where the test programs of all kinds are built: target/release/deps/program.
fn folder() -> PathBuf {
    let exe = std::env::current_exe().unwrap_or_default();
    exe.ancestors().nth(3).unwrap_or(Path::new(".")).join("tmp/skipped")
}

/// A run of cargo: the process that started this one, told from others of its number by the time at which it began.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    process: u32,
    began: String,
}

impl Run {
    pub fn this() -> Run {
        let process = std::os::unix::process::parent_id();
        Run { process, began: began(process).unwrap_or_default() }
    }

    fn file(&self) -> PathBuf {
        folder().join(format!("{}-{}", self.process, self.began))
    }

    fn is_over(&self) -> bool {
        began(self.process).unwrap_or_default() != self.began
    }

    fn of_file(path: &Path) -> Option<Run> {
        let (process, began) = path.file_name()?.to_str()?.split_once('-')?;
        Some(Run { process: process.parse().ok()?, began: began.to_string() })
    }
}

/// When a process began, in ticks since the machine was started; none where it is gone.
fn began(process: u32) -> Option<String> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name in brackets may hold spaces; after it stand the fields from the third on.
    stat.rsplit_once(')')?.1.split_whitespace().nth(19).map(str::to_owned)
}

/// What was skipped in this run so far: program, test and reason. Takes the notes away, with those of runs that are over.
pub fn take_skipped() -> Vec<[String; 3]> {
    let mine = Run::this();
    let text = std::fs::read_to_string(mine.file()).unwrap_or_default();
    for path in std::fs::read_dir(folder()).into_iter().flatten().flatten().map(|entry| entry.path()) {
        if Run::of_file(&path).is_none_or(|run| run == mine || run.is_over()) {
            let _ = std::fs::remove_file(path);
        }
    }
    let fields = |line: &str| {
        let mut fields = line.splitn(3, '\t').map(str::to_owned);
        Some([fields.next()?, fields.next()?, fields.next()?])
    };
    text.lines().filter_map(fields).collect()
}
