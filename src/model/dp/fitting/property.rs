//! `property`: numbers that belong to a frame, by the name of their file: a sum over atoms, or a mean.

use super::*;

/// The options of `property` that no other fitting net has.
#[derive(Debug, Clone, PartialEq)]
pub struct Property {
    /// The name of the label's file.
    pub name: String,
    pub task_dim: usize,
    /// The property of a frame is the mean over its atoms, not the sum.
    pub is_intensive: bool,
    /// Each type has a mean and a deviation of its own.
    pub distinguish_types: bool,
}

pub const ENTRY: Entry = Entry::new(
    Variant::of("property", KEYS, "Numbers of a frame, by the name of their file: a sum over atoms, or a mean"),
    FittingNet {
        resolve,
        output: |options| {
            let own = Property::of(options);
            Output {
                name: own.name.clone(),
                width: own.task_dim,
                made: Made::Itself,
                is_intensive: own.is_intensive,
                applied: if own.distinguish_types { Applied::Normalised } else { Applied::NormalisedAlike },
            }
        },
        version: 6,
        write: |options| {
            let own = Property::of(options);
            vec![
                ("dim_out", own.task_dim.into()),
                ("atom_ener", Value::Null),
                ("task_dim", own.task_dim.into()),
                ("intensive", own.is_intensive.into()),
                ("distinguish_types", own.distinguish_types.into()),
            ]
        },
        section: |options| {
            let own = Property::of(options);
            vec![
                ("property_name", own.name.clone().into()),
                ("task_dim", own.task_dim.into()),
                ("intensive", own.is_intensive.into()),
                ("distinguish_types", own.distinguish_types.into()),
            ]
        },
        read,
    },
);

const KEYS: &[Key] = &[
    NUMB_FPARAM,
    NUMB_APARAM,
    DEFAULT_FPARAM,
    DIM_CASE_EMBD,
    NEURON.aliases(&["n_neuron"]),
    ACTIVATION_FUNCTION,
    RESNET_DT,
    PRECISION,
    SEED,
    Key::new("task_dim", WIDTH).default("1").doc("Numbers of a frame."),
    Key::new("intensive", Kind::Bool)
        .default("false")
        .doc("Whether the property of a frame is the mean over its atoms; if not, it is the sum."),
    Key::new("distinguish_types", Kind::Bool)
        .default("true")
        .doc("Whether each type has a mean and a deviation of its own in the statistics."),
    Key::new("property_name", Kind::Text).doc("The name of the property: its labels are in NAME.npy."),
    TRAINABLE,
];

/// Names of files that mean something else.
const TAKEN: &[&str] = &["coord", "box", "fparam", "aparam", "real_atom_types"];

fn resolve(section: &Section, _options: &mut FittingOptions, _n_types: usize) -> Result<FittingKind> {
    let name = section.text("property_name").to_string();
    let plain = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.');
    if name.is_empty() || !name.chars().all(plain) || name.starts_with('.') || TAKEN.contains(&name.as_str()) {
        let error = err!("\"{name}\" cannot be the name of a label");
        return Err(section.error("property_name", error).help("labels are in NAME.npy of each set"));
    }
    Ok(FittingKind::Property(Property {
        name,
        task_dim: section.int("task_dim"),
        is_intensive: section.bool("intensive"),
        distinguish_types: section.bool("distinguish_types"),
    }))
}

fn read(get: Get) -> Result<FittingKind> {
    let flag = |key: &str| Ok(get(key)?.as_bool().unwrap_or(false));
    let name = get("var_name")?;
    let Some(name) = name.as_str().filter(|name| !name.is_empty()) else {
        return Err(err!("var_name: found {name}, wanted the name of a property"));
    };
    Ok(FittingKind::Property(Property {
        name: name.to_string(),
        task_dim: read_width(get, "task_dim")?,
        is_intensive: flag("intensive")?,
        // Files of older versions have no such key.
        distinguish_types: flag("distinguish_types")?,
    }))
}
