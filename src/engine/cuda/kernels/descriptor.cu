// From A of an atom to its descriptor D, with tangent and adjoint: engine/cpu/descriptor.rs. With directions D = A A[..M2]^T,
// and A is [4, ldm]; without, D = MAP_SCALE A, and A is [ldm] (COMPONENTS 1, M2 1).

// The lanes of a warp stand side by side in a row of D, W numbers each, so that memory is read and written in whole lines.

// Numbers that lie side by side: a pack or four where the rows of D have whole ones, else one.
template <int W> struct __align__(W == 1 ? sizeof(real) : 16) Some { real x[W]; };

// What a warp and its lanes do for a row of the batch.
template <int W> struct Place : Share {
    int lanes, m, step, k;     // lanes of a row of D; first row of D, from one to the next, and column of this lane
    int ldm, m1, m2;
    __device__ __forceinline__ Place(const Batch& b, int each) : Share(each), lanes(4), ldm(b.ldm), m1(b.m1), m2(b.m2) {
        while (lanes < 32 && lanes * W < m2) lanes *= 2;
        int lane = threadIdx.x % 32;
        k = lane % lanes * W, m = warp * (32 / lanes) + lane / lanes, step = warps * (32 / lanes);
    }
    // Shared memory of the row, `size` numbers.
    __device__ __forceinline__ real* memory(int size) const { return (real*)shared_bytes + slot * size; }
    // Brings A of the row, or its tangent.
    __device__ __forceinline__ void load(real* to, const real* from) const {
        from += (size_t)row * COMPONENTS * ldm;
        for (int i = VEC * thread; i < COMPONENTS * ldm; i += VEC * threads) put(to + i, pack_at(from + i));
    }
    // A[c][k], A[c][k + 1] ..
    __device__ __forceinline__ void columns(real (&to)[4][W], const real* a, int k) const {
#pragma unroll
        for (int c = 0; c < 4; c++)
#pragma unroll
            for (int w = 0; w < W; w++) to[c][w] = k + w < m2 ? a[c * ldm + k + w] : real(0);
    }
};

// What a row of the batch is: its frame and row there, and where dL/dA and dE/dA stand.
struct RowPlace { u32 frame, local, dl, de; };

// Finds out what a row is from `tables`, which begin with the batch's counts, and leaves it for the other kernels.
__device__ __forceinline__ RowPlace find_row(const Batch& b, const volatile u32* tables, u32 row, int n_stacks) {
    int n_types = b.n_types, t = 0, low = 0, high = (int)tables[2] - 1;
    const volatile u32 *row_start = tables + sizeof(Counts) / 4, *input_start = row_start + n_types + 1;
    const volatile u32* frame_rows = input_start + n_types + 1;
    while (t + 1 < n_types && row >= row_start[t + 1]) t++;
    // The last frame whose rows of this type do not begin after it.
    while (low < high) {
        int middle = (low + high + 1) / 2;
        if (row >= frame_rows[2 * (middle * n_types + t)]) low = middle;
        else high = middle - 1;
    }
    const volatile u32* own = frame_rows + 2 * low * n_types;
    u32 local = row - own[2 * t];
    for (int other = 0; other < t; other++) local += own[2 * other + 1];
    u32 first = row_start[t], n = row_start[t + 1] - first, input = input_start[t] + row - first;
    bool has_vacuum = input_start[t + 1] - input_start[t] > n;
    if (n_stacks == 1) first = 0, n = tables[1];
    RowPlace place = {(u32)low, local, first + row, first + n + row};
    ((u32*)b.row_frame)[row] = place.frame, ((u32*)b.row_local)[row] = place.local;
    ((u32*)b.row_dl)[row] = place.dl, ((u32*)b.row_de)[row] = place.de;
    ((u32*)b.row_input)[row] = input;
    ((u32*)b.row_vacuum)[row] = has_vacuum ? input + row_start[t + 1] - row_start[t] : ~0u;
    return place;
}

// Takes the numbers of the step, and finds Q of each row and where its tangent goes. `ring` has the numbers of the next
// `places` steps, `stride` bytes each; null: they are where the kernels read them. `counter` has the steps so far, then the
// blocks of this one that are done. Where batches differ, the tables of this one stand `tables_at` bytes from its numbers.
extern "C" __global__ void begin(const __grid_constant__ Batch b, const unsigned char* ring, u32 stride, u32 places,
                                 u32* counter, u32 tables_at, int n_stacks) {
    after_previous();
    const volatile u32* turn = (const volatile u32*)b.turn;
    if (ring) turn = (const volatile u32*)(ring + (size_t)(*(volatile u32*)counter % places) * stride);
    constexpr int HEADER = sizeof(Turn) / 4 - 2;  // words before the slots
    int row = blockIdx.x * blockDim.x + threadIdx.x, n_rows = b.n_rows, n_frames = b.n_frames;
    const volatile u32* tables = ring ? turn + tables_at / 4 : (const volatile u32*)b.now;
    if (b.now) n_rows = tables[1], n_frames = tables[2];
    if (row < n_rows) {
        RowPlace place;
        if (b.now) place = find_row(b, tables, row, n_stacks);
        else place = {b.row_frame[row], b.row_local[row], b.row_dl[row], b.row_de[row]};
        u32 slot = turn[HEADER + place.frame];
        size_t size = (size_t)COMPONENTS * b.columns;
        b.row_q[place.dl] = b.frames[slot].q + place.local * size;
        b.row_q[place.de] = b.q_dot + row * size;
    }
    if (!ring) return;
    if (blockIdx.x == 0)
        for (int i = threadIdx.x; i < HEADER + n_frames; i += blockDim.x) ((u32*)b.turn)[i] = turn[i];
    if (b.now) {
        int words = sizeof(Counts) / 4 + 2 * (b.n_types + 1) + 2 * n_frames * b.n_types;
        for (int i = row; i < words; i += gridDim.x * blockDim.x) ((u32*)b.now)[i] = tables[i];
    }
    __syncthreads();
    if (threadIdx.x == 0 && atomicAdd(counter + 1, 1) == gridDim.x - 1) {
        counter[1] = 0;
        counter[0]++;
    }
}

// Inputs of the fitting nets, also of those with no neighbours.
template <int W> __device__ __forceinline__ void descriptor_of_row(const Batch& b, int each) {
    Place<W> p(b, each);
    int row = p.row, m1 = p.m1, m2 = p.m2, n_d = m1 * m2, ldm = p.ldm;
    if (row >= rows_of(b)) return;
    int center = center_of_row(b, row);
    real* a = p.memory(4 * ldm);
    real* inputs = b.x[center] + rows_before(b, center, 2) * b.ldx;
    real* x = inputs + (size_t)(b.row_input[row] - b.group_row[center]) * b.ldx;
    after_previous();
    p.load(a, b.a);
    p.sync();
#if COMPONENTS == 1
    for (int m = p.thread; m < m1; m += p.threads) x[m] = real(MAP_SCALE) * a[m];
#else
    for (int k = p.k; k < m2; k += p.lanes * W) {
        real near[4][W];
        p.columns(near, a, k);
#pragma unroll 4
        for (int m = p.m; m < m1; m += p.step) {
            Some<W> out;
#pragma unroll
            for (int w = 0; w < W; w++)
                out.x[w] = fused(a[m], near[0][w], fused(a[ldm + m], near[1][w],
                           fused(a[2 * ldm + m], near[2][w], a[3 * ldm + m] * near[3][w])));
            *(Some<W>*)(x + m * m2 + k) = out;
        }
    }
#endif
    u32 vacuum = b.row_vacuum[row];
    real* empty = vacuum == ~0u ? nullptr : inputs + (size_t)(vacuum - b.group_row[center]) * b.ldx;
    int first = p.thread, stride = p.threads;
    if (empty)
        for (int i = first; i < n_d; i += stride) empty[i] = real(0);
    if (!b.n_extra) return;
    const Frame frame = b.frames[b.turn->slots[b.row_frame[row]]];
    const real* extra = frame.extra + (size_t)b.row_local[row] * b.n_extra;
    for (int i = first; i < b.n_extra; i += stride) {
        x[n_d + i] = extra[i];
        if (empty) empty[n_d + i] = extra[i];
    }
}

extern "C" __global__ void __launch_bounds__(32 * WARPS) descriptor(const __grid_constant__ Batch b, int each) {
    if (b.m2 % VEC) descriptor_of_row<1>(b, each);
    else descriptor_of_row<VEC>(b, each);
}

template <int W> __device__ __forceinline__ void tangent_of_row(const Batch& b, int each) {
    Place<W> p(b, each);
    int row = p.row, m1 = p.m1, m2 = p.m2, n_d = m1 * m2, ldm = p.ldm;
    if (row >= rows_of(b)) return;
    int center = center_of_row(b, row);
    real *a = p.memory(8 * ldm), *a_dot = a + 4 * ldm;
    u32 first_row = b.group_row[center], n = b.group_row[center + 1] - first_row;
    real* inputs = b.x[center] + (rows_before(b, center, 2) + n) * b.ldx;
    real* x = inputs + (size_t)(b.row_input[row] - first_row) * b.ldx;
    // Long there: the wait is for the tangent.
    p.load(a, b.a);
    after_previous();
    p.load(a_dot, b.a_dot);
    p.sync();
#if COMPONENTS == 1
    for (int m = p.thread; m < m1; m += p.threads) x[m] = real(MAP_SCALE) * a_dot[m];
#else
    for (int k = p.k; k < m2; k += p.lanes * W) {
        real near[4][W], near_dot[4][W];
        p.columns(near, a, k);
        p.columns(near_dot, a_dot, k);
#pragma unroll 2
        for (int m = p.m; m < m1; m += p.step) {
            Some<W> out;
#pragma unroll
            for (int w = 0; w < W; w++) out.x[w] = real(0);
#pragma unroll
            for (int c = 0; c < 4; c++) {
                real far = a[c * ldm + m], far_dot = a_dot[c * ldm + m];
#pragma unroll
                for (int w = 0; w < W; w++) out.x[w] = fused(far_dot, near[c][w], fused(far, near_dot[c][w], out.x[w]));
            }
            *(Some<W>*)(x + m * m2 + k) = out;
        }
    }
#endif
    int first = p.thread, stride = p.threads;
    for (int i = n_d + first; i < b.ldx; i += stride) x[i] = real(0);
    u32 vacuum = b.row_vacuum[row];
    if (vacuum == ~0u) return;
    real* empty = inputs + (size_t)(vacuum - first_row) * b.ldx;
    for (int i = first; i < b.ldx; i += stride) empty[i] = real(0);
}

extern "C" __global__ void __launch_bounds__(32 * WARPS, 2) descriptor_tangent(const __grid_constant__ Batch b, int each) {
    if (b.m2 % VEC) tangent_of_row<1>(b, each);
    else tangent_of_row<VEC>(b, each);
}

#if COMPONENTS == 4
// Adds to t[c][m] the sum of d_d[m, k] a[c][k] over k, and of d_d[m', m] a[c][m'] over m' where m < M2, for one row.
// `sums` has room for [warps][4 M2].
template <int W> __device__ __forceinline__ void adjoint_add(const Place<W>& p, real* t, real* sums, const real* a,
                                                             const real* d_d) {
    int ldm = p.ldm, m1 = p.m1, m2 = p.m2, lane = threadIdx.x % 32;
    // After the exchange below a lane has one component of the sum over k.
    int component = (lane & 1 ? 2 : 0) + (lane & 2 ? 1 : 0);
    bool writes = lane % p.lanes < 4;
    for (int k0 = 0; k0 < m2; k0 += p.lanes * W) {
        int k = k0 + p.k;
        bool is_there = k < m2;
        real near[4][W], sum[4][W];
        p.columns(near, a, k);
#pragma unroll
        for (int c = 0; c < 4; c++)
#pragma unroll
            for (int w = 0; w < W; w++) sum[c][w] = real(0);
        // All lanes of a warp stay together, for the exchange.
        constexpr int MANY = sizeof(real) == 8 ? 2 : 4;
        for (int m0 = p.m; m0 - lane / p.lanes < m1; m0 += MANY * p.step) {
            Some<W> d[MANY];
#pragma unroll
            for (int u = 0; u < MANY; u++) {
                int m = m0 + u * p.step;
                if (m < m1 && is_there) d[u] = *(const Some<W>*)(d_d + m * m2 + k);
                else
                    for (int w = 0; w < W; w++) d[u].x[w] = real(0);
            }
#pragma unroll
            for (int u = 0; u < MANY; u++) {
                int m = m0 + u * p.step, at = min(m, m1 - 1);
                real v[4];
#pragma unroll
                for (int c = 0; c < 4; c++) {
                    real far = a[c * ldm + at];
                    v[c] = real(0);
#pragma unroll
                    for (int w = 0; w < W; w++) {
                        v[c] = fused(d[u].x[w], near[c][w], v[c]);
                        sum[c][w] = fused(d[u].x[w], far, sum[c][w]);
                    }
                }
                bool upper = lane & 1;
#pragma unroll
                for (int i = 0; i < 2; i++)
                    v[i] = (upper ? v[i + 2] : v[i]) + __shfl_xor_sync(FULL_WARP, upper ? v[i] : v[i + 2], 1);
                upper = lane & 2;
                v[0] = (upper ? v[1] : v[0]) + __shfl_xor_sync(FULL_WARP, upper ? v[0] : v[1], 2);
                for (int step = 4; step < p.lanes; step *= 2) v[0] += __shfl_xor_sync(FULL_WARP, v[0], step);
                if (m < m1 && writes) t[component * ldm + m] += v[0];
            }
        }
        for (int step = p.lanes; step < 32; step *= 2)
#pragma unroll
            for (int c = 0; c < 4; c++)
#pragma unroll
                for (int w = 0; w < W; w++) sum[c][w] += __shfl_xor_sync(FULL_WARP, sum[c][w], step);
        if (lane < p.lanes && is_there)
            for (int c = 0; c < 4; c++)
                for (int w = 0; w < W; w++) sums[(p.warp * 4 + c) * m2 + k + w] = sum[c][w];
    }
    p.sync();
    for (int i = p.thread; i < 4 * m2; i += p.threads) {
        real sum = real(0);
        for (int w = 0; w < p.warps; w++) sum += sums[w * 4 * m2 + i];
        t[i / m2 * ldm + i % m2] += sum;
    }
    p.sync();
}

#endif

// dE/dA of a row (second 0), or dL/dA from dL/dinput and, along the direction, dE/dinput (second 1).
template <int W> __device__ __forceinline__ void adjoint_of_row(const Batch& b, int second, int each) {
    Place<W> p(b, each);
    int row = p.row, ldm = p.ldm;
    if (row >= rows_of(b)) return;
#if COMPONENTS == 4
    real *a = p.memory(8 * ldm + 4 * p.warps * p.m2), *t = a + 4 * ldm, *sums = t + 4 * ldm;
#endif
    int center = center_of_row(b, row), first = p.thread, stride = p.threads;
    size_t at = (rows_before(b, center, 1) + b.row_input[row] - b.group_row[center]) * b.ldx;
    real* out = b.da + (size_t)(second ? b.row_dl : b.row_de)[row] * COMPONENTS * ldm;
#if COMPONENTS == 1
    after_previous();
    const real* d_d = (second ? b.dl_x : b.de_x)[center] + at;
    for (int i = first; i < ldm; i += stride) out[i] = i < p.m1 ? real(MAP_SCALE) * d_d[i] : real(0);
#else
    for (int i = first; i < 4 * ldm; i += stride) t[i] = real(0);
    if (second) {
        // Long there: the wait is for dL/dinput.
        p.load(a, b.a_dot);
        p.sync();
        adjoint_add(p, t, sums, a, b.de_x[center] + at);
        p.load(a, b.a);
        after_previous();
    } else {
        after_previous();
        p.load(a, b.a);
    }
    p.sync();
    adjoint_add(p, t, sums, a, (second ? b.dl_x : b.de_x)[center] + at);
    for (int i = first; i < 4 * ldm; i += stride) out[i] = t[i];
#endif
}

// Floats leave room for one more block.
extern "C" __global__ void __launch_bounds__(32 * WARPS, sizeof(real) == 8 ? 2 : 3)
    descriptor_adjoint(const __grid_constant__ Batch b, int second, int each) {
    if (b.m2 % 4) adjoint_of_row<1>(b, second, each);
    else adjoint_of_row<4>(b, second, each);
}
