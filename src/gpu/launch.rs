//! Kernels with the types of what they take, and how they are started.

use super::device::{Device, Stream};
use super::shared::{Named, Parameter};
use crate::Result;
use std::ffi::c_void;
use std::marker::PhantomData;

/// How a kernel is started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Launch {
    /// Of the grid. A kernel of none is not started.
    pub blocks: usize,
    /// Of a block.
    pub threads: usize,
    /// Bytes of shared memory of a block, beside what the kernel declares itself.
    pub shared: usize,
    /// Blocks that run at the same time and can wait for each other.
    pub cluster: usize,
}

impl Launch {
    /// So many blocks of so many threads, without shared memory and clusters.
    pub const fn new(blocks: usize, threads: usize) -> Launch {
        Launch { blocks, threads, shared: 0, cluster: 1 }
    }

    /// The same with shared memory for each block, bytes.
    pub const fn shared(self, bytes: usize) -> Launch {
        Launch { shared: bytes, ..self }
    }
}

/// All that a kernel takes, in its order: a tuple of [`Parameter`]s.
pub trait Parameters {
    /// The types, as CUDA C++ calls them.
    fn types() -> Vec<String>;

    /// Hands on pointers to all of them.
    fn pass<R>(&self, to: impl FnOnce(&mut [*mut c_void]) -> R) -> R;
}

macro_rules! parameters {
    ($($type:ident),*) => {
        impl<$($type: Parameter),*> Parameters for ($($type,)*) {
            fn types() -> Vec<String> {
                vec![$(<$type as Named>::c_type()),*]
            }

            #[allow(non_snake_case)]
            fn pass<R>(&self, to: impl FnOnce(&mut [*mut c_void]) -> R) -> R {
                let ($($type,)*) = self;
                to(&mut [$((&raw const *$type).cast_mut().cast()),*])
            }
        }
    };
}
parameters!();
parameters!(A);
parameters!(A, B);
parameters!(A, B, C);
parameters!(A, B, C, D);
parameters!(A, B, C, D, E);
parameters!(A, B, C, D, E, F);
parameters!(A, B, C, D, E, F, G);
parameters!(A, B, C, D, E, F, G, H);
parameters!(A, B, C, D, E, F, G, H, I);
parameters!(A, B, C, D, E, F, G, H, I, J);
parameters!(A, B, C, D, E, F, G, H, I, J, K);
parameters!(A, B, C, D, E, F, G, H, I, J, K, L);
parameters!(A, B, C, D, E, F, G, H, I, J, K, L, M);
parameters!(A, B, C, D, E, F, G, H, I, J, K, L, M, N);

/// A kernel that takes `P`.
pub struct Kernel<P> {
    name: &'static str,
    takes: PhantomData<fn(P)>,
}

impl<P> Clone for Kernel<P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P> Copy for Kernel<P> {}

impl<P> std::fmt::Debug for Kernel<P> {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

impl<P> Kernel<P> {
    /// The kernel that the source calls so. That it takes `P` is checked by the tests that compile it: see [`Signature`].
    pub const fn named(name: &'static str) -> Self {
        Kernel { name, takes: PhantomData }
    }

    pub const fn name(self) -> &'static str {
        self.name
    }
}

impl<P: Parameters> Kernel<P> {
    /// Starts it, after everything that was put into the stream before.
    ///
    /// # Safety
    ///
    /// The kernel reads and writes through the addresses among the arguments, from as many threads as `launch` says. It must
    /// stay inside memory that lives until the stream has passed this point, and keep out of what other work that may run at
    /// the same time writes.
    pub unsafe fn launch(self, device: &Device, stream: Stream, launch: Launch, arguments: P) -> Result<()> {
        // SAFETY: the types are those of the source, as tests have checked; the rest is the caller's word.
        arguments.pass(|pointers| unsafe { device.launch(stream, self.name, launch, pointers) })
    }

    /// What the compiler of the kernels compares with the source.
    pub fn signature(self) -> Signature {
        Signature { name: self.name, types: P::types }
    }
}

/// What a kernel takes, for the compiler.
#[derive(Clone, Copy)]
pub struct Signature {
    pub name: &'static str,
    types: fn() -> Vec<String>,
}

impl Signature {
    /// A statement of CUDA C++ that does not compile where the kernel takes anything else. It follows the kernel and
    /// [`super::shared::PRELUDE`].
    pub fn check(&self) -> String {
        let (name, types) = (self.name, (self.types)().join(", "));
        format!(
            "static_assert(host::Same<host::Taken<decltype(&{name})>::types, host::Types<{types}>>::value, \
             \"{name} does not take what the host gives it\");\n"
        )
    }
}

/// Declares kernels and what they take: a constant for each, and `SIGNATURES`, the list of all.
macro_rules! kernels {
    ($($(#[$doc:meta])* $constant:ident = $name:literal ($($type:ty),* $(,)?);)*) => {
        $($(#[$doc])* pub const $constant: $crate::gpu::Kernel<($($type,)*)> = $crate::gpu::Kernel::named($name);)*

        /// What all of them take.
        pub fn signatures() -> Vec<$crate::gpu::launch::Signature> {
            vec![$($constant.signature()),*]
        }
    };
}
pub(crate) use kernels;
