//! Libraries that stand in for those of a GPU: `fake/cuda.c`.

use super::{Ended, Place, skip};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Makes a folder with stand-ins of these names, or says why there is none.
#[track_caller]
pub fn stand_ins(folder: PathBuf, names: &[&str]) -> Option<PathBuf> {
    std::fs::create_dir_all(&folder).unwrap();
    let fake = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fake");
    let library = folder.join(names[0]);
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-w", "-O1", "-o"])
        .arg(&library)
        .arg(format!("-DEMULATE_H=\"{}\"", emulate_h(&fake).display()))
        .arg(fake.join("cuda.c"))
        .args(["-ldl", "-lpthread"])
        .status()
        .is_ok_and(|status| status.success());
    if !built {
        skip("no C compiler");
        return None;
    }
    for name in &names[1..] {
        std::fs::copy(&library, folder.join(name)).unwrap();
    }
    Some(folder)
}

/// Runs a command with these libraries before all others, an empty cache of kernels, and nothing that leads to another CUDA.
pub fn run_with(
    mut command: Command,
    place: &Place,
    libraries: &Path,
    environment: &[(&str, &str)],
) -> Ended {
    prepare_with(&mut command, &place.path("cache"), libraries);
    command.envs(environment.iter().copied()).output().unwrap().into()
}

/// Lets a command find these libraries before all others, an empty cache of kernels, and nothing that leads to another CUDA.
pub fn prepare_with(command: &mut Command, cache: &Path, libraries: &Path) {
    ["VIRTUAL_ENV", "CONDA_PREFIX", "CUDA_HOME", "CUDA_PATH"].iter().for_each(|name| {
        command.env_remove(name);
    });
    command.env("LD_LIBRARY_PATH", libraries).env("XDG_CACHE_HOME", cache).env("PATH", "");
}

/// Whether kernels can be compiled for the CPU here.
#[track_caller]
pub fn can_run_kernels() -> bool {
    let can = Command::new("c++").arg("--version").output().is_ok_and(|out| out.status.success());
    if !can {
        skip("no C++ compiler");
    }
    can
}

/// What kernels that run on the CPU begin with, read by the C++ compiler once: every kernel is compiled by itself. Kernels that
/// were compiled are kept beside it.
fn emulate_h(fake: &Path) -> PathBuf {
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    let make = || {
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("emulate");
        std::fs::create_dir_all(&folder).unwrap();
        let own = |ending: &str| folder.join(format!("{}.{ending}", std::process::id()));
        let header = folder.join("emulate.h");
        // Test programs that run at the same time make the same.
        std::fs::copy(fake.join("emulate.h"), own("h")).unwrap();
        std::fs::rename(own("h"), &header).unwrap();
        let made = Command::new("c++")
            .args(["-std=c++17", "-O1", "-w", "-fPIC", "-x", "c++-header"])
            .arg(&header)
            .arg("-o")
            .arg(own("gch"))
            .status()
            .is_ok_and(|status| status.success());
        if made {
            std::fs::rename(own("gch"), folder.join("emulate.h.gch")).unwrap();
        }
        header
    };
    MADE.get_or_init(make).clone()
}
