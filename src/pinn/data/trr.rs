//! GROMACS trajectories (.trr): frames of cells, positions, velocities and forces, in either precision and byte order.

use super::file::{ByteFile, Handle};
use super::xdr::Xdr;
use crate::error::{Error, Result};
use crate::{bail, err};
use std::path::Path;

/// The number that every frame starts with.
const MAGIC: i32 = 1993;
/// What follows it.
const VERSION: &[u8] = b"GMX_trn_file";
/// Bytes of a header of double precision; that of single precision is eight bytes shorter.
const HEADER_BYTES: u64 = 92;

/// A trajectory with the place of each frame.
#[derive(Debug)]
pub struct Trajectory {
    file: ByteFile,
    frames: Vec<Header>,
}

/// What a frame says about itself, and where it is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Header {
    /// Offset of the frame.
    pub offset: u64,
    header_bytes: u64,
    pub n_atoms: usize,
    pub step: i32,
    /// ps.
    pub time: f64,
    pub lambda: f64,
    pub double: bool,
    /// True where the file was written by a machine of the other byte order.
    pub swapped: bool,
    sections: Sections,
}

/// Sizes of the parts of a frame, bytes.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct Sections {
    cell: u64,
    virial: u64,
    pressure: u64,
    x: u64,
    v: u64,
    f: u64,
}

/// The numbers of a frame, as stored.
#[derive(Debug, Clone, PartialEq)]
pub struct Frame {
    /// nm; rows are the lattice vectors.
    pub cell: Option<[[f64; 3]; 3]>,
    /// nm.
    pub x: Option<Vec<[f64; 3]>>,
    /// kJ/(mol nm).
    pub f: Option<Vec<[f64; 3]>>,
}

impl Header {
    /// Bytes of the whole frame.
    fn length(&self) -> u64 {
        let s = &self.sections;
        self.header_bytes + s.cell + s.virial + s.pressure + s.x + s.v + s.f
    }

    /// Whether it holds a cell.
    pub fn has_cell(&self) -> bool {
        self.sections.cell > 0
    }

    /// Whether it holds positions.
    pub fn has_positions(&self) -> bool {
        self.sections.x > 0
    }

    /// Whether it holds forces.
    pub fn has_forces(&self) -> bool {
        self.sections.f > 0
    }
}

impl Trajectory {
    /// Walks over the headers of all frames.
    pub fn open(path: &Path) -> Result<Trajectory> {
        let file = ByteFile::new(path)?;
        let mut frames: Vec<Header> = Vec::new();
        let handle = file.open()?;
        let mut offset = 0;
        while offset < file.len() {
            let header = header(&handle, &file, offset);
            let header = header.map_err(|e| at(&file, frames.len(), offset, e))?;
            offset += header.length();
            frames.push(header);
        }
        drop(handle);
        if frames.is_empty() {
            bail!("{}: the file is empty", path.display());
        }
        Ok(Trajectory { file, frames })
    }

    /// What each frame says about itself.
    pub fn frames(&self) -> &[Header] {
        &self.frames
    }

    /// The file.
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// Reads one frame. Velocities, virial and pressure are skipped.
    pub fn read(&self, index: usize) -> Result<Frame> {
        let header = &self.frames[index];
        let frame = self.read_at(header);
        frame.map_err(|e| at(&self.file, index, header.offset, e))
    }

    fn read_at(&self, header: &Header) -> Result<Frame> {
        let handle = self.file.open()?;
        let s = &header.sections;
        let (cell_at, x_at) = (
            header.offset + header.header_bytes,
            header.offset + header.header_bytes + s.cell + s.virial + s.pressure,
        );
        let rows = |offset, bytes| match bytes {
            0 => Ok(None),
            _ => rows(&handle.read(offset, bytes)?, header).map(Some),
        };
        let cell = rows(cell_at, s.cell)?;
        let cell =
            cell.map(|rows| <[[f64; 3]; 3]>::try_from(rows).expect("a cell has three rows, as was checked"));
        Ok(Frame { cell, x: rows(x_at, s.x)?, f: rows(x_at + s.x + s.v, s.f)? })
    }
}

fn at(file: &ByteFile, frame: usize, offset: u64, e: Error) -> Error {
    e.at(format_args!("{}: frame {frame} at byte {offset}", file.path().display()))
}

/// Reads and checks the header at an offset.
fn header(handle: &Handle, file: &ByteFile, offset: u64) -> Result<Header> {
    let left = file.len() - offset;
    let bytes = handle.read(offset, left.min(HEADER_BYTES))?;
    let mut xdr = Xdr::new(&bytes);
    let truncated =
        |e: Error| e.help("the file ends within a header: it is cut off, or is still being written");
    let magic = xdr.i32().map_err(truncated)?;
    xdr.swapped = magic != MAGIC;
    if xdr.swapped && magic.swap_bytes() != MAGIC {
        return Err(
            err!("found {magic}, wanted {MAGIC}").help("every frame of a .trr file starts with this number")
        );
    }
    let (slen, length) = (xdr.i32().map_err(truncated)?, xdr.u32().map_err(truncated)?);
    let version = xdr.bytes(VERSION.len()).map_err(truncated)?;
    if (slen, length) != (13, 12) || version != VERSION {
        bail!("found the version {:?}, wanted GMX_trn_file", String::from_utf8_lossy(version));
    }
    let mut sizes = [0i32; 13];
    for size in &mut sizes {
        *size = xdr.i32().map_err(truncated)?;
    }
    let (sections, n_atoms, double) = sections(&sizes)?;
    let mut real = || if double { xdr.f64() } else { xdr.f32().map(f64::from) };
    let (time, lambda) = (real().map_err(truncated)?, real().map_err(truncated)?);
    let header_bytes = xdr.at() as u64;
    let header = Header {
        offset,
        header_bytes,
        n_atoms,
        step: sizes[11],
        time,
        lambda,
        double,
        swapped: xdr.swapped,
        sections,
    };
    if header.length() > left {
        return Err(err!("the frame has {} bytes, but the file has only {left} left", header.length())
            .help("the file is cut off, or is still being written"));
    }
    Ok(header)
}

/// The sizes of the parts, the number of atoms, and whether numbers are float64.
fn sections(sizes: &[i32; 13]) -> Result<(Sections, usize, bool)> {
    let names = ["ir", "e", "box", "vir", "pres", "top", "sym", "x", "v", "f"];
    let mut bytes = [0u64; 10];
    for (i, name) in names.iter().enumerate() {
        bytes[i] = u64::try_from(sizes[i]).map_err(|_| err!("{name}_size is {}", sizes[i]))?;
    }
    for i in [0, 1, 5, 6] {
        if bytes[i] != 0 {
            bail!("{}_size is {}, wanted 0: GROMACS writes no such part", names[i], bytes[i]);
        }
    }
    let n_atoms = match usize::try_from(sizes[10]) {
        Ok(n) if n > 0 => n,
        _ => bail!("the number of atoms is {}", sizes[10]),
    };
    let numbers =
        [(2, 9), (3, 9), (4, 9), (7, 3 * n_atoms as u64), (8, 3 * n_atoms as u64), (9, 3 * n_atoms as u64)];
    let Some(&(first, count)) = numbers.iter().find(|(i, _)| bytes[*i] > 0) else {
        bail!("the frame holds neither a cell nor positions, velocities or forces")
    };
    let double = bytes[first] == 8 * count;
    let real = if double { 8 } else { 4 };
    for (i, count) in numbers {
        if bytes[i] != 0 && bytes[i] != real * count {
            bail!("{}_size is {}, wanted {} for {n_atoms} atoms", names[i], bytes[i], real * count);
        }
    }
    let [_, _, cell, virial, pressure, _, _, x, v, f] = bytes;
    Ok((Sections { cell, virial, pressure, x, v, f }, n_atoms, double))
}

/// Numbers in rows of three.
fn rows(bytes: &[u8], header: &Header) -> Result<Vec<[f64; 3]>> {
    let mut xdr = Xdr::new(bytes);
    xdr.swapped = header.swapped;
    let mut real = || if header.double { xdr.f64() } else { xdr.f32().map(f64::from) };
    let n = bytes.len() / if header.double { 24 } else { 12 };
    (0..n).map(|_| Ok([real()?, real()?, real()?])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(name: &str) -> Trajectory {
        Trajectory::open(&Path::new("tests/pinn_data/mimic").join(name)).unwrap()
    }

    #[test]
    fn headers_of_both_precisions_are_read() {
        for (name, double) in [("sample_single.trr", false), ("sample_double.trr", true)] {
            let trajectory = open(name);
            assert_eq!(trajectory.frames().len(), 5);
            let header = &trajectory.frames()[2];
            assert_eq!((header.n_atoms, header.step, header.double, header.swapped), (19, 2, double, false));
            assert!((header.time - 0.001).abs() < 1e-9 && header.lambda == 0.0);
            assert!(header.has_cell() && header.has_positions() && header.has_forces());
        }
    }

    /// The same file as a machine of the other byte order would write it.
    fn swapped(bytes: &[u8], real: usize) -> Vec<u8> {
        let header = if real == 8 { 92 } else { 84 };
        let mut out = bytes.to_vec();
        let frame = bytes.len() / 5;
        for frame in out.chunks_mut(frame) {
            let (head, reals) = frame.split_at_mut(76);
            for (i, word) in head.chunks_mut(4).enumerate() {
                if !(3..6).contains(&i) {
                    word.reverse();
                }
            }
            reals.chunks_mut(real).for_each(<[u8]>::reverse);
            assert_eq!((76 + 2 * real), header);
        }
        out
    }

    #[test]
    fn a_file_of_the_other_byte_order_gives_the_same_numbers() {
        let folder = tempfile::tempdir().unwrap();
        for (name, real) in [("sample_single.trr", 4), ("sample_double.trr", 8)] {
            let bytes = std::fs::read(Path::new("tests/pinn_data/mimic").join(name)).unwrap();
            let path = folder.path().join(name);
            std::fs::write(&path, swapped(&bytes, real)).unwrap();
            let (ours, other) = (open(name), Trajectory::open(&path).unwrap());
            assert!(other.frames()[0].swapped);
            for i in 0..5 {
                assert_eq!(ours.read(i).unwrap(), other.read(i).unwrap());
            }
        }
    }

    fn error_of(change: fn(&mut Vec<u8>)) -> String {
        let mut bytes = std::fs::read("tests/pinn_data/mimic/sample_single.trr").unwrap();
        change(&mut bytes);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("bad.trr");
        std::fs::write(&path, bytes).unwrap();
        Trajectory::open(&path).unwrap_err().to_string()
    }

    #[test]
    fn errors_name_frame_and_byte() {
        let e = error_of(|b| b.truncate(2000));
        assert!(
            e.contains(
                "bad.trr: frame 2 at byte 1608: the frame has 804 bytes, but the file has only 392 left"
            ),
            "{e}"
        );
        let e = error_of(|b| b.truncate(1620));
        assert!(e.contains("frame 2 at byte 1608: byte 12: 12 bytes wanted, 0 are left"), "{e}");
        assert!(e.contains("ends within a header"), "{e}");
        assert!(error_of(|b| b[804] = 9).contains("frame 1 at byte 804: found"));
        assert!(error_of(|b| b[64..68].fill(0xff)).contains("the number of atoms is -1"));
        assert!(error_of(|b| b[52..56].fill(0x7f)).contains("x_size is 2139062143, wanted 228"));
        assert!(error_of(Vec::clear).contains("the file is empty"));
    }
}
