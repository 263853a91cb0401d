//! The kernels of a program, each compiled by itself: when it is needed, or ahead of that on threads of its own.
//!
//! What a compiler reads costs nothing beside what it makes machine code of, so every kernel comes with all the files
//! that it may need, without the other kernels in them. A run compiles, and loads, the kernels that it uses; several at a
//! time.

use super::compile::{Compiler, Numbers};
use crate::err;
use crate::error::Result;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::thread::JoinHandle;

/// Files of CUDA C++ and how to compile them.
pub struct Program {
    /// In the order in which they need each other.
    pub files: &'static [&'static str],
    /// The compiler's options for a kind of number and an architecture, such as (9, 0).
    pub options: fn(Numbers, (i32, i32)) -> Vec<String>,
    /// Whether every run needs a kernel, so that it is compiled as soon as a GPU is opened.
    pub always: fn(&str) -> bool,
}

impl Program {
    /// Every kernel with a source that holds no other one.
    pub fn kernels(&self) -> Vec<(String, String)> {
        let mut made = Vec::new();
        let mut before = String::new();
        for file in self.files {
            let parts = parts_of(file);
            let only = |wanted: Option<&String>| -> String {
                let kept = parts.iter().filter(|(name, _)| name.is_none() || name.as_ref() == wanted);
                kept.map(|(_, text)| *text).collect()
            };
            for name in parts.iter().filter_map(|(name, _)| name.as_ref()) {
                made.push((name.clone(), before.clone() + &only(Some(name))));
            }
            before += &only(None);
        }
        made
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

/// The kernels of a program for one kind of number and one architecture.
pub struct Kernels {
    pieces: HashMap<String, Arc<Piece>>,
    workshop: Arc<Workshop>,
}

impl Kernels {
    /// Begins with those that every run needs.
    pub fn new(
        program: &Program,
        numbers: Numbers,
        capability: (i32, i32),
        env: &dyn Fn(&str) -> Option<String>,
    ) -> Kernels {
        let workshop = Workshop {
            compiler: Compiler::find(env),
            options: (program.options)(numbers, capability),
            queue: Mutex::default(),
        };
        let list = program.kernels();
        let soon: Vec<String> =
            list.iter().map(|(name, _)| name.clone()).filter(|n| (program.always)(n)).collect();
        let piece = |source| Arc::new(Piece { source, code: OnceLock::new() });
        let pieces = list.into_iter().map(|(name, source)| (name, piece(source))).collect();
        let kernels = Kernels { pieces, workshop: Arc::new(workshop) };
        soon.iter().for_each(|name| kernels.foresee(name));
        kernels
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
        let piece = self.pieces.get(name).ok_or_else(|| err!("{name} is no name of a kernel"))?;
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
mod tests {
    use super::*;

    const FILES: [&str; 2] = [
        "#define FAMILY(name) extern \"C\" __global__ void name() {}\nint a;\nextern \"C\" __global__ void one() { a++; }\n\
         INSTANCE(two, small, 7)\nINSTANCE(two, large, 8)\nint b;\n",
        "extern \"C\" __global__ void __launch_bounds__(f(1), 2)\n    three(int x) {\n    if (x) { b++; }\n}\nint c;\n",
    ];

    fn program() -> Program {
        Program { files: &FILES, options: |_, _| Vec::new(), always: |_| false }
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
    }
}
