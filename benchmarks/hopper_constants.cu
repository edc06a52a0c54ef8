// Constants of the cycle model's Hopper machine that no document gives, measured: name, value, what was timed.
//
//     nvcc -std=c++17 -gencode=arch=compute_90a,code=sm_90a -o hopper_constants hopper_constants.cu
//     ./hopper_constants
//
// Cycles are those of clock64, so the clock of the GPU does not matter. Every kernel runs once to warm up and once to
// be read; one CTA an SM, on all SMs. cycle_model/hopper.py holds the values, docs/performance/calibration.md says what for.

#include "hopper_wgmma.h"

constexpr int SHARED_BYTES = 200 * 1024;
constexpr int GROUP = 8;  // wgmmas of one product of 64 x 128 x 128

extern __shared__ __align__(1024) unsigned char shared[];

__device__ __forceinline__ uint32_t clock32() {
  uint32_t now;
  asm volatile("mov.u32 %0, %%clock;" : "=r"(now)::"memory");
  return now;
}

struct Operands {
  uint64_t a, b;
  uint32_t r[4] = {0x3c003c00u, 0xbc103c00u, 0x3c003c20u, 0xbc003c00u};

  __device__ Operands() {
    uint32_t *words = (uint32_t *)shared;
    for (int i = threadIdx.x; i < 160 * 1024 / 4; i += blockDim.x)
      words[i] = 0x3c003c00u ^ (i * 2654435761u & 0x807f807fu);  // bf16 of either sign, near 0.01
    __syncthreads();
    asm volatile("fence.proxy.async;" ::: "memory");
    __syncthreads();
    uint32_t base = (uint32_t)__cvta_generic_to_shared(shared);
    a = descriptor(base + threadIdx.x / 128 * 16384);
    b = descriptor(base + 65536);
  }
};

template <bool A_IN_REGISTERS>
__device__ __forceinline__ void product(float (&d)[64], const Operands &x) {
#pragma unroll
  for (int k = 0; k < GROUP; k++)
    wgmma<A_IN_REGISTERS>(d, x.a + 2 * (k & 3) + (k >> 2) * 512, x.r, x.b + (A_IN_REGISTERS ? k * 128 : 2 * (k & 3)));
}

__device__ __forceinline__ void keep(const float (&d)[64], float *sink) {
  float sum = 0;
  for (int i = 0; i < 64; i++) sum += d[i];
  if (sum == 12345.f) *sink = sum;
}

// Products one behind the other; each waited for, or the one before it.
template <bool A_IN_REGISTERS, int OPEN>
__global__ void __launch_bounds__(256, 1) products(long long *out, float *sink, int number) {
  Operands x;
  float d[64] = {};
  long long start = clock64();
  for (int i = 0; i < number; i++) {
    fence();
    product<A_IN_REGISTERS>(d, x);
    commit();
    wait<OPEN>();
  }
  wait<0>();
  if (threadIdx.x == 0) out[blockIdx.x] = clock64() - start;
  keep(d, sink);
}

// Two products at once: cycles from the issue of a warpgroup's last wgmma to its end.
__global__ void __launch_bounds__(256, 1) last_issue(long long *out, float *sink) {
  Operands x;
  float d[64] = {};
  uint32_t issued = 0, end = 0;
  for (int i = 0; i < 3; i++) {
    __syncthreads();
    fence();
    product<false>(d, x);
    product<false>(d, x);
    issued = clock32();
    commit();
    wait<0>();
    end = clock32();
  }
  if (threadIdx.x == 0) out[blockIdx.x] = end - issued;
  keep(d, sink);
}

// --- arithmetic beside wgmma ------------------------------------------------------------------------------------

// EXPONENTIAL: what comes with one in softmax, an ex2 with an ffma before it, an fadd and an fmul of O.
enum Arithmetic { EX2, EXPONENTIAL, FFMA, FADD, FMUL, FMNMX };

// Warpgroup 0 multiplies, for longer than warpgroup 1 takes for its arithmetic; `number` 0: it leaves.
template <Arithmetic OPERATION, bool A_IN_REGISTERS>
__global__ void __launch_bounds__(256, 1) beside(long long *out, float *sink, int iterations, int number) {
  Operands x;
  if (threadIdx.x < 128) {
    float d[64] = {};
    for (int i = 0; i < number; i++) {
      fence();
      product<A_IN_REGISTERS>(d, x);
      commit();
      wait<1>();
    }
    wait<0>();
    keep(d, sink);
    return;
  }
  float v[8], w[8];
  for (int i = 0; i < 8; i++) v[i] = threadIdx.x * 1e-3f + i * 0.1f, w[i] = i * 0.01f;
  for (int i = 0; i < 64; i++) __nanosleep(100);
  asm volatile("bar.sync 1, 128;" ::: "memory");
  long long start = clock64();
#pragma unroll 1
  for (int n = 0; n < iterations; n++)
#pragma unroll
    for (int i = 0; i < 64; i++) {
      if (OPERATION == EXPONENTIAL) {
        asm volatile("ex2.approx.ftz.f32 %0, %0;" : "+f"(v[i % 8]));
        asm volatile("add.f32 %0, %0, %1;" : "+f"(w[i % 4]) : "f"(v[(i + 5) % 8]));
        asm volatile("fma.rn.f32 %0, %0, %1, %1;" : "+f"(v[(i + 4) % 8]) : "f"(w[5]));
        asm volatile("mul.f32 %0, %0, %1;" : "+f"(w[6 + i % 2]) : "f"(w[5]));
      }
      if (OPERATION == EX2) asm volatile("ex2.approx.ftz.f32 %0, %0;" : "+f"(v[i % 8]));
      if (OPERATION == FFMA) asm volatile("fma.rn.f32 %0, %0, %1, %1;" : "+f"(v[i % 8]) : "f"(w[i % 8]));
      if (OPERATION == FADD) asm volatile("add.f32 %0, %0, %1;" : "+f"(v[i % 8]) : "f"(w[i % 8]));
      if (OPERATION == FMUL) asm volatile("mul.f32 %0, %0, %1;" : "+f"(v[i % 8]) : "f"(w[i % 7 + 1]));
      if (OPERATION == FMNMX) asm volatile("max.f32 %0, %0, %1;" : "+f"(v[i % 8]) : "f"(w[i % 8]));
    }
  asm volatile("bar.sync 1, 128;" ::: "memory");
  if (threadIdx.x == 128) out[blockIdx.x] = clock64() - start;
  float sum = 0;
  for (int i = 0; i < 8; i++) sum += v[i] + w[i];
  if (sum == 12345.f) *sink = sum;
}

// --- barriers and CTAs ------------------------------------------------------------------------------------------

__device__ __forceinline__ void arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void wait_for(uint32_t barrier, int parity) {
  asm volatile("{.reg .pred p; again: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; @!p bra again;}" ::"r"(
                   barrier), "r"(parity) : "memory");
}

// Two warps wake each other in turn.
__global__ void ping_pong(long long *out, int turns) {
  __shared__ __align__(8) uint64_t barriers[2];
  uint32_t ping = (uint32_t)__cvta_generic_to_shared(barriers), pong = ping + 8;
  if (threadIdx.x == 0)
    for (uint32_t barrier : {ping, pong}) asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier));
  __syncthreads();
  if (threadIdx.x % 32) return;
  long long start = clock64();
  for (int i = 0; i < turns; i++) {
    if (threadIdx.x) wait_for(ping, i & 1), arrive(pong);
    else arrive(ping), wait_for(pong, i & 1);
  }
  if (threadIdx.x == 0) out[0] = clock64() - start;
}

__global__ void synchronise(long long *out, int times) {
  long long start = clock64();
  for (int i = 0; i < times; i++) asm volatile("bar.sync 1, 256;" ::: "memory");
  if (threadIdx.x == 0) out[0] = clock64() - start;
}

// A CTA that fills an SM by its shared memory and leaves at once.
__global__ void leave(long long *out) {
  if (threadIdx.x == 0) out[blockIdx.x] = clock64();
}

// --- host -------------------------------------------------------------------------------------------------------

long long *out, *host;
float *sink;
int sms;

template <class Kernel, class... Arguments>
double cycles(Kernel kernel, int threads, Arguments... arguments) {
  CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_BYTES));
  for (int i = 0; i < 2; i++) kernel<<<sms, threads, SHARED_BYTES>>>(out, arguments...);
  CHECK(cudaGetLastError());
  CHECK(cudaMemcpy(host, out, sizeof(long long), cudaMemcpyDeviceToHost));
  return (double)host[0];
}

template <Arithmetic OPERATION, bool A_IN_REGISTERS>
double slowdown() {
  int iterations = 1000, number = 2500;  // 64,000 exponentials take 960,000 cycles, 2,500 products 1,280,000
  double alone = cycles(beside<OPERATION, A_IN_REGISTERS>, 256, sink, iterations, 0);
  return cycles(beside<OPERATION, A_IN_REGISTERS>, 256, sink, iterations, number) / alone;
}

template <Arithmetic OPERATION>
double mean_slowdown(const char *name) {
  double from_shared = slowdown<OPERATION, false>(), from_registers = slowdown<OPERATION, true>();
  std::printf("  %s: %.2f times as long beside wgmmas with A in shared memory, %.2f in registers\n", name, from_shared,
              from_registers);
  return (from_shared + from_registers) / 2;
}

int main() {
  cudaDeviceProp properties;
  CHECK(cudaGetDeviceProperties(&properties, 0));
  sms = properties.multiProcessorCount;
  std::printf("%s, %d SMs\n", properties.name, sms);
  CHECK(cudaMalloc(&out, 1 << 20));
  CHECK(cudaMalloc(&sink, sizeof(float)));
  host = new long long[1];

  int number = 512;
  for (int groups : {1, 2}) {
    int threads = 128 * groups;
    double shared_a = cycles(products<false, 1>, threads, sink, number) / number / groups;
    double register_a = cycles(products<true, 1>, threads, sink, number) / number / groups;
    std::printf("wgmma m64n128k16 of %d warpgroups: every %.2f cycles, A in registers %.2f\n", groups,
                shared_a / GROUP, register_a / GROUP);
  }
  double interval = cycles(products<false, 1>, 128, sink, number) / number / GROUP;
  double tail = cycles(products<false, 0>, 128, sink, number) / number - GROUP * interval;
  std::printf("wgmma_tail %.1f: a product that is waited for, beyond its interval\n", tail);
  for (int groups : {1, 2}) {
    double rest = cycles(last_issue, 128 * groups, sink) - tail;
    std::printf("wgmma_in_flight %.1f: of an SM when %d warpgroups have issued their last\n", rest / interval, groups);
  }
  mean_slowdown<EX2>("ex2 alone");
  std::printf("wgmma_slows_mufu %.2f\n", mean_slowdown<EXPONENTIAL>("ex2 with fadd, ffma and fmul"));
  double fma = mean_slowdown<FFMA>("ffma") + mean_slowdown<FADD>("fadd") + mean_slowdown<FMUL>("fmul");
  std::printf("wgmma_slows_fma %.2f\n", fma / 3);
  std::printf("wgmma_slows_alu %.2f\n", mean_slowdown<FMNMX>("fmnmx"));

  int turns = 1000;
  std::printf("mbarrier_arrive + mbarrier_wake %.1f\n", cycles(ping_pong, 64, turns) / turns / 2);
  std::printf("bar_sync %.1f: 256 threads\n", cycles(synchronise, 256, turns) / turns);

  CHECK(cudaFuncSetAttribute(leave, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_BYTES));
  cudaEvent_t first, last;
  CHECK(cudaEventCreate(&first));
  CHECK(cudaEventCreate(&last));
  double us[2];
  for (int i = 0; i < 4; i++) {
    CHECK(cudaEventRecord(first));
    leave<<<sms * (i % 2 ? 110 : 10), 384, SHARED_BYTES>>>(out);
    CHECK(cudaEventRecord(last));
    CHECK(cudaEventSynchronize(last));
    float milliseconds;
    CHECK(cudaEventElapsedTime(&milliseconds, first, last));
    us[i % 2] = milliseconds * 1e3;
  }
  int khz;
  CHECK(cudaDeviceGetAttribute(&khz, cudaDevAttrClockRate, 0));
  double gap = (us[1] - us[0]) / 100;
  std::printf("cta_gap %.0f: %.3f us from CTA to CTA of an SM, at %.2f GHz\n", gap * khz * 1e-3, gap, khz * 1e-6);
}
