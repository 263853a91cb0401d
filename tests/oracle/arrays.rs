//! Arrays of numbers from files of NumPy.

use phalanx::{Result, err};
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;

/// The numbers of an npy file.
pub fn read_npy(path: &Path) -> Result<Vec<f64>> {
    let file = File::open(path).and_then(|file| numbers(BufReader::new(file)));
    file.map_err(|e| err!("{}: {e}", path.display()))
}

/// All arrays of an npz file by their names.
pub fn read_npz(path: &Path) -> Result<HashMap<String, Vec<f64>>> {
    unpack(path).map_err(|e| err!("{}: {e}", path.display()))
}

/// An npz file is a zip archive of npy files.
fn unpack(path: &Path) -> io::Result<HashMap<String, Vec<f64>>> {
    let mut archive = zip::ZipArchive::new(BufReader::new(File::open(path)?))?;
    let mut arrays = HashMap::new();
    for k in 0..archive.len() {
        let file = archive.by_index(k)?;
        let Some(name) = file.name().strip_suffix(".npy").map(str::to_owned) else { continue };
        arrays.insert(name, numbers(file)?);
    }
    Ok(arrays)
}

/// The numbers of an array of any type.
fn numbers(npy: impl Read) -> io::Result<Vec<f64>> {
    let npy = npyz::NpyFile::new(npy)?;
    let descr = npy.dtype().descr();
    let kind = descr.trim_matches(|c| "'<>=|".contains(c)).to_string();
    Ok(match kind.as_str() {
        "f8" => npy.into_vec::<f64>()?,
        "f4" => npy.into_vec::<f32>()?.into_iter().map(f64::from).collect(),
        "i4" => npy.into_vec::<i32>()?.into_iter().map(f64::from).collect(),
        "i8" => npy.into_vec::<i64>()?.into_iter().map(|x| x as f64).collect(),
        other => return Err(io::Error::other(format!("numbers of type {other}"))),
    })
}
