//! `dos`: the density of states of an atom on a grid of energies. That of a frame is the sum.

use super::*;

/// The options of `dos` that no other fitting net has.
#[derive(Debug, Clone, PartialEq)]
pub struct Dos {
    /// Points of the grid.
    pub numb_dos: usize,
}

pub const ENTRY: Entry = Entry::new(
    Variant::of("dos", KEYS, "The density of states of an atom on a grid"),
    FittingNet {
        resolve,
        output: |options| {
            let width = Dos::of(options).numb_dos;
            Output { name: "dos".into(), width, made: Made::Itself, is_intensive: false, applied: Applied::Bias }
        },
        version: 4,
        write: |options| vec![("dim_out", Dos::of(options).numb_dos.into()), ("atom_ener", Value::Null)],
        section: |options| {
            vec![("rcond", options.rcond.into()), ("numb_dos", Dos::of(options).numb_dos.into())]
        },
        read: |get| Ok(FittingKind::Dos(Dos { numb_dos: read_width(get, "dim_out")? })),
    },
);

const KEYS: &[Key] = &[
    NUMB_FPARAM,
    NUMB_APARAM,
    DEFAULT_FPARAM,
    DIM_CASE_EMBD,
    NEURON,
    ACTIVATION_FUNCTION,
    PRECISION.default("\"float64\""),
    RESNET_DT,
    TRAINABLE,
    RCOND,
    SEED,
    Key::new("numb_dos", WIDTH).default("300").doc("Points of the grid, which dos.npy has too."),
];

fn resolve(section: &Section, options: &mut FittingOptions, _n_types: usize) -> Result<FittingKind> {
    options.rcond = section.optional_float("rcond");
    Ok(FittingKind::Dos(Dos { numb_dos: section.int("numb_dos") }))
}
