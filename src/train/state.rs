//! A run as a checkpoint, and back.

use super::input::Input;
use crate::checkpoint::{Array, Checkpoint};
use crate::model::dp::Dp;
use crate::model::dp::options::{DescriptorOptions, ModelOptions, Sel};
use crate::model::dp::spec::{DpModel, DpStatistics};
use crate::{Result, bail, err};
use serde_json::{Value, json};
use std::path::Path;

/// Marks our checkpoints, so that another file of the same container is refused by name.
const KIND: &str = "phalanx training state";

/// Everything that a restart needs beside the data.
#[derive(Debug, Clone)]
pub struct TrainState {
    /// Steps done.
    pub step: u64,
    /// Draws used by all ranks so far.
    pub draws: u64,
    /// The input with all defaults and `sel` as numbers.
    pub input: Value,
    pub stats: DpStatistics,
    /// Shortest distance of the training data, A.
    pub min_distance: f64,
    /// The engine's own state.
    pub engine: Value,
    /// Length of the learning curve.
    pub lcurve_bytes: u64,
    pub params: Vec<f64>,
    pub first_moment: Vec<f64>,
    pub second_moment: Vec<f64>,
}

impl TrainState {
    /// The file's content.
    pub fn into_checkpoint(self) -> Checkpoint {
        let header = json!({
            "kind": KIND,
            "version": 1,
            "step": self.step,
            "draws": self.draws,
            "input": self.input,
            "statistics": self.stats,
            "min_distance": self.min_distance,
            "engine": self.engine,
            "lcurve_bytes": self.lcurve_bytes,
        });
        let arrays = [
            ("params", self.params),
            ("first_moment", self.first_moment),
            ("second_moment", self.second_moment),
        ];
        let arrays = arrays.map(|(name, x)| (name.to_string(), Array::F64(x)));
        Checkpoint { header, arrays: arrays.into() }
    }

    /// Reads a checkpoint.
    pub fn from_checkpoint(checkpoint: &Checkpoint) -> Result<Self> {
        let header = &checkpoint.header;
        if header["kind"] != KIND || header["version"] != 1 {
            bail!("found {} version {}, wanted a \"{KIND}\" version 1", header["kind"], header["version"]);
        }
        let number =
            |key: &str| header[key].as_u64().ok_or_else(|| err!("the header has no number \"{key}\""));
        let stats = serde_json::from_value(header["statistics"].clone())
            .map_err(|e| err!("the header's statistics cannot be read: {e}"))?;
        Ok(TrainState {
            step: number("step")?,
            draws: number("draws")?,
            input: header["input"].clone(),
            stats,
            min_distance: header["min_distance"]
                .as_f64()
                .ok_or_else(|| err!("the header has no \"min_distance\""))?,
            engine: header["engine"].clone(),
            lcurve_bytes: number("lcurve_bytes")?,
            params: checkpoint.f64s("params")?.to_vec(),
            first_moment: checkpoint.f64s("first_moment")?.to_vec(),
            second_moment: checkpoint.f64s("second_moment")?.to_vec(),
        })
    }

    /// Loads a checkpoint by its file, prefix or folder.
    pub fn load(path: &Path) -> Result<Self> {
        let checkpoint = crate::checkpoint::load(path)?;
        Self::from_checkpoint(&checkpoint).map_err(|e| e.at(path.display()))
    }

    /// The `model` section that it was trained with.
    pub fn model_options(&self) -> Result<ModelOptions> {
        let (input, _) = Input::from_value(self.input.clone(), "checkpoint", || 0)?;
        Ok(input.model)
    }

    /// The model without the training state.
    pub fn model(&self) -> Result<DpModel> {
        let model = Dp::new(self.model_options()?, self.stats.clone());
        if model.table.len() != self.params.len() {
            bail!("found {} parameters, the model section wants {}", self.params.len(), model.table.len());
        }
        Ok(model.to_spec(&self.params, Some(self.min_distance)))
    }
}

/// The model of a checkpoint file, prefix or folder.
pub fn model_of_checkpoint(path: &Path) -> Result<DpModel> {
    TrainState::load(path)?.model().map_err(|e| e.at(path.display()))
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
        options.fitting.trainable = Vec::new();
        let DescriptorOptions::SeE2A(se) = &mut options.descriptor;
        se.seed = None;
        se.trainable = true;
        options
    };
    let (saved, mut wanted) = (plain(saved), plain(wanted));
    let (DescriptorOptions::SeE2A(a), DescriptorOptions::SeE2A(b)) =
        (&saved.descriptor, &mut wanted.descriptor);
    // "auto" was turned into numbers when training began.
    if matches!(b.sel, Sel::Auto(_)) {
        b.sel = a.sel.clone();
    }
    b.embedding = a.embedding;
    if saved == wanted {
        return Ok(());
    }
    let (a, b) = (format!("{saved:#?}"), format!("{wanted:#?}"));
    let differing: Vec<String> = a
        .lines()
        .zip(b.lines())
        .filter(|(x, y)| x != y)
        .take(4)
        .map(|(x, y)| format!("{} (saved) / {} (input)", x.trim(), y.trim()))
        .collect();
    Err(err!("the model section differs from the one that was saved: {}", differing.join("; "))
        .help("restart with the input that the run was started with, or train anew"))
}
