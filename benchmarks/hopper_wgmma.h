// What measurements on a Hopper GPU share: errors of the runtime, and wgmma m64n128k16 in bf16.

#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cuda_runtime.h>

#define CHECK(call)                                                                             \
  do {                                                                                          \
    cudaError_t error = (call);                                                                 \
    if (error != cudaSuccess) {                                                                 \
      std::printf("%s: %s\n", #call, cudaGetErrorString(error));                                \
      std::exit(1);                                                                             \
    }                                                                                           \
  } while (0)

// --- wgmma m64n128k16, bf16 -------------------------------------------------------------------------------------

#define D16(i)                                                                                                  \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]),   \
      "+f"(d[i + 7]), "+f"(d[i + 8]), "+f"(d[i + 9]), "+f"(d[i + 10]), "+f"(d[i + 11]), "+f"(d[i + 12]),        \
      "+f"(d[i + 13]), "+f"(d[i + 14]), "+f"(d[i + 15])
#define ACCUMULATORS                                                                                            \
  "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28," \
  "%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55," \
  "%56,%57,%58,%59,%60,%61,%62,%63}"

// A from shared memory, as Q K^T has it, or from registers, as P V has it.
template <bool A_IN_REGISTERS>
__device__ __forceinline__ void wgmma(float (&d)[64], uint64_t a, const uint32_t (&r)[4], uint64_t b) {
  if constexpr (A_IN_REGISTERS) {
    asm volatile("{.reg .pred p; setp.eq.b32 p, 0, 0; wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
                 ACCUMULATORS ", {%64,%65,%66,%67}, %68, p, 1, 1, 1;}"
                 : D16(0), D16(16), D16(32), D16(48)
                 : "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]), "l"(b));
  } else {
    asm volatile("{.reg .pred p; setp.eq.b32 p, 0, 0; wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
                 ACCUMULATORS ", %64, %65, p, 1, 1, 0, 0;}"
                 : D16(0), D16(16), D16(32), D16(48)
                 : "l"(a), "l"(b));
  }
}

__device__ __forceinline__ void fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int OPEN>
__device__ __forceinline__ void wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(OPEN) : "memory");
}

// 128-byte swizzle, rows of 128 bytes.
__device__ __forceinline__ uint64_t descriptor(uint32_t address) {
  return (uint64_t)((address >> 4) & 0x3fff) | 1ull << 16 | 64ull << 32 | 1ull << 62;
}
