// Frames that several ranks share: each has the rows of its own block, which act on atoms of all blocks. First what these rows
// bring: forces on all atoms, energies, virials. The ranks add it up; then all of them come to the same loss and seeds. The same
// formulas as in loss.cu, where every atom of a frame is a row.

// Numbers of a chunk of a frame's atoms: the force terms, those of atomic energies, the energy that is compared.
#define CHUNK_SUMS 10

// Force on every atom as a neighbour: one warp for each of [n_frames, atom_stride].
extern "C" __global__ void collect_neighbors(const __grid_constant__ Batch b) {
    int place = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
    after_previous();
    int stride = atom_stride_of(b), f = place / stride, atom = place % stride;
    if (f >= frames_of(b)) return;
    const Frame& frame = b.frames[b.turn->slots[f]];
    if (atom >= (int)frame.n_atoms) return;
    double force[3] = {};
    const real* de_d = b.de_d + (size_t)f * pair_stride_of(b) * 3;
    add_pairs(force, de_d, frame.reverse, frame.reverse_start[atom], frame.reverse_start[atom + 1]);
    for (int k = 0; k < 3; k++) force[k] = warp_sum(force[k]);
    if (threadIdx.x % 32) return;
    for (int k = 0; k < 3; k++) b.force[3 * (size_t)place + k] = force[k];
    b.atom_energy[place] = 0.0;
}

// The rest of the force on every centre, and its energy: one warp for each row.
extern "C" __global__ void collect_centers(const __grid_constant__ Batch b) {
    int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
    after_previous();
    if (row >= rows_of(b)) return;
    int f = b.row_frame[row], center = center_of_row(b, row);
    const Frame& frame = b.frames[b.turn->slots[f]];
    const u32* start = frame.pair_start + (size_t)b.row_local[row] * b.n_types;
    double force[3] = {};
    add_pairs(force, b.de_d + (size_t)f * pair_stride_of(b) * 3, nullptr, start[0], start[b.n_types]);
    for (int k = 0; k < 3; k++) force[k] = warp_sum(force[k]);
    double out = b.b_out[center] ? (double)*b.b_out[center] : 0.0, energy = energy_of(b, center, b.row_input[row]) + out;
    u32 vacuum = b.row_vacuum[row];
    if (vacuum != ~0u) energy -= energy_of(b, center, vacuum) + out;
    if (threadIdx.x % 32) return;
    size_t at = (size_t)f * atom_stride_of(b) + frame.order[b.row_local[row]];
    b.atom_energy[at] = energy + b.bias[center];
    for (int k = 0; k < 3; k++) b.force[3 * at + k] += force[k];
}

// Energy and virial that the rows of a frame bring; the blocks take the frames in turn.
extern "C" __global__ void __launch_bounds__(256) sum_centers(const __grid_constant__ Batch b) {
    __shared__ double scratch[8];
    after_previous();
    for (int f = blockIdx.x; f < frames_of(b); f += gridDim.x) {
        const Frame& frame = b.frames[b.turn->slots[f]];
        double energy = 0, virial[9] = {};
        for (int t = 0; t < b.n_types; t++) {
            int row = b.frame_rows[2 * (f * b.n_types + t)], n = b.frame_rows[2 * (f * b.n_types + t) + 1];
            for (int r = row + threadIdx.x; r < row + n; r += blockDim.x) {
                energy += b.atom_energy[(size_t)f * atom_stride_of(b) + frame.order[b.row_local[r]]];
                if (b.wants_virial)
                    for (int k = 0; k < 9; k++) virial[k] += b.row_virial[(size_t)9 * r + k];
            }
        }
        energy = block_sum(energy, scratch);
        if (threadIdx.x == 0) b.energy[f] = energy;
        for (int k = 0; k < 9; k++) {
            virial[k] = block_sum(virial[k], scratch);
            if (threadIdx.x == 0) b.virial[9 * f + k] = virial[k];
        }
    }
}

// Chunks of a frame's atoms, one for each block.
__device__ __forceinline__ int chunks_of(const Batch& b) { return (atom_stride_of(b) + blockDim.x - 1) / blockDim.x; }

// The seeds of the force terms, and the sums of each chunk of atoms: one thread for each of [n_frames, chunks blockDim].
extern "C" __global__ void __launch_bounds__(256) seed_forces(const __grid_constant__ Batch b) {
    __shared__ double scratch[8];
    after_previous();
    int chunks = chunks_of(b), f = blockIdx.x / chunks;
    if (f >= frames_of(b)) return;
    const Frame& frame = b.frames[b.turn->slots[f]];
    u32 atom = blockIdx.x % chunks * blockDim.x + threadIdx.x, terms = b.turn->terms;
    size_t at = (size_t)f * atom_stride_of(b) + atom;
    double sums[CHUNK_SUMS] = {}, seeds[3] = {};
    if (atom < frame.n_atoms) {
        if (frame.is_real[atom]) {
            double weights[2] = {b.turn->weight[FORCE_TERM], b.turn->weight[PREF_FORCE_TERM]}, label[3] = {};
            if (frame.force)
                for (int k = 0; k < 3; k++) label[k] = frame.force[3 * (size_t)atom + k];
            force_terms(b, frame, terms, label, weights, atom, b.force + 3 * at, seeds, sums);
            double e = b.atom_energy[at];
            if (has_term(b, ATOM_ENERGY_TERM)) {
                double error = e - frame.atom_energy[atom];
                sums[6] = penalty(b.function, b.delta[0], error).value, sums[7] = error * error, sums[8] = fabs(error);
            }
            if (b.use_coeff && frame.atom_coeff) sums[9] = frame.atom_coeff[atom] * e;
        }
        for (int k = 0; k < 3; k++) b.dl_force[3 * at + k] = seeds[k];
    }
    for (int k = 0; k < CHUNK_SUMS; k++) {
        double sum = block_sum(sums[k], scratch);
        if (threadIdx.x == 0) b.row_sums[(size_t)CHUNK_SUMS * blockIdx.x + k] = sum;
    }
}

// The terms of the loss of a frame and the seeds of its energy and virial; the blocks take the frames in turn, with as many threads
// as seed_forces.
extern "C" __global__ void __launch_bounds__(256) seed_frames(const __grid_constant__ Batch b) {
    __shared__ double scratch[8];
    after_previous();
    int chunks = chunks_of(b);
    for (int f = blockIdx.x; f < frames_of(b); f += gridDim.x) {
        const Frame& frame = b.frames[b.turn->slots[f]];
        double sums[CHUNK_SUMS] = {};
        for (int chunk = threadIdx.x; chunk < chunks; chunk += blockDim.x)
            for (int k = 0; k < CHUNK_SUMS; k++)
                sums[k] += b.row_sums[(size_t)CHUNK_SUMS * (f * chunks + chunk) + k];
        for (int k = 0; k < CHUNK_SUMS; k++) sums[k] = block_sum(sums[k], scratch);
        if (threadIdx.x) continue;
        double dl_energy = 0, energy[3] = {}, virial[3] = {};
        if (has_term(b, ENERGY_TERM)) {
            double error = (b.use_coeff && frame.atom_coeff ? sums[9] : b.energy[f]) - frame.energy;
            double scaled = error * frame.per_atom;
            Penalty p = extensive(b, error, frame.per_atom, b.delta[0]);
            dl_energy = b.turn->weight[ENERGY_TERM] * p.slope / frames_of(b);
            energy[0] = p.value, energy[1] = scaled * scaled, energy[2] = fabs(scaled);
        }
        b.dl_energy[f] = dl_energy;
        for (int k = 0; k < 9; k++) {
            double seed = 0;
            if (b.wants_virial && has_term(b, VIRIAL_TERM)) {
                double error = b.virial[9 * f + k] - frame.virial[k], scaled = error * frame.per_atom;
                Penalty p = extensive(b, error, frame.per_atom, b.delta[2]);
                seed = b.turn->weight[VIRIAL_TERM] * p.slope / (9.0 * frames_of(b));
                virial[0] += p.value, virial[1] += scaled * scaled, virial[2] += fabs(scaled);
            }
            b.dl_virial[9 * f + k] = seed;
        }
        double* out = b.frame_sums + (size_t)15 * f;
        for (int k = 0; k < 3; k++) {
            out[3 * ENERGY_TERM + k] = energy[k];
            out[3 * FORCE_TERM + k] = sums[k];
            out[3 * VIRIAL_TERM + k] = virial[k];
            out[3 * ATOM_ENERGY_TERM + k] = sums[6 + k];
            out[3 * PREF_FORCE_TERM + k] = sums[3 + k];
        }
    }
}

// dL/denergy of every row.
extern "C" __global__ void seed_centers(const __grid_constant__ Batch b) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    after_previous();
    if (row >= rows_of(b)) return;
    int f = b.row_frame[row];
    const Frame& frame = b.frames[b.turn->slots[f]];
    u32 atom = frame.order[b.row_local[row]];
    bool weighs = b.use_coeff && frame.atom_coeff;
    double dl_atom = weighs ? frame.atom_coeff[atom] * b.dl_energy[f] : 0.0;
    if (has_term(b, ATOM_ENERGY_TERM)) {
        double error = b.atom_energy[(size_t)f * atom_stride_of(b) + atom] - frame.atom_energy[atom];
        dl_atom += b.turn->weight[ATOM_ENERGY_TERM] * penalty(b.function, b.delta[0], error).slope / real_atoms_of(b);
    }
    energy_seed(b, row, weighs ? 0.0 : b.dl_energy[f], dl_atom);
}
