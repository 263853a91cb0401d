/* A CUDA driver and an NVRTC without a GPU, for tests of what the host does: memory is host memory, kernels do nothing.
 *
 *   FAKE_CUDA_VERSION   version of CUDA that the driver knows (default 13000)
 *   FAKE_CUDA_DEVICES   number of GPUs (default 1)
 *   FAKE_CUDA_MEMORY    bytes of GPU memory (default 2 GB)
 *   FAKE_CUDA_LOST      the GPU is lost at this start of a recorded step; from then on everything fails
 *   FAKE_CUDA_COUNTS    file to which bytes of page-locked memory and copies from it are written at the end
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef uint64_t ptr;
#define OOM 2
#define LOST 719

static size_t number(const char *name, size_t fallback) {
    const char *text = getenv(name);
    return text ? strtoull(text, NULL, 10) : fallback;
}

static size_t used, locked_bytes, locked_copies, steps;
static int is_lost;
static struct { char *at; size_t bytes; } locked[65536];
static size_t n_locked;
/* One lock for the few numbers above: frames are prepared on several threads. */
static volatile int guard;
static void enter(void) { while (__sync_lock_test_and_set(&guard, 1)) {} }
static void leave(void) { __sync_lock_release(&guard); }
#define ALIVE if (is_lost) return LOST

__attribute__((destructor)) static void tell(void) {
    const char *path = getenv("FAKE_CUDA_COUNTS");
    /* The copy that stands in for NVRTC has nothing to tell. */
    FILE *file = path && locked_bytes ? fopen(path, "w") : NULL;
    if (!file) return;
    fprintf(file, "%zu %zu\n", locked_bytes, locked_copies);
    fclose(file);
}

int cuInit(unsigned flags) { return 0; }
int cuDriverGetVersion(int *version) { *version = (int)number("FAKE_CUDA_VERSION", 13000); return 0; }
int cuDeviceGetCount(int *n) { *n = (int)number("FAKE_CUDA_DEVICES", 1); return 0; }
int cuDeviceGet(int *device, int index) { *device = index; return 0; }
int cuDeviceGetName(char *name, int size, int device) { strncpy(name, "Fake GPU", size); return 0; }
int cuDeviceGetUuid(unsigned char *uuid, int device) { memset(uuid, device, 16); return 0; }
int cuDeviceGetAttribute(int *value, int which, int device) {
    *value = which == 75 ? 9 : which == 76 ? 0 : which == 16 ? 132 : 232448;
    return 0;
}
int cuDevicePrimaryCtxRetain(void **context, int device) { *context = &used; return 0; }
int cuCtxSetCurrent(void *context) { return 0; }
int cuDeviceGetDefaultMemPool(void **pool, int device) { *pool = &used; return 0; }
int cuMemPoolSetAttribute(void *pool, int which, void *value) { return 0; }
int cuMemGetInfo_v2(size_t *rest, size_t *total) {
    ALIVE;
    *total = number("FAKE_CUDA_MEMORY", 2000000000);
    *rest = *total - used;
    return 0;
}
static int get(ptr *out, size_t bytes) {
    size_t *memory;
    ALIVE;
    enter();
    int fits = used + bytes <= number("FAKE_CUDA_MEMORY", 2000000000);
    if (fits) used += bytes;
    leave();
    if (!fits) return OOM;
    memory = calloc(1, bytes + 256);
    memory[0] = bytes;
    *out = (ptr)memory + 256;
    return 0;
}
static int give(ptr at) {
    size_t *memory = (size_t *)(at - 256);
    if (!at) return 0;
    enter();
    used -= memory[0];
    leave();
    free(memory);
    return 0;
}
int cuMemAlloc_v2(ptr *out, size_t bytes) { return get(out, bytes); }
int cuMemFree_v2(ptr at) { return give(at); }
int cuMemAllocAsync(ptr *out, size_t bytes, void *stream) { return get(out, bytes); }
int cuMemFreeAsync(ptr at, void *stream) { return give(at); }
int cuMemHostAlloc(void **out, size_t bytes, unsigned flags) {
    ALIVE;
    *out = calloc(1, bytes);
    enter();
    locked_bytes += bytes;
    if (n_locked < 65536) locked[n_locked].at = *out, locked[n_locked++].bytes = bytes;
    leave();
    return 0;
}
int cuMemFreeHost(void *at) { return 0; }
int cuMemcpyHtoDAsync_v2(ptr to, const void *from, size_t bytes, void *stream) {
    ALIVE;
    enter();
    for (size_t k = 0; k < n_locked; k++)
        if ((char *)from >= locked[k].at && (char *)from < locked[k].at + locked[k].bytes && bytes > 4096) locked_copies++;
    leave();
    memcpy((void *)to, from, bytes);
    return 0;
}
int cuMemcpyDtoHAsync_v2(void *to, ptr from, size_t bytes, void *stream) {
    ALIVE;
    memcpy(to, (void *)from, bytes);
    return 0;
}
int cuMemsetD8Async(ptr at, unsigned char value, size_t bytes, void *stream) {
    ALIVE;
    if (value) memset((void *)at, value, bytes);
    return 0;
}
int cuStreamCreate(void **stream, unsigned flags) { *stream = &used; return 0; }
int cuStreamSynchronize(void *stream) { ALIVE; return 0; }
int cuStreamWaitEvent(void *stream, void *event, unsigned flags) { ALIVE; return 0; }
int cuStreamBeginCapture_v2(void *stream, unsigned mode) { ALIVE; return 0; }
int cuStreamEndCapture(void *stream, void **graph) { *graph = &used; return 0; }
int cuGraphInstantiateWithFlags(void **exec, void *graph, uint64_t flags) { *exec = &used; return 0; }
int cuGraphLaunch(void *exec, void *stream) {
    if (++steps == number("FAKE_CUDA_LOST", 0)) is_lost = 1;
    ALIVE;
    return 0;
}
int cuGraphExecDestroy(void *exec) { return 0; }
int cuGraphDestroy(void *graph) { return 0; }
int cuEventCreate(void **event, unsigned flags) { *event = &used; return 0; }
int cuEventRecord(void *event, void *stream) { ALIVE; return 0; }
int cuEventSynchronize(void *event) { ALIVE; return 0; }
int cuEventQuery(void *event) { ALIVE; return 0; }
int cuEventElapsedTime(float *ms, void *a, void *b) { *ms = 0; return 0; }
int cuEventDestroy_v2(void *event) { return 0; }
int cuModuleLoadData(void **module, const void *code) { *module = &used; return 0; }
int cuModuleGetFunction(void **function, void *module, const char *name) { *function = &used; return 0; }
int cuFuncSetAttribute(void *function, int which, int value) { return 0; }
int cuFuncGetAttribute(int *value, int which, void *function) { *value = 0; return 0; }
int cuLaunchKernelEx(const void *config, void *function, void **arguments, void **extra) { ALIVE; return 0; }
int cuGetErrorName(int code, const char **out) {
    *out = code == OOM ? "CUDA_ERROR_OUT_OF_MEMORY" : code == LOST ? "CUDA_ERROR_LAUNCH_FAILED" : "CUDA_ERROR";
    return 0;
}
int cuGetErrorString(int code, const char **out) {
    *out = code == OOM ? "out of memory" : code == LOST ? "unspecified launch failure" : "an error";
    return 0;
}

int nvrtcVersion(int *major, int *minor) { *major = 13, *minor = 0; return 0; }
int nvrtcCreateProgram(void **program, const char *source, const char *name, int n, const char **h, const char **i) {
    *program = &used;
    return 0;
}
int nvrtcDestroyProgram(void **program) { return 0; }
int nvrtcCompileProgram(void *program, int n, const char **options) { return 0; }
int nvrtcGetProgramLogSize(void *program, size_t *size) { *size = 0; return 0; }
int nvrtcGetProgramLog(void *program, char *log) { return 0; }
int nvrtcGetCUBINSize(void *program, size_t *size) { *size = 4; return 0; }
int nvrtcGetCUBIN(void *program, char *code) { memcpy(code, "fake", 4); return 0; }
