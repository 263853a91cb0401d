// The mirrored part of the descriptor only once: rows M2 .. M1 of D, then the lower half of its square, then extra inputs. Weights are
// added up accordingly (folded_weights in evaluate/). See engine/cpu/fitting/fold.rs.

__device__ __forceinline__ int triangle(int m, int k) { return m >= k ? m * (m + 1) / 2 + k : k * (k + 1) / 2 + m; }

template <int W> __device__ __forceinline__ void folded_of_row(const Batch& b, const Listed& e, int each) {
    Place<W> p(b, each);
    int row = p.row, m1 = p.m1, m2 = p.m2, ldm = p.ldm;
    if (row >= b.n_rows) return;
    real *a = p.memory(4 * ldm), *x = e.x + (size_t)row * b.ldx;
    after_previous();
    p.load(a, b.a);
    p.sync();
    for (int k = p.k; k < m2; k += p.lanes * W) {
        real near[4][W];
        p.columns(near, a, k);
#pragma unroll 4
        for (int m = m2 + p.m; m < m1; m += p.step) {
            Some<W> out;
#pragma unroll
            for (int w = 0; w < W; w++)
                out.x[w] = fused(a[m], near[0][w], fused(a[ldm + m], near[1][w],
                           fused(a[2 * ldm + m], near[2][w], a[3 * ldm + m] * near[3][w])));
            *(Some<W>*)(x + (m - m2) * m2 + k) = out;
        }
    }
    real* square = x + (m1 - m2) * m2;
    for (int i = p.thread; i < m2 * m2; i += p.threads) {
        int m = i / m2, k = i % m2;
        if (k > m) continue;
        square[triangle(m, k)] = fused(a[m], a[k], fused(a[ldm + m], a[ldm + k],
                                 fused(a[2 * ldm + m], a[2 * ldm + k], a[3 * ldm + m] * a[3 * ldm + k])));
    }
    const real* extra = e.extra + (size_t)row * b.n_extra;
    for (int i = p.thread; i < b.n_extra; i += p.threads) square[m2 * (m2 + 1) / 2 + i] = extra[i];
}

extern "C" __global__ void __launch_bounds__(32 * WARPS) descriptor_listed(const __grid_constant__ Batch b,
                                                                           const __grid_constant__ Listed e, int each) {
    if (b.m2 % VEC) folded_of_row<1>(b, e, each);
    else folded_of_row<VEC>(b, e, each);
}

// dE/dA of a row from dE/dx.
template <int W> __device__ __forceinline__ void unfolded_of_row(const Batch& b, const Listed& e, int each) {
    Place<W> p(b, each);
    int row = p.row, ldm = p.ldm, m1 = p.m1, m2 = p.m2;
    if (row >= b.n_rows) return;
    real *a = p.memory(8 * ldm + 4 * p.warps * m2), *t = a + 4 * ldm, *sums = t + 4 * ldm;
    const real *de_x = e.x + (size_t)row * b.ldx, *square = de_x + (m1 - m2) * m2;
    for (int i = p.thread; i < 4 * ldm; i += p.threads) t[i] = real(0);
    after_previous();
    p.load(a, b.a);
    p.sync();
    // Rows from M2 on: as if the square stood before them.
    p.m += m2;
    adjoint_add(p, t, sums, a, de_x - m2 * m2);
    for (int i = p.thread; i < 4 * m2; i += p.threads) {
        int c = i / m2, m = i % m2;
        real sum = square[triangle(m, m)] * a[c * ldm + m];
        for (int k = 0; k < m2; k++) sum = fused(square[triangle(m, k)], a[c * ldm + k], sum);
        t[c * ldm + m] += sum;
    }
    p.sync();
    real* out = b.da + (size_t)row * 4 * ldm;
    for (int i = p.thread; i < 4 * ldm; i += p.threads) out[i] = t[i];
}

extern "C" __global__ void __launch_bounds__(32 * WARPS, sizeof(real) == 8 ? 2 : 3)
    adjoint_listed(const __grid_constant__ Batch b, const __grid_constant__ Listed e, int each) {
    if (b.m2 % 4) unfolded_of_row<1>(b, e, each);
    else unfolded_of_row<4>(b, e, each);
}
