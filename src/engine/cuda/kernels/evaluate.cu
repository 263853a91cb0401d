// Evaluation of a model: neighbours from positions and a list, forces that are added up in whole numbers.
//
// A list names who may be near; who is, and how far, changes with every call. Pairs of a row stand in a part of their own, n_sel
// long, panel after panel and within a panel in the order of the list. What follows (features, products, descriptor) is the work
// of the other files.
//
// Forces go to both atoms of a pair by atomic sums of whole numbers, which have no order: two runs give the same bits, and all
// forces together are exactly zero.

// Where the pairs of a row are, as the functions of pairs.cu want it.
__device__ __forceinline__ Frame pairs_of(const Batch& b, const Listed& e, int row) {
    Frame frame = {};
    frame.d = e.d, frame.j = e.j, frame.padding = e.padding;
    frame.n_pairs = b.n_rows * e.n_sel;
    frame.panel_start = e.panel_start + row;  // a row has one number more than there
    return frame;
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
    for (int t = lane; t < b.n_types; t += 32) e.padding[(size_t)row * b.n_types + t] = e.sel[t] - neighbors(t);
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

// Q of every row.
extern "C" __global__ void __launch_bounds__(32 * WARPS, 2) features_listed(const __grid_constant__ Batch b,
                                                                            const __grid_constant__ Listed e, int each) {
    Share share(each);
    after_previous();
    if (share.row >= b.n_rows) return;
    real *sums, *near = feature_memory(share, sums);
    real* out = e.q + (size_t)share.row * 4 * b.columns;
    features_of_row<false>(out, b, pairs_of(b, e, share.row), 0, share.row, center_of_row(b, share.row), share, near, sums);
}

// The mirrored part of the descriptor only once: rows M2 .. M1 of D, then the lower half of its square, then extra inputs. Weights are
// added up accordingly (folded_weights in evaluate/). See engine/cpu/fitting/fold.rs.

__device__ __forceinline__ int triangle(int m, int k) { return m >= k ? m * (m + 1) / 2 + k : k * (k + 1) / 2 + m; }

template <int W> __device__ __forceinline__ void folded_of_row(const Batch& b, const Listed& e, int each) {
    Place<W> p(b, each);
    int row = p.row, m1 = p.m1, m2 = p.m2, ldm = p.ldm;
    if (row >= b.n_rows) return;
    real *a = p.memory(4 * ldm), *x = e.x + (size_t)row * b.ldx;
    after_previous();
    p.load(a, b.a);
    p.sync();
    for (int k = p.k; k < m2; k += p.lanes * W) {
        real near[4][W];
        p.columns(near, a, k);
#pragma unroll 4
        for (int m = m2 + p.m; m < m1; m += p.step) {
            Some<W> out;
#pragma unroll
            for (int w = 0; w < W; w++)
                out.x[w] = fused(a[m], near[0][w], fused(a[ldm + m], near[1][w],
                           fused(a[2 * ldm + m], near[2][w], a[3 * ldm + m] * near[3][w])));
            *(Some<W>*)(x + (m - m2) * m2 + k) = out;
        }
    }
    real* square = x + (m1 - m2) * m2;
    for (int i = p.thread; i < m2 * m2; i += p.threads) {
        int m = i / m2, k = i % m2;
        if (k > m) continue;
        square[triangle(m, k)] = fused(a[m], a[k], fused(a[ldm + m], a[ldm + k],
                                 fused(a[2 * ldm + m], a[2 * ldm + k], a[3 * ldm + m] * a[3 * ldm + k])));
    }
    const real* extra = e.extra + (size_t)row * b.n_extra;
    for (int i = p.thread; i < b.n_extra; i += p.threads) square[m2 * (m2 + 1) / 2 + i] = extra[i];
}

extern "C" __global__ void __launch_bounds__(32 * WARPS) descriptor_listed(const __grid_constant__ Batch b,
                                                                           const __grid_constant__ Listed e, int each) {
    if (b.m2 % VEC) folded_of_row<1>(b, e, each);
    else folded_of_row<VEC>(b, e, each);
}

// dE/dA of a row from dE/dx.
template <int W> __device__ __forceinline__ void unfolded_of_row(const Batch& b, const Listed& e, int each) {
    Place<W> p(b, each);
    int row = p.row, ldm = p.ldm, m1 = p.m1, m2 = p.m2;
    if (row >= b.n_rows) return;
    real *a = p.memory(8 * ldm + 4 * p.warps * m2), *t = a + 4 * ldm, *sums = t + 4 * ldm;
    const real *de_x = e.x + (size_t)row * b.ldx, *square = de_x + (m1 - m2) * m2;
    for (int i = p.thread; i < 4 * ldm; i += p.threads) t[i] = real(0);
    after_previous();
    p.load(a, b.a);
    p.sync();
    // Rows from M2 on: as if the square stood before them.
    p.m += m2;
    adjoint_add(p, t, sums, a, de_x - m2 * m2);
    for (int i = p.thread; i < 4 * m2; i += p.threads) {
        int c = i / m2, m = i % m2;
        real sum = square[triangle(m, m)] * a[c * ldm + m];
        for (int k = 0; k < m2; k++) sum = fused(square[triangle(m, k)], a[c * ldm + k], sum);
        t[c * ldm + m] += sum;
    }
    p.sync();
    real* out = b.da + (size_t)row * 4 * ldm;
    for (int i = p.thread; i < 4 * ldm; i += p.threads) out[i] = t[i];
}

extern "C" __global__ void __launch_bounds__(32 * WARPS, sizeof(real) == 8 ? 2 : 3)
    adjoint_listed(const __grid_constant__ Batch b, const __grid_constant__ Listed e, int each) {
    if (b.m2 % 4) unfolded_of_row<1>(b, e, each);
    else unfolded_of_row<4>(b, e, each);
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

// T of one pair at terms k, k + n, k + 2n ..: Walk of pairs.cu without U.
struct Stride {
    real t, t_old, two;
    __device__ __forceinline__ Stride(const real* first, int n, int k) {
        t = first[k * PAIR_LD], t_old = first[(n - k) * PAIR_LD], two = real(2) * first[n * PAIR_LD];
    }
    __device__ __forceinline__ void next() {
        real later = fused(two, t, -t_old);
        t_old = t, t = later;
    }
};

// Leaves T_0 .. T_4 at x; nothing but zeros where there is no pair.
__device__ __forceinline__ void leave_values(real* to, real x, bool is_there) {
    real t = is_there ? real(1) : real(0), t_old = is_there ? x : real(0);
#pragma unroll
    for (int k = 0; k <= 4; k++) {
        to[k * PAIR_LD] = t;
        real next = fused(x + x, t, -t_old);
        t_old = t, t = next;
    }
}

// Makes the coefficients of the derivatives of the series in `e` [4, ld], panel after panel, and leaves them behind.
__device__ __forceinline__ void differentiate(real* e, int ld, int n_panels, int terms, const Share& share) {
    real* slopes = e + 4 * ld;
    // Every second coefficient follows from the one two above it.
    for (int i = share.thread; i < 8 * n_panels; i += share.threads) {
        int at = i % 4 * ld + i / 8 * terms, parity = i / 4 % 2, last = terms - 1;
        if (last % 2 == parity) slopes[at + last] = real(0);
        real sum = real(0);
        for (int k = (last - 1) % 2 == parity ? last - 1 : last - 2; k >= 0; k -= 2) {
            sum = fused(real(2 * (k + 1)), e[at + k + 1], sum);
            slopes[at + k] = k ? sum : real(0.5) * sum;
        }
    }
}

// Four series and their derivatives for each of a warp's pairs, 16 of them as the rows of a tile. `near` has the first terms of the
// pairs and then the results, nine numbers apart; `e` has dE/dQ of their panel and its derivatives.
__device__ __forceinline__ void series_and_slopes(real* near, const real* e, int ld, int n, int terms) {
    int lane = threadIdx.x % 32, residue = lane % 4, column = lane / 4;
    bool both = n > 16;
    const real* first = near + column;
    Stride walk[2][2] = {{Stride(first, 4, residue), Stride(first + 8, 4, residue)},
                         {Stride(first + 16, 4, residue), Stride(first + 24, 4, residue)}};
    real values[2][4] = {};
    e += column * ld + residue;
    for (int k = 0; k < terms; k += 8) {
        Right right;
#pragma unroll
        for (int i = 0; i < 2; i++) right.x[i] = e[k + 4 * i];
        whole(right);
#pragma unroll
        for (int g = 0; g < 2; g++) {
            if (g && !both) break;
            Left value;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                Stride& w = walk[g][i % 2];
                value.x[i] = w.t;
                w.next();
            }
            whole(value);
            mma_whole(values[g], value, right);
        }
    }
    __syncwarp();
#pragma unroll
    for (int g = 0; g < 2; g++)
#pragma unroll
        for (int i = 0; i < 4; i++) near[(16 * g + column + i / 2 * 8) * 9 + 2 * residue + i % 2] = values[g][i];
    __syncwarp();
}

// Forces from dE/dQ, which comes to shared memory with its derivatives; energies of atoms, and the block's part of energy and
// virial. As pair_forces in pairs.cu, with half of its products. `beside` [blocks, each, 8, ld] is used where shared memory is too
// small; else it is null.
extern "C" __global__ void __launch_bounds__(32 * WARPS, 2) forces_listed(const __grid_constant__ Batch b,
                                                                          const __grid_constant__ Listed e, int each,
                                                                          real* beside) {
    Share share(each);
    int row = min(share.row, b.n_rows - 1), warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    bool has_row = share.row < b.n_rows;
    int n_panels = has_row ? b.n_panels : 0, terms = b.terms, columns = b.columns, ld = force_ld(columns);
    real* near = (real*)shared_bytes + warp * FORCE_ROWS * PAIR_LD;
    const real* de_q = b.de_q + (size_t)row * 4 * columns;
    __shared__ double parts[WARPS][10];
    int center = center_of_row(b, row);
    const Frame frame = pairs_of(b, e, row);
    const u32* start = e.panel_start + (size_t)row * (b.n_panels + 1);
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
    // Pairs and energies were made long before: the wait is for dE/dQ.
    Pair pair = {};
    u32 j = 0;
    move_on(share.warp);
    int n = t < n_panels ? min(many, (int)start[t + 1] - p0) : 0;
    if (lane < n) pair = pair_at(b, frame, p0 + lane, center), j = e.j[p0 + lane];
    Panel scale = b.panels[min(t, b.n_panels - 1)];
    u32 atom = e.order[row];
    double sums[10] = {};
    if (has_row && share.warp == 0) {
        double energy = energy_of(b, center, row) + (b.b_out[center] ? (double)*b.b_out[center] : 0.0) + e.bias[center];
        if (lane == 0) e.atom_energy[atom] = energy, sums[9] = energy;
    }
    after_previous();
    real* copy = (real*)shared_bytes + WARPS * FORCE_ROWS * PAIR_LD + (size_t)share.slot * 8 * ld;
    if (beside) copy = beside + ((size_t)blockIdx.x * each + share.slot) * 8 * ld;
    for (int k = VEC * share.thread; k < columns; k += VEC * share.threads)
#pragma unroll
        for (int c = 0; c < 4; c++) put(copy + c * ld + k, pack_at(de_q + c * columns + k));
    share.sync();
    differentiate(copy, ld, b.n_panels, terms, share);
    share.sync();
    long long own[3] = {};
    while (t < n_panels) {
        Argument<real> argument(b, scale, pair.s);
        leave_values(near + lane, argument.x, lane < n);
        __syncwarp();
        series_and_slopes(near, copy + t * terms, ld, n, terms);
        if (lane < n) {
            const real *d = pair.d, *value = near + 9 * lane, *slope = value + 4;
            real turn = slope[0] * pair.s + pair.q * (slope[1] * d[0] + slope[2] * d[1] + slope[3] * d[2]);
            real de_s = value[0] + argument.slope * turn;
            real along = value[1] * d[0] + value[2] * d[1] + value[3] * d[2];
            real radial = pair.s_slope * de_s + pair.q_slope * along, de[3];
            for (int k = 0; k < 3; k++) de[k] = pair.q * value[k + 1] + radial * d[k];
            add_pair(e, j, d, de, own, sums);
        }
        move_on(share.warps);
        if (t == n_panels) break;
        n = min(many, (int)start[t + 1] - p0);
        if (lane < n) pair = pair_at(b, frame, p0 + lane, center), j = e.j[p0 + lane];
        scale = b.panels[t];
        __syncwarp();
    }
    for (int k = 0; k < 3; k++) {
        long long sum = warp_sum(own[k]);
        if (lane == 0 && has_row) add_whole(e.force + 3 * (size_t)atom + k, sum);
    }
    for (int k = 0; k < 10; k++) {
        double sum = warp_sum(sums[k]);
        if (lane == 0) parts[warp][k] = sum;
    }
    __syncthreads();
    if (threadIdx.x < 10) {
        double sum = 0;
        for (int w = 0; w < WARPS; w++) sum += parts[w][threadIdx.x];
        e.parts[(size_t)threadIdx.x * e.n_parts + e.first_part + blockIdx.x] = sum;
    }
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
