//! A PiNN run as a checkpoint, and back.

use crate::checkpoint::{Array, Checkpoint};
use crate::error::Result;
use crate::{bail, err};
use serde_json::{Value, json};

/// Marks our checkpoints, so that another file of the same container is refused by name.
const KIND: &str = "phalanx pinn state";

/// Everything that a restart needs beside the data.
#[derive(Debug, Clone, PartialEq)]
pub struct PinnState {
    /// Steps done.
    pub step: u64,
    /// Draws used by all ranks so far.
    pub draws: u64,
    /// `params.yml`, with all that was worked out.
    pub params_file: Value,
    pub params: Vec<f64>,
    pub first_moment: Vec<f64>,
    pub second_moment: Vec<f64>,
}

impl PinnState {
    /// The file's content.
    pub fn into_checkpoint(self) -> Checkpoint {
        let header = json!({
            "kind": KIND,
            "version": 1,
            "step": self.step,
            "draws": self.draws,
            "params": self.params_file,
        });
        let arrays = [
            ("params", self.params),
            ("first_moment", self.first_moment),
            ("second_moment", self.second_moment),
        ];
        let arrays = arrays.map(|(name, x)| (name.to_string(), Array::F64(x))).to_vec();
        Checkpoint { header, arrays }
    }

    /// Reads a checkpoint of a network with `n_params` parameters.
    pub fn from_checkpoint(checkpoint: &Checkpoint, n_params: usize) -> Result<Self> {
        let header = &checkpoint.header;
        if header["kind"] != KIND || header["version"] != 1 {
            bail!("found {} version {}, wanted a \"{KIND}\" version 1", header["kind"], header["version"]);
        }
        let number =
            |key: &str| header[key].as_u64().ok_or_else(|| err!("the header has no number \"{key}\""));
        let array = |name: &str| -> Result<Vec<f64>> {
            let x = checkpoint.f64s(name)?;
            if x.len() != n_params {
                return Err(err!(
                    "found {} numbers in {name}, the network has {n_params} parameters",
                    x.len()
                )
                .help(
                    "the network was changed since: use another model_dir, or the params.yml of this one",
                ));
            }
            Ok(x.to_vec())
        };
        Ok(PinnState {
            step: number("step")?,
            draws: number("draws")?,
            params_file: header["params"].clone(),
            params: array("params")?,
            first_moment: array("first_moment")?,
            second_moment: array("second_moment")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_survives_its_file_and_another_network_is_refused() {
        let state = PinnState {
            step: 7,
            draws: 21,
            params_file: json!({"model_dir": "here"}),
            params: vec![1.0, -0.5],
            first_moment: vec![0.1, 0.2],
            second_moment: vec![0.3, 0.4],
        };
        let bytes = state.clone().into_checkpoint().to_bytes();
        let read = Checkpoint::parse(&bytes).unwrap();
        assert_eq!(PinnState::from_checkpoint(&read, 2).unwrap(), state);
        let error = PinnState::from_checkpoint(&read, 3).unwrap_err();
        assert!(error.message().contains("the network has 3 parameters"), "{error}");
    }
}
