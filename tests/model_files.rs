//! Model files of DeePMD-kit: the small ones of this project, and the reference cases where they are at hand.

mod common;

use common::skip;
use phalanx::export::{deepmd, read_model, read_model_tree, write_model};
use phalanx::model::activation::Activation;
use phalanx::model::dp::options::{Form, Precision, Sel};
use phalanx::model::dp::spec::{DpModel, Net};
use std::path::{Path, PathBuf};

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

/// The reference cases, or `None`, skipped by name.
fn oracle_cases() -> Option<Vec<PathBuf>> {
    let folder = std::env::var_os("PHALANX_ORACLE")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/oracle"), PathBuf::from);
    let Ok(entries) = std::fs::read_dir(&folder) else {
        skip(format!("{} is absent", folder.display()));
        return None;
    };
    let mut cases: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    cases.retain(|case| case.join("initial.dp").is_file());
    cases.sort();
    Some(cases)
}

/// Shape, first number and sum of every array of a net, as `make_models.py` notes them.
fn check_net(net: &Net, known: &serde_json::Value, place: &str) {
    let mut arrays = Vec::new();
    for layer in &net.layers {
        arrays.push((vec![layer.n_in, layer.n_out], &layer.w));
        arrays.push((vec![layer.n_out], &layer.b));
        arrays.extend(layer.idt.as_ref().map(|idt| (vec![layer.n_out], idt)));
    }
    let known = known.as_array().unwrap();
    assert_eq!(arrays.len(), known.len(), "{place}");
    for ((shape, values), known) in arrays.iter().zip(known) {
        assert_eq!(serde_json::json!(shape), known[0], "{place}");
        assert_eq!(values[0], known[1].as_f64().unwrap(), "{place}: first number");
        let sum: f64 = values.iter().sum();
        assert!((sum - known[2].as_f64().unwrap()).abs() < 1e-12, "{place}: sum {sum}, wanted {}", known[2]);
    }
}

fn check_golden(name: &str, model: &DpModel) {
    let text = std::fs::read_to_string(golden(&format!("{name}.json"))).unwrap();
    let known: serde_json::Value = serde_json::from_str(&text).unwrap();
    for (part, nets) in [("descriptor", &model.descriptor_nets), ("fitting", &model.fitting_nets)] {
        assert_eq!(nets.len(), known[part].as_array().unwrap().len());
        for (i, net) in nets.iter().enumerate() {
            check_net(net, &known[part][i], &format!("{name}: {part} {i}"));
        }
    }
    assert_eq!(model.stats.davg, [[0.5, 0.0, 0.0, 0.0], [0.625, 0.125, 0.125, 0.125]]);
    assert_eq!(model.stats.dstd, [[0.25, 0.75, 1.25, 1.75], [1.25, 1.75, 2.25, 2.75]]);
    assert_eq!(model.stats.bias, [-93.0, -187.0]); // out_bias plus bias_atom_e
    assert_eq!(model.stats.out_std, [0.75, 0.5]);
    assert_eq!(model.min_nbor_dist, Some(0.875));
    assert_eq!(model.options.type_map, ["O", "H"]);
}

#[test]
fn a_float64_model_by_deepmd_kit_has_the_known_numbers_in_both_formats() {
    for extension in ["dp", "yaml"] {
        let model = read_model(&golden(&format!("one_side_f64.{extension}"))).unwrap();
        check_golden("one_side_f64", &model);
        let descriptor = &model.options.descriptors.list[0];
        assert_eq!(descriptor.sel, Sel::Fixed(vec![3, 4]));
        assert_eq!((descriptor.rcut, descriptor.rcut_smth), (4.0, 0.5));
        assert_eq!(descriptor.form(), Form::Directions { axis: 2 });
        assert_eq!((descriptor.precision, descriptor.seed), (Precision::Float64, Some(1)));
        assert!(descriptor.type_one_side && descriptor.trainable && !descriptor.resnet_dt);
        let fitting = &model.options.fitting;
        assert_eq!((fitting.neuron.as_slice(), fitting.rcond), ([5, 5].as_slice(), Some(1e-3)));
        assert!(fitting.resnet_dt && fitting.atom_ener.is_empty());
        let last = model.fitting_nets[1].layers.last().unwrap();
        assert_eq!((last.activation, last.resnet), (Activation::None, false));
    }
}

#[test]
fn a_float32_model_by_deepmd_kit_has_the_known_numbers_in_both_formats() {
    for extension in ["dp", "yaml"] {
        let model = read_model(&golden(&format!("two_side_f32.{extension}"))).unwrap();
        check_golden("two_side_f32", &model);
        let descriptor = &model.options.descriptors.list[0];
        assert_eq!(descriptor.activation, Activation::Silut { threshold: 3.5 });
        assert_eq!(descriptor.exclude_types, [(0, 1)]);
        assert_eq!((descriptor.precision, descriptor.env_protection), (Precision::Float32, 1e-6));
        assert!(!descriptor.type_one_side && !descriptor.trainable);
        let fitting = &model.options.fitting;
        assert_eq!(
            (fitting.activation, fitting.numb_fparam, fitting.numb_aparam),
            (Activation::GeluTf, 2, 1)
        );
        assert_eq!(fitting.atom_ener, [Some(-1.5), None]);
        assert_eq!(fitting.trainable, [true, false, true]);
        assert_eq!(model.stats.fparam_avg, [0.5, -0.25]);
        assert_eq!(model.stats.aparam_inv_std, [8.0]);
    }
}

#[test]
fn both_formats_of_a_model_by_deepmd_kit_are_the_same_model() {
    for name in ["one_side_f64", "two_side_f32"] {
        let [dp, yaml] = ["dp", "yaml"].map(|e| read_model(&golden(&format!("{name}.{e}"))).unwrap());
        assert_eq!(dp, yaml);
    }
}

#[test]
fn models_of_other_outputs_come_back_in_both_formats() {
    let folder = tempfile::tempdir().unwrap();
    for (name, bias, deviation) in [
        ("dp_test/dos.dp", vec![-2.5, -1.5, -0.5, -1.25, -0.25, 0.75], vec![0.5, 0.5, 0.5, 0.75, 0.75, 0.75]),
        ("dp_test/property.dp", vec![-2.5, -1.5, -1.25, -0.25], vec![0.5, 0.5, 0.75, 0.75]),
    ] {
        let model = read_model(&golden(name)).unwrap();
        assert_eq!((&model.stats.bias, &model.stats.out_std), (&bias, &deviation), "{name}");
        for extension in ["dp", "yaml"] {
            let copy = folder.path().join(format!("copy.{extension}"));
            write_model(&copy, &model).unwrap();
            assert_eq!(read_model(&copy).unwrap(), model, "{name}");
        }
        // Without the section of the input the writer makes one up, which must be a good one.
        let mut bare = model.clone();
        bare.options.script = serde_json::Value::Null;
        let copy = folder.path().join("bare.dp");
        write_model(&copy, &bare).unwrap();
        let back = read_model(&copy).unwrap();
        assert_eq!(back.options.fitting, model.options.fitting, "{name}");
        let kind = &back.options.script["fitting_net"]["type"];
        assert_eq!(kind, model.options.fitting.type_name());
    }
}

#[test]
fn reference_models_read_and_come_back() {
    let Some(cases) = oracle_cases() else { return };
    let folder = tempfile::tempdir().unwrap();
    let mut read = 0;
    for case in cases {
        let path = case.join("initial.dp");
        let tree = read_model_tree(&path).unwrap();
        match deepmd::from_tree(&tree) {
            Ok(model) => {
                read += 1;
                let copy = folder.path().join("copy.dp");
                write_model(&copy, &model).unwrap();
                assert_eq!(read_model(&copy).unwrap(), model, "{}", path.display());
            }
            Err(e) => panic!("{}: {e}", path.display()),
        }
    }
    println!("{read} reference models read and came back");
}

/// A model of so many types, one net for each pair: its JSON is far beyond what fits into an HDF5 header.
fn many_types(n_types: usize) -> DpModel {
    let mut model = read_model(&golden("one_side_f64.dp")).unwrap();
    let descriptor = &mut model.options.descriptors.list[0];
    descriptor.sel = Sel::Fixed(vec![2; n_types]);
    descriptor.type_one_side = false;
    model.options.type_map = (0..n_types).map(|i| format!("X{i}")).collect();
    model.options.script = serde_json::Value::Null;
    model.descriptor_nets = vec![model.descriptor_nets[0].clone(); n_types * n_types];
    for (i, net) in model.descriptor_nets.iter_mut().enumerate() {
        net.layers[0].b[0] = i as f64;
    }
    model.fitting_nets = vec![model.fitting_nets[0].clone(); n_types];
    model.stats.davg = vec![[0.5; 4]; n_types];
    model.stats.dstd = vec![[0.25; 4]; n_types];
    model.stats.bias = (0..n_types).map(|i| i as f64).collect();
    model.stats.out_std = vec![1.0; n_types];
    model
}

#[test]
fn a_model_of_sixty_types_comes_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.dp");
    let mut model = many_types(60);
    write_model(&path, &model).unwrap();
    let back = read_model(&path).unwrap();
    assert_eq!(back.options.script["descriptor"]["type_one_side"], serde_json::json!(false));
    model.options.script = back.options.script.clone(); // made up by the writer, as there was none
    assert_eq!(back, model);
}

/// Writes models again for tools/check_deepmd_interop.sh: `$PHALANX_INTEROP_IN` is a list of model files
/// (separated by `:`); each comes out under `$PHALANX_INTEROP_OUT` as <name>.dp and <name>.yaml. A
/// model with thousands of nets comes out as many_types.dp.
#[test]
fn models_are_written_again_for_the_interop_script() {
    let (Ok(inputs), Ok(out)) = (std::env::var("PHALANX_INTEROP_IN"), std::env::var("PHALANX_INTEROP_OUT"))
    else {
        return skip(
            "PHALANX_INTEROP_IN and PHALANX_INTEROP_OUT are not set (tools/check_deepmd_interop.sh sets them)",
        );
    };
    write_model(&Path::new(&out).join("many_types.dp"), &many_types(60)).unwrap();
    for input in inputs.split(':').map(Path::new) {
        let model = read_model(input).unwrap();
        let stem = input.file_stem().unwrap().to_string_lossy();
        for extension in ["dp", "yaml"] {
            write_model(&Path::new(&out).join(format!("{stem}.{extension}")), &model).unwrap();
        }
    }
}
