//! Writes a system in the deepmd/npy layout.

use std::fs::File;
use std::io::{BufWriter, Result, Write};
use std::path::Path;

use npyz::WriterBuilder;

use crate::cell::{Cell, Vec3};
use crate::spcfw::{TYPE_MAP, type_of};

/// One frame of a system, as it is stored.
#[derive(Debug, Clone)]
pub struct Frame {
    /// `[n_atoms]` Å, inside the cell.
    pub coord: Vec<[f32; 3]>,
    /// eV, of exactly these float32 coordinates.
    pub energy: f64,
    /// `[n_atoms]` eV/Å
    pub force: Vec<Vec3>,
    /// eV
    pub virial: [Vec3; 3],
}

/// Makes the folder `system` and writes all its files. All frames share the cell.
///
/// Energies and virials are float64, since energies are sums that lose digits in float32; the rest is float32.
pub fn write_system(system: &Path, frames: &[Frame], cell: &Cell) -> Result<()> {
    let set = system.join("set.000");
    std::fs::create_dir_all(&set)?;
    let n_frames = frames.len() as u64;
    let n_atoms = frames.first().map_or(0, |f| f.coord.len());

    let types: String = (0..n_atoms).map(|i| format!("{}\n", type_of(i))).collect();
    std::fs::write(system.join("type.raw"), types)?;
    std::fs::write(system.join("type_map.raw"), TYPE_MAP.map(|name| format!("{name}\n")).concat())?;

    let per_atom = [n_frames, 3 * n_atoms as u64];
    let coord = frames.iter().flat_map(|f| f.coord.iter().flatten().copied());
    write_array(&set.join("coord.npy"), &per_atom, coord)?;
    let force = frames.iter().flat_map(|f| f.force.iter().flatten().map(|&x| x as f32));
    write_array(&set.join("force.npy"), &per_atom, force)?;
    let cells = frames.iter().flat_map(|_| cell.rows().into_iter().flatten().map(|x| x as f32));
    write_array(&set.join("box.npy"), &[n_frames, 9], cells)?;
    write_array(&set.join("energy.npy"), &[n_frames], frames.iter().map(|f| f.energy))?;
    let virial = frames.iter().flat_map(|f| f.virial.into_iter().flatten());
    write_array(&set.join("virial.npy"), &[n_frames, 9], virial)
}

fn write_array<T: npyz::AutoSerialize>(
    path: &Path,
    shape: &[u64],
    values: impl Iterator<Item = T>,
) -> Result<()> {
    let mut file = BufWriter::new(File::create(path)?);
    let mut array = npyz::WriteOptions::new().default_dtype().shape(shape).writer(&mut file).begin_nd()?;
    array.extend(values)?;
    array.finish()?;
    file.flush()
}
