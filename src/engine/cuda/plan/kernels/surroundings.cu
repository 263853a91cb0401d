// Frames become rows, and rows of the environment become descriptors: engine/reference/{env,pairs,angles}.rs.

// What stands at the beginning of a frame: numbers and offsets in bytes, the same as in plan/frame.rs.
enum { CENTERS, ATOMS, BLOCKS, ORDER, CENTER_OF, EXTRA, REVERSE_START, REVERSE, OUTPUT, ATOM_OUTPUT, BLEND_WEIGHT, BLEND_ENERGY, BLEND_WEIGHT_D,
       BLEND_ENERGY_D, HEAD = 16 };
enum { N_PAIRS, FIRST_PAIR, D, TYPES, OF_CENTER, NEIGHBOR, FIRST, COUNT, STILL, SQUARE, COUPLES, GROUPS };

template <typename F> __device__ __forceinline__ const F* part_of(const Entry& e, int which) {
    return (const F*)(e.at + ((const u32*)e.at)[which]);
}
__device__ __forceinline__ const u32* head_of(const Entry& e, int part) { return (const u32*)e.at + HEAD * (1 + part); }
template <typename F> __device__ __forceinline__ const F* part_of(const Entry& e, int part, int which) {
    return (const F*)(e.at + head_of(e, part)[which]);
}

__device__ __forceinline__ int atoms_of(const Chunk& c) { return (int)c.rows[c.groups]; }
__device__ __forceinline__ int pairs_of(const Part& p) { return (int)p.rows[p.groups]; }

// The frame of the chunk that this block helps with, and which part of it is its own.
struct Helper {
    int frame, first, step;
    bool is_there;
    Entry entry;
    const u32* firsts;
    __device__ __forceinline__ Helper(const Chunk& c) {
        int n_frames = (int)c.head[0], helpers = (int)gridDim.x / c.most_frames;
        frame = (int)blockIdx.x / helpers;
        first = (int)blockIdx.x % helpers * blockDim.x + threadIdx.x, step = helpers * blockDim.x;
        is_there = frame < n_frames;
        if (!is_there) return;
        frame += (int)c.head[1];
        entry = c.entries[frame], firsts = c.firsts + (size_t)frame * c.n_lists;
    }
    // The row of a centre of this type.
    __device__ __forceinline__ u32 row_of(const Chunk& c, u32 center, u32 type) const {
        return c.groups == 1 ? firsts[0] + center : firsts[type] + center - part_of<u32>(entry, BLOCKS)[type];
    }
};

__device__ __forceinline__ u32 type_of(const u32* blocks, u32 center) {
    u32 t = 0;
    while (center >= blocks[t + 1]) t++;
    return t;
}

// The centres of a chunk.
extern "C" __global__ void __launch_bounds__(256) plan_take_atoms(const __grid_constant__ Chunk c) {
    after_previous();
    Helper h(c);
    if (!h.is_there) return;
    const u32 *blocks = part_of<u32>(h.entry, BLOCKS), *order = part_of<u32>(h.entry, ORDER);
    const real* extra = part_of<real>(h.entry, EXTRA);
    u32 n = ((const u32*)h.entry.at)[CENTERS];
    for (u32 i = h.first; i < n; i += h.step) {
        u32 type = type_of(blocks, i), row = h.row_of(c, i, type);
        c.types[row] = type, c.frame[row] = h.frame, c.row[row] = h.entry.row + i, c.place[row] = h.entry.place + order[i];
        for (int k = 0; k < c.n_extra; k++) c.extra[(size_t)row * c.n_extra + k] = extra[(size_t)i * c.n_extra + k];
    }
}

__device__ __forceinline__ u32 group_of_types(const Part& p, u32 types) {
    return p.groups == 1 ? 0 : p.groups == p.n_types ? types / p.n_types : types;
}

// The pairs of a chunk, of one descriptor.
extern "C" __global__ void __launch_bounds__(256) plan_take_pairs(const __grid_constant__ Chunk c, const __grid_constant__ Part p) {
    after_previous();
    Helper h(c);
    if (!h.is_there) return;
    const u32 *blocks = part_of<u32>(h.entry, BLOCKS), *head = head_of(h.entry, p.number);
    u32 n_centers = ((const u32*)h.entry.at)[CENTERS], n_types = p.n_types;
    const u32* groups = part_of<u32>(h.entry, p.number, GROUPS);
    const u32 *types = part_of<u32>(h.entry, p.number, TYPES), *centers = part_of<u32>(h.entry, p.number, OF_CENTER);
    const u32* neighbors = part_of<u32>(h.entry, p.number, NEIGHBOR);
    const real* d = part_of<real>(h.entry, p.number, D);
    for (u32 k = h.first; k < head[N_PAIRS]; k += h.step) {
        u32 g = group_of_types(p, types[k]), row = h.firsts[p.list + g] + k - groups[g];
        p.types[row] = types[k];
        p.atom[row] = h.row_of(c, centers[k], types[k] % n_types);
        p.neighbor[row] = h.entry.place + neighbors[k], p.place[row] = h.entry.pair + head[FIRST_PAIR] + k;
        for (int x = 0; x < 3; x++) p.d[3 * (size_t)row + x] = d[3 * (size_t)k + x];
    }
    const u32 *first = part_of<u32>(h.entry, p.number, FIRST), *count = part_of<u32>(h.entry, p.number, COUNT);
    const u32 *square = part_of<u32>(h.entry, p.number, SQUARE), *couples = part_of<u32>(h.entry, p.number, COUPLES);
    const real* still = part_of<real>(h.entry, p.number, STILL);
    for (u32 i = h.first; i < n_centers; i += h.step) {
        u32 type = type_of(blocks, i), row = h.row_of(c, i, type), total = 0;
        for (u32 t = 0; t < n_types; t++) {
            u32 g = group_of_types(p, t * n_types + type), from = t * n_centers + i;
            p.first[(size_t)t * p.most_atoms + row] = h.firsts[p.list + g] + first[from] - groups[g];
            p.count[(size_t)t * p.most_atoms + row] = count[from];
            total += count[from];
            for (int kind = 0; kind < 2; kind++)
                p.still[(size_t)row * 2 * n_types + 2 * t + kind] = still[(size_t)i * 2 * n_types + 2 * t + kind];
        }
        p.total[row] = total;
        if (p.square) p.square[row] = h.firsts[p.square_list] + square[i];
        if (!p.couple) continue;
        for (u32 g = 0; g < n_types * n_types; g++)
            p.couple[(size_t)g * p.most_atoms + row] = h.firsts[p.couple_list + g] + couples[(size_t)g * n_centers + i];
    }
}

// The two neighbours of every couple: those of types a and b with a <= b, in the order of the first.
extern "C" __global__ void __launch_bounds__(256) plan_take_couples(const __grid_constant__ Chunk c, const __grid_constant__ Part p) {
    after_previous();
    int n_types = p.n_types;
    for (int atom = blockIdx.x; atom < atoms_of(c); atom += gridDim.x)
        for (int b = 0; b < n_types; b++)
            for (int a = 0; a <= b; a++) {
                size_t of_a = (size_t)a * p.most_atoms + atom, of_b = (size_t)b * p.most_atoms + atom;
                u32 n_b = p.count[of_b], n = p.count[of_a] * n_b;
                u32 first = p.couple[(size_t)(b * n_types + a) * p.most_atoms + atom];
                for (u32 k = threadIdx.x; k < n; k += blockDim.x) {
                    p.left[first + k] = p.first[of_a] + k / n_b, p.right[first + k] = p.first[of_b] + k % n_b;
                    p.couple_atom[first + k] = atom;
                }
            }
}

struct Radial { real s, s_r, q, q_r, w, w_r; };

// model/dp/radial.rs
__device__ __forceinline__ Radial radial_of(const Part& p, real r) {
    double w = 1.0, w_r = 0.0, x = ((double)r - p.rcut_smth) * p.inv_width, rp = (double)r + p.protection;
    if (x >= 1.0) w = 0.0;
    else if (x > 0.0) {
        double left = (p.rcut - (double)r) * p.inv_width;
        w = left * left * left * (1.0 + 3.0 * x + 6.0 * x * x);
        w_r = -30.0 * x * x * left * left * p.inv_width;
    }
    double s = w / rp, q = s / rp;
    return {(real)s, (real)((w_r - s) / rp), (real)q, (real)(w_r / (rp * rp) - 2.0 * q / rp), (real)w, (real)w_r};
}

// The normalised row of every pair, y, and its switch, z where it is wanted; with the change along the direction of the second pass.
extern "C" __global__ void __launch_bounds__(256) plan_rows(const __grid_constant__ Batch b, const __grid_constant__ Chunk c,
                                                            const __grid_constant__ Part p, const __grid_constant__ Op op, int planes) {
    after_previous();
    ELEMENTS(row, (size_t)pairs_of(p)) {
        const real *d = p.d + 3 * row, *radial = p.radial + 3 * (p.types[row] % p.n_types);
        real r = root(d[0] * d[0] + d[1] * d[1] + d[2] * d[2]);
        Radial f = radial_of(p, r);
        real* y = op.y.v + row * op.y.ld;
        y[0] = (f.s - radial[0]) * radial[1];
        for (int k = 0; k < 3; k++) y[1 + k] = f.q * d[k] * radial[2];
        if (op.z.v) op.z.v[row * op.z.ld] = f.w;
        if (planes == 1) continue;
        u32 atom = p.atom[row];
        const double *own = b.dl_force + 3 * (size_t)c.place[atom], *other = b.dl_force + 3 * (size_t)p.neighbor[row];
        const double* virial = b.wants_virial ? b.dl_virial + 9 * (size_t)c.frame[atom] : nullptr;
        real change[3], r_dot = real(0);
        for (int k = 0; k < 3; k++) {
            double u = own[k] - other[k];
            if (virial)
                for (int a = 0; a < 3; a++) u -= virial[3 * a + k] * (double)d[a];
            change[k] = (real)u, r_dot += d[k] * change[k];
        }
        r_dot /= r;
        y += op.y.plane;
        y[0] = f.s_r * r_dot * radial[1];
        for (int k = 0; k < 3; k++) y[1 + k] = (f.q * change[k] + f.q_r * r_dot * d[k]) * radial[2];
        if (op.z.v) op.z.v[op.z.plane + row * op.z.ld] = f.w_r * r_dot;
    }
}

// dE/dd of every pair.
extern "C" __global__ void __launch_bounds__(256) plan_rows_back(const __grid_constant__ Batch b, const __grid_constant__ Part p,
                                                                 const __grid_constant__ Op op) {
    after_previous();
    ELEMENTS(row, (size_t)pairs_of(p)) {
        const real *d = p.d + 3 * row, *radial = p.radial + 3 * (p.types[row] % p.n_types), *dy = op.y.g + row * op.y.ld;
        real r = root(d[0] * d[0] + d[1] * d[1] + d[2] * d[2]);
        Radial f = radial_of(p, r);
        real along = radial[2] * (dy[1] * d[0] + dy[2] * d[1] + dy[3] * d[2]);
        real de_r = dy[0] * radial[1] * f.s_r + f.q_r * along;
        if (op.z.v) de_r += op.z.g[row * op.z.ld] * f.w_r;
        for (int k = 0; k < 3; k++) b.de_d[3 * (size_t)p.place[row] + k] = f.q * radial[2] * dy[1 + k] + de_r * d[k] / r;
    }
}

// ---- A = sum of G (x) env over the neighbours of an atom, and D from it.

// What A has of a slot in which nobody is seen: number (neighbour type, centre type, kind), kind 1: one that is left out.
__device__ __forceinline__ int still_row(const Part& p, int neighbor, int kind, int center) {
    return 2 * (neighbor * p.n_types + center) + kind;
}

// y [components, M] of every atom from G, x, and rows, u; G of the still slots, z.
template <int P> __device__ __forceinline__ void outer(const Chunk& c, const Part& p, const Op& op) {
    typedef typename Planes<P>::Number N;
    int m1 = op.n_out, four = op.n_in == 4;
    ELEMENTS(i, (size_t)atoms_of(c) * m1) {
        size_t atom = i / m1, m = i % m1;
        N sum[4];
        for (int k = 0; k < 4; k++) clear(sum[k]);
        for (int t = 0; t < p.n_types; t++) {
            size_t first = p.first[(size_t)t * p.most_atoms + atom], end = first + p.count[(size_t)t * p.most_atoms + atom];
            for (size_t row = first; row < end; row++) {
                N g = at<P>(op.x.v, op.x.plane, row * op.x.ld + m);
                if (!four) sum[0] = sum[0] + g;
                else
                    for (int k = 0; k < 4; k++) sum[k] = sum[k] + g * at<P>(op.u.v, op.u.plane, row * op.u.ld + k);
            }
            for (int kind = 0; kind < 2 && op.z.v; kind++) {
                int row = still_row(p, t, kind, (int)c.types[atom]);
                real weight = p.still[atom * 2 * p.n_types + 2 * t + kind] * (four ? p.still_s[row] : real(1));
                if (weight != real(0)) sum[0] = sum[0] + weight * at<P>(op.z.v, op.z.plane, (size_t)row * op.z.ld + m);
            }
        }
        for (int k = 0; k < op.n_in; k++) put_at(op.y.v, op.y.plane, atom * op.y.ld + k * m1 + m, (real)op.scale * sum[k]);
    }
}
extern "C" __global__ void __launch_bounds__(256) plan_outer(const __grid_constant__ Chunk c, const __grid_constant__ Part p,
                                                             const __grid_constant__ Op op, int planes) {
    after_previous();
    if (planes == 1) outer<1>(c, p, op);
    else outer<2>(c, p, op);
}

template <int P> __device__ __forceinline__ void outer_back(const Part& p, const Op& op) {
    typedef typename Planes<P>::Number N;
    int lane = threadIdx.x % 32, m1 = op.n_out, n_env = op.n_in;
    WARP_ROWS(row, pairs_of(p)) {
        size_t da = (size_t)p.atom[row] * op.y.ld;
        N env[4], along[4];
        for (int k = 0; k < 4; k++) {
            clear(along[k]), clear(env[k]);
            if (n_env == 4) env[k] = at<P>(op.u.v, op.u.plane, (size_t)row * op.u.ld + k);
        }
        for (int m = lane; m < m1; m += 32) {
            N g = at<P>(op.x.v, op.x.plane, (size_t)row * op.x.ld + m), dg;
            clear(dg);
            for (int k = 0; k < n_env; k++) {
                N d = (real)op.scale * at<P>(op.y.g, op.y.plane, da + k * m1 + m);
                dg = dg + (n_env == 4 ? d * env[k] : d);
                along[k] = along[k] + d * g;
            }
            add_at(op.x.g, op.x.plane, (size_t)row * op.x.ld + m, dg);
        }
        if (n_env != 4) continue;
        for (int k = 0; k < 4; k++) {
            N sum = sum_of_warp(along[k]);
            if (lane == 0) add_at(op.u.g, op.u.plane, (size_t)row * op.u.ld + k, sum);
        }
    }
}
extern "C" __global__ void __launch_bounds__(256) plan_outer_back(const __grid_constant__ Part p, const __grid_constant__ Op op, int planes) {
    after_previous();
    if (planes == 1) outer_back<1>(p, op);
    else outer_back<2>(p, op);
}

// The sum over the eight parts of a block that share 32 columns, on the first part.
template <typename N> __device__ __forceinline__ N sum_of_parts(N x, N* scratch) {
    __syncthreads();
    scratch[threadIdx.x] = x;
    __syncthreads();
    for (int k = 1; k < 8 && threadIdx.x < 32; k++) x = x + scratch[32 * k + threadIdx.x];
    return x;
}

// The adjoint of G of the still slots.
template <int P> __device__ __forceinline__ void still_back(const Chunk& c, const Part& p, const Op& op) {
    typedef typename Planes<P>::Number N;
    __shared__ N scratch[256];
    int m1 = op.n_out, columns = (m1 + 31) / 32, n = 2 * p.n_types * p.n_types;
    for (int k = blockIdx.x; k < n * columns; k += gridDim.x) {
        int row = k / columns, m = k % columns * 32 + threadIdx.x % 32;
        int center = row / 2 % p.n_types, slot = row / 2 / p.n_types * 2 + row % 2;
        N sum;
        clear(sum);
        for (int atom = threadIdx.x / 32; atom < atoms_of(c) && m < m1; atom += 8) {
            if ((int)c.types[atom] != center) continue;
            real weight = p.still[(size_t)atom * 2 * p.n_types + slot] * (op.n_in == 4 ? p.still_s[row] : real(1));
            sum = sum + (weight * (real)op.scale) * at<P>(op.y.g, op.y.plane, (size_t)atom * op.y.ld + m);
        }
        sum = sum_of_parts(sum, scratch);
        if (threadIdx.x < 32 && m < m1) add_at(op.z.g, op.z.plane, (size_t)row * op.z.ld + m, sum);
    }
}
extern "C" __global__ void __launch_bounds__(256) plan_still_back(const __grid_constant__ Chunk c, const __grid_constant__ Part p,
                                                                  const __grid_constant__ Op op, int planes) {
    after_previous();
    if (planes == 1) still_back<1>(c, p, op);
    else still_back<2>(c, p, op);
}

// y = A A[..axis]^T, x being A; without directions y = scale A.
template <int P> __device__ __forceinline__ void square(const Op& op) {
    typedef typename Planes<P>::Number N;
    int m1 = op.n_in, axis = op.n_out;
    ELEMENTS(i, (size_t)rows_of(op) * m1 * max(axis, 1)) {
        size_t row = i / (m1 * max(axis, 1)), k = i % (m1 * max(axis, 1)), a = row * op.x.ld;
        N sum;
        clear(sum);
        if (!axis) sum = (real)op.scale * at<P>(op.x.v, op.x.plane, a + k);
        else
            for (int e = 0; e < 4; e++)
                sum = sum + at<P>(op.x.v, op.x.plane, a + e * m1 + k / axis) * at<P>(op.x.v, op.x.plane, a + e * m1 + k % axis);
        put_at(op.y.v, op.y.plane, row * op.y.ld + k, sum);
    }
}
extern "C" __global__ void __launch_bounds__(256) plan_square(const __grid_constant__ Op op, int planes) {
    after_previous();
    if (planes == 1) square<1>(op);
    else square<2>(op);
}

template <int P> __device__ __forceinline__ void square_back(const Op& op) {
    typedef typename Planes<P>::Number N;
    int m1 = op.n_in, axis = op.n_out, n_env = axis ? 4 : 1;
    ELEMENTS(i, (size_t)rows_of(op) * n_env * m1) {
        size_t row = i / (n_env * m1), a = row * op.x.ld + i / m1 % n_env * m1, y = row * op.y.ld;
        int m = (int)(i % m1);
        N sum;
        clear(sum);
        if (!axis) sum = (real)op.scale * at<P>(op.y.g, op.y.plane, y + m);
        for (int k = 0; k < axis; k++) sum = sum + at<P>(op.y.g, op.y.plane, y + m * axis + k) * at<P>(op.x.v, op.x.plane, a + k);
        for (int k = 0; k < m1 && m < axis; k++)
            sum = sum + at<P>(op.y.g, op.y.plane, y + k * axis + m) * at<P>(op.x.v, op.x.plane, a + k);
        add_at(op.x.g, op.x.plane, a + m, sum);
    }
}
extern "C" __global__ void __launch_bounds__(256) plan_square_back(const __grid_constant__ Op op, int planes) {
    after_previous();
    if (planes == 1) square_back<1>(op);
    else square_back<2>(op);
}

// Numbers of the frame or of atoms among the inputs of the fitting nets, y; they do not change.
extern "C" __global__ void __launch_bounds__(256) plan_extra(const __grid_constant__ Chunk c, const __grid_constant__ Op op, int planes) {
    after_previous();
    ELEMENTS(i, (size_t)atoms_of(c) * c.n_extra) {
        size_t to = i / c.n_extra * op.y.ld + i % c.n_extra;
        op.y.v[to] = c.extra[i];
        if (planes == 2) op.y.v[op.y.plane + to] = real(0);
    }
}

// ---- Neighbours two by two.

// y = the product of the directions of a couple, x being the rows.
template <int P> __device__ __forceinline__ void couples(const Part& p, const Op& op) {
    typedef typename Planes<P>::Number N;
    ELEMENTS(k, (size_t)rows_of(op)) {
        size_t left = (size_t)p.left[k] * op.x.ld + 1, right = (size_t)p.right[k] * op.x.ld + 1;
        N sum;
        clear(sum);
        for (int e = 0; e < 3; e++) sum = sum + at<P>(op.x.v, op.x.plane, left + e) * at<P>(op.x.v, op.x.plane, right + e);
        put_at(op.y.v, op.y.plane, k * op.y.ld, sum);
    }
}
extern "C" __global__ void __launch_bounds__(256) plan_couples(const __grid_constant__ Part p, const __grid_constant__ Op op, int planes) {
    after_previous();
    if (planes == 1) couples<1>(p, op);
    else couples<2>(p, op);
}

// A warp for each neighbour, which goes over its couples.
template <int P> __device__ __forceinline__ void couples_back(const Part& p, const Op& op) {
    typedef typename Planes<P>::Number N;
    int lane = threadIdx.x % 32, n_types = p.n_types;
    WARP_ROWS(row, pairs_of(p)) {
        int type = (int)p.types[row] / n_types;
        size_t atom = p.atom[row];
        u32 own = row - p.first[(size_t)type * p.most_atoms + atom], n_own = p.count[(size_t)type * p.most_atoms + atom];
        N sum[3];
        for (int e = 0; e < 3; e++) clear(sum[e]);
        for (int t = 0; t < n_types; t++) {
            u32 first = p.first[(size_t)t * p.most_atoms + atom], n = p.count[(size_t)t * p.most_atoms + atom];
            for (int side = 0; side < 2; side++) {
                if (side ? type < t : type > t) continue;
                u32 couple = p.couple[(size_t)(max(t, type) * n_types + min(t, type)) * p.most_atoms + atom];
                for (u32 k = lane; k < n; k += 32) {
                    size_t from = (size_t)(couple + (side ? k * n_own + own : own * n + k)) * op.y.ld;
                    N dx = at<P>(op.y.g, op.y.plane, from);
                    for (int e = 0; e < 3; e++)
                        sum[e] = sum[e] + dx * at<P>(op.x.v, op.x.plane, (size_t)(first + k) * op.x.ld + 1 + e);
                }
            }
        }
        for (int e = 0; e < 3; e++) {
            N all = sum_of_warp(sum[e]);
            if (lane == 0) add_at(op.x.g, op.x.plane, (size_t)row * op.x.ld + 1 + e, all);
        }
    }
}
extern "C" __global__ void __launch_bounds__(256) plan_couples_back(const __grid_constant__ Part p, const __grid_constant__ Op op, int planes) {
    after_previous();
    if (planes == 1) couples_back<1>(p, op);
    else couples_back<2>(p, op);
}

// y = the sum over the couples of an atom of u x / (sel sel), x being G and u the product.
template <int P> __device__ __forceinline__ void couple_sum(const Chunk& c, const Part& p, const Op& op) {
    typedef typename Planes<P>::Number N;
    __shared__ N scratch[256];
    int m1 = op.n_out, columns = (m1 + 31) / 32, n_types = p.n_types;
    for (int i = blockIdx.x; i < atoms_of(c) * columns; i += gridDim.x) {
        size_t atom = i / columns;
        int m = i % columns * 32 + threadIdx.x % 32;
        N sum;
        clear(sum);
        for (int b = 0; b < n_types; b++)
            for (int a = 0; a <= b; a++) {
                size_t g = (size_t)b * n_types + a, first = p.couple[g * p.most_atoms + atom];
                size_t n = (size_t)p.count[(size_t)a * p.most_atoms + atom] * p.count[(size_t)b * p.most_atoms + atom];
                for (size_t k = first + threadIdx.x / 32; k < first + n && m < m1; k += 8)
                    sum = sum + (p.weights[g] * at<P>(op.u.v, op.u.plane, k * op.u.ld)) * at<P>(op.x.v, op.x.plane, k * op.x.ld + m);
            }
        sum = sum_of_parts(sum, scratch);
        if (threadIdx.x < 32 && m < m1) put_at(op.y.v, op.y.plane, atom * op.y.ld + m, sum);
    }
}
extern "C" __global__ void __launch_bounds__(256) plan_couple_sum(const __grid_constant__ Chunk c, const __grid_constant__ Part p,
                                                                  const __grid_constant__ Op op, int planes) {
    after_previous();
    if (planes == 1) couple_sum<1>(c, p, op);
    else couple_sum<2>(c, p, op);
}

template <int P> __device__ __forceinline__ void couple_sum_back(const Part& p, const Op& op) {
    typedef typename Planes<P>::Number N;
    ELEMENTS(k, (size_t)rows_of(op)) {
        size_t dy = (size_t)p.couple_atom[k] * op.y.ld;
        real weight = p.weights[group_of_row(op, (int)k)];
        N u = weight * at<P>(op.u.v, op.u.plane, k * op.u.ld), along;
        clear(along);
        for (int m = 0; m < op.n_out; m++) {
            N d = at<P>(op.y.g, op.y.plane, dy + m);
            along = along + d * at<P>(op.x.v, op.x.plane, k * op.x.ld + m);
            add_at(op.x.g, op.x.plane, k * op.x.ld + m, u * d);
        }
        add_at(op.u.g, op.u.plane, k * op.u.ld, weight * along);
    }
}
extern "C" __global__ void __launch_bounds__(256) plan_couple_sum_back(const __grid_constant__ Part p, const __grid_constant__ Op op, int planes) {
    after_previous();
    if (planes == 1) couple_sum_back<1>(p, op);
    else couple_sum_back<2>(p, op);
}

// ---- Energies and forces.

// The gradient begins at zero, unless it is added to that of the draw before; behind it the wish to stop.
extern "C" __global__ void __launch_bounds__(256) plan_begin(double* grad, u64 n, const Turn* turn) {
    after_previous();
    ELEMENTS(i, n + 1) if (!turn->add) grad[i] = i < n ? 0.0 : turn->stop;
}

// Energies of atoms from the outputs of the fitting nets, x, less those of atoms without neighbours, u, where `index` says so by type.
extern "C" __global__ void __launch_bounds__(256) plan_energies(const __grid_constant__ Batch b, const __grid_constant__ Chunk c,
                                                                const __grid_constant__ Op op) {
    after_previous();
    ELEMENTS(atom, (size_t)atoms_of(c)) {
        double e = (double)op.x.v[atom * op.x.ld];
        if (op.u.v && op.index[c.types[atom]]) e -= (double)op.u.v[atom * op.u.ld];
        b.atom_energy[c.place[atom]] = e + b.bias[c.types[atom]];
    }
}

// Their adjoints: dE = 1, and dL.
extern "C" __global__ void __launch_bounds__(256) plan_seeds(const __grid_constant__ Batch b, const __grid_constant__ Chunk c,
                                                             const __grid_constant__ Op op, int planes) {
    after_previous();
    ELEMENTS(atom, (size_t)atoms_of(c)) {
        if (planes == 1) op.x.g[atom * op.x.ld] = real(1);
        if (planes == 2) op.x.g[op.x.plane + atom * op.x.ld] = b.dl_e[c.row[atom]];
        if (planes == 2 && op.u.v && op.index[c.types[atom]]) op.u.g[op.u.plane + atom * op.u.ld] = -b.dl_e[c.row[atom]];
    }
}

// Forces of all atoms of the batch, virials of centres, and the seeds of the force terms: a warp for each atom.
extern "C" __global__ void __launch_bounds__(256) plan_collect(const __grid_constant__ Batch b, const Entry* entries, int n_parts,
                                                               int n_types) {
    after_previous();
    int lane = threadIdx.x % 32, stride = atom_stride_of(b);
    WARP_ROWS(place, frames_of(b) * stride) {
        int f = place / stride, atom = place % stride;
        const Entry e = entries[f];
        const u32* head = (const u32*)e.at;
        if (atom >= (int)head[ATOMS]) continue;
        u32 center = part_of<u32>(e, CENTER_OF)[atom], n_centers = head[CENTERS];
        const real* de_d = b.de_d + 3 * (size_t)e.pair;
        double force[3] = {}, virial[9] = {};
        for (int part = 0; part < n_parts && center != ~0u; part++) {
            const u32 *own = head_of(e, part), *first = part_of<u32>(e, part, FIRST), *count = part_of<u32>(e, part, COUNT);
            const real* d = part_of<real>(e, part, D);
            for (int t = 0; t < n_types; t++) {
                u32 from = first[t * n_centers + center], end = from + count[t * n_centers + center];
                for (u32 k = from + lane; k < end; k += 32)
                    for (int x = 0; x < 3; x++) {
                        double g = (double)de_d[3 * (size_t)(own[FIRST_PAIR] + k) + x];
                        force[x] += g;
                        for (int y = 0; y < 3; y++) virial[3 * y + x] -= (double)d[3 * (size_t)k + y] * g;
                    }
            }
        }
        const u32 *start = part_of<u32>(e, REVERSE_START), *reverse = part_of<u32>(e, REVERSE);
        for (u32 k = start[atom] + lane; k < start[atom + 1]; k += 32)
            for (int x = 0; x < 3; x++) force[x] -= (double)de_d[3 * (size_t)reverse[k] + x];
        for (int x = 0; x < 3; x++) force[x] = warp_sum(force[x]);
        for (int k = 0; k < 9; k++) virial[k] = warp_sum(virial[k]);
        if (lane != 0) continue;
        for (int x = 0; x < 3; x++) b.force[3 * (size_t)place + x] = force[x];
        double seeds[3] = {}, sums[6] = {};
        u32 row = e.row + center;
        if (center != ~0u) {
            ((u32*)b.row_frame)[row] = f, ((u32*)b.row_local)[row] = center;
            ((u32*)b.row_input)[row] = row, ((u32*)b.row_vacuum)[row] = ~0u;
            for (int k = 0; k < 9; k++) b.row_virial[9 * (size_t)row + k] = virial[k];
        }
        if (!b.used) continue;
        if (center != ~0u) {
            const Frame frame = b.frames[f];
            double weights[2] = {b.turn->weight[FORCE_TERM], b.turn->weight[PREF_FORCE_TERM]}, label[3] = {};
            for (int k = 0; k < 3 && frame.force; k++) label[k] = frame.force[3 * atom + k];
            force_terms(b, frame, b.turn->terms, label, weights, atom, force, seeds, sums);
            for (int k = 0; k < 6; k++) b.row_sums[6 * (size_t)row + k] = sums[k];
        }
        for (int k = 0; k < 3; k++) b.dl_force[3 * (size_t)place + k] = seeds[k];
    }
}
