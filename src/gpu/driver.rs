//! The driver of this machine. Its codes become errors here.

use super::library;
use super::sys::{self, Driver};
use crate::err;
use crate::error::Result;
use std::ffi::{CStr, c_int};
use std::sync::Arc;

/// The oldest driver that is known to work: CUDA 12.0.
const OLDEST_DRIVER: c_int = 12000;

/// The driver of this machine.
pub struct Cuda {
    pub(super) driver: Driver,
    /// Of CUDA, such as 12040 for 12.4.
    pub(super) version: c_int,
    n_devices: usize,
}

impl Cuda {
    /// Whether there is a driver at all, of whatever version.
    pub fn has_driver(env: &dyn Fn(&str) -> Option<String>) -> bool {
        library::load(&library::DRIVER, env).is_ok()
    }

    /// Finds the driver and counts the GPUs that `CUDA_VISIBLE_DEVICES` leaves visible.
    pub fn find(env: &dyn Fn(&str) -> Option<String>) -> Result<Arc<Cuda>> {
        let library = library::load(&library::DRIVER, env)?;
        let too_old = |what: String| err!("{what}").help("update NVIDIA's driver, or use --device cpu");
        // SAFETY: it was found by the driver's name.
        let driver = unsafe { Driver::bind(library) }
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

    pub(super) fn check(&self, code: sys::Result, what: &str) -> Result<()> {
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
