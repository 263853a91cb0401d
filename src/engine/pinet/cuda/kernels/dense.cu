// A layer, y = act(x W + b), on all rows, in all four passes: engine/pinet/cpu/layers.rs.
//
// A block takes tile after tile of rows. A tile lies in shared memory column by column, so that a thread reads several
// rows at once.

// Rows that one thread computes a column for.
#define GROUP 8

// Columns `0 .. n` of rows from `first` on; rows beyond the end are zeros.
__device__ __forceinline__ void load_tile(real* tile, const real* x, int ld, int n, int first, int end) {
    for (int k = threadIdx.x; k < ROWS * n; k += THREADS) {
        int row = k / n, c = k % n;
        tile[c * LD + row] = first + row < end ? x[(size_t)(first + row) * ld + c] : real(0);
    }
}

// The same of an adjoint before the activation of y.
__device__ __forceinline__ void load_before(real* tile, const real* dy, const Mat& y, int act, int n, int first, int end) {
    for (int k = threadIdx.x; k < ROWS * n; k += THREADS) {
        int row = k / n, c = k % n;
        size_t at = (size_t)(first + row) * y.ld + c;
        tile[c * LD + row] = first + row < end ? dy[at] * slope_of(y, at, act) : real(0);
    }
}

// Columns that are there only to fill up a micro tile.
__device__ __forceinline__ void clear_columns(real* tile, int from, int to) {
    for (int k = threadIdx.x; k < (to - from) * LD; k += THREADS) tile[from * LD + k] = real(0);
}

__device__ __forceinline__ void load_weights(real* to, const real* from, int n) {
    for (int k = threadIdx.x; k < n; k += THREADS) to[k] = from[k];
}

// acc += (tile) column `c` of the product with a matrix of `n` rows and `cols` columns, for GROUP rows.
__device__ __forceinline__ void multiply_add(real* acc, const real* tile, const real* w, int n, int cols, int c, int row) {
#pragma unroll 4
    for (int k = 0; k < n; k++) {
        real f = w[k * cols + c];
        const Vector* x = (const Vector*)(tile + k * LD + row);
#pragma unroll
        for (int q = 0; q < GROUP / VEC; q++) {
            Vector v = x[q];
#pragma unroll
            for (int s = 0; s < VEC; s++) acc[q * VEC + s] = fused(v.v[s], f, acc[q * VEC + s]);
        }
    }
}

__device__ __forceinline__ int round4(int n) { return (n + 3) / 4 * 4; }

template <bool TANGENT> __device__ __forceinline__ void dense_values(const Op& o) {
    real* w = (real*)shared_bytes;
    real* tile = w + round4(o.n_in * o.n_out);
    load_weights(w, o.w, o.n_in * o.n_out);
    int n_rows = *o.count * o.parts;
    for (int first = blockIdx.x * ROWS; first < n_rows; first += gridDim.x * ROWS) {
        __syncthreads();
        load_tile(tile, TANGENT ? o.x.dot : o.x.value, o.x.ld, o.n_in, first, n_rows);
        __syncthreads();
        for (int item = threadIdx.x; item < ROWS / GROUP * o.n_out; item += THREADS) {
            int c = item % o.n_out, row = item / o.n_out * GROUP;
            real start = !TANGENT && o.b ? o.b[c] : real(0), acc[GROUP];
#pragma unroll
            for (int q = 0; q < GROUP; q++) acc[q] = start;
            multiply_add(acc, tile, w, o.n_in, o.n_out, c, row);
#pragma unroll
            for (int q = 0; q < GROUP; q++) {
                if (first + row + q >= n_rows) break;
                size_t at = (size_t)(first + row + q) * o.y.ld + c;
                if (TANGENT) activate_dot(o.y, at, o.act, acc[q]);
                else activate(o.y, at, o.act, acc[q]);
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) dense_forward(const __grid_constant__ Op o) { dense_values<false>(o); }
extern "C" __global__ void __launch_bounds__(THREADS) dense_tangent(const __grid_constant__ Op o) { dense_values<true>(o); }

// dx (+)= z W^T for the rows of a tile.
__device__ __forceinline__ void pass_back(const Op& o, real* dx, const real* z, const real* wt, int first, int n_rows) {
    for (int item = threadIdx.x; item < ROWS / GROUP * o.n_in; item += THREADS) {
        int c = item % o.n_in, row = item / o.n_in * GROUP;
        real acc[GROUP];
#pragma unroll
        for (int q = 0; q < GROUP; q++) acc[q] = real(0);
        multiply_add(acc, z, wt, o.n_out, o.n_in, c, row);
#pragma unroll
        for (int q = 0; q < GROUP; q++) {
            if (first + row + q >= n_rows) break;
            real* to = dx + (size_t)(first + row + q) * o.x.ld + c;
            *to = o.overwrite ? acc[q] : *to + acc[q];
        }
    }
}

__device__ __forceinline__ void dense_back(const Op& o) {
    real* wt = (real*)shared_bytes;
    real* z = wt + round4(o.n_in * o.n_out);
    load_weights(wt, o.wt, o.n_in * o.n_out);
    int n_rows = *o.count * o.parts;
    for (int first = blockIdx.x * ROWS; first < n_rows; first += gridDim.x * ROWS) {
        __syncthreads();
        load_before(z, o.y.de, o.y, o.act, o.n_out, first, n_rows);
        __syncthreads();
        pass_back(o, o.x.de, z, wt, first, n_rows);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) dense_reverse(const __grid_constant__ Op o) { dense_back(o); }

// dL of (value, change) pairs: dL/dx, and this block's pieces of dL/dW and dL/db. The bias is one more input, which is 1.
// A thread holds 4 x 4 elements of the gradient; where there are fewer such micro tiles than threads, rows are shared
// out too ("slices"); where there are more, several blocks ("chunks") take the same rows.
template <bool FORCES> __device__ __forceinline__ void dense_gradient(const Op& o) {
    int n_in = o.n_in + (o.b != 0), rows_x = round4(n_in), rows_z = round4(o.n_out);
    real* wt = (real*)shared_bytes;
    real* x = wt + round4(o.n_in * o.n_out);
    real* z = x + rows_x * LD;
    real* x_dot = z + rows_z * LD;
    real* de_z = x_dot + rows_x * LD;
    int chunk = blockIdx.x % o.chunks, block = blockIdx.x / o.chunks;
    int across = rows_z / 4, micro = rows_x / 4 * across;
    int slice = o.chunks > 1 ? 0 : threadIdx.x / micro;
    int mine = o.chunks > 1 ? chunk * THREADS + threadIdx.x : threadIdx.x % micro;
    bool active = slice < o.slices && mine < micro;
    int k0 = mine / across * 4, c0 = mine % across * 4;
    load_weights(wt, o.wt, o.n_in * o.n_out);
    clear_columns(x, o.n_in, rows_x);
    clear_columns(z, o.n_out, rows_z);
    if (FORCES) {
        clear_columns(x_dot, o.n_in, rows_x);
        clear_columns(de_z, o.n_out, rows_z);
    }
    __syncthreads();
    if (o.b)
        for (int k = threadIdx.x; k < ROWS; k += THREADS) x[o.n_in * LD + k] = real(1);
    real acc[4][4] = {};
    int n_rows = *o.count * o.parts;
    for (int first = block * ROWS; first < n_rows; first += o.tiles * ROWS) {
        __syncthreads();
        load_tile(x, o.x.value, o.x.ld, o.n_in, first, n_rows);
        if (FORCES) load_tile(x_dot, o.x.dot, o.x.ld, o.n_in, first, n_rows);
        for (int k = threadIdx.x; k < ROWS * o.n_out; k += THREADS) {
            int row = k / o.n_out, c = k % o.n_out;
            size_t at = (size_t)(first + row) * o.y.ld + c;
            bool there = first + row < n_rows;
            real slope = there ? slope_of(o.y, at, o.act) : real(0), dl = there ? o.y.dl[at] * slope : real(0);
            if (FORCES) {
                real de = there ? o.y.de[at] : real(0);
                de_z[c * LD + row] = de * slope;
                if (there) dl = fused(bend_of(o.y, at, o.act), de, dl);
            }
            z[c * LD + row] = dl;
        }
        __syncthreads();
        if (!o.constant && chunk == 0) pass_back(o, o.x.dl, z, wt, first, n_rows);
        if (!active) continue;
        for (int row = slice * VEC; row < ROWS; row += o.slices * VEC) {
            Vector a[4], b[4];
#pragma unroll
            for (int pass = 0; pass < (FORCES ? 2 : 1); pass++) {
                const real *left = pass ? x_dot : x, *right = pass ? de_z : z;
#pragma unroll
                for (int q = 0; q < 4; q++) {
                    a[q] = *(const Vector*)(left + (k0 + q) * LD + row);
                    b[q] = *(const Vector*)(right + (c0 + q) * LD + row);
                }
#pragma unroll
                for (int q = 0; q < 4; q++)
#pragma unroll
                    for (int r = 0; r < 4; r++)
#pragma unroll
                        for (int s = 0; s < VEC; s++) acc[q][r] = fused(a[q].v[s], b[r].v[s], acc[q][r]);
            }
        }
    }
    if (!active) return;
    real* piece = o.pieces + (size_t)(block * o.slices + slice) * n_in * o.n_out;
    for (int q = 0; q < 4; q++)
        for (int r = 0; r < 4; r++)
            if (k0 + q < n_in && c0 + r < o.n_out) piece[(k0 + q) * o.n_out + c0 + r] = acc[q][r];
}

extern "C" __global__ void __launch_bounds__(THREADS) dense_adjoint(const __grid_constant__ Op o) {
    if (o.forces) dense_gradient<true>(o);
    else dense_gradient<false>(o);
}
