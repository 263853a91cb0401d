use super::{from_tree, to_tree};
use crate::export::tree::{Array, ArrayData, Map, Node, VARIABLES};
use crate::model::activation::Activation;
use crate::model::dp::options::*;
use crate::model::dp::spec::{DpModel, DpStatistics, Layer, Net, descriptor_net_index};
use serde_json::json;

/// Numbers that float32 holds exactly and that are all different.
struct Numbers(f64);

impl Numbers {
    fn take(&mut self, n: usize) -> Vec<f64> {
        (0..n)
            .map(|_| {
                self.0 += 1.0 / 1024.0;
                self.0
            })
            .collect()
    }
}

/// A small generator for tests that damage files (xorshift).
pub(crate) struct Random(pub u64);

impl Random {
    /// A number from 0 to `n` - 1.
    pub fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n as u64) as usize
    }
}

fn net(numbers: &mut Numbers, widths: &[usize], idt: bool, activation: Activation) -> Net {
    let last = widths.len() - 2;
    let layer = |(i, pair): (usize, &[usize])| Layer {
        n_in: pair[0],
        n_out: pair[1],
        w: numbers.take(pair[0] * pair[1]),
        b: numbers.take(pair[1]),
        idt: (idt && i < last).then(|| numbers.take(pair[1])),
        resnet: i < last,
        activation: if i < last { activation } else { Activation::None },
    };
    Net { layers: widths.windows(2).enumerate().map(layer).collect() }
}

/// A model of two types with every option away from its default.
pub(crate) fn sample(type_one_side: bool, precision: Precision) -> DpModel {
    let mut numbers = Numbers(0.0);
    let (gelu, silut) = (Activation::GeluTf, Activation::Silut { threshold: 2.5 });
    let descriptor_nets =
        (0..if type_one_side { 2 } else { 4 }).map(|_| net(&mut numbers, &[1, 3, 6], true, silut)).collect();
    let fitting_nets = (0..2).map(|_| net(&mut numbers, &[15, 5, 4, 1], true, gelu)).collect();
    let mut row = || -> [f64; 4] { numbers.take(4).try_into().unwrap() };
    let (davg, dstd) = (vec![row(), row()], vec![row(), row()]);
    let stats = DpStatistics {
        davg,
        dstd,
        bias: vec![-93.1, -187.3],
        out_std: vec![0.3, 0.7],
        fparam_avg: vec![0.25, -0.5],
        fparam_inv_std: vec![2.0, 4.0],
        aparam_avg: vec![0.125],
        aparam_inv_std: vec![8.0],
        pair_table: None,
    };
    let options = ModelOptions {
        short_range: None,
        type_embedding: None,
        type_map: vec!["O".into(), "N".into()],
        descriptors: Descriptors::from(DescriptorOptions {
            kind: DescriptorKind::SeE2A(SeE2A { axis_neuron: 2, linear_end: false }),
            sel: Sel::Fixed(vec![3, 5]),
            rcut: 6.0,
            rcut_smth: 0.1,
            neuron: vec![3, 6],
            activation: silut,
            resnet_dt: true,
            type_one_side,
            precision,
            trainable: false,
            seed: Some(7),
            exclude_types: vec![(0, 1)],
            set_davg_zero: true,
            env_protection: 1e-6,
            embedding: Embedding::Chebyshev,
        }),
        fitting: FittingOptions {
            kind: FittingKind::Ener(crate::model::dp::fitting::Ener),
            neuron: vec![5, 4],
            activation: gelu,
            resnet_dt: true,
            precision,
            trainable: vec![true, false, true],
            seed: Some(8),
            numb_fparam: 2,
            dim_case_embd: 0,
            default_fparam: Some(vec![0.5, -0.25]),
            use_aparam_as_mask: false,
            numb_aparam: 1,
            rcond: Some(1e-5),
            atom_ener: vec![Some(-1.5), None],
            sel_type: Vec::new(),
        },
        pair_exclude_types: vec![(1, 1)],
        atom_exclude_types: vec![1],
        preset_out_bias: vec![None, Some(vec![-187.3])],
        data_stat_nbatch: 4,
        data_stat_protect: 0.02,
        script: json!({
            "type_map": ["O", "N"],
            "descriptor": {"type": "se_e2_a", "sel": [3, 5], "seed": 7},
            "fitting_net": {"seed": 8},
            "data_stat_nbatch": 4,
            "data_stat_protect": 0.02,
        }),
    };
    let (tables, embedded, min_nbor_dist) = (None, None, Some(0.875));
    DpModel { options, stats, descriptor_nets, tables, fitting_nets, min_nbor_dist, embedded }
}

/// The tree with the value at `path` replaced.
fn changed(tree: &Node, path: &[&str], value: Node) -> Node {
    let Some((key, rest)) = path.split_first() else { return value };
    match tree {
        Node::Map(map) => {
            let mut map = map.clone();
            let old = map.get(key).unwrap_or(&Node::Null);
            let new = changed(old, rest, value);
            map.push(key.to_string(), new);
            Node::Map(map)
        }
        Node::List(items) => {
            let mut items = items.clone();
            let i: usize = key.parse().unwrap();
            items[i] = changed(&items[i], rest, value);
            Node::List(items)
        }
        other => panic!("no {key} in {other:?}"),
    }
}

#[test]
fn a_model_comes_back_from_its_tree_as_it_was() {
    for type_one_side in [true, false] {
        for precision in [Precision::Float32, Precision::Float64] {
            let model = sample(type_one_side, precision);
            assert_eq!(from_tree(&to_tree(&model)).unwrap(), model);
        }
    }
}

#[test]
fn a_model_comes_back_from_both_kinds_of_files_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["model.dp", "model.yaml", "model.yml"] {
        for precision in [Precision::Float32, Precision::Float64] {
            let path = folder.path().join(name);
            let model = sample(false, precision);
            crate::export::write_model(&path, &model).unwrap();
            assert_eq!(crate::export::read_model(&path).unwrap(), model, "{name}");
        }
    }
}

#[test]
fn the_net_of_a_pair_has_the_centre_type_running_fastest() {
    assert_eq!(descriptor_net_index(false, 3, 1, 0), 1);
    assert_eq!(descriptor_net_index(false, 3, 0, 1), 3);
    assert_eq!(descriptor_net_index(true, 3, 2, 1), 1);
}

#[test]
fn float32_parts_are_stored_as_float32_and_biases_as_float64() {
    let tree = to_tree(&sample(true, Precision::Float32));
    let dtype = |path: &[&str]| {
        let mut place = crate::export::tree::Place::root(&tree);
        for key in path {
            place = place.get(key).unwrap();
        }
        place.array().unwrap().data.dtype()
    };
    assert_eq!(dtype(&["model", VARIABLES, "out_bias"]), "float64");
    assert_eq!(dtype(&["model", "fitting", VARIABLES, "bias_atom_e"]), "float64");
    assert_eq!(dtype(&["model", "fitting", VARIABLES, "fparam_avg"]), "float32");
    assert_eq!(dtype(&["model", "descriptor", VARIABLES, "davg"]), "float32");
}

#[test]
fn both_biases_of_a_file_are_summed() {
    let model = sample(true, Precision::Float64);
    let more = Array::new(vec![2, 1], ArrayData::F64(vec![0.5, -2.0]));
    let tree = changed(&to_tree(&model), &["model", "fitting", VARIABLES, "bias_atom_e"], more.into());
    assert_eq!(from_tree(&tree).unwrap().stats.bias, [-93.1 + 0.5, -187.3 - 2.0]);
}

#[test]
fn a_net_that_is_left_out_is_allowed_for_an_excluded_pair_only() {
    let tree = to_tree(&sample(false, Precision::Float64));
    let without = |net: &str| {
        from_tree(&changed(&tree, &["model", "descriptor", "embeddings", "networks", net], Node::Null))
    };
    let model = without("1").unwrap();
    assert!(model.descriptor_nets[1].layers.iter().all(|layer| layer.w.iter().all(|&w| w == 0.0)));
    let message = without("0").unwrap_err().message().to_string();
    assert_eq!(message, "model.descriptor.embeddings.networks[0]: found null, wanted a map");
}

#[test]
fn a_script_without_numbers_for_sel_gets_them() {
    let mut model = sample(true, Precision::Float64);
    model.options.script["descriptor"]["sel"] = json!("auto");
    let back = from_tree(&to_tree(&model)).unwrap();
    assert_eq!(back.options.script["descriptor"]["sel"], json!([3, 5]));
    model.options.script = json!(null);
    let back = from_tree(&to_tree(&model)).unwrap();
    assert_eq!(back.options.script["fitting_net"]["trainable"], json!([true, false, true]));
    assert_eq!(back.options.descriptors, model.options.descriptors);
}

#[test]
fn what_is_not_supported_is_named() {
    let tree = to_tree(&sample(true, Precision::Float64));
    let mut rows = vec![0.0; 2 * 8 * 4];
    rows[37] = 1.0;
    let uneven = Array::new(vec![2, 8, 4], ArrayData::F64(rows));
    let cases: Vec<(&str, Node, &str)> = vec![
        ("model.type", "linear".into(), "model.type: model of type \"linear\" is not supported yet"),
        (
            "model.descriptor.type",
            "dpa2".into(),
            "model.descriptor.type: descriptor of type \"dpa2\" is not supported yet",
        ),
        (
            "model.fitting.type",
            "denoise".into(),
            "model.fitting.type: fitting net of type \"denoise\" is not supported yet",
        ),
        ("model.descriptor.rcut", "6".into(), "model.descriptor.rcut: found string \"6\", wanted a number"),
        ("model.descriptor.rcut", Node::Null, "model.descriptor: \"rcut\" is missing"),
        ("model.descriptor.@version", Node::Int(9), "model.descriptor.@version: found 9, wanted 1 to 3"),
        (
            "model.descriptor.sel",
            vec![3usize].into(),
            "model.descriptor.sel: found 1 entries, wanted one for each of 2 types",
        ),
        (
            "model.descriptor.precision",
            "bfloat16".into(),
            "model.descriptor.precision: precision \"bfloat16\" is not supported",
        ),
        (
            "model.descriptor.compress",
            Map::new().into(),
            "model.descriptor.compress: \"@variables\" is missing",
        ),
        (
            "model.descriptor.@variables.davg",
            uneven.into(),
            "model.descriptor.@variables.davg: type 1: slot 1 differs from slot 0",
        ),
        (
            "model.pair_exclude_types",
            Node::List(vec![vec![0usize, 5].into()]),
            "model.pair_exclude_types[0]: wanted two types below 2",
        ),
        (
            "model.fitting.exclude_types",
            vec![0usize].into(),
            "model.fitting: a fitting net that excludes other types than the model is not supported yet",
        ),
        (
            "model.fitting.mixed_types",
            true.into(),
            "model.fitting.mixed_types: mixed_types: true with such a descriptor is not supported yet",
        ),
        (
            "model.fitting.type_map",
            vec!["O"].into(),
            "model.fitting.type_map: found [\"O\"], wanted the type map of the model, [\"O\", \"N\"]",
        ),
        (
            "model.fitting.neuron",
            vec![5usize, 3].into(),
            "model.fitting.nets.networks[0].layers[1].@variables.w: found shape [5, 4], wanted [5, 3]",
        ),
        (
            "model.fitting.nets.networks",
            Node::List(vec![]),
            "model.fitting.nets.networks: found 0 nets, wanted 2",
        ),
        (
            "model.fitting.activation_function",
            "tanhh".into(),
            "model.fitting.activation_function: unknown activation function \"tanhh\"",
        ),
    ];
    for (path, value, message) in cases {
        let path: Vec<&str> = path.split('.').collect();
        let error = from_tree(&changed(&tree, &path, value)).unwrap_err();
        assert_eq!(error.message(), message);
    }
}
