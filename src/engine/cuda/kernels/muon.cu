// HybridMuon and AdaMuon: optim/muon.rs. Matrices move along an orthogonal matrix near the mean of their gradients (or near its signs),
// everything else by Adam.
//
// The orthogonal matrix is X times a polynomial in X^T X (or that in X X^T times X, where X has fewer rows), which is made of small
// square matrices alone: G = X^T X, then again and again P = a I + b G + c G^2, Q = Q P, G = P G P. All of these are symmetric, so
// they are multiplied as if the first were transposed: such products wait for both of their operands.

// AdaMuon: guards its divisions, and the size of a step before the learning rate, for each element.
constexpr double EVEN_EPSILON = 1e-8, EVEN_SIZE = 0.2;

__device__ __forceinline__ const Matrix& matrix_of_block(const Muon& o, int block) {
    int which = 0;
    while (which + 1 < o.n_matrices && block >= o.matrices[which + 1].first_block) which++;
    return o.matrices[which];
}

// What the sum of gradients is multiplied by, where `n_squares` blocks have left squares of the mean: see adam.
__device__ __forceinline__ double gradient_factor(const Muon& o, int n_squares, double* scratch) {
    double factor = 1.0 / o.turn->count;
    if (!n_squares) return factor;
    double sum = 0;
    for (int i = threadIdx.x; i < n_squares; i += blockDim.x) sum += o.squares[i];
    double length = sqrt(block_sum(sum, scratch));
    if (blockIdx.x == 0 && threadIdx.x == 0) o.status->norm = length;
    return o.turn->max_norm > 0.0 ? factor * fmin(1.0, o.turn->max_norm / (length + 1e-6)) : factor;
}

// The running mean of each matrix, where it points, and a block's part of four sums: mean times gradient, their squares, and the
// square of where it points.
extern "C" __global__ void __launch_bounds__(256) muon_prepare(const __grid_constant__ Muon o, int n_squares) {
    __shared__ double scratch[8];
    const Matrix v = matrix_of_block(o, blockIdx.x);
    int first = (blockIdx.x - v.first_block) * PER_BLOCK + threadIdx.x, size = v.rows * v.cols;
    after_previous();
    double factor = gradient_factor(o, n_squares, scratch), sums[4] = {};
    bool is_good = o.status->bad_step == 0;
    for (int k = 0; k < EACH; k++) {
        int i = first + k * 256;
        if (i >= size) break;
        u64 at = v.flat + i;
        double g = factor * o.grad[at], m = o.first[at];
        m += (1.0 - o.momentum) * (g - m);
        double u = g + o.momentum * (m - g);
        if (o.is_even) u = u == 0.0 ? 0.0 : copysign(1.0, u);
        if (is_good) o.first[at] = m;
        v.x[(size_t)(i / v.cols) * v.ld + i % v.cols] = (real)u;
        sums[0] += m * g, sums[1] += m * m, sums[2] += g * g, sums[3] += u * u;
    }
    for (int k = 0; k < 4; k++) {
        double sum = block_sum(sums[k], scratch);
        if (threadIdx.x == 0) o.sums[4 * (size_t)blockIdx.x + k] = sum;
    }
    if (blockIdx.x == 0 && threadIdx.x == 0) o.status->stop = o.grad[o.n_params];
}

// 0 where gradient and mean are opposite, 1 where they agree.
__device__ __forceinline__ double agreement(double cosine) {
    auto sigmoid = [](double x) { return 1.0 / (1.0 + exp(-x / 2.0)); };
    double score = (sigmoid(cosine) - sigmoid(-1.0)) / (sigmoid(1.0) - sigmoid(-1.0));
    return fmin(fmax(score, 0.0), 1.0);
}

// What each matrix is divided by before it becomes orthogonal, and how far it moves; a block for each.
extern "C" __global__ void __launch_bounds__(256) muon_measure(const __grid_constant__ Muon o) {
    __shared__ double scratch[8];
    const Matrix v = o.matrices[blockIdx.x];
    int n_blocks = (v.rows * v.cols + PER_BLOCK - 1) / PER_BLOCK;
    after_previous();
    double sums[4];
    for (int k = 0; k < 4; k++) {
        double sum = 0;
        for (int i = threadIdx.x; i < n_blocks; i += 256) sum += o.sums[4 * (size_t)(v.first_block + i) + k];
        sums[k] = block_sum(sum, scratch);
    }
    if (threadIdx.x) return;
    double cosine = sums[0] / fmax(sqrt(sums[1]) * sqrt(sums[2]), 1e-12), length = sqrt(sums[3]);
    double seen = 0.9 * o.alignment[blockIdx.x] + 0.1 * agreement(fmin(fmax(cosine, -1.0), 1.0));
    if (o.status->bad_step == 0) o.alignment[blockIdx.x] = seen;
    o.inverse[blockIdx.x] = 1.0 / (v.adds_least ? length + v.least : fmax(length, v.least));
    o.length[blockIdx.x] = v.scale * (o.is_damped ? 0.1 + 0.9 * seen : 1.0);
}

// The polynomial of step `k`; a block has some elements of a matrix, all matrices `blocks` of them. In the first step G and G^2 are
// those of a matrix that was not yet divided, and Q is that polynomial; so too in a step that begins again with X.
extern "C" __global__ void __launch_bounds__(256) muon_polynomial(const __grid_constant__ Muon o, int k, int blocks) {
    const Matrix v = o.matrices[blockIdx.x / blocks];
    const double* p = o.polynomials + 3 * ((size_t)(blockIdx.x / blocks) * o.most_steps + k);
    double a = p[0], b = p[1], c = p[2];
    after_previous();
    if (k >= v.steps) return;
    bool begins = k == 0 || (o.restart && k % o.restart == 0);
    double inverse = begins ? o.inverse[blockIdx.x / blocks] : 1.0, square = inverse * inverse;
    for (int i = blockIdx.x % blocks * 256 + threadIdx.x; i < v.n * v.n; i += blocks * 256) {
        int row = i / v.n, col = i % v.n;
        size_t at = (size_t)row * v.ldn + col;
        real g = (real)(square * (double)v.gram[at]);
        real out = (real)((row == col ? a : 0.0) + b * (double)g + c * square * square * (double)v.square[at]);
        v.polynomial[at] = out;
        if (begins) v.gram[at] = g, v.all[at] = out;
    }
}

// AdaMuon: divides every element by the root of the running mean of its squares; a block's part of the square of what becomes of them.
extern "C" __global__ void __launch_bounds__(256) muon_even(const __grid_constant__ Muon o) {
    __shared__ double scratch[8];
    const Matrix& v = matrix_of_block(o, blockIdx.x);
    int which = (int)(&v - o.matrices), size = v.rows * v.cols;
    int first = (blockIdx.x - v.first_block) * PER_BLOCK + threadIdx.x;
    after_previous();
    double inverse = o.inverse[which], sum = 0;
    bool is_good = o.status->bad_step == 0;
    for (int k = 0; k < EACH; k++) {
        int i = first + k * 256;
        if (i >= size) break;
        real& at = v.moved[(size_t)(i / v.cols) * v.ld + i % v.cols];
        double d = inverse * (double)at, s = o.momentum * o.second[v.flat + i] + (1.0 - o.momentum) * d * d;
        if (is_good) o.second[v.flat + i] = s;
        d /= sqrt(s) + EVEN_EPSILON;
        at = (real)d, sum += d * d;
    }
    sum = block_sum(sum, scratch);
    if (threadIdx.x == 0) o.sums[4 * (size_t)blockIdx.x] = sum;
}

// AdaMuon: how far each matrix moves, such that its elements move by 0.2 of the learning rate on average; a block for each.
extern "C" __global__ void __launch_bounds__(256) muon_even_length(const __grid_constant__ Muon o) {
    __shared__ double scratch[8];
    const Matrix v = o.matrices[blockIdx.x];
    int size = v.rows * v.cols, n_blocks = (size + PER_BLOCK - 1) / PER_BLOCK;
    after_previous();
    double sum = 0;
    for (int i = threadIdx.x; i < n_blocks; i += 256) sum += o.sums[4 * (size_t)(v.first_block + i)];
    sum = block_sum(sum, scratch);
    if (threadIdx.x) return;
    o.inverse[blockIdx.x] = 1.0;
    o.length[blockIdx.x] = v.scale * EVEN_SIZE * sqrt((double)size) / (sqrt(sum) + EVEN_EPSILON);
}

// What the next kernel reads before it waits is there when this one has begun.
extern "C" __global__ void muon_pause(const Status*) { after_previous(); }

// Parameters of matrices, in blocks of them, then of vectors.
extern "C" __global__ void __launch_bounds__(256) muon_move(const __grid_constant__ Muon o, int n_squares) {
    __shared__ double scratch[8];
    after_previous();
    if (o.status->bad_step) return;
    const Turn rule = *o.turn;
    if ((int)blockIdx.x < o.matrix_blocks) {
        const Matrix& v = matrix_of_block(o, blockIdx.x);
        int which = (int)(&v - o.matrices), first = (blockIdx.x - v.first_block) * PER_BLOCK + threadIdx.x;
        double length = rule.plain_rate * o.length[which] * o.inverse[which], keep = 1.0 - rule.plain_rate * o.weight_decay;
        for (int k = 0; k < EACH; k++) {
            int i = first + k * 256;
            if (i >= v.rows * v.cols) break;
            double& p = o.params[v.flat + i];
            p = keep * p - length * (double)v.moved[(size_t)(i / v.cols) * v.ld + i % v.cols];
        }
        return;
    }
    double factor = gradient_factor(o, n_squares, scratch);
    u64 first = (u64)(blockIdx.x - o.matrix_blocks) * PER_BLOCK + threadIdx.x;
    for (int k = 0; k < EACH; k++) {
        u64 i = first + k * 256;
        if (i >= o.n_vector) break;
        u64 at = o.vector[i];
        double g = factor * o.grad[at], m = o.first[at], s = o.second[at];
        m += (1.0 - rule.beta1) * (g - m), s += (1.0 - rule.beta2) * (g * g - s);
        o.params[at] -= o.vector_rate * rule.rate * m / (sqrt(s) * rule.correction + o.vector_epsilon);
        o.first[at] = m, o.second[at] = s;
    }
}
