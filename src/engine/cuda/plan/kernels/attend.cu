// Attention between the neighbours of an atom, whose rows stand side by side: engine/reference/attention.rs. A matrix of couples has a
// number for every two neighbours of an atom, row after row, atom after atom.

// y = scale x u, for each atom: with matrices of couples where a bit of `kind` says so (1: x, 4: u, 16: y), turned (2: x, 8: u), or
// added to what is there (32). Sizes are 0 where they are the number of neighbours: n_in rows of y, n_out columns, `size` between.
// Not both are turned.
extern "C" __global__ void __launch_bounds__(MAKERS) plan_segments(const __grid_constant__ Chunk c, const __grid_constant__ Part p,
                                                                   const __grid_constant__ Op op, int planes) {
    __shared__ Stages stages;
    after_previous();
    int kind = op.kind, down = tiles_of(op.n_in ? op.n_in : p.n_sel), across = tiles_of(op.n_out ? op.n_out : p.n_sel), plane = planes - 1;
    int all = atoms_of(c) * down * across;
    for (int t = blockIdx.x; t < all; t += gridDim.x) {
        int column = t % across * SIZE, row = t / across % down * SIZE;
        size_t atom = t / across / down;
        int n = (int)p.total[atom], rows = op.n_in ? op.n_in : n, columns = op.n_out ? op.n_out : n, depth = op.size ? op.size : n;
        if (row >= rows || column >= columns) continue;
        size_t first = p.first[atom], couples = p.square[atom];
        // Where lines follow one another in memory the first one is `line` numbers on, else so many rows.
        auto factor = [&](const Mat& m, int couple, bool lines_follow, int line, int lines) {
            size_t ld = couple ? (size_t)n : (size_t)m.ld;
            const real* at = m.v + (couple ? couples : first * m.ld) + (lines_follow ? line : line * ld);
            return Factor{{at, at}, ld, min(SIZE, lines - line)};
        };
        Factor x = factor(op.x, kind & 1, kind & 2, row, rows), u = factor(op.u, kind & 4, !(kind & 8), column, columns);
        // The change of a product: that of the first factor times the second, and the other way round.
        if (plane) x.at[0] += op.x.plane, u.at[1] += op.u.plane;
        size_t ld = kind & 16 ? (size_t)n : (size_t)op.y.ld;
        real* y = op.y.v + plane * op.y.plane + (kind & 16 ? couples : first * op.y.ld) + row * ld + column;
        auto end = [&](int r, int k, real sum) {
            real* to = y + r * ld + k;
            *to = kind & 32 ? *to + (real)op.scale * sum : (real)op.scale * sum;
        };
        if (kind & 2) tile_product<false, false>(stages, x, u, planes, depth, end);
        else if (kind & 8) tile_product<true, true>(stages, x, u, planes, depth, end);
        else tile_product<true, false>(stages, x, u, planes, depth, end);
    }
}

// What attention knows of two neighbours, `row` and `other`.
template <int P> struct Two {
    typedef typename Planes<P>::Number N;
    N shared, angle;
    __device__ __forceinline__ Two(const Op& op, size_t row, size_t other) {
        clear(angle);
        shared = at<P>(op.z.v, op.z.plane, row * op.z.ld) * at<P>(op.z.v, op.z.plane, other * op.z.ld);
        for (int e = 0; e < 3 && op.u.v; e++)
            angle = angle + at<P>(op.u.v, op.u.plane, row * op.u.ld + e) * at<P>(op.u.v, op.u.plane, other * op.u.ld + e);
    }
};

// The shift of weights that are switched off.
#define SHIFT real(20)

template <int P> struct Weights {
    typedef typename Planes<P>::Number N;
    const Op& op;
    size_t row, first, couples;
    int n, lane;
    real largest;
    N scale;
    // Row `row` of a matrix of couples: the largest exponent, and one over the sum of powers.
    __device__ __forceinline__ Weights(const Part& p, const Op& op, int row)
        : op(op), row(row), first(p.first[p.atom[row]]), n((int)p.total[p.atom[row]]), lane(threadIdx.x % 32) {
        couples = p.square[p.atom[row]] + (row - first) * n;
        bool smooth = op.kind & 1;
        largest = smooth ? -SHIFT : -(real)1e30;
        for (int k = lane; k < n; k += 32) largest = fmax(largest, value_of(exponent(k, Two<P>(op, row, first + k))));
        for (int step = 16; step > 0; step >>= 1) largest = fmax(largest, __shfl_xor_sync(FULL_WARP, largest, step));
        N sum;
        clear(sum);
        for (int k = lane; k < n; k += 32) sum = sum + power_of_e(exponent(k, Two<P>(op, row, first + k)) + -largest);
        sum = sum_of_warp(sum);
        // Slots in which nobody is seen count where weights are smooth.
        if (smooth) sum = sum + (real)((p.n_sel - n) * exp(-20.0 - (double)largest));
        scale = inverse(sum);
    }
    __device__ __forceinline__ N given(int k) const { return at<P>(op.x.v, op.x.plane, couples + k); }
    __device__ __forceinline__ N exponent(int k, const Two<P>& two) const {
        return op.kind & 1 ? (given(k) + SHIFT) * two.shared + -SHIFT : given(k);
    }
    __device__ __forceinline__ N of(int k, const Two<P>& two) const { return power_of_e(exponent(k, two) + -largest) * scale; }
};

// y: the weights from the products x; switches z, directions u. `kind` 1: smooth. A warp for each neighbour.
template <int P> __device__ __forceinline__ void softmax(const Part& p, const Op& op) {
    typedef typename Planes<P>::Number N;
    WARP_ROWS(row, pairs_of(p)) {
        Weights<P> w(p, op, row);
        for (int k = w.lane; k < w.n; k += 32) {
            Two<P> two(op, row, w.first + k);
            N y = w.of(k, two);
            if (op.kind & 1) y = y * two.shared;
            if (op.u.v) y = y * two.angle;
            put_at(op.y.v, op.y.plane, w.couples + k, y);
        }
    }
}
extern "C" __global__ void __launch_bounds__(256) plan_softmax(const __grid_constant__ Part p, const __grid_constant__ Op op, int planes) {
    after_previous();
    if (planes == 1) softmax<1>(p, op);
    else softmax<2>(p, op);
}

// The adjoints of the products x, and of what two neighbours share, s: their switches; t: their angle.
template <int P> __device__ __forceinline__ void softmax_back(const Part& p, const Op& op) {
    typedef typename Planes<P>::Number N;
    bool smooth = op.kind & 1;
    WARP_ROWS(row, pairs_of(p)) {
        Weights<P> w(p, op, row);
        N along;
        clear(along);
        for (int k = w.lane; k < w.n; k += 32) {
            Two<P> two(op, row, w.first + k);
            N weight = w.of(k, two), dy = at<P>(op.y.g, op.y.plane, w.couples + k);
            if (op.u.v) {
                put_at(op.t.g, op.t.plane, w.couples + k, smooth ? dy * weight * two.shared : dy * weight);
                dy = dy * two.angle;
            }
            if (smooth) dy = dy * two.shared;
            along = along + weight * dy;
        }
        along = sum_of_warp(along);
        for (int k = w.lane; k < w.n; k += 32) {
            Two<P> two(op, row, w.first + k);
            N weight = w.of(k, two), dy = at<P>(op.y.g, op.y.plane, w.couples + k);
            if (op.u.v) dy = dy * two.angle;
            N shared = dy * weight, dt = weight * ((smooth ? dy * two.shared : dy) - along);
            if (smooth) {
                put_at(op.s.g, op.s.plane, w.couples + k, shared + dt * (w.given(k) + SHIFT));
                dt = dt * two.shared;
            }
            put_at(op.x.g, op.x.plane, w.couples + k, dt);
        }
    }
}
extern "C" __global__ void __launch_bounds__(256) plan_softmax_back(const __grid_constant__ Part p, const __grid_constant__ Op op, int planes) {
    after_previous();
    if (planes == 1) softmax_back<1>(p, op);
    else softmax_back<2>(p, op);
}

// The adjoints of switches z and directions u from those.
template <int P> __device__ __forceinline__ void shared_back(const Part& p, const Op& op) {
    typedef typename Planes<P>::Number N;
    int lane = threadIdx.x % 32;
    WARP_ROWS(row, pairs_of(p)) {
        size_t atom = p.atom[row], first = p.first[atom], couples = p.square[atom], n = p.total[atom], own = row - first;
        N sum[4];
        for (int e = 0; e < 4; e++) clear(sum[e]);
        for (size_t k = lane; k < n; k += 32) {
            size_t there = couples + own * n + k, back = couples + k * n + own;
            if (op.kind & 1) {
                N d = at<P>(op.s.g, op.s.plane, there) + at<P>(op.s.g, op.s.plane, back);
                sum[3] = sum[3] + d * at<P>(op.z.v, op.z.plane, (first + k) * op.z.ld);
            }
            if (!op.u.v) continue;
            N d = at<P>(op.t.g, op.t.plane, there) + at<P>(op.t.g, op.t.plane, back);
            for (int e = 0; e < 3; e++) sum[e] = sum[e] + d * at<P>(op.u.v, op.u.plane, (first + k) * op.u.ld + e);
        }
        for (int e = 0; e < 4; e++) sum[e] = sum_of_warp(sum[e]);
        if (lane != 0) continue;
        if (op.kind & 1) add_at(op.z.g, op.z.plane, (size_t)row * op.z.ld, sum[3]);
        for (int e = 0; e < 3 && op.u.v; e++) add_at(op.u.g, op.u.plane, (size_t)row * op.u.ld + e, sum[e]);
    }
}
extern "C" __global__ void __launch_bounds__(256) plan_shared_back(const __grid_constant__ Part p, const __grid_constant__ Op op, int planes) {
    after_previous();
    if (planes == 1) shared_back<1>(p, op);
    else shared_back<2>(p, op);
}
