// What the kernels of the plan compute with: numbers, and numbers with their change along a direction.
//
// A matrix has planes: its values, then (in the second pass) their changes `dot`. Its adjoints have as many: dE of the value, then dL of
// it. A reverse kernel is written once: with numbers it is the adjoint of the energy; with numbers that have a change it gives
// both adjoints, since the change of dE/dx = J(x)^T dE/dy along the direction, plus J^T dL/dy, is dL/dx (engine/reference/tape.rs).

struct Dual { real v, d; };

__device__ __forceinline__ Dual operator+(Dual a, Dual b) { return {a.v + b.v, a.d + b.d}; }
__device__ __forceinline__ Dual operator-(Dual a, Dual b) { return {a.v - b.v, a.d - b.d}; }
__device__ __forceinline__ Dual operator*(Dual a, Dual b) { return {a.v * b.v, a.v * b.d + a.d * b.v}; }
__device__ __forceinline__ Dual operator*(real a, Dual b) { return {a * b.v, a * b.d}; }
__device__ __forceinline__ Dual operator+(Dual a, real b) { return {a.v + b, a.d}; }

template <int P> struct Planes { typedef real Number; };
template <> struct Planes<2> { typedef Dual Number; };

__device__ __forceinline__ real value_of(real x) { return x; }
__device__ __forceinline__ real value_of(Dual x) { return x.v; }
// The last plane: of an adjoint, what goes into the gradient of the parameters.
__device__ __forceinline__ real last_of(real x) { return x; }
__device__ __forceinline__ real last_of(Dual x) { return x.d; }

template <int P> __device__ __forceinline__ typename Planes<P>::Number at(const real* x, u64 plane, size_t i);
template <> __device__ __forceinline__ real at<1>(const real* x, u64 plane, size_t i) { return x[i]; }
template <> __device__ __forceinline__ Dual at<2>(const real* x, u64 plane, size_t i) { return {x[i], x[plane + i]}; }

__device__ __forceinline__ void put_at(real* x, u64 plane, size_t i, real value) { x[i] = value; }
__device__ __forceinline__ void put_at(real* x, u64 plane, size_t i, Dual value) { x[i] = value.v, x[plane + i] = value.d; }
__device__ __forceinline__ void add_at(real* x, u64 plane, size_t i, real value) { x[i] += value; }
__device__ __forceinline__ void add_at(real* x, u64 plane, size_t i, Dual value) { x[i] += value.v, x[plane + i] += value.d; }

__device__ __forceinline__ void clear(real& x) { x = real(0); }
__device__ __forceinline__ void clear(Dual& x) { x.v = x.d = real(0); }

// f(x) and f'(x) where the jet is that of f at the value of x.
__device__ __forceinline__ real value_at(const Jet<real>& j, real x) { return j.f; }
__device__ __forceinline__ Dual value_at(const Jet<real>& j, Dual x) { return {j.f, j.d * x.d}; }
__device__ __forceinline__ real slope_at(const Jet<real>& j, real x) { return j.d; }
__device__ __forceinline__ Dual slope_at(const Jet<real>& j, Dual x) { return {j.d, j.dd * x.d}; }

template <typename N> __device__ __forceinline__ N inverse(N x) {
    real y = real(1) / value_of(x);
    return value_at(Jet<real>{y, -y * y, real(0)}, x);
}
// x^(-1/2)
template <typename N> __device__ __forceinline__ N inverse_root(N x) {
    real y = real(1) / root(value_of(x));
    return value_at(Jet<real>{y, real(-0.5) * y / value_of(x), real(0)}, x);
}
template <typename N> __device__ __forceinline__ N power_of_e(N x) {
    real y = (real)exp((double)value_of(x));
    return value_at(Jet<real>{y, y, real(0)}, x);
}

// The sum over a warp, on every lane, always in the same order.
__device__ __forceinline__ Dual sum_of_warp(Dual x) { return {warp_sum(x.v), warp_sum(x.d)}; }
__device__ __forceinline__ real sum_of_warp(real x) { return warp_sum(x); }

// Rows of a kind, group after group: `rows[g]` is the first of group g, the last number how many there are.
__device__ __forceinline__ int rows_of(const Op& op) { return (int)op.rows[op.groups]; }

// A warp goes over the rows in turn.
#define WARP_ROWS(row, n) \
    for (int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32, row##_n = (n); row < row##_n; row += gridDim.x * blockDim.x / 32)
// A thread goes over the elements in turn.
#define ELEMENTS(i, n) \
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x, i##_n = (n); i < i##_n; i += (size_t)gridDim.x * blockDim.x)

// ---- Products of matrices.

#define SIZE 64
#define DEPTH 16

// end(r, c, sum over k of a(r, k) b(k, c)) for r < m, c < n, a tile of SIZE by SIZE at most, by 256 threads. A_DEEP, B_DEEP: what
// lies side by side in memory has neighbouring k.
template <bool A_DEEP, bool B_DEEP, typename A, typename B, typename End>
__device__ __forceinline__ void tile_product(int m, int n, int depth, A a, B b, End end) {
    __shared__ real left[DEPTH][SIZE + 4], right[DEPTH][SIZE + 4];
    int down = threadIdx.x / 16 * 4, across = threadIdx.x % 16 * 4;
    real sum[4][4] = {};
    for (int k0 = 0; k0 < depth; k0 += DEPTH) {
        for (int i = threadIdx.x; i < DEPTH * SIZE; i += 256) {
            int k = A_DEEP ? i % DEPTH : i / SIZE, r = A_DEEP ? i / DEPTH : i % SIZE;
            left[k][r] = r < m && k0 + k < depth ? a(r, k0 + k) : real(0);
            k = B_DEEP ? i % DEPTH : i / SIZE, r = B_DEEP ? i / DEPTH : i % SIZE;
            right[k][r] = r < n && k0 + k < depth ? b(k0 + k, r) : real(0);
        }
        __syncthreads();
#pragma unroll
        for (int k = 0; k < DEPTH; k++) {
            real x[4], y[4];
#pragma unroll
            for (int i = 0; i < 4; i++) x[i] = left[k][down + i], y[i] = right[k][across + i];
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int j = 0; j < 4; j++) sum[i][j] = fused(x[i], y[j], sum[i][j]);
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
            if (down + i < m && across + j < n) end(down + i, across + j, sum[i][j]);
}

__device__ __forceinline__ int tiles_of(int n) { return (n + SIZE - 1) / SIZE; }

// Some rows of one group, of one plane.
struct RowTile {
    int group, first, n, plane, column;
    bool is_there;
    // Number `t` of the tiles of all planes, groups and columns.
    __device__ __forceinline__ RowTile(const Op& op, int t, int planes, int columns) : group(0) {
        int across = tiles_of(columns);
        column = t % across * SIZE, t /= across;
        plane = t % planes, t /= planes;
        int tiles = 0;
        while (group < op.groups && t >= (tiles = tiles_of((int)(op.rows[group + 1] - op.rows[group])))) t -= tiles, group++;
        is_there = group < op.groups;
        if (!is_there) return;
        first = (int)op.rows[group] + t * SIZE;
        n = min(SIZE, (int)op.rows[group + 1] - first);
    }
};
