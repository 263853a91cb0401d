// A batch from its structures, forces and stress from adjoints of pairs, and the direction of the second pass.

// Joins structures: one block for each.
extern "C" __global__ void __launch_bounds__(256) gather(const __grid_constant__ Batch b) {
    const Turn& turn = *b.turn;
    for (u32 s = blockIdx.x; s < turn.n_structures; s += gridDim.x) {
        const Entry entry = turn.entries[s];
        Structure from(entry, b.n_basis, b.n_sizes);
        size_t a = entry.first_atom, p = entry.first_pair;
        for (u32 k = threadIdx.x; k <= entry.n_atoms; k += blockDim.x) {
            // The last one is also the first of the next structure, with the same value.
            b.start[a + k] = from.start[k] + p;
            b.start_j[a + k] = from.start_j[k] + p;
        }
        for (u32 k = threadIdx.x; k < entry.n_atoms; k += blockDim.x) b.structure[a + k] = s;
        for (u32 k = threadIdx.x; k < entry.n_atoms * b.n_types; k += blockDim.x) {
            b.input[a * b.n_types + k] = from.column[k / b.n_types] == k % b.n_types ? real(1) : real(0);
            b.input_dot[a * b.n_types + k] = real(0);
        }
        for (u32 k = threadIdx.x; k < entry.n_pairs; k += blockDim.x) {
            b.i[p + k] = from.i[k] + a;
            b.j[p + k] = from.j[k] + a;
            b.by_j[p + k] = from.by_j[k] + p;
        }
        for (u32 k = threadIdx.x; k < 3 * entry.n_pairs; k += blockDim.x) b.d[3 * p + k] = from.d[k];
        for (u32 k = threadIdx.x; k < entry.n_pairs * b.n_basis; k += blockDim.x) {
            size_t at = p * b.n_basis + k;
            b.e[at] = from.e[k];
            if (!b.forces) continue;
            b.slope[at] = from.slope[k];
            b.de_e[at] = real(0);
        }
        for (int t = 0; t < b.n_sizes; t++) {
            u32 size = t ? 5 : 3;
            for (u32 k = threadIdx.x; k < entry.n_pairs * size; k += blockDim.x) {
                b.direction[t][p * size + k] = from.direction[t][k];
                if (b.forces) b.direction_de[t][p * size + k] = real(0);
            }
        }
    }
}

// The change of a unit vector n of a vector of length r along v; it is its own adjoint.
__device__ __forceinline__ void turn_unit(double* out, const double* n, double r, const double* v) {
    double along = n[0] * v[0] + n[1] * v[1] + n[2] * v[2];
    for (int k = 0; k < 3; k++) out[k] = (v[k] - n[k] * along) / r;
}

// dE/dd of every pair.
extern "C" __global__ void __launch_bounds__(256) pair_gradient(const __grid_constant__ Batch b) {
    EACH(p, b.turn->n_pairs) {
        double d[3] = {b.d[3 * p], b.d[3 * p + 1], b.d[3 * p + 2]};
        double r = sqrt(d[0] * d[0] + d[1] * d[1] + d[2] * d[2]), de_r = 0;
        for (int k = 0; k < b.n_basis; k++)
            de_r += (double)b.de_e[(size_t)p * b.n_basis + k] * (double)b.slope[(size_t)p * b.n_basis + k];
        double n[3] = {d[0] / r, d[1] / r, d[2] / r}, de[3] = {n[0] * de_r, n[1] * de_r, n[2] * de_r};
        for (int t = 0; t < b.n_sizes; t++) {
            const real* w = b.direction_de[t] + (size_t)p * (t ? 5 : 3);
            double de_n[3] = {w[0], w[1], w[2]}, part[3];
            if (t) {
                double x = n[0], y = n[1], z = n[2];
                de_n[0] = 2 * x * (2 * (double)w[0] - w[1]) / 3 + w[2] * y + w[3] * z;
                de_n[1] = 2 * y * (2 * (double)w[1] - w[0]) / 3 + w[2] * x + w[4] * z;
                de_n[2] = -2 * z * ((double)w[0] + w[1]) / 3 + w[3] * x + w[4] * y;
            }
            turn_unit(part, n, r, de_n);
            for (int k = 0; k < 3; k++) de[k] += part[k];
        }
        for (int k = 0; k < 3; k++) b.de_d[3 * (size_t)p + k] = de[k];
    }
}

// Forces of atoms.
extern "C" __global__ void __launch_bounds__(128) forces(const __grid_constant__ Batch b) {
    EACH(k, 3 * b.turn->n_atoms) {
        u32 a = k / 3, x = k % 3;
        double f = 0;
        for (u32 p = b.start[a]; p < b.start[a + 1]; p++) f += b.de_d[3 * (size_t)p + x];
        for (u32 p = b.start_j[a]; p < b.start_j[a + 1]; p++) f -= b.de_d[3 * (size_t)b.by_j[p] + x];
        b.force[k] = f;
    }
}

// Stress of structures, not divided by the volume: one block for each.
extern "C" __global__ void __launch_bounds__(128) stresses(const __grid_constant__ Batch b) {
    __shared__ double scratch[4];
    for (u32 s = blockIdx.x; s < b.turn->n_structures; s += gridDim.x) {
        const Entry entry = b.turn->entries[s];
        double sum[9] = {};
        for (u32 p = entry.first_pair + threadIdx.x; p < entry.first_pair + entry.n_pairs; p += blockDim.x)
            for (int k = 0; k < 9; k++) sum[k] += b.d[3 * (size_t)p + k / 3] * b.de_d[3 * (size_t)p + k % 3];
        for (int k = 0; k < 9; k++) {
            double all = block_sum(sum[k], scratch);
            if (threadIdx.x == 0) b.stress[9 * s + k] = all;
        }
    }
}

// The changes of everything geometric along u = -dL/dF and the strain of dL/dstress.
extern "C" __global__ void __launch_bounds__(256) set_tangents(const __grid_constant__ Batch b) {
    EACH(p, b.turn->n_pairs) {
        u32 i = b.i[p], j = b.j[p];
        const double* strain = b.dl_stress + 9 * b.structure[i];
        double d[3] = {b.d[3 * p], b.d[3 * p + 1], b.d[3 * p + 2]}, v[3];
        double r = sqrt(d[0] * d[0] + d[1] * d[1] + d[2] * d[2]);
        for (int k = 0; k < 3; k++)
            v[k] = b.dl_force[3 * i + k] - b.dl_force[3 * j + k] + strain[k] * d[0] + strain[3 + k] * d[1] + strain[6 + k] * d[2];
        double n[3] = {d[0] / r, d[1] / r, d[2] / r};
        real r_dot = n[0] * v[0] + n[1] * v[1] + n[2] * v[2];
        for (int k = 0; k < b.n_basis; k++)
            b.e_dot[(size_t)p * b.n_basis + k] = b.slope[(size_t)p * b.n_basis + k] * r_dot;
        if (b.n_sizes == 0) continue;
        double m[3];
        turn_unit(m, n, r, v);
        for (int k = 0; k < 3; k++) b.direction_dot[0][3 * (size_t)p + k] = m[k];
        if (b.n_sizes == 1) continue;
        double x = n[0], y = n[1], z = n[2];
        real* t = b.direction_dot[1] + 5 * (size_t)p;
        t[0] = 2 * (2 * x * m[0] - y * m[1] - z * m[2]) / 3;
        t[1] = 2 * (2 * y * m[1] - x * m[0] - z * m[2]) / 3;
        t[2] = m[0] * y + x * m[1];
        t[3] = m[0] * z + x * m[2];
        t[4] = m[1] * z + y * m[2];
    }
}
