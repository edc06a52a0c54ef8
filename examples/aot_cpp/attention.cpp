// One attention call in C++ through TVM-FFI: NAME.so is loaded at run time, its function called with DLTensors.
//
//     ./attention_cpp DIR/NAME.so NAME
//
// On a B200 the buffers are device memory; with the recording driver any addresses do, nothing is executed.
#include <dlfcn.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/tvm_ffi.h>

#include <array>
#include <cstdlib>
#include <iostream>

namespace ffi = tvm::ffi;

namespace {

// Device memory without a CUDA header: one function of the driver, if it has it.
void* allocate(size_t bytes) {
  void* pointer = nullptr;
  if (void* driver = dlopen("libcuda.so.1", RTLD_NOW)) {
    auto alloc = reinterpret_cast<int (*)(void**, size_t)>(dlsym(driver, "cuMemAlloc_v2"));
    if (alloc && alloc(&pointer, bytes) == 0) return pointer;
  }
  return std::aligned_alloc(256, bytes);  // the recording driver: an address is all it needs
}

struct Tensor {
  std::array<int64_t, 4> shape, strides;
  DLTensor view;

  explicit Tensor(std::array<int64_t, 4> sizes) : shape(sizes) {
    int64_t inner = 1;
    for (int i = 3; i >= 0; --i) {
      strides[i] = inner;
      inner *= shape[i];
    }
    view = DLTensor{allocate(inner * 2),      DLDevice{kDLCUDA, 0}, 4,
                    DLDataType{kDLBfloat, 16, 1}, shape.data(),     strides.data(), 0};
  }
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: " << argv[0] << " LIBRARY NAME\n";
    return 2;
  }
  ffi::Module library = ffi::Module::LoadFromFile(argv[1]);
  ffi::Function attention = library->GetFunction(argv[2]).value();

  const std::array<int64_t, 4> shape{2, 300, 4, 64};  // batch, seqlen, heads, head dim
  Tensor q(shape), k(shape), v(shape), o(shape);
  const auto none = nullptr;
  auto call = [&] {
    // q, k, v, out, lse, scale, six tensors of lengths and pages, max_seqlen_q, mask sizes, sink, aux,
    // parts of split keys, rows of a cache, scales of 8-bit tensors, rotary columns of K, lists of key blocks,
    // threshold and counts of skipped tiles
    attention(&q.view, &k.view, &v.view, &o.view, none, 0.125, none, none, none, none, none, none, 0, none, none,
              none, none, none, none, none, none, none);
  };
  try {
    call();
    std::cout << "launched\n";
  } catch (const ffi::Error& error) {
    std::cout << "refused: " << error.message() << "\n";
    return 1;
  }
  k.view.dtype = DLDataType{kDLFloat, 16, 1};  // not what the kernel was compiled for
  try {
    call();
  } catch (const ffi::Error& error) {
    std::cout << "refused, as it should be: " << error.message() << "\n";
    return 0;
  }
  return 2;
}
