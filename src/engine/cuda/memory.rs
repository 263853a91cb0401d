//! Memory of a GPU, and memory of the host that it copies from and to.

use super::device::{Device, Stream};
use super::sys::DevicePtr;
use crate::Result;
use std::sync::Arc;

/// Memory of a GPU.
pub struct Buffer {
    device: Arc<Device>,
    ptr: DevicePtr,
    bytes: usize,
}

impl Buffer {
    /// Memory that is set to zero.
    pub fn zeroed(device: &Arc<Device>, bytes: usize, what: &str) -> Result<Buffer> {
        let (mut ptr, bytes) = (0, bytes.max(16));
        // SAFETY: `ptr` is valid for writing; the fill stays inside what was given.
        unsafe {
            let code = (device.driver().mem_alloc)(&mut ptr, bytes);
            device.check_memory(code, bytes, what)?;
            let buffer = Buffer { device: device.clone(), ptr, bytes };
            device.check(
                (device.driver().memset_d8_async)(ptr, 0, bytes, device.stream().handle()),
                "clear memory",
            )?;
            Ok(buffer)
        }
    }

    /// Memory that holds a copy.
    pub fn of<T: Copy>(device: &Arc<Device>, values: &[T], what: &str) -> Result<Buffer> {
        let buffer = Buffer::zeroed(device, size_of_val(values), what)?;
        buffer.write(0, values)?;
        Ok(buffer)
    }

    pub fn ptr(&self) -> DevicePtr {
        self.ptr
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Copies values to the device, `at` bytes from the start, after everything that was started before.
    pub fn write<T: Copy>(&self, at: usize, values: &[T]) -> Result<()> {
        let bytes = size_of_val(values);
        assert!(at + bytes <= self.bytes, "a copy must stay inside its buffer");
        // SAFETY: the source is ordinary memory, so the driver has read it when the call returns.
        let code = unsafe {
            (self.device.driver().memcpy_htod_async)(
                self.ptr + at as u64,
                values.as_ptr().cast(),
                bytes,
                self.device.stream().handle(),
            )
        };
        self.device.check(code, "copy to the GPU")
    }

    /// Copies values from the device, `at` bytes from the start, when everything before has ended.
    pub fn read<T: Copy>(&self, at: usize, values: &mut [T]) -> Result<()> {
        let bytes = size_of_val(values);
        assert!(at + bytes <= self.bytes, "a copy must stay inside its buffer");
        // SAFETY: the target is valid for writing and lives until the stream is done.
        let code = unsafe {
            (self.device.driver().memcpy_dtoh_async)(
                values.as_mut_ptr().cast(),
                self.ptr + at as u64,
                bytes,
                self.device.stream().handle(),
            )
        };
        self.device.check(code, "copy from the GPU")?;
        self.device.synchronize()
    }

    /// Sets everything to zero, in the order of the stream.
    pub fn clear(&self) -> Result<()> {
        // SAFETY: the fill stays inside the buffer.
        let code = unsafe {
            (self.device.driver().memset_d8_async)(self.ptr, 0, self.bytes, self.device.stream().handle())
        };
        self.device.check(code, "clear memory")
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let _ = self.device.bind();
        // SAFETY: freed once; the driver waits for work that uses it. Nothing can be done about a failure here.
        unsafe { (self.device.driver().mem_free)(self.ptr) };
    }
}

/// Memory of the host that a GPU copies from and to without waiting.
pub struct Pinned {
    device: Arc<Device>,
    at: *mut u8,
    bytes: usize,
}

// SAFETY: plain memory, owned by this value.
unsafe impl Send for Pinned {}
// SAFETY: a shared reference only reads.
unsafe impl Sync for Pinned {}

impl Pinned {
    pub fn new(device: &Arc<Device>, bytes: usize) -> Result<Pinned> {
        let mut at = std::ptr::null_mut();
        // SAFETY: `at` is valid for writing.
        let code = unsafe { (device.driver().mem_host_alloc)(&mut at, bytes.max(16), 0) };
        device.check(code, &format!("pin {bytes} bytes of host memory"))?;
        Ok(Pinned { device: device.clone(), at: at.cast(), bytes: bytes.max(16) })
    }

    pub fn bytes(&self) -> &[u8] {
        // SAFETY: valid for its size, and only copies that have ended wrote to it.
        unsafe { std::slice::from_raw_parts(self.at, self.bytes) }
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.at, self.bytes) }
    }

    /// Starts a copy of `bytes` from `at` of this memory to the device.
    pub fn copy_to(&self, stream: Stream, to: DevicePtr, at: usize, bytes: usize) -> Result<()> {
        assert!(at + bytes <= self.bytes, "a copy must stay inside its memory");
        // SAFETY: inside the pinned memory, which its owner does not touch until the stream has passed this point.
        let code = unsafe {
            (self.device.driver().memcpy_htod_async)(
                to,
                self.at.add(at).cast_const().cast(),
                bytes,
                stream.handle(),
            )
        };
        self.device.check(code, "copy to the GPU")
    }

    /// Starts a copy from the device.
    pub fn copy_from(&mut self, stream: Stream, from: DevicePtr, bytes: usize) -> Result<()> {
        assert!(bytes <= self.bytes, "a copy must stay inside its memory");
        // SAFETY: as above.
        let code =
            unsafe { (self.device.driver().memcpy_dtoh_async)(self.at.cast(), from, bytes, stream.handle()) };
        self.device.check(code, "copy from the GPU")
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let _ = self.device.bind();
        // SAFETY: freed once; owners wait for copies under way.
        unsafe { (self.device.driver().mem_free_host)(self.at.cast()) };
    }
}
