//! The layers of a PiNet and where their parameters lie in the flat vector.

use super::options::{Act, BasisType, NetworkKind, PinetOptions, Wiring};
use crate::model::params::ParamTable;
use crate::{Result, bail, err};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::ops::Range;

/// One layer, `y = act(x W + b)`.
#[derive(Debug, Clone, PartialEq)]
pub struct Dense {
    pub n_in: usize,
    pub n_out: usize,
    pub act: Act,
    /// Offset of W `[n_in, n_out]`.
    pub w: usize,
    /// Offset of b `[n_out]`.
    pub b: Option<usize>,
}

impl Dense {
    pub fn w_range(&self) -> Range<usize> {
        self.w..self.w + self.n_in * self.n_out
    }

    pub fn b_range(&self) -> Option<Range<usize>> {
        self.b.map(|b| b..b + self.n_out)
    }
}

/// The layers of one tensor property (3 or 5 components for each channel) in a block of PiNet2.
#[derive(Debug, Clone, PartialEq)]
pub struct Tensor {
    /// Components: 3 or 5.
    pub size: usize,
    /// Channels before the block: 1 at first.
    pub n_in: usize,
    /// Weighted style: what the properties of the two atoms of a pair are multiplied with.
    pub pair: Option<[Dense; 2]>,
    /// The linear layer after the sum over neighbours.
    pub pp: Dense,
    /// Weighted style: the two factors of the norm.
    pub dot: Option<[Dense; 2]>,
    /// Brings the old property to the width of the new one, where they differ.
    pub res: Option<Dense>,
}

/// One graph-convolution block. Chains of layers may be empty.
#[derive(Debug, Clone, PartialEq)]
pub struct Block {
    /// PiNet: on the properties, before the pairs; empty in the first block. PiNet2: on the new properties and norms.
    pub pp: Vec<Dense>,
    /// On (P_i, P_j); the last layer gives channels times radial functions, radial functions fastest.
    pub pi: Vec<Dense>,
    /// On the interactions of pairs.
    pub ii: Vec<Dense>,
    /// PiNet2: on the sums over neighbours.
    pub invar_pp: Vec<Dense>,
    /// PiNet2: vectors from rank 3 on, tensors from rank 5 on.
    pub tensors: Vec<Tensor>,
    /// Brings the old properties to the width of the new ones, where they differ.
    pub res: Option<Dense>,
    /// The output of the block, its last layer linear and without bias.
    pub out: Vec<Dense>,
}

/// A network: its options, layers and table of parameters.
#[derive(Debug, Clone, PartialEq)]
pub struct PinetModel {
    pub options: PinetOptions,
    pub table: ParamTable,
    pub blocks: Vec<Block>,
}

/// Appends layers to the table.
struct Builder<'a> {
    table: &'a mut ParamTable,
    act: Act,
}

impl Builder<'_> {
    /// One layer under `name`.
    fn dense(&mut self, name: &str, n_in: usize, n_out: usize, bias: bool, act: Act) -> Dense {
        let w = self.table.add(format!("{name}.kernel"), &[n_in, n_out], true);
        let b = bias.then(|| self.table.add(format!("{name}.bias"), &[n_out], true));
        Dense { n_in, n_out, act, w, b }
    }

    /// A linear layer without bias.
    fn linear(&mut self, name: &str, n_in: usize, n_out: usize) -> Dense {
        self.dense(name, n_in, n_out, false, Act::Linear)
    }

    /// A chain of layers `name.0`, `name.1`, ...
    fn chain(&mut self, name: &str, n_in: usize, nodes: &[usize], bias: bool, act: Act) -> Vec<Dense> {
        let mut n_in = n_in;
        let mut layers = Vec::with_capacity(nodes.len());
        for (k, &n_out) in nodes.iter().enumerate() {
            layers.push(self.dense(&format!("{name}.{k}"), n_in, n_out, bias, act));
            n_in = n_out;
        }
        layers
    }

    /// The pair layers on properties of width `n`.
    fn pi(&mut self, name: &str, n: usize, nodes: &[usize], n_basis: usize) -> Vec<Dense> {
        let mut nodes = nodes.to_vec();
        if let Some(last) = nodes.last_mut() {
            *last *= n_basis;
        }
        self.chain(name, 2 * n, &nodes, true, self.act)
    }

    /// The output layers on properties of width `n`. Only the fork's have an activation.
    fn out(&mut self, t: usize, options: &PinetOptions, n: usize) -> Vec<Dense> {
        let (name, act) = match options.version {
            Wiring::Master => (format!("block{t}.out"), Act::Linear),
            Wiring::Fork => (format!("block{t}.en"), self.act),
        };
        let mut layers = self.chain(&name, n, &options.out_nodes, true, act);
        let n = width(&layers, n);
        layers.push(self.linear(&format!("{name}.final"), n, options.out_units));
        layers
    }

    /// A bias-free layer where widths differ.
    fn residual(&mut self, name: &str, old: usize, new: usize) -> Option<Dense> {
        (old != new).then(|| self.linear(name, old, new))
    }

    /// One block of PiNet on properties of width `n`; returns the width after it.
    fn pinet_block(&mut self, t: usize, o: &PinetOptions, n_basis: usize, n: usize) -> (Block, usize) {
        let name = |part: &str| format!("block{t}.{part}");
        let pp_nodes: &[usize] = if t == 0 { &[] } else { &o.pp_nodes };
        let pp = self.chain(&name("pp"), n, pp_nodes, true, self.act);
        let after_pp = width(&pp, n);
        let pi = self.pi(&name("pi"), after_pp, &o.pi_nodes, n_basis);
        let channels = width(&pi, 0) / n_basis;
        let ii = self.chain(&name("ii"), channels, &o.ii_nodes, false, self.act);
        let new = width(&ii, channels);
        let old = if o.version == Wiring::Master { n } else { after_pp };
        let res = self.residual(&name("res"), old, new);
        let out = self.out(t, o, new);
        (Block { pp, pi, ii, invar_pp: vec![], tensors: vec![], res, out }, new)
    }

    /// One block of PiNet2; `n` is the width of the invariant properties, `n_tensor` that of the others.
    fn pinet2_block(
        &mut self,
        t: usize,
        o: &PinetOptions,
        n_basis: usize,
        n: usize,
        n_tensor: usize,
    ) -> Block {
        let name = |part: &str| format!("block{t}.{part}");
        let parts = o.rank / 2 + 1;
        let with_last = |nodes: &[usize], last: usize| {
            let mut nodes = nodes.to_vec();
            if let Some(x) = nodes.last_mut() {
                *x = last;
            }
            nodes
        };
        let (pp_last, ii_last) = (width_of(&o.pp_nodes), width_of(&o.ii_nodes));
        let pi = self.pi(&name("invar.pi"), n, &o.pi_nodes, n_basis);
        let ii_nodes = with_last(&o.ii_nodes, ii_last * parts);
        let ii = self.chain(&name("invar.ii"), width(&pi, 0) / n_basis, &ii_nodes, false, self.act);
        let invar_pp = self.chain(&name("invar.pp"), ii_last * parts, &o.pp_nodes, false, self.act);
        let mut tensors: Vec<Tensor> = [3, 5]
            .into_iter()
            .filter(|size| *size <= o.rank)
            .map(|size| {
                self.tensor(&name(&format!("equivar{size}")), size, o.weighted, n_tensor, ii_last, pp_last)
            })
            .collect();
        let pp_nodes = with_last(&o.pp_nodes, ii_last * parts);
        let pp = self.chain(&name("pp"), pp_last * parts, &pp_nodes, true, self.act);
        let res = self.residual(&name("res1"), n, ii_last);
        for tensor in &mut tensors {
            tensor.res = self.residual(&name(&format!("res{}", tensor.size)), n_tensor, ii_last);
        }
        let out = self.out(t, o, ii_last);
        Block { pp, pi, ii, invar_pp, tensors, res, out }
    }

    fn tensor(
        &mut self,
        name: &str,
        size: usize,
        weighted: bool,
        n_in: usize,
        n: usize,
        new: usize,
    ) -> Tensor {
        let pair = weighted.then(|| ["wi", "wj"].map(|w| self.linear(&format!("{name}.pi.{w}"), n_in, n_in)));
        let pp = self.linear(&format!("{name}.pp.0"), n, new);
        let dot = weighted.then(|| ["wi", "wj"].map(|w| self.linear(&format!("{name}.dot.{w}"), new, new)));
        Tensor { size, n_in, pair, pp, dot, res: None }
    }
}

/// The width after a chain of layers on `n` columns.
fn width(layers: &[Dense], n: usize) -> usize {
    layers.last().map_or(n, |layer| layer.n_out)
}

fn width_of(nodes: &[usize]) -> usize {
    nodes.last().copied().unwrap_or(0)
}

/// Refuses what no network of this kind can be.
fn check(o: &PinetOptions) -> Result<()> {
    if o.pi_nodes.is_empty() || o.depth == 0 || o.atom_types.is_empty() {
        bail!("a PiNet needs at least one element in atom_types, one block (depth) and one node in pi_nodes");
    }
    let nodes = [&o.pp_nodes, &o.pi_nodes, &o.ii_nodes, &o.out_nodes];
    if nodes.iter().any(|list| list.contains(&0)) || o.n_basis.is_empty() {
        bail!("pp_nodes, pi_nodes, ii_nodes, out_nodes and n_basis must be at least 1");
    }
    if o.out_units != 1 {
        return Err(err!("out_units: {} outputs for each atom, but a model uses one", o.out_units)
            .help("leave out_units out, or set it to 1"));
    }
    if o.kind == NetworkKind::PiNet {
        return Ok(());
    }
    if o.version == Wiring::Fork {
        bail!("the fork has no PiNet2");
    }
    if ![1, 3, 5].contains(&o.rank) {
        bail!("rank: {} is not 1, 3 or 5", o.rank);
    }
    if o.pp_nodes.is_empty() || o.pp_nodes.last() != o.ii_nodes.last() {
        return Err(err!(
            "pp_nodes {:?} and ii_nodes {:?} end with different widths",
            o.pp_nodes,
            o.ii_nodes
        )
        .help("PiNet2 multiplies the one with the other: give both lists the same last number"));
    }
    if !o.out_extra.is_empty() {
        return Err(err!("out_extra: further outputs are not used by potential_model and dipole_model")
            .help("remove out_extra"));
    }
    Ok(())
}

impl PinetModel {
    /// Lays out the layers of a network.
    pub fn new(options: PinetOptions) -> Result<Self> {
        check(&options)?;
        let mut table = ParamTable::default();
        let mut builder = Builder { table: &mut table, act: options.act };
        let n_basis = n_basis(&options);
        let mut blocks = Vec::with_capacity(options.depth);
        let mut n = options.atom_types.len();
        let mut n_tensor = 1;
        for t in 0..options.depth {
            match options.kind {
                NetworkKind::PiNet => {
                    let (block, new) = builder.pinet_block(t, &options, n_basis, n);
                    blocks.push(block);
                    n = new;
                }
                NetworkKind::PiNet2 => {
                    blocks.push(builder.pinet2_block(t, &options, n_basis, n, n_tensor));
                    n = width_of(&options.ii_nodes);
                    n_tensor = n;
                }
            }
        }
        Ok(PinetModel { options, table, blocks })
    }

    /// Length of the flat vector.
    pub fn n_params(&self) -> usize {
        self.table.len()
    }

    /// Number of radial functions.
    pub fn n_basis(&self) -> usize {
        n_basis(&self.options)
    }

    /// The one-hot column of an element; `None` for one that the network does not know.
    pub fn column(&self, element: i32) -> Option<usize> {
        self.options.atom_types.iter().position(|&z| z == element)
    }

    /// Where the kernels lie: what a regulariser counts. `outputs`: with the last layers of the outputs.
    pub fn kernels(&self, outputs: bool) -> Vec<Range<usize>> {
        let counts = |name: &str| name.ends_with(".kernel") && (outputs || !name.ends_with(".final.kernel"));
        self.table.views().iter().filter(|view| counts(&view.name)).map(|view| view.range()).collect()
    }

    /// Parameters before training: kernels uniform within sqrt(6 / (n_in + n_out)) around zero, biases zero.
    ///
    /// A kernel's numbers depend on the seed and its place in the table alone.
    pub fn init(&self, seed: u64) -> Vec<f64> {
        let mut params = vec![0.0; self.n_params()];
        for (k, view) in self.table.views().iter().enumerate() {
            let [n_in, n_out] = view.shape[..] else { continue };
            let limit = (6.0 / (n_in + n_out) as f64).sqrt();
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            rng.set_stream(k as u64);
            for x in &mut params[view.range()] {
                let unit = (rng.next_u64() >> 11) as f64 * (1.0 / (1u64 << 53) as f64);
                *x = limit * (2.0 * unit - 1.0);
            }
        }
        params
    }
}

fn n_basis(options: &PinetOptions) -> usize {
    match (options.basis_type, &options.center) {
        (BasisType::Gaussian, Some(center)) => center.len(),
        _ => options.n_basis.len(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(version: Wiring, kind: NetworkKind) -> PinetOptions {
        PinetOptions { atom_types: vec![1, 8], ..PinetOptions::new(version, kind) }
    }

    #[test]
    fn the_default_network_on_two_elements_has_as_many_parameters_as_the_original() {
        let model = PinetModel::new(options(Wiring::Master, NetworkKind::PiNet)).unwrap();
        assert_eq!(model.n_params(), 11_968);
    }

    #[test]
    fn kernels_start_within_their_limits_and_biases_at_zero() {
        let model = PinetModel::new(options(Wiring::Fork, NetworkKind::PiNet)).unwrap();
        let params = model.init(3);
        assert_ne!(params, model.init(4));
        for view in model.table.views() {
            let values = &params[view.range()];
            if view.name.ends_with("bias") {
                assert!(values.iter().all(|&x| x == 0.0), "{}", view.name);
            } else {
                let limit = (6.0 / view.shape.iter().sum::<usize>() as f64).sqrt();
                let largest = values.iter().fold(0.0, |a: f64, x| a.max(x.abs()));
                assert!(largest <= limit && largest > 0.5 * limit, "{}: {largest} of {limit}", view.name);
            }
        }
    }

    #[test]
    fn kernels_leave_out_biases_and_on_request_the_last_layers() {
        let model = PinetModel::new(options(Wiring::Fork, NetworkKind::PiNet)).unwrap();
        let count = |ranges: Vec<Range<usize>>| ranges.iter().map(|r| r.len()).sum::<usize>();
        assert_eq!(count(model.kernels(true)) - count(model.kernels(false)), 4 * 16);
        let biases: usize =
            model.table.views().iter().filter(|v| v.name.ends_with("bias")).map(|v| v.len()).sum();
        assert_eq!(count(model.kernels(true)) + biases, model.n_params());
    }

    #[test]
    fn networks_that_cannot_be_are_refused() {
        let wrong: [fn(&mut PinetOptions); 6] = [
            |o| o.pi_nodes.clear(),
            |o| o.depth = 0,
            |o| o.out_units = 2,
            |o| o.rank = 2,
            |o| o.ii_nodes = vec![16, 8],
            |o| o.version = Wiring::Fork,
        ];
        for change in wrong {
            let mut o = options(Wiring::Master, NetworkKind::PiNet2);
            change(&mut o);
            assert!(PinetModel::new(o).is_err());
        }
    }
}
