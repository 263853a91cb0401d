//! CPMD's ENERGIES: one line for each step of molecular dynamics, in Hartree.

use super::file::{Lines, number};
use crate::error::Result;
use crate::{bail, err};
use std::path::Path;

/// Reads the Kohn-Sham energy of every step.
///
/// The number of columns says which: 8 (Car-Parrinello and Born-Oppenheimer) and 9 (with the QM/MM interface) have it
/// in the fourth, 6 (with diagonalisation) in the third. Lines that mark new data after a restart are skipped.
pub fn read_energies(path: &Path) -> Result<Vec<f64>> {
    let mut lines = Lines::open(path)?;
    let mut energies = Vec::new();
    let mut columns = None;
    while let Some(line) = lines.next()? {
        if line.trim().is_empty() || line.contains("NEW DATA") || line.trim_start().starts_with('#') {
            continue;
        }
        let energy = energy_of(line, &mut columns);
        energies.push(energy.map_err(|e| e.at(lines.place()))?);
    }
    if energies.is_empty() {
        bail!("{}: found no energies", path.display());
    }
    Ok(energies)
}

/// The energy of one line. Every line has as many columns as the first.
fn energy_of(line: &str, columns: &mut Option<usize>) -> Result<f64> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let expected = *columns.get_or_insert(words.len());
    if words.len() != expected {
        return Err(err!("{} columns, but the first line has {expected}", words.len())
            .help("a line that was cut off, or columns that ran into each other"));
    }
    let column = match words.len() {
        8 | 9 => 3,
        6 => 2,
        n => {
            return Err(err!("{n} columns").help(
                "wanted 8 (NFI EKINC TEMPP EKS ECLASSIC EHAM DIS TCPU), 9 (with EQM) or 6 (NFI TEMPP EKS ECLASSIC DIS TCPU)",
            ));
        }
    };
    if words[0].parse::<i64>().is_err() {
        bail!("found \"{}\", wanted the number of the step", words[0].chars().take(40).collect::<String>());
    }
    number(words[column], "EKS (the Kohn-Sham energy)")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<f64>> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ENERGIES");
        std::fs::write(&path, text).unwrap();
        read_energies(&path)
    }

    const LINE: &str = "         1  0.00003168  297.086    -44.4971086445    -43.0562486076    -43.0562169315   0.118154E-03     0.09\n";

    #[test]
    fn the_kohn_sham_energy_is_found_in_every_layout() {
        let energies = read_energies(Path::new("tests/pinn_data/mimic/ENERGIES")).unwrap();
        assert_eq!(
            energies,
            [-44.4971086445, -44.5071086445, -44.5171086445, -44.5271086445, -44.5371086445]
        );
        assert_eq!(read("1 297.0 -44.5 -43.0 0.1E-03 0.09\n").unwrap(), [-44.5]);
        assert_eq!(read("1 0.1 297.0 -44.5 -43.0 -42.0 -10.0 0.1E-03 0.09\n").unwrap(), [-44.5]);
    }

    #[test]
    fn marker_lines_do_not_shift_the_energies() {
        let text = format!("{LINE} <<<<<<  NEW DATA  >>>>>>\n{LINE}\n");
        assert_eq!(read(&text).unwrap().len(), 2);
    }

    #[test]
    fn errors_name_the_line() {
        let e = read(&format!("{LINE}{}", &LINE[..60])).unwrap_err();
        assert!(e.message().contains("ENERGIES: line 2: 5 columns, but the first line has 8"), "{e}");
        let e = read(&LINE.replace("-44.4971086445", "**************")).unwrap_err();
        assert!(e.message().contains("line 1: EKS (the Kohn-Sham energy): found \"***"), "{e}");
        assert!(read("1 2 3\n").unwrap_err().to_string().contains("3 columns"));
        assert!(read("x 297.0 -44.5 -43.0 0.1E-03 0.09\n").is_err());
        assert!(read("").unwrap_err().message().contains("found no energies"));
    }
}
