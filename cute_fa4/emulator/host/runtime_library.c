/* The C functions that host code compiled by the CuTe DSL calls (those of libcute_dsl_runtime.so), for the emulator.
 *
 *     compiled host function -> _cudaLaunchKernelEx -> callbacks.launch -> driver_api.py
 *
 * This file is linked into every host function that emulator.compile makes, so that a process can hold
 * functions for the emulator and for a GPU at the same time. Functions that need a result call Python
 * through `callbacks`; the rest either cannot fail or report cudaErrorNotSupported with their name.
 */
#include <stddef.h>
#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))
#define HIDDEN __attribute__((visibility("hidden")))

enum { SUCCESS = 0, FAILURE = 1, NOT_SUPPORTED = 801 }; /* cudaSuccess, any error, cudaErrorNotSupported */

/* A successful callback returns this. Anything else is a failure: a callback that an exception interrupts as it
 * begins (Ctrl-C while this code ran) returns the previous contents of memory. */
enum { DONE = 0x600d };
static int status_of(int answer) { return answer == DONE ? SUCCESS : FAILURE; }

struct callbacks {
    int (*load)(void **library, long number);
    int (*get_kernel)(void **kernel, void *library, const char *name);
    int (*device_attribute)(int *value, int attribute);
    int (*kernel_attribute)(int *value, int attribute, void *kernel);
    int (*set_kernel_attribute)(void *kernel, int attribute, int value);
    int (*launch)(const void *config, void *kernel, void **args);
    int (*encode_tensor_map)(void *map, int type, unsigned rank, void *address, const uint64_t *sizes,
                             const uint64_t *strides, const uint32_t *box, const uint32_t *element_strides,
                             int interleave, int swizzle, int promotion, int fill);
    void (*unsupported)(const char *name);
};

static struct callbacks callbacks;
static long number; /* of this host function: identifies its PTX */

EXPORT void cute_fa4_emulator_connect(const struct callbacks *from, long host_number) {
    callbacks = *from;
    number = host_number;
}

/* --- loading ------------------------------------------------------------------------------------ */

HIDDEN int cuda_dialect_init_library_once(void **slot, int (*init)(void **), int (*load)(void **, int),
                                          void (*set_error)(const char *kind, const char *message)) {
    if (*slot) return SUCCESS;
    int status = init(slot);
    if (!status) status = load(slot, 0);
    if (status) {
        *slot = NULL; /* the next call tries again */
        if (set_error) set_error("RuntimeError", "error of the emulator");
    }
    return status;
}
HIDDEN int cuda_dialect_unload_library_once(void **slot) { (void)slot; return SUCCESS; }
HIDDEN int _cudaLibraryLoadData(void **library) { return status_of(callbacks.load(library, number)); }
HIDDEN int _cuLibraryLoadData(void **library) { return status_of(callbacks.load(library, number)); }
HIDDEN int _cudaLibraryUnload(void *library) { (void)library; return SUCCESS; }
HIDDEN int _cuLibraryUnload(void *library) { (void)library; return SUCCESS; }
HIDDEN int _cudaLibraryGetKernel(void **kernel, void *library, const char *name) {
    return status_of(callbacks.get_kernel(kernel, library, name));
}
HIDDEN int _cuLibraryGetKernel(void **kernel, void *library, const char *name) {
    return status_of(callbacks.get_kernel(kernel, library, name));
}

/* --- the one device ----------------------------------------------------------------------------- */

HIDDEN int _cudaGetDeviceCount(int *count) { *count = 1; return SUCCESS; }
HIDDEN int _cudaGetDevice(int *device) { *device = 0; return SUCCESS; }
HIDDEN int _cudaSetDevice(int device) { (void)device; return SUCCESS; }
HIDDEN int _cuDeviceGet(int *device, int ordinal) { *device = ordinal; return SUCCESS; }
HIDDEN int _cudaDeviceGetAttribute(int *value, int attribute, int device) {
    (void)device;
    return status_of(callbacks.device_attribute(value, attribute));
}
HIDDEN int _cudaDeviceSynchronize(void) { return SUCCESS; }
HIDDEN int _cudaStreamSynchronize(void *stream) { (void)stream; return SUCCESS; }

/* --- kernels ------------------------------------------------------------------------------------ */

HIDDEN int _cuKernelGetAttribute(int *value, int attribute, void *kernel, int device) {
    (void)device;
    return status_of(callbacks.kernel_attribute(value, attribute, kernel));
}
HIDDEN int _cudaKernelSetAttributeForDevice(void *kernel, int attribute, int value, int device) {
    (void)device;
    return status_of(callbacks.set_kernel_attribute(kernel, attribute, value));
}
HIDDEN int _cudaFuncSetAttribute(void *kernel, int attribute, int value) {
    return status_of(callbacks.set_kernel_attribute(kernel, attribute, value));
}
HIDDEN int _cudaLaunchKernelEx(const void *config, void *kernel, void **args) {
    return status_of(callbacks.launch(config, kernel, args));
}
HIDDEN int _cuTensorMapEncodeTiled(void *map, int type, unsigned rank, void *address, const uint64_t *sizes,
                                   const uint64_t *strides, const uint32_t *box, const uint32_t *element_strides,
                                   int interleave, int swizzle, int promotion, int fill) {
    return status_of(callbacks.encode_tensor_map(map, type, rank, address, sizes, strides, box, element_strides,
                                                 interleave, swizzle, promotion, fill));
}

/* --- errors: Python keeps the exception, the status only says that there is one ------------------- */

HIDDEN const char *cuda_dialect_get_error_name(int status) { return status ? "error of the emulator" : "cudaSuccess"; }
HIDDEN const char *CuteDSLRT_GetErrorName(int status) { return cuda_dialect_get_error_name(status); }
HIDDEN const char *CuteDSLRT_GetErrorString(int status) { return cuda_dialect_get_error_name(status); }
extern void TVMFFIErrorSetRaisedFromCStr(const char *kind, const char *message); /* libtvm_ffi */
HIDDEN void CuteDSLRT_TVMFFISetRaisedCudaError(void) {
    TVMFFIErrorSetRaisedFromCStr("RuntimeError", "error of the emulator");
}
HIDDEN void CuteDSLRT_TVMFFISetRaisedCudaLaunchError(void) { CuteDSLRT_TVMFFISetRaisedCudaError(); }
HIDDEN void cuda_dialect_print_on_error(int status) { (void)status; }
HIDDEN void cuda_dialect_assert_success(int status) { (void)status; }

/* --- everything else ------------------------------------------------------------------------------ */

#define UNSUPPORTED(name) HIDDEN int name(void) { callbacks.unsupported(#name); return NOT_SUPPORTED; }

UNSUPPORTED(_cuLibraryGetGlobal)
UNSUPPORTED(_cuLibraryGetKernelCount)
UNSUPPORTED(_cuLibraryGetManaged)
UNSUPPORTED(_cuLibraryGetModule)
UNSUPPORTED(_cuLibraryGetUnifiedFunction)
UNSUPPORTED(_cuLibraryLoadFromFile)
UNSUPPORTED(_cudaEventCreate)
UNSUPPORTED(_cudaEventDestroy)
UNSUPPORTED(_cudaEventElapsedTime)
UNSUPPORTED(_cudaEventRecord)
UNSUPPORTED(_cudaFree)
UNSUPPORTED(_cudaFreeAsync)
UNSUPPORTED(_cudaFreeHost)
UNSUPPORTED(_cudaGetDeviceProperties)
UNSUPPORTED(_cudaGraphDestroy)
UNSUPPORTED(_cudaGraphExecDestroy)
UNSUPPORTED(_cudaGraphInstantiate)
UNSUPPORTED(_cudaGraphLaunch)
UNSUPPORTED(_cudaLaunchKernel)
UNSUPPORTED(_cudaLibraryGetGlobal)
UNSUPPORTED(_cudaLibraryGetKernelCount)
UNSUPPORTED(_cudaLibraryGetManaged)
UNSUPPORTED(_cudaLibraryGetUnifiedFunction)
UNSUPPORTED(_cudaLibraryLoadFromFile)
UNSUPPORTED(_cudaMalloc)
UNSUPPORTED(_cudaMallocAsync)
UNSUPPORTED(_cudaMallocHost)
UNSUPPORTED(_cudaMallocManaged)
UNSUPPORTED(_cudaMemcpy)
UNSUPPORTED(_cudaMemcpyAsync)
UNSUPPORTED(_cudaMemset)
UNSUPPORTED(_cudaMemsetAsync)
UNSUPPORTED(_cudaOccupancyMaxActiveBlocksPerMultiprocessor)
UNSUPPORTED(_cudaStreamAddCallback)
UNSUPPORTED(_cudaStreamBeginCapture)
UNSUPPORTED(_cudaStreamCreate)
UNSUPPORTED(_cudaStreamDestroy)
UNSUPPORTED(_cudaStreamEndCapture)
UNSUPPORTED(_cudaStreamWaitEvent)
