//! `se_e2_a`: distances and directions of the neighbours, by an embedding net.

use super::*;
use crate::bail;

/// The options of `se_e2_a` that no other descriptor has.
#[derive(Debug, Clone, PartialEq)]
pub struct SeE2A {
    /// Columns of the embedding that the descriptor is projected on.
    pub axis_neuron: usize,
    /// The last layer, which has the width of the one before, is linear and has a shortcut: what `se_a_ebd_v2` comes to where types
    /// are known. Model files say so of the layer.
    pub linear_end: bool,
}

pub const ENTRY: Entry = Entry::new(
    Variant::of("se_e2_a", KEYS, "Distances and directions of the neighbours, by an embedding net")
        .aliases(&["se_a"]),
    Descriptor {
        resolve,
        form: |options| Form::Directions { axis: SeE2A::of(options).axis_neuron },
        in_files: "se_e2_a",
        networks: "descriptor.sea",
        statistics: "se_a",
        nets: Nets::ByKey,
        write: |options| vec![("axis_neuron", SeE2A::of(options).axis_neuron.into())],
        read,
    },
);

pub const KEYS: &[Key] = &[
    SEL,
    RCUT,
    RCUT_SMTH,
    NEURON,
    AXIS_NEURON,
    ACTIVATION_FUNCTION,
    RESNET_DT,
    TYPE_ONE_SIDE,
    PRECISION,
    TRAINABLE,
    SEED,
    EXCLUDE_TYPES,
    ENV_PROTECTION,
    SET_DAVG_ZERO,
    EMBEDDING,
];

fn resolve(section: &Section, shared: &Shared) -> Result<DescriptorKind> {
    own(section, shared).map(DescriptorKind::SeE2A)
}

/// The options of a checked section.
pub fn own(section: &Section, shared: &Shared) -> Result<SeE2A> {
    let axis_neuron: usize = section.int("axis_neuron");
    let last = shared.neuron[shared.neuron.len() - 1];
    if axis_neuron > last {
        let error = err!("{axis_neuron} is more than the last width {last} of neuron");
        return Err(section.error("axis_neuron", error).help("it selects columns of the last layer"));
    }
    Ok(SeE2A { axis_neuron, linear_end: false })
}

fn read(get: Get, shared: &Shared) -> Result<DescriptorKind> {
    let (found, last) = (get("axis_neuron")?, shared.neuron.last().copied().unwrap_or(0));
    match found.as_u64() {
        Some(n) if n > 0 && n <= last as u64 => {
            Ok(DescriptorKind::SeE2A(SeE2A { axis_neuron: n as usize, linear_end: false }))
        }
        _ => bail!("axis_neuron: found {found}, wanted 1 to {last}"),
    }
}
