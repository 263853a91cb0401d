//! The real binary, run in fresh folders: what it prints, what it writes, how it ends.

use std::path::{Path, PathBuf};
use std::process::Command;

/// How a run of `dp` ended.
struct Run {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

impl Run {
    /// The messages of the log, without time and level.
    fn messages(&self) -> Vec<&str> {
        let message = |line: &'_ str| line.find("DEEPMD INFO").map(|at| at + "DEEPMD INFO".len());
        self.stderr.lines().filter_map(|line| Some(line[message(line)?..].trim())).collect()
    }

    #[track_caller]
    fn succeeds(self) -> Self {
        assert_eq!(self.code, Some(0), "{}{}", self.stdout, self.stderr);
        self
    }

    /// Fails with this exit code, and standard error holds all these texts.
    #[track_caller]
    fn fails(self, code: i32, texts: &[&str]) -> Self {
        assert_eq!(self.code, Some(code), "{}{}", self.stdout, self.stderr);
        for text in texts {
            assert!(self.stderr.contains(text), "{text:?} in: {}", self.stderr);
        }
        assert!(!self.stderr.contains("panicked"), "{}", self.stderr);
        self
    }
}

/// A fresh folder to run `dp` in.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        Place(tempfile::tempdir().unwrap())
    }

    /// With the models and systems of `tests/golden/dp_test`.
    fn with_golden() -> Self {
        let place = Place::new();
        for name in [
            "one_side.dp",
            "two_side.dp",
            "dos.dp",
            "property.dp",
            "dipole.dp",
            "polar.dp",
            "bulk",
            "cluster",
        ] {
            copy(&golden(name), &place.path(name));
        }
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
    }

    fn dp(&self, line: &str) -> Run {
        self.dp_with(line, &[])
    }

    fn dp_with(&self, line: &str, environment: &[(&str, &str)]) -> Run {
        let output = Command::new(env!("CARGO_BIN_EXE_dp"))
            .args(line.split_whitespace())
            .current_dir(self.0.path())
            .env_remove("DP_BACKEND")
            .env_remove("DP_INFER_BATCH_SIZE")
            .envs(environment.iter().copied())
            .output()
            .unwrap();
        Run {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

fn copy(from: &Path, to: &Path) {
    if !from.is_dir() {
        std::fs::copy(from, to).unwrap();
        return;
    }
    std::fs::create_dir(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        copy(&entry.path(), &to.join(entry.file_name()));
    }
}

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/dp_test").join(name)
}

const DETAILS: [&str; 6] = ["e", "e_peratom", "f", "v", "v_peratom", "s"];

/// Compares a detail file with that of DeePMD-kit: same comments, same shape, numbers within the tolerance.
#[track_caller]
fn same_details(got: &str, want: &str, tolerance: f64, name: &str) {
    assert_eq!(got.lines().count(), want.lines().count(), "{name}: lines");
    for (row, (got, want)) in got.lines().zip(want.lines()).enumerate() {
        if want.starts_with('#') {
            assert_eq!(got, want, "{name}");
            continue;
        }
        let numbers = |line: &str| -> Vec<f64> { line.split(' ').map(|x| x.parse().unwrap()).collect() };
        let (got_numbers, want_numbers) = (numbers(got), numbers(want));
        assert_eq!(got_numbers.len(), want_numbers.len(), "{name}: row {row}");
        for (column, (g, w)) in got_numbers.iter().zip(&want_numbers).enumerate() {
            assert!(
                (g - w).abs() <= tolerance + tolerance * w.abs(),
                "{name}: row {row}, column {column}: {g} instead of {w}"
            );
        }
        // Eighteen decimals and at least two digits of the exponent, as `%.18e` writes them.
        let digits = got.split(' ').next().unwrap().trim_start_matches('-');
        assert!(digits.len() == 24 && digits.as_bytes()[1] == b'.', "{name}: {digits}");
    }
}

/// Runs `dp test` with a golden model and compares report and detail files with those of DeePMD-kit.
fn agrees_with_deepmd_kit(model: &str, systems: &str, tolerance: f64, environment: &[(&str, &str)]) {
    let place = Place::with_golden();
    let run = place
        .dp_with(&format!("test -m {model}.dp -s {systems} -d got --device cpu"), environment)
        .succeeds();
    let want = std::fs::read_to_string(golden(&format!("{model}.log"))).unwrap();
    assert_eq!(run.messages(), want.lines().collect::<Vec<_>>());
    for detail in DETAILS {
        let want = std::fs::read_to_string(golden(&format!("{model}.{detail}.out"))).unwrap();
        same_details(&place.read(&format!("got.{detail}.out")), &want, tolerance, detail);
    }
}

#[test]
fn test_in_float64_says_and_writes_what_deepmd_kit_does() {
    agrees_with_deepmd_kit("one_side", "bulk cluster", 1e-10, &[]);
}

#[test]
fn test_in_float32_with_parameters_says_and_writes_what_deepmd_kit_does() {
    agrees_with_deepmd_kit("two_side", "bulk", 2e-6, &[]);
}

#[test]
fn test_of_other_outputs_says_and_writes_what_deepmd_kit_does() {
    for (model, systems, atoms) in [("dos", "bulk cluster", [3, 2]), ("property", "cluster bulk", [2, 3])] {
        let place = Place::with_golden();
        // One frame at a time: files have the number of the frame within its system.
        let environment = [("DP_INFER_BATCH_SIZE", "1")];
        let line = format!("test -m {model}.dp -s {systems} -d got --atomic --device cpu");
        let run = place.dp_with(&line, &environment).succeeds();
        let want = std::fs::read_to_string(golden(&format!("{model}.log"))).unwrap();
        assert_eq!(run.messages(), want.lines().collect::<Vec<_>>());
        for (group, &frames) in atoms.iter().enumerate() {
            for file in (0..frames).flat_map(|frame| ["", "a"].map(|of| (frame, of))) {
                let group = if group == 0 { String::new() } else { format!(".{group}") };
                let name = format!("{}{model}.out{group}.{}", file.1, file.0);
                let want = std::fs::read_to_string(golden(&format!("{model}.{name}"))).unwrap();
                same_details(&place.read(&format!("got.{name}")), &want, 1e-10, &name);
            }
        }
    }
}

#[test]
fn test_of_dipoles_and_polarizabilities_says_and_writes_what_deepmd_kit_does() {
    for (model, systems, flag) in [("dipole", "bulk cluster", ""), ("polar", "cluster bulk", "--atomic")] {
        let place = Place::with_golden();
        let environment = [("DP_INFER_BATCH_SIZE", "1")];
        let line = format!("test -m {model}.dp -s {systems} -d got {flag} --device cpu");
        let run = place.dp_with(&line, &environment).succeeds();
        let want = std::fs::read_to_string(golden(&format!("{model}.log"))).unwrap();
        assert_eq!(run.messages(), want.lines().collect::<Vec<_>>());
        for name in ["out", "out.1"] {
            let want = std::fs::read_to_string(golden(&format!("{model}.{name}"))).unwrap();
            same_details(&place.read(&format!("got.{name}")), &want, 1e-10, name);
        }
    }
}

#[test]
fn models_without_energies_are_shown_frozen_and_refused_where_energies_are_wanted() {
    let place = Place::with_golden();
    let shown = place.dp("show dos.dp type-map fitting-net size").succeeds();
    assert!(shown.messages().iter().any(|line| line.contains("'numb_dos': 3")), "{:?}", shown.messages());
    for model in ["property", "dipole", "polar"] {
        place.dp(&format!("convert-backend {model}.dp copy.yaml")).succeeds();
        place.dp("test -m copy.yaml -s bulk").succeeds();
        place.dp("convert-backend copy.yaml back.dp").succeeds();
        let shown = place.dp("show back.dp fitting-net").succeeds();
        assert!(
            shown.messages().iter().any(|line| line.contains(&format!("'type': '{model}'"))),
            "{:?}",
            shown.messages()
        );
    }
    place.dp("model-devi -m dos.dp dos.dp -s bulk").fails(
        1,
        &["error: dos.dp: the model predicts no energy: its fitting net is of type \"dos\"\n  help: dp test evaluates it"],
    );
    std::fs::remove_file(place.path("bulk/set.000/dos.npy")).unwrap();
    place.dp("test -m dos.dp -s bulk").fails(1, &["dos.npy: not found", "the model is fitted to it"]);
}

#[test]
fn the_size_of_batches_and_the_number_of_threads_do_not_matter() {
    for environment in [
        [("DP_INFER_BATCH_SIZE", "1"), ("OMP_NUM_THREADS", "1")],
        [("DP_INFER_BATCH_SIZE", "24"), ("OMP_NUM_THREADS", "3")],
    ] {
        agrees_with_deepmd_kit("one_side", "bulk cluster", 1e-10, &environment);
    }
    let place = Place::with_golden();
    place
        .dp_with("test -m one_side.dp -s bulk", &[("DP_INFER_BATCH_SIZE", "many")])
        .fails(1, &["error: DP_INFER_BATCH_SIZE=many is not a number of atoms\n  help: "]);
}

#[test]
fn test_finds_its_systems_in_many_ways() {
    let place = Place::with_golden();
    let systems = |line: &str| -> Vec<String> {
        let run = place.dp(&format!("test -m one_side.dp {line}")).succeeds();
        let tested = run.messages().into_iter().filter_map(|m| m.strip_prefix("# testing system : "));
        tested.map(str::to_owned).collect()
    };
    assert_eq!(systems(""), ["./bulk", "./cluster"]);
    assert_eq!(systems("-s cluster bulk"), ["cluster", "bulk"]);
    std::fs::write(place.path("list.txt"), "cluster\n\n bulk\n").unwrap();
    assert_eq!(systems("-f list.txt"), ["cluster", "bulk"]);
    std::fs::create_dir(place.path("runs")).unwrap();
    let input = r#"{"training": {"training_data": {"systems": ["../bulk"]}, "validation_data": {"systems": "../cluster"}}}"#;
    std::fs::write(place.path("runs/input.json"), input).unwrap();
    assert_eq!(systems("--train-data runs/input.json"), ["runs/../bulk"]);
    assert_eq!(systems("--valid-data runs/input.json"), ["runs/../cluster"]);
}

#[test]
fn test_takes_some_frames_and_shuffles_them() {
    let place = Place::with_golden();
    let energies = |line: &str| -> Vec<String> {
        place.dp(&format!("test -m one_side.dp -s bulk -d got {line}")).succeeds();
        place.read("got.e.out").lines().skip(1).map(str::to_owned).collect()
    };
    let all = energies("");
    assert_eq!(all.len(), 3);
    assert_eq!(energies("-n 2"), all[..2]);
    let mut shuffled: Vec<Vec<String>> =
        (0..6).map(|seed| energies(&format!("--shuffle-test -r {seed}"))).collect();
    assert!(shuffled.iter().any(|order| *order != all));
    for order in &mut shuffled {
        order.sort();
        let mut sorted = all.clone();
        sorted.sort();
        assert_eq!(*order, sorted);
    }
}

#[test]
fn labels_may_be_missing_and_are_then_written_as_zeros() {
    let place = Place::with_golden();
    for name in ["energy", "force", "virial"] {
        std::fs::remove_file(place.path(&format!("bulk/set.000/{name}.npy"))).unwrap();
    }
    let run = place.dp("test -m one_side.dp -s bulk -d got").succeeds();
    assert!(!run.messages().iter().any(|m| m.contains("MAE") || m.contains("RMSE")), "{:?}", run.messages());
    assert!(run.messages().contains(&"# number of test data : 3"));
    let row = place.read("got.e.out").lines().nth(1).unwrap().to_owned();
    assert!(row.starts_with("0.000000000000000000e+00 -"), "{row}");
    assert!(!place.path("got.s.out").exists());
}

#[test]
fn atomic_energies_are_compared_where_they_are() {
    let place = Place::with_golden();
    place
        .dp("test -m one_side.dp -s bulk -a")
        .fails(1, &["error: bulk: found no atom_ener.npy in every set\n  help: --atomic"]);
    // Any numbers of the right shape will do; DeePMD-kit 3.2.0 says the same of them.
    copy(&place.path("bulk/set.000/aparam.npy"), &place.path("bulk/set.000/atom_ener.npy"));
    let run = place.dp("test -m one_side.dp -s bulk -a").succeeds();
    let messages = run.messages();
    let lines: Vec<_> = messages.iter().filter(|m| m.starts_with("Atomic")).collect();
    assert_eq!(
        lines,
        [&"Atomic ener MAE    : 2.313304e+00 eV", &"Atomic ener RMSE   : 2.762587e+00 eV"],
        "once, for the system, and not in the average"
    );
}

#[test]
fn every_mistake_of_test_is_told_plainly() {
    let place = Place::with_golden();
    place.dp("test -m absent.dp -s bulk").fails(1, &["error: absent.dp: "]);
    place
        .dp("test -m absent -s bulk")
        .fails(1, &["error: absent: no such model file or checkpoint\n  help: "]);
    place.dp("test -m one_side.dp -s nowhere").fails(1, &["error: nowhere: no such system\n  help: "]);
    place.dp("test -m one_side.dp -s bulk/set.000").fails(1, &["found no system in or below"]);
    place.dp("test -m one_side.dp -s bulk -d ..").fails(1, &["error: --detail-file: .. is not"]);
    place
        .dp("test -m one_side.dp -s bulk --head water")
        .fails(1, &["error: one_side.dp: there is no branch water: the model has one task"]);
    place.dp("test -m one_side.dp -s bulk -f list").fails(2, &["error: ", "cannot be used with"]);
    place.dp("test -m one_side.dp -s bulk -n many").fails(2, &["error: invalid value 'many'"]);
    place.dp("test -m two_side.dp -s cluster").fails(1, &["error: ", "fparam"]);
    std::fs::write(place.path("model.pth"), "").unwrap();
    place.dp("test -m model.pth -s bulk").fails(1, &["dp convert-backend model.pth model.dp"]);
    std::fs::write(place.path("broken.dp"), "not HDF5").unwrap();
    place.dp("test -m broken.dp -s bulk").fails(1, &["error: broken.dp: "]);
    std::fs::write(place.path("bulk/type_map.raw"), "H\nXe\n").unwrap();
    place.dp("test -m one_side.dp -s bulk").fails(1, &["Xe", "help: model.type_map is: O H"]);
}

/// Every command of `dp`, in the order of its help.
const DP_COMMANDS: [&str; 12] = [
    "train",
    "freeze",
    "test",
    "show",
    "convert-backend",
    "compress",
    "change-bias",
    "model-devi",
    "eval-desc",
    "neighbor-stat",
    "doc-train-input",
    "plot",
];

#[test]
fn every_command_is_tested() {
    let names: Vec<&str> = phalanx::cli::COMMANDS.iter().map(|command| command.name).collect();
    assert_eq!(names, DP_COMMANDS);
}

#[test]
fn help_and_version_go_to_standard_output() {
    let place = Place::new();
    let help = place.dp("-h").succeeds();
    for name in DP_COMMANDS.iter().chain(&["--backend", "--pt"]) {
        assert!(help.stdout.contains(name), "{name} in: {}", help.stdout);
    }
    assert!(help.stdout.starts_with("Phalanx: trains Deep Potential models"), "{}", help.stdout);
    assert!(help.stdout.contains("Train a model\n"), "{}", help.stdout);
    assert_eq!(place.dp("").succeeds().stdout, help.stdout);
    let version = place.dp("--version").succeeds();
    assert_eq!(version.stdout, format!("Phalanx v{}\n", env!("CARGO_PKG_VERSION")));
    for command in DP_COMMANDS {
        let help = place.dp(&format!("--pt {command} --help")).succeeds().stdout;
        assert!(help.contains(&format!("Usage: dp {command}")), "{help}");
        // A figure has no log.
        assert!(help.contains("--log-level") || command == "plot", "{help}");
    }
}

#[test]
fn a_line_that_is_not_understood_ends_with_code_2_and_advice() {
    let place = Place::new();
    place.dp("tran input.json").fails(
        2,
        &["error: dp tran: there is no such command\n  help: did you mean `train`? there are: train, "],
    );
    place
        .dp("train input.json --restrat a")
        .fails(2, &["error: unexpected argument '--restrat'", "--restart"]);
    place.dp("train").fails(2, &["error: ", "INPUT"]);
    place.dp("train a.json -r b -i c").fails(2, &["cannot be used with"]);
    place.dp("train a.json -m all").fails(2, &["invalid value 'all'", "master, collect, workers"]);
    place.dp("--pt --tf train a.json").fails(2, &["cannot be used with"]);
    place.dp("-b tourch train a.json").fails(2, &["\"tourch\" is not a backend"]);
    place.dp_with("show a.dp size", &[("DP_BACKEND", "x")]).fails(1, &["error: DP_BACKEND: \"x\" is not"]);
}

#[test]
fn commands_that_are_not_here_say_so() {
    let place = Place::new();
    for line in ["transfer -r a.pb -O b.pb", "embed --help", "gui"] {
        let name = line.split(' ').next().unwrap();
        place.dp(line).fails(
            1,
            &[&format!("error: dp {name} ("), "not part of Phalanx yet", "  help: ", &format!("`dp {name}`")],
        );
    }
}

#[test]
fn show_tells_what_is_in_a_model() {
    let place = Place::with_golden();
    let run = place.dp("show one_side.dp size type-map descriptor fitting-net observed-type").succeeds();
    let messages = run.messages();
    assert_eq!(messages[..2], ["This is a singletask model", "The type_map is ['O', 'H']"]);
    let descriptor =
        messages[2].strip_prefix("The descriptor parameter is {'type': 'se_e2_a', 'rcut': 4.0, ");
    assert!(
        descriptor.is_some_and(|rest| rest.contains("'sel': [6, 12], 'type_one_side': True")),
        "{messages:?}"
    );
    assert!(
        messages[3].starts_with("The fitting_net parameter is {'neuron': [6, 6], 'seed': 1"),
        "{messages:?}"
    );
    // 1 x 4 + 4 and 4 x 8 + 8 for each of two nets; 16 x 6 + 6, 6 x 6 + 6 + 6 and 6 + 1 likewise.
    let counts = [
        "Parameter counts:",
        "Parameters in descriptor: 96",
        "Parameters in fitting-net: 314",
        "Parameters in total: 410",
    ];
    assert_eq!(messages[4..8], counts);
    assert_eq!(messages[9..], ["Number of observed types: 2", "Observed types: ['H', 'O']"]);
    let tree = place.dp("show one_side.dp serialization-tree").succeeds().stderr;
    assert!(tree.contains("└──0, 1 -> EmbeddingNetwork (size=48)"), "{tree}");
    place.dp("show one_side.dp model-branch").fails(1, &["error: model-branch: this is a singletask model"]);
    place.dp("show one_side.dp colour").fails(2, &["invalid value 'colour'", "type-map"]);
    place.dp("show absent.dp size").fails(1, &["error: absent.dp: "]);
}

#[test]
fn freeze_refuses_what_it_cannot_write_or_find() {
    let place = Place::new();
    place.dp("freeze -o model.pth").fails(1, &["error: ", "no checkpoint in this folder"]);
    place.dp("freeze -o model.onnx").fails(1, &["error: model.onnx: ", "name the file model.dp"]);
    place.dp("freeze").fails(1, &["error: ", "no checkpoint in this folder"]);
    place.dp("freeze -c absent.ckpt").fails(1, &["error: absent.ckpt: no such checkpoint"]);
    place.dp("freeze --head water").fails(1, &["error: ", "no checkpoint in this folder"]);
    assert_eq!(std::fs::read_dir(place.0.path()).unwrap().count(), 0, "nothing is left behind");
}

#[test]
fn neighbor_stat_finds_the_numbers_of_the_water_example() {
    let water = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/water/data_0");
    let place = Place::new();
    std::os::unix::fs::symlink(&water, place.path("water")).unwrap();
    // As DeePMD-kit 3.2.0 counts them.
    let run = place.dp("--pt neighbor-stat -s water -r 4.0 -t O H").succeeds();
    assert_eq!(run.messages(), ["min_nbor_dist: 0.937334", "max_nbor_size: [14 26]"]);
    let run = place.dp("neighbor-stat -s water -r 4.0 -t H O -l stat.log").succeeds();
    assert_eq!(run.messages()[1], "max_nbor_size: [26 14]");
    assert!(place.read("stat.log").contains("min_nbor_dist: 0.937334"));
    let run = place.dp("neighbor-stat -s water -r 4.0 --mixed-type").succeeds();
    assert_eq!(run.messages()[0], "type_map: ['O', 'H']");
    assert_eq!(run.messages()[2], "max_nbor_size: [39]");
    assert_eq!(place.dp("neighbor-stat -s water -r 4.0 -v ERROR").succeeds().stderr, "");
}

#[test]
fn neighbor_stat_refuses_what_makes_no_sense() {
    let place = Place::with_golden();
    place.dp("neighbor-stat -s bulk").fails(2, &["--rcut <RCUT>"]);
    place.dp("neighbor-stat -s bulk -r -1").fails(1, &["error: --rcut: -1 A is not a cutoff radius"]);
    place.dp("neighbor-stat -s bulk -r 4 -t O").fails(1, &["which the model does not know"]);
    place.dp("neighbor-stat -s nowhere -r 4").fails(1, &["error: nowhere: no such system"]);
}

#[test]
fn doc_train_input_prints_every_key() {
    let place = Place::new();
    let text = place.dp("doc-train-input").succeeds().stdout;
    for key in ["rcut_smth", "numb_steps", "start_pref_f", "decay_steps", "systems"] {
        assert!(text.contains(key), "{key}");
    }
    let json = |form: &str| -> serde_json::Value {
        serde_json::from_str(&place.dp(&format!("doc-train-input --out-type {form}")).succeeds().stdout)
            .unwrap()
    };
    let schema = json("json_schema");
    assert_eq!(
        schema["properties"]["model"]["anyOf"][0]["properties"]["type_map"]["items"]["type"],
        "string"
    );
    let list = json("json");
    assert!(
        list.as_array()
            .unwrap()
            .iter()
            .any(|key| key["name"] == "learning_rate" && key["object"] == "Argument")
    );
    place.dp("doc-train-input --multi-task").succeeds();
}

#[test]
fn a_branch_is_named_for_fine_tuning_alone() {
    let place = Place::new();
    place
        .dp("train a.json --model-branch water")
        .fails(1, &["error: --model-branch water: there is no model"]);
}
