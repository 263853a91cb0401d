//! Which frames next, and the queue that prepares them.

pub mod permute; // the order of frames within an epoch
pub mod twister; // the generator below PyTorch's and Python's
pub mod torch; // PyTorch's random numbers, which give DeePMD-kit's initial parameters and frames of the statistics
pub mod statistics; // the frames that the statistics are taken from
pub mod draw; // which system and which of its frames, as a function of the seed and the draw number
pub mod cache; // prepared frames within a budget of bytes
pub mod loaders; // threads that work ahead of who needs the results
pub mod queue; // batches that are read and prepared ahead of the step

pub use cache::{CacheStats, Prepared};
pub use draw::{BranchDraw, Draw, FrameId, Pool, Purpose, Sampler};
pub use queue::{Batch, Loaded, Queue, QueueOptions};
pub use statistics::{frames_for_statistics, global_generator};

#[cfg(test)]
mod queue_tests;
