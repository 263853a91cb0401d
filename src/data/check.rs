//! NaN, impossible cells and wrong types, found before training starts.

use super::field::Field;
use super::system::{Set, Stored, System, at_frame};
use crate::bail;
use crate::error::Result;

/// Bytes that one read of the scan asks for.
const BLOCK_BYTES: usize = 4 << 20;

impl System {
    /// Reads every array that is wanted and refuses what cannot be trained on: NaN, infinities, cells without a
    /// volume, types that the model does not know. The error names file and frame.
    ///
    /// `progress` is told how many frames were read since it was last called.
    pub fn check_finite(&self, progress: &(dyn Fn(usize) + Sync)) -> Result<()> {
        for set in &self.sets {
            for stored in &set.arrays {
                self.check_array(set, stored)?;
            }
            progress(set.n_frames);
        }
        Ok(())
    }

    fn check_array(&self, set: &Set, stored: &Stored) -> Result<()> {
        let width = stored.width;
        let block = (BLOCK_BYTES / (8 * width)).clamp(1, set.n_frames.max(1));
        let mut values = vec![0.0; block * width];
        for first in (0..set.n_frames).step_by(block) {
            let count = block.min(set.n_frames - first);
            let values = &mut values[..count * width];
            stored.array.read(values, first, count)?;
            for (i, row) in values.chunks_exact(width).enumerate() {
                let local = first + i;
                self.check_row(stored.field, row)
                    .map_err(|e| at_frame(e, stored, local, set.first + local))?;
            }
        }
        Ok(())
    }

    fn check_row(&self, field: Field, row: &[f64]) -> Result<()> {
        if let Some(i) = row.iter().position(|x| !x.is_finite()) {
            bail!("found {} at number {} of {}", row[i], i + 1, row.len());
        }
        match field {
            Field::Cell => check_volume(row),
            Field::Coord => check_position(row),
            Field::RealAtomTypes if self.real_types(row)?.iter().all(|&t| t < 0) => {
                bail!("every atom is virtual (-1): there is nothing to train on")
            }
            _ => Ok(()),
        }
    }
}

/// Refuses coordinates so large that no digits are left for distances.
fn check_position(row: &[f64]) -> Result<()> {
    const LARGEST: f64 = 1e9;
    match row.iter().position(|x| x.abs() > LARGEST) {
        Some(i) => {
            bail!("found {:e} A at number {} of {}, wanted at most {LARGEST:e} A", row[i], i + 1, row.len())
        }
        None => Ok(()),
    }
}

/// Refuses cells that enclose nothing. Left-handed cells are fine.
fn check_volume(h: &[f64]) -> Result<()> {
    let volume = h[0] * (h[4] * h[8] - h[5] * h[7]) - h[1] * (h[3] * h[8] - h[5] * h[6])
        + h[2] * (h[3] * h[7] - h[4] * h[6]);
    let length = |row: usize| h[3 * row..3 * row + 3].iter().map(|x| x * x).sum::<f64>().sqrt();
    let scale = length(0) * length(1) * length(2);
    // A cell of three parallel vectors has a volume of rounding errors.
    if !volume.is_finite() || volume.abs() <= 1e-12 * scale {
        return Err(crate::err!("the cell {h:?} has no volume").help(
            "rows are the lattice vectors in A; an empty file named nopbc next to type.raw says that boundaries are open",
        ));
    }
    Ok(())
}
