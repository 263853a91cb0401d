//! What a checkpoint of `pinn train` says beside its numbers.

use crate::checkpoint::{self, Checkpoint};
use crate::err;
use crate::error::Result;
use crate::model::pinet::PinetModel;
use crate::pinn::params::Params;
use crate::pinn::tensorflow;
use crate::train::state::{About, TrainState};
use serde_json::{Map, Value};
use std::path::Path;

/// A run of `pinn train`: `params.yml`, with all that was worked out.
#[derive(Debug, Clone, PartialEq)]
pub struct PinnRun(pub Value);

/// The state of a run of `pinn train`.
pub type PinnState = TrainState<PinnRun>;

impl About for PinnRun {
    const KIND: &'static str = crate::infer::checkpoint::PINN_KIND;

    fn into_header(self) -> Map<String, Value> {
        Map::from_iter([("params".to_string(), self.0)])
    }

    fn from_header(header: &Value) -> Result<Self> {
        Ok(PinnRun(header["params"].clone()))
    }
}

/// Reads a checkpoint of a network with `n_params` parameters.
pub fn read(checkpoint: Checkpoint, n_params: usize) -> Result<PinnState> {
    let state = PinnState::from_checkpoint(checkpoint)?;
    match state.params.len() {
        n if n == n_params => Ok(state),
        n => Err(err!("found {n} numbers in params, the network has {n_params} parameters")
            .help("the network was changed since: use another model_dir, or the params.yml of this one")),
    }
}

/// Draws of a run that PiNN began: nobody counted them.
pub const UNKNOWN_DRAWS: u64 = u64::MAX;

/// The newest complete checkpoint of a model's folder: ours, or PiNN's where it has gone on from there.
pub fn newest(folder: &Path, model: &PinetModel, params: &Params) -> Result<Option<PinnState>> {
    if !folder.is_dir() {
        return Ok(None);
    }
    let ours = checkpoint::newest_complete(&folder.join("model.ckpt"))?;
    let theirs = tensorflow::newest(folder)?;
    match (ours, theirs) {
        (ours, Some((prefix, step))) if ours.as_ref().is_none_or(|(_, own)| *own < step) => {
            log::info!("{}: a checkpoint of PiNN", prefix.display());
            tensorflow::read(&prefix, model, params).map(Some)
        }
        (Some((file, _)), _) => {
            let state = checkpoint::load(&file).and_then(|saved| read(saved, model.n_params()));
            state.map(Some).map_err(|e| e.at(file.display()))
        }
        (None, _) => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::train::learner::Snapshot;
    use serde_json::json;

    #[test]
    fn a_state_survives_its_file_and_another_network_is_refused() {
        let snapshot = Snapshot { params: vec![1.0, -0.5], optimizer: Vec::new(), engine: Value::Null };
        let state = PinnState::new(7, 21, snapshot, PinnRun(json!({"model_dir": "here"})));
        let bytes = state.clone().into_checkpoint().to_bytes();
        let saved = || Checkpoint::parse(&bytes).unwrap();
        assert_eq!(read(saved(), 2).unwrap(), state);
        let error = read(saved(), 3).unwrap_err();
        assert!(error.message().contains("the network has 3 parameters"), "{error}");
    }
}
