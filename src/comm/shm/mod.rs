//! The built-in engine for ranks of one host: shared memory, no library.
//!
//! Sums: each rank owns one share of every block. A rank copies the shares of the others into its own buffer; after a
//! barrier it adds up its own share over all buffers, in the order of ranks, and leaves the result in its buffer; after
//! another barrier all take the results. So element i is ((x0 + x1) + x2) + ... wherever a block begins, which makes
//! the sum the same on all ranks, in all runs, and for all lengths.
//!
//! Buffers alternate between two parities. A buffer is written again two blocks later; by then every rank has passed
//! the barriers of the block between, so all have read it.
//!
//! Updates (see `vectors`) need no buffers: gradients and parameters themselves lie in shared memory, and each of the two
//! collectives of an update is a barrier.

mod mapping;
mod region;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::element::{Element, all_reduce_methods, group_of, share};
use super::pairwise::Link;
use super::process::Watched;
use super::pulse::{End, Patience, Vital, name_ranks};
use super::store::texts;
use super::vectors::{CommonVector, RankVector, slice_of};
use super::{CommOptions, Communicator, net, process};
use crate::err;
use crate::error::{Error, Result};
pub use mapping::Mapping;
use mapping::PAGE;
pub use region::Region;
use region::{BLOCK, WHY, futex_wait, futex_wake_all};

/// How long to look at the barrier before offering the core to others.
const LOOKS: Duration = Duration::from_micros(50);
/// How long to offer the core to whoever wants it, perhaps the rank that is waited for, before going to sleep. Ranks differ by some
/// milliseconds in a step, and waking all sleepers of a host takes as long as the sum itself.
const OFFERS: Duration = Duration::from_millis(20);
/// The same where ranks outnumber cores: whoever looks keeps the one that it waits for from running.
const CROWDED_OFFERS: Duration = Duration::from_micros(20);
/// Looks between two looks at the clock.
const LOOKS_AT_ONCE: usize = 64;

/// Ranks of one host, joined by shared memory.
pub struct Shm {
    region: Arc<Region>,
    rank: usize,
    size: usize,
    options: CommOptions,
    /// Collectives entered so far.
    entered: u64,
    /// Blocks passed so far; its parity chooses the buffers.
    blocks: u64,
    /// How long to look at the barrier, and to offer the core, before going to sleep.
    looks: Duration,
    offers: Duration,
    seen: Seen,
    heart: Heart,
    /// The first error. The barrier counts who comes: after it nobody may come again.
    failed: Option<Error>,
    /// What the ranks have met through, where it must be told the end of the job too.
    introducer: Option<Box<dyn Link>>,
    /// The ranks that sum up among themselves, in memory of their own: see [`Communicator::form_groups`].
    group: Option<Box<Shm>>,
    /// The processes of all ranks.
    pids: Vec<u32>,
    /// Set when this rank is about to leave.
    over: Arc<AtomicBool>,
    /// The numbers of these ranks in the whole job, and how many there are in it.
    world: (Vec<usize>, usize),
    name: String,
}

/// What this rank last saw of the others.
struct Seen {
    /// Count of beats, and when it was first seen.
    beats: Vec<(u64, Instant)>,
    /// The processes of the other ranks; `None` for ranks that are threads of this one.
    processes: Vec<Option<Watched>>,
}

impl Shm {
    /// Takes the place of `rank`; `pids[r]` is the process of rank r.
    pub fn new(region: Arc<Region>, rank: usize, pids: &[u32], options: &CommOptions) -> Shm {
        let now = Instant::now();
        let watch = |&pid: &u32| (pid != std::process::id()).then(|| Watched::new(pid));
        let seen = Seen { beats: vec![(0, now); pids.len()], processes: pids.iter().map(watch).collect() };
        let heart = Heart::start(region.clone(), rank, options.beat());
        let crowded = pids.len() > process::cores();
        let (looks, offers) = if crowded { (Duration::ZERO, CROWDED_OFFERS) } else { (LOOKS, OFFERS) };
        Shm {
            region,
            rank,
            size: pids.len(),
            options: options.clone(),
            entered: 0,
            blocks: 0,
            looks,
            offers,
            seen,
            heart,
            failed: None,
            introducer: None,
            group: None,
            pids: pids.to_vec(),
            over: Arc::new(AtomicBool::new(false)),
            world: ((0..pids.len()).collect(), pids.len()),
            name: "shared memory".to_string(),
        }
    }

    /// Ends together with what the ranks have met through. Its launcher ends all ranks as soon as one has died, often before they
    /// come to ask how the others are: a thread tells at once.
    pub fn introduced_by(mut self, link: impl Link + 'static) -> Shm {
        self.name = format!("{}, shared memory", link.name());
        let witness = Witness {
            region: self.region.clone(),
            rank: self.rank,
            others: self.pids.iter().map(|&pid| Watched::new(pid)).collect(),
            tell: self.options.last_words,
            over: self.over.clone(),
        };
        // Where there is no thread for it the ranks learn of a death a little later.
        let _ = std::thread::Builder::new().name("ranks-witness".into()).spawn(move || witness.watch());
        self.introducer = Some(Box::new(link));
        self
    }

    /// The processes of all ranks.
    pub fn pids(&self) -> &[u32] {
        &self.pids
    }

    /// These are some of `size` ranks: they are known to the user by these numbers.
    pub fn among(mut self, numbers: Vec<usize>, size: usize) -> Shm {
        self.world = (numbers, size);
        self
    }

    /// Joins some of the ranks, of which this one is one, in memory of their own. All ranks call it, each with its own group.
    pub fn form_group(&mut self, ranks: &[usize]) -> Result<()> {
        let place = ranks.iter().position(|&rank| rank == self.rank).expect("a rank is one of its group");
        let of_group = |everyones: Vec<Vec<u8>>| ranks.iter().map(|&rank| everyones[rank].clone()).collect();
        let options = self.options.clone();
        let joined = join(place, ranks.len(), &options, &mut |_, mine| self.all_gather(mine).map(of_group))?;
        let verdict = joined.as_ref().err().cloned().unwrap_or_default();
        let verdicts = texts(self.all_gather(verdict.as_bytes())?);
        if let Some(rank) = verdicts.iter().position(|verdict| !verdict.is_empty()) {
            return Err(err!("rank {rank} has no memory in common with its group: {}", verdicts[rank]));
        }
        let mut group = joined.map_err(Error::new)?;
        // It is all ranks of this host that share its cores.
        (group.looks, group.offers) = (self.looks, self.offers);
        let numbers = ranks.iter().map(|&rank| self.world.0[rank]).collect();
        self.group = Some(Box::new(group.among(numbers, self.world.1)));
        Ok(())
    }

    /// Tells the others that this rank ends because of another one.
    pub fn follow(&self, verdict: &str) {
        self.end(4, verdict);
    }

    /// Begins a collective. Not after a failure: a rank that was late may yet come to the barrier that this one has given up,
    /// and read the buffers as they were then.
    fn enter(&mut self) -> Result<()> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        self.entered += 1;
        self.region.slot(self.rank).entered.store(self.entered, Ordering::Release);
        Ok(())
    }

    /// The parity of the next block.
    fn next_parity(&mut self) -> usize {
        self.blocks += 1;
        (self.blocks % 2) as usize
    }

    /// Returns when every rank has come here.
    fn meet(&mut self, what: &'static str) -> Result<()> {
        let region = self.region.clone();
        let header = region.header();
        let generation = header.generation.load(Ordering::Acquire);
        if header.count.fetch_add(1, Ordering::AcqRel) as usize == self.size - 1 {
            header.count.store(0, Ordering::Relaxed);
            header.generation.store(generation.wrapping_add(1), Ordering::SeqCst);
            if header.sleepers.load(Ordering::SeqCst) > 0 {
                futex_wake_all(&header.generation);
            }
            return Ok(());
        }
        let done = || header.generation.load(Ordering::Acquire) != generation;
        if self.look_for_a_while(done) {
            return Ok(());
        }
        let mut patience = Patience::new(&self.options, what, self.entered);
        // Every look asks the system about every rank, so many ranks look less often.
        let nap =
            (self.options.beat() / 2).min(Duration::from_millis(if self.size <= 16 { 40 } else { 200 }));
        while !done() {
            header.sleepers.fetch_add(1, Ordering::SeqCst);
            futex_wait(&header.generation, generation, nap);
            header.sleepers.fetch_sub(1, Ordering::SeqCst);
            if !done() {
                let vitals = in_the_world(&self.world, self.seen.look(&region));
                if !done()
                    && let Err(verdict) = patience.check(&vitals, self.world.0[self.rank])
                {
                    self.follow(verdict.message());
                    self.failed = Some(verdict.clone());
                    return Err(verdict);
                }
            }
        }
        Ok(())
    }

    /// Looks whether it is done without going to sleep.
    fn look_for_a_while(&self, done: impl Fn() -> bool) -> bool {
        let began = Instant::now();
        loop {
            let waited = began.elapsed();
            if waited < self.looks {
                for _ in 0..LOOKS_AT_ONCE {
                    if done() {
                        return true;
                    }
                    std::hint::spin_loop();
                }
            } else if waited < self.looks + self.offers {
                std::thread::yield_now();
            } else {
                return done();
            }
            if done() {
                return true;
            }
        }
    }

    fn all_reduce<T: Element>(&mut self, x: &mut [T]) -> Result<()> {
        self.enter()?;
        for block in x.chunks_mut(BLOCK / size_of::<T>()) {
            let parity = self.next_parity();
            self.give_shares(block, parity);
            self.meet("all-reduce")?;
            self.sum_my_share(block, parity);
            self.meet("all-reduce")?;
            self.take_results(block, parity);
        }
        Ok(())
    }

    /// My numbers for the shares of the others go into my buffer.
    fn give_shares<T: Element>(&self, x: &[T], parity: usize) {
        let mine = self.region.buffer(parity, self.rank).cast::<T>();
        for other in (0..self.size).filter(|&r| r != self.rank) {
            let s = share(x.len(), self.size, other);
            // SAFETY: only I write my buffer before the barrier; it holds BLOCK bytes, and x has no more.
            unsafe { copy(mine.add(s.start), x[s.clone()].as_ptr(), s.len()) };
        }
    }

    /// My share, summed over ranks in their order, goes into `x` and into my buffer.
    fn sum_my_share<T: Element>(&self, x: &mut [T], parity: usize) {
        const STRIP: usize = 256;
        let s = share(x.len(), self.size, self.rank);
        let mut sum = [T::ZERO; STRIP];
        for start in s.clone().step_by(STRIP) {
            let n = STRIP.min(s.end - start);
            for rank in 0..self.size {
                // SAFETY: between the barriers my share of every buffer is read by me alone and written by nobody.
                let theirs = unsafe {
                    std::slice::from_raw_parts(self.region.buffer(parity, rank).cast::<T>().add(start), n)
                };
                let term = if rank == self.rank { &x[start..start + n] } else { theirs };
                match rank {
                    0 => sum[..n].copy_from_slice(term),
                    _ => sum[..n].iter_mut().zip(term).for_each(|(s, &t)| *s = s.plus(t)),
                }
            }
            x[start..start + n].copy_from_slice(&sum[..n]);
            // SAFETY: my share of my own buffer is written by me alone; the others read it after the next barrier.
            unsafe {
                let mine = self.region.buffer(parity, self.rank).cast::<T>().add(start);
                mine.copy_from_nonoverlapping(sum.as_ptr(), n);
            }
        }
    }

    fn take_results<T: Element>(&self, x: &mut [T], parity: usize) {
        for other in (0..self.size).filter(|&r| r != self.rank) {
            let s = share(x.len(), self.size, other);
            let theirs = self.region.buffer(parity, other).cast::<T>();
            // SAFETY: that share holds the result since the barrier, and is not written until two blocks later.
            unsafe { copy(x[s.clone()].as_mut_ptr(), theirs.add(s.start), s.len()) };
        }
    }

    /// Copies `bytes` into my buffer.
    fn put(&self, bytes: &[u8], parity: usize) {
        assert!(bytes.len() <= BLOCK, "a block fits into its buffer");
        // SAFETY: only I write my buffer before the barrier.
        unsafe {
            self.region.buffer(parity, self.rank).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len())
        };
    }

    /// Appends `n` bytes of the buffer of `rank`.
    fn take(&self, bytes: &mut Vec<u8>, n: usize, rank: usize, parity: usize) {
        assert!(n <= BLOCK, "a block fits into its buffer");
        // SAFETY: after the barrier nobody writes that buffer until two blocks later.
        bytes.extend_from_slice(unsafe { std::slice::from_raw_parts(self.region.buffer(parity, rank), n) });
    }

    /// The ranks of `sources` give `bytes` to all others, block by block.
    fn spread(&mut self, bytes: &[u8], sources: &[usize], what: &'static str) -> Result<Vec<Vec<u8>>> {
        self.enter()?;
        let mut all = vec![Vec::new(); self.size];
        let mut start = 0;
        loop {
            let parity = self.next_parity();
            let end = bytes.len().min(start + BLOCK);
            if sources.contains(&self.rank) {
                self.region.slot(self.rank).length[parity].store(bytes.len() as u64, Ordering::Relaxed);
                self.put(&bytes[start.min(end)..end], parity);
            }
            self.meet(what)?;
            start += BLOCK;
            let mut longest = 0;
            for &rank in sources {
                let length = self.region.slot(rank).length[parity].load(Ordering::Relaxed) as usize;
                let already = all[rank].len();
                self.take(&mut all[rank], (length - already).min(BLOCK), rank, parity);
                longest = longest.max(length);
            }
            if longest <= start {
                return Ok(all);
            }
        }
    }

    /// New memory for all ranks.
    fn share_memory(&mut self, bytes: usize) -> Result<Arc<Mapping>> {
        let made = (self.rank == 0).then(|| Mapping::create(bytes)).transpose();
        let mut offer = match &made {
            Ok(memory) => memory.as_ref().map_or(String::new(), Mapping::path),
            Err(e) => format!("!{}", e.message()),
        }
        .into_bytes();
        self.broadcast(0, &mut offer)?;
        let offer = String::from_utf8_lossy(&offer).into_owned();
        let memory = match (made, offer.strip_prefix('!')) {
            (Ok(Some(memory)), _) => Ok(memory),
            (Err(e), _) => Err(e),
            (_, Some(why)) => Err(err!("{why}")),
            _ => Mapping::open(&offer, bytes),
        };
        let verdict = memory.as_ref().err().map_or(String::new(), |e| e.message().to_string());
        let verdicts = self.all_gather(verdict.as_bytes())?;
        match verdicts.iter().position(|v| !v.is_empty()) {
            Some(rank) => Err(err!("rank {rank}: {}", String::from_utf8_lossy(&verdicts[rank]))),
            None => memory.map(Arc::new),
        }
    }

    fn end(&self, end: u32, why: &str) {
        if let Some(group) = &self.group {
            group.end(end, why); // who waits there does not look here
        }
        let slot = self.region.slot(self.rank);
        if slot.end.load(Ordering::Acquire) != 0 {
            return;
        }
        let why = &why.as_bytes()[..why.len().min(WHY)];
        for (word, bytes) in slot.why.iter().zip(why.chunks(4)) {
            let mut four = [b' '; 4];
            four[..bytes.len()].copy_from_slice(bytes);
            word.store(u32::from_le_bytes(four), Ordering::Relaxed);
        }
        slot.why_len.store(why.len() as u32, Ordering::Relaxed);
        slot.end.store(end, Ordering::Release);
        futex_wake_all(&self.region.header().generation);
    }
}

impl Seen {
    /// Looks at every rank.
    fn look(&mut self, region: &Region) -> Vec<Vital> {
        let now = Instant::now();
        let mut vitals = Vec::with_capacity(self.beats.len());
        for (rank, (seen, since)) in self.beats.iter_mut().enumerate() {
            let slot = region.slot(rank);
            // Ask whether the process lives before reading what it wrote last, or a farewell could be missed.
            let died = self.processes[rank].as_ref().is_some_and(Watched::has_ended);
            let beat = slot.beat.load(Ordering::Relaxed);
            if beat != *seen {
                (*seen, *since) = (beat, now);
            }
            let end = match slot.end.load(Ordering::Acquire) {
                0 if died => Some(End::Died),
                0 => None,
                1 => Some(End::Finished),
                2 => Some(End::Aborted(why(slot))),
                4 => Some(End::Followed(why(slot))),
                _ => Some(End::Died),
            };
            let entered = slot.entered.load(Ordering::Acquire);
            vitals.push(Vital { entered, silent: now.duration_since(*since), end });
        }
        vitals
    }
}

/// What is known of all ranks of a job; nothing is wrong with those that are not ours to look at.
fn in_the_world((numbers, size): &(Vec<usize>, usize), vitals: Vec<Vital>) -> Vec<Vital> {
    let mut all = vec![Vital { entered: u64::MAX, ..Vital::default() }; *size];
    numbers.iter().zip(vitals).for_each(|(&number, vital)| all[number] = vital);
    all
}

fn why(slot: &region::Slot) -> String {
    let bytes: Vec<u8> =
        slot.why.iter().flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes()).collect();
    let n = (slot.why_len.load(Ordering::Relaxed) as usize).min(WHY);
    String::from_utf8_lossy(&bytes[..n]).into_owned()
}

impl Communicator for Shm {
    fn name(&self) -> &str {
        &self.name
    }
    fn rank(&self) -> usize {
        self.rank
    }
    fn size(&self) -> usize {
        self.size
    }
    all_reduce_methods!(all_reduce);

    fn form_groups(&mut self, each: usize) -> Result<()> {
        let ranks: Vec<usize> = group_of(self.rank, self.size, each).collect();
        self.form_group(&ranks)
    }

    fn all_reduce_group_f64(&mut self, x: &mut [f64]) -> Result<()> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let Some(group) = &mut self.group else { return Ok(()) };
        group.all_reduce(x).inspect_err(|verdict| {
            self.follow(verdict.message());
            self.failed = Some(verdict.clone());
        })
    }

    fn slice(&self, n: usize) -> Range<usize> {
        slice_of(n, self.size, self.rank)
    }

    fn rank_vector(&mut self, n: usize) -> Result<RankVector> {
        let stride = n.next_multiple_of(PAGE / size_of::<f64>());
        let memory = self.share_memory((self.size * stride * size_of::<f64>()).max(PAGE))?;
        let mut mine = RankVector::shared(memory.clone(), n, stride, self.rank, self.size);
        mine.fill(0.0); // the pages come to be near the core that will write them
        self.barrier()?;
        let slice = self.slice(n);
        for rank in 0..self.size {
            look_at(
                &memory,
                (rank * stride + slice.start) * size_of::<f64>(),
                slice.len() * size_of::<f64>(),
            );
        }
        Ok(mine)
    }

    fn common_vector(&mut self, x: Vec<f64>) -> Result<CommonVector> {
        let memory = self.share_memory(size_of_val(&*x).max(PAGE))?;
        let mut common = CommonVector::shared(memory.clone(), x.len());
        let slice = self.slice(x.len());
        common[slice.clone()].copy_from_slice(&x[slice]);
        self.barrier()?;
        look_at(&memory, 0, memory.bytes());
        Ok(common)
    }

    fn reduce_scatter(&mut self, x: &mut RankVector) -> Result<()> {
        assert!(x.is_shared(), "a vector that this communicator made");
        x.set_summed(false);
        self.enter()?;
        self.meet("reduce-scatter")
    }

    fn all_gather_slices(&mut self, x: &mut CommonVector) -> Result<()> {
        assert!(x.is_shared(), "a vector that this communicator made");
        self.enter()?;
        self.meet("gather")
    }

    fn broadcast(&mut self, root: usize, bytes: &mut Vec<u8>) -> Result<()> {
        assert!(root < self.size, "a broadcast from a rank that does not exist");
        let mine = if self.rank == root { std::mem::take(bytes) } else { Vec::new() };
        let mut all = self.spread(&mine, &[root], "broadcast")?;
        *bytes = if self.rank == root { mine } else { std::mem::take(&mut all[root]) };
        Ok(())
    }

    fn all_gather(&mut self, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        let everyone: Vec<usize> = (0..self.size).collect();
        self.spread(bytes, &everyone, "gather")
    }

    fn barrier(&mut self) -> Result<()> {
        self.enter()?;
        self.meet("barrier")
    }

    fn abort(&self, why: &str) {
        self.end(2, why);
    }

    fn hurry(&mut self) {
        if let Some(introducer) = &mut self.introducer {
            introducer.hurry();
        }
    }

    fn finish(mut self: Box<Self>) -> Result<()> {
        self.barrier()?;
        self.end(1, "");
        self.introducer.as_mut().map_or(Ok(()), |introducer| introducer.finish())
    }
}

/// Copies `n` elements, 2 KB at a time. The C library copies longer runs by an instruction for that (`rep movsb`), which takes five
/// times as long on some processors.
///
/// # Safety
/// Both places hold `n` elements, and do not overlap.
unsafe fn copy<T: Element>(to: *mut T, from: *const T, n: usize) {
    let at_once = 2048 / size_of::<T>();
    for start in (0..n).step_by(at_once) {
        // SAFETY: the caller's promise.
        unsafe { to.add(start).copy_from_nonoverlapping(from.add(start), at_once.min(n - start)) };
    }
}

/// Reads from every page, so that no step has to wait for the system to find them.
fn look_at(memory: &Mapping, start: usize, bytes: usize) {
    for offset in (start..(start + bytes).min(memory.bytes())).step_by(PAGE) {
        // SAFETY: within the memory. What stands there does not matter.
        unsafe { memory.base().add(offset).read_volatile() };
    }
}

impl Drop for Shm {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        self.heart.stop();
        self.end(3, "");
    }
}

/// The thread that says who died, where nobody may live to say it later.
struct Witness {
    region: Arc<Region>,
    rank: usize,
    others: Vec<Watched>,
    tell: fn(&Error),
    over: Arc<AtomicBool>,
}

impl Witness {
    fn watch(&self) {
        while !self.over.load(Ordering::Relaxed) {
            process::await_an_end(&self.others, Duration::from_millis(200));
            let ended: Vec<usize> = (0..self.others.len()).filter(|&r| self.others[r].has_ended()).collect();
            // Who said farewell before may go.
            let died = |rank: &usize| self.region.slot(*rank).end.load(Ordering::Acquire) == 0;
            let died: Vec<usize> = ended.iter().copied().filter(died).collect();
            if died.is_empty() && ended.is_empty() {
                continue;
            }
            let first_alive = (0..self.others.len()).find(|rank| !ended.contains(rank));
            if !died.is_empty() && first_alive == Some(self.rank) {
                let verb = if died.len() == 1 { "has" } else { "have" };
                (self.tell)(&err!("{} {verb} died without a word", name_ranks(&died)).help(DIED));
            }
            return; // what comes after the first end follows from it
        }
    }
}

const DIED: &str = "the launcher's own message may say why; the system's log too, where memory ran out";

/// The thread that gives signs of life.
struct Heart {
    stopped: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Heart {
    fn start(region: Arc<Region>, rank: usize, beat: Duration) -> Heart {
        let stopped = Arc::new(AtomicBool::new(false));
        let stop = stopped.clone();
        let thread = std::thread::Builder::new().name("ranks-heart".into()).spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                region.slot(rank).beat.fetch_add(1, Ordering::Relaxed);
                std::thread::park_timeout(beat);
            }
        });
        Heart { stopped, thread: thread.ok() }
    }

    fn stop(&mut self) {
        self.stopped.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

/// Gives every rank the bytes of all ranks, by rank; the first argument is a name that is used once.
pub type Exchange<'a> = &'a mut dyn FnMut(&str, &[u8]) -> Result<Vec<Vec<u8>>>;

/// Joins ranks that can exchange bytes already, where all are on one host.
///
/// The outer result is about meeting at all; the inner one is about sharing memory, and the same on every rank.
pub fn join(
    rank: usize,
    size: usize,
    options: &CommOptions,
    exchange: Exchange,
) -> Result<Result<Shm, String>> {
    let mine = format!("{}\n{}", std::process::id(), process::host_identity());
    let cards = texts(exchange("hosts", mine.as_bytes())?);
    let split: Vec<(&str, &str)> = cards.iter().filter_map(|card| card.split_once('\n')).collect();
    if split.len() < size || split.iter().any(|(_, host)| *host != split[0].1) {
        return Ok(Err("the ranks are on several hosts, or in several containers".to_string()));
    }
    let pids: Vec<u32> = split.iter().map(|(pid, _)| pid.parse().unwrap_or(0)).collect();

    let key = net::random();
    let made = (rank == 0).then(|| Region::create(size, key)).transpose();
    let offer = match &made {
        Ok(Some(region)) => format!("{key}\n{}", region.path()),
        Ok(None) => String::new(),
        Err(e) => format!("!{}", e.message()),
    };
    let offers = texts(exchange("memory", offer.as_bytes())?);
    let opened = match (made, offers[0].split_once('\n')) {
        (Ok(Some(region)), _) => Ok(region),
        (_, Some((key, path))) => Region::open(path, size, key.parse().unwrap_or(0)),
        (_, None) => Err(err!("rank 0: {}", offers[0].trim_start_matches('!'))),
    };
    let verdict = opened.as_ref().err().map_or(String::new(), |e| e.message().to_string());
    let verdicts = texts(exchange("opened", verdict.as_bytes())?);
    if let Some(rank) = verdicts.iter().position(|v| !v.is_empty()) {
        return Ok(Err(format!("rank {rank}: {}", verdicts[rank])));
    }
    Ok(opened.map(|region| Shm::new(Arc::new(region), rank, &pids, options)).map_err(|e| e.to_string()))
}

/// `n` connected ranks in this process.
pub fn local_group(n: usize, options: &CommOptions) -> Vec<Box<dyn Communicator>> {
    assert!(n > 0, "a group has at least one rank");
    let region = Arc::new(Region::create(n, 0).expect("this host offers shared memory"));
    let pids = vec![std::process::id(); n];
    (0..n)
        .map(|rank| Box::new(Shm::new(region.clone(), rank, &pids, options)) as Box<dyn Communicator>)
        .collect()
}
