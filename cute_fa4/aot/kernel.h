/* Calling an exported kernel from C or C++ without TVM-FFI: tensors, errors, and nothing else.
 *
 *     cute_fa4_tensor q;
 *     int64_t shape[4] = {batch, seqlen_q, heads_q, 128};
 *     NAME_arguments arguments = {0};
 *     arguments.mQ = cute_fa4_dense(&q, device_pointer, CUTE_FA4_BF16, device, 4, shape);     // and so on
 *     arguments.stream = stream;
 *     if (NAME(&arguments)) puts(NAME_last_error());
 *
 * The layouts are those of DLPack (https://dmlc.github.io/dlpack/latest/c_api.html) and of the TVM-FFI C ABI
 * (https://tvm.apache.org/ffi/), so that a program that has DLTensors passes them as they are. Only what the kernel's
 * header asks for is read; every tensor's type, rank, sizes, alignment and device are checked at each call.
 */
#ifndef CUTE_FA4_KERNEL_H
#define CUTE_FA4_KERNEL_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct { int32_t type, id; } cute_fa4_device; /* DLDevice; type 2: CUDA */
typedef struct { uint8_t code, bits; uint16_t lanes; } cute_fa4_dtype; /* DLDataType */

#define CUTE_FA4_CUDA 2
static const cute_fa4_dtype CUTE_FA4_BF16 = {4, 16, 1};
static const cute_fa4_dtype CUTE_FA4_FP16 = {2, 16, 1};
static const cute_fa4_dtype CUTE_FA4_F32 = {2, 32, 1};
static const cute_fa4_dtype CUTE_FA4_I32 = {0, 32, 1};
static const cute_fa4_dtype CUTE_FA4_I64 = {0, 64, 1};
static const cute_fa4_dtype CUTE_FA4_U8 = {1, 8, 1};

typedef struct { /* DLTensor */
    void *data;
    cute_fa4_device device;
    int32_t ndim;
    cute_fa4_dtype dtype;
    int64_t *shape;
    int64_t *strides; /* in elements */
    uint64_t byte_offset;
} cute_fa4_dltensor;

#define CUTE_FA4_MAX_RANK 8
typedef struct { /* a tensor and the room for its sizes and strides */
    cute_fa4_dltensor tensor;
    int64_t shape[CUTE_FA4_MAX_RANK], strides[CUTE_FA4_MAX_RANK];
} cute_fa4_tensor;

/* Set a contiguous tensor in device memory; change ->strides afterwards for another layout. */
static inline cute_fa4_dltensor *cute_fa4_dense(cute_fa4_tensor *t, void *data, cute_fa4_dtype dtype, int32_t device,
                                                int32_t ndim, const int64_t *shape) {
    int64_t inner = 1;
    int32_t i;
    memset(t, 0, sizeof *t);
    t->tensor.data = data;
    t->tensor.device.type = CUTE_FA4_CUDA;
    t->tensor.device.id = device;
    t->tensor.ndim = ndim;
    t->tensor.dtype = dtype;
    t->tensor.shape = t->shape;
    t->tensor.strides = t->strides;
    for (i = ndim - 1; i >= 0; i--) {
        t->shape[i] = shape[i];
        t->strides[i] = inner;
        inner *= shape[i];
    }
    return &t->tensor;
}

typedef struct { /* TVMFFIAny */
    int32_t type;
    uint32_t zero;
    union { int64_t i; double f; void *p; } value;
} cute_fa4_value;

typedef struct { /* TVMFFIObject and TVMFFISeqCell of an ffi.Array */
    uint64_t references;
    int32_t type;
    uint32_t zero;
    void *deleter;
    void *data;
    int64_t size, capacity;
    void *data_deleter;
} cute_fa4_array;

static inline cute_fa4_value cute_fa4_none(void) { cute_fa4_value v = {0, 0, {0}}; return v; }
static inline cute_fa4_value cute_fa4_int(int64_t i) { cute_fa4_value v = {1, 0, {0}}; v.value.i = i; return v; }
static inline cute_fa4_value cute_fa4_float(double f) { cute_fa4_value v = {3, 0, {0}}; v.value.f = f; return v; }
static inline cute_fa4_value cute_fa4_tensor_value(const cute_fa4_dltensor *t) {
    cute_fa4_value v = {0, 0, {0}};
    if (t) { v.type = 7; v.value.p = (void *)t; }
    return v;
}
static inline cute_fa4_value cute_fa4_tuple(cute_fa4_array *array, cute_fa4_value *items, int64_t size) {
    cute_fa4_value v = {71, 0, {0}};
    memset(array, 0, sizeof *array);
    array->references = (1ull << 32) | 1;
    array->type = 71;
    array->data = items;
    array->size = array->capacity = size;
    v.value.p = array;
    return v;
}

#ifdef __cplusplus
}
#endif
#endif
