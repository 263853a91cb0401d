//! Threads of the CPU engine.
//!
//! A step is some thirty short stages, each cut into tasks and ended by everyone waiting for everyone. So the caller is one
//! of the threads, and whoever waits looks at a number in memory for a while before it sleeps: waking a sleeper costs more than
//! many a stage. Each thread has a range of tasks of its own, the same part of the work stage after stage, so that what it wrote
//! is still in its cache; when it is done, it takes the last tasks of others.

use super::real::Real;
use super::scratch::Line;
use crate::{Result, err};
use std::any::Any;
use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a thread without work looks for it before it sleeps.
const LOOKS: Duration = Duration::from_micros(200);

/// A fixed set of threads, the caller's among them. Clones are the same threads.
#[derive(Clone)]
pub struct Pool {
    helpers: Option<Arc<Helpers>>,
    n_threads: usize,
}

impl Pool {
    pub fn new(n_threads: usize) -> Result<Self> {
        let n_threads = n_threads.max(1);
        let helpers = match n_threads {
            1 => None,
            n => Some(Arc::new(Helpers::start(n - 1)?)),
        };
        Ok(Pool { helpers, n_threads })
    }

    /// No thread but the caller's.
    pub fn serial() -> Self {
        Pool { helpers: None, n_threads: 1 }
    }

    pub fn n_threads(&self) -> usize {
        self.n_threads
    }

    /// Runs `task(0) .. task(n - 1)`, in any order, and returns when all are done.
    ///
    /// How the work is cut never depends on the number of threads, so neither does any result. A task must not run
    /// others: those would all run on its own thread.
    pub fn run(&self, n: usize, task: impl Fn(usize) + Sync) {
        self.run_on_threads(n, |_, k| task(k));
    }

    /// As [`Pool::run`], for tasks that need memory of their own while they run: the first argument is the number of the
    /// thread, below [`Pool::n_threads`]. No two tasks run on the same one at the same time.
    pub fn run_on_threads(&self, n: usize, task: impl Fn(usize, usize) + Sync) {
        match &self.helpers {
            Some(helpers) if n > 1 => helpers.run(n, &task),
            _ => (0..n).for_each(|k| task(0, k)),
        }
    }
}

/// The threads beside the caller's.
struct Helpers {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    /// Held while tasks run: the threads serve one caller at a time.
    busy: Mutex<()>,
}

struct Shared {
    /// Counts the calls of `run`; a change tells the threads that there is work.
    call: AtomicUsize,
    /// The tasks left to each thread, the caller's first.
    ranges: Vec<TaskRange>,
    /// Threads that have not finished with the current call.
    working: AtomicUsize,
    /// Threads that sleep, or are about to.
    sleepers: AtomicUsize,
    stop: AtomicBool,
    state: Mutex<State>,
    /// Woken when there is work.
    work: Condvar,
}

#[derive(Default)]
struct State {
    job: Option<Job>,
    /// What a task panicked with.
    panic: Option<Box<dyn Any + Send>>,
}

/// Tasks `start..end` as one number, so that owner and others take from its ends without a lock; on a cache line of its own.
#[derive(Default)]
#[repr(align(128))]
struct TaskRange(AtomicU64);

impl TaskRange {
    /// Before a call is announced, when nobody takes tasks.
    fn set(&self, start: usize, end: usize) {
        self.0.store((start as u64) << 32 | end as u64, Ordering::Relaxed);
    }

    /// Takes one task: `pick` gives it with what is left.
    fn take(&self, pick: impl Fn(u64, u64) -> (u64, u64, u64)) -> Option<usize> {
        let mut seen = self.0.load(Ordering::Relaxed);
        loop {
            let (start, end) = (seen >> 32, seen & u64::from(u32::MAX));
            if start >= end {
                return None;
            }
            let (task, start, end) = pick(start, end);
            match self.0.compare_exchange_weak(seen, start << 32 | end, Ordering::Relaxed, Ordering::Relaxed)
            {
                Ok(_) => return Some(task as usize),
                Err(now) => seen = now,
            }
        }
    }

    fn first(&self) -> Option<usize> {
        self.take(|start, end| (start, start + 1, end))
    }

    fn last(&self) -> Option<usize> {
        self.take(|start, end| (end - 1, start, end - 1))
    }
}

/// The tasks of one call; the caller stays until nobody uses it any more.
#[derive(Clone, Copy)]
struct Job {
    task: *const (dyn Fn(usize, usize) + Sync),
}

// SAFETY: the task is Sync, and `Helpers::run` keeps it alive while a thread may call it.
unsafe impl Send for Job {}

impl Helpers {
    fn start(n: usize) -> Result<Self> {
        let shared = Arc::new(Shared {
            call: AtomicUsize::new(0),
            ranges: (0..=n).map(|_| TaskRange::default()).collect(),
            working: AtomicUsize::new(0),
            sleepers: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            state: Mutex::default(),
            work: Condvar::new(),
        });
        let mut helpers = Helpers { shared, threads: Vec::new(), busy: Mutex::new(()) };
        for k in 0..n {
            let shared = helpers.shared.clone();
            let thread = std::thread::Builder::new()
                .name(format!("compute-{}", k + 1))
                .spawn(move || shared.serve(k + 1))
                .map_err(|e| err!("cannot start {} compute threads: {e}", n + 1))?;
            helpers.threads.push(thread);
        }
        Ok(helpers)
    }

    fn run(&self, n: usize, task: &(dyn Fn(usize, usize) + Sync)) {
        let Ok(busy) = self.busy.try_lock() else {
            // A task of ours, or another caller: the threads are taken.
            return (0..n).for_each(|k| task(0, k));
        };
        let shared = &*self.shared;
        assert!(n <= u32::MAX as usize, "tasks can be counted");
        // SAFETY: only the lifetime is forgotten; below nobody leaves before all threads are done with it.
        let task: &'static (dyn Fn(usize, usize) + Sync) = unsafe { std::mem::transmute(task) };
        let job = Job { task };
        shared.lock().job = Some(job);
        let n_threads = shared.ranges.len();
        for (k, range) in shared.ranges.iter().enumerate() {
            range.set(n * k / n_threads, n * (k + 1) / n_threads);
        }
        shared.working.store(self.threads.len(), Ordering::Relaxed);
        // Whoever sees the new count sees all of the above. Sequential, as is the counting of sleepers: either a thread
        // that is about to sleep sees this count, or we see that it sleeps.
        shared.call.fetch_add(1, Ordering::SeqCst);
        if shared.sleepers.load(Ordering::SeqCst) > 0 {
            let _state = shared.lock();
            shared.work.notify_all();
        }
        let own = catch_unwind(AssertUnwindSafe(|| shared.take_tasks(0, job)));
        let mut looks = 0u32;
        while shared.working.load(Ordering::Acquire) > 0 {
            looks += 1;
            // Where threads outnumber cores the one that we wait for may need ours.
            if looks > 2000 { std::thread::yield_now() } else { std::hint::spin_loop() }
        }
        let theirs = {
            let mut state = shared.lock();
            state.job = None;
            state.panic.take()
        };
        drop(busy);
        if let Some(panic) = own.err().or(theirs) {
            resume_unwind(panic);
        }
    }
}

impl Drop for Helpers {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.call.fetch_add(1, Ordering::SeqCst);
        drop(self.shared.lock()); // a thread that is about to sleep has looked at the count, or will
        self.shared.work.notify_all();
        for thread in self.threads.drain(..) {
            // It catches the panics of tasks; there is nothing left to say here.
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// What a thread does until the pool is dropped.
    fn serve(&self, thread: usize) {
        let mut seen = 0;
        loop {
            seen = self.await_call(seen);
            if self.stop.load(Ordering::SeqCst) {
                return;
            }
            let job = self.lock().job;
            if let Some(job) = job {
                let outcome = catch_unwind(AssertUnwindSafe(|| self.take_tasks(thread, job)));
                if let Err(panic) = outcome {
                    self.lock().panic.get_or_insert(panic);
                }
                self.working.fetch_sub(1, Ordering::Release);
            }
        }
    }

    /// Waits until the count of calls is another than `seen`; returns it.
    fn await_call(&self, seen: usize) -> usize {
        let began = Instant::now();
        loop {
            for _ in 0..100 {
                let call = self.call.load(Ordering::Acquire);
                if call != seen {
                    return call;
                }
                std::hint::spin_loop();
            }
            if began.elapsed() > LOOKS {
                break;
            }
        }
        let mut state = self.lock();
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        while self.call.load(Ordering::SeqCst) == seen {
            state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
        self.call.load(Ordering::SeqCst)
    }

    fn take_tasks(&self, thread: usize, job: Job) {
        // SAFETY: `Helpers::run` waits for us before the task goes out of scope.
        let task = unsafe { &*job.task };
        while let Some(k) = self.ranges[thread].first() {
            task(thread, k);
        }
        let n = self.ranges.len();
        for other in (1..n).map(|k| &self.ranges[(thread + k) % n]) {
            while let Some(k) = other.last() {
                task(thread, k);
            }
        }
    }

    /// Nothing is left half-done under this lock, so a panic elsewhere does not spoil it.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
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

/// A buffer of its own whose disjoint parts are written by the tasks of one stage and read by later ones.
#[derive(Default)]
pub struct Field<T> {
    /// Whole lines of the cache, so that rows of whole lines lie in lines of their own.
    lines: Vec<UnsafeCell<Line>>,
    len: usize,
    holds: PhantomData<T>,
}

// SAFETY: access from tasks goes through `part` and `read`, whose callers promise that nobody writes what others use.
unsafe impl<T: Send + Sync> Sync for Field<T> {}

impl<T: Real> Field<T> {
    /// Makes room; what is new is 0.
    pub fn resize(&mut self, len: usize) {
        // All bits 0 are the number 0.
        let lines = (len * size_of::<T>()).div_ceil(size_of::<Line>());
        self.lines.resize_with(lines, UnsafeCell::default);
        self.len = len;
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// All of it, between stages.
    pub fn all(&mut self) -> &mut [T] {
        // SAFETY: ours alone; the lines hold that many numbers.
        unsafe { std::slice::from_raw_parts_mut(self.at(0), self.len) }
    }

    /// `len` elements from `start` on, to be written.
    ///
    /// # Safety
    /// Nobody else may use any of them meanwhile.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn part(&self, start: usize, len: usize) -> &mut [T] {
        assert!(start + len <= self.len, "the part lies within the buffer");
        // SAFETY: within the buffer; the cells allow writing; nobody else uses it by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.at(start), len) }
    }

    /// `len` elements from `start` on.
    ///
    /// # Safety
    /// Nobody may write any of them meanwhile.
    pub unsafe fn read(&self, start: usize, len: usize) -> &[T] {
        assert!(start + len <= self.len, "the part lies within the buffer");
        // SAFETY: within the buffer; nobody writes it by the caller's promise.
        unsafe { std::slice::from_raw_parts(self.at(start), len) }
    }

    /// The address of element `start`, for kernels that write a block of a matrix.
    pub fn at(&self, start: usize) -> *mut T {
        assert!(start <= self.len, "the block starts within the buffer");
        UnsafeCell::raw_get(self.lines.as_ptr()).cast::<T>().wrapping_add(start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_runs_once_call_after_call() {
        for n_threads in [1, 2, 5] {
            let pool = Pool::new(n_threads).unwrap();
            for call in 0..2000 {
                let n = call % 37;
                let done: Vec<AtomicU64> = (0..n).map(|_| AtomicU64::new(0)).collect();
                pool.run(n, |k| {
                    done[k].fetch_add(1, Ordering::Relaxed);
                });
                assert!(
                    done.iter().all(|d| d.load(Ordering::Relaxed) == 1),
                    "{n_threads} threads, {n} tasks"
                );
                if call % 500 == 0 {
                    std::thread::sleep(3 * LOOKS); // the next call meets sleepers
                }
            }
        }
    }

    #[test]
    fn a_panic_of_a_task_reaches_the_caller_and_the_threads_live_on() {
        let pool = Pool::new(3).unwrap();
        for k in [0, 5, 19] {
            let outcome =
                catch_unwind(AssertUnwindSafe(|| pool.run(20, |task| assert!(task != k, "task {k}"))));
            assert!(outcome.is_err(), "the panic of task {k} is passed on");
        }
        let sum = AtomicU64::new(0);
        pool.run(10, |k| {
            sum.fetch_add(k as u64, Ordering::Relaxed);
        });
        assert_eq!(sum.into_inner(), 45);
    }

    #[test]
    fn tasks_within_tasks_run_on_their_own_thread() {
        let pool = Pool::new(2).unwrap();
        let sum = AtomicU64::new(0);
        pool.run(4, |_| {
            pool.run(4, |_| {
                sum.fetch_add(1, Ordering::Relaxed);
            })
        });
        assert_eq!(sum.into_inner(), 16);
    }
}
