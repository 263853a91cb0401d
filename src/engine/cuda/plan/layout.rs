//! The structures that the kernels of the plan take, beside those of `engine/cuda/layout.rs`.

use crate::gpu::structures;

structures! {
    /// Some columns of a matrix: its values, then their changes `plane` numbers behind them; and the adjoints of both, dE and then dL.
    Mat { v: (real*), g: (real*), plane: u64, width: i32, ld: i32 }

    /// One operation: what its kernels say of it.
    Op {
        x: Mat, y: Mat, z: Mat, u: Mat, s: Mat, t: Mat,
        /// Parameters of the first group, of which those of the next stand `stride` numbers behind; null where absent
        w: (const real*), b: (const real*), idt: (const real*),
        /// Pieces of a sum over rows, of as many `splits`
        pieces: (real*),
        /// `[groups + 1]` first row of each group
        rows: (const u32*),
        index: (const u32*),
        stride: u64,
        /// Where the parameters stand in the flat vector
        w_flat: u64, b_flat: u64,
        threshold: f64, scale: f64,
        groups: i32, n_in: i32, n_out: i32, size: i32,
        activation: i32, shortcut: i32, splits: i32, kind: i32,
    }

    /// A frame of the batch.
    Entry {
        at: (const unsigned char*),
        /// Before its own: places of atoms, pairs, centres
        place: u32, pair: u32, row: u32, unused: u32,
    }

    /// Some frames of the batch that are worked on at once, and their centres.
    Chunk {
        /// How many frames, and the first of them
        head: (const u32*),
        entries: (const Entry*),
        /// `[n_frames, n_lists]` of all frames: first row of each kind and group
        firsts: (const u32*),
        /// `[groups + 1]` first centre of each group
        rows: (const u32*),
        /// `[n_centers]` type, frame of the batch, centre of the batch, place of the atom
        types: (u32*), frame: (u32*), row: (u32*), place: (u32*),
        /// `[n_centers, n_extra]`
        extra: (real*),
        groups: i32, n_lists: i32, n_extra: i32, most_frames: i32,
    }

    /// The pairs of a chunk as one descriptor sees them.
    Part {
        /// `[groups + 1]` first pair of each group
        rows: (const u32*),
        /// `[n_pairs, 3]` x_j - x_i
        d: (real*),
        /// `[n_pairs]` neighbour's type times n_types and centre's type; centre; place of the neighbour; where dE/dd goes
        types: (u32*), atom: (u32*), neighbor: (u32*), place: (u32*),
        /// `[n_types, most_atoms]` first pair and how many
        first: (u32*), count: (u32*),
        /// `[n_centers]` pairs of all types; first of its couples where they are a square
        total: (u32*), square: (u32*),
        /// `[n_types^2, most_atoms]` first couple of types a and b >= a, at b n_types + a
        couple: (u32*),
        /// `[n_couples]`
        left: (u32*), right: (u32*), couple_atom: (u32*),
        /// `[n_centers, n_types, 2]` slots in which nobody is seen: empty, left out
        still: (real*),
        /// `[2 n_types^2]` their arguments, by neighbour, centre, kind
        still_s: (const real*),
        /// `[n_types, 3]` davg, 1 / dstd radial, 1 / dstd angular
        radial: (const real*),
        /// `[n_types^2]` of couples, 1 / (sel sel)
        weights: (const real*),
        rcut: f64, rcut_smth: f64, inv_width: f64, protection: f64,
        groups: i32, n_types: i32, n_sel: i32, most_atoms: i32,
        number: i32,
        /// Numbers of lists
        list: i32, couple_list: i32, square_list: i32,
    }

    /// What a model says that predicts no energy, and its loss.
    Outputs {
        /// `[n_types, width]` what outputs of the nets are multiplied by, and what is added to them
        scale: (const double*), shift: (const double*),
        /// `[n_rows, width]` outputs of centres, and dL of them
        of_atoms: (double*), dl_of_atoms: (double*),
        /// `[n_frames, width]`
        of_frames: (double*), dl_of_frames: (double*),
        /// `[n_rows, 2]` squares of errors, and of their running sums
        row_sums: (double*),
        /// `[n_frames, FRAME_SUMS]` what frames bring to the loss and to what is shown of it
        frame_sums: (double*),
        /// What `dl_of_frames` are multiplied by
        factor: (double*),
        /// `[width]` of errors of a property
        unit: (const double*),
        beta: f64,
        width: i32, is_mean: i32, loss: i32, function: i32,
    }
}

impl Mat {
    /// Some of its columns.
    pub fn columns(self, first: usize, width: usize, size: usize) -> Mat {
        let skip = |at: u64| if at == 0 { 0 } else { at + (first * size) as u64 };
        Mat { v: skip(self.v), g: skip(self.g), width: width as i32, ..self }
    }

    /// Its adjoints as values.
    pub fn adjoint(self) -> Mat {
        Mat { v: self.g, g: 0, ..self }
    }
}
