//! MiMiC runs: the topology, the trajectory and the energies of QM/MM molecular dynamics.

use super::energies::read_energies;
use super::mpt::Topology;
use super::sample::{Keys, Sample};
use super::source::{Joined, Source};
use super::trr::Trajectory;
use crate::config::check::{check, count};
use crate::config::{Key, Kind, Section, Table};
use crate::error::{Error, Result};
use crate::units::{HARTREE, HARTREE_IN_KJ_MOL, NANOMETRE};
use crate::{bail, err};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// The files of one run.
#[derive(Debug, Clone, PartialEq)]
pub struct MimicFiles {
    pub mpt: PathBuf,
    pub trr: PathBuf,
    pub energies: PathBuf,
}

/// How a run is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MimicOptions {
    pub units: MimicUnits,
    /// Leaves the last frame of each trajectory out, as PiNN's fork does.
    pub drop_last_frame: bool,
}

/// Runs as a file lists them.
#[derive(Debug, Clone, PartialEq)]
pub struct MimicRuns {
    pub runs: Vec<MimicFiles>,
    pub options: MimicOptions,
    /// Subsets by name and ratio; each rank splits its own frames.
    pub split: Vec<(String, f64)>,
    /// The seed of the shuffle before splitting; `None`: frames keep their order.
    pub shuffle: Option<u64>,
}

impl MimicRuns {
    /// Runs with the defaults of a file.
    pub fn new(runs: Vec<MimicFiles>) -> Self {
        let split = [("train", 8.0), ("vali", 1.0), ("test", 1.0)].map(|(name, ratio)| (name.into(), ratio));
        MimicRuns { runs, options: MimicOptions::default(), split: split.into(), shuffle: Some(0) }
    }
}

/// The units of energies and forces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MimicUnits {
    /// Energies in Hartree, forces in kJ/(mol Å): what PiNN's fork hands to the model. They do not fit together, so
    /// only one of them can be trained on.
    #[default]
    Mixed,
    /// Hartree and Hartree/Å.
    Hartree,
    /// eV and eV/Å.
    Ev,
}

impl MimicUnits {
    /// What energies and forces are multiplied by.
    fn factors(self) -> (f64, f64) {
        let per_angstrom = 1.0 / NANOMETRE;
        match self {
            MimicUnits::Mixed => (1.0, per_angstrom),
            MimicUnits::Hartree => (1.0, per_angstrom / HARTREE_IN_KJ_MOL),
            MimicUnits::Ev => (HARTREE, per_angstrom * HARTREE / HARTREE_IN_KJ_MOL),
        }
    }
}

/// One run.
pub struct Mimic {
    elems: Vec<i32>,
    trajectory: Trajectory,
    energies: Vec<f64>,
    n_frames: usize,
    keys: Keys,
    units: MimicUnits,
}

impl Mimic {
    /// Opens the files of a run and holds them against each other.
    pub fn open(files: &MimicFiles, options: MimicOptions) -> Result<Mimic> {
        let topology = Topology::read(&files.mpt)?;
        let at = |e: Error| e.at(files.mpt.display());
        let trajectory = Trajectory::open(&files.trr)?;
        let energies = read_energies(&files.energies)?;
        let keys = check_frames(&trajectory, topology.n_atoms().map_err(at)?, files)?;
        let elems = topology.elems().map_err(at)?;
        let n_frames = trajectory.frames().len() - usize::from(options.drop_last_frame);
        let enough =
            if options.drop_last_frame { energies.len() >= n_frames } else { energies.len() == n_frames };
        if !enough || n_frames == 0 {
            return Err(err!(
                "{}: energies of {}, but {} has {}",
                files.energies.display(),
                count(energies.len(), "step"),
                files.trr.display(),
                count(trajectory.frames().len(), "frame")
            )
            .help("both need one entry for each step; `drop_last_frame: true` leaves the last frame out"));
        }
        Ok(Mimic { elems, trajectory, energies, n_frames, keys, units: options.units })
    }
}

/// Holds the frames against the topology. Either all have forces (a cell) or none has.
fn check_frames(trajectory: &Trajectory, n_atoms: usize, files: &MimicFiles) -> Result<Keys> {
    let first = trajectory.frames()[0];
    for (i, frame) in trajectory.frames().iter().enumerate() {
        let place = || format!("{}: frame {i} at byte {}", files.trr.display(), frame.offset);
        if frame.n_atoms != n_atoms {
            bail!("{}: {} atoms, but {} has {n_atoms}", place(), frame.n_atoms, files.mpt.display());
        }
        if !frame.has_positions() {
            return Err(err!("{}: no positions", place()).help("run GROMACS with nstxout equal to nstfout"));
        }
        if frame.has_forces() != first.has_forces() || frame.has_cell() != first.has_cell() {
            return Err(err!("{}: only some frames have forces and a cell", place())
                .help("run GROMACS with nstxout equal to nstfout"));
        }
    }
    Ok(Keys { cell: first.has_cell(), e_data: true, f_data: first.has_forces(), ..Keys::default() })
}

impl Source for Mimic {
    fn len(&self) -> usize {
        self.n_frames
    }

    fn read(&self, index: usize) -> Result<Sample> {
        assert!(index < self.n_frames, "frame {index} of {}", self.n_frames);
        let frame = self.trajectory.read(index)?;
        let (energy, force) = self.units.factors();
        let scaled =
            |rows: Vec<[f64; 3]>, factor: f64| rows.into_iter().map(|r| r.map(|x| x * factor)).collect();
        let sample = Sample {
            elems: self.elems.clone(),
            coord: scaled(frame.x.expect("frames without positions were refused"), NANOMETRE),
            cell: frame.cell.map(|cell| cell.map(|row| row.map(|x| x * NANOMETRE))),
            e_data: Some(self.energies[index] * energy),
            f_data: frame.f.map(|f| scaled(f, force)),
            ..Sample::default()
        };
        let sample = sample.rounded();
        sample.check().map_err(|e| e.at(format_args!("{}: frame {index}", self.place())))?;
        Ok(sample)
    }

    fn keys(&self) -> Keys {
        self.keys
    }

    fn place(&self) -> String {
        self.trajectory.path().display().to_string()
    }
}

/// Several runs, one after the other.
pub fn open_runs(runs: &[MimicFiles], options: MimicOptions) -> Result<Joined> {
    let open = |run| Ok(Box::new(Mimic::open(run, options)?) as Box<dyn Source>);
    Joined::new(runs.iter().map(open).collect::<Result<_>>()?)
}

const FILES: Kind = Kind::OneOf(&[Kind::Text, Kind::List(&Kind::Text)]);

/// The keys of a file that names the runs.
static RUNS: Table = Table::of(&[Key::new("mimic", Kind::Object(&MIMIC)).doc("The files of MiMiC runs.")]);

static MIMIC: Table = Table::of(&[
    Key::new("mpt", FILES).doc("Topology of each run; one alone holds for all runs."),
    Key::new("trr", FILES).doc("Trajectory of each run."),
    Key::new("energies", FILES).aliases(&["ener"]).doc("ENERGIES of each run."),
    Key::new("units", Kind::choice(&["mixed", "hartree", "ev"]))
        .default("\"mixed\"")
        .doc("Units of the labels."),
    Key::new("drop_last_frame", Kind::Bool).default("false").doc("Whether the last frame is left out."),
    Key::new("split", Kind::Any).optional().doc("Subsets by name, with their ratios."),
    Key::new("shuffle", Kind::Bool).default("true").doc("Whether frames are shuffled before they are split."),
    Key::new("seed", Kind::Int(0, u64::MAX as i128)).default("0").doc("The seed of that shuffle."),
]);

/// Reads the list of runs from a checked YAML file. Relative paths start at the folder of the file.
pub fn runs_of(value: &Value, file: &Path) -> Result<MimicRuns> {
    let checked = check(&RUNS, value, &file.display().to_string())?;
    let section = Section::root(&checked.value).section("mimic");
    let folder = file.parent().unwrap_or(Path::new(""));
    let paths = |key: &str| -> Vec<PathBuf> {
        match section.optional_text(key) {
            Some(one) => vec![folder.join(one)],
            None => section.texts(key).iter().map(|path| folder.join(path)).collect(),
        }
    };
    let units = match section.text("units") {
        "hartree" => MimicUnits::Hartree,
        "ev" => MimicUnits::Ev,
        _ => MimicUnits::Mixed,
    };
    let at = |e: Error| e.at(file.display());
    let mut runs = MimicRuns::new(zip(&paths("mpt"), &paths("trr"), &paths("energies")).map_err(at)?);
    runs.options = MimicOptions { units, drop_last_frame: section.bool("drop_last_frame") };
    runs.shuffle = section.bool("shuffle").then(|| section.int("seed"));
    if let Some(split) = section.get("split") {
        runs.split = ratios(split).map_err(|e| at(section.error("split", e)))?;
    }
    Ok(runs)
}

fn ratios(split: &Value) -> Result<Vec<(String, f64)>> {
    let wrong = || err!("wanted subsets with ratios").help("write it as {train: 8, vali: 1, test: 1}");
    let ratio = |(name, value): (&String, &Value)| Ok((name.clone(), value.as_f64().ok_or_else(wrong)?));
    split.as_object().filter(|map| !map.is_empty()).ok_or_else(wrong)?.iter().map(ratio).collect()
}

/// One run from each position of the lists.
pub fn zip(mpt: &[PathBuf], trr: &[PathBuf], energies: &[PathBuf]) -> Result<Vec<MimicFiles>> {
    if trr.is_empty() || trr.len() != energies.len() || !(mpt.len() == 1 || mpt.len() == trr.len()) {
        return Err(err!(
            "{} topologies, {} trajectories and {} files of energies",
            mpt.len(),
            trr.len(),
            energies.len()
        )
        .help("wanted as many of each; one topology alone holds for all trajectories"));
    }
    let run = |i: usize| MimicFiles {
        mpt: mpt[if mpt.len() == 1 { 0 } else { i }].clone(),
        trr: trr[i].clone(),
        energies: energies[i].clone(),
    };
    Ok((0..trr.len()).map(run).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(trr: &str) -> MimicFiles {
        let folder = Path::new("tests/pinn_data/mimic");
        MimicFiles {
            mpt: folder.join("sample.mpt"),
            trr: folder.join(trr),
            energies: folder.join("ENERGIES"),
        }
    }

    fn npy(name: &str) -> Vec<f64> {
        let bytes = std::fs::read(Path::new("tests/pinn_data/mimic").join(name)).unwrap();
        let file = npyz::NpyFile::new(&bytes[..]).unwrap();
        file.into_vec::<f32>().unwrap().into_iter().map(f64::from).collect()
    }

    #[test]
    fn frames_are_those_of_the_original_reader_bit_for_bit() {
        for name in ["single", "double"] {
            let run = Mimic::open(&files(&format!("sample_{name}.trr")), MimicOptions::default()).unwrap();
            assert_eq!(run.len(), 5);
            let samples: Vec<Sample> = (0..5).map(|i| run.read(i).unwrap()).collect();
            let coord: Vec<f64> = samples.iter().flat_map(|s| s.coord.as_flattened().to_vec()).collect();
            let force: Vec<f64> =
                samples.iter().flat_map(|s| s.f_data.as_ref().unwrap().as_flattened().to_vec()).collect();
            let cell: Vec<f64> =
                samples.iter().flat_map(|s| s.cell.as_ref().unwrap().as_flattened().to_vec()).collect();
            assert_eq!(coord, npy(&format!("{name}_coord_ang.npy")), "{name}");
            assert_eq!(force, npy(&format!("{name}_f_data.npy")), "{name}");
            assert_eq!(cell, npy(&format!("{name}_cell_ang.npy")), "{name}");
            assert_eq!(samples[4].e_data, Some(f64::from(-44.5371086445f64 as f32)));
        }
    }

    #[test]
    fn units_can_be_made_to_fit_together() {
        let read = |units| {
            let options = MimicOptions { units, ..MimicOptions::default() };
            Mimic::open(&files("sample_double.trr"), options).unwrap().read(1).unwrap()
        };
        let (mixed, hartree, ev) = (read(MimicUnits::Mixed), read(MimicUnits::Hartree), read(MimicUnits::Ev));
        let force = |s: &Sample| s.f_data.as_ref().unwrap()[3][1];
        assert!((force(&mixed) / force(&hartree) / HARTREE_IN_KJ_MOL - 1.0).abs() < 1e-6);
        assert!((force(&ev) / force(&hartree) / HARTREE - 1.0).abs() < 1e-6);
        assert!((ev.e_data.unwrap() / hartree.e_data.unwrap() / HARTREE - 1.0).abs() < 1e-6);
    }

    #[test]
    fn as_many_energies_as_frames_or_the_last_frame_is_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let mut files = files("sample_single.trr");
        let text = std::fs::read_to_string(&files.energies).unwrap();
        files.energies = folder.path().join("ENERGIES");
        std::fs::write(&files.energies, text.lines().take(4).collect::<Vec<_>>().join("\n")).unwrap();
        let error = Mimic::open(&files, MimicOptions::default()).map(|_| ()).unwrap_err();
        assert!(error.message().contains("energies of 4 steps, but "), "{error}");
        assert!(error.message().ends_with("has 5 frames"), "{error}");
        let options = MimicOptions { drop_last_frame: true, ..MimicOptions::default() };
        assert_eq!(Mimic::open(&files, options).unwrap().len(), 4);
    }

    #[test]
    fn a_topology_of_other_atoms_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let mut files = files("sample_single.trr");
        let mut bytes = std::fs::read(&files.mpt).unwrap();
        let at = bytes.windows(8).position(|w| w == [0, 0, 0, 1, 0, 0, 0, 2]).unwrap() + 7;
        bytes[at] = 3;
        files.mpt = folder.path().join("other.mpt");
        std::fs::write(&files.mpt, bytes).unwrap();
        let error = Mimic::open(&files, MimicOptions::default()).map(|_| ()).unwrap_err();
        assert!(error.message().contains("frame 0 at byte 0: 19 atoms, but "), "{error}");
        assert!(error.message().ends_with("has 22"), "{error}");
    }

    #[test]
    fn runs_are_named_in_a_file_with_paths_from_its_folder() {
        let value = serde_json::json!({"mimic": {"mpt": "a.mpt", "trr": ["1.trr", "/x/2.trr"], "ener": ["e1", "e2"]}});
        let MimicRuns { runs, options, split, shuffle } =
            runs_of(&value, Path::new("data/runs.yml")).unwrap();
        assert_eq!((options, split.len(), shuffle), (MimicOptions::default(), 3, Some(0)));
        assert_eq!(runs[1].mpt, Path::new("data/a.mpt"));
        assert_eq!(
            (runs[0].trr.as_path(), runs[1].trr.as_path()),
            (Path::new("data/1.trr"), Path::new("/x/2.trr"))
        );
        let value =
            serde_json::json!({"mimic": {"mpt": "a.mpt", "trr": ["1.trr"], "energies": ["e1", "e2"]}});
        assert!(
            runs_of(&value, Path::new("runs.yml"))
                .unwrap_err()
                .message()
                .contains("1 trajectories and 2 files")
        );
        let value = serde_json::json!({"mimic": {"mpt": "a", "trrr": "b", "energies": "c"}});
        assert!(
            runs_of(&value, Path::new("runs.yml")).unwrap_err().to_string().contains("did you mean `trr`?")
        );
    }
}
