//! Points in streams, and work that is recorded and started as a whole.

use super::device::{Device, Stream};
use super::sys::{self, Handle};
use crate::Result;
use std::sync::Arc;

/// A point in a stream.
pub struct Event {
    device: Arc<Device>,
    event: Handle,
}

// SAFETY: a handle of the driver.
unsafe impl Send for Event {}

impl Event {
    pub fn new(device: &Arc<Device>) -> Result<Event> {
        let mut event = std::ptr::null_mut();
        // SAFETY: `event` is valid for writing.
        let code = unsafe { (device.driver().event_create)(&mut event, sys::EVENT_DISABLE_TIMING) };
        device.check(code, "make an event")?;
        Ok(Event { device: device.clone(), event })
    }

    pub fn record(&self, stream: Stream) -> Result<()> {
        // SAFETY: both handles live.
        self.device.check(
            unsafe { (self.device.driver().event_record)(self.event, stream.handle()) },
            "mark a point",
        )
    }

    /// Waits until the stream has passed the point.
    pub fn wait(&self) -> Result<()> {
        // SAFETY: the handle lives.
        self.device.check(
            unsafe { (self.device.driver().event_synchronize)(self.event) },
            "finish a step on the GPU",
        )
    }

    /// True where the stream has passed the point.
    pub fn passed(&self) -> Result<bool> {
        // SAFETY: the handle lives.
        match unsafe { (self.device.driver().event_query)(self.event) } {
            sys::NOT_READY => Ok(false),
            code => self.device.check(code, "finish a step on the GPU").map(|()| true),
        }
    }

    /// Makes a stream wait for the point.
    pub fn holds(&self, stream: Stream) -> Result<()> {
        // SAFETY: both handles live.
        let code = unsafe { (self.device.driver().stream_wait_event)(stream.handle(), self.event, 0) };
        self.device.hold(stream);
        self.device.check(code, "order two streams")
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: destroyed once.
        unsafe { (self.device.driver().event_destroy)(self.event) };
    }
}

/// Work that was recorded once and is started as a whole.
pub struct Graph {
    device: Arc<Device>,
    exec: Handle,
}

// SAFETY: a handle of the driver.
unsafe impl Send for Graph {}

impl Graph {
    /// Records what `work` starts on the main stream.
    pub fn record(device: &Arc<Device>, work: impl FnOnce() -> Result<()>) -> Result<Graph> {
        let driver = device.driver();
        // SAFETY: the stream lives; a capture that began is always ended.
        unsafe {
            let code = (driver.stream_begin_capture)(device.stream().handle(), sys::CAPTURE_THREAD_LOCAL);
            device.check(code, "record a step")?;
            let recorded = work();
            let mut graph = std::ptr::null_mut();
            let code = (driver.stream_end_capture)(device.stream().handle(), &mut graph);
            recorded?;
            device.check(code, "record a step")?;
            let mut exec = std::ptr::null_mut();
            let code = (driver.graph_instantiate)(&mut exec, graph, 0);
            (driver.graph_destroy)(graph);
            device.check(code, "prepare a step")?;
            Ok(Graph { device: device.clone(), exec })
        }
    }

    /// Starts it, after everything that was put into the main stream before.
    ///
    /// # Safety
    ///
    /// What was recorded may run now: above all, the memory that it uses is still there.
    pub unsafe fn launch(&self) -> Result<()> {
        // SAFETY: both handles live; the rest is the caller's word.
        let code = unsafe { (self.device.driver().graph_launch)(self.exec, self.device.stream().handle()) };
        self.device.check(code, "start a step")
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: destroyed once; a graph that still runs is kept by the driver.
        unsafe { (self.device.driver().graph_exec_destroy)(self.exec) };
    }
}
