// What an arrival at the scope of a cluster costs the thread that makes it, on a Hopper GPU.
//
//     nvcc -std=c++17 -O3 -gencode=arch=compute_90a,code=sm_90a -o hopper_release hopper_release.cu
//     ./hopper_release
//
// Clusters of two CTAs on every SM. Eight warps write 64 bytes a thread to shared memory, fence them for the async proxy and arrive at the other
// CTA's mbarrier, as softmax warps do behind P (cute_fa4/sm100/mla_pair/sync.py); a ninth warp copies from L2, or does nothing. Printed: median and
// 90th percentile of the cycles from the last store until the thread goes on, of what orders the arrival and whether copies are under way.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <vector>
constexpr int N = 400, WARPS = 8, BYTES = 16384;
template <int KIND>
__global__ void __cluster_dims__(2) arrive(int* out, const char* from, int busy) {
  extern __shared__ __align__(1024) char tile[];
  __shared__ uint64_t bars[2];
  __shared__ int done;
  uint32_t bar = __cvta_generic_to_shared(bars), at = __cvta_generic_to_shared(tile), rank, there;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  if (threadIdx.x < 2) asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(bar + 8 * threadIdx.x), "r"(threadIdx.x ? 1 : 1000000));
  if (!threadIdx.x) done = 0;
  asm volatile("fence.mbarrier_init.release.cluster; barrier.cluster.arrive; barrier.cluster.wait;" ::: "memory");
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(bar), "r"(rank ^ 1));
  if (threadIdx.x < 32 * WARPS) {
    for (int i = 0; i < N; i++) {
      int4 v = {i, i, i, i};
      for (int k = 0; k < 4; k++) *(volatile int*)(tile + 65536 + threadIdx.x * 64 + 16 * k) = v.x + k;
      int first = clock();
      asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
      if (KIND == 1) asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
      if (KIND == 2) asm volatile("mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [%0];" ::"r"(there) : "memory");
      if (KIND == 3) asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(there) : "memory");
      int last = clock();
      if (threadIdx.x % 32 == 0) out[((blockIdx.x * WARPS) + threadIdx.x / 32) * N + i] = last - first;
      __nanosleep(500);
    }
    atomicAdd(&done, 1);
  } else if (busy && threadIdx.x == 32 * WARPS) {
    for (int i = 0, phase = 0; *(volatile int*)&done < 32 * WARPS; i++, phase ^= 1) {
      asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(bar + 8), "r"(4 * BYTES) : "memory");
      for (int k = 0; k < 4; k++)
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(at + k * BYTES),
                     "l"(from + (size_t)((blockIdx.x * 7 + i * 4 + k) % 1024) * BYTES), "r"(BYTES), "r"(bar + 8) : "memory");
      int ok = 0;
      while (!ok) asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.b32 %0, 1, 0, p;}" : "=r"(ok) : "r"(bar + 8), "r"(phase) : "memory");
    }
  }
  asm volatile("barrier.cluster.arrive; barrier.cluster.wait;" ::: "memory");
}
template <int KIND>
void row(const char* name) {
  for (int busy = 0; busy < 2; busy++) {
    int *out, ctas = 132 / 2 * 2, n = ctas * WARPS * N;
    char* from;
    cudaMalloc(&out, n * 4), cudaMalloc(&from, 1024 * BYTES), cudaMemset(from, 0, 1024 * BYTES);
    cudaFuncSetAttribute(arrive<KIND>, cudaFuncAttributeMaxDynamicSharedMemorySize, 90000);
    arrive<KIND><<<ctas, 32 * WARPS + 32, 90000>>>(out, from, busy);
    std::vector<int> t(n);
    cudaMemcpy(t.data(), out, n * 4, cudaMemcpyDeviceToHost);
    std::sort(t.begin(), t.end());
    printf("%-36s %-12s %5d %5d  %s\n", name, busy ? "copies" : "idle", t[n / 2], t[n * 9 / 10], cudaGetErrorString(cudaGetLastError()));
  }
}
int main() {
  row<0>("proxy fence alone"), row<1>("release.cta, own barrier"), row<2>("relaxed.cluster, the other's"), row<3>("release.cluster, the other's");
}
