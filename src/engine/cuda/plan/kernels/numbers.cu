// What the kernels of the plan compute with: numbers, and numbers with their change along a direction.
//
// A matrix has planes: its values, then their changes `dot`. Its adjoints have as many: dE of the value, then dL of it. The first pass
// (one plane) makes the first of each, the second pass (two planes) finds them there and makes the other one. A reverse kernel is
// written once: with numbers it is the adjoint of the energy; with numbers that have a change it is that of the loss, since the
// change of dE/dx = J(x)^T dE/dy along the direction, plus J^T dL/dy, is dL/dx (engine/reference/tape.rs).

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

// The plane that a pass makes.
__device__ __forceinline__ void put_at(real* x, u64 plane, size_t i, real value) { x[i] = value; }
__device__ __forceinline__ void put_at(real* x, u64 plane, size_t i, Dual value) { x[plane + i] = value.d; }
__device__ __forceinline__ void add_at(real* x, u64 plane, size_t i, real value) { x[i] += value; }
__device__ __forceinline__ void add_at(real* x, u64 plane, size_t i, Dual value) { x[plane + i] += value.d; }

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
// A step along the inner dimension, as deep as an instruction that multiplies, and the steps that are in shared memory or on their way.
#define STRIDE 8
#define STEPS 4
static_assert(PRODUCTS != 16, "a step is too short for bf16");

// A factor of a product: an element of line (row of the left one, column of the right one) and k of one half of the inner dimension is at
// `at[half]`, with `ld` numbers from one k (or, where k lie side by side, one line) to the next. Where there are changes, the inner dimension has two halves: the change of the left factor meets the
// right one's value, and the other way round.
struct Factor {
    const real* at[2];
    size_t ld;
    int lines;
};

// How a step of a factor lies in shared memory: DEEP where neighbouring k lie side by side in memory, which they then do here, too; else
// lines do. Either way the elements of a warp fall on different banks.
template <bool DEEP> struct Staged {
    static constexpr int LD = DEEP ? STRIDE + 4 : SIZE + (sizeof(real) == 8 ? 4 : 8);
    static __device__ __forceinline__ int at(int k, int line) { return DEEP ? line * LD + k : k * LD + line; }
    static __device__ __forceinline__ void fetch(real* to, const Factor& from, int half, int k0, int depth) {
#pragma unroll
        for (int e = 0; e < SIZE * STRIDE / MAKERS; e++) {
            int i = threadIdx.x + e * MAKERS, k = DEEP ? i % STRIDE : i / SIZE, line = DEEP ? i / STRIDE : i % SIZE;
            // What lines beyond the last hold ends in elements that nobody wants.
            if (line >= from.lines) continue;
            bool is_there = k0 + k < depth;
            const real* x = from.at[half] + (DEEP ? line * from.ld + k0 + k : (k0 + k) * from.ld + line);
            copy_number(to + at(k, line), is_there ? x : from.at[half], is_there);
        }
    }
};

// Shared memory of a tile.
#define STAGE (SIZE * (STRIDE + 4))
static_assert(Staged<true>::LD * SIZE <= STAGE && Staged<false>::LD * STRIDE <= STAGE, "a step of a factor has room");
struct Stages { real left[STEPS][STAGE], right[STEPS][STAGE]; };

// end(r, c, sum over halves and k of a(r, k) b(k, c)), a tile of SIZE by SIZE at most, by MAKERS threads on tensor cores (AFrag, BFrag and
// mma are those of product.cu). `seen(right, half)` is shown every step of the right factor.
template <bool A_DEEP, bool B_DEEP, typename Seen, typename End>
__device__ __forceinline__ void tile_product(Stages& stages, const Factor& a, const Factor& b, int halves, int depth, Seen seen, End end) {
    typedef Staged<A_DEEP> Left;
    typedef Staged<B_DEEP> Right;
    // Every warp has a quarter of the tile, or of the half or quarter of it in which there is something.
    bool low = a.lines <= SIZE / 2, slim = b.lines <= SIZE / 2;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, n_down = slim ? 1 : 2, n_across = low ? 2 : 4;
    int down = (low == slim ? warp / 2 : slim ? warp : 0) * 16 * n_down, across = (low == slim ? warp % 2 : slim ? 0 : warp) * 8 * n_across;
    bool works = down < a.lines && across < b.lines;
    int each = (depth + STRIDE - 1) / STRIDE, steps = halves * each;
    real sum[2][4][4] = {};
    auto fetch = [&](int step) {
        int half = step >= each, k0 = (step - half * each) * STRIDE;
        Left::fetch(stages.left[step % STEPS], a, half, k0, depth);
        Right::fetch(stages.right[step % STEPS], b, half, k0, depth);
    };
    // What was left of the tile before is read by now.
    __syncthreads();
    for (int step = 0; step < STEPS - 1; step++) {
        if (step < steps) fetch(step);
        copies_together();
    }
    for (int step = 0; step < steps; step++) {
        copies_wait<STEPS - 2>();
        __syncthreads();
        if (step + STEPS - 1 < steps) fetch(step + STEPS - 1);
        copies_together();
        const real *left = stages.left[step % STEPS], *right = stages.right[step % STEPS];
        seen(right, step >= each);
        if (!works) continue;
        AFrag x[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            if (i >= n_down) continue;
#pragma unroll
            for (int e = 0; e < 4; e++) x[i].x[e] = left[Left::at(lane % 4 + e / 2 * 4, down + 16 * i + lane / 4 + e % 2 * 8)];
            split(x[i]);
        }
#pragma unroll
        for (int j = 0; j < 4; j++) {
            if (j >= n_across) continue;
            BFrag y;
#pragma unroll
            for (int e = 0; e < 2; e++) y.x[e] = right[Right::at(lane % 4 + e * 4, across + 8 * j + lane / 4)];
            split(y);
#pragma unroll
            for (int i = 0; i < 2; i++)
                if (i < n_down) mma(sum[i][j], x[i], y);
        }
    }
    copies_wait<0>();
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                int r = down + 16 * i + lane / 4 + e / 2 * 8, c = across + 8 * j + lane % 4 * 2 + e % 2;
                if (i < n_down && j < n_across && r < a.lines && c < b.lines) end(r, c, sum[i][j][e]);
            }
}
template <bool A_DEEP, bool B_DEEP, typename End>
__device__ __forceinline__ void tile_product(Stages& stages, const Factor& a, const Factor& b, int halves, int depth, End end) {
    tile_product<A_DEEP, B_DEEP>(stages, a, b, halves, depth, [](const real*, int) {}, end);
}

__device__ __forceinline__ int tiles_of(int n) { return (n + SIZE - 1) / SIZE; }

// Some rows of one group.
struct RowTile {
    int group, first, n, column;
    bool is_there;
    // Number `t` of the tiles of all groups and columns.
    __device__ __forceinline__ RowTile(const Op& op, int t, int columns) : group(0) {
        int across = tiles_of(columns);
        column = t % across * SIZE, t /= across;
        int tiles = 0;
        while (group < op.groups && t >= (tiles = tiles_of((int)(op.rows[group + 1] - op.rows[group])))) t -= tiles, group++;
        is_there = group < op.groups;
        if (!is_there) return;
        first = (int)op.rows[group] + t * SIZE;
        n = min(SIZE, (int)op.rows[group + 1] - first);
    }
};
