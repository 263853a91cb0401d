// What all kernels of PiNet share. One program is made of all files of this folder, in the order of program.rs, for one
// number type: `real` is float or double. Kernels read how many structures, atoms and pairs a batch has from the turn,
// so that one recorded step serves all batches of a size class.
//
// Structures that the host shares are declared in layout.rs.

#define FULL_WARP 0xffffffffu
// Threads of the kernels that work tile by tile.
#define THREADS 128
// Rows of a tile, and the stride of its columns in shared memory.
#define ROWS (sizeof(real) == 4 ? 64 : 32)
#define LD (ROWS + 4)
// Numbers of a vector of 16 bytes.
#define VEC (16 / (int)sizeof(real))
// Kinds of errors: E, E_PER_ATOM, F, S, Q, D, D_PER_ATOM; each has a sum of absolutes, of squares, and a loss.
#define KINDS 7

#ifndef EMULATED  // tests/fake/emulate.h has its own
extern __shared__ __align__(16) unsigned char shared_bytes[];
#endif

// Terms that a step can leave out: Turn::dropped.
enum { DROP_ENERGY = 1, DROP_FORCE = 2, DROP_STRESS = 4, DROP_REGULARISER = 8 };

// A structure as it lies on the device: doubles, then reals, then whole numbers; layout.rs writes the same.
#define HEAD 16
struct Structure {
    const double *head, *coord, *force, *force_weight, *d;
    const real *e, *slope, *direction[2];
    const u32 *column, *start, *start_j, *i, *j, *by_j;

    __device__ __forceinline__ Structure(const Entry& s, int n_basis, int n_sizes) {
        size_t n = s.n_atoms, p = s.n_pairs;
        head = (const double*)s.at;
        coord = head + HEAD;
        force = coord + 3 * n;
        force_weight = force + 3 * n;
        d = force_weight + 3 * n;
        e = (const real*)(d + 3 * p);
        slope = e + p * n_basis;
        direction[0] = slope + p * n_basis;
        direction[1] = direction[0] + (n_sizes > 0 ? 3 * p : 0);
        column = (const u32*)(direction[1] + (n_sizes > 1 ? 5 * p : 0));
        start = column + n;
        start_j = start + n + 1;
        i = start_j + n + 1;
        j = i + p;
        by_j = j + p;
    }
};
// Places in the head.
enum { E_LABEL, E_WEIGHT, VOLUME, D_LABEL, D_WEIGHT, S_LABEL };

struct __align__(16) Vector { real v[VEC]; };

__device__ __forceinline__ float fused(float a, float b, float c) { return fmaf(a, b, c); }
__device__ __forceinline__ double fused(double a, double b, double c) { return fma(a, b, c); }

// The sum over a warp, the same on every lane, always in the same order.
__device__ __forceinline__ double warp_sum(double x) {
    for (int step = 16; step > 0; step >>= 1) x += __shfl_xor_sync(FULL_WARP, x, step);
    return x;
}

// The sum over a block, on every thread. `scratch` holds a number for each warp.
__device__ __forceinline__ double block_sum(double x, double* scratch) {
    x = warp_sum(x);
    __syncthreads();
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = x;
    __syncthreads();
    double sum = 0;
    for (int w = 0; w < (int)blockDim.x / 32; w++) sum += scratch[w];
    return sum;
}

// Activations: the numbers of layout.rs.
enum { TANH, RELU, SOFTPLUS, SIGMOID, SWISH, ELU, SELU, GELU, SOFTSIGN, EXPONENTIAL, MISH, LINEAR, HARD_SIGMOID };

struct Jet { double f, d, dd; };

__device__ __forceinline__ Jet sigmoid_jet(double x) {
    double s = 1 / (1 + exp(-x)), d = s * (1 - s);
    return {s, d, d * (1 - 2 * s)};
}

__device__ __forceinline__ Jet elu_jet(double x, double alpha, double scale) {
    if (x > 0) return {scale * x, scale, 0};
    double e = scale * alpha * exp(x);
    return {scale * alpha * expm1(x), e, e};
}

// f, f', f'' as in engine/pinet/activation.rs. Activations but tanh are computed in double precision there too.
__device__ __noinline__ Jet other_jet(int act, double x) {
    switch (act) {
        case RELU: return {x > 0 ? x : 0, x > 0 ? 1.0 : 0.0, 0};
        case SOFTPLUS: {
            Jet s = sigmoid_jet(x);
            return {(x > 0 ? x : 0) + log1p(exp(-fabs(x))), s.f, s.d};
        }
        case SIGMOID: return sigmoid_jet(x);
        case SWISH: {
            Jet s = sigmoid_jet(x);
            return {x * s.f, s.f + x * s.d, 2 * s.d + x * s.dd};
        }
        case ELU: return elu_jet(x, 1, 1);
        case SELU: return elu_jet(x, 1.6732632423543772, 1.0507009873554805);
        case GELU: {
            const double root_two = (double)1.41421356237309504880f;
            double y = x / root_two, c = 0.5 * (1 + erf(y));
            double density = 0.5 * 1.1283791670955126 * exp(-y * y) / root_two;
            return {x * c, c + x * density, 2 * density * (1 - y * y)};
        }
        case SOFTSIGN: {
            double u = 1 / (1 + fabs(x)), sign = x > 0 ? 1 : x < 0 ? -1 : 0;
            return {x * u, u * u, -2 * u * u * u * sign};
        }
        case EXPONENTIAL: {
            double e = exp(x);
            return {e, e, e};
        }
        case MISH: {
            Jet s = sigmoid_jet(x);
            double softplus = (x > 0 ? x : 0) + log1p(exp(-fabs(x)));
            double t = tanh(softplus), dt = 1 - t * t, ddt = -2 * t * dt;
            double slope = dt * s.f, curve = ddt * s.f * s.f + dt * s.d;
            return {x * t, t + x * slope, 2 * slope + x * curve};
        }
        case HARD_SIGMOID:
            if (fabs(x) > 2.5) return {x > 0 ? 1.0 : 0.0, 0, 0};
            return {0.2 * x + 0.5, 0.2, 0};
        default: return {x, 1, 0};
    }
}

__device__ __forceinline__ float hyperbolic(float x) { return tanhf(x); }
__device__ __forceinline__ double hyperbolic(double x) { return tanh(x); }

// Writes act(z), and its derivatives where they do not follow from the value.
__device__ __forceinline__ void activate(const Mat& y, size_t at, int act, real z) {
    if (act == TANH) {
        y.value[at] = hyperbolic(z);
    } else if (act == LINEAR) {
        y.value[at] = z;
    } else {
        Jet jet = other_jet(act, z);
        y.value[at] = jet.f;
        y.slope[at] = jet.d;
        y.curve[at] = jet.dd;
    }
}

// Writes the change of act(z) from that of z.
__device__ __forceinline__ void activate_dot(const Mat& y, size_t at, int act, real z_dot) {
    if (act == TANH) {
        real f = y.value[at];
        y.dot[at] = z_dot * (real(1) - f * f);
    } else if (act == LINEAR) {
        y.dot[at] = z_dot;
    } else {
        y.bend[at] = y.curve[at] * z_dot;
        y.dot[at] = y.slope[at] * z_dot;
    }
}

// act'
__device__ __forceinline__ real slope_of(const Mat& y, size_t at, int act) {
    if (act == TANH) {
        real f = y.value[at];
        return real(1) - f * f;
    }
    return act == LINEAR ? real(1) : y.slope[at];
}

// act'' times the change of its argument.
__device__ __forceinline__ real bend_of(const Mat& y, size_t at, int act) {
    if (act == TANH) return real(-2) * y.value[at] * y.dot[at];
    return act == LINEAR ? real(0) : y.bend[at];
}
