//! The structures that kernels take, field by field as the files in `kernels/` declare them.
//!
//! Their sizes are told to the compiler of the kernels, which refuses to go on where they differ.

use super::sys::DevicePtr;
use crate::model::activation::Activation;
use crate::model::net::{LayerShape, Shortcut};

/// Names and sizes of all structures.
pub fn sizes() -> [(&'static str, usize); 12] {
    [
        ("FRAME", size_of::<Frame>()),
        ("TURN", size_of::<Turn>()),
        ("STATUS", size_of::<Status>()),
        ("PANEL", size_of::<Panel>()),
        ("EMBEDDING", size_of::<Embedding>()),
        ("COUNTS", size_of::<Counts>()),
        ("BATCH", size_of::<Batch>()),
        ("TASK", size_of::<Task>()),
        ("PRODUCTS", size_of::<Products>()),
        ("COLUMNS", size_of::<Columns>()),
        ("VIEW", size_of::<View>()),
        ("DIRECT", size_of::<Direct>()),
    ]
}

/// Declares a structure of the kernels with zeros as its default.
macro_rules! structures {
    ($($(#[$doc:meta])* $name:ident { $($field:ident: $type:ty),* $(,)? })*) => {
        $($(#[$doc])*
        #[repr(C)]
        #[derive(Debug, Clone, Copy, Default, PartialEq)]
        pub struct $name { $(pub $field: $type,)* })*
    };
}

pub const MAX_LAYERS: usize = 8;
pub const MAX_TASKS: usize = 8;

structures! {
    /// One frame on the device.
    Frame {
        q: DevicePtr, panel_start: DevicePtr, d: DevicePtr, j: DevicePtr, pair_start: DevicePtr, padding: DevicePtr,
        reverse_start: DevicePtr, reverse: DevicePtr, order: DevicePtr, extra: DevicePtr, force: DevicePtr,
        atom_energy: DevicePtr, atom_pref: DevicePtr, atom_coeff: DevicePtr,
        energy: f64, virial: [f64; 9], per_atom: f64,
        n_atoms: u32, n_rows: u32, n_pairs: u32, labels: u32,
    }

    /// What changes from step to step; more slots follow the first.
    Turn {
        weight: [f64; 5], rate: f64, correction: f64, shrink: f64, pull: f64, beta1: f64, beta2: f64,
        max_norm: f64, count: f64, stop: f64,
        step: u32, terms: u32, add: u32, place: u32, slots: [u32; 1],
    }

    /// What the host reads back now and then.
    Status { tail: f64, norm: f64, stop: f64, bad_step: u32, unused: u32 }

    /// One layer of the embedding nets.
    Layer {
        n_in: i32, n_out: i32, shortcut: i32, activation: i32, w: i32, b: i32, idt: i32, unused: i32, threshold: f64,
    }

    /// A panel of the series.
    Panel { middle: f64, inv_half: f64, neighbor: u32, unused: u32 }

    /// The embedding nets at the nodes of the series.
    Embedding {
        params: DevicePtr, trace: DevicePtr, nodes: DevicePtr, transform: DevicePtr, c: DevicePtr, dl_c: DevicePtr,
        tails: DevicePtr, partial: DevicePtr, place: DevicePtr, net: DevicePtr, panels: DevicePtr, first_panel: DevicePtr,
        n_nets: i32, n_layers: i32, terms: i32, n_types: i32, ldm: i32, net_size: i32, trace_size: i32, n_panels: i32,
        columns: i32, groups: i32,
        scale: f64, layers: [Layer; MAX_LAYERS],
    }

    /// What changes from batch to batch where one recorded step serves many of them.
    Counts { first: i32, n_rows: i32, n_frames: i32, atom_stride: i32, pair_stride: i32, unused: i32, n_real: f64 }

    /// A batch.
    Batch {
        frames: DevicePtr, turn: DevicePtr, status: DevicePtr, now: DevicePtr, row_frame: DevicePtr, row_local: DevicePtr,
        row_input: DevicePtr, row_vacuum: DevicePtr, frame_rows: DevicePtr, row_dl: DevicePtr, row_de: DevicePtr, row_q: DevicePtr, q_dot: DevicePtr,
        a: DevicePtr, a_dot: DevicePtr, da: DevicePtr, de_q: DevicePtr, de_d: DevicePtr,
        x: DevicePtr, de_x: DevicePtr, dl_x: DevicePtr, y_last: DevicePtr, w_out: DevicePtr, b_out: DevicePtr,
        group_row: DevicePtr, radial: DevicePtr, bias: DevicePtr, force: DevicePtr, atom_energy: DevicePtr,
        energy: DevicePtr, virial: DevicePtr, dl_force: DevicePtr, dl_virial: DevicePtr, dl_atom_energy: DevicePtr,
        dl_energy: DevicePtr, dl_e: DevicePtr, row_virial: DevicePtr, row_sums: DevicePtr, frame_sums: DevicePtr,
        values: DevicePtr,
        panels: DevicePtr, cuts: DevicePtr, empty_panel: DevicePtr,
        skew: f64, rcut_smth: f64, inv_width: f64, protection: f64, delta: [f64; 3],
        relative_f: f64, n_real: f64, start_lr: f64,
        n_frames: i32, n_rows: i32, n_types: i32, terms: i32, m1: i32, m2: i32, ldm: i32, n_extra: i32,
        ldx: i32, ld_last: i32, n_last: i32, pair_stride: i32, atom_stride: i32, function: i32, f_use_norm: i32,
        use_coeff: i32, default_pf: i32, intensive: i32, wants_virial: i32, used: i32, n_panels: i32, columns: i32,
    }

    /// One product.
    Task {
        a: DevicePtr, b: DevicePtr, c: DevicePtr, rows: DevicePtr, shortcut: DevicePtr, bias: DevicePtr,
        idt: DevicePtr, f: DevicePtr, d: DevicePtr, dd: DevicePtr, z_dot: DevicePtr, y: DevicePtr, dz: DevicePtr,
        dl_y: DevicePtr, de_y: DevicePtr, w_out: DevicePtr, dl_e: DevicePtr,
        threshold: f64, m: i32, n: i32, k: i32, lda: i32, ldb: i32, ldc: i32, ldy: i32, ld_shortcut: i32,
        ld_de_y: i32, folds: i32, fold: i32, activation: i32, tiles_n: i32, first_tile: i32, splits: i32, kind: i32,
        split_stride: u64, extent: DevicePtr,
        times: i32, a_first: i32, a_n: i32, b_first: i32, c_first: i32, dz_n: i32,
    }

    /// Products of one launch.
    Products { workspace: DevicePtr, counters: DevicePtr, n_tasks: i32, n_tiles: i32, tasks: [Task; MAX_TASKS] }

    /// Sums over the rows of one layer.
    Columns {
        dl_z: DevicePtr, dl_y: DevicePtr, f: DevicePtr, d: DevicePtr, de_y: DevicePtr, z_dot: DevicePtr,
        x: DevicePtr, x_dot: DevicePtr, dl_e: DevicePtr, b: DevicePtr, t: DevicePtr,
        rows: i32, cols: i32, ld: i32, ld_de_y: i32, rows_each: i32, first_block: i32, activation: i32, chunks: i32,
        stride: u64, extent: DevicePtr,
    }

    /// One matrix or vector of the parameters.
    View {
        flat: u64, source: DevicePtr, stride: u64, copy: DevicePtr,
        rows: i32, cols: i32, ld: i32, n_pieces: i32, is_double: i32, trainable: i32, copy_ld: i32, first_block: i32,
    }

    /// Memory of the embedding nets where they are evaluated pair by pair.
    Direct {
        kept: DevicePtr, s: DevicePtr, seeds: DevicePtr, row: DevicePtr, start: DevicePtr, groups: DevicePtr,
        scratch: DevicePtr, pieces: DevicePtr, net: DevicePtr, room: u64,
        n_stacks: i32, rows: i32, ld_kept: i32, has_idt: i32,
    }
}

/// What is done with a tile of a product.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum Kind {
    Store,
    Partial,
    Forward,
    BackwardE,
    Tangent,
    BackwardL,
}

/// The number of an activation function in the kernels, and its threshold.
pub fn activation(activation: Activation) -> (i32, f64) {
    match activation.function() {
        Activation::Tanh => (0, 0.0),
        Activation::Relu => (1, 0.0),
        Activation::Relu6 => (2, 0.0),
        Activation::Softplus => (3, 0.0),
        Activation::Sigmoid => (4, 0.0),
        Activation::Gelu => (5, 0.0),
        Activation::Silu => (6, 0.0),
        Activation::Silut { threshold } => (7, threshold),
        _ => (8, 0.0),
    }
}

impl Layer {
    /// A layer of a net whose parameters start at `first`.
    pub fn new(shape: &LayerShape, first: usize) -> Self {
        let (number, threshold) = activation(shape.activation);
        let offset = |place: Option<usize>| place.map_or(-1, |p| (p - first) as i32);
        Layer {
            n_in: shape.n_in as i32,
            n_out: shape.n_out as i32,
            shortcut: i32::from(shape.shortcut != Shortcut::None),
            activation: number,
            w: (shape.w - first) as i32,
            b: offset(shape.b),
            idt: offset(shape.idt),
            unused: 0,
            threshold,
        }
    }
}
