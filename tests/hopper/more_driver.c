/* The recording driver with what runtime.c asks for besides. RECORDING_FULL=1: no memory. RECORDING_HANGS=1: no launch
 * ever ends. */
#include "recording_driver.c"

static int busy(void) { return number("RECORDING_HANGS", 0); }
int cuLibraryGetGlobal(uint64_t *pointer, size_t *bytes, void *library, const char *name) {
    static char memory[256];
    (void)library;
    record("cuLibraryGetGlobal %s", name);
    *pointer = (uint64_t)(uintptr_t)memory;
    *bytes = sizeof memory;
    return SUCCESS;
}
int cuMemAlloc_v2(uint64_t *pointer, size_t bytes) {
    record("cuMemAlloc %zu", bytes);
    if (number("RECORDING_FULL", 0)) return 2;
    *pointer = (uint64_t)(uintptr_t)calloc(1, 1 << 16);
    return SUCCESS;
}
int cuMemFree_v2(uint64_t pointer) { (void)pointer; record("cuMemFree"); return SUCCESS; }
int cuMemsetD32Async(uint64_t pointer, uint32_t value, size_t count, void *stream) {
    (void)pointer; (void)stream;
    record("cuMemsetD32 %x count=%zu", value, count);
    return SUCCESS;
}
int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes, void *stream) {
    const uint32_t *words = from;
    (void)to; (void)stream; (void)bytes;
    record("control refused=%u seed=%u greedy=%u wrong=%u", words[6], words[7], words[8], words[9]);
    return SUCCESS;
}
int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t bytes) { memcpy(to, (void *)(uintptr_t)from, bytes); return SUCCESS; }
int cuStreamQuery(void *stream) { (void)stream; return busy() ? 600 : SUCCESS; }
int cuCtxSynchronize(void) { return SUCCESS; }
