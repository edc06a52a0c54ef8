// Which shared memory wgmma reads where rows of an operand without swizzle overlap, and what that costs.
//
//     nvcc -std=c++17 -gencode=arch=compute_90a,code=sm_90a -o hopper_strides hopper_strides.cu && ./hopper_strides
//
// A step has 16 values of the contraction: two cores of 16 bytes for each row, `leading` bytes apart, and groups of
// eight rows `stride` bytes apart. Element (row, k) of A or B is expected at row / 8 * stride + row % 8 * 16 +
// k / 8 * leading + k % 8 * 2, also where strides are 0 or less than a core.

#include <cstring>
#include <cuda_bf16.h>

#include "hopper_wgmma.h"

constexpr int M = 64, N = 128, K = 16, BYTES = 16384, TURNS = 1024;
extern __shared__ __align__(1024) unsigned char shared[];

__device__ uint64_t unswizzled(uint32_t address, int leading, int stride) {
  return (uint64_t)((address >> 4) & 0x3fff) | (uint64_t)(leading / 16) << 16 | (uint64_t)(stride / 16) << 32;
}

template <int UNROLLED>
__global__ void product(const uint4 *from, float *to, long long *cycles, int4 strides, int turns) {
  for (int i = threadIdx.x; i < 2 * BYTES / 16; i += blockDim.x) ((uint4 *)shared)[i] = from[i];
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  uint32_t at = (uint32_t)__cvta_generic_to_shared(shared), none[4] = {};
  uint64_t a = unswizzled(at, strides.x, strides.y), b = unswizzled(at + BYTES, strides.z, strides.w);
  float d[64] = {};
  long long start = clock64();
  for (int i = 0; i < turns; i += UNROLLED) {
    fence();
#pragma unroll
    for (int j = 0; j < UNROLLED; j++) wgmma<false>(d, a, none, b);
    commit();
    wait<0>();
  }
  if (threadIdx.x == 0) *cycles = clock64() - start;
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (int i = 0; i < 64; i++) {
    int row = warp * 16 + lane / 4 + i / 2 % 2 * 8, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
    to[row * N + column] = d[i];
  }
}

int main() {
  static unsigned short words[BYTES];  // of both operands: integers, whose products are exact
  for (int i = 0; i < BYTES; i++) {
    float number = (float)(i * 7 % 31 - 15);
    uint32_t bits;
    memcpy(&bits, &number, 4);
    words[i] = bits >> 16;
  }
  auto element = [&](int operand, int row, int k, int leading, int stride) {
    uint32_t bits = (uint32_t)words[(operand * BYTES + row / 8 * stride + row % 8 * 16 + k / 8 * leading) / 2 + k % 8] << 16;
    float number;
    memcpy(&number, &bits, 4);
    return number;
  };
  uint4 *from;
  float *to, found[M * N];
  long long *cycles, once;
  CHECK(cudaMalloc(&from, 2 * BYTES));
  CHECK(cudaMalloc(&to, sizeof found));
  CHECK(cudaMalloc(&cycles, 8));
  CHECK(cudaMemcpy(from, words, 2 * BYTES, cudaMemcpyHostToDevice));
  int bad = 0;
  for (int4 s : {make_int4(1024, 128, 2048, 128), make_int4(128, 256, 128, 256), make_int4(128, 0, 2048, 128),
                 make_int4(128, 0, 0, 128), make_int4(0, 0, 0, 128), make_int4(1024, 16, 0, 128),
                 make_int4(0, 128, 2048, 0), make_int4(16, 16, 16, 16)}) {
    product<1><<<1, 128, 2 * BYTES>>>(from, to, cycles, s, 1);
    CHECK(cudaMemcpy(found, to, sizeof found, cudaMemcpyDeviceToHost));
    int wrong = 0;
    for (int row = 0; row < M; row++)
      for (int column = 0; column < N; column++) {
        float sum = 0;
        for (int k = 0; k < K; k++) sum += element(0, row, k, s.x, s.y) * element(1, column, k, s.z, s.w);
        wrong += sum != found[row * N + column];
      }
    bad += wrong > 0;
    for (int i = 0; i < 2; i++) product<64><<<1, 128, 2 * BYTES>>>(from, to, cycles, s, TURNS);
    CHECK(cudaMemcpy(&once, cycles, 8, cudaMemcpyDeviceToHost));
    std::printf("A: leading %d, stride %d; B: leading %d, stride %d: %d of %d wrong, %.1f cycles a step\n", s.x, s.y, s.z,
                s.w, wrong, M * N, (double)once / TURNS);
  }
  cudaDeviceProp gpu;
  CHECK(cudaGetDeviceProperties(&gpu, 0));
  std::printf("%s\n", gpu.name);
  return bad > 0;
}
