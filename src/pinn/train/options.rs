//! What the command line says about a run.

use crate::report::log::MpiLog;
use std::path::PathBuf;

/// A run, as `pinn train` asks for it.
#[derive(Debug, Clone)]
pub struct RunOptions {
    /// `params.yml`, or the folder of a model.
    pub params: PathBuf,
    /// Instead of the `model_dir` of the file.
    pub model_dir: Option<PathBuf>,
    /// Data sets as [`crate::pinn::data::detect::DataSet`] understands them, and their format.
    pub train_ds: String,
    pub eval_ds: Option<String>,
    pub fmt: String,
    /// Structures of a batch; `None`: batches as they are stored.
    pub batch: Option<usize>,
    pub eval_bs: Option<usize>,
    /// Keep prepared structures in memory.
    pub cache: bool,
    /// Steps of the whole run.
    pub train_steps: u64,
    /// Batches of an evaluation at most.
    pub eval_steps: Option<u64>,
    pub log_every: u64,
    pub ckpt_every: u64,
    pub max_ckpts: usize,
    /// `metric:steps,...`
    pub early_stop: Option<String>,
    /// Work out energies of elements, and the elements, from the data.
    pub init: bool,
    /// The same bits for every number of ranks.
    pub reproducible: bool,
    /// Measure where the time goes.
    pub profile: bool,
    pub log_level: log::LevelFilter,
    pub log_path: Option<PathBuf>,
    pub mpi_log: MpiLog,
}
