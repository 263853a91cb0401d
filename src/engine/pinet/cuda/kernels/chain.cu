// Operations in a row that look at no rows but their own: a block takes its tiles through all of them in one kernel.

enum { DENSE, INPUT, CONTRACT, ADD, SUM };
enum { FORWARD, REVERSE, TANGENT, ADJOINT };

template <int PASS> __device__ __forceinline__ void do_operation(const Batch& b, const Op& o) {
    switch (o.kind) {
        case DENSE:
            if (PASS == FORWARD) dense_values<false>(o);
            if (PASS == TANGENT) dense_values<true>(o);
            if (PASS == REVERSE) dense_back(o);
            if (PASS == ADJOINT && o.forces) dense_gradient<true>(o);
            if (PASS == ADJOINT && !o.forces) dense_gradient<false>(o);
            break;
        case INPUT:
            if (PASS == FORWARD) input_forward_rows(b, o);
            if (PASS == TANGENT) input_tangent_rows(b, o);
            if (PASS == REVERSE) input_reverse_rows(b, o);
            if (PASS == ADJOINT) input_adjoint_rows(b, o);
            break;
        case CONTRACT:
            if (PASS == FORWARD) contract_forward_rows(b, o);
            if (PASS == TANGENT) contract_tangent_rows(b, o);
            if (PASS == REVERSE) contract_reverse_rows(b, o);
            if (PASS == ADJOINT) contract_adjoint_rows(b, o);
            break;
        case ADD:
            if (PASS == FORWARD) add_values(b, o, o.u.value, o.v.value, o.y.value);
            if (PASS == TANGENT) add_values(b, o, o.u.dot, o.v.dot, o.y.dot);
            if (PASS == REVERSE) add_back(b, o, o.y.de, o.u.de, o.v.de);
            if (PASS == ADJOINT) add_back(b, o, o.y.dl, o.u.dl, o.v.dl);
            break;
        case SUM:
            if (PASS == REVERSE) sum_back(b, o.y.width, o.x.de, o.y.de);
            if (PASS == ADJOINT) sum_back(b, o.y.width, o.x.dl, o.y.dl);
            break;
    }
}

template <int PASS> __device__ __forceinline__ void chain(const Batch& b, const Op* ops, int n) {
    __shared__ Op o;
    for (int k = 0; k < n; k++) {
        // What the operation before wrote and read is done with.
        __syncthreads();
        for (int w = threadIdx.x; w < (int)(sizeof(Op) / 4); w += blockDim.x) ((u32*)&o)[w] = ((const u32*)(ops + k))[w];
        __syncthreads();
        do_operation<PASS>(b, o);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) chain_forward(const __grid_constant__ Batch b, const Op* ops, int n) {
    chain<FORWARD>(b, ops, n);
}

extern "C" __global__ void __launch_bounds__(THREADS) chain_reverse(const __grid_constant__ Batch b, const Op* ops, int n) {
    chain<REVERSE>(b, ops, n);
}

extern "C" __global__ void __launch_bounds__(THREADS) chain_tangent(const __grid_constant__ Batch b, const Op* ops, int n) {
    chain<TANGENT>(b, ops, n);
}

extern "C" __global__ void __launch_bounds__(THREADS) chain_adjoint(const __grid_constant__ Batch b, const Op* ops, int n) {
    chain<ADJOINT>(b, ops, n);
}
