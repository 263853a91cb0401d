//! Compiles kernels with NVRTC and keeps the results on disk.

use super::library;
use super::sys::{Handle, Nvrtc, SUCCESS};
use crate::err;
use crate::error::Result;
use std::ffi::{CString, c_char, c_int};
use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long a process waits for another one that compiles the same kernel. It takes a few seconds.
const PATIENCE: Duration = Duration::from_secs(60);
/// Between two looks at what the other one does.
const LOOK: Duration = Duration::from_millis(20);

/// NVRTC, where there is one, and the folder in which machine code is kept.
pub struct Compiler {
    /// With its version.
    nvrtc: Result<(Nvrtc, String)>,
    folder: Option<PathBuf>,
    /// The user knows that kernels are compiled.
    told: AtomicBool,
}

impl Compiler {
    pub fn find(env: &dyn Fn(&str) -> Option<String>) -> Compiler {
        let nvrtc = library::load(&library::NVRTC, env).and_then(|library| {
            // SAFETY: it was found by NVRTC's name.
            let nvrtc =
                unsafe { Nvrtc::bind(library) }.map_err(|name| err!("NVRTC has no {name}: it is too old"))?;
            let (mut major, mut minor) = (0, 0);
            // SAFETY: both are valid for writing.
            unsafe { (nvrtc.version)(&mut major, &mut minor) };
            Ok((nvrtc, format!("nvrtc{major}.{minor}")))
        });
        Compiler { nvrtc, folder: cache_folder(env), told: AtomicBool::new(false) }
    }

    /// Machine code of a source: from the cache, or compiled now and kept there.
    pub fn code(&self, source: &str, options: &[String]) -> Result<Vec<u8>> {
        let key = xxhash_rust::xxh3::xxh3_128((source.to_string() + &options.join(" ")).as_bytes());
        let (nvrtc, version) = match &self.nvrtc {
            Ok(found) => found,
            Err(e) => {
                // Whatever version compiled it, the machine code is for this source and this architecture.
                let known = self.folder.as_deref().and_then(|folder| any_version(folder, key));
                return known.ok_or_else(|| e.clone());
            }
        };
        let Some(folder) = &self.folder else { return self.compile(nvrtc, source, options) };
        let path = folder.join(format!("{key:032x}-{version}.cubin"));
        if let Some(known) = read(&path) {
            return Ok(known);
        }
        let turn = Turn::wait(folder.join(format!("{key:032x}.lock")), &path);
        if let Some(known) = read(&path) {
            return Ok(known);
        }
        let code = self.compile(nvrtc, source, options)?;
        if let Err(e) = keep(&path, &code) {
            log::warn!("cannot keep a compiled kernel in {}: {e}", path.display());
        }
        drop(turn);
        Ok(code)
    }

    fn compile(&self, nvrtc: &Nvrtc, source: &str, options: &[String]) -> Result<Vec<u8>> {
        if !self.told.swap(true, Ordering::Relaxed) {
            log::info!("Compiling GPU kernels (once for this machine)...");
        }
        compile(nvrtc, source, options)
    }
}

/// Of processes that start together, ranks of a host say, one compiles a kernel; the others find it in the cache.
struct Turn {
    path: PathBuf,
    /// Locked; the system unlocks it also where the process is killed.
    _file: File,
}

impl Turn {
    /// Waits until nobody else compiles what will be kept at `wanted`, or it is there. `None`: where nothing can be
    /// locked, or somebody takes too long, everyone compiles for himself.
    fn wait(path: PathBuf, wanted: &Path) -> Option<Turn> {
        std::fs::create_dir_all(path.parent()?).ok()?;
        let file = File::options().create(true).append(true).open(&path).ok()?;
        let begin = Instant::now();
        loop {
            match file.try_lock() {
                Ok(()) => return Some(Turn { path, _file: file }),
                Err(TryLockError::Error(_)) => return None,
                Err(TryLockError::WouldBlock) if begin.elapsed() > PATIENCE || wanted.exists() => {
                    return None;
                }
                Err(TryLockError::WouldBlock) => std::thread::sleep(LOOK),
            }
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        // Who has opened it already will find the machine code before he compiles; nobody else needs it.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// `$XDG_CACHE_HOME/phalanx` or `~/.cache/phalanx`.
fn cache_folder(env: &dyn Fn(&str) -> Option<String>) -> Option<PathBuf> {
    let absolute = |path: &PathBuf| path.is_absolute();
    let base = env("XDG_CACHE_HOME").map(PathBuf::from).filter(absolute);
    let base = base.or_else(|| env("HOME").map(|home| Path::new(&home).join(".cache")).filter(absolute));
    base.map(|base| base.join("phalanx"))
}

/// The last 16 bytes of a kept file say that it is whole.
fn checksum(code: &[u8]) -> [u8; 16] {
    xxhash_rust::xxh3::xxh3_128(code).to_le_bytes()
}

fn read(path: &Path) -> Option<Vec<u8>> {
    let mut bytes = std::fs::read(path).ok()?;
    let size = bytes.len().checked_sub(16)?;
    let whole = checksum(&bytes[..size]) == bytes[size..];
    bytes.truncate(size);
    whole.then_some(bytes)
}

fn any_version(folder: &Path, key: u128) -> Option<Vec<u8>> {
    let prefix = format!("{key:032x}-");
    let entries = std::fs::read_dir(folder).ok()?.flatten();
    entries.filter(|e| e.file_name().to_string_lossy().starts_with(&prefix)).find_map(|e| read(&e.path()))
}

/// Complete or absent: ranks that start together may all write it.
fn keep(path: &Path, code: &[u8]) -> std::io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder)?;
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    std::io::Write::write_all(&mut file, code)?;
    std::io::Write::write_all(&mut file, &checksum(code))?;
    file.persist(path).map_err(|e| e.error)?;
    Ok(())
}

/// Compiles a program.
pub fn compile(nvrtc: &Nvrtc, source: &str, options: &[String]) -> Result<Vec<u8>> {
    let text = |s: &str| CString::new(s).map_err(|_| err!("a zero byte in the text of a kernel"));
    let (source, name) = (text(source)?, text("phalanx.cu")?);
    let options: Vec<CString> = options.iter().map(|o| text(o)).collect::<Result<_>>()?;
    let pointers: Vec<*const c_char> = options.iter().map(|o| o.as_ptr()).collect();
    let mut program: Handle = std::ptr::null_mut();
    let none = std::ptr::null();
    // SAFETY: all strings outlive the calls; sizes are asked for before buffers are filled.
    unsafe {
        let code = (nvrtc.create_program)(&mut program, source.as_ptr(), name.as_ptr(), 0, none, none);
        if code != SUCCESS {
            return Err(err!("NVRTC cannot take the kernels: code {code}"));
        }
        let code = (nvrtc.compile_program)(program, pointers.len() as c_int, pointers.as_ptr());
        let mut size = 0;
        (nvrtc.get_log_size)(program, &mut size);
        let mut log = vec![0u8; size];
        (nvrtc.get_log)(program, log.as_mut_ptr().cast());
        let log = String::from_utf8_lossy(&log).trim_end_matches('\0').trim().to_string();
        if code != SUCCESS {
            (nvrtc.destroy_program)(&mut program);
            return Err(err!("NVRTC cannot compile the kernels: code {code}\n{log}")
                .help("an NVRTC of CUDA 12 or 13 is wanted, one that knows this GPU"));
        }
        (nvrtc.get_cubin_size)(program, &mut size);
        let mut cubin = vec![0u8; size];
        (nvrtc.get_cubin)(program, cubin.as_mut_ptr().cast());
        (nvrtc.destroy_program)(&mut program);
        Ok(cubin)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_processes_that_compile_the_same_one_at_a_time_does_until_it_is_there() {
        let folder = tempfile::tempdir().unwrap();
        let (lock, wanted) = (folder.path().join("deep/7.lock"), folder.path().join("deep/7-nvrtc1.2.cubin"));
        let mine = Turn::wait(lock.clone(), &wanted).expect("nobody else is there");
        std::thread::scope(|scope| {
            let other = scope.spawn(|| Turn::wait(lock.clone(), &wanted).is_none());
            std::thread::sleep(3 * LOOK);
            assert!(!other.is_finished(), "it waits");
            keep(&wanted, b"machine code").unwrap();
            assert!(other.join().unwrap(), "what it waited for is there");
        });
        drop(mine);
        assert!(!lock.exists());
    }

    #[test]
    fn a_kept_file_is_whole_or_not_used() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep/00000000000000000000000000000007-nvrtc1.2.cubin");
        keep(&path, b"machine code").unwrap();
        assert_eq!(read(&path).unwrap(), b"machine code");
        assert_eq!(any_version(path.parent().unwrap(), 7).unwrap(), b"machine code");
        assert!(any_version(path.parent().unwrap(), 8).is_none());
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[3] ^= 1;
        std::fs::write(&path, &bytes).unwrap();
        assert!(read(&path).is_none(), "a broken file is compiled anew");
        std::fs::write(&path, b"short").unwrap();
        assert!(read(&path).is_none());
    }

    #[test]
    fn the_cache_follows_the_environment() {
        let with = |name: &'static str, value: &'static str| {
            cache_folder(&|asked| (asked == name).then(|| value.to_string()))
        };
        assert_eq!(with("XDG_CACHE_HOME", "/c").unwrap(), Path::new("/c/phalanx"));
        assert_eq!(with("HOME", "/h").unwrap(), Path::new("/h/.cache/phalanx"));
        assert!(with("HOME", "not absolute").is_none());
    }
}
