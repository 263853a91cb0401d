//! `pinn log`: the metrics of event files as a table.

use crate::cli::{Command, print, typed};
use crate::err;
use crate::error::Result;
use crate::pinn::log::{LogTable, NumberFormat};
use crate::report::events::{event_files, read_scalars};
use clap::Args;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

pub(super) const COMMAND: Command = Command {
    name: "log",
    about: "Print the metrics of a run",
    examples: "Examples:\n  pinn log model/eval\n  pinn log model -t LOSS",
    define: LogArgs::augment_args,
    run: |matches, _| run(&typed::<LogArgs>(matches)),
};

/// The command line of `pinn log`.
#[derive(Debug, Clone, clap::Args)]
struct LogArgs {
    /// A folder with event files: of the model for training, its eval folder for evaluations
    #[arg(value_name = "LOGDIR")]
    logdir: PathBuf,
    /// Metrics whose name contains this
    #[arg(short, long, value_name = "TEXT", default_value = "RMSE")]
    tag: String,
    /// How numbers are written
    #[arg(short, long, value_name = "FORMAT", default_value = "%14.6e ", allow_hyphen_values = true)]
    fmt: String,
}

fn run(args: &LogArgs) -> Result<()> {
    let format = NumberFormat::parse(&args.fmt).map_err(|e| e.at("--fmt"))?;
    let files = event_files(&args.logdir)?;
    if files.is_empty() {
        let error = err!("{}: found no event files (events.out.*)", args.logdir.display());
        return Err(match has_events(&args.logdir.join("eval")) {
            true => error.help(format!("there are some in {}", args.logdir.join("eval").display())),
            false => error.help("name the folder of the model, or its eval folder"),
        });
    }
    let mut points = Vec::new();
    for file in &files {
        points.extend(read_scalars(file)?);
    }
    let table = LogTable::new(&points, &args.tag);
    if table.is_empty() {
        let tags: BTreeSet<&str> = points.iter().map(|point| point.tag.as_str()).collect();
        let tags: Vec<&str> = tags.into_iter().collect();
        if tags.is_empty() {
            return Err(err!("{}: the event files hold no metrics yet", args.logdir.display()));
        }
        return Err(err!("{}: no tag contains \"{}\"", args.logdir.display(), args.tag)
            .help(format!("there are: {}", tags.join(" "))));
    }
    print(&table.render(&format))
}

fn has_events(folder: &Path) -> bool {
    event_files(folder).is_ok_and(|files| !files.is_empty())
}
