/* torch's DLPack exchange table with CPU tensors that claim to be on cuda:0, on torch's default stream.
 *
 *     api = claim_cuda(torch.Tensor.__dlpack_c_exchange_api__)
 *
 * The rest is torch's own: a compiled function converts and checks its arguments as it does on a GPU.
 * https://dmlc.github.io/dlpack/latest/c_api.html
 */
#include <dlpack/dlpack.h>
#include <stddef.h>

static const DLPackExchangeAPI *torch;
static DLPackExchangeAPI claiming;

static int from_object(void *object, DLManagedTensorVersioned **out) {
    int status = torch->managed_tensor_from_py_object_no_sync(object, out);
    if (!status) (*out)->dl_tensor.device = (DLDevice){kDLCUDA, 0};
    return status;
}

static int stream(DLDeviceType type, int32_t device, void **out) {
    (void)type; (void)device;
    *out = NULL;
    return 0;
}

DLPackExchangeAPI *claim_cuda(const DLPackExchangeAPI *api) {
    torch = api;
    claiming = *api;
    claiming.managed_tensor_from_py_object_no_sync = from_object;
    claiming.current_work_stream = stream;
    return &claiming;
}
