//! How a system is stored. A new format is one file here and one line in [`FORMATS`].

mod hdf5;
mod lmdb;
mod npy;
mod raw;
mod text;

use crate::error::Result;
use crate::{bail, err};
use std::borrow::Cow;
use std::path::Path;

/// Every format, asked in this order.
pub const FORMATS: [&dyn Format; 4] = [&npy::Npy, &raw::Raw, &lmdb::Lmdb, &hdf5::Hdf5];

/// A way to store systems.
pub trait Format: Sync {
    /// For messages.
    fn name(&self) -> &'static str;
    /// Whether `path` looks like a system of this format. Reads no array.
    fn recognises(&self, path: &str) -> bool;
    /// Opens a system that was recognised. Reads names, types and shapes only.
    fn open(&self, path: &str) -> Result<Box<dyn Source>>;
}

/// A system as stored: types, and sets of named arrays. Lives only while a system is opened.
pub trait Source {
    /// The file of the types, for messages.
    fn types_place(&self) -> String;
    /// Where the type of one atom is written, for messages.
    fn type_place(&self, atom: usize) -> String;
    /// `[n_atoms]`, as written.
    fn types(&self) -> Result<Vec<i64>>;
    /// The file of the names of the types, for messages.
    fn type_map_place(&self) -> String;
    /// Names of the types, where the system has them.
    fn type_map(&self) -> Result<Option<Vec<String>>>;
    /// Whether types of frames without names of their own are those of the model.
    fn types_may_be_the_models(&self) -> bool {
        false
    }
    /// Whether the system says that it has open boundaries.
    fn nopbc(&self) -> bool;
    /// The sets in order, by name. A format without sets has one.
    fn sets(&self) -> &[String];
    /// Where array `name` of a set would be, for messages.
    fn array_place(&self, set: usize, name: &str) -> String;
    /// An array of a set, where it exists. Reads its shape only.
    fn array(&self, set: usize, name: Cow<'static, str>) -> Result<Option<Box<dyn Array>>>;
}

/// What the elements of an array are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Float,
    Integer,
}

/// An array on disk. Opened for each read and closed again.
pub trait Array: Send + Sync {
    /// The file, for messages.
    fn place(&self) -> String;
    /// As stored; the first dimension is frames.
    fn shape(&self) -> &[usize];
    fn kind(&self) -> Kind;
    /// Whether it is one row of numbers that can be read as rows of any length.
    fn is_one_row(&self) -> bool {
        false
    }
    /// Reads `count` frames from frame `first` on.
    ///
    /// - out  overwritten  `[count, width]`, row-major
    fn read(&self, out: &mut [f64], first: usize, count: usize) -> Result<()>;
}

/// Opens the system at `path` in whichever format it has.
pub fn open(path: &str) -> Result<Box<dyn Source>> {
    if let Some(format) = FORMATS.iter().find(|format| format.recognises(path)) {
        return format.open(path);
    }
    Err(why_not(path))
}

fn why_not(path: &str) -> crate::error::Error {
    let folder = Path::new(path);
    if !folder.is_dir() {
        return err!("{path}: no such system").help(
            "a system is a folder with type.raw, or file.hdf5#/group; \
             relative paths start at the folder that dp was started in",
        );
    }
    if !folder.join("type.raw").is_file() {
        return err!("{path}: found no type.raw in this folder").help(
            "a system is a folder with type.raw (the type of each atom) and set.* folders with coord.npy, box.npy, ...",
        );
    }
    err!("{path}: found neither a set.* folder nor coord.raw next to type.raw")
        .help("frames are stored in set.000/coord.npy, set.000/box.npy, ..., or in coord.raw, box.raw, ...")
}

/// The one width that fits an array of `shape` with `n_frames` frames. A single frame may lack the first dimension.
pub(crate) fn row_width(shape: &[usize], n_frames: usize) -> Result<usize> {
    let size: usize = shape.iter().product();
    if shape.first() == Some(&n_frames) {
        return Ok(shape[1..].iter().product());
    }
    if n_frames == 1 {
        return Ok(size);
    }
    bail!("{} frames, but coord holds {n_frames}", shape.first().copied().unwrap_or(1))
}

pub use hdf5::systems_in_file;
pub use lmdb::{is_lmdb, systems_in_folder};
