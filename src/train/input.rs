//! The whole input file, as meant.

use crate::data::options::DataOptions;
use crate::loss::options::EnerLossOptions;
use crate::model::dp::options::ModelOptions;
use crate::optim::options::{LearningRateOptions, OptimizerOptions};
use std::path::PathBuf;

/// A training input with every default filled in.
#[derive(Debug, Clone)]
pub struct Input {
    pub model: ModelOptions,
    pub learning_rate: LearningRateOptions,
    pub loss: EnerLossOptions,
    pub optimizer: OptimizerOptions,
    pub training: TrainingOptions,
}

/// The `training` section.
#[derive(Debug, Clone)]
pub struct TrainingOptions {
    pub training_data: DataOptions,
    pub validation_data: Option<DataOptions>,
    pub length: Length,
    pub seed: u64,
    pub disp_file: PathBuf,
    pub disp_freq: u64,
    /// Batches of the validation set that a display step averages over.
    pub numb_btch: usize,
    pub save_freq: u64,
    pub save_ckpt: PathBuf,
    pub max_ckpt_keep: usize,
    pub disp_training: bool,
    pub time_training: bool,
    pub stat_file: Option<PathBuf>,
    /// Gradients with a larger norm are scaled down to it; 0 means never.
    pub gradient_max_norm: f64,
    pub tensorboard: bool,
    pub tensorboard_log_dir: PathBuf,
    pub tensorboard_freq: u64,
    pub profiling: bool,
    pub profiling_file: PathBuf,
    /// Draws that one rank adds up before the optimiser steps (ours).
    pub gradient_accumulation: usize,
    /// The same bits for every number of ranks and threads (ours).
    pub reproducible: bool,
}

/// How long to train.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Length {
    Steps(u64),
    /// Times the (weighted) size of the training set.
    Epochs(f64),
}
