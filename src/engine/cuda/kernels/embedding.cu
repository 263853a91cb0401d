// The embedding nets at the nodes of the Chebyshev series, in double precision: values, coefficients, gradients.
// The formulas of engine/cpu/chebyshev.rs and engine/cpu/net.rs.

// Nodes of one block.
#define NODES 4

// Where layer l keeps y, f and d for all nodes of a net.
__device__ __forceinline__ double* trace_of(const Embedding& e, int net, int l, int part) {
    double* at = e.trace + (size_t)net * e.trace_size;
    for (int k = 0; k < l; k++) at += 3 * e.terms * e.layers[k].n_out;
    return at + part * e.terms * e.layers[l].n_out;
}

// The parameters of a net, in shared memory where they fit (`room` numbers), else where they are.
__device__ __forceinline__ const double* near(double* shared, const double* params, int size, int room) {
    if (size > room) return params;
#pragma unroll 8
    for (int i = threadIdx.x; i < size; i += blockDim.x) shared[i] = params[i];
    return shared;
}

// The nets at NODES nodes for each block.
extern "C" __global__ void __launch_bounds__(256) embed_forward(const __grid_constant__ Embedding e, int room) {
    double* x = (double*)shared_bytes + (e.net_size > room ? 0 : e.net_size);
    int net = blockIdx.x / e.chunks, first = blockIdx.x % e.chunks * NODES;
    const double* params = near((double*)shared_bytes, e.params + (size_t)net * e.net_size, e.net_size, room);
    if (threadIdx.x < NODES) x[threadIdx.x] = e.nodes[first + threadIdx.x];
    int width = 1;
    for (int l = 0; l < e.n_layers; l++) {
        const Layer& layer = e.layers[l];
        __syncthreads();
        int n_in = layer.n_in, n = layer.n_out;
        double* y = x + NODES * width;
        double* trace_y = trace_of(e, net, l, 0);
        double* trace_f = trace_of(e, net, l, 1);
        double* trace_d = trace_of(e, net, l, 2);
        for (int i = threadIdx.x; i < NODES * n; i += blockDim.x) {
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

// Coefficients = transform * values at the nodes, and how large the last of them are.
extern "C" __global__ void __launch_bounds__(256) embed_transform(const __grid_constant__ Embedding e) {
    __shared__ double weights[NODES][192];
    __shared__ double scratch[16];
    int net = blockIdx.x / e.chunks, first = blockIdx.x % e.chunks * NODES;
    int m1 = e.layers[e.n_layers - 1].n_out, terms = e.terms;
    const double* values = trace_of(e, net, e.n_layers - 1, 0);
    for (int i = threadIdx.x; i < NODES * terms; i += blockDim.x)
        weights[i / terms][i % terms] = e.transform[(first + i / terms) * terms + i % terms];
    __syncthreads();
    double last = 0, largest = 0;
    real* out = e.c + ((size_t)e.place[net] * terms + first) * e.ldm;
    // Two threads share the rows of a column.
    int half = threadIdx.x % 2 * (NODES / 2);
    for (int m = threadIdx.x / 2; m < m1; m += blockDim.x / 2) {
        double sum[NODES / 2] = {};
#pragma unroll 8
        for (int n = 0; n < terms; n++) {
            double v = values[n * m1 + m];
#pragma unroll
            for (int k = 0; k < NODES / 2; k++) sum[k] = fma(weights[half + k][n], v, sum[k]);
        }
#pragma unroll
        for (int k = 0; k < NODES / 2; k++) {
            out[(half + k) * e.ldm + m] = (real)(sum[k] * e.scale);
            largest = fmax(largest, fabs(sum[k]));
            if (first + half + k >= terms - 3) last = fmax(last, fabs(sum[k]));
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

// From dL/dcoefficients to the gradient of the nets, NODES nodes for each block; blocks are added up by `reduce`.
extern "C" __global__ void __launch_bounds__(256) embed_backward(const __grid_constant__ Embedding e, int room) {
    __shared__ double weights[192][NODES];
    double* shared = (double*)shared_bytes + (e.net_size > room ? 0 : e.net_size);
    int net = blockIdx.x / e.chunks, chunk = blockIdx.x % e.chunks, first = chunk * NODES;
    const double* params = near((double*)shared_bytes, e.params + (size_t)net * e.net_size, e.net_size, room);
    for (int i = threadIdx.x; i < NODES * e.terms; i += blockDim.x)
        weights[i / NODES][i % NODES] = e.transform[i / NODES * e.terms + first + i % NODES];
    double* grad = e.partial + ((size_t)chunk * e.n_nets + net) * e.net_size;
    int widest = 1;
    for (int l = 0; l < e.n_layers; l++) widest = max(widest, e.layers[l].n_out);
    double *dl_y = shared, *dl_z = shared + NODES * widest, *x = shared + 2 * NODES * widest;
    double* dl_x = shared + 3 * NODES * widest;
    int m1 = e.layers[e.n_layers - 1].n_out, terms = e.terms;
    const real* dl_c = e.dl_c + (size_t)e.place[net] * terms * e.ldm;
    __syncthreads();
    int half = threadIdx.x % 2 * (NODES / 2);
    for (int m = threadIdx.x / 2; m < m1; m += blockDim.x / 2) {
        double sum[NODES / 2] = {};
#pragma unroll 8
        for (int k = 0; k < terms; k++) {
            double v = (double)dl_c[k * e.ldm + m] * e.scale;
#pragma unroll
            for (int r = 0; r < NODES / 2; r++) sum[r] = fma(weights[k][half + r], v, sum[r]);
        }
#pragma unroll
        for (int r = 0; r < NODES / 2; r++) dl_y[(half + r) * m1 + m] = sum[r];
    }
    for (int l = e.n_layers - 1; l >= 0; l--) {
        const Layer& layer = e.layers[l];
        int n_in = layer.n_in, n = layer.n_out;
        const double* f = trace_of(e, net, l, 1) + first * n;
        const double* d = trace_of(e, net, l, 2) + first * n;
        __syncthreads();
        for (int i = threadIdx.x; i < NODES * n; i += blockDim.x) {
            double idt = layer.idt < 0 ? 1.0 : params[layer.idt + i % n];
            dl_z[i] = dl_y[i] * idt * d[i];
        }
        for (int i = threadIdx.x; i < NODES * n_in; i += blockDim.x)
            x[i] = l ? trace_of(e, net, l - 1, 0)[first * n_in + i] : e.nodes[first + i];
        __syncthreads();
        for (int o = threadIdx.x; o < n; o += blockDim.x) {
            double b = 0, t = 0;
            for (int r = 0; r < NODES; r++) b += dl_z[r * n + o], t += dl_y[r * n + o] * f[r * n + o];
            if (layer.b >= 0) grad[layer.b + o] = b;
            if (layer.idt >= 0) grad[layer.idt + o] = t;
        }
        for (int i = threadIdx.x; i < n_in * n; i += blockDim.x) {
            double sum = 0;
#pragma unroll
            for (int r = 0; r < NODES; r++) sum = fma(x[r * n_in + i / n], dl_z[r * n + i % n], sum);
            grad[layer.w + i] = sum;
        }
        if (!l) break;
        for (int i = threadIdx.x; i < NODES * n_in; i += blockDim.x) {
            int r = i / n_in, k = i % n_in;
            const double* w = params + layer.w + (size_t)k * n;
            double sum = 0;
            // Threads start at different columns, so that they read from different banks.
            int o = k % n;
#pragma unroll 4
            for (int c = 0; c < n; c++) {
                sum = fma(dl_z[r * n + o], w[o], sum);
                o = o + 1 == n ? 0 : o + 1;
            }
            if (layer.shortcut)
                for (int o = k; o < n; o += n_in) sum += dl_y[r * n + o];
            dl_x[i] = sum;
        }
        __syncthreads();
        double* swap = dl_y;
        dl_y = dl_x;
        dl_x = swap;
    }
}
