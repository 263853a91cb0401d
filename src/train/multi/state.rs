//! What a checkpoint of a multi-task training says beside its numbers.

use crate::Result;
use crate::infer::branches::{self, BranchHeader};
use crate::train::state::{About, TrainState, number};
use serde_json::{Map, Value, json};

/// A multi-task training.
#[derive(Debug, Clone)]
pub struct MultiRun {
    /// The input with all defaults and `sel` as numbers.
    pub input: Value,
    pub branches: Vec<BranchHeader>,
    /// Length of the learning curve.
    pub lcurve_bytes: u64,
}

/// The state of a multi-task training.
pub type MultiState = TrainState<MultiRun>;

impl About for MultiRun {
    const KIND: &'static str = branches::KIND;

    fn into_header(self) -> Map<String, Value> {
        Map::from_iter([
            ("input".to_string(), self.input),
            ("branches".to_string(), json!(self.branches)),
            ("lcurve_bytes".to_string(), self.lcurve_bytes.into()),
        ])
    }

    fn from_header(header: &Value) -> Result<Self> {
        Ok(MultiRun {
            input: header["input"].clone(),
            branches: BranchHeader::list(header)?,
            lcurve_bytes: number(header, "lcurve_bytes")?,
        })
    }
}
