//! An installed DeePMD-kit, for what only it can do: files of TensorFlow, PyTorch and JAX.
//!
//! Our own program is called `dp` as well, so DeePMD-kit is started through its Python (`python -m deepmd`), never through a `dp` of
//! the PATH.

use crate::err;
use crate::error::{IoContext, Result};
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Names the Python of DeePMD-kit, or a `dp` of it.
pub const VARIABLE: &str = "PHALANX_DEEPMD";

/// A DeePMD-kit that can be started.
pub struct Kit {
    python: PathBuf,
}

impl Kit {
    /// Looks for one: what [`VARIABLE`] names, else each `dp`, `python3` and `python` of the PATH.
    ///
    /// `wish` is the line that a user would run with DeePMD-kit; the error gives it.
    pub fn find(wish: &str) -> Result<Kit> {
        if let Some(named) = std::env::var_os(VARIABLE).filter(|name| !name.is_empty()) {
            let named = PathBuf::from(named);
            let python = interpreter_of(&named).unwrap_or_else(|| named.clone());
            return if has_deepmd(&python) {
                Ok(Kit { python })
            } else {
                Err(err!("{VARIABLE}={}: no DeePMD-kit answers there", named.display())
                    .help("name the python of its environment, or its dp"))
            };
        }
        let path = std::env::var_os("PATH").unwrap_or_default();
        candidates(&path)
            .into_iter()
            .find(|python| has_deepmd(python))
            .map(|python| Kit { python })
            .ok_or_else(|| {
                err!("this needs an installed DeePMD-kit, and none was found on the PATH").help(format!(
                    "where DeePMD-kit is installed run its own dp: {wish}; or set {VARIABLE} to its python"
                ))
            })
    }

    /// Runs one of its commands, whose log goes where ours goes.
    pub fn run<S: AsRef<OsStr>>(&self, arguments: &[S]) -> Result<()> {
        let words: Vec<_> = arguments.iter().map(|word| word.as_ref().to_string_lossy()).collect();
        let line = words.join(" ");
        log::info!("DeePMD-kit ({}): dp {line}", self.python.display());
        let status =
            self.command().arg("-m").arg("deepmd").args(arguments).status().io("start", &self.python)?;
        if !status.success() {
            return Err(err!("DeePMD-kit's dp {line} failed ({status})").help("its own messages stand above"));
        }
        Ok(())
    }

    fn command(&self) -> Command {
        python(&self.python)
    }
}

/// A Python that imports nothing from the working folder, which may hold data called deepmd.
fn python(path: &Path) -> Command {
    let mut command = Command::new(path);
    command.env("PYTHONSAFEPATH", "1").env_remove("DP_BACKEND").stdin(Stdio::null()).stdout(Stdio::null());
    command
}

/// Pythons that may have DeePMD-kit, in the order of the PATH; those that a script called `dp` names come first.
fn candidates(path: &OsStr) -> Vec<PathBuf> {
    let folders: Vec<PathBuf> = std::env::split_paths(path).filter(|p| !p.as_os_str().is_empty()).collect();
    let scripts = folders.iter().filter_map(|folder| interpreter_of(&folder.join("dp")));
    let pythons = folders.iter().flat_map(|folder| ["python3", "python"].map(|name| folder.join(name)));
    let mut found: Vec<PathBuf> = scripts.chain(pythons).filter(|file| file.is_file()).collect();
    let mut seen = std::collections::HashSet::new();
    found.retain(|file| seen.insert(file.clone()));
    found
}

/// The Python that a script names in its first line. Our own `dp` is no script.
fn interpreter_of(script: &Path) -> Option<PathBuf> {
    let file = std::fs::File::open(script).ok()?;
    let mut line = Vec::new();
    BufReader::new(file.take(4096)).read_until(b'\n', &mut line).ok()?;
    let line = String::from_utf8(line).ok()?;
    let program = line.strip_prefix("#!")?.split_whitespace().next()?;
    let name = Path::new(program).file_name()?.to_str()?;
    name.starts_with("python").then(|| PathBuf::from(program))
}

fn has_deepmd(path: &Path) -> bool {
    let probe = "import importlib.util as u, sys; sys.exit(u.find_spec('deepmd') is None or u.find_spec('deepmd.main') is None)";
    python(path).args(["-c", probe]).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_scripts_of_python_lead_to_a_python() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        assert_eq!(
            interpreter_of(&file("dp", "#!/env/bin/python3.11\nimport sys\n")).unwrap(),
            Path::new("/env/bin/python3.11")
        );
        assert_eq!(interpreter_of(&file("sh", "#!/bin/sh\necho\n")), None);
        assert_eq!(interpreter_of(&file("ours", "\x7fELF...")), None);
        assert_eq!(interpreter_of(&folder.path().join("absent")), None);
    }
}
