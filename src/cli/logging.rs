//! `-v` and `-l`, which every subcommand has.

use crate::error::Result;
use crate::report::log::{self, LogOptions, MpiLog, parse_level};
use std::path::PathBuf;

/// How a command logs, as typed.
#[derive(Debug, Clone, clap::Args)]
pub struct LogArgs {
    /// What to log: 0 or ERROR, 1 or WARNING, 2 or INFO, 3 or DEBUG
    #[arg(
        short = 'v',
        long,
        value_name = "LEVEL",
        default_value = "INFO",
        ignore_case = true,
        hide_possible_values = true,
        value_parser = ["DEBUG", "3", "INFO", "2", "WARNING", "1", "ERROR", "0"]
    )]
    pub log_level: String,
    /// Log to this file as well as to the console
    #[arg(short = 'l', long, value_name = "FILE")]
    pub log_path: Option<PathBuf>,
}

impl LogArgs {
    /// The options of the log of one process among `size`.
    pub fn options(&self, mode: MpiLog, rank: usize, size: usize) -> Result<LogOptions> {
        let level = parse_level(&self.log_level)?;
        Ok(LogOptions { level, path: self.log_path.clone(), mode, rank, size, waits: false })
    }

    /// Starts the log of a command that runs in one process.
    pub fn start(&self) -> Result<()> {
        log::init(&self.options(MpiLog::Master, 0, 1)?)
    }
}
