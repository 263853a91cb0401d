//! What `dp show` tells of a multi-task model.

use super::super::literal::{list, literal};
use super::{ATTRIBUTES, observed_types, size_lines, sort_elements};
use crate::err;
use crate::error::Result;
use crate::infer::branches::{BranchHeader, RANDOM, SavedBranches};
use serde_json::Value;

/// Tells what was asked for.
pub(super) fn show(saved: &SavedBranches, asked: &[String]) -> Result<()> {
    log::info!("This is a multitask model");
    for attribute in ATTRIBUTES.iter().filter(|a| asked.iter().any(|asked| asked == *a)) {
        for line in lines(attribute, saved)? {
            log::info!("{line}");
        }
    }
    Ok(())
}

fn lines(attribute: &str, saved: &SavedBranches) -> Result<Vec<String>> {
    let of_each = |line: &dyn Fn(&BranchHeader) -> String| saved.headers.iter().map(line).collect::<Vec<_>>();
    let section = |key: &'static str| {
        of_each(&move |branch: &BranchHeader| {
            format!("The {key} parameter of branch {} is {}", branch.name, literal(&branch.model[key]))
        })
    };
    Ok(match attribute {
        "model-branch" => branch_lines(&saved.headers),
        "type-map" => {
            of_each(&|b| format!("The type_map of branch {} is {}", b.name, literal(&b.model["type_map"])))
        }
        "descriptor" => section("descriptor"),
        "fitting-net" => section("fitting_net"),
        "size" => {
            let mut lines = size_lines(&saved.model(0));
            lines[0] = "Parameter counts for a single branch model:".into();
            lines
        }
        "observed-type" => observed_lines(saved),
        _ => {
            return Err(err!("{attribute}: a multi-task model has several")
                .help("freeze a branch of it: dp freeze --head NAME"));
        }
    })
}

/// The names of the branches, and a table of what is known of each.
fn branch_lines(headers: &[BranchHeader]) -> Vec<String> {
    let mut names: Vec<String> = headers.iter().map(|header| header.name.clone()).collect();
    names.push(RANDOM.into());
    let table = table(headers);
    vec![
        format!(
            "Available model branches are {}, where '{RANDOM}' means using a randomly initialized fitting net.",
            list(&names)
        ),
        format!("Detailed information: \n{table}"),
    ]
}

/// A row for each branch: its name, its aliases, and the entries of `info` that any of them has.
fn table(headers: &[BranchHeader]) -> String {
    let mut keys: Vec<&String> = Vec::new();
    for key in
        headers.iter().filter_map(|header| header.model["info"].as_object()).flat_map(|info| info.keys())
    {
        if !keys.contains(&key) {
            keys.push(key);
        }
    }
    let entry = |value: &Value| match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => literal(other),
    };
    let title =
        ["Model Branch", "Alias"].into_iter().map(String::from).chain(keys.iter().map(|key| key.to_string()));
    let mut rows: Vec<Vec<String>> = vec![title.collect()];
    for header in headers {
        let front = [header.name.clone(), header.aliases().join(", ")];
        rows.push(
            front
                .into_iter()
                .chain(keys.iter().map(|key| entry(&header.model["info"][key.as_str()])))
                .collect(),
        );
    }
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..rows[0].len()).map(width).collect();
    let line = format!("+{}", widths.iter().map(|w| format!("{}+", "-".repeat(w + 2))).collect::<String>());
    let cells = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(text, w)| format!(" {text:<w$} |"));
        format!("|{}\n{line}", cells.collect::<String>())
    };
    let body: Vec<String> = rows.iter().map(cells).collect();
    format!("{line}\n{}", body.join("\n"))
}

fn observed_lines(saved: &SavedBranches) -> Vec<String> {
    let mut lines = vec!["The observed types for each branch: ".to_string()];
    let mut all: Vec<String> = Vec::new();
    for (k, header) in saved.headers.iter().enumerate() {
        let given = header.model["info"]["observed_type"].as_array();
        let given =
            given.map(|list| list.iter().filter_map(Value::as_str).map(String::from).collect::<Vec<_>>());
        let observed = given.unwrap_or_else(|| observed_types(&saved.model(k)));
        lines.push(format!("{}: Number of observed types: {} ", header.name, observed.len()));
        lines.push(format!("{}: Observed types: {} ", header.name, list(&observed)));
        all.extend(observed.into_iter().filter(|name| !all.contains(name)).collect::<Vec<_>>());
    }
    sort_elements(&mut all);
    lines.push(format!("TOTAL number of observed types in the model: {} ", all.len()));
    lines.push(format!("TOTAL observed types in the model: {} ", list(&all)));
    lines
}
