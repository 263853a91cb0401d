//! `dp plot` and `pinn plot`: figures of runs.

use super::{Command, print, typed};
use crate::err;
use crate::error::Result;
use crate::plot::source::{Source, read};
use crate::plot::{Figure, Options, check_format, curves, parity, time_split};
use clap::Args;
use std::path::{Path, PathBuf};

pub(super) const COMMAND: Command = Command {
    name: "plot",
    about: "Draw learning curves, predictions beside labels, or where the time went",
    examples: "Examples:\n  dp plot lcurve.out\n  dp plot run1/lcurve.out run2/lcurve.out -q rmse_f -o forces.png\n  \
        dp test -m model.dp -s data -d detail && dp plot detail -o parity.svg\n  dp plot timeline.json",
    define: PlotArgs::augment_args,
    run: |matches, _| run(&typed(matches)),
};

/// The command line of `dp plot`.
#[derive(Debug, Clone, clap::Args)]
pub struct PlotArgs {
    /// lcurve.out, files of `dp test -d` or their common name, a timeline of training.profiling, a folder with event files
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// File to write, .svg or .png; may be given more than once
    #[arg(short, long, value_name = "FIGURE")]
    output: Vec<PathBuf>,
    /// What to call each file in the figure, in their order
    #[arg(short, long, value_name = "NAME")]
    name: Vec<String>,
    /// Quantities of learning curves to draw, such as rmse_f; all unless given
    #[arg(short, long, value_name = "QUANTITY", value_delimiter = ',')]
    quantity: Vec<String>,
    /// A line above the figure
    #[arg(short, long, value_name = "TEXT")]
    title: Option<String>,
    /// Steps on a logarithmic axis
    #[arg(long)]
    log_steps: bool,
}

fn run(args: &PlotArgs) -> Result<()> {
    for path in &args.output {
        check_format(path)?;
    }
    if !args.name.is_empty() && args.name.len() != args.files.len() {
        return Err(err!("--name: found {} names for {} files", args.name.len(), args.files.len())
            .help("give one for each file, or none"));
    }
    let options =
        Options { title: args.title.clone(), quantities: args.quantity.clone(), log_steps: args.log_steps };
    let (figure, default) = figure(args, &options)?;
    let default = [PathBuf::from(default)];
    let outputs = if args.output.is_empty() { &default[..] } else { &args.output };
    for path in outputs {
        figure.write(path)?;
        print(&format!("{}\n", path.display()))?;
    }
    Ok(())
}

/// The figure of all files, and the name of its file unless the user has said one.
fn figure(args: &PlotArgs, options: &Options) -> Result<(Figure, &'static str)> {
    let (mut runs, mut sets, mut times) = (Vec::new(), Vec::new(), Vec::new());
    for (i, path) in args.files.iter().enumerate() {
        let name = args.name.get(i).cloned().unwrap_or_else(|| name_of(path));
        match read(path)? {
            Source::Curves(series) => runs.push((name, series)),
            Source::Pairs(pairs) => sets.extend(pairs.into_iter().map(|pairs| (name.clone(), pairs))),
            Source::Times(ranks) => times.push(ranks),
        }
    }
    match (runs.is_empty(), sets.is_empty(), &times[..]) {
        (false, true, []) => Ok((curves(&runs, options)?, "lcurve.svg")),
        (true, _, []) => Ok((parity(&sets, options)?, "parity.svg")),
        (true, true, [ranks]) => Ok((time_split(ranks, options)?, "time.svg")),
        (true, true, _) => Err(err!("found {} timelines", times.len()).help("draw one at a time")),
        _ => Err(err!("found files of different kinds")
            .help("draw learning curves, predictions beside labels and timelines in figures of their own")),
    }
}

/// A run is known by its folder; in the working folder by its file.
fn name_of(path: &Path) -> String {
    let folder = path.parent().and_then(Path::file_name);
    let name = if path.is_dir() { path.file_name() } else { folder.or(path.file_name()) };
    name.map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into_owned())
}
