//! From a model to the tree.

use super::{TRAINED_TYPES, attention, short_range, version};
use crate::export::tree::{Array, ArrayData, Map, Node, VARIABLES};
use crate::model::dp::descriptor::Nets;
use crate::model::dp::options::{DescriptorOptions, FittingKind, FittingOptions, ModelOptions, Precision};
use crate::model::dp::spec::{DpModel, Layer, Net, TrainedTypes};
use crate::model::dp::table::EmbeddingTable;
use serde_json::json;

/// The tree of a model. Equal models give equal trees; [`stamp`] adds the time.
pub fn to_tree(model: &DpModel) -> Node {
    let mut variables = Map::new();
    if let Some(distance) = model.min_nbor_dist {
        variables
            .push("min_nbor_dist".to_string(), Array::new(vec![], ArrayData::F64(vec![distance])).into());
    }
    let tree = Map::new()
        .with("software", "phalanx")
        .with("version", env!("CARGO_PKG_VERSION"))
        .with("backend", "phalanx")
        .with("model", model_tree(model))
        .with("model_def_script", Node::from_json(&script(&model.options)))
        .with(VARIABLES, variables);
    match &model.embedded {
        Some(trained) => tree.with(TRAINED_TYPES, trained_types_tree(trained)),
        None => tree,
    }
    .into()
}

/// What training goes on with where types are embedded. DeePMD-kit does not look at it.
fn trained_types_tree(trained: &TrainedTypes) -> Map {
    let params = numbers(Precision::Float64, vec![trained.params.len()], &trained.params);
    Map::new()
        .with("model_def_script", Node::from_json(&script(&trained.options)))
        .with(VARIABLES, Map::new().with("params", params))
}

/// Notes when the model was written.
pub fn stamp(tree: &mut Node, time: jiff::Timestamp) {
    let Node::Map(map) = tree else { panic!("a model tree is a map") };
    map.push("time".to_string(), time.strftime("%Y-%m-%d %H:%M:%S%.6f+00:00").to_string().into());
}

fn model_tree(model: &DpModel) -> Map {
    match &model.options.short_range {
        None => standard_tree(model, base_tree(model, &model.stats.bias, true)),
        Some(options) => {
            let nothing = vec![0.0; model.n_types()];
            let (of_both, of_net) = match options.add_bias {
                true => (&model.stats.bias, &nothing),
                false => (&nothing, &model.stats.bias),
            };
            let net = standard_tree(model, base_tree(model, of_net, false));
            short_range::write(base_tree(model, of_both, true), net, model, options)
        }
    }
}

/// What every model has. Exclusions are those of the whole.
fn base_tree(model: &DpModel, bias: &[f64], is_whole: bool) -> Map {
    let (options, width) = (&model.options, model.options.fitting.output().width);
    let per_type = |values: &[f64]| numbers(Precision::Float64, vec![1, model.n_types(), width], values);
    let variables =
        Map::new().with("out_bias", per_type(bias)).with("out_std", per_type(&model.stats.out_std));
    let whole = |node: Node| if is_whole { node } else { Node::List(Vec::new()) };
    Map::new()
        .with("type_map", options.type_map.clone())
        .with("atom_exclude_types", whole(options.atom_exclude_types.clone().into()))
        .with("pair_exclude_types", whole(pairs_tree(&options.pair_exclude_types)))
        .with("rcond", options.fitting.rcond)
        .with("preset_out_bias", preset_tree(&options.fitting.output().name, &options.preset_out_bias))
        .with(VARIABLES, variables)
}

/// A descriptor and a fitting net.
fn standard_tree(model: &DpModel, base: Map) -> Map {
    base.with("@class", "Model")
        .with("@version", version::MODEL)
        .with("type", "standard")
        .with("descriptor", descriptors_tree(model))
        .with("fitting", fitting_tree(model))
}

fn pairs_tree(pairs: &[(usize, usize)]) -> Node {
    Node::List(pairs.iter().map(|&(a, b)| Node::from(vec![a, b])).collect())
}

/// Lists of numbers for each type: arrays have their place among the variables.
fn preset_tree(name: &str, preset: &[Option<Vec<f64>>]) -> Node {
    if preset.is_empty() {
        return Node::Null;
    }
    Map::new().with(name, Node::List(preset.iter().map(|x| x.clone().into()).collect())).into()
}

/// What a model has for one of its descriptors.
struct Part<'a> {
    model: &'a DpModel,
    options: &'a DescriptorOptions,
    davg: &'a [[f64; 4]],
    dstd: &'a [[f64; 4]],
    nets: &'a [Net],
    tables: Option<&'a [EmbeddingTable]>,
}

fn parts_of(model: &DpModel) -> Vec<Part<'_>> {
    let n_types = model.n_types();
    let (mut first_net, mut parts) = (0, Vec::new());
    for (k, options) in model.options.descriptors.list.iter().enumerate() {
        let (types, nets) = (k * n_types..(k + 1) * n_types, first_net..first_net + options.n_nets(n_types));
        parts.push(Part {
            model,
            options,
            davg: &model.stats.davg[types.clone()],
            dstd: &model.stats.dstd[types],
            nets: &model.descriptor_nets[nets.clone()],
            tables: model.tables.as_ref().map(|tables| &tables[nets.clone()]),
        });
        first_net = nets.end;
    }
    assert_eq!(first_net, model.descriptor_nets.len(), "one embedding net for each type or pair");
    parts
}

fn descriptors_tree(model: &DpModel) -> Map {
    let mut trees: Vec<Map> = parts_of(model).iter().map(descriptor_tree).collect();
    if !model.options.descriptors.is_hybrid {
        return trees.remove(0);
    }
    Map::new()
        .with("@class", "Descriptor")
        .with("type", "hybrid")
        .with("@version", version::HYBRID)
        .with("list", trees)
}

fn descriptor_tree(part: &Part) -> Map {
    let Part { model, options, .. } = *part;
    let slots: usize = options.fixed_sel().iter().sum();
    let n = options.form().row();
    let shape = vec![model.n_types(), slots, n];
    let over_slots = |rows: &[[f64; 4]]| -> Vec<f64> {
        rows.iter().flat_map(|row| row[..n].iter().copied().cycle().take(n * slots)).collect()
    };
    let env_mat = Map::new()
        .with("rcut", options.rcut)
        .with("rcut_smth", options.rcut_smth)
        .with("protection", options.env_protection)
        .with("use_exp_switch", false);
    let variables = Map::new()
        .with("davg", numbers(options.precision, shape.clone(), &over_slots(part.davg)))
        .with("dstd", numbers(options.precision, shape, &over_slots(part.dstd)));
    let about = options.kind.about();
    let mut tree = Map::new()
        .with("@class", "Descriptor")
        .with("type", about.in_files)
        .with(
            "@version",
            if part.tables.is_some() { version::DESCRIPTOR_NEWEST } else { version::DESCRIPTOR },
        )
        .with("rcut", options.rcut)
        .with("rcut_smth", options.rcut_smth)
        .with("sel", options.fixed_sel().to_vec())
        .with("neuron", options.neuron.clone());
    for (key, value) in (about.write)(options) {
        tree = tree.with(key, Node::from_json(&value));
    }
    if let Some(tables) = part.tables {
        tree = tree.with("compress", Map::new().with(VARIABLES, tables_tree(tables, options.precision)));
    }
    if about.nets != Nets::ByNeighbors {
        tree = tree.with("type_one_side", options.type_one_side);
    }
    tree = match options.attention() {
        Some(_) => attention::write(tree, options, &model.options.type_map, part.nets),
        None => tree.with("embeddings", embeddings_tree(part)),
    };
    tree.with("resnet_dt", options.resnet_dt)
        .with("set_davg_zero", options.set_davg_zero)
        .with("activation_function", options.activation.name())
        .with("precision", precision_name(options.precision))
        .with("env_mat", env_mat)
        .with("exclude_types", pairs_tree(&options.exclude_types))
        .with("env_protection", options.env_protection)
        .with(VARIABLES, variables)
        .with("type_map", model.options.type_map.clone())
        .with("trainable", options.trainable)
        .with("spin", Node::Null)
}

/// The tables of a compressed model and their ranges.
fn tables_tree(tables: &[EmbeddingTable], precision: Precision) -> Map {
    let data = tables.iter().map(|table| {
        let coefficients = table.coefficients();
        let shape = match table.n_rows() {
            0 => vec![0],
            rows => vec![rows, coefficients.len() / rows],
        };
        numbers(precision, shape, coefficients)
    });
    let info = tables.iter().map(|table| numbers(precision, vec![table.info().len()], &table.info()));
    Map::new()
        .with("compress_data", Node::List(data.collect()))
        .with("compress_info", Node::List(info.collect()))
}

fn embeddings_tree(part: &Part) -> Map {
    let Part { model, options, nets, .. } = *part;
    let net = |net: &Net| {
        Map::new()
            .with("@class", "EmbeddingNetwork")
            .with("@version", version::EMBEDDING_NET)
            .with("in_dim", 1usize)
            .with("neuron", options.neuron.clone())
            .with("activation_function", options.activation.name())
            .with("resnet_dt", options.resnet_dt)
            .with("bias", true)
            .with("precision", precision_name(options.precision))
            .with("layers", layers_tree(net, options.precision, |_| options.trainable))
    };
    let ndim = if options.type_one_side { 1usize } else { 2 };
    collection("embedding_network", ndim, model.n_types(), nets.iter().map(net).collect())
}

fn fitting_tree(model: &DpModel) -> Map {
    let options = &model.options.fitting;
    let stats = &model.stats;
    let parameters = |values: &[f64]| match values.len() {
        0 => Node::Null,
        n => numbers(options.precision, vec![n], values),
    };
    let (n_types, output) = (model.n_types(), options.output());
    let (name, about) = (options.type_name(), options.kind.about());
    let net_width = output.net_width(&model.options.descriptors);
    let no_bias = vec![0.0; n_types * net_width];
    let mut variables = Map::new()
        .with("bias_atom_e", numbers(Precision::Float64, vec![n_types, net_width], &no_bias))
        .with("case_embd", Node::Null)
        .with("fparam_avg", parameters(&stats.fparam_avg))
        .with("fparam_inv_std", parameters(&stats.fparam_inv_std))
        .with("aparam_avg", parameters(&stats.aparam_avg))
        .with("aparam_inv_std", parameters(&stats.aparam_inv_std));
    if let FittingKind::Polar(own) = &options.kind {
        variables = variables
            .with("scale", numbers(Precision::Float64, vec![n_types, 1], &own.scale))
            .with("constant_matrix", numbers(Precision::Float64, vec![n_types], &vec![0.0; n_types]));
    }
    let mut tree = Map::new()
        .with("@class", "Fitting")
        .with("@version", about.version)
        .with("var_name", if name == "polar" { "polar".to_string() } else { output.name })
        .with("ntypes", n_types)
        .with("dim_descrpt", model.options.descriptors.width())
        .with("neuron", options.neuron.clone())
        .with("resnet_dt", options.resnet_dt)
        .with("numb_fparam", options.numb_fparam)
        .with("numb_aparam", options.numb_aparam)
        .with("dim_case_embd", 0usize)
        .with("default_fparam", options.default_fparam.clone())
        .with("activation_function", options.activation.name())
        .with("precision", precision_name(options.precision))
        .with("mixed_types", model.options.descriptors.is_mixed())
        .with("nets", fitting_nets_tree(model))
        .with("rcond", options.rcond)
        .with("exclude_types", fitting_excludes(model))
        .with(VARIABLES, variables)
        .with("type_map", model.options.type_map.clone())
        .with("tot_ener_zero", false)
        .with("trainable", options.trainable.clone())
        .with("layer_name", Node::Null)
        .with("use_aparam_as_mask", options.use_aparam_as_mask)
        .with("spin", Node::Null)
        .with("type", name);
    for (key, value) in (about.write)(options) {
        tree = tree.with(key, Node::from_json(&value));
    }
    if output.made.is_turned() {
        tree = tree.with("embedding_width", model.options.descriptors.n_directions());
    }
    tree
}

/// Those of the model, unless it is a part of a whole that leaves them out.
fn fitting_excludes(model: &DpModel) -> Vec<usize> {
    match model.options.short_range {
        None => model.options.atom_exclude_types.clone(),
        Some(_) => Vec::new(),
    }
}

fn fitting_nets_tree(model: &DpModel) -> Map {
    let (options, width) = (&model.options.fitting, model.options.descriptors.width());
    let net = |net: &Net| {
        assert_eq!(
            net.layers.len(),
            options.trainable.len(),
            "one flag of trainable for each layer of a fitting net"
        );
        Map::new()
            .with("@class", "FittingNetwork")
            .with("@version", version::FITTING_NET)
            .with("in_dim", width + options.n_extra())
            .with("out_dim", options.output().net_width(&model.options.descriptors))
            .with("neuron", options.neuron.clone())
            .with("activation_function", options.activation.name())
            .with("resnet_dt", options.resnet_dt)
            .with("precision", precision_name(options.precision))
            .with("bias_out", net.layers.last().is_none_or(|layer| !layer.b.is_empty()))
            .with("layers", layers_tree(net, options.precision, |i| options.trainable[i]))
    };
    let (ndim, wanted) = if model.options.descriptors.is_mixed() { (0, 1) } else { (1, model.n_types()) };
    assert_eq!(model.fitting_nets.len(), wanted, "one fitting net for each type, or for all of them");
    collection("fitting_network", ndim, model.n_types(), model.fitting_nets.iter().map(net).collect())
}

pub(super) fn collection(kind: &str, ndim: usize, n_types: usize, networks: Vec<Map>) -> Map {
    Map::new()
        .with("@class", "NetworkCollection")
        .with("@version", version::COLLECTION)
        .with("ndim", ndim)
        .with("ntypes", n_types)
        .with("network_type", kind)
        .with("networks", networks)
}

pub(super) fn layers_tree(net: &Net, precision: Precision, trainable: impl Fn(usize) -> bool) -> Node {
    let layer = |(i, layer): (usize, &Layer)| {
        let row = |values: &[f64]| numbers(precision, vec![layer.n_out], values);
        let variables = Map::new()
            .with("w", numbers(precision, vec![layer.n_in, layer.n_out], &layer.w))
            .with("b", if layer.b.is_empty() { Node::Null } else { row(&layer.b) })
            .with("idt", layer.idt.as_deref().map(row));
        Map::new()
            .with("@class", "Layer")
            .with("@version", version::LAYER)
            .with("bias", !layer.b.is_empty())
            .with("use_timestep", layer.idt.is_some())
            .with("activation_function", layer.activation.name())
            .with("resnet", layer.resnet)
            .with("precision", precision_name(precision))
            .with("trainable", trainable(i))
            .with(VARIABLES, variables)
            .into()
    };
    Node::List(net.layers.iter().enumerate().map(layer).collect())
}

pub(super) fn numbers(precision: Precision, shape: Vec<usize>, values: &[f64]) -> Node {
    let data = match precision {
        Precision::Float32 => ArrayData::F32(values.iter().map(|&v| v as f32).collect()),
        Precision::Float64 => ArrayData::F64(values.to_vec()),
    };
    Array::new(shape, data).into()
}

pub(super) fn precision_name(precision: Precision) -> &'static str {
    match precision {
        Precision::Float32 => "float32",
        Precision::Float64 => "float64",
    }
}

/// The `model` section as DeePMD-kit wants it beside a model: with numbers for `sel`.
fn script(options: &ModelOptions) -> serde_json::Value {
    if !options.script.is_object() {
        return script_from_options(options, &options.fitting);
    }
    let (mut script, descriptors) = (options.script.clone(), &options.descriptors);
    for (k, descriptor) in descriptors.list.iter().enumerate() {
        if let Some(section) =
            descriptors.section_of(&mut script, k).and_then(|section| section.as_object_mut())
        {
            section.insert("sel".to_string(), descriptor.sel_in_input(descriptor.fixed_sel()));
        }
    }
    script
}

fn descriptor_section(descriptor: &DescriptorOptions) -> serde_json::Value {
    let about = descriptor.kind.about();
    let mut section = json!({
        "type": descriptor.kind.name(),
        "sel": descriptor.sel_in_input(descriptor.fixed_sel()),
        "rcut": descriptor.rcut,
        "rcut_smth": descriptor.rcut_smth,
        "neuron": descriptor.neuron,
        "activation_function": descriptor.activation.name(),
        "resnet_dt": descriptor.resnet_dt,
        "precision": precision_name(descriptor.precision),
        "trainable": descriptor.trainable,
        "seed": descriptor.seed,
        "exclude_types": descriptor.exclude_types,
        "set_davg_zero": descriptor.set_davg_zero,
        "env_protection": descriptor.env_protection,
    });
    if about.nets != Nets::ByNeighbors {
        section["type_one_side"] = descriptor.type_one_side.into();
    }
    for (key, value) in (about.write)(descriptor) {
        section[key] = value;
    }
    section
}

fn script_from_options(options: &ModelOptions, fitting: &FittingOptions) -> serde_json::Value {
    let mut sections: Vec<serde_json::Value> =
        options.descriptors.list.iter().map(descriptor_section).collect();
    let descriptor = match options.descriptors.is_hybrid {
        true => json!({ "type": "hybrid", "list": sections }),
        false => sections.remove(0),
    };
    let mut fitting_net = json!({
        "type": fitting.type_name(),
        "neuron": fitting.neuron,
        "activation_function": fitting.activation.name(),
        "resnet_dt": fitting.resnet_dt,
        "precision": precision_name(fitting.precision),
        "trainable": fitting.trainable,
        "seed": fitting.seed,
        "numb_fparam": fitting.numb_fparam,
        "default_fparam": fitting.default_fparam,
        "numb_aparam": fitting.numb_aparam,
    });
    for (key, value) in (fitting.kind.about().section)(fitting) {
        fitting_net[key] = value;
    }
    let mut section = json!({
        "type_map": options.type_map,
        "descriptor": descriptor,
        "fitting_net": fitting_net,
        "pair_exclude_types": options.pair_exclude_types,
        "atom_exclude_types": options.atom_exclude_types,
        "data_stat_nbatch": options.data_stat_nbatch,
        "data_stat_protect": options.data_stat_protect,
    });
    if let Some(own) = &options.short_range {
        for (key, value) in [
            ("use_srtab", json!(own.file)),
            ("smin_alpha", json!(own.smin_alpha)),
            ("sw_rmin", json!(own.sw_rmin)),
            ("sw_rmax", json!(own.sw_rmax)),
            ("srtab_add_bias", json!(own.add_bias)),
        ] {
            section[key] = value;
        }
    }
    section
}
