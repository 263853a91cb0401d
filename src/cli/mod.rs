//! One file for each subcommand. A new one is a file here and a line in [`COMMANDS`].

pub mod backend; // --pt, --tf and the like: conventions of a framework
pub mod logging; // -v and -l of every subcommand
mod literal; // values in log lines, as Python writes them
pub mod systems; // from what a user types to a list of systems
mod kit; // an installed DeePMD-kit
pub mod train;
pub mod test;
pub mod freeze;
pub mod show;
pub mod convert_backend;
pub mod compress;
pub mod change_bias;
pub mod model_devi;
pub mod eval_desc;
pub mod neighbor_stat;
pub mod doc_train_input;
pub mod plot;
pub mod pinn; // the second program
pub mod absent; // what DeePMD-kit has and Phalanx has not

use crate::config::check::did_you_mean;
use crate::error::{Error, Result};
use crate::report::dashboard::DashboardOptions;
use backend::BackendFlags;
use clap::error::{ContextKind, ContextValue};
use clap::{ArgMatches, Args, FromArgMatches};
use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;

/// A subcommand: what it is called, what it takes, what it does.
pub struct Command {
    pub name: &'static str,
    /// One line for the list of commands.
    pub about: &'static str,
    /// Lines to start from, below the options in the help.
    pub examples: &'static str,
    pub define: fn(clap::Command) -> clap::Command,
    pub run: fn(&ArgMatches, &Global) -> Result<()>,
}

/// Every subcommand, in the order of the help.
pub const COMMANDS: &[Command] = &[
    train::COMMAND,
    freeze::COMMAND,
    test::COMMAND,
    show::COMMAND,
    convert_backend::COMMAND,
    compress::COMMAND,
    change_bias::COMMAND,
    model_devi::COMMAND,
    eval_desc::COMMAND,
    neighbor_stat::COMMAND,
    doc_train_input::COMMAND,
    plot::COMMAND,
];

/// What stands before the subcommand.
#[derive(Debug, Clone, Copy)]
pub struct Global {
    /// Where one was named; plain `dp` follows the conventions of TensorFlow with Horovod.
    pub backend: Option<backend::Backend>,
}

/// Runs the program.
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    run(args).into()
}

/// What the program does: the exit code is 0, 1 for an error, 2 for a line that cannot be understood, 128 + n after signal n.
pub fn run(args: impl IntoIterator<Item = OsString>) -> u8 {
    survive_file_size_limits();
    let matches = match definition().try_get_matches_from(with_addresses(args)) {
        Ok(matches) => matches,
        Err(error) => return misunderstood(&error, "dp", COMMANDS),
    };
    match dispatch(&matches) {
        Ok(()) => 0,
        Err(error) => {
            complain(&error);
            error.status()
        }
    }
}

/// `--dashboard` may be followed by an address or by something else, such as the input: an address belongs to it.
fn with_addresses(args: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut joined: Vec<OsString> = Vec::new();
    for arg in args {
        let is_address = arg.to_str().is_some_and(|text| text.parse::<DashboardOptions>().is_ok());
        match joined.last_mut() {
            Some(last) if last == "--dashboard" && is_address && !arg.is_empty() => {
                last.push("=");
                last.push(arg);
            }
            _ => joined.push(arg),
        }
    }
    joined
}

/// A write beyond `ulimit -f` then fails with an error that names the file, where it would kill the process.
fn survive_file_size_limits() {
    // Where the handler cannot be set, the limit ends the process as it does others.
    static SEEN: AtomicBool = AtomicBool::new(false);
    let _ = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, &SEEN);
}

/// The whole command line.
pub fn definition() -> clap::Command {
    let program = BackendFlags::augment_args(clap::Command::new("dp"))
        .about("Phalanx: trains Deep Potential models, with the commands, inputs and files of DeePMD-kit")
        .version(env!("CARGO_PKG_VERSION"))
        .disable_version_flag(true)
        .arg(version_flag())
        .infer_long_args(true)
        .max_term_width(110)
        .after_help(
            "`dp train input.json` starts a training run; `dp COMMAND -h` tells more about a command.",
        );
    absent::add_all(with_commands(program, COMMANDS))
}

/// `-V` and `--version`, which print more than a number.
fn version_flag() -> clap::Arg {
    clap::arg!(-V --version "Print the version").action(clap::ArgAction::SetTrue)
}

/// A program with its subcommands.
fn with_commands(mut program: clap::Command, commands: &[Command]) -> clap::Command {
    for command in commands {
        // The texts come last: the derived definition would put its own doc comment there.
        let sub = (command.define)(clap::Command::new(command.name))
            .about(command.about)
            .after_help(command.examples)
            .disable_version_flag(true)
            .infer_long_args(true);
        program = program.subcommand(sub);
    }
    program
}

fn dispatch(matches: &ArgMatches) -> Result<()> {
    if matches.get_flag("version") {
        return print(&format!("Phalanx v{}\n", env!("CARGO_PKG_VERSION")));
    }
    let global =
        Global { backend: typed::<BackendFlags>(matches).resolve(std::env::var("DP_BACKEND").ok())? };
    let Some((name, matches)) = matches.subcommand() else {
        return print(&definition().render_help().to_string());
    };
    match COMMANDS.iter().find(|command| command.name == name) {
        Some(command) => (command.run)(matches, &global),
        None => Err(absent::error(name)),
    }
}

/// The options of a subcommand as typed.
fn typed<T: FromArgMatches>(matches: &ArgMatches) -> T {
    T::from_arg_matches(matches).expect("the matches come from this very definition")
}

/// Help goes to standard output; a mistake goes to standard error in the form of all errors.
fn misunderstood(error: &clap::Error, program: &str, commands: &[Command]) -> u8 {
    if !error.use_stderr() {
        // A closed pipe has nobody behind it who could be told.
        let _ = error.print();
        return 0;
    }
    let text = match error.get(ContextKind::InvalidSubcommand) {
        Some(ContextValue::String(name)) => format!("error: {}\n", unknown_command(program, name, commands)),
        _ => error.render().to_string().replace("\n  tip: ", "\n  help: "),
    };
    let _ = std::io::stderr().lock().write_all(text.as_bytes());
    2
}

fn unknown_command(program: &str, name: &str, commands: &[Command]) -> Error {
    let names: Vec<&str> = commands.iter().map(|command| command.name).collect();
    let near = did_you_mean(name, names.iter().copied());
    crate::err!("{program} {name}: there is no such command")
        .help(format!("{near}there are: {}", names.join(", ")))
}

fn complain(error: &Error) {
    if !error.is_told_elsewhere() {
        crate::report::log::tell_error(error);
    }
}

/// Writes to standard output. A reader that has seen enough and left is no error.
fn print(text: &str) -> Result<()> {
    match std::io::stdout().lock().write_all(text.as_bytes()) {
        Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(crate::err!("cannot write to standard output: {e}"))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_free_of_contradictions() {
        definition().debug_assert();
    }

    #[test]
    fn every_command_of_deepmd_kit_has_a_name_here() {
        let program = definition();
        for name in
            "transfer train freeze test eval-desc embed compress doc-train-input model-devi convert-from \
             neighbor-stat change-bias train-nvnmd gui convert-backend show pretrained"
                .split_whitespace()
        {
            assert!(program.find_subcommand(name).is_some(), "{name}");
        }
    }
}
