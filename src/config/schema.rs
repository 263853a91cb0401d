//! A table of keys for programs: JSON Schema, for editors that complete and check an input, and DeePMD-kit's own form.

use super::table::{Default, Key, Kind, Range, Status, TAG, Table, Variant};
use serde_json::{Map, Value, json};

/// The schema of an input (draft 2020-12). Keys that start with an underscore are comments, as everywhere.
pub fn json_schema(title: &str, root: &'static Table) -> Value {
    let mut schema = object(root);
    schema["$schema"] = json!("https://json-schema.org/draft/2020-12/schema");
    schema["title"] = json!(title);
    schema
}

/// An object; each variant of its `type` adds its own keys.
fn object(table: &'static Table) -> Value {
    let Some(variants) = table.variants else { return keys(&[table.keys], None) };
    let supported: Vec<&Variant> = variants.list.iter().filter(|variant| variant.supported).collect();
    let names: Vec<&str> =
        supported.iter().flat_map(|v| std::iter::once(v.name).chain(v.aliases.iter().copied())).collect();
    let mut tag = json!({ "enum": names, "description": format!("Which {}.", variants.what) });
    if !variants.default.is_empty() {
        tag["default"] = json!(variants.default);
    }
    let each: Vec<Value> = supported
        .iter()
        .map(|variant| {
            let own: Vec<&str> =
                std::iter::once(variant.name).chain(variant.aliases.iter().copied()).collect();
            let mut branch = keys(&[table.keys, variant.keys], Some(json!({ "enum": own })));
            if variant.name != variants.default {
                require(&mut branch, TAG);
            }
            branch["title"] = json!(variant.name);
            branch["description"] = json!(variant.doc);
            branch
        })
        .collect();
    // The type alone comes first: editors complete it before they know which variant is meant.
    json!({ "type": "object", "properties": { TAG: tag }, "anyOf": each })
}

fn require(schema: &mut Value, name: &str) {
    if let Some(required) = schema["required"].as_array_mut() {
        required.push(json!(name));
    }
}

/// The keys of an object under all their names. A key that must be there may go by any of them.
fn keys(lists: &[&'static [Key]], tag: Option<Value>) -> Value {
    let mut properties = Map::new();
    let (mut required, mut one_of_names): (Vec<Value>, Vec<Value>) = (Vec::new(), Vec::new());
    if let Some(tag) = tag {
        properties.insert(TAG.into(), tag);
    }
    for key in lists.iter().flat_map(|list| list.iter()) {
        let names = || std::iter::once(key.name).chain(key.aliases.iter().copied());
        // What is not supported may stand there with its default, and need not be offered.
        let schema =
            if matches!(key.status, Status::NotYet(_)) { json!({ "deprecated": true }) } else { value(key) };
        properties.extend(names().map(|name| (name.to_owned(), schema.clone())));
        match (matches!(key.default, Default::Required), key.aliases.is_empty()) {
            (true, true) => required.push(json!(key.name)),
            (true, false) => {
                one_of_names.push(
                    json!({ "anyOf": names().map(|n| json!({ "required": [n] })).collect::<Vec<_>>() }),
                );
            }
            _ => {}
        }
    }
    let mut schema = json!({
        "type": "object",
        "properties": properties,
        "required": required,
        "patternProperties": { "^_": {} },
        "additionalProperties": false,
    });
    if !one_of_names.is_empty() {
        schema["allOf"] = json!(one_of_names);
    }
    schema
}

fn value(key: &Key) -> Value {
    let mut schema = kind(&key.kind);
    let unit = if key.unit.is_empty() { String::new() } else { format!(" In {}.", key.unit) };
    schema["description"] = json!(format!("{}{unit}", key.doc));
    if let Some(default) = key.default_value() {
        schema["default"] = default;
    }
    schema
}

fn kind(kind: &Kind) -> Value {
    match kind {
        Kind::Null => json!({ "type": "null" }),
        Kind::Bool => json!({ "type": "boolean" }),
        Kind::Int(min, max) => {
            let mut schema = json!({ "type": "integer" });
            // Only ends that a user could mean: the largest number of a machine is none.
            if let Ok(min) = i64::try_from(*min)
                && min > i64::MIN
            {
                schema["minimum"] = json!(min);
            }
            if let Ok(max) = i64::try_from(*max)
                && max < i64::MAX
            {
                schema["maximum"] = json!(max);
            }
            schema
        }
        Kind::Float(range) => float(range),
        Kind::Text | Kind::Pattern(_) => json!({ "type": "string" }),
        Kind::Choice(choice) => json!({ "enum": choice.known }),
        Kind::List(item) => json!({ "type": "array", "items": self::kind(item) }),
        Kind::Object(table) => object(table),
        Kind::OneOf(kinds) => json!({ "anyOf": kinds.iter().map(self::kind).collect::<Vec<_>>() }),
        Kind::Any => json!({}),
    }
}

fn float(range: &Range) -> Value {
    let mut schema = json!({ "type": "number" });
    if range.min.is_finite() {
        schema[if range.min_allowed { "minimum" } else { "exclusiveMinimum" }] = json!(range.min);
    }
    if range.max.is_finite() {
        schema[if range.max_allowed { "maximum" } else { "exclusiveMaximum" }] = json!(range.max);
    }
    schema
}

/// The list of keys in the form that `dp doc-train-input --out-type json` of DeePMD-kit has.
pub fn arguments(root: &'static Table) -> Value {
    Value::Array(root.keys.iter().filter(is_shown).map(argument).collect())
}

fn is_shown(key: &&Key) -> bool {
    !matches!(key.status, Status::NotYet(_))
}

fn argument(key: &Key) -> Value {
    let tables: Vec<&'static Table> = tables(&key.kind);
    let mut out =
        node(key.name, types(&key.kind), key.aliases, key.doc, !matches!(key.default, Default::Required));
    for table in tables {
        out["sub_fields"] = fields(table.keys);
        if let Some(variants) = table.variants {
            let supported: Vec<&Variant> = variants.list.iter().filter(|v| v.supported).collect();
            let choice = |v: &&Variant| {
                let mut choice = node(v.name, vec!["dict"], v.aliases, v.doc, false);
                choice["sub_fields"] = fields(v.keys);
                (v.name.to_owned(), choice)
            };
            let choices: Map<String, Value> = supported.iter().map(choice).collect();
            let aliases: Map<String, Value> = supported
                .iter()
                .flat_map(|v| v.aliases.iter().map(|a| (a.to_string(), json!(v.name))))
                .collect();
            out["sub_variants"] = json!({ TAG: {
                "object": "Variant",
                "flag_name": TAG,
                "optional": !variants.default.is_empty(),
                "default_tag": variants.default,
                "choice_dict": choices,
                "choice_alias": aliases,
                "doc": format!("Which {}.", variants.what),
            } });
        }
    }
    if let Some(default) = key.default_value() {
        out["default"] = default;
    }
    out
}

fn fields(keys: &'static [Key]) -> Value {
    Value::Object(keys.iter().filter(is_shown).map(|key| (key.name.to_owned(), argument(key))).collect())
}

fn node(name: &str, types: Vec<&str>, aliases: &[&str], doc: &str, optional: bool) -> Value {
    json!({
        "object": "Argument",
        "name": name,
        "type": types,
        "optional": optional,
        "alias": aliases,
        "doc": doc,
        "repeat": false,
        "sub_fields": {},
        "sub_variants": {},
    })
}

/// The object that a kind may be.
fn tables(kind: &Kind) -> Vec<&'static Table> {
    match kind {
        Kind::Object(table) => vec![table],
        Kind::OneOf(kinds) => kinds.iter().flat_map(tables).take(1).collect(),
        _ => Vec::new(),
    }
}

/// Python's names of types.
fn types(kind: &Kind) -> Vec<&'static str> {
    match kind {
        Kind::Null => vec!["NoneType"],
        Kind::Bool => vec!["bool"],
        Kind::Int(..) => vec!["int"],
        Kind::Float(_) => vec!["float"],
        Kind::Text | Kind::Pattern(_) | Kind::Choice(_) => vec!["str"],
        Kind::List(_) => vec!["list"],
        Kind::Object(_) => vec!["dict"],
        Kind::OneOf(kinds) => {
            let mut names: Vec<&str> = kinds.iter().flat_map(types).collect();
            names.dedup();
            names
        }
        Kind::Any => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::table::Variants;

    static SHAPE: Table = Table {
        keys: &[Key::new("width", Kind::POSITIVE).unit("A").default("2.5").doc("How wide.")],
        variants: Some(Variants {
            what: "shape",
            default: "round",
            list: &[
                Variant::of("round", &[Key::new("r", Kind::NUMBER).aliases(&["radius"])], "A ball."),
                Variant::of("square", &[Key::new("n", Kind::AT_LEAST_ONE).optional()], "A box."),
                Variant::not_yet("knot"),
            ],
        }),
    };

    static ROOT: Table = Table::of(&[Key::new("shape", Kind::Object(&SHAPE)).doc("The shape.")]);

    #[test]
    fn a_variant_has_its_keys_and_those_of_all() {
        let schema = json_schema("Title", &ROOT);
        let shape = &schema["properties"]["shape"];
        assert_eq!(schema["required"], json!(["shape"]));
        assert_eq!(shape["properties"]["type"]["enum"], json!(["round", "square"]));
        let (round, square) = (&shape["anyOf"][0], &shape["anyOf"][1]);
        assert_eq!(round["properties"]["width"]["exclusiveMinimum"], 0.0);
        assert_eq!(round["properties"]["radius"], round["properties"]["r"]);
        assert_eq!(round["allOf"], json!([{ "anyOf": [{ "required": ["r"] }, { "required": ["radius"] }] }]));
        // The default variant need not be named.
        assert_eq!((&round["required"], &square["required"]), (&json!([]), &json!(["type"])));
        assert_eq!(square["properties"]["n"]["minimum"], 1);
    }

    #[test]
    fn the_other_form_names_types_as_python_does() {
        let list = arguments(&ROOT);
        let shape = &list[0];
        assert_eq!((&shape["name"], &shape["optional"]), (&json!("shape"), &json!(false)));
        assert_eq!(shape["sub_fields"]["width"]["type"], json!(["float"]));
        let variant = &shape["sub_variants"]["type"];
        assert_eq!(variant["default_tag"], "round");
        assert_eq!(variant["choice_dict"]["round"]["sub_fields"]["r"]["alias"], json!(["radius"]));
        assert!(variant["choice_dict"].get("knot").is_none());
    }
}
