// From pieces of gradients to the next parameters: engine/cpu/fitting.rs (sums over rows), optim/adam.rs.

// Elements of a view that one block works on.
#define PER_BLOCK 512

extern "C" __global__ void __launch_bounds__(256) sum_columns(const Columns* tasks, int n_tasks) {
    int which = 0;
    while (which + 1 < n_tasks && (int)blockIdx.x >= tasks[which + 1].first_block) which++;
    const Columns c = tasks[which];
    int chunk = blockIdx.x - c.first_block, rows = c.rows, rows_each = c.rows_each, before = 0;
    after_previous();
    size_t x_dot = 0;  // behind the values
    if (c.extent) {
        before = c.extent[0], rows = c.extent[1] - before;
        rows_each = (rows + c.chunks - 1) / c.chunks, x_dot = (size_t)rows * c.ld;
    }
    // Arrays of values and tangents have twice the rows before them.
    int first = before + chunk * rows_each, end = min(before + rows, first + rows_each);
    size_t twice = (size_t)before * c.ld;
    for (int o = threadIdx.x; o < c.cols; o += blockDim.x) {
        double b = 0, t = 0;
        if (c.x) {
            // e = x w + b has the adjoint dl_e, e_dot = x_dot w the adjoint 1.
#pragma unroll 4
            for (int r = first; r < end; r++) {
                size_t at = (size_t)r * c.ld + o;
                t += (double)c.dl_e[r] * (double)c.x[twice + at] + (double)c.x_dot[twice + x_dot + at];
                b += (double)c.dl_e[r];
            }
            c.t[chunk * c.stride + o] = t;
            if (c.b && o == 0) c.b[chunk * c.stride] = b;
            continue;
        }
#pragma unroll 4
        for (int r = first; r < end; r++) {
            size_t at = (size_t)r * c.ld + o;
            b += (double)c.dl_z[twice + at];
            if (c.t) {
                real f = c.f[at], d = c.activation == TANH ? real(1) - f * f : c.d[at];
                t += (double)(c.dl_y[at] * f + c.de_y[(size_t)r * c.ld_de_y + o] * d * c.z_dot[at]);
            }
        }
        if (c.b) c.b[chunk * c.stride + o] = b;
        if (c.t) c.t[chunk * c.stride + o] = t;
    }
}

__device__ __forceinline__ const View& view_of_block(const View* views, int n_views, int block) {
    int low = 0, high = n_views - 1;
    while (low < high) {
        int middle = (low + high + 1) / 2;
        if (block >= views[middle].first_block) low = middle;
        else high = middle - 1;
    }
    return views[low];
}

// Elements of a view that one thread works on, a block's width apart.
constexpr int EACH = PER_BLOCK / 256;

// A thread's elements of a view; those beyond its end stand at the last.
struct Elements {
    int first, size, row[EACH], col[EACH];
    __device__ __forceinline__ Elements(const View& v, int block)
        : first((block - v.first_block) * PER_BLOCK + threadIdx.x), size(v.rows * v.cols) {
#pragma unroll
        for (int k = 0; k < EACH; k++) {
            int i = min(first + k * 256, size - 1);
            row[k] = i / v.cols, col[k] = i - row[k] * v.cols;
        }
    }
    __device__ __forceinline__ bool is_there(int k) const { return first + k * 256 < size; }
    __device__ __forceinline__ u64 flat(const View& v, int k) const { return v.flat + min(first + k * 256, size - 1); }
};

// The gradient at these elements, piece after piece; the loads of a piece do not wait for each other.
template <typename F> __device__ __forceinline__ void add_pieces_of(double (&g)[EACH], const View& v, const Elements& e) {
    const F* source = (const F*)v.source;
#pragma unroll 4
    for (int p = 0; p < v.n_pieces; p++) {
#pragma unroll
        for (int k = 0; k < EACH; k++) g[k] += (double)source[p * v.stride + (size_t)e.row[k] * v.ld + e.col[k]];
    }
}

__device__ __forceinline__ void gradient_of(double (&g)[EACH], const View& v, const Elements& e) {
#pragma unroll
    for (int k = 0; k < EACH; k++) g[k] = 0;
    if (v.is_double) add_pieces_of<double>(g, v, e);
    else add_pieces_of<real>(g, v, e);
}

// The gradient of this batch, piece after piece, into the flat vector or added to it; the wish to stop after it.
extern "C" __global__ void __launch_bounds__(256) reduce(double* grad, const View* views, int n_views, u64 n_params,
                                                         const Turn* turn) {
    const View v = view_of_block(views, n_views, blockIdx.x);
    Elements e(v, blockIdx.x);
    after_previous();
    double g[EACH];
    gradient_of(g, v, e);
#pragma unroll
    for (int k = 0; k < EACH; k++) {
        if (!e.is_there(k)) break;
        u64 at = e.flat(v, k);
        grad[at] = turn->add ? grad[at] + g[k] : g[k];
    }
    if (blockIdx.x == 0 && threadIdx.x == 0 && !turn->add) grad[n_params] = turn->stop;
}

// Sums of squares of the mean gradient, one for each block.
extern "C" __global__ void __launch_bounds__(256) gradient_norm(double* squares, const double* grad, u64 n_params, const Turn* turn) {
    __shared__ double scratch[8];
    after_previous();
    double sum = 0;
    u64 first = (u64)blockIdx.x * PER_BLOCK;
#pragma unroll
    for (int k = 0; k < PER_BLOCK / 256; k++) {
        u64 i = first + k * 256 + threadIdx.x;
        double g = i < n_params ? grad[i] / turn->count : 0.0;
        sum += g * g;
    }
    sum = block_sum(sum, scratch);
    if (threadIdx.x == 0) squares[blockIdx.x] = sum;
}

// One update, and the copies that the nets read, for blocks of views from `first_block` to `end_block`: those of the grid take
// turns. `n_squares` 0: the norm is not known and not needed. `moves`: 0 copies only, 1 takes the gradient from the flat
// vector, 2 from its pieces.
extern "C" __global__ void __launch_bounds__(256) adam(double* params, double* first_moment, double* second_moment,
                                                       const double* grad, const double* squares, int n_squares,
                                                       const View* views, int n_views, u64 n_params, const Turn* turn,
                                                       Status* status, int moves, int first_block, int end_block) {
    __shared__ double scratch[8];
    double scale = 1.0;
    bool is_first = true, is_good = false;
    Turn rule;
    for (int block = blockIdx.x + first_block; block < end_block; block += gridDim.x) {
        const View v = view_of_block(views, n_views, block);
        Elements e(v, block);
        double p[EACH], g[EACH], m[EACH], s[EACH];
        // Nobody but the update before this one writes these: all loads before the first use.
#pragma unroll
        for (int k = 0; k < EACH; k++) {
            u64 at = e.flat(v, k);
            p[k] = params[at];
            if (moves) m[k] = first_moment[at], s[k] = second_moment[at];
        }
        if (is_first) {
            is_first = false;
            after_previous();
            if (n_squares) {
                double sum = 0;
                for (int i = threadIdx.x; i < n_squares; i += 256) sum += squares[i];
                double length = sqrt(block_sum(sum, scratch));
                if (turn->max_norm > 0.0) scale = fmin(1.0, turn->max_norm / (length + 1e-6));
                if (block == 0 && threadIdx.x == 0) status->norm = length;
            }
            if (moves == 1 && block == 0 && threadIdx.x == 0) status->stop = grad[n_params];
            is_good = status->bad_step == 0;
            rule = *turn;
        }
        if (moves == 2) {
            gradient_of(g, v, e);
        } else {
#pragma unroll
            for (int k = 0; k < EACH; k++) g[k] = moves ? grad[e.flat(v, k)] : 0.0;
        }
#pragma unroll
        for (int k = 0; k < EACH; k++) {
            if (!e.is_there(k)) break;
            if (moves && v.trainable && is_good) {
                u64 at = e.flat(v, k);
                adam_step(p[k], m[k], s[k], g[k], scale, rule);
                params[at] = p[k], first_moment[at] = m[k], second_moment[at] = s[k];
            }
            if (v.copy) v.copy[(size_t)e.row[k] * v.copy_ld + e.col[k]] = (real)p[k];
        }
    }
}

// The running mean of the parameters comes a part of the way closer to them: train/average.rs.
extern "C" __global__ void __launch_bounds__(256) follow(const double* params, double* mean, u64 n, double part) {
    after_previous();
    u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) mean[i] += part * (params[i] - mean[i]);
}
