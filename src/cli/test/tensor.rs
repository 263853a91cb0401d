//! Models of dipoles and polarizabilities: errors of frames, or of atoms in place of them, and a file for each system.

use super::Tester;
use super::detail::prefix_of;
use super::errors::Sums;
use crate::data::field::{Need, OutputLabel};
use crate::data::{Frame, Wants};
use crate::engine::Prediction;
use crate::error::{IoContext, Result};
use crate::model::dp::Dp;
use crate::model::dp::options::{ModelOptions, Output};
use crate::report::number::exp;
use std::io::Write;
use std::path::{Path, PathBuf};

/// DeePMD-kit's words for the errors of an output, and for its numbers.
struct Words {
    name: &'static str,
    components: &'static [&'static str],
}

const DIPOLE: Words = Words { name: "Dipole", components: &["x", "y", "z"] };
const POLAR: Words = Words {
    name: "Polarizability",
    components: &["pxx", "pxy", "pxz", "pyx", "pyy", "pyz", "pzx", "pzy", "pzz"],
};

pub(super) struct TensorTester {
    words: &'static Words,
    options: ModelOptions,
    output: Output,
    atomic: bool,
    details: Option<PathBuf>,
    /// The file of the system, and which one that is.
    file: Option<(usize, PathBuf, std::fs::File)>,
    errors: Sums,
    total: Sums,
    /// Atoms of a frame that have an output.
    n_atoms: usize,
}

impl TensorTester {
    pub(super) fn new(model: &Dp, atomic: bool, details: Option<&Path>) -> Result<Self> {
        Ok(TensorTester {
            words: if model.output.width == 3 { &DIPOLE } else { &POLAR },
            options: model.options.clone(),
            output: model.output.clone(),
            atomic,
            details: details.map(prefix_of).transpose()?,
            file: None,
            errors: Sums::default(),
            total: Sums::default(),
            n_atoms: 0,
        })
    }

    /// The columns of labels and of predictions.
    fn header(&self) -> String {
        let atoms: Vec<String> = match self.atomic {
            true => (1..=self.n_atoms).map(|n| n.to_string()).collect(),
            false => vec![String::new()],
        };
        let names =
            atoms.iter().flat_map(|atom| self.words.components.iter().map(move |c| format!("{c}{atom}")));
        let names: Vec<String> = names.collect();
        let columns =
            ["data", "pred"].iter().flat_map(|of| names.iter().map(move |name| format!("{of}_{name}")));
        format!("# {}\n", columns.collect::<Vec<_>>().join(" "))
    }

    /// A row of the system's file; from the second system on its number stands in the name.
    fn write(&mut self, number: usize, label: &[f64], got: &[f64]) -> Result<()> {
        let Some(prefix) = &self.details else { return Ok(()) };
        if self.file.as_ref().is_none_or(|file| file.0 != number) {
            let ending = if number == 0 { "out".to_string() } else { format!("out.{number}") };
            let path = prefix.with_extension(ending);
            let mut file = std::fs::File::create(&path).io("create", &path)?;
            file.write_all(self.header().as_bytes()).io("write", &path)?;
            self.file = Some((number, path, file));
        }
        let Some((_, path, file)) = &mut self.file else { return Ok(()) };
        let row: Vec<String> = label.iter().chain(got).map(|&x| exp(x, 18)).collect();
        file.write_all(format!("{}\n", row.join(" ")).as_bytes()).io("write", &*path)
    }
}

impl Tester for TensorTester {
    fn wants(&self, wants: Wants) -> Wants {
        let need = |wanted: bool| if wanted { Need::Must } else { Need::No };
        let output = OutputLabel {
            name: self.output.name.clone(),
            width: self.output.width,
            of_frames: need(!self.atomic),
            of_atoms: need(self.atomic),
            selected: self.options.types_with_output(),
        };
        Wants { output: Some(output), ..wants }
    }

    fn add(&mut self, _system: &str, number: usize, frames: &[Frame], predicted: &Prediction) -> Result<()> {
        let width = self.output.width;
        let mut first = 0;
        for (f, frame) in frames.iter().enumerate() {
            let atoms: Vec<usize> =
                (0..frame.n_atoms()).filter(|&i| self.options.has_energy(frame.types[i])).collect();
            self.n_atoms = atoms.len();
            let of_atoms = |values: &[f64], first: usize| -> Vec<f64> {
                atoms
                    .iter()
                    .flat_map(|i| values[(first + i) * width..(first + i + 1) * width].to_vec())
                    .collect()
            };
            let (label, got) = match self.atomic {
                true => (
                    of_atoms(frame.labels.atom_output.as_deref().unwrap_or_default(), 0),
                    of_atoms(&predicted.atom_output, first),
                ),
                false => (
                    frame.labels.output.clone().unwrap_or_default(),
                    predicted.output[f * width..(f + 1) * width].to_vec(),
                ),
            };
            got.iter().zip(&label).for_each(|(got, label)| self.errors.add(got - label, 1.0));
            self.write(number, &label, &got)?;
            first += frame.n_atoms();
        }
        Ok(())
    }

    fn end_system(&mut self) -> Vec<String> {
        let errors = std::mem::take(&mut self.errors);
        self.total.merge(&errors);
        let (rmse, n) = (errors.root_mean_square(), self.n_atoms as f64);
        let name = self.words.name;
        let mut lines = vec![format!("{name}  RMSE       : {}", exp(rmse, 6))];
        if !self.atomic && self.n_atoms > 0 {
            lines.push(format!("{name}  RMSE/sqrtN : {}", exp(rmse / n.sqrt(), 6)));
            lines.push(format!("{name}  RMSE/N     : {}", exp(rmse / n, 6)));
        }
        lines.push(UNIT.to_string());
        lines
    }

    fn end(self: Box<Self>) -> Result<Vec<String>> {
        let rmse = exp(self.total.root_mean_square(), 6);
        Ok(vec![format!("{}  RMSE       : {rmse}", self.words.name), UNIT.to_string()])
    }
}

const UNIT: &str = "The unit of error is the same as the unit of provided label.";
