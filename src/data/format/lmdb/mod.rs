//! LMDB, as DeePMD-kit writes it: a folder with one database, in which every frame is a value (MessagePack) under its number, and
//! `__metadata__` says what all of them share.
//!
//! Frames have atoms of their own. Those with as many atoms and with the same labels become a system, `folder#ATOMS`, whose frames each have
//! their own types; nothing but the places of the frames is kept in memory.

mod tree;

use super::{Array, Format, Kind, Source};
use crate::error::{Error, Result};
use crate::{bail, err};
use rmpv::ValueRef;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;
use tree::{Place, Tree};

/// The file of a database within its folder.
const FILE: &str = "data.mdb";
const METADATA: &str = "__metadata__";
/// Frames that are looked at for labels; all of them where these differ.
const PROBES: usize = 256;
/// Databases that stay open at most.
const MAX_OPEN: usize = 8;

/// A folder with a database of frames.
pub struct Lmdb;

impl Format for Lmdb {
    fn name(&self) -> &'static str {
        "LMDB"
    }

    fn recognises(&self, path: &str) -> bool {
        is_lmdb(split(path).0)
    }

    fn open(&self, path: &str) -> Result<Box<dyn Source>> {
        let (folder, group) = split(path);
        let data = open_folder(folder)?;
        let Some(group) = group.and_then(|name| data.groups.iter().position(|group| group.name == name))
        else {
            return Err(err!("{path}: found no such frames")
                .help(format!("there are: {}", systems_in_folder(folder)?.join(", "))));
        };
        Ok(Box::new(LmdbSource { data, group, sets: ["frames".to_string()] }))
    }
}

/// Whether a folder holds such a database.
pub fn is_lmdb(folder: &str) -> bool {
    Path::new(folder).join(FILE).is_file()
}

/// The systems of a database.
pub fn systems_in_folder(folder: &str) -> Result<Vec<String>> {
    Ok(open_folder(folder)?.groups.iter().map(|group| format!("{folder}#{}", group.name)).collect())
}

fn split(path: &str) -> (&str, Option<&str>) {
    match path.rsplit_once('#') {
        Some((folder, group)) => (folder, Some(group)),
        None => (path, None),
    }
}

/// A database and where its frames are.
struct Database {
    path: String,
    tree: Tree,
    frames: Vec<Place>,
    type_map: Option<Vec<String>>,
    groups: Vec<Group>,
}

/// Frames with as many atoms and the same labels.
struct Group {
    /// The number of atoms, with a letter where labels differ.
    name: String,
    n_atoms: usize,
    /// What their fields are called in DeePMD-kit's other formats.
    fields: BTreeSet<String>,
    frames: Arc<[u32]>,
}

/// A frame, or metadata: names and values.
type Map<'a> = Vec<(ValueRef<'a>, ValueRef<'a>)>;

/// The name that a field has in DeePMD-kit's other formats.
fn canonical(name: &str) -> String {
    match name {
        "coords" => "coord".into(),
        "cells" => "box".into(),
        "energies" => "energy".into(),
        "forces" => "force".into(),
        "virials" => "virial".into(),
        "atom_types" | "atype" => "real_atom_types".into(),
        _ => match name.strip_prefix("atomic_") {
            Some(rest) => format!("atom_{rest}"),
            None => name.into(),
        },
    }
}

fn decode(bytes: &[u8]) -> Result<Map<'_>> {
    match rmpv::decode::read_value_ref(&mut &bytes[..]) {
        Ok(ValueRef::Map(map)) => Ok(map),
        Ok(_) => bail!("found no map of MessagePack"),
        Err(e) => bail!("cannot read as MessagePack: {e}"),
    }
}

/// Text, which may be stored as bytes.
fn text<'a>(value: &ValueRef<'a>) -> Option<&'a str> {
    match value {
        ValueRef::String(text) => (*text).into_str(),
        ValueRef::Binary(bytes) => std::str::from_utf8(bytes).ok(),
        _ => None,
    }
}

fn get<'a, 'b>(map: &'b Map<'a>, name: &str) -> Option<&'b ValueRef<'a>> {
    map.iter().find(|(key, _)| text(key) == Some(name)).map(|(_, value)| value)
}

/// The numbers of a field: an array as bytes with type and shape, or one number.
struct Numbers<'a> {
    /// As NumPy calls it: `<f8` or `float64`.
    dtype: &'a str,
    shape: Vec<usize>,
    data: &'a [u8],
    scalar: Option<f64>,
}

impl<'a> Numbers<'a> {
    fn of(value: &ValueRef<'a>) -> Option<Numbers<'a>> {
        let one = |dtype, x| Some(Numbers { dtype, shape: vec![1], data: &[], scalar: Some(x) });
        match value {
            ValueRef::F64(x) => one("<f8", *x),
            ValueRef::F32(x) => one("<f4", f64::from(*x)),
            ValueRef::Integer(x) => one("<i8", x.as_f64()?),
            ValueRef::Map(map) => {
                let dtype = text(get(map, "type")?)?;
                let ValueRef::Binary(data) = get(map, "data")? else { return None };
                let shape = match get(map, "shape") {
                    Some(ValueRef::Array(shape)) => {
                        shape.iter().map(|n| n.as_u64().map(|n| n as usize)).collect::<Option<Vec<_>>>()?
                    }
                    _ => vec![data.len() / size_of_type(dtype)?],
                };
                Some(Numbers { dtype, shape, data, scalar: None })
            }
            _ => None,
        }
    }

    fn len(&self) -> usize {
        self.shape.iter().product()
    }

    fn kind(&self) -> Kind {
        if short(self.dtype).starts_with('f') { Kind::Float } else { Kind::Integer }
    }

    /// Overwrites `out`; `None` where they are not as many.
    fn read(&self, out: &mut [f64]) -> Option<()> {
        if let (Some(x), [out]) = (self.scalar, &mut *out) {
            *out = x;
            return Some(());
        }
        let size = size_of_type(self.dtype)?;
        if self.len() != out.len() || self.data.len() != size * out.len() {
            return None;
        }
        let number: fn(&[u8]) -> f64 = match short(self.dtype) {
            "f8" => |b| f64::from_le_bytes(b.try_into().unwrap_or_default()),
            "f4" => |b| f32::from_le_bytes(b.try_into().unwrap_or_default()).into(),
            "i8" => |b| i64::from_le_bytes(b.try_into().unwrap_or_default()) as f64,
            "i4" => |b| i32::from_le_bytes(b.try_into().unwrap_or_default()).into(),
            "i2" => |b| i16::from_le_bytes(b.try_into().unwrap_or_default()).into(),
            "i1" => |b| i8::from_le_bytes(b.try_into().unwrap_or_default()).into(),
            "u1" => |b| b[0].into(),
            _ => return None,
        };
        out.iter_mut().zip(self.data.chunks_exact(size)).for_each(|(out, bytes)| *out = number(bytes));
        Some(())
    }
}

/// NumPy has two names for a type: `<f8` and `float64`.
fn short(dtype: &str) -> &str {
    match dtype {
        "float64" => "f8",
        "float32" => "f4",
        "int64" => "i8",
        "int32" => "i4",
        "int16" => "i2",
        "int8" => "i1",
        "uint8" => "u1",
        _ => dtype.trim_start_matches(['<', '|', '=']),
    }
}

/// Bytes of a number of NumPy's `<f8` and the like, stored as this machine has it.
fn size_of_type(dtype: &str) -> Option<usize> {
    let name = short(dtype);
    ["f8", "f4", "i8", "i4", "i2", "i1", "u1"].contains(&name).then(|| name[1..].parse().unwrap_or(1))
}

impl Database {
    fn open(folder: &str) -> Result<Database> {
        let tree = Tree::open(&Path::new(folder).join(FILE))?;
        let (mut frames, mut metadata) = (BTreeMap::new(), None);
        tree.walk(&mut |key, place| {
            match std::str::from_utf8(key) {
                Ok(METADATA) => metadata = Some(place),
                Ok(key) => {
                    if let Ok(number) = key.parse::<u32>() {
                        frames.insert(number, place);
                    }
                }
                Err(_) => (),
            }
            Ok(())
        })?;
        let Some(metadata) = metadata else {
            return Err(err!("{folder}: found no {METADATA}")
                .help("data sets of frames are those that DeePMD-kit and its tools write as LMDB"));
        };
        let bytes = tree.read(metadata)?;
        let metadata = decode(&bytes).map_err(|e| e.at(format_args!("{folder}: {METADATA}")))?;
        let n_frames = get(&metadata, "nframes").and_then(ValueRef::as_u64).unwrap_or(frames.len() as u64);
        if n_frames != frames.len() as u64 || frames.keys().enumerate().any(|(k, &n)| k as u32 != n) {
            return Err(err!("{folder}: {METADATA} speaks of {n_frames} frames, found {}", frames.len())
                .help("the data set is not complete: write it again"));
        }
        if frames.is_empty() {
            bail!("{folder}: found no frames");
        }
        let type_map = match get(&metadata, "type_map") {
            Some(ValueRef::Array(names)) => {
                let names = names.iter().map(|name| text(name).map(String::from)).collect::<Option<Vec<_>>>();
                Some(names.ok_or_else(|| err!("{folder}: {METADATA}: type_map is no list of names"))?)
            }
            _ => None,
        };
        let sizes = match get(&metadata, "frame_nlocs") {
            Some(ValueRef::Array(sizes)) => {
                sizes.iter().map(|n| n.as_u64().map(|n| n as usize)).collect::<Option<Vec<_>>>()
            }
            Some(value) => Numbers::of(value).and_then(|numbers| {
                let mut sizes = vec![0.0; numbers.len()];
                numbers.read(&mut sizes)?;
                Some(sizes.into_iter().map(|n| n as usize).collect())
            }),
            None => None,
        };
        let frames: Vec<Place> = frames.into_values().collect();
        let mut data = Database { path: folder.to_owned(), tree, frames, type_map, groups: Vec::new() };
        data.groups = data.find_groups(sizes.filter(|sizes| sizes.len() == n_frames as usize))?;
        Ok(data)
    }

    fn at_frame(&self, e: Error, frame: usize) -> Error {
        e.at(format_args!("{}: frame {frame}", self.path))
    }

    /// Gives a frame to whoever reads it.
    fn with_frame<R>(&self, frame: usize, read: impl FnOnce(&Map) -> Result<R>) -> Result<R> {
        let bytes = self.tree.read(self.frames[frame])?;
        decode(&bytes).and_then(|map| read(&map)).map_err(|e| self.at_frame(e, frame))
    }

    /// The names of a frame's fields, and its number of atoms.
    fn outline(&self, frame: usize) -> Result<(BTreeSet<String>, usize)> {
        self.with_frame(frame, |map| {
            let holds = |value: &ValueRef| Numbers::of(value).is_some();
            let fields: BTreeSet<String> = map
                .iter()
                .filter(|(_, value)| holds(value))
                .filter_map(|(key, _)| text(key).map(canonical))
                .collect();
            let types = field(map, "real_atom_types").ok_or_else(|| err!("found no atom_types"))?;
            Ok((fields, types.len()))
        })
    }

    /// `sizes`: atoms of every frame, where metadata has them.
    fn find_groups(&self, sizes: Option<Vec<usize>>) -> Result<Vec<Group>> {
        let sizes = match sizes {
            Some(sizes) => sizes,
            None => (0..self.frames.len()).map(|k| Ok(self.outline(k)?.1)).collect::<Result<_>>()?,
        };
        let mut of_size: BTreeMap<usize, Vec<u32>> = BTreeMap::new();
        sizes.iter().enumerate().for_each(|(k, &n)| of_size.entry(n).or_default().push(k as u32));
        let mut groups = Vec::new();
        for (n_atoms, frames) in of_size {
            let mut parts: BTreeMap<BTreeSet<String>, Vec<u32>> = BTreeMap::new();
            let probes = frames.len().div_ceil(PROBES);
            for &k in frames.iter().step_by(probes) {
                parts.entry(self.outline(k as usize)?.0).or_default().push(k);
            }
            if parts.len() == 1 {
                parts.values_mut().for_each(|all| *all = frames.clone());
            } else {
                parts.clear();
                for &k in &frames {
                    parts.entry(self.outline(k as usize)?.0).or_default().push(k);
                }
            }
            let several = parts.len() > 1;
            for (part, (fields, frames)) in parts.into_iter().enumerate() {
                let name = if several { format!("{n_atoms}.{part}") } else { n_atoms.to_string() };
                groups.push(Group { name, n_atoms, fields, frames: frames.into() });
            }
        }
        Ok(groups)
    }
}

/// The numbers of a field, by the name that it has in DeePMD-kit's other formats.
fn field<'a>(map: &Map<'a>, name: &str) -> Option<Numbers<'a>> {
    let (_, value) = map.iter().find(|(key, _)| text(key).is_some_and(|key| canonical(key) == name))?;
    Numbers::of(value)
}

struct LmdbSource {
    data: Arc<Database>,
    group: usize,
    sets: [String; 1],
}

impl LmdbSource {
    fn group(&self) -> &Group {
        &self.data.groups[self.group]
    }

    fn place(&self, name: &str) -> String {
        format!("{}#{}: {name}", self.data.path, self.group().name)
    }
}

impl Source for LmdbSource {
    fn types_place(&self) -> String {
        self.place("atom_types")
    }

    fn type_place(&self, atom: usize) -> String {
        format!("{}: element {atom}", self.types_place())
    }

    /// Every frame has its own.
    fn types(&self) -> Result<Vec<i64>> {
        Ok(vec![0; self.group().n_atoms])
    }

    fn type_map_place(&self) -> String {
        format!("{}: {METADATA}: type_map", self.data.path)
    }

    fn type_map(&self) -> Result<Option<Vec<String>>> {
        Ok(self.data.type_map.clone())
    }

    fn types_may_be_the_models(&self) -> bool {
        true
    }

    fn nopbc(&self) -> bool {
        !self.group().fields.contains("box")
    }

    fn sets(&self) -> &[String] {
        &self.sets
    }

    fn array_place(&self, _set: usize, name: &str) -> String {
        self.place(name)
    }

    fn array(&self, _set: usize, name: Cow<'static, str>) -> Result<Option<Box<dyn Array>>> {
        let (group, name) = (self.group(), canonical(&name));
        if !group.fields.contains(&name) {
            return Ok(None);
        }
        let first = group.frames[0] as usize;
        let (width, kind) = self.data.with_frame(first, |map| match field(map, &name) {
            Some(numbers) => Ok((numbers.len(), numbers.kind())),
            None => bail!("found no {name}"),
        })?;
        let shape = [group.frames.len(), width];
        Ok(Some(Box::new(LmdbArray {
            data: self.data.clone(),
            place: self.place(&name),
            frames: group.frames.clone(),
            name,
            shape,
            kind,
        })))
    }
}

/// One field of all frames of a system.
struct LmdbArray {
    data: Arc<Database>,
    place: String,
    frames: Arc<[u32]>,
    name: String,
    shape: [usize; 2],
    kind: Kind,
}

impl Array for LmdbArray {
    fn place(&self) -> String {
        self.place.clone()
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn kind(&self) -> Kind {
        self.kind
    }

    fn read(&self, out: &mut [f64], first: usize, count: usize) -> Result<()> {
        let frames = &self.frames[first..first + count];
        for (out, &frame) in out.chunks_exact_mut(self.shape[1].max(1)).zip(frames) {
            self.data.with_frame(frame as usize, |map| {
                let Some(numbers) = field(map, &self.name) else { bail!("found no {}", self.name) };
                numbers.read(out).ok_or_else(|| {
                    err!(
                        "{}: {} numbers of type {} in {} bytes found, {} wanted",
                        self.name,
                        numbers.len(),
                        numbers.dtype,
                        numbers.data.len(),
                        out.len()
                    )
                })
            })?;
        }
        Ok(())
    }
}

/// Size and time of a file.
type Stamp = (u64, Option<SystemTime>);

/// The most recently used databases, newest last.
static OPEN: Mutex<Vec<(Stamp, Arc<Database>)>> = Mutex::new(Vec::new());

/// The database of a folder, from the few that are kept where it is among them and did not change.
fn open_folder(folder: &str) -> Result<Arc<Database>> {
    let file = Path::new(folder).join(FILE);
    let meta = std::fs::metadata(&file).map_err(|e| err!("{}: cannot read: {e}", file.display()))?;
    let stamp = (meta.len(), meta.modified().ok());
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    let known = open.iter().position(|(_, data)| data.path == folder);
    if let Some((old, data)) = known.map(|i| open.remove(i)).filter(|(old, _)| *old == stamp) {
        open.push((old, data.clone()));
        return Ok(data);
    }
    let data = Arc::new(Database::open(folder)?);
    if open.len() >= MAX_OPEN {
        open.remove(0);
    }
    open.push((stamp, data.clone()));
    Ok(data)
}

#[cfg(test)]
mod tests;
