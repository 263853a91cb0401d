//! The nets of a descriptor with attention, by name.

use super::descriptor::SeAtten;
use super::model::Dp;
use crate::model::electrons::type_inputs;
use crate::model::net::{LayerShape, NetShape};

/// What a model with attention has among its embedding nets: see [`SeAtten::nets`].
#[derive(Clone, Copy)]
pub struct AttentionNets<'a> {
    pub options: &'a SeAtten,
    layers: &'a [NetShape],
    /// Of distances, and of types too unless these have a net of their own.
    pub filter: &'a NetShape,
    /// Of types.
    pub strip: Option<&'a NetShape>,
    /// The embedding of types.
    pub types: &'a NetShape,
}

/// One layer of attention.
#[derive(Clone, Copy)]
pub struct AttentionLayer<'a> {
    /// To queries, keys and values, side by side.
    pub inward: &'a LayerShape,
    pub outward: &'a LayerShape,
    /// W is the scale of a normalised row, b its shift.
    pub norm: &'a LayerShape,
}

impl Dp {
    /// The nets of a descriptor with attention; panics where there is none.
    pub fn attention(&self) -> AttentionNets<'_> {
        let options = self.descriptor().attention().expect("a descriptor with attention");
        let (layers, nets) = self.embedding.split_at(3 * options.attn_layer);
        let [filter, .., types] = nets else { panic!("the nets of attention") };
        AttentionNets { options, layers, filter, strip: options.strip.then(|| &nets[1]), types }
    }

    /// `[n_types, n_in]` what the embedding of types is given.
    pub fn type_inputs(&self) -> Vec<f64> {
        type_inputs(&self.options.type_map, self.attention().options.use_econf_tebd)
    }
}

impl<'a> AttentionNets<'a> {
    pub fn layers(&self) -> impl ExactSizeIterator<Item = AttentionLayer<'a>> + use<'a> {
        let single = |net: &'a NetShape| &net.layers[0];
        self.layers.chunks_exact(3).map(move |nets| AttentionLayer {
            inward: single(&nets[0]),
            outward: single(&nets[1]),
            norm: single(&nets[2]),
        })
    }
}
