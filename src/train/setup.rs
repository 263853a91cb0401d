//! Data, statistics and model before the first step.
//!
//! Whatever is computed from the data is computed once for the whole job, the work shared over ranks; every rank
//! then has the same numbers.

mod bias; // fitted to what a model does not explain
mod data; // what is trained on
mod model; // a new one, or one that was saved
mod neighbors; // of the training data, and `sel` from them
mod statistics; // of the training data

pub(super) use bias::shift_bias;
pub(super) use data::{leave_out_unselected, open_data};
pub(super) use neighbors::{neighbor_statistics, resolve_sel};
pub(super) use statistics::{
    as_stored, drawn_frames, load_or_compute_statistics, sample_distance, sample_statistics,
};

use self::model::{Origin, finetune_branch, fresh_model, load_origin};
use super::dp_state::{DpState, check_same_optimizer};
use super::input::{Input, Length};
use super::options::{InputSource, RunOptions, Start};
use super::resume;
use super::team::Team;
use crate::data::Dataset;
use crate::launch::Launch;
use crate::model::dp::Dp;
use crate::{Result, err};
use serde_json::Value;
use std::sync::Arc;

/// Everything that the loop needs.
pub struct Setup {
    pub input: Input,
    /// The input with all defaults and `sel` as numbers: `out.json`.
    pub full: Value,
    pub data: DataSets,
    pub model: Arc<Dp>,
    pub params: Vec<f64>,
    /// Shortest distance of the training data, A.
    pub min_distance: f64,
    /// Where a restarted run continues.
    pub resumed: Option<DpState>,
    /// Steps of the whole run.
    pub num_steps: u64,
}

/// The data of a run.
#[derive(Clone)]
pub struct DataSets {
    pub training: Arc<Dataset>,
    pub validation: Option<Arc<Dataset>>,
}

/// Does everything that comes before the first step; `full` is the input with all defaults.
pub fn setup(
    team: &mut Team,
    launch: &Launch,
    options: &RunOptions,
    mut input: Input,
    mut full: Value,
) -> Result<Setup> {
    let start = start_of(team, launch, options, &input)?;
    let origin = load_origin(team, &start, finetune_branch(options, &full))?;
    if let Some(Origin::Restart(state)) = &origin {
        team.agree(check_same_optimizer(&state.about.input, &full))?;
    }
    if let Some(Origin::Restart(state)) = &origin
        && input.training.keep_global_batch
    {
        let kept = keep_global_batch(state.draws_per_step, team.n_groups(), team.ranks_per_group());
        if let Some(accumulation) = team.agree(kept)? {
            input.training.gradient_accumulation = accumulation;
            full["training"]["gradient_accumulation"] = accumulation.into();
        }
    }
    if let (Some(origin), true) = (&origin, options.use_pretrain_script) {
        input.model = origin.options()?;
        full["model"] = input.model.script.clone();
    }
    let data = open_data(team, &input)?;
    leave_out_unselected(&mut input.model, &mut full, &data);
    let neighbors = neighbor_statistics(team, options, &input.model, &data.training, origin.is_some())?;
    let saved = origin.as_ref().map(Origin::options).transpose()?;
    let resolved = resolve_sel(&mut input.model, &mut full, neighbors.as_deref(), saved.as_ref());
    team.agree(resolved)?;
    let (mut model, params, min_distance) = match &origin {
        None => fresh_model(team, options, &input, &data, neighbors.as_deref())?,
        Some(origin) => origin.model(team, &input, &data, matches!(start, Start::Finetune(_)))?,
    };
    // The same data gave everyone the same numbers, unless hosts round differently. Rank 0's count.
    let (stats, min_distance) = team.from_root(|| Ok((model.stats.clone(), min_distance)))?;
    model.stats = stats;
    let mut params = params;
    team.broadcast(&mut params)?;
    let num_steps = num_steps(&input, &data.training, team.n_groups());
    let resumed = match origin {
        Some(Origin::Restart(state)) => Some(*state),
        _ => None,
    };
    Ok(Setup { input, full, data, model: Arc::new(model), params, min_distance, resumed, num_steps })
}

/// What a run starts from, which may be what the same run has saved before.
pub(super) fn start_of(
    team: &mut Team,
    launch: &Launch,
    options: &RunOptions,
    input: &Input,
) -> Result<Start> {
    let save_ckpt = &input.training.save_ckpt;
    // Who names a checkpoint means that one.
    let named = matches!(options.start, Start::Restart(_));
    let found = match !named && options.resume.unwrap_or(input.training.resume) {
        true => team.from_root(|| resume::newest(save_ckpt))?,
        false => resume::after_restart(team, launch, save_ckpt)?,
    };
    Ok(found.map_or(options.start.clone(), Start::Restart))
}

/// Rank 0 reads the input; all have the same, a random seed included.
pub fn read_input(team: &mut Team, source: &InputSource) -> Result<(Input, Value)> {
    let mut parsed = None;
    let full = team.from_root(|| {
        let (input, full) = Input::of(source)?;
        parsed = Some(input);
        Ok(full)
    })?;
    match parsed {
        Some(input) => Ok((input, full)),
        None => Input::from_value(full, &source.name(), || 0),
    }
}

/// Batches that each group of ranks adds up so that a step has as many as it had. None where the checkpoint does not tell.
pub(super) fn keep_global_batch(before: Option<u64>, groups: usize, each: usize) -> Result<Option<usize>> {
    let Some(before) = before.and_then(|before| usize::try_from(before).ok()) else {
        log::warn!("training.keep_global_batch: the checkpoint does not tell how many batches a step had");
        return Ok(None);
    };
    if !before.is_multiple_of(groups) {
        let fitting = (1..=before.min(4096)).filter(|n| before.is_multiple_of(*n));
        let fitting: Vec<String> = fitting.map(|n| (n * each).to_string()).collect();
        return Err(err!(
            "training.keep_global_batch: {before} batches a step cannot be shared by {} ranks",
            groups * each
        )
        .help(format!("use {} ranks, or leave the key away", fitting.join(", "))));
    }
    log::info!(
        "training.gradient_accumulation is set to {} for {} ranks: a step keeps its {before} batches",
        before / groups,
        groups * each
    );
    Ok(Some(before / groups))
}

/// Steps of the run; an epoch counts draws of all groups of ranks.
pub(super) fn num_steps(input: &Input, data: &Dataset, groups: usize) -> u64 {
    match input.training.length {
        Length::Steps(steps) => steps,
        Length::Epochs(epochs) => {
            let draws = epochs * data.draws_per_epoch() as f64;
            let steps =
                (draws / (groups * input.training.gradient_accumulation) as f64).ceil().max(1.0) as u64;
            log::info!("{epochs} epochs are {steps} steps");
            steps
        }
    }
}
