//! What the command line says about a run.

use crate::engine::choice::DeviceChoice;
use crate::report::log::MpiLog;
use std::path::PathBuf;

/// The command line of `pinn train`, as meant.
#[derive(Debug, Clone, PartialEq)]
pub struct TrainArgs {
    /// params.yml, or the folder of a model.
    pub params: PathBuf,
    /// Instead of `model_dir` of params.yml.
    pub model_dir: Option<PathBuf>,
    /// The data sets, by name; see [`crate::pinn::data::detect::DataSet::new`].
    pub train_ds: String,
    pub eval_ds: String,
    /// Their format: `auto`, or a name.
    pub fmt: String,
    /// Structures in a batch; `None`: batches as they are stored.
    pub batch: Option<usize>,
    /// Structures in a batch of the evaluation; `None`: as `batch`.
    pub eval_batch: Option<usize>,
    /// Whether prepared structures stay in memory.
    pub cache: bool,
    /// Whether neighbour lists are made once, before training.
    pub preprocess: bool,
    pub scratch_dir: Option<PathBuf>,
    /// Steps of the whole run, those before a restart included.
    pub train_steps: u64,
    /// Batches of an evaluation; `None`: all.
    pub eval_steps: Option<u64>,
    pub shuffle_buffer: usize,
    pub log_every: u64,
    pub ckpt_every: u64,
    pub max_ckpts: usize,
    /// Metrics that end the run when they have not fallen for that many steps.
    pub early_stop: Vec<(String, u64)>,
    /// Whether `e_dress` and `atom_types` are fitted to the training data first.
    pub init: bool,
    pub device: DeviceChoice,
    pub profile: bool,
    pub log_level: log::LevelFilter,
    pub log_path: Option<PathBuf>,
    pub mpi_log: MpiLog,
    /// End with 0 also where a signal ended the run early.
    pub zero_on_stop: bool,
    /// The same bits for every number of ranks that share the draws.
    pub reproducible: bool,
}
