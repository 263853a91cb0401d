// The embedding nets at the nodes of the Chebyshev series, in double precision: values, coefficients, gradients.
// The formulas of engine/cpu/chebyshev.rs and engine/cpu/net.rs.

// Kernels that wait for memory say that one block on a multiprocessor is enough: else the compiler spares registers and lets
// few loads be under way at a time.

// Nodes of a group, groups of a block at most, and columns that its threads work on at once, two threads for each.
#define NODES 2
#define MOST_NODES (4 * NODES)
#define COLUMNS 128

enum { TRACE_Y, TRACE_F, TRACE_D, TRACE_DL_Z, TRACE_DL_T, TRACES };

// Where layer l keeps one of these for all nodes of a stack.
__device__ __forceinline__ double* trace_of(const Embedding& e, int stack, int l, int part) {
    double* at = e.trace + (size_t)stack * e.trace_size;
    for (int k = 0; k < l; k++) at += TRACES * e.columns * e.layers[k].n_out;
    return at + (size_t)part * e.columns * e.layers[l].n_out;
}

// The nodes that a block works on: all of one panel, so of one net.
struct NodeBlock {
    int stack, first, count, net;
    __device__ __forceinline__ NodeBlock(const Embedding& e, int groups) : count(NODES * groups) {
        int blocks = e.columns / count;
        stack = blockIdx.x / blocks, first = blockIdx.x % blocks * count;
        net = e.net[stack * e.n_types + e.panels[first / e.terms].neighbor];
    }
};

// The parameters of a net, in shared memory where they fit (`room` numbers), else where they are.
__device__ __forceinline__ const double* near(double* shared, const double* params, int size, int room) {
    if (size > room) return params;
    copy_many<26>(shared, params, size);
    return shared;
}

// The nets at NODES nodes for each block.
extern "C" __global__ void __launch_bounds__(256, 1) embed_forward(const __grid_constant__ Embedding e, int room) {
    NodeBlock nodes(e, e.groups);
    after_previous();
    double* x = (double*)shared_bytes + (e.net_size > room ? 0 : e.net_size);
    const double* params = near((double*)shared_bytes, e.params + (size_t)nodes.net * e.net_size, e.net_size, room);
    int count = nodes.count, first = nodes.first, width = 1;
    if (threadIdx.x < count) x[threadIdx.x] = e.nodes[first + threadIdx.x];
    for (int l = 0; l < e.n_layers; l++) {
        const Layer& layer = e.layers[l];
        __syncthreads();
        int n_in = layer.n_in, n = layer.n_out;
        double* y = x + count * width;
        double* trace_y = trace_of(e, nodes.stack, l, TRACE_Y);
        double* trace_f = trace_of(e, nodes.stack, l, TRACE_F);
        double* trace_d = trace_of(e, nodes.stack, l, TRACE_D);
        for (int i = threadIdx.x; i < count * n; i += blockDim.x) {
            int r = i / n, o = i % n;
            double z = layer.b < 0 ? 0.0 : params[layer.b + o];
            const double* w = params + layer.w + o;
#pragma unroll 5
            for (int k = 0; k < n_in; k++) z = fma(x[r * n_in + k], w[k * n], z);
            Jet<double> j = jet(layer.activation, z, layer.threshold);
            double value = (layer.idt < 0 ? 1.0 : params[layer.idt + o]) * j.f;
            if (layer.shortcut) value += x[r * n_in + o % n_in];
            y[i] = value;
            int at = (first + r) * n + o;
            trace_y[at] = value, trace_f[at] = j.f, trace_d[at] = j.d;
        }
        x = y;
        width = n;
    }
}

// Weights of the nodes of a block in its transform: room for 96 terms, and zeros where a batch of loads ends behind them.
#define BATCH 24
#define ROOM (96 + 2 * BATCH)

// sum[r] = sum_k weights[r][k] from[k * ld + m] of one column, every other term on each of two threads; whole on the first
// of them.
template <int N, typename F> __device__ __forceinline__ void transform_column(double (&sum)[N], double (*halves)[COLUMNS],
                                                                       const double (*weights)[ROOM], const F* from,
                                                                       int ld, int m, bool is_there, int terms) {
    int half = threadIdx.x / COLUMNS, column = threadIdx.x % COLUMNS;
#pragma unroll
    for (int r = 0; r < N; r++) sum[r] = 0;
    for (int k0 = half; is_there && k0 < terms; k0 += 2 * BATCH) {
        F v[BATCH];
#pragma unroll
        for (int k = 0; k < BATCH; k++) v[k] = from[min(k0 + 2 * k, terms - 1) * ld + m];
#pragma unroll
        for (int k = 0; k < BATCH; k++)
#pragma unroll
            for (int r = 0; r < N; r++) sum[r] = fma(weights[r][k0 + 2 * k], (double)v[k], sum[r]);
    }
    __syncthreads();
    if (half)
        for (int r = 0; r < N; r++) halves[r][column] = sum[r];
    __syncthreads();
    if (!half)
        for (int r = 0; r < N; r++) sum[r] += halves[r][column];
}

// Coefficients = transform * values at the nodes, and how large the last of them are.
extern "C" __global__ void __launch_bounds__(256, 1) embed_transform(const __grid_constant__ Embedding e) {
    __shared__ double weights[NODES][ROOM], halves[NODES][COLUMNS];
    __shared__ double scratch[16];
    NodeBlock nodes(e, 1);
    int m1 = e.layers[e.n_layers - 1].n_out, terms = e.terms;
    int term = nodes.first % terms, panel = nodes.first - term;  // the first of this block, and the node of its panel's first
    const double* values = trace_of(e, nodes.stack, e.n_layers - 1, TRACE_Y) + (size_t)panel * m1;
    for (int i = threadIdx.x; i < NODES * ROOM; i += blockDim.x) {
        int r = i / ROOM, k = i % ROOM;
        weights[r][k] = k < terms ? e.transform[(term + r) * terms + k] : 0.0;
    }
    after_previous();
    __syncthreads();
    double last = 0, largest = 0;
    real* out = e.c + ((size_t)nodes.stack * e.columns + nodes.first) * e.ldm;
    for (int m0 = 0; m0 < m1; m0 += COLUMNS) {
        int m = m0 + threadIdx.x % COLUMNS;
        double sum[NODES];
        transform_column(sum, halves, weights, values, m1, m, m < m1, terms);
        if (m >= m1 || threadIdx.x >= COLUMNS) continue;
#pragma unroll
        for (int r = 0; r < NODES; r++) {
            out[r * e.ldm + m] = (real)(sum[r] * e.scale);
            largest = fmax(largest, fabs(sum[r]));
            if (term + r >= terms - 3) last = fmax(last, fabs(sum[r]));
        }
    }
    for (int step = 16; step > 0; step >>= 1) {
        last = fmax(last, __shfl_xor_sync(FULL_WARP, last, step));
        largest = fmax(largest, __shfl_xor_sync(FULL_WARP, largest, step));
    }
    int warp = threadIdx.x / 32;
    if (threadIdx.x % 32 == 0) scratch[2 * warp] = last, scratch[2 * warp + 1] = largest;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int w = 1; w < 8; w++) last = fmax(last, scratch[2 * w]), largest = fmax(largest, scratch[2 * w + 1]);
        e.tails[2 * blockIdx.x] = last;
        e.tails[2 * blockIdx.x + 1] = largest;
    }
}

// From dL/dcoefficients to dL/dz of every layer, NODES nodes for each block.
extern "C" __global__ void __launch_bounds__(256, 1) embed_backward(const __grid_constant__ Embedding e, int room) {
    __shared__ double weights[MOST_NODES][ROOM], halves[MOST_NODES][COLUMNS];
    double* shared = (double*)shared_bytes + (e.net_size > room ? 0 : e.net_size);
    NodeBlock nodes(e, e.groups);
    // The first of these nodes in the whole and in their panel, and where that begins.
    int count = nodes.count, first = nodes.first, terms = e.terms, term = first % terms, panel = first - term;
    for (int i = threadIdx.x; i < count * ROOM; i += blockDim.x) {
        int r = i % count, k = i / count;
        weights[r][k] = k < terms ? e.transform[k * terms + term + r] : 0.0;
    }
    const double* params = near((double*)shared_bytes, e.params + (size_t)nodes.net * e.net_size, e.net_size, room);
    // f and d of this thread's first element of a layer are loaded one layer ahead.
    double f_next = 0, d_next = 0;
    auto look_ahead = [&](int l) {
        int n = e.layers[l].n_out, i = threadIdx.x;
        if (i >= count * n) return;
        f_next = trace_of(e, nodes.stack, l, TRACE_F)[first * n + i];
        d_next = trace_of(e, nodes.stack, l, TRACE_D)[first * n + i];
    };
    look_ahead(e.n_layers - 1);
    after_previous();
    int widest = 1;
    for (int l = 0; l < e.n_layers; l++) widest = max(widest, e.layers[l].n_out);
    double *dl_y = shared, *dl_z = shared + count * widest, *dl_x = shared + 2 * count * widest;
    int m1 = e.layers[e.n_layers - 1].n_out;
    const real* dl_c = e.dl_c + ((size_t)nodes.stack * e.columns + panel) * e.ldm;
    __syncthreads();
    for (int m0 = 0; m0 < m1; m0 += COLUMNS) {
        int m = m0 + threadIdx.x % COLUMNS;
        bool ends = m < m1 && threadIdx.x < COLUMNS;
        auto transform = [&](auto& sum) {
            transform_column(sum, halves, weights, dl_c, e.ldm, m, m < m1, terms);
#pragma unroll
            for (int r = 0; r < (int)(sizeof(sum) / sizeof(double)); r++)
                if (ends && r < count) dl_y[r * m1 + m] = sum[r] * e.scale;
        };
        double two[NODES], many[MOST_NODES];
        if (count == NODES) transform(two);
        else transform(many);
    }
    for (int l = e.n_layers - 1; l >= 0; l--) {
        const Layer& layer = e.layers[l];
        int n_in = layer.n_in, n = layer.n_out;
        const double* f = trace_of(e, nodes.stack, l, TRACE_F) + first * n;
        const double* d = trace_of(e, nodes.stack, l, TRACE_D) + first * n;
        double* trace_z = trace_of(e, nodes.stack, l, TRACE_DL_Z) + first * n;
        double* trace_t = trace_of(e, nodes.stack, l, TRACE_DL_T) + first * n;
        __syncthreads();
        for (int i = threadIdx.x; i < count * n; i += blockDim.x) {
            bool is_known = i == threadIdx.x;
            double idt = layer.idt < 0 ? 1.0 : params[layer.idt + i % n];
            double dl = dl_y[i] * idt * (is_known ? d_next : d[i]);
            dl_z[i] = dl, trace_z[i] = dl;
            if (layer.idt >= 0) trace_t[i] = dl_y[i] * (is_known ? f_next : f[i]);
        }
        if (!l) break;
        look_ahead(l - 1);
        __syncthreads();
        // Two neighbouring threads share the columns of an element.
        int elements = 2 * count * n_in, half = (n + 1) / 2;
        for (int i0 = 0; i0 < elements; i0 += blockDim.x) {
            int i = min(i0 + (int)threadIdx.x, elements - 1), r = i / 2 / n_in, k = i / 2 % n_in;
            int start = i % 2 * half, length = i % 2 ? n - half : half;
            const double *w = params + layer.w + (size_t)k * n + start, *z = dl_z + r * n + start;
            double sum = 0;
            // Threads start at different columns, so that they read from different banks.
            int o = length ? k % length : 0;
#pragma unroll 8
            for (int c = 0; c < length; c++) {
                sum = fma(z[o], w[o], sum);
                o = o + 1 == length ? 0 : o + 1;
            }
            sum += __shfl_xor_sync(FULL_WARP, sum, 1);
            if (layer.shortcut)
                for (int o = k; o < n; o += n_in) sum += dl_y[r * n + o];
            if (i0 + (int)threadIdx.x < elements && i % 2 == 0) dl_x[i / 2] = sum;
        }
        double* swap = dl_y;
        dl_y = dl_x;
        dl_x = swap;
    }
}

// Parameters of one block of embed_weights, four threads for each.
#define WEIGHTS 64

// The gradient of the nets from dL/dz of all nodes (`params` null), or their update. `trained` has a flag for each net.
extern "C" __global__ void __launch_bounds__(256, 2) embed_weights(const __grid_constant__ Embedding e, double* params,
                                                                double* first_moment, double* second_moment,
                                                                const u32* trained, const Turn* turn,
                                                                const Status* status) {
    __shared__ double sums[4][WEIGHTS];
    int blocks = (e.net_size + WEIGHTS - 1) / WEIGHTS, net = blockIdx.x / blocks;
    int i = blockIdx.x % blocks * WEIGHTS + threadIdx.x % WEIGHTS, part = threadIdx.x / WEIGHTS;
    // The nodes of the net: those of all panels of its neighbour type.
    int stack = e.place[net] / e.n_types, type = e.place[net] % e.n_types;
    int first_node = e.first_panel[type] * e.terms, n_nodes = e.first_panel[type + 1] * e.terms - first_node;
    // A weight is the sum of x dL/dz over the nodes; a bias has x = 1, a time step dL/dy f instead of dL/dz.
    const double *x = nullptr, *dl = nullptr;
    int ldx = 0, ld = 0;
    for (int l = 0; l < e.n_layers; l++) {
        const Layer& layer = e.layers[l];
        int n = layer.n_out, n_in = layer.n_in;
        if (i >= layer.w && i < layer.w + n_in * n) {
            int k = (i - layer.w) / n;
            x = (l ? trace_of(e, stack, l - 1, TRACE_Y) : e.nodes) + (size_t)first_node * n_in + k;
            ldx = n_in, ld = n;
            dl = trace_of(e, stack, l, TRACE_DL_Z) + (i - layer.w) % n;
        }
        if (layer.b >= 0 && i >= layer.b && i < layer.b + n)
            dl = trace_of(e, stack, l, TRACE_DL_Z) + (i - layer.b), ld = n;
        if (layer.idt >= 0 && i >= layer.idt && i < layer.idt + n)
            dl = trace_of(e, stack, l, TRACE_DL_T) + (i - layer.idt), ld = n;
    }
    if (dl) dl += (size_t)first_node * ld;
    // Nobody but the update before this one writes these; the numbers of the step and the status are there since the loss.
    size_t at = (size_t)net * e.net_size + i;
    bool ends = !part && i < e.net_size, updates = params && trained[net] && !status->bad_step;
    const Turn rule = *turn;
    double p = 0, m = 0, s = 0;
    if (ends && params) p = params[at], m = first_moment[at], s = second_moment[at];
    after_previous();
    double sum = 0;
    if (dl) {
        // So many that two blocks stand on a multiprocessor: all blocks of two stock nets run at once.
        constexpr int MANY = 14;
        const double* factor = x ? x : dl;
        for (int r0 = part * (n_nodes / 4), end = r0 + n_nodes / 4; r0 < end; r0 += MANY) {
            double a[MANY], d[MANY];
#pragma unroll
            for (int k = 0; k < MANY; k++) {
                int r = min(r0 + k, end - 1);
                a[k] = factor[r * (x ? ldx : ld)], d[k] = dl[r * ld];
            }
#pragma unroll
            for (int k = 0; k < MANY; k++) sum = fma(x ? a[k] : 1.0, r0 + k < end ? d[k] : 0.0, sum);
        }
    }
    sums[part][threadIdx.x % WEIGHTS] = sum;
    __syncthreads();
    if (!ends) return;
    for (int k = 1; k < 4; k++) sum += sums[k][threadIdx.x];
    if (!params) {
        e.partial[at] = sum;
        return;
    }
    if (!updates) return;
    adam_step(p, m, s, sum, 1.0, rule);
    params[at] = p, first_moment[at] = m, second_moment[at] = s;
}
