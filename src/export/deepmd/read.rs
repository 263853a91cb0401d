//! From the tree to a model.

use super::{TRAINED_TYPES, attention, short_range, version};
use crate::config::registry;
use crate::error::Result;
use crate::export::tree::{Node, Place, VARIABLES};
use crate::model::activation::Activation;
use crate::model::dp::Dp;
use crate::model::dp::descriptor::{DESCRIPTORS, Nets, Shared};
use crate::model::dp::fitting::FITTING_NETS;
use crate::model::dp::options::{
    Applied, DescriptorKind, DescriptorOptions, Descriptors, Embedding, FittingOptions, ModelOptions, Output,
    Precision, Sel,
};
use crate::model::dp::spec::{DpModel, DpStatistics, Layer, Net, TrainedTypes};
use crate::model::dp::table::EmbeddingTable;
use crate::{bail, err};
use serde_json::Value;

/// DeePMD-kit's defaults for what only the training input holds.
const DATA_STAT_NBATCH: usize = 10;
const DATA_STAT_PROTECT: f64 = 1e-2;

/// The model of a tree. Whatever would change a prediction and is not supported is an error.
pub fn from_tree(tree: &Node) -> Result<DpModel> {
    let root = Place::root(tree);
    let whole = root.get("model")?;
    let blended = short_range::parts(&whole)?;
    let model = blended.as_ref().map_or(&whole, |parts| &parts.net).clone();
    check_version(&model, version::MODEL)?;
    check_type(&model, "model", "standard")?;
    let descriptor = model.get("descriptor")?;
    let fitting = model.get("fitting")?;
    let type_map = model.get("type_map")?.list(|item| item.str().map(str::to_string))?;
    let script = root.find("model_def_script")?.map_or(Ok(Value::Null), |place| place.node.to_json())?;
    let parts = read_descriptors(&descriptor, &type_map, &script)?;
    let fitting_options = read_fitting(&fitting, &type_map, &script)?;
    let n_types = type_map.len();
    let descriptors = Descriptors {
        list: parts.iter().map(|part| part.options.clone()).collect(),
        is_hybrid: is_hybrid(&descriptor)?,
    };
    fitting_options.check_descriptors(&descriptors).map_err(|e| e.at(fitting.to_string()))?;
    let input = descriptors.width() + fitting_options.n_extra();
    let output = fitting_options.output();
    let net_width = output.net_width(&descriptors);
    let fitting_layers = [&[input], &fitting_options.neuron[..], &[net_width]].concat();
    let mut descriptor_nets = Vec::new();
    for part in &parts {
        descriptor_nets.extend(match part.options.attention() {
            Some(_) => attention::read(&part.place, &part.options, &type_map)?,
            None => read_descriptor_nets(part, n_types)?,
        });
    }
    for part in parts.iter().filter(|part| part.options.is_mixed()) {
        if part.options.rcut < descriptors.rcut() {
            return Err(unsupported(&part.place, "attention with less than the largest cutoff of a list"));
        }
    }
    let is_mixed = descriptors.is_mixed();
    let found = fitting.find("mixed_types")?;
    if let Some(found) = found.filter(|found| found.bool().is_ok_and(|found| found != is_mixed)) {
        return Err(unsupported(&found, &format!("mixed_types: {} with such a descriptor", !is_mixed)));
    }
    let blended =
        blended.map(|parts| parts.read(&whole, &script, n_types, descriptors.rcut())).transpose()?;
    let biased = match &blended {
        Some(blended) if blended.options.add_bias => &whole,
        _ => &model,
    };
    let mut stats = read_statistics(biased, &parts, &fitting, (&fitting_options, net_width))?;
    let (short_range, pair_table) = blended.map(|blended| (blended.options, blended.table)).unzip();
    stats.pair_table = pair_table;
    Ok(DpModel {
        stats,
        descriptor_nets,
        tables: read_all_tables(&parts, n_types)?,
        fitting_nets: read_nets(
            &fitting.get("nets")?,
            if is_mixed { 0 } else { 1 },
            n_types,
            &fitting_layers,
            |_| false,
        )?,
        min_nbor_dist: read_min_nbor_dist(&root)?,
        embedded: read_trained_types(&root)?,
        options: ModelOptions {
            type_map,
            descriptors,
            fitting: fitting_options,
            pair_exclude_types: read_pairs(&whole, "pair_exclude_types", n_types)?,
            atom_exclude_types: read_excluded_atoms(&whole, &fitting, n_types, short_range.is_some())?,
            preset_out_bias: read_preset(&whole, &output)?,
            short_range,
            type_embedding: None,
            data_stat_nbatch: script["data_stat_nbatch"].as_u64().map_or(DATA_STAT_NBATCH, |n| n as usize),
            data_stat_protect: script["data_stat_protect"].as_f64().unwrap_or(DATA_STAT_PROTECT),
            script,
        },
    })
}

/// A descriptor of a model and where it stands.
struct Part<'a> {
    place: Place<'a>,
    options: DescriptorOptions,
}

fn is_hybrid(place: &Place) -> Result<bool> {
    Ok(place.get("type")?.str()? == "hybrid")
}

/// The descriptor, or those of a list.
fn read_descriptors<'a>(place: &Place<'a>, type_map: &[String], script: &Value) -> Result<Vec<Part<'a>>> {
    let read = |place: Place<'a>, script: &Value| {
        read_descriptor(&place, type_map, script).map(|options| Part { options, place })
    };
    if !is_hybrid(place)? {
        return Ok(vec![read(place.clone(), &script["descriptor"])?]);
    }
    check_version(place, version::HYBRID)?;
    let list = place.get("list")?;
    let items = list.items()?;
    if items.is_empty() {
        bail!("{list}: found an empty list, wanted at least one descriptor");
    }
    let script = &script["descriptor"]["list"];
    items.into_iter().enumerate().map(|(k, item)| read(item, &script[k])).collect()
}

/// `script` is what the input said of it, or null.
fn read_descriptor(place: &Place, type_map: &[String], script: &Value) -> Result<DescriptorOptions> {
    check_version(place, version::DESCRIPTOR_NEWEST)?;
    check_absent(place, "spin")?;
    check_type_map(place, type_map)?;
    let env_mat = place.find("env_mat")?;
    if let Some(switch) = env_mat.map(|env| env.find("use_exp_switch")).transpose()?.flatten()
        && switch.bool()?
    {
        return Err(unsupported(&switch, "the exponential switch"));
    }
    let named = place.get("type")?;
    let Some(about) = registry::find(DESCRIPTORS, named.str()?) else {
        return Err(unsupported(&named, &format!("descriptor of type \"{}\"", named.str()?)));
    };
    let neuron = place.get("neuron")?.list(Place::usize)?;
    let get = |key: &str| place.find(key)?.map_or(Ok(Value::Null), |found| found.node.to_json());
    let shared = Shared { neuron: &neuron, type_map };
    if neuron.is_empty() {
        bail!("{place}.neuron: found no layer, wanted at least one");
    }
    let kind = (about.read)(&get, &shared).map_err(|e| e.at(place.to_string()))?;
    let mut options = DescriptorOptions {
        kind,
        sel: Sel::Fixed(match about.nets {
            Nets::Attention => vec![sum_of(&place.get("sel")?)?],
            _ => place.get("sel")?.list(Place::usize)?,
        }),
        rcut: place.get("rcut")?.f64()?,
        rcut_smth: place.get("rcut_smth")?.f64()?,
        neuron,
        activation: read_activation(place)?,
        resnet_dt: place.get("resnet_dt")?.bool()?,
        type_one_side: about.nets != Nets::ByNeighbors && place.get("type_one_side")?.bool()?,
        precision: read_precision(place)?,
        trainable: read_descriptor_trainable(place)?,
        seed: script["seed"].as_u64(),
        exclude_types: read_pairs(place, "exclude_types", type_map.len())?,
        set_davg_zero: flag(place, "set_davg_zero")?,
        env_protection: place.find("env_protection")?.map_or(Ok(0.0), |p| p.f64())?,
        embedding: Embedding::Chebyshev,
    };
    check_descriptor(place, &options, type_map.len())?;
    if let DescriptorKind::SeE2A(own) = &mut options.kind {
        own.linear_end = options.activation != Activation::Linear && ends_linearly(place, &options.neuron)?;
    }
    Ok(options)
}

/// Whether the last layer of the embedding nets, as wide as the one before, is linear.
fn ends_linearly(place: &Place, neuron: &[usize]) -> Result<bool> {
    if !matches!(neuron, [.., a, b] if a == b) {
        return Ok(false);
    }
    let networks = place.get("embeddings")?.get("networks")?;
    let items = networks.items()?;
    let Some(net) = items.iter().find(|item| !matches!(item.node, Node::Null)) else { return Ok(false) };
    let layers = net.get("layers")?;
    let last = layers.items()?.pop();
    Ok(last
        .map(|last| read_activation(&last))
        .transpose()?
        .is_some_and(|a| a.function() == Activation::Linear))
}

/// The slots of all types together.
fn sum_of(place: &Place) -> Result<usize> {
    let numbers = place.list(Place::usize)?;
    match numbers.iter().try_fold(0usize, |sum, &n| sum.checked_add(n)) {
        Some(sum) => Ok(sum),
        None => bail!("{place}: {numbers:?} is larger than any model"),
    }
}

fn check_descriptor(place: &Place, options: &DescriptorOptions, n_types: usize) -> Result<()> {
    let sel = options.fixed_sel();
    if sel.len() != n_types && !options.is_mixed() {
        bail!("{place}.sel: found {} entries, wanted one for each of {n_types} types", sel.len());
    }
    if sel.iter().try_fold(0usize, |sum, &n| sum.checked_add(n)).is_none_or(|sum| sum > 1 << 24) {
        bail!("{place}.sel: {sel:?} is larger than any model");
    }
    if !(options.rcut_smth < options.rcut && options.rcut.is_finite()) {
        bail!("{place}.rcut_smth: {} A is not below rcut = {} A", options.rcut_smth, options.rcut);
    }
    check_widths(&place.get("neuron")?, &options.neuron)?;
    Ok(())
}

fn read_fitting(place: &Place, type_map: &[String], script: &Value) -> Result<FittingOptions> {
    let named = place.get("type")?;
    let Some(about) = registry::find(FITTING_NETS, named.str()?) else {
        return Err(unsupported(&named, &format!("fitting net of type \"{}\"", named.str()?)));
    };
    check_version(place, about.version)?;
    for key in ["spin", "layer_name", "dim_case_embd", "tot_ener_zero"] {
        check_absent(place, key)?;
    }
    check_type_map(place, type_map)?;
    let neuron = place.get("neuron")?.list(Place::usize)?;
    check_widths(&place.get("neuron")?, &neuron)?;
    let get = |key: &str| match (place.find(key)?, place.find(VARIABLES)?) {
        (Some(found), _) => found.node.to_json(),
        // An array has a number for each type.
        (None, Some(variables)) => Ok(numbers(&variables, key, type_map.len())?.into()),
        (None, None) => Ok(Value::Null),
    };
    let kind = (about.read)(&get).map_err(|e| e.at(place.to_string()))?;
    if neuron.is_empty() && kind.name() != "ener" {
        bail!("{place}.neuron: found no layer, wanted at least one");
    }
    let count = |key| match place.find(key)? {
        Some(found) => match found.usize()? {
            n if n <= 1 << 16 => Ok(n),
            _ => Err(found.wanted("a number of parameters")),
        },
        None => Ok(0),
    };
    let numb_fparam = count("numb_fparam")?;
    let default_fparam = place.find("default_fparam")?;
    let default_fparam = default_fparam.map(|list| list.list(Place::f64)).transpose()?;
    if let Some(wrong) = default_fparam.as_ref().filter(|list| list.len() != numb_fparam) {
        bail!("{place}.default_fparam: found {} numbers, wanted numb_fparam = {numb_fparam}", wrong.len());
    }
    Ok(FittingOptions {
        kind,
        trainable: read_fitting_trainable(place, neuron.len() + 1)?,
        neuron,
        activation: read_activation(place)?,
        resnet_dt: place.get("resnet_dt")?.bool()?,
        precision: read_precision(place)?,
        seed: script["fitting_net"]["seed"].as_u64(),
        numb_fparam,
        default_fparam,
        dim_case_embd: 0, // others are refused
        use_aparam_as_mask: flag(place, "use_aparam_as_mask")?,
        numb_aparam: count("numb_aparam")?,
        rcond: place.find("rcond")?.map(|p| p.f64()).transpose()?,
        atom_ener: read_atom_ener(place)?,
        sel_type: Vec::new(), // a matter of the data
    })
}

/// Widths beyond these are damage; the bound keeps products of them far from overflow.
fn check_widths(place: &Place, widths: &[usize]) -> Result<()> {
    match widths.iter().find(|&&n| n == 0 || n > 1 << 20) {
        Some(n) => bail!("{place}: found a layer of {n} neurons"),
        None => Ok(()),
    }
}

fn read_atom_ener(place: &Place) -> Result<Vec<Option<f64>>> {
    place.find("atom_ener")?.map_or(Ok(Vec::new()), |list| numbers_or_null(&list))
}

/// One number, or a list of it, or null for each type.
fn numbers_or_null(list: &Place) -> Result<Vec<Option<f64>>> {
    list.list(|item| match item.node {
        Node::Null => Ok(None),
        Node::List(inner) if inner.len() == 1 => item.items()?[0].f64().map(Some),
        _ => item.f64().map(Some),
    })
}

/// Flags of the layers of the first net that is there: the flag of the part itself is not always written.
fn layer_flags(nets: &Place) -> Result<Option<Vec<bool>>> {
    let networks = nets.get("networks")?.items()?;
    let Some(net) = networks.iter().find(|net| *net.node != Node::Null) else { return Ok(None) };
    let flag = |layer: &Place| layer.find("trainable")?.map_or(Ok(true), |p| p.bool());
    net.get("layers")?.list(flag).map(Some)
}

fn read_descriptor_trainable(place: &Place) -> Result<bool> {
    let own = place.find("trainable")?.map_or(Ok(true), |p| p.bool())?;
    let layers = layer_flags(&place.get("embeddings")?)?;
    Ok(own && layers.is_none_or(|flags| flags.iter().all(|&flag| flag)))
}

fn read_fitting_trainable(place: &Place, n_layers: usize) -> Result<Vec<bool>> {
    let flags = layer_flags(&place.get("nets")?)?.unwrap_or_default();
    Ok(if flags.len() == n_layers { flags } else { vec![true; n_layers] })
}

/// The model's list, which the fitting net has too; not so where the network is a part of the model.
fn read_excluded_atoms(model: &Place, fitting: &Place, n_types: usize, is_part: bool) -> Result<Vec<usize>> {
    let read = |place: &Place, key: &str| {
        let Some(list) = place.find(key)? else { return Ok(Vec::new()) };
        list.list(|item| match item.usize()? {
            t if t < n_types => Ok(t),
            t => bail!("{item}: found {t}, wanted a type below {n_types}"),
        })
    };
    let (own, of_fitting) = (read(model, "atom_exclude_types")?, read(fitting, "exclude_types")?);
    if of_fitting != if is_part { &[][..] } else { &own } {
        return Err(unsupported(fitting, "a fitting net that excludes other types than the model"));
    }
    Ok(own)
}

fn read_preset(model: &Place, output: &Output) -> Result<Vec<Option<Vec<f64>>>> {
    let Some(preset) = model.find("preset_out_bias")? else { return Ok(Vec::new()) };
    let Some(list) = preset.find(&output.name)? else { return Ok(Vec::new()) };
    list.list(|item| {
        let numbers = match item.node {
            Node::Null => return Ok(None),
            Node::List(_) => item.list(Place::f64)?,
            _ => vec![item.f64()?],
        };
        match numbers.len() == output.width {
            true => Ok(Some(numbers)),
            false => Err(item.wanted(&format!("{} numbers", output.width))),
        }
    })
}

fn read_pairs(place: &Place, key: &str, n_types: usize) -> Result<Vec<(usize, usize)>> {
    let Some(list) = place.find(key)? else { return Ok(Vec::new()) };
    list.list(|item| match item.list(Place::usize)?[..] {
        [a, b] if a < n_types && b < n_types => Ok((a, b)),
        _ => bail!("{item}: wanted two types below {n_types}"),
    })
}

fn read_activation(place: &Place) -> Result<Activation> {
    let name = place.get("activation_function")?;
    Activation::parse(name.str()?).map_err(|e| e.at(name))
}

fn read_precision(place: &Place) -> Result<Precision> {
    let name = place.get("precision")?;
    match name.str()? {
        "float64" | "double" | "default" => Ok(Precision::Float64),
        "float32" | "single" => Ok(Precision::Float32),
        other => Err(err!("{name}: precision \"{other}\" is not supported").help("known: float64, float32")),
    }
}

/// A model with embedded types as it is trained, where the file is of one.
fn read_trained_types(root: &Place) -> Result<Option<TrainedTypes>> {
    let Some(place) = root.find(TRAINED_TYPES)? else { return Ok(None) };
    let script = place.get("model_def_script")?;
    let options = ModelOptions::of_section(&script.node.to_json()?, &script.to_string())?;
    if options.type_embedding.is_none() || !options.descriptors.is_fixed() {
        return Err(script.wanted("a model section with type_embedding and numbers for sel"));
    }
    let n = Dp::new(options.clone(), DpStatistics::default()).trained_table().len();
    let variables = place.get(VARIABLES)?;
    match numbers(&variables, "params", n)? {
        Some(params) if params.iter().all(|x| x.is_finite()) => Ok(Some(TrainedTypes { options, params })),
        Some(_) => bail!("{variables}: \"params\" holds something that is not a number"),
        None => bail!("{variables}: \"params\" is missing"),
    }
}

fn read_min_nbor_dist(root: &Place) -> Result<Option<f64>> {
    match root.find(VARIABLES)? {
        Some(variables) => variables.find("min_nbor_dist")?.map(|p| p.f64()).transpose(),
        None => Ok(None),
    }
}

fn read_statistics(
    model: &Place,
    parts: &[Part],
    fitting: &Place,
    (options, net_width): (&FittingOptions, usize),
) -> Result<DpStatistics> {
    let n_types = model.get("type_map")?.items()?.len();
    let outputs = model.get(VARIABLES)?;
    let parameters = fitting.get(VARIABLES)?;
    let output = options.output();
    let n_outputs = n_types * output.width;
    let mut bias = numbers(&outputs, "out_bias", n_outputs)?.unwrap_or_else(|| vec![0.0; n_outputs]);
    if let Some(more) = numbers(&parameters, "bias_atom_e", n_types * net_width)? {
        // Where the net's output is not the output itself, they do not add up.
        if output.applied != Applied::Bias && more.iter().any(|&x| x != 0.0) {
            return Err(unsupported(&parameters, "a bias of the fitting net (bias_atom_e)"));
        }
        bias.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
    }
    let wanted = |key: &str, n: usize| match numbers(&parameters, key, n)? {
        Some(values) => Ok(values),
        None if n == 0 => Ok(Vec::new()),
        None => Err(err!("{parameters}: \"{key}\" is missing")),
    };
    let (mut davg, mut dstd) = (Vec::new(), Vec::new());
    for part in parts {
        let environment = part.place.get(VARIABLES)?;
        let rows = read_rows(&environment.get("dstd")?, &part.options, n_types, 1.0)?;
        if let Some(centre) = rows.iter().position(|row| row.iter().any(|&x| x.is_nan() || x <= 0.0)) {
            bail!("{environment}.dstd: type {centre} has {:?}, wanted numbers above zero", rows[centre]);
        }
        dstd.extend(rows);
        davg.extend(read_rows(&environment.get("davg")?, &part.options, n_types, 0.0)?);
    }
    Ok(DpStatistics {
        davg,
        dstd,
        bias,
        out_std: numbers(&outputs, "out_std", n_outputs)?.unwrap_or_else(|| vec![1.0; n_outputs]),
        fparam_avg: wanted("fparam_avg", options.numb_fparam)?,
        fparam_inv_std: wanted("fparam_inv_std", options.numb_fparam)?,
        aparam_avg: wanted("aparam_avg", options.numb_aparam)?,
        aparam_inv_std: wanted("aparam_inv_std", options.numb_aparam)?,
        pair_table: None, // it is no part of these
    })
}

/// `davg` or `dstd`: one row for each centre type, the same in all slots. A row without directions is filled up with `rest`.
fn read_rows(place: &Place, options: &DescriptorOptions, n_types: usize, rest: f64) -> Result<Vec<[f64; 4]>> {
    let (array, n) = (place.array()?, options.form().row());
    let all_slots: usize = options.fixed_sel().iter().sum();
    let wanted = [n_types, all_slots, n];
    if array.shape != wanted || all_slots == 0 {
        bail!("{place}: found shape {:?}, wanted {wanted:?}", array.shape);
    }
    let values = array.to_f64();
    let mut rows = Vec::new();
    for (centre, slots) in values.chunks_exact(n * all_slots).enumerate() {
        let mut row = [rest; 4];
        row[..n].copy_from_slice(&slots[..n]);
        if let Some(slot) = slots.chunks_exact(n).position(|other| other != &row[..n]) {
            return Err(err!("{place}: type {centre}: slot {slot} differs from slot 0")
                .help("statistics that differ between neighbours of one atom are not supported"));
        }
        rows.push(row);
    }
    Ok(rows)
}

/// An array of so many numbers in any shape; `None` where it is null or absent.
pub(super) fn numbers(variables: &Place, key: &str, len: usize) -> Result<Option<Vec<f64>>> {
    let Some(place) = variables.find(key)? else { return Ok(None) };
    let array = place.array()?;
    if array.data.len() != len {
        bail!("{place}: found shape {:?}, wanted {len} numbers", array.shape);
    }
    Ok(Some(array.to_f64()))
}

fn read_descriptor_nets(part: &Part, n_types: usize) -> Result<Vec<Net>> {
    let options = &part.options;
    let ndim = if options.type_one_side { 1 } else { 2 };
    // Some writers leave out the nets of pairs that do not see each other.
    let unused = |index: usize| match options.kind.about().nets {
        Nets::ByNeighbors => !options.uses_net(index, n_types),
        _ => ndim == 2 && options.excludes(index % n_types, index / n_types),
    };
    let layers = [&[1], &options.neuron[..]].concat();
    read_nets(&part.place.get("embeddings")?, ndim, n_types, &layers, unused)
}

/// The tables of a compressed model, one for each embedding net of all descriptors.
fn read_all_tables(parts: &[Part], n_types: usize) -> Result<Option<Vec<EmbeddingTable>>> {
    let mut all = Vec::new();
    let mut without = None;
    for part in parts {
        match read_tables(part, n_types)? {
            Some(tables) => all.extend(tables),
            None => without = Some(part),
        }
    }
    match without {
        None => Ok(Some(all)),
        Some(_) if all.is_empty() => Ok(None),
        Some(part) => Err(unsupported(&part.place, "a descriptor that is not compressed beside one that is")),
    }
}

fn read_tables(part: &Part, n_types: usize) -> Result<Option<Vec<EmbeddingTable>>> {
    let options = &part.options;
    let Some(compress) = part.place.find("compress")? else { return Ok(None) };
    if !options.form().has_series() {
        return Err(unsupported(&compress, "a table in place of nets of this descriptor"));
    }
    let variables = compress.get(VARIABLES)?;
    let (data, info) = (variables.get("compress_data")?, variables.get("compress_info")?);
    let (tables, about) = (data.items()?, info.items()?);
    let wanted = options.n_nets(n_types);
    if (tables.len(), about.len()) != (wanted, wanted) {
        bail!(
            "{compress}: found {} tables and {} of their ranges, wanted {wanted}",
            tables.len(),
            about.len()
        );
    }
    let width = options.neuron.last().copied().unwrap_or(0);
    let table = |(table, about): (&Place, &Place)| {
        EmbeddingTable::new(table.array()?.to_f64(), &about.array()?.to_f64(), width).map_err(|e| e.at(table))
    };
    tables.iter().zip(&about).map(table).collect::<Result<_>>().map(Some)
}

pub(super) fn read_nets(
    place: &Place,
    ndim: u32,
    n_types: usize,
    widths: &[usize],
    unused: impl Fn(usize) -> bool,
) -> Result<Vec<Net>> {
    check_version(place, version::COLLECTION)?;
    let found = place.get("ndim")?;
    if found.usize()? != ndim as usize {
        return Err(found.wanted(&format!("{ndim}")));
    }
    let networks = place.get("networks")?;
    let items = networks.items()?;
    let wanted = n_types.pow(ndim);
    if items.len() != wanted {
        bail!("{networks}: found {} nets, wanted {wanted}", items.len());
    }
    let read = |(index, item): (usize, &Place)| match item.node {
        Node::Null if unused(index) => Ok(zero_net(widths)),
        _ => read_net(item, widths),
    };
    items.iter().enumerate().map(read).collect()
}

fn read_net(place: &Place, widths: &[usize]) -> Result<Net> {
    let layers = place.get("layers")?;
    let items = layers.items()?;
    if items.len() + 1 != widths.len() {
        bail!("{layers}: found {} layers, wanted {}", items.len(), widths.len() - 1);
    }
    let pairs = widths.windows(2);
    let layers = items.iter().zip(pairs).map(|(item, pair)| read_layer(item, pair[0], pair[1]));
    Ok(Net { layers: layers.collect::<Result<_>>()? })
}

pub(super) fn read_layer(place: &Place, n_in: usize, n_out: usize) -> Result<Layer> {
    check_version(place, version::LAYER)?;
    let variables = place.get(VARIABLES)?;
    let w = variables.get("w")?;
    let weights = w.array()?;
    if weights.shape != [n_in, n_out] {
        bail!("{w}: found shape {:?}, wanted [{n_in}, {n_out}]", weights.shape);
    }
    Ok(Layer {
        n_in,
        n_out,
        w: weights.to_f64(),
        b: numbers(&variables, "b", n_out)?.unwrap_or_default(),
        idt: numbers(&variables, "idt", n_out)?,
        resnet: place.get("resnet")?.bool()?,
        activation: read_activation(place)?,
    })
}

fn zero_net(widths: &[usize]) -> Net {
    let layer = |pair: &[usize]| Layer {
        n_in: pair[0],
        n_out: pair[1],
        w: vec![0.0; pair[0] * pair[1]],
        b: vec![0.0; pair[1]],
        idt: None,
        resnet: false,
        activation: Activation::None,
    };
    Net { layers: widths.windows(2).map(layer).collect() }
}

fn flag(place: &Place, key: &str) -> Result<bool> {
    place.find(key)?.map_or(Ok(false), |p| p.bool())
}

pub(super) fn check_version(place: &Place, newest: i64) -> Result<()> {
    let Some(found) = place.find("@version")? else { return Ok(()) };
    match found.node {
        Node::Int(version) if (1..=newest).contains(version) => Ok(()),
        Node::Int(version) => Err(err!("{found}: found {version}, wanted 1 to {newest}")
            .help("the file was written by a newer DeePMD-kit than 3.2; write it with 3.2")),
        _ => Err(found.wanted("an integer")),
    }
}

pub(super) fn check_type(place: &Place, what: &str, wanted: &str) -> Result<()> {
    let found = place.get("type")?;
    match found.str()? {
        name if name == wanted => Ok(()),
        name => Err(err!("{found}: {what} of type \"{name}\" is not supported yet")
            .help(format!("supported: {wanted}"))),
    }
}

fn check_type_map(place: &Place, wanted: &[String]) -> Result<()> {
    let Some(found) = place.find("type_map")? else { return Ok(()) };
    let names = found.list(Place::str)?;
    if names != wanted {
        bail!("{found}: found {names:?}, wanted the type map of the model, {wanted:?}");
    }
    Ok(())
}

/// Options that would change predictions must be off: null, false, 0 or empty.
pub(super) fn check_absent(place: &Place, key: &str) -> Result<()> {
    let Some(found) = place.find(key)? else { return Ok(()) };
    match found.node {
        Node::Bool(false) | Node::Int(0) => Ok(()),
        Node::List(items) if items.is_empty() => Ok(()),
        _ => Err(unsupported(&found, key)),
    }
}

pub(super) fn unsupported(place: &Place, what: &str) -> crate::error::Error {
    err!("{place}: {what} is not supported yet").help("the model would predict something else without it")
}
