//! The parameters before the first step: those that DeePMD-kit draws with the same seeds.

use super::descriptor::nets::{NetKind, NetPlan};
use super::model::Dp;
use super::options::{FittingOptions, Precision};
use super::type_embedding::EmbeddedTypes;
use crate::model::net::{LayerShape, NetShape};
use crate::sample::torch::{Generator, mix_seeds};
use std::ops::Range;

/// Where the initial parameters of a net come from.
#[derive(Clone, Copy)]
struct Source<'a> {
    kind: NetKind,
    /// Layers before the output layer.
    n_hidden: usize,
    /// The seed of the section, and what it is mixed with for this net.
    seed: Option<u64>,
    seeds: &'a [u64],
    precision: Precision,
}

impl Dp {
    /// The parameters that DeePMD-kit (PyTorch, CPU) starts from.
    ///
    /// A section with a seed has a generator of its own for each layer. One without draws from `global`. DeePMD-kit
    /// makes the hidden layers of each net a second time without a seed, only to overwrite them: `global` goes past
    /// those as well, so that afterwards it gives what it gives there.
    ///
    /// - global  the generator of the run; see [`crate::sample::statistics::global_generator`]
    pub fn initial_params(&self, global: &mut Generator) -> Vec<f64> {
        if let Some(own) = &self.embedded {
            return own.initial_params(global);
        }
        let mut params = vec![0.0; self.table.len()];
        let mut shapes = self.embedding.iter();
        for se in &self.options.descriptors.list {
            let plans = se.nets("", self.n_types());
            let nets: Vec<_> = plans.iter().zip(shapes.by_ref()).collect();
            init_nets(&mut params, global, nets, (se.seed, se.precision));
        }
        init_fitting(&mut params, global, &self.options.fitting, &self.fitting);
        params
    }

    /// Makes initial parameters learn faster: the first embedding layer three times as steep, fitting biases a tenth.
    ///
    /// Chosen by the force error on one water set, on two seeds: docs/notebook/performance.md has all that was tried.
    pub fn sharpen(&self, params: &mut [f64]) {
        let of_distances = self.options.descriptors.list.iter().all(|se| se.form().has_series());
        let takes_s = |name: &str| {
            of_distances && name.ends_with("layers.0.matrix") && !name.contains("filter_layers_strip")
        };
        for view in self.trained_table().views() {
            let is_of = |part: &str| view.name.starts_with(part);
            let (range, scale) = match view.range() {
                // What s is multiplied by; embedded types have rows behind it.
                range if is_of("descriptor") && takes_s(&view.name) => {
                    (range.start..range.start + view.shape[1], 3.0)
                }
                range if is_of("fitting_net") && view.name.ends_with("bias") => (range, 0.1),
                _ => continue,
            };
            params[range].iter_mut().for_each(|p| *p *= scale);
        }
    }

    /// [`Dp::initial_params`] where `seed` is that of the global generator and nothing was drawn from it before.
    pub fn random_params(&self, seed: u64) -> Vec<f64> {
        self.initial_params(&mut Generator::new(seed))
    }
}

impl EmbeddedTypes {
    /// The parameters that training starts from. Only DeePMD-kit's TensorFlow has such models, whose random numbers are its own.
    fn initial_params(&self, global: &mut Generator) -> Vec<f64> {
        let mut params = vec![0.0; self.table.len()];
        for (se, nets) in self.options.descriptors.list.iter().zip(&self.descriptors) {
            let nets = nets.iter().map(|(plan, shape)| (plan, shape)).collect();
            init_nets(&mut params, global, nets, (se.seed, se.precision));
        }
        if let Some(own) = &self.options.type_embedding {
            let (plan, shape) = &self.types;
            init_nets(&mut params, global, vec![(plan, shape)], (own.seed, own.precision));
        }
        init_fitting(&mut params, global, &self.options.fitting, std::slice::from_ref(&self.fitting));
        params
    }
}

/// Makes nets of a section in the order in which DeePMD-kit makes them.
fn init_nets(
    params: &mut [f64],
    global: &mut Generator,
    mut nets: Vec<(&NetPlan, &NetShape)>,
    (seed, precision): (Option<u64>, Precision),
) {
    nets.sort_by_key(|(plan, _)| plan.place);
    for (NetPlan { kind, seeds, neuron, .. }, shape) in nets {
        init_net(
            params,
            global,
            shape,
            Source { kind: *kind, n_hidden: neuron.len(), seed, seeds, precision },
        );
    }
}

fn init_fitting(params: &mut [f64], global: &mut Generator, fit: &FittingOptions, nets: &[NetShape]) {
    for (place, net) in nets.iter().enumerate() {
        let (n_hidden, seed, precision) = (fit.neuron.len(), fit.seed, fit.precision);
        let source = Source { kind: NetKind::Chain, n_hidden, seed, seeds: &[place as u64], precision };
        init_net(params, global, net, source);
    }
}

/// Makes a net.
fn init_net(params: &mut [f64], global: &mut Generator, net: &NetShape, source: Source) {
    let mut init = |k: usize, global: &mut Generator| {
        let layer = &net.layers[k];
        let tensors = match source.seed {
            Some(seed) => {
                let number: &[u64] = if source.kind == NetKind::Chain { &[k as u64] } else { &[] };
                let mut own = Generator::new(mix_seeds(&[number, source.seeds, &[seed]].concat()));
                draw_layer(&mut own, layer, source.precision)
            }
            None => draw_layer(global, layer, source.precision),
        };
        for (range, values) in tensors {
            params[range].copy_from_slice(&values);
        }
    };
    match source.kind {
        NetKind::Norm => params[net.layers[0].w_range()].fill(1.0), // and no shift; nothing is drawn
        NetKind::Layer => init(0, global),
        NetKind::Chain => {
            (0..source.n_hidden).for_each(|k| init(k, global));
            for layer in &net.layers[..source.n_hidden] {
                draw_layer(global, layer, source.precision); // overwritten there, dropped here
            }
            (source.n_hidden..net.layers.len()).for_each(|k| init(k, global));
        }
    }
}

/// The tensors of a layer, and where they lie in the flat vector.
///
/// Weights have mean 0 and deviation 1 / sqrt(n_in + n_out), biases 0 and 1, time steps 0.1 and 0.001.
fn draw_layer(
    generator: &mut Generator,
    layer: &LayerShape,
    precision: Precision,
) -> Vec<(Range<usize>, Vec<f64>)> {
    let spread = 1.0 / ((layer.n_in + layer.n_out) as f64).sqrt();
    let weights = (Some(layer.w_range()), 0.0, spread);
    let tensors = [weights, (layer.b_range(), 0.0, 1.0), (layer.idt_range(), 0.1, 0.001)];
    let mut drawn = Vec::with_capacity(tensors.len());
    for (range, mean, deviation) in tensors {
        let Some(range) = range else { continue };
        let values = match precision {
            Precision::Float64 => {
                let mut values = vec![0.0; range.len()];
                generator.normal_f64(&mut values, mean, deviation);
                values
            }
            Precision::Float32 => {
                let mut values = vec![0.0; range.len()];
                generator.normal_f32(&mut values, mean, deviation);
                values.into_iter().map(f64::from).collect()
            }
        };
        drawn.push((range, values));
    }
    drawn
}

#[cfg(test)]
mod tests {
    //! Golden frames of `dp --pt train` of DeePMD-kit 3.2.0 with PyTorch 2.11.0 on the CPU, printed by a wrapper
    //! around `torch.utils.data.RandomSampler`; three systems of 16, 6 and 6 frames.
    use super::*;
    use crate::config::{Section, check::check};
    use crate::model::dp::options::{MODEL, ModelOptions};
    use crate::model::dp::spec::DpStatistics;
    use crate::sample::statistics::{frames_for_statistics, global_generator};
    use serde_json::{Value, json};

    fn small() -> Value {
        json!({
            "type_map": ["Cu", "H", "O"],
            "descriptor": {
                "type": "se_e2_a", "sel": [20, 28, 24], "rcut": 4.0, "neuron": [6, 12, 24], "axis_neuron": 4,
                "type_one_side": true, "seed": 1
            },
            "fitting_net": {"neuron": [16, 16, 16], "resnet_dt": true, "seed": 1}
        })
    }

    /// Awkward widths, float32 in one part, time steps and one net for each pair.
    fn awkward() -> Value {
        let mut model = small();
        model["descriptor"] = json!({
            "type": "se_e2_a", "sel": [20, 28, 24], "rcut": 4.0, "neuron": [2, 4, 9, 9], "axis_neuron": 4,
            "resnet_dt": true, "type_one_side": false
        });
        model["fitting_net"] = json!({"neuron": [7, 14, 14, 15], "resnet_dt": true, "precision": "float32"});
        model
    }

    fn dp(model: &Value) -> Dp {
        let full = check(&MODEL, model, "test").unwrap().value;
        let options = ModelOptions::resolve(&Section::root(&full)).unwrap();
        Dp::new(options, DpStatistics::default())
    }

    fn frames(model: &Value, n_loaders: usize, batch: (usize, usize), seed: u64) -> Vec<Vec<usize>> {
        let mut generator = global_generator(seed, n_loaders);
        dp(model).initial_params(&mut generator);
        frames_for_statistics(&mut generator, &[16, 6, 6], &[batch.0; 3], batch.1)
    }

    #[test]
    fn frames_are_those_of_deepmd_kit() {
        let want = [[12, 6, 1, 7], [4, 5, 1, 2], [2, 0, 3, 5]];
        assert_eq!(frames(&small(), 3, (1, 4), 10), want);
    }

    #[test]
    fn validation_data_of_one_system_changes_the_frames_as_in_deepmd_kit() {
        let want = [[6, 5, 15, 1], [0, 1, 4, 5], [4, 5, 1, 2]];
        assert_eq!(frames(&small(), 1, (1, 4), 10), want);
    }

    #[test]
    fn parts_without_a_seed_change_the_frames_as_in_deepmd_kit() {
        let seed = (1 << 32) + 12345;
        let want = [[0, 2, 6, 1, 11, 7], [1, 4, 5, 0, 3, 2], [5, 1, 4, 0, 3, 2]];
        assert_eq!(frames(&awkward(), 3, (3, 2), seed), want);
        let mut one_seeded = awkward();
        one_seeded["descriptor"]["seed"] = json!(5);
        let want = [[8, 2, 10, 1, 6, 15], [4, 3, 1, 0, 2, 5], [0, 4, 1, 2, 5, 3]];
        assert_eq!(frames(&one_seeded, 3, (3, 2), seed), want);
    }

    /// The last number of a parameter. Golden: `deepmd.pt.model.model.get_model(model)` after
    /// `setup_seed([0, seed % 2**32])` and three `torch.empty((), dtype=torch.int64).random_()`.
    fn check_last(model: &Value, golden: &[(&str, f64)]) {
        let model = dp(model);
        let params = model.initial_params(&mut global_generator((1 << 32) + 12345, 3));
        for (name, want) in golden {
            let view = model.table.views().iter().find(|view| view.name == *name).unwrap();
            let got = params[view.range().end - 1];
            assert!((got - want).abs() < 1e-15, "{name}: {got} {want}");
        }
    }

    #[test]
    fn parameters_without_a_seed_are_those_of_deepmd_kit() {
        check_last(
            &awkward(),
            &[
                ("descriptor.sea.filter_layers.networks.1.layers.0.matrix", -0.1873032411560626),
                ("descriptor.sea.filter_layers.networks.1.layers.2.matrix", 0.41254432339431296),
                ("descriptor.sea.filter_layers.networks.3.layers.1.bias", 1.6272719030298006),
                ("descriptor.sea.filter_layers.networks.8.layers.3.idt", 0.10092978025907387),
                ("fitting_net.filter_layers.networks.1.layers.0.matrix", -0.22343982756137848),
                ("fitting_net.filter_layers.networks.1.layers.2.idt", 0.10007167607545853),
                ("fitting_net.filter_layers.networks.2.layers.4.bias", -0.2700311243534088),
            ],
        );
    }

    #[test]
    fn parameters_with_a_seed_for_one_part_are_those_of_deepmd_kit() {
        let mut one_seeded = awkward();
        one_seeded["descriptor"]["seed"] = json!(5);
        check_last(
            &one_seeded,
            &[
                ("descriptor.sea.filter_layers.networks.1.layers.3.matrix", 0.21845853852383926),
                ("descriptor.sea.filter_layers.networks.3.layers.1.idt", 0.09906097898449959),
                ("descriptor.sea.filter_layers.networks.8.layers.3.bias", 1.7535527266438478),
                ("fitting_net.filter_layers.networks.1.layers.1.matrix", 0.09360318630933762),
                ("fitting_net.filter_layers.networks.2.layers.4.matrix", 0.04359467327594757),
            ],
        );
    }
}
