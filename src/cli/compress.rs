//! `dp compress`: DeePMD-kit puts tables in place of embedding nets, to evaluate them faster.
//!
//! Evaluation here takes the nets as short series, which is faster than a table and exact, so a table is of no use to it. Workflows
//! such as DP-GEN call the command anyway and go on with the file that it writes; they get the model as it is.

use super::backend::Backend;
use super::logging::LogArgs;
use super::{Command, Global, typed};
use crate::err;
use crate::error::Result;
use crate::export::{is_framework_file, write_portable};
use crate::infer::load::{load_branch, model_file};
use clap::Args;
use std::path::{Path, PathBuf};

pub(super) const COMMAND: Command = Command {
    name: "compress",
    about: "Copy a model for workflows that compress models; evaluation here needs no tables",
    examples: "Examples:\n  dp compress\n  dp --tf compress -i frozen_model.pb -o frozen_model_compressed.pb",
    define: CompressArgs::augment_args,
    run: |matches, global| run(&typed(matches), global),
};

/// The command line of `dp compress`.
#[derive(Debug, Clone, clap::Args)]
struct CompressArgs {
    /// The model: a model file or a checkpoint, with or without its ending
    #[arg(short, long, value_name = "MODEL", default_value = "frozen_model")]
    input: PathBuf,
    /// The file to write; without an ending it gets that of the backend, or of the input
    #[arg(short, long, value_name = "FILE", default_value = "frozen_model_compressed")]
    output: PathBuf,
    /// Step of the tables; without effect
    #[arg(short, long, value_name = "STEP", default_value_t = 0.01)]
    step: f64,
    /// Range of the second table; without effect
    #[arg(short, long, value_name = "TIMES", default_value_t = 5.0)]
    extrapolate: f64,
    /// How often to look for arguments beyond the tables; without effect
    #[arg(short, long, value_name = "STEPS", default_value_t = -1, allow_negative_numbers = true)]
    frequency: i64,
    /// Folder of DeePMD-kit's own work; without effect
    #[arg(short, long, value_name = "FOLDER", default_value = "model-compression")]
    checkpoint_folder: PathBuf,
    /// The training input, for the shortest distance of its data; without effect
    #[arg(short, long, value_name = "INPUT")]
    training_script: Option<PathBuf>,
    /// How ranks log; without effect
    #[arg(short, long, value_name = "MODE", value_parser = ["master", "collect", "workers"])]
    mpi_log: Option<String>,
    /// The branch of a multi-task checkpoint
    #[arg(long, alias = "model-branch", value_name = "NAME")]
    head: Option<String>,
    #[command(flatten)]
    log: LogArgs,
}

fn run(args: &CompressArgs, global: &Global) -> Result<()> {
    args.log.start()?;
    log::debug!(
        "without effect: step {}, extrapolate {}, frequency {}, checkpoint folder {}, training script {:?}, log of ranks {:?}",
        args.step,
        args.extrapolate,
        args.frequency,
        args.checkpoint_folder.display(),
        args.training_script,
        args.mpi_log
    );
    let input = model_file(&args.input)?;
    let output = output_path(&args.output, &input, global.backend);
    if !is_framework_file(&output) {
        return Err(refusal(&input, &output));
    }
    let mut model = load_branch(&args.input, args.head.as_deref())?;
    if model.tables.take().is_some() {
        log::warn!("{} is compressed already: its tables are left away", input.display());
    }
    write_portable(&output, &model)?;
    log::warn!(
        "{} holds the model as it is, without tables: evaluation here is faster and more exact without them. It is a .dp \
         (HDF5) for Phalanx and its libdeepmd_c.so; DeePMD-kit cannot read it under this name",
        output.display()
    );
    log::info!("Saved model to {}", output.display());
    Ok(())
}

/// The ending of the backend that was named, else that of the input.
fn output_path(output: &Path, input: &Path, backend: Option<Backend>) -> PathBuf {
    if output.extension().is_some() {
        return output.to_owned();
    }
    let of_input = input.extension().and_then(|e| e.to_str()).filter(|e| *e != "phx").unwrap_or("dp");
    output.with_extension(match backend {
        Some(backend) => backend.model_ending(),
        None => of_input,
    })
}

/// A portable file with tables is DeePMD-kit's to make, and one without would not be what was asked for.
fn refusal(input: &Path, output: &Path) -> crate::error::Error {
    let is_model = input.extension().is_some_and(|e| e == "dp" || e == "yaml" || e == "yml");
    let portable = if is_model { input.to_owned() } else { input.with_extension("dp") };
    err!(
        "{}: no tables are made here: evaluation needs none, use {} itself",
        output.display(),
        input.display()
    )
    .help(format!(
        "for DeePMD-kit make the tables with its own dp: dp --dp compress -i {} -o {} -t input.json",
        portable.display(),
        output.display()
    ))
}
