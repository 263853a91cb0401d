// Dense products on tensor cores, several in one launch, with what follows a product done in registers.
//
// C[m, n] = sum_k A[m, k] B[k, n]. A block computes BM x BN of C; its warps share them out, and where WK > 1 also
// the inner dimension. Tiles of A and B travel through shared memory in STAGES asynchronous copies. All sums have
// one order: a product that is cut along k is added up by the block that comes last, piece by piece from the first.

// What is done with a tile of C.
enum { STORE, PARTIAL, FORWARD, BACKWARD_E, TANGENT, BACKWARD_L };

// One product. Leading dimensions are multiples of 4, so that rows start at 16 bytes.
struct Task {
    const real* a;             // [m, lda], or [k, lda] where the kernel takes A transposed
    const real* b;             // [k, ldb], or [n, ldb] where the kernel takes B transposed
    real* c;                   // [m, ldc]
    const real* const* rows;   // not null: four rows of A each are found here
    // The layer's input (FORWARD, TANGENT) or the adjoint of its output (BACKWARD): what a shortcut carries.
    const real* shortcut;
    const real *bias, *idt;
    real *f, *d, *dd, *z_dot;  // [m, ldc] of the layer whose z or y this is; d and dd null for tanh
    real* y;                   // [m, ldy] FORWARD, TANGENT: the layer's output
    real* dz;                  // [m, ldc] the adjoint of z
    real* dl_y;
    const real* de_y;          // [m, ld_de_y]
    const real* w_out;         // not null: this is the last hidden layer
    const real* dl_e;          // [m]
    double threshold;
    int m, n, k, lda, ldb, ldc, ldy, ld_shortcut;
    int ld_de_y, folds, fold, activation;
    int tiles_n, first_tile, splits, kind;
    u64 split_stride;          // PARTIAL: from one piece to the next
};

#define MAX_TASKS 8

struct Products {
    real* workspace;           // pieces of products that are cut along k
    u32* counters;             // [tiles] pieces done
    int n_tasks, n_tiles;
    Task tasks[MAX_TASKS];
};

static_assert(sizeof(Task) == TASK_BYTES, "Task differs from layout.rs");
static_assert(sizeof(Products) == PRODUCTS_BYTES, "Products differs from layout.rs");

// Copies up to 16 bytes and fills the rest of them with zeros.
__device__ __forceinline__ void copy_16(void* to, const void* from, int bytes) {
    u32 address = (u32)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(address), "l"(from), "r"(bytes));
}
__device__ __forceinline__ void copies_commit() { asm volatile("cp.async.commit_group;\n"); }
template <int N> __device__ __forceinline__ void copies_wait() { asm volatile("cp.async.wait_group %0;\n" ::"n"(N)); }

#if PRODUCTS == 64
struct AFrag { double x[4]; };
struct BFrag { double x[2]; };
__device__ __forceinline__ void split(AFrag&) {}
__device__ __forceinline__ void split(BFrag&) {}
__device__ __forceinline__ void mma(double* c, const AFrag& a, const BFrag& b) {
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
        : "+d"(c[0]), "+d"(c[1]), "+d"(c[2]), "+d"(c[3])
        : "d"(a.x[0]), "d"(a.x[1]), "d"(a.x[2]), "d"(a.x[3]), "d"(b.x[0]), "d"(b.x[1]));
#else
    for (int half = 0; half < 2; half++)
        for (int k = 0; k < 2; k++)
            asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0,%1}, {%2}, {%3}, {%0,%1};\n"
                         : "+d"(c[2 * half]), "+d"(c[2 * half + 1])
                         : "d"(a.x[2 * k + half]), "d"(b.x[k]));
#endif
}
#else
// Floats are cut into tf32 parts: the large part alone (PRODUCTS 19), or large and small so that three products
// carry all bits of a float but the last (PRODUCTS 32).
struct AFrag { float x[4]; u32 large[4], small[4]; };
struct BFrag { float x[2]; u32 large[2], small[2]; };
__device__ __forceinline__ u32 to_tf32(float x) {
    u32 y;
    asm("cvt.rna.tf32.f32 %0, %1;\n" : "=r"(y) : "f"(x));
    return y;
}
template <typename Frag> __device__ __forceinline__ void split(Frag& frag) {
    for (int i = 0; i < (int)(sizeof(frag.x) / sizeof(float)); i++) {
        frag.large[i] = to_tf32(frag.x[i]);
        if (PRODUCTS == 32) frag.small[i] = to_tf32(frag.x[i] - __uint_as_float(frag.large[i]));
    }
}
__device__ __forceinline__ void mma_tf32(float* c, const u32* a, const u32* b) {
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
__device__ __forceinline__ void mma(float* c, const AFrag& a, const BFrag& b) {
    if (PRODUCTS == 32) {
        mma_tf32(c, a.small, b.large);
        mma_tf32(c, a.large, b.small);
    }
    mma_tf32(c, a.large, b.large);
}
#endif

// act', act'' of an element, from what was kept of it.
__device__ __forceinline__ Jet<real> kept_jet(const Task& t, size_t at) {
    real f = t.f[at];
    if (t.activation == TANH) {
        real d = real(1) - f * f;
        return {f, d, real(-2) * f * d};
    }
    return {f, t.d[at], t.dd[at]};
}

// What a shortcut brings to column `col`: the input itself, or the sum over the copies that were made of it.
template <int KIND> __device__ __forceinline__ real brought(const Task& t, int row, int col) {
    if (!t.folds) return real(0);
    const real* x = t.shortcut + (size_t)row * t.ld_shortcut;
    if (KIND == FORWARD || KIND == TANGENT) return x[col < t.fold ? col : col % t.fold];
    real sum = x[col];
    for (int k = 1; k < t.folds; k++) sum += x[col + k * t.fold];
    return sum;
}

// One element of C and everything that follows from it.
template <int KIND> __device__ __forceinline__ void finish(const Task& t, int split_index, int row, int col, real value) {
    size_t at = (size_t)row * t.ldc + col;
    if (KIND == STORE) {
        t.c[at] = value;
        return;
    }
    if (KIND == PARTIAL) {
        t.c[split_index * t.split_stride + at] = value;
        return;
    }
    real idt = t.idt ? t.idt[col] : real(1);
    if (KIND == FORWARD) {
        real shortcut = brought<KIND>(t, row, col);
        Jet<real> j = jet(t.activation, value + (t.bias ? t.bias[col] : real(0)), (real)t.threshold);
        t.f[at] = j.f;
        if (t.activation != TANH) t.d[at] = j.d, t.dd[at] = j.dd;
        t.y[(size_t)row * t.ldy + col] = idt * j.f + shortcut;
        if (t.w_out) t.dz[at] = t.w_out[col] * j.d * idt;
    }
    if (KIND == TANGENT) {
        Jet<real> j = kept_jet(t, at);
        real shortcut = brought<KIND>(t, row, col);
        t.z_dot[at] = value;
        t.y[(size_t)row * t.ldy + col] = value * j.d * idt + shortcut;
        if (t.w_out) {
            real dl_y = t.dl_e[row] * t.w_out[col];
            t.dl_y[at] = dl_y;
            t.dz[at] = idt * (dl_y * j.d + t.w_out[col] * j.dd * value);
        }
    }
    if (KIND == BACKWARD_E) {
        value += brought<KIND>(t, row, col);
        t.c[at] = value;
        if (t.dz) t.dz[at] = value * kept_jet(t, at).d * idt;
    }
    if (KIND == BACKWARD_L) {
        value += brought<KIND>(t, row, col);
        if (t.dz) {
            Jet<real> j = kept_jet(t, at);
            real de_y = t.de_y[(size_t)row * t.ld_de_y + col];
            t.dz[at] = idt * (value * j.d + de_y * j.dd * t.z_dot[at]);
        }
        t.c[at] = value;
    }
}

// Copies the tiles of one operand to shared memory, step after step. Memory has rows (`outer`) of numbers (`inner`);
// the product's inner dimension k runs along rows (ALONG_K) or from row to row. GATHER: every four rows are found in a
// table.
template <int OUTER, int INNER, int LD, int THREADS, bool ALONG_K, bool GATHER> struct Loader {
    static constexpr int VEC = 16 / sizeof(real), PER_ROW = INNER / VEC, COUNT = OUTER * PER_ROW;
    static constexpr int PASSES = (COUNT + THREADS - 1) / THREADS;
    const real* at[PASSES];
    int bytes[PASSES];  // of a whole step

    __device__ __forceinline__ void start(const real* from, const real* const* rows, int ld, int outer0, int n_outer,
                                          int inner0, int n_inner) {
#pragma unroll
        for (int p = 0; p < PASSES; p++) {
            int v = p * THREADS + threadIdx.x, o = v / PER_ROW, i = v % PER_ROW * VEC;
            // What lies along k is checked when it is loaded.
            int left = ALONG_K ? VEC : n_inner - inner0 - i;
            if (ALONG_K && outer0 + o >= n_outer) left = 0;
            bytes[p] = left <= 0 ? 0 : left >= VEC ? 16 : left * (int)sizeof(real);
            int r = bytes[p] && ALONG_K ? outer0 + o : ALONG_K ? 0 : outer0;
            if (GATHER && !ALONG_K) at[p] = from;
            else at[p] = (GATHER ? rows[r >> 2] + (r & 3) * ld : from + (size_t)r * ld) + (ALONG_K ? inner0 : 0);
            if (ALONG_K) at[p] += i;
            else if (!GATHER) at[p] += (size_t)o * ld + (bytes[p] ? inner0 + i : 0);
        }
    }

    // One step at k, which ends at k1; afterwards stands at the next.
    __device__ __forceinline__ void load(real* to, const real* const* rows, int ld, int k, int k1, int inner0) {
#pragma unroll
        for (int p = 0; p < PASSES; p++) {
            int v = p * THREADS + threadIdx.x;
            if (COUNT % THREADS && v >= COUNT) break;
            int o = v / PER_ROW, i = v % PER_ROW * VEC, n = bytes[p];
            if (ALONG_K) {
                int left = (k1 - k - i) * (int)sizeof(real);
                n = min(n, max(left, 0));
            } else if (k + o >= k1) {
                n = 0;
            }
            const real* row = at[p];
            if (GATHER && !ALONG_K) {
                int r = k + o < k1 ? k + o : k;
                row = rows[r >> 2] + (r & 3) * ld + (n ? inner0 + i : 0);
            }
            copy_16(to + o * LD + i, n || GATHER ? row : at[p], n);
            if (ALONG_K) at[p] += INNER;
            else if (!GATHER) at[p] += (size_t)OUTER * ld;
        }
    }
};

// Leading dimension of a tile in shared memory: fragments of a warp then fall on different banks.
template <int INNER, bool ALONG_K> struct Padded {
    static constexpr int LD = sizeof(real) == 8 || ALONG_K ? INNER + 4
                                                           : INNER + (INNER % 32 == 8 || INNER % 32 == 24 ? 0 : 8);
};

template <int BM, int BN, int BK, int WM, int WN, int WK, int STAGES, bool A_T, bool B_T, bool GATHER = false> struct Tile {
    static constexpr int THREADS = 32 * WM * WN * WK;
    static constexpr int LDA = A_T ? Padded<BM, false>::LD : Padded<BK, true>::LD;
    static constexpr int LDB = B_T ? Padded<BK, true>::LD : Padded<BN, false>::LD;
    static constexpr int A_SIZE = A_T ? BK * LDA : BM * LDA;
    static constexpr int B_SIZE = B_T ? BN * LDB : BK * LDB;
    static constexpr int MT = BM / WM / 16, NT = BN / WN / 8;
    static constexpr int SIZE = BM * BN, LDC = BN + 2;
    typedef Loader<A_T ? BK : BM, A_T ? BM : BK, LDA, THREADS, !A_T, GATHER> ALoader;
    typedef Loader<B_T ? BN : BK, B_T ? BK : BN, LDB, THREADS, B_T, false> BLoader;

    static __device__ void run(const Products& p) {
        after_previous();
        real* shared = (real*)shared_bytes;
        int which = 0, tile = blockIdx.x;
        while (which + 1 < p.n_tasks && tile >= p.tasks[which + 1].first_tile) which++;
        const Task& t = p.tasks[which];
        int local = tile - t.first_tile;
        int n_tiles = t.tiles_n * ((t.m + BM - 1) / BM);
        int split_index = local / n_tiles;
        local %= n_tiles;
        int row0 = local / t.tiles_n * BM, col0 = local % t.tiles_n * BN;
        int chunk = ((t.k + t.splits - 1) / t.splits + BK - 1) / BK * BK;
        int k0 = split_index * chunk, k1 = min(t.k, k0 + chunk);

        int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        int wm = warp % WM, wn = warp / WM % WN, wk = warp / (WM * WN);
        real acc[MT][NT][4];
#pragma unroll
        for (int i = 0; i < MT; i++)
#pragma unroll
            for (int j = 0; j < NT; j++)
#pragma unroll
                for (int e = 0; e < 4; e++) acc[i][j][e] = real(0);

        int steps = k1 > k0 ? (k1 - k0 + BK - 1) / BK : 0;
        ALoader load_a;
        BLoader load_b;
        const real* const* rows = t.rows;
        int lda = t.lda, ldb = t.ldb;
        if (steps) {
            if (A_T) load_a.start(t.a, rows, lda, k0, k1, row0, t.m);
            else load_a.start(t.a, rows, lda, row0, t.m, k0, k1);
            if (B_T) load_b.start(t.b, nullptr, ldb, col0, t.n, k0, k1);
            else load_b.start(t.b, nullptr, ldb, k0, k1, col0, t.n);
        }
        int next_k = k0, write = 0, read = 0;
        auto load = [&]() {
            real* a = shared + write * (A_SIZE + B_SIZE);
            if (next_k < k1) {
                load_a.load(a, rows, lda, next_k, k1, row0);
                load_b.load(a + A_SIZE, nullptr, ldb, next_k, k1, col0);
            }
            copies_commit();
            next_k += BK;
            write = write + 1 == STAGES ? 0 : write + 1;
        };
#pragma unroll 1
        for (int s = 0; s < STAGES - 1; s++) load();
#pragma unroll 1
        for (int s = 0; s < steps; s++) {
            copies_wait<STAGES - 2>();
            __syncthreads();
            load();
            const real* a = shared + read * (A_SIZE + B_SIZE);
            multiply(acc, a, a + A_SIZE, wm, wn, wk, lane);
            read = read + 1 == STAGES ? 0 : read + 1;
        }
        copies_wait<0>();
        __syncthreads();
        leave(acc, shared, wm, wn, wk, lane);
        __syncthreads();
        if (t.splits > 1 && t.kind != PARTIAL && !add_pieces(shared, p, t, local, split_index, n_tiles)) return;
        // Which kinds there are follows from the operands.
        if (A_T) {
            if (t.kind == PARTIAL) finish_tile<PARTIAL>(t, shared, split_index, row0, col0);
            else finish_tile<STORE>(t, shared, split_index, row0, col0);
        } else if (B_T) {
            if (t.kind == BACKWARD_E) finish_tile<BACKWARD_E>(t, shared, split_index, row0, col0);
            else if (t.kind == BACKWARD_L) finish_tile<BACKWARD_L>(t, shared, split_index, row0, col0);
            else finish_tile<STORE>(t, shared, split_index, row0, col0);
        } else {
            if (!GATHER && t.kind == FORWARD) finish_tile<FORWARD>(t, shared, split_index, row0, col0);
            else if (!GATHER && t.kind == TANGENT) finish_tile<TANGENT>(t, shared, split_index, row0, col0);
            else finish_tile<STORE>(t, shared, split_index, row0, col0);
        }
    }

    template <int KIND> static __device__ __forceinline__ void finish_tile(const Task& task, const real* shared,
                                                                           int split_index, int row0, int col0) {
        const Task t = task;
#pragma unroll 4
        for (int i = threadIdx.x; i < SIZE; i += THREADS) {
            int row = row0 + i / BN, col = col0 + i % BN;
            if (row < t.m && col < t.n) finish<KIND>(t, split_index, row, col, added(shared, i));
        }
    }

    // Element i of the tile, from what all warps left.
    static __device__ __forceinline__ real added(const real* shared, int i) {
        real value = shared[i / BN * LDC + i % BN];
#pragma unroll
        for (int w = 1; w < WK; w++) value += shared[w * BM * LDC + i / BN * LDC + i % BN];
        return value;
    }

    // Leaves a warp's part of the tile in shared memory; warps that shared the inner dimension have a copy each.
    static __device__ __forceinline__ void leave(const real (&acc)[MT][NT][4], real* shared, int wm, int wn, int wk,
                                                 int lane) {
        real* to = shared + wk * BM * LDC + (wm * MT * 16 + lane / 4) * LDC + wn * NT * 8 + 2 * (lane % 4);
#pragma unroll
        for (int i = 0; i < MT; i++)
#pragma unroll
            for (int j = 0; j < NT; j++)
#pragma unroll
                for (int e = 0; e < 4; e++) to[(i * 16 + e / 2 * 8) * LDC + j * 8 + e % 2] = acc[i][j][e];
    }

    // Leaves this block's piece of the sum over k. The block that comes last adds up all of them, from the first to the
    // last, in place of its own part of the tile (true).
    static __device__ bool add_pieces(real* shared, const Products& p, const Task& t, int local, int split_index,
                                      int n_tiles) {
        constexpr int EACH = SIZE / THREADS, REST = SIZE % THREADS;
        static_assert(REST == 0 || EACH == 1, "threads share a tile evenly");
        __shared__ bool last;
        real* pieces = p.workspace + ((size_t)t.first_tile + local) * SIZE;
        size_t stride = (size_t)n_tiles * SIZE;
        for (int i = threadIdx.x; i < SIZE; i += THREADS) pieces[split_index * stride + i] = added(shared, i);
        __threadfence();
        __syncthreads();
        if (threadIdx.x == 0) {
            u32* counter = p.counters + t.first_tile + local;
            last = atomicAdd(counter, 1) == (u32)t.splits - 1;
            if (last) *counter = 0;
            __threadfence();
        }
        __syncthreads();
        if (!last) return false;
        constexpr int MINE = EACH + (REST ? 1 : 0);
        real sum[MINE];
#pragma unroll
        for (int e = 0; e < MINE; e++) sum[e] = real(0);
        for (int s = 0; s < t.splits; s++) {
#pragma unroll
            for (int e = 0; e < MINE; e++) {
                int i = e * THREADS + threadIdx.x;
                if (i < SIZE) sum[e] += __ldcg(pieces + s * stride + i);
            }
        }
        for (int w = 1; w < WK; w++)
            for (int i = threadIdx.x; i < BM * LDC; i += THREADS) shared[w * BM * LDC + i] = real(0);
#pragma unroll
        for (int e = 0; e < MINE; e++) {
            int i = e * THREADS + threadIdx.x;
            if (i < SIZE) shared[i / BN * LDC + i % BN] = sum[e];
        }
        __syncthreads();
        return true;
    }

    static __device__ __forceinline__ void multiply(real (&acc)[MT][NT][4], const real* a, const real* b, int wm,
                                                    int wn, int wk, int lane) {
#pragma unroll
        for (int kk = 0; kk < BK / 8 / WK; kk++) {
            int k = (kk * WK + wk) * 8;
            AFrag fa[MT];
#pragma unroll
            for (int i = 0; i < MT; i++) read_a(fa[i], a, k, (wm * MT + i) * 16, lane);
#pragma unroll
            for (int j = 0; j < NT; j++) {
                BFrag fb;
                read_b(fb, b, k, (wn * NT + j) * 8, lane);
#pragma unroll
                for (int i = 0; i < MT; i++) mma(acc[i][j], fa[i], fb);
            }
        }
    }

    static __device__ __forceinline__ void read_a(AFrag& frag, const real* a, int k, int m, int lane) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            int row = m + lane / 4 + e % 2 * 8, at = k + lane % 4 + e / 2 * 4;
            frag.x[e] = A_T ? a[at * LDA + row] : a[row * LDA + at];
        }
        split(frag);
    }

    static __device__ __forceinline__ void read_b(BFrag& frag, const real* b, int k, int n, int lane) {
#pragma unroll
        for (int e = 0; e < 2; e++) {
            int col = n + lane / 4, at = k + lane % 4 + e * 4;
            frag.x[e] = B_T ? b[col * LDB + at] : b[at * LDB + col];
        }
        split(frag);
    }
};

// Small tiles for few rows, large ones for many. The numbers stand in products.rs too.
template <bool A_T, bool B_T, bool GATHER> using Small = Tile<16, 24, 64, 1, 1, 8, 5, A_T, B_T, GATHER>;
template <bool A_T, bool B_T, bool GATHER> using Medium = Tile<64, 40, 32, 4, 1, 2, 3, A_T, B_T, GATHER>;
template <bool A_T, bool B_T, bool GATHER> using Wide = Tile<64, 80, 16, 2, 2, 1, 3, A_T, B_T, GATHER>;
template <bool A_T, bool B_T, bool GATHER> using Large = Tile<128, 80, 32, 4, 2, 1, 3, A_T, B_T, GATHER>;

#define PRODUCT(name, Kind, blocks, ...)                                                                                \
    extern "C" __global__ void __launch_bounds__(Kind<__VA_ARGS__>::THREADS, blocks) name(const __grid_constant__ Products p) { \
        Kind<__VA_ARGS__>::run(p);                                                                                      \
    }
#define PRODUCTS_OF(size, Kind, blocks)                                \
    PRODUCT(product_##size##_nn, Kind, blocks, false, false, false)    \
    PRODUCT(product_##size##_nt, Kind, blocks, false, true, false)     \
    PRODUCT(product_##size##_tn, Kind, blocks, true, false, false)     \
    PRODUCT(product_##size##_nn_gather, Kind, blocks, false, false, true) \
    PRODUCT(product_##size##_tn_gather, Kind, blocks, true, false, true)

PRODUCTS_OF(small, Small, 2)
PRODUCTS_OF(medium, Medium, 2)
PRODUCTS_OF(wide, Wide, 3)
PRODUCTS_OF(large, Large, (sizeof(real) == 8 ? 1 : 2))
