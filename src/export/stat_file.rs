//! `training.stat_file`: statistics that are kept between runs, in the layout of DeePMD-kit.
//!
//! A folder of npy files (without an ending), or an HDF5 file with groups for folders and datasets for files:
//! - `<type map>/<hash>/r_<type>`, `a_<type>`: number, sum and sum of squares of the rows of the environment matrix, the
//!   second only where they have directions; the hash stands for cutoff and `sel`
//! - `<type map>/fparam`, `aparam`: the same three numbers for each parameter
//! - `<type map>/bias_atom_energy`, `std_atom_energy`: a number for each type; of another output by its name, several
//! - `<type map>/observed_type`: names of the types that occur
//!
//! A group that is complete is used whatever data it came from; another is computed and added.

use super::atomic;
use crate::data::npy::{NpyHeader, write_header};
use crate::error::{Error, IoContext, Result};
use crate::model::dp::options::{DescriptorOptions, ModelOptions};
use crate::model::dp::statistics::{Moments, Summary};
use crate::{bail, err};
use hdf5_pure::{CharacterSet, DatasetBuilder, Datatype, FileBuilder, GroupBuilder, StringPadding};
use hdf5_reader::group::Group;
use hdf5_reader::{Dataset, Hdf5File, OpenOptions};
use sha1::{Digest, Sha1};
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

/// DeePMD-kit leaves this behind where it was stopped while it wrote bias and spread.
const UNFINISHED: &str = "__deepmd_output_stat_transaction__";

/// An array may take this many times the size of the file: room for compressed ones.
const LARGEST_RATIO: usize = 64;

/// Groups lie in groups no deeper than this: a group may contain itself.
const DEEPEST: usize = 16;

/// What stands before the name of the output.
const BIAS: [&str; 2] = ["bias_atom_", "std_atom_"];

/// Where statistics are kept.
pub struct StatFile {
    path: PathBuf,
    hdf5: bool,
}

/// One array of the cache.
#[derive(Debug, Clone, PartialEq)]
enum Item {
    Numbers {
        shape: Vec<u64>,
        values: Vec<f64>,
    },
    Names(Vec<String>),
    /// What is not ours: bytes that stay as they are.
    Other {
        datatype: Datatype,
        shape: Vec<u64>,
        bytes: Vec<u8>,
    },
}

/// Arrays by their path inside the cache.
type Items = BTreeMap<String, Item>;

impl StatFile {
    /// HDF5 where the file is there or the name ends in .h5 or .hdf5, a folder otherwise.
    pub fn new(path: &Path) -> StatFile {
        let ending = path.extension().and_then(|e| e.to_str()).unwrap_or("").to_lowercase();
        let hdf5 = path.is_file() || (!path.is_dir() && ["h5", "hdf5"].contains(&ending.as_str()));
        StatFile { path: path.to_path_buf(), hdf5 }
    }

    /// What the cache knows for this model; nothing where it is not there yet.
    pub fn load(&self, model: &ModelOptions) -> Result<Summary> {
        let names = Names::of(model);
        let items = self.read(&names)?;
        let summary = Reader { items: &items, names: &names }.summary(model).map_err(|e| {
            e.at(self.path.display()).help("remove it: it is made again from the training data")
        })?;
        let found = if summary.is_complete() { "all" } else { "not all" };
        log::info!("{}: {found} statistics of this model are there", self.path.display());
        Ok(summary)
    }

    /// Adds the groups that `new` holds; everything else stays as it is.
    pub fn save(&self, model: &ModelOptions, new: &Summary) -> Result<()> {
        let names = Names::of(model);
        let items = items_of(new, model, &names);
        if self.hdf5 {
            self.write_hdf5(items, &names)?
        } else {
            self.write_folder(&items, &names)?
        }
        log::info!("{}: statistics are saved", self.path.display());
        Ok(())
    }

    fn read(&self, names: &Names) -> Result<Items> {
        if self.hdf5 {
            return self.read_hdf5();
        }
        let mut items = Items::new();
        for name in names.all() {
            if let Some(item) = read_npy(&self.path.join(&name))? {
                items.insert(name, item);
            }
        }
        Ok(items)
    }

    fn read_hdf5(&self) -> Result<Items> {
        let bytes = match std::fs::read(&self.path) {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Items::new()),
            Err(e) => return Err(e).io("read", &self.path),
        };
        // Should the reader meet what it does not foresee, that is a damaged file like any other.
        let parsed = catch_unwind(AssertUnwindSafe(|| {
            let options =
                OpenOptions::default().with_max_read_bytes(bytes.len().saturating_mul(LARGEST_RATIO));
            let file = Hdf5File::from_vec_with_options(bytes, options).map_err(damaged)?;
            let mut items = Items::new();
            read_group(&mut items, &file.root_group().map_err(damaged)?, "")?;
            Ok(items)
        }));
        let parsed = parsed.unwrap_or_else(|_| Err(damaged("the HDF5 structure contradicts itself")));
        parsed.map_err(|e| e.at(self.path.display()))
    }

    fn write_hdf5(&self, new: Items, names: &Names) -> Result<()> {
        let mut items = self.read_hdf5()?;
        if new.contains_key(&names.top(&names.bias[0])) {
            items.remove(&names.top(UNFINISHED));
        }
        items.extend(new);
        let file = build(&items).map_err(|e| e.at(self.path.display()))?;
        make_folder(self.path.parent())?;
        atomic::write(&self.path, |out| file.finish_to(out).map_err(|e| err!("cannot write: {e}")))
    }

    /// Old files go first: what is there at any moment is of one kind, or seen to be incomplete.
    fn write_folder(&self, new: &Items, names: &Names) -> Result<()> {
        for name in new.keys() {
            remove(&self.path.join(name))?;
        }
        for (name, item) in new {
            let path = self.path.join(name);
            make_folder(path.parent())?;
            atomic::write(&path, |out| write_npy(out, item).io("write", &path))?;
        }
        if new.contains_key(&names.top(&names.bias[0])) {
            remove(&self.path.join(names.top(UNFINISHED)))?;
        }
        Ok(())
    }
}

fn make_folder(folder: Option<&Path>) -> Result<()> {
    match folder {
        Some(folder) => std::fs::create_dir_all(folder).io("create the folder", folder),
        None => Ok(()),
    }
}

fn remove(path: &Path) -> Result<()> {
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != ErrorKind::NotFound => Err(e).io("remove", path),
        _ => Ok(()),
    }
}

fn damaged(cause: impl std::fmt::Display) -> Error {
    err!("no statistics can be read: {cause}").help("remove it: it is made again from the training data")
}

/// Paths inside the cache.
struct Names {
    /// Names of the types, with spaces.
    types: String,
    n_types: usize,
    /// Bias and spread of the output, and numbers of each type.
    bias: [String; 2],
    width: usize,
    /// For each descriptor.
    parts: Vec<PartNames>,
}

/// What differs between descriptors. Those with the same cutoffs and slots have the same statistics.
struct PartNames {
    hash: String,
    /// Kinds of numbers in a row of the environment matrix.
    kinds: &'static [char],
}

impl Names {
    fn of(model: &ModelOptions) -> Names {
        let n_types = model.type_map.len();
        let part = |se: &DescriptorOptions| {
            let kinds: &[char] = if se.form().row() > 1 { &['r', 'a'] } else { &['r'] };
            PartNames { hash: hash(se, n_types), kinds }
        };
        let parts = model.descriptors.list.iter().map(part).collect();
        let output = model.fitting.output();
        let bias = BIAS.map(|front| format!("{front}{}", output.name));
        Names { types: model.type_map.join(" "), n_types, bias, width: output.width, parts }
    }

    fn top(&self, name: &str) -> String {
        format!("{}/{name}", self.types)
    }

    /// The rows of one descriptor after another, of each type after type.
    fn rows(&self) -> impl Iterator<Item = (&PartNames, usize)> {
        self.parts.iter().flat_map(|part| (0..self.n_types).map(move |t| (part, t)))
    }

    fn row(&self, part: &PartNames, kind: char, t: usize) -> String {
        format!("{}/{}/{kind}_{t}", self.types, part.hash)
    }

    fn all(&self) -> Vec<String> {
        let top = [self.bias[0].as_str(), &self.bias[1], "fparam", "aparam", "observed_type", UNFINISHED];
        let rows = self.rows();
        let rows = rows.flat_map(|(part, t)| part.kinds.iter().map(move |&kind| self.row(part, kind, t)));
        top.iter().map(|name| self.top(name)).chain(rows).collect()
    }
}

/// The name that DeePMD-kit gives to a cutoff and a selection: a digest of Python's JSON of them.
fn hash(se: &DescriptorOptions, n_types: usize) -> String {
    // Two digits, written as the shortest number that reads back.
    let two = |x: f64| format!("{:?}", format!("{x:.2}").parse::<f64>().unwrap_or(x));
    let sel: Vec<String> = se.fixed_sel().iter().map(usize::to_string).collect();
    let text = format!(
        "{{\"type\": \"{}\", \"ntypes\": {n_types}, \"rcut\": {}, \"rcut_smth\": {}, \"nsel\": {}, \
         \"sel\": [{}], \"mixed_types\": {}}}",
        se.kind.about().statistics,
        two(se.rcut),
        two(se.rcut_smth),
        se.fixed_sel().iter().sum::<usize>(),
        sel.join(", "),
        se.is_mixed()
    );
    // It names groups as DeePMD-kit names them; nothing is safe by it.
    Sha1::digest(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Finds the groups of a model among the arrays.
struct Reader<'a> {
    items: &'a Items,
    names: &'a Names,
}

impl Reader<'_> {
    fn summary(&self, model: &ModelOptions) -> Result<Summary> {
        let n = self.names.n_types;
        let mut rows = Some(Vec::new());
        for (part, t) in self.names.rows() {
            // Of r, then of a.
            let mut found = [Moments::default(); 2];
            for (moments, &kind) in found.iter_mut().zip(part.kinds) {
                match self.moments(&self.names.row(part, kind, t), 1)? {
                    Some(known) => *moments = known[0],
                    None => rows = None,
                }
            }
            rows.iter_mut().for_each(|rows: &mut Vec<_>| rows.push((found[0], found[1])));
        }
        let [bias, spread] =
            self.names.bias.each_ref().map(|name| self.numbers(&self.names.top(name), n * self.names.width));
        let unfinished = self.items.contains_key(&self.names.top(UNFINISHED));
        let seen = self.items.contains_key(&self.names.top("observed_type"));
        Ok(Summary {
            rows,
            fparam: self.moments(&self.names.top("fparam"), model.fitting.numb_fparam)?,
            aparam: self.moments(&self.names.top("aparam"), model.fitting.numb_aparam)?,
            output: bias?.zip(spread?).filter(|_| !unfinished),
            observed: seen.then(Vec::new),
        })
    }

    /// `None` where there is no such array; another number of numbers is an error.
    fn numbers(&self, name: &str, n: usize) -> Result<Option<Vec<f64>>> {
        match self.items.get(name) {
            None => Ok(None),
            Some(Item::Numbers { values, .. })
                if values.len() == n && values.iter().all(|x| x.is_finite()) =>
            {
                Ok(Some(values.clone()))
            }
            Some(Item::Numbers { shape, .. }) => {
                bail!("{name}: found shape {shape:?}, wanted {n} finite numbers")
            }
            Some(_) => bail!("{name}: wanted numbers of type float64"),
        }
    }

    fn moments(&self, name: &str, n: usize) -> Result<Option<Vec<Moments>>> {
        if n == 0 {
            return Ok(Some(Vec::new()));
        }
        let moments = |x: &[f64; 3]| Moments { count: x[0], sum: x[1], squares: x[2] };
        let values = self.numbers(name, 3 * n)?;
        Ok(values.map(|values| values.as_chunks::<3>().0.iter().map(moments).collect()))
    }
}

/// The arrays of all groups that are known.
fn items_of(summary: &Summary, model: &ModelOptions, names: &Names) -> Items {
    let mut items = Items::new();
    let three = |m: &Moments| [m.count, m.sum, m.squares];
    for ((part, t), (r, a)) in names.rows().zip(summary.rows.iter().flatten()) {
        for (&kind, m) in part.kinds.iter().zip([r, a]) {
            items.insert(
                names.row(part, kind, t),
                Item::Numbers { shape: vec![3], values: three(m).to_vec() },
            );
        }
    }
    for (name, group) in [("fparam", &summary.fparam), ("aparam", &summary.aparam)] {
        if let Some(group) = group.as_ref().filter(|group| !group.is_empty()) {
            let values = group.iter().flat_map(three).collect();
            items.insert(names.top(name), Item::Numbers { shape: vec![group.len() as u64, 3], values });
        }
    }
    if let Some((bias, spread)) = &summary.output {
        for (name, values) in names.bias.iter().zip([bias, spread]) {
            let shape = vec![names.n_types as u64, names.width as u64];
            items.insert(names.top(name), Item::Numbers { shape, values: values.clone() });
        }
    }
    if let Some(observed) = &summary.observed {
        let mut seen: Vec<String> = observed.iter().map(|&t| model.type_map[t].clone()).collect();
        seen.sort_by_key(|name| atomic_number(name));
        items.insert(names.top("observed_type"), Item::Names(seen));
    }
    items
}

/// Names that are no element come last.
fn atomic_number(symbol: &str) -> usize {
    const ELEMENTS: &str = "H He Li Be B C N O F Ne Na Mg Al Si P S Cl Ar K Ca Sc Ti V Cr Mn Fe Co Ni Cu Zn Ga Ge As \
        Se Br Kr Rb Sr Y Zr Nb Mo Tc Ru Rh Pd Ag Cd In Sn Sb Te I Xe Cs Ba La Ce Pr Nd Pm Sm Eu Gd Tb Dy Ho Er Tm Yb \
        Lu Hf Ta W Re Os Ir Pt Au Hg Tl Pb Bi Po At Rn Fr Ra Ac Th Pa U Np Pu Am Cm Bk Cf Es Fm Md No Lr Rf Db Sg Bh \
        Hs Mt Ds Rg Cn Nh Fl Mc Lv Ts Og";
    ELEMENTS.split_whitespace().position(|known| known == symbol).unwrap_or(usize::MAX)
}

fn read_npy(path: &Path) -> Result<Option<Item>> {
    let bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e).io("read", path),
    };
    let wrong = |e: std::io::Error| damaged(e).at(path.display());
    let mut rest = &bytes[..];
    let header = NpyHeader::read(&mut rest).map_err(wrong)?;
    if header.descr.as_deref() != Some("<f8") {
        return Ok(Some(Item::Names(Vec::new()))); // only that it is there matters
    }
    let count = header.shape.iter().try_fold(1u64, |count, &n| count.checked_mul(n));
    let values: Vec<f64> = rest.as_chunks::<8>().0.iter().map(|&x| f64::from_le_bytes(x)).collect();
    if count.is_none_or(|count| (values.len() as u64) < count) {
        return Err(wrong(ErrorKind::UnexpectedEof.into()));
    }
    let values = values[..count.unwrap_or(0) as usize].to_vec();
    Ok(Some(Item::Numbers { shape: header.shape, values }))
}

fn write_npy(out: &mut impl std::io::Write, item: &Item) -> std::io::Result<()> {
    match item {
        Item::Numbers { shape, values } => {
            write_header(out, "<f8", shape)?;
            values.iter().try_for_each(|x| out.write_all(&x.to_le_bytes()))
        }
        Item::Names(names) => {
            let width = names.iter().map(String::len).max().unwrap_or(1).max(1);
            write_header(out, &format!("|S{width}"), &[names.len() as u64])?;
            for name in names {
                out.write_all(name.as_bytes())?;
                out.write_all(&vec![0; width - name.len()])?;
            }
            Ok(())
        }
        Item::Other { .. } => unreachable!("only HDF5 files carry arrays of others along"),
    }
}

/// Reads a group and all below it.
fn read_group(items: &mut Items, group: &Group, prefix: &str) -> Result<()> {
    if prefix.matches('/').count() > DEEPEST {
        bail!("{prefix}: found groups in more than {DEEPEST} groups, which are no statistics");
    }
    let (groups, datasets) = group.member_names().map_err(damaged)?;
    for name in datasets {
        let path = format!("{prefix}{name}");
        let item = read_dataset(&group.dataset(&name).map_err(damaged)?).map_err(|e| e.at(&path))?;
        items.insert(path, item);
    }
    for name in groups {
        read_group(items, &group.group(&name).map_err(damaged)?, &format!("{prefix}{name}/"))?;
    }
    Ok(())
}

fn read_dataset(dataset: &Dataset) -> Result<Item> {
    let shape = dataset.shape().to_vec();
    if let hdf5_reader::Datatype::FloatingPoint { size: 8, .. } = dataset.dtype() {
        let (values, _) = dataset.read_array::<f64>().map_err(damaged)?.into_raw_vec_and_offset();
        return Ok(Item::Numbers { shape, values });
    }
    let Some(datatype) = datatype_of(dataset.dtype()) else {
        bail!("found data of type {:?}, which are no statistics", dataset.dtype());
    };
    Ok(Item::Other { datatype, shape, bytes: dataset.read_raw_bytes().map_err(damaged)? })
}

/// How the writer calls the type of an array that is carried along; `None` where it cannot be written as it was.
fn datatype_of(found: &hdf5_reader::Datatype) -> Option<Datatype> {
    use hdf5_reader::{ByteOrder::LittleEndian, Datatype as Found, StringEncoding, StringPadding as Padding};
    Some(match found {
        Found::String { size: hdf5_reader::StringSize::Fixed(size), encoding, padding } => Datatype::String {
            size: *size,
            padding: match padding {
                Padding::NullTerminate => StringPadding::NullTerminate,
                Padding::NullPad => StringPadding::NullPad,
                Padding::SpacePad => StringPadding::SpacePad,
            },
            charset: match encoding {
                StringEncoding::Ascii => CharacterSet::Ascii,
                StringEncoding::Utf8 => CharacterSet::Utf8,
            },
        },
        Found::FloatingPoint { size: 4, byte_order: LittleEndian } => hdf5_pure::make_f32_type(),
        Found::FixedPoint { size, signed, byte_order: LittleEndian } => match (size, signed) {
            (1, true) => hdf5_pure::make_i8_type(),
            (2, true) => hdf5_pure::make_i16_type(),
            (4, true) => hdf5_pure::make_i32_type(),
            (8, true) => hdf5_pure::make_i64_type(),
            (1, false) => hdf5_pure::make_u8_type(),
            (2, false) => hdf5_pure::make_u16_type(),
            (4, false) => hdf5_pure::make_u32_type(),
            (8, false) => hdf5_pure::make_u64_type(),
            _ => return None,
        },
        _ => return None,
    })
}

/// Names of the groups right below a path that ends in a slash.
fn children(items: &Items, prefix: &str) -> Vec<String> {
    let below = items.keys().filter_map(|path| path.strip_prefix(prefix)?.split_once('/'));
    let mut names: Vec<String> = below.map(|(name, _)| name.to_string()).collect();
    names.dedup();
    names
}

/// A file with all arrays.
fn build(items: &Items) -> Result<FileBuilder> {
    let mut file = FileBuilder::new();
    for (path, item) in items.iter().filter(|(path, _)| !path.contains('/')) {
        fill_dataset(file.create_dataset(path), item).map_err(|e| e.at(path))?;
    }
    for child in children(items, "") {
        let mut group = file.create_group(&child);
        fill_group(&mut group, &format!("{child}/"), items)?;
        file.add_group(group.finish());
    }
    Ok(file)
}

/// Writes a group and all below it.
fn fill_group(group: &mut GroupBuilder, prefix: &str, items: &Items) -> Result<()> {
    for (path, item) in items {
        if let Some(name) = path.strip_prefix(prefix).filter(|name| !name.contains('/')) {
            fill_dataset(group.create_dataset(name), item).map_err(|e| e.at(path))?;
        }
    }
    for child in children(items, prefix) {
        let mut below = group.create_group(&child);
        fill_group(&mut below, &format!("{prefix}{child}/"), items)?;
        group.add_group(below.finish());
    }
    Ok(())
}

fn fill_dataset(dataset: &mut DatasetBuilder, item: &Item) -> Result<()> {
    match item {
        Item::Numbers { shape, values } => {
            dataset.with_f64_data(values).with_shape(shape);
        }
        Item::Names(names) => {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            dataset.with_ascii_strings(&names).map_err(|e| err!("cannot write: {e}"))?;
        }
        Item::Other { datatype, shape, bytes } => {
            let n = shape.iter().product();
            dataset.with_raw_data(datatype.clone(), bytes.clone(), n).with_shape(shape);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model() -> ModelOptions {
        let mut options =
            crate::export::deepmd::tests::sample(true, crate::model::dp::options::Precision::Float64).options;
        options.fitting.numb_fparam = 2;
        options.fitting.numb_aparam = 0;
        options
    }

    fn summary(model: &ModelOptions) -> Summary {
        let n = model.type_map.len();
        let m = |x: usize| Moments { count: x as f64 + 10.0, sum: 0.1 * x as f64, squares: 1.0 / 3.0 };
        Summary {
            rows: Some((0..n).map(|t| (m(t), m(t + 5))).collect()),
            fparam: Some(vec![m(1), m(2)]),
            aparam: Some(Vec::new()),
            output: Some(((0..n).map(|t| -0.7 * t as f64).collect(), vec![0.3; n])),
            observed: Some((0..n).collect()),
        }
    }

    /// The two forms, in a folder that is removed at the end.
    fn both_forms(work: impl Fn(&Path)) {
        for name in ["stat.hdf5", "stat"] {
            let folder = tempfile::tempdir().unwrap();
            work(&folder.path().join("new").join(name));
        }
    }

    fn without_names(summary: Summary) -> Summary {
        Summary { observed: None, ..summary }
    }

    #[test]
    fn the_hash_is_that_of_deepmd_kit() {
        // DeePMD-kit 3.2.0, `EnvMatStatSe.get_hash` for sel [16, 24, 20], rcut 4, rcut_smth 0.5.
        let mut model = model();
        let se = &mut model.descriptors.list[0];
        (se.rcut, se.rcut_smth) = (4.0, 0.5);
        se.sel = crate::model::dp::options::Sel::Fixed(vec![16, 24, 20]);
        assert_eq!(hash(se, 3), "289b4d2f0e4af9571266d63c3343d1356c2656cf");
    }

    #[test]
    fn what_is_saved_comes_back_bit_for_bit() {
        both_forms(|path| {
            let model = model();
            assert_eq!(StatFile::new(path).load(&model).unwrap().rows, None);
            StatFile::new(path).save(&model, &summary(&model)).unwrap();
            let found = StatFile::new(path).load(&model).unwrap();
            assert!(found.observed.is_some());
            assert_eq!(without_names(found), without_names(summary(&model)));
        });
    }

    #[test]
    fn another_cutoff_has_rows_of_its_own_and_leaves_the_first_alone() {
        both_forms(|path| {
            let first = model();
            let mut second = model();
            let se = &mut second.descriptors.list[0];
            se.rcut += 1.0;
            StatFile::new(path).save(&first, &summary(&first)).unwrap();
            let known = StatFile::new(path).load(&second).unwrap();
            assert!(known.rows.is_none() && known.output.is_some() && !known.is_complete());
            let mut computed = summary(&second);
            computed.rows.as_mut().unwrap()[0].0.sum = 77.0;
            StatFile::new(path).save(&second, &computed.clone().beyond(&known)).unwrap();
            let found = StatFile::new(path).load(&second).unwrap();
            assert_eq!(found.rows, computed.rows);
            let found = StatFile::new(path).load(&first).unwrap();
            assert_eq!(without_names(found), without_names(summary(&first)));
        });
    }

    #[test]
    fn half_of_a_pair_counts_as_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let (model, file) = (model(), StatFile::new(folder.path()));
        file.save(&model, &summary(&model)).unwrap();
        let top = folder.path().join(model.type_map.join(" "));
        std::fs::copy(top.join("fparam"), top.join(UNFINISHED)).unwrap();
        assert_eq!(file.load(&model).unwrap().output, None);
        file.save(&model, &Summary { output: summary(&model).output, ..Summary::default() }).unwrap();
        assert!(file.load(&model).unwrap().is_complete());
        std::fs::remove_file(top.join("std_atom_energy")).unwrap();
        assert_eq!(file.load(&model).unwrap().output, None);
    }

    #[test]
    fn arrays_of_others_are_carried_along_or_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("stat.h5");
        let mut file = FileBuilder::new();
        file.create_dataset("words").with_ascii_strings(&["one", "three"]).unwrap();
        let mut group = file.create_group("of others");
        group.create_dataset("floats").with_f32_data(&[0.1, -2.5]).with_shape(&[2]);
        group.create_dataset("counts").with_i64_data(&[-1, 1 << 40, 3, 4]).with_shape(&[2, 2]);
        group.create_dataset("bytes").with_u8_data(&[0, 255]).with_shape(&[2]);
        file.add_group(group.finish());
        file.finish_to(std::fs::File::create(&path).unwrap()).unwrap();
        let (model, stat) = (model(), StatFile::new(&path));
        let before = stat.read_hdf5().unwrap();
        stat.save(&model, &summary(&model)).unwrap();
        let after = stat.read_hdf5().unwrap();
        assert_eq!(before.len(), 4);
        assert!(before.iter().all(|(name, item)| after[name] == *item));
        assert!(stat.load(&model).unwrap().is_complete());

        let pair = hdf5_pure::CompoundTypeBuilder::new().f64_field("a").i32_field("b").build().unwrap();
        let mut file = FileBuilder::new();
        file.create_dataset("pairs").with_raw_data(pair, vec![0; 12], 1).with_shape(&[1]);
        file.finish_to(std::fs::File::create(&path).unwrap()).unwrap();
        let error = stat.load(&model).unwrap_err();
        assert!(error.message().contains("stat.h5: pairs: found data of type Compound"), "{error}");
    }

    #[test]
    fn damaged_files_and_other_shapes_are_errors_that_name_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("stat.h5");
        std::fs::write(&path, "no HDF5 at all").unwrap();
        let error = StatFile::new(&path).load(&model()).unwrap_err();
        assert!(error.message().contains("stat.h5: no statistics can be read"), "{error}");
        both_forms(|path| {
            let mut other = model();
            StatFile::new(path).save(&other, &summary(&other)).unwrap();
            other.fitting.numb_fparam = 3;
            let error = StatFile::new(path).load(&other).unwrap_err();
            assert!(
                error.message().contains("fparam: found shape [2, 3], wanted 9 finite numbers"),
                "{error}"
            );
            assert!(error.advice().is_some());
        });
        let npy = folder.path().join("stat");
        StatFile::new(&npy).save(&model(), &summary(&model())).unwrap();
        std::fs::write(npy.join(model().type_map.join(" ")).join("fparam"), "\u{93}NUMPY").unwrap();
        let error = StatFile::new(&npy).load(&model()).unwrap_err();
        assert!(error.message().contains("fparam: no statistics can be read"), "{error}");
    }
}
