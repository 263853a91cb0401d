//! How busy a GPU is, as NVIDIA's management library (NVML) tells it. For those who watch a run: nothing that is computed depends
//! on it.

use super::library;
use super::sys::{self, Handle, MemoryInfo, Nvml, Utilization};
use crate::err;
use crate::error::Result;
use serde::{Deserialize, Serialize};
use std::ffi::CString;

/// What a GPU was doing.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Load {
    /// Percent of the last part of a second in which a kernel ran, of this process or another.
    pub busy: u32,
    /// Bytes of memory, of all processes.
    pub used: u64,
    pub total: u64,
}

/// Asks for the load of one GPU.
pub struct Meter {
    nvml: Nvml,
    device: Handle,
}

// SAFETY: the handle names a device for as long as the library is loaded, which is until the process ends; NVML's functions may be
// called from any thread.
unsafe impl Send for Meter {}

impl Meter {
    /// For the GPU of this identity: 32 hexadecimal digits.
    pub fn open(uuid: &str, env: &dyn Fn(&str) -> Option<String>) -> Result<Meter> {
        let library = library::load(&library::NVML, env)?;
        // SAFETY: it was found by NVML's name.
        let nvml =
            unsafe { Nvml::bind(library) }.map_err(|name| err!("NVML has no {name}: it is too old"))?;
        let name = CString::new(nvml_name(uuid)).map_err(|_| err!("{uuid:?} is no identity of a GPU"))?;
        let mut device = std::ptr::null_mut();
        // SAFETY: called before anything else of NVML; the name ends with a zero, and the handle is valid for writing.
        unsafe {
            check((nvml.init)(), "start NVML")?;
            check((nvml.device_by_uuid)(name.as_ptr(), &mut device), "find this GPU through NVML")?;
        }
        Ok(Meter { nvml, device })
    }

    /// The load now; an error where this GPU does not tell, such as a part of a divided one.
    pub fn read(&self) -> Result<Load> {
        let (mut rates, mut memory) = (Utilization::default(), MemoryInfo::default());
        // SAFETY: a handle of this library, and structures that are valid for writing.
        unsafe {
            check((self.nvml.utilization)(self.device, &mut rates), "ask how busy the GPU is")?;
            check((self.nvml.memory)(self.device, &mut memory), "ask for the memory of the GPU")?;
        }
        Ok(Load { busy: rates.gpu, used: memory.used, total: memory.total })
    }
}

/// The driver gives an identity as 16 bytes, NVML wants `GPU-` and groups of digits.
fn nvml_name(uuid: &str) -> String {
    let at = |from: usize, to: usize| uuid.get(from..to).unwrap_or_default();
    format!("GPU-{}-{}-{}-{}-{}", at(0, 8), at(8, 12), at(12, 16), at(16, 20), at(20, 32))
}

fn check(code: sys::Result, what: &str) -> Result<()> {
    if code == sys::SUCCESS { Ok(()) } else { Err(err!("cannot {what}: NVML gave code {code}")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_is_written_as_nvml_wants_it() {
        assert_eq!(nvml_name("0123456789abcdef0123456789abcdef"), "GPU-01234567-89ab-cdef-0123-456789abcdef");
    }

    #[test]
    fn where_there_is_no_nvml_it_is_named() {
        let env = |name: &str| std::env::var(name).ok();
        match Meter::open("0123456789abcdef0123456789abcdef", &env).err() {
            Some(error) => assert!(error.message().contains("NVML"), "{error}"),
            None => panic!("a GPU of an invented identity was found"),
        }
    }
}
