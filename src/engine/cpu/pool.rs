//! Threads of the CPU engine.

use crate::{Result, err};
use rayon::prelude::*;

/// A fixed set of threads. With one thread everything runs on the caller's.
pub struct Pool {
    threads: Option<rayon::ThreadPool>,
    n_threads: usize,
}

impl Pool {
    pub fn new(n_threads: usize) -> Result<Self> {
        let threads = match n_threads {
            0 | 1 => None,
            n => Some(
                rayon::ThreadPoolBuilder::new()
                    .num_threads(n)
                    .thread_name(|k| format!("compute-{k}"))
                    .build()
                    .map_err(|e| err!("cannot start {n} compute threads: {e}"))?,
            ),
        };
        Ok(Pool { threads, n_threads: n_threads.max(1) })
    }

    pub fn n_threads(&self) -> usize {
        self.n_threads
    }

    /// Runs `work` on one of the threads, from where [`Pool::run`] reaches the others faster.
    pub fn enter<R: Send>(&self, work: impl FnOnce() -> R + Send) -> R {
        match &self.threads {
            None => work(),
            Some(pool) => pool.install(work),
        }
    }

    /// Runs `task(0) .. task(n - 1)`, in any order, and returns when all are done.
    ///
    /// How the work is cut never depends on the number of threads, so neither does any result.
    pub fn run(&self, n: usize, task: impl Fn(usize) + Send + Sync) {
        match &self.threads {
            None => (0..n).for_each(task),
            Some(pool) => pool.install(|| (0..n).into_par_iter().with_max_len(1).for_each(task)),
        }
    }
}

/// A buffer whose disjoint parts are written by different tasks.
pub struct Parts<T>(*mut T, usize);

// SAFETY: access goes through `part`, whose caller promises that parts do not overlap.
unsafe impl<T: Send> Send for Parts<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Parts<T> {}

impl<T> Parts<T> {
    pub fn new(data: &mut [T]) -> Self {
        Parts(data.as_mut_ptr(), data.len())
    }

    /// `len` elements from `start` on.
    ///
    /// # Safety
    /// No two parts that live at the same time may overlap, and the buffer must outlive them.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn part(&self, start: usize, len: usize) -> &mut [T] {
        assert!(start + len <= self.1, "the part lies within the buffer");
        // SAFETY: within the buffer; disjoint by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.0.add(start), len) }
    }

    /// The address of element `start`, for kernels that write a block of a matrix.
    pub fn at(&self, start: usize) -> *mut T {
        assert!(start <= self.1, "the block starts within the buffer");
        // SAFETY: within the buffer.
        unsafe { self.0.add(start) }
    }

    pub fn len(&self) -> usize {
        self.1
    }

    pub fn is_empty(&self) -> bool {
        self.1 == 0
    }
}
