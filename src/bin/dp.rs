//! `dp`: DeePMD-kit's command line, Phalanx underneath.

fn main() -> std::process::ExitCode {
    phalanx::cli::main(std::env::args_os())
}
