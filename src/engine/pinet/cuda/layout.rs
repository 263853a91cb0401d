//! The structures that kernels take, from which their declarations for the files in `kernels/` are made; and structures of atoms
//! as they lie on the device.

use crate::engine::pinet::PinetFrame;
use crate::engine::pinet::elements::{Elements, KINDS};
use crate::engine::pinet::geometry::{tensor, unit};
use crate::gpu::memory::in_the_type_of_kernels;
use crate::gpu::{DevicePtr, Numbers, structures};
use crate::model::pinet::options::{Act, Pool};
use zerocopy::IntoBytes;

/// A pointer on the device; 0 where absent.
pub type Ptr = DevicePtr;

/// Outputs of blocks that a network may have.
pub const MOST_OUTPUTS: usize = 16;
/// Numbers that [`Batch::values`] holds: the loss, sums of every kind, the regulariser.
pub const VALUES: usize = 2 + 3 * KINDS;
/// What the kernel compares with a limit when it cuts a gradient down; the numbers are those of `kernels/update.cu`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum Clipping {
    None = 0,
    /// The norm over one variable.
    Variable = 1,
    /// The norm over all of them.
    Global = 2,
    /// Each component.
    Value = 3,
}

/// Numbers in front of a structure.
const HEAD: usize = 16;

structures! {
    /// Where a structure of the batch lies on the device and in the batch.
    Entry {
        at: (const unsigned char*),
        first_atom: u32, first_pair: u32, n_atoms: u32, n_pairs: u32,
    }

    /// What changes from step to step.
    Turn {
        /// Of Adam: the corrected rate, and 1 - beta of both moments
        rate: f64, epsilon: f64, gain: [f64; 2],
        /// Of the means: energy, force, stress, dipole
        divisor: [f64; 4],
        /// Ranks whose gradients are added up
        count: f64,
        /// 1: this rank wishes to stop
        stop: f64,
        n_structures: u32, n_atoms: u32, n_pairs: u32, step: u32,
        /// Terms whose seeds are left out: 1 energy, 2 force, 4 stress, 8 regulariser
        dropped: u32,
        /// Where a bit for each force component tells whether it counts, in bytes from the start; 0: all count
        chosen: u32,
        /// `[n_structures]`, then a bit for each force component
        entries: [Entry; 1],
    }

    /// What the host reads back now and then.
    Status {
        /// Of the last mean gradient before it was cut down
        norm: f64,
        /// Ranks that wished to stop at the last step
        stop: f64,
        /// 1 + the first step whose loss was not finite, 0: none
        bad_step: u32,
        unused: u32,
    }

    /// The planes of a matrix from some column on, in the order of `cpu::memory::Plane`; null where absent.
    Mat {
        value: (real*), dot: (real*), de: (real*), dl: (real*), slope: (real*), curve: (real*), bend: (real*),
        width: i32, ld: i32,
    }

    /// One operation of the plan.
    Op {
        x: Mat, y: Mat, u: Mat, v: Mat,
        /// `[n_in, n_out]`, its transpose, `[n_out]`; b may be null
        w: (const real*), wt: (const real*), b: (const real*),
        /// `[n_pieces, (n_in + bias) n_out]` gradients
        pieces: (real*),
        /// Rows: atoms or pairs of the batch
        count: (const u32*),
        n_in: i32, n_out: i32, act: i32, parts: i32,
        constant: i32, overwrite: i32, forces: i32, n_basis: i32,
        tiles: i32, slices: i32, chunks: i32, size: i32,
        direction: i32,
        /// Of an operation in a chain: `kernels/chain.cu`
        kind: i32,
    }

    /// A batch on the device.
    Batch {
        turn: (const Turn*),
        status: (Status*),
        /// `[n_pairs]`
        i: (u32*), j: (u32*), by_j: (u32*),
        /// `[n_atoms + 1]`
        start: (u32*), start_j: (u32*),
        /// `[n_atoms]`
        structure: (u32*),
        /// `[n_pairs, 3]`
        d: (double*),
        /// `[n_pairs, n_basis]`
        e: (real*), slope: (real*), e_dot: (real*), de_e: (real*),
        /// `[n_pairs, 3]`, `[n_pairs, 5]`
        direction: [(real*); 2], direction_dot: [(real*); 2], direction_de: [(real*); 2],
        /// `[n_pairs, 3]`
        de_d: (double*),
        /// `[n_atoms]`
        atomic: (double*), share: (double*),
        /// `[n_structures]`
        energy: (double*), dl_energy: (double*),
        /// `[n_atoms]`
        dl_atomic: (double*),
        /// `[n_atoms, 3]`
        force: (double*), dl_force: (double*),
        /// `[n_structures, 9]`
        stress: (double*), dl_stress: (double*),
        /// `[n_structures, KINDS, 3]`
        sums: (double*),
        /// `[1 + 3 KINDS]` loss, then sums of each kind
        values: (double*),
        /// `[n_atoms, n_types]`
        input: (real*), input_dot: (real*),
        out_value: [(real*); MOST_OUTPUTS],
        out_de: [(real*); MOST_OUTPUTS],
        out_dl: [(real*); MOST_OUTPUTS],
        n_outputs: i32, n_types: i32, n_basis: i32, n_sizes: i32,
        pool: i32, forces: i32,
        /// 0: none, 1: potential, 2: dipole
        model: i32,
        /// Bits of the kinds
        counted: i32,
        s_weight: f64, unused: f64,
    }

    /// Where the gradient of a parameter comes from.
    Source {
        /// Its first piece; null: no layer uses it
        at: (const real*),
        /// From piece to piece, and how many
        stride: u32, count: u32,
    }
}

/// Bytes of a turn before its entries.
pub const TURN_HEADER: usize = std::mem::offset_of!(Turn, entries);

impl Mat {
    /// The planes, as `cpu::memory::Plane` counts them.
    pub fn planes(&self) -> [Ptr; 7] {
        [self.value, self.dot, self.de, self.dl, self.slope, self.curve, self.bend]
    }

    pub fn planes_mut(&mut self) -> [&mut Ptr; 7] {
        let Mat { value, dot, de, dl, slope, curve, bend, .. } = self;
        [value, dot, de, dl, slope, curve, bend]
    }
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
    let doubles = |out: &mut Vec<u8>, values: &[f64]| out.extend(values.as_bytes());
    doubles(&mut out, &head);
    doubles(&mut out, &frame.coord);
    for values in [&elements.force, &elements.force_weight] {
        match values.len() {
            0 => doubles(&mut out, &vec![f64::NAN; n]),
            _ => doubles(&mut out, values),
        }
    }
    doubles(&mut out, frame.d.as_flattened());
    let reals = |out: &mut Vec<u8>, values: &[f64]| out.extend(in_the_type_of_kernels(values, numbers));
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
