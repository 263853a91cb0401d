//! What all atoms share while the parameters stay as they are: weights in the number type of the engine, turned matrices, embedded types.

use super::rows::Kind;
use crate::engine::cpu::dense::transpose;
use crate::engine::cpu::elementwise::add;
use crate::engine::cpu::jets::JetNet;
use crate::engine::cpu::real::Real;
use crate::model::dp::Dp;
use crate::model::net::LayerShape;

/// Parameters and options of a descriptor with attention.
#[derive(Default)]
pub struct Step<T> {
    pub width: usize,
    pub attn: usize,
    pub smooth: bool,
    pub dotr: bool,
    pub normalize: bool,
    pub scaling: T,
    eps: T,
    /// Inputs of the net of distances.
    pub n_in: usize,
    one_side: bool,
    n_types: usize,
    tebd: usize,
    /// The parameters up to those of the fitting nets.
    pub weights: Vec<T>,
    pub layers: Vec<LayerWeights<T>>,
    /// Types, and pairs of types where these have a net of their own.
    types: JetNet<f64>,
    strip: Option<JetNet<f64>>,
    /// `[n_types, tebd]`
    pub embedded: Vec<T>,
    /// `[centers, n_types, M]` what G is scaled by, less 1; empty where types are inputs.
    pub table: Vec<T>,
}

/// The weights of one layer.
pub struct LayerWeights<T> {
    pub shape: Shapes,
    /// `[3 H, M]` and `[M, H]`
    pub inward_turned: Vec<T>,
    pub outward_turned: Vec<T>,
}

/// Where the parameters of a layer are.
pub struct Shapes {
    pub inward: LayerShape,
    pub outward: LayerShape,
    pub norm: LayerShape,
}

impl<T: Real> Step<T> {
    /// Prepares for these parameters.
    pub fn prepare(&mut self, model: &Dp, params: &[f64]) {
        let (nets, descriptor) = (model.attention(), model.descriptor());
        let options = nets.options;
        (self.width, self.attn) = (model.n_embed(), options.attn);
        (self.smooth, self.dotr, self.normalize) = (options.smooth, options.attn_dotr, options.normalize);
        (self.scaling, self.eps) = (T::from_f64(options.scaling()), T::from_f64(options.ln_eps));
        self.n_in = nets.filter.layers[0].n_in;
        (self.one_side, self.n_types, self.tebd) =
            (descriptor.type_one_side, model.n_types(), options.tebd_dim);
        self.weights.clear();
        self.weights.extend(params[..model.fitting_params().start].iter().map(|&p| T::from_f64(p)));
        self.layers.clear();
        for layer in nets.layers() {
            let turned = |shape: &LayerShape| {
                let mut turned = vec![T::ZERO; shape.n_in * shape.n_out];
                transpose(&mut turned, &self.weights[shape.w_range()], shape.n_in, shape.n_out);
                turned
            };
            self.layers.push(LayerWeights {
                inward_turned: turned(layer.inward),
                outward_turned: turned(layer.outward),
                shape: Shapes {
                    inward: layer.inward.clone(),
                    outward: layer.outward.clone(),
                    norm: layer.norm.clone(),
                },
            });
        }
        self.embed(model, params);
    }

    /// Embeds the types, and pairs of them. There are few, and their derivatives come from sums over all atoms: float64.
    fn embed(&mut self, model: &Dp, params: &[f64]) {
        let nets = model.attention();
        let still = |n: usize| move |x1: &mut Vec<f64>| x1.resize(n, 0.0);
        let inputs = model.type_inputs();
        self.types.forward_rows(nets.types, params, &inputs, still(inputs.len()));
        let embedded = self.types.output().0.to_vec();
        self.embedded = embedded.iter().map(|&x| T::from_f64(x)).collect();
        self.table.clear();
        self.strip = nets.strip.map(|net| {
            let row = |t: usize| &embedded[t * self.tebd..(t + 1) * self.tebd];
            let mut pairs = Vec::new();
            for c in 0..self.n_centers() {
                for t in 0..self.n_types {
                    pairs.extend_from_slice(row(t));
                    if !self.one_side {
                        pairs.extend_from_slice(row(c));
                    }
                }
            }
            let mut strip = JetNet::default();
            strip.forward_rows(net, params, &pairs, still(pairs.len()));
            self.table.extend(strip.output().0.iter().map(|&x| T::from_f64(x)));
            strip
        });
    }

    fn n_centers(&self) -> usize {
        if self.one_side { 1 } else { self.n_types }
    }

    pub fn normal(&self) -> Kind<T> {
        Kind::Normal { eps: self.eps }
    }

    /// Overwrites a buffer with so many rows of a bias.
    pub fn biased(&self, out: &mut Vec<T>, bias: &[T], rows: usize) {
        out.clear();
        out.reserve_exact(rows * bias.len());
        (0..rows).for_each(|_| out.extend_from_slice(bias));
    }

    /// The row of the table for a pair of types, where there is one.
    pub fn of_types(&self, center: usize, neighbor: usize) -> Option<&[T]> {
        (!self.table.is_empty()).then(|| &self.table[self.place_in_table(center, neighbor)])
    }

    /// As [`Step::of_types`] in float64, with its row.
    pub fn exact_of_types(&self, center: usize, neighbor: usize) -> Option<(usize, &[f64])> {
        let place = self.place_in_table(center, neighbor);
        self.strip.as_ref().map(|strip| (place.start / self.width, &strip.output().0[place]))
    }

    /// Where the table stands in a gradient while it is summed up.
    pub fn place_of_table(&self) -> std::ops::Range<usize> {
        let first = self.weights.len() + self.embedded.len();
        first..first + self.table.len()
    }

    fn place_in_table(&self, center: usize, neighbor: usize) -> std::ops::Range<usize> {
        let row = if self.one_side { neighbor } else { center * self.n_types + neighbor };
        row * self.width..(row + 1) * self.width
    }

    /// Appends the inputs of the net of distances.
    pub fn inputs(&self, x: &mut Vec<T>, s: T, center: usize, neighbor: usize) {
        x.push(s);
        if self.table.is_empty() {
            let row = |t: usize| &self.embedded[t * self.tebd..(t + 1) * self.tebd];
            x.extend_from_slice(row(neighbor));
            if !self.one_side {
                x.extend_from_slice(row(center));
            }
        }
    }

    /// Numbers of a gradient while it is summed up: parameters, embedded types, the table.
    pub fn gradient_len(&self) -> usize {
        self.weights.len() + self.embedded.len() + self.table.len()
    }

    /// Adds dL by the inputs of the net of distances to dL by the embedded types.
    pub fn inputs_gradient_add<R: Real>(&self, grad: &mut [R], dl_x: &[R], center: usize, neighbor: usize) {
        if self.table.is_empty() {
            let first = self.weights.len();
            let place = |t: usize| first + t * self.tebd..first + (t + 1) * self.tebd;
            add(&mut grad[place(neighbor)], &dl_x[1..=self.tebd]);
            if !self.one_side {
                add(&mut grad[place(center)], &dl_x[1 + self.tebd..]);
            }
        }
    }

    /// The part of a gradient for a row of the table.
    pub fn table_gradient<'a>(&self, grad: &'a mut [T], center: usize, neighbor: usize) -> &'a mut [T] {
        let first = self.weights.len() + self.embedded.len();
        let place = self.place_in_table(center, neighbor);
        &mut grad[first + place.start..first + place.end]
    }

    /// Adds a gradient that was summed up over all atoms, with dL by the tails of the descriptors of each type `[n_types, tebd]`, to that of
    /// the parameters.
    pub fn deliver_add(&self, grad: &mut [f64], model: &Dp, params: &[f64], sums: &[f64], tails: &[f64]) {
        let nets = model.attention();
        let (own, rest) = sums.split_at(self.weights.len());
        let (types, table) = rest.split_at(self.embedded.len());
        add(&mut grad[..own.len()], own);
        let mut types = types.to_vec();
        if !tails.is_empty() {
            add(&mut types, tails);
        }
        if let (Some(strip), Some(net)) = (&self.strip, nets.strip) {
            let dl_x = strip.backward_add(grad, 0, net, params, table.to_vec(), vec![0.0; table.len()]);
            let n_in = net.layers[0].n_in;
            for (row, dl_x) in dl_x.chunks_exact(n_in).enumerate() {
                let (center, neighbor) = (row / self.n_types, row % self.n_types);
                let place = |t: usize| t * self.tebd..(t + 1) * self.tebd;
                add(&mut types[place(neighbor)], &dl_x[..self.tebd]);
                if !self.one_side {
                    add(&mut types[place(center)], &dl_x[self.tebd..]);
                }
            }
        }
        let still = vec![0.0; types.len()];
        self.types.backward_add(grad, 0, nets.types, params, types, still);
    }
}

impl<T: Real> LayerWeights<T> {
    fn matrix<'a>(&self, step: &'a Step<T>, shape: &LayerShape) -> &'a [T] {
        &step.weights[shape.w_range()]
    }

    fn bias<'a>(&self, step: &'a Step<T>, shape: &LayerShape) -> &'a [T] {
        &step.weights[shape.b_range().expect("these layers have a bias")]
    }

    /// `[M, 3 H]`
    pub fn inward<'a>(&self, step: &'a Step<T>) -> &'a [T] {
        self.matrix(step, &self.shape.inward)
    }

    pub fn inward_bias<'a>(&self, step: &'a Step<T>) -> &'a [T] {
        self.bias(step, &self.shape.inward)
    }

    /// `[H, M]`
    pub fn outward<'a>(&self, step: &'a Step<T>) -> &'a [T] {
        self.matrix(step, &self.shape.outward)
    }

    pub fn outward_bias<'a>(&self, step: &'a Step<T>) -> &'a [T] {
        self.bias(step, &self.shape.outward)
    }

    /// Scale and shift after the normalisation.
    pub fn norm<'a>(&self, step: &'a Step<T>) -> (&'a [T], &'a [T]) {
        (self.matrix(step, &self.shape.norm), self.bias(step, &self.shape.norm))
    }

    /// The gradient of a matrix.
    pub fn matrix_gradient<'a>(&self, grad: &'a mut [T], shape: &LayerShape) -> &'a mut [T] {
        &mut grad[shape.w_range()]
    }

    /// Adds dL by all rows to the gradient of a bias.
    pub fn bias_gradient_add(&self, grad: &mut [T], shape: &LayerShape, dl: &[T]) {
        let bias = &mut grad[shape.b_range().expect("these layers have a bias")];
        dl.chunks_exact(bias.len()).for_each(|row| add(bias, row));
    }
}
