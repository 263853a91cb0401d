//! `pinn`: PiNN's command line, Phalanx underneath.

fn main() -> std::process::ExitCode {
    phalanx::cli::pinn::main(std::env::args_os())
}
