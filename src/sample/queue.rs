//! Loader threads that read and prepare batches ahead of the step.
//!
//! Threads take draws in order and work on them at the same time; batches come out in the order of the draws.
//! At most `depth` batches are under way or waiting, so memory is bounded. Nothing spins: threads sleep until a
//! place is free, the consumer sleeps until its batch is there.

use super::cache::{CacheStats, Lru, Prepared};
use super::draw::{Draw, Sampler};
use crate::data::Frame;
use crate::error::{Error, Result};
use crate::{bail, err};
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// One frame of one system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FrameId {
    pub system: usize,
    pub frame: usize,
}

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
    pub system: usize,
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
    /// Load a number of batches while the consumer waits for them, instead of beside its work: where the consumer's threads
    /// have every core, a loader that takes one away for a while makes all of them wait.
    pub in_bursts: bool,
    /// This queue takes draws `start + rank + k * size`, where the sampler stands at `start`.
    pub rank: usize,
    pub size: usize,
}

type ReadFn<F> = dyn Fn(FrameId) -> Result<F> + Send + Sync;
type PrepareFn<P, F> = dyn Fn(&F) -> Result<P> + Send + Sync;

/// Delivers prepared batches in the order of the draws. Dropping it stops and joins its threads.
pub struct Queue<P: Prepared, F: Prepared = Frame> {
    shared: Arc<Shared<P, F>>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared<P, F> {
    state: Mutex<State<P, F>>,
    /// Woken when a batch is there.
    ready: Condvar,
    /// Woken when a place is free.
    free: Condvar,
    /// Looked at between frames, so that a drop need not wait for a whole batch.
    stop: AtomicBool,
    cache: Mutex<Lru<FrameId, Arc<Loaded<P, F>>>>,
    read: Box<ReadFn<F>>,
    prepare: Box<PrepareFn<P, F>>,
    depth: u64,
    in_bursts: bool,
    stride: u64,
}

struct State<P, F> {
    sampler: Sampler,
    /// Batches handed to threads so far.
    taken: u64,
    /// Batches handed to the consumer so far.
    delivered: u64,
    /// With bursts: batches that threads may take until the consumer waits again, and the size of the last burst.
    burst_end: u64,
    burst: u64,
    /// Finished batches by their place in the order.
    finished: HashMap<u64, Result<Batch<P, F>>>,
    /// Why no batch will come any more.
    broken: Option<Error>,
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
        assert!(options.threads > 0 && options.depth > 0, "a queue needs a thread and a place");
        assert!(options.rank < options.size, "rank {} of {}", options.rank, options.size);
        sampler.skip(options.rank as u64);
        let state = State {
            sampler,
            taken: 0,
            delivered: 0,
            burst_end: 0,
            burst: 0,
            finished: HashMap::new(),
            broken: None,
        };
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            ready: Condvar::new(),
            free: Condvar::new(),
            stop: AtomicBool::new(false),
            cache: Mutex::new(Lru::new(options.cache_bytes)),
            read: Box::new(read),
            prepare: Box::new(prepare),
            depth: options.depth as u64,
            in_bursts: options.in_bursts,
            stride: options.size as u64,
        });
        let mut queue = Queue { shared, threads: Vec::new() };
        for i in 0..options.threads.min(options.depth) {
            let shared = queue.shared.clone();
            let thread =
                std::thread::Builder::new().name(format!("loader-{i}")).spawn(move || shared.run()).map_err(
                    |e| err!("cannot start a loader thread: {e}").help("set NUM_WORKERS to a smaller number"),
                )?;
            queue.threads.push(thread);
        }
        Ok(queue)
    }

    /// The next batch of this rank. Waits where it is not ready. An error stands where its batch would.
    #[allow(clippy::should_implement_trait)] // It never ends, so it is no iterator.
    pub fn next(&mut self) -> Result<Batch<P, F>> {
        let mut state = self.shared.lock();
        if self.shared.in_bursts && state.taken == state.delivered {
            // Small at first, so that the first step need not wait for many.
            state.burst = (2 * state.burst).clamp(1, self.shared.depth);
            state.burst_end = state.taken + state.burst;
            self.shared.free.notify_all();
        }
        loop {
            let place = state.delivered;
            let loading = self.shared.in_bursts && state.finished.len() as u64 != state.burst_end - place;
            if !loading && let Some(batch) = state.finished.remove(&place) {
                state.delivered += 1;
                self.shared.free.notify_one();
                return batch;
            }
            if let Some(e) = &state.broken {
                return Err(e.clone());
            }
            state = self.shared.ready.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// How often frames were found in the cache, and how much it holds.
    pub fn cache_stats(&self) -> CacheStats {
        self.shared.cache().stats()
    }
}

impl<P: Prepared, F: Prepared> Drop for Queue<P, F> {
    fn drop(&mut self) {
        // The lock orders this after a thread's last look at the flag, so no thread sleeps through it.
        let state = self.shared.lock();
        self.shared.stop.store(true, Ordering::Relaxed);
        drop(state);
        self.shared.free.notify_all();
        for thread in self.threads.drain(..) {
            // A panic was turned into an error long before; there is nothing left to say here.
            let _ = thread.join();
        }
    }
}

impl<P: Prepared, F: Prepared> Shared<P, F> {
    /// What a loader thread does. Whatever happens, the consumer hears of it.
    fn run(&self) {
        step_aside();
        let outcome = catch_unwind(AssertUnwindSafe(|| while self.load_one() {}));
        if let Err(panic) = outcome {
            let mut state = self.lock();
            state.broken = Some(err!("a loader thread failed: {}", text_of(&*panic)));
            self.ready.notify_all();
        }
    }

    /// Takes the next draw and finishes it; false where there is nothing more to do.
    fn load_one(&self) -> bool {
        let Some((place, draw)) = self.take() else { return false };
        let batch = catch_unwind(AssertUnwindSafe(|| self.load(draw)))
            .unwrap_or_else(|panic| Err(err!("a loader thread failed: {}", text_of(&*panic))));
        self.lock().finished.insert(place, batch);
        self.ready.notify_one();
        true
    }

    /// Waits for a free place, then takes the next draw of this rank.
    fn take(&self) -> Option<(u64, Draw)> {
        let mut state = self.lock();
        let end =
            |state: &State<P, F>| if self.in_bursts { state.burst_end } else { state.delivered + self.depth };
        while !self.stopped() && state.taken >= end(&state) {
            state = self.free.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if self.stopped() {
            return None;
        }
        let draw = state.sampler.draw();
        state.sampler.skip(self.stride - 1);
        let place = state.taken;
        state.taken += 1;
        Some((place, draw))
    }

    fn load(&self, draw: Draw) -> Result<Batch<P, F>> {
        let Draw { number, system, frames } = draw;
        let load = |frame| self.load_frame(FrameId { system, frame });
        let frames = frames.into_iter().map(load).collect::<Result<_>>()?;
        Ok(Batch { draw: number, system, frames })
    }

    fn load_frame(&self, id: FrameId) -> Result<Arc<Loaded<P, F>>> {
        if self.stopped() {
            bail!("the queue was stopped");
        }
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

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Nothing is left half-done under these locks, so a panic elsewhere does not spoil them.
    fn lock(&self) -> MutexGuard<'_, State<P, F>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn cache(&self) -> MutexGuard<'_, Lru<FrameId, Arc<Loaded<P, F>>>> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Gives way to the compute threads: one of them that is held up holds up all, whereas batches are wanted later.
fn step_aside() {
    #[cfg(target_os = "linux")]
    // SAFETY: no memory is involved; 0 is the calling thread. A refusal does no harm.
    unsafe {
        libc::setpriority(libc::PRIO_PROCESS, 0, 19);
    }
}

fn text_of(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "unknown reason".to_owned())
}
