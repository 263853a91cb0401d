//! A program that trains in its own process: it looks on, and may end the run.

use super::signals::StopHandle;
use std::path::PathBuf;

/// What is shown at a display step: means over all ranks, as in `lcurve.out`.
#[derive(Debug, Clone, PartialEq)]
pub struct Display {
    /// Steps done.
    pub step: u64,
    /// The learning rate.
    pub lr: f64,
    /// `rmse`, `rmse_e`, `rmse_f` and so on of the training batch; NaN where the data has no label.
    pub train: Vec<(String, f64)>,
    /// The same of the validation set; empty without one.
    pub valid: Vec<(String, f64)>,
}

/// Sees a display; false ends the run.
pub type OnDisplay<'a> = Box<dyn FnMut(&Display) -> bool + 'a>;

/// The caller's part in a run.
pub struct Caller<'a> {
    /// Asked on rank 0.
    pub on_display: OnDisplay<'a>,
    /// Ends the run from elsewhere, on any rank. Signals are left to the caller.
    pub stop: StopHandle,
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq)]
pub struct Ended {
    /// Steps done, those of runs that this one continued included.
    pub step: u64,
    /// Somebody asked to stop before the last step.
    pub stopped: bool,
    /// The last checkpoint; on rank 0, where one was written.
    pub checkpoint: Option<PathBuf>,
    /// The signal that asked; 0 where another rank has received it.
    pub(crate) signal: Option<i32>,
}
