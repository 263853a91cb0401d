//! `dipole`: a vector of each atom, made from the directions of its neighbours. That of a frame is the sum.

use super::*;

/// The options of `dipole`: those of all.
#[derive(Debug, Clone, PartialEq)]
pub struct Dipole;

pub const ENTRY: Entry = Entry::new(
    Variant::of("dipole", KEYS, "The dipole of an atom, a vector that turns with its neighbours"),
    FittingNet {
        resolve: |section, options, n_types| {
            options.sel_type = sel_type(section, n_types)?;
            Ok(FittingKind::Dipole(Dipole))
        },
        output: |_| Output {
            name: "dipole".into(),
            width: 3,
            made: Made::Vector,
            is_intensive: false,
            applied: Applied::Nothing,
        },
        version: 4,
        // Derivatives by positions, which DeePMD-kit gives too.
        write: |_| vec![("r_differentiable", true.into()), ("c_differentiable", true.into())],
        section: |_| Vec::new(),
        read: |_| Ok(FittingKind::Dipole(Dipole)),
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
    SEL_TYPE.aliases(&["dipole_type"]),
    SEED,
];
