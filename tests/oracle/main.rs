//! Agreement with DeePMD-kit: every case folder under `tests/golden/se_e2_a` and `$PHALANX_ORACLE`, one line each
//! with the worst deviation.
//!
//! A case holds an input, the model before training with its statistics, its predictions, the gradient at step 0, a
//! training trace and the predictions after it. The statistics are computed here from the data, the rest by the
//! reference engine and by the CPU engine on both of its paths, and compared. With `PHALANX_DEVICE=cuda` the CUDA engine,
//! on both of its paths, takes the place of the others.
//!
//! Agreement with PiNN: the same for the folders under `tests/golden/pinn` and `$PHALANX_ORACLE/pinn`.

mod arrays;
mod case;
mod pinn;
mod pinn_options;
#[path = "../common/skip.rs"]
mod skip;

use case::{Case, Outcome};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The folder that a variable names, or a default beside the project.
fn folder(variable: &str, default: &str) -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    std::env::var_os(variable).map_or_else(|| here.join(default), PathBuf::from)
}

/// The folders of a folder that hold a file of this name; none where it does not exist.
fn cases(folder: &Path, file: &str) -> Option<Vec<PathBuf>> {
    let entries = std::fs::read_dir(folder).ok()?;
    let mut folders: Vec<PathBuf> =
        entries.flatten().map(|e| e.path()).filter(|p| p.join(file).exists()).collect();
    folders.sort();
    Some(folders)
}

/// Cases that passed, failed and were skipped.
#[derive(Default)]
struct Tally([usize; 3]);

impl Tally {
    fn run(&mut self, folder: &Path, filter: &[String], case: impl Fn() -> Outcome) {
        let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if !filter.is_empty() && !filter.iter().any(|f| name.contains(f.as_str())) {
            return;
        }
        let (place, word, line) = match case() {
            Outcome::Passed(line) => (0, "ok", line),
            Outcome::Failed(line) => (1, "FAILED", line),
            Outcome::Unsupported(line) => (2, "unsupported", line),
        };
        self.0[place] += 1;
        if word == "unsupported" {
            return skip::skip_part(&name, line);
        }
        println!("{name:<22} {word:<12} {line}");
    }
}

fn main() -> ExitCode {
    // Cargo passes filters and flags of the usual harness; a filter chooses cases by name.
    let filter: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    let mut tally = Tally::default();
    let golden = folder("PHALANX_GOLDEN", "tests/golden");
    let oracle = folder("PHALANX_ORACLE", "../shared/oracle");
    let data = folder("PHALANX_DATA", "../shared/data");
    let own_data = golden.join("se_e2_a/data");
    for (cases, data, must) in [(golden.join("se_e2_a"), own_data, true), (oracle.clone(), data, false)] {
        for case in found(&mut tally, &cases, "input.json", must) {
            tally.run(&case, &filter, || Case::run(&case, &data));
        }
    }
    for (cases, must) in [(golden.join("pinn"), true), (oracle.join("pinn"), false)] {
        for case in found(&mut tally, &cases, "oracle.json", must) {
            tally.run(&case, &filter, || pinn::run(&case));
        }
    }
    let [passed, failed, skipped] = tally.0;
    println!("{passed} passed, {failed} failed, {skipped} skipped");
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The cases of a folder. None is a failure where there must be some, and skipped elsewhere.
fn found(tally: &mut Tally, folder: &Path, file: &str, must: bool) -> Vec<PathBuf> {
    let found = cases(folder, file).unwrap_or_default();
    if found.is_empty() {
        tally.0[if must { 1 } else { 2 }] += 1;
        let why = format!("no case under {} (PHALANX_ORACLE names the folder of others)", folder.display());
        if must {
            println!("FAILED: {why}");
        } else {
            skip::skip_part("reference values", why);
        }
    }
    found
}
