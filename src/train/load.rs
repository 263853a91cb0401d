//! From what a user types to a model: a model file, a checkpoint, or the name of either without its ending.

use crate::checkpoint;
use crate::err;
use crate::error::Result;
use crate::export::{check_model_path, read_model};
use crate::model::dp::spec::DpModel;
use std::path::{Path, PathBuf};

/// What a path stands for.
#[derive(Debug, PartialEq, Eq)]
enum Found {
    ModelFile(PathBuf),
    Checkpoint(PathBuf),
}

/// Loads a model from a model file (`model.dp`, `model.yaml`, or `model` where one of these is there) or from a
/// checkpoint (`model.ckpt`, `model.ckpt-1000.phx`, or the folder).
pub fn load_model(path: &Path) -> Result<DpModel> {
    match find(path)? {
        Found::ModelFile(file) => read_model(&file),
        Found::Checkpoint(file) => super::state::model_of_checkpoint(&file),
    }
}

fn find(path: &Path) -> Result<Found> {
    if check_model_path(path).is_ok() {
        return Ok(Found::ModelFile(path.to_owned()));
    }
    let is_checkpoint =
        |file: &Path| file.to_str().is_some_and(|name| name.ends_with(checkpoint::SUFFIX)) || path.is_dir();
    let located = checkpoint::locate(path);
    if let Ok(file) = &located
        && is_checkpoint(file)
    {
        return Ok(Found::Checkpoint(file.clone()));
    }
    let with_ending = ["dp", "yaml", "yml"].map(|ending| {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".{ending}"));
        PathBuf::from(name)
    });
    if let Some(file) = with_ending.into_iter().find(|file| file.is_file()) {
        return Ok(Found::ModelFile(file));
    }
    // A file that is neither: reading it says which formats there are, and how to convert it.
    if path.is_file() {
        return Ok(Found::ModelFile(path.to_owned()));
    }
    Err(located.err().filter(|_| path.is_dir() || path.extension().is_some()).unwrap_or_else(|| {
        err!("{}: no such model file or checkpoint", path.display())
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
        std::fs::write(at("checkpoint"), "model.ckpt-10.phx").unwrap();
        assert_eq!(find(folder.path()).unwrap(), Found::Checkpoint(at("model.ckpt-10.phx")));
        assert!(find(&at("nothing")).unwrap_err().message().contains("no such model file or checkpoint"));
        assert!(read_model(&at("old.pth")).unwrap_err().advice().unwrap().contains("convert-backend"));
    }
}
