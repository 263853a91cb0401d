//! The checkpoint files of a run: names, links, and which to keep.

use super::SUFFIX;
use super::file::Checkpoint;
use crate::err;
use crate::error::{IoContext, Result};
use std::ffi::OsString;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tempfile::NamedTempFile;

/// Files of another program that stand beside each checkpoint.
pub trait Companion: std::fmt::Debug + Send + Sync {
    /// Writes them; `path` is that of the checkpoint without its ending.
    fn write(&self, path: &Path, checkpoint: &Checkpoint) -> Result<()>;

    /// Which they are.
    fn files(&self, path: &Path) -> Vec<PathBuf>;

    /// What the file `checkpoint` says of the newest, so that the other program finds it too.
    fn pointer(&self, name: &str) -> String;
}

/// The checkpoints of one `save_ckpt` prefix.
#[derive(Debug, Clone)]
pub struct Store {
    prefix: PathBuf,
    keep: usize,
    companion: Option<Arc<dyn Companion>>,
    aliases: &'static [&'static str],
    /// Whether the file `checkpoint` tells of it.
    points: bool,
    /// Whether a file `checkpoint` of the folder where the program was started names the newest one too.
    points_from_here: bool,
}

/// Saves one checkpoint; see [`Store::save`].
pub fn save(prefix: &Path, step: u64, checkpoint: &Checkpoint, keep: usize) -> Result<PathBuf> {
    Store::new(prefix, keep)?.save(step, checkpoint)
}

impl Store {
    /// `prefix` is `training.save_ckpt`; `keep` is the number of files that stay, 0 keeps all.
    pub fn new(prefix: &Path, keep: usize) -> Result<Self> {
        if prefix.file_name().is_none() {
            return Err(err!(
                "training.save_ckpt: {:?} does not end in a name",
                prefix.display().to_string()
            )
            .help("give a prefix such as model.ckpt"));
        }
        let (companion, aliases) = (None, &[][..]);
        Ok(Store {
            prefix: prefix.to_owned(),
            keep,
            companion,
            aliases,
            points: true,
            points_from_here: false,
        })
    }

    /// Writes files of another program beside each checkpoint.
    pub fn with_companion(self, companion: Option<Arc<dyn Companion>>) -> Self {
        Store { companion, ..self }
    }

    /// Gives the newest checkpoint other names too: the prefix with these endings. Workflows look for the files of a framework,
    /// and take them elsewhere without the rest, so these are no symbolic links.
    pub fn with_aliases(self, aliases: &'static [&'static str]) -> Self {
        Store { aliases, ..self }
    }

    /// The same for checkpoints from which no run goes on: the file `checkpoint` does not tell of them.
    pub fn without_pointer(self) -> Self {
        Store { points: false, ..self }
    }

    /// Also names the newest checkpoint where the program was started, as DeePMD-kit does.
    pub fn pointing_from_here(self) -> Self {
        Store { points_from_here: true, ..self }
    }

    /// `model.ckpt-1000.phx`.
    pub fn path_for(&self, step: u64) -> PathBuf {
        numbered_path(&self.prefix, step)
    }

    /// Writes a checkpoint that is complete or absent, points the links to it, and removes old ones.
    ///
    /// Files of later steps are of an abandoned run and go too, as with DeePMD-kit; with `keep` 0 nothing goes.
    pub fn save(&self, step: u64, checkpoint: &Checkpoint) -> Result<PathBuf> {
        let folder = folder_of(&self.prefix);
        std::fs::create_dir_all(folder).io("create the folder of the checkpoints", folder)?;
        self.remove_strays();
        let path = self.path_for(step);
        write_complete(&path, checkpoint)?;
        log::info!("Saved model to {}", path.display());
        if let Some(companion) = &self.companion
            && let Err(error) = companion.write(&path.with_extension(""), checkpoint)
        {
            log::warn!("the checkpoint is safe, but not its copy for another program: {error}");
        }
        self.publish(&path);
        self.prune(step);
        Ok(path)
    }

    /// Moves the link and the `checkpoint` files. The checkpoint itself is safe by now: failures are told, no more.
    fn publish(&self, path: &Path) {
        let name = path.file_name().expect("a numbered checkpoint has a name");
        let link = with_suffix(&self.prefix);
        if let Err(error) = write_link(&link, name) {
            log::warn!("{}: cannot link the newest checkpoint: {error}", link.display());
        }
        for alias in self.aliases.iter().map(|ending| with_ending(&self.prefix, ending)) {
            if let Err(error) = give_name(path, &alias) {
                log::warn!("{}: cannot write: {error}", alias.display());
            }
        }
        for (k, (pointer, target)) in self.pointers(path).into_iter().enumerate() {
            let target = match (&self.companion, name.to_string_lossy().strip_suffix(SUFFIX)) {
                (Some(companion), Some(name)) if k == 0 => companion.pointer(name).into(),
                _ => target,
            };
            if let Err(error) = write_pointer(&pointer, &target) {
                log::warn!("{}: cannot write: {error}", pointer.display());
            }
            // The new names of link and pointer; some file systems refuse to sync a folder.
            let _ = sync_folder(folder_of(&pointer));
        }
    }

    /// The files named `checkpoint` and what they hold: a path relative to their own folder, without newline.
    ///
    /// One lies beside the checkpoints. DeePMD-kit puts it where `dp` was started, so for `dp` a relative prefix with a
    /// folder in it gets one there too.
    fn pointers(&self, path: &Path) -> Vec<(PathBuf, PathBuf)> {
        if !self.points {
            return Vec::new();
        }
        let name = PathBuf::from(path.file_name().expect("a numbered checkpoint has a name"));
        let mut pointers = vec![(folder_of(&self.prefix).join("checkpoint"), name)];
        if self.points_from_here && self.prefix.is_relative() && folder_of(&self.prefix) != Path::new(".") {
            pointers.push((PathBuf::from("checkpoint"), path.to_owned()));
        }
        pointers
    }

    /// Removes what killed runs left in mid-write. The folder is this run's own; `checkpoint` is written by one of its stores only.
    fn remove_strays(&self) {
        let endings = self.aliases.iter().copied().chain([SUFFIX]);
        let mut others: Vec<PathBuf> = endings.map(|ending| with_ending(&self.prefix, ending)).collect();
        if self.points {
            others.push(self.prefix.with_file_name("checkpoint"));
        }
        let is_other = |name: &str| others.iter().any(|other| other.file_name() == Some(name.as_ref()));
        remove_strays(folder_of(&self.prefix), |name| {
            step_of(&self.prefix, name).is_some() || is_other(name)
        });
    }

    fn prune(&self, newest: u64) {
        if self.keep == 0 {
            return;
        }
        let (older, later): (Vec<_>, Vec<_>) = numbered(&self.prefix)
            .unwrap_or_default()
            .into_iter()
            .filter(|(step, _)| *step != newest)
            .partition(|(step, _)| *step < newest);
        let excess = (older.len() + 1).saturating_sub(self.keep);
        for (_, path) in older[..excess].iter().chain(&later) {
            let companions = self.companion.iter().flat_map(|c| c.files(&path.with_extension("")));
            for file in companions.filter(|file| file.exists()).chain([path.clone()]) {
                if let Err(error) = std::fs::remove_file(&file) {
                    log::warn!("{}: cannot remove the old checkpoint: {error}", file.display());
                }
            }
        }
    }
}

/// Temporary name, sync, rename, sync of the folder: after a crash the file is whole or not there.
pub fn write_complete(path: &Path, checkpoint: &Checkpoint) -> Result<()> {
    let written = write_synced(path, checkpoint).and_then(|temporary| {
        temporary.persist(path).map_err(|e| e.error).io("rename the checkpoint to", path)
    });
    // What was written so far goes with its handle; the first error is the one to tell.
    written.map_err(|error| {
        error.help(
            "the checkpoints saved before are untouched; see whether the disk is full, or a limit is set (ulimit -f)",
        )
    })?;
    sync_folder(folder_of(path))
}

fn write_synced(path: &Path, checkpoint: &Checkpoint) -> Result<NamedTempFile> {
    let temporary = temporary(path).io("create a file for", path)?;
    let mut out = BufWriter::with_capacity(1 << 16, temporary.as_file());
    checkpoint.write(&mut out).and_then(|()| out.flush()).io("write the checkpoint", path)?;
    drop(out);
    temporary.as_file().sync_all().io("sync", path)?;
    Ok(temporary)
}

/// Another name for a file; a copy of it where the file system has no hard links.
fn give_name(path: &Path, name: &Path) -> std::io::Result<()> {
    let prefix = hidden(name);
    let mut builder = tempfile::Builder::new();
    let made = builder.prefix(&prefix).suffix(".tmp").make_in(folder_of(name), |temporary| {
        std::fs::hard_link(path, temporary).or_else(|_| std::fs::copy(path, temporary).map(drop))
    })?;
    // A name for a file that has it already would leave the temporary one: its handle removes that.
    std::fs::rename(made.path(), name)
}

/// The pointer is whole after a crash, too: synced before it takes its name.
fn write_pointer(pointer: &Path, target: &Path) -> std::io::Result<()> {
    let mut temporary = temporary(pointer)?;
    temporary.write_all(target.as_os_str().as_encoded_bytes())?;
    temporary.as_file().sync_all()?;
    temporary.persist(pointer).map_err(|e| e.error)?;
    Ok(())
}

/// Puts a link to `target` in the place of whatever `link` is.
fn write_link(link: &Path, target: &std::ffi::OsStr) -> std::io::Result<()> {
    let prefix = hidden(link);
    let mut builder = tempfile::Builder::new();
    let builder = builder.prefix(&prefix).suffix(".tmp");
    let made = builder.make_in(folder_of(link), |path| std::os::unix::fs::symlink(target, path))?;
    made.into_temp_path().persist(link).map_err(|e| e.error)
}

fn sync_folder(folder: &Path) -> Result<()> {
    File::open(folder).and_then(|folder| folder.sync_all()).io("sync", folder)
}

/// Removes what killed runs left in mid-write of files with such names.
pub fn remove_strays(folder: &Path, is_ours: impl Fn(&str) -> bool) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(name) = name.to_str().and_then(|n| n.strip_prefix('.')?.strip_suffix(".tmp")) else {
            continue;
        };
        // `.model.ckpt-10.phx.Xy12Zw.tmp`; without the random letters in earlier days.
        let saved = name.rsplit_once('.').map_or(name, |(saved, _)| saved);
        if is_ours(name) || is_ours(saved) {
            let _ = remove_if_there(&entry.path()); // litter, not worth ending a run
        }
    }
}

fn remove_if_there(path: &Path) -> std::io::Result<()> {
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

/// All numbered checkpoints of a prefix, by step; whole or not. None where there is no folder.
pub(super) fn numbered(prefix: &Path) -> Result<Vec<(u64, PathBuf)>> {
    let folder = folder_of(prefix);
    let entries = match std::fs::read_dir(folder) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.io("list", folder)?,
    };
    let mut found: Vec<(u64, PathBuf)> = entries
        .flatten()
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_file()))
        .filter_map(|entry| {
            Some((step_of(prefix, entry.file_name().to_str()?)?, prefix.with_file_name(entry.file_name())))
        })
        .collect();
    found.sort();
    Ok(found)
}

/// The step in `model.ckpt-1000.phx`, if the name is of this prefix.
pub(super) fn step_of(prefix: &Path, name: &str) -> Option<u64> {
    let rest = name.strip_prefix(prefix.file_name()?.to_str()?)?;
    let digits = rest.strip_prefix('-')?.strip_suffix(SUFFIX)?;
    digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())?
}

pub(super) fn numbered_path(prefix: &Path, step: u64) -> PathBuf {
    let mut name = prefix.as_os_str().to_owned();
    name.push(format!("-{step}{SUFFIX}"));
    PathBuf::from(name)
}

/// Adds `.phx`; `model.ckpt` has a dot already, so the suffix is never put in its place.
pub(super) fn with_suffix(path: &Path) -> PathBuf {
    with_ending(path, SUFFIX)
}

pub(super) fn with_ending(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    PathBuf::from(name)
}

/// A new file `.name.RANDOM.tmp` in the same folder, so that a rename moves no data. Nobody can have put a link there.
fn temporary(path: &Path) -> std::io::Result<NamedTempFile> {
    let mut builder = tempfile::Builder::new();
    let prefix = hidden(path);
    // The kernel takes the umask off this mode.
    builder.prefix(&prefix).suffix(".tmp").permissions(std::fs::Permissions::from_mode(0o644));
    builder.tempfile_in(folder_of(path))
}

/// `.name.`, which temporary names start with.
fn hidden(path: &Path) -> OsString {
    let mut name = OsString::from(".");
    name.push(path.file_name().expect("every file that is written has a name"));
    name.push(".");
    name
}

/// The folder of a path; `.` where none is written.
pub fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

#[cfg(test)]
mod tests {
    use super::super::file::tests::sample;
    use super::super::{load, newest_complete};
    use super::*;
    use crate::checkpoint::Array;

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<String> = std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn other_names_follow_the_newest_and_load_where_they_are_alone() {
        let folder = tempfile::tempdir().unwrap();
        let prefix = folder.path().join("model.ckpt");
        let store = Store::new(&prefix, 1).unwrap().with_aliases(&[".index", ".meta"]);
        for step in [5, 6, 6] {
            store.save(step, &sample(step)).unwrap();
        }
        let want =
            ["checkpoint", "model.ckpt-6.phx", "model.ckpt.index", "model.ckpt.meta", "model.ckpt.phx"];
        assert_eq!(names(folder.path()), want);
        let elsewhere = tempfile::tempdir().unwrap();
        std::fs::copy(folder.path().join("model.ckpt.index"), elsewhere.path().join("model.ckpt.index"))
            .unwrap();
        assert_eq!(load(&elsewhere.path().join("model.ckpt")).unwrap(), sample(6));
        std::fs::write(elsewhere.path().join("model.ckpt.index"), "of another program").unwrap();
        assert!(
            load(&elsewhere.path().join("model.ckpt")).unwrap_err().message().contains("no such checkpoint")
        );
    }

    #[test]
    fn a_save_leaves_file_link_and_pointer_and_keeps_the_newest() {
        let folder = tempfile::tempdir().unwrap();
        let prefix = folder.path().join("run/model.ckpt");
        for step in [9, 10, 11, 100] {
            assert_eq!(save(&prefix, step, &sample(step), 2).unwrap(), numbered_path(&prefix, step));
        }
        let run = folder.path().join("run");
        assert_eq!(names(&run), ["checkpoint", "model.ckpt-100.phx", "model.ckpt-11.phx", "model.ckpt.phx"]);
        assert_eq!(std::fs::read_link(run.join("model.ckpt.phx")).unwrap(), Path::new("model.ckpt-100.phx"));
        assert_eq!(std::fs::read_to_string(run.join("checkpoint")).unwrap(), "model.ckpt-100.phx");
        assert_eq!(load(&prefix).unwrap(), sample(100));
    }

    #[test]
    fn keep_zero_keeps_all_and_files_of_an_abandoned_run_go_otherwise() {
        let folder = tempfile::tempdir().unwrap();
        let prefix = folder.path().join("model.ckpt");
        for step in 1..=4 {
            save(&prefix, step * 100, &sample(step), 0).unwrap();
        }
        assert_eq!(numbered(&prefix).unwrap().len(), 4);
        save(&prefix, 250, &sample(250), 5).unwrap();
        let steps: Vec<u64> = numbered(&prefix).unwrap().into_iter().map(|(step, _)| step).collect();
        assert_eq!(steps, [100, 200, 250]);
        save(&prefix, 10, &sample(10), 1).unwrap();
        assert_eq!(load(&prefix).unwrap(), sample(10));
    }

    #[test]
    fn files_of_other_prefixes_are_left_alone_and_strays_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let prefix = folder.path().join("model.ckpt");
        let others = ["model.ckpt2-5.phx", "model.ckpt-x.phx", "model.ckpt-5.pt", ".model.ckpt2-5.phx.tmp"];
        let strays = [
            ".model.ckpt-5.phx.tmp",
            ".model.ckpt-5.phx.aB3dEf.tmp",
            ".model.ckpt.phx.aB3dEf.tmp",
            ".checkpoint.aB3dEf.tmp",
        ];
        for name in others.into_iter().chain(strays) {
            std::fs::write(folder.path().join(name), "x").unwrap();
        }
        save(&prefix, 6, &sample(6), 1).unwrap();
        let left = names(folder.path());
        assert!(others.iter().all(|name| left.contains(&name.to_string())), "{left:?}");
        assert!(!strays.iter().any(|name| left.contains(&name.to_string())), "{left:?}");
    }

    #[test]
    fn links_that_wait_under_old_temporary_names_are_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::write(at("precious"), "untouched").unwrap();
        for name in [".checkpoint.tmp", ".model.ckpt.phx.tmp", ".model.ckpt-2.phx.tmp", "checkpoint"] {
            std::os::unix::fs::symlink(at("precious"), at(name)).unwrap();
        }
        save(&at("model.ckpt"), 2, &sample(2), 1).unwrap();
        assert_eq!(std::fs::read_to_string(at("precious")).unwrap(), "untouched");
        assert_eq!(load(folder.path()).unwrap(), sample(2));
    }

    #[test]
    fn a_save_that_fails_leaves_the_ones_before_and_says_so() {
        let folder = tempfile::tempdir().unwrap();
        let prefix = folder.path().join("model.ckpt");
        save(&prefix, 1, &sample(1), 1).unwrap();
        std::fs::create_dir(numbered_path(&prefix, 2)).unwrap(); // a rename onto a folder fails
        let error = save(&prefix, 2, &sample(2), 1).unwrap_err();
        assert!(
            error.to_string().contains("model.ckpt-2.phx") && error.to_string().contains("untouched"),
            "{error}"
        );
        assert_eq!(load(&prefix).unwrap(), sample(1));
        assert!(!names(folder.path()).iter().any(|name| name.ends_with(".tmp")));
        assert!(Store::new(Path::new("out/.."), 1).is_err());
    }

    #[test]
    fn a_relative_prefix_with_a_folder_is_told_where_dp_was_started() {
        let store = Store::new(Path::new("out/model.ckpt"), 1).unwrap();
        assert_eq!(store.pointers(&store.path_for(7)).len(), 1, "not unless it is asked for");
        let store = store.pointing_from_here();
        let pointers = store.pointers(&store.path_for(7));
        assert_eq!(pointers[0], ("out/checkpoint".into(), "model.ckpt-7.phx".into()));
        assert_eq!(pointers[1], ("checkpoint".into(), "out/model.ckpt-7.phx".into()));
        assert_eq!(
            Store::new(Path::new("model.ckpt"), 1)
                .unwrap()
                .pointing_from_here()
                .pointers(Path::new("model.ckpt-7.phx"))
                .len(),
            1
        );
    }

    const CHILD_PREFIX: &str = "PHALANX_TEST_CHECKPOINT_PREFIX";

    /// The saving process of the next test; does nothing on its own.
    #[test]
    fn child_that_saves_until_it_is_killed() {
        let Some(prefix) = std::env::var_os(CHILD_PREFIX).map(PathBuf::from) else { return };
        let first = newest_complete(&prefix).unwrap().map_or(0, |(_, step)| step) + 1;
        println!("started");
        for step in first.. {
            let mut checkpoint = sample(step);
            checkpoint.arrays.push(("bulk".into(), Array::F64(vec![step as f64; 100_000])));
            save(&prefix, step, &checkpoint, 2).unwrap();
        }
    }

    #[test]
    fn a_killed_process_always_leaves_a_checkpoint_that_loads() {
        use std::io::BufRead;
        let folder = tempfile::tempdir().unwrap();
        let prefix = folder.path().join("model.ckpt");
        save(&prefix, 1, &sample(1), 2).unwrap();
        let (mut reached, mut linked) = (1, 1);
        for round in 0..30u64 {
            let mut child = std::process::Command::new(std::env::current_exe().unwrap())
                .args([
                    "--exact",
                    "checkpoint::store::tests::child_that_saves_until_it_is_killed",
                    "--nocapture",
                ])
                .env(CHILD_PREFIX, &prefix)
                .stdout(std::process::Stdio::piped())
                .stderr(std::process::Stdio::null())
                .spawn()
                .unwrap();
            let lines = std::io::BufReader::new(child.stdout.take().unwrap()).lines();
            let started = lines.map_while(|line| line.ok()).any(|line| line.contains("started"));
            assert!(started, "the child ended before it saved");
            std::thread::sleep(std::time::Duration::from_micros(round * 7919 % 60_000));
            child.kill().unwrap();
            child.wait().unwrap();

            let (path, step) = newest_complete(&prefix).unwrap().expect("a complete checkpoint is there");
            assert!(step >= reached, "round {round}: step {step} after step {reached}");
            reached = step;
            assert_eq!(load(&path).unwrap().header["step"], step);
            // Killed between rename and link, again and again, the link stays behind; what it points to is whole.
            let by_link =
                load(&prefix).expect("the link points to a complete one").header["step"].as_u64().unwrap();
            assert!((linked..=step).contains(&by_link), "round {round}: link at {by_link}, was at {linked}");
            linked = by_link;
        }
        assert!(reached > 1, "no child saved anything, the test shows nothing");
    }
}
