// The embedding nets themselves, pair by pair: where no series describes them, or none is wanted. The formulas of
// engine/cpu/direct.rs.
//
// A block takes one atom after the other and, of each, the neighbours of one type after the other, ROWS of them at a
// time. For these it computes the net G(s) and its derivative G'(s) layer by layer on tensor cores. What belongs to an
// atom is added up inside its block, gradients in a piece for each block: every sum has one order. Nothing is kept from
// one kernel to the next; the nets are computed again where they are needed, so that memory does not grow with the batch.

// Neighbours that a block works on at once.
#define ROWS 32

struct Direct {
    real* scratch;             // [blocks, room] layers of the nets; null: in shared memory
    double* pieces;            // [blocks + n_stacks, n_types, net_size] gradients
    const u32* net;            // [n_types, n_types] the net of a centre type and a neighbour type
    u64 room;
    int n_stacks, unused;      // 1: all centre types share their nets
};

static_assert(sizeof(Direct) == DIRECT_BYTES, "Direct differs from layout.rs");

// Some neighbours of one type of one atom. Rows beyond the last one are zeros of no weight.
struct Neighbours {
    Pair pair[ROWS];
    real weight[ROWS];         // 1; of empty slots, which are one row, their number
    real dot[4][ROWS];         // the change of `env`

    __device__ __forceinline__ real env(int c, int row) const {
        return c ? pair[row].q * pair[row].d[c - 1] : pair[row].s;
    }
};

// An atom, as the kernels of this file see it.
struct Center {
    Frame frame;
    int row, f, local, type;
    __device__ __forceinline__ Center(const Batch& b, int row)
        : frame(b.frames[b.turn->slots[b.row_frame[row]]]), row(row), f(b.row_frame[row]), local(b.row_local[row]),
          type(center_of_row(b, row)) {}
};

// Blocks share the rows of a batch evenly, each of them rows that follow each other.
__device__ __forceinline__ int first_row(const Batch& b, int block, int blocks) {
    return (int)((u64)block * rows_of(b) / blocks);
}

// Calls work(t, p, n, end) for up to ROWS neighbours of type t at a time: n rows, from pair p on; pair `end` stands for
// the empty slots.
template <typename Work> __device__ __forceinline__ void each_chunk(Neighbours& at, const Batch& b, const Center& center,
                                                                    Work work) {
    const u32* start = center.frame.pair_start + (size_t)center.local * b.n_types;
    for (int t = 0; t < b.n_types; t++) {
        int first = start[t], end = start[t + 1];
        u32 padding = center.frame.padding[(size_t)center.local * b.n_types + t];
        int total = end - first + (padding ? 1 : 0);
        for (int from = 0; from < total; from += ROWS) {
            __syncthreads();  // nobody reads the last ones any more
            if (threadIdx.x < ROWS) {
                int p = first + from + threadIdx.x;
                Pair pair = {};
                real weight = real(0);
                if (p < end) {
                    pair = pair_at(b, center.frame, p, center.type), weight = real(1);
                } else if (p == end && padding) {
                    const real* row = b.radial + 3 * center.type;
                    pair.s = (real)(-(double)row[0] * (double)row[1]), weight = real(padding);
                }
                at.pair[threadIdx.x] = pair, at.weight[threadIdx.x] = weight;
                for (int c = 0; c < 4; c++) at.dot[c][threadIdx.x] = real(0);
            }
            __syncthreads();
            work(t, first + from, min(ROWS, total - from), end);
        }
    }
}

// How the neighbours move along the direction -dL/dF, with the strain of dL/dvirial; empty slots do not.
__device__ __forceinline__ void move_neighbours(Neighbours& at, const Batch& b, const Center& center, int p, int end) {
    if (threadIdx.x >= ROWS || p + (int)threadIdx.x >= end) return;
    const Pair& pair = at.pair[threadIdx.x];
    const double* dl_force = b.dl_force + (size_t)center.f * atom_stride_of(b) * 3;
    const double* u_i = dl_force + 3 * (size_t)center.frame.order[center.local];
    const double* u_j = dl_force + 3 * (size_t)center.frame.j[p + threadIdx.x];
    const double* strain = b.dl_virial + 9 * center.f;
    real v[3], along = real(0);
    for (int k = 0; k < 3; k++) {
        real bend = real(0);
        if (b.wants_virial)
            bend = (real)strain[k] * pair.d[0] + (real)strain[3 + k] * pair.d[1] + (real)strain[6 + k] * pair.d[2];
        v[k] = (real)(u_i[k] - u_j[k]) - bend;
        along += pair.d[k] * v[k];
    }
    at.dot[0][threadIdx.x] = pair.s_slope * along;
    for (int k = 0; k < 3; k++) at.dot[k + 1][threadIdx.x] = pair.q * v[k] + pair.q_slope * along * pair.d[k];
}

// What is kept of a layer, each [ROWS, pitch]: output and its derivative; of the activation value, first and second
// derivative; the derivative of its argument; adjoints of output and derivative. The adjoints of the argument and of its
// derivative take the place of the activation's derivatives.
enum { KEPT_Y, KEPT_Y1, KEPT_F, KEPT_D, KEPT_DD, KEPT_Z1, KEPT_G, KEPT_G1 };
enum { VALUES = 1, JETS = 2, ALL = 8 };

// From one row to the next: the fragments of a warp then fall on different banks.
__device__ __forceinline__ int pitch(int n) { return (n + 3) / 8 * 8 + 4; }

template <int PARTS> __device__ __forceinline__ real* kept(const Embedding& e, real* layers, int l, int part) {
    for (int k = 0; k < l; k++) layers += PARTS * ROWS * pitch(e.layers[k].n_out);
    return layers + part * ROWS * pitch(e.layers[l].n_out);
}

// Columns of eight that a warp carries at once.
#define SIDE 2

__device__ __forceinline__ void read_rows(Left& frag, const real* x, int ld, int row0, int k, int n_k, int lane) {
#pragma unroll
    for (int e = 0; e < 4; e++) {
        int row = row0 + lane / 4 + e % 2 * 8, at = k + lane % 4 + e / 2 * 4;
        frag.x[e] = at < n_k ? x[row * ld + at] : real(0);
    }
    whole(frag);
}

// end(row, col, z, z1) for z = x W and, where TWO, z1 = x1 W, of all rows of whole tiles: W [n_k, n] has its element
// [k, col] at k step_k + col step.
template <bool TWO, typename End>
__device__ __forceinline__ void layer_product(const real* x, const real* x1, int ld, const double* w, int step_k, int step,
                                              int n_k, int n, int n_rows, End end) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int row_tiles = (n_rows + 15) / 16, col_tiles = (n + 8 * SIDE - 1) / (8 * SIDE);
    for (int task = warp; task < row_tiles * col_tiles; task += blockDim.x / 32) {
        int row0 = task % row_tiles * 16, col0 = task / row_tiles * 8 * SIDE;
        real z[SIDE][4] = {}, z1[SIDE][4] = {};
        for (int k = 0; k < n_k; k += 8) {
            Left a, a1;
            read_rows(a, x, ld, row0, k, n_k, lane);
            if (TWO) read_rows(a1, x1, ld, row0, k, n_k, lane);
#pragma unroll
            for (int j = 0; j < SIDE; j++) {
                Right b;
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    int col = col0 + j * 8 + lane / 4, at = k + lane % 4 + e * 4;
                    b.x[e] = at < n_k && col < n ? (real)w[at * step_k + col * step] : real(0);
                }
                whole(b);
                mma_whole(z[j], a, b);
                if (TWO) mma_whole(z1[j], a1, b);
            }
        }
#pragma unroll
        for (int j = 0; j < SIDE; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                int row = row0 + lane / 4 + e / 2 * 8, col = col0 + j * 8 + lane % 4 * 2 + e % 2;
                if (col < n) end(row, col, z[j][e], z1[j][e]);
            }
    }
}

// The net at the arguments of `n_rows` neighbours: its value, derivative by s (JETS), and what leads back (ALL).
template <int PARTS> __device__ __forceinline__ void net_forward(real* layers, const Embedding& e, const double* params,
                                                                 const Neighbours& at, int n_rows) {
    for (int l = 0; l < e.n_layers; l++) {
        const Layer& layer = e.layers[l];
        int n_in = layer.n_in, n = layer.n_out, ld = pitch(n), ldx = pitch(n_in);
        const real* x = l ? kept<PARTS>(e, layers, l - 1, KEPT_Y) : nullptr;
        const real* x1 = l && PARTS > 1 ? kept<PARTS>(e, layers, l - 1, KEPT_Y1) : nullptr;
        real* out = kept<PARTS>(e, layers, l, 0);
        auto end = [&](int row, int o, real z, real z1) {
            if (layer.b >= 0) z += (real)params[layer.b + o];
            Jet<real> j = jet(layer.activation, z, (real)layer.threshold);
            real idt = layer.idt < 0 ? real(1) : (real)params[layer.idt + o];
            int from = row * ldx + (o < n_in ? o : o % n_in), to = row * ld + o;
            real y = idt * j.f;
            if (layer.shortcut) y += l ? x[from] : at.pair[row].s;
            out[to] = y;
            if (PARTS == VALUES) return;
            real y1 = idt * j.d * z1;
            if (layer.shortcut) y1 += l ? x1[from] : real(1);
            out[KEPT_Y1 * ROWS * ld + to] = y1;
            if (PARTS != ALL) return;
            out[KEPT_F * ROWS * ld + to] = j.f;
            out[KEPT_D * ROWS * ld + to] = j.d;
            out[KEPT_DD * ROWS * ld + to] = j.dd;
            out[KEPT_Z1 * ROWS * ld + to] = z1;
        };
        const double* w = params + layer.w;
        if (l) {
            layer_product<(PARTS > 1)>(x, x1, ldx, w, n, 1, n_in, n, n_rows, end);
        } else {
            // The one input is s itself.
            for (int i = threadIdx.x; i < (n_rows + 15) / 16 * 16 * n; i += blockDim.x) {
                int row = i / n, o = i - row * n;
                end(row, o, at.pair[row].s * (real)w[o], (real)w[o]);
            }
        }
        __syncthreads();
    }
}

// Adds the gradient of one layer above the first, from what is left in its place by net_backward: x^T dz + x1^T dz1 for
// the weights, and the sum of dz, as the product with one more input that is 1 and never changes, for the biases.
__device__ __forceinline__ void weights_add(double* piece, const Layer& layer, const real* x, const real* x1, int ldx,
                                            const real* dz, const real* dz1, int ld, int n_rows) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, n_in = layer.n_in, n = layer.n_out;
    int inputs = n_in + (layer.b < 0 ? 0 : 1);
    int row_tiles = (inputs + 15) / 16, col_tiles = (n + 8 * SIDE - 1) / (8 * SIDE);
    for (int task = warp; task < row_tiles * col_tiles; task += blockDim.x / 32) {
        int row0 = task % row_tiles * 16, col0 = task / row_tiles * 8 * SIDE;
        real sum[SIDE][4] = {};
        for (int half = 0; half < 2; half++) {
            const real *from = half ? x1 : x, *adjoint = half ? dz1 : dz;
            real one = half ? real(0) : real(1);
            for (int k = 0; k < n_rows; k += 8) {
                Left a;
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    int i = row0 + lane / 4 + e % 2 * 8, at = k + lane % 4 + e / 2 * 4;
                    a.x[e] = i < n_in ? from[at * ldx + i] : i == n_in ? one : real(0);
                }
                whole(a);
#pragma unroll
                for (int j = 0; j < SIDE; j++) {
                    Right b;
#pragma unroll
                    for (int e = 0; e < 2; e++) {
                        int col = col0 + j * 8 + lane / 4, at = k + lane % 4 + e * 4;
                        b.x[e] = col < n ? adjoint[at * ld + col] : real(0);
                    }
                    whole(b);
                    mma_whole(sum[j], a, b);
                }
            }
        }
#pragma unroll
        for (int j = 0; j < SIDE; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                int i = row0 + lane / 4 + e / 2 * 8, o = col0 + j * 8 + lane % 4 * 2 + e % 2;
                if (i < inputs && o < n) piece[i < n_in ? layer.w + i * n + o : layer.b + o] += (double)sum[j][e];
            }
    }
}

// Adds the gradient of <g, G> + <g1, G'> by the parameters to `piece`. The adjoints g and g1 stand in the last layer.
__device__ __forceinline__ void net_backward(double* piece, real* layers, const Embedding& e, const double* params,
                                             const Neighbours& at, int n_rows) {
    for (int l = e.n_layers - 1; l >= 0; l--) {
        const Layer& layer = e.layers[l];
        int n_in = layer.n_in, n = layer.n_out, ld = pitch(n), ldx = pitch(n_in), rows = (n_rows + 15) / 16 * 16;
        real* own = kept<ALL>(e, layers, l, 0);
        const real *g = own + KEPT_G * ROWS * ld, *g1 = own + KEPT_G1 * ROWS * ld, *f = own + KEPT_F * ROWS * ld;
        real *d = own + KEPT_D * ROWS * ld, *dd = own + KEPT_DD * ROWS * ld, *z1 = own + KEPT_Z1 * ROWS * ld;
        if (layer.idt >= 0) {
            for (int o = threadIdx.x; o < n; o += blockDim.x) {
                double sum = 0;
                for (int r = 0; r < n_rows; r++) {
                    int p = r * ld + o;
                    sum += (double)(g[p] * f[p] + g1[p] * d[p] * z1[p]);
                }
                piece[layer.idt + o] += sum;
            }
            __syncthreads();
        }
        for (int i = threadIdx.x; i < rows * n; i += blockDim.x) {
            int row = i / n, o = i - row * n, p = row * ld + o;
            real idt = layer.idt < 0 ? real(1) : (real)params[layer.idt + o];
            real slope = d[p];
            d[p] = idt * (g[p] * slope + g1[p] * dd[p] * z1[p]);
            dd[p] = idt * g1[p] * slope;
        }
        __syncthreads();
        if (!l) {
            // The input is s, its derivative 1.
            for (int o = threadIdx.x; o < n; o += blockDim.x) {
                double weight = 0, bias = 0;
                for (int r = 0; r < n_rows; r++) {
                    weight += (double)(at.pair[r].s * d[r * ld + o] + dd[r * ld + o]);
                    bias += (double)d[r * ld + o];
                }
                piece[layer.w + o] += weight;
                if (layer.b >= 0) piece[layer.b + o] += bias;
            }
            break;
        }
        real* below = kept<ALL>(e, layers, l - 1, 0);
        weights_add(piece, layer, below, below + KEPT_Y1 * ROWS * ldx, ldx, d, dd, ld, n_rows);
        auto end = [&](int row, int i, real dx, real dx1) {
            if (layer.shortcut)
                for (int o = i; o < n; o += n_in) dx += g[row * ld + o], dx1 += g1[row * ld + o];
            below[KEPT_G * ROWS * ldx + row * ldx + i] = dx;
            below[KEPT_G1 * ROWS * ldx + row * ldx + i] = dx1;
        };
        layer_product<true>(d, dd, ld, params + layer.w, 1, n, n, n_in, n_rows, end);
        __syncthreads();
    }
}

// Where a block keeps layers: in its part of the scratch memory, or behind `taken` numbers of shared memory.
__device__ __forceinline__ real* layers_of(const Direct& d, int taken) {
    return d.scratch ? d.scratch + blockIdx.x * d.room : (real*)shared_bytes + taken;
}

__device__ __forceinline__ const double* params_of(const Embedding& e, const Direct& d, const Batch& b, int center, int t) {
    return e.params + (size_t)d.net[center * b.n_types + t] * e.net_size;
}

// A of every row, or its change along the direction.
template <bool MOVES> __device__ __forceinline__ void describe(const Batch& b, const Embedding& e, const Direct& d) {
    constexpr int PARTS = MOVES ? JETS : VALUES;
    __shared__ Neighbours at;
    real *sums = (real*)shared_bytes, *layers = layers_of(d, 4 * b.ldm);  // [4, m1]
    int m1 = b.m1, ld = pitch(m1), last = e.n_layers - 1;
    for (int row = first_row(b, blockIdx.x, gridDim.x); row < first_row(b, blockIdx.x + 1, gridDim.x); row++) {
        const Center center(b, row);
        // A thread finds its own sums again.
        for (int i = threadIdx.x; i < 4 * m1; i += blockDim.x) sums[i] = real(0);
        each_chunk(at, b, center, [&](int t, int p, int n, int end) {
            if (MOVES) move_neighbours(at, b, center, p, end);
            net_forward<PARTS>(layers, e, params_of(e, d, b, center.type, t), at, n);
            const real *g = kept<PARTS>(e, layers, last, KEPT_Y), *g1 = g + ROWS * ld;
            for (int i = threadIdx.x; i < 4 * m1; i += blockDim.x) {
                int c = i / m1, m = i - c * m1;
                real sum = sums[i];
                for (int k = 0; k < n; k++) {
                    real scale = MOVES ? at.dot[c][k] : at.weight[k] * at.env(c, k);
                    sum = fused(scale, g[k * ld + m], sum);
                    if (MOVES) sum = fused(at.dot[0][k] * at.env(c, k), g1[k * ld + m], sum);
                }
                sums[i] = sum;
            }
        });
        real* out = (MOVES ? b.a_dot : b.a) + (size_t)row * 4 * b.ldm;
        for (int i = threadIdx.x; i < 4 * m1; i += blockDim.x) out[i / m1 * b.ldm + i % m1] = sums[i] * (real)e.scale;
    }
}

extern "C" __global__ void __launch_bounds__(256, 2) direct_describe(const __grid_constant__ Batch b,
                                                                     const __grid_constant__ Embedding e,
                                                                     const __grid_constant__ Direct d) {
    after_previous();
    describe<false>(b, e, d);
}

extern "C" __global__ void __launch_bounds__(256, 2) direct_tangent(const __grid_constant__ Batch b,
                                                                    const __grid_constant__ Embedding e,
                                                                    const __grid_constant__ Direct d) {
    after_previous();
    describe<true>(b, e, d);
}

// dE/dd of a pair and, on the first nine lanes, its part of the virial; a warp for each pair.
__device__ __forceinline__ void pair_force(real* out, double& virial, const Pair& pair, const real* g, const real* g1,
                                           const real* de_a, int m1, int ldm, real scale) {
    int lane = threadIdx.x % 32;
    real value[4] = {}, turn = real(0);
    for (int m = lane; m < m1; m += 32) {
        real along = pair.s * de_a[m];
        value[0] = fused(g[m], de_a[m], value[0]);
#pragma unroll
        for (int c = 1; c < 4; c++) {
            real de = de_a[c * ldm + m];
            value[c] = fused(g[m], de, value[c]);
            along = fused(pair.q * pair.d[c - 1], de, along);
        }
        turn = fused(g1[m], along, turn);
    }
#pragma unroll
    for (int c = 0; c < 4; c++) value[c] = warp_sum(value[c]) * scale;
    turn = warp_sum(turn) * scale;
    const real* d = pair.d;
    real along = value[1] * d[0] + value[2] * d[1] + value[3] * d[2];
    real radial = pair.s_slope * (value[0] + turn) + pair.q_slope * along;
#pragma unroll
    for (int k = 0; k < 3; k++) {
        real de = pair.q * value[k + 1] + radial * d[k];
        if (lane == k) out[k] = de;
        if (lane < 9 && lane % 3 == k) virial -= (double)d[lane / 3] * (double)de;
    }
}

// dE/dd of every pair from dE/dA, and the virial of every row.
extern "C" __global__ void __launch_bounds__(256, 2) direct_forces(const __grid_constant__ Batch b,
                                                                   const __grid_constant__ Embedding e,
                                                                   const __grid_constant__ Direct d) {
    __shared__ Neighbours at;
    __shared__ double virials[8][9];
    real *de_a = (real*)shared_bytes, *layers = layers_of(d, 4 * b.ldm);  // [4, ldm]
    int ldm = b.ldm, ld = pitch(b.m1), warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    after_previous();
    for (int row = first_row(b, blockIdx.x, gridDim.x); row < first_row(b, blockIdx.x + 1, gridDim.x); row++) {
        const Center center(b, row);
        __syncthreads();
        copy_many<4>(de_a, b.da + (size_t)b.row_de[row] * 4 * ldm, 4 * ldm);
        double virial = 0;
        each_chunk(at, b, center, [&](int t, int p, int n, int end) {
            net_forward<JETS>(layers, e, params_of(e, d, b, center.type, t), at, n);
            const real *g = kept<JETS>(e, layers, e.n_layers - 1, KEPT_Y), *g1 = g + ROWS * ld;
            for (int k = warp; k < min(n, end - p); k += blockDim.x / 32) {
                real* out = b.de_d + ((size_t)center.f * pair_stride_of(b) + p + k) * 3;
                pair_force(out, virial, at.pair[k], g + k * ld, g1 + k * ld, de_a, b.m1, ldm, (real)e.scale);
            }
        });
        if (!b.wants_virial) continue;
        if (lane < 9) virials[warp][lane] = virial;
        __syncthreads();
        if (threadIdx.x < 9) {
            double sum = 0;
            for (int w = 0; w < (int)blockDim.x / 32; w++) sum += virials[w][threadIdx.x];
            b.row_virial[(size_t)9 * row + threadIdx.x] = sum;
        }
    }
}

// The gradient of the nets in pieces, from dL/dA and dE/dA: a piece for each block, and one more where the rows of a block
// go over from one stack of nets to the next.
extern "C" __global__ void __launch_bounds__(256, 2) direct_adjoint(const __grid_constant__ Batch b,
                                                                    const __grid_constant__ Embedding e,
                                                                    const __grid_constant__ Direct d) {
    __shared__ Neighbours at;
    int ldm = b.ldm, m1 = b.m1, ld = pitch(m1);
    real *dl_a = (real*)shared_bytes, *de_a = dl_a + 4 * ldm, *layers = layers_of(d, 8 * ldm);  // [4, ldm] each
    size_t piece_size = (size_t)b.n_types * e.net_size;
    double* piece = nullptr;
    after_previous();
    for (int row = first_row(b, blockIdx.x, gridDim.x); row < first_row(b, blockIdx.x + 1, gridDim.x); row++) {
        const Center center(b, row);
        double* wanted = d.pieces + (blockIdx.x + (d.n_stacks > 1 ? center.type : 0)) * piece_size;
        __syncthreads();
        if (piece != wanted) {
            piece = wanted;
            for (size_t i = threadIdx.x; i < piece_size; i += blockDim.x) piece[i] = 0;
        }
        copy_many<4>(dl_a, b.da + (size_t)b.row_dl[row] * 4 * ldm, 4 * ldm);
        copy_many<4>(de_a, b.da + (size_t)b.row_de[row] * 4 * ldm, 4 * ldm);
        each_chunk(at, b, center, [&](int t, int p, int n, int end) {
            const double* params = params_of(e, d, b, center.type, t);
            move_neighbours(at, b, center, p, end);
            net_forward<ALL>(layers, e, params, at, n);
            real* g = kept<ALL>(e, layers, e.n_layers - 1, KEPT_G);
            for (int i = threadIdx.x; i < (n + 15) / 16 * 16 * m1; i += blockDim.x) {
                int k = i / m1, m = i - k * m1;
                real sum = real(0), sum1 = real(0);
#pragma unroll
                for (int c = 0; c < 4; c++) {
                    real env = at.env(c, k);
                    sum = fused(at.weight[k] * env, dl_a[c * ldm + m], fused(at.dot[c][k], de_a[c * ldm + m], sum));
                    sum1 = fused(env, de_a[c * ldm + m], sum1);
                }
                g[k * ld + m] = sum * (real)e.scale;
                g[ROWS * ld + k * ld + m] = at.dot[0][k] * sum1 * (real)e.scale;
            }
            __syncthreads();
            net_backward(piece + (size_t)t * e.net_size, layers, e, params, at, n);
        });
    }
}

// Parameters of one block of direct_weights, and threads that share the pieces of each.
#define SUMMED 32
#define SHARED_BY 8

// The gradient of the nets from its pieces (`params` null), or their update: the end of embed_weights. `blocks` has the
// blocks that made pieces.
extern "C" __global__ void __launch_bounds__(SUMMED * SHARED_BY)
    direct_weights(const __grid_constant__ Batch b, const __grid_constant__ Embedding e, const __grid_constant__ Direct d,
                   int blocks, double* params, double* first_moment, double* second_moment, const u32* trained,
                   const Turn* turn, const Status* status) {
    __shared__ double sums[SHARED_BY][SUMMED];
    int groups = (e.net_size + SUMMED - 1) / SUMMED, net = blockIdx.x / groups;
    int i = blockIdx.x % groups * SUMMED + threadIdx.x % SUMMED, part = threadIdx.x / SUMMED;
    int stack = e.place[net] / b.n_types, t = e.place[net] % b.n_types;
    // The rows of a type begin with those of the first frame.
    int low = d.n_stacks > 1 ? b.frame_rows[2 * stack] : 0;
    int high = d.n_stacks > 1 && stack + 1 < b.n_types ? b.frame_rows[2 * (stack + 1)] : rows_of(b);
    after_previous();
    double sum = 0;
    if (i < e.net_size)
        for (int k = part; k < blocks; k += SHARED_BY) {
            int first = first_row(b, k, blocks), end = first_row(b, k + 1, blocks);
            if (first >= high || end <= low || low == high || first == end) continue;
            sum += d.pieces[((size_t)(k + stack) * b.n_types + t) * e.net_size + i];
        }
    sums[part][threadIdx.x % SUMMED] = sum;
    __syncthreads();
    if (part || i >= e.net_size) return;
    for (int k = 1; k < SHARED_BY; k++) sum += sums[k][threadIdx.x];
    size_t at = (size_t)net * e.net_size + i;
    if (!params) {
        e.partial[at] = sum;
        return;
    }
    if (!trained[net] || status->bad_step) return;
    double p = params[at], m = first_moment[at], s = second_moment[at];
    adam_step(p, m, s, sum, 1.0, *turn);
    params[at] = p, first_moment[at] = m, second_moment[at] = s;
}
