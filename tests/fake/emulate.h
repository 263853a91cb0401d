// Kernels on a CPU: every thread of a block is a fibre, which runs until it waits for others. Blocks run one after the other;
// those of a cluster side by side, in threads of the operating system.
//
// This stands before the kernels' own source (cuda.c puts the two together): CUDA's words, what kernels/ptx.cu has for a GPU,
// and the loop over threads. A tensor core's product is made in double precision and rounded once, so float32 differs from a
// GPU's in its last bits.
#include <atomic>
#include <cmath>
#include <csetjmp>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <sched.h>
#include <thread>
#include <tuple>
#include <ucontext.h>
#include <utility>
#include <vector>

#define EMULATED
#define __device__
#define __global__
#define __forceinline__ inline
#define __noinline__
#define __grid_constant__
#define __launch_bounds__(...)
#define __align__(n) alignas(n)
#define __shared__ static thread_local

using std::isfinite;
using std::isnan;
template <typename F> static inline F min(F a, F b) { return b < a ? b : a; }
template <typename F> static inline F max(F a, F b) { return a < b ? b : a; }
struct int4 { int x, y, z, w; };
static struct { unsigned x; } blockDim, gridDim;
static thread_local struct { unsigned x; } threadIdx, blockIdx;
alignas(16) static thread_local unsigned char shared_bytes[1 << 18];

namespace emulated {
static void fail(const char* what) {
    fprintf(stderr, "emulated GPU: %s (block %u, thread %u)\n", what, blockIdx.x, threadIdx.x);
    abort();
}

// ---- Threads.

enum State { READY, AT_BLOCK, AT_WARP, ENDED };
static const int MOST = 1024, STACK = 1 << 16;
struct Fibre { jmp_buf at; ucontext_t begin; State state; bool has_begun; unsigned long arrivals; std::unique_ptr<char[]> stack; };
static thread_local Fibre fibres[MOST];
static thread_local jmp_buf scheduler;
static thread_local int current;
static const std::function<void()>* kernel;
static int team_size = 1;

static void wait_as(State state) {
    int me = current;
    fibres[me].state = state;
    if (!_setjmp(fibres[me].at)) _longjmp(scheduler, 1);
}
static void begin_fibre() {
    (*kernel)();
    fibres[current].state = ENDED;
    _longjmp(scheduler, 1);
}
static void resume(int which) {
    current = which, threadIdx.x = which;
    Fibre& fibre = fibres[which];
    if (_setjmp(scheduler)) return;
    if (fibre.has_begun) _longjmp(fibre.at, 1);
    fibre.has_begun = true;
    setcontext(&fibre.begin);
}
// True when all threads from `first` on wait for each other; they go on.
static bool release(int first, int count, State state) {
    int waiting = 0, ended = 0;
    for (int t = first; t < first + count; t++) waiting += fibres[t].state == state, ended += fibres[t].state == ENDED;
    if (!waiting || waiting + ended < count) return false;
    for (int t = first; t < first + count; t++)
        if (fibres[t].state == state) fibres[t].state = READY;
    return true;
}
static void run_block(int threads) {
    for (int t = 0; t < threads; t++) {
        Fibre& fibre = fibres[t];
        if (!fibre.stack) fibre.stack.reset(new char[STACK]);
        fibre.state = READY, fibre.has_begun = false, fibre.arrivals = 0;
        getcontext(&fibre.begin);
        fibre.begin.uc_stack.ss_sp = fibre.stack.get(), fibre.begin.uc_stack.ss_size = STACK, fibre.begin.uc_link = nullptr;
        makecontext(&fibre.begin, begin_fibre, 0);
    }
    for (long idle = 0;;) {
        bool any = false, goes_on = false;
        for (int t = 0; t < threads; t++)
            if (fibres[t].state == READY) any = true, resume(t);
        for (int w = 0; w < threads; w += 32) goes_on |= release(w, min(32, threads - w), AT_WARP);
        goes_on |= release(0, threads, AT_BLOCK);
        int ended = 0;
        for (int t = 0; t < threads; t++) ended += fibres[t].state == ENDED;
        if (ended == threads) return;
        if (!any && !goes_on) fail("threads wait for each other for ever");
        // Waiting in a loop for a phase is no progress; nobody does so for long, unless for blocks of other threads.
        idle = goes_on ? 0 : idle + 1;
        if (idle > (team_size > 1 ? 10000000 : 100000)) fail("threads wait for a phase for ever");
        if (team_size > 1) sched_yield();
    }
}

// ---- Clusters.

static std::atomic<unsigned long> team_arrivals;
static unsigned char* team_memory[16];
static void run_team(int first, int threads, int shared) {
    std::vector<std::thread> blocks;
    team_arrivals = 0;
    for (int member = 0; member < team_size; member++)
        blocks.emplace_back([=] {
            blockIdx.x = first + member, team_memory[member] = shared_bytes;
            memset(shared_bytes, 0x7b, shared);
            run_block(threads);
        });
    for (std::thread& block : blocks) block.join();
}

}  // namespace emulated
using emulated::wait_as;

// ---- CUDA's functions.

static void __syncthreads() { wait_as(emulated::AT_BLOCK); }
static void __syncwarp() { wait_as(emulated::AT_WARP); }
static void __threadfence() {}
template <typename F> static F __shfl_xor_sync(unsigned, F x, int mask) {
    static thread_local F kept[emulated::MOST];
    int me = emulated::current;
    kept[me] = x;
    __syncwarp();
    F other = kept[me ^ mask];
    __syncwarp();
    return other;
}
template <typename F> static unsigned __match_any_sync(unsigned, F x) {
    static thread_local F kept[emulated::MOST];
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
    static thread_local struct { int here; unsigned round; } barriers[16];
    auto& b = barriers[which];
    unsigned round = b.round;
    if (++b.here == threads) b.here = 0, b.round++;
    while (b.round == round) wait_as(emulated::READY);
}
static void team_arrive() {
    emulated::fibres[emulated::current].arrivals++;
    emulated::team_arrivals++;
}
// Nobody arrives again before all have.
static void team_wait() {
    unsigned long all = emulated::fibres[emulated::current].arrivals * emulated::team_size * blockDim.x;
    while (emulated::team_arrivals < all) wait_as(emulated::READY);
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
    static thread_local double kept_a[emulated::MOST][8], kept_b[emulated::MOST][4];
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
template <typename... A, size_t... I>
static std::function<void()> bind_at(void (*f)(A...), void** from, std::index_sequence<I...>) {
    std::tuple<A...> kept(*(A*)from[I]...);
    return [f, kept] { std::apply(f, kept); };
}
template <typename... A> static std::function<void()> bind_to(void (*f)(A...), void** from) {
    return bind_at(f, from, std::index_sequence_for<A...>());
}
struct Entry { const char* name; std::function<void()> (*bind)(void**); };
static Entry* entry_of(const char* name);
}  // namespace emulated
#define KERNEL(name) {#name, [](void** from) { return emulated::bind_to(name, from); }},

extern "C" void* emulated_kernel(const char* name) { return emulated::entry_of(name); }
extern "C" void* emulated_bind(void* entry, void** from) {
    return new std::function<void()>(((emulated::Entry*)entry)->bind(from));
}
extern "C" void emulated_free(void* bound) { delete (std::function<void()>*)bound; }
extern "C" void emulated_run(void* bound, unsigned grid, unsigned threads, unsigned shared, unsigned team) {
    if (threads > emulated::MOST || shared > sizeof shared_bytes) emulated::fail("more threads or shared memory than a block can have");
    emulated::kernel = (std::function<void()>*)bound;
    if (team > 16 || grid % team) emulated::fail("a grid that is no whole number of clusters");
    gridDim.x = grid, blockDim.x = threads, emulated::team_size = team;
    for (unsigned first = 0; team > 1 && first < grid; first += team) emulated::run_team(first, threads, shared);
    if (team > 1) return;
    for (blockIdx.x = 0; blockIdx.x < grid; blockIdx.x++) {
        memset(shared_bytes, 0x7b, shared);  // nobody may rely on what is there
        emulated::run_block(threads);
    }
}
