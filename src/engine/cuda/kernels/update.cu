// From pieces of gradients to the next parameters: engine/cpu/fitting.rs (sums over rows), optim/adam.rs.

// Sums over the rows of one layer of one group: bias and time step, or the output layer.
struct Columns {
    const real *dl_z, *dl_y, *f, *d, *de_y, *z_dot;
    const real *x, *x_dot, *dl_e;  // output layer: x not null
    double *b, *t;                 // [chunks, stride] pieces; null: not wanted
    int rows, cols, ld, ld_de_y, rows_each, first_block, activation, unused;
    u64 stride;
};

// One matrix or vector of the parameters.
struct View {
    u64 flat;                      // where it starts in the flat vector
    const void* source;            // pieces of the gradient, [n_pieces][rows, ld]
    u64 stride;                    // from one piece to the next
    real* copy;                    // where the nets read it; null: from the flat vector
    int rows, cols, ld, n_pieces;
    int is_double, trainable, copy_ld, first_block;
};

static_assert(sizeof(Columns) == COLUMNS_BYTES, "Columns differs from layout.rs");
static_assert(sizeof(View) == VIEW_BYTES, "View differs from layout.rs");

// Elements of a view that one block works on.
#define PER_BLOCK 1024

extern "C" __global__ void __launch_bounds__(256) sum_columns(const Columns* tasks, int n_tasks) {
    int which = 0;
    while (which + 1 < n_tasks && (int)blockIdx.x >= tasks[which + 1].first_block) which++;
    const Columns c = tasks[which];
    int chunk = blockIdx.x - c.first_block;
    int first = chunk * c.rows_each, end = min(c.rows, first + c.rows_each);
    for (int o = threadIdx.x; o < c.cols; o += blockDim.x) {
        double b = 0, t = 0;
        if (c.x) {
            // e = x w + b has the adjoint dl_e, e_dot = x_dot w the adjoint 1.
#pragma unroll 4
            for (int r = first; r < end; r++) {
                size_t at = (size_t)r * c.ld + o;
                t += (double)c.dl_e[r] * (double)c.x[at] + (double)c.x_dot[at];
                b += (double)c.dl_e[r];
            }
            c.t[chunk * c.stride + o] = t;
            if (c.b && o == 0) c.b[chunk * c.stride] = b;
            continue;
        }
#pragma unroll 4
        for (int r = first; r < end; r++) {
            size_t at = (size_t)r * c.ld + o;
            b += (double)c.dl_z[at];
            if (c.t) {
                real f = c.f[at], d = c.activation == TANH ? real(1) - f * f : c.d[at];
                t += (double)(c.dl_y[at] * f + c.de_y[(size_t)r * c.ld_de_y + o] * d * c.z_dot[at]);
            }
        }
        if (c.b) c.b[chunk * c.stride + o] = b;
        if (c.t) c.t[chunk * c.stride + o] = t;
    }
}

__device__ __forceinline__ const View& view_of_block(const View* views, int n_views) {
    int low = 0, high = n_views - 1;
    while (low < high) {
        int middle = (low + high + 1) / 2;
        if ((int)blockIdx.x >= views[middle].first_block) low = middle;
        else high = middle - 1;
    }
    return views[low];
}

// Element i of a view's gradient, piece after piece.
__device__ __forceinline__ double gradient_of(const View& v, int i) {
    size_t at = (size_t)(i / v.cols) * v.ld + i % v.cols;
    double sum = 0;
    for (int p = 0; p < v.n_pieces; p++)
        sum += v.is_double ? ((const double*)v.source)[p * v.stride + at]
                           : (double)((const real*)v.source)[p * v.stride + at];
    return sum;
}

// The gradient of this batch, piece after piece, into the flat vector or added to it; the wish to stop after it.
extern "C" __global__ void __launch_bounds__(256) reduce(double* grad, const View* views, int n_views, u64 n_params,
                                                         const Turn* turn) {
    const View v = view_of_block(views, n_views);
    int first = (blockIdx.x - v.first_block) * PER_BLOCK, size = v.rows * v.cols;
#pragma unroll
    for (int k = 0; k < PER_BLOCK / 256; k++) {
        int i = first + k * 256 + threadIdx.x;
        if (i >= size) break;
        double sum = gradient_of(v, i);
        grad[v.flat + i] = turn->add ? grad[v.flat + i] + sum : sum;
    }
    if (blockIdx.x == 0 && threadIdx.x == 0 && !turn->add) grad[n_params] = turn->stop;
}

// Sums of squares of the mean gradient, one for each block.
extern "C" __global__ void __launch_bounds__(256) gradient_norm(double* squares, const double* grad, u64 n_params, const Turn* turn) {
    __shared__ double scratch[8];
    double sum = 0;
    u64 first = (u64)blockIdx.x * PER_BLOCK;
    for (int k = 0; k < PER_BLOCK / 256; k++) {
        u64 i = first + k * 256 + threadIdx.x;
        double g = i < n_params ? grad[i] / turn->count : 0.0;
        sum += g * g;
    }
    sum = block_sum(sum, scratch);
    if (threadIdx.x == 0) squares[blockIdx.x] = sum;
}

// One update, and the copies that the nets read. `n_squares` 0: the norm is not known and not needed. `moves`: 0 copies
// only, 1 takes the gradient from the flat vector, 2 from its pieces.
extern "C" __global__ void __launch_bounds__(256) adam(double* params, double* first_moment, double* second_moment,
                                                       const double* grad, const double* squares, int n_squares,
                                                       const View* views, int n_views, u64 n_params, const Turn* turn,
                                                       Status* status, int moves) {
    __shared__ double scratch[8];
    const View v = view_of_block(views, n_views);
    double scale = 1.0;
    if (n_squares) {
        double sum = 0;
        for (int i = threadIdx.x; i < n_squares; i += 256) sum += squares[i];
        double length = sqrt(block_sum(sum, scratch));
        if (turn->max_norm > 0.0) scale = fmin(1.0, turn->max_norm / (length + 1e-6));
        if (blockIdx.x == 0 && threadIdx.x == 0) status->norm = length;
    }
    if (moves == 1 && blockIdx.x == 0 && threadIdx.x == 0) status->stop = grad[n_params];
    bool updates = moves && v.trainable && status->bad_step == 0;
    const Turn rule = *turn;
    constexpr int EACH = PER_BLOCK / 256;
    int first = (blockIdx.x - v.first_block) * PER_BLOCK + threadIdx.x, size = v.rows * v.cols;
    double p[EACH], g[EACH], m[EACH], s[EACH];
    // All loads before the first use.
#pragma unroll
    for (int k = 0; k < EACH; k++) {
        int i = min(first + k * 256, size - 1);
        u64 at = v.flat + i;
        p[k] = params[at];
        if (!updates) continue;
        g[k] = moves == 2 ? gradient_of(v, i) : grad[at];
        m[k] = first_moment[at], s[k] = second_moment[at];
    }
#pragma unroll
    for (int k = 0; k < EACH; k++) {
        int i = first + k * 256;
        if (i >= size) break;
        u64 at = v.flat + i;
        if (updates) {
            p[k] -= rule.shrink * p[k];
            if (rule.count != 1.0) g[k] /= rule.count;
            if (scale < 1.0) g[k] *= scale;
            g[k] += rule.pull * p[k];
            m[k] += (1.0 - rule.beta1) * (g[k] - m[k]);
            s[k] = rule.beta2 * s[k] + (1.0 - rule.beta2) * g[k] * g[k];
            p[k] -= rule.rate * m[k] / (sqrt(s[k]) * rule.correction + 1e-8);
            params[at] = p[k], first_moment[at] = m[k], second_moment[at] = s[k];
        }
        if (v.copy) v.copy[(size_t)(i / v.cols) * v.copy_ld + i % v.cols] = (real)p[k];
    }
}
