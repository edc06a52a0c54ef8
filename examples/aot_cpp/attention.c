/* One attention call in plain C, through the header that cute_fa4.aot.export wrote.
 *
 * On a B200 the buffers are device memory; with the recording driver any addresses do, nothing is executed.
 */
#include <stdio.h>
#include <stdlib.h>

#include KERNEL_HEADER

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#define ARGUMENTS JOIN(KERNEL, _arguments)
#define LAST_ERROR JOIN(KERNEL, _last_error)

enum { BATCH = 2, SEQLEN = 300, HEADS = 4, DEPTH = 64 };

/* Device memory without a CUDA header: a few functions of the driver. Allocating takes a context; the primary one of
 * device 0 is the one that the kernel's library uses. */
#include <dlfcn.h>
static void *allocate(size_t bytes) {
    void *pointer = NULL, *context = NULL, *driver = dlopen("libcuda.so.1", RTLD_NOW);
    int (*init)(unsigned), (*retain)(void **, int), (*set_current)(void *), (*alloc)(void **, size_t);
    if (driver && (*(void **)&alloc = dlsym(driver, "cuMemAlloc_v2"))) {
        *(void **)&init = dlsym(driver, "cuInit");
        *(void **)&retain = dlsym(driver, "cuDevicePrimaryCtxRetain");
        *(void **)&set_current = dlsym(driver, "cuCtxSetCurrent");
        if (!init(0) && !retain(&context, 0) && !set_current(context) && !alloc(&pointer, bytes)) return pointer;
        printf("no device memory\n");
        exit(3);
    }
    return aligned_alloc(256, bytes); /* the recording driver: an address is all it needs */
}

int main(void) {
    const int64_t shape[4] = {BATCH, SEQLEN, HEADS, DEPTH};
    const size_t bytes = (size_t)BATCH * SEQLEN * HEADS * DEPTH * 2;
    cute_fa4_tensor q, k, v, o;
    ARGUMENTS arguments = {0};

    arguments.mQ = cute_fa4_dense(&q, allocate(bytes), CUTE_FA4_BF16, 0, 4, shape);
    arguments.mK = cute_fa4_dense(&k, allocate(bytes), CUTE_FA4_BF16, 0, 4, shape);
    arguments.mV = cute_fa4_dense(&v, allocate(bytes), CUTE_FA4_BF16, 0, 4, shape);
    arguments.mO = cute_fa4_dense(&o, allocate(bytes), CUTE_FA4_BF16, 0, 4, shape);
    arguments.softmax_scale = 0.125f; /* 64^-0.5 */
    arguments.stream = NULL;

    if (KERNEL(&arguments)) {
        printf("refused: %s\n", LAST_ERROR());
        return 1;
    }
    printf("launched\n");

    k.tensor.dtype = CUTE_FA4_FP16; /* not what the kernel was compiled for */
    if (!KERNEL(&arguments)) return 2;
    printf("refused, as it should be: %s\n", LAST_ERROR());
    return 0;
}
