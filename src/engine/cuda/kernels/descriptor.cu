// The descriptor D = A A[..M2]^T of an atom, its tangent and its adjoint: engine/cpu/descriptor.rs. A is [4, ldm].

__device__ __forceinline__ void load_a(real* to, const Batch& b, const real* from, int row) {
    copy_many<4>(to, from + (size_t)row * 4 * b.ldm, 4 * b.ldm);
}

// Walks over the elements [m, k] of a descriptor, a block's width at a time, without a division for each.
struct Steps {
    int m, k, dm, dk;
    __device__ __forceinline__ Steps(int m2)
        : m(threadIdx.x / m2), k(threadIdx.x % m2), dm(blockDim.x / m2), dk(blockDim.x % m2) {}
    __device__ __forceinline__ void next(int m2) {
        m += dm, k += dk;
        if (k >= m2) m++, k -= m2;
    }
};

// Takes the numbers of the step, and finds Q of each row and where its tangent goes. `ring` has the numbers of the next
// `places` steps, `stride` bytes each; null: they are where the kernels read them. `counter` has the steps so far, then the
// blocks of this one that are done.
extern "C" __global__ void begin(const __grid_constant__ Batch b, const unsigned char* ring, u32 stride, u32 places,
                                 u32* counter) {
    after_previous();
    const volatile u32* turn = (const volatile u32*)b.turn;
    if (ring) turn = (const volatile u32*)(ring + (size_t)(*(volatile u32*)counter % places) * stride);
    constexpr int HEADER = sizeof(Turn) / 4 - 2;  // words before the slots
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row < b.n_rows) {
        u32 slot = turn[HEADER + b.row_frame[row]];
        size_t size = (size_t)4 * b.n_types * b.terms;
        b.row_q[b.row_dl[row]] = b.frames[slot].q + b.row_local[row] * size;
        b.row_q[b.row_de[row]] = b.q_dot + row * size;
    }
    if (!ring) return;
    if (blockIdx.x == 0)
        for (int i = threadIdx.x; i < HEADER + b.n_frames; i += blockDim.x) ((u32*)b.turn)[i] = turn[i];
    __syncthreads();
    if (threadIdx.x == 0 && atomicAdd(counter + 1, 1) == gridDim.x - 1) {
        counter[1] = 0;
        counter[0]++;
    }
}

// Inputs of the fitting nets, also of those with no neighbours.
extern "C" __global__ void descriptor(const __grid_constant__ Batch b) {
    real* a = (real*)shared_bytes;
    int row = blockIdx.x, m1 = b.m1, m2 = b.m2, n_d = m1 * m2, ldm = b.ldm;
    int center = center_of_row(b, row);
    after_previous();
    load_a(a, b, b.a, row);
    __syncthreads();
    real* x = b.x[center] + (size_t)(b.row_input[row] - b.group_row[center]) * b.ldx;
    Steps s(m2);
    for (int i = threadIdx.x; i < n_d; i += blockDim.x, s.next(m2)) {
        int m = s.m, k = s.k;
        x[i] = fused(a[m], a[k], fused(a[ldm + m], a[ldm + k],
               fused(a[2 * ldm + m], a[2 * ldm + k], a[3 * ldm + m] * a[3 * ldm + k])));
    }
    u32 vacuum = b.row_vacuum[row];
    real* empty = vacuum == ~0u ? nullptr : b.x[center] + (size_t)(vacuum - b.group_row[center]) * b.ldx;
    if (empty)
        for (int i = threadIdx.x; i < n_d; i += blockDim.x) empty[i] = real(0);
    if (b.n_extra) {
        const Frame frame = b.frames[b.turn->slots[b.row_frame[row]]];
        const real* extra = frame.extra + (size_t)b.row_local[row] * b.n_extra;
        for (int i = threadIdx.x; i < b.n_extra; i += blockDim.x) {
            x[n_d + i] = extra[i];
            if (empty) empty[n_d + i] = extra[i];
        }
    }
}

extern "C" __global__ void descriptor_tangent(const __grid_constant__ Batch b) {
    int row = blockIdx.x, m1 = b.m1, m2 = b.m2, n_d = m1 * m2, ldm = b.ldm;
    real *a = (real*)shared_bytes, *a_dot = a + 4 * ldm;
    int center = center_of_row(b, row);
    u32 first = b.group_row[center], n = b.group_row[center + 1] - first;
    load_a(a, b, b.a, row);
    after_previous();
    load_a(a_dot, b, b.a_dot, row);
    __syncthreads();
    real* x = b.x[center] + (size_t)(n + b.row_input[row] - first) * b.ldx;
    Steps s(m2);
    for (int i = threadIdx.x; i < n_d; i += blockDim.x, s.next(m2)) {
        int m = s.m, k = s.k;
        real sum = real(0);
#pragma unroll
        for (int c = 0; c < 4; c++)
            sum = fused(a_dot[c * ldm + m], a[c * ldm + k], fused(a[c * ldm + m], a_dot[c * ldm + k], sum));
        x[i] = sum;
    }
    for (int i = n_d + threadIdx.x; i < b.ldx; i += blockDim.x) x[i] = real(0);
    u32 vacuum = b.row_vacuum[row];
    if (vacuum == ~0u) return;
    real* empty = b.x[center] + (size_t)(n + vacuum - first) * b.ldx;
    for (int i = threadIdx.x; i < b.ldx; i += blockDim.x) empty[i] = real(0);
}

// t[c][m] += d_d[m, k] a[c][k], t[c][k] += d_d[m, k] a[c][m] for one row.
#define PIECES 16
#define PIECES_LD (PIECES + 1)  // neighbours fall on different banks
__device__ void adjoint_add(real* t, real* d_d, real* pieces, const real* a, const real* from, int m1, int m2, int ldm) {
    int pitch = m2 + 1;
    Steps s(m2);
    constexpr int MANY = 7;
    for (int i0 = threadIdx.x; i0 < m1 * m2; i0 += MANY * blockDim.x) {
        real kept[MANY];
#pragma unroll
        for (int k = 0; k < MANY; k++) kept[k] = i0 + k * (int)blockDim.x < m1 * m2 ? from[i0 + k * blockDim.x] : real(0);
#pragma unroll
        for (int k = 0; k < MANY; k++, s.next(m2))
            if (i0 + k * (int)blockDim.x < m1 * m2) d_d[s.m * pitch + s.k] = kept[k];
    }
    __syncthreads();
    for (int m = threadIdx.x; m < m1; m += blockDim.x) {
        real sum[4] = {t[m], t[ldm + m], t[2 * ldm + m], t[3 * ldm + m]};
        for (int k = 0; k < m2; k++) {
            real e = d_d[m * pitch + k];
#pragma unroll
            for (int c = 0; c < 4; c++) sum[c] = fused(e, a[c * ldm + k], sum[c]);
        }
#pragma unroll
        for (int c = 0; c < 4; c++) t[c * ldm + m] = sum[c];
    }
    // The other part in pieces of m, so that all threads have work.
    for (int i = threadIdx.x; i < PIECES * m2; i += blockDim.x) {
        int k = i % m2, piece = i / m2;
        real sum[4] = {};
        for (int m = piece; m < m1; m += PIECES) {
            real e = d_d[m * pitch + k];
#pragma unroll
            for (int c = 0; c < 4; c++) sum[c] = fused(e, a[c * ldm + m], sum[c]);
        }
#pragma unroll
        for (int c = 0; c < 4; c++) pieces[(c * m2 + k) * PIECES_LD + piece] = sum[c];
    }
    __syncthreads();
    for (int i = threadIdx.x; i < 4 * m2; i += blockDim.x) {
        real sum = real(0);
#pragma unroll
        for (int piece = 0; piece < PIECES; piece++) sum += pieces[i * PIECES_LD + piece];
        t[i / m2 * ldm + i % m2] += sum;
    }
    __syncthreads();
}

// dE/dA of every row (second 0), or dL/dA from dL/dinput and, along the direction, dE/dinput (second 1).
extern "C" __global__ void __launch_bounds__(256) descriptor_adjoint(const __grid_constant__ Batch b, int second) {
    int row = blockIdx.x, m1 = b.m1, m2 = b.m2, ldm = b.ldm;
    real *a = (real*)shared_bytes, *t = a + 4 * ldm, *pieces = t + 4 * ldm, *d_d = pieces + 4 * PIECES_LD * m2;
    int center = center_of_row(b, row);
    size_t at = (size_t)(b.row_input[row] - b.group_row[center]) * b.ldx;
    for (int i = threadIdx.x; i < 4 * ldm; i += blockDim.x) t[i] = real(0);
    if (second) {
        // Long there: the wait is for dL/dinput.
        load_a(a, b, b.a_dot, row);
        __syncthreads();
        adjoint_add(t, d_d, pieces, a, b.de_x[center] + at, m1, m2, ldm);
        load_a(a, b, b.a, row);
        after_previous();
    } else {
        after_previous();
        load_a(a, b, b.a, row);
    }
    __syncthreads();
    adjoint_add(t, d_d, pieces, a, (second ? b.dl_x : b.de_x)[center] + at, m1, m2, ldm);
    real* out = b.da + (size_t)(second ? b.row_dl : b.row_de)[row] * 4 * ldm;
    for (int i = threadIdx.x; i < 4 * ldm; i += blockDim.x) out[i] = t[i];
}
