//! The embedding net as a Chebyshev series.
//!
//! The net G depends on one number s. Over the range of s that the data holds it is expanded as
//! `G(s) = sum_k T_k(x) C_k`; the K rows of C come from the net at the K nodes `x_n = cos(pi (n + 1/2) / K)`. From s to x
//! leads a hyperbola that is steeper for small s, where most neighbours are and a net changes most: it spares a fifth to a
//! quarter of the terms that a straight line would need. In float64 the series is the network itself to rounding: its last rows measure
//! the error at every step, and K grows when they are too large.

use super::dense::{Accumulate, Strided, product};
use super::net::{self, NetTrace};
use super::pool::{Parts, Pool};
use super::scratch::scratch;
use crate::model::dp::Dp;
use crate::model::net::NetShape;

/// The range, the number of terms and the transform of the series.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// Number of terms, K.
    pub terms: usize,
    pub middle: f64,
    pub half: f64,
    /// `[K, K]`: coefficients = transform * values at the nodes.
    transform: Vec<f64>,
    /// `[K]` the nodes as values of s.
    nodes: Vec<f64>,
}

/// How much steeper the argument of the polynomials is at the lower end of the range, between 0 (a straight line) and 1: see
/// [`Plan::argument`]. The stock network as `dp train` draws it needs 88 terms in float64 with 0, 64 to 72 with 0.4 to 0.6; after
/// some thousand steps 0.3 and 0.4 are the best.
pub const SKEW: f64 = 0.4;

/// Numbers of terms that are tried, in this order.
pub const TERMS: [usize; 23] =
    [16, 24, 32, 40, 48, 56, 64, 72, 80, 88, 96, 104, 112, 120, 128, 136, 144, 152, 160, 168, 176, 184, 192];

impl Plan {
    /// A series of `terms` over `[low, high]` of the normalised s.
    pub fn new(terms: usize, low: f64, high: f64) -> Self {
        let (middle, half) = ((low + high) / 2.0, ((high - low) / 2.0).max(1e-6));
        let k = terms as f64;
        let angle = |n: usize| std::f64::consts::PI * (n as f64 + 0.5) / k;
        // The inverse of `argument`.
        let straight = |x: f64| (x - SKEW) / (1.0 - SKEW * x);
        let nodes = (0..terms).map(|n| middle + half * straight(angle(n).cos())).collect();
        let transform = (0..terms * terms)
            .map(|p| {
                let (j, n) = (p / terms, p % terms);
                let norm = if j == 0 { 1.0 } else { 2.0 } / k;
                norm * (j as f64 * angle(n)).cos()
            })
            .collect();
        Plan { terms, middle, half, transform, nodes }
    }

    /// The argument of the polynomials at `s`: `(y + SKEW) / (1 + SKEW y)` with y = (s - middle) / half in -1 .. 1.
    pub fn argument(&self, s: f64) -> f64 {
        let y = (s - self.middle) / self.half;
        (y + SKEW) / (1.0 + SKEW * y)
    }

    /// `[K]` the nodes as values of s.
    pub fn nodes(&self) -> &[f64] {
        &self.nodes
    }

    /// `[K, K]`: coefficients = transform * values at the nodes.
    pub fn transform(&self) -> &[f64] {
        &self.transform
    }

    /// True where the series holds at `s`.
    pub fn covers(&self, low: f64, high: f64) -> bool {
        let slack = 1e-9 * self.half;
        low >= self.middle - self.half - slack && high <= self.middle + self.half + slack
    }
}

/// The coefficients of all nets of a model for one set of parameters.
#[derive(Default)]
pub struct Series {
    nets: Vec<Expansion>,
    /// The largest of the last coefficients over the largest of all.
    pub tail: f64,
}

/// One net.
#[derive(Default)]
struct Expansion {
    /// `[K, M1]`
    coefficients: Vec<f64>,
    trace: NetTrace,
    tail: f64,
}

impl Expansion {
    fn expand(&mut self, plan: &Plan, shape: &NetShape, params: &[f64], m: usize) {
        let k = plan.terms;
        let values = net::forward(&mut self.trace, shape, params, &plan.nodes);
        let c = &mut self.coefficients;
        c.resize(k * m, 0.0);
        let transform = Strided { data: &plan.transform, row: k, col: 1 };
        product(c, m, Accumulate::Overwrite, transform, values, m, k, m, k);
        let largest = |x: &[f64]| x.iter().fold(0.0f64, |a, b| a.max(b.abs()));
        self.tail = largest(&c[(k - 3) * m..]) / largest(c).max(1e-300);
    }
}

impl Series {
    /// `[K, M1]` the coefficients of a net.
    pub fn coefficients(&self, net: usize) -> &[f64] {
        &self.nets[net].coefficients
    }

    /// Expands every embedding net.
    pub fn expand(&mut self, plan: &Plan, model: &Dp, params: &[f64]) {
        self.expand_on(&Pool::serial(), plan, model, params);
    }

    /// Expands every embedding net, beside each other.
    pub fn expand_on(&mut self, pool: &Pool, plan: &Plan, model: &Dp, params: &[f64]) {
        self.nets.resize_with(model.embedding.len(), Expansion::default);
        let nets = Parts::new(&mut self.nets);
        pool.run(model.embedding.len(), |n| {
            // SAFETY: one task for each net.
            let net = unsafe { &mut nets.part(n, 1)[0] };
            net.expand(plan, &model.embedding[n], params, model.n_embed());
        });
        self.tail = self.nets.iter().map(|net| net.tail).fold(0.0, f64::max);
    }

    /// Adds the gradient of net `n` given dL/dC `[K, M1]` to `grad`, which begins with parameter `first`.
    #[allow(clippy::too_many_arguments)]
    pub fn backward_add(
        &self,
        grad: &mut [f64],
        first: usize,
        plan: &Plan,
        model: &Dp,
        params: &[f64],
        n: usize,
        dl_c: &[f64],
    ) {
        let (k, m) = (plan.terms, model.n_embed());
        scratch(k * m, |dl_values: &mut [f64]| {
            let transform = Strided { data: &plan.transform, row: 1, col: k };
            product(dl_values, m, Accumulate::Overwrite, transform, dl_c, m, k, m, k);
            net::backward_add(grad, first, &self.nets[n].trace, &model.embedding[n], params, dl_values);
        });
    }
}

/// The smallest plan whose tail is below `tolerance` for these parameters, if any is.
pub fn choose(
    model: &Dp,
    params: &[f64],
    low: f64,
    high: f64,
    tolerance: f64,
    at_least: usize,
) -> Option<Plan> {
    TERMS.iter().filter(|&&terms| terms >= at_least).find_map(|&terms| {
        let plan = Plan::new(terms, low, high);
        let mut series = Series::default();
        series.expand(&plan, model, params);
        (series.tail < tolerance).then_some(plan)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_argument_of_a_node_is_a_cosine() {
        let plan = Plan::new(24, -0.4, 9.2);
        for (n, &s) in plan.nodes().iter().enumerate() {
            let want = (std::f64::consts::PI * (n as f64 + 0.5) / 24.0).cos();
            assert!((plan.argument(s) - want).abs() < 1e-14, "node {n}");
            assert!(plan.covers(s, s), "node {n} lies within the range");
        }
        assert!((plan.argument(-0.4) + 1.0).abs() < 1e-14 && (plan.argument(9.2) - 1.0).abs() < 1e-14);
    }
}
