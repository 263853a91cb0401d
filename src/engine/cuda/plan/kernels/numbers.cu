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
// Threads of a block that makes products: four warps, with a quarter of the tile each.
#define MAKERS 128
// A step along the inner dimension. What follows right after one another in memory along it lies so in shared memory, too; all else
// lies along the other dimension. Either way the elements of a warp fall on different banks.
#define STRIDE 16

template <bool DEEP> struct Staged {
    static constexpr int LD = DEEP ? STRIDE + 4 : SIZE + (sizeof(real) == 8 ? 4 : 8);
    // Elements that a thread brings.
    static constexpr int EACH = SIZE * STRIDE / MAKERS;
    static __device__ __forceinline__ int at(int k, int line) { return DEEP ? line * LD + k : k * LD + line; }
    static __device__ __forceinline__ int k_of(int i) { return DEEP ? i % STRIDE : i / SIZE; }
    static __device__ __forceinline__ int line_of(int i) { return DEEP ? i / STRIDE : i % SIZE; }
    // `get(line, k)` is an element, of so many lines and so deep a product.
    template <typename Get> static __device__ __forceinline__ void fetch(real (&kept)[EACH], int lines, int left, Get get) {
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            int i = threadIdx.x + e * MAKERS, k = k_of(i), line = line_of(i);
            kept[e] = line < lines && k < left ? get(line, k) : real(0);
        }
    }
    static __device__ __forceinline__ void put(real* to, const real (&kept)[EACH]) {
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            int i = threadIdx.x + e * MAKERS;
            to[at(k_of(i), line_of(i))] = kept[e];
        }
    }
};

// Shared memory of a tile: two steps of both factors.
#define STAGE (SIZE * (STRIDE + 4))
static_assert(Staged<true>::LD * SIZE <= STAGE && Staged<false>::LD * STRIDE <= STAGE, "a step of a factor has room");
struct Stages { real left[2][STAGE], right[2][STAGE]; };

// end(r, c, sum over k of a(r, k) b(k, c)) for r < m, c < n, a tile of SIZE by SIZE at most, by MAKERS threads on tensor cores (AFrag, BFrag and
// mma are those of product.cu). A_DEEP, B_DEEP: what lies side by side in memory has neighbouring k. The next step is fetched while
// this one is multiplied.
template <bool A_DEEP, bool B_DEEP, typename A, typename B, typename End>
__device__ __forceinline__ void tile_product(Stages& stages, int m, int n, int depth, A a, B b, End end) {
    typedef Staged<A_DEEP> Left;
    typedef Staged<B_DEEP> Right;
    constexpr int K = PRODUCTS == 16 ? 16 : 8;
    int lane = threadIdx.x % 32, down = threadIdx.x / 64 * 32, across = threadIdx.x / 32 % 2 * 32;
    // Quarters of which nothing is wanted are not multiplied.
    bool works = down < m && across < n;
    real sum[2][4][4] = {}, kept_a[Left::EACH], kept_b[Right::EACH];
    auto fetch = [&](int k0) {
        Left::fetch(kept_a, m, depth - k0, [&](int line, int k) { return a(line, k0 + k); });
        Right::fetch(kept_b, n, depth - k0, [&](int line, int k) { return b(k0 + k, line); });
    };
    fetch(0);
    // What was left of the tile before is read by now.
    __syncthreads();
    for (int k0 = 0, half = 0; k0 < depth; k0 += STRIDE, half ^= 1) {
        real *left = stages.left[half], *right = stages.right[half];
        Left::put(left, kept_a), Right::put(right, kept_b);
        __syncthreads();
        if (k0 + STRIDE < depth) fetch(k0 + STRIDE);
        if (!works) continue;
#pragma unroll
        for (int k = 0; k < STRIDE; k += K) {
            AFrag x[2];
#pragma unroll
            for (int i = 0; i < 2; i++) {
#pragma unroll
                for (int e = 0; e < K / 2; e++)
                    x[i].x[e] = left[Left::at(k + lane % 4 + e / 2 * 4, down + 16 * i + lane / 4 + e % 2 * 8)];
                split(x[i]);
            }
#pragma unroll
            for (int j = 0; j < 4; j++) {
                BFrag y;
#pragma unroll
                for (int e = 0; e < K / 4; e++) y.x[e] = right[Right::at(k + lane % 4 + e * 4, across + 8 * j + lane / 4)];
                split(y);
#pragma unroll
                for (int i = 0; i < 2; i++) mma(sum[i][j], x[i], y);
            }
        }
    }
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                int r = down + 16 * i + lane / 4 + e / 2 * 8, c = across + 8 * j + lane % 4 * 2 + e % 2;
                if (r < m && c < n) end(r, c, sum[i][j][e]);
            }
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
