//! Predictions as extended xyz, with the names that ASE gives them.

use super::element::symbol;
use super::sample::Sample;
use crate::pinn::predict::PinetEvaluation;
use std::io::{Result, Write};

/// Writes a structure with what a model says about it.
pub fn write_frame(out: &mut impl Write, sample: &Sample, found: &PinetEvaluation) -> Result<()> {
    let (forces, charges) = (!found.forces.is_empty(), !found.charges.is_empty());
    writeln!(out, "{}", sample.n_atoms())?;
    if let Some(cell) = &sample.cell {
        write!(out, "Lattice=\"{}\" ", joined(cell.as_flattened()))?;
    }
    write!(out, "Properties=species:S:1:pos:R:3")?;
    write!(out, "{}{}", if forces { ":forces:R:3" } else { "" }, if charges { ":charges:R:1" } else { "" })?;
    if let Some(energy) = found.energy {
        write!(out, " energy={energy}")?;
    }
    if let Some(stress) = &found.stress {
        write!(out, " stress=\"{}\"", joined(stress))?;
    }
    if let Some(dipole) = &found.dipole {
        write!(out, " dipole=\"{}\"", joined(dipole))?;
    }
    writeln!(out, " pbc=\"{}\"", if sample.cell.is_some() { "T T T" } else { "F F F" })?;
    for (i, (&z, position)) in sample.elems.iter().zip(&sample.coord).enumerate() {
        write!(out, "{:<2}", symbol(z))?;
        position.iter().try_for_each(|x| write!(out, " {x:17.10}"))?;
        if forces {
            found.forces[3 * i..3 * i + 3].iter().try_for_each(|x| write!(out, " {x:17.10}"))?;
        }
        if charges {
            write!(out, " {:17.10}", found.charges[i])?;
        }
        writeln!(out)?;
    }
    Ok(())
}

/// Numbers in the fewest digits that give the same numbers again.
fn joined(numbers: &[f64]) -> String {
    numbers.iter().map(f64::to_string).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::super::extxyz;
    use super::super::sample::Dipole;
    use super::super::sample::tests::water;
    use super::super::source::Source;
    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        let sample = water();
        let potential = PinetEvaluation {
            energy: Some(-76.123456789),
            forces: (0..9).map(|k| k as f64 * 0.125 - 0.5).collect(),
            stress: Some([1e-3, 2e-4, 0.0, 2e-4, -3e-5, 1e-7, 0.0, 1e-7, 5.5]),
            ..PinetEvaluation::default()
        };
        let charges = vec![-0.5, 0.25, 0.25];
        let dipole =
            PinetEvaluation { charges, dipole: Some([0.25, -0.5, 1e-9]), ..PinetEvaluation::default() };
        for found in [potential, dipole] {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("out.xyz");
            let mut text = Vec::new();
            write_frame(&mut text, &sample, &found).unwrap();
            std::fs::write(&path, text).unwrap();
            let read = extxyz::open(&path).unwrap().read_as_stored(0).unwrap();
            assert_eq!((&read.elems, &read.coord, read.cell), (&sample.elems, &sample.coord, sample.cell));
            assert_eq!(read.e_data, found.energy);
            assert_eq!(read.f_data.map(|f| f.as_flattened().to_vec()).unwrap_or_default(), found.forces);
            assert_eq!(read.s_data.as_ref().map(|s| s.as_flattened()), found.stress.as_ref().map(|s| &s[..]));
            assert_eq!(read.q_data.unwrap_or_default(), found.charges);
            assert_eq!(read.d_data, found.dipole.map(Dipole::Vector));
        }
    }
}
