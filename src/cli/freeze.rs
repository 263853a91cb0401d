//! `dp freeze`: turns a checkpoint into a model file.

use super::logging::LogArgs;
use super::{Command, typed};
use crate::err;
use crate::error::Result;
use crate::export::{check_model_path, write_model};
use crate::train::load::load_model;
use clap::Args;
use std::path::{Path, PathBuf};

pub(super) const COMMAND: Command = Command {
    name: "freeze",
    about: "Turn a checkpoint into a model file",
    examples: "Examples:\n  dp freeze -o model.dp\n  dp freeze -c runs/7/model.ckpt-1000.phx -o model.yaml",
    define: FreezeArgs::augment_args,
    run: |matches, _| run(&typed(matches)),
};

/// The command line of `dp freeze`.
#[derive(Debug, Clone, clap::Args)]
struct FreezeArgs {
    /// A checkpoint (model.ckpt, model.ckpt-1000.phx), or the folder whose newest one is meant
    #[arg(short, long, alias = "checkpoint", value_name = "PATH", default_value = ".")]
    checkpoint_folder: PathBuf,
    /// The model file: .dp (HDF5) or .yaml (text); .dp where no ending is given
    #[arg(short, long, value_name = "FILE", default_value = "frozen_model")]
    output: PathBuf,
    /// A branch of a multi-task model; refused, as models here have one task
    #[arg(long, alias = "model-branch", value_name = "NAME")]
    head: Option<String>,
    /// Nodes of a TensorFlow graph; there is no graph here, so it is refused
    #[arg(short, long, value_name = "NAMES")]
    node_names: Option<String>,
    /// Weights for NVNMD hardware; refused
    #[arg(short = 'w', long, value_name = "FILE")]
    nvnmd_weight: Option<PathBuf>,
    /// A Hessian among the outputs; a property of JAX files, so it is refused
    #[arg(long)]
    hessian: bool,
    /// The lower interface of an exported graph; there is no graph here, so it is refused
    #[arg(long, value_name = "KIND", value_parser = ["nlist", "graph"])]
    lower_kind: Option<String>,
    #[command(flatten)]
    log: LogArgs,
}

fn run(args: &FreezeArgs) -> Result<()> {
    args.log.start()?;
    refuse_foreign_flags(args)?;
    let output = output_path(&args.output)?;
    let model = load_model(&args.checkpoint_folder)?;
    write_model(&output, &model)?;
    log::info!("Saved frozen model to {}", output.display());
    log::info!("For LAMMPS and ASE, convert it with DeePMD-kit: {}", convert_line(&output, "pth"));
    Ok(())
}

/// The command of DeePMD-kit that makes a file for MD programs of a model file.
fn convert_line(model: &Path, ending: &str) -> String {
    format!("dp convert-backend {} {}", model.display(), model.with_extension(ending).display())
}

fn refuse_foreign_flags(args: &FreezeArgs) -> Result<()> {
    let foreign = [
        (args.head.is_some(), "--head", "models here have one task"),
        (
            args.node_names.is_some(),
            "--node-names",
            "a .dp file holds the model itself, not a graph of nodes",
        ),
        (args.nvnmd_weight.is_some(), "--nvnmd-weight", "models for NVNMD hardware are not supported"),
        (args.hessian, "--hessian", "only JAX files choose their outputs when they are written"),
        (args.lower_kind.is_some(), "--lower-kind", "a .dp file holds the model itself, not a graph"),
    ];
    match foreign.iter().find(|(given, _, _)| *given) {
        Some((_, flag, why)) => Err(err!("{flag}: {why}").help("leave the flag away")),
        None => Ok(()),
    }
}

/// The file to write. Fails before any work where its ending is not ours.
fn output_path(output: &Path) -> Result<PathBuf> {
    let output = match output.extension() {
        Some(_) => output.to_owned(),
        None => output.with_extension("dp"),
    };
    check_model_path(&output).map_err(|error| {
        let portable = output.with_extension("dp");
        error.help(format!(
            "freeze to .dp, then convert with DeePMD-kit: dp freeze -o {p}; dp convert-backend {p} {o}",
            p = portable.display(),
            o = output.display()
        ))
    })?;
    Ok(output)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_output_is_a_dp_file_unless_told_otherwise() {
        assert_eq!(output_path(Path::new("frozen_model")).unwrap(), Path::new("frozen_model.dp"));
        assert_eq!(output_path(Path::new("a/m.yaml")).unwrap(), Path::new("a/m.yaml"));
        let error = output_path(Path::new("m.pth")).unwrap_err();
        assert!(error.advice().unwrap().contains("dp convert-backend m.dp m.pth"), "{error}");
    }
}
