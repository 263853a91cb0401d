//! Which frames a GPU works on next, and those of them that must be brought there first.
//!
//! Threads take draws in order. Under one lock they decide which frames are on the device already and which slots are
//! given up for others; outside it they read and prepare what is missing. The decisions follow from the draws alone, so the
//! learner has only to carry them out in order.

use crate::data::Dataset;
use crate::engine::cuda::frame::HostFrame;
use crate::error::Result;
use crate::sample::loaders::{LoaderOptions, Loaders, Work};
use crate::sample::{Draw, FrameId, Sampler};
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::AtomicBool;

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
    loaders: Loaders<Placing>,
}

/// What the threads do.
struct Placing {
    prepare: Box<Prepare>,
    size: u64,
}

impl Feed {
    /// Starts the threads. `sampler` stands at the first draw of all ranks; `prepare` runs on the threads.
    pub fn start(
        mut sampler: Sampler,
        options: FeedOptions,
        prepare: impl Fn(FrameId) -> Result<HostFrame> + Send + Sync + 'static,
    ) -> Result<Feed> {
        sampler.skip(options.rank as u64);
        let residents = Residents::new(options.slots, options.bytes, options.frame_bytes);
        let work = Placing { prepare: Box::new(prepare), size: options.size as u64 };
        let options = LoaderOptions {
            threads: options.threads.max(1),
            depth: options.depth,
            in_bursts: false,
            step_aside: false, // the device computes, not the cores
        };
        Ok(Feed { loaders: Loaders::start(work, (sampler, residents), options)? })
    }

    /// The next batch of this rank; waits where it is not ready.
    #[allow(clippy::should_implement_trait)] // It never ends, so it is no iterator.
    pub fn next(&mut self) -> Result<Placed> {
        self.loaders.next()
    }
}

impl Work for Placing {
    type Order = (Sampler, Residents);
    type Piece = Needs;
    type Result = Placed;

    fn take(&self, (sampler, residents): &mut (Sampler, Residents)) -> Needs {
        residents.plan(&sampler.draw_of(self.size))
    }

    fn finish(&self, needs: Needs, _stop: &AtomicBool) -> Result<Placed> {
        let load = |(slot, id): (u32, FrameId)| (self.prepare)(id).map(|frame| (slot, frame));
        let coming = needs.coming.into_iter().map(load).collect::<Result<_>>()?;
        Ok(Placed { leaving: needs.leaving, coming, slots: needs.slots })
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
        for &id in &draw.frames {
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
/// - parts    ranks that share a frame
pub fn frame_bytes(
    data: &Dataset,
    n_sel: usize,
    n_types: usize,
    columns: usize,
    size: usize,
    parts: usize,
) -> Vec<usize> {
    let of_row = n_sel * (3 * size + 8) + 4 * n_types * columns * size + 40;
    let bytes = |n: usize| crate::neighbor::Cut::most_of_block(n, parts) * of_row + n * 120 + 4096;
    data.systems.iter().map(|system| bytes(system.n_atoms)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draw(frames: &[usize]) -> Draw {
        Draw { number: 0, frames: frames.iter().map(|&frame| FrameId { system: 0, frame }).collect() }
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
