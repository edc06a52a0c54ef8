/* The C functions that host code compiled by the CuTe DSL calls, on the CUDA driver alone.
 *
 *     NAME.o -> _cudaLibraryLoadData, _cudaLaunchKernelEx, ... (here) -> libcuda.so.1, opened at the first call
 *
 * Linked into every exported library, hidden: a deployment needs neither the compiler's runtime library nor a CUDA
 * toolkit. The driver is opened at run time so that libraries load, and say what is missing, on machines without one.
 * CUDA driver API: https://docs.nvidia.com/cuda/cuda-driver-api/
 *
 * Kernels are loaded once a process, and prepared for a device when they are first launched on it: the other devices
 * of the machine get no context.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#ifndef CUTE_FA4_MAJOR /* compute capability that the cubin is for */
#error "define CUTE_FA4_MAJOR, CUTE_FA4_MINOR and CUTE_FA4_ARCH"
#endif

#define HIDDEN __attribute__((visibility("hidden")))
#define MAX_DEVICES 64

/* CUresult; the numbers of cudaError_t are others, so no caller compares them */
enum { SUCCESS = 0, NOT_INITIALIZED = 3, INVALID_DEVICE = 101, INVALID_CONTEXT = 201, NO_BINARY_FOR_GPU = 209 };
enum { RAISED = -1 }; /* the caller's error is set already */
enum { ATTRIBUTE_MAJOR = 75, ATTRIBUTE_MINOR = 76 }; /* CUdevice_attribute */

/* cudaLaunchConfig_t, as the host code fills it */
struct runtime_config {
    uint32_t grid[3], block[3];
    size_t dynamic_shared_bytes;
    void *stream;
    void *attributes; /* cudaLaunchAttribute[] has the layout and the numbers of CUlaunchAttribute[] */
    uint32_t attribute_count;
};

/* CUlaunchConfig */
struct driver_config {
    uint32_t grid[3], block[3];
    uint32_t shared_bytes;
    void *stream;
    void *attributes;
    uint32_t attribute_count;
};

static struct {
    int (*cuInit)(unsigned);
    int (*cuDeviceGetCount)(int *);
    int (*cuDeviceGetAttribute)(int *, int, int);
    int (*cuDevicePrimaryCtxRetain)(void **, int);
    int (*cuCtxGetCurrent)(void **);
    int (*cuCtxSetCurrent)(void *);
    int (*cuCtxGetDevice)(int *);
    int (*cuLibraryLoadData)(void **, const void *, int *, void **, unsigned, int *, void **, unsigned);
    int (*cuLibraryUnload)(void *);
    int (*cuLibraryGetKernel)(void **, void *, const char *);
    int (*cuKernelGetAttribute)(int *, int, void *, int);
    int (*cuKernelSetAttribute)(int, int, void *, int);
    int (*cuLaunchKernelEx)(const struct driver_config *, void *, void **, void **);
    int (*cuGetErrorName)(int, const char **);
} driver;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_int driver_open;
static atomic_int ready; /* the library is loaded, its kernel known */
static atomic_int prepared[MAX_DEVICES];
static void **library_slot;
static int (*load_to_device)(void **slot, int device);
static void *contexts[MAX_DEVICES]; /* primary contexts that were retained here */
static __thread char message[512];
static __thread int no_context; /* the caller had no context before _cudaSetDevice */

static int failed(int status, const char *what) {
    const char *name = NULL;
    if (driver.cuGetErrorName) driver.cuGetErrorName(status, &name);
    if (!message[0]) snprintf(message, sizeof message, "%s failed: %s (%d)", what, name ? name : "unknown error", status);
    return status;
}

#define TRY(call)                                              \
    do {                                                       \
        int status_ = driver.call;                             \
        if (status_ != SUCCESS) return failed(status_, #call); \
    } while (0)

static int open_driver_locked(void) {
    if (atomic_load(&driver_open)) return SUCCESS;
    void *handle = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!handle) {
        const char *why = dlerror();
        snprintf(message, sizeof message,
                 "the CUDA driver cannot be opened: %s; install the NVIDIA driver, or start the container with access "
                 "to the GPU", why ? why : "libcuda.so.1");
        return NOT_INITIALIZED;
    }
#define FIND(name)                                                                                                   \
    if (!(driver.name = (__typeof__(driver.name))dlsym(handle, #name))) {                                            \
        snprintf(message, sizeof message, "libcuda.so.1 has no %s; accepted: a driver of CUDA 12.8 or newer", #name); \
        return NOT_INITIALIZED;                                                                                      \
    }
    FIND(cuInit) FIND(cuDeviceGetCount) FIND(cuDeviceGetAttribute) FIND(cuDevicePrimaryCtxRetain)
    FIND(cuCtxGetCurrent) FIND(cuCtxSetCurrent) FIND(cuCtxGetDevice) FIND(cuLibraryLoadData) FIND(cuLibraryUnload)
    FIND(cuLibraryGetKernel) FIND(cuKernelGetAttribute) FIND(cuKernelSetAttribute) FIND(cuLaunchKernelEx)
    FIND(cuGetErrorName)
    TRY(cuInit(0));
    atomic_store(&driver_open, 1);
    return SUCCESS;
}

static int check_capability(int device) {
    int major = 0, minor = 0;
    TRY(cuDeviceGetAttribute(&major, ATTRIBUTE_MAJOR, device));
    TRY(cuDeviceGetAttribute(&minor, ATTRIBUTE_MINOR, device));
    if (major == CUTE_FA4_MAJOR && minor == CUTE_FA4_MINOR) return SUCCESS;
    snprintf(message, sizeof message,
             "the kernel was exported for %s, compute capability %d.%d, and device %d has %d.%d; export for the "
             "architecture of the device", CUTE_FA4_ARCH, CUTE_FA4_MAJOR, CUTE_FA4_MINOR, device, major, minor);
    return NO_BINARY_FOR_GPU;
}

/* --- contexts ----------------------------------------------------------------------------------- */

static int primary_context(void **context, int device) {
    if (device < 0 || device >= MAX_DEVICES) {
        snprintf(message, sizeof message, "device %d; accepted: 0 to %d", device, MAX_DEVICES - 1);
        return INVALID_DEVICE;
    }
    pthread_mutex_lock(&lock);
    int status = SUCCESS;
    if (!contexts[device]) status = driver.cuDevicePrimaryCtxRetain(&contexts[device], device);
    *context = contexts[device];
    pthread_mutex_unlock(&lock);
    return status ? failed(status, "cuDevicePrimaryCtxRetain") : SUCCESS;
}

HIDDEN int _cudaGetDevice(int *device) {
    void *context = NULL;
    TRY(cuCtxGetCurrent(&context));
    no_context = !context;
    *device = 0; /* as the runtime API has it when nothing was chosen */
    if (context) TRY(cuCtxGetDevice(device));
    return SUCCESS;
}

HIDDEN int _cudaSetDevice(int device) {
    void *context = NULL;
    if (no_context && device == 0) { /* back to what the caller had; device 0 gets no context for that */
        no_context = 0;
        TRY(cuCtxSetCurrent(NULL));
        return SUCCESS;
    }
    int status = primary_context(&context, device);
    if (status) return status;
    TRY(cuCtxSetCurrent(context));
    return SUCCESS;
}

HIDDEN int _cudaGetDeviceCount(int *count) { TRY(cuDeviceGetCount(count)); return SUCCESS; }

HIDDEN int _cudaDeviceGetAttribute(int *value, int attribute, int device) {
    TRY(cuDeviceGetAttribute(value, attribute, device));
    return SUCCESS;
}

/* --- loading ------------------------------------------------------------------------------------ */

HIDDEN int _cudaLibraryLoadData(void **library, const void *cubin, int *jit_options, void **jit_values,
                                unsigned jit_count, int *options, void **values, unsigned count) {
    TRY(cuLibraryLoadData(library, cubin, jit_options, jit_values, jit_count, options, values, count));
    return SUCCESS;
}
HIDDEN int _cudaLibraryGetKernel(void **kernel, void *library, const char *name) {
    TRY(cuLibraryGetKernel(kernel, library, name));
    return SUCCESS;
}
HIDDEN int _cuKernelGetAttribute(int *value, int attribute, void *kernel, int device) {
    TRY(cuKernelGetAttribute(value, attribute, kernel, device));
    return SUCCESS;
}
HIDDEN int _cudaKernelSetAttributeForDevice(void *kernel, int attribute, int value, int device) {
    TRY(cuKernelSetAttribute(attribute, value, kernel, device)); /* cudaFuncAttribute and CUfunction_attribute agree */
    return SUCCESS;
}
HIDDEN int _cudaFuncSetAttribute(void *kernel, int attribute, int value) {
    int device = 0;
    int status = _cudaGetDevice(&device);
    return status ? status : _cudaKernelSetAttributeForDevice(kernel, attribute, value, device);
}

static int prepare_device_locked(int device) {
    if (atomic_load(&prepared[device])) return SUCCESS;
    int status = check_capability(device);
    if (!status) status = load_to_device(library_slot, device);
    if (!status) atomic_store(&prepared[device], 1);
    return status;
}

static int initialise_locked(void **slot, int (*init)(void **), int (*load)(void **, int)) {
    if (atomic_load(&ready)) return SUCCESS;
    int status = open_driver_locked();
    if (status) return status;
    int count = 0, device = 0;
    TRY(cuDeviceGetCount(&count));
    if (count == 0) {
        snprintf(message, sizeof message, "the CUDA driver finds no GPU; make one visible (CUDA_VISIBLE_DEVICES)");
        return INVALID_DEVICE;
    }
    status = _cudaGetDevice(&device);
    if (status) return status;
    status = check_capability(device);
    /* The tensors may lie on another device than the current one. */
    for (int other = 0; status && other < count && other < MAX_DEVICES; other++) {
        char first[sizeof message];
        memcpy(first, message, sizeof message);
        message[0] = 0;
        status = check_capability(other);
        if (!status) device = other;
        else memcpy(message, first, sizeof message);
    }
    if (status) return status;
    message[0] = 0;
    status = init(slot);
    if (status) return status;
    library_slot = slot;
    load_to_device = load;
    status = prepare_device_locked(device);
    if (status) {
        driver.cuLibraryUnload(*slot);
        *slot = NULL; /* the next call tries again */
        return status;
    }
    atomic_store(&ready, 1);
    return SUCCESS;
}

HIDDEN int cuda_dialect_init_library_once(void **slot, int (*init)(void **), int (*load)(void **, int),
                                          void (*set_error)(const char *kind, const char *text)) {
    message[0] = 0;
    if (atomic_load_explicit(&ready, memory_order_acquire)) return SUCCESS;
    pthread_mutex_lock(&lock);
    int status = initialise_locked(slot, init, load);
    pthread_mutex_unlock(&lock);
    if (!status) return SUCCESS;
    set_error("RuntimeError", message[0] ? message : "the kernel could not be loaded");
    return RAISED;
}

/* At exit the driver may be gone already, and it frees what is left. */
HIDDEN int cuda_dialect_unload_library_once(void **slot) { (void)slot; return SUCCESS; }

/* --- launching ---------------------------------------------------------------------------------- */

HIDDEN int _cudaLaunchKernelEx(const struct runtime_config *config, void *kernel, void **args) {
    int device = 0, status;
    void *context = NULL;
    TRY(cuCtxGetCurrent(&context));
    if (!context) { /* the calling thread chose no device: device 0, as with the runtime API */
        status = primary_context(&context, 0);
        if (status) return status;
        TRY(cuCtxSetCurrent(context));
    }
    TRY(cuCtxGetDevice(&device));
    if (device < 0 || device >= MAX_DEVICES) return failed(INVALID_DEVICE, "cuCtxGetDevice");
    if (!atomic_load_explicit(&prepared[device], memory_order_acquire)) {
        pthread_mutex_lock(&lock);
        status = prepare_device_locked(device);
        pthread_mutex_unlock(&lock);
        if (status) return status;
    }
    struct driver_config launch = {
        .shared_bytes = (uint32_t)config->dynamic_shared_bytes,
        .stream = config->stream,
        .attributes = config->attributes,
        .attribute_count = config->attribute_count,
    };
    memcpy(launch.grid, config->grid, sizeof launch.grid);
    memcpy(launch.block, config->block, sizeof launch.block);
    TRY(cuLaunchKernelEx(&launch, kernel, args, NULL));
    return SUCCESS;
}

HIDDEN void CuteDSLRT_TVMFFISetRaisedCudaError(void (*set_error)(const char *kind, const char **parts, int32_t count),
                                               int status) {
    char text[32];
    snprintf(text, sizeof text, "CUDA error %d", status);
    const char *part = message[0] ? message : text;
    set_error("RuntimeError", &part, 1);
}
