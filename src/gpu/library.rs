//! Finds NVIDIA's libraries: where the loader looks, in the usual folders, and in Python packages.

use crate::err;
use crate::error::Error;
use std::path::{Path, PathBuf};

/// One library: what it is called here, and the names of its files, best first.
pub struct Names {
    pub what: &'static str,
    pub files: &'static [&'static str],
    /// What to do where it is absent.
    pub help: &'static str,
}

pub const DRIVER: Names = Names {
    what: "the CUDA driver",
    files: &["libcuda.so.1", "libcuda.so"],
    help: "install NVIDIA's driver, or compute on the CPU with --device cpu",
};
pub const NVRTC: Names = Names {
    what: "NVRTC, which compiles kernels",
    files: &["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"],
    help: "pip install nvidia-cuda-nvrtc, or put the folder of a CUDA toolkit's libraries on LD_LIBRARY_PATH, or use \
           --device cpu",
};
pub const NCCL: Names = Names {
    what: "NCCL, which joins GPUs",
    files: &["libnccl.so.2", "libnccl.so"],
    help: "pip install nvidia-nccl-cu12 (or -cu13), or put its folder on LD_LIBRARY_PATH, or set PHALANX_NCCL=0 to add \
           up gradients through the host",
};

pub const NVML: Names = Names {
    what: "NVML, which tells how busy a GPU is",
    files: &["libnvidia-ml.so.1", "libnvidia-ml.so"],
    help: "it comes with NVIDIA's driver",
};

/// Loads a library, or says which names were tried where.
pub fn load(names: &Names, env: &dyn Fn(&str) -> Option<String>) -> Result<libloading::Library, Error> {
    let mut said = Vec::new();
    for file in names.files {
        // SAFETY: running the initialisers of NVIDIA's libraries is what all their users do.
        match unsafe { libloading::Library::new(*file) } {
            Ok(library) => return Ok(library),
            Err(e) => said.push(e.to_string()),
        }
    }
    let folders = folders(env);
    for folder in &folders {
        for path in names.files.iter().map(|file| folder.join(file)).filter(|path| path.exists()) {
            // SAFETY: as above.
            match unsafe { libloading::Library::new(&path) } {
                Ok(library) => return Ok(library),
                Err(e) => said.push(e.to_string()),
            }
        }
    }
    let places: Vec<String> = folders.iter().map(|f| f.display().to_string()).collect();
    let broken =
        said.into_iter().find(|e| !e.contains("No such file")).map_or(String::new(), |e| format!(" ({e})"));
    Err(err!(
        "cannot load {}: tried {} where the loader looks and in {}{broken}",
        names.what,
        names.files.join(", "),
        if places.is_empty() { "no other folder".to_string() } else { places.join(", ") }
    )
    .help(names.help))
}

/// Folders beyond those of the loader, in the order in which they are searched.
pub fn folders(env: &dyn Fn(&str) -> Option<String>) -> Vec<PathBuf> {
    let mut roots: Vec<PathBuf> = Vec::new();
    for name in ["CUDA_HOME", "CUDA_PATH"] {
        roots.extend(env(name).map(PathBuf::from));
    }
    roots.push("/usr/local/cuda".into());
    let mut out: Vec<PathBuf> =
        roots.iter().flat_map(|r| [r.join("lib64"), r.join("targets/x86_64-linux/lib")]).collect();
    let mut prefixes: Vec<PathBuf> = Vec::new();
    for name in ["VIRTUAL_ENV", "CONDA_PREFIX"] {
        prefixes.extend(env(name).map(PathBuf::from));
    }
    // A python3 on the PATH has its packages beside it.
    for bin in env("PATH").unwrap_or_default().split(':').map(Path::new) {
        if bin.join("python3").exists() {
            prefixes.extend(bin.parent().map(Path::to_path_buf));
        }
    }
    for prefix in prefixes {
        out.push(prefix.join("lib"));
        let python = children(&prefix.join("lib"), |name| name.starts_with("python3"));
        for packages in python.iter().flat_map(|p| [p.join("site-packages"), p.join("dist-packages")]) {
            out.extend(children(&packages.join("nvidia"), |_| true).iter().map(|p| p.join("lib")));
        }
    }
    out.retain(|folder| folder.is_dir());
    let mut seen = std::collections::HashSet::new();
    out.retain(|folder| seen.insert(folder.clone()));
    out
}

fn children(folder: &Path, wanted: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> =
        entries.filter(|e| wanted(&e.file_name().to_string_lossy())).map(|e| e.path()).collect();
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_absent_is_named_with_the_places() {
        let names = Names { what: "a thing", files: &["libnothing-of-the-kind.so.7"], help: "get it" };
        let error = load(&names, &|_| None).err().unwrap();
        assert!(error.message().contains("libnothing-of-the-kind.so.7"), "{error}");
        assert_eq!(error.advice(), Some("get it"));
    }

    #[test]
    fn python_packages_are_searched() {
        let root = tempfile::tempdir().unwrap();
        let lib = root.path().join("lib/python3.11/site-packages/nvidia/cuda_nvrtc/lib");
        std::fs::create_dir_all(&lib).unwrap();
        let env = |name: &str| (name == "VIRTUAL_ENV").then(|| root.path().display().to_string());
        assert!(folders(&env).contains(&lib));
    }
}
