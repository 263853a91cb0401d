// Dense products on tensor cores, several in one launch, with what follows a product done in registers.
//
// C[m, n] = sum_k A[m, k] B[k, n]. A block computes BM x BN of C; its warps share them out, and where WK > 1 also
// the inner dimension. Tiles of A and B travel through shared memory in STAGES asynchronous copies, and every warp goes
// on as soon as its next stage is there: no barrier holds the block together. All sums have one order: a product that
// is cut along k is added up by the block that comes last, piece by piece from the first.

// What is done with a tile of C.
enum { STORE, PARTIAL, FORWARD, BACKWARD_E, TANGENT, BACKWARD_L };

// A product of the batch of this step: its size, and the rows of its group. Where no extent says them, first and n are zero.
struct Span {
    int m, k, first, n;
    // Rows that stand before its own in A (and y), in B, in what has rows of C, and in dz.
    __device__ __forceinline__ int a(const Task& t) const { return t.a_first * first + t.a_n * n; }
    __device__ __forceinline__ int b(const Task& t) const { return t.b_first * first; }
    __device__ __forceinline__ int c(const Task& t) const { return t.c_first * first; }
    __device__ __forceinline__ int dz(const Task& t) const { return 2 * first + t.dz_n * n; }
};

// Steps of a warp along k, as deep as the instruction that multiplies.
#define DEPTH (PRODUCTS == 16 ? 16 : 8)

#if PRODUCTS != 64
// The first bits of a float, and what is left of it, of which a product reads the first bits.
__device__ __forceinline__ void two_parts(float x, u32& large, u32& small) {
    large = __float_as_uint(x) & 0xffffe000u;
    small = __float_as_uint(x - __uint_as_float(large)) + 0x1000u;  // to the nearest, when the last bits are cut
}
#endif

#if PRODUCTS == 64
struct AFrag { double x[4]; };
struct BFrag { double x[2]; };
__device__ __forceinline__ void split(AFrag&) {}
__device__ __forceinline__ void split(BFrag&) {}
__device__ __forceinline__ void mma(double* c, const AFrag& a, const BFrag& b) { mma_f64(c, a.x, b.x); }
#elif PRODUCTS == 16
// Floats are rounded to bfloat16 on their way from shared memory; sums are made in float. A step holds two steps of eight
// side by side: which k an element of the instruction stands for is free as long as both factors agree.
struct AFrag { float x[8]; u32 pairs[4]; };
struct BFrag { float x[4]; u32 pairs[2]; };
__device__ __forceinline__ void split(AFrag& a) {
#pragma unroll
    for (int i = 0; i < 4; i++) a.pairs[i] = to_bf16(a.x[i / 2 * 4 + i % 2], a.x[i / 2 * 4 + i % 2 + 2]);
}
__device__ __forceinline__ void split(BFrag& b) {
#pragma unroll
    for (int i = 0; i < 2; i++) b.pairs[i] = to_bf16(b.x[2 * i], b.x[2 * i + 1]);
}
__device__ __forceinline__ void mma(float* c, const AFrag& a, const BFrag& b) { mma_bf16(c, a.pairs, b.pairs); }
#else
// Floats are cut into tf32 parts: the large part alone (PRODUCTS 19), or large and small so that three products
// carry all bits of a float but the last (PRODUCTS 32).
struct AFrag { float x[4]; u32 large[4], small[4]; };
struct BFrag { float x[2]; u32 large[2], small[2]; };
template <typename Frag> __device__ __forceinline__ void split(Frag& frag) {
    for (int i = 0; i < (int)(sizeof(frag.x) / sizeof(float)); i++) {
        if (PRODUCTS == 32) two_parts(frag.x[i], frag.large[i], frag.small[i]);
        else frag.large[i] = to_tf32(frag.x[i]);
    }
}
__device__ __forceinline__ void mma(float* c, const AFrag& a, const BFrag& b) {
    if (PRODUCTS == 32) {
        mma_tf32(c, a.small, b.large);
        mma_tf32(c, a.large, b.small);
    }
    mma_tf32(c, a.large, b.large);
}
#endif

// Numbers that lie side by side, 16 bytes of them. Rows have room for whole packs, so the last one of a row may hold
// numbers that nobody reads.
#define VEC ((int)(16 / sizeof(real)))
struct __align__(16) Pack { real x[VEC]; };
__device__ __forceinline__ Pack pack_at(const real* x) { return *(const Pack*)x; }
__device__ __forceinline__ void put(real* to, const Pack& pack) { *(Pack*)to = pack; }

// What a shortcut brings to the columns from `col` on: the input itself, or the sum over the copies that were made of it.
template <int KIND> __device__ __forceinline__ Pack brought(const Task& t, int row, int col) {
    const real* x = t.shortcut + (size_t)row * t.ld_shortcut;
    constexpr bool COPIES = KIND == FORWARD || KIND == TANGENT;
    if (t.fold % VEC == 0) {
        if (COPIES) return pack_at(x + (col < t.fold ? col : col % t.fold));
        Pack sum = pack_at(x + col);
        for (int k = 1; k < t.folds; k++) {
            Pack more = pack_at(x + col + k * t.fold);
#pragma unroll
            for (int v = 0; v < VEC; v++) sum.x[v] += more.x[v];
        }
        return sum;
    }
    Pack sum;
#pragma unroll
    for (int v = 0; v < VEC; v++) {
        int c = min(col + v, t.n - 1);
        sum.x[v] = x[COPIES ? c % t.fold : c];
        for (int k = 1; !COPIES && k < t.folds; k++) sum.x[v] += x[c + k * t.fold];
    }
    return sum;
}

// What the end of a product reads for one pack of C.
struct Inputs { Pack shortcut, kept, kept_2, de_y, z_dot; };

template <int KIND> __device__ __forceinline__ void fetch(Inputs& in, const Task& t, const Span& span, int row, int col) {
    size_t at = (size_t)(row + span.c(t)) * t.ldc + col;
    if (KIND == STORE || KIND == PARTIAL) return;
    if (t.folds) {
        in.shortcut = brought<KIND>(t, row + (KIND == FORWARD || KIND == TANGENT ? span.a(t) : span.c(t)), col);
    } else {
#pragma unroll
        for (int v = 0; v < VEC; v++) in.shortcut.x[v] = real(0);
    }
    if (KIND == TANGENT || ((KIND == BACKWARD_E || KIND == BACKWARD_L) && t.dz)) {
        // Derivatives of tanh follow from its value.
        in.kept = pack_at((t.activation == TANH ? t.f : t.d) + at);
        if (KIND != BACKWARD_E && t.activation != TANH) in.kept_2 = pack_at(t.dd + at);
        if (KIND == BACKWARD_L) {
            in.de_y = pack_at(t.de_y + (size_t)(row + span.c(t)) * t.ld_de_y + col);
            in.z_dot = pack_at(t.z_dot + at);
        }
    }
}

// What it reads of the parameters: the same for all rows, and the same until the next update.
struct Constants { Pack idt, bias, w_out; };

template <int KIND> __device__ __forceinline__ void fetch(Constants& in, const Task& t, int col) {
    if (KIND == STORE || KIND == PARTIAL) return;
#pragma unroll
    for (int v = 0; v < VEC; v++) in.idt.x[v] = real(1), in.bias.x[v] = real(0);
    if (t.idt) in.idt = pack_at(t.idt + col);
    if (KIND == FORWARD && t.bias) in.bias = pack_at(t.bias + col);
    if ((KIND == FORWARD || KIND == TANGENT) && t.w_out) in.w_out = pack_at(t.w_out + col);
}

// act', act'' of an element, from what was kept of it.
__device__ __forceinline__ Jet<real> kept_jet(const Task& t, const Inputs& in, int v) {
    if (t.activation == TANH) {
        real f = in.kept.x[v], d = real(1) - f * f;
        return {f, d, real(-2) * f * d};
    }
    return {real(0), in.kept.x[v], in.kept_2.x[v]};
}

// What follows from one pack of C in a layer of a net.
template <int KIND> __device__ __forceinline__ void finish_layer(const Task& t, const Span& span, const Inputs& in,
                                                                 const Constants& of, int row, int col, Pack value) {
    const Pack &idt = of.idt, &bias = of.bias, &w_out = of.w_out;
    size_t at = (size_t)(row + span.c(t)) * t.ldc + col, at_dz = (size_t)(row + span.dz(t)) * t.ldc + col;
    Pack y, dz;
    if (KIND == FORWARD) {
        Pack f, d, dd;
#pragma unroll
        for (int v = 0; v < VEC; v++) {
            Jet<real> j = jet(t.activation, value.x[v] + bias.x[v], (real)t.threshold);
            f.x[v] = j.f, d.x[v] = j.d, dd.x[v] = j.dd;
            y.x[v] = idt.x[v] * j.f + in.shortcut.x[v];
        }
        put(t.f + at, f);
        if (t.activation != TANH) put(t.d + at, d), put(t.dd + at, dd);
        put(t.y + (size_t)(row + span.a(t)) * t.ldy + col, y);
        if (t.w_out) {
#pragma unroll
            for (int v = 0; v < VEC; v++) dz.x[v] = w_out.x[v] * d.x[v] * idt.x[v];
            put(t.dz + at_dz, dz);
        }
    }
    if (KIND == TANGENT) {
        Pack dl_y;
        real dl_e = t.w_out ? t.dl_e[row + span.c(t)] : real(0);
#pragma unroll
        for (int v = 0; v < VEC; v++) {
            Jet<real> j = kept_jet(t, in, v);
            y.x[v] = value.x[v] * j.d * idt.x[v] + in.shortcut.x[v];
            if (t.w_out) {
                dl_y.x[v] = dl_e * w_out.x[v];
                dz.x[v] = idt.x[v] * (dl_y.x[v] * j.d + w_out.x[v] * j.dd * value.x[v]);
            }
        }
        put(t.z_dot + at, value);
        put(t.y + (size_t)(row + span.a(t)) * t.ldy + col, y);
        if (t.w_out) put(t.dl_y + at, dl_y), put(t.dz + at_dz, dz);
    }
    if (KIND == BACKWARD_E || KIND == BACKWARD_L) {
#pragma unroll
        for (int v = 0; v < VEC; v++) value.x[v] += in.shortcut.x[v];
        put(t.c + at, value);
        if (t.dz) {
#pragma unroll
            for (int v = 0; v < VEC; v++) {
                Jet<real> j = kept_jet(t, in, v);
                dz.x[v] = KIND == BACKWARD_E ? value.x[v] * j.d * idt.x[v]
                                             : idt.x[v] * (value.x[v] * j.d + in.de_y.x[v] * j.dd * in.z_dot.x[v]);
            }
            put(t.dz + at_dz, dz);
        }
    }
}

// One pack of C and everything that follows from it.
template <int KIND> __device__ __forceinline__ void finish(const Task& t, const Span& span, const Inputs& in,
                                                           const Constants& of, int split_index, int row, int col,
                                                           Pack value) {
    size_t at = (size_t)(row + span.c(t)) * t.ldc + col;
    if constexpr (KIND == STORE || KIND == PARTIAL) put(t.c + (KIND == STORE ? 0 : split_index * t.split_stride) + at, value);
    else finish_layer<KIND>(t, span, in, of, row, col, value);
}

// Copies the tiles of one operand to shared memory, step after step of BK along the product's inner dimension k.
// Memory has rows of numbers, of which the threads take 16 bytes each. GATHER: the rows of an atom, COMPONENTS of them, are found in a
// table.
//
// Here k runs along a row: LINES rows of BK numbers.
template <int LINES, int BK, int LD, int THREADS, bool GATHER> struct RowLoader {
    static constexpr int PER_ROW = BK / VEC, STEP = THREADS / PER_ROW, PASSES = (LINES + STEP - 1) / STEP;
    static_assert(THREADS % PER_ROW == 0, "threads share rows evenly");
    const real* at[GATHER ? PASSES : 1];
    int valid;  // passes whose rows exist

    __device__ __forceinline__ void start(const real* from, const real* const* rows, int ld, int line0, int n_lines,
                                          int k0, int) {
        int line = line0 + threadIdx.x / PER_ROW, i = threadIdx.x % PER_ROW * VEC;
        valid = (n_lines - line + STEP - 1) / STEP;
#pragma unroll
        for (int p = 0; p < (GATHER ? PASSES : 1); p++) {
            int r = min(line + p * STEP, n_lines - 1);
            at[p] = (GATHER ? rows[r >> COMPONENT_BITS] + (r & (COMPONENTS - 1)) * ld : from + (size_t)r * ld) + k0 + i;
        }
    }

    // One step at k, which ends at k1; afterwards stands at the next. WHOLE: all of it exists.
    template <bool WHOLE>
    __device__ __forceinline__ void load(real* to, const real* const*, int ld, int k, int k1, int) {
        int o = threadIdx.x / PER_ROW, i = threadIdx.x % PER_ROW * VEC;
        int bytes = WHOLE ? 16 : min(16, max(0, (k1 - k - i) * (int)sizeof(real)));
        const real* from = at[0];
        to += o * LD + i;
#pragma unroll
        for (int p = 0; p < PASSES; p++) {
            if (LINES % STEP && p == PASSES - 1 && o + p * STEP >= LINES) break;
            if (GATHER) from = at[p];
            if (WHOLE) copy_16(to + p * STEP * LD, from);
            else copy_16(to + p * STEP * LD, from, p < valid ? bytes : 0);
            if (!GATHER && (WHOLE || p + 1 < valid)) from += (size_t)STEP * ld;
        }
#pragma unroll
        for (int p = 0; p < (GATHER ? PASSES : 1); p++) at[p] += BK;
    }
};

// Here k runs from row to row: BK rows of LINES numbers.
template <int LINES, int BK, int LD, int THREADS, bool GATHER> struct ColumnLoader {
    static constexpr int PER_ROW = LINES / VEC, STEP = THREADS / BK, PASSES = (PER_ROW + STEP - 1) / STEP;
    static_assert(THREADS % BK == 0, "threads share rows evenly");
    const real* at;
    int left;  // numbers of the row from this thread's first one on

    __device__ __forceinline__ const real* row(const real* const* rows, int ld, int k, int k1, int line0) {
        int r = min(k + (int)threadIdx.x / STEP, k1 - 1);
        return rows[r >> COMPONENT_BITS] + (r & (COMPONENTS - 1)) * ld + line0 + threadIdx.x % STEP * VEC;
    }

    __device__ __forceinline__ void start(const real* from, const real* const* rows, int ld, int line0, int n_lines,
                                          int k0, int k1) {
        int i = threadIdx.x % STEP * VEC;
        left = n_lines - line0 - i;
        at = GATHER ? row(rows, ld, k0, k1, line0) : from + (size_t)(k0 + threadIdx.x / STEP) * ld + line0 + i;
    }

    template <bool WHOLE>
    __device__ __forceinline__ void load(real* to, const real* const* rows, int ld, int k, int k1, int line0) {
        int o = threadIdx.x / STEP, i = threadIdx.x % STEP * VEC;
        int numbers = k + o < k1 ? left : 0;
        to += o * LD + i;
#pragma unroll
        for (int p = 0; p < PASSES; p++) {
            constexpr int EACH = STEP * VEC;
            if (PER_ROW % STEP && p == PASSES - 1 && i + p * EACH >= LINES) break;
            if (WHOLE) copy_16(to + p * EACH, at + p * EACH);
            else copy_16(to + p * EACH, at + p * EACH, min(16, max(0, (numbers - p * EACH) * (int)sizeof(real))));
        }
        if (GATHER) at = row(rows, ld, k + BK, k1, line0);
        else at += (size_t)BK * ld;
    }
};

struct Yes { static constexpr bool value = true; };
struct No { static constexpr bool value = false; };
template <bool FIRST, typename A, typename B> struct Either { typedef A Type; };
template <typename A, typename B> struct Either<false, A, B> { typedef B Type; };

// Leading dimension of a tile in shared memory: fragments of a warp then fall on different banks.
template <int INNER, bool ALONG_K> struct Padded {
    static constexpr int LD = sizeof(real) == 8 || ALONG_K ? INNER + 4
                                                           : INNER + (INNER % 32 == 8 || INNER % 32 == 24 ? 0 : 8);
};

// TEAM: the pieces of a product that is cut along k are made by the blocks of a cluster, which add up parts of them each.
// VARIES: sizes come with the batch of the step. Otherwise nothing of it is left in the kernel, which needs all its registers.
template <int BM, int BN, int BK, int WM, int WN, int WK, int STAGES, bool A_T, bool B_T, bool GATHER, bool TEAM, bool VARIES,
          bool FROM_LIST = false>
struct Tile {
    static constexpr int THREADS = 32 * WM * WN * WK;
    static constexpr int LDA = A_T ? Padded<BM, false>::LD : Padded<BK, true>::LD;
    static constexpr int LDB = B_T ? Padded<BK, true>::LD : Padded<BN, false>::LD;
    static constexpr int A_SIZE = A_T ? BK * LDA : BM * LDA;
    static constexpr int B_SIZE = B_T ? BN * LDB : BK * LDB;
    static constexpr int MT = BM / WM / 16, NT = BN / WN / 8, STEPS = BK / WK / DEPTH;
    static_assert(STEPS * WK * DEPTH == BK, "warps share the inner dimension in whole products");
    // Stages that are copied ahead; one or two more are being read.
    static constexpr int AHEAD = STAGES > 3 ? STAGES - 2 : STAGES - 1;
    // The tile as it waits in shared memory for what follows: packs of warps fall on different banks.
    static constexpr int LDC = BN % 16 == 8 ? BN : BN + 8;
    static constexpr int PER_ROW = BN / VEC, PACKS = BM * PER_ROW;
    // Packs of a small tile for each thread: what its end reads is fetched before the sums are made. 0: a large tile. Blocks
    // of a team share a tile's packs out.
    static constexpr int EARLY = TEAM ? 1 : PACKS <= 2 * THREADS ? (PACKS + THREADS - 1) / THREADS : 0;
    struct Early {
        Inputs in[EARLY ? EARLY : 1];
        Constants of[EARLY ? EARLY : 1];
    };
    typedef typename Either<A_T, ColumnLoader<BM, BK, LDA, THREADS, GATHER>, RowLoader<BM, BK, LDA, THREADS, GATHER>>::Type
        ALoader;
    typedef typename Either<B_T, RowLoader<BN, BK, LDB, THREADS, false>, ColumnLoader<BN, BK, LDB, THREADS, false>>::Type
        BLoader;

    typedef typename Either<FROM_LIST, ProductList, Products>::Type Arguments;

    template <typename P> static __device__ void run(const P& p) {
        real* shared = (real*)shared_bytes;
        int which = 0, first_tile = 0;
        Span span;
        if (!find(p, which, first_tile, span) && VARIES) {
            after_previous();  // what comes next relies on this kernel's wait
            return;
        }
        const Task& t = p.tasks[which];
        int local = blockIdx.x - first_tile;
        int n_tiles = t.tiles_n * ((span.m + BM - 1) / BM);
        // Members of a team stand side by side.
        int split_index = TEAM ? local % t.splits : local / n_tiles;
        local = TEAM ? local / t.splits : local % n_tiles;
        // This block's packs of the tile.
        int first_pack = TEAM ? PACKS * split_index / t.splits : 0;
        int end_pack = TEAM ? PACKS * (split_index + 1) / t.splits : PACKS;
        int row0 = local / t.tiles_n * BM, col0 = local % t.tiles_n * BN;
        int chunk = ((span.k + t.splits - 1) / t.splits + BK - 1) / BK * BK;
        int k0 = split_index * chunk, k1 = min(span.k, k0 + chunk);

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
        const real* const* rows = GATHER ? t.rows + span.a(t) : nullptr;
        int lda = t.lda, ldb = t.ldb;
        if (steps) load_b.start(t.b + (size_t)span.b(t) * ldb, nullptr, ldb, col0, t.n, k0, k1);
        // Warps wait for copies and for free room, never for each other: a stage is full when the copies of all threads
        // are there, and empty when all warps have read it.
        __shared__ u64 full[STAGES], empty[STAGES];
        // The end of the product finds its place here; registers are for the sums.
        __shared__ Span left[1];
        if (VARIES && threadIdx.x == 0) left[0] = span;
        if (threadIdx.x < STAGES) {
            phase_init(full + threadIdx.x, THREADS);
            phase_init(empty + threadIdx.x, THREADS / 32);
        }
        __syncthreads();
        int next_k = k0, write = 0, read = 0;
        u32 write_parity = 1, read_parity = 0;
        auto load = [&](auto whole) {
            phase_wait(empty + write, write_parity);
            real* a = shared + write * (A_SIZE + B_SIZE);
            load_a.template load<decltype(whole)::value>(a, rows, lda, next_k, k1, row0);
            load_b.template load<decltype(whole)::value>(a + A_SIZE, nullptr, ldb, next_k, k1, col0);
            phase_arrive_copied(full + write);
            next_k += BK;
            if (++write == STAGES) write = 0, write_parity ^= 1;
        };
        bool inside = row0 + BM <= span.m && col0 + BN <= t.n;
        // Where A is not transposed, B has weights or coefficients, which do not change between an update and the next: the
        // first of them come before the kernel that makes A has ended.
        auto load_first = [&](auto&& load_one) {
#pragma unroll 1
            for (int s = 0; s < AHEAD && k0 + s * BK < k1; s++)
                load_one(shared + s * (A_SIZE + B_SIZE), k0 + s * BK);
        };
        auto first_b = [&](real* at, int k) { load_b.template load<false>(at + A_SIZE, nullptr, ldb, k, k1, col0); };
        if (!A_T) load_first(first_b);
        Early early;
        if (!A_T && B_T && t.kind != STORE) fetch_early<BACKWARD_L, Constants>(early, t, span, first_pack, end_pack, row0, col0);
        if (!A_T && !B_T && !GATHER && t.kind == FORWARD) fetch_early<FORWARD, Constants>(early, t, span, first_pack, end_pack, row0, col0);
        if (!A_T && !B_T && !GATHER && t.kind == TANGENT) fetch_early<TANGENT, Constants>(early, t, span, first_pack, end_pack, row0, col0);
        after_previous();
        if (A_T) load_first(first_b);
        if (steps) load_a.start(GATHER ? nullptr : t.a + (size_t)span.a(t) * lda, rows, lda, row0, span.m, k0, k1);
        load_first([&](real* at, int k) {
            load_a.template load<false>(at, rows, lda, k, k1, row0);
            phase_arrive_copied(full + write);
            next_k += BK, write++;
        });
        // What the end of a small tile reads is on its way while the sums are made.
        if (!A_T && B_T && t.kind == BACKWARD_E) fetch_early<BACKWARD_E, Inputs>(early, t, span, first_pack, end_pack, row0, col0);
        if (!A_T && B_T && t.kind == BACKWARD_L) fetch_early<BACKWARD_L, Inputs>(early, t, span, first_pack, end_pack, row0, col0);
        if (!A_T && !B_T && !GATHER && t.kind == FORWARD) fetch_early<FORWARD, Inputs>(early, t, span, first_pack, end_pack, row0, col0);
        if (!A_T && !B_T && !GATHER && t.kind == TANGENT) fetch_early<TANGENT, Inputs>(early, t, span, first_pack, end_pack, row0, col0);
#pragma unroll 1
        for (int s = 0; s < steps; s++) {
            phase_wait(full + read, read_parity);
            const real* a = shared + read * (A_SIZE + B_SIZE);
            // The next copies start behind the first products, so that these do not wait for them.
            if (inside && next_k + BK <= k1) {
                multiply<0, 1>(acc, a, a + A_SIZE, wm, wn, wk, lane);
                load(Yes());
                multiply<1, STEPS>(acc, a, a + A_SIZE, wm, wn, wk, lane);
            } else {
                if (next_k < k1) load(No());
                multiply<0, STEPS>(acc, a, a + A_SIZE, wm, wn, wk, lane);
            }
            __syncwarp();
            if (lane == 0) phase_arrive(empty + read);
            if (++read == STAGES) read = 0, read_parity ^= 1;
        }
        __syncthreads();
        leave(acc, shared, wm, wn, wk, lane);
        __syncthreads();
        if constexpr (TEAM) {
            team_arrive();
            team_wait();
            const Span kept = VARIES ? left[0] : whole(t);
            int i = first_pack + threadIdx.x, row = row0 + i / PER_ROW, col = col0 + i % PER_ROW * VEC;
            bool is_there = i < end_pack && row < kept.m && col < t.n;
            Pack sum;
            if (is_there) sum = added_of_team(shared, i, t.splits);
            // Nobody leaves, or uses its memory again, before all have read it.
            team_arrive();
            if (is_there && t.kind == FORWARD) finish<FORWARD>(t, kept, early.in[0], early.of[0], 0, row, col, sum);
            if (is_there && t.kind == TANGENT) finish<TANGENT>(t, kept, early.in[0], early.of[0], 0, row, col, sum);
            team_wait();
            return;
        }
        const Span kept = VARIES ? left[0] : whole(t);
        bool added_up = t.splits > 1 && t.kind != PARTIAL;
        if (added_up) {
            int stride = t.tiles_n * ((kept.m + BM - 1) / BM);
            int tile = VARIES ? blockIdx.x - split_index * stride : t.first_tile + local;
            if (!add_pieces(shared, p, t, tile, split_index, stride)) return;
        }
        int copies = added_up ? 1 : WK;
        // Which kinds there are follows from the operands.
        if (A_T) {
            if (t.kind == PARTIAL) finish_tile<PARTIAL>(t, kept, early, shared, copies, split_index, row0, col0);
            else finish_tile<STORE>(t, kept, early, shared, copies, split_index, row0, col0);
        } else if (B_T) {
            if (t.kind == BACKWARD_E) finish_tile<BACKWARD_E>(t, kept, early, shared, copies, split_index, row0, col0);
            else if (t.kind == BACKWARD_L) finish_tile<BACKWARD_L>(t, kept, early, shared, copies, split_index, row0, col0);
            else finish_tile<STORE>(t, kept, early, shared, copies, split_index, row0, col0);
        } else {
            if (!GATHER && t.kind == FORWARD) finish_tile<FORWARD>(t, kept, early, shared, copies, split_index, row0, col0);
            else if (!GATHER && t.kind == TANGENT)
                finish_tile<TANGENT>(t, kept, early, shared, copies, split_index, row0, col0);
            else finish_tile<STORE>(t, kept, early, shared, copies, split_index, row0, col0);
        }
    }

    // A product whose size does not change.
    static __device__ __forceinline__ Span whole(const Task& t) { return {t.m, t.k, 0, 0}; }

    // The product that a tile belongs to. Those of a list are far away: not one after the other.
    static __device__ __forceinline__ int task_of_tile(const Products& p, int tile) {
        int which = 0;
        while (which + 1 < p.n_tasks && tile >= p.tasks[which + 1].first_tile) which++;
        return which;
    }
    static __device__ __forceinline__ int task_of_tile(const ProductList& p, int tile) {
        int low = 0, high = p.n_tasks - 1;
        while (low < high) {
            int middle = (low + high + 1) / 2;
            if (tile >= p.tasks[middle].first_tile) low = middle;
            else high = middle - 1;
        }
        return low;
    }

    // Which product this block makes a tile of, its first tile and where it lies; false: there are fewer tiles than blocks.
    template <typename P> static __device__ __forceinline__ bool find(const P& p, int& which, int& first_tile, Span& span) {
        int tile = blockIdx.x;
        if (A_T || !VARIES) {
            which = task_of_tile(p, tile);
            const Task& t = p.tasks[which];
            first_tile = t.first_tile, span = whole(t);
            if (VARIES) {
                span.first = __ldcg(t.extent), span.n = __ldcg(t.extent + 1) - span.first;
                span.k = t.times * span.n;
            }
            return true;
        }
        if (GATHER) after_previous();  // `begin`, right before this kernel, has written them
        int first[MAX_TASKS], n[MAX_TASKS];
#pragma unroll
        for (int i = 0; i < MAX_TASKS; i++) {
            const u32* extent = p.tasks[min(i, p.n_tasks - 1)].extent;
            first[i] = __ldcg(extent), n[i] = __ldcg(extent + 1) - first[i];
        }
#pragma unroll
        for (int i = 0; i < MAX_TASKS; i++) {
            if (i == p.n_tasks) break;
            const Task& t = p.tasks[i];
            int count = t.tiles_n * ((t.times * n[i] + BM - 1) / BM) * t.splits;
            if (tile < first_tile + count) {
                which = i, span = {t.times * n[i], t.k, first[i], n[i]};
                return true;
            }
            first_tile += count;
        }
        return false;
    }

    template <int KIND, typename What>
    static __device__ __forceinline__ void fetch_early(Early& early, const Task& t, const Span& span, int first_pack,
                                                       int end_pack, int row0, int col0) {
        if constexpr (EARLY == 0) return;
#pragma unroll
        for (int u = 0; u < (EARLY ? EARLY : 1); u++) {
            int i = first_pack + threadIdx.x + u * THREADS, row = row0 + i / PER_ROW, col = col0 + i % PER_ROW * VEC;
            if (i >= end_pack || row >= span.m || col >= t.n) continue;
            if constexpr (sizeof(What) == sizeof(Inputs)) fetch<KIND>(early.in[u], t, span, row, col);
            else fetch<KIND>(early.of[u], t, col);
        }
    }

    // Reads what several packs need before the first of them is written.
    template <int KIND>
    static __device__ __forceinline__ void finish_tile(const Task& task, const Span& where, const Early& early,
                                                       const real* shared, int copies, int split_index, int row0, int col0) {
        const Task t = task;
        const Span span = where;
        constexpr int TOGETHER = EARLY ? EARLY : KIND == BACKWARD_L ? 2 : 4;
#pragma unroll 1
        for (int first = threadIdx.x; first < PACKS; first += TOGETHER * THREADS) {
            Inputs in[TOGETHER];
#pragma unroll
            for (int u = 0; u < TOGETHER; u++) {
                int i = first + u * THREADS, row = row0 + i / PER_ROW, col = col0 + i % PER_ROW * VEC;
                if (EARLY) in[u] = early.in[u];
                else if (i < PACKS && row < span.m && col < t.n) fetch<KIND>(in[u], t, span, row, col);
            }
#pragma unroll
            for (int u = 0; u < TOGETHER; u++) {
                int i = first + u * THREADS, row = row0 + i / PER_ROW, col = col0 + i % PER_ROW * VEC;
                if (i >= PACKS || row >= span.m || col >= t.n) continue;
                Constants of;
                if (EARLY) of = early.of[u];
                else fetch<KIND>(of, t, col);
                finish<KIND>(t, span, in[u], of, split_index, row, col, added(shared, i, copies));
            }
        }
    }

    // Pack i of the tile, from what all warps left.
    static __device__ __forceinline__ Pack added(const real* shared, int i, int copies) {
        const real* at = shared + i / PER_ROW * LDC + i % PER_ROW * VEC;
        Pack sum = pack_at(at);
        if (WK > 1 && copies > 1) {
#pragma unroll
            for (int w = 1; w < WK; w++) {
                Pack more = pack_at(at + w * BM * LDC);
#pragma unroll
                for (int v = 0; v < VEC; v++) sum.x[v] += more.x[v];
            }
        }
        return sum;
    }

    // Pack i of the tile, from what all warps of all members of a team left: in the order of k.
    static __device__ __forceinline__ Pack added_of_team(const real* shared, int i, int members) {
        const real* at = shared + i / PER_ROW * LDC + i % PER_ROW * VEC;
        Pack sum;
#pragma unroll
        for (int v = 0; v < VEC; v++) sum.x[v] = real(0);
        for (int first = 0; first < members; first += 4) {
            Pack more[4][WK];
#pragma unroll
            for (int u = 0; u < 4; u++)
                if (first + u < members) {
                    const real* there = (const real*)of_member(at, first + u);
#pragma unroll
                    for (int w = 0; w < WK; w++) more[u][w] = pack_at(there + w * BM * LDC);
                }
#pragma unroll
            for (int u = 0; u < 4; u++)
                if (first + u < members) {
#pragma unroll
                    for (int w = 0; w < WK; w++)
#pragma unroll
                        for (int v = 0; v < VEC; v++) sum.x[v] += more[u][w].x[v];
                }
        }
        return sum;
    }

    // Leaves a warp's part of the tile in shared memory; warps that shared the inner dimension have a copy each.
    static __device__ __forceinline__ void leave(const real (&acc)[MT][NT][4], real* shared, int wm, int wn, int wk,
                                                 int lane) {
        struct __align__(2 * sizeof(real)) Two { real x, y; };
        real* to = shared + wk * BM * LDC + (wm * MT * 16 + lane / 4) * LDC + wn * NT * 8 + 2 * (lane % 4);
#pragma unroll
        for (int i = 0; i < MT; i++)
#pragma unroll
            for (int j = 0; j < NT; j++)
#pragma unroll
                for (int h = 0; h < 2; h++)
                    *(Two*)(to + (i * 16 + h * 8) * LDC + j * 8) = {acc[i][j][2 * h], acc[i][j][2 * h + 1]};
    }

    // Leaves this block's piece of the sum over k. The block that comes last adds up all of them, from the first to the
    // last, in place of its own part of the tile (true).
    template <typename P>
    static __device__ bool add_pieces(real* shared, const P& p, const Task& t, int tile, int split_index,
                                      int n_tiles) {
        __shared__ bool last;
        real* pieces = p.workspace + (size_t)tile * (BM * BN);
        size_t stride = (size_t)n_tiles * (BM * BN);
        for (int i = threadIdx.x; i < PACKS; i += THREADS)
            put(pieces + split_index * stride + i * VEC, added(shared, i, WK));
        __threadfence();
        __syncthreads();
        if (threadIdx.x == 0) {
            u32* counter = p.counters + tile;
            last = atomicAdd(counter, 1) == (u32)t.splits - 1;
            if (last) *counter = 0;
            __threadfence();
        }
        __syncthreads();
        if (!last) return false;
        for (int i = threadIdx.x; i < PACKS; i += THREADS) {
            Pack sum;
#pragma unroll
            for (int v = 0; v < VEC; v++) sum.x[v] = real(0);
            constexpr int TOGETHER = 8;
            for (int s = 0; s < t.splits; s += TOGETHER) {
                int4 more[TOGETHER];
#pragma unroll
                for (int u = 0; u < TOGETHER; u++)
                    if (s + u < t.splits) more[u] = __ldcg((const int4*)(pieces + (s + u) * stride + i * VEC));
#pragma unroll
                for (int u = 0; u < TOGETHER; u++) {
                    if (s + u >= t.splits) break;
#pragma unroll
                    for (int v = 0; v < VEC; v++) sum.x[v] += ((const Pack&)more[u]).x[v];
                }
            }
            put(shared + i / PER_ROW * LDC + i % PER_ROW * VEC, sum);
        }
        __syncthreads();
        return true;
    }

    // Steps FROM to TO of DEPTH along k.
    template <int FROM, int TO>
    static __device__ __forceinline__ void multiply(real (&acc)[MT][NT][4], const real* a, const real* b, int wm, int wn,
                                                    int wk, int lane) {
#pragma unroll
        for (int kk = FROM; kk < TO; kk++) {
            int k = (kk * WK + wk) * DEPTH;
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
        for (int e = 0; e < DEPTH / 2; e++) {
            int row = m + lane / 4 + e % 2 * 8, at = k + lane % 4 + e / 2 * 4;
            frag.x[e] = A_T ? a[at * LDA + row] : a[row * LDA + at];
        }
        split(frag);
    }

    static __device__ __forceinline__ void read_b(BFrag& frag, const real* b, int k, int n, int lane) {
#pragma unroll
        for (int e = 0; e < DEPTH / 4; e++) {
            int col = n + lane / 4, at = k + lane % 4 + e * 4;
            frag.x[e] = B_T ? b[col * LDB + at] : b[at * LDB + col];
        }
        split(frag);
    }
};

// Small tiles for few rows, large ones for many. Their numbers come from products.rs.
#define PRODUCT(name, TILE, blocks, ...)                                           \
    extern "C" __global__ void __launch_bounds__(Tile<TILE, __VA_ARGS__>::THREADS, blocks) \
        name(const __grid_constant__ Tile<TILE, __VA_ARGS__>::Arguments p) {       \
        Tile<TILE, __VA_ARGS__>::run(p);                                           \
    }
#define INSTANCE(size, kind, SIZE, ...) PRODUCT(size##_##kind, TILE_##SIZE, BLOCKS_##SIZE, __VA_ARGS__)

// The sizes that were the fastest anywhere: name, operands, tile, then whether A and B are transposed in memory, whether
// rows of A are found in a table, whether a team makes a tile, whether sizes come with the batch; whether the products are on a list.
INSTANCE(product_tiny, nn, TINY, false, false, false, false, false)
INSTANCE(product_small, nn, SMALL, false, false, false, false, false)
INSTANCE(product_medium, nn, MEDIUM, false, false, false, false, false)
INSTANCE(product_wide, nn, WIDE, false, false, false, false, false)
INSTANCE(product_huge, nn, HUGE, false, false, false, false, false)
INSTANCE(product_panel, nn, PANEL, false, false, false, false, false)
INSTANCE(product_tiny, nt, TINY, false, true, false, false, false)
INSTANCE(product_small, nt, SMALL, false, true, false, false, false)
INSTANCE(product_medium, nt, MEDIUM, false, true, false, false, false)
INSTANCE(product_wide, nt, WIDE, false, true, false, false, false)
INSTANCE(product_large, nt, LARGE, false, true, false, false, false)
INSTANCE(product_huge, nt, HUGE, false, true, false, false, false)
INSTANCE(product_medium, tn, MEDIUM, true, false, false, false, false)
INSTANCE(product_wide, tn, WIDE, true, false, false, false, false)
INSTANCE(product_large, tn, LARGE, true, false, false, false, false)
INSTANCE(product_huge, tn, HUGE, true, false, false, false, false)
INSTANCE(product_medium, tn_list, MEDIUM, true, false, false, false, false, true)
INSTANCE(product_wide, tn_list, WIDE, true, false, false, false, false, true)
INSTANCE(product_large, tn_list, LARGE, true, false, false, false, false, true)
INSTANCE(product_huge, tn_list, HUGE, true, false, false, false, false, true)
INSTANCE(product_tiny, nn_gather, TINY, false, false, true, false, false)
INSTANCE(product_medium, nn_gather, MEDIUM, false, false, true, false, false)
INSTANCE(product_wide, nn_gather, WIDE, false, false, true, false, false)
INSTANCE(product_tiny, tn_gather, TINY, true, false, true, false, false)
INSTANCE(product_small, tn_gather, SMALL, true, false, true, false, false)
INSTANCE(product_long, nn_team, LONG, false, false, false, true, false)
INSTANCE(product_panel, nn_gather, PANEL, false, false, true, false, false)
INSTANCE(product_panel, tn_gather, PANEL, true, false, true, false, false)
INSTANCE(product_tiny, nn_varied, TINY, false, false, false, false, true)
INSTANCE(product_small, nn_varied, SMALL, false, false, false, false, true)
INSTANCE(product_medium, nn_varied, MEDIUM, false, false, false, false, true)
INSTANCE(product_wide, nn_varied, WIDE, false, false, false, false, true)
INSTANCE(product_huge, nn_varied, HUGE, false, false, false, false, true)
INSTANCE(product_panel, nn_varied, PANEL, false, false, false, false, true)
INSTANCE(product_tiny, nt_varied, TINY, false, true, false, false, true)
INSTANCE(product_small, nt_varied, SMALL, false, true, false, false, true)
INSTANCE(product_medium, nt_varied, MEDIUM, false, true, false, false, true)
INSTANCE(product_wide, nt_varied, WIDE, false, true, false, false, true)
INSTANCE(product_large, nt_varied, LARGE, false, true, false, false, true)
INSTANCE(product_huge, nt_varied, HUGE, false, true, false, false, true)
INSTANCE(product_medium, tn_varied, MEDIUM, true, false, false, false, true)
INSTANCE(product_wide, tn_varied, WIDE, true, false, false, false, true)
INSTANCE(product_large, tn_varied, LARGE, true, false, false, false, true)
INSTANCE(product_huge, tn_varied, HUGE, true, false, false, false, true)
INSTANCE(product_tiny, nn_gather_varied, TINY, false, false, true, false, true)
INSTANCE(product_medium, nn_gather_varied, MEDIUM, false, false, true, false, true)
INSTANCE(product_wide, nn_gather_varied, WIDE, false, false, true, false, true)
INSTANCE(product_tiny, tn_gather_varied, TINY, true, false, true, false, true)
INSTANCE(product_small, tn_gather_varied, SMALL, true, false, true, false, true)
INSTANCE(product_long, nn_team_varied, LONG, false, false, false, true, true)
INSTANCE(product_panel, nn_gather_varied, PANEL, false, false, true, false, true)
INSTANCE(product_panel, tn_gather_varied, PANEL, true, false, true, false, true)
