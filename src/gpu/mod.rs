//! One GPU: its driver, memory, streams and kernels. This layer knows no model.
//!
//! An engine hands over its kernels as a [`Program`]: sources, options, and what each kernel takes. They are compiled with
//! NVRTC when they are first needed ([`program`]) and kept on disk ([`compile`]). The driver is found at run time
//! ([`library`], [`driver`]). Three kinds of mistakes cannot be made from outside:
//!
//! - Memory has a type ([`memory::Buffer`]), and copies stay inside it.
//! - A structure that host and kernels share has one definition ([`shared`]), from which the kernels' declaration is made.
//! - A kernel has a type ([`launch::Kernel`]): starting it takes exactly the arguments that the engine has declared for it,
//!   and tests compare that with the source, by the compiler of the kernels.
//!
//! What is left is `unsafe`: where kernels read and write is up to the addresses that they are given.

pub mod sys;
pub mod library;
pub mod driver;
pub mod shared;
pub mod launch;
pub mod compile;
pub mod program;
pub mod device;
pub mod memory;
pub mod staging;
pub mod record;
pub mod nccl;
pub mod load;

pub use device::{Device, Stream};
pub use driver::Cuda;
pub use launch::{Kernel, Launch};
pub use memory::{Buffer, Pinned};
pub use program::{Numbers, Program};
pub use record::{Event, Graph};
pub(crate) use shared::structures;
pub use shared::{Ptr, Real};
pub use sys::DevicePtr;
