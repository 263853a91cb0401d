//! The memory through which the ranks of one host meet: the barrier, signs of life, and buffers for blocks of messages.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use super::mapping::{Mapping, PAGE};
use crate::err;
use crate::error::Result;

/// Bytes of one rank's buffer. Sums of 8 MB on two ranks took 0.85 ms with 256 KiB, 0.57 with 512 and 0.53 with this.
pub const BLOCK: usize = 1 << 20;
/// Longest reason that [`super::super::Communicator::abort`] can pass on, in bytes.
pub const WHY: usize = 768;
const MAGIC: u64 = 0x5048_414c_414e_5831;
const HEADER: usize = 4096;
const SLOT: usize = 1024;

/// What all ranks write to: the barrier.
#[repr(C)]
pub struct Header {
    magic: AtomicU64,
    size: AtomicU64,
    key: AtomicU64,
    _pad0: [u64; 13],
    /// Ranks that have come to the present barrier.
    pub count: AtomicU32,
    _pad1: [u32; 31],
    /// Number of barriers done; the word that sleepers wait on.
    pub generation: AtomicU32,
    /// Ranks that sleep on `generation`.
    pub sleepers: AtomicU32,
}

/// What one rank tells the others.
#[repr(C, align(128))]
pub struct Slot {
    /// Collectives entered.
    pub entered: AtomicU64,
    /// Signs of life given.
    pub beat: AtomicU64,
    /// Length of what it broadcasts or gathers, by parity of the block.
    pub length: [AtomicU64; 2],
    /// 0 alive, 1 finished, 2 aborted, 3 left without a word, 4 gave up because of another rank.
    pub end: AtomicU32,
    /// Bytes of `why` in use; written before `end`.
    pub why_len: AtomicU32,
    /// Why it aborted.
    pub why: [AtomicU32; WHY / 4],
}

/// What the ranks of one job share from the start: the barrier, what each tells, and buffers for blocks.
pub struct Region {
    mapping: Mapping,
    size: usize,
}

impl Region {
    /// Makes the memory for `size` ranks; `key` tells it from any other.
    pub fn create(size: usize, key: u64) -> Result<Region> {
        let region = Region { mapping: Mapping::create(Self::bytes(size))?, size };
        region.header().size.store(size as u64, Ordering::Relaxed);
        region.header().key.store(key, Ordering::Relaxed);
        region.header().magic.store(MAGIC, Ordering::Release);
        Ok(region)
    }

    /// Where other processes find the memory.
    pub fn path(&self) -> String {
        self.mapping.path()
    }

    /// Opens what another rank has made.
    pub fn open(path: &str, size: usize, key: u64) -> Result<Region> {
        const { assert!(size_of::<Header>() <= HEADER && size_of::<Slot>() <= SLOT) };
        let region = Region { mapping: Mapping::open(path, Self::bytes(size))?, size };
        let header = region.header();
        let ours = header.magic.load(Ordering::Acquire) == MAGIC && header.key.load(Ordering::Relaxed) == key;
        if !ours || header.size.load(Ordering::Relaxed) != size as u64 {
            return Err(err!("{path} is not the shared memory of this job"));
        }
        Ok(region)
    }

    fn bytes(size: usize) -> usize {
        (HEADER + size * SLOT).next_multiple_of(PAGE) + 2 * size * BLOCK
    }

    /// The barrier.
    pub fn header(&self) -> &Header {
        // SAFETY: the mapping starts with a header, is page aligned, and atomics accept any bytes.
        unsafe { &*self.mapping.base().cast::<Header>() }
    }

    /// What `rank` tells.
    pub fn slot(&self, rank: usize) -> &Slot {
        assert!(rank < self.size, "a rank has one slot");
        // SAFETY: slots follow the header, one for each rank, aligned because HEADER and SLOT are multiples of 128.
        unsafe { &*self.mapping.base().add(HEADER + rank * SLOT).cast::<Slot>() }
    }

    /// The buffer of `rank` for blocks of this parity, [`BLOCK`] bytes, page aligned.
    /// Who may touch which part of it at which time is the business of the collectives.
    pub fn buffer(&self, parity: usize, rank: usize) -> *mut u8 {
        assert!(parity < 2 && rank < self.size, "a rank has two buffers");
        let start = (HEADER + self.size * SLOT).next_multiple_of(PAGE);
        // SAFETY: within the mapping, see `bytes`.
        unsafe { self.mapping.base().add(start + (parity * self.size + rank) * BLOCK) }
    }
}

/// Sleeps while `word` is `value`, for `limit` at most. Wakes early for no reason now and then.
pub fn futex_wait(word: &AtomicU32, value: u32, limit: Duration) {
    let limit = libc::timespec {
        tv_sec: limit.as_secs() as libc::time_t,
        tv_nsec: limit.subsec_nanos() as libc::c_long,
    };
    // SAFETY: the word outlives the call; the operation is not private, because the word is shared by processes.
    unsafe {
        let null = std::ptr::null_mut::<c_void>();
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAIT,
            value,
            &raw const limit,
            null,
            0 as c_int,
        );
    }
}

/// Wakes all that sleep on `word`.
pub fn futex_wake_all(word: &AtomicU32) {
    // SAFETY: as above.
    unsafe {
        let null = std::ptr::null_mut::<c_void>();
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, c_int::MAX, null, null, 0 as c_int);
    }
}
