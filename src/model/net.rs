//! The shape of a feed-forward net, and where its parameters lie in the flat vector.

use super::activation::Activation;
use super::params::ParamTable;
use std::ops::Range;

/// How a layer's input is added to its output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shortcut {
    None,
    /// y + x, where the widths are equal.
    Same,
    /// y + (x, x), where the width doubles.
    Double,
}

/// One layer: `y = act(x W + b) * idt + shortcut(x)`.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerShape {
    pub n_in: usize,
    pub n_out: usize,
    pub activation: Activation,
    pub shortcut: Shortcut,
    /// Offset of W `[n_in, n_out]`.
    pub w: usize,
    /// Offset of b `[n_out]`.
    pub b: Option<usize>,
    /// Offset of idt `[n_out]`.
    pub idt: Option<usize>,
}

impl Shortcut {
    /// The one of a hidden layer of these widths.
    pub fn between(n_in: usize, n_out: usize) -> Shortcut {
        match n_out {
            n if n == n_in => Shortcut::Same,
            n if n == 2 * n_in => Shortcut::Double,
            _ => Shortcut::None,
        }
    }
}

impl LayerShape {
    pub fn w_range(&self) -> Range<usize> {
        self.w..self.w + self.n_in * self.n_out
    }

    pub fn b_range(&self) -> Option<Range<usize>> {
        self.b.map(|b| b..b + self.n_out)
    }

    pub fn idt_range(&self) -> Option<Range<usize>> {
        self.idt.map(|t| t..t + self.n_out)
    }
}

/// A chain of layers.
#[derive(Debug, Clone, PartialEq)]
pub struct NetShape {
    pub layers: Vec<LayerShape>,
}

/// What a hidden stack of layers is made of.
#[derive(Debug, Clone, Copy)]
pub struct HiddenSpec<'a> {
    pub n_in: usize,
    pub neuron: &'a [usize],
    pub activation: Activation,
    pub resnet_dt: bool,
    pub bias: bool,
    /// One flag for each layer.
    pub trainable: &'a [bool],
}

impl NetShape {
    /// Hidden layers with shortcuts where widths allow; parameters are appended to the table under `prefix`.
    pub fn hidden(table: &mut ParamTable, prefix: &str, spec: HiddenSpec) -> Self {
        let mut n_in = spec.n_in;
        let mut layers = Vec::with_capacity(spec.neuron.len() + 1);
        for (k, (&n_out, &trainable)) in spec.neuron.iter().zip(spec.trainable).enumerate() {
            let shortcut = Shortcut::between(n_in, n_out);
            let name = |part: &str| format!("{prefix}.layers.{k}.{part}");
            let w = table.add(name("matrix"), &[n_in, n_out], trainable);
            let b = spec.bias.then(|| table.add(name("bias"), &[n_out], trainable));
            // A time step scales only what is added to a shortcut.
            let has_idt = spec.resnet_dt && shortcut != Shortcut::None;
            let idt = has_idt.then(|| table.add(name("idt"), &[n_out], trainable));
            layers.push(LayerShape { n_in, n_out, activation: spec.activation, shortcut, w, b, idt });
            n_in = n_out;
        }
        NetShape { layers }
    }

    /// A single layer without activation, whose matrix has this shape in the table and as many numbers as `n_out` columns need.
    pub fn single(
        table: &mut ParamTable,
        name: &str,
        shape: &[usize],
        n_out: usize,
        trainable: bool,
    ) -> Self {
        let w = table.add(format!("{name}.matrix"), shape, trainable);
        let b = table.add(format!("{name}.bias"), &[n_out], trainable);
        let n_in = shape.iter().product::<usize>() / n_out;
        let (activation, shortcut) = (Activation::None, Shortcut::None);
        NetShape { layers: vec![LayerShape { n_in, n_out, activation, shortcut, w, b: Some(b), idt: None }] }
    }

    /// Appends a linear output layer.
    pub fn with_output(
        mut self,
        table: &mut ParamTable,
        prefix: &str,
        n_out: usize,
        trainable: bool,
    ) -> Self {
        let k = self.layers.len();
        let n_in = self.n_out();
        let w = table.add(format!("{prefix}.layers.{k}.matrix"), &[n_in, n_out], trainable);
        let b = table.add(format!("{prefix}.layers.{k}.bias"), &[n_out], trainable);
        let shortcut = Shortcut::None;
        self.layers.push(LayerShape {
            n_in,
            n_out,
            activation: Activation::None,
            shortcut,
            w,
            b: Some(b),
            idt: None,
        });
        self
    }

    /// All parameters of the net, which lie one after another in the flat vector.
    pub fn params(&self) -> Range<usize> {
        let last = &self.layers[self.layers.len() - 1];
        self.layers[0].w..last.idt_range().or(last.b_range()).unwrap_or(last.w_range()).end
    }

    /// Width of the last layer.
    pub fn n_out(&self) -> usize {
        self.layers.last().map_or(0, |l| l.n_out)
    }
}
