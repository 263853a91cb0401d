//! Models of other outputs than energies: errors of frames and of atoms, and a file for each frame.

use super::Tester;
use super::detail::prefix_of;
use super::errors::Sums;
use crate::data::field::{Need, OutputLabel};
use crate::data::{Frame, Wants};
use crate::engine::Prediction;
use crate::error::{IoContext, Result};
use crate::model::dp::Dp;
use crate::model::dp::options::{FittingKind, Output};
use crate::report::number::exp;
use std::io::Write;
use std::path::{Path, PathBuf};

/// What DeePMD-kit says of an output.
struct Words {
    /// In the names of files of details, and in their first lines; that of atoms begins with an "a".
    suffix: &'static str,
    /// Names of the mean absolute and root-mean-square error of frames, of frames for each atom, and of atoms. Empty: not told.
    report: [[&'static str; 2]; 3],
    unit: &'static str,
}

const DOS: Words = Words {
    suffix: "dos",
    report: [
        ["DOS MAE            ", "DOS RMSE           "],
        ["DOS MAE/Natoms     ", "DOS RMSE/Natoms    "],
        ["Atomic DOS MAE     ", "Atomic DOS RMSE    "],
    ],
    unit: "Occupation/eV",
};

const PROPERTY: Words = Words {
    suffix: "property",
    report: [
        ["PROPERTY MAE            ", "PROPERTY RMSE           "],
        ["", ""],
        ["Atomic PROPERTY MAE     ", "Atomic PROPERTY RMSE    "],
    ],
    unit: "units",
};

pub(super) struct OutputTester {
    words: &'static Words,
    output: Output,
    atomic: bool,
    details: Option<PathBuf>,
    /// Frames of the system that were compared.
    done: usize,
    /// In the order of the report: of the system, and of all of them.
    errors: [Sums; 3],
    total: [Sums; 3],
}

impl OutputTester {
    pub(super) fn new(model: &Dp, atomic: bool, details: Option<&Path>) -> Result<Self> {
        let words = match model.options.fitting.kind {
            FittingKind::Dos(_) => &DOS,
            FittingKind::Property(_) => &PROPERTY,
            FittingKind::Ener(_) | FittingKind::Dipole(_) | FittingKind::Polar(_) => {
                unreachable!("energies and tensors have testers of their own")
            }
        };
        Ok(OutputTester {
            words,
            output: model.output.clone(),
            atomic,
            details: details.map(prefix_of).transpose()?,
            done: 0,
            errors: Default::default(),
            total: Default::default(),
        })
    }

    fn lines(&self, errors: &[Sums; 3], atomic: bool) -> Vec<String> {
        let mut lines = Vec::new();
        for (k, [mae, rmse]) in self.words.report.iter().enumerate() {
            if mae.is_empty() || (k == 2 && !atomic) {
                continue;
            }
            let unit = self.words.unit;
            lines.push(format!("{mae}: {} {unit}", exp(errors[k].mean_absolute(), 6)));
            lines.push(format!("{rmse}: {} {unit}", exp(errors[k].root_mean_square(), 6)));
        }
        lines
    }

    /// One file for each frame, as DeePMD-kit has them; from the second system on its number stands in the name.
    fn write(&self, of: &str, system: &str, number: usize, label: &[f64], got: &[f64]) -> Result<()> {
        let Some(prefix) = &self.details else { return Ok(()) };
        let (suffix, frame) = (format!("{of}{}", self.words.suffix), self.done);
        let group = if number == 0 { String::new() } else { format!(".{number}") };
        let path = prefix.with_extension(format!("{suffix}.out{group}.{frame}"));
        let mut text = format!("# {system} - {frame}: data_{suffix} pred_{suffix}\n");
        for (label, got) in label.iter().zip(got) {
            text += &format!("{} {}\n", exp(*label, 18), exp(*got, 18));
        }
        let mut file = std::fs::File::create(&path).io("create", &path)?;
        file.write_all(text.as_bytes()).io("write", &path)
    }
}

impl Tester for OutputTester {
    fn wants(&self, wants: Wants) -> Wants {
        let output = OutputLabel {
            name: self.output.name.clone(),
            width: self.output.width,
            of_frames: Need::Must,
            of_atoms: if self.atomic { Need::Must } else { Need::No },
            selected: Vec::new(),
        };
        Wants { output: Some(output), ..wants }
    }

    fn add(&mut self, system: &str, number: usize, frames: &[Frame], predicted: &Prediction) -> Result<()> {
        let width = self.output.width;
        let mut first = 0;
        for (f, frame) in frames.iter().enumerate() {
            let got = &predicted.output[f * width..(f + 1) * width];
            let label = frame.labels.output.as_deref().unwrap_or_default();
            for (got, label) in got.iter().zip(label) {
                self.errors[0].add(got - label, 1.0);
                self.errors[1].add((got - label) / frame.n_atoms() as f64, 1.0);
            }
            self.write("", system, number, label, got)?;
            let atoms = first * width..(first + frame.n_atoms()) * width;
            if let Some(label) = &frame.labels.atom_output {
                let got = &predicted.atom_output[atoms];
                got.iter().zip(label).for_each(|(got, label)| self.errors[2].add(got - label, 1.0));
                self.write("a", system, number, label, got)?;
            }
            first += frame.n_atoms();
            self.done += 1;
        }
        Ok(())
    }

    fn end_system(&mut self) -> Vec<String> {
        self.done = 0;
        let errors = std::mem::take(&mut self.errors);
        self.total.iter_mut().zip(&errors).for_each(|(total, errors)| total.merge(errors));
        self.lines(&errors, self.atomic)
    }

    /// Outputs of atoms are told for each system alone: DeePMD-kit's custom.
    fn end(self: Box<Self>) -> Result<Vec<String>> {
        Ok(self.lines(&self.total, false))
    }
}
