//! The `learning_rate` and `optimizer` sections, as meant.

/// How the learning rate falls, after the warm-up.
#[derive(Debug, Clone, PartialEq)]
pub enum Schedule {
    /// start_lr * decay_rate^(step / decay_steps), in stairs unless `smooth`; never below `min_lr`.
    Exp { decay_steps: u64, decay_rate: f64, smooth: bool, min_lr: f64 },
    /// Half a cosine from start_lr to `stop_lr`.
    Cosine { stop_lr: f64 },
    /// Stable, then decaying over the last part of the run.
    Wsd { stop_lr: f64, decay_phase_ratio: f64, decay: WsdDecay },
}

/// The shape of the last phase of a warm-up, stable, decay schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WsdDecay {
    InverseLinear,
    Cosine,
    Linear,
}

/// How the learning rate follows the number of ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScaleByWorker {
    Linear,
    Sqrt,
    None,
}

/// The `learning_rate` section.
#[derive(Debug, Clone, PartialEq)]
pub struct LearningRateOptions {
    pub start_lr: f64,
    pub schedule: Schedule,
    /// Steps of linear warm-up before the schedule starts.
    pub warmup_steps: u64,
    /// The warm-up starts at this fraction of start_lr.
    pub warmup_start_factor: f64,
    /// `None`: the convention of the command line decides (Horovod's for `dp`, DDP's for `dp --pt`).
    pub scale_by_worker: Option<ScaleByWorker>,
}

/// The `optimizer` section.
#[derive(Debug, Clone, PartialEq)]
pub enum OptimizerOptions {
    Adam { beta1: f64, beta2: f64, weight_decay: f64 },
    AdamW { beta1: f64, beta2: f64, weight_decay: f64 },
}
