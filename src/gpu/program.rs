//! The kernels of a program, each compiled by itself: when it is needed, or ahead of that on threads of its own.
//!
//! What a compiler reads costs nothing beside what it makes machine code of, so every kernel comes with all the files
//! that it may need, without the other kernels in them. A run compiles, and loads, the kernels that it uses; several at a
//! time.

use super::compile::Compiler;
use super::launch::Signature;
use super::shared::PRELUDE;
use crate::err;
use crate::error::Result;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::thread::JoinHandle;

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

    /// What kernels call `real`.
    fn real(self) -> &'static str {
        if self == Numbers::F64 { "double" } else { "float" }
    }
}

/// The kernels of an engine: what a GPU is opened with.
pub struct Program {
    /// Whose kernels they are.
    pub name: &'static str,
    pub numbers: Numbers,
    /// Structures that the kernels take: [`structures!`](super::shared::structures) makes their declarations.
    pub structures: String,
    /// Files of CUDA C++, in the order in which they need each other.
    pub files: &'static [&'static str],
    /// Options of the compiler beside those for every program.
    pub options: Vec<String>,
    /// What every kernel takes.
    pub signatures: Vec<Signature>,
    /// Whether every run needs a kernel, so that it is compiled as soon as a GPU is opened.
    pub always: fn(&str) -> bool,
    /// Every kernel waits itself for the one before it (`griddepcontrol.wait`), and may be brought in while that one runs.
    pub overlaps: bool,
    /// Some kernels come in clusters of blocks, where the GPU has such.
    pub clusters: bool,
}

impl Program {
    /// Every kernel with a source that holds no other one. Tests compile it only where it takes what the host gives it: sources and
    /// signatures do not change after that, and the compiler's choices for some kernels change with the check.
    pub fn kernels(&self) -> Vec<(String, String)> {
        let mut made = Vec::new();
        let mut before = PRELUDE.to_string() + &self.structures;
        for file in self.files {
            let parts = parts_of(file);
            let only = |wanted: Option<&String>| -> String {
                let kept = parts.iter().filter(|(name, _)| name.is_none() || name.as_ref() == wanted);
                kept.map(|(_, text)| *text).collect()
            };
            for name in parts.iter().filter_map(|(name, _)| name.as_ref()) {
                let mut source = before.clone() + &only(Some(name));
                if cfg!(test) {
                    let signature = self.signatures.iter().find(|signature| signature.name == name);
                    source += &signature.map(|known| format!("\n{}", known.check())).unwrap_or_default();
                }
                made.push((name.clone(), source));
            }
            before += &only(None);
        }
        made
    }

    /// Options of the compiler for an architecture, such as (9, 0).
    pub fn options_for(&self, (major, minor): (i32, i32)) -> Vec<String> {
        let mut options = vec![
            format!("--gpu-architecture=sm_{major}{minor}"),
            "--std=c++17".to_string(),
            "-default-device".to_string(),
            format!("-DREAL={}", self.numbers.real()),
        ];
        options.extend(self.options.iter().cloned());
        options
    }
}

const KERNEL: &str = "extern \"C\" __global__ void";
/// Makes one of a family of kernels, on a line of its own: `INSTANCE(macro, its arguments...)` is `macro_argument`.
const INSTANCE: &str = "INSTANCE(";

/// Cuts a file into kernels, which have a name, and what is between them.
fn parts_of(file: &str) -> Vec<(Option<String>, &str)> {
    let (mut parts, mut rest) = (Vec::new(), file);
    loop {
        let starts = |word: &str| match rest.starts_with(word) {
            true => Some(0),
            false => rest.find(&format!("\n{word}")).map(|at| at + 1),
        };
        let Some(at) = [KERNEL, INSTANCE].into_iter().filter_map(starts).min() else { break };
        let (text, kernel) = rest.split_at(at);
        let (name, size) = if kernel.starts_with(INSTANCE) { instance_of(kernel) } else { kernel_of(kernel) };
        parts.push((None, text));
        parts.push((Some(name), &kernel[..size]));
        rest = &kernel[size..];
    }
    parts.push((None, rest));
    parts
}

/// The bytes up to where what `open` opens for the first time is closed again, and no more.
fn balanced(text: &str, open: char, close: char) -> usize {
    let mut depth = 0;
    for (at, c) in text.char_indices() {
        depth += i32::from(c == open) - i32::from(c == close);
        if c == close && depth == 0 {
            return at + 1;
        }
    }
    text.len()
}

/// Name and length of the kernel at the start of a text.
fn kernel_of(text: &str) -> (String, usize) {
    let mut name = text[KERNEL.len()..].trim_start();
    if name.starts_with("__launch_bounds__") {
        name = name[balanced(name, '(', ')')..].trim_start();
    }
    let name = name.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default();
    (name.to_string(), balanced(text, '{', '}'))
}

/// Name and length of the line `INSTANCE(product_tiny, nn, ...)` at the start of a text: `product_tiny_nn`.
fn instance_of(text: &str) -> (String, usize) {
    let size = balanced(text, '(', ')');
    let words: Vec<&str> = text[INSTANCE.len()..size - 1].split(',').map(str::trim).collect();
    (words[..words.len().min(2)].join("_"), size)
}

/// A kernel and, once it is there, its machine code.
struct Piece {
    source: String,
    code: OnceLock<Result<Vec<u8>>>,
}

/// Kernels that are wanted soon, and the threads that compile them.
#[derive(Default)]
struct Queue {
    waiting: VecDeque<Arc<Piece>>,
    at_work: usize,
    threads: Vec<JoinHandle<()>>,
}

/// What the threads share.
struct Workshop {
    compiler: Compiler,
    options: Vec<String>,
    queue: Mutex<Queue>,
}

impl Workshop {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Machine code from the cache or made now; whoever comes while it is made waits for it.
    fn code<'a>(&self, piece: &'a Piece) -> &'a Result<Vec<u8>> {
        piece.code.get_or_init(|| self.compiler.code(&piece.source, &self.options))
    }

    fn work(&self) {
        loop {
            let mut queue = self.queue();
            let Some(piece) = queue.waiting.pop_front() else {
                queue.at_work -= 1;
                return;
            };
            drop(queue);
            self.code(&piece);
        }
    }
}

/// The kernels of a program for one architecture.
pub struct Kernels {
    program: &'static str,
    pieces: HashMap<String, Arc<Piece>>,
    /// One that every run needs.
    first: Option<String>,
    workshop: Arc<Workshop>,
}

impl Kernels {
    /// Begins with those that every run needs.
    pub fn new(program: &Program, capability: (i32, i32), env: &dyn Fn(&str) -> Option<String>) -> Kernels {
        let workshop = Workshop {
            compiler: Compiler::find(env),
            options: program.options_for(capability),
            queue: Mutex::default(),
        };
        let list = program.kernels();
        let soon: Vec<String> =
            list.iter().map(|(name, _)| name.clone()).filter(|n| (program.always)(n)).collect();
        let piece = |source| Arc::new(Piece { source, code: OnceLock::new() });
        let pieces = list.into_iter().map(|(name, source)| (name, piece(source))).collect();
        let first = soon.first().cloned();
        let kernels = Kernels { program: program.name, pieces, first, workshop: Arc::new(workshop) };
        soon.iter().for_each(|name| kernels.foresee(name));
        kernels
    }

    /// One that every run needs.
    pub fn first(&self) -> Option<&str> {
        self.first.as_deref()
    }

    /// Compiles a kernel beside what the caller goes on with, unless it is there.
    pub fn foresee(&self, name: &str) {
        /// Of a thread, bytes: compilers are deep.
        const STACK: usize = 16 << 20;
        let Some(piece) = self.pieces.get(name).filter(|piece| piece.code.get().is_none()) else { return };
        let mut queue = self.workshop.queue();
        if queue.waiting.iter().any(|other| Arc::ptr_eq(other, piece)) {
            return;
        }
        queue.waiting.push_back(piece.clone());
        if queue.at_work < std::thread::available_parallelism().map_or(1, |n| n.get()) {
            let workshop = self.workshop.clone();
            // Without a thread whoever needs the kernel compiles it.
            if let Ok(thread) = std::thread::Builder::new().stack_size(STACK).spawn(move || workshop.work()) {
                queue.at_work += 1;
                queue.threads.push(thread);
            }
        }
    }

    /// The machine code of a kernel.
    pub fn code(&self, name: &str) -> Result<&[u8]> {
        let piece = self.pieces.get(name);
        let piece = piece.ok_or_else(|| err!("{name} is no name of a kernel of {}", self.program))?;
        self.workshop.code(piece).as_deref().map_err(Clone::clone)
    }
}

impl Drop for Kernels {
    /// A compiler must not be at work when the process ends.
    fn drop(&mut self) {
        let mut queue = self.workshop.queue();
        queue.waiting.clear();
        let threads = std::mem::take(&mut queue.threads);
        drop(queue);
        for thread in threads {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::gpu::compile;
    use crate::gpu::launch::Kernel;
    use crate::gpu::library;
    use crate::gpu::sys::Nvrtc;
    use std::collections::HashSet;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// Compiles every kernel of some programs for GPUs of two generations; says so where there is no compiler.
    pub(crate) fn compile_all(programs: &[Program]) {
        let library = match library::load(&library::NVRTC, &|name| std::env::var(name).ok()) {
            Ok(library) => library,
            Err(e) => return crate::skip::skip(e.message()),
        };
        // SAFETY: it was found by NVRTC's name.
        let nvrtc = unsafe { Nvrtc::bind(library) }.unwrap();
        let mut cases = Vec::new();
        for (k, program) in programs.iter().enumerate() {
            // What is special to an architecture is not special to a kind of number: the oldest for the first one alone.
            for &capability in if k == 0 { &[(8, 0), (9, 0)][..] } else { &[(9, 0)] } {
                let options = program.options_for(capability);
                cases.extend(program.kernels().into_iter().map(|kernel| (kernel, options.clone())));
            }
        }
        let next = AtomicUsize::new(0);
        let work = || {
            while let Some(((name, source), options)) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                let code = compile::compile(&nvrtc, source, options);
                let code = code.unwrap_or_else(|e| panic!("{name} {options:?}: {e}"));
                assert!(code.windows(name.len()).any(|bytes| bytes == name.as_bytes()), "{name}");
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..std::thread::available_parallelism().map_or(1, |n| n.get()) {
                scope.spawn(work);
            }
        });
    }

    /// Every kernel of the sources has a signature, and every signature a kernel.
    pub(crate) fn all_are_declared(program: &Program) {
        let declared: HashSet<String> = program.signatures.iter().map(|s| s.name.to_string()).collect();
        let there: HashSet<String> = program.kernels().into_iter().map(|(name, _)| name).collect();
        assert_eq!(declared, there, "{}", program.name);
    }

    const FILES: [&str; 2] = [
        "#define FAMILY(name) extern \"C\" __global__ void name() {}\nint a;\nextern \"C\" __global__ void one() { a++; }\n\
         INSTANCE(two, small, 7)\nINSTANCE(two, large, 8)\nint b;\n",
        "extern \"C\" __global__ void __launch_bounds__(f(1), 2)\n    three(int x) {\n    if (x) { b++; }\n}\nint c;\n",
    ];

    fn program() -> Program {
        Program {
            name: "a test",
            numbers: Numbers::F64,
            structures: String::new(),
            files: &FILES,
            options: Vec::new(),
            signatures: vec![Kernel::<(i32,)>::named("three").signature()],
            always: |_| false,
            overlaps: false,
            clusters: false,
        }
    }

    #[test]
    fn a_kernel_comes_with_all_that_is_no_kernel_before_it() {
        let kernels = program().kernels();
        let names: Vec<&str> = kernels.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["one", "two_small", "two_large", "three"]);
        let source = &kernels[2].1;
        assert!(source.contains("INSTANCE(two, large, 8)") && source.contains("int a;\n"), "{source}");
        assert!(
            !source.contains("small") && !source.contains("one()") && !source.contains("int c"),
            "{source}"
        );
        let last = &kernels[3].1;
        assert!(last.contains("int b;\n") && last.contains("if (x) { b++; }\n}\nint c;\n"), "{last}");
        assert!(!last.contains("INSTANCE") && last.contains("#define FAMILY"), "{last}");
        assert!(last.contains("decltype(&three)") && last.contains("host::Types<int>"), "{last}");
    }
}
