// Evaluation of a model: neighbours from positions and a list, forces that are added up in whole numbers.
//
// A list names who may be near; who is, and how far, changes with every call. Pairs of a row stand in a part of their own, n_sel
// long, panel after panel and within a panel in the order of the list. What follows (features, products, descriptor) is the work
// of the other files.
//
// Forces go to both atoms of a pair by atomic sums of whole numbers, which have no order: two runs give the same bits, and all
// forces together are exactly zero.

// A block works on one row after the other, a thread on one pair of it at a time.
#define ROW_THREADS 128
#define ROW_LD (ROW_THREADS + 1)

// Components of env or of dE/dQ, side by side.
typedef Some<COMPONENTS> Components;

// Where the pairs are, as pair_at of pairs.cu wants it.
__device__ __forceinline__ Frame pairs_of(const Batch& b, const Listed& e) {
    Frame frame = {};
    frame.d = e.d, frame.n_pairs = b.n_rows * e.n_sel;
    return frame;
}

// A pair in its panel.
struct Placed {
    Pair pair;
    int panel;
    real x, slope;  // the argument of the series, and its derivative
    __device__ __forceinline__ void find(const Batch& b, const Frame& frame, const u32* start, u32 p, int center) {
        pair = pair_at(b, frame, p, center);
        for (panel = 0; panel + 1 < b.n_panels && p >= start[panel + 1];) panel++;
        Argument<real> argument(b, b.panels[panel], pair.s);
        x = argument.x, slope = argument.slope;
    }
};

// Brings the starts of a row's panels to shared memory; all threads have them afterwards.
__device__ __forceinline__ void bring_starts(u32* start, const Batch& b, const Listed& e, int row) {
    const u32* from = e.panel_start + (size_t)row * (b.n_panels + 1);
    __syncthreads();
    for (int i = threadIdx.x; i <= b.n_panels; i += ROW_THREADS) start[i] = from[i];
    __syncthreads();
}

// What a warp of select_neighbors keeps of a row, in shared memory: see Evaluator in evaluate/.
struct Around {
    real *x, *y, *z;
    u32 *j, *place;      // neighbour; panel and number within the panel
    u32 *count, *start;  // of each panel
    u32* hidden;         // of each type: neighbours that keep their slot and contribute nothing
    __device__ __forceinline__ Around(const Batch& b, const Listed& e, int warp) {
        char* at = (char*)shared_bytes + (size_t)warp * e.kept_bytes;
        x = (real*)at, y = x + e.n_sel, z = y + e.n_sel;
        j = (u32*)(z + e.n_sel), place = j + e.n_sel;
        count = place + e.n_sel, start = count + b.n_panels, hidden = start + b.n_panels;
    }
};

// A listed atom seen from a centre.
struct Seen {
    double d[3], r2;
    u32 j;
    int type;
    __device__ __forceinline__ Seen(const Listed& e, const double* center, u32 p) {
        j = e.list[p], type = e.types[j];
        const double* at = e.coord + 3 * (size_t)j;
        for (int k = 0; k < 3; k++) d[k] = at[k] - center[k];
        r2 = d[0] * d[0] + d[1] * d[1] + d[2] * d[2];
    }
    __device__ __forceinline__ bool is_near(const Listed& e) const { return type >= 0 && r2 < e.rcut2; }
};

// Whether a neighbour is among the nearest, of all types and of its own, for which there are slots.
__device__ __noinline__ bool has_slot(const Listed& e, const double* center, u32 first, u32 end, const Seen& own) {
    int all = 0, same = 0;
    for (u32 p = first; p < end; p++) {
        Seen other(e, center, p);
        if (!other.is_near(e) || other.r2 > own.r2 || (other.r2 == own.r2 && other.j >= own.j)) continue;
        all++, same += other.type == own.type;
    }
    return all < e.n_sel && same < (int)e.sel[own.type];
}

// Who of a row's list is near, and in which panel. Returns how many there are, those that contribute nothing too.
__device__ __forceinline__ int look_around(const Batch& b, const Listed& e, const Around& kept, u32 atom, int center, bool few,
                                           int& n_kept) {
    int lane = threadIdx.x % 32, found = 0;
    u32 first = e.list_start[atom], end = e.list_start[atom + 1];
    const double *own = e.coord + 3 * (size_t)atom, *cuts = b.cuts + (size_t)center * b.n_panels;
    double at[3] = {own[0], own[1], own[2]}, closest = e.closest[center];
    for (int i = lane; i < b.n_panels; i += 32) kept.count[i] = 0;
    for (int i = lane; i < b.n_types; i += 32) kept.hidden[i] = 0;
    __syncwarp();
    n_kept = 0;
    for (u32 p0 = first; p0 < end; p0 += 32) {
        Seen seen(e, at, min(p0 + lane, end - 1));
        bool near = p0 + lane < end && seen.is_near(e);
        if (few) near = near && has_slot(e, at, first, end, seen);
        if (near && seen.r2 < closest) atomicMin(&e.checks->closest, (u64)__double_as_longlong(seen.r2));
        bool counts = near && !e.excluded[center * b.n_types + max(seen.type, 0)];
        if (near && !counts) atomicAdd(kept.hidden + seen.type, 1);
        int panel = -1;
        if (counts) {
            panel = e.first_panel[seen.type];
            int last = e.first_panel[seen.type + 1] - 1;
            while (panel < last && seen.r2 > cuts[panel]) panel++;
        }
        u32 like = __match_any_sync(FULL_WARP, panel), below = (1u << lane) - 1;
        u32 with = __ballot_sync(FULL_WARP, counts);
        found += __popc(__ballot_sync(FULL_WARP, near));
        int place = n_kept + __popc(with & below);
        u32 number = counts ? kept.count[panel] + __popc(like & below) : 0;
        __syncwarp();
        if (counts && !(like & below)) kept.count[panel] += __popc(like);
        if (counts && place < e.n_sel) {
            kept.x[place] = (real)seen.d[0], kept.y[place] = (real)seen.d[1], kept.z[place] = (real)seen.d[2];
            kept.j[place] = seen.j, kept.place[place] = (u32)panel << 16 | number;
        }
        n_kept += __popc(with);
        __syncwarp();
    }
    return found;
}

// The neighbours of every row; one warp for each.
extern "C" __global__ void __launch_bounds__(32 * WARPS) select_neighbors(const __grid_constant__ Batch b,
                                                                          const __grid_constant__ Listed e) {
    after_previous();
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = blockIdx.x * WARPS + warp;
    if (row >= b.n_rows) return;
    Around kept(b, e, warp);
    u32 atom = e.order[row];
    int center = center_of_row(b, row), n_kept;
    int found = look_around(b, e, kept, atom, center, false, n_kept);
    auto neighbors = [&](int type) {
        u32 n = kept.hidden[type];
        for (u32 panel = e.first_panel[type]; panel < e.first_panel[type + 1]; panel++) n += kept.count[panel];
        return n;
    };
    bool crowded = found > e.n_sel;
    for (int t = lane; t < b.n_types; t += 32) crowded |= neighbors(t) > e.sel[t];
    if (__ballot_sync(FULL_WARP, crowded)) look_around(b, e, kept, atom, center, true, n_kept);
    for (int t = lane; t < b.n_types; t += 32) {
        e.padding[(size_t)row * b.n_types + t] = e.sel[t] - neighbors(t);
        e.padding[((size_t)b.n_rows + row) * b.n_types + t] = kept.hidden[t];
    }
    u32 first = (u32)row * e.n_sel, *starts = e.panel_start + (size_t)row * (b.n_panels + 1);
    for (int panel = lane; panel <= b.n_panels; panel += 32) {
        u32 before = 0;
        for (int other = 0; other < panel; other++) before += kept.count[other];
        starts[panel] = first + before;
        if (panel < b.n_panels) kept.start[panel] = before;
    }
    __syncwarp();
    size_t stride = (size_t)b.n_rows * e.n_sel;
    for (int k = lane; k < n_kept; k += 32) {
        size_t p = first + kept.start[kept.place[k] >> 16] + (kept.place[k] & 0xffffu);
        e.d[p] = kept.x[k], e.d[stride + p] = kept.y[k], e.d[2 * stride + p] = kept.z[k];
        e.j[p] = kept.j[k];
    }
}

// What slots without a neighbour bring to a column of Q.
__device__ __forceinline__ real without_neighbor(const Batch& b, const Listed& e, int row, int center, int panel, int column) {
    u32 neighbor = b.panels[panel].neighbor;
    const u32* slots = e.padding + (size_t)row * b.n_types + neighbor;
    real sum = (real)*slots * e.empty[(size_t)center * b.columns + column];
#if COMPONENTS == 1
    sum += (real)slots[(size_t)b.n_rows * b.n_types] * e.empty[(size_t)b.n_types * b.columns + column];
#endif
    return sum;
}

// Q of every row: a thread makes T of its pair, then adds up some columns over the pairs of their panel.
extern "C" __global__ void __launch_bounds__(ROW_THREADS, 6) features_listed(const __grid_constant__ Batch b,
                                                                             const __grid_constant__ Listed e) {
    int thread = threadIdx.x, terms = b.terms, columns = b.columns;
    Components* env = (Components*)shared_bytes;
    real* values = (real*)(env + ROW_THREADS);  // [terms, ROW_LD]
    u32* start = (u32*)(values + (size_t)terms * ROW_LD);
    const Frame frame = pairs_of(b, e);
    after_previous();
    for (int row = blockIdx.x; row < b.n_rows; row += gridDim.x) {
        int center = center_of_row(b, row);
        bring_starts(start, b, e, row);
        int first = start[0], end = start[b.n_panels];
        real* out = e.q + (size_t)row * COMPONENTS * columns;
        for (int p0 = first; p0 == first || p0 < end; p0 += ROW_THREADS) {
            int n = min(ROW_THREADS, end - p0);
            if (p0 > first) __syncthreads();
            if (thread < n) {
                Placed placed;
                placed.find(b, frame, start, p0 + thread, center);
                const Pair& pair = placed.pair;
                Components own;
#if COMPONENTS == 4
                own.x[0] = pair.s;
                for (int k = 0; k < 3; k++) own.x[k + 1] = pair.q * pair.d[k];
#else
                own.x[0] = real(1);
#endif
                env[thread] = own;
                real t = real(1), t_old = placed.x, two = placed.x + placed.x;
#pragma unroll 8
                for (int k = 0; k < terms; k++) {
                    values[k * ROW_LD + thread] = t;
                    real later = fused(two, t, -t_old);
                    t_old = t, t = later;
                }
            }
            __syncthreads();
            for (int column = thread; column < columns; column += ROW_THREADS) {
                int panel = column / terms;
                Components sum;
#pragma unroll
                for (int c = 0; c < COMPONENTS; c++) sum.x[c] = p0 == first ? real(0) : out[c * columns + column];
                if (p0 == first) sum.x[0] = without_neighbor(b, e, row, center, panel, column);
                int last = min((int)start[panel + 1] - p0, n);
                const real* value = values + (column - panel * terms) * ROW_LD;
#pragma unroll 4
                for (int p = max((int)start[panel] - p0, 0); p < last; p++) {
                    Components own = env[p];
#pragma unroll
                    for (int c = 0; c < COMPONENTS; c++) sum.x[c] = fused(value[p], own.x[c], sum.x[c]);
                }
#pragma unroll
                for (int c = 0; c < COMPONENTS; c++) out[c * columns + column] = sum.x[c];
            }
        }
    }
}

// A whole number of the smallest forces; where it is too large for the sum of many, or no number, the host hears of it.
__device__ __forceinline__ long long to_whole(const Listed& e, double x) {
    double y = x * e.scale;
    if (!(fabs(y) < e.limit)) {
        e.checks->too_large = 1;
        return 0;
    }
    return __double2ll_rn(y);
}

__device__ __forceinline__ void add_whole(long long* to, long long x) { atomicAdd((u64*)to, (u64)x); }

// What one pair brings: `de` is dE/dd.
__device__ __forceinline__ void add_pair(const Listed& e, u32 j, const real* d, const real* de, long long* own, double* virial) {
    for (int k = 0; k < 3; k++) {
        long long whole = to_whole(e, (double)de[k]);
        own[k] += whole;
        add_whole(e.force + 3 * (size_t)j + k, -whole);
        for (int l = 0; l < 3; l++) {
            double part = (double)d[l] * (double)de[k];
            virial[3 * l + k] -= part;
            if (e.atom_virial) add_whole(e.atom_virial + 9 * (size_t)j + 3 * k + l, to_whole(e, -part));
        }
    }
}

// dE/dd of a pair: its series in dE/dQ, and their derivatives. Components of dE/dQ stand side by side in `near`; without that, they
// are where the products left them.
template <bool IS_NEAR> __device__ __forceinline__ void slope_of_pair(real* de, const Placed& placed, const Components* near,
                                                                      const real* far, int columns, int terms) {
    real t = real(1), t_old = placed.x, two = placed.x + placed.x, u = real(0), u_old = real(-1), number = real(0);
    real value[COMPONENTS] = {}, slope[COMPONENTS] = {};
    near += placed.panel * terms, far += placed.panel * terms;
#pragma unroll 4
    for (int k = 0; k < terms; k++) {
        Components e;
        if (IS_NEAR) e = near[k];
        else
            for (int c = 0; c < COMPONENTS; c++) e.x[c] = far[c * columns + k];
        real weight = number * u;
#pragma unroll
        for (int c = 0; c < COMPONENTS; c++) {
            value[c] = fused(t, e.x[c], value[c]);
            slope[c] = fused(weight, e.x[c], slope[c]);
        }
        real later = fused(two, t, -t_old);
        t_old = t, t = later;
        later = fused(two, u, -u_old);
        u_old = u, u = later;
        number += real(1);
    }
    const Pair& pair = placed.pair;
    const real* d = pair.d;
#if COMPONENTS == 4
    real turn = slope[0] * pair.s + pair.q * (slope[1] * d[0] + slope[2] * d[1] + slope[3] * d[2]);
    real de_s = value[0] + placed.slope * turn;
    real along = value[1] * d[0] + value[2] * d[1] + value[3] * d[2];
    real radial = pair.s_slope * de_s + pair.q_slope * along;
    for (int k = 0; k < 3; k++) de[k] = pair.q * value[k + 1] + radial * d[k];
#else
    real radial = pair.s_slope * (placed.slope * slope[0]);
    for (int k = 0; k < 3; k++) de[k] = radial * d[k];
#endif
}

// Forces from dE/dQ, which is brought to shared memory where there is room for it; energies of atoms, and the block's part of energy
// and virial.
template <bool IS_NEAR> __device__ __forceinline__ void forces_of_rows(const Batch& b, const Listed& e) {
    constexpr int N_WARPS = ROW_THREADS / 32;
    int thread = threadIdx.x, warp = thread / 32, lane = thread % 32, terms = b.terms, columns = b.columns;
    Components* near = (Components*)shared_bytes;
    u32* start = (u32*)(near + (IS_NEAR ? columns : 0));
    const Frame frame = pairs_of(b, e);
    double sums[10] = {};
    for (int row = blockIdx.x; row < b.n_rows; row += gridDim.x) {
        int center = center_of_row(b, row);
        u32 atom = e.order[row];
        bring_starts(start, b, e, row);
        u32 end = start[b.n_panels], p = start[0] + thread;
        // Pairs and energies were made long before: the wait is for dE/dQ.
        Placed placed;
        if (p < end) placed.find(b, frame, start, p, center);
        if (warp == N_WARPS - 1) {
            double energy = energy_of(b, center, row) + (b.b_out[center] ? (double)*b.b_out[center] : 0.0) + e.bias[center];
            if (lane == 0) e.atom_energy[atom] = energy, sums[9] += energy;
        }
        if (row == blockIdx.x) after_previous();
        const real* de_q = b.de_q + (size_t)row * COMPONENTS * columns;
        if (IS_NEAR) {
            for (int i = thread; i < columns; i += ROW_THREADS) {
                Components all;
#pragma unroll
                for (int c = 0; c < COMPONENTS; c++) all.x[c] = de_q[c * columns + i];
                near[i] = all;
            }
            __syncthreads();
        }
        long long own[3] = {};
        bool has_pairs = __ballot_sync(FULL_WARP, p < end);
        while (p < end) {
            real de[3];
            slope_of_pair<IS_NEAR>(de, placed, near, de_q, columns, terms);
            add_pair(e, e.j[p], placed.pair.d, de, own, sums);
            p += ROW_THREADS;
            if (p < end) placed.find(b, frame, start, p, center);
        }
        if (!has_pairs) continue;
        __syncwarp();
        for (int k = 0; k < 3; k++) {
            long long sum = warp_sum(own[k]);
            if (lane == 0) add_whole(e.force + 3 * (size_t)atom + k, sum);
        }
    }
    __shared__ double parts[N_WARPS][10];
    for (int k = 0; k < 10; k++) {
        double sum = warp_sum(sums[k]);
        if (lane == 0) parts[warp][k] = sum;
    }
    __syncthreads();
    if (thread < 10) {
        double sum = 0;
        for (int w = 0; w < N_WARPS; w++) sum += parts[w][thread];
        e.parts[(size_t)thread * e.n_parts + e.first_part + blockIdx.x] = sum;
    }
}

extern "C" __global__ void __launch_bounds__(ROW_THREADS, 6) forces_listed(const __grid_constant__ Batch b,
                                                                           const __grid_constant__ Listed e) {
    forces_of_rows<true>(b, e);
}
extern "C" __global__ void __launch_bounds__(ROW_THREADS, 6) forces_listed_far(const __grid_constant__ Batch b,
                                                                               const __grid_constant__ Listed e) {
    forces_of_rows<false>(b, e);
}

// Makes numbers of the whole numbers, which are zero afterwards for the next evaluation. Blocks 0 to 9 add up one component of
// virial and energy each, from `found` [16]: those, then what was checked.
extern "C" __global__ void __launch_bounds__(256) end_evaluation(const __grid_constant__ Listed e, double* force,
                                                                 double* atom_virial, double* found) {
    after_previous();
    __shared__ double scratch[8];
    if (blockIdx.x < 10) {
        const double* part = e.parts + (size_t)blockIdx.x * e.n_parts;
        double sum = 0;
        for (int i = threadIdx.x; i < e.n_parts; i += blockDim.x) sum += part[i];
        sum = block_sum(sum, scratch);
        if (threadIdx.x == 0) found[blockIdx.x] = sum;
    }
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        found[10] = __longlong_as_double((long long)e.checks->closest), found[11] = (double)e.checks->too_large;
        e.checks->closest = ~0ull >> 1, e.checks->too_large = 0;
    }
    double unit = 1.0 / e.scale;
    size_t first = (size_t)blockIdx.x * blockDim.x + threadIdx.x, step = (size_t)gridDim.x * blockDim.x;
    for (size_t i = first; i < 3 * (size_t)e.n_atoms; i += step) force[i] = (double)e.force[i] * unit, e.force[i] = 0;
    if (!e.atom_virial) return;
    for (size_t i = first; i < 9 * (size_t)e.n_atoms; i += step)
        atom_virial[i] = (double)e.atom_virial[i] * unit, e.atom_virial[i] = 0;
}
