//! Compiles the kernels with NVRTC and keeps the result on disk.

use super::layout;
use super::library;
use super::products;
use super::sys::{Handle, Nvrtc, SUCCESS};
use crate::err;
use crate::error::Result;
use std::ffi::{CString, c_char, c_int};
use std::path::{Path, PathBuf};

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

/// Machine code for one architecture, such as (9, 0): from the cache, or compiled now and kept there.
pub fn cubin(
    numbers: Numbers,
    capability: (i32, i32),
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<Vec<u8>> {
    program(&SOURCES.concat(), &options(numbers, capability), env)
}

/// Machine code of any program: from the cache, or compiled now and kept there.
pub fn program(source: &str, options: &[String], env: &dyn Fn(&str) -> Option<String>) -> Result<Vec<u8>> {
    let key = xxhash_rust::xxh3::xxh3_128((source.to_string() + &options.join(" ")).as_bytes());
    let folder = cache_folder(env);
    let nvrtc = library::load(&library::NVRTC, env);
    let Ok(library) = nvrtc else {
        // Whatever version compiled it, the machine code is for this source and this architecture.
        let known = folder.as_deref().and_then(|folder| any_version(folder, key));
        return known.ok_or_else(|| nvrtc.err().unwrap_or_else(|| err!("cannot load NVRTC")));
    };
    let nvrtc = Nvrtc::bind(library).map_err(|name| err!("NVRTC has no {name}: it is too old"))?;
    let (mut major, mut minor) = (0, 0);
    // SAFETY: both are valid for writing.
    unsafe { (nvrtc.version)(&mut major, &mut minor) };
    let path = folder.map(|folder| folder.join(format!("{key:032x}-nvrtc{major}.{minor}.cubin")));
    if let Some(known) = path.as_deref().and_then(read) {
        return Ok(known);
    }
    log::info!("Compiling GPU kernels (once for this machine)...");
    let code = compile(&nvrtc, source, options)?;
    if let Some(path) = path
        && let Err(e) = keep(&path, &code)
    {
        log::warn!("cannot keep the compiled kernels in {}: {e}", path.display());
    }
    Ok(code)
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
        let check = |numbers: Numbers, capability: (i32, i32)| {
            let code = compile(&nvrtc, &SOURCES.concat(), &options(numbers, capability));
            assert!(code.map_err(|e| panic!("{numbers:?} {capability:?}: {e}")).unwrap().len() > 10_000);
        };
        std::thread::scope(|scope| {
            for numbers in [Numbers::F64, Numbers::F32, Numbers::Tf32, Numbers::Bf16] {
                for capability in [(8, 0), (9, 0)] {
                    let check = &check;
                    scope.spawn(move || check(numbers, capability));
                }
            }
        });
    }

    #[test]
    fn every_kernel_waits_for_the_one_before_it() {
        // Kernels are brought in while the one before them runs: one that does not wait reads what is not there yet.
        let source = SOURCES.concat();
        let kernels: Vec<&str> = source.split("__global__").skip(1).collect();
        for kernel in &kernels {
            let name: String = kernel.chars().take(120).collect();
            let body = kernel.split("\n}\n").next().unwrap_or_default();
            let waits = ["after_previous();", "::run(p);", "_of_row<"];
            assert!(waits.iter().any(|call| body.contains(call)) || kernel.contains("PRODUCT("), "{name}");
        }
        let run = source.split("void run(const Products& p) {").nth(1).expect("products have one body");
        let before_a = run.split("load_a.start(").next().unwrap_or_default();
        assert!(before_a.contains("after_previous();"), "products wait before they read what a kernel made");
        for shared in ["descriptor_of_row", "tangent_of_row", "adjoint_of_row", "features_of_row"] {
            let body =
                source.split(&format!("void {shared}(")).nth(1).expect("kernels of rows have one body");
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
