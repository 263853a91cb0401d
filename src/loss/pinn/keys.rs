//! Keys that the models of params.yml share. Defaults are PiNN's.

use crate::config::{Key, Kind, Section};
use crate::err;
use crate::error::Result;
use serde_json::Value;

/// A largest label that counts.
pub(super) const LIMIT: Kind = Kind::OneOf(&[Kind::Bool, Kind::POSITIVE]);

pub(super) const USE_L2: Key = Key::new("use_l2", Kind::Bool).default("false");
pub(super) const L2_LOSS: Key = Key::new("l2_loss_multiplier", Kind::NOT_NEGATIVE).default("1.0");

// The fork has its optimiser among the parameters of the model.
pub(super) const LEARNING_RATE: Key = Key::new("learning_rate", Kind::POSITIVE).default("3e-4");
pub(super) const USE_NORM_CLIP: Key = Key::new("use_norm_clip", Kind::Bool).default("true");
pub(super) const NORM_CLIP: Key = Key::new("norm_clip", Kind::POSITIVE).default("0.01");
pub(super) const USE_DECAY: Key = Key::new("use_decay", Kind::Bool).default("true");
pub(super) const DECAY_STEP: Key = Key::new("decay_step", Kind::POSITIVE).default("10000");
pub(super) const DECAY_RATE: Key = Key::new("decay_rate", Kind::POSITIVE).default("0.999");

/// The tables of a model in params.yml: of the newer style, and of the fork's, which has the keys of its optimiser beside them.
macro_rules! tables {
    (newer: [$($newer:expr),* $(,)?], fork: [$($fork:expr),* $(,)?] $(,)?) => {{
        static KEYS: Table = Table::of(&[$($newer),*]);
        static BLOCK: Table = Table::of(&[
            Key::new("name", Kind::Text),
            Key::new("params", Kind::Object(&KEYS)).defaults_inside(),
        ]);
        static MODEL: Table = Table::of(&[Key::new("model", Kind::Object(&BLOCK))]);
        static FORK_KEYS: Table = Table::of(&[
            $($fork,)*
            LEARNING_RATE,
            USE_NORM_CLIP,
            NORM_CLIP,
            USE_DECAY,
            DECAY_STEP,
            DECAY_RATE,
        ]);
        static MODEL_PARAMS: Table =
            Table::of(&[Key::new("model_params", Kind::Object(&FORK_KEYS)).defaults_inside()]);
        [&MODEL, &MODEL_PARAMS]
    }};
}
pub(super) use tables;

/// A number where `false` means none.
pub(super) fn limit(section: &Section, key: &str) -> Result<Option<f64>> {
    match section.get(key) {
        Some(Value::Bool(true)) => {
            Err(section.error(key, err!("found true, wanted a number, or false for none")))
        }
        Some(value) => Ok(value.as_f64()),
        None => Ok(None),
    }
}
