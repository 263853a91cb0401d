//! Names this build by a hash of its sources, so that ranks can tell whether they run the same program. Compiles the C++ shim of
//! the Gloo engine where the feature `gloo` is on.

use std::hash::Hasher;
use std::path::{Path, PathBuf};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=src");
    println!("cargo::rerun-if-changed=Cargo.toml");
    println!("cargo::rustc-env=PHALANX_BUILD={:016x}", hash_of_sources());
    #[cfg(feature = "gloo")]
    gloo();
}

/// The same for the same files with the same names.
fn hash_of_sources() -> u64 {
    let mut files = vec![PathBuf::from("Cargo.toml")];
    list(Path::new("src"), &mut files);
    files.sort();
    #[allow(deprecated)] // its successors differ from one start of a program to the next
    let mut hash = std::hash::SipHasher::new();
    for file in files {
        hash.write(file.as_os_str().as_encoded_bytes());
        hash.write(&std::fs::read(&file).unwrap_or_default());
    }
    hash.finish()
}

/// All files below a folder.
fn list(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        match entry.path() {
            path if path.is_dir() => list(&path, files),
            path => files.push(path),
        }
    }
}

#[cfg(feature = "gloo")]
fn gloo() {
    const SHIM: &str = "src/comm/gloo/shim.cc";
    println!("cargo::rerun-if-changed={SHIM}");
    let mut build = cc::Build::new();
    build.cpp(true).std("c++17").file(SHIM).flag_if_supported("-Wno-unused-parameter");
    if let Err(e) = build.try_compile("phalanx_gloo") {
        println!(
            "cargo::error=cannot compile {SHIM}: a C++ compiler and Gloo's headers are needed (Debian: g++, libgloo-dev)"
        );
        println!("cargo::error={e}");
        return;
    }
    println!("cargo::rustc-link-lib=dylib=gloo");
}
