//! Adam and AdamW on the flat vector of parameters.

use super::options::OptimizerOptions;
use std::ops::Range;

/// Guards the division by the root of the second moment.
const EPSILON: f64 = 1e-8;

/// The optimiser with its moments.
#[derive(Debug, Clone)]
pub struct Adam {
    options: OptimizerOptions,
    /// Ranges of the flat vector that are trained.
    trainable: Vec<Range<usize>>,
    pub first_moment: Vec<f64>,
    pub second_moment: Vec<f64>,
}

impl Adam {
    /// An optimiser that has seen no gradient yet.
    pub fn new(options: OptimizerOptions, trainable: Vec<Range<usize>>, n_params: usize) -> Self {
        Adam { options, trainable, first_moment: vec![0.0; n_params], second_moment: vec![0.0; n_params] }
    }

    /// One update; `step` counts from 0.
    pub fn step(&mut self, params: &mut [f64], grad: &[f64], lr: f64, step: u64) {
        let (beta1, beta2, weight_decay, decoupled) = match self.options {
            OptimizerOptions::Adam { beta1, beta2, weight_decay } => (beta1, beta2, weight_decay, false),
            OptimizerOptions::AdamW { beta1, beta2, weight_decay } => (beta1, beta2, weight_decay, true),
        };
        let t = (step + 1) as f64;
        let (correction1, correction2) = (1.0 - beta1.powf(t), (1.0 - beta2.powf(t)).sqrt());
        let rate = lr / correction1;
        for range in self.trainable.clone() {
            let moments =
                self.first_moment[range.clone()].iter_mut().zip(&mut self.second_moment[range.clone()]);
            for ((p, g), (m, v)) in params[range.clone()].iter_mut().zip(&grad[range]).zip(moments) {
                let mut g = *g;
                if decoupled {
                    *p -= lr * weight_decay * *p;
                } else {
                    g += weight_decay * *p;
                }
                *m += (1.0 - beta1) * (g - *m);
                *v = beta2 * *v + (1.0 - beta2) * g * g;
                *p -= rate * *m / (v.sqrt() / correction2 + EPSILON);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_step_moves_every_trained_parameter_by_the_learning_rate() {
        let options = OptimizerOptions::Adam { beta1: 0.9, beta2: 0.999, weight_decay: 0.0 };
        let mut adam = Adam::new(options, vec![0..2, 3..4], 4);
        let mut params = vec![1.0; 4];
        adam.step(&mut params, &[3.0, -0.2, 5.0, 1e-3], 0.1, 0);
        for (p, want) in params.iter().zip([0.9, 1.1, 1.0, 0.9]) {
            assert!((p - want).abs() < 1e-4, "{p} {want}");
        }
    }

    #[test]
    fn decoupled_decay_shrinks_parameters_without_a_gradient() {
        let options = OptimizerOptions::AdamW { beta1: 0.9, beta2: 0.999, weight_decay: 0.5 };
        let mut adam = Adam::new(options, std::iter::once(0..1).collect(), 1);
        let mut params = vec![2.0];
        adam.step(&mut params, &[0.0], 0.1, 0);
        assert!((params[0] - 1.9).abs() < 1e-15);
    }
}
