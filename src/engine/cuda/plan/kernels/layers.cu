// Operations on rows: layers of nets, whose parameters may differ from group to group of rows. Formulas: engine/reference/tape.rs.

// z = x W + b; the bias has no change.
extern "C" __global__ void __launch_bounds__(MAKERS) plan_dense(const __grid_constant__ Op op, int planes) {
    __shared__ Stages stages;
    after_previous();
    for (int t = blockIdx.x;; t += gridDim.x) {
        RowTile tile(op, t, planes, op.n_out);
        if (!tile.is_there) return;
        const real *w = op.w + tile.group * op.stride + tile.column, *b = op.b ? op.b + tile.group * op.stride + tile.column : nullptr;
        const real* x = op.x.v + tile.plane * op.x.plane + (size_t)tile.first * op.x.ld;
        real* z = op.z.v + tile.plane * op.z.plane + (size_t)tile.first * op.z.ld + tile.column;
        tile_product<true, false>(stages, tile.n, min(SIZE, op.n_out - tile.column), op.n_in,
            [&](int r, int k) { return x[(size_t)r * op.x.ld + k]; },
            [&](int k, int c) { return w[(size_t)k * op.n_out + c]; },
            [&](int r, int c, real sum) { z[(size_t)r * op.z.ld + c] = b && !tile.plane ? sum + b[c] : sum; });
    }
}

// Adds dz W^T to the adjoint of x.
extern "C" __global__ void __launch_bounds__(MAKERS) plan_dense_back(const __grid_constant__ Op op, int planes) {
    __shared__ Stages stages;
    after_previous();
    for (int t = blockIdx.x;; t += gridDim.x) {
        RowTile tile(op, t, planes, op.n_in);
        if (!tile.is_there) return;
        const real* w = op.w + tile.group * op.stride + (size_t)tile.column * op.n_out;
        const real* dz = op.z.g + tile.plane * op.z.plane + (size_t)tile.first * op.z.ld;
        real* dx = op.x.g + tile.plane * op.x.plane + (size_t)tile.first * op.x.ld + tile.column;
        tile_product<true, true>(stages, tile.n, min(SIZE, op.n_in - tile.column), op.n_out,
            [&](int r, int k) { return dz[(size_t)r * op.z.ld + k]; },
            [&](int k, int c) { return w[(size_t)c * op.n_out + k]; },
            [&](int r, int c, real sum) { dx[(size_t)r * op.x.ld + c] += sum; });
    }
}

// Pieces of the gradient of W, and of b as one more row of it: `[splits, groups, n_in (+ 1), n_out]`.
extern "C" __global__ void __launch_bounds__(MAKERS) plan_weights(const __grid_constant__ Op op, int planes) {
    __shared__ Stages stages;
    after_previous();
    int n_in = op.n_in + (op.b ? 1 : 0), down = tiles_of(n_in), across = tiles_of(op.n_out);
    for (int t = blockIdx.x; t < op.splits * op.groups * down * across; t += gridDim.x) {
        int column = t % across * SIZE, row = t / across % down * SIZE, group = t / across / down % op.groups;
        int split = t / across / down / op.groups;
        int first = (int)op.rows[group], n = (int)op.rows[group + 1] - first;
        int begin = (int)((u64)n * split / op.splits), end = (int)((u64)n * (split + 1) / op.splits), count = end - begin;
        real* to = op.pieces + ((size_t)split * op.groups + group) * n_in * op.n_out;
        // Values meet the last plane of adjoints, changes the first one.
        tile_product<false, false>(stages, min(SIZE, n_in - row), min(SIZE, op.n_out - column), planes * count,
            [&](int r, int k) {
                int plane = k >= count, i = row + r;
                size_t from = first + begin + k - plane * count;
                return i < op.n_in ? op.x.v[plane * op.x.plane + from * op.x.ld + i] : plane ? real(0) : real(1);
            },
            [&](int k, int c) {
                int plane = k >= count;
                size_t from = first + begin + k - plane * count;
                return op.z.g[(planes - 1 - plane) * op.z.plane + from * op.z.ld + column + c];
            },
            [&](int r, int c, real sum) { to[(size_t)(row + r) * op.n_out + column + c] = sum; });
    }
}

// Adds pieces of `[splits, groups, n_in, n_out]` up, and to the gradient: rows below `n_in` belong to W, one more to b, and where `b` is
// not there W is a vector.
extern "C" __global__ void __launch_bounds__(256) plan_reduce(const __grid_constant__ Op op, double* grad, int n_rows) {
    after_previous();
    size_t each = (size_t)n_rows * op.n_out, all = each * op.groups;
    ELEMENTS(i, all) {
        double sum = 0;
        for (int s = 0; s < op.splits; s++) sum += (double)op.pieces[s * all + i];
        size_t group = i / each, k = i % each, row = k / op.n_out;
        u64 to = row < op.n_in ? op.w_flat + k : op.b_flat + k % op.n_out;
        grad[to + group * op.stride] += sum;
    }
}

__device__ __forceinline__ int group_of_row(const Op& op, int row) {
    int group = 0;
    while (group + 1 < op.groups && row >= (int)op.rows[group + 1]) group++;
    return group;
}

// y = idt act(z) + shortcut(x)
template <int P> __device__ __forceinline__ void activate(const Op& op) {
    ELEMENTS(i, (size_t)rows_of(op) * op.n_out) {
        int row = (int)(i / op.n_out), o = (int)(i % op.n_out);
        auto z = at<P>(op.z.v, op.z.plane, (size_t)row * op.z.ld + o);
        auto y = value_at(jet(op.activation, value_of(z), (real)op.threshold), z);
        if (op.idt) y = op.idt[group_of_row(op, row) * op.stride + o] * y;
        if (op.shortcut) y = y + at<P>(op.x.v, op.x.plane, (size_t)row * op.x.ld + o % op.n_in);
        put_at(op.y.v, op.y.plane, (size_t)row * op.y.ld + o, y);
    }
}
extern "C" __global__ void __launch_bounds__(256) plan_activate(const __grid_constant__ Op op, int planes) {
    after_previous();
    if (planes == 1) activate<1>(op);
    else activate<2>(op);
}

// dz = idt act'(z) dy, and what the shortcut brings is added to the adjoint of x.
template <int P> __device__ __forceinline__ void activate_back(const Op& op) {
    int n = rows_of(op);
    ELEMENTS(i, (size_t)n * op.n_out) {
        int row = (int)(i / op.n_out), o = (int)(i % op.n_out);
        auto z = at<P>(op.z.v, op.z.plane, (size_t)row * op.z.ld + o);
        auto dy = at<P>(op.y.g, op.y.plane, (size_t)row * op.y.ld + o);
        if (op.idt) dy = op.idt[group_of_row(op, row) * op.stride + o] * dy;
        put_at(op.z.g, op.z.plane, (size_t)row * op.z.ld + o, slope_at(jet(op.activation, value_of(z), (real)op.threshold), z) * dy);
    }
    if (!op.shortcut) return;
    ELEMENTS(k, (size_t)n * op.n_in) {
        int row = (int)(k / op.n_in), c = (int)(k % op.n_in);
        typename Planes<P>::Number sum;
        clear(sum);
        for (int o = c; o < op.n_out; o += op.n_in) sum = sum + at<P>(op.y.g, op.y.plane, (size_t)row * op.y.ld + o);
        add_at(op.x.g, op.x.plane, (size_t)row * op.x.ld + c, sum);
    }
}
extern "C" __global__ void __launch_bounds__(256) plan_activate_back(const __grid_constant__ Op op, int planes) {
    after_previous();
    if (planes == 1) activate_back<1>(op);
    else activate_back<2>(op);
}

// Pieces of the gradient of vectors that rows are multiplied by, and of those that are added, `[splits, groups, 1 or 2, n_out]`: of idt
// (`kind` 0: times act(z)), or of a normalisation (1: times the normalised row; and its shift).
template <int P> __device__ __forceinline__ void vectors(const Op& op, int kind) {
    int n_rows = kind + 1;
    ELEMENTS(i, (size_t)op.splits * op.groups * op.n_out) {
        int o = (int)(i % op.n_out), group = (int)(i / op.n_out % op.groups), split = (int)(i / op.n_out / op.groups);
        u64 first = op.rows[group], n = op.rows[group + 1] - first;
        real scale = real(0), shift = real(0);
        for (u64 row = first + n * split / op.splits; row < first + n * (split + 1) / op.splits; row++) {
            auto dy = at<P>(op.y.g, op.y.plane, row * op.y.ld + o);
            auto z = at<P>(op.z.v, op.z.plane, row * op.z.ld + o);
            if (kind == 0) z = value_at(jet(op.activation, value_of(z), (real)op.threshold), z);
            scale += last_of(z * dy), shift += last_of(dy);
        }
        real* to = op.pieces + ((size_t)split * op.groups + group) * n_rows * op.n_out + o;
        to[0] = scale;
        if (kind) to[op.n_out] = shift;
    }
}
extern "C" __global__ void __launch_bounds__(256) plan_vectors(const __grid_constant__ Op op, int planes, int kind) {
    after_previous();
    if (planes == 1) vectors<1>(op, kind);
    else vectors<2>(op, kind);
}

// Every row of x + u with mean 0 and variance 1: z; y = scale z + shift.
template <int P> __device__ __forceinline__ void normalize(const Op& op) {
    typedef typename Planes<P>::Number N;
    int lane = threadIdx.x % 32, width = op.n_out;
    WARP_ROWS(row, rows_of(op)) {
        size_t x = (size_t)row * op.x.ld, u = (size_t)row * op.u.ld;
        N sum;
        clear(sum);
        for (int c = lane; c < width; c += 32) sum = sum + (at<P>(op.x.v, op.x.plane, x + c) + at<P>(op.u.v, op.u.plane, u + c));
        N mean = real(1.0 / width) * sum_of_warp(sum);
        clear(sum);
        for (int c = lane; c < width; c += 32) {
            N centred = at<P>(op.x.v, op.x.plane, x + c) + at<P>(op.u.v, op.u.plane, u + c) - mean;
            sum = sum + centred * centred;
        }
        N scale = inverse_root(real(1.0 / width) * sum_of_warp(sum) + (real)op.scale);
        for (int c = lane; c < width; c += 32) {
            N unit = (at<P>(op.x.v, op.x.plane, x + c) + at<P>(op.u.v, op.u.plane, u + c) - mean) * scale;
            put_at(op.z.v, op.z.plane, (size_t)row * op.z.ld + c, unit);
            put_at(op.y.v, op.y.plane, (size_t)row * op.y.ld + c, op.w[c] * unit + op.b[c]);
        }
        // The scale of the row, for the way back.
        if (lane == 0) put_at(op.z.v, op.z.plane, (size_t)row * op.z.ld + width, scale);
    }
}
extern "C" __global__ void __launch_bounds__(256) plan_normalize(const __grid_constant__ Op op, int planes) {
    after_previous();
    if (planes == 1) normalize<1>(op);
    else normalize<2>(op);
}

// dx = du = scale (dz - mean dz - z mean (z dz)) with dz = w dy.
template <int P> __device__ __forceinline__ void normalize_back(const Op& op) {
    typedef typename Planes<P>::Number N;
    int lane = threadIdx.x % 32, width = op.n_out;
    WARP_ROWS(row, rows_of(op)) {
        size_t z = (size_t)row * op.z.ld, y = (size_t)row * op.y.ld;
        N sum, along;
        clear(sum), clear(along);
        for (int c = lane; c < width; c += 32) {
            N dz = op.w[c] * at<P>(op.y.g, op.y.plane, y + c);
            sum = sum + dz, along = along + dz * at<P>(op.z.v, op.z.plane, z + c);
        }
        sum = real(1.0 / width) * sum_of_warp(sum), along = real(1.0 / width) * sum_of_warp(along);
        N scale = at<P>(op.z.v, op.z.plane, z + width);
        for (int c = lane; c < width; c += 32) {
            N dz = op.w[c] * at<P>(op.y.g, op.y.plane, y + c);
            N dx = scale * (dz - sum - at<P>(op.z.v, op.z.plane, z + c) * along);
            add_at(op.x.g, op.x.plane, (size_t)row * op.x.ld + c, dx);
            add_at(op.u.g, op.u.plane, (size_t)row * op.u.ld + c, dx);
        }
    }
}
extern "C" __global__ void __launch_bounds__(256) plan_normalize_back(const __grid_constant__ Op op, int planes) {
    after_previous();
    if (planes == 1) normalize_back<1>(op);
    else normalize_back<2>(op);
}

// Pieces of a row, `n_in` numbers each, of length 1.
template <int P> __device__ __forceinline__ void unit(const Op& op) {
    typedef typename Planes<P>::Number N;
    int lane = threadIdx.x % 32, pieces = op.n_out / op.n_in;
    WARP_ROWS(k, rows_of(op) * pieces) {
        size_t row = k / pieces, x = row * op.x.ld + k % pieces * op.n_in, y = row * op.y.ld + k % pieces * op.n_in;
        N sum;
        clear(sum);
        for (int c = lane; c < op.n_in; c += 32) {
            N a = at<P>(op.x.v, op.x.plane, x + c);
            sum = sum + a * a;
        }
        N scale = inverse_root(sum_of_warp(sum));
        for (int c = lane; c < op.n_in; c += 32) put_at(op.y.v, op.y.plane, y + c, scale * at<P>(op.x.v, op.x.plane, x + c));
    }
}
extern "C" __global__ void __launch_bounds__(256) plan_unit(const __grid_constant__ Op op, int planes) {
    after_previous();
    if (planes == 1) unit<1>(op);
    else unit<2>(op);
}

// dx = (dy - y (y . dy)) / |x|
template <int P> __device__ __forceinline__ void unit_back(const Op& op) {
    typedef typename Planes<P>::Number N;
    int lane = threadIdx.x % 32, pieces = op.n_out / op.n_in;
    WARP_ROWS(k, rows_of(op) * pieces) {
        size_t row = k / pieces, x = row * op.x.ld + k % pieces * op.n_in, y = row * op.y.ld + k % pieces * op.n_in;
        N sum, along;
        clear(sum), clear(along);
        for (int c = lane; c < op.n_in; c += 32) {
            N a = at<P>(op.x.v, op.x.plane, x + c);
            sum = sum + a * a, along = along + at<P>(op.y.v, op.y.plane, y + c) * at<P>(op.y.g, op.y.plane, y + c);
        }
        N scale = inverse_root(sum_of_warp(sum));
        along = sum_of_warp(along);
        for (int c = lane; c < op.n_in; c += 32) {
            N dy = at<P>(op.y.g, op.y.plane, y + c);
            add_at(op.x.g, op.x.plane, x + c, scale * (dy - at<P>(op.y.v, op.y.plane, y + c) * along));
        }
    }
}
extern "C" __global__ void __launch_bounds__(256) plan_unit_back(const __grid_constant__ Op op, int planes) {
    after_previous();
    if (planes == 1) unit_back<1>(op);
    else unit_back<2>(op);
}

// Row r of y is row `index[r]` of x; without an index row r.
template <int P> __device__ __forceinline__ void gather(const Op& op) {
    ELEMENTS(i, (size_t)rows_of(op) * op.n_out) {
        size_t row = i / op.n_out, c = i % op.n_out, from = op.index ? op.index[row] : row;
        put_at(op.y.v, op.y.plane, row * op.y.ld + c, at<P>(op.x.v, op.x.plane, from * op.x.ld + c));
    }
}
extern "C" __global__ void __launch_bounds__(256) plan_gather(const __grid_constant__ Op op, int planes) {
    after_previous();
    if (planes == 1) gather<1>(op);
    else gather<2>(op);
}

// The adjoint of a gather without an index.
template <int P> __device__ __forceinline__ void copy_back(const Op& op) {
    ELEMENTS(i, (size_t)rows_of(op) * op.n_out) {
        size_t row = i / op.n_out, c = i % op.n_out;
        add_at(op.x.g, op.x.plane, row * op.x.ld + c, at<P>(op.y.g, op.y.plane, row * op.y.ld + c));
    }
}
extern "C" __global__ void __launch_bounds__(256) plan_copy_back(const __grid_constant__ Op op, int planes) {
    after_previous();
    if (planes == 1) copy_back<1>(op);
    else copy_back<2>(op);
}

// The adjoint of a gather, in pieces `[splits, planes, n_in, n_out]`: n_in rows were gathered from.
extern "C" __global__ void __launch_bounds__(256) plan_gather_back(const __grid_constant__ Op op, int planes) {
    after_previous();
    u64 n = rows_of(op), each = (u64)op.n_in * op.n_out;
    for (int k = blockIdx.x; k < op.splits * planes; k += gridDim.x) {
        int split = k / planes, plane = k % planes;
        real* to = op.pieces + (size_t)k * each;
        const real* dy = op.y.g + plane * op.y.plane;
        for (int c = threadIdx.x; c < op.n_out; c += blockDim.x) {
            for (int r = 0; r < op.n_in; r++) to[(size_t)r * op.n_out + c] = real(0);
            for (u64 row = n * split / op.splits; row < n * (split + 1) / op.splits; row++)
                to[(size_t)op.index[row] * op.n_out + c] += dy[row * op.y.ld + c];
        }
    }
}

// Adds these pieces up, and to the adjoint of what was gathered from.
extern "C" __global__ void __launch_bounds__(256) plan_gather_reduce(const __grid_constant__ Op op, int planes) {
    after_previous();
    size_t each = (size_t)op.n_in * op.n_out;
    ELEMENTS(i, each * planes) {
        int plane = (int)(i / each);
        size_t k = i % each;
        double sum = 0;
        for (int s = 0; s < op.splits; s++) sum += (double)op.pieces[((size_t)s * planes + plane) * each + k];
        op.x.g[plane * op.x.plane + k / op.n_out * op.x.ld + k % op.n_out] += (real)sum;
    }
}

// y = x + x u, where u is multiplied by the switch z where there is one.
template <int P> __device__ __forceinline__ void combine(const Op& op) {
    ELEMENTS(i, (size_t)rows_of(op) * op.n_out) {
        size_t row = i / op.n_out, c = i % op.n_out;
        auto x = at<P>(op.x.v, op.x.plane, row * op.x.ld + c);
        auto u = at<P>(op.u.v, op.u.plane, row * op.u.ld + c);
        if (op.z.v) u = u * at<P>(op.z.v, op.z.plane, row * op.z.ld);
        put_at(op.y.v, op.y.plane, row * op.y.ld + c, x + x * u);
    }
}
extern "C" __global__ void __launch_bounds__(256) plan_combine(const __grid_constant__ Op op, int planes) {
    after_previous();
    if (planes == 1) combine<1>(op);
    else combine<2>(op);
}

template <int P> __device__ __forceinline__ void combine_back(const Op& op) {
    typedef typename Planes<P>::Number N;
    int lane = threadIdx.x % 32;
    WARP_ROWS(row, rows_of(op)) {
        N along, w;
        clear(along), clear(w);
        if (op.z.v) w = at<P>(op.z.v, op.z.plane, (size_t)row * op.z.ld);
        for (int c = lane; c < op.n_out; c += 32) {
            size_t x_at = (size_t)row * op.x.ld + c, u_at = (size_t)row * op.u.ld + c;
            N dy = at<P>(op.y.g, op.y.plane, (size_t)row * op.y.ld + c);
            N x = at<P>(op.x.v, op.x.plane, x_at), u = at<P>(op.u.v, op.u.plane, u_at), du = dy * x;
            if (op.z.v) along = along + du * u, u = u * w, du = du * w;
            add_at(op.x.g, op.x.plane, x_at, dy + dy * u);
            add_at(op.u.g, op.u.plane, u_at, du);
        }
        if (!op.z.v) continue;
        along = sum_of_warp(along);
        if (lane == 0) add_at(op.z.g, op.z.plane, (size_t)row * op.z.ld, along);
    }
}
extern "C" __global__ void __launch_bounds__(256) plan_combine_back(const __grid_constant__ Op op, int planes) {
    after_previous();
    if (planes == 1) combine_back<1>(op);
    else combine_back<2>(op);
}
