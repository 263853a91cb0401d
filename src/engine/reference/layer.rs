//! One layer of a net on one row: `y = idt act(x W + b) + shortcut(x)`.

use crate::engine::activation::jet;
use crate::model::net::{LayerShape, NetShape, Shortcut};

/// What the passes remember of a layer.
#[derive(Debug, Clone, Default)]
pub struct Trace {
    x: Vec<f64>,
    /// act, act', act'' of the pre-activation.
    jets: Vec<[f64; 3]>,
    x_dot: Vec<f64>,
    z_dot: Vec<f64>,
}

fn times_w(shape: &LayerShape, params: &[f64], x: &[f64]) -> Vec<f64> {
    let w = &params[shape.w_range()];
    (0..shape.n_out).map(|o| (0..shape.n_in).map(|i| x[i] * w[i * shape.n_out + o]).sum()).collect()
}

fn times_w_transposed(shape: &LayerShape, params: &[f64], z: &[f64]) -> Vec<f64> {
    let w = &params[shape.w_range()];
    (0..shape.n_in).map(|i| (0..shape.n_out).map(|o| z[o] * w[i * shape.n_out + o]).sum()).collect()
}

fn add_shortcut(y: &mut [f64], shape: &LayerShape, x: &[f64]) {
    match shape.shortcut {
        Shortcut::None => {}
        Shortcut::Same | Shortcut::Double => {
            for (o, y) in y.iter_mut().enumerate() {
                *y += x[o % shape.n_in];
            }
        }
    }
}

fn add_shortcut_transposed(x: &mut [f64], shape: &LayerShape, y: &[f64]) {
    if shape.shortcut != Shortcut::None {
        for (o, y) in y.iter().enumerate() {
            x[o % shape.n_in] += y;
        }
    }
}

fn idt(shape: &LayerShape, params: &[f64], o: usize) -> f64 {
    shape.idt_range().map_or(1.0, |range| params[range][o])
}

/// The value of the layer.
pub fn forward(shape: &LayerShape, params: &[f64], x: &[f64]) -> (Vec<f64>, Trace) {
    let mut z = times_w(shape, params, x);
    if let Some(range) = shape.b_range() {
        for (z, b) in z.iter_mut().zip(&params[range]) {
            *z += b;
        }
    }
    let jets: Vec<_> = z.iter().map(|&z| jet(shape.activation, z)).collect();
    let mut y: Vec<f64> = (0..shape.n_out).map(|o| idt(shape, params, o) * jets[o][0]).collect();
    add_shortcut(&mut y, shape, x);
    (y, Trace { x: x.to_vec(), jets, ..Trace::default() })
}

/// The change of the layer's value when its input moves along `x_dot`.
pub fn tangent(shape: &LayerShape, params: &[f64], trace: &mut Trace, x_dot: &[f64]) -> Vec<f64> {
    trace.x_dot = x_dot.to_vec();
    trace.z_dot = times_w(shape, params, x_dot);
    let mut y_dot: Vec<f64> =
        (0..shape.n_out).map(|o| idt(shape, params, o) * trace.jets[o][1] * trace.z_dot[o]).collect();
    add_shortcut(&mut y_dot, shape, x_dot);
    y_dot
}

/// dE/dx from dE/dy: the adjoint of [`tangent`].
pub fn backward_input(shape: &LayerShape, params: &[f64], trace: &Trace, de_y: &[f64]) -> Vec<f64> {
    let de_z: Vec<f64> =
        (0..shape.n_out).map(|o| de_y[o] * idt(shape, params, o) * trace.jets[o][1]).collect();
    let mut de_x = times_w_transposed(shape, params, &de_z);
    add_shortcut_transposed(&mut de_x, shape, de_y);
    de_x
}

/// The reverse of (value, tangent): adds dL/dparams to `grad`, returns dL/dx.
///
/// `dl_y` is the adjoint of the value y, `de_y` the adjoint of the tangent y_dot.
pub fn backward(
    grad: &mut [f64],
    shape: &LayerShape,
    params: &[f64],
    trace: &Trace,
    dl_y: &[f64],
    de_y: &[f64],
) -> Vec<f64> {
    let mut dl_z = vec![0.0; shape.n_out];
    let mut de_z = vec![0.0; shape.n_out];
    for o in 0..shape.n_out {
        let [f, d, dd] = trace.jets[o];
        let scale = idt(shape, params, o);
        dl_z[o] = scale * (dl_y[o] * d + de_y[o] * dd * trace.z_dot[o]);
        de_z[o] = scale * de_y[o] * d;
        if let Some(t) = shape.idt {
            grad[t + o] += dl_y[o] * f + de_y[o] * d * trace.z_dot[o];
        }
        if let Some(b) = shape.b {
            grad[b + o] += dl_z[o];
        }
        for i in 0..shape.n_in {
            grad[shape.w + i * shape.n_out + o] += trace.x[i] * dl_z[o] + trace.x_dot[i] * de_z[o];
        }
    }
    let mut dl_x = times_w_transposed(shape, params, &dl_z);
    add_shortcut_transposed(&mut dl_x, shape, dl_y);
    dl_x
}

/// All layers of a net: value and traces.
pub fn net_forward(net: &NetShape, params: &[f64], x: &[f64]) -> (Vec<f64>, Vec<Trace>) {
    let mut x = x.to_vec();
    let mut traces = Vec::with_capacity(net.layers.len());
    for shape in &net.layers {
        let (y, trace) = forward(shape, params, &x);
        traces.push(trace);
        x = y;
    }
    (x, traces)
}

/// All layers of a net: the change of the value.
pub fn net_tangent(net: &NetShape, params: &[f64], traces: &mut [Trace], x_dot: &[f64]) -> Vec<f64> {
    let mut x_dot = x_dot.to_vec();
    for (shape, trace) in net.layers.iter().zip(traces) {
        x_dot = tangent(shape, params, trace, &x_dot);
    }
    x_dot
}

/// All layers of a net: dE/dx.
pub fn net_backward_input(net: &NetShape, params: &[f64], traces: &[Trace], de_y: &[f64]) -> Vec<f64> {
    let mut de = de_y.to_vec();
    for (shape, trace) in net.layers.iter().zip(traces).rev() {
        de = backward_input(shape, params, trace, &de);
    }
    de
}

/// All layers of a net: dL/dparams and dL/dx.
pub fn net_backward(
    grad: &mut [f64],
    net: &NetShape,
    params: &[f64],
    traces: &[Trace],
    dl_y: &[f64],
    de_y: &[f64],
) -> Vec<f64> {
    let (mut dl, mut de) = (dl_y.to_vec(), de_y.to_vec());
    for (shape, trace) in net.layers.iter().zip(traces).rev() {
        dl = backward(grad, shape, params, trace, &dl, &de);
        de = backward_input(shape, params, trace, &de);
    }
    dl
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::activation::Activation;
    use crate::model::net::HiddenSpec;
    use crate::model::params::ParamTable;
    use crate::sample::torch::Generator;

    fn net(activation: Activation) -> (NetShape, Vec<f64>) {
        let mut table = ParamTable::default();
        let spec = HiddenSpec {
            n_in: 3,
            neuron: &[3, 6, 5],
            activation,
            resnet_dt: true,
            bias: true,
            trainable: &[true; 3],
        };
        let shape = NetShape::hidden(&mut table, "net", spec).with_output(&mut table, "net", 2, true);
        let mut params = vec![0.0; table.len()];
        Generator::new(3).normal_f64(&mut params, 0.0, 0.6);
        (shape, params)
    }

    fn dot(a: &[f64], b: &[f64]) -> f64 {
        a.iter().zip(b).map(|(a, b)| a * b).sum()
    }

    const X: [f64; 3] = [0.3, -0.7, 1.1];
    const V: [f64; 3] = [-0.4, 0.9, 0.2];

    #[test]
    fn tangent_agrees_with_central_differences() {
        let (net, p) = net(Activation::Gelu);
        let at = |h: f64| net_forward(&net, &p, &[0, 1, 2].map(|k| X[k] + h * V[k])).0;
        let mut traces = net_forward(&net, &p, &X).1;
        let got = net_tangent(&net, &p, &mut traces, &V);
        for (k, g) in got.iter().enumerate() {
            let want = (at(1e-5)[k] - at(-1e-5)[k]) / 2e-5;
            assert!((g - want).abs() < 1e-8, "{k}: {g} {want}");
        }
    }

    #[test]
    fn backward_input_is_the_adjoint_of_the_tangent() {
        let (net, p) = net(Activation::Tanh);
        let mut traces = net_forward(&net, &p, &X).1;
        let jv = net_tangent(&net, &p, &mut traces, &V);
        let w = [0.8, -1.3];
        let jw = net_backward_input(&net, &p, &traces, &w);
        assert!((dot(&w, &jv) - dot(&jw, &V)).abs() < 1e-13);
    }

    #[test]
    fn backward_differentiates_value_and_tangent_by_every_parameter_and_input() {
        let (net, p) = net(Activation::Silu);
        let (a, b) = ([0.5, -0.2], [1.1, 0.7]);
        // a . y + b . y_dot, whose derivative the pass gives.
        let phi = |p: &[f64], x: &[f64]| {
            let (y, mut traces) = net_forward(&net, p, x);
            let y_dot = net_tangent(&net, p, &mut traces, &V);
            dot(&a, &y) + dot(&b, &y_dot)
        };
        let mut traces = net_forward(&net, &p, &X).1;
        net_tangent(&net, &p, &mut traces, &V);
        let mut grad = vec![0.0; p.len()];
        let dl_x = net_backward(&mut grad, &net, &p, &traces, &a, &b);
        let h = 1e-5;
        for k in 0..p.len() {
            let (mut high, mut low) = (p.clone(), p.clone());
            high[k] += h;
            low[k] -= h;
            let want = (phi(&high, &X) - phi(&low, &X)) / (2.0 * h);
            assert!((grad[k] - want).abs() < 1e-7, "parameter {k}: {} {want}", grad[k]);
        }
        for k in 0..3 {
            let (mut high, mut low) = (X, X);
            high[k] += h;
            low[k] -= h;
            let want = (phi(&p, &high) - phi(&p, &low)) / (2.0 * h);
            assert!((dl_x[k] - want).abs() < 1e-7, "input {k}: {} {want}", dl_x[k]);
        }
    }
}
