//! A net on many rows, value and derivative by a number that the rows depend on, and the gradient of both.

use super::dense::{Accumulate, Strided, product, transpose};
use super::elementwise::{activate, add};
use super::real::Real;
use super::simd::multiversion;
use crate::model::dp::table::EmbeddingTable;
use crate::model::net::{LayerShape, NetShape, Shortcut};

/// One layer on many rows: value, and derivative.
#[derive(Default)]
struct JetLayer<T> {
    x: Vec<T>,
    x1: Vec<T>,
    f: Vec<T>,
    d: Vec<T>,
    dd: Vec<T>,
    z1: Vec<T>,
    y: Vec<T>,
    y1: Vec<T>,
}

/// A net on many rows: value, and derivative.
#[derive(Default)]
pub struct JetNet<T> {
    layers: Vec<JetLayer<T>>,
    /// G and G' of a table, where one stands in for the net.
    looked_up: Option<(Vec<T>, Vec<T>)>,
}

impl JetNet<f64> {
    /// Takes G and G' from the table of a compressed model.
    pub fn look_up(&mut self, table: &EmbeddingTable, width: usize, s: &[f64]) {
        let (mut g, mut g1) = (vec![0.0; s.len() * width], vec![0.0; s.len() * width]);
        for ((g, g1), &s) in g.chunks_exact_mut(width).zip(g1.chunks_exact_mut(width)).zip(s) {
            table.evaluate(g, g1, s);
        }
        self.looked_up = Some((g, g1));
    }
}

impl<T: Real> JetNet<T> {
    /// The net of one input at each of `s`, by which it is differentiated.
    pub fn forward(&mut self, net: &NetShape, weights: &[T], s: &[T]) {
        self.forward_rows(net, weights, s, |x1| x1.resize(s.len(), T::ONE));
    }

    /// The net at each row of `x`; `change` fills the empty derivative of the rows.
    pub fn forward_rows(&mut self, net: &NetShape, weights: &[T], x: &[T], change: impl FnOnce(&mut Vec<T>)) {
        let rows = x.len() / net.layers[0].n_in;
        self.layers.resize_with(net.layers.len(), JetLayer::default);
        let first = &mut self.layers[0];
        first.x.clear();
        first.x.extend_from_slice(x);
        first.x1.clear();
        change(&mut first.x1);
        for (k, shape) in net.layers.iter().enumerate() {
            let (before, rest) = self.layers.split_at_mut(k);
            let layer = &mut rest[0];
            if let Some(below) = before.last() {
                layer.x.clone_from(&below.y);
                layer.x1.clone_from(&below.y1);
            }
            layer.forward(shape, weights, rows);
        }
    }

    /// G and G', `[rows, M1]`.
    pub fn output(&self) -> (&[T], &[T]) {
        if let Some((g, g1)) = &self.looked_up {
            return (g, g1);
        }
        let last = &self.layers[self.layers.len() - 1];
        (&last.y, &last.y1)
    }

    /// Adds the gradient of `<g, G> + <g1, G'>` by the parameters; returns that by the rows, as far as G' does not change with them.
    ///
    /// `grad` begins with parameter `first` of the flat vector.
    pub fn backward_add(
        &self,
        grad: &mut [T],
        first: usize,
        net: &NetShape,
        weights: &[T],
        g: Vec<T>,
        g1: Vec<T>,
    ) -> Vec<T> {
        assert!(self.looked_up.is_none(), "a compressed model has no parameters to train");
        let (mut g, mut g1) = (g, g1);
        for (layer, shape) in self.layers.iter().zip(&net.layers).rev() {
            (g, g1) = layer.backward(grad, first, shape, weights, &g, &g1);
        }
        g
    }
}

multiversion! {
    /// `y = scale f + x` and `y1 = scale d z1 + x1` for one row; a shortcut may repeat x.
    fn outputs<T: Real>(
        y: &mut [T],
        y1: &mut [T],
        inner: (&[T], &[T], &[T]),
        scale: Option<&[T]>,
        shortcut: Option<(&[T], &[T])>,
    ) {
        let n = y.len();
        let (f, d, z1, y1) = (&inner.0[..n], &inner.1[..n], &inner.2[..n], &mut y1[..n]);
        match scale {
            Some(scale) => {
                for o in 0..n {
                    y[o] = scale[o] * f[o];
                    y1[o] = scale[o] * d[o] * z1[o];
                }
            }
            None => {
                for o in 0..n {
                    y[o] = f[o];
                    y1[o] = d[o] * z1[o];
                }
            }
        }
        if let Some((x, x1)) = shortcut {
            y.chunks_exact_mut(x.len()).for_each(|y| add(y, x));
            y1.chunks_exact_mut(x.len()).for_each(|y1| add(y1, x1));
        }
    }
}

multiversion! {
    /// The adjoints of a row before the activation, from those after it.
    fn through_activation<T: Real>(
        dz: &mut [T],
        dz1: &mut [T],
        outer: (&[T], &[T]),
        inner: (&[T], &[T], &[T]),
        scale: Option<&[T]>,
    ) {
        let n = dz.len();
        let (dz1, g, g1) = (&mut dz1[..n], &outer.0[..n], &outer.1[..n]);
        let (d, dd, z1) = (&inner.0[..n], &inner.1[..n], &inner.2[..n]);
        match scale {
            Some(scale) => {
                for o in 0..n {
                    dz[o] = scale[o] * (g[o] * d[o] + g1[o] * dd[o] * z1[o]);
                    dz1[o] = scale[o] * g1[o] * d[o];
                }
            }
            None => {
                for o in 0..n {
                    dz[o] = g[o] * d[o] + g1[o] * dd[o] * z1[o];
                    dz1[o] = g1[o] * d[o];
                }
            }
        }
    }
}

multiversion! {
    /// Adds what a row brings to the gradient of the time step.
    fn step_gradient_add<T: Real>(step: &mut [T], outer: (&[T], &[T]), inner: (&[T], &[T], &[T])) {
        let n = step.len();
        let (g, g1) = (&outer.0[..n], &outer.1[..n]);
        let (f, d, z1) = (&inner.0[..n], &inner.1[..n], &inner.2[..n]);
        for o in 0..n {
            step[o] += g[o] * f[o] + g1[o] * d[o] * z1[o];
        }
    }
}

impl<T: Real> JetLayer<T> {
    fn forward(&mut self, shape: &LayerShape, weights: &[T], rows: usize) {
        let (n_in, n) = (shape.n_in, shape.n_out);
        let w = &weights[shape.w_range()];
        for buffer in [&mut self.f, &mut self.d, &mut self.dd, &mut self.z1, &mut self.y, &mut self.y1] {
            buffer.clear();
            buffer.resize(rows * n, T::ZERO);
        }
        if let Some(range) = shape.b_range() {
            for row in self.f.chunks_exact_mut(n) {
                row.copy_from_slice(&weights[range.clone()]);
            }
        }
        let x = Strided { data: &self.x, row: n_in, col: 1 };
        product(&mut self.f, n, Accumulate::Add, x, w, n, rows, n, n_in);
        let x1 = Strided { data: &self.x1, row: n_in, col: 1 };
        product(&mut self.z1, n, Accumulate::Overwrite, x1, w, n, rows, n, n_in);
        activate(&mut self.f, &mut self.d, &mut self.dd, shape.activation);
        let scale = shape.idt_range().map(|range| &weights[range]);
        for r in 0..rows {
            let (own, below) = (r * n..(r + 1) * n, r * n_in..(r + 1) * n_in);
            let shortcut =
                (shape.shortcut != Shortcut::None).then(|| (&self.x[below.clone()], &self.x1[below.clone()]));
            let inner = (&self.f[own.clone()], &self.d[own.clone()], &self.z1[own.clone()]);
            outputs(&mut self.y[own.clone()], &mut self.y1[own], inner, scale, shortcut);
        }
    }

    fn backward(
        &self,
        grad: &mut [T],
        first: usize,
        shape: &LayerShape,
        weights: &[T],
        g: &[T],
        g1: &[T],
    ) -> (Vec<T>, Vec<T>) {
        let (n_in, n) = (shape.n_in, shape.n_out);
        let rows = g.len() / n;
        let (mut dz, mut dz1) = (vec![T::ZERO; rows * n], vec![T::ZERO; rows * n]);
        let scale = shape.idt_range().map(|range| &weights[range]);
        let place = |range: std::ops::Range<usize>| range.start - first..range.end - first;
        for r in 0..rows {
            let own = r * n..(r + 1) * n;
            let outer = (&g[own.clone()], &g1[own.clone()]);
            let (f, d, z1) = (&self.f[own.clone()], &self.d[own.clone()], &self.z1[own.clone()]);
            let inner = (d, &self.dd[own.clone()], z1);
            through_activation(&mut dz[own.clone()], &mut dz1[own.clone()], outer, inner, scale);
            if let Some(range) = shape.idt_range() {
                step_gradient_add(&mut grad[place(range)], outer, (f, d, z1));
            }
            if let Some(range) = shape.b_range() {
                add(&mut grad[place(range)], &dz[own]);
            }
        }
        let dw = &mut grad[place(shape.w_range())];
        for (x, dz) in [(&self.x, &dz), (&self.x1, &dz1)] {
            product(dw, n, Accumulate::Add, Strided { data: x, row: 1, col: n_in }, dz, n, n_in, n, rows);
        }
        let mut w_t = vec![T::ZERO; n_in * n];
        transpose(&mut w_t, &weights[shape.w_range()], n_in, n);
        let below = |dz: &[T], g: &[T]| {
            let mut dx = vec![T::ZERO; rows * n_in];
            let a = Strided { data: dz, row: n, col: 1 };
            product(&mut dx, n_in, Accumulate::Overwrite, a, &w_t, n_in, rows, n_in, n);
            if shape.shortcut != Shortcut::None {
                for (dx, g) in dx.chunks_exact_mut(n_in).zip(g.chunks_exact(n)) {
                    g.chunks_exact(n_in).for_each(|g| add(dx, g));
                }
            }
            dx
        };
        (below(&dz, g), below(&dz1, g1))
    }
}
