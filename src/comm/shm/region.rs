//! A piece of memory that the ranks of one host share.
//!
//! It is an anonymous file (`memfd`): no name in any folder, so nothing is left behind when a job is killed, and no
//! job can find another's. The others open it through `/proc/<pid>/fd/<fd>` of the rank that made it.

use std::ffi::{c_int, c_void};
use std::fs::{File, OpenOptions};
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use crate::err;
use crate::error::Result;

/// Bytes of one rank's buffer. Small enough that the buffers of a few ranks stay in the second-level cache.
pub const BLOCK: usize = 256 << 10;
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

/// The mapping of this process.
pub struct Region {
    base: *mut u8,
    bytes: usize,
    size: usize,
    /// Kept open by the rank that made it, until the others have opened it.
    file: File,
}

// SAFETY: everything that several ranks write at the same time is atomic; buffers change hands at barriers.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// Makes the memory for `size` ranks; `key` tells it from any other.
    pub fn create(size: usize, key: u64) -> Result<Region> {
        let name = c"phalanx-ranks";
        // SAFETY: the name is a C string; the flag is a constant of the kernel.
        let fd = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) };
        if fd < 0 {
            return Err(err!("cannot make shared memory: {}", std::io::Error::last_os_error()));
        }
        // SAFETY: the descriptor is new and ours.
        let file = unsafe { File::from_raw_fd(fd) };
        let bytes = Self::bytes(size);
        file.set_len(bytes as u64).map_err(|e| err!("cannot make {bytes} bytes of shared memory: {e}"))?;
        let region = Self::map(file, size)?;
        region.header().size.store(size as u64, Ordering::Relaxed);
        region.header().key.store(key, Ordering::Relaxed);
        region.header().magic.store(MAGIC, Ordering::Release);
        Ok(region)
    }

    /// Where other processes find the memory.
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd())
    }

    /// Opens what another rank has made.
    pub fn open(path: &str, size: usize, key: u64) -> Result<Region> {
        let file = OpenOptions::new().read(true).write(true).open(path);
        let file = file.map_err(|e| err!("cannot open the shared memory {path}: {e}"))?;
        let bytes = file.metadata().map_err(|e| err!("{path}: {e}"))?.len();
        if bytes != Self::bytes(size) as u64 {
            return Err(err!("{path} has {bytes} bytes, not those of {size} ranks"));
        }
        let region = Self::map(file, size)?;
        let header = region.header();
        let ours = header.magic.load(Ordering::Acquire) == MAGIC && header.key.load(Ordering::Relaxed) == key;
        if !ours || header.size.load(Ordering::Relaxed) != size as u64 {
            return Err(err!("{path} is not the shared memory of this job"));
        }
        Ok(region)
    }

    fn bytes(size: usize) -> usize {
        (HEADER + size * SLOT).next_multiple_of(4096) + 2 * size * BLOCK
    }

    fn map(file: File, size: usize) -> Result<Region> {
        const { assert!(size_of::<Header>() <= HEADER && size_of::<Slot>() <= SLOT) };
        let bytes = Self::bytes(size);
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping of a file that is ours and has this length; the kernel chooses the address.
        let base =
            unsafe { libc::mmap(std::ptr::null_mut(), bytes, rights, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        if base == libc::MAP_FAILED {
            return Err(err!(
                "cannot map {bytes} bytes of shared memory: {}",
                std::io::Error::last_os_error()
            ));
        }
        Ok(Region { base: base.cast(), bytes, size, file })
    }

    /// The barrier.
    pub fn header(&self) -> &Header {
        // SAFETY: the mapping starts with a header, is page aligned, and atomics accept any bytes.
        unsafe { &*self.base.cast::<Header>() }
    }

    /// What `rank` tells.
    pub fn slot(&self, rank: usize) -> &Slot {
        assert!(rank < self.size, "a rank has one slot");
        // SAFETY: slots follow the header, one for each rank, aligned because HEADER and SLOT are multiples of 128.
        unsafe { &*self.base.add(HEADER + rank * SLOT).cast::<Slot>() }
    }

    /// The buffer of `rank` for blocks of this parity, [`BLOCK`] bytes, page aligned.
    /// Who may touch which part of it at which time is the business of the collectives.
    pub fn buffer(&self, parity: usize, rank: usize) -> *mut u8 {
        assert!(parity < 2 && rank < self.size, "a rank has two buffers");
        let start = (HEADER + self.size * SLOT).next_multiple_of(4096);
        // SAFETY: within the mapping, see `bytes`.
        unsafe { self.base.add(start + (parity * self.size + rank) * BLOCK) }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: this mapping was made by `map` and nothing borrows from it any more.
        unsafe { libc::munmap(self.base.cast(), self.bytes) };
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
