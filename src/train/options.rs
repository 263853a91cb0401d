//! What the command line says about a run.

use crate::engine::choice::DeviceChoice;
use crate::error::Result;
use crate::report::dashboard::DashboardOptions;
use crate::report::log::MpiLog;
use crate::report::messages::quoted;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// A run, as the command line asks for it.
#[derive(Debug, Clone)]
pub struct RunOptions {
    pub input: InputSource,
    pub start: Start,
    /// The branch of a multi-task model that fine-tuning starts from; RANDOM: the descriptor alone. Empty where none is named.
    pub model_branch: String,
    /// Where the input with all defaults goes.
    pub output: PathBuf,
    pub skip_neighbor_stat: bool,
    /// Results of an earlier run are replaced, not set aside.
    pub no_backup: bool,
    /// Take the `model` section from the model that training starts from.
    pub use_pretrain_script: bool,
    /// DeePMD-kit's PyTorch habits (`dp --pt`): the learning rate is not scaled by the number of ranks unless the input
    /// says so, and the initial parameters are the very same for the same seeds.
    pub pytorch_conventions: bool,
    /// Endings that the newest checkpoint is to have beside its own, for workflows that look for a framework's files.
    pub checkpoint_endings: &'static [&'static str],
    /// Where to compute.
    pub device: DeviceChoice,
    /// Measure where the time goes.
    pub profile: bool,
    /// Look for a learning rate to start with, and do nothing else.
    pub find_rate: bool,
    /// Serve a page that shows the run.
    pub dashboard: Option<DashboardOptions>,
    pub log_level: log::LevelFilter,
    pub log_path: Option<PathBuf>,
    pub mpi_log: MpiLog,
    /// End with 0 also where a signal ended the run early.
    pub zero_on_stop: bool,
    /// Whether to go on from the newest complete checkpoint; None: as the input says.
    pub resume: Option<bool>,
}

impl RunOptions {
    /// The command line that continues this run from its newest checkpoint.
    pub fn continue_command(&self, save_ckpt: &Path) -> String {
        let mut words = vec!["dp".to_string()];
        if self.pytorch_conventions {
            words.push("--pt".into());
        }
        words.extend([
            "train".into(),
            "--restart".into(),
            quoted(save_ckpt),
            quoted(Path::new(&self.input.name())),
        ]);
        if self.output != Path::new("out.json") {
            words.extend(["-o".into(), quoted(&self.output)]);
        }
        if self.device != DeviceChoice::Auto {
            words.extend(["--device".into(), self.device.to_string()]);
        }
        if let Some(path) = &self.log_path {
            words.extend(["-l".into(), quoted(path)]);
        }
        words.join(" ")
    }
}

/// Where the input comes from.
#[derive(Debug, Clone, PartialEq)]
pub enum InputSource {
    /// A JSON or YAML file.
    File(PathBuf),
    /// Handed over by a program, not checked yet.
    Value(Value),
}

impl InputSource {
    /// What messages call it.
    pub fn name(&self) -> String {
        match self {
            InputSource::File(path) => path.display().to_string(),
            InputSource::Value(_) => "the input".to_string(),
        }
    }

    /// Where it is a file.
    pub fn path(&self) -> Option<&Path> {
        match self {
            InputSource::File(path) => Some(path),
            InputSource::Value(_) => None,
        }
    }

    /// The input as written.
    pub fn read(&self) -> Result<Value> {
        match self {
            InputSource::File(path) => crate::config::value::read(path),
            InputSource::Value(value) => Ok(value.clone()),
        }
    }
}

impl From<PathBuf> for InputSource {
    fn from(path: PathBuf) -> Self {
        InputSource::File(path)
    }
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
