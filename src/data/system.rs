//! Frames of the same atoms: opened cheaply, read one frame at a time.

use super::field::{FIELDS, Field, Need, Wants};
use super::format::{self, Array, Kind, Source, row_width};
use super::frame::{Frame, Labels};
use crate::error::{Error, Result};
use crate::{bail, err};
use std::sync::Arc;

/// One system on disk. Holds types, shapes and places; no coordinates, and no open file.
pub struct System {
    /// As the input says it, or as the search found it.
    pub path: String,
    pub n_atoms: usize,
    /// `[n_atoms]` index into the model's `type_map`. Of a mixed-type system: all -1, each frame has its own.
    pub types: Arc<[i32]>,
    pub n_frames: usize,
    /// Whether the system is periodic.
    pub pbc: bool,
    /// Whether each frame has its own types.
    pub mixed: bool,
    pub(super) sets: Vec<Set>,
    /// The frames of the sets that are taken, where some are left out.
    kept: Option<Box<[usize]>>,
    /// Atoms that alone may have outputs of their own, where these are not all.
    selected: Option<Box<[usize]>>,
    /// From the system's own types to the model's, kept where each frame has its own.
    remap: Option<Box<TypeRemap>>,
}

/// The frames of one set.* folder.
pub(super) struct Set {
    /// Index of the first frame within the system.
    pub first: usize,
    pub n_frames: usize,
    pub arrays: Vec<Stored>,
}

/// One array of a set that is wanted.
pub(super) struct Stored {
    pub field: Field,
    /// Numbers for each frame.
    pub width: usize,
    /// They are those of the selected atoms.
    pub of_selected: bool,
    pub array: Box<dyn Array>,
}

impl System {
    /// Opens a system: reads its types and the shapes of the arrays that are wanted, and checks them.
    ///
    /// `type_map` is the model's: names of its types.
    pub fn open(path: &str, type_map: &[String], wants: &Wants) -> Result<System> {
        let source = format::open(path)?;
        let source = source.as_ref();
        let stored_types = source.types()?;
        if stored_types.is_empty() {
            bail!("{}: found no atoms", source.types_place());
        }
        let mixed = is_mixed(source)?;
        let remap = TypeRemap::new(source, type_map, mixed)?;
        let n_atoms = stored_types.len();
        let types: Arc<[i32]> =
            if mixed { vec![-1; n_atoms].into() } else { remap.apply_all(source, &stored_types)?.into() };
        let pbc = !source.nopbc();
        let selected = if mixed { None } else { selected_atoms(&types, wants) };
        let mut sets = Vec::new();
        let mut n_frames = 0;
        for set in 0..source.sets().len() {
            let n_selected = selected.as_ref().map(|atoms| atoms.len());
            let opener = SetOpener { source, set, n_atoms, n_selected, wants, pbc, mixed };
            let set = opener.open(n_frames)?;
            n_frames += set.n_frames;
            sets.push(set);
        }
        if n_frames == 0 {
            bail!("{path}: found no frames");
        }
        let system = System {
            path: path.to_owned(),
            n_atoms,
            types,
            n_frames,
            pbc,
            mixed,
            sets,
            kept: None,
            selected,
            remap: mixed.then(|| Box::new(remap)),
        };
        system.warn_about_partial_labels(wants);
        Ok(system)
    }

    /// Leaves out all frames but these, given by rising number.
    pub fn keep(&mut self, frames: Vec<usize>) {
        self.n_frames = frames.len();
        self.kept = Some(frames.into());
    }

    /// Whether every frame has this array.
    pub fn has(&self, field: Field) -> bool {
        self.sets.iter().all(|set| set.arrays.iter().any(|stored| stored.field == field))
    }

    /// Whether outputs of atoms are those of the selected ones alone.
    pub fn has_selected_labels(&self) -> bool {
        self.sets.iter().flat_map(|set| &set.arrays).any(|stored| stored.of_selected)
    }

    /// Where an array lies, in the first set that has it.
    pub fn place_of(&self, field: Field) -> Option<String> {
        let mut stored = self.sets.iter().flat_map(|set| &set.arrays);
        stored.find(|stored| stored.field == field).map(|stored| stored.array.place())
    }

    /// The energies of all frames; none where it has none.
    pub fn energies(&self) -> Result<Vec<f64>> {
        let mut all = Vec::new();
        if !self.has(Field::Energy) {
            return Ok(all);
        }
        for set in &self.sets {
            for stored in set.arrays.iter().filter(|stored| stored.field == Field::Energy) {
                let mut values = vec![0.0; set.n_frames * stored.width];
                stored.array.read(&mut values, 0, set.n_frames)?;
                all.extend(values);
            }
        }
        Ok(match &self.kept {
            Some(kept) => kept.iter().map(|&k| all[k]).collect(),
            None => all,
        })
    }

    /// Reads one frame: opens its files, reads that frame's bytes, closes them.
    pub fn read_frame(&self, index: usize) -> Result<Frame> {
        assert!(index < self.n_frames, "frame {index} of a system with {} frames", self.n_frames);
        let index = self.kept.as_ref().map_or(index, |kept| kept[index]);
        let set = &self.sets[self.sets.partition_point(|set| set.first <= index) - 1];
        let local = index - set.first;
        let mut frame = Frame {
            types: self.types.clone(),
            coord: Vec::new(),
            cell: None,
            fparam: Vec::new(),
            aparam: Vec::new(),
            sorted: self.remap.is_none(),
            labels: Labels::default(),
        };
        for stored in &set.arrays {
            let mut values = vec![0.0; stored.width];
            stored.array.read(&mut values, local, 1)?;
            self.put(&mut frame, stored, values).map_err(|e| at_frame(e, stored, local, index))?;
        }
        Ok(frame)
    }

    fn put(&self, frame: &mut Frame, stored: &Stored, values: Vec<f64>) -> Result<()> {
        let labels = &mut frame.labels;
        match stored.field {
            Field::Coord => frame.coord = values,
            Field::Cell => frame.cell = Some(nine(&values)),
            Field::Energy => labels.energy = Some(values[0]),
            Field::Force => labels.force = Some(values),
            Field::Virial => labels.virial = Some(nine(&values)),
            Field::AtomEnergy => labels.atom_energy = Some(values),
            Field::AtomPref => labels.atom_pref = Some(for_each_component(values, self.n_atoms)),
            Field::AtomEnerCoeff => labels.atom_ener_coeff = Some(values),
            Field::Drdq => labels.drdq = Some(values),
            Field::Fparam => frame.fparam = values,
            Field::Aparam => frame.aparam = values,
            Field::Output => labels.output = Some(values),
            Field::AtomOutput if stored.of_selected => labels.atom_output = Some(self.of_all_atoms(&values)),
            Field::AtomOutput => labels.atom_output = Some(values),
            Field::RealAtomTypes => frame.types = self.real_types(&values)?.into(),
        }
        Ok(())
    }

    /// Numbers of the selected atoms among zeros for the others.
    fn of_all_atoms(&self, values: &[f64]) -> Vec<f64> {
        let atoms = self.selected.as_deref().unwrap_or_default();
        let width = values.len() / atoms.len();
        let mut all = vec![0.0; self.n_atoms * width];
        for (atom, values) in atoms.iter().zip(values.chunks_exact(width)) {
            all[atom * width..(atom + 1) * width].copy_from_slice(values);
        }
        all
    }

    /// Types of one frame of a mixed-type system, as the model numbers them.
    pub(super) fn real_types(&self, values: &[f64]) -> Result<Vec<i32>> {
        let remap = self.remap.as_ref().expect("only mixed-type systems hold real_atom_types");
        let type_of = |(atom, &x): (usize, &f64)| {
            if x == -1.0 {
                return Ok(-1);
            }
            if x.fract() != 0.0 {
                bail!("atom {atom}: {x} is not a type index");
            }
            remap.apply(x as i64).map_err(|e| e.at(format_args!("atom {atom}")))
        };
        values.iter().enumerate().map(type_of).collect()
    }

    fn warn_about_partial_labels(&self, wants: &Wants) {
        for field in FIELDS {
            let holds = |set: &Set| set.arrays.iter().any(|stored| stored.field == field);
            let with = self.sets.iter().filter(|set| holds(set)).count();
            if with > 0 && with < self.sets.len() {
                let (path, name) = (&self.path, &field.names(wants)[0]);
                log::warn!("{path}: {name} is there in {with} of {} sets only", self.sets.len());
            }
        }
    }
}

/// Names file and frame: the frame within the file, and within the system where that differs.
pub(super) fn at_frame(e: Error, stored: &Stored, local: usize, index: usize) -> Error {
    let place = stored.array.place();
    if local == index {
        return e.at(format_args!("{place}: frame {index}"));
    }
    e.at(format_args!("{place}: frame {local} (frame {index} of the system)"))
}

fn nine(values: &[f64]) -> [f64; 9] {
    values.try_into().expect("widths were checked when the system was opened")
}

/// Weights are stored for each atom, or for each force component.
fn for_each_component(values: Vec<f64>, n_atoms: usize) -> Vec<f64> {
    if values.len() == 3 * n_atoms {
        return values;
    }
    values.into_iter().flat_map(|x| [x; 3]).collect()
}

/// The atoms of the types that alone may have outputs of their own, where these are some and not all.
fn selected_atoms(types: &[i32], wants: &Wants) -> Option<Box<[usize]>> {
    let selected = &wants.output.as_ref()?.selected;
    let is_selected = |t: i32| usize::try_from(t).is_ok_and(|t| selected.contains(&t));
    let atoms: Box<[usize]> = (0..types.len()).filter(|&i| is_selected(types[i])).collect();
    (!atoms.is_empty() && atoms.len() < types.len()).then_some(atoms)
}

/// A system is of mixed type where its sets hold real_atom_types; all of them or none.
fn is_mixed(source: &dyn Source) -> Result<bool> {
    let name = "real_atom_types";
    let mut with = None;
    let mut without = None;
    for set in 0..source.sets().len() {
        match source.array(set, name.into())? {
            Some(_) => with = Some(set),
            None => without = Some(set),
        }
    }
    if let (Some(with), Some(without)) = (with, without) {
        return Err(err!(
            "{}: not found, but {} is there",
            source.array_place(without, name),
            source.array_place(with, name)
        )
        .help("a system is of mixed type in all of its sets or in none"));
    }
    Ok(with.is_some())
}

/// What one set must look like.
struct SetOpener<'a> {
    source: &'a dyn Source,
    set: usize,
    n_atoms: usize,
    n_selected: Option<usize>,
    wants: &'a Wants,
    pbc: bool,
    mixed: bool,
}

impl SetOpener<'_> {
    fn open(&self, first: usize) -> Result<Set> {
        let mut set = Set { first, n_frames: 0, arrays: Vec::new() };
        for field in FIELDS {
            let need = field.need(self.wants, self.pbc, self.mixed);
            if need == Need::No {
                continue;
            }
            let Some(array) = self.find(field)? else {
                if need == Need::Must {
                    return Err(self.missing(field));
                }
                continue;
            };
            if field == Field::Coord {
                set.n_frames = if array.shape().len() > 1 { array.shape()[0] } else { 1 };
            }
            let width = self.check(field, array.as_ref(), set.n_frames)?;
            let of_selected = field == Field::AtomOutput && width < field.width(self.n_atoms, self.wants);
            set.arrays.push(Stored { field, width, of_selected, array });
        }
        Ok(set)
    }

    fn find(&self, field: Field) -> Result<Option<Box<dyn Array>>> {
        for name in field.names(self.wants) {
            if let Some(array) = self.source.array(self.set, name)? {
                return Ok(Some(array));
            }
        }
        Ok(None)
    }

    /// The width of an array that is as it should be.
    fn check(&self, field: Field, array: &dyn Array, n_frames: usize) -> Result<usize> {
        let fail = |e: Error| e.at(array.place()).help(format!("wanted {}", field.shape_in_words()));
        if array.kind() == Kind::Integer && !field.takes_integers() {
            return Err(err!("{}: found whole numbers, wanted float64 or float32", array.place())
                .help("convert it with numpy: array.astype(numpy.float64)"));
        }
        let widths = field.widths(self.n_atoms, self.n_selected, self.wants);
        // All frames in one row, as some files of parameters have them.
        let size: usize = array.shape().iter().product();
        if array.is_one_row()
            && let Some(width) = widths.iter().find(|&&width| width > 0 && width * n_frames == size)
        {
            return Ok(*width);
        }
        let width = row_width(array.shape(), n_frames).map_err(|e| fail(self.with_shape(e, array)))?;
        if !widths.contains(&width) {
            let wanted: Vec<String> = widths.iter().map(ToString::to_string).collect();
            let atoms = self.n_atoms;
            return Err(fail(err!(
                "shape {:?}: {width} numbers for each frame found, {} wanted for the {atoms} atoms of {}",
                array.shape(),
                wanted.join(" or "),
                self.source.types_place()
            )));
        }
        Ok(width)
    }

    fn with_shape(&self, e: Error, array: &dyn Array) -> Error {
        e.at(format_args!("shape {:?}", array.shape()))
    }

    fn missing(&self, field: Field) -> Error {
        let place = self.source.array_place(self.set, &field.names(self.wants)[0]);
        match field {
            Field::Cell => err!("{place}: not found").help(
                "a periodic system needs its cells; an empty file named nopbc next to type.raw says that boundaries are open",
            ),
            Field::Fparam => err!("{place}: not found")
                .help(format!("the model has numb_fparam = {}, so every set needs it", self.wants.numb_fparam)),
            Field::Aparam => err!("{place}: not found")
                .help(format!("the model has numb_aparam = {}, so every set needs it", self.wants.numb_aparam)),
            Field::Output | Field::AtomOutput => err!("{place}: not found")
                .help(format!("the model is fitted to it, so every set needs it: {}", field.shape_in_words())),
            _ => err!("{place}: not found").help(format!("every set needs it: {}", field.shape_in_words())),
        }
    }
}

/// From the types of a system to those of the model.
struct TypeRemap {
    /// For each type of the system: the model's type, or the name that the model lacks.
    map: Box<[std::result::Result<i32, String>]>,
    /// Where the system's types are named.
    names_place: Option<Box<str>>,
    model_types: Box<str>,
}

impl TypeRemap {
    fn new(source: &dyn Source, type_map: &[String], mixed: bool) -> Result<TypeRemap> {
        let own = source.type_map()?;
        if mixed && own.is_none() && !source.types_may_be_the_models() {
            return Err(err!("{}: not found", source.type_map_place())
                .help("a mixed-type system names its types in type_map.raw"));
        }
        let names_place = own.is_some().then(|| source.type_map_place().into());
        let names = own.as_deref().unwrap_or(type_map);
        let index = |name: &String| {
            type_map.iter().position(|known| known == name).map(|i| i as i32).ok_or_else(|| name.clone())
        };
        let model_types = type_map.join(" ").into();
        Ok(TypeRemap { map: names.iter().map(index).collect(), names_place, model_types })
    }

    fn apply(&self, stored: i64) -> Result<i32> {
        let place = self.names_place.as_deref();
        let entry = usize::try_from(stored).ok().and_then(|i| self.map.get(i));
        match (entry, place) {
            (Some(Ok(index)), _) => Ok(*index),
            (Some(Err(name)), place) => Err(err!(
                "type {stored} is {name} ({}), which the model does not know",
                place.unwrap_or("type_map")
            )
            .help(format!("model.type_map is: {}", self.model_types))),
            (None, Some(place)) => {
                Err(err!("type {stored} is outside {place}, which names {} types", self.map.len())
                    .help("types are counted from 0"))
            }
            (None, None) => Err(err!(
                "type {stored} is outside the model's type_map, which names {} types",
                self.map.len()
            )
            .help(format!("types are counted from 0; model.type_map is: {}", self.model_types))),
        }
    }

    fn apply_all(&self, source: &dyn Source, stored: &[i64]) -> Result<Vec<i32>> {
        let convert = |(atom, &ty): (usize, &i64)| self.apply(ty).map_err(|e| e.at(source.type_place(atom)));
        stored.iter().enumerate().map(convert).collect()
    }
}
