/* Host code of a rewritten kernel, appended to aot/cuda_runtime.c (build.py concatenates them).
 *
 *     NAME.o -> __wrap__cudaLibraryLoadData -> _cudaLibraryLoadData    with the cubin for Hopper instead of its own
 *            -> __wrap__cudaLaunchKernelEx  -> _cudaLaunchKernelEx     with tensor memory and a table of clusters
 *
 * The linker's --wrap redirects the host code's calls here. Launches are synchronous: they share one tensor memory.
 * Tensor memory is filled with NaN before each launch, so that reads of unwritten words show.
 */
#include <time.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
enum { LAUNCH_TIMEOUT = 702, NOT_READY = 600, CLUSTER_DIMENSION = 4 /* CUlaunchAttributeID */ };

/* cubin.S */
extern const char cute_fa4_hopper_cubin[] __attribute__((visibility("hidden")));
extern const uint32_t cute_fa4_hopper_scratch_bytes __attribute__((visibility("hidden")));

/* struct Control of tcgen05.cu */
static struct {
    uint64_t tensor_memory, columns, clusters;
    uint32_t refused_of_256, seed, greedy, wrong;
} control;

static struct {
    int (*cuLibraryGetGlobal)(uint64_t *, size_t *, void *, const char *);
    int (*cuMemAlloc_v2)(uint64_t *, size_t);
    int (*cuMemFree_v2)(uint64_t);
    int (*cuMemsetD32Async)(uint64_t, uint32_t, size_t, void *);
    int (*cuMemcpyHtoDAsync_v2)(uint64_t, const void *, size_t, void *);
    int (*cuMemcpyDtoH_v2)(void *, uint64_t, size_t);
    int (*cuStreamQuery)(void *);
    int (*cuCtxSynchronize)(void);
} more;

static void *hopper_library;
static pthread_mutex_t launching = PTHREAD_MUTEX_INITIALIZER;
static struct { uint64_t tensor_memory, columns, clusters; size_t ctas; } room[MAX_DEVICES];
static struct { uint64_t clusters; size_t count; } last; /* of the last launch */
static double patience_seconds = 300;

#undef TRY
#define TRY_(what, call)                                       \
    do {                                                       \
        int status_ = call;                                    \
        if (status_ != SUCCESS) return failed(status_, what);  \
    } while (0)
#define MORE(function, ...) TRY_(#function, more.function(__VA_ARGS__))

static int find_more(void) {
    if (more.cuCtxSynchronize) return SUCCESS;
    void *handle = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
#define FIND_MORE(name)                                                                   \
    if (!handle || !(more.name = (__typeof__(more.name))dlsym(handle, #name)))            \
        return failed(NOT_INITIALIZED, "finding " #name " in libcuda.so.1");
    FIND_MORE(cuLibraryGetGlobal) FIND_MORE(cuMemAlloc_v2) FIND_MORE(cuMemFree_v2) FIND_MORE(cuMemsetD32Async)
    FIND_MORE(cuMemcpyHtoDAsync_v2) FIND_MORE(cuMemcpyDtoH_v2) FIND_MORE(cuStreamQuery) FIND_MORE(cuCtxSynchronize)
    return SUCCESS;
}

/* --- what Python calls (load.py) ---------------------------------------------------------------- */

/* For the launches that follow: chance of refusals, its seed, clusters that claim before the others begin, and
 * whether grants name wrong clusters. */
EXPORT void cute_fa4_hopper_claims(uint32_t refused_of_256, uint32_t seed, uint32_t greedy, uint32_t wrong) {
    control.wrong = wrong;
    control.refused_of_256 = refused_of_256;
    control.seed = seed;
    control.greedy = greedy;
}

EXPORT void cute_fa4_hopper_patience(double seconds) { patience_seconds = seconds; }

/* The table of clusters after the last launch: its length, and at most `size` words of it. */
EXPORT int64_t cute_fa4_hopper_clusters(uint32_t *words, size_t size) {
    size_t count = last.count < size ? last.count : size;
    if (count && more.cuMemcpyDtoH_v2(words, last.clusters, 4 * count) != SUCCESS) return -1;
    return (int64_t)last.count;
}

/* --- loading and launching ---------------------------------------------------------------------- */

HIDDEN int __wrap__cudaLibraryLoadData(void **library, const void *cubin, int *jit_options, void **jit_values,
                                       unsigned jit_count, int *options, void **values, unsigned count) {
    (void)cubin; (void)jit_options; (void)jit_values; (void)jit_count;
    if (hopper_library) {
        *library = hopper_library;
        return SUCCESS;
    }
    int status = _cudaLibraryLoadData(library, cute_fa4_hopper_cubin, NULL, NULL, 0, options, values, count);
    if (status == SUCCESS) hopper_library = *library;
    return status;
}

static int make_room(int device, size_t ctas) {
    if (room[device].ctas >= ctas) return SUCCESS;
    uint64_t *memories[] = {&room[device].tensor_memory, &room[device].columns, &room[device].clusters};
    size_t bytes[] = {ctas << 18, 4 * ctas, 4 * (ctas + 1)};
    room[device].ctas = 0;
    for (int i = 0; i < 3; i++) {
        if (*memories[i]) MORE(cuMemFree_v2, *memories[i]);
        *memories[i] = 0;
        TRY_("memory for the tensor memory of all CTAs, 256 KiB each: cuMemAlloc", more.cuMemAlloc_v2(memories[i], bytes[i]));
    }
    room[device].ctas = ctas;
    return SUCCESS;
}

static size_t ctas_of_cluster(const struct runtime_config *config) {
    const struct { uint32_t id, pad, value[16]; } *attribute = config->attributes;
    for (uint32_t i = 0; i < config->attribute_count; i++)
        if (attribute[i].id == CLUSTER_DIMENSION && attribute[i].value[0])
            return (size_t)attribute[i].value[0] * attribute[i].value[1] * attribute[i].value[2];
    return 1;
}

static int wait_for(void *stream) {
    struct timespec begin, now;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    for (;;) {
        int status = more.cuStreamQuery(stream);
        if (status == SUCCESS) return SUCCESS;
        if (status != NOT_READY) return failed(status, "the kernel");
        clock_gettime(CLOCK_MONOTONIC, &now);
        if ((double)(now.tv_sec - begin.tv_sec) + 1e-9 * (double)(now.tv_nsec - begin.tv_nsec) > patience_seconds) {
            snprintf(message, sizeof message, "the kernel has not ended after %.0f s: it hangs", patience_seconds);
            return LAUNCH_TIMEOUT;
        }
        usleep(20);
    }
}

static int launch_locked(const struct runtime_config *config, void *kernel, void **args) {
    int device = 0;
    void *context = NULL;
    TRY_("cuCtxGetCurrent", driver.cuCtxGetCurrent(&context));
    if (!context) {
        int status = primary_context(&context, 0);
        if (status) return status;
        TRY_("cuCtxSetCurrent", driver.cuCtxSetCurrent(context));
    }
    TRY_("cuCtxGetDevice", driver.cuCtxGetDevice(&device));
    if (device < 0 || device >= MAX_DEVICES) return failed(INVALID_DEVICE, "cuCtxGetDevice");
    int status = find_more();
    size_t ctas = (size_t)config->grid[0] * config->grid[1] * config->grid[2];
    if (!status) status = make_room(device, ctas);
    if (status) return status;
    control.tensor_memory = room[device].tensor_memory;
    control.columns = room[device].columns;
    control.clusters = room[device].clusters;
    last.clusters = control.clusters;
    last.count = ctas / ctas_of_cluster(config);
    uint64_t symbol = 0;
    size_t bytes = 0;
    MORE(cuLibraryGetGlobal, &symbol, &bytes, hopper_library, "cute_fa4_control");
    if (bytes < sizeof control) return failed(NOT_INITIALIZED, "the size of cute_fa4_control");
    MORE(cuMemsetD32Async, control.tensor_memory, 0xffffffff, ctas << 16, config->stream);
    MORE(cuMemsetD32Async, control.columns, 0, ctas, config->stream);
    MORE(cuMemsetD32Async, control.clusters, 0, ctas + 1, config->stream);
    MORE(cuMemcpyHtoDAsync_v2, symbol, &control, sizeof control, config->stream);
    struct runtime_config with_scratch = *config;
    if (cute_fa4_hopper_scratch_bytes) /* mbarriers of 8 bytes, after everything else */
        with_scratch.dynamic_shared_bytes =
            (with_scratch.dynamic_shared_bytes + 7u) / 8u * 8u + cute_fa4_hopper_scratch_bytes;
    status = _cudaLaunchKernelEx(&with_scratch, kernel, args);
    return status ? status : wait_for(config->stream);
}

HIDDEN int __wrap__cudaLaunchKernelEx(const struct runtime_config *config, void *kernel, void **args) {
    pthread_mutex_lock(&launching);
    message[0] = 0;
    int status = launch_locked(config, kernel, args);
    pthread_mutex_unlock(&launching);
    return status;
}
