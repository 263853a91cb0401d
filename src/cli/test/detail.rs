//! Files with every label beside its prediction, in DeePMD-kit's columns.
//!
//! A label that the data lacks is written as zeros, so that rows and columns stay where scripts expect them.

use super::errors::volume;
use crate::data::Frame;
use crate::engine::Prediction;
use crate::err;
use crate::error::{IoContext, Result};
use crate::report::number::exp;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

/// Components of a virial or stress.
const TENSOR: [&str; 9] = ["xx", "xy", "xz", "yx", "yy", "yz", "zx", "zy", "zz"];

/// One file: ending of its name, what stands behind the system in its first line, its columns.
struct Kind {
    ending: &'static str,
    unit: &'static str,
    symbol: &'static str,
    components: &'static [&'static str],
}

const ENERGY: usize = 0;
const ENERGY_PER_ATOM: usize = 1;
const FORCE: usize = 2;
const VIRIAL: usize = 3;
const VIRIAL_PER_ATOM: usize = 4;
const STRESS: usize = 5;

const KINDS: [Kind; 6] = [
    Kind { ending: "e.out", unit: "", symbol: "e", components: &[""] },
    Kind { ending: "e_peratom.out", unit: "", symbol: "e", components: &[""] },
    Kind { ending: "f.out", unit: "", symbol: "f", components: &["x", "y", "z"] },
    Kind { ending: "v.out", unit: "", symbol: "v", components: &TENSOR },
    Kind { ending: "v_peratom.out", unit: "", symbol: "v", components: &TENSOR },
    Kind { ending: "s.out", unit: " (eV/Å³)", symbol: "s", components: &TENSOR },
];

impl Kind {
    fn header(&self, system: &str) -> String {
        let columns = |source: &str| -> Vec<String> {
            self.components.iter().map(|c| format!("{source}_{}{c}", self.symbol)).collect()
        };
        format!("# {system}{}: {} {}\n", self.unit, columns("data").join(" "), columns("pred").join(" "))
    }
}

/// The beginning of the names of files.
pub(super) fn prefix_of(prefix: &Path) -> Result<PathBuf> {
    if prefix.file_name().is_none() {
        return Err(err!("--detail-file: {} is not the beginning of a file name", prefix.display())
            .help("for example: -d detail"));
    }
    Ok(prefix.to_owned())
}

/// The detail files of one run, each made when its first row comes.
pub(super) struct Details {
    prefix: PathBuf,
    files: [Option<(PathBuf, BufWriter<File>)>; KINDS.len()],
    row: String,
}

impl Details {
    /// Files named `prefix.e.out` and so on; an ending of the prefix gives way.
    pub(super) fn new(prefix: &Path) -> Result<Self> {
        Ok(Details { prefix: prefix_of(prefix)?, files: Default::default(), row: String::new() })
    }

    /// Writes the rows of a batch.
    pub(super) fn write(&mut self, system: &str, frames: &[Frame], predicted: &Prediction) -> Result<()> {
        let mut first = 0;
        for (i, frame) in frames.iter().enumerate() {
            let n_atoms = frame.n_atoms();
            let atoms = first..first + n_atoms;
            first = atoms.end;
            let per_atom = |x: f64| x / n_atoms as f64;
            let energy = (frame.labels.energy.unwrap_or(0.0), predicted.energy[i]);
            self.put(ENERGY, system, &[energy.0], &[energy.1])?;
            self.put(ENERGY_PER_ATOM, system, &[per_atom(energy.0)], &[per_atom(energy.1)])?;
            let force = &predicted.force[3 * atoms.start..3 * atoms.end];
            for (atom, got) in force.chunks_exact(3).enumerate() {
                let label = frame.labels.force.as_ref().map_or(&[0.0; 3][..], |f| &f[3 * atom..3 * atom + 3]);
                self.put(FORCE, system, label, got)?;
            }
            self.put_virial(system, frame, &predicted.virial[i])?;
        }
        Ok(())
    }

    fn put_virial(&mut self, system: &str, frame: &Frame, predicted: &[f64; 9]) -> Result<()> {
        let label = frame.labels.virial.unwrap_or([0.0; 9]);
        let scaled = |v: &[f64; 9], scale: f64| v.map(|x| x / scale);
        let n_atoms = frame.n_atoms() as f64;
        self.put(VIRIAL, system, &label, predicted)?;
        self.put(VIRIAL_PER_ATOM, system, &scaled(&label, n_atoms), &scaled(predicted, n_atoms))?;
        if let (Some(cell), Some(_)) = (&frame.cell, &frame.labels.virial) {
            // Tension is positive.
            let scale = -volume(cell);
            self.put(STRESS, system, &scaled(&label, scale), &scaled(predicted, scale))?;
        }
        Ok(())
    }

    /// One row: the label, then the prediction.
    fn put(&mut self, kind: usize, system: &str, label: &[f64], predicted: &[f64]) -> Result<()> {
        if self.files[kind].is_none() {
            self.files[kind] = Some(self.create(&KINDS[kind], system)?);
        }
        self.row.clear();
        for (i, &x) in label.iter().chain(predicted).enumerate() {
            if i > 0 {
                self.row.push(' ');
            }
            self.row.push_str(&exp(x, 18));
        }
        self.row.push('\n');
        let (path, file) = self.files[kind].as_mut().expect("it was made above");
        file.write_all(self.row.as_bytes()).io("write", path)
    }

    fn create(&self, kind: &Kind, system: &str) -> Result<(PathBuf, BufWriter<File>)> {
        let path = self.prefix.with_extension(kind.ending);
        let mut file = BufWriter::new(File::create(&path).io("create", &path)?);
        file.write_all(kind.header(system).as_bytes()).io("write", &path)?;
        Ok((path, file))
    }

    /// Brings the last rows to the disk.
    pub(super) fn finish(mut self) -> Result<()> {
        for (path, file) in self.files.iter_mut().flatten() {
            file.flush().io("write", path)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_name_the_system_and_the_columns() {
        assert_eq!(KINDS[ENERGY].header("water/a"), "# water/a: data_e pred_e\n");
        assert_eq!(KINDS[FORCE].header("a"), "# a: data_fx data_fy data_fz pred_fx pred_fy pred_fz\n");
        assert!(KINDS[STRESS].header("a").starts_with("# a (eV/Å³): data_sxx data_sxy data_sxz data_syx "));
    }

    #[test]
    fn a_prefix_without_a_name_is_refused() {
        assert!(Details::new(Path::new("..")).is_err());
        assert!(Details::new(Path::new("detail")).is_ok());
    }
}
