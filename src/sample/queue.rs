//! Batches that loader threads read and prepare ahead of the step, in the order of the draws.

use super::cache::{CacheStats, Lru, Prepared};
use super::draw::{Draw, FrameId, Sampler};
use super::loaders::{LoaderOptions, Loaders, Work};
use crate::bail;
use crate::data::Frame;
use crate::error::Result;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A frame, and what the engine made of it. Model families have frames of their own kind.
#[derive(Debug)]
pub struct Loaded<P, F = Frame> {
    pub id: FrameId,
    pub frame: F,
    pub prepared: P,
}

/// What one rank works on in one step.
#[derive(Debug)]
pub struct Batch<P, F = Frame> {
    /// Number of the draw, counted over all ranks.
    pub draw: u64,
    pub frames: Vec<Arc<Loaded<P, F>>>,
}

/// How the queue works.
#[derive(Debug, Clone, Copy)]
pub struct QueueOptions {
    /// Loader threads, at least one.
    pub threads: usize,
    /// Batches that are under way or waiting at most, at least one.
    pub depth: usize,
    /// Bytes of prepared frames that are kept for their next epoch.
    pub cache_bytes: usize,
    /// Batches are loaded while the consumer waits for them: see [`LoaderOptions::in_bursts`].
    pub in_bursts: bool,
    /// This queue takes draws `start + rank + k * size`, where the sampler stands at `start`.
    pub rank: usize,
    pub size: usize,
}

type ReadFn<F> = dyn Fn(FrameId) -> Result<F> + Send + Sync;
type PrepareFn<P, F> = dyn Fn(&F) -> Result<P> + Send + Sync;

/// Delivers prepared batches in the order of the draws. Dropping it stops and joins its threads.
pub struct Queue<P: Prepared, F: Prepared = Frame> {
    loaders: Loaders<Loading<P, F>>,
}

/// What the loader threads do.
struct Loading<P, F> {
    cache: Mutex<Lru<FrameId, Arc<Loaded<P, F>>>>,
    read: Box<ReadFn<F>>,
    prepare: Box<PrepareFn<P, F>>,
    size: u64,
}

impl<P: Prepared, F: Prepared> Queue<P, F> {
    /// Starts the threads. `sampler` stands at the first draw of all ranks; `read` gets a frame from disk and
    /// `prepare` does the engine's part. Both run on the loader threads.
    pub fn start(
        mut sampler: Sampler,
        options: QueueOptions,
        read: impl Fn(FrameId) -> Result<F> + Send + Sync + 'static,
        prepare: impl Fn(&F) -> Result<P> + Send + Sync + 'static,
    ) -> Result<Queue<P, F>> {
        let QueueOptions { threads, depth, cache_bytes, in_bursts, rank, size } = options;
        assert!(rank < size, "rank {rank} of {size}");
        sampler.skip(rank as u64);
        let work = Loading {
            cache: Mutex::new(Lru::new(cache_bytes)),
            read: Box::new(read),
            prepare: Box::new(prepare),
            size: size as u64,
        };
        let options = LoaderOptions { threads, depth, in_bursts, step_aside: true };
        Ok(Queue { loaders: Loaders::start(work, sampler, options)? })
    }

    /// The next batch of this rank. Waits where it is not ready. An error stands where its batch would.
    #[allow(clippy::should_implement_trait)] // It never ends, so it is no iterator.
    pub fn next(&mut self) -> Result<Batch<P, F>> {
        self.loaders.next()
    }

    /// How often frames were found in the cache, and how much it holds.
    pub fn cache_stats(&self) -> CacheStats {
        self.loaders.work().cache().stats()
    }
}

impl<P: Prepared, F: Prepared> Work for Loading<P, F> {
    type Order = Sampler;
    type Piece = Draw;
    type Result = Batch<P, F>;

    fn take(&self, sampler: &mut Sampler) -> Draw {
        sampler.draw_of(self.size)
    }

    fn finish(&self, draw: Draw, stop: &AtomicBool) -> Result<Batch<P, F>> {
        let load = |id| {
            if stop.load(Ordering::Relaxed) {
                bail!("the queue was stopped");
            }
            self.load(id)
        };
        let frames = draw.frames.into_iter().map(load).collect::<Result<_>>()?;
        Ok(Batch { draw: draw.number, frames })
    }
}

impl<P: Prepared, F: Prepared> Loading<P, F> {
    fn load(&self, id: FrameId) -> Result<Arc<Loaded<P, F>>> {
        if let Some(known) = self.cache().get(&id) {
            return Ok(known);
        }
        let frame = (self.read)(id)?;
        let prepared = (self.prepare)(&frame)?;
        let bytes = frame.bytes() + prepared.bytes() + size_of::<Loaded<P, F>>();
        let loaded = Arc::new(Loaded { id, frame, prepared });
        self.cache().insert(id, loaded.clone(), bytes);
        Ok(loaded)
    }

    /// Nothing is left half-done under this lock, so a panic elsewhere does not spoil it.
    fn cache(&self) -> MutexGuard<'_, Lru<FrameId, Arc<Loaded<P, F>>>> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
