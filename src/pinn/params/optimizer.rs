//! Adam, its rate and its clipping, as either style of params.yml describes them.

use super::tables;
use crate::config::Section;
use crate::config::check::{check, did_you_mean};
use crate::err;
use crate::error::Result;
use crate::optim::keras_adam::{Clip, KerasAdamOptions, Rate, Style};
use serde_json::{Value, json};

/// The `optimizer` block of the newer style; absent, PiNN's own Adam.
pub(super) fn keras(block: Option<&Value>, file: &str) -> Result<KerasAdamOptions> {
    let block = match block {
        None => return Ok(KerasAdamOptions::master()),
        Some(Value::String(name)) => json!({"class_name": name}),
        Some(block) => block.clone(),
    };
    let name = block["class_name"].as_str().unwrap_or_default();
    if !name.eq_ignore_ascii_case("adam") {
        let near = did_you_mean(name, ["Adam"].into_iter());
        return Err(err!("{file}: optimizer.class_name: \"{name}\" is not supported")
            .help(format!("{near}supported: Adam")));
    }
    let checked = check(&tables::ADAM, &json!({"optimizer": block}), file)?;
    let config = Section::root(&checked.value).section("optimizer").section("config");
    for key in ["amsgrad", "use_ema"] {
        if config.bool(key) {
            return Err(config.error(key, err!("true is not supported")).at(file));
        }
    }
    Ok(KerasAdamOptions {
        style: Style::Keras,
        beta1: config.float("beta_1"),
        beta2: config.float("beta_2"),
        epsilon: config.float("epsilon"),
        clip: keras_clip(&config).map_err(|e| e.at(file))?,
        rate: keras_rate(&config),
    })
}

/// The optimiser keys of the fork's `model_params`.
pub(super) fn fork(params: &Section) -> KerasAdamOptions {
    let initial = params.float("learning_rate");
    let (steps, factor) = (params.float("decay_step"), params.float("decay_rate"));
    let rate = match params.bool("use_decay") {
        true => Rate::Exponential { initial, steps, rate: factor, staircase: true },
        false => Rate::Constant(initial),
    };
    let clip =
        if params.bool("use_norm_clip") { Clip::Global(params.float("norm_clip")) } else { Clip::None };
    KerasAdamOptions { clip, rate, ..KerasAdamOptions::fork() }
}

fn keras_rate(config: &Section) -> Rate {
    match config.optional_section("learning_rate") {
        None => Rate::Constant(config.float("learning_rate")),
        Some(schedule) => {
            let config = schedule.section("config");
            Rate::Exponential {
                initial: config.float("initial_learning_rate"),
                steps: config.float("decay_steps"),
                rate: config.float("decay_rate"),
                staircase: config.bool("staircase"),
            }
        }
    }
}

fn keras_clip(config: &Section) -> Result<Clip> {
    let clips = [
        ("clipnorm", Clip::Variable as fn(f64) -> Clip),
        ("global_clipnorm", Clip::Global),
        ("clipvalue", Clip::Value),
    ];
    let given: Vec<_> =
        clips.iter().filter_map(|(key, clip)| Some((*key, clip(config.optional_float(key)?)))).collect();
    match given[..] {
        [] => Ok(Clip::None),
        [(_, clip)] => Ok(clip),
        [(first, _), (second, _), ..] => Err(config
            .error(second, err!("{first} is given too"))
            .help("give one of the three ways of clipping")),
    }
}
