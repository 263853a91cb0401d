//! `dp freeze`: turns a checkpoint into a model file.

use super::backend::Backend;
use super::convert_backend;
use super::logging::LogArgs;
use super::{Command, Global, typed};
use crate::err;
use crate::error::{Result, quoted};
use crate::export::{check_model_path, is_framework_file, write_model, write_portable};
use crate::infer::load::load_branch;
use clap::Args;
use std::path::PathBuf;

pub(super) const COMMAND: Command = Command {
    name: "freeze",
    about: "Turn a checkpoint into a model file",
    examples: "Examples:\n  dp freeze -o model.dp\n  dp freeze -c runs/7/model.ckpt-1000.phx -o model.yaml\n  \
               dp freeze -o frozen_model.pth --convert\n  dp freeze --head water -o water.dp",
    define: FreezeArgs::augment_args,
    run: |matches, global| run(&typed(matches), global),
};

/// The command line of `dp freeze`.
#[derive(Debug, Clone, clap::Args)]
struct FreezeArgs {
    /// A checkpoint (model.ckpt, model.ckpt-1000.phx), or the folder whose newest one is meant
    #[arg(short, long, alias = "checkpoint", value_name = "PATH", default_value = ".")]
    checkpoint_folder: PathBuf,
    /// The model file: .dp (HDF5) or .yaml (text). Under the name of a framework's file (.pb, .pth) it is a .dp still, for workflows
    /// that want such a name. Without an ending: that of the backend named before the command (--tf: .pb, --pt: .pth), else .dp
    #[arg(short, long, value_name = "FILE", default_value = "frozen_model")]
    output: PathBuf,
    /// Let an installed DeePMD-kit make a real .pb, .pth, ... (Phalanx only)
    #[arg(long)]
    convert: bool,
    /// The branch of a multi-task checkpoint
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

fn run(args: &FreezeArgs, global: &Global) -> Result<()> {
    args.log.start()?;
    refuse_foreign_flags(args)?;
    let output = output_path(args, global.backend)?;
    let model = load_branch(&args.checkpoint_folder, args.head.as_deref())?;
    match (is_framework_file(&output), args.convert) {
        (true, true) => {
            let portable = output.with_extension("dp");
            let line = convert_backend::line(&portable, &output);
            let wish = format!("{line} (after dp freeze -o {} here)", portable.display());
            convert_backend::with_kit(&model, &output, &[], &wish)?
        }
        (true, false) => write_portable(&output, &model)?,
        _ => write_model(&output, &model)?,
    }
    log::info!("Saved frozen model to {}", output.display());
    match (is_framework_file(&output), args.convert) {
        (true, true) => {}
        (true, false) => log::warn!(
            "{o} is a .dp (HDF5) under another name: Phalanx and its libdeepmd_c.so under LAMMPS read it, DeePMD-kit does \
             not. For a real one: dp freeze -o {} --convert",
            quoted(&output),
            o = output.display()
        ),
        _ => log::info!(
            "For DeePMD-kit's own LAMMPS and ASE, convert it: {}",
            convert_backend::line(&output, &output.with_extension("pth"))
        ),
    }
    Ok(())
}

fn refuse_foreign_flags(args: &FreezeArgs) -> Result<()> {
    let foreign = [
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

/// The file to write. Fails before any work where its ending is none of a model.
fn output_path(args: &FreezeArgs, backend: Option<Backend>) -> Result<PathBuf> {
    let output = match args.output.extension() {
        Some(_) => args.output.clone(),
        None => args.output.with_extension(backend.map_or("dp", Backend::model_ending)),
    };
    if !is_framework_file(&output) {
        check_model_path(&output)?;
        if args.convert {
            return Err(err!("--convert: {} needs no conversion", output.display())
                .help("it makes files of one framework: -o frozen_model.pth, -o frozen_model.pb"));
        }
    }
    Ok(output)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn output(line: &str) -> Result<PathBuf> {
        let matches = super::super::definition().try_get_matches_from(line.split_whitespace()).unwrap();
        let backend = typed::<super::super::BackendFlags>(&matches).resolve(None).unwrap();
        output_path(&typed(matches.subcommand().unwrap().1), backend)
    }

    #[test]
    fn the_output_is_a_dp_file_unless_told_otherwise() {
        for (line, want) in [
            ("dp freeze", "frozen_model.dp"),
            ("dp --tf freeze", "frozen_model.pb"),
            ("dp --pt freeze", "frozen_model.pth"),
            ("dp --pt freeze -o m.dp", "m.dp"),
            ("dp freeze -o a/m.yaml", "a/m.yaml"),
            ("dp freeze -o m.pth", "m.pth"),
        ] {
            assert_eq!(output(line).unwrap(), Path::new(want), "{line}");
        }
        assert!(output("dp freeze -o m.onnx").unwrap_err().message().contains(".onnx"));
        assert!(output("dp freeze -o m.dp --convert").unwrap_err().message().contains("--convert"));
    }
}
