//! The learning rate of a Keras optimiser.

use crate::config::{Key, Kind, Section, Table};

/// The key of the rate in the `config` of every Keras optimiser.
pub const KEY: Key =
    Key::new("learning_rate", Kind::OneOf(&RATES)).default("0.001").doc("A number, or a schedule.");

static RATES: [Kind; 2] = [Kind::POSITIVE, Kind::Object(&SCHEDULE)];

static SCHEDULE: Table = Table::of(&[
    Key::new("class_name", Kind::choice(&["ExponentialDecay"])),
    Key::new("config", Kind::Object(&SCHEDULE_CONFIG)),
    Key::new("module", Kind::Any).optional(),
    Key::new("registered_name", Kind::Any).optional(),
]);

static SCHEDULE_CONFIG: Table = Table::of(&[
    Key::new("initial_learning_rate", Kind::POSITIVE).doc("The rate before the first step."),
    Key::new("decay_steps", Kind::POSITIVE).doc("Steps over which the rate falls by decay_rate."),
    Key::new("decay_rate", Kind::POSITIVE).doc("What the rate is multiplied by."),
    Key::new("staircase", Kind::Bool).default("false").doc("Whether the rate falls in stairs."),
    Key::new("name", Kind::Any).optional().ignored(""),
]);

/// The learning rate of every step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Rate {
    Constant(f64),
    /// initial * rate^(step / steps), in stairs where `staircase`.
    Exponential {
        initial: f64,
        steps: f64,
        rate: f64,
        staircase: bool,
    },
}

impl Rate {
    /// That of PiNN where an input says nothing.
    pub fn master() -> Self {
        Rate::Exponential { initial: 3e-4, steps: 10_000.0, rate: 0.994, staircase: false }
    }

    /// The same of the data-parallel fork.
    pub fn fork() -> Self {
        Rate::Exponential { initial: 3e-4, steps: 10_000.0, rate: 0.999, staircase: true }
    }

    /// The rate that the checked `config` of a Keras optimiser asks for.
    pub fn resolve(config: &Section) -> Self {
        match config.optional_section(KEY.name) {
            None => Rate::Constant(config.float(KEY.name)),
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

    /// The rate of `step`, from 0, computed in float32 as TensorFlow does.
    pub fn at(&self, step: u64) -> f64 {
        match *self {
            Rate::Constant(rate) => f64::from(rate as f32),
            Rate::Exponential { initial, steps, rate, staircase } => {
                let p = step as f32 / steps as f32;
                let p = if staircase { p.floor() } else { p };
                f64::from(initial as f32 * (rate as f32).powf(p))
            }
        }
    }

    /// The same schedule from another start: for more ranks.
    pub fn scaled(self, factor: f64) -> Rate {
        match self {
            Rate::Constant(rate) => Rate::Constant(rate * factor),
            Rate::Exponential { initial, steps, rate, staircase } => {
                Rate::Exponential { initial: initial * factor, steps, rate, staircase }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_falls_smoothly_or_in_stairs_and_follows_the_ranks() {
        let rate = |staircase| Rate::Exponential { initial: 1e-3, steps: 10.0, rate: 0.5, staircase };
        assert!((rate(false).at(5) / 1e-3 - 0.5f64.sqrt()).abs() < 1e-6);
        assert_eq!(rate(true).at(9), f64::from(1e-3f32));
        assert!((rate(true).at(10) - 5e-4).abs() < 1e-9);
        assert!((rate(true).scaled(4.0).at(0) - 4e-3).abs() < 1e-9);
        assert!((Rate::Constant(1e-2).at(99) - 1e-2).abs() < 1e-9);
    }
}
