//! The parameters of a model on the device, and where the nets read them.

use super::layout::{self, Layer, MAX_LAYERS, View};
use super::learned::Learned;
use crate::engine::cpu::chebyshev::{Plan, n_stacks};
use crate::gpu::{Buffer, Device, DevicePtr, Real};
use crate::model::dp::Dp;
use crate::model::net::LayerShape;
use crate::{Result, bail};
use std::sync::Arc;

/// Nodes of the series that a block of the kernels on the nets works on at once, and numbers that they keep for each.
const NODES: usize = 2;
const TRACES: usize = 5;
/// Parameters that one block of `embed_weights` works on.
const WEIGHTS: usize = 64;
/// Shared memory that the kernels on the nets may take: what every GPU has, less what they declare themselves.
const ROOM_BYTES: usize = 72 * 1024;
/// Elements of a view that one block of `reduce` and `adam` works on.
pub const PER_BLOCK: usize = 512;

/// Where the nets read one layer, in numbers from the start of the copies.
#[derive(Debug, Clone, Copy)]
pub struct Place {
    pub w: usize,
    pub ldw: usize,
    pub b: Option<usize>,
    pub idt: Option<usize>,
}

/// Rounds up to a multiple of four numbers, so that rows start at 16 bytes.
pub fn padded(n: usize) -> usize {
    n.next_multiple_of(4)
}

/// Parameters, and the copies of them that products read.
pub struct Network {
    pub device: Arc<Device>,
    pub model: Arc<Dp>,
    pub learned: Learned,
    /// Weights with rows padded to 16 bytes, biases and time steps.
    pub weights: Buffer<Real>,
    /// Numbers in `weights`.
    pub n_weights: usize,
    /// `[n_types][layers]`
    pub places: Vec<Vec<Place>>,
    pub w_out: Buffer<DevicePtr>,
    pub b_out: Buffer<DevicePtr>,
    pub radial: Buffer<Real>,
    pub bias: Buffer<f64>,
}

impl Network {
    pub fn new(device: &Arc<Device>, model: &Arc<Dp>) -> Result<Self> {
        if model.embedding[0].layers.len() > MAX_LAYERS {
            bail!(
                "the embedding net has {} layers; the GPU takes at most {MAX_LAYERS}",
                model.embedding[0].layers.len()
            );
        }
        if model.fitting[0].layers.len() < 2 {
            bail!("the fitting net has no hidden layer; the GPU wants one");
        }
        let mut end = 0;
        let mut take = |n: usize| {
            let at = end;
            end += padded(n);
            at
        };
        let mut place = |shape: &LayerShape, output: bool| {
            let ldw = if output { 1 } else { padded(shape.n_out) };
            Place {
                w: take(shape.n_in * ldw),
                ldw,
                b: shape.b.map(|_| take(shape.n_out)),
                idt: shape.idt.map(|_| take(shape.n_out)),
            }
        };
        let places: Vec<Vec<Place>> = model
            .fitting
            .iter()
            .map(|net| {
                let last = net.layers.len() - 1;
                net.layers.iter().enumerate().map(|(l, shape)| place(shape, l == last)).collect()
            })
            .collect();
        let size = device.numbers.size();
        let weights = Buffer::zeroed_reals(device, end, "the weights")?;
        let at = |p: Option<usize>| p.map_or(0, |p| weights.address() + (p * size) as u64);
        let outs: Vec<DevicePtr> = places.iter().map(|net| at(net.last().map(|p| p.w))).collect();
        let biases: Vec<DevicePtr> = places.iter().map(|net| at(net.last().and_then(|p| p.b))).collect();
        Ok(Network {
            learned: Learned::new(device, model.table.len())?,
            n_weights: end,
            places,
            w_out: Buffer::of(device, &outs, "tables")?,
            b_out: Buffer::of(device, &biases, "tables")?,
            radial: radial_table(device, model)?,
            bias: Buffer::of(device, &model.stats.bias, "tables")?,
            weights,
            device: device.clone(),
            model: model.clone(),
        })
    }

    /// The address of a number among the copies.
    pub fn weight_at(&self, place: usize) -> DevicePtr {
        self.weights.address() + (place * self.device.numbers.size()) as u64
    }

    /// Number of embedding parameters of one net; nets follow each other in the flat vector.
    pub fn embedding_size(&self) -> usize {
        let nets = &self.model.embedding;
        self.model.fitting[0].layers[0].w / nets.len()
    }

    /// The views of the flat vector without where their gradients come from.
    pub fn views(&self) -> Vec<View> {
        let model = &self.model;
        let trainable = model.trainable();
        let is_trained = |flat: usize| i32::from(trainable.iter().any(|r| r.contains(&flat)));
        let size = self.embedding_size();
        let mut views: Vec<View> = (0..model.embedding.len())
            .map(|n| View {
                flat: (n * size) as u64,
                rows: 1,
                cols: size as i32,
                ld: size as i32,
                is_double: 1,
                trainable: is_trained(n * size),
                ..View::default()
            })
            .collect();
        for (net, places) in model.fitting.iter().zip(&self.places) {
            for (shape, place) in net.layers.iter().zip(places) {
                views.push(View {
                    flat: shape.w as u64,
                    rows: shape.n_in as i32,
                    cols: shape.n_out as i32,
                    ld: place.ldw as i32,
                    copy: self.weight_at(place.w),
                    copy_ld: place.ldw as i32,
                    trainable: is_trained(shape.w),
                    ..View::default()
                });
                for (flat, place) in [(shape.b, place.b), (shape.idt, place.idt)] {
                    let (Some(flat), Some(place)) = (flat, place) else { continue };
                    views.push(View {
                        flat: flat as u64,
                        rows: 1,
                        cols: shape.n_out as i32,
                        ld: shape.n_out as i32,
                        copy: self.weight_at(place),
                        copy_ld: shape.n_out as i32,
                        is_double: 1,
                        trainable: is_trained(flat),
                        ..View::default()
                    });
                }
            }
        }
        let mut block = 0;
        for view in &mut views {
            view.first_block = block;
            block += ((view.rows * view.cols) as usize).div_ceil(PER_BLOCK) as i32;
        }
        views
    }
}

/// Blocks of all views.
pub fn n_blocks(views: &[View]) -> usize {
    views.last().map_or(0, |v| v.first_block as usize + ((v.rows * v.cols) as usize).div_ceil(PER_BLOCK))
}

fn radial_table(device: &Arc<Device>, model: &Dp) -> Result<Buffer<Real>> {
    let rows: Vec<f64> = (0..model.n_types())
        .flat_map(|c| {
            let (davg, dstd) = (&model.stats.davg[c], &model.stats.dstd[c]);
            [davg[0], 1.0 / dstd[0], 1.0 / dstd[1]]
        })
        .collect();
    Buffer::reals(device, &rows, "tables")
}

/// Groups of nodes that a block works on: it brings the parameters of a net to shared memory once for all of them, and all
/// blocks fit on the GPU at once where there are not too many nodes. A panel has a multiple of eight terms, and
/// a block has nodes of one panel only.
fn groups(nodes: usize, multiprocessors: usize) -> usize {
    [1, 2].into_iter().find(|groups| nodes <= NODES * groups * multiprocessors).unwrap_or(4)
}

/// The embedding nets as series on panels.
pub struct SeriesOnDevice {
    pub plan: Arc<Plan>,
    /// What the kernels take.
    pub embedding: layout::Embedding,
    /// `[n_types, n_panels]` and `[n_types, n_types]`: see [`layout::Batch`].
    pub cuts: DevicePtr,
    pub empty_panel: DevicePtr,
    pub n_stacks: usize,
    /// Shared memory of `embed_forward` and `embed_backward`.
    pub shared: (usize, usize),
    /// Numbers of a net's parameters that fit into shared memory.
    pub room: i32,
    /// What the kernels read and write; owned here.
    _buffers: Box<dyn Send + Sync>,
}

impl SeriesOnDevice {
    pub fn new(network: &Network, plan: &Arc<Plan>) -> Result<Self> {
        let (device, model) = (&network.device, &network.model);
        let (n_types, n_stacks, m1) = (model.n_types(), n_stacks(model), model.n_embed());
        let n_nets = model.embedding.len();
        let mut place = vec![0u32; n_nets];
        let mut net = Vec::new();
        for center in 0..n_stacks {
            for t in 0..n_types {
                place[model.embedding_net(center, t)] = (center * n_types + t) as u32;
                net.push(model.embedding_net(center, t) as u32);
            }
        }
        let panels: Vec<layout::Panel> = plan
            .panels()
            .iter()
            .map(|panel| layout::Panel {
                middle: panel.middle(),
                inv_half: 1.0 / panel.half(),
                neighbor: panel.neighbor as u32,
                unused: 0,
            })
            .collect();
        let first_panel: Vec<u32> = (0..n_types).map(|t| plan.panels_of(t).start as u32).collect();
        let first_panel = [&first_panel[..], &[panels.len() as u32]].concat();
        let cuts: Vec<f64> = (0..n_types).flat_map(|center| plan.cuts(center).to_vec()).collect();
        let pairs = (0..n_types).flat_map(|center| (0..n_types).map(move |t| (center, t)));
        let mut empty: Vec<u32> = pairs.map(|(center, t)| plan.empty_panel(center, t) as u32).collect();
        empty.extend((0..n_types).map(|t| plan.zero_panel(t) as u32));
        let shapes = &model.embedding[0].layers;
        let columns = plan.columns();
        let trace: usize = shapes.iter().map(|l| TRACES * columns * l.n_out).sum();
        let (ldm, net_size) = (padded(m1), network.embedding_size());
        let zeros = |n: usize| Buffer::<f64>::zeroed(device, n, "the embedding series");
        let coefficients = || Buffer::zeroed_reals(device, n_stacks * columns * ldm, "the embedding series");
        let doubles = |values: &[f64]| Buffer::of(device, values, "the series");
        let words = |values: &[u32]| Buffer::of(device, values, "the series");
        let trace_of_all = zeros(n_stacks * trace)?;
        let (nodes_at, transform) = (doubles(plan.nodes())?, doubles(plan.transform())?);
        let (c, dl_c) = (coefficients()?, coefficients()?);
        let tails = zeros(2 * n_stacks * columns / NODES)?;
        let partial = zeros(n_nets * net_size)?;
        let (place, net) = (words(&place)?, words(&net)?);
        let n_panels = panels.len();
        let panels = Buffer::of(device, &panels, "the series")?;
        let first_panel = words(&first_panel)?;
        let (cuts, empty) = (doubles(&cuts)?, words(&empty)?);
        let mut layers = [Layer::default(); MAX_LAYERS];
        for (layer, shape) in layers.iter_mut().zip(shapes) {
            *layer = Layer::new(shape, 0);
        }
        let widths: usize = 1 + shapes.iter().map(|l| l.n_out).sum::<usize>();
        let widest = shapes.iter().map(|l| l.n_out).max().unwrap_or(1);
        let groups = groups(n_stacks * columns, device.multiprocessors);
        let nodes = NODES * groups;
        let scratch = 8 * nodes * widths.max(3 * widest);
        let room = ROOM_BYTES.saturating_sub(scratch) / 8;
        let inside = if net_size > room { 0 } else { 8 * net_size };
        Ok(SeriesOnDevice {
            plan: plan.clone(),
            cuts: cuts.address(),
            empty_panel: empty.address(),
            n_stacks,
            room: room as i32,
            shared: (inside + 8 * nodes * widths, inside + 8 * nodes * 3 * widest),
            embedding: layout::Embedding {
                params: network.learned.params.address(),
                trace: trace_of_all.address(),
                nodes: nodes_at.address(),
                transform: transform.address(),
                c: c.address(),
                dl_c: dl_c.address(),
                tails: tails.address(),
                partial: partial.address(),
                place: place.address(),
                net: net.address(),
                panels: panels.address(),
                first_panel: first_panel.address(),
                n_nets: n_nets as i32,
                n_layers: shapes.len() as i32,
                terms: plan.terms as i32,
                n_types: n_types as i32,
                ldm: ldm as i32,
                net_size: net_size as i32,
                trace_size: trace as i32,
                n_panels: n_panels as i32,
                columns: columns as i32,
                groups: groups as i32,
                scale: 1.0 / model.n_sel() as f64,
                layers,
            },
            _buffers: Box::new((
                (trace_of_all, nodes_at, transform, c, dl_c, tails, partial),
                (place, net, panels, first_panel, cuts, empty),
            )),
        })
    }

    /// Blocks of the kernels that go through the layers of the nets.
    pub fn blocks(&self) -> usize {
        self.transform_blocks() / self.embedding.groups as usize
    }

    /// Blocks of the kernel that makes coefficients.
    pub fn transform_blocks(&self) -> usize {
        self.n_stacks * self.embedding.columns as usize / NODES
    }

    /// Blocks of the kernel that adds up their gradients.
    pub fn weight_blocks(&self) -> usize {
        self.embedding.n_nets as usize * (self.embedding.net_size as usize).div_ceil(WEIGHTS)
    }
}
