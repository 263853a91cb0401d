//! `dp change-bias`: fits the energy bias of a model to other data, or sets it.

use super::literal::list;
use super::logging::LogArgs;
use super::{Command, systems, typed};
use crate::checkpoint::{Checkpoint, SUFFIX};
use crate::data::field::Field;
use crate::data::{System, Wants};
use crate::engine::choice::DeviceChoice;
use crate::error::{IoContext, Result};
use crate::export::{atomic, check_model_path, write_model};
use crate::infer::checkpoint::model_of;
use crate::infer::load::{load_checkpoint, load_model, model_file};
use crate::model::dp::spec::{DpModel, DpStatistics};
use crate::model::dp::statistics::Sums;
use crate::{bail, err};
use clap::Args;
use serde_json::json;
use std::io::Write;
use std::path::{Path, PathBuf};

pub(super) const COMMAND: Command = Command {
    name: "change-bias",
    about: "Fit the energy bias of a model to data, or set it",
    examples: "Examples:\n  dp change-bias model.dp -s data -n 10\n  dp change-bias model.dp -b -93.57 -187.1 -o new.dp",
    define: BiasArgs::augment_args,
    run: |matches, _| run(&typed(matches)),
};

/// The command line of `dp change-bias`.
#[derive(Debug, Clone, clap::Args)]
struct BiasArgs {
    /// Model file (model.dp, model.yaml) or checkpoint (model.ckpt, its folder)
    #[arg(value_name = "INPUT")]
    input: PathBuf,
    /// A folder that is searched for systems
    #[arg(short, long, value_name = "SYSTEM", default_value = ".", group = "data")]
    system: String,
    /// A text file with one system on each line
    #[arg(short = 'f', long, value_name = "FILE", group = "data")]
    datafile: Option<PathBuf>,
    /// The bias of each type in the order of the type map, eV
    #[arg(short, long, value_name = "BIAS", num_args = 1.., allow_negative_numbers = true, group = "data")]
    bias_value: Option<Vec<f64>>,
    /// Frames of each system, from its first; 0 means all
    #[arg(short, long, value_name = "N", default_value_t = 0)]
    numb_batch: usize,
    /// change: shift the bias by what the model leaves unexplained; set: fit it to the energies themselves
    #[arg(short, long, default_value = "change", value_parser = ["change", "set"])]
    mode: String,
    /// The file to write, by default INPUT with _updated before its ending
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// A branch of a multi-task model; refused, as models here have one task
    #[arg(long, value_name = "NAME")]
    model_branch: Option<String>,
    #[command(flatten)]
    log: LogArgs,
}

fn run(args: &BiasArgs) -> Result<()> {
    args.log.start()?;
    if let Some(name) = &args.model_branch {
        return Err(err!("--model-branch {name}: models here have one task").help("leave the flag away"));
    }
    let output = output_path(args)?;
    let saved = load_checkpoint(&args.input)?;
    let mut model = match &saved {
        Some((file, saved)) => model_of(saved).map_err(|e| e.at(file.display()))?,
        None => load_model(&args.input)?,
    };
    let before = model.stats.bias.clone();
    match &args.bias_value {
        Some(values) => model.stats.bias = given_bias(values, &model)?,
        None => fit(args, &mut model)?,
    }
    log::info!(
        "Change output bias of {} from {before:?} to {:?}.",
        list(&model.options.type_map),
        model.stats.bias
    );
    match saved.filter(|_| is_checkpoint(&output)) {
        Some((_, saved)) => write_checkpoint(&output, saved, &model.stats)?,
        None => write_model(&output, &model)?,
    }
    log::info!("Saved model to {}", output.display());
    Ok(())
}

fn is_checkpoint(path: &Path) -> bool {
    path.to_str().is_some_and(|name| name.ends_with(SUFFIX))
}

/// The file to write. Fails before any work where it can be none.
fn output_path(args: &BiasArgs) -> Result<PathBuf> {
    let file = model_file(&args.input)?;
    let file = std::fs::read_link(&file).map_or(file.clone(), |target| file.with_file_name(target));
    let output = args.output.clone().unwrap_or_else(|| {
        let text = file.to_string_lossy();
        let (name, ending) = text.rsplit_once('.').unwrap_or((&text, "dp"));
        format!("{name}_updated.{ending}").into()
    });
    if is_checkpoint(&output) {
        if !is_checkpoint(&file) {
            bail!("{}: a model file cannot become a checkpoint, it has no training state", output.display());
        }
        return Ok(output);
    }
    check_model_path(&output).map_err(|error| error.help("write a model file: -o new.dp or -o new.yaml"))?;
    Ok(output)
}

fn given_bias(values: &[f64], model: &DpModel) -> Result<Vec<f64>> {
    let names = &model.options.type_map;
    if values.len() != names.len() {
        return Err(err!("--bias-value: found {} numbers, wanted one for each of {names:?}", values.len()));
    }
    match values.iter().find(|x| !x.is_finite()) {
        Some(x) => bail!("--bias-value: {x} is not a bias"),
        None => Ok(values.to_vec()),
    }
}

/// Fits the bias to data. `set` takes the statistics of frame and atom parameters from the data as well, as DeePMD-kit does.
fn fit(args: &BiasArgs, model: &mut DpModel) -> Result<()> {
    let paths = match &args.datafile {
        Some(file) => systems::listed(file)?,
        None => systems::search(std::slice::from_ref(&args.system))?,
    };
    let (sums, predicted) = sample(args, &paths)?;
    let options = &model.options;
    let n_types = model.n_types();
    let spread;
    if args.mode == "change" {
        let shift;
        (shift, spread) = sums.bias_shift_and_spread(options, &predicted)?;
        model.stats.bias.iter_mut().zip(shift).for_each(|(bias, shift)| *bias += shift);
    } else {
        let new = sums.finish(options)?;
        spread = new.out_std[0];
        model.stats = DpStatistics {
            bias: new.bias,
            fparam_avg: new.fparam_avg,
            fparam_inv_std: new.fparam_inv_std,
            aparam_avg: new.aparam_avg,
            aparam_inv_std: new.aparam_inv_std,
            ..model.stats.clone()
        };
    }
    model.stats.out_std = vec![spread; n_types];
    Ok(())
}

/// The energies of the data, and what the model says about them.
fn sample(args: &BiasArgs, paths: &[String]) -> Result<(Sums, Vec<f64>)> {
    let mut predictor = super::test::predictor(&args.input, DeviceChoice::Auto)?;
    let options = predictor.model().options.clone();
    let wants = Wants { energy: true, ..predictor.wants() };
    let mut sums = Sums::default();
    let mut predicted = Vec::new();
    for path in paths {
        let system = System::open(path, predictor.type_map(), &wants)?;
        if !system.has(Field::Energy) {
            return Err(err!("{path}: found no energy in every set").help("the bias is fitted to energies"));
        }
        let n = if args.numb_batch == 0 { system.n_frames } else { args.numb_batch.min(system.n_frames) };
        let frames: Vec<usize> = (0..n).collect();
        let mut first = predicted.is_empty();
        predictor.for_each_batch(&system, &frames, |frames, prediction| {
            for frame in frames {
                let of_frame = Sums::of_outputs(&options, frame);
                sums = if first { of_frame } else { std::mem::take(&mut sums).merge(of_frame) };
                first = false;
            }
            predicted.extend(&prediction.energy);
            Ok(())
        })?;
    }
    Ok((sums, predicted))
}

/// The checkpoint with other statistics: training goes on from it.
fn write_checkpoint(path: &Path, mut saved: Checkpoint, stats: &DpStatistics) -> Result<()> {
    saved.header["statistics"] = json!(stats);
    atomic::write(path, |out| out.write_all(&saved.to_bytes()).io("write", path))
}
