//! raw: coord.raw, box.raw, ... next to type.raw; text with one frame on each line.

use super::{Array, Format, Kind, Source, text};
use crate::err;
use crate::error::{IoContext, Result};
use std::borrow::Cow;
use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// The text format that `raw_to_set.sh` starts from.
pub struct Raw;

impl Format for Raw {
    fn name(&self) -> &'static str {
        "raw"
    }

    fn recognises(&self, path: &str) -> bool {
        let folder = Path::new(path);
        folder.join("type.raw").is_file() && folder.join("coord.raw").is_file()
    }

    fn open(&self, path: &str) -> Result<Box<dyn Source>> {
        Ok(Box::new(RawSource { folder: PathBuf::from(path), sets: [String::new()] }))
    }
}

struct RawSource {
    folder: PathBuf,
    /// There are no sets here: one, without a name.
    sets: [String; 1],
}

impl Source for RawSource {
    fn types_place(&self) -> String {
        self.array_place(0, "type")
    }

    fn types(&self) -> Result<Vec<i64>> {
        text::read_types(&self.folder.join("type.raw"))
    }

    fn type_place(&self, atom: usize) -> String {
        text::type_place(&self.folder.join("type.raw"), atom)
    }

    fn type_map_place(&self) -> String {
        self.array_place(0, "type_map")
    }

    fn type_map(&self) -> Result<Option<Vec<String>>> {
        let path = self.folder.join("type_map.raw");
        if path.is_file() { text::read_names(&path).map(Some) } else { Ok(None) }
    }

    fn nopbc(&self) -> bool {
        self.folder.join("nopbc").is_file()
    }

    fn sets(&self) -> &[String] {
        &self.sets
    }

    fn array_place(&self, _set: usize, name: &str) -> String {
        self.folder.join(format!("{name}.raw")).display().to_string()
    }

    fn array(&self, _set: usize, name: Cow<'static, str>) -> Result<Option<Box<dyn Array>>> {
        let array = RawArray::open(self.folder.join(format!("{name}.raw")))?;
        Ok(array.map(|array| Box::new(array) as Box<dyn Array>))
    }
}

/// One text file. Lines are found once, when it is opened; a frame is parsed when it is read.
struct RawArray {
    path: PathBuf,
    shape: [usize; 2],
    lines: Vec<Line>,
}

struct Line {
    offset: u64,
    bytes: u32,
    number: u32,
}

impl RawArray {
    /// `None` where there is no such file.
    fn open(path: PathBuf) -> Result<Option<RawArray>> {
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(e).io("open", &path),
        };
        let (mut reader, mut buffer) = (BufReader::with_capacity(1 << 16, file), Vec::new());
        let (mut lines, mut width, mut offset) = (Vec::new(), 0, 0);
        for number in 1.. {
            buffer.clear();
            let bytes = reader.read_until(b'\n', &mut buffer).io("read", &path)?;
            if bytes == 0 {
                break;
            }
            if let Some(columns) = columns(&buffer) {
                width = if lines.is_empty() { columns } else { width };
                lines.push(Line { offset, bytes: bytes as u32, number });
            }
            offset += bytes as u64;
        }
        Ok(Some(RawArray { path, shape: [lines.len(), width], lines }))
    }

    fn parse(&self, out: &mut [f64], line: &Line, bytes: &[u8]) -> Result<()> {
        let place = || format!("{}: line {}", self.path.display(), line.number);
        let text = std::str::from_utf8(bytes).map_err(|_| err!("{}: this is not text", place()))?;
        let mut found = 0;
        for (_, word) in text::words(text) {
            let x = word.parse::<f64>().map_err(|_| err!("{}: '{word}' is not a number", place()))?;
            if let Some(slot) = out.get_mut(found) {
                *slot = x;
            }
            found += 1;
        }
        if found != out.len() {
            return Err(err!("{}: {found} numbers found, {} wanted", place(), out.len())
                .help("each line holds one frame"));
        }
        Ok(())
    }
}

/// Number of words on a line; `None` for blank lines and comments.
fn columns(line: &[u8]) -> Option<usize> {
    let line = line.split(|&b| b == b'#').next().unwrap_or(line);
    let count = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty()).count();
    (count > 0).then_some(count)
}

impl Array for RawArray {
    fn place(&self) -> String {
        self.path.display().to_string()
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Text does not tell 1 from 1.0.
    fn kind(&self) -> Kind {
        Kind::Float
    }

    fn read(&self, out: &mut [f64], first: usize, count: usize) -> Result<()> {
        if count == 0 || out.is_empty() {
            return Ok(());
        }
        let (width, lines) = (out.len() / count, &self.lines[first..first + count]);
        let start = lines[0].offset;
        let end = lines[count - 1].offset + u64::from(lines[count - 1].bytes);
        let mut file = File::open(&self.path).io("open", &self.path)?;
        let mut bytes = vec![0; (end - start) as usize];
        file.seek(SeekFrom::Start(start)).io("read", &self.path)?;
        file.read_exact(&mut bytes).io("read", &self.path)?;
        for (row, line) in out.chunks_exact_mut(width).zip(lines) {
            let at = (line.offset - start) as usize;
            self.parse(row, line, &bytes[at..at + line.bytes as usize])?;
        }
        Ok(())
    }
}
