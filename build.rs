//! Names this build by a hash of its sources, so that ranks can tell whether they run the same program. Compiles the C++ shim of
//! the Gloo engine where the feature `gloo` is on. Lets the linker keep one of several functions with the same code, where it can.

use std::hash::Hasher;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=src");
    println!("cargo::rerun-if-changed=Cargo.toml");
    println!("cargo::rustc-env=PHALANX_BUILD={:016x}", hash_of_sources());
    fold_identical_code();
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

/// One copy of functions whose code is the same, in programs: generic code that is compiled for several types. Half a megabyte of
/// `dp`. Not where names matter (a debugger or a profiler would see one of the names). LLD, gold and mold can; GNU's linker
/// cannot, so a program that does nothing is linked to find out.
fn fold_identical_code() {
    const FOLD: &str = "link-arg=-Wl,--icf=all";
    let var = |name: &str| std::env::var(name).unwrap_or_default();
    if var("PROFILE") != "release" || var("DEBUG") != "false" || var("CARGO_CFG_TARGET_OS") != "linux" {
        return;
    }
    let tried = PathBuf::from(var("OUT_DIR")).join("folds.rs");
    if std::fs::write(&tried, "fn main() {}\n").is_err() {
        return;
    }
    let mut rustc = Command::new(var("RUSTC"));
    rustc.arg(&tried).arg("--target").arg(var("TARGET")).arg("-o").arg(tried.with_extension("out"));
    rustc
        .args(var("CARGO_ENCODED_RUSTFLAGS").split('\u{1f}').filter(|flag| !flag.is_empty()))
        .args(["-C", FOLD]);
    if let Ok(linker) = std::env::var("RUSTC_LINKER") {
        rustc.arg("-C").arg(format!("linker={linker}"));
    }
    rustc.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    if rustc.status().is_ok_and(|status| status.success()) {
        println!("cargo::rustc-link-arg-bins=-Wl,--icf=all");
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
