// Forces, energies and virials of a batch, the loss and its seeds: engine/cpu/blocks.rs (collect) and loss/ener.rs.

enum { MSE, MAE, HUBER };
enum { ENERGY_TERM, FORCE_TERM, VIRIAL_TERM, ATOM_ENERGY_TERM, PREF_FORCE_TERM };

struct Penalty { double value, slope; };

__device__ __forceinline__ Penalty penalty(int function, double delta, double x) {
    if (function == MSE) return {x * x, 2.0 * x};
    double sign = x == 0.0 ? 0.0 : copysign(1.0, x);
    if (function == MAE) return {fabs(x), sign};
    if (fabs(x) <= delta) return {0.5 * x * x, x};
    return {delta * (fabs(x) - 0.5 * delta), delta * copysign(1.0, x)};
}

// An extensive error, divided by the number of atoms as the options say.
__device__ __forceinline__ Penalty extensive(const Batch& b, double error, double per_atom, double delta) {
    if (b.function == MSE) {
        double norm = b.intensive ? per_atom * per_atom : per_atom;
        return {error * error * norm, 2.0 * error * norm};
    }
    Penalty p = penalty(b.function, delta, error * per_atom);
    return {p.value, p.slope * per_atom};
}

__device__ __forceinline__ bool has_term(const Batch& b, int term) { return b.turn->terms >> term & 1; }

// The energy of one input row without the bias of its type, on every lane of a warp.
__device__ __forceinline__ double energy_of(const Batch& b, int center, u32 input) {
    const real* y = b.y_last[center] + (rows_before(b, center, 2) + input - b.group_row[center]) * b.ld_last;
    const real* w = b.w_out[center];
    double sum = 0;
    constexpr int MANY = 8;
    for (int i0 = threadIdx.x % 32; i0 < b.n_last; i0 += 32 * MANY) {
        real a[MANY], c[MANY];
#pragma unroll
        for (int k = 0; k < MANY; k++) {
            bool is_there = i0 + 32 * k < b.n_last;
            a[k] = is_there ? y[i0 + 32 * k] : real(0), c[k] = is_there ? w[i0 + 32 * k] : real(0);
        }
#pragma unroll
        for (int k = 0; k < MANY; k++) sum = fma((double)a[k], (double)c[k], sum);
    }
    return warp_sum(sum);
}

// The force terms of the loss for one atom, on one thread.
__device__ __forceinline__ void force_terms(const Batch& b, const Frame& frame, u32 terms, const double* label,
                                            const double* weights, int atom, const double* force, double* seeds,
                                            double* sums) {
    bool has_force = terms >> FORCE_TERM & 1, has_pref = terms >> PREF_FORCE_TERM & 1;
    if (!has_force && !has_pref) return;
    double error[3], square = 0, norm = 1.0;
    if (!isnan(b.relative_f))
        norm = sqrt(label[0] * label[0] + label[1] * label[1] + label[2] * label[2]) + b.relative_f;
    for (int k = 0; k < 3; k++) error[k] = (force[k] - label[k]) / norm, square += error[k] * error[k];
    double length = sqrt(square);
    if (has_force) {
        double weight = weights[0], penalties = b.f_use_norm ? real_atoms_of(b) : 3.0 * real_atoms_of(b);
        sums[1] = square;
        bool norms = b.f_use_norm && b.function == MAE;
        sums[2] = norms ? length : fabs(error[0]) + fabs(error[1]) + fabs(error[2]);
        for (int k = 0; k < 3; k++) {
            Penalty p = penalty(b.function, b.delta[1], b.f_use_norm ? length : error[k]);
            if (b.f_use_norm) p = {p.value / 3.0, length == 0.0 ? 0.0 : p.slope * error[k] / length};
            sums[0] += p.value;
            seeds[k] += weight * p.slope / (norm * penalties);
        }
    }
    if (has_pref) {
        double weight = weights[1], count = 3.0 * real_atoms_of(b);
        for (int k = 0; k < 3; k++) {
            double pref = frame.atom_pref ? frame.atom_pref[3 * atom + k] : 1.0;
            Penalty p = penalty(b.function, 0.0, error[k]);
            sums[3] += pref * p.value;
            sums[4] += pref * error[k] * error[k];
            sums[5] += pref * fabs(error[k]);
            seeds[k] += weight * pref * p.slope / (norm * count);
        }
    }
}

// Adds dE/dd of pairs to a lane's part of a force, or takes off that of the pairs that a table names.
__device__ __forceinline__ void add_pairs(double (&force)[3], const real* de_d, const u32* table, u32 first, u32 end) {
    constexpr int MANY = 6;
    for (u32 p0 = first + threadIdx.x % 32; p0 < end; p0 += 32 * MANY) {
        u32 at[MANY];
        real e[MANY][3];
#pragma unroll
        for (int i = 0; i < MANY; i++) at[i] = p0 + 32 * i < end ? (table ? table[p0 + 32 * i] : p0 + 32 * i) : ~0u;
#pragma unroll
        for (int i = 0; i < MANY; i++)
#pragma unroll
            for (int k = 0; k < 3; k++) e[i][k] = at[i] != ~0u ? de_d[3 * (size_t)at[i] + k] : real(0);
#pragma unroll
        for (int i = 0; i < MANY; i++)
#pragma unroll
            for (int k = 0; k < 3; k++) force[k] += table ? -(double)e[i][k] : (double)e[i][k];
    }
}

// Force and energy of every row, and the seeds of the force terms: one warp for each row.
extern "C" __global__ void collect(const __grid_constant__ Batch b) {
    int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
    if (row >= rows_of(b)) return;
    // Frames and slots do not change in a step.
    int f = b.row_frame[row], local = b.row_local[row], center = center_of_row(b, row);
    const Frame frame = b.frames[b.turn->slots[f]];
    const real* de_d = b.de_d + (size_t)f * pair_stride_of(b) * 3;
    const u32* start = frame.pair_start + (size_t)local * b.n_types;
    u32 atom = frame.order[local];
    u32 first = start[0], end = start[b.n_types];
    u32 reverse_first = frame.reverse_start[atom], reverse_end = frame.reverse_start[atom + 1];
    u32 terms = b.turn->terms;
    double weights[2] = {b.turn->weight[FORCE_TERM], b.turn->weight[PREF_FORCE_TERM]}, label[3] = {};
    if (b.used && frame.force)
        for (int k = 0; k < 3; k++) label[k] = frame.force[3 * atom + k];
    after_previous();
    double force[3] = {};
    add_pairs(force, de_d, nullptr, first, end);
    add_pairs(force, de_d, frame.reverse, reverse_first, reverse_end);
    for (int k = 0; k < 3; k++) force[k] = warp_sum(force[k]);
    double energy = energy_of(b, center, b.row_input[row]) + (b.b_out[center] ? (double)*b.b_out[center] : 0.0);
    u32 vacuum = b.row_vacuum[row];
    if (vacuum != ~0u) energy -= energy_of(b, center, vacuum) + (b.b_out[center] ? (double)*b.b_out[center] : 0.0);
    if (lane != 0) return;
    size_t at = (size_t)f * atom_stride_of(b) + atom;
    b.atom_energy[at] = energy + b.bias[center];
    for (int k = 0; k < 3; k++) b.force[3 * at + k] = force[k];
    if (!b.used) return;
    double seeds[3] = {}, sums[6] = {};
    force_terms(b, frame, terms, label, weights, atom, force, seeds, sums);
    for (int k = 0; k < 3; k++) b.dl_force[3 * at + k] = seeds[k];
    for (int k = 0; k < 6; k++) b.row_sums[(size_t)6 * row + k] = sums[k];
}

__device__ __forceinline__ void energy_seed(const Batch& b, int row, double dl_energy, double dl_atom_energy) {
    real dl = (real)(dl_energy + dl_atom_energy);
    b.dl_e[b.row_input[row]] = dl;
    if (b.row_vacuum[row] != ~0u) b.dl_e[b.row_vacuum[row]] = -dl;
}

// dL/denergy of every row, from seeds that the host made.
extern "C" __global__ void energy_seeds(const __grid_constant__ Batch b) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    after_previous();
    if (row >= rows_of(b)) return;
    int f = b.row_frame[row];
    u32 atom = b.frames[b.turn->slots[f]].order[b.row_local[row]];
    energy_seed(b, row, b.dl_energy[f], b.dl_atom_energy[(size_t)f * atom_stride_of(b) + atom]);
}

// Energy and virial of a frame, the terms of the loss that follow from them and their seeds.
__device__ __forceinline__ void sum_frame(const Batch& b, int f, double* scratch) {
    const Frame frame = b.frames[b.turn->slots[f]];
    size_t first = (size_t)f * atom_stride_of(b);
    double energy = 0, compared = 0, virial[9] = {}, force[6] = {}, atoms[3] = {};
    bool weighs = b.use_coeff && frame.atom_coeff;
    bool has_atoms = b.used && has_term(b, ATOM_ENERGY_TERM);
    for (int t = 0; t < b.n_types; t++) {
        int row = b.frame_rows[2 * (f * b.n_types + t)], n = b.frame_rows[2 * (f * b.n_types + t) + 1];
        for (int r = row + threadIdx.x; r < row + n; r += blockDim.x) {
            u32 atom = frame.order[b.row_local[r]];
            double e = b.atom_energy[first + atom];
            energy += e;
            compared += weighs ? frame.atom_coeff[atom] * e : e;
            if (b.wants_virial)
                for (int k = 0; k < 9; k++) virial[k] += b.row_virial[(size_t)9 * r + k];
            if (!b.used) continue;
            for (int k = 0; k < 6; k++) force[k] += b.row_sums[(size_t)6 * r + k];
            if (has_atoms) {
                double error = e - frame.atom_energy[atom];
                atoms[0] += penalty(b.function, b.delta[0], error).value;
                atoms[1] += error * error, atoms[2] += fabs(error);
            }
        }
    }
    energy = block_sum(energy, scratch);
    if (threadIdx.x == 0) b.energy[f] = energy;
    if (b.wants_virial)
        for (int k = 0; k < 9; k++) {
            virial[k] = block_sum(virial[k], scratch);
            if (threadIdx.x == 0) b.virial[9 * f + k] = virial[k];
        }
    if (!b.used) return;
    compared = block_sum(compared, scratch);
    for (int k = 0; k < 6; k++) force[k] = block_sum(force[k], scratch);
    if (has_atoms)
        for (int k = 0; k < 3; k++) atoms[k] = block_sum(atoms[k], scratch);
    double dl_energy = 0, energy_sums[3] = {}, virial_sums[3] = {};
    if (has_term(b, ENERGY_TERM)) {
        double error = compared - frame.energy, scaled = error * frame.per_atom;
        Penalty p = extensive(b, error, frame.per_atom, b.delta[0]);
        dl_energy = b.turn->weight[ENERGY_TERM] * p.slope / frames_of(b);
        energy_sums[0] = p.value, energy_sums[1] = scaled * scaled, energy_sums[2] = fabs(scaled);
    }
    double dl_virial[9] = {};
    if (b.wants_virial && has_term(b, VIRIAL_TERM))
        for (int k = 0; k < 9; k++) {
            double error = virial[k] - frame.virial[k], scaled = error * frame.per_atom;
            Penalty p = extensive(b, error, frame.per_atom, b.delta[2]);
            dl_virial[k] = b.turn->weight[VIRIAL_TERM] * p.slope / (9.0 * frames_of(b));
            virial_sums[0] += p.value, virial_sums[1] += scaled * scaled, virial_sums[2] += fabs(scaled);
        }
    for (int t = 0; t < b.n_types; t++) {
        int row = b.frame_rows[2 * (f * b.n_types + t)], n = b.frame_rows[2 * (f * b.n_types + t) + 1];
        for (int r = row + threadIdx.x; r < row + n; r += blockDim.x) {
            u32 atom = frame.order[b.row_local[r]];
            double dl_atom = weighs ? frame.atom_coeff[atom] * dl_energy : 0.0;
            if (has_atoms) {
                Penalty p = penalty(b.function, b.delta[0], b.atom_energy[first + atom] - frame.atom_energy[atom]);
                dl_atom += b.turn->weight[ATOM_ENERGY_TERM] * p.slope / real_atoms_of(b);
            }
            energy_seed(b, r, weighs ? 0.0 : dl_energy, dl_atom);
        }
    }
    if (threadIdx.x != 0) return;
    for (int k = 0; k < 9; k++) b.dl_virial[9 * f + k] = dl_virial[k];
    double* sums = b.frame_sums + (size_t)15 * f;
    for (int k = 0; k < 3; k++) {
        sums[3 * ENERGY_TERM + k] = energy_sums[k];
        sums[3 * FORCE_TERM + k] = force[k];
        sums[3 * VIRIAL_TERM + k] = virial_sums[k];
        sums[3 * ATOM_ENERGY_TERM + k] = atoms[k];
        sums[3 * PREF_FORCE_TERM + k] = force[3 + k];
    }
}

// The blocks take the frames of the batch in turn.
extern "C" __global__ void __launch_bounds__(256) sum_frames(const __grid_constant__ Batch b) {
    __shared__ double scratch[8];
    after_previous();
    int n_frames = frames_of(b);
    for (int f = blockIdx.x; f < n_frames; f += gridDim.x) sum_frame(b, f, scratch);
}

// The loss of the batch and its displayed errors; remembers a loss that is not finite, and the tail of the series.
extern "C" __global__ void __launch_bounds__(256) sum_batch(const __grid_constant__ Batch b,
                                                            const __grid_constant__ Embedding e) {
    __shared__ double scratch[8];
    after_previous();
    bool norms = b.f_use_norm && b.function == MAE;
    double F = frames_of(b), n = real_atoms_of(b);
    double penalties[5] = {F, b.f_use_norm ? n : 3.0 * n, 9.0 * F, n, 3.0 * n};
    double counts[5] = {F, norms ? n : 3.0 * n, 9.0 * F, n, 3.0 * n};
    double loss = 0;
    double* out = b.values + (size_t)16 * b.turn->place;
    for (int term = 0; term < 5; term++) {
        if (!has_term(b, term)) {
            // Shown as not a number.
            if (threadIdx.x == 0) out[1 + 3 * term] = out[2 + 3 * term] = out[3 + 3 * term] = 0.0;
            continue;
        }
        double sums[3] = {};
        for (int f = threadIdx.x; f < (int)F; f += blockDim.x)
            for (int k = 0; k < 3; k++) sums[k] += b.frame_sums[(size_t)15 * f + 3 * term + k];
        for (int k = 0; k < 3; k++) sums[k] = block_sum(sums[k], scratch);
        loss += b.turn->weight[term] * sums[0] / penalties[term];
        if (threadIdx.x == 0) out[1 + 3 * term] = sums[1], out[2 + 3 * term] = sums[2], out[3 + 3 * term] = counts[term];
    }
    // Tails of the nets, a warp for each.
    double tail = 0;
    for (int net = threadIdx.x / 32; net < e.n_nets; net += blockDim.x / 32) {
        int stack = e.place[net] / e.n_types, type = e.place[net] % e.n_types;
        int end = e.first_panel[type + 1] * e.terms / NODES;
        const double* tails = e.tails + (size_t)2 * stack * (e.columns / NODES);
        double last = 0, largest = 1e-300;
        for (int k = e.first_panel[type] * e.terms / NODES + threadIdx.x % 32; k < end; k += 32) {
            last = fmax(last, tails[2 * k]);
            largest = fmax(largest, tails[2 * k + 1]);
        }
        for (int step = 16; step > 0; step >>= 1) {
            last = fmax(last, __shfl_xor_sync(FULL_WARP, last, step));
            largest = fmax(largest, __shfl_xor_sync(FULL_WARP, largest, step));
        }
        tail = fmax(tail, last / largest);
    }
    __syncthreads();
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = tail;
    __syncthreads();
    if (threadIdx.x != 0) return;
    out[0] = loss;
    // A batch that is only looked at counts no gradient.
    if (!isfinite(loss) && b.turn->count > 0.0) atomicCAS(&b.status->bad_step, 0u, b.turn->step + 1);
    for (int w = 1; w < (int)blockDim.x / 32; w++) tail = fmax(tail, scratch[w]);
    b.status->tail = fmax(b.status->tail, tail);
}
