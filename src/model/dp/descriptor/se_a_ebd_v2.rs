//! `se_a_ebd_v2`: `se_e2_a` with embedded types (`model.type_embedding`) that enter by a net of their own: `G = g(s) + g(s) n(t)`.
//!
//! As in DeePMD-kit's TensorFlow, but for slots that are empty: these have the type of the slot here, and none there. They count
//! where the mean of the environment is not zero (`set_davg_zero`).

use super::*;

/// The same options as [`SeE2A`].
#[derive(Debug, Clone, PartialEq)]
pub struct SeAEbdV2(pub SeE2A);

pub const ENTRY: Entry = Entry::new(
    Variant::of(
        "se_a_ebd_v2",
        se_e2_a::KEYS,
        "se_e2_a with embedded types that scale the output of the embedding net",
    )
    .aliases(&["se_a_tpe_v2"]),
    Descriptor {
        resolve: |section, shared| {
            se_e2_a::own(section, shared).map(|own| DescriptorKind::SeAEbdV2(SeAEbdV2(own)))
        },
        form: |options| Form::Directions { axis: SeAEbdV2::of(options).0.axis_neuron },
        in_files: "se_a_ebd_v2",
        networks: "descriptor.sea",
        statistics: "se_a",
        nets: Nets::ByKey,
        write: |options| vec![("axis_neuron", SeAEbdV2::of(options).0.axis_neuron.into())],
        // Its plain model is written.
        read: |_, _| Err(err!("a descriptor se_a_ebd_v2 is not read from a file")),
    },
);
