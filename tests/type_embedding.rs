//! `model.type_embedding`: the numbers of DeePMD-kit's TensorFlow, derivatives by what is trained, and the real program.

mod common;
#[allow(dead_code)]
#[path = "oracle/arrays.rs"]
mod arrays;

use arrays::read_npz;
use common::place::succeed;
use common::{Place, small_input};
use phalanx::comm::local_group;
use phalanx::data::{Frame, Labels, System};
use phalanx::engine::cpu::net::{self, NetTrace};
use phalanx::engine::cpu::pool::Pool;
use phalanx::engine::cpu::real::Real;
use phalanx::engine::cpu::{CpuEngine, EmbeddingMode};
use phalanx::engine::reference::ReferenceEngine;
use phalanx::engine::type_embedding::{PlainParams, plain};
use phalanx::engine::{Engine, Prediction, Seeds};
use phalanx::export::{read_model, write_model};
use phalanx::model::activation::Activation;
use phalanx::model::dp::Dp;
use phalanx::model::dp::options::{ModelOptions, Precision};
use phalanx::model::dp::spec::DpStatistics;
use phalanx::model::dp::type_embedding::EmbeddedTypes;
use phalanx::model::net::NetShape;
use phalanx::optim::{Gradient, Target, Update};
use phalanx::train::input::Input;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

/// The largest difference over the largest wanted value.
fn deviation(got: &[f64], want: &[f64]) -> f64 {
    assert_eq!(got.len(), want.len());
    let scale = want.iter().fold(1e-12f64, |a, b| a.max(b.abs()));
    got.iter().zip(want).fold(0.0, |a: f64, (g, w)| if g.is_nan() { f64::NAN } else { a.max((g - w).abs()) })
        / scale
}

#[track_caller]
fn assert_near(got: &[f64], want: &[f64], tolerance: f64, about: &str) {
    let worst = deviation(got, want);
    assert!(worst < tolerance, "{about}: {worst:e}");
}

// ---- The mathematics.

/// A model of two elements: what differs from a small one by JSON pointer.
fn options(changes: &[(&str, Value)]) -> ModelOptions {
    let mut model = json!({
        "type_map": ["O", "H"],
        "type_embedding": {"neuron": [2, 4], "seed": 3},
        "descriptor": {"type": "se_e2_a", "sel": [14, 20], "rcut": 3.5, "neuron": [4, 8], "axis_neuron": 2, "seed": 1},
        "fitting_net": {"neuron": [5, 5], "seed": 1}
    });
    for (pointer, value) in changes {
        let (section, key) = pointer.rsplit_once('/').unwrap();
        model.pointer_mut(section).unwrap()[key] = value.clone();
    }
    ModelOptions::of_section(&model, "test").unwrap_or_else(|e| panic!("{e}"))
}

/// Every option that changes a formula.
fn all_options() -> Vec<(&'static str, ModelOptions)> {
    let se_a = json!({"type": "se_e2_a", "sel": [9, 12], "rcut": 3.0, "neuron": [4, 8], "axis_neuron": 2, "seed": 1});
    let one_side = json!({"type": "se_e2_a", "sel": [9, 12], "rcut": 2.6, "neuron": [3, 7], "type_one_side": true, "seed": 4});
    let mut scaled = one_side.clone();
    scaled["type"] = json!("se_a_ebd_v2");
    let radial = json!({"type": "se_e2_r", "sel": [9, 12], "rcut": 3.0, "neuron": [4], "seed": 2});
    let atten = json!({"type": "se_atten", "sel": 30, "rcut": 3.5, "neuron": [4, 8], "axis_neuron": 2, "attn": 4, "attn_layer": 1, "seed": 5});
    let hybrid = |list: Value| json!({"type": "hybrid", "list": list});
    vec![
        ("two sides", options(&[])),
        (
            "one side",
            options(&[("/descriptor/type_one_side", json!(true)), ("/descriptor/resnet_dt", json!(true))]),
        ),
        (
            "a deep net",
            options(&[
                (
                    "/type_embedding",
                    json!({"neuron": [3, 6, 4], "resnet_dt": true, "use_tebd_bias": true, "activation_function": "gelu"}),
                ),
                ("/fitting_net/numb_fparam", json!(1)),
                ("/fitting_net/numb_aparam", json!(1)),
            ]),
        ),
        (
            "electrons",
            options(&[("/type_embedding", json!({"use_econf_tebd": true, "activation_function": "linear"}))]),
        ),
        ("atom_ener", options(&[("/fitting_net/atom_ener", json!([-3.0, null]))])),
        ("hybrid", options(&[("/descriptor", hybrid(json!([se_a, one_side, radial])))])),
        ("before se_atten", options(&[("/descriptor", hybrid(json!([se_a, atten])))])),
        ("se_atten", options(&[("/descriptor", atten.clone())])),
        (
            "scaled",
            options(&[("/descriptor/type", json!("se_a_ebd_v2")), ("/descriptor/resnet_dt", json!(true))]),
        ),
        ("scaled, in a list", options(&[("/descriptor", hybrid(json!([scaled, se_a, atten])))])),
        ("dipole", options(&[("/fitting_net", json!({"type": "dipole", "neuron": [5, 5], "seed": 1}))])),
    ]
}

/// A model of these options with statistics that no data has.
fn model_of(options: ModelOptions) -> Arc<Dp> {
    let (n, fit) = (options.descriptors.list.len(), &options.fitting);
    let width = fit.output().width;
    let stats = DpStatistics {
        davg: [[0.11, 0.0, 0.0, 0.0], [0.17, 0.0, 0.0, 0.0]].repeat(n),
        dstd: [[0.2, 0.13, 0.13, 0.13], [0.21, 0.12, 0.12, 0.12]].repeat(n),
        bias: vec![-1.5; 2 * width],
        out_std: vec![1.0; 2 * width],
        fparam_avg: vec![0.4; fit.numb_fparam],
        fparam_inv_std: vec![2.0; fit.numb_fparam],
        aparam_avg: vec![0.1; fit.numb_aparam],
        aparam_inv_std: vec![3.0; fit.numb_aparam],
        ..DpStatistics::default()
    };
    Arc::new(Dp::new(options, stats))
}

fn embedded(model: &Dp) -> &EmbeddedTypes {
    model.embedded.as_ref().expect("types are embedded")
}

/// `[n_types, width]`
fn embed(model: &Dp, trained: &[f64]) -> Vec<f64> {
    let own = embedded(model);
    net::forward(&mut NetTrace::default(), &own.types.1, trained, &own.inputs).to_vec()
}

/// A net at one row of inputs.
fn value(net: &NetShape, params: &[f64], x: &[f64]) -> Vec<f64> {
    net::forward(&mut NetTrace::default(), net, params, x).to_vec()
}

/// A number that looks random.
fn noise(k: usize) -> f64 {
    ((k as f64 + 1.0) * 12.9898).sin()
}

#[test]
fn plain_nets_are_those_that_are_given_embedded_types() {
    for (name, options) in all_options() {
        let model = model_of(options);
        let own = embedded(&model);
        let trained = model.random_params(7);
        let (params, t, width) = (plain(&model, &trained), embed(&model, &trained), own.width());
        let of = |k: usize| &t[k * width..(k + 1) * width];
        let mut n_compared = 0;
        for (k, part) in model.parts().iter().enumerate() {
            if part.descriptor().kind.name() != "se_e2_a" {
                continue;
            }
            let nets = &own.descriptors[k];
            for (center, neighbor) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                for s in [-0.4, 0.3, 5.0] {
                    let mut x = of(neighbor).to_vec();
                    if !part.descriptor().type_one_side {
                        x.extend_from_slice(of(center));
                    }
                    let got = value(&part.embedding[part.embedding_net(center, neighbor)], &params, &[s]);
                    let want = match &nets[..] {
                        [(_, filter)] => value(filter, &trained, &[vec![s], x].concat()),
                        [(_, filter), (_, strip)] => {
                            let (g, n) = (value(filter, &trained, &[s]), value(strip, &trained, &x));
                            g.iter().zip(n).map(|(g, n)| g + g * n).collect()
                        }
                        _ => unreachable!("one net, or two"),
                    };
                    assert_near(&got, &want, 1e-13, name);
                    n_compared += 1;
                }
            }
        }
        let is_mixed = own.options.descriptors.is_mixed();
        assert!(n_compared > 0 || name == "se_atten", "{name}");
        for center in 0..2 {
            let d: Vec<f64> = (0..model.n_descriptor()).map(noise).collect();
            let extra: Vec<f64> = (0..model.n_extra()).map(|k| noise(k + 99)).collect();
            let got = value(&model.fitting[model.fitting_net(center)], &params, &[&d[..], &extra].concat());
            let x = if is_mixed { [&d[..], &extra].concat() } else { [&d, of(center), &extra].concat() };
            assert_near(&got, &value(&own.fitting, &trained, &x), 1e-13, name);
        }
        if is_mixed {
            let last = model.parts().pop().unwrap();
            assert_near(&params[last.attention().types.layers[0].w_range()], &t, 1e-15, name);
            assert_eq!(last.n_tail(), width, "{name}: embedded types follow the descriptor");
        }
    }
}

#[test]
fn the_way_back_is_the_adjoint_of_how_plain_parameters_change() {
    for (name, options) in all_options() {
        let model = model_of(options);
        let trained = model.random_params(7);
        let mut own = PlainParams::of(&model).unwrap();
        let pool = Pool::new(2).unwrap();
        own.gather(&pool, &trained);
        let (_, weights) = own.params_and_grad();
        weights.iter_mut().enumerate().for_each(|(k, w)| *w = noise(k));
        let weights = weights.to_vec();
        let mut grad = vec![f64::NAN; trained.len()];
        own.scatter(&pool, &mut grad, &trained);
        let sum =
            |trained: &[f64]| plain(&model, trained).iter().zip(&weights).map(|(p, w)| p * w).sum::<f64>();
        for k in 0..trained.len() {
            let at = |h: f64| {
                let mut moved = trained.clone();
                moved[k] += h;
                sum(&moved)
            };
            let want = (at(1e-5) - at(-1e-5)) / 2e-5;
            assert!((grad[k] - want).abs() < 1e-7 * (1.0 + want.abs()), "{name}: {k}: {} {want}", grad[k]);
        }
    }
}

/// Eight atoms in a periodic box.
fn frame(model: &Dp, seed: usize) -> Frame {
    let n = 8;
    let coord = (0..3 * n).map(|k| {
        let (i, c) = (k / 3, k % 3);
        2.2 * ((i >> c) & 1) as f64 + 0.4 * noise(97 * seed + k)
    });
    let fit = &model.options.fitting;
    Frame {
        coord: coord.collect(),
        types: [0, 1, 1, 0, 1, 1, 0, 1].into(),
        cell: Some([4.4, 0.0, 0.0, 0.1, 4.6, 0.0, 0.0, -0.1, 4.5]),
        fparam: (0..fit.numb_fparam).map(|k| noise(k + 5)).collect(),
        aparam: (0..n * fit.numb_aparam).map(|k| noise(k + 31)).collect(),
        sorted: true,
        labels: Labels::default(),
    }
}

/// Coefficients of a loss that is linear in everything predicted, its value, and its gradient by the trained parameters.
fn linear_loss<E: Engine>(
    engine: &mut E,
    model: &Dp,
    trained: &[f64],
    frames: &[Frame],
    grad: Option<&mut Vec<f64>>,
) -> f64 {
    let prepare = engine.preparer();
    let prepared: Vec<_> = frames.iter().map(|f| prepare(f).unwrap()).collect();
    let batch: Vec<_> = prepared.iter().collect();
    let mut own = PlainParams::of(model).unwrap();
    let params = own.gather(&Pool::serial(), trained).to_vec();
    let mut out = Prediction::default();
    engine.evaluate(&mut out, &params, &batch);
    let mut at = 0;
    let mut like = |n: usize| -> Vec<f64> {
        at += n;
        (at - n..at).map(noise).collect()
    };
    let seeds = Seeds {
        dl_energy: like(out.energy.len()),
        dl_atom_energy: like(out.atom_energy.len()),
        dl_force: like(out.force.len()),
        dl_virial: like(9 * out.virial.len()).as_chunks::<9>().0.to_vec(),
        dl_output: like(out.output.len()),
        dl_atom_output: like(out.atom_output.len()),
    };
    if let Some(grad) = grad {
        let (params, own_grad) = own.params_and_grad();
        engine.backward(own_grad, params, &batch, &seeds);
        grad.resize(trained.len(), 0.0);
        own.scatter(&Pool::serial(), grad, trained);
    }
    let lists = [
        &seeds.dl_energy[..],
        &seeds.dl_atom_energy,
        &seeds.dl_force,
        seeds.dl_virial.as_flattened(),
        &seeds.dl_output,
        &seeds.dl_atom_output,
    ];
    lists.iter().zip(out.lists()).flat_map(|(a, b)| a.iter().zip(b)).map(|(a, b)| a * b).sum()
}

#[test]
fn gradients_by_what_is_trained_agree_with_central_differences_on_both_engines() {
    for (name, options) in all_options() {
        let model = model_of(options);
        let trained = model.random_params(11);
        let frames = [frame(&model, 1), frame(&model, 2)];
        let mut reference = ReferenceEngine::new(model.clone());
        let (mut grad, mut of_cpu) = (Vec::new(), Vec::new());
        let value = linear_loss(&mut reference, &model, &trained, &frames, Some(&mut grad));
        for mode in [EmbeddingMode::Chebyshev { min_distance: 1.0 }, EmbeddingMode::Direct] {
            let mut cpu = CpuEngine::<f64>::new(model.clone(), 2, mode).unwrap();
            cpu.adapt(&plain(&model, &trained));
            let again = linear_loss(&mut cpu, &model, &trained, &frames, Some(&mut of_cpu));
            assert!((again - value).abs() < 1e-9 * (1.0 + value.abs()), "{name}: {again} {value}");
            assert_near(&of_cpu, &grad, 1e-9, name);
        }
        // All of the net that embeds types, and some of the others.
        let types = embedded(&model).types.1.params();
        for k in (0..trained.len()).filter(|k| types.contains(k) || k % 13 == 0) {
            let mut at = |h: f64| {
                let mut moved = trained.clone();
                moved[k] += h;
                linear_loss(&mut reference, &model, &moved, &frames, None)
            };
            let want = (at(1e-5) - at(-1e-5)) / 2e-5;
            assert!((grad[k] - want).abs() < 1e-5 * (1.0 + want.abs()), "{name}: {k}: {} {want}", grad[k]);
        }
    }
}

// ---- The numbers of DeePMD-kit.

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

/// What DeePMD-kit's TensorFlow noted of a training.
struct Golden {
    name: String,
    input: Input,
    model: Arc<Dp>,
    arrays: HashMap<String, Vec<f64>>,
    frames: Vec<Frame>,
}

/// TensorFlow's name of a block of parameters.
fn name_in_tensorflow(name: &str) -> String {
    let (front, rest) = name.rsplit_once(".layers.").unwrap();
    let (layer, what) = rest.split_once('.').unwrap();
    let layer: usize = layer.parse().unwrap();
    if front.starts_with("type_embedding") {
        return format!("type_embed_net/{what}_{}", layer + 1);
    }
    if front.starts_with("fitting_net") {
        return format!("layer_{layer}/{what}");
    }
    let place = front.strip_prefix("descriptor.descrpt_list.").map(|rest| rest.split_once('.').unwrap().0);
    let suffix = place.map_or(String::new(), |k| format!("_{k}"));
    let net = front.rsplit_once('.').unwrap().1;
    let kind = if front.contains("strip") {
        // Which of the two an array has tells how many types it is given.
        "_SIDE_ebd".to_string()
    } else if front.contains(".sea.") || front.contains("se_atten") {
        String::new()
    } else {
        format!("_{net}") // se_e2_r has a net for each type
    };
    format!("filter_type_all{suffix}/{what}_{}{kind}", layer + 1)
}

impl Golden {
    fn open(folder: &Path) -> Golden {
        let (input, _) = Input::read(&folder.join("input.json")).unwrap_or_else(|e| panic!("{e}"));
        let arrays = read_npz(&folder.join("case.npz")).unwrap();
        let options = input.model.clone();
        let (n_types, fit) = (options.type_map.len(), &options.fitting);
        let row = |x: &[f64]| match x {
            [s] => [*s, 0.0, 0.0, 0.0],
            x => std::array::from_fn(|c| x[c]),
        };
        let rows = |what: &str| -> Vec<[f64; 4]> {
            let parts = 0..options.descriptors.list.len();
            let of_part = |k: usize| &arrays[&format!("{what}/{k}")];
            parts
                .flat_map(|k| of_part(k).chunks(of_part(k).len() / n_types).map(row).collect::<Vec<_>>())
                .collect()
        };
        let deviations = |rows: Vec<[f64; 4]>| {
            rows.into_iter().map(|row| row.map(|x| if x == 0.0 { 1.0 } else { x })).collect()
        };
        let of = |name: &str, n: usize| arrays.get(name).cloned().unwrap_or_else(|| vec![0.0; n]);
        let stats = DpStatistics {
            davg: rows("davg"),
            dstd: deviations(rows("dstd")),
            bias: arrays["bias"].clone(),
            out_std: vec![1.0; n_types],
            fparam_avg: of("fparam_avg", fit.numb_fparam),
            fparam_inv_std: of("fparam_istd", fit.numb_fparam),
            aparam_avg: of("aparam_avg", fit.numb_aparam),
            aparam_inv_std: of("aparam_istd", fit.numb_aparam),
            ..DpStatistics::default()
        };
        let model = Arc::new(Dp::new(options, stats));
        let system = golden("se_e2_a/data").join(&input.training.training_data.systems[0]);
        let wants = input.loss.wants(&input.model.fitting);
        let system = System::open(&system.to_string_lossy(), &model.options.type_map, &wants).unwrap();
        let frames = (0..system.n_frames).map(|k| system.read_frame(k).unwrap()).collect();
        Golden { name: folder.file_name().unwrap().to_string_lossy().into(), input, model, arrays, frames }
    }

    fn is_single(&self) -> bool {
        self.model.options.precision() == Precision::Float32
    }

    /// The trained parameters before a step, or the gradient there; blocks without a gradient have 0.
    fn vector(&self, step: usize, of: &str) -> Vec<f64> {
        let table = self.model.trained_table();
        let n_hidden = self.model.options.fitting.neuron.len();
        let mut all = vec![0.0; table.len()];
        for view in table.views() {
            let name = name_in_tensorflow(&view.name).replace(&format!("layer_{n_hidden}/"), "final_layer/");
            let of_side = |side: &str| self.arrays.get(&format!("{step}/{of}{}", name.replace("SIDE", side)));
            match of_side("two_side").or_else(|| of_side("one_side")) {
                Some(values) => all[view.range()].copy_from_slice(values),
                None if !of.is_empty() => {
                    assert!(!view.trainable, "{}: {step}/{of}{name} is missing", self.name)
                }
                None => panic!("{}: {step}/{name} is missing: {:?}", self.name, self.arrays.keys()),
            }
        }
        all
    }

    /// Predictions, losses and gradients along DeePMD-kit's way, and our own way beside it.
    fn check<E: Engine>(&self, engine: &mut E, about: &str, far: &mut Vec<String>) {
        let mut near = |got: &[f64], want: &[f64], tolerance: f64, about: String| {
            let worst = deviation(got, want);
            if worst.is_nan() || worst > tolerance {
                far.push(format!("{about}: {worst:e}"));
            }
        };
        // TensorFlow has two constants with fewer digits: one of gelu_tf, and the 1/5 of se_e2_r.
        let se = &self.model.options.descriptors.list;
        let is_rounded = se.iter().any(|se| se.activation == Activation::Gelu || se.form().components() == 1);
        let (tight, loose) = match is_rounded {
            _ if self.is_single() => (3e-5, 1e-3),
            true => (1e-7, 1e-5),
            false => (1e-10, 1e-8),
        };
        let about = format!("{}, {about}", self.name);
        let prepare = engine.preparer();
        let prepared: Vec<_> = self.frames.iter().map(|f| prepare(f).unwrap()).collect();
        let batch: Vec<_> = prepared.iter().collect();
        let frames: Vec<&Frame> = self.frames.iter().collect();
        let loss = self.input.loss.build(0.01, &self.model);
        let table = self.model.trained_table();
        let target = Target { table, pool: Pool::serial(), single: false, rank: 0, size: 1, seed: 0 };
        let mut optimizer = self.input.optimizer.build(&target).unwrap();
        let mut alone = local_group(1).remove(0);
        let mut own_way = self.vector(0, "");
        let n_steps = (0..).find(|step| !self.arrays.contains_key(&format!("{step}/loss"))).unwrap();
        assert!(n_steps > 3, "{about}");
        for step in 0..n_steps {
            let [want_loss, rate] = ["loss", "rate"].map(|what| self.arrays[&format!("{step}/{what}")][0]);
            let mut differentiate = |trained: &[f64]| {
                let mut own = PlainParams::of(&self.model).unwrap();
                let params = own.gather(&Pool::serial(), trained).to_vec();
                engine.adapt(&params);
                let (mut out, mut seeds) = (Prediction::default(), Seeds::default());
                engine.evaluate(&mut out, &params, &batch);
                let value = loss.differentiate(&mut seeds, &out, &frames, rate).loss;
                let (params, own_grad) = own.params_and_grad();
                engine.backward(own_grad, params, &batch, &seeds);
                let mut grad = vec![0.0; trained.len()];
                own.scatter(&Pool::serial(), &mut grad, trained);
                (out, value, grad)
            };
            let (out, value, mut grad) = differentiate(&self.vector(step, ""));
            if step == 0 {
                for (what, got) in [
                    ("energy", &out.energy[..]),
                    ("atom_energy", &out.atom_energy),
                    ("force", &out.force),
                    ("virial", out.virial.as_flattened()),
                ] {
                    near(got, &self.arrays[what], tight, format!("{about}: {what}"));
                }
            }
            near(&[value], &[want_loss], tight, format!("{about}: loss {step}"));
            let want = self.vector(step, "gradient/");
            for view in table.views() {
                if view.trainable {
                    let about = format!("{about}: gradient {step} of {}", view.name);
                    near(&grad[view.range()], &want[view.range()], loose, about);
                }
            }
            (_, _, grad) = differentiate(&own_way);
            let update = Update { step: step as u64, rate, max_norm: 0.0, wants_norm: false };
            optimizer.update(&mut own_way, Gradient::of(&grad), &update, &mut *alone).unwrap();
        }
        // TensorFlow adds its epsilon to the root of the second moment in another place: small gradients move less there.
        let tolerance = 2e-3;
        near(&own_way, &self.vector(n_steps, ""), tolerance, format!("{about}: after the last step"));
    }

    fn check_cpu<T: Real>(&self, far: &mut Vec<String>) {
        for mode in [EmbeddingMode::Chebyshev { min_distance: 1.0 }, EmbeddingMode::Direct] {
            self.check(
                &mut CpuEngine::<T>::new(self.model.clone(), 2, mode).unwrap(),
                &format!("CPU {mode:?}"),
                far,
            );
        }
    }
}

#[test]
fn models_are_trained_as_by_deepmd_kits_tensorflow() {
    let mut folders: Vec<PathBuf> =
        std::fs::read_dir(golden("type_embedding")).unwrap().map(|e| e.unwrap().path()).collect();
    folders.retain(|folder| folder.join("case.npz").exists());
    folders.sort();
    assert!(folders.len() >= 8, "only {} cases were found", folders.len());
    let mut far = Vec::new();
    for folder in folders {
        let case = Golden::open(&folder);
        case.check(&mut ReferenceEngine::new(case.model.clone()), "reference", &mut far);
        if case.is_single() { case.check_cpu::<f32>(&mut far) } else { case.check_cpu::<f64>(&mut far) }
    }
    assert!(far.is_empty(), "{}", far.join("\n"));
}

// ---- The program.

/// Models for the real program: what stands in place of the small input's descriptor, and the embedding.
fn models() -> Vec<(&'static str, Value)> {
    let se_a = |keys: Value| {
        let mut all = json!({"type": "se_e2_a", "sel": [24, 40], "rcut": 4.0, "rcut_smth": 1.0, "neuron": [4, 8], "axis_neuron": 2, "seed": 1});
        all.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
        all
    };
    let atten = json!({"type": "se_atten", "sel": 60, "rcut": 4.0, "neuron": [4, 8], "axis_neuron": 2, "attn": 4, "attn_layer": 0,
        "tebd_input_mode": "strip", "smooth_type_embedding": true, "seed": 2});
    vec![
        ("two sides", se_a(json!({}))),
        ("one side", se_a(json!({"type_one_side": true, "resnet_dt": true}))),
        (
            "hybrid",
            json!({"type": "hybrid", "list": [se_a(json!({})), se_a(json!({"rcut": 3.0, "type_one_side": true, "seed": 3}))]}),
        ),
        ("before se_atten", json!({"type": "hybrid", "list": [se_a(json!({})), atten]})),
        ("scaled", se_a(json!({"type": "se_a_ebd_v2", "resnet_dt": true}))),
    ]
}

fn input_with(descriptor: &Value, steps: u64) -> Value {
    let mut input = small_input(steps, 10);
    input["model"]["descriptor"] = descriptor.clone();
    input["model"]["type_embedding"] = json!({"neuron": [2, 4], "use_tebd_bias": true, "seed": 4});
    input
}

/// Energies that `dp test` predicts for the system `train`, eV.
fn energies(place: &Place, model: &str) -> Vec<f64> {
    place.dp(&format!("test -m {model} -s train -d detail")).succeeds();
    let text = place.text("detail.e.out");
    let rows = text.lines().filter(|line| !line.starts_with('#'));
    rows.map(|row| row.split_whitespace().nth(1).unwrap().parse().unwrap()).collect()
}

#[test]
fn a_run_goes_on_to_the_bit_and_its_model_files_predict_what_its_checkpoint_does() {
    for (name, descriptor) in models() {
        let (whole, parts) = (Place::with_data(), Place::with_data());
        whole.input("input.json", &input_with(&descriptor, 20));
        whole.dp("train input.json").succeeds();
        parts.input("input.json", &input_with(&descriptor, 10));
        parts.dp("train input.json").succeeds();
        parts.input("input.json", &input_with(&descriptor, 20));
        parts.dp("train input.json --restart model.ckpt").succeeds();
        assert_eq!(parts.text("lcurve.out"), whole.text("lcurve.out"), "{name}");
        let want = energies(&whole, "model.ckpt");
        for file in ["model.dp", "model.yaml"] {
            parts.dp(&format!("freeze -o {file}")).succeeds();
            assert_near(&energies(&parts, file), &want, 1e-11, name);
        }
        // The plain model is all that other programs see of it.
        let model = read_model(&parts.path("model.dp")).unwrap();
        assert!(model.options.type_embedding.is_none() && model.embedded.is_some(), "{name}");
        let without = phalanx::model::dp::spec::DpModel { embedded: None, ..model };
        write_model(&parts.path("plain.dp"), &without).unwrap();
        assert_near(&energies(&parts, "plain.dp"), &want, 1e-11, name);
        parts.dp("convert-backend model.dp again.yaml").succeeds();
        assert_eq!(
            read_model(&parts.path("again.yaml")).unwrap(),
            read_model(&parts.path("model.dp")).unwrap()
        );
        let shown = parts.dp("show model.dp type-map descriptor size").succeeds().stderr;
        for line in
            ["The type_embedding parameter is", "Parameters in type-embedding, part of the descriptor: 18"]
        {
            assert!(shown.contains(line), "{name}: {line}: {shown}");
        }
    }
}

#[test]
fn training_begins_with_a_checkpoint_or_a_model_file_of_such_a_training() {
    let place = Place::with_data();
    let mut input = input_with(&models()[0].1, 10);
    place.input("input.json", &input);
    place.dp("train input.json").succeeds();
    place.dp("freeze -o model.dp").succeeds();
    let want = energies(&place, "model.ckpt");
    input["learning_rate"] = json!({"type": "exp", "start_lr": 1e-30, "stop_lr": 1e-31, "decay_steps": 1});
    input["training"]["numb_steps"] = json!(1);
    input["training"]["save_ckpt"] = json!("next");
    input["model"]["data_stat_nbatch"] = json!(100);
    place.input("next.json", &input);
    for from in ["model.ckpt", "model.dp"] {
        place.dp(&format!("train next.json --init-model {from}")).succeeds();
        assert_near(&energies(&place, "next"), &want, 1e-11, from);
    }
    // Labels of another method: fine-tuning shifts the bias by what is left on the mean.
    place.write("train/set.000/energy.npy", common::npy(&[12, 1], &[70.0; 12]));
    for from in ["model.ckpt", "model.dp"] {
        place.dp(&format!("train next.json --finetune {from}")).succeeds();
        let left = energies(&place, "next").iter().map(|e| e - 70.0).sum::<f64>() / 12.0;
        assert!(left.abs() < 1e-6, "--finetune {from}: {left}");
    }
    place.dp("change-bias model.dp -s train -o shifted.dp").succeeds();
    let left = energies(&place, "shifted.dp").iter().map(|e| e - 70.0).sum::<f64>() / 12.0;
    assert!(left.abs() < 1e-6, "change-bias: {left}");
    // Without embedded types the plain model goes on, and a plain one is not enough for them.
    let mut without = input.clone();
    without["model"].as_object_mut().unwrap().remove("type_embedding");
    place.input("plain.json", &without);
    place.dp("train plain.json --init-model model.dp").succeeds();
    place.dp("freeze -c next -o plain.dp").succeeds();
    place
        .dp("train next.json --init-model plain.dp")
        .fails(&["model.type_embedding: the model to begin with has no embedded types", "leave the key out"]);
    input["model"]["type_embedding"]["neuron"] = json!([2, 3]);
    place.input("other.json", &input);
    place.dp("train other.json --init-model model.dp").fails(&["the model section differs"]);
}

#[test]
fn ranks_train_what_one_rank_with_as_many_batches_does() {
    let curve = |place: &common::place::Place| -> Vec<f64> {
        let text = place.read("lcurve.out");
        text.lines()
            .filter(|l| !l.starts_with('#'))
            .flat_map(|l| l.split_whitespace().map(|x| x.parse().unwrap()).collect::<Vec<f64>>())
            .collect()
    };
    let types = ("/model/type_embedding", json!({"neuron": [2, 4], "seed": 4}));
    let alone = common::place::Place::new(&[types.clone(), ("/training/gradient_accumulation", json!(2))]);
    succeed(&mut alone.alone("train input.json --device cpu", &[]));
    for changes in [
        vec![types.clone()],
        vec![
            types.clone(),
            ("/training/ranks_per_frame", json!(2)),
            ("/training/gradient_accumulation", json!(2)),
        ],
    ] {
        let together = common::place::Place::new(&changes);
        together.by_hand(2, "train input.json --device cpu", &[]).iter_mut().for_each(succeed);
        assert_near(&curve(&together), &curve(&alone), 1e-6, "ranks");
    }
}

#[test]
fn deepmd_kit_reads_the_plain_model() {
    let python = std::env::var("PYTHON").unwrap_or_else(|_| "python3".into());
    if !Command::new(&python).args(["-c", "import deepmd"]).output().is_ok_and(|out| out.status.success()) {
        return common::skip("PYTHON has no DeePMD-kit");
    }
    for (name, descriptor) in models() {
        let place = Place::with_data();
        place.input("input.json", &input_with(&descriptor, 10));
        place.dp("train input.json").succeeds();
        place.dp("freeze -o model.dp").succeeds();
        let want = energies(&place, "model.dp");
        let mut command = Command::new(&python);
        command.args(["-m", "deepmd", "--pt", "test", "-m", "model.pth", "-s", "train", "-d", "theirs"]);
        let mut convert = Command::new(&python);
        convert.args(["-m", "deepmd", "convert-backend", "model.dp", "model.pth"]);
        for command in [&mut convert, &mut command] {
            command.current_dir(place.path(".")).env("CUDA_VISIBLE_DEVICES", "");
            common::Ended::from(command.output().unwrap()).succeeds();
        }
        let text = place.text("theirs.e.out");
        let rows = text.lines().filter(|line| !line.starts_with('#'));
        let theirs: Vec<f64> =
            rows.map(|row| row.split_whitespace().nth(1).unwrap().parse().unwrap()).collect();
        assert_near(&theirs, &want, 1e-10, name);
    }
}
