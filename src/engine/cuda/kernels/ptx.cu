// All that is written in machine instructions. tests/fake/emulate.h has the same for kernels that run on a CPU.

#ifndef EMULATED
// Shared memory whose size the launch decides.
extern __shared__ __align__(16) unsigned char shared_bytes[];

// Every kernel calls this before it touches what another kernel writes: it may have been brought in while the one
// before it still ran (Program::overlaps). It waits until that one has ended and lets the next one come in. Before it a
// kernel may read tables, and parameters where it does not follow right after an update.
__device__ __forceinline__ void after_previous() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;\n" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;\n" ::: "memory");
#endif
}

// Waits for some threads of the block, of which every one calls it.
__device__ __forceinline__ void barrier(int which, int threads) {
    asm volatile("bar.sync %0, %1;\n" ::"r"(which), "r"(threads) : "memory");
}

// Blocks of a cluster wait for each other: what a thread wrote before it arrived can be read after the wait.
__device__ __forceinline__ void team_arrive() {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.release;\n" ::: "memory");
#endif
}
__device__ __forceinline__ void team_wait() {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.wait.acquire;\n" ::: "memory");
#endif
}

// Where the same place of shared memory is in another block of the cluster.
__device__ __forceinline__ const void* of_member(const void* own, int member) {
#if __CUDA_ARCH__ >= 900
    u64 there;
    asm("mapa.u64 %0, %1, %2;\n" : "=l"(there) : "l"(own), "r"(member));
    return (const void*)there;
#else
    return own;
#endif
}

// Copies up to 16 bytes and fills the rest of them with zeros.
__device__ __forceinline__ void copy_16(void* to, const void* from, int bytes) {
    u32 address = (u32)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(address), "l"(from), "r"(bytes));
}
__device__ __forceinline__ void copy_16(void* to, const void* from) {
    u32 address = (u32)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;\n" ::"r"(address), "l"(from));
}

// Copies one number, or puts a zero where there is none.
__device__ __forceinline__ void copy_number(real* to, const real* from, bool is_there) {
    u32 address = (u32)__cvta_generic_to_shared(to);
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;\n" ::"r"(address), "l"(from), "n"(sizeof(real)),
                 "r"(is_there ? (int)sizeof(real) : 0));
}
// Copies since the last call belong together; waits until all but the last so many of those that belong together are there, as far as this
// thread has started them.
__device__ __forceinline__ void copies_together() { asm volatile("cp.async.commit_group;\n" ::: "memory"); }
template <int LEFT> __device__ __forceinline__ void copies_wait() { asm volatile("cp.async.wait_group %0;\n" ::"n"(LEFT) : "memory"); }

// A counter in shared memory that ends a phase after so many arrivals; phases are told apart by their parity.
__device__ __forceinline__ void phase_init(u64* at, int arrivals) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;\n" ::"r"((u32)__cvta_generic_to_shared(at)), "r"(arrivals));
}
__device__ __forceinline__ void phase_arrive(u64* at) {
    u32 address = (u32)__cvta_generic_to_shared(at);
    asm volatile("{ .reg .b64 state; mbarrier.arrive.shared.b64 state, [%0]; }\n" ::"r"(address) : "memory");
}
// Arrives when all copies that this thread has started are there.
__device__ __forceinline__ void phase_arrive_copied(u64* at) {
    u32 address = (u32)__cvta_generic_to_shared(at);
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];\n" ::"r"(address) : "memory");
}
__device__ __forceinline__ void phase_wait(u64* at, u32 parity) {
    u32 address = (u32)__cvta_generic_to_shared(at), done;
    do {
        asm volatile(
            "{ .reg .pred p; "
#if __CUDA_ARCH__ >= 900
            "mbarrier.try_wait.parity.shared.b64 p, [%1], %2; "
#else
            "mbarrier.test_wait.parity.shared.b64 p, [%1], %2; "
#endif
            "selp.u32 %0, 1, 0, p; }\n"
            : "=r"(done)
            : "r"(address), "r"(parity)
            : "memory");
    } while (!done);
}

// Products of tiles, C += A B. A lane has elements [row, k] of A at row = lane / 4 (and 8 more), k = lane % 4 (and 4 more), of B
// at k and column lane / 4, of C at row and columns 2 (lane % 4) and the next.
__device__ __forceinline__ void mma_f64(double* c, const double* a, const double* b) {
#if __CUDA_ARCH__ >= 900
    asm(
        "mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
        : "+d"(c[0]), "+d"(c[1]), "+d"(c[2]), "+d"(c[3])
        : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(b[0]), "d"(b[1]));
#else
    for (int half = 0; half < 2; half++)
        for (int k = 0; k < 2; k++)
            asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0,%1}, {%2}, {%3}, {%0,%1};\n"
                         : "+d"(c[2 * half]), "+d"(c[2 * half + 1])
                         : "d"(a[2 * k + half]), "d"(b[k]));
#endif
}
__device__ __forceinline__ u32 to_tf32(float x) {
    u32 y;
    asm("cvt.rna.tf32.f32 %0, %1;\n" : "=r"(y) : "f"(x));
    return y;
}
__device__ __forceinline__ void mma_tf32(float* c, const u32* a, const u32* b) {
    asm(
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
// The same with k in two steps of eight, two numbers in each word.
__device__ __forceinline__ u32 to_bf16(float x, float y) {
    u32 pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;\n" : "=r"(pair) : "f"(y), "f"(x));
    return pair;
}
__device__ __forceinline__ void mma_bf16(float* c, const u32* a, const u32* b) {
    asm(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
#endif

