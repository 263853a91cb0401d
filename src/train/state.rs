//! A run as a checkpoint, and back: the same for every model family, device and optimiser.

use super::learner::Snapshot;
use crate::checkpoint::{Array, Arrays, Checkpoint};
use crate::infer::checkpoint::check_kind;
use crate::{Result, bail, err};
use serde_json::{Map, Value, json};

/// The array of the parameters. All others are the optimiser's.
const PARAMS: &str = "params";
const VERSION: u64 = 1;
/// The key of the header for the batches that all ranks take in a step.
pub const DRAWS_PER_STEP: &str = "draws_per_step";

/// Everything that a restart needs beside the data.
#[derive(Debug, Clone, PartialEq)]
pub struct TrainState<A> {
    /// Steps done.
    pub step: u64,
    /// Draws used by all ranks so far.
    pub draws: u64,
    /// Draws of all ranks in a step; checkpoints of earlier days do not tell.
    pub draws_per_step: Option<u64>,
    /// The engine's own state.
    pub engine: Value,
    pub params: Vec<f64>,
    /// The optimiser's own state.
    pub optimizer: Arrays,
    /// What the model family wants to know.
    pub about: A,
}

/// What a model family writes about a run.
pub trait About: Sized {
    /// Marks its checkpoints, so that another file of the same container is refused by name.
    const KIND: &'static str;

    /// Its keys of the header.
    fn into_header(self) -> Map<String, Value>;

    fn from_header(header: &Value) -> Result<Self>;
}

/// A number of a header.
pub fn number(header: &Value, key: &str) -> Result<u64> {
    header[key].as_u64().ok_or_else(|| err!("the header has no number \"{key}\""))
}

impl<A: About> TrainState<A> {
    /// The state after `step` steps and `draws` draws of all ranks.
    pub fn new(step: u64, draws: u64, snapshot: Snapshot, about: A) -> Self {
        let Snapshot { params, optimizer, engine } = snapshot;
        TrainState { step, draws, draws_per_step: None, engine, params, optimizer, about }
    }

    /// The file's content.
    pub fn into_checkpoint(self) -> Checkpoint {
        let mut header = json!({"kind": A::KIND, "version": VERSION, "step": self.step, "draws": self.draws});
        if let Value::Object(header) = &mut header {
            header.extend(self.about.into_header());
            if let Some(draws) = self.draws_per_step {
                header.insert(DRAWS_PER_STEP.into(), draws.into());
            }
            if !self.engine.is_null() {
                header.insert("engine".into(), self.engine);
            }
        }
        let mut arrays = vec![(PARAMS.to_string(), Array::F64(self.params))];
        arrays.extend(self.optimizer);
        Checkpoint { header, arrays }
    }

    /// Reads a checkpoint.
    pub fn from_checkpoint(checkpoint: Checkpoint) -> Result<Self> {
        let Checkpoint { header, mut arrays } = checkpoint;
        check_kind(&header, A::KIND)?;
        let about = A::from_header(&header)?;
        let place = arrays.iter().position(|(name, _)| name == PARAMS);
        let Some((_, Array::F64(params))) = place.map(|place| arrays.remove(place)) else {
            bail!("the checkpoint has no array \"{PARAMS}\" of 64-bit numbers");
        };
        Ok(TrainState {
            step: number(&header, "step")?,
            draws: number(&header, "draws")?,
            draws_per_step: header[DRAWS_PER_STEP].as_u64().filter(|&draws| draws > 0),
            engine: header["engine"].clone(),
            params,
            optimizer: arrays,
            about,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Clone, PartialEq)]
    struct Note(u64);

    impl About for Note {
        const KIND: &'static str = "a note";

        fn into_header(self) -> Map<String, Value> {
            Map::from_iter([("note".to_string(), self.0.into())])
        }

        fn from_header(header: &Value) -> Result<Self> {
            number(header, "note").map(Note)
        }
    }

    #[test]
    fn a_state_survives_its_file_with_whatever_arrays_its_optimiser_has() {
        let optimizer = vec![
            ("covariance".to_string(), Array::F64(vec![1.0, 0.5, 0.5, 1.0, 7.0])),
            ("seen".to_string(), Array::U8(vec![3])),
        ];
        for engine in [Value::Null, json!({"terms": [24]})] {
            let snapshot = Snapshot { params: vec![1.0, -0.5], optimizer: optimizer.clone(), engine };
            let mut state = TrainState::new(7, 21, snapshot, Note(9));
            state.draws_per_step = (!state.engine.is_null()).then_some(3);
            let bytes = state.clone().into_checkpoint().to_bytes();
            let read = Checkpoint::parse(&bytes).unwrap();
            assert_eq!(TrainState::from_checkpoint(read).unwrap(), state);
        }
    }
}
