// What single configurations have beside energies and forces.

// `[places, 9]` virials of atoms, -dE/dd (x) d of the pairs in which they are the neighbour: a warp for each atom.
extern "C" __global__ void __launch_bounds__(256) plan_atom_virials(const __grid_constant__ Batch b, const Entry* entries, int n_parts,
                                                                    double* out) {
    after_previous();
    int lane = threadIdx.x % 32, stride = atom_stride_of(b);
    WARP_ROWS(place, frames_of(b) * stride) {
        int f = place / stride, atom = place % stride;
        const Entry e = entries[f];
        if (atom >= (int)((const u32*)e.at)[ATOMS]) continue;
        const u32 *start = part_of<u32>(e, REVERSE_START), *reverse = part_of<u32>(e, REVERSE);
        const real* de_d = b.de_d + 3 * (size_t)e.pair;
        double virial[9] = {};
        for (u32 k = start[atom] + lane; k < start[atom + 1]; k += 32) {
            u32 pair = reverse[k];
            int part = 0;
            while (part + 1 < n_parts && pair >= head_of(e, part + 1)[FIRST_PAIR]) part++;
            const real* d = part_of<real>(e, part, D) + 3 * (size_t)(pair - head_of(e, part)[FIRST_PAIR]);
            for (int x = 0; x < 3; x++)
                for (int y = 0; y < 3; y++) virial[3 * x + y] -= (double)de_d[3 * (size_t)pair + x] * (double)d[y];
        }
        for (int k = 0; k < 9; k++) {
            double sum = warp_sum(virial[k]);
            if (lane == 0) out[9 * (size_t)place + k] = sum;
        }
    }
}
