//! How much of its global generator DeePMD-kit uses up while it builds a model.

use super::model::Dp;
use super::options::{ModelOptions, Precision};
use super::spec::DpStatistics;
use crate::sample::torch::NormalTensor;

/// The tensors that DeePMD-kit fills from its global generator while it builds the model, on the CPU.
///
/// It makes each hidden layer twice, first with the seed of its section and then, only to overwrite it, without;
/// the output layer is made once. Where the section has no seed, the first time uses the global generator too.
/// `sel` must be resolved.
pub fn unseeded_tensors(options: &ModelOptions) -> Vec<NormalTensor> {
    let model = Dp::new(options.clone(), DpStatistics::default());
    let (se, fit) = (model.descriptor(), &options.fitting);
    let parts = [
        (&model.embedding, se.neuron.len(), se.seed, se.precision),
        (&model.fitting, fit.neuron.len(), fit.seed, fit.precision),
    ];
    let mut tensors = Vec::new();
    for (nets, n_hidden, seed, precision) in parts {
        let layers = nets.iter().flat_map(|net| net.layers.iter().enumerate());
        for (k, layer) in layers {
            let times = usize::from(k < n_hidden) + usize::from(seed.is_none());
            let ranges = [Some(layer.w_range()), layer.b_range(), layer.idt_range()];
            for range in ranges.into_iter().flatten() {
                let tensor = NormalTensor { len: range.len(), is_double: precision == Precision::Float64 };
                tensors.extend(std::iter::repeat_n(tensor, times));
            }
        }
    }
    tensors
}

#[cfg(test)]
mod tests {
    //! Golden frames of `dp --pt train` of DeePMD-kit 3.2.0 with PyTorch 2.11.0 on the CPU, printed by a wrapper
    //! around `torch.utils.data.RandomSampler`; three systems of 16, 6 and 6 frames.
    use super::*;
    use crate::config::{Section, check::check};
    use crate::model::dp::options::MODEL;
    use crate::sample::statistics::{DrawnBefore, frames_for_statistics};
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

    fn options(model: &Value) -> ModelOptions {
        let full = check(&MODEL, model, "test").unwrap().value;
        ModelOptions::resolve(&Section::root(&full)).unwrap()
    }

    fn frames(model: &Value, n_loaders: usize, batch: (usize, usize), seed: u64) -> Vec<Vec<usize>> {
        let before = DrawnBefore { n_loaders, tensors: unseeded_tensors(&options(model)) };
        frames_for_statistics(&[16, 6, 6], &[batch.0; 3], batch.1, seed, &before)
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
}
