//! The structures that kernels take: their declarations for the files in `kernels/` are made from those here.

use crate::gpu::structures;
use crate::model::activation::Activation;
use crate::model::net::{LayerShape, Shortcut};

/// Layers that an embedding net may have, and products of one launch.
pub const MAX_LAYERS: usize = 8;
pub const MAX_TASKS: usize = 8;
/// Bytes of a [`Turn`] before its slots.
pub const TURN_HEADER: usize = std::mem::offset_of!(Turn, slots);

structures! {
    /// One frame on the device. Row r is the r-th real atom when atoms are sorted by type.
    Frame {
        /// `[n_rows, C, columns]` features of the series, with the components of env
        q: (real*),
        /// `[n_rows n_panels + 1]` pairs by panel, as pair_start
        panel_start: (u32*),
        /// `[3, n_pairs]` x_j - x_i
        d: (const real*),
        /// `[n_pairs]` neighbour, as numbered in the file
        j: (const u32*),
        /// `[n_rows n_types + 1]`
        pair_start: (const u32*),
        /// `[n_rows n_types]` empty slots; without directions as many of excluded neighbours follow
        padding: (const u32*),
        /// `[n_atoms + 1]`
        reverse_start: (const u32*),
        /// `[n_pairs]` pairs in which an atom is the neighbour
        reverse: (const u32*),
        /// `[n_rows]` index in the file
        order: (const u32*),
        /// `[n_rows, n_extra]`
        extra: (const real*),
        /// Labels, null where absent: `[n_atoms, 3]`
        force: (const double*),
        /// `[n_atoms]`
        atom_energy: (const double*),
        /// `[n_atoms, 3]`
        atom_pref: (const double*),
        /// `[n_atoms]`
        atom_coeff: (const double*),
        /// `[n_atoms]` 0: a virtual atom; null where all real atoms are rows
        is_real: (const u32*),
        energy: f64,
        virial: [f64; 9],
        /// 1 / number of real atoms
        per_atom: f64,
        n_atoms: u32, n_rows: u32, n_pairs: u32, labels: u32,
    }

    /// What changes from step to step.
    Turn {
        /// Of the terms of the loss; 0 where a label is missing
        weight: [f64; 5],
        rate: f64, correction: f64, shrink: f64, pull: f64, beta1: f64, beta2: f64,
        /// The learning rate itself
        plain_rate: f64,
        /// 0: never scaled down
        max_norm: f64,
        /// Gradients in the sum
        count: f64,
        /// The wish to stop
        stop: f64,
        step: u32,
        /// Bits: terms of the loss that this batch has labels for
        terms: u32,
        /// The gradient is added to what is there
        add: u32,
        /// Of this batch's values
        place: u32,
        /// `[n_frames]` the frames: more of them follow these.
        slots: [u32; 2],
    }

    /// What the host reads back now and then.
    Status {
        /// Largest tail of a series since it was last reset
        tail: f64,
        /// Of the last mean gradient
        norm: f64,
        /// Ranks that wish to stop
        stop: f64,
        /// 1 + the first step whose loss was not finite, 0: none
        bad_step: u32,
        unused: u32,
    }

    /// One layer of the embedding nets.
    Layer {
        n_in: i32, n_out: i32, shortcut: i32, activation: i32,
        /// Offsets from the start of the net; -1: absent
        w: i32, b: i32, idt: i32, unused: i32,
        threshold: f64,
    }

    /// A panel of the series: engine/cpu/chebyshev.rs.
    Panel {
        /// The change of variables
        middle: f64, inv_half: f64,
        /// Of its neighbours, and nothing.
        neighbor: u32, unused: u32,
    }

    /// The embedding nets at the nodes of the series. A stack has the nets of one centre type, or of all of them, and their nodes
    /// Panel after panel: columns = n_panels K of them.
    Embedding {
        /// Of net 0, in the flat vector
        params: (const double*),
        /// `[n_stacks, trace_size]`: y, f, d, dL/dz, dL/dy f of every layer, each `[columns, n_out]`
        trace: (double*),
        /// `[columns]`
        nodes: (const double*),
        /// `[K, K]`
        transform: (const double*),
        /// `[n_stacks, columns, ldm]` coefficients / n_sel
        c: (real*),
        /// DL/dc
        dl_c: (const real*),
        /// `[n_stacks, columns / NODES, 2]` largest of the last coefficients and of all
        tails: (double*),
        /// `[n_nets, net_size]` gradients
        partial: (double*),
        /// `[n_nets]` stack * n_types + neighbour type
        place: (const u32*),
        /// `[n_stacks n_types]` the net that stands there
        net: (const u32*),
        /// `[n_panels]`
        panels: (const Panel*),
        /// `[n_types + 1]` panels of each neighbour type
        first_panel: (const u32*),
        n_nets: i32, n_layers: i32, terms: i32, n_types: i32, ldm: i32, net_size: i32, trace_size: i32,
        n_panels: i32,
        columns: i32,
        /// Groups of nodes that a block works on
        groups: i32,
        /// 1 / n_sel
        scale: f64,
        layers: [Layer; MAX_LAYERS],
    }

    /// What changes from batch to batch where one recorded step serves many of them. Behind it stand the first row of each type,
    /// The first input of each type (`[n_types + 1]` each) and the frames' rows: see rows.rs.
    Counts {
        /// 0 and the number of rows: where the rows begin and end
        first: i32, n_rows: i32,
        n_frames: i32, atom_stride: i32, pair_stride: i32, unused: i32,
        n_real: f64,
    }

    /// A batch: atoms are rows, grouped by type and, within a type, by frame.
    Batch {
        /// All frames on the device
        frames: (const Frame*),
        turn: (const Turn*),
        status: (Status*),
        /// Of this step's batch; null: every batch has the numbers below
        now: (const Counts*),
        /// `[n_rows]` frame in the batch
        row_frame: (const u32*),
        /// `[n_rows]` row in the frame
        row_local: (const u32*),
        /// `[n_rows]` row of the inputs, counted over all groups
        row_input: (const u32*),
        /// `[n_rows]` row of the inputs with no neighbours; `u32::MAX`: none
        row_vacuum: (const u32*),
        /// `[n_frames, n_types, 2]` first row and number of rows
        frame_rows: (const u32*),
        /// `[n_rows]` where dL/dA (and Q) of a row stand among those of its coefficients
        row_dl: (const u32*),
        /// `[n_rows]` where dE/dA (and the tangent of Q) stand
        row_de: (const u32*),
        /// `[2 n_rows]` Q of each row and its tangent
        row_q: (const real**),
        /// `[n_rows, C, columns]` with the components of env
        q_dot: (real*),
        /// `[n_rows, C, ldm]`
        a: (real*),
        a_dot: (real*),
        /// `[2 n_rows, C, ldm]` dL/dA and dE/dA
        da: (real*),
        /// `[n_rows, C, columns]`
        de_q: (real*),
        /// `[n_frames, pair_stride, 3]`
        de_d: (real*),
        /// `[n_types]` inputs of the fitting nets: values, then tangents
        x: (real* const*),
        /// `[n_types]`
        de_x: (real* const*),
        dl_x: (real* const*),
        /// `[n_types]` inputs of the output layer: values, then tangents
        y_last: (real* const*),
        /// `[n_types]` weights of the output layer
        w_out: (const real* const*),
        b_out: (const real* const*),
        /// `[n_types + 1]` first input row of each group
        group_row: (const u32*),
        /// `[n_types, 3]` davg, 1/dstd radial, 1/dstd angular
        radial: (const real*),
        /// `[n_types]` energy
        bias: (const double*),
        /// `[n_frames, atom_stride, 3]`
        force: (double*),
        /// `[n_frames, atom_stride]`
        atom_energy: (double*),
        /// `[n_frames]`
        energy: (double*),
        /// `[n_frames, 9]`
        virial: (double*),
        /// As force
        dl_force: (double*),
        dl_virial: (double*),
        dl_atom_energy: (double*),
        dl_energy: (double*),
        /// `[input rows]` dL/denergy of each row
        dl_e: (real*),
        /// `[n_rows, 9]`
        row_virial: (double*),
        /// `[n_rows, 6]` force terms of the loss: penalty, square, absolute; twice. Where frames are shared, of chunks: blocks.cu
        row_sums: (double*),
        /// `[n_frames, 5, 3]`
        frame_sums: (double*),
        /// `[places, 16]` loss, then square, absolute, count of five terms
        values: (double*),
        /// `[n_panels]` of the series
        panels: (const Panel*),
        /// `[n_types, n_panels]` for each centre type: squares of the distances at which they end
        cuts: (const double*),
        /// `[n_types, n_types]` of the empty slots of a centre and neighbour type, then `[n_types]` of the argument 0
        empty_panel: (const u32*),
        /// Of the change of variables
        skew: f64,
        rcut_smth: f64, inv_width: f64, protection: f64,
        /// Huber: energy, force, virial
        delta: [f64; 3],
        /// NaN: absolute
        relative_f: f64,
        /// Atoms of the batch
        n_real: f64,
        start_lr: f64,
        n_frames: i32, n_rows: i32, n_types: i32, terms: i32,
        m1: i32, m2: i32, ldm: i32, n_extra: i32,
        ldx: i32, ld_last: i32, n_last: i32, pair_stride: i32,
        atom_stride: i32, function: i32, f_use_norm: i32, use_coeff: i32,
        default_pf: i32, intensive: i32, wants_virial: i32, used: i32,
        /// columns = n_panels terms
        n_panels: i32, columns: i32,
    }

    /// One product. Leading dimensions are multiples of 4, so that rows start at 16 bytes.
    Task {
        /// `[m, lda]`, or `[k, lda]` where the kernel takes A transposed
        a: (const real*),
        /// `[k, ldb]`, or `[n, ldb]` where the kernel takes B transposed
        b: (const real*),
        /// `[m, ldc]`
        c: (real*),
        /// Not null: the rows of A of each atom, as many as env has components, are found here
        rows: (const real* const*),
        /// The layer's input (FORWARD, TANGENT) or the adjoint of its output (BACKWARD): what a shortcut carries.
        shortcut: (const real*),
        bias: (const real*), idt: (const real*),
        /// `[m, ldc]` of the layer whose z or y this is; d and dd null for tanh
        f: (real*), d: (real*), dd: (real*), z_dot: (real*),
        /// `[m, ldy]` FORWARD, TANGENT: the layer's output
        y: (real*),
        /// `[m, ldc]` the adjoint of z
        dz: (real*),
        dl_y: (real*),
        /// `[m, ld_de_y]`
        de_y: (const real*),
        /// Not null: this is the last hidden layer
        w_out: (const real*),
        /// `[m]`
        dl_e: (const real*),
        threshold: f64,
        m: i32, n: i32, k: i32, lda: i32, ldb: i32, ldc: i32, ldy: i32, ld_shortcut: i32,
        ld_de_y: i32, folds: i32, fold: i32, activation: i32,
        tiles_n: i32, first_tile: i32, splits: i32, kind: i32,
        /// PARTIAL: from one piece to the next
        split_stride: u64,
        /// Not null: where the rows of this product begin and end in the batch of this step. The sizes above are those that tiles
        /// Were chosen for; what is below says where the product lies.
        extent: (const u32*),
        /// m (k, where A is transposed) is so many times the rows
        times: i32,
        /// Rows of A before its own: so many times the first, and so many times the rows; also y's
        a_first: i32, a_n: i32,
        /// The same of B, and of what has rows of C
        b_first: i32, c_first: i32,
        /// dz begins at twice the first, and so many times the rows
        dz_n: i32,
    }

    /// Products of one launch.
    Products {
        /// Pieces of products that are cut along k
        workspace: (real*),
        /// `[tiles]` pieces done
        counters: (u32*),
        n_tasks: i32, n_tiles: i32,
        tasks: [Task; MAX_TASKS],
    }

    /// Products of one launch that are more than its arguments have room for.
    ProductList {
        workspace: (real*),
        counters: (u32*),
        /// `[n_tasks]`
        tasks: (const Task*),
        n_tasks: i32, n_tiles: i32,
    }

    /// Sums over the rows of one layer of one group: bias and time step, or the output layer.
    Columns {
        dl_z: (const real*), dl_y: (const real*), f: (const real*), d: (const real*), de_y: (const real*),
        z_dot: (const real*),
        /// Output layer: x not null
        x: (const real*), x_dot: (const real*), dl_e: (const real*),
        /// `[chunks, stride]` pieces; null: not wanted
        b: (double*), t: (double*),
        rows: i32, cols: i32, ld: i32, ld_de_y: i32, rows_each: i32, first_block: i32, activation: i32,
        chunks: i32,
        stride: u64,
        /// Not null: where the rows begin and end in the batch of this step, in so many chunks
        extent: (const u32*),
    }

    /// One matrix or vector of the parameters.
    View {
        /// Where it starts in the flat vector
        flat: u64,
        /// Pieces of the gradient, `[n_pieces][rows, ld]`
        source: (const void*),
        /// From one piece to the next
        stride: u64,
        /// Where the nets read it; null: from the flat vector
        copy: (real*),
        rows: i32, cols: i32, ld: i32, n_pieces: i32,
        is_double: i32, trainable: i32, copy_ld: i32, first_block: i32,
    }

    /// A matrix of the parameters that moves along an orthogonal one.
    Matrix {
        /// Where it starts in the flat vector
        flat: u64,
        /// `[rows, ld]` where the mean of its gradients points, and the orthogonal matrix near that
        x: (real*), moved: (real*),
        /// `[n, ldn]` symmetric matrices of its shorter side
        gram: (real*), square: (real*), polynomial: (real*), all: (real*),
        /// What the learning rate is multiplied by
        scale: f64,
        /// Of the norm of X: added to it, or the least that it is divided by
        least: f64,
        rows: i32, cols: i32, ld: i32, n: i32, ldn: i32, first_block: i32, steps: i32, adds_least: i32,
    }

    /// The state of HybridMuon or AdaMuon and what it works on.
    Muon {
        params: (double*), first: (double*), second: (double*),
        grad: (const double*), squares: (const double*),
        /// `[matrix_blocks, 4]`
        sums: (double*),
        /// `[n_matrices]` each: how far gradient and mean have agreed, what a direction is multiplied by to be that of the orthogonal
        /// Matrix, and what the learning rate is multiplied by
        alignment: (double*), inverse: (double*), length: (double*),
        matrices: (const Matrix*),
        /// `[n_matrices, most_steps, 3]`
        polynomials: (const double*),
        /// `[n_vector]` places of parameters that are in no matrix
        vector: (const u32*),
        turn: (const Turn*),
        status: (Status*),
        n_vector: u64, n_params: u64,
        momentum: f64, weight_decay: f64,
        /// Of vectors: what the learning rate is multiplied by, and what is added to the root of the second moment
        vector_rate: f64, vector_epsilon: f64,
        n_matrices: i32, matrix_blocks: i32, most_steps: i32, is_damped: i32,
        /// Directions are signs, and what becomes of them is evened out: AdaMuon
        is_even: i32,
        /// Steps after which the small matrices are made from the large ones again; 0: never
        restart: i32,
    }

    /// One covariance of LKF, as tiles of its lower half.
    Covariance {
        /// Of its parameters, in the order of blocks
        first: u64,
        /// Among all tiles, and among all strips of rows
        first_tile: u64, first_strip: u64,
        n: i32, strips: i32,
    }

    /// The covariances of LKF and what they work on.
    Kalman {
        params: (double*), grad: (const double*),
        /// `[n_tiles, 64, 64]`, and what each brings to its rows and columns: `[n_tiles, 2, 64]`
        tiles: (double*), parts: (double*),
        /// In the order of blocks: the gradient, the covariance times it, and that of the update before
        h: (double*), gain: (double*), last: (const double*),
        /// `[n_strips]` and `[n_blocks]` parts of h k
        dots: (double*), sums: (double*),
        blocks: (const Covariance*),
        /// `[n_params]` the parameter at each place of the order of blocks
        order: (const u32*),
        n_params: u64,
        n_blocks: i32, unused: i32,
    }

    /// What is observed of a batch in place of its loss.
    Observing {
        prefactor: f64,
        /// Atoms of each frame whose forces are observed; 0: its energy is
        n_places: u32, unused: u32,
    }

    /// What an evaluation notices.
    Checks {
        /// The bits of the square of the shortest distance that the series does not reach
        closest: u64,
        /// 1: a force did not fit into whole numbers
        too_large: u32, unused: u32,
    }

    /// Some rows of an evaluation: atoms with their listed neighbours, and what is found.
    Listed {
        /// `[n_atoms, 3]`
        coord: (const double*),
        /// `[n_atoms]`; negative: no atom of the model
        types: (const int*),
        /// `[n_local + 1]`
        list_start: (const u32*),
        list: (const u32*),
        /// `[n_rows]` the atom of each row
        order: (const u32*),
        /// `[n_types]`
        sel: (const u32*),
        /// `[n_types, n_types]` 1: neighbours of this type are left out around centres of that
        excluded: (const u32*),
        /// `[n_types + 1]` panels of each neighbour type
        first_panel: (const u32*),
        /// `[n_types]` squares of the distances from which on the series of a centre hold
        closest: (const double*),
        /// `[n_types]` energy
        bias: (const double*),
        /// `[3, n_rows n_sel]` x_j - x_i
        d: (real*),
        /// `[n_rows n_sel]`
        j: (u32*),
        /// `[n_rows, n_panels + 1]`
        panel_start: (u32*),
        /// `[2, n_rows, n_types]` empty slots, and neighbours that are left out
        padding: (u32*),
        /// `[n_types + 1, columns]` what an empty slot of a centre brings to the first row of Q; last, what one that is left out brings
        empty: (const real*),
        /// `[n_rows, 4, columns]` features
        q: (real*),
        /// `[n_rows, ldx]` inputs of the fitting nets with the mirrored part of the descriptor once, then dE/dx
        x: (real*),
        /// `[n_rows, n_extra]`
        extra: (const real*),
        /// `[n_atoms, 3]` in units of 1 / scale
        force: (long long*),
        /// `[n_atoms, 9]`; null: not wanted
        atom_virial: (long long*),
        /// `[n_atoms]`
        atom_energy: (double*),
        /// `[10, n_parts]` of blocks: virial and energy
        parts: (double*),
        checks: (Checks*),
        rcut2: f64, scale: f64,
        /// Larger whole numbers are not added up
        limit: f64,
        n_sel: i32, n_atoms: i32, n_parts: i32, first_part: i32,
        /// Of shared memory that a warp has for the neighbours of its row
        kept_bytes: i32, unused: i32,
    }

    /// Memory of the embedding nets where they are evaluated pair by pair.
    Direct {
        /// `[places, 2, ld_kept]` G and G'
        kept: (real*),
        /// `[places]` the argument of the net
        s: (real*),
        /// `[places, 8]` what G is multiplied by in A: four numbers, and their change
        seeds: (real*),
        /// `[places]` the atom; `u32::MAX`: none
        row: (u32*),
        /// `[n_types, n_rows]` neighbours that come before those of an atom and type
        start: (u32*),
        /// `[n_types n_stacks + 1, 2]` first tile of each group, and its places less `start`
        groups: (u32*),
        /// `[blocks, room]` weights and layers of the nets; null: in shared memory
        scratch: (real*),
        /// `[blocks + groups, net_size]` gradients
        pieces: (double*),
        /// `[n_types, n_types]` the net of a centre type and a neighbour type
        net: (const u32*),
        room: u64,
        /// 1: all centre types share their nets
        n_stacks: i32,
        /// Places that a block works on at once: TILE_PLACES or half of them
        rows: i32,
        ld_kept: i32, has_idt: i32,
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
