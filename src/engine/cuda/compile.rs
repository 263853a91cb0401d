//! Compiles kernels with NVRTC and keeps the results on disk.

use super::kernels::Program;
use super::layout;
use super::library;
use super::products;
use super::sys::{Handle, Nvrtc, SUCCESS};
use crate::err;
use crate::error::Result;
use std::ffi::{CString, c_char, c_int};
use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How numbers are kept and multiplied on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Numbers {
    /// Double precision throughout.
    F64,
    /// Single precision; products carry all bits of a float but the last.
    F32,
    /// Single precision with products of ten-bit mantissas.
    Tf32,
    /// Single precision with products of seven-bit mantissas, summed up in single precision.
    Bf16,
}

impl Numbers {
    /// Bytes of a number.
    pub fn size(self) -> usize {
        if self == Numbers::F64 { 8 } else { 4 }
    }

    fn defines(self) -> [String; 2] {
        let (real, products) = match self {
            Numbers::F64 => ("double", 64),
            Numbers::F32 => ("float", 32),
            Numbers::Tf32 => ("float", 19),
            Numbers::Bf16 => ("float", 16),
        };
        [format!("-DREAL={real}"), format!("-DPRODUCTS={products}")]
    }
}

/// The files of one program, in the order in which they need each other.
const SOURCES: [&str; 9] = [
    include_str!("kernels/ptx.cu"),
    include_str!("kernels/common.cu"),
    include_str!("kernels/product.cu"),
    include_str!("kernels/embedding.cu"),
    include_str!("kernels/pairs.cu"),
    include_str!("kernels/descriptor.cu"),
    include_str!("kernels/direct.cu"),
    include_str!("kernels/loss.cu"),
    include_str!("kernels/update.cu"),
];

/// The kernels of Deep Potential. Which products are needed shows with the first batch; the embedding nets themselves are
/// evaluated for few models.
pub const PROGRAM: Program = Program {
    files: &SOURCES,
    options,
    always: |kernel| !kernel.starts_with("product_") && !kernel.starts_with("direct_"),
};

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
            let nvrtc = Nvrtc::bind(library).map_err(|name| err!("NVRTC has no {name}: it is too old"))?;
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

fn options(numbers: Numbers, (major, minor): (i32, i32)) -> Vec<String> {
    let mut options = vec![
        format!("--gpu-architecture=sm_{major}{minor}"),
        "--std=c++17".to_string(),
        "-default-device".to_string(),
    ];
    options.extend(numbers.defines());
    options.extend(products::defines(numbers));
    options.extend(layout::sizes().into_iter().map(|(name, bytes)| format!("-D{name}_BYTES={bytes}")));
    options
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
    use std::sync::atomic::AtomicUsize;

    fn env(name: &str) -> Option<String> {
        std::env::var(name).ok()
    }

    #[test]
    fn every_kernel_compiles_for_every_kind_of_number() {
        let library = match library::load(&library::NVRTC, &env) {
            Ok(library) => library,
            Err(e) => return println!("every_kernel_compiles: skipped, {}", e.message()),
        };
        let nvrtc = Nvrtc::bind(library).unwrap();
        let (kernels, next) = (PROGRAM.kernels(), AtomicUsize::new(0));
        let kinds = [Numbers::F64, Numbers::F32, Numbers::Tf32, Numbers::Bf16];
        let targets = kinds.into_iter().flat_map(|numbers| [(numbers, (8, 0)), (numbers, (9, 0))]);
        let cases: Vec<_> =
            targets.flat_map(|target| kernels.iter().map(move |kernel| (target, kernel))).collect();
        std::thread::scope(|scope| {
            for _ in 0..std::thread::available_parallelism().map_or(1, |n| n.get()) {
                scope.spawn(|| {
                    while let Some(((numbers, capability), (name, source))) =
                        cases.get(next.fetch_add(1, Ordering::Relaxed))
                    {
                        let code = compile(&nvrtc, source, &options(*numbers, *capability));
                        let code = code.unwrap_or_else(|e| panic!("{name} {numbers:?} {capability:?}: {e}"));
                        assert!(code.windows(name.len()).any(|bytes| bytes == name.as_bytes()), "{name}");
                    }
                });
            }
        });
    }

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
    fn every_kernel_waits_for_the_one_before_it() {
        // Kernels are brought in while the one before them runs: one that does not wait reads what is not there yet.
        let source = SOURCES.concat();
        let kernels: Vec<&str> = source.split("__global__").skip(1).collect();
        for kernel in &kernels {
            let name: String = kernel.chars().take(120).collect();
            let body = kernel.split("\n}\n").next().unwrap_or_default();
            let waits = ["after_previous();", "::run(p);", "_of_row<", "_of_tiles<", " describe<"];
            assert!(waits.iter().any(|call| body.contains(call)), "{name}");
        }
        let run = source.split("void run(const Products& p) {").nth(1).expect("products have one body");
        let before_a = run.split("load_a.start(").next().unwrap_or_default();
        assert!(before_a.contains("after_previous();"), "products wait before they read what a kernel made");
        let bodies = [
            "descriptor_of_row",
            "tangent_of_row",
            "adjoint_of_row",
            "features_of_row",
            "nets_of_tiles",
            "adjoint_of_tiles",
            "describe",
        ];
        for shared in bodies {
            let body = source
                .split(&format!("void {shared}("))
                .nth(1)
                .expect("kernels of rows and tiles have one body");
            let body = body.split("\n}\n").next().unwrap_or_default();
            assert!(body.contains("after_previous();"), "{shared}");
        }
        assert!(kernels.len() > 15, "{} kernels", kernels.len());
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
