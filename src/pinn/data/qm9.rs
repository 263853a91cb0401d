//! QM9's files: the number of atoms, a line of properties, the atoms, then frequencies, SMILES and InChI.

use super::element::atomic_number;
use super::file::{Block, ByteFile, Lines, number};
use super::sample::{Dipole, Keys, Sample};
use super::source::Source;
use crate::config::check::did_you_mean;
use crate::error::{IoContext, Result};
use crate::{bail, err};
use std::path::{Path, PathBuf};

/// The properties in the order of the second line, behind the tag and the index. Energies are in Hartree.
const LABELS: [&str; 15] =
    ["A", "B", "C", "mu", "alpha", "homo", "lumo", "gap", "r2", "zpve", "U0", "U", "H", "G", "Cv"];

/// A property of QM9 that becomes a label.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LabelMap {
    /// True for `d_data`, false for `e_data`.
    dipole: bool,
    /// Index in [`LABELS`].
    label: usize,
}

impl LabelMap {
    /// Reads `e_data=U0` or `d_data=mu`; a label alone becomes `e_data`. Empty text is `e_data=U0`.
    pub fn parse(text: &str) -> Result<Vec<LabelMap>> {
        let text = if text.is_empty() { "e_data=U0" } else { text };
        let one = |part: &str| {
            let (key, label) = part.split_once('=').unwrap_or(("e_data", part));
            let dipole = match key.trim() {
                "e_data" => false,
                "d_data" => true,
                other => bail!("qm9: found \"{other}\", wanted e_data or d_data"),
            };
            match LABELS.iter().position(|known| *known == label.trim()) {
                Some(label) => Ok(LabelMap { dipole, label }),
                None => {
                    let near = did_you_mean(label, LABELS.into_iter());
                    Err(err!("qm9: \"{label}\" is not a property")
                        .help(format!("{near}known: {}", LABELS.join(" "))))
                }
            }
        };
        text.split(',').map(one).collect()
    }
}

/// Structures of QM9: a folder or a pattern of files with one structure each, or one file with any number.
pub struct Qm9 {
    place: String,
    structures: Vec<(ByteFile, Option<Block>)>,
    labels: Vec<LabelMap>,
    keys: Keys,
}

impl Qm9 {
    /// Finds the structures.
    pub fn open(place: &str, labels: Vec<LabelMap>) -> Result<Qm9> {
        let path = Path::new(place);
        let structures = if path.is_file() {
            let file = ByteFile::new(path)?;
            index(path)?.into_iter().map(|block| (file.clone(), Some(block))).collect()
        } else {
            let files = if path.is_dir() { files_of(path)? } else { matching(place)? };
            files.iter().map(|path| Ok((ByteFile::new(path)?, None))).collect::<Result<Vec<_>>>()?
        };
        if structures.is_empty() {
            bail!("{place}: found no structure of QM9");
        }
        let mut set = Qm9 { place: place.into(), structures, labels, keys: Keys::default() };
        set.keys = set.read(0)?.keys();
        Ok(set)
    }
}

impl Source for Qm9 {
    fn len(&self) -> usize {
        self.structures.len()
    }

    fn read(&self, index: usize) -> Result<Sample> {
        let (file, block) = &self.structures[index];
        let block = block.unwrap_or(Block { offset: 0, length: file.len(), line: 1 });
        let place = || format!("{}: structure {index}", file.path().display());
        let sample =
            parse(&block.read(file)?, block.line, &self.labels).map_err(|e| e.at(place()))?.rounded();
        sample.check().map_err(|e| e.at(place()))?;
        Ok(sample)
    }

    fn keys(&self) -> Keys {
        self.keys
    }

    fn place(&self) -> String {
        self.place.clone()
    }
}

/// The .xyz files of a folder, by name.
fn files_of(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).io("list", folder)? {
        let path = entry.io("list", folder)?.path();
        if path.extension().is_some_and(|e| e == "xyz") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

fn matching(pattern: &str) -> Result<Vec<PathBuf>> {
    let paths = glob::glob(pattern).map_err(|e| err!("{pattern}: not a pattern: {e}"))?;
    let mut files: Vec<PathBuf> = paths.filter_map(|path| path.ok()).filter(|path| path.is_file()).collect();
    if files.is_empty() {
        bail!("{pattern}: no such file or folder");
    }
    files.sort();
    Ok(files)
}

/// The blocks of one file: the number of atoms and that many lines, with four around the atoms.
fn index(path: &Path) -> Result<Vec<Block>> {
    let mut lines = Lines::open(path)?;
    let mut blocks = Vec::new();
    loop {
        let (offset, line) = (lines.offset, lines.line + 1);
        let Some(first) = lines.next()? else { return Ok(blocks) };
        if first.trim().is_empty() {
            continue;
        }
        let n: usize = match first.trim().parse() {
            Ok(n) => n,
            Err(_) => bail!("{}: wanted the number of atoms", lines.place()),
        };
        for _ in 0..n.saturating_add(4) {
            if lines.next()?.is_none() {
                bail!("{}: line {line}: {n} atoms are announced, but the file ends before", path.display());
            }
        }
        blocks.push(Block { offset, length: lines.offset - offset, line });
    }
}

fn parse(text: &str, first: u64, labels: &[LabelMap]) -> Result<Sample> {
    let lines: Vec<&str> = text.lines().collect();
    let at = |i: usize| format!("line {}", first + i as u64);
    let n: usize = match lines.first().and_then(|line| line.trim().parse().ok()) {
        Some(n) => n,
        None => bail!("{}: wanted the number of atoms", at(0)),
    };
    if lines.len() < n.saturating_add(2) {
        bail!("{}: {n} atoms are announced, but {} lines follow", at(0), lines.len().saturating_sub(1));
    }
    let mut sample = Sample::default();
    let properties: Vec<&str> = lines[1].split_whitespace().collect();
    for map in labels {
        let Some(word) = properties.get(map.label + 2) else {
            bail!("{}: {} properties, wanted {}", at(1), properties.len(), LABELS.len() + 2)
        };
        let value = qm9_number(word, LABELS[map.label]).map_err(|e| e.at(at(1)))?;
        if map.dipole {
            sample.d_data = Some(Dipole::Scalar(value));
        } else {
            sample.e_data = Some(value);
        }
    }
    for (i, line) in lines[2..n + 2].iter().enumerate() {
        let (elem, coord) = parse_atom(line).map_err(|e| e.at(at(i + 2)))?;
        sample.elems.push(elem);
        sample.coord.push(coord);
    }
    Ok(sample)
}

fn parse_atom(line: &str) -> Result<(i32, [f64; 3])> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [symbol, x, y, z, ..] = words[..] else {
        bail!("{} words, wanted an element and a position", words.len())
    };
    let at = |word| qm9_number(word, "position");
    Ok((atomic_number(symbol)?, [at(x)?, at(y)?, at(z)?]))
}

/// Some numbers of QM9 have Mathematica's exponent: 1.5*^-6.
fn qm9_number(word: &str, what: &str) -> Result<f64> {
    number(&word.replace("*^", "E"), what)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "3\ngdb 3\t799.58812\t437.90386\t282.94545\t1.8511\t6.31\t-0.2928\t0.0687\t0.3615\t19.0002\t\
                        0.021375\t-76.404702\t-76.401867\t-76.400922\t-76.422349\t6.002\t\n\
                        O\t-0.0343604951\t 0.9775395708\t 0.0076015923\t-0.589706\n\
                        H\t 0.0647664923\t 0.0205721989\t 1.5*^-6\t 0.294853\n\
                        H\t 0.8717903737\t 1.3007924048\t 0.0006931336\t 0.294853\n\
                        1671.4222\t3803.6305\t3907.698\nO\tO\nInChI=1S/H2O/h1H2\tInChI=1S/H2O/h1H2\n";

    #[test]
    fn one_file_may_hold_several_structures() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.xyz");
        std::fs::write(&path, TEXT.repeat(3)).unwrap();
        let set = Qm9::open(path.to_str().unwrap(), LabelMap::parse("").unwrap()).unwrap();
        assert_eq!((set.len(), set.keys().names()), (3, vec!["e_data"]));
        let sample = set.read(2).unwrap();
        assert_eq!(sample.elems, [8, 1, 1]);
        assert_eq!(sample.e_data, Some(f64::from(-76.404702f64 as f32)));
        assert_eq!(sample.coord[1][2], f64::from(1.5e-6f32));
    }

    #[test]
    fn a_folder_holds_one_structure_in_each_file() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["2.xyz", "1.xyz"] {
            std::fs::write(folder.path().join(name), TEXT).unwrap();
        }
        let place = folder.path().to_str().unwrap();
        let labels = LabelMap::parse("e_data=gap,d_data=mu").unwrap();
        let sample = Qm9::open(place, labels).unwrap().read(1).unwrap();
        assert_eq!(sample.e_data, Some(f64::from(0.3615f32)));
        assert_eq!(sample.d_data, Some(Dipole::Scalar(f64::from(1.8511f32))));
        assert_eq!(Qm9::open(&format!("{place}/*.xyz"), LabelMap::parse("H").unwrap()).unwrap().len(), 2);
    }

    #[test]
    fn errors_name_file_and_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.xyz");
        let error = |text: &str| {
            std::fs::write(&path, text).unwrap();
            let labels = LabelMap::parse("").unwrap();
            Qm9::open(path.to_str().unwrap(), labels).map(|_| ()).unwrap_err().to_string()
        };
        assert!(
            error(&TEXT.replace("-76.404702", "x")).contains("a.xyz: structure 0: line 2: U0: found \"x\"")
        );
        assert!(error(&TEXT.replace("3\ngdb", "30\ngdb")).contains("line 1: 30 atoms are announced"));
        assert!(error(&TEXT.replace("3\ngdb", "18446744073709551615\ngdb")).contains("are announced"));
        assert!(LabelMap::parse("homoo").unwrap_err().to_string().contains("did you mean `homo`?"));
    }
}
