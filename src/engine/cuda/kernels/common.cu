// What all kernels share. One program is made of all files of this folder, in the order of compile.rs, for one
// number type: REAL is float or double; PRODUCTS says how products of floats are made.
//
// The structures below stand in the same order in layout.rs; their sizes are compared when this is compiled.

typedef REAL real;

#define FULL_WARP 0xffffffffu

// One frame on the device. Row r is the r-th real atom when atoms are sorted by type.
struct Frame {
    real* q;                   // [n_rows, 4, columns] features of the series
    u32* panel_start;          // [n_rows n_panels + 1] pairs by panel, as pair_start
    const real* d;             // [3, n_pairs] x_j - x_i
    const u32* j;              // [n_pairs] neighbour, as numbered in the file
    const u32* pair_start;     // [n_rows n_types + 1]
    const u32* padding;        // [n_rows n_types] empty slots
    const u32* reverse_start;  // [n_atoms + 1]
    const u32* reverse;        // [n_pairs] pairs in which an atom is the neighbour
    const u32* order;          // [n_rows] index in the file
    const real* extra;         // [n_rows, n_extra]
    const double* force;       // labels, null where absent: [n_atoms, 3]
    const double* atom_energy; // [n_atoms]
    const double* atom_pref;   // [n_atoms, 3]
    const double* atom_coeff;  // [n_atoms]
    double energy;
    double virial[9];
    double per_atom;           // 1 / number of real atoms
    u32 n_atoms, n_rows, n_pairs, labels;
};

// What changes from step to step.
struct Turn {
    double weight[5];          // of the terms of the loss; 0 where a label is missing
    double rate, correction, shrink, pull, beta1, beta2;
    double max_norm;           // 0: never scaled down
    double count;              // gradients in the sum
    double stop;               // the wish to stop
    u32 step;
    u32 terms;                 // bits: terms of the loss that this batch has labels for
    u32 add;                   // the gradient is added to what is there
    u32 place;                 // of this batch's values
    u32 slots[1];              // [n_frames] the frames
};

// What the host reads back now and then.
struct Status {
    double tail;               // largest tail of a series since it was last reset
    double norm;               // of the last mean gradient
    double stop;               // ranks that wish to stop
    u32 bad_step;              // 1 + the first step whose loss was not finite, 0: none
    u32 unused;
};

struct Layer {
    int n_in, n_out, shortcut, activation;
    int w, b, idt, unused;     // offsets from the start of the net; -1: absent
    double threshold;
};

#define MAX_LAYERS 8

// A panel of the series: engine/cpu/chebyshev.rs.
struct Panel {
    double middle, inv_half;   // the change of variables
    u32 type, unused;          // of its neighbours
};

// The embedding nets at the nodes of the series. A stack has the nets of one centre type, or of all of them, and their nodes
// panel after panel: columns = n_panels K of them.
struct Embedding {
    const double* params;      // of net 0, in the flat vector
    double* trace;             // [n_stacks, trace_size]: y, f, d, dL/dz, dL/dy f of every layer, each [columns, n_out]
    const double* nodes;       // [columns]
    const double* transform;   // [K, K]
    real* c;                   // [n_stacks, columns, ldm] coefficients / n_sel
    const real* dl_c;          // dL/dc
    double* tails;             // [n_stacks, columns / NODES, 2] largest of the last coefficients and of all
    double* partial;           // [n_nets, net_size] gradients
    const u32* place;          // [n_nets] stack * n_types + neighbour type
    const u32* net;            // [n_stacks n_types] the net that stands there
    const Panel* panels;       // [n_panels]
    const u32* first_panel;    // [n_types + 1] panels of each neighbour type
    int n_nets, n_layers, terms, n_types, ldm, net_size, trace_size, n_panels;
    int columns, groups;       // groups of nodes that a block works on
    double scale;              // 1 / n_sel
    Layer layers[MAX_LAYERS];
};

// What changes from batch to batch where one recorded step serves many of them. Behind it stand the first row of each type,
// the first input of each type ([n_types + 1] each) and the frames' rows: see rows.rs.
struct Counts {
    int first, n_rows;         // 0 and the number of rows: where the rows begin and end
    int n_frames, atom_stride, pair_stride, unused;
    double n_real;
};

// A batch: atoms are rows, grouped by type and, within a type, by frame.
struct Batch {
    const Frame* frames;       // all frames on the device
    const Turn* turn;
    Status* status;
    const Counts* now;         // of this step's batch; null: every batch has the numbers below
    const u32* row_frame;      // [n_rows] frame in the batch
    const u32* row_local;      // [n_rows] row in the frame
    const u32* row_input;      // [n_rows] row of the inputs, counted over all groups
    const u32* row_vacuum;     // [n_rows] row of the inputs with no neighbours; ~0: none
    const u32* frame_rows;     // [n_frames, n_types, 2] first row and number of rows
    const u32* row_dl;         // [n_rows] where dL/dA (and Q) of a row stand among those of its coefficients
    const u32* row_de;         // [n_rows] where dE/dA (and the tangent of Q) stand
    const real** row_q;        // [2 n_rows] Q of each row and its tangent
    real* q_dot;               // [n_rows, 4, columns]
    real* a;                   // [n_rows, 4, ldm]
    real* a_dot;
    real* da;                  // [2 n_rows, 4, ldm] dL/dA and dE/dA
    real* de_q;                // [n_rows, 4, columns]
    real* de_d;                // [n_frames, pair_stride, 3]
    real* const* x;            // [n_types] inputs of the fitting nets: values, then tangents
    real* const* de_x;         // [n_types]
    real* const* dl_x;
    real* const* y_last;       // [n_types] inputs of the output layer: values, then tangents
    const real* const* w_out;  // [n_types] weights of the output layer
    const real* const* b_out;
    const u32* group_row;      // [n_types + 1] first input row of each group
    const real* radial;        // [n_types, 3] davg, 1/dstd radial, 1/dstd angular
    const double* bias;        // [n_types] energy
    double* force;             // [n_frames, atom_stride, 3]
    double* atom_energy;       // [n_frames, atom_stride]
    double* energy;            // [n_frames]
    double* virial;            // [n_frames, 9]
    double* dl_force;          // as force
    double* dl_virial;
    double* dl_atom_energy;
    double* dl_energy;
    real* dl_e;                // [input rows] dL/denergy of each row
    double* row_virial;        // [n_rows, 9]
    double* row_sums;          // [n_rows, 6] force terms of the loss: penalty, square, absolute; twice
    double* frame_sums;        // [n_frames, 5, 3]
    double* values;            // [places, 16] loss, then square, absolute, count of five terms
    const Panel* panels;       // [n_panels] of the series
    const double* cuts;        // [n_types, n_panels] for each centre type: squares of the distances at which they end
    const u32* empty_panel;    // [n_types, n_types] of the empty slots of a centre and neighbour type
    double skew;               // of the change of variables
    double rcut_smth, inv_width, protection;
    double delta[3];           // Huber: energy, force, virial
    double relative_f;         // NaN: absolute
    double n_real;             // atoms of the batch
    double start_lr;
    int n_frames, n_rows, n_types, terms;
    int m1, m2, ldm, n_extra;
    int ldx, ld_last, n_last, pair_stride;
    int atom_stride, function, f_use_norm, use_coeff;
    int default_pf, intensive, wants_virial, used;
    int n_panels, columns;     // columns = n_panels terms
};

static_assert(sizeof(Frame) == FRAME_BYTES, "Frame differs from layout.rs");
static_assert(sizeof(Turn) == TURN_BYTES, "Turn differs from layout.rs");
static_assert(sizeof(Status) == STATUS_BYTES, "Status differs from layout.rs");
static_assert(sizeof(Panel) == PANEL_BYTES, "Panel differs from layout.rs");
static_assert(sizeof(Embedding) == EMBEDDING_BYTES, "Embedding differs from layout.rs");
static_assert(sizeof(Counts) == COUNTS_BYTES, "Counts differs from layout.rs");
static_assert(sizeof(Batch) == BATCH_BYTES, "Batch differs from layout.rs");

// The batch of this step. `begin` writes its counts: what follows right after that waits before it asks.
__device__ __forceinline__ int rows_of(const Batch& b) { return b.now ? b.now->n_rows : b.n_rows; }
__device__ __forceinline__ int frames_of(const Batch& b) { return b.now ? b.now->n_frames : b.n_frames; }
__device__ __forceinline__ int atom_stride_of(const Batch& b) { return b.now ? b.now->atom_stride : b.atom_stride; }
__device__ __forceinline__ int pair_stride_of(const Batch& b) { return b.now ? b.now->pair_stride : b.pair_stride; }
// Rows before those of a type in an array with `times` rows for each input; where batches do not differ, types have their own.
__device__ __forceinline__ size_t rows_before(const Batch& b, int center, int times) {
    return b.now ? (size_t)times * b.group_row[center] : 0;
}
__device__ __forceinline__ double real_atoms_of(const Batch& b) { return b.now ? b.now->n_real : b.n_real; }

__device__ __forceinline__ float fused(float a, float b, float c) { return fmaf(a, b, c); }
__device__ __forceinline__ double fused(double a, double b, double c) { return fma(a, b, c); }
__device__ __forceinline__ float root(float x) { return sqrtf(x); }
__device__ __forceinline__ double root(double x) { return sqrt(x); }
__device__ __forceinline__ float hyperbolic(float x) { return tanhf(x); }

// tanh by 2^n and a polynomial, without branches: the formula of engine/cpu/real.rs.
__device__ __forceinline__ double hyperbolic(double x) {
    double a = fabs(x) > 20.0 ? 20.0 : fabs(x), y = a + a;
    double n = rint(y * 1.4426950408889634);
    double r = fma(n, -6.931471803691238e-1, y);
    r = fma(n, -1.9082149292705877e-10, r);
    double q = 1.0 / 6227020800.0;
    q = fma(q, r, 1.0 / 479001600.0);
    q = fma(q, r, 1.0 / 39916800.0);
    q = fma(q, r, 1.0 / 3628800.0);
    q = fma(q, r, 1.0 / 362880.0);
    q = fma(q, r, 1.0 / 40320.0);
    q = fma(q, r, 1.0 / 5040.0);
    q = fma(q, r, 1.0 / 720.0);
    q = fma(q, r, 1.0 / 120.0);
    q = fma(q, r, 1.0 / 24.0);
    q = fma(q, r, 1.0 / 6.0);
    q = fma(q, r, 0.5);
    double p = fma(q * r, r, r);
    double t = __longlong_as_double((long long)(1023 + (int)n) << 52);
    double e = fma(t, p, t - 1.0);
    return copysign(e / (e + 2.0), x);
}

// Copies n numbers, the threads of a block side by side, with N loads of each under way at a time. (An unrolled loop
// would do what is left over one by one.)
template <int N, typename F> __device__ __forceinline__ void copy_many(F* to, const F* from, int n) {
    for (int i0 = threadIdx.x; i0 < n; i0 += N * blockDim.x) {
        F kept[N];
#pragma unroll
        for (int k = 0; k < N; k++) kept[k] = from[min(i0 + k * (int)blockDim.x, n - 1)];
#pragma unroll
        for (int k = 0; k < N; k++)
            if (i0 + k * (int)blockDim.x < n) to[i0 + k * blockDim.x] = kept[k];
    }
}

// A block has eight warps, which share `each` rows (1, 2, 4 or 8) of a batch evenly; see Share in core.rs.
#define WARPS 8
struct Share {
    int row, slot;        // row of the batch, and which of the block's it is
    int warps, warp;      // warps that share the row, and which of them this is
    int threads, thread;
    __device__ __forceinline__ Share(int each)
        : slot(threadIdx.x / 32 / (WARPS / each)), warps(WARPS / each), warp(threadIdx.x / 32 % warps) {
        row = blockIdx.x * each + slot;
        threads = 32 * warps, thread = threadIdx.x % threads;
    }
    // Waits for the warps of the same row.
    __device__ __forceinline__ void sync() const {
        if (warps == 1) __syncwarp();
        else barrier(1 + slot, threads);
    }
};

// The sum over a warp, the same on every lane, always in the same order.
template <typename F> __device__ __forceinline__ F warp_sum(F x) {
    for (int step = 16; step > 0; step >>= 1) x += __shfl_xor_sync(FULL_WARP, x, step);
    return x;
}

// The sum over a block; the result is on every thread. `scratch` holds a number for each warp.
__device__ __forceinline__ double block_sum(double x, double* scratch) {
    x = warp_sum(x);
    __syncthreads();
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = x;
    __syncthreads();
    double sum = 0;
    for (int w = 0; w < (blockDim.x + 31) / 32; w++) sum += scratch[w];
    return sum;
}

// One step of Adam for one parameter: optim/adam.rs.
__device__ __forceinline__ void adam_step(double& p, double& m, double& s, double g, double scale, const Turn& rule) {
    p -= rule.shrink * p;
    if (rule.count != 1.0) g /= rule.count;
    if (scale < 1.0) g *= scale;
    g += rule.pull * p;
    m += (1.0 - rule.beta1) * (g - m);
    s = rule.beta2 * s + (1.0 - rule.beta2) * g * g;
    p -= rule.rate * m / (sqrt(s) * rule.correction + 1e-8);
}

// Activation functions: the numbers of layout.rs.
enum { TANH, RELU, RELU6, SOFTPLUS, SIGMOID, GELU, SILU, SILUT, LINEAR };

template <typename F> struct Jet { F f, d, dd; };

template <typename F> __device__ __forceinline__ Jet<F> tanh_jet(F x) {
    F t = hyperbolic(x), d = F(1) - t * t;
    return {t, d, F(-2) * t * d};
}

template <typename F> __device__ __forceinline__ F sigmoid(F x) { return F(1) / (F(1) + (F)exp(-(double)x)); }

template <typename F> __device__ __forceinline__ Jet<F> silu_jet(F x) {
    F s = sigmoid(x), d = s * (F(1) - s);
    return {x * s, s + x * d, F(2) * d + x * d * (F(1) - F(2) * s)};
}

// f, f', f'' as in engine/activation.rs.
template <typename F> __device__ __noinline__ Jet<F> other_jet(int activation, F x, F threshold) {
    switch (activation) {
        case RELU: return {x > F(0) ? x : F(0), x > F(0) ? F(1) : F(0), F(0)};
        case RELU6: {
            F f = x < F(0) ? F(0) : x > F(6) ? F(6) : x;
            return {f, x > F(0) && x < F(6) ? F(1) : F(0), F(0)};
        }
        case SOFTPLUS: {
            F s = sigmoid(x);
            return {(x > F(0) ? x : F(0)) + (F)log1p(exp(-fabs((double)x))), s, s * (F(1) - s)};
        }
        case SIGMOID: {
            F s = sigmoid(x), d = s * (F(1) - s);
            return {s, d, d * (F(1) - F(2) * s)};
        }
        case GELU: {
            const F c = F(0.7978845608028654);
            F u1 = c * (F(1) + F(3 * 0.044715) * x * x), u2 = c * F(6 * 0.044715) * x;
            Jet<F> t = tanh_jet(c * (x + F(0.044715) * x * x * x));
            F t1 = t.d * u1, t2 = t.dd * u1 * u1 + t.d * u2;
            return {F(0.5) * x * (F(1) + t.f), F(0.5) * (F(1) + t.f) + F(0.5) * x * t1, t1 + F(0.5) * x * t2};
        }
        case SILU: return silu_jet(x);
        case SILUT: {
            if (x < threshold) return silu_jet(x);
            Jet<F> at = silu_jet(threshold);
            Jet<F> t = tanh_jet(at.d * (x - threshold));
            return {t.f + at.f, at.d * t.d, at.d * at.d * t.dd};
        }
        default: return {x, F(1), F(0)};
    }
}

template <typename F> __device__ __forceinline__ Jet<F> jet(int activation, F x, F threshold) {
    return activation == TANH ? tanh_jet(x) : other_jet(activation, x, threshold);
}
