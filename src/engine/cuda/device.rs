//! One GPU: its context, stream, kernels and memory. Codes of the driver become errors here.

use super::compile::{self, Numbers};
use super::library;
use super::sys::{self, DevicePtr, Driver, Handle};
use crate::err;
use crate::error::{Error, Result};
use std::collections::HashMap;
use std::ffi::{CStr, CString, c_int, c_void};
use std::sync::{Arc, Mutex};

/// The oldest driver that is known to work: CUDA 12.0.
const OLDEST_DRIVER: c_int = 12000;
/// The oldest GPUs with tensor cores for double precision.
const OLDEST_CAPABILITY: (i32, i32) = (8, 0);

/// The driver of this machine.
pub struct Cuda {
    driver: Driver,
    n_devices: usize,
}

impl Cuda {
    /// Finds the driver and counts the GPUs that `CUDA_VISIBLE_DEVICES` leaves visible.
    pub fn find(env: &dyn Fn(&str) -> Option<String>) -> Result<Arc<Cuda>> {
        let library = library::load(&library::DRIVER, env)?;
        let too_old = |what: String| err!("{what}").help("update NVIDIA's driver, or use --device cpu");
        let driver = Driver::bind(library)
            .map_err(|name| too_old(format!("the CUDA driver is too old: it has no {name}")))?;
        let mut cuda = Cuda { driver, n_devices: 0 };
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
        cuda.n_devices = n as usize;
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

/// A queue of work of a GPU.
#[derive(Clone, Copy)]
pub struct Stream(Handle);

impl Stream {
    pub(in crate::engine) fn handle(self) -> Handle {
        self.0
    }
}

/// One GPU with the kernels for one kind of number.
pub struct Device {
    cuda: Arc<Cuda>,
    context: Handle,
    stream: Handle,
    /// For work beside the main stream: copies, and branches of a graph.
    side: Handle,
    module: Handle,
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
    /// Opens a GPU and loads its kernels.
    pub fn open(
        cuda: &Arc<Cuda>,
        index: usize,
        numbers: Numbers,
        env: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Arc<Device>> {
        Self::open_with(cuda, index, numbers, |capability| compile::cubin(numbers, capability, env))
    }

    /// [`Device::open`] with other kernels: `program` gives the machine code for an architecture.
    pub fn open_with(
        cuda: &Arc<Cuda>,
        index: usize,
        numbers: Numbers,
        program: impl Fn((i32, i32)) -> Result<Vec<u8>>,
    ) -> Result<Arc<Device>> {
        let (name, _) = cuda.describe(index)?;
        let null = std::ptr::null_mut();
        let mut device = Device {
            cuda: cuda.clone(),
            context: null,
            stream: null,
            side: null,
            module: null,
            functions: Mutex::default(),
            index,
            name,
            multiprocessors: 0,
            numbers,
            max_shared: 0,
        };
        device.start(&program).map_err(|e| e.at(format!("GPU {index}")))?;
        Ok(Arc::new(device))
    }

    fn start(&mut self, program: &dyn Fn((i32, i32)) -> Result<Vec<u8>>) -> Result<()> {
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
        let code = program(capability)?;
        let (mut context, mut pool) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the out-pointers are valid; the code is a whole cubin that outlives the call.
        unsafe {
            cuda.check((driver.primary_ctx_retain)(&mut context, id), "make a context on it")?;
            self.context = context;
            self.bind()?;
            cuda.check((driver.stream_create)(&mut self.stream, sys::STREAM_NON_BLOCKING), "make a stream")?;
            cuda.check((driver.stream_create)(&mut self.side, sys::STREAM_NON_BLOCKING), "make a stream")?;
            cuda.check(
                (driver.module_load_data)(&mut self.module, code.as_ptr().cast()),
                "load the kernels",
            )?;
            // Memory that frames leave is kept for the next ones.
            if (driver.device_get_default_mem_pool)(&mut pool, id) == sys::SUCCESS {
                let mut all = u64::MAX;
                (driver.mem_pool_set_attribute)(pool, sys::POOL_RELEASE_THRESHOLD, (&raw mut all).cast());
            }
        }
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

    pub fn stream(&self) -> Stream {
        Stream(self.stream)
    }

    pub fn side_stream(&self) -> Stream {
        Stream(self.side)
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

    fn function(&self, name: &'static str) -> Result<Handle> {
        let mut known = self.functions.lock().unwrap_or_else(|e| e.into_inner());
        if let Some(&function) = known.get(name) {
            return Ok(function as Handle);
        }
        let symbol = CString::new(name).map_err(|_| err!("{name} is no name of a kernel"))?;
        let mut function = std::ptr::null_mut();
        // SAFETY: the module is loaded and the name ends with a zero.
        unsafe {
            let code = (self.driver().module_get_function)(&mut function, self.module, symbol.as_ptr());
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
        if grid == 0 {
            return Ok(());
        }
        let function = self.function(name)?;
        // SAFETY: the callers of this module pass what the kernels declare; see layout.rs for the structures.
        let code = unsafe {
            (self.driver().launch_kernel)(
                function,
                grid as u32,
                1,
                1,
                block as u32,
                1,
                1,
                shared_bytes as u32,
                stream.handle(),
                arguments.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        };
        self.check(code, &format!("start the kernel {name} ({grid} blocks, {shared_bytes} bytes shared)"))
    }

    /// Waits until the main stream has done all its work.
    pub fn synchronize(&self) -> Result<()> {
        // SAFETY: the stream lives as long as the device.
        self.check(unsafe { (self.driver().stream_synchronize)(self.stream) }, "finish a step on the GPU")
    }

    /// Waits until the side stream has done all its work.
    pub fn synchronize_side(&self) -> Result<()> {
        // SAFETY: as above.
        self.check(unsafe { (self.driver().stream_synchronize)(self.side) }, "copy data to the GPU")
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
            device.check(code, "get memory").map_err(|e| device.no_memory(bytes, what, e))?;
            let buffer = Buffer { device: device.clone(), ptr, bytes };
            device.check((device.driver().memset_d8_async)(ptr, 0, bytes, device.stream), "clear memory")?;
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
                self.device.stream,
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
                self.device.stream,
            )
        };
        self.device.check(code, "copy from the GPU")?;
        self.device.synchronize()
    }

    /// Sets everything to zero, in the order of the stream.
    pub fn clear(&self) -> Result<()> {
        // SAFETY: the fill stays inside the buffer.
        let code =
            unsafe { (self.device.driver().memset_d8_async)(self.ptr, 0, self.bytes, self.device.stream) };
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
            let code = (driver.stream_begin_capture)(device.stream, sys::CAPTURE_THREAD_LOCAL);
            device.check(code, "record a step")?;
            let recorded = work();
            let mut graph = std::ptr::null_mut();
            let code = (driver.stream_end_capture)(device.stream, &mut graph);
            recorded?;
            device.check(code, "record a step")?;
            let mut exec = std::ptr::null_mut();
            let code = (driver.graph_instantiate)(&mut exec, graph, 0);
            (driver.graph_destroy)(graph);
            device.check(code, "prepare a step")?;
            Ok(Graph { device: device.clone(), exec })
        }
    }

    pub fn launch(&self) -> Result<()> {
        // SAFETY: both handles live.
        let code = unsafe { (self.device.driver().graph_launch)(self.exec, self.device.stream) };
        self.device.check(code, "start a step")
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: destroyed once; a graph that still runs is kept by the driver.
        unsafe { (self.device.driver().graph_exec_destroy)(self.exec) };
    }
}

/// Pointers to the arguments of a kernel, for [`Device::launch`].
macro_rules! arguments {
    ($($value:expr),* $(,)?) => { &mut [$((&raw const $value).cast_mut().cast::<std::ffi::c_void>()),*] };
}
pub(crate) use arguments;
