// What loads from shared memory and bulk reductions into L2 cost, for the cycle model; cycles are those of clock64.
//
//     nvcc -std=c++17 -gencode=arch=compute_90a,code=sm_90a -o hopper_shared hopper_shared.cu && ./hopper_shared

#include <cstdint>
#include <cstdio>

constexpr int SHARED_BYTES = 65536, TURNS = 256, UNROLLED = 8, THREADS = 512, COPIES = 2000;
extern __shared__ __align__(1024) unsigned char shared[];

// Every warp loads 16 bytes a lane; lanes are `step` bytes apart.
__global__ void loads(long long *out, float *sink, int step) {
  uint32_t at = (uint32_t)__cvta_generic_to_shared(shared) + threadIdx.x % 32 * step, sum = 0, a, b, c, d;
  __syncthreads();
  long long start = clock64();
  for (int i = 0; i < TURNS; i++)
#pragma unroll
    for (int j = 0; j < UNROLLED; j++) {
      asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(a), "=r"(b), "=r"(c), "=r"(d) : "r"(at + j * 512 + i % 8 * 4096) : "memory");
      sum ^= a ^ b ^ c ^ d;
    }
  __syncthreads();
  if (threadIdx.x == 0) out[blockIdx.x] = clock64() - start;
  if (sum == 77) *sink = 1;
}

// One thread of a CTA keeps four copies of `bytes` on their way into a buffer of `chunks` of them.
template <bool ADD>
__global__ void copies(long long *out, float *target, int bytes, int chunks) {
  if (threadIdx.x) return;
  uint32_t source = (uint32_t)__cvta_generic_to_shared(shared);
  long long start = clock64();
  for (int i = 0; i < COPIES; i++) {
    float *to = target + (long long)((blockIdx.x * 37 + i) % chunks) * (bytes / 4);
    uint32_t from = source + i % 4 * bytes;
    if (ADD)
      asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;"
                   ::"l"(to), "r"(from), "r"(bytes));
    else
      asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from), "r"(bytes));
    asm volatile("cp.async.bulk.commit_group; cp.async.bulk.wait_group.read 3;");
  }
  asm volatile("cp.async.bulk.wait_group 0;");
  out[blockIdx.x] = clock64() - start;
}

long long *out, cycles;
float *memory;

template <class Kernel, class... Arguments>
double timed(Kernel kernel, int ctas, int threads, Arguments... arguments) {
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_BYTES);
  for (int i = 0; i < 3; i++) kernel<<<ctas, threads, SHARED_BYTES>>>(out, memory, arguments...);
  cudaMemcpy(&cycles, out, sizeof cycles, cudaMemcpyDeviceToHost);
  return (double)cycles;
}

int main() {
  cudaDeviceProp gpu;
  cudaGetDeviceProperties(&gpu, 0);
  cudaMalloc(&out, 4096);
  cudaMalloc(&memory, 1 << 26);
  cudaMemset(memory, 0, 1 << 26);
  for (int step : {0, 16})
    std::printf("a load of 16 bytes a lane, lanes %d apart: every %.2f cycles\n", step,
                timed(loads, 132, THREADS, step) / (TURNS * UNROLLED * THREADS / 32));
  for (int ctas : {1, gpu.multiProcessorCount})
    for (int bytes : {4096, 16384}) {
      double moved = (double)COPIES * bytes;
      int chunks = (16 << 20) / bytes;
      double store = moved / timed(copies<false>, ctas, 32, bytes, chunks);
      double add = moved / timed(copies<true>, ctas, 32, bytes, chunks);
      std::printf("%d SMs, %d bytes each: stored %.1f, added %.1f bytes a cycle and SM\n", ctas, bytes, store, add);
    }
  std::printf("%s, %s\n", gpu.name, cudaGetErrorString(cudaDeviceSynchronize()));
}
