//! Adam as PiNN runs it: Keras' version, and the older one of TensorFlow 1 that the data-parallel fork uses.
//!
//! Both apply `w -= lr sqrt(1 - beta2^t) / (1 - beta1^t) m / (sqrt(v) + epsilon)`: epsilon stands beside the root of
//! the uncorrected second moment, unlike in [`super::Adam`]. TensorFlow keeps hyperparameters in float32 also where
//! it trains in float64; so does this, to give the same numbers.

use std::ops::Range;

/// How gradients are cut down.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Clip {
    None,
    /// Every variable to this norm.
    Variable(f64),
    /// All variables together to this norm.
    Global(f64),
    /// Every element to this size.
    Value(f64),
}

/// The learning rate of every step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Rate {
    Constant(f64),
    /// initial * rate^(step / steps), in stairs where `staircase`.
    Exponential {
        initial: f64,
        steps: f64,
        rate: f64,
        staircase: bool,
    },
}

/// Whose details are followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    Keras,
    /// Powers of beta are running products in float32, epsilon is a float32.
    TensorFlow1,
}

/// What an [`KerasAdam`] does.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct KerasAdamOptions {
    pub style: Style,
    pub beta1: f64,
    pub beta2: f64,
    pub epsilon: f64,
    pub clip: Clip,
    pub rate: Rate,
}

impl KerasAdamOptions {
    /// PiNN's default.
    pub fn master() -> Self {
        KerasAdamOptions {
            style: Style::Keras,
            beta1: 0.9,
            beta2: 0.999,
            epsilon: 1e-7,
            clip: Clip::Variable(0.01),
            rate: Rate::Exponential { initial: 3e-4, steps: 10_000.0, rate: 0.994, staircase: false },
        }
    }

    /// The default of the data-parallel fork.
    pub fn fork() -> Self {
        KerasAdamOptions {
            style: Style::TensorFlow1,
            beta1: 0.9,
            beta2: 0.999,
            epsilon: 1e-8,
            clip: Clip::Global(0.01),
            rate: Rate::Exponential { initial: 3e-4, steps: 10_000.0, rate: 0.999, staircase: true },
        }
    }
}

impl Rate {
    /// The rate of `step`, from 0, computed in float32 as TensorFlow does.
    pub fn at(&self, step: u64) -> f64 {
        match *self {
            Rate::Constant(rate) => f64::from(rate as f32),
            Rate::Exponential { initial, steps, rate, staircase } => {
                let p = step as f32 / steps as f32;
                let p = if staircase { p.floor() } else { p };
                f64::from(initial as f32 * (rate as f32).powf(p))
            }
        }
    }

    /// The same schedule from another start: for more ranks.
    pub fn scaled(self, factor: f64) -> Rate {
        match self {
            Rate::Constant(rate) => Rate::Constant(rate * factor),
            Rate::Exponential { initial, steps, rate, staircase } => {
                Rate::Exponential { initial: initial * factor, steps, rate, staircase }
            }
        }
    }
}

/// One step of [`KerasAdam`]: m += (g - m) gain, v += (g^2 - v) gain, w -= rate m / (sqrt(v) + epsilon).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct KerasRule {
    /// Corrected for the start of the moments.
    pub rate: f64,
    pub epsilon: f64,
    /// 1 - beta1, 1 - beta2
    pub gain: [f64; 2],
}

/// The optimiser with its moments.
#[derive(Debug, Clone)]
pub struct KerasAdam {
    pub options: KerasAdamOptions,
    variables: Vec<Range<usize>>,
    pub first_moment: Vec<f64>,
    pub second_moment: Vec<f64>,
    /// TensorFlow 1: the step that the running products below belong to.
    products_at: u64,
    products: [f32; 2],
}

impl KerasAdam {
    /// An optimiser that has seen no gradient yet. `variables` are the ranges that are cut down one by one.
    pub fn new(options: KerasAdamOptions, variables: Vec<Range<usize>>, n_params: usize) -> Self {
        let zero = vec![0.0; n_params];
        KerasAdam {
            options,
            variables,
            first_moment: zero.clone(),
            second_moment: zero,
            products_at: 0,
            products: [1.0; 2],
        }
    }

    /// Cuts a gradient down. Its norm before that is returned.
    pub fn clip(&self, grad: &mut [f64]) -> f64 {
        let norm = norm(grad);
        match self.options.clip {
            Clip::None => {}
            Clip::Global(most) => shrink(grad, norm, most),
            Clip::Variable(most) => {
                for range in &self.variables {
                    let part = &mut grad[range.clone()];
                    let norm = self::norm(part);
                    shrink(part, norm, most);
                }
            }
            Clip::Value(most) => grad.iter_mut().for_each(|g| *g = g.clamp(-most, most)),
        }
        norm
    }

    /// One update with a gradient that is cut down first; `step` counts from 0. Returns the norm of the
    /// gradient before that.
    pub fn step(&mut self, params: &mut [f64], grad: &mut [f64], step: u64) -> f64 {
        let norm = self.clip(grad);
        let KerasRule { rate, epsilon, gain: [gain1, gain2] } = self.rule(step);
        let moments = self.first_moment.iter_mut().zip(&mut self.second_moment);
        for ((p, g), (m, v)) in params.iter_mut().zip(grad.iter()).zip(moments) {
            *m += (g - *m) * gain1;
            *v += (g * g - *v) * gain2;
            *p -= rate * *m / (v.sqrt() + epsilon);
        }
        norm
    }

    /// The numbers of a step, which counts from 0.
    pub fn rule(&mut self, step: u64) -> KerasRule {
        let [power1, power2] = self.powers(step + 1);
        let epsilon = match self.options.style {
            Style::Keras => self.options.epsilon,
            Style::TensorFlow1 => f64::from(self.options.epsilon as f32),
        };
        KerasRule {
            rate: self.options.rate.at(step) * (1.0 - power2).sqrt() / (1.0 - power1),
            epsilon,
            gain: [self.options.beta1, self.options.beta2].map(|beta| 1.0 - f64::from(beta as f32)),
        }
    }

    /// beta1^t and beta2^t
    fn powers(&mut self, t: u64) -> [f64; 2] {
        let betas = [self.options.beta1 as f32, self.options.beta2 as f32];
        if self.options.style == Style::Keras {
            return betas.map(|beta| f64::from(beta).powf(t as f64));
        }
        if self.products_at > t {
            (self.products_at, self.products) = (0, [1.0; 2]);
        }
        while self.products_at < t {
            (0..2).for_each(|k| self.products[k] *= betas[k]);
            self.products_at += 1;
        }
        self.products.map(f64::from)
    }
}

fn norm(x: &[f64]) -> f64 {
    x.iter().map(|x| x * x).sum::<f64>().sqrt()
}

/// Scales a vector of this norm down to at most `most`.
fn shrink(x: &mut [f64], norm: f64, most: f64) {
    if norm > most {
        let scale = most / norm;
        x.iter_mut().for_each(|x| *x *= scale);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_step_moves_by_the_learning_rate() {
        for options in [KerasAdamOptions::master(), KerasAdamOptions::fork()] {
            let mut adam = KerasAdam::new(options, vec![0..2, 2..3], 3);
            let mut params = vec![1.0; 3];
            let norm = adam.step(&mut params, &mut [5.0, -7.0, 0.0], 0);
            assert!((norm - 74f64.sqrt()).abs() < 1e-12, "before it was cut down");
            let lr = 3e-4;
            assert!((params[0] - (1.0 - lr)).abs() < 1e-6 && (params[1] - (1.0 + lr)).abs() < 1e-6);
            assert_eq!(params[2], 1.0);
        }
    }

    #[test]
    fn clipping_is_per_variable_global_or_per_element() {
        let clipped = |clip| {
            let options = KerasAdamOptions { clip, ..KerasAdamOptions::master() };
            let mut grad = vec![3.0, 4.0, 0.5];
            KerasAdam::new(options, vec![0..2, 2..3], 3).clip(&mut grad);
            grad
        };
        let close = |a: Vec<f64>, b: [f64; 3]| a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-12);
        assert!(close(clipped(Clip::None), [3.0, 4.0, 0.5]));
        assert!(close(clipped(Clip::Variable(1.0)), [0.6, 0.8, 0.5]));
        let norm = 25.25f64.sqrt();
        assert!(close(clipped(Clip::Global(1.0)), [3.0 / norm, 4.0 / norm, 0.5 / norm]));
        assert!(close(clipped(Clip::Value(3.5)), [3.0, 3.5, 0.5]));
    }

    #[test]
    fn the_rate_falls_smoothly_or_in_stairs_and_follows_the_ranks() {
        let rate = |staircase| Rate::Exponential { initial: 1e-3, steps: 10.0, rate: 0.5, staircase };
        assert!((rate(false).at(5) / 1e-3 - 0.5f64.sqrt()).abs() < 1e-6);
        assert_eq!(rate(true).at(9), f64::from(1e-3f32));
        assert!((rate(true).at(10) - 5e-4).abs() < 1e-9);
        assert!((rate(true).scaled(4.0).at(0) - 4e-3).abs() < 1e-9);
        assert!((Rate::Constant(1e-2).at(99) - 1e-2).abs() < 1e-9);
    }
}
