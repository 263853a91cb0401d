//! What a file has to show: a learning curve, labels beside predictions, or a timeline.

use crate::config::check::did_you_mean_path;
use crate::err;
use crate::error::{IoContext, Result};
use crate::report::events::{event_files, read_scalars};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// What was read from one path.
#[derive(Debug, Clone, PartialEq)]
pub enum Source {
    Curves(Vec<Series>),
    Pairs(Vec<Pairs>),
    Times(Vec<RankTimes>),
}

/// A quantity over the steps of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    /// Such as `rmse_f` or `lr`.
    pub quantity: String,
    /// Of a multi-task training; empty: of none.
    pub branch: String,
    /// Whether it was computed on the validation data.
    pub is_validation: bool,
    /// Step and value; NaN where there is none.
    pub points: Vec<[f64; 2]>,
}

/// Labels beside predictions.
#[derive(Debug, Clone, PartialEq)]
pub struct Pairs {
    pub quantity: Quantity,
    /// Label and prediction.
    pub values: Vec<[f64; 2]>,
}

/// What `dp test -d` writes files of, by their endings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quantity {
    ending: &'static str,
    pub name: &'static str,
    pub unit: &'static str,
}

/// Of a name without an ending, those marked are shown.
const QUANTITIES: [(Quantity, bool); 6] = [
    (Quantity { ending: "e_peratom.out", name: "energy per atom", unit: "eV/atom" }, true),
    (Quantity { ending: "e.out", name: "energy", unit: "eV" }, false),
    (Quantity { ending: "f.out", name: "force", unit: "eV/Å" }, true),
    (Quantity { ending: "v_peratom.out", name: "virial per atom", unit: "eV/atom" }, true),
    (Quantity { ending: "v.out", name: "virial", unit: "eV" }, false),
    (Quantity { ending: "s.out", name: "stress", unit: "eV/Å³" }, false),
];

/// The same for models that predict no energy, by the first column of labels: `data_dos`, `data_x`, `data_x1`, `data_pxx`.
const OUTPUTS: [(&str, Quantity); 8] = [
    ("dos", Quantity { ending: "dos.out", name: "density of states", unit: "1/eV" }),
    ("ados", Quantity { ending: "ados.out", name: "density of states of atoms", unit: "1/eV" }),
    ("property", Quantity { ending: "property.out", name: "property", unit: "" }),
    ("aproperty", Quantity { ending: "aproperty.out", name: "property of atoms", unit: "" }),
    ("x", Quantity { ending: "out", name: "dipole", unit: "" }),
    ("x1", Quantity { ending: "out", name: "dipole of atoms", unit: "" }),
    ("pxx", Quantity { ending: "out", name: "polarizability", unit: "" }),
    ("pxx1", Quantity { ending: "out", name: "polarizability of atoms", unit: "" }),
];

/// How long each phase of a step took one rank in all, in seconds, and the whole time that the timeline covers.
#[derive(Debug, Clone, PartialEq)]
pub struct RankTimes {
    pub rank: u64,
    pub total: f64,
    pub phases: BTreeMap<String, f64>,
}

const HELP: &str = "what can be drawn: lcurve.out, files of `dp test -d` (or their common name), a timeline of \
    training.profiling, a folder with event files";

/// Reads what a path has to show. A name without a file may be the common name of detail files.
pub fn read(path: &Path) -> Result<Source> {
    if path.is_dir() {
        // A folder of that name does not hide the details.
        return match (events(path), details(path)?) {
            (Err(_), Some(pairs)) => Ok(Source::Pairs(pairs)),
            (curves, _) => Ok(Source::Curves(curves?)),
        };
    }
    if !path.exists() {
        return match details(path)? {
            Some(pairs) => Ok(Source::Pairs(pairs)),
            None => Err(err!("{}: there is no such file", path.display())
                .help(format!("{}{HELP}", did_you_mean_path(path)))),
        };
    }
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    if let Some((quantity, _)) = QUANTITIES.iter().find(|(q, _)| name.ends_with(&format!(".{}", q.ending))) {
        return Ok(Source::Pairs(vec![pairs(path, *quantity)?]));
    }
    let text = std::fs::read_to_string(path).io("read", path)?;
    if text.trim_start().starts_with('{') {
        return Ok(Source::Times(timeline(&text).map_err(|e| e.at(path.display()))?));
    }
    if let Some(quantity) = output_of(&text) {
        return Ok(Source::Pairs(vec![pairs(path, quantity)?]));
    }
    Ok(Source::Curves(curves(&text).map_err(|e| e.at(path.display()))?))
}

/// What files of `dp test -d` with that common name hold; None where there are none.
fn details(prefix: &Path) -> Result<Option<Vec<Pairs>>> {
    let outputs = output_files(prefix)?;
    if !outputs.is_empty() {
        return Ok(Some(outputs));
    }
    let files = detail_files(prefix);
    if files.is_empty() {
        return Ok(None);
    }
    let all: Vec<Pairs> =
        files.into_iter().map(|(quantity, path)| pairs(&path, quantity)).collect::<Result<_>>()?;
    // Labels that the data lacks are zeros.
    let has_labels = |pairs: &Pairs| pairs.values.iter().any(|[label, _]| *label != 0.0);
    Ok(Some(all.into_iter().filter(has_labels).collect()))
}

/// What the first line says that follows, where it is a file of details of a model that predicts no energy.
fn output_of(text: &str) -> Option<Quantity> {
    let mut words = text.lines().next()?.strip_prefix('#')?.split_whitespace();
    let first = words.find_map(|word| word.strip_prefix("data_"))?;
    OUTPUTS.iter().find(|(column, _)| *column == first).map(|(_, quantity)| *quantity)
}

/// All frames of all systems with that common name, put together by quantity: `detail.dos.out.0` and `detail.dos.out.1.0`, or
/// `detail.out` and `detail.out.1`.
fn output_files(prefix: &Path) -> Result<Vec<Pairs>> {
    let folder = prefix.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let is_numbers = |rest: &str| {
        rest.split('.').skip(1).all(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()))
    };
    let is_ours = |file: &Path| {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        OUTPUTS.iter().any(|(_, quantity)| {
            let common = prefix.with_extension(quantity.ending);
            let common = common.file_name().unwrap_or_default().to_string_lossy().into_owned();
            name.strip_prefix(&common)
                .is_some_and(|rest| (rest.is_empty() || rest.starts_with('.')) && is_numbers(rest))
        })
    };
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut files: Vec<PathBuf> = entries.filter(|path| is_ours(path)).collect();
    files.sort();
    let mut found: Vec<Pairs> = Vec::new();
    for path in files {
        let Some(quantity) = output_of(&std::fs::read_to_string(&path).io("read", &path)?) else { continue };
        let new = pairs(&path, quantity)?;
        match found.iter_mut().find(|old| old.quantity.name == quantity.name) {
            Some(old) => old.values.extend(new.values),
            None => found.push(new),
        }
    }
    Ok(found)
}

fn detail_files(prefix: &Path) -> Vec<(Quantity, PathBuf)> {
    let file = |(quantity, is_shown): &(Quantity, bool)| {
        let path = prefix.with_extension(quantity.ending);
        (*is_shown && path.is_file()).then_some((*quantity, path))
    };
    QUANTITIES.iter().filter_map(file).collect()
}

/// The columns of `lcurve.out`. A header in the middle, where columns changed, holds from there on.
fn curves(text: &str) -> Result<Vec<Series>> {
    let mut names: Vec<String> = Vec::new();
    let mut series: Vec<Series> = Vec::new();
    for (i, line) in text.lines().enumerate() {
        if let Some(comment) = line.strip_prefix('#') {
            let words: Vec<String> = comment.split_whitespace().map(str::to_owned).collect();
            if words.first().is_some_and(|word| word == "step") {
                names = words;
            }
            continue;
        }
        let row: Option<Vec<f64>> = line.split_whitespace().map(|word| word.parse().ok()).collect();
        match row {
            Some(row) if row.is_empty() => {}
            Some(row) if !names.is_empty() && row.len() == names.len() => {
                for (name, value) in names.iter().zip(&row).skip(1) {
                    add(&mut series, name, [row[0], *value]);
                }
            }
            // The last row of a run that is writing it just now may be cut.
            _ if i + 1 == text.lines().count() && !text.ends_with('\n') => {}
            _ => return Err(err!("line {}: found no row of a learning curve", i + 1).help(HELP)),
        }
    }
    if series.is_empty() {
        return Err(err!("found no row of a learning curve").help(HELP));
    }
    Ok(series)
}

fn add(all: &mut Vec<Series>, column: &str, point: [f64; 2]) {
    // A multi-task training has `rmse_f_trn_BRANCH`.
    let of_branch =
        |kind: &str| column.split_once(&format!("{kind}_")).filter(|(_, branch)| !branch.is_empty());
    let (quantity, branch, is_validation) = match (column.strip_suffix("_val"), column.strip_suffix("_trn")) {
        (Some(name), _) => (name, "", true),
        (_, Some(name)) => (name, "", false),
        _ => match (of_branch("_val"), of_branch("_trn")) {
            (Some((name, branch)), None) => (name, branch, true),
            (None, Some((name, branch))) => (name, branch, false),
            // One of the two is part of the name of the branch.
            (Some((a, of_a)), Some((b, of_b))) => {
                if a.len() < b.len() {
                    (a, of_a, true)
                } else {
                    (b, of_b, false)
                }
            }
            (None, None) => (column, "", false),
        },
    };
    let same =
        |s: &&mut Series| s.quantity == quantity && s.branch == branch && s.is_validation == is_validation;
    match all.iter_mut().find(same) {
        Some(series) => series.points.push(point),
        None => all.push(Series {
            quantity: quantity.to_owned(),
            branch: branch.to_owned(),
            is_validation,
            points: vec![point],
        }),
    }
}

/// The metrics of a folder of event files: a model's folder for training, its `eval` folder for validation.
fn events(folder: &Path) -> Result<Vec<Series>> {
    let mut all: Vec<Series> = Vec::new();
    for (folder, is_validation) in [(folder.to_owned(), false), (folder.join("eval"), true)] {
        if !folder.is_dir() {
            continue;
        }
        for file in event_files(&folder)? {
            for point in read_scalars(&file)? {
                let quantity = point.tag.rsplit('/').next().unwrap_or(&point.tag).to_owned();
                let at = [point.step as f64, f64::from(point.value)];
                match all.iter_mut().find(|s| s.quantity == quantity && s.is_validation == is_validation) {
                    Some(series) => series.points.push(at),
                    None => {
                        all.push(Series { quantity, branch: String::new(), is_validation, points: vec![at] })
                    }
                }
            }
        }
    }
    match all.is_empty() {
        true => Err(err!("{}: found no event files with metrics", folder.display()).help(HELP)),
        false => Ok(all),
    }
}

/// Rows of labels, then as many predictions.
fn pairs(path: &Path, quantity: Quantity) -> Result<Pairs> {
    let text = std::fs::read_to_string(path).io("read", path)?;
    let mut values = Vec::new();
    for (i, line) in text.lines().enumerate().filter(|(_, line)| !line.starts_with('#')) {
        let row: Option<Vec<f64>> = line.split_whitespace().map(|word| word.parse().ok()).collect();
        match row {
            Some(row) if row.len() % 2 == 0 => {
                let (labels, predictions) = row.split_at(row.len() / 2);
                values.extend(labels.iter().zip(predictions).map(|(a, b)| [*a, *b]));
            }
            _ => {
                return Err(err!(
                    "{}: line {}: found no labels and as many predictions",
                    path.display(),
                    i + 1
                )
                .help(HELP));
            }
        }
    }
    match values.is_empty() {
        true => Err(err!("{}: found no numbers", path.display()).help(HELP)),
        false => Ok(Pairs { quantity, values }),
    }
}

/// The loop of each rank in a Chrome trace of `training.profiling`.
fn timeline(text: &str) -> Result<Vec<RankTimes>> {
    let value: serde_json::Value =
        serde_json::from_str(text).map_err(|e| err!("found no timeline: {e}").help(HELP))?;
    let events = value.get("traceEvents").and_then(|events| events.as_array());
    let events = events.ok_or_else(|| err!("found no timeline: there is no traceEvents").help(HELP))?;
    let mut ranks: BTreeMap<u64, (f64, f64, BTreeMap<String, f64>)> = BTreeMap::new();
    for event in events {
        // Thread 0 of a rank is its loop; others overlap with it.
        if event["ph"] != "X" || event["tid"] != 0 {
            continue;
        }
        let (Some(rank), Some(name)) = (event["pid"].as_u64(), event["name"].as_str()) else { continue };
        let (Some(start), Some(length)) = (event["ts"].as_f64(), event["dur"].as_f64()) else { continue };
        let (first, last, phases) = ranks.entry(rank).or_insert((start, start, BTreeMap::new()));
        (*first, *last) = (first.min(start), last.max(start + length));
        *phases.entry(name.to_owned()).or_default() += length * 1e-6;
    }
    if ranks.is_empty() {
        return Err(err!("the timeline holds no steps").help(HELP));
    }
    let times = |(rank, (first, last, phases))| RankTimes { rank, total: (last - first) * 1e-6, phases };
    Ok(ranks.into_iter().map(times).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_of_lcurve_become_series_and_a_cut_row_is_left_out() {
        let text = "# step   rmse_val rmse_trn  lr\n# a note\n 0 1.0 2.0 1e-3\n 100 nan 0.5 1e-4\n 200 0.3";
        let found = curves(text).unwrap();
        assert_eq!(found.len(), 3);
        assert!(found[0].is_validation && found[0].quantity == "rmse" && found[0].points[1][1].is_nan());
        assert_eq!(found[1].points, [[0.0, 2.0], [100.0, 0.5]]);
        assert_eq!(found[2].quantity, "lr");
    }

    #[test]
    fn columns_of_branches_are_told_from_quantities() {
        let text =
            "# step rmse_f_val_water rmse_f_trn_water rmse_trn_a_val_b rmse_val_a_trn_b lr\n 1 2 3 4 5 6\n";
        let found = curves(text).unwrap();
        let told: Vec<_> =
            found.iter().map(|s| (s.quantity.as_str(), s.branch.as_str(), s.is_validation)).collect();
        let want = [
            ("rmse_f", "water", true),
            ("rmse_f", "water", false),
            ("rmse", "a_val_b", false),
            ("rmse", "a_trn_b", true),
            ("lr", "", false),
        ];
        assert_eq!(told, want);
    }

    #[test]
    fn rubbish_is_named_with_its_line() {
        let error = curves("# step rmse_trn lr\n 0 1 2\n 5 what 3\n 6 1 2\n").unwrap_err();
        assert!(error.message().contains("line 3"), "{error}");
        assert!(curves("").is_err() && timeline("{}").is_err() && timeline("{\"traceEvents\": []}").is_err());
    }

    #[test]
    fn the_loop_of_each_rank_is_added_up() {
        let event = |pid: u32, tid: u32, name: &str, ts: f64, dur: f64| {
            format!(
                "{{\"ph\":\"X\",\"name\":\"{name}\",\"pid\":{pid},\"tid\":{tid},\"ts\":{ts},\"dur\":{dur}}}"
            )
        };
        let events = [
            event(1, 0, "forward", 0.0, 2e6),
            event(1, 0, "forward", 3e6, 1e6),
            event(1, 1, "communication", 0.0, 9e6),
            event(0, 0, "save", 5.0, 1e6),
        ];
        let ranks = timeline(&format!("{{\"traceEvents\":[{}]}}", events.join(","))).unwrap();
        assert_eq!((ranks[1].total, ranks[1].phases["forward"], ranks[1].phases.len()), (4.0, 3.0, 1));
        assert_eq!(ranks[0].rank, 0);
    }
}
