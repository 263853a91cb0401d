//! Activation functions with their first and second derivatives.

use crate::model::activation::Activation;

/// f(x), f'(x), f''(x).
pub fn jet(activation: Activation, x: f64) -> [f64; 3] {
    match activation.function() {
        Activation::Tanh => tanh_jet(x),
        Activation::Relu => [x.max(0.0), if x > 0.0 { 1.0 } else { 0.0 }, 0.0],
        Activation::Relu6 => [x.clamp(0.0, 6.0), if x > 0.0 && x < 6.0 { 1.0 } else { 0.0 }, 0.0],
        Activation::Softplus => {
            let s = sigmoid(x);
            // log(1 + e^x), written so that neither end overflows.
            [x.max(0.0) + (-x.abs()).exp().ln_1p(), s, s * (1.0 - s)]
        }
        Activation::Sigmoid => {
            let s = sigmoid(x);
            let d = s * (1.0 - s);
            [s, d, d * (1.0 - 2.0 * s)]
        }
        Activation::Gelu => gelu_jet(x),
        Activation::Silu => silu_jet(x),
        Activation::Silut { threshold } if x < threshold => silu_jet(x),
        Activation::Silut { threshold } => {
            let [value, slope, _] = silu_jet(threshold);
            let [t, d, dd] = tanh_jet(slope * (x - threshold));
            [t + value, slope * d, slope * slope * dd]
        }
        // `function` leaves none of the second names.
        _ => [x, 1.0, 0.0],
    }
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

fn tanh_jet(x: f64) -> [f64; 3] {
    let t = x.tanh();
    let d = 1.0 - t * t;
    [t, d, -2.0 * t * d]
}

fn silu_jet(x: f64) -> [f64; 3] {
    let s = sigmoid(x);
    let d = s * (1.0 - s);
    [x * s, s + x * d, 2.0 * d + x * d * (1.0 - 2.0 * s)]
}

/// x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))
fn gelu_jet(x: f64) -> [f64; 3] {
    let c = (2.0 / std::f64::consts::PI).sqrt();
    let u1 = c * (1.0 + 3.0 * 0.044715 * x * x);
    let u2 = c * 6.0 * 0.044715 * x;
    let [t, d, dd] = tanh_jet(c * (x + 0.044715 * x * x * x));
    let t1 = d * u1;
    let t2 = dd * u1 * u1 + d * u2;
    [0.5 * x * (1.0 + t), 0.5 * (1.0 + t) + 0.5 * x * t1, t1 + 0.5 * x * t2]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn derivatives_agree_with_central_differences() {
        let all = [
            Activation::Tanh,
            Activation::Relu,
            Activation::Relu6,
            Activation::Softplus,
            Activation::Sigmoid,
            Activation::Gelu,
            Activation::Silu,
            Activation::Silut { threshold: 3.0 },
            Activation::Linear,
        ];
        let h = 1e-5;
        for activation in all {
            for k in 0..60 {
                let x = -5.0 + 0.1731 * k as f64 + 0.0137;
                let [_, d, dd] = jet(activation, x);
                let (low, high) = (jet(activation, x - h), jet(activation, x + h));
                let d_want = (high[0] - low[0]) / (2.0 * h);
                let dd_want = (high[1] - low[1]) / (2.0 * h);
                assert!((d - d_want).abs() < 1e-8, "{activation:?}'({x}) = {d}, not {d_want}");
                assert!((dd - dd_want).abs() < 1e-8, "{activation:?}''({x}) = {dd}, not {dd_want}");
            }
        }
    }
}
