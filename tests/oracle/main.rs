//! Agreement with DeePMD-kit: every case folder under `$PHALANX_ORACLE`, one line each with the worst deviation.
//!
//! A case holds an input, the model before training with its statistics, its predictions, the gradient at step 0, a
//! training trace and the predictions after it. The statistics are computed here from the data, the rest by the
//! reference engine and by the CPU engine on both of its paths, and compared.

mod case;

use case::{Case, Outcome};
use std::path::PathBuf;
use std::process::ExitCode;

/// The folder that a variable names, or a default beside the project.
fn folder(variable: &str, default: &str) -> PathBuf {
    let here = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    std::env::var_os(variable).map_or_else(|| here.join(default), PathBuf::from)
}

fn main() -> ExitCode {
    // Cargo passes filters and flags of the usual harness; a filter chooses cases by name.
    let filter: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    let oracle = folder("PHALANX_ORACLE", "../shared/oracle");
    let data = folder("PHALANX_DATA", "../shared/data");
    let Ok(entries) = std::fs::read_dir(&oracle) else {
        println!("oracle: skipped, {} does not exist (set PHALANX_ORACLE)", oracle.display());
        println!("0 passed, 0 failed, 1 skipped");
        return ExitCode::SUCCESS;
    };
    let mut folders: Vec<PathBuf> =
        entries.flatten().map(|e| e.path()).filter(|p| p.join("input.json").exists()).collect();
    folders.sort();
    let (mut passed, mut failed, mut skipped) = (0, 0, 0);
    for folder in folders {
        let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if !filter.is_empty() && !filter.iter().any(|f| name.contains(f.as_str())) {
            continue;
        }
        match Case::run(&folder, &data) {
            Outcome::Passed(line) => {
                passed += 1;
                println!("{name:<16} ok           {line}");
            }
            Outcome::Failed(line) => {
                failed += 1;
                println!("{name:<16} FAILED       {line}");
            }
            Outcome::Unsupported(line) => {
                skipped += 1;
                println!("{name:<16} unsupported  {line}");
            }
        }
    }
    println!("{passed} passed, {failed} failed, {skipped} skipped");
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
