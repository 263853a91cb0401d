//! Adam as PiNN runs it: Keras' version, and the older one of TensorFlow 1 that the data-parallel fork uses.
//!
//! Both apply `w -= lr sqrt(1 - beta2^t) / (1 - beta1^t) m / (sqrt(v) + epsilon)`: epsilon stands beside the root of
//! the uncorrected second moment, unlike in [`super::Adam`]. TensorFlow keeps hyperparameters in float32 also where
//! it trains in float64; so does this, to give the same numbers.

use super::gradient::by_cell;
use super::moments::{self, MomentParts, Moments};
use super::{
    Entry, Gradient, Optimizer, OptimizerChoice, OptimizerOptions, Share, Target, Update, keras_rate, norm,
};
use crate::checkpoint::Arrays;
use crate::comm::Communicator;
use crate::config::{Key, Kind, Section, Table};
use crate::engine::cpu::pool::{Parts, Pool};
use crate::engine::cpu::real::Real;
use crate::engine::cpu::simd::multiversion;
use crate::err;
use crate::error::Result;
use std::ops::Range;

/// Keras' Adam on the list of optimisers.
pub const ADAM: Entry =
    Entry::elsewhere("Adam", &KEYS, |config| Ok(OptimizerChoice::new(KerasAdamOptions::resolve(config)?)));

static KEYS: Table = Table::of(&[Key::new("optimizer", Kind::Object(&BLOCK))]);

static BLOCK: Table = Table::of(&[
    Key::new("class_name", Kind::Text),
    Key::new("config", Kind::Object(&CONFIG)).defaults_inside(),
    Key::new("module", Kind::Any).optional(),
    Key::new("registered_name", Kind::Any).optional(),
]);

const CLIP: Kind = Kind::OneOf(&[Kind::POSITIVE, Kind::Null]);

static CONFIG: Table = Table::of(&[
    keras_rate::KEY,
    Key::new("beta_1", Kind::float(0.0, true, 1.0, false)).default("0.9"),
    Key::new("beta_2", Kind::float(0.0, true, 1.0, false)).default("0.999"),
    Key::new("epsilon", Kind::NOT_NEGATIVE).default("1e-7"),
    Key::new("clipnorm", CLIP).default("null").doc("Largest norm of the gradient of each variable."),
    Key::new("global_clipnorm", CLIP).default("null").doc("Largest norm of the whole gradient."),
    Key::new("clipvalue", CLIP).default("null").doc("Largest component of the gradient."),
    Key::new("decay", Kind::float(0.0, true, 0.0, true))
        .default("0.0")
        .doc("Other values are not supported."),
    Key::new("amsgrad", Kind::Bool).default("false"),
    Key::new("name", Kind::Any).optional().ignored(""),
    Key::new("weight_decay", Kind::Null).default("null"),
    Key::new("use_ema", Kind::Bool).default("false"),
    Key::new("ema_momentum", Kind::Any).optional().ignored(""),
    Key::new("ema_overwrite_frequency", Kind::Any).optional().ignored(""),
    Key::new("jit_compile", Kind::Any).optional().ignored(""),
    Key::new("is_legacy_optimizer", Kind::Any).optional().ignored(""),
]);

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

/// Whose details are followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    Keras,
    /// Powers of beta are running products in float32, epsilon is a float32.
    TensorFlow1,
}

/// What a [`KerasAdam`] does.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct KerasAdamOptions {
    pub style: Style,
    pub beta1: f64,
    pub beta2: f64,
    pub epsilon: f64,
    pub clip: Clip,
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
        }
    }

    /// Resolves the checked `config` of a Keras Adam.
    fn resolve(config: &Section) -> Result<Self> {
        for key in ["amsgrad", "use_ema"] {
            if config.bool(key) {
                return Err(config.error(key, err!("true is not supported")));
            }
        }
        Ok(KerasAdamOptions {
            style: Style::Keras,
            beta1: config.float("beta_1"),
            beta2: config.float("beta_2"),
            epsilon: config.float("epsilon"),
            clip: Clip::resolve(config)?,
        })
    }
}

impl Clip {
    fn resolve(config: &Section) -> Result<Clip> {
        let clips = [
            ("clipnorm", Clip::Variable as fn(f64) -> Clip),
            ("global_clipnorm", Clip::Global),
            ("clipvalue", Clip::Value),
        ];
        let given: Vec<_> =
            clips.iter().filter_map(|(key, clip)| Some((*key, clip(config.optional_float(key)?)))).collect();
        match given[..] {
            [] => Ok(Clip::None),
            [(_, clip)] => Ok(clip),
            [(first, _), (second, _), ..] => Err(config
                .error(second, err!("{first} is given too"))
                .help("give one of the three ways of clipping")),
        }
    }
}

impl OptimizerOptions for KerasAdamOptions {
    fn build(&self, target: &Target) -> Result<Box<dyn Optimizer>> {
        let variables = target.table.views().iter().map(|view| view.range()).collect();
        let adam = KerasAdam::new(*self, variables, target.table.len());
        Ok(Box::new(KerasAdam { pool: target.pool.clone(), ..adam }))
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

/// The numbers of every step, without moments.
#[derive(Debug, Clone, Copy)]
pub struct KerasRules {
    pub options: KerasAdamOptions,
    /// TensorFlow 1: the step that the running products below belong to.
    products_at: u64,
    products: [f32; 2],
}

impl KerasRules {
    pub fn new(options: KerasAdamOptions) -> Self {
        KerasRules { options, products_at: 0, products: [1.0; 2] }
    }

    /// The numbers of a step, which counts from 0.
    pub fn at(&mut self, step: u64, rate: f64) -> KerasRule {
        let [power1, power2] = self.powers(step + 1);
        let epsilon = match self.options.style {
            Style::Keras => self.options.epsilon,
            Style::TensorFlow1 => f64::from(self.options.epsilon as f32),
        };
        KerasRule {
            rate: rate * (1.0 - power2).sqrt() / (1.0 - power1),
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

/// The optimiser with its moments.
pub struct KerasAdam {
    rules: KerasRules,
    /// The ranges that are cut down one by one, as they are and by cell.
    variables: Vec<Range<usize>>,
    cells: Vec<Vec<(usize, Range<usize>)>>,
    /// What the gradient of each variable is multiplied by.
    scales: Vec<f64>,
    moments: Moments,
    pool: Pool,
}

impl KerasAdam {
    /// An optimiser that has seen no gradient yet. `variables` are the ranges that are cut down one by one.
    pub fn new(options: KerasAdamOptions, variables: Vec<Range<usize>>, n_params: usize) -> Self {
        KerasAdam {
            rules: KerasRules::new(options),
            cells: by_cell(&variables, n_params),
            scales: vec![1.0; variables.len()],
            variables,
            moments: Moments::zeros(n_params, false),
            pool: Pool::serial(),
        }
    }

    /// One update with a gradient that is cut down first; `step` counts from 0. Returns the norm of the gradient before that.
    pub fn step(&mut self, params: &mut [f64], grad: &[f64], rate: f64, step: u64) -> f64 {
        self.descend(params, Gradient::of(grad), rate, step)
    }

    fn descend(&mut self, params: &mut [f64], mut gradient: Gradient, rate: f64, step: u64) -> f64 {
        let (rule, norm) = (self.rules.at(step, rate), self.measure(gradient.whole()));
        let most = match self.rules.options.clip {
            Clip::Value(most) => most,
            _ => f64::INFINITY,
        };
        let MomentParts::Double([first, second]) = self.moments.parts() else {
            unreachable!("they are made in float64")
        };
        let (params, cells, scales) = (Parts::new(params), &self.cells, &self.scales);
        gradient.for_each_cell(&self.pool, |k, cell, grad| {
            for (variable, Range { start, end }) in &cells[k] {
                let (n, grad) = (end - start, &grad[start - cell.start..end - cell.start]);
                // SAFETY: cells and variables are disjoint.
                let [p, m, v] = unsafe { [&params, &first, &second].map(|x| x.part(*start, n)) };
                update(p, grad, m, v, (scales[*variable], most), rule);
            }
        });
        norm
    }

    /// Finds out what the gradient of each variable is multiplied by. Returns the norm of all.
    fn measure(&mut self, grad: &[f64]) -> f64 {
        let norm = norm(grad);
        match self.rules.options.clip {
            Clip::None | Clip::Value(_) => {}
            Clip::Global(most) => self.scales.fill(scale(norm, most)),
            Clip::Variable(most) => {
                for (out, range) in self.scales.iter_mut().zip(&self.variables) {
                    *out = scale(super::norm(&grad[range.clone()]), most);
                }
            }
        }
        norm
    }
}

impl Optimizer for KerasAdam {
    /// Norms of variables go over slices, and are added up in the order of the elements.
    fn share(&self) -> Share {
        Share::Whole
    }

    fn update(
        &mut self,
        params: &mut [f64],
        gradient: Gradient,
        update: &Update,
        _ranks: &mut dyn Communicator,
    ) -> Result<f64> {
        Ok(self.descend(params, gradient, update.rate, update.step))
    }

    fn save(&self, spare: &mut Vec<Vec<f64>>, _ranks: &mut dyn Communicator) -> Result<Arrays> {
        Ok(moments::named(self.moments.save(spare)))
    }

    fn restore(&mut self, arrays: &Arrays) -> Result<()> {
        self.moments.restore(arrays)
    }
}

multiversion! {
    /// One chunk of an update, element by element. The gradient is multiplied by one number and cut off at another.
    fn update<T: Real>(params: &mut [f64], grad: &[T], first: &mut [f64], second: &mut [f64], clip: (f64, f64), rule: KerasRule) {
        let KerasRule { rate, epsilon, gain: [gain1, gain2] } = rule;
        for ((p, g), (m, v)) in params.iter_mut().zip(grad).zip(first.iter_mut().zip(second)) {
            let g = (g.to_f64() * clip.0).clamp(-clip.1, clip.1);
            *m += (g - *m) * gain1;
            *v += (g * g - *v) * gain2;
            *p -= rate * *m / (v.sqrt() + epsilon);
        }
    }
}

/// What brings a vector of this norm down to at most `most`.
fn scale(norm: f64, most: f64) -> f64 {
    if norm > most { most / norm } else { 1.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_step_moves_by_the_learning_rate() {
        for options in [KerasAdamOptions::master(), KerasAdamOptions::fork()] {
            let mut adam = KerasAdam::new(options, vec![0..2, 2..3], 3);
            let (mut params, lr) = (vec![1.0; 3], 3e-4);
            let norm = adam.step(&mut params, &[5.0, -7.0, 0.0], lr, 0);
            assert!((norm - 74f64.sqrt()).abs() < 1e-12, "before it was cut down");
            assert!((params[0] - (1.0 - lr)).abs() < 1e-6 && (params[1] - (1.0 + lr)).abs() < 1e-6);
            assert_eq!(params[2], 1.0);
        }
    }

    #[test]
    fn clipping_is_per_variable_global_or_per_element() {
        let clipped = |clip| {
            // The first moment is the gradient itself.
            let options = KerasAdamOptions { clip, beta1: 0.0, ..KerasAdamOptions::master() };
            let mut adam = KerasAdam::new(options, vec![0..2, 2..3], 3);
            adam.step(&mut [0.0; 3], &[3.0, 4.0, 0.5], 1e-3, 0);
            let [first, _] = adam.moments.save(&mut Vec::new());
            first
        };
        let close = |a: Vec<f64>, b: [f64; 3]| a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-12);
        assert!(close(clipped(Clip::None), [3.0, 4.0, 0.5]));
        assert!(close(clipped(Clip::Variable(1.0)), [0.6, 0.8, 0.5]));
        let norm = 25.25f64.sqrt();
        assert!(close(clipped(Clip::Global(1.0)), [3.0 / norm, 4.0 / norm, 0.5 / norm]));
        assert!(close(clipped(Clip::Value(3.5)), [3.0, 3.5, 0.5]));
    }

    #[test]
    fn threads_change_no_bit() {
        let n = 3 * crate::comm::vectors::CELL + 17;
        let run = |threads: usize| {
            let adam = KerasAdam::new(KerasAdamOptions::master(), vec![0..100, 100..n], n);
            let mut adam = KerasAdam { pool: Pool::new(threads).unwrap(), ..adam };
            let mut params: Vec<f64> = (0..n).map(|k| (k as f64 * 0.3).cos()).collect();
            let grad: Vec<f64> = (0..n).map(|k| (k as f64 * 0.7).sin()).collect();
            let norms: Vec<f64> = (0..3).map(|step| adam.step(&mut params, &grad, 1e-2, step)).collect();
            (params, norms)
        };
        assert!(run(1) == run(3));
    }
}
