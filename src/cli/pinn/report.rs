//! `pinn report`: the last evaluations of several models, averaged over repetitions.

use super::note;
use crate::cli::{Command, print, typed};
use crate::error::{IoContext, Result};
use crate::pinn::log::last_row;
use crate::{bail, err};
use clap::Args;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

pub(super) const COMMAND: Command = Command {
    name: "report",
    about: "Print the last evaluations of several models",
    examples: "Examples:\n  pinn report models -f 1\n  pinn report models -k qm9 -e 27.2114 -f 27.2114",
    define: ReportArgs::augment_args,
    run: |matches, _| run(&typed::<ReportArgs>(matches)),
};

/// The command line of `pinn report`.
#[derive(Debug, Clone, clap::Args)]
struct ReportArgs {
    /// The folder of the models: `name-1`, `name-2`, ... are repetitions of one model
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Only models whose name contains this; may be given several times
    #[arg(short, long, value_name = "TEXT")]
    keys: Vec<String>,
    /// The name of the tables
    #[arg(short, long, value_name = "FILE", default_value = "eval.log")]
    log_name: String,
    /// What metrics of energies are multiplied by
    #[arg(short, long, value_name = "NUMBER", default_value_t = 1.0, allow_negative_numbers = true)]
    energy_factor: f64,
    /// What metrics of forces are multiplied by [default: 0, as in PiNN]
    #[arg(short, long, value_name = "NUMBER", allow_negative_numbers = true)]
    force_factor: Option<f64>,
    /// The models are named by the one folder beside each table
    #[arg(short = 'w', long = "is_workdir", alias = "is-workdir")]
    is_workdir: bool,
}

/// The values of a metric over repetitions.
type Metrics = Vec<(String, Vec<f64>)>;

fn run(args: &ReportArgs) -> Result<()> {
    let mut logs = Vec::new();
    find(&args.dir, &args.log_name, &mut logs)?;
    logs.sort();
    let mut groups: BTreeMap<String, Metrics> = BTreeMap::new();
    for log in &logs {
        let name = model_name(log, args.is_workdir)?;
        if !args.keys.iter().all(|key| name.contains(key.as_str())) {
            continue;
        }
        let text = std::fs::read_to_string(log).io("read", log)?;
        let row = last_row(&text).map_err(|e| e.at(log.display()))?;
        let group = name.rsplit_once('-').map_or(name.as_str(), |(group, _)| group);
        add(groups.entry(group.to_owned()).or_default(), row);
    }
    if groups.is_empty() {
        return Err(err!("{}: found no {} of a model that matches", args.dir.display(), args.log_name)
            .help("each model has a folder with this file; -k leaves models out by their name"));
    }
    let forces = groups.values().flatten().any(|(field, _)| field.starts_with('F'));
    if forces && args.force_factor.is_none() {
        note("note: metrics of forces are multiplied by 0, which is PiNN's default; give -f 1");
    }
    let lines: String = groups.iter().map(|(name, metrics)| line(name, metrics, args)).collect();
    print(&lines)
}

fn add(metrics: &mut Metrics, row: Vec<(String, f64)>) {
    for (field, value) in row {
        match metrics.iter_mut().find(|(name, _)| *name == field) {
            Some((_, values)) => values.push(value),
            None => metrics.push((field, vec![value])),
        }
    }
}

/// Files of this name in and below a folder.
fn find(folder: &Path, name: &str, found: &mut Vec<PathBuf>) -> Result<()> {
    for entry in std::fs::read_dir(folder).io("list", folder)? {
        let entry = entry.io("list", folder)?;
        let kind = entry.file_type().io("list", folder)?;
        if kind.is_dir() {
            find(&entry.path(), name, found)?;
        } else if entry.file_name() == name {
            found.push(entry.path());
        }
    }
    Ok(())
}

fn model_name(log: &Path, is_workdir: bool) -> Result<String> {
    let folder = log.parent().unwrap_or(Path::new("."));
    let named = if is_workdir { only_folder(folder)? } else { folder.to_owned() };
    // The folder that the command was started in has no name of its own.
    let full = if named.file_name().is_none() { named.canonicalize().unwrap_or(named) } else { named };
    Ok(full.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default())
}

fn only_folder(folder: &Path) -> Result<PathBuf> {
    let mut folders = Vec::new();
    for entry in std::fs::read_dir(folder).io("list", folder)? {
        let path = entry.io("list", folder)?.path();
        if path.is_dir() {
            folders.push(path);
        }
    }
    match folders.len() {
        1 => Ok(folders.remove(0)),
        n => bail!("{}: {n} folders, wanted one that names the model", folder.display()),
    }
}

/// A Python dictionary of texts on one line.
fn line(name: &str, metrics: &Metrics, args: &ReportArgs) -> String {
    let mut entries = vec![("model".to_owned(), name.to_owned())];
    for (field, values) in metrics {
        if field == "Step" {
            entries.push((field.clone(), format!("{:.0}", values[0].trunc())));
            continue;
        }
        let factor = match field.chars().next() {
            Some('E') => args.energy_factor,
            Some('F') => args.force_factor.unwrap_or(0.0),
            _ => 1.0,
        };
        let n = values.len() as f64;
        let mean = values.iter().map(|x| x * factor).sum::<f64>() / n;
        let variance = values.iter().map(|x| (x * factor - mean).powi(2)).sum::<f64>() / n;
        entries.push((format!("{field}_MEAN"), decimals(mean)));
        entries.push((format!("{field}_STD"), decimals(variance.sqrt())));
    }
    let entries: Vec<String> =
        entries.iter().map(|(key, value)| format!("{}: {}", repr(key), repr(value))).collect();
    format!("{{{}}}\n", entries.join(", "))
}

fn decimals(x: f64) -> String {
    if x.is_nan() { "nan".into() } else { format!("{x:.4}") }
}

/// Text as Python writes it.
fn repr(text: &str) -> String {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    let inner = text.replace('\\', "\\\\");
    let inner = if quote == '\'' { inner.replace('\'', "\\'") } else { inner };
    format!("{quote}{inner}{quote}")
}
