// From outputs of atoms to energies, the loss and its seeds: engine/pinet/pool.rs, loss/pinn.

enum { E, E_PER_ATOM, F, S, Q, D, D_PER_ATOM };
enum { NO_LOSS, POTENTIAL, DIPOLE };
enum { POOL_SUM, POOL_AVG, POOL_MAX, POOL_MIN };

// One error: its share of the sums, and d(term)/d(prediction). A weight that is not a number leaves it out of the loss.
__device__ __forceinline__ double error(double* sums, double predicted, double label, double weight, double divisor) {
    double e = predicted - label;
    sums[0] += fabs(e);
    sums[1] += e * e;
    if (isnan(weight)) return 0;
    sums[2] += weight * e * e / divisor;
    return 2 * weight * e / divisor;
}

// Outputs and energies: one warp for each structure.
extern "C" __global__ void __launch_bounds__(128) energies(const __grid_constant__ Batch b) {
    u32 lane = threadIdx.x % 32;
    for (u32 s = blockIdx.x * 4 + threadIdx.x / 32; s < b.turn->n_structures; s += gridDim.x * 4) {
        const Entry entry = b.turn->entries[s];
        u32 first = entry.first_atom, end = first + entry.n_atoms;
        double sum = 0, best = 0, ties = 0;
        bool extreme = b.pool >= POOL_MAX, any = false;
        for (u32 a = first + lane; a < end; a += 32) {
            double out = 0;
            for (int k = 0; k < b.n_outputs; k++) out += (double)b.out_value[k][a];
            b.atomic[a] = out;
            sum += out;
            if (!any || (b.pool == POOL_MAX ? out > best : out < best)) best = out;
            any = true;
        }
        sum = warp_sum(sum);
        if (extreme) {
            for (int step = 16; step > 0; step >>= 1) {
                double other = __shfl_xor_sync(FULL_WARP, best, step);
                bool there = __shfl_xor_sync(FULL_WARP, (int)any, step);
                if (there && (!any || (b.pool == POOL_MAX ? other > best : other < best))) best = other;
                any = any || there;
            }
            for (u32 a = first + lane; a < end; a += 32) ties += b.atomic[a] == best;
            ties = warp_sum(ties);
        }
        double n = entry.n_atoms > 0 ? entry.n_atoms : 1;
        for (u32 a = first + lane; a < end; a += 32) {
            double share = extreme ? (b.atomic[a] == best ? 1 / ties : 0) : b.pool == POOL_AVG ? 1 / n : 1;
            b.share[a] = share;
            if (!b.forces) continue;
            for (int k = 0; k < b.n_outputs; k++) b.out_de[k][a] = share;
        }
        if (lane == 0) b.energy[s] = extreme ? (any ? best : 0) : b.pool == POOL_AVG ? sum / n : sum;
    }
}

__device__ __forceinline__ void dipole_loss(const Batch& b, u32 s, const Entry& entry, const Structure& from, double* sums) {
    u32 lane = threadIdx.x % 32;
    double q = 0, mu[3] = {};
    for (u32 a = lane; a < entry.n_atoms; a += 32) {
        double charge = b.atomic[entry.first_atom + a];
        q += charge;
        for (int k = 0; k < 3; k++) mu[k] += charge * from.coord[3 * a + k];
    }
    q = warp_sum(q);
    for (int k = 0; k < 3; k++) mu[k] = warp_sum(mu[k]);
    double length = sqrt(mu[0] * mu[0] + mu[1] * mu[1] + mu[2] * mu[2] + 1e-6);
    double n = entry.n_atoms, none = __longlong_as_double(0x7ff8000000000000LL);
    bool per_atom = b.counted >> D_PER_ATOM & 1;
    double label = from.head[D_LABEL], weight = from.head[D_WEIGHT], divisor = b.turn->divisor[3];
    double on_q = error(sums + 3 * Q, q, 0, 1, b.turn->n_structures);
    double on_d = error(sums + 3 * D, length, label, per_atom ? none : weight, divisor);
    on_d += error(sums + 3 * D_PER_ATOM, length / n, label / n, per_atom ? weight : none, divisor) / n;
    for (u32 a = lane; a < entry.n_atoms; a += 32) {
        const double* x = from.coord + 3 * a;
        b.dl_atomic[entry.first_atom + a] = on_q + on_d / length * (mu[0] * x[0] + mu[1] * x[1] + mu[2] * x[2]);
    }
    if (lane == 0) b.dl_energy[s] = 0;
}

__device__ __forceinline__ void potential_loss(const Batch& b, u32 s, const Entry& entry, const Structure& from, double* sums) {
    u32 lane = threadIdx.x % 32;
    double n = entry.n_atoms, none = __longlong_as_double(0x7ff8000000000000LL);
    bool per_atom = b.counted >> E_PER_ATOM & 1;
    double label = from.head[E_LABEL], weight = from.head[E_WEIGHT], energy = b.energy[s];
    double on_e = error(sums + 3 * E, energy, label, per_atom ? none : weight, b.turn->divisor[0]);
    on_e += error(sums + 3 * E_PER_ATOM, energy / n, label / n, per_atom ? weight : none, b.turn->divisor[0]) / n;
    u32 dropped = b.turn->dropped;
    if (lane == 0) b.dl_energy[s] = dropped & DROP_ENERGY ? 0 : on_e;
    for (u32 a = lane; a < entry.n_atoms; a += 32) b.dl_atomic[entry.first_atom + a] = 0;
    if (!b.forces) return;
    bool on_force = b.counted >> F & 1, on_stress = b.counted >> S & 1;
    double part[3] = {};
    const u32* chosen = b.turn->chosen ? (const u32*)((const char*)b.turn + b.turn->chosen) : nullptr;
    for (u32 k = lane; k < 3 * entry.n_atoms; k += 32) {
        size_t at = 3 * (size_t)entry.first_atom + k;
        bool counts = !chosen || chosen[at / 32] >> at % 32 & 1;
        double seed = on_force ? error(part, b.force[at], from.force[k], counts ? from.force_weight[k] : none, b.turn->divisor[1]) : 0;
        b.dl_force[at] = dropped & DROP_FORCE ? 0 : seed;
    }
    for (int k = 0; k < 3; k++) sums[3 * F + k] = warp_sum(part[k]);
    for (int k = 0; k < 3; k++) part[k] = 0;
    if (lane < 9) {
        double volume = from.head[VOLUME], seed = 0;
        if (on_stress) seed = error(part, b.stress[9 * s + lane] / volume, from.head[S_LABEL + lane], b.s_weight, b.turn->divisor[2]) / volume;
        b.dl_stress[9 * s + lane] = dropped & DROP_STRESS ? 0 : seed;
    }
    for (int k = 0; k < 3; k++) sums[3 * S + k] = warp_sum(part[k]);
}

// The loss of every structure and its seeds: one warp each.
extern "C" __global__ void __launch_bounds__(128) losses(const __grid_constant__ Batch b) {
    for (u32 s = blockIdx.x * 4 + threadIdx.x / 32; s < b.turn->n_structures; s += gridDim.x * 4) {
        const Entry entry = b.turn->entries[s];
        Structure from(entry, b.n_basis, b.n_sizes);
        double sums[3 * KINDS] = {};
        if (b.model == POTENTIAL) potential_loss(b, s, entry, from, sums);
        else dipole_loss(b, s, entry, from, sums);
        if (threadIdx.x % 32 == 0)
            for (int k = 0; k < 3 * KINDS; k++) b.sums[3 * KINDS * s + k] = sums[k];
    }
}

// Sums over structures, and the loss with its regulariser: one block.
//
// - pull  [n_params]  derivative of the regulariser for each parameter over the parameter
extern "C" __global__ void __launch_bounds__(32 * (3 * KINDS + 1)) sum_values(const __grid_constant__ Batch b, const double* params,
                                                                              const double* pull, u32 n_params) {
    __shared__ double all[3 * KINDS + 1];
    u32 lane = threadIdx.x % 32, which = threadIdx.x / 32;
    double sum = 0;
    if (which < 3 * KINDS)
        for (u32 s = lane; s < b.turn->n_structures; s += 32) sum += b.sums[3 * KINDS * s + which];
    else if (pull)
        for (u32 k = lane; k < n_params; k += 32) sum += 0.5 * pull[k] * params[k] * params[k];
    sum = warp_sum(sum);
    if (lane == 0) all[which] = sum;
    __syncthreads();
    if (threadIdx.x > 0) return;
    double loss = all[3 * KINDS];
    for (int k = 0; k < KINDS; k++) loss += all[3 * k + 2];
    b.values[0] = loss;
    for (int k = 0; k <= 3 * KINDS; k++) b.values[1 + k] = all[k];
    if (!isfinite(loss) && b.status->bad_step == 0) b.status->bad_step = b.turn->step + 1;
}

// dL/doutput of every atom.
extern "C" __global__ void __launch_bounds__(256) seed_outputs(const __grid_constant__ Batch b) {
    EACH(a, b.turn->n_atoms) {
        real dl = b.dl_atomic[a] + b.dl_energy[b.structure[a]] * b.share[a];
        for (int k = 0; k < b.n_outputs; k++) b.out_dl[k][a] = dl;
    }
}
