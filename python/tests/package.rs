//! The package under a real Python: pytest on `python/tests`, with the module that was built with this test. `PYTHON` says which Python;
//! where it lacks NumPy, ASE or pytest the test says so.

#[path = "../../tests/common/skip.rs"]
mod skip;

use std::path::{Path, PathBuf};
use std::process::Command;

const HERE: &str = env!("CARGO_MANIFEST_DIR");

/// The package as a wheel would install it.
fn install(folder: &Path) {
    let package = folder.join("phalanx");
    std::fs::create_dir_all(&package).unwrap();
    for entry in std::fs::read_dir(Path::new(HERE).join("phalanx")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|ending| ending == "py") {
            std::fs::copy(&path, package.join(path.file_name().unwrap())).unwrap();
        }
    }
    let module = std::env::current_exe().unwrap().with_file_name("lib_phalanx.so");
    std::fs::copy(&module, package.join("_phalanx.abi3.so")).unwrap();
}

fn python() -> Command {
    Command::new(std::env::var_os("PYTHON").unwrap_or("python3".into()))
}

#[test]
fn the_package_passes_its_tests_under_python() {
    let found = python().args(["-c", "import numpy, ase, pytest"]).output();
    match &found {
        Err(e) => return skip::skip(format_args!("no Python: {e}")),
        Ok(found) if !found.status.success() => {
            let said = String::from_utf8_lossy(&found.stderr);
            return skip::skip(said.lines().last().unwrap_or("no NumPy, ASE and pytest"));
        }
        Ok(_) => {}
    }
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("python");
    install(&folder);
    let done = python()
        .args(["-m", "pytest", "-q", "-p", "no:cacheprovider", "--durations=5", "."])
        .current_dir(Path::new(HERE).join("tests")) // not beside the sources, which have no module
        .env("PYTHONPATH", &folder)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&done.stdout).into_owned();
    println!("{said}");
    assert!(done.status.success(), "{said}\n{}", String::from_utf8_lossy(&done.stderr));
}
