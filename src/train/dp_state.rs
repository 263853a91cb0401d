//! What a checkpoint of `dp train` says beside its numbers.

use super::state::{About, TrainState, number};
use crate::infer::checkpoint;
use crate::model::dp::options::{ModelOptions, Precision, Sel};
use crate::model::dp::spec::DpStatistics;
use crate::{Result, err};
use serde_json::{Map, Value, json};
use std::path::Path;

/// A run of `dp train`.
#[derive(Debug, Clone)]
pub struct DpRun {
    /// The input with all defaults and `sel` as numbers.
    pub input: Value,
    pub stats: DpStatistics,
    /// Shortest distance of the training data, A.
    pub min_distance: f64,
    /// Length of the learning curve.
    pub lcurve_bytes: u64,
    /// What is known from full validations; null without them.
    pub validation: Value,
}

/// The state of a run of `dp train`.
pub type DpState = TrainState<DpRun>;

impl About for DpRun {
    const KIND: &'static str = checkpoint::KIND;

    fn into_header(self) -> Map<String, Value> {
        let mut header = Map::from_iter([
            ("input".to_string(), self.input),
            ("statistics".to_string(), json!(self.stats)),
            ("min_distance".to_string(), self.min_distance.into()),
            ("lcurve_bytes".to_string(), self.lcurve_bytes.into()),
        ]);
        if !self.validation.is_null() {
            header.insert("validation".to_string(), self.validation);
        }
        header
    }

    fn from_header(header: &Value) -> Result<Self> {
        let (stats, min_distance) = checkpoint::statistics(header)?;
        Ok(DpRun {
            input: header["input"].clone(),
            stats,
            min_distance,
            lcurve_bytes: number(header, "lcurve_bytes")?,
            validation: header["validation"].clone(),
        })
    }
}

impl DpState {
    /// Loads a checkpoint by its file, prefix or folder.
    pub fn load(path: &Path) -> Result<Self> {
        let checkpoint = crate::checkpoint::load(path)?;
        Self::from_checkpoint(checkpoint).map_err(|e| e.at(path.display()))
    }

    /// The `model` section that it was trained with.
    pub fn model_options(&self) -> Result<ModelOptions> {
        checkpoint::model_options(&self.about.input)
    }
}

/// Refuses to go on with another model than the one that was saved.
pub fn check_same_model(saved: &ModelOptions, wanted: &ModelOptions) -> Result<()> {
    let plain = |options: &ModelOptions| {
        // What does not change the shape or meaning of the parameters may differ.
        let mut options = options.clone();
        options.script = Value::Null;
        options.data_stat_nbatch = 0;
        options.data_stat_protect = 0.0;
        options.fitting.seed = None;
        options.fitting.rcond = None;
        options.fitting.sel_type = Vec::new(); // a matter of the data
        options.preset_out_bias = Vec::new(); // the statistics are there
        options.fitting.trainable = Vec::new();
        options.short_range.iter_mut().for_each(|own| own.file.clear()); // the table is there
        if let Some(own) = &mut options.type_embedding {
            own.seed = None;
            own.trainable = true;
            own.precision = Precision::Float64; // of the initial parameters alone
        }
        for se in &mut options.descriptors.list {
            se.seed = None;
            se.trainable = true;
        }
        options
    };
    let mut differing = Vec::new();
    differing_keys(&saved.script, &wanted.script, "model", &mut differing);
    let (saved, mut wanted) = (plain(saved), plain(wanted));
    for (a, b) in saved.descriptors.list.iter().zip(&mut wanted.descriptors.list) {
        // "auto" was turned into numbers when training began.
        if matches!(b.sel, Sel::Auto(_)) {
            b.sel = a.sel.clone();
        }
        b.embedding = a.embedding;
    }
    if saved == wanted {
        return Ok(());
    }
    if differing.is_empty() {
        // The section of a model file need not be written as ours is.
        let (a, b) = (format!("{saved:#?}"), format!("{wanted:#?}"));
        let lines = a.lines().zip(b.lines()).filter(|(x, y)| x != y);
        differing = lines.map(|(x, y)| format!("{} (saved) / {} (input)", x.trim(), y.trim())).collect();
    }
    differing.truncate(4);
    Err(err!("the model section differs from the one that was saved: {}", differing.join("; "))
        .help("restart with the input that the run was started with, or train anew"))
}

/// Keys that may differ between a run and its restart.
const FREE: [&str; 8] = [
    "seed",
    "trainable",
    "rcond",
    "embedding",
    "data_stat_nbatch",
    "data_stat_protect",
    "preset_out_bias",
    "use_srtab",
];

/// Paths of keys that both sections have with other values.
fn differing_keys(saved: &Value, wanted: &Value, path: &str, found: &mut Vec<String>) {
    match (saved, wanted) {
        (Value::Object(a), Value::Object(b)) => {
            for (key, value) in
                a.iter().filter(|(key, _)| !FREE.contains(&key.as_str()) && !key.starts_with('_'))
            {
                if let Some(other) = b.get(key) {
                    differing_keys(value, other, &format!("{path}.{key}"), found);
                }
            }
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() && a.iter().any(Value::is_object) => {
            for (k, (a, b)) in a.iter().zip(b).enumerate() {
                differing_keys(a, b, &format!("{path}[{k}]"), found);
            }
        }
        // "auto" was turned into numbers when training began.
        (_, Value::String(text)) if path.ends_with(".sel") && text.starts_with("auto") => {}
        (a, b) if a != b => found.push(format!("{path}: {a} (saved) / {b} (input)")),
        _ => {}
    }
}

/// Refuses to go on with another optimiser: its state would not be that of the saved one.
pub fn check_same_optimizer(saved: &Value, wanted: &Value) -> Result<()> {
    let kind = |input: &Value| input["optimizer"]["type"].as_str().unwrap_or("Adam").to_owned();
    let (saved, wanted) = (kind(saved), kind(wanted));
    // Adam's moments mean the same to AdamW.
    let of_adam = |name: &str| ["Adam", "AdamW"].contains(&name);
    if saved == wanted || (of_adam(&saved) && of_adam(&wanted)) {
        return Ok(());
    }
    Err(err!("optimizer.type: {saved} (saved) / {wanted} (input): the state of one is not that of the other").help(
        "the run was begun with another optimizer: restart with that one, or start with its parameters alone: --init-model",
    ))
}
