//! Writes man pages and shell completions of `dp` and `pinn`, from the tables that the programs themselves read:
//!
//!     cargo run --release --example man_and_completions -- FOLDER
//!
//! FOLDER gets `man1/*.1`, `bash/`, `zsh/` and `fish/`.

use clap_complete::{Shell, generate_to};
use clap_mangen::Man;
use std::path::Path;

fn main() -> std::io::Result<()> {
    let Some(folder) = std::env::args_os().nth(1) else {
        eprintln!("usage: man_and_completions FOLDER");
        std::process::exit(2);
    };
    let folder = Path::new(&folder);
    for (name, program) in [("dp", phalanx::cli::definition()), ("pinn", phalanx::cli::pinn::definition())] {
        let mut program = program;
        program.build();
        for (shell, place) in [(Shell::Bash, "bash"), (Shell::Zsh, "zsh"), (Shell::Fish, "fish")] {
            let place = folder.join(place);
            std::fs::create_dir_all(&place)?;
            generate_to(shell, &mut program, name, place)?;
        }
        let place = folder.join("man1");
        std::fs::create_dir_all(&place)?;
        page(&place, name, &program)?;
        for command in program.get_subcommands() {
            page(&place, &format!("{name}-{}", command.get_name()), command)?;
        }
    }
    Ok(())
}

fn page(folder: &Path, name: &str, command: &clap::Command) -> std::io::Result<()> {
    let mut text = Vec::new();
    Man::new(command.clone()).title(name).render(&mut text)?;
    std::fs::write(folder.join(format!("{name}.1")), text)
}

#[test]
fn every_command_has_a_page_and_completes() {
    let folder = tempfile::tempdir().unwrap();
    let mut program = phalanx::cli::definition();
    program.build();
    for command in program.get_subcommands() {
        let name = format!("dp-{}", command.get_name());
        page(folder.path(), &name, command).unwrap();
        let text = std::fs::read_to_string(folder.path().join(format!("{name}.1"))).unwrap();
        assert!(text.contains(".SH OPTIONS") || text.contains(".SH SYNOPSIS"), "{name}: {text}");
    }
    generate_to(Shell::Bash, &mut program, "dp", folder.path()).unwrap();
    let text = std::fs::read_to_string(folder.path().join("dp.bash")).unwrap();
    assert!(text.contains("--skip-neighbor-stat") && text.contains("neighbor-stat"), "{text}");
}
