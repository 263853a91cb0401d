// From pieces of gradients to the next parameters: optim/keras_adam.rs.

enum { CLIP_NONE, CLIP_VARIABLE, CLIP_GLOBAL, CLIP_VALUE };

// The gradient of this batch: 32 parameters a block, the pieces of each shared by 8 threads. One more number, the wish to
// stop, goes with it to the other ranks.
extern "C" __global__ void __launch_bounds__(256) reduce(double* grad, const Source* sources, const double* params,
                                                         const double* pull, u32 n_params, const Turn* turn) {
    __shared__ double part[8][33];
    u32 lane = threadIdx.x % 32, slice = threadIdx.x / 32, k = blockIdx.x * 32 + lane;
    double sum = 0;
    if (k < n_params) {
        const Source s = sources[k];
        if (s.at) {
#pragma unroll 4
            for (u32 p = slice; p < s.count; p += 8) sum += (double)s.at[(size_t)p * s.stride];
        }
    }
    part[slice][lane] = sum;
    __syncthreads();
    if (slice > 0 || k > n_params) return;
    if (k == n_params) {
        grad[k] = turn->stop;
        return;
    }
    sum = 0;
    for (int q = 0; q < 8; q++) sum += part[q][lane];
    if (pull && !(turn->dropped & DROP_REGULARISER)) sum += pull[k] * params[k];
    grad[k] = sum;
}

// After a sum over ranks: the mean, and how many wish to stop.
extern "C" __global__ void __launch_bounds__(256) mean(double* grad, u32 n_params, const Turn* turn, Status* status) {
    u32 k = blockIdx.x * blockDim.x + threadIdx.x;
    if (k < n_params) grad[k] /= turn->count;
    if (k == n_params) status->stop = grad[k];
}

// Squares of the norms of variables: one block for each.
extern "C" __global__ void __launch_bounds__(256) norms(double* squares, const double* grad, const u32* first) {
    __shared__ double scratch[8];
    double sum = 0;
    for (u32 k = first[blockIdx.x] + threadIdx.x; k < first[blockIdx.x + 1]; k += blockDim.x) sum += grad[k] * grad[k];
    sum = block_sum(sum, scratch);
    if (threadIdx.x == 0) squares[blockIdx.x] = sum;
}

// One update.
//
// - variable  [n_params]  which variable a parameter belongs to
extern "C" __global__ void __launch_bounds__(256) adam(double* params, double* first_moment, double* second_moment,
                                                       const double* grad, const double* squares, const u32* variable,
                                                       u32 n_variables, u32 n_params, int clip, double most,
                                                       const Turn* turn, Status* status) {
    __shared__ double scratch[8];
    double sum = 0;
    for (u32 k = threadIdx.x; k < n_variables; k += blockDim.x) sum += squares[k];
    double global = sqrt(block_sum(sum, scratch));
    if (blockIdx.x == 0 && threadIdx.x == 0) status->norm = global;
    u32 k = blockIdx.x * blockDim.x + threadIdx.x;
    if (k >= n_params) return;
    double g = grad[k];
    if (clip == CLIP_VALUE) g = fmin(fmax(g, -most), most);
    if (clip == CLIP_VARIABLE || clip == CLIP_GLOBAL) {
        double norm = clip == CLIP_GLOBAL ? global : sqrt(squares[variable[k]]);
        if (norm > most) g *= most / norm;
    }
    double m = first_moment[k], v = second_moment[k];
    m += (g - m) * turn->gain[0];
    v += (g * g - v) * turn->gain[1];
    first_moment[k] = m;
    second_moment[k] = v;
    params[k] -= turn->rate * m / (sqrt(v) + turn->epsilon);
}

// The weights as the layers read them; `map` counts parameters from 1, 0 stands for none.
extern "C" __global__ void __launch_bounds__(256) pack(real* packed, const double* params, const u32* map, u32 n) {
    EACH(k, n) packed[k] = map[k] ? (real)params[map[k] - 1] : real(0);
}
