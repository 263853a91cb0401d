// What all kernels share. One program is made of all files of this folder, in the order of program.rs, for one
// number type: `real` is float or double; PRODUCTS says how products of floats are made.
//
// Structures that the host shares are declared in layout.rs, MAX_LAYERS and MAX_TASKS too.

#define FULL_WARP 0xffffffffu

// The batch of this step. `begin` writes its counts: what follows right after that waits before it asks.
__device__ __forceinline__ int rows_of(const Batch& b) { return b.now ? b.now->n_rows : b.n_rows; }
__device__ __forceinline__ int frames_of(const Batch& b) { return b.now ? b.now->n_frames : b.n_frames; }
__device__ __forceinline__ int atom_stride_of(const Batch& b) { return b.now ? b.now->atom_stride : b.atom_stride; }
__device__ __forceinline__ int pair_stride_of(const Batch& b) { return b.now ? b.now->pair_stride : b.pair_stride; }
// Rows before those of a type in an array with `times` rows for each input; where batches do not differ, types have their own.
__device__ __forceinline__ size_t rows_before(const Batch& b, int center, int times) {
    return b.now ? (size_t)times * b.group_row[center] : 0;
}
__device__ __forceinline__ double real_atoms_of(const Batch& b) { return b.now ? b.now->n_real : b.n_real; }

__device__ __forceinline__ float fused(float a, float b, float c) { return fmaf(a, b, c); }
__device__ __forceinline__ double fused(double a, double b, double c) { return fma(a, b, c); }
__device__ __forceinline__ float root(float x) { return sqrtf(x); }
__device__ __forceinline__ double root(double x) { return sqrt(x); }
__device__ __forceinline__ float hyperbolic(float x) { return tanhf(x); }

// tanh by 2^n and a polynomial, without branches: the formula of engine/cpu/real.rs.
__device__ __forceinline__ double hyperbolic(double x) {
    double a = fabs(x) > 20.0 ? 20.0 : fabs(x), y = a + a;
    double n = rint(y * 1.4426950408889634);
    double r = fma(n, -6.931471803691238e-1, y);
    r = fma(n, -1.9082149292705877e-10, r);
    double q = 1.0 / 6227020800.0;
    q = fma(q, r, 1.0 / 479001600.0);
    q = fma(q, r, 1.0 / 39916800.0);
    q = fma(q, r, 1.0 / 3628800.0);
    q = fma(q, r, 1.0 / 362880.0);
    q = fma(q, r, 1.0 / 40320.0);
    q = fma(q, r, 1.0 / 5040.0);
    q = fma(q, r, 1.0 / 720.0);
    q = fma(q, r, 1.0 / 120.0);
    q = fma(q, r, 1.0 / 24.0);
    q = fma(q, r, 1.0 / 6.0);
    q = fma(q, r, 0.5);
    double p = fma(q * r, r, r);
    double t = __longlong_as_double((long long)(1023 + (int)n) << 52);
    double e = fma(t, p, t - 1.0);
    return copysign(e / (e + 2.0), x);
}

// Copies n numbers, the threads of a block side by side, with N loads of each under way at a time. (An unrolled loop
// would do what is left over one by one.)
template <int N, typename F> __device__ __forceinline__ void copy_many(F* to, const F* from, int n) {
    for (int i0 = threadIdx.x; i0 < n; i0 += N * blockDim.x) {
        F kept[N];
#pragma unroll
        for (int k = 0; k < N; k++) kept[k] = from[min(i0 + k * (int)blockDim.x, n - 1)];
#pragma unroll
        for (int k = 0; k < N; k++)
            if (i0 + k * (int)blockDim.x < n) to[i0 + k * blockDim.x] = kept[k];
    }
}

// A block has eight warps, which share `each` rows (1, 2, 4 or 8) of a batch evenly; see Share in core.rs.
#define WARPS 8
struct Share {
    int row, slot;        // row of the batch, and which of the block's it is
    int warps, warp;      // warps that share the row, and which of them this is
    int threads, thread;
    __device__ __forceinline__ Share(int each)
        : slot(threadIdx.x / 32 / (WARPS / each)), warps(WARPS / each), warp(threadIdx.x / 32 % warps) {
        row = blockIdx.x * each + slot;
        threads = 32 * warps, thread = threadIdx.x % threads;
    }
    // Waits for the warps of the same row.
    __device__ __forceinline__ void sync() const {
        if (warps == 1) __syncwarp();
        else barrier(1 + slot, threads);
    }
};

// The sum over a warp, the same on every lane, always in the same order.
template <typename F> __device__ __forceinline__ F warp_sum(F x) {
    for (int step = 16; step > 0; step >>= 1) x += __shfl_xor_sync(FULL_WARP, x, step);
    return x;
}

// The sum over a block; the result is on every thread. `scratch` holds a number for each warp.
__device__ __forceinline__ double block_sum(double x, double* scratch) {
    x = warp_sum(x);
    __syncthreads();
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = x;
    __syncthreads();
    double sum = 0;
    for (int w = 0; w < (blockDim.x + 31) / 32; w++) sum += scratch[w];
    return sum;
}

// One step of Adam for one parameter: optim/adam.rs.
__device__ __forceinline__ void adam_step(double& p, double& m, double& s, double g, double scale, const Turn& rule) {
    p -= rule.shrink * p;
    if (rule.count != 1.0) g /= rule.count;
    if (scale < 1.0) g *= scale;
    g += rule.pull * p;
    m += (1.0 - rule.beta1) * (g - m);
    s = rule.beta2 * s + (1.0 - rule.beta2) * g * g;
    p -= rule.rate * m / (sqrt(s) * rule.correction + 1e-8);
}

// Activation functions: the numbers of layout.rs.
enum { TANH, RELU, RELU6, SOFTPLUS, SIGMOID, GELU, SILU, SILUT, LINEAR };

template <typename F> struct Jet { F f, d, dd; };

template <typename F> __device__ __forceinline__ Jet<F> tanh_jet(F x) {
    F t = hyperbolic(x), d = F(1) - t * t;
    return {t, d, F(-2) * t * d};
}

template <typename F> __device__ __forceinline__ F sigmoid(F x) { return F(1) / (F(1) + (F)exp(-(double)x)); }

template <typename F> __device__ __forceinline__ Jet<F> silu_jet(F x) {
    F s = sigmoid(x), d = s * (F(1) - s);
    return {x * s, s + x * d, F(2) * d + x * d * (F(1) - F(2) * s)};
}

// f, f', f'' as in engine/activation.rs.
template <typename F> __device__ __noinline__ Jet<F> other_jet(int activation, F x, F threshold) {
    switch (activation) {
        case RELU: return {x > F(0) ? x : F(0), x > F(0) ? F(1) : F(0), F(0)};
        case RELU6: {
            F f = x < F(0) ? F(0) : x > F(6) ? F(6) : x;
            return {f, x > F(0) && x < F(6) ? F(1) : F(0), F(0)};
        }
        case SOFTPLUS: {
            F s = sigmoid(x);
            return {(x > F(0) ? x : F(0)) + (F)log1p(exp(-fabs((double)x))), s, s * (F(1) - s)};
        }
        case SIGMOID: {
            F s = sigmoid(x), d = s * (F(1) - s);
            return {s, d, d * (F(1) - F(2) * s)};
        }
        case GELU: {
            const F c = F(0.7978845608028654);
            F u1 = c * (F(1) + F(3 * 0.044715) * x * x), u2 = c * F(6 * 0.044715) * x;
            Jet<F> t = tanh_jet(c * (x + F(0.044715) * x * x * x));
            F t1 = t.d * u1, t2 = t.dd * u1 * u1 + t.d * u2;
            return {F(0.5) * x * (F(1) + t.f), F(0.5) * (F(1) + t.f) + F(0.5) * x * t1, t1 + F(0.5) * x * t2};
        }
        case SILU: return silu_jet(x);
        case SILUT: {
            if (x < threshold) return silu_jet(x);
            Jet<F> at = silu_jet(threshold);
            Jet<F> t = tanh_jet(at.d * (x - threshold));
            return {t.f + at.f, at.d * t.d, at.d * at.d * t.dd};
        }
        default: return {x, F(1), F(0)};
    }
}

template <typename F> __device__ __forceinline__ Jet<F> jet(int activation, F x, F threshold) {
    return activation == TANH ? tanh_jet(x) : other_jet(activation, x, threshold);
}
