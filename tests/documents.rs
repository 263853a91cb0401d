//! Every line of README and docs that calls `dp` or `pinn` is one that the programs understand, and that can be run.

#[path = "common/skip.rs"]
mod skip;

use std::path::{Path, PathBuf};

/// README, guides, and what stands beside examples.
fn documents() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = vec![root.join("README.md")];
    for folder in ["docs", "docs/notebook", "examples/cluster", "examples/water"] {
        let entries = std::fs::read_dir(root.join(folder)).unwrap().flatten().map(|entry| entry.path());
        let mut texts: Vec<PathBuf> =
            entries.filter(|path| path.extension().is_some_and(|ending| ending == "md")).collect();
        texts.sort();
        found.extend(texts);
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

/// What a program does not understand of its words.
fn misunderstood(words: &[String]) -> Option<String> {
    // Three dots stand for what a user would write.
    let words: Vec<&str> = words.iter().map(String::as_str).filter(|word| *word != "...").collect();
    let definition = match words[0] {
        "pinn" => phalanx::cli::pinn::definition(),
        _ => phalanx::cli::definition(),
    };
    definition.try_get_matches_from(&words).err().map(|error| format!("{}\n{error}", words.join(" ")))
}

/// Every call of a program in a document.
fn calls(document: &Path) -> Vec<Vec<String>> {
    let text = std::fs::read_to_string(document).unwrap();
    code(&text).iter().flat_map(|line| commands(line)).filter(|words| is_call(words)).collect()
}

#[test]
fn programs_understand_what_the_documents_say() {
    let (mut seen, mut wrong) = (0, Vec::new());
    for path in documents() {
        for words in calls(&path) {
            seen += 1;
            wrong.extend(misunderstood(&words).map(|why| format!("{}: {why}", path.display())));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(seen > 40, "only {seen} commands were found: the documents are read in a wrong way");
}

/// A folder in which the commands of the documents find what they name: short runs of small nets.
struct Desk(tempfile::TempDir);

impl Desk {
    fn new() -> Desk {
        let desk = Desk(tempfile::tempdir().unwrap());
        let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
        for k in 0..4 {
            desk.link(&examples.join(format!("water/data_{k}")), &format!("examples/water/data_{k}"));
        }
        desk.link(&examples.join("water/data_3"), "data/frames");
        desk.link(&examples.join("water/data_3"), "data/validation");
        desk.link(&examples.join("water/data_1"), "other_data");
        let input = phalanx::config::value::read(&examples.join("water/input.json")).unwrap();
        for name in ["examples/water/input.json", "input.json"] {
            desk.write(name, &short(input.clone()).to_string());
        }
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/dp_test/one_side.dp");
        (1..=4).for_each(|k| desk.link(&golden, &format!("{k}.dp")));
        for run in ["run1", "run2"] {
            desk.write(
                &format!("{run}/lcurve.out"),
                "# step rmse_trn rmse_f_trn lr\n1 2 1 1e-3\n2 1 0.5 1e-4\n",
            );
        }
        let params = std::fs::read_to_string(examples.join("pinn/params.yml")).unwrap();
        let small = "rc: 4.5\n    pp_nodes: [4]\n    pi_nodes: [4]\n    ii_nodes: [4]\n    out_nodes: [4]";
        let params = params.replace("rc: 4.5", small);
        for folder in ["", "examples/pinn/"] {
            desk.write(&format!("{folder}params.yml"), &params);
            for name in ["train", "eval", "run0", "run1", "run2", "run3"] {
                let of = if name == "train" { "train" } else { "eval" };
                for ending in ["yml", "tfr"] {
                    desk.link(
                        &examples.join(format!("pinn/{of}.{ending}")),
                        &format!("{folder}{name}.{ending}"),
                    );
                }
            }
        }
        desk
    }

    fn path(&self, name: &str) -> PathBuf {
        let path = self.0.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        path
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).unwrap();
    }

    fn link(&self, to: &Path, name: &str) {
        std::os::unix::fs::symlink(to, self.path(name)).unwrap();
    }

    /// Runs a command; what it said, where it failed.
    fn run(&self, words: &[String]) -> Option<String> {
        let program = match words[0].as_str() {
            "pinn" => env!("CARGO_BIN_EXE_pinn"),
            "phalanx" => env!("CARGO_BIN_EXE_phalanx"),
            _ => env!("CARGO_BIN_EXE_dp"),
        };
        let mut arguments: Vec<&str> =
            words[1..].iter().map(String::as_str).filter(|word| *word != "...").collect();
        if words[..2] == ["pinn", "train"] {
            if let Some(at) = arguments.iter().position(|word| *word == "--train-steps") {
                arguments.drain(at..at + 2);
            }
            arguments.extend(["--train-steps", "2"]);
        }
        let home = self.path("home/x");
        let mut command = std::process::Command::new(program);
        command.args(arguments).current_dir(self.0.path()).env("HOME", home).env("OMP_NUM_THREADS", "1");
        let ended = command.output().unwrap();
        let said = || format!("{}: {}", words.join(" "), String::from_utf8_lossy(&ended.stderr));
        (!ended.status.success()).then(said)
    }
}

/// The same run in a second: few steps, small nets.
fn short(mut input: serde_json::Value) -> serde_json::Value {
    input["model"]["descriptor"]["neuron"] = serde_json::json!([4, 8]);
    input["model"]["descriptor"]["axis_neuron"] = 2.into();
    input["model"]["fitting_net"]["neuron"] = serde_json::json!([8, 8]);
    for (key, value) in [("numb_steps", 4), ("disp_freq", 2), ("save_freq", 2)] {
        input["training"][key] = value.into();
    }
    input
}

/// Why a command cannot be tried here.
fn beyond(words: &[String]) -> Option<&'static str> {
    let has = |part: &str| words.iter().any(|word| word.contains(part));
    match () {
        () if has("cuda") => Some("a GPU is needed"),
        () if has("convert") => Some("DeePMD-kit is needed: tools/check_deepmd_interop.sh"),
        () => None,
    }
}

#[test]
fn what_the_documents_say_can_be_done() {
    let desk = Desk::new();
    let (mut done, mut wrong) = (Vec::new(), Vec::new());
    for (path, words) in
        documents().iter().flat_map(|path| calls(path).into_iter().map(move |words| (path, words)))
    {
        if done.contains(&words) {
            continue;
        }
        match beyond(&words) {
            Some(why) => skip::skip(format!("{}: {why}", words.join(" "))),
            None => wrong.extend(desk.run(&words).map(|said| format!("{}: {said}", path.display()))),
        }
        done.push(words);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(done.len() > 25, "only {} commands were found", done.len());
}

/// Names of the `[[bin]]` sections of a Cargo.toml, and of its package and library.
fn names_in(manifest: &str) -> Vec<String> {
    let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(manifest)).unwrap();
    let mut section = "";
    let mut names = Vec::new();
    for line in text.lines() {
        match line.split_once(" = ") {
            Some(("name", name)) if ["[package]", "[lib]", "[[bin]]"].contains(&section) => {
                names.push(format!("{section}{}", name.trim_matches('"')));
            }
            _ if line.starts_with('[') => section = line,
            _ => (),
        }
    }
    names
}

#[test]
fn the_image_is_made_of_what_the_tree_has() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(root.join("Dockerfile")).unwrap();
    let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty()).collect();
    let after = |word: &str| -> Vec<Vec<&str>> {
        let found = lines.iter().filter_map(|line| line.strip_prefix(word)?.strip_prefix(' '));
        found.map(|rest| rest.split_whitespace().collect()).collect()
    };
    let names: Vec<String> =
        ["Cargo.toml", "crates/capi/Cargo.toml"].into_iter().flat_map(names_in).collect();
    let has = |section: &str, name: &str| names.contains(&format!("{section}{name}"));
    // What is built.
    let build = after("RUN").into_iter().find(|words| words[..2] == ["cargo", "build"]).unwrap();
    let packages: Vec<&str> = build.windows(2).filter(|pair| pair[0] == "-p").map(|pair| pair[1]).collect();
    assert!(packages.len() == 2 && packages.iter().all(|name| has("[package]", name)), "{packages:?}");
    assert!(build.contains(&"--release") && build.contains(&"--locked") && root.join("Cargo.lock").is_file());
    // What is taken from there, and the program that is started.
    let stages = after("FROM");
    let suite = "bookworm";
    assert!(stages[0][0] == format!("rust:1-{suite}") && stages[0][1..] == ["AS", "build"], "{stages:?}");
    assert_eq!(
        stages[1],
        [format!("debian:{suite}-slim")],
        "the C library of the programs is that of the image"
    );
    let mut taken = Vec::new();
    for words in after("COPY").iter().filter(|words| words[0] == "--from=build") {
        for path in &words[1..words.len() - 1] {
            let file = path.strip_prefix("/src/target/release/").unwrap_or_else(|| panic!("{path}"));
            let library = file.strip_prefix("lib").and_then(|name| name.strip_suffix(".so"));
            let known = library.map_or_else(|| has("[[bin]]", file), |name| has("[lib]", name));
            assert!(known, "{path} is not built");
            taken.push(file);
        }
    }
    assert_eq!(taken, ["dp", "pinn", "phalanx", "libdeepmd_c.so"]);
    assert_eq!(after("ENTRYPOINT"), [["[\"dp\"]"]]);
    // What `COPY . /src` takes along is what the build needs.
    let ignored = std::fs::read_to_string(root.join(".dockerignore")).unwrap();
    let ignored: Vec<&str> = ignored.lines().filter(|line| !line.starts_with('#')).collect();
    assert_eq!(ignored, [".git", "target", "**/__pycache__"]);
    // How it is started: what follows the image's name are words of `dp`, or of the program in its place.
    let mut calls = 0;
    for line in text.lines().filter_map(|line| line.strip_prefix("#   docker run ")) {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        let image = words.iter().position(|word| word == "phalanx").unwrap();
        let instead = words.iter().any(|word| word == "--entrypoint");
        let start = if instead { words.iter().position(|word| word == "dp").unwrap() } else { image };
        let call: Vec<String> = std::iter::once("dp".to_owned()).chain(words[start + 1..].to_vec()).collect();
        assert_eq!(misunderstood(&call), None);
        calls += 1;
    }
    assert_eq!(calls, 3);
}

#[test]
fn lines_are_cut_into_commands() {
    let words = |line: &str| -> Vec<String> { commands(line).iter().map(|words| words.join(" ")).collect() };
    assert_eq!(words("mpirun -np 4 dp train a.json -l x.log   # a comment"), ["dp train a.json -l x.log"]);
    assert_eq!(words("dp test -m m && dp plot detail | less"), ["dp test -m m", "dp plot detail"]);
    assert_eq!(words("cargo run --release -- train a.json"), ["dp train a.json"]);
    assert!(words("cargo build --release").is_empty());
}

#[test]
fn scripts_for_clusters_are_understood_by_the_shell_and_by_dp() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/cluster");
    for name in ["slurm.sh", "torchrun.sh"] {
        let path = folder.join(name);
        match std::process::Command::new("bash").arg("-n").arg(&path).output() {
            Ok(read) => assert!(read.status.success(), "{name}: {}", String::from_utf8_lossy(&read.stderr)),
            Err(_) => skip::skip("bash is not installed"),
        }
        let text = std::fs::read_to_string(&path).unwrap().replace("\\\n", " ");
        let calls: Vec<_> = text
            .lines()
            .filter(|line| !line.starts_with('#'))
            .flat_map(commands)
            .filter(|words| is_call(words))
            .collect();
        assert_eq!(calls.len(), 1, "{name}");
        assert_eq!(misunderstood(&calls[0]), None, "{name}");
    }
    let job = phalanx::config::value::read(&folder.join("kubernetes.yaml")).unwrap();
    assert_eq!((&job["apiVersion"], &job["kind"]), (&"batch/v1".into(), &"Job".into()));
    let pod = &job["spec"]["template"]["spec"];
    assert_eq!(pod["restartPolicy"], "OnFailure");
    let container = &pod["containers"][0];
    let arguments =
        container["args"].as_array().unwrap().iter().map(|word| word.as_str().unwrap().to_owned());
    assert_eq!(misunderstood(&std::iter::once("dp".to_owned()).chain(arguments).collect::<Vec<_>>()), None);
    let mounted = &container["volumeMounts"][0];
    assert_eq!(
        (&mounted["name"], &mounted["mountPath"]),
        (&pod["volumes"][0]["name"], &container["workingDir"])
    );
}
