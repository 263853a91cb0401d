//! A piece of memory that the ranks of one host share.
//!
//! It is an anonymous file (`memfd`): no name in any folder, so nothing is left behind when a job is killed, and no
//! job can find another's. The others open it through `/proc/<pid>/fd/<fd>` of the rank that made it.

use std::fs::{File, OpenOptions};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::MetadataExt;

use crate::err;
use crate::error::Result;

/// Bytes of a page.
pub const PAGE: usize = 4096;

/// Shared memory, as this process sees it.
pub struct Mapping {
    base: *mut u8,
    bytes: usize,
    /// Kept open by the rank that made it, until the others have opened it.
    file: File,
}

// SAFETY: a mapping is only an address; who may touch which part of it at which time is the business of its users.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// New memory, all zero.
    pub fn create(bytes: usize) -> Result<Mapping> {
        let name = c"phalanx-ranks";
        // SAFETY: the name is a C string; the flag is a constant of the kernel. By number: old C libraries have no function for it.
        let fd = unsafe { libc::syscall(libc::SYS_memfd_create, name.as_ptr(), libc::MFD_CLOEXEC) } as i32;
        if fd < 0 {
            return Err(err!("cannot make shared memory: {}", std::io::Error::last_os_error()));
        }
        // SAFETY: the descriptor is new and ours.
        let file = unsafe { File::from_raw_fd(fd) };
        file.set_len(bytes as u64).map_err(|e| err!("cannot make {bytes} bytes of shared memory: {e}"))?;
        Self::map(file, bytes)
    }

    /// Opens what another rank has made.
    pub fn open(path: &str, bytes: usize) -> Result<Mapping> {
        let file = OpenOptions::new().read(true).write(true).open(path);
        let file = file.map_err(|e| err!("cannot open the shared memory {path}: {e}"))?;
        let about = file.metadata().map_err(|e| err!("{path}: {e}"))?;
        // SAFETY: a plain question to the system.
        if about.uid() != unsafe { libc::geteuid() } {
            return Err(err!("{path} belongs to another user: it is not the shared memory of this job"));
        }
        let found = about.len();
        if found != bytes as u64 {
            return Err(err!(
                "{path} has {found} bytes, not {bytes}: it is not the shared memory of this job"
            ));
        }
        Self::map(file, bytes)
    }

    fn map(file: File, bytes: usize) -> Result<Mapping> {
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping of a file that is ours and has this length; the kernel chooses the address.
        let base =
            unsafe { libc::mmap(std::ptr::null_mut(), bytes, rights, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        if base == libc::MAP_FAILED {
            let error = std::io::Error::last_os_error();
            return Err(err!("cannot map {bytes} bytes of shared memory: {error}"));
        }
        // SAFETY: the mapping just made. Advice may be refused, without harm: most systems do so for shared memory.
        unsafe { libc::madvise(base, bytes, libc::MADV_HUGEPAGE) };
        Ok(Mapping { base: base.cast(), bytes, file })
    }

    /// Where other processes find the memory.
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd())
    }

    /// Its address, which is that of a page.
    pub fn base(&self) -> *mut u8 {
        self.base
    }

    /// Its length.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this mapping was made by `map` and nothing borrows from it any more.
        unsafe { libc::munmap(self.base.cast(), self.bytes) };
    }
}
