//! `phalanx`: the same as `dp`, for those who have DeePMD-kit's `dp` on the PATH.

#[global_allocator]
static ALLOCATOR: phalanx::memory::Huge = phalanx::memory::Huge;

fn main() -> std::process::ExitCode {
    phalanx::cli::main(std::env::args_os())
}
