//! `se_atten_v2`: [`SeAtten`] with a net of their own for types, switched off towards the cutoff.

use super::se_atten::*;
use super::*;

/// The same options; how types enter is given.
#[derive(Debug, Clone, PartialEq)]
pub struct SeAttenV2(pub SeAtten);

pub const ENTRY: Entry = Entry::new(
    Variant::of(
        "se_atten_v2",
        KEYS,
        "se_atten with tebd_input_mode \"strip\" and smooth_type_embedding",
    ),
    Descriptor {
        resolve: |section, shared| {
            se_atten::resolve(section, shared, true, true).map(|own| DescriptorKind::SeAttenV2(SeAttenV2(own)))
        },
        form,
        in_files: "se_atten_v2",
        networks: "descriptor",
        statistics: "se_a",
        nets: Nets::Attention,
        write: |options| SeAttenV2::of(options).0.write(),
        read: |get, shared| {
            SeAtten::read(get, shared, true, true).map(|own| DescriptorKind::SeAttenV2(SeAttenV2(own)))
        },
    },
);

const KEYS: &[Key] = &[
    SEL_OF_ALL,
    RCUT,
    RCUT_SMTH,
    NEURON,
    AXIS_NEURON,
    LMAX,
    ACTIVATION_FUNCTION,
    RESNET_DT,
    TYPE_BOTH,
    PRECISION,
    TRAINABLE,
    SEED,
    EXCLUDE_TYPES,
    ENV_PROTECTION,
    ATTN,
    ATTN_LAYER,
    ATTN_DOTR,
    ATTN_MASK,
    SET_DAVG_ZERO,
    TRAINABLE_LN,
    LN_EPS,
    TEBD_DIM,
    USE_ECONF_TEBD,
    USE_TEBD_BIAS,
    SCALING_FACTOR,
    NORMALIZE,
    TEMPERATURE,
    CONCAT_OUTPUT_TEBD,
];
