//! Compiles the C++ shim of the Gloo engine. Does nothing unless the feature `gloo` is on.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    #[cfg(feature = "gloo")]
    gloo();
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
