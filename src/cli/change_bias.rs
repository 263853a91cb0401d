//! `dp change-bias`: fits the energy bias of a model to other data, or sets it.

use super::literal::list;
use super::logging::LogArgs;
use super::{Command, systems, typed};
use crate::checkpoint::{Checkpoint, SUFFIX};
use crate::data::field::{Field, Need, OutputLabel};
use crate::data::{System, Wants};
use crate::engine::choice::DeviceChoice;
use crate::error::{IoContext, Result};
use crate::export::{atomic, check_model_path, write_model};
use crate::infer::branches::{self, BranchHeader, SavedBranches};
use crate::infer::load::{branch_of, load_branch, load_checkpoint, model_file};
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
    /// The branch of a multi-task checkpoint
    #[arg(long, value_name = "NAME")]
    model_branch: Option<String>,
    #[command(flatten)]
    log: LogArgs,
}

fn run(args: &BiasArgs) -> Result<()> {
    args.log.start()?;
    let output = output_path(args)?;
    let saved = load_checkpoint(&args.input)?;
    let head = args.model_branch.as_deref();
    let mut model = match &saved {
        Some((file, saved)) => branch_of(saved, head).map_err(|e| e.at(file.display()))?,
        None => load_branch(&args.input, head)?,
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
        Some((_, saved)) => write_checkpoint(&output, saved, head, &model.stats)?,
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
    let (names, width) = (&model.options.type_map, model.options.fitting.output().width);
    if values.len() != names.len() * width {
        let wanted = if width == 1 { "one".to_string() } else { width.to_string() };
        return Err(err!(
            "--bias-value: found {} numbers, wanted {wanted} for each of {names:?}",
            values.len()
        ));
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
    let sampled = sample(args, &paths)?;
    let options = &model.options;
    if args.mode == "change" {
        let (shift, spread) = sampled.rest.shift_and_spread(options, sampled.n_frames)?;
        model.stats.bias.iter_mut().zip(shift).for_each(|(bias, shift)| *bias += shift);
        model.stats.out_std = spread;
    } else {
        let new = sampled.sums.finish(options)?;
        model.stats = DpStatistics {
            bias: new.bias,
            out_std: new.out_std,
            fparam_avg: new.fparam_avg,
            fparam_inv_std: new.fparam_inv_std,
            aparam_avg: new.aparam_avg,
            aparam_inv_std: new.aparam_inv_std,
            ..model.stats.clone()
        };
    }
    Ok(())
}

/// The labels of the data, and what the model leaves unexplained of them.
struct Sampled {
    sums: Sums,
    rest: Sums,
    n_frames: usize,
}

fn sample(args: &BiasArgs, paths: &[String]) -> Result<Sampled> {
    let mut predictor =
        super::test::predictor(&args.input, args.model_branch.as_deref(), DeviceChoice::Auto)?;
    let options = predictor.model().options.clone();
    let is_energy = options.fitting.is_energy();
    let output = predictor.model().output.clone();
    let label = OutputLabel {
        name: output.name.clone(),
        width: output.width,
        of_frames: Need::Optional,
        of_atoms: Need::Optional,
        selected: if output.made.is_turned() { options.types_with_output() } else { Vec::new() },
    };
    let wants = Wants { energy: is_energy, output: (!is_energy).then_some(label), ..predictor.wants() };
    let (mut sums, mut rest, mut n_frames) = (None, None, 0);
    let add = |sums: &mut Option<Sums>, more: Sums| {
        *sums = Some(match sums.take() {
            Some(before) => before.merge(more),
            None => more,
        });
    };
    for path in paths {
        let system = System::open(path, predictor.type_map(), &wants)?;
        let fields = if is_energy { &[Field::Energy][..] } else { &[Field::Output, Field::AtomOutput] };
        if !fields.iter().any(|&field| system.has(field)) {
            let name = &output.name;
            return Err(err!("{path}: found no {name} in every set").help("the bias is fitted to labels"));
        }
        let n = if args.numb_batch == 0 { system.n_frames } else { args.numb_batch.min(system.n_frames) };
        let frames: Vec<usize> = (0..n).collect();
        predictor.for_each_batch(&system, &frames, |frames, prediction| {
            let mut first = 0;
            for (f, frame) in frames.iter().enumerate() {
                add(&mut sums, Sums::of_outputs(&options, frame));
                add(&mut rest, Sums::of_outputs(&options, &prediction.taken_off(frame.clone(), f, first)));
                first += frame.n_atoms();
            }
            n_frames += frames.len();
            Ok(())
        })?;
    }
    Ok(Sampled { sums: sums.unwrap_or_default(), rest: rest.unwrap_or_default(), n_frames })
}

/// The checkpoint with other statistics: training goes on from it.
fn write_checkpoint(
    path: &Path,
    mut saved: Checkpoint,
    head: Option<&str>,
    stats: &DpStatistics,
) -> Result<()> {
    if SavedBranches::is_one(&saved) {
        let mut branches = BranchHeader::list(&saved.header)?;
        let name = branches::find(&branches, head)?.name.clone();
        branches.iter_mut().filter(|b| b.name == name).for_each(|b| b.statistics = stats.clone());
        saved.header["branches"] = json!(branches);
    } else {
        saved.header["statistics"] = json!(stats);
    }
    atomic::write(path, |out| out.write_all(&saved.to_bytes()).io("write", path))
}
