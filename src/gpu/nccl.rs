//! Sums over GPUs through NCCL.

use super::device::Device;
use super::library;
use super::memory::Buffer;
use super::shared::Ptr;
use super::sys::{self, Handle, Nccl, UniqueId};
use crate::err;
use crate::error::Result;
use std::sync::Arc;

/// A communicator of some ranks.
pub struct NcclComm {
    nccl: Nccl,
    comm: Handle,
    device: Arc<Device>,
    /// Version, such as "2.28.3".
    pub version: String,
}

// SAFETY: a handle of the library, used by one thread at a time.
unsafe impl Send for NcclComm {}

impl NcclComm {
    /// Joins `size` ranks. `share` gives everyone rank 0's bytes; all ranks must call this together.
    pub fn connect(
        device: &Arc<Device>,
        rank: usize,
        size: usize,
        env: &dyn Fn(&str) -> Option<String>,
        share: impl FnOnce(Result<Vec<u8>>) -> Result<Vec<u8>>,
    ) -> Result<NcclComm> {
        let loaded = library::load(&library::NCCL, env).and_then(|library| {
            // SAFETY: it was found by NCCL's name.
            unsafe { Nccl::bind(library) }.map_err(|name| err!("NCCL has no {name}: it is too old"))
        });
        let id = match (&loaded, rank) {
            (Ok(nccl), 0) => new_id(nccl),
            (Ok(_), _) => Ok(Vec::new()),
            (Err(e), _) => Err(e.clone()),
        };
        let id = share(id)?;
        let nccl = loaded?;
        let id = UniqueId(id.try_into().map_err(|_| err!("rank 0 sent no NCCL identity"))?);
        device.bind()?;
        let (mut comm, mut version) = (std::ptr::null_mut(), 0);
        // SAFETY: out-pointers are valid; all ranks call with the same identity.
        unsafe {
            (nccl.get_version)(&mut version);
            check(
                (nccl.comm_init_rank)(&mut comm, size as i32, id, rank as i32),
                "join the GPUs of all ranks",
            )?;
        }
        let version = format!("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
        Ok(NcclComm { nccl, comm, device: device.clone(), version })
    }

    /// Sums up the first `n` numbers over ranks, in place, in the order of the stream.
    pub fn sum(&self, x: &Buffer<f64>, n: usize) -> Result<()> {
        assert!(8 * n <= x.bytes(), "a sum of {n} numbers must stay inside its buffer");
        // SAFETY: `x` holds n doubles.
        unsafe { self.sum_at(x.ptr(), n) }
    }

    /// As [`NcclComm::sum`], for numbers within some memory.
    ///
    /// # Safety
    ///
    /// There are `n` of them at `x`.
    pub unsafe fn sum_at(&self, x: Ptr<f64>, n: usize) -> Result<()> {
        let x = x.address();
        // SAFETY: the caller's word.
        let code = unsafe {
            (self.nccl.all_reduce)(
                x as *const _,
                x as *mut _,
                n,
                sys::NCCL_FLOAT64,
                sys::NCCL_SUM,
                self.comm,
                self.device.stream().handle(),
            )
        };
        check(code, "add up numbers over GPUs")
    }

    /// An error that came up while a sum was under way.
    pub fn trouble(&self) -> Result<()> {
        let mut code = 0;
        // SAFETY: the communicator lives.
        unsafe { (self.nccl.comm_get_async_error)(self.comm, &mut code) };
        if code == sys::NCCL_IN_PROGRESS { Ok(()) } else { check(code, "add up numbers over GPUs") }
    }

    /// Ends sums that will never be complete, because a rank is gone.
    pub fn abort(&mut self) {
        // SAFETY: the communicator is not used afterwards.
        unsafe { (self.nccl.comm_abort)(self.comm) };
        self.comm = std::ptr::null_mut();
    }
}

impl Drop for NcclComm {
    fn drop(&mut self) {
        if !self.comm.is_null() {
            let _ = self.device.synchronize();
            // SAFETY: destroyed once, after all its work.
            unsafe { (self.nccl.comm_destroy)(self.comm) };
        }
    }
}

fn new_id(nccl: &Nccl) -> Result<Vec<u8>> {
    let mut id = UniqueId([0; 128]);
    // SAFETY: valid for writing.
    check(unsafe { (nccl.get_unique_id)(&mut id) }, "make an identity for NCCL")?;
    Ok(id.0.to_vec())
}

fn check(code: sys::Result, what: &str) -> Result<()> {
    if code == sys::SUCCESS {
        return Ok(());
    }
    Err(err!("NCCL cannot {what}: code {code}")
        .help("set NCCL_DEBUG=INFO to see why, or PHALANX_NCCL=0 to add up gradients through the host"))
}
