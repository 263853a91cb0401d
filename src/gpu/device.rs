//! One GPU: its context, its streams, and the kernels of one program.

use super::driver::Cuda;
use super::launch::Launch;
use super::program::{Kernels, Numbers, Program};
use super::sys::{self, Driver, Handle};
use crate::err;
use crate::error::{Error, Result};
use std::collections::HashMap;
use std::ffi::{CString, c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// The oldest GPUs with tensor cores for double precision.
const OLDEST_CAPABILITY: (i32, i32) = (8, 0);
/// From these on a kernel may be brought in while the one before it runs, also in recorded steps.
const OVERLAP_CAPABILITY: (i32, i32) = (9, 0);
const OVERLAP_DRIVER: c_int = 12030;
/// From these on blocks come in clusters.
const CLUSTER_CAPABILITY: (i32, i32) = (9, 0);

/// Streams of a GPU: the main one, two for branches of a graph, and one for what comes ahead of the steps.
const STREAMS: usize = 4;

/// A queue of work of a GPU.
#[derive(Clone, Copy)]
pub struct Stream {
    handle: Handle,
    /// Among those of its device.
    number: usize,
}

impl Stream {
    pub(super) fn handle(self) -> Handle {
        self.handle
    }
}

/// One GPU with the kernels of one program.
pub struct Device {
    cuda: Arc<Cuda>,
    context: Handle,
    streams: [Handle; STREAMS],
    /// What was put into a stream last is a wait for another stream.
    held: [AtomicBool; STREAMS],
    /// Kernels wait for the one before them themselves, so that they may be brought in while it still runs.
    overlaps: bool,
    /// Blocks can come in clusters, in which they wait for each other.
    pub clusters: bool,
    /// There when the device has started.
    kernels: Option<Kernels>,
    functions: Mutex<HashMap<&'static str, usize>>,
    pub index: usize,
    pub name: String,
    pub multiprocessors: usize,
    pub numbers: Numbers,
    max_shared: usize,
}

// SAFETY: handles of the driver may be used from every thread; `bind` makes the context current first.
unsafe impl Send for Device {}
// SAFETY: as above; the map of functions has a lock.
unsafe impl Sync for Device {}

impl Device {
    /// Opens a GPU for the kernels of a program, which are compiled and loaded as they are needed.
    pub fn open(
        cuda: &Arc<Cuda>,
        index: usize,
        program: &Program,
        env: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Arc<Device>> {
        let (name, _) = cuda.describe(index)?;
        let null = std::ptr::null_mut();
        let mut device = Device {
            cuda: cuda.clone(),
            context: null,
            streams: [null; STREAMS],
            held: Default::default(),
            overlaps: program.overlaps,
            clusters: program.clusters,
            kernels: None,
            functions: Mutex::default(),
            index,
            name,
            multiprocessors: 0,
            numbers: program.numbers,
            max_shared: 0,
        };
        device.start(program, env).map_err(|e| e.at(format!("GPU {index}")))?;
        Ok(Arc::new(device))
    }

    fn start(&mut self, program: &Program, env: &dyn Fn(&str) -> Option<String>) -> Result<()> {
        let cuda = self.cuda.clone();
        let driver = &cuda.driver;
        let mut id = 0;
        let attribute = |which: c_int, id: c_int| -> Result<i32> {
            let mut value = 0;
            // SAFETY: `value` is valid for writing.
            let code = unsafe { (driver.device_get_attribute)(&mut value, which, id) };
            cuda.check(code, "ask what the GPU can do")?;
            Ok(value)
        };
        // SAFETY: `id` is valid for writing.
        cuda.check(unsafe { (driver.device_get)(&mut id, self.index as c_int) }, "open it")?;
        let capability = (
            attribute(sys::ATTRIBUTE_CAPABILITY_MAJOR, id)?,
            attribute(sys::ATTRIBUTE_CAPABILITY_MINOR, id)?,
        );
        if capability < OLDEST_CAPABILITY {
            return Err(err!(
                "{} has compute capability {}.{}, wanted 8.0 or newer",
                self.name,
                capability.0,
                capability.1
            )
            .help("use --device cpu"));
        }
        self.multiprocessors = attribute(sys::ATTRIBUTE_MULTIPROCESSORS, id)? as usize;
        self.max_shared = attribute(sys::ATTRIBUTE_SHARED_OPTIN, id)? as usize;
        self.overlaps &= capability >= OVERLAP_CAPABILITY && cuda.version >= OVERLAP_DRIVER;
        self.clusters &= capability >= CLUSTER_CAPABILITY;
        // They are compiled while the driver makes a context, which takes long too.
        let kernels = Kernels::new(program, capability, env);
        let (mut context, mut pool) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the out-pointers are valid.
        unsafe {
            cuda.check((driver.primary_ctx_retain)(&mut context, id), "make a context on it")?;
            self.context = context;
            self.bind()?;
            for stream in &mut self.streams {
                cuda.check((driver.stream_create)(stream, sys::STREAM_NON_BLOCKING), "make a stream")?;
            }
            // Memory that is given up is kept for who asks next.
            if (driver.device_get_default_mem_pool)(&mut pool, id) == sys::SUCCESS {
                let mut all = u64::MAX;
                (driver.mem_pool_set_attribute)(pool, sys::POOL_RELEASE_THRESHOLD, (&raw mut all).cast());
            }
        }
        // Who has no compiler, or one that does not know this GPU, should hear of it now.
        if let Some(first) = kernels.first() {
            kernels.code(first)?;
        }
        self.kernels = Some(kernels);
        Ok(())
    }

    /// Makes this GPU the one that the calls of this thread mean.
    pub fn bind(&self) -> Result<()> {
        // SAFETY: the context lives as long as the process.
        self.check(unsafe { (self.driver().ctx_set_current)(self.context) }, "use the GPU")
    }

    /// Bytes of shared memory that a kernel may ask for.
    pub fn max_shared(&self) -> usize {
        self.max_shared - 2048
    }

    pub(super) fn driver(&self) -> &Driver {
        &self.cuda.driver
    }

    fn stream_of(&self, number: usize) -> Stream {
        Stream { handle: self.streams[number], number }
    }

    pub fn stream(&self) -> Stream {
        self.stream_of(0)
    }

    /// For a branch beside the main stream.
    pub fn side_stream(&self) -> Stream {
        self.stream_of(1)
    }

    /// For one more branch.
    pub fn third_stream(&self) -> Stream {
        self.stream_of(2)
    }

    /// For what comes ahead of the steps.
    pub fn copy_stream(&self) -> Stream {
        self.stream_of(3)
    }

    /// What comes next in a stream comes after a point of another one.
    pub(super) fn hold(&self, stream: Stream) {
        self.held[stream.number].store(true, Ordering::Relaxed);
    }

    pub(super) fn check(&self, code: sys::Result, what: &str) -> Result<()> {
        self.cuda.check(code, what)
    }

    /// Free and total memory, bytes.
    pub fn memory(&self) -> Result<(usize, usize)> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: both are valid for writing.
        self.check(unsafe { (self.driver().mem_get_info)(&mut free, &mut total) }, "ask for free memory")?;
        Ok((free, total))
    }

    /// Compiles a kernel beside what comes before its first use.
    pub fn foresee(&self, name: &str) {
        if let Some(kernels) = &self.kernels {
            kernels.foresee(name);
        }
    }

    fn known_functions(&self) -> MutexGuard<'_, HashMap<&'static str, usize>> {
        self.functions.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn function(&self, name: &'static str) -> Result<Handle> {
        if let Some(&function) = self.known_functions().get(name) {
            return Ok(function as Handle);
        }
        // This may take a while, in which other threads go on with the kernels that are there.
        let kernels = self.kernels.as_ref().ok_or_else(|| err!("the GPU has not started"))?;
        let code = kernels.code(name)?;
        let mut known = self.known_functions();
        if let Some(&function) = known.get(name) {
            return Ok(function as Handle);
        }
        let symbol = CString::new(name).map_err(|_| err!("{name} is no name of a kernel"))?;
        let (mut module, mut function) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the code is a whole cubin that outlives the call, and the name ends with a zero. The module is never
        // unloaded.
        unsafe {
            let loaded = (self.driver().module_load_data)(&mut module, code.as_ptr().cast());
            self.check(loaded, &format!("load the kernel {name}"))?;
            let code = (self.driver().module_get_function)(&mut function, module, symbol.as_ptr());
            self.check(code, &format!("find the kernel {name}"))?;
            let mut own = 0;
            let code = (self.driver().func_get_attribute)(&mut own, sys::FUNCTION_STATIC_SHARED, function);
            self.check(code, "ask what a kernel needs")?;
            // What a kernel declares itself is not left for the launch to decide.
            let most = self.max_shared as c_int - own;
            let code = (self.driver().func_set_attribute)(function, sys::FUNCTION_MAX_DYNAMIC_SHARED, most);
            self.check(code, "let a kernel use shared memory")?;
        }
        known.insert(name, function as usize);
        Ok(function)
    }

    /// Starts a kernel. See [`Kernel::launch`](super::launch::Kernel::launch).
    ///
    /// # Safety
    ///
    /// `arguments` point to values of the types that the kernel declares, and with these values it may run.
    pub(super) unsafe fn launch(
        &self,
        stream: Stream,
        name: &'static str,
        launch: Launch,
        arguments: &mut [*mut c_void],
    ) -> Result<()> {
        let Launch { blocks: grid, threads, shared, cluster } = launch;
        if grid == 0 {
            return Ok(());
        }
        let function = self.function(name)?;
        // A wait for another stream is for the whole of what it waits for.
        let overlaps = self.overlaps & !self.held[stream.number].swap(false, Ordering::Relaxed);
        let attribute = |id, value| sys::LaunchAttribute { id, padding: 0, value };
        let mut attributes = [attribute(0, [0; 16]); 2];
        let mut n_attributes = 0;
        let mut add = |id, value: [c_int; 3]| {
            let mut whole = [0; 16];
            whole[..3].copy_from_slice(&value);
            attributes[n_attributes] = attribute(id, whole);
            n_attributes += 1;
        };
        if overlaps {
            add(sys::LAUNCH_PROGRAMMATIC_SERIALIZATION, [1, 0, 0]);
        }
        if cluster > 1 {
            add(sys::LAUNCH_CLUSTER_DIMENSION, [cluster as c_int, 1, 1]);
        }
        let config = sys::LaunchConfig {
            grid: [grid as u32, 1, 1],
            block: [threads as u32, 1, 1],
            shared_bytes: shared as u32,
            stream: stream.handle(),
            attributes: attributes.as_ptr(),
            n_attributes: n_attributes as u32,
        };
        // SAFETY: the caller's word on the arguments; stream and function live as long as the process.
        let code = unsafe {
            (self.driver().launch_kernel)(&config, function, arguments.as_mut_ptr(), std::ptr::null_mut())
        };
        self.check(code, &format!("start the kernel {name} ({grid} blocks, {shared} bytes shared)"))
    }

    /// Waits until the main stream has done all its work.
    pub fn synchronize(&self) -> Result<()> {
        // SAFETY: the stream lives as long as the device.
        self.check(unsafe { (self.driver().stream_synchronize)(self.streams[0]) }, "finish a step on the GPU")
    }

    /// [`Device::check`] for what asked for memory.
    pub(super) fn check_memory(&self, code: sys::Result, bytes: usize, what: &str) -> Result<()> {
        self.check(code, "get memory").map_err(|e| match code {
            sys::OUT_OF_MEMORY => self.no_memory(bytes, what, e),
            _ => e,
        })
    }

    fn no_memory(&self, bytes: usize, what: &str, e: Error) -> Error {
        let (free, total) = self.memory().unwrap_or_default();
        let mb = |x: usize| x as f64 / 1e6;
        err!(
            "{}: cannot get {:.0} MB for {what}: {:.0} of {:.0} MB are free ({})",
            self.name,
            mb(bytes),
            mb(free),
            mb(total),
            e.message()
        )
        .help("lower training.batch_size or training.gpu_memory, or use another GPU")
    }
}
