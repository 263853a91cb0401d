//! Gives the library the name by which programs that want DeePMD-kit's know it: a loader that has it under that name, because it
//! was preloaded, looks for no other.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libdeepmd_c.so");
}
