//! From what a user types to a checkpoint.

use super::SUFFIX;
use super::file::Checkpoint;
use super::store::{folder_of, numbered, step_of, with_ending, with_suffix};
use crate::config::check::did_you_mean;
use crate::err;
use crate::error::{Error, ErrorKind, IoContext, Result};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Loads a checkpoint given as a prefix (`model.ckpt`), with a step (`model.ckpt-1000`), as a file, or as the folder.
///
/// A damaged one is refused by name, and the newest complete one is offered instead.
pub fn load(path: &Path) -> Result<Checkpoint> {
    let file = real_file(&locate(path)?);
    Checkpoint::read(&file).map_err(|error| offer_another(error, &file))
}

/// The file that [`load`] reads.
pub fn locate(path: &Path) -> Result<PathBuf> {
    if path.is_dir() {
        return locate_in(path);
    }
    let candidates = [path.to_owned(), with_suffix(path)];
    if let Some(file) = candidates.into_iter().find(|file| file.is_file()) {
        return Ok(file);
    }
    // The link may be gone, or may be lost in a copy.
    match numbered(path)?.pop() {
        Some((_, file)) => Ok(file),
        None => by_another_name(path).ok_or_else(|| not_found(path)),
    }
}

/// Endings of the names that [`super::Store::with_aliases`] may have given to a checkpoint.
const OTHER_ENDINGS: [&str; 2] = [".pt", ".index"];

/// A checkpoint of ours under the name of another program's, which is all that a workflow may have brought along.
fn by_another_name(path: &Path) -> Option<PathBuf> {
    let names = OTHER_ENDINGS.iter().map(|ending| with_ending(path, ending));
    names.into_iter().find(|file| Checkpoint::is_begun_by(file))
}

/// The newest checkpoint of a prefix that verifies, with its step. Damaged ones are passed over with a warning; where all
/// of them are, that is an error, as whoever goes on without one would begin anew and remove them.
pub fn newest_complete(prefix: &Path) -> Result<Option<(PathBuf, u64)>> {
    let mut damaged = None;
    for (step, path) in newest_first(prefix)? {
        match Checkpoint::read(&path) {
            Ok(_) => return Ok(Some((path, step))),
            Err(error) => {
                log::warn!("passed over: {}", error.message());
                damaged = damaged.or(Some(error));
            }
        }
    }
    match damaged {
        None => Ok(None),
        Some(error) => {
            Err(error.help("no other complete checkpoint is there; move the damaged one away to begin anew"))
        }
    }
}

/// Numbered files, the most recently written first.
///
/// That is the order of steps, save for files of an abandoned longer run: later in step than the link's target,
/// and older in time. Those come last.
fn newest_first(prefix: &Path) -> Result<Vec<(u64, PathBuf)>> {
    let modified =
        |path: &Path| std::fs::metadata(path).and_then(|m| m.modified()).unwrap_or(SystemTime::UNIX_EPOCH);
    let linked = real_file(&with_suffix(prefix));
    let linked_step = linked.file_name().and_then(|name| step_of(prefix, name.to_str()?));
    let mut files = numbered(prefix)?;
    files.reverse();
    if let Some(linked_step) = linked_step {
        let linked_time = modified(&linked);
        files.sort_by_key(|(step, path)| *step > linked_step && modified(path) < linked_time); // stable
    }
    Ok(files)
}

fn locate_in(folder: &Path) -> Result<PathBuf> {
    let pointer = folder.join("checkpoint");
    if pointer.is_file() {
        let bytes = std::fs::read(&pointer).io("read", &pointer)?;
        let text = String::from_utf8_lossy(&bytes);
        let name = named_by_tensorflow(&text).unwrap_or(text.trim());
        let file = folder.join(name);
        // A name that leads to a folder, to this one above all, would be looked up for ever.
        let is_name = !name.is_empty() && !name.contains(char::is_control);
        if !is_name || file.is_dir() || file.file_name().is_none() {
            return Err(broken_pointer(folder, &pointer, &text));
        }
        return if file.is_file() { Ok(file) } else { locate(&strip_suffix(&file)) };
    }
    Err(err!("{}: no checkpoint in this folder: it has no file named checkpoint", folder.display())
        .help("name the checkpoint itself, e.g. model.ckpt-1000.phx"))
}

/// The name in a file `checkpoint` that TensorFlow reads too: `model_checkpoint_path: "model.ckpt-1000"`.
pub fn named_by_tensorflow(text: &str) -> Option<&str> {
    let line = text.lines().find_map(|line| line.trim().strip_prefix("model_checkpoint_path:"))?;
    line.trim().strip_prefix('"')?.strip_suffix('"')
}

/// A power cut may leave a file without its content.
fn broken_pointer(folder: &Path, pointer: &Path, content: &str) -> Error {
    let error = match content.trim() {
        "" => err!("{}: the file is empty; it should name the newest checkpoint", pointer.display()),
        name => err!("{}: {:?} does not name a checkpoint", pointer.display(), shortened(name)),
    };
    let mut names: Vec<String> = std::fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| name.ends_with(SUFFIX))
        .collect();
    names.sort();
    match names.is_empty() {
        true => error.help("there is no checkpoint (*.phx) beside it"),
        false => error.help(format!("name the checkpoint itself; there are {}", names.join(", "))),
    }
}

fn shortened(text: &str) -> String {
    text.chars().take(80).collect()
}

/// Follows the link, so that messages name the file that is damaged.
fn real_file(path: &Path) -> PathBuf {
    match std::fs::read_link(path) {
        Ok(target) => path.with_file_name(target),
        Err(_) => path.to_owned(),
    }
}

fn strip_suffix(path: &Path) -> PathBuf {
    match path.to_str().and_then(|text| text.strip_suffix(SUFFIX)) {
        Some(text) => PathBuf::from(text),
        None => path.to_owned(),
    }
}

/// `model.ckpt` of `model.ckpt-1000` or `model.ckpt-1000.phx`.
fn prefix_of(path: &Path) -> PathBuf {
    let bare = strip_suffix(path);
    let prefix =
        bare.to_str().and_then(|text| text.rsplit_once('-')).filter(|(_, step)| step.parse::<u64>().is_ok());
    match prefix {
        Some((prefix, _)) => PathBuf::from(prefix),
        None => bare,
    }
}

fn offer_another(error: Error, damaged: &Path) -> Error {
    let others = newest_first(&prefix_of(damaged)).unwrap_or_default().into_iter().map(|(_, path)| path);
    let whole = others.filter(|path| path != damaged).find(|path| Checkpoint::read(path).is_ok());
    let advice = match whole {
        Some(path) => format!("{} is complete, continue from that one", path.display()),
        None => "no other complete checkpoint is there".into(),
    };
    match error.advice().map(str::to_owned) {
        Some(before) => error.help(format!("{before}; {advice}")),
        None => error.help(advice),
    }
}

fn not_found(path: &Path) -> Error {
    let near = numbered(&prefix_of(path)).unwrap_or_default();
    let error =
        err!("{}: no such checkpoint", path.display()).of_kind(ErrorKind::Io(std::io::ErrorKind::NotFound));
    match (near.is_empty(), path.extension().and_then(|e| e.to_str())) {
        (false, _) => {
            let names: Vec<String> =
                near.iter().rev().take(5).map(|(_, p)| p.display().to_string()).collect();
            error.help(format!("there are {}", names.join(", ")))
        }
        (true, Some("pt" | "pth" | "pb")) => error.help(
            "this program's checkpoints end in .phx; bring other models in as .dp with --init-frz-model",
        ),
        (true, _) => error.help(format!(
            "{}give the prefix (model.ckpt), a file (model.ckpt-1000.phx) or its folder",
            near_name(path)
        )),
    }
}

/// A prefix or checkpoint beside a name that is not there, which it may have meant.
fn near_name(path: &Path) -> String {
    let entries = std::fs::read_dir(folder_of(path)).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries
        .filter_map(|entry| Some(entry.file_name().to_str()?.strip_suffix(SUFFIX)?.to_owned()))
        .collect();
    names.sort();
    did_you_mean(&path.file_name().unwrap_or_default().to_string_lossy(), names.iter().map(String::as_str))
}

#[cfg(test)]
mod tests {
    use super::super::file::tests::sample;
    use super::super::save;
    use super::*;

    fn three() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let prefix = folder.path().join("model.ckpt");
        for step in [1, 2, 3] {
            save(&prefix, step, &sample(step), 0).unwrap();
        }
        (folder, prefix)
    }

    fn damage(path: &Path) {
        let mut bytes = std::fs::read(path).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 4;
        std::fs::write(path, bytes).unwrap();
    }

    #[test]
    fn a_checkpoint_is_found_by_prefix_step_file_and_folder() {
        let (folder, prefix) = three();
        for (typed, step) in
            [("model.ckpt", 3), ("model.ckpt.phx", 3), ("model.ckpt-2", 2), ("model.ckpt-1.phx", 1), ("", 3)]
        {
            assert_eq!(load(&folder.path().join(typed)).unwrap(), sample(step), "{typed:?}");
        }
        std::fs::remove_file(with_suffix(&prefix)).unwrap();
        assert_eq!(load(&prefix).unwrap(), sample(3), "without the link");
        std::fs::remove_file(folder.path().join("model.ckpt-3.phx")).unwrap();
        assert!(load(folder.path()).unwrap_err().message().contains("no such checkpoint"));
        let (folder, _) = three();
        let error = load(&folder.path().join("modle.ckpt")).unwrap_err();
        assert!(error.advice().unwrap().starts_with("did you mean `model.ckpt`? "), "{error}");
    }

    #[test]
    fn a_damaged_checkpoint_is_refused_by_name_and_the_previous_offered() {
        let (folder, prefix) = three();
        damage(&folder.path().join("model.ckpt-3.phx"));
        let error = load(&prefix).unwrap_err().to_string();
        assert!(error.contains("model.ckpt-3.phx: the checkpoint is damaged: checksum mismatch"), "{error}");
        assert!(error.contains("model.ckpt-2.phx is complete"), "{error}");
        assert_eq!(newest_complete(&prefix).unwrap().unwrap().1, 2);
        damage(&folder.path().join("model.ckpt-2.phx"));
        damage(&folder.path().join("model.ckpt-1.phx"));
        assert!(load(&prefix).unwrap_err().to_string().contains("no other complete"));
        let error = newest_complete(&prefix).unwrap_err().to_string();
        assert!(error.contains("model.ckpt-3.phx: the checkpoint is damaged"), "{error}");
        assert_eq!(newest_complete(&folder.path().join("other.ckpt")).unwrap(), None);
    }

    #[test]
    fn a_pointer_that_names_nothing_is_an_error() {
        let (folder, _) = three();
        for content in [&b""[..], b"\n", b".", b"..", b"./", b"/", b"\0\0\0\0", b"a\nb", b"\xff\xfe"] {
            std::fs::write(folder.path().join("checkpoint"), content).unwrap();
            let error = load(folder.path()).unwrap_err().to_string();
            assert!(error.contains("checkpoint"), "{content:?}: {error}");
        }
        std::fs::write(folder.path().join("checkpoint"), "").unwrap();
        let error = load(folder.path()).unwrap_err().to_string();
        assert!(error.contains("the file is empty") && error.contains("model.ckpt-3.phx"), "{error}");
        std::fs::write(folder.path().join("checkpoint"), "model.ckpt-2.phx").unwrap();
        assert_eq!(load(folder.path()).unwrap(), sample(2));
    }

    #[test]
    fn what_is_not_there_is_answered_with_what_is() {
        let (folder, _) = three();
        let error = load(&folder.path().join("model.ckpt-7")).unwrap_err().to_string();
        assert!(error.contains("no such checkpoint") && error.contains("model.ckpt-3.phx"), "{error}");
        let error = load(&folder.path().join("other.pt")).unwrap_err().to_string();
        assert!(error.contains("end in .phx"), "{error}");
        let empty = tempfile::tempdir().unwrap();
        assert!(load(empty.path()).unwrap_err().message().contains("no checkpoint in this folder"));
    }

    #[test]
    fn a_file_newer_than_the_link_counts_and_one_of_an_abandoned_run_does_not() {
        let (folder, prefix) = three();
        let old = std::time::SystemTime::now() - std::time::Duration::from_secs(3600);
        let future = folder.path().join("model.ckpt-9.phx");
        std::fs::copy(folder.path().join("model.ckpt-1.phx"), &future).unwrap();
        assert_eq!(newest_complete(&prefix).unwrap().unwrap().1, 9, "killed between rename and link");
        std::fs::File::options().write(true).open(&future).unwrap().set_modified(old).unwrap();
        assert_eq!(newest_complete(&prefix).unwrap().unwrap().1, 3, "left over from a longer run");
    }
}
