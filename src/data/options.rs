//! Where the data is and how it is drawn, as meant.

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
    /// Frames with atoms closer than this are left out, A.
    pub min_pair_dist: f64,
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
    /// Batches of frames of all systems.
    Mixed(Mix),
}

/// How many frames, each of a system that is drawn by itself, make a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mix {
    Frames(usize),
    /// As many as have at most so many atoms together, at least one.
    Atoms(usize),
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
