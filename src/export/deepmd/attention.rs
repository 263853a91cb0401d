//! The nets of a descriptor with attention in the tree: `embeddings`, `embeddings_strip`, `attention_layers` and `type_embedding`. In a
//! model they are one list: [`SeAtten::nets`](crate::model::dp::descriptor::SeAtten::nets).

use super::read::{check_version, numbers, read_layer, read_nets};
use super::version;
use super::write::{collection, layers_tree, numbers as numbers_tree, precision_name};
use crate::error::Result;
use crate::export::tree::{Map, Node, Place, VARIABLES};
use crate::model::activation::Activation;
use crate::model::dp::descriptor::nets::{NetKind, NetPlan};
use crate::model::dp::options::DescriptorOptions;
use crate::model::dp::spec::{Layer, Net};
use crate::{bail, err};

/// The nets of a descriptor.
pub fn read(place: &Place, options: &DescriptorOptions, type_map: &[String]) -> Result<Vec<Net>> {
    let own = options.attention().expect("a descriptor with attention");
    let layers = place.get("attention_layers")?;
    let layers = layers.get("attention_layers")?;
    let items = layers.items()?;
    if items.len() != own.attn_layer {
        bail!("{layers}: found {} layers, wanted {}", items.len(), own.attn_layer);
    }
    let mut plans = options.nets("", type_map.len()).into_iter();
    let mut next = || plans.next().ok_or_else(|| err!("{place}: too few nets"));
    let mut nets = Vec::new();
    for item in &items {
        let attention = item.get("attention_layer")?;
        if attention.get("num_heads")?.usize()? != 1 {
            return Err(attention.get("num_heads")?.wanted("1"));
        }
        if attention.get("smooth")?.bool()? != own.smooth {
            return Err(attention.get("smooth")?.wanted(&own.smooth.to_string()));
        }
        for name in ["in_proj", "out_proj"] {
            let plan = next()?;
            let layer = read_layer(&attention.get(name)?, plan.n_in, plan.neuron[0])?;
            nets.push(Net { layers: vec![layer] });
        }
        nets.push(read_norm(&item.get("attn_layer_norm")?, &next()?, own.ln_eps)?);
    }
    let collections = ["embeddings", "embeddings_strip"];
    for name in &collections[..if own.strip { 2 } else { 1 }] {
        let plan = next()?;
        let widths = [&[plan.n_in], &plan.neuron[..]].concat();
        nets.extend(read_nets(&place.get(name)?, 0, type_map.len(), &widths, |_| false)?);
    }
    nets.push(read_types(&place.get("type_embedding")?, &next()?)?);
    Ok(nets)
}

fn read_norm(place: &Place, plan: &NetPlan, eps: f64) -> Result<Net> {
    let found = place.get("eps")?;
    if found.f64()? != eps {
        return Err(found.wanted(&format!("{eps}, as the descriptor says")));
    }
    let variables = place.get(VARIABLES)?;
    let n_out = plan.neuron[0];
    let wanted = |key: &str| match numbers(&variables, key, n_out)? {
        Some(values) => Ok(values),
        None => bail!("{variables}: \"{key}\" is missing"),
    };
    let (n_in, idt, resnet, activation) = (1, None, false, Activation::None);
    let layer = Layer { n_in, n_out, w: wanted("w")?, b: wanted("b")?, idt, resnet, activation };
    Ok(Net { layers: vec![layer] })
}

fn read_types(place: &Place, plan: &NetPlan) -> Result<Net> {
    check_version(place, version::TYPE_EMBEDDING)?;
    let layers = place.get("embedding")?.get("layers")?;
    let items = layers.items()?;
    let [layer] = &items[..] else { bail!("{layers}: found {} layers, wanted one", items.len()) };
    Ok(Net { layers: vec![read_layer(layer, plan.n_in, plan.neuron[0])?] })
}

/// Adds the nets of a descriptor to its tree.
pub fn write(tree: Map, options: &DescriptorOptions, type_map: &[String], nets: &[Net]) -> Map {
    let own = options.attention().expect("a descriptor with attention");
    let (n_types, precision) = (type_map.len(), options.precision);
    let plans = options.nets("", n_types);
    let (attention, others) = nets.split_at(3 * own.attn_layer);
    let layers = attention.chunks_exact(3).zip(plans.chunks_exact(3));
    let layers = layers.map(|(nets, plans)| Node::from(layer_tree(options, nets, plans))).collect();
    let mut chains = others.iter().zip(&plans[3 * own.attn_layer..]).map(|(net, plan)| {
        Map::new()
            .with("@class", "EmbeddingNetwork")
            .with("@version", version::EMBEDDING_NET)
            .with("in_dim", plan.n_in)
            .with("neuron", plan.neuron.clone())
            .with("activation_function", activation_name(plan))
            .with("resnet_dt", plan.resnet_dt)
            .with("bias", plan.bias)
            .with("precision", precision_name(precision))
            .with("layers", layers_tree(net, precision, |_| plan.trainable))
    });
    let mut chain = || chains.next().expect("one tree for each net");
    let attention = sizes(options)
        .with("@class", "NeighborGatedAttention")
        .with("@version", 1i64)
        .with("layer_num", own.attn_layer)
        .with("trainable_ln", own.trainable_ln)
        .with("ln_eps", own.ln_eps)
        .with("attention_layers", Node::List(layers));
    let mut tree = tree
        .with("ntypes", n_types)
        .with("attention_layers", attention)
        .with("embeddings", collection("embedding_network", 0, n_types, vec![chain()]));
    if own.strip {
        tree = tree.with("embeddings_strip", collection("embedding_network", 0, n_types, vec![chain()]));
    }
    let types = Map::new()
        .with("@class", "TypeEmbedNet")
        .with("@version", version::TYPE_EMBEDDING)
        .with("ntypes", n_types)
        .with("neuron", vec![own.tebd_dim])
        .with("resnet_dt", false)
        .with("precision", precision_name(precision))
        .with("activation_function", "Linear")
        .with("trainable", options.trainable)
        .with("padding", true)
        .with("use_econf_tebd", own.use_econf_tebd)
        .with("use_tebd_bias", own.use_tebd_bias)
        .with("type_map", type_map.to_vec())
        .with("embedding", chain());
    tree.with("type_embedding", types)
}

fn activation_name(plan: &NetPlan) -> String {
    match plan.activation {
        Activation::Linear => "Linear".to_string(),
        other => other.name(),
    }
}

/// What DeePMD-kit repeats at every level of the attention.
fn sizes(options: &DescriptorOptions) -> Map {
    let own = options.attention().expect("a descriptor with attention");
    Map::new()
        .with("nnei", options.fixed_sel().iter().sum::<usize>())
        .with("embed_dim", options.neuron.last().copied().unwrap_or(0))
        .with("hidden_dim", own.attn)
        .with("dotr", own.attn_dotr)
        .with("do_mask", false)
        .with("scaling_factor", own.scaling_factor)
        .with("normalize", own.normalize)
        .with("temperature", own.temperature)
        .with("precision", precision_name(options.precision))
}

/// One layer of attention: its three nets.
fn layer_tree(options: &DescriptorOptions, nets: &[Net], plans: &[NetPlan]) -> Map {
    let own = options.attention().expect("a descriptor with attention");
    let single = |k: usize| match layers_tree(&nets[k], options.precision, |_| plans[k].trainable) {
        Node::List(mut layers) => layers.remove(0),
        _ => unreachable!("layers are a list"),
    };
    debug_assert!(plans[2].kind == NetKind::Norm, "three nets: inward, outward, normalisation");
    let norm = &nets[2].layers[0];
    let row = |values: &[f64]| numbers_tree(options.precision, vec![norm.n_out], values);
    let norm = Map::new()
        .with("@class", "LayerNorm")
        .with("@version", 1i64)
        .with("eps", own.ln_eps)
        .with("trainable", own.trainable_ln)
        .with("precision", precision_name(options.precision))
        .with(VARIABLES, Map::new().with("w", row(&norm.w)).with("b", row(&norm.b)));
    let attention = sizes(options)
        .with("num_heads", 1usize)
        .with("bias", true)
        .with("smooth", own.smooth)
        .with("in_proj", single(0))
        .with("out_proj", single(1));
    sizes(options)
        .with("trainable_ln", own.trainable_ln)
        .with("ln_eps", own.ln_eps)
        .with("attention_layer", attention)
        .with("attn_layer_norm", norm)
}
