//! xyz and extended xyz: the number of atoms, a line of `key=value`, then a line for each atom.
//!
//! Keys are those of ASE: Lattice, pbc, Properties, energy, stress (or virial), dipole; columns forces and charges.

use super::element::atomic_number;
use super::file::{Block, Lines, number};
use super::sample::{Dipole, Sample, volume};
use super::text::TextFile;
use crate::error::Result;
use crate::{bail, err};
use std::collections::BTreeMap;
use std::path::Path;

/// Finds the frames of a file. Labels are those of the first frame.
pub fn open(path: &Path) -> Result<TextFile> {
    let frames = index(path)?;
    if frames.is_empty() {
        bail!("{}: found no frames", path.display());
    }
    TextFile::new(path, frames, "frame", parse_frame)
}

fn index(path: &Path) -> Result<Vec<Block>> {
    let mut lines = Lines::open(path)?;
    let mut frames = Vec::new();
    loop {
        let (offset, line) = (lines.offset, lines.line + 1);
        let Some(first) = lines.next()? else { return Ok(frames) };
        if first.trim().is_empty() {
            continue; // blank lines between frames and at the end
        }
        let n: usize = match first.trim().parse() {
            Ok(n) => n,
            Err(_) => {
                let found: String = first.chars().take(40).collect();
                return Err(err!("{}: found \"{found}\", wanted the number of atoms", lines.place())
                    .help("each frame of an xyz file starts with the number of its atoms"));
            }
        };
        for atom in 0..n.saturating_add(1) {
            if lines.next()?.is_none() {
                let atoms = atom.saturating_sub(1);
                bail!(
                    "{}: line {line}: {n} atoms are announced, but the file ends after {atoms}",
                    path.display()
                );
            }
        }
        frames.push(Block { offset, length: lines.offset - offset, line });
    }
}

fn parse_frame(text: &str, first: u64) -> Result<Sample> {
    let mut lines = text.lines();
    let comment = lines.nth(1).unwrap_or_default();
    let info = match parse_comment(comment) {
        Ok(info) => info,
        Err(e) if comment.contains("Lattice=") || comment.contains("Properties=") => {
            return Err(e.at(format_args!("line {}", first + 1)));
        }
        Err(_) => BTreeMap::new(), // free text of plain xyz
    };
    let columns = match info.get("properties") {
        Some(text) => {
            Columns::parse(text).map_err(|e| e.at(format_args!("line {}: Properties", first + 1)))?
        }
        None => Columns::plain(),
    };
    let mut sample = Sample::default();
    if columns.forces.is_some() {
        sample.f_data = Some(Vec::new());
    }
    if columns.charges.is_some() {
        sample.q_data = Some(Vec::new());
    }
    for (i, line) in lines.enumerate() {
        columns
            .read_atom(line, &mut sample)
            .map_err(|e| e.at(format_args!("line {}", first + 2 + i as u64)))?;
    }
    read_info(&info, &mut sample).map_err(|e| e.at(format_args!("line {}", first + 1)))?;
    Ok(sample)
}

/// Labels and cell of the second line.
fn read_info(info: &BTreeMap<String, String>, sample: &mut Sample) -> Result<()> {
    let numbers = |key: &str| info.get(key).map(|text| numbers(text, key)).transpose();
    let scalar = |key: &str| match numbers(key)?.as_deref() {
        None => Ok(None),
        Some([x]) => Ok(Some(*x)),
        Some(list) => Err(err!("{key}: {} numbers, wanted one", list.len())),
    };
    if let Some(lattice) = numbers("lattice")?
        && periodic(info)?
    {
        sample.cell = Some(match lattice[..] {
            [a, b, c] => [[a, 0.0, 0.0], [0.0, b, 0.0], [0.0, 0.0, c]],
            _ => nine(&lattice, "Lattice")?,
        });
    }
    sample.e_data = match scalar("energy")? {
        Some(energy) => Some(energy),
        None => scalar("free_energy")?,
    };
    sample.d_data = match numbers("dipole")?.as_deref() {
        None => None,
        Some([d]) => Some(Dipole::Scalar(*d)),
        Some([x, y, z]) => Some(Dipole::Vector([*x, *y, *z])),
        Some(list) => bail!("dipole: {} numbers, wanted one or three", list.len()),
    };
    sample.s_data = match (numbers("stress")?, numbers("virial")?, &sample.cell) {
        (Some(stress), _, _) => Some(symmetric(&stress, "stress")?),
        (None, Some(virial), Some(cell)) => {
            let scale = -1.0 / volume(cell).abs();
            Some(symmetric(&virial, "virial")?.map(|row| row.map(|x| x * scale)))
        }
        _ => None,
    };
    sample.e_weight = scalar("e_weight")?;
    sample.d_weight = scalar("d_weight")?;
    Ok(())
}

/// Whether any direction is periodic. A lattice without `pbc` is periodic in all.
fn periodic(info: &BTreeMap<String, String>) -> Result<bool> {
    let Some(text) = info.get("pbc") else { return Ok(true) };
    let words = text.split(|c: char| c.is_whitespace() || "[],".contains(c)).filter(|word| !word.is_empty());
    let mut any = false;
    for word in words {
        any |= match word.to_ascii_lowercase().as_str() {
            "t" | "true" | "1" => true,
            "f" | "false" | "0" => false,
            _ => bail!("pbc: found \"{word}\", wanted T or F for each direction"),
        };
    }
    Ok(any)
}

fn numbers(text: &str, what: &str) -> Result<Vec<f64>> {
    let words =
        text.split(|c: char| c.is_whitespace() || "[]{},".contains(c)).filter(|word| !word.is_empty());
    words.map(|word| number(word, what)).collect()
}

fn nine(list: &[f64], what: &str) -> Result<[[f64; 3]; 3]> {
    match *list {
        [a, b, c, d, e, f, g, h, i] => Ok([[a, b, c], [d, e, f], [g, h, i]]),
        _ => bail!("{what}: {} numbers, wanted nine", list.len()),
    }
}

/// Nine numbers, or six in Voigt's order xx yy zz yz xz xy.
fn symmetric(list: &[f64], what: &str) -> Result<[[f64; 3]; 3]> {
    match *list {
        [xx, yy, zz, yz, xz, xy] => Ok([[xx, xy, xz], [xy, yy, yz], [xz, yz, zz]]),
        _ => nine(list, what).map_err(|_| err!("{what}: {} numbers, wanted nine or six", list.len())),
    }
}

/// Where the columns of an atom's line are.
struct Columns {
    element: usize,
    position: usize,
    forces: Option<usize>,
    charges: Option<usize>,
    /// All words that a line has; 0 where there may be more.
    total: usize,
}

/// No table of properties has more columns.
const MOST_COLUMNS: usize = 100_000;

impl Columns {
    /// `element x y z`, and whatever follows.
    fn plain() -> Self {
        Columns { element: 0, position: 1, forces: None, charges: None, total: 0 }
    }

    /// Reads `species:S:1:pos:R:3:forces:R:3`.
    fn parse(text: &str) -> Result<Self> {
        let parts: Vec<&str> = text.split(':').collect();
        let (mut element, mut position, mut forces, mut charges) = (None, None, None, None);
        let mut total = 0;
        for triple in parts.chunks(3) {
            let [name, _, width] = *triple else {
                bail!("found \"{text}\", wanted name:type:columns, repeated")
            };
            let n = width.parse::<usize>().ok().filter(|n| (1..=MOST_COLUMNS).contains(n));
            let n = n.ok_or_else(|| err!("{name}: found \"{width}\", wanted a number of columns"))?;
            let (slot, wanted) = match name.to_ascii_lowercase().as_str() {
                "species" | "z" | "element" => (Some(&mut element), 1),
                "pos" | "positions" => (Some(&mut position), 3),
                "forces" | "force" => (Some(&mut forces), 3),
                "charges" | "charge" => (Some(&mut charges), 1),
                _ => (None, n),
            };
            if n != wanted {
                bail!("{name}: {n} columns, wanted {wanted}");
            }
            if let Some(slot) = slot {
                slot.get_or_insert(total);
            }
            total = (total + n).min(MOST_COLUMNS);
        }
        match (element, position) {
            (Some(element), Some(position)) => Ok(Columns { element, position, forces, charges, total }),
            _ => bail!("found \"{text}\", wanted species and pos among the properties"),
        }
    }

    fn read_atom(&self, line: &str, sample: &mut Sample) -> Result<()> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let least = self.total.max(self.position + 3);
        if words.len() < least || (self.total > 0 && words.len() > self.total) {
            bail!("{} columns, wanted {least}", words.len());
        }
        let three = |at: usize, what| -> Result<[f64; 3]> {
            Ok([number(words[at], what)?, number(words[at + 1], what)?, number(words[at + 2], what)?])
        };
        sample.elems.push(atomic_number(words[self.element])?);
        sample.coord.push(three(self.position, "position")?);
        if let (Some(at), Some(forces)) = (self.forces, &mut sample.f_data) {
            forces.push(three(at, "force")?);
        }
        if let (Some(at), Some(charges)) = (self.charges, &mut sample.q_data) {
            charges.push(number(words[at], "charge")?);
        }
        Ok(())
    }
}

/// The pairs of a comment line; keys in lower case. A word without `=` is skipped.
///
/// Values may stand in quotes, with backslashes before quotes, or in brackets. Text that is no list of pairs, as many
/// programs write it, gives pairs that nobody asks for.
fn parse_comment(line: &str) -> Result<BTreeMap<String, String>> {
    let mut chars = line.trim().chars().peekable();
    let mut info = BTreeMap::new();
    loop {
        while chars.next_if(|c| c.is_whitespace()).is_some() {}
        let Some(&first) = chars.peek() else { return Ok(info) };
        let key = if first == '"' {
            quoted(&mut chars)?
        } else {
            word(&mut chars, |c| c == '=' || c.is_whitespace())
        };
        while chars.next_if(|c| c.is_whitespace()).is_some() {}
        if chars.next_if_eq(&'=').is_none() {
            continue;
        }
        while chars.next_if(|c| c.is_whitespace()).is_some() {}
        let value = match chars.peek() {
            Some('"' | '\'') => quoted(&mut chars)?,
            Some('[' | '{') => bracketed(&mut chars)?,
            _ => word(&mut chars, char::is_whitespace),
        };
        info.insert(key.to_ascii_lowercase(), value);
    }
}

type Chars<'a> = std::iter::Peekable<std::str::Chars<'a>>;

fn word(chars: &mut Chars, ends: fn(char) -> bool) -> String {
    let mut text = String::new();
    while let Some(c) = chars.next_if(|c| !ends(*c)) {
        text.push(c);
    }
    text
}

fn quoted(chars: &mut Chars) -> Result<String> {
    let quote = chars.next();
    let mut text = String::new();
    while let Some(c) = chars.next() {
        match c {
            _ if Some(c) == quote => return Ok(text),
            '\\' => text.extend(chars.next()),
            _ => text.push(c),
        }
    }
    bail!("a quote that is not closed: {}", text.chars().take(40).collect::<String>())
}

fn bracketed(chars: &mut Chars) -> Result<String> {
    let mut depth = 0usize;
    let mut text = String::new();
    for c in chars.by_ref() {
        text.push(c);
        match c {
            '[' | '{' => depth += 1,
            ']' | '}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Ok(text);
        }
    }
    bail!("a bracket that is not closed: {}", text.chars().take(40).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pinn::data::source::Source;

    fn open(text: &str) -> Result<Vec<Sample>> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.xyz");
        std::fs::write(&path, text).unwrap();
        let set = super::open(&path)?;
        (0..set.len()).map(|i| set.read(i)).collect()
    }

    const FRAME: &str = "2\nLattice=\"5.0 0.0 0.0 0.5 5.0 0.0 0.0 0.0 6.0\" Properties=species:S:1:pos:R:3:tag:I:1:\
                         forces:R:3:charges:R:1 energy=-1.5 dipole=\"0.5 0.25 0.125\" stress=\"1 2 3 2 5 6 3 6 9\" \
                         config_type='a \"b\" = c' pbc=\"T T T\"\n\
                         O 0.0 0.0 0.5 7 0.1 0.2 0.3 -0.5\nH 0.0 0.0 1.5 7 -0.1 -0.2 -0.3 0.5\n";

    #[test]
    fn every_label_of_a_frame_is_read() {
        let samples = open(&FRAME.repeat(2)).unwrap();
        let sample = &samples[1];
        assert_eq!((samples.len(), sample.elems.as_slice()), (2, &[8, 1][..]));
        assert_eq!(sample.cell.unwrap()[1], [0.5, 5.0, 0.0]);
        assert_eq!((sample.e_data, sample.d_data), (Some(-1.5), Some(Dipole::Vector([0.5, 0.25, 0.125]))));
        assert_eq!(sample.s_data.unwrap()[1], [2.0, 5.0, 6.0]);
        assert_eq!(sample.f_data.as_ref().unwrap()[1][0], f64::from(-0.1f32));
        assert_eq!(sample.q_data.as_ref().unwrap(), &[-0.5, 0.5]);
    }

    #[test]
    fn plain_xyz_and_free_comments_are_read() {
        for comment in
            ["", "i = 3, time = 1.5, E = -17.16", "water \"quoted\" [", "energy of it", "x=[1, \"y"]
        {
            let samples = open(&format!("1\n{comment}\nHe 0 0 0 extra\n\n")).unwrap();
            assert_eq!((samples[0].elems.as_slice(), samples[0].e_data), (&[2][..], None), "{comment}");
        }
        assert_eq!(open("1\nenergy = 2.5, x\nO 0 0 0\n").unwrap()[0].e_data, Some(2.5));
        assert_eq!(open("1\nenergy=2.5\n8 0 0 0\n").unwrap()[0].e_data, Some(2.5));
    }

    #[test]
    fn quotes_and_brackets_are_understood() {
        let info =
            parse_comment(r#"a="x \" y" b='it"s' c=[[1, 2], [3]] d={1 2} "e f" = 3 flag g="" "#).unwrap();
        let get = |key: &str| info[key].as_str();
        assert_eq!((get("a"), get("b"), get("c"), get("d")), ("x \" y", "it\"s", "[[1, 2], [3]]", "{1 2}"));
        assert_eq!((get("e f"), info.get("flag"), get("g")), ("3", None, ""));
        assert!(parse_comment("a=\"open").is_err() && parse_comment("a=[1, [2]").is_err());
    }

    #[test]
    fn boundaries_and_stress_follow_the_keys() {
        let open_box = FRAME.replace("pbc=\"T T T\"", "pbc=\"F F F\"");
        assert_eq!(open(&open_box).unwrap()[0].cell, None);
        let slab = FRAME.replace("pbc=\"T T T\"", "pbc=[True, True, False]");
        assert!(open(&slab).unwrap()[0].cell.is_some());
        let voigt = FRAME.replace("stress=\"1 2 3 2 5 6 3 6 9\"", "stress=\"1 2 3 4 5 6\"");
        assert_eq!(
            open(&voigt).unwrap()[0].s_data.unwrap(),
            [[1.0, 6.0, 5.0], [6.0, 2.0, 4.0], [5.0, 4.0, 3.0]]
        );
        let virial = FRAME.replace("stress=\"1 2 3 2 5 6 3 6 9\"", "virial=\"150 0 0 0 150 0 0 0 150\"");
        assert_eq!(open(&virial).unwrap()[0].s_data.unwrap()[0], [-1.0, 0.0, 0.0]);
    }

    #[test]
    fn errors_name_frame_and_line() {
        let error = |text: String| open(&text).unwrap_err().to_string();
        let e = error(format!("{FRAME}{}", FRAME.replace("O 0.0 0.0 0.5", "Q 0.0 0.0 0.5")));
        assert!(e.contains("a.xyz: frame 1: line 7: \"Q\" is not the symbol"), "{e}");
        let e = error(format!("{FRAME}{}", FRAME.replace("energy=-1.5", "")));
        assert!(e.contains("frame 1: e_data (the energy) is missing here"), "{e}");
        let e = error(FRAME.replacen("2\n", "7\n", 1));
        assert!(e.contains("line 1: 7 atoms are announced, but the file ends after 2"), "{e}");
        assert!(error(FRAME.replace(" -0.5\n", "\n")).contains("line 3: 8 columns, wanted 9"));
        assert!(error(FRAME.replace("pos:R:3", "pos:R:2")).contains("line 2: Properties: pos: 2 columns"));
        assert!(error("x\n".into()).contains("wanted the number of atoms"));
        assert!(error(FRAME.replace("energy=-1.5", "energy=nan")).contains("energy: found \"nan\""));
    }
}
