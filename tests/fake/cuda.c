/* A CUDA driver, an NVRTC, an NCCL and an NVML without a GPU, for tests of what the host does: memory is host memory, kernels do nothing, or
 * run on the CPU (FAKE_CUDA_RUNS): then NVRTC is the C++ compiler, with emulate.h before the source.
 *
 *   FAKE_CUDA_RUNS      kernels run
 *   FAKE_CUDA_VERSION   version of CUDA that the driver knows (default 13000)
 *   FAKE_CUDA_DEVICES   number of GPUs (default 1)
 *   FAKE_CUDA_MEMORY    bytes of GPU memory (default 2 GB)
 *   FAKE_CUDA_LOST      the GPU is lost at this start of a recorded step; from then on everything fails
 *   FAKE_CUDA_LOST_AT   the same at this start of a kernel by itself
 *   FAKE_NVML_BUSY      percent of the time in which the GPU is busy (default: it does not tell)
 *   FAKE_NCCL_PATIENCE  seconds after which a sum over ranks hangs for ever, and its GPU with it (default 60)
 *   FAKE_CUDA_COUNTS    file to which bytes of page-locked memory and copies from it are written at the end
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

typedef uint64_t ptr;
#define OOM 2
#define LOST 719

static size_t number(const char *name, size_t fallback) {
    const char *text = getenv(name);
    return text ? strtoull(text, NULL, 10) : fallback;
}

static size_t used, locked_bytes, locked_copies, steps, kernels;
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
int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
    *device = &used;
    return strcmp(uuid, "GPU-00000000-0000-0000-0000-000000000000") ? 6 : 0;
}
int nvmlDeviceGetUtilizationRates(void *device, unsigned *rates) {
    rates[0] = (unsigned)number("FAKE_NVML_BUSY", 0), rates[1] = 0;
    return getenv("FAKE_NVML_BUSY") ? 0 : 3;
}
int nvmlDeviceGetMemoryInfo(void *device, unsigned long long *memory) {
    memory[0] = number("FAKE_CUDA_MEMORY", 2000000000), memory[1] = memory[0] - used, memory[2] = used;
    return 0;
}
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
    /* A GPU's new memory holds anything. */
    if (getenv("FAKE_CUDA_RUNS")) memset((char *)memory + 256, 0x7b, bytes);
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
int cuStreamCreate(void **stream, unsigned flags) { *stream = &used; return 0; }
/* A sum over ranks that will never be complete: nothing that was started after it ends, until it is given up. */
static volatile int hangs;
static void wait_for_work(void) { while (hangs) usleep(1000); }
int cuStreamSynchronize(void *stream) { ALIVE; wait_for_work(); return 0; }
int cuStreamWaitEvent(void *stream, void *event, unsigned flags) { ALIVE; return 0; }
/* Kernels that run on the CPU: their library, and one of them. */
struct module {
    void *(*kernel)(const char *), *(*bind)(void *, void **);
    void (*run)(void *, unsigned, unsigned, unsigned, unsigned), (*drop)(void *);
};
struct function { struct module *of; void *entry; };
/* A kernel, or work of another library that can fail, that was started or will be when its graph is. */
struct start { struct module *of; void *bound; unsigned grid, threads, shared, team; int (*work)(void *); void *argument; };
struct graph { struct start *starts; size_t n; };
static __thread struct graph *recording;
int cuStreamBeginCapture_v2(void *stream, unsigned mode) {
    ALIVE;
    recording = calloc(1, sizeof *recording);
    return 0;
}
int cuStreamEndCapture(void *stream, void **graph) { *graph = recording, recording = NULL; return 0; }
int cuGraphInstantiateWithFlags(void **exec, void *graph, uint64_t flags) { *exec = graph; return 0; }
static void run(const struct start *start) {
    if (hangs) return;
    if (start->work) {
        hangs = start->work(start->argument);
        return;
    }
    start->of->run(start->bound, start->grid, start->threads, start->shared, start->team);
}
static void add(const struct start *start) {
    recording->starts = realloc(recording->starts, ++recording->n * sizeof *start);
    recording->starts[recording->n - 1] = *start;
}
/* For other libraries of ours. */
void fake_start(int (*work)(void *), void *argument) {
    struct start start = {.work = work, .argument = argument};
    if (recording) add(&start);
    else run(&start);
}
void fake_release(void) { hangs = 0; }
struct filling { ptr at; unsigned char value; size_t bytes; };
static int fill(void *argument) {
    struct filling *filling = argument;
    if (filling->value || getenv("FAKE_CUDA_RUNS")) memset((void *)filling->at, filling->value, filling->bytes);
    return 0;
}
int cuMemsetD8Async(ptr at, unsigned char value, size_t bytes, void *stream) {
    ALIVE;
    struct filling filling = {at, value, bytes}, *kept;
    if (!recording) return fill(&filling);
    kept = malloc(sizeof *kept), *kept = filling;
    fake_start(fill, kept);
    return 0;
}
int cuGraphLaunch(void *exec, void *stream) {
    struct graph *graph = exec;
    if (++steps == number("FAKE_CUDA_LOST", 0)) is_lost = 1;
    ALIVE;
    for (size_t k = 0; k < graph->n; k++) run(graph->starts + k);
    return 0;
}
int cuGraphExecDestroy(void *exec) { return 0; }
int cuGraphDestroy(void *graph) { return 0; }
int cuEventCreate(void **event, unsigned flags) { *event = &used; return 0; }
int cuEventRecord(void *event, void *stream) { ALIVE; return 0; }
int cuEventSynchronize(void *event) { ALIVE; wait_for_work(); return 0; }
int cuEventQuery(void *event) { ALIVE; return hangs ? 600 : 0; }
int cuEventElapsedTime(float *ms, void *a, void *b) { *ms = 0; return 0; }
int cuEventDestroy_v2(void *event) { return 0; }
int cuModuleLoadData(void **module, const void *code) {
    *module = &used;
    if (!getenv("FAKE_CUDA_RUNS")) return 0;
    void *library = dlopen(code, RTLD_NOW | RTLD_LOCAL);
    if (!library) return fprintf(stderr, "%s\n", dlerror()), 1;
    struct module *made = *module = calloc(1, sizeof *made);
    made->kernel = dlsym(library, "emulated_kernel"), made->bind = dlsym(library, "emulated_bind");
    made->run = dlsym(library, "emulated_run"), made->drop = dlsym(library, "emulated_free");
    return 0;
}
int cuModuleGetFunction(void **function, void *module, const char *name) {
    struct function *made = *function = calloc(1, sizeof *made);
    if (!getenv("FAKE_CUDA_RUNS")) return 0;
    made->of = module, made->entry = made->of->kernel(name);
    return !made->entry;
}
int cuFuncSetAttribute(void *function, int which, int value) { return 0; }
int cuFuncGetAttribute(int *value, int which, void *function) { *value = 0; return 0; }
struct attribute { unsigned id, padding, value[16]; };
struct config { unsigned grid[3], block[3], shared; void *stream; const struct attribute *attributes; unsigned n_attributes; };
int cuLaunchKernelEx(const struct config *config, struct function *function, void **arguments, void **extra) {
    if (++kernels == number("FAKE_CUDA_LOST_AT", 0)) is_lost = 1;
    ALIVE;
    if (!function->of) return 0;
    void *bound = function->of->bind(function->entry, arguments);
    struct start start = {function->of, bound, config->grid[0], config->block[0], config->shared, 1, NULL, NULL};
    for (unsigned k = 0; k < config->n_attributes; k++)
        if (config->attributes[k].id == 4) start.team = config->attributes[k].value[0]; /* the size of a cluster */
    if (recording) return add(&start), 0;
    run(&start);
    function->of->drop(bound);
    return 0;
}
int cuGetErrorName(int code, const char **out) {
    *out = code == OOM ? "CUDA_ERROR_OUT_OF_MEMORY" : code == LOST ? "CUDA_ERROR_LAUNCH_FAILED" : "CUDA_ERROR";
    return 0;
}
int cuGetErrorString(int code, const char **out) {
    *out = code == OOM ? "out of memory" : code == LOST ? "unspecified launch failure" : "an error";
    return 0;
}

int nvrtcVersion(int *major, int *minor) { *major = 13, *minor = 0; return 0; }
/* Kernels of the source, as entries of a table: those with a name of their own, and those that macros of product.cu make. Whether
 * some of them come in clusters. */
static int write_entries(FILE *out, const char *source) {
    int clusters = 0;
    fputs("namespace emulated {\nstatic Entry entries[] = {\n", out);
    for (const char *at = source; (at = strstr(at, "__global__ void")); ) {
        char name[64];
        at += strlen("__global__ void");
        at += strspn(at, " \n");
        if (!strncmp(at, "__launch_bounds__", 17)) {
            int depth = 0;
            for (at += 17; *at && (*at != ')' || --depth); at++) depth += *at == '(';
            at += 1 + strspn(at + 1, " \n\\");
        }
        if (sscanf(at, "%63[a-z0-9_]", name) == 1 && strcmp(name, "name")) fprintf(out, "KERNEL(%s)\n", name);
    }
    for (const char *at = source; (at = strstr(at, "\nINSTANCE(")); at++) {
        char name[32], kind[32];
        if (sscanf(at, "\nINSTANCE(%31[a-z_0-9], %31[a-z_0-9]", name, kind) != 2) continue;
        fprintf(out, "KERNEL(%s_%s)\n", name, kind);
        clusters |= strstr(kind, "_team") != NULL;
    }
    fputs("};\nstatic Entry* entry_of(const char* name) {\n    for (Entry& e : entries)\n"
          "        if (!strcmp(e.name, name)) return &e;\n    return nullptr;\n}\n}\n", out);
    return clusters;
}

/* The library that this thread asked for last. */
static __thread char library[4096];
int nvrtcCreateProgram(void **program, const char *source, const char *name, int n, const char **h, const char **i) {
    *program = strdup(source);
    return 0;
}
int nvrtcDestroyProgram(void **program) {
    free(*program);
    return 0;
}
/* FNV-1a */
static uint64_t hash_of(uint64_t hash, const char *text) {
    for (; *text; text++) hash = (hash ^ (unsigned char)*text) * 0x100000001b3;
    return hash;
}
static uint64_t hash_of_file(uint64_t hash, const char *path) {
    char text[4097];
    size_t n;
    FILE *file = fopen(path, "r");
    while (file && (n = fread(text, 1, 4096, file))) text[n] = 0, hash = hash_of(hash, text);
    if (file) fclose(file);
    return hash;
}
/* Libraries lie beside EMULATE_H by what they are made of, for all programs that need the same. */
int nvrtcCompileProgram(void *source, int n, const char **options) {
    if (!getenv("FAKE_CUDA_RUNS")) return 0;
    static int made;
    char file[4096], own[4096], *arguments[200] = {"c++", "-std=c++17", "-O1", "-w", "-shared", "-fPIC", "-o", own};
    int count = 8, status, key = __sync_fetch_and_add(&made, 1);
    int folder = (int)(strrchr(EMULATE_H, '/') - EMULATE_H);
    uint64_t hash = hash_of(hash_of_file(0xcbf29ce484222325, EMULATE_H), source);
    for (int k = 0; k < n && count < 197; k++)
        if (!strncmp(options[k], "-D", 2)) hash = hash_of(hash, arguments[count++] = (char *)options[k]);
    snprintf(library, sizeof library, "%.*s/%016llx.so", folder, EMULATE_H, (unsigned long long)hash);
    if (!access(library, R_OK)) return 0;
    snprintf(file, sizeof file, "%.*s/kernels-%d-%d.cpp", folder, EMULATE_H, getpid(), key);
    snprintf(own, sizeof own, "%.*s/kernels-%d-%d.so", folder, EMULATE_H, getpid(), key);
    FILE *out = fopen(file, "w");
    if (!out) return 1;
    fprintf(out, "#include \"%s\"\n%s\n", EMULATE_H, (const char *)source);
    if (write_entries(out, source)) arguments[count++] = "-DEMULATED_CLUSTERS";
    fclose(out);
    arguments[count++] = file;
    pid_t child = fork();
    if (!child) execvp("c++", arguments), _exit(127);
    if (waitpid(child, &status, 0) < 0 || status) return 1;
    unlink(file);
    return rename(own, library) != 0;
}
int nvrtcGetProgramLogSize(void *program, size_t *size) { *size = 0; return 0; }
int nvrtcGetProgramLog(void *program, char *log) { return 0; }
/* The machine code is the name of the library. */
static const char *code(void) { return getenv("FAKE_CUDA_RUNS") ? library : "fake"; }
int nvrtcGetCUBINSize(void *program, size_t *size) { *size = strlen(code()) + 1; return 0; }
int nvrtcGetCUBIN(void *program, char *out) { strcpy(out, code()); return 0; }

/* ---- NCCL: ranks of one machine share a file; sums are made in the order of ranks. */
#define MOST_RANKS 16
#define MOST_NUMBERS 65536
struct board { volatile int written[MOST_RANKS], read[MOST_RANKS]; double numbers[MOST_RANKS][MOST_NUMBERS]; };
struct comm { int rank, size, round; struct board *board; };
struct sum { struct comm *comm; double *x; size_t n; };
struct identity { char path[128]; };
static void *driver(const char *name) { return dlsym(dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD), name); }
/* Whether all ranks have come to a round, within the patience. */
static int all_came(volatile int *rounds, const struct comm *comm) {
    for (size_t tries = 0; tries < 10000 * number("FAKE_NCCL_PATIENCE", 60); tries++) {
        int came = 0;
        for (int k = 0; k < comm->size; k++) came += rounds[k] >= comm->round;
        if (came == comm->size) return 1;
        usleep(100);
    }
    return 0;
}
static int add_up(void *argument) {
    struct sum *sum = argument;
    struct comm *comm = sum->comm;
    struct board *board = comm->board;
    /* Everyone has read the last sums. */
    if (!all_came(board->read, comm)) return 1;
    comm->round++;
    memcpy(board->numbers[comm->rank], sum->x, sum->n * sizeof(double));
    __sync_synchronize();
    board->written[comm->rank] = comm->round;
    if (!all_came(board->written, comm)) return 1;
    for (size_t i = 0; i < sum->n; i++) {
        sum->x[i] = board->numbers[0][i];
        for (int k = 1; k < comm->size; k++) sum->x[i] += board->numbers[k][i];
    }
    __sync_synchronize();
    board->read[comm->rank] = comm->round;
    return 0;
}
int ncclGetVersion(int *version) { *version = 22803; return 0; }
int ncclGetUniqueId(struct identity *id) {
    static int made;
    const char *folder = getenv("TMPDIR");
    snprintf(id->path, sizeof id->path, "%s/fake-nccl-%d-%d", folder ? folder : "/tmp", getpid(), made++);
    return 0;
}
int ncclCommInitRank(void **out, int size, struct identity id, int rank) {
    struct comm *comm = *out = calloc(1, sizeof *comm);
    int file = open(id.path, O_RDWR | O_CREAT, 0600);
    if (file < 0 || size > MOST_RANKS || ftruncate(file, sizeof(struct board))) return 2;
    comm->rank = rank, comm->size = size;
    comm->board = mmap(NULL, sizeof(struct board), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    /* All have opened it before its name goes. */
    comm->round = 1, comm->board->read[rank] = 1;
    if (!all_came(comm->board->read, comm)) return 2;
    unlink(id.path);
    return 0;
}
int ncclCommDestroy(void *comm) { return 0; }
int ncclCommAbort(void *comm) { ((void (*)(void))driver("fake_release"))(); return 0; }
int ncclCommGetAsyncError(void *comm, int *code) { *code = 0; return 0; }
int ncclAllReduce(void *from, void *to, size_t n, int type, int op, void *comm, void *stream) {
    struct sum *sum = malloc(sizeof *sum);
    *sum = (struct sum){comm, to, n};
    if (n > MOST_NUMBERS || type != 8 || op != 0 || from != to) return 4;
    ((void (*)(int (*)(void *), void *))driver("fake_start"))(add_up, sum);
    return 0;
}
