// Operations on tensors of atoms, which PiNet2 has: engine/pinet/cpu/pairs.rs (turns) and atoms.rs.
//
// A turn is y_i = sum over pairs of (v_j + u_i + d) x, with directions d of the pairs and one factor x for all components.

struct Turned {
    const real *d, *v, *u;
    u32 size, n;
    __device__ __forceinline__ Turned(const Batch& b, const Op& o, bool dot)
        : d((dot ? b.direction_dot : b.direction)[o.direction]), v(dot ? o.v.dot : o.v.value),
          u(dot ? o.u.dot : o.u.value), size(o.size), n(o.y.width) {}
    // Component and channel `k` for a pair of the atoms i and j.
    __device__ __forceinline__ real at(u32 p, u32 i, u32 j, u32 k, u32 x) const {
        real t = d[(size_t)p * size + x];
        if (v) t += v[(size_t)j * n + k];
        if (u) t += u[(size_t)i * n + k];
        return t;
    }
};

template <bool TANGENT> __device__ __forceinline__ void turn_values(const Batch& b, const Op& o) {
    u32 n = o.y.width, channels = o.x.width;
    Turned turned(b, o, false), turned_dot(b, o, true);
    EACH(k, b.turn->n_atoms * n) {
        u32 i = k / n, at = k % n, c = at % channels, x = at / channels;
        real sum = 0;
        for (u32 p = b.start[i]; p < b.start[i + 1]; p++) {
            size_t s = (size_t)p * o.x.ld + c;
            u32 j = b.j[p];
            if (TANGENT) {
                sum = fused(turned.at(p, i, j, at, x), o.x.dot[s], sum);
                sum = fused(turned_dot.at(p, i, j, at, x), o.x.value[s], sum);
            } else {
                sum = fused(turned.at(p, i, j, at, x), o.x.value[s], sum);
            }
        }
        (TANGENT ? o.y.dot : o.y.value)[k] = sum;
    }
}

extern "C" __global__ void __launch_bounds__(256) turn_forward(const __grid_constant__ Batch b, const __grid_constant__ Op o) {
    turn_values<false>(b, o);
}

extern "C" __global__ void __launch_bounds__(256) turn_tangent(const __grid_constant__ Batch b, const __grid_constant__ Op o) {
    turn_values<true>(b, o);
}

// To the factors of pairs; those of other operations are there already.
template <bool ADJOINT> __device__ __forceinline__ void turn_to_pairs(const Batch& b, const Op& o) {
    u32 n = o.y.width, channels = o.x.width;
    Turned turned(b, o, false), turned_dot(b, o, true);
    EACH(k, b.turn->n_pairs * channels) {
        u32 p = k / channels, c = k % channels, i = b.i[p], j = b.j[p];
        real sum = 0;
        for (u32 x = 0; x < (u32)o.size; x++) {
            u32 at = x * channels + c;
            size_t y = (size_t)i * n + at;
            sum = fused(turned.at(p, i, j, at, x), (ADJOINT ? o.y.dl : o.y.de)[y], sum);
            if (ADJOINT && o.forces) sum = fused(turned_dot.at(p, i, j, at, x), o.y.de[y], sum);
        }
        (ADJOINT ? o.x.dl : o.x.de)[(size_t)p * o.x.ld + c] += sum;
    }
}

extern "C" __global__ void __launch_bounds__(256) turn_reverse(const __grid_constant__ Batch b, const __grid_constant__ Op o) {
    turn_to_pairs<false>(b, o);
}

extern "C" __global__ void __launch_bounds__(256) turn_adjoint(const __grid_constant__ Batch b, const __grid_constant__ Op o) {
    turn_to_pairs<true>(b, o);
}

// dE by the directions.
extern "C" __global__ void __launch_bounds__(256) turn_directions(const __grid_constant__ Batch b, const __grid_constant__ Op o) {
    u32 n = o.y.width, channels = o.x.width, size = o.size;
    EACH(k, b.turn->n_pairs * size) {
        u32 p = k / size, x = k % size;
        const real *s = o.x.value + (size_t)p * o.x.ld, *dy = o.y.de + (size_t)b.i[p] * n + x * channels;
        real sum = 0;
        for (u32 c = 0; c < channels; c++) sum = fused(s[c], dy[c], sum);
        b.direction_de[o.direction][k] += sum;
    }
}

// To the tensors of the first atoms (u), or of the second ones (v).
template <bool ADJOINT, bool SECOND> __device__ __forceinline__ void turn_to_atoms(const Batch& b, const Op& o) {
    u32 n = o.y.width, channels = o.x.width;
    real* to = SECOND ? (ADJOINT ? o.v.dl : o.v.de) : (ADJOINT ? o.u.dl : o.u.de);
    const u32* start = SECOND ? b.start_j : b.start;
    EACH(k, b.turn->n_atoms * n) {
        u32 a = k / n, at = k % n, c = at % channels;
        real sum = 0;
        for (u32 q = start[a]; q < start[a + 1]; q++) {
            u32 p = SECOND ? b.by_j[q] : q;
            size_t s = (size_t)p * o.x.ld + c, y = (size_t)b.i[p] * n + at;
            sum = fused(o.x.value[s], (ADJOINT ? o.y.dl : o.y.de)[y], sum);
            if (ADJOINT && o.forces) sum = fused(o.x.dot[s], o.y.de[y], sum);
        }
        to[k] += sum;
    }
}

extern "C" __global__ void __launch_bounds__(256) first_reverse(const __grid_constant__ Batch b, const __grid_constant__ Op o) {
    turn_to_atoms<false, false>(b, o);
}

extern "C" __global__ void __launch_bounds__(256) first_adjoint(const __grid_constant__ Batch b, const __grid_constant__ Op o) {
    turn_to_atoms<true, false>(b, o);
}

extern "C" __global__ void __launch_bounds__(256) second_reverse(const __grid_constant__ Batch b, const __grid_constant__ Op o) {
    turn_to_atoms<false, true>(b, o);
}

extern "C" __global__ void __launch_bounds__(256) second_adjoint(const __grid_constant__ Batch b, const __grid_constant__ Op o) {
    turn_to_atoms<true, true>(b, o);
}

// y_c = sum over components of u v
template <bool TANGENT> __device__ __forceinline__ void dot_values(const Batch& b, const Op& o) {
    u32 channels = o.y.width, n = o.u.width;
    EACH(k, b.turn->n_atoms * channels) {
        u32 a = k / channels, c = k % channels;
        real sum = 0;
        for (u32 x = 0; x < (u32)o.size; x++) {
            size_t q = (size_t)a * n + x * channels + c;
            if (TANGENT) sum = fused(o.u.dot[q], o.v.value[q], fused(o.u.value[q], o.v.dot[q], sum));
            else sum = fused(o.u.value[q], o.v.value[q], sum);
        }
        (TANGENT ? o.y.dot : o.y.value)[(size_t)a * o.y.ld + c] = sum;
    }
}

extern "C" __global__ void __launch_bounds__(256) dot_forward(const __grid_constant__ Batch b, const __grid_constant__ Op o) {
    dot_values<false>(b, o);
}

extern "C" __global__ void __launch_bounds__(256) dot_tangent(const __grid_constant__ Batch b, const __grid_constant__ Op o) {
    dot_values<true>(b, o);
}

// Both operands may be the same matrix.
template <bool ADJOINT> __device__ __forceinline__ void dot_back(const Batch& b, const Op& o) {
    u32 channels = o.y.width, n = o.u.width;
    bool turned = ADJOINT && o.forces;
    real *du = ADJOINT ? o.u.dl : o.u.de, *dv = ADJOINT ? o.v.dl : o.v.de;
    EACH(k, b.turn->n_atoms * n) {
        size_t y = (size_t)(k / n) * o.y.ld + k % n % channels;
        real ds = (ADJOINT ? o.y.dl : o.y.de)[y], de = turned ? o.y.de[y] : real(0);
        real to_u = ds * o.v.value[k] + (turned ? de * o.v.dot[k] : real(0));
        real to_v = ds * o.u.value[k] + (turned ? de * o.u.dot[k] : real(0));
        du[k] += to_u;
        dv[k] += to_v;
    }
}

extern "C" __global__ void __launch_bounds__(256) dot_reverse(const __grid_constant__ Batch b, const __grid_constant__ Op o) {
    dot_back<false>(b, o);
}

extern "C" __global__ void __launch_bounds__(256) dot_adjoint(const __grid_constant__ Batch b, const __grid_constant__ Op o) {
    dot_back<true>(b, o);
}

// y = u v, one v for all components
template <bool TANGENT> __device__ __forceinline__ void scale_values(const Batch& b, const Op& o) {
    u32 n = o.y.width, channels = o.v.width;
    EACH(k, b.turn->n_atoms * n) {
        size_t v = (size_t)(k / n) * o.v.ld + k % n % channels;
        if (TANGENT) o.y.dot[k] = fused(o.u.dot[k], o.v.value[v], o.u.value[k] * o.v.dot[v]);
        else o.y.value[k] = o.u.value[k] * o.v.value[v];
    }
}

extern "C" __global__ void __launch_bounds__(256) scale_forward(const __grid_constant__ Batch b, const __grid_constant__ Op o) {
    scale_values<false>(b, o);
}

extern "C" __global__ void __launch_bounds__(256) scale_tangent(const __grid_constant__ Batch b, const __grid_constant__ Op o) {
    scale_values<true>(b, o);
}

template <bool ADJOINT> __device__ __forceinline__ void scale_back(const Batch& b, const Op& o) {
    u32 n = o.y.width, channels = o.v.width;
    bool turned = ADJOINT && o.forces;
    real *du = ADJOINT ? o.u.dl : o.u.de, *dv = ADJOINT ? o.v.dl : o.v.de;
    EACH(k, b.turn->n_atoms * channels) {
        u32 a = k / channels, c = k % channels;
        size_t v = (size_t)a * o.v.ld + c;
        real sum = 0;
        for (u32 x = 0; x < (u32)o.size; x++) {
            size_t y = (size_t)a * n + x * channels + c;
            real dy = (ADJOINT ? o.y.dl : o.y.de)[y], to_u = dy * o.v.value[v];
            sum = fused(dy, o.u.value[y], sum);
            if (turned) {
                to_u = fused(o.y.de[y], o.v.dot[v], to_u);
                sum = fused(o.y.de[y], o.u.dot[y], sum);
            }
            du[y] += to_u;
        }
        dv[v] += sum;
    }
}

extern "C" __global__ void __launch_bounds__(256) scale_reverse(const __grid_constant__ Batch b, const __grid_constant__ Op o) {
    scale_back<false>(b, o);
}

extern "C" __global__ void __launch_bounds__(256) scale_adjoint(const __grid_constant__ Batch b, const __grid_constant__ Op o) {
    scale_back<true>(b, o);
}
