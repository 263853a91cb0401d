//! The optimiser and its rate, as either style of params.yml describes them.

use crate::config::check::{check, did_you_mean};
use crate::config::{Section, registry};
use crate::err;
use crate::error::Result;
use crate::optim::keras_adam::{Clip, KerasAdamOptions};
use crate::optim::keras_rate::Rate;
use crate::optim::{OPTIMIZERS, OptimizerChoice};
use serde_json::{Value, json};

/// The `optimizer` block of the newer style; absent, PiNN's own Adam.
pub(super) fn keras(block: Option<&Value>, file: &str) -> Result<(OptimizerChoice, Rate)> {
    let block = match block {
        None => return Ok((OptimizerChoice::new(KerasAdamOptions::master()), Rate::master())),
        Some(Value::String(name)) => json!({"class_name": name}),
        Some(block) => block.clone(),
    };
    let name = block["class_name"].as_str().unwrap_or_default();
    let Some((table, resolve)) = registry::find_elsewhere(OPTIMIZERS, name) else {
        let near = did_you_mean(name, registry::names_elsewhere(OPTIMIZERS));
        let known: Vec<&str> = registry::names_elsewhere(OPTIMIZERS).collect();
        return Err(err!("{file}: optimizer.class_name: \"{name}\" is not supported")
            .help(format!("{near}supported: {}", known.join(", "))));
    };
    let checked = check(table, &json!({"optimizer": block}), file)?;
    let config = Section::root(&checked.value).section("optimizer").section("config");
    let optimizer = resolve(&config).map_err(|e| e.at(file))?;
    Ok((optimizer, Rate::resolve(&config)))
}

/// The optimiser keys of the fork's `model_params`.
pub(super) fn fork(params: &Section) -> (OptimizerChoice, Rate) {
    let initial = params.float("learning_rate");
    let (steps, factor) = (params.float("decay_step"), params.float("decay_rate"));
    let rate = match params.bool("use_decay") {
        true => Rate::Exponential { initial, steps, rate: factor, staircase: true },
        false => Rate::Constant(initial),
    };
    let clip =
        if params.bool("use_norm_clip") { Clip::Global(params.float("norm_clip")) } else { Clip::None };
    (OptimizerChoice::new(KerasAdamOptions { clip, ..KerasAdamOptions::fork() }), rate)
}
