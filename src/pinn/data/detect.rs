//! Which format a data set has, by its name and its first lines.

use super::deepmd;
use super::extxyz;
use super::file::Lines;
use super::mimic::{self, MimicFiles, MimicRuns};
use super::qm9::{LabelMap, Qm9};
use super::runner;
use super::source::{Joined, Source, Subset};
use super::tfrecord::Tfrecord;
use crate::config::check::did_you_mean;
use crate::config::value;
use crate::error::Result;
use crate::pinn::distribute::distribute;
use crate::pinn::split::split_list;
use crate::{bail, err};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A format that a file or folder can have.
pub struct Format {
    pub name: &'static str,
    pub aliases: &'static [&'static str],
    /// Opens one file or folder; the second text is what stands behind `name:`.
    pub open: fn(&str, &str) -> Result<Box<dyn Source>>,
}

/// Every format.
pub const FORMATS: &[Format] = &[
    Format { name: "tfr", aliases: &["tfrecord"], open: |path, _| open_yml(path) },
    Format { name: "runner", aliases: &[], open: |path, _| Ok(Box::new(runner::open(Path::new(path))?)) },
    Format {
        name: "ase",
        aliases: &["extxyz", "xyz"],
        open: |path, _| Ok(Box::new(extxyz::open(Path::new(path))?)),
    },
    Format {
        name: "qm9",
        aliases: &[],
        open: |path, map| Ok(Box::new(Qm9::open(path, LabelMap::parse(map)?)?)),
    },
    Format { name: "deepmd", aliases: &["npy"], open: |path, _| Ok(Box::new(deepmd::open(path)?)) },
    Format { name: "mimic", aliases: &[], open: |path, _| open_yml(path) },
];

/// What PiNN reads and we do not.
const ABSENT: [&str; 4] = ["ani", "cp2k", "qm7b", "numpy"];

/// A data set as it is named on a command line, before any structure is read.
pub struct DataSet {
    parts: Parts,
}

enum Parts {
    /// Files with their format.
    Files(Vec<(String, &'static Format, String)>),
    /// MiMiC runs, and the subset of their frames that is meant.
    Runs(MimicRuns, Option<String>),
}

impl DataSet {
    /// Understands a name: a file, a folder, or several joined by commas; `a.mpt,a.trr,ENERGIES` is a MiMiC run, and
    /// `runs.yml#train` the subset `train` of the runs that the file lists.
    ///
    /// - fmt  `auto`, or the name of a format
    pub fn new(name: &str, fmt: &str) -> Result<DataSet> {
        let (kind, argument) = fmt.split_once(':').unwrap_or((fmt, ""));
        let files =
            if Path::new(name).exists() { vec![name] } else { name.split(',').map(str::trim).collect() };
        let ends_in = |file: &&str, ending: &str| Path::new(file).extension().is_some_and(|e| e == ending);
        if files.iter().any(|file| ends_in(file, "mpt")) {
            return Ok(DataSet { parts: Parts::Runs(MimicRuns::new(triples(&files)?), None) });
        }
        let (file, subset) = match files[0].rsplit_once('#') {
            Some((file, subset)) if is_yml(file) => (file, Some(subset)),
            _ => (files[0], None),
        };
        if files.len() == 1 && is_yml(file) {
            match (runs_in(Path::new(file))?, subset) {
                (Some(runs), subset) => return DataSet::of_runs(runs, subset),
                (None, Some(subset)) => {
                    bail!("{name}: only lists of MiMiC runs have subsets such as {subset}")
                }
                (None, None) => {}
            }
        }
        let format = |file: &str| -> Result<&'static Format> {
            if kind == "auto" { detect(file) } else { by_name(kind) }
        };
        let parts = files.iter().map(|file| Ok((file.to_string(), format(file)?, argument.to_owned())));
        Ok(DataSet { parts: Parts::Files(parts.collect::<Result<_>>()?) })
    }

    fn of_runs(runs: MimicRuns, subset: Option<&str>) -> Result<DataSet> {
        if let Some(wanted) = subset.filter(|s| !runs.split.iter().any(|(name, _)| name == s)) {
            let names: Vec<&str> = runs.split.iter().map(|(name, _)| name.as_str()).collect();
            let help =
                format!("{}there are: {}", did_you_mean(wanted, names.iter().copied()), names.join(" "));
            return Err(err!("there is no subset \"{wanted}\"").help(help));
        }
        Ok(DataSet { parts: Parts::Runs(runs, subset.map(str::to_owned)) })
    }

    /// The number of files, or of MiMiC runs.
    pub fn n_files(&self) -> usize {
        match &self.parts {
            Parts::Files(files) => files.len(),
            Parts::Runs(runs, _) => runs.runs.len(),
        }
    }

    /// Opens all of it.
    pub fn open(&self) -> Result<Box<dyn Source>> {
        self.open_part(0, 1)
    }

    /// Opens the files of one rank: each rank has files of its own. Fewer files than ranks are an error.
    pub fn open_part(&self, rank: usize, size: usize) -> Result<Box<dyn Source>> {
        match &self.parts {
            Parts::Runs(runs, subset) => {
                let own = distribute(&runs.runs, "trajectories", rank, size)?;
                let all = mimic::open_runs(&own, runs.options)?;
                let Some(subset) = subset else { return Ok(Box::new(all)) };
                let parts = split_list(all.len(), &runs.split, runs.shuffle)?;
                let (_, indices) =
                    parts.into_iter().find(|(name, _)| name == subset).expect("its name was checked");
                if indices.is_empty() {
                    bail!("{}: none of {} frames is left for the subset {subset}", all.place(), all.len());
                }
                Ok(Box::new(Subset::new(Arc::new(all), indices)))
            }
            Parts::Files(files) => {
                let own = distribute(files, "files", rank, size)?;
                if let [(file, format, argument)] = &own[..] {
                    return (format.open)(file, argument);
                }
                let open =
                    |(file, format, argument): &(String, &Format, String)| (format.open)(file, argument);
                Ok(Box::new(Joined::new(own.iter().map(open).collect::<Result<_>>()?)?))
            }
        }
    }

    /// True where energies and forces are in units that do not fit together (MiMiC, unless its file says otherwise).
    pub fn has_mixed_units(&self) -> bool {
        matches!(&self.parts, Parts::Runs(runs, _) if runs.options.units == mimic::MimicUnits::Mixed)
    }
}

/// Opens a data set by its name.
pub fn open(name: &str, fmt: &str) -> Result<Box<dyn Source>> {
    DataSet::new(name, fmt)?.open()
}

fn by_name(name: &str) -> Result<&'static Format> {
    if let Some(format) = FORMATS.iter().find(|f| f.name == name || f.aliases.contains(&name)) {
        return Ok(format);
    }
    let mut known: Vec<&str> = FORMATS.iter().map(|f| f.name).collect();
    known.push("auto");
    let help = format!("{}known: {}", did_you_mean(name, known.iter().copied()), known.join(" "));
    if ABSENT.contains(&name) {
        return Err(err!("the format {name} is not supported").help(help));
    }
    Err(err!("\"{name}\" is not a format of data").help(help))
}

/// The format of one file or folder.
fn detect(name: &str) -> Result<&'static Format> {
    let path = Path::new(name);
    let extension = path.extension().and_then(|e| e.to_str()).unwrap_or_default().to_ascii_lowercase();
    if path.is_dir() {
        return by_name(if holds_xyz(path) { "qm9" } else { "deepmd" });
    }
    match extension.as_str() {
        "yml" | "yaml" | "tfr" => return by_name("tfr"),
        "data" => return by_name("runner"),
        _ if name.contains(".hdf5") || name.contains(".h5") => return by_name("deepmd"),
        _ => {}
    }
    if !path.exists() {
        return Err(err!("{name}: no such file or folder"));
    }
    let mut lines = Lines::open(path)?;
    let (mut first, mut second) = (String::new(), String::new());
    while first.trim().is_empty() {
        let Some(line) = lines.next()? else { bail!("{name}: the file is empty") };
        first = line.to_owned();
    }
    if let Some(line) = lines.next()? {
        second = line.to_owned();
    }
    if first.trim() == "begin" {
        return by_name("runner");
    }
    if first.trim().parse::<usize>().is_ok() {
        let qm9 = second.trim_start().starts_with("gdb") && second.split_whitespace().count() >= 17;
        return by_name(if qm9 { "qm9" } else { "ase" });
    }
    let known: Vec<&str> = FORMATS.iter().map(|f| f.name).collect();
    Err(err!("{name}: the format is not clear from its name and first line")
        .help(format!("name it with -f: {}", known.join(" "))))
}

/// A folder of xyz files without a system of DeePMD-kit.
fn holds_xyz(folder: &Path) -> bool {
    let xyz = |entry: std::io::Result<std::fs::DirEntry>| {
        entry.is_ok_and(|e| e.path().extension().is_some_and(|x| x == "xyz"))
    };
    !folder.join("type.raw").exists() && std::fs::read_dir(folder).is_ok_and(|mut entries| entries.any(xyz))
}

fn is_yml(name: &str) -> bool {
    let extension = Path::new(name).extension().and_then(|e| e.to_str());
    extension.is_some_and(|e| e == "yml" || e == "yaml")
}

/// The MiMiC runs of a YAML file, where it names runs.
fn runs_in(path: &Path) -> Result<Option<MimicRuns>> {
    let file = value::read(path)?;
    match file.get("mimic") {
        Some(_) => mimic::runs_of(&file, path).map(Some),
        None => Ok(None),
    }
}

fn open_yml(name: &str) -> Result<Box<dyn Source>> {
    let path = Path::new(name).with_extension(if name.ends_with(".yaml") { "yaml" } else { "yml" });
    match runs_in(&path)? {
        Some(runs) => Ok(Box::new(mimic::open_runs(&runs.runs, runs.options)?)),
        None => Ok(Box::new(Tfrecord::open(&path)?)),
    }
}

/// Topologies, trajectories and energies by their endings.
fn triples(files: &[&str]) -> Result<Vec<MimicFiles>> {
    let (mut mpt, mut trr, mut energies) = (Vec::new(), Vec::new(), Vec::new());
    for file in files {
        let path = PathBuf::from(file);
        match path.extension().and_then(|e| e.to_str()) {
            Some("mpt") => mpt.push(path),
            Some("trr") => trr.push(path),
            _ => energies.push(path),
        }
    }
    mimic::zip(&mpt, &trr, &energies)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(name: &str, text: &str) -> (tempfile::TempDir, String) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        let path = path.to_str().unwrap().to_owned();
        (folder, path)
    }

    #[test]
    fn formats_are_told_apart_by_name_and_first_lines() {
        assert_eq!(detect("tests/pinn_data/tfrecord/sample.yml").unwrap().name, "tfr");
        assert_eq!(detect("examples/water").unwrap().name, "deepmd");
        let gdb = format!("1\ngdb 1 {}\n", "0.5 ".repeat(15));
        let cases = [
            ("a.data", "x", "runner"),
            ("frames", "begin\nend\n", "runner"),
            ("a.xyz", "1\n\nHe 0 0 0\n", "ase"),
            ("a", "\n1\nLattice=\"1 0 0 0 1 0 0 0 1\"\nHe 0 0 0\n", "ase"),
            ("a.xyz", gdb.as_str(), "qm9"),
        ];
        for (name, text, want) in cases {
            let (_folder, path) = written(name, text);
            assert_eq!(detect(&path).unwrap().name, want, "{name}");
        }
        let (_folder, path) = written("notes.txt", "hello\n");
        assert!(detect(&path).map(|_| ()).unwrap_err().message().contains("not clear"));
        assert!(detect("no/such").map(|_| ()).unwrap_err().message().contains("no such file"));
    }

    #[test]
    fn format_names_are_checked() {
        assert!(by_name("runer").map(|_| ()).unwrap_err().to_string().contains("did you mean `runner`?"));
        assert!(by_name("cp2k").map(|_| ()).unwrap_err().message().contains("not supported"));
    }

    #[test]
    fn a_mimic_run_is_named_by_its_three_files() {
        let m = "tests/pinn_data/mimic";
        let name = format!("{m}/sample.mpt,{m}/sample_single.trr,{m}/ENERGIES");
        let set = DataSet::new(&name, "auto").unwrap();
        assert!(set.has_mixed_units());
        assert_eq!((set.n_files(), set.open().unwrap().len()), (1, 5));
        let two =
            format!("{m}/sample.mpt,{m}/sample_single.trr,{m}/ENERGIES,{m}/sample_double.trr,{m}/ENERGIES");
        let set = DataSet::new(&two, "auto").unwrap();
        assert_eq!(set.open().unwrap().len(), 10);
        assert_eq!(set.open_part(1, 2).unwrap().place(), format!("{m}/sample_double.trr"));
        let error = set.open_part(0, 3).map(|_| ()).unwrap_err();
        assert!(error.message().contains("2 trajectories cannot be split among 3 ranks"), "{error}");
    }

    #[test]
    fn runs_may_be_listed_in_a_file_and_several_files_are_joined() {
        let here = std::env::current_dir().unwrap().join("tests/pinn_data/mimic");
        let here = here.display();
        let text = format!(
            "mimic:\n  mpt: {here}/sample.mpt\n  trr: [{here}/sample_single.trr, {here}/sample_double.trr]\n  \
             energies: [{here}/ENERGIES, {here}/ENERGIES]\n  units: ev\n"
        );
        let (_folder, path) = written("runs.yml", &text);
        let set = DataSet::new(&path, "auto").unwrap();
        assert_eq!((set.n_files(), set.has_mixed_units()), (2, false));
        assert_eq!(set.open().unwrap().len(), 10);
        // Ten frames of both runs: the subsets of splits.json, n10_seed0_8_1_1.
        let energy = |i: usize| set.open().unwrap().read(i).unwrap().e_data;
        let test = DataSet::new(&format!("{path}#test"), "auto").unwrap().open().unwrap();
        assert_eq!((test.len(), test.read(0).unwrap().e_data), (1, energy(6)));
        assert_eq!(DataSet::new(&format!("{path}#train"), "auto").unwrap().open().unwrap().len(), 8);
        let error = DataSet::new(&format!("{path}#trian"), "auto").map(|_| ()).unwrap_err().to_string();
        assert!(error.contains("did you mean `train`?"), "{error}");
        let t = "tests/pinn_data/tfrecord/sample.yml";
        assert!(DataSet::new(&format!("{t}#train"), "auto").is_err());
        assert_eq!(open(&format!("{t},{t}"), "auto").unwrap().len(), 6);
    }
}
