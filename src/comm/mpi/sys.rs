//! MPI as its vendors wrote it: three binary interfaces of the same functions.
//!
//! Handles travel as `usize`. Open MPI's and the standard's are pointers; MPICH's are C ints, and a callee that
//! expects one reads the low 32 bits of the register or slot, in the calling conventions of x86-64 and AArch64.
//! Requests are written through a pointer to 8 bytes, of which MPICH uses the first four (little endian).

use std::ffi::{c_char, c_int, c_void};

/// A communicator, datatype or error handler.
pub type Handle = usize;
/// Room for a request of any interface.
pub type Request = u64;

pub type GetLibraryVersion = unsafe extern "C" fn(*mut c_char, *mut c_int) -> c_int;
pub type InitThread = unsafe extern "C" fn(*mut c_int, *mut *mut *mut c_char, c_int, *mut c_int) -> c_int;
pub type CommNumber = unsafe extern "C" fn(Handle, *mut c_int) -> c_int;
pub type CommSetErrhandler = unsafe extern "C" fn(Handle, Handle) -> c_int;
pub type Isend =
    unsafe extern "C" fn(*const c_void, c_int, Handle, c_int, c_int, Handle, *mut Request) -> c_int;
pub type Irecv =
    unsafe extern "C" fn(*mut c_void, c_int, Handle, c_int, c_int, Handle, *mut Request) -> c_int;
pub type Test = unsafe extern "C" fn(*mut Request, *mut c_int, *mut c_void) -> c_int;
pub type ErrorString = unsafe extern "C" fn(c_int, *mut c_char, *mut c_int) -> c_int;
pub type Abort = unsafe extern "C" fn(Handle, c_int) -> c_int;
pub type Plain = unsafe extern "C" fn() -> c_int;
pub type AbiGetVersion = unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int;

/// Longest text that any of the libraries writes (MPI_MAX_LIBRARY_VERSION_STRING of MPICH).
pub const TEXT: usize = 8192;

/// The values behind MPI's names.
#[derive(Debug, Clone, Copy)]
pub struct Constants {
    /// MPI_COMM_WORLD
    pub world: Handle,
    /// MPI_BYTE
    pub byte: Handle,
    /// MPI_ERRORS_RETURN
    pub errors_return: Handle,
    /// MPI_STATUS_IGNORE
    pub status_ignore: usize,
    /// MPI_THREAD_SERIALIZED
    pub serialized: c_int,
}

/// MPICH 3 and 4, Intel MPI, MVAPICH, Cray MPI: the ABI initiative of 2014.
pub const MPICH: Constants = Constants {
    world: 0x4400_0000,
    byte: 0x4c00_010d,
    errors_return: 0x5400_0001,
    status_ignore: 1,
    serialized: 2,
};

/// The standard interface of MPI 5.0.
pub const STANDARD: Constants =
    Constants { world: 0x101, byte: 0x247, errors_return: 0x143, status_ignore: 0, serialized: 2048 };

/// Open MPI 4 and 5: handles are addresses of these symbols.
pub const OPEN_MPI_SYMBOLS: [&[u8]; 3] =
    [b"ompi_mpi_comm_world\0", b"ompi_mpi_byte\0", b"ompi_mpi_errors_return\0"];

/// Open MPI, from the addresses of [`OPEN_MPI_SYMBOLS`].
pub fn open_mpi([world, byte, errors_return]: [Handle; 3]) -> Constants {
    Constants { world, byte, errors_return, status_ignore: 0, serialized: 2 }
}
