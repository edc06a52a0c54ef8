/* A libcuda.so.1 without a GPU: it writes down every call that an exported kernel makes.
 *
 *     cc -shared -fPIC recording_driver.c -o DIR/libcuda.so.1
 *     LD_LIBRARY_PATH=DIR RECORDING=calls.txt ./program
 *
 * RECORDING             file that calls are appended to, one a line
 * RECORDING_QUERIES     1: also those that ask something, or make a context current
 * RECORDING_CAPABILITY  compute capability, default 10.0
 * RECORDING_DEVICES     number of devices, default 1
 *
 * It refuses what a real driver was seen to refuse (docs/verification.md): any call before cuInit, a launch without a
 * context or without blocks. Like the real one it lets attributes of a kernel be set before there is a context.
 */
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, INVALID_VALUE = 1, NOT_INITIALIZED = 3, NO_DEVICE = 100, INVALID_CONTEXT = 201 };

struct attribute { int id, pad; uint32_t value[16]; };
struct launch { uint32_t grid[3], block[3], shared; void *stream; struct attribute *attributes; uint32_t count; };

static __thread int current = -1; /* device of the current context */
static int initialised;
#define NEEDS_INIT if (!initialised) return NOT_INITIALIZED

static void record(const char *format, ...) {
    const char *path = getenv("RECORDING");
    FILE *file = path ? fopen(path, "a") : NULL;
    if (!file) return;
    va_list values;
    va_start(values, format);
    vfprintf(file, format, values);
    va_end(values);
    fputc('\n', file);
    fclose(file);
}
static int number(const char *name, int otherwise) { return getenv(name) ? atoi(getenv(name)) : otherwise; }
static void query(const char *name) { if (number("RECORDING_QUERIES", 0)) record("%s", name); }

int cuInit(unsigned flags) {
    (void)flags;
    record("cuInit");
    initialised = number("RECORDING_DEVICES", 1) != 0;
    return initialised ? SUCCESS : NO_DEVICE;
}
int cuDeviceGetCount(int *count) { NEEDS_INIT; query("cuDeviceGetCount"); *count = number("RECORDING_DEVICES", 1); return SUCCESS; }
int cuDeviceGetAttribute(int *value, int attribute, int device) {
    NEEDS_INIT;
    const char *capability = getenv("RECORDING_CAPABILITY") ? getenv("RECORDING_CAPABILITY") : "10.0";
    (void)device;
    query("cuDeviceGetAttribute");
    if (attribute == 75) *value = atoi(capability);
    else if (attribute == 76) *value = atoi(strchr(capability, '.') + 1);
    else if (attribute == 97) *value = 232448; /* shared memory of a block on a B200 */
    else *value = 0;
    return SUCCESS;
}
int cuDevicePrimaryCtxRetain(void **context, int device) {
    NEEDS_INIT;
    *context = (void *)(intptr_t)(device + 1);
    record("cuDevicePrimaryCtxRetain device=%d", device);
    return SUCCESS;
}
int cuCtxGetCurrent(void **context) {
    NEEDS_INIT;
    query("cuCtxGetCurrent");
    *context = (void *)(intptr_t)(current + 1);
    return SUCCESS;
}
int cuCtxSetCurrent(void *context) {
    NEEDS_INIT;
    query("cuCtxSetCurrent");
    current = (int)(intptr_t)context - 1;
    return SUCCESS;
}
int cuCtxGetDevice(int *device) {
    NEEDS_INIT;
    query("cuCtxGetDevice");
    *device = current;
    return current < 0 ? INVALID_CONTEXT : SUCCESS;
}
int cuLibraryLoadData(void **library, const void *code, int *a, void **b, unsigned c, int *d, void **e, unsigned f) {
    NEEDS_INIT;
    (void)a; (void)b; (void)c; (void)d; (void)e; (void)f;
    *library = (void *)code;
    record("cuLibraryLoadData elf=%d", !memcmp(code, "\x7f" "ELF", 4) || !memcmp(code, "P\xed\x55\xba", 4));
    return SUCCESS;
}
int cuLibraryUnload(void *library) { (void)library; record("cuLibraryUnload"); return SUCCESS; }
int cuLibraryGetKernel(void **kernel, void *library, const char *name) {
    *kernel = library;
    record("cuLibraryGetKernel %s", name);
    return SUCCESS;
}
int cuKernelGetAttribute(int *value, int attribute, void *kernel, int device) {
    (void)attribute; (void)kernel; (void)device;
    query("cuKernelGetAttribute");
    *value = 0;
    return SUCCESS;
}
int cuKernelSetAttribute(int attribute, int value, void *kernel, int device) {
    (void)kernel;
    record("cuKernelSetAttribute device=%d attribute=%d value=%d", device, attribute, value);
    return SUCCESS;
}
int cuLaunchKernelEx(const struct launch *config, void *kernel, void **args, void **extra) {
    (void)kernel; (void)args; (void)extra;
    if (current < 0) return INVALID_CONTEXT;
    if (!config->grid[0] || !config->grid[1] || !config->grid[2]) return INVALID_VALUE;
    record("cuLaunchKernelEx device=%d grid=%u,%u,%u block=%u,%u,%u shared=%u stream=%p", current, config->grid[0],
           config->grid[1], config->grid[2], config->block[0], config->block[1], config->block[2], config->shared,
           config->stream);
    return SUCCESS;
}
int cuGetErrorName(int status, const char **name) {
    switch (status) {
        case INVALID_VALUE: *name = "CUDA_ERROR_INVALID_VALUE"; break;
        case NOT_INITIALIZED: *name = "CUDA_ERROR_NOT_INITIALIZED"; break;
        case NO_DEVICE: *name = "CUDA_ERROR_NO_DEVICE"; break;
        case INVALID_CONTEXT: *name = "CUDA_ERROR_INVALID_CONTEXT"; break;
        default: *name = "CUDA_ERROR";
    }
    return SUCCESS;
}
