//! `dp`: DeePMD-kit's command line, Phalanx underneath.

#[global_allocator]
static ALLOCATOR: phalanx::memory::Huge = phalanx::memory::Huge;

fn main() -> std::process::ExitCode {
    phalanx::cli::main(std::env::args_os())
}
