//! The arrays that a system may hold: one table.

use std::borrow::Cow;

/// Which arrays the model and the loss need. What is not wanted is never read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wants {
    pub energy: bool,
    pub force: bool,
    pub virial: bool,
    pub atom_energy: bool,
    pub atom_pref: bool,
    pub atom_ener_coeff: bool,
    /// Generalised coordinates, by which drdq has the derivatives of positions; 0: none.
    pub numb_generalized_coord: usize,
    /// Length of `fparam`; 0 means that the model has none.
    pub numb_fparam: usize,
    /// A model that knows what frames without `fparam` have needs none.
    pub fparam_has_default: bool,
    /// Length of `aparam` for each atom; 0 means that the model has none.
    pub numb_aparam: usize,
    /// What a model predicts that predicts no energy.
    pub output: Option<OutputLabel>,
}

/// A label by its name: `dos`, a property.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutputLabel {
    /// That of frames is in NAME.npy, that of atoms in atom_NAME.npy.
    pub name: String,
    /// Numbers of a frame, and of an atom.
    pub width: usize,
    pub of_frames: Need,
    pub of_atoms: Need,
    /// Types whose atoms alone may have labels; empty: all have.
    pub selected: Vec<usize>,
}

impl Wants {
    /// Coordinates, cells and every label that an energy model can be compared with.
    pub fn all_labels() -> Self {
        Wants { energy: true, force: true, virial: true, atom_energy: true, ..Wants::default() }
    }
}

/// One array of a set, named after its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Field {
    Coord,
    Cell,
    Energy,
    Force,
    Virial,
    AtomEnergy,
    AtomPref,
    AtomEnerCoeff,
    Drdq,
    Fparam,
    Aparam,
    RealAtomTypes,
    /// What is named by [`OutputLabel`], of frames and of atoms.
    Output,
    AtomOutput,
}

/// Every field, in the order in which files are checked.
pub const FIELDS: [Field; 14] = [
    Field::Coord,
    Field::Cell,
    Field::RealAtomTypes,
    Field::Energy,
    Field::Force,
    Field::Virial,
    Field::AtomEnergy,
    Field::AtomPref,
    Field::AtomEnerCoeff,
    Field::Drdq,
    Field::Fparam,
    Field::Aparam,
    Field::Output,
    Field::AtomOutput,
];

/// What a term of a loss cannot do without.
pub const LABELS: [Field; 8] = [
    Field::Energy,
    Field::Force,
    Field::Virial,
    Field::AtomEnergy,
    Field::AtomPref,
    Field::Drdq,
    Field::Output,
    Field::AtomOutput,
];

/// Whether a field is read, and whether a system may do without it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// Never read.
    No,
    /// Read where it is there.
    Optional,
    /// An error where it is missing.
    Must,
}

impl Field {
    /// File names without the ending; the first is the usual one.
    pub fn names(self, wants: &Wants) -> Vec<Cow<'static, str>> {
        let output = wants.output.as_ref().map_or("", |output| output.name.as_str());
        let fixed: &[&str] = match self {
            Field::Coord => &["coord"],
            Field::Cell => &["box"],
            Field::Energy => &["energy"],
            Field::Force => &["force"],
            Field::Virial => &["virial"],
            Field::AtomEnergy => &["atom_ener", "atomic_ener"],
            Field::AtomPref => &["atom_pref", "atomic_pref"],
            Field::AtomEnerCoeff => &["atom_ener_coeff"],
            Field::Drdq => &["drdq"],
            Field::Fparam => &["fparam"],
            Field::Aparam => &["aparam"],
            Field::RealAtomTypes => &["real_atom_types"],
            Field::Output => return vec![output.to_string().into()],
            Field::AtomOutput => {
                return ["atom", "atomic"].map(|of| format!("{of}_{output}").into()).to_vec();
            }
        };
        fixed.iter().map(|&name| name.into()).collect()
    }

    /// Numbers for each frame. `atom_pref` may also hold three for each atom, see [`Field::widths`].
    pub fn width(self, n_atoms: usize, wants: &Wants) -> usize {
        match self {
            Field::Coord | Field::Force => 3 * n_atoms,
            Field::Cell | Field::Virial => 9,
            Field::Energy => 1,
            Field::AtomEnergy | Field::AtomPref | Field::AtomEnerCoeff | Field::RealAtomTypes => n_atoms,
            Field::Drdq => 3 * n_atoms * wants.numb_generalized_coord,
            Field::Fparam => wants.numb_fparam,
            Field::Aparam => wants.numb_aparam * n_atoms,
            Field::Output => wants.output.as_ref().map_or(0, |output| output.width),
            Field::AtomOutput => wants.output.as_ref().map_or(0, |output| output.width * n_atoms),
        }
    }

    /// All widths that are understood: weights may be given for each atom or for each force component, and outputs of atoms for
    /// `n_selected` of them alone, where these are not all.
    pub fn widths(self, n_atoms: usize, n_selected: Option<usize>, wants: &Wants) -> Vec<usize> {
        let width = self.width(n_atoms, wants);
        match (self, n_selected) {
            (Field::AtomPref, _) => vec![width, 3 * width],
            (Field::AtomOutput, Some(n)) => vec![width, self.width(n, wants)],
            _ => vec![width],
        }
    }

    /// Whether this field is read. Labels may be missing: the loss then leaves their term out.
    pub fn need(self, wants: &Wants, pbc: bool, mixed: bool) -> Need {
        let optional = |wanted: bool| if wanted { Need::Optional } else { Need::No };
        let must = |wanted: bool| if wanted { Need::Must } else { Need::No };
        match self {
            Field::Coord => Need::Must,
            Field::Cell => must(pbc),
            Field::RealAtomTypes => must(mixed),
            Field::Energy => optional(wants.energy),
            Field::Force => optional(wants.force),
            Field::Virial => optional(wants.virial),
            Field::AtomEnergy => optional(wants.atom_energy),
            Field::AtomPref => optional(wants.atom_pref),
            Field::AtomEnerCoeff => optional(wants.atom_ener_coeff),
            Field::Drdq => optional(wants.numb_generalized_coord > 0),
            Field::Fparam if wants.fparam_has_default => optional(wants.numb_fparam > 0),
            Field::Fparam => must(wants.numb_fparam > 0),
            Field::Aparam => must(wants.numb_aparam > 0),
            Field::Output => wants.output.as_ref().map_or(Need::No, |output| output.of_frames),
            Field::AtomOutput => wants.output.as_ref().map_or(Need::No, |output| output.of_atoms),
        }
    }

    /// Whether whole numbers are accepted. Weights, parameters and counts are often stored as such; a quantity with a
    /// unit that is stored as whole numbers was truncated, or is another file.
    pub fn takes_integers(self) -> bool {
        matches!(
            self,
            Field::RealAtomTypes
                | Field::AtomPref
                | Field::AtomEnerCoeff
                | Field::Fparam
                | Field::Aparam
                | Field::Output
                | Field::AtomOutput
        )
    }

    /// The shape in words, for messages.
    pub fn shape_in_words(self) -> &'static str {
        match self {
            Field::Coord | Field::Force => "[frames, 3 x atoms]",
            Field::Cell | Field::Virial => "[frames, 9]",
            Field::Energy => "[frames] or [frames, 1]",
            Field::AtomEnergy | Field::AtomEnerCoeff | Field::RealAtomTypes => "[frames, atoms]",
            Field::AtomPref => "[frames, atoms] or [frames, 3 x atoms]",
            Field::Drdq => "[frames, 3 x atoms x numb_generalized_coord]",
            Field::Fparam => "[frames, numb_fparam]",
            Field::Aparam => "[frames, atoms x numb_aparam]",
            Field::Output => "[frames, outputs of the fitting net]",
            Field::AtomOutput => "[frames, atoms x outputs of the fitting net]",
        }
    }
}
