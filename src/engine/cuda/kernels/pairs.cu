// The work on pairs: features of a frame, their change, and forces. The formulas of engine/cpu/pairs.rs.

// Terms of the series that a thread carries in registers, pairs that a block works on at once, and threads that
// share the pairs of one group of terms.
#define GROUP 8
#define CHUNK 160
#define STRIDE (CHUNK + 2)
#define SHARES 16

// A pair: its distance vector and the normalised functions of its length.
struct Pair { real d[3], s, s_slope, q, q_slope; };

__device__ __forceinline__ Pair pair_at(const Batch& b, const Frame& frame, int p, int center) {
    Pair out;
    for (int k = 0; k < 3; k++) out.d[k] = frame.d[(size_t)k * frame.n_pairs + p];
    const real* row = b.radial + 3 * center;
    real r = root(out.d[0] * out.d[0] + out.d[1] * out.d[1] + out.d[2] * out.d[2]);
    real inv_width = (real)b.inv_width;
    real x = (r - (real)b.rcut_smth) * inv_width;
    x = x < real(0) ? real(0) : x > real(1) ? real(1) : x;
    real w = x * x * x * ((real(15) - real(6) * x) * x - real(10)) + real(1);
    real w_r = x * x * ((real(60) - real(30) * x) * x - real(30)) * inv_width;
    real inv = real(1) / (r + (real)b.protection), inv_r = real(1) / r;
    real s = w * inv, q = s * inv;
    out.s = (s - row[0]) * row[1];
    out.s_slope = (w_r - s) * inv * inv_r * row[1];
    out.q = q * row[2];
    out.q_slope = (w_r * inv - (q + q)) * inv * inv_r * row[2];
    return out;
}

// Sums over the SHARES lanes of a half warp; afterwards a lane has two of the elements, see element_of.
template <int HALF> __device__ __forceinline__ void share_out(real (&v)[4 * GROUP], int lane) {
    constexpr int PARTNER = HALF / 2;  // lanes 8, 4, 2, 1 apart
    bool upper = lane & PARTNER;
#pragma unroll
    for (int i = 0; i < HALF; i++) {
        real mine = upper ? v[i + HALF] : v[i], other = upper ? v[i] : v[i + HALF];
        v[i] = mine + __shfl_xor_sync(FULL_WARP, other, PARTNER);
    }
    if constexpr (HALF > 2) share_out<HALF / 2>(v, lane);
}

__device__ __forceinline__ int element_of(int lane) {
    return (lane & 8 ? 16 : 0) + (lane & 4 ? 8 : 0) + (lane & 2 ? 4 : 0) + (lane & 1 ? 2 : 0);
}

// T_k at x.
__device__ __noinline__ double polynomial(int k, double x) { return cos(k * acos(fmin(1.0, fmax(-1.0, x)))); }

// Keeps a pair in a column of shared memory.
__device__ __forceinline__ void leave_pair(real* column, const Pair& pair) {
    for (int k = 0; k < 3; k++) column[k * STRIDE] = pair.d[k];
    column[3 * STRIDE] = pair.s, column[4 * STRIDE] = pair.s_slope;
    column[5 * STRIDE] = pair.q, column[6 * STRIDE] = pair.q_slope;
}

// Replaces a kept pair by the change of its functions (four) and of the series' argument times its functions (four).
__device__ __forceinline__ void move_pair(real* column, const double* dl_force, const double* u_i, const double* strain,
                                          real inv_half) {
    real d[3] = {column[0], column[STRIDE], column[2 * STRIDE]};
    real s = column[3 * STRIDE], s_slope = column[4 * STRIDE], q = column[5 * STRIDE], q_slope = column[6 * STRIDE];
    real v[3], along = 0;
    for (int k = 0; k < 3; k++) {
        real bend = (real)strain[k] * d[0] + (real)strain[3 + k] * d[1] + (real)strain[6 + k] * d[2];
        v[k] = (real)(u_i[k] - dl_force[k]) - bend;
        along += d[k] * v[k];
    }
    real s_dot = s_slope * along;
    column[0] = s_dot, column[4 * STRIDE] = inv_half * s_dot * s;
    for (int k = 0; k < 3; k++) {
        column[(k + 1) * STRIDE] = q * v[k] + q_slope * along * d[k];
        column[(k + 5) * STRIDE] = inv_half * s_dot * (q * d[k]);
    }
}

// Q of a row (MOVES false), or its change along the direction -dL/dF (MOVES true), written to `out`.
//
// Each pair's thread walks the recurrences of T_k and U_k and leaves them at every GROUP-th term; the threads of a
// group of terms then walk on from there for all pairs, with their sums in registers.
template <bool MOVES> __device__ void features_of_row(real* out, const Batch& b, const Frame& frame, int f, int local,
                                                      int center) {
    real* rows = (real*)shared_bytes;     // [8][STRIDE]: a (four), b (four) of each pair
    real* starts = rows + 8 * STRIDE;     // [groups][4][STRIDE]: T_k, T_{k-1}, U_{k-1}, U_{k-2}
    int groups = b.terms / GROUP, n_types = b.n_types, tk = n_types * b.terms;
    int lane = threadIdx.x % 32, group = threadIdx.x / SHARES, share = threadIdx.x % SHARES;
    bool works = group < groups;
    const u32* start = frame.pair_start + (size_t)local * n_types;
    real middle = (real)b.middle, inv_half = (real)b.inv_half;
    double u_i[3] = {}, strain[9] = {};
    real sums[4 * GROUP];
#pragma unroll
    for (int i = 0; i < 4 * GROUP; i++) sums[i] = real(0);
    int begin = start[0], end = start[n_types], t = 0;
    for (int p0 = begin;; p0 += CHUNK) {
        int n = min(CHUNK, end - p0);
        __syncthreads();
        for (int i = threadIdx.x; i < n; i += blockDim.x) {
            Pair pair = pair_at(b, frame, p0 + i, center);
            // What changes with the direction comes after it is there; a thread finds its own pairs again.
            if (MOVES) leave_pair(rows + i, pair);
            else
                for (int c = 0; c < 4; c++) rows[c * STRIDE + i] = c ? pair.q * pair.d[c - 1] : pair.s;
            real x = (pair.s - middle) * inv_half, two_x = x + x;
            real t_k = 1, t_old = x, u_k = 0, u_old = -1;
            for (int g = 0; g < groups; g++) {
                real* at = starts + (size_t)g * 4 * STRIDE + i;
                at[0] = t_k, at[STRIDE] = t_old;
                if (MOVES) at[2 * STRIDE] = u_k, at[3 * STRIDE] = u_old;
#pragma unroll
                for (int k = 0; k < GROUP; k++) {
                    real next = fused(two_x, t_k, -t_old);
                    t_old = t_k, t_k = next;
                    if (MOVES) next = fused(two_x, u_k, -u_old), u_old = u_k, u_k = next;
                }
            }
        }
        if (MOVES) {
            const double* dl_force = b.dl_force + (size_t)f * b.atom_stride * 3;
            if (p0 == begin) {
                // Frames and slots do not change in a step: all of the above needs no wait.
                after_previous();
                for (int k = 0; k < 3; k++) u_i[k] = dl_force[3 * frame.order[local] + k];
                for (int k = 0; k < 9; k++) strain[k] = b.wants_virial ? b.dl_virial[9 * f + k] : 0.0;
            }
            for (int i = threadIdx.x; i < n; i += blockDim.x)
                move_pair(rows + i, dl_force + 3 * (size_t)frame.j[p0 + i], u_i, strain, inv_half);
        }
        __syncthreads();
        for (; t < n_types; t++) {
            int first = max((int)start[t] - p0, 0), last = min((int)start[t + 1] - p0, n);
            for (int i = first + share; works && i < last; i += SHARES) {
                real a[4], turn[4];
                for (int c = 0; c < 4; c++) {
                    a[c] = rows[c * STRIDE + i];
                    if (MOVES) turn[c] = rows[(4 + c) * STRIDE + i];
                }
                const real* at = starts + (size_t)group * 4 * STRIDE + i;
                real t_k = at[0], t_old = at[STRIDE], u_k = 0, u_old = 0;
                // The first group holds x itself.
                real x = starts[STRIDE + i], two_x = x + x, number = real(group * GROUP);
                if (MOVES) u_k = at[2 * STRIDE], u_old = at[3 * STRIDE];
#pragma unroll
                for (int k = 0; k < GROUP; k++) {
                    real slope = number * u_k;
#pragma unroll
                    for (int c = 0; c < 4; c++) {
                        sums[c * GROUP + k] = fused(t_k, a[c], sums[c * GROUP + k]);
                        if (MOVES) sums[c * GROUP + k] = fused(slope, turn[c], sums[c * GROUP + k]);
                    }
                    real next = fused(two_x, t_k, -t_old);
                    t_old = t_k, t_k = next;
                    if (MOVES) next = fused(two_x, u_k, -u_old), u_old = u_k, u_k = next;
                    number += real(1);
                }
            }
            if ((int)start[t + 1] > p0 + n) break;  // this type goes on in the next chunk
            share_out<2 * GROUP>(sums, lane);
            if (works) {
                int element = element_of(lane);
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    int c = (element + i) / GROUP, k = group * GROUP + (element + i) % GROUP;
                    real value = sums[i];
                    u32 padding = !MOVES && c == 0 ? frame.padding[(size_t)local * n_types + t] : 0;
                    if (padding) {
                        const real* row = b.radial + 3 * center;
                        double s = -(double)row[0] * (double)row[1];
                        value += (real)(padding * s * polynomial(k, (s - b.middle) * b.inv_half));
                    }
                    out[(size_t)c * tk + t * b.terms + k] = value;
                }
            }
#pragma unroll
            for (int i = 0; i < 4 * GROUP; i++) sums[i] = real(0);
        }
        if (t == n_types) break;
    }
}

__device__ __forceinline__ int center_of(const u32* block, int n_types, int local) {
    int center = 0;
    while (center + 1 < n_types && local >= (int)block[center + 1]) center++;
    return center;
}

// Q of every row of one frame; `block` [n_types + 1] has the rows of each type.
extern "C" __global__ void features(const __grid_constant__ Batch b, const Frame* frame, const u32* block) {
    int local = blockIdx.x, tk = b.n_types * b.terms;
    after_previous();
    const Frame copy = *frame;
    int center = center_of(block, b.n_types, local);
    features_of_row<false>(copy.q + (size_t)local * 4 * tk, b, copy, 0, local, center);
}

__device__ __forceinline__ int center_of_row(const Batch& b, int row) {
    u32 input = b.row_input[row];
    int center = 0;
    while (center + 1 < b.n_types && input >= b.group_row[center + 1]) center++;
    return center;
}

// The change of Q of every row of the batch.
extern "C" __global__ void features_tangent(const __grid_constant__ Batch b) {
    int row = blockIdx.x, f = b.row_frame[row];
    const Frame frame = b.frames[b.turn->slots[f]];
    features_of_row<true>(b.q_dot + (size_t)row * 4 * b.n_types * b.terms, b, frame, f, b.row_local[row],
                          center_of_row(b, row));
}

// dE/dd of every pair of a row, from dE/dQ.
extern "C" __global__ void __launch_bounds__(160) pair_forces(const __grid_constant__ Batch b) {
    real* de_q = (real*)shared_bytes;  // [n_types K][8]: dE/dQ of four components, then k times that
    __shared__ double scratch[8];
    int row = blockIdx.x, f = b.row_frame[row], local = b.row_local[row];
    const Frame frame = b.frames[b.turn->slots[f]];
    int n_types = b.n_types, terms = b.terms, tk = n_types * terms, center = center_of_row(b, row);
    const u32* start = frame.pair_start + (size_t)local * n_types;
    // Frames and slots do not change in a step: the first pair is made before dE/dQ is there.
    int p = start[0] + threadIdx.x, end = start[n_types];
    Pair pair;
    if (p < end) pair = pair_at(b, frame, p, center);
    after_previous();
    const real* from = b.de_q + (size_t)row * 4 * tk;
    constexpr int MANY = 5;
    for (int i0 = threadIdx.x; i0 < 4 * tk; i0 += MANY * blockDim.x) {
        real kept[MANY];
#pragma unroll
        for (int n = 0; n < MANY; n++) kept[n] = i0 + n * (int)blockDim.x < 4 * tk ? from[i0 + n * blockDim.x] : real(0);
#pragma unroll
        for (int n = 0; n < MANY; n++) {
            int i = i0 + n * blockDim.x, c = i / tk, k = i - c * tk;
            if (i >= 4 * tk) break;
            de_q[8 * k + c] = kept[n];
            de_q[8 * k + 4 + c] = real(k % terms) * kept[n];
        }
    }
    __syncthreads();
    real middle = (real)b.middle, inv_half = (real)b.inv_half;
    double virial[9] = {};
    for (bool is_next = false; p < end; p += blockDim.x, is_next = true) {
        int t = 0;
        while (p >= (int)start[t + 1]) t++;
        if (is_next) pair = pair_at(b, frame, p, center);
        real x = (pair.s - middle) * inv_half, two_x = x + x;
        real t_k = 1, t_old = x, u_k = 0, u_old = -1;
        real value[4] = {}, slope[4] = {};
        const real* e = de_q + (size_t)8 * t * terms;
#pragma unroll 4
        for (int k = 0; k < terms; k++) {
#pragma unroll
            for (int c = 0; c < 4; c++) {
                value[c] = fused(t_k, e[8 * k + c], value[c]);
                slope[c] = fused(u_k, e[8 * k + 4 + c], slope[c]);
            }
            real next = fused(two_x, t_k, -t_old);
            t_old = t_k, t_k = next;
            next = fused(two_x, u_k, -u_old);
            u_old = u_k, u_k = next;
        }
        const real* d = pair.d;
        real turn = slope[0] * pair.s + pair.q * (slope[1] * d[0] + slope[2] * d[1] + slope[3] * d[2]);
        real de_s = value[0] + inv_half * turn;
        real along = value[1] * d[0] + value[2] * d[1] + value[3] * d[2];
        real radial = pair.s_slope * de_s + pair.q_slope * along;
        real* out = b.de_d + ((size_t)f * b.pair_stride + p) * 3;
        for (int k = 0; k < 3; k++) {
            real de = pair.q * value[k + 1] + radial * d[k];
            out[k] = de;
            if (b.wants_virial)
                for (int l = 0; l < 3; l++) virial[3 * l + k] -= (double)d[l] * (double)de;
        }
    }
    if (!b.wants_virial) return;
    for (int k = 0; k < 9; k++) {
        double sum = block_sum(virial[k], scratch);
        if (threadIdx.x == 0) b.row_virial[(size_t)9 * row + k] = sum;
    }
}
