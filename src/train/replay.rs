//! Steps on a GPU that are recorded once and then replayed as a whole, for the learners of both families.

use crate::Result;
use crate::gpu::{Device, Graph};
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

/// Recorded work, by what it is for.
pub struct Recordings<K> {
    /// `None`: done once, and to be recorded the next time.
    graphs: HashMap<K, Option<Graph>>,
    /// Of the memory that recorded work uses.
    generation: u64,
    /// Recordings that are kept at a time; other work is started kernel by kernel.
    most: usize,
}

impl<K> Default for Recordings<K> {
    /// Keeps none.
    fn default() -> Self {
        Recordings { graphs: HashMap::new(), generation: 0, most: 0 }
    }
}

impl<K: Copy + Eq + Hash> Recordings<K> {
    /// Keeps so many at a time, and none with `PHALANX_GRAPHS=0`.
    pub fn new(most: usize, env: &dyn Fn(&str) -> Option<String>) -> Self {
        let records = env("PHALANX_GRAPHS").is_none_or(|value| value != "0");
        Recordings { most: if records { most } else { 0 }, ..Self::default() }
    }

    /// Forgets those that nobody will ask for any more, when there is something new to keep.
    pub fn retain_for(&mut self, new: K, is_wanted: impl Fn(&K) -> bool) {
        if !self.graphs.contains_key(&new) {
            self.graphs.retain(|key, _| is_wanted(key));
        }
    }

    /// Does work as it was recorded, or records it when it is done for the second time. The first time loads kernels, which
    /// cannot be recorded.
    ///
    /// # Safety
    ///
    /// While `generation` stays as it is, so does the memory that the work of this key uses.
    pub unsafe fn replay(
        &mut self,
        device: &Arc<Device>,
        key: K,
        generation: u64,
        work: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        if self.generation != generation {
            self.graphs.clear();
            self.generation = generation;
        }
        if !self.graphs.contains_key(&key) {
            if self.graphs.len() < self.most {
                self.graphs.insert(key, None);
            }
            return work();
        }
        if self.graphs[&key].is_none() {
            self.graphs.insert(key, Some(Graph::record(device, work)?));
        }
        match &self.graphs[&key] {
            // SAFETY: the caller's word: what was recorded with other memory is gone.
            Some(graph) => unsafe { graph.launch() },
            None => unreachable!("it was recorded above"),
        }
    }
}
