//! HDF5: `file.hdf5#/group`, where groups are folders and datasets are files of the deepmd/npy layout.

use super::{Array, Format, Kind, Source, text};
use crate::error::{Error, Result};
use crate::memory::afford;
use crate::{bail, err};
use hdf5_reader::{Datatype, Hdf5File, SliceInfo, SliceInfoElem};
use std::borrow::Cow;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

/// Names of elements or types; far more than there are.
const LARGEST_TYPE_MAP: u128 = 100_000;

/// One file with any number of systems.
pub struct Hdf5;

impl Format for Hdf5 {
    fn name(&self) -> &'static str {
        "HDF5"
    }

    fn recognises(&self, path: &str) -> bool {
        !Path::new(path).is_dir() && Path::new(split(path).0).is_file()
    }

    fn open(&self, path: &str) -> Result<Box<dyn Source>> {
        let (file, group) = split(path);
        let handle = open_file(file)?;
        let opened = handle.group(group).map_err(|e| foreign(path, e))?;
        let (groups, datasets) = opened.member_names().map_err(|e| foreign(path, e))?;
        if !datasets.iter().any(|name| name == "type.raw") {
            return Err(err!("{path}: found no dataset type.raw in this group")
                .help("name the group of a system, as in file.hdf5#/group"));
        }
        let mut sets: Vec<String> = groups.into_iter().filter(|name| name.starts_with("set.")).collect();
        sets.sort();
        if sets.is_empty() {
            bail!("{path}: found no set.* group next to type.raw");
        }
        let mut members = Vec::new();
        for set in &sets {
            let names = opened.group(set).and_then(|set| set.member_names());
            members.push(names.map_err(|e| foreign(&format!("{path}/{set}"), e))?.1);
        }
        Ok(Box::new(Hdf5Source { file: Arc::from(file), group: group.to_owned(), datasets, sets, members }))
    }
}

/// Every system in an HDF5 file at or below `path`, sorted, as `file#/group`.
pub fn systems_in_file(path: &str) -> Result<Vec<String>> {
    let (file, group) = split(path);
    let handle = open_file(file)?;
    let root = handle.group(group).map_err(|e| foreign(path, e))?;
    let mut found = Vec::new();
    let mut pending = vec![(group.trim_matches('/').to_owned(), root)];
    while let Some((name, group)) = pending.pop() {
        let (groups, datasets) = group.member_names().map_err(|e| foreign(path, e))?;
        if datasets.iter().any(|dataset| dataset == "type.raw") {
            found.push(format!("{file}#/{name}"));
        }
        for child in groups.iter().filter(|child| !child.starts_with("set.")) {
            let full = if name.is_empty() { child.clone() } else { format!("{name}/{child}") };
            pending.push((full, group.group(child).map_err(|e| foreign(path, e))?));
        }
    }
    found.sort();
    Ok(found)
}

/// `file#/group`: the first `#` splits; no `#` means the root group.
fn split(path: &str) -> (&str, &str) {
    let mut parts = path.split('#');
    (parts.next().unwrap_or(path), parts.next().unwrap_or("/"))
}

struct Hdf5Source {
    file: Arc<str>,
    group: String,
    datasets: Vec<String>,
    sets: Vec<String>,
    /// Names of the datasets of each set.
    members: Vec<Vec<String>>,
}

impl Hdf5Source {
    fn dataset_path(&self, name: &str) -> String {
        format!("{}/{name}", self.group.trim_end_matches('/'))
    }

    fn place(&self, name: &str) -> String {
        format!("{}#{}", self.file, self.dataset_path(name))
    }
}

impl Source for Hdf5Source {
    fn types_place(&self) -> String {
        self.place("type.raw")
    }

    fn types(&self) -> Result<Vec<i64>> {
        let array = Hdf5Array::open(&self.file, self.dataset_path("type.raw"))?;
        // A few bytes of a file can speak of any number of elements.
        afford(32 * array.len() as u128, format_args!("{}: {:?} atoms", array.place(), array.shape))?;
        let mut values = vec![0.0; array.len()];
        // A flat list has one "frame" for each atom here.
        array.read(&mut values, 0, array.shape.first().copied().unwrap_or(1))?;
        if let Some(x) = values.iter().find(|x| x.fract() != 0.0) {
            bail!("{}: {x} is not a type index", self.types_place());
        }
        Ok(values.into_iter().map(|x| x as i64).collect())
    }

    fn type_place(&self, atom: usize) -> String {
        format!("{}: element {atom}", self.types_place())
    }

    fn type_map_place(&self) -> String {
        self.place("type_map.raw")
    }

    fn type_map(&self) -> Result<Option<Vec<String>>> {
        if !self.datasets.iter().any(|name| name == "type_map.raw") {
            return Ok(None);
        }
        let place = self.type_map_place();
        let dataset = open_file(&self.file)?.dataset(&self.dataset_path("type_map.raw"));
        if let Ok(dataset) = &dataset {
            let n = dataset.shape().iter().fold(1u128, |n, &extent| n.saturating_mul(u128::from(extent)));
            if n > LARGEST_TYPE_MAP {
                bail!("{place}: {n} names of types, wanted at most {LARGEST_TYPE_MAP}");
            }
        }
        let names = dataset.and_then(|d| d.read_strings()).map_err(|e| foreign(&place, e))?;
        Ok(Some(names.iter().flat_map(|name| text::words(name)).map(|(_, name)| name.to_owned()).collect()))
    }

    fn nopbc(&self) -> bool {
        self.datasets.iter().any(|name| name == "nopbc")
    }

    fn sets(&self) -> &[String] {
        &self.sets
    }

    fn array_place(&self, set: usize, name: &str) -> String {
        self.place(&format!("{}/{name}.npy", self.sets[set]))
    }

    fn array(&self, set: usize, name: Cow<'static, str>) -> Result<Option<Box<dyn Array>>> {
        let file_name = format!("{name}.npy");
        if !self.members[set].contains(&file_name) {
            return Ok(None);
        }
        let path = self.dataset_path(&format!("{}/{file_name}", self.sets[set]));
        Ok(Some(Box::new(Hdf5Array::open(&self.file, path)?)))
    }
}

/// One dataset: its place and shape.
struct Hdf5Array {
    file: Arc<str>,
    dataset: String,
    shape: Vec<usize>,
    kind: Kind,
}

impl Hdf5Array {
    fn open(file: &Arc<str>, path: String) -> Result<Hdf5Array> {
        let place = format!("{file}#{path}");
        let dataset = open_file(file)?.dataset(&path).map_err(|e| foreign(&place, e))?;
        let kind = match dataset.dtype() {
            Datatype::FloatingPoint { size: 4 | 8, .. } => Kind::Float,
            Datatype::FixedPoint { size: 1 | 2 | 4 | 8, .. } => Kind::Integer,
            other => {
                return Err(err!("{place}: found elements of type {other:?}, wanted numbers")
                    .help("numbers are stored as float64 or float32"));
            }
        };
        let shape: Vec<usize> = dataset.shape().iter().map(|&n| n as usize).collect();
        if shape.iter().try_fold(16usize, |n, &extent| n.checked_mul(extent.max(1))).is_none() {
            bail!("{place}: shape {shape:?} is too large");
        }
        Ok(Hdf5Array { file: file.clone(), dataset: path, shape, kind })
    }
}

impl Array for Hdf5Array {
    fn place(&self) -> String {
        format!("{}#{}", self.file, self.dataset)
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn kind(&self) -> Kind {
        self.kind
    }

    fn read(&self, out: &mut [f64], first: usize, count: usize) -> Result<()> {
        if out.is_empty() {
            return Ok(());
        }
        let fail = |e| foreign(&self.place(), e);
        let dataset = open_file(&self.file)?.dataset(&self.dataset).map_err(fail)?;
        let mut selection = SliceInfo::all(self.shape.len());
        // A single frame may be stored without the dimension of frames; then everything is that frame.
        if self.shape.first().is_some_and(|&n| first + count <= n && out.len() * n == count * self.len()) {
            let (start, end) = (first as u64, (first + count) as u64);
            selection.selections[0] = SliceInfoElem::Slice { start, end, step: 1 };
        } else if self.len() != out.len() {
            bail!("{}: {} numbers found, {} wanted", self.place(), self.len(), out.len());
        }
        macro_rules! copy {
            ($ty:ty) => {{
                let values = dataset.read_slice::<$ty>(&selection).map_err(fail)?;
                if values.len() != out.len() {
                    bail!("{}: {} numbers found, {} wanted", self.place(), values.len(), out.len());
                }
                for (x, value) in out.iter_mut().zip(values.iter()) {
                    *x = *value as f64;
                }
            }};
        }
        match dataset.dtype() {
            Datatype::FloatingPoint { size: 8, .. } => copy!(f64),
            Datatype::FloatingPoint { size: 4, .. } => copy!(f32),
            Datatype::FixedPoint { size: 1, signed: true, .. } => copy!(i8),
            Datatype::FixedPoint { size: 2, signed: true, .. } => copy!(i16),
            Datatype::FixedPoint { size: 4, signed: true, .. } => copy!(i32),
            Datatype::FixedPoint { size: 8, signed: true, .. } => copy!(i64),
            Datatype::FixedPoint { size: 1, .. } => copy!(u8),
            Datatype::FixedPoint { size: 2, .. } => copy!(u16),
            Datatype::FixedPoint { size: 4, .. } => copy!(u32),
            Datatype::FixedPoint { size: 8, .. } => copy!(u64),
            other => bail!("{}: found elements of type {other:?}, wanted numbers", self.place()),
        }
        Ok(())
    }
}

impl Hdf5Array {
    fn len(&self) -> usize {
        self.shape.iter().product()
    }
}

fn foreign(place: &str, e: hdf5_reader::error::Error) -> Error {
    err!("{place}: cannot read HDF5: {e}")
}

/// Files that stay open at most. A file with thousands of systems is worth keeping open: its table of contents
/// is long and every read would parse it again.
const MAX_OPEN: usize = 4;

/// Bytes of decompressed chunks that each open file may keep.
const CHUNK_CACHE_BYTES: usize = 8 << 20;

struct OpenFile {
    path: String,
    stamp: (u64, Option<SystemTime>),
    handle: Arc<Hdf5File>,
}

/// The most recently used files, newest last.
static OPEN: Mutex<Vec<OpenFile>> = Mutex::new(Vec::new());

/// The file, from the few that are kept open where it is among them and did not change.
fn open_file(path: &str) -> Result<Arc<Hdf5File>> {
    let meta = std::fs::metadata(path).map_err(|e| err!("{path}: cannot read: {e}"))?;
    let stamp = (meta.len(), meta.modified().ok());
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    let known = open.iter().position(|file| file.path == path);
    if let Some(file) = known.map(|i| open.remove(i)).filter(|file| file.stamp == stamp) {
        let handle = file.handle.clone();
        open.push(file);
        return Ok(handle);
    }
    let options = hdf5_reader::OpenOptions::default().with_chunk_cache_bytes(CHUNK_CACHE_BYTES);
    let handle = Hdf5File::open_with_options(path, options).map_err(|e| {
        err!("{path}: cannot read as HDF5: {e}")
            .help("a system is a folder with type.raw, or file.hdf5#/group")
    })?;
    let handle = Arc::new(handle);
    if open.len() >= MAX_OPEN {
        open.remove(0);
    }
    open.push(OpenFile { path: path.to_owned(), stamp, handle: handle.clone() });
    Ok(handle)
}
