// The work on pairs: features of a frame, their change, and forces. The formulas of engine/cpu/pairs.rs.
//
// With T_k and U_k of all pairs of an atom as matrices, both are products of a matrix by the functions of each pair (or
// by dE/dQ), and tensor cores make them. The functions are the components of env: four with directions, or the number 1
// (COMPONENTS 1; the formulas of engine/cpu/distances.rs). A lane makes its elements of T and U itself: every eighth (or fourth) term, by
// T_{k+n} = 2 T_n T_k - T_{k-n}, from the first terms of its pairs, which stand in shared memory. U_k follows the same rule.

// Pairs that a warp works on at once, and how far apart their numbers stand: what lanes read falls on different banks.
#define PAIRS 32
#define PAIR_LD 36
// Terms of a panel at most, in tiles of 16.
#define TILES 6
#define MOST_TERMS (16 * TILES)

#if PRODUCTS == 64
typedef AFrag Left;
typedef BFrag Right;
__device__ __forceinline__ void whole(Left&) {}
__device__ __forceinline__ void whole(Right&) {}
__device__ __forceinline__ void mma_whole(real* c, const Left& a, const Right& b) { mma(c, a, b); }
#else
// Floats with all their bits, whatever the dense products keep of them: large and small parts as in product.cu.
struct Left { float x[4]; u32 large[4], small[4]; };
struct Right { float x[2]; u32 large[2], small[2]; };
template <typename Frag> __device__ __forceinline__ void whole(Frag& frag) {
#pragma unroll
    for (int i = 0; i < (int)(sizeof(frag.x) / sizeof(float)); i++) two_parts(frag.x[i], frag.large[i], frag.small[i]);
}
__device__ __forceinline__ void mma_whole(real* c, const Left& a, const Right& b) {
    mma_tf32(c, a.small, b.large);
    mma_tf32(c, a.large, b.small);
    mma_tf32(c, a.large, b.large);
}
#endif

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

#if COMPONENTS == 1
// Slots of excluded neighbours: they follow the empty ones of all rows.
__device__ __forceinline__ u32 left_out_of(const Batch& b, const Frame& frame, int local, int t) {
    return frame.padding[((size_t)frame.n_rows + local) * b.n_types + t];
}
#endif

// T_k at x.
__device__ __noinline__ double polynomial(int k, double x) { return cos(k * acos(fmin(1.0, fmax(-1.0, x)))); }

// The argument of the polynomials and its derivative: engine/cpu/chebyshev.rs.
template <typename F> struct Argument {
    F x, slope;
    __device__ __forceinline__ Argument(const Batch& b, const Panel& panel, F s) {
        F skew = (F)b.skew, inv_half = (F)panel.inv_half, u = (s - (F)panel.middle) * inv_half;
        F inv = F(1) / fused(skew, u, F(1));
        x = (u + skew) * inv, slope = (F(1) - skew * skew) * inv_half * inv * inv;
    }
};

// T and U of one pair at terms k, k + n, k + 2n ..
struct Walk {
    real t, t_old, u, u_old, two;  // T_k, T_{k-n}, U_{k-1}, U_{k-n-1}, 2 T_n
    // From T_0 .. T_n and U_{-1} .. U_{n-1} of the pair, which stand PAIR_LD apart; starts at term k < n.
    __device__ __forceinline__ Walk(const real* first, int n, int k) {
        t = first[k * PAIR_LD], t_old = first[(n - k) * PAIR_LD];
        const real* second = first + (n + 1) * PAIR_LD;
        u = second[k * PAIR_LD], u_old = -second[(n - k) * PAIR_LD];
        two = real(2) * first[n * PAIR_LD];
    }
    __device__ __forceinline__ void next() {
        real later = fused(two, t, -t_old);
        t_old = t, t = later;
        later = fused(two, u, -u_old);
        u_old = u, u = later;
    }
};

// Leaves T_0 .. T_n and U_{-1} .. U_{n-1} at x; nothing but zeros where there is no pair.
__device__ __forceinline__ void leave_terms(real* to, int n, real x, bool is_there) {
    real two_x = x + x, t_k = is_there ? real(1) : real(0), t_old = is_there ? x : real(0);
    real u_k = 0, u_old = is_there ? real(-1) : real(0);
    for (int k = 0; k <= n; k++) {
        to[k * PAIR_LD] = t_k, to[(n + 1 + k) * PAIR_LD] = u_k;
        real next = fused(two_x, t_k, -t_old);
        t_old = t_k, t_k = next;
        next = fused(two_x, u_k, -u_old);
        u_old = u_k, u_k = next;
    }
}

// Numbers of shared memory that a warp needs for its pairs: first terms, functions, and what turns the argument.
#define FEATURE_ROWS (18 + 8)

// Q of a row (MOVES false), or its change along the direction -dL/dF (MOVES true), written to `out`; its warps share the
// panels, and the pairs of each. `near` is the warp's own memory, `sums` that of all warps of the row.
template <bool MOVES> __device__ __forceinline__ void features_of_row(real* out, const Batch& b, const Frame& frame, int f,
                                                                      int local, int center, const Share& share,
                                                                      real* near, real* sums) {
    int lane = threadIdx.x % 32, residue = lane / 4, column = lane % 4;
    int n_types = b.n_types, terms = b.terms, n_panels = b.n_panels, columns = b.columns;
    int at_once = min(n_panels, share.warps), warps = share.warps / at_once;  // panels at once, warps of each
    int own_panel = share.warp / warps, own = share.warp % warps;
    int each = min(PAIRS, 2 * PAIRS / warps);  // few pairs each where several warps share them
    const u32* start = frame.panel_start + (size_t)local * n_panels;
    real *functions = near + 18 * PAIR_LD, *turns = functions + 4 * PAIR_LD;
    const double* dl_force = MOVES ? b.dl_force + (size_t)f * atom_stride_of(b) * 3 : nullptr;
    real u_i[3] = {};
    bool waits = MOVES;
    for (int panel0 = 0; panel0 < n_panels; panel0 += at_once) {
        int panel = panel0 + own_panel;
        bool has_panel = own_panel < at_once && panel < n_panels;
        real sum[TILES][4];
#pragma unroll
        for (int j = 0; j < TILES; j++)
#pragma unroll
            for (int i = 0; i < 4; i++) sum[j][i] = real(0);
        const Panel scale = b.panels[has_panel ? panel : 0];
        int end = has_panel ? start[panel + 1] : 0;
        for (int p0 = has_panel ? start[panel] + own * each : 0; waits || p0 < end; p0 += warps * each) {
            int p = p0 + lane, n = min(each, end - p0);
            bool is_there = lane < n;
            Pair pair = {};
            if (is_there) pair = pair_at(b, frame, p, center);
            Argument<real> argument(b, scale, pair.s);
            leave_terms(near + lane, 8, argument.x, is_there);
            if (waits) {
                // Frames and slots do not change in a step: what is above needs no wait.
                after_previous();
                const double* at = dl_force + 3 * (size_t)frame.order[local];
                for (int k = 0; k < 3; k++) u_i[k] = (real)at[k];
                waits = false;
            }
            if (MOVES) {
                real v[3] = {}, along = 0;
                if (is_there) {
                    const double* at = dl_force + 3 * (size_t)frame.j[p];
                    for (int k = 0; k < 3; k++) {
                        v[k] = u_i[k] - (real)at[k];
                        if (b.wants_virial) {
                            const double* strain = b.dl_virial + 9 * f + k;
                            v[k] -= (real)strain[0] * pair.d[0] + (real)strain[3] * pair.d[1] + (real)strain[6] * pair.d[2];
                        }
                        along += pair.d[k] * v[k];
                    }
                }
                // The change of the functions, and that of the series' argument times the functions.
                real s_dot = pair.s_slope * along, turn = argument.slope * s_dot;
#if COMPONENTS == 4
                functions[lane] = s_dot, turns[lane] = turn * pair.s;
                for (int k = 0; k < 3; k++) {
                    functions[(k + 1) * PAIR_LD + lane] = pair.q * v[k] + pair.q_slope * along * pair.d[k];
                    turns[(k + 1) * PAIR_LD + lane] = turn * (pair.q * pair.d[k]);
                }
#else
                functions[lane] = real(0), turns[lane] = turn;
#endif
            } else {
#if COMPONENTS == 4
                functions[lane] = pair.s;
                for (int k = 0; k < 3; k++) functions[(k + 1) * PAIR_LD + lane] = pair.q * pair.d[k];
#else
                functions[lane] = is_there ? real(1) : real(0);
#endif
            }
            __syncwarp();
            for (int q = 0; q < n; q += 8) {
                Walk walk[2] = {Walk(near + q + column, 8, residue), Walk(near + q + column + 4, 8, residue)};
                Right a, turn;
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    int at = residue % COMPONENTS * PAIR_LD + q + column + 4 * i;
                    a.x[i] = residue < COMPONENTS ? functions[at] : real(0);
                    if (MOVES) turn.x[i] = residue < COMPONENTS ? turns[at] : real(0);
                }
                whole(a);
                if (MOVES) whole(turn);
                real number = real(residue);
#pragma unroll
                for (int j = 0; j < TILES; j++) {
                    if (16 * j >= terms) break;
                    Left value, slope;
#pragma unroll
                    for (int half = 0; half < 2; half++) {
#pragma unroll
                        for (int i = 0; i < 2; i++) {
                            value.x[2 * i + half] = walk[i].t;
                            slope.x[2 * i + half] = number * walk[i].u;
                            walk[i].next();
                        }
                        number += real(8);
                    }
                    whole(value);
                    mma_whole(sum[j], value, a);
                    if (MOVES) {
                        whole(slope);
                        mma_whole(sum[j], slope, turn);
                    }
                }
            }
            __syncwarp();
        }
        // A lane has two components of two terms of each tile.
        auto at_each = [&](auto work) {
#pragma unroll
            for (int j = 0; j < TILES; j++)
#pragma unroll
                for (int i = 0; i < 4; i++) work(16 * j + residue + i / 2 * 8, 2 * column + i % 2, sum[j][i]);
        };
        auto leave = [&](int panel, int k, int c, real value) {
            if (k >= terms || c >= COMPONENTS) return;
            if (!MOVES && c == 0) {
                const Panel& scale = b.panels[panel];
                u32 padding = frame.padding[(size_t)local * n_types + scale.neighbor];
                if (padding && b.empty_panel[center * n_types + scale.neighbor] == panel) {
                    const real* row = b.radial + 3 * center;
                    double s = -(double)row[0] * (double)row[1], env = COMPONENTS == 4 ? s : 1.0;
                    value += (real)(padding * env * polynomial(k, Argument<double>(b, scale, s).x));
                }
#if COMPONENTS == 1
                u32 left_out = left_out_of(b, frame, local, scale.neighbor);
                if (left_out && b.empty_panel[n_types * n_types + scale.neighbor] == panel)
                    value += (real)(left_out * polynomial(k, Argument<double>(b, scale, 0.0).x));
#endif
            }
            out[(size_t)c * columns + panel * terms + k] = value;
        };
        if (warps == 1) {
            if (has_panel) at_each([&](int k, int c, real value) { leave(panel, k, c, value); });
            continue;
        }
        at_each([&](int k, int c, real value) {
            if (c < COMPONENTS) sums[(share.warp * COMPONENTS + c) * MOST_TERMS + k] = value;
        });
        share.sync();
        for (int i = share.thread; i < min(at_once, n_panels - panel0) * COMPONENTS * MOST_TERMS; i += share.threads) {
            int which = i / (COMPONENTS * MOST_TERMS), element = i % (COMPONENTS * MOST_TERMS);
            real value = real(0);
            for (int w = 0; w < warps; w++) value += sums[(which * warps + w) * COMPONENTS * MOST_TERMS + element];
            leave(panel0 + which, element % MOST_TERMS, element / MOST_TERMS, value);
        }
        share.sync();
    }
}

// The memory of this warp and of its row; see feature_launch in store.rs.
__device__ __forceinline__ real* feature_memory(const Share& share, real*& sums) {
    real* all = (real*)shared_bytes;
    sums = all + WARPS * FEATURE_ROWS * PAIR_LD + share.slot * share.warps * COMPONENTS * MOST_TERMS;
    return all + threadIdx.x / 32 * FEATURE_ROWS * PAIR_LD;
}

__device__ __forceinline__ int center_of(const u32* block, int n_types, int local) {
    int center = 0;
    while (center + 1 < n_types && local >= (int)block[center + 1]) center++;
    return center;
}

// Which pairs of one frame belong to which panel; a thread for each row and panel.
extern "C" __global__ void __launch_bounds__(256) cut_pairs(const __grid_constant__ Batch b, const Frame* frame,
                                                            const u32* block) {
    after_previous();
    const Frame copy = *frame;
    int i = blockIdx.x * blockDim.x + threadIdx.x, local = i / b.n_panels, panel = i % b.n_panels;
    if (i == 0) copy.panel_start[copy.n_rows * b.n_panels] = copy.n_pairs;
    if (local >= copy.n_rows) return;
    const u32* pairs = copy.pair_start + (size_t)local * b.n_types;
    int type = b.panels[panel].neighbor, low = pairs[type], high = pairs[type + 1];
    // The first panel of a type begins with its pairs, others behind the last pair within the cut of the one before.
    if (panel == 0 || (int)b.panels[panel - 1].neighbor != type) high = low;
    else {
        double cut = b.cuts[center_of(block, b.n_types, local) * b.n_panels + panel - 1];
        while (low < high) {
            int middle = (low + high) / 2;
            double square = 0;
            for (int k = 0; k < 3; k++) {
                double d = copy.d[(size_t)k * copy.n_pairs + middle];
                square += d * d;
            }
            if (square <= cut) low = middle + 1;
            else high = middle;
        }
    }
    copy.panel_start[i] = low;
}

// Q of every row of one frame; `block` [n_types + 1] has the rows of each type.
extern "C" __global__ void __launch_bounds__(32 * WARPS, 2) features(const __grid_constant__ Batch b, const Frame* frame,
                                                                     const u32* block, int each) {
    Share share(each);
    after_previous();
    const Frame copy = *frame;
    if (share.row >= copy.n_rows) return;
    real *sums, *near = feature_memory(share, sums);
    real* out = copy.q + (size_t)share.row * COMPONENTS * b.columns;
    features_of_row<false>(out, b, copy, 0, share.row, center_of(block, b.n_types, share.row), share, near, sums);
}

__device__ __forceinline__ int center_of_row(const Batch& b, int row) {
    u32 input = b.row_input[row];
    int center = 0;
    while (center + 1 < b.n_types && input >= b.group_row[center + 1]) center++;
    return center;
}

// The change of Q of every row of the batch.
extern "C" __global__ void __launch_bounds__(32 * WARPS, 2) features_tangent(const __grid_constant__ Batch b, int each) {
    Share share(each);
    int row = share.row;
    if (row >= rows_of(b)) return;
    int f = b.row_frame[row];
    const Frame frame = b.frames[b.turn->slots[f]];
    real *sums, *near = feature_memory(share, sums);
    real* out = b.q_dot + (size_t)row * COMPONENTS * b.columns;
    features_of_row<true>(out, b, frame, f, b.row_local[row], center_of_row(b, row), share, near, sums);
}

// Numbers of shared memory of a warp of pair_forces, and how far apart the components of dE/dQ stand; see core.rs.
#define FORCE_ROWS 10
__device__ __forceinline__ int force_ld(int tk) { return (tk + 31) / 32 * 32 + 4; }

// The value of T e (four numbers), and of U k e (four), for each of a warp's pairs, 16 of them as the rows of a tile. `near`
// has the first terms of the pairs and then the results, nine numbers apart; `e` has dE/dQ of their panel.
__device__ __forceinline__ void series_of_pairs(real* near, const real* e, int ld, int n, int terms) {
    int lane = threadIdx.x % 32, residue = lane % 4, column = lane / 4;
    bool both = n > 16;
    const real* first = near + column;
    Walk walk[2][2] = {{Walk(first, 4, residue), Walk(first + 8, 4, residue)},
                       {Walk(first + 16, 4, residue), Walk(first + 24, 4, residue)}};
    real values[2][4] = {}, slopes[2][4] = {};
    e += column % COMPONENTS * ld + residue;  // of one component all columns make the same
    for (int k = 0; k < terms; k += 8) {
        Right e_value, e_slope;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            real x = e[k + 4 * i];
            e_value.x[i] = column < 4 ? x : real(0);
            e_slope.x[i] = column < 4 ? real(0) : real(k + residue + 4 * i) * x;
        }
        whole(e_value), whole(e_slope);
#pragma unroll
        for (int g = 0; g < 2; g++) {
            if (g && !both) break;
            Left value, slope;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                Walk& w = walk[g][i % 2];
                value.x[i] = w.t, slope.x[i] = w.u;
                w.next();
            }
            whole(value), whole(slope);
            mma_whole(values[g], value, e_value);
            mma_whole(slopes[g], slope, e_slope);
        }
    }
    __syncwarp();
#pragma unroll
    for (int g = 0; g < 2; g++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            near[(16 * g + column + i / 2 * 8) * 9 + 2 * residue + i % 2] = values[g][i] + slopes[g][i];
    __syncwarp();
}

// dE/dd of every pair of a row, from dE/dQ, which is brought to shared memory where it `IS_NEAR`.
template <bool IS_NEAR> __device__ __forceinline__ void forces_of_pairs(const Batch& b, int each) {
    Share share(each);
    int row = share.row;
    if (row >= rows_of(b)) return;
    int n_panels = b.n_panels, terms = b.terms, columns = b.columns, lane = threadIdx.x % 32;
    int ld = IS_NEAR ? force_ld(columns) : columns;
    real* near = (real*)shared_bytes + threadIdx.x / 32 * FORCE_ROWS * PAIR_LD;
    const real* de_q = b.de_q + (size_t)row * COMPONENTS * columns;
    __shared__ double virials[WARPS][9];
    int f = b.row_frame[row], local = b.row_local[row], center = center_of_row(b, row);
    const Frame frame = b.frames[b.turn->slots[f]];
    const u32* start = frame.panel_start + (size_t)local * n_panels;
    real* de_d = b.de_d + (size_t)f * pair_stride_of(b) * 3;
    // The warps of the row take `many` pairs of one panel in turn.
    int many = max(16, PAIRS / share.warps), t = 0, p0 = start[0];
    auto move_on = [&](int turns) {
        for (; t < n_panels; p0 = start[++t]) {
            int left = ((int)start[t + 1] - p0 + many - 1) / many;
            if (turns < left) {
                p0 += turns * many;
                return;
            }
            turns -= left;
        }
    };
    // Frames and slots do not change in a step: the first pairs are made before dE/dQ is there.
    Pair pair = {};
    move_on(share.warp);
    int n = t < n_panels ? min(many, (int)start[t + 1] - p0) : 0;
    if (lane < n) pair = pair_at(b, frame, p0 + lane, center);
    Panel scale = b.panels[min(t, n_panels - 1)];
    after_previous();
    real* copy = (real*)shared_bytes + WARPS * FORCE_ROWS * PAIR_LD + share.slot * COMPONENTS * ld;
    if (IS_NEAR) {
        for (int k = VEC * share.thread; k < columns; k += VEC * share.threads)
#pragma unroll
            for (int c = 0; c < COMPONENTS; c++) put(copy + c * ld + k, pack_at(de_q + c * columns + k));
        share.sync();
    }
    double virial[9] = {};
    while (t < n_panels) {
        Argument<real> argument(b, scale, pair.s);
        leave_terms(near + lane, 4, argument.x, lane < n);
        __syncwarp();
        series_of_pairs(near, (IS_NEAR ? copy : de_q) + t * terms, ld, n, terms);
        if (lane < n) {
            const real *d = pair.d, *value = near + 9 * lane, *slope = value + 4;
#if COMPONENTS == 4
            real turn = slope[0] * pair.s + pair.q * (slope[1] * d[0] + slope[2] * d[1] + slope[3] * d[2]);
            real de_s = value[0] + argument.slope * turn;
            real along = value[1] * d[0] + value[2] * d[1] + value[3] * d[2];
            real radial = pair.s_slope * de_s + pair.q_slope * along;
#else
            real radial = pair.s_slope * (argument.slope * slope[0]);
#endif
            real* out = de_d + 3 * (size_t)(p0 + lane);
            for (int k = 0; k < 3; k++) {
#if COMPONENTS == 4
                real de = pair.q * value[k + 1] + radial * d[k];
#else
                real de = radial * d[k];
#endif
                out[k] = de;
                if (b.wants_virial)
                    for (int l = 0; l < 3; l++) virial[3 * l + k] -= (double)d[l] * (double)de;
            }
        }
        move_on(share.warps);
        if (t == n_panels) break;
        n = min(many, (int)start[t + 1] - p0);
        if (lane < n) pair = pair_at(b, frame, p0 + lane, center);
        scale = b.panels[t];
        __syncwarp();
    }
    if (!b.wants_virial) return;
    for (int k = 0; k < 9; k++) {
        double sum = warp_sum(virial[k]);
        if (lane == 0) virials[threadIdx.x / 32][k] = sum;
    }
    share.sync();
    if (share.thread < 9) {
        double sum = 0;
        for (int w = 0; w < share.warps; w++) sum += virials[share.slot * share.warps + w][share.thread];
        b.row_virial[(size_t)9 * row + share.thread] = sum;
    }
}

// One kernel would hold both ways, and keep half of its numbers in local memory.
extern "C" __global__ void __launch_bounds__(32 * WARPS, 2) pair_forces(const __grid_constant__ Batch b, int each) {
    forces_of_pairs<true>(b, each);
}
extern "C" __global__ void __launch_bounds__(32 * WARPS, 2) pair_forces_far(const __grid_constant__ Batch b, int each) {
    forces_of_pairs<false>(b, each);
}
