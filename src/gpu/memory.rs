//! Memory of a GPU, and memory of the host that it copies from and to.

use super::device::{Device, Stream};
use super::program::Numbers;
use super::shared::{Ptr, Real};
use super::sys::DevicePtr;
use crate::Result;
use std::marker::PhantomData;
use std::sync::Arc;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// What can be copied between host and GPU: numbers, and structures of them without gaps, for which any bytes will do.
pub trait Plain: FromBytes + IntoBytes + Immutable + Copy {}

impl<T: FromBytes + IntoBytes + Immutable + Copy> Plain for T {}

/// Memory of a GPU that holds values of one type.
pub struct Buffer<T> {
    device: Arc<Device>,
    address: DevicePtr,
    bytes: usize,
    of: PhantomData<fn(T)>,
}

impl<T> Buffer<T> {
    /// Memory that is set to zero.
    fn get(device: &Arc<Device>, bytes: usize, what: &str) -> Result<Buffer<T>> {
        let (mut address, bytes) = (0, bytes.max(16));
        // SAFETY: `address` is valid for writing; the fill stays inside what was given.
        unsafe {
            let code = (device.driver().mem_alloc)(&mut address, bytes);
            device.check_memory(code, bytes, what)?;
            let buffer = Buffer { device: device.clone(), address, bytes, of: PhantomData };
            device.clear_at(address, bytes)?;
            Ok(buffer)
        }
    }

    pub fn ptr(&self) -> Ptr<T> {
        Ptr::at(self.address)
    }

    /// Where it lies, for structures that hold addresses.
    pub fn address(&self) -> DevicePtr {
        self.address
    }

    /// Bytes that it has.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    fn inside(&self, at: usize, bytes: usize) -> DevicePtr {
        assert!(
            at.checked_add(bytes).is_some_and(|end| end <= self.bytes),
            "a copy must stay inside its buffer"
        );
        self.address + at as u64
    }
}

impl<T: Plain> Buffer<T> {
    /// So many zeros.
    pub fn zeroed(device: &Arc<Device>, n: usize, what: &str) -> Result<Buffer<T>> {
        Buffer::get(device, n * size_of::<T>(), what)
    }

    /// Memory that holds a copy.
    pub fn of(device: &Arc<Device>, values: &[T], what: &str) -> Result<Buffer<T>> {
        let buffer = Buffer::zeroed(device, values.len(), what)?;
        buffer.write(0, values)?;
        Ok(buffer)
    }

    /// Copies values to the device, from the value `at` on, after everything that was started before.
    pub fn write(&self, at: usize, values: &[T]) -> Result<()> {
        self.write_bytes(at * size_of::<T>(), values.as_bytes())
    }

    /// [`Buffer::write`] for some bytes of the values.
    pub fn write_bytes(&self, at: usize, bytes: &[u8]) -> Result<()> {
        let to = self.inside(at, bytes.len());
        // SAFETY: inside this memory. Safe code has slices of ordinary memory only (see `Pinned`), which the driver has read
        // when the call returns.
        unsafe { self.device.copy_to(self.device.stream(), to, bytes, "copy to the GPU") }
    }

    /// Copies values from the device, from the value `at` on, when everything before has ended.
    pub fn read(&self, at: usize, values: &mut [T]) -> Result<()> {
        let from = self.inside(at * size_of::<T>(), size_of_val(values));
        // SAFETY: inside this memory.
        unsafe { self.device.read_at(from, values) }
    }
}

impl Buffer<Real> {
    /// So many zeros in the type of the kernels.
    pub fn zeroed_reals(device: &Arc<Device>, n: usize, what: &str) -> Result<Buffer<Real>> {
        Buffer::get(device, n * device.numbers.size(), what)
    }

    /// Numbers in the type of the kernels.
    pub fn reals(device: &Arc<Device>, values: &[f64], what: &str) -> Result<Buffer<Real>> {
        let buffer = Buffer::zeroed_reals(device, values.len(), what)?;
        let bytes = in_the_type_of_kernels(values, device.numbers);
        let to = buffer.inside(0, bytes.len());
        // SAFETY: inside this memory, and from ordinary memory.
        unsafe { device.copy_to(device.stream(), to, &bytes, "copy to the GPU")? };
        Ok(buffer)
    }
}

/// Numbers as the kernels read them.
pub fn in_the_type_of_kernels(values: &[f64], numbers: Numbers) -> Vec<u8> {
    match numbers {
        Numbers::F64 => values.as_bytes().to_vec(),
        _ => values.iter().flat_map(|&x| (x as f32).to_le_bytes()).collect(),
    }
}

impl<T> Drop for Buffer<T> {
    fn drop(&mut self) {
        let _ = self.device.bind();
        // SAFETY: freed once; the driver waits for work that uses it. Nothing can be done about a failure here.
        unsafe { (self.device.driver().mem_free)(self.address) };
    }
}

/// Memory by its address: for parts of a buffer that others have laid out, and for memory that comes and goes in the order of a
/// stream.
impl Device {
    /// Memory for what comes next in a stream.
    pub fn alloc_on(&self, stream: Stream, bytes: usize, what: &str) -> Result<DevicePtr> {
        let mut address = 0;
        // SAFETY: `address` is valid for writing.
        let code = unsafe { (self.driver().mem_alloc_async)(&mut address, bytes, stream.handle()) };
        self.check_memory(code, bytes, what)?;
        Ok(address)
    }

    /// Gives memory of [`Device::alloc_on`] back when the stream has passed this point. `what` is done, for an error.
    ///
    /// # Safety
    ///
    /// It is given back once, and no other stream uses it after this point.
    pub unsafe fn free_on(&self, stream: Stream, address: DevicePtr, what: &str) -> Result<()> {
        // SAFETY: the caller's word.
        self.check(unsafe { (self.driver().mem_free_async)(address, stream.handle()) }, what)
    }

    /// Copies bytes to the device in the order of a stream. `what` is done, for an error.
    ///
    /// # Safety
    ///
    /// There are as many bytes at `to`, which nothing beside the stream touches. Page-locked bytes stay as they are until the
    /// stream has passed this point; others were read when this returns.
    pub unsafe fn copy_to(&self, stream: Stream, to: DevicePtr, bytes: &[u8], what: &str) -> Result<()> {
        // SAFETY: the caller's word.
        let code = unsafe {
            (self.driver().memcpy_htod_async)(to, bytes.as_ptr().cast(), bytes.len(), stream.handle())
        };
        self.check(code, what)
    }

    /// Copies values to the device, after everything that was started before.
    ///
    /// # Safety
    ///
    /// As for [`Device::copy_to`].
    pub unsafe fn write_at<T: Plain>(&self, to: DevicePtr, values: &[T]) -> Result<()> {
        // SAFETY: the caller's word.
        unsafe { self.copy_to(self.stream(), to, values.as_bytes(), "copy to the GPU") }
    }

    /// Copies values from the device, when everything before has ended.
    ///
    /// # Safety
    ///
    /// There are as many values at `from`, which nothing beside the main stream writes.
    pub unsafe fn read_at<T: Plain>(&self, from: DevicePtr, values: &mut [T]) -> Result<()> {
        // SAFETY: the target is valid for writing, takes any bytes, and lives until the stream is done.
        let code = unsafe {
            (self.driver().memcpy_dtoh_async)(
                values.as_mut_ptr().cast(),
                from,
                size_of_val(values),
                self.stream().handle(),
            )
        };
        self.check(code, "copy from the GPU")?;
        self.synchronize()
    }

    /// Sets bytes to zero, in the order of the main stream.
    ///
    /// # Safety
    ///
    /// There are as many bytes, which nothing beside the main stream touches.
    pub unsafe fn clear_at(&self, address: DevicePtr, bytes: usize) -> Result<()> {
        // SAFETY: the caller's word.
        let code = unsafe { (self.driver().memset_d8_async)(address, 0, bytes, self.stream().handle()) };
        self.check(code, "clear memory")
    }
}

/// Memory of the host that a GPU copies from and to without waiting: the only one that copies may still use when the call that
/// started them has returned. So looking at it, and changing it, is up to who knows which copies are under way.
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
        let (mut at, size) = (std::ptr::null_mut(), bytes.max(16));
        // SAFETY: `at` is valid for writing.
        let code = unsafe { (device.driver().mem_host_alloc)(&mut at, size, 0) };
        device.check(code, &format!("pin {bytes} bytes of host memory"))?;
        // SAFETY: the driver gave that many bytes.
        unsafe { at.cast::<u8>().write_bytes(0, size) };
        Ok(Pinned { device: device.clone(), at: at.cast(), bytes: size })
    }

    /// Bytes that it has.
    pub fn size(&self) -> usize {
        self.bytes
    }

    /// What it holds.
    ///
    /// # Safety
    ///
    /// No copy to it is under way. The slice is not copied to the device while it may change.
    pub unsafe fn bytes(&self) -> &[u8] {
        // SAFETY: valid for its size, and set since it was made.
        unsafe { std::slice::from_raw_parts(self.at, self.bytes) }
    }

    /// What it holds, to be changed.
    ///
    /// # Safety
    ///
    /// No copy to or from what is changed is under way.
    pub unsafe fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.at, self.bytes) }
    }

    /// Starts a copy of `bytes` from `at` of this memory to the device.
    ///
    /// # Safety
    ///
    /// There are as many bytes at `to`. These stay as they are, and are kept, until the stream has passed this point.
    pub unsafe fn copy_to(&self, stream: Stream, to: DevicePtr, at: usize, bytes: usize) -> Result<()> {
        // SAFETY: the caller's word.
        unsafe { self.device.copy_to(stream, to, &self.bytes()[at..at + bytes], "copy to the GPU") }
    }

    /// Starts a copy from the device.
    ///
    /// # Safety
    ///
    /// There are as many bytes at `from`. Nobody looks at this memory before the stream has passed this point, and it is kept.
    pub unsafe fn copy_from(&mut self, stream: Stream, from: DevicePtr, bytes: usize) -> Result<()> {
        assert!(bytes <= self.bytes, "a copy must stay inside its memory");
        // SAFETY: inside this memory; the rest is the caller's word.
        let code =
            unsafe { (self.device.driver().memcpy_dtoh_async)(self.at.cast(), from, bytes, stream.handle()) };
        self.device.check(code, "copy from the GPU")
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let _ = self.device.bind();
        // SAFETY: freed once; who starts a copy keeps the memory until it has ended.
        unsafe { (self.device.driver().mem_free_host)(self.at.cast()) };
    }
}
