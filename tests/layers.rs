//! `src/lib.rs` lists the modules in layer order: a module uses only what stands above it. What tests use is not looked at.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

#[path = "layers/face.rs"]
mod face; // what other programs may use

/// A path that leads from one top-level module to another.
#[derive(Debug, PartialEq, Eq)]
struct Use {
    line: usize,
    module: String,
}

#[test]
fn every_module_uses_only_what_stands_above_it_in_lib_rs() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let order = modules(&std::fs::read_to_string(src.join("lib.rs")).unwrap());
    let place = |module: &str| order.iter().position(|m| m == module);
    let files = files(&src);
    let only_tests = files_of_tests(&files);
    let (mut wrong, mut seen) = (Vec::new(), 0);
    for file in files.iter().filter(|file| !only_tests.contains(*file)) {
        let path = module_path(file.strip_prefix(&src).unwrap());
        let Some(own) = path.first().and_then(|module| place(module)) else { continue };
        for used in uses(&std::fs::read_to_string(file).unwrap(), path.len()) {
            let Some(other) = place(&used.module) else { continue };
            seen += 1;
            if other > own {
                let shown = file.strip_prefix(src.parent().unwrap()).unwrap().display();
                wrong.push(format!("{shown}:{}: {} uses {}", used.line, order[own], order[other]));
            }
        }
    }
    assert!(seen > 500, "only {seen} uses were found: is this test still reading the sources?");
    assert!(wrong.is_empty(), "modules use what stands below them in src/lib.rs:\n{}", wrong.join("\n"));
}

/// The modules of lib.rs from above to below.
fn modules(lib: &str) -> Vec<String> {
    let name = |line: &str| Some(line.strip_prefix("pub mod ")?.split_once(';')?.0.to_string());
    lib.lines().filter_map(name).collect()
}

/// All source files below a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap().flatten() {
        match entry.path() {
            path if path.is_dir() => found.extend(files(&path)),
            path if path.extension().is_some_and(|e| e == "rs") => found.push(path),
            _ => {}
        }
    }
    found.sort();
    found
}

/// Names from the root of the crate: `train/cuda/kinds.rs` is train, cuda, kinds.
fn module_path(file: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        file.with_extension("").iter().map(|name| name.to_string_lossy().into_owned()).collect();
    if names.last().is_some_and(|name| name == "mod") {
        names.pop();
    }
    names
}

/// Files that are built for tests only: `#[cfg(test)] mod name;`, with or without a path.
fn files_of_tests(files: &[PathBuf]) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    for file in files {
        let text = std::fs::read_to_string(file).unwrap();
        let folder = match file.file_stem().unwrap().to_str() {
            Some("mod" | "lib") => file.parent().unwrap().to_path_buf(),
            _ => file.with_extension(""),
        };
        for item in text.split("#[cfg(test)]").skip(1) {
            let item = item.split([';', '{']).next().unwrap_or_default();
            let Some((_, name)) = item.rsplit_once("mod ") else { continue };
            let named = item.split_once("#[path = \"").and_then(|(_, rest)| rest.split('"').next());
            match named {
                Some(path) => found.insert(file.parent().unwrap().join(path)),
                None => found.insert(folder.join(format!("{name}.rs"))),
            };
        }
    }
    found
}

/// The top-level modules that the text of a module uses, which stands so deep below the root.
fn uses(text: &str, depth: usize) -> Vec<Use> {
    let code = without_tests(&without_comments(text));
    let mut found = Vec::new();
    for (from_root, _) in code.match_indices("crate::") {
        // `$crate` too; not a name that ends so.
        if !code[..from_root].ends_with(is_name) {
            found.extend(named(&code, from_root + "crate::".len()));
        }
    }
    let up = "super::".repeat(depth);
    for (from_root, _) in code.match_indices(&up) {
        let before = &code[..from_root];
        if !before.ends_with(is_name) && !before.ends_with("super::") {
            found.extend(named(&code, from_root + up.len()));
        }
    }
    found
}

fn is_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The first names of a path, or of all paths in braces, from this place on.
fn named(code: &str, at: usize) -> Vec<Use> {
    let line_of = |at: usize| code[..at].matches('\n').count() + 1;
    let rest = &code[at..];
    let Some(inside) = rest.strip_prefix('{') else {
        let module: String = rest.chars().take_while(|&c| is_name(c)).collect();
        return vec![Use { line: line_of(at), module }];
    };
    let (mut found, mut deep, mut start) = (Vec::new(), 0, true);
    for (k, c) in inside.char_indices() {
        match c {
            '{' => deep += 1,
            '}' if deep == 0 => break,
            '}' => deep -= 1,
            ',' if deep == 0 => start = true,
            c if is_name(c) && start => {
                let module: String = inside[k..].chars().take_while(|&c| is_name(c)).collect();
                found.push(Use { line: line_of(at + 1 + k), module });
                start = false;
            }
            _ => {}
        }
    }
    found
}

/// The text without `// ...`; lines stay where they are.
fn without_comments(text: &str) -> String {
    text.lines().map(|line| line.split("//").next().unwrap_or_default().to_string() + "\n").collect()
}

/// The text with spaces in place of what stands behind `#[cfg(test)]`, up to the end of that item.
fn without_tests(code: &str) -> String {
    let mut text = code.to_string();
    while let Some(at) = text.find("#[cfg(test)]") {
        let end = at + end_of_item(&text[at..]);
        let blank: String = text[at..end].chars().map(|c| if c == '\n' { c } else { ' ' }).collect();
        text.replace_range(at..end, &blank);
    }
    text
}

/// Where an item ends: at its semicolon, or where its braces close.
fn end_of_item(text: &str) -> usize {
    let mut deep = 0;
    for (at, c) in text.char_indices() {
        match c {
            '{' => deep += 1,
            '}' if deep == 1 => return at + 1,
            '}' => deep -= 1,
            ';' if deep == 0 => return at + 1,
            _ => {}
        }
    }
    text.len()
}

#[test]
fn uses_of_every_form_are_found_and_those_of_tests_are_not() {
    let text = "\
use crate::data::Frame; // not crate::cli
use crate::{
    bail, err,
    model::{dp::Dp, net},
};
fn f() -> super::super::error::Error {
    let mycrate = 0;
    crate::units::EV + super::own::x()
}
#[cfg(test)]
mod tests {
    use crate::train::Run;
}
#[cfg(test)]
use crate::pinn::Params;
type Last = crate::comm::Solo;
";
    let found: Vec<(usize, String)> = uses(text, 2).into_iter().map(|u| (u.line, u.module)).collect();
    let want = [(1, "data"), (3, "bail"), (3, "err"), (4, "model"), (8, "units"), (16, "comm"), (6, "error")];
    assert_eq!(found, want.map(|(line, module)| (line, module.to_string())));
    assert_eq!(modules("pub mod error; // x\nmod own;\npub mod units;\n"), ["error", "units"]);
    assert_eq!(module_path(Path::new("train/cuda/kinds.rs")), ["train", "cuda", "kinds"]);
    assert_eq!(module_path(Path::new("train/mod.rs")), ["train"]);
}
