//! `libdeepmd_c.so`: the C interface of DeePMD-kit, with our engine behind it.
//!
//! What LAMMPS (through DeePMD-kit's plugin), i-PI, CP2K and others call. `include/deepmd/c_api.h` says what each function does.
//! A handle is a number that names an object of [`registry`] and is never an address; a mistake of the caller or a model that
//! cannot be read is a text that `..CheckOK` gives; [`border`] is where panics end.

mod absent; // spin models and the dipole modifier: there, and refused
mod arrays; // pointers of C as slices, texts for C
mod border; // every entry goes through here
mod files; // files as bytes, a summary, selections of atoms
mod list; // neighbour lists of MD programs
#[macro_use]
mod listed; // evaluation with such a list, for one model and several
mod potential; // one model
mod deviation; // several models at once
mod registry; // what the handles stand for
mod tensor; // models of dipoles and polarizabilities

pub use absent::*;
pub use deviation::*;
pub use files::*;
pub use list::*;
pub use potential::*;
pub use tensor::*;

/// For what is allocated in here; everything else in the process keeps its own. Large buffers come from the system's allocator all the
/// same, on huge pages.
#[global_allocator]
static ALLOCATOR: phalanx::memory::Huge = phalanx::memory::Huge;

/// What C sees of an object: its number in the [`registry`].
pub type Handle = *mut std::ffi::c_void;
