//! The second program, `pinn`. A new subcommand is a file here and a line in [`COMMANDS`].

pub mod convert;
pub mod log;
pub mod report;
pub mod train;
pub mod version;

use super::{Command, Global, complain, misunderstood, print};
use crate::error::Result;
use clap::ArgMatches;
use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

/// Every subcommand, in the order of the help.
pub const COMMANDS: &[Command] =
    &[train::COMMAND, convert::COMMAND, log::COMMAND, report::COMMAND, version::COMMAND];

/// Runs the program: the exit code is 0, 1 for an error, 2 for a line that cannot be understood.
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    crate::report::log::set_program("PINN");
    let matches = match definition().try_get_matches_from(args) {
        Ok(matches) => matches,
        Err(error) => return misunderstood(&error, "pinn", COMMANDS),
    };
    match dispatch(&matches) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&error);
            ExitCode::FAILURE
        }
    }
}

/// The whole command line.
pub fn definition() -> clap::Command {
    let program = clap::Command::new("pinn")
        .about("Phalanx: trains PiNet models, with the commands, inputs and files of PiNN")
        .disable_help_subcommand(true)
        .max_term_width(110)
        .after_help(
            "`pinn train params.yml` starts a training run; `pinn COMMAND -h` tells more about a command.",
        );
    super::with_commands(program, COMMANDS)
}

fn dispatch(matches: &ArgMatches) -> Result<()> {
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
