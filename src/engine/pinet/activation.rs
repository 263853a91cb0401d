//! Keras' activation functions with their first and second derivatives.

use crate::engine::activation;
use crate::model::activation::Activation;
use crate::model::pinet::options::Act;

/// Keras' constants of `selu`.
const SELU_ALPHA: f64 = 1.673_263_242_354_377_2;
const SELU_SCALE: f64 = 1.050_700_987_355_480_5;

/// f(x), f'(x), f''(x).
pub fn jet(act: Act, x: f64) -> [f64; 3] {
    match act {
        Act::Tanh => activation::jet(Activation::Tanh, x),
        Act::Relu => activation::jet(Activation::Relu, x),
        Act::Softplus => activation::jet(Activation::Softplus, x),
        Act::Sigmoid => activation::jet(Activation::Sigmoid, x),
        Act::Swish => activation::jet(Activation::Silu, x),
        Act::Elu => elu_jet(x, 1.0),
        Act::Selu => elu_jet(x, SELU_ALPHA).map(|y| SELU_SCALE * y),
        Act::Gelu => gelu_jet(x),
        Act::Softsign => {
            let u = 1.0 / (1.0 + x.abs());
            [x * u, u * u, -2.0 * u * u * u * sign(x)]
        }
        Act::Exponential => [x.exp(); 3],
        Act::Mish => mish_jet(x),
        Act::HardSigmoid if x.abs() > 2.5 => [if x > 0.0 { 1.0 } else { 0.0 }, 0.0, 0.0],
        Act::HardSigmoid => [0.2 * x + 0.5, 0.2, 0.0],
        Act::Linear => [x, 1.0, 0.0],
    }
}

fn sign(x: f64) -> f64 {
    if x == 0.0 { 0.0 } else { x.signum() }
}

fn elu_jet(x: f64, alpha: f64) -> [f64; 3] {
    if x > 0.0 { [x, 1.0, 0.0] } else { [alpha * x.exp_m1(), alpha * x.exp(), alpha * x.exp()] }
}

/// TensorFlow divides by the root of two in float32, also where it computes in float64.
const ROOT_TWO: f64 = std::f32::consts::SQRT_2 as f64;

/// x Phi(x) with the normal distribution Phi.
fn gelu_jet(x: f64) -> [f64; 3] {
    let y = x / ROOT_TWO;
    let cumulative = 0.5 * (1.0 + erf(y));
    let density = 0.5 * std::f64::consts::FRAC_2_SQRT_PI * (-y * y).exp() / ROOT_TWO;
    [x * cumulative, cumulative + x * density, 2.0 * density * (1.0 - y * y)]
}

/// x tanh(softplus(x))
fn mish_jet(x: f64) -> [f64; 3] {
    let [softplus, s, ds] = activation::jet(Activation::Softplus, x);
    let [t, dt, ddt] = activation::jet(Activation::Tanh, softplus);
    let (slope, curve) = (dt * s, ddt * s * s + dt * ds);
    [x * t, t + x * slope, 2.0 * slope + x * curve]
}

/// The error function to a few last bits: exp(-x^2) times a series of positive terms, so that nothing cancels.
pub fn erf(x: f64) -> f64 {
    let a = x.abs();
    if a > 6.0 {
        // 1 - erf(6) is below 1e-16.
        return sign(x);
    }
    let (mut term, mut sum, mut n) = (a, a, 0.0);
    while term > 1e-17 * sum {
        n += 1.0;
        term *= 2.0 * a * a / (2.0 * n + 1.0);
        sum += term;
    }
    sign(x) * std::f64::consts::FRAC_2_SQRT_PI * (-a * a).exp() * sum
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(crate) const ALL: [Act; 13] = [
        Act::Tanh,
        Act::Relu,
        Act::Softplus,
        Act::Sigmoid,
        Act::Elu,
        Act::Selu,
        Act::Gelu,
        Act::Swish,
        Act::Softsign,
        Act::Exponential,
        Act::Mish,
        Act::HardSigmoid,
        Act::Linear,
    ];

    #[test]
    fn derivatives_agree_with_central_differences() {
        let h = 1e-5;
        for act in ALL {
            for k in 0..60 {
                let x = -5.0 + 0.1731 * k as f64 + 0.0137;
                let [_, d, dd] = jet(act, x);
                let (low, high) = (jet(act, x - h), jet(act, x + h));
                let d_want = (high[0] - low[0]) / (2.0 * h);
                let dd_want = (high[1] - low[1]) / (2.0 * h);
                let scale = 1.0 + high[0].abs();
                assert!((d - d_want).abs() < 1e-8 * scale, "{act:?}'({x}) = {d}, not {d_want}");
                assert!((dd - dd_want).abs() < 1e-8 * scale, "{act:?}''({x}) = {dd}, not {dd_want}");
            }
        }
    }

    #[test]
    fn values_are_those_of_keras() {
        // Their definitions at 0.7 and -1.3.
        let want = [
            (Act::Elu, 0.7, -0.7274682069659875),
            (Act::Selu, 0.7354906911488363, -1.2789613751543256),
            (Act::Gelu, 0.5306254434438489, -0.12584062996129347),
            (Act::Softsign, 0.4117647058823529, -0.5652173913043479),
            (Act::HardSigmoid, 0.64, 0.24),
            (Act::Mish, 0.5611483776438518, -0.3073824647494959),
        ];
        for (act, high, low) in want {
            for (x, want) in [(0.7, high), (-1.3, low)] {
                let got = jet(act, x)[0];
                let tolerance = if act == Act::Gelu { 1e-8 } else { 1e-13 };
                assert!((got - want).abs() < tolerance, "{act:?}({x}) = {got}, not {want}");
            }
        }
    }

    #[test]
    fn the_error_function_is_right_to_the_last_bits() {
        let want = [
            (0.1, 0.1124629160182849),
            (1.0, 0.8427007929497149),
            (2.5, 0.999593047982555),
            (-4.0, -0.9999999845827421),
            (7.0, 1.0),
        ];
        for (x, want) in want {
            assert!((erf(x) - want).abs() < 2e-15, "erf({x}) = {}", erf(x));
        }
        assert!(erf(f64::NAN).is_nan());
    }
}
