//! Adam and AdamW on the flat vector of parameters.

use super::options::OptimizerOptions;
use rayon::prelude::*;
use std::ops::Range;

/// Guards the division by the root of the second moment.
const EPSILON: f64 = 1e-8;
/// Parameters that one task updates: large enough to outweigh handing it out.
const CHUNK: usize = 1 << 15;

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
        let rule = Rule::new(&self.options, lr, step);
        for range in &self.trainable {
            let moments = self.first_moment[range.clone()]
                .par_chunks_mut(CHUNK)
                .zip(self.second_moment[range.clone()].par_chunks_mut(CHUNK));
            params[range.clone()]
                .par_chunks_mut(CHUNK)
                .zip(grad[range.clone()].par_chunks(CHUNK))
                .zip(moments)
                .for_each(|((p, g), (m, v))| update(p, g, m, v, rule));
        }
    }
}

/// The numbers of one update.
#[derive(Clone, Copy)]
pub struct Rule {
    pub beta1: f64,
    pub beta2: f64,
    /// The learning rate over what the first moment has seen so far.
    pub rate: f64,
    pub correction: f64,
    /// Decoupled decay (AdamW): taken off the parameter itself.
    pub shrink: f64,
    /// Decay of plain Adam: added to the gradient.
    pub pull: f64,
}

impl Rule {
    /// The update of a step, which counts from 0.
    pub fn new(options: &OptimizerOptions, lr: f64, step: u64) -> Self {
        let (beta1, beta2, weight_decay, decoupled) = match *options {
            OptimizerOptions::Adam { beta1, beta2, weight_decay } => (beta1, beta2, weight_decay, false),
            OptimizerOptions::AdamW { beta1, beta2, weight_decay } => (beta1, beta2, weight_decay, true),
        };
        let t = (step + 1) as f64;
        Rule {
            beta1,
            beta2,
            rate: lr / (1.0 - beta1.powf(t)),
            correction: 1.0 / (1.0 - beta2.powf(t)).sqrt(),
            shrink: if decoupled { lr * weight_decay } else { 0.0 },
            pull: if decoupled { 0.0 } else { weight_decay },
        }
    }
}

/// One chunk of [`Adam::step`], element by element: a loop that the compiler vectorises.
fn update(params: &mut [f64], grad: &[f64], first: &mut [f64], second: &mut [f64], rule: Rule) {
    for ((p, g), (m, v)) in params.iter_mut().zip(grad).zip(first.iter_mut().zip(second)) {
        *p -= rule.shrink * *p;
        let g = *g + rule.pull * *p;
        *m += (1.0 - rule.beta1) * (g - *m);
        *v = rule.beta2 * *v + (1.0 - rule.beta2) * g * g;
        *p -= rule.rate * *m / (v.sqrt() * rule.correction + EPSILON);
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
