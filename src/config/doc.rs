//! Prints a table of keys for people: plain on a terminal, and Markdown.

use crate::config::table::{Default, Key, Kind, Status, Table, Variant};

/// Lines are broken before this column.
const WIDTH: usize = 100;

/// The reference of all keys, nested as they are nested in the file.
pub fn reference(title: &str, preface: &str, root: &'static Table) -> String {
    let mut out = format!("# {title}\n\n");
    wrap(&mut out, "", preface);
    for key in root.keys {
        out.push_str(&format!("\n## {}\n\n", key.name));
        entry(&mut out, 0, key);
    }
    out
}

/// A key as an item of a list, and what stands below it.
fn entry(out: &mut String, depth: usize, key: &Key) {
    let indent = "  ".repeat(depth);
    let (facts, doc) = (facts(key), full_stop(key.doc));
    wrap(
        out,
        &indent,
        &format!("- **{}** ({facts}){}{doc}", key.name, if doc.is_empty() { "" } else { ": " }),
    );
    if matches!(key.status, Status::NotYet(_)) {
        return;
    }
    let inside = match key.kind {
        Kind::OneOf(kinds) => kinds.iter().find(|k| matches!(k, Kind::Object(_))).copied(),
        kind => Some(kind),
    };
    if let Some(Kind::Object(table)) = inside {
        object(out, depth + 1, table);
    }
}

fn object(out: &mut String, depth: usize, table: &'static Table) {
    let indent = "  ".repeat(depth);
    if let Some(variants) = table.variants {
        let default = match variants.default {
            "" => "required".to_string(),
            name => format!("default \"{name}\""),
        };
        let names: Vec<String> =
            variants.list.iter().filter(|v| v.supported).map(|v| format!("\"{}\"", v.name)).collect();
        let what = variants.what;
        let text = format!("- **type** (string, {default}): which {what}. Supported: {}.", names.join(", "));
        wrap(out, &indent, &text);
        let later: Vec<&str> = variants.list.iter().filter(|v| !v.supported).map(|v| v.name).collect();
        if !later.is_empty() {
            wrap(out, &format!("{indent}  "), &format!("Not supported yet: {}.", later.join(", ")));
        }
    }
    for key in table.keys {
        entry(out, depth, key);
    }
    for variant in table.variants.map_or(&[][..], |v| v.list).iter().filter(|v| v.supported) {
        variant_keys(out, depth, variant);
    }
}

fn variant_keys(out: &mut String, depth: usize, variant: &Variant) {
    let indent = "  ".repeat(depth);
    let mut names = format!("\"{}\"", variant.name);
    for alias in variant.aliases {
        names.push_str(&format!(" or \"{alias}\""));
    }
    wrap(out, &indent, &format!("- with type {names}: {}", full_stop(variant.doc)));
    for key in variant.keys {
        entry(out, depth + 1, key);
    }
}

/// Type, default, unit, other names and standing of a key.
fn facts(key: &Key) -> String {
    let mut facts = match key.kind {
        Kind::Any => Vec::new(),
        kind => vec![kind.wanted()],
    };
    if !key.unit.is_empty() {
        facts.push(format!("in {}", key.unit));
    }
    facts.push(match key.default {
        Default::Required => "required".into(),
        Default::Absent | Default::Section => "optional".into(),
        Default::Json(json) => format!("default {json}"),
    });
    if !key.aliases.is_empty() {
        facts.push(format!("also {}", key.aliases.join(", ")));
    }
    match key.status {
        Status::Supported => {}
        Status::NotYet(_) => facts.push("not supported yet".into()),
        Status::Ignored(_) => facts.push("accepted, no effect".into()),
    }
    facts.join("; ")
}

fn full_stop(doc: &str) -> String {
    if doc.is_empty() || doc.ends_with('.') { doc.into() } else { format!("{doc}.") }
}

/// Breaks a text into lines; those after the first stand two columns further in, as Markdown wants them in a list.
fn wrap(out: &mut String, indent: &str, text: &str) {
    let hang = if text.starts_with("- ") { "  " } else { "" };
    let mut line = String::from(indent);
    let mut empty = true;
    for word in text.split_whitespace() {
        if !empty && line.chars().count() + 1 + word.chars().count() > WIDTH {
            out.push_str(&line);
            out.push('\n');
            line = format!("{indent}{hang}");
            empty = true;
        }
        if !empty {
            line.push(' ');
        }
        line.push_str(word);
        empty = false;
    }
    out.push_str(&line);
    out.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::table::Variants;

    static SHAPE: Table = Table {
        keys: &[Key::new("width", Kind::POSITIVE).unit("A").default("2.5").doc("How wide")],
        variants: Some(Variants {
            what: "shape",
            default: "round",
            list: &[
                Variant::of("round", &[Key::new("r", Kind::NUMBER).aliases(&["radius"])], "A ball"),
                Variant::not_yet("knot"),
            ],
        }),
    };

    static ROOT: Table = Table::of(&[
        Key::new("shape", Kind::Object(&SHAPE)).doc("The shape."),
        Key::new("later", Kind::Bool).default("false").not_yet(""),
    ]);

    #[test]
    fn the_reference_shows_every_fact_of_the_table() {
        let text = reference("Title", "Preface.", &ROOT);
        let want = "# Title\n\nPreface.\n\n## shape\n\n- **shape** (an object; required): The shape.\n  \
            - **type** (string, default \"round\"): which shape. Supported: \"round\".\n    \
            Not supported yet: knot.\n  \
            - **width** (a number above 0; in A; default 2.5): How wide.\n  \
            - with type \"round\": A ball.\n    \
            - **r** (a number; required; also radius)\n\n## later\n\n\
            - **later** (true or false; default false; not supported yet)\n";
        assert_eq!(text, want);
    }

    #[test]
    fn long_texts_are_broken_into_lines() {
        let mut out = String::new();
        wrap(&mut out, "  ", &format!("- {}", "word ".repeat(60)));
        assert!(out.lines().all(|l| l.chars().count() <= WIDTH));
        assert!(out.lines().skip(1).all(|l| l.starts_with("    word")));
    }
}
