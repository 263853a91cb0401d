//! What PiNN calls the weights of a network.
//!
//! Keras numbers the layers of each class in the order in which they are made: `dense`, `dense_1`, ... Most are made with the
//! network, some when a block first runs, so the numbers follow from walking through both.

use crate::model::pinet::PinetModel;
use crate::model::pinet::options::{NetworkKind, PinetOptions};
use std::collections::{BTreeMap, HashMap};

/// PiNN's name of every parameter of a network of the newer wiring, in the order of the table.
pub fn names(model: &PinetModel) -> Vec<String> {
    let paths = match model.options.kind {
        NetworkKind::PiNet => pinet(model),
        NetworkKind::PiNet2 => pinet2(model),
    };
    let name = |ours: &str| {
        let (layer, part) = ours.rsplit_once('.').expect("a parameter is layer.kernel or layer.bias");
        format!("{}/{part}", paths.get(layer).unwrap_or_else(|| panic!("{layer} has a name in PiNN")))
    };
    model.table.views().iter().map(|view| name(&view.name)).collect()
}

/// Names as Keras gives them, and the paths of our layers that were found so far.
#[derive(Default)]
struct Keras {
    counts: HashMap<&'static str, usize>,
    paths: BTreeMap<String, String>,
}

impl Keras {
    /// The next layer of a class.
    fn next(&mut self, class: &'static str) -> String {
        let count = self.counts.entry(class).or_default();
        *count += 1;
        if *count == 1 { class.to_string() } else { format!("{class}_{}", *count - 1) }
    }

    /// A `Dense` of its own in `scope`, which is our layer `ours`.
    fn dense(&mut self, scope: &str, ours: String) {
        let path = format!("{scope}/{}", self.next("dense"));
        self.paths.insert(ours, path);
    }

    /// An `FFLayer` of `n` layers in `scope`, which are our layers `ours.0`, `ours.1`, ...
    fn chain(&mut self, scope: &str, n: usize, ours: &str) {
        let scope = format!("{scope}/{}", self.next("ff_layer"));
        (0..n).for_each(|k| self.dense(&scope, format!("{ours}.{k}")));
    }

    /// An `FFLayer` of one layer that is made and never used, so that it has no weights.
    fn unused(&mut self) {
        self.next("ff_layer");
        self.next("dense");
    }

    /// The output layers of all blocks.
    fn outputs(&mut self, net: &str, o: &PinetOptions) {
        for t in 0..o.depth {
            let scope = format!("{net}/{}", self.next("out_layer"));
            self.chain(&scope, o.out_nodes.len(), &format!("block{t}.out"));
            self.dense(&scope, format!("block{t}.out.final"));
        }
    }
}

/// `name` of the `t`-th layer of a class that all are made of at once.
fn numbered(name: &str, t: usize) -> String {
    if t == 0 { name.to_string() } else { format!("{name}_{t}") }
}

fn pinet(model: &PinetModel) -> BTreeMap<String, String> {
    let (mut keras, o, net) = (Keras::default(), &model.options, "pi_net");
    for t in 0..o.depth {
        let block = format!("{net}/{}", numbered("gc_block", t));
        let pp = if t == 0 { 0 } else { o.pp_nodes.len() };
        keras.chain(&block, pp, &format!("block{t}.pp"));
        keras.chain(&block, o.ii_nodes.len(), &format!("block{t}.ii"));
    }
    keras.outputs(net, o);
    for (t, block) in model.blocks.iter().enumerate() {
        let scope = format!("{net}/{}/{}", numbered("gc_block", t), numbered("pi_layer", t));
        keras.chain(&scope, o.pi_nodes.len(), &format!("block{t}.pi"));
        if block.res.is_some() {
            keras.dense(&format!("{net}/{}", numbered("res_update", t)), format!("block{t}.res"));
        }
    }
    keras.paths
}

fn pinet2(model: &PinetModel) -> BTreeMap<String, String> {
    let (mut keras, o, net) = (Keras::default(), &model.options, "pi_net2");
    let mut tensors = Vec::new(); // the scopes of vectors and tensors, block after block
    for (t, block) in model.blocks.iter().enumerate() {
        let scope = format!("{net}/{}", numbered("gc_block", t));
        let invar = format!("{scope}/{}", numbered("invar_layer", t));
        keras.chain(&invar, o.ii_nodes.len(), &format!("block{t}.invar.ii"));
        keras.chain(&invar, o.pp_nodes.len(), &format!("block{t}.invar.pp"));
        keras.chain(&scope, o.pp_nodes.len(), &format!("block{t}.pp"));
        for tensor in &block.tensors {
            let scope = format!("{scope}/{}", keras.next("equivar_layer"));
            keras.unused();
            keras.chain(&scope, 1, &format!("block{t}.equivar{}.pp", tensor.size));
            tensors.push(scope);
        }
    }
    keras.outputs(net, o);
    for (t, block) in model.blocks.iter().enumerate() {
        let gc = format!("{net}/{}/{}", numbered("gc_block", t), numbered("invar_layer", t));
        let scope = format!("{gc}/{}", numbered("pi_layer", t));
        keras.chain(&scope, o.pi_nodes.len(), &format!("block{t}.invar.pi"));
        let first = t * block.tensors.len();
        for (k, tensor) in block.tensors.iter().enumerate() {
            for (class, part) in [("pix_layer", "pi"), ("dot_layer", "dot")] {
                let scope = format!("{}/{}", tensors[first + k], numbered(class, first + k));
                for w in ["wi", "wj"].into_iter().filter(|_| tensor.pair.is_some()) {
                    keras.dense(&scope, format!("block{t}.equivar{}.{part}.{w}", tensor.size));
                }
            }
        }
        // All residuals of the properties are made first, then those of the vectors, then those of the tensors.
        let residual = |rank: usize| format!("{net}/{}", numbered("res_update", rank * o.depth + t));
        if block.res.is_some() {
            keras.dense(&residual(0), format!("block{t}.res1"));
        }
        for (k, tensor) in block.tensors.iter().enumerate().filter(|(_, tensor)| tensor.res.is_some()) {
            keras.dense(&residual(k + 1), format!("block{t}.res{}", tensor.size));
        }
    }
    keras.paths
}
