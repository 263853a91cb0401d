// Operations on rows: layers of nets, whose parameters may differ from group to group of rows. Formulas: engine/reference/tape.rs.

__device__ __forceinline__ int group_of_row(const Op& op, int row) {
    int group = 0;
    while (group + 1 < op.groups && row >= (int)op.rows[group + 1]) group++;
    return group;
}

// The rows of a group that one piece of a sum over them is made of.
struct Piece {
    size_t begin, end;
    __device__ __forceinline__ Piece(const Op& op, int group, int split) {
        u64 first = op.rows[group], n = op.rows[group + 1] - first;
        begin = first + n * split / op.splits, end = first + n * (split + 1) / op.splits;
    }
};

// z = x W + b; the bias has no change.
extern "C" __global__ void __launch_bounds__(MAKERS) plan_dense(const __grid_constant__ Op op, int planes) {
    __shared__ Stages stages;
    after_previous();
    int plane = planes - 1;
    for (int t = blockIdx.x;; t += gridDim.x) {
        RowTile tile(op, t, op.n_out);
        if (!tile.is_there) return;
        u64 own = tile.group * op.stride + tile.column;
        const real* b = op.b && !plane ? op.b + own : nullptr;
        Factor x = {{op.x.v + plane * op.x.plane + (size_t)tile.first * op.x.ld}, (size_t)op.x.ld, tile.n};
        Factor w = {{op.w + own}, (size_t)op.n_out, min(SIZE, op.n_out - tile.column)};
        real* z = op.z.v + plane * op.z.plane + (size_t)tile.first * op.z.ld + tile.column;
        tile_product<true, false>(stages, x, w, 1, op.n_in, [&](int r, int c, real sum) { z[(size_t)r * op.z.ld + c] = b ? sum + b[c] : sum; });
    }
}

// Adds dz W^T to the adjoint of x.
extern "C" __global__ void __launch_bounds__(MAKERS) plan_dense_back(const __grid_constant__ Op op, int planes) {
    __shared__ Stages stages;
    after_previous();
    int plane = planes - 1;
    for (int t = blockIdx.x;; t += gridDim.x) {
        RowTile tile(op, t, op.n_in);
        if (!tile.is_there) return;
        Factor dz = {{op.z.g + plane * op.z.plane + (size_t)tile.first * op.z.ld}, (size_t)op.z.ld, tile.n};
        Factor w = {{op.w + tile.group * op.stride + (size_t)tile.column * op.n_out}, (size_t)op.n_out, min(SIZE, op.n_in - tile.column)};
        real* dx = op.x.g + plane * op.x.plane + (size_t)tile.first * op.x.ld + tile.column;
        tile_product<true, true>(stages, dz, w, 1, op.n_out, [&](int r, int c, real sum) { dx[(size_t)r * op.x.ld + c] += sum; });
    }
}

// Pieces of the gradient of W, and of b as one more row of it: `[splits, groups, n_in (+ 1), n_out]`.
extern "C" __global__ void __launch_bounds__(MAKERS) plan_weights(const __grid_constant__ Op op, int planes) {
    __shared__ Stages stages;
    after_previous();
    int n_in = op.n_in + (op.b ? 1 : 0), down = tiles_of(op.n_in), across = tiles_of(op.n_out);
    for (int t = blockIdx.x; t < op.splits * op.groups * down * across; t += gridDim.x) {
        int column = t % across * SIZE, row = t / across % down * SIZE, group = t / across / down % op.groups;
        int split = t / across / down / op.groups;
        Piece piece(op, group, split);
        real* to = op.pieces + ((size_t)split * op.groups + group) * n_in * op.n_out;
        // Values meet the last plane of adjoints, changes the first one.
        const real *x = op.x.v + piece.begin * op.x.ld + row, *dz = op.z.g + piece.begin * op.z.ld + column;
        Factor left = {{x, x + op.x.plane}, (size_t)op.x.ld, min(SIZE, op.n_in - row)};
        Factor right = {{dz + (planes - 1) * op.z.plane, dz}, (size_t)op.z.ld, min(SIZE, op.n_out - column)};
        real bias = real(0);
        bool sums = op.b && row == 0 && (int)threadIdx.x < right.lines;
        auto seen = [&](const real* step, int half) {
            for (int k = 0; k < STRIDE && sums && !half; k++) bias += step[Staged<false>::at(k, threadIdx.x)];
        };
        tile_product<false, false>(stages, left, right, planes, (int)(piece.end - piece.begin), seen,
                                   [&](int r, int c, real sum) { to[(size_t)(row + r) * op.n_out + column + c] = sum; });
        if (sums) to[(size_t)op.n_in * op.n_out + column + threadIdx.x] = bias;
    }
}

// Layers of a few numbers, of which a tile of a product would be nearly empty. A thread makes an element.
extern "C" __global__ void __launch_bounds__(256) plan_narrow(const __grid_constant__ Op op, int planes) {
    after_previous();
    int plane = planes - 1, n_out = op.n_out;
    ELEMENTS(i, (size_t)rows_of(op) * n_out) {
        int row = (int)(i / n_out), o = (int)(i - (size_t)row * n_out);
        u64 own = group_of_row(op, row) * op.stride + o;
        const real* x = op.x.v + plane * op.x.plane + (size_t)row * op.x.ld;
        real sum = op.b && !plane ? op.b[own] : real(0);
        for (int k = 0; k < op.n_in; k++) sum += x[k] * op.w[own + (u64)k * n_out];
        op.z.v[plane * op.z.plane + (size_t)row * op.z.ld + o] = sum;
    }
}

extern "C" __global__ void __launch_bounds__(256) plan_narrow_back(const __grid_constant__ Op op, int planes) {
    after_previous();
    int plane = planes - 1, n_in = op.n_in;
    ELEMENTS(i, (size_t)rows_of(op) * n_in) {
        int row = (int)(i / n_in), k = (int)(i - (size_t)row * n_in);
        const real *dz = op.z.g + plane * op.z.plane + (size_t)row * op.z.ld, *w = op.w + group_of_row(op, row) * op.stride + (u64)k * op.n_out;
        real sum = real(0);
        for (int o = 0; o < op.n_out; o++) sum += dz[o] * w[o];
        op.x.g[plane * op.x.plane + (size_t)row * op.x.ld + k] += sum;
    }
}

// As plan_weights. Threads of a block share the rows of a piece out in teams, each thread with one element of the piece; a piece has at
// most as many as a block has threads.
extern "C" __global__ void __launch_bounds__(256) plan_narrow_weights(const __grid_constant__ Op op, int planes) {
    __shared__ real scratch[256];
    after_previous();
    int n_in = op.n_in + (op.b ? 1 : 0), each = n_in * op.n_out, teams = 256 / each, team = (int)threadIdx.x / each;
    int element = (int)threadIdx.x % each, k = element / op.n_out, o = element % op.n_out;
    for (int t = blockIdx.x; t < op.splits * op.groups; t += gridDim.x) {
        Piece piece(op, t % op.groups, t / op.groups);
        real sum = real(0);
        for (size_t row = piece.begin + team; row < piece.end && team < teams; row += teams) {
            const real *x = op.x.v + row * op.x.ld + k, *dz = op.z.g + row * op.z.ld + o;
            real last = dz[(planes - 1) * op.z.plane];
            if (k == op.n_in) sum += last;
            else sum += planes == 2 ? x[0] * last + x[op.x.plane] * dz[0] : x[0] * last;
        }
        __syncthreads();
        scratch[threadIdx.x] = sum;
        __syncthreads();
        if (team) continue;
        for (int other = 1; other < teams; other++) sum += scratch[other * each + element];
        op.pieces[(size_t)t * each + element] = sum;
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
        Piece piece(op, group, split);
        real scale = real(0), shift = real(0);
        for (size_t row = piece.begin; row < piece.end; row++) {
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

// dx = (dy - y (y . dy)) / |x|, y being x / |x|: that is read once less.
template <int P> __device__ __forceinline__ void unit_back(const Op& op) {
    typedef typename Planes<P>::Number N;
    int lane = threadIdx.x % 32, pieces = op.n_out / op.n_in;
    WARP_ROWS(k, rows_of(op) * pieces) {
        size_t row = k / pieces, x = row * op.x.ld + k % pieces * op.n_in, y = row * op.y.ld + k % pieces * op.n_in;
        N sum, along;
        clear(sum), clear(along);
        for (int c = lane; c < op.n_in; c += 32) {
            N a = at<P>(op.x.v, op.x.plane, x + c);
            sum = sum + a * a, along = along + a * at<P>(op.y.g, op.y.plane, y + c);
        }
        N scale = inverse_root(sum_of_warp(sum));
        along = scale * scale * sum_of_warp(along);
        for (int c = lane; c < op.n_in; c += 32) {
            N dy = at<P>(op.y.g, op.y.plane, y + c);
            add_at(op.x.g, op.x.plane, x + c, scale * (dy - at<P>(op.x.v, op.x.plane, x + c) * along));
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

// The adjoint of a gather, in pieces `[splits, n_in, n_out]`: n_in rows were gathered from. Sums are made in shared memory, of so many
// rows at a time as there is room for.
#define GATHERED (4096 / 32)
extern "C" __global__ void __launch_bounds__(256) plan_gather_back(const __grid_constant__ Op op, int planes) {
    __shared__ real sums[GATHERED * 32];
    after_previous();
    u64 n = rows_of(op);
    int columns = (op.n_out + 31) / 32, lane = threadIdx.x % 32, part = threadIdx.x / 32;
    const real* dy = op.y.g + (planes - 1) * op.y.plane;
    // A warp has 32 columns of some rows, and sums of its own.
    for (int t = blockIdx.x; t < op.splits * columns; t += gridDim.x) {
        int split = t / columns, c = t % columns * 32 + lane;
        u64 begin = n * split / op.splits, end = n * (split + 1) / op.splits;
        int most = GATHERED / 8;
        for (int first = 0; first < op.n_in; first += most) {
            int count = min(most, op.n_in - first);
            real* own = sums + part * most * 32;
            __syncthreads();
            for (int r = 0; r < count; r++) own[r * 32 + lane] = real(0);
            for (u64 row = begin + part; row < end && c < op.n_out; row += 8) {
                int r = (int)op.index[row] - first;
                if (r >= 0 && r < count) own[r * 32 + lane] += dy[row * op.y.ld + c];
            }
            __syncthreads();
            for (int r = part; r < count && c < op.n_out; r += 8) {
                real sum = real(0);
                for (int other = 0; other < 8; other++) sum += sums[(other * most + r) * 32 + lane];
                op.pieces[((size_t)split * op.n_in + first + r) * op.n_out + c] = sum;
            }
        }
    }
}

// Adds these pieces up, and to the adjoint of what was gathered from.
extern "C" __global__ void __launch_bounds__(256) plan_gather_reduce(const __grid_constant__ Op op, int planes) {
    after_previous();
    size_t each = (size_t)op.n_in * op.n_out;
    ELEMENTS(k, each) {
        double sum = 0;
        for (int s = 0; s < op.splits; s++) sum += (double)op.pieces[s * each + k];
        op.x.g[(planes - 1) * op.x.plane + k / op.n_out * op.x.ld + k % op.n_out] += (real)sum;
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
