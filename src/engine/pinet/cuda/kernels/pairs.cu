// Operations between atoms and pairs, in all four passes: engine/pinet/cpu/pairs.rs. Sums run over pairs of one atom in
// the order of the list, so that they are the same in every run.

#define EACH(k, n) for (u32 k = blockIdx.x * blockDim.x + threadIdx.x; k < (n); k += gridDim.x * blockDim.x)

// Numbers of rows that a block owns, tile by tile, as layers do: `n` numbers of each of `rows` rows.
#define OWN(k, rows, n)                                                                             \
    for (u32 tile_ = blockIdx.x * ROWS; tile_ < (rows); tile_ += gridDim.x * ROWS)                  \
        for (u32 k = tile_ * (n) + threadIdx.x, end_ = min(tile_ + (u32)ROWS, (rows)) * (n); k < end_; k += blockDim.x)

// y = act(u_i + v_j)
__device__ __forceinline__ void input_forward_rows(const Batch& b, const Op& o) {
    u32 n = o.y.width;
    OWN(k, b.turn->n_pairs, (u32)n) {
        u32 p = k / n, c = k % n;
        activate(o.y, k, o.act, o.u.value[b.i[p] * n + c] + o.v.value[b.j[p] * n + c]);
    }
}

extern "C" __global__ void __launch_bounds__(256) input_forward(const __grid_constant__ Batch b, const __grid_constant__ Op o) {
    input_forward_rows(b, o);
}

__device__ __forceinline__ void input_tangent_rows(const Batch& b, const Op& o) {
    u32 n = o.y.width;
    OWN(k, b.turn->n_pairs, (u32)n) {
        u32 p = k / n, c = k % n;
        activate_dot(o.y, k, o.act, o.u.dot[b.i[p] * n + c] + o.v.dot[b.j[p] * n + c]);
    }
}

extern "C" __global__ void __launch_bounds__(256) input_tangent(const __grid_constant__ Batch b, const __grid_constant__ Op o) {
    input_tangent_rows(b, o);
}

// Adjoints before the activation, of pairs; `x` keeps them.
__device__ __forceinline__ void input_reverse_rows(const Batch& b, const Op& o) {
    OWN(k, b.turn->n_pairs, (u32)o.y.width) o.x.de[k] = o.y.de[k] * slope_of(o.y, k, o.act);
}

extern "C" __global__ void __launch_bounds__(256) input_reverse(const __grid_constant__ Batch b, const __grid_constant__ Op o) {
    input_reverse_rows(b, o);
}

__device__ __forceinline__ void input_adjoint_rows(const Batch& b, const Op& o) {
    OWN(k, b.turn->n_pairs, (u32)o.y.width) {
        real dl = o.y.dl[k] * slope_of(o.y, k, o.act);
        o.x.dl[k] = o.forces ? fused(bend_of(o.y, k, o.act), o.y.de[k], dl) : dl;
    }
}

extern "C" __global__ void __launch_bounds__(256) input_adjoint(const __grid_constant__ Batch b, const __grid_constant__ Op o) {
    input_adjoint_rows(b, o);
}

// Sums of them for the first and the second atom of pairs.
__device__ __forceinline__ void spread(const Batch& b, const real* z, real* u, real* v, u32 n) {
    EACH(k, b.turn->n_atoms * n) {
        u32 a = k / n, c = k % n;
        real first = 0, second = 0;
        u32 end = b.start[a + 1];
#pragma unroll 4
        for (u32 p = b.start[a]; p < end; p++) first += z[(size_t)p * n + c];
        end = b.start_j[a + 1];
#pragma unroll 4
        for (u32 p = b.start_j[a]; p < end; p++) second += z[(size_t)b.by_j[p] * n + c];
        u[k] = first;
        v[k] = second;
    }
}

extern "C" __global__ void __launch_bounds__(256) spread_reverse(const __grid_constant__ Batch b, const __grid_constant__ Op o) {
    spread(b, o.x.de, o.u.de, o.v.de, o.x.width);
}

extern "C" __global__ void __launch_bounds__(256) spread_adjoint(const __grid_constant__ Batch b, const __grid_constant__ Op o) {
    spread(b, o.x.dl, o.u.dl, o.v.dl, o.x.width);
}

// y_c = sum_b w_(b c) e_b; radial functions are slowest in w.
__device__ __forceinline__ void contract_forward_rows(const Batch& b, const Op& o) {
    u32 n = o.y.width, radial = o.n_basis;
    OWN(k, b.turn->n_pairs, (u32)n) {
        u32 p = k / n, c = k % n;
        const real *w = o.x.value + (size_t)p * o.x.ld + c, *e = b.e + (size_t)p * radial;
        real sum = 0;
        for (u32 r = 0; r < radial; r++) sum = fused(w[r * n], e[r], sum);
        o.y.value[k] = sum;
    }
}

extern "C" __global__ void __launch_bounds__(256) contract_forward(const __grid_constant__ Batch b, const __grid_constant__ Op o) {
    contract_forward_rows(b, o);
}

__device__ __forceinline__ void contract_tangent_rows(const Batch& b, const Op& o) {
    u32 n = o.y.width, radial = o.n_basis;
    OWN(k, b.turn->n_pairs, (u32)n) {
        u32 p = k / n, c = k % n;
        size_t at = (size_t)p * o.x.ld + c;
        const real *e = b.e + (size_t)p * radial, *e_dot = b.e_dot + (size_t)p * radial;
        real sum = 0;
        for (u32 r = 0; r < radial; r++)
            sum = fused(o.x.dot[at + r * n], e[r], fused(o.x.value[at + r * n], e_dot[r], sum));
        o.y.dot[k] = sum;
    }
}

extern "C" __global__ void __launch_bounds__(256) contract_tangent(const __grid_constant__ Batch b, const __grid_constant__ Op o) {
    contract_tangent_rows(b, o);
}

__device__ __forceinline__ void contract_reverse_rows(const Batch& b, const Op& o) {
    u32 n = o.y.width, radial = o.n_basis;
    OWN(k, b.turn->n_pairs, (u32)radial) {
        u32 p = k / radial, r = k % radial;
        const real *dy = o.y.de + (size_t)p * n, *w = o.x.value + (size_t)p * o.x.ld + r * n;
        real* dw = o.x.de + (size_t)p * o.x.ld + r * n;
        real e = b.e[k], sum = 0;
#pragma unroll 4
        for (u32 c = 0; c < n; c++) {
            sum = fused(w[c], dy[c], sum);
            dw[c] = e * dy[c];
        }
        b.de_e[k] += sum;
    }
}

extern "C" __global__ void __launch_bounds__(256) contract_reverse(const __grid_constant__ Batch b, const __grid_constant__ Op o) {
    contract_reverse_rows(b, o);
}

__device__ __forceinline__ void contract_adjoint_rows(const Batch& b, const Op& o) {
    u32 n = o.y.width, radial = o.n_basis, all = n * radial;
    OWN(k, b.turn->n_pairs, (u32)all) {
        u32 p = k / all, r = k % all / n, c = k % n;
        real dl = o.y.dl[(size_t)p * n + c] * b.e[(size_t)p * radial + r];
        if (o.forces) dl = fused(o.y.de[(size_t)p * n + c], b.e_dot[(size_t)p * radial + r], dl);
        o.x.dl[k] = dl;
    }
}

extern "C" __global__ void __launch_bounds__(256) contract_adjoint(const __grid_constant__ Batch b, const __grid_constant__ Op o) {
    contract_adjoint_rows(b, o);
}

// y_i = sum of the pairs of i
__device__ __forceinline__ void sum_pairs(const Batch& b, const Op& o, const real* x, real* y) {
    u32 n = o.y.width;
    EACH(k, b.turn->n_atoms * n) {
        u32 a = k / n, c = k % n, end = b.start[a + 1];
        real sum = 0;
#pragma unroll 4
        for (u32 p = b.start[a]; p < end; p++) sum += x[(size_t)p * n + c];
        y[k] = sum;
    }
}

extern "C" __global__ void __launch_bounds__(256) sum_forward(const __grid_constant__ Batch b, const __grid_constant__ Op o) {
    sum_pairs(b, o, o.x.value, o.y.value);
}

extern "C" __global__ void __launch_bounds__(256) sum_tangent(const __grid_constant__ Batch b, const __grid_constant__ Op o) {
    sum_pairs(b, o, o.x.dot, o.y.dot);
}

// Every pair gets the adjoint of its first atom.
__device__ __forceinline__ void sum_back(const Batch& b, u32 n, real* dx, const real* dy) {
    OWN(k, b.turn->n_pairs, n) dx[k] = dy[b.i[k / n] * n + k % n];
}

extern "C" __global__ void __launch_bounds__(256) sum_reverse(const __grid_constant__ Batch b, const __grid_constant__ Op o) {
    sum_back(b, o.y.width, o.x.de, o.y.de);
}

extern "C" __global__ void __launch_bounds__(256) sum_adjoint(const __grid_constant__ Batch b, const __grid_constant__ Op o) {
    sum_back(b, o.y.width, o.x.dl, o.y.dl);
}

// y = u + v on atoms; operands may be columns of wider matrices.
__device__ __forceinline__ void add_values(const Batch& b, const Op& o, const real* u, const real* v, real* y) {
    u32 n = o.y.width;
    OWN(k, b.turn->n_atoms, n) {
        u32 a = k / n, c = k % n;
        y[a * o.y.ld + c] = u[a * o.u.ld + c] + v[a * o.v.ld + c];
    }
}

extern "C" __global__ void __launch_bounds__(256) add_forward(const __grid_constant__ Batch b, const __grid_constant__ Op o) {
    add_values(b, o, o.u.value, o.v.value, o.y.value);
}

extern "C" __global__ void __launch_bounds__(256) add_tangent(const __grid_constant__ Batch b, const __grid_constant__ Op o) {
    add_values(b, o, o.u.dot, o.v.dot, o.y.dot);
}

__device__ __forceinline__ void add_back(const Batch& b, const Op& o, const real* dy, real* du, real* dv) {
    u32 n = o.y.width;
    OWN(k, b.turn->n_atoms, n) {
        u32 a = k / n, c = k % n;
        real d = dy[a * o.y.ld + c];
        du[a * o.u.ld + c] += d;
        dv[a * o.v.ld + c] += d;
    }
}

extern "C" __global__ void __launch_bounds__(256) add_reverse(const __grid_constant__ Batch b, const __grid_constant__ Op o) {
    add_back(b, o, o.y.de, o.u.de, o.v.de);
}

extern "C" __global__ void __launch_bounds__(256) add_adjoint(const __grid_constant__ Batch b, const __grid_constant__ Op o) {
    add_back(b, o, o.y.dl, o.u.dl, o.v.dl);
}
