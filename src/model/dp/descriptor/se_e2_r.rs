//! `se_e2_r`: distances of the neighbours alone, by an embedding net.
//!
//! As in DeePMD-kit, the slot of an excluded neighbour has the argument 0, an empty one -davg / dstd. Where davg is not zero
//! (`set_davg_zero`), the energy jumps when an excluded neighbour crosses the cutoff.

use super::*;

/// `se_e2_r` has no options of its own.
#[derive(Debug, Clone, PartialEq)]
pub struct SeE2R;

/// DeePMD-kit multiplies the mean over the slots by this.
const SCALE: f64 = 1.0 / 5.0;

pub const ENTRY: Entry = Entry::new(
    Variant::of("se_e2_r", KEYS, "Distances of the neighbours alone, by an embedding net")
        .aliases(&["se_r"]),
    Descriptor {
        resolve: |_, _| Ok(DescriptorKind::SeE2R(SeE2R)),
        form: |_| Form::Distances { scale: SCALE },
        in_files: "se_e2_r",
        networks: "descriptor",
        statistics: "se_r",
        nets: Nets::ByNeighbor,
        write: |_| Vec::new(),
        read: |_, _| Ok(DescriptorKind::SeE2R(SeE2R)),
    },
);

const KEYS: &[Key] = &[
    SEL,
    RCUT,
    RCUT_SMTH,
    NEURON,
    ACTIVATION_FUNCTION,
    RESNET_DT,
    Key::new("type_one_side", Kind::Bool).default("false").doc(
        "Taken and not used, as by DeePMD-kit's PyTorch: embedding nets of se_e2_r differ by the type of the neighbour only.",
    ),
    PRECISION,
    TRAINABLE,
    SEED,
    EXCLUDE_TYPES,
    SET_DAVG_ZERO,
    ENV_PROTECTION,
    EMBEDDING,
];
