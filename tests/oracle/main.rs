//! Agreement with DeePMD-kit: every case folder under `tests/golden/se_e2_a` and `$PHALANX_ORACLE`, one line each
//! with the worst deviation.
//!
//! A case holds an input, the model before training with its statistics, its predictions, the gradient at step 0, a
//! training trace and the predictions after it. The statistics are computed here from the data, the rest by the
//! reference engine and by the CPU engine on both of its paths, and compared. With `PHALANX_DEVICE=cuda` the CUDA engine
//! takes the place of the others.

mod case;

use case::{Case, Outcome};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The folder that a variable names, or a default beside the project.
fn folder(variable: &str, default: &str) -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    std::env::var_os(variable).map_or_else(|| here.join(default), PathBuf::from)
}

/// The case folders of a folder, by name; none where it does not exist.
fn cases(folder: &Path) -> Option<Vec<PathBuf>> {
    let entries = std::fs::read_dir(folder).ok()?;
    let mut folders: Vec<PathBuf> =
        entries.flatten().map(|e| e.path()).filter(|p| p.join("input.json").exists()).collect();
    folders.sort();
    Some(folders)
}

/// Cases that passed, failed and were skipped.
#[derive(Default)]
struct Tally([usize; 3]);

impl Tally {
    fn run(&mut self, folder: &Path, data: &Path, filter: &[String]) {
        let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if !filter.is_empty() && !filter.iter().any(|f| name.contains(f.as_str())) {
            return;
        }
        let (place, word, line) = match Case::run(folder, data) {
            Outcome::Passed(line) => (0, "ok", line),
            Outcome::Failed(line) => (1, "FAILED", line),
            Outcome::Unsupported(line) => (2, "unsupported", line),
        };
        self.0[place] += 1;
        println!("{name:<20} {word:<12} {line}");
    }
}

fn main() -> ExitCode {
    // Cargo passes filters and flags of the usual harness; a filter chooses cases by name.
    let filter: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    let mut tally = Tally::default();
    let golden = folder("PHALANX_GOLDEN", "tests/golden/se_e2_a");
    let own = cases(&golden).unwrap_or_default();
    if own.is_empty() {
        println!("{}: no case found", golden.display());
        return ExitCode::FAILURE;
    }
    for case in own {
        tally.run(&case, &golden.join("data"), &filter);
    }
    let oracle = folder("PHALANX_ORACLE", "../shared/oracle");
    let data = folder("PHALANX_DATA", "../shared/data");
    match cases(&oracle) {
        Some(found) => found.iter().for_each(|case| tally.run(case, &data, &filter)),
        None => {
            println!("oracle: skipped, {} does not exist (set PHALANX_ORACLE)", oracle.display());
            tally.0[2] += 1;
        }
    }
    let [passed, failed, skipped] = tally.0;
    println!("{passed} passed, {failed} failed, {skipped} skipped");
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
