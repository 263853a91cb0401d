//! Bytes and lines at an offset. Lengths that a file announces are held against its size before memory is asked for.

use crate::bail;
use crate::err;
use crate::error::{IoContext, Result};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// A file by its path and its size when it was opened first. It is opened for each use, so that data sets of many
/// files need no more open files than there are readers.
#[derive(Debug, Clone)]
pub struct ByteFile {
    path: PathBuf,
    len: u64,
}

/// An open file.
pub struct Handle<'a> {
    file: File,
    of: &'a ByteFile,
}

impl ByteFile {
    /// Looks at the size of a file.
    pub fn new(path: &Path) -> Result<Self> {
        let data = std::fs::metadata(path).io("read", path)?;
        if data.is_dir() {
            bail!("{}: is a folder, wanted a file", path.display());
        }
        Ok(ByteFile { path: path.to_owned(), len: data.len() })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its size, bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Opens it.
    pub fn open(&self) -> Result<Handle<'_>> {
        Ok(Handle { file: File::open(&self.path).io("read", &self.path)?, of: self })
    }

    /// Reads a part of it that lies within its size.
    pub fn read(&self, offset: u64, length: u64) -> Result<Vec<u8>> {
        self.open()?.read(offset, length)
    }

    /// Reads all of a file of at most `most` bytes.
    pub fn read_all(&self, most: u64) -> Result<Vec<u8>> {
        if self.len > most {
            bail!("{}: {} bytes are too much for a file of this kind", self.path.display(), self.len);
        }
        self.read(0, self.len)
    }
}

impl Handle<'_> {
    /// Reads a part of the file that lies within its size.
    pub fn read(&self, offset: u64, length: u64) -> Result<Vec<u8>> {
        let path = self.of.path.display();
        if offset.checked_add(length).is_none_or(|end| end > self.of.len) {
            bail!(
                "{path}: {length} bytes wanted at byte {offset}, but the file ends at byte {}",
                self.of.len
            );
        }
        let mut bytes = vec![0; length as usize];
        self.file
            .read_exact_at(&mut bytes, offset)
            .map_err(|e| err!("{path}: cannot read {length} bytes at byte {offset}: {e}"))?;
        Ok(bytes)
    }
}

/// A piece of a text file: where it is, and the number of its first line, counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    pub offset: u64,
    pub length: u64,
    pub line: u64,
}

impl Block {
    /// Reads the text of a block.
    pub fn read(&self, file: &ByteFile) -> Result<String> {
        let bytes = file.read(self.offset, self.length)?;
        String::from_utf8(bytes).map_err(|e| {
            let at = self.offset + e.utf8_error().valid_up_to() as u64;
            err!("{}: not UTF-8 text: byte {at} cannot be read", file.path().display())
        })
    }
}

/// No text file that is meant has longer lines, bytes.
const LONGEST_LINE: usize = 1 << 20;

/// Reads a text file line by line and knows where it is.
pub struct Lines {
    reader: BufReader<File>,
    path: PathBuf,
    buffer: Vec<u8>,
    /// Offset of the next line.
    pub offset: u64,
    /// Number of the last line that was read, counted from 1.
    pub line: u64,
}

impl Lines {
    /// Starts at the beginning of a file.
    pub fn open(path: &Path) -> Result<Self> {
        let file = File::open(path).io("read", path)?;
        let reader = BufReader::with_capacity(1 << 16, file);
        Ok(Lines { reader, path: path.to_owned(), buffer: Vec::new(), offset: 0, line: 0 })
    }

    /// The next line without its end; `None` behind the last.
    pub fn next(&mut self) -> Result<Option<&str>> {
        use std::io::Read;
        self.buffer.clear();
        let mut limited = (&mut self.reader).take(LONGEST_LINE as u64);
        let n = limited.read_until(b'\n', &mut self.buffer).io("read", &self.path)?;
        if n == 0 {
            return Ok(None);
        }
        self.line += 1;
        self.offset += n as u64;
        if n == LONGEST_LINE && self.buffer.last() != Some(&b'\n') {
            bail!(
                "{}: line {}: more than {LONGEST_LINE} bytes, this is not text",
                self.path.display(),
                self.line
            );
        }
        let end = self.buffer.iter().rposition(|b| !matches!(b, b'\n' | b'\r')).map_or(0, |i| i + 1);
        match std::str::from_utf8(&self.buffer[..end]) {
            Ok(text) => Ok(Some(text)),
            Err(_) => bail!("{}: line {}: not UTF-8 text", self.path.display(), self.line),
        }
    }

    /// The file and the last line that was read, for messages.
    pub fn place(&self) -> String {
        format!("{}: line {}", self.path.display(), self.line)
    }
}

/// A number of a text file. `what` names it in the error.
pub fn number(text: &str, what: &str) -> Result<f64> {
    match text.parse::<f64>() {
        Ok(x) if x.is_finite() => Ok(x),
        _ => bail!("{what}: found \"{}\", wanted a finite number", text.chars().take(40).collect::<String>()),
    }
}

/// Three numbers that follow each other.
pub fn three(words: &[&str], what: &str) -> Result<[f64; 3]> {
    let [x, y, z] = words else { bail!("{what}: found {} words, wanted three numbers", words.len()) };
    Ok([number(x, what)?, number(y, what)?, number(z, what)?])
}
