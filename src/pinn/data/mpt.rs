//! MiMiCPy's topology file (.mpt): molecules and their atoms, in XDR.

use super::element::atomic_number;
use super::file::ByteFile;
use super::xdr::Xdr;
use crate::error::Result;
use crate::{bail, err};
use std::path::Path;

/// A topology is some kilobytes; what is larger than this is something else.
const LARGEST_FILE_BYTES: u64 = 1 << 30;
/// More atoms than any trajectory has.
const MOST_ATOMS: u64 = 100_000_000;

/// The molecules of a system.
#[derive(Debug, Clone, PartialEq)]
pub struct Topology {
    /// Name and number of copies, in the order of the trajectory.
    pub molecules: Vec<(String, u64)>,
    /// Molecules that are copies of another: their name, and the name of the one that is defined.
    pub repeating: Vec<(String, String)>,
    pub definitions: Vec<Molecule>,
}

/// The atoms of one kind of molecule; one entry for each atom in every list.
#[derive(Debug, Clone, PartialEq)]
pub struct Molecule {
    pub name: String,
    pub number: Vec<i32>,
    pub kind: Vec<String>,
    pub resid: Vec<i32>,
    pub resname: Vec<String>,
    pub atom_name: Vec<String>,
    pub charge: Vec<f32>,
    pub element: Vec<String>,
    pub mass: Vec<f32>,
}

impl Topology {
    /// Reads a file.
    pub fn read(path: &Path) -> Result<Topology> {
        let bytes = ByteFile::new(path)?.read_all(LARGEST_FILE_BYTES)?;
        let topology = Topology::parse(&bytes).map_err(|e| e.at(path.display()));
        topology
            .map_err(|e| if e.advice().is_some() { e } else { e.help("wanted a topology of MiMiCPy (.mpt)") })
    }

    /// Reads the bytes of a file.
    pub fn parse(bytes: &[u8]) -> Result<Topology> {
        let mut xdr = Xdr::new(bytes);
        let names = strings(&mut xdr).map_err(|e| e.at("names of the molecules"))?;
        let counts = list(&mut xdr, Xdr::i32).map_err(|e| e.at("numbers of the molecules"))?;
        if names.len() != counts.len() {
            bail!("{} names of molecules, but {} numbers of copies", names.len(), counts.len());
        }
        let mut molecules = Vec::new();
        for (name, count) in names.into_iter().zip(counts) {
            let count = u64::try_from(count).map_err(|_| err!("molecule {name}: {count} copies"))?;
            molecules.push((name, count));
        }
        let keys = strings(&mut xdr).map_err(|e| e.at("names of repeated molecules"))?;
        let values = strings(&mut xdr).map_err(|e| e.at("what repeated molecules are"))?;
        if keys.len() != values.len() {
            bail!("{} repeated molecules, but {} names of what they are", keys.len(), values.len());
        }
        let repeating = keys.into_iter().zip(values).collect();
        let mut definitions = Vec::new();
        while !xdr.is_at_end() {
            let at = xdr.at();
            let molecule = Molecule::read(&mut xdr);
            definitions.push(
                molecule.map_err(|e| e.at(format_args!("molecule {} at byte {at}", definitions.len())))?,
            );
        }
        Ok(Topology { molecules, repeating, definitions })
    }

    /// The number of atoms. Holds no memory for them, so that a damaged number of copies is harmless.
    pub fn n_atoms(&self) -> Result<usize> {
        let mut total: u64 = 0;
        for (name, count) in &self.molecules {
            let atoms = count.checked_mul(self.definition(name)?.number.len() as u64);
            total = match atoms.and_then(|n| n.checked_add(total)).filter(|n| *n <= MOST_ATOMS) {
                Some(n) => n,
                None => bail!("{count} molecules {name}: more than {MOST_ATOMS} atoms"),
            };
        }
        Ok(total as usize)
    }

    /// The atomic number of every atom, in the order of the trajectory.
    pub fn elems(&self) -> Result<Vec<i32>> {
        let mut elems = Vec::with_capacity(self.n_atoms()?);
        for (name, count) in &self.molecules {
            let molecule = self.definition(name)?.elems()?;
            (0..*count).for_each(|_| elems.extend_from_slice(&molecule));
        }
        Ok(elems)
    }

    fn definition(&self, name: &str) -> Result<&Molecule> {
        let same = self.repeating.iter().find(|(key, _)| key == name).map_or(name, |(_, value)| value);
        let found = self.definitions.iter().find(|molecule| molecule.name == same);
        found.ok_or_else(|| {
            let known: Vec<&str> = self.definitions.iter().map(|m| m.name.as_str()).collect();
            err!("molecule {name} is not defined").help(format!("the file defines: {}", known.join(" ")))
        })
    }
}

impl Molecule {
    fn read(xdr: &mut Xdr) -> Result<Molecule> {
        let molecule = Molecule {
            name: xdr.string()?.to_owned(),
            number: list(xdr, Xdr::i32)?,
            kind: strings(xdr)?,
            resid: list(xdr, Xdr::i32)?,
            resname: strings(xdr)?,
            atom_name: strings(xdr)?,
            charge: list(xdr, Xdr::f32)?,
            element: strings(xdr)?,
            mass: list(xdr, Xdr::f32)?,
        };
        molecule.check()?;
        Ok(molecule)
    }

    fn check(&self) -> Result<()> {
        let n = self.number.len();
        let lengths = [
            ("types", self.kind.len()),
            ("residue numbers", self.resid.len()),
            ("residue names", self.resname.len()),
            ("atom names", self.atom_name.len()),
            ("charges", self.charge.len()),
            ("elements", self.element.len()),
            ("masses", self.mass.len()),
        ];
        for (what, len) in lengths {
            if len != n {
                bail!("{}: {n} atoms, but {len} {what}", self.name);
            }
        }
        Ok(())
    }

    fn elems(&self) -> Result<Vec<i32>> {
        let number = |(i, symbol): (usize, &String)| {
            atomic_number(symbol).map_err(|e| e.at(format_args!("molecule {}: atom {i}", self.name)))
        };
        self.element.iter().enumerate().map(number).collect()
    }
}

/// One string joined by commas; an empty string is an empty list.
fn strings(xdr: &mut Xdr) -> Result<Vec<String>> {
    let text = xdr.string()?;
    Ok(if text.is_empty() { Vec::new() } else { text.split(',').map(str::to_owned).collect() })
}

/// Items with a 1 before each, and a 0 behind the last.
fn list<'a, T>(xdr: &mut Xdr<'a>, item: fn(&mut Xdr<'a>) -> Result<T>) -> Result<Vec<T>> {
    let mut items = Vec::new();
    loop {
        let at = xdr.at();
        match xdr.u32()? {
            0 => return Ok(items),
            1 => items.push(item(xdr)?),
            other => bail!("byte {at}: found {other}, wanted 1 before an item or 0 behind the last"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: &[u8] = include_bytes!("../../../tests/pinn_data/mimic/sample.mpt");

    #[test]
    fn molecules_are_repeated_in_the_order_of_the_trajectory() {
        let topology = Topology::parse(SAMPLE).unwrap();
        let names: Vec<_> = topology.molecules.iter().map(|(name, n)| (name.as_str(), *n)).collect();
        assert_eq!(names, [("ACT", 1), ("SOL", 2), ("WAT", 1)]);
        assert_eq!(topology.repeating, [("WAT".to_string(), "SOL".to_string())]);
        assert_eq!(topology.elems().unwrap(), [6, 6, 6, 8, 1, 1, 1, 1, 1, 1, 8, 1, 1, 8, 1, 1, 8, 1, 1]);
        assert_eq!(topology.definitions[0].charge.len(), 10);
    }

    #[test]
    fn every_truncation_is_an_error_or_a_topology_without_its_last_molecules() {
        for end in 0..SAMPLE.len() {
            if let Ok(topology) = Topology::parse(&SAMPLE[..end]) {
                assert!(topology.definitions.len() < 2 && topology.elems().is_err(), "{end}");
            }
        }
    }

    #[test]
    fn errors_name_the_byte_and_the_molecule() {
        let mut bytes = SAMPLE.to_vec();
        bytes[16..20].copy_from_slice(&7u32.to_be_bytes());
        let error = Topology::parse(&bytes).unwrap_err();
        assert!(error.message().contains("byte 16: found 7, wanted 1 before an item"), "{error}");
        let mut topology = Topology::parse(SAMPLE).unwrap();
        topology.definitions[1].element[0] = "Q".into();
        assert!(topology.elems().unwrap_err().message().starts_with("molecule SOL: atom 0: \"Q\""));
        topology.definitions.pop();
        assert!(topology.elems().unwrap_err().message().contains("SOL is not defined"));
        topology.molecules[0].1 = u64::MAX;
        assert!(topology.n_atoms().unwrap_err().message().contains("more than"));
    }
}
