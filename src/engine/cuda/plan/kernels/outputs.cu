// Models that predict no energy: outputs of atoms and frames, their losses and seeds: engine/cpu/{outputs,turned}.rs, loss/{squares,property}.rs.

enum { NO_LOSS, BY_SQUARES, BY_PROPERTY };
// How outputs are made, as in plan/outputs.rs.
enum { VECTOR, DIAGONAL, MATRIX };
// Functions of errors, in the order of loss/property.rs; what frames bring to the sums of a property's loss has the loss before them.
enum { BY_SMOOTH_MAE, BY_MAE, BY_MSE, BY_RMSE, BY_MAPE, MEASURES };
// Terms of squares: of atoms, of their running sums, of frames, of theirs.
enum { SQUARES = 4, FRAME_SUMS = 8 };

// The sum over this lane and those before it, or those behind it; `others` have been summed up before, and count these too afterwards.
template <bool BEHIND> __device__ __forceinline__ double running_sum(double x, double& others) {
    double sum = x, all = x;
    for (int step = 1; step < 32; step <<= 1) {
        double other = __shfl_xor_sync(FULL_WARP, all, step);
        if (((threadIdx.x & step) == 0) == BEHIND) sum += other;
        all += other;
    }
    sum += others, others += all;
    return sum;
}

// The numbers of an atom or a frame and their labels, on a warp: adds the squares of the errors, and of their running sums, to a lane's part of
// them, and puts dL where these have the weights `plain` and `summed`.
__device__ __forceinline__ void compare(double* dl, double (&squares)[2], const double* got, const double* label, int width,
                                        double plain, double summed) {
    int lane = threadIdx.x % 32, last = (width - 1) / 32 * 32;
    double others = 0;
    for (int k = lane; k - lane <= last; k += 32) {
        double error = k < width ? got[k] - label[k] : 0.0, running = running_sum<false>(error, others);
        if (k < width) squares[0] += error * error, squares[1] += running * running, dl[k] = running;
    }
    // A number enters its own running sum and all that follow.
    others = 0;
    for (int k = last + lane; k >= lane; k -= 32) {
        double following = running_sum<true>(k < width ? dl[k] : 0.0, others);
        if (k < width) dl[k] = 2.0 * (plain * (got[k] - label[k]) + summed * following);
    }
}

// The weight of a term of squares in the mean over so many numbers.
__device__ __forceinline__ double square_weight(const Batch& b, int term, double count) {
    return has_term(b, term) ? b.turn->weight[term] / count : 0.0;
}
__device__ __forceinline__ double atom_numbers(const Batch& b, const Outputs& o) { return fmax(real_atoms_of(b), 1.0) * o.width; }
__device__ __forceinline__ double frame_numbers(const Batch& b, const Outputs& o) { return (double)frames_of(b) * o.width; }

// Outputs of the centres of a chunk from those of the nets, x; the terms of the loss that look at atoms, and their seeds: a warp for each.
extern "C" __global__ void __launch_bounds__(256) plan_outputs(const __grid_constant__ Batch b, const __grid_constant__ Chunk c,
                                                               const __grid_constant__ Outputs o, const __grid_constant__ Op op) {
    after_previous();
    int lane = threadIdx.x % 32, width = o.width;
    bool compares = o.loss == BY_SQUARES && b.turn->terms & 3;
    WARP_ROWS(atom, atoms_of(c)) {
        size_t row = c.row[atom], of_type = (size_t)c.types[atom] * width;
        double *got = o.of_atoms + row * width, *dl = o.dl_of_atoms + row * width;
        for (int k = lane; k < width; k += 32) {
            got[k] = (double)op.x.v[(size_t)atom * op.x.ld + k] * o.scale[of_type + k] + o.shift[of_type + k];
            dl[k] = 0.0;
        }
        if (!compares) continue;
        const Entry e = c.entries[c.frame[atom]];
        const double* label = part_of<double>(e, ATOM_OUTPUT) + (size_t)(c.place[atom] - e.place) * width;
        double squares[2] = {}, count = atom_numbers(b, o);
        compare(dl, squares, got, label, width, square_weight(b, 0, count), square_weight(b, 1, count));
        for (int k = 0; k < 2; k++) {
            double sum = warp_sum(squares[k]);
            if (lane == 0) o.row_sums[2 * row + k] = sum;
        }
    }
}

struct Measured { double value, slope; };

// A function of an error; that of BY_RMSE is the square. `label` is that of the error, which BY_MAPE divides by: 0.001 is added to it.
__device__ __forceinline__ Measured measure(int function, double x, double label, double beta) {
    if (function == BY_MAPE) x /= label + 1e-3;
    double sign = x == 0.0 ? 0.0 : copysign(1.0, x);
    if (function == BY_MSE || function == BY_RMSE) return {x * x, 2.0 * x};
    if (function == BY_MAPE) return {fabs(x), sign / (label + 1e-3)};
    if (function == BY_MAE) return {fabs(x), sign};
    if (fabs(x) < beta) return {0.5 * x * x / beta, x / beta};
    return {fabs(x) - 0.5 * beta, sign};
}

// One number of a property against its label: adds to the loss and to what is shown; dL but for a factor.
__device__ __forceinline__ double compare_property(double (&sums)[FRAME_SUMS], const Outputs& o, double got, double label, double share,
                                                   double unit) {
    got *= share, label *= share;
    if (o.function == BY_MAPE) unit = 1.0;
    Measured own = measure(o.function, (got - label) / unit, label, o.beta);
    sums[0] += own.value;
    for (int k = 0; k < MEASURES; k++) sums[1 + k] += measure(k, got - label, label, o.beta).value;
    return own.slope / unit * share;
}

// Outputs of frames, the terms of the loss that look at them, and their seeds: the blocks take the frames in turn.
extern "C" __global__ void __launch_bounds__(256) plan_frame_outputs(const __grid_constant__ Batch b, const Entry* entries,
                                                                     const __grid_constant__ Outputs o) {
    __shared__ double scratch[8];
    after_previous();
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, width = o.width;
    for (int f = blockIdx.x; f < frames_of(b); f += gridDim.x) {
        const Entry e = entries[f];
        int n = (int)((const u32*)e.at)[CENTERS];
        const double* rows = o.of_atoms + (size_t)e.row * width;
        double *got = o.of_frames + (size_t)f * width, *dl = o.dl_of_frames + (size_t)f * width;
        for (int k = warp; k < width; k += 8) {
            double sum = 0;
            for (int i = lane; i < n; i += 32) sum += rows[(size_t)i * width + k];
            sum = warp_sum(sum);
            if (lane == 0) got[k] = o.is_mean ? sum / n : sum, dl[k] = 0.0;
        }
        if (o.loss == NO_LOSS) continue;
        __syncthreads();
        double sums[FRAME_SUMS] = {};
        const double* label = part_of<double>(e, OUTPUT);
        if (o.loss == BY_PROPERTY) {
            for (int k = threadIdx.x; k < width; k += blockDim.x)
                dl[k] = compare_property(sums, o, got[k], label[k], o.is_mean ? 1.0 : 1.0 / n, o.unit[k]);
        } else {
            if (b.turn->terms & 3)
                for (int i = threadIdx.x; i < n; i += blockDim.x)
                    for (int k = 0; k < 2; k++) sums[k] += o.row_sums[2 * (size_t)(e.row + i) + k];
            double squares[2] = {}, count = frame_numbers(b, o);
            if (b.turn->terms & 12 && warp == 0)
                compare(dl, squares, got, label, width, square_weight(b, 2, count), square_weight(b, 3, count));
            sums[2] = squares[0], sums[3] = squares[1];
        }
        for (int k = 0; k < FRAME_SUMS; k++) {
            double sum = block_sum(sums[k], scratch);
            if (threadIdx.x == 0) o.frame_sums[FRAME_SUMS * (size_t)f + k] = sum;
        }
    }
}

// The loss of the batch and its displayed errors; what the seeds of frames are multiplied by. Remembers a loss that is not finite.
extern "C" __global__ void __launch_bounds__(256) plan_batch_outputs(const __grid_constant__ Batch b, const __grid_constant__ Outputs o) {
    __shared__ double scratch[8];
    after_previous();
    double sums[FRAME_SUMS] = {}, n_frames = frames_of(b), loss = 0, factor = 1;
    for (int f = threadIdx.x; f < (int)n_frames; f += blockDim.x)
        for (int k = 0; k < FRAME_SUMS; k++) sums[k] += o.frame_sums[FRAME_SUMS * (size_t)f + k];
    for (int k = 0; k < FRAME_SUMS; k++) sums[k] = block_sum(sums[k], scratch);
    if (threadIdx.x != 0) return;
    double* out = b.values + (size_t)16 * b.turn->place;
    double count = frame_numbers(b, o);
    if (o.loss == BY_PROPERTY) {
        for (int k = 0; k < MEASURES; k++) out[1 + k] = k == BY_RMSE ? sqrt(sums[1 + k] / count) : sums[1 + k] / count;
        loss = sums[0];
        if (o.function == BY_MAPE) loss /= count, factor = 1.0 / count;
        if (o.function == BY_RMSE) loss = sqrt(loss / count), factor = loss == 0.0 ? 0.0 : 0.5 / (count * loss);
    } else {
        // In float32 as in loss/squares.rs, so that the digits agree.
        double mean_atoms = (double)((float)real_atoms_of(b) / (float)n_frames);
        for (int term = 0; term < SQUARES; term++) {
            double mean = sums[term] / (term < 2 ? atom_numbers(b, o) : count);
            if (has_term(b, term)) loss += b.turn->weight[term] * mean;
            // Without labels not a number.
            out[1 + term] = has_term(b, term) ? sqrt(mean) / (term < 2 ? 1.0 : mean_atoms) : nan("");
        }
    }
    out[0] = loss, *o.factor = factor;
    // A batch that is only looked at counts no gradient.
    if (!isfinite(loss) && b.turn->count > 0.0) atomicCAS(&b.status->bad_step, 0u, b.turn->step + 1);
}

// dL of the outputs of the nets, x.
extern "C" __global__ void __launch_bounds__(256) plan_output_seeds(const __grid_constant__ Chunk c, const __grid_constant__ Outputs o,
                                                                    const __grid_constant__ Op op) {
    after_previous();
    int width = o.width;
    double factor = *o.factor;
    ELEMENTS(i, (size_t)atoms_of(c) * width) {
        size_t atom = i / width, k = i % width;
        u32 f = c.frame[atom];
        double share = o.is_mean ? factor / ((const u32*)c.entries[f].at)[CENTERS] : factor;
        double dl = o.dl_of_frames[(size_t)f * width + k] * share + o.dl_of_atoms[(size_t)c.row[atom] * width + k];
        op.x.g[atom * op.x.ld + k] = (real)(dl * o.scale[(size_t)c.types[atom] * width + k]);
    }
}

// ---- Outputs that turn with the atoms, y: from the numbers of the nets, x, and the directions r_m of A, u, `[4, n_out]`. w: what x is multiplied
// by, for each type. Sums are in double precision: they are short beside the nets.

struct Vector { double x[3]; };

__device__ __forceinline__ Vector direction(const Op& op, size_t atom, int m) {
    const real* a = op.u.v + atom * op.u.ld + m;
    return {{(double)a[op.n_out], (double)a[2 * op.n_out], (double)a[3 * op.n_out]}};
}
__device__ __forceinline__ double dot(Vector a, Vector b) { return a.x[0] * b.x[0] + a.x[1] * b.x[1] + a.x[2] * b.x[2]; }

extern "C" __global__ void __launch_bounds__(256) plan_turned(const __grid_constant__ Op op) {
    after_previous();
    int lane = threadIdx.x % 32, m1 = op.n_out, width = op.kind == VECTOR ? 3 : 9;
    WARP_ROWS(atom, rows_of(op)) {
        const real* x = op.x.v + (size_t)atom * op.x.ld;
        double sums[9] = {}, scale = (double)op.w[op.index[atom]];
        for (int m = lane; m < m1; m += 32) {
            Vector r = direction(op, atom, m), row = {};
            if (op.kind != MATRIX) {
                for (int k = 0; k < width; k++) sums[k] += (double)x[m] * (op.kind == VECTOR ? r.x[k] : r.x[k / 3] * r.x[k % 3]);
                continue;
            }
            for (int n = 0; n < m1; n++) {
                Vector other = direction(op, atom, n);
                for (int k = 0; k < 3; k++) row.x[k] += (double)x[(size_t)n * m1 + m] * other.x[k];
            }
            for (int k = 0; k < 9; k++) sums[k] += r.x[k / 3] * row.x[k % 3];
        }
        for (int k = 0; k < width; k++) sums[k] = scale * warp_sum(sums[k]);
        // Of the numbers of a net only the symmetric part counts.
        if (lane == 0)
            for (int k = 0; k < width; k++)
                op.y.v[(size_t)atom * op.y.ld + k] = (real)(op.kind == MATRIX ? 0.5 * (sums[k] + sums[k % 3 * 3 + k / 3]) : sums[k]);
    }
}

// Puts dL/dx, and adds what comes to A by way of its directions.
extern "C" __global__ void __launch_bounds__(256) plan_turned_back(const __grid_constant__ Op op) {
    after_previous();
    int lane = threadIdx.x % 32, m1 = op.n_out;
    WARP_ROWS(atom, rows_of(op)) {
        const real *x = op.x.v + (size_t)atom * op.x.ld, *dy = op.y.g + (size_t)atom * op.y.ld;
        real *dx = op.x.g + (size_t)atom * op.x.ld, *da = op.u.g + (size_t)atom * op.u.ld;
        double scale = (double)op.w[op.index[atom]], tensor[9] = {};
        for (int k = 0; k < 9 && op.kind != VECTOR; k++) tensor[k] = 0.5 * ((double)dy[k] + (double)dy[k % 3 * 3 + k / 3]);
        for (int m = lane; m < m1; m += 32) {
            Vector r = direction(op, atom, m), turned, dr = {};
            for (int i = 0; i < 3; i++)
                turned.x[i] = op.kind == VECTOR ? (double)dy[i] : tensor[3 * i] * r.x[0] + tensor[3 * i + 1] * r.x[1] + tensor[3 * i + 2] * r.x[2];
            if (op.kind != MATRIX) {
                dx[m] = (real)(scale * dot(r, turned));
                for (int k = 0; k < 3; k++) dr.x[k] = (op.kind == VECTOR ? 1.0 : 2.0) * (double)x[m] * turned.x[k];
            } else {
                Vector sum = {};
                for (int n = 0; n < m1; n++) {
                    Vector other = direction(op, atom, n);
                    dx[(size_t)n * m1 + m] = (real)(scale * dot(other, turned));
                    double both = (double)x[(size_t)n * m1 + m] + (double)x[(size_t)m * m1 + n];
                    for (int k = 0; k < 3; k++) sum.x[k] += both * other.x[k];
                }
                for (int k = 0; k < 3; k++) dr.x[k] = tensor[3 * k] * sum.x[0] + tensor[3 * k + 1] * sum.x[1] + tensor[3 * k + 2] * sum.x[2];
            }
            for (int k = 0; k < 3; k++) da[(1 + k) * m1 + m] += (real)(scale * dr.x[k]);
        }
    }
}
