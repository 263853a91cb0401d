//! Which frames a GPU works on next, and those of them that must be brought there first.
//!
//! Threads take draws in order. Under one lock they decide which frames are on the device already and which slots are
//! given up for others; outside it they read and prepare what is missing. The decisions follow from the draws alone, so the
//! learner has only to carry them out in order.

use crate::data::Dataset;
use crate::engine::cuda::frame::HostFrame;
use crate::err;
use crate::error::{Error, Result};
use crate::sample::{Draw, FrameId, Sampler};
use std::collections::{BTreeMap, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// A batch as the device sees it.
pub struct Placed {
    /// Slots that are given up before this batch.
    pub leaving: Vec<u32>,
    /// Frames that come before this batch, and where they go.
    pub coming: Vec<(u32, HostFrame)>,
    /// The frames of the batch.
    pub slots: Vec<u32>,
}

/// How the feed works.
pub struct FeedOptions {
    pub threads: usize,
    /// Batches under way or waiting at most.
    pub depth: usize,
    /// This feed takes draws `start + rank + k * size`, where the sampler stands at `start`.
    pub rank: usize,
    pub size: usize,
    /// Slots, and bytes that frames may take on the device.
    pub slots: usize,
    pub bytes: usize,
    /// `[n_systems]` bytes of a frame on the device, at most.
    pub frame_bytes: Vec<usize>,
}

type Prepare = dyn Fn(FrameId) -> Result<HostFrame> + Send + Sync;

/// Delivers batches in the order of the draws. Dropping it stops and joins its threads.
pub struct Feed {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    state: Mutex<State>,
    ready: Condvar,
    free: Condvar,
    prepare: Box<Prepare>,
    depth: u64,
    stride: u64,
}

struct State {
    sampler: Sampler,
    residents: Residents,
    taken: u64,
    delivered: u64,
    finished: HashMap<u64, Result<Placed>>,
    stopped: bool,
    broken: Option<Error>,
}

impl Feed {
    /// Starts the threads. `sampler` stands at the first draw of all ranks; `prepare` runs on the threads.
    pub fn start(
        mut sampler: Sampler,
        options: FeedOptions,
        prepare: impl Fn(FrameId) -> Result<HostFrame> + Send + Sync + 'static,
    ) -> Result<Feed> {
        sampler.skip(options.rank as u64);
        let state = State {
            sampler,
            residents: Residents::new(options.slots, options.bytes, options.frame_bytes),
            taken: 0,
            delivered: 0,
            finished: HashMap::new(),
            stopped: false,
            broken: None,
        };
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            ready: Condvar::new(),
            free: Condvar::new(),
            prepare: Box::new(prepare),
            depth: options.depth as u64,
            stride: options.size as u64,
        });
        let mut feed = Feed { shared, threads: Vec::new() };
        for i in 0..options.threads.max(1) {
            let shared = feed.shared.clone();
            let thread =
                std::thread::Builder::new().name(format!("loader-{i}")).spawn(move || shared.run()).map_err(
                    |e| err!("cannot start a loader thread: {e}").help("set NUM_WORKERS to a smaller number"),
                )?;
            feed.threads.push(thread);
        }
        Ok(feed)
    }

    /// The next batch of this rank; waits where it is not ready.
    #[allow(clippy::should_implement_trait)] // It never ends, so it is no iterator.
    pub fn next(&mut self) -> Result<Placed> {
        let mut state = self.shared.lock();
        loop {
            let place = state.delivered;
            if let Some(batch) = state.finished.remove(&place) {
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
}

impl Drop for Feed {
    fn drop(&mut self) {
        self.shared.lock().stopped = true;
        self.shared.free.notify_all();
        for thread in self.threads.drain(..) {
            // A panic was turned into an error before; there is nothing left to say here.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn run(&self) {
        let outcome = catch_unwind(AssertUnwindSafe(|| while self.place_one() {}));
        if outcome.is_err() {
            self.lock().broken = Some(err!("a loader thread failed"));
            self.ready.notify_all();
        }
    }

    /// Takes the next draw and finishes it; false where there is nothing more to do.
    fn place_one(&self) -> bool {
        let mut state = self.lock();
        while !state.stopped && state.taken >= state.delivered + self.depth {
            state = self.free.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.stopped {
            return false;
        }
        let draw = state.sampler.draw();
        state.sampler.skip(self.stride - 1);
        let place = state.taken;
        state.taken += 1;
        let plan = state.residents.plan(&draw);
        drop(state);
        let load = |(slot, id): (u32, FrameId)| (self.prepare)(id).map(|frame| (slot, frame));
        let coming: Result<Vec<_>> = plan.coming.into_iter().map(load).collect();
        let batch = coming.map(|coming| Placed { leaving: plan.leaving, coming, slots: plan.slots });
        self.lock().finished.insert(place, batch);
        self.ready.notify_one();
        true
    }

    /// Nothing is left half-done under this lock, so a panic elsewhere does not spoil it.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a batch needs, before frames are loaded.
struct Needs {
    leaving: Vec<u32>,
    coming: Vec<(u32, FrameId)>,
    slots: Vec<u32>,
}

/// Which frames are on the device: those used last, within a budget.
struct Residents {
    frames: HashMap<FrameId, (u32, u64)>,
    by_use: BTreeMap<u64, FrameId>,
    free: Vec<u32>,
    bytes: usize,
    budget: usize,
    frame_bytes: Vec<usize>,
    uses: u64,
}

impl Residents {
    fn new(slots: usize, budget: usize, frame_bytes: Vec<usize>) -> Self {
        Residents {
            frames: HashMap::new(),
            by_use: BTreeMap::new(),
            free: (0..slots as u32).rev().collect(),
            bytes: 0,
            budget,
            frame_bytes,
            uses: 0,
        }
    }

    fn plan(&mut self, draw: &Draw) -> Needs {
        let began = self.uses;
        let mut needs = Needs { leaving: Vec::new(), coming: Vec::new(), slots: Vec::new() };
        for &frame in &draw.frames {
            let id = FrameId { system: draw.system, frame };
            let (slot, known) = match self.frames.get(&id) {
                Some(&(slot, used)) => {
                    self.by_use.remove(&used);
                    (slot, true)
                }
                None => (self.make_room(&mut needs.leaving, id.system, began), false),
            };
            if !known {
                needs.coming.push((slot, id));
                self.bytes += self.frame_bytes[id.system];
            }
            self.frames.insert(id, (slot, self.uses));
            self.by_use.insert(self.uses, id);
            self.uses += 1;
            needs.slots.push(slot);
        }
        needs
    }

    /// A slot for a frame of a system. Frames used since `began`, those of this very batch, stay.
    fn make_room(&mut self, leaving: &mut Vec<u32>, system: usize, began: u64) -> u32 {
        while self.free.is_empty() || self.bytes + self.frame_bytes[system] > self.budget {
            let Some((&used, &id)) = self.by_use.first_key_value().filter(|(used, _)| **used < began) else {
                break;
            };
            self.by_use.remove(&used);
            if let Some((slot, _)) = self.frames.remove(&id) {
                self.bytes -= self.frame_bytes[id.system];
                self.free.push(slot);
                leaving.push(slot);
            }
        }
        self.free.pop().expect("there are more slots than frames in a batch")
    }
}

/// Bytes of a frame on the device, at most, for each system of a data set.
///
/// - columns  of the features, for each neighbour type
pub fn frame_bytes(data: &Dataset, n_sel: usize, n_types: usize, columns: usize, size: usize) -> Vec<usize> {
    let of_atom = n_sel * (3 * size + 8) + 4 * n_types * columns * size + 160;
    data.systems.iter().map(|system| system.n_atoms * of_atom + 4096).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draw(frames: &[usize]) -> Draw {
        Draw { number: 0, system: 0, frames: frames.to_vec() }
    }

    #[test]
    fn frames_come_once_and_stay_while_there_is_room() {
        let mut residents = Residents::new(8, 300, vec![100]);
        let needs = residents.plan(&draw(&[4, 7]));
        assert_eq!((needs.slots, needs.coming.len(), needs.leaving.len()), (vec![0, 1], 2, 0));
        let needs = residents.plan(&draw(&[7, 9]));
        assert_eq!((needs.slots, needs.coming[0].1.frame, needs.leaving.len()), (vec![1, 2], 9, 0));
        // Three frames fill the budget: the one used longest ago leaves.
        let needs = residents.plan(&draw(&[5]));
        assert_eq!((needs.leaving, needs.slots), (vec![0], vec![0]));
        // A batch that is larger than the budget is held all the same.
        let needs = residents.plan(&draw(&[1, 2, 3, 6]));
        assert_eq!(needs.coming.len(), 4);
        let mut distinct = needs.slots.clone();
        distinct.sort();
        distinct.dedup();
        assert_eq!(distinct.len(), 4, "every frame of a batch has a slot of its own");
    }
}
