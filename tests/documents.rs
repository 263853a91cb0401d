//! Every line of README and docs that calls `dp` or `pinn` is one that the programs understand.

use std::path::{Path, PathBuf};

/// README, guides, and what stands beside examples.
fn documents() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = vec![root.join("README.md")];
    for folder in ["docs", "docs/notebook", "examples/cluster", "examples/water"] {
        let entries = std::fs::read_dir(root.join(folder)).unwrap().flatten().map(|entry| entry.path());
        found.extend(entries.filter(|path| path.extension().is_some_and(|ending| ending == "md")));
    }
    found
}

/// Lines of code: indented by four columns, or between fences. A line that ends with a backslash goes on in the next.
fn code(text: &str) -> Vec<String> {
    let (mut lines, mut fenced, mut open) = (Vec::new(), false, String::new());
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
            continue;
        }
        if !fenced && !line.starts_with("    ") {
            continue;
        }
        open.push_str(line.trim());
        match open.strip_suffix('\\') {
            Some(begun) => open = begun.to_owned(),
            None => lines.push(std::mem::take(&mut open)),
        }
    }
    lines
}

/// The commands of a line, each as words: launchers and variables before them are left out, and so is what follows a pipe or a
/// comment.
fn commands(line: &str) -> Vec<Vec<String>> {
    let line =
        line.split(" #").next().unwrap_or_default().replace("cargo run --release --bin pinn --", "pinn");
    let line = line.replace("cargo run --release --", "dp");
    let parts = line.split(['|', ';']).flat_map(|part| part.split("&&"));
    let of_part = |part: &str| {
        let words: Vec<String> = part.split_whitespace().map(|word| word.replace(['\'', '"'], "")).collect();
        let program = words.iter().position(|word| ["dp", "pinn", "phalanx"].contains(&word.as_str()))?;
        Some(words[program..].to_vec())
    };
    parts.filter_map(of_part).collect()
}

/// Whether words name a command, rather than being part of a sentence or of the output of a program.
fn is_call(words: &[String]) -> bool {
    let names = phalanx::cli::COMMANDS.iter().chain(phalanx::cli::pinn::COMMANDS).map(|command| command.name);
    let names: Vec<&str> = names.collect();
    words.iter().skip(1).take(3).any(|word| names.contains(&word.as_str()))
}

#[test]
fn programs_understand_what_the_documents_say() {
    let (mut seen, mut wrong) = (0, Vec::new());
    for path in documents() {
        let text = std::fs::read_to_string(&path).unwrap();
        for words in code(&text).iter().flat_map(|line| commands(line)).filter(|words| is_call(words)) {
            // Three dots stand for what a user would write.
            let words: Vec<&str> = words.iter().map(String::as_str).filter(|word| *word != "...").collect();
            let definition = match words[0] {
                "pinn" => phalanx::cli::pinn::definition(),
                _ => phalanx::cli::definition(),
            };
            seen += 1;
            if let Err(error) = definition.try_get_matches_from(&words) {
                wrong.push(format!("{}: {}\n{error}", path.display(), words.join(" ")));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(seen > 40, "only {seen} commands were found: the documents are read in a wrong way");
}

#[test]
fn lines_are_cut_into_commands() {
    let words = |line: &str| -> Vec<String> { commands(line).iter().map(|words| words.join(" ")).collect() };
    assert_eq!(words("mpirun -np 4 dp train a.json -l x.log   # a comment"), ["dp train a.json -l x.log"]);
    assert_eq!(words("dp test -m m && dp plot detail | less"), ["dp test -m m", "dp plot detail"]);
    assert_eq!(words("cargo run --release -- train a.json"), ["dp train a.json"]);
    assert!(words("cargo build --release").is_empty());
}
