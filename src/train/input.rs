//! The whole input file, as meant.

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

/// `training_data` or `validation_data`.
#[derive(Debug, Clone, PartialEq)]
pub struct DataOptions {
    /// As written, before patterns and parent folders are expanded. Relative to the folder that `dp` was started in.
    pub systems: Vec<String>,
    /// True where `systems` was one string: a system, or a folder that is searched for systems.
    pub search: bool,
    /// With `search`: only systems below the folder whose path matches one of these patterns.
    pub patterns: Option<Vec<String>>,
    pub batch_size: BatchSize,
    pub weights: SystemWeights,
}

/// Frames for each draw.
#[derive(Debug, Clone, PartialEq)]
pub enum BatchSize {
    Fixed(usize),
    /// One number for each system.
    List(Vec<usize>),
    /// Smallest number of frames with at least this many atoms.
    Auto(usize),
    /// Largest number of frames with at most this many atoms, at least one.
    Max(usize),
    /// As `Max`, and systems with more atoms than this are left out.
    Filter(usize),
}

/// How likely each system is drawn.
#[derive(Debug, Clone, PartialEq)]
pub enum SystemWeights {
    Uniform,
    /// By the number of batches of the system.
    BySize,
    /// `prob_sys_size; begin:end:weight; ...`: blocks with given weights, by size within a block.
    Blocks(Vec<(usize, usize, f64)>),
    /// `sys_probs`: one weight for each system.
    Explicit(Vec<f64>),
}
