//! The whole input file, as meant.

use crate::config::check::{check, count, did_you_mean};
use crate::config::registry;
use crate::config::{Section, doc, schema};
use crate::data::options::{BatchSize, DataOptions, Mix, SystemWeights};
use crate::data::type_names::type_names;
use crate::error::{ErrorKind, Result};
use crate::loss::{LOSSES, LossChoice};
use crate::memory::afford;
use crate::model::dp::options::{ModelOptions, Precision};
use crate::optim::kalman::KalmanOptions;
use crate::optim::options::LearningRatePlan;
use crate::optim::{OPTIMIZERS, OptimizerChoice};
use crate::train::compat::modernise;
use crate::train::full_validation::ValidatingOptions;
use crate::train::keys::INPUT;
use crate::train::options::InputSource;
use crate::{bail, err};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A training input with every default filled in.
#[derive(Debug, Clone)]
pub struct Input {
    pub model: ModelOptions,
    /// Becomes a schedule once the number of steps is known.
    pub learning_rate: LearningRatePlan,
    pub loss: LossChoice,
    pub optimizer: OptimizerChoice,
    pub training: TrainingOptions,
    pub validating: ValidatingOptions,
}

/// The `training` section.
#[derive(Debug, Clone)]
pub struct TrainingOptions {
    pub training_data: DataOptions,
    pub validation_data: Option<DataOptions>,
    pub length: Length,
    pub seed: u64,
    pub disp_file: PathBuf,
    pub disp_freq: u64,
    /// Batches of the validation set that a display step averages over.
    pub numb_btch: usize,
    pub save_freq: u64,
    pub save_ckpt: PathBuf,
    pub max_ckpt_keep: usize,
    /// Whether to go on from the newest complete checkpoint (ours).
    pub resume: bool,
    /// Whether a run that continues keeps its number of batches a step (ours).
    pub keep_global_batch: bool,
    /// Whether a new run sets aside what an earlier one left (ours).
    pub backup: bool,
    /// In place of it: a part of all that are saved.
    pub ckpt_keep_ratio: Option<f64>,
    /// A running mean of the parameters.
    pub ema: Option<EmaOptions>,
    pub disp_training: bool,
    pub disp_avg: bool,
    pub change_bias_after_training: bool,
    pub time_training: bool,
    pub stat_file: Option<PathBuf>,
    /// Gradients with a larger norm are scaled down to it; 0 means never.
    pub gradient_max_norm: f64,
    pub tensorboard: bool,
    pub tensorboard_log_dir: PathBuf,
    pub tensorboard_freq: u64,
    pub profiling: bool,
    pub profiling_file: PathBuf,
    /// Draws that one rank adds up before the optimiser steps (ours).
    pub gradient_accumulation: usize,
    /// Ranks that work on one batch together (ours).
    pub ranks_per_frame: RanksPerFrame,
    /// The same bits for every number of ranks and threads (ours).
    pub reproducible: bool,
    /// Memory for prepared frames (ours).
    pub geometry_cache_bytes: u64,
    /// Part of the free memory of a GPU in which frames stay (ours).
    pub gpu_memory: f64,
    /// How products of float32 networks are made on a GPU (ours).
    pub gpu_products: GpuProducts,
    /// A rank that is silent for so long counts as lost (ours).
    pub stall_timeout: Duration,
}

/// A running mean of the parameters.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EmaOptions {
    /// What is left of it after a step.
    pub decay: f64,
    /// Checkpoints of it that are kept.
    pub keep: usize,
}

/// How many ranks work on one batch together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RanksPerFrame {
    Some(usize),
    All,
}

impl RanksPerFrame {
    /// The number among `size` ranks, which it must divide.
    pub fn among(self, size: usize) -> Result<usize> {
        let each = match self {
            RanksPerFrame::All => size,
            RanksPerFrame::Some(each) => each,
        };
        if size.is_multiple_of(each) {
            return Ok(each);
        }
        let fitting: Vec<String> =
            (1..=size).filter(|n| size.is_multiple_of(*n)).map(|n| n.to_string()).collect();
        Err(err!("training.ranks_per_frame: {} cannot form groups of {each}", count(size, "rank"))
            .help(format!("wanted one of {}, or \"all\"", fitting.join(", ")))
            .of_kind(ErrorKind::Input))
    }
}

/// How products of float32 networks are made on a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GpuProducts {
    /// With the precision of float32.
    Full,
    /// Factors rounded to ten bits.
    Tf32,
    /// Factors rounded to seven bits.
    Bf16,
}

/// How long to train.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Length {
    Steps(u64),
    /// Times the (weighted) size of the training set.
    Epochs(f64),
}

/// The reference of all keys of an input, from the tables that check them: what `dp doc-train-input` prints.
pub fn doc_train_input() -> String {
    let preface = "All keys of a training input, a JSON or YAML file. Objects are nested as they are nested here. \
        Keys that start with an underscore are comments. Keys marked \"Phalanx only\" are unknown to DeePMD-kit; \
        those that DeePMD-kit has and Phalanx has not are marked too.";
    doc::reference("Training input", preface, &INPUT)
}

/// The same as a JSON Schema, for editors.
pub fn input_schema() -> Value {
    schema::json_schema("Training input of Phalanx", &INPUT)
}

/// The same in the form of DeePMD-kit's `dp doc-train-input --out-type json`.
pub fn input_arguments() -> Value {
    schema::arguments(&INPUT)
}

impl Input {
    /// Reads an input file: the options as meant, and the same as JSON with all defaults, which is `out.json`.
    ///
    /// Without `training.seed` a random one is taken; it is part of both results.
    pub fn read(path: &Path) -> Result<(Input, Value)> {
        Self::of(&InputSource::File(path.to_owned()))
    }

    /// As [`Input::read`], wherever the input comes from.
    pub fn of(source: &InputSource) -> Result<(Input, Value)> {
        let read = source.read().and_then(|written| Self::from_value(written, &source.name(), random_seed));
        // A file that cannot be read is a kind of its own; all else is a mistake in what it says.
        read.map_err(|e| if e.kind() == ErrorKind::Other { e.of_kind(ErrorKind::Input) } else { e })
    }

    /// Resolves an input that was read from `file`; `new_seed` is asked where `training.seed` is absent.
    pub fn from_value(written: Value, file: &str, new_seed: impl FnOnce() -> u64) -> Result<(Input, Value)> {
        let (input, full) = Self::resolved(written, file, new_seed)?;
        refuse_branch_keys(&full).map_err(|e| e.at(file))?;
        Ok((input, full))
    }

    /// As [`Input::from_value`], of one branch of a multi-task training with a seed.
    pub fn of_branch(written: Value, place: &str) -> Result<(Input, Value)> {
        Self::resolved(written, place, || unreachable!("a branch has the seed of the run"))
    }

    fn resolved(mut written: Value, file: &str, new_seed: impl FnOnce() -> u64) -> Result<(Input, Value)> {
        let moved = modernise(&mut written).map_err(|e| e.at(file))?;
        let checked = check(&INPUT, &written, file)?;
        for note in moved.iter().chain(&checked.notes) {
            log::warn!("{file}: {note}");
        }
        let mut full = checked.value;
        LearningRatePlan::fill_stop_lr(&mut full["learning_rate"]);
        fill_type_map(&mut full).map_err(|e| e.at(file))?;
        if full["training"]["seed"].is_null() {
            let seed = new_seed();
            log::info!("training.seed: {seed}, taken at random");
            full["training"]["seed"] = seed.into();
        }
        let input = Self::resolve(&full).map_err(|e| e.at(file))?;
        Ok((input, full))
    }

    fn resolve(full: &Value) -> Result<Input> {
        let root = Section::root(full);
        let training = root.section("training");
        let loss = registry::resolve(LOSSES, &root.section("loss"))?;
        let save_ckpt = save_ckpt(&training);
        let input = Input {
            validating: ValidatingOptions::resolve(
                &root.section("validating"),
                &training,
                &save_ckpt,
                &loss,
            )?,
            model: ModelOptions::resolve(&root.section("model"))?,
            learning_rate: LearningRatePlan::resolve(&root.section("learning_rate"))?,
            loss,
            optimizer: registry::resolve(OPTIMIZERS, &root.section("optimizer"))?,
            training: TrainingOptions::resolve(&training)?,
        };
        input.loss.check(&input.model.fitting)?;
        let filters = input.optimizer.options::<KalmanOptions>().is_some();
        if filters && !input.model.fitting.is_energy() {
            return Err(err!(
                "optimizer.type: LKF looks at energies and forces, which this model does not predict"
            )
            .help("take another optimizer"));
        }
        if filters && input.training.gradient_max_norm > 0.0 {
            return Err(err!(
                "training.gradient_max_norm: LKF makes no gradient of the loss that could be cut down"
            )
            .help("leave the key out, or take another optimizer"));
        }
        let mixed = training.optional_section("mixed_precision").is_some();
        if mixed && input.model.precision() == Precision::Float64 {
            return Err(training
                .error("mixed_precision", err!("the networks have float64"))
                .help("write \"precision\": \"float32\" into model.descriptor and model.fitting_net"));
        }
        if let Length::Steps(steps) = input.training.length {
            input.learning_rate.for_steps(steps)?; // a warm-up longer than the run is known already
        }
        input.check_memory()?;
        Ok(input)
    }

    /// Refuses sizes that no memory would hold, by their keys.
    fn check_memory(&self) -> Result<()> {
        // The numbers of a parameter: itself, its gradient, two moments, and itself once more in a checkpoint.
        const COPIES: u128 = 5 * 8;
        /// What is kept of each batch of a step.
        const LOSS_BYTES: u128 = 256;
        let [embedding, fitting] = self.model.n_params();
        afford(COPIES * embedding, format_args!("model.descriptor.neuron: {embedding} parameters"))?;
        afford(COPIES * fitting, format_args!("model.fitting_net.neuron: {fitting} parameters"))?;
        // Where sums are exact, the gradient of each batch is kept until the step is done.
        let gradient = if self.training.reproducible { 8 * (embedding + fitting) } else { 0 };
        let batches = self.training.gradient_accumulation as u128;
        afford(
            batches * (LOSS_BYTES + gradient),
            format_args!("training.gradient_accumulation: {batches} batches a step"),
        )
    }
}

/// Refuses what only a multi-task training has.
fn refuse_branch_keys(full: &Value) -> Result<()> {
    let keys = [
        ("/model/shared_dict", "model.shared_dict"),
        ("/training/data_dict", "training.data_dict"),
        ("/training/model_prob", "training.model_prob"),
        ("/training/num_epoch_dict", "training.num_epoch_dict"),
        ("/loss_dict", "loss_dict"),
    ];
    if let Some((_, path)) = keys.iter().find(|(place, _)| full.pointer(place).is_some()) {
        return Err(err!("{path}: only a multi-task training has it, and model.model_dict is not there")
            .help("give the models of all branches in model.model_dict, or leave the key out"));
    }
    let cases = full.pointer("/model/fitting_net/dim_case_embd");
    if cases.and_then(Value::as_u64).is_some_and(|n| n > 0) {
        return Err(err!(
            "model.fitting_net.dim_case_embd: only branches of a multi-task training are told apart"
        )
        .help("leave the key out"));
    }
    Ok(())
}

/// Where the input does not name the types, the training data does.
fn fill_type_map(full: &mut Value) -> Result<()> {
    if full.pointer("/model/type_map").is_some_and(|names| !names.is_null()) {
        return Ok(());
    }
    let training = Section::root(full).section("training");
    let names = type_names(&data_options(&training.section("training_data"))?);
    let names = names.map_err(|e| e.at("training.training_data"))?;
    log::info!("model.type_map: {}, as the training data has it", names.join(" "));
    full["model"]["type_map"] = names.into();
    Ok(())
}

/// A seed from the random state that the standard library takes from the operating system; 32 bits, as in DeePMD-kit.
pub fn random_seed() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::collections::hash_map::RandomState::new().build_hasher().finish() & 0xffff_ffff
}

/// How products of float32 networks are made; `mixed_precision` is DeePMD-kit's word for one of the ways.
fn gpu_products(training: &Section) -> Result<GpuProducts> {
    let own = match training.text("gpu_products") {
        "tf32" => GpuProducts::Tf32,
        "bf16" => GpuProducts::Bf16,
        _ => GpuProducts::Full,
    };
    match (training.optional_section("mixed_precision").is_some(), own) {
        (false, _) => Ok(own),
        (true, GpuProducts::Tf32) => Err(training
            .error("mixed_precision", err!("gpu_products asks for tf32, and this for bfloat16"))
            .help("leave out one of them")),
        (true, _) => Ok(GpuProducts::Bf16),
    }
}

/// What the paths of checkpoints start with.
fn save_ckpt(training: &Section) -> PathBuf {
    let folder = training.optional_text("save_dir").map(PathBuf::from).unwrap_or_default();
    folder.join(training.text("save_ckpt"))
}

impl TrainingOptions {
    fn resolve(section: &Section) -> Result<TrainingOptions> {
        let path = |key: &str| PathBuf::from(section.text(key));
        for key in ["disp_file", "save_ckpt", "save_dir", "stat_file"] {
            if section.optional_text(key).is_some_and(|name| name.trim().is_empty()) {
                return Err(section.error(key, err!("found \"\", wanted the name of a file")));
            }
        }
        for (key, example) in [("disp_file", "lcurve.out"), ("save_ckpt", "model.ckpt")] {
            let name = section.text(key);
            if name.ends_with('/') {
                let error = err!("found \"{name}\", a folder, wanted the name of a file");
                return Err(section.error(key, error).help(format!("for example {name}{example}")));
            }
        }
        let validation = section.optional_section("validation_data");
        Ok(TrainingOptions {
            training_data: data_options(&section.section("training_data"))?,
            validation_data: validation.as_ref().map(data_options).transpose()?,
            length: length(section)?,
            seed: section.int("seed"),
            disp_file: path("disp_file"),
            disp_freq: section.int("disp_freq"),
            numb_btch: validation.map_or(1, |data| data.int("numb_btch")),
            save_freq: section.int("save_freq"),
            save_ckpt: save_ckpt(section),
            max_ckpt_keep: section.int("max_ckpt_keep"),
            resume: section.text("resume") == "auto",
            keep_global_batch: section.bool("keep_global_batch"),
            backup: section.bool("backup"),
            ckpt_keep_ratio: section.optional_float("ckpt_keep_ratio"),
            ema: section.bool("enable_ema").then(|| EmaOptions {
                decay: section.float("ema_decay"),
                keep: section.optional_int("ema_ckpt_keep").unwrap_or(section.int("max_ckpt_keep")),
            }),
            disp_training: section.bool("disp_training"),
            disp_avg: section.bool("disp_avg"),
            change_bias_after_training: section.bool("change_bias_after_training"),
            time_training: section.bool("time_training"),
            stat_file: section.optional_text("stat_file").map(PathBuf::from),
            gradient_max_norm: section.optional_float("gradient_max_norm").unwrap_or(0.0),
            tensorboard: section.bool("tensorboard"),
            tensorboard_log_dir: path("tensorboard_log_dir"),
            tensorboard_freq: section.int("tensorboard_freq"),
            profiling: section.bool("profiling"),
            profiling_file: path("profiling_file"),
            gradient_accumulation: section.int("gradient_accumulation"),
            ranks_per_frame: match section.optional_text("ranks_per_frame") {
                Some(_) => RanksPerFrame::All,
                None => RanksPerFrame::Some(section.int("ranks_per_frame")),
            },
            reproducible: section.bool("reproducible"),
            geometry_cache_bytes: (section.float("geometry_cache") * 1e6) as u64,
            gpu_memory: section.float("gpu_memory").min(1.0),
            gpu_products: gpu_products(section)?,
            stall_timeout: stall_timeout(section)?,
        })
    }
}

fn stall_timeout(section: &Section) -> Result<Duration> {
    let seconds = section.float("stall_timeout");
    Duration::try_from_secs_f64(seconds)
        .map_err(|_| section.error("stall_timeout", err!("{seconds} s are too long for a clock")))
}

fn length(section: &Section) -> Result<Length> {
    match (section.optional_int::<u64>("numb_steps"), section.optional_float("numb_epoch")) {
        (Some(steps), None) => Ok(Length::Steps(steps)),
        (None, Some(epochs)) => Ok(Length::Epochs(epochs)),
        (Some(_), Some(_)) => Err(section
            .error("numb_epoch", err!("is given together with numb_steps"))
            .help("both say how long to train: keep one of them")),
        (None, None) => Err(section
            .error("numb_steps", err!("missing; wanted the number of steps"))
            .help("write numb_steps, or numb_epoch for a number of passes through the data")),
    }
}

/// Resolves `training_data` or `validation_data`.
fn data_options(section: &Section) -> Result<DataOptions> {
    let search = section.optional_text("systems").is_some();
    let systems = match section.optional_text("systems") {
        Some(one) => vec![one.to_string()],
        None => section.texts("systems"),
    };
    if systems.is_empty() || systems.iter().any(String::is_empty) {
        let found = if systems.is_empty() { "an empty list" } else { "an empty name" };
        return Err(section.error("systems", err!("found {found}, wanted folders with data")));
    }
    let batch_size = match (section.optional_text("batch_size"), section.optional_list("batch_size")) {
        (Some(text), _) => parse_batch_size(text).map_err(|e| section.error("batch_size", e))?,
        (_, Some(list)) => {
            enough_for_systems(section, "batch_size", list.len(), &systems, search)?;
            BatchSize::List(section.ints("batch_size"))
        }
        _ => BatchSize::Fixed(section.int("batch_size")),
    };
    Ok(DataOptions {
        weights: weights(section, &systems, search)?,
        patterns: section.optional_list("rglob_patterns").map(|_| section.texts("rglob_patterns")),
        systems,
        search,
        batch_size,
        min_pair_dist: section.optional_float("min_pair_dist").unwrap_or(0.0),
    })
}

/// A list with a number for each system is never shorter than the list of systems. It may be longer: an entry can
/// be a pattern that stands for several.
fn enough_for_systems(
    section: &Section,
    key: &str,
    n: usize,
    systems: &[String],
    search: bool,
) -> Result<()> {
    if search || n >= systems.len() {
        return Ok(());
    }
    let error = err!("{} for {}", count(n, "number"), count(systems.len(), "system"));
    Err(section.error(key, error).help("write one number for each system"))
}

fn weights(section: &Section, systems: &[String], search: bool) -> Result<SystemWeights> {
    let Some(list) = section.optional_list("sys_probs") else {
        return parse_auto_prob(section.text("auto_prob")).map_err(|e| section.error("auto_prob", e));
    };
    let probs: Vec<f64> = list.iter().filter_map(Value::as_f64).collect();
    enough_for_systems(section, "sys_probs", probs.len(), systems, search)?;
    let given: f64 = probs.iter().filter(|p| **p >= 0.0).sum();
    let has_rest = probs.iter().any(|p| *p < 0.0);
    if given > 1.0 + 1e-5 || (!has_rest && given < 1.0 - 1e-5) {
        return Err(section
            .error("sys_probs", err!("the probabilities add up to {given}, not to 1"))
            .help("a negative number takes what the others leave"));
    }
    Ok(SystemWeights::Explicit(probs))
}

/// `auto`, `auto:N`, `max:N`, `filter:N`, `mixed:N` or `mix:N`.
pub fn parse_batch_size(text: &str) -> Result<BatchSize> {
    let (rule, number) = match text.split_once(':') {
        Some((rule, number)) => (rule, Some(number)),
        None => (text, None),
    };
    let what = if rule == "mixed" { "frames" } else { "atoms" };
    let number = match number.map(|n| n.trim().parse::<usize>()) {
        None => None,
        Some(Ok(n)) if n > 0 => Some(n),
        Some(_) => bail!("\"{text}\" has no number of {what} of at least 1 after the colon"),
    };
    match (rule, number) {
        ("auto", atoms) => Ok(BatchSize::Auto(atoms.unwrap_or(32))),
        ("max", Some(n)) => Ok(BatchSize::Max(n)),
        ("filter", Some(n)) => Ok(BatchSize::Filter(n)),
        ("mixed", Some(n)) => Ok(BatchSize::Mixed(Mix::Frames(n))),
        ("mix", Some(n)) => Ok(BatchSize::Mixed(Mix::Atoms(n))),
        ("max" | "filter" | "mixed" | "mix", None) => {
            bail!("\"{text}\" has no number of {what}; wanted \"{text}:N\"")
        }
        _ => {
            let near = did_you_mean(rule, ["auto", "max", "filter", "mixed", "mix"].into_iter());
            let help = format!(
                "{near}allowed: a number, a list of numbers, \"auto\", \"auto:N\", \"max:N\", \"filter:N\", \"mixed:N\", \"mix:N\""
            );
            Err(err!("\"{text}\" is not a batch size").help(help))
        }
    }
}

/// `prob_uniform`, `prob_sys_size` or `prob_sys_size;0:2:0.7;2:5:0.3`.
pub fn parse_auto_prob(text: &str) -> Result<SystemWeights> {
    let mut parts = text.split(';').map(str::trim);
    let style = parts.next().unwrap_or("");
    let blocks: Vec<&str> = parts.filter(|part| !part.is_empty()).collect();
    match (style, blocks.is_empty()) {
        ("prob_uniform", true) => return Ok(SystemWeights::Uniform),
        ("prob_sys_size", true) => return Ok(SystemWeights::BySize),
        ("prob_sys_size", false) => {}
        _ => {
            let near = did_you_mean(style, ["prob_uniform", "prob_sys_size"].into_iter());
            let help =
                format!("{near}allowed: prob_uniform, prob_sys_size, prob_sys_size;BEGIN:END:WEIGHT;...");
            return Err(err!("\"{text}\" is not a way to weigh systems").help(help));
        }
    }
    let blocks = blocks.into_iter().map(parse_block).collect::<Result<Vec<_>>>()?;
    if blocks.iter().map(|b| b.2).sum::<f64>() <= 0.0 {
        bail!("the weights of \"{text}\" add up to zero");
    }
    Ok(SystemWeights::Blocks(blocks))
}

/// `BEGIN:END:WEIGHT`.
fn parse_block(block: &str) -> Result<(usize, usize, f64)> {
    let fields: Vec<&str> = block.split(':').map(str::trim).collect();
    let wrong = || err!("the block \"{block}\" is not BEGIN:END:WEIGHT");
    let [begin, end, weight] = fields[..] else { return Err(wrong()) };
    let begin: usize = begin.parse().map_err(|_| wrong())?;
    let end: usize = end.parse().map_err(|_| wrong())?;
    let weight: f64 = weight.parse().map_err(|_| wrong())?;
    if begin >= end {
        bail!("the block \"{block}\" is empty: systems from {begin} up to, not including, {end}");
    }
    if !(weight.is_finite() && weight >= 0.0) {
        bail!("the weight of the block \"{block}\" is not a number of at least 0");
    }
    Ok((begin, end, weight))
}
