// The embedding nets themselves, pair by pair: where no series describes them, or none is wanted. The formulas of
// engine/cpu/direct.rs.
//
// The neighbours of all atoms, and one for the empty slots of each atom and type, get places in one long list, net by net
// (direct_plan, direct_places). Blocks take tiles of the list, so that the weights of a net stay in shared memory, and
// compute value G and derivative G' of the net on tensor cores (direct_nets), which are kept for the kernels that add up
// what belongs to an atom (direct_describe, direct_forces, direct_tangent). The gradient goes the same way back, tile by
// tile (direct_adjoint), in a piece for each block. Every sum has one order.

// Places come in tiles of so many; a group of neighbours with one net begins with a new one.
#define TILE_PLACES 32
// Threads of the kernels that work on tiles, and of those that work on atoms.
#define NETS_THREADS 256
#define ADJOINT_THREADS 512
#define ATOM_THREADS 512
// Neighbours of an atom that are brought to shared memory at once.
#define CHUNK 128
// Columns of eight that a warp carries at once.
#define SIDE 2

// An atom, as the kernels of this file see it.
struct Center {
    Frame frame;
    int row, f, local, type;
    __device__ __forceinline__ Center(const Batch& b, int row)
        : frame(b.frames[b.turn->slots[b.row_frame[row]]]), row(row), f(b.row_frame[row]), local(b.row_local[row]),
          type(center_of_row(b, row)) {}
};

// The neighbours of one type of an atom: pairs from `first` to `end`, and how many slots are empty or, where that counts, have
// an excluded neighbour.
struct Segment {
    int first, end;
    u32 padding, left_out;
    __device__ __forceinline__ Segment(const Batch& b, const Frame& frame, int local, int t) {
        size_t at = (size_t)local * b.n_types + t;
        first = frame.pair_start[at], end = frame.pair_start[at + 1], padding = frame.padding[at], left_out = 0;
#if COMPONENTS == 1
        left_out = left_out_of(b, frame, local, t);
#endif
    }
    // Empty slots are one neighbour of some weight, and so are those of excluded ones, which come behind them.
    __device__ __forceinline__ int count() const { return end - first + (padding ? 1 : 0) + (left_out ? 1 : 0); }
    __device__ __forceinline__ bool is_empty_slot(int p) const { return p == end && padding; }
};

__device__ __forceinline__ int groups_of(const Batch& b, const Direct& d) { return b.n_types * d.n_stacks; }
__device__ __forceinline__ int group_of(const Batch& b, const Direct& d, int t, int row) {
    return t * d.n_stacks + (d.n_stacks > 1 ? center_of_row(b, row) : 0);
}

// The first row of a stack: rows of a type begin with those of the first frame.
__device__ __forceinline__ int first_row(const Batch& b, const Direct& d, int stack) {
    return d.n_stacks == 1 ? stack * rows_of(b) : stack < b.n_types ? (int)b.frame_rows[2 * stack] : rows_of(b);
}


__device__ __forceinline__ int first_place(const Batch& b, const Direct& d, int t, int row) {
    return d.start[t * rows_of(b) + row] + d.groups[2 * group_of(b, d, t, row) + 1];
}

// Gives every atom and type its places: one block.
extern "C" __global__ void __launch_bounds__(1024, 1) direct_plan(const __grid_constant__ Batch b,
                                                                  const __grid_constant__ Direct d) {
    __shared__ u32 sums[1024];
    after_previous();
    int n = b.n_types * rows_of(b), each = (n + blockDim.x - 1) / blockDim.x, me = threadIdx.x;
    int low = min(me * each, n), high = min(low + each, n);
    u32 own = 0;
    // Several at a time: each is found at the end of a chain of loads, none of which may wait for a store.
    for (int first = low; first < high; first += 8) {
        u32 counts[8];
#pragma unroll
        for (int k = 0; k < 8; k++) {
            int i = min(first + k, high - 1), row = i % rows_of(b);
            const Frame& frame = b.frames[b.turn->slots[b.row_frame[row]]];
            counts[k] = Segment(b, frame, b.row_local[row], i / rows_of(b)).count();
        }
#pragma unroll
        for (int k = 0; k < 8; k++)
            if (first + k < high) d.start[first + k] = counts[k], own += counts[k];
    }
    sums[me] = own;
    __syncthreads();
    for (int step = 1; step < (int)blockDim.x; step *= 2) {
        u32 more = me >= step ? sums[me - step] : 0;
        __syncthreads();
        sums[me] += more;
        __syncthreads();
    }
    u32 before = sums[me] - own;
    for (int i = low; i < high; i++) {
        u32 count = d.start[i];
        d.start[i] = before;
        before += count;
    }
    __threadfence();
    __syncthreads();
    if (me) return;
    // Every group takes whole tiles.
    u32 tile = 0, total = sums[blockDim.x - 1];
    volatile const u32* start = d.start;
    for (int g = 0; g < groups_of(b, d); g++) {
        int first = g / d.n_stacks * rows_of(b), stack = g % d.n_stacks;
        int begin = first + first_row(b, d, stack), end = first + first_row(b, d, stack + 1);
        u32 from = begin < n ? start[begin] : total, to = end < n ? start[end] : total;
        d.groups[2 * g] = tile, d.groups[2 * g + 1] = tile * TILE_PLACES - from;
        tile += (to - from + TILE_PLACES - 1) / TILE_PLACES;
    }
    d.groups[2 * groups_of(b, d)] = tile;
}

// Arguments of the nets, and whose neighbours they are: a warp for each atom and type.
extern "C" __global__ void __launch_bounds__(256) direct_places(const __grid_constant__ Batch b,
                                                                const __grid_constant__ Direct d) {
    int i = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
    after_previous();
    if (i >= b.n_types * rows_of(b)) return;
    int t = i / rows_of(b), row = i % rows_of(b), g = group_of(b, d, t, row);
    const Frame& frame = b.frames[b.turn->slots[b.row_frame[row]]];
    Segment segment(b, frame, b.row_local[row], t);
    int center = center_of_row(b, row), place = first_place(b, d, t, row), count = segment.count();
    // The last one of a group fills its last tile with neighbours of nobody.
    int end = count;
    if (row + 1 == first_row(b, d, g % d.n_stacks + 1)) end = (int)(d.groups[2 * g + 2] * TILE_PLACES) - place;
    for (int k = lane; k < end; k += 32) {
        const real* radial = b.radial + 3 * center;
        real s = real(0);
        if (segment.first + k < segment.end) s = pair_at(b, frame, segment.first + k, center).s;
        else if (k < count && segment.is_empty_slot(segment.first + k)) s = (real)(-(double)radial[0] * (double)radial[1]);
        d.s[place + k] = s, d.row[place + k] = k < count ? (u32)row : ~0u;
    }
}

// ---- Tiles.

// Rows of a layer are filled up with zeros to a multiple of eight; from one to the next is a little more, so that the
// fragments of a warp fall on different banks.
__device__ __forceinline__ int whole_width(int n) { return (n + 7) / 8 * 8; }
__device__ __forceinline__ int pitch(int n) { return whole_width(n) + 4; }

// Where a block keeps a layer, numbers from the start of its memory. Arrays of a layer have `rows` rows each and come in
// twos, value and derivative by s. An output has one more column that is 1 and never changes, for the biases above it; where it
// is one of those that fill up a row, the weights that it meets are zeros.
struct Kept {
    int w;                     // weights; the first layer's are read where they are
    int y;                     // output
    int d;                     // derivative of the activation, second derivative times z1; then the adjoints of z and z1
    int g;                     // adjoint of the output
    int f;                     // where the net has idt: value of the activation, derivative times z1
};

// The sizes stand in direct.rs too. The adjoint of the first layer's output takes the place of the last layer's adjoints
// where it fits there: the layers above have done with them.
__device__ __forceinline__ bool fits_below(const Embedding& e) {
    int last = e.n_layers - 1;
    return last > 1 && pitch(e.layers[0].n_out) <= pitch(e.layers[last].n_out);
}
__device__ __forceinline__ void lay_out(Kept* at, const Embedding& e, const Direct& d, bool adjoint) {
    int next = 0, last = e.n_layers - 1;
    auto take = [&](int n) { int from = next; next += n; return from; };
    for (int l = 1; l <= last; l++) at[l].w = take(whole_width(e.layers[l].n_in) * pitch(e.layers[l].n_out));
    for (int l = 0; l <= last; l++) {
        int two = 2 * d.rows * pitch(e.layers[l].n_out);
        if (l < last || (adjoint && !l)) at[l].y = take(two);
        if (!adjoint) continue;
        if (l) at[l].d = take(two);
        at[l].g = at[l].y;
        if (l ? l < last : last && !fits_below(e)) at[l].g = take(two);
        if (l && d.has_idt) at[l].f = take(two);
    }
    if (adjoint && fits_below(e)) at[0].g = at[last].d;
}

// The weights of a net in a block's memory, with zeros where rows and columns are filled up.
__device__ __forceinline__ void load_weights(real* memory, const Kept* at, const Embedding& e, const double* params) {
    for (int l = 1; l < e.n_layers; l++) {
        int n_in = e.layers[l].n_in, n = e.layers[l].n_out, ld = pitch(n), size = whole_width(n_in) * ld;
        const double* w = params + e.layers[l].w;
#pragma unroll 4
        for (int i = threadIdx.x; i < size; i += (int)blockDim.x) {
            int k = i / ld, o = i - k * ld;
            memory[at[l].w + i] = k < n_in && o < n ? (real)w[k * n + o] : real(0);
        }
    }
}

// The input that a shortcut brings to output o; there are as many outputs as inputs, or twice as many.
__device__ __forceinline__ int carried(int o, int n_in) { return o < n_in ? o : min(o - n_in, n_in - 1); }

// Some warps of a block that share a number of tasks. Others find none.
struct Crew {
    int first, size;
    __device__ __forceinline__ Crew() : first(0), size((int)blockDim.x / 32) {}
    __device__ __forceinline__ Crew(int first, int size) : first(first), size(size) {}
    __device__ __forceinline__ int task(int tasks) const {
        int me = (int)threadIdx.x / 32 - first;
        return me >= 0 && me < size ? me : tasks;
    }
};

// Tasks of a product of so many rows of sixteen, and eights of columns.
__device__ __forceinline__ int tasks_of(int row_tiles, int octets) { return row_tiles * ((octets + SIDE - 1) / SIDE); }

// end(row, col, z, z1) for z = x W and z1 = x1 W: W has its element [k, col] at k step_k + col step. `depth` is a multiple
// of eight, `octets` counts eights of columns.
template <typename End>
__device__ __forceinline__ void jet_product(const real* x, const real* x1, int ld, const real* w, int step_k, int step,
                                            int depth, int octets, int rows, End end, Crew crew = Crew()) {
    int lane = threadIdx.x % 32, row_tiles = rows / 16, tasks = tasks_of(row_tiles, octets);
    for (int task = crew.task(tasks); task < tasks; task += crew.size) {
        int row0 = task % row_tiles * 16, col0 = task / row_tiles * 8 * SIDE;
        bool both = col0 + 8 < 8 * octets;
        real z[SIDE][4] = {}, z1[SIDE][4] = {};
        int from = (row0 + lane / 4) * ld + lane % 4;
        const real *a0 = x + from, *a1 = x1 + from, *b0 = w + lane % 4 * step_k + (col0 + lane / 4) * step;
        int aside = both ? 8 * step : 0;  // no eight to the right: the same one twice
#pragma unroll 2
        for (int k = 0; k < depth; k += 8) {
            Left a, turn;
            Right b[SIDE];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int at = i % 2 * 8 * ld + k + i / 2 * 4;
                a.x[i] = a0[at], turn.x[i] = a1[at];
            }
#pragma unroll
            for (int j = 0; j < SIDE; j++)
#pragma unroll
                for (int i = 0; i < 2; i++) b[j].x[i] = b0[(k + 4 * i) * step_k + j * aside];
            whole(a), whole(turn);
#pragma unroll
            for (int j = 0; j < SIDE; j++) {
                whole(b[j]);
                mma_whole(z[j], a, b[j]);
                mma_whole(z1[j], turn, b[j]);
            }
        }
#pragma unroll
        for (int j = 0; j < SIDE; j++)
            if (!j || both) {
#pragma unroll
                for (int i = 0; i < 4; i++)
                    end(row0 + lane / 4 + i / 2 * 8, col0 + j * 8 + lane % 4 * 2 + i % 2, z[j][i], z1[j][i]);
            }
    }
}

// What a net makes of an argument: value and derivatives of one neuron of a layer.
struct Neuron {
    Jet<real> j;
    real idt;
    __device__ __forceinline__ Neuron(const Layer& layer, const double* params, int o, real z)
        : idt(layer.idt < 0 ? real(1) : (real)params[layer.idt + o]) {
        if (layer.b >= 0) z += (real)params[layer.b + o];
        // The usual ones without a call.
        if (layer.activation == RELU) j = {z > real(0) ? z : real(0), z > real(0) ? real(1) : real(0), real(0)};
        else j = jet(layer.activation, z, (real)layer.threshold);
    }
};

// The layers of a net below the last one at the arguments of some places; with what leads back (ADJOINT).
template <bool ADJOINT>
__device__ __forceinline__ void net_forward(real* memory, const Kept* at, const Embedding& e, const double* params,
                                            const real* s, int rows) {
    const Layer& bottom = e.layers[0];
    int n0 = bottom.n_out, w0 = whole_width(n0), ld0 = pitch(n0);
    real* out = memory + at[0].y;
    for (int i = threadIdx.x; i < rows * w0 && e.n_layers > 1; i += (int)blockDim.x) {
        int row = i / w0, o = i - row * w0;
        real y = o == n0 ? real(1) : real(0), y1 = real(0);
        if (o < n0) {
            real w = (real)params[bottom.w + o];
            Neuron neuron(bottom, params, o, s[row] * w);
            y = neuron.idt * neuron.j.f, y1 = neuron.idt * neuron.j.d * w;
            if (bottom.shortcut) y += s[row], y1 += real(1);
        }
        out[row * ld0 + o] = y, out[(rows + row) * ld0 + o] = y1;
    }
    __syncthreads();
    for (int l = 1; l < e.n_layers - 1; l++) {
        const Layer& layer = e.layers[l];
        int n_in = layer.n_in, n = layer.n_out, ld = pitch(n), ldx = pitch(n_in), all = rows * ld;
        const real *x = memory + at[l - 1].y, *x1 = x + rows * ldx;
        real *y = memory + at[l].y, *d = memory + at[l].d, *f = memory + at[l].f;
        auto end = [&](int row, int o, real z, real z1) {
            int to = row * ld + o, from = row * ldx + carried(o, n_in);
            bool is_there = o < n;
            Neuron neuron(layer, params, is_there ? o : 0, z);
            const Jet<real>& j = neuron.j;
            real value = neuron.idt * j.f, slope = neuron.idt * j.d * z1;
            if (layer.shortcut) value += x[from], slope += x1[from];
            y[to] = is_there ? value : o == n ? real(1) : real(0), y[all + to] = is_there ? slope : real(0);
            if (!ADJOINT) return;
            d[to] = is_there ? j.d : real(0), d[all + to] = is_there ? j.dd * z1 : real(0);
            if (layer.idt >= 0) f[to] = j.f, f[all + to] = j.d * z1;
        };
        jet_product(x, x1, ldx, memory + at[l].w, ld, 1, whole_width(n_in), whole_width(n) / 8, rows, end);
        __syncthreads();
    }
}

// The places of a block: of all that there are, some that follow each other, `rows` at a time.
struct Range {
    int first, end, group;
    __device__ __forceinline__ Range(const Batch& b, const Direct& d, int block, int blocks) : group(-1) {
        u64 n = (u64)d.groups[2 * groups_of(b, d)] * (TILE_PLACES / d.rows);
        first = (int)(block * n / blocks), end = (int)((block + 1) * n / blocks);
    }
    // True where some places have another net than those before them.
    __device__ __forceinline__ bool goes_over(const Direct& d, int unit) {
        int tile = unit * d.rows / TILE_PLACES, old = group;
        if (group < 0) group = 0;
        while ((int)d.groups[2 * group + 2] <= tile) group++;
        return group != old;
    }
    __device__ __forceinline__ const double* params(const Batch& b, const Embedding& e, const Direct& d) const {
        int t = group / d.n_stacks, stack = group % d.n_stacks;
        return e.params + (size_t)d.net[stack * b.n_types + t] * e.net_size;
    }
};

// The block that has a unit, of so many that share all units as in Range.
__device__ __forceinline__ int block_of(int unit, int units, int blocks) {
    int k = (int)((u64)unit * blocks / units);
    while ((u64)(k + 1) * units / blocks <= (u64)unit) k++;
    return k;
}

// A block's memory: in shared memory, or its part of the scratch.
template <bool SHARED> __device__ __forceinline__ real* memory_of(const Direct& d) {
    return SHARED ? (real*)shared_bytes : d.scratch + blockIdx.x * d.room;
}

// G and G' at all places.
template <bool SHARED>
__device__ __forceinline__ void nets_of_tiles(const Batch& b, const Embedding& e, const Direct& d) {
    __shared__ Kept at[MAX_LAYERS];
    __shared__ real s[TILE_PLACES];
    real* memory = memory_of<SHARED>(d);
    if (threadIdx.x == 0) lay_out(at, e, d, false);
    __syncthreads();
    after_previous();
    const double* params = nullptr;
    Range range(b, d, blockIdx.x, gridDim.x);
    int rows = d.rows, last = e.n_layers - 1;
    const Layer& layer = e.layers[last];
    for (int unit = range.first; unit < range.end; unit++) {
        int place = unit * rows;
        __syncthreads();  // nobody reads the last places any more
        if (range.goes_over(d, unit)) {
            params = range.params(b, e, d);
            load_weights(memory, at, e, params);
        }
        if ((int)threadIdx.x < rows) s[threadIdx.x] = d.s[place + threadIdx.x];
        __syncthreads();
        net_forward<false>(memory, at, e, params, s, rows);
        int n_in = layer.n_in, n = layer.n_out, ldx = pitch(n_in);
        const real *x = memory + at[last ? last - 1 : 0].y, *x1 = x + rows * ldx;
        real* out = d.kept + (size_t)place * 2 * d.ld_kept;
        auto end = [&](int row, int o, real z, real z1) {
            if (o >= n) return;
            Neuron neuron(layer, params, o, z);
            real value = neuron.idt * neuron.j.f, slope = neuron.idt * neuron.j.d * z1;
            int from = row * ldx + carried(o, n_in);
            if (layer.shortcut) value += last ? x[from] : s[row], slope += last ? x1[from] : real(1);
            real* to = out + (size_t)row * 2 * d.ld_kept + o;
            to[0] = value, to[d.ld_kept] = slope;
        };
        if (last) {
            jet_product(x, x1, ldx, memory + at[last].w, pitch(n), 1, whole_width(n_in), whole_width(n) / 8, rows, end);
        } else {
            for (int i = threadIdx.x; i < rows * n; i += (int)blockDim.x) {
                real w = (real)params[layer.w + i % n];
                end(i / n, i % n, s[i / n] * w, w);
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(NETS_THREADS, 2)
    direct_nets(const __grid_constant__ Batch b, const __grid_constant__ Embedding e, const __grid_constant__ Direct d) {
    nets_of_tiles<true>(b, e, d);
}

extern "C" __global__ void __launch_bounds__(NETS_THREADS, 2)
    direct_nets_beside(const __grid_constant__ Batch b, const __grid_constant__ Embedding e, const __grid_constant__ Direct d) {
    nets_of_tiles<false>(b, e, d);
}

// Adds to a piece of the gradient, or begins it.
__device__ __forceinline__ void add_to(double* at, double x, bool begins) { *at = begins ? x : *at + x; }

// Inputs of a layer, and one more for its biases.
__device__ __forceinline__ int inputs_of(const Layer& layer) { return layer.n_in + (layer.b < 0 ? 0 : 1); }

// The gradient of one layer above the first, from the adjoints dz and dz1 of its arguments: x^T dz + x1^T dz1 for the
// weights, and the same with the input that is 1 for the biases.
__device__ __forceinline__ void weights_add(double* piece, bool begins, const Layer& layer, const real* x, const real* dz,
                                            int rows, Crew crew) {
    int lane = threadIdx.x % 32, n_in = layer.n_in, n = layer.n_out;
    int ldx = pitch(n_in), ld = pitch(n), inputs = inputs_of(layer), octets = whole_width(n) / 8;
    int row_tiles = (inputs + 15) / 16, tasks = tasks_of(row_tiles, octets);
    for (int task = crew.task(tasks); task < tasks; task += crew.size) {
        int row0 = task % row_tiles * 16, col0 = task / row_tiles * 8 * SIDE, column = col0 + lane % 4 * 2;
        int aside = col0 + 8 < 8 * octets ? 8 : 0;  // no eight to the right: the same one twice
        // The inputs of a lane, and where they stand in a piece. There may be none; what is read then goes nowhere.
        double* to[2];
        const real *a0[2], *b0 = dz + lane % 4 * ld + col0 + lane / 4;
        bool is_input[2];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            int input = row0 + lane / 4 + 8 * h;
            is_input[h] = input < inputs;
            to[h] = piece + (input < n_in ? layer.w + input * n : layer.b) + column;
            a0[h] = x + lane % 4 * ldx + min(input, ldx - 1);
        }
        auto is_there = [&](int j, int i) { return is_input[i / 2] && column + j * 8 + i % 2 < n && (!j || aside); };
        // What is there already comes while the sums are made.
        double before[SIDE][4];
#pragma unroll
        for (int j = 0; j < SIDE; j++)
#pragma unroll
            for (int i = 0; i < 4; i++) before[j][i] = begins || !is_there(j, i) ? 0.0 : to[i / 2][j * 8 + i % 2];
        real sum[SIDE][4] = {};
        // Values, then derivatives, which follow them.
#pragma unroll 4
        for (int k = 0; k < 2 * rows; k += 8) {
            Left a;
            Right b[SIDE];
#pragma unroll
            for (int i = 0; i < 4; i++) a.x[i] = a0[i % 2][i / 2 * 4 * ldx];
#pragma unroll
            for (int j = 0; j < SIDE; j++)
#pragma unroll
                for (int i = 0; i < 2; i++) b[j].x[i] = b0[i * 4 * ld + j * aside];
            a0[0] += 8 * ldx, a0[1] += 8 * ldx, b0 += 8 * ld;
            whole(a);
#pragma unroll
            for (int j = 0; j < SIDE; j++) {
                whole(b[j]);
                mma_whole(sum[j], a, b[j]);
            }
        }
#pragma unroll
        for (int j = 0; j < SIDE; j++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (is_there(j, i)) to[i / 2][j * 8 + i % 2] = before[j][i] + (double)sum[j][i];
    }
}

// Adds the sums over rows of up to three functions of a row to a piece of the gradient, a warp for each column.
template <typename Of> __device__ __forceinline__ void columns_add(double* piece, bool begins, int n, int rows, Of of) {
    int lane = threadIdx.x % 32;
    for (int o = threadIdx.x / 32; o < n; o += (int)blockDim.x / 32) {
        double x[3] = {};
        int to[3] = {-1, -1, -1};
        of(o, lane, lane < rows, x, to);
#pragma unroll
        for (int k = 0; k < 3; k++) {
            double sum = warp_sum(x[k]);
            if (lane == k && to[k] >= 0) add_to(piece + to[k], sum, begins);
        }
    }
}

// Whether the derivatives of a layer follow from its output, so that the last one, which direct_nets has kept, need not be
// computed again.
__device__ __forceinline__ bool follows_from_output(const Layer& layer) {
    return layer.idt < 0 && (layer.activation == TANH || layer.activation == RELU);
}

// The last layer at some places: what direct_nets has kept of it (null: not to be used), and its input.
struct Top {
    const real *kept, *x, *x1;
    int ld_kept;
};

// From the adjoints of G and G' (`f`, `f1`) at a place and neuron to those of the arguments z and z1 of the activation.
__device__ __forceinline__ void through_output(real& g, real& g1, real f, real f1, const Layer& layer, const Top& top, int r,
                                               int o) {
    if (layer.shortcut) {
        int from = r * pitch(layer.n_in) + carried(o, layer.n_in);
        f -= top.x[from], f1 -= top.x1[from];
    }
    bool bends = layer.activation == TANH;
    real slope = bends ? real(1) - f * f : f > real(0) ? real(1) : real(0);
    g = g * slope + (bends ? real(-2) * g1 * f * f1 : real(0)), g1 *= slope;
}

// Places that a thread of seed_adjoints looks at together, and neurons: those that get the same input by a shortcut.
#define SEEDED 2
#define TWINS 2

// dL/dA and dE/dA of an atom at the neurons of a thread.
struct Upstream {
    u32 row;
    real dl[TWINS][COMPONENTS], de[TWINS][COMPONENTS];
    __device__ __forceinline__ void go_to(u32 wanted, const Batch& b, int o, int step, int n) {
        if (row == wanted) return;
        row = wanted;
        bool is_atom = row != ~0u;
        const real* dl_a = b.da + (size_t)(is_atom ? b.row_dl[row] : 0) * COMPONENTS * b.ldm + o;
        const real* de_a = b.da + (size_t)(is_atom ? b.row_de[row] : 0) * COMPONENTS * b.ldm + o;
#pragma unroll
        for (int j = 0; j < TWINS; j++)
#pragma unroll
            for (int c = 0; c < COMPONENTS; c++) {
                bool is_there = is_atom && o + j * step < n;
                dl[j][c] = is_there ? dl_a[c * b.ldm + j * step] : real(0);
                de[j][c] = is_there ? de_a[c * b.ldm + j * step] : real(0);
            }
    }
};

// The adjoints of G and G' at some places, from dL/dA and dE/dA: where the last layer finds them, and what its shortcut
// brings to the layer below. A thread has some neurons at places that follow each other, most of which are of one atom.
__device__ __forceinline__ void seed_adjoints(real* g, real* below, const Top& top, const Batch& b, const Embedding& e,
                                              const real (*seeds)[8], const u32* row_of, int rows) {
    const Layer& layer = e.layers[e.n_layers - 1];
    int n_in = layer.n_in, n = layer.n_out, ld = pitch(n), ldx = pitch(n_in);
    int columns = below ? whole_width(n_in) : n, step = below ? n_in : n;
    int width = min((columns + 31) / 32 * 32, (int)blockDim.x), parts = (int)blockDim.x / width;
    int each = (rows + parts - 1) / parts, part = threadIdx.x / width;
    int first = min(part * each, rows), end = part < parts ? min(first + each, rows) : first;
    for (int col = threadIdx.x % width; col < columns; col += width) {
        int o = col;
        do {
            Upstream of = {~0u - 1};
            for (int r0 = first; r0 < end; r0 += SEEDED) {
                real f[SEEDED][TWINS] = {}, f1[SEEDED][TWINS] = {};
#pragma unroll
                for (int k = 0; k < SEEDED; k++)
#pragma unroll
                    for (int j = 0; j < TWINS; j++) {
                        const real* kept = top.kept + (size_t)(r0 + k) * 2 * top.ld_kept + o + j * step;
                        if (top.kept && r0 + k < end && col < step && o + j * step < n)
                            f[k][j] = kept[0], f1[k][j] = kept[top.ld_kept];
                    }
#pragma unroll
                for (int k = 0; k < SEEDED; k++) {
                    int r = r0 + k;
                    if (r >= end) break;
                    real fold = real(0), fold1 = real(0);
                    of.go_to(row_of[r], b, o, step, col < step ? n : 0);
#pragma unroll
                    for (int j = 0; j < TWINS; j++) {
                        real sum = real(0), sum1 = real(0);
#pragma unroll
                        for (int c = 0; c < COMPONENTS; c++) {
                            // Env that is a number does not change.
                            if (COMPONENTS == 4) sum = fused(seeds[r][4 + c], of.de[j][c], sum);
                            sum = fused(seeds[r][c], of.dl[j][c], sum);
                            sum1 = fused(seeds[r][c], of.de[j][c], sum1);
                        }
                        sum *= (real)e.scale, sum1 *= seeds[r][4] * (real)e.scale;
                        fold += sum, fold1 += sum1;
                        if (col >= step || o + j * step >= n) continue;
                        if (top.kept) through_output(sum, sum1, f[k][j], f1[k][j], layer, top, r, o + j * step);
                        g[r * ld + o + j * step] = sum, g[(rows + r) * ld + o + j * step] = sum1;
                    }
                    if (!below) continue;
                    if (!layer.shortcut) fold = fold1 = real(0);
                    if (o > col) fold += below[r * ldx + col], fold1 += below[(rows + r) * ldx + col];
                    below[r * ldx + col] = fold, below[(rows + r) * ldx + col] = fold1;
                }
            }
            o += TWINS * step;
        } while (o < n && col < step);
    }
    // The columns that fill up the last layer.
    int filled = whole_width(n) - n;
    for (int i = threadIdx.x; i < 2 * rows * filled; i += (int)blockDim.x) g[i / filled * ld + n + i % filled] = real(0);
}

// Adds the gradient of <g, G> + <g1, G'> by the parameters to `piece`; layers are there up to the last but one. `is_through`:
// the adjoints are those of the arguments of the last layer already.
__device__ __forceinline__ void net_backward(double* piece, bool begins, bool is_through, real* memory, const Kept* at,
                                             const Embedding& e, const double* params, const real* s, int rows) {
    int last = e.n_layers - 1, warps = (int)blockDim.x / 32;
    if (last && !is_through) {
        // The last layer, and the adjoints of its arguments at once.
        const Layer& layer = e.layers[last];
        int n = layer.n_out, ld = pitch(n), ldx = pitch(layer.n_in), all = rows * ld;
        const real* x = memory + at[last - 1].y;
        real *d = memory + at[last].d, *f = memory + at[last].f;
        auto end = [&](int row, int o, real z, real z1) {
            if (o >= n) return;
            int p = row * ld + o;
            Neuron neuron(layer, params, o, z);
            real g = d[p], g1 = d[all + p];
            d[p] = neuron.idt * (g * neuron.j.d + g1 * neuron.j.dd * z1);
            d[all + p] = neuron.idt * g1 * neuron.j.d;
            if (layer.idt >= 0) f[p] = g * neuron.j.f + g1 * neuron.j.d * z1;
        };
        jet_product(x, x + rows * ldx, ldx, memory + at[last].w, ld, 1, whole_width(layer.n_in), whole_width(n) / 8, rows,
                    end);
        __syncthreads();
    }
    for (int l = last; l > 0; l--) {
        const Layer &layer = e.layers[l], &below = e.layers[l - 1];
        int n_in = layer.n_in, n = layer.n_out, ld = pitch(n), ldx = pitch(n_in), all = rows * ld, allx = rows * ldx;
        const real *dz = memory + at[l].d, *g = memory + at[l].g;
        // Some warps take the weights, the others what goes on to the layer below, as each has to do.
        int octets = whole_width(n) / 8, octets_in = whole_width(n_in) / 8, row_tiles = (inputs_of(layer) + 15) / 16;
        int on_weights = tasks_of(row_tiles, octets) * rows / 8, onward = tasks_of(rows / 16, octets_in) * octets;
        int split = min(max((warps * onward + (onward + on_weights) / 2) / (onward + on_weights), 1), warps - 1);
        weights_add(piece, begins, layer, memory + at[l - 1].y, dz, rows, Crew(split, warps - split));
        if (layer.idt >= 0)
            columns_add(piece, begins, n, rows, [&](int o, int r, bool is_row, double* sum, int* to) {
                sum[0] = is_row ? (double)memory[at[l].f + r * ld + o] : 0.0, to[0] = layer.idt + o;
            });
        real *gx = memory + at[l - 1].g, *dx = memory + at[l - 1].d, *fx = memory + at[l - 1].f;
        auto end = [&](int row, int i, real adjoint, real adjoint1) {
            int p = row * ldx + i;
            bool is_there = i < n_in;
            if (l == last) {
                adjoint += gx[p], adjoint1 += gx[allx + p];
            } else if (layer.shortcut && is_there) {
                for (int o = i; o < n; o += n_in) adjoint += g[row * ld + o], adjoint1 += g[all + row * ld + o];
            }
            gx[p] = adjoint, gx[allx + p] = adjoint1;
            if (l == 1) return;
            real idt = below.idt < 0 || !is_there ? real(1) : (real)params[below.idt + i], slope = dx[p], bend = dx[allx + p];
            if (below.idt >= 0) fx[p] = adjoint * fx[p] + adjoint1 * fx[allx + p];
            dx[p] = idt * (adjoint * slope + adjoint1 * bend);
            dx[allx + p] = idt * adjoint1 * slope;
        };
        jet_product(dz, dz + all, ld, memory + at[l].w, 1, ld, whole_width(n), octets_in, rows, end, Crew(0, split));
        __syncthreads();
    }
    // The first layer, whose input is s with the derivative 1.
    const Layer& layer = e.layers[0];
    int ld = pitch(layer.n_out);
    const real* g = memory + at[0].g;
    columns_add(piece, begins, layer.n_out, rows, [&](int o, int r, bool is_row, double* sum, int* to) {
        to[0] = layer.w + o, to[1] = layer.b < 0 ? -1 : layer.b + o, to[2] = layer.idt < 0 ? -1 : layer.idt + o;
        if (!is_row) return;
        real w = (real)params[layer.w + o], value = g[r * ld + o], slope = g[(rows + r) * ld + o];
        Neuron neuron(layer, params, o, s[r] * w);
        real dz = neuron.idt * (value * neuron.j.d + slope * neuron.j.dd * w), dz1 = neuron.idt * slope * neuron.j.d;
        sum[0] = (double)(s[r] * dz + dz1), sum[1] = (double)dz;
        sum[2] = (double)(value * neuron.j.f + slope * neuron.j.d * w);
    });
}

// What a thread brings of some places.
struct Ahead {
    real seed, s;
    u32 row;
    __device__ __forceinline__ void look(const Direct& d, int place, int rows) {
        int i = threadIdx.x;
        if (place < 0 || i >= 8 * rows) return;
        row = d.row[place + i / 8], s = d.s[place + i / 8], seed = d.seeds[(size_t)place * 8 + i];
    }
    __device__ __forceinline__ void put(real* all_s, real (*seeds)[8], u32* row_of, int rows) const {
        int i = threadIdx.x;
        if (i >= 8 * rows) return;
        seeds[i / 8][i % 8] = row == ~0u ? real(0) : seed;
        if (i % 8 == 0) row_of[i / 8] = row, all_s[i / 8] = s;
    }
};
static_assert(ADJOINT_THREADS >= 8 * TILE_PLACES, "one number of a tile for each thread");

// The gradient of the nets in pieces: one for each block and group that it works on, block after block and group after
// group.
template <bool SHARED>
__device__ __forceinline__ void adjoint_of_tiles(const Batch& b, const Embedding& e, const Direct& d) {
    __shared__ Kept at[MAX_LAYERS];
    __shared__ real s[TILE_PLACES], seeds[TILE_PLACES][8];
    __shared__ u32 row_of[TILE_PLACES];
    real* memory = memory_of<SHARED>(d);
    if (threadIdx.x == 0) lay_out(at, e, d, true);
    __syncthreads();
    after_previous();
    const double* params = nullptr;
    double* piece = nullptr;
    Range range(b, d, blockIdx.x, gridDim.x);
    int rows = d.rows, last = e.n_layers - 1;
    bool is_through = last && follows_from_output(e.layers[last]);
    // The columns that are 1, where no function of this file writes them.
    for (int l = 0; l < last; l++) {
        int n = e.layers[l].n_out;
        for (int r = threadIdx.x; r < rows; r += (int)blockDim.x)
            memory[at[l].y + r * pitch(n) + n] = real(1), memory[at[l].y + (rows + r) * pitch(n) + n] = real(0);
    }
    // What is known of the next places comes ahead of them; there are threads enough for one number each.
    Ahead ahead;
    ahead.look(d, range.first < range.end ? range.first * rows : -1, rows);
    for (int unit = range.first; unit < range.end; unit++) {
        int place = unit * rows;
        __syncthreads();  // nobody reads the last places any more
        bool begins = range.goes_over(d, unit);
        if (begins) {
            params = range.params(b, e, d);
            piece = d.pieces + (size_t)(blockIdx.x + range.group) * e.net_size;
            load_weights(memory, at, e, params);
        }
        ahead.put(s, seeds, row_of, rows);
        ahead.look(d, unit + 1 < range.end ? place + rows : -1, rows);
        __syncthreads();
        net_forward<true>(memory, at, e, params, s, rows);
        Top top = {is_through ? d.kept + (size_t)place * 2 * d.ld_kept : nullptr, nullptr, nullptr, d.ld_kept};
        if (last) top.x = memory + at[last - 1].y, top.x1 = top.x + rows * pitch(e.layers[last].n_in);
        seed_adjoints(memory + (last ? at[last].d : at[0].g), last ? memory + at[last - 1].g : nullptr, top, b, e, seeds,
                      row_of, rows);
        __syncthreads();
        net_backward(piece, begins, is_through, memory, at, e, params, s, rows);
    }
}

extern "C" __global__ void __launch_bounds__(ADJOINT_THREADS, 1)
    direct_adjoint(const __grid_constant__ Batch b, const __grid_constant__ Embedding e, const __grid_constant__ Direct d) {
    adjoint_of_tiles<true>(b, e, d);
}

extern "C" __global__ void __launch_bounds__(ADJOINT_THREADS, 1)
    direct_adjoint_beside(const __grid_constant__ Batch b, const __grid_constant__ Embedding e,
                          const __grid_constant__ Direct d) {
    adjoint_of_tiles<false>(b, e, d);
}

// ---- Atoms: a block for each.

// Some neighbours of one type of one atom.
struct Neighbours {
    Pair pair[CHUNK];
    real env[COMPONENTS][CHUNK];   // what G is multiplied by in A; of empty slots, which are one row, times their number
    real dot[COMPONENTS][CHUNK];   // the change of `env`; of one number that of s
    real turn[COMPONENTS][CHUNK];  // `env` times the change of s: what G' is multiplied by
};

// How the functions of a pair change along the direction -dL/dF, with the strain of dL/dvirial.
__device__ __forceinline__ void change_of(real* dot, const Batch& b, const Center& center, const Pair& pair, int p) {
    const double* dl_force = b.dl_force + (size_t)center.f * atom_stride_of(b) * 3;
    const double* u_i = dl_force + 3 * (size_t)center.frame.order[center.local];
    const double* u_j = dl_force + 3 * (size_t)center.frame.j[p];
    const double* strain = b.dl_virial + 9 * center.f;
    real v[3], along = real(0);
    for (int k = 0; k < 3; k++) {
        real bend = real(0);
        if (b.wants_virial)
            bend = (real)strain[k] * pair.d[0] + (real)strain[3 + k] * pair.d[1] + (real)strain[6 + k] * pair.d[2];
        v[k] = (real)(u_i[k] - u_j[k]) - bend;
        along += pair.d[k] * v[k];
    }
    dot[0] = pair.s_slope * along;
    for (int k = 0; k < 3; k++) dot[k + 1] = pair.q * v[k] + pair.q_slope * along * pair.d[k];
}

// Calls work(place, p, n, end) for up to CHUNK neighbours of one type at a time: n of them, from pair p on; pair `end`
// stands for the empty slots.
template <bool MOVES, typename Work>
__device__ __forceinline__ void each_chunk(Neighbours& at, const Batch& b, const Direct& d, const Center& center, Work work) {
    for (int t = 0; t < b.n_types; t++) {
        Segment segment(b, center.frame, center.local, t);
        int total = segment.count(), first = first_place(b, d, t, center.row);
        for (int from = 0; from < total; from += CHUNK) {
            __syncthreads();  // nobody reads the last ones any more
            int k = threadIdx.x, p = segment.first + from + k;
            if (k < CHUNK && from + k < total) {
                Pair pair = {};
                real weight = real(1);
                bool is_pair = p < segment.end;
                if (is_pair) {
                    pair = pair_at(b, center.frame, p, center.type);
                } else if (segment.is_empty_slot(p)) {
                    const real* radial = b.radial + 3 * center.type;
                    pair.s = (real)(-(double)radial[0] * (double)radial[1]), weight = real(segment.padding);
                } else {
                    weight = real(segment.left_out);
                }
                at.pair[k] = pair;
                real env[4] = {COMPONENTS == 4 ? weight * pair.s : weight}, dot[4] = {};
                for (int c = 1; c < COMPONENTS; c++) env[c] = pair.q * pair.d[c - 1];
                // The first number is the change of s.
                if (MOVES && is_pair) change_of(dot, b, center, pair, p);
                for (int c = 0; c < COMPONENTS; c++) {
                    at.env[c][k] = env[c];
                    if (!MOVES) continue;
                    at.dot[c][k] = dot[c], at.turn[c][k] = dot[0] * env[c];
                    real* seeds = d.seeds + (size_t)(first + from + k) * 8;
                    seeds[c] = env[c], seeds[4 + c] = dot[c];
                }
            }
            __syncthreads();
            work(first + from, segment.first + from, min(CHUNK, total - from), segment.end);
        }
    }
}

// A of every row, or its change along the direction: threads share columns, and neighbours where there are more threads.
template <bool MOVES> __device__ __forceinline__ void describe(const Batch& b, const Embedding& e, const Direct& d) {
    __shared__ Neighbours at;
    __shared__ real sums[COMPONENTS][ATOM_THREADS];
    after_previous();
    if ((int)blockIdx.x >= rows_of(b)) return;
    const Center center(b, blockIdx.x);
    int m1 = b.m1, columns = min((m1 + 31) / 32 * 32, ATOM_THREADS), parts = ATOM_THREADS / columns;
    int part = threadIdx.x / columns;
    real* out = (MOVES ? b.a_dot : b.a) + (size_t)center.row * COMPONENTS * b.ldm;
    for (int first = 0; first < m1; first += columns) {
        int m = first + threadIdx.x % columns;
        bool is_there = m < m1 && part < parts;
        real sum[COMPONENTS] = {};
        each_chunk<MOVES>(at, b, d, center, [&](int place, int, int n, int) {
            const real* kept = d.kept + (size_t)place * 2 * d.ld_kept + m;
            if (!is_there) return;
#pragma unroll 8
            for (int k = part; k < n; k += parts) {
                real g = kept[(size_t)k * 2 * d.ld_kept], g1 = MOVES ? kept[(size_t)k * 2 * d.ld_kept + d.ld_kept] : real(0);
#pragma unroll
                for (int c = 0; c < COMPONENTS; c++) {
                    if (COMPONENTS == 4 || !MOVES) sum[c] = fused(MOVES ? at.dot[c][k] : at.env[c][k], g, sum[c]);
                    if (MOVES) sum[c] = fused(at.turn[c][k], g1, sum[c]);
                }
            }
        });
        for (int c = 0; c < COMPONENTS; c++) sums[c][threadIdx.x] = sum[c];
        __syncthreads();
        if (part == 0 && m < m1)
            for (int c = 0; c < COMPONENTS; c++) {
                real whole = sums[c][threadIdx.x];
                for (int k = 1; k < parts; k++) whole += sums[c][threadIdx.x + k * columns];
                out[c * b.ldm + m] = whole * (real)e.scale;
            }
        __syncthreads();
    }
}

extern "C" __global__ void __launch_bounds__(ATOM_THREADS, 2) direct_describe(const __grid_constant__ Batch b,
                                                                              const __grid_constant__ Embedding e,
                                                                              const __grid_constant__ Direct d) {
    describe<false>(b, e, d);
}

extern "C" __global__ void __launch_bounds__(ATOM_THREADS, 2) direct_tangent(const __grid_constant__ Batch b,
                                                                             const __grid_constant__ Embedding e,
                                                                             const __grid_constant__ Direct d) {
    describe<true>(b, e, d);
}

// Lanes that share a pair.
#define PAIR_LANES 16

// Sum over the lanes of a pair, for all of them.
__device__ __forceinline__ real pair_sum(real x) {
#pragma unroll
    for (int step = PAIR_LANES / 2; step; step /= 2) x += __shfl_xor_sync(~0u, x, step);
    return x;
}

// dE/dd of a pair and, on the first nine of its lanes, its part of the virial.
__device__ __forceinline__ void pair_force(real* out, double& virial, bool is_there, const Pair& pair, const real* g,
                                           const real* g1, const real* de_a, int m1, int ldm, real scale) {
    int lane = threadIdx.x % PAIR_LANES;
#if COMPONENTS == 1
    real turn = real(0);
#pragma unroll 4
    for (int m = lane; m < m1 && is_there; m += PAIR_LANES) turn = fused(g1[m], de_a[m], turn);
    turn = pair_sum(turn) * scale;
    if (!is_there) return;
    const real* d = pair.d;
    real radial = pair.s_slope * turn;
#pragma unroll
    for (int k = 0; k < 3; k++) {
        real de = radial * d[k];
#else
    real value[4] = {}, turn = real(0), env[3];
#pragma unroll
    for (int c = 0; c < 3; c++) env[c] = pair.q * pair.d[c];
#pragma unroll 4
    for (int m = lane; m < m1 && is_there; m += PAIR_LANES) {
        real de0 = de_a[m], along = pair.s * de0, now = g[m];
        value[0] = fused(now, de0, value[0]);
#pragma unroll
        for (int c = 1; c < 4; c++) {
            real de = de_a[c * ldm + m];
            value[c] = fused(now, de, value[c]);
            along = fused(env[c - 1], de, along);
        }
        turn = fused(g1[m], along, turn);
    }
#pragma unroll
    for (int c = 0; c < 4; c++) value[c] = pair_sum(value[c]) * scale;
    turn = pair_sum(turn) * scale;
    if (!is_there) return;
    const real* d = pair.d;
    real along = value[1] * d[0] + value[2] * d[1] + value[3] * d[2];
    real radial = pair.s_slope * (value[0] + turn) + pair.q_slope * along;
#pragma unroll
    for (int k = 0; k < 3; k++) {
        real de = pair.q * value[k + 1] + radial * d[k];
#endif
        if (lane == k) out[k] = de;
        if (lane < 9 && lane % 3 == k) virial -= (double)d[lane / 3] * (double)de;
    }
}

// dE/dd of every pair from dE/dA, and the virial of every row.
extern "C" __global__ void __launch_bounds__(ATOM_THREADS, 2) direct_forces(const __grid_constant__ Batch b,
                                                                            const __grid_constant__ Embedding e,
                                                                            const __grid_constant__ Direct d) {
    __shared__ Neighbours at;
    __shared__ double virials[ATOM_THREADS / PAIR_LANES][9];
    real* de_a = (real*)shared_bytes;  // [COMPONENTS, ldm]
    const int places = ATOM_THREADS / PAIR_LANES;
    int ldm = b.ldm, mine = threadIdx.x / PAIR_LANES, lane = threadIdx.x % PAIR_LANES;
    after_previous();
    if ((int)blockIdx.x >= rows_of(b)) return;
    const Center center(b, blockIdx.x);
    copy_many<4>(de_a, b.da + (size_t)b.row_de[center.row] * COMPONENTS * ldm, COMPONENTS * ldm);
    double virial = 0;
    each_chunk<false>(at, b, d, center, [&](int place, int p, int n, int end) {
        int pairs = min(n, end - p);
        // All lanes of a warp go on together.
        for (int first = 0; first < pairs; first += places) {
            int k = min(first + mine, pairs - 1);
            real* out = b.de_d + ((size_t)center.f * pair_stride_of(b) + p + k) * 3;
            const real* g = d.kept + (size_t)(place + k) * 2 * d.ld_kept;
            pair_force(out, virial, first + mine < pairs, at.pair[k], g, g + d.ld_kept, de_a, b.m1, ldm, (real)e.scale);
        }
    });
    if (!b.wants_virial) return;
    if (lane < 9) virials[mine][lane] = virial;
    __syncthreads();
    if (threadIdx.x < 9) {
        double sum = 0;
        for (int w = 0; w < places; w++) sum += virials[w][threadIdx.x];
        b.row_virial[(size_t)9 * center.row + threadIdx.x] = sum;
    }
}

// Parameters of one block of direct_weights, and threads that share the pieces of each.
#define SUMMED 32
#define SHARED_BY 8

// The gradient of the nets from its pieces (`params` null), or their update: the end of embed_weights. `blocks` made
// pieces.
extern "C" __global__ void __launch_bounds__(SUMMED * SHARED_BY)
    direct_weights(const __grid_constant__ Batch b, const __grid_constant__ Embedding e, const __grid_constant__ Direct d,
                   int blocks, double* params, double* first_moment, double* second_moment, const u32* trained,
                   const Turn* turn, const Status* status) {
    __shared__ double sums[SHARED_BY][SUMMED];
    int parts = (e.net_size + SUMMED - 1) / SUMMED, net = blockIdx.x / parts;
    int i = blockIdx.x % parts * SUMMED + threadIdx.x % SUMMED, part = threadIdx.x / SUMMED;
    int group = e.place[net] % b.n_types * d.n_stacks + e.place[net] / b.n_types;
    after_previous();
    int per_tile = TILE_PLACES / d.rows, units = d.groups[2 * groups_of(b, d)] * per_tile;
    int low = d.groups[2 * group] * per_tile, high = d.groups[2 * group + 2] * per_tile;
    // Blocks from the one that has the first unit of the group to the one that has its last; some may have none at all.
    int from = low < high ? block_of(low, units, blocks) : 0, to = low < high ? block_of(high - 1, units, blocks) + 1 : 0;
    double sum = 0;
    if (i < e.net_size)
#pragma unroll 4
        for (int k = from + part; k < to; k += SHARED_BY) {
            bool is_there = units >= blocks;
            if (!is_there) {
                Range range(b, d, k, blocks);
                is_there = range.first < range.end;
            }
            if (is_there) sum += d.pieces[(size_t)(k + group) * e.net_size + i];
        }
    sums[part][threadIdx.x % SUMMED] = sum;
    __syncthreads();
    if (part || i >= e.net_size) return;
    for (int k = 1; k < SHARED_BY; k++) sum += sums[k][threadIdx.x];
    size_t at = (size_t)net * e.net_size + i;
    if (!params) {
        e.partial[at] = sum;
        return;
    }
    if (!trained[net] || status->bad_step) return;
    double p = params[at], m = first_moment[at], s = second_moment[at];
    adam_step(p, m, s, sum, 1.0, *turn);
    params[at] = p, first_moment[at] = m, second_moment[at] = s;
}
