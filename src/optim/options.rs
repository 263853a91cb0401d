//! The `learning_rate` and `optimizer` sections: the tables of keys, and the options as meant.

use super::OPTIMIZERS;
use crate::config::table::{Key, Kind, Table, Variant, Variants};
use crate::config::{Section, registry};
use crate::err;
use crate::error::Result;
use serde_json::Value;

/// How the learning rate falls, after the warm-up.
#[derive(Debug, Clone, PartialEq)]
pub enum Schedule {
    /// start_lr * decay_rate^(step / decay_steps), in stairs unless `smooth`; never below `min_lr`.
    Exp { decay_steps: u64, decay_rate: f64, smooth: bool, min_lr: f64 },
    /// Half a cosine from start_lr to `stop_lr`.
    Cosine { stop_lr: f64 },
    /// Stable, then decaying over the last part of the run.
    Wsd { stop_lr: f64, decay_phase_ratio: f64, decay: WsdDecay },
}

/// The shape of the last phase of a warm-up, stable, decay schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WsdDecay {
    InverseLinear,
    Cosine,
    Linear,
}

/// How the learning rate follows the number of ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScaleByWorker {
    Linear,
    Sqrt,
    None,
}

/// The `learning_rate` section.
#[derive(Debug, Clone, PartialEq)]
pub struct LearningRateOptions {
    pub start_lr: f64,
    pub schedule: Schedule,
    /// Steps of linear warm-up before the schedule starts.
    pub warmup_steps: u64,
    /// The warm-up starts at this fraction of start_lr.
    pub warmup_start_factor: f64,
    /// `None`: the convention of the command line decides (Horovod's for `dp`, DDP's for `dp --pt`).
    pub scale_by_worker: Option<ScaleByWorker>,
}

/// The `learning_rate` section before the number of steps is known.
#[derive(Debug, Clone, PartialEq)]
pub struct LearningRatePlan {
    pub start_lr: f64,
    pub stop_lr: f64,
    pub shape: Shape,
    pub warmup: Warmup,
    /// The warm-up starts at this fraction of start_lr.
    pub warmup_start_factor: f64,
    /// `None` where the input does not say it.
    pub scale_by_worker: Option<ScaleByWorker>,
}

/// The schedule that is planned.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Shape {
    /// With no rate, the one that ends at stop_lr.
    Exp {
        decay_steps: u64,
        decay_rate: Option<f64>,
        smooth: bool,
    },
    Cosine,
    Wsd {
        decay_phase_ratio: f64,
        decay: WsdDecay,
    },
}

/// How long the warm-up is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Warmup {
    Steps(u64),
    /// This part of all steps, rounded down.
    Ratio(f64),
}

/// The keys of the `learning_rate` section.
pub static LEARNING_RATE: Table = Table {
    keys: &[
        Key::new("start_lr", Kind::POSITIVE).doc("The learning rate at the start, after the warm-up."),
        Key::new("stop_lr", Kind::OneOf(&[Kind::NOT_NEGATIVE, Kind::Null])).default("null").doc(
            "The learning rate at the end; 5e-8 where neither this nor stop_lr_ratio is given. \
             With decay_rate, the learning rate never falls below it.",
        ),
        Key::new("stop_lr_ratio", Kind::OneOf(&[Kind::NOT_NEGATIVE, Kind::Null]))
            .default("null")
            .doc("In place of stop_lr: its ratio to start_lr."),
        Key::new("warmup_steps", Kind::COUNT)
            .default("0")
            .unit("steps")
            .doc("Steps in which the learning rate rises to start_lr, linearly, before it falls."),
        Key::new("warmup_ratio", Kind::OneOf(&[Kind::float(0.0, true, 1.0, false), Kind::Null]))
            .default("null")
            .doc("In place of warmup_steps: their part of all steps."),
        Key::new("warmup_start_factor", Kind::NOT_NEGATIVE)
            .default("0.0")
            .doc("The warm-up starts at this times start_lr."),
        Key::new("scale_by_worker", Kind::choice(&["linear", "sqrt", "none"])).optional().doc(
            "How the learning rate grows with the number of ranks. Absent: linear for `dp`, none for `dp --pt`.",
        ),
    ],
    variants: Some(Variants {
        what: "learning-rate schedule",
        default: "exp",
        list: &[
            Variant::of("exp", EXP, "Exponential decay: start_lr * decay_rate^(step / decay_steps)"),
            Variant::of("cosine", &[], "Half a cosine from start_lr to stop_lr"),
            Variant::of("wsd", WSD, "Constant, then decaying to stop_lr in the last part of the run"),
        ],
    }),
};

const EXP: &[Key] = &[
    Key::new("decay_steps", Kind::AT_LEAST_ONE).default("5000").unit("steps").doc(
        "The learning rate falls once in this number of steps. If the run is not longer than that, a smaller \
         number is taken unless decay_rate is given.",
    ),
    Key::new("decay_rate", Kind::OneOf(&[Kind::float(0.0, false, 1.0, true), Kind::Null]))
        .default("null")
        .doc("The factor of each fall; where it is absent, the one that ends at stop_lr."),
    Key::new("smooth", Kind::Bool)
        .default("false")
        .doc("Whether the learning rate falls at every step, not in stairs."),
];

const WSD: &[Key] = &[
    Key::new("decay_phase_ratio", Kind::float(0.0, false, 1.0, true))
        .default("0.1")
        .doc("The part of all steps in which the learning rate falls."),
    Key::new("decay_type", Kind::choice(&["inverse_linear", "cosine", "linear"]))
        .default("\"inverse_linear\"")
        .doc("How it falls: 1/lr linearly, by half a cosine, or linearly."),
];

/// The keys of the `optimizer` section.
pub static OPTIMIZER: Table =
    Table { keys: &[], variants: Some(Variants { what: "optimizer", default: "Adam", list: &TYPES }) };

static TYPES: [Variant; registry::count_types(OPTIMIZERS)] = registry::types(OPTIMIZERS);

/// Where neither stop_lr nor stop_lr_ratio is given.
const DEFAULT_STOP_LR: f64 = 5e-8;

impl LearningRatePlan {
    /// Writes the default of stop_lr into a checked section; it holds only where stop_lr_ratio is absent.
    pub fn fill_stop_lr(section: &mut Value) {
        if section["stop_lr"].is_null() && section["stop_lr_ratio"].is_null() {
            section["stop_lr"] = Value::from(DEFAULT_STOP_LR);
        }
    }

    /// Resolves the checked `learning_rate` section.
    pub fn resolve(section: &Section) -> Result<LearningRatePlan> {
        let start_lr = section.float("start_lr");
        let plan = LearningRatePlan {
            start_lr,
            stop_lr: stop_lr(section, start_lr)?,
            shape: shape(section),
            warmup: warmup(section)?,
            warmup_start_factor: section.float("warmup_start_factor"),
            scale_by_worker: section.optional_text("scale_by_worker").map(|text| match text {
                "sqrt" => ScaleByWorker::Sqrt,
                "none" => ScaleByWorker::None,
                _ => ScaleByWorker::Linear,
            }),
        };
        if matches!(plan.shape, Shape::Wsd { .. }) && plan.stop_lr == 0.0 {
            return Err(
                section.error("stop_lr", err!("found 0, wanted a number above 0 for the schedule wsd"))
            );
        }
        Ok(plan)
    }

    /// The schedule of a run of this many steps, as DeePMD-kit 3.2 derives it.
    pub fn for_steps(&self, num_steps: u64) -> Result<LearningRateOptions> {
        let warmup_steps = match self.warmup {
            Warmup::Steps(steps) => steps,
            Warmup::Ratio(ratio) => (ratio * num_steps as f64) as u64,
        };
        if warmup_steps > 0 && warmup_steps >= num_steps {
            return Err(err!("learning_rate.warmup_steps: {warmup_steps} steps are not fewer than the {num_steps} of the run")
                .help("train longer than the warm-up"));
        }
        Ok(LearningRateOptions {
            start_lr: self.start_lr,
            schedule: self.schedule(num_steps - warmup_steps),
            warmup_steps,
            warmup_start_factor: self.warmup_start_factor,
            scale_by_worker: self.scale_by_worker,
        })
    }

    /// `n` steps are left after the warm-up.
    fn schedule(&self, n: u64) -> Schedule {
        let stop_lr = self.stop_lr;
        match self.shape {
            Shape::Cosine => Schedule::Cosine { stop_lr },
            Shape::Wsd { decay_phase_ratio, decay } => Schedule::Wsd { stop_lr, decay_phase_ratio, decay },
            Shape::Exp { decay_steps, decay_rate: Some(decay_rate), smooth } => {
                Schedule::Exp { decay_steps, decay_rate, smooth, min_lr: stop_lr }
            }
            Shape::Exp { decay_steps, decay_rate: None, smooth } => {
                let decay_steps = match (decay_steps >= n, n / 10 > 100) {
                    (false, _) => decay_steps,
                    (true, true) => 100,
                    (true, false) => n / 100 + 1,
                };
                // The rate that reaches stop_lr after n steps; a stop_lr of zero has no logarithm.
                let falls = n as f64 / decay_steps as f64;
                let decay_rate =
                    if n == 0 { 1.0 } else { ((stop_lr.max(1e-10) / self.start_lr).ln() / falls).exp() };
                Schedule::Exp { decay_steps, decay_rate, smooth, min_lr: stop_lr }
            }
        }
    }
}

fn stop_lr(section: &Section, start_lr: f64) -> Result<f64> {
    let (key, stop_lr) = match (section.optional_float("stop_lr"), section.optional_float("stop_lr_ratio")) {
        (Some(_), Some(_)) => {
            return Err(section
                .error("stop_lr_ratio", err!("is given together with stop_lr"))
                .help("they say the same: keep one of them"));
        }
        (_, Some(ratio)) => ("stop_lr_ratio", start_lr * ratio),
        (stop_lr, None) => ("stop_lr", stop_lr.unwrap_or(DEFAULT_STOP_LR)),
    };
    if stop_lr > start_lr {
        let error = err!("the learning rate would rise from start_lr = {start_lr} to {stop_lr}");
        return Err(section
            .error(key, error)
            .help("the schedules only fall; a rise at the start is warmup_steps"));
    }
    Ok(stop_lr)
}

fn shape(section: &Section) -> Shape {
    match section.text("type") {
        "cosine" => Shape::Cosine,
        "wsd" => Shape::Wsd {
            decay_phase_ratio: section.float("decay_phase_ratio"),
            decay: match section.text("decay_type") {
                "cosine" => WsdDecay::Cosine,
                "linear" => WsdDecay::Linear,
                _ => WsdDecay::InverseLinear,
            },
        },
        _ => Shape::Exp {
            decay_steps: section.int("decay_steps"),
            decay_rate: section.optional_float("decay_rate"),
            smooth: section.bool("smooth"),
        },
    }
}

fn warmup(section: &Section) -> Result<Warmup> {
    let steps: u64 = section.int("warmup_steps");
    match section.optional_float("warmup_ratio") {
        Some(_) if steps > 0 => Err(section
            .error("warmup_ratio", err!("is given together with warmup_steps"))
            .help("they say the same: keep one of them")),
        Some(ratio) => Ok(Warmup::Ratio(ratio)),
        None => Ok(Warmup::Steps(steps)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(shape: Shape, warmup: Warmup) -> LearningRatePlan {
        let (warmup_start_factor, scale_by_worker) = (0.0, None);
        LearningRatePlan {
            start_lr: 1e-3,
            stop_lr: 1e-5,
            shape,
            warmup,
            warmup_start_factor,
            scale_by_worker,
        }
    }

    #[test]
    fn the_exponential_rate_ends_at_stop_lr() {
        let exp = Shape::Exp { decay_steps: 10, decay_rate: None, smooth: false };
        let lr = plan(exp, Warmup::Ratio(0.1)).for_steps(1111).unwrap();
        assert_eq!(lr.warmup_steps, 111);
        let Schedule::Exp { decay_steps, decay_rate, min_lr, .. } = lr.schedule else {
            panic!("exp stays exp")
        };
        assert_eq!((decay_steps, min_lr), (10, 1e-5));
        assert!((1e-3 * decay_rate.powf(100.0) - 1e-5).abs() < 1e-16);
    }

    #[test]
    fn decay_steps_beyond_the_run_are_replaced_unless_the_rate_is_given() {
        let steps = |n, decay_rate| {
            let exp = Shape::Exp { decay_steps: 5000, decay_rate, smooth: false };
            match plan(exp, Warmup::Steps(0)).for_steps(n).unwrap().schedule {
                Schedule::Exp { decay_steps, .. } => decay_steps,
                other => panic!("exp became {other:?}"),
            }
        };
        assert_eq!(
            (steps(4000, None), steps(1009, None), steps(100, None), steps(5001, None)),
            (100, 11, 2, 5000)
        );
        assert_eq!(steps(100, Some(0.95)), 5000);
    }

    #[test]
    fn a_warm_up_as_long_as_the_run_is_an_error() {
        let e = plan(Shape::Cosine, Warmup::Steps(100)).for_steps(100).unwrap_err();
        assert!(e.message().starts_with("learning_rate.warmup_steps: 100 steps"), "{e}");
    }
}
