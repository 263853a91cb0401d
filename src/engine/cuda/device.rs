//! One GPU: its context, streams and kernels. Codes of the driver become errors here.

use super::compile::{self, Numbers};
use super::kernels::{Kernels, Program};
use super::library;
pub use super::memory::{Buffer, Pinned};
pub use super::record::{Event, Graph};
use super::sys::{self, Driver, Handle};
use crate::err;
use crate::error::{Error, Result};
use std::collections::HashMap;
use std::ffi::{CStr, CString, c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// The oldest driver that is known to work: CUDA 12.0.
const OLDEST_DRIVER: c_int = 12000;
/// The oldest GPUs with tensor cores for double precision.
const OLDEST_CAPABILITY: (i32, i32) = (8, 0);
/// From these on a kernel may be brought in while the one before it runs, also in recorded steps.
const OVERLAP_CAPABILITY: (i32, i32) = (9, 0);
const OVERLAP_DRIVER: c_int = 12030;
/// From these on blocks come in clusters.
const TEAM_CAPABILITY: (i32, i32) = (9, 0);

/// The driver of this machine.
pub struct Cuda {
    driver: Driver,
    /// Of CUDA, such as 12040 for 12.4.
    version: c_int,
    n_devices: usize,
}

impl Cuda {
    /// Finds the driver and counts the GPUs that `CUDA_VISIBLE_DEVICES` leaves visible.
    pub fn find(env: &dyn Fn(&str) -> Option<String>) -> Result<Arc<Cuda>> {
        let library = library::load(&library::DRIVER, env)?;
        let too_old = |what: String| err!("{what}").help("update NVIDIA's driver, or use --device cpu");
        let driver = Driver::bind(library)
            .map_err(|name| too_old(format!("the CUDA driver is too old: it has no {name}")))?;
        let mut cuda = Cuda { driver, version: 0, n_devices: 0 };
        // SAFETY: called before anything else of the driver.
        cuda.check(unsafe { (cuda.driver.init)(0) }, "start the CUDA driver")?;
        let (mut version, mut n) = (0, 0);
        // SAFETY: both are valid for writing.
        unsafe {
            cuda.check((cuda.driver.driver_get_version)(&mut version), "ask for the driver's version")?;
            cuda.check((cuda.driver.device_get_count)(&mut n), "count GPUs")?;
        }
        if version < OLDEST_DRIVER {
            let name = |v: c_int| format!("{}.{}", v / 1000, v % 1000 / 10);
            return Err(too_old(format!(
                "the CUDA driver is too old: it knows CUDA {}, wanted {}",
                name(version),
                name(OLDEST_DRIVER)
            )));
        }
        if n == 0 {
            return Err(err!("the CUDA driver shows no GPU")
                .help("is CUDA_VISIBLE_DEVICES set to nothing? Use --device cpu otherwise"));
        }
        (cuda.version, cuda.n_devices) = (version, n as usize);
        Ok(Arc::new(cuda))
    }

    /// GPUs that this process may use.
    pub fn n_devices(&self) -> usize {
        self.n_devices
    }

    /// Name of a GPU, and what tells it from every other.
    pub fn describe(&self, index: usize) -> Result<(String, String)> {
        if index >= self.n_devices {
            return Err(err!("there is no GPU {index}: {} are visible", self.n_devices)
                .help("GPUs are counted from 0, among those of CUDA_VISIBLE_DEVICES"));
        }
        let (mut id, mut name, mut uuid) = (0, [0; 256], [0u8; 16]);
        // SAFETY: the buffers are valid for the sizes that are told; the driver ends the name with a zero.
        let name = unsafe {
            self.check((self.driver.device_get)(&mut id, index as c_int), "open a GPU")?;
            self.check((self.driver.device_get_name)(name.as_mut_ptr(), 255, id), "ask for a GPU's name")?;
            self.check((self.driver.device_get_uuid)(&mut uuid, id), "ask for a GPU's identity")?;
            CStr::from_ptr(name.as_ptr()).to_string_lossy().into_owned()
        };
        Ok((name, uuid.iter().map(|b| format!("{b:02x}")).collect()))
    }

    fn check(&self, code: sys::Result, what: &str) -> Result<()> {
        if code == sys::SUCCESS {
            return Ok(());
        }
        let text = |ask: unsafe extern "C" fn(sys::Result, *mut *const std::ffi::c_char) -> sys::Result| {
            let mut at = std::ptr::null();
            // SAFETY: the driver gives a string that lives for ever, or leaves the pointer null.
            unsafe {
                ask(code, &mut at);
                if at.is_null() { "unknown".into() } else { CStr::from_ptr(at).to_string_lossy() }
            }
        };
        let (name, meaning) = (text(self.driver.get_error_name), text(self.driver.get_error_string));
        Err(err!("cannot {what}: {meaning} ({name}, code {code})").help(advice(code)))
    }
}

fn advice(code: sys::Result) -> &'static str {
    match code {
        2 => "lower training.batch_size or training.gpu_memory, or use another GPU",
        3 | 4 | 46 | 201 => {
            "another process may hold the GPU, or it was taken away; see nvidia-smi, then restart from \
                             the last checkpoint"
        }
        100 | 101 => "see which GPUs nvidia-smi lists; CUDA_VISIBLE_DEVICES chooses among them",
        214 | 700..=719 | 999 => {
            "the GPU is lost to this process; restart from the last checkpoint, and look at \
                                  nvidia-smi and the kernel's log if it happens again"
        }
        _ => "restart from the last checkpoint, or use --device cpu",
    }
}

/// Streams of a GPU: the main one, two for branches of a graph, and one for frames that come ahead of the steps.
const STREAMS: usize = 4;

/// A queue of work of a GPU.
#[derive(Clone, Copy)]
pub struct Stream {
    handle: Handle,
    /// Among those of its device.
    number: usize,
}

impl Stream {
    pub(in crate::engine) fn handle(self) -> Handle {
        self.handle
    }
}

/// How a kernel is started.
#[derive(Clone, Copy)]
pub(super) struct Launch {
    /// Blocks.
    pub grid: usize,
    /// Threads of a block.
    pub threads: usize,
    /// Bytes of shared memory of a block.
    pub shared: usize,
    /// Blocks that run at the same time and can wait for each other (a cluster).
    pub team: usize,
}

/// One GPU with the kernels for one kind of number.
pub struct Device {
    cuda: Arc<Cuda>,
    context: Handle,
    streams: [Handle; STREAMS],
    /// What was put into a stream last is a wait for another stream.
    held: [AtomicBool; STREAMS],
    /// Kernels wait for the one before them themselves, so that they may be brought in while it still runs.
    overlaps: bool,
    /// Blocks can wait for each other in teams.
    pub teams: bool,
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
    /// Opens a GPU; its kernels are compiled and loaded as they are needed.
    pub fn open(
        cuda: &Arc<Cuda>,
        index: usize,
        numbers: Numbers,
        env: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Arc<Device>> {
        let mut device = Self::new(cuda, index, numbers)?;
        device.overlaps = env("PHALANX_OVERLAP").is_none_or(|value| value != "0");
        device.teams = env("PHALANX_TEAMS").is_none_or(|value| value != "0");
        device.started(&compile::PROGRAM, env)
    }

    /// [`Device::open`] with the kernels of another program.
    pub fn open_with(
        cuda: &Arc<Cuda>,
        index: usize,
        numbers: Numbers,
        program: &Program,
        env: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Arc<Device>> {
        Self::new(cuda, index, numbers)?.started(program, env)
    }

    fn new(cuda: &Arc<Cuda>, index: usize, numbers: Numbers) -> Result<Device> {
        let (name, _) = cuda.describe(index)?;
        let null = std::ptr::null_mut();
        Ok(Device {
            cuda: cuda.clone(),
            context: null,
            streams: [null; STREAMS],
            held: Default::default(),
            overlaps: false,
            teams: false,
            kernels: None,
            functions: Mutex::default(),
            index,
            name,
            multiprocessors: 0,
            numbers,
            max_shared: 0,
        })
    }

    fn started(mut self, program: &Program, env: &dyn Fn(&str) -> Option<String>) -> Result<Arc<Device>> {
        self.start(program, env).map_err(|e| e.at(format!("GPU {}", self.index)))?;
        Ok(Arc::new(self))
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
        self.teams &= capability >= TEAM_CAPABILITY;
        // They are compiled while the driver makes a context, which takes long too.
        let kernels = Kernels::new(program, self.numbers, capability, env);
        let (mut context, mut pool) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the out-pointers are valid.
        unsafe {
            cuda.check((driver.primary_ctx_retain)(&mut context, id), "make a context on it")?;
            self.context = context;
            self.bind()?;
            for stream in &mut self.streams {
                cuda.check((driver.stream_create)(stream, sys::STREAM_NON_BLOCKING), "make a stream")?;
            }
            // Memory that frames leave is kept for the next ones.
            if (driver.device_get_default_mem_pool)(&mut pool, id) == sys::SUCCESS {
                let mut all = u64::MAX;
                (driver.mem_pool_set_attribute)(pool, sys::POOL_RELEASE_THRESHOLD, (&raw mut all).cast());
            }
        }
        // Who has no compiler, or one that does not know this GPU, should hear of it now.
        if let Some((first, _)) = program.kernels().iter().find(|(name, _)| (program.always)(name)) {
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

    pub fn driver(&self) -> &Driver {
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

    pub fn check(&self, code: sys::Result, what: &str) -> Result<()> {
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

    /// Starts a kernel on the main stream. `arguments` point to values of the types that the kernel declares.
    pub fn launch(
        &self,
        name: &'static str,
        grid: usize,
        block: usize,
        shared_bytes: usize,
        arguments: &mut [*mut c_void],
    ) -> Result<()> {
        self.launch_on(self.stream(), name, grid, block, shared_bytes, arguments)
    }

    /// [`Device::launch`] on another stream.
    pub fn launch_on(
        &self,
        stream: Stream,
        name: &'static str,
        grid: usize,
        block: usize,
        shared_bytes: usize,
        arguments: &mut [*mut c_void],
    ) -> Result<()> {
        self.launch_as(
            stream,
            name,
            Launch { grid, threads: block, shared: shared_bytes, team: 1 },
            arguments,
        )
    }

    /// [`Device::launch_on`] with all that can be said of a launch.
    pub(super) fn launch_as(
        &self,
        stream: Stream,
        name: &'static str,
        launch: Launch,
        arguments: &mut [*mut c_void],
    ) -> Result<()> {
        let Launch { grid, threads, shared, team } = launch;
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
        if team > 1 {
            add(sys::LAUNCH_CLUSTER_DIMENSION, [team as c_int, 1, 1]);
        }
        let config = sys::LaunchConfig {
            grid: [grid as u32, 1, 1],
            block: [threads as u32, 1, 1],
            shared_bytes: shared as u32,
            stream: stream.handle(),
            attributes: attributes.as_ptr(),
            n_attributes: n_attributes as u32,
        };
        // SAFETY: the callers of this module pass what the kernels declare; see layout.rs for the structures.
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
    pub fn check_memory(&self, code: sys::Result, bytes: usize, what: &str) -> Result<()> {
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

/// Pointers to the arguments of a kernel, for [`Device::launch`].
macro_rules! arguments {
    ($($value:expr),* $(,)?) => { &mut [$((&raw const $value).cast_mut().cast::<std::ffi::c_void>()),*] };
}
pub(crate) use arguments;
