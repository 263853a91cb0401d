//! deepmd/npy: type.raw beside set.* folders of npy files. Mixed type is the same with real_atom_types.npy.

use super::{Array, Format, Kind, Source, text};
use crate::data::npy::NpyHeader;
use crate::error::{IoContext, Result};
use crate::{bail, err};
use std::borrow::Cow;
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

    fn array(&self, set: usize, name: Cow<'static, str>) -> Result<Option<Box<dyn Array>>> {
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

/// Kinds of numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    Float,
    Int,
    Uint,
}

/// How one element is stored.
#[derive(Debug, Clone, Copy)]
struct Element {
    class: Class,
    bytes: usize,
    big_endian: bool,
}

/// One npy file: what its header said. The file itself is closed.
struct NpyArray {
    folder: Arc<Path>,
    name: Cow<'static, str>,
    shape: Box<[usize]>,
    element: Element,
    fortran: bool,
    /// Where the first element starts.
    data_offset: u64,
}

impl NpyArray {
    /// `None` where there is no such file.
    fn open(folder: &Arc<Path>, name: Cow<'static, str>) -> Result<Option<NpyArray>> {
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

    fn from_header(file: File, folder: &Arc<Path>, name: Cow<'static, str>) -> Result<NpyArray> {
        // One read of the file suffices for nearly every header.
        let header = NpyHeader::read(&mut BufReader::with_capacity(256, file))
            .map_err(|e| err!("not a readable npy file: {e}").help("write it with numpy.save"))?;
        let shape: Option<Box<[usize]>> = header.shape.iter().map(|&n| usize::try_from(n).ok()).collect();
        let shape = shape.filter(|s| s.iter().try_fold(16usize, |a, &n| a.checked_mul(n.max(1))).is_some());
        let Some(shape) = shape else { bail!("shape {:?} is too large", header.shape) };
        Ok(NpyArray {
            folder: folder.clone(),
            name,
            element: element(header.descr.as_deref())?,
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
        if self.element.class == Class::Float { Kind::Float } else { Kind::Integer }
    }

    fn is_one_row(&self) -> bool {
        !self.fortran && matches!(*self.shape, [1, _])
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

/// What a `descr` such as `<f8` says: byte order, kind, bytes.
fn element(descr: Option<&str>) -> Result<Element> {
    let wanted = "numbers are stored as float64 or float32; convert with numpy: array.astype(numpy.float64)";
    let Some(descr) = descr else {
        return Err(err!("found records, wanted an array of numbers").help(wanted));
    };
    let (class, bytes) = match descr.trim_start_matches(['<', '>', '|', '=']) {
        "f4" => (Class::Float, 4),
        "f8" => (Class::Float, 8),
        "i1" => (Class::Int, 1),
        "i2" => (Class::Int, 2),
        "i4" => (Class::Int, 4),
        "i8" => (Class::Int, 8),
        "u1" => (Class::Uint, 1),
        "u2" => (Class::Uint, 2),
        "u4" => (Class::Uint, 4),
        "u8" => (Class::Uint, 8),
        _ => return Err(err!("found elements of type {descr}, wanted numbers").help(wanted)),
    };
    Ok(Element { class, bytes, big_endian: descr.starts_with('>') })
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
        (Class::Float, 8) => each!(f64),
        (Class::Float, 4) => each!(f32),
        (Class::Int, 1) => each!(i8),
        (Class::Int, 2) => each!(i16),
        (Class::Int, 4) => each!(i32),
        (Class::Int, 8) => each!(i64),
        (Class::Uint, 1) => each!(u8),
        (Class::Uint, 2) => each!(u16),
        (Class::Uint, 4) => each!(u32),
        (Class::Uint, 8) => each!(u64),
        (class, bytes) => unreachable!("element() lets no {class:?} of {bytes} bytes through"),
    }
}
