//! `pinn version`.

use crate::cli::{Command, print};

pub(super) const COMMAND: Command = Command {
    name: "version",
    about: "Print the version",
    examples: "",
    define: |command| command,
    run: |_, _| print(&line()),
};

/// What it prints.
pub(super) fn line() -> String {
    format!("Phalanx version: {}\n", env!("CARGO_PKG_VERSION"))
}
