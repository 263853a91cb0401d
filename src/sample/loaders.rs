//! Threads that work ahead of whoever needs the results.
//!
//! They take pieces of work in order and finish them at the same time; results come out in the order in which they were taken.
//! At most `depth` of them are under way or waiting, so memory is bounded. Nothing spins: threads sleep until a place is free,
//! the consumer sleeps until its result is there.

use crate::err;
use crate::error::{Error, Result};
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// What the threads do.
pub trait Work: Send + Sync + 'static {
    /// What decides on the next piece.
    type Order: Send;
    /// A piece of work, and its result.
    type Piece;
    type Result: Send;

    /// The next piece, under a lock: pieces follow from those before.
    fn take(&self, order: &mut Self::Order) -> Self::Piece;

    /// Does it. Where it takes long, `stop` is looked at in between: nobody wants the result any more.
    fn finish(&self, piece: Self::Piece, stop: &AtomicBool) -> Result<Self::Result>;
}

/// How the threads work.
#[derive(Debug, Clone, Copy)]
pub struct LoaderOptions {
    /// At least one.
    pub threads: usize,
    /// Results that are under way or waiting at most, at least one.
    pub depth: usize,
    /// Finish a number of pieces while the consumer waits for them, instead of beside its work: where the consumer's threads
    /// have every core, a loader that takes one away for a while makes all of them wait.
    pub in_bursts: bool,
    /// Give way to the threads of the consumer: one of them that is held up holds up all, whereas results are wanted later.
    pub step_aside: bool,
}

/// Delivers results in order. Dropping it stops and joins its threads.
pub struct Loaders<W: Work> {
    shared: Arc<Shared<W>>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared<W: Work> {
    work: W,
    state: Mutex<State<W>>,
    /// Woken when a result is there.
    ready: Condvar,
    /// Woken when a place is free.
    free: Condvar,
    /// Looked at while a piece is worked on, so that a drop need not wait for a whole one.
    stop: AtomicBool,
    options: LoaderOptions,
}

struct State<W: Work> {
    order: W::Order,
    /// Pieces that threads have taken so far.
    taken: u64,
    /// Results handed to the consumer so far.
    delivered: u64,
    /// With bursts: pieces that threads may take until the consumer waits again, and the size of the last burst.
    burst_end: u64,
    burst: u64,
    /// Results by their place in the order.
    finished: HashMap<u64, Result<W::Result>>,
    /// Why nothing will come any more.
    broken: Option<Error>,
}

impl<W: Work> Loaders<W> {
    /// Starts the threads.
    pub fn start(work: W, order: W::Order, options: LoaderOptions) -> Result<Loaders<W>> {
        assert!(options.threads > 0 && options.depth > 0, "loaders need a thread and a place");
        let state = State {
            order,
            taken: 0,
            delivered: 0,
            burst_end: 0,
            burst: 0,
            finished: HashMap::new(),
            broken: None,
        };
        let shared = Arc::new(Shared {
            work,
            state: Mutex::new(state),
            ready: Condvar::new(),
            free: Condvar::new(),
            stop: AtomicBool::new(false),
            options,
        });
        let mut loaders = Loaders { shared, threads: Vec::new() };
        for i in 0..options.threads.min(options.depth) {
            let shared = loaders.shared.clone();
            let thread =
                std::thread::Builder::new().name(format!("loader-{i}")).spawn(move || shared.run()).map_err(
                    |e| err!("cannot start a loader thread: {e}").help("set NUM_WORKERS to a smaller number"),
                )?;
            loaders.threads.push(thread);
        }
        Ok(loaders)
    }

    /// The next result. Waits where it is not ready. An error stands where its result would.
    #[allow(clippy::should_implement_trait)] // It never ends, so it is no iterator.
    pub fn next(&mut self) -> Result<W::Result> {
        let in_bursts = self.shared.options.in_bursts;
        let mut state = self.shared.lock();
        if in_bursts && state.taken == state.delivered {
            // Small at first, so that the first step need not wait for many.
            state.burst = (2 * state.burst).clamp(1, self.shared.options.depth as u64);
            state.burst_end = state.taken + state.burst;
            self.shared.free.notify_all();
        }
        loop {
            let place = state.delivered;
            let loading = in_bursts && state.finished.len() as u64 != state.burst_end - place;
            if !loading && let Some(result) = state.finished.remove(&place) {
                state.delivered += 1;
                self.shared.free.notify_one();
                return result;
            }
            if let Some(e) = &state.broken {
                return Err(e.clone());
            }
            state = self.shared.ready.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    pub fn work(&self) -> &W {
        &self.shared.work
    }
}

impl<W: Work> Drop for Loaders<W> {
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

impl<W: Work> Shared<W> {
    /// What a thread does. Whatever happens, the consumer hears of it.
    fn run(&self) {
        if self.options.step_aside {
            step_aside();
        }
        let outcome = catch_unwind(AssertUnwindSafe(|| while self.finish_one() {}));
        if let Err(panic) = outcome {
            let mut state = self.lock();
            state.broken = Some(err!("a loader thread failed: {}", text_of(&*panic)));
            self.ready.notify_all();
        }
    }

    /// Takes the next piece and finishes it; false where there is nothing more to do.
    fn finish_one(&self) -> bool {
        let Some((place, piece)) = self.take() else { return false };
        let result = catch_unwind(AssertUnwindSafe(|| self.work.finish(piece, &self.stop)))
            .unwrap_or_else(|panic| Err(err!("a loader thread failed: {}", text_of(&*panic))));
        self.lock().finished.insert(place, result);
        self.ready.notify_one();
        true
    }

    /// Waits for a free place, then takes the next piece.
    fn take(&self) -> Option<(u64, W::Piece)> {
        let LoaderOptions { in_bursts, depth, .. } = self.options;
        let end = |state: &State<W>| if in_bursts { state.burst_end } else { state.delivered + depth as u64 };
        let mut state = self.lock();
        while !self.is_stopped() && state.taken >= end(&state) {
            state = self.free.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if self.is_stopped() {
            return None;
        }
        let piece = self.work.take(&mut state.order);
        let place = state.taken;
        state.taken += 1;
        Some((place, piece))
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Nothing is left half-done under this lock, so a panic elsewhere does not spoil it.
    fn lock(&self) -> MutexGuard<'_, State<W>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

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
