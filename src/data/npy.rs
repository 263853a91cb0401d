//! What stands in front of the numbers of an npy file, as `numpy.save` writes it.

use std::io::{self, ErrorKind, Read, Write};

const MAGIC: &[u8] = b"\x93NUMPY";
/// A header says what a file holds in some hundred bytes. NumPy itself reads no longer one than 10,000 unless it is told to.
const LONGEST_HEADER: u64 = 1 << 20;
/// The header is padded so that the numbers begin at a multiple of this.
const ALIGNMENT: usize = 64;

/// The header of an npy file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NpyHeader {
    /// How an element is stored, such as `<f8`; `None` where elements are records.
    pub descr: Option<String>,
    /// The first index runs fastest.
    pub fortran: bool,
    pub shape: Vec<u64>,
    /// Where the first element starts.
    pub bytes: u64,
}

impl NpyHeader {
    /// Reads a header and stops before the first element.
    pub fn read(file: &mut impl Read) -> io::Result<NpyHeader> {
        let mut start = [0; 8];
        let found = read_up_to(file, &mut start)?;
        if !start[..found].starts_with(MAGIC) {
            return Err(invalid("magic not found for NPY file"));
        }
        if found < start.len() {
            return Err(ends_early());
        }
        let mut length = [0; 4];
        let width = match start[6] {
            1 => 2,
            2 | 3 => 4,
            version => return Err(invalid(&format!("unknown version {version}"))),
        };
        file.read_exact(&mut length[..width])?;
        let length = u64::from(u32::from_le_bytes(length));
        if length > LONGEST_HEADER {
            return Err(invalid(&format!("a header of {length} bytes, wanted at most {LONGEST_HEADER}")));
        }
        // What a broken file says is read as far as it is there, and no memory is asked for ahead of that.
        let mut text = Vec::new();
        if file.take(length).read_to_end(&mut text)? < length as usize {
            return Err(ends_early());
        }
        let text = String::from_utf8(text).map_err(|_| invalid("the header is no text"))?;
        let bytes = (start.len() + width) as u64 + length;
        parse(&text, bytes)
            .ok_or_else(|| invalid(&format!("cannot understand the header {}", text.trim_end())))
    }
}

/// Fills a buffer as far as the file goes.
fn read_up_to(file: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut found = Vec::with_capacity(buffer.len());
    file.take(buffer.len() as u64).read_to_end(&mut found)?;
    buffer[..found.len()].copy_from_slice(&found);
    Ok(found.len())
}

fn ends_early() -> io::Error {
    io::Error::new(ErrorKind::UnexpectedEof, "failed to fill whole buffer")
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, what)
}

/// `{'descr': '<f8', 'fortran_order': False, 'shape': (2, 9), }`, with any spaces, quotes and order of keys.
fn parse(text: &str, bytes: u64) -> Option<NpyHeader> {
    let mut rest = text.trim().strip_prefix('{')?.strip_suffix('}')?.trim();
    let (mut descr, mut fortran, mut shape) = (None, None, None);
    while !rest.is_empty() {
        let (key, after) = quoted(rest)?;
        let after = after.trim_start().strip_prefix(':')?;
        let (value, after) = after.split_at(end_of_value(after));
        let value = value.trim();
        match key {
            "descr" if value.starts_with('[') => descr = Some(None),
            "descr" => descr = Some(Some(quoted(value)?.0.to_string())),
            "fortran_order" => fortran = Some(boolean(value)?),
            "shape" => shape = Some(numbers(value)?),
            _ => {}
        }
        rest = after.strip_prefix(',').unwrap_or(after).trim();
    }
    Some(NpyHeader { descr: descr?, fortran: fortran?, shape: shape?, bytes })
}

/// The text in the quotes that a text begins with, and what follows them.
fn quoted(text: &str) -> Option<(&str, &str)> {
    let quote = text.chars().next().filter(|c| matches!(c, '\'' | '"'))?;
    text[1..].split_once(quote)
}

fn boolean(text: &str) -> Option<bool> {
    match text {
        "True" => Some(true),
        "False" => Some(false),
        _ => None,
    }
}

/// `(2, 9)`, `(3,)` or `()`.
fn numbers(text: &str) -> Option<Vec<u64>> {
    let inside = text.strip_prefix('(')?.strip_suffix(')')?;
    inside.split(',').map(str::trim).filter(|n| !n.is_empty()).map(|n| n.parse().ok()).collect()
}

/// Where a value ends: at a comma that stands in no bracket and no quotes.
fn end_of_value(text: &str) -> usize {
    let (mut deep, mut quote) = (0, None);
    for (at, c) in text.char_indices() {
        match (quote, c) {
            (Some(q), c) if c == q => quote = None,
            (Some(_), _) => {}
            (None, '\'' | '"') => quote = Some(c),
            (None, '(' | '[') => deep += 1,
            (None, ')' | ']') => deep -= 1,
            (None, ',') if deep == 0 => return at,
            _ => {}
        }
    }
    text.len()
}

/// Writes the header of an array in row-major order.
pub fn write_header(out: &mut impl Write, descr: &str, shape: &[u64]) -> io::Result<()> {
    let shape: String = shape.iter().map(|n| format!("{n}, ")).collect();
    let mut text = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({shape}), }}");
    let before = MAGIC.len() + 4;
    let padding = ALIGNMENT - 1 - (before + text.len()) % ALIGNMENT;
    text += &" ".repeat(padding);
    text.push('\n');
    let length = u16::try_from(text.len()).map_err(|_| invalid("too many dimensions"))?;
    out.write_all(MAGIC)?;
    out.write_all(&[1, 0])?;
    out.write_all(&length.to_le_bytes())?;
    out.write_all(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn npy(version: u8, text: &str) -> Vec<u8> {
        let length = text.len() as u32;
        let length =
            if version == 1 { length.to_le_bytes()[..2].to_vec() } else { length.to_le_bytes().to_vec() };
        [MAGIC, &[version, 0][..], &length, text.as_bytes(), &[7; 64]].concat()
    }

    fn read(version: u8, text: &str) -> NpyHeader {
        let bytes = npy(version, text);
        let mut rest = &bytes[..];
        let header = NpyHeader::read(&mut rest).unwrap_or_else(|e| panic!("{text}: {e}"));
        assert_eq!(rest, [7; 64], "it stops where the numbers begin");
        header
    }

    #[test]
    fn headers_of_every_spelling_say_the_same() {
        let numpy = "{'descr': '<f8', 'fortran_order': True, 'shape': (2, 9), }        \n";
        let other = "{ \"shape\": (2,9), 'fortran_order':True, 'descr':'<f8' }          \n";
        let want = |bytes: usize| NpyHeader {
            descr: Some("<f8".into()),
            fortran: true,
            shape: vec![2, 9],
            bytes: bytes as u64,
        };
        assert_eq!(read(1, numpy), want(10 + numpy.len()));
        assert_eq!(read(2, numpy), want(12 + numpy.len()));
        assert_eq!(read(3, numpy), want(12 + numpy.len()));
        assert_eq!(read(1, other), want(10 + other.len()));
        let scalar = "{'descr': '>f4', 'fortran_order': False, 'shape': (), }\n";
        assert_eq!(read(1, scalar).shape, Vec::<u64>::new());
        let flat = "{'descr': '>f4', 'fortran_order': False, 'shape': (3,), }\n";
        assert_eq!((read(1, flat).shape, read(1, flat).fortran), (vec![3], false));
        let records =
            "{'descr': [('a', '<f8', (2,)), ('b', '<i4')], 'fortran_order': False, 'shape': (3,), }\n";
        assert_eq!((read(1, records).descr, read(1, records).shape), (None, vec![3]));
    }

    #[test]
    fn what_is_no_header_is_refused() {
        let good = "{'descr': '<f8', 'fortran_order': True, 'shape': (2, 9), }\n";
        let bad = [
            b"\x93NUMPX\x01\x00".to_vec(),
            b"\x93NUM".to_vec(),
            npy(4, good),
            npy(1, &good.replace("True", "yes")),
            npy(1, &good.replace("(2, 9)", "(2, -9)")),
            npy(1, &good.replace("'shape'", "'form'")),
            npy(1, &good.replace('}', "")),
            npy(1, good)[..40].to_vec(),
            b"\x93NUMPY\x02\x00\xff\xff\xff\xff{}".to_vec(),
        ];
        for bytes in bad {
            assert!(NpyHeader::read(&mut &bytes[..]).is_err(), "{}", String::from_utf8_lossy(&bytes));
        }
    }

    #[test]
    fn what_is_written_are_the_bytes_of_another_library() {
        use npyz::WriterBuilder;
        for shape in [&[][..], &[5], &[2, 3], &[1_000_000, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]] {
            let (mut own, mut other) = (Vec::new(), Vec::new());
            write_header(&mut own, "<f8", shape).unwrap();
            npyz::WriteOptions::<f64>::new()
                .default_dtype()
                .shape(shape)
                .writer(&mut other)
                .write_header_only()
                .unwrap();
            assert_eq!(own, other, "{shape:?}");
        }
    }
}
