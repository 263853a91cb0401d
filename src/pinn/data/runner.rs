//! RuNNer's input.data: blocks of lines between `begin` and `end`, in atomic units.
//!
//! Positions become Å and forces Hartree/Å; energies stay in Hartree.

use super::element::atomic_number;
use super::file::{Block, Lines, number, three};
use super::sample::Sample;
use super::text::TextFile;
use crate::error::Result;
use crate::units::BOHR;
use crate::{bail, err};
use std::path::Path;

/// Finds the blocks of a file. Labels are those of the first block.
pub fn open(path: &Path) -> Result<TextFile> {
    let blocks = index(path)?;
    if blocks.is_empty() {
        return Err(err!("{}: found no structure", path.display())
            .help("a structure stands between a line `begin` and a line `end`"));
    }
    TextFile::new(path, blocks, "structure", parse_block)
}

fn index(path: &Path) -> Result<Vec<Block>> {
    let mut lines = Lines::open(path)?;
    let mut blocks = Vec::new();
    let mut open: Option<Block> = None;
    loop {
        let start = lines.offset;
        let Some(line) = lines.next()? else { break };
        let word = line.split_whitespace().next().unwrap_or_default().to_owned();
        match (word.as_str(), open) {
            ("begin", None) => open = Some(Block { offset: start, length: 0, line: lines.line }),
            ("begin", Some(block)) => {
                bail!("{}: `begin` within the block of line {}", lines.place(), block.line)
            }
            ("end", Some(block)) => {
                blocks.push(Block { length: lines.offset - block.offset, ..block });
                open = None;
            }
            ("end", None) => bail!("{}: `end` without `begin`", lines.place()),
            _ => {}
        }
    }
    match open {
        Some(block) => bail!("{}: line {}: `begin` without `end`", path.display(), block.line),
        None => Ok(blocks),
    }
}

/// Reads the lines of one block. `first` is the number of its first line.
fn parse_block(text: &str, first: u64) -> Result<Sample> {
    let mut sample = Sample { e_weight: Some(1.0), ..Sample::default() };
    let (mut cell, mut stress) = (Vec::new(), Vec::new());
    let (mut charges, mut forces, mut weights) = (Vec::new(), Vec::new(), Vec::new());
    for (i, line) in text.lines().enumerate() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let Some((&keyword, values)) = words.split_first() else { continue };
        let mut parse = || -> Result<()> {
            match keyword {
                "atom" => {
                    let atom = parse_atom(values)?;
                    sample.elems.push(atom.elem);
                    sample.coord.push(atom.coord);
                    charges.push(atom.charge);
                    forces.push(atom.force);
                    weights.push(atom.weights);
                }
                "lattice" => cell.push(three(values, keyword)?.map(|x| x * BOHR)),
                "stress" => stress.push(three(values, keyword)?.map(|x| x / BOHR.powi(3))),
                "energy" => sample.e_data = Some(single(values, keyword)?),
                "energy_weight" => sample.e_weight = Some(single(values, keyword)?),
                "begin" | "end" | "charge" | "comment" => {}
                other => {
                    let near = crate::config::check::did_you_mean(other, KEYWORDS.into_iter());
                    return Err(err!("unknown keyword \"{}\"", other.chars().take(40).collect::<String>())
                        .help(format!("{near}known: {}", KEYWORDS.join(" "))));
                }
            }
            Ok(())
        };
        parse().map_err(|e| e.at(format_args!("line {}", first + i as u64)))?;
    }
    sample.cell = matrix(&cell, "lattice")?;
    sample.s_data = matrix(&stress, "stress")?;
    sample.q_data = Some(charges);
    sample.f_data = Some(forces);
    sample.f_weights = Some(weights);
    Ok(sample)
}

const KEYWORDS: [&str; 9] =
    ["begin", "end", "atom", "lattice", "stress", "energy", "energy_weight", "charge", "comment"];

struct Atom {
    elem: i32,
    coord: [f64; 3],
    charge: f64,
    force: [f64; 3],
    weights: [f64; 3],
}

/// `x y z element charge energy fx fy fz`, and three weights where they are given.
fn parse_atom(words: &[&str]) -> Result<Atom> {
    if words.len() != 9 && words.len() < 12 {
        return Err(err!("atom: {} values", words.len())
            .help("wanted x y z element charge energy fx fy fz, and three weights where they are given"));
    }
    Ok(Atom {
        coord: three(&words[..3], "position")?.map(|x| x * BOHR),
        elem: atomic_number(words[3])?,
        charge: number(words[4], "charge")?,
        force: three(&words[6..9], "force")?.map(|x| x / BOHR),
        weights: if words.len() >= 12 { three(&words[9..12], "weight")? } else { [1.0; 3] },
    })
}

fn single(words: &[&str], what: &str) -> Result<f64> {
    match words {
        [] => bail!("{what}: wanted a number"),
        [first, ..] => number(first, what),
    }
}

/// Three rows, or none.
fn matrix(rows: &[[f64; 3]], what: &str) -> Result<Option<[[f64; 3]; 3]>> {
    match *rows {
        [] => Ok(None),
        [a, b, c] => Ok(Some([a, b, c])),
        _ => bail!("{} lines of {what}, wanted three", rows.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pinn::data::source::Source;

    const TEXT: &str = "begin\ncomment two atoms\nlattice 10.0 0.0 0.0\nlattice 0.0 10.0 0.0\nlattice 0.0 0.0 10.0\n\
                        atom 0.0 0.0 1.0 O -0.5 0.0 0.1 0.2 0.3\natom 0.0 0.0 2.0 H 0.5 0.0 -0.1 -0.2 -0.3 1 2 3\n\
                        energy -1.5\nenergy_weight 2.0\nstress 1 0 0\nstress 0 1 0\nstress 0 0 1\ncharge 0.0\nend\n";

    fn open(text: &str) -> Result<TextFile> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("input.data");
        std::fs::write(&path, text).unwrap();
        // Structures are read while the folder exists.
        let set = super::open(&path)?;
        for i in 0..set.len() {
            set.read(i)?;
        }
        std::mem::forget(folder);
        Ok(set)
    }

    #[test]
    fn atomic_units_become_angstrom() {
        let set = open(&TEXT.repeat(2)).unwrap();
        assert_eq!(set.len(), 2);
        let sample = set.read(1).unwrap();
        let near = |a: f64, b: f64| (a / b - 1.0).abs() < 1e-6;
        assert_eq!(sample.elems, [8, 1]);
        assert!(near(sample.coord[1][2], 2.0 * 0.5291772109));
        assert!(near(sample.f_data.as_ref().unwrap()[0][2], 0.3 / 0.5291772109));
        assert!(near(sample.cell.unwrap()[0][0], 5.291772109));
        assert!(near(sample.s_data.unwrap()[0][0], 0.5291772109f64.powi(-3)));
        assert_eq!((sample.e_data, sample.e_weight), (Some(-1.5), Some(2.0)));
        assert_eq!(sample.q_data.unwrap(), [-0.5, 0.5]);
        assert_eq!(sample.f_weights.unwrap(), [[1.0; 3], [1.0, 2.0, 3.0]]);
    }

    #[test]
    fn errors_name_structure_and_line() {
        let error = |text: &str| open(text).map(|_| ()).unwrap_err().to_string();
        let e = error(&TEXT.repeat(2).replacen("begin\ncomment two", "begin\ncoment two", 1));
        assert!(e.contains("input.data: structure 0: line 2: unknown keyword \"coment\""), "{e}");
        let e = error(&format!("{TEXT}{}", TEXT.replace("atom 0.0 0.0 1.0 O", "atom 0.0 0.0 x O")));
        assert!(e.contains("structure 1: line 20: position: found \"x\""), "{e}");
        assert!(error(&TEXT[..50]).contains("line 1: `begin` without `end`"));
        assert!(error("nothing\n").contains("found no structure"));
        assert!(error(&TEXT.replace("end\n", "begin\n")).contains("`begin` within the block of line 1"));
        let e = error(&format!("{TEXT}{}", TEXT.replace("energy -1.5\n", "")));
        assert!(e.contains("e_data (the energy) is missing here"), "{e}");
    }
}
