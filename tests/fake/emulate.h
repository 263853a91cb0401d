// Kernels on a CPU: every thread of a block is a fibre, which runs until it waits for others. Blocks run one after the other;
// those of a cluster side by side, in threads of the operating system (EMULATED_CLUSTERS: a kernel that comes in clusters).
//
// This stands before the kernels' own source (cuda.c puts the two together): CUDA's words, what kernels/ptx.cu has for a GPU,
// and the loop over threads. A tensor core's product is made in double precision and rounded once, so float32 differs from a
// GPU's in its last bits. It is read for every kernel, so it takes little from the standard library.
#include <cmath>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#define EMULATED
#define __device__
#define __global__
#define __forceinline__ inline
#define __noinline__
#define __grid_constant__
#define __launch_bounds__(...)
#define __align__(n) alignas(n)
// What every block of a cluster has for itself, which is a call of a function at every use.
#ifdef EMULATED_CLUSTERS
#define OF_BLOCK thread_local
#else
#define OF_BLOCK
#endif
#define __shared__ static OF_BLOCK

using std::isfinite;
using std::isnan;
template <typename F> static inline F min(F a, F b) { return b < a ? b : a; }
template <typename F> static inline F max(F a, F b) { return a < b ? b : a; }
struct int4 { int x, y, z, w; };
static struct { unsigned x; } blockDim, gridDim;
static OF_BLOCK struct { unsigned x; } threadIdx, blockIdx;
alignas(16) static OF_BLOCK unsigned char shared_bytes[1 << 18];

namespace emulated {
static void fail(const char* what) {
    fprintf(stderr, "emulated GPU: %s (block %u, thread %u)\n", what, blockIdx.x, threadIdx.x);
    abort();
}

// ---- Threads.

enum State { READY, AT_BLOCK, AT_WARP, ENDED };
static const int MOST = 1024, STACK = 1 << 16;
struct Fibre { jmp_buf at; State state; unsigned long arrivals; char* stack; };
struct Fibres {
    Fibre of[MOST];
    ~Fibres() { for (Fibre& fibre : of) free(fibre.stack); }
};
static OF_BLOCK Fibres fibres;
static OF_BLOCK jmp_buf scheduler;
static OF_BLOCK int current;
// A kernel with its arguments.
struct Bound {
    virtual void run() const = 0;
    virtual ~Bound() {}
};
static const Bound* kernel;
static int team_size = 1;

static void wait_as(State state) {
    Fibre& me = fibres.of[current];
    me.state = state;
    if (!_setjmp(me.at)) _longjmp(scheduler, 1);
}
// One kernel after the other: a fibre is made once, since that asks the system for its signals.
static void live() {
    for (;;) {
        kernel->run();
        wait_as(ENDED);
    }
}
static void resume(int which) {
    current = which, threadIdx.x = which;
    Fibre& fibre = fibres.of[which];
    if (_setjmp(scheduler)) return;
    if (fibre.stack) _longjmp(fibre.at, 1);
    fibre.stack = (char*)malloc(STACK);
    if (!fibre.stack) fail("no memory for a thread");
    ucontext_t begin;
    getcontext(&begin);
    begin.uc_stack.ss_sp = fibre.stack, begin.uc_stack.ss_size = STACK, begin.uc_link = nullptr;
    makecontext(&begin, live, 0);
    setcontext(&begin);
}
// True when all threads from `first` on wait for each other; they go on.
static bool release(int first, int count, State state) {
    int waiting = 0, ended = 0;
    for (int t = first; t < first + count; t++) waiting += fibres.of[t].state == state, ended += fibres.of[t].state == ENDED;
    if (!waiting || waiting + ended < count) return false;
    for (int t = first; t < first + count; t++)
        if (fibres.of[t].state == state) fibres.of[t].state = READY;
    return true;
}
static void run_block(int threads) {
    for (int t = 0; t < threads; t++) fibres.of[t].state = READY, fibres.of[t].arrivals = 0;
    for (long idle = 0;;) {
        bool any = false, goes_on = false;
        for (int t = 0; t < threads; t++)
            if (fibres.of[t].state == READY) any = true, resume(t);
        for (int w = 0; w < threads; w += 32) goes_on |= release(w, min(32, threads - w), AT_WARP);
        goes_on |= release(0, threads, AT_BLOCK);
        int ended = 0;
        for (int t = 0; t < threads; t++) ended += fibres.of[t].state == ENDED;
        if (ended == threads) return;
        if (!any && !goes_on) fail("threads wait for each other for ever");
        // Waiting in a loop for a phase is no progress; nobody does so for long, unless for blocks of other threads.
        idle = goes_on ? 0 : idle + 1;
        if (idle > (team_size > 1 ? 10000000 : 100000)) fail("threads wait for a phase for ever");
        if (team_size > 1) sched_yield();
    }
}

// ---- Clusters.

static unsigned long team_arrivals;
static unsigned char* team_memory[16];
struct Member { pthread_t thread; int block, place, threads, shared; };
static void* run_member(void* argument) {
    const Member& member = *(const Member*)argument;
    blockIdx.x = member.block, team_memory[member.place] = shared_bytes;
    memset(shared_bytes, 0x7b, member.shared);
    run_block(member.threads);
    return nullptr;
}
static void run_team(int first, int threads, int shared) {
    Member members[16];
    __atomic_store_n(&team_arrivals, 0, __ATOMIC_SEQ_CST);
    for (int k = 0; k < team_size; k++) {
        members[k] = {{}, first + k, k, threads, shared};
        if (pthread_create(&members[k].thread, nullptr, run_member, &members[k])) fail("no thread for a block of a cluster");
    }
    for (int k = 0; k < team_size; k++) pthread_join(members[k].thread, nullptr);
}

}  // namespace emulated
using emulated::wait_as;

// ---- CUDA's functions.

static void __syncthreads() { wait_as(emulated::AT_BLOCK); }
static void __syncwarp() { wait_as(emulated::AT_WARP); }
static void __threadfence() {}
template <typename F> static F __shfl_xor_sync(unsigned, F x, int mask) {
    static OF_BLOCK F kept[emulated::MOST];
    int me = emulated::current;
    kept[me] = x;
    __syncwarp();
    F other = kept[me ^ mask];
    __syncwarp();
    return other;
}
template <typename F> static unsigned __match_any_sync(unsigned, F x) {
    static OF_BLOCK F kept[emulated::MOST];
    int me = emulated::current, warp = me / 32 * 32;
    kept[me] = x;
    __syncwarp();
    unsigned like = 0;
    for (int lane = 0; lane < 32; lane++) like |= (unsigned)(kept[warp + lane] == x) << lane;
    __syncwarp();
    return like;
}
static unsigned __ballot_sync(unsigned, bool x) {
    unsigned like = __match_any_sync(0, x);
    return x ? like : ~like;
}
static int __popc(unsigned x) { return __builtin_popcount(x); }
template <typename F> static F __ldcg(const F* from) { return *from; }
static unsigned atomicAdd(unsigned* at, int x) { unsigned old = *at; *at += x; return old; }
static unsigned long long atomicAdd(unsigned long long* at, unsigned long long x) { unsigned long long old = *at; *at += x; return old; }
static unsigned long long atomicMin(unsigned long long* at, unsigned long long x) { unsigned long long old = *at; *at = min(old, x); return old; }
static unsigned atomicCAS(unsigned* at, unsigned old, unsigned x) { unsigned was = *at; if (was == old) *at = x; return was; }
template <typename To, typename From> static To bits_of(From x) {
    static_assert(sizeof(From) == sizeof(To), "bits of the same size");
    To y;
    memcpy(&y, &x, sizeof y);
    return y;
}
static double __longlong_as_double(long long x) { return bits_of<double>(x); }
static long long __double_as_longlong(double x) { return bits_of<long long>(x); }
static long long __double2ll_rn(double x) { return llrint(x); }
static unsigned __float_as_uint(float x) { return bits_of<unsigned>(x); }
static float __uint_as_float(unsigned x) { return bits_of<float>(x); }

// ---- What kernels/ptx.cu has for a GPU.

static void after_previous() {}
static void barrier(int which, int threads) {
    static OF_BLOCK struct { int here; unsigned round; } barriers[16];
    auto& b = barriers[which];
    unsigned round = b.round;
    if (++b.here == threads) b.here = 0, b.round++;
    while (b.round == round) wait_as(emulated::READY);
}
static void team_arrive() {
    emulated::fibres.of[emulated::current].arrivals++;
    __atomic_add_fetch(&emulated::team_arrivals, 1, __ATOMIC_SEQ_CST);
}
// Nobody arrives again before all have.
static void team_wait() {
    unsigned long all = emulated::fibres.of[emulated::current].arrivals * emulated::team_size * blockDim.x;
    while (__atomic_load_n(&emulated::team_arrivals, __ATOMIC_SEQ_CST) < all) wait_as(emulated::READY);
}
static const void* of_member(const void* own, int member) {
    return emulated::team_memory[member] + ((const unsigned char*)own - shared_bytes);
}
static void copy_16(void* to, const void* from, int bytes) {
    if ((uintptr_t)to % 16 || (bytes && (uintptr_t)from % 16)) emulated::fail("a copy of 16 bytes that does not start at one");
    memset(to, 0, 16);
    memcpy(to, from, bytes);
}
static void copy_16(void* to, const void* from) { copy_16(to, from, 16); }
template <typename F> static void copy_number(F* to, const F* from, bool is_there) { *to = is_there ? *from : F(0); }
static void copies_together() {}
template <int LEFT> static void copies_wait() {}
namespace emulated {
struct Phase { uint16_t arrivals, left; uint32_t parity; };
}
static void phase_init(unsigned long long* at, int arrivals) { *(emulated::Phase*)at = {(uint16_t)arrivals, (uint16_t)arrivals, 0}; }
static void phase_arrive(unsigned long long* at) {
    emulated::Phase* phase = (emulated::Phase*)at;
    if (--phase->left == 0) phase->left = phase->arrivals, phase->parity ^= 1;
}
static void phase_arrive_copied(unsigned long long* at) { phase_arrive(at); }
static void phase_wait(unsigned long long* at, unsigned parity) {
    while (((volatile emulated::Phase*)at)->parity == parity) wait_as(emulated::READY);
}
// C += A B of a warp; `get` makes doubles of a lane's elements of a factor.
template <typename F, typename A, typename B, typename Get> static void mma_of(F* c, const A* a, const B* b, int n_k, Get get) {
    static OF_BLOCK double kept_a[emulated::MOST][8], kept_b[emulated::MOST][4];
    int me = emulated::current, warp = me / 32 * 32, lane = me % 32;
    get(kept_a[me], a, 4), get(kept_b[me], b, 2);
    __syncwarp();
    for (int e = 0; e < 4; e++) {
        int row = lane / 4 + e / 2 * 8, col = lane % 4 * 2 + e % 2;
        double sum = c[e];
        for (int k = 0; k < n_k; k++) {
            int from_a = warp + row % 8 * 4 + k % 8 % 4, from_b = warp + col * 4 + k % 8 % 4, half = k / 8;
            sum += kept_a[from_a][(row / 8 + k % 8 / 4 * 2) + 4 * half] * kept_b[from_b][k % 8 / 4 + 2 * half];
        }
        c[e] = (F)sum;
    }
    __syncwarp();
}
static void mma_f64(double* c, const double* a, const double* b) {
    mma_of(c, a, b, 8, [](double* to, const double* x, int n) { for (int i = 0; i < n; i++) to[i] = x[i]; });
}
static unsigned to_tf32(float x) { return (bits_of<unsigned>(x) + 0x1000u) & 0xffffe000u; }
static void mma_tf32(float* c, const unsigned* a, const unsigned* b) {
    mma_of(c, a, b, 8, [](double* to, const unsigned* x, int n) { for (int i = 0; i < n; i++) to[i] = bits_of<float>(x[i] & 0xffffe000u); });
}
static unsigned to_bf16(float x, float y) {
    auto half = [](float x) { unsigned u = bits_of<unsigned>(x); return (u + 0x7fffu + (u >> 16 & 1)) >> 16; };
    return half(y) << 16 | half(x);
}
static void mma_bf16(float* c, const unsigned* a, const unsigned* b) {
    mma_of(c, a, b, 16, [](double* to, const unsigned* x, int n) {
        for (int i = 0; i < n; i++) to[i] = bits_of<float>(x[i] << 16), to[i + n] = bits_of<float>(x[i] & 0xffff0000u);
    });
}

// ---- Starts.

namespace emulated {
// Arguments of a kernel, copied when it is started.
template <typename... A> struct Kept;
template <> struct Kept<> {
    Kept(void**) {}
    template <typename F, typename... B> void give_to(F f, const B&... all) const { f(all...); }
};
template <typename H, typename... A> struct Kept<H, A...> {
    H first;
    Kept<A...> others;
    Kept(void** from) : first(*(H*)from[0]), others(from + 1) {}
    template <typename F, typename... B> void give_to(F f, const B&... before) const { others.give_to(f, before..., first); }
};
template <typename... A> struct BoundTo : Bound {
    void (*f)(A...);
    Kept<A...> kept;
    BoundTo(void (*f)(A...), void** from) : f(f), kept(from) {}
    void run() const override { kept.give_to(f); }
};
template <typename... A> static Bound* bind_to(void (*f)(A...), void** from) { return new BoundTo<A...>(f, from); }
struct Entry { const char* name; Bound* (*bind)(void**); };
static Entry* entry_of(const char* name);
}  // namespace emulated
#define KERNEL(name) {#name, [](void** from) { return emulated::bind_to(name, from); }},

extern "C" void* emulated_kernel(const char* name) { return emulated::entry_of(name); }
extern "C" void* emulated_bind(void* entry, void** from) { return ((emulated::Entry*)entry)->bind(from); }
extern "C" void emulated_free(void* bound) { delete (emulated::Bound*)bound; }
// Tests beside each other run kernels at the same time, but each of them one after the other.
static pthread_mutex_t running = PTHREAD_MUTEX_INITIALIZER;
extern "C" void emulated_run(void* bound, unsigned grid, unsigned threads, unsigned shared, unsigned team) {
    if (threads > emulated::MOST || shared > sizeof shared_bytes) emulated::fail("more threads or shared memory than a block can have");
    if (team > 16 || grid % team) emulated::fail("a grid that is no whole number of clusters");
#ifndef EMULATED_CLUSTERS
    if (team > 1) emulated::fail("this kernel does not come in clusters");
#endif
    pthread_mutex_lock(&running);
    emulated::kernel = (const emulated::Bound*)bound;
    gridDim.x = grid, blockDim.x = threads, emulated::team_size = team;
    for (unsigned first = 0; first < grid; first += team) {
        if (team > 1) {
            emulated::run_team(first, threads, shared);
            continue;
        }
        blockIdx.x = first;
        memset(shared_bytes, 0x7b, shared);  // nobody may rely on what is there
        emulated::run_block(threads);
    }
    pthread_mutex_unlock(&running);
}
