//! `se_e3`: directions of the neighbours two by two, by an embedding net for each pair of their types.

use super::*;

/// `se_e3` has no options of its own.
#[derive(Debug, Clone, PartialEq)]
pub struct SeE3;

pub const ENTRY: Entry = Entry::new(
    Variant::of("se_e3", KEYS, "Directions of the neighbours two by two, by an embedding net")
        .aliases(&["se_at", "se_a_3be", "se_t"]),
    Descriptor {
        resolve,
        form: |_| Form::Angles,
        in_files: "se_e3",
        networks: "descriptor.seat",
        statistics: "se_a",
        nets: Nets::ByNeighbors,
        write: |_| Vec::new(),
        read: |_, _| Ok(DescriptorKind::SeE3(SeE3)),
    },
);

const KEYS: &[Key] = &[
    SEL,
    RCUT,
    RCUT_SMTH,
    NEURON,
    ACTIVATION_FUNCTION,
    RESNET_DT,
    PRECISION,
    TRAINABLE,
    SEED,
    SET_DAVG_ZERO,
    EXCLUDE_TYPES,
    ENV_PROTECTION,
];

/// The mean over the slots of a type divides by their number.
fn resolve(section: &Section, _: &Shared) -> Result<DescriptorKind> {
    if let Some(sel) = section.optional_list("sel")
        && let Some(t) = sel.iter().position(|n| n.as_u64() == Some(0))
    {
        return Err(section
            .error("sel", err!("there is no slot for type {t}, and se_e3 divides by the number of them"))
            .help("at least one slot for each type, also for one that never occurs"));
    }
    Ok(DescriptorKind::SeE3(SeE3))
}
