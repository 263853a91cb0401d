//! The model in the checkpoint of a `dp train` run, without the training state.

use super::branches;
use crate::checkpoint::Checkpoint;
use crate::engine::type_embedding::plain;
use crate::error::Result;
use crate::model::dp::Dp;
use crate::model::dp::options::ModelOptions;
use crate::model::dp::spec::{DpModel, DpStatistics, TrainedTypes};
use crate::{bail, err};
use serde_json::Value;

/// Marks our checkpoints, so that another file of the same container is refused by name.
pub const KIND: &str = "phalanx training state";

/// Marks checkpoints of `pinn train`.
pub const PINN_KIND: &str = "phalanx pinn state";

/// Refuses checkpoints of other programs and versions than those of `kind`.
pub fn check_kind(header: &Value, kind: &str) -> Result<()> {
    const VERSION: u64 = 1;
    if header["kind"] == kind && header["version"] == VERSION {
        return Ok(());
    }
    let error =
        err!("found {} version {}, wanted a \"{kind}\" version {VERSION}", header["kind"], header["version"]);
    Err(match header["kind"].as_str() {
        Some(PINN_KIND) if kind != PINN_KIND => {
            error.help("`pinn train` wrote it, which continues from it; name a checkpoint of `dp train`")
        }
        Some(branches::KIND) if kind == KIND => {
            error.help("a multi-task training wrote it: continue it with its own input, or name a branch (--head, --model-branch)")
        }
        Some(KIND) if kind == branches::KIND => {
            error.help("a training of one task wrote it: --init-model or --finetune begin with its weights")
        }
        Some(KIND | branches::KIND) if kind != KIND => {
            error.help("`dp train` wrote it; give this run another folder (-d, model_dir)")
        }
        _ => error,
    })
}

/// The `model` section of the input of a checkpoint, which has all defaults and `sel` as numbers.
pub fn model_options(input: &Value) -> Result<ModelOptions> {
    model_section(&input["model"])
}

/// A `model` section with all defaults and `sel` as numbers.
pub fn model_section(model: &Value) -> Result<ModelOptions> {
    ModelOptions::of_section(model, "checkpoint")
}

/// The statistics and the shortest distance of the training data.
pub fn statistics(header: &Value) -> Result<(DpStatistics, f64)> {
    let stats = serde_json::from_value(header["statistics"].clone())
        .map_err(|e| err!("the header's statistics cannot be read: {e}"))?;
    let min_distance =
        header["min_distance"].as_f64().ok_or_else(|| err!("the header has no \"min_distance\""))?;
    Ok((stats, min_distance))
}

/// Refuses numbers that no run would have saved. A checksum that fits says only that nobody changed them since.
pub fn check_numbers(
    params: &[f64],
    stats: &DpStatistics,
    min_distance: f64,
    options: &ModelOptions,
) -> Result<()> {
    if !options.descriptors.is_fixed() {
        bail!("the checkpoint says sel = \"auto\", wanted numbers");
    }
    stats.check(options)?;
    if let Some(at) = params.iter().position(|x| !x.is_finite()) {
        bail!("parameter {at} is {}, not a number", params[at]);
    }
    if min_distance.is_nan() || min_distance <= 0.0 {
        bail!("min_distance: found {min_distance}, wanted a distance above zero");
    }
    Ok(())
}

/// The model of a checkpoint.
pub fn model_of(saved: &Checkpoint) -> Result<DpModel> {
    check_kind(&saved.header, KIND)?;
    let (stats, min_distance) = statistics(&saved.header)?;
    let params = saved.f64s("params")?;
    let options = model_options(&saved.header["input"])?;
    check_numbers(params, &stats, min_distance, &options)?;
    let model = Dp::new(options, stats);
    if model.trained_table().len() != params.len() {
        bail!("found {} parameters, the model section wants {}", params.len(), model.trained_table().len());
    }
    let embedded = model
        .embedded
        .as_ref()
        .map(|own| TrainedTypes { options: own.options.clone(), params: params.to_vec() });
    Ok(DpModel { embedded, ..model.to_spec(&plain(&model, params), Some(min_distance)) })
}
