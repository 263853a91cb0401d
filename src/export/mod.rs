//! Model files: DeePMD-kit's portable formats, `.dp` (HDF5) and `.yaml`.
//!
//! Both hold one tree ([`tree`]); [`deepmd`] turns it into a model and back. Loading a file never runs code.
//!
//! What a file is its content says: HDF5 is a `.dp` whatever its name. DP-GEN and MD scripts want `frozen_model.pb` or
//! `frozen_model.pth`, and [`write_portable`] writes a `.dp` under such a name.

pub mod tree; // JSON values plus arrays, with paths for errors
pub mod deepmd; // tree <-> model
pub mod dp_file; // the tree as HDF5
pub mod yaml_file; // the tree as YAML
pub mod stat_file; // statistics that are kept between runs
pub(crate) mod atomic; // files that are complete or absent

use crate::err;
use crate::error::{Error, IoContext, Result, quoted};
use crate::model::dp::spec::DpModel;
use std::path::Path;
use tree::Node;

/// A file format by its extensions.
struct Format {
    extensions: &'static [&'static str],
    parse: fn(Vec<u8>) -> Result<Node>,
    write: fn(&Path, &Node) -> Result<()>,
}

/// Every format of model files. A new one is one line here.
const FORMATS: &[Format] = &[
    Format { extensions: &["dp"], parse: dp_file::parse, write: dp_file::write },
    Format { extensions: &["yaml", "yml"], parse: |bytes| yaml_file::parse(&bytes), write: yaml_file::write },
];

/// Formats of one framework each, which DeePMD-kit itself turns into a `.dp`.
const FOREIGN: &[&str] = &["pth", "pt", "pb", "pt2", "pte", "savedmodel", "savedmodeltf", "jax", "hlo", "pd"];

/// Reads a model.
pub fn read_model(path: &Path) -> Result<DpModel> {
    let tree = read_model_tree(path)?;
    deepmd::from_tree(&tree).map_err(|e| e.at(path.display()))
}

/// The model in the content of a file with this name.
pub fn parse_model(path: &Path, bytes: Vec<u8>) -> Result<DpModel> {
    let tree = parse_tree(path, bytes)?;
    deepmd::from_tree(&tree).map_err(|e| e.at(path.display()))
}

/// Writes a model: the file is complete or absent.
pub fn write_model(path: &Path, model: &DpModel) -> Result<()> {
    write_model_tree(path, &stamped_tree(model))
}

/// Writes a model as a `.dp` file (HDF5), whatever the name of the file says.
pub fn write_portable(path: &Path, model: &DpModel) -> Result<()> {
    dp_file::write(path, &stamped_tree(model))
}

fn stamped_tree(model: &DpModel) -> Node {
    let mut tree = deepmd::to_tree(model);
    deepmd::stamp(&mut tree, jiff::Timestamp::now());
    tree
}

/// Reads the tree of a model file, in the format that its content or else its extension names.
pub fn read_model_tree(path: &Path) -> Result<Node> {
    if !is_framework_file(path) {
        format_of(path)?;
    }
    parse_tree(path, std::fs::read(path).io("read", path)?)
}

fn parse_tree(path: &Path, bytes: Vec<u8>) -> Result<Node> {
    let parsed =
        if dp_file::is_hdf5(&bytes) { dp_file::parse(bytes) } else { (format_of(path)?.parse)(bytes) };
    parsed.map_err(|e| e.at(path.display()))
}

/// Writes the tree of a model file, in the format that its extension names. The file is complete or absent.
pub fn write_model_tree(path: &Path, tree: &Node) -> Result<()> {
    (format_of(path)?.write)(path, tree)
}

/// Fails as writing would fail if the extension of `path` names no format. For a check before the work starts.
pub fn check_model_path(path: &Path) -> Result<()> {
    format_of(path).map(|_| ())
}

/// Whether a file of this name is bound to one framework in DeePMD-kit.
pub fn is_framework_file(path: &Path) -> bool {
    path.extension().and_then(|e| e.to_str()).is_some_and(|e| FOREIGN.contains(&e))
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
                "DeePMD-kit converts both ways: dp convert-backend {} {}",
                quoted(path),
                quoted(&portable)
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
    fn a_portable_model_is_read_under_any_name() {
        let folder = tempfile::tempdir().unwrap();
        let model = deepmd::tests::sample(true, crate::model::dp::options::Precision::Float64);
        for name in ["frozen_model.pb", "frozen_model.pth", "odd.yaml"] {
            let path = folder.path().join(name);
            write_portable(&path, &model).unwrap();
            assert_eq!(read_model(&path).unwrap(), model, "{name}");
            assert_eq!(parse_model(&path, std::fs::read(&path).unwrap()).unwrap(), model, "{name}");
        }
    }

    #[test]
    fn a_file_of_another_framework_says_how_to_convert_it() {
        for extension in ["pth", "pt", "pb", "pt2", "savedmodel"] {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join(format!("model.{extension}"));
            std::fs::write(&path, "a graph").unwrap();
            let error = read_model_tree(&path).unwrap_err();
            let command =
                format!("dp convert-backend {} {}", path.display(), path.with_extension("dp").display());
            assert!(error.advice().is_some_and(|help| help.contains(&command)), "{error}");
        }
    }
}
