//! What the command line says about a run.

use crate::engine::choice::DeviceChoice;
use crate::report::log::MpiLog;
use std::path::PathBuf;

/// A run, as the command line asks for it.
#[derive(Debug, Clone)]
pub struct RunOptions {
    pub input: PathBuf,
    pub start: Start,
    /// Where the input with all defaults goes.
    pub output: PathBuf,
    pub skip_neighbor_stat: bool,
    /// Take the `model` section from the model that training starts from.
    pub use_pretrain_script: bool,
    /// DeePMD-kit's PyTorch habits (`dp --pt`): the learning rate is not scaled by the number of ranks unless the input
    /// says so, and the initial parameters are the very same for the same seeds.
    pub pytorch_conventions: bool,
    /// Where to compute.
    pub device: DeviceChoice,
    /// Measure where the time goes.
    pub profile: bool,
    pub log_level: log::LevelFilter,
    pub log_path: Option<PathBuf>,
    pub mpi_log: MpiLog,
}

/// What training starts from.
#[derive(Debug, Clone, PartialEq)]
pub enum Start {
    /// Random parameters, statistics from the data.
    Fresh,
    /// A checkpoint, continued exactly.
    Restart(PathBuf),
    /// The parameters and statistics of a checkpoint or model file; training begins anew.
    Model(PathBuf),
    /// As `Model`, and the energy bias is fitted to the new data.
    Finetune(PathBuf),
}
