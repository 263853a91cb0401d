//! Gloo's codes become errors; what it allocates is given back.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::marker::PhantomData;
use std::net::IpAddr;
use std::time::Duration;

use super::sys;
use crate::err;
use crate::error::{Error, Result};

/// Longest address of a pair; Gloo itself allows no more.
const ADDRESS: usize = 192;

/// Pairs of this rank with all others.
pub struct Mesh {
    handle: *mut c_void,
}

// SAFETY: Gloo locks within; a handle belongs to no thread.
unsafe impl Send for Mesh {}

impl Mesh {
    /// Listens at an address of this host. Connecting may take as long as `limit`.
    pub fn open(rank: usize, size: usize, address: IpAddr, limit: Duration) -> Result<Mesh> {
        let address = CString::new(address.to_string()).map_err(|_| err!("an address holds a zero byte"))?;
        let mut why = Why::new();
        // SAFETY: the strings live through the call; `why` has the room that is told.
        let handle = unsafe {
            sys::phalanx_gloo_open(
                rank as c_int,
                size as c_int,
                address.as_ptr(),
                limit.as_millis() as i64,
                why.at(),
                why.room(),
            )
        };
        if handle.is_null() { Err(why.error()) } else { Ok(Mesh { handle }) }
    }

    /// Where `peer` reaches this rank.
    pub fn address(&self, peer: usize) -> Result<Vec<u8>> {
        let (mut bytes, mut why) = ([0u8; ADDRESS], Why::new());
        // SAFETY: both places are ours and as large as told.
        let n = unsafe {
            let out = bytes.as_mut_ptr().cast();
            sys::phalanx_gloo_address(self.handle, peer as c_int, out, ADDRESS, why.at(), why.room())
        };
        match n {
            0 => Err(why.error()),
            n if n > ADDRESS => Err(err!("Gloo has addresses of {n} bytes, more than it says")),
            n => Ok(bytes[..n].to_vec()),
        }
    }

    /// Connects with `peer`, which must do the same.
    pub fn connect(&self, peer: usize, address: &[u8]) -> Result<()> {
        let mut why = Why::new();
        // SAFETY: the address is read during the call only.
        let done = unsafe {
            let bytes = address.as_ptr().cast();
            sys::phalanx_gloo_connect(self.handle, peer as c_int, bytes, address.len(), why.at(), why.room())
        };
        if done { Ok(()) } else { Err(why.error()) }
    }

    /// Begins to send.
    pub fn send<'a>(&self, bytes: &'a [u8], to: usize) -> Result<Message<'a>> {
        // SAFETY: Gloo only reads what it sends, and the message borrows the bytes.
        unsafe { self.post(true, to, bytes.as_ptr().cast_mut(), bytes.len()) }
    }

    /// Begins to receive.
    pub fn receive<'a>(&self, bytes: &'a mut [u8], from: usize) -> Result<Message<'a>> {
        // SAFETY: the message borrows the bytes, so that nobody else touches them.
        unsafe { self.post(false, from, bytes.as_mut_ptr(), bytes.len()) }
    }

    /// # Safety
    /// The bytes must outlive `'a`, and be ours alone where they are written.
    unsafe fn post<'a>(&self, outgoing: bool, peer: usize, bytes: *mut u8, n: usize) -> Result<Message<'a>> {
        let (peer, mut why) = (peer as c_int, Why::new());
        // SAFETY: as promised by the caller.
        let handle = unsafe {
            sys::phalanx_gloo_post(self.handle, outgoing, peer, bytes.cast(), n, why.at(), why.room())
        };
        if handle.is_null() { Err(why.error()) } else { Ok(Message { handle, bytes: PhantomData }) }
    }
}

impl Drop for Mesh {
    fn drop(&mut self) {
        // SAFETY: the handle is ours, and messages cannot outlive the exchange that made them.
        unsafe { sys::phalanx_gloo_close(self.handle) };
    }
}

/// A message on its way. Dropped, it lets go of its bytes, also where it did not arrive.
pub struct Message<'a> {
    handle: *mut c_void,
    bytes: PhantomData<&'a mut [u8]>,
}

impl Message<'_> {
    /// Waits until it has gone or come; false if [`Interrupt`] came first.
    pub fn wait(&self, limit: Duration) -> Result<bool> {
        let mut why = Why::new();
        let limit = limit.as_millis().min(i64::MAX as u128 / 2_000_000) as i64;
        // SAFETY: the handle lives as long as self.
        match unsafe { sys::phalanx_gloo_wait(self.handle, limit, why.at(), why.room()) } {
            -1 => Err(why.error()),
            complete => Ok(complete == 1),
        }
    }

    /// Lets another thread interrupt the wait.
    pub fn interrupt(&self) -> Interrupt {
        Interrupt { handle: self.handle }
    }
}

impl Drop for Message<'_> {
    fn drop(&mut self) {
        // SAFETY: the handle is ours. Gloo waits for a copy that is under way and forgets the bytes.
        unsafe { sys::phalanx_gloo_drop(self.handle) };
    }
}

/// Ends the wait for one message.
pub struct Interrupt {
    handle: *mut c_void,
}

// SAFETY: Gloo's interrupts are made for other threads.
unsafe impl Send for Interrupt {}

impl Interrupt {
    /// Makes the wait return.
    ///
    /// # Safety
    /// The message must still be there.
    pub unsafe fn now(&self) {
        // SAFETY: as promised by the caller.
        unsafe { sys::phalanx_gloo_interrupt(self.handle) };
    }
}

/// Room for what Gloo says of a failure.
struct Why([u8; 512]);

impl Why {
    fn new() -> Why {
        Why([0; 512])
    }

    fn at(&mut self) -> *mut c_char {
        self.0.as_mut_ptr().cast()
    }

    fn room(&self) -> usize {
        self.0.len()
    }

    fn error(&self) -> Error {
        let text = CStr::from_bytes_until_nul(&self.0).map(CStr::to_string_lossy).unwrap_or_default();
        // "[/build/.../pair.cc:598] Connection closed by peer": the place in its source tells a user nothing.
        let text =
            text.strip_prefix('[').and_then(|rest| rest.split_once("] ")).map_or(&*text, |(_, said)| said);
        Error::new(if text.is_empty() { "Gloo failed and gave no reason" } else { text })
    }
}
