//! From what a user types to a model: a model file, a checkpoint, or the name of either without its ending.

use super::branches::SavedBranches;
use super::checkpoint::model_of;
use crate::checkpoint::{Checkpoint, SUFFIX, load, locate};
use crate::err;
use crate::error::{ErrorKind, Result};
use crate::export::{check_model_path, parse_model, read_model};
use crate::model::dp::spec::DpModel;
use std::io::Read;
use std::path::{Path, PathBuf};

/// What a path stands for.
#[derive(Debug, PartialEq, Eq)]
enum Found {
    ModelFile(PathBuf),
    Checkpoint(PathBuf),
}

/// Endings that may be left away, in the order in which files are looked for.
const ENDINGS: [&str; 5] = ["dp", "yaml", "yml", "pth", "pb"];

/// Loads a model from a model file (`model.dp`, `model.yaml`, or `model` where one of these is there) or from a
/// checkpoint (`model.ckpt`, `model.ckpt-1000.phx`, or the folder).
pub fn load_model(path: &Path) -> Result<DpModel> {
    load_branch(path, None)
}

/// The same, and of a multi-task model the branch of this name.
pub fn load_branch(path: &Path, head: Option<&str>) -> Result<DpModel> {
    match find(path)? {
        Found::ModelFile(file) => {
            refuse_head(head).map_err(|e| e.at(file.display()))?;
            read_model(&file)
        }
        Found::Checkpoint(file) => branch_of(&load(&file)?, head).map_err(|e| e.at(file.display())),
    }
}

/// The model of a checkpoint, and of a multi-task one the branch of this name.
pub fn branch_of(saved: &Checkpoint, head: Option<&str>) -> Result<DpModel> {
    if SavedBranches::is_one(saved) {
        let branches = SavedBranches::of(saved)?;
        return Ok(branches.model(branches.place(head)?));
    }
    refuse_head(head)?;
    model_of(saved)
}

fn refuse_head(head: Option<&str>) -> Result<()> {
    match head {
        Some(head) => {
            Err(err!("there is no branch {head}: the model has one task").help("leave the flag away"))
        }
        None => Ok(()),
    }
}

/// The file that [`load_model`] reads.
pub fn model_file(path: &Path) -> Result<PathBuf> {
    match find(path)? {
        Found::ModelFile(file) | Found::Checkpoint(file) => Ok(file),
    }
}

/// The checkpoint that a path stands for; `None` where it is a model file.
pub fn load_checkpoint(path: &Path) -> Result<Option<(PathBuf, Checkpoint)>> {
    match find(path)? {
        Found::ModelFile(_) => Ok(None),
        Found::Checkpoint(file) => load(&file).map(|saved| Some((file, saved))),
    }
}

/// Loads a model from the content of the model file or checkpoint `path`, which itself is not looked at.
pub fn load_model_bytes(path: &Path, bytes: Vec<u8>) -> Result<DpModel> {
    if !is_checkpoint(path) && !Checkpoint::is_one(&bytes) {
        return parse_model(path, bytes);
    }
    Checkpoint::parse(&bytes).and_then(|saved| branch_of(&saved, None)).map_err(|e| e.at(path.display()))
}

fn is_checkpoint(file: &Path) -> bool {
    file.to_str().is_some_and(|name| name.ends_with(SUFFIX))
}

fn begins_as_checkpoint(file: &Path) -> bool {
    let mut start = [0; 8];
    std::fs::File::open(file).and_then(|mut file| file.read_exact(&mut start)).is_ok()
        && Checkpoint::is_one(&start)
}

fn find(path: &Path) -> Result<Found> {
    if check_model_path(path).is_ok() {
        return Ok(Found::ModelFile(path.to_owned()));
    }
    let located = locate(path);
    if let Ok(file) = &located
        && (is_checkpoint(file) || path.is_dir() || Checkpoint::is_begun_by(file))
    {
        return Ok(Found::Checkpoint(file.clone()));
    }
    let with_ending = ENDINGS.map(|ending| {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".{ending}"));
        PathBuf::from(name)
    });
    if let Some(file) = with_ending.into_iter().find(|file| file.is_file()) {
        return Ok(Found::ModelFile(file));
    }
    // Other names: the content says what it is. Reading a file that is neither says which formats there are, and how to convert it.
    if path.is_file() {
        let file = path.to_owned();
        return Ok(if begins_as_checkpoint(&file) {
            Found::Checkpoint(file)
        } else {
            Found::ModelFile(file)
        });
    }
    Err(located.err().filter(|_| path.is_dir() || path.extension().is_some()).unwrap_or_else(|| {
        err!("{}: no such model file or checkpoint", path.display())
            .of_kind(ErrorKind::Io(std::io::ErrorKind::NotFound))
            .help("name a model file (model.dp, model.yaml) or a checkpoint (model.ckpt, its folder)")
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_a_model_file_or_a_checkpoint() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        for name in ["frozen.dp", "model.ckpt-10.phx", "old.pth"] {
            std::fs::write(at(name), "").unwrap();
        }
        assert_eq!(find(&at("absent.dp")).unwrap(), Found::ModelFile(at("absent.dp")));
        assert_eq!(find(&at("frozen")).unwrap(), Found::ModelFile(at("frozen.dp")));
        assert_eq!(find(&at("old.pth")).unwrap(), Found::ModelFile(at("old.pth")));
        for name in ["model.ckpt", "model.ckpt-10", "model.ckpt-10.phx"] {
            assert_eq!(find(&at(name)).unwrap(), Found::Checkpoint(at("model.ckpt-10.phx")), "{name}");
        }
        // Under the name of another program's, as a workflow may have brought it.
        crate::checkpoint::save(&at("run"), 3, &Checkpoint::default(), 0).unwrap();
        std::fs::rename(at("run-3.phx"), at("old.ckpt.pt")).unwrap();
        assert_eq!(find(&at("old.ckpt")).unwrap(), Found::Checkpoint(at("old.ckpt.pt")));
        std::fs::write(at("checkpoint"), "model.ckpt-10.phx").unwrap();
        assert_eq!(find(folder.path()).unwrap(), Found::Checkpoint(at("model.ckpt-10.phx")));
        assert!(find(&at("nothing")).unwrap_err().message().contains("no such model file or checkpoint"));
        assert!(read_model(&at("old.pth")).unwrap_err().advice().unwrap().contains("convert-backend"));
    }
}
