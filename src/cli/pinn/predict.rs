//! `pinn predict`: evaluates structures with a trained model.

use super::note;
use crate::cli::{Command, typed};
use crate::error::{IoContext, Result};
use crate::export::atomic;
use crate::model::dp::options::Precision;
use crate::pinn::data::detect::DataSet;
use crate::pinn::data::extxyz_write::write_frame;
use crate::pinn::data::{Sample, Source};
use crate::pinn::predict::PinetPotential;
use clap::Args;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

pub(super) const COMMAND: Command = Command {
    name: "predict",
    about: "Evaluate structures with a trained model (Phalanx only)",
    examples: "Examples:\n  pinn predict model frames.xyz -o predicted.xyz\n  pinn predict model/model.ckpt-1000.phx frames.xyz\n\n\
               Extended xyz comes out: energy, forces and, where there is a cell, stress; charges and dipole of a dipole model. \
               Units are those of the training data times e_unit or d_unit; stress is dE/dstrain over the volume.",
    define: PredictArgs::augment_args,
    run: |matches, _| run(&typed::<PredictArgs>(matches)),
};

/// Atoms that are evaluated at once: enough to feed many cores. One structure is never divided.
const BATCH_ATOMS: usize = 2048;

/// The command line of `pinn predict`.
#[derive(Debug, Clone, clap::Args)]
struct PredictArgs {
    /// The folder of a model, or one of its checkpoints
    #[arg(value_name = "MODEL")]
    model: PathBuf,
    /// The structures: extended xyz, or what `pinn convert` reads
    #[arg(value_name = "DATA")]
    data: String,
    /// Their format: auto, tfr, runner, ase (xyz), qm9, deepmd, mimic
    #[arg(short, long, alias = "format", value_name = "FORMAT", default_value = "auto")]
    fmt: String,
    /// Where to write extended xyz [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Numbers to compute with: float32 or float64 [default: as it was trained]
    #[arg(long, value_name = "TYPE", value_parser = ["float32", "float64"])]
    precision: Option<String>,
}

fn run(args: &PredictArgs) -> Result<()> {
    let mut potential = PinetPotential::load(&args.model)?;
    if let Some(name) = &args.precision {
        let precision = if name == "float64" { Precision::Float64 } else { Precision::Float32 };
        potential = potential.with_precision(precision)?;
    }
    let source = DataSet::new(&args.data, &args.fmt)?.open()?;
    match &args.output {
        Some(path) => {
            atomic::write(path, |out| predict(&mut potential, &*source, out, path))?;
            note(&format!("{} structures: {}", source.len(), path.display()));
            Ok(())
        }
        None => {
            let mut out = BufWriter::new(std::io::stdout().lock());
            predict(&mut potential, &*source, &mut out, Path::new("standard output"))?;
            out.flush().io("write", Path::new("standard output"))
        }
    }
}

fn predict(
    potential: &mut PinetPotential,
    source: &dyn Source,
    out: &mut impl Write,
    path: &Path,
) -> Result<()> {
    let mut batch: Vec<Sample> = Vec::new();
    for index in 0..source.len() {
        batch.push(source.read_as_stored(index)?);
        let atoms: usize = batch.iter().map(Sample::n_atoms).sum();
        if atoms < BATCH_ATOMS && index + 1 < source.len() {
            continue;
        }
        let first = index + 1 - batch.len();
        let place = |k: usize| format!("{}: structure {}", source.place(), first + k);
        let found = potential.evaluate_all(&batch).map_err(|(k, e)| e.at(place(k)))?;
        for (sample, found) in batch.iter().zip(&found) {
            write_frame(out, sample, found).io("write", path)?;
        }
        batch.clear();
    }
    Ok(())
}
