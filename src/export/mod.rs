//! Model files: DeePMD-kit's portable formats, `.dp` (HDF5) and `.yaml`.
//!
//! Both hold one tree ([`tree`]); [`deepmd`] turns it into a model and back. Loading a file never runs code.

pub mod tree; // JSON values plus arrays, with paths for errors
pub mod deepmd; // tree <-> model
pub mod dp_file; // the tree as HDF5
pub mod yaml_file; // the tree as YAML
pub mod stat_file; // statistics that are kept between runs
mod sha1; // names of statistics
pub(crate) mod atomic; // files that are complete or absent

use crate::err;
use crate::error::{Error, Result};
use crate::model::dp::spec::DpModel;
use std::path::Path;
use tree::Node;

/// A file format by its extensions.
struct Format {
    extensions: &'static [&'static str],
    read: fn(&Path) -> Result<Node>,
    write: fn(&Path, &Node) -> Result<()>,
}

/// Every format of model files. A new one is one line here.
const FORMATS: &[Format] = &[
    Format { extensions: &["dp"], read: dp_file::read, write: dp_file::write },
    Format { extensions: &["yaml", "yml"], read: yaml_file::read, write: yaml_file::write },
];

/// Formats of one framework each, which DeePMD-kit itself turns into a `.dp`.
const FOREIGN: &[&str] = &["pth", "pt", "pb", "pt2", "pte", "savedmodel", "savedmodeltf", "jax", "hlo", "pd"];

/// Reads a model.
pub fn read_model(path: &Path) -> Result<DpModel> {
    let tree = read_model_tree(path)?;
    deepmd::from_tree(&tree).map_err(|e| e.at(path.display()))
}

/// Writes a model: the file is complete or absent.
pub fn write_model(path: &Path, model: &DpModel) -> Result<()> {
    let mut tree = deepmd::to_tree(model);
    deepmd::stamp(&mut tree, jiff::Timestamp::now());
    write_model_tree(path, &tree)
}

/// Reads the tree of a model file, in the format that its extension names.
pub fn read_model_tree(path: &Path) -> Result<Node> {
    (format_of(path)?.read)(path)
}

/// Writes the tree of a model file, in the format that its extension names. The file is complete or absent.
pub fn write_model_tree(path: &Path, tree: &Node) -> Result<()> {
    (format_of(path)?.write)(path, tree)
}

/// Fails as writing would fail if the extension of `path` names no format. For a check before the work starts.
pub fn check_model_path(path: &Path) -> Result<()> {
    format_of(path).map(|_| ())
}

fn format_of(path: &Path) -> Result<&'static Format> {
    let extension = path.extension().and_then(|e| e.to_str()).unwrap_or("");
    FORMATS
        .iter()
        .find(|f| f.extensions.contains(&extension))
        .ok_or_else(|| unknown_extension(path, extension))
}

fn unknown_extension(path: &Path, extension: &str) -> Error {
    let known: Vec<String> = FORMATS.iter().flat_map(|f| f.extensions).map(|e| format!(".{e}")).collect();
    let known = known.join(", ");
    let place = path.display();
    if FOREIGN.contains(&extension) {
        let portable = path.with_extension("dp");
        return err!("{place}: a .{extension} file is bound to one framework; model files here are {known}")
            .help(format!(
                "DeePMD-kit converts both ways: dp convert-backend {place} {}",
                portable.display()
            ));
    }
    let found =
        if extension.is_empty() { "no extension".to_string() } else { format!("extension .{extension}") };
    err!("{place}: {found} is none of a model file, wanted {known}")
        .help("name the file model.dp (HDF5) or model.yaml (text)")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_extension_lists_the_known_ones() {
        let error = read_model_tree(Path::new("model.onnx")).unwrap_err();
        assert_eq!(
            error.message(),
            "model.onnx: extension .onnx is none of a model file, wanted .dp, .yaml, .yml"
        );
        let error = write_model_tree(Path::new("model"), &Node::Null).unwrap_err();
        assert_eq!(error.message(), "model: no extension is none of a model file, wanted .dp, .yaml, .yml");
    }

    #[test]
    fn a_file_of_another_framework_says_how_to_convert_it() {
        for extension in ["pth", "pt", "pb", "pt2", "savedmodel"] {
            let error = read_model_tree(Path::new(&format!("a/model.{extension}"))).unwrap_err();
            let command = format!("dp convert-backend a/model.{extension} a/model.dp");
            assert!(error.advice().is_some_and(|help| help.contains(&command)), "{error}");
        }
    }
}
