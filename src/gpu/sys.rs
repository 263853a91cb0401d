//! The CUDA driver, NVRTC, NCCL and NVML as their vendors declare them: the few functions that we use, bound at run time.

#![allow(clippy::type_complexity)]

use std::ffi::{c_char, c_int, c_uint, c_void};

pub type Result = c_int;
pub type DevicePtr = u64;
pub type Handle = *mut c_void;

/// What a driver function returned when all went well.
pub const SUCCESS: Result = 0;
pub const OUT_OF_MEMORY: Result = 2;
pub const NOT_READY: Result = 600;

pub const ATTRIBUTE_CAPABILITY_MAJOR: c_int = 75;
pub const ATTRIBUTE_CAPABILITY_MINOR: c_int = 76;
pub const ATTRIBUTE_MULTIPROCESSORS: c_int = 16;
pub const ATTRIBUTE_SHARED_OPTIN: c_int = 97;
pub const FUNCTION_STATIC_SHARED: c_int = 1;
pub const FUNCTION_MAX_DYNAMIC_SHARED: c_int = 8;
pub const STREAM_NON_BLOCKING: c_uint = 1;
pub const EVENT_DISABLE_TIMING: c_uint = 2;
pub const CAPTURE_THREAD_LOCAL: c_uint = 1;
pub const POOL_RELEASE_THRESHOLD: c_int = 4;
pub const LAUNCH_CLUSTER_DIMENSION: c_uint = 4;
pub const LAUNCH_PROGRAMMATIC_SERIALIZATION: c_uint = 6;

/// One property of a launch; the vendor's union of 64 bytes holds one number or three here.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct LaunchAttribute {
    pub id: c_uint,
    pub padding: c_uint,
    pub value: [c_int; 16],
}

/// How a kernel is started.
#[repr(C)]
pub struct LaunchConfig {
    pub grid: [c_uint; 3],
    pub block: [c_uint; 3],
    pub shared_bytes: c_uint,
    pub stream: Handle,
    pub attributes: *const LaunchAttribute,
    pub n_attributes: c_uint,
}

/// Declares a table of functions and how to bind it.
macro_rules! functions {
    ($(#[$doc:meta])* $table:ident { $($name:ident = $symbol:literal ($($arg:ty),*);)* }) => {
        $(#[$doc])*
        pub struct $table { $(pub $name: unsafe extern "C" fn($($arg),*) -> Result,)* }

        impl $table {
            /// Binds all functions, or names the first that is absent. The library is never unloaded.
            ///
            /// # Safety
            ///
            /// It is the vendor's library, whose functions take what its header declares.
            pub(super) unsafe fn bind(library: libloading::Library) -> std::result::Result<Self, &'static str> {
                let library = Box::leak(Box::new(library));
                Ok($table {
                    $($name: {
                        // SAFETY: the types are those that the vendor's header declares for these names.
                        let symbol = unsafe {
                            library.get::<unsafe extern "C" fn($($arg),*) -> Result>(concat!($symbol, "\0").as_bytes())
                        };
                        *symbol.map_err(|_| $symbol)?
                    },)*
                })
            }
        }
    };
}

functions! {
    /// `libcuda.so.1`
    Driver {
        init = "cuInit" (c_uint);
        driver_get_version = "cuDriverGetVersion" (*mut c_int);
        device_get_count = "cuDeviceGetCount" (*mut c_int);
        device_get = "cuDeviceGet" (*mut c_int, c_int);
        device_get_name = "cuDeviceGetName" (*mut c_char, c_int, c_int);
        device_get_uuid = "cuDeviceGetUuid" (*mut [u8; 16], c_int);
        device_get_attribute = "cuDeviceGetAttribute" (*mut c_int, c_int, c_int);
        primary_ctx_retain = "cuDevicePrimaryCtxRetain" (*mut Handle, c_int);
        ctx_set_current = "cuCtxSetCurrent" (Handle);
        device_get_default_mem_pool = "cuDeviceGetDefaultMemPool" (*mut Handle, c_int);
        mem_pool_set_attribute = "cuMemPoolSetAttribute" (Handle, c_int, *mut c_void);
        mem_get_info = "cuMemGetInfo_v2" (*mut usize, *mut usize);
        mem_alloc = "cuMemAlloc_v2" (*mut DevicePtr, usize);
        mem_free = "cuMemFree_v2" (DevicePtr);
        mem_alloc_async = "cuMemAllocAsync" (*mut DevicePtr, usize, Handle);
        mem_free_async = "cuMemFreeAsync" (DevicePtr, Handle);
        mem_host_alloc = "cuMemHostAlloc" (*mut *mut c_void, usize, c_uint);
        mem_free_host = "cuMemFreeHost" (*mut c_void);
        memcpy_htod_async = "cuMemcpyHtoDAsync_v2" (DevicePtr, *const c_void, usize, Handle);
        memcpy_dtoh_async = "cuMemcpyDtoHAsync_v2" (*mut c_void, DevicePtr, usize, Handle);
        memset_d8_async = "cuMemsetD8Async" (DevicePtr, u8, usize, Handle);
        stream_create = "cuStreamCreate" (*mut Handle, c_uint);
        stream_synchronize = "cuStreamSynchronize" (Handle);
        stream_wait_event = "cuStreamWaitEvent" (Handle, Handle, c_uint);
        stream_begin_capture = "cuStreamBeginCapture_v2" (Handle, c_uint);
        stream_end_capture = "cuStreamEndCapture" (Handle, *mut Handle);
        graph_instantiate = "cuGraphInstantiateWithFlags" (*mut Handle, Handle, u64);
        graph_launch = "cuGraphLaunch" (Handle, Handle);
        graph_exec_destroy = "cuGraphExecDestroy" (Handle);
        graph_destroy = "cuGraphDestroy" (Handle);
        event_create = "cuEventCreate" (*mut Handle, c_uint);
        event_record = "cuEventRecord" (Handle, Handle);
        event_synchronize = "cuEventSynchronize" (Handle);
        event_query = "cuEventQuery" (Handle);
        event_elapsed_time = "cuEventElapsedTime" (*mut f32, Handle, Handle);
        event_destroy = "cuEventDestroy_v2" (Handle);
        module_load_data = "cuModuleLoadData" (*mut Handle, *const c_void);
        module_get_function = "cuModuleGetFunction" (*mut Handle, Handle, *const c_char);
        func_set_attribute = "cuFuncSetAttribute" (Handle, c_int, c_int);
        func_get_attribute = "cuFuncGetAttribute" (*mut c_int, c_int, Handle);
        launch_kernel = "cuLaunchKernelEx" (*const LaunchConfig, Handle, *mut *mut c_void, *mut *mut c_void);
        get_error_name = "cuGetErrorName" (Result, *mut *const c_char);
        get_error_string = "cuGetErrorString" (Result, *mut *const c_char);
    }
}

functions! {
    /// `libnvrtc.so`
    Nvrtc {
        version = "nvrtcVersion" (*mut c_int, *mut c_int);
        create_program = "nvrtcCreateProgram" (
            *mut Handle, *const c_char, *const c_char, c_int, *const *const c_char, *const *const c_char
        );
        destroy_program = "nvrtcDestroyProgram" (*mut Handle);
        compile_program = "nvrtcCompileProgram" (Handle, c_int, *const *const c_char);
        get_log_size = "nvrtcGetProgramLogSize" (Handle, *mut usize);
        get_log = "nvrtcGetProgramLog" (Handle, *mut c_char);
        get_cubin_size = "nvrtcGetCUBINSize" (Handle, *mut usize);
        get_cubin = "nvrtcGetCUBIN" (Handle, *mut c_char);
    }
}

/// What joins the ranks of an NCCL communicator.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct UniqueId(pub [u8; 128]);

pub const NCCL_FLOAT64: c_int = 8;
pub const NCCL_SUM: c_int = 0;
pub const NCCL_IN_PROGRESS: c_int = 7;

functions! {
    /// `libnccl.so.2`
    Nccl {
        get_version = "ncclGetVersion" (*mut c_int);
        get_unique_id = "ncclGetUniqueId" (*mut UniqueId);
        comm_init_rank = "ncclCommInitRank" (*mut Handle, c_int, UniqueId, c_int);
        comm_destroy = "ncclCommDestroy" (Handle);
        comm_abort = "ncclCommAbort" (Handle);
        comm_get_async_error = "ncclCommGetAsyncError" (Handle, *mut c_int);
        all_reduce = "ncclAllReduce" (*const c_void, *mut c_void, usize, c_int, c_int, Handle, Handle);
    }
}

/// Percent of the last moments in which a kernel ran, and in which memory was read or written.
#[repr(C)]
#[derive(Default)]
pub struct Utilization {
    pub gpu: c_uint,
    pub memory: c_uint,
}

/// Bytes of a GPU's memory.
#[repr(C)]
#[derive(Default)]
pub struct MemoryInfo {
    pub total: u64,
    pub free: u64,
    pub used: u64,
}

functions! {
    /// `libnvidia-ml.so.1`
    Nvml {
        init = "nvmlInit_v2" ();
        device_by_uuid = "nvmlDeviceGetHandleByUUID" (*const c_char, *mut Handle);
        utilization = "nvmlDeviceGetUtilizationRates" (Handle, *mut Utilization);
        memory = "nvmlDeviceGetMemoryInfo" (Handle, *mut MemoryInfo);
    }
}
