//! `dp convert-backend`: a model file in another format.
//!
//! `.dp` and `.yaml` are converted here, as trees: models of every kind, digit by digit. Files of one framework are left to an
//! installed DeePMD-kit.

use super::kit::Kit;
use super::logging::LogArgs;
use super::{Command, typed};
use crate::error::{IoContext, Result, quoted};
use crate::export::{check_model_path, is_framework_file, read_model_tree, write_model, write_model_tree};
use crate::infer::load::load_model;
use crate::model::dp::spec::DpModel;
use crate::{bail, err};
use clap::Args;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

pub(super) const COMMAND: Command = Command {
    name: "convert-backend",
    about: "Convert a model file to another format",
    examples: "Examples:\n  dp convert-backend model.dp model.yaml\n  dp convert-backend model.dp model.pth",
    define: ConvertArgs::augment_args,
    run: |matches, _| run(&typed(matches)),
};

/// The command line of `dp convert-backend`.
#[derive(Debug, Clone, clap::Args)]
struct ConvertArgs {
    /// Model file (model.dp, model.yaml), checkpoint, or a file of one framework (.pth, .pb, ...)
    #[arg(value_name = "INPUT")]
    input: PathBuf,
    /// The file to write: .dp, .yaml; others (.pth, .pb, ...) through an installed DeePMD-kit
    #[arg(value_name = "OUTPUT")]
    output: PathBuf,
    /// Virials of atoms in .pt2 files; handed on to DeePMD-kit
    #[arg(long)]
    atomic_virial: bool,
    #[command(flatten)]
    log: LogArgs,
}

fn run(args: &ConvertArgs) -> Result<()> {
    args.log.start()?;
    let flags: &[&str] = if args.atomic_virial { &["--atomic-virial"] } else { &[] };
    if !is_framework_file(&args.output) {
        check_model_path(&args.output)?;
    }
    match (Source::of(&args.input)?, is_framework_file(&args.output)) {
        (Source::Portable | Source::Checkpoint, false) => convert_here(args)?,
        (Source::Checkpoint, true) => {
            let portable = args.output.with_extension("dp");
            let wish =
                format!("{} (after {} here)", line(&portable, &args.output), line(&args.input, &portable));
            with_kit(&load_model(&args.input)?, &args.output, flags, &wish)?;
        }
        (Source::Portable, true) | (Source::Framework, _) => {
            let kit = Kit::find(&line(&args.input, &args.output))?;
            through(&kit, &args.input, &args.output, flags)?;
        }
    }
    log::info!("Saved model to {}", args.output.display());
    Ok(())
}

/// What the input is.
enum Source {
    /// A `.dp` or `.yaml` under a name that DeePMD-kit knows it by.
    Portable,
    /// A checkpoint, or a `.dp` under the name of a framework's file, as `dp freeze` writes it.
    Checkpoint,
    Framework,
}

impl Source {
    fn of(input: &Path) -> Result<Source> {
        if check_model_path(input).is_ok() {
            // DeePMD-kit does not say in words what is wrong with a broken file.
            return read_model_tree(input).map(|_| Source::Portable);
        }
        if !is_framework_file(input) || read_model_tree(input).is_ok() {
            return Ok(Source::Checkpoint);
        }
        match input.exists() {
            true => Ok(Source::Framework),
            false => bail!("{}: no such model file", input.display()),
        }
    }
}

/// Between our own formats. The tree of a model file is kept as it is; a checkpoint becomes a model file.
fn convert_here(args: &ConvertArgs) -> Result<()> {
    if args.atomic_virial {
        log::warn!(
            "--atomic-virial has no effect: a {} gives virials of atoms anyway",
            args.output.display()
        );
    }
    let is_model_file = check_model_path(&args.input).is_ok() || is_framework_file(&args.input);
    if is_model_file {
        return write_model_tree(&args.output, &read_model_tree(&args.input)?);
    }
    write_model(&args.output, &load_model(&args.input)?)
}

/// DeePMD-kit's command for this conversion.
pub fn line(input: &Path, output: &Path) -> String {
    format!("dp convert-backend {} {}", quoted(input), quoted(output))
}

/// Writes a model as a file of one framework, through an installed DeePMD-kit.
/// `wish` is what a user would run where DeePMD-kit is installed.
pub fn with_kit(model: &DpModel, output: &Path, flags: &[&str], wish: &str) -> Result<()> {
    let kit = Kit::find(wish)?;
    let folder = tempfile::tempdir().map_err(|e| err!("cannot create a temporary folder: {e}"))?;
    let portable = folder.path().join("model.dp");
    write_model(&portable, model)?;
    through(&kit, &portable, output, flags)
}

/// Lets DeePMD-kit convert a file. It writes beside the output; what is complete is renamed.
fn through(kit: &Kit, input: &Path, output: &Path, flags: &[&str]) -> Result<()> {
    let folder = match output.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let Some(name) = output.file_name() else { bail!("{}: not a file name", output.display()) };
    let place =
        tempfile::Builder::new().prefix(".model-").tempdir_in(folder).io("create a folder", folder)?;
    let made = place.path().join(name);
    let mut arguments = vec![OsStr::new("convert-backend"), input.as_os_str(), made.as_os_str()];
    arguments.extend(flags.iter().map(OsStr::new));
    kit.run(&arguments)?;
    if !made.exists() {
        bail!("DeePMD-kit said that all was well, but did not write {}", output.display());
    }
    std::fs::rename(&made, output).io("write", output)
}
