//! deepmd/npy: type.raw beside set.* folders of npy files. Mixed type is the same with real_atom_types.npy.

use super::{Array, Format, Kind, Source, text};
use crate::error::{IoContext, Result};
use crate::{bail, err};
use npyz::{DType, Endianness, NpyHeader, Order, TypeChar};
use std::fs::File;
use std::io::{BufReader, ErrorKind, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The format that DeePMD-kit trains on.
pub struct Npy;

impl Format for Npy {
    fn name(&self) -> &'static str {
        "deepmd/npy"
    }

    fn recognises(&self, path: &str) -> bool {
        let folder = Path::new(path);
        folder.join("type.raw").is_file() && set_folders(folder).is_ok_and(|sets| !sets.is_empty())
    }

    fn open(&self, path: &str) -> Result<Box<dyn Source>> {
        let folder = PathBuf::from(path);
        let names = set_folders(&folder)?;
        let folders = names.iter().map(|name| Arc::from(folder.join(name))).collect();
        Ok(Box::new(NpySource { folder, names, folders }))
    }
}

struct NpySource {
    folder: PathBuf,
    names: Vec<String>,
    folders: Vec<Arc<Path>>,
}

impl Source for NpySource {
    fn types_place(&self) -> String {
        self.folder.join("type.raw").display().to_string()
    }

    fn types(&self) -> Result<Vec<i64>> {
        text::read_types(&self.folder.join("type.raw"))
    }

    fn type_place(&self, atom: usize) -> String {
        text::type_place(&self.folder.join("type.raw"), atom)
    }

    fn type_map_place(&self) -> String {
        self.folder.join("type_map.raw").display().to_string()
    }

    fn type_map(&self) -> Result<Option<Vec<String>>> {
        let path = self.folder.join("type_map.raw");
        if path.is_file() { text::read_names(&path).map(Some) } else { Ok(None) }
    }

    fn nopbc(&self) -> bool {
        self.folder.join("nopbc").is_file()
    }

    fn sets(&self) -> &[String] {
        &self.names
    }

    fn array_place(&self, set: usize, name: &str) -> String {
        self.folders[set].join(format!("{name}.npy")).display().to_string()
    }

    fn array(&self, set: usize, name: &'static str) -> Result<Option<Box<dyn Array>>> {
        let array = NpyArray::open(&self.folders[set], name)?;
        Ok(array.map(|array| Box::new(array) as Box<dyn Array>))
    }
}

/// Names of the `set.*` folders, sorted.
fn set_folders(folder: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder).io("list", folder)? {
        let entry = entry.io("list", folder)?;
        if let Ok(name) = entry.file_name().into_string()
            && name.starts_with("set.")
            && entry.path().is_dir()
        {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

/// How one element is stored.
#[derive(Debug, Clone, Copy)]
struct Element {
    class: TypeChar,
    bytes: usize,
    big_endian: bool,
}

/// One npy file: what its header said. The file itself is closed.
struct NpyArray {
    folder: Arc<Path>,
    name: &'static str,
    shape: Box<[usize]>,
    element: Element,
    fortran: bool,
    /// Where the first element starts.
    data_offset: u64,
}

impl NpyArray {
    /// `None` where there is no such file.
    fn open(folder: &Arc<Path>, name: &'static str) -> Result<Option<NpyArray>> {
        let path = folder.join(format!("{name}.npy"));
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(e).io("open", &path),
        };
        let file_bytes = file.metadata().io("read", &path)?.len();
        let array = Self::from_header(file, folder, name).map_err(|e| e.at(path.display()))?;
        let wanted = array.data_offset + (array.len() * array.element.bytes) as u64;
        if file_bytes < wanted {
            return Err(err!(
                "{}: the file ends early: {file_bytes} bytes found, {wanted} wanted for shape {:?}",
                path.display(),
                array.shape
            )
            .help("the file was not written to its end; make it again"));
        }
        Ok(Some(array))
    }

    fn from_header(file: File, folder: &Arc<Path>, name: &'static str) -> Result<NpyArray> {
        let header = Header::read(file)
            .map_err(|e| err!("not a readable npy file: {e}").help("write it with numpy.save"))?;
        let shape: Option<Box<[usize]>> = header.shape.iter().map(|&n| usize::try_from(n).ok()).collect();
        let shape = shape.filter(|s| s.iter().try_fold(16usize, |a, &n| a.checked_mul(n.max(1))).is_some());
        let Some(shape) = shape else { bail!("shape {:?} is too large", header.shape) };
        Ok(NpyArray {
            folder: folder.clone(),
            name,
            element: element(&header.dtype)?,
            fortran: header.fortran && shape.len() > 1,
            shape,
            data_offset: header.bytes,
        })
    }

    fn path(&self) -> PathBuf {
        self.folder.join(format!("{}.npy", self.name))
    }

    fn len(&self) -> usize {
        self.shape.iter().product()
    }

    fn read_bytes(&self, first: usize, count: usize) -> std::io::Result<Vec<u8>> {
        let mut file = File::open(self.path())?;
        file.seek(SeekFrom::Start(self.data_offset + (first * self.element.bytes) as u64))?;
        let mut bytes = vec![0; count * self.element.bytes];
        file.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    /// Fortran order scatters a frame over the whole file, so the whole file is read and gathered from.
    fn read_fortran(&self, out: &mut [f64], first: usize, count: usize) -> std::io::Result<()> {
        let mut all = vec![0.0; self.len()];
        decode(&mut all, &self.read_bytes(0, self.len())?, self.element);
        let (n_frames, inner) = (self.shape[0], &self.shape[1..]);
        for (frame, row) in out.chunks_exact_mut(out.len() / count).enumerate() {
            for (column, x) in row.iter_mut().enumerate() {
                *x = all[first + frame + n_frames * fortran_index(column, inner)];
            }
        }
        Ok(())
    }
}

impl Array for NpyArray {
    fn place(&self) -> String {
        self.path().display().to_string()
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn kind(&self) -> Kind {
        if self.element.class == TypeChar::Float { Kind::Float } else { Kind::Integer }
    }

    fn read(&self, out: &mut [f64], first: usize, count: usize) -> Result<()> {
        let path = self.path();
        if count == 0 || out.is_empty() {
            return Ok(());
        }
        if self.fortran {
            return self.read_fortran(out, first, count).io("read", &path);
        }
        let width = out.len() / count;
        decode(out, &self.read_bytes(first * width, out.len()).io("read", &path)?, self.element);
        Ok(())
    }
}

/// Index in column-major order of the element with row-major index `index`.
fn fortran_index(mut index: usize, shape: &[usize]) -> usize {
    let mut stride: usize = shape.iter().product();
    let mut result = 0;
    for &n in shape.iter().rev() {
        stride /= n;
        result += index % n * stride;
        index /= n;
    }
    result
}

fn element(dtype: &DType) -> Result<Element> {
    let wanted = "numbers are stored as float64 or float32; convert with numpy: array.astype(numpy.float64)";
    let DType::Plain(ty) = dtype else {
        return Err(err!("found records, wanted an array of numbers").help(wanted));
    };
    let class = match (ty.type_char(), ty.size_field()) {
        (TypeChar::Float, 4 | 8) => TypeChar::Float,
        (TypeChar::Int, 1 | 2 | 4 | 8) => TypeChar::Int,
        (TypeChar::Uint, 1 | 2 | 4 | 8) => TypeChar::Uint,
        _ => return Err(err!("found elements of type {ty}, wanted numbers").help(wanted)),
    };
    Ok(Element { class, bytes: ty.size_field() as usize, big_endian: ty.endianness() == Endianness::Big })
}

/// Turns stored bytes into numbers. `bytes` holds one element for each of `out`.
fn decode(out: &mut [f64], bytes: &[u8], element: Element) {
    macro_rules! each {
        ($ty:ty) => {
            for (x, raw) in out.iter_mut().zip(bytes.as_chunks::<{ size_of::<$ty>() }>().0) {
                let value =
                    if element.big_endian { <$ty>::from_be_bytes(*raw) } else { <$ty>::from_le_bytes(*raw) };
                *x = value as f64;
            }
        };
    }
    match (element.class, element.bytes) {
        (TypeChar::Float, 8) => each!(f64),
        (TypeChar::Float, 4) => each!(f32),
        (TypeChar::Int, 1) => each!(i8),
        (TypeChar::Int, 2) => each!(i16),
        (TypeChar::Int, 4) => each!(i32),
        (TypeChar::Int, 8) => each!(i64),
        (TypeChar::Uint, 1) => each!(u8),
        (TypeChar::Uint, 2) => each!(u16),
        (TypeChar::Uint, 4) => each!(u32),
        (TypeChar::Uint, 8) => each!(u64),
        (class, bytes) => unreachable!("element() lets no {class:?} of {bytes} bytes through"),
    }
}

/// What stands in front of the numbers.
struct Header {
    dtype: DType,
    fortran: bool,
    shape: Vec<u64>,
    /// Length of the header.
    bytes: u64,
}

impl Header {
    fn read(mut file: File) -> std::io::Result<Header> {
        let mut start = Vec::with_capacity(256);
        (&mut file).take(256).read_to_end(&mut start)?;
        if let Some(header) = Self::as_numpy_writes_it(&start) {
            return Ok(header);
        }
        file.seek(SeekFrom::Start(0))?;
        let mut reader = Counted { inner: BufReader::new(file), count: 0 };
        let header = NpyHeader::from_reader(&mut reader)?;
        Ok(Header {
            dtype: header.dtype(),
            fortran: header.order() == Order::Fortran,
            shape: header.shape().to_vec(),
            bytes: reader.count,
        })
    }

    /// The one spelling that numpy uses. The general parser takes any Python literal, and 50 times as long:
    /// that would be most of the time to open thousands of systems.
    fn as_numpy_writes_it(start: &[u8]) -> Option<Header> {
        let rest = start.strip_prefix(b"\x93NUMPY\x01\x00")?;
        let (length, rest) = rest.split_first_chunk::<2>()?;
        let length = usize::from(u16::from_le_bytes(*length));
        let text = std::str::from_utf8(rest.get(..length)?).ok()?;
        let (descr, text) = text.strip_prefix("{'descr': '")?.split_once("', 'fortran_order': ")?;
        let (fortran, text) = text.split_once(", 'shape': (")?;
        let (shape, padding) = text.split_once("), }")?;
        let fortran = match fortran {
            "True" => true,
            "False" => false,
            _ => return None,
        };
        let shape = shape.split(',').map(str::trim).filter(|n| !n.is_empty()).map(|n| n.parse().ok());
        Some(Header {
            dtype: DType::Plain(descr.parse().ok()?),
            fortran,
            shape: shape.collect::<Option<_>>()?,
            bytes: padding.trim().is_empty().then_some(10 + length as u64)?,
        })
    }
}

/// Counts what is read, to know where a header ends.
struct Counted<R> {
    inner: R,
    count: u64,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        let n = self.inner.read(buf)?;
        self.count += n as u64;
        Ok(n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn npy(version: u8, text: &str) -> Vec<u8> {
        let length = text.len() as u32;
        let length =
            if version == 1 { length.to_le_bytes()[..2].to_vec() } else { length.to_le_bytes().to_vec() };
        [b"\x93NUMPY", &[version, 0][..], &length, text.as_bytes(), &[7; 64]].concat()
    }

    fn read(bytes: &[u8]) -> (String, bool, Vec<u64>, u64) {
        let path = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(path.path(), bytes).unwrap();
        let header = Header::read(File::open(path.path()).unwrap()).unwrap();
        (header.dtype.descr(), header.fortran, header.shape, header.bytes)
    }

    #[test]
    fn headers_of_every_spelling_say_the_same() {
        let numpy = "{'descr': '<f8', 'fortran_order': True, 'shape': (2, 9), }        \n";
        let other = "{ \"shape\": (2,9), 'fortran_order':True, 'descr':'<f8' }          \n";
        assert!(Header::as_numpy_writes_it(&npy(1, numpy)).is_some());
        assert!(Header::as_numpy_writes_it(&npy(1, other)).is_none());
        for (bytes, length) in [(npy(1, numpy), 10 + numpy.len()), (npy(2, numpy), 12 + numpy.len())] {
            assert_eq!(read(&bytes), ("'<f8'".into(), true, vec![2, 9], length as u64));
        }
        assert_eq!(read(&npy(1, other)), ("'<f8'".into(), true, vec![2, 9], 10 + other.len() as u64));
        let scalar = "{'descr': '>f4', 'fortran_order': False, 'shape': (), }\n";
        assert_eq!(read(&npy(1, scalar)).2, Vec::<u64>::new());
        let flat = "{'descr': '>f4', 'fortran_order': False, 'shape': (3,), }\n";
        assert_eq!(read(&npy(1, flat)), ("'>f4'".into(), false, vec![3], 10 + flat.len() as u64));
    }
}
