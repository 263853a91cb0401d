//! Adam, its rate and its clipping, as either style of params.yml describes them.

use super::tables;
use crate::config::Section;
use crate::config::check::{check, did_you_mean};
use crate::err;
use crate::error::Result;
use serde_json::{Value, json};

/// Adam with PiNN's settings.
#[derive(Debug, Clone, PartialEq)]
pub struct OptimizerOptions {
    pub schedule: Schedule,
    pub beta_1: f64,
    pub beta_2: f64,
    /// Added to the root of the second moment.
    pub epsilon: f64,
    pub clip: Clip,
}

/// The learning rate at a step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Schedule {
    Constant(f64),
    /// initial * rate^(step / steps); with `staircase` the power is a whole number.
    Exponential {
        initial: f64,
        steps: f64,
        rate: f64,
        staircase: bool,
    },
}

/// What is done to gradients that are too large.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Clip {
    None,
    /// Each variable's gradient is scaled to at most this norm.
    PerVariable(f64),
    /// The whole gradient is scaled to at most this norm.
    Global(f64),
    /// Each component is cut to at most this size.
    Value(f64),
}

impl Schedule {
    /// The rate of the step after `step` steps.
    pub fn at(&self, step: u64) -> f64 {
        match *self {
            Schedule::Constant(rate) => rate,
            Schedule::Exponential { initial, steps, rate, staircase } => {
                let power = step as f64 / steps;
                initial * rate.powf(if staircase { power.floor() } else { power })
            }
        }
    }

    /// The same schedule with all rates multiplied, as for several ranks.
    pub fn scaled(self, factor: f64) -> Self {
        match self {
            Schedule::Constant(rate) => Schedule::Constant(rate * factor),
            Schedule::Exponential { initial, steps, rate, staircase } => {
                Schedule::Exponential { initial: initial * factor, steps, rate, staircase }
            }
        }
    }
}

impl OptimizerOptions {
    /// The `optimizer` block of the newer style; absent, PiNN's own Adam.
    pub(super) fn keras(block: Option<&Value>, file: &str) -> Result<Self> {
        let block = match block {
            None => return Ok(Self::pinn_default()),
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
        Ok(OptimizerOptions {
            schedule: keras_schedule(&config),
            beta_1: config.float("beta_1"),
            beta_2: config.float("beta_2"),
            epsilon: config.float("epsilon"),
            clip: keras_clip(&config).map_err(|e| e.at(file))?,
        })
    }

    /// What PiNN takes where params.yml has no `optimizer`.
    fn pinn_default() -> Self {
        OptimizerOptions {
            schedule: Schedule::Exponential { initial: 3e-4, steps: 10_000.0, rate: 0.994, staircase: false },
            beta_1: 0.9,
            beta_2: 0.999,
            epsilon: 1e-7,
            clip: Clip::PerVariable(0.01),
        }
    }

    /// The optimiser keys of the fork's `model_params`.
    pub(super) fn fork(params: &Section) -> Self {
        let initial = params.float("learning_rate");
        let (steps, rate) = (params.float("decay_step"), params.float("decay_rate"));
        let schedule = match params.bool("use_decay") {
            true => Schedule::Exponential { initial, steps, rate, staircase: true },
            false => Schedule::Constant(initial),
        };
        let clip =
            if params.bool("use_norm_clip") { Clip::Global(params.float("norm_clip")) } else { Clip::None };
        OptimizerOptions { schedule, beta_1: 0.9, beta_2: 0.999, epsilon: 1e-8, clip }
    }
}

fn keras_schedule(config: &Section) -> Schedule {
    match config.optional_section("learning_rate") {
        None => Schedule::Constant(config.float("learning_rate")),
        Some(schedule) => {
            let config = schedule.section("config");
            Schedule::Exponential {
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
        ("clipnorm", Clip::PerVariable as fn(f64) -> Clip),
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
