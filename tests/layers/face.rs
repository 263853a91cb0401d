//! The library's face is small: `Potential`, `Training` and the types that these take and give. The rest is hidden in the
//! documentation.

use std::collections::BTreeSet;
use std::path::Path;

/// What a program that uses the library may name.
const MODULES: &[&str] = &["potential", "training"];

/// Types of other crates that the face names.
const FOREIGN: &[&str] = &["Value", "Self", "FnMut", "Into", "Option", "Path", "PathBuf", "String", "Vec"];

fn source(name: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(name)).unwrap()
}

#[test]
fn all_modules_but_two_are_hidden() {
    let lib = source("lib.rs");
    let lines: Vec<&str> = lib.lines().collect();
    let shown = |k: &usize| lines[*k].starts_with("pub mod ") && lines[k - 1] != "#[doc(hidden)]";
    let name = |k: usize| lines[k].trim_start_matches("pub mod ").split(';').next().unwrap();
    let shown: Vec<&str> = (1..lines.len()).filter(shown).map(name).collect();
    assert_eq!(shown, MODULES, "a module is for this workspace alone: #[doc(hidden)]");
}

/// The capitalised names in a piece of code.
fn types(code: &str) -> BTreeSet<String> {
    let words = code.split(|c: char| !c.is_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with(|c: char| c.is_uppercase())).map(String::from).collect()
}

/// The signatures of the functions that the documentation shows.
fn signatures(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    for (at, _) in text.match_indices("    pub fn ") {
        let is_hidden = text[..at].trim_end().ends_with("#[doc(hidden)]");
        if !is_hidden {
            found.push(text[at..].split(" {").next().unwrap());
        }
    }
    found
}

#[test]
fn whatever_the_face_takes_and_gives_can_be_named_through_it() {
    let mut n = 0;
    for module in MODULES {
        let text = source(&format!("{module}.rs"));
        let shown = |line: &&str| line.starts_with("pub use ") || line.starts_with("pub struct ");
        let mut known: BTreeSet<String> = text.lines().filter(shown).flat_map(types).collect();
        known.extend(source("lib.rs").lines().filter(shown).flat_map(types));
        known.extend(FOREIGN.iter().map(|name| name.to_string()));
        for signature in signatures(&text) {
            let missing: Vec<String> = types(signature).difference(&known).cloned().collect();
            assert!(missing.is_empty(), "{module}: {missing:?} of `{}` cannot be named", signature.trim());
            n += 1;
        }
    }
    assert!(n > 15, "only {n} functions were found: is this test still reading the sources?");
}

#[test]
fn signatures_and_types_are_found() {
    let code =
        "    pub fn a(x: &Path) -> Result<Self> {\n    }\n\n    #[doc(hidden)]\n    pub fn b(y: Z) {\n";
    assert_eq!(signatures(code), ["    pub fn a(x: &Path) -> Result<Self>"]);
    assert_eq!(types(signatures(code)[0]).into_iter().collect::<Vec<_>>(), ["Path", "Result", "Self"]);
}
