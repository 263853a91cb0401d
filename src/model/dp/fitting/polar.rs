//! `polar`: the polarizability of each atom, a symmetric tensor made from the directions of its neighbours. That of a frame is the sum.

use super::*;

/// The options of `polar` that no other fitting net has.
#[derive(Debug, Clone, PartialEq)]
pub struct Polar {
    /// The net gives a number for each row of directions, not one for each pair of rows.
    pub fit_diag: bool,
    /// What the numbers of the net are multiplied by, for each type.
    pub scale: Vec<f64>,
    /// The mean diagonal of the bias is added.
    pub shift_diag: bool,
}

pub const ENTRY: Entry = Entry::new(
    Variant::of("polar", KEYS, "The polarizability of an atom, a tensor that turns with its neighbours"),
    FittingNet {
        resolve,
        output: |options| {
            let own = Polar::of(options);
            Output {
                name: "polarizability".into(),
                width: 9,
                made: if own.fit_diag { Made::Diagonal } else { Made::Matrix },
                is_intensive: false,
                applied: if own.shift_diag { Applied::Diagonal } else { Applied::Nothing },
            }
        },
        version: 5,
        write: |options| {
            let own = Polar::of(options);
            vec![("fit_diag", own.fit_diag.into()), ("shift_diag", own.shift_diag.into())]
        },
        section: |options| {
            let own = Polar::of(options);
            vec![
                ("fit_diag", own.fit_diag.into()),
                ("scale", own.scale.clone().into()),
                ("shift_diag", own.shift_diag.into()),
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
    Key::new("fit_diag", Kind::Bool).default("true").doc(
        "Whether the net gives the diagonal of the tensor in the frame of the neighbours' directions alone; if not, all of it.",
    ),
    Key::new("scale", Kind::OneOf(&[Kind::List(&Kind::NUMBER), Kind::NUMBER]))
        .default("1.0")
        .doc("What the numbers of the net are multiplied by: one for all types, or a list with one for each."),
    Key::new("shift_diag", Kind::Bool)
        .default("true")
        .doc("Whether the mean diagonal of a type, from the statistics of the labels, is added to the diagonal."),
    SEL_TYPE.aliases(&["pol_type"]),
    SEED,
];

fn resolve(section: &Section, options: &mut FittingOptions, n_types: usize) -> Result<FittingKind> {
    options.sel_type = sel_type(section, n_types)?;
    let scale: Vec<f64> = match section.optional_list("scale") {
        Some(list) => list.iter().filter_map(Value::as_f64).collect(),
        None => vec![section.float("scale"); n_types],
    };
    if scale.len() != n_types {
        let error = err!("{} for the {} of type_map", count(scale.len(), "number"), count(n_types, "type"));
        return Err(section.error("scale", error).help("write one number for all types, or one for each"));
    }
    let (fit_diag, shift_diag) = (section.bool("fit_diag"), section.bool("shift_diag"));
    Ok(FittingKind::Polar(Polar { fit_diag, scale, shift_diag }))
}

fn read(get: Get) -> Result<FittingKind> {
    let flag = |key: &str| Ok(get(key)?.as_bool().unwrap_or(true));
    // An array among the variables of the net.
    let scale = get("scale")?;
    let Some(scale) = scale.as_array().and_then(|list| list.iter().map(Value::as_f64).collect::<Option<Vec<f64>>>())
    else {
        return Err(err!("scale: found {scale}, wanted a number for each type"));
    };
    Ok(FittingKind::Polar(Polar { fit_diag: flag("fit_diag")?, scale, shift_diag: flag("shift_diag")? }))
}
