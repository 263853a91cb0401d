//! The structures that kernels read, in the order of `kernels/common.cu`, and structures as they lie on the device.

use crate::engine::cuda::Numbers;
use crate::engine::pinet::PinetFrame;
use crate::engine::pinet::elements::{Elements, KINDS};
use crate::engine::pinet::geometry::{tensor, unit};
use crate::model::pinet::options::{Act, Pool};

/// A pointer on the device; 0 where absent.
pub type Ptr = u64;

/// Outputs of blocks that a network may have.
pub const MOST_OUTPUTS: usize = 16;
/// Numbers that [`Batch::values`] holds: the loss, sums of every kind, the regulariser.
pub const VALUES: usize = 2 + 3 * KINDS;
/// Numbers in front of a structure.
const HEAD: usize = 16;

#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct Entry {
    pub at: Ptr,
    pub first_atom: u32,
    pub first_pair: u32,
    pub n_atoms: u32,
    pub n_pairs: u32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct Turn {
    pub rate: f64,
    pub epsilon: f64,
    pub gain: [f64; 2],
    pub divisor: [f64; 4],
    pub count: f64,
    pub stop: f64,
    pub n_structures: u32,
    pub n_atoms: u32,
    pub n_pairs: u32,
    pub step: u32,
    /// Terms whose seeds are left out: 1 energy, 2 force, 4 stress, 8 regulariser.
    pub dropped: u32,
    /// Where a bit for each force component tells whether it counts, in bytes from the start; 0: all count.
    pub chosen: u32,
    pub entries: [Entry; 1],
}

/// Bytes of a turn before its entries.
pub const TURN_HEADER: usize = std::mem::offset_of!(Turn, entries);

#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct Status {
    pub norm: f64,
    pub stop: f64,
    pub bad_step: u32,
    pub unused: u32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct Mat {
    /// Value, Dot, De, Dl, Slope, Curve, Bend: as `cpu::memory::Plane` counts them.
    pub planes: [Ptr; 7],
    pub width: i32,
    pub ld: i32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct Op {
    pub x: Mat,
    pub y: Mat,
    pub u: Mat,
    pub v: Mat,
    pub w: Ptr,
    pub wt: Ptr,
    pub b: Ptr,
    pub pieces: Ptr,
    pub count: Ptr,
    pub n_in: i32,
    pub n_out: i32,
    pub act: i32,
    pub parts: i32,
    pub constant: i32,
    pub overwrite: i32,
    pub forces: i32,
    pub n_basis: i32,
    pub tiles: i32,
    pub slices: i32,
    pub chunks: i32,
    pub size: i32,
    pub direction: i32,
    /// Of an operation in a chain: `kernels/chain.cu`.
    pub kind: i32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct Batch {
    pub turn: Ptr,
    pub status: Ptr,
    pub i: Ptr,
    pub j: Ptr,
    pub by_j: Ptr,
    pub start: Ptr,
    pub start_j: Ptr,
    pub structure: Ptr,
    pub d: Ptr,
    pub e: Ptr,
    pub slope: Ptr,
    pub e_dot: Ptr,
    pub de_e: Ptr,
    pub direction: [Ptr; 2],
    pub direction_dot: [Ptr; 2],
    pub direction_de: [Ptr; 2],
    pub de_d: Ptr,
    pub atomic: Ptr,
    pub share: Ptr,
    pub energy: Ptr,
    pub dl_energy: Ptr,
    pub dl_atomic: Ptr,
    pub force: Ptr,
    pub dl_force: Ptr,
    pub stress: Ptr,
    pub dl_stress: Ptr,
    pub sums: Ptr,
    pub values: Ptr,
    pub input: Ptr,
    pub input_dot: Ptr,
    pub out_value: [Ptr; MOST_OUTPUTS],
    pub out_de: [Ptr; MOST_OUTPUTS],
    pub out_dl: [Ptr; MOST_OUTPUTS],
    pub n_outputs: i32,
    pub n_types: i32,
    pub n_basis: i32,
    pub n_sizes: i32,
    pub pool: i32,
    pub forces: i32,
    pub model: i32,
    pub counted: i32,
    pub s_weight: f64,
    pub unused: f64,
}

/// Where the gradient of a parameter comes from.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct Source {
    pub at: Ptr,
    pub stride: u32,
    pub count: u32,
}

/// Names and sizes that the kernels compare with their own.
pub fn sizes() -> [(&'static str, usize); 6] {
    [
        ("ENTRY", size_of::<Entry>()),
        ("TURN", size_of::<Turn>()),
        ("STATUS", size_of::<Status>()),
        ("OP", size_of::<Op>()),
        ("BATCH", size_of::<Batch>()),
        ("SOURCE", size_of::<Source>()),
    ]
}

/// The number of an activation in `kernels/common.cu`.
pub fn act_number(act: Act) -> i32 {
    match act {
        Act::Tanh => 0,
        Act::Relu => 1,
        Act::Softplus => 2,
        Act::Sigmoid => 3,
        Act::Swish => 4,
        Act::Elu => 5,
        Act::Selu => 6,
        Act::Gelu => 7,
        Act::Softsign => 8,
        Act::Exponential => 9,
        Act::Mish => 10,
        Act::Linear => 11,
        Act::HardSigmoid => 12,
    }
}

/// The number of a pool in `kernels/loss.cu`.
pub fn pool_number(pool: Option<Pool>) -> i32 {
    match pool {
        None | Some(Pool::Sum) => 0,
        Some(Pool::Avg) => 1,
        Some(Pool::Max) => 2,
        Some(Pool::Min) => 3,
    }
}

/// A structure as it lies on the device. Labels are what the loss compares; without them nothing is learnt from it.
pub fn blob(frame: &PinetFrame, elements: &Elements, numbers: Numbers, sizes: &[usize]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut head = [f64::NAN; HEAD];
    head[0] = elements.energy.0;
    head[1] = elements.energy.1;
    head[2] = frame.volume.unwrap_or(f64::NAN);
    head[3] = elements.dipole.0;
    head[4] = elements.dipole.1;
    head[5..14].copy_from_slice(&elements.stress);
    let n = 3 * frame.n_atoms();
    let doubles = |out: &mut Vec<u8>, values: &[f64]| {
        values.iter().for_each(|x| out.extend(x.to_le_bytes()));
    };
    doubles(&mut out, &head);
    doubles(&mut out, &frame.coord);
    for values in [&elements.force, &elements.force_weight] {
        match values.len() {
            0 => doubles(&mut out, &vec![f64::NAN; n]),
            _ => doubles(&mut out, values),
        }
    }
    doubles(&mut out, frame.d.as_flattened());
    let reals = |out: &mut Vec<u8>, values: &[f64]| match numbers {
        Numbers::F64 => values.iter().for_each(|x| out.extend(x.to_le_bytes())),
        _ => values.iter().for_each(|x| out.extend((*x as f32).to_le_bytes())),
    };
    reals(&mut out, &frame.basis);
    reals(&mut out, &frame.slope);
    for &size in sizes {
        for d in &frame.d {
            match size {
                3 => reals(&mut out, &unit(d)),
                _ => reals(&mut out, &tensor(&unit(d))),
            }
        }
    }
    let column = frame.columns.iter().map(|c| c.unwrap_or(u32::MAX));
    let first = (0..frame.n_atoms()).flat_map(|i| frame.pairs_of(i).map(move |_| i as u32));
    let whole = column
        .chain(frame.start.iter().copied())
        .chain(frame.start_j.iter().copied())
        .chain(first)
        .chain(frame.j.iter().copied())
        .chain(frame.by_j.iter().copied());
    whole.for_each(|x| out.extend(x.to_le_bytes()));
    out
}
