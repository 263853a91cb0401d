//! The second program, `pinn`. A new subcommand is a file here and a line in [`COMMANDS`].

pub mod convert;
pub mod log;
pub mod predict;
pub mod report;
pub mod train;
pub mod version;

use super::{Command, Global, complain, misunderstood, plot, print};
use crate::error::Result;
use clap::ArgMatches;
use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

/// Every subcommand, in the order of the help.
pub const COMMANDS: &[Command] = &[
    train::COMMAND,
    predict::COMMAND,
    convert::COMMAND,
    log::COMMAND,
    report::COMMAND,
    plot::COMMAND,
    version::COMMAND,
];

/// Runs the program.
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    run(args).into()
}

/// What the program does: the exit code is 0, 1 for an error, 2 for a line that cannot be understood, 128 + n after signal n.
pub fn run(args: impl IntoIterator<Item = OsString>) -> u8 {
    crate::report::log::set_program("PINN");
    super::survive_file_size_limits();
    let matches = match definition().try_get_matches_from(args) {
        Ok(matches) => matches,
        Err(error) => return misunderstood(&error, "pinn", COMMANDS),
    };
    match dispatch(&matches) {
        Ok(()) => 0,
        Err(error) => {
            complain(&error);
            error.status()
        }
    }
}

/// The whole command line.
pub fn definition() -> clap::Command {
    let program = clap::Command::new("pinn")
        .about("Phalanx: trains PiNet models, with the commands, inputs and files of PiNN")
        .disable_version_flag(true)
        .arg(super::version_flag())
        .max_term_width(110)
        .after_help(
            "`pinn train params.yml` starts a training run; `pinn COMMAND -h` tells more about a command.",
        );
    super::with_commands(program, COMMANDS)
}

fn dispatch(matches: &ArgMatches) -> Result<()> {
    if matches.get_flag("version") {
        return print(&version::line());
    }
    let Some((name, matches)) = matches.subcommand() else {
        return print(&definition().render_help().to_string());
    };
    let command = COMMANDS.iter().find(|command| command.name == name);
    (command.expect("the definition has these commands only").run)(matches, &Global { backend: None })
}

/// Tells the user something that is no result.
fn note(text: &str) {
    // A closed standard error has nobody behind it who could be told.
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_free_of_contradictions() {
        definition().debug_assert();
    }
}
