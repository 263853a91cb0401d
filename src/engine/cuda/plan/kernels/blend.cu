// A table of pair energies beside the nets: engine/blend.rs. Atoms have a weight of it, and pairs of their own beside those of descriptors.

// The table's share of a centre, and its pairs of a frame.
struct Blended {
    double weight, energy;
    u32 first, end;
    const double *weight_d, *energy_d;
    __device__ __forceinline__ Blended(const Entry& e, int part, u32 center) {
        weight = part_of<double>(e, BLEND_WEIGHT)[center], energy = part_of<double>(e, BLEND_ENERGY)[center];
        first = part_of<u32>(e, part, FIRST)[center], end = first + part_of<u32>(e, part, COUNT)[center];
        weight_d = part_of<double>(e, BLEND_WEIGHT_D), energy_d = part_of<double>(e, BLEND_ENERGY_D);
    }
};

// E = (1 - w) e + w t, in place of the energies e of the nets with their bias; dE/dd of the table's pairs: (t - e) dw/dd + w dt/dd.
extern "C" __global__ void __launch_bounds__(256) plan_blend(const __grid_constant__ Batch b, const __grid_constant__ Chunk c, int part) {
    after_previous();
    Helper h(c);
    if (!h.is_there) return;
    const u32* order = part_of<u32>(h.entry, ORDER);
    size_t first = h.entry.pair + head_of(h.entry, part)[FIRST_PAIR];
    for (u32 i = h.first; i < ((const u32*)h.entry.at)[CENTERS]; i += h.step) {
        Blended own(h.entry, part, i);
        if (own.weight == 0.0) continue;
        double* energy = b.atom_energy + h.entry.place + order[i];
        double beyond = own.energy - *energy;
        for (u32 k = 3 * own.first; k < 3 * own.end; k++)
            b.de_d[3 * first + k] = (real)(beyond * own.weight_d[k] + own.weight * own.energy_d[k]);
        *energy = (1.0 - own.weight) * *energy + own.weight * own.energy;
    }
}

// The adjoints of the nets' energies, after `plan_seeds`: dE = 1 - w, and dL with what the weights change along the direction.
extern "C" __global__ void __launch_bounds__(256) plan_blend_seeds(const __grid_constant__ Batch b, const __grid_constant__ Chunk c,
                                                                   const __grid_constant__ Op op, int planes, int part) {
    after_previous();
    Helper h(c);
    if (!h.is_there) return;
    const u32 *blocks = part_of<u32>(h.entry, BLOCKS), *order = part_of<u32>(h.entry, ORDER);
    const u32* neighbors = part_of<u32>(h.entry, part, NEIGHBOR);
    const real* d = part_of<real>(h.entry, part, D);
    for (u32 i = h.first; i < ((const u32*)h.entry.at)[CENTERS]; i += h.step) {
        Blended own(h.entry, part, i);
        if (own.weight == 0.0) continue;
        u32 type = type_of(blocks, i), row = h.row_of(c, i, type);
        op.x.g[(size_t)row * op.x.ld] = (real)(1.0 - own.weight);
        if (planes == 1) continue;
        double change = 0;
        const double *force = b.dl_force + 3 * (size_t)(h.entry.place + order[i]), *virial = b.dl_virial + 9 * (size_t)h.frame;
        for (u32 k = own.first; k < own.end; k++) {
            const double* other = b.dl_force + 3 * (size_t)(h.entry.place + neighbors[k]);
            for (int x = 0; x < 3; x++) {
                double u = force[x] - other[x];
                if (b.wants_virial)
                    for (int a = 0; a < 3; a++) u -= virial[3 * a + x] * (double)d[3 * (size_t)k + a];
                change += own.weight_d[3 * (size_t)k + x] * u;
            }
        }
        op.x.g[op.x.plane + (size_t)row * op.x.ld] = (real)((1.0 - own.weight) * (double)b.dl_e[c.row[row]] - change);
    }
}
