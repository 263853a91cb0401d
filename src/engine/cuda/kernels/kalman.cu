// LKF: optim/kalman.rs. Covariances are tiles of their lower half, row after row of tiles; tiles on the diagonal are whole, and what
// lies above the diagonal or beyond the end in them is never looked at.
//
// An update is made in the pass in which the next one reads the covariances: P is read and written once for each.

constexpr int TILE = 64, ROWS_EACH = TILE / 4;

// The covariance whose tile, or strip of rows, this is.
template <typename F> __device__ __forceinline__ const Covariance& covariance_of(const Kalman& o, F first) {
    int low = 0, high = o.n_blocks - 1;
    while (low < high) {
        int middle = (low + high + 1) / 2;
        if ((u64)blockIdx.x >= first(o.blocks[middle])) low = middle;
        else high = middle - 1;
    }
    return o.blocks[low];
}

__device__ __forceinline__ u64 tile_at(const Covariance& c, int row, int col) {
    return c.first_tile + (u64)row * (row + 1) / 2 + col;
}

// P = 1: a block for each strip of rows.
extern "C" __global__ void __launch_bounds__(256) kalman_begin(const __grid_constant__ Kalman o) {
    after_previous();
    const Covariance& c = covariance_of(o, [](const Covariance& c) { return c.first_strip; });
    int strip = (int)(blockIdx.x - c.first_strip);
    if (threadIdx.x < TILE) o.tiles[tile_at(c, strip, strip) * TILE * TILE + threadIdx.x * (TILE + 1)] = 1.0;
}

// The gradient in the order of blocks, `count` times the one that is there.
extern "C" __global__ void __launch_bounds__(256) kalman_gather(const __grid_constant__ Kalman o, double count) {
    after_previous();
    u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < o.n_params) o.h[i] = count * o.grad[o.order[i]];
}

// One tile: P <- (P - a k k^T) / lambda where an update waits (`narrows`), and what the tile brings to P h (`multiplies`): to its
// rows, and, as it stands for its mirror image too, to its columns.
extern "C" __global__ void __launch_bounds__(256) kalman_pass(const __grid_constant__ Kalman o, double a, double inverse, int narrows,
                                                              int multiplies) {
    __shared__ double rows[2][TILE], columns[4][TILE], h[TILE], k[TILE];
    const Covariance& c = covariance_of(o, [](const Covariance& c) { return c.first_tile; });
    int at = (int)(blockIdx.x - c.first_tile), row = (int)((sqrt(8.0 * at + 1.0) - 1.0) / 2.0);
    while ((row + 1) * (row + 2) / 2 <= at) row++;
    while (row * (row + 1) / 2 > at) row--;
    int col = at - row * (row + 1) / 2;
    int t = threadIdx.x % TILE, group = threadIdx.x / TILE, i0 = row * TILE, j = col * TILE + t;
    after_previous();
    double* tile = o.tiles + (u64)blockIdx.x * TILE * TILE + t;
    double p[ROWS_EACH];
#pragma unroll
    for (int m = 0; m < ROWS_EACH; m++) p[m] = tile[(group + 4 * m) * TILE];
    if (group == 0) {
        bool is_there = i0 + t < c.n;
        h[t] = is_there ? o.h[c.first + i0 + t] : 0.0, k[t] = is_there && narrows ? o.last[c.first + i0 + t] : 0.0;
    }
    double h_j = j < c.n ? o.h[c.first + j] : 0.0, k_j = j < c.n && narrows ? o.last[c.first + j] : 0.0;
    __syncthreads();
    double column = 0;
#pragma unroll
    for (int m = 0; m < ROWS_EACH; m++) {
        int r = group + 4 * m, i = i0 + r;
        bool is_there = i < c.n && j <= i;
        if (narrows) {
            p[m] = inverse * (p[m] - a * k[r] * k_j);
            if (is_there) tile[r * TILE] = p[m];
        }
        double x = is_there ? p[m] : 0.0, sum = warp_sum(x * h_j);
        if (t % 32 == 0) rows[t / 32][r] = sum;
        if (i != j) column += x * h[r];
    }
    if (!multiplies) return;
    columns[group][t] = column;
    __syncthreads();
    double* parts = o.parts + (u64)blockIdx.x * 2 * TILE;
    if (group == 0) parts[t] = rows[0][t] + rows[1][t];
    if (group == 1) parts[TILE + t] = columns[0][t] + columns[1][t] + columns[2][t] + columns[3][t];
}

// k = P h of a strip of rows from what the tiles have brought, and its part of h k.
extern "C" __global__ void __launch_bounds__(256) kalman_gain(const __grid_constant__ Kalman o) {
    __shared__ double sums[4][TILE], scratch[8];
    const Covariance& c = covariance_of(o, [](const Covariance& c) { return c.first_strip; });
    int strip = (int)(blockIdx.x - c.first_strip), t = threadIdx.x % TILE, group = threadIdx.x / TILE, i = strip * TILE + t;
    after_previous();
    double sum = 0;
    for (int other = group; other < c.strips; other += 4) {
        if (other <= strip) sum += o.parts[tile_at(c, strip, other) * 2 * TILE + t];
        if (other >= strip) sum += o.parts[tile_at(c, other, strip) * 2 * TILE + TILE + t];
    }
    sums[group][t] = sum;
    __syncthreads();
    double dot = 0;
    if (group == 0 && i < c.n) {
        double k = sums[0][t] + sums[1][t] + sums[2][t] + sums[3][t];
        o.gain[c.first + i] = k;
        dot = k * o.h[c.first + i];
    }
    dot = block_sum(dot, scratch);
    if (threadIdx.x == 0) o.dots[blockIdx.x] = dot;
}

// h k of each covariance.
extern "C" __global__ void __launch_bounds__(256) kalman_sums(const __grid_constant__ Kalman o) {
    __shared__ double scratch[8];
    const Covariance& c = o.blocks[blockIdx.x];
    after_previous();
    double sum = 0;
    for (int i = threadIdx.x; i < c.strips; i += 256) sum += o.dots[c.first_strip + i];
    sum = block_sum(sum, scratch);
    if (threadIdx.x == 0) o.sums[blockIdx.x] = sum;
}

// Parameters move along the gain.
extern "C" __global__ void __launch_bounds__(256) kalman_move(const __grid_constant__ Kalman o, double length) {
    after_previous();
    u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < o.n_params) o.params[o.order[i]] += length * o.gain[i];
}

// The error of what is observed of each frame, and the seeds of its gradient: loss/observation.rs. Blocks take the frames in turn.
extern "C" __global__ void __launch_bounds__(256) kalman_observe(const __grid_constant__ Batch b, const Observing* o, const u32* atoms,
                                                                 double* errors) {
    after_previous();
    int n_frames = frames_of(b), stride = atom_stride_of(b), n_places = (int)o->n_places;
    double prefactor = o->prefactor;
    for (int f = blockIdx.x; f < n_frames; f += gridDim.x) {
        const Frame& frame = b.frames[b.turn->slots[f]];
        size_t first = (size_t)f * stride;
        for (int i = threadIdx.x; i < 3 * stride; i += blockDim.x) b.dl_force[3 * first + i] = 0;
        for (int i = threadIdx.x; i < stride; i += blockDim.x) b.dl_atom_energy[first + i] = 0;
        if (threadIdx.x < 9) b.dl_virial[9 * f + threadIdx.x] = 0;
        __syncthreads();
        if (threadIdx.x) continue;
        double n = frame.n_rows, error = 0, dl_energy = 0;
        if (n_places == 0 && (frame.labels & 1u)) {
            double x = prefactor * (frame.energy - b.energy[f]);
            error = fabs(x) / n, dl_energy = (x < 0 ? -1.0 : 1.0) * prefactor / n;
        }
        for (int p = 0; p < n_places && frame.force && n > 0; p++) {
            u32 atom = atoms[f * n_places + p];
            double count = n * 3.0 * n_places;
            for (int k = 0; k < 3; k++) {
                double x = prefactor * (frame.force[3 * atom + k] - b.force[3 * (first + atom) + k]);
                error += fabs(x) / count;
                b.dl_force[3 * (first + atom) + k] += (x < 0 ? -1.0 : 1.0) * prefactor / count;
            }
        }
        b.dl_energy[f] = dl_energy, errors[f] = error;
    }
}
